"""The reference trainer: unmodified ``compile`` and ``fit``, observed by a callback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from compare.engine import strategies
from compare.engine.insides_keras import build_metrics
from compare.engine.keras_generation import BUILDS_METRICS_FIRST, last_call_spans_epochs
from compare.engine.run import Run


class KerasFit:
    """Trains with ``model.compile`` and a single call of ``model.fit`` for all epochs, as users do."""

    name = "fit"

    def build(self, run: Run) -> Any:
        """Returns the model to compile, with its optimizer, loss and metrics; a subclass may change the model."""
        return run.build()

    def compiled(self, run: Run) -> Any:
        """Returns the model, compiled; its metrics begin anew, which may hold sums of the training that is resumed."""
        model, optimizer, loss, metrics = self.build(run)
        with run.strategy.scope():
            # XLA rounds differently (2e-6). Keras 3 uses it by default if possible, so jit_compile is set explicitly.
            model.compile(
                optimizer=optimizer,
                loss=loss,
                loss_weights=run.loss_weights,
                # None instead of an empty list, which would hide the metrics of a custom model.
                metrics=metrics or None,
                weighted_metrics=run.weighted_metrics or None,
                steps_per_execution=run.execution.steps_per_execution,
                jit_compile=run.execution.jit_compile,
            )
        for metric in tf.nest.flatten([metrics, run.weighted_metrics]):
            metric.reset_state()  # as fit does before every epoch, or all but the first
        return model

    def train(self, run: Run) -> None:
        model = self.compiled(run)
        first = run.epochs[0]
        validation, validation_steps = run.validation_dataset(), None
        asynchronous = isinstance(run.strategy, tf.distribute.ParameterServerStrategy)
        if asynchronous:
            # A worker cannot signal the end of its dataset to the coordinator, so the dataset must not end.
            validation, validation_steps = validation.repeat(), int(validation.cardinality())
        # fit refuses callbacks per batch where several steps run at the same time.
        listener = _EpochListener(run) if asynchronous else _StepListener(run)
        steps = int(run.train_dataset(first).cardinality())
        # One dataset of all epochs: fit takes a single one, and each epoch has its own order.
        training = run.train_datasets()
        ends_with_epoch = run.made > 0 or last_call_spans_epochs(steps, run.execution.steps_per_execution)
        if ends_with_epoch:
            # This dataset ends with each epoch, and yields the next order when iterated again.
            listener.epoch = tf.Variable(first, dtype=tf.int64)
            training = run.train_datasets(listener.epoch).apply(tf.data.experimental.assert_cardinality(steps))
        calls = [(training, run.epochs)]
        if run.made:  # what is left of an interrupted epoch is a call of its own
            calls = [(training.skip(run.made), run.epochs[:1]), (training, run.epochs[1:])][: len(run.epochs)]
            with run.strategy.scope():
                build_metrics(model, next(iter(training)))  # fit without a strategy does so in its first step
        with strategies.without_needless_distribution(run.strategy):
            for dataset, epochs in calls:
                model.fit(
                    dataset,
                    steps_per_epoch=None if ends_with_epoch else steps,
                    initial_epoch=epochs.start - 1,
                    epochs=epochs.stop - 1,
                    validation_data=validation,
                    validation_steps=validation_steps,
                    shuffle=False,  # applies to arrays only; the dataset is shuffled already
                    class_weight=run.class_weight,
                    # The listener comes last, after the other callbacks have changed weights and logs.
                    callbacks=[*run.build_callbacks(), listener],
                    verbose=0,
                )


class _EpochListener(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports the end of every epoch of fit to the run.

    Keras counts epochs from 0, the run from 1.

    Attributes:
        epoch: a variable that receives the number of the epoch, from 1, when the epoch begins; None for no variable.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self.epoch: tf.Variable | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.epoch is not None:
            self.epoch.assign(epoch + 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._run.end_epoch(epoch + 1, logs or {})


class _StepListener(_EpochListener):
    """Also reports every optimizer step to the run, or several steps if fit executes them in one call."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._finished_steps = 0
        # The end of a call of fit would replace the weights by their average.
        if BUILDS_METRICS_FIRST and not getattr(self.model.optimizer, "use_ema", False):
            self._run.begin_epoch(epoch + 1, _Metrics(self.model))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        finished = min(batch + 1, self.params["steps"])  # the last call may count as if it were complete
        steps, self._finished_steps = finished - self._finished_steps, finished
        self._run.end_step(steps) if steps > 1 else self._run.end_step()


class _Metrics:
    """All metrics of a model, of which some may be made in the first step."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __iter__(self) -> Iterator[Any]:
        yield from self._model.metrics
