"""One step of two trainings: what close-ups have of it, and how far apart that is; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from compare.check.measurement import Measurement
from compare.check.recipe import EPSILON, Clip, distance, multiple
from compare.verdict.rounding import FACTOR
from compare.watch.epoch_ends import EpochEnds
from compare.watch.seen import CloseUp
from compare.watch.trace import Trace

EXAMPLES, INPUTS, PREDICTIONS, LOSS, GRADIENTS, UPDATE, STATE = STAGES = (
    "examples", "inputs", "predictions", "loss", "gradients", "update", "state",
)  # fmt: skip
Kind = TypeVar("Kind")


FEW_ROUNDINGS = 8 * EPSILON
"""A relative difference of a few roundings, which one noise twin may miss: gradients of correct loops differ from those
of fit by up to five units in the last place (see ``Checker``)."""
PARALLEL = 1e-4
"""The relative difference up to which gradients are the same but for a factor."""


@dataclass(frozen=True)
class Step:
    """One step of two sides and of noise twins of the reference."""

    reference: CloseUp
    candidate: CloseUp
    twins: Sequence[CloseUp]
    number: int
    variables: Sequence[str] = ()

    def of(self, seen: Callable[[CloseUp, int], Kind]) -> tuple[Kind, Kind, list[Kind]]:
        """What was seen of the reference, of the candidate and of the twins."""
        one, other, *twins = (seen(each, self.number) for each in (self.reference, self.candidate, *self.twins))
        return one, other, twins


@dataclass(frozen=True)
class Sides:
    """Two trainings, and what was seen of them around the step where they diverge.

    The first is held to be right: plain ``fit``, or else the reference.

    Attributes:
        traces: of their whole trainings.
        close_ups: of the steps around ``step``.
        step: the step, counted over the whole training.
        foreseen: whether ``right`` is what should have followed from the other side's own predictions.
    """

    names: tuple[str, str]
    traces: tuple[Trace, Trace]
    close_ups: tuple[CloseUp, CloseUp]
    step: int
    foreseen: bool = False

    @property
    def right(self) -> CloseUp:
        return self.close_ups[0]

    @property
    def other(self) -> CloseUp:
        return self.close_ups[1]

    @property
    def right_trace(self) -> Trace:
        return self.traces[0]

    @property
    def other_trace(self) -> Trace:
        return self.traces[1]

    @property
    def right_name(self) -> str:
        return self.names[0]

    @property
    def other_name(self) -> str:
        return self.names[1]

    @cached_property
    def variables(self) -> list[str]:
        """The names of the weights, of which both sides have the same, in the order of the side held to be right."""
        return [variable.name for variable in self.right_trace.variables]

    def turned(self) -> Sides:
        """The same with the other side held to be right."""
        names, traces, close_ups = self.names[::-1], self.traces[::-1], self.close_ups[::-1]
        return replace(self, names=names, traces=traces, close_ups=close_ups)

    def both(self, seen: Callable[[CloseUp, int], Kind]) -> tuple[Kind, Kind]:
        """What was seen in the step: of the side that is held to be right, and of the other."""
        return seen(self.right, self.step), seen(self.other, self.step)

    def named(self, seen: Measurement) -> Measurement:
        """A measurement that names both sides, first the one at fault; what it says of them itself counts."""
        return Measurement(seen.kind, {"side": self.other_name, "other": self.right_name, **seen.quantities})

    def gradients(self, replica: int | None = None) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """The gradients of the side that is held to be right, and those of the other."""
        right, other = self.both(partial(CloseUp.gradients, replica=replica))
        return right, other

    def have_factor(self, factor: float) -> bool:
        """Whether the gradients of the side at fault are the right ones times a factor."""
        right, other = self.gradients()
        return bool(right) and equal_gradients(other, right, factor)

    @property
    def factor_of_gradients(self) -> float:
        """The factor by which all gradients of the side at fault are the right ones; 0 if there is none."""
        right, other = self.gradients()
        factor = multiple([other[i] for i in right], list(right.values())) if right.keys() == other.keys() else None
        return factor if factor and abs(factor - 1) > PARALLEL and self.have_factor(factor) else 0.0

    def clip_alike(self, *, own: bool = False) -> bool:
        """Whether both sides have the same gradients once their optimizers have clipped them.

        With ``own``, whether both optimizers make the same of the gradients of the side at fault.
        """
        right, other = self.gradients()
        pairs = (other if own else right, self.right_trace), (other, self.other_trace)
        clips = (Clip.by_options(trace.config) for _, trace in pairs)
        a, b = (clip.of_variables(each) if clip else each for (each, _), clip in zip(pairs, clips, strict=True))
        return equal_gradients(a, b)

    def without_gradient(self) -> dict[int, str]:
        """The variables to which only the right side's optimizer applies a gradient that is not zero, with names."""
        right, other = self.gradients()
        lacking = [i for i in right if np.any(right[i]) and (i not in other or not np.any(other[i]))]
        names, variables = self.variables, self.right_trace.variables
        shown = [f"{each.name} {list(each.shape)}" if names.count(each.name) > 1 else each.name for each in variables]
        return {i: shown[i] for i in lacking} if other else {}

    @property
    def losses(self) -> tuple[float, float] | None:
        return both_losses(*self.close_ups, self.step)

    @property
    def parts(self) -> list[int]:
        """In how many parts each side computes the step, the one that is held to be right first."""
        both = zip(self.both(CloseUp.calls_with_examples), self.traces, strict=True)
        return [len(calls) // trace.replicas for calls, trace in both]

    @property
    def skipped_updates(self) -> tuple[int, int]:
        """How many updates a loss scale has left out until this step on each side, the one held to be right first."""
        right, other = (
            sum(event.info["skipped"] for step in range(1, self.step + 1) for event in each.of(step, "scaled"))
            for each in self.close_ups
        )
        return right // self.replicas, other // self.replicas

    @property
    def steps_of_epoch(self) -> list[int]:
        """The steps of the epoch in which the trainings diverge, as far as they were seen."""
        begin = self.step - self.epochs.place(self.step)[1] + 1
        end = next((end for end in self.epochs.ends if end >= self.step), max(self.right.steps, default=self.step))
        return [step for step in range(begin, end + 1) if step in self.right.steps or step in self.other.steps]

    @property
    def epochs(self) -> EpochEnds:
        return EpochEnds.of(*self.traces)

    @property
    def replicas(self) -> int:
        """The number of replicas; of two sizes, the larger one, where mistakes of scaling show."""
        return max(trace.replicas for trace in self.traces)


def other_calls(a: int | None, b: int | None) -> bool:
    """Whether one side is known to apply its optimizer more often to the gradients of a step."""
    return a is not None and b is not None and a != b


def relative_gap(a: Any, b: Any, min_scale: float = 0.0) -> float:
    """The Euclidean norm of the difference of two arrays, relative to the larger norm, or to a scale above both."""
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if a.shape != b.shape:
        return float("inf")
    return 0.0 if np.array_equal(a, b, equal_nan=True) else distance([a], [b], min_scale)


def parallel(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether one array is a multiple of the other, within what rounding may do to a small difference."""
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return bool(norms) and abs(float(np.vdot(a, b))) >= (1 - 1e-4) * norms


def common_multiple(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """The factor by which the first of each pair of parallel arrays is the second; 0 if they have no common one."""
    factors = [multiple([a], [b]) or 0.0 for a, b in pairs]
    return factors[0] if factors and np.ptp(factors) <= 0.01 * max(map(abs, factors)) else 0.0


def equal_gradients(a: Mapping[int, np.ndarray], b: Mapping[int, np.ndarray], factor: float = 1.0) -> bool:
    """Whether the gradients of all variables are others times a factor, but for rounding.

    Rounding may be all of some, as of the bias before a batch normalization: up to 3e-6 of the largest gradient.
    """
    norms = {i: float(np.linalg.norm(each)) for i, each in b.items()}
    least = 0.03 * max(norms.values(), default=0.0)
    return a.keys() == b.keys() and all(
        np.linalg.norm(a[i] - factor * b[i]) <= PARALLEL * abs(factor) * max(norms[i], least) for i in a
    )


def gap_and_noise(a: Any, b: Any, twins: Sequence[Any]) -> tuple[float, float]:
    """How far two arrays are apart, and how far rounding puts them; both relative to the larger norm of the two.

    What is nearly zero on one side only, such as a sum of parts that cancel, is no scale for the other.
    """
    scale = float(np.linalg.norm(np.asarray(b, np.float64)))
    gaps = [gap for twin in twins if np.isfinite(gap := relative_gap(a, twin, scale))]
    return relative_gap(a, b), max(FACTOR * max(gaps, default=0.0), FEW_ROUNDINGS)


def count_rows(arrays: Iterable[np.ndarray]) -> int:
    """How many rows arrays have together; a scalar, such as a loss beside a model's outputs, has none."""
    return sum(len(array) for array in arrays if array.ndim)


def both_losses(reference: CloseUp, candidate: CloseUp, step: int) -> tuple[float, float] | None:
    """The losses of two sides in a step; None if one is not known.

    That of micro-batches is their sum or their mean, whichever is nearer: gradients may be divided afterwards.
    """
    a, b = reference.loss(step), candidate.loss(step)
    if a is None or b is None:
        return None
    one, other = (sum(event.replica == 0 for event in each.of(step, "loss")) for each in (reference, candidate))
    scales = (one / other, *((one, 1 / one) if one == other else ()))
    return a, min(b, *(scale * b for scale in scales), key=lambda value: abs(value - a))
