"""The loops of scripts/calibrate.py: correct ones that round otherwise than fit, and mistakes for any experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import planted
import tensorflow as tf
import test_gallery

import compare
from compare.trainers.outputs import Outputs


class Steps(compare.CustomLoop):
    """The steps of the package's loop, each called from Python; no validation, which changes no weights."""

    name = "steps"

    def train(self, run: Any) -> None:
        self.strategy, self.class_weight = run.strategy, run.class_weight
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        self.compiled: Any = None
        with self.strategy.scope():
            self.loss_metric = tf.keras.metrics.Mean(name="loss")
            self.outputs = Outputs(
                self.model,
                run.train_dataset(run.epochs[0]).element_spec[0],
                loss=self.loss,
                loss_weights=run.loss_weights,
                metrics=self.metrics,
                weighted_metrics=run.weighted_metrics,
            )
        for epoch in run.epochs:
            self.train_epoch(run, self.strategy.experimental_distribute_dataset(run.train_dataset(epoch)))
            run.end_epoch(epoch, self.results())

    def train_epoch(self, run: Any, data: Any) -> None:
        for batch in data:
            self.on_batch(batch)
            run.end_step()

    def on_batch(self, batch: Any) -> None:
        self.strategy.run(self.train_step, (batch,))


class Compiled(Steps):
    """XLA, which TensorFlow supports on one replica only."""

    def on_batch(self, batch: Any) -> None:
        if self.compiled is None:
            self.compiled = tf.function(super().on_batch, jit_compile=True)
        self.compiled(batch)


class WholeEpoch(Steps):
    """One tf.function, and so no end_step; on several replicas the last batch, a short one, has a call of its own."""

    def train_epoch(self, run: Any, data: Any) -> None:
        @tf.function
        def train(iterator: Any, steps: tf.Tensor) -> None:
            for _ in tf.range(steps):
                self.on_batch(next(iterator))

        iterator, steps = iter(data), int(run.train_dataset(run.epoch).cardinality())
        apart = int(self.strategy.num_replicas_in_sync > 1)
        for count in (steps - apart, apart):
            train(iterator, tf.constant(count))


class Backwards(compare.CustomLoop):
    """Each replica's examples in reverse: sums are taken in another order."""

    name = "backwards"

    def train_step(self, batch: Any) -> None:
        super().train_step(tf.nest.map_structure(lambda tensor: tf.reverse(tensor, [0]), batch))


class Tripled(compare.CustomLoop):
    name = "tripled"

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        return 3.0 * super().compute_loss(y, predictions, sample_weight)


class FullBatches(compare.CustomLoop):
    """A short batch's loss is divided by the full batch size."""

    name = "full-batches"

    def train(self, run: Any) -> None:
        self.full = run.global_batch_size / run.strategy.num_replicas_in_sync
        super().train(run)

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        examples = tf.cast(tf.shape(tf.nest.flatten(y)[0])[0], tf.float32)
        return super().compute_loss(y, predictions, sample_weight) * (examples / self.full)


class RateOff(compare.CustomLoop):
    """The learning rate is 1% off."""

    name = "rate-off"

    def train(self, run: Any) -> None:
        build = run.build

        def built() -> Any:
            model, optimizer, *others = build()
            while hasattr(optimizer, "inner_optimizer"):
                optimizer = optimizer.inner_optimizer
            schedule = optimizer._learning_rate
            if isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
                optimizer._learning_rate = lambda: 0.99 * schedule(optimizer.iterations)
            else:
                optimizer.learning_rate = 0.99 * optimizer.learning_rate
            return model, optimizer, *others

        run.build = built
        super().train(run)


DROPS = ("mlp-dropout", "dropout", "transformer")
"""Where an example meets another mask when its place in the batch, or the generator, is another one."""
FLAG = ("batchnorm", "densenet", "dropout", "transformer")
"""Experiments with layers that do something else in training."""


def correct(model: str, replicas: int) -> Iterator[tuple[str, str, Any]]:
    """(kind, name, trainer) of loops that compute the same in another order of rounding."""
    yield "correct", "eager", Steps()
    yield "correct", "whole epoch in one function", WholeEpoch()
    if model not in DROPS:
        yield "correct", "reversed sums", Backwards()
    if replicas == 1 and model not in DROPS:
        yield "correct", "XLA", Compiled()


def wrong(model: str, optimizer: str, replicas: int) -> Iterator[tuple[str, str, Any]]:
    """Every planted mistake that shows there."""
    for bug in planted.BUGS:
        if bug.training and planted.shows(bug, model, optimizer, replicas):
            yield "bug", bug.name, bug.trainer()
    for unknown in planted.UNKNOWN:
        if model != "regression" or unknown is not planted.LabelSmoothing:
            yield "unknown", unknown.__name__, planted.Bug(unknown).trainer()


def wrong_in_gallery(name: str, replicas: int) -> Iterator[tuple[str, str, Any]]:
    """Mistakes that any experiment may have, and with two replicas the one that it is there for."""
    if replicas == 1:
        yield "bug", FullBatches.__name__, FullBatches()
        return
    yield "bug", "the experiment's own mistake", test_gallery.GALLERY[name].loop()
    for loop in (Tripled, RateOff, planted.NothingDivided):
        yield "bug", loop.__name__, loop()
    if name in FLAG:
        yield "bug", "NoFlag", planted.NoFlag()
