"""The page of traps is what the catalogue and the measured figures say, and complete; no TensorFlow here."""

from __future__ import annotations

import ast
import re
from html import unescape
from pathlib import Path

import pytest
from test_check_report import REPORTING_IDS, TRAINING_IDS

from compare.check.causes import CATALOGUE
from compare.check.causes.base import REPORTING
from compare.check.used import ALONE, SCRIPT, SCRIPT_ALONE, Used
from scripts.pages import traps

FOLDER = Path(__file__).resolve().parents[1] / "reports" / "traps"
PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")
DATA = traps.read(FOLDER)
RESULTS = DATA[traps.RESULTS]


def test_every_cause_was_measured():
    measured = set(RESULTS["cause"])
    missing = sorted(CATALOGUE.keys() - measured)
    assert not missing, f"run: python scripts/traps.py --only {' '.join(missing)}"
    assert measured <= CATALOGUE.keys()


def test_every_promised_cause_has_a_section_that_can_be_linked_to():
    sections = re.findall(r'<article [^>]*id="([^"]+)"', PAGE)
    assert {*TRAINING_IDS, *REPORTING_IDS} <= set(sections)
    assert len(sections) == len(set(sections)) == len(CATALOGUE)
    assert re.findall(r'<th scope="row"><a href="#([^"]+)"', PAGE) == sections


def test_the_page_has_all_texts_and_the_evidence_of_every_cause():
    text = unescape(PAGE)
    for cause in CATALOGUE.values():
        said = [cause.symptom, cause.explanation, cause.wrong, cause.remedy, traps.TOLD[cause.id]["recognised"]]
        assert [part for part in said if part not in text] == [], cause.id
    assert [evidence for evidence in RESULTS["evidence"] if evidence not in text] == []


def test_every_picture_is_there_and_all_are_small():
    pictures = [FOLDER / name for name in re.findall(r'<img src="([^"]+)"', PAGE)]
    assert len(pictures) == len(CATALOGUE)
    assert all(picture.is_file() for picture in pictures), "run: python scripts/traps.py --redraw"
    assert sum(picture.stat().st_size for picture in pictures) < 2_500_000


@pytest.mark.parametrize("cause", CATALOGUE.values(), ids=list(CATALOGUE))
def test_every_entry_has_its_texts(cause):
    assert all([cause.symptom, cause.explanation, cause.wrong, cause.remedy, traps.TOLD[cause.id]["recognised"]])
    ast.parse(cause.wrong)
    for line in traps.TOLD[cause.id].get("met", ()):
        assert re.fullmatch(r".+, https://\S+", line), f"not “title, URL”: {line}"


def test_a_cause_that_only_misreports_trains_the_same():
    # Dropout's masks come from a state that validation moves on.
    both = {"validation-in-training-mode", "empty-replica-batch"}
    for row in RESULTS.to_dict("records"):
        if row["cause"] not in both:
            reporting = CATALOGUE[row["cause"]].kind == REPORTING
            assert (row["training"] == "identical") == reporting, row


def test_the_tutorials_example_is_worked_out():
    (row,) = DATA[traps.EXAMPLE].astype(float).to_dict("records")
    assert row == {
        "first": 1.25,
        "second": 2.25,
        "metric": 1.75,
        "sum": 3.5,
        "mean": 3.5,
    }
    assert "<strong>1.75</strong>" in PAGE


def test_a_curve_without_numbers_can_be_drawn(tmp_path):
    assert "not a number" in traps.caption(traps.Shown(DATA, "empty-replica-batch"))
    assert traps.draw(tmp_path, "empty-replica-batch", DATA).stat().st_size > 5_000


def test_a_cause_that_was_not_measured_is_told_with_the_command(tmp_path):
    with pytest.raises(LookupError, match="--only loss-summed"):
        traps.Shown(traps.read(tmp_path), "loss-summed")


def test_texts_for_plain_scripts_name_no_method_of_a_run():
    for cause in CATALOGUE.values():
        if cause.recorded or cause.kind == REPORTING:  # which two scripts are told
            texts = [cause.wrong, *(cause.remedy_for(Used(frozenset((SCRIPT, *more)))) for more in ((), (ALONE,)))]
            assert not [text for text in texts if re.search(r"(?<!strategy\.)\brun\.|run_", text)], cause.id
    reset = CATALOGUE["metrics-not-reset"]
    assert "fit" not in reset.symptom + reset.explanation, "two loops are told the same"
    assert "metrics" not in reset.remedy_for(SCRIPT_ALONE), "only a Run has such a list"


def test_the_page_names_the_command_as_it_is_today():
    assert "<code>fit-vs-loop check</code>" in PAGE and "compare.py --check" not in PAGE
