"""The short check: every planted mistake gets its name, no correct loop gets any."""

from __future__ import annotations

import functools

import pytest

MODELS = ("mlp-l2-bn", "mlp-weights", "mlp-dropout", "regression")

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning"),
]


@functools.cache
def checker(model, optimizer, replicas):
    import planted

    from compare.check import Checker
    from compare.engine import strategies
    from compare.trainers.keras_fit import KerasFit

    strategy = strategies.make("mirrored", replicas)
    return Checker(planted.experiment(model, optimizer), KerasFit(), strategy, batch_size=planted.BATCH_SIZE)


@pytest.fixture(scope="module")
def planted(tensorflow):
    import planted

    return planted


def bugs():
    """Names only: collecting tests must not start TensorFlow."""
    import ast
    from pathlib import Path

    tree = ast.parse((Path(__file__).parent / "planted.py").read_text())
    found = {"plant": [], "unknown": []}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            name = ast.unparse(node.decorator_list[0]).partition("(")[0]
            if name in found:
                found[name].append(node.name)
    return found


def nearest(planted, bug):
    """Where the mistake shows with the fewest replicas, on the first model and with momentum if it can."""
    names = ["momentum", *planted.OPTIMIZERS]
    replicas = max(bug.least, 1)
    return next(
        (model, optimizer, replicas)
        for model in MODELS
        for optimizer in names
        if planted.shows(bug, model, optimizer, replicas)
    )


def in_turn(planted, bug):
    """A model and an optimizer that the mistake shows with; on the first model, the optimizers in turn."""
    start = [each.name for each in planted.BUGS].index(bug.name)
    if bug.least > 1 and start % 4 == 0 and planted.shows(bug, MODELS[0], "adam", 4):
        return MODELS[0], "adam", 4  # one reference of four replicas serves all: it takes a minute
    names = list(planted.OPTIMIZERS)
    turn = names[start % len(names) :] + names[: start % len(names)]
    return next(
        (model, optimizer, 2)
        for model in MODELS
        for optimizer in (turn if model == MODELS[0] else names)
        if planted.shows(bug, model, optimizer, 2)
    )


def once_per_cause():
    """One way of making each mistake is in the gate; the other ways, and the other places, are slow tests."""
    import ast
    from pathlib import Path

    seen, params = set(), []
    for node in ast.parse((Path(__file__).parent / "planted.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in bugs()["plant"]:
            (plant,) = node.decorator_list
            reporting = [keyword.value for keyword in plant.keywords if keyword.arg == "reporting"]
            causes = tuple(ast.unparse(each) for each in [*plant.args, *reporting])
            marks = [pytest.mark.slow] if causes in seen else []
            params.append(pytest.param(node.name, nearest, id=node.name, marks=marks))
            params.append(pytest.param(node.name, in_turn, id=f"{node.name}-in-turn", marks=pytest.mark.slow))
            seen.add(causes)
    return params


@pytest.mark.parametrize(("name", "where"), once_per_cause())
def test_a_planted_mistake_is_caught_and_named(planted, name, where):
    bug = next(each for each in planted.BUGS if each.name == name)
    report = checker(*where(planted, bug)).check(bug.trainer())
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
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if i % 6 else []) for i, name in enumerate(bugs()["unknown"])],
)
def test_a_mistake_of_no_known_cause_is_caught_and_blamed_on_none(planted, name):
    report = checker("mlp-l2-bn", "momentum", 2).check(getattr(planted, name)())
    assert report.verdict == "different", report
    assert report.findings == (), report
    assert report.evidence, "a difference without a cause has evidence"


STYLES_IN_THE_GATE = {"WholeEpoch", "Eager", "SumOverCount", "ReducedByHand"}
"""On the first model with two replicas; everything else is slow."""


def styles():
    """Names only, as of ``bugs``, each with every model and number of replicas."""
    import ast
    from pathlib import Path

    tree = ast.parse((Path(__file__).parent / "planted.py").read_text())
    (names,) = [node.value.elts for node in tree.body if ast.unparse(node).startswith("STYLES = ")]
    for model, replicas in (("mlp-l2-bn", 2), ("mlp-weights", 1), ("mlp-l2-bn", 1), ("mlp-weights", 2)):
        for name in (ast.unparse(each).rpartition(".")[2] for each in names):
            in_gate = (model, replicas) == ("mlp-l2-bn", 2) and name in STYLES_IN_THE_GATE
            yield pytest.param(name, model, replicas, marks=[] if in_gate else [pytest.mark.slow])


@pytest.mark.parametrize(("style", "model", "replicas"), list(styles()))
def test_a_correct_loop_of_whatever_style_is_never_different(planted, style, model, replicas):
    (loop,) = [each for each in planted.STYLES if each.__name__ == style]
    report = checker(model, "momentum", replicas).check(loop())
    assert report.verdict in ("identical", "alike"), report
    assert report.findings == (), report
    assert report.evidence == (), report


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param("ScaledAndEpsilon", "adam", marks=pytest.mark.slow),
        pytest.param("DividedTwiceAndEpsilon", "adam", marks=pytest.mark.slow),
        ("ScaledAndSlower", "momentum"),
    ],
)
def test_what_makes_up_for_itself_exactly_is_right(planted, name, optimizer):
    bug = next(each for each in planted.MADE_UP_FOR if each.name == name)
    report = checker("mlp-l2-bn", optimizer, 2).check(bug.trainer())
    assert report.comparison.training.verdict in ("identical", "alike"), report
    assert report.training == (), report  # the loss that it reports is a multiple all the same


def test_a_mistake_that_the_optimizer_hides_is_caught(planted, tmp_path):
    import compare
    from compare.check.causes import CATALOGUE

    bug = next(each for each in planted.BUGS if each.name == "NeitherDivided")
    trainers = "fit", bug.trainer()
    experiment = planted.experiment("mlp-l2-bn", "adam")
    result = compare.run(experiment, trainers=trainers, replicas=2, epochs=4, batch_size=8, reports=tmp_path)
    assert result.verdict == "different"
    (comparison,) = result.details["comparisons"]
    named = {cause["id"] for cause in comparison["causes"]}
    assert {id for id in named if CATALOGUE[id].kind == "training"} == set(bug.training), comparison
    # Whoever compares results is blind to it: epochs on, weights and accuracies nearly agree.
    training = comparison["training"]
    last = result.metrics[result.metrics.epoch == 4].groupby("trainer").first()
    assert training["max_weight_gap"] < 0.01
    assert (last.accuracy.max() - last.accuracy.min()) <= 0.01
    assert (last.val_accuracy.max() - last.val_accuracy.min()) <= 0.01


def test_two_mistakes_at_once_are_both_named(planted):
    class Both(planted.Loop):
        def data_loss(self, per_example):
            import tensorflow as tf

            return tf.reduce_sum(per_example)

        def call(self, x):
            return self.model(x)

    report = checker("mlp-l2-bn", "momentum", 2).check(Both())
    assert {finding.id for finding in report.training} == {"loss-summed", "training-flag-missing"}, report


def test_the_side_that_is_off_is_named(planted):
    from compare.check import Checker
    from compare.engine import strategies

    bug = planted.LossWeight()
    bug.name = "wrong-reference"
    report = Checker(planted.experiment("mlp", "sgd"), bug, strategies.make("mirrored", 1)).check(planted.Loop())
    assert [(finding.id, finding.side) for finding in report.training] == [("loss-scaled", "wrong-reference")], report


@pytest.mark.slow
def test_the_tutorials_loop_has_both_of_its_causes(planted):
    from compare.trainers.tutorial import Tutorial

    report = checker("mlp-dropout", "sgd", 2).check(Tutorial())
    assert [finding.id for finding in report.findings] == ["loss-constant-denominator", "loss-averaged-over-batches"]
