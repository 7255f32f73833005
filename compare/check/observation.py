"""Holds the observations of one short run: each step's gradients, and the weights around it; no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compare.engine.described import configuration_of
from compare.experiment import Experiment
from compare.records.model import AnyRecord, BuildRecord, EpochRecord, Record, StepRecord, rows_of, step_dtype
from compare.verdict.exact import largest_gap
from compare.watch.seen import CloseUp
from compare.watch.trace import CLIPPING, EXCLUDED

EPOCHS = range(1, 3)
"""The epochs that the check trains."""

State = list[list[np.ndarray]]
"""All variables of a model, ``[replica][variable]``: first the trainable ones, then the others, seeds included."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A sparse gradient, like ``tf.IndexedSlices``: only some rows of the variable have one, and a row may repeat.

    Attributes:
        indices: int64 ``[n]``.
        values: ``[n, ...]``, one row per index.
    """

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        dense = np.zeros(self.shape, self.values.dtype)
        np.add.at(dense, self.indices, self.values)
        return dense if dtype is None else dense.astype(dtype)


Gradient = np.ndarray | Rows | None
"""A dense or sparse gradient of one variable; None if it has none."""


@dataclass(frozen=True)
class ApplyCall:
    """One call of an optimizer's ``apply``.

    Attributes:
        optimizer: the index of the optimizer's class and settings in ``Observation.optimizers``.
        iterations: the optimizer's iteration count before this step.
        variables: the indices of the trainable variables that it was given a gradient for.
    """

    optimizer: int
    learning_rate: float
    iterations: int
    variables: frozenset[int] = frozenset()


@dataclass(eq=False)  # compared by identity, so that results can be cached by step
class OptimizerStep:
    """One optimizer step: one call of ``apply``, or several over disjoint variables.

    Attributes:
        epoch: the current epoch, from 1.
        gradients: the arguments of ``apply``, ``[replica][trainable variable]``.
        state: all variables when ``apply`` was called: after the forward pass and before the update.
        before: all variables as last read before that; the forward pass may have changed non-trainable ones.
        after: all variables as read next after the update; where nothing is read before the next forward pass, those
            that are not trained are as in ``state``.
    """

    epoch: int
    gradients: list[list[Gradient]]
    state: State
    before: State
    calls: list[ApplyCall] = field(default_factory=list)
    after: State | None = None

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate; that of the first optimizer if there are several."""
        return self.calls[0].learning_rate if self.calls else 0.0

    @property
    def groups(self) -> tuple[frozenset[int], ...]:
        """The variables of each call where one optimizer was applied several times, counting each; else empty."""
        counts = [call.iterations - self.calls[0].iterations for call in self.calls]
        one = len({call.optimizer for call in self.calls}) == 1 and counts == list(range(len(counts)))
        return tuple(call.variables for call in self.calls) if one and len(self.calls) > 1 else ()

    @property
    def with_gradient(self) -> set[int]:
        """The indices of the trainable variables that got a gradient on any replica."""
        return {k for gradients in self.gradients for k, gradient in enumerate(gradients) if gradient is not None}

    def moved_before(self, trainable: int) -> bool:
        """Whether any of the first ``trainable`` variables changed before ``apply`` was called."""
        return bool(changed_variables(self.before, self.state, trainable))


@dataclass
class Observation:
    """All observations of one short run.

    Attributes:
        names: the paths of the variables.
        trainable: the number of trainable variables, which come first.
        optimizers: each class of optimizer that was applied, with each of its configurations; the learning rate
            is that of the first step.
        rate_set: the line that has set the learning rate last; None if none has.
        distributed: whether the trainer ran a step, or distributed data, through the strategy.
        initial: the state after ``build``.
        foreign: how many variables outside the run's model an optimizer was applied to.
        foreign_in_loss: the names of variables that a loss was computed from, shaped as the model's and not its own.
        compiled: whether an optimizer was applied in a function compiled by XLA, where nothing can be recorded.
        on_batch: whether the trainer calls ``train_on_batch`` of the run's model.
        asks_callbacks: whether it asks for the experiment's callbacks.
        layers: names, classes and configurations of the model's layers as they were built.
        layers_at_end: the same, after the training.
        fixed_dropout: whether dropout uses a fixed mask: see ``fix_dropout``.
        step_states: the state at each ``end_step``.
        updates_made: the number of ``optimizer_steps`` at each ``end_step``.
        sets_rate: whether the trainer sets the learning rate by itself.
        rates: the learning rate before each of these steps, as far as the optimizer is known.
        last_step_states: the state after the last step of each epoch, by epoch.
        epoch_end_states: the state at each ``end_epoch``, by epoch.
        final: the state after training; callbacks may have changed it after the last epoch.
        inside: what was seen inside its steps, with the ends of its epochs.
        reported_at: the line of the user's code that ends an epoch with its numbers.
        dataset_at: the one that asks for the examples of an epoch.
    """

    name: str
    replicas: int
    names: list[str] = field(default_factory=list)
    trainable: int = 0
    optimizers: list[tuple[type[Any], dict[str, Any]]] = field(default_factory=list)
    rate_set: tuple[str, int, str] | None = None
    distributed: bool = False
    initial: State = field(default_factory=list)
    optimizer_steps: list[OptimizerStep] = field(default_factory=list)
    foreign: int = 0
    foreign_in_loss: list[str] = field(default_factory=list)
    compiled: bool = False
    on_batch: bool = False
    asks_callbacks: bool = False
    layers: list[dict[str, Any]] = field(default_factory=list)
    layers_at_end: list[dict[str, Any]] = field(default_factory=list)
    fixed_dropout: bool = False
    step_states: list[State] = field(default_factory=list)
    updates_made: list[int] = field(default_factory=list)
    sets_rate: bool = False
    rates: list[float] = field(default_factory=list)
    last_step_states: dict[int, State] = field(default_factory=dict)
    epoch_end_states: dict[int, State] = field(default_factory=dict)
    final: State = field(default_factory=list)
    logs: dict[int, dict[str, float]] = field(default_factory=dict)
    records: list[AnyRecord] = field(default_factory=list)
    inside: CloseUp | None = None
    reported_at: tuple[str, int, str] | None = None
    dataset_at: tuple[str, int, str] | None = None

    @property
    def clipping(self) -> dict[str, float | None]:
        """The clipping options of the optimizers in use; all None if the optimizers disagree."""
        used = {call.optimizer for step in self.optimizer_steps for call in step.calls}
        options = [{name: self.optimizers[i][1].get(name) for name in CLIPPING} for i in used]
        return options[0] if options and all(one == options[0] for one in options) else dict.fromkeys(CLIPPING)

    @property
    def changed_after_training(self) -> list[str]:
        """The names of variables that changed after the end of the last epoch."""
        last = list(self.epoch_end_states.values())[-1:]
        changed = changed_variables(last[0], self.final, None) if last and self.final else []
        return list(dict.fromkeys(self.names[k] for k in changed))

    @property
    def changed_last(self) -> list[str]:
        """The names of variables that changed after the last step, in the end of its epoch or after that."""
        at_end = self.changed_after_steps.get(max(self.epoch_end_states, default=0), {})
        return list(dict.fromkeys((*at_end, *self.changed_after_training)))

    @property
    def changed_after_steps(self) -> dict[int, dict[str, float]]:
        """The largest change of each variable between the last step of an epoch and its end, by epoch and name."""
        return {
            epoch: self._gaps(epoch, before)
            for epoch in self.epoch_end_states
            if (before := self.state_after_last_step(epoch))
        }

    def state_after_last_step(self, epoch: int) -> State:
        """The state after the last step of an epoch.

        If the trainer never calls ``end_step``, it is the state before the last update, and right only for
        variables that are not trained.
        """
        steps = self.of_epoch(epoch)
        return self.last_step_states.get(epoch) or (steps[-1].state if steps else [])

    def _gaps(self, epoch: int, before: State) -> dict[str, float]:
        begin = 0 if epoch in self.last_step_states else self.trainable
        gaps: dict[str, float] = {}
        for replica, at_end in zip(before, self.epoch_end_states[epoch], strict=True):
            for name, a, b in list(zip(self.names, replica, at_end, strict=True))[begin:]:
                if not equal(a, b):
                    gap = float(np.abs(np.subtract(a, b, dtype=np.float64)).max())
                    gaps[name] = max(gap, gaps.get(name, 0.0))
        return gaps

    def record(self) -> Record:
        """The reported numbers and fingerprints in the form that a full run records."""
        return as_record(self.name, self.records)

    def of_epoch(self, epoch: int) -> list[OptimizerStep]:
        return [step for step in self.optimizer_steps if step.epoch == epoch]


def equal(a: Gradient, b: Gradient) -> bool:
    """Whether two arrays or gradients have the same values; NaN equals NaN."""
    if a is b or a is None or b is None:
        return a is b
    one, other = np.asarray(a), np.asarray(b)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")


def changed_variables(
    before: Sequence[Sequence[Gradient]], after: Sequence[Sequence[Gradient]], first: int | None
) -> list[int]:
    """Returns the indices of the ``first`` variables, or of all, that differ on any replica; NaN equals NaN."""
    replicas = zip(before, after, strict=True)
    pairs = (enumerate(zip(a[:first], b[:first], strict=True)) for a, b in replicas)
    return list(dict.fromkeys(k for copies in pairs for k, pair in copies if not equal(*pair)))


def as_record(name: str, records: Sequence[AnyRecord]) -> Record:
    """Converts what a short run reported to the form that a full run records."""
    build = next(record for record in records if isinstance(record, BuildRecord))
    steps = [record for record in records if isinstance(record, StepRecord)]
    rows = rows_of(steps, step_dtype(len(build.variables), build.replicas))
    logs = {record.epoch: dict(record.logs) for record in records if isinstance(record, EpochRecord)}
    return Record(name, 0, build.variables, rows, logs, Path("/nonexistent"))


def configuration(optimizer: Any, variables: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """Returns an optimizer's configuration; with variables, by index, also which of them weight decay leaves out."""
    config = configuration_of(optimizer)
    if config.get("weight_decay") and variables:
        config[EXCLUDED] = tuple(i for i, v in variables.items() if not optimizer._use_weight_decay(v))
    return config


def callback_names(experiment: Experiment) -> list[str]:
    """The class names of the callbacks that fit runs."""
    return [type(callback).__name__ for callback in experiment.build_callbacks()]


def largest_weight_gap(reference: Observation, candidate: Observation) -> float | None:
    """The largest difference of any weight at the end of an epoch, or of training; None if unknown or not finite."""
    sides = [side.epoch_end_states | ({"final": side.final} if side.final else {}) for side in (reference, candidate)]
    return largest_gap(
        (a, b)
        for end in sides[0].keys() & sides[1].keys()
        for a, b in zip(sides[0][end][0], sides[1][end][0], strict=True)
        if a.dtype.kind == "f"
    )
