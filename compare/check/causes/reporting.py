"""Causes that make the printed numbers differ, and not the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from compare.check.causes.base import REPORTING, Cause, Variant
from compare.check.recipe import Reading

if TYPE_CHECKING:
    from compare.check.metric_replay import ReadingCase


def _not_reset(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    text = f"{case.key} goes on counting from the epochs before"
    yield Variant({"carry": "own"}, text)
    if case.is_loss:
        yield Variant(
            {"carry": "sum", "per": "batches"}, f"{case.key} is a sum over all epochs, divided by one epoch's batches"
        )
    if case.part == "validation":
        yield Variant({"carry": "shared"}, f"{case.key} counts the epoch's training examples too")
    yield Variant({"carry": "everything"}, f"{case.key} counts everything since the start, training and validation")


def _per_batch(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.is_loss:
        text = f"{case.key} is the mean over batches: a short one counts as much as a full one"
        yield Variant({"per": "batches"}, text)
        yield Variant({"per": "batches-of-examples"}, text)


def _not_reduced(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.is_loss and case.replicas > 1:
        yield Variant(
            {"scale": 1 / case.replicas}, f"{case.key} is 1/{case.replicas} of the loss, on {case.replicas} replicas"
        )
        text = f"{case.key} is {case.replicas} times the loss, on as many replicas"
        remedy = "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])  # the replicas' means are not summed"
        yield Variant({"scale": float(case.replicas)}, text, remedy=remedy)


def _no_penalty(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.is_loss and case.part == "validation":
        yield Variant({"regularization": False}, f"{case.key} is without the layers' own losses")


def _training_mode(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.part == "validation":
        yield Variant({"training": True}, f"{case.key} is that of the model called with training=True")


def _dropped(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.part == "validation":
        for count in reversed(range(1, case.validation_batches)):
            text = (
                f"{case.key} is that of the first {count} of the check's {case.validation_batches} validation batches"
            )
            if count == case.validation_batches - 1:
                text = f"{case.key} leaves out the last validation batch"
            yield Variant({"batches": count}, text)


def _one_replica(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.replicas > 1:
        for replica in range(case.replicas):
            text = f"{case.key} is that of replica {replica + 1} of {case.replicas} alone"
            yield Variant({"replica": replica}, text)


def _unweighted(case: ReadingCase, base: Reading) -> Iterable[Variant]:
    if case.part == "validation" and case.weighted:  # the loss, and metrics that see weights
        yield Variant(
            {"sample_weights": False}, f"{case.key} counts every example the same, whatever its sample weight"
        )


CAUSES = (
    Cause(
        id="metrics-not-reset",
        kind=REPORTING,
        symptom="Epoch by epoch a metric lags behind fit's; the first epoch is equal.",
        explanation="A Keras metric adds up until it is reset. Without that, later epochs report a mean over all so "
        "far; a metric that serves training and validation mixes both.",
        wrong="for epoch in run.epochs:\n    for batch in dataset: ...  # updates metric\n    print(metric.result())",
        remedy="for metric in metrics:\n    metric.reset_state()  # after every epoch, and before validation",
        recognised="Each reported number is recomputed from the weights that the loop had; it fits if the metric "
        "still holds what it counted before: its own earlier epochs, or training's examples in validation.",
        met='"Incorrect use of tf.Metrics?", https://github.com/lucasjinreal/tfboys/issues/1\n'
        '"Reset metrics after each epoch", https://github.com/JetBrains-Research/code2seq/pull/112',
        reading=_not_reset,
    ),
    Cause(
        id="loss-averaged-over-batches",
        kind=REPORTING,
        symptom="The reported loss differs a little from fit's, more so when the last batch is short.",
        explanation="fit weighs each batch by its examples. A mean over batches counts the short last one in full.",
        wrong="loss = total_loss / num_batches",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# in the step: a tf.keras.metrics.Mean, to which a replica's share of the loss is given as its mean",
        recognised="The reported loss, recomputed from the loop's own weights, fits the mean over batches and not "
        "that over examples; the check's batches are of several sizes.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy": total_loss / num_batches, '
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Incorect Loss calculation in keras.Model.evaluate when last batch size is different", '
        "https://github.com/tensorflow/tensorflow/issues/27993",
        reading=_per_batch,
    ),
    Cause(
        id="loss-not-reduced",
        kind=REPORTING,
        symptom="With R replicas the reported loss is R times fit's, or an R-th of it.",
        explanation="A replica's loss, scaled for the sum of gradients, is its share only: shares have to be summed "
        "over replicas, means averaged. With two replicas and losses [2, 3] and [4, 5] a metric over scaled losses "
        "says 1.75; the mean is 3.5.",
        wrong="loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])  # a share of the loss, averaged",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# its mean: the loss that is differentiated is a share",
        recognised="The reported loss, recomputed from the loop's own weights, is the right one times the number "
        "of replicas, or divided by it.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy", its note on metrics, '
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Distribute Strategy wrong reduction": shares averaged, '
        "https://github.com/tensorflow/tensorflow/issues/28956\n"
        '"Error in the tpu.ipynb notebook": loss * strategy.num_replicas_in_sync, '
        "https://github.com/tensorflow/tensorflow/issues/40339",
        reading=_not_reduced,
    ),
    Cause(
        id="validation-loss-without-regularization",
        kind=REPORTING,
        symptom="val_loss is lower than fit's by the same amount in every batch.",
        explanation="fit adds the layers' own losses to the validation loss too.",
        wrong="loss = tf.reduce_mean(per_example)  # in validation",
        remedy="loss = tf.reduce_mean(per_example) + tf.add_n(model.losses)  # in validation as in training",
        recognised="The reported val_loss, recomputed from the weights that the epoch ended with, fits without the "
        "layers' own losses.",
        met='"Keras test loss_vals have no total_loss", https://github.com/google/automl/issues/633\n'
        '"how to incorporate the regularization term into loss computation in validation stage", '
        "https://github.com/keras-team/keras/issues/2104",
        reading=_no_penalty,
    ),
    Cause(
        id="validation-in-training-mode",
        kind=REPORTING,
        symptom="Validation is noisy, or worse than fit's; it depends on the validation batch size.",
        explanation="The model is called with training=True in validation: dropout drops, and batch normalization "
        "takes the batch's own statistics.",
        wrong="predictions = model(x, training=True)  # in validation",
        remedy="predictions = model(x, training=False)",
        recognised="The reported validation numbers fit those of the model called with training=True on the "
        "validation batches, one after the other.",
        met='"Correct is_train value for BiMPM validation", '
        "https://github.com/nelson-liu/paraphrase-id-tensorflow/pull/52",
        reading=_training_mode,
    ),
    Cause(
        id="validation-examples-dropped",
        kind=REPORTING,
        symptom="Validation differs a little from fit's; it is equal where batches come out even.",
        explanation="Validation leaves out batches: the short last one, or all beyond a number of steps.",
        wrong="for batch in validation.take(steps): ...  # or drop_remainder=True",
        remedy="for batch in validation: ...  # all of them, without drop_remainder",
        recognised="The reported validation numbers fit those of the first few validation batches alone; how many "
        "is said.",
        met='"Model performs differently for model.fit and custom training loop": validates on '
        "test_set[:batch_size], https://github.com/tensorflow/tensorflow/issues/41957\n"
        '"Unable to train model on multiple GPUs using MirroredStrategy in TF2.0": validation_steps skips the last '
        "batch, https://github.com/tensorflow/tensorflow/issues/30843",
        reading=_dropped,
    ),
    Cause(
        id="metrics-from-one-replica",
        kind=REPORTING,
        symptom="With several replicas metrics are noisier than fit's.",
        explanation="Only one replica's examples are in the number: one local result is read, or a metric was made "
        "outside of the strategy's scope.",
        wrong="loss = strategy.experimental_local_results(per_replica_loss)[0]",
        remedy="with strategy.scope():\n    loss_metric = tf.keras.metrics.Mean()  # its result is of all replicas\n"
        "loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])  # in the step",
        recognised="The reported number, recomputed from the loop's own weights, fits the examples of one replica "
        "alone; which one is said.",
        met='"Allow for a customized loss reduction when training with custom train_step in a '
        "MirroredStrategy\": Keras prints the first replica's, https://github.com/keras-team/keras/issues/15509",
        reading=_one_replica,
    ),
    Cause(
        id="validation-sample-weights-dropped",
        kind=REPORTING,
        symptom="val_loss differs from fit's from the first epoch on, the metrics do not.",
        explanation="The validation data has sample weights, and the loop makes no use of them.",
        wrong="x, y, *_ = batch  # in validation\nper_example = loss_object.call(y, predictions)",
        remedy="x, y, sample_weight = batch  # in validation too\n"
        "per_example = loss_object.call(y, predictions) * sample_weight",
        recognised="Tried where the validation data has weights: the reported val_loss fits if every example "
        "counts the same.",
        met='"Option to use sample weights also for the validation set?", '
        "https://github.com/keras-team/keras/issues/2298",
        reading=_unweighted,
    ),
)
