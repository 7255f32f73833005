"""Pairs the numbers that a loop reports with those of fit, by what they measure; imports no TensorFlow."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from compare.watch.trace import Reported, Trace

OF_VALIDATION = ("val", "test", "eval", "dev")
"""What the name of a metric contains if it measures validation."""

OF_TRAINING = ("train",)
"""What it contains if it measures training."""

OF_WHOLE = (
    "val(id(ation)?)?|test(ing)?|eval(uation)?|dev|train(ing)?"
    "|loss|mean|average|avg|running|epoch|batch|step|total|tracker|metric|[^a-z]"
)
"""What else the name of a mean of the loss contains; anything more, as in ``dice_loss``, may be a part of it."""

OF_KERAS = r"(mean|sum)(_\d+)?"
"""A name that Keras gives to a metric without one, and that says nothing."""

NEAR = 0.01
"""The relative difference up to which a value says what a metric measures, whatever its name."""

SUMMED = 1e-5
"""The relative difference up to which a sum is a number, but for rounding."""

Logs = dict[int, tuple[dict[str, float], float]]
"""By epoch, the reported numbers and the wall time in seconds, NaN if it was not measured."""


def logs_by_epoch(trace: Trace, ends: Sequence[int], like: Trace) -> Logs:
    """The numbers that a training reported for each epoch: those of ``fit``, and what is given to ``compare.report``.

    Args:
        ends: the number of steps at the end of each epoch.
        like: the training whose names are used, with ``fit`` if there is one; a number is left out if it measures
            none of them.
    """
    logs: Logs = {number: ({}, math.nan) for number in range(1, len(ends) + 1)}
    logs |= _of_fit(trace, ends)
    names = {} if trace.epochs else names_by_metric(trace, ends, like)
    # What the script itself gives a name counts more than what a metric of that name says.
    for each in sorted(_of_two_uses(trace.reported, ends, like), key=lambda each: not each.kind):
        epoch = each.epoch or next((number for number, end in enumerate(ends, start=1) if each.steps <= end), 0)
        name = names.get(each.metric, "") if each.kind else each.name
        if name and epoch in logs:
            logs[epoch][0][name] = each.value
    return logs


def _of_fit(trace: Trace, ends: Sequence[int]) -> Logs:
    """The numbers of each epoch of ``fit``; of as many steps in other epochs, of those that have the same steps."""
    own = dict(enumerate(pairwise((0, *(epoch.steps for epoch in trace.epochs))), start=1))
    wanted = dict(enumerate(pairwise((0, *ends)), start=1))
    others = bool(own and wanted) and own[len(own)][1] == wanted[len(wanted)][1]
    logs = {number: (dict(epoch.logs), epoch.seconds) for number, epoch in enumerate(trace.epochs, start=1)}
    return {number: each for number, each in logs.items() if not others or own[number] == wanted.get(number)}


def line_of(trace: Trace, ends: Sequence[int], like: Trace, wanted: Sequence[str]) -> tuple[str, int, str] | None:
    """The first line of a script, as its file, number and text, that makes one of some numbers; None if unseen.

    That is the one that updates a metric, or else the one that reports it, as where it measures both parts.
    """
    names = names_by_metric(trace, ends, like)
    reported = (
        (each, names.get(each.metric) if each.kind else each.name) for each in _of_two_uses(trace.reported, ends, like)
    )
    lines = ((each.updated if each.metric >= 0 else None) or each.line for each, name in reported if name in wanted)
    return next(filter(None, lines), None)


def names_by_metric(trace: Trace, ends: Sequence[float], like: Trace) -> dict[int, str]:
    """The name under which each metric of a loop is compared, by the metric's number; the arguments are as above.

    A metric that is made anew in each epoch has the name of the one whose place it takes.
    """
    ends = ends or (math.inf,)
    reported = _of_two_uses(trace.reported, ends, like)
    names: dict[int, str] = {}
    before, known = 0.0, dict[tuple[str, str, int], str]()
    for end in ends:
        places = Counter[tuple[str, str]]()
        last = _last_of_epoch(reported, before, end)
        if not before:
            names = _paired(last, _wanted(like, ends))
        for each in last:
            place = (each.name, each.kind, places[each.name, each.kind])
            places[each.name, each.kind] += 1
            if not before:
                known[place] = names.get(each.metric, "")
            names.setdefault(each.metric, known.get(place, ""))
        before = end
    return names


def _of_two_uses(reported: Sequence[Reported], ends: Sequence[float], like: Trace) -> list[Reported]:
    """What was reported; what a metric of training gives for validation gets a number of its own.

    Such values are read after the last step of an epoch, when the same metric has already been read with another value.
    What it gives after it has begun anew once more is of neither, as of test data.
    """
    steadily = _updated_by_steps(reported, ends)
    reported = _of_epochs(reported, ends, known=len(ends) > 1 or [each.steps for each in like.epochs] == [*ends])
    at_end: dict[int, dict[float, list[Reported]]] = {}
    for each in reported:
        if each.kind and each.steps in ends:
            at_end.setdefault(each.metric, {}).setdefault(each.steps, []).append(each)
    kinds = [kind for _, kind in {(each.metric, each.kind) for each in reported}]
    twice = {
        number
        for number, reads in at_end.items()
        if len(reads) == len(ends)
        and all(read[0].value != read[-1].value for read in reads.values())
        and (number in steadily or kinds.count(reads[ends[0]][0].kind) == 1)
    }
    found, last = [], dict[tuple[int, float], tuple[Reported, int]]()
    for each in reported:
        place, use = (each.metric, each.steps), 0
        if each.kind and each.metric in twice and each.steps in ends:
            read, use = last.get(place, (each, 0))
            use += each.value != read.value and (not use or each.counted <= read.counted)
            last[place] = each, use
        if use < 2:
            again = replace(each, name=f"val_{each.name}", metric=-1 - each.metric, with_steps=False)
            found.append(again if use else each)
    return found


def _updated_by_steps(reported: Sequence[Reported], ends: Sequence[float]) -> set[int]:
    """The metrics that steps update: means of the loss, and those that count more with the steps of an epoch."""
    known = {each.metric for each in reported if each.of_loss or each.with_steps}
    return known | {after.metric for read, after in _within_epochs(reported, ends) if after.counted > read.counted}


def _of_epochs(reported: Sequence[Reported], ends: Sequence[float], *, known: bool) -> list[Reported]:
    """What was reported of whole epochs, whose ends may not be ``known`` of one alone.

    A metric that is read counts as it is read, and not also where it is updated by a call. Of several epochs, what it
    has said between their ends is of none, nor is what it says after the last more often than after those before, as
    when training is followed by an evaluation. A metric that begins to count anew within an epoch has others.
    """
    steadily = _updated_by_steps(reported, ends)
    anew = {
        after.metric
        for read, after in _within_epochs(reported, ends)
        if known and _begins_anew(read, after, of_training=after.metric in steadily)
    }
    reported = [each for each in reported if each.metric not in anew or not each.kind]
    read = {each.metric for each in reported if not each.updating}
    counts: dict[tuple[int, float], int] = Counter()
    kept = []
    for each in reported:
        if each.kind and each.updating and (each.metric in read or _nobody_takes(each)):
            continue
        if each.kind and len(ends) > 1:
            counts[each.metric, each.steps] += 1
            usual = max(counts[each.metric, end] for end in ends[:-1])
            if each.steps not in ends or (each.steps == ends[-1] and 0 < usual < counts[each.metric, each.steps]):
                continue
        kept.append(each)
    return kept


def _begins_anew(read: Reported, after: Reported, *, of_training: bool) -> bool:
    """Whether a metric was reset between two reads; one of training also if it has then counted as many values.

    One that has done so in a single step is of training, or of no epoch.
    """
    of_step = of_training or after.steps == read.steps + 1
    as_many = of_step and after.counted == read.counted > 0 and after.value != read.value
    return after.counted < read.counted or as_many


def _nobody_takes(called: Reported) -> bool:
    """Whether a call of a metric is a line by itself: what it gives goes nowhere."""
    return called.line is not None and re.fullmatch(r"[\w.\[\]'\"]+\([^()]*\)\s*(#.*)?", called.line[2]) is not None


def _within_epochs(reported: Sequence[Reported], ends: Sequence[float]) -> Iterator[tuple[Reported, Reported]]:
    """What each metric says, and what it says next, after further steps of the same epoch."""
    last, over = dict[int, Reported](), max(ends, default=0)
    for each in (each for each in reported if each.kind and each.steps <= over):  # what comes later is of no epoch
        read = last.get(each.metric, each)
        if read.steps < each.steps and not any(read.steps <= end < each.steps for end in ends):
            yield read, each
        last[each.metric] = each


def _last_of_epoch(reported: Sequence[Reported], before: float, end: float) -> list[Reported]:
    """What each metric reports last in an epoch, in the order of the metrics."""
    last = {each.metric: each for each in reported if each.kind and each.steps <= end and each.steps > (before or -1)}
    return [last[number] for number in sorted(last)]


def _wanted(like: Trace, ends: Sequence[float]) -> list[Reported]:
    """What ``fit`` reports in its first epoch; without fit, what a loop does, each name once."""
    if like.epochs:
        of_fit = like.epochs[0].logs.items()
        kinds = like.fit.get("metrics", {}).items()

        def kind_of(name: str) -> str:  # the numbers of an output begin with its name
            return next((kind for metric, kind in kinds if f"_{name}".endswith(f"_{metric}")), "")

        return [
            Reported(0, name, kind_of(name), value, with_steps=not name.startswith("val_")) for name, value in of_fit
        ]
    last = reversed(_last_of_epoch(_of_two_uses(like.reported, ends, like), 0, ends[0]))
    by_name = {each.name.lower(): each for each in last}
    return [replace(each, name=name) for name, each in by_name.items()]


def _paired(reported: Sequence[Reported], wanted: Sequence[Reported]) -> dict[int, str]:
    """The name under which each metric is compared, by what it measures, the best proof first.

    A mean whose name does not say what it is the mean of must be that of the loss whose gradient is taken, or needs a
    value near the one it is compared with, or is validation's of such a metric.
    """
    proofs: list[tuple[int, float, int, str]] = []
    bases = {each.name.removeprefix("val_"): each.kind for each in wanted}
    parts = {_part_of_loss(each.name) for each in reported if "loss" in each.name.lower()}
    losses = parts if len(parts) == 1 else {"", *(_part_of_loss(each.name) for each in reported if each.of_loss)}
    for each in reported:
        base, of_validation = _base(each, bases, losses), measures_validation(each)
        for other in wanted:
            said = other.name.removeprefix("val_") == base
            gap = abs(other.value - each.value) if math.isfinite(other.value - each.value) else math.inf
            near = gap <= NEAR * abs(other.value) and not _is_part(each, other, reported)
            apart = {of_validation, measures_validation(other)} == {True, False}
            if not apart and (said or (near and not base and each.kind == "Mean")):
                rank = 3 if not said else 0 if near else 1 if other.name == each.name else 2
                proofs.append((rank, gap, each.metric, other.name))
    names: dict[int, str] = {}
    for *_, metric, name in sorted(proofs):
        if metric not in names and name not in names.values():
            names[metric] = name
            if (again := f"val_{name}") in {each.name for each in wanted} and -1 - metric in {
                each.metric for each in reported
            }:
                names[-1 - metric] = again
    return names


def _is_part(mean: Reported, whole: Reported, reported: Sequence[Reported]) -> bool:
    """Whether a mean without a name and another one add up to a number: the parts of a loss are none by themselves."""
    others = [each.value for each in reported if each.metric != mean.metric and each.kind == mean.kind]
    near, *sums = (math.isclose(mean.value + each, whole.value, rel_tol=SUMMED) for each in (0.0, *others))
    return any(sums) and not near


def measures_validation(reported: Reported) -> bool | None:
    """Whether a number measures validation: when it is updated decides, or else its name, if that says so."""
    if reported.with_steps is not None:
        return not reported.with_steps
    said = [any(word in reported.name.lower() for word in words) for words in (OF_VALIDATION, OF_TRAINING)]
    return said[0] if any(said) else None


ABBREVIATED = {
    "mae": "mean_absolute_error",
    "mse": "mean_squared_error",
    "rmse": "root_mean_squared_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
}
"""Names of metrics that Keras knows in short, too."""


def _part_of_loss(name: str) -> str:
    """Which loss the name of a mean says that it is; empty if it is just called the loss."""
    return re.sub(OF_WHOLE, "", name.lower())


def _base(reported: Reported, wanted: Mapping[str, str], losses: Collection[str]) -> str:
    """The number of fit that the name of a metric, or its class, means; empty if they say nothing.

    Args:
        wanted: the classes of metrics, by the numbers of fit.
        losses: the parts of a loss by whose names the whole is meant, as by that of its only part.
    """
    name, by_name = reported.name.lower(), {each.lower(): each for each in wanted}
    if re.fullmatch(OF_KERAS, name):
        return "loss" if reported.of_loss else ""
    of_part = re.sub(f"^({'|'.join((*OF_VALIDATION, *OF_TRAINING))})_", "", name)
    if found := by_name.get(name, by_name.get(of_part)):
        return found
    if ("acc" in name or "Accuracy" in reported.kind) and (found := next((w for w in wanted if "acc" in w), "")):
        return found
    if "loss" in name and "loss" in wanted:
        return "loss" if _part_of_loss(name) in losses else ""
    if found := next((each for each in wanted if each in name), ""):
        return found
    words = re.sub("(?<!^)(?=[A-Z])", "_", reported.kind).lower()  # of the class, as Keras names its metrics
    if found := next((each for each in wanted if words in (each.lower(), ABBREVIATED.get(each.lower()))), ""):
        return found
    same = [each for each, kind in wanted.items() if kind == reported.kind]
    return same[0] if len(same) == 1 and reported.kind != "Mean" else ""
