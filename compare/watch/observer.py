"""Sees every optimizer step of a script, whoever makes it: fit, a tf.function, an eager loop, several replicas."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from compare.engine.fingerprints import Fingerprinter, copies_of, distributed
from compare.engine.noise_twins import mover
from compare.watch.alike import InitialWeights
from compare.watch.patching import patch
from compare.watch.settings import Settings
from compare.watch.trace import TraceWriter


class EnoughSteps(BaseException):
    """Ends the script: all trainings that are watched have made as many steps as were asked for."""


class Training:
    """One training: a model, its optimizers, and the steps they have made.

    Attributes:
        number: 0 for the script's first training.
        created: the number of the model in the order of creation.
        model: the model; None if the optimizer's variables are not a model's.
        variables: the variables that are compared: all weights of the model.
        steps: the number of optimizer steps so far.
        optimizers: each optimizer with its variables, by its id.
        described: how many of them are in the trace.
        fingerprint: computes the fingerprints; None before the first step.
        move: moves the weights, for a noise twin.
        initial: the weights that it began with; None if they were not seen.
    """

    def __init__(self, number: int, model: Any, variables: list[Any]) -> None:
        self.number, self.model, self.variables = number, model, variables
        self.steps = 0
        self.optimizers: dict[int, tuple[Any, frozenset[int]]] = {}
        self.described = 0
        self._counted: dict[int, tuple[int, int]] = {}
        self.fingerprint: Fingerprinter | None = None
        self.move: Any = None
        self.initial: Any = None
        self.created = 0

    def trains(self, variables: list[Any]) -> bool:
        """Whether an optimizer's variables are among those of this training."""
        known = {id(distributed(variable)) for variable in self.variables}
        return any(id(distributed(variable)) in known for variable in variables)

    def made(self) -> int:
        """The number of steps that the optimizers have made.

        An optimizer that takes the place of another goes on with its count, and so does one whose ``iterations`` were
        reset; optimizers of different variables make their part of the same steps.
        """
        counts: dict[frozenset[int], int] = {}
        for key, (optimizer, variables) in self.optimizers.items():
            now, (before, last) = int(optimizer.iterations.numpy()), self._counted.get(key, (0, 0))
            self._counted[key] = before, _ = (before + last if now < last else before), now
            counts[variables] = counts.get(variables, 0) + before + now
        return max(counts.values(), default=0)


class Observer:
    """Watches the script in this process.

    Args:
        settings: what is recorded.
        initial: the initial weights.
        writer: where it is recorded.
    """

    def __init__(self, settings: Settings, initial: InitialWeights, writer: TraceWriter) -> None:
        self.settings, self.initial, self.writer = settings, initial, writer
        self.trainings: list[Training] = []
        self.inside = 0
        self._building = False
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()
        self.fitted: list[Any] = []
        self._applying = threading.local()
        patch(polymorphic_function.Function, "__call__", self._call)
        patch(tf.distribute.Strategy, "run", self._call)
        patch(BaseOptimizer, "apply", self._apply)
        patch(keras.Model, "__call__", self._call_model)

    # Where a step may have been made.

    @property
    def _outermost(self) -> bool:
        """Whether this is the script's own level: no graph is traced, no call that may make steps is under way."""
        main = threading.current_thread() is threading.main_thread()
        return not self.inside and tf.executing_eagerly() and main

    def _call(self, original: Any, *args: Any, **options: Any) -> Any:
        """Looks for new models before, and for new steps after, an outermost call."""
        if not self._outermost or self._building:
            return original(*args, **options)
        self._begin_models()
        with self._aside():
            result = original(*args, **options)
        self.look()
        return result

    def _call_model(self, original: Any, model: Any, *args: Any, **options: Any) -> Any:
        self.prepare(model, args, options)
        return original(model, *args, **options)

    def prepare(self, model: Any, args: Any, options: Any) -> None:
        """Gives a model its initial weights, before it is called for the first time."""
        if self._building:
            return  # building calls the model
        # A subclassed model may have been built without its layers, and has no weights yet.
        lacks = not (model.built and model.weights) and model not in self._built and bool(args)
        if self._outermost:
            if lacks:
                self.build(model, args, options)
            self._begin_models()
        elif lacks and not tf.distribute.has_strategy() and not any_symbolic_tensors(args):
            with tf.init_scope():  # weights made while a graph is traced have no values before it has run
                self.build(model, args, options)
                self._begin_models()

    def build_from(self, model: Any, x: Any) -> None:
        """Makes the weights of a model that ``fit`` would make later, from the data that it is given."""
        if (model.built and model.weights) or x is None:
            return
        spec = x.element_spec if isinstance(x, tf.data.Dataset) else None
        if isinstance(spec, tuple):
            spec = spec[0]
        example = spec if spec is not None else tf.nest.map_structure(lambda each: each[:1], x)
        with model.distribute_strategy.scope():
            self.build(model, (example,), {"training": False})

    def build(self, model: Any, args: Any, options: Any) -> None:
        """Makes the weights of a model that has none, without computing anything, so that they can be set."""

        def symbolic(value: Any) -> Any:
            if not hasattr(value, "shape"):
                return value
            return keras.KerasTensor(value.shape, str(tf.as_dtype(value.dtype).name))

        self._building = True
        self._built.add(model)
        try:
            args, options = tf.nest.map_structure(symbolic, (args, options))
            keras.src.backend.compute_output_spec(model, *args, **options)
        except Exception:
            return  # the call itself says what is wrong
        finally:
            self._building = False

    def _apply(self, original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if getattr(self._applying, "now", False):  # a LossScaleOptimizer applies with the optimizer that it wraps
            return original(optimizer, grads, trainable_variables)
        grads = list(grads)
        variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        with _lock:
            training = self._training_of(optimizer, variables)
        if training is not None:
            self.on_apply(training, optimizer, grads, variables)
        self._applying.now = True
        try:
            result = original(optimizer, grads, trainable_variables)
        finally:
            self._applying.now = False
        if training is not None:
            self.on_applied(training)
        if self._outermost:
            self.look()
        return result

    def on_apply(self, training: Training, optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        """Called before an optimizer is applied; a place for recording stages."""

    def on_applied(self, training: Training) -> None:
        """Called after an optimizer was applied."""

    # Trainings and their steps.

    def _begin_models(self) -> None:
        nudge = self.settings.nudge
        with self._aside():
            for model in self.initial.look():
                if nudge is not None and nudge.start <= 1:
                    copies = copies_of(strategy_of(model.weights), model.weights)
                    mover(copies, nudge.twin, nudge.units)(tf.constant(1))

    @property
    def reporting(self) -> Training | None:
        """The training that reported numbers belong to: the last of a script that trains twice, else the first."""
        return self.trainings[-1 if self.settings.alone else 0] if self.trainings else None

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Marks calls inside which nothing is looked for."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def _training_of(self, optimizer: Any, variables: list[Any]) -> Training | None:
        training = next((each for each in self.trainings if each.trains(variables)), None)
        if training is None:
            if len(self.trainings) == self.settings.trainings:
                return None
            model = self._model_of(optimizer, variables)
            weights = list(variables) if model is None else list(model.weights)
            training = Training(len(self.trainings), model, weights)
            training.initial = None if model is None else self.initial.of(model)
            training.created = self.initial.place(model)
            self.trainings.append(training)
        if id(optimizer) not in training.optimizers:
            training.optimizers[id(optimizer)] = optimizer, frozenset(id(distributed(each)) for each in variables)
        return training

    def trainings_of(self, model: Any) -> list[Training]:
        """The trainings of a model or of its parts."""
        weights = {id(distributed(weight)) for weight in model.weights}
        return [each for each in self.trainings if id(distributed(each.variables[0])) in weights]

    def _model_of(self, optimizer: Any, variables: list[Any]) -> Any:
        """The smallest model that has all the variables; one that fit trains with this optimizer, if there is one."""
        wanted = {id(distributed(variable)) for variable in variables}
        fitted = [model for model in reversed(self.fitted) if getattr(model, "optimizer", None) is optimizer]
        models = [*fitted, *sorted(self.initial.models(), key=lambda model: len(model.weights))]
        for model in models:
            if wanted <= {id(distributed(variable)) for variable in model.weights}:
                return model
        return None

    def look(self) -> None:
        """Records the weights after the steps that were made since the last look."""
        for training in self.trainings:
            made = training.made()
            if made <= training.steps:
                continue
            if training.fingerprint is None:
                training.fingerprint = Fingerprinter(strategy_of(training.variables), training.variables)
                self.writer.begin(training, training.fingerprint)
            if not self.initial.trained:
                self.initial.step_made()
            training.steps = made
            for optimizer, _ in list(training.optimizers.values())[training.described :]:
                self.writer.optimizer(training.number, optimizer)
                training.described += 1
            self._nudged(training, made)
            self.writer.step(training.number, made, *training.fingerprint())
            self._nudged(training, made + 1)
            self.on_step(training)
        enough = [each.steps >= self.settings.max_steps for each in self.trainings]
        if all(enough) and len(enough) > int(self.settings.alone):
            raise EnoughSteps

    def on_step(self, training: Training) -> None:
        """Called after a step was recorded."""

    def _nudged(self, training: Training, step: int) -> None:
        """Moves the weights, for a noise twin, from the step on where its noise begins."""
        nudge = self.settings.nudge
        if nudge is None or step < nudge.start:
            return
        assert training.fingerprint is not None
        if training.move is None:
            training.move = mover(training.fingerprint.copies, nudge.twin, nudge.units)
        with self._aside():
            training.move(tf.constant(2 * step + 1))


_lock = threading.Lock()


def strategy_of(variables: list[Any]) -> tf.distribute.Strategy:
    """Returns the strategy under which variables were created."""
    return getattr(distributed(variables[0]), "distribute_strategy", None) or tf.distribute.get_strategy()
