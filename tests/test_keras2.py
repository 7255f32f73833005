"""The trainers keep their contract under Keras 2 as well: the same tests, in a process of that generation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import compare


def test_the_trainers_pass_the_same_tests_under_keras_2():
    tests = Path(__file__).parent / "test_trainers.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_USE_LEGACY_KERAS": "1"},
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


@pytest.mark.skipif(os.environ.get("TF_USE_LEGACY_KERAS") == "1", reason="this process has Keras 2")
def test_the_other_generation_in_the_same_process_is_refused(tensorflow, tmp_path):
    with pytest.raises(compare.RequestError, match="TF_USE_LEGACY_KERAS=1"):
        compare.run("fashion-mnist-sample", keras=2, reports=tmp_path)
