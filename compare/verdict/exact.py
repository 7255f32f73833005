"""Two records compared bit for bit: the first step that differs, and every reported number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from compare.records import EPOCH_END, INITIAL, Place, Record, in_time
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

if TYPE_CHECKING:
    pass

WITHIN_BATCH = 32
"""Roundings that one batch's mean may add to those of the sum over batches; sums over a batch are taken pairwise."""


def compare_records(reference: Record, candidate: Record, against: str = "") -> Comparison:
    """Hold one record against another, bit for bit."""
    training = compare_training(reference, candidate)
    reporting = compare_reporting(reference, candidate, training)
    return Comparison(candidate.trainer, training, reporting, against=against)


def noise_start(reference: Record, candidate: Record, training: Training) -> Place | None:
    """Before which step the noise of twins has to begin, to be held against this difference.

    None where no noise could explain it: weights that are equal, or that differed before the first
    step, or steps that one side lacks.
    """
    first = training.first_difference
    if training.verdict != DIFFERENT or training.reason or first is None or first.step == INITIAL:
        return None
    if first.step is not None:
        return first.epoch, first.since or first.step
    # Seen at the epoch's end only: after its last step, or somewhere in it if one side does not tell its steps.
    steps = [
        max((step for epoch, step in record.by_place() if epoch == first.epoch and step > INITIAL), default=1)
        for record in (reference, candidate)
    ]
    return first.epoch, min(steps)


def compare_training(reference: Record, candidate: Record) -> Training:
    """Compare all weights after every step that both runs took, and find the first that differ."""
    if not (moved(reference) or moved(candidate)):
        return Training(INCONCLUSIVE, None, None, 0, reason="neither side's training moved a single weight")
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return Training(DIFFERENT, None, Difference(1, 0), 0, reason="the models have different weights")
    ours, theirs = reference.by_place(), candidate.by_place()
    if not (has_steps(ours) and has_steps(theirs)):  # one side never says where its steps end
        ours, theirs = epoch_ends(ours), epoch_ends(theirs)
    steps = sum(step > INITIAL for _, step in ours.keys() & theirs.keys())
    ours_last, theirs_last = last_steps(ours), last_steps(theirs)
    made = sum(last_steps(ours.keys() & theirs.keys()).values())
    made = made if made > steps else 0
    before = (1, INITIAL)
    for place in sorted(ours.keys() | theirs.keys(), key=in_time):
        if place not in ours or place not in theirs:
            epoch, step = place
            if INITIAL < step < (theirs_last if place in ours else ours_last).get(epoch, INITIAL):
                continue  # that side made several steps in one call, and could not look amid them
            reason = _lack(candidate if place in ours else reference, place)
            gap = max_weight_gap(reference, candidate)
            return Training(DIFFERENT, gap, _difference(place), steps, reason=reason, made=made)
        differing = _differing(ours[place], theirs[place])
        if differing.any():
            names = [v.name for v in reference.variables]
            gaps = _estimated_gaps(ours[place], theirs[place])
            variables = tuple((names[i], gaps[i]) for i in np.flatnonzero(differing))
            parting = replace(_difference(place), since=since(before, place))
            gap = max_weight_gap(reference, candidate)
            return Training(DIFFERENT, gap, parting, steps, variables, made=made)
        before = place
    return Training(IDENTICAL, 0.0, None, steps, made=made)


def compare_reporting(reference: Record, candidate: Record, training: Training) -> Reporting:
    """Compare the numbers that both report, bit for bit.

    Where the weights differ, different numbers say nothing about reporting, and where no number is reported
    by both there is nothing to compare: the verdict is None.
    """
    metrics = metric_gaps(reference, candidate)
    compared = [gap for gap in metrics.values() if gap.compared]
    if training.verdict != IDENTICAL or not compared:
        return Reporting(None, metrics)
    same = reference.logs.keys() == candidate.logs.keys() and all(gap.max_gap == 0 for gap in compared)
    return Reporting(IDENTICAL if same else DIFFERENT, metrics)


def moved(record: Record) -> bool:
    """Whether training changed any weight: an untrained model is never "identical"."""
    steps = record.steps
    return len(steps) > 0 and bool((steps["hashes"] != steps["hashes"][0]).any())


def metric_gaps(reference: Record, candidate: Record) -> dict[str, MetricGap]:
    """The largest gap of every metric that either side reported, over the epochs both finished.

    A number that one side does not report in some epoch is not compared there; in none, it is listed as lacking.
    """
    gaps: dict[str, MetricGap] = {}
    pairs = paired_names(reference, candidate)
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        ours, theirs = reference.logs[epoch], candidate.logs[epoch]
        for name, other in pairs.items():
            if name not in ours or other not in theirs:
                continue
            gap = absolute_gap(ours[name], theirs[other])
            known = gaps.get(name)
            if known is None or (known.max_gap is not None and (gap is None or gap > known.max_gap)):
                gaps[name] = MetricGap(gap, epoch, alias=other if other != name else "")
    others = {other: name for name, other in pairs.items()}
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        ours, theirs = reference.logs[epoch], candidate.logs[epoch]
        for name in dict.fromkeys([*ours, *(others.get(other, other) for other in theirs)]):
            lacks = candidate if pairs.get(name, name) not in theirs else reference if name not in ours else None
            known = gaps.get(name)
            if lacks is not None and (known is None or not known.lacking):
                known = known or MetricGap(None, epoch)
                gaps[name] = replace(known, lacking=lacks.trainer)
    order = [*_names(reference), *_names(candidate)]
    return {name: gaps[name] for name in dict.fromkeys(order) if name in gaps}


def paired_names(reference: Record, candidate: Record) -> dict[str, str]:
    """The reference's name of each number that both report, to the candidate's: the same, or of equal values.

    A loop may call ``acc`` what fit calls ``accuracy``. Equal is up to float32 rounding in every epoch.
    """
    ours, theirs = _names(reference), _names(candidate)
    pairs = {name: name for name in ours if name in theirs}
    others = [name for name in theirs if name not in pairs]
    for name in [name for name in ours if name not in pairs]:
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


def absolute_gap(ours: float | None, theirs: float | None) -> float | None:
    if ours is None or theirs is None:
        return None
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        return 0.0
    gap = abs(ours - theirs)
    return gap if math.isfinite(gap) else None


def max_weight_gap(reference: Record, candidate: Record) -> float | None:
    """The largest absolute difference of any weight at any epoch's end; None when it is unknown."""
    largest: float | None = None
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        ours, theirs = reference.weights(epoch), candidate.weights(epoch)
        if ours is None or theirs is None:
            continue
        for a, b in zip(ours, theirs, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                gap = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0)
            if not np.isfinite(gap):
                return None
            largest = max(largest or 0.0, float(gap))
    return largest


def has_steps(places: dict[Place, np.void]) -> bool:
    return any(step > INITIAL for _, step in places)


def epoch_ends(places: dict[Place, np.void]) -> dict[Place, np.void]:
    return {place: row for place, row in places.items() if place[1] in (INITIAL, EPOCH_END)}


def last_steps(places: Iterable[Place]) -> dict[int, int]:
    """By epoch, the last step that a side looked at."""
    return {epoch: step for epoch, step in sorted(places, key=in_time) if step != EPOCH_END}


def since(before: Place, place: Place) -> int | None:
    """The first step after a place where both were equal, if it is not the very step where they are no longer."""
    epoch, step = place
    first = before[1] + 1 if before[0] == epoch and before[1] > INITIAL else 1
    return first if step > first else None


def _difference(place: Place) -> Difference:
    epoch, step = place
    return Difference(epoch, None if step == EPOCH_END else step)


def _lack(record: Record, place: Place) -> str:
    """What the other side has at a place, and this one has not."""
    epoch, step = place
    if step == EPOCH_END:
        return f"{record.trainer} does not end epoch {epoch}"
    if step == INITIAL:
        return f"{record.trainer} does not show the weights that it begins epoch {epoch} with"
    return f"{record.trainer} makes no step {step:,} in epoch {epoch}"


def _differing(ours: np.void, theirs: np.void) -> np.ndarray:
    """Which variables differ: bool ``[variables]``.

    With equally many replicas each is compared with its peer. With 1 against N, all N copies must
    equal the one.
    """
    a, b = ours["hashes"], theirs["hashes"]
    if a.shape != b.shape:
        a, b = a[:, :, np.newaxis], b[:, np.newaxis, :]
    differing = np.asarray((a != b).reshape(len(a), -1).any(axis=1))
    # NaN has many bit patterns, and none means anything: what is not finite on both sides went wrong alike.
    finite = [np.isfinite(row["projections"]).all(axis=1) for row in (ours, theirs)]
    return np.asarray(differing & (finite[0] | finite[1]))


def _estimated_gaps(ours: np.void, theirs: np.void) -> list[float | None]:
    """Per variable the root mean square of the projected differences, which estimates their norm."""
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = np.sqrt(np.mean((ours["projections"] - theirs["projections"]) ** 2, axis=1))
    return [float(gap) if np.isfinite(gap) else None for gap in gaps]


def within_rounding(reference: Record, candidate: Record) -> bool:
    """Whether the numbers that both report are no further apart than float32 sums of as many terms may be.

    The relative error of a sum of n numbers of one sign, in any order, is at most (n - 1) units of
    rounding (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2). Here n is
    the number of batches, and some more for the sum over a batch.
    """
    if reference.logs.keys() != candidate.logs.keys():
        return False
    pairs = paired_names(reference, candidate)
    for epoch, ours in reference.logs.items():
        theirs = candidate.logs[epoch]
        terms = max(sum(place[0] == epoch for place in record.by_place()) for record in (reference, candidate))
        bound = (terms + WITHIN_BATCH) * float(np.finfo(np.float32).eps)
        for name, other in pairs.items():
            if name not in ours or other not in theirs:
                continue
            gap = absolute_gap(ours[name], theirs[other])
            if gap is None or gap > bound * max(abs(ours[name]), abs(theirs[other])):
                return False
    return True
