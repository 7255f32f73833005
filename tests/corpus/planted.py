"""Correct loops in several styles, and loops with one mistake each, written as users would write them.

Nothing here knows how the short check recognises a cause: the mistakes are code, not formulas.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import compare

sys.path.append(
    str(Path(__file__).resolve().parents[1])
)  # for the command: --trainers fit tests/corpus/planted.py:Summed

import tasks


class Loop:
    """A correct loop in a style of its own: losses returned and summed in Python, metrics per purpose."""

    name = "planted"

    def train(self, run):
        self.run, self.strategy, self.replicas = run, run.strategy, run.strategy.num_replicas_in_sync
        self._step = self._validation = None  # a loop may be trained again, on another model
        self.begin(run)
        with self.strategy.scope():
            self.train_metrics = self.metrics()
            self.validation_metrics = [type(m).from_config(m.get_config()) for m in self.train_metrics]
        self.begun()
        for epoch in run.epochs:
            logs = self.train_epoch(epoch)
            logs |= {f"val_{key}": value for key, value in self.validate(epoch).items()}
            run.end_epoch(epoch, logs)

    def begin(self, run):
        self.model, self.optimizer, self.loss, self.given_metrics = run.build()

    def begun(self):
        """Just before the first step."""

    def metrics(self):
        return self.given_metrics

    def train_data(self, epoch):
        return self.run.train_dataset(epoch)

    def validation_data(self):
        return self.run.validation_dataset()

    def reset(self, metrics):
        for metric in metrics:
            metric.reset_state()

    @property
    def reported_train_metrics(self):
        return self.train_metrics

    def train_epoch(self, epoch):
        self.reset(self.train_metrics)
        losses, counts = [], []
        data = self.strategy.experimental_distribute_dataset(self.train_data(epoch))
        self.compile(data)
        for batch in data:
            loss, count = self._step(batch)
            losses.append(loss)
            counts.append(count)
            self.run.end_step()
            self.stepped()
        return {"loss": self.epoch_loss(losses, counts)} | self.results(self.train_metrics)

    def stepped(self):
        """After each step."""

    def results(self, metrics):
        return {metric.name: float(metric.result()) for metric in metrics}

    def epoch_loss(self, losses, counts):
        """Every replica's mean, weighed by its examples."""
        return float(sum(losses) / sum(counts))

    def compile(self, data):
        """The step as a graph: traced once, for batches of any size."""
        if self._step is None:
            self._step = tf.function(self.whole_step, input_signature=[data.element_spec])

    def whole_step(self, batch):
        return self.reduced(self.strategy.run(self.replica_step, (batch,)))

    def reduced(self, pair):
        loss, count = pair
        add = tf.distribute.ReduceOp.SUM
        return self.strategy.reduce(add, loss, None), self.strategy.reduce(add, count, None)

    def replica_step(self, batch):
        x, y, w = tf.keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predictions = self.call(x)
            share = self.total(self.data_loss(self.per_example(y, predictions, w)), self.penalty())
        self.update(tape, share)
        for metric in self.train_metrics:
            metric.update_state(y, predictions)
        count = tf.cast(tf.shape(y)[0], tf.float32)
        return share * self.replicas * count, count

    def call(self, x):
        return self.model(x, training=True)

    def per_example(self, y, predictions, w):
        losses = self.loss.call(y, predictions)
        return losses if w is None else losses * w

    def data_loss(self, per_example):
        count = tf.cast(tf.maximum(tf.size(per_example), 1), tf.float32)
        return tf.reduce_sum(per_example) / count / self.replicas

    def penalty(self):
        return tf.add_n(self.model.losses) / self.replicas if self.model.losses else 0.0

    def total(self, data, penalty):
        return data + penalty

    def variables(self):
        return self.model.trainable_variables

    def update(self, tape, share):
        variables = self.variables()
        self.apply(tape.gradient(share, variables), variables)

    def apply(self, gradients, variables):
        if hasattr(self.optimizer, "apply"):
            self.optimizer.apply(gradients, variables)
        else:  # Keras 2
            self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def validate(self, epoch):
        self.reset(self.validation_metrics)
        losses, counts = [], []
        data = self.strategy.experimental_distribute_dataset(self.validation_data())
        if self._validation is None:
            self._validation = tf.function(self.whole_validation, input_signature=[data.element_spec])
        for batch in data:
            loss, count = self._validation(batch)
            losses.append(loss)
            counts.append(count)
        return {"loss": self.epoch_loss(losses, counts)} | self.results(self.validation_metrics)

    validation_flag = False

    def whole_validation(self, batch):
        return self.reduced(self.strategy.run(self.replica_validation, (batch,)))

    def replica_validation(self, batch):
        x, y, w = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predictions = self.model(x, training=self.validation_flag)
        loss = self.validation_loss(y, predictions, w)
        for metric in self.validation_metrics:
            metric.update_state(y, predictions)
        count = tf.cast(tf.shape(y)[0], tf.float32)
        return loss * count, count

    def validation_loss(self, y, predictions, w):
        return tf.reduce_mean(self.per_example(y, predictions, w)) + self.penalty() * self.replicas


# Correct loops in other styles.


class IteratorInside(Loop):
    """The iterator is consumed inside the tf.function, a step at a time."""

    def train_epoch(self, epoch):
        self.reset(self.train_metrics)
        data = self.strategy.experimental_distribute_dataset(self.train_data(epoch))
        iterator = iter(data)

        @tf.function
        def step(iterator):
            return self.reduced(self.strategy.run(self.replica_step, (next(iterator),)))

        pairs = []
        for _ in range(int(self.train_data(epoch).cardinality())):
            pairs.append(step(iterator))
            self.run.end_step()
        losses, counts = zip(*pairs, strict=True)
        return {"loss": self.epoch_loss(losses, counts)} | self.results(self.train_metrics)


class WholeEpoch(Loop):
    """A whole epoch in one tf.function, and so no end_step."""

    def train_epoch(self, epoch):
        self.reset(self.train_metrics)

        @tf.function
        def train(data):
            total, examples = tf.zeros([]), tf.zeros([])
            for batch in data:
                loss, count = self.reduced(self.strategy.run(self.replica_step, (batch,)))
                total += loss
                examples += count
            return total / examples

        loss = train(self.strategy.experimental_distribute_dataset(self.train_data(epoch)))
        return {"loss": float(loss)} | self.results(self.train_metrics)


class Eager(Loop):
    """No tf.function at all in training."""

    def compile(self, data):
        self._step = self.whole_step


class RunEagerly(Loop):
    """tf.function everywhere, and all of it switched off."""

    def train(self, run):
        tf.config.run_functions_eagerly(True)
        try:
            super().train(run)
        finally:
            tf.config.run_functions_eagerly(False)


class StaticShapes(Loop):
    """Traced again for every size of batch: its kernels may round differently from fit's."""

    def compile(self, data):
        if self._step is None:
            self._step = tf.function(self.whole_step)


class ApplyGradients(Loop):
    def apply(self, gradients, variables):
        self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


class SumOverCount(Loop):
    """The loss as a sum over n x replicas."""

    def data_loss(self, per_example):
        count = tf.cast(tf.maximum(tf.size(per_example), 1), tf.float32)
        return tf.reduce_sum(per_example) / (count * self.replicas)


class TimesShare(Loop):
    def data_loss(self, per_example):
        return super().data_loss(per_example) * self.replicas * (1.0 / self.replicas)


class OtherOrder(Loop):
    """The variables in the opposite order."""

    def variables(self):
        return list(reversed(self.model.trainable_variables))


class ReducedByHand(Loop):
    """Gradients are summed by hand, and applied as shares of the sum."""

    def apply(self, gradients, variables):
        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        super().apply([g / self.replicas for g in summed], variables)


class ScaledAndBack(Loop):
    """Loss scaling, undone before the update."""

    def update(self, tape, share):
        variables = self.variables()
        gradients = tape.gradient(share, variables)
        factor = tf.constant(3.0)
        self.apply([g * factor / factor for g in gradients], variables)


STYLES = [
    compare.CustomLoop,
    Loop,
    IteratorInside,
    WholeEpoch,
    Eager,
    RunEagerly,
    StaticShapes,
    ApplyGradients,
    SumOverCount,
    TimesShare,
    OtherOrder,
    ReducedByHand,
    ScaledAndBack,
]
# Keras 3 clips what each replica hands in: shares of the sum are clipped to something else.
NOT_IF_CLIPPED = [ReducedByHand]


# Mistakes.


@dataclasses.dataclass(frozen=True)
class Bug:
    """A loop with a mistake: what it ought to be called, and where it can show.

    Attributes:
        trainer: the loop.
        training, reporting: the causes that ought to be named.
        least: the fewest replicas with which it shows.
        needs: what the experiment has to have: "regularize", "batch_norm", "dropout", "weights",
            "regression", "schedule", "clipped", "plain" (descent), "adam"; "not-regularize" and so on for
            what it must not have.
        also: causes that may be named too.
    """

    trainer: type[Any]
    training: tuple[str, ...] = ()
    reporting: tuple[str, ...] = ()
    least: int = 1
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.trainer.__name__


BUGS: list[Bug] = []


def plant(*training: str, reporting: tuple[str, ...] = (), **options: Any) -> Callable[[type[Any]], type[Any]]:
    def register(trainer: type[Any]) -> type[Any]:
        BUGS.append(Bug(trainer, training, reporting, **options))
        return trainer

    return register


MADE_UP_FOR: list[Bug] = []
"""Two departures that cancel each other exactly: the weights are right, and so is the loop."""


def makes_up(**options: Any) -> Callable[[type[Any]], type[Any]]:
    def register(trainer: type[Any]) -> type[Any]:
        MADE_UP_FOR.append(Bug(trainer, **options))
        return trainer

    return register


@plant("loss-not-divided-by-replicas", least=2)
class NotDivided(Loop):
    def data_loss(self, per_example):
        return tf.reduce_mean(per_example)


@plant("loss-not-divided-by-replicas", least=2)
class NothingDivided(compare.CustomLoop):
    def compute_loss(self, y, predictions, sample_weight):
        return super().compute_loss(y, predictions, sample_weight) * self.strategy.num_replicas_in_sync


@plant("loss-divided-twice", least=2)
class DividedTwice(Loop):
    def data_loss(self, per_example):
        return tf.nn.compute_average_loss(per_example) / self.replicas


@plant("loss-divided-twice", least=2)
class KerasDividesToo(Loop):
    """Keras 3's Loss.__call__ divides by the replicas inside strategy.run."""

    def per_example(self, y, predictions, w):
        return self.loss(y, predictions, sample_weight=w)[tf.newaxis]


@plant("loss-summed")
class Summed(Loop):
    def data_loss(self, per_example):
        return tf.reduce_sum(per_example)


@plant("loss-summed")
class SummedKeras(Loop):
    def per_example(self, y, predictions, w):
        return tf.reduce_sum(super().per_example(y, predictions, w))

    def data_loss(self, per_example):
        return per_example / self.replicas


@plant("loss-constant-denominator")
class ConstantDenominator(Loop):
    def data_loss(self, per_example):
        return tf.nn.compute_average_loss(per_example, global_batch_size=self.run.global_batch_size)


@plant("loss-constant-denominator")
class HardCodedBatchSize(Loop):
    def data_loss(self, per_example):
        return tf.reduce_sum(per_example) / 64.0


@plant("loss-scaled")
class LossWeight(Loop):
    def total(self, data, penalty):
        return 3.0 * (data + penalty)


# The norm that the optimizer limits is the same again, whatever the factor.
@plant("loss-scaled", needs=("not-clipped",))
class GradientsScaled(Loop):
    def apply(self, gradients, variables):
        super().apply([0.3 * g for g in gradients], variables)


@plant("loss-scaled")
class OnlyDataScaled(Loop):
    def data_loss(self, per_example):
        return 0.7 * super().data_loss(per_example)


@plant("loss-scale-missing", needs=("policy",))
class NoLossScale(Loop):
    def per_example(self, y, predictions, w):
        return self.loss.call(y, tf.cast(predictions, tf.float32))


@plant("regularization-missing", needs=("regularize",), also=("validation-loss-without-regularization",))
class NoPenalty(Loop):
    def replica_step(self, batch):
        self.in_training = True
        result = super().replica_step(batch)
        self.in_training = False
        return result

    in_training = False

    def penalty(self):
        return 0.0 if self.in_training else super().penalty()


@plant("regularization-not-divided-by-replicas", needs=("regularize",), least=2)
class PenaltyNotDivided(Loop):
    def total(self, data, penalty):
        return data + tf.add_n(self.model.losses)


@plant("training-flag-missing", needs=("batch_norm",))
class NoFlag(Loop):
    def call(self, x):
        return self.model(x)


@plant("training-flag-missing", needs=("dropout",))
class NoFlagDropout(IteratorInside):
    def call(self, x):
        return self.model(x, training=False)


@plant("logits-mismatch", needs=("not-regression", "not-weights"))
class LogitsAsProbabilities(Loop):
    def per_example(self, y, predictions, w):
        return tf.keras.losses.SparseCategoricalCrossentropy().call(y, predictions)


@plant("not-finite", needs=("not-regression", "not-weights"))
class LogOfLogits(Loop):
    def per_example(self, y, predictions, w):
        return -tf.reduce_sum(tf.one_hot(y, predictions.shape[-1]) * tf.math.log(predictions), axis=-1)


@plant("label-shape-broadcast", needs=("regression",))
class Broadcast(Loop):
    def per_example(self, y, predictions, w):
        return tf.square(y - predictions)


@plant("sample-weights-dropped", needs=("weights",), also=("validation-sample-weights-dropped",))
class WeightsForgotten(Loop):
    def per_example(self, y, predictions, w):
        return self.loss.call(y, predictions)


@plant("clipping-differs")
class ClippedGlobally(Loop):
    def apply(self, gradients, variables):
        super().apply(tf.clip_by_global_norm(gradients, 0.2 / self.replicas)[0], variables)


@plant("clipping-differs")
class ClippedValues(Loop):
    def apply(self, gradients, variables):
        super().apply([tf.clip_by_value(g, -0.01, 0.01) for g in gradients], variables)


@plant("clipping-differs")
class ClippedEach(Loop):
    def apply(self, gradients, variables):
        super().apply([tf.clip_by_norm(g, 0.05) for g in gradients], variables)


@plant("clipping-differs", needs=("clipped",))
class NotClipped(Loop):
    def begin(self, run):
        super().begin(run)
        self.optimizer.global_clipnorm = None


@plant("clipping-differs", needs=("clipped",), least=2)
class ClippedAfterwards(ReducedByHand):
    """Keras 3 clips what each replica hands in: shares of the sum are clipped to something else."""


@plant("clipping-differs", needs=("not-clipped",))
class OptimizerClips(Loop):
    def begin(self, run):
        super().begin(run)
        self.optimizer.clipvalue = 0.01


@plant("gradients-not-reduced", least=2)
class OnlyFirstReplica(Loop):
    def apply(self, gradients, variables):
        chosen = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        super().apply([g if chosen else tf.zeros_like(g) for g in gradients], variables)


@plant("gradients-not-reduced", least=2, needs=("plain",))
class UpdatesByHand(Loop):
    def apply(self, gradients, variables):
        def update(strategy, *gradients):
            for variable, gradient in zip(variables, gradients, strict=True):
                strategy.extended.update(variable.value, lambda v, g: v.assign_sub(0.05 * g), args=(gradient,))

        tf.distribute.get_replica_context().merge_call(update, args=tuple(gradients))


@plant("gradients-not-reduced", least=2, needs=("not-clipped",))
class EachItsOwn(Loop):
    def begin(self, run):
        super().begin(run)
        self.optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


@plant("variables-not-trained")
class HeadOnly(Loop):
    def variables(self):
        return self.model.trainable_variables[-2:]


@plant("variables-not-trained")
class StoppedGradient(Loop):
    def update(self, tape, share):
        variables = self.variables()
        gradients = tape.gradient(share, variables)
        self.apply([tf.zeros_like(gradients[0]), *gradients[1:]], variables)


@plant("optimizer-differs", needs=("not-schedule",))
class OtherRate(Loop):
    def begin(self, run):
        super().begin(run)
        self.optimizer.learning_rate = 0.003


@plant("optimizer-differs", needs=("not-schedule",))
class RateChangesLater(Loop):
    def train_epoch(self, epoch):
        self.optimizer.learning_rate.assign(float(self.optimizer.learning_rate.numpy()) * 0.5 ** (epoch - 1))
        return super().train_epoch(epoch)


@plant("optimizer-differs")
class OtherOptimizer(Loop):
    def begin(self, run):
        super().begin(run)
        with run.strategy.scope():
            self.optimizer = tf.keras.optimizers.RMSprop(0.002)
            self.optimizer.build(self.model.trainable_variables)


@plant("optimizer-differs")
class OtherHyperParameters(Loop):
    def begin(self, run):
        super().begin(run)
        config = self.optimizer.get_config()
        change = {"beta_1": 0.5} if "beta_1" in config else {"momentum": 0.55}
        with run.strategy.scope():
            self.optimizer = type(self.optimizer).from_config(config | change)
            self.optimizer.build(self.model.trainable_variables)


@plant("optimizer-differs", needs=("adam",))
class IterationsReset(Loop):
    def train_epoch(self, epoch):
        self.optimizer.iterations.assign(0)
        return super().train_epoch(epoch)


@plant("learning-rate-schedule-missing", needs=("schedule",))
class NoSchedule(Loop):
    def begin(self, run):
        super().begin(run)
        rate = float(self.optimizer.learning_rate)
        with run.strategy.scope():
            config = self.optimizer.get_config() | {"learning_rate": rate}
            self.optimizer = type(self.optimizer).from_config(config)
            self.optimizer.build(self.model.trainable_variables)


@plant("callbacks-missing", needs=("build_callbacks",))
class NoCallbacks(Loop):
    """The loop does not know that fit has any."""


@plant("label-smoothing-missing", needs=("smoothing",))
class NotSmoothed(Loop):
    def per_example(self, y, predictions, w):
        return tf.nn.softmax_cross_entropy_with_logits(y, predictions)


@plant("mask-missing", needs=("mask",))
class PaddingCounts(Loop):
    def per_example(self, y, predictions, w):
        return tf.reduce_mean(self.loss.call(y, predictions), axis=-1)


@plant("labels-shuffled-apart")
class LabelsShuffled(Loop):
    def train_data(self, epoch):
        batches = list(self.run.train_dataset(epoch).as_numpy_iterator())
        x, y, *w = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        np.random.default_rng(epoch).shuffle(y)
        return tf.data.Dataset.from_tensor_slices((x, y, *w)).batch(self.run.global_batch_size)


@plant("not-reshuffled")
class SameOrder(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(1)


@plant("examples-dropped")
class TailCut(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(epoch).unbatch().batch(self.run.global_batch_size, drop_remainder=True)


@plant("examples-dropped")
class StepSkipped(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(epoch).skip(1)


@plant("examples-repeated")
class EachTwice(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(epoch).flat_map(lambda *b: tf.data.Dataset.from_tensors(b).repeat(2))


@plant("examples-repeated")
class WholeTwice(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(epoch).repeat(2)


@plant("batch-size-differs")
class SmallerBatches(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(epoch).unbatch().batch(self.run.global_batch_size * 2 // 3)


@plant("batch-size-differs")
class DoubleBatches(Loop):
    def train_data(self, epoch):
        return self.run.train_dataset(epoch).unbatch().batch(2 * self.run.global_batch_size)


@plant("weights-not-shared")
class NewWeights(Loop):
    def begin(self, run):
        super().begin(run)
        generator = np.random.default_rng(1)
        for variable in self.model.trainable_variables:
            variable.assign(generator.normal(0, 0.1, variable.shape))


@plant("weights-not-shared", also=("examples-dropped", "optimizer-differs"))
class OwnModel(Loop):
    def begin(self, run):
        given, self.optimizer, self.loss, self.given_metrics = run.build()
        with run.strategy.scope():
            self.model = type(given).from_config(given.get_config())
            shape = next(iter(run.train_dataset(1).take(1)))[0].shape
            self.model.build((None, *shape[1:]))
            self.optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
            self.optimizer.build(self.model.trainable_variables)


@plant(
    "validation-changes-state",
    needs=("batch_norm",),
    also=("validation-in-training-mode",),
    reporting=("validation-in-training-mode",),
)
class ValidationTrains(Loop):
    validation_flag = True


@plant(
    "validation-changes-state",
    needs=("dropout", "not-batch_norm"),
    reporting=("validation-in-training-mode",),
)
class ValidationDrops(Loop):
    validation_flag = True


@plant("uneven-replica-batches", least=2)
class TrueCount(Loop):
    def data_loss(self, per_example):
        context = tf.distribute.get_replica_context()
        count = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.size(per_example), tf.float32))
        return tf.reduce_sum(per_example) / count


@plant(reporting=("empty-replica-batch",), least=2, needs=("not-batch_norm",))
class MeanOfNothing(Loop):
    """The loss of an empty part is 0/0."""

    def data_loss(self, per_example):
        return tf.reduce_mean(per_example) / self.replicas


@plant("empty-replica-batch", least=2, needs=("not-batch_norm",))
class SharedByTheBusy(Loop):
    """Divides by the number of replicas that have examples."""

    def data_loss(self, per_example):
        context = tf.distribute.get_replica_context()
        busy = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.size(per_example) > 0, tf.float32))
        return super().data_loss(per_example) * self.replicas / busy


@plant(reporting=("metrics-not-reset",))
class NeverReset(Loop):
    def reset(self, metrics):
        pass


@plant(reporting=("metrics-not-reset",))
class OneMetricForBoth(compare.CustomLoop):
    def results(self):
        return {metric.name: float(metric.result()) for metric in [self.loss_metric, *self.metrics]}


@plant(reporting=("loss-averaged-over-batches",))
class MeanOverBatches(Loop):
    def epoch_loss(self, losses, counts):
        return float(np.mean([float(a) / float(b) for a, b in zip(losses, counts, strict=True)]))


@plant(reporting=("last-batch-only",))
class LastBatch(Loop):
    def epoch_loss(self, losses, counts):
        return float(losses[-1] / counts[-1])


@plant(reporting=("loss-not-reduced",), least=2)
class LossOfShares(Loop):
    def epoch_loss(self, losses, counts):
        return super().epoch_loss(losses, counts) / self.replicas


@plant(reporting=("loss-not-reduced",), least=2)
class SumOfMeans(compare.CustomLoop):
    def results(self):
        results = super().results()
        return results | {"loss": results["loss"] * self.strategy.num_replicas_in_sync}


@plant(reporting=("loss-without-regularization",), needs=("regularize",))
class ReportsWithoutPenalty(Loop):
    def total(self, data, penalty):
        self.whole = data + penalty
        return data

    def update(self, tape, share):
        super().update(tape, self.whole)


@plant(reporting=("validation-loss-without-regularization",), needs=("regularize",))
class NoPenaltyInValidation(Loop):
    def validation_loss(self, y, predictions, w):
        return tf.reduce_mean(self.per_example(y, predictions, w))


@plant(reporting=("metric-differs",), needs=("classes",))
class OtherAccuracy(Loop):
    """Called accuracy like the experiment's, it counts each of a label's classes."""

    def metrics(self):
        return [OfOneHot(name="accuracy")]


class OfOneHot(tf.keras.metrics.BinaryAccuracy):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(tf.one_hot(y_true, y_pred.shape[-1]), y_pred, sample_weight)


@plant(reporting=("validation-examples-dropped",))
class ValidationTailCut(Loop):
    def validation_data(self):
        return self.run.validation_dataset().unbatch().batch(self.run.global_batch_size, drop_remainder=True)


@plant(reporting=("validation-examples-dropped",))
class ThreeValidationSteps(Loop):
    def validation_data(self):
        return self.run.validation_dataset().take(3)


@plant(reporting=("metrics-from-one-replica",), least=2)
class FirstReplicaReports(Loop):
    def reduced(self, pair):
        return tuple(self.strategy.experimental_local_results(each)[0] for each in pair)


@plant(reporting=("validation-sample-weights-dropped",), needs=("weights",))
class ValidationWeightsForgotten(Loop):
    def validation_loss(self, y, predictions, w):
        return super().validation_loss(y, predictions, None)


# Two mistakes that hide each other: the optimizer makes the same weights of wrong gradients.


@makes_up(needs=("adam",))
class ScaledAndEpsilon(Loop):
    """Adam takes a loss a thousand times too large, and its epsilon as much, for nothing."""

    def begin(self, run):
        super().begin(run)
        self.optimizer.epsilon *= 1024

    def total(self, data, penalty):
        return 1024 * (data + penalty)


@makes_up(needs=("adam",), least=2)
class DividedTwiceAndEpsilon(DividedTwice):
    """So does it take one too small, and the penalty with it."""

    def begin(self, run):
        super().begin(run)
        self.optimizer.epsilon /= self.replicas

    def total(self, data, penalty):
        return data + penalty / self.replicas


@plant("loss-not-divided-by-replicas", needs=("regularize", "adam"), least=2)
class NeitherDivided(NotDivided):
    """Of the loss and its penalty only one not divided would show; Adam hides it if neither is."""

    def total(self, data, penalty):
        return data + tf.add_n(self.model.losses)


@makes_up(needs=("not-adam", "not-schedule", "not-clipped"))
class ScaledAndSlower(Loop):
    """Plain descent and momentum are linear: a loss eight times too large, and an eighth of the rate."""

    def begin(self, run):
        super().begin(run)
        self.optimizer.learning_rate = self.optimizer.learning_rate / 8

    def total(self, data, penalty):
        return 8 * (data + penalty)


# Mistakes that no entry of the catalogue describes.

UNKNOWN: list[type[Any]] = []


def unknown(trainer: type[Any]) -> type[Any]:
    UNKNOWN.append(trainer)
    return trainer


@unknown
class GradientNoise(Loop):
    def apply(self, gradients, variables):
        noise = [g + 0.01 * tf.random.stateless_normal(tf.shape(g), [1, 2]) for g in gradients]
        super().apply(noise, variables)


@unknown
class InputsScaled(Loop):
    def call(self, x):
        return self.model(0.9 * x, training=True)


@unknown
class LabelSmoothing(Loop):
    def per_example(self, y, predictions, w):
        smooth = tf.one_hot(tf.cast(y, tf.int32), 3) * 0.9 + 0.1 / 3
        return tf.keras.losses.CategoricalCrossentropy(from_logits=True).call(smooth, predictions)


@unknown
class OneVariableScaled(Loop):
    def apply(self, gradients, variables):
        super().apply([2.0 * gradients[0], *gradients[1:]], variables)


@unknown
class GradientsSwapped(Loop):
    def apply(self, gradients, variables):
        super().apply([-g if i == 1 else g for i, g in enumerate(gradients)], variables)


@unknown
class WeightsNudged(Loop):
    def stepped(self):
        variable = self.model.trainable_variables[0]
        variable.assign(variable * 1.01)


@unknown
class Centralized(Loop):
    def apply(self, gradients, variables):
        centred = [g - tf.reduce_mean(g, 0, keepdims=True) if len(g.shape) > 1 else g for g in gradients]
        super().apply(centred, variables)


@unknown
class FocalLoss(Loop):
    def per_example(self, y, predictions, w):
        losses = super().per_example(y, predictions, w)
        return losses * (1 - tf.exp(-losses)) ** 2


@unknown
class HardestExample(Loop):
    def data_loss(self, per_example):
        return tf.reduce_max(per_example) / self.replicas


@unknown
class ExamplesReversedInBatch(Loop):
    def per_example(self, y, predictions, w):
        return super().per_example(tf.reverse(y, [0]), predictions, w)


@unknown
class ReportsTheLastBatch(Loop):
    def epoch_loss(self, losses, counts):
        return float(losses[-1] / counts[-1])


@unknown
class ReportsRounded(Loop):
    def epoch_loss(self, losses, counts):
        return round(super().epoch_loss(losses, counts), 2)


# Experiments.


def regression(**options: Any) -> compare.Experiment:
    """Labels [n] and predictions [n, 1]."""

    def load() -> Any:
        (x, y), (x_val, y_val) = tasks.blobs(200, 200)
        return (x, x[:, 0] + y.astype(np.float32)), (x_val, x_val[:, 0] + y_val.astype(np.float32))

    def build_model() -> Any:
        return tf.keras.Sequential([tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1)])

    changes = {
        "load_data": load,
        "build_model": build_model,
        "build_loss": tf.keras.losses.MeanSquaredError,
        "build_metrics": lambda: [tf.keras.metrics.MeanAbsoluteError(name="mae")],
    }
    return tasks.experiment(**(options | changes))


def smoothed(**options: Any) -> compare.Experiment:
    """Labels [n, 3], one-hot, which the loss smooths."""

    def load() -> Any:
        return tuple((x, np.eye(3, dtype=np.float32)[y]) for x, y in tasks.blobs(200, 200))

    changes = {
        "load_data": load,
        "build_loss": lambda: tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        "build_metrics": lambda: [tf.keras.metrics.CategoricalAccuracy(name="accuracy")],
    }
    return tasks.experiment(**(options | changes))


def masked(**options: Any) -> compare.Experiment:
    """A label of every word [n, 6]; sentences are padded with zeros, which the loss leaves out."""

    def load() -> Any:
        generator = np.random.default_rng(3)
        words = generator.integers(1, 20, (400, 6)).astype(np.int32)
        words[np.arange(6) >= generator.integers(2, 7, 400)[:, None]] = 0
        labels = (words % 3).astype(np.int32)
        return (words[:200], labels[:200]), (words[200:], labels[200:])

    def build_model() -> Any:
        layers = tf.keras.layers
        lstm = layers.LSTM(8, return_sequences=True)
        return tf.keras.Sequential([layers.Embedding(20, 8, mask_zero=True), lstm, layers.Dense(3)])

    return tasks.experiment(**(options | {"load_data": load, "build_model": build_model}))


def _slower() -> Any:
    return tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 * 0.5**epoch)


def _schedule() -> Any:
    return tf.keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.05),
    "momentum": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "adamw-schedule": lambda: tf.keras.optimizers.AdamW(_schedule(), weight_decay=0.01),
    "clipped": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.1),
}

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "mlp-l2-bn": {"regularize": True, "batch_norm": True},
    "mlp-dropout": {"dropout": True},
    "mlp-weights": {"weights": True, "regularize": True},
    "regression": {"regression": True},
}

SPECIAL: dict[str, dict[str, Any]] = {
    "mlp-float16": {"policy": "mixed_float16"},
    "mlp-callback": {"build_callbacks": lambda: [_slower()]},
    "mlp-smoothed": {"smoothing": True},
    "words-masked": {"mask": True},
}
"""Models that most loops are not written for."""


BATCH_SIZE = 50
"""Per replica: with 2 or 4 of them the last batch has one example, and leaves the others empty."""


def experiment(model: str, optimizer: str) -> compare.Experiment:
    """One of the experiments of the table."""
    options = dict((MODELS | SPECIAL)[model])
    special = {"regression": regression, "smoothing": smoothed, "mask": masked}
    make = next((make for name, make in special.items() if options.pop(name, False)), tasks.experiment)
    return make(train=201, validation=430, optimizer=OPTIMIZERS[optimizer], **options)


def has(model: str, optimizer: str) -> set[str]:
    """What an experiment has, in the words of ``Bug.needs``."""
    found = set((MODELS | SPECIAL)[model])
    found |= {"schedule"} if "schedule" in optimizer else set()
    found |= {"clipped"} if optimizer == "clipped" else set()
    found |= {"plain"} if optimizer == "sgd" else set()
    found |= {"adam"} if "adam" in optimizer else set()
    found |= {"classes"} if model.startswith("mlp") and model != "mlp-smoothed" else set()  # labels are their numbers
    return found


def shows(bug: Bug, model: str, optimizer: str, replicas: int) -> bool:
    """Whether a mistake changes anything there."""
    there = has(model, optimizer)
    wanted = all((need[4:] not in there) if need.startswith("not-") else need in there for need in bug.needs)
    return replicas >= bug.least and wanted
