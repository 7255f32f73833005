"""Sees every optimizer step of a script, whoever makes it: fit, a tf.function, an eager loop, several replicas."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import Fingerprinter, container, copies_of
from compare.engine.insides_keras import (
    APPLICATIONS,
    BaseOptimizer,
    KerasTensor,
    Variable,
    any_symbolic_tensors,
    compute_output_spec,
    is_keras,
    keras,
)
from compare.engine.insides_tensorflow import Function, ResourceVariable, UninitializedVariable, called_as_it_is
from compare.engine.keras_generation import learning_rate, without_loss_scale
from compare.engine.noise_twins import HalfNoise, half_dtypes, mover
from compare.patching import Inside, patch
from compare.user_errors import line_now, line_that_made
from compare.watch.initial_weights import InitialWeights, mark_of
from compare.watch.random_numbers import RandomNumbers
from compare.watch.settings import SEEDS, Detail, Nudge
from compare.watch.trace import APART, INSIDE, LEFT, MADE_AFTER, MADE_AT, MADE_WITH
from compare.watch.trace_writer import TraceWriter
from compare.watch.training import ByHand, Training
from compare.watch.trainings import Trainings
from compare.watch.under_way import Here, eagerly, is_replica
from compare.watch.weights import strategy_of, value_of, weights_of

CHANGE = "assign", "assign_add", "assign_sub", "_strided_slice_assign"
ASSIGNMENTS = [(owner, name) for owner in (ResourceVariable, UninitializedVariable) for name in CHANGE]
"""The methods that change a variable; one that is made while a graph is traced is of another class."""


class EnoughSteps(BaseException):
    """Ends the script: all trainings that are watched have made as many steps as were asked for."""


class Observer:
    """Watches what is trained in this process.

    Args:
        writer: writes a fingerprint of the weights after each step, and how it was made; None for neither.

    Attributes:
        inside: calls inside which nothing is looked for.
        fitting: the models whose ``fit`` is under way.
        after_steps: called after steps, with their number so far in the training that numbers belong to.
        on_update: called with optimizer, gradients and variables before every update that a method of Keras's own
            makes, also of an optimizer that belongs to no training.
    """

    def __init__(self, settings: Detail, initial: InitialWeights, writer: TraceWriter | None) -> None:
        self.settings, self.initial, self.writer = settings, initial, writer
        self.trainings = Trainings(settings, initial)
        self.inside = Inside()
        self._building = Inside()
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()
        self.fitting: list[Any] = []
        self.after_steps: Callable[[int], None] = lambda steps: None
        self.on_update: Callable[[Any, list[Any], list[Any]], None] = lambda *given: None
        self._moment = 0
        self._round: list[Training] = []
        self._models: list[tuple[Callable[[], Any], list[np.ndarray | None]]] = []
        self._last_call: tuple[list[Any], Any] | None = None
        self._idle = 0.0
        self._half: list[HalfNoise] = []
        self._random = RandomNumbers()
        if SEEDS not in settings.own:
            self._random.take_over()
        self._here = Here()
        self._running = threading.main_thread()
        self._optimizers: set[type] = set()
        self._has_optimizers = False
        self._by_hand: dict[frozenset[int], ByHand] = {}
        initial.on_begun = self._begun
        patch(Function, "__call__", self._call)
        patch(Function, "_initialize_uninitialized_variables", self._initialize)
        patch(tf.distribute.Strategy, "run", self._run)
        patch(BaseOptimizer, "__init__", self._make_optimizer)
        for owner, name in APPLICATIONS:
            patch(owner, name, self._apply if name == "apply" else self._apply_pairs)
        patch(BaseOptimizer, "finalize_variable_values", self._finalize)
        patch(tf.GradientTape, "__enter__", self._enter_tape)
        patch(tf.GradientTape, "__exit__", self._exit_tape)
        patch(tf.GradientTape, "gradient", self._gradient)
        for owner, name in ASSIGNMENTS:
            patch(owner, name, self._assign)
        patch(keras.Model, "__call__", self._enter_model)
        patch(keras.layers.Layer, "__call__", self._enter_layer)
        for owner, method in ((keras.layers.Layer, "get_weights"), (BaseOptimizer, "build")):
            patch(owner, method, self._keep_weights)

    # Where a step may have been made.

    @property
    def _outermost(self) -> bool:
        """Whether this is the script's own level: no graph is traced, no call that may make steps is under way."""
        main = threading.current_thread() is threading.main_thread()
        return not self.inside and tf.executing_eagerly() and main

    def _run(self, original: Any, *args: Any, **options: Any) -> Any:
        if not is_replica():
            self._running = threading.current_thread()
        return self._call(original, *args, **options)

    def _call(self, original: Any, *args: Any, **options: Any) -> Any:
        """Looks for new models before, and for new steps after, an outermost call."""
        if self._building and isinstance(args[0], Function):  # a graph that has no variables is not to be kept
            return original(tf.function(args[0].python_function), *args[1:], **options)
        if not self._outermost or self._building:
            return original(*args, **options)
        self._begin_models()
        self._begin_step()
        call = _leaves(args, options) if self.settings.alone else []
        if self._last_call is not None and self._repeats_what_is_over(call, self._last_call[0]):
            return self._last_call[1]
        self._random.call()
        with self.inside:
            try:
                result = original(*args, **options)
            except tf.errors.OutOfRangeError:
                # The graph of fit counts a step that finds no more data, but changes no weights.
                for training in [each for each in self.trainings if each.is_unchanged()]:
                    training.leave_out()
                raise
        stepped = self.look()
        over = bool(stepped) and all(training.steps >= self.settings.max_steps for training in stepped)
        self._last_call = (call, result) if call and over else None
        if self._enough():
            self.end_early()
        return result

    def _repeats_what_is_over(self, call: Sequence[Any], before: Sequence[Any]) -> bool:
        """Whether a call would only go on with the first of a script's two trainings, whose steps are enough.

        Then it is left out, so that the second one begins soon; but not for long: the script may wait for something
        that only training brings about.
        """
        same = len(call) == len(before) and all(
            a is b or (isinstance(a, VALUES) and isinstance(b, VALUES)) for a, b in zip(call, before, strict=True)
        )
        if not same or self.trainings.second_began or any(training.closed for training in self.trainings):
            return False
        self._idle = self._idle or time.monotonic() + IDLE_SECONDS
        for training in self.trainings:
            training.over = True
        return time.monotonic() < self._idle

    def _call_model(self, original: Any, model: Any, *args: Any, **options: Any) -> Any:
        self.prepare(model, args, options)
        return original(model, *args, **options)

    def _enter_model(self, original: Any, model: Any, *args: Any, **options: Any) -> Any:
        if options.get("training") is True and self._here.layer is None and not self._here.tapes:
            for training in self.trainings:
                if training.root is model and training.steps and training.untaped is None:
                    training.untaped = self.line()
        with self._here.set(layer=model):
            return self._call_model(original, model, *args, **options)

    def _enter_layer(self, original: Any, layer: Any, *args: Any, **options: Any) -> Any:
        """Treats a layer that is called under a tape, outside of all models and layers, like a model."""
        inside = self._here.layer is not None or bool(self._building)
        if inside or not self._here.tapes or any_symbolic_tensors(args, options):
            return original(layer, *args, **options)
        self.initial.add(layer)
        return self._enter_model(original, layer, *args, **options)

    def _keep_weights(self, original: Any, *args: Any, **options: Any) -> Any:
        """What a script or an optimizer keeps of the weights before training is what training begins with."""
        if self._outermost and not self._building:
            self._begin_models()
        return original(*args, **options)

    def _enter_tape(self, original: Any, tape: Any) -> Any:
        if not self._here.tapes:
            self._here.taken, self._here.by_hand, self._here.applied = {}, None, {}
        self._here.tapes += 1
        if self._here.tapes == 1 and self._outermost:
            self._begin_step()
        return original(tape)

    def _exit_tape(self, original: Any, tape: Any, *error: Any) -> Any:
        self._here.tapes -= 1
        return original(tape, *error)

    def prepare(self, model: Any, args: Any, options: Any) -> None:
        """Gives a model its initial weights, before it is called for the first time."""
        if self._building:
            return  # building calls the model
        # A subclassed model may have been built without its layers, and has no weights yet.
        lacks = not (model.built and weights_of(model)) and model not in self._built and bool(args or options)
        if self._outermost:
            if lacks:
                self.build(model, args, options)
            self._begin_models()
        elif lacks and not tf.distribute.has_strategy() and not any_symbolic_tensors(args, options):
            with tf.init_scope():  # weights made while a graph is traced have no values before it has run
                self.build(model, args, options)
                self._begin_models()
        if self._here.tapes and not any_symbolic_tensors(args, options) and model not in self._used:
            eagerly(lambda: self._use(model))

    def _use(self, root: Any) -> None:
        """Begins what is about to be trained, if it has not begun yet."""
        with self.inside:
            self.initial.use(weights := weights_of(root), root, begin=True)
        if root.built and weights:
            self._used.add(root)

    def build_from(self, model: Any, x: Any) -> None:
        """Makes the weights of a model that ``fit`` would make later, from the data that it is given."""
        if (model.built and weights_of(model)) or x is None:
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
            return KerasTensor(value.shape, str(tf.as_dtype(value.dtype).name))

        self._built.add(model)
        with self._building, suppress(Exception):  # the call itself says what is wrong
            args, options = tf.nest.map_structure(symbolic, (args, options))
            compute_output_spec(model, *args, **options)

    def _make_optimizer(self, original: Any, optimizer: Any, *args: Any, **options: Any) -> None:
        """Watches methods that a script's own optimizers have instead of Keras's, which they may not call."""
        new = {cls for cls in type(optimizer).__mro__ if not is_keras(cls)} - self._optimizers
        self._optimizers |= new
        self._has_optimizers = True
        for cls in new:
            for name, watch in (("apply", self._apply), ("apply_gradients", self._apply_pairs)):
                if name in vars(cls):
                    patch(cls, name, watch)
        original(optimizer, *args, **options)
        object.__setattr__(optimizer, MADE_AT, self.line())
        object.__setattr__(optimizer, MADE_AFTER, self._moment)
        with suppress(Exception):  # made where a graph is traced, say
            object.__setattr__(optimizer, MADE_WITH, float(learning_rate(optimizer)))

    @called_as_it_is
    def _apply_pairs(self, original: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
        call, (pairs, *_) = _with_lists(original, optimizer, args, options)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        inner = without_loss_scale(optimizer)
        if is_keras(original) and inner is optimizer and isinstance(optimizer, BaseOptimizer):
            self.on_update(optimizer, grads, variables)
        return self._applied(call, inner, grads, variables)

    @called_as_it_is
    def _apply(self, original: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
        options = dict(sorted(options.items(), key=lambda named: named[0] != "grads"))
        call, (grads, *others) = _with_lists(original, optimizer, args, options)
        variables = others[0] if others and others[0] is not None else optimizer._trainable_variables
        if is_keras(original):
            self.on_update(optimizer, list(grads), list(variables))
        return self._applied(call, optimizer, list(grads), list(variables))

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """Keeps what a loss depends on, and the gradients: a script without optimizers changes it by hand."""
        if self._has_optimizers:
            return original(tape, target, sources, *args, **options)
        watched = () if self._here.by_hand is not None else tape.watched_variables()
        gradients = original(tape, target, sources, *args, **options)
        given = zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=False)
        pairs = [*((None, each) for each in watched), *self._here.taken.values(), *given]
        known = [pair for pair in pairs if isinstance(pair[1], tf.Variable | Variable)]
        self._here.taken = {id(container(each)): (gradient, each) for gradient, each in known}
        return gradients

    def _assign(self, original: Any, variable: Any, *args: Any, **options: Any) -> Any:
        """Sees a step by hand: the script changes the variables that it has just taken gradients of.

        One that has optimizers may do so beside their steps, as SAM does, so that only theirs are seen.
        """
        here, place = self._here, id(container(variable))
        if self._has_optimizers or place not in here.taken or self.initial.aside or is_replica():
            if not self.initial.aside and variable.trainable and tf.executing_eagerly():
                self.initial.assigned(container(variable))
                for training in self.trainings:
                    training.touched |= place in training.updated
            return original(variable, *args, **options)
        by_hand = None
        if here.by_hand is None:
            gradients, variables = map(list, zip(*here.taken.values(), strict=True))
            if (key := frozenset(here.taken)) not in self._by_hand:
                self._by_hand[key] = eagerly(ByHand)
            by_hand = self._by_hand[key]
            here.by_hand = self._begin_update(by_hand, gradients, variables)
        with self.initial.aside:
            if by_hand is not None:
                by_hand.iterations.assign_add(1)
                self._random.updated()
            result = original(variable, *args, **options)
        here.taken = {other: pair for other, pair in here.taken.items() if other != place}
        self._end_update(here.by_hand)
        return result

    def _applied(self, call: Callable[[], Any], optimizer: Any, grads: list[Any], variables: list[Any]) -> Any:
        """Applies an optimizer, whoever has written its method, which may have parameters of any names."""
        if self._here.applying:  # a LossScaleOptimizer applies with the optimizer that it wraps
            return call()
        training = self._begin_update(optimizer, grads, variables)
        with self._here.set(applying=True), self.initial.aside:
            result = call()
            self._random.updated()
        if training is not None:
            self._join_parts(training, optimizer, variables)
        self._end_update(training, accumulates=bool(getattr(optimizer, "gradient_accumulation_steps", None)))
        return result

    def _join_parts(self, training: Training, optimizer: Any, variables: Sequence[Any]) -> None:
        """Takes for one step what an optimizer does to some variables, and then to others, by the same gradients."""
        given = frozenset(id(container(variable)) for variable in variables)
        parts = self._here.applied.get(id(optimizer), ())
        parts = [given] if any(given & part for part in parts) else [*parts, given]
        self._here.applied = {**self._here.applied, id(optimizer): parts}
        if self._outermost and len(parts) > 1:
            training.counts[id(optimizer)].leave_out()
        elif not self._outermost:
            training.counts[id(optimizer)].times = len(parts)

    def _begin_update(self, optimizer: Any, grads: list[Any], variables: list[Any]) -> Training | None:
        """Finds the training that an update belongs to; ends the script if it has made enough steps."""
        thread = self._running if is_replica() else threading.current_thread()
        if thread is not threading.main_thread() and self.writer is not None:
            self.writer.unseen("trains in a thread of its own, and only the main thread is watched: train there")
        with _lock:
            if self._outermost:
                self._find_resets()
            with self.inside:
                training = self.trainings.of_update(optimizer, variables)
        if training is not None and self._outermost and training.steps >= self.settings.max_steps and self._enough():
            self.end_early()
        if training is not None:
            training.eager = tf.executing_eagerly()
            self.on_apply(training, optimizer, grads, variables)
        return training

    def _end_update(self, training: Training | None, *, accumulates: bool = False) -> None:
        """Records what an update has made of the weights, and the step, if it was one."""
        if training is not None:
            self.on_applied(training)
        if self._outermost and not self.look() and training is not None and not accumulates:
            self._complete(training)  # another optimizer, or variable, has made its part of the step before

    def _finalize(self, original: Any, optimizer: Any, variables: Any) -> Any:
        """Takes over the averages of the weights that an optimizer keeps, as ``fit`` does after its last epoch."""
        result = original(optimizer, variables)
        if not self.inside:
            self.leaves([each for each in self.trainings if id(optimizer) in each.counts])
        return result

    def leaves(self, trainings: Sequence[Training]) -> None:
        """Keeps the weights with which trainings are left."""
        for training in trainings:
            if training.fingerprint is not None and not training.closed:
                training.left = training.steps, training.fingerprint()

    def on_apply(self, training: Training, optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        """Called before an optimizer is applied; a place for recording stages."""

    def on_applied(self, training: Training) -> None:
        """Called after an optimizer was applied."""

    def on_drawn(self, name: str, numbers: Any) -> None:
        """Called after the script has called a function of ``tf.random``."""

    # Trainings and their steps.

    def _begin_step(self) -> None:
        """Called where a step may begin."""
        self._find_resets()
        self.initial.refresh()
        with self.inside, self.initial.aside:
            for half in self._half:
                half.begin()

    def _begin_models(self) -> None:
        with self.inside:
            self.initial.look()

    def _begun(self, variables: Sequence[Any]) -> None:
        """Moves initial weights, for a noise twin; those of a script's second model begin another training."""
        nudge = self.settings.nudge
        if self.settings.alone and self.initial.trained:
            self._random.restart()
        if nudge is not None and nudge.start <= 1:
            with self.inside, self.initial.aside:
                copies = copies_of(strategy_of(variables), variables)
                mover(copies, nudge.twin, nudge.units)(tf.constant(1))
                self._noise_in_half(nudge, variables, copies)

    def _noise_in_half(self, nudge: Nudge, variables: Sequence[Any], copies: Sequence[Sequence[Any]]) -> None:
        """Has the trained ones among variables moved during each step from now on."""
        trained = [each for variable, each in zip(variables, copies, strict=True) if variable.trainable]
        dtypes = set().union(*map(half_dtypes, self.initial.roots()))
        self._half.append(HalfNoise(trained, dtypes, nudge.twin, nudge.units))
        if self._here.tapes:  # the first step is under way
            self._half[-1].begin()

    @property
    def reporting(self) -> Training | None:
        """The training that reported numbers belong to: the first of those that make steps now."""
        now = next(iter(self.trainings.now_trained), None)
        return None if now is None or not now.steps or now.over else now

    def _initialize(self, original: Any, *args: Any) -> None:
        """Begins the variables that a graph has made, and their trainings: they get values before its first run."""
        made = [variable for variable, _ in args[1]]
        try:
            original(*args)
        finally:  # if it could not, the function itself does, as it runs, what has no values by then
            eagerly(lambda: self.initial.begin_made_in_graph(made))
        late = [each for each in self.trainings if each.initial is None and not each.steps]
        if late:
            with self.inside:
                eagerly(lambda: self.trainings.set_out_late(late))

    def _find_resets(self) -> None:
        """Ends the trainings whose weights the script has set back to what they were, and begins others.

        Whatever else it has set them to belongs to the step before, such as weights that are clipped.
        """
        if self.settings.one:
            return
        for training in [each for each in self.trainings if each.touched and not each.closed]:
            training.touched = False
            if training.steps and training.is_reset():
                with self.inside:
                    self._random.restart()
                    self.trainings.begin_again(training)
            elif training.steps:
                self._complete(training)
                training.adjusted = True
                for count in training.counts.values():
                    count.set_back()

    def look(self) -> list[Training]:
        """Records the weights after the steps that were made since the last look; returns whose they were."""
        with self.inside, self.initial.aside:
            for half in self._half:
                half.end()
        stepped = []
        for training in self.trainings:
            made = 0 if training.closed else training.made()
            if made <= training.steps:
                continue
            stepped.append(training)
            if training.steps >= self.settings.max_steps:
                training.over = True
                continue
            if not training.began:
                training.began = self._moment + 1
                training.parts.insert(0, (0, next(each.begun for each in training.counts.values() if each.made())))
                training.fingerprint = self._fingerprint(training)
                if self.writer is not None:
                    self.writer.begin(training, training.fingerprint, self._way)
            training.ended = self._moment + 1
            training.fingerprint = training.fingerprint or self._fingerprint(training)
            if not self.initial.trained:
                self.initial.step_made()
                for root in self.initial.smallest_first():
                    self._models.append((weakref.ref(root), [mark_of(each).value for each in weights_of(root)]))
                for variable in self.initial.variables():  # which a function of the script's may be the last to have
                    self._models.append((partial(_same, variable), [mark_of(variable).value]))
            training.steps = made
            self._nudged(training, made)
            self._write(training)
            self._nudged(training, made + 1)
            if training.move is not None and training.fingerprint is not None:
                training.now = training.fingerprint()
            self.on_step(training)
        self._moment += bool(stepped)
        self._complete_round(stepped)
        if stepped and (now := self.reporting) is not None:
            self.after_steps(now.steps)
        return stepped

    def _write(self, training: Training) -> None:
        """Writes the weights after a step, and the optimizers that are used for the first time."""
        if self.writer is None or training.fingerprint is None:
            return
        for count in training.counts.values():
            if not any(count.optimizer is each for each in training.described) and count.made():
                self.writer.optimizer(training.number, count.optimizer, own=not is_keras(type(count.optimizer)))
                training.described.append(count.optimizer)
        training.last = training.now = training.fingerprint()
        self.writer.step(training.number, training.steps, *training.last)

    def ended(self) -> None:
        """Records, when the script has ended, what trainings leave, and the models that no optimizer has trained.

        The script may have changed them by hand, such as an average of another model's weights.
        """
        for training in self.trainings:
            if training.touched and training.adjusted:  # after the last step as after those before
                self._complete(training)
        assert self.writer is not None
        self.writer.whole, known = True, set(self.trainings.updated)
        steps, numbers = max((each.steps for each in self.trainings), default=0), itertools.count(len(self.trainings))
        if self.settings.alone:
            return
        for training in [each for each in self.trainings if each.fingerprint and not (each.over or each.closed)]:
            assert training.fingerprint is not None and training.last is not None
            state = Training(next(numbers), training.root, training.created, training.variables)
            state.state, state.of = LEFT, training.number
            self.writer.begin(state, training.fingerprint, "loop")
            content = self.writer.content(training.number)
            self.writer.content(state.number).update(optimizers=content["optimizers"], fit=content["fit"])
            left = training.left[1] if training.left[0] == training.steps else training.last
            moments = (0, training.last), (training.steps, left), (training.steps + 1, training.fingerprint())
            for step, weights in moments:
                self.writer.step(state.number, step, *weights)
        for reference, values in self._models:
            root = reference()
            if root is None:
                continue
            state = Training(next(numbers), root, self.initial.place(root), weights_of(root))
            initial = [value for value in values if value is not None]
            if not state.ids or state.ids & known or len(initial) != len(state.variables):
                continue
            if isinstance(root, tf.Variable) and not np.array_equal(value_of(root), initial[0]):
                continue  # such as a sum over steps
            known |= state.ids
            state.state = INSIDE if any(state.ids <= each.ids for each in self.trainings) else APART
            state.initial, fingerprint = initial, self._fingerprint(state)
            self.writer.begin(state, fingerprint, "loop")
            self.writer.step(state.number, steps, *fingerprint())

    def untrained(self) -> dict[str, list[str]]:
        """Why steps may be missing: models without trainable weights, optimizers that count none, further trainings."""
        models = [str(model.name) for model in self.trainings.fitted if model.built and not model.trainable_weights]
        counts = [count for each in self.trainings if not each.began for count in each.counts.values()]
        # One of Keras's own counts its steps: it has made none, as over an empty data set. But it may skip all of them.
        kinds = [type(count.optimizer) for count in counts]
        optimizers = [kind.__name__ for kind in kinds if not is_keras(kind) or kind.__name__ == "LossScaleOptimizer"]
        return {"models": models, "optimizers": optimizers, "further": self.trainings.further}

    def _complete_round(self, stepped: Sequence[Training]) -> None:
        """Records again what this step of another training has changed, such as moving statistics.

        An eager loop trains a GAN's two models one after the other, a graph both at once: their weights are recorded at
        the same moment, after all that one round has done to them. Another round begins with the first training again.
        """
        if not stepped:
            return
        if any(training in self._round for training in stepped):
            self._round.clear()
        now = set().union(*(training.updated for training in stepped))
        for training in self._round:
            state = len(training.trained) < len(training.variables) and not training.updated & now
            if state and not training.touched:
                self._complete(training)
        self._round += stepped

    def _complete(self, training: Training) -> None:
        """Records the weights after the last step again: more of it has been done since."""
        if training.steps and training.fingerprint is not None and not (training.over or training.closed):
            if self.writer is not None:
                training.last = training.now = training.fingerprint()
                self.writer.step(training.number, training.steps, *training.last)
            self.on_step(training)

    @staticmethod
    def _fingerprint(training: Training) -> Fingerprinter:
        return Fingerprinter(strategy_of(training.variables), training.variables)

    @property
    def _way(self) -> str:
        """What trains now."""
        if not self.fitting:
            return "loop"
        own = type(self.fitting[-1]).train_step is not keras.Model.train_step
        return "fit with its own train_step" if own else "fit"

    def _enough(self) -> bool:
        """Whether no more steps are needed: of what is awaited, and of one script, of a second training."""
        now = [training for training in self.trainings.now_trained if training.steps]
        begun = {training.number for training in self.trainings if training.began}
        enough = bool(now) and all(training.steps >= self.settings.max_steps for training in now)
        enough = enough and begun.issuperset(self.settings.awaits)
        return enough and (not self.settings.alone or self.trainings.second_began)

    def end_early(self) -> NoReturn:
        """Ends the script, which has some time for it, and is ended otherwise: what it does from now on is lost.

        Raises:
            EnoughSteps: always.
        """
        assert self.writer is not None
        self.writer.enough()
        raise EnoughSteps

    def fits(self, model: Any) -> None:
        """Says that ``fit`` of a model begins; it may go on with a training."""
        self._find_resets()
        training = self.trainings.of_fit(model)
        count = None if training is None else training.counts.get(id(getattr(model, "optimizer", None)))
        if training is not None and count is not None and training.steps:
            training.parts.append((training.steps, count.iterations()))

    def is_over(self, model: Any) -> bool:
        """Whether ``fit`` of a model need not go on: of one script, the first training has made its steps."""
        if not self.settings.alone:
            return False  # whatever its training, which is found by the weights of all models
        training = self.trainings.of_fit(model)
        return training is not None and training.steps >= self.settings.max_steps and not self.trainings.second_began

    def line(self, made: Any = None) -> tuple[str, int, str] | None:
        """The script's line that is running, or has made a tensor: file, number and text; None if it is another's."""
        found = line_now() if made is None else line_that_made(made)
        return found and (*self.settings.place(*found[:2]), found[2])

    def on_step(self, training: Training) -> None:
        """Called after a step was recorded."""

    def _nudged(self, training: Training, step: int) -> None:
        """Moves the weights, for a noise twin, from the step on where its noise begins."""
        nudge = self.settings.nudge
        if nudge is None or step < nudge.start:
            return
        assert training.fingerprint is not None
        if training.move is None:
            copies = training.fingerprint.copies
            training.move = mover(copies, nudge.twin, nudge.units)
            if nudge.start > 1:
                self._noise_in_half(nudge, training.variables, copies)
        with self.inside, self.initial.aside:
            training.move(tf.constant(2 * step + 1))


T = TypeVar("T")
_lock = threading.Lock()
IDLE_SECONDS = 20
"""How long calls are left out that would only go on with a training whose steps are enough."""
VALUES = (tf.Tensor, tf.distribute.DistributedValues, np.ndarray, np.generic, bool, int, float, str, bytes)
"""What may be another one at every call of a step."""


def _with_lists(
    original: Callable[..., T], optimizer: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Callable[[], T], list[Any]]:
    """A call of an optimizer's method, whatever its parameters are called, and what is given for them, in order.

    What can be read only once, such as a ``zip``, is a list in both.
    """
    if not is_keras(original):
        autograph = tf.__internal__.autograph
        original = autograph.tf_convert(original, autograph.control_status_ctx())
    values = [list(value) if isinstance(value, Iterator) else value for value in (*args, *options.values())]
    named = dict(zip(options, values[len(args) :], strict=True))
    return partial(original, optimizer, *values[: len(args)], **named), values


def _same(root: T) -> T:
    return root


def _leaves(*arguments: Any) -> list[Any]:
    """What a call is given; empty if that cannot be told."""
    try:
        return list(tf.nest.flatten(arguments))
    except Exception:  # dictionaries whose keys have no order
        return []
