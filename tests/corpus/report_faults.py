"""Mistakes in validation and in the numbers that are reported; see ``faults.py``."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from corpus.loop import SUM, Loop, examples_in

# Validation.


class ValidationInTrainingMode(Loop):
    def predict(self, x: Any) -> Any:
        return self.model(x, training=True)


class ValidationTrains(Loop):
    """The step that trains is called on the validation data too."""

    def test_step(self, batch: Any) -> Any:
        return self.train_step(batch)


class ValidationTailDropped(Loop):
    def validation_batches(self) -> tf.data.Dataset:
        dataset = super().validation_batches()
        return dataset.take(dataset.cardinality() - 1)


class ThreeValidationSteps(Loop):
    def validation_batches(self) -> tf.data.Dataset:
        return super().validation_batches().take(3)


class OneValidationBatch(Loop):
    def validation_batches(self) -> tf.data.Dataset:
        return super().validation_batches().take(1)


class ValidationWithoutPenalty(Loop):
    def validation_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return self.data_loss(y, predictions, weight)


class ValidationWithoutLastPenalty(Loop):
    def validation_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return super().validation_loss(y, predictions, weight) - tf.reduce_sum(self.model.losses[-1])


class RandomValidation(Loop):
    """Validates with one random half each time."""

    def validation_batches(self) -> tf.data.Dataset:
        dataset = super().validation_batches()
        return dataset.shuffle(dataset.cardinality()).take((dataset.cardinality() + 1) // 2)


class StaleValidation(Loop):
    """Validates a copy of the weights that is an epoch old."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.copy = [variable.numpy() for variable in self.model.trainable_variables]

    def validate(self) -> None:
        current = [variable.numpy() for variable in self.model.trainable_variables]
        self.set_weights(self.copy)
        super().validate()
        self.set_weights(current)

    def set_weights(self, values: list[Any]) -> None:
        for variable, value in zip(self.model.trainable_variables, values, strict=True):
            variable.assign(value)


class ValidationWithoutWeights(Loop):
    def unpack_validation(self, batch: Any) -> Any:
        x, y, *_ = batch
        return x, y, None


# Reports.


class NeverReset(Loop):
    def reset_metrics(self) -> None:
        """Metrics go on counting."""


class MetricsCarriedOver(Loop):
    """Reset at each epoch's beginning, not between training and validation."""

    def reset_metrics(self) -> None:
        """Not yet."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        super().reset_metrics()


class CarriedFromValidation(Loop):
    """Reset between training and validation, not after it."""

    def reset_metrics(self) -> None:
        self.resets = getattr(self, "resets", 0) + 1
        if self.resets % 2:
            super().reset_metrics()


class MeanOverBatches(Loop):
    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        super().record(loss, x, y, predictions, weight)
        self.batch_losses.update_state(loss)

    def make(self) -> None:
        super().make()
        self.batch_losses = tf.keras.metrics.Mean()

    def results(self) -> dict[str, float]:
        return super().results() | {"loss": float(self.batch_losses.result())}

    def reset_metrics(self) -> None:
        super().reset_metrics()
        self.batch_losses.reset_state()


class InPython(Loop):
    """Keeps the loss and the number of examples of every batch in Python."""

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        super().record(loss, x, y, predictions, weight)
        count = tf.cast(examples_in(x), loss.dtype)
        return loss * count, count

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super().compiled(step, dataset)

        def keep(batch: Any) -> None:
            loss, count = (float(self.strategy.reduce(SUM, each, axis=None)) for each in on_batch(batch))
            self.kept.append(loss / count)

        return keep

    def results(self) -> dict[str, float]:
        return super().results() | {"loss": self.epoch_loss()}

    def reset_metrics(self) -> None:
        super().reset_metrics()
        self.kept: list[float] = []

    def make(self) -> None:
        super().make()
        self.kept = []


class MeanOfBatches(InPython):
    """Of all replicas."""

    def epoch_loss(self) -> float:
        return sum(self.kept) / len(self.kept)


class LastBatch(InPython):
    """Of all replicas."""

    def epoch_loss(self) -> float:
        return self.kept[-1]


class NumbersAfterUpdate(Loop):
    """Computed anew, with the weights that the update has made."""

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        predictions = self.predict(x)
        return super().record(self.validation_loss(y, predictions, weight), x, y, predictions, weight)


class SharesReported(Loop):
    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return super().record(loss / self.replicas, x, y, predictions, weight)


class SharesSummed(Loop):
    """Sums what are means already."""

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        return super().reported(logs | {name: logs[name] * self.replicas for name in ("loss", "val_loss")})


class FromOneReplica(Loop):
    """Adds up the losses and examples of the first replica."""

    def make(self) -> None:
        super().make()
        self.total, self.count = 0.0, 0

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        super().record(loss, x, y, predictions, weight)
        return loss, examples_in(x)

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super().compiled(step, dataset)

        def add(batch: Any) -> None:
            loss, count = (self.strategy.experimental_local_results(each)[0] for each in on_batch(batch))
            self.total, self.count = self.total + float(loss) * int(count), self.count + int(count)

        return add

    def results(self) -> dict[str, float]:
        return super().results() | {"loss": self.total / self.count}

    def reset_metrics(self) -> None:
        super().reset_metrics()
        self.total, self.count = 0.0, 0


class LastBatchOnly(FromOneReplica):
    """Reports the loss of the last batch, for one replica."""

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super(FromOneReplica, self).compiled(step, dataset)

        def keep(batch: Any) -> None:
            loss, _ = on_batch(batch)
            self.total, self.count = float(loss), 1

        return keep


class LastAccuracyOnly(Loop):
    """The metrics, not the loss, are reset before each batch."""

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super().compiled(step, dataset)

        def anew(batch: Any) -> Any:
            for metric in tf.nest.flatten(self.metrics):
                metric.reset_state()
            return on_batch(batch)

        return anew


class AccuracyOverBatches(LastAccuracyOnly):
    """The mean of the batches' accuracies, in which the short last batch counts as much as any."""

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super().compiled(step, dataset)

        def keep(batch: Any) -> Any:
            recorded = on_batch(batch)
            self.kept.append(self.current())
            return recorded

        return keep

    def current(self) -> dict[str, float]:
        logs = super().results()
        del logs["loss"]
        return logs

    def results(self) -> dict[str, float]:
        means = {name: sum(logs[name] for logs in self.kept) / len(self.kept) for name in self.kept[0]}
        return super().results() | means

    def reset_metrics(self) -> None:
        super().reset_metrics()
        self.kept: list[dict[str, float]] = []

    def make(self) -> None:
        super().make()
        self.kept = []


class RunningMean(FromOneReplica):
    """An exponential moving average over the batches, as progress bars show it."""

    def compiled(self, step: Any, dataset: Any) -> Any:
        on_batch = super(FromOneReplica, self).compiled(step, dataset)

        def smooth(batch: Any) -> None:
            loss, _ = on_batch(batch)
            self.total = 0.8 * self.total + 0.2 * float(loss) if self.count else float(loss)
            self.count = 1

        return smooth


class AnotherThreshold(Loop):
    """Probabilities' threshold on logits."""

    def make(self) -> None:
        super().make()
        with self.strategy.scope():
            self.metrics = [tf.keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.5)]


class AnotherAccuracy(Loop):
    """Right if among the best two."""

    def make(self) -> None:
        super().make()
        with self.strategy.scope():
            self.metrics = [tf.keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="accuracy")]


class OneHotAccuracy(tf.keras.metrics.BinaryAccuracy):  # type: ignore[misc]
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(tf.one_hot(y_true, y_pred.shape[-1]), y_pred, sample_weight)


class OtherAccuracy(Loop):
    """Called accuracy like the experiment's, it counts each of a label's classes."""

    def make(self) -> None:
        super().make()
        self.metrics = [OneHotAccuracy(name="accuracy")]


class PenaltyNotReported(Loop):
    """Trains with it; validation reports it."""

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return super().record(self.data_loss(y, predictions, weight), x, y, predictions, weight)

    def record_validation(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return super().record(loss, x, y, predictions, weight)


class MetricsWeighted(Loop):
    """Gives sample weights to metrics that fit gives none."""

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        self.loss_metric.update_state(loss, sample_weight=examples_in(x))
        for metric in self.metrics:
            metric.update_state(y, predictions, sample_weight=weight)


class Perplexity(Loop):
    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        return super().reported(logs | {name: math.exp(logs[name]) for name in ("loss", "val_loss")})


class RoundedReport(Loop):
    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        return super().reported({name: round(value, 2) for name, value in logs.items()})


class Percent(Loop):
    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        changed = {name: 100 * value for name, value in logs.items() if name.endswith(("accuracy", "mae"))}
        return super().reported(logs | changed)


class TrainingLossTwice(Loop):
    """A copy that was never edited: val_loss is the training loss."""

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        return super().reported(logs | {"val_loss": logs["loss"]})


class SmoothedLoss(Loop):
    """An exponential moving average, as progress bars show it."""

    def make(self) -> None:
        super().make()
        self.smooth = 2.0

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        self.smooth = 0.7 * self.smooth + 0.3 * logs["loss"]
        return super().reported(logs | {"loss": self.smooth})


class LossAfterTheUpdate(Loop):
    def train_step(self, batch: Any) -> Any:
        super().train_step(batch)
        return self.record_again(*self.unpack(batch))

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> None:
        return  # later

    def record_again(self, x: Any, y: Any, weight: Any) -> Any:
        predictions = self.model(x, training=False)
        return super().record(self.loss_value(y, predictions, weight), x, y, predictions, weight)

    def record_validation(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return super().record(loss, x, y, predictions, weight)
