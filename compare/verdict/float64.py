"""Every trainer's distance from training on one replica in float64, which shows which side is wrong; no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compare.records.model import EPOCH_END, INITIAL, Record, in_blocks, in_time, place_of, places_of, total_norm
from compare.verdict.exact import metric_gaps
from compare.verdict.model import Comparison, Difference, Distance, MetricGap, Truth
from compare.verdict.rounding import unit_in_last_place

CLEARLY = 10.0
"""How many times farther from the float64 run than the other, or than before, a trainer must be to be off."""


def distances(truth: Record, trained: Sequence[Record], comparisons: Sequence[Comparison]) -> Truth:
    """How far every trainer is from the float64 run.

    The distance of weights is relative: ||w - truth|| / ||truth - initial||, estimated from the
    recorded projections. It is taken after the first optimizer step, where only rounding and the
    trainer's formula matter; before and after the step at which the trainers diverge, if they do; and at
    the end, when training has amplified rounding. Reported metrics are compared over all epochs.
    """
    after = []
    for key in _places(truth, comparisons):
        epoch, step = place_of(key)
        gaps = {record.trainer: _distance(truth, record, key) for record in trained}
        after.append(Distance(epoch, None if step == EPOCH_END else step, gaps))
    metrics = {
        record.trainer: {name: MetricGap(gap.max_gap, gap.epoch) for name, gap in metric_gaps(truth, record).items()}
        for record in trained
    }
    return Truth(tuple(after), metrics, _off(after, comparisons), _leaving(truth, trained))


def _places(truth: Record, comparisons: Sequence[Comparison]) -> list[int]:
    """The places at which distances are taken, as sort keys."""
    recorded = truth.keys
    steps, ends = recorded[places_of(recorded)[1] > INITIAL], recorded[places_of(recorded)[1] == EPOCH_END]
    wanted = steps[:1].tolist()
    for comparison in comparisons:
        first = comparison.training.first_difference
        if first is not None:
            key = in_time((first.epoch, EPOCH_END if first.step is None else first.step))
            if key in steps:  # the step before shows that both were equally close until then
                wanted += steps[steps < key][-1:].tolist()
            wanted.append(key)
    wanted += ends[-1:].tolist()
    return [key for key in dict.fromkeys(wanted) if key in recorded]


def _distance(truth: Record, record: Record, key: int) -> float | None:
    at = np.array([key])
    if not record.has(at).all() or len(record.variables) != len(truth.variables):
        return None
    exact, actual = truth.at(at)[0]["projections"], record.at(at)[0]["projections"]
    moved = total_norm(exact, truth.steps[0]["projections"])
    distance = total_norm(actual, exact) / moved if moved else np.nan
    return float(distance) if np.isfinite(distance) else None


def _off(after: Sequence[Distance], comparisons: Sequence[Comparison]) -> str | None:
    """The trainer that is clearly farther from the float64 run where the trainers diverge, if any."""
    for comparison in comparisons:
        first = comparison.training.first_difference
        if first is None:
            continue
        found = [each for each in after if (each.epoch, each.step) == (first.epoch, first.step)]
        known = sorted((d, name) for each in found for name, d in each.distance.items() if d is not None)
        if len(known) > 1 and known[-1][0] > CLEARLY * known[0][0]:
            return known[-1][1]
    return None


def _leaving(truth: Record, trained: Sequence[Record]) -> dict[str, Difference]:
    """By trainer, the first step that takes it ``CLEARLY`` farther from the float64 run than it was.

    Where it was as near as one rounding of every weight allows, that distance counts. So an error shows in the step
    that makes it, however far training drives rounding apart later.
    """
    units = unit_in_last_place(trained[0].variables) / 2 if trained else np.empty(0)
    leaving = {}
    for record in trained:
        keys = np.intersect1d(truth.keys, record.keys, assume_unique=True)
        keys = keys[places_of(keys)[1] > INITIAL]
        before = 0.0
        for part in in_blocks(keys if len(record.variables) == len(truth.variables) else keys[:0]):
            exact, actual = truth.at(part)["projections"], record.at(part)["projections"]
            gaps, rounding = total_norm(actual, exact), total_norm(exact * units[:, np.newaxis])
            far = gaps > CLEARLY * np.maximum(np.concatenate([[before], gaps[:-1]]), rounding)
            if far.any():
                leaving[record.trainer] = Difference(*place_of(part[far.argmax()]))
                break
            before = gaps[-1]
    return leaving
