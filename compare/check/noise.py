"""Compares a short run with noise twins of the reference over the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from compare.anew import train_anew
from compare.check.batches import Batches
from compare.check.observation import EPOCHS, as_record
from compare.check.observe import CraftedRun
from compare.engine.noise_twins import TwinRun
from compare.engine.run import TrainingTask
from compare.records import AnyRecord, Place, Record, Sink
from compare.trainer import Trainer
from compare.verdict import rounding
from compare.verdict.evidence import with_noise
from compare.verdict.exact import noise_start
from compare.verdict.model import Comparison

TWINS, MORE_TWINS = 2, 6
"""The number of noise twins that a short run is compared with: at first, and at most."""


class CraftedTwin(CraftedRun, TwinRun):
    """A noise twin over the check's batches."""


class NoiseTwins:
    """Trains noise twins of the reference when they are needed, and keeps their records."""

    def __init__(self, task: TrainingTask, batches: Batches, reference: Trainer, seed: int) -> None:
        self.task, self.batches, self.reference, self._seed = task, batches, reference, seed
        self._twins: dict[Place, list[Record]] = {}

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

    def run(self, start: Place, number: int, *, loud: bool = False, sinks: Sequence[Sink] = ()) -> CraftedTwin:
        """A run for the reference to train, with noise from a place on."""
        run = CraftedTwin(self.task, seed=self._seed, epochs=EPOCHS, start=start, twin=number, loud=loud, sinks=sinks)
        run.batches = self.batches
        return run

    def _train(self, start: Place, number: int, *, loud: bool) -> Record:
        records: list[AnyRecord] = []
        run = self.run(start, number, loud=loud, sinks=[records.append])
        train_anew(self.reference, run)
        run.close()
        return as_record(rounding.twin_name(number, loud), records)
