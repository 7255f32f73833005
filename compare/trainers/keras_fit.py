"""The reference: stock ``compile`` and ``fit``, nothing patched; a callback listens."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.engine.run import Run
from compare.trainers.outputs import KERAS_3


class KerasFit:
    """Trains with ``model.compile`` and one call of ``model.fit`` for all epochs, as users do."""

    name = "fit"

    def train(self, run: Run) -> None:
        model, optimizer, loss, metrics = run.build()
        with run.strategy.scope():
            # XLA rounds differently (2e-6), and Keras 3 would use it by default where it can: only on request.
            model.compile(
                optimizer=optimizer,
                loss=loss,
                loss_weights=run.loss_weights,
                # None, and not an empty list, which would hide the metrics that a model of one's own has.
                metrics=metrics or None,
                weighted_metrics=run.weighted_metrics or None,
                steps_per_execution=run.execution.steps_per_execution,
                jit_compile=run.execution.jit_compile,
            )
        for metric in tf.nest.flatten([metrics, run.weighted_metrics]):
            metric.reset_state()  # fit does so before every epoch; Keras 2 not before the first that it knows of
        first, last = run.epochs[0], run.epochs[-1]
        validation, validation_steps = run.validation_dataset(), None
        if isinstance(run.strategy, tf.distribute.ParameterServerStrategy):
            # A worker cannot tell the coordinator that its data set is over: it must not end.
            validation, validation_steps = validation.repeat(), int(validation.cardinality())
        listener = _listener(run)
        steps = int(run.train_dataset(first).cardinality())
        training = run.train_datasets()  # of all epochs, since each has an order of its own and fit takes one data set
        uneven = KERAS_3 and steps % run.execution.steps_per_execution
        if uneven:
            # The last call of an epoch would run on into the next one: Keras 3 stops at an end only, so that the
            # data set has to have one, and give another epoch's order whenever it is asked for again.
            listener.epoch = tf.Variable(first, dtype=tf.int64)
            training = run.train_datasets(listener.epoch).apply(tf.data.experimental.assert_cardinality(steps))
        model.fit(
            training,
            steps_per_epoch=None if uneven else steps,
            initial_epoch=first - 1,
            epochs=last,
            validation_data=validation,
            validation_steps=validation_steps,
            shuffle=False,  # for arrays only; the data set is shuffled already
            class_weight=run.class_weight,
            # The run listens last, when the other callbacks have done what they do to weights and logs.
            callbacks=[*run.build_callbacks(), listener],
            verbose=0,
        )


class _EpochListener(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the run when fit ends an epoch; Keras counts them from 0.

    Attributes:
        epoch: where to put the number of the epoch, from 1, when it begins; None for nowhere.
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
    """Tells the run about every optimizer step too, or of several where fit makes them in one call."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        done = min(batch + 1, self.params["steps"])  # Keras 3 counts the last call's steps as if they were all there
        made, self._done = done - self._done, done
        self._run.end_step(made) if made > 1 else self._run.end_step()


def _listener(run: Run) -> _EpochListener:
    # Under a parameter server fit refuses callbacks per batch: several steps are under way at once.
    asynchronous = isinstance(run.strategy, tf.distribute.ParameterServerStrategy)
    return (_EpochListener if asynchronous else _StepListener)(run)
