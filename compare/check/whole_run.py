"""Names causes of which only the records of whole runs tell, since the short check has few steps and epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.causes.optimizer_recorded import END, SET_WEIGHTS, acting, setting_rate
from compare.check.measurement import Measurement
from compare.records.model import EPOCH_END, INITIAL, Record, in_time
from compare.verdict.exact import last_steps
from compare.verdict.findings import Finding
from compare.verdict.model import Comparison

RATE = "learning_rate"
"""The name by which Keras's callbacks report the learning rate of an epoch."""


def causes_of(
    reference: Record, candidate: Record, comparison: Comparison, callbacks: Sequence[str]
) -> Iterator[Finding]:
    """The causes of a candidate whose weights are equal to the reference's, bit for bit, for some time.

    Args:
        callbacks: the classes of fit's callbacks.
    """
    for id, seen in (
        ("callbacks-missing", _late_callbacks(reference, candidate, comparison, callbacks)),
        ("examples-dropped", _epoch_that_ends_early(reference, candidate, comparison)),
    ):
        if seen is not None:
            yield CATALOGUE[id].found(candidate.trainer, seen)


def _late_callbacks(
    reference: Record, candidate: Record, comparison: Comparison, callbacks: Sequence[str]
) -> Measurement | None:
    """A callback of fit's that acts where the weights first differ."""
    first, of = comparison.training.first_difference, {"reference": reference.trainer}
    if first is None or not callbacks:
        return None
    ends = max(reference.logs, default=0), max(candidate.logs, default=0)
    now, before = (reference.logs.get(epoch, {}).get(RATE) for epoch in (first.epoch, first.epoch - 1))
    if first.epoch > ends[0] and ends[0] < ends[1] and (ending := acting(callbacks, END)):
        numbers = {"epochs": ends[1], "expected": ends[0], "side": candidate.trainer}
        return Measurement.of("ended", callbacks=ending, **of, **numbers)
    setting = setting_rate(callbacks)
    if first.step == 1 and now is not None and before is not None and now != before and setting:
        numbers = {"before": before, "learning_rate": now, "epoch": first.epoch}
        return Measurement.of("callbacks-changed-rate", callbacks=setting, **of, **numbers)
    steps = last_steps(candidate.keys).get(first.epoch, INITIAL)  # without them, any step may be the one that differs
    setting = acting(callbacks, SET_WEIGHTS)
    if first.step is None and first.epoch in reference.logs and setting and steps > INITIAL:
        return Measurement.of("callbacks-changed-weights", callbacks=setting, epoch=first.epoch, **of)
    return None


def _epoch_that_ends_early(reference: Record, candidate: Record, comparison: Comparison) -> Measurement | None:
    """Steps at the end of an epoch that the candidate does not make: its weights stay those of its last step."""
    first = comparison.training.first_difference
    if first is None or first.step is None:
        return None
    expected, steps = (last_steps(record.keys).get(first.epoch, INITIAL) for record in (reference, candidate))
    if not INITIAL < steps < first.step <= expected or first.epoch not in candidate.logs:
        return None
    last, end = candidate.at(np.array([in_time((first.epoch, step)) for step in (steps, EPOCH_END)]))["hashes"]
    if (last != end).any():
        return None  # it goes on, but does not say so
    counted = {"steps": steps, "expected": expected, "left": expected - steps}
    return Measurement.of("epoch-ends-early", epoch=first.epoch, reference=reference.trainer, **counted)
