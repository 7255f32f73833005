"""Bit-for-bit comparison of two records: the first differing step, and every reported metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from compare.naming import some
from compare.records.model import (
    EPOCH_END,
    INITIAL,
    Place,
    Record,
    Variable,
    first_place,
    in_blocks,
    in_time,
    place_of,
    places_of,
    variable_norms,
)
from compare.verdict import not_finite
from compare.verdict.model import Comparison, Difference, DifferingVariable, MetricGap, Reporting, Training
from compare.verdict.not_finite import NotFinite
from compare.verdict.outcomes import DIFFERENT, IDENTICAL, INCONCLUSIVE

WITHIN_BATCH = 32
"""The roundings allowed for the mean of one batch, in addition to one per batch for the sum over batches."""


def compare_records(reference: Record, candidate: Record, against: str = "") -> Comparison:
    """Compares two records bit for bit; ``against`` is the folder of the reference's run, if it is another one."""
    training = compare_training(reference, candidate)
    reporting = compare_reporting(reference, candidate, training)
    comparison = Comparison(
        candidate.trainer, training, reporting, against=against, not_finite=not_finite_values(reference, candidate)
    )
    return comparison.held_different()


def not_finite_values(reference: Record, candidate: Record) -> tuple[NotFinite, ...]:
    """Where values first are not finite: of the weights, and of the numbers that both report."""
    found = not_finite.in_weights(reference, candidate)
    numbers = not_finite.in_numbers(reference.trainer, candidate.trainer, reported_by_both(reference, candidate))
    return tuple(each for each in (found, numbers) if each is not None)


def noise_start(reference: Record, candidate: Record, training: Training) -> Place | None:
    """The place (epoch, step) before which the noise of twins has to start to explain a difference.

    None if rounding cannot explain it: the weights are equal, the initial weights differ, one side lacks steps, or
    its weights alone are not finite.
    """
    first = training.first_difference
    if training.verdict != DIFFERENT or training.reason or first is None or first.step == INITIAL:
        return None
    if (found := not_finite.in_weights(reference, candidate)) is not None and found.alone:
        return None
    if first.step is not None:
        return first.epoch, first.since_step or first.step
    # Seen only at the end of the epoch: after its last step, or within it if one side does not report its steps.
    last = min(last_steps(record.keys).get(first.epoch, INITIAL) or 1 for record in (reference, candidate))
    return first.epoch, last


def compare_training(reference: Record, candidate: Record) -> Training:
    """Compares all weights after every step that both runs took, and finds the first difference."""
    silent = [record.trainer for record in (reference, candidate) if not has_steps(record.keys)]
    return replace(_compare_weights(reference, candidate), steps_not_reported_by=silent[0] if len(silent) == 1 else "")


def without_counterpart(own: Sequence[Variable], others: Sequence[Variable]) -> list[Variable]:
    """The variables that have none of equal shape among others, each of which is the counterpart of one."""
    left = Counter(variable.shape for variable in others)
    left.subtract(variable.shape for variable in own)
    alone = []
    for variable in reversed(own):
        if left[variable.shape] < 0:
            left[variable.shape] += 1
            alone.append(variable)
    return alone[::-1]


def _weights_alone(reference: Record, candidate: Record) -> str:
    """Which weights only one of two models has, as a sentence."""
    told, names_of = [], (reference.trainer, candidate.trainer)
    sides = ("the recorded run", "this one") if names_of[0] == names_of[1] else names_of  # with --baseline
    for side, own, other in zip(sides, (reference, candidate), (candidate, reference), strict=True):
        alone = without_counterpart(own.variables, other.variables)
        names = [f"{variable.name} {list(variable.shape)}" for variable in alone]
        told += [f"only that of {side} has {some(names)}"] if names else []
    return "; ".join(told) or "they have them in another order"


def _compare_weights(reference: Record, candidate: Record) -> Training:
    if not (moved(reference) or moved(candidate)):
        known = any(len(places_of(record.keys)[1]) > 1 for record in (reference, candidate))
        reason = "neither trainer changed any weight" if known else "the weights were recorded once only"
        return Training(INCONCLUSIVE, None, None, 0, reason=reason)
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        reason = f"they train models with different weights: {_weights_alone(reference, candidate)}"
        return Training(DIFFERENT, None, Difference(1, 0), 0, reason=reason)
    expected, actual = reference.keys, candidate.keys
    if not (has_steps(expected) and has_steps(actual)):  # one side does not report its steps
        expected, actual = (keys[places_of(keys)[1] <= INITIAL] for keys in (expected, actual))
    stop = min(reference.stop, candidate.stop)
    expected, actual = expected[expected <= stop], actual[actual <= stop]
    common = np.intersect1d(expected, actual, assume_unique=True)
    steps = int((places_of(common)[1] > INITIAL).sum())
    ends, seen = last_steps(common), last_steps(expected) | last_steps(actual)
    made = sum((seen | ends)[epoch] for epoch in seen if epoch <= max(ends, default=0))  # also those in one call
    made = made if made > steps else 0
    sides = (candidate, actual, expected), (reference, expected, actual)
    lacking = {int(key): record for record, keys, other in sides for key in _lacking(keys, other)[:1]}
    end = min(lacking, default=None)
    compared = common if end is None else common[common < end]
    found = _first_difference(reference, candidate, compared)
    if found is not None and found[0].step == INITIAL and end is None:
        later = compared[places_of(compared)[1] != INITIAL]
        if len(later) and _first_difference(reference, candidate, later) is None:
            found, common = None, later  # a callback of both sets the weights, which one side recorded after that
    if found is not None:
        first, variables = found
        if first.step != INITIAL and place_of(common[0]) == (first.epoch, first.step):
            unknown = " and ".join(
                record.trainer for record, keys, _ in reversed(sides) if INITIAL not in places_of(keys)[1]
            )
            if unknown:  # so nobody knows whether training began from equal weights
                reason = f"the initial weights of {unknown} were not recorded, and those after step 1 differ"
                return Training(INCONCLUSIVE, None, None, steps, reason=reason, steps_made=made)
        gap = max_weight_gap(reference, candidate, first.epoch)
        return Training(DIFFERENT, gap, first, steps, differing_variables=variables, steps_made=made)
    if end is not None:
        epoch, step = place_of(end)
        lacks = f"has no step {step:,} in epoch {epoch}" if step != EPOCH_END else f"does not finish epoch {epoch}"
        gap, reason = max_weight_gap(reference, candidate, epoch), f"{lacking[end].trainer} {lacks}"
        return Training(DIFFERENT, gap, _difference((epoch, step)), steps, reason=reason, steps_made=made)
    if names := _unknown(reference, candidate, common):
        reason = f"{', '.join(names[:3])} differ, but on both sides not all of their values are finite"
        return Training(INCONCLUSIVE, None, None, steps, reason=reason, steps_made=made)
    return Training(IDENTICAL, 0.0, None, steps, steps_made=made)


def _unknown(reference: Record, candidate: Record, keys: np.ndarray) -> list[str]:
    """The variables that differ at one of these places and are not finite there on both sides."""
    unknown = np.zeros(len(reference.variables), bool)
    for part in in_blocks(keys):
        unknown |= unequal(reference.at(part)["hashes"], candidate.at(part)["hashes"]).any(axis=0)
    return [reference.variables[i].name for i in np.flatnonzero(unknown)]


def _first_difference(
    reference: Record, candidate: Record, keys: np.ndarray
) -> tuple[Difference, tuple[DifferingVariable, ...]] | None:
    """The first of these places at which weights differ, and the variables that do, with their estimated gaps."""
    at = first_place(keys, lambda part: _differing(reference.at(part), candidate.at(part)))
    if at is None:
        return None
    place, before = place_of(keys[at]), place_of(keys[at - 1]) if at else (1, INITIAL)
    return replace(_difference(place), since_step=since(before, place)), differing_at(reference, candidate, place)


def differing_at(reference: Record, candidate: Record, place: Place) -> tuple[DifferingVariable, ...]:
    """The variables that differ at a place, with their estimated gaps; none where one side has no such place."""
    key = np.array([in_time(place)])
    if not (reference.has(key).all() and candidate.has(key).all()):
        return ()
    expected, actual = reference.at(key), candidate.at(key)
    gaps = variable_norms(expected["projections"], actual["projections"])[0]
    return tuple(
        DifferingVariable(reference.variables[i].name, float(gaps[i]) if np.isfinite(gaps[i]) else None)
        for i in np.flatnonzero(_differing(expected, actual)[0])
    )


def compare_reporting(reference: Record, candidate: Record, training: Training) -> Reporting:
    """Compares the metrics that both trainers report, bit for bit.

    The verdict is None if the weights differ, since different metrics then prove nothing about reporting, or if
    the trainers have no reported metric in common. An epoch that only one side reported is no difference, but leaves
    open whether there is one.
    """
    metrics = metric_gaps(reference, candidate)
    compared = [gap for gap in metrics.values() if gap.compared]
    if training.verdict != IDENTICAL or not compared:
        unexplained = beyond_rounding(reference, candidate) if compared and training.verdict != IDENTICAL else ()
        return Reporting(None, metrics, tuple(name for name in metrics if name in unexplained))
    if any(gap.max_gap != 0 for gap in compared):
        return Reporting(DIFFERENT, metrics)
    return Reporting(IDENTICAL if reference.logs.keys() == candidate.logs.keys() else INCONCLUSIVE, metrics)


def moved(record: Record) -> bool:
    """Whether training changed any weight; untrained models are never called identical."""
    steps = record.steps
    return len(steps) > 0 and bool((steps["hashes"] != steps["hashes"][0]).any())


def metric_gaps(reference: Record, candidate: Record) -> dict[str, MetricGap]:
    """The largest gap of every metric that either side reported, over the epochs that both finished.

    A metric is compared in the epochs in which both report it. A side that does not report it in some epoch is
    named in ``not_reported_by``, unless the gap is not finite, which says more.
    """
    gaps: dict[str, MetricGap] = {}
    pairs = paired_names(reference, candidate)
    for epoch, name, expected, actual in reported_by_both(reference, candidate):
        gap, known = absolute_gap(expected, actual), gaps.get(name)
        if known is None or (known.max_gap is not None and (gap is None or gap > known.max_gap)):
            other = pairs[name] if pairs[name] != name else ""
            gaps[name] = MetricGap(gap, epoch, reported_as=other)
    reference_names = {other: name for name, other in pairs.items()}
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        theirs = {reference_names.get(other, other) for other in candidate.logs[epoch]}
        for name in reference.logs[epoch].keys() ^ theirs:
            known, lacks = gaps.get(name), reference if name in theirs else candidate
            if known is None or (known.max_gap is not None and not known.not_reported_by):
                gaps[name] = replace(known or MetricGap(None, epoch), not_reported_by=lacks.trainer)
    order = [*metric_names(reference), *metric_names(candidate)]
    return {name: gaps[name] for name in dict.fromkeys(order) if name in gaps}


def paired_names(reference: Record, candidate: Record) -> dict[str, str]:
    """Maps the reference's name of each metric that both report to the candidate's name of it.

    Metrics pair up if their names are equal, or if their values are equal up to float32 rounding in every epoch:
    a loop may report as ``acc`` what fit reports as ``accuracy``.
    """
    names, candidate_names = metric_names(reference), metric_names(candidate)
    pairs = {name: name for name in names if name in candidate_names}
    for name in [name for name in names if name not in pairs]:
        alike = (other for other in candidate_names if name.startswith("val_") == other.startswith("val_"))
        left = (other for other in alike if other not in pairs.values())
        if other := next((other for other in left if _equal_values(reference, name, candidate, other)), None):
            pairs[name] = other
    return pairs


def named_as(reference: Record, candidate: Record) -> Record:
    """The candidate's record, with the reference's name of each number that both report."""
    names = {other: name for name, other in paired_names(reference, candidate).items()}
    logs = {
        epoch: {names.get(name, name): value for name, value in own.items()} for epoch, own in candidate.logs.items()
    }
    return replace(candidate, logs=logs)


def reported_by_both(reference: Record, candidate: Record) -> list[tuple[int, str, float, float]]:
    """The numbers that both report: the epoch, the reference's name, the reference's value and the candidate's."""
    pairs = paired_names(reference, candidate)
    return [
        (epoch, name, reference.logs[epoch][name], candidate.logs[epoch][other])
        for epoch in sorted(reference.logs.keys() & candidate.logs.keys())
        for name, other in pairs.items()
        if name in reference.logs[epoch] and other in candidate.logs[epoch]
    ]


def metric_names(record: Record) -> list[str]:
    """The metrics that a trainer reported, in the order in which it first did."""
    return list(dict.fromkeys(name for logs in record.logs.values() for name in logs))


def _equal_values(reference: Record, name: str, candidate: Record, other: str) -> bool:
    epochs = reference.logs.keys() & candidate.logs.keys()
    pairs = [(reference.logs[epoch].get(name), candidate.logs[epoch].get(other)) for epoch in epochs]
    return bool(pairs) and all(
        (gap := absolute_gap(a, b)) is not None
        and (gap == 0 or gap <= WITHIN_BATCH * float(np.finfo(np.float32).eps) * abs(a or 0.0))
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


def max_weight_gap(reference: Record, candidate: Record, since: int) -> float | None:
    """The largest absolute difference of any weight at the end of an epoch since this one; None if it is unknown.

    The ends of epochs before the first difference say nothing of it.
    """
    return largest_gap(
        pair
        for epoch in sorted(reference.logs.keys() & candidate.logs.keys())
        if epoch >= since
        for pair in zip(reference.weights(epoch) or (), candidate.weights(epoch) or (), strict=False)
    )


def largest_gap(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """The largest absolute difference of two arrays, of any pair; None if there is none, or it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = [np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0) for a, b in pairs]
    largest = float(np.max(gaps)) if gaps else math.nan  # max() may leave out a NaN
    return largest if math.isfinite(largest) else None


def has_steps(keys: np.ndarray) -> bool:
    """Whether any optimizer step was fingerprinted."""
    return bool((places_of(keys)[1] > INITIAL).any())


def last_steps(keys: np.ndarray) -> dict[int, int]:
    """By epoch, the last step that was fingerprinted."""
    epochs, steps = places_of(keys[places_of(keys)[1] != EPOCH_END])
    last = np.diff(epochs, append=-1) != 0
    return dict(zip(epochs[last].tolist(), steps[last].tolist(), strict=True))


def _lacking(keys: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The places of ``other`` that ``keys`` lacks: steps that were not made.

    Left out are steps and epochs between two of its own, made in one call, and the initial weights: whatever was not
    recorded is no difference.
    """
    lacking = np.setdiff1d(other, keys, assume_unique=True)
    epochs, steps = places_of(lacking)
    there = places_of(keys)[0]
    between = (epochs < there.max(initial=0)) & ~np.isin(epochs, there[places_of(keys)[1] != INITIAL])
    last = last_steps(keys)
    until = np.array([last.get(epoch, INITIAL) for epoch in epochs.tolist()], np.int32)
    return np.asarray(lacking[(steps != INITIAL) & ~between & ~((steps > INITIAL) & (steps < until))])


def since(before: Place, place: Place) -> int | None:
    """The first step after ``before``, the last place with equal weights; None if that step is ``place`` itself."""
    epoch, step = place
    first = before[1] + 1 if before[0] == epoch and before[1] > INITIAL else 1
    return first if step > first else None


def _difference(place: Place) -> Difference:
    epoch, step = place
    return Difference(epoch, None if step == EPOCH_END else step)


def _differing(reference: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Which variables differ, by place, and are finite on one side at least: bool ``[places, variables]``."""
    finite = [np.isfinite(rows["projections"]).all(axis=2) for rows in (reference, candidate)]
    return np.asarray(unequal(reference["hashes"], candidate["hashes"]) & (finite[0] | finite[1]))


def unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which variables differ in their bits, bool ``[places, variables]``, from ``[…, replicas]`` hashes.

    If both sides have the same number of replicas, each copy is compared with the copy on the same
    replica. If one side has a single replica, all copies of the other must equal it.
    """
    if a.shape != b.shape:
        a, b = a[..., :, np.newaxis], b[..., np.newaxis, :]
    return np.asarray((a != b).any(axis=tuple(range(2, a.ndim))))


def within_rounding(reference: Record, candidate: Record) -> bool:
    """Whether the metrics that both report differ by no more than the rounding error of float32 sums.

    The relative error of a sum of n numbers of one sign, in any order, is at most (n - 1) units of
    rounding (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2). Here n is
    the number of batches plus ``WITHIN_BATCH`` for the mean of one batch.
    """
    return reference.logs.keys() == candidate.logs.keys() and not beyond_rounding(reference, candidate)


def told_from_rounding(reporting: Reporting, reference: Record, candidate: Record) -> Reporting:
    """The same, with the metrics marked that differ by rounding only, beside some that differ by more."""
    beyond = beyond_rounding(reference, candidate)
    marked = {
        name: replace(gap, only_rounding=bool(beyond and gap.max_gap and name not in beyond))
        for name, gap in reporting.metrics.items()
    }
    return replace(reporting, metrics=marked)


def beyond_rounding(reference: Record, candidate: Record) -> set[str]:
    """The reference's names of the metrics that differ by more than ``within_rounding`` allows in some epoch."""
    beyond: set[str] = set()
    places = [Counter(places_of(record.keys)[0].tolist()) for record in (reference, candidate)]
    for epoch, name, expected, actual in reported_by_both(reference, candidate):
        terms, gap = max(of[epoch] for of in places), absolute_gap(expected, actual)
        bound = (terms + WITHIN_BATCH) * float(np.finfo(np.float32).eps)
        if gap is None or gap > bound * max(abs(expected), abs(actual)):
            beyond.add(name)
    return beyond


# The steps of two records in pairs


def paired_steps(reference: Record, candidate: Record) -> tuple[Record, Record]:
    """Both records without the idle steps of the one that reports more, under the reference's numbers.

    ``fit`` reports a step for every batch, also if its optimizer accumulates the gradients of several; a loop that
    accumulates by hand reports one when it updates the weights. Both trained the same if the weights are the same
    after each update. Records are returned as they are unless that makes their numbers of steps equal in every epoch;
    where gradients are accumulated, epochs in which it does not are compared by their ends.
    """
    epochs = sorted(reference.logs.keys() & candidate.logs.keys())
    sides = reference, candidate
    steps = [[_steps(record, epoch) for epoch in epochs] for record in sides]
    counts = [[len(keys) for keys in own] for own in steps]
    more = int(sum(counts[1]) > sum(counts[0]))
    wanted = counts[1 - more]
    if counts[0] == counts[1] or not all(counts[more]) or not any(wanted):
        return reference, candidate
    places = zip(epochs, steps[more], wanted, strict=True)
    steps[more] = [_updates(sides[more], epoch, keys, count) for epoch, keys, count in places]
    alike = [len(keys) == count for keys, count in zip(steps[more], wanted, strict=True)]
    if not all(alike) and not (any(alike) and rests(sides[more])):
        return reference, candidate
    kept = [[keys if each else keys[:0] for keys, each in zip(own, alike, strict=True)] for own in steps]
    ours, theirs = map(np.concatenate, kept)
    return _with_steps(reference, ours, ours), _with_steps(candidate, theirs, ours)


def rests(record: Record) -> bool:
    """Whether some steps of the first epoch leave as they are the weights that all others change, all at once.

    So it is where the gradients of several batches are accumulated.
    """
    keys = _steps(record, 1)
    start = in_time((1, INITIAL))
    if not len(keys) or not record.has(np.array([start]))[0]:
        return False
    changed = _changed(record, start, keys)
    some = changed[:, changed.any(axis=0) & ~changed.all(axis=0)]
    return not changed.any() or (some.size > 0 and bool((some.all(axis=1) | ~some.any(axis=1)).all()))


def _steps(record: Record, epoch: int) -> np.ndarray:
    """The places of an epoch's steps as sort keys; none if some steps were made in one call."""
    epochs, steps = places_of(record.keys)
    own = (epochs == epoch) & (steps > INITIAL)
    whole = own.any() and steps[own].max() == own.sum()
    return record.keys[own] if whole else record.keys[:0]


def _updates(record: Record, epoch: int, keys: np.ndarray, wanted: int) -> np.ndarray:
    """The steps of an epoch that update weights, if there are as many as ``wanted``; else all.

    What an update changes stays the same in all other steps; moving averages of a batch may change in these, too.
    """
    starts = np.array([in_time((epoch, INITIAL)), in_time((epoch - 1, EPOCH_END))])
    starts = starts[record.has(starts)]
    if not len(starts) or len(keys) <= wanted:
        return keys
    changed = _changed(record, starts[0], keys)
    updated = (~changed).sum(axis=0) >= len(keys) - wanted
    updates = changed[:, updated].any(axis=1)
    return keys[updates] if updates.sum() == wanted else keys


def _changed(record: Record, start: int, keys: np.ndarray) -> np.ndarray:
    """Whether each step changes each variable on any replica, bool ``[steps, variables]``; places are sort keys."""
    hashes = record.at(np.append(start, keys))["hashes"]
    return np.asarray((hashes[1:] != hashes[:-1]).any(axis=2))


def _with_steps(record: Record, keys: np.ndarray, numbers: np.ndarray) -> Record:
    """A record with these steps only, under other numbers."""
    steps = record.at(keys).copy()
    steps["epoch"], steps["step"] = places_of(numbers)
    others = record.steps[record.steps["step"] <= INITIAL]
    return replace(record, steps=np.concatenate([others, steps]))
