"""Trainers and the short check under Keras 2, in processes of that generation."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from against_fit import checker_of
from forked import ROOT, Commands

import compare
from compare.records.files import read_json

KERAS_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"

TRAINERS = [
    "test_a_trainer_reports_every_step_and_every_epoch[fit-2]",
    "test_a_trainer_reports_every_step_and_every_epoch[loop-2]",
    "test_a_trainer_reports_every_step_and_every_epoch[train-step-2]",
    "test_a_trainer_reports_every_step_and_every_epoch[tutorial-2]",
    "test_a_trainer_can_train_again_and_does_the_same_and_with_another_seed_it_does_not[fit]",
    "test_a_trainer_starts_at_the_first_epoch_of_its_run[fit]",
    "test_a_trainer_starts_at_the_first_epoch_of_its_run[loop]",
    "test_fit_and_loop_are_identical_for_every_optimizer[momentum-2]",
    "test_fit_and_loop_are_identical_for_every_optimizer[adamw-schedule-clipped-3]",
    "test_fit_and_loop_are_identical_with[{'weights': True}-3]",
    "test_fit_and_loop_are_identical_with[{'dropout': True}-3]",
    "test_fit_and_loop_are_identical_with[{'train': 69, 'validation': 29}-3]",
    "test_fit_and_loop_are_identical_under[default]",
    "test_fit_and_loop_are_identical_under[central-storage]",
    "test_the_tutorial_diverges_at_the_short_batch",
    "test_weights_changed_before_the_first_step_are_step_0",
]
"""Where the two generations need different code: data and callbacks of fit, optimizers, strategies."""
CHECKED = [
    (("mlp-weights", "adamw-schedule", 1), "WeightsDroppedEverywhere", "sample-weights-dropped"),
    (("mlp-weights", "adamw-schedule", 1), "ValidationWithoutWeights", "validation-sample-weights-dropped"),
    (("mlp-dropout", "sgd", 1), "NoTrainingFlag", "training-flag-missing"),
    (("mlp-dropout", "sgd", 1), "ValidationInTrainingMode", "validation-in-training-mode"),
]


TASK = f"""
import sys

sys.path.append({str(Path(__file__).parent)!r})
from corpus import planted
import tasks

Loop, NoFlag, WeightsForgotten = planted.Loop, planted.NoTrainingFlag, planted.WeightsDroppedEverywhere
uneven = tasks.experiment(train=69, validation=29, batch_norm=True, dropout=True, regularize=True)
weights = planted.experiment("mlp-weights", "adamw-schedule")
dropout = planted.experiment("mlp-dropout", "sgd")
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Runs a command under Keras 2 on an experiment of ``TASK``; returns exit status, output and comparisons."""
    folder = tmp_path_factory.mktemp("keras2")
    commands = Commands(folder, TF_USE_LEGACY_KERAS="1")
    (folder / "task.py").write_text(TASK)

    def run(name, *arguments):
        found = ["--experiment", f"{folder}/task.py:{name}", "--keras", "2", "--reports", str(folder), "--name", name]
        arguments = [argument.replace("task:", f"{folder}/task.py:") for argument in arguments]
        status, out, errors = commands.run([sys.executable, str(ROOT / "scripts" / "compare.py"), *found, *arguments])
        assert errors == ""
        return status, out, read_json(folder / name / "verdict.json")["comparisons"]

    yield run
    commands.server.communicate()


@pytest.mark.skipif(KERAS_2, reason="this process has Keras 2")
def test_fit_and_loop_are_identical_and_the_tutorial_is_not(command):
    """The last batch has 5 examples, 3 on one replica and 2 on the other; all kinds of layers with state."""
    trainers = ["--trainers", "fit", "loop", "train-step", "tutorial"]
    status, out, (loop, train_step, tutorial) = command(
        "uneven", *trainers, "--replicas", "2", "--batch-size", "8", "--epochs", "1"
    )
    assert status == 1 and "Keras 2" in out
    assert [each["verdict"] for each in (loop, train_step, tutorial)] == ["identical", "identical", "different"]
    assert "loss-constant-denominator" in [cause["id"] for cause in tutorial["causes"]]


@pytest.mark.skipif(KERAS_2, reason="this process has Keras 2")
@pytest.mark.parametrize(
    ("name", "mistake", "cause", "stage"),
    [
        pytest.param("weights", "WeightsForgotten", "sample-weights-dropped", "loss", marks=pytest.mark.slow),
        ("dropout", "NoFlag", "training-flag-missing", "predictions"),
    ],
)
def test_the_check_passes_a_correct_loop_and_names_a_mistake(command, name, mistake, cause, stage):
    trainers = ["--trainers", "fit", "task:Loop", f"task:{mistake}"]
    status, _, (right, wrong) = command(name, "--check", *trainers, "--replicas", "1", "--batch-size", "50")
    assert status == 1
    assert right["verdict"] in ("identical", "alike") and right["causes"] == []
    assert wrong["verdict"] == "different" and [found["id"] for found in wrong["causes"]] == [cause]
    assert wrong["training"]["first_difference"]["stage"] == stage


@pytest.mark.slow
@pytest.mark.skipif(KERAS_2, reason="this process has Keras 2")
def test_the_trainers_and_the_check_pass_their_tests_under_keras_2():
    trainers = [str(Path(__file__).parent / "test_trainers.py") + f"::{test}" for test in TRAINERS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *trainers, __file__],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_USE_LEGACY_KERAS": "1"},
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert f"{len(TRAINERS) + len(CHECKED)} passed" in done.stdout


@pytest.mark.skipif(KERAS_2, reason="this process has Keras 2")
def test_the_other_generation_in_the_same_process_is_refused(tensorflow, tmp_path):
    with pytest.raises(compare.RequestError, match="TF_USE_LEGACY_KERAS=1"):
        compare.run("fashion-mnist-sample", keras=2, reports=tmp_path)


@functools.cache
def checker(model, optimizer, replicas):
    from corpus import planted

    return checker_of(planted.experiment(model, optimizer), replicas)


@functools.cache
def right(cell):
    from corpus import planted

    return checker(*cell).check(planted.Loop())


@pytest.mark.skipif(not KERAS_2, reason="for the process that has Keras 2")
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.parametrize(("cell", "mistake", "cause"), CHECKED)
def test_the_check_lets_a_right_loop_pass_and_names_a_mistake(tensorflow, cell, mistake, cause):
    from corpus import planted

    passes, wrong = right(cell), checker(*cell).check(getattr(planted, mistake)())
    assert passes.verdict in ("identical", "alike") and not passes.findings and not passes.evidence, passes
    assert wrong.verdict == "different", wrong
    assert {finding.id for finding in wrong.findings} == {cause}, wrong
