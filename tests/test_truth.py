"""Comparison with one replica in float64: it tells which trainer is off, or that both are."""

from __future__ import annotations

import dataclasses

import pytest
import tasks
from eager import Eager
from test_thresholds import record

import compare
from compare.errors import RequestError
from compare.reporting.sentences import truth_sentence
from compare.verdict.float64 import distances
from compare.verdict.model import Comparison, Difference, Reporting, Training


def run(tmp_path, **options):
    task = tasks.experiment(train=options.pop("train"))
    options = {"epochs": 1, "batch_size": 8, "float64_reference": True, "reports": tmp_path, "quiet": True} | options
    return compare.run(task, **options)


def distance(truth, place, trainer):
    return next(each["distance"][trainer] for each in truth["after"] if (each["epoch"], each["step"]) == place)


def test_the_trainer_that_is_off_is_named(tensorflow, tmp_path):
    """70 = 4 x 16 + 6: the tutorial gives the last 6 examples too little weight, fit does not."""
    result = run(tmp_path, train=70, trainers=("fit", "tutorial"), replicas=2)
    (comparison,) = result.details["comparisons"]
    assert comparison["training"]["first_difference"] == {"epoch": 1, "step": 5}
    assert comparison["causes"][0]["id"] == "loss-constant-denominator"
    truth = result.details["truth"]
    assert truth["off"] == "tutorial"
    assert distance(truth, (1, 5), "fit") < 1e-5 < 1e-3 < distance(truth, (1, 5), "tutorial")
    assert set(result.metrics["trainer"]) == {"fit", "tutorial", "float64"}


@pytest.mark.slow
def test_the_reference_may_be_off(tensorflow, tmp_path):
    result = run(tmp_path, train=70, trainers=("tutorial", "fit"), replicas=2)
    assert result.details["truth"]["off"] == "tutorial"
    assert result.details["reference"] == "tutorial"


@pytest.mark.parametrize(("train", "uneven"), [pytest.param(72, False, marks=pytest.mark.slow), (73, True)])
def test_identical_trainers_may_both_be_off(tensorflow, tmp_path, train, uneven):
    """9 examples on 2 replicas are 5 and 4, and fit and loop average two means; 8 are 4 and 4."""
    result = run(tmp_path, train=train, replicas=2)
    assert result.verdict == "identical"
    assert [each["candidate"] for each in result.details["comparisons"]] == ["loop"], "the truth is no candidate"
    assert tensorflow.keras.backend.floatx() == "float32", "restored"
    assert tensorflow.keras.layers.Dense(1).dtype_policy.name == "float32", "restored"
    truth = result.details["truth"]
    assert truth["off"] is None
    last = distance(truth, (1, None), "fit")
    assert last == distance(truth, (1, None), "loop")
    assert (last > 1e-4) if uneven else (last < 1e-5)


def test_without_the_option_there_is_no_truth(tensorflow, tmp_path):
    assert (
        "truth" not in run(tmp_path, train=72, trainers=(Eager(), Eager()), replicas=1, float64_reference=False).details
    )


def test_a_float64_run_that_fails_costs_no_verdict(tensorflow, tmp_path):
    def build_model():
        class Single(tensorflow.keras.layers.Dense):
            def call(self, x):
                return tensorflow.matmul(tensorflow.cast(x, "float32"), self.kernel)

        return tensorflow.keras.Sequential([Single(3, use_bias=False)])

    task = tasks.experiment(train=16, validation=8, build_model=build_model)
    options = {"epochs": 1, "batch_size": 8, "float64_reference": True, "reports": tmp_path, "quiet": True}
    result = compare.run(task, strategy="default", **options)
    assert result.verdict == "identical" and "truth" not in result.details

    class Named(Eager):
        name = "float64"

    with pytest.raises(RequestError, match="--float64-reference is called float64 itself"):
        compare.run(task, trainers=("fit", Named()), name="refused", **options)
    assert not (tmp_path / "refused").exists()


def test_distances_are_relative_and_taken_where_the_trainers_diverge():
    truth, fit, loop = record("truth", 0, 2, 4), record("fit", 0, 2, 4), record("loop", 0, 2, 5)
    parting = Comparison("loop", Training("different", None, Difference(1, 2), 1), Reporting(None, {}))
    found = distances(truth, [fit, loop], [parting])
    assert [(each.epoch, each.step) for each in found.after] == [(1, 1), (1, 2), (1, None)]
    assert [each.distance for each in found.after] == [
        {"fit": 0.0, "loop": 0.0},
        {"fit": 0.0, "loop": 0.25},
        {"fit": 0.0, "loop": 0.25},
    ]
    assert found.off == "loop" and found.leaving == {"loop": Difference(1, 2)}
    assert truth_sentence(found).endswith(". So loop is the side that is off from step 2 of epoch 1 on")


@pytest.mark.parametrize(
    ("last", "conclusion"),
    [
        (4.000001, "So fit and loop are as near to it as rounding allows"),
        (5.0, "rounding alone does not explain fit from step 2 of epoch 1 on and loop from step 2 of epoch 1 on"),
    ],
)
def test_of_trainers_that_are_identical_it_is_said_whether_both_are_off(last, conclusion):
    truth, fit, loop = record("truth", 0, 2, 4), record("fit", 0, 2, last), record("loop", 0, 2, last)
    same = Comparison("loop", Training("identical", 0.0, None, 2), Reporting(None, {}))
    found = distances(truth, [fit, loop], [same])
    assert found.off is None and truth_sentence(found).endswith(conclusion)
    early = dataclasses.replace(found, leaving=None)  # of a file that an earlier version has written
    assert truth_sentence(early).endswith("So no side is clearly farther from it than the other")
