"""Causes that affect the reported numbers, but not the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import ARGUMENT, NOT_TRAINING, REPORTING, Cause, Measurement, Variant
from compare.check.recipe import MetricFormula
from compare.check.recorded import CLOSE, same
from compare.check.used import ALONE, DIVIDED, OWN_STEP, SCRIPT
from compare.records.model import Record
from compare.verdict.exact import metric_names
from compare.watch.reported_logs import names_by_metric
from compare.watch.trace import ON_BATCHES, Measured, Trace

if TYPE_CHECKING:
    from compare.check.metric_replay import ReportedMetric


def _of(case: ReportedMetric, kind: str, **quantities: Any) -> Measurement:
    return Measurement.of(kind, metric=case.key, **quantities)


def _not_reset(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    yield Variant({"carry": "own"}, _of(case, "includes-earlier-epochs"))
    if case.is_loss:
        yield Variant({"carry": "sum", "per": "batches"}, _of(case, "sum-over-epochs"))
    if case.part == "validation":
        yield Variant({"carry": "shared"}, _of(case, "includes-training"))
    else:
        yield Variant({"carry": "validation"}, _of(case, "includes-validation"))
    yield Variant({"carry": "everything"}, _of(case, "includes-everything"))


def _other_metric(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    for kind in case.other_accuracies:
        seen = _of(case, "other-metric", metric_class=kind, expected=case.accuracy)
        yield Variant({"metric": kind}, seen, measured=True)  # the values of few examples are soon equal by chance


def _per_batch(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.is_loss:
        yield Variant({"per": "batches"}, _of(case, "mean-over-batches"))
        yield Variant({"per": "batches-of-examples"}, _of(case, "mean-over-batches"))
    else:
        remedy = "metric.update_state(y, predictions)  # in every step; metric.result() at the end of the epoch"
        yield Variant({"per": "batches"}, _of(case, "mean-over-batches"), remedy=remedy)


def _last_batch(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    yield Variant({"last": True}, _of(case, "last-batch"))
    if case.is_loss and case.replicas > 1:
        yield Variant({"last": True, "per": "parts"}, _of(case, "last-batch", replicas=case.replicas))


def _not_reduced(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.is_loss and case.replicas > 1:
        divided = {"divided": case.divided} if case.divided else {}
        share = _of(case, "loss-by-replicas", replicas=case.replicas, **divided)
        yield Variant({"scale": 1 / case.replicas}, share)
        if case.penalties:
            whole = {"scale": 1 / case.replicas, "regularization": float(case.replicas)}
            remedy = MEAN_OF_SHARE if case.part == "validation" and not case.divided else ""
            yield Variant(whole, share.but(alone=True), remedy=remedy)
        seen = _of(case, "loss-times-replicas", replicas=case.replicas)
        remedy = "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])  # averages the replicas' means"
        yield Variant({"scale": float(case.replicas)}, seen, remedy=remedy)


def _no_penalty(case: ReportedMetric, part: str) -> Iterable[Variant]:
    if case.is_loss and case.part == part:
        yield Variant({"regularization": 0.0}, _of(case, "without-layer-losses"))
        for i in range(case.penalties if case.penalties > 1 else 0):
            yield Variant({"without": i}, _of(case, "without-layer-loss", number=i + 1, of=case.penalties))


def _training_mode(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "validation":
        yield Variant({"training": True}, _of(case, "in-training-mode"))


def _dropped(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "validation":
        for count in reversed(range(1, case.validation_batches)):
            seen = _of(case, "first-validation-batches", batches=count, of=case.validation_batches)
            if count == case.validation_batches - 1:
                seen = _of(case, "without-last-validation-batch")
            yield Variant({"batches": count}, seen)
        for count in range(1, case.validation_batches):
            seen = _of(case, "validation-batches", batches=count, of=case.validation_batches)
            yield Variant({"chosen": count}, seen, measured=True)


def _after_update(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "train":  # the accuracy of few examples may be the same by chance
        yield Variant({"after": "inference"}, _of(case, "after-update"), measured=True)
        yield Variant({"after": "training"}, _of(case, "after-update", training=True), measured=True)


def _one_replica(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.replicas > 1:
        for replica in range(case.replicas):
            seen = _of(case, "one-replica", replica=replica + 1, replicas=case.replicas)
            yield Variant({"replica": replica}, seen)


def _unweighted(case: ReportedMetric, formula: MetricFormula) -> Iterable[Variant]:
    if case.part == "validation" and case.weighted:  # affects the loss and weighted metrics
        yield Variant({"sample_weights": False}, _of(case, "metric-unweighted"))


def said(case: ReportedMetric) -> Iterable[Variant]:
    """Variants that are said as evidence, without a cause in the catalogue."""
    if case.of_output:
        yield Variant({"per": "examples"}, _of(case, "mean-over-examples"))
    if not case.is_loss and case.broadcastable:
        yield Variant({"paired": False}, _of(case, "metric-broadcast"))


MEAN_OF_EXAMPLES = (
    "loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])\n"
    "# after every batch: loss_metric is a tf.keras.metrics.Mean, and loss is the mean of the batch"
)
MEAN_OF_SHARE = (
    "mean = loss * strategy.num_replicas_in_sync + tf.add_n(model.losses)  # loss is the share of the examples' loss\n"
    "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])"
)
UNDIVIDED = (
    "mean = loss_object(y, predictions) * strategy.num_replicas_in_sync + sum(model.losses)\n"
    "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])\n"
    "# in the step, before any update: Keras divides what loss_object gives by the replicas; loss_metric is a Mean"
)
MEAN_OF_CALLS = (
    "totals += len(x) * np.array(model.train_on_batch(x, y))  # of this batch alone\n"
    "means = totals / examples  # after the last batch of an epoch"
)
"""With ``train_on_batch``, which begins anew with every batch since Keras 3.15; before, it gave the means so far."""
MEAN_OF_STEP = (
    "self.loss_metric.update_state(loss)  # a tf.keras.metrics.Mean, made in __init__\n"
    'return {"loss": self.loss_metric.result()}  # of what is no metric, fit keeps the last batch\'s value'
)


# Two recorded sides


def over_epochs(reference: Record, candidate: Record) -> list[str]:
    """The metrics that are the means over all epochs so far of what the reference reports, and not just near to it."""
    found, epochs = [], sorted(reference.logs.keys() & candidate.logs.keys())
    for name in metric_names(reference):
        both = [[side.logs[epoch].get(name) for epoch in epochs] for side in (reference, candidate)]
        if len(epochs) < 2 or any(None in values for values in both):
            continue
        right, other = np.array(both, np.float64)
        means = np.cumsum(right) / np.arange(1, len(epochs) + 1)
        if np.allclose(means, other, rtol=1e-4) and not np.allclose(right, other, rtol=1e-4):
            found.append(name)
    return found


def never_reset(trace: Trace, ends: Sequence[int], like: Trace) -> dict[str, list[float]]:
    """The metrics that at the end of each epoch are the means of all values since the first, and how many these are."""
    found = {}
    for metric, name in names_by_metric(trace, ends, like).items():
        reads = [each for each in trace.reported if each.metric == metric]
        read = {each.steps: each.counted for each in reversed(reads)}  # the next step's may come before its update
        counts = [read.get(end, 0.0) for end in ends]
        if name and len(ends) > 1 and counts[0] and counts == [counts[0] * epoch for epoch in range(1, len(ends) + 1)]:
            found[name] = counts
    return found


def mixed(reference: Record, candidate: Record, part: str) -> list[str]:
    """The numbers of training ("train") or of validation that also contain those of the other, as large a part of each.

    Training contains the validation of the epoch before, of which the first has none; validation contains the training
    of its own epoch. Numbers that are the same in every epoch count once.
    """
    parts: dict[str, dict[tuple[float, float], float]] = {}  # by both means, which part of the distance is made
    elsewhere = set[str]()
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        right, other = reference.logs[epoch], candidate.logs[epoch]
        before = reference.logs.get(epoch - 1, {}) if part == "train" else right
        for name in (each for each in right if each.startswith("val_") == (part == "validation") and each in other):
            contained = before.get(f"val_{name}" if part == "train" else name.removeprefix("val_"))
            if contained is not None:
                apart = contained - right[name]
                share = (other[name] - right[name]) / apart if apart else 0.0
                parts.setdefault(name, {})[right[name], contained] = share
            elif not same(right[name], other[name]):
                elsewhere.add(name)
    known = {name: [*each.values()] for name, each in parts.items() if name not in elsewhere}
    shares = [share for each in known.values() for share in each if abs(share) > CLOSE]
    if len(shares) < 2 or not 0 < min(shares) <= max(shares) < 1 or np.ptp(shares) > 1e-3 * max(shares):
        return []
    return [name for name, each in known.items() if all(abs(share) > CLOSE for share in each)]


def other_metrics(
    reference: Trace, candidate: Trace, ends: Sequence[int], differing: Collection[str], reference_name: str
) -> dict[str, Measurement]:
    """The numbers, of those that differ, that another metric measures than in the reference, with the evidence."""
    own, found = _measures(candidate, ends, reference), {}
    for name, right in _measures(reference, ends, reference).items():
        other = own.get(name)
        of_classes = other is not None and other.kind == "Accuracy" and len(other.predicted) < len(right.predicted)
        if name in differing and other is not None and _what(other) != _what(right) and not of_classes:
            measured = [
                {"metric_class": each.kind, "labels": list(each.true), "predictions": list(each.predicted)}
                for each in (other, right)
            ]
            found[name] = Measurement.of(
                "script-other-metric", metric=name, side=measured[0], other=reference_name, expected=measured[1]
            )
    return found


def _measures(trace: Trace, ends: Sequence[int], like: Trace) -> dict[str, Measured]:
    """The metrics of a training, by the names of the numbers; fit uses each for training and validation."""
    if trace.epochs:
        named = [(each.name, each) for each in trace.measured if each.by_fit]
        return {f"{part}{name}": each for name, each in named for part in ("", "val_")}
    names = names_by_metric(trace, ends, like)
    return {names[each.metric]: each for each in trace.measured if names.get(each.metric)}


def _what(metric: Measured) -> str:
    """What a metric measures: two classes measure the same if each gets labels in its own form."""
    classes = metric.predicted[-1] if metric.predicted else None
    of_numbers = metric.true[-1:] == [1] or len(metric.true) < len(metric.predicted)
    of_vectors = metric.true[-1:] == [classes] and classes != 1
    own_form = {"SparseCategoricalAccuracy": of_numbers, "CategoricalAccuracy": of_vectors}
    return "most probable class" if own_form.get(metric.kind) else metric.kind


_OTHER = r"(?:(?!\.result\().)*"
_ONE_RESULT = rf"{_OTHER}?([\w.]+)\.result\(\){_OTHER}"
"""A line that reads one metric."""

ReportingCause = partial(Cause, kind=REPORTING)

CAUSES = (
    ReportingCause(
        id="metrics-not-reset",
        symptom="From the second epoch on, a metric lags behind the other side's.",
        explanation="A Keras metric accumulates until it is reset. Without a reset, later epochs report a mean over "
        "all epochs so far; a metric used in both training and validation mixes the two.",
        wrong="for epoch in epochs:\n    for batch in dataset: ...  # updates metric\n    print(metric.result())",
        remedy="for metric in metrics:\n"
        "    metric.reset_state()  # before every epoch, and before validation that uses it",
        remedies={
            ON_BATCHES: MEAN_OF_CALLS,
            SCRIPT: "metric.reset_state()  # each metric: before every epoch, and before validation that uses it",
        },
        by_hand=dict.fromkeys(
            (_ONE_RESULT, r"([\w.]+)\.update_state\(.*"),
            r"\1.reset_state()  # before every epoch, and before validation that uses it",
        ),
        of_each_metric=True,
        formula=_not_reset,
    ),
    ReportingCause(
        id="metric-differs",
        symptom="Training is identical, but the reported accuracy is quite another one.",
        explanation='Three metrics are called "accuracy". fit chooses one of them by the shapes of labels and '
        "predictions; a loop that makes another one, or gives it labels of another form, measures something else.",
        wrong='accuracy = tf.keras.metrics.BinaryAccuracy(name="accuracy")  # of ten classes',
        remedy='accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")  # labels are class numbers\n'
        'accuracy = tf.keras.metrics.CategoricalAccuracy(name="accuracy")  # labels are one-hot\n'
        'accuracy = tf.keras.metrics.BinaryAccuracy(name="accuracy")  # one prediction for each label',
        formula=_other_metric,
    ),
    ReportingCause(
        id="loss-averaged-over-batches",
        symptom="The reported loss differs a little from fit's, more so when the last batch is short.",
        explanation="fit weights each batch by its size. A mean over batches counts the short last batch like a full "
        "one.",
        wrong="loss = total_loss / num_batches",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# in the step: loss_metric is a tf.keras.metrics.Mean, and loss is this replica's share",
        remedies={ON_BATCHES: MEAN_OF_CALLS, ALONE: MEAN_OF_EXAMPLES, DIVIDED: UNDIVIDED},
        by_hand={
            r"([\w.]+)\.append\(.*\)": r"np.average(\1, weights=sizes)  # sizes: of each batch the number of examples",
            rf"([\w.]+) \+= ([\w.]+(?:\({ARGUMENT}?\))?)": (
                r"\1 += \2 * len(y)  # and at the end, divide by the number of examples"
            ),
        },
        of_each_metric=True,
        formula=_per_batch,
    ),
    ReportingCause(
        id="last-batch-only",
        symptom="The reported loss jumps from epoch to epoch, although the weights are equal to fit's.",
        explanation="The value of the last batch stands for the whole epoch. fit reports the mean over all examples of "
        "the epoch.",
        wrong="for x, y in dataset:\n    loss = train_step(x, y)\nprint(epoch, loss)",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# in every step: loss_metric is a tf.keras.metrics.Mean, and loss is this replica's share",
        remedies={
            ON_BATCHES: MEAN_OF_CALLS,
            OWN_STEP: MEAN_OF_STEP,
            ALONE: MEAN_OF_EXAMPLES,
            DIVIDED: UNDIVIDED,
        },
        of_each_metric=True,
        formula=_last_batch,
    ),
    ReportingCause(
        id="metrics-after-update",
        symptom="Training is identical, but the reported loss is as if the loop were a step ahead of fit.",
        explanation="The loop calls the model again after the update, and computes the loss or metrics with the new "
        "weights. fit reports those of the forward pass whose gradients it applies.",
        wrong="optimizer.apply_gradients(zip(gradients, variables))\n"
        "loss_metric.update_state(loss_object(y, model(x)))",
        remedy="loss_metric.update_state(taped * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# taped: the loss that tape.gradient is taken of; other metrics get the predictions that it is made from",
        remedies={
            ALONE: "loss_metric.update_state(taped, sample_weight=tf.shape(y)[0])\n"
            "# taped: the loss that tape.gradient is taken of; other metrics get the predictions that it is made from",
            DIVIDED: UNDIVIDED,
        },
        of_each_metric=True,
        formula=_after_update,
    ),
    ReportingCause(
        id="loss-not-reduced",
        of_whole_loss=True,
        symptom="With R replicas, the reported loss is R times fit's, or 1/R of it.",
        explanation="A replica's loss, scaled because gradients are summed, is only its share of the loss: shares "
        "must be summed over the replicas, means must be averaged. With two replicas and losses [2, 3] and [4, 5], a "
        "metric over scaled losses gives 1.75; the mean is 3.5.",
        wrong="loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])  # a share of the loss, averaged",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# the replica's mean; loss is only its share",
        remedies={DIVIDED: UNDIVIDED},
        of_each_metric=True,
        formula=_not_reduced,
    ),
    ReportingCause(
        id="loss-without-regularization",
        symptom="Training is identical, but the reported loss is lower than fit's.",
        explanation="The loop differentiates the whole loss, and reports the examples' part of it. fit reports the "
        "sum: the examples' losses and the layers' own.",
        wrong="loss_metric.update_state(tf.reduce_mean(per_example))  # without the layers' losses",
        remedy="loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])\n"
        "# loss is what is differentiated, with tf.add_n(model.losses)",
        remedies={ALONE: f"loss += tf.add_n(model.losses)\n{MEAN_OF_EXAMPLES}", DIVIDED: UNDIVIDED},
        formula=lambda case, _: _no_penalty(case, "train"),
    ),
    ReportingCause(
        id="validation-loss-without-regularization",
        symptom="val_loss is lower than fit's, by the same amount in every batch.",
        explanation="fit adds the layers' losses to the validation loss, too.",
        wrong="loss = tf.reduce_mean(per_example)  # in validation",
        remedy="loss = tf.reduce_mean(per_example) + tf.add_n(model.losses)  # in validation as in training",
        remedies={DIVIDED: UNDIVIDED},
        formula=lambda case, _: _no_penalty(case, "validation"),
    ),
    ReportingCause(
        id="validation-in-training-mode",
        symptom="Validation results are noisy or worse than fit's, and depend on the validation batch size.",
        explanation="The model is called with training=True in validation: dropout is active, and batch normalization "
        "uses the batch's own statistics.",
        wrong="predictions = model(x, training=True)  # in validation",
        remedy="predictions = model(x, training=False)",
        rewrites=NOT_TRAINING,
        formula=_training_mode,
    ),
    ReportingCause(
        id="validation-examples-dropped",
        symptom="Validation results differ a little from fit's; they are equal if all validation batches are full.",
        explanation="Validation leaves out batches: the short last one, or all after a fixed number of steps.",
        wrong="for batch in validation.take(steps): ...  # or drop_remainder=True",
        remedy="for batch in validation: ...  # all of them, without drop_remainder",
        formula=_dropped,
    ),
    ReportingCause(
        id="metrics-from-one-replica",
        symptom="With several replicas, metrics are noisier than fit's.",
        explanation="The number covers only one replica's examples: only one local result is read, or the metric was "
        "created outside the strategy's scope.",
        wrong="loss = strategy.experimental_local_results(per_replica_loss)[0]",
        remedy="with strategy.scope():\n    loss_metric = tf.keras.metrics.Mean()  # its result covers all replicas\n"
        "loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])  # in the step",
        formula=_one_replica,
    ),
    ReportingCause(
        id="validation-sample-weights-dropped",
        symptom="val_loss differs from fit's from the first epoch on; the metrics do not.",
        explanation="The validation data has sample weights, and the loop ignores them.",
        wrong="x, y, *_ = batch  # in validation\nper_example = loss_object.call(y, predictions)",
        remedy="x, y, sample_weight = batch  # in validation too\n"
        "per_example = loss_object.call(y, predictions) * sample_weight",
        formula=_unweighted,
    ),
)
