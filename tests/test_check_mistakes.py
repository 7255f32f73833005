"""Mistakes of loops that people write: what the short check says of each, and what it must never say."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tasks
from against_fit import checker_of
from plain_loop import Loop

pytestmark = pytest.mark.filterwarnings("ignore:.*from_logits=True.*Was this intended:UserWarning")


def labelled(**options):
    """Classes as labels of shape [n, 1], and a layer with L2."""

    def load():
        return tuple((x, y[:, np.newaxis]) for x, y in tasks.blobs(200, 100))

    return tasks.experiment(load_data=load, regularize=True, **options)


def dropped(**options):
    """A layer with L2, and dropout."""
    return tasks.experiment(regularize=True, dropout=True, **options)


def taught(**options):
    """A student with batch normalization and dropout, a frozen teacher, and a metric that is a running mean."""
    import tensorflow as tf

    layers = tf.keras.layers

    class RunningMean(tf.keras.metrics.Metric):
        def __init__(self, name):
            super().__init__(name=name)
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y, predictions, sample_weight=None):
            self.value.assign(0.9 * self.value + 0.1 * tf.reduce_mean(tf.math.reduce_std(predictions, axis=0)))

        def result(self):
            return 1.0 * self.value

    def build_model():
        x = tf.keras.Input((8,))
        dense = layers.Dense(8, name="student")
        student = tf.keras.Sequential([dense, layers.BatchNormalization(), layers.Dropout(0.3)])
        teacher = tf.keras.Sequential([layers.Dense(8)], name="teacher")
        teacher.trainable = False
        return tf.keras.Model(x, layers.Dense(3)(student(x) + 0.1 * teacher(x)))

    metrics = lambda: [RunningMean(name="spread")]  # noqa: E731
    return tasks.experiment(train=200, validation=100, build_model=build_model, build_metrics=metrics, **options)


def twins(**options):
    """One encoder for an input and for its opposite."""
    import tensorflow as tf

    def build_model():
        x = tf.keras.Input((8,))
        encoder = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu")], name="encoder")
        both = tf.keras.layers.Concatenate()([encoder(x), encoder(-x)])
        return tf.keras.Model(x, tf.keras.layers.Dense(3)(both))

    return tasks.experiment(train=200, validation=100, build_model=build_model, **options)


def squashed(**options):
    """A softmax of TensorFlow's at the end, and a loss that takes logits: in its graph, fit finds the logits."""
    import tensorflow as tf

    def build_model():
        dense = tf.keras.layers.Dense
        return tf.keras.Sequential([dense(16, activation="relu"), dense(3, activation=tf.nn.softmax)])

    return tasks.experiment(train=200, validation=100, build_model=build_model, **options)


@functools.cache
def checker(experiment):
    return checker_of(experiment(), batch_size=32)


def checked(experiment, loop):
    same = checker(experiment)
    return same.check(loop)


class Rounded(Loop):
    """Correct, but not bit for bit."""

    def apply(self, gradients, variables):
        super().apply([gradient * 41.0 * (1.0 / 41.0) for gradient in gradients], variables)


# State


class MovesTeacher(Loop):
    def after_step(self):
        layers = {layer.name: layer for layer in self.model._flatten_layers()}
        for old, new in zip(layers["teacher"].weights, layers["student"].weights, strict=True):
            old.assign(0.9 * old + 0.1 * new)


class MovesTeacherInside(Loop):
    def after_update(self, x, y):
        MovesTeacher.after_step(self)


class SecondPass(Loop):
    def after_update(self, x, y):
        self.model(x, training=True)


@pytest.mark.parametrize(
    ("loop", "variable"),
    [
        (MovesTeacher, "teacher/"),
        (MovesTeacherInside, "teacher/"),
        (SecondPass, "batch_normalization/moving_mean"),
    ],
)
def test_state_that_a_step_changes_besides_is_a_difference_although_each_step_is_right(tensorflow, loop, variable):
    report = checker(taught).check(loop())
    assert report.comparison.training.verdict == "different", report
    assert report.comparison.training.max_weight_gap > 1e-3
    assert report.findings == (), report
    (seen,) = report.unexplained
    assert (seen.kind, seen.quantities["step"], seen.quantities["epoch"]) == ("changed-after-update", 1, 1)
    assert any(variable in each for each in seen.quantities["variables"]), report


def test_a_right_loop_that_only_rounds_differently_is_within_the_noise_beside_its_verdict(tensorflow):
    training = checker(taught).check(Rounded()).comparison.training
    assert training.verdict == "alike"
    assert 0 < training.max_weight_gap < 1e-3
    assert training.noise.explains and training.noise.twins == 0


class ClipsInOneOrder(Loop):
    def batches(self, epoch):
        return super().batches(1)

    def apply(self, gradients, variables):
        import tensorflow as tf

        super().apply(tf.clip_by_global_norm(gradients, 0.05)[0], variables)


def test_another_mistake_in_the_gradients_does_not_hide_that_batches_come_in_one_order(tensorflow):
    report = checker(squashed).check(ClipsInOneOrder())
    assert {finding.id for finding in report.findings} == {"clipping-differs", "not-reshuffled"}, report


class NearlyTheSame(Rounded):
    """Beyond the rounding of a sum, and nearer than a mistake is."""

    def logs(self, logs):
        return logs | {"spread": logs["spread"] * 1.00003}


def test_numbers_that_no_side_can_explain_are_not_held_against_a_right_loop(tensorflow):
    report = checker(taught).check(NearlyTheSame())
    assert report.comparison.reporting.metrics["spread"].max_gap > 0
    assert any("spread of fit cannot be explained either" in each.reason for each in report.not_applicable), report
    assert report.comparison.reporting.verdict == "alike", report
    assert report.unexplained == (), report


def test_what_nobody_thought_of_between_right_steps_is_not_alike(tensorflow, monkeypatch):
    from compare.check import judge
    from compare.check.case import Case

    monkeypatch.setattr(Case, "_at_end", lambda case, step: [
        [*after[: case.replay.trainable], *state[case.replay.trainable :]]
        for after, state in zip(step.after, step.state, strict=True)
    ])  # fmt: skip
    monkeypatch.setattr(judge, "_judge_state", lambda *_: None)
    report = checker(taught).check(MovesTeacher())
    assert report.comparison.training.verdict == "different", report
    assert "apart" in [each.kind for each in report.unexplained], report


# The right name


class StopsPenalty(Loop):
    def penalty(self):
        import tensorflow as tf

        return tf.stop_gradient(super().penalty())


def test_a_term_whose_gradient_is_stopped_is_not_missing(tensorflow):
    report = checked(labelled, StopsPenalty())
    assert report.comparison.training.first_difference.stage == "gradients"
    assert report.findings == (), report
    agrees = {each.quantities.get("as_with"): each.quantities.get("agrees") for each in report.unexplained}
    assert agrees["regularization-missing"] == ("loss",), report


class AppliesTwice(Loop):
    def apply(self, gradients, variables):
        super().apply(gradients, variables)
        super().apply(gradients, variables)


def test_an_optimizer_that_is_applied_twice_in_a_step_is_named_at_the_update(tensorflow):
    report = checked(labelled, AppliesTwice())
    (finding,) = report.findings
    assert finding.id == "optimizer-differs"
    assert finding.measurements["kind"] == "applied-again" and finding.measurements["times"] == 2
    first = report.comparison.training.first_difference
    assert (first.epoch, first.step, first.stage) == (1, 1, "update"), report


class TwoEncoders(Loop):
    def begin(self):
        import tensorflow as tf

        self.shared = self.model.get_layer("encoder")
        self.copy = tf.keras.models.clone_model(self.shared)
        self.copy.set_weights(self.shared.get_weights())

    def call(self, x):
        import tensorflow as tf

        return self.model.layers[-1](tf.concat([self.shared(x), self.copy(-x)], -1))


class TwoTrainedEncoders(TwoEncoders):
    def begin(self):
        super().begin()
        self.optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
        self.optimizer.build(self.model.trainable_variables + self.copy.trainable_variables)

    def step(self, x, y):
        import tensorflow as tf

        variables = self.model.trainable_variables + self.copy.trainable_variables
        with tf.GradientTape() as tape:
            value = self.value(y, self.call(x))
        self.apply(tape.gradient(value, variables), variables)


@pytest.mark.parametrize("loop", [TwoEncoders, TwoTrainedEncoders])
def test_two_copies_of_a_shared_encoder_are_weights_that_are_not_shared(tensorflow, loop):
    report = checker(twins).check(loop())
    assert [finding.id for finding in report.training] == ["weights-not-shared"], report
    assert "gradient-off" not in [each.kind for each in report.unexplained], report


class OwnModel(Loop):
    def begin(self):
        import tensorflow as tf

        super().begin()
        self.model = tf.keras.models.clone_model(self.model)
        self.optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
        self.optimizer.build(self.model.trainable_variables)


def test_a_loop_with_a_model_of_its_own_has_this_cause_alone(tensorflow):
    (cause,) = checker(labelled).check(OwnModel()).training
    assert (cause.id, cause.measurements["count"]) == ("weights-not-shared", 4)


class EagerSquashed(Loop):
    eager = True


def test_probabilities_taken_as_logits_where_fit_finds_the_logits_are_named(tensorflow):
    report = checker(squashed).check(EagerSquashed())
    assert [finding.id for finding in report.findings] == ["logits-mismatch"], report
    assert report.findings[0].measurements["kind"] == "probabilities-as-logits"
    assert checker(squashed).check(Loop()).verdict in ("identical", "alike")


class AnotherFactorInEachStep(Loop):
    eager = True
    made = 0

    def apply(self, gradients, variables):
        self.made += 1
        super().apply([gradient / (1 + self.made) for gradient in gradients], variables)


def test_one_factor_for_all_variables_is_measured_once(tensorflow):
    report = checker(labelled).check(AnotherFactorInEachStep())
    assert report.findings == (), report
    (seen,) = (each for each in report.unexplained if each.kind == "gradient-factors")
    assert seen.quantities["factors"] == pytest.approx([1 / (1 + i) for i in range(1, 7)])


# Reported numbers


class BroadcastAccuracy(Loop):
    def begin(self):
        import tensorflow as tf

        class Accuracy(tf.keras.metrics.Mean):
            def update_state(self, y, predictions):
                classes = tf.argmax(predictions, -1, output_type=tf.int32)
                super().update_state(tf.cast(classes == y, tf.float32))

        self.metrics = [Accuracy(name="accuracy")]


class NeverResetMeanOfBatches(Loop):
    eager = True

    def begin(self):
        self.values = []

    def record(self, x, y, predictions, value):
        super().record(x, y, predictions, value)
        self.values.append(float(value))

    def logs(self, logs):
        return logs | {"loss": float(np.mean(self.values))}


class LastBatchWithoutPenalty(Loop):
    def record(self, x, y, predictions, value):
        self.mean.reset_state()
        super().record(x, y, predictions, value - self.penalty())


@pytest.mark.parametrize(
    ("loop", "causes"),
    [
        (NeverResetMeanOfBatches, {"metrics-not-reset", "loss-averaged-over-batches"}),
        (LastBatchWithoutPenalty, {"last-batch-only", "loss-without-regularization"}),
    ],
)
def test_what_explains_reported_numbers_is_named_two_causes_together_where_no_single_one_does(tensorflow, loop, causes):
    report = checker(labelled).check(loop())
    assert {finding.id for finding in report.findings} == causes, report
    assert report.unexplained == (), report
    assert "strategy" not in "".join(finding.remedy for finding in report.findings)


def test_what_a_reported_number_is_computed_from_is_seen_where_no_cause_has_a_name(tensorflow):
    report = checker(labelled).check(BroadcastAccuracy())
    assert report.findings == (), report
    assert report.comparison.reporting.verdict == "different"
    seen = [(each.kind, each.quantities["metric"]) for each in report.unexplained]
    assert ("metric-broadcast", "accuracy") in seen and "metric-off" not in dict(seen), report


class SummedWithoutPenalty(Loop):
    def step(self, x, y):
        with_penalty, self.penalty = self.penalty, lambda: 0.0
        super().step(x, y)
        self.penalty = with_penalty

    def value(self, y, predictions):
        import tensorflow as tf

        return tf.reduce_sum(self.loss.call(y, predictions))


def test_two_causes_of_the_gradients_are_named_together_with_remedies_for_one_replica(tensorflow):
    report = checker(labelled).check(SummedWithoutPenalty())
    assert {finding.id for finding in report.training} == {"loss-summed", "regularization-missing"}, report
    assert "strategy" not in "".join(finding.remedy for finding in report.findings)


def limited(**options):
    """Dropout, and an optimizer that clips."""
    import tensorflow as tf

    return tasks.experiment(
        dropout=True, optimizer=lambda: tf.keras.optimizers.SGD(0.1, global_clipnorm=0.5), **options
    )


class ClipsItself(Loop):
    def begin(self):
        import tensorflow as tf

        self.optimizer = tf.keras.optimizers.SGD(0.1)

    def call(self, x):
        return self.model(x, training=False)

    def apply(self, gradients, variables):
        import tensorflow as tf

        super().apply(tf.clip_by_global_norm(gradients, 0.5)[0], variables)


def test_clipping_in_the_loop_as_the_optimizer_would_is_no_mistake_beside_another_one(tensorflow):
    (found,) = checker(limited).check(ClipsItself()).findings
    assert found.id == "training-flag-missing"


class InferenceWithoutPenalty(Loop):
    def call(self, x):
        return self.model(x, training=False)

    def penalty(self):
        return 0.0


def test_the_cause_of_the_stage_that_differs_first_comes_first(tensorflow):
    report = checker(dropped).check(InferenceWithoutPenalty())
    assert report.comparison.training.first_difference.stage == "predictions"
    assert [each.id for each in report.training] == ["training-flag-missing", "regularization-missing"], report


# Remedies


class NeverApplies(Loop):
    def apply(self, gradients, variables):
        """Forgotten."""


class LossOfZero(Loop):
    def value(self, y, predictions):
        return 0.0 * super().value(y, predictions)

    def penalty(self):
        return 0.0


class OtherRate(Loop):
    def begin(self):
        self.optimizer.learning_rate = 0.01


class OnBatches(Loop):
    def train(self, run):
        model, optimizer, loss, metrics = run.build()
        model.compile(optimizer, loss, metrics=metrics)
        for epoch in run.epochs:
            losses = []
            for x, y in run.train_dataset(epoch):
                losses.append(model.train_on_batch(x, y, return_dict=True)["loss"])
                model.reset_metrics()
                run.end_step()
            run.end_epoch(epoch, {"loss": float(np.mean(losses))})


class FirstEpochAgain(Loop):
    def batches(self, epoch):
        return self.run.train_dataset(1)


@pytest.mark.parametrize(
    ("loop", "cause", "measured", "never"),
    [
        (NeverApplies, "variables-not-trained", {"kind": "weights-never-change", "zero": None}, "strategy"),
        (LossOfZero, "variables-not-trained", {"kind": "weights-never-change", "zero": "losses"}, "strategy"),
        (OtherRate, "optimizer-differs", {"kind": "learning-rate", "learning_rate": pytest.approx(0.01)}, "use_ema"),
        (FirstEpochAgain, "not-reshuffled", {}, "strategy"),
        (OnBatches, "loss-averaged-over-batches", {"kind": "mean-over-batches"}, "loss_metric"),
    ],
)
def test_remedies_use_what_the_loop_has(tensorflow, loop, cause, measured, never):
    (finding,) = checker(labelled).check(loop()).findings
    assert finding.id == cause
    assert finding.measurements.items() >= measured.items()
    assert never not in finding.remedy
    if loop is OtherRate:
        assert finding.source.text == "self.optimizer.learning_rate = 0.01", "where it is set, not where it shows"
    if loop is FirstEpochAgain:
        assert finding.source.text == "return self.run.train_dataset(1)", "not where the model is called with it"


class OnceInFourBatches:
    """Makes no step in an epoch of three batches, as the check begins with."""

    name = "mine"

    def train(self, run):
        import tensorflow as tf

        model, optimizer, loss, _ = run.build()
        for epoch in run.epochs:
            total = [0.0] * len(model.trainable_variables)
            for number, (x, y) in enumerate(run.train_dataset(epoch), start=1):
                with tf.GradientTape() as tape:
                    value = loss(y, model(x, training=True))
                taken = tape.gradient(value, model.trainable_variables)
                total = [one + other for one, other in zip(total, taken, strict=True)]
                if number % 4 == 0:
                    optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
                    total = [0.0] * len(total)
                    run.end_step()
            run.end_epoch(epoch, {"loss": 0.0})


def test_a_loop_that_makes_a_step_after_several_batches_is_not_said_to_make_none(tensorflow):
    (finding,) = checker(labelled).check(OnceInFourBatches()).training
    assert finding.id == "batch-size-differs" and "each update is made from 4 batches" in finding.evidence


class RoundsItsLoss(Loop):
    """Its accuracy is wrong, and its loss is another one by rounding only."""

    def logs(self, logs):
        return logs | {"loss": float(np.nextafter(np.float32(logs["loss"]), np.float32(9))), "accuracy": 0.125}


def test_what_only_rounds_beside_a_wrong_number_is_not_said_to_be_unexplained(tensorflow):
    metrics = checker(labelled).check(RoundsItsLoss()).judged.reporting.metrics
    assert (metrics["loss"].only_rounding, metrics["accuracy"].only_rounding) == (True, False)


class WeakDecay(Loop):
    """Its optimizer is its own, made while the graph of the first step is traced, and decays the weights less."""

    own = None

    def apply(self, gradients, variables):
        import tensorflow as tf

        if self.own is None:
            self.own = tf.keras.optimizers.AdamW(1e-3, weight_decay=0.004)
            self.own.build(variables)
        self.own.apply_gradients(zip(gradients, variables, strict=True))


def test_a_decay_that_the_loss_shows_before_the_weights_do_is_located_where_it_is_made(tensorflow):
    make = functools.partial(tensorflow.keras.optimizers.AdamW, 1e-3, weight_decay=0.01)
    experiment = tasks.experiment(regularize=True, batch_norm=True, optimizer=make)
    judged = checker_of(experiment).check(WeakDecay()).judged
    (cause,) = judged.causes
    assert cause.id == "optimizer-differs" and cause.measurements["residual"] == 0
    first = judged.training.first_difference
    assert (first.epoch, first.step, first.stage) == (1, 1, "update")


def test_an_error_of_the_check_itself_is_seen_in_tests_and_costs_a_probe_elsewhere(monkeypatch):
    from compare.check.judgement import LOUD, Judgement

    judgement = Judgement()
    with pytest.raises(ValueError, match="mistake"), judgement.probe("one"):
        raise ValueError("a mistake of the check's own")
    monkeypatch.delenv(LOUD)
    with judgement.probe("one"):
        raise ValueError("a mistake of the check's own")
    assert [entry.probe for entry in judgement.not_applicable] == ["one"]


class ChangesLayers(Loop):
    """Batch normalization is made to forget sooner, before the first step or after the last."""

    at = "begin"

    def train(self, run):
        super().train(run)
        self.change("end")

    def begin(self):
        self.change("begin")

    def value(self, y, predictions):
        import tensorflow as tf

        losses = self.loss.call(y, predictions)
        return tf.reduce_sum(losses * 3.0) / (3.0 * tf.cast(tf.size(losses), tf.float32))  # rounds in another way

    def change(self, at):
        for layer in self.model.layers if at == self.at else ():
            if hasattr(layer, "momentum"):
                layer.momentum = 0.5


@pytest.mark.parametrize(("at", "causes"), [("begin", ["layer-differs"]), ("end", [])])
def test_other_settings_of_layers_are_a_mistake_where_they_change_the_weights(tensorflow, at, causes):
    loop = ChangesLayers()
    loop.at = at
    report = checker_of(tasks.experiment(batch_norm=True), batch_size=32).check(loop)
    assert [each.id for each in report.training] == causes
    assert (report.comparison.training.verdict == "different") == bool(causes)


class FreezesBatchNormalization(Loop):
    def begin(self):
        for layer in self.model.layers:
            if hasattr(layer, "momentum"):
                layer.trainable = False


def test_batch_normalization_that_the_loop_freezes_computes_as_without_training(tensorflow):
    report = checker_of(tasks.experiment(batch_norm=True), batch_size=32).check(FreezesBatchNormalization())
    assert [each.id for each in report.training] == ["training-flag-missing", "variables-not-trained"], report
    flag, _ = report.training
    assert flag.measurements["layers"] == ["batch_normalization"], report
    assert flag.remedy.startswith("layer.trainable = True"), report


def test_a_small_decay_is_named_beside_gradients_of_another_cause(tensorflow):
    """It does less to the weights than counts as rounding; the optimizer says that it is another one."""
    keras = tensorflow.keras

    class Decays(Loop):
        def begin(self):
            self.optimizer.weight_decay = 0.01

        def call(self, x):
            return self.model(x, training=False)

    experiment = tasks.experiment(
        batch_norm=True, dropout=True, optimizer=lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.001)
    )
    report = checker_of(experiment).check(Decays())
    assert [each.id for each in report.findings[:2]] == ["training-flag-missing", "optimizer-differs"]
