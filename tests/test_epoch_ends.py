"""Where the epochs of two loops end, from what is seen of both; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compare.app.script_runs import write_records
from compare.app.scripts import _unknown_ends
from compare.app.scripts_session import ModelPair
from compare.check.causes.reporting import never_reset
from compare.records.metrics_csv import MetricsFile
from compare.records.model import Variable, step_dtype
from compare.records.reader import read_records
from compare.watch.epoch_ends import EpochEnds
from compare.watch.reported_logs import logs_by_epoch
from compare.watch.trace import FitEpoch, Reported, Trace

LAST = 12


def loop(*reported: Iterable[Reported], last: int = LAST, whole: bool = True) -> Trace:
    """A loop's training of some steps, of which this is seen."""
    rows = np.zeros(last, step_dtype(1, 1))
    rows["step"] = np.arange(1, last + 1)
    return Trace((), 1, rows, reported=[each for reads in reported for each in reads], whole=whole)


def reads(steps: Iterable[int], resets: Iterable[int], metric: int = 0, validates: bool = False) -> list[Reported]:
    """A metric that counts one value in each step, or four in each validation, and begins anew after some steps."""
    found, begun, validations = [], 0, 0
    for step in range(1, LAST + 1):
        if step in [*steps]:
            validations += 4
            counted = validations if validates else step - begun
            found.append(Reported(step, "mean", "Mean", 0.5, 0, metric, not validates, counted=counted))
        if step in [*resets]:
            begun, validations = step, 0
    return found


def given(*epochs: tuple[int, int]) -> list[Reported]:
    """What ``compare.report`` is given after steps, of epochs."""
    return [Reported(step, "loss", "", 0.5, epoch) for step, epoch in epochs]


ENDS, EVERY = (4, 8, 12), range(1, LAST + 1)
RESET = loop(reads(ENDS, ENDS))


@pytest.mark.parametrize("other", [
    RESET,
    loop(reads(ENDS, ())),
    loop(reads((2, *ENDS), ENDS)),  # printed within epochs
    loop(reads((1, 3, 4, 5, 7, 8, 9, 11, 12), ())),
    loop(reads(ENDS, ENDS), reads(ENDS, ENDS, 1, validates=True)),
    loop(reads(ENDS, ENDS), reads(EVERY, (), 1)),
    loop(given((4, 1), (8, 2), (12, 3))),
    loop(given((2, 1), (4, 1), (6, 2), (8, 2), (10, 3), (12, 3))),
    loop(given((4, 1), (8, 2), (12, 3)), reads((3, 6, 9, 12), (3, 6, 9, 12))),  # which it says itself
])  # fmt: skip
def test_epochs_of_loops_end_where_both_report_and_one_begins_anew(other: Trace) -> None:
    assert EpochEnds.of(RESET, other).ends == EpochEnds.of(other, RESET).ends == ENDS


def made_anew(*metrics: list[Reported]) -> list[Reported]:
    """Metrics of which each epoch has new ones, read after the same steps."""
    in_order = [each for at_step in zip(*metrics, strict=True) for each in at_step]
    return [replace(each, metric=number) for number, each in enumerate(in_order)]


@pytest.mark.parametrize("both", [
    RESET,
    loop(made_anew(reads(ENDS, ENDS))),
    loop(made_anew(reads(ENDS, ENDS), reads(ENDS, ENDS, validates=True))),
    loop(reads(ENDS, ENDS), reads(EVERY, EVERY, 1)),  # a loss of each step
    loop(reads(ENDS, ENDS), reads((12,), (), 1, validates=True)),  # tested once
    loop([*reads(ENDS, ENDS), replace(reads(ENDS, ENDS)[-1], counted=9)]),  # tested with the same metric
    loop([Reported(0, "mean", "Mean", 0.1, counted=4), *reads(ENDS, ENDS)]),  # evaluated before training
    loop(given((4, 1), (8, 2), (12, 3))),
])  # fmt: skip
def test_two_loops_that_do_the_same_have_its_epochs(both: Trace) -> None:
    assert EpochEnds.of(both, both).ends == ENDS


@pytest.mark.parametrize("other", [
    loop(),
    loop(reads((12,), ())),
    loop(reads(EVERY, ())),
    loop(reads((2, 4, 8), ())),  # not after the last step
    loop(reads((2, 4, 6, 8, 10, 12), (2, 4, 6, 8, 10, 12))),
    loop(reads((6, 12), (6, 12))),
    loop(reads(ENDS, ENDS), reads((6, 12), (6, 12), 1, validates=True)),
    loop(reads((4, 8), (4, 8)), last=8),
    loop(given((4, 1), (8, 2))),
    loop(given((8, 1), (12, 2))),  # numbered from 0
    loop(given((4, 1), (8, 3), (12, 10**12))),
    loop([replace(each, updating=True) for each in reads(ENDS, ENDS)]),
])  # fmt: skip
def test_loops_that_are_not_seen_to_agree_have_one_epoch(other: Trace) -> None:
    assert EpochEnds.of(RESET, other) == EpochEnds.of(other, RESET) == EpochEnds()


@pytest.mark.parametrize("both", [
    loop(reads(EVERY, ())),
    loop(reads(EVERY, EVERY)),
    loop(reads(ENDS, ())),  # may be printed in one epoch
    loop(reads((2, 5, 7, 10, 12), (5, 10))),  # as a counter of the whole training's steps does
    loop(reads((1, 3, 5, 7, 9, 11), (6,))),
    loop(reads((4, 12), (4, 8))),  # not regularly
    loop(reads(ENDS, ENDS, validates=True)),  # validates now and then
    loop([replace(each, counted=0.0) for each in reads(ENDS, ENDS)]),  # of a metric that counts nothing
    loop(given((12, 1))),
    loop(given(*((step, step) for step in EVERY))),
])  # fmt: skip
def test_what_may_be_said_within_an_epoch_is_no_end_of_one(both: Trace) -> None:
    assert EpochEnds.of(both, both) == EpochEnds()


def test_what_is_printed_within_epochs_is_told_from_their_ends_by_the_reset() -> None:
    both = loop(reads(range(2, LAST + 1, 2), (6, 12)))
    assert EpochEnds.of(both, both).ends == (6, 12)


@pytest.mark.parametrize(("last", "ends"), [(11, (4, 8)), (13, ENDS), (17, ())])
def test_a_training_that_is_cut_short_has_ended_the_epochs_before(last: int, ends: tuple[int, ...]) -> None:
    both = loop(reads((2, *ENDS), ENDS), last=last, whole=False)
    assert EpochEnds.of(both, both).ends == ends
    assert EpochEnds.of(both, replace(both, whole=True)) == EpochEnds(), "it is not cut short, but goes on"


def test_the_epochs_of_fit_are_those_of_a_loop() -> None:
    fit = replace(loop(), epochs=[FitEpoch(6, {}, 1.0), FitEpoch(12, {}, 1.0)])
    assert EpochEnds.of(fit, RESET).ends == EpochEnds.of(RESET, fit).ends == (6, 12)


def test_numbers_of_loops_are_those_of_their_epochs() -> None:
    other = loop(reads(ENDS, ()))
    ends = EpochEnds.of(RESET, other).ends
    assert [numbers for numbers, _ in logs_by_epoch(other, ends, RESET).values()] == [{"mean": 0.5}] * 3
    assert never_reset(other, ends, RESET) == {"mean": [4, 8, 12]}


@pytest.mark.parametrize(("other", "said"), [(RESET, False), (loop(reads(EVERY, ())), True)])
def test_that_epochs_are_not_known_is_said_of_numbers_that_are_read_more_than_once(other: Trace, said: bool) -> None:
    assert bool(_unknown_ends(ModelPair(("a", "b"), (other, other), EpochEnds.of(other, other)))) is said
    once = loop(reads((LAST,), ()))
    assert _unknown_ends(ModelPair(("a", "b"), (once, once), EpochEnds())) == []


def test_records_say_whether_they_have_numbers(tmp_path: Path) -> None:
    trace = replace(RESET, variables=(Variable("w", (1,), "float32"),))
    metrics, sides = MetricsFile(tmp_path / "metrics.csv"), (("a", trace), ("b", loop()), ("c", None))
    found = [write_records(tmp_path, name, trace, EpochEnds(ENDS), like, metrics) for name, like in sides]
    assert found == [True, False, False]
    assert metrics.epochs("a", 0) == [1, 2, 3]


def test_a_loop_that_drops_the_last_batch_has_the_numbers_of_all_its_epochs(tmp_path: Path) -> None:
    trace = replace(RESET, variables=(Variable("w", (1,), "float32"),))
    metrics, of_fit = MetricsFile(tmp_path / "metrics.csv"), EpochEnds((5, 10, 15))
    assert write_records(tmp_path, "loop", trace, of_fit, trace, metrics)
    (record,) = read_records(tmp_path)
    assert [dict(record.logs[epoch]) for epoch in (1, 2, 3)] == [{"mean": 0.5}] * 3
    assert of_fit.own_of(replace(trace, whole=False)) == of_fit.ends, "it was cut short"
    assert EpochEnds((7, 14)).own_of(trace) == (7, 14), "it has other epochs"


@pytest.mark.parametrize(
    ("steps", "left"),
    [([1, 2, 3, 4], {1, 2, 3, 4}), ([4], set()), ([2, 4], set()), ([1, 4], {1}), ([2, 4, 6], {1, 2, 3}), ([3], {1})],
)
def test_numbers_of_fit_are_those_of_the_same_steps_where_equal_trainings_have_other_epochs(
    steps: list[int], left: set[int]
) -> None:
    """Where numbers of steps differ, so do the trainings, and their numbers are only shown."""
    fit = Trace((), 1, np.zeros(0), "fit", epochs=[FitEpoch(each, {"loss": 0.5}, 1.0) for each in steps])
    logs = logs_by_epoch(fit, [1, 2, 3, 4], fit)
    assert {epoch for epoch, (numbers, _) in logs.items() if numbers} == left
