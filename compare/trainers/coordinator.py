"""The custom loop's way of iterating under a parameter server: batches are sent to workers, which do not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from compare.engine.run import Run
from compare.trainers.callbacks import Callbacks

if TYPE_CHECKING:
    from compare.trainers.custom_loop import CustomLoop


def train_with_coordinator(loop: CustomLoop, run: Run) -> None:
    """Train by scheduling every batch once on whichever worker is free.

    Batches go out as arguments rather than from a data set of each worker's own
    (``create_per_worker_dataset``): then every example is seen exactly once per epoch, whatever the
    number of workers. No step is reported, since several are under way at once; the weights are
    judged when an epoch has ended.
    """
    coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
    callbacks = Callbacks(run, loop.model, loop.optimizer, {})

    @tf.function(input_signature=[run.train_dataset(run.epochs[0]).element_spec])
    def train_on_batch(batch: Any) -> tf.Tensor:
        run.strategy.run(loop.train_step, args=(batch,))
        return tf.constant(True)  # a function that returns nothing is not optimized, and rounds otherwise

    @tf.function(input_signature=[run.validation_dataset().element_spec])
    def test_on_batch(batch: Any) -> tf.Tensor:
        run.strategy.run(loop.test_step, args=(batch,))
        return tf.constant(True)

    def over(dataset: tf.data.Dataset, on_batch: Any) -> dict[str, float]:
        for batch in dataset:
            coordinator.schedule(on_batch, args=(batch,))
        coordinator.join()  # the workers are at rest now, and metrics and weights can be read
        return loop.results()

    callbacks.on_train_begin({})
    for epoch in run.epochs:
        callbacks.on_epoch_begin(epoch - 1, {})
        logs = over(run.train_dataset(epoch), train_on_batch)
        validation = over(run.validation_dataset(), test_on_batch)
        logs |= {f"val_{name}": value for name, value in validation.items()}
        callbacks.on_epoch_end(epoch - 1, logs)
        run.end_epoch(epoch, logs)
        if loop.model.stop_training:
            break
    callbacks.on_train_end(logs)
