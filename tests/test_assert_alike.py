"""The short check as users meet it: in their own tests, by ``--check``, and when a comparison ends different."""

from __future__ import annotations

import json

import pytest
import tasks

import compare
from compare import cli


def test_a_correct_loop_passes_and_a_wrong_one_is_told_why(tensorflow):
    class Doubled(compare.CustomLoop):
        name = "doubled"

        def compute_loss(self, *args):
            return 2 * super().compute_loss(*args)

    compare.assert_alike(tasks.experiment(), compare.CustomLoop())
    with pytest.raises(AssertionError, match="loss-scaled"):
        compare.assert_alike(tasks.experiment(), Doubled())


def test_the_command_can_check_alone(tensorflow, tmp_path, capsys):
    arguments = ["--experiment", "fashion-mnist-sample", "--check", "--trainers", "fit", "tutorial"]
    assert cli.main([*arguments, "--reports", str(tmp_path), "--name", "run"]) == 1
    assert "loss-constant-denominator" in capsys.readouterr().out
    verdict = json.loads((tmp_path / "run/verdict.json").read_text())
    assert verdict["scope"] == "check"
    assert verdict["verdict"] == "different"
    causes = verdict["comparisons"][0]["causes"]
    assert [cause["id"] for cause in causes] == ["loss-constant-denominator", "loss-averaged-over-batches"]
    assert all(cause["evidence"] and cause["remedy"] for cause in causes)
    assert not (tmp_path / "run/metrics.csv").exists()


def test_the_check_is_refused_where_it_cannot_run(tmp_path):
    with pytest.raises(compare.RequestError, match="--check runs in one process"):
        compare.run("fashion-mnist-sample", check=True, strategy="multi-worker", reports=tmp_path)
