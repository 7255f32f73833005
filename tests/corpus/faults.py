"""Mistakes in what a step computes, each a class that overrides one part of a loop: loss, forward pass, gradients.

What each is called, and what may be said of it, is in ``corpus.cells``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from corpus.loop import SUM, Loop
from corpus.steps import ReducedByHand

# The loss and its gradient.


class LossNotDivided(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return loss


class NotDivided(Loop):
    """The penalty is divided."""

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return loss - self.penalty() + self.penalty() / self.replicas


class DividedTwice(Loop):
    """The penalty is divided once."""

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share((loss - self.penalty()) / self.replicas + self.penalty())


class KerasDividesToo(Loop):
    """Keras 3's Loss.__call__ divides by the replicas inside strategy.run."""

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return loss(y, predictions, sample_weight=weight)[tf.newaxis]


class LossDividedTwice(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(loss) / self.replicas


class LossSummed(Loop):
    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values)


class Summed(Loop):
    """Over all replicas' examples."""

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values) * self.replicas


class HardCodedBatchSize(Loop):
    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values) / 64.0 * self.replicas


class ConstantDenominator(Loop):
    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values) * self.replicas / self.run.global_batch_size


class LossTimesFive(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return 5.0 * super().share(loss)


class LossHalved(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(loss) / 2.0


class OnlyDataScaled(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(0.7 * (loss - self.penalty()) + self.penalty())


class SharedByTheBusy(Loop):
    """Divides by the number of replicas that have examples."""

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        busy = context.all_reduce(SUM, tf.cast(tf.size(values) > 0, tf.float32))
        return super().mean(values) * self.replicas / busy


class HardestExample(Loop):
    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(values)


class TrueCount(Loop):
    """Divides by the true number of examples on all replicas, where fit takes the mean of means."""

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        count = context.all_reduce(SUM, tf.cast(tf.size(values), values.dtype)) if context else tf.size(values)
        return tf.reduce_sum(values) * self.replicas / tf.cast(count, values.dtype)

    def validation_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return tf.reduce_mean(self.example_losses(self.loss, y, predictions, weight)) + self.penalty()


class MeanOfNothing(Loop):
    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(values)


class NoPenalty(Loop):
    def penalty(self) -> Any:
        return 0.0


class NoPenaltyInTraining(Loop):
    """Validation has it."""

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(loss - self.penalty())


class PenaltyTripled(Loop):
    """Validation has it once."""

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(loss + 2.0 * self.penalty())


class PenaltyNotDivided(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(loss) + self.penalty() * (1 - 1 / self.replicas)


class PenaltyTwice(Loop):
    def penalty(self) -> Any:
        return 2.0 * super().penalty()


class FirstPenaltyOnly(Loop):
    def penalty(self) -> Any:
        return tf.reduce_sum(self.model.losses[0])


class HeadPenaltyForgotten(Loop):
    """Training lacks the penalty of the last layer that has one."""

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return super().share(loss - tf.reduce_sum(self.model.losses[-1]))


class ClassWeightsDropped(Loop):
    def unpack(self, batch: Any) -> Any:
        return tf.keras.utils.unpack_x_y_sample_weight(batch)


class SmoothingDropped(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        if isinstance(loss, tf.keras.losses.BinaryCrossentropy):
            return tf.keras.losses.binary_crossentropy(y, predictions, from_logits=True)
        return tf.keras.losses.categorical_crossentropy(y, predictions, from_logits=True)


class MaskIgnored(Loop):
    """The loss averages over the padding too."""

    def masked(self, values: tf.Tensor, predictions: Any) -> tf.Tensor:
        return values


class SoftmaxTwice(Loop):
    """With TensorFlow's function: Keras's own finds the softmax in the graph, and takes what went into it."""

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        probabilities = tf.nn.softmax(tf.cast(predictions, loss.dtype))
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, probabilities)


class LogitsAsProbabilities(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return tf.keras.losses.sparse_categorical_crossentropy(y, tf.cast(predictions, tf.float32), from_logits=False)


class LogOfLogits(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return -tf.reduce_sum(tf.one_hot(y, predictions.shape[-1]) * tf.math.log(predictions), axis=-1)


class LabelBroadcast(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return tf.square(y - predictions)


class WeightsDropped(Loop):
    def unpack(self, batch: Any) -> Any:
        x, y, *_ = batch
        return x, y, None


class WeightsDroppedEverywhere(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return super().example_losses(loss, y, predictions, None)


class WeightsNormalized(Loop):
    """Divides by the sum of the weights."""

    def data_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        values = self.example_losses(self.loss, y, predictions, weight)
        return tf.math.divide_no_nan(tf.reduce_sum(values), tf.reduce_sum(weight))


class NoLossScale(Loop):
    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return loss


class LossWeightsIgnored(Loop):
    def terms(self, y: Any, predictions: Any, weight: Any) -> Any:
        return [(1.0, *term) for _, *term in super().terms(y, predictions, weight)]


class OutputForgotten(Loop):
    def terms(self, y: Any, predictions: Any, weight: Any) -> Any:
        return list(super().terms(y, predictions, weight))[:1]


class LabelSmoothing(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(tf.cast(predictions, loss.dtype)), axis=-1)
        return 0.9 * super().example_losses(loss, y, predictions, weight) + 0.1 * uniform


class AbsoluteError(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return tf.abs(y - predictions[:, 0])


class ExamplesReversedInBatch(Loop):
    """Labels of other examples."""

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return super().example_losses(loss, tf.reverse(y, [0]), predictions, weight)


class FocalLoss(Loop):
    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        values = super().example_losses(loss, y, predictions, weight)
        return (1 - tf.exp(-values)) ** 2 * values


class MicroMeans(Loop):
    """Every micro-batch counts the same, the short one too."""

    def micro_weight(self, examples: tf.Tensor, count: tf.Tensor, dtype: Any) -> tf.Tensor:
        micro_batches = tf.cast(tf.math.ceil(count / self.micro_batch), dtype)
        return 1.0 / micro_batches


class MicroSums(Loop):
    """The gradients of the micro-batches' means are added and never averaged."""

    micro_batch = 8

    def micro_weight(self, examples: tf.Tensor, count: tf.Tensor, dtype: Any) -> tf.Tensor:
        return tf.ones((), dtype)


class MicroRemainderDropped(Loop):
    """Only full micro-batches count."""

    def end(self, count: tf.Tensor) -> tf.Tensor:
        return count - count % self.micro_batch


# The forward pass.


class NoTrainingFlag(Loop):
    def forward(self, x: Any) -> Any:
        return self.model(x)


class FrozenStatistics(Loop):
    """One layer, the last batch normalization, runs in inference mode."""

    def forward(self, x: Any) -> Any:
        last = [layer for layer in self.model.layers if isinstance(layer, tf.keras.layers.BatchNormalization)][-1]
        for layer in self.model.layers:
            kwargs = {"training": layer is not last} if layer._call_has_training_arg else {}
            x = layer(x, **kwargs)
        return x


class OtherMomentum(Loop):
    """Batch normalization forgets its statistics sooner than it was made to."""

    def make(self) -> None:
        super().make()
        for layer in self.model.layers:
            if isinstance(layer, tf.keras.layers.BatchNormalization):
                layer.momentum = 0.5


class StatisticsOfHalves(Loop):
    """Two micro-batches, each normalized by itself; batch normalization counts them as two."""

    def forward(self, x: Any) -> Any:
        half = tf.shape(x)[0] // 2
        return tf.concat([super().forward(x[:half]), super().forward(x[half:])], axis=0)


class MasksLost(Loop):
    """Calls layer after layer, with a TensorFlow function after the first, whose result has no mask."""

    def forward(self, x: Any) -> Any:
        embedding, *others = self.model.layers
        x = tf.identity(embedding(x))
        for layer in others:
            x = layer(x)
        return x

    def predict(self, x: Any) -> Any:
        return self.forward(x)


class LayersApart(Loop):
    """A body and a head that are called one after the other."""

    def body_and_head(self) -> tuple[list[Any], list[Any]]:
        layers = self.model.layers
        first = next(i for i, layer in enumerate(layers) if layer.trainable_variables)
        return layers[: first + 1], layers[first + 1 :]

    def through(self, layers: list[Any], x: Any) -> Any:
        for layer in layers:
            x = layer(x, training=True) if layer._call_has_training_arg else layer(x)
        return x

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        known = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        super().update(*map(list, zip(*known, strict=True)))


class GradientStopped(LayersApart):
    """The first layer is a fixed feature extractor by mistake, and None gradients are skipped in silence."""

    def forward(self, x: Any) -> Any:
        body, head = self.body_and_head()
        return self.through(head, tf.stop_gradient(self.through(body, x)))


class OutsideTheTape(LayersApart):
    """The first layer is called before the tape begins, and None gradients are skipped in silence."""

    def unpack(self, batch: Any) -> Any:
        x, y, weight = super().unpack(batch)
        return self.through(self.body_and_head()[0], x), y, weight

    def forward(self, x: Any) -> Any:
        return self.through(self.body_and_head()[1], x)


class TwoForwardPasses(Loop):
    """The first is for a look at the predictions."""

    def forward(self, x: Any) -> Any:
        self.model(x, training=True)
        return super().forward(x)


class InputsScaled(Loop):
    def forward(self, x: Any) -> Any:
        return super().forward(0.9 * x)


class NoisyInputs(Loop):
    def forward(self, x: Any) -> Any:
        return super().forward(x + 0.3 * tf.random.stateless_normal(tf.shape(x), seed=(1, 2), dtype=x.dtype))


class StandardizedInputs(Loop):
    def forward(self, x: Any) -> Any:
        return super().forward((x - tf.reduce_mean(x)) / tf.math.reduce_std(x))


class NoisyLabels(Loop):
    def unpack(self, batch: Any) -> Any:
        x, y, weight = super().unpack(batch)
        flipped = tf.random.stateless_uniform(tf.shape(y), seed=(3, 4)) < 0.2
        return x, tf.where(flipped, tf.zeros_like(y), y), weight


# Gradients.


class GradientNoise(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        gradients = [tf.convert_to_tensor(gradient) for gradient in super().gradients(*args)]
        return [g + 0.02 * tf.random.stateless_normal(g.shape, seed=(5, 6), dtype=g.dtype) for g in gradients]


class SignFlipped(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        first, *others = super().gradients(*args)
        return [-tf.convert_to_tensor(first), *others]


class BiasesTwice(Loop):
    def gradients(self, tape: Any, loss: Any, variables: list[Any]) -> list[Any]:
        gradients = super().gradients(tape, loss, variables)
        return [2.0 * g if len(v.shape) == 1 else g for g, v in zip(gradients, variables, strict=True)]


class LastLayerFaster(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        *others, kernel, bias = super().gradients(*args)
        return [*others, 10.0 * kernel, 10.0 * bias]


class GradientsCentralized(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        gradients = [tf.convert_to_tensor(gradient) for gradient in super().gradients(*args)]
        return [g - tf.reduce_mean(g, axis=0) if len(g.shape) > 1 else g for g in gradients]


class DenseGradients(Loop):
    """Adds up the rows of an embedding's gradient first."""

    def gradients(self, *args: Any) -> list[Any]:
        return [tf.convert_to_tensor(gradient) for gradient in super().gradients(*args)]


class UnscaledTwice(Loop):
    """Divides by the loss scale, as the optimizer does again."""

    def gradients(self, *args: Any) -> list[Any]:
        return [gradient / self.optimizer.dynamic_scale for gradient in super().gradients(*args)]


class ConstantScale(Loop):
    """Multiplies the loss by a constant of its own; the optimizer inside knows nothing of it."""

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return 8.0 * loss

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        self.optimizer.inner_optimizer.apply_gradients(zip(gradients, variables, strict=True))


class ClippedWhileScaled(Loop):
    """Clips gradients that are still multiplied by the loss scale."""

    def gradients(self, *args: Any) -> list[Any]:
        return tf.clip_by_global_norm(super().gradients(*args), 1.0)[0]


class StaleGradients(Loop):
    """Each step is made with the gradients of the step before."""

    def make(self) -> None:
        super().make()
        aggregation = {"synchronization": tf.VariableSynchronization.ON_READ}
        self.stale = [tf.Variable(tf.zeros_like(v), trainable=False, **aggregation) for v in self.variables()]

    def gradients(self, *args: Any) -> list[Any]:
        gradients = super().gradients(*args)
        before = [tf.identity(stale) for stale in self.stale]
        with tf.control_dependencies(before):
            for stale, gradient in zip(self.stale, gradients, strict=True):
                stale.assign(tf.convert_to_tensor(gradient))
        return before


class GradientsScaled(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        return [0.3 * gradient for gradient in super().gradients(*args)]


class OneVariableScaled(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        first, *others = super().gradients(*args)
        return [2.0 * first, *others]


class StoppedGradient(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        first, *others = super().gradients(*args)
        return [tf.zeros_like(first), *others]


class OnlyFirstReplica(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        chosen = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        return [gradient if chosen else tf.zeros_like(gradient) for gradient in super().gradients(*args)]


class EachItsOwn(Loop):
    """The optimizer of each replica sees its own gradients."""

    def make(self) -> None:
        super().make()
        self.optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


class ClippedEach(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        return [tf.clip_by_norm(gradient, 0.05) for gradient in super().gradients(*args)]


class ClippedAfterwards(ReducedByHand):
    """Keras 3 clips what each replica hands in: shares of the sum are clipped to something else."""


class OptimizerClips(Loop):
    def make(self) -> None:
        super().make()
        self.optimizer.clipvalue = 0.01


class ClippedByHand(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        return tf.clip_by_global_norm(super().gradients(*args), 0.2)[0]


class ClippedByValue(Loop):
    def gradients(self, *args: Any) -> list[Any]:
        return [tf.clip_by_value(tf.convert_to_tensor(g), -0.02, 0.02) for g in super().gradients(*args)]


class ClippingForgotten(Loop):
    def make(self) -> None:
        super().make()
        config = self.optimizer.get_config() | {"clipnorm": None, "global_clipnorm": None}
        self.optimizer = type(self.optimizer).from_config(config)
        self.optimizer.build(self.model.trainable_variables)


class ClippedAtAnotherNorm(Loop):
    def clipped(self, gradients: list[Any]) -> list[Any]:
        return [tf.clip_by_norm(gradient, 0.02) for gradient in gradients]


class ClippedAfterTheSum(Loop):
    """Clips the sum of all replicas' gradients, where Keras 3 clips each one's."""

    def clipped(self, gradients: list[Any]) -> list[Any]:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        context = tf.distribute.get_replica_context()
        return [g / self.replicas for g in super().clipped(context.all_reduce(SUM, gradients))]


class FirstReplicasGradients(Loop):
    def summed(self, strategy: Any, gradient: Any) -> tf.Tensor:
        return strategy.experimental_local_results(gradient)[0]


class MeanOfGradients(Loop):
    def summed(self, strategy: Any, gradient: Any) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, gradient, axis=None)


# Two mistakes that hide each other: the optimizer makes the same weights of wrong gradients.


class ScaledAndEpsilon(Loop):
    """Adam takes a loss a thousand times too large, and its epsilon as much, for nothing."""

    def make(self) -> None:
        super().make()
        self.optimizer.epsilon *= 1024

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return 1024 * super().share(loss)


class DividedTwiceAndEpsilon(LossDividedTwice):
    """So does it take one too small, and the penalty with it."""

    def make(self) -> None:
        super().make()
        self.optimizer.epsilon /= self.replicas


class ScaledAndSlower(Loop):
    """Plain descent and momentum are linear: a loss eight times too large, and an eighth of the rate."""

    def make(self) -> None:
        super().make()
        self.optimizer.learning_rate = self.optimizer.learning_rate / 8

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return 8 * super().share(loss)
