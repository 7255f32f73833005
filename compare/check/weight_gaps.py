"""Compares the observed weights with those that right gradients and the experiment's optimizer lead to.

A trainer that arrives at the right weights is right, wherever it clips and however many calls it makes. Rounding is
measured for each variable separately, by repeating the steps from weights changed by one unit in the last place. For
example, the gradient of a bias in front of batch normalization consists of rounding errors only, but Adam turns them
into steps of full size; such a difference is no mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from compare.check.observation import OptimizerStep, State
from compare.check.recipe import Span

ROUNDING = 32.0
"""Residuals up to this multiple of the measured noise floor count as rounding.

Measured by ``scripts/accuracy.py``; reports/detector/README.md has the figures of its last run. In the first 530 checks
of five models, five optimizers and 1, 2 and 4 replicas, right explanations left residuals of up to 3.7 floors, and the
best of all others 1,130 or more. The geometric mean of the two is about 64.
"""

RIGHT_LEAVES = 4.0
"""What right explanations leave at most, in floors of noise."""


MAX_KINK_RESIDUAL = 0.1
"""The largest relative residual of a step that may be explained by a kink, such as that of a ReLU at 0.

In the checks of ``scripts/accuracy.py`` no right recipe needed it. A wrong recipe was this close on a single step five
times, and perturbed weights brought it no closer; on most steps a wrong recipe is farther off.
"""


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
        return bool((self.ratios <= ROUNDING).all())

    @property
    def trained_match(self) -> bool:
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

    @property
    def only_few_off(self) -> bool:
        """Whether only a few segments are off, and only slightly, as when rounding crosses a kink."""
        off = self.ratios > ROUNDING
        return len(self.failing) <= len(self.gaps) // 3 and bool((self.relative[off] <= MAX_KINK_RESIDUAL).all())


Weights = list[list[np.ndarray]]
"""``[variable][replica]``, float64 if it is a floating type."""


def by_variable(state: State) -> Weights:
    """The variables of a state, ordered by variable."""
    return [
        [np.asarray(v, np.float64) if v.dtype.kind == "f" else v for v in copies] for copies in zip(*state, strict=True)
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
