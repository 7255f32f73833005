"""Sees every optimizer step of a script, whoever makes it: fit, a tf.function, an eager loop, several replicas."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from compare.engine.insides_keras import BaseOptimizer, any_symbolic_tensors, is_keras, keras
from compare.engine.insides_tensorflow import Function
from compare.patching import Inside, patch
from compare.user_errors import line_now, line_that_made
from compare.verdict.findings import Source
from compare.watch.alike import RandomNumbers
from compare.watch.beside import Beside
from compare.watch.initial_weights import Builds, InitialWeights
from compare.watch.noise import Noise
from compare.watch.repeats import Repeats, leaves
from compare.watch.settings import SEEDS, Detail
from compare.watch.trace import BY_OWN_STEP, MADE_AT
from compare.watch.trace_writer import TraceWriter
from compare.watch.trainings import Training, Trainings
from compare.watch.under_way import Here, eagerly, is_replica
from compare.watch.updates import Updates
from compare.watch.weights import weights_of


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
        after_call: called after an outermost call, with what it returns.
        moment: the number of steps so far; those of several trainings at once are one.
    """

    def __init__(self, settings: Detail, initial: InitialWeights, writer: TraceWriter | None) -> None:
        self.settings, self.initial, self.writer = settings, initial, writer
        self.trainings = Trainings(settings, initial)
        self.inside = Inside()
        self.builds = Builds()
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()
        self.fitting: list[Any] = []
        self.after_steps: Callable[[int], None] = lambda steps: None
        self.after_call: Callable[[Any], None] = lambda result: None
        self.moment = 0
        self._round: list[Training] = []
        self._beside = Beside(initial)
        self._repeats = Repeats(self.trainings)
        self._random = RandomNumbers()
        if SEEDS not in settings.own:
            self._random.take_over()
        self._here = Here()
        self._noise = Noise(settings.nudge, initial, self.inside, self._here)
        self._running = threading.main_thread()
        self.updates = Updates(self, self._here, self._random)
        initial.on_begun = self._begun
        patch(Function, "__call__", self._call)
        patch(Function, "_initialize_uninitialized_variables", self._initialize)
        patch(tf.distribute.Strategy, "run", self._run)
        patch(BaseOptimizer, "finalize_variable_values", self._finalize)
        patch(tf.GradientTape, "__enter__", self._enter_tape)
        patch(tf.GradientTape, "__exit__", self._exit_tape)
        patch(tf.GradientTape, "watch", self._watch)
        patch(tf.GradientTape, "gradient", self.updates.gradient)
        patch(keras.Model, "__call__", self._enter_model)
        patch(keras.layers.Layer, "__new__", self._make_layer)  # Keras looks at the parameters of __init__
        patch(keras.layers.Layer, "__call__", self._enter_layer)
        for owner, method in ((keras.layers.Layer, "get_weights"), (BaseOptimizer, "build")):
            patch(owner, method, self._keep_weights)

    # Where a step may have been made.

    @property
    def outermost(self) -> bool:
        """Whether this is the script's own level: no graph is traced, no call that may make steps is under way."""
        main = threading.current_thread() is threading.main_thread()
        return not self.inside and tf.executing_eagerly() and main

    def _run(self, original: Any, *args: Any, **options: Any) -> Any:
        if not is_replica():
            self._running = threading.current_thread()
        return self._call(original, *args, **options)

    def _call(self, original: Any, *args: Any, **options: Any) -> Any:
        """Looks for new models before, and for new steps after, an outermost call."""
        if self.builds.under_way and isinstance(args[0], Function):  # a graph that has no variables is not to be kept
            return original(tf.function(args[0].python_function), *args[1:], **options)
        if not self.outermost or self.builds.under_way:
            return original(*args, **options)
        self._begin_models()
        self._begin_step()
        call = leaves(args, options) if self.settings.alone else []
        if self._repeats.leave_out(call):
            return self._repeats.result
        self._random.call()
        with self.inside:
            try:
                result = original(*args, **options)
            except tf.errors.OutOfRangeError:
                # The graph of fit counts a step that finds no more data, but changes no weights.
                for training in [each for each in self.trainings if each.is_unchanged()]:
                    training.leave_out()
                raise
        self.updates.called(args[0], result)
        stepped = self.look()
        over = bool(stepped) and all(training.steps >= self.settings.max_steps for training in stepped)
        self._repeats.keep(call, result, over=over)
        self.after_call(result)
        if self._enough():
            self.end_early()
        return result

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

    def _make_layer(self, original: Any, *args: Any, **options: Any) -> Any:
        layer = original(*args, **options)
        object.__setattr__(layer, MADE_AT, self.line())
        return layer

    def _enter_layer(self, original: Any, layer: Any, *args: Any, **options: Any) -> Any:
        """Treats a layer that is called under a tape, outside of all models and layers, like a model."""
        inside = self._here.layer is not None or bool(self.builds.under_way)
        if inside or not self._here.tapes or any_symbolic_tensors(args, options):
            return original(layer, *args, **options)
        self.initial.add(layer)
        return self._enter_model(original, layer, *args, **options)

    def _keep_weights(self, original: Any, *args: Any, **options: Any) -> Any:
        """What a script or an optimizer keeps of the weights before training is what training begins with."""
        if self.outermost and not self.builds.under_way:
            self._begin_models()
        return original(*args, **options)

    def _enter_tape(self, original: Any, tape: Any) -> Any:
        if tape._watch_accessed_variables:  # else it is as if there were none, as in validation by the training's code
            self._begin_tape(tape)
        return original(tape)

    def _watch(self, original: Any, tape: Any, *args: Any, **options: Any) -> Any:
        if tape._recording and not hasattr(tape, "_counted"):
            self._begin_tape(tape)
        return original(tape, *args, **options)

    def _begin_tape(self, tape: Any) -> None:
        if not self._here.tapes:
            self._here.taken, self._here.by_hand, self._here.applied = {}, None, {}
        self._here.tapes += 1
        tape._counted = True
        if self._here.tapes == 1 and self.outermost:
            self._begin_step()

    def _exit_tape(self, original: Any, tape: Any, *error: Any) -> Any:
        self._here.tapes -= vars(tape).pop("_counted", False)
        return original(tape, *error)

    def prepare(self, model: Any, args: Any, options: Any) -> None:
        """Gives a model its initial weights, before it is called for the first time."""
        if self.builds.under_way:
            return  # building calls the model
        lacks = bool(args or options) and self.builds.is_due(model)
        if self.outermost:
            if lacks:
                self.builds.build(model, args, options)
            self._begin_models()
        elif lacks and not tf.distribute.has_strategy() and not any_symbolic_tensors(args, options):
            with tf.init_scope():  # weights made while a graph is traced have no values before it has run
                self.builds.build(model, args, options)
                self._begin_models()
        if self._here.tapes and not any_symbolic_tensors(args, options) and model not in self._used:
            eagerly(lambda: self._use(model))

    def _use(self, root: Any) -> None:
        """Begins what is about to be trained, if it has not begun yet."""
        with self.inside:
            self.initial.use(weights := weights_of(root), root, begin=True)
        if root.built and weights:
            self._used.add(root)

    def begin_update(self, optimizer: Any, grads: list[Any], variables: list[Any]) -> Training | None:
        """Finds the training that an update belongs to; ends the script if it has made enough steps."""
        thread = self._running if is_replica() else threading.current_thread()
        if thread is not threading.main_thread() and self.writer is not None:
            self.writer.unseen("trains in a thread of its own, and only the main thread is watched: train there")
        with _lock:
            if self.outermost:
                self._find_resets()
            with self.inside:
                training = self.trainings.of_update(optimizer, variables)
        if training is not None and self.outermost and training.steps >= self.settings.max_steps and self._enough():
            self.end_early()
        if training is not None:
            training.eager = tf.executing_eagerly()
            self.on_apply(training, optimizer, grads, variables)
        return training

    def end_update(self, training: Training | None, *, accumulates: bool = False) -> None:
        """Records what an update has made of the weights, and the step, if it was one."""
        if training is not None:
            self.on_applied(training)
        if self.outermost and not self.look() and training is not None and not accumulates:
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
        self._noise.begin_step()

    def _begin_models(self) -> None:
        with self.inside:
            self.initial.look()

    def _begun(self, variables: Sequence[Any]) -> None:
        """Moves initial weights, for a noise twin; those of a script's second model begin another training."""
        if self.settings.alone and self.initial.trained:
            self._random.restart()
        self._noise.move_initial(variables)

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
                if not training.is_unchanged():  # else a noise twin would have its noise a step too early
                    self._complete(training)
                training.adjusted = True
                for count in training.counts.values():
                    count.set_back()

    def look(self) -> list[Training]:
        """Records the weights after the steps that were made since the last look; returns whose they were."""
        self._noise.end_step()
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
                training.began = self.moment + 1
                training.parts.insert(0, (0, next(each.begun for each in training.counts.values() if each.made())))
                training.fingerprint = training.fingerprinter()
                if self.writer is not None:
                    self.writer.begin(training, training.fingerprint, self._way)
            training.ended = self.moment + 1
            training.fingerprint = training.fingerprint or training.fingerprinter()
            if not self.initial.trained:
                self.initial.step_made()
                self._beside.keep()
            training.steps = made
            self._noise.move(training, made)
            self._write(training)
            self._noise.move(training, made + 1)
            if training.move is not None and training.fingerprint is not None:
                training.now = training.fingerprint()
            self.on_step(training)
        self.moment += bool(stepped)
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
        self.writer.whole = True
        if not self.settings.alone:
            self._beside.write(self.writer, self.trainings)

    def untrained(self) -> dict[str, list[str]]:
        """Why steps may be missing.

        There are models without trainable weights, optimizers that count no steps, further trainings, and the line of
        gradients that no optimizer is given.
        """
        models = [str(model.name) for model in self.trainings.fitted if model.built and not model.trainable_weights]
        counts = [count for each in self.trainings if not each.began for count in each.counts.values()]
        # One of Keras's own counts its steps: it has made none, as over an empty data set. But it may skip all of them.
        kinds = [type(count.optimizer) for count in counts]
        optimizers = [kind.__name__ for kind in kinds if not is_keras(kind) or kind.__name__ == "LossScaleOptimizer"]
        source = None if self.trainings else Source.of(self.updates.taken_at)
        gradients = [str(source)] if source else []
        found = {"models": models, "optimizers": optimizers, "further": self.trainings.further, "gradients": gradients}
        return found | {"by_hand": gradients if self.updates.assigned else []}

    def _complete_round(self, stepped: Sequence[Training]) -> None:
        """Records again what this step of another training has changed, such as moving statistics.

        An eager loop trains a GAN's two models one after the other, a graph both at once: their weights are recorded at
        the same moment, after all that one round has done to them. Another round begins with the first training again,
        after another one; each may make several steps in turn.
        """
        if not stepped:
            return
        if any(training in self._round for training in stepped) and self._round[-1] not in stepped:
            self._round.clear()
        self._round = [training for training in self._round if training not in stepped]
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
                training.left = 0, None  # by fit, before that
                self.writer.step(training.number, training.steps, *training.last)
            self.on_step(training)

    @property
    def _way(self) -> str:
        """What trains now."""
        if not self.fitting:
            return "loop"
        own = type(self.fitting[-1]).train_step is not keras.Model.train_step
        return BY_OWN_STEP if own else "fit"

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


_lock = threading.Lock()
