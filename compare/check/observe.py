"""Observes one short run of any trainer: the gradients passed to its optimizer, and all weights around each step."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from compare.check.observation import (
    EPOCHS,
    ApplyCall,
    Gradient,
    Observation,
    OptimizerStep,
    Rows,
    State,
    configuration,
)
from compare.engine.anew import train_whole
from compare.engine.described import layers_of
from compare.engine.fingerprints import container, distributed
from compare.engine.insides_keras import named_keras
from compare.engine.insides_tensorflow import in_xla
from compare.engine.keras_generation import fix_dropout, learning_rate
from compare.engine.run import Run, TrainingTask
from compare.errors import RequestError
from compare.patching import patch, undone
from compare.records.hashing import hash_of
from compare.records.model import AnyRecord, EpochRecord
from compare.trainer import Trainer
from compare.user_errors import line_now, without_exit
from compare.watch.initial_weights import InitialWeights
from compare.watch.settings import MADE_ALIKE, Detail
from compare.watch.stages import StageObserver
from compare.watch.trace_writer import rate_set_at


@contextmanager
def observing(window: tuple[int, int] = (1, sys.maxsize), *, latest_only: bool = False) -> Iterator[StageObserver]:
    """Observes the run that is made and trained in this context, as the observer's first training.

    Args:
        window: the first and the last step whose values are kept, counted over the whole training.
        latest_only: whether only the last two steps are kept, up to the first whose weights are not finite.
    """
    own = tuple(MADE_ALIKE)
    detail = Detail(own=own, close_up=(window,), latest_only=latest_only, max_steps=sys.maxsize, one=True)
    with undone():
        yield StageObserver(detail, InitialWeights(detail), None)


class ProbeRun(Run):
    """A run that records every call of an optimizer."""

    stops_at_nan = False

    def __init__(self, task: TrainingTask, *, seed: int, name: str, observer: StageObserver) -> None:
        self._observer, self._ends = observer, list[int]()
        observer.updates.on_update = self.on_apply
        self.observation = Observation(name, task.strategy.num_replicas_in_sync)
        super().__init__(task, seed=seed, epochs=EPOCHS, sinks=[self._on_record])
        self._lock = threading.Lock()
        self._waiting: list[list[Any]] = [[] for _ in range(self.observation.replicas)]
        self._optimizers: list[Any] = []
        self._foreign: set[int] = set()
        self._rate = 0.0
        self._model: Any = None
        self._variables: list[Any] = []
        self._index: dict[int, int] = {}
        self._latest: State = []

    # The interface of a run.

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        model, optimizer, loss, metrics = super().build()
        trainable = list(model.trainable_variables)
        taken = {id(distributed(v)) for v in trainable}
        rest = [v for v in model.variables if id(distributed(v)) not in taken]
        self._variables = [distributed(v) for v in [*trainable, *rest]]
        self.observation.names = [getattr(v, "path", v.name) for v in [*trainable, *rest]]
        self.observation.trainable = len(trainable)
        patch(model, "train_on_batch", partial(self._note_call, "on_batch"))
        self._built_optimizer = optimizer
        rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
        if hasattr(rate, "assign"):  # no schedule
            patch(rate, "assign", partial(self._note_call, "sets_rate"))
        self._rate = float(learning_rate(optimizer))
        self.observation.fixed_dropout = fix_dropout(model)
        self._model, self.observation.layers = model, layers_of(model)
        self._index = {id(v): i for i, v in enumerate(self._variables[: len(trainable)])}
        self._latest = self.observation.initial = self._read()
        return model, optimizer, loss, metrics

    def build_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        self.observation.asks_callbacks = True
        return super().build_callbacks()

    def train_dataset(self, epoch: Any) -> tf.data.Dataset:
        self.observation.dataset_at = line_now() or self.observation.dataset_at
        return super().train_dataset(epoch)

    def end_step(self, steps: int = 1) -> None:
        super().end_step(steps)
        if not tf.executing_eagerly():
            return  # in a tf.function, as the end of the epoch says
        self._latest = self._read()
        self._close(self._latest)
        self.observation.rates.append(self._rate)
        self._rate = float(learning_rate(self._optimizers[-1] if self._optimizers else self._built_optimizer))
        self.observation.step_states.append(self._latest)
        self.observation.updates_made.append(len(self.observation.optimizer_steps))
        self.observation.last_step_states[self.epoch] = self._latest

    def end_epoch(self, epoch: int, logs: Any) -> None:
        super().end_epoch(epoch, logs)
        epoch = operator.index(epoch)
        self.observation.reported_at = line_now()
        state = self._read()
        self._close(self._unread(state))  # validation may have changed the others
        self._latest = self.observation.epoch_end_states[epoch] = state

    # Recording of optimizer calls.

    def on_apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Records a call of ``apply``; within a ``tf.function``, adds the recording to its graph."""
        context = tf.distribute.get_replica_context()
        if not self._variables or context is None:  # applying across replicas makes the optimizer raise an error
            return
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        positions = [self._index.get(id(container(variable))) for variable in variables]
        known = {i: v for i, v in zip(positions, variables, strict=True) if i is not None}
        settings = self._settings(optimizer, known)
        if in_xla(tf.compat.v1.get_default_graph()):
            self.observation.compiled = True
            return
        self._foreign |= {id(container(v)) for v, place in zip(variables, positions, strict=True) if place is None}
        self.observation.foreign = len(self._foreign)
        given = {
            place: (tf.cast(gradient.indices, tf.int64), gradient.values)
            if isinstance(gradient, tf.IndexedSlices)
            else tf.convert_to_tensor(gradient)
            for gradient, place in zip(gradients, positions, strict=False)
            if gradient is not None and place is not None
        }
        rate, iterations = learning_rate(optimizer), tf.convert_to_tensor(optimizer.iterations)
        state = [variable.read_value() for variable in self._variables]
        told = [tf.cast(rate, tf.float64), tf.cast(iterations, tf.int64), given, state]
        # Outside strategy.run there is one gradient, whatever the number of replicas.
        alone = context.num_replicas_in_sync < self.observation.replicas
        form = tf.nest.map_structure(lambda _: None, told)
        self._observer.tell(partial(self._on_replica, settings, alone, form), tf.nest.flatten(told))

    def on_gradient(self, original: Any, tape: tf.GradientTape, *args: Any, **options: Any) -> Any:
        """Takes a gradient, and notes copies of the model's variables that the loss is computed from."""
        # Outside of strategy.run a tape sees one replica's copies, which do not know what they are copies of.
        own = {id(each) for variable in self._variables for each in (variable, *getattr(variable, "values", ()))}
        # A vector may be something else, such as the weights of classes.
        shapes = {tuple(variable.shape) for variable in self._variables if len(variable.shape) > 1}
        for variable in tape.watched_variables():
            name = str(getattr(variable, "name", "")).partition(":")[0]
            copied = id(container(variable)) not in own and tuple(variable.shape) in shapes
            if copied and name not in self.observation.foreign_in_loss:
                self.observation.foreign_in_loss.append(name)
        return original(tape, *args, **options)

    def on_strategy(self, original: Any, *args: Any, **options: Any) -> Any:
        """Notes that the trainer itself, or ``fit``, distributes work or data with the strategy.

        Keras's train_on_batch, evaluate and predict use the strategy as well, but train_on_batch passes the whole batch
        to every replica.
        """
        frame = sys._getframe(2)  # before patch's own
        callers = [caller for caller, _ in walk_stack(frame) if _in_keras(caller)]
        if not _in_keras(frame) or any(caller.f_code.co_name == "fit" for caller in callers):
            self.observation.distributed = True
        return original(*args, **options)

    def finish(self) -> Observation:
        self.observation.final = self._read()
        self.observation.layers_at_end = layers_of(self._model)
        if seen := self._observer.seen(0):
            self.observation.inside = replace(seen, ends=tuple(self._ends))
        return self.observation

    def _note_call(self, noted: str, original: Any, *args: Any, **options: Any) -> Any:
        """Sets a field of the observation, in a method that is called."""
        setattr(self.observation, noted, True)
        return original(*args, **options)

    def _settings(self, optimizer: Any, variables: Mapping[int, Any]) -> int:
        """The index of an optimizer's class and configuration; only its learning rate may have changed since."""
        with tf.init_scope():  # inside a graph that is traced, a learning rate has no value
            found = type(optimizer), configuration(optimizer, variables)
        self.observation.rate_set = rate_set_at(optimizer)
        for i, (cls, config) in enumerate(self.observation.optimizers):
            if cls is found[0] and _without_rate(config) == _without_rate(found[1]):
                return i
        self.observation.optimizers.append(found)
        return len(self.observation.optimizers) - 1

    def _on_replica(self, settings: int, alone: bool, form: Any, replica: Any, *arrays: np.ndarray) -> None:
        rate, iterations, given, state = tf.nest.pack_sequence_as(form, list(map(kept, arrays)))
        gradients: list[Gradient] = [None] * self.observation.trainable
        for place, value in given.items():
            gradients[place] = Rows(value[0], value[1], state[place].shape) if isinstance(value, tuple) else value
        call = ApplyCall(settings, float(rate), int(iterations), frozenset(given))
        with self._lock:
            for number, queue in enumerate(self._waiting):
                if number == replica or alone:
                    queue.append((call, gradients if number == replica else [None] * len(gradients), state))
            # Replicas report a step in any order; the step is complete when all have reported it.
            if all(self._waiting):
                calls, by_replica, states = zip(*(queue.pop(0) for queue in self._waiting), strict=True)
                self._add(calls[0], list(by_replica), list(states))

    def _add(self, call: ApplyCall, gradients: list[list[Gradient]], state: State) -> None:
        last = self._open
        before = self._latest if last is None else self._unread(state)
        new = OptimizerStep(self.epoch, gradients, state, before, [call])
        self._latest = state
        if last is not None and new.with_gradient and not new.with_gradient & last.with_gradient:
            # A call over other variables belongs to the same step: the model may have several optimizers.
            for merged, added in zip(last.gradients, gradients, strict=True):
                for k in new.with_gradient:
                    merged[k] = added[k]
            last.calls.append(call)
            return
        self._close(before)
        self.observation.optimizer_steps.append(new)

    @property
    def _open(self) -> OptimizerStep | None:
        """The last step, if nothing was read since."""
        steps = self.observation.optimizer_steps
        return steps[-1] if steps and steps[-1].after is None else None

    def _unread(self, state: State) -> State:
        """All variables after an update after which nothing was read (an epoch in one call).

        Trainable variables are those of the next ``state``, the others those that the last forward pass left.
        """
        count = self.observation.trainable
        return [[*now[:count], *then[count:]] for now, then in zip(state, self._latest, strict=True)]

    def _close(self, state: State) -> None:
        """Notes the variables after the last step, if nothing was read since."""
        if (last := self._open) is not None:
            last.after = state

    def _read(self) -> State:
        local = self.strategy.experimental_local_results
        copies = [[kept(np.asarray(each.read_value())) for each in local(variable)] for variable in self._variables]
        # A value that is not distributed belongs to every replica.
        replicas = range(self.observation.replicas)
        return [[values[replica if len(values) > 1 else 0] for values in copies] for replica in replicas]

    def _on_record(self, record: AnyRecord) -> None:
        self.observation.records.append(record)
        if isinstance(record, EpochRecord):
            self.observation.logs[record.epoch] = dict(record.logs)
            self._ends.append(max(steps.steps, default=0) if (steps := self._observer.seen(0)) else 0)


STRATEGY_METHODS = "run", "experimental_distribute_dataset", "distribute_datasets_from_function"
"""The methods of a strategy that a distributed trainer calls, itself or through Keras."""


def _in_keras(frame: FrameType) -> bool:
    return named_keras(str(frame.f_globals.get("__name__", "")))


def _without_rate(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("name", "learning_rate")}


_kept: WeakValueDictionary[Any, np.ndarray] = WeakValueDictionary()


def kept(array: np.ndarray) -> np.ndarray:
    """A copy of an array whose memory TensorFlow uses again; of equal ones that are still in use, the same copy."""
    return _kept.setdefault((array.shape, array.dtype, hash_of(array.tobytes())), np.array(array))


@contextmanager
def named(trainer: Trainer) -> Iterator[None]:
    """Notes in an exception which trainer raised it, for whoever sees no more than the traceback."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, RequestError):  # which names it
            error.add_note(f"raised as the trainer {trainer.name} was checked")
        with suppress(AttributeError):  # it takes no others
            error.raised_by = trainer  # type: ignore[attr-defined]
        raise


def observe(task: TrainingTask, trainer: Trainer, seed: int) -> Observation:
    """Runs a trainer for the check's epochs and observes it.

    Args:
        task: the check's few examples (see ``compare.check.batches``).

    Raises:
        Exception: whatever the trainer raises, with a note of its name.
    """
    with observing() as observer, named(trainer), without_exit(f"trainer {trainer.name}", trainer.train):
        run = ProbeRun(task, seed=seed, name=trainer.name, observer=observer)
        patch(tf.GradientTape, "gradient", run.on_gradient)
        for method in STRATEGY_METHODS:
            patch(run.strategy, method, run.on_strategy)
        train_whole(trainer, trainer.name, run)
        return run.finish()
