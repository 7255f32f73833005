"""What was seen inside steps, read back from a trace; imports no TensorFlow."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compare.records import hash_of


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


def read_close_up(folder: Path, number: int, order: Sequence[int] = ()) -> CloseUp | None:
    """Reads what was seen of a training, with its weights in an order; None if nothing was."""
    path = folder / f"{number}-stages.pkl"
    seen: CloseUp | None = pickle.loads(path.read_bytes()) if path.exists() else None
    return seen and seen.ordered(order)


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
