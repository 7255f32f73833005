"""A trainer whose gradients cannot be seen, judged by its weights alone: those after each step, or each epoch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from compare.check.case import ROUNDING, Case
from compare.check.causes import CATALOGUE
from compare.check.observe import Applied, Observation, State
from compare.check.replay import Place, Recipe, distance
from compare.check.report import NotApplicable
from compare.check.search import explain
from compare.check.update import EPSILON, Handed, Update, residuals, simulate

if TYPE_CHECKING:
    from compare.check.judge import Judgement


def why(seen: Observation) -> NotApplicable:
    """Why nothing is known of the gradients of a trainer whose optimizer was never seen."""
    reason = "calls no Keras optimizer's apply"
    if seen.compiled:
        reason = "applies its optimizer in a function compiled by XLA (jit_compile=True), where nothing can be recorded"
    return NotApplicable("gradient probe", f"{seen.name} {reason}: it is judged by its weights alone")


@dataclass(frozen=True)
class Stretch:
    """Some steps of which only the weights before and after were seen."""

    before: State
    places: tuple[Place, ...]
    after: State


def judge_by_weights(case: Case, judgement: Judgement, right: Update) -> None:
    """Walk from weights to weights with the right gradients; if that fails, with those of each simple mistake."""
    stretches = _stretches(case)
    if stretches is None:
        judgement.right = False
        if not judgement.causes:
            steps, batches = len(case.seen.steps), len(case.expected)
            judgement.evidence.append(f"end_step was called {steps} times, where the data set has {batches} batches")
        return
    walked = [Applied(0, [], each.before, each.before, 0.0, 0, -1, each.after) for each in stretches]

    def off(recipe: Recipe, update: Update) -> float:
        try:
            return max(residuals(case.replay, walked, _walk(case, stretches, recipe, update)), default=0.0)
        except (TypeError, ValueError, AttributeError):
            return float("inf")

    exact, noisy = (_walk(case, stretches, Recipe(), right, noise) for noise in (0.0, _noise(case)))
    begun = [
        np.stack([case.replay.flat(state[: case.replay.trainable]) for state in each.before]) for each in stretches
    ]
    moves = zip(begun, exact, noisy, strict=True)
    threshold = ROUNDING * max([EPSILON, *(_norm(c - b) / (_norm(b - a) or 1.0) for a, b, c in moves)])
    first, what = off(Recipe(), right), f"the weights after {len(stretches)} stretches of steps"
    if first <= threshold:
        judgement.fit("weights", first, threshold)
        return
    # A factor in a gradient may look like one in the learning rate: neither is named if both explain it.
    gradients = [(cause, partial(cause.gradient, case)) for cause in CATALOGUE.values() if cause.gradient]
    updates = [(cause, partial(cause.update, case)) for cause in CATALOGUE.values() if cause.update]
    by_gradient = explain(Recipe(), gradients, lambda recipe: off(recipe, right), threshold)
    by_update = explain(right, updates, lambda update: off(Recipe(), update), threshold)
    found = [*by_gradient.found, *by_update.found]
    judgement.fit("weights", first, threshold, by_gradient if by_gradient.found else by_update)
    if judgement.name(found, first, what) and by_gradient.found:
        judgement.recipe = found[0].recipe
    if not found:
        judgement.evidence.append(
            f"{what} are not what right gradients and the experiment's optimizer make: {first:.2g} of the change, "
            "relative, is unexplained"
        )


def _noise(case: Case) -> float:
    """How far rounding moves a gradient, relative: more where XLA orders its sums, which is measured too."""
    if not case.seen.compiled:
        return max(EPSILON, case.floor)
    step, place = Applied(1, [], case.seen.initial, case.seen.initial, 0.0, 0, -1), case.expected[0]
    plain, xla = (case.replay.handed(step, place, Recipe(xla=xla)) for xla in (False, True))
    return max(EPSILON, case.floor, distance(plain, xla))


def _stretches(case: Case) -> list[Stretch] | None:
    """From step to step, or from epoch to epoch where nothing was told in between; None if the numbers do not fit."""
    seen = case.seen
    if seen.foreign or tuple(seen.ended) != case.epochs:
        return None
    if seen.steps:
        if len(seen.steps) != len(case.expected):
            return None
        states, groups = [seen.initial, *seen.steps], [(place,) for place in case.expected]
    else:
        states = [seen.initial, *seen.ended.values()]
        groups = [tuple(case.replay.places[epoch]) for epoch in case.epochs]  # type: ignore[misc]
    return [Stretch(a, group, b) for (a, b), group in zip(itertools.pairwise(states), groups, strict=True)]


def _walk(
    case: Case, stretches: Sequence[Stretch], recipe: Recipe, update: Update, noise: float = 0.0
) -> list[np.ndarray]:
    """The weights after each stretch, float64 ``[replica, weights]``, its gradients recomputed on the way."""
    replay, generator = case.replay, np.random.default_rng(0)
    steps: list[Applied] = []
    handed: list[Handed] = []
    ends: list[np.ndarray] = []
    for stretch in stretches:
        state = stretch.before
        for place in stretch.places:
            step = Applied(place.epoch, [], state, state, 0.0, len(steps), -1)
            steps.append(step)
            flats = replay.handed(step, place, recipe)
            if noise:  # as in update.twin: what is exactly zero stays so
                sizes = [noise * np.sqrt(np.mean(np.square(flat))) * (flat != 0) for flat in flats]
                flats = [f + s * generator.normal(size=f.shape) for f, s in zip(flats, sizes, strict=True)]
            handed.append([list(each) for each in _states(case, np.stack(flats))])
            # The optimizer lives through all steps so far: its slots remember them.
            after = simulate(replay, steps, update, handed)[-1]
            state = _states(case, after)
            for replica, part in enumerate(replay.parts(place)):
                empty = part.start == part.stop
                forward = step.before[replica] if empty else replay.pieces(step, replica, part, recipe).state
                state[replica] += forward[replay.trainable :]
        ends.append(after)
    return ends


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array))


def _states(case: Case, weights: np.ndarray) -> State:
    """Trainable variables as they are observed, from float64 ``[replica, weights]``."""
    like = case.seen.initial[0]
    return [[part.astype(v.dtype) for part, v in zip(case.replay.split(each), like, strict=False)] for each in weights]
