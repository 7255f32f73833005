"""Trains with a last batch that leaves one replica without examples, if the user's data has such batches."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from compare.check.batches import Batches
from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.observation import Observation, OptimizerStep
from compare.check.observe import observe
from compare.check.recipe import distance
from compare.check.report import REPORTING, Report
from compare.engine.run import TrainingTask
from compare.trainer import Trainer
from compare.user_errors import describe
from compare.verdict.outcomes import DIFFERENT

PROBE = "empty replica"
CAUSE = CATALOGUE["empty-replica-batch"]


class EmptyReplicaProbe:
    """Compares a candidate with the reference, seen on usual batches, on some that leave a replica without examples."""

    def __init__(
        self, task: TrainingTask, batches: Batches, trainer: Trainer, reference: Observation, seed: int
    ) -> None:
        self._trainer, self._reference, self._seed = trainer, reference, seed
        occurs = reference.replicas > 1 and batches.empty
        self._task = replace(task, train=task.train.first(batches.per_epoch(empty=True))) if occurs else None

    def extend(self, report: Report, trainer: Trainer, threshold: float) -> Report:
        """Returns the report, extended if the candidate fails on an empty replica.

        Args:
            report: a report that found training to be right, so any difference comes from the empty replica.
            threshold: the largest relative distance of two gradients that counts as rounding.
        """
        if self._task is None:
            return report
        if isinstance(self._observed, str):
            return report.without(PROBE, self._observed)
        try:
            candidate = observe(self._task, trainer, self._seed)
        except Exception as error:
            return report.without(PROBE, f"{trainer.name} fails on it: {describe(error)}")
        if evidence := wrong_gradient(self._observed, candidate, threshold):
            training = replace(report.comparison.training, verdict=DIFFERENT)
            found = CAUSE.found(trainer.name, evidence)
            return report.but(training=training, causes=(found, *report.findings), certain=True)
        if evidence := wrong_number(self._observed, candidate):
            reporting = replace(report.comparison.reporting, verdict=DIFFERENT)
            found = replace(CAUSE.found(trainer.name, evidence), kind=REPORTING)
            return report.but(reporting=reporting, causes=(*report.findings, found))
        return report

    @cached_property
    def _observed(self) -> Observation | str:
        """The reference on such batches, or why there is none."""
        assert self._task is not None
        kinds = {layer["class"] for layer in self._reference.layers}
        failing = sorted(kind for kind in kinds if "Conv" in kind or "BatchNormalization" in kind)
        if failing:  # they raise an exception, return NaN, or crash the process, whoever trains
            return f"{', '.join(failing)} cannot handle a replica without examples"
        try:
            return observe(self._task, self._trainer, self._seed)
        except Exception as error:  # a failure of the reference does not count against the candidate
            return f"{self._reference.name} fails on it: {describe(error)}"


def wrong_gradient(reference: Observation, candidate: Observation, threshold: float) -> Measurement | None:
    """The first step whose gradient differs from the reference's; None if there is none."""
    steps = zip(reference.optimizer_steps, candidate.optimizer_steps, strict=False)
    for i, (expected_step, step) in enumerate(steps):
        expected, gradient = summed_gradient(expected_step), summed_gradient(step)
        off = distance([expected], [gradient]) if expected.shape == gradient.shape else 0.0
        if off > threshold and not (np.isnan(expected).any() and np.isnan(gradient).any()):
            error = None if np.isnan(gradient).any() else off
            return Measurement.of("empty-replica-gradient", step=i + 1, relative_error=error)
    return None


def wrong_number(reference: Observation, candidate: Observation) -> Measurement | None:
    """The first reported number that is NaN, and finite in the reference; None if there is none."""
    for epoch in reference.logs.keys() & candidate.logs.keys():
        for key, value in candidate.logs[epoch].items():
            if np.isnan(value) and np.isfinite(reference.logs[epoch].get(key, np.nan)):
                return Measurement.of("empty-replica-metric", metric=key)
    return None


def summed_gradient(step: OptimizerStep) -> np.ndarray:
    """Returns the gradient summed over all replicas as one float64 vector; missing gradients are left out."""
    variables = zip(*step.gradients, strict=True)
    dense = [[np.asarray(g).astype(np.float64) for g in replicas if g is not None] for replicas in variables]
    return np.concatenate([np.sum(replicas, axis=0).ravel() for replicas in dense if replicas] or [np.zeros(0)])
