"""One short run of any trainer, observed: what its optimizer was handed, and all weights around it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext  # there is no public way to know

from compare.fingerprints import distributed
from compare.pipeline import Examples
from compare.records import AnyRecord, EpochRecord
from compare.runs import Run, Task
from compare.strategies import keras_version
from compare.trainers.base import Trainer

EPOCHS = range(1, 3)
PER_REPLICA = 6
FULL_BATCHES = 2
VALIDATION_BATCHES = 12

State = list[list[np.ndarray]]
"""Every variable of a model, ``[replica][variable]``: trainable first, then the rest, seeds included."""


def sizes(replicas: int, epoch: int, *, empty: bool = False) -> list[int]:
    """The sizes of an epoch's batches: only the last is short, in turn unevenly and evenly split.

    No replica's part is ever empty, unless ``empty`` asks for it. The first batch is evenly split,
    without which Keras 3's fit fails under several replicas. All sizes differ, so that different
    denominators cannot look alike.
    """
    last = replicas - 1 if empty else 4 * replicas - 1 if epoch % 2 else 2 * replicas
    return [PER_REPLICA * replicas] * FULL_BATCHES + [last]


@dataclass(eq=False)  # two are never the same, so that results can be kept by step
class Applied:
    """One call of an optimizer's ``apply``.

    Attributes:
        epoch: the epoch under way, from 1.
        gradients: as handed in, ``[replica][trainable variable]``; None where there was none.
        state: all variables at that moment, after the forward pass and before the update.
        before: all variables when last seen before that (the forward pass may have changed
            some that are not trainable).
        after: all variables when next seen.
        learning_rate: as the optimizer had it.
        iterations: the optimizer's count of steps before this one.
        optimizer: which optimizer, an index into ``Observation.optimizers``.
    """

    epoch: int
    gradients: list[list[np.ndarray | None]]
    state: State
    before: State
    learning_rate: float
    iterations: int
    optimizer: int
    after: State | None = None


@dataclass
class Observation:
    """All that one short run showed.

    Attributes:
        name: the trainer's name.
        replicas: how many replicas it ran on.
        names: the variables' paths; the first ``trainable`` of them are trainable.
        optimizers: the configurations, at the end, of the optimizers that were applied.
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

    def of_epoch(self, epoch: int) -> list[Applied]:
        """The steps applied in one epoch."""
        return [step for step in self.applied if step.epoch == epoch]


class ProbeRun(Run):
    """A run over a few crafted batches that sees every call of the optimizer."""

    stops_at_nan = False

    def __init__(
        self, task: Task, *, seed: int, name: str, empty: bool = False, like: Observation | None = None
    ) -> None:
        self._empty, self._like = empty, like
        self.seen = Observation(name, task.strategy.num_replicas_in_sync)
        super().__init__(task, seed=seed, epochs=EPOCHS, sinks=[self._on_record])
        self._lock = threading.Lock()
        self._waiting: list[list[Any]] = [[] for _ in range(self.seen.replicas)]
        self._optimizers: list[Any] = []
        self._rate = 0.0
        self._variables: list[Any] = []
        self._index: dict[int, int] = {}
        self._latest: State = []

    # What a trainer sees.

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        model, optimizer, loss, metrics = super().build()
        trainable = list(model.trainable_variables)
        taken = {id(distributed(v)) for v in trainable}
        rest = [v for v in model.variables if id(distributed(v)) not in taken]
        self._variables = [distributed(v) for v in [*trainable, *rest]]
        self.seen.names = [getattr(v, "path", v.name) for v in [*trainable, *rest]]
        self.seen.trainable = len(trainable)
        self.seen.layers = [type(layer).__name__ for layer in model._flatten_layers()]
        self._given = optimizer
        self._rate = float(_learning_rate(optimizer))
        self.seen.fixed_dropout = fix_dropout(model)
        self._index = {id(v): i for i, v in enumerate(self._variables[: len(trainable)])}
        self._latest = self.seen.initial = self._read()
        return model, optimizer, loss, metrics

    def train_dataset(self, epoch: int | tf.Tensor) -> tf.data.Dataset:
        batches = super().train_dataset(epoch)
        table = tf.constant([sizes(self.seen.replicas, parity, empty=self._empty) for parity in (0, 1)], tf.int64)
        wanted = tf.data.Dataset.from_tensor_slices(table[tf.cast(epoch, tf.int64) % 2])

        def shorten(batch: Any, size: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda tensor: tensor[:size], batch)

        return tf.data.Dataset.zip((batches, wanted)).map(shorten)

    def end_step(self, steps: int = 1) -> None:
        super().end_step(steps)
        self._latest = self._read()
        self.seen.rates.append(self._rate)
        self._rate = float(_learning_rate(self._optimizers[-1] if self._optimizers else self._given))
        self.seen.steps.append(self._latest)
        self.seen.trained[self.epoch] = self._latest
        self._close()

    def end_epoch(self, epoch: int, logs: Any) -> None:
        super().end_epoch(epoch, logs)
        self._latest = self._read()
        self.seen.ended[epoch] = self._latest
        self._close()

    # What the optimizer says.

    def on_apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Record a call of ``apply``; inside a ``tf.function``, put the recording into its graph."""
        context = tf.distribute.get_replica_context()
        if not self._variables or context is None:  # optimizers cannot be applied across replicas, and say so
            return
        which = self._number(optimizer)
        if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            self.seen.compiled = True
            return
        found: list[Any] = [None] * self.seen.trainable
        for gradient, variable in zip(gradients, variables, strict=False):
            position = self._position(variable)
            if position is None:
                self.seen.foreign += 1
            elif gradient is not None:
                found[position] = gradient
        present = [i for i, gradient in enumerate(found) if gradient is not None]
        numbers = [
            tf.cast(_learning_rate(optimizer), tf.float64),
            tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64),
        ]
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        values = [tf.convert_to_tensor(found[i]) for i in present]
        state = [variable.read_value() for variable in self._variables]
        tf.numpy_function(partial(self._on_replica, which, present), [replica, *numbers, *values, *state], [])

    def finish(self) -> Observation:
        """The whole observation, once training is over."""
        self.close()
        if self._variables:
            self.seen.final = self._read()
        for optimizer in self._optimizers:
            self.seen.optimizers.append((type(optimizer), optimizer.get_config()))
        return self.seen

    def _number(self, optimizer: Any) -> int:
        for i, known in enumerate(self._optimizers):
            if known is optimizer:
                return i
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1

    def _position(self, variable: Any) -> int | None:
        variable = distributed(variable)
        if hasattr(variable, "_distributed_container"):
            variable = variable._distributed_container()
        return self._index.get(id(variable))

    def _on_replica(
        self, which: int, present: list[int], replica: Any, learning_rate: Any, iterations: Any, *arrays: np.ndarray
    ) -> None:
        part = self._part(present, arrays)
        with self._lock:
            self._waiting[int(replica)].append((which, float(learning_rate), int(iterations), *part))
            # Replicas report a step in any order; the step is whole when each has.
            if all(self._waiting):
                parts = [queue.pop(0) for queue in self._waiting]
                which, rate, count = parts[0][:3]
                self._add(which, rate, count, [part[3] for part in parts], [part[4] for part in parts])

    def _part(self, present: list[int], arrays: Sequence[np.ndarray]) -> tuple[list[Any], list[np.ndarray]]:
        copies = [np.array(array) for array in arrays]  # TensorFlow goes on using its buffers
        gradients: list[Any] = [None] * self.seen.trainable
        for position, gradient in zip(present, copies, strict=False):
            gradients[position] = gradient
        return gradients, copies[len(present) :]

    def _add(self, which: int, learning_rate: float, iterations: int, gradients: list[Any], state: State) -> None:
        alike = self._like.applied[len(self.seen.applied) :][:1] if self._like else []
        gradients = _deduplicated(gradients, *(step.gradients for step in alike))
        state = _deduplicated(state, self._latest, *(step.state for step in alike))
        if self.seen.applied and self.seen.applied[-1].after is None:
            self.seen.applied[-1].after = state
        step = Applied(self.epoch, gradients, state, self._latest, learning_rate, iterations, which)
        self._latest = state
        self.seen.applied.append(step)

    def _close(self) -> None:
        if self.seen.applied and self.seen.applied[-1].after is None:
            self.seen.applied[-1].after = self._latest

    def _read(self) -> State:
        local = self.strategy.experimental_local_results
        copies = [[np.array(each.read_value()) for each in local(variable)] for variable in self._variables]
        state = [[_component(values, replica) for values in copies] for replica in range(self.seen.replicas)]
        return _deduplicated(state, self._latest)

    def _on_record(self, record: AnyRecord) -> None:
        self.seen.records.append(record)
        if isinstance(record, EpochRecord):
            self.seen.logs[record.epoch] = dict(record.logs)


def _learning_rate(optimizer: Any) -> tf.Tensor:
    """The rate of the next step."""
    schedule = getattr(optimizer, "_learning_rate", None)
    if isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
        return schedule(optimizer.iterations)  # optimizer.learning_rate is the last step's in Keras 2
    return tf.convert_to_tensor(optimizer.learning_rate)


def fix_dropout(model: tf.keras.Model) -> bool:
    """Have Keras 2, whose random numbers cannot be drawn again, always drop every other unit; is it so?

    In training only, as dropout does, so that a call in the wrong mode is seen.
    """
    if keras_version().startswith("3"):
        return False
    layers = [layer for layer in model._flatten_layers() if "Dropout" in type(layer).__name__ and layer.rate]
    for layer in layers:
        layer.call = _every_other
    return bool(layers)


def _every_other(inputs: tf.Tensor, *, training: Any = None) -> tf.Tensor:
    training = tf.keras.backend.learning_phase() if training is None else training
    kept = 2 * tf.cast(tf.range(tf.shape(inputs)[-1]) % 2, inputs.dtype)
    return tf.where(tf.cast(training, tf.bool), inputs * kept, inputs)


def _deduplicated(state: list[list[Any]], *known: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The same values, with the arrays of ``known`` or of the first replica where they are equal: held but once."""
    result: list[list[Any]] = []
    for replica, variables in enumerate(state):
        others = [*result[:1], *(each[replica] for each in known if replica < len(each))]
        result.append(
            [next((each[i] for each in others if np.array_equal(each[i], v)), v) for i, v in enumerate(variables)]
        )
    return result


def _component(values: Sequence[Any], replica: int) -> Any:
    """What a replica has of a distributed value; a plain one is every replica's."""
    return values[replica if len(values) > 1 else 0]


@contextlib.contextmanager
def watching(run: ProbeRun) -> Iterator[None]:
    """Tell ``run`` about every optimizer's ``apply`` while this lasts.

    All optimizers, not the run's alone: a loop that makes its own is to be seen too.
    """
    # Keras 3 has apply, which apply_gradients calls; Keras 2 has apply_gradients only.
    mro = tf.keras.optimizers.Optimizer.__mro__
    owner, method = next((cls, name) for name in ("apply", "apply_gradients") for cls in mro if name in vars(cls))
    original = getattr(owner, method)

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        run.on_apply(self, grads, variables)
        return original(self, grads, variables)

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        run.on_apply(self, [gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return original(self, pairs, *args, **options)

    setattr(owner, method, {"apply": apply, "apply_gradients": apply_gradients}[method])
    try:
        yield
    finally:
        setattr(owner, method, original)


def observe(
    task: Task, trainer: Trainer, seed: int, *, empty: bool = False, like: Observation | None = None
) -> Observation:
    """Let a trainer train a crafted task (see ``crafted``) and watch it.

    Args:
        task: what to train.
        trainer: who trains.
        seed: of the run.
        empty: whether the last batch of each epoch leaves one replica without examples.
        like: another observation; what is equal there is held in memory but once.
    """
    run = ProbeRun(task, seed=seed, name=trainer.name, empty=empty, like=like)
    with watching(run):
        trainer.train(run)
    return run.finish()


def crafted(task: Task, *, replicas: int) -> tuple[Examples, Examples]:
    """A few examples of the task's own data, spread over all of it, for training and validation."""
    per_epoch = max(sum(sizes(replicas, epoch)) for epoch in EPOCHS)
    full = sizes(replicas, 1)[0]
    # Many validation examples cost little, and make it unlikely that two accuracies are equal by chance.
    validation = VALIDATION_BATCHES * full + 4 * replicas - 1
    return task.train.sample(per_epoch), task.validation.sample(validation)
