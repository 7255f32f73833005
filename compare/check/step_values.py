"""One step of two trainings: what close-ups have of it, and how far apart that is; no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from compare.check.measurement import Measurement
from compare.check.recipe import EPSILON, distance, multiple
from compare.verdict.rounding import FACTOR
from compare.watch.epoch_ends import EpochEnds
from compare.watch.seen import CloseUp, Event
from compare.watch.trace import Trace

EXAMPLES, INPUTS, PREDICTIONS, LOSS, GRADIENTS, UPDATE, STATE = STAGES = (
    "examples", "inputs", "predictions", "loss", "gradients", "update", "state",
)  # fmt: skip
Kind = TypeVar("Kind")
Weights = Sequence[np.ndarray] | None


FEW_ROUNDINGS = 8 * EPSILON
"""A relative difference of a few roundings, which one noise twin may miss: gradients of correct loops differ from those
of fit by up to five units in the last place (see ``Checker``)."""


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
        right, other = self.both(partial(gradients_of, replica=replica))
        return right, other

    @property
    def losses(self) -> tuple[float, float] | None:
        return both_losses(*self.close_ups, self.step)

    @property
    def parts(self) -> list[int]:
        """In how many parts each side computes the step, the one that is held to be right first."""
        both = zip(self.both(calls_with_examples), self.traces, strict=True)
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


def calls_of(close_up: CloseUp, step: int) -> int | None:
    """How many times the optimizer is applied to the gradients of a step; None if no forward pass was seen."""

    def computes(number: int) -> bool:
        return any(event.kind in ("inputs", "loss") for event in close_up.steps[number])

    if step not in close_up.steps or not computes(step):
        return None
    following = step + 1
    while following in close_up.steps and not computes(following):
        following += 1
    return following - step


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


def gap_and_noise(a: Any, b: Any, twins: Sequence[Any]) -> tuple[float, float]:
    """How far two arrays are apart, and how far rounding puts them; both relative to the larger norm of the two.

    What is nearly zero on one side only, such as a sum of parts that cancel, is no scale for the other.
    """
    scale = float(np.linalg.norm(np.asarray(b, np.float64)))
    gaps = [gap for twin in twins if np.isfinite(gap := relative_gap(a, twin, scale))]
    return relative_gap(a, b), max(FACTOR * max(gaps, default=0.0), FEW_ROUNDINGS)


def model_events(close_up: CloseUp, step: int, kind: str, model: str = "") -> list[Event]:
    """The events of a model; by default of that which the step calls first, and others take what it gives."""
    events = close_up.of(step, kind)
    first = close_up.of(step, "inputs")[:1]
    name = model or (first[0].info["model"] if first else "")
    return [event for event in events if event.info.get("model", name) == name]


def calls_with_examples(close_up: CloseUp, step: int, model: str = "") -> list[Event]:
    """The calls of a model in a step that bring examples.

    Another one with the same, before a loss has used the first, is for a term of that loss, such as a derivative; one
    after an update of a part of the weights is for that of another part.
    """
    calls, losses = model_events(close_up, step, "inputs", model), Counter[int]()
    wanted = set(map(id, calls))
    first = dict[tuple[int, int, tuple[int, ...] | int], int]()
    for number, event in enumerate(close_up.steps.get(step, ())):
        losses[event.replica] += event.kind == "loss"
        if event.kind == "gradients":
            losses[event.replica] = 0
        if id(event) in wanted:
            first.setdefault((event.replica, losses[event.replica], tuple(event.rows) or number), id(event))
    kept = set(first.values())
    return [event for event in calls if id(event) in kept]


def predictions_as_labels(close_up: CloseUp, step: int) -> bool:
    """Whether a loss of a step is given the predictions as labels, and something else as predictions."""
    outputs = close_up.arrays(step, "predictions")

    def are_outputs(arrays: Sequence[np.ndarray]) -> bool:
        return len(arrays) == len(outputs) and all(map(np.array_equal, arrays, outputs))

    given = ((each.arrays, each.info["true"], each.info["predicted"]) for each in close_up.of(step, "targets"))
    return any(
        arrays and are_outputs(arrays[:true]) and not are_outputs(arrays[true : true + predicted])
        for arrays, true, predicted in given
    )


def example_rows(close_up: CloseUp, step: int) -> list[int]:
    """The hashes of the examples of a step, in order."""
    return [row for event in calls_with_examples(close_up, step) for row in event.rows]


def count_rows(arrays: Iterable[np.ndarray]) -> int:
    """How many rows arrays have together; a scalar, such as a loss beside a model's outputs, has none."""
    return sum(len(array) for array in arrays if array.ndim)


def all_rows(close_up: CloseUp) -> frozenset[int]:
    """The hashes of all examples that were seen."""
    return frozenset(row for step in close_up.steps for row in example_rows(close_up, step))


def rows_by_epoch(close_up: CloseUp) -> list[list[int]]:
    """The hashes of the examples of each epoch of a short check, in order."""
    epochs = (range(before + 1, end + 1) for before, end in pairwise((0, *close_up.ends)))
    return [[row for step in steps for row in example_rows(close_up, step)] for steps in epochs]


def loss_of(close_up: CloseUp, step: int) -> float | None:
    """The sum of all losses of a step whose gradient was taken: of replicas, micro-batches and examples."""
    events = close_up.of(step, "loss")
    if not events or not all(event.arrays for event in events):
        return None
    return float(
        sum(np.asarray(a, np.float64).sum() for event in events for a in event.arrays[: event.info["targets"]])
    )


def both_losses(reference: CloseUp, candidate: CloseUp, step: int) -> tuple[float, float] | None:
    """The losses of two sides in a step; None if one is not known.

    That of micro-batches is their sum or their mean, whichever is nearer: gradients may be divided afterwards.
    """
    a, b = loss_of(reference, step), loss_of(candidate, step)
    if a is None or b is None:
        return None
    one, other = (sum(event.replica == 0 for event in each.of(step, "loss")) for each in (reference, candidate))
    scales = (one / other, *((one, 1 / one) if one == other else ()))
    return a, min(b, *(scale * b for scale in scales), key=lambda value: abs(value - a))


def gradients_of(
    close_up: CloseUp, step: int, replica: int | None = None, kind: str = "gradients"
) -> dict[int, np.ndarray]:
    """The gradient of each variable, by its number: the sum over replicas, or of one, and over calls of optimizers."""
    total: dict[int, np.ndarray] = {}
    for event in close_up.of(step, kind):
        if replica is not None and event.replica != replica:
            continue
        arrays = event.arrays if kind == "sketch" else event.arrays[1:]
        for position, array in zip(event.info["positions"], arrays, strict=False):
            value = np.asarray(array, np.float64)
            total[position] = total[position] + value if position in total else value
    return total


def learning_rates_of(close_up: CloseUp, step: int) -> dict[int, float]:
    """The learning rate that the optimizer of each variable had in a step, by the variable's number."""
    events = [event for event in close_up.of(step, "gradients") if event.arrays]
    return {position: float(event.arrays[0]) for event in events for position in event.info["positions"]}


def changes_of(close_up: CloseUp, step: int) -> dict[int, np.ndarray]:
    """The change of each variable in a step."""
    before = close_up.after.get(step - 1) or weights_at_forward(close_up, step)
    after = weights_made(close_up, step)
    if before is None or after is None or shapes_of(before) != shapes_of(after):
        return {}
    pairs = zip(before, after, strict=True)
    return {i: np.asarray(new, np.float64) - np.asarray(old, np.float64) for i, (old, new) in enumerate(pairs)}


def shapes_of(weights: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(each) for each in weights)


def weights_updated(close_up: CloseUp, step: int) -> Weights:
    """The weights that the optimizer made in a step, of the first replica, before anything else changed them."""
    events = [event for event in close_up.of(step, "updated") if event.replica == 0]
    return events[-1].arrays if events and events[-1].arrays else None


def weights_made(close_up: CloseUp, step: int) -> Weights:
    """The same, or else those after the step: where a graph makes several, they are seen after the last only."""
    return weights_updated(close_up, step) or close_up.after.get(step)


def weights_at_forward(close_up: CloseUp, step: int) -> Weights:
    """The weights with which a step computed its first predictions, of the first replica."""
    events = model_events(close_up, step, "weights")
    return events[0].arrays if events and events[0].arrays else None
