"""What a run prints: the first lines, live progress, the table per epoch, the verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from compare.records import AnyRecord, EpochRecord, Record, StepRecord, shortest
from compare.report.text import difference
from compare.verdict import EXIT_STATUS


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it stands, however long and whatever brackets it has."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def style_of(verdict: str) -> str:
    """How a verdict is shown."""
    return "bold green" if EXIT_STATUS[verdict] == 0 else "bold red"


class TrainerProgress:
    """The sink that shows how far one trainer is: a live bar, or a line per epoch where no one watches.

    Args:
        console: where to print.
        trainer: the trainer's name.
        epochs: the epochs to come.
        steps_per_epoch: optimizer steps in each.
        global_batch_size: examples per step.
    """

    def __init__(
        self, console: Console, trainer: str, epochs: range, steps_per_epoch: int, global_batch_size: int
    ) -> None:
        self._console, self._trainer = console, trainer
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
            TextColumn("left {task.fields[latest]}"),
            console=console,
            transient=True,
            auto_refresh=False,  # a refreshing thread would compete with the training for two cores
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(self._text(epochs[0]), total=len(epochs) * steps_per_epoch, rate="", latest="")

    def __enter__(self) -> TrainerProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, EpochRecord):
            self._latest = "  ".join(f"{name} {value:.4f}" for name, value in record.logs.items())
            self._console.print(
                f"{self._trainer}  epoch {record.epoch}/{self._epochs[-1]}  {self._latest}  "
                f"{record.seconds:.1f} s, {record.examples_per_second:,.0f} examples/s",
                markup=False,
                soft_wrap=True,
            )
        elif isinstance(record, StepRecord) and record.step > 0:
            self._done += 1
            now = time.perf_counter()
            if now > self._next_refresh and not self._bar.disable:
                self._next_refresh = now + 0.25
                rate = f"{self._done * self._batch / (now - self._began):,.0f} examples/s"
                text = self._text(record.epoch)
                self._bar.update(self._task, completed=self._done, description=text, rate=rate, latest=self._latest)
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


def _cell(value: float | None) -> str:
    return "" if value is None else shortest(value)


def _gap(ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return ""
    return "0" if ours == theirs else f"{theirs - ours:+.1e}"
