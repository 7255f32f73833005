"""A run as a TensorBoard log, fed with records while the run is trained, or from its files; imports no TensorFlow.

    tensorboard --logdir reports/NAME/tensorboard

Every trainer is a run of the log, with its metrics per epoch. Per optimizer step, counted over all epochs, it has
estimates of the Euclidean norm of its weights and of their distance from the reference's weights. When the run has
ended, the log is written again from its files, and the run "verdict" contains the verdict as text.
"""

from __future__ import annotations

import datetime
import math
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from compare.errors import RequestError
from compare.naming import file_name
from compare.records.files import storing
from compare.records.metrics_csv import KEY_COLUMNS
from compare.records.model import (
    EPOCH_END,
    INITIAL,
    AnyRecord,
    BuildRecord,
    EpochRecord,
    Place,
    Record,
    RecordError,
    Sink,
    StepRecord,
    total_norm,
)
from compare.records.reader import has_records, read_records, read_rows
from compare.records.run_json import read_run
from compare.reporting.gaps import reference_name
from compare.reporting.run_files import verdict_of
from compare.reporting.sentences import causes, sentence
from compare.verdict.exact import unequal
from compare.verdict.model import Verdict

FOLDER = "tensorboard"
FILE = "events.out.tfevents.0000000000.compare"

NORM = "step/weights, norm"

FLUSH_SECONDS = 1.0
"""The longest time for which a step's gap waits in memory."""

Side = tuple[str, int]
"""A trainer's name and a seed."""

SinkOf = Callable[[str, int], Sink]
"""Gives the sink for a trainer and a seed."""


def gap_tag(reference: str) -> str:
    return f"step/weights, gap to {reference}"


def write(folder: Path) -> Path:
    """Writes the log from the other files of a run's folder, replacing an existing log; returns its folder.

    Raises:
        RequestError: if tensorboard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise RequestError('--tensorboard needs the package tensorboard: pip install "fit-vs-loop[tensorboard]"')
    verdict = verdict_of(folder)
    entries = [(reference_name(each, verdict.reference), each) for each in verdict.comparisons] if verdict else []
    several = len({row["seed"] for row in read_rows(folder)}) > 1
    with _Log(folder, [(reference, entry.candidate) for reference, entry in entries], several=several) as log:
        for reference, entry in entries:
            with suppress(RecordError):  # the other run cannot be read any more
                for record in read_records(Path(entry.against)) if entry.against else ():
                    if record.trainer == entry.candidate:
                        log.add_steps(reference, record, 0.0, shown=False)
        began = log.add_files()
        if verdict:
            log.write("verdict", _text("verdict", _markdown(verdict), began))
    return folder / FOLDER


@contextmanager
def live_log(folder: Path, trainers: Sequence[str], seeds: int, *, wanted: bool) -> Iterator[SinkOf]:
    """The log of a run while it is trained: numbers as epochs end, weight gaps as steps come in.

    Sinks may be called in several threads, and do nothing unless a log is wanted.

    Raises:
        StorageError: if the log cannot be written.
    """
    if not wanted:
        yield lambda trainer, seed: lambda record: None
        return
    with _Log(folder, [(trainers[0], candidate) for candidate in trainers[1:]], several=seeds > 1) as log:
        if has_records(folder):  # resumed: what there is already, so that curves go on
            log.add_files()
        yield log.sink


class _Log(ExitStack):
    """The open files of a log, and the fingerprints whose counterparts are still to come."""

    def __init__(self, folder: Path, compared: Sequence[tuple[str, str]], *, several: bool) -> None:
        super().__init__()
        self._run, self._compared, self._several = folder, compared, several
        self._sides = {name for pair in compared for name in pair}
        self._lock = threading.Lock()
        self._files: dict[str, EventFile] = {}
        self._flushed = 0.0
        self._shapes: dict[Side, list[tuple[int, ...]]] = {}
        self._numbers: dict[Side, dict[Place, int]] = defaultdict(dict)  # of steps, counted over all epochs
        self._waiting: dict[tuple[int, Place], dict[str, StepRecord]] = defaultdict(dict)
        shutil.rmtree(folder / FOLDER, ignore_errors=True)

    def sink(self, trainer: str, seed: int) -> Sink:
        def see(record: AnyRecord) -> None:
            with self._lock:
                if isinstance(record, BuildRecord):
                    self._shapes[trainer, seed] = [variable.shape for variable in record.variables]
                elif isinstance(record, StepRecord):
                    self._add_step((trainer, seed), record, time.time())
                else:
                    numbers = {"seconds": record.seconds, "examples_per_second": record.examples_per_second}
                    self._add_epoch((trainer, seed), record.epoch, {**record.logs, **numbers}, time.time())
                if isinstance(record, EpochRecord) or time.monotonic() > self._flushed + FLUSH_SECONDS:
                    self._flushed = time.monotonic()
                    for file in self._files.values():
                        file.flush()

        return see

    def add_files(self) -> float:
        """Adds all that the run's files hold; returns when the run was started, in seconds since 1970."""
        started = read_run(self._run).get("started")
        began = datetime.datetime.fromisoformat(started).timestamp() if started else 0.0
        clock: dict[Side, float] = defaultdict(lambda: began)
        for row in read_rows(self._run):
            side = row["trainer"], int(row["seed"])
            clock[side] += float(row["seconds"] or 0)
            numbers = {name: float(text) for name, text in row.items() if text and name not in KEY_COLUMNS}
            self._add_epoch(side, int(row["epoch"]), numbers, clock[side])
        for record in read_records(self._run) if has_records(self._run) else ():
            self.add_steps(record.trainer, record, began)
        return began

    def add_steps(self, name: str, record: Record, at: float, *, shown: bool = True) -> None:
        """Adds the steps of a record under a name; if it is not ``shown``, only to be compared with."""
        self._shapes[name, record.seed] = [variable.shape for variable in record.variables]
        for row in record.steps:
            step = StepRecord(int(row["epoch"]), int(row["step"]), row["hashes"], row["projections"])
            self._add_step((name, record.seed), step, at, shown=shown, again=True)

    def _add_epoch(self, side: Side, epoch: int, numbers: Mapping[str, float], at: float) -> None:
        for name, value in numbers.items():
            self._scalar(side, epoch, f"epoch/{name}", value, at)

    def _add_step(self, side: Side, record: StepRecord, at: float, *, shown: bool = True, again: bool = False) -> None:
        """Writes a step's norm, and the gaps that can be calculated now; keeps a step that may come ``again``."""
        if record.step == INITIAL:
            return
        (name, seed), place = side, (record.epoch, record.step)
        if record.step != EPOCH_END:  # a step trained again, from a checkpoint, keeps its number
            number = self._numbers[side].setdefault(place, len(self._numbers[side]) + 1)
            if shown:
                self._scalar(side, number, NORM, float(total_norm(record.projections)), at)
        if name not in self._sides:
            return
        seen = self._waiting[seed, place]
        seen[name] = record
        for reference, candidate in self._compared:
            if name in (reference, candidate) and reference in seen and candidate in seen:
                self._add_gap((reference, seed), (candidate, seed), seen[reference], seen[candidate], at)
        if len(seen) == len(self._sides) and not again:
            del self._waiting[seed, place]

    def _add_gap(self, reference: Side, candidate: Side, a: StepRecord, b: StepRecord, at: float) -> None:
        if b.step == EPOCH_END and self._numbers[reference] and self._numbers[candidate]:
            return  # the epoch's last step says as much
        number = self._numbers[candidate].get((b.epoch, b.step), b.epoch)
        if self._shapes.get(reference) == self._shapes.get(candidate):
            differs = unequal(a.hashes[np.newaxis], b.hashes[np.newaxis]).any()
            gap = float(total_norm(a.projections, b.projections)) if differs else 0.0
            self._scalar(candidate, number, gap_tag(reference[0]), gap if math.isfinite(gap) else math.nan, at)

    def _scalar(self, side: Side, step: int, tag: str, value: float, at: float) -> None:
        if not math.isnan(value):
            run = file_name(side[0], safe=" ") + (f" seed {side[1]}" if self._several else "")
            self.write(run, scalar(step, at, tag, value))

    def write(self, run: str, event: Any) -> None:
        if run not in self._files:
            self._files[run] = EventFile(self._run / FOLDER / run)
            self.callback(self._files[run].close)
        self._files[run].write(event)


def _markdown(verdict: Verdict) -> str:
    lines = [f"**{verdict.verdict}**"]
    for comparison in verdict.comparisons:
        lines += ["", sentence(comparison, verdict.reference) + "."]
        lines += [f"    {line.strip()}" for line in causes(comparison)]
    return "\n".join(lines)


def scalar(step: int, wall_time: float, tag: str, value: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)

    event = Event(step=step, wall_time=wall_time)
    event.summary.value.add(tag=tag, simple_value=value)
    return event


def _text(tag: str, text: str, wall_time: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
    from tensorboard.compat.proto.types_pb2 import DT_STRING  # noqa: PLC0415 (lazy)
    from tensorboard.plugins.text.metadata import create_summary_metadata  # noqa: PLC0415 (lazy)

    event = Event(wall_time=wall_time)
    value = event.summary.value.add(tag=tag, metadata=create_summary_metadata(tag, ""))
    value.tensor.dtype = DT_STRING
    value.tensor.string_val.append(text.encode())
    return event


class EventFile:
    """The event file of one run of the log, which is new."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415 (lazy)

        self._path = folder / FILE
        with storing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "wb")  # noqa: SIM115 (it stays open while a run is trained)
        self._writer = RecordWriter(self._file)
        self.write(Event(wall_time=0.0, file_version="brain.Event:2"))

    def write(self, event: Any) -> None:
        with storing(self._path):
            self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        with storing(self._path):
            self._file.flush()

    def close(self) -> None:
        with storing(self._path):
            self._file.close()
