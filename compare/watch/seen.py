"""What was seen inside steps, read back from a trace; imports no TensorFlow."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from compare.records.hashing import hash_of


@dataclass(frozen=True)
class Event:
    """One thing that was seen in a step, on one replica.

    Attributes:
        kind: ``inputs``, ``weights``, ``seeds`` (the state of layers' random numbers), ``layer``, ``predictions``,
            ``mask`` (of what counts in a loss), ``targets``, ``loss``, ``scaled`` (a LossScaleOptimizer may leave out
            the update), ``gradients``, ``sketch`` (of each gradient, a few numbers) or ``updated`` (the weights that
            the optimizer has made), in this order; several micro-batches in a step repeat it. ``drawn`` (random
            numbers) may be anywhere before ``gradients``.
        info: what is known without the values: names, flags, how many arrays of which kind; of ``inputs``, the
            ``operations`` that have made the data set that they come from: each a method's name, its number, and the
            line of the script that calls it.
        arrays: the values; outside the close-up of losses and sketches only.
        rows: a hash of each example, for ``inputs`` and ``targets``; for ``drawn``, of all numbers.
    """

    kind: str
    replica: int
    info: Mapping[str, Any]
    arrays: Sequence[np.ndarray]
    rows: Sequence[int] = ()


ENDLESS = sys.maxsize
"""The number of a data set's method that is given none, or -1."""


Weights = Sequence[np.ndarray] | None


@dataclass(frozen=True)
class CloseUp:
    """What was seen of one training.

    Attributes:
        steps: the events of each step, by its number over the whole training, from 1.
        after: the weights after a step, of the first replica.
        untaped: the losses that were computed without a gradient while a number of steps had been made, such as those
            of validation: the mean of each batch, or of a replica's part of it, and its number of examples.
        summed: the numbers that were summed over replicas.
        divided: where the script calls a loss that Keras divides by the number of replicas: "train", under a tape, or
            "validation"; each with the first such line, if it is known.
        penalties: the weights' regularization after a step.
        again: the steps after which the model was called once more with the examples of the step.
        applied: when each step's gradients were applied, counted over all trainings of the script.
        without_xla: whether the script asks for XLA, which was left out here.
        scale: by what its losses and gradients were multiplied to have those of the other side's scale.
        ends: in the short check, the number of steps made up to the end of each epoch.
    """

    steps: dict[int, list[Event]]
    after: dict[int, list[np.ndarray]] = field(default_factory=dict)
    names: Sequence[str] = ()
    untaped: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    summed: list[float] = field(default_factory=list)
    divided: Mapping[str, tuple[str, int, str] | None] = field(default_factory=dict)
    penalties: dict[int, float] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    applied: dict[int, int] = field(default_factory=dict)
    without_xla: bool = False
    scale: float = 1.0
    ends: Sequence[int] = ()

    def ordered(self, order: Sequence[int]) -> CloseUp:
        """The same with its weights in another order, or some only: for each, its number in the order of this one.

        Where some are of models that were not recorded, only the gradients are.
        """
        if not order:
            return self
        recorded = max(order) < len(self.names)

        def event(seen: Event) -> Event:
            if seen.kind in ("gradients", "sketch"):
                kept = [(order.index(p), i) for i, p in enumerate(seen.info["positions"]) if p in order]
                rate = len(seen.arrays) - len(seen.info["positions"])  # of gradients, the learning rate comes first
                arrays = [*seen.arrays[:rate], *(seen.arrays[rate + i] for _, i in kept if seen.arrays)]
                return replace(seen, info={**seen.info, "positions": [place for place, _ in kept]}, arrays=arrays)
            whole = recorded and seen.kind in ("weights", "updated") and len(seen.arrays) == len(self.names)
            return replace(seen, arrays=[seen.arrays[i] for i in order]) if whole else seen

        return replace(
            self,
            steps={
                step: [event(each) for each in events if recorded or each.kind != "updated"]
                for step, events in self.steps.items()
            },
            after={step: [weights[i] for i in order] for step, weights in self.after.items() if recorded},
            names=[self.names[i] for i in order if i < len(self.names)],
        )

    def without_untrained(self, other: CloseUp) -> CloseUp:
        """The same without models that a step calls but does not train, where the other side calls none of them there.

        The outputs of a target network may be computed under the tape or before it.
        """
        steps = {
            step: [each for each in events if each.info.get("model") not in names]
            if (names := self._untrained(step)) and not other._untrained(step)
            else events
            for step, events in self.steps.items()
        }
        return replace(self, steps=steps)

    def _untrained(self, step: int) -> set[str]:
        called, trained = ({each.info["model"] for each in self.of(step, kind)} for kind in ("inputs", "weights"))
        return called - trained if trained else set()

    def scaled(self, factor: float) -> CloseUp:
        """The same with its losses and gradients multiplied by a factor."""

        def event(seen: Event) -> Event:
            if seen.kind not in ("loss", "gradients", "sketch"):
                return seen
            rate = seen.kind == "gradients"  # the learning rate comes first
            return replace(seen, arrays=[*seen.arrays[:rate], *(factor * each for each in seen.arrays[rate:])])

        steps = {step: [event(each) for each in events] for step, events in self.steps.items()}
        return replace(self, steps=steps, scale=factor * self.scale)

    def of(self, step: int, kind: str) -> list[Event]:
        """The events of a kind in a step, ordered by replica."""
        events = [event for event in self.steps.get(step, ()) if event.kind == kind]
        return sorted(events, key=lambda event: event.replica)

    def arrays(self, step: int, kind: str) -> list[np.ndarray]:
        """All values of a kind in a step."""
        return [array for event in self.of(step, kind) for array in event.arrays]

    def rows(self, step: int, kind: str = "inputs") -> list[int]:
        """The hashes of all examples of a step."""
        return [row for event in self.of(step, kind) for row in event.rows]

    def model_events(self, step: int, kind: str, model: str = "") -> list[Event]:
        """The events of a model; by default of that which the step calls first, and others take what it gives."""
        events = self.of(step, kind)
        first = self.of(step, "inputs")[:1]
        name = model or (first[0].info["model"] if first else "")
        return [event for event in events if event.info.get("model", name) == name]

    def calls_with_examples(self, step: int, model: str = "") -> list[Event]:
        """The calls of a model in a step that bring examples.

        Another one with the same, before a loss has used the first, is for a term of that loss, such as a derivative;
        one after an update of a part of the weights is for that of another part.
        """
        calls, losses = self.model_events(step, "inputs", model), Counter[int]()
        wanted = set(map(id, calls))
        first = dict[tuple[int, int, tuple[int, ...] | int], int]()
        for number, event in enumerate(self.steps.get(step, ())):
            losses[event.replica] += event.kind == "loss"
            if event.kind == "gradients":
                losses[event.replica] = 0
            if id(event) in wanted:
                first.setdefault((event.replica, losses[event.replica], tuple(event.rows) or number), id(event))
        kept = set(first.values())
        return [event for event in calls if id(event) in kept]

    def example_rows(self, step: int) -> list[int]:
        """The hashes of the examples of a step, in order."""
        return [row for event in self.calls_with_examples(step) for row in event.rows]

    def all_rows(self) -> frozenset[int]:
        """The hashes of all examples that were seen."""
        return frozenset(row for step in self.steps for row in self.example_rows(step))

    def rows_by_epoch(self) -> list[list[int]]:
        """The hashes of the examples of each epoch of a short check, in order."""
        epochs = (range(before + 1, end + 1) for before, end in pairwise((0, *self.ends)))
        return [[row for step in steps for row in self.example_rows(step)] for steps in epochs]

    def predictions_as_labels(self, step: int) -> bool:
        """Whether a loss of a step is given the predictions as labels, and something else as predictions."""
        outputs = self.arrays(step, "predictions")

        def are_outputs(arrays: Sequence[np.ndarray]) -> bool:
            return len(arrays) == len(outputs) and all(map(np.array_equal, arrays, outputs))

        given = ((each.arrays, each.info["true"], each.info["predicted"]) for each in self.of(step, "targets"))
        return any(
            arrays and are_outputs(arrays[:true]) and not are_outputs(arrays[true : true + predicted])
            for arrays, true, predicted in given
        )

    def loss(self, step: int) -> float | None:
        """The sum of all losses of a step whose gradient was taken: of replicas, micro-batches and examples."""
        events = self.of(step, "loss")
        if not events or not all(event.arrays for event in events):
            return None
        return float(
            sum(np.asarray(a, np.float64).sum() for event in events for a in event.arrays[: event.info["targets"]])
        )

    def penalty(self, step: int) -> float:
        """The sum of the model's own losses in a step, the mean over replicas."""
        events = self.of(step, "loss")
        sums = [sum(float(np.sum(array)) for array in event.arrays[event.info["targets"] :]) for event in events]
        return float(np.mean(sums)) if sums else 0.0

    def gradients(self, step: int, replica: int | None = None, kind: str = "gradients") -> dict[int, np.ndarray]:
        """The gradient of each variable, by its number: the sum over replicas, or of one, and over optimizers' calls.

        Of the ``kind`` "sketch", the sketch of each.
        """
        total: dict[int, np.ndarray] = {}
        for event in self.of(step, kind):
            if replica is not None and event.replica != replica:
                continue
            arrays = event.arrays if kind == "sketch" else event.arrays[1:]
            for position, array in zip(event.info["positions"], arrays, strict=False):
                value = np.asarray(array, np.float64)
                total[position] = total[position] + value if position in total else value
        return total

    def learning_rates(self, step: int) -> dict[int, float]:
        """The learning rate that the optimizer of each variable had in a step, by the variable's number."""
        events = [event for event in self.of(step, "gradients") if event.arrays]
        return {position: float(event.arrays[0]) for event in events for position in event.info["positions"]}

    def calls(self, step: int) -> int | None:
        """How many times the optimizer is applied to the gradients of a step; None if no forward pass was seen."""

        def computes(number: int) -> bool:
            return any(event.kind in ("inputs", "loss") for event in self.steps[number])

        if step not in self.steps or not computes(step):
            return None
        following = step + 1
        while following in self.steps and not computes(following):
            following += 1
        return following - step

    def changes(self, step: int) -> dict[int, np.ndarray]:
        """The change of each variable in a step."""
        before = self.after.get(step - 1) or self.weights_at_forward(step)
        after = self.weights_made(step)
        if before is None or after is None or shapes_of(before) != shapes_of(after):
            return {}
        pairs = zip(before, after, strict=True)
        return {i: np.asarray(new, np.float64) - np.asarray(old, np.float64) for i, (old, new) in enumerate(pairs)}

    def weights_at_forward(self, step: int) -> Weights:
        """The weights with which a step computed its first predictions, of the first replica."""
        events = self.model_events(step, "weights") or self.of(step, "weights")  # of a model that is not called first
        return events[0].arrays if events and events[0].arrays else None

    def weights_updated(self, step: int) -> Weights:
        """The weights that the optimizer made in a step, of the first replica, before anything else changed them."""
        events = [event for event in self.of(step, "updated") if event.replica == 0]
        return events[-1].arrays if events and events[-1].arrays else None

    def weights_made(self, step: int) -> Weights:
        """The same, or else those after the step: where a graph makes several, they are seen after the last only."""
        return self.weights_updated(step) or self.after.get(step)


def shapes_of(weights: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(each) for each in weights)


def read_close_up(folder: Path, number: int, order: Sequence[int] = ()) -> CloseUp | None:
    """Reads what was seen of a training, with its weights in an order; None if nothing was."""
    path = folder / f"{number}-stages.pkl"
    seen: CloseUp | None = pickle.loads(path.read_bytes()) if path.exists() else None
    return seen and seen.ordered(order)


def each_once(events: Sequence[Event]) -> list[Event]:
    """The events without calls of a loss function that is called again with the same before gradients are taken.

    What the first call gave, such as losses that a mask was then applied to, is not used.
    """
    kept, later = list[Event](), list[Event]()
    for event in reversed(events):
        later = [] if event.kind == "loss" else later
        if event.kind == "targets" and event.arrays:
            if any(_same_call(event, each) for each in later):
                continue
            later.append(event)
        kept.append(event)
    return kept[::-1]


def _same_call(one: Event, other: Event) -> bool:
    known = [{name: each for name, each in event.info.items() if name != "line"} for event in (one, other)]
    given = sum(one.info[name] for name in ("true", "predicted", "weights"))
    alike = one.replica == other.replica and known[0] == known[1]
    return alike and all(map(np.array_equal, one.arrays[:given], other.arrays[:given]))


SKETCH = 16
"""The number of sums in a sketch."""


def sketch(array: Any) -> np.ndarray:
    """Sums of an array's values with random signs: two arrays are as far apart as their sketches, to some 20%."""
    flat = np.asarray(array, np.float64).ravel()
    signed = np.zeros(-(-flat.size // SKETCH) * SKETCH)
    signed[: flat.size] = _signs(flat.size) * flat
    return np.asarray(signed.reshape(-1, SKETCH).sum(0))


@cache
def _signs(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, size, np.int8) * np.int8(2) - np.int8(1)


def row_hashes(arrays: Sequence[Any]) -> tuple[int, ...]:
    """A hash of each example: of its row in all arrays, as float32, so that the dtype plays no part."""
    sizes = {len(array) for array in arrays if np.ndim(array)}
    if len(sizes) != 1 or not min(sizes):
        return ()
    numbers = [np.asarray(array) for array in arrays]
    if any(array.dtype.kind in "OSU" for array in numbers):
        parts = [[repr(row).encode() for row in array.reshape(len(array), -1).tolist()] for array in numbers]
    else:
        flat = [np.ascontiguousarray(array.reshape(len(array), -1), np.float32) for array in numbers]
        parts = [[row.tobytes() for row in array] for array in flat]
    return tuple(hash_of(b"".join(row)) for row in zip(*parts, strict=True))
