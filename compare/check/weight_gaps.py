"""Compares the observed weights with those that right gradients and the experiment's optimizer lead to.

A trainer that arrives at the right weights is right, wherever it clips and however many calls it makes. Rounding is
measured for each variable separately, by repeating the steps from weights changed by one unit in the last place. For
example, the gradient of a bias in front of batch normalization consists of rounding errors only, but Adam turns them
into steps of full size; such a difference is no mistake.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from compare.check.observation import Observation, OptimizerStep, State
from compare.check.optimizer_replay import ReplicaGradients, simulate
from compare.check.recipe import EPSILON, Recipe, Span, Update
from compare.records import EPOCH_END, Place
from compare.verdict.rounding import Noise

ROUNDING = 32.0
"""Residuals up to this multiple of the measured noise floor count as rounding.

Measured by ``scripts/accuracy.py``; reports/detector/README.md has the figures of its last run. In the first 530 checks
of five models, five optimizers and 1, 2 and 4 replicas, right explanations left residuals of up to 3.7 floors, and the
best of all others 1,130 or more. The geometric mean of the two is about 64.
"""

RIGHT_LEAVES = 4.0
"""What right explanations leave at most, in floors of noise."""

UNEVEN = 1.37
"""A factor that is not a power of two, so that multiplying by it changes the rounding."""
NUDGES = 3
"""The number of perturbations of the weights that are tried first."""
MORE_NUDGES = 8
"""The number tried in all if a few steps are slightly off: rounding may decide on which side of a kink a value lies."""


class Steps(Protocol):
    """The observed steps of a trainer, with the batches that they should have had: see ``Case``."""

    @property
    def observation(self) -> Observation: ...
    @property
    def reference(self) -> Observation: ...
    @property
    def replay(self) -> Any: ...
    @property
    def steps(self) -> list[OptimizerStep]: ...
    @property
    def aligned(self) -> tuple[Span, ...] | None: ...
    @property
    def expected(self) -> tuple[Span, ...]: ...
    @property
    def moved_by_reference(self) -> frozenset[int]: ...
    @property
    def epochs(self) -> tuple[int, ...]: ...
    def only_few_gradients_off(self, recipe: Recipe) -> bool: ...


@dataclass(frozen=True)
class Segment:
    """One or more consecutive steps between two states that were observed.

    Attributes:
        before: all variables before the first step.
        after: all variables after the last step.
        step: the optimizer step, if it was observed.
        start: the first step from the weights before it, even if they were changed before ``apply`` was called.
    """

    epoch: int
    before: State
    spans: tuple[Span, ...]
    after: State
    step: OptimizerStep | None = None
    start: OptimizerStep = field(init=False)

    def __post_init__(self) -> None:
        moved = self.step is None or self.step.moved_before(len(self.step.gradients[0]))
        start = OptimizerStep(self.epoch, [], self.before, self.before) if moved else self.step
        object.__setattr__(self, "start", start)


@dataclass(frozen=True)
class WeightGaps:
    """The differences between the observed weights and those of the right steps.

    Attributes:
        trainable: the number of trainable variables, which come first.
        gaps: float64 ``[segments, variables]``, the Euclidean norm of the difference, largest of any replica; infinite
            if a value is not finite on one side only.
        noise: float64 ``[segments, variables]``, the gap that rounding causes; 0 where that is not finite, which
            explains nothing.
        moved: float64 ``[segments, variables]``, the norm of the right change.
    """

    names: Sequence[str]
    trainable: int
    gaps: np.ndarray
    noise: np.ndarray
    moved: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "gaps", np.where(np.isfinite(self.gaps), self.gaps, np.inf))
        object.__setattr__(self, "noise", np.where(np.isfinite(self.noise), self.noise, 0.0))

    @property
    def noise_floor(self) -> np.ndarray:
        """float64 ``[segments, variables]``: the largest noise in any segment, since one may be small by chance."""
        return np.asarray(np.maximum(self.noise, np.max(self.noise, axis=0, keepdims=True, initial=0.0)))

    @cached_property
    def ratios(self) -> np.ndarray:
        """float64 ``[segments, variables]``: gaps in units of the noise floor."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.gaps > 0, self.gaps / self.noise_floor, 0.0)

    @property
    def all_match(self) -> bool:
        """Whether all variables match within rounding."""
        return bool((self.ratios <= ROUNDING).all())

    @property
    def trained_match(self) -> bool:
        """Whether the trainable variables match within rounding."""
        return bool((self.ratios[:, : self.trainable] <= ROUNDING).all())

    @property
    def failing(self) -> list[int]:
        """The indices of the segments in which a variable differs by more than rounding."""
        return [int(i) for i in np.flatnonzero((self.ratios > ROUNDING).any(axis=1))]

    def worst(self, i: int) -> tuple[str, float]:
        """Returns the variable of a segment that is farthest off, and its gap relative to its change."""
        k = int(np.argmax(self.ratios[i]))
        return self.names[k], float(self.relative[i, k])

    @property
    def relative(self) -> np.ndarray:
        """float64 ``[segments, variables]``: gaps relative to the right change or, if larger, the noise."""
        scale = np.fmax(self.moved, self.noise)
        unknown = np.where(np.isfinite(self.gaps), 0.0, np.inf)
        return np.asarray(np.divide(self.gaps, scale, out=unknown, where=np.isfinite(scale) & (scale > 0)))

    def only_few_off(self, kink: float) -> bool:
        """Whether only a few segments are off, each by at most ``kink``, as when rounding crosses a kink."""
        off = self.ratios > ROUNDING
        return len(self.failing) <= len(self.gaps) // 3 and bool((self.relative[off] <= kink).all())


def segments(case: Steps) -> list[Segment] | None:
    """Splits training at the observed states: after each step or, without those, after each epoch.

    Returns:
        The segments; None if the number of steps differs from that of batches, or states are missing.
    """
    observation = case.observation
    if case.aligned is not None and case.steps and not observation.foreign:
        if any(step.after is None for step in case.steps):
            return None
        return [
            Segment(step.epoch, step.before, (span,), _at_end(case, step), step)
            for step, span in zip(case.steps, case.aligned, strict=True)
        ]
    if tuple(observation.epoch_end_states) != case.epochs:
        return None
    if observation.step_states:
        if len(observation.step_states) != len(case.expected):
            return None
        states, groups = [observation.initial, *observation.step_states], [(span,) for span in case.expected]
    else:
        states = [observation.initial, *observation.epoch_end_states.values()]
        groups = [tuple(case.replay.spans[epoch]) for epoch in case.epochs]
    pairs = zip(itertools.pairwise(states), groups, strict=True)
    return [Segment(group[0].epoch, a, group, b) for (a, b), group in pairs]


def _at_end(case: Steps, step: OptimizerStep) -> State:
    """All variables at the end of a step, without what the reference changes as well after its update."""
    after = step.after or step.state
    usual = case.moved_by_reference
    if not usual:
        return after
    return [
        [b if k in usual else a for k, (a, b) in enumerate(zip(*copies, strict=True))]
        for copies in zip(after, step.state, strict=True)
    ]


def compare_weights(
    case: Steps, recipe: Recipe, update: Update, kink: float, reference: WeightGaps | None = None
) -> WeightGaps | None:
    """Compares the observed weights with those of the right steps.

    Args:
        kink: the largest relative gap that a kink may explain.
        reference: the gaps of the reference. Its noise is used first; more is measured only if it is exceeded.

    Returns:
        The gaps; None if steps cannot be paired with batches.

    Raises:
        Exception: whatever the model or the optimizer raises while the steps are recomputed.
    """
    known = segments(case)
    if not known:
        return None
    exact = list(replay_segments(case, known, recipe, update))
    observed = [by_variable(segment.after, segment.after, case.replay.trainable) for segment in known]
    before = [by_variable(segment.before, segment.before, case.replay.trainable) for segment in known]
    gaps, moved = norms(observed, exact), norms(exact, before)
    floor = 4 * EPSILON * norms(before, None) + EPSILON * moved
    weight_gaps = WeightGaps(case.observation.names, case.replay.trainable, gaps, floor, moved)
    if reference is not None and reference.noise.shape == floor.shape:
        weight_gaps = replace(weight_gaps, noise=np.fmax(floor, reference.noise))
        if weight_gaps.all_match:
            return weight_gaps
    for variant, nudge in _variants(case, recipe):
        if nudge > 1 and (weight_gaps.all_match or not case.only_few_gradients_off(recipe)):
            break
        if nudge > NUDGES and not weight_gaps.only_few_off(kink):
            break
        noisy = list(replay_segments(case, known, variant, update, nudge))
        weight_gaps = replace(weight_gaps, noise=np.fmax(weight_gaps.noise, norms(noisy, exact)))
    return weight_gaps


def drift(case: Steps, gaps: WeightGaps, start: Place) -> Noise:
    """Compares the weights and all state at the ends of epochs with the reference's, by the rounding of all steps.

    Steps that are right from the weights that they had lead as far as their rounding adds up. What changes the
    weights or the state besides is seen here, whatever it is. The gaps of the steps have the rounding of each.
    """
    epochs = np.array([segment.epoch for segment in segments(case) or ()])
    worst = Noise.of(0, 0.0, start, gaps.names[0])
    for epoch in case.epochs:
        states = [observed.epoch_end_states.get(epoch) for observed in (case.observation, case.reference)]
        if states[0] is None or states[1] is None:
            continue
        distances = norms(*([by_variable(state, state, gaps.trainable)] for state in states if state))[0]
        rounding = gaps.noise_floor[: len(epochs)][epochs <= epoch].sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            known = np.isfinite(distances) & np.isfinite(rounding)
            ratios = np.where(distances == 0, 0.0, np.where(known, distances / rounding, np.inf))
        k = int(ratios.argmax())
        if ratios[k] > worst.ratio:
            worst = Noise.of(0, float(ratios[k]), (epoch, EPOCH_END), gaps.names[k])
    return worst


def _variants(case: Steps, recipe: Recipe) -> Iterator[tuple[Recipe, int]]:
    """Equivalent computations that round differently, as pairs of recipe and nudge."""
    yield recipe, 1
    yield (
        replace(recipe, scale=UNEVEN),
        0,
    )  # for the backward pass: in half precision only this changes the rounding there
    if case.observation.compiled:
        yield replace(recipe, xla=True), 0
    for nudge in range(2, MORE_NUDGES + 1):
        yield recipe, nudge


Weights = list[list[np.ndarray]]
"""``[variable][replica]``, float64 if it is a floating type."""


def replay_segments(
    case: Steps, known: Sequence[Segment], recipe: Recipe, update: Update, nudge: int = 0
) -> Iterator[Weights]:
    """Yields the variables after each segment, from recomputed gradients."""
    replay = case.replay
    if all(len(segment.spans) == 1 for segment in known):
        steps = [segment.start for segment in known]
        spans = [segment.spans[0] for segment in known]
        gradients = [replay.typed_gradients(step, span, recipe, nudge) for step, span in zip(steps, spans, strict=True)]
        for step, span, after in zip(steps, spans, simulate(replay, steps, update, gradients), strict=True):
            forward = _forward(case, step, span, recipe, nudge)
            yield by_variable([replay.unflatten(flat) for flat in after], forward, replay.trainable)
        return
    steps_so_far: list[OptimizerStep] = []
    gradients_so_far: list[ReplicaGradients] = []
    for segment in known:
        state = segment.before
        for span in segment.spans:
            step = OptimizerStep(span.epoch, [], state, state)
            steps_so_far.append(step)
            gradients_so_far.append(replay.typed_gradients(step, span, recipe, nudge))
            # All steps so far are repeated, since the optimizer's slots depend on them.
            after = simulate(replay, steps_so_far, update, gradients_so_far)[-1]
            forward = _forward(case, step, span, recipe, nudge)
            state = [
                [part.astype(v.dtype) for part, v in zip(replay.unflatten(flat), step.state[0], strict=False)]
                + forward[replica][replay.trainable :]
                for replica, flat in enumerate(after)
            ]
        yield by_variable(state, state, replay.trainable)


def _forward(case: Steps, step: OptimizerStep, span: Span, recipe: Recipe, nudge: int) -> State:
    """All variables of each replica after the forward pass."""
    return [
        step.before[replica]
        if part.start == part.stop
        else case.replay.replica_pass(step, replica, part, recipe, nudge).state
        for replica, part in enumerate(case.replay.parts(span))
    ]


def by_variable(trained: State, rest: State, trainable: int) -> Weights:
    """Combines trainable variables of one state with the others of another, ordered by variable."""
    replicas = [[*a[:trainable], *b[trainable:]] for a, b in zip(trained, rest, strict=True)]
    return [
        [np.asarray(v, np.float64) if v.dtype.kind == "f" else v for v in copies]
        for copies in zip(*replicas, strict=True)
    ]


def norms(weights: Sequence[Weights], others: Sequence[Weights] | None) -> np.ndarray:
    """float64 ``[segments, variables]``: the norms of the differences, or of ``weights``; largest of any replica."""
    if others is None:
        return np.array([[np.max([_norm(a) for a in copies]) for copies in variables] for variables in weights])
    return np.array(
        [
            [np.max([_distance(a, b) for a, b in zip(x, y, strict=True)]) for x, y in zip(one, other, strict=True)]
            for one, other in zip(weights, others, strict=True)
        ]
    )


def _norm(a: np.ndarray) -> float:
    return float(np.linalg.norm(a)) if a.dtype.kind == "f" else 0.0


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference; for integers, such as counts and random states, 0 if equal and infinity if not.

    NaN equals NaN, as infinity does; a value that is not finite on one side only makes it not finite.
    """
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else np.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(np.where(same, 0.0, a - b)))
