"""Whole steps: do right gradients and the experiment's optimizer lead to the weights that were seen?

What arrives at the right weights is right, however it got there: whoever clipped, in however many calls. How far
rounding goes is measured for each variable by itself, by the same steps from weights that are moved by one unit in
the last place: of a bias in front of a batch normalization, whose gradient is rounding and nothing else, Adam makes
steps of full size, which are right all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from compare.check.observation import Applied, State
from compare.check.optimizer_replay import Handed, simulate
from compare.check.recipe import EPSILON, Place, Recipe, Update

if TYPE_CHECKING:
    from compare.check.case import Case

ROUNDING = 32.0
"""How many times the measured noise floor still counts as rounding.

By ``scripts/detector.py`` (its page, reports/detector/README.md, has the figures of the last run): in a
first 530 checks of five models, five optimizers and 1, 2 and 4 replicas, what a right explanation left was
up to 3.7 floors, and what the best of all others left 1,130 or more. 64 would be half way between.
"""

UNEVEN = 1.37
"""A factor that is no power of two, so that all that it multiplies is rounded anew."""
NUDGES = 3
"""How many other sides of rounding are tried at first."""
MORE_NUDGES = 8
"""And in all, where a few steps are off by little: rounding may decide on which side of a ReLU's bend a value lies."""


@dataclass(frozen=True)
class Stretch:
    """Some steps, mostly one, of which the weights before and after were seen.

    Attributes:
        epoch: the epoch, from 1.
        before: all variables before.
        places: the batch of each step.
        after: all variables after.
        state: all variables after the last forward pass.
        step: the optimizer's step, where it is one that was seen.
    """

    epoch: int
    before: State
    places: tuple[Place, ...]
    after: State
    state: State
    step: Applied | None = None


@dataclass(frozen=True)
class Whole:
    """How far the weights seen are from those of the right steps.

    Attributes:
        names: the variables' names.
        trainable: how many of them, the first, are trained.
        gaps: float64 ``[stretches, variables]``, Euclidean norms, the largest of any replica.
        noise: float64 ``[stretches, variables]``, what rounding makes of it.
        moved: float64 ``[stretches, variables]``, how far the right step goes.
    """

    names: Sequence[str]
    trainable: int
    gaps: np.ndarray
    noise: np.ndarray
    moved: np.ndarray

    @property
    def rounding(self) -> np.ndarray:
        """float64 ``[stretches, variables]``: each variable's most in any step: one may happen to be small."""
        return np.asarray(np.maximum(self.noise, np.max(self.noise, axis=0, keepdims=True, initial=0.0)))

    @cached_property
    def ratios(self) -> np.ndarray:
        """float64 ``[stretches, variables]``: gaps in units of the noise; infinite for what is not finite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(self.gaps > 0, self.gaps / self.rounding, 0.0)
        return np.nan_to_num(ratios, nan=np.inf, posinf=np.inf)

    @property
    def right(self) -> bool:
        """Whether nothing but rounding separates them."""
        return bool((self.ratios <= ROUNDING).all())

    @property
    def trains_right(self) -> bool:
        """The same of the trained variables alone."""
        return bool((self.ratios[:, : self.trainable] <= ROUNDING).all())

    @property
    def off(self) -> list[int]:
        """The stretches that are off, by index."""
        return [int(i) for i in np.flatnonzero((self.ratios > ROUNDING).any(axis=1))]

    def worst(self, i: int) -> tuple[str, float]:
        """Of a stretch, the variable that is farthest off, and by how much of its own change."""
        k = int(np.argmax(self.ratios[i]))
        return self.names[k], float(self.relative[i, k])

    @property
    def relative(self) -> np.ndarray:
        """float64 ``[stretches, variables]``: gaps relative to the right change, or to the noise where that is more."""
        scale = np.maximum(self.moved, self.noise)
        return np.asarray(np.divide(self.gaps, scale, out=np.zeros_like(self.gaps), where=scale > 0))

    def few(self, kink: float) -> bool:
        """Whether only a few are off, by little, as it is where rounding crosses a bend."""
        off = self.ratios > ROUNDING
        return len(self.off) <= len(self.gaps) // 3 and bool((self.relative[off] <= kink).all())


def stretches(case: Case) -> list[Stretch] | None:
    """From step to step, or from epoch to epoch where nothing was told in between; None if the numbers do not fit."""
    seen = case.seen
    if case.aligned is not None and case.steps and not seen.foreign:
        if any(step.after is None for step in case.steps):
            return None
        return [
            Stretch(step.epoch, step.before, (place,), step.after or step.state, step.state, step)
            for step, place in zip(case.steps, case.aligned, strict=True)
        ]
    if tuple(seen.ended) != case.epochs:
        return None
    if seen.steps:
        if len(seen.steps) != len(case.expected):
            return None
        states, groups = [seen.initial, *seen.steps], [(place,) for place in case.expected]
    else:
        states = [seen.initial, *seen.ended.values()]
        groups = [tuple(case.replay.places[epoch]) for epoch in case.epochs]  # type: ignore[misc]
    pairs = zip(itertools.pairwise(states), groups, strict=True)
    return [Stretch(group[0].epoch, a, group, b, b) for (a, b), group in pairs]


def judge(case: Case, recipe: Recipe, update: Update, kink: float, like: Whole | None = None) -> Whole | None:
    """Hold the weights seen against those of the right steps; None where they cannot be paired.

    Args:
        case: what was seen.
        recipe: how gradients come about.
        update: how weights come from gradients.
        kink: up to which relative gap a few steps may be thought to be at a bend.
        like: the same of the reference, whose noise is measured already: more of it is only where that is exceeded.

    Raises:
        Exception: whatever the model or the optimizer raises when it is asked to make the steps again.
    """
    known = stretches(case)
    if not known:
        return None
    exact = list(walk(case, known, recipe, update))
    seen = [_joined(each.after, each.state, case.replay.trainable) for each in known]
    before = [_joined(each.before, each.before, case.replay.trainable) for each in known]
    gaps, moved = _norms(seen, exact), _norms(exact, before)
    floor = 4 * EPSILON * _norms(before, None) + EPSILON * moved
    whole = Whole(case.seen.names, case.replay.trainable, gaps, floor, moved)
    if like is not None and like.noise.shape == floor.shape:
        whole = replace(whole, noise=np.fmax(floor, like.noise))
        if whole.right:
            return whole
    for variant, nudge in _variants(case, recipe):
        if nudge > 1 and (whole.right or not case.few_gradients(recipe)):
            break
        if nudge > NUDGES and not whole.few(kink):
            break
        noisy = list(walk(case, known, variant, update, nudge))
        whole = replace(whole, noise=np.fmax(whole.noise, _norms(noisy, exact)))
    return whole


def _variants(case: Case, recipe: Recipe) -> Iterator[tuple[Recipe, int]]:
    """Ways to compute the same that round in another way."""
    yield recipe, 1
    yield replace(recipe, scale=UNEVEN), 0  # backwards: in half precision only that rounds anew
    if case.seen.compiled:
        yield replace(recipe, xla=True), 0
    for nudge in range(2, MORE_NUDGES + 1):
        yield recipe, nudge


Weights = list[list[np.ndarray]]
"""``[variable][replica]``, float64 if it is a floating type."""


def walk(case: Case, known: Sequence[Stretch], recipe: Recipe, update: Update, nudge: int = 0) -> Iterator[Weights]:
    """The variables after each stretch, its gradients recomputed on the way."""
    replay = case.replay
    if all(len(each.places) == 1 for each in known):
        steps = [_begun(case, each) for each in known]
        handed = [replay.given(step, each.places[0], recipe, nudge) for step, each in zip(steps, known, strict=True)]
        for step, each, after in zip(steps, known, simulate(replay, steps, update, handed), strict=True):
            forward = _forward(case, step, each.places[0], recipe, nudge)
            yield _joined([replay.split(flat) for flat in after], forward, replay.trainable)
        return
    made: list[Applied] = []
    given: list[Handed] = []
    for each in known:
        state = each.before
        for place in each.places:
            step = Applied(place.epoch, [], state, state)
            made.append(step)
            given.append(replay.given(step, place, recipe, nudge))
            # The optimizer lives through all steps so far: its slots remember them.
            after = simulate(replay, made, update, given)[-1]
            forward = _forward(case, step, place, recipe, nudge)
            state = [
                [part.astype(v.dtype) for part, v in zip(replay.split(flat), step.state[0], strict=False)]
                + forward[replica][replay.trainable :]
                for replica, flat in enumerate(after)
            ]
        yield _joined(state, state, replay.trainable)


def _begun(case: Case, stretch: Stretch) -> Applied:
    """A step as it ought to begin: from the weights before it, whatever was done to them before ``apply``."""
    step = stretch.step
    if step is not None:
        trained = [state[: case.replay.trainable] for state in (*step.before, *step.state)]
        half = len(trained) // 2
        if all(_same(a, b) for a, b in zip(trained[:half], trained[half:], strict=True)):
            return step
    return Applied(stretch.epoch, [], stretch.before, stretch.before)


def _same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    return all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in zip(ours, theirs, strict=True))


def _forward(case: Case, step: Applied, place: Place, recipe: Recipe, nudge: int) -> State:
    """All variables of each replica after the forward pass."""
    return [
        step.before[replica]
        if part.start == part.stop
        else case.replay.pieces(step, replica, part, recipe, nudge).state
        for replica, part in enumerate(case.replay.parts(place))
    ]


def _joined(trained: State, rest: State, trainable: int) -> Weights:
    each = [[*a[:trainable], *b[trainable:]] for a, b in zip(trained, rest, strict=True)]
    return [
        [np.asarray(v, np.float64) if v.dtype.kind == "f" else v for v in copies] for copies in zip(*each, strict=True)
    ]


def _norms(ours: Sequence[Weights], theirs: Sequence[Weights] | None) -> np.ndarray:
    """float64 ``[stretches, variables]``: the norm of the difference, of that replica where it is largest."""
    if theirs is None:
        return np.array([[max(_norm(a) for a in copies) for copies in weights] for weights in ours])
    return np.array(
        [
            [max(_distance(a, b) for a, b in zip(x, y, strict=True)) for x, y in zip(mine, yours, strict=True)]
            for mine, yours in zip(ours, theirs, strict=True)
        ]
    )


def _norm(a: np.ndarray) -> float:
    return float(np.linalg.norm(a)) if a.dtype.kind == "f" else 0.0


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Of counts and random states, which cannot be off by a little, 0 or infinity."""
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else np.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.linalg.norm(np.where(same, 0.0, a - b)))
