"""One short run of any trainer, observed: what its optimizer was handed, and all weights around it."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext  # there is no public way to know

from compare.check.batches import Batches
from compare.check.observation import EPOCHS, Applied, Call, Gradient, Observation, Rows, State, configuration
from compare.engine.fingerprints import distributed
from compare.engine.run import Run, Task
from compare.engine.strategies import keras_version
from compare.records import AnyRecord, EpochRecord
from compare.trainer import Trainer


class Crafted(Run):
    """A run over the check's few batches: see ``compare.check.batches``."""

    batches: Batches
    empty: bool = False
    """Whether the last batch of each epoch leaves a replica without examples."""

    def train_dataset(self, epoch: int | tf.Tensor) -> tf.data.Dataset:
        whole = super().train_dataset(epoch)
        wanted = tf.data.Dataset.from_tensor_slices(tf.constant(self.batches.sizes(self.empty), tf.int64))

        def shorten(batch: Any, size: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda tensor: tensor[:size], batch)

        return tf.data.Dataset.zip((whole, wanted)).map(shorten)


class ProbeRun(Crafted):
    """A run over a few crafted batches that sees every call of the optimizer."""

    stops_at_nan = False

    def __init__(
        self,
        task: Task,
        batches: Batches,
        *,
        seed: int,
        name: str,
        empty: bool = False,
        like: Observation | None = None,
    ) -> None:
        self.batches, self.empty, self._like = batches, empty, like
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
        sparse = [i for i in present if isinstance(found[i], tf.IndexedSlices)]
        values = [found[i].values if i in sparse else tf.convert_to_tensor(found[i]) for i in present]
        indices = [tf.cast(found[i].indices, tf.int64) for i in sparse]
        state = [variable.read_value() for variable in self._variables]
        # Outside of strategy.run there is one gradient, whatever number of replicas.
        alone = context.num_replicas_in_sync < self.seen.replicas
        told = partial(self._on_replica, which, present, sparse, alone)
        tf.numpy_function(told, [replica, *numbers, *values, *indices, *state], [])

    def finish(self) -> Observation:
        """The whole observation, once training is over."""
        self.close()
        if self._variables:
            self.seen.final = self._read()
        for optimizer in self._optimizers:
            self.seen.optimizers.append((type(optimizer), configuration(optimizer)))
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
        self,
        which: int,
        present: list[int],
        sparse: list[int],
        alone: bool,
        replica: Any,
        learning_rate: Any,
        iterations: Any,
        *arrays: np.ndarray,
    ) -> None:
        copies = [np.array(array) for array in arrays]  # TensorFlow goes on using its buffers
        values, rest = copies[: len(present)], copies[len(present) :]
        indices, state = dict(zip(sparse, rest, strict=False)), rest[len(sparse) :]
        gradients: list[Gradient] = [None] * self.seen.trainable
        for position, value in zip(present, values, strict=True):
            rows = Rows(indices[position], value, state[position].shape) if position in indices else value
            gradients[position] = rows
        call = Call(which, float(learning_rate), int(iterations))
        with self._lock:
            if alone:
                others: list[list[Gradient]] = [[None] * self.seen.trainable for _ in range(self.seen.replicas - 1)]
                self._add(call, [gradients, *others], [state] * self.seen.replicas)
                return
            self._waiting[int(replica)].append((call, gradients, state))
            # Replicas report a step in any order; the step is whole when each has.
            if all(self._waiting):
                parts = [queue.pop(0) for queue in self._waiting]
                self._add(parts[0][0], [part[1] for part in parts], [part[2] for part in parts])

    def _add(self, call: Call, gradients: list[list[Gradient]], state: State) -> None:
        last = self.seen.applied[-1] if self.seen.applied else None
        new = Applied(self.epoch, gradients, state, self._latest, [call])
        if last is not None and last.after is None and new.given and not new.given & last.given:
            # Over other variables, in the same step: two optimizers that share the model, or one per layer.
            for mine, added in zip(last.gradients, gradients, strict=True):
                for k in new.given:
                    mine[k] = added[k]
            last.calls.append(call)
            self._latest = state
            return
        alike = self._like.applied[len(self.seen.applied) :][:1] if self._like else []
        new.gradients = _deduplicated(gradients, *(step.gradients for step in alike))
        new.state = _deduplicated(state, self._latest, *(step.state for step in alike))
        self._latest = new.state
        self._close()
        self.seen.applied.append(new)

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
        result.append([next((each[i] for each in others if _equal(each[i], v)), v) for i, v in enumerate(variables)])
    return result


def _equal(a: Any, b: Any) -> bool:
    dense = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return dense and np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")


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


STRATEGY = "run", "experimental_distribute_dataset", "distribute_datasets_from_function"
"""What a trainer that knows of replicas calls of its strategy, itself or through Keras."""


def _knows_replicas(frame: FrameType) -> bool:
    """Whether a call of the strategy's comes from the trainer itself, or from ``fit``.

    Keras's train_on_batch, evaluate and predict use the strategy too, but train_on_batch gives every replica the
    whole batch.
    """
    if not _of_keras(frame):
        return True
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_name == "fit" and _of_keras(caller):
            return True
        caller = caller.f_back
    return False


def _of_keras(frame: FrameType) -> bool:
    return "keras" in str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextlib.contextmanager
def noticing(run: ProbeRun) -> Iterator[None]:
    """Notice whether the trainer uses the run's strategy while this lasts."""

    def noticed(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            run.seen.distributed |= _knows_replicas(sys._getframe(1))
            return original(*args, **options)

        return call

    for name in STRATEGY:
        setattr(run.strategy, name, noticed(getattr(run.strategy, name)))
    try:
        yield
    finally:
        for name in STRATEGY:
            delattr(run.strategy, name)


def observe(
    task: Task,
    batches: Batches,
    trainer: Trainer,
    seed: int,
    *,
    empty: bool = False,
    like: Observation | None = None,
) -> Observation:
    """Let a trainer train a crafted task (see ``compare.check.batches``) and watch it.

    Args:
        task: what to train.
        batches: the sizes of its batches.
        trainer: who trains.
        seed: of the run.
        empty: whether the last batch of each epoch leaves one replica without examples.
        like: another observation; what is equal there is held in memory but once.
    """
    run = ProbeRun(task, batches, seed=seed, name=trainer.name, empty=empty, like=like)
    with watching(run), noticing(run):
        trainer.train(run)
    return run.finish()
