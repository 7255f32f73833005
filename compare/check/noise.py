"""Compares a short run with noise twins of the reference."""

from __future__ import annotations

from functools import partial

from compare.check.close_up import observing
from compare.check.observation import EPOCHS, as_record
from compare.engine.anew import train_anew
from compare.engine.noise_twins import TwinRun
from compare.engine.run import TrainingTask
from compare.records import AnyRecord, Place, Record
from compare.trainer import Trainer
from compare.verdict import rounding
from compare.verdict.evidence import with_noise
from compare.verdict.exact import noise_start
from compare.verdict.model import Comparison
from compare.watch.seen import CloseUp

TWINS, MORE_TWINS = 2, 6
"""The number of noise twins that a short run is compared with: at first, and at most."""


class NoiseTwins:
    """Trains noise twins of the reference when they are needed, and keeps their records and what is seen of them."""

    def __init__(self, task: TrainingTask, reference: Trainer, seed: int) -> None:
        self.task, self._reference, self._seed = task, reference, seed
        self._twins: dict[Place, list[Record]] = {}
        self._seen: dict[Place, list[CloseUp]] = {}

    def judge(self, comparison: Comparison, reference: Record, candidate: Record) -> Comparison:
        """Returns the comparison with its weight difference judged by noise twins."""
        start = noise_start(reference, candidate, training=comparison.training)
        if start is None:
            return comparison
        twins = self._twins.setdefault(start, [])
        measured = partial(rounding.measure, reference, candidate, twins, start)
        for (number,), loud in rounding.wanted_twins(measured, len(twins), TWINS, MORE_TWINS):
            twins.append(self._train(start, number, loud=loud))
        return with_noise(comparison, reference, candidate, twins=twins)

    def inside(self, start: Place) -> list[CloseUp]:
        """What is seen inside the steps of twins with noise from a place on, at least of one; empty if nothing is."""
        twins = self._twins.setdefault(start, [])
        if not twins:
            twins.append(self._train(start, 1, loud=False))
        return self._seen.get(start, [])

    def _train(self, start: Place, number: int, *, loud: bool) -> Record:
        records: list[AnyRecord] = []
        with observing() as observer:
            given = {"seed": self._seed, "epochs": EPOCHS, "sinks": [records.append]}
            run = TwinRun(self.task, start=start, twin=number, loud=loud, **given)
            train_anew(self._reference, run)
            run.close()
            inside = observer.seen(0)
        if inside is not None and not loud:
            self._seen.setdefault(start, []).append(inside)
        return as_record(rounding.twin_name(number, loud), records)
