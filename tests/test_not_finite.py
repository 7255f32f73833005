"""A value that is NaN or infinite on one side only is a difference, in every comparison; on both it is a warning."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from recorded import as_json

from compare.check import not_finite
from compare.check.recipe import distance
from compare.check.stages import locate
from compare.check.step_values import relative_gap
from compare.records.model import EPOCH_END, INITIAL, End, Record, Variable, step_dtype
from compare.reporting.numbers import differing_numbers, signed_gap
from compare.reporting.page_comparison import variables
from compare.reporting.sentences import sentence, stops, warning
from compare.verdict.exact import compare_records, noise_start, within_rounding
from compare.verdict.judge import Pair, with_noise, with_study
from compare.verdict.logged import compare_logs
from compare.verdict.model import (
    Comparison,
    DifferingVariable,
    MetricGap,
    Reporting,
    Stop,
    Training,
    Verdict,
    asynchronous,
)
from compare.verdict.seeds import Margin, study
from compare.watch.seen import CloseUp, Event

NAN, INF = math.nan, math.inf
VARIABLES = (Variable("dense/kernel", (), "float32"), Variable("dense/bias", (), "float32"))
Values = Mapping[tuple[int, int], Sequence[float]]

RIGHT: Values = {(1, INITIAL): (0, 0), (1, 1): (1, 2), (1, 2): (2, 4), (1, EPOCH_END): (2, 4), (2, 1): (3, 6)}


def record(name: str, values: Values = RIGHT, logs: Sequence[Mapping[str, float]] = (), seed: int = 0) -> Record:
    """The record of a training whose two variables have these values."""
    rows = np.zeros(len(values), step_dtype(2, 1))
    for row, (place, both) in zip(rows, values.items(), strict=True):
        row["epoch"], row["step"] = place
        row["hashes"] = [[xxhash.xxh3_64_intdigest(np.float64(value).tobytes())] for value in both]
        row["projections"] = [[value, value] for value in both]
    numbered = dict(enumerate(logs, start=1))
    return Record(name, seed, VARIABLES, rows, numbered, Path("/nonexistent"), End())


def spoiled(value: float, since: tuple[int, int], *, variables: Sequence[int] = (0, 1), before: float = 0.0) -> Values:
    """The right values, not finite from a place on; before it they may be off by a little."""
    order = list(RIGHT)
    return {
        place: [
            value
            if order.index(place) >= order.index(since) and i in variables
            else each + before * (place[1] != INITIAL)
            for i, each in enumerate(both)
        ]
        for place, both in RIGHT.items()
    }


ENDS_ONLY = {place: both for place, both in RIGHT.items() if place[1] in (INITIAL, EPOCH_END)}


def until(values: Values, last: tuple[int, int]) -> Values:
    """The part up to a place, after which the trainer stops."""
    order = list(values)
    return {place: values[place] for place in order[: order.index(last) + 1]}


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("swap", [False, True], ids=["candidate", "reference"])
@pytest.mark.parametrize(
    ("lost", "epoch", "step", "variables"),
    [
        (lambda value: spoiled(value, (1, 1)), 1, 1, 2),
        (lambda value: spoiled(value, (2, 1)), 2, 1, 2),
        (lambda value: spoiled(value, (1, 2), variables=[1]), 1, 2, 1),
        (lambda value: spoiled(value, (1, EPOCH_END)), 1, None, 2),
        (lambda value: spoiled(value, (1, INITIAL)), 1, 0, 2),
        (lambda value: spoiled(value, (2, 1), before=1e-7), 2, 1, 2),
        (lambda value: until(spoiled(value, (1, 2)), (1, 2)), 1, 2, 2),
    ],
    ids=["first step", "later", "one variable", "end of an epoch", "from the start", "after rounding", "and stops"],
)
def test_weights_that_one_side_alone_loses_are_different_and_no_twin_is_trained(
    lost: Any, epoch: int, step: int | None, variables: int, value: float, swap: bool
) -> None:
    sides = [record("fit"), record("loop", lost(value))]
    if swap:
        sides = [record("fit", lost(value)), record("loop")]
    comparison = compare_records(*sides)
    assert comparison.verdict == comparison.training.verdict == "different"
    found = comparison.weights_alone
    assert found is not None and (found.epoch, found.step, len(found.variables)) == (epoch, step, variables)
    assert found.side == ("fit" if swap else "loop")
    assert noise_start(*sides, comparison.training) is None
    judged = Pair(*sides, sides[0], comparison).compared([record("twin-1", RIGHT)])
    assert (judged.training.verdict, judged.training.noise) == ("different", None)
    first = judged.training.first_difference
    assert first is not None and (first.epoch, first.step) == (epoch, step)
    json.dumps(as_json("fit", [judged]), allow_nan=False)
    told = sentence(judged, "fit")
    assert "NaN or infinite" in told and "rounding" not in told and "twin" not in told
    (cause,) = not_finite.findings(judged, "fit", None)
    assert (cause.id, cause.kind, cause.side) == ("not-finite", "training", found.side)
    assert cause.measurements["epoch"] == epoch and cause.measurements["step"] == step


def test_a_side_whose_steps_were_not_seen_is_compared_at_the_end_of_the_epoch() -> None:
    stopped = record("loop", until(spoiled(NAN, (1, 2)), (1, 2)))
    comparison = compare_records(record("fit", ENDS_ONLY), stopped)
    assert comparison.verdict == "different" and comparison.weights_alone is not None
    assert (comparison.weights_alone.side, comparison.weights_alone.step) == ("loop", 2)
    both = compare_records(
        record("fit", spoiled(NAN, (1, 2))), record("loop", {**ENDS_ONLY, (1, EPOCH_END): (NAN, NAN)})
    )
    assert both.weights_alone is None, "it may have been the same step"


def test_what_was_not_recorded_is_not_said_to_be_finite() -> None:
    short, longer = record("fit", until(RIGHT, (1, 1))), record("loop", spoiled(NAN, (1, 2)))
    assert compare_records(short, longer).weights_alone is None


@pytest.mark.parametrize("value", [NAN, INF])
def test_both_sides_lost_from_the_same_step_on_are_identical_with_a_warning(value: float) -> None:
    sides = [record(name, spoiled(value, (1, 2))) for name in ("fit", "loop")]
    comparison = compare_records(*sides)
    assert comparison.verdict == "identical" and comparison.weights_alone is None
    assert comparison.not_finite[0].side is None
    assert "both loop and fit fail: after step 2 of epoch 1, 2 of 2 variables" in warning(comparison, "fit")
    assert not_finite.findings(comparison, "fit", None) == []


def test_a_mask_that_is_infinite_from_the_start_is_no_failure() -> None:
    masked = {place: (-INF, both[1]) for place, both in RIGHT.items()}
    comparison = compare_records(record("fit", masked), record("loop", masked))
    assert comparison.verdict == "identical" and comparison.not_finite == ()
    assert not warning(comparison, "fit")


def test_values_lost_on_both_sides_but_not_the_same_are_not_called_identical() -> None:
    ours, theirs = (record(name, spoiled(value, (1, 2))) for name, value in (("fit", NAN), ("loop", INF)))
    training = compare_records(ours, theirs).training
    assert training.verdict == "inconclusive" and "on both sides not all of their values are finite" in training.reason


def test_several_workers_that_do_not_wait_excuse_no_value_that_is_lost() -> None:
    comparison = compare_records(record("fit"), record("loop", spoiled(NAN, (1, 2))))
    assert asynchronous(comparison).verdict == "different"


# Reported numbers


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "side"),
    [
        (0.5, NAN, "different", "loop"),
        (0.5, INF, "different", "loop"),
        (NAN, 0.5, "different", "fit"),
        (-INF, 0.5, "different", "fit"),
        (NAN, NAN, "identical", ""),
        (INF, INF, "identical", ""),
        (NAN, INF, "different", None),
        (INF, -INF, "different", None),
        (1.7e308, -1.7e308, "different", None),
        (0.5, 0.5, "identical", None),
    ],
)
def test_a_reported_number(ours: float, theirs: float, verdict: str, side: str | None) -> None:
    fit, loop = record("fit", logs=[{"val_loss": ours}]), record("loop", logs=[{"val_loss": theirs}])
    comparison = compare_records(fit, loop)
    assert comparison.verdict == verdict and comparison.training.verdict == "identical"
    gap = 0.0 if verdict == "identical" else None
    assert comparison.reporting == Reporting(verdict, {"val_loss": MetricGap(gap, 1)})
    assert [each.side or "" for each in comparison.not_finite] == ([] if side is None else [side])
    found = not_finite.findings(comparison, "fit", None)
    assert [(each.id, each.kind, each.side) for each in found] == ([("not-finite", "reporting", side)] if side else [])
    assert within_rounding(fit, loop) == (verdict == "identical")
    json.dumps(as_json("fit", [comparison]), allow_nan=False)
    assert bool(warning(comparison, "fit")) == (side == "")


def test_a_number_that_is_lost_is_compared_though_it_is_missing_later() -> None:
    theirs = [{"loss": 0.5, "val_loss": NAN}, {"loss": 0.5}]
    comparison = compare_records(record("fit", logs=[{"loss": 0.5, "val_loss": 0.6}] * 2), record("loop", logs=theirs))
    assert comparison.verdict == "different", comparison.reporting
    assert differing_numbers(comparison.reporting.metrics) == "val_loss (NaN or infinite, in epoch 1)"


def test_a_number_that_is_lost_is_different_though_the_weights_differ_by_rounding() -> None:
    fit = record("fit", logs=[{"loss": 0.5}])
    loop = record("loop", spoiled(0.0, (2, 1), variables=[], before=1e-7), [{"loss": NAN}])
    comparison = with_noise(
        compare_records(fit, loop), fit, loop, [record("twin-1", spoiled(0, (2, 1), variables=[], before=1e-7))]
    )
    judged = comparison.held_different()
    assert (judged.training.verdict, judged.reporting.verdict) == ("alike", "different")
    assert sentence(judged, "fit").startswith("loss of epoch 1 is nan with loop and 0.5 with fit")


def test_a_number_that_follows_from_lost_weights_is_no_second_difference() -> None:
    loop = record("loop", spoiled(NAN, (1, 1)), [{"loss": NAN}])
    comparison = compare_records(record("fit", logs=[{"loss": 0.5}]), loop)
    assert comparison.weights_alone is not None and comparison.number_alone is None
    assert comparison.reporting.verdict is None


def test_a_number_that_is_lost_on_both_sides_has_no_gap() -> None:
    assert [signed_gap(*pair) for pair in ((NAN, NAN), (INF, INF), (0.5, 0.75), (None, NAN))] == [
        "0",
        "0",
        "+0.25",
        "",
    ]
    assert signed_gap(0.5, NAN) == signed_gap(NAN, 0.5) == "+nan"


def test_numbers_that_float32_does_not_tell_apart_have_a_gap_of_about_0() -> None:
    exact = 1.1 / 1.2
    assert signed_gap(exact, float(np.float32(exact))) == "≈ 0"
    assert signed_gap(exact, exact + 6e-8) == "+6e-08", "the next float32"
    assert (signed_gap(1e300, 2e300), signed_gap(1e-50, 3e-50)) == ("+1e+300", "+2e-50")


# Studies and logs


def seeds(*numbers: float, name: str = "fit") -> list[Record]:
    return [record(name, logs=[{"val_loss": number}], seed=seed) for seed, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ((0.5, 0.5, 0.5), (0.5, NAN, 0.5), "different"),
        ((0.5, INF, 0.5), (0.5, 0.5, 0.5), "different"),
        ((0.5, NAN, 0.5), (0.5, NAN, 0.5), "alike"),
        ((NAN, NAN, NAN), (NAN, NAN, NAN), "inconclusive"),
        ((INF, INF, INF), (INF, INF, INF), "alike"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), "alike"),
        ((0.0, 0.0, 0.0), (9.0, 9.0, 9.0), "inconclusive"),
    ],
)
def test_a_study(ours: Sequence[float], theirs: Sequence[float], verdict: str) -> None:
    margin = [Margin("val_loss", 0.02, relative=True)]
    assert study(seeds(*ours), seeds(*theirs, name="loop"), margin).verdict == verdict


def test_a_study_whose_numbers_agree_does_not_excuse_weights_that_are_lost() -> None:
    alike = study(seeds(0.5, 0.5, 0.5), seeds(0.5, 0.5, 0.5, name="loop"), [Margin("val_loss", 0.02)])
    comparison = compare_records(record("fit"), record("loop", spoiled(NAN, (1, 2), variables=[1])))
    assert alike.verdict == "alike"
    assert with_study(comparison, alike, known_cause=False).training.verdict == "different"


@pytest.mark.parametrize(("ours", "theirs", "verdict"), [(0.5, NAN, "different"), (NAN, NAN, "alike")])
def test_logs(ours: float, theirs: float, verdict: str) -> None:
    fit, loop = (
        [record(name, {}, [{"loss": 0.7345678}, {"loss": value}])] for name, value in (("fit", ours), ("loop", theirs))
    )
    comparison = compare_logs(fit, loop, [Margin("val_loss", 0.02)])
    assert comparison.verdict == verdict
    assert [each.side for each in not_finite.findings(comparison, "fit", None)] == ["loop"] * (verdict == "different")


# The short check


@pytest.mark.parametrize(
    ("gap", "noise", "match"),
    [
        (0.0, 1e-7, True),
        (1e-7, 1e-7, True),
        (1.0, 1e-7, False),
        (NAN, 1e-7, False),
        (INF, 1e-7, False),
        (NAN, NAN, False),
        (1.0, NAN, False),
        (1.0, INF, False),
        (INF, INF, False),
        (0.0, NAN, True),
        (0.0, INF, True),
    ],
)
def test_a_weight_gap(gap: float, noise: float, match: bool) -> None:
    one = np.array([[gap]])
    from compare.check.weight_gaps import WeightGaps

    gaps = WeightGaps(["kernel"], 1, one, np.array([[noise]]), np.array([[0.1]]))
    assert gaps.all_match == gaps.trained_match == match
    assert gaps.failing == ([] if match else [0])
    assert not np.isnan(gaps.ratios).any() and not np.isnan(gaps.relative).any()


def test_no_weights_at_all_match() -> None:
    empty = np.zeros((0, 0))
    from compare.check.weight_gaps import WeightGaps

    assert WeightGaps([], 0, empty, empty, empty).all_match


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, 2.0], [INF, 2.0], INF),
        ([0.0, 0.0], [0.0, NAN], INF),
        ([], [], 0.0),
    ],
)
def test_the_distance_of_two_gradients(a: list[float], b: list[float], expected: float) -> None:
    assert distance([np.array(a)], [np.array(b)]) == expected
    assert relative_gap(a, b) == expected


def test_the_relative_gap_of_equal_losses_and_of_other_shapes() -> None:
    assert relative_gap([NAN], [NAN]) == relative_gap([INF], [INF]) == 0.0
    assert relative_gap([NAN], [INF]) == relative_gap([1.0], [1.0, 2.0]) == relative_gap([], [1.0]) == INF


@pytest.mark.parametrize(
    ("observed", "right", "text"),
    [
        ([2.0, 2.0], [1.0, 1.0], 2.0),
        ([NAN, 1.0], [1.0, 1.0], "not finite"),
        ([1.0, 1.0], [INF, 1.0], "not finite"),
        ([1.0, 1.0], [0.0, 0.0], "not zero"),
    ],
)
def test_a_multiple_of_a_gradient_is_a_number_or_said_in_words(observed: Any, right: Any, text: str) -> None:
    from compare.check.judge import _multiple  # with TensorFlow, which the other tests here do without

    assert _multiple(np.array(observed), np.array(right)) == text


# Inside a step


def event(kind: str, *arrays: Any, **info: Any) -> Event:
    return Event(kind, 0, info, [np.asarray(array, np.float32) for array in arrays])


def step(
    *, inputs: Any = 1, weights: Any = 1, layer: Any = 1, loss: Any = 1, labels: Any = 1, sample_weights: Any = 1,
    gradient: Any = 1, rate: Any = 0.1, updated: Any = 1, before: Any = 1, after: Any = 1,
) -> CloseUp:  # fmt: skip
    """What is seen of step 2, whose model has one variable."""
    events = [
        event("inputs", [inputs, 1], model="model"),
        event("weights", [weights], model="model"),
        event("layer", [layer, 1], name="dense"),
        event("predictions", [layer, 1], model="model"),
        event("targets", [labels, 1], [layer, 1], [sample_weights, 1], loss, true=1, predicted=1, weights=1),
        event("loss", loss, targets=1, penalties=0),
        event("gradients", rate, [gradient, 1], positions=[0]),
        event("updated", [updated, 1]),
    ]
    return CloseUp({2: events}, {1: [np.float32([before])], 2: [np.float32([after])]}, ["kernel"])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("spoils", "stage", "where"),
    [
        ({"inputs": 0, "layer": 0, "loss": 0, "gradient": 0, "updated": 0}, "inputs", ""),
        ({"weights": 0, "layer": 0, "loss": 0}, "state", "kernel, before the step"),
        ({"before": 0, "weights": 0, "layer": 0}, "state", "kernel, before the step"),
        ({"layer": 0, "loss": 0, "gradient": 0}, "predictions", "dense"),
        ({"labels": 0, "loss": 0}, "inputs", "labels"),
        ({"sample_weights": 0, "loss": 0}, "inputs", "sample weights"),
        ({"loss": 0, "gradient": 0, "updated": 0, "after": 0}, "loss", ""),
        ({"gradient": 0, "updated": 0, "after": 0}, "gradients", "kernel"),
        ({"rate": 0, "updated": 0, "after": 0}, "update", "the learning rate"),
        ({"updated": 0, "after": 0}, "update", "kernel"),
        ({"after": 0}, "state", "kernel, after the update"),
    ],
)
def test_the_first_value_of_a_step_gives_its_stage(
    spoils: Mapping[str, int], stage: str, where: str, value: float
) -> None:
    lost = step(**dict.fromkeys(spoils, value))
    for other in (step(), CloseUp({})):
        found = not_finite.first_value(lost, other, 2, ["kernel"])
        assert found is not None and (found.stage, found.where) == (stage, where)
        assert not other.steps or found.other
    assert not_finite.first_value(step(), lost, 2, ["kernel"]) is None


def test_what_both_sides_have_is_not_the_first_value() -> None:
    masked, lost = step(layer=-INF), step(layer=-INF, loss=NAN)
    found = not_finite.first_value(lost, masked, 2, ["kernel"])
    assert found is not None and (found.stage, found.value, found.other) == ("loss", "nan", "1")


def test_a_gradient_that_is_lost_differs_from_one_that_is_zero_or_beside_an_infinite_one() -> None:
    def gradients(*values: float) -> CloseUp:
        events = [event("gradients", 0.1, *([value] for value in values), positions=range(len(values)))]
        return CloseUp({1: events}, {}, ["a", "b"])

    for ours, theirs in (((0.0, 1.0), (NAN, 1.0)), ((INF, 1.0), (INF, 2.0)), ((NAN, 1.0), (NAN, 2.0))):
        located = locate(gradients(*ours), gradients(*theirs), [], 1, ["a", "b"])
        assert located.stage == "gradients", (ours, theirs)
    assert locate(gradients(NAN, 1.0), gradients(NAN, 1.0), [], 1, ["a", "b"]).stage is None
    assert len(gradients(NAN, 1.0).gradients(1)) == 2


def test_weights_that_stay_lost_between_two_steps_are_no_change_of_state() -> None:
    lost = CloseUp(step().steps, {1: [np.float32([NAN])], 2: [np.float32([NAN])]}, ["kernel"])
    located = locate(step(), lost, [], 2, ["kernel"])
    state = located.of("state")
    assert state is None or not state.differs or state.where == "kernel"


def test_where_training_stopped_is_said_beside_the_verdict() -> None:
    (text,) = stops(Verdict("fit", stopped=(Stop("loop", 0, 1, 2, "2 of 2 variables are not finite"),)))
    assert (
        text == "loop stopped after step 2 of epoch 1 and is compared up to that point: 2 of 2 variables are not finite"
    )


def test_a_comparison_without_such_values_says_nothing_of_them() -> None:
    comparison = Comparison("loop", Training("identical", 0.0, None, 3), Reporting("identical", {}))
    assert comparison.held_different() == comparison == comparison.led_by_not_finite()
    assert "not_finite" not in as_json("fit", [comparison])["comparisons"][0]


def test_variables_whose_gap_is_no_number_come_first_on_the_page() -> None:
    gaps = tuple(DifferingVariable(name, gap) for name, gap in (("a", 0.0), ("b", None), ("c", 2.0)))
    training = Training("different", None, None, 1, differing_variables=gaps)
    found = variables(Comparison("loop", training, Reporting(None, {})))
    assert [each.name for each in found] == ["b", "c", "a"]


def test_an_array_without_numbers_is_shown_by_its_size() -> None:
    assert not_finite.shown(np.zeros(0, np.float32)) == "0 values"
    assert not_finite.shown(np.array([1, 2])) == "2 values"
    assert not_finite.shown(np.array([1.0, 2.0])) == "1 to 2"
