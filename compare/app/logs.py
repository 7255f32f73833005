"""``--logs``: draws and compares what trainings elsewhere have logged; their weights are not seen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from compare.app.provenance import provenance
from compare.app.publish import publish_verdict
from compare.check.not_finite import led
from compare.errors import RequestError
from compare.modes import Logs
from compare.naming import margin, refuse_margins, shown_path, some
from compare.records.event_files import event_files
from compare.records.log_sides import read_sides
from compare.records.logs import FOLDERS, Log
from compare.records.metrics_csv import MetricsFile, is_float32
from compare.records.model import EpochRecord, Record, step_dtype
from compare.records.run_json import FINISHED, RunJson
from compare.reporting.result import Result
from compare.reporting.terminal import say
from compare.verdict.exact import metric_names, paired_names
from compare.verdict.logged import compare_logs, epochs_of, in_common
from compare.verdict.model import Verdict
from compare.verdict.seeds import DEFAULT_MARGINS, Margin, of_one_seed

NOTE = "Curves only: the weights were not seen, so the verdict is never identical."


def compare_logged(options: Logs, folder: Path, console: Console) -> Result:
    sides = read_sides(options.logs)
    seeds = max(map(len, sides.values()))
    if options.margin and seeds == 1:
        raise RequestError("--margin is for several seeds: give logs of several seeds, or leave it out")
    names = list(sides)
    reported = dict.fromkeys(metric for log in sides[names[0]] for numbers in log.epochs.values() for metric in numbers)
    refuse_margins(options.margin or (), names[0], reported)
    no_steps = np.zeros(0, step_dtype(0, 1))  # without weights
    records = {
        name: [Record(name, log.seed or 0, (), no_steps, log.epochs, Path()) for log in logs]
        for name, logs in sides.items()
    }
    reference, *candidates = records.values()
    notes = [NOTE, *_notes(sides), *_without_partner(sides), *_paired_by_value(reference, candidates)]
    if seeds > 1:  # of one log each, the verdict says so
        notes += [*_of_one_side(reference, candidates), *_incomplete(sides, reference, candidates)]
    title = f"{', '.join(names[:-1])} and {names[-1]}: curves only, weights not seen"
    say(console, title, style="bold")
    for note in notes[1:]:
        say(console, f"Note: {note}")
    run = RunJson.read(folder)
    run.begin_training(provenance(options, names) | {"title": title, "notes": notes})
    run.code = {**(run.code or {}), **_digests(sides)}
    _write_rows(MetricsFile(folder / "metrics.csv"), sides)
    margins = [Margin(*margin(text)) for text in options.margin or ()] or DEFAULT_MARGINS
    comparisons = [compare_logs(reference, each, margins) for each in candidates]
    verdict = led(Verdict.of(names[0], comparisons, scope="logs"), {})
    run.save(status=FINISHED)
    return Result(folder, publish_verdict(run, verdict, console, study=seeds > 1))


def _notes(sides: Mapping[str, Sequence[Log]]) -> list[str]:
    """What was read otherwise than it is written."""
    notes = []
    for name, logs in sides.items():
        renamed = {old: new for log in logs for old, new in log.renamed.items()}
        left_out = dict.fromkeys(column for log in logs for column in log.left_out)
        if renamed:
            notes.append(f"{name}: {', '.join(f'{old} is compared as {new}' for old, new in renamed.items())}.")
        if left_out:
            notes.append(f"{name}: not compared: {', '.join(left_out)}.")
        values = [(metric, value) for log in logs for each in log.epochs.values() for metric, value in each.items()]
        for metric in dict.fromkeys(metric for metric, value in values if "acc" in metric and 1 < value <= 100):
            notes.append(f"{name}: {metric} is above 1, as in percent: divide it by 100 to compare it with shares.")
    return notes


def _without_partner(sides: Mapping[str, Sequence[Log]]) -> list[str]:
    """Which logs are not compared, since the other side has none of their seed, and what is not finite in them."""
    reference, *candidates = sides
    notes = []
    for own, other in ((side, other) for name in candidates for side, other in ((reference, name), (name, reference))):
        seeds = {log.seed for log in sides[other]}
        for log in (each for each in sides[own] if each.seed not in seeds):
            numbers = ((epoch, *number) for epoch, logged in log.epochs.items() for number in logged.items())
            lost = [
                f"; its {name} is {value} in epoch {epoch}"
                for epoch, name, value in numbers
                if not math.isfinite(value)
            ]
            what = f"{own}, seed {log.seed} ({shown_path(log.source)})"
            notes.append(f"{what}, has no partner among the logs of {other} and is not compared{''.join(lost[:1])}.")
    return notes


def _of_one_side(reference: Sequence[Record], candidates: Sequence[Sequence[Record]]) -> list[str]:
    """Which numbers that both sides log are not compared in some epochs, since one of them lacks these."""
    notes = []
    for own, other in (pair for each in candidates for pair in ((reference, each), (each, reference))):
        alone: dict[tuple[int, ...], list[str]] = {}
        for name in dict.fromkeys(name for record in own for name in metric_names(record)):
            epochs, others = (set[int]().union(*(epochs_of(each, name) for each in side)) for side in (own, other))
            if others and (missing := tuple(sorted(epochs - others))):
                alone.setdefault(missing, []).append(name)
        for missing, names in alone.items():
            numbered = f"epoch{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            notes.append(
                f"{', '.join(names)} of {numbered}: not compared, since {other[0].trainer} does not log it there."
            )
    return notes


def _incomplete(
    sides: Mapping[str, Sequence[Log]], reference: Sequence[Record], candidates: Sequence[Sequence[Record]]
) -> list[str]:
    """Which logs lack numbers that their partners have, while other logs of their side have them."""
    notes = []
    for candidate in candidates:
        for pair in zip(*in_common(of_one_seed(reference, candidate)), strict=True):
            for record, partner in (pair, pair[::-1]):
                lacking: dict[tuple[int, ...], list[str]] = {}
                for name in metric_names(partner):
                    if epochs := tuple(sorted(epochs_of(partner, name) - epochs_of(record, name))):
                        lacking.setdefault(epochs, []).append(name)
                source = next(log.source for log in sides[record.trainer] if (log.seed or 0) == record.seed)
                notes += [
                    f"{shown_path(source)} lacks {', '.join(names)} of epoch{'s' * (len(epochs) > 1)} "
                    f"{some(list(map(str, epochs)))}, so nothing is called alike there."
                    for epochs, names in lacking.items()
                ]
    return notes


def _paired_by_value(reference: Sequence[Record], candidates: Sequence[Sequence[Record]]) -> list[str]:
    """Which numbers of other names are compared with each other, since their values are equal."""
    own = {record.seed: record for record in reference}
    paired = [
        (record.trainer, other, name)
        for record in (each for candidate in candidates for each in candidate if each.seed in own)
        for name, other in paired_names(own[record.seed], record).items()
    ]
    return [
        f"{other} of {who} is compared with {name} of {reference[0].trainer}, which has the same values."
        for who, other, name in dict.fromkeys(paired)
        if other != name
    ]


def _digests(sides: Mapping[str, Sequence[Log]]) -> dict[str, str]:
    """SHA-256 digests of the files that were read."""
    sources = dict.fromkeys(log.source for logs in sides.values() for log in logs)
    files = [
        path
        for source in sources
        for path in ([source] if source.is_file() else [f for sub in FOLDERS for f in event_files(source / sub)])
    ]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _write_rows(metrics: MetricsFile, sides: Mapping[str, Sequence[Log]]) -> None:
    rows = []
    for name, log in ((name, log) for name, logs in sides.items() for log in logs):
        columns = {metric for numbers in log.epochs.values() for metric in numbers}
        double = {m for m in columns if not all(is_float32(each[m]) for each in log.epochs.values() if m in each)}
        for epoch, numbers in log.epochs.items():
            record = EpochRecord(epoch, numbers, log.seconds.get(epoch, math.nan), math.nan)
            row = metrics.row(name, log.seed or 0, record)
            # All digits in the whole column: readers take a column for float32 by its digits, or for float64.
            rows.append(row | {metric: repr(numbers[metric]) for metric in double & numbers.keys()})
    metrics.extend(rows)
