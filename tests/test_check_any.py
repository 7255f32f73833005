"""The short check on any experiment and any loop: several outputs, class weights, XLA, hand-written optimizers."""

from __future__ import annotations

import functools

import pytest
import tasks
from against_fit import checker_of

import compare

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    pytest.mark.usefixtures("texts_by_id"),  # no verdict or cause rests on a sentence
]


@pytest.fixture(scope="module")
def planted(tensorflow):
    from corpus import planted

    return planted


EXPERIMENTS = {
    "several": lambda: tasks.several(
        train=200,
        validation=400,
        outputs="dict",
        inputs="dict",
        weights="each",
        extra=True,
        loss_weights={"a": 1.0, "b": 0.5, "c": 2.0},
    ),
    "class-weights": lambda: tasks.experiment(train=200, validation=400, class_weight={0: 0.5, 1: 2.0, 2: 1.0}),
    "weighted-metrics": lambda: tasks.experiment(
        train=200, validation=400, weights=True, build_weighted_metrics=accuracy
    ),
    "momentum": lambda: tasks.experiment(train=200, validation=400, batch_norm=True),
    "adam": lambda: tasks.experiment(train=200, validation=400, optimizer=adam),
    "words": lambda: tasks.words(validation=400),
    "stops": lambda: tasks.experiment(train=200, validation=400, build_callbacks=lambda: [stop_after_one_epoch()]),
    "restores": lambda: tasks.experiment(train=200, validation=400, build_callbacks=lambda: [restore_the_first()]),
    "lowers": lambda: tasks.experiment(train=200, validation=400, build_callbacks=lambda: [lower_rate()]),
    "lowers-late": lambda: tasks.experiment(train=200, validation=400, build_callbacks=lambda: [lower_rate(5)]),
    "bfloat16": lambda: tasks.experiment(train=200, validation=400, build_model=lambda: half("mixed_bfloat16")),
    "float16": lambda: tasks.experiment(train=200, validation=400, build_model=lambda: half("mixed_float16")),
}


def half(policy):
    """A model that computes in half precision."""
    import tensorflow as tf

    tf.keras.mixed_precision.set_global_policy(policy)
    return tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)])


def stop_after_one_epoch():
    import tensorflow as tf

    class Stop(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    return Stop()


def lower_rate(from_epoch=0):
    import tensorflow as tf

    return tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < from_epoch else 0.01)


def restore_the_first():
    """At the end, the weights after the first epoch."""
    import tensorflow as tf

    class Restore(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.weights = self.model.get_weights()

        def on_train_end(self, logs=None):
            self.model.set_weights(self.weights)

    return Restore()


def accuracy():
    import tensorflow as tf

    return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def adam():
    import tensorflow as tf

    return tf.keras.optimizers.Adam(0.01)


@functools.cache
def checker(name, replicas):
    return checker_of(EXPERIMENTS[name](), replicas)


def assert_passes(report):
    assert report.verdict in ("identical", "alike"), report
    assert report.findings == report.unexplained == (), report


def assert_named(report, training=(), reporting=()):
    assert report.verdict == "different", report
    assert [finding.id for finding in report.training] == list(training), report
    assert {finding.id for finding in report.reporting} == set(reporting), report


class Rounded(compare.CustomLoop):
    """Correct, but rounds differently, so the check has to explain its steps; where all is identical it need not."""

    name = "rounded"

    def compute_loss(self, y, predictions, sample_weight):
        return super().compute_loss(y, predictions, sample_weight) * 3.0 * (1.0 / 3.0)


class Doubled(compare.CustomLoop):
    name = "doubled"

    def compute_loss(self, y, predictions, sample_weight):
        return 2 * super().compute_loss(y, predictions, sample_weight)


class Unweighted(compare.CustomLoop):
    name = "unweighted"

    def compute_loss(self, y, predictions, sample_weight):
        return super().compute_loss(y, predictions, None)


class NoClassWeights(compare.CustomLoop):
    name = "no-class-weights"

    def train_step(self, batch):
        self.class_weight = None
        return super().train_step(batch)


class ValidatesUnweighted(compare.CustomLoop):
    name = "validates-unweighted"

    def test_step(self, batch):
        return super().test_step(batch[:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["several", "words"])
def test_any_experiment_passes_with_a_correct_loop_and_not_with_a_wrong_one(tensorflow, name):
    for trainer in (compare.CustomLoop(), Rounded()):
        assert_passes(checker(name, 2).check(trainer))
    assert_named(checker(name, 2).check(Doubled()), ["loss-not-divided-by-replicas"])


def test_dropped_weights_of_several_outputs_are_named(tensorflow):
    assert_passes(checker("several", 1).check(Rounded()))
    assert_named(checker("several", 1).check(Unweighted()), ["sample-weights-dropped"])


def test_dropped_class_weights_are_named(tensorflow):
    report = checker("class-weights", 1).check(NoClassWeights())
    assert_named(report, ["sample-weights-dropped"])
    assert report.training[0].measurements["kind"] == "class-weights-unused"
    assert_passes(checker("class-weights", 1).check(Rounded()))


def test_dropped_validation_weights_are_named(tensorflow):
    report = checker("weighted-metrics", 1).check(ValidatesUnweighted())
    assert_named(report, reporting=["validation-sample-weights-dropped"])
    assert_passes(checker("weighted-metrics", 1).check(Rounded()))


class Deaf(compare.CustomLoop):
    """Ignores the experiment's callbacks."""

    name = "deaf"

    def train(self, run):
        run.build_callbacks = list
        super().train(run)


# Keras's own, where a callback reads the learning rate.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("stops", {"kind": "ended", "callbacks": ["Stop"], "expected": 1, "side": "deaf", "epochs": 2}),
        ("lowers", {"kind": "callbacks-set-rate", "callbacks": ["LearningRateScheduler"], "step": 1}),
        pytest.param("restores", {"kind": "changed-after-training", "callbacks": ["Restore"]}, marks=pytest.mark.slow),
    ],
)
def test_a_loop_without_the_callbacks_that_change_training_is_different(tensorflow, name, measured):
    report = checker(name, 1).check(Deaf())
    assert_named(report, ["callbacks-missing"])
    assert report.training[0].measurements.items() >= measured.items()
    assert_passes(checker(name, 1).check(Rounded()))


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_callbacks_that_only_fit_runs_are_noted_where_they_do_nothing_in_the_steps_of_the_check(tensorflow):
    report = checker("lowers-late", 1).check(Deaf())
    assert_passes(report)
    assert report.notes == ["callbacks-not-run, which makes no difference in the few steps of this check"]
    assert checker("lowers-late", 1).check(Rounded()).notes == []


# With float16, losses are scaled as well.
@pytest.mark.parametrize("name", [pytest.param("bfloat16", marks=pytest.mark.slow), "float16"])
def test_mixed_precision_is_judged_by_the_rounding_of_its_own_type(tensorflow, name):
    assert_passes(checker(name, 2).check(Rounded()))
    report = checker(name, 2).check(Doubled())
    assert_named(report, ["loss-not-divided-by-replicas"])


def by_hand(loop, rate=0.1, momentum=0.9):
    """The same loop with a hand-written optimizer instead of a Keras optimizer."""
    import tensorflow as tf

    class ByHand(loop):
        name = "by-hand"

        def make(self):
            super().make()
            self.slots = [tf.Variable(tf.zeros_like(v)) for v in self.model.trainable_variables]

        def update(self, gradients, variables):
            for gradient, slot, variable in zip(gradients, self.slots, variables, strict=True):
                slot.assign(momentum * slot - rate * gradient)
                variable.assign_add(slot)

    return ByHand()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_step_compiled_by_xla_is_judged_by_its_weights(planted, name):
    report = checker(name, 1).check(planted.CompiledByXla())
    assert_passes(report)
    assert "jit_compile=True" in report.not_applicable[0].reason

    class Wrong(planted.ConstantDenominator, planted.CompiledByXla):
        pass

    report = checker(name, 1).check(Wrong())
    assert_named(report, ["loss-constant-denominator"])


@pytest.mark.slow
def test_a_whole_epoch_in_one_call_with_a_hand_written_optimizer_is_judged_by_its_weights(planted):
    class WholeEpochWrong(planted.ConstantDenominator, planted.WholeEpoch):
        pass

    report = checker("momentum", 1).check(by_hand(planted.WholeEpoch))
    assert_passes(report)
    assert "Keras optimizer" in report.not_applicable[0].reason
    assert_named(checker("momentum", 1).check(by_hand(WholeEpochWrong)), ["loss-constant-denominator"])


def test_a_hand_written_optimizer_is_judged_by_its_weights(planted):
    report = checker("momentum", 1).check(by_hand(planted.Loop))
    assert_passes(report)
    assert "Keras optimizer" in report.not_applicable[0].reason
    assert_named(checker("momentum", 1).check(by_hand(planted.NoTrainingFlag)), ["training-flag-missing"])
    report = checker("momentum", 1).check(by_hand(planted.Loop, momentum=0.8))
    assert_named(report, ["optimizer-differs"])
    measured = {"kind": "as-with", "name": "momentum", "value": 0.8, "expected": 0.9}
    assert report.training[0].measurements.items() >= measured.items()


def test_an_exception_of_the_loop_is_raised_with_its_line(tensorflow):
    class Raises(compare.CustomLoop):
        def compute_loss(self, y, predictions, sample_weight):
            raise ValueError("no such output")

    with pytest.raises(ValueError, match="no such output") as caught:
        checker("momentum", 1).check(Raises())
    from compare.user_errors import describe

    assert "test_check_any.py, line " in describe(caught.value)
