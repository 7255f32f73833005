"""The custom loop under ParameterServerStrategy: a coordinator schedules batches on asynchronous workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.engine.run import Run
from compare.trainers.callbacks import Callbacks


def train_with_coordinator(loop: Any, run: Run) -> None:
    """Trains by scheduling each batch once, on the next free worker.

    Batches are passed as arguments instead of being read from a dataset per worker
    (``create_per_worker_dataset``), so that each epoch uses every example exactly once, whatever the number of
    workers. Steps are not reported, because several run at the same time; weights are compared at the end of each
    epoch. The loop, a ``CustomLoop``, has its model, optimizer and metrics already.
    """
    coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
    callbacks = Callbacks(run, loop.model, loop.optimizer, {})

    # Each function returns a tensor because TensorFlow does not optimize a graph without outputs, which then rounds
    # differently.
    @tf.function(input_signature=[run.train_dataset(run.epochs[0]).element_spec])
    def distributed_train_step(batch: Any) -> tf.Tensor:
        run.strategy.run(loop.train_step, args=(batch,))
        return tf.constant(True)

    @tf.function(input_signature=[run.validation_dataset().element_spec])
    def distributed_test_step(batch: Any) -> tf.Tensor:
        run.strategy.run(loop.test_step, args=(batch,))
        return tf.constant(True)

    def run_epoch(dataset: tf.data.Dataset, step_function: Any) -> Any:
        for batch in dataset:
            coordinator.schedule(step_function, args=(batch,))
        coordinator.join()  # wait until the workers are idle: only then can metrics and weights be read
        return loop.results()

    callbacks.on_train_begin({})
    for epoch in run.epochs:
        callbacks.on_epoch_begin(epoch - 1, {})
        logs = run_epoch(run.train_dataset(epoch), distributed_train_step)
        test_logs = run_epoch(run.validation_dataset(), distributed_test_step)
        logs |= {f"val_{name}": value for name, value in test_logs.items()}
        callbacks.on_epoch_end(epoch - 1, logs)
        run.end_epoch(epoch, logs)
        if loop.model.stop_training:
            break
    callbacks.on_train_end(logs)
