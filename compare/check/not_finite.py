"""The cause ``not-finite``: a value of one side alone is NaN or infinite, and where in its step the first one appears.

The records know the step, or the reported number (``compare.verdict.not_finite``). The stage is seen in the events of
that step, in the order in which they happened. No TensorFlow here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.causes.not_finite import REMEDIES
from compare.check.measurement import Measurement
from compare.check.report import NOT_FINITE, REPORTING, TRAINING
from compare.check.stages import AFTER, BEFORE, LEARNING_RATE, Located
from compare.check.step_values import GRADIENTS, INPUTS, LOSS, PREDICTIONS, STATE, UPDATE
from compare.naming import some
from compare.records.model import Place
from compare.verdict.findings import Finding
from compare.verdict.model import Comparison, Verdict
from compare.verdict.not_finite import NotFinite
from compare.watch.seen import CloseUp, Event, Weights


@dataclass(frozen=True)
class FirstValue:
    """The first value in a step that is not finite on one side only.

    Attributes:
        where: the layer, the variables, or what of the inputs.
        value: the value in short, or how many of its elements are not finite.
        other: the other side's value at the same place; empty if it was not seen.
        step: the step, counted over the whole training.
    """

    stage: str
    where: str
    value: str
    other: str = ""
    step: int = 0


def first_of_steps(
    side: CloseUp, other: CloseUp | None, steps: Sequence[int], variables: Sequence[str], found: NotFinite
) -> FirstValue | None:
    """Finds the first value of some steps, counted over the whole training, that is not finite on one side only."""
    for step in steps:
        if first := first_value(side, other or CloseUp({}), step, variables):
            return replace(first, step=step)
    updated = side.of(steps[-1], "updated") if steps else []
    if found.step and updated and all(_finite(array) for event in updated for array in event.arrays):
        # All that the step computed is finite: something else has assigned these weights since.
        return FirstValue(STATE, f"{some(found.variables or ())}, {AFTER}", "NaN or infinite", step=steps[-1])
    return None


def first_value(side: CloseUp, other: CloseUp, step: int, variables: Sequence[str]) -> FirstValue | None:
    """Finds the first value of a step that is not finite on one side, and is on the other if that was seen."""
    if found := _of_weights(side.after.get(step - 1), other.after.get(step - 1), variables, BEFORE):
        return found
    seen = other.steps.get(step, ())
    for event in side.steps.get(step, ()):
        for name, array in _parts(event, variables):
            if _finite(array):
                continue
            thing = event.kind, event.replica, event.info.get("name")
            alike = [each for each in seen if (each.kind, each.replica, each.info.get("name")) == thing]
            matching = (_parts(each, variables) for each in alike)
            same = [each for parts in matching for key, each in parts if key == name]
            if same and not all(map(_finite, same)):
                continue  # both have it, such as an attention mask of minus infinity
            return FirstValue(*name, shown(array), shown(same[0]) if same else "")
    return _of_weights(side.after.get(step), other.after.get(step), variables, AFTER)


def _of_weights(weights: Weights, others: Weights, variables: Sequence[str], when: str) -> FirstValue | None:
    """Weights that something else than the optimizer has made not finite."""
    if weights is None:
        return None
    pairs = zip(weights, others or [np.zeros(0)] * len(weights), strict=False)
    off = [i for i, (one, two) in enumerate(pairs) if not _finite(one) and _finite(two)]
    if not off:
        return None
    where = f"{some([variables[i] for i in off])}, {when}"
    return FirstValue(STATE, where, shown(weights[off[0]]), shown(others[off[0]]) if others else "")


Name = tuple[str, str]
"""The stage of a value, and where in it."""


def _parts(event: Event, variables: Sequence[str]) -> list[tuple[Name, np.ndarray]]:
    """The values of an event by stage and place, in the order in which they come about."""
    stages = {"inputs": INPUTS, "layer": PREDICTIONS, "predictions": PREDICTIONS, "loss": LOSS}
    if event.kind in stages:
        return [((stages[event.kind], str(event.info.get("name", ""))), array) for array in event.arrays]
    if event.kind == "weights":
        return [((STATE, f"{name}, {BEFORE}"), array) for name, array in zip(variables, event.arrays, strict=False)]
    if event.kind == "targets":
        ends = np.cumsum([event.info["true"], event.info["predicted"], event.info["weights"]]).tolist()
        parts = np.split(np.arange(len(event.arrays)), ends)
        names = (INPUTS, "labels"), (PREDICTIONS, ""), (INPUTS, "sample weights"), (LOSS, "")
        order = (0, 2, 1, 3)
        return [(names[k], event.arrays[i]) for k in order for i in parts[k]]
    if event.kind == "gradients":
        positions = event.info["positions"]
        named = [variables[i] if i < len(variables) else f"variable {i}" for i in positions]
        values = [((GRADIENTS, name), array) for name, array in zip(named, event.arrays[1:], strict=False)]
        return [*values, *(((UPDATE, LEARNING_RATE), array) for array in event.arrays[:1])]
    if event.kind == "updated":
        return [((UPDATE, name), array) for name, array in zip(variables, event.arrays, strict=False)]
    return []


def _finite(array: np.ndarray) -> bool:
    array = np.asarray(array)
    return array.dtype.kind in "biuOSU" or bool(np.isfinite(array).all())


def shown(array: np.ndarray) -> str:
    """An array in short: its one value, how many of its values are not finite, or its range."""
    array = np.asarray(array)
    if array.size == 1:
        return f"{float(array.reshape(-1)[0]):.6g}"
    if array.dtype.kind in "biuOSU" or not array.size:
        return f"{array.size} values"
    values = array.astype(np.float64)
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if nan or infinite:
        counts = [f"{count:,} {name}" for count, name in ((nan, "NaN"), (infinite, "infinite")) if count]
        return f"{' and '.join(counts)} of {array.size:,} values"
    return f"{values.min():.4g} to {values.max():.4g}"


def findings(comparison: Comparison, reference: str, inside: FirstValue | None, of: str = "") -> list[Finding]:
    """The cause, once for weights and once for reported numbers, as far as one side alone is not finite.

    Args:
        inside: the first value of the weights' step; None if it was not seen.
        of: which training is meant, where it is not the whole one: " of the check", for example.
    """
    found = []
    if (weights := comparison.weights_alone) is not None:
        other = reference if weights.side == comparison.candidate else comparison.candidate
        found.append(_of_training(weights, other, inside, of))
    if (number := comparison.number_alone) is not None:
        of_reference, of_candidate = number.values or ("", "")
        values = {comparison.candidate: of_candidate, reference: of_reference}
        first = inside if comparison.lost_alone is number else None
        place = {"epoch": number.epoch, "step": None, "stage": first and first.stage, "where": number.metric}
        seen = Measurement.of("metric-not-finite", **place, metric=number.metric, values=values, training=of)
        if first is not None:
            seen = seen.but(first=first.where, value=first.value, training_step=first.step)
        # Nothing is divided by a count in a loss whose steps leave the weights finite.
        remedy = "" if number.metric in ("loss", "val_loss") else REMEDIES[REPORTING]
        found.append(replace(CATALOGUE[NOT_FINITE].found(number.side or "", seen, remedy=remedy), kind=REPORTING))
    return found


OF_WEIGHTS = [id for id, cause in CATALOGUE.items() if cause.kind == TRAINING and id != NOT_FINITE]
"""The causes of different weights: that they are not finite follows from one of these."""


def led(verdict: Verdict, inside: Mapping[str, FirstValue]) -> Verdict:
    """The verdict with this cause before all others, wherever one side alone is not finite.

    Args:
        inside: the first value that is not, by candidate, where it was seen.
    """
    comparisons = []
    for each in verdict.comparisons:
        first = None if each.against else inside.get(each.candidate)
        found = findings(each, each.reference or verdict.reference, first)
        others = [cause for cause in each.causes if cause.id != NOT_FINITE] if found else each.causes
        comparisons.append(replace(each, causes=(*found, *others)))
    return replace(verdict, comparisons=tuple(comparisons))


def of_step(
    names: tuple[str, str], sides: tuple[CloseUp, CloseUp], located: Located, place: Place, of: str = ""
) -> list[Finding]:
    """The cause, where what differs first in a step is not finite on one side, and the weights are on both.

    Args:
        of: which training is meant, as in ``findings``.
    """
    for side in (0, 1):
        first = first_value(sides[side], sides[1 - side], located.step, sides[0].names)
        if first is not None and first.stage == located.stage:
            found = NotFinite(names[side], *place, (), len(sides[0].names))
            return [_of_training(found, names[1 - side], first, of)]
    return []


def _of_training(found: NotFinite, other: str, inside: FirstValue | None, of: str) -> Finding:
    stage, where = (inside.stage, inside.where) if inside else ("", "")
    seen = Measurement.of("weights-not-finite", epoch=found.epoch, step=found.step, stage=stage or None, where=where)
    side = found.side or ""
    sides = {"side": side, "other": other, "variables": list(found.variables or ()), "of": found.of}
    value = {"value": inside.value, "other_value": inside.other, "training_step": inside.step} if inside else {}
    seen = seen.but(**sides, **value, training=of)
    return CATALOGUE[NOT_FINITE].found(side, seen, remedy=REMEDIES.get(stage, ""))
