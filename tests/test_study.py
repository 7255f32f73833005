"""Studies over seeds: alike only with proof, different only with proof, and else how many seeds would do."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from compare.records.codec import encode
from compare.records.model import Record
from compare.reporting.sentences import sentence
from compare.reporting.tables import study_table
from compare.verdict.judge import with_study
from compare.verdict.model import Comparison, Reporting, Training
from compare.verdict.seeds import DEFAULT_MARGINS, Margin, Study, seeds_needed, study

ACCURACY = (Margin("val_accuracy", 0.01),)


def records(values: Sequence[Sequence[float]], metric: str = "val_accuracy") -> list[Record]:
    """Records of one trainer: values[seed][epoch - 1]."""
    empty = np.zeros(0)
    return [
        Record("it", seed, (), empty, {epoch: {metric: value} for epoch, value in enumerate(of_seed, 1)}, Path())
        for seed, of_seed in enumerate(values)
    ]


def pair(differences: Sequence[float], base: float = 0.9) -> Study:
    reference = records([[base]] * len(differences))
    return study(reference, records([[base + difference] for difference in differences]), ACCURACY)


def test_small_differences_of_many_seeds_are_alike_and_large_ones_are_different() -> None:
    assert pair([0.001, -0.001, 0.002, 0.0, -0.002]).verdict == "alike"
    assert pair([0.031, 0.029, 0.032, 0.03, 0.028]).verdict == "different"
    assert pair([-0.031, -0.029, -0.032, -0.03, -0.028]).verdict == "different"


def test_no_difference_found_is_no_proof_of_sameness() -> None:
    """Few and noisy: not significantly other than zero, and not proved to be within the margin."""
    found = pair([0.02, -0.02, 0.015])
    assert stats.ttest_1samp([0.02, -0.02, 0.015], 0).pvalue > 0.5
    assert found.verdict == "inconclusive"
    assert found.seeds_needed is not None and found.seeds_needed > 3


def test_a_difference_that_is_certain_but_within_the_margin_is_alike() -> None:
    differences = [0.0051, 0.0049, 0.005, 0.0052]
    assert stats.ttest_1samp(differences, 0).pvalue < 1e-4
    assert pair(differences).verdict == "alike"


def test_one_seed_proves_nothing() -> None:
    found = pair([0.0])
    assert (found.verdict, found.tests[0].p, found.seeds_needed) == ("inconclusive", None, None)


def test_the_p_value_and_the_interval_are_scipys() -> None:
    generator = np.random.default_rng(5)
    differences = generator.normal(0.003, 0.004, 12)
    (test,) = pair(list(differences), base=0.0).tests
    above = stats.ttest_1samp(differences, -0.01, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, 0.01, alternative="less").pvalue
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    assert test.p == pytest.approx(max(above, below))
    assert (test.low, test.high) == pytest.approx((interval.low, interval.high))
    assert test.mean == pytest.approx(differences.mean())
    assert (test.verdict == "alike") == (test.p <= 0.05) == (interval.low > -0.01 and interval.high < 0.01)


def test_every_epoch_must_be_alike() -> None:
    reference = records([[0.5, 0.6, 0.7]] * 6)
    small, large = [0.001, -0.001, 0.0, 0.001, -0.001, 0.0], [0.05, 0.049, 0.051, 0.05, 0.048, 0.052]
    same = records([[0.5 + d, 0.6 - d, 0.7 + d] for d in small])
    parted = records([[0.5 + d, 0.6 - d + e, 0.7 + d] for d, e in zip(small, large, strict=True)])
    assert study(reference, same, ACCURACY).verdict == "alike"
    found = study(reference, parted, ACCURACY)
    assert found.verdict == "different"
    assert [(test.epoch, test.verdict) for test in found.tests] == [(1, "alike"), (2, "different"), (3, "alike")]


def test_many_epochs_do_not_make_a_difference_out_of_chance() -> None:
    """At most one study in twenty may call the same trainer different, however many epochs it has."""
    generator = np.random.default_rng(11)
    wrong = 0
    for _ in range(200):
        differences = generator.normal(0.01, 0.01, (5, 20))  # exactly at the margin, the worst case
        reference = records([[0.5] * 20] * 5)
        wrong += study(reference, records(0.5 + differences), ACCURACY).verdict == "different"
    assert wrong <= 20, "10 are to be expected; 21 and more have a probability below 0.1%"


def test_equivalence_is_claimed_wrongly_at_most_as_often_as_stated() -> None:
    generator = np.random.default_rng(12)
    wrong = sum(pair(list(generator.normal(0.01, 0.004, 8)), base=0.0).verdict == "alike" for _ in range(500))
    assert 10 <= wrong <= 45, "25 are to be expected at the margin itself"


def test_a_relative_margin_is_a_fraction_of_the_reference() -> None:
    margin = (Margin("val_loss", 0.02, relative=True),)
    reference = records([[2.0], [4.0], [3.0], [1.0]], "val_loss")
    within = records([[2.0 * 1.004], [4.0 * 0.996], [3.0 * 1.002], [1.0 * 0.999]], "val_loss")
    beyond = records([[2.0 * 1.05], [4.0 * 1.051], [3.0 * 1.049], [1.0 * 1.052]], "val_loss")
    assert study(reference, within, margin).verdict == "alike"
    assert study(reference, beyond, margin).verdict == "different"
    assert study(reference, beyond, margin).tests[0].mean == pytest.approx(0.0505)


def test_a_difference_from_0_is_no_percentage_and_the_answer_says_which_margin_is_to_be_given() -> None:
    margin = (Margin("val_loss", 0.02, relative=True),)
    found = study(records([[0.0]] * 3, "val_loss"), records([[1e-6]] * 3, "val_loss"), margin)
    assert (found.verdict, found.tests[0].mean) == ("inconclusive", None)
    comparison = Comparison("loop", Training("different", None, None, 1), Reporting(None, {}), study=found)
    assert "no percentage of fit's val_loss: give a margin in its own unit, as with --margin val_loss=" in sentence(
        comparison, "fit"
    )
    table = io.StringIO()
    Console(file=table, width=200).print(study_table([comparison]))
    assert "unknown" in table.getvalue() and "+0" not in table.getvalue()


def test_seeds_without_a_partner_are_left_out() -> None:
    reference, candidate = records([[0.5], [0.6], [0.7]]), records([[0.5], [0.6], [0.7], [0.1]])
    assert study(reference, candidate, ACCURACY).seeds == 3


def test_seeds_without_a_number_on_both_sides_are_not_tested() -> None:
    none = records([[0.5], [math.nan], [0.7]])
    assert study(none, records([[0.5], [math.nan], [0.7001]]), ACCURACY).tests[0].seeds == 2


def test_metrics_that_one_side_lacks_are_said() -> None:
    for reference in (records([[1.0]] * 3, "loss"), records([[1.0]] * 3)):
        found = study(reference, records([[1.0]] * 3, "loss"))
        assert (found.verdict, found.tests) == ("inconclusive", ())
    assert "val_accuracy or val_loss" in found.reason and "--margin" in found.reason


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.02), (0.004, 0.01), (-0.005, 0.02)])
def test_the_recommended_seeds_succeed_four_times_in_five(mean: float, deviation: float) -> None:
    needed = seeds_needed(mean, deviation, 0.01)
    assert needed is not None
    trials = np.random.default_rng(3).normal(mean, deviation, (20_000, needed))
    reach = stats.t.ppf(0.95, needed - 1) * trials.std(axis=1, ddof=1) / np.sqrt(needed)
    alike = (trials.mean(axis=1) - reach > -0.01) & (trials.mean(axis=1) + reach < 0.01)
    assert alike.mean() == pytest.approx(0.8, abs=0.03), "a standard error is 0.003; one seed adds up to 0.02"


def test_no_number_of_seeds_helps_a_mean_beyond_the_margin() -> None:
    assert seeds_needed(0.011, 0.001, 0.01) is None
    found = pair([0.02, 0.05, -0.02, 0.04])
    assert (found.verdict, found.seeds_needed) == ("inconclusive", None)


def test_equal_runs_are_identical_not_merely_alike() -> None:
    found = pair([0.0, 0.0, 0.0])
    assert found.verdict == "alike"
    for exact, judged in (("identical", "identical"), ("different", "alike")):
        comparison = Comparison("loop", Training(exact, None, None, 1), Reporting(None, {}))
        assert with_study(comparison, found, known_cause=False).training.verdict == judged


def test_it_is_plain_data() -> None:
    content = encode(pair([0.02, -0.02, 0.015]))
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["tests"][0]["metric"] == "val_accuracy"
    assert [*DEFAULT_MARGINS] == [Margin("val_accuracy", 0.01), Margin("val_loss", 0.02, relative=True)]
