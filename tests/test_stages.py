"""The stage at which a step diverges is found from what was seen inside it; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compare.app.judge import with_located
from compare.check.script_causes import hints, name_causes
from compare.check.sides import Sides
from compare.check.stage_views import stage_sentence, stage_views
from compare.check.stages import STAGES, Located, locate
from compare.records import Variable, step_dtype
from compare.reporting.sentences import sentence
from compare.verdict import DIFFERENT, Comparison, Difference, Reporting, Training, as_json
from compare.watch.seen import CloseUp, Event, row_hashes
from compare.watch.trace import FitEpoch, Trace

NAMES = ["dense/kernel", "dense/bias"]
STEP = 2
ADAM: dict[str, Any] = {"class": "Adam", "config": {"learning_rate": 0.001, "beta_1": 0.9, "clipnorm": None}}


def linear_step(
    *,
    rows: slice = slice(0, 8),
    times: float = 1.0,
    offset: float = 0.0,
    flag: Any = True,
    factor: float = 1.0,
    penalty: float = 0.5,
    with_penalty: bool = True,
    gradient: float = 1.0,
    rate: float = 0.1,
    moved: float = 0.0,
    noise: float = 0.0,
    half: bool = False,
    names: Sequence[int] = (0, 1, 2),
    shuffled: bool = False,
) -> CloseUp:
    """One step of a linear model on 16 examples, with a deviation in the stage that an argument names."""
    random = np.random.default_rng(0)
    x, w, b = random.normal(size=(16, 3)), random.normal(size=(3, 1)), np.ones(1)
    x, w, b = (np.float32(each) * np.float32(1 + noise) for each in (x, w, b))
    before = [w, b]
    start = [w + np.float32(moved), b]
    batch = x[rows] * np.float32(times)
    predicted = batch @ start[0] + start[1] + np.float32(offset)
    loss = np.float32(factor * np.square(predicted).mean() + (penalty if with_penalty else 0))
    gradients = [
        np.float32(gradient * factor * (2 * batch * predicted).mean(0)[:, None]),
        np.float32(gradient * factor * np.float32([2 * predicted.mean()])),
    ]
    after = [value - np.float32(rate) * change for value, change in zip(start, gradients, strict=True)]
    labels = np.float32(names)[np.arange(16) % 3][rows][:, None]
    labels = np.sort(labels, axis=0) if shuffled else labels
    events = [
        Event("inputs", 0, {"model": "m"}, [batch], row_hashes([batch])),
        Event("weights", 0, {"model": "m"}, start),
        Event("layer", 0, {"name": "dense", "class": "Dense"}, [predicted.astype(np.float16 if half else np.float32)]),
        Event("predictions", 0, {"model": "m", "training": flag}, [predicted]),
        Event(
            "targets",
            0,
            {
                "loss": "MeanSquaredError",
                "configuration": {"name": "mean_squared_error"},
                "true": 1,
                "predicted": 1,
                "weights": 0,
            },
            [labels, predicted],
            row_hashes([labels]),
        ),
        Event("loss", 0, {"targets": 1, "penalties": 1}, [loss, np.float32(penalty)]),
        Event("gradients", 0, {"training": 0, "positions": [0, 1]}, [np.float64(rate), *gradients]),
    ]
    first = [Event("inputs", 0, {"model": "m"}, [], row_hashes([x[8:]]))]
    return CloseUp({1: first, STEP: events}, {STEP - 1: before, STEP: after})


TWIN = linear_step(noise=1e-7)


def located(other: CloseUp):
    return locate(linear_step(), other, [TWIN], STEP, NAMES)


@pytest.mark.parametrize(
    ("stage", "deviation"),
    [
        ("examples", {"rows": slice(8, 16)}),
        ("examples", {"rows": slice(0, 5)}),
        ("inputs", {"times": 1 / 255}),
        ("predictions", {"offset": 0.01}),
        ("loss", {"factor": 2.0}),
        ("loss", {"with_penalty": False, "factor": 1.01}),
        ("gradients", {"gradient": 0.5}),
        ("update", {"rate": 0.2}),
        ("state", {"moved": 0.01}),
    ],
)
def test_a_deviation_is_found_in_its_stage(stage: str, deviation: Mapping[str, Any]) -> None:
    assert stage in STAGES
    assert located(linear_step(**deviation)).stage == stage


def test_equal_steps_have_no_stage() -> None:
    assert located(linear_step()).stage is None


def test_rounding_alone_is_no_difference_in_what_comes_before_the_update() -> None:
    found = located(linear_step(noise=3e-7))
    assert not any(each.differs for each in found.stages)
    assert found.stage == "update", "by elimination, as the weights are known to differ by more than rounding"


def test_the_layer_is_named() -> None:
    assert located(linear_step(offset=0.01)).where == "dense"


def test_another_loss_with_the_same_gradients_is_no_fault_of_the_loss() -> None:
    """Whoever minimizes a loss that differs by a constant computes the right gradients."""
    assert located(linear_step(with_penalty=False)).stage is None
    assert located(linear_step(with_penalty=False, rate=0.3)).stage == "update"


def sides(other: CloseUp, **changes: Any) -> Sides:
    variables = (Variable("dense/kernel", (3, 1), "float32"), Variable("dense/bias", (1,), "float32"))
    steps = np.zeros(0, step_dtype(2, 1))
    right = Trace(variables, 1, steps, "fit", [ADAM], epochs=[FitEpoch(2, {}, 1.0)])
    wrong = Trace(variables, 1, steps, "loop", [{**ADAM, "config": {**ADAM["config"], **changes}}])
    return Sides(("fit", "loop"), (right, wrong), (linear_step(), other), STEP)


@pytest.mark.parametrize(
    ("cause", "deviation", "configuration"),
    [
        ("loss-summed", {"factor": 8.0}, {}),
        ("examples-repeated", {"rows": slice(4, 12)}, {}),
        ("training-flag-missing", {"offset": 0.01, "flag": "not given"}, {}),
        ("variables-not-trained", {"gradient": 0.0}, {}),
        ("optimizer-differs", {"rate": 0.2}, {"beta_1": 0.8}),
        ("clipping-differs", {"rate": 0.2}, {"clipnorm": 1.0}),
    ],
)
def test_a_cause_is_named_from_the_stage(cause: str, deviation: Any, configuration: Any) -> None:
    other = linear_step(**deviation)
    (named,) = name_causes(located(other), sides(other, **configuration))
    assert (named.id, named.side) == (cause, "loop")


@pytest.mark.parametrize("half", [True, False])
def test_a_loss_scale_is_a_cause_in_float16_only(half: bool) -> None:
    right = linear_step(factor=2.0**15, gradient=2.0**-15, penalty=0, half=half)
    wrong = linear_step(factor=1, gradient=2.0**-15, penalty=0, half=half)
    found = locate(right, wrong, [], STEP, NAMES)
    named = name_causes(found, replace(sides(wrong), close_ups=(right, wrong)))
    assert found.stage == "loss"
    assert [each.id for each in named] == (["loss-scale-missing"] if half else [])


def fit_with_callback(rate: float) -> tuple[Located, Sides]:
    """fit has a callback that may change rates, and its first epoch is over; its own rate in the step is given."""
    right, other = linear_step(rate=rate), linear_step(rate=0.2)
    found = locate(right, other, [], STEP, NAMES)
    plain = sides(other)
    fit, loop = plain.traces
    fit = replace(fit, epochs=[FitEpoch(1, {}, 1.0)], fit={"epochs": 1, "callbacks": ["LearningRateScheduler"]})
    fit = replace(fit, optimizers=[{**ADAM, "config": {**ADAM["config"], "learning_rate": 0.1}}])
    return found, replace(plain, traces=(fit, loop), close_ups=(right, other))


def test_callbacks_are_accused_only_if_they_changed_fits_rate() -> None:
    found, changed = fit_with_callback(rate=0.05)
    assert [each.id for each in name_causes(found, changed)] == ["callbacks-missing"]
    found, unchanged = fit_with_callback(rate=0.1)
    assert [each.id for each in name_causes(found, unchanged)] == ["optimizer-differs"]


def test_an_optimizer_begun_anew_with_an_epoch_is_a_cause() -> None:
    other = linear_step(noise=3e-7)  # its update differs
    plain = sides(other)
    fit, loop = plain.traces
    for optimizers, ended, causes in (
        ([ADAM, ADAM], STEP - 1, ["optimizer-differs"]),
        ([ADAM, ADAM], STEP - 2, []),  # in the middle of an epoch
        ([ADAM], STEP - 1, []),
    ):
        traces = replace(fit, epochs=[FitEpoch(ended, {}, 1.0)]), replace(loop, optimizers=optimizers)
        assert [each.id for each in name_causes(located(other), replace(plain, traces=traces))] == causes


def test_labels_with_other_names_are_not_shuffled() -> None:
    for deviation, causes in (({"names": (2, 0, 1)}, []), ({"shuffled": True}, ["labels-shuffled-apart"])):
        other = linear_step(**deviation, factor=1.1)  # other labels make another loss
        found = located(other)
        assert (found.stage, found.where) == ("examples", "labels")
        assert [each.id for each in name_causes(found, sides(other))] == causes


def test_calls_that_only_one_side_makes_are_a_hint_where_examples_differ() -> None:
    other = linear_step(rows=slice(8, 16))
    plain = sides(other)
    fit, loop = plain.traces
    loop = replace(loop, calls=["batch(8, drop_remainder=True)", "shuffle(16)"])
    both = replace(plain, traces=(replace(fit, calls=["shuffle(16)", "batch(8)"]), loop))
    assert hints(located(other), both) == [
        "only loop calls batch(8, drop_remainder=True)",
        "only fit calls batch(8)",
    ]
    assert hints(located(linear_step(factor=2.0)), both) == []


def test_the_same_examples_in_another_order_are_a_hint() -> None:
    mixed = linear_step(rows=slice(1, 16, 2))
    first = replace(mixed.steps[1][0], rows=linear_step(rows=slice(0, 16, 2)).rows(STEP))
    other = replace(mixed, steps={**mixed.steps, 1: [first]})
    (hint,) = hints(located(other), sides(other))
    assert hint.startswith("both see the same 16 examples in this epoch, in another order")
    assert name_causes(located(other), sides(other)) == []
    assert hints(located(linear_step(rows=slice(4, 12))), sides(linear_step(rows=slice(4, 12)))) == []


def test_a_side_that_has_ended_has_no_examples() -> None:
    whole, ended = linear_step(), linear_step()
    found = locate(whole, CloseUp({1: ended.steps[1]}, ended.after), [TWIN], STEP, NAMES)
    examples = found.of("examples")
    assert found.stage == "examples" and examples is not None
    assert (examples.reference, examples.candidate) == ("8 examples", "no step")
    assert name_causes(found, sides(CloseUp({1: ended.steps[1]}, ended.after))) == []


@pytest.mark.parametrize("deviation", [{"times": 0.5}, {"offset": 0.01}, {"moved": 0.01}])
def test_no_cause_is_guessed(deviation: Any) -> None:
    other = linear_step(**deviation)
    assert name_causes(located(other), sides(other)) == []


def test_the_sentence_says_what_agrees_and_what_does_not() -> None:
    found = located(linear_step(factor=2.0))
    entry = {
        "candidate": "loop",
        "training": {"first_difference": {"epoch": 1, "step": STEP, "stage": found.stage, "where": found.where}},
        "stages": [each.as_json() for each in found.stages],
    }
    text = stage_sentence(entry, "fit")
    assert "examples, inputs and predictions agree; the loss does not" in text
    assert [view.state for view in stage_views(entry)] == ["same"] * 3 + ["differs", "after", "after", "after"]


@pytest.mark.parametrize(
    ("rounding", "says"), [(4, "differ from step 4"), (2, "differ by more than rounding from step 4")]
)
def test_a_mistake_after_steps_that_only_round_differently(rounding: int, says: str) -> None:
    comparison = Comparison("loop", Training(DIFFERENT, None, Difference(1, rounding), 10), Reporting(None, {}))
    found = {"training": {"first_difference": {"epoch": 1, "step": 4, "stage": "loss", "where": ""}}}
    (entry,) = as_json("fit", [with_located(comparison, found)])["comparisons"]
    first = entry["training"]["first_difference"]
    assert (first["step"], first["stage"], first.get("equal_before", True)) == (4, "loss", rounding == 4)
    assert says in sentence(entry, "fit")
