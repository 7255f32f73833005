"""Under Keras 2 the trainers keep their contract and the check its judgement: in a process of that generation."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import compare

KERAS_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"


@pytest.mark.skipif(KERAS_2, reason="this process has Keras 2")
def test_the_trainers_and_the_check_pass_their_tests_under_keras_2():
    trainers = Path(__file__).parent / "test_trainers.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(trainers), __file__],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_USE_LEGACY_KERAS": "1"},
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


@pytest.mark.skipif(KERAS_2, reason="this process has Keras 2")
def test_the_other_generation_in_the_same_process_is_refused(tensorflow, tmp_path):
    with pytest.raises(compare.RequestError, match="TF_USE_LEGACY_KERAS=1"):
        compare.run("fashion-mnist-sample", keras=2, reports=tmp_path)


@functools.cache
def checker(model, optimizer, replicas):
    import planted

    from compare import strategies
    from compare.check import Checker
    from compare.trainers.keras_fit import KerasFit

    return Checker(planted.experiment(model, optimizer), KerasFit(), strategies.make("mirrored", replicas))


@pytest.mark.skipif(not KERAS_2, reason="for the process that has Keras 2")
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.parametrize(
    ("cell", "mistake", "cause"),
    [
        (("mlp-weights", "adamw-schedule", 1), "WeightsForgotten", "sample-weights-dropped"),
        (("mlp-weights", "adamw-schedule", 1), "ValidationWeightsForgotten", "validation-sample-weights-dropped"),
        (("mlp-dropout", "sgd", 1), "NoFlagDropout", "training-flag-missing"),
        (("mlp-dropout", "sgd", 1), "ValidationDrops", "validation-in-training-mode"),
    ],
)
def test_the_check_lets_a_right_loop_pass_and_names_a_mistake(tensorflow, cell, mistake, cause):
    import planted

    right, wrong = checker(*cell).check(planted.Loop()), checker(*cell).check(getattr(planted, mistake)())
    assert right.verdict in ("identical", "alike") and not right.findings and not right.evidence, right
    assert wrong.verdict == "different", wrong
    assert {finding.id for finding in wrong.findings} == {cause}, wrong
