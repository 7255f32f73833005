"""What the records of two runs say about each other; plain data in, plain data out, no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.noise import FACTOR, Noise, measure
from compare.records import EPOCH_END, INITIAL, Place, Record, in_time

if TYPE_CHECKING:
    from compare.study import Study

IDENTICAL = "identical"
ALIKE = "alike"
INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not-comparable"
DIFFERENT = "different"

FROM_BEST = (IDENTICAL, ALIKE, INCONCLUSIVE, NOT_COMPARABLE, DIFFERENT)
EXIT_STATUS = {IDENTICAL: 0, ALIKE: 0, DIFFERENT: 1, INCONCLUSIVE: 3, NOT_COMPARABLE: 3}


WITHIN_BATCH = 32
"""Roundings that one batch's mean may add to those of the sum over batches; sums over a batch are taken pairwise."""


def worst(verdicts: Sequence[str | None]) -> str:
    """The worst of several verdicts; None, "nothing could tell", does not count."""
    return max((v for v in verdicts if v is not None), key=FROM_BEST.index, default=INCONCLUSIVE)


@dataclass(frozen=True)
class Difference:
    """Where two runs part: the optimizer step (None: seen only when the epoch had ended).

    ``since`` is the first step that may have made the difference: another one where several steps are made in one
    call, and only the weights after the last of them can be seen.
    """

    epoch: int
    step: int | None
    since: int | None = None


@dataclass(frozen=True)
class Training:
    """Whether two runs computed the same weights.

    Attributes:
        verdict: the verdict on the weights alone.
        max_weight_gap: the largest absolute difference of any weight at the end of any epoch that
            both runs finished, in the weights' own unit; None when it is unknown or not a number.
        first_difference: the first optimizer step after which a weight differs.
        steps: after how many optimizer steps weights were compared, all of them.
        variables: the variables that differ at ``first_difference``, with an estimate of how far
            (the Euclidean norm of the difference).
        reason: why there is no verdict, or a difference that is not one of weights after the same
            step; else empty.
        noise: how the gap compares with what rounding does; None where that was not measured.
        made: how many steps were made where weights could be compared after some of them only; else 0.
    """

    verdict: str
    max_weight_gap: float | None
    first_difference: Difference | None
    steps: int
    variables: tuple[tuple[str, float | None], ...] = ()
    reason: str = ""
    noise: Noise | None = None
    made: int = 0


@dataclass(frozen=True)
class MetricGap:
    """The largest absolute difference of one reported metric, and the epoch it was reported for.

    ``max_gap`` is None where one side did not report the metric, or only one reported a number;
    ``lacking`` names the trainer that did not report it in some epoch, where it is not compared, and ``alias`` the
    name under which the candidate reported it.
    """

    max_gap: float | None
    epoch: int
    lacking: str = ""
    alias: str = ""

    @property
    def compared(self) -> bool:
        """Whether both reported it in some epoch."""
        return self.max_gap is not None or not self.lacking


@dataclass(frozen=True)
class Reporting:
    """Whether two runs reported the same numbers; the verdict is None where nothing could tell."""

    verdict: str | None
    metrics: dict[str, MetricGap]


@dataclass(frozen=True)
class Failure:
    """Why one side could not run at all: which trainer, what happened, what to use instead."""

    side: str
    error: str
    remedy: str


@dataclass(frozen=True)
class Comparison:
    """One candidate held against the reference; with ``against``, against its own recorded run.

    In a study of several seeds, ``seed`` is the one that training and reporting are told of.
    """

    candidate: str
    training: Training
    reporting: Reporting
    failure: Failure | None = None
    against: str = ""
    seed: int | None = None
    study: Study | None = None

    @property
    def verdict(self) -> str:
        return worst([self.training.verdict, self.reporting.verdict])


def compare_records(reference: Record, candidate: Record, against: str = "") -> Comparison:
    """Hold one record against another, bit for bit."""
    training = compare_training(reference, candidate)
    reporting = compare_reporting(reference, candidate, training)
    return Comparison(candidate.trainer, training, reporting, against=against)


def not_comparable(candidate: str, failure: Failure) -> Comparison:
    """A comparison that one side's failure left without anything to compare."""
    return Comparison(candidate, Training(NOT_COMPARABLE, None, None, 0), Reporting(None, {}), failure)


def asynchronous(comparison: Comparison) -> Comparison:
    """The same comparison where workers do not wait for each other: unequal weights prove nothing."""
    if comparison.training.verdict != DIFFERENT:
        return comparison
    reason = (
        "several workers updated the parameters without waiting for each other, so that no two runs are equal, of "
        "the same trainer or of two; one worker (--workers 1) can be compared exactly"
    )
    training = replace(comparison.training, verdict=INCONCLUSIVE, reason=reason)
    return replace(comparison, training=training)


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


def with_noise(
    comparison: Comparison,
    reference: Record,
    candidate: Record,
    twins: Sequence[Record],
    anchor: Record | None = None,
) -> Comparison:
    """The same comparison, a difference of weights held against noise twins (see ``compare.noise``).

    Args:
        comparison: of the two records, bit for bit.
        reference: one.
        candidate: the other.
        twins: of ``anchor``, with noise from ``noise_start`` on; without any nothing changes.
        anchor: the run that the twins are twins of; the reference by default.
    """
    start = noise_start(reference, candidate, comparison.training)
    if start is None or not twins:
        return comparison
    noise = measure(reference, candidate, twins, start, anchor)
    training = replace(comparison.training, noise=noise)
    if noise.explains:
        training = replace(training, verdict=ALIKE)
    elif not noise.reproduced:
        name = (anchor or reference).trainer
        reason = f"{name} does not give the same weights when it is run again, so that nothing can be held against it"
        training = replace(training, verdict=INCONCLUSIVE, reason=reason)
    elif noise.so_far:
        reason = "rounding explains the gap as far as noise twins were trained, which is not to the end"
        training = replace(training, verdict=INCONCLUSIVE, reason=reason)
    return replace(comparison, training=training)


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


def with_study(comparison: Comparison, study: Study, known_cause: bool) -> Comparison:
    """The same comparison where several seeds were trained, and their weights are not all equal.

    The seeds then decide whether both train alike, unless the cause of other weights is known.
    """
    training = comparison.training
    if training.verdict != IDENTICAL and not known_cause:
        training = replace(training, verdict=study.verdict)
    return replace(comparison, training=training, study=study)


def compare_training(reference: Record, candidate: Record) -> Training:
    """Compare all weights after every step that both runs took, and find the first that differ."""
    if not (moved(reference) or moved(candidate)):
        return Training(INCONCLUSIVE, None, None, 0, reason="neither side's training moved a single weight")
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return Training(DIFFERENT, None, Difference(1, 0), 0, reason="the models have different weights")
    ours, theirs = reference.by_place(), candidate.by_place()
    if not (_has_steps(ours) and _has_steps(theirs)):  # one side never says where its steps end
        ours, theirs = _epoch_ends(ours), _epoch_ends(theirs)
    steps = sum(step > INITIAL for _, step in ours.keys() & theirs.keys())
    ours_last, theirs_last = _last_steps(ours), _last_steps(theirs)
    made = sum(_last_steps(ours.keys() & theirs.keys()).values())
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
            parting = replace(_difference(place), since=_since(before, place))
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


def _has_steps(places: dict[Place, np.void]) -> bool:
    return any(step > INITIAL for _, step in places)


def _epoch_ends(places: dict[Place, np.void]) -> dict[Place, np.void]:
    return {place: row for place, row in places.items() if place[1] in (INITIAL, EPOCH_END)}


def _last_steps(places: Iterable[Place]) -> dict[int, int]:
    """By epoch, the last step that a side looked at."""
    return {epoch: step for epoch, step in sorted(places, key=in_time) if step != EPOCH_END}


def _since(before: Place, place: Place) -> int | None:
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


def as_json(reference: str, comparisons: Sequence[Comparison], **extra: Any) -> dict[str, Any]:
    """The content of ``verdict.json``."""
    return {
        "schema": 1,
        "verdict": worst([comparison.verdict for comparison in comparisons]),
        "reference": reference,
        **extra,
        "comparisons": [_comparison_json(comparison) for comparison in comparisons],
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    training, reporting = comparison.training, comparison.reporting
    first = training.first_difference
    return {
        "candidate": comparison.candidate,
        **({"against": comparison.against} if comparison.against else {}),
        "verdict": comparison.verdict,
        "training": {
            "verdict": training.verdict,
            "max_weight_gap": training.max_weight_gap,
            "first_difference": None if first is None else _difference_json(first),
            "steps_compared": training.steps,
            **({"steps_made": training.made} if training.made else {}),
            "differing_variables": [{"name": name, "gap": gap} for name, gap in training.variables],
            **({"reason": training.reason} if training.reason else {}),
            **({"noise": _noise_json(training.noise)} if training.noise else {}),
        },
        "reporting": {
            "verdict": reporting.verdict,
            "metrics": {
                name: {
                    "max_gap": gap.max_gap,
                    "epoch": gap.epoch,
                    **({"not_reported_by": gap.lacking} if gap.lacking else {}),
                    **({"reported_as": gap.alias} if gap.alias else {}),
                }
                for name, gap in reporting.metrics.items()
            },
        },
        **({"seed": comparison.seed, "study": comparison.study.as_json()} if comparison.study else {}),
        **({"failure": asdict(comparison.failure)} if comparison.failure else {}),
        "causes": [],
    }


def _difference_json(first: Difference) -> dict[str, int | None]:
    content = {"epoch": first.epoch, "step": first.step}
    return content if first.since is None else content | {"since_step": first.since}


def _noise_json(noise: Noise) -> dict[str, Any]:
    epoch, step = noise.at
    return {
        "twins": noise.twins,
        "factor": FACTOR,
        "largest_ratio": noise.ratio if math.isfinite(noise.ratio) else None,
        "variable": noise.variable,
        "epoch": epoch,
        "step": None if step == EPOCH_END else step,
    }
