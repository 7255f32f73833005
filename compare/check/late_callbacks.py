"""Recognises callbacks of fit that a loop lacks by a whole run, since many act only after the short check's epochs."""

from __future__ import annotations

from collections.abc import Sequence

from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.report import named
from compare.experiment import Experiment
from compare.records import Record
from compare.verdict import Comparison, Finding

RATE = "learning_rate"
"""The name by which Keras's callbacks report the learning rate of an epoch."""


def callback_names(experiment: Experiment) -> list[str]:
    """The class names of the callbacks that fit runs."""
    return [type(callback).__name__ for callback in experiment.build_callbacks()]


def missing_callbacks(
    reference: Record, candidate: Record, comparison: Comparison, callbacks: Sequence[str]
) -> Finding | None:
    """Names ``callbacks-missing`` where the weights of fit and a loop are equal, bit for bit, until a callback acts."""
    first, name = comparison.training.first_difference, reference.trainer
    if first is None or not callbacks:
        return None
    of, seen = {"callbacks": callbacks, "reference": name}, None
    ends = max(reference.logs, default=0), max(candidate.logs, default=0)
    now, before = (reference.logs.get(epoch, {}).get(RATE) for epoch in (first.epoch, first.epoch - 1))
    if first.epoch > min(ends) and ends[0] != ends[1]:
        seen = Measurement.of("ended", epochs=ends[1], expected=ends[0], side=candidate.trainer, **of)
    elif first.step == 1 and now is not None and before is not None and now != before:
        seen = Measurement.of("callbacks-changed-rate", before=before, learning_rate=now, epoch=first.epoch, **of)
    elif first.step is None and first.epoch in reference.logs:
        seen = Measurement.of("callbacks-changed-weights", epoch=first.epoch, **of)
    if seen is None:
        return None
    cause = CATALOGUE["callbacks-missing"]
    return named(cause.id, cause.kind, candidate.trainer, seen, cause.remedy)
