"""Causes that affect the reported numbers, but not the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from compare.check.causes.base import REPORTING, Cause, Variant
from compare.check.recipe import MetricFormula

if TYPE_CHECKING:
    from compare.check.metric_replay import ReportedMetric


def _not_reset(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    text = f"{case.key} includes the earlier epochs"
    yield Variant({"carry": "own"}, text)
    if case.is_loss:
        yield Variant(
            {"carry": "sum", "per": "batches"},
            f"{case.key} is a sum over all epochs, divided by the number of batches in one epoch",
        )
    if case.part == "validation":
        yield Variant({"carry": "shared"}, f"{case.key} includes the epoch's training examples")
    else:
        yield Variant({"carry": "validation"}, f"{case.key} includes the examples of the validation before")
    yield Variant({"carry": "everything"}, f"{case.key} includes all training and validation examples since the start")


def _other_metric(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    for kind in case.other_accuracies:
        text = f"{case.key} is that of {kind}, and the experiment's is {case.accuracy}"
        yield Variant({"metric": kind}, text, measured=True)  # the values of few examples are soon equal by chance


def _per_batch(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.is_loss:
        text = f"{case.key} is the mean over batches: a short batch counts as much as a full one"
        yield Variant({"per": "batches"}, text)
        yield Variant({"per": "batches-of-examples"}, text)
    else:
        text = f"{case.key} is the mean of its values of each batch: a short batch counts as much as a full one"
        remedy = "metric.update_state(y, predictions)  # in every step; metric.result() at the end of the epoch"
        yield Variant({"per": "batches"}, text, remedy=remedy)


def _last_batch(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    text = f"{case.key} is that of the epoch's last batch alone"
    yield Variant({"last": True}, text)
    if case.is_loss and case.replicas > 1:
        yield Variant({"last": True, "per": "parts"}, f"{text}, the mean over its {case.replicas} replicas")


def _not_reduced(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.is_loss and case.replicas > 1:
        yield Variant(
            {"scale": 1 / case.replicas}, f"{case.key} is 1/{case.replicas} of the loss, on {case.replicas} replicas"
        )
        text = f"{case.key} is {case.replicas} times the loss, on {case.replicas} replicas"
        remedy = "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])  # averages the replicas' means"
        yield Variant({"scale": float(case.replicas)}, text, remedy=remedy)


def _no_penalty(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.is_loss and case.part == "validation":
        yield Variant({"regularization": False}, f"{case.key} does not include the layers' losses")
        yield from _without_one(case)


def _no_penalty_in_training(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.is_loss and case.part == "train":
        yield Variant({"regularization": False}, f"{case.key} does not include the layers' losses")
        yield from _without_one(case)


def _without_one(case: ReportedMetric) -> Iterable[Variant]:
    if case.penalties > 1:
        for i in range(case.penalties):
            yield Variant({"without": i}, f"{case.key} leaves out loss {i + 1} of the layers' {case.penalties}")


def _training_mode(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "validation":
        yield Variant({"training": True}, f"{case.key} is computed with training=True")


def _dropped(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "validation":
        for count in reversed(range(1, case.validation_batches)):
            text = (
                f"{case.key} covers only the first {count} of the check's {case.validation_batches} validation batches"
            )
            if count == case.validation_batches - 1:
                text = f"{case.key} leaves out the last validation batch"
            yield Variant({"batches": count}, text)
        for count in range(1, case.validation_batches):
            text = f"{case.key} covers only {count} of the check's {case.validation_batches} validation batches"
            yield Variant({"chosen": count}, text, measured=True)


def _one_replica(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.replicas > 1:
        for replica in range(case.replicas):
            text = f"{case.key} covers only replica {replica + 1} of {case.replicas}"
            yield Variant({"replica": replica}, text)


def _unweighted(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "validation" and case.weighted:  # affects the loss and weighted metrics
        yield Variant(
            {"sample_weights": False}, f"{case.key} counts every example the same: the sample weights are not used"
        )


def said(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    """Variants that are said as evidence, without a cause in the catalogue."""
    yield from _after_update(case)
    yield from _every_pair(case)


def _after_update(case: ReportedMetric) -> Iterable[Variant]:
    if case.part == "train":
        text = f"{case.key} is computed with the weights that each step's update has made"
        yield Variant({"after": "inference"}, text)
        yield Variant({"after": "training"}, f"{text}, by model(x, training=True)")


def _every_pair(case: ReportedMetric) -> Iterable[Variant]:
    if not case.is_loss and case.broadcastable:
        text = f"{case.key} compares each label with the prediction of every example: labels [n, 1] against [n]"
        yield Variant({"paired": False}, text)


CAUSES = (
    Cause(
        id="metrics-not-reset",
        kind=REPORTING,
        symptom="The first epoch is equal; after that, a metric lags behind fit's.",
        explanation="A Keras metric accumulates until it is reset. Without a reset, later epochs report a mean over "
        "all epochs so far; a metric used in both training and validation mixes the two.",
        wrong="for epoch in run.epochs:\n    for batch in dataset: ...  # updates metric\n    print(metric.result())",
        remedy="for metric in metrics:\n    metric.reset_state()  # after every epoch, and before validation",
        recognised="Each reported number is recomputed from the loop's own weights; it matches if the metric still "
        "holds earlier values: its own earlier epochs or, in validation, the training examples.",
        met='"Incorrect use of tf.Metrics?", https://github.com/lucasjinreal/tfboys/issues/1\n'
        '"Reset metrics after each epoch", https://github.com/JetBrains-Research/code2seq/pull/112',
        formula=_not_reset,
    ),
    Cause(
        id="metric-differs",
        kind=REPORTING,
        symptom="Training is identical, but the reported accuracy is quite another one.",
        explanation='Three metrics are called "accuracy". fit chooses one of them by the shapes of labels and '
        "predictions; a loop that makes another one, or gives it labels of another form, measures something else.",
        wrong='accuracy = tf.keras.metrics.BinaryAccuracy(name="accuracy")  # of ten classes',
        remedy='accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")  # labels are class numbers\n'
        'accuracy = tf.keras.metrics.CategoricalAccuracy(name="accuracy")  # labels are one-hot\n'
        'accuracy = tf.keras.metrics.BinaryAccuracy(name="accuracy")  # one prediction for each label',
        recognised="The reported number, recomputed from the loop's own weights, matches another of Keras's "
        "accuracies, not that of the experiment. Of two scripts: the classes of their metrics, and the shapes of what "
        "these are given.",
        met='"A bug with inaccurate metric accuracy when using closure loss", '
        "https://github.com/tensorflow/tensorflow/issues/35568\n"
        '"Error with module keras/metrics/accuracy_metrics.py and tensorflow module tf.keras.metrics.Accuracy()", '
        "https://github.com/keras-team/keras/issues/18796",
        formula=_other_metric,
    ),
    Cause(
        id="loss-averaged-over-batches",
        kind=REPORTING,
        symptom="The reported loss differs a little from fit's, more so when the last batch is short.",
        explanation="fit weights each batch by its size. A mean over batches counts the short last batch like a full "
        "one.",
        wrong="loss = total_loss / num_batches",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# in the step: loss_metric is a tf.keras.metrics.Mean, and loss is this replica's share",
        recognised="The reported loss, recomputed from the loop's own weights, matches the mean over batches, not "
        "the mean over examples; the check uses batches of several sizes.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy": total_loss / num_batches, '
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Incorect Loss calculation in keras.Model.evaluate when last batch size is different", '
        "https://github.com/tensorflow/tensorflow/issues/27993",
        formula=_per_batch,
    ),
    Cause(
        id="last-batch-only",
        kind=REPORTING,
        symptom="The reported loss jumps from epoch to epoch, although the weights are equal to fit's.",
        explanation="The value of the last batch stands for the whole epoch. fit reports the mean over all examples of "
        "the epoch.",
        wrong="for x, y in dataset:\n    loss = train_step(x, y)\nprint(epoch, loss)",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# in every step: loss_metric is a tf.keras.metrics.Mean, and loss is this replica's share",
        recognised="The reported number, recomputed from the loop's own weights, matches the last batch of each epoch "
        "alone.",
        formula=_last_batch,
    ),
    Cause(
        id="loss-not-reduced",
        kind=REPORTING,
        symptom="With R replicas, the reported loss is R times fit's, or 1/R of it.",
        explanation="A replica's loss, scaled because gradients are summed, is only its share of the loss: shares "
        "must be summed over the replicas, means must be averaged. With two replicas and losses [2, 3] and [4, 5], a "
        "metric over scaled losses gives 1.75; the mean is 3.5.",
        wrong="loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])  # a share of the loss, averaged",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# the replica's mean; loss is only its share",
        recognised="The reported loss is the right one, recomputed from the loop's own weights, multiplied or "
        "divided by the number of replicas.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy", its note on metrics, '
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Distribute Strategy wrong reduction": shares averaged, '
        "https://github.com/tensorflow/tensorflow/issues/28956\n"
        '"Error in the tpu.ipynb notebook": loss * strategy.num_replicas_in_sync, '
        "https://github.com/tensorflow/tensorflow/issues/40339",
        formula=_not_reduced,
    ),
    Cause(
        id="loss-without-regularization",
        kind=REPORTING,
        symptom="Training is identical, but the reported loss is lower than fit's.",
        explanation="The loop differentiates the whole loss, and reports the examples' part of it. fit reports the "
        "sum: the examples' losses and the layers' own.",
        wrong="loss_metric.update_state(tf.reduce_mean(per_example))  # without the layers' losses",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# loss is what is differentiated, with tf.add_n(model.losses)",
        recognised="The reported loss, recomputed from the loop's own weights before each step, matches without the "
        "layers' losses, or without one of them.",
        formula=_no_penalty_in_training,
    ),
    Cause(
        id="validation-loss-without-regularization",
        kind=REPORTING,
        symptom="val_loss is lower than fit's, by the same amount in every batch.",
        explanation="fit adds the layers' losses to the validation loss, too.",
        wrong="loss = tf.reduce_mean(per_example)  # in validation",
        remedy="loss = tf.reduce_mean(per_example) + tf.add_n(model.losses)  # in validation as in training",
        recognised="The reported val_loss, recomputed from the weights at the end of the epoch, matches without the "
        "layers' losses.",
        met='"Keras test loss_vals have no total_loss", https://github.com/google/automl/issues/633\n'
        '"how to incorporate the regularization term into loss computation in validation stage", '
        "https://github.com/keras-team/keras/issues/2104",
        formula=_no_penalty,
    ),
    Cause(
        id="validation-in-training-mode",
        kind=REPORTING,
        symptom="Validation results are noisy or worse than fit's, and depend on the validation batch size.",
        explanation="The model is called with training=True in validation: dropout is active, and batch normalization "
        "uses the batch's own statistics.",
        wrong="predictions = model(x, training=True)  # in validation",
        remedy="predictions = model(x, training=False)",
        recognised="The reported validation numbers match those of the model called with training=True on the "
        "validation batches in order.",
        met='"Correct is_train value for BiMPM validation", '
        "https://github.com/nelson-liu/paraphrase-id-tensorflow/pull/52",
        formula=_training_mode,
    ),
    Cause(
        id="validation-examples-dropped",
        kind=REPORTING,
        symptom="Validation results differ a little from fit's; they are equal if all validation batches are full.",
        explanation="Validation leaves out batches: the short last one, or all after a fixed number of steps.",
        wrong="for batch in validation.take(steps): ...  # or drop_remainder=True",
        remedy="for batch in validation: ...  # all of them, without drop_remainder",
        recognised="The reported validation numbers match those of the first validation batches alone; the evidence "
        "gives their number.",
        met='"Model performs differently for model.fit and custom training loop": validates on '
        "test_set[:batch_size], https://github.com/tensorflow/tensorflow/issues/41957\n"
        '"Unable to train model on multiple GPUs using MirroredStrategy in TF2.0": validation_steps skips the last '
        "batch, https://github.com/tensorflow/tensorflow/issues/30843",
        formula=_dropped,
    ),
    Cause(
        id="metrics-from-one-replica",
        kind=REPORTING,
        symptom="With several replicas, metrics are noisier than fit's.",
        explanation="The number covers only one replica's examples: only one local result is read, or the metric was "
        "created outside the strategy's scope.",
        wrong="loss = strategy.experimental_local_results(per_replica_loss)[0]",
        remedy="with strategy.scope():\n    loss_metric = tf.keras.metrics.Mean()  # its result covers all replicas\n"
        "loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])  # in the step",
        recognised="The reported number, recomputed from the loop's own weights, matches the examples of one replica "
        "alone; the evidence says which.",
        met='"Allow for a customized loss reduction when training with custom train_step in a '
        "MirroredStrategy\": Keras prints the first replica's, https://github.com/keras-team/keras/issues/15509",
        formula=_one_replica,
    ),
    Cause(
        id="validation-sample-weights-dropped",
        kind=REPORTING,
        symptom="val_loss differs from fit's from the first epoch on; the metrics do not.",
        explanation="The validation data has sample weights, and the loop ignores them.",
        wrong="x, y, *_ = batch  # in validation\nper_example = loss_object.call(y, predictions)",
        remedy="x, y, sample_weight = batch  # in validation too\n"
        "per_example = loss_object.call(y, predictions) * sample_weight",
        recognised="If the validation data has sample weights: the reported val_loss matches if every example counts "
        "the same.",
        met='"Option to use sample weights also for the validation set?", '
        "https://github.com/keras-team/keras/issues/2298",
        formula=_unweighted,
    ),
)
