"""The remedy of every cause, applied to the loop for which it was given, makes that loop correct.

The loop is source text with slots. For each cause there are the lines that a user wrote in some slots, and those after
the remedy: the added lines are the remedy's, character by character, except for its comments.
"""

from __future__ import annotations

import ast
import functools
import re
import runpy
import textwrap
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from against_fit import checker_of

from compare.check.causes import CATALOGUE

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    # Keras's own, where a callback reads the learning rate under MirroredStrategy.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

LOOP = """
import itertools

import tensorflow as tf


def train(run):
    strategy, GLOBAL_BATCH_SIZE = run.strategy, run.global_batch_size
    per_replica_batch_size = GLOBAL_BATCH_SIZE // strategy.num_replicas_in_sync
    examples = sum(len(batch[0]) for batch in run.train_dataset(1))
    <build>
    with strategy.scope():
        loss_metric = tf.keras.metrics.Mean(name="loss")
    metrics = [loss_metric, *metrics]

    def train_step(batch):
        <unpack>
        with tf.GradientTape() as tape:
            <predictions>
            <per_example>
            <loss>
            <penalty>
        <variables>
        <gradients>
        <update>
        <report_loss>
        for metric in metrics[1:]:
            metric.update_state(y, predictions)
        return loss

    def test_step(batch):
        <val_unpack>
        <val_predictions>
        <val_per_example>
        <val_loss>
        <val_report>
        for metric in metrics[1:]:
            metric.update_state(y, predictions)

    <traced>
    def distributed_train_step(batch):
        <run>
        return per_replica_loss

    <validation>

    @tf.function(input_signature=[validation.element_spec])
    def distributed_test_step(batch):
        <val_run>

    <begin>
    for epoch in run.epochs:
        <epoch>
        <dataset>
        <batches>
            per_replica_loss = distributed_train_step(batch)
            <step_loss>
            run.end_step()
        logs = {metric.name: float(metric.result()) for metric in metrics}
        <epoch_loss>
        <reset>
        <validation_batches>
            distributed_test_step(batch)
        logs |= {"val_" + metric.name: float(metric.result()) for metric in metrics}
        <val_reset>
        run.end_epoch(epoch, logs)
"""

MEAN = "loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync"
PENALTY = "loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync"
DISTRIBUTED = "dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))"
RESET = "for metric in metrics:\n    metric.reset_state()"
BUILD = "model, optimizer, loss_object, metrics = run.build()"
REPORT_LOSS = "loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])"
UNPACK = "x, y, sample_weight = batch"
WEIGHTED = "per_example = loss_object.call(y, predictions) * sample_weight"
BY_KERAS = "loss = loss_object(y, predictions)"
UNDIVIDED = (
    "mean = loss_object(y, predictions) * strategy.num_replicas_in_sync + sum(model.losses)\n"
    "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])"
)

OF_ONE_HOT = """
class OfOneHot(tf.keras.metrics.BinaryAccuracy):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(tf.one_hot(y_true, y_pred.shape[-1]), y_pred)
"""
MY_ACCURACY = """
with strategy.scope():
    accuracy = {}name="accuracy")
metrics = [accuracy]
"""
USUAL = {
    "build": BUILD,
    "unpack": "x, y = batch",
    "predictions": "predictions = model(x, training=True)",
    "per_example": "per_example = loss_object.call(y, predictions)",
    "loss": MEAN,
    "penalty": PENALTY,
    "variables": "variables = model.trainable_variables",
    "gradients": "gradients = tape.gradient(loss, variables)",
    "update": "optimizer.apply_gradients(zip(gradients, variables))",
    "report_loss": REPORT_LOSS,
    "val_unpack": "x, y = batch",
    "val_predictions": "predictions = model(x, training=False)",
    "val_per_example": "per_example = loss_object.call(y, predictions)",
    "val_loss": "loss = tf.reduce_mean(per_example) + tf.add_n(model.losses)",
    "val_report": "loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])",
    "traced": "distributed = strategy.experimental_distribute_dataset(run.train_dataset(1))\n"
    "@tf.function(input_signature=[distributed.element_spec])",
    "run": "per_replica_loss = strategy.run(train_step, args=(batch,))",
    "val_run": "strategy.run(test_step, args=(batch,))",
    "validation": "validation = strategy.experimental_distribute_dataset(run.validation_dataset())",
    "dataset": DISTRIBUTED,
    "batches": "for batch in dataset:",
    "reset": RESET,
    "validation_batches": "for batch in validation:",
    "val_reset": RESET,
}
"""The content of each slot in a correct loop; a cause's own slots replace it."""


@dataclass(frozen=True)
class Advice:
    """A user's loop, before and after the remedy.

    Attributes:
        id: the cause.
        wrong: what the user wrote, by slot.
        right: the same slots after the remedy.
        around: other slots of both loops that differ from ``USUAL``.
        experiment: "mlp", "regression" or one of those in ``checker``.
        replicas: how many.
        also: further causes of the wrong loop, where the same line makes both mistakes.
    """

    id: str
    wrong: dict[str, str]
    right: dict[str, str]
    around: dict[str, str] = field(default_factory=dict)
    experiment: str = "mlp"
    replicas: int = 2
    also: tuple[str, ...] = ()


def on(id, slot, wrong, right=None, **options):
    """Advice on one slot; ``right`` defaults to the usual content."""
    return Advice(id, {slot: wrong}, {slot: USUAL[slot] if right is None else right}, **options)


SAFE_MEAN = """
count = tf.cast(tf.size(per_example), tf.float32)
loss = tf.math.divide_no_nan(tf.reduce_sum(per_example), count) / strategy.num_replicas_in_sync
""".strip()
NO_PENALTY = {"penalty": "", "val_loss": "loss = tf.reduce_mean(per_example)"}
SHUFFLED_APART = """
labels = run.train_dataset(epoch).map(lambda x, y: y).unbatch().shuffle(examples, seed=1).batch(GLOBAL_BATCH_SIZE)
dataset = tf.data.Dataset.zip((run.train_dataset(epoch).map(lambda x, y: x), labels))
dataset = strategy.experimental_distribute_dataset(dataset)
""".strip()
MICRO_BATCHES = """
summed, size = [tf.zeros_like(variable) for variable in variables], per_replica_batch_size // 2
for i in range(0, 2 * size, size):
    x_part, y_part = x[i : i + size], y[i : i + size]
    with tf.GradientTape() as tape:
        of_part = tf.reduce_mean(loss_object.call(y_part, model(x_part, training=True)))
    gradients = tape.gradient(of_part, variables)
    {}
gradients = summed
""".strip()
SCALED = "gradients = tape.gradient(scaled_loss, variables)"
OWN_OPTIMIZER = """
model, {old}, loss_object, metrics = run.build()
with strategy.scope():
    {model}
    optimizer = tf.keras.optimizers.{new}
    optimizer.build(model.trainable_variables)
""".strip()

ADVICE = [
    on("loss-not-divided-by-replicas", "loss", "loss = tf.reduce_mean(per_example)"),
    on(
        "loss-divided-twice",
        "loss",
        "loss = loss_object(y, predictions)\nloss = loss / strategy.num_replicas_in_sync",
        "loss = tf.nn.compute_average_loss(loss_object.call(y, predictions))",
    ),
    on("loss-summed", "loss", "loss = tf.reduce_sum(per_example)"),
    on(
        "loss-constant-denominator",
        "loss",
        "loss = tf.nn.compute_average_loss(per_example, global_batch_size=GLOBAL_BATCH_SIZE)",
        "loss = tf.nn.compute_average_loss(per_example)",
    ),
    on(
        "loss-scaled",
        "gradients",
        SCALED,
        SCALED + "\ngradients = [gradient / factor for gradient in gradients]",
        around={"penalty": PENALTY + "\nfactor = 3.0\nscaled_loss = factor * loss"},
    ),
    on(
        "uneven-replica-batches",
        "loss",
        "replica_context = tf.distribute.get_replica_context()\n"
        "count = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.size(per_example), tf.float32))\n"
        "loss = tf.reduce_sum(per_example) / count",
    ),
    Advice(
        "uneven-replica-batches",
        {"run": "per_replica_loss = train_step(batch)", "dataset": "dataset = run.train_dataset(epoch)", "penalty": ""},
        {"run": USUAL["run"], "dataset": DISTRIBUTED, "penalty": "loss = loss / strategy.num_replicas_in_sync"},
        around={
            "loss": "loss = mean = tf.math.divide_no_nan(tf.reduce_sum(per_example), tf.cast(len(y), tf.float32))",
            "report_loss": "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])",
            "val_loss": NO_PENALTY["val_loss"],
            "traced": "@tf.function",
            "val_run": "test_step(batch)",
            "validation": "validation = run.validation_dataset()",
        },
        experiment="plain",
    ),
    on("regularization-missing", "penalty", ""),
    on("regularization-scaled", "penalty", PENALTY.replace("tf.add_n", "3 * tf.add_n")),
    on("regularization-not-divided-by-replicas", "penalty", "loss += tf.add_n(model.losses)"),
    on(
        "not-finite",
        "per_example",
        "per_example = -tf.reduce_sum(tf.one_hot(y, 3) * tf.math.log(predictions), axis=-1)",
    ),
    on(
        "logits-mismatch",
        "build",
        "model, optimizer, _, metrics = run.build()\nloss_object = tf.keras.losses.SparseCategoricalCrossentropy()",
    ),
    on(
        "label-shape-broadcast",
        "per_example",
        "per_example = tf.square(y - predictions)",
        "per_example = loss_object.call(tf.reshape(y, tf.shape(predictions)), predictions)",
        around=NO_PENALTY,
        experiment="regression",
        replicas=1,
    ),
    Advice(
        "sample-weights-dropped",
        {"unpack": "x, y, *_ = batch", "per_example": USUAL["per_example"]},
        {"unpack": UNPACK, "per_example": WEIGHTED},
        around={"val_unpack": UNPACK, "val_per_example": WEIGHTED},
        experiment="weighted",
        replicas=1,
    ),
    on(
        "sample-weights-dropped",
        "per_example",
        USUAL["per_example"],
        "per_example = loss_object.call(y, predictions)\n"
        "weight = tf.gather(class_weights, tf.cast(y, tf.int32))\n"
        "per_example *= tf.reshape(weight, tf.shape(per_example))",
        around={"begin": "class_weights = [0.5, 1.0, 3.0]"},
        experiment="class-weighted",
        replicas=1,
    ),
    on("training-flag-missing", "predictions", "predictions = model(x)"),
    on("clipping-differs", "gradients", "gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)"),
    on(
        "clipping-differs",
        "gradients",
        "replica_context = tf.distribute.get_replica_context()\n"
        "gradients = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, variables))\n"
        "gradients, _ = tf.clip_by_global_norm(gradients, 0.1)\n"
        "gradients = [gradient / strategy.num_replicas_in_sync for gradient in gradients]",
        experiment="clipped",
    ),
    on(
        "gradients-not-reduced",
        "update",
        "for variable, gradient in zip(variables, gradients):\n"
        "    variable.assign_sub(optimizer.learning_rate * gradient)",
        around=NO_PENALTY | {"loss": SAFE_MEAN},
        experiment="plain",
    ),
    on(
        "layer-differs",
        "build",
        f"{BUILD}\nfor layer in model.layers:\n    if isinstance(layer, tf.keras.layers.BatchNormalization):\n"
        "        layer.momentum = 0.5",
    ),
    on("variables-not-trained", "variables", "variables = model.layers[-1].trainable_variables"),
    on("optimizer-differs", "build", OWN_OPTIMIZER.format(old="_", model="", new="Adam(0.003)")),
    on(
        "learning-rate-schedule-missing",
        "build",
        OWN_OPTIMIZER.format(old="given", model="", new="Adam(float(given.learning_rate))"),
        experiment="scheduled",
        replicas=1,
    ),
    Advice(
        "callbacks-missing",
        {"begin": "", "epoch": "", "val_reset": RESET},
        {
            "begin": "model.optimizer = optimizer\n"
            "callbacks = tf.keras.callbacks.CallbackList(run.build_callbacks(), model=model)\n"
            "callbacks.on_train_begin()",
            "epoch": "callbacks.on_epoch_begin(epoch - 1)",
            "val_reset": RESET + "\ncallbacks.on_epoch_end(epoch - 1, logs)",
        },
        experiment="callback",
        replicas=1,
    ),
    on(
        "label-smoothing-missing",
        "per_example",
        "per_example = tf.nn.softmax_cross_entropy_with_logits(y, predictions)",
        around=NO_PENALTY,
        experiment="smoothed",
    ),
    on(
        "mask-missing",
        "loss",
        MEAN,
        "loss = loss_object(y, predictions)",
        around=NO_PENALTY | {"val_loss": "loss = loss_object(y, predictions)"},
        experiment="masked",
        replicas=1,
    ),
    on("labels-shuffled-apart", "dataset", SHUFFLED_APART),
    on(
        "loss-scaled",
        "gradients",
        MICRO_BATCHES.format("summed = [total + gradient for total, gradient in zip(summed, gradients)]"),
        MICRO_BATCHES.format(
            "share = tf.shape(y_part)[0] / tf.shape(y)[0]\n    "
            "summed = [total + tf.cast(share, total.dtype) * gradient for total, gradient in zip(summed, gradients)]"
        ),
        around=NO_PENALTY,
        experiment="plain",
        replicas=1,
    ),
    Advice(
        "not-reshuffled",
        {"begin": "dataset = strategy.experimental_distribute_dataset(run.train_dataset(1))", "dataset": ""},
        {"begin": "", "dataset": DISTRIBUTED},
    ),
    on("examples-dropped", "batches", "for batch in itertools.islice(dataset, examples // GLOBAL_BATCH_SIZE):"),
    Advice(
        "examples-repeated",
        {
            "dataset": "dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch).repeat())",
            "batches": "for batch in itertools.islice(dataset, examples // per_replica_batch_size):",
        },
        {"dataset": DISTRIBUTED, "batches": USUAL["batches"]},
    ),
    on(
        "batch-size-differs",
        "begin",
        "batch_size = GLOBAL_BATCH_SIZE * strategy.num_replicas_in_sync",
        "batch_size = per_replica_batch_size * strategy.num_replicas_in_sync",
        around={
            "dataset": "dataset = run.train_dataset(epoch).unbatch().batch(batch_size)\n"
            "dataset = strategy.experimental_distribute_dataset(dataset)"
        },
    ),
    on(
        "weights-not-shared",
        "build",
        OWN_OPTIMIZER.format(
            old="_", model="model = tf.keras.models.clone_model(model)", new="SGD(0.05, momentum=0.9)"
        ),
    ),
    on(
        "validation-changes-state",
        "val_predictions",
        "predictions = model(x, training=True)",
        also=("validation-in-training-mode",),
    ),
    on("empty-replica-batch", "loss", MEAN, SAFE_MEAN, around=NO_PENALTY, experiment="plain"),
    on(
        "loss-without-regularization",
        "report_loss",
        "loss_metric.update_state(tf.reduce_mean(per_example), sample_weight=tf.shape(y)[0])",
    ),
    Advice("metrics-not-reset", {"reset": "", "val_reset": ""}, {"reset": RESET, "val_reset": RESET}),
    Advice(
        "loss-averaged-over-batches",
        {
            "report_loss": "",
            "epoch": "total_loss, num_batches = 0.0, 0",
            "step_loss": "total_loss += strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_loss, axis=None)\n"
            "num_batches += 1",
            "epoch_loss": "logs['loss'] = float(total_loss / num_batches)",
        },
        {"report_loss": REPORT_LOSS},
    ),
    Advice(
        "last-batch-only",
        {
            "report_loss": "",
            "step_loss": "last = strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_loss, axis=None)",
            "epoch_loss": "logs['loss'] = float(last)",
        },
        {"report_loss": REPORT_LOSS},
    ),
    Advice(
        "loss-scale-missing",
        {"penalty": ""},
        {"penalty": "scaled_loss = optimizer.scale_loss(loss)", "gradients": SCALED},
        around={
            "predictions": "predictions = tf.cast(model(x, training=True), tf.float32)",
            "val_predictions": "predictions = tf.cast(model(x, training=False), tf.float32)",
            "val_loss": "loss = tf.reduce_mean(per_example)",
        },
        experiment="float16",
    ),
    on("loss-not-reduced", "report_loss", "loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])"),
    on(
        "loss-not-reduced",
        "report_loss",
        "loss_metric.update_state(mean * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])",
        "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])",
        around={"penalty": PENALTY + "\nmean = loss * strategy.num_replicas_in_sync"},
    ),
    Advice(  # the examples' loss alone is a share
        "loss-not-reduced",
        {"val_loss": MEAN, "val_report": "loss_metric.update_state(loss + tf.add_n(model.losses), tf.shape(y)[0])"},
        {
            "val_loss": MEAN,
            "val_report": "mean = loss * strategy.num_replicas_in_sync + tf.add_n(model.losses)\n"
            "loss_metric.update_state(mean, sample_weight=tf.shape(y)[0])",
        },
    ),
    Advice(
        "loss-not-reduced",
        {"val_loss": BY_KERAS + " + sum(model.losses)"},
        {"val_loss": "", "val_report": UNDIVIDED},
    ),
    Advice(
        "loss-not-reduced",
        {"val_loss": BY_KERAS, "val_report": "loss_metric.update_state(loss)"},
        {"val_loss": "", "val_report": UNDIVIDED},
        also=("loss-averaged-over-batches", "validation-loss-without-regularization"),
    ),
    Advice(
        "loss-not-reduced",
        {"report_loss": "loss_metric.update_state(loss)"},
        {"report_loss": REPORT_LOSS},
        around={"loss": BY_KERAS},
        also=("loss-averaged-over-batches",),
    ),
    on(
        "metrics-after-update",
        "report_loss",
        "predictions = model(x, training=False)\n"
        "again = tf.reduce_mean(loss_object.call(y, predictions)) + tf.add_n(model.losses)\n"
        "loss_metric.update_state(again, sample_weight=tf.shape(y)[0])",
        "loss_metric.update_state(taped * strategy.num_replicas_in_sync, sample_weight=tf.shape(y)[0])",
        around={"penalty": PENALTY + "\ntaped = loss"},
    ),
    Advice(
        "metric-differs",
        {"build": BUILD + OF_ONE_HOT + MY_ACCURACY.format("OfOneHot(")},
        {"build": BUILD + OF_ONE_HOT + MY_ACCURACY.format("tf.keras.metrics.SparseCategoricalAccuracy(")},
    ),
    on("validation-loss-without-regularization", "val_loss", "loss = tf.reduce_mean(per_example)"),
    on(
        "validation-in-training-mode",
        "val_predictions",
        "predictions = model(x, training=True)",
        also=("validation-changes-state",),
    ),
    on("validation-examples-dropped", "validation_batches", "for batch in itertools.islice(validation, 2):"),
    Advice(
        "metrics-from-one-replica",
        {
            "report_loss": "",
            "step_loss": "loss = strategy.experimental_local_results(per_replica_loss)[0]\n"
            "examples_of_first = len(strategy.experimental_local_results(batch[0])[0])\n"
            "loss_metric.update_state(loss * strategy.num_replicas_in_sync, sample_weight=examples_of_first)",
        },
        {"report_loss": REPORT_LOSS},
    ),
    Advice(
        "validation-sample-weights-dropped",
        {"val_unpack": "x, y, *_ = batch", "val_per_example": USUAL["val_per_example"]},
        {"val_unpack": UNPACK, "val_per_example": WEIGHTED},
        around={"unpack": UNPACK, "per_example": WEIGHTED},
        experiment="weighted",
        replicas=1,
    ),
]


@functools.cache
def checker(name, replicas):
    import tasks
    import tensorflow as tf
    from corpus import planted

    sgd, adam = tf.keras.optimizers.SGD, tf.keras.optimizers.Adam
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    callback = functools.partial(tf.keras.callbacks.LearningRateScheduler, lambda epoch: 0.05 * 0.5**epoch)
    usual = {"train": 200, "validation": 400, "optimizer": lambda: sgd(0.05, momentum=0.9)}
    usual |= {"regularize": True, "batch_norm": True}
    experiments = {
        # By 64 per replica the last batch has one example, and leaves a replica empty.
        "plain": {"train": 257, "optimizer": lambda: sgd(0.05), "regularize": False, "batch_norm": False},
        "weighted": {"weights": True},
        "float16": {"policy": "mixed_float16", "regularize": False, "batch_norm": False},
        "class-weighted": {"class_weight": {0: 0.5, 1: 1.0, 2: 3.0}},
        "scheduled": {"optimizer": lambda: adam(schedule)},
        "callback": {"build_callbacks": lambda: [callback()]},
        "smoothed": {"regularize": False},
        "clipped": {"optimizer": lambda: sgd(0.05, momentum=0.9, global_clipnorm=0.1)},
    }
    make = getattr(planted, name, tasks.experiment)  # "regression", "smoothed" and "masked"
    return checker_of(make(**(usual | experiments.get(name, {}))), replicas)


def source(slots):
    """Returns the loop with its slots filled; all others stay empty."""
    code = USUAL | slots
    fill = r"^( *)<(\w+)>\n", lambda slot: textwrap.indent(code.get(slot[2], "") + "\n", slot[1])
    return re.sub(*fill, LOOP, flags=re.MULTILINE)


def lines(slots):
    """Returns the lines of code, without comments, indentation and the bodies that a remedy leaves out."""
    every = "\n".join(slots.values()).splitlines()
    return {re.sub(r"(^|  )#.*", "", line.strip()).removesuffix(" ...") for line in every} - {""}


@functools.cache
def check(experiment, replicas, code, file):
    """Returns the report on a loop; cached, since many remedies lead to the same loop."""
    file.write_text(code)
    loop = SimpleNamespace(name="loop", train=runpy.run_path(str(file))["train"])
    here = checker(experiment, replicas)
    return here.check(loop)


def test_every_cause_has_advice_here():
    assert {advice.id for advice in ADVICE} == set(CATALOGUE)


@pytest.mark.parametrize("id", CATALOGUE)
def test_examples_and_remedies_are_valid_python(id):
    ast.parse(CATALOGUE[id].wrong)
    ast.parse(CATALOGUE[id].remedy)


IN_THE_GATE = {"loss-constant-denominator"}
"""In the gate, test_check shows that every cause is named; the other remedies are slow tests."""


@pytest.mark.parametrize(
    "advice",
    [pytest.param(each, id=each.id, marks=[] if each.id in IN_THE_GATE else [pytest.mark.slow]) for each in ADVICE],
)
def test_the_remedy_makes_the_loop_correct(tensorflow, advice, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "loop.py"
    report = check(advice.experiment, advice.replicas, source(advice.around | advice.wrong), file)
    assert report.verdict == "different", report
    remedies = {finding.id: finding.remedy for finding in report.findings}
    assert set(remedies) == {advice.id, *advice.also}, report

    added = lines(advice.right) - lines(advice.wrong)
    assert added, "the remedy adds nothing to the loop"
    assert added <= lines({"remedy": remedies[advice.id]}), (added, remedies[advice.id])

    report = check(advice.experiment, advice.replicas, source(advice.around | advice.right), file)
    assert report.verdict in ("identical", "alike"), report
    assert report.findings == (), report
