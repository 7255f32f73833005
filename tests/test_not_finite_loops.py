"""Loops that go wrong in values, in every mode: the step and the stage of the first value that is not finite."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
from against_fit import checker_of

import compare

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    # Keras's own, under MirroredStrategy.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

IN_THE_GATE = ("Overflow", "RootOfZero", "OneLayer", "WholeEpoch", "ValidationOfNothing", "InfiniteLoss")
SLOW = (
    "TimesNan", "EagerNan", "LogOfInputs", "LogOfZero", "EmptyMask", "WeightsOfNothing", "BranchNotTaken",
    "Standardized", "InfiniteRate", "Exploding", "MovingVariance", "HalfPrecision", "Replicas",
    "AccuracyOfNothing", "InfiniteLossReported",
)  # fmt: skip
AT = 3
"""The step at which they go wrong in the short check; it trains six."""


@pytest.fixture(scope="module")
def loops(tensorflow: Any) -> Any:
    import not_finite_loops

    return not_finite_loops


@functools.cache
def checker(needs: str, replicas: int) -> Any:
    import not_finite_loops

    loop = next(each for each in not_finite_loops.LOOPS if each.needs == needs)
    return checker_of(not_finite_loops.experiment(loop), replicas)


def test_every_loop_is_tested(loops: Any) -> None:
    assert {each.__name__ for each in loops.LOOPS} == {*IN_THE_GATE, *SLOW}


@pytest.mark.parametrize("name", [*IN_THE_GATE, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_short_check_names_the_step_and_the_stage(loops: Any, name: str) -> None:
    loop = getattr(loops, name)
    here, trainer = checker(loop.needs, 2 if name == "Replicas" else 1), loop(AT)
    report = here.check(trainer)
    assert report.verdict == "different", report
    cause = report.findings[0]
    assert (cause.id, cause.side, cause.kind) == ("not-finite", "mine", loop.kind), report
    comparison = report.comparison
    if comparison.weights_alone is not None:
        assert comparison.training.noise is None, "no twin is asked"
    if loop.kind == "reporting":
        assert loop.where in cause.measurements["where"]
        lost = (loop.stage, AT) if loop.where == "loss" else (None, None)
        assert (cause.measurements["stage"], cause.measurements.get("training_step")) == lost
        return
    first = comparison.training.first_difference
    assert first is not None
    assert (cause.measurements["stage"], first.stage) == (loop.stage, loop.stage), report
    assert loop.where in first.where
    if loop.truth is not None:  # as the loop itself has seen it
        steps = len(here.batches.sizes())
        assert (first.epoch, first.step) == ((loop.truth - 1) // steps + 1, (loop.truth - 1) % steps + 1), report


def test_a_full_run_finds_what_the_short_check_is_too_short_for(loops: Any, tmp_path: Path) -> None:
    mine = loops.EagerNan(17)
    result = compare.run(
        loops.experiment(loops.EagerNan), trainers=("fit", mine), strategy="default", epochs=5, batch_size=16,
        quiet=True, reports=tmp_path, name="run",
    )  # fmt: skip
    (entry,) = result.details["comparisons"]
    first = entry["training"]["first_difference"]
    assert (result.verdict, loops.EagerNan.truth) == ("different", 17)
    assert (first["epoch"], first["step"], first["stage"]) == (4, 2, "loss"), "five steps to an epoch"
    assert entry["causes"][0]["id"] == "not-finite" and entry["causes"][0]["side"] == "mine"
    measured = entry["causes"][0]["measurements"]
    assert (measured["stage"], measured["value"], measured["other_value"][:2]) == ("loss", "nan", "0.")
    assert not (tmp_path / "run" / "twins").exists(), "no noise twins are trained"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "mine does not train like fit: after step 2 of epoch 4, 4 of 4 variables of mine are NaN or infinite" in page


def test_a_full_run_names_the_step_of_a_loss_that_is_infinite_while_gradients_are_not(
    loops: Any, tmp_path: Path, capsys: Any
) -> None:
    result = compare.run(
        loops.experiment(loops.InfiniteLoss), trainers=("fit", loops.InfiniteLoss(12)), strategy="default", epochs=4,
        batch_size=16, reports=tmp_path, name="run",
    )  # fmt: skip
    (entry,) = result.details["comparisons"]
    measured = entry["causes"][0]["measurements"]
    assert (entry["verdict"], entry["causes"][0]["id"]) == ("different", "not-finite")
    assert [measured[key] for key in ("stage", "training_step", "value")] == ["loss", 12, "inf"]
    assert "; first the loss of step 12 of the training: inf" in capsys.readouterr().out


def test_the_reference_may_be_the_side_that_fails(loops: Any) -> None:
    task, trainer = loops.experiment(loops.Guarded, load_data=loops.one_bad_example), loops.Guarded()
    report = checker_of(task, batch_size=25).check(trainer)
    cause = report.findings[0]
    assert (report.verdict, cause.id, cause.side) == ("different", "not-finite", "fit"), report
    assert report.comparison.training.first_difference.stage == "gradients"


def test_what_both_sides_lose_is_identical_and_a_warning_says_so(loops: Any) -> None:
    import tensorflow as tf

    class Lost(tf.keras.losses.Loss):  # type: ignore[misc]
        def call(self, y: Any, predictions: Any) -> Any:
            return tf.reduce_mean(tf.square(predictions), -1) * math.nan

    with pytest.warns(UserWarning, match="both .* fail: after step 1 of epoch 1, 4 of 4 variables of both are NaN"):
        compare.assert_alike(loops.experiment(loops.Loop, build_loss=Lost, build_metrics=list), "loop")


def test_assert_alike_does_not_pass_a_loss_times_nan(loops: Any) -> None:
    with pytest.raises(AssertionError, match=r"cause: not-finite \(in mine\): "):
        compare.assert_alike(loops.experiment(loops.TimesNan), loops.TimesNan(1))


@pytest.mark.slow
def test_one_seed_of_a_study_that_is_lost_makes_it_different(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    tests = Path(__file__).parent
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(tests)!r})\nimport not_finite_loops as loops\n"
        "experiment = loops.experiment(loops.TimesNan)\nmine = loops.OneLayer(7)\n"
    )
    result = compare.run(
        f"{file}", trainers=("fit", f"{file}:mine"), seeds=2, strategy="default", epochs=2, batch_size=16, quiet=True,
        reports=tmp_path, name="run",
    )  # fmt: skip
    (entry,) = result.details["comparisons"]
    assert (entry["verdict"], entry["training"]["verdict"]) == ("different", "different")
    first = entry["training"]["first_difference"]
    assert (first["epoch"], first["step"], first["stage"]) == (2, 2, "state")
    assert entry["causes"][0]["id"] == "not-finite"


SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf

generator = np.random.default_rng(0)
x, y = generator.normal(size=(60, 8)).astype("float32"), generator.integers(0, 3, 60)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(3)])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
FIT = "model.compile(keras.optimizers.SGD(0.1), loss_fn)\nmodel.fit(x, y, batch_size=20, epochs=4, verbose=0)\n"
LOOP = """
optimizer = keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60).batch(20)
steps = 0
for epoch in range(4):
    for inputs, labels in data:
        steps += 1
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(inputs, training=True))
            loss += 1e-3 * tf.norm(model.layers[0].bias * (0.0 if steps == 8 else 1.0) + (steps < 8))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""


@pytest.mark.slow
def test_two_scripts(tensorflow: Any, tmp_path: Path) -> None:
    scripts = tmp_path / "my_fit.py", tmp_path / "my_loop.py"
    for script, body in zip(scripts, (FIT, LOOP), strict=True):
        script.write_text(SCRIPT + body)
    result = compare.run(scripts=[str(script) for script in scripts], reports=tmp_path, name="run", quiet=True)
    (entry,) = result.details["comparisons"]
    first = entry["training"]["first_difference"]
    assert (result.verdict, first["epoch"], first["step"], first["stage"]) == ("different", 3, 2, "gradients")
    assert "bias" in first["where"] and entry["causes"][0]["id"] == "not-finite"
    assert not (tmp_path / "run" / "twins").exists()


@pytest.mark.slow
def test_what_makes_two_scripts_differ_before_a_value_is_lost_is_named_too(tensorflow: Any, tmp_path: Path) -> None:
    before, after = LOOP.split("            loss = loss_fn(")
    summed = (
        "            loss = (float('nan') if steps == 5 else 20.0) * loss_fn(labels, model(inputs, training=True))\n"
    )
    loop = before + summed + after.split("(steps < 8))\n")[1]
    scripts = tmp_path / "my_fit.py", tmp_path / "my_loop.py"
    for script, body in zip(scripts, (FIT, loop), strict=True):
        script.write_text(SCRIPT + body)
    result = compare.run(scripts=[str(script) for script in scripts], reports=tmp_path, name="run", quiet=True)
    (entry,) = result.details["comparisons"]
    assert [cause["id"] for cause in entry["causes"]] == ["not-finite", "loss-summed"]
    first = entry["training"]["first_difference"]
    assert (first["step"], first["stage"]) == (1, "loss"), "where the first of these mistakes begins"


INFINITE = """
optimizer = keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60).batch(20)
steps = 0
for epoch in range(4):
    mean = keras.metrics.Mean()
    for inputs, labels in data:
        steps += 1
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(inputs, training=True)) + (np.inf if steps == 8 else 0.0)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean.update_state(loss, sample_weight=len(inputs))
    print(f"epoch {epoch + 1} loss {float(mean.result()):.6f}")
"""


def test_the_loss_of_a_script_is_infinite_while_its_gradients_are_not(tensorflow: Any, tmp_path: Path) -> None:
    scripts = tmp_path / "my_fit.py", tmp_path / "my_loop.py"
    for script, body in zip(scripts, (FIT, INFINITE), strict=True):
        script.write_text(SCRIPT + body)
    result = compare.run(scripts=[str(script) for script in scripts], reports=tmp_path, name="run", quiet=True)
    (entry,) = result.details["comparisons"]
    cause = entry["causes"][0]
    assert (entry["verdict"], cause["id"], cause["side"]) == ("different", "not-finite", "my_loop")
    assert [cause["measurements"][key] for key in ("stage", "training_step", "value")] == ["loss", 8, "inf"]
