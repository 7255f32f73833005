"""Bit-for-bit comparison of two records: the first differing step, and every reported metric."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from compare.records import EPOCH_END, INITIAL, Place, Record, in_time, variable_norms
from compare.verdict.model import (
    DIFFERENT,
    IDENTICAL,
    INCONCLUSIVE,
    Comparison,
    Difference,
    MetricGap,
    Reporting,
    Training,
)

WITHIN_BATCH = 32
"""The roundings allowed for the mean of one batch, in addition to one per batch for the sum over batches."""


def compare_records(reference: Record, candidate: Record, against: str = "") -> Comparison:
    """Compares two records bit for bit.

    Args:
        reference: the record of the reference.
        candidate: the record of the candidate.
        against: the folder of the recorded run that ``reference`` comes from, if it is not of this run.
    """
    training = compare_training(reference, candidate)
    reporting = compare_reporting(reference, candidate, training)
    return Comparison(candidate.trainer, training, reporting, against=against)


def noise_start(reference: Record, candidate: Record, training: Training) -> Place | None:
    """The place (epoch, step) before which the noise of twins has to start to explain a difference.

    None if rounding cannot explain it: the weights are equal, the initial weights differ, or one side
    lacks steps.
    """
    first = training.first_difference
    if training.verdict != DIFFERENT or training.reason or first is None or first.step == INITIAL:
        return None
    if first.step is not None:
        return first.epoch, first.since or first.step
    # Seen only at the end of the epoch: after its last step, or within it if one side does not report its steps.
    steps = [
        max((step for epoch, step in record.by_place() if epoch == first.epoch and step > INITIAL), default=1)
        for record in (reference, candidate)
    ]
    return first.epoch, min(steps)


def compare_training(reference: Record, candidate: Record) -> Training:
    """Compares all weights after every step that both runs took, and finds the first difference."""
    if not (moved(reference) or moved(candidate)):
        return Training(INCONCLUSIVE, None, None, 0, reason="neither trainer changed any weight")
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return Training(DIFFERENT, None, Difference(1, 0), 0, reason="the models have different weights")
    expected, actual = reference.by_place(), candidate.by_place()
    if not (has_steps(expected) and has_steps(actual)):  # one side does not report its steps
        expected, actual = epoch_ends(expected), epoch_ends(actual)
    common = expected.keys() & actual.keys()
    steps = sum(step > INITIAL for _, step in common)
    made = sum(last_steps(common).values())
    made = made if made > steps else 0
    expected_last, actual_last = last_steps(expected), last_steps(actual)
    before = (1, INITIAL)
    for place in sorted(expected.keys() | actual.keys(), key=in_time):
        if place not in common:
            epoch, step = place
            if INITIAL < step < (actual_last if place in expected else expected_last).get(epoch, INITIAL):
                continue  # that side made several steps in one call and was not observed between them
            reason = _missing(candidate if place in expected else reference, place)
            gap = max_weight_gap(reference, candidate)
            return Training(DIFFERENT, gap, _difference(place), steps, reason=reason, made=made)
        differing = _differing(expected[place], actual[place])
        if differing.any():
            names = [v.name for v in reference.variables]
            gaps = _estimated_gaps(expected[place], actual[place])
            variables = tuple((names[i], gaps[i]) for i in np.flatnonzero(differing))
            first = replace(_difference(place), since=since(before, place))
            gap = max_weight_gap(reference, candidate)
            return Training(DIFFERENT, gap, first, steps, variables, made=made)
        before = place
    return Training(IDENTICAL, 0.0, None, steps, made=made)


def compare_reporting(reference: Record, candidate: Record, training: Training) -> Reporting:
    """Compares the metrics that both trainers report, bit for bit.

    The verdict is None if the weights differ, since different metrics then prove nothing about reporting, or if
    the trainers have no reported metric in common.
    """
    metrics = metric_gaps(reference, candidate)
    compared = [gap for gap in metrics.values() if gap.compared]
    if training.verdict != IDENTICAL or not compared:
        return Reporting(None, metrics)
    same = reference.logs.keys() == candidate.logs.keys() and all(gap.max_gap == 0 for gap in compared)
    return Reporting(IDENTICAL if same else DIFFERENT, metrics)


def moved(record: Record) -> bool:
    """Whether training changed any weight; untrained models are never called identical."""
    steps = record.steps
    return len(steps) > 0 and bool((steps["hashes"] != steps["hashes"][0]).any())


def metric_gaps(reference: Record, candidate: Record) -> dict[str, MetricGap]:
    """The largest gap of every metric that either side reported, over the epochs that both finished.

    A metric is compared in the epochs in which both report it. A side that does not report it in some epoch is
    named in ``lacking``.
    """
    gaps: dict[str, MetricGap] = {}
    pairs = paired_names(reference, candidate)
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        expected, actual = reference.logs[epoch], candidate.logs[epoch]
        for name, other in pairs.items():
            if name not in expected or other not in actual:
                continue
            gap = absolute_gap(expected[name], actual[other])
            known = gaps.get(name)
            if known is None or (known.max_gap is not None and (gap is None or gap > known.max_gap)):
                gaps[name] = MetricGap(gap, epoch, alias=other if other != name else "")
    reference_names = {other: name for name, other in pairs.items()}
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        expected, actual = reference.logs[epoch], candidate.logs[epoch]
        for name in dict.fromkeys([*expected, *(reference_names.get(other, other) for other in actual)]):
            lacks = candidate if pairs.get(name, name) not in actual else reference if name not in expected else None
            known = gaps.get(name)
            if lacks is not None and (known is None or not known.lacking):
                known = known or MetricGap(None, epoch)
                gaps[name] = replace(known, lacking=lacks.trainer)
    order = [*_names(reference), *_names(candidate)]
    return {name: gaps[name] for name in dict.fromkeys(order) if name in gaps}


def paired_names(reference: Record, candidate: Record) -> dict[str, str]:
    """Maps the reference's name of each metric that both report to the candidate's name of it.

    Metrics pair up if their names are equal, or if their values are equal up to float32 rounding in every epoch:
    a loop may report as ``acc`` what fit reports as ``accuracy``.
    """
    names, candidate_names = _names(reference), _names(candidate)
    pairs = {name: name for name in names if name in candidate_names}
    others = [name for name in candidate_names if name not in pairs]
    for name in [name for name in names if name not in pairs]:
        for other in others:
            if name.startswith("val_") == other.startswith("val_") and _equal_values(reference, name, candidate, other):
                pairs[name] = other
                others.remove(other)
                break
    return pairs


def _names(record: Record) -> list[str]:
    return list(dict.fromkeys(name for logs in record.logs.values() for name in logs))


def _equal_values(reference: Record, name: str, candidate: Record, other: str) -> bool:
    epochs = reference.logs.keys() & candidate.logs.keys()
    pairs = [(reference.logs[epoch].get(name), candidate.logs[epoch].get(other)) for epoch in epochs]
    return bool(pairs) and all(
        a is not None and b is not None and abs(a - b) <= WITHIN_BATCH * float(np.finfo(np.float32).eps) * abs(a)
        for a, b in pairs
    )


def absolute_gap(reference: float | None, candidate: float | None) -> float | None:
    """|candidate - reference|; 0 if both are NaN, None if it is not finite or a value is missing."""
    if reference is None or candidate is None:
        return None
    if reference == candidate or (math.isnan(reference) and math.isnan(candidate)):
        return 0.0
    gap = abs(reference - candidate)
    return gap if math.isfinite(gap) else None


def max_weight_gap(reference: Record, candidate: Record) -> float | None:
    """The largest absolute difference of any weight at the end of any epoch; None if it is unknown."""
    largest: float | None = None
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        expected, actual = reference.weights(epoch), candidate.weights(epoch)
        if expected is None or actual is None:
            continue
        for a, b in zip(expected, actual, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                gap = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0)
            if not np.isfinite(gap):
                return None
            largest = max(largest or 0.0, float(gap))
    return largest


def has_steps(places: dict[Place, np.void]) -> bool:
    """Whether any optimizer step was fingerprinted."""
    return any(step > INITIAL for _, step in places)


def epoch_ends(places: dict[Place, np.void]) -> dict[Place, np.void]:
    """The fingerprints of initial weights and of the ends of epochs."""
    return {place: row for place, row in places.items() if place[1] in (INITIAL, EPOCH_END)}


def last_steps(places: Iterable[Place]) -> dict[int, int]:
    """By epoch, the last step that was fingerprinted."""
    return {epoch: step for epoch, step in sorted(places, key=in_time) if step != EPOCH_END}


def since(before: Place, place: Place) -> int | None:
    """The first step after ``before``, the last place with equal weights; None if that step is ``place`` itself."""
    epoch, step = place
    first = before[1] + 1 if before[0] == epoch and before[1] > INITIAL else 1
    return first if step > first else None


def _difference(place: Place) -> Difference:
    epoch, step = place
    return Difference(epoch, None if step == EPOCH_END else step)


def _missing(record: Record, place: Place) -> str:
    """Describes what a record lacks at a place where the other record has a fingerprint."""
    epoch, step = place
    if step == EPOCH_END:
        return f"{record.trainer} does not finish epoch {epoch}"
    if step == INITIAL:
        return f"{record.trainer} has no recorded weights at the start of epoch {epoch}"
    return f"{record.trainer} has no step {step:,} in epoch {epoch}"


def _differing(reference: np.void, candidate: np.void) -> np.ndarray:
    """Which variables differ: bool ``[variables]``.

    If both sides have the same number of replicas, each copy is compared with the copy on the same
    replica. If one side has a single replica, all copies of the other must equal it.
    """
    a, b = reference["hashes"], candidate["hashes"]
    if a.shape != b.shape:
        a, b = a[:, :, np.newaxis], b[:, np.newaxis, :]
    differing = np.asarray((a != b).reshape(len(a), -1).any(axis=1))
    # NaN has many bit patterns without a meaning: variables that are not finite on both sides count as equal.
    finite = [np.isfinite(row["projections"]).all(axis=1) for row in (reference, candidate)]
    return np.asarray(differing & (finite[0] | finite[1]))


def _estimated_gaps(reference: np.void, candidate: np.void) -> list[float | None]:
    """The estimated Euclidean norm of the gap of each variable; None where it is not finite."""
    gaps = variable_norms(reference["projections"], candidate["projections"])
    return [float(gap) if np.isfinite(gap) else None for gap in gaps]


def within_rounding(reference: Record, candidate: Record) -> bool:
    """Whether the metrics that both report differ by no more than the rounding error of float32 sums.

    The relative error of a sum of n numbers of one sign, in any order, is at most (n - 1) units of
    rounding (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2). Here n is
    the number of batches plus ``WITHIN_BATCH`` for the mean of one batch.
    """
    if reference.logs.keys() != candidate.logs.keys():
        return False
    pairs = paired_names(reference, candidate)
    for epoch, expected in reference.logs.items():
        actual = candidate.logs[epoch]
        terms = max(sum(place[0] == epoch for place in record.by_place()) for record in (reference, candidate))
        bound = (terms + WITHIN_BATCH) * float(np.finfo(np.float32).eps)
        for name, other in pairs.items():
            if name not in expected or other not in actual:
                continue
            gap = absolute_gap(expected[name], actual[other])
            if gap is None or gap > bound * max(abs(expected[name]), abs(actual[other])):
                return False
    return True
