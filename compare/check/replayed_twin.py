"""A noise twin that nobody trains: the reference's steps, moved as rounding moves them when they are recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.case import Case
from compare.check.optimizer_replay import replay_segments
from compare.check.recipe import EPSILON, Recipe
from compare.engine.noise_twins import half_dtypes
from compare.watch.seen import CloseUp, Event, sketch

Values = Sequence[np.ndarray]


def replayed_twin(case: Case, seen: CloseUp, begin: int) -> CloseUp | None:
    """What a noise twin of the reference would have shown; None if that cannot be recomputed.

    Each step is recomputed twice, from the weights that it had and from weights moved by one unit in the last place.
    The difference of the two is added to what was seen. In the weights it adds up from step to step, with such a unit.

    Args:
        case: the reference, whose steps the replay explains.
        seen: what was seen inside the reference's steps.
        begin: the first step whose noise goes into the weights, counted over the whole training.
    """
    replay, known = case.replay, case.segments
    if (
        half_dtypes(replay.model)
        or known is None
        or case.aligned is None
        or list(seen.steps) != list(range(1, len(known) + 1))
    ):
        return None  # weights in half precision do not notice a unit of float32
    places = {id(variable): i for i, variable in enumerate(replay.variables)}
    order = [places[id(variable)] for variable in replay.model.weights]
    noise: list[np.ndarray] = [np.zeros(())] * len(order)
    steps, after = {}, dict(seen.after)
    both = (replay_segments(case.replay, known, Recipe(), case.right_update, nudge) for nudge in (1, 0))
    for i, (number, moved, exact) in enumerate(zip(seen.steps, *both, strict=True)):
        if number >= begin:
            own = [moved[k][0] - exact[k][0] + EPSILON * np.abs(exact[k][0]) for k in order]
            noise = [before + now for before, now in zip(noise, own, strict=True)]
        if number in seen.after:
            after[number] = _moved(seen.after[number], noise)
        steps[number] = [_recomputed(case, order, i, noise, event) for event in seen.steps[number]]
    return replace(seen, steps=steps, after=after)


def _recomputed(case: Case, order: Sequence[int], i: int, noise: Values, event: Event) -> Event:
    """An event of step ``i`` as it would have been from moved weights; itself if that cannot be told."""
    assert case.aligned is not None
    replay, step, span = case.replay, case.steps[i], case.aligned[i]
    part = replay.parts(span)[event.replica]
    if event.kind in ("predictions", "loss") and part.start < part.stop:
        exact, moved = (replay.replica_pass(step, event.replica, part, Recipe(), nudge) for nudge in (0, 1))
        if event.kind == "predictions":
            pairs = zip(*(tf.nest.flatten(each.predictions) for each in (moved, exact)), strict=True)
            return replace(event, arrays=_moved(event.arrays, [_gap(a, b) for a, b in pairs]))
        means = [each.loss / (part.stop - part.start) + each.penalty for each in (moved, exact)]
        return replace(event, arrays=[array * (means[0] / (means[1] or 1.0)) for array in event.arrays])
    if event.kind in ("gradients", "sketch"):
        both = [replay.typed_gradients(step, span, Recipe(), nudge)[event.replica] for nudge in (1, 0)]
        gaps = [_gap(*(gradients[order[k]] for gradients in both)) for k in event.info["positions"]]
        if event.kind == "sketch":
            return replace(event, arrays=_moved(event.arrays, [sketch(gap) for gap in gaps]))
        return replace(event, arrays=[*event.arrays[:1], *_moved(event.arrays[1:], gaps)])
    return replace(event, arrays=_moved(event.arrays, noise)) if event.kind == "updated" else event


def _gap(moved: Any, exact: Any) -> np.ndarray:
    """The difference of two arrays, tensors or gradients; a missing one is zero."""
    return np.subtract(*(np.zeros(()) if each is None else np.asarray(each, np.float64) for each in (moved, exact)))


def _moved(arrays: Values, gaps: Values) -> list[np.ndarray]:
    """Arrays with what rounding adds; as they are where their shapes are others than those that are recomputed."""
    if len(arrays) != len(gaps) or any(np.shape(a) != np.shape(b) for a, b in zip(arrays, gaps, strict=True)):
        return list(arrays)
    return [np.asarray(a, np.float64) + b for a, b in zip(arrays, gaps, strict=True)]
