"""Finds the first layer of a model whose output differs in a step, and what comes before it; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from compare.check.step_values import FEW_ROUNDINGS, Step, gap_and_noise, relative_gap
from compare.check.targets import log_probabilities
from compare.watch.seen import CloseUp, Event


def joined(events: Sequence[Event]) -> np.ndarray:
    parts = [array.astype(np.float64).ravel() for array in numbers_of(events)]
    return np.concatenate(parts) if parts else np.zeros(0)


def numbers_of(events: Sequence[Event]) -> list[np.ndarray]:
    arrays = [np.asarray(array) for event in events for array in event.arrays]
    return [array for array in arrays if array.dtype.kind not in "OSU"]


SQUASHING: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": lambda logits: np.exp(log_probabilities(logits, from_logits=True)),
    "sigmoid": lambda logits: 0.5 * (1 + np.tanh(0.5 * logits)),
}
"""Functions that make probabilities of logits in float64."""


class FirstApart(NamedTuple):
    """Where the outputs of layers begin to differ.

    Attributes:
        where: the first layer whose output differs; None if those of all agree, empty if that is unknown.
        before: the last layer whose output agrees, if need be but for an activation, for which a function may stand;
            None if the next one is given the same.
        after: the first whose output does not.
        alone: of each side, the layers between these two that only this side calls.
    """

    where: str | None
    before: Event | None = None
    after: tuple[Event, Event] | None = None
    alone: Sequence[Sequence[str]] = ((), ())


def first_layer_apart(at: Step, model: str = "", rounding: float = 0.0) -> FirstApart:
    """The first layer whose output differs, in the order of calls; by more than ``rounding``, where it is not measured.

    Those of one ``model``, if it has the same name on both sides. Of layers that one side alone has, nothing is known:
    functions may stand in their place.
    """
    counts = at.of(lambda each, step: len(each.of(step, "layer")))
    a, b, also = at.of(partial(_layers, model=model, whole=counts[0] != counts[1]))
    classes = [[one[0].info["class"] for one in each] for each in (a, b)]
    both = set(classes[0]) & set(classes[1])
    places = [[i for i, each in enumerate(one) if each in both] for one in classes]
    sides = at.reference, at.candidate
    without, last = "", (-1, -1)  # the layer that lacks its activation, and the last that does not differ otherwise
    for i, j in zip(*places, strict=False):
        one, other = a[i], b[j]
        if one[0].info["class"] != other[0].info["class"]:
            return FirstApart(without)
        gap, noise = gap_and_noise(joined(one), joined(other), [joined(each[i]) for each in also if i < len(each)])
        name = str(one[0].info["name"])
        if gap <= max(noise, rounding):
            without, last = "", (i, j)
            continue
        lacking, fed_otherwise = _without_activation(one, other), _fed_otherwise(at, one[0], other[0])
        called = None if lacking is None else (sides[lacking], at.number, (one, other)[lacking][0])
        if called is None or (given_to(*called) and fed_otherwise):
            alone = classes[0][last[0] + 1 : i], classes[1][last[1] + 1 : j]
            before = a[last[0]][0] if last[0] >= 0 and fed_otherwise else None
            return FirstApart(without or ("" if any(alone) else name), before, (one[0], other[0]), alone)
        without, last = "" if given_to(*called, after=True) else without or name, (i, j)
    return FirstApart(None if classes[0] == classes[1] != [] else "")


def _fed_otherwise(at: Step, one: Event, other: Event) -> bool:
    """Whether two calls of a layer are given other values, as far as that was seen."""
    fed = _beside(at.reference, at.number, one, -1), _beside(at.candidate, at.number, other, -1)
    a, b = (joined([each] if each else []) for each in fed)
    return None not in fed and relative_gap(a, b) > FEW_ROUNDINGS


def function_follows(close_ups: Sequence[CloseUp], step: int, layers: Sequence[str]) -> bool | None:
    """Whether a function follows a layer that lacks the activation of its namesake; None if neither lacks one."""
    seen = [[event for event in close_up.of(step, "layer") if event.info["name"] == layer]
            for close_up, layer in zip(close_ups, layers, strict=True)]  # fmt: skip
    lacking = _without_activation(*seen) if all(seen) else None
    return None if lacking is None else given_to(close_ups[lacking], step, seen[lacking][0], after=True) is not None


def given_to(close_up: CloseUp, step: int, called: Event, after: bool = False) -> Event | None:
    """What a function has made for a layer that is called, or for the one ``after`` it; None if none has."""
    beside = _beside(close_up, step, called, 1 if after else -1)
    return beside if beside and beside.kind == "given" else None


def _beside(close_up: CloseUp, step: int, called: Event, by: int) -> Event | None:
    """What comes before a layer's call (-1) or after it (1): what a function made for a layer, or a layer's output."""
    own = [each for each in close_up.steps[step] if each.replica == called.replica and each.kind in ("given", "layer")]
    place = next(i for i, each in enumerate(own) if each is called) + by
    return own[place] if 0 <= place < len(own) else None


def _without_activation(one: Sequence[Event], other: Sequence[Event]) -> int | None:
    """Which of two calls of a layer lacks its activation, which is all that the other's has more; None if neither."""
    arrays = [joined(one), joined(other)]
    for i, (a, b) in enumerate((arrays, arrays[::-1]) if arrays[0].shape == arrays[1].shape else ()):
        if any(relative_gap(function(a), b) <= FEW_ROUNDINGS for function in ACTIVATIONS):
            return i
    return None


ACTIVATIONS: Sequence[Callable[[np.ndarray], np.ndarray]] = (
    lambda values: np.maximum(values, 0),
    np.tanh,
    SQUASHING["sigmoid"],
    lambda values: values * SQUASHING["sigmoid"](values),
)
"""Functions of single values that layers have as their activation, in float64."""


def _layers(close_up: CloseUp, step: int, *, model: str, whole: bool) -> list[list[Event]]:
    """The calls of a model's layers in a step, in order; if asked for, each with all its micro-batches and replicas."""
    events, outputs = (
        [event for event in close_up.of(step, kind) if not model or event.info.get("model", model) == model]
        for kind in ("layer", "predictions")
    )
    each = len(events) // max(len(outputs), 1)
    calls = [events[i::each] for i in range(each)]
    same = sum(map(len, calls)) == len(events) and all(len({a.info["name"] for a in call}) == 1 for call in calls)
    return calls if whole and same else [[event] for event in events]
