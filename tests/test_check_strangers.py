"""Loops that users write without knowing the check: what it must accept, and what it reports instead of a cause."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tasks
from against_fit import checker_of
from plain_loop import Loop

import compare
from compare.errors import EXIT_NO_VERDICT

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    pytest.mark.usefixtures("texts_by_id"),  # no verdict or cause rests on a sentence
]


def optimizers():
    import tensorflow as tf

    return {
        "adam": lambda: tf.keras.optimizers.Adam(0.01),
        "rmsprop": lambda: tf.keras.optimizers.RMSprop(0.01),
        "clipnorm": lambda: tf.keras.optimizers.SGD(0.1, clipnorm=0.05),
    }


@functools.cache
def checker(name):
    made = tasks.experiment(train=200, validation=100)
    if name in optimizers():
        made = tasks.words(optimizer=optimizers()[name])
    return checker_of(made, batch_size=32)


class Plain(Loop):
    """Reports no numbers, as the README's."""

    name = "plain"

    def penalty(self):
        return 0.0

    def record(self, x, y, predictions, value):
        """No metric is updated."""

    def logs(self, logs):
        return {}


class BuildsNothing:
    name = "lazy"

    def train(self, run):
        pass


class EndsNoEpoch(Plain):
    name = "endless"

    def batches(self, epoch):
        if epoch == 1:
            yield from super().batches(epoch)
        self.run.end_epoch = lambda *_: None


class EndsAnother(BuildsNothing):
    name = "another"

    def train(self, run):
        run.build()
        run.end_epoch(0, {})


@pytest.mark.parametrize(
    ("trainer", "told"),
    [
        (BuildsNothing, r"trainer lazy \(.*\.py, line \d+\) returned without ending epoch 1 of 2: call run\.end_epoch"),
        (
            EndsNoEpoch,
            r"trainer endless \(.*\.py, line \d+\) returned without ending epoch 1 of 2: call run\.end_epoch",
        ),
        (
            EndsAnother,
            r"trainer another: end_epoch was called for epoch 0, but .*test_check_strangers\.py, line \d+\)$",
        ),
    ],
)
def test_a_breach_of_the_contract_is_said_as_one(tensorflow, trainer, told):
    with pytest.raises(compare.RequestError, match=told) as caught:
        checker("plain").check(trainer())
    assert caught.value.status == EXIT_NO_VERDICT


class Rounded(Plain):
    """Correct but not bit-identical, so the check has to explain its steps."""

    eager = True

    def value(self, y, predictions):
        return super().value(y, predictions) * 3.0 * (1.0 / 3.0)


class RoundedEpochs(Plain):
    """A whole epoch in one call, so that nobody sees the weights between two steps."""

    def train(self, run):
        import tensorflow as tf

        model, optimizer, loss, _ = run.build()

        @tf.function
        def on_epoch(dataset):
            for x, y in dataset:
                with tf.GradientTape() as tape:
                    value = tf.reduce_mean(loss.call(y, model(x, training=True))) * 41.0 * (1.0 / 41.0)
                optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)

        for epoch in run.epochs:
            on_epoch(run.train_dataset(epoch))
            run.end_epoch(epoch, {})


def test_steps_between_which_no_weights_are_read_are_explained(tensorflow):
    report = checker("small").check(RoundedEpochs())
    assert report.comparison.training.verdict == "alike", report


class ByHand(Plain):
    """Subtracts the gradients itself, from all weights but the first layer's."""

    def apply(self, gradients, variables):
        for gradient, variable in list(zip(gradients, variables, strict=True))[2:]:
            variable.assign_sub(float(self.optimizer.learning_rate) * gradient)


def test_weights_that_no_hand_written_update_reaches_are_named(tensorflow):
    made = tasks.experiment(train=200, validation=100, optimizer=lambda: tensorflow.keras.optimizers.SGD(0.1))
    report = checker_of(made, batch_size=32).check(ByHand())
    assert [finding.id for finding in report.findings] == ["variables-not-trained"], report
    variables = ["sequential/dense/kernel", "sequential/dense/bias"]
    assert report.findings[0].measurements.items() >= {"kind": "no-gradient", "variables": variables}.items()


class LayerByLayer(Plain):
    """Calls the layers one by one, with a function of TensorFlow between them, whose result has no mask."""

    def call(self, x):
        import tensorflow as tf

        embedding, *rest = self.model.layers
        return functools.reduce(lambda value, layer: layer(value), rest, tf.identity(embedding(x)))


def test_a_mask_that_is_lost_between_two_layers_is_named(tensorflow):
    layers = tensorflow.keras.layers

    def part(count, seed):
        x = np.random.default_rng(seed).integers(1, 20, (count, 6)).astype(np.int32)
        x[np.arange(6) >= 2 + x[:, :1] % 5] = 0
        return x, (x[:, 0] % 3).astype(np.int32)

    made = tasks.experiment(
        load_data=lambda: (part(200, 1), part(100, 2)),
        build_model=lambda: tensorflow.keras.Sequential(
            [layers.Embedding(30, 4, mask_zero=True), layers.LSTM(4), layers.Dense(3)]
        ),
    )
    report = checker_of(made, batch_size=32).check(LayerByLayer())
    assert [finding.id for finding in report.findings] == ["mask-missing"], report
    assert report.findings[0].measurements.items() >= {"kind": "mask-lost", "layers": ["embedding"]}.items()


class WithFirstLoss(Plain):
    """Adds one of the layers' losses only."""

    def penalty(self):
        return self.model.losses[0]


@pytest.mark.parametrize(
    ("regularizer", "measured"),
    [
        ("kernel_regularizer", {"kind": "layer-loss-left-out", "variables": ["sequential/dense_1/kernel"]}),
        ("activity_regularizer", {"kind": "layer-losses-left-out", "numbers": [2], "of": 2}),
    ],
)
def test_a_loss_of_one_layer_that_is_left_out_is_named(tensorflow, regularizer, measured):
    dense = functools.partial(tensorflow.keras.layers.Dense, **{regularizer: "l2"})
    model = lambda: tensorflow.keras.Sequential([dense(16, activation="relu"), dense(3)])  # noqa: E731
    made = tasks.experiment(train=200, validation=100, build_model=model)
    report = checker_of(made, batch_size=32).check(WithFirstLoss())
    assert [finding.id for finding in report.findings] == ["regularization-missing"], report
    assert report.findings[0].measurements.items() >= measured.items()


class SquashedTwice(Plain):
    """Gives TensorFlow's function, which takes logits, what softmax made of them."""

    def value(self, y, predictions):
        import tensorflow as tf

        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.nn.softmax(predictions)))


class InParts(Plain):
    """Applies the optimizer to each half of the variables."""

    def apply(self, gradients, variables):
        half = len(variables) // 2
        super().apply(gradients[:half], variables[:half])
        super().apply(gradients[half:], variables[half:])


class TrainsInValidation(Plain):
    """Calls its step on the batches of validation, too."""

    def train(self, run):
        given, end_epoch = run.train_dataset, run.end_epoch
        count = []

        def end_step():
            if len(count) < steps:
                count.append(1)
                original()

        def datasets(epoch):
            count.clear()
            return [*given(epoch), *run.validation_dataset()]

        original, run.end_step = run.end_step, end_step
        steps, run.train_dataset = len(given(1)), datasets
        super().train(run)
        run.train_dataset, run.end_epoch = given, end_epoch


@pytest.mark.parametrize(
    ("loop", "cause", "measured"),
    [
        (SquashedTwice, "logits-mismatch", {"kind": "applied-twice", "function": "softmax"}),
        (InParts, "optimizer-differs", {"kind": "applied-in-parts", "times": 2}),
        (TrainsInValidation, "validation-changes-state", {"kind": "validation-updates", "updates": 5}),
    ],
)
def test_what_strangers_got_wrong_is_named(tensorflow, loop, cause, measured):
    report = checker("adam" if loop is InParts else "blobs").check(loop())
    assert [finding.id for finding in report.findings] == [cause], report
    assert report.findings[0].measurements.items() >= measured.items()
    if loop is SquashedTwice:
        assert report.findings[0].remedy.endswith("# what the model gives, without softmax")


def test_the_loss_of_an_output_that_is_left_out_is_named(tensorflow):
    import compare

    class TwoOfThree(compare.CustomLoop):
        name = "two-of-three"

        def train(self, run):
            run.loss_weights = {"a": 1.0, "b": 1.0, "c": 0.0}
            super().train(run)

    made = tasks.several(outputs="dict")
    report = checker_of(made, batch_size=12).check(TwoOfThree())
    assert [finding.id for finding in report.findings] == ["variables-not-trained"], report
    measured = {"kind": "no-gradient", "output": "c", "variables": ["c/kernel", "c/bias"]}
    assert report.findings[0].measurements.items() >= measured.items()


def test_an_average_of_weights_that_the_loop_does_not_end_with_is_named(tensorflow):
    class Averaged(Plain):
        def train(self, run):
            super().train(run)
            self.optimizer.finalize_variable_values(self.model.trainable_variables)

    class AveragedInEachEpoch(Plain):
        def logs(self, logs):
            self.optimizer.finalize_variable_values(self.model.trainable_variables)
            return logs

    made = tasks.experiment(
        train=200,
        validation=100,
        optimizer=lambda: tensorflow.keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9),
        build_callbacks=lambda: [tensorflow.keras.callbacks.Callback()],
    )
    check = checker_of(made, batch_size=32).check
    report = check(Plain())
    assert [finding.id for finding in report.findings] == ["optimizer-differs"], report
    assert report.findings[0].measurements["kind"] == "averages-not-taken"
    assert check(Averaged()).verdict in ("identical", "alike")
    report = check(AveragedInEachEpoch())
    assert report.verdict == "different" and not report.findings, "it does take them, only too often"


@pytest.mark.parametrize(
    "optimizer", ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rmsprop", "clipnorm"))]
)
def test_fit_is_explained_by_its_own_replay_where_gradients_are_sparse(tensorflow, optimizer):
    _, judged = checker(optimizer)._reference_case()
    assert judged.right, judged
    report = checker(optimizer).check(Rounded())
    assert report.verdict in ("identical", "alike"), report

    class Dense(Rounded):
        def apply(self, gradients, variables):
            super().apply([tensorflow.convert_to_tensor(g) for g in gradients], variables)

    if optimizer != "clipnorm":  # with few words, the rows are clipped alike
        assert checker(optimizer).check(Dense()).verdict == "different"


def test_fit_is_explained_by_its_own_replay_where_there_are_many_variables(tensorflow):
    from compare.check.optimizer_replay import MIN_TRACED_VARIABLES

    def model():
        dense = tensorflow.keras.layers.Dense
        return tensorflow.keras.Sequential([*(dense(4) for _ in range(MIN_TRACED_VARIABLES // 2)), dense(3)])

    deep = tasks.experiment(
        train=200,
        validation=100,
        build_model=model,
        optimizer=optimizers()["adam"],
    )
    deep_checker = checker_of(deep, batch_size=32)
    case, judged = deep_checker._reference_case()
    assert judged.right and not judged.not_applicable, judged
    assert case.weight_gaps(judged.recipe).all_match, "whole steps are explained"


@pytest.mark.parametrize("replicas", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_a_loop_for_one_replica_is_checked_on_one_and_the_report_says_so(tensorflow, replicas):
    from compare.check import check
    from compare.engine import strategies

    strategy = replicas and strategies.make("mirrored", replicas)
    report = check(tasks.experiment(train=200, validation=100), Plain(), strategy=strategy)
    assert report.verdict in ("identical", "alike"), report
    assert report.replicas == (1,)
    assert any("never calls strategy.run" in each.reason for each in report.not_applicable), report


def test_updates_of_disjoint_variables_are_one_step(tensorflow):
    class OneByOne(Rounded):
        def begin(self):
            optimizer, variables = self.optimizer, self.model.trainable_variables
            self.made = [type(optimizer).from_config(optimizer.get_config()) for _ in variables]
            for one, variable in zip(self.made, variables, strict=True):
                one.build([variable])

        def apply(self, gradients, variables):
            for one, gradient, variable in zip(self.made, gradients, variables, strict=False):
                one.apply([gradient], [variable])

    class OneForgotten(OneByOne):
        def apply(self, gradients, variables):
            super().apply(gradients[:-1], variables[:-1])

    assert checker("blobs").check(OneByOne()).verdict in ("identical", "alike")
    report = checker("blobs").check(OneForgotten())
    assert [finding.id for finding in report.findings] == ["variables-not-trained"], report


def test_a_change_after_the_last_step_of_an_epoch_is_evidence_and_not_blamed_on_validation(tensorflow):
    class Rounding(Plain):
        def logs(self, logs):
            self.model.set_weights([np.round(weights, 2) for weights in self.model.get_weights()])
            return {}

    report = checker("blobs").check(Rounding())
    assert report.verdict == "different", report
    assert report.findings == (), report
    assert ("changed-after-last-step", 1) in [(s.kind, s.quantities.get("epoch")) for s in report.unexplained], report


def test_the_other_probes_go_on_if_one_fails(tensorflow, monkeypatch):
    from compare.check import judge

    def broken(*args):
        raise ValueError("no such update")

    monkeypatch.setattr(judge, "_judge_updates", broken)
    monkeypatch.delenv("FIT_VS_LOOP_LOUD")

    class Doubled(Plain):
        def value(self, y, predictions):
            return 3.0 * super().value(y, predictions)

    report = checker("blobs").check(Doubled())
    assert [finding.id for finding in report.findings] == ["loss-scaled"], report
    assert any("no such update" in each.reason for each in report.not_applicable), report


def test_noise_twins_of_the_run_decide_where_the_check_is_not_certain(tmp_path):
    from compare.verdict.judge import Pair
    from compare.verdict.model import Comparison, Reporting, Training

    def certain(verdict, **known):
        checked = Comparison("loop", Training(verdict, None, None, 0), Reporting(None, {}), **known)
        return Pair(None, None, None, None, checked).certain

    assert certain("different", certain=True)
    assert certain("different"), "as runs recorded it before"
    assert not certain("different", certain=False)
    assert not certain("alike", certain=False)
    assert not Pair(None, None, None, None, None).certain


def test_a_mask_is_not_taken_for_a_softmax_behind_which_keras_finds_logits(tensorflow):
    from corpus import planted

    assert not checker_of(planted.masked())._replay().recovers
