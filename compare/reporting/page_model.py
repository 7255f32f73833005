"""The content of a run's page, derived from the run's files; imports no TensorFlow."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

import numpy as np

from compare.naming import label, listed, log_name, some
from compare.records.model import read_file
from compare.records.reader import has_records
from compare.reporting import page_tables, run_files
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import advice_on_numbers, only_beside, where
from compare.verdict.model import Comparison
from compare.verdict.outcomes import ALIKE, DIFFERENT

TRAPS = Path(__file__).resolve().parents[2] / "reports" / "traps" / "index.html"
"""The page with the stories of all causes; an installation may lack it."""
ANSWERS = {
    "identical": ("=", "Yes, exactly."),
    "alike": ("≈", "Yes, up to rounding."),
    "different": ("≠", "No."),
    "inconclusive": ("?", "No verdict is possible."),
    "not-comparable": ("!", "They cannot be compared."),
    "failed": ("!", "There is no verdict: it failed."),
    "unfinished": ("…", "No verdict yet."),
}
"""By verdict, a symbol and the answer to "Do they train alike?"."""
CURVES = {"alike": "Their curves are alike.", "different": "No, their curves differ."}
"""By verdict, the answer of logs, without weights."""
FILES = ("metrics.csv", "verdict.json", "run.json", "comparison.png", "tensorflow.log")
"""The files that the page links to, if they exist."""

EMBEDDED = {"metrics.csv": "text/csv", "verdict.json": "application/json", "run.json": "application/json"}
"""The files that the page contains, so that it is whole when it is mailed alone, with their media types."""


@dataclass(frozen=True)
class Page:
    """What the templates are given of a run, for a page in the folder ``beside``."""

    files: RunFiles
    beside: Path

    @property
    def title(self) -> str:
        return self.files.run.get("title") or label(self.files.options["experiment"], "experiment")

    @property
    def stories(self) -> str:
        """The address of the page with the stories of all causes; empty if there is none."""
        return quote(os.path.relpath(TRAPS, self.beside.resolve())) if TRAPS.exists() else ""

    @property
    def report(self) -> str:
        """The address of the run's own page."""
        return quote(os.path.relpath(self.files.folder / "report.html", self.beside))


def page_of(folder: Path, beside: Path | None = None) -> Page:
    """A run for a page in a folder, by default the run's."""
    return Page(run_files.read(folder), beside or folder)


def links(files: RunFiles) -> list[str]:
    """The files of a run that its page links to."""
    return [name for name in (*FILES, *map(log_name, files.names)) if (files.folder / name).exists()]


def no_timeline(files: RunFiles) -> str:
    if all(each.failure for each in files.comparisons):
        return "Nothing has been compared" + " yet" * (not files.comparisons) + "."
    if files.scope == "check":
        return "The short check has no timeline, because it compares single steps."
    if files.scope == "logs":
        return "There is no timeline: logs contain no weights."
    if not has_records(files.folder):
        return "There is no timeline: the records of the weights are no longer in this folder."
    return "There is no timeline: the two have no weights in common, after the same step, that could be compared."


def downloads(files: RunFiles) -> list[tuple[str, str, str]]:
    """The files that the page contains: the name, the name to save it under, and the address, a data URI."""
    contained = []
    for path in [files.folder / name for name in EMBEDDED if (files.folder / name).is_file()]:
        content = base64.b64encode(read_file(path)).decode()
        save_as = f"{path.resolve().parent.name}-{path.name}"
        contained.append((path.name, save_as, f"data:{EMBEDDED[path.name]};base64,{content}"))
    return contained


def answer(files: RunFiles) -> str:
    """The answer to "Do they train alike?" in a few words."""
    if files.interrupted and files.verdict_word in ("identical", "alike"):
        return "Yes, up to the interruption."
    if files.scope == "logs" and files.verdict_word in CURVES:
        return CURVES[files.verdict_word]
    study = next((each.study for each in files.comparisons[:1] if each.weights_seen), None)
    if study and study.verdict == "alike" and files.verdict_word == "different":
        return "No, but their metrics agree within the margins."
    if study and study.seeds_needed and files.verdict_word == "inconclusive":
        return "Not decided yet: more seeds are needed."
    if files.verdict and files.verdict.since_baseline == DIFFERENT != files.verdict.between_trainers:
        own = ANSWERS[files.verdict.between_trainers][1].removesuffix(".")
        return f"{own}, but not as in {files.comparisons[0].recorded}."
    training = next((each.training.verdict for each in files.comparisons[:1] if each.verdict == "different"), "")
    if training == "identical":
        return "They train exactly alike, but report different numbers."
    if training == "alike":
        return "They train alike, but report different numbers."
    return ANSWERS[files.verdict_word][1]


# The summary: each question with its answer in a few words


def summary(files: RunFiles, costs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, tuple[str, str]]]:
    """The questions after "Do they train alike?", answered for the worst comparison.

    Each has the id of the section with the long answer, the question, and the short answer, perhaps with a detail.
    """
    first, *others = files.comparisons or (None,)
    too = [each.candidate for each in others if each and each.verdict == DIFFERENT]
    also = f"{listed(too) if len(too) <= 3 else some(too)} differ{'s' * (len(too) == 1)}, too" if too else ""
    (where, of_where), (why, of_why) = _where(first), _why(first, files.verdict_word)
    return [
        ("where", "Where do they diverge?", (where, "; ".join(filter(None, (of_where, also))))),
        ("why", "Why?", (why, "; ".join(filter(None, (of_why, also))))),
        ("reached", "What results did they reach?", results(files)),
        ("cost", "What did they cost?", _costs(costs)),
        ("run", "What exactly was run?", _run(files.run)),
    ]


def _where(first: Comparison | None) -> tuple[str, str]:
    if first is None:
        return "Not known yet", ""
    training, more = first.training, ""
    steps, count = training.steps_compared, len(training.differing_variables)
    if training.verdict == "identical":
        more = f"weights equal after each of {steps:,} {'calls' if training.steps_made else 'steps'}" if steps else ""
    elif count:
        more = f"in {count} variable{'s' * (count > 1)}"
    if training.verdict == ALIKE and first.reporting.verdict == DIFFERENT:  # of the weights that is only rounding
        numbers = [name for name, gap in first.reporting.metrics.items() if gap.differs]
        return f"In the reported numbers{': ' * bool(numbers)}{some(numbers)}", "weights differ by rounding only"
    return where(first), more


def _why(first: Comparison | None, verdict: str) -> tuple[str, str]:
    if first is None:
        return "Not known yet", ""
    listed, beside = ", ".join(dict.fromkeys(cause.id for cause in first.causes)), only_beside(first)
    if beside and not first.evidence:
        return "No known cause", f"of the reported numbers: {listed}"
    if listed and not beside:
        sides = dict.fromkeys(cause.side for cause in first.causes if cause.side)
        more = f"in {' and '.join(sides)}" if sides else ""
        lines: dict[str, dict[str, None]] = {}  # of each file, each once
        for source in [cause.source for cause in first.causes if cause.source and not cause.source.shows]:
            lines.setdefault(source.file, {})[str(source.line)] = None
        places = (f"{file} line{'s' * (len(each) > 1)} {' and '.join(each)}" for file, each in lines.items())
        return listed, ", ".join(filter(None, [more, *places]))
    if failure := first.failure:
        return failure.shown, ""
    if not first.weights_seen:
        return "Unknown: curves only", "logs do not show why"
    if verdict == "different":
        if first.evidence:
            return "See the evidence below", f"besides: {listed}" if listed else beginning(first.evidence[0])
        return "No known cause", "only reported numbers differ" if advice_on_numbers(first) else ""
    if verdict == "alike":
        return "Rounding", "measured with perturbed runs" if first.training.noise else ""
    if verdict == "inconclusive":
        return "Too little evidence", "see below for the reason"
    return "Nothing to explain", ""


def beginning(text: str) -> str:
    """A sentence up to where it explains itself, in so many characters as a cell of the list has room for."""
    return shorten(re.split("[;:] ", text)[0], 120, placeholder=" …")


def results(files: RunFiles) -> tuple[str, str]:
    """What all trainers reached in the last epoch that all finished, and which metric and epoch that is.

    Of the metrics that most trainers report, one of validation is preferred, and one that is not a loss.
    """
    columns = sorted(files.columns, key=lambda column: (not column.startswith("val_"), "loss" in column))
    if not columns:
        return "No numbers", "short check only" if files.scope == "check" else "no epoch was finished"
    finished = files.finished_epochs
    epoch = min(finished.values())

    def reached(name: str) -> dict[str, str]:
        """By trainer, the mean over the seeds of all that report it."""
        found = {each: files.values(each, files.other_names.get((each, name), name)) for each in finished}
        reported = {who: {seed: own[epoch] for seed, own in by_seed.items() if epoch in own}
                    for who, by_seed in found.items()}  # fmt: skip
        reported = {who: by_seed for who, by_seed in reported.items() if by_seed}
        common = set.intersection(*map(set, reported.values())) if reported else set()
        return {who: f"{np.mean([own[seed] for seed in common]):.4g}" for who, own in reported.items() if common}

    name = max(columns, key=lambda name: len(reached(name)))
    values = reached(name)
    more = f"{name} after {epoch} epoch{'s' * (epoch > 1)}{', mean of seeds' * (files.seeds > 1)}"
    if len(set(values.values())) == 1 and len(values) > 1:
        return f"{'both' if len(values) == 2 else 'all'} {next(iter(values.values()))}", more
    return ", ".join(f"{trainer} {value}" for trainer, value in values.items()), more


def _costs(costs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    if not costs:
        return "Unknown", ""
    if not any(row["epoch"] for row in costs):
        return "Not compared", "too few epochs for times that can be compared"
    if untimed := [row["name"] for row in costs if not row["epoch"]]:
        return "Not compared", f"how long epochs of {' and '.join(untimed)} take is not known"
    return ", ".join(f"{row['name']} {row['epoch']}" for row in costs), "per epoch"


def _run(run: Mapping[str, Any]) -> tuple[str, str]:
    options, versions = run["options"], run.get("versions", {})
    size = f", {replicas}" if (replicas := page_tables.replicas_of(run)) else ""
    more = f"TensorFlow {versions['tensorflow']}, Keras {versions['keras']}" if versions else ""
    if options.get("scripts"):
        return f"{' and '.join(options['scripts'])}{size}", more
    if options.get("logs"):
        return "Nothing", f"logs were read: {' '.join(options['logs'])}"
    return f"{label(options['experiment'], 'experiment')} under {options['strategy']}{size}", more
