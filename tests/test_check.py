"""The short check: it names every planted mistake, and no cause for a correct loop."""

from __future__ import annotations

import functools

import pytest
from against_fit import checker_of
from corpus import planted

from compare.check.stage_views import stage_sentence

MODELS = ("mlp-l2-bn", "mlp-weights", "mlp-dropout", "regression")
SPECIAL = ("mlp-float16", "mlp-callback", "mlp-smoothed", "words-masked")

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    # Keras's own, where a callback reads the learning rate under MirroredStrategy.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning"),
]


@functools.cache
def checker(model, optimizer, replicas):
    return checker_of(planted.experiment(model, optimizer), replicas, batch_size=planted.BATCH_SIZE)


def nearest(bug):
    """Returns where the mistake shows with the fewest replicas, if possible on the first model with momentum."""
    names = ["momentum", *planted.OPTIMIZERS]
    replicas = max(bug.least, 1)
    return next(
        (model, optimizer, replicas)
        for model in (*MODELS, *SPECIAL)
        for optimizer in names
        if planted.shows(bug, model, optimizer, replicas)
    )


def in_turn(bug):
    """Returns a model and an optimizer with which the mistake shows; on the first model, the optimizers in turn."""
    start = [each.name for each in planted.BUGS].index(bug.name)
    if bug.least > 1 and start % 4 == 0 and planted.shows(bug, MODELS[0], "adam", 4):
        return MODELS[0], "adam", 4  # one reference with four replicas for all of them: it takes a minute
    names = list(planted.OPTIMIZERS)
    turn = names[start % len(names) :] + names[: start % len(names)]
    return next(
        (model, optimizer, 2)
        for model in (*MODELS, *SPECIAL)
        for optimizer in (turn if model == MODELS[0] else names)
        if planted.shows(bug, model, optimizer, 2)
    )


RECOGNISED_IN_OTHER_WAYS = ("OtherOptimizer", "IterationsReset")
"""Mistakes of a cause that is in the gate already, found by other means: the class of an optimizer, its count."""


UNDER_THE_OLDEST = 10
"""The number of mistakes that are also checked under the oldest versions that are supported."""


def once_per_cause():
    """Parameters: one mistake per cause is in the gate; more mistakes, and more models, are slow tests."""
    seen, params = set(), []
    for bug in planted.BUGS:
        causes = {*bug.training, *bug.reporting}
        marks = [pytest.mark.slow] if causes <= seen and bug.name not in RECOGNISED_IN_OTHER_WAYS else []
        marks += [pytest.mark.oldest] if len(params) < 2 * UNDER_THE_OLDEST else []
        params.append(pytest.param(bug, nearest, id=bug.name, marks=marks))
        params.append(pytest.param(bug, in_turn, id=f"{bug.name}-in-turn", marks=pytest.mark.slow))
        seen |= causes
    return params


@pytest.mark.parametrize(("bug", "where"), once_per_cause())
def test_a_planted_mistake_is_caught_and_named(tensorflow, bug, where):
    where, trainer = checker(*where(bug)), bug.trainer()
    report = where.check(trainer)
    assert report.verdict == "different", report
    training, reporting = ({finding.id for finding in found} for found in (report.training, report.reporting))
    assert set(bug.training) <= training, report
    assert set(bug.reporting) <= reporting, report
    assert not (training | reporting) - {*bug.training, *bug.reporting, *bug.also}, report
    if bug.training:
        assert report.comparison.training.verdict == "different", report
    else:
        assert report.comparison.training.verdict in ("identical", "alike"), report


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, id=bug.name, marks=[pytest.mark.slow] if i else []) for i, bug in enumerate(planted.UNKNOWN)],
)
def test_a_mistake_of_no_known_cause_is_caught_and_no_cause_is_named(tensorflow, bug):
    report = checker("mlp-l2-bn", "momentum", 2).check(bug.trainer())
    assert report.verdict == "different", report
    assert report.findings == (), report
    assert report.unexplained, "a difference without a cause has evidence"


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_mistake_is_located_in_its_stage_of_the_step(tensorflow, replicas):
    stages = {
        "StepSkipped": (1, 1, "examples", ""),
        "InputsScaled": (1, 1, "inputs", ""),
        "NoTrainingFlag": (1, 1, "predictions", "batch_normalization"),
        "NoPenaltyInTraining": (1, 1, "loss", ""),
        "StoppedGradient": (1, 1, "gradients", "sequential/dense/kernel"),
        "OtherRate": (1, 1, "update", None),
        "WeightsAnew": (1, 1, "state", None),
    }
    same = checker("mlp-l2-bn", "momentum", replicas)
    for name, (epoch, step, stage, where) in stages.items():
        trainer = getattr(planted, name)()
        report = same.check(trainer)
        first = report.comparison.training.first_difference
        assert (first.epoch, first.step, first.stage) == (epoch, step, stage), report
        assert where is None or first.where == where, report
        (entry,) = report.as_verdict().content()["comparisons"]
        assert entry["training"]["first_difference"]["stage"] == stage
        equal = {each["stage"]: each["equal"] for each in entry["stages"]}
        order = list(equal)
        assert stage == "state" or all(equal[each] for each in order[: order.index(stage)]), report


def test_looking_inside_leaves_keras_as_it_was(tensorflow):
    import keras
    import tensorflow as tf

    places = [(keras.Model, "__call__"), (keras.Model, "__new__"), (keras.optimizers.Optimizer, "apply")]
    places += [(tf.GradientTape, "gradient"), (tf.distribute.Strategy, "run"), (keras.losses, "mean_squared_error")]
    before = [getattr(owner, name) for owner, name in places]
    same, trainer = checker("mlp-l2-bn", "momentum", 1), planted.NoPenaltyInTraining()
    report = same.check(trainer)
    said = stage_sentence(report.judged, report.reference)
    assert said.startswith("Inside that step, examples, inputs and predictions agree; the loss does not: ")
    (entry,) = report.as_verdict().content()["comparisons"]
    assert entry["training"]["first_difference"] == {"epoch": 1, "step": 1, "stage": "loss", "where": ""}
    assert [each["stage"] for each in entry["stages"] if each["equal"]][:3] == ["examples", "inputs", "predictions"]
    assert [getattr(owner, name) for owner, name in places] == before
    assert same.check(planted.Loop()).verdict in ("identical", "alike")


def test_equal_arrays_that_are_in_use_are_kept_once(tensorflow):
    import numpy as np

    from compare.check.observe import kept

    array = np.array([1.0, np.nan, -0.0])
    one = kept(array)
    array[0] = 2.0  # TensorFlow uses the memory again
    assert kept(np.array([1.0, np.nan, -0.0])) is one
    others = [array, np.array([1.0, np.nan, 0.0]), one.astype(np.float32), one[:, np.newaxis]]
    assert all(kept(other) is not one for other in others)


def test_each_side_of_a_differing_loop_that_can_be_replayed_trains_once(tensorflow):
    from compare.trainers.keras_fit import KerasFit

    trained = []

    class Fit(KerasFit):
        def train(self, run):
            trained.append("fit")
            super().train(run)

    class Summed(planted.Summed):
        def train(self, run):
            trained.append("loop")
            super().train(run)

    report = checker_of(planted.experiment("mlp", "momentum"), 1, Fit()).check(Summed())
    assert report.comparison.training.first_difference.stage == "loss", report
    assert trained == ["fit", "loop"]


@pytest.mark.parametrize(("model", "optimizer", "replicas"), [("mlp-l2-bn", "momentum", 1), ("mlp-weights", "adam", 2)])
def test_a_recomputed_noise_twin_is_as_far_from_the_reference_as_a_trained_one(tensorflow, model, optimizer, replicas):
    import numpy as np

    from compare.check.look_inside import replayed_twin
    from compare.check.recipe import EPSILON
    from compare.check.step_values import relative_gap

    checked = checker(model, optimizer, replicas)
    seen, (case, judged) = checked.reference.inside, checked._reference_case()
    assert judged.right
    twins = replayed_twin(case, seen, 1), *checked._twins.inside((1, 1))
    gaps = {
        "predictions": lambda step: [relative_gap(*(side.arrays(step, "predictions")[0] for side in (seen, each)))
                                     for each in twins],
        "loss": lambda step: [relative_gap(seen.loss(step), each.loss(step)) for each in twins],
        "gradients": lambda step: [relative_gap(*(side.gradients(step)[0] for side in (seen, each)))
                                   for each in twins],
        "weights": lambda step: [relative_gap(seen.after[step][0], each.after[step][0]) for each in twins],
    }  # fmt: skip
    for what, of_step in gaps.items():
        of_twins = np.median([of_step(step) for step in sorted(seen.steps)], axis=0)
        recomputed, trained = np.maximum(of_twins, EPSILON)  # float32 tells no smaller ones
        assert trained / 10 < recomputed < 10 * trained, (what, recomputed, trained)


STYLES_IN_THE_GATE = {"WholeEpoch", "ReducedByHand"}
"""On the first model with two replicas; all others are slow tests."""


def styles():
    """Parameters: each style with every model and number of replicas."""
    for model, replicas in (("mlp-l2-bn", 2), ("mlp-weights", 1), ("mlp-l2-bn", 1), ("mlp-weights", 2)):
        for style in planted.STYLES:
            in_gate = (model, replicas) == ("mlp-l2-bn", 2) and style.name in STYLES_IN_THE_GATE
            marks = [] if in_gate else [pytest.mark.slow]
            yield pytest.param(style, model, replicas, id=f"{style.name}-{model}-{replicas}", marks=marks)


@pytest.mark.parametrize(("style", "model", "replicas"), list(styles()))
def test_a_correct_loop_is_never_different_whatever_its_style(tensorflow, style, model, replicas):
    report = checker(model, "momentum", replicas).check(style.trainer())
    assert report.verdict in ("identical", "alike"), report
    assert report.findings == (), report
    assert report.unexplained == (), report


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param("ScaledAndEpsilon", "adam", marks=pytest.mark.slow),
        pytest.param("DividedTwiceAndEpsilon", "adam", marks=pytest.mark.slow),
        ("ScaledAndSlower", "momentum"),
    ],
)
def test_mistakes_that_cancel_exactly_are_correct(tensorflow, name, optimizer):
    bug = next(each for each in planted.MADE_UP_FOR if each.name == name)
    report = checker("mlp-l2-bn", optimizer, 2).check(bug.trainer())
    assert report.comparison.training.verdict in ("identical", "alike"), report
    assert report.training == (), report  # its reported loss is still a multiple


@pytest.mark.slow
def test_a_mistake_that_the_optimizer_hides_is_caught(tensorflow, tmp_path):
    import compare
    from compare.check.causes import CATALOGUE

    bug = next(each for each in planted.BUGS if each.name == "LossNotDivided")
    trainers = "fit", bug.trainer()
    experiment = planted.experiment("mlp-l2-bn", "adam")
    result = compare.run(experiment, trainers=trainers, replicas=2, epochs=4, batch_size=8, reports=tmp_path)
    assert result.verdict == "different"
    (comparison,) = result.details["comparisons"]
    named = {cause["id"] for cause in comparison["causes"]}
    assert {id for id in named if CATALOGUE[id].kind == "training"} == set(bug.training), comparison
    # Comparing results would miss it: epochs later, weights and accuracies nearly agree.
    training = comparison["training"]
    last = result.metrics[result.metrics.epoch == 4].groupby("trainer").first()
    assert training["max_weight_gap"] < 0.01
    assert (last.accuracy.max() - last.accuracy.min()) <= 0.01
    assert (last.val_accuracy.max() - last.val_accuracy.min()) <= 0.01


def test_two_mistakes_at_once_are_both_named(tensorflow):
    class Both(planted.Loop):
        def mean(self, values):
            import tensorflow as tf

            return tf.reduce_sum(values) * self.replicas

        def forward(self, x):
            return self.model(x)

    report = checker("mlp-l2-bn", "momentum", 2).check(Both())
    assert {finding.id for finding in report.training} == {"loss-summed", "training-flag-missing"}, report


def test_a_penalty_without_a_gradient_is_not_called_missing(tensorflow):
    """Its gradients are those of a missing penalty, but the loss has it: to add it once more would be worse."""
    import tensorflow as tf

    class WithoutGradient(planted.Loop):
        def penalty(self):
            return tf.stop_gradient(super().penalty())

    report = checker("mlp-l2-bn", "momentum", 1).check(WithoutGradient())
    assert report.comparison.training.first_difference.stage == "gradients", report
    assert report.findings == (), report
    assert report.unexplained[-1].as_json().items() >= {"as_with": "regularization-missing", "agrees": ["loss"]}.items()


def test_a_wrong_reference_is_named(tensorflow):
    bug = planted.LossTimesFive()
    bug.name = "wrong-reference"
    report = checker_of(planted.experiment("mlp", "sgd"), 1, bug).check(planted.Loop())
    assert [(finding.id, finding.side) for finding in report.training] == [("loss-scaled", "wrong-reference")], report


@pytest.mark.slow
def test_the_tutorials_loop_has_both_of_its_causes(tensorflow):
    from compare.trainers.tutorial import Tutorial

    report = checker("mlp-dropout", "sgd", 2).check(Tutorial())
    assert [finding.id for finding in report.findings] == ["loss-constant-denominator", "loss-averaged-over-batches"]
