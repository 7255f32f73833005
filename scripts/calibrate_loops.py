"""The loops of scripts/calibrate.py: correct ones that round differently from fit, and bugs for any experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import test_gallery
from corpus import planted

import compare
from compare.trainers.outputs import Outputs
from scripts.detector import loops


class Steps(compare.CustomLoop):
    """The steps of the package's loop, each called from Python. Omits validation, which changes no weights."""

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
    """Compiles each step with XLA, which TensorFlow supports on one replica only."""

    def on_batch(self, batch: Any) -> None:
        if self.compiled is None:
            self.compiled = tf.function(super().on_batch, jit_compile=True)
        self.compiled(batch)


class WholeEpoch(Steps):
    """Runs an epoch in one tf.function, without end_step. On several replicas, the short last batch is another call."""

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
    """Reverses each replica's examples, so that sums are taken in another order."""

    name = "backwards"

    def train_step(self, batch: Any) -> None:
        super().train_step(tf.nest.map_structure(lambda tensor: tf.reverse(tensor, [0]), batch))


class Tripled(compare.CustomLoop):
    name = "tripled"

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        return 3.0 * super().compute_loss(y, predictions, sample_weight)


class FullBatches(compare.CustomLoop):
    """Divides a short batch's loss by the full batch size."""

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
"""Experiments whose dropout masks depend on an example's place in the batch and on the generator."""
FLAG = ("batchnorm", "densenet", "dropout", "transformer")
"""Experiments with layers that behave differently in training."""


def correct(model: str, replicas: int) -> Iterator[tuple[str, str, Any]]:
    """Yields kind, name and trainer of loops that differ from fit in rounding only."""
    yield "correct", "eager", Steps()
    yield "correct", "whole epoch in one function", WholeEpoch()
    if model not in DROPS:
        yield "correct", "reversed sums", Backwards()
    if replicas == 1 and model not in DROPS:
        yield "correct", "XLA", Compiled()


def wrong(model: str, optimizer: str, replicas: int) -> Iterator[tuple[str, str, Any]]:
    """Yields kind, name and trainer of all planted bugs that show in a setting."""
    for kind, bug in loops(model, optimizer, replicas):
        if kind == "unknown" or (kind == "bug" and bug.training):
            yield kind, bug.name, bug.trainer()


def wrong_in_gallery(name: str, replicas: int) -> Iterator[tuple[str, str, Any]]:
    """Yields bugs that any experiment may have and, on two replicas, the bug that the experiment demonstrates."""
    if replicas == 1:
        yield "bug", FullBatches.__name__, FullBatches()
        return
    yield "bug", "the experiment's own mistake", test_gallery.GALLERY[name].loop()
    for loop in (Tripled, RateOff, planted.NothingDivided):
        yield "bug", loop.__name__, loop()
    if name in FLAG:
        yield "bug", "NoFlag", planted.NoFlag()
