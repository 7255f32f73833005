"""What one short run showed, as plain values: every step's gradients, and all weights around it; no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compare.records import AnyRecord, BuildRecord, EpochRecord, Record, StepRecord, step_dtype

EPOCHS = range(1, 3)

State = list[list[np.ndarray]]
"""Every variable of a model, ``[replica][variable]``: trainable first, then the rest, seeds included."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A sparse gradient, as ``tf.IndexedSlices``: only some rows of a variable have one, some more than once.

    Attributes:
        indices: int64 ``[n]``.
        values: ``[n, ...]``, a row for each index.
        shape: the variable's.
    """

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        dense = np.zeros(self.shape, self.values.dtype)
        np.add.at(dense, self.indices, self.values)
        return dense if dtype is None else dense.astype(dtype)


Gradient = np.ndarray | Rows | None


@dataclass(frozen=True)
class Call:
    """One call of one optimizer's ``apply``: which optimizer, its rate and its count of steps before this one."""

    optimizer: int
    learning_rate: float
    iterations: int


@dataclass(eq=False)  # two are never the same, so that results can be kept by step
class Applied:
    """One optimizer step: a call of ``apply``, or several over disjoint variables.

    Attributes:
        epoch: the epoch under way, from 1.
        gradients: as handed in, ``[replica][trainable variable]``; None where there was none.
        state: all variables at that moment, after the forward pass and before the update.
        before: all variables when last seen before that (the forward pass may have changed
            some that are not trainable).
        calls: the optimizers that were applied.
        after: all variables when next seen.
    """

    epoch: int
    gradients: list[list[Gradient]]
    state: State
    before: State
    calls: list[Call] = field(default_factory=list)
    after: State | None = None

    @property
    def learning_rate(self) -> float:
        """As the optimizer had it; the first one, where there are several."""
        return self.calls[0].learning_rate if self.calls else 0.0

    @property
    def given(self) -> set[int]:
        """The trainable variables, by index, that some gradient was handed in for."""
        return {k for each in self.gradients for k, gradient in enumerate(each) if gradient is not None}


@dataclass
class Observation:
    """All that one short run showed.

    Attributes:
        name: the trainer's name.
        replicas: how many replicas it ran on.
        names: the variables' paths; the first ``trainable`` of them are trainable.
        optimizers: the class and configuration, at the end, of the optimizers that were applied.
        distributed: whether the trainer ever asked the strategy to run a step, or to distribute data.
        initial: what the model was built with.
        applied: the optimizer's steps in order.
        foreign: how often an optimizer was applied to variables that are not the run's.
        compiled: whether an optimizer was applied in a function compiled by XLA, where nothing can be recorded.
        layers: the class names of the model's layers.
        fixed_dropout: whether dropout always drops the same: see ``fix_dropout``.
        steps: the state at each ``end_step``.
        rates: the learning rate before each of these steps, where the optimizer in use is known.
        trained: the state after the last step of each epoch, by epoch.
        ended: the state at each ``end_epoch``, by epoch.
        final: the state when training was over: callbacks may have changed it since.
        records: what the run reported.
    """

    name: str
    replicas: int
    names: list[str] = field(default_factory=list)
    trainable: int = 0
    optimizers: list[tuple[type[Any], dict[str, Any]]] = field(default_factory=list)
    distributed: bool = False
    initial: State = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    foreign: int = 0
    compiled: bool = False
    layers: list[str] = field(default_factory=list)
    fixed_dropout: bool = False
    steps: list[State] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    trained: dict[int, State] = field(default_factory=dict)
    ended: dict[int, State] = field(default_factory=dict)
    final: State = field(default_factory=list)
    logs: dict[int, dict[str, float]] = field(default_factory=dict)
    records: list[AnyRecord] = field(default_factory=list)

    @property
    def changed_in_the_end(self) -> list[str]:
        """The variables that were changed after the last epoch had ended."""
        changed = {
            name: None
            for last in list(self.ended.values())[-1:]
            for ours, theirs in zip(last, self.final, strict=False)
            for name, a, b in zip(self.names, ours, theirs, strict=False)
            if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        }
        return list(changed)

    @property
    def changed_after_steps(self) -> dict[int, dict[str, float]]:
        """By epoch, what was changed between its last step and its end, and by how much at most."""
        return {epoch: self._gaps(epoch, before) for epoch in self.ended if (before := self.left(epoch))}

    def left(self, epoch: int) -> State:
        """What the last step of an epoch left; of a trainer that never calls ``end_step`` that is known of the rest."""
        steps = self.of_epoch(epoch)
        return self.trained.get(epoch) or (steps[-1].state if steps else [])

    def _gaps(self, epoch: int, before: State) -> dict[str, float]:
        begin = 0 if epoch in self.trained else self.trainable
        gaps: dict[str, float] = {}
        for ours, theirs in zip(before, self.ended[epoch], strict=True):
            for name, a, b in list(zip(self.names, ours, theirs, strict=True))[begin:]:
                if a is not b and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                    gap = float(np.abs(np.subtract(a, b, dtype=np.float64)).max())
                    gaps[name] = max(gap, gaps.get(name, 0.0))
        return gaps

    def record(self) -> Record:
        """What it reported, as the record that a full run would have left."""
        return as_record(self.name, self.records)

    def of_epoch(self, epoch: int) -> list[Applied]:
        """The steps applied in one epoch."""
        return [step for step in self.applied if step.epoch == epoch]


def as_record(name: str, records: Sequence[AnyRecord]) -> Record:
    """What a short run reported, as the record that a full run would have left."""
    build = next(record for record in records if isinstance(record, BuildRecord))
    steps = [record for record in records if isinstance(record, StepRecord)]
    rows = np.zeros(len(steps), step_dtype(len(build.variables), build.replicas))
    for row, record in zip(rows, steps, strict=True):
        row["epoch"], row["step"] = record.epoch, record.step
        row["hashes"], row["projections"] = record.hashes, record.projections
    logs = {record.epoch: dict(record.logs) for record in records if isinstance(record, EpochRecord)}
    return Record(name, 0, build.variables, rows, logs, Path("/nonexistent"))


def configuration(optimizer: Any) -> dict[str, Any]:
    """An optimizer's configuration; what can be read off it, where a schedule of the user's cannot be written down."""
    try:
        return dict(optimizer.get_config())
    except NotImplementedError:
        return {name: value for name, value in vars(optimizer).items() if isinstance(value, bool | int | float | str)}
