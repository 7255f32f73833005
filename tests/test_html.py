"""What the pages must tell, whatever is in a run's folder, and that names in it are only ever text."""

from __future__ import annotations

import base64
import dataclasses
import errno
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import recorded
from recorded import finish, record, two
from rich.console import Console

import compare
from compare.app import redraw, restore
from compare.app.publish import judge_and_publish
from compare.check.causes import CATALOGUE
from compare.engine.costs import CostMeter, peak_memory
from compare.naming import TOGETHER
from compare.options import as_json as options_as_json
from compare.options import request
from compare.records import model as records
from compare.records.files import write_checked
from compare.records.log_sides import read_sides
from compare.records.metrics_csv import MetricsFile, read_metrics
from compare.records.model import EPOCH_END, INITIAL, BuildRecord, EpochRecord, StepRecord, Variable
from compare.records.reader import read_costs, read_records, read_rows
from compare.records.recorder import Recorder
from compare.records.run_json import read_run, read_verdict, write_verdict
from compare.reporting import (
    html,
    page_model,
    pictures,
    plots,
    run_files,
    sentences,
    svg,
    tensorboard,
    terminal,
    weight_pictures,
)
from compare.reporting.charts import counts
from compare.reporting.gaps import gap_series, gaps_of
from compare.reporting.page_tables import repeat_command
from compare.reporting.run_files import RunFiles, word_of
from compare.reporting.tables import epoch_table, print_table
from compare.reporting.weight_pictures import overlaid_gaps
from compare.verdict.exact import compare_records, paired_steps
from compare.verdict.findings import Finding, Source
from compare.verdict.model import Comparison, Difference, Failure, MetricGap, Reporting, Training, Verdict
from compare.verdict.outcomes import ALIKE, DIFFERENT, IDENTICAL
from scripts.pages import traps

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = [
    "Do they train alike?", "Where do they diverge?", "Why?", "What results did they reach?", "What did they cost?",
    "What exactly was run?",
]  # fmt: skip
HOSTILE = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"


class Page(HTMLParser):
    """A page's headings, visible text, addresses, tables and charts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.ids: set[str] = set()
        self.rows: list[list[str]] = []
        self._open: list[tuple[str, dict[str, Any]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, Any]]) -> None:
        found = dict(attributes)
        self.addresses += [found[name] for name in ("href", "src") if name in found]
        self.ids |= {found["id"]} if "id" in found else set()
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta", "link", "img", "br", "input"):
            self._open.append((tag, found))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = [tag for tag, _ in self._open]
        if "script" in inside:
            self.scripts.append((self._open[-1][1], data))
        elif "style" not in inside:
            self.words.append(data)
            if inside and inside[-1] == "h2":
                self.headings.append(data.strip())
            if self.rows and ("td" in inside or "th" in inside):
                self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def charts(self) -> list[list[Any]]:
        """Of each chart what hovering shows: [position, name, [[series, text, key, height], …]] per stop."""
        return [json.loads(data) for found, data in self.scripts if found.get("type") == "application/json"]


ANSWERS = {
    "identical": "= Do they train alike? Yes, exactly. ",
    "different": "≠ Do they train alike? No. ",
    "inconclusive": "? Do they train alike? Not decided yet: more seeds are needed. ",
    "not-comparable": "! Do they train alike? They cannot be compared. ",
    "interrupted": "= Do they train alike? Yes, up to the interruption. ",
}


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_a_page_answers_the_six_questions_in_order(tmp_path: Path, kind: str) -> None:
    page = Page(recorded.KINDS[kind](tmp_path / "run") / "report.html")
    assert page.headings == QUESTIONS
    assert [answer for answer in ANSWERS.values() if answer in page.text] == [ANSWERS[kind]]


def test_the_page_of_a_difference_tells_where_and_why(tmp_path: Path) -> None:
    page = Page(recorded.different(tmp_path / "run") / "report.html")
    assert "mine does not train like fit: their weights differ from step 2 of epoch 2 on" in page.text
    assert "Epoch 2, step 2" in page.text and "dense/kernel" in page.text
    for id in ("loss-constant-denominator", "loss-averaged-over-batches"):
        cause = CATALOGUE[id]
        for text in (id, cause.explanation, cause.wrong, cause.remedy, f"vidence of {id}"):
            assert re.sub(r"\s+", " ", text) in page.text


def test_the_page_cites_the_users_own_line_where_it_was_seen(tmp_path: Path) -> None:
    verdict = read_verdict(recorded.different(tmp_path / "run") / "verdict.json")
    cause = next(cause for entry in verdict["comparisons"] for cause in entry["causes"])
    cause["source"] = {"file": "mine.py", "line": 14, "text": "loss = loss_fn(y, logits) < 1"}
    text = Page(finish(tmp_path / "run", verdict=verdict) / "report.html").text
    assert "Your code, mine.py, line 14 loss = loss_fn(y, logits) < 1" in text
    beside_the_answer = f"Cause {cause['id']}: evidence of {cause['id']} (mine.py, line 14). "
    assert text.index(beside_the_answer) < text.index("Where do they diverge?")
    assert re.sub(r"\s+", " ", CATALOGUE[cause["id"]].wrong) not in text, "instead of an example"
    cause["source"]["shows"] = True
    text = Page(finish(tmp_path / "run", verdict=verdict) / "report.html").text
    assert "Seen at mine.py, line 14" in text and "Your code" not in text and beside_the_answer not in text
    cause["source"]["instead"] = "loss = right(y, logits)"
    text = Page(finish(tmp_path / "run", verdict=verdict) / "report.html").text
    assert "Write instead loss = right(y, logits)" in text
    assert re.sub(r"\s+", " ", cause["remedy"]) not in text, "which may use other names"


def test_the_page_of_other_numbers_from_equal_weights_says_which_and_what_to_do(tmp_path: Path) -> None:
    verdict = read_verdict(recorded.identical(tmp_path / "run") / "verdict.json")
    (entry,) = verdict["comparisons"]
    entry["verdict"] = entry["reporting"]["verdict"] = "different"
    entry["reporting"]["metrics"]["val_loss"] = {"max_gap": 0.018, "epoch": 1}
    entry["reporting"]["metrics"]["loss"] = {"max_gap": None, "epoch": 1, "not_reported_by": "loop"}
    page = Page(finish(tmp_path / "run", verdict=verdict | {"verdict": "different"}) / "report.html").text
    assert "Only in the reported numbers: val_loss" in page and "numbers: loss" not in page
    assert "No known cause only reported numbers differ" in page and "evidence below" not in page
    assert "The weights are equal; only reported numbers differ: val_loss (by up to 0.018, in epoch 1)." in page
    assert "What to do: check how loop calculates these numbers" in page and "shown above" not in page
    (told,) = Verdict.read(tmp_path / "run" / "verdict.json").comparisons
    assert sentences.causes(told) == [f"  no known cause explains this: {sentences.advice_on_numbers(told)}."]


def logged_as(folder: Path, names: Mapping[str, str], factor: float = 1.0) -> Path:
    """A run whose loop reports numbers under other names, times a factor."""
    record(folder, "fit", epochs=1)
    record(folder, "loop", epochs=1, renamed=names, factor=factor)
    return finish(folder)


def test_a_mistyped_metric_is_warned_of_and_what_was_reached_is_shown_of_both(tmp_path: Path) -> None:
    folder = logged_as(tmp_path / "same", {"val_accuracy": "val_accurac"})
    (entry,) = Verdict.read(folder / "verdict.json").comparisons
    assert sentences.misnamed(entry, "fit") == "", "equal values were compared"
    assert "both 0.4 val_accuracy after 1 epoch" in Page(folder / "report.html").text

    folder = logged_as(tmp_path / "other", {"val_accuracy": "val_accurac", "accuracy": "score"}, 0.9)
    (entry,) = Verdict.read(folder / "verdict.json").comparisons
    assert (
        "To add To compare accuracy, val_accuracy too, add to loop: run.end_epoch(epoch, "
        in Page(folder / "report.html").text
    )
    assert sentences.misnamed(entry, "fit") == (
        "loop reports score, val_accurac, which fit does not; not compared: accuracy, val_accuracy; did you mean "
        "val_accuracy?"
    )
    assert "both 1.25 val_loss after 1 epoch" in Page(folder / "report.html").text

    folder = logged_as(tmp_path / "twice", {"val_loss": "train_loss"}, 0.9)
    (entry,) = Verdict.read(folder / "verdict.json").comparisons
    assert sentences.misnamed(entry, "fit") == "loop reports train_loss, which fit does not; not compared: val_loss."


@pytest.mark.parametrize("unknown", [{}, {"gradient_norm": MetricGap(None, 1, "fit")}])
def test_numbers_that_are_not_reported_or_come_on_top_are_no_mistyped_ones(unknown: dict[str, MetricGap]) -> None:
    metrics = unknown or {"loss": MetricGap(None, 1, "loop")}
    comparison = Comparison("loop", Training("identical", 0.0, None, 1), Reporting(None, metrics))
    assert sentences.misnamed(comparison, "fit") == ""


def test_a_script_is_told_which_numbers_were_not_compared_and_how_to_report_them() -> None:
    numbers = Reporting(None, {name: MetricGap(None, 1, "my_loop") for name in ("loss", "val_loss")})
    differs = Comparison("my_loop", Training("different", None, Difference(1, 1), 1), numbers)
    alike = dataclasses.replace(differs, training=Training("alike", None, None, 1))
    same = dataclasses.replace(differs, training=Training("identical", 0.0, None, 1))
    for judged in (differs, alike, same):
        assert sentences.unreported(judged, "scripts") == (
            "To compare loss, val_loss too, in my_loop read the result() of Keras metrics at the end of each epoch, or "
            "add there, with the means over it: import compare; compare.report(epoch=…, loss=…, val_loss=…)"
        )
        assert sentences.unreported(judged, "run") == (
            "To compare loss, val_loss too, add to my_loop: run.end_epoch(epoch, {…, 'loss': …, 'val_loss': …})"
        )
        assert "To compare loss, val_loss too" in terminal.as_text(Verdict.of("fit", [judged]))
    rate = dataclasses.replace(same, reporting=Reporting(None, {"learning_rate": MetricGap(None, 1, "my_loop")}))
    assert sentences.unreported(rate, "scripts") == "", "it has no mean, and the weights say more"
    told = sentences.sentence(same, "fit")
    assert told.endswith("; losses and metrics were not compared, since the two report none in common")
    nothing = dataclasses.replace(same, reporting=Reporting(None, {}))
    assert sentences.unreported(nothing, "scripts") == (
        "No loss or metric was seen of both at the end of the same epoch. To compare some, read the result() of Keras "
        "metrics at the end of each "
        "epoch, or add there, with the means over it: import compare; compare.report(epoch=…, loss=…)"
    )
    second = dataclasses.replace(nothing, reference="my_fit model 2")
    assert sentences.sentence(second, "fit").endswith(
        "; losses and metrics are compared of the scripts' first training only"
    )
    unknown = dataclasses.replace(nothing, training=Training("inconclusive", None, None, 0, reason="more trainings"))
    assert sentences.unreported(second, "scripts") == sentences.unreported(unknown, "scripts") == ""
    assert sentences.unreported(nothing, "run") == sentences.unreported(same, "logs") == ""


def test_a_named_mistake_of_a_script_may_hide_another_one() -> None:
    cause = Finding("loss-summed", "training", "loop", "evidence", "remedy")
    named = Comparison("loop", Training("different", None, Difference(1, 1), 1), Reporting(None, {}), causes=(cause,))
    alike = dataclasses.replace(named, training=Training("alike", None, None, 1))
    only_numbers = dataclasses.replace(named, causes=(dataclasses.replace(cause, id="metrics-not-reset"),))
    assert "may hide another one: run this again" in terminal.as_text(Verdict.of("fit", [named], scope="scripts"))
    for judged, scope in ((named, "run"), (alike, "scripts"), (only_numbers, "scripts")):
        assert sentences.more_may_follow(judged, scope) == ""
    for stage, ends in (("loss", "No known cause explains it: look at how the loss is computed"), ("", "")):
        at = dataclasses.replace(named.training, first_difference=Difference(1, 1, stage=stage or None))
        unknown = dataclasses.replace(named, causes=(), training=at)
        assert sentences.more_may_follow(unknown, "scripts") == ends
        assert sentences.more_may_follow(unknown, "run") == ""
        hinted = dataclasses.replace(unknown, evidence=("a hint",))
        assert "may hide another one" in sentences.more_may_follow(hinted, "scripts")


def test_of_two_scripts_both_are_listed_with_the_costs_that_are_known(tmp_path: Path) -> None:
    record(tmp_path / "run", "fit", rate=np.nan)
    record(tmp_path / "run", "loop", rate=np.nan, seconds=np.nan)
    page = Page(finish(tmp_path / "run", verdict={"scope": "scripts"}) / "report.html")
    assert ["trainer", "later epochs", "first epoch", "total"] in page.rows
    assert [row[1:] for row in page.rows if row[0] == "loop" and "unknown" in row] == [
        ["not measured", *["unknown"] * 2]
    ]
    assert "how long epochs of loop take is not known" in page.text and "Peak memory is" not in page.text


def test_a_comparison_of_scripts_that_failed_is_listed_with_the_error_and_its_log(tmp_path: Path) -> None:
    options = {**options_as_json(request()), "scripts": ["fit.py", "loop.py"]}
    error = "NameError: name 'x' is not defined (loop.py, line 3)\nmore"
    run = {
        "options": options,
        "trainers": ["fit", "loop"],
        "failures": [{"side": "loop", "error": error, "remedy": ""}],
    }
    for name in ("with-log", "without"):
        recorded.finish(tmp_path / name, failure=Failure("", "", ""), status="training", **run)
        for file in ("verdict.json", "report.html", "comparison.png"):
            (tmp_path / name / file).unlink(missing_ok=True)
    (tmp_path / "with-log" / "loop.log").touch()
    page = Page(html.write_index(tmp_path))
    assert [address for address in page.addresses if "log" in address or "without" in address] == ["with-log/loop.log"]
    assert page.text.count("loop failed: NameError: name 'x' is not defined (loop.py, line 3)") == 2
    assert "2 failed" in page.text and "more" not in page.text and "No numbers" not in page.text
    assert "strategy" not in page.text, "which is the scripts' own in all of them"
    assert "What differs" not in page.text, "nothing does, so there is no such column"
    assert word_of({**run, "options": options}, None) == "failed"
    assert word_of({**run, "options": {**options, "scripts": []}}, None) == "unfinished"


def test_a_difference_without_a_known_cause_says_that_it_is_shown_above(tmp_path: Path) -> None:
    page = Page(two(tmp_path / "run", off_from=6) / "report.html").text
    assert "No known cause explains it. Where they diverge is shown above." in page


def test_the_timeline_is_zero_until_they_part_and_not_after(tmp_path: Path) -> None:
    page = Page(recorded.different(tmp_path / "run") / "report.html")
    told = {name: {who: text for who, text, *_ in rows} for _, name, rows in page.charts[0]}
    assert told["epoch 2, step 1"]["mine − fit"] == told["epoch 3, step 4"]["loop − fit"] == "equal, bit for bit"
    assert float(told["epoch 2, step 2"]["mine − fit"]) == pytest.approx(1e-3 * 2**0.5, rel=1e-2)
    assert float(told["epoch 3, step 4"]["mine − fit"]) == pytest.approx(7e-3 * 2**0.5, rel=1e-2)


def timeline_of(files: RunFiles) -> dict[str, Any]:
    """What is drawn of the weight gaps of a run."""
    chart = weight_pictures.timeline(files, weight_pictures.compared_gaps(files))
    assert chart is not None
    return svg.content(chart)


def test_step_n_is_drawn_at_n_and_the_initial_weights_at_0(tmp_path: Path) -> None:
    files = run_files.read(two(tmp_path / "run", epochs=1, steps=15, off_from=5))
    (strip,) = weight_pictures.strips(files, weight_pictures.compared_gaps(files))
    overlaid = overlaid_gaps([("run", files)])
    assert overlaid is not None
    together = svg.content(overlaid)
    of_run = {0: "before the first step", **{n: f"step {n} of the run" for n in range(1, 16)}}
    of_epoch = {0: "before the first step", **{n: f"epoch 1, step {n}" for n in range(1, 16)}}
    for chart, names in ((timeline_of(files), of_epoch), (strip, of_epoch), (together, of_run)):
        stops = {name: at for at, name, _ in chart["stops"]}
        assert list(stops) == list(names.values())
        ticks = {int(text): at for at, text in chart["x_ticks"]}
        assert ticks == pytest.approx({n: stops[names[n]] for n in ticks}, abs=0.001) and {0, 14} <= ticks.keys()


@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_the_gaps_of_a_side_that_accumulates_gradients_are_those_of_the_updates_that_were_judged(
    tmp_path: Path, off: float
) -> None:
    """It reports every batch, and the other side its updates only."""
    metrics, number = MetricsFile(tmp_path / "metrics.csv"), itertools.count()
    for name, steps in (("fit", {1: 0, 2: 1, 3: 1, 4: 2}), ("loop", {1: 1, 2: 2})):
        recorder = Recorder(tmp_path, metrics, name, 0)
        recorder(BuildRecord((recorded.VARIABLES[0],), 1))
        for step, updates in ({INITIAL: 0} | steps | {EPOCH_END: 2}).items():
            gap = off * (name == "loop" and updates == 2)
            hashes = np.full((1, 1), next(number) if gap else 1000 + updates, np.uint64)
            recorder(StepRecord(1, step, hashes, np.full((1, 2), 1 + 0.01 * updates + gap)))
        recorder(EpochRecord(1, {"loss": 0.5}, 1.0, 10.0))
        recorder.flush()
    compared = compare_records(*paired_steps(*read_records(tmp_path)))
    ((_, _, gaps),) = gaps_of(tmp_path, Verdict.of("fit", [compared]))
    assert compared.verdict == ("different" if off else "identical")
    assert gaps.steps.tolist() == [INITIAL, 2, 4]
    assert gaps.gaps.tolist() == pytest.approx([0, 0, off]) and gaps.equal.all() == (not off)


def test_an_epoch_starts_with_its_first_step(tmp_path: Path) -> None:
    timeline = timeline_of(run_files.read(recorded.different(tmp_path / "run")))
    assert timeline["x_name"] == "start of epoch"
    stops = {name: at for at, name, _ in timeline["stops"]}
    starts = {text: stops[f"epoch {text}, step 1"] for text in ("1", "2", "3")}
    assert {text: at for at, text in timeline["x_ticks"]} == pytest.approx(starts, abs=0.001)
    assert timeline["lines"] == pytest.approx([starts["2"], starts["3"]], abs=0.001)


def test_of_many_steps_the_first_that_differs_is_still_drawn(tmp_path: Path) -> None:
    page = Page(two(tmp_path / "run", epochs=2, steps=3000, off_from=4321) / "report.html")
    stops = {name: rows[0][1] for _, name, rows in page.charts[0]}
    assert len(stops) <= weight_pictures.STOPS + 2 * weight_pictures.AROUND[0] + 2
    names = list(stops)
    first = names.index("epoch 2, step 1,321")
    assert all(stops[name] == "equal, bit for bit" for name in names[:first])
    assert all(stops[name] != "equal, bit for bit" for name in names[first:])


def layered(folder: Path, names: Sequence[str], from_step: Mapping[str, int], steps: int = 40) -> Path:
    """A run of two trainers whose variables differ, each from its own step on."""
    variables = tuple(Variable(name, (2,), "float32") for name in names)
    for trainer in ("fit", "loop"):
        folder.mkdir(exist_ok=True)
        recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), trainer, 0)
        recorder(BuildRecord(variables, 1))
        for step in range(1, steps + 1):
            off = np.array([trainer == "loop" and step >= from_step.get(name, steps + 1) for name in names])
            hashes = np.full((len(names), 1), step, np.uint64) + 1000 * off[:, np.newaxis].astype(np.uint64)
            recorder(StepRecord(1, step, hashes, np.ones((len(names), 2)) + 0.01 * off[:, np.newaxis]))
        recorder(StepRecord(1, EPOCH_END, hashes, np.ones((len(names), 2))))
        recorder(EpochRecord(1, {"loss": 0.5}, 1.0, 1.0))
    return finish(folder)


def strip_of(folder: Path) -> dict[str, Any]:
    files = run_files.read(folder)
    (strip,) = weight_pictures.strips(files, weight_pictures.compared_gaps(files))
    return strip


def test_the_strip_shows_which_layer_differs_first(tmp_path: Path) -> None:
    folder = layered(
        tmp_path / "run", ["net/a/kernel", "net/b/kernel", "net/c/kernel"], {"net/b/kernel": 7, "net/c/kernel": 9}
    )
    strip = strip_of(folder)
    assert [(name, first) for _, name, first in strip["rows"]] == [
        ("a/kernel", False), ("b/kernel", True), ("c/kernel", False)
    ]  # fmt: skip
    assert strip["summary"] == "First to differ (epoch 1, step 7): b/kernel."
    told = {name: values for _, name, values in strip["stops"]}
    assert told["epoch 1, step 6"] == ["=", "=", "="]
    assert told["epoch 1, step 8"] == ["=", "1.0e-02", "="]
    assert told["epoch 1, step 9"] == ["=", "1.0e-02", "1.0e-02"]
    ((_, path),) = strip["cells"]
    assert path.count("M") == 2, "one cell for all steps side by side"
    edges = [float(x) for x in re.findall(r"[MH](-?[\d.]+)", path)]
    assert min(edges) >= 0 and max(edges) == 1000, "no cell is wider than the chart"
    assert strip["summary"] in Page(folder / "report.html").text


def test_of_many_variables_a_row_is_a_layer_and_of_many_layers_the_last_to_differ_are_left_out(tmp_path: Path) -> None:
    names = [f"net/layer{i}/{part}" for i in range(30) for part in ("kernel", "bias")]
    folder = layered(tmp_path / "run", names, {f"net/layer{i}/kernel": 5 + i for i in range(29)}, 60)
    strip = strip_of(folder)
    assert [name for _, name, _ in strip["rows"]] == [f"layer{i}" for i in range(weight_pictures.MOST_ROWS)]
    assert strip["left_out"] == 30 - weight_pictures.MOST_ROWS


def test_a_weight_that_is_not_finite_has_a_shade_of_its_own(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    (_, _, gaps), *_ = gaps_of(folder, Verdict.read(folder / "verdict.json"))
    by_variable = gaps.by_variable.copy()
    by_variable[6:, 0] = np.nan
    lost = dataclasses.replace(gaps, by_variable=by_variable, equal=gaps.equal & (np.arange(len(gaps.equal)) < 6))
    places = range(len(gaps.steps))
    strip = weight_pictures.strip("", lost, places, gaps.first + np.array(places), counts(len(places)), "", [])
    assert strip is not None and strip["key"][-1] == (weight_pictures.LEVELS + 1, "not a number")
    assert strip["stops"][6][2][0] == "not a number" and strip["stops"][5][2][0] == "="


def test_readers_can_zoom_to_the_steps_around_the_first_difference(tmp_path: Path) -> None:
    timeline = timeline_of(run_files.read(two(tmp_path / "run", epochs=2, steps=3000, off_from=4321)))
    stops = {name: x for x, name, _ in timeline["stops"]}
    _, hundred, ten = timeline["views"]
    assert ten["name"] == "First difference ± 10 steps" and ten["x_name"] == "step of epoch 2"
    assert "1,321" in [text for _, text in ten["ticks"]]
    for view, around in ((hundred, 100), (ten, 10)):
        inside = [name for name, x in stops.items() if view["low"] <= x <= view["high"]]
        assert inside == [f"epoch 2, step {step:,}" for step in range(1321 - around, 1322 + around)]


def test_a_cause_is_told_in_the_numbers_of_the_run(tmp_path: Path) -> None:
    data = {"training_examples": 550, "validation_examples": 64, "source": "", "training_sha256": "",
            "validation_sha256": ""}  # fmt: skip
    run = {"causes": ["loss-constant-denominator", "loss-averaged-over-batches"], "data": data}
    said = Page(two(tmp_path / "run", epochs=2, steps=5, off_from=5, run=run) / "report.html").text
    assert "after step 5 of epoch 1, the last of the epoch, whose batch has 38 examples instead of 128" in said
    assert "Reported where they differ most: loss of epoch 1: fit 1.0 and loop 1.0625" in said


def test_evidence_is_shown_as_it_is(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    verdict = read_verdict(folder / "verdict.json")
    next(cause for entry in verdict["comparisons"] for cause in entry["causes"])["evidence"] = "val_loss. is a mean"
    write_verdict(folder / "verdict.json", verdict)
    assert "Evidence from the short check: val_loss. is a mean." in Page(html.write(folder)).text


def test_the_page_contains_the_files_that_it_offers(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    links = re.findall(r'download="run-([^"]+)" href="data:[^,]*,([^"]*)"', (folder / "report.html").read_text())
    assert [name for name, _ in links] == ["metrics.csv", "verdict.json", "run.json"]
    for name, content in links:
        assert base64.b64decode(content) == (folder / name).read_bytes()


@pytest.mark.parametrize("block", [2, records.BLOCK])
def test_noise_twins_are_the_band(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BLOCK", block)
    folder = tmp_path / "run"
    record(folder, "fit")
    record(folder, "loop", off_from=3, gap=3e-7)
    record(folder / "twins" / "loop", "twin-1", off_from=3, gap=1e-7)
    page = Page(finish(folder) / "report.html")
    told = {name: rows[0][1] for _, name, rows in page.charts[0]}
    assert "rounding alone: 1.41e-07" in told["epoch 1, step 3"] and "rounding" not in told["epoch 1, step 2"]
    assert "rounding alone, measured by perturbed runs" in page.text
    (_, _, gaps), *_ = gaps_of(folder, Verdict.read(folder / "verdict.json"))
    assert np.isnan(gaps.noise[:3]).all() and (np.diff(gaps.noise[3:]) >= 0).all()


def test_rounding_is_drawn_and_its_band_is_named_if_it_begins_with_the_last_of_many_steps(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record(folder, "fit", epochs=1, steps=938)
    record(folder, "loop", epochs=1, steps=938, off_from=938, gap=3e-7)
    record(folder / "twins" / "loop", "twin-1", epochs=1, steps=938, off_from=938, gap=1e-7)
    assert "rounding alone, measured by perturbed runs" in Page(finish(folder) / "report.html").text
    assert plots.draw(folder).is_file()


def test_judging_and_drawing_take_no_more_than_twice_the_memory_of_the_fingerprints(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record(folder, "fit", epochs=2, steps=20_000)
    record(folder, "loop", epochs=2, steps=20_000, off_from=30_000)
    sides = {each.trainer: each for each in read_records(folder)}
    size = sum(each.steps.nbytes for each in sides.values())
    tracemalloc.start()
    try:
        compare_records(sides["fit"], sides["loop"])
        gap_series(sides["fit"], sides["loop"])
        assert tracemalloc.get_traced_memory()[1] < 2 * size, (
            "a Python object per fingerprint takes several times as much"
        )
    finally:
        tracemalloc.stop()


def test_the_table_has_the_numbers_of_the_file_and_the_gap(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    page = Page(folder / "report.html")
    for row in read_metrics(folder / "metrics.csv"):
        cells = [row[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")]
        assert any(row["trainer"] in shown and shown[-4:] == cells for shown in page.rows), row
    gaps = [shown[-4:] for shown in page.rows if len(shown) == 6 and shown[1] == "gap"]
    none, some = ["0"] * 4, ["+0.062", "0", "+0.062", "0"]
    assert gaps == [none, none, none, some, none, some], "loop and mine, epoch by epoch"


def test_numbers_of_another_name_are_in_the_column_of_the_reference_with_their_gap(tmp_path: Path) -> None:
    folder = logged_as(tmp_path / "run", {"accuracy": "acc"})
    rows = [shown for shown in Page(folder / "report.html").rows if shown[1:2] in (["trainer"], ["loop"], ["gap"])]
    heading, loop, gap = (shown for shown in rows if len(shown) == 6)
    assert heading[2:] == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert loop[2:4] == ["1.0", "0.5"] and gap[2:] == ["0"] * 4
    console = Console(file=(out := io.StringIO()), width=200)
    print_table(console, epoch_table(run_files.read(folder)))
    assert [line.split() for line in out.getvalue().splitlines()][::2] == [heading, ["loop", *loop[2:]]]


def test_hovering_shows_every_epochs_exact_values(tmp_path: Path) -> None:
    folder = recorded.identical(tmp_path / "run")
    page = Page(folder / "report.html")
    curves = [
        chart for chart in page.charts[1:] if not any(text == "equal" for _, _, rows in chart for _, text, *_ in rows)
    ]
    shown = {(who, name): text for chart in curves for _, name, rows in chart for who, text, *_ in rows}
    for row in read_metrics(folder / "metrics.csv"):
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert shown[f"{row['trainer']} {name}", f"epoch {row['epoch']}"] == row[name]


def test_names_are_text_wherever_they_come_from(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record(folder, "fit")
    record(folder, HOSTILE, off_from=2)
    finish(
        folder,
        ("fit", HOSTILE),
        causes=["loss-summed"],
        title=HOSTILE,
        notes=[HOSTILE],
        command=["compare.py", "--experiment", HOSTILE],
        preflight=[{"id": "x", "severity": "warning", "message": HOSTILE}],
    )
    html.write_index(tmp_path)
    html.write_together([folder, folder], tmp_path / "both.html")
    (tmp_path / "notebook.html").write_text(html.notebook(folder))
    for path in (folder / "report.html", tmp_path / "index.html", tmp_path / "both.html", tmp_path / "notebook.html"):
        text = path.read_text(encoding="utf-8")
        shown = Page(path).text.replace(str(tmp_path), "").replace("249", "")  # the folder's name has a number, too
        assert "<script>alert" not in text and "49" not in shown, path
        assert "<script>alert(1)</script>" in Page(path).text, "shown as it is spelt"
    assert sum("alert(1)" in data for found, data in Page(folder / "report.html").scripts if not found) == 0


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_a_page_needs_no_network_and_no_other_file(tmp_path: Path, kind: str) -> None:
    path = recorded.KINDS[kind](tmp_path / "run") / "report.html"
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src=|url\(|@import|<link[^>]*href=\")(?!\"?data:)", text)
    assert not [address for address in Page(path).addresses if re.match(r"\w+://|//", address)]


def test_every_causes_story_is_there_to_be_linked(tmp_path: Path) -> None:
    stories = Page(page_model.TRAPS)
    assert stories.ids >= CATALOGUE.keys()
    page = Page(recorded.different(tmp_path / "run") / "report.html")
    links = [unescape(address) for address in page.addresses if address.endswith("#loss-constant-denominator")]
    assert links
    for link in links:
        assert (tmp_path / "run" / link.partition("#")[0]).resolve() == page_model.TRAPS


@pytest.mark.parametrize(
    ("training", "reporting", "said"),
    [
        (IDENTICAL, DIFFERENT, ["weights agree, reported numbers do not"]),
        (ALIKE, None, ["reported numbers were not compared"]),
        (IDENTICAL, IDENTICAL, []),
        (DIFFERENT, DIFFERENT, []),
    ],
)
def test_the_list_of_runs_tells_equal_weights_from_equal_numbers(
    training: str, reporting: str | None, said: list[str]
) -> None:
    made = Comparison("loop", Training(training, None, None, 3), Reporting(reporting, {}))
    assert html._of_numbers([made]) == said
    assert html._of_numbers([]) == []


def test_the_page_of_stories_is_the_one_that_the_catalogue_makes(tmp_path: Path) -> None:
    for path in page_model.TRAPS.parent.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    made = traps.write_page(tmp_path)
    assert Page(made).text == Page(page_model.TRAPS).text, "run: python scripts/traps.py --redraw"
    shown = [address for address in Page(made).addresses if address.endswith(".png")]
    assert len(shown) == len(CATALOGUE) and all((page_model.TRAPS.parent / name).exists() for name in shown)


def test_a_run_of_which_nothing_was_judged_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record(folder, "fit", epochs=1)
    finish(folder, ("fit", "fit"), status="training")
    (folder / "verdict.json").unlink()
    text = Page(html.write(folder)).text
    assert "No verdict yet." in text and "fit 1" in text


def test_the_command_repeats_the_run_under_another_name(tmp_path: Path) -> None:
    text = unescape((recorded.identical(tmp_path / "run") / "report.html").read_text())
    assert "python scripts/compare.py --experiment 'my task.py' --epochs 3</code>" in text


@pytest.mark.parametrize(("omitted", "said"), [(["--name=a"], True), (["--name", "a", "--resume"], True),
                                               (["--resume"], False)])  # fmt: skip
def test_a_name_is_said_to_be_omitted_where_there_was_one(omitted: list[str], said: bool) -> None:
    command, note = repeat_command({"command": ["compare.py", *omitted, "--epochs", "3"]})
    assert (command, "--name" in note) == ("python scripts/compare.py --epochs 3", said)


def test_all_runs_are_listed_the_newest_first_and_damaged_ones_too(tmp_path: Path) -> None:
    two(tmp_path / "old", run={"started": "2026-01-01T00:00:00+00:00"})
    recorded.different(tmp_path / "new one", started="2026-03-01T00:00:00+00:00")
    finish(tmp_path / "stopped", ("fit", "loop"), failure=recorded.Failure("fit", "no", "yes"))
    (tmp_path / "stopped" / "verdict.json").write_text("{")
    page = Page(html.write_index(tmp_path))
    rows = [" ".join(cells) for cells in page.rows[1:]]
    assert ["different" in rows[0], "identical" in rows[1], "unreadable" in rows[2]] == [True] * 3
    assert "2026-03-01" in rows[0] and "my task3 epochs" in rows[0] and "mirrored, 2 replicas" in rows[0]
    assert "new%20one/report.html" in page.addresses


@pytest.mark.parametrize(("scripts", "second"), [
    (["fit.py", "loop.py"], "loop"),
    (["fit.py", "ida/loop.py"], "ida/loop"),
    (["task/fit.py", "task/loop.py"], "loop"),
    (["both.py"], "loop"),
])  # fmt: skip
def test_a_script_in_a_folder_of_its_own_is_listed_with_it(scripts: list[str], second: str) -> None:
    assert html._trainers({"trainers": ["fit", "loop"], "options": {"scripts": scripts}}) == ["fit", second]
    assert html._trainers({"options": {"trainers": ["fit", "mine"]}}) == ["fit", "mine"]


def test_the_numbers_of_a_large_run_are_left_out_of_the_list_which_reads_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.identical(tmp_path / "run")
    assert html.summary_of(tmp_path / "run")["result"][0]
    monkeypatch.setattr(html, "LARGE", 10)
    assert html.summary_of(tmp_path / "run")["result"] == ("", "")


def test_a_list_of_runs_that_cannot_be_written_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.identical(tmp_path / "run")
    page = html.write_index(tmp_path)
    page.write_text(page.read_text() + "<!-- as it was -->")
    monkeypatch.setattr(os, "access", lambda path, mode: path != page)
    assert html.left_alone(tmp_path).endswith("index.html cannot be written and was left as it is")
    assert html.write_index(tmp_path).read_text().endswith("<!-- as it was -->")


def test_runs_side_by_side_are_drawn_in_one_chart_each_as_long_as_it_is(tmp_path: Path) -> None:
    runs = [
        recorded.identical(tmp_path / "a"),
        recorded.different(tmp_path / "b"),
        recorded.not_comparable_run(tmp_path / "c"),
    ]
    (tmp_path / "link.html").symlink_to("nowhere")
    for name in ("task.py", "side-by-side.html"):
        (tmp_path / name).write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for wrong in ("link.html", ".", "task.py", "a/verdict.json", "a/report.html", "no/such.html", None):
        assert redraw.main([*map(str, runs), *(["--out", str(tmp_path / wrong)] if wrong else [])]) == 2
    (tmp_path / "link.html").unlink()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert redraw.main([*map(str, runs), "--out", str(tmp_path / "all.html")]) == 0
    assert redraw.main([*map(str, runs), "--out", str(tmp_path / "all.html")]) == 0
    page = Page(tmp_path / "all.html")
    assert {"a/report.html", "b/report.html", "c/report.html"} <= set(page.addresses)
    gaps, loss, _ = page.charts
    lines = {who for _, _, rows in loss for who, *_ in rows}
    assert {"a: fit loss", "a: loop val_loss", "b: mine loss"} <= lines
    assert {who for _, _, rows in gaps for who, *_ in rows} == {
        "a: loop \N{MINUS SIGN} fit", "b: loop \N{MINUS SIGN} fit", "b: mine \N{MINUS SIGN} fit"
    }  # fmt: skip
    assert "Not drawn" in page.text and "no longer there: c." in page.text


def test_options_of_several_runs_are_compared_by_what_they_mean(tmp_path: Path) -> None:
    asked = {**options_as_json(request()), "experiment": "task.py", "trainers": ["fit", "/a/loop.py:L"], "epochs": 3}
    older = {name: value for name, value in asked.items() if name != "backend"}
    for number, options in enumerate(
        [asked, {**older, "experiment": "/a/task.py"}, {**asked, "trainers": ["fit", "/b/loop.py:L"]}]
    ):
        two(tmp_path / str(number), run={"options": {**options, "name": "same"}})
    page = Page(html.write_together([tmp_path / str(number) for number in range(3)], tmp_path / "all.html"))
    (differing,) = [row for row in page.rows if row[0].startswith("--")]
    assert differing == ["--trainers", "fit /a/loop.py:L", "fit /a/loop.py:L", "fit /b/loop.py:L"]


def test_the_list_shows_names_that_no_cause_is_known_and_the_page_of_several_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record(folder, "fit")
    record(folder, "mine", off_from=3)
    names = {"experiment": "/home/me/my_task.py", "trainers": ["fit", "mine"]}
    finish(folder, ("fit", "mine"), options={**options_as_json(request()), **names})
    page = Page(html.write_index(tmp_path))
    (row,) = [" ".join(row) for row in page.rows if "run" in row[1]][-1:]
    assert "cause unknown" in row and "my_task" in row and "/home/me" not in page.text
    assert TOGETHER not in page.addresses
    assert "my_task under mirrored" in Page(html.write(folder)).text
    html.write_together([folder, folder], tmp_path / TOGETHER)
    assert TOGETHER in Page(html.write_index(tmp_path)).addresses


def test_of_runs_of_different_length_there_is_a_view_for_each(tmp_path: Path) -> None:
    for name, epochs in (("short", 2), ("long", 8)):
        two(tmp_path / name, epochs=epochs)
    runs = [(name, run_files.read(tmp_path / name)) for name in ("short", "long")]
    for chart, lengths in ((pictures.overlaid_metric(runs, "loss"), [2, 8]), (overlaid_gaps(runs), [8, 32])):
        assert chart is not None
        content = svg.content(chart)
        short, whole = content["views"]
        assert short["low"] == whole["low"] == 0 and short["high"] < 40 < whole["high"]
        ends = {line["end"] for line in content["curves"]}
        assert len(ends) == 2 and min(ends) < short["high"] < max(ends) < whole["high"] + 0.01
        assert max(int(text) for _, text in short["ticks"]) <= lengths[0]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "verdict.json").write_text("{"), "verdict.json: cannot be read as JSON"),
        (
            lambda folder: (folder / "verdict.json").write_text('{"verdict": "identical", "comparisons": [1]}'),
            "damaged",
        ),
        (lambda folder: (folder / "run.json").write_text("[]"), "run.json: damaged"),
        (lambda folder: (folder / "metrics.csv").write_text("a,b\n"), "metrics.csv: line 1"),
        (lambda folder: (folder / "run.json").unlink(), "no recorded run is there"),
        (lambda folder: (folder / "comparison.png").unlink() or (folder / "comparison.png").mkdir(), "remove it"),
        (
            lambda folder: (folder / "report.html").write_text("<p>mine</p>"),
            "report.html is no page of a run and is not",
        ),
    ],
)
def test_a_damaged_run_is_one_line_and_status_2(tmp_path: Path, capsys: Any, damage: Any, told: str) -> None:
    folder = recorded.identical(tmp_path / "run")
    assert redraw.main([str(folder)]) == 0
    capsys.readouterr()
    damage(folder)
    written = (folder / "report.html").stat().st_mtime_ns
    assert redraw.main([str(folder)]) == 2
    assert (folder / "report.html").stat().st_mtime_ns == written, "nothing is replaced by half"
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and told in said.err


def test_an_empty_name_is_not_the_run_in_the_current_folder(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded.identical(tmp_path / "run"))
    assert redraw.main([""]) == 2
    assert capsys.readouterr().err == "report.py: '': give the name of a file or folder\n"


def test_a_page_that_cannot_be_written_is_no_reason_to_resume(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded.identical(tmp_path / "run")

    def full(**_: Any) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert redraw.main([str(folder)]) == 2
    said = capsys.readouterr().err
    assert "report.html cannot be written (No space left)" in said and "--resume" not in said


@pytest.mark.parametrize(
    "put", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)], ids=["pipe", "folder", "broken link"]
)
def test_what_is_not_a_file_in_the_place_of_one_breaks_neither_the_index_nor_a_run(
    tmp_path: Path, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.identical(tmp_path / "run")
    monkeypatch.setattr(plots, "figure_of", lambda run: None)  # which takes most of the time
    for path in sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        neighbour = shutil.copytree(tmp_path / "run", tmp_path / "neighbour", dirs_exist_ok=True)
        name = path.relative_to(tmp_path / "run")
        (neighbour / name).unlink()
        put(neighbour / name)
        assert redraw.main([str(neighbour)]) in (0, 2)
        assert redraw.main([str(tmp_path / "run")]) == 0
        assert "run/report.html" in (tmp_path / "index.html").read_text()
        shutil.rmtree(neighbour)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainers": 5}, "run/run.json: its trainers is no list;"),
        ({"trainers": []}, None),
        ({"strategy": "mirrored"}, "run/run.json: its strategy is no dict;"),
        ({"strategy": {}}, None),
        ({"data": []}, "run/run.json: its data is no dict;"),
        ({"notes": 1}, "run/run.json: its notes is no list;"),
        ({"versions": None}, "run: run.json or verdict.json is damaged"),
        ({"options": {}}, "run: run.json or verdict.json is damaged (KeyError: 'experiment')"),
        ({"command": 5}, "run/run.json: its command is no list;"),
        ({"preflight": [1]}, "run: run.json or verdict.json is damaged"),
    ],
    ids=str,
)
def test_unusual_values_in_run_json_are_one_line_or_make_no_difference(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, change: Any, told: str | None
) -> None:
    folder = recorded.identical(tmp_path / "run")
    monkeypatch.setattr(plots, "draw", lambda run: run)
    write_checked(folder / "run.json", read_run(folder) | change)
    assert redraw.main([str(folder)]) == (2 if told else 0)
    said = capsys.readouterr().err
    assert (said.count("\n"), (told or "") in said) == (int(told is not None), True)
    assert "run" in html.write_index(tmp_path).read_text()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda verdict: verdict.pop("reference"), "is damaged (KeyError: 'reference')"),
        (lambda verdict: verdict.pop("comparisons"), None),
        (lambda verdict: verdict.update(comparisons=[dict.fromkeys(verdict["comparisons"][0])]), "is damaged"),
        (lambda verdict: verdict.update(verdict="fine"), "is damaged (KeyError: 'fine')"),
    ],
    ids=["no reference", "no comparisons", "empty comparison", "unknown verdict"],
)
def test_a_verdict_with_other_keys_is_one_line_or_has_no_comparisons(
    tmp_path: Path, capsys: Any, change: Any, told: str | None
) -> None:
    folder = recorded.different(tmp_path / "run")
    verdict = read_verdict(folder / "verdict.json")
    change(verdict)
    write_verdict(folder / "verdict.json", verdict)
    assert redraw.main([str(folder)]) == (2 if told else 0)
    said = capsys.readouterr().err
    assert (said.count("\n"), (told or "") in said) == (int(told is not None), True)
    assert "run" in html.write_index(tmp_path).read_text()


def test_a_foreign_index_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded.identical(tmp_path / "a\n\x1brun")
    index = tmp_path / "index.html"
    index.write_text("<title>My own page</title>")
    monkeypatch.setattr(plots, "draw", lambda run: run / "comparison.png")
    monkeypatch.chdir(tmp_path)
    assert redraw.main([str(run)]) == 0
    said = capsys.readouterr().out
    assert "index.html is not a list of runs and was left as it is\n" in said
    assert said.splitlines()[1:] == ["a\\n\\x1brun/report.html", "a\\n\\x1brun/comparison.png"]
    assert html.is_foreign(index, "index") and index.read_text() == "<title>My own page</title>"
    index.unlink()
    assert not html.is_foreign(html.write_index(tmp_path), "index") and "run/report.html" in index.read_text()


def test_pages_and_logs_are_made_without_tensorflow(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = sys.modules['tf_keras'] = None\n"
        "from compare.app.redraw import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder), "--tensorboard"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert str(folder / "report.html") in done.stdout.splitlines()


# TensorBoard, pandas, notebooks


def test_tensorboards_own_reader_finds_both_trainers_and_the_verdict(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    folder = recorded.different(tmp_path / "run")
    log = tensorboard.write(folder)
    runs = EventMultiplexer().AddRunsFromDirectory(str(log))
    runs.Reload()
    assert set(runs.Runs()) == {"fit", "loop", "mine", "verdict"}
    for row in read_metrics(folder / "metrics.csv"):
        for name in ("loss", "val_accuracy"):
            found = {event.step: event.value for event in runs.Scalars(row["trainer"], f"epoch/{name}")}
            assert found[int(row["epoch"])] == np.float32(row[name])
    gaps = [event.value for event in runs.Scalars("mine", "step/weights, gap to fit")]
    assert len(gaps) == 12 and gaps[:5] == [0.0] * 5 and min(gaps[5:]) > 1e-4
    assert len(runs.Scalars("fit", "step/weights, norm")) == 12
    (told,) = runs.Tensors("verdict", "verdict")
    assert b"mine does not train like fit" in told.tensor_proto.string_val[0]
    assert b"loss-constant-denominator" in told.tensor_proto.string_val[0]


def test_a_log_without_the_package_is_refused_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.modes.find_spec", lambda name: None)
    with pytest.raises(compare.RequestError, match="pip install"):
        request(tensorboard=True)


def test_a_recorded_run_is_loaded_with_its_figures(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    result = compare.load(str(folder))
    assert (result.verdict, result.path) == ("different", folder)
    pd.testing.assert_frame_equal(result.metrics, pd.read_csv(folder / "metrics.csv"), rtol=1e-15)
    mine = result.gaps[result.gaps.candidate == "mine"]
    first = mine[~mine.equal].iloc[0]
    assert (first.epoch, first.step) == (2, 2) and first.gap > 0
    assert result.gaps[result.gaps.candidate == "loop"].equal.all()
    content = io.BytesIO()
    result.figures["comparison"].savefig(content, format="png")
    assert content.getvalue() == (folder / "comparison.png").read_bytes()
    shown = result._repr_html_()
    assert "different" in shown and "loss-constant-denominator" in shown and "data:image/png;base64," in shown


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_a_loaded_result_has_the_bytes_of_the_file(tmp_path: Path, kind: str) -> None:
    folder = recorded.KINDS[kind](tmp_path / "run")
    assert compare.load(folder).to_json() == (folder / "verdict.json").read_text()


def test_a_loaded_result_names_causes_and_the_first_difference(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    result = compare.load(folder)
    first, second = result.causes
    assert (first.id, first.side, first.source) == ("loss-constant-denominator", "mine", None)
    assert (first.title, first.remedy) == (CATALOGUE[first.id].symptom, CATALOGUE[first.id].remedy)
    assert (second.kind, second.evidence) == ("reporting", "evidence of loss-averaged-over-batches")
    where = result.first_difference
    assert where is not None and (where.epoch, where.step, where.stage, result.stage) == (2, 2, None, None)
    verdict = Verdict.read(folder / "verdict.json")
    *others, mine = verdict.comparisons
    located = tuple(dataclasses.replace(each, source=Source("my.py", 14, "loss = f(y)")) for each in mine.causes)
    looked_into = dataclasses.replace(mine, stages_at=Difference(1, 1, stage="loss", where=""), causes=located)
    dataclasses.replace(verdict, comparisons=(*others, looked_into)).write(folder / "verdict.json")
    assert compare.load(folder).stage == "loss" and compare.load(folder).causes[0].source == located[0].source
    assert "<code>at my.py:14: loss = f(y)</code>" in compare.load(folder)._repr_html_()
    same = compare.load(recorded.identical(tmp_path / "same"))
    assert (same.causes, same.first_difference, same.stage) == ([], None, None)


def test_a_printed_result_says_what_the_terminal_said(tmp_path: Path) -> None:
    folder, out = recorded.different(tmp_path / "run"), io.StringIO()
    judge_and_publish(folder, Console(file=out, width=200))
    said = str(compare.load(folder))
    assert said.startswith("identical: loop trains exactly like fit") and "different: mine does not train" in said
    assert said in out.getvalue()


def test_what_is_missing_of_a_folder_is_said_where_it_is_asked_for(tmp_path: Path) -> None:
    result = compare.load(recorded.identical(tmp_path / "run"))
    assert len(result.gaps)
    picture = tmp_path / "run" / "comparison.png"
    assert "data:image/png" in result._repr_html_()
    with open(picture, "wb") as file:
        file.truncate(2**36)  # a sparse file
    assert "data:image/png" not in result._repr_html_()
    picture.unlink()
    picture.mkdir()
    assert "data:image/png" not in result._repr_html_()
    shutil.rmtree(tmp_path / "run" / "records")
    with pytest.raises(compare.RequestError, match="records: is missing; restore it"):
        _ = result.gaps


def test_a_result_whose_folder_holds_another_run_by_now_says_so(tmp_path: Path) -> None:
    result = compare.load(recorded.identical(tmp_path / "run"))
    assert not result.causes
    recorded.different(tmp_path / "other")
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "other").rename(tmp_path / "run")
    with pytest.raises(compare.RequestError, match=r"run holds another run by now: compare\.load reads it"):
        _ = result.causes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda entry: entry.pop("candidate"), "KeyError: 'candidate'"),
        (lambda entry: entry.update(causes={}), "TypeError: {} is no tuple"),
        (lambda entry: entry.update(candidate=None), "TypeError: None is no str"),
        (lambda entry: entry["training"].update(steps_compared="6"), "TypeError: '6' is no int"),
        (lambda entry: entry["training"].update(first_difference=3), "TypeError: 3 is no Difference"),
        (lambda entry: entry["reporting"].update(metrics={"loss": 1.0}), "TypeError: 1.0 is no MetricGap"),
        (lambda entry: entry["training"].update(verdict="fine"), "ValueError: "),
    ],
    ids=["a key is missing", "no list", "no text", "no number", "no place", "no gap", "no verdict"],
)
def test_a_verdict_of_other_content_is_refused_by_name(tmp_path: Path, change: Any, told: str) -> None:
    folder = recorded.identical(tmp_path / "run")
    content = read_verdict(folder / "verdict.json")
    change(content["comparisons"][0])
    write_verdict(folder / "verdict.json", content)
    with pytest.raises(compare.RequestError, match=re.escape(f"is damaged ({told}")):
        compare.load(folder)


def test_a_number_that_was_changed_is_said_when_a_result_is_loaded(tmp_path: Path) -> None:
    metrics = recorded.identical(tmp_path / "run") / "metrics.csv"
    compare.load(tmp_path / "run")
    text = metrics.read_text()
    metrics.write_text(text.replace("0.", "0.9", 1))
    assert metrics.read_text() != text
    with pytest.raises(compare.RequestError, match=r"metrics\.csv"):
        compare.load(tmp_path / "run")
    metrics.unlink()
    with pytest.raises(compare.RequestError, match=r"metrics\.csv: is missing; restore it"):
        compare.load(tmp_path / "run")


def test_the_page_has_the_numbers_of_the_records_where_their_text_is_also_that_of_a_float32(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    for trainer, value in (("fit", float(np.float32(0.535))), ("loop", 0.535)):
        recorder = Recorder(tmp_path, metrics, trainer, 0)
        recorder(BuildRecord(recorded.VARIABLES, 1))
        for step in (INITIAL, EPOCH_END):
            recorder(StepRecord(1, step, np.ones((2, 1), np.uint64), np.ones((2, 2))))
        recorder(EpochRecord(1, {"accuracy": value}, 1.0, 1.0))
        recorder.flush()
    curves = RunFiles(tmp_path, {}, None, read_rows(tmp_path), {}, []).curves
    assert curves["loop", 0]["accuracy"][1] == 0.535 != curves["fit", 0]["accuracy"][1]


def test_a_folder_that_may_not_be_looked_into_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stat, folder = os.stat, recorded.identical(tmp_path / "run")

    def denied(path: Any, *arguments: Any, **given: Any) -> os.stat_result:
        if os.fspath(path) == f"{folder}/.":  # root may look into every folder
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, *arguments, **given)

    result = compare.load(folder)
    monkeypatch.setattr(os, "stat", denied)
    for look in (
        lambda: compare.load(folder),
        lambda: result.metrics,
        lambda: read_sides([str(folder)]),
        lambda: request(baseline=folder),
    ):
        with pytest.raises(compare.RequestError, match=r"/run: cannot be read \(Permission denied\)$"):
            look()
    assert restore.main([str(folder)]) == 2
    assert capsys.readouterr().err.endswith("/run: cannot be read (Permission denied)\n")
    monkeypatch.undo()
    shutil.rmtree(folder)
    with pytest.raises(compare.RequestError, match=r"run\.json: is missing"):
        result.metrics  # noqa: B018


def test_what_is_no_run_is_not_loaded(tmp_path: Path) -> None:
    for folder in (tmp_path, "a\0b", "x" * 5000):
        with pytest.raises(compare.RequestError, match="no run with a verdict"):
            compare.load(folder)
    with pytest.raises(compare.RequestError, match=r"^'': give the name"):
        compare.load("")
    (tmp_path / "task.py").write_text("")
    for name, what in (("task.py", "it is not a folder"), ("nothing", "there is no such folder")):
        with pytest.raises(compare.RequestError, match=f"{name}: no run with a verdict is there: {what}$"):
            compare.load(tmp_path / name)
    with pytest.raises(compare.RequestError) as refused:
        compare.load("a\x1b[31m\nb")
    assert "a\\x1b[31m\\nb: no run" in str(refused.value) and str(refused.value).isprintable()
    write_checked(tmp_path / "run.json", {"options": {}})
    write_verdict(tmp_path / "verdict.json", {"verdict": "yes"})
    (tmp_path / "all" / "one").mkdir(parents=True)
    (tmp_path / "all" / "one" / "verdict.json").touch()
    with pytest.raises(compare.RequestError, match="a folder of runs: give one of them, such as one"):
        compare.load(tmp_path / "all")
    with pytest.raises(compare.RequestError, match="has no verdict"):
        compare.load(tmp_path)
    (tmp_path / "verdict.json").write_text((tmp_path / "verdict.json").read_text().replace("yes", "yet"))
    with pytest.raises(compare.RequestError, match=r"verdict\.json: damaged, its content does not match") as damaged:
        compare.load(tmp_path)
    assert "no run with a verdict" not in str(damaged.value), "it is there"


# What it cost


def test_the_first_step_and_the_peak_of_memory_are_taken_down_and_shown(tmp_path: Path) -> None:
    folder = recorded.identical(tmp_path / "run")
    recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), "fit", 0)
    recorder.rewind((99, EPOCH_END))
    meter, nothing = CostMeter(recorder.keep_costs), (np.zeros((2, 1), np.uint64), np.zeros((2, 2)))
    for step in (INITIAL, 1, 2, 3, EPOCH_END):
        meter(StepRecord(1, step, *nothing))
    before = peak_memory()
    held = np.ones(300_000_000, np.uint8)
    meter(EpochRecord(1, {}, 1.0, 1.0))
    found = read_costs(folder)["fit"]
    assert found["first_step_seconds"] >= 0 and found["step_seconds"] >= 0
    assert before is not None and found["peak_memory_bytes"] > before + 0.9 * held.nbytes - 150_000_000
    text = Page(html.write(folder)).text
    assert f"{found['peak_memory_bytes'] / 1e9:.2f} GB" in text and "unknown" in text, "the loop's was not taken"


@pytest.mark.parametrize(
    ("epochs", "told"), [(1, "first epoch only"), (2, "one later epoch only"), (4, "0.5 to 1.0 s, 3 epochs")]
)
def test_times_have_their_spread_and_one_epoch_says_so(tmp_path: Path, epochs: int, told: str) -> None:
    page = Page(two(tmp_path / "run", epochs=epochs) / "report.html")
    (fit,) = [row for row in page.rows if row[0] == "fit" and len(row) == 8]
    assert told in fit[1]
    assert (fit[1] == told) == ("too few epochs for times that can be compared" in page.text) == (epochs < 3)


def test_of_steps_that_are_not_reported_the_page_says_the_line_to_add(tmp_path: Path) -> None:
    verdict = read_verdict(recorded.identical(tmp_path / "run") / "verdict.json")
    verdict["comparisons"][0]["training"]["steps_not_reported_by"] = "loop"
    page = Page(recorded.finish(tmp_path / "run", verdict=verdict) / "report.html")
    assert "loop never calls run.end_step(), so weights were compared at the ends of epochs only; call it " in page.text


def test_metrics_that_agree_over_seeds_are_said_beside_the_no(tmp_path: Path) -> None:
    folder = recorded.inconclusive(tmp_path / "run")
    verdict = read_verdict(folder / "verdict.json")
    entry = verdict["comparisons"][0]
    entry["study"] |= {"verdict": "alike", "seeds_needed": None}
    entry["study"]["tests"][0] |= {"verdict": "alike"}
    entry["training"]["verdict"] = entry["verdict"] = "different"
    recorded.finish(folder, verdict=verdict | {"verdict": "different"})
    page = Page(folder / "report.html")
    assert "Do they train alike? No, but their metrics agree within the margins. " in page.text
    assert "; even so, the metrics agree within the margins in every epoch" in page.text
    assert "The verdict on the paired differences of 3 seeds is alike" in page.text
    entry["training"]["verdict"] = entry["verdict"] = "identical"
    recorded.finish(folder, verdict=verdict | {"verdict": "identical"})
    assert "is alike" not in Page(folder / "report.html").text, "below a Yes, exactly."


def test_a_study_is_labelled_by_seed_and_shows_the_margin(tmp_path: Path) -> None:
    folder = recorded.inconclusive(tmp_path / "run")
    page = Page(folder / "report.html")
    assert "Weight gap after every step, seed 0" in page.text and "Seed 0: Epoch 1, step 2" in page.text
    files = run_files.read(folder)
    (margin,) = (svg.content(pictures.margin_chart(files, metric)) for metric in files.tested)
    told = {name: {who: text for who, text, *_ in rows} for _, name, rows in margin["stops"]}
    assert told["epoch 3"]["loop, mean"] == "+3% (90% interval -1% to +7%): inconclusive"
    assert {f"loop, seed {seed}": "+11%" for seed in range(3)}.items() <= told["epoch 3"].items()
    assert [band["kind"] for band in margin["bands"]] == ["margin"]
    seeds = [row for row in page.rows if row[0].startswith("seed ") and len(row) == 4]
    assert [row[0] for row in seeds] == ["seed 0", "seed 1", "seed 2"]
    assert seeds[0][1:] == ["0.5833333", "0.6458333", "+0.062"]


# Kept true


def test_a_page_is_not_drawn_again_from_less_than_it_was_drawn_from(tmp_path: Path, capsys: Any) -> None:
    folder = recorded.different(tmp_path / "run")
    before = (folder / "report.html").read_bytes()
    shutil.move(folder / "records", tmp_path / "elsewhere")
    assert redraw.main([str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "lose what it shows of records" in said.err
    assert (folder / "report.html").read_bytes() == before
    shutil.move(tmp_path / "elsewhere", folder / "records")
    assert redraw.main([str(folder)]) == 0
    assert Page(folder / "report.html").charts[0], "and drawn from all of it"


@pytest.mark.parametrize("name", ["example", "example-different"])
def test_the_examples_have_their_records_and_their_pages_are_drawn_from_them(tmp_path: Path, name: str) -> None:
    shipped = ROOT / "reports" / name
    gaps = compare.load(shipped).gaps
    steps = gaps[gaps.step > 0]
    if name == "example":
        assert len(steps) == 9_380 and steps.equal.all()
    else:
        first = steps[~steps.equal].iloc[0]
        assert len(steps) == 1_876 and (first.epoch, first.step) == (1, 938)
    # At the same depth, so that links to the stories of causes are the same.
    copy = shutil.copytree(shipped, tmp_path / name)
    redrawn = Page(html.write(copy))
    page = Page(shipped / "report.html")
    assert (redrawn.text, redrawn.charts) == (page.text, page.charts), f"run: python scripts/report.py reports/{name}"


def test_the_list_says_what_was_reached_what_failed_and_what_was_a_sample(tmp_path: Path) -> None:
    recorded.identical(tmp_path / "done")
    recorded.not_comparable_run(tmp_path / "refused")
    raised = recorded.Failure("mine", "ValueError: no", "fix your trainer mine")
    source = {"source": "embedded sample of Fashion-MNIST", "training_examples": 1, "validation_examples": 1}
    finish(
        tmp_path / "raised",
        ("fit", "mine"),
        failure=raised,
        data={**source, "training_sha256": "", "validation_sha256": ""},
    )
    found = {"id": "other", "severity": "cannot-run", "message": "no"}
    error = recorded.Failure("mine", "no", "mend it")  # whatever it says, nothing checked before training refused it
    finish(tmp_path / "forced", ("fit", "mine"), failure=error, preflight=[found], failures=[dataclasses.asdict(error)],
           options={**options_as_json(request()), "trainers": ["fit", "mine"], "force": True})  # fmt: skip
    page = Page(html.write_index(tmp_path))
    rows = {cells[1]: re.sub(r"\s+", " ", " ".join(cells)) for cells in page.rows[1:]}
    assert "mine raised no" in rows["forced"]
    assert "4 runs: 1 identical, 3 not-comparable." in page.text
    assert "both 0.7333" in rows["done"] and "val_accuracy after 3 epochs" in rows["done"]
    assert "mine raised ValueError: no" in rows["raised"] and "only the embedded sample" in rows["raised"]
    assert "fit cannot run: Keras 3's fit" in rows["refused"] and "sample" not in rows["refused"]


def test_the_list_says_by_which_options_runs_of_an_experiment_differ(tmp_path: Path) -> None:
    for name, given in {"one": {}, "two": {"batch_size": 32, "jit": True}, "three": {"seed": 5, "epochs": 4}}.items():
        recorded.identical(tmp_path / name)
        finish(tmp_path / name, options={**options_as_json(request(**given)), "name": name})
    rows = {cells[1]: cells[-2] for cells in Page(html.write_index(tmp_path)).rows[1:]}
    assert rows == {
        "one": "--batch-size 64; --seed 0",
        "two": "--batch-size 32; --seed 0; --jit",
        "three": "--batch-size 64; --seed 5",
    }


def test_the_error_of_a_reference_is_said_once_of_several_comparisons(tmp_path: Path) -> None:
    failure = recorded.Failure("fit", "ValueError: no", "fix your trainer fit")
    folder = finish(tmp_path / "run", ("fit", "one", "two"), failure=failure)
    listed = Page(html.write_index(tmp_path)).text
    printed = terminal.as_text(Verdict.read(folder / "verdict.json"))
    for text in (Page(folder / "report.html").text, listed, printed):
        assert text.count("ValueError: no") == 1, text
    assert "two and fit cannot be compared, because fit failed" in printed


def test_a_trainer_that_failed_leaves_no_empty_charts(tmp_path: Path) -> None:
    record(tmp_path / "run", "fit")
    failure = recorded.Failure("mine", "ValueError: no", "fix your trainer mine")
    folder = finish(tmp_path / "run", ("fit", "mine"), failure=failure)
    page = Page(folder / "report.html")
    assert "Nothing has been compared." in page.text and "no timeline" not in page.text
    assert page.text.count("ValueError: no") == page.text.count("fix your trainer mine") == 1
    assert not [heading for heading in page.headings if "gap to" in heading]
    files = run_files.read(folder)
    assert all(pictures.gap_chart(files, name) is None for name in files.metrics)


def test_a_page_says_why_there_is_no_timeline(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    shutil.rmtree(folder / "records")
    assert "records of the weights are no longer in this folder" in Page(html.write(folder)).text


def test_numbers_that_differ_beside_those_that_a_cause_names_are_said_to() -> None:
    gaps = {name: MetricGap(0.1, 1) for name in ("loss", "val_loss", "accuracy")}
    named = Finding("loss-averaged-over-batches", "reporting", "loop", "", "", {"metric": "loss"})
    same = Comparison("loop", Training("identical", 0.0, None, 1), Reporting("different", gaps), causes=(named,))
    assert sentences.more_may_follow(same, "scripts").startswith("val_loss, accuracy differ too, and nothing")
    gaps["accuracy"] = MetricGap(0.0, 1)
    assert sentences.more_may_follow(same, "run").startswith("val_loss differs too, and nothing that is named")
    besides = dataclasses.replace(same, evidence=("loop calls the model again",))
    assert sentences.more_may_follow(besides, "run").startswith("val_loss differs too, and what is said besides may")
    gaps["val_loss"] = MetricGap(1e-7, 1, only_rounding=True)
    assert sentences.more_may_follow(same, "scripts") == ""
    assert sentences.more_may_follow(dataclasses.replace(same, causes=()), "scripts") == ""


def test_the_card_has_the_line_of_each_cause() -> None:
    def cause(line: int, file: str = "loop.py", shows: bool = False) -> Finding:
        source = Source(file, line, "x", shows=shows)
        return Finding("loss-summed", "training", "loop", "", "", {}, source=source)

    causes = (cause(16), cause(16), cause(17), cause(3, "model.py"), cause(9, shows=True))
    found = Comparison("loop", Training("different", None, Difference(1, 1), 1), Reporting(None, {}), causes=causes)
    assert page_model._why(found, "different")[1] == "in loop, loop.py lines 16 and 17, model.py line 3"
    seen = dataclasses.replace(found, causes=(), evidence=("the loss differs",))
    assert page_model._why(seen, "different") == ("See the evidence below", "the loss differs")


@pytest.mark.parametrize(("place", "stage", "of"), [
    ({"at_step": 32}, "predictions", "of a later step"),
    ({"at_step": 40, "at_place": [2, 1]}, "predictions", "of a later step"),
    ({"at_step": 1}, "predictions", ""),
    ({"at_step": 32}, "examples", ""),
    ({}, "predictions", ""),
])  # fmt: skip
def test_examples_that_differ_later_do_not_explain_the_first_difference(
    place: dict[str, Any], stage: str, of: str
) -> None:
    cause = Finding("examples-dropped", "training", "loop", "16 are left out", "fix", place)
    training = Training("different", None, Difference(1, 1, None, stage), 1)
    found = Comparison("loop", training, Reporting(None, {}), causes=(cause,), evidence=("layers differ",))
    assert sentences.beside(found, cause) == of


@pytest.mark.parametrize(
    ("stage", "of"),
    [
        ("inputs", "of a later stage"),
        ("predictions", "of a later stage"),
        ("loss", ""),
        ("update", ""),  # the loss differs there, too
        ("state", ""),
        ("", ""),
    ],
)
def test_where_a_cause_is_of_a_later_stage_what_was_measured_comes_first(stage: str, of: str) -> None:
    cause, text = Finding("loss-summed", "training", "loop", "64 times as much", "fix", {}), "layers differ"
    training = Training("different", None, Difference(1, 1, None, stage), 1)
    found = Comparison("loop", training, Reporting(None, {}), causes=(cause,), evidence=(text,))
    assert sentences.beside(found, cause) == of
    lines = sentences.causes(found)
    named = f"  cause: loss-summed (in loop){f', {of}' if of else ''}: 64 times as much."
    assert lines[:1] == ([f"  evidence: {text}."] if of else [named]) and named in lines
    assert (page_model._why(found, "different") == ("See the evidence below", "besides: loss-summed")) == bool(of)
    alone = dataclasses.replace(found, evidence=None)
    assert sentences.beside(alone, cause) == "" and sentences.causes(alone)[0] == named.replace(f", {of}", "")
