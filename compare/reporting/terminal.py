"""What a run prints: the first lines, live progress, the table per epoch, the verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from compare.records import EPOCH_END, INITIAL, AnyRecord, EpochRecord, Place, Record, StepRecord, shortest
from compare.reporting.sentences import difference
from compare.verdict import EXIT_STATUS


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it stands, however long and whatever brackets it has."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def style_of(verdict: str) -> str:
    """How a verdict is shown."""
    return "bold green" if EXIT_STATUS[verdict] == 0 else "bold red"


class RunningGap:
    """How far each trainer is, so far, from the first one: what a watcher need not wait for the verdict to know.

    Of the first one's steps only a digest is kept, and of the ends of its epochs the projections.
    """

    def __init__(self) -> None:
        self.reference = ""
        self._trainer = ""
        self._digests: dict[Place, int] = {}
        self._ends: dict[int, np.ndarray] = {}
        self._logs: dict[int, Mapping[str, float]] = {}
        self._seen: set[int] = set()
        self._parted: Place | None = None

    def begin(self, trainer: str) -> None:
        """Say whose records are to come; the first is the reference."""
        self.reference = self.reference or trainer
        self._trainer, self._parted = trainer, None
        self._seen.clear()

    @property
    def is_reference(self) -> bool:
        """Whether it is the reference that trains."""
        return self._trainer == self.reference

    def see(self, record: StepRecord) -> None:
        """Take the fingerprint of the trainer that trains."""
        place, digest = (record.epoch, record.step), xxhash.xxh64_intdigest(record.hashes.tobytes())
        if self.is_reference:
            self._digests[place] = digest
            if record.step == EPOCH_END:
                self._ends[record.epoch] = record.projections
        elif place in self._digests:
            self._seen.add(record.epoch)
            if self._parted is None and digest != self._digests[place]:
                self._parted = place

    def text(self, record: StepRecord | None = None) -> str:
        """Whether the weights are equal so far; with the fingerprint of an epoch's end how far apart they are."""
        if self.is_reference or not self._seen:
            return ""
        if self._parted is None:
            return "weights equal"
        epoch, step = self._parted
        where = f"epoch {epoch}" + (f", step {step:,}" if step > INITIAL else "")
        gap = ""
        if record is not None and record.epoch in self._ends:
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.mean((record.projections - self._ends[record.epoch]) ** 2, axis=1)
            gap = f" {float(np.sqrt(squares.sum())):.1e} (norm)"
        return f"weight gap{gap} since {where}"


class TrainerProgress:
    """The sink that shows how far one trainer is: a live bar, or a line per epoch where no one watches.

    Args:
        console: where to print.
        trainer: the trainer's name.
        epochs: the epochs to come.
        steps_per_epoch: optimizer steps in each.
        global_batch_size: examples per step.
        gap: the gap to the trainer before it, if there is one to tell.
    """

    def __init__(
        self,
        console: Console,
        trainer: str,
        epochs: range,
        steps_per_epoch: int,
        global_batch_size: int,
        gap: RunningGap | None = None,
    ) -> None:
        self._console, self._trainer = console, trainer
        self._gap = gap or RunningGap()
        self._gap.begin(trainer)
        self._end: StepRecord | None = None
        self._epochs, self._steps, self._batch = epochs, steps_per_epoch, global_batch_size
        self._latest = ""
        self._began = time.perf_counter()
        self._done = 0
        self._next_refresh = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left {task.fields[latest]} {task.fields[gap]}"),
            console=console,
            transient=True,
            auto_refresh=False,  # a refreshing thread would compete with the training for two cores
            disable=not console.is_terminal,
        )
        fields: dict[str, Any] = {"rate": "", "latest": "", "gap": ""}
        if not self._gap.is_reference:
            self._bar.add_task(f"{self._gap.reference}  done", total=1, completed=1, **fields)
        self._task = self._bar.add_task(self._text(epochs[0]), total=len(epochs) * steps_per_epoch, **fields)

    def __enter__(self) -> TrainerProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, StepRecord):
            self._gap.see(record)
            self._end = record if record.step == EPOCH_END else None
        if isinstance(record, EpochRecord):
            gap = self._gap.text(self._end)
            self._latest = "  ".join(f"{name} {value:.4f}" for name, value in record.logs.items())
            self._console.print(
                f"{self._trainer}  epoch {record.epoch}/{self._epochs[-1]}  {self._latest}  "
                f"{record.seconds:.1f} s, {record.examples_per_second:,.0f} examples/s{', ' * bool(gap)}{gap}",
                markup=False,
                soft_wrap=True,
            )
        elif isinstance(record, StepRecord) and record.step > 0:
            self._done = (record.epoch - self._epochs[0]) * self._steps + record.step
            now = time.perf_counter()
            if now > self._next_refresh and not self._bar.disable:
                self._next_refresh = now + 0.25
                rate = f"{self._done * self._batch / (now - self._began):,.0f} examples/s"
                text = self._text(record.epoch)
                told: dict[str, Any] = {"rate": rate, "latest": self._latest, "gap": self._gap.text()}
                self._bar.update(self._task, completed=self._done, description=text, **told)
                self._bar.refresh()

    def _text(self, epoch: int) -> str:
        return f"{self._trainer}  epoch {epoch}/{self._epochs[-1]}"


def epoch_table(reference: Record, candidates: Sequence[Record]) -> Table:
    """Both trainers' reported numbers per epoch, and the gap where there is one."""
    metrics: list[str] = []
    for record in [reference, *candidates]:
        for logs in record.logs.values():
            metrics += [name for name in logs if name not in metrics]
    table = Table("epoch", "trainer", *metrics, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[2:]:
        column.justify = "right"
    for epoch in sorted(set().union(*(record.logs for record in [reference, *candidates]))):
        ours = reference.logs.get(epoch, {})
        table.add_row(str(epoch), reference.trainer, *(_cell(ours.get(name)) for name in metrics))
        for record in candidates:
            theirs = record.logs.get(epoch, {})
            table.add_row("", record.trainer, *(_cell(theirs.get(name)) for name in metrics))
            gaps = (_gap(ours.get(name), theirs.get(name)) for name in metrics)
            table.add_row("", "  gap", *gaps, style="dim")
    return table


def study_table(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    """What the seeds of a study say of each metric at the end of each epoch, from ``verdict.json``."""
    studied = [comparison for comparison in comparisons if comparison.get("study")]
    who = ["candidate"] * (len(studied) > 1)
    columns = [*who, "metric", "epoch", "difference", "90% interval", "margin", ""]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.no_wrap = True
        column.justify = "right" if column.header in columns[-5:-1] else "left"
    for comparison in studied:
        for test in comparison["study"]["tests"]:
            interval = "" if test["low"] is None else f"{difference(test, 'low')} to {difference(test, 'high')}"
            figures = str(test["epoch"]), difference(test, "mean"), interval, f"±{difference(test, 'margin', '')}"
            table.add_row(*[comparison["candidate"]] * len(who), test["metric"], *figures, test["verdict"])
    return table


def details(run: Mapping[str, Any]) -> list[str]:
    """What ``--verbose`` adds to the first lines, from ``run.json``: versions, data and their checksums, weights."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    data = run["data"]
    return [
        versions,
        f"data: {data['source']}",
        f"training data, SHA-256 {data['training_sha256']}",
        f"validation data, SHA-256 {data['validation_sha256']}",
    ]


def variables(comparison: Mapping[str, Any]) -> list[str]:
    """What ``--verbose`` adds to a verdict: which variables differ first, and what could not be looked at."""
    differing = comparison["training"].get("differing_variables", ())
    lines = [f"  differs there: {each['name']}" + _by(each["gap"]) for each in differing]
    return lines + [
        f"  not applicable: {each['probe']}: {each['reason']}" for each in comparison.get("not_applicable", ())
    ]


def _by(gap: float | None) -> str:
    return "" if gap is None else f", by {gap:.1e} (Euclidean norm)"


def _cell(value: float | None) -> str:
    return "" if value is None else shortest(value)


def _gap(ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return ""
    return "0" if ours == theirs else f"{theirs - ours:+.1e}"
