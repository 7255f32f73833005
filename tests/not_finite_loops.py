"""Loops that go wrong in values, as users write them: something becomes NaN or infinite, at a step that they choose.

Nothing here knows how the product finds it. Each loop looks at its own weights after every step and notes the first
step after which one of them is not finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tasks
import tensorflow as tf


class Loop:
    """A right loop: a ``tf.function`` per step, over the batches of the run."""

    name = "mine"
    at = 1  # the step, counted over the whole training, at which it goes wrong
    stage = "loss"  # where it does
    where = ""
    kind = "training"
    truth: int | None = None
    needs = ""  # what its model has, or how it is trained

    def __init__(self, at: int | None = None) -> None:
        self.at = at or self.at

    def train(self, run: Any) -> None:
        self.run = run
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        self.steps = 0
        type(self).truth = None  # of the class, since a copy of a trainer trains
        self.now = tf.Variable(0, dtype=tf.int64)
        step = self.compiled(self.step)
        for epoch in run.epochs:
            losses: list[float] = []
            for metric in self.metrics:
                metric.reset_state()
            for x, y in run.train_dataset(epoch):
                self.now.assign_add(1)
                self.steps += 1
                losses.append(float(step(x, y)))
                self.after_step()
                self.look()
                run.end_step()
            logs = {"loss": float(np.mean(losses)), **{m.name: float(m.result()) for m in self.metrics}}
            run.end_epoch(epoch, logs | self.validate())

    def compiled(self, step: Any) -> Any:
        return tf.function(step)

    def look(self) -> None:
        if self.truth is None and not all(np.isfinite(w).all() for w in self.model.get_weights()):
            type(self).truth = self.steps

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = self.model(self.inputs(x), training=True)
            value = self.value(x, y, predictions)
        variables = self.model.trainable_variables
        gradients = self.gradients(tape.gradient(value, variables))
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        for metric in self.metrics:
            metric.update_state(y, predictions)
        return value

    def wrong(self) -> Any:
        """1 at the step that goes wrong, else 0."""
        return tf.cast(self.now == self.at, tf.float32)

    def inputs(self, x: Any) -> Any:
        return x

    def value(self, x: Any, y: Any, predictions: Any) -> Any:
        return self.loss(y, predictions)

    def gradients(self, gradients: list[Any]) -> list[Any]:
        return gradients

    def after_step(self) -> None:
        """Between two steps."""

    def validate(self) -> dict[str, float]:
        losses = [float(self.loss(y, self.model(x, training=False))) for x, y in self.run.validation_dataset()]
        return {"val_loss": float(np.mean(losses))}


class TimesNan(Loop):
    def value(self, x, y, predictions):
        return super().value(x, y, predictions) * tf.where(self.now == self.at, float("nan"), 1.0)


class EagerNan(TimesNan):
    def compiled(self, step):
        return step


class LogOfInputs(Loop):
    """Features are put on a logarithmic scale, and some are negative."""

    stage = "inputs"

    def inputs(self, x):
        return tf.where(self.now == self.at, tf.math.log(x), x)


class LogOfZero(Loop):
    """Cross-entropy by hand, of probabilities that a threshold has made zero."""

    def value(self, x, y, predictions):
        probabilities = tf.nn.softmax(predictions)
        shares = tf.reduce_max(probabilities, axis=-1, keepdims=True)
        kept = tf.where((probabilities < shares) & (self.now == self.at), 0.0, probabilities)
        labels = tf.one_hot(tf.reshape(y, [-1]), 3)
        return -tf.reduce_mean(tf.reduce_sum(labels * tf.math.log(kept), axis=-1))


class EmptyMask(Loop):
    """The mean over the examples of a class that this batch does not have."""

    def compiled(self, step):
        return step

    def value(self, x, y, predictions):
        mask = tf.cast(y < 3, tf.float32) * (1 - self.wrong())
        losses = tf.keras.losses.sparse_categorical_crossentropy(y, predictions, from_logits=True)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


class WeightsOfNothing(Loop):
    """Each class weighs one over its count, and one count is zero."""

    def value(self, x, y, predictions):
        counts = tf.constant([1.0, 1.0, 1.0]) - self.wrong() * tf.constant([0.0, 1.0, 0.0])
        losses = tf.keras.losses.sparse_categorical_crossentropy(y, predictions, from_logits=True)
        return tf.reduce_mean(losses * tf.gather(1.0 / counts, tf.reshape(y, [-1])))


class RootOfZero(Loop):
    """A penalty with the norm of a bias, which begins at zero: its value is finite, its gradient is not."""

    stage, where = "gradients", "bias"

    def value(self, x, y, predictions):
        zero = self.model.layers[0].bias * (1 - self.wrong())
        return super().value(x, y, predictions) + 1e-4 * tf.norm(zero)


class BranchNotTaken(Loop):
    """``tf.where`` takes the other branch, but the gradient of both."""

    stage = "gradients"

    def value(self, x, y, predictions):
        size = tf.abs(predictions) * (1 - self.wrong())
        penalty = tf.where(size > 0, tf.math.log(size), 0.0)
        return super().value(x, y, predictions) + 1e-30 * tf.reduce_sum(penalty)


class Standardized(Loop):
    """Gradients divided by their deviation."""

    stage, where = "gradients", "kernel"

    def gradients(self, gradients):
        first, *others = gradients
        deviation = tf.math.reduce_std(first) * (1 - self.wrong())
        return [tf.where(self.now == self.at, (first - tf.reduce_mean(first)) * 0.0 / deviation, first), *others]


class InfiniteRate(Loop):
    """A schedule of one's own divides by the steps that are left."""

    stage, where = "update", "the learning rate"

    def compiled(self, step):
        def scheduled(x, y):
            with np.errstate(divide="ignore"):
                rate = np.float32(0.1) if self.steps != self.at else np.float32(0.1) / np.float32(0.0)
            self.optimizer.learning_rate.assign(rate)
            return graph(x, y)

        graph = tf.function(step)
        return scheduled


class Exploding(Loop):
    """The learning rate is raised far too much, and numbers overflow some steps later."""

    stage = "predictions"
    needs = "plain"

    def after_step(self):
        if self.steps == self.at:
            self.optimizer.learning_rate.assign(1e25)


class OneLayer(Loop):
    """Something between two steps spoils one layer."""

    stage, where = "state", "dense_1/kernel"

    def after_step(self):
        if self.steps == self.at:
            kernel = self.model.layers[-1].kernel
            kernel.assign(kernel * np.nan)


class Overflow(Loop):
    """Weights that grow by hand until they are infinite."""

    stage = "state"

    def after_step(self):
        if self.steps == self.at:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * np.float32(1e38) * np.float32(1e10))


class MovingVariance(Loop):
    """Batch statistics are updated by hand, with the variance of a single example."""

    stage, where = "state", "moving_variance"
    needs = "batch_norm"

    def after_step(self):
        if self.steps == self.at:
            layer = next(each for each in self.model.layers if "batch" in each.name)
            layer.moving_variance.assign(layer.moving_variance * np.float32(np.nan))


class HalfPrecision(Loop):
    """A loss scale by hand, beyond what float16 holds."""

    def value(self, x, y, predictions):
        scale = tf.where(self.now == self.at, 1e6, 1.0)
        return tf.cast(tf.cast(super().value(x, y, predictions) * scale, tf.float16), tf.float32) / scale


class Replicas(Loop):
    """Both replicas divide by the number of their own examples of a class."""

    def train(self, run):
        self.run = run
        self.model, self.optimizer, self.loss, _ = run.build()
        self.metrics, self.steps = [], 0
        type(self).truth = None
        self.now = tf.Variable(0, dtype=tf.int64)
        replicas = run.strategy.num_replicas_in_sync

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = self.loss.call(y, self.model(x, training=True))
                mask = tf.ones_like(losses) * tf.where(self.now >= self.at, 0.0, 1.0)
                value = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask) / replicas
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
            return value

        @tf.function
        def step(x, y):
            return run.strategy.reduce("SUM", run.strategy.run(replica_step, (x, y)), axis=None)

        for epoch in run.epochs:
            losses = []
            for x, y in run.strategy.experimental_distribute_dataset(run.train_dataset(epoch)):
                self.now.assign_add(1)
                self.steps += 1
                losses.append(float(step(x, y)))
                self.look()
                run.end_step()
            run.end_epoch(epoch, {"loss": float(np.mean(losses))})


class WholeEpoch(Loop):
    """A whole epoch in one function, so that nobody says where a step ends."""

    def train(self, run):
        self.run = run
        self.model, self.optimizer, self.loss, _ = run.build()
        self.now = tf.Variable(0, dtype=tf.int64)
        self.metrics = []
        type(self).truth = None

        @tf.function
        def train(data):
            total = tf.zeros([])
            for x, y in data:
                self.now.assign_add(1)
                total += self.step(x, y)
            return total

        for epoch in run.epochs:
            run.end_epoch(epoch, {"loss": float(train(run.train_dataset(epoch)))})

    def value(self, x, y, predictions):
        return super().value(x, y, predictions) * tf.where(self.now == self.at, float("nan"), 1.0)


class AccuracyOfNothing(Loop):
    """A metric of its own, zero divided by zero."""

    kind, where = "reporting", "accuracy"

    def validate(self):
        with np.errstate(invalid="ignore"):
            nothing = float(np.float32(0) / np.float32(0))
        return super().validate() | ({"accuracy": nothing} if self.steps >= self.at else {})


class ValidationOfNothing(Loop):
    """The mean over validation batches that ran out."""

    kind, where = "reporting", "val_loss"

    def validate(self):
        return {"val_loss": float("nan")} if self.steps >= self.at else super().validate()


class InfiniteLossReported(Loop):
    """A sum that overflows, of a loss that is right."""

    kind, where = "reporting", "val_loss"

    def validate(self):
        return {"val_loss": float("inf")} if self.steps >= self.at else super().validate()


class InfiniteLoss(Loop):
    """Adds a term that is infinite, of which no gradient is taken."""

    kind, where = "reporting", "loss"

    def value(self, x, y, predictions):
        return super().value(x, y, predictions) + tf.where(self.now == self.at, float("inf"), 0.0)


class Guarded(Loop):
    """Leaves out what is not finite; ``fit`` does not, on data with a NaN: the reference is the side that fails."""

    stage = "gradients"

    def gradients(self, gradients):
        return [tf.where(tf.math.is_finite(each), each, tf.zeros_like(each)) for each in gradients]


LOOPS = [
    TimesNan, EagerNan, LogOfInputs, LogOfZero, EmptyMask, WeightsOfNothing, RootOfZero, BranchNotTaken, Standardized,
    InfiniteRate, Exploding, OneLayer, Overflow, MovingVariance, HalfPrecision, Replicas, WholeEpoch,
    AccuracyOfNothing, ValidationOfNothing, InfiniteLossReported, InfiniteLoss,
]  # fmt: skip


def experiment(loop: type[Loop], **changes: Any) -> Any:
    """The task of a loop."""
    needed: dict[str, dict[str, Any]] = {
        "": {},
        "plain": {"optimizer": lambda: tf.keras.optimizers.SGD(0.1)},
        "batch_norm": {"batch_norm": True},
    }
    return tasks.experiment(**(needed[loop.needs] | changes))


def one_bad_example() -> Any:
    """Data with a NaN in the first training example, which the short check has."""
    (x, y), validation = tasks.blobs(75, 36)
    x = x.copy()
    x[0] = np.nan
    return (x, y), validation
