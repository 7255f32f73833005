"""Other numbers from equal weights of two scripts are named from the losses of the steps; no TensorFlow here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock, patch

import numpy as np
import pytest
from test_thresholds import record as judged_record

import compare
from compare.app import scripts_numbers
from compare.app.scripts_session import ModelPair
from compare.check.causes import CATALOGUE
from compare.check.causes.reporting import other_metrics
from compare.check.measurement import Measurement
from compare.check.recorded_numbers import (
    Losses,
    evidence_on_numbers,
    losses_by_epoch,
    name_not_reset,
    name_own_accuracies,
    name_reporting,
    validation_by_epoch,
)
from compare.check.used import DIVIDED, SCRIPT_ALONE, Used
from compare.records.model import step_dtype
from compare.verdict.exact import beyond_rounding, compare_records
from compare.verdict.findings import Source
from compare.verdict.model import Difference
from compare.watch.epoch_ends import EpochEnds
from compare.watch.reported_logs import logs_by_epoch
from compare.watch.seen import CloseUp, Event
from compare.watch.trace import FitEpoch, Measured, Reported, Trace

pytestmark = pytest.mark.usefixtures("texts_by_id")  # no cause rests on a sentence

LOSSES = {1: Losses([2.0, 1.5, 1.0], [64, 64, 8]), 2: Losses([0.9, 0.8, 0.3], [64, 64, 8])}


def record(trainer: str, losses: list[float]) -> Any:
    return SimpleNamespace(trainer=trainer, logs={epoch: {"loss": loss} for epoch, loss in enumerate(losses, 1)})


FIT = record("fit", [each.mean for each in LOSSES.values()])


@pytest.mark.parametrize(
    ("reported", "causes"),
    [
        ([each.mean for each in LOSSES.values()], []),
        ([np.mean(each.values) for each in LOSSES.values()], ["loss-averaged-over-batches"]),
        ([1.0, 0.3], ["last-batch-only"]),
        ([1.0, 0.31], []),
        ([LOSSES[1].mean, (LOSSES[1].mean + LOSSES[2].mean) / 2], ["metrics-not-reset"]),
    ],
)
def test_a_cause_is_named_if_it_explains_every_epoch(reported: list[float], causes: list[str]) -> None:
    found = name_reporting(FIT, record("loop", reported), LOSSES)
    assert [each.id for each in found] == causes
    assert all(each.side == "loop" for each in found)


PENALIZED = {
    1: Losses([2.0, 1.5, 1.0], [64, 64, 8], [0.5, 0.25, 0.125]),
    2: Losses([0.9, 0.8, 0.3], [64, 64, 8], [0.125, 0.125, 0.25]),
}


def reported_losses(*, regularized: bool, averaged: bool, reset: bool) -> list[float]:
    """What a loop reports after each epoch."""
    found, kept = [], []
    for each in PENALIZED.values():
        values = [value - (0 if regularized else own) for value, own in zip(each.values, each.penalties, strict=True)]
        batch = list(zip(values, [1] * 3 if averaged else each.examples, strict=True))
        kept = batch if reset else [*kept, *batch]
        found.append(sum(value * count for value, count in kept) / sum(count for _, count in kept))
    return found


@pytest.mark.parametrize("regularized", [True, False])
@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("reset", [True, False])
def test_every_mistake_of_the_training_loss_is_named(regularized: bool, averaged: bool, reset: bool) -> None:
    loop = record("loop", reported_losses(regularized=regularized, averaged=averaged, reset=reset))
    expected = {
        "loss-without-regularization": not regularized,
        "loss-averaged-over-batches": averaged,
        "metrics-not-reset": not reset,
    }
    named = name_reporting(FIT, loop, PENALIZED)
    found = {each.id for each in named}
    assert found == {cause for cause, made in expected.items() if made}
    rests = {each.id: set(each.measurements.get("rest", ())) for each in named}
    assert rests == {each: found - {each} for each in found}, "each explains a part of the gap"


def seen_in(
    logs: dict[int, dict[str, float]], seen: CloseUp, losses: dict[int, Losses], right: float = 0.5
) -> list[dict[str, Any]]:
    """What no cause explains of the numbers of a loop, whose reference has a loss: kinds with their quantities."""
    loop: Any = SimpleNamespace(trainer="loop", logs=logs)
    fit: Any = SimpleNamespace(trainer="fit", logs={1: {"loss": right}})
    found = evidence_on_numbers(fit, loop, {name for each in logs.values() for name in each}, seen, losses, [2])
    return [each.as_json() for each in found]


def test_a_loss_of_zero_that_no_step_has_is_said_to_be_a_metric_that_nothing_updates() -> None:
    seen = CloseUp({number: step(value, 4) for number, value in ((1, 2.0), (2, 1.0))})
    losses = losses_by_epoch(seen, [2])
    unread = {"kind": "loss-never-updated", "side": "loop", "epoch": 1}
    assert seen_in({1: {"loss": 0.0}}, seen, losses) == [unread]
    assert seen_in({1: {"loss": 1.5}}, seen, losses, 0.0) == [{**unread, "side": "fit"}]
    assert seen_in({1: {"loss": 1.5}}, seen, losses) == []
    none = CloseUp({number: step(0.0, 4) for number in (1, 2)})
    assert seen_in({1: {"loss": 0.0}}, none, losses_by_epoch(none, [2])) == [], "a loss that is 0"
    assert seen_in({1: {"loss": 1.2}}, seen, losses) == []


ZERO = """
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
class Own(keras.Model):
    def train_step(self, data):
        import tensorflow as tf
        with tf.GradientTape() as tape:
            loss = LOSS
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
inputs = keras.Input((4,))
model = MODEL(inputs, keras.layers.Dense(1)(inputs))
model.compile("sgd", "mse")
model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=0)
"""


def test_of_weights_that_are_only_alike_a_loss_that_nothing_updates_is_told(tmp_path: Path) -> None:
    mean = "tf.reduce_mean(tf.square(data[1][::-1] - self(data[0][::-1], training=True)))"
    for name, model in (("fit", "keras.Model"), ("own", "Own")):
        (tmp_path / f"{name}.py").write_text(ZERO.replace("MODEL", model).replace("LOSS", mean))
    scripts = [str(tmp_path / f"{name}.py") for name in ("fit", "own")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    (found,) = result.details["comparisons"]
    assert (found["training"]["verdict"], result.verdict) == ("alike", "different")
    assert [each["kind"] for each in found["measurements"]] == ["loss-never-updated"]


RETURNS = """
import keras, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
inputs = keras.Input((4,))
net = keras.Model(inputs, keras.layers.Dense(1)(inputs))
optimizer = keras.optimizers.SGD(0.1)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(y - net(x, training=True)))
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
    return loss
def validate(x, y):
    return tf.reduce_mean(tf.abs(y - net(x, training=False)))
"""
OWN_FIT = (
    RETURNS
    + """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = net
    def train_step(self, data):
        return {"total_loss": step(*data)}
    def test_step(self, data):
        return {"total_loss": validate(*data)}
    def call(self, x):
        return net(x)
model = Own()
model.compile()
model.fit(x, x[:, :1], validation_data=(x, x[:, 1:2]), epochs=2, batch_size=8, verbose=0)
"""
)
OWN_LOOP = (
    RETURNS
    + """
step, validate = tf.function(step), tf.function(validate)
means = [keras.metrics.Mean(name=name) for name in ("total_loss", "val_total_loss")]
for _ in range(2):
    for mean in means:
        mean.reset_state()
    for i in range(0, 32, 8):
        means[0].update_state(step(x[i : i + 8], x[i : i + 8, :1]))
    for i in range(0, 32, 8):
        means[1].update_state(validate(x[i : i + 8], x[i : i + 8, 1:2]))
    for mean in means:
        mean.result()
"""
)


def test_a_fit_whose_own_step_returns_no_metrics_reports_its_last_batch_and_not_the_loop_is_blamed(
    tmp_path: Path,
) -> None:
    (tmp_path / "own_fit.py").write_text(OWN_FIT)
    (tmp_path / "loop.py").write_text(OWN_LOOP)
    scripts = [str(tmp_path / name) for name in ("own_fit.py", "loop.py")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    (cause,) = result.causes
    assert (result.verdict, cause.id, cause.side) == ("different", "last-batch-only", "own_fit")
    assert list(cause.metrics) == ["total_loss", "val_total_loss"] and "self.loss_metric" in cause.remedy


def test_numbers_taken_after_the_update_are_said_to_be_that() -> None:
    steps = {number: step(value, 4) for number, value in ((1, 2.0), (2, 1.0))}
    seen = CloseUp(steps, untaped={1: [(1.75, 4)], 2: [(0.75, 4), (9.0, 4)]}, again={1, 2})
    losses = losses_by_epoch(seen, [2])
    assert losses == {1: Losses([2.0, 1.0], [4, 4], (), [1.75, 0.75])}
    (cause,) = name_reporting(record("fit", [1.5]), record("loop", [1.25]), losses)
    assert (cause.id, cause.side, list(cause.metrics)) == ("metrics-after-update", "loop", ["loss"])
    numbers = {"kind": "loss-after-update", "metric": "loss", "epoch": 1, "value": 1.25, "expected": 1.5}
    assert cause.measurements == numbers
    assert name_reporting(record("fit", [1.5]), record("loop", [1.26]), losses) == []
    assert name_reporting(record("fit", [1.5]), record("loop", [1.25]), {1: replace(losses[1], after=())}) == []
    of_others = {"kind": "called-again", "side": "loop", "steps": 2, "of": 2}
    assert seen_in({1: {"accuracy": 0.5}}, seen, losses) == [of_others]
    assert seen_in({1: {"loss": 1.3, "val_loss": 1.0}}, CloseUp(steps), losses_by_epoch(CloseUp(steps), [2])) == []
    assert seen_in({1: {"val_accuracy": 0.5}}, seen, losses) == []


@pytest.mark.parametrize(("accuracy", "named"), [(0.4375, True), (0.75, False)])
def test_labels_that_met_every_prediction_in_a_metric_are_said_to_be_that(accuracy: float, named: bool) -> None:
    info = {"true": 1, "predicted": 1}
    batches = [([1, 0, 0, 0], [[0.9], [0.2], [0.8], [0.7]]), ([0, 0, 1, 1], [[0.9], [0.1], [0.1], [0.1]])]
    events = [Event("targets", 0, info, [np.float32(true), np.float32(given)]) for true, given in batches]
    pairs = [np.equal.outer(np.array(true), np.array(given)[:, 0] > 0.5).mean() for true, given in batches]
    assert (float(np.mean(pairs)) == accuracy) == named
    seen = CloseUp({number: [*step(1.0, 4), event] for number, event in enumerate(events, 1)})
    found = seen_in({1: {"accuracy": accuracy}}, seen, {})
    assert found == [{"kind": "share-of-pairs", "metric": "accuracy"}] * named


@pytest.mark.parametrize(("logs", "named"), [([0.0], False), ([1.0], False), ([0.0, 0.5], True)])
def test_a_number_that_is_0_or_1_throughout_is_no_evidence_of_pairs(logs: list[float], named: bool) -> None:
    """A loss that nothing updates is 0, and so is the share of equal pairs where labels are no classes."""
    info, of_share = {"true": 1, "predicted": 1}, {0.0: [0.3, 0.3], 0.5: [0.0, 0.3], 1.0: [0.0, 0.0]}
    events = [Event("targets", 0, info, [np.float32(of_share[each]), np.float32([[0.1], [0.2]])]) for each in logs]
    seen = CloseUp({number: [*step(1.0, 2), event] for number, event in enumerate(events, 1)})
    loop: Any = SimpleNamespace(trainer="loop", logs={epoch: {"mine": each} for epoch, each in enumerate(logs, 1)})
    found = evidence_on_numbers(loop, loop, {"mine"}, seen, {}, list(range(1, len(logs) + 1)))
    assert [each.as_json() for each in found] == [{"kind": "share-of-pairs", "metric": "mine"}] * named


def measured(kind: str, true: list[int | None], predicted: list[int | None], *, by_fit: bool = False) -> Trace:
    """A training whose accuracy is measured so."""
    each = Measured("accuracy", kind, true, predicted, by_fit, 0)
    epochs = [FitEpoch(2, {"accuracy": 0.5, "val_accuracy": 0.75}, 1.0)] if by_fit else []
    reported = [] if by_fit else [Reported(2, "accuracy", kind, 0.9)]
    return Trace((), 1, np.zeros(0, step_dtype(1, 1)), epochs=epochs, reported=reported, measured=[each])


@pytest.mark.parametrize(
    ("kind", "true", "predicted", "differs"),
    [
        ("SparseCategoricalAccuracy", [None], [None, 4], False),
        ("SparseCategoricalAccuracy", [None, 1], [None, 4], False),
        ("CategoricalAccuracy", [None, 4], [None, 4], False),  # of one-hot labels: the same numbers
        ("CategoricalAccuracy", [None, 1], [None, 4], True),
        ("BinaryAccuracy", [None, 4], [None, 4], True),
        ("Accuracy", [None], [None], False),  # of the most probable class, which may be the same number
        ("Accuracy", [None, 4], [None, 4], True),
    ],
)
def test_accuracies_that_measure_something_else_are_named_with_both_classes(
    kind: str, true: list[int | None], predicted: list[int | None], differs: bool
) -> None:
    fit = measured("SparseCategoricalAccuracy", [None, 1], [None, 4], by_fit=True)
    found = other_metrics(fit, measured(kind, true, predicted), [2], {"accuracy"}, "fit")
    assert list(found) == ["accuracy"] * differs
    for seen in found.values():
        assert seen.quantities["side"]["metric_class"] == kind
        right = {"metric_class": "SparseCategoricalAccuracy", "labels": [None, 1], "predictions": [None, 4]}
        assert (seen.quantities["other"], seen.quantities["expected"]) == ("fit", right)
    assert other_metrics(fit, measured(kind, true, predicted), [2], {"loss"}, "fit") == {}, "it does not differ"
    both: Any = SimpleNamespace(trainer="loop", logs={1: {"accuracy": 0.9}})
    named = name_reporting(both, both, metrics=found)
    assert [(each.id, each.kind) for each in named] == [("metric-differs", "reporting")] * differs


def test_a_metric_is_paired_by_its_own_name_where_its_value_is_like_none() -> None:
    """Else a wrong accuracy of training would be compared with that of validation, which happens to be nearer."""
    fit = measured("SparseCategoricalAccuracy", [None], [None, 4], by_fit=True)
    for value, name in ((0.9, "accuracy"), (0.75, "val_accuracy"), (0.5, "accuracy")):
        loop = replace(measured("BinaryAccuracy", [None], [None]), reported=[Reported(2, "accuracy", "Mean", value)])
        assert logs_by_epoch(loop, [2], fit)[1][0] == {name: value}


def test_what_a_script_with_fit_reports_itself_is_compared_too() -> None:
    fit = measured("SparseCategoricalAccuracy", [None], [None, 4], by_fit=True)
    given = [Reported(2, "f1", "", 0.25, epoch=1), Reported(2, "read", "Mean", 0.3, metric=1)]
    logs = logs_by_epoch(replace(fit, reported=given), [2], fit)
    assert logs[1] == ({"accuracy": 0.5, "val_accuracy": 0.75, "f1": 0.25}, 1.0)


def test_a_metric_made_anew_in_each_epoch_keeps_its_name() -> None:
    epochs = [FitEpoch(2, {"loss": 0.5, "val_loss": 0.6}, 1.0), FitEpoch(4, {"loss": 0.3, "val_loss": 0.4}, 1.0)]
    fit = Trace((), 1, np.zeros(0), "fit", epochs=epochs)
    read = [(2, 0.5, 1), (2, 0.6, 2), (3, 0.9, 3), (4, 0.3, 3), (4, 0.4, 4)]
    reported = [Reported(steps, "mean", "Mean", value, metric=metric) for steps, value, metric in read]
    loop = Trace((), 1, np.zeros(0), "loop", reported=reported)
    logs = logs_by_epoch(loop, [2, 4], fit)
    assert [logs[epoch][0] for epoch in (1, 2)] == [each.logs for each in epochs]


def test_a_metric_that_is_read_counts_as_it_is_read_and_not_as_it_is_called() -> None:
    fit = measured("SparseCategoricalAccuracy", [None], [None, 4], by_fit=True)
    read = Reported(2, "accuracy", "SparseCategoricalAccuracy", 0.5)
    called = replace(read, value=0.1, updating=True)  # for the first batch of the next epoch, before its update
    loop = replace(fit, epochs=[])
    assert logs_by_epoch(replace(loop, reported=[read, called]), [2], fit)[1][0] == {"accuracy": 0.5}
    assert logs_by_epoch(replace(loop, reported=[called]), [2], fit)[1][0] == {"accuracy": 0.1}, "nothing else is known"


def of_epochs(*read: tuple[int, float], kind: str = "MeanAbsoluteError", name: str = "mae") -> list[dict[str, float]]:
    """The numbers of two epochs, of 2 and 2 steps, in which a metric gives these values after these steps."""
    epochs = [FitEpoch(2, {name: 0.5}, 1.0), FitEpoch(4, {name: 0.3}, 1.0)]
    fit = Trace((), 1, np.zeros(0), "fit", epochs=epochs)
    reported = [Reported(steps, "mean_absolute_error", kind, value) for steps, value in read]
    logs = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=reported), [2, 4], fit)
    return [logs[epoch][0] for epoch in (1, 2)]


def test_what_a_metric_says_within_an_epoch_or_after_the_last_is_no_number_of_an_epoch() -> None:
    right = [{"mae": 0.5}, {"mae": 0.3}]
    assert of_epochs((2, 0.5), (4, 0.3)) == right
    assert of_epochs((1, 0.9), (2, 0.5), (3, 0.1), (4, 0.3)) == right
    assert of_epochs((2, 0.5), (4, 0.3), (6, 0.2), (8, 0.1)) == right, "fit stops early, the loop does not"
    assert of_epochs((2, 0.5), (4, 0.3), (4, 0.7)) == right, "an evaluation with the same metric, after training"
    assert of_epochs((1, 0.9), (3, 0.1)) == [{}, {}]
    assert of_epochs((2, 0.5), (4, 0.3), name="MAE") == [{"MAE": 0.5}, {"MAE": 0.3}]
    assert of_epochs((2, 0.5), (4, 0.3), kind="MeanSquaredError", name="mae") == [{}, {}]


@pytest.mark.parametrize(
    ("counted", "left_out"),
    [
        ([3, 6, 3, 6], False),  # reset as the epoch ends
        ([3, 6, 9, 12], False),  # never reset
        ([6, 3, 9, 6], True),  # reset before the last step, as by a loop that counts other epochs
        ([3, 6, 3, 6, 3, 2], False),  # reset once fit has ended
    ],
)
def test_a_metric_that_begins_anew_within_an_epoch_has_no_number_of_it(counted: list[float], left_out: bool) -> None:
    """Its last value there would be accused of being that of the last batch alone."""
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(2, {"loss": 0.5}, 1.0), FitEpoch(4, {"loss": 0.3}, 1.0)])
    reported = [Reported(i, "loss", "Mean", 0.4, counted=count) for i, count in enumerate(counted, start=1)]
    logs = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=reported), [2, 4], fit)
    assert [logs[epoch][0] for epoch in (1, 2)] == [{} if left_out else {"loss": 0.4}] * 2
    logs = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=reported), [4], fit)
    assert logs[1][0] == {"loss": 0.4}, "where epochs end is not known: it may begin anew in each"
    given = [Reported(i, "own", "", 0.1, epoch=i // 2) for i in (2, 4)]
    both = [*reported[:2], given[0], *reported[2:], given[1]]  # compare.report is no metric
    logs = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=both), [2, 4], fit)
    assert logs[1][0] == {"own": 0.1} | ({} if left_out else {"loss": 0.4})


@pytest.mark.parametrize(("ends", "known"), [([2], True), ([4], False)])
def test_a_metric_that_is_reset_in_each_step_has_no_number_of_an_epoch(ends: list[int], known: bool) -> None:
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(2, {"loss": 0.5}, 1.0)])

    def logs(*values: float, with_steps: bool | None = True) -> dict[str, float]:
        read = [
            Reported(i, "loss", "Mean", value, counted=1, with_steps=with_steps) for i, value in enumerate(values, 1)
        ]
        return logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=read), ends, fit)[1][0]

    assert logs(0.4, 0.3) == ({} if known else {"loss": 0.3})
    assert logs(0.4, 0.4) == {"loss": 0.4}, "not updated in between"
    assert logs(0.4, 0.3, with_steps=False) == {}, "of validation, which has another name"


@pytest.mark.parametrize(("steps", "of_epoch"), [((1, 2, 3, 4), False), ((2, 4), True)])
def test_a_metric_that_counts_one_batch_after_each_step_has_no_number_of_an_epoch(
    steps: tuple[int, ...], of_epoch: bool
) -> None:
    """Whether steps update it is not seen where it is empty after each; one of validation may count as many again."""
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(4, {"mae": 0.5}, 1.0)])
    read = [Reported(i, "mae", "MeanAbsoluteError", 1 / i, counted=32) for i in steps]
    logs = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=read), [4], fit)
    assert logs[1][0] == ({"mae": 0.25} if of_epoch else {})


@pytest.mark.parametrize("kind", ["Mean", "SparseCategoricalAccuracy"])
def test_several_metrics_of_training_validation_and_test_in_turn_are_paired_with_the_first_two(kind: str) -> None:
    names = ("kl_loss", "total_loss")
    logs = {"kl_loss": 0.5, "total_loss": 0.9, "val_kl_loss": 0.4, "val_total_loss": 0.8}
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(2, logs, 1.0)])
    read = [
        Reported(2, name, kind, part + 0.4 * i, metric=i, with_steps=True)
        for part in (0.5, 0.4, 0.1)
        for i, name in enumerate(names)
    ]
    found = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=read), [2], fit)[1][0]
    assert found == pytest.approx(logs)


@pytest.mark.parametrize(
    ("line", "counts"),
    [("self.total[0](loss)  # of all", False), ("value = self.total[0](loss)", True), ("print(total(loss))", True)],
)
def test_what_a_call_of_a_metric_gives_counts_if_it_goes_somewhere(line: str, counts: bool) -> None:
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(2, {"loss": 0.5}, 1.0)])
    called = Reported(2, "loss", "Mean", 0.4, updating=True, line=("loop.py", 3, line))
    logs = logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=[called]), [2], fit)[1][0]
    assert logs == ({"loss": 0.4} if counts else {})


@pytest.mark.parametrize(("second", "paired"), [(0.004, {}), (0.0041, {"loss": 0.496}), (0.0, {"loss": 0.496})])
def test_a_mean_without_a_name_that_is_a_part_of_the_loss_is_not_the_loss(
    second: float, paired: dict[str, float]
) -> None:
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(2, {"loss": 0.5}, 1.0)])
    parts = [Reported(2, "mean", "Mean", value, metric=i) for i, value in enumerate((0.496, second))]
    assert logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=parts), [2], fit)[1][0] == paired
    right = [replace(each, value=value) for each, value in zip(parts, (0.5000001, second * 0), strict=True)]
    assert logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=right), [2], fit)[1][0] == {"loss": 0.5000001}


@pytest.mark.parametrize(
    ("wanted", "name", "paired"),
    [
        ("total_loss", "val_total_loss", "val_total_loss"),
        ("total_loss", "train_total_loss", "total_loss"),
        ("total_loss", "my_loss", ""),
        ("loss", "my_loss", "loss"),
        ("loss", "val_my_loss", "val_loss"),
    ],
)
def test_a_name_says_the_part_and_the_number(wanted: str, name: str, paired: str) -> None:
    epoch = FitEpoch(2, {wanted: 0.5, f"val_{wanted}": 0.1}, 1.0)
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[epoch])
    loop = Trace((), 1, np.zeros(0), "loop", reported=[Reported(2, name, "Mean", 3.0)])
    assert logs_by_epoch(loop, [2], fit)[1][0] == ({paired: 3.0} if paired else {})


@pytest.mark.parametrize(
    ("names", "of_loss", "paired"),
    [
        (("dice_loss", "ce_loss"), None, {}),  # parts of the loss, either of which may be near it
        (("dice_loss", "ce_loss", "train_loss"), None, {"loss": 3.0, "val_loss": 3.0}),
        (("dice_loss", "ce_loss"), 1, {"loss": 2.0, "val_loss": 2.0}),
        (("dice_loss", "training_loss_avg"), None, {"loss": 2.0, "val_loss": 2.0}),
    ],
)
def test_of_several_losses_one_that_is_named_for_a_part_is_not_the_whole(
    names: tuple[str, ...], of_loss: int | None, paired: dict[str, float]
) -> None:
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(2, {"loss": 0.5, "val_loss": 0.1}, 1.0)])
    read = []
    for i, name in enumerate(names, start=1):
        of_validation = f"validation_{name.replace('training_', '')}"
        read += [
            Reported(2, name, "Mean", float(i), metric=i, with_steps=True, of_loss=i - 1 == of_loss),
            Reported(2, of_validation, "Mean", float(i), metric=9 + i, with_steps=False),
        ]
    assert logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=read), [2], fit)[1][0] == paired


@pytest.mark.parametrize(
    ("kinds", "paired"),
    [
        ({"rmse": "RootMeanSquaredError", "miou": "MeanIoU"}, {"out_rmse": 0.3, "val_out_rmse": 0.2}),
        ({"rmse": "RootMeanSquaredError", "miou": "RootMeanSquaredError"}, {}),  # which of them it is, nothing says
        ({}, {}),
    ],
)
def test_a_metric_of_a_class_that_fit_has_once_is_paired_whatever_its_name(
    kinds: dict[str, str], paired: dict[str, float]
) -> None:
    epoch = FitEpoch(2, {"out_rmse": 0.5, "miou": 0.6, "val_out_rmse": 0.4, "val_miou": 0.5}, 1.0)
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[epoch], fit={"metrics": kinds})
    read = [
        Reported(2, f"{part}_accuracy", "RootMeanSquaredError", value, metric=i, with_steps=part == "train")
        for i, (part, value) in enumerate((("train", 0.3), ("test", 0.2)))
    ]
    assert logs_by_epoch(Trace((), 1, np.zeros(0), "loop", reported=read), [2], fit)[1][0] == paired


def test_means_without_names_in_two_loops_are_paired_by_their_values() -> None:
    def loop(*read: tuple[str, float, bool | None]) -> Trace:
        each = [
            Reported(2, name, "Mean", value, metric=i, with_steps=steps) for i, (name, value, steps) in enumerate(read)
        ]
        return Trace((), 1, np.zeros(0, step_dtype(1, 1)), "loop", reported=each)

    first = loop(("mean", 0.5, True), ("mean_1", 0.7, False), ("accuracy", 0.9, True))
    assert logs_by_epoch(first, [2], first)[1][0] == {"mean": 0.5, "mean_1": 0.7, "accuracy": 0.9}
    swapped = loop(("mean", 0.7, False), ("mean_1", 0.5, True), ("accuracy", 0.8, True))
    assert logs_by_epoch(swapped, [2], first)[1][0] == {"mean": 0.5, "mean_1": 0.7, "accuracy": 0.8}
    other = loop(("mean", 0.2, True), ("mean_1", 0.5, False), ("accuracy", 0.9, False))
    assert logs_by_epoch(other, [2], first)[1][0] == {}, "other values, or other times"


def shared(*values: float, kind: str = "SparseCategoricalAccuracy") -> list[Reported]:
    """What one metric gives after 2 and 4 steps, twice each: after training, and after validation."""
    return [Reported(steps, "accuracy", kind, value) for steps, value in zip((2, 2, 4, 4), values, strict=True)]


def test_a_metric_of_both_training_and_validation_is_paired_with_both() -> None:
    fit = measured("SparseCategoricalAccuracy", [None], [None, 4], by_fit=True)
    fit = replace(fit, epochs=[*fit.epochs, FitEpoch(4, {"accuracy": 0.6, "val_accuracy": 0.9}, 1.0)])
    loop = replace(fit, epochs=[], reported=shared(0.5, 0.6, 0.6, 0.72))

    def logs(trace: Trace) -> list[dict[str, float]]:
        return [numbers for numbers, _ in logs_by_epoch(trace, [2, 4], fit).values()]

    assert logs(loop) == [{"accuracy": 0.5, "val_accuracy": 0.6}, {"accuracy": 0.6, "val_accuracy": 0.72}]
    assert logs(replace(loop, reported=shared(0.5, 0.5, 0.6, 0.6))) == [{"accuracy": 0.5}, {"accuracy": 0.6}], (
        "read twice"
    )
    # What the script gives a name itself counts more, whatever number the metric has.
    given = [Reported(4, name, "", value, 1 + (i > 1)) for i, (name, value) in enumerate(
        [("accuracy", 0.5), ("val_accuracy", 0.7), ("accuracy", 0.6), ("val_accuracy", 0.8)])]  # fmt: skip
    told = [{"accuracy": 0.5, "val_accuracy": 0.7}, {"accuracy": 0.6, "val_accuracy": 0.8}]
    assert logs(replace(loop, reported=[*given, *shared(0.5, 0.6, 0.6, 0.72)])) == told


@pytest.mark.parametrize(("second", "causes"), [(0.72, ["metrics-not-reset"]), (0.75, [])])
def test_validation_that_goes_on_with_the_state_of_training(second: float, causes: list[str]) -> None:
    def of(trainer: str, *logs: tuple[float, float]) -> Any:
        epochs = enumerate(({"accuracy": a, "val_accuracy": b} for a, b in logs), 1)
        return SimpleNamespace(trainer=trainer, logs=dict(epochs))

    fit = of("fit", (0.5, 0.75), (0.6, 0.9))
    found = name_reporting(fit, of("loop", (0.5, 0.6), (0.6, second)))  # 60% of training, 40% of validation
    assert [each.id for each in found] == causes
    assert name_reporting(fit, fit) == []
    still = of("fit", (0.5, 0.75), (0.5, 0.75), (0.5, 0.75))  # which any other number would be a part of
    assert name_reporting(still, of("loop", (0.51, 0.74), (0.51, 0.74), (0.51, 0.74))) == []
    # One metric that is reset before validation only: from the second epoch on it has the validation before in it.
    epochs = (0.5, 0.75), (0.6, 0.9), (0.7, 0.95)
    going_on = of("loop", epochs[0], (0.6 * 0.6 + 0.4 * 0.75, 0.9), (0.6 * 0.7 + 0.4 * 0.9 + second - 0.72, 0.95))
    found = name_reporting(of("fit", *epochs), going_on)
    assert [(each.id, each.measurements["metrics"]) for each in found] == [(cause, ["accuracy"]) for cause in causes]
    going_on.logs[1]["accuracy"] += 0.01  # in the first epoch there is no validation before
    assert name_reporting(of("fit", *epochs), going_on) == []


def test_a_reference_whose_metrics_go_on_counting_is_named() -> None:
    right, running = record("ok", [1.0, 0.5, 0.3]), record("noreset", [1.0, 0.75, 0.6])
    (found,) = name_reporting(right, running)
    assert (found.id, found.side, found.measurements["metrics"]) == ("metrics-not-reset", "noreset", ["loss"])
    assert name_reporting(running, right) == [] == name_reporting(right, right)
    # What hardly changes is as near to the numbers of the other side as to their means, which proves nothing.
    flat = record("ok", [0.5, 0.50001, 0.50002]), record("other", [0.50001, 0.50002, 0.5])
    assert name_reporting(*flat) == [] == name_reporting(*reversed(flat))


def test_a_cause_has_the_numbers_of_the_run() -> None:
    (found,) = name_reporting(FIT, record("loop", [1.5, 2 / 3]), LOSSES)
    seen = {"kind": "reported-loss-averaged-over-batches", "metric": "loss", "epoch": 1, "value": 1.5, "batches": 3}
    right = pytest.approx(LOSSES[1].mean)
    assert found.measurements == {**seen, "last": 8, "examples": 136, "right": right, "penalty": 0}


def test_a_loss_that_two_mistakes_explain_alone_has_no_name() -> None:
    for last, causes in ((2.5, ["last-batch-only"]), (2.0, [])):
        batches = {1: Losses([1.0, 3.0, last], [64, 32, 8])}
        fit = record("fit", [batches[1].mean])
        found = name_reporting(fit, record("loop", [last]), batches)
        assert [each.id for each in found] == causes, "2 is the mean over batches as well"


def test_a_mean_over_batches_that_the_reference_reports_too_is_no_mistake() -> None:
    both = [1.5, 2 / 3]
    loop = record("loop", [1.5 + 2e-7, 2 / 3])
    assert [each.id for each in name_reporting(FIT, loop, LOSSES)] == ["loss-averaged-over-batches"]
    assert name_reporting(record("fit", both), loop, LOSSES) == [], "of a train_step of one's own, say"


@pytest.mark.parametrize("of_sums", [True, False])
def test_the_losses_of_the_steps_are_looked_at_where_numbers_differ_by_more_than_the_order_of_sums(
    of_sums: bool,
) -> None:
    loss = float(np.float32(8.5801))
    fit = judged_record("fit", 0, 1, 2, logs={1: {"loss": loss}})
    loop = judged_record("loop", 0, 1, 2, logs={1: {"loss": loss + 1e-6 if of_sums else loss + 1e-3}})
    pair: Any = SimpleNamespace(reference=fit, candidate=loop, exactly=compare_records(fit, loop))
    trace = measured("SparseCategoricalAccuracy", [None], [None, 4])
    model: Any = ModelPair(("fit", "loop"), (trace, trace), EpochEnds((2,)))
    with patch.multiple(scripts_numbers, seen_losses=(looked := Mock(return_value=[None])), tell=Mock()):
        assert scripts_numbers.explain_numbers(Mock(), pair, model) == {}
    assert looked.called is not of_sums


@pytest.mark.parametrize(("share", "causes"), [(1.0, ["loss-averaged-over-batches"]), (0.8, [])])
def test_a_mean_over_batches_is_named_where_sums_of_as_many_may_round_as_much(share: float, causes: list[str]) -> None:
    losses = Losses([*[1.0] * 199, 1.01], [*[64] * 199, 32])
    reported = float(np.float32(losses.mean + share * (np.mean(losses.values) - losses.mean)))
    fit = judged_record("fit", *range(201), logs={1: {"loss": losses.mean}})
    loop = judged_record("loop", *range(201), logs={1: {"loss": reported}})
    pair: Any = SimpleNamespace(reference=fit, candidate=loop, exactly=compare_records(fit, loop))
    assert not beyond_rounding(fit, loop)
    traces = [Trace((), 1, np.zeros(1, step_dtype(1, 1)), trained_by=way) for way in ("fit", "loop")]
    model: Any = ModelPair(("fit", "loop"), (traces[0], traces[1]), EpochEnds((200,)))
    known: dict[str, Any] = {"losses_by_epoch": lambda seen, ends: {1: losses}, "tell": Mock()}
    with patch.multiple(scripts_numbers, seen_losses=Mock(return_value=[CloseUp({})]), **known):
        found = scripts_numbers.explain_numbers(Mock(), pair, model)
    assert [each.id for comparison in found.values() for each in comparison.causes] == causes


@pytest.mark.parametrize("key", ["loss", "val_loss"])
@pytest.mark.parametrize(("twin", "reported", "causes"), [
    (1e-6, 1.5, ["loss-averaged-over-batches"]),
    (0.1, 1.5, ["loss-averaged-over-batches"]),  # the twins report losses as far apart
    (0.1, LOSSES[1].mean + 0.05, []),
    (1e-6, LOSSES[1].mean, []),
])  # fmt: skip
def test_where_weights_are_alike_a_reported_loss_is_held_against_the_losses_that_were_seen_of_its_side(
    tmp_path: Path, twin: float, reported: float, causes: list[str], key: str
) -> None:
    loss = LOSSES[1].mean
    fit = judged_record("fit", 0, 1, 2, logs={1: {key: loss}})
    loop = judged_record("loop", 0, 1, 2 + 1e-9, logs={1: {key: reported}})
    noise = judged_record("twin-1", 0, 1, 2 + 1e-9, logs={1: {key: loss + twin}})
    pair: Any = SimpleNamespace(reference=fit, candidate=loop, exactly=compare_records(fit, loop), twins="loop")
    rows = np.zeros(1, step_dtype(1, 1))
    traces = [Trace((), 1, rows, trained_by=way) for way in ("fit", "loop")]
    model: Any = ModelPair(("fit", "loop"), (traces[0], traces[1]), EpochEnds((3,)))
    session: Any = SimpleNamespace(folder=tmp_path, console=Mock())
    seen_of = {"losses_by_epoch": {}, "validation_by_epoch": {}}
    seen_of["losses_by_epoch" if key == "loss" else "validation_by_epoch"] = {1: LOSSES[1]}
    known: dict[str, Any] = {name: Mock(return_value=each) for name, each in seen_of.items()}
    known["read_records"] = Mock(return_value=[noise])
    with patch.multiple(
        scripts_numbers, seen_losses=(looked := Mock(return_value=[None, CloseUp({})])), tell=Mock(), **known
    ):
        found = scripts_numbers.explain_numbers(session, pair, model)
    assert [each.id for comparison in found.values() for each in comparison.causes] == causes
    assert looked.called == (reported != loss)
    assert all(comparison.reporting.verdict == "different" for comparison in found.values())
    assert all(each.metrics == [key] for comparison in found.values() for each in comparison.causes)


def guessing(*batches: tuple[list[Any], list[Any]]) -> CloseUp:
    """What was seen of steps with some labels and predictions."""
    info = {"true": 1, "predicted": 1}
    steps = {
        number: [*step(1.0, len(true)), Event("targets", 0, info, [np.array(true), np.array(predicted)])]
        for number, (true, predicted) in enumerate(batches, 1)
    }
    return CloseUp(steps)


CLASSES = ([0, 1, 1, 0], np.eye(2)[[0, 1, 0, 1]].tolist()), ([1], np.eye(2)[[1]].tolist())
"""Two of four predictions are right, and one of one."""


@pytest.mark.parametrize(
    ("batches", "reported", "causes"),
    [
        (CLASSES, 0.75, ["loss-averaged-over-batches"]),
        (CLASSES, 0.6, []),
        (CLASSES, 1.0, ["last-batch-only"]),
        (CLASSES, 0.7, []),
        (([[[1.0, 0.0]] * 4, np.eye(2)[[0, 0, 1, 1]].tolist()], CLASSES[1]), 0.75, ["loss-averaged-over-batches"]),
        (([[[1], [0]], [[0.4], [-1.0]]], [[[1]], [[2.0]]]), 0.75, ["loss-averaged-over-batches"]),  # probabilities
        (([[[1], [0]], [[0.4], [-1.0]]], [[[0]], [[2.0]]]), 0.5, ["loss-averaged-over-batches"]),  # logits
        (([[[1, 0]], [[0.4, -1.0]]], [[[1, 0]], [[2.0, 1.0]]]), 0.9, []),
    ],
)
def test_a_mean_of_the_accuracies_of_batches_is_named(batches: Any, reported: float, causes: list[str]) -> None:
    if np.shape(batches[0][0]) == (4, 2):
        batches = (batches[0][0], batches[0][1]), ([[0.0, 1.0]], batches[1][1])
    loop = judged_record("loop", 0, 1, 2, logs={1: {"accuracy": reported, "val_accuracy": 0.1}})
    found = name_own_accuracies(loop, ["accuracy", "val_accuracy"], guessing(*batches), [2], SCRIPT_ALONE)
    assert [each.id for each in found] == causes
    assert all(each.metrics == ["accuracy"] for each in found)


def test_metrics_that_have_counted_other_numbers_of_values_are_told_apart() -> None:
    counts = {"accuracy": [840.0, 1680.0], "val_accuracy": [160.0, 320.0], "mae": [840.0, 1680.0]}
    (found,) = name_not_reset(counts, record("loop", []), SCRIPT_ALONE)
    told = [(each["metrics"], each["counted"]) for each in found.measurements["parts"]]
    assert told == [(["accuracy", "mae"], 1680.0), (["val_accuracy"], 320.0)]
    assert name_not_reset({}, record("loop", []), SCRIPT_ALONE) == []


def test_where_weights_are_alike_means_over_all_epochs_are_named_from_the_numbers_alone() -> None:
    fit = judged_record("fit", 0, 1, 2, logs={1: {"accuracy": 0.5}, 2: {"accuracy": 0.8}})
    loop = judged_record("loop", 0, 1, 2 + 1e-9, logs={1: {"accuracy": 0.5}, 2: {"accuracy": 0.65}})
    pair: Any = SimpleNamespace(reference=fit, candidate=loop, exactly=compare_records(fit, loop), twins="loop")
    traces = [Trace((), 1, np.zeros(1, step_dtype(1, 1)), trained_by=way) for way in ("fit", "loop")]
    model: Any = ModelPair(("fit", "loop"), (traces[0], traces[1]), EpochEnds((1, 2)))
    with patch.multiple(scripts_numbers, read_records=Mock(return_value=[])):
        (found,) = scripts_numbers.explain_numbers(MagicMock(), pair, model).values()
    assert [each.id for each in found.causes] == ["metrics-not-reset"]


@pytest.mark.parametrize(
    ("epochs", "lines", "causes"),
    [
        (1, (None, 7), ["validation-in-training-mode"]),  # all weights are equal
        (2, (None, 7), ["validation-in-training-mode"]),  # those of the first epoch are
        (1, (7, 7), []),  # so does the reference
        (1, (None, None), []),
    ],
)
def test_validation_in_training_mode_is_named_where_it_gives_other_numbers_of_equal_weights(
    epochs: int, lines: tuple[int | None, int | None], causes: list[str]
) -> None:
    fit = judged_record("fit", 0, 1, 2, logs={1: {"val_loss": 0.5}})
    loop = judged_record("loop", 0, 1, 2, logs={1: {"val_loss": 0.6}})
    exactly = compare_records(fit, loop)
    if epochs == 2:
        later = replace(exactly.training, verdict="different", first_difference=Difference(2, 1))
        exactly = replace(exactly, training=later)
    pair: Any = SimpleNamespace(reference=fit, candidate=loop, exactly=exactly, twins="loop")
    text = "predictions = model(x, training=True)"
    fit_trace, loop_trace = (
        Trace((), 1, np.zeros(1, step_dtype(1, 1)), untaped=None if line is None else ("a.py", line, text))
        for line in lines
    )
    model: Any = ModelPair(("fit", "loop"), (fit_trace, loop_trace), EpochEnds((3,)))
    with patch.multiple(scripts_numbers, seen_losses=Mock(return_value=[None]), tell=Mock()):
        found = scripts_numbers.explain_numbers(Mock(), pair, model)
    named = [each for comparison in found.values() for each in comparison.causes]
    assert [each.id for each in named] == causes
    assert all(each.source == Source("a.py", 7, text, text.replace("True", "False")) for each in named)


def test_validation_from_other_weights_says_nothing_of_its_mode() -> None:
    fit = judged_record("fit", 0, 1, 2, logs={1: {"val_loss": 0.5}})
    loop = judged_record("loop", 0, 1, 2 + 1e-9, logs={1: {"val_loss": 0.6}})
    pair: Any = SimpleNamespace(reference=fit, candidate=loop, exactly=compare_records(fit, loop), twins="loop")
    rows = np.zeros(1, step_dtype(1, 1))
    traces = Trace((), 1, rows, trained_by="fit"), Trace((), 1, rows, untaped=("a.py", 7, "model(x, training=True)"))
    model = ModelPair(("fit", "loop"), traces, EpochEnds((3,)))
    with patch.multiple(scripts_numbers, seen_losses=Mock(return_value=[None, None]), tell=Mock()):
        assert scripts_numbers.explain_numbers(MagicMock(), pair, model) == {}


def test_equal_batches_leave_nothing_to_name() -> None:
    even = {1: Losses([2.0, 1.0], [64, 64])}
    assert name_reporting(FIT, record("loop", [1.5]), even) == []


def step(loss: float, examples: int, first: int = 0) -> list[Event]:
    return [
        Event("inputs", 0, {"model": "m"}, [], tuple(range(first, first + examples))),
        Event("loss", 0, {"targets": 1, "penalties": 0}, [np.float32(loss)]),
    ]


def test_losses_are_read_from_the_steps_of_each_epoch() -> None:
    seen = CloseUp({1: step(2.0, 64), 2: step(1.0, 8), 3: step(0.5, 64), 4: [*step(0.25, 4), *step(0.25, 4, first=4)]})
    losses = losses_by_epoch(seen, [2, 4, 6])
    assert losses == {1: Losses([2.0, 1.0], [64, 8]), 2: Losses([0.5, 0.5], [64, 8])}, "the third was not seen whole"


def test_labels_count_the_examples_of_inputs_that_are_not_all_of_the_batch() -> None:
    """As of a graph's matrix, which is one for all examples."""
    inputs, loss = step(2.0, 8)
    targets = Event("targets", 0, {"true": 1}, [], tuple(range(8)))
    seen = CloseUp({1: [replace(inputs, rows=()), targets, loss]})
    assert losses_by_epoch(seen, [1]) == {1: Losses([2.0], [8])}


BATCHES = {1: [(0.75, 64), (0.5, 64), (1.25, 8)], 2: [(0.5, 64), (0.25, 64), (0.75, 8)]}


def validation(batches: list[tuple[float, int]], penalty: float) -> Losses:
    """Batches of validation with these losses, apart from the model's own."""
    return Losses([value + penalty for value, _ in batches], [count for _, count in batches], [penalty] * len(batches))


SEEN = {epoch: validation(batches, 0.125 / epoch) for epoch, batches in BATCHES.items()}


def val_losses(*, regularized: bool = True, averaged: bool = False, reset: bool = True) -> list[float]:
    """What a loop reports after each epoch."""
    values, kept = [], []
    for epoch, batches in BATCHES.items():
        penalty = SEEN[epoch].penalties[0] if regularized else 0
        batch = [(value + penalty, 1 if averaged else count) for value, count in batches]
        kept = batch if reset else [*kept, *batch]
        values.append(sum(value * count for value, count in kept) / sum(count for _, count in kept))
    return values


def of_validation(trainer: str, losses: list[float]) -> Any:
    return SimpleNamespace(trainer=trainer, logs={epoch: {"val_loss": loss} for epoch, loss in enumerate(losses, 1)})


@pytest.mark.parametrize("regularized", [True, False])
@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("reset", [True, False])
def test_every_mistake_of_the_validation_loss_is_named(regularized: bool, averaged: bool, reset: bool) -> None:
    loop = of_validation("loop", val_losses(regularized=regularized, averaged=averaged, reset=reset))
    found = name_reporting(of_validation("fit", val_losses()), loop, {}, SEEN)
    expected = {
        "validation-loss-without-regularization": not regularized,
        "loss-averaged-over-batches": averaged,
        "metrics-not-reset": not reset,
    }
    assert {each.id for each in found} == {cause for cause, made in expected.items() if made}


def on_replicas(
    parts: list[list[tuple[float, int]]],
    penalty: float = 0.125,
    *,
    summed: tuple[float, ...] = (),
    divided: bool = True,
) -> dict[int, Losses]:
    """What is seen of a validation on as many replicas as a batch has parts, of one epoch with one step."""
    events = [Event("loss", replica, {"targets": 1}, []) for replica in range(len(parts[0]))]
    untaped = [part for batch in parts for part in batch]
    lines = {"validation": ("loop.py", 3, "loss = loss_fn(y, predictions)")} if divided else {}
    seen = CloseUp({1: events}, untaped={1: untaped}, penalties={1: penalty}, summed=list(summed), divided=lines)
    return validation_by_epoch(seen, [1])


PARTS = [[(0.5, 8), (0.75, 8)], [(1.0, 5), (0.25, 4)]]
DATA = float(np.average([0.5, 0.75, 1.0, 0.25], weights=[8, 8, 5, 4]))


@pytest.mark.parametrize(
    ("reported", "causes"),
    [
        (DATA + 0.125, []),
        ((DATA + 0.125) / 2, ["loss-not-reduced"]),
        (DATA / 2 + 0.125, ["loss-not-reduced"]),
        (DATA / 2, ["loss-not-reduced", "validation-loss-without-regularization"]),
        (0.625 / 2 + 0.125, ["loss-not-reduced", "loss-averaged-over-batches"]),
        (2 * DATA + 0.25, []),
        ((DATA + 0.125) / 3, []),
    ],
)
def test_a_validation_loss_that_keras_divides_by_the_replicas_is_named(reported: float, causes: list[str]) -> None:
    fit, loop = of_validation("fit", [DATA + 0.125]), of_validation("loop", [reported])
    found = name_reporting(fit, loop, {}, on_replicas(PARTS))
    assert [each.id for each in found] == causes
    assert [each.divided for each in found if each.id == "loss-not-reduced"] == ["validation"] * bool(causes)


def test_the_evidence_of_a_divided_loss_counts_batches_and_tells_the_examples_loss_from_the_layers() -> None:
    fit, loop = of_validation("fit", [DATA + 0.125]), of_validation("loop", [0.625 / 2 + 0.125])
    share, averaged = (each.measurements for each in name_reporting(fit, loop, {}, on_replicas(PARTS)))
    assert (share["replicas"], share["alone"]) == (2, True)
    assert (averaged["batches"], averaged["last"]) == (2, 9)


@pytest.mark.parametrize(
    ("penalty", "summed", "divided", "named"),
    [
        (0.0, (), True, True),
        (0.0, (), False, False),  # the half of something else, as when batches are counted twice
        (0.0, (0.625,), True, False),  # of what is summed over replicas, too
        (0.0, (7.0,), True, True),  # such as the right predictions
        (0.125, (0.625,), True, False),
        (0.125, (0.625 + 0.125,), True, False),
        (0.125, (0.625 + 0.25,), True, False),
    ],
)
def test_half_of_a_validation_loss_is_not_called_a_share_where_shares_are_summed_or_nothing_is_divided(
    penalty: float, summed: tuple[float, ...], divided: bool, named: bool
) -> None:
    seen = on_replicas(PARTS, penalty, summed=summed, divided=divided)
    fit, loop = of_validation("fit", [DATA + penalty]), of_validation("loop", [(DATA + penalty) / 2])
    assert [each.id for each in name_reporting(fit, loop, {}, seen)] == ["loss-not-reduced"] * named


def test_no_share_is_named_where_the_batches_do_not_give_fits_value() -> None:
    fit, loop = of_validation("fit", [DATA + 0.25]), of_validation("loop", [(DATA + 0.25) / 2])
    assert name_reporting(fit, loop, {}, on_replicas(PARTS)) == []


@pytest.mark.parametrize(("replicas", "summed", "causes"), [(2, [], ["loss-not-reduced"]), (2, [2.0], []), (1, [], [])])
@pytest.mark.parametrize("divided", [{}, {"train": None}])
def test_a_training_loss_that_is_the_mean_of_shares_is_named(
    replicas: int, summed: list[float], causes: list[str], divided: dict[str, Any]
) -> None:
    """Each replica takes the gradient of its share, and what is reported is the mean of the shares."""

    def shares(loss: float) -> list[Event]:
        return [replace(event, replica=i) for i in range(replicas) for event in step(loss / replicas, 4)]

    losses = losses_by_epoch(CloseUp({1: shares(2.0), 2: shares(1.0)}, summed=summed, divided=divided), [2])
    found = name_reporting(record("fit", [1.5]), record("loop", [0.75]), losses)
    assert [each.id for each in found] == causes
    assert [each.divided for each in found] == ["train" if divided else ""] * len(causes)


def test_what_keras_divides_in_validation_is_no_matter_of_a_training_loss() -> None:
    used = Used.of({DIVIDED: True})
    share = {"metric": "loss", "epoch": 1, "value": 1.0, "right": 2.0, "examples": 8.0, "replicas": 2}
    remedies = [
        CATALOGUE["loss-not-reduced"]
        .found("loop", Measurement.of("reported-loss-not-reduced", **seen), used=used)
        .remedy
        for seen in (share, {**share, "metric": "val_loss"})
    ]
    assert [DIVIDED in used.of_numbers(names).words for names in (["loss"], ["val_loss"])] == [False, True]
    assert "num_replicas_in_sync" in remedies[1] and remedies[0] != remedies[1]


def test_a_training_loss_whose_whole_is_not_what_fit_reports_is_no_share() -> None:
    whole = [replace(event, replica=i) for i in range(2) for event in step(1.5, 4)]  # not divided, and reported so
    losses = losses_by_epoch(CloseUp({1: whole}), [1])
    assert losses[1].shares == 2 and name_reporting(record("fit", [2.0]), record("loop", [1.5]), losses) == []


def test_a_validation_loss_of_the_last_batch_alone_is_named() -> None:
    last = [batches[-1][0] + SEEN[epoch].penalties[0] for epoch, batches in BATCHES.items()]
    (found,) = name_reporting(of_validation("fit", val_losses()), of_validation("loop", last), {}, SEEN)
    assert (found.id, found.measurements["kind"]) == ("last-batch-only", "reported-last-batch-only")


def test_causes_of_the_validation_loss_have_both_numbers() -> None:
    loop = of_validation("loop", val_losses(regularized=False, averaged=True))
    lacking, averaged = name_reporting(of_validation("fit", val_losses()), loop, {}, SEEN)
    shown = {"metric": "val_loss", "epoch": 1, "value": 0.8333333, "right": 0.7867647, "other": "fit"}
    for cause, more in ((lacking, {"penalty": 0.125}), (averaged, {"batches": 3, "last": 8})):
        expected = {"kind": f"reported-{cause.id}", **shown, **more}
        assert {name: cause.measurements[name] for name in expected} == pytest.approx(expected)


def test_a_missing_penalty_is_named_where_no_batch_was_seen() -> None:
    unseen = {epoch: Losses([], [], each.penalties[:1]) for epoch, each in SEEN.items()}
    fit = of_validation("fit", val_losses())
    (found,) = name_reporting(fit, of_validation("loop", val_losses(regularized=False)), {}, unseen)
    assert found.id == "validation-loss-without-regularization"
    assert name_reporting(fit, of_validation("loop", val_losses(averaged=True)), {}, unseen) == []


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_validation_loss_that_only_comes_close_to_a_mistake_has_no_name(factor: float) -> None:
    fit, right = of_validation("fit", val_losses()), val_losses()
    for wrong in (
        val_losses(regularized=False),
        val_losses(averaged=True),
        val_losses(regularized=False, averaged=True),
    ):
        reported = [b + factor * (a - b) for a, b in zip(wrong, right, strict=True)]
        assert name_reporting(fit, of_validation("loop", reported), {}, SEEN) == []


@pytest.mark.parametrize(("gap", "causes"), [(3e-5, ["validation-loss-without-regularization"]), (2.5e-5, [])])
def test_a_small_penalty_must_explain_the_difference_too(gap: float, causes: list[str]) -> None:
    small = {1: validation([(1.0, 64)], 3e-5)}
    loop = of_validation("loop", [1 + 3e-5 - gap])
    assert [each.id for each in name_reporting(of_validation("fit", [1 + 3e-5]), loop, {}, small)] == causes


def test_no_mistake_is_named_if_the_batches_do_not_give_the_references_value() -> None:
    other = {epoch: validation([(a + 1, n) for a, n in batches], 0.0) for epoch, batches in BATCHES.items()}
    loop = of_validation("loop", [float(np.mean(each.values)) for each in other.values()])
    assert name_reporting(of_validation("fit", val_losses()), loop, {}, other) == []


def test_the_losses_of_validation_are_those_seen_after_the_last_step_of_an_epoch() -> None:
    seen = CloseUp({}, untaped={2: [(0.5, 64), (1.0, 8)], 3: [(9.0, 1)]}, penalties={1: 0.4, 2: 0.3, 4: 0.2})
    found = validation_by_epoch(seen, [2, 4, 6])
    assert found == {1: Losses([0.8, 1.3], [64, 8], [0.3, 0.3]), 2: Losses([], [], [0.2])}
