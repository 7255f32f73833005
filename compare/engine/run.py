"""The ``Run``, which is all that a trainer sees: one trainer, one seed and one strategy on one experiment."""

from __future__ import annotations

import math
import mmap
import operator
import os
import reprlib
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import _exit  # user code runs with another os._exit
from typing import Any
from weakref import WeakSet

import numpy as np
import tensorflow as tf

from compare import signals
from compare.engine.building import built, clear_session, give_inputs, own_policy, refuse_another, refuse_used, scalars
from compare.engine.checkpoints import SECONDS, Checkpoints
from compare.engine.fingerprints import Fingerprinter, distributed
from compare.engine.input_pipeline import Data
from compare.engine.insides_tensorflow import called_as_it_is, forget_reductions, reductions
from compare.engine.keras_generation import build_optimizer, forget_compile
from compare.engine.metrics import metric_objects
from compare.engine.step_count import StepCount
from compare.errors import EXIT_NO_VERDICT, NOT_BUILT, EndedEarlyError, RequestError, StorageError
from compare.execution import Execution
from compare.experiment import Experiment, nothing
from compare.records.model import EPOCH_END, INITIAL, AnyRecord, BuildRecord, EpochRecord, Place, Sink, StepRecord
from compare.user_errors import place_now, place_of


class TrainerError(RequestError):
    """A trainer violates the contract; the message says what it did, and what to do instead."""

    status = EXIT_NO_VERDICT  # as of any other exception in a trainer


class NotFiniteError(EndedEarlyError):
    """Weights or a loss became NaN or infinite, so that further training is pointless."""


class NotResumableError(Exception):
    """A run that, resumed from a checkpoint, would not end exactly like an uninterrupted run."""


@dataclass
class TrainingTask:
    """The parts that all runs of a comparison share: experiment, data, strategy and initial weights.

    For each seed, these are the weights of the first model built with it, and the state of its random generators.
    """

    experiment: Experiment
    train: Data
    validation: Data
    strategy: tf.distribute.Strategy
    global_batch_size: int
    execution: Execution = field(default_factory=Execution)
    initial_weights: MutableMapping[int, list[np.ndarray]] = field(default_factory=dict)
    _models: WeakSet[Any] = field(default_factory=WeakSet, repr=False)

    def __post_init__(self) -> None:
        self.experiment = self.experiment.with_batches_of(self.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, including a short last batch."""
        return math.ceil(self.train.count / self.global_batch_size)

    def new_model(self) -> tf.keras.Model:
        model = built(self.experiment, "build_model")
        if model in self._models:
            raise RequestError(
                f"build_model ({place_of(self.experiment.build_model)}) returned the same model again: create a new "
                "one in every call, since each trainer trains its own"
            )
        self._models.add(model)
        return model


def initial_weights(task: TrainingTask, seed: int) -> list[np.ndarray]:
    """Returns the initial weights of all models built with a seed."""
    if seed not in task.initial_weights:
        Run(task, seed=seed, epochs=range(1, 2)).build()
    return task.initial_weights[seed]


class Run:
    """One training by one trainer: provides model, data and strategy, and records what the trainer reports.

    Attributes:
        strategy: the ``tf.distribute.Strategy`` to train under.
        global_batch_size: examples per optimizer step, over all replicas; the last batch of an
            epoch may be shorter.
        steps_per_epoch: number of batches in an epoch, including a short last batch.
        epochs: the epochs to train, numbered from 1; a resumed training starts later.
        weighted_metrics: the metrics that use sample and class weights; available after ``build``.
        class_weight: maps each class to its weight in the training loss; None for no class weights.
        loss_weights: the weight of each output's loss, as in ``compile``; None for no weights.
        execution: how to execute the steps; used by the built-in trainers, optional for others.
        saves_steps: whether an interruption saves a checkpoint after the step in hand (see ``begin_epoch``).

    Args:
        seed: seed of the initial weights and of the order of examples.
        epochs: the epochs to train; a range that starts after epoch 1 resumes from a checkpoint.
        made: the number of steps of the first epoch that were made before, if it resumes from a checkpoint after one.
        checkpoints: saves checkpoints and restores the one to resume from; None for no checkpoints.
        resumed_at: expected hashes of the weights with which a resumed training starts, uint64
            ``[variables, replicas]``; None if unknown.
    """

    stops_at_nan = True
    """Whether training stops as soon as a weight or the loss is not finite."""
    trains = True
    """Whether it trains, and needs the state of the optimizer that ``build`` returns."""

    def __init__(
        self,
        task: TrainingTask,
        *,
        seed: int,
        epochs: range,
        made: int = 0,
        sinks: Sequence[Sink] = (),
        checkpoints: Checkpoints | None = None,
        resumed_at: np.ndarray | None = None,
    ) -> None:
        self.strategy = task.strategy
        self.global_batch_size, self.steps_per_epoch = task.global_batch_size, task.steps_per_epoch
        self.epochs = epochs
        self.experiment = task.experiment
        self.execution = task.execution
        self.weighted_metrics: Any = []
        self.class_weight = task.experiment.class_weight
        self.loss_weights = task.experiment.loss_weights
        self._task, self._seed, self._sinks = task, seed, sinks
        self._reductions = reductions()
        self._checkpoints, self._resumed_at = checkpoints, resumed_at
        self._finite: np.ndarray | None = None
        self._model: tf.keras.Model | None = None
        self._fingerprint: Fingerprinter | None = None
        self.made, self.saves_steps = made, False
        self._resumed: Place | None = None
        if checkpoints is not None and (epochs[0] > 1 or made):
            self._resumed = (epochs[0], made) if made else (epochs[0] - 1, EPOCH_END)
        self._epoch, self._step, self._seconds_before = epochs[0], made, 0.0
        self._called_while_tracing = ""
        self._step_count: StepCount | None = None
        self._hashes = np.empty((0, 0), np.uint64)
        self._all_epochs_requested = False
        self._began = time.perf_counter()
        self._process, self._forked = os.getpid(), mmap.mmap(-1, 1)  # which forked processes share

    @property
    def forked(self) -> bool:
        """Whether a process that the trainer has forked trained, and was ended."""
        return bool(self._forked[0])

    def _end_fork(self) -> None:
        """Ends a process that the trainer has forked: TensorFlow waits there without end, and nobody sees its steps."""
        if os.getpid() != self._process:
            self._forked[0] = 1
            _exit(EXIT_NO_VERDICT)

    @property
    def finished(self) -> bool:
        """Whether every epoch has been reported, or training ended early because a callback stopped it."""
        if self._epoch > self.epochs[-1]:
            return True
        stopped = self.has_callbacks or getattr(self._model, "stop_training", False)
        return self._epoch > self.epochs[0] and stopped

    @property
    def has_callbacks(self) -> bool:
        """Whether the experiment has callbacks, which have a state in no checkpoint."""
        return self.experiment.build_callbacks is not nothing

    @property
    def epoch(self) -> int:
        """The current epoch, from 1."""
        return self._epoch

    @property
    def _fingerprinter(self) -> Fingerprinter:
        if self._fingerprint is None:
            raise TrainerError(NOT_BUILT)
        return self._fingerprint

    def weights(self) -> list[np.ndarray]:
        """Returns the current weights of the first replica, trainable weights first."""
        return self._fingerprinter.weights()

    @called_as_it_is
    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        """Builds model, optimizer, loss and metrics under the strategy's scope.

        All runs with the same seed start from the same initial weights. The optimizer is built together with its
        slots: created inside a replica, they fail under Keras 3 or differ between replicas.

        For a model with the policy mixed_float16, the optimizer is wrapped in a LossScaleOptimizer, as by ``compile``.
        The global dtype policy is restored afterwards.

        The random seeds of the process (Python, NumPy and TensorFlow) are set to the seed of the run.

        Returns:
            (model, optimizer, loss, metrics); the last two as returned by the experiment, usually a loss and a list of
            metrics.

        Raises:
            RequestError: if a function of the experiment raises or returns an object of the wrong kind, or if the
                model has no weights.
        """
        if tf.inside_function():
            why = "run.build() is called inside a tf.function: let train be a plain function, and make a step one"
            raise RuntimeError(why)  # AutoGraph raises no errors of other modules as they are
        self._end_fork()
        experiment = self.experiment
        clear_session()
        tf.keras.utils.set_random_seed(self._seed)
        with own_policy(), self.strategy.scope():
            model = self._task.new_model()
            self.give_inputs(model)
            forget_compile(model)
            optimizer = built(experiment, "build_optimizer")
            refuse_used(optimizer, experiment, self.strategy)
            loss = built(experiment, "build_loss")
            metrics, self.weighted_metrics = metric_objects(experiment, model, self._task.train.spec)
            variables = [*model.trainable_weights, *model.non_trainable_weights]
            if not model.trainable_weights:
                raise RequestError(
                    f"the model of experiment {experiment.name} has no weights to train: add a layer with weights, or "
                    "set trainable = True"
                )
            # In Keras 3, model.variables contains the state of seed generators, and model.weights does not.
            weight_ids = {id(distributed(variable)) for variable in variables}
            state = [*variables, *(v for v in model.variables if id(distributed(v)) not in weight_ids)]
            initial = self._task.initial_weights.setdefault(
                self._seed, [np.array(variable.numpy()) for variable in state]
            )
            refuse_another(state, [value.shape for value in initial], experiment)
            for variable, value in zip(state, initial, strict=True):
                variable.assign(tf.cast(value, variable.dtype))
            loss_scaling = tf.keras.mixed_precision.LossScaleOptimizer
            if model.dtype_policy.name == "mixed_float16" and not isinstance(optimizer, loss_scaling):
                optimizer = loss_scaling(optimizer)  # as compile does
            build_optimizer(optimizer, model.trainable_variables)
            if self._checkpoints is not None:
                self._checkpoints.bind(self.strategy, model, optimizer, [metrics, self.weighted_metrics])
            if self._checkpoints is not None and self._resumed is not None:
                self._checkpoints.restore(self._resumed)
        self._model = model
        self._fingerprint = Fingerprinter(self.strategy, variables)
        self._step_count = (
            StepCount(model, optimizer, self.strategy) if StepCount.can_tell(model, optimizer, self.strategy) else None
        )
        self._emit(BuildRecord(self._fingerprinter.variables, self._fingerprinter.replicas))
        self._begin()
        if self.trains and self._resumed is not None and int(optimizer.iterations.numpy()) == 0:
            raise NotResumableError("it does not train with the optimizer that run.build() returns")
        return model, optimizer, loss, metrics

    def _begin(self) -> None:
        """Records the initial weights; for a resumed run, checks them against its checkpoint."""
        if self._resumed is None:
            self._emit_fingerprint(INITIAL)
            return
        self._hashes, projections = self._fingerprinter()
        self._not_finite(projections)
        if self._resumed_at is not None and not np.array_equal(self._hashes, self._resumed_at):
            raise NotResumableError("its weights are not those of the checkpoint")

    def build_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """Returns new instances of the experiment's callbacks, as passed to ``fit``."""
        return list(built(self.experiment, "build_callbacks"))

    def give_inputs(self, model: tf.keras.Model) -> None:
        give_inputs(model, self._task.train.spec[0])

    @called_as_it_is
    def train_dataset(self, epoch: int | tf.Tensor) -> tf.data.Dataset:
        """Returns the training examples of one epoch as an undistributed ``tf.data.Dataset`` of global batches.

        It may be called for any epoch at any time.

        Args:
            epoch: number of the epoch, from 1; may be a scalar tensor if the experiment's data consists of arrays.
        """
        self._end_fork()
        not_started = self._step == self.made and self._epoch == self.epochs[0] and not self._all_epochs_requested
        if self._step_count is not None and self._step_count.begun:  # an epoch is one call, of which no step is told
            not_started = False
        if not_started and self._fingerprint is not None and tf.executing_eagerly():
            # Record the initial weights again: a trainer may change them between build() and its first dataset.
            self._begin()
            self._began = time.perf_counter()
        return self._task.train.of_epoch(self._seed, epoch, self.global_batch_size)

    def train_datasets(self, epoch: tf.Variable | None = None) -> tf.data.Dataset:
        """Returns one dataset for a single call of ``fit``, with all epochs to train one after another.

        Args:
            epoch: if given, an int64 variable: each iteration over the dataset yields the epoch with its current value.
        """
        self.train_dataset(self.epochs[0])
        # From now on tf.data may request an epoch at any time, even while the weights are changing.
        self._all_epochs_requested = True
        elsewhere = isinstance(self.strategy, tf.distribute.ParameterServerStrategy)
        epochs = self.epochs if epoch is None else epoch
        return self._task.train.of_epochs(epochs, self.train_dataset, elsewhere=elsewhere)

    def validation_dataset(self) -> tf.data.Dataset:
        """Returns the validation examples in fixed order as an undistributed ``tf.data.Dataset`` of global batches."""
        return self._task.validation.in_order(self.global_batch_size)

    def begin_epoch(self, epoch: int, metrics: Iterable[tf.keras.metrics.Metric]) -> int:
        """Lets a training that is interrupted continue after the step in hand; otherwise it does from an epoch's end.

        A loop need not call it. If it does, then before every epoch, after its metrics were reset.

        Args:
            epoch: number of the epoch, from 1.
            metrics: all that the loop keeps of the steps of an epoch; nothing else of them is saved.

        Returns:
            How many steps of this epoch were made before: 0, unless training was interrupted in it. Then the metrics
            are as they were, and training continues with ``run.train_dataset(epoch).skip(steps)``.

        Raises:
            NotResumableError: if the metrics are not those that were saved.
        """
        if self._checkpoints is None or not self._checkpoints.saves_steps or self.has_callbacks:
            return 0
        made = self.made if epoch == self.epochs[0] else 0
        try:
            self._seconds_before = self._checkpoints.begin_epoch(metrics, self._resumed if made else None)
        except ValueError:
            raise NotResumableError("its metrics are not those of the checkpoint") from None
        self.saves_steps = True
        return made

    def _end_if_interrupted(self) -> None:
        """Ends an interrupted training after a step, which is saved if training can continue there."""
        signals.catch_again()
        signals.wait_for_step(self.saves_steps)
        if not signals.interrupted():
            return
        if self.saves_steps and self._checkpoints is not None:
            if self._step == self.steps_per_epoch:
                return  # it ends with the epoch
            seconds = self._seconds_before + time.perf_counter() - self._began
            with suppress(StorageError):  # then it continues from an earlier one
                self._checkpoints.save((self._epoch, self._step), {SECONDS: seconds})
        raise KeyboardInterrupt

    def end_step(self, steps: int = 1) -> None:
        """Reports that an optimizer step has finished. Call it from Python, not inside a ``tf.function``.

        Args:
            steps: number of steps since the last call; the weights are compared after the last of them.

        Raises:
            TrainerError: if ``steps`` is not a whole number of at least 1, if it is larger than 1 and the optimizer
                made fewer steps, if all epochs have ended, or if ``build`` has not been called.
            NotFiniteError: if weights have become NaN or infinite.
        """
        if not tf.executing_eagerly():
            # Reported by end_epoch: TensorFlow would wrap an exception raised here in its own messages.
            self._called_while_tracing = place_now() or "line unknown"
            return
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not 1 <= steps < 2**31:
            shown = repr(steps) if isinstance(steps, int | float | str | np.number) else type(steps).__name__
            raise TrainerError(
                f"end_step was called for {shown} steps: call it after each step, or with the number of steps, a whole "
                "number of at least 1"
            )
        if self._epoch > self.epochs[-1]:
            raise TrainerError("end_step was called after the end_epoch of the last epoch: call it after each step")
        self._step, before = self._step + int(steps), self._hashes
        what = self._emit_fingerprint(self._step)
        if self._step_count is not None and (problem := self._step_count.report(int(steps), before, self._hashes)):
            raise TrainerError(problem)
        if what and self.stops_at_nan:
            raise NotFiniteError(self._epoch, self._step, what)
        self._end_if_interrupted()

    def end_epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Reports that an epoch has finished, with its metrics.

        Args:
            epoch: number of the epoch, from 1.
            logs: maps metric names, as in Keras's History, to Python or NumPy floats.

        Raises:
            TrainerError: if the epoch is out of order, a value is not a number, ``build`` has not been called, or
                ``end_step`` was called while a function was traced.
            NotFiniteError: if weights or a loss have become NaN or infinite.
            StorageError: if the checkpoint cannot be written.
        """
        seconds = self._seconds_before + time.perf_counter() - self._began
        if self._called_while_tracing:
            raise TrainerError(
                f"end_step was called inside a tf.function ({self._called_while_tracing}), where it runs only once, "
                "during tracing, instead of after every step: call it from Python, or omit it if one function "
                "runs a whole epoch"
            )
        with suppress(TypeError):
            epoch = operator.index(epoch)  # a number of NumPy's or TensorFlow's
        if not isinstance(epoch, int) or epoch not in self.epochs or epoch != self._epoch:
            kind = "text" if isinstance(epoch, str) else "no whole number"
            shown = f"epoch {epoch}" if isinstance(epoch, int) else f"{reprlib.repr(epoch)}, which is {kind}"
            raise TrainerError(
                f"end_epoch was called for {shown}, but epoch {self._epoch} of "
                f"{self.epochs[0]}..{self.epochs[-1]} was expected: call it once per epoch, in order"
            )
        counted = self._step_count
        if counted is not None and (problem := counted.end_epoch(self._step, self.steps_per_epoch)):
            raise TrainerError(problem)
        try:
            values = scalars(logs)
        except (TypeError, ValueError, AttributeError) as error:
            raise TrainerError(f"end_epoch takes a dict of metric name to float: {error}") from None
        # In reading order, whatever the order of the dict: loss first, validation last.
        names = sorted(values, key=lambda name: (name.startswith("val_"), name.removeprefix("val_") != "loss"))
        what = self._emit_fingerprint(EPOCH_END)
        reported = {name: values[name] for name in names}
        rate = self._task.train.count / seconds if seconds > 0 else np.nan  # a clock may stand still in a test
        self._emit(EpochRecord(epoch, reported, seconds, rate, self.weights()))
        for name in ("loss", "val_loss"):
            if not math.isfinite(values.get(name, 0.0)):
                what = what or f"{name} is {values[name]}"
        if what and self.stops_at_nan:
            raise NotFiniteError(epoch, None, what)
        signals.catch_again()
        interrupted = signals.interrupted()
        if self._checkpoints is not None and (interrupted or self._checkpoints.due(epoch, self.epochs[-1])):
            self._checkpoints.save((epoch, EPOCH_END), values)
        if interrupted and epoch < self.epochs[-1]:  # else training ends by itself
            raise KeyboardInterrupt
        self._epoch, self._step, self._seconds_before = epoch + 1, 0, 0.0
        self._began = time.perf_counter()

    def close(self) -> None:
        """Records the final weights, which a callback may have changed after the last epoch (EarlyStopping, say)."""
        if self._fingerprint is not None and self._epoch > self.epochs[0]:
            self._epoch -= 1
            self._emit_fingerprint(EPOCH_END)
            self._epoch += 1
        forget_reductions(reductions() - self._reductions)

    def _emit_fingerprint(self, step: int) -> str:
        """Records all weights; returns the variables that are no longer finite, in words, or an empty string."""
        self._hashes, projections = self._fingerprinter()
        self._emit(StepRecord(self._epoch, step, self._hashes, projections))
        return self._not_finite(projections)

    def _not_finite(self, projections: np.ndarray) -> str:
        """Returns the variables that were finite at first and no longer are, in words, or an empty string."""
        each = np.isfinite(projections)
        if self._finite is not None and each.all():
            return ""  # the usual case, in little time
        finite = each.all(axis=1)
        if self._finite is None:
            self._finite = finite  # a weight may be infinite from the start (a mask, say)
        names = [self._fingerprinter.variables[i].name for i in np.flatnonzero(self._finite & ~finite)]
        return f"{len(names)} of {len(finite)} variables are not finite: {', '.join(names[:3])}" if names else ""

    def _emit(self, record: AnyRecord) -> None:
        for sink in self._sinks:
            sink(record)
