"""Styles of one step of a right loop: how loss and gradients are computed, and variables updated."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from corpus.experiments import CLASSES, MOMENTUM
from corpus.loop import SUM, Loop, examples_in
from corpus.loops import EagerNoStrategy, NoStrategy
from corpus.special import DECAY

# How the loss is computed.


class KerasLoss(Loop):
    """Calls the Loss object, which in Keras 3 divides by the number of replicas itself."""

    def data_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return tf.add_n(
            [factor * loss(*its, sample_weight=w) for factor, loss, *its, w in self.terms(y, predictions, weight)]
        )

    def penalty(self) -> Any:
        return super().penalty() / self.replicas

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return super().record(loss * self.replicas, x, y, predictions, weight)


class CompiledLoss(KerasLoss):
    """Compiles the model, for the sake of model.compute_loss, which is a replica's share."""

    def make(self) -> None:
        super().make()
        self.model.compile(optimizer=self.optimizer, loss=self.loss, jit_compile=False)

    def loss_value(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return self.model.compute_loss(y=y, y_pred=predictions, sample_weight=weight)


class FunctionalLoss(Loop):
    """Writes the loss down anew, as a function of TensorFlow's."""

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        predictions = tf.cast(predictions, tf.float32)
        if isinstance(loss, tf.keras.losses.MeanSquaredError):
            values = tf.square(tf.reshape(y, [-1]) - tf.reshape(predictions, [-1]))
        elif isinstance(loss, tf.keras.losses.CategoricalCrossentropy):
            smooth = y * (1 - loss.label_smoothing) + loss.label_smoothing / CLASSES
            values = tf.nn.softmax_cross_entropy_with_logits(smooth, predictions)
        elif isinstance(loss, tf.keras.losses.BinaryCrossentropy):
            smooth = y * (1 - loss.label_smoothing) + loss.label_smoothing / 2
            values = tf.nn.sigmoid_cross_entropy_with_logits(smooth, predictions)[:, 0]
        else:
            values = tf.nn.sparse_softmax_cross_entropy_with_logits(y, predictions)
        return values if weight is None else values * weight


class AverageLoss(Loop):
    """With tf.nn.compute_average_loss, which divides by all replicas' examples."""

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.nn.compute_average_loss(values) * self.replicas


class SumOverCount(Loop):
    """The loss as a sum over n x replicas."""

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        count = tf.cast(tf.maximum(tf.size(values), 1), values.dtype)
        return tf.reduce_sum(values) / (count * self.replicas) * self.replicas


class TimesShare(Loop):
    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * (1.0 / self.replicas)


# How gradients are taken.


class PersistentTape(Loop):
    """Data loss and penalty have a gradient each, from one persistent tape, and these are added."""

    persistent = True

    def loss_value(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        self.parts = [self.data_loss(y, predictions, weight), tf.convert_to_tensor(self.penalty())]
        self.scaled_parts = [self.scaled(self.share(part)) for part in self.parts]
        return tf.add_n(self.parts)

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        of_parts = [tape.gradient(part, variables) for part in self.scaled_parts]
        del tape
        return [data if penalty is None else data + penalty for data, penalty in zip(*of_parts, strict=True)]


class TwoGradients(Loop):
    """One gradient for each half of the variables, one update."""

    persistent = True

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        half = len(variables) // 2
        return [*tape.gradient(loss, variables[:half]), *tape.gradient(loss, variables[half:])]


class TwoUpdates(TwoGradients):
    """And two calls of apply_gradients on one optimizer that does not count its steps."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        half = len(variables) // 2
        super().update(gradients[:half], variables[:half])
        super().update(gradients[half:], variables[half:])


class OtherOrder(Loop):
    """The variables in the opposite order."""

    def variables(self) -> list[Any]:
        return list(reversed(self.model.trainable_variables))


class ReducedByHand(Loop):
    """Gradients are summed by hand, and applied as shares of the sum."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        summed = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
        super().update([gradient / self.replicas for gradient in summed], variables)


class ScaledAndBack(Loop):
    """Loss scaling, undone before the update."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        factor = tf.constant(3.0)
        super().update([gradient * factor / factor for gradient in gradients], variables)


class Accumulating(Loop):
    """Gradients summed over micro-batches, each weighted by its share of the batch; then one update."""

    micro_batch = 5

    def train_step(self, batch: Any) -> Any:
        count, variables = examples_in(batch), self.variables()
        total = [tf.zeros_like(variable) for variable in variables]
        for start in tf.range(0, self.end(count), self.micro_batch):
            part = tf.nest.map_structure(lambda tensor: tensor[start : start + self.micro_batch], batch)  # noqa: B023
            x, y, weight = self.unpack(part)
            with tf.GradientTape() as tape:
                predictions = self.forward(x)
                loss = self.loss_value(y, predictions, weight)
                scaled = self.share(loss) * self.micro_weight(examples_in(x), count, loss.dtype)
            gradients = self.gradients(tape, scaled, variables)
            total = [so_far + tf.convert_to_tensor(more) for so_far, more in zip(total, gradients, strict=True)]
            self.record(loss, x, y, predictions, weight)
        self.update(total, variables)

    def end(self, count: tf.Tensor) -> tf.Tensor:
        """Where the last micro-batch ends at the latest."""
        return count

    def micro_weight(self, examples: tf.Tensor, count: tf.Tensor, dtype: Any) -> tf.Tensor:
        return tf.cast(examples, dtype) / tf.cast(count, dtype)


class AccumulatingEager(Accumulating, EagerNoStrategy):
    """Cuts each batch in Python, and adds up its parts' gradients in a list."""

    def train_step(self, batch: Any) -> Any:
        total, count = None, examples_in(batch)
        for start in range(0, int(self.end(count)), self.micro_batch):
            part = tf.nest.map_structure(lambda tensor: tensor[start : start + self.micro_batch], batch)  # noqa: B023
            gradients = self.micro_step(part, count)
            total = gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
        if total is not None:
            self.update(total, self.variables())

    def micro_step(self, part: Any, count: tf.Tensor) -> list[tf.Tensor]:
        x, y, weight = self.unpack(part)
        with tf.GradientTape() as tape:
            predictions = self.forward(x)
            loss = self.loss_value(y, predictions, weight)
            scaled = self.share(loss) * self.micro_weight(examples_in(x), count, loss.dtype)
        self.record(loss, x, y, predictions, weight)
        return [tf.convert_to_tensor(gradient) for gradient in self.gradients(tape, scaled, self.variables())]


class AccumulatingVariables(AccumulatingEager):
    """Has variables for the sums, a compiled function that adds to them, and one that applies and clears them."""

    def make(self) -> None:
        super().make()
        self.sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in self.variables()]
        self.add = tf.function(self.add_gradients, reduce_retracing=True)
        self.apply = tf.function(self.apply_gradients)

    def train_step(self, batch: Any) -> Any:
        count = examples_in(batch)
        for start in range(0, int(self.end(count)), self.micro_batch):
            self.add(tf.nest.map_structure(lambda tensor: tensor[start : start + self.micro_batch], batch), count)  # noqa: B023
        self.apply()

    def add_gradients(self, part: Any, count: tf.Tensor) -> None:
        for total, gradient in zip(self.sums, self.micro_step(part, count), strict=True):
            total.assign_add(gradient)

    def apply_gradients(self) -> None:
        self.update([tf.identity(total) for total in self.sums], self.variables())
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class OwnUnscaling(Loop):
    """Divides by the loss scale itself, and gives the rest to the optimizer inside."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        unscaled = [gradient / self.optimizer.dynamic_scale for gradient in gradients]
        self.optimizer.inner_optimizer.apply_gradients(zip(unscaled, variables, strict=True))


class WithoutCallbacks(Loop):
    """Has left the callbacks out, which have nothing to do here."""

    def make(self) -> None:
        super().make()
        self.callbacks = []


class OwnClipping(Loop):
    """An optimizer without clipping, and each replica's gradients clipped by hand before they are summed."""

    def make(self) -> None:
        super().make()
        config = self.optimizer.get_config()
        self.clipnorm, self.global_clipnorm = config.pop("clipnorm"), config.pop("global_clipnorm")
        self.optimizer = type(self.optimizer).from_config(config)
        self.optimizer.build(self.model.trainable_variables)

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        return self.clipped(super().gradients(tape, loss, variables))

    def clipped(self, gradients: list[Any]) -> list[Any]:
        if self.clipnorm is not None:
            return [tf.clip_by_norm(gradient, self.clipnorm) for gradient in gradients]
        return tf.clip_by_global_norm(gradients, self.global_clipnorm)[0]


class OwnClippingEager(OwnClipping):
    """Without tf.function, and with the norm written out."""

    def compiled(self, step: Any, dataset: Any) -> Any:
        return lambda batch: self.strategy.run(step, args=(batch,))

    def clipped(self, gradients: list[Any]) -> list[Any]:
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in dense]))
        return [g * tf.minimum(1.0, self.global_clipnorm / norm) for g in dense]


class OwnClippingOnReplicas(OwnClipping):
    """The tf.function is what each replica runs."""

    def compiled(self, step: Any, dataset: Any) -> Any:
        function = tf.function(step)
        return lambda batch: self.strategy.run(function, args=(batch,))


# How variables are updated.


class ApplyOnly(Loop):
    """optimizer.apply, which knows the variables that it was built with."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        self.optimizer.apply(gradients)


class TwoOptimizers(Loop):
    """Two optimizers of the same configuration, each for one half of the variables."""

    def make(self) -> None:
        super().make()
        variables = self.model.trainable_variables
        self.half = len(variables) // 2
        config = self.optimizer.get_config()
        self.first, self.second = (type(self.optimizer).from_config(dict(config)) for _ in range(2))
        self.first.build(variables[: self.half])
        self.second.build(variables[self.half :])

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        self.first.apply_gradients(zip(gradients[: self.half], variables[: self.half], strict=True))
        self.second.apply_gradients(zip(gradients[self.half :], variables[self.half :], strict=True))


class SgdByHand(Loop):
    """w -= rate * gradient, on the sum of all replicas' gradients."""

    def make(self) -> None:
        super().make()
        self.rate = float(self.optimizer.learning_rate.numpy())

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        def across(strategy: Any, *gradients: Any) -> None:
            self.begin_update()
            for variable, gradient in zip(variables, gradients, strict=True):
                self.assign(variable, self.summed(strategy, gradient))

        tf.distribute.get_replica_context().merge_call(across, args=[tf.convert_to_tensor(g) for g in gradients])

    def summed(self, strategy: Any, gradient: Any) -> tf.Tensor:
        return strategy.reduce(SUM, gradient, axis=None)

    def begin_update(self) -> None:
        return  # nothing to count

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        variable.assign_sub(self.rate * gradient)


class MomentumByHand(SgdByHand):
    """With velocities, and the momentum written down once more."""

    momentum = MOMENTUM

    def make(self) -> None:
        super().make()
        self.velocity = {v.path: tf.Variable(tf.zeros_like(v)) for v in self.model.trainable_variables}

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        velocity = self.velocity[variable.path]
        velocity.assign(self.momentum * velocity - self.rate * gradient)
        variable.assign_add(velocity)


class AdamByHand(SgdByHand):
    """Keras's formula, epsilon outside of the bias correction."""

    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-7

    def make(self) -> None:
        super().make()
        variables = self.model.trainable_variables
        self.steps = tf.Variable(0.0)
        self.m = {v.path: tf.Variable(tf.zeros_like(v)) for v in variables}
        self.v = {v.path: tf.Variable(tf.zeros_like(v)) for v in variables}

    def begin_update(self) -> None:
        self.steps.assign_add(1.0)

    def correction(self) -> tf.Tensor:
        return tf.sqrt(1 - self.beta_2**self.steps) / (1 - self.beta_1**self.steps)

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        m, v = self.m[variable.path], self.v[variable.path]
        m.assign(self.beta_1 * m + (1 - self.beta_1) * gradient)
        v.assign(self.beta_2 * v + (1 - self.beta_2) * gradient * gradient)
        variable.assign_sub(self.rate * self.correction() * m / (tf.sqrt(v) + self.epsilon))


class WithoutMerging:
    """Updates one variable after the other, as anyone does who has but one device."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        self.begin_update()
        for variable, gradient in zip(variables, gradients, strict=True):
            self.assign(variable, tf.convert_to_tensor(gradient))


class SgdEager(WithoutMerging, SgdByHand, EagerNoStrategy):
    """Gradient descent in four lines."""


class SgdAssigned(WithoutMerging, SgdByHand, NoStrategy):
    """In a tf.function, and with assign."""

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        variable.assign(variable - self.rate * gradient)


class MomentumEager(WithoutMerging, MomentumByHand, EagerNoStrategy):
    """Keras's formula."""


class MomentumOfGradients(WithoutMerging, MomentumByHand, NoStrategy):
    """PyTorch's formula, the same for a constant rate: the velocity adds gradients, the rate comes last."""

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        velocity = self.velocity[variable.path]
        velocity.assign(self.momentum * velocity + gradient)
        variable.assign_sub(self.rate * velocity)


class AdamEager(WithoutMerging, AdamByHand, EagerNoStrategy):
    """Keras's formula without any function."""


class AdamWithHats(WithoutMerging, AdamByHand, NoStrategy):
    """The paper's formula with its two corrected moments, and with what Keras makes of epsilon."""

    def correction(self) -> Any:
        return 1 - self.beta_1**self.steps, 1 - self.beta_2**self.steps

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        m, v = self.m[variable.path], self.v[variable.path]
        m.assign_sub((1 - self.beta_1) * (m - gradient))
        v.assign_sub((1 - self.beta_2) * (v - gradient**2))
        of_m, of_v = self.correction()
        m_hat, v_hat = m / of_m, v / of_v
        variable.assign_sub(self.rate * m_hat / (tf.sqrt(v_hat) + self.epsilon / tf.sqrt(of_v)))


class AdamwByHand(AdamByHand):
    """With decoupled weight decay, which biases are excluded from."""

    decay = DECAY

    def decays(self, variable: Any) -> bool:
        return variable.name != "bias"

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        if self.decays(variable):
            variable.assign_sub(self.decay * self.rate * variable)
        super().assign(variable, gradient)


class AdamwEager(WithoutMerging, AdamwByHand, EagerNoStrategy):
    """The same without any function."""


class AdamwOnOneDevice(WithoutMerging, AdamwByHand, NoStrategy):
    """The same in a tf.function."""
