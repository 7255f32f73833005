"""The reference: stock ``compile`` and ``fit``, nothing patched; a callback listens."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.runs import Run


class KerasFit:
    """Trains with ``model.compile`` and one call of ``model.fit`` for all epochs, as users do."""

    name = "fit"

    def train(self, run: Run) -> None:
        model, optimizer, loss, metrics = run.build()
        with run.strategy.scope():
            # XLA rounds differently (2e-6), and Keras 3 would use it by default where it can.
            model.compile(optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=False)
        # One data set over all epochs, since each epoch has an order of its own and fit takes one.
        first, last = run.epochs[0], run.epochs[-1]
        one_epoch = run.train_dataset(first)
        all_epochs = tf.data.Dataset.range(first, last + 1).flat_map(run.train_dataset)
        model.fit(
            all_epochs.with_options(one_epoch.options()),
            steps_per_epoch=int(one_epoch.cardinality()),
            initial_epoch=first - 1,
            epochs=last,
            validation_data=run.validation_dataset(),
            shuffle=False,  # for arrays only; the data set is shuffled already
            callbacks=[_Listener(run)],
            verbose=0,
        )


class _Listener(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the run what fit does; Keras counts epochs from 0."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._run.end_step()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._run.end_epoch(epoch + 1, logs or {})
