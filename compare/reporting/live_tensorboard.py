"""``--tensorboard`` while a run is trained: numbers as epochs end, weight gaps as steps come in; no TensorFlow.

TensorBoard, pointed at the run's folder, shows the running comparison. When the run has ended, the log is written
again from the run's files (see ``compare.reporting.tensorboard``), with the same tags and values.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from compare.records import (
    EPOCH_END,
    AnyRecord,
    EpochRecord,
    Place,
    Sink,
    StepRecord,
    has_records,
    read_records,
    total_norm,
)
from compare.reporting import tensorboard

FLUSH_SECONDS = 1.0
"""The longest time for which a step's gap waits in memory."""

SinkOf = Callable[[str, int], Sink]
"""Gives the sink for a trainer and a seed."""


def _ignore(record: AnyRecord) -> None:
    pass


@contextmanager
def live_log(folder: Path, trainers: Sequence[str], seeds: int, *, wanted: bool) -> Iterator[SinkOf]:
    """The log of a run while it is trained.

    Args:
        folder: the run's folder; of a resumed run, it holds records.
        trainers: the trainers' names, the reference first.
        seeds: the number of seeds.
        wanted: whether there is to be a log; if not, the sinks do nothing.

    Yields:
        The sink for a trainer and a seed; sinks may be called in several threads.

    Raises:
        StorageError: if the log cannot be written.
    """
    if not wanted:
        yield lambda trainer, seed: _ignore
        return
    log = _LiveLog(folder, trainers, seeds)
    try:
        yield log.sink
    finally:
        log.close()


class _LiveLog:
    """The open files of a log, and the fingerprints whose counterparts are still to come."""

    def __init__(self, folder: Path, trainers: Sequence[str], seeds: int) -> None:
        self._folder, self._trainers, self._several = folder / tensorboard.FOLDER, trainers, seeds > 1
        self._lock = threading.Lock()
        self._files: dict[str, tensorboard.EventFile] = {}
        self._flushed = 0.0
        self._steps: dict[tuple[str, int], _Numbers] = defaultdict(_Numbers)
        self._waiting: dict[tuple[int, Place], dict[str, StepRecord]] = defaultdict(dict)
        if has_records(folder):  # resumed: what there is already, so that curves go on
            tensorboard.write(folder)
            for record in read_records(folder):
                for row in record.steps:
                    step = StepRecord(int(row["epoch"]), int(row["step"]), row["hashes"], row["projections"])
                    self._see(record.trainer, record.seed, step, write=False)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def sink(self, trainer: str, seed: int) -> Sink:
        """What writes the records of one trainer and seed."""

        def see(record: AnyRecord) -> None:
            with self._lock:
                if isinstance(record, StepRecord):
                    self._see(trainer, seed, record)
                elif isinstance(record, EpochRecord):
                    numbers = {"seconds": record.seconds, "examples_per_second": record.examples_per_second}
                    for name, value in {**record.logs, **numbers}.items():
                        self._write(trainer, seed, record.epoch, f"epoch/{name}", value)
                self._flush(at_once=isinstance(record, EpochRecord))

        return see

    def _see(self, trainer: str, seed: int, record: StepRecord, *, write: bool = True) -> None:
        """Writes a step's norm, and the gaps that can be calculated now."""
        number = self._steps[trainer, seed].number(record)
        if number and record.step != EPOCH_END and write:
            self._write(trainer, seed, number, tensorboard.NORM, float(total_norm(record.projections)))
        if not number or trainer not in self._trainers:
            return
        reference, *candidates = self._trainers
        place = seed, (record.epoch, record.step)
        seen = self._waiting[place]
        seen[trainer] = record
        for candidate in [each for each in candidates if trainer in (reference, each)]:
            if reference in seen and candidate in seen and write:
                counted = self._steps[candidate, seed].number_at(record.epoch, record.step)
                gap = _gap(seen[reference], seen[candidate])
                self._write(candidate, seed, counted, tensorboard.gap_tag(reference), gap)
        if len(seen) == len(self._trainers) and write:
            del self._waiting[place]

    def _write(self, trainer: str, seed: int, step: int, tag: str, value: float) -> None:
        if math.isnan(value):
            return
        run = tensorboard.run_name(trainer, seed, several=self._several)
        if run not in self._files:
            self._files[run] = tensorboard.EventFile(self._folder / run)
        self._files[run].write(tensorboard.scalar(step, time.time(), tag, value))

    def _flush(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now > self._flushed + FLUSH_SECONDS:
            self._flushed = now
            for file in self._files.values():
                file.flush()

    def close(self) -> None:
        """Closes all files."""
        for file in self._files.values():
            file.close()


class _Numbers:
    """The numbers of a training's fingerprints, counted over all epochs."""

    def __init__(self) -> None:
        self._steps: dict[int, list[int]] = defaultdict(list)

    def number(self, record: StepRecord) -> int:
        """The number of a fingerprint; 0 for one that is not after a step, unless steps are not reported at all."""
        steps = self._steps[record.epoch]
        if record.step == EPOCH_END:
            return record.epoch if not any(self._steps.values()) else 0
        while steps and steps[-1] >= record.step:  # trained again, from a checkpoint
            steps.pop()
        if record.step > 0:
            steps.append(record.step)
        return self.number_at(record.epoch, record.step) if record.step > 0 else 0

    def number_at(self, epoch: int, step: int) -> int:
        """The number of a fingerprint that has come."""
        if step == EPOCH_END:
            return epoch
        before = sum(len(steps) for other, steps in self._steps.items() if other < epoch)
        return before + bisect_right(self._steps[epoch], step)


def _gap(reference: StepRecord, candidate: StepRecord) -> float:
    """The estimated norm of the difference of all weights; 0 if they are equal, bit for bit, NaN if it is unknown."""
    if np.array_equal(reference.hashes, candidate.hashes):
        return 0.0
    if reference.projections.shape != candidate.projections.shape:
        return math.nan
    gap = float(total_norm(reference.projections, candidate.projections))
    return gap if math.isfinite(gap) else math.nan
