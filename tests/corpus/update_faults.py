"""Mistakes in which variables are updated, how, and on which examples; see ``faults.py``."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from corpus.loop import Loop

# Variables and updates.


class LastLayerOnly(Loop):
    def variables(self) -> list[Any]:
        return super().variables()[-2:]


class FirstLayerForgotten(Loop):
    def variables(self) -> list[Any]:
        return super().variables()[1:]


class BiasesForgotten(Loop):
    def variables(self) -> list[Any]:
        return [variable for variable in super().variables() if len(variable.shape) > 1]


class FrozenLayer(Loop):
    """The first layer with weights was left frozen."""

    def make(self) -> None:
        super().make()
        next(layer for layer in self.model.layers if layer.trainable_variables).trainable = False


class FrozenBatchNormalization(Loop):
    """As for fine-tuning: Keras runs frozen batch normalization in inference mode."""

    def make(self) -> None:
        super().make()
        for layer in self.model.layers:
            if isinstance(layer, tf.keras.layers.BatchNormalization):
                layer.trainable = False


class AnotherOptimizer(Loop):
    """Makes an optimizer of its own, of the experiment's class."""

    changes: ClassVar[dict[str, Any]]

    def make(self) -> None:
        super().make()
        config = self.optimizer.get_config() | self.changes
        self.optimizer = type(self.optimizer).from_config(config)
        self.optimizer.build(self.model.trainable_variables)


class DefaultLearningRate(AnotherOptimizer):
    changes: ClassVar = {"learning_rate": 0.001}


class LowMomentum(AnotherOptimizer):
    changes: ClassVar = {"momentum": 0.5}


class Nesterov(AnotherOptimizer):
    changes: ClassVar = {"nesterov": True}


class LargeEpsilon(AnotherOptimizer):
    changes: ClassVar = {"epsilon": 0.1}


class LowBeta(AnotherOptimizer):
    changes: ClassVar = {"beta_1": 0.5}


class OptimizersWeightDecay(AnotherOptimizer):
    changes: ClassVar = {"weight_decay": 0.1}


class ScheduleForgotten(AnotherOptimizer):
    changes: ClassVar = {"learning_rate": 0.02}


class DecayEverywhere(AnotherOptimizer):
    """A copy made of the configuration, which does not hold what is excluded from weight decay."""

    changes: ClassVar = {}


class OtherRate(Loop):
    """Assigned to the optimizer that everybody gets."""

    def make(self) -> None:
        super().make()
        self.optimizer.learning_rate = 0.003


class RateOff(Loop):
    """By 1%."""

    def make(self) -> None:
        super().make()
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        schedule = optimizer._learning_rate
        if isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
            optimizer._learning_rate = lambda: 0.99 * schedule(optimizer.iterations)
        else:
            optimizer.learning_rate = 0.99 * optimizer.learning_rate


class OtherOptimizer(Loop):
    def make(self) -> None:
        super().make()
        self.optimizer = tf.keras.optimizers.RMSprop(0.002)
        self.optimizer.build(self.model.trainable_variables)


class OtherHyperParameters(AnotherOptimizer):
    @property
    def changes(self) -> dict[str, Any]:  # type: ignore[override]
        return {"beta_1": 0.5} if "beta_1" in self.optimizer.get_config() else {"momentum": 0.55}


class NoSchedule(AnotherOptimizer):
    """The rate that the schedule begins with."""

    @property
    def changes(self) -> dict[str, Any]:  # type: ignore[override]
        return {"learning_rate": float(self.optimizer.learning_rate)}


class IterationsReset(Loop):
    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.optimizer.iterations.assign(0)


class RateByEpoch(Loop):
    """Counts the schedule in epochs, for which it was not made."""

    def make(self) -> None:
        super().make()
        config = self.optimizer.get_config()
        serialized = config.pop("learning_rate")
        self.schedule = tf.keras.optimizers.schedules.deserialize(serialized)
        self.optimizer = type(self.optimizer).from_config(config)
        self.optimizer.build(self.model.trainable_variables)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.optimizer.learning_rate = float(self.schedule(epoch - 1))


class OwnWarmUp(Loop):
    """Raises the rate over the first eight steps, which fit does not."""

    def make(self) -> None:
        super().make()
        self.steps, self.full_rate = 0, float(self.optimizer.learning_rate.numpy())

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super().compiled(step, dataset)
        if step != self.train_step:
            return on_batch

        def at_its_rate(batch: Any) -> Any:
            self.steps += 1
            self.optimizer.learning_rate = self.full_rate * min(1.0, self.steps / 8)
            return on_batch(batch)

        return at_its_rate


class OneEpochLate(Loop):
    """Assigns each epoch's rate when the epoch is over."""

    def begin_epoch(self, epoch: int) -> None:
        """Not yet."""

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> None:
        super().begin_epoch(epoch)
        super().end_epoch(epoch, logs)


class RateHalvedLater(Loop):
    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        if epoch > 1:
            self.optimizer.learning_rate = self.optimizer.learning_rate * 0.5


class CallbacksForgotten(Loop):
    def begin_epoch(self, epoch: int) -> None:
        """No callback is called."""


class NoCallbacks(Loop):
    """Never asks for them."""

    def make(self) -> None:
        super().make()
        self.callbacks = []


class NoEpochEnd(Loop):
    """Calls all hooks but one."""

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> None:
        """No callback is called."""


class AverageNotSwapped(NoCallbacks):
    """Validation uses the weights as they are."""


class OptimizerAnewEachEpoch(Loop):
    """Momenta are lost with the old optimizer's slots."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        for variable in self.optimizer.variables:
            if "momentum" in variable.path or "velocity" in variable.path:
                variable.assign(tf.zeros_like(variable))


class OptimizerRecreated(Loop):
    """The optimizer is made inside the epochs' loop, and with it the function of a step."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        with self.strategy.scope():
            self.optimizer = type(self.optimizer).from_config(self.new_config(epoch))
            self.optimizer.build(self.model.trainable_variables)
        self.on_train = self.compiled(self.train_step, self.distribute(self.batches(epoch)))

    def new_config(self, epoch: int) -> dict[str, Any]:
        return self.optimizer.get_config()


class MomentumLoweredLater(Loop):
    """From the second epoch on; beta_1 is Adam's."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        if epoch > 1:
            name = "beta_1" if hasattr(self.optimizer, "beta_1") else "momentum"
            setattr(self.optimizer, name, 0.4)
            self.on_train = self.compiled(self.train_step, self.distribute(self.batches(epoch)))


class EverySecondUpdate(Loop):
    """Looks at every batch, and updates with every second."""

    def fit_epochs(self) -> None:
        self.on_look = self.compiled(self.look_step, self.distribute(self.batches(self.run.epochs[0])))
        super().fit_epochs()

    def look_step(self, batch: Any) -> Any:
        x, y, weight = self.unpack(batch)
        predictions = self.forward(x)
        return self.record(self.loss_value(y, predictions, weight), x, y, predictions, weight)

    def train_epoch(self, epoch: int) -> None:
        for i, batch in enumerate(self.distribute(self.batches(epoch))):
            if i % 2:
                self.on_train(batch)
                self.run.end_step()
            else:
                self.on_look(batch)


class TwoBatchesPerUpdate(Loop):
    """Adds up the halved gradients of two batches before each update."""

    def make(self) -> None:
        super().make()
        with self.strategy.scope():
            on_read = {"trainable": False, "synchronization": tf.VariableSynchronization.ON_READ}
            self.sums = [tf.Variable(tf.zeros_like(v), **on_read) for v in self.variables()]

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(tf.convert_to_tensor(gradient) / 2)

    def fit_epochs(self) -> None:
        self.on_update = tf.function(lambda: self.strategy.run(self.apply))
        super().fit_epochs()

    def apply(self) -> None:
        super().update([tf.identity(total) for total in self.sums], self.variables())
        for total in self.sums:
            total.assign(tf.zeros_like(total))

    def train_epoch(self, epoch: int) -> None:
        for i, batch in enumerate(self.distribute(self.batches(epoch))):
            self.on_train(batch)
            if i % 2:
                self.on_update()
                self.run.end_step()


class UpdatesByHand(Loop):
    """Each replica's copy with its own gradient."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        def across(strategy: Any, *gradients: Any) -> None:
            for variable, gradient in zip(variables, gradients, strict=True):
                strategy.extended.update(variable.value, lambda v, g: v.assign_sub(0.05 * g), args=(gradient,))

        tf.distribute.get_replica_context().merge_call(across, args=tuple(gradients))


class WeightsNudged(Loop):
    """After each step, from Python."""

    def train_epoch(self, epoch: int) -> None:
        variable = self.model.trainable_variables[0]
        for batch in self.distribute(self.batches(epoch)):
            self.on_train(batch)
            self.run.end_step()
            variable.assign(variable * 1.01)


class DecayByHand(Loop):
    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        def across(strategy: Any) -> None:
            for variable in variables:
                variable.assign(0.995 * variable)

        super().update(gradients, variables)
        tf.distribute.get_replica_context().merge_call(across)


class RoundedWeights(Loop):
    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        def across(strategy: Any) -> None:
            for variable in variables:
                variable.assign(tf.round(variable * 64.0) / 64.0)

        super().update(gradients, variables)
        tf.distribute.get_replica_context().merge_call(across)


class AveragedWeights(Loop):
    """Goes half the way back to the epoch's beginning when it ends."""

    def train_epoch(self, epoch: int) -> None:
        before = [variable.numpy() for variable in self.variables()]
        super().train_epoch(epoch)
        for variable, value in zip(self.variables(), before, strict=True):
            variable.assign((variable.numpy() + value) / 2)


class WrongVelocity(Loop):
    """Adds the gradient once more to the step that holds it already."""

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        super().assign(variable, gradient)
        variable.assign_sub(0.1 * gradient)


class DampedVelocity(Loop):
    """The velocity is an average of the gradients, as Adam's is, not their sum."""

    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        super().assign(variable, (1 - self.momentum) * gradient)


class HandMomentum(Loop):
    momentum = 0.8


class HandBeta(Loop):
    """The beta_2 of another framework's tutorial."""

    beta_2 = 0.95


class HandEpsilon(Loop):
    epsilon = 1e-2


class NoBiasCorrection(Loop):
    def correction(self) -> Any:
        return tf.nest.map_structure(tf.ones_like, super().correction())


class EpsilonInsideTheRoot(Loop):
    def assign(self, variable: Any, gradient: tf.Tensor) -> None:
        m, v = self.m[variable.path], self.v[variable.path]
        m.assign(self.beta_1 * m + (1 - self.beta_1) * gradient)
        v.assign(self.beta_2 * v + (1 - self.beta_2) * gradient * gradient)
        variable.assign_sub(0.01 * self.correction() * m / tf.sqrt(v + 1e-4))


class BiasesDecayToo(Loop):
    def decays(self, variable: Any) -> bool:
        return True


class DecayForgotten(Loop):
    decay = 0.0


class HandRateTenfold(Loop):
    def make(self) -> None:
        super().make()
        self.rate *= 10.0


class StepsCountedTwice(Loop):
    """Two calls of apply_gradients per step: Adam takes itself for twice as far."""

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        half = len(variables) // 2
        super().update(gradients[:half], variables[:half])
        super().update(gradients[half:], variables[half:])


class WeightsAnew(Loop):
    """Initializes the model once more."""

    def make(self) -> None:
        super().make()
        generator = tf.random.Generator.from_seed(99)
        for variable in self.model.trainable_variables:
            if len(variable.shape) > 1:
                variable.assign(generator.normal(variable.shape, stddev=0.2))


class ModelCloned(Loop):
    """Trains a clone, which begins with weights of its own."""

    def make(self) -> None:
        super().make()
        self.model = tf.keras.models.clone_model(self.model)
        self.optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
        self.optimizer.build(self.model.trainable_variables)


# The data.


class NeverReshuffled(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(1)


class TailDropped(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        dataset = super().batches(epoch)
        return dataset.take(dataset.cardinality() - 1)


class StepSkipped(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(epoch).skip(1)


class FirstBatchesSkipped(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(epoch).skip(2)


class EveryThirdSkipped(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        dataset = super().batches(epoch)
        count = dataset.cardinality()
        kept = dataset.enumerate().filter(lambda i, batch: i % 3 != 1).map(lambda i, batch: batch)
        return kept.apply(tf.data.experimental.assert_cardinality(count - (count + 1) // 3))


class FirstBatchAgain(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        dataset = super().batches(epoch)
        return dataset.concatenate(dataset.take(1))


class EachTwice(Loop):
    """One batch after the other."""

    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(epoch).flat_map(lambda *batch: tf.data.Dataset.from_tensors(batch).repeat(2))


class EpochTwice(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(epoch).repeat(2)


class SmallerBatches(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(epoch).unbatch().batch(self.run.global_batch_size // 2)


class LargerBatches(Loop):
    def batches(self, epoch: int) -> tf.data.Dataset:
        return super().batches(epoch).unbatch().batch(self.run.global_batch_size * 2)


class LabelsApart(Loop):
    """Inputs and labels are shuffled with a seed each."""

    def batches(self, epoch: int) -> tf.data.Dataset:
        examples = super().batches(epoch).unbatch()
        x = examples.map(lambda x, y, *_: x).shuffle(512, seed=epoch)
        y = examples.map(lambda x, y, *_: y).shuffle(512, seed=epoch + 1)
        return tf.data.Dataset.zip((x, y)).batch(self.run.global_batch_size)


class OwnShuffle(Loop):
    """The same examples, in another order."""

    def batches(self, epoch: int) -> tf.data.Dataset:
        examples = super().batches(epoch).unbatch().shuffle(512, seed=epoch)
        return examples.batch(self.run.global_batch_size)
