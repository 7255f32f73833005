"""A run: one trainer, one seed, one strategy on one experiment, and all that a trainer gets to see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from compare import signals
from compare.engine.checkpoints import Checkpoints
from compare.engine.fingerprints import Fingerprinter, distributed
from compare.engine.input_pipeline import Examples, Stream
from compare.errors import RequestError
from compare.experiment import Experiment, nothing
from compare.options import Execution
from compare.records import EPOCH_END, INITIAL, AnyRecord, BuildRecord, EpochRecord, Sink, StepRecord
from compare.user_errors import blaming, place_of, place_of_op


class TrainerError(RequestError):
    """A trainer that does not keep the contract: what it did, and what to do instead."""


class NotFiniteError(Exception):
    """Weights or a loss became NaN or infinite: there is nothing to train on from there.

    Attributes:
        epoch: the epoch in which it was seen.
        step: after which step of it; None at its end.
        what: what is not finite.
    """

    def __init__(self, epoch: int, step: int | None, what: str) -> None:
        where = f"epoch {epoch}" if step is None else f"step {step:,} of epoch {epoch}"
        super().__init__(f"after {where} {what}")
        self.epoch, self.step, self.what = epoch, step, what


class NotResumableError(Exception):
    """A run that cannot go on from a checkpoint so that it ends the same as if it had never stopped."""


@dataclass
class Task:
    """What all runs of one comparison share: experiment, data, strategy, initial weights.

    Attributes:
        experiment: what is trained.
        train: the training examples.
        validation: the validation examples.
        strategy: the strategy that every trainer runs under.
        global_batch_size: examples per optimizer step, over all replicas.
        execution: how the built-in trainers execute their steps.
        initial_weights: by seed, what the first model built with that seed began with: its weights, and the state
            of its random number generators.
    """

    experiment: Experiment
    train: Examples | Stream
    validation: Examples | Stream
    strategy: tf.distribute.Strategy
    global_batch_size: int
    execution: Execution = field(default_factory=Execution)
    initial_weights: MutableMapping[int, list[np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.experiment = self.experiment.with_batches_of(self.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the short last one included."""
        return math.ceil(self.train.count / self.global_batch_size)


def initial_weights(task: Task, seed: int) -> list[np.ndarray]:
    """What every model begins with that is built with a seed."""
    if seed not in task.initial_weights:
        Run(task, seed=seed, epochs=range(1, 2)).build()
    return task.initial_weights[seed]


class Run:
    """What a trainer trains: model, data and strategy come from here, and its records go here.

    Attributes:
        strategy: the ``tf.distribute.Strategy`` to train under.
        global_batch_size: examples per optimizer step, over all replicas; the last batch of an
            epoch may be shorter.
        epochs: the epochs to train, numbered from 1; a resumed run starts later.
        weighted_metrics: the metrics that see sample and class weights, once ``build`` has been called.
        class_weight: class to weight, for the training loss; None for none.
        loss_weights: the weight of each output's loss, as ``compile`` takes it; None for none.
        execution: how to execute the steps, for a trainer that leaves this open: the built-in ones do.

    Args:
        task: what is trained.
        seed: of the run.
        epochs: the epochs to train; those after the first are resumed from a checkpoint.
        sinks: where the records go.
        checkpoints: where to save, and to resume from; None to do neither.
        resumed_at: the hashes of the weights, uint64 ``[variables, replicas]``, that a resumed run begins with;
            None where they are not known.
    """

    stops_at_nan = True
    """Whether training stops where a weight or the loss is no longer finite."""

    def __init__(
        self,
        task: Task,
        *,
        seed: int,
        epochs: range,
        sinks: Sequence[Sink] = (),
        checkpoints: Checkpoints | None = None,
        resumed_at: np.ndarray | None = None,
    ) -> None:
        self.strategy = task.strategy
        self.global_batch_size = task.global_batch_size
        self.epochs = epochs
        self.execution = task.execution
        self.weighted_metrics: Any = []
        self.class_weight = task.experiment.class_weight
        self.loss_weights = task.experiment.loss_weights
        self._task, self._seed, self._sinks = task, seed, sinks
        self._checkpoints, self._resumed_at = checkpoints, resumed_at
        self._finite: np.ndarray | None = None
        self._model: tf.keras.Model | None = None
        self._fingerprint: Fingerprinter | None = None
        self._epoch, self._step = epochs[0], 0
        self._called_while_tracing = ""
        self._has_all_data = False
        self._began = time.perf_counter()

    @property
    def finished(self) -> bool:
        """Whether every epoch has been reported, or training ended early because a callback stopped it."""
        if self._epoch > self.epochs[-1]:
            return True
        has_callbacks = self._task.experiment.build_callbacks is not nothing
        stopped = has_callbacks or getattr(self._model, "stop_training", False)
        return self._epoch > self.epochs[0] and stopped

    @property
    def epoch(self) -> int:
        """The epoch under way."""
        return self._epoch

    @property
    def experiment(self) -> Experiment:
        """What is trained."""
        return self._task.experiment

    def weights(self) -> list[np.ndarray]:
        """The weights as they are, trainable first: the first replica's copy of each."""
        if self._fingerprint is None:
            raise TrainerError("run.build() must be called before training: the weights it gives are compared")
        return self._fingerprint.weights()

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        """Build model, optimizer, loss and metrics under the strategy's scope.

        Every run with the same seed gets the same initial weights. The optimizer is built too, with
        its slots: made inside a replica they fail under Keras 3, or differ between replicas.

        A model of policy mixed_float16 gets an optimizer that scales the loss, as ``compile`` makes it;
        the global dtype policy is afterwards what it was before.

        The process's random seeds (Python's, NumPy's and TensorFlow's) are set to the run's seed.

        Returns:
            (model, optimizer, loss, metrics), the last two as the experiment gives them: a loss and a
            list of metrics, mostly.
        """
        experiment = self._task.experiment
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(self._seed)
        policy = tf.keras.mixed_precision.global_policy()
        try:
            with self.strategy.scope():
                model = built(experiment, "build_model")
                self.give_inputs(model)
                _forget_compile(model)
                optimizer = built(experiment, "build_optimizer")
                refuse_used(optimizer, experiment, self.strategy)
                loss = built(experiment, "build_loss")
                metrics = built(experiment, "build_metrics")
                self.weighted_metrics = built(experiment, "build_weighted_metrics")
                variables = [*model.trainable_weights, *model.non_trainable_weights]
                if not variables:
                    raise RequestError(f"the model of experiment {experiment.name} has no weights to train")
                # Keras 3's seed generators are among a model's variables, not among its weights.
                known = {id(distributed(variable)) for variable in variables}
                state = [*variables, *(v for v in model.variables if id(distributed(v)) not in known)]
                initial = self._task.initial_weights.setdefault(
                    self._seed, [np.array(variable.numpy()) for variable in state]
                )
                for variable, value in zip(state, initial, strict=True):
                    variable.assign(tf.cast(value, variable.dtype))
                scaling = tf.keras.mixed_precision.LossScaleOptimizer
                if model.dtype_policy.name == "mixed_float16" and not isinstance(optimizer, scaling):
                    optimizer = scaling(optimizer)  # as compile does, which leaves one that scales alone
                optimizer.build(model.trainable_variables)
                if self._checkpoints is not None:
                    self._checkpoints.bind(self.strategy, model, optimizer, [metrics, self.weighted_metrics])
                if self._checkpoints is not None and self.epochs[0] > 1:
                    self._checkpoints.restore(self.epochs[0] - 1)
        finally:
            # A policy that build_model set for its layers is theirs; the next model begins without it.
            restore_policy(policy)
        self._model = model
        self._fingerprint = Fingerprinter(self.strategy, variables)
        self._emit(BuildRecord(self._fingerprint.variables, self._fingerprint.replicas))
        self._begin()
        if self._checkpoints is not None and self.epochs[0] > 1 and int(optimizer.iterations.numpy()) == 0:
            raise NotResumableError("it does not train with the optimizer that run.build() gives it")
        return model, optimizer, loss, metrics

    def _begin(self) -> None:
        """Take down the weights that training begins with; a resumed run's must be those of its checkpoint."""
        assert self._fingerprint is not None
        if self.epochs[0] == 1 or self._checkpoints is None:
            self._emit_fingerprint(INITIAL)
            return
        hashes, projections = self._fingerprint()
        self._not_finite(projections)
        if self._resumed_at is not None and not np.array_equal(hashes, self._resumed_at):
            raise NotResumableError("its weights are not those of the checkpoint")

    def build_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """New callbacks, those of the experiment; ``fit`` is given them."""
        return list(built(self._task.experiment, "build_callbacks"))

    def give_inputs(self, model: tf.keras.Model) -> None:
        """Call a model that does not know its input yet on a symbolic one, which makes its weights."""
        if model.built and model.weights:
            return
        x, *_ = self._task.train.spec
        model(tf.nest.map_structure(lambda spec: tf.keras.Input(spec.shape[1:], dtype=spec.dtype), x))

    def train_dataset(self, epoch: int | tf.Tensor) -> tf.data.Dataset:
        """The training examples of one epoch: a ``tf.data.Dataset`` of global batches, undistributed.

        Args:
            epoch: any epoch, at any time; where the experiment's data are arrays, a scalar tensor will do.
        """
        not_begun = self._step == 0 and self._epoch == self.epochs[0] and not self._has_all_data
        if not_begun and self._fingerprint is not None and tf.executing_eagerly():
            # Again: weights that a trainer changes between build() and its first data count as initial.
            self._begin()
            self._began = time.perf_counter()
        return self._task.train.of_epoch(self._seed, epoch, self.global_batch_size)

    def train_datasets(self, epoch: tf.Variable | None = None) -> tf.data.Dataset:
        """One data set for a single call of ``fit``: of all epochs to train, one after the other.

        Args:
            epoch: instead, of the epoch whose number this variable (int64) has whenever the data set is iterated.
        """
        self.train_dataset(self.epochs[0])
        # From here on tf.data may ask for an epoch at any moment, while weights are being changed.
        self._has_all_data = True
        elsewhere = isinstance(self.strategy, tf.distribute.ParameterServerStrategy)
        epochs = self.epochs if epoch is None else epoch
        return self._task.train.of_epochs(epochs, self.train_dataset, elsewhere=elsewhere)

    def validation_dataset(self) -> tf.data.Dataset:
        """The validation examples in fixed order: a ``tf.data.Dataset`` of global batches, undistributed."""
        return self._task.validation.in_order(self.global_batch_size)

    def end_step(self, steps: int = 1) -> None:
        """Say that an optimizer step has been made; from Python, not inside a ``tf.function``.

        Args:
            steps: how many were made since this was last called; the weights are compared after the last of them.

        Raises:
            TrainerError: when they are less than one.
        """
        if steps < 1:
            raise TrainerError(f"end_step was called for {steps} steps: call it after one step, or after several")
        if not tf.executing_eagerly():
            # Told at the end of the epoch: what is raised here would reach the user in TensorFlow's wrapping.
            self._called_while_tracing = place_of_op(tf.no_op()) or "line unknown"
            return
        signals.raise_if_asked()
        self._step += steps
        what = self._emit_fingerprint(self._step)
        if what and self.stops_at_nan:
            raise NotFiniteError(self._epoch, self._step, what)

    def end_epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Report an epoch's metrics.

        Args:
            epoch: the epoch that ended, from 1.
            logs: metric name to Python or NumPy float, named as in Keras's History.

        Raises:
            TrainerError: for an epoch out of turn, a value that is no number, before ``build``, or when
                ``end_step`` was called while a function was traced.
        """
        seconds = time.perf_counter() - self._began
        if self._called_while_tracing:
            raise TrainerError(
                f"end_step was called inside a tf.function ({self._called_while_tracing}), where it runs once, while "
                "tracing, and not after every step: call it from Python, or not at all if a whole epoch is one function"
            )
        if epoch not in self.epochs or epoch != self._epoch:
            raise TrainerError(
                f"end_epoch was called for epoch {epoch} where epoch {self._epoch} of "
                f"{self.epochs[0]}..{self.epochs[-1]} was due: call it once per epoch, in order"
            )
        try:
            values = scalars(logs)
        except (TypeError, ValueError, AttributeError) as error:
            raise TrainerError(f"end_epoch takes a dict of metric name to float: {error}") from None
        # As people read them, whatever the order of the dict: loss first, validation last.
        names = sorted(values, key=lambda name: (name.startswith("val_"), name.removeprefix("val_") != "loss"))
        what = self._emit_fingerprint(EPOCH_END)
        assert self._fingerprint is not None
        examples_per_second = self._task.train.count / seconds
        self._emit(
            EpochRecord(
                epoch, {name: values[name] for name in names}, seconds, examples_per_second, self._fingerprint.weights()
            )
        )
        for name in ("loss", "val_loss"):
            if not math.isfinite(values.get(name, 0.0)):
                what = what or f"{name} is {values[name]}"
        if what and self.stops_at_nan:
            raise NotFiniteError(epoch, None, what)
        if self._checkpoints is not None and self._checkpoints.due(epoch, self.epochs[-1]):
            self._checkpoints.save(epoch, values)
        self._epoch, self._step = epoch + 1, 0
        self._began = time.perf_counter()

    def close(self) -> None:
        """Take down what training did to the weights after its last epoch (restored the best ones, say)."""
        if self._fingerprint is not None and self._epoch > self.epochs[0]:
            self._epoch -= 1
            self._emit_fingerprint(EPOCH_END)
            self._epoch += 1

    def _emit_fingerprint(self, step: int) -> str:
        """Record all weights; gives what of them is not finite any more."""
        if self._fingerprint is None:
            raise TrainerError("run.build() must be called before training: the weights it gives are compared")
        hashes, projections = self._fingerprint()
        self._emit(StepRecord(self._epoch, step, hashes, projections))
        return self._not_finite(projections)

    def _not_finite(self, projections: np.ndarray) -> str:
        """What is not finite that was so at the beginning; empty while all is well."""
        assert self._fingerprint is not None
        finite = np.isfinite(projections).all(axis=1)
        if self._finite is None:
            self._finite = finite  # a weight that is infinite to begin with (a mask, say) may stay so
        names = [self._fingerprint.variables[i].name for i in np.flatnonzero(self._finite & ~finite)]
        return f"{len(names)} of {len(finite)} variables are not finite: {', '.join(names[:3])}" if names else ""

    def _emit(self, record: AnyRecord) -> None:
        for sink in self._sinks:
            sink(record)


def refuse_used(
    optimizer: Any, experiment: Experiment, strategy: tf.distribute.Strategy, *, made_twice: bool = False
) -> None:
    """Refuse an optimizer that was not made just now: it belongs to another strategy, or to another run's model.

    Args:
        optimizer: what build_optimizer gave in the strategy's scope.
        experiment: the experiment.
        strategy: the strategy.
        made_twice: whether it gave the same one again.

    Raises:
        RequestError: when the optimizer was made before.
    """
    # Of one that accumulates gradients, optimizer.iterations is no variable.
    counter = distributed(getattr(optimizer, "_iterations", optimizer.iterations))
    elsewhere = not strategy.extended.variable_created_in_scope(counter)
    if made_twice or elsewhere or getattr(optimizer, "built", False):
        raise RequestError(
            f"build_optimizer ({place_of(experiment.build_optimizer)}) gave an optimizer that was made before: make a "
            "new one in every call, since each run has variables of its own, made in its strategy's scope"
        )


def _forget_compile(model: tf.keras.Model) -> None:
    """Free a model that came compiled of the loss and metrics that it counts itself: the run has its own."""
    for name in ("compiled", "_is_compiled"):  # Keras 3, Keras 2
        if getattr(model, name, False):
            setattr(model, name, False)


def scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    """Reported numbers by name; a metric that gives a vector becomes ``name[0]``, ``name[1]`` and so on.

    Raises:
        TypeError, ValueError: for what is no number.
    """
    values: dict[str, float] = {}
    for name, value in logs.items():
        array = np.asarray(value)
        if array.ndim == 0:
            values[str(name)] = float(value)
        else:
            values |= {f"{name}[{i}]": float(each) for i, each in enumerate(array.reshape(-1))}
    return values


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "build_model": ("a tf.keras.Model", lambda found: isinstance(found, tf.keras.Model)),
    "build_optimizer": ("a tf.keras.optimizers.Optimizer", lambda found: hasattr(found, "apply_gradients")),
    "build_loss": (
        "a tf.keras.losses.Loss, or one for each output",
        lambda found: all(each is None or hasattr(each, "call") for each in tf.nest.flatten(found)),
    ),
}
"""What some of an experiment's functions must give: in words, and how to tell."""


def built(experiment: Experiment, part: str) -> Any:
    """What one of an experiment's functions makes.

    Raises:
        RequestError: when it raises, or makes something else than it must; file and line are named.
    """
    function = getattr(experiment, part)
    with blaming(part, function):
        found = function()
    wanted, fits = KINDS.get(part, ("", lambda found: True))
    if not fits(found):
        raise RequestError(f"{part} ({place_of(function)}) gave {type(found).__name__}: it must return {wanted}")
    return found


def restore_policy(policy: Any) -> None:
    """Make this the global dtype policy again, if it is not.

    Keras 2 takes the policy from ``floatx`` until one is set, and so it has to stay where none was.
    """
    if tf.keras.mixed_precision.global_policy().name != policy.name:
        tf.keras.mixed_precision.set_global_policy(policy)
