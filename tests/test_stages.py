"""The stage at which a step diverges is found from what was seen inside it; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compare.check import hints as found_hints
from compare.check import words
from compare.check.causes import CATALOGUE
from compare.check.draws import _drawn_for_loss
from compare.check.judge_recorded import more_weights, name_causes, name_copies, name_left
from compare.check.recipe import Clip
from compare.check.stage_views import stage_sentence, stage_views
from compare.check.stages import Located, first_apart, locate, updates_otherwise
from compare.check.step_values import STAGES, Sides
from compare.records.model import Variable, step_dtype
from compare.reporting.sentences import sentence
from compare.verdict.findings import StageValues
from compare.verdict.judge import with_located
from compare.verdict.model import Comparison, Difference, Reporting, Training
from compare.verdict.outcomes import DIFFERENT
from compare.watch.seen import CloseUp, Event, row_hashes, sketch
from compare.watch.trace import BY_HAND, CLIPPING, FitEpoch, Trace

NAMES = ["dense/kernel", "dense/bias"]


def hints(*arguments: Any) -> list[dict[str, Any]]:
    """The hints, as kinds with their quantities."""
    return [each.as_json() for each in found_hints.hints(*arguments)]


def hint(kind: str, *, side: str = "loop", **quantities: Any) -> dict[str, Any]:
    """A hint on one of the two sides."""
    return {"kind": kind, "side": side, "other": "fit", **quantities}


def kinds(*arguments: Any) -> list[str]:
    return [each["kind"] for each in hints(*arguments)]


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


@pytest.mark.parametrize(("layer", "inputs", "stage", "where"), [
    (1.5, 1.0, "predictions", "dense"), (1.5, 0.5, "inputs", ""), (1.0, 1.0, "gradients", ""),
    (1.0, 0.5, "gradients", ""),  # the inputs are of something else
    (None, 1.0, "gradients", ""),
])  # fmt: skip
def test_what_a_last_layer_of_zeros_hides_is_seen_in_the_layers_before_it(
    layer: float | None, inputs: float, stage: str, where: str
) -> None:
    def seen(event: Event) -> Event:
        if event.kind == "layer":
            info = {**event.info, "class": "Dense" if layer else "Conv"}
            return replace(event, info=info, arrays=[event.arrays[0] * np.float32(layer or 1.5)])
        if event.kind != "inputs" or inputs == 1.0:
            return event
        return replace(event, arrays=[inputs * event.arrays[0]], rows=tuple(row + 1 for row in event.rows))

    other = linear_step(gradient=1.5)
    found = located(replace(other, steps={**other.steps, STEP: list(map(seen, other.steps[STEP]))}))
    assert (found.stage, found.where) == (stage, where)


def test_the_weights_of_a_step_are_those_of_the_model_that_it_trains_also_if_another_is_called_first() -> None:
    own = Event("weights", 0, {"model": "critic"}, [np.ones(2)])
    calls = [Event("inputs", 0, {"model": each}, [], ()) for each in ("target", "critic")]
    kept = CloseUp({1: [calls[0], calls[1], own]}).weights_at_forward(1)
    assert kept is own.arrays


@pytest.mark.parametrize(("trained", "of_other", "left"), [
    ("critic", ["critic"], ["critic"]),
    ("critic", ["target", "critic"], ["target", "critic"]),
    ("", ["critic"], ["target", "critic"]),
])  # fmt: skip
def test_a_model_that_one_side_alone_calls_without_training_it_is_left_out(
    trained: str, of_other: list[str], left: list[str]
) -> None:
    """As a target network, which a loop may call under its tape or before it; a GAN's step has one on both sides."""

    def step(called: list[str], trained: str) -> CloseUp:
        calls = [Event("inputs", 0, {"model": each}, []) for each in called]
        return CloseUp({1: [*calls, *([Event("weights", 0, {"model": trained}, [])] if trained else [])]})

    kept = step(["target", "critic"], trained).without_untrained(step(of_other, "critic"))
    assert [each.info["model"] for each in kept.of(1, "inputs")] == left


@pytest.mark.parametrize(("masked", "side"), [((True, False), "loop"), ((False, True), "fit"), ((True, True), ""),
                                               ((True, None), ""), ((False, False), "")])  # fmt: skip
@pytest.mark.parametrize("kind", ["layer", "inputs"])
def test_layers_that_one_side_alone_gives_a_mask_are_told(
    kind: str, masked: tuple[bool | None, bool | None], side: str
) -> None:
    """Where a loop calls layers one by one, each is a model of its own."""

    def given(masked: bool | None, kind: str) -> CloseUp:
        info = {"name": "lstm", "class": "LSTM", "training": None} if kind == "layer" else {"model": "lstm"}
        event = Event(kind, 0, {**info, "masked": masked}, [])
        close_up = linear_step()
        return replace(close_up, steps={STEP: [*close_up.steps[STEP], event]})

    pair = given(masked[0], "layer"), given(masked[1], kind)
    found = hints(Located(STEP, "predictions"), replace(sides(pair[1]), close_ups=pair))
    told = [(each["side"], each["layers"]) for each in found if each["kind"] == "mask-not-given"]
    assert told == [(side, ["lstm"])] * bool(side)


@pytest.mark.parametrize(("stateful", "step", "where", "said"), [
    (True, 2, "gru", True), (True, 1, "gru", False), (True, 2, "dense", False), (False, 2, "gru", False),
])  # fmt: skip
def test_a_layer_that_keeps_its_state_is_told_where_it_is_the_first_to_differ(
    stateful: bool, step: int, where: str, said: bool
) -> None:
    both = sides(linear_step())
    fit = replace(both.traces[0], layers=[{"name": "gru", "class": "GRU", "config": {"stateful": stateful}}])
    both = replace(both, traces=(fit, both.traces[1]), step=step)
    found = [each for each in hints(Located(step, "predictions", where), both) if each["kind"] == "keeps-state"]
    assert found == [hint("keeps-state", layer="gru")] * said


def with_statistics(close_up: CloseUp, after: float, calls: int = 1) -> CloseUp:
    """The same step of a model with a variable that has no gradient, which the calls of the model change."""
    weights = {at: [*each, np.float32([0.5 if at < STEP else after])] for at, each in close_up.after.items()}
    events = [
        replace(each, arrays=[*each.arrays, np.float32([0.5])]) if each.kind == "weights" else each
        for each in close_up.steps[STEP]
    ]
    called = [each for each in events if each.kind == "predictions"]
    return replace(close_up, after=weights, steps={**close_up.steps, STEP: [*events, *called * (calls - 1)]})


@pytest.mark.parametrize(
    ("deviation", "after", "calls", "stage"),
    [
        ({}, 0.6, 1, None),
        ({}, 0.7, 2, "state"),
        ({}, 0.7, 1, "state"),
        ({"rate": 0.2}, 0.7, 2, "update"),
        ({"gradient": 2.0}, 0.7, 1, "gradients"),
    ],
)
def test_what_calls_of_the_model_change_is_no_update(
    deviation: dict[str, Any], after: float, calls: int, stage: str | None
) -> None:
    right, other = with_statistics(linear_step(), 0.6), with_statistics(linear_step(**deviation), after, calls)
    names = [*NAMES, "bn/moving_mean"]
    found = locate(right, other, [], STEP, names)
    assert found.stage == stage
    if stage == "state":
        assert found.where == "" and found.of("update").equal, "only bn/moving_mean is no part of an update"
        shown = found.of("state")
        texts = "changed by 0.1 as the model is called", "changed by 0.2 as the model is called"
        assert (shown.reference, shown.candidate) == texts
        said = hints(found, replace(sides(other), close_ups=(right, other)))
        twice = [hint("called-in-training-times", times=2, other_times=1)]
        assert [each for each in said if "called" in each["kind"]] == (twice if calls == 2 else [])


def test_a_batch_without_examples_has_no_rows() -> None:
    assert row_hashes([np.zeros((0, 3)), np.zeros(0)]) == ()


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


def test_text_among_the_inputs_has_no_gap_and_numbers_beside_it_have() -> None:
    def seen(text: str, number: float) -> CloseUp:
        arrays = [np.array([text]), np.array([[number]])]
        return CloseUp({STEP: [Event("inputs", 0, {"model": "m"}, arrays, row_hashes(arrays))]})

    values = locate(seen("a", 1.0), seen("a", 2.0), [], STEP, NAMES).of("inputs")
    assert values is not None and values.gap == 0.5


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


@pytest.mark.parametrize(
    ("lr", "rate", "cause"),
    [(0.05, 0.1, "optimizer-differs"), (None, 0.1, "callbacks-missing"), (0.05, 0.2, "callbacks-missing")],
)
def test_a_rate_that_keras_3_does_not_know_by_this_name_is_told_so(lr: float | None, rate: float, cause: str) -> None:
    found, both = fit_with_callback(rate=0.05)
    fit, loop = both.traces
    loop = replace(loop, optimizers=[{**ADAM, "config": {**ADAM["config"], "learning_rate": rate}, "lr": lr}])
    both = replace(both, traces=(fit, loop), close_ups=(linear_step(rate=0.05), linear_step(rate=0.1)))
    (named,) = name_causes(found, both)
    assert named.id == cause
    if lr is not None and cause == "optimizer-differs":
        assert "learning_rate = rate" in named.remedy and "optimizer.lr (in the end to 0.05)" in named.evidence


def test_callbacks_are_accused_only_if_they_changed_fits_rate() -> None:
    found, changed = fit_with_callback(rate=0.05)
    assert [each.id for each in name_causes(found, changed)] == ["callbacks-missing"]
    found, unchanged = fit_with_callback(rate=0.1)
    assert [each.id for each in name_causes(found, unchanged)] == ["optimizer-differs"]


@pytest.mark.parametrize(
    ("callbacks", "restores", "accused"),
    [
        (["EarlyStopping", "CSVLogger"], True, ["EarlyStopping"]),
        (["EarlyStopping", "Averaged"], False, ["Averaged"]),
        (["EarlyStopping", "LearningRateScheduler", "TensorBoard"], False, None),
    ],
)
def test_only_callbacks_that_may_set_weights_change_them_after_the_last_step(
    callbacks: list[str], restores: bool, accused: list[str] | None
) -> None:
    fit, loop = sides(linear_step()).traces
    same = np.zeros(2, step_dtype(2, 1))
    changed = same.copy()
    changed["hashes"][1] = 1
    fit = replace(fit, steps=changed, fit={"callbacks": callbacks, "restores": restores})
    found = name_left(("fit", "loop"), (fit, replace(loop, steps=same)))
    assert [each.measurements["callbacks"] for each in found] == ([accused] if accused else [])


def test_an_optimizer_begun_anew_with_an_epoch_is_a_cause() -> None:
    other = linear_step(noise=3e-7)  # its update differs
    plain = sides(other)
    fit, loop = plain.traces
    for optimizers, begun, causes in (
        ([ADAM, ADAM], STEP - 1, ["optimizer-differs"]),
        ([ADAM, ADAM], STEP - 2, []),  # whose first step was equal
        ([ADAM], STEP - 1, []),
        ([ADAM, {**ADAM, "config": {**ADAM["config"], "learning_rate": 0.5}}], STEP - 1, ["optimizer-differs"]),
    ):
        made = {"optimizers": optimizers, "parts": [(0, 0), (begun, 0)]}
        for traces, side in (((fit, replace(loop, **made)), "loop"), ((replace(fit, **made), loop), "fit")):
            found = name_causes(located(other), replace(plain, traces=traces))
            assert [(each.id, each.side) for each in found] == [(cause, side) for cause in causes]

    second = {**ADAM, "config": {**ADAM["config"], "beta_1": 0.5}}
    two = replace(loop, optimizers=[ADAM, second], parts=[(0, 0), (STEP - 1, 0)])
    (found_,) = name_causes(located(other), replace(plain, traces=(fit, two)))
    assert found_.measurements["settings"] == {"beta_1": [0.5, 0.9]}, "that of the step has other settings"


@pytest.mark.parametrize(("change", "expected"), [
    (lambda x: 255 * x, ["inputs-times", ("factor", 255.0)]),
    (lambda x: x / 127.5 - 1, ["inputs-shifted", ("factor", 1 / 127.5), ("constant", -1.0)]),
    (lambda x: x + 1e-3 * x**2, []),
    (lambda x: np.hstack([x[:, 1:], x[:, :1]]), ["inputs-moved", ("how", "later")]),
    (lambda x: np.hstack([x[:, -1:], x[:, :-1]]), ["inputs-moved", ("how", "earlier")]),
    (lambda x: x[:, ::-1], ["inputs-moved", ("how", "reversed")]),
    (lambda x: np.hstack([x[:, :1], x[:, :-1] + 1]), []),
])  # fmt: skip
def test_inputs_that_are_a_multiple_and_a_constant_are_said_to_be(change: Any, expected: list[Any]) -> None:
    other = linear_step()
    other = replace(
        other,
        steps={
            STEP: [
                replace(each, arrays=list(map(change, each.arrays)), rows=tuple(row + 1 for row in each.rows))
                if each.kind == "inputs"
                else each
                for each in other.steps[STEP]
            ]
        },
    )
    at = Located(STEP, "inputs", stages=[StageValues("inputs", 1.0)])
    found = [each for each in hints(at, sides(other)) if each["kind"].startswith("inputs-")]
    approx = lambda value: value if isinstance(value, str) else pytest.approx(value, rel=1e-4)  # noqa: E731
    numbers = {name: approx(value) for name, value in dict(expected[1:]).items()}
    assert found == [hint(kind, **numbers) for kind in expected[:1]]


def test_images_with_their_channels_in_the_other_order_are_said_to_be() -> None:
    images, close_up = np.random.default_rng(0).normal(size=(8, 2, 2, 3)), linear_step()

    def given(images: np.ndarray) -> CloseUp:
        steps = [replace(each, arrays=[images]) if each.kind == "inputs" else each for each in close_up.steps[STEP]]
        return replace(close_up, steps={STEP: steps})

    at = Located(STEP, "inputs", stages=[StageValues("inputs", 1.0)])
    both = replace(sides(close_up), close_ups=(given(images), given(images[..., ::-1].astype(np.float32))))
    assert [each for each in hints(at, both) if each["kind"] == "inputs-moved"] == [
        hint("inputs-moved", how="mirrored")
    ]


@pytest.mark.parametrize(("order", "said"), [([1, 0], True), ([0, 1], False), ([1, 1], False)])
def test_inputs_in_another_order_are_said_to_be(order: list[int], said: bool) -> None:
    def given(order: list[int]) -> CloseUp:
        close_up, both = linear_step(), [np.ones((8, 3)), np.zeros((8, 3))]
        steps = [replace(e, arrays=[both[i] for i in order]) if e.kind == "inputs" else e for e in close_up.steps[STEP]]
        return replace(close_up, steps={STEP: steps})

    pair = given([0, 1]), given(order)
    for stage in ("examples", "inputs"):
        found = hints(Located(STEP, stage), replace(sides(pair[1]), close_ups=pair))
        assert [each for each in found if each["kind"] == "inputs-swapped"] == [hint("inputs-swapped")] * said


THROUGH, LEFT_OUT = {"times": 2, "other_times": 1}, {"times": 4, "taped": 1}


@pytest.mark.parametrize(("taped", "made", "said"), [
    ((1, 2), (1, 2), ("called-under-tape", THROUGH)), ((2, 2), (2, 2), None), ((2, 1), (2, 1), None),
    ((0, 2), (0, 2), None), ((1, 1), (1, 4), ("calls-not-taped", LEFT_OUT)), ((1, 1), (2, 4), None),
    ((1, 0), (1, 4), None),
])  # fmt: skip
def test_which_calls_of_models_gradients_go_through_is_told_where_the_losses_agree(
    taped: tuple[int, int], made: tuple[int, int], said: tuple[str, dict[str, int]] | None
) -> None:
    """Each side's gradient goes through so many calls, of so many that its step makes."""
    right, other = linear_step(), linear_step(gradient=1.5)
    (gradients,) = other.of(STEP, "gradients")
    turned = replace(gradients, arrays=[gradients.arrays[0], *(-each[::-1] + 1 for each in gradients.arrays[1:])])

    def seen(close_up: CloseUp, taped: int, made: int) -> CloseUp:
        events = [turned if each is gradients else each for each in close_up.steps[STEP]]
        events = [replace(e, info={**e.info, "calls": taped}) if e.kind == "loss" else e for e in events]
        times = {"predictions": made}
        return replace(
            close_up, steps={**close_up.steps, STEP: [e for e in events for _ in range(times.get(e.kind, 1))]}
        )

    both = replace(sides(other), close_ups=tuple(map(seen, (right, other), taped, made)))
    at = Located(STEP, "gradients", stages=[StageValues("loss", 0.0, 0.0)])
    found = [each for each in hints(at, both) if each["kind"] in ("called-under-tape", "calls-not-taped")]
    assert found == ([hint(said[0], **said[1], line=None)] if said else [])


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("constraint", [{"class_name": "NonNeg"}, None])
def test_a_constraint_that_an_update_by_hand_leaves_out_is_told(by_hand: bool, constraint: Any) -> None:
    plain = sides(linear_step(rate=0.3))
    fit, loop = plain.traces
    config = {"kernel_constraint": constraint, "bias_constraint": None}
    fit = replace(fit, layers=[{"class": "Dense", "name": "dense", "config": config}])
    loop = replace(loop, optimizers=[{"class": BY_HAND if by_hand else "SGD", "config": {}}])
    at = Located(STEP, "update", "dense/kernel, dense/bias")
    found = [each for each in hints(at, replace(plain, traces=(fit, loop))) if each["kind"] == "constraint-left-out"]
    told = [hint("constraint-left-out", variables=["dense/kernel"], line=None)]
    assert found == (told if by_hand and constraint else [])


@pytest.mark.parametrize(("factor", "same", "said"), [(0.1, 1.0, True), (0.1, 0.1, False), (1.0, 1.0, False)])
def test_a_factor_of_some_gradients_is_told_where_all_others_are_equal(factor: float, same: float, said: bool) -> None:
    right = linear_step()
    (event,) = right.of(STEP, "gradients")
    rate, kernel, bias = event.arrays
    scaled = replace(event, arrays=[rate, np.float32(factor * kernel), np.float32(same * bias)])
    other = replace(right, steps={STEP: [scaled if each is event else each for each in right.steps[STEP]]})
    at = Located(STEP, "gradients", stages=[StageValues("loss", 0.0, 0.0)])
    found = [each for each in hints(at, sides(other)) if each["kind"] == "some-gradients-have-factor"]
    told = hint("some-gradients-have-factor", factor=pytest.approx(factor), variables=["dense/kernel"])
    assert found == [told] * said


@pytest.mark.parametrize(("what", "equal", "said"), [
    ("labels", True, True), ("predictions", True, True), ("predictions", False, False), ("sample weights", True, True),
    ("", True, False),
])  # fmt: skip
def test_what_a_loss_is_given_is_told_where_the_predictions_agree(what: str, equal: bool, said: bool) -> None:
    def given(close_up: CloseUp, changed: str) -> CloseUp:
        (targets,) = close_up.of(STEP, "targets")
        names, weight = ("labels", "predictions", "sample weights"), np.arange(1.0, 1 + len(targets.arrays[0]))
        arrays = [array + (name == changed) for name, array in zip(names, [*targets.arrays[:2], weight], strict=True)]
        weighted = replace(targets, arrays=arrays, info={**targets.info, "weights": 1})
        events = [weighted if each is targets else each for each in close_up.steps[STEP]]
        return replace(close_up, steps={**close_up.steps, STEP: events})

    both = given(linear_step(), ""), given(linear_step(factor=1.5), what)
    stages = [StageValues("predictions", 0.0 if equal else 1.0, 1e-6)]
    at = Located(STEP, "loss", stages=stages)
    found = [each for each in hints(at, replace(sides(both[1]), close_ups=both)) if each["kind"] == "given-to-loss"]
    assert found == [hint("given-to-loss", loss="mean_squared_error", what=what, line=None)] * said


def test_a_side_that_ends_earlier_is_said_and_not_the_step_that_it_lacks() -> None:
    stages = (StageValues("examples", 1.0, 0.0, "32 examples", "no step"),)
    seen = {"kind": "steps-made", "steps": {"fit": 94, "loop": 90}}
    training = Training(DIFFERENT, None, Difference(4, 1, None, "examples"), 90)
    comparison = Comparison("loop", training, Reporting(None, {}), stages=stages, measurements=(seen,))
    ends = "loop ends after 90 steps and fit ends after 94 steps"
    assert sentence(comparison, "fit") == f"loop does not train like fit: {ends}"
    assert stage_sentence(comparison, "fit") == ""
    other = replace(comparison, measurements=())
    assert ends not in sentence(other, "fit") and "the examples differ" in stage_sentence(other, "fit")


def test_a_new_optimizer_is_said_where_something_before_the_update_differs_too() -> None:
    other = linear_step(offset=0.01)  # such as other dropout
    plain = sides(other)
    for optimizers, said in (([ADAM, ADAM], 1), ([ADAM], 0), ([ADAM, ADAM, ADAM | {"class": "SGD"}], 0)):
        traces = plain.traces[0], replace(plain.traces[1], optimizers=optimizers, parts=[(0, 0), (STEP - 1, 0)])
        new = hint("script-new-optimizer", optimizer="Adam")
        assert hints(located(other), replace(plain, traces=traces)) == [new] * said


def test_weights_come_in_another_order_where_all_of_them_were_recorded() -> None:
    weights = [np.full(1, each) for each in (0.0, 1.0)]
    events = [Event("weights", 0, {}, weights), Event("updated", 0, {}, weights)]
    seen = CloseUp({STEP: events}, after={STEP: weights}, names=["a", "b"])
    both = seen.ordered([1, 0])
    assert (both.names, both.arrays(STEP, "weights"), both.after[STEP]) == (["b", "a"], [1.0, 0.0], [1.0, 0.0])
    beyond = seen.ordered([1, 0, 2])  # the third is of a model that was not recorded
    assert (beyond.names, beyond.arrays(STEP, "weights"), beyond.after) == (["b", "a"], weights, {})
    assert [each.kind for each in beyond.steps[STEP]] == ["weights"]


def test_gradients_of_variables_that_are_left_out_are_left_out() -> None:
    rate, parts = np.float64(0.1), [np.full(1, each) for each in (0.0, 1.0, 2.0)]
    events = [
        Event("gradients", 0, {"positions": [0, 1, 2]}, [rate, *parts]),
        Event("sketch", 0, {"positions": [0, 1, 2]}, parts),
    ]
    given, summed = CloseUp({STEP: events}, names=["a", "b", "c"]).ordered([2, 0]).steps[STEP]
    assert (given.info["positions"], given.arrays) == ([1, 0], [rate, 0.0, 2.0])
    assert (summed.info["positions"], summed.arrays) == ([1, 0], [0.0, 2.0])


def test_outputs_of_a_dict_are_those_of_a_list_in_another_order() -> None:
    def outputs(*values: np.ndarray) -> CloseUp:
        seen = linear_step()
        events = [
            replace(each, arrays=list(values)) if each.kind == "predictions" else each for each in seen.steps[STEP]
        ]
        return replace(seen, steps={STEP: events})

    age, job, sex = np.full((8, 1), 2.0), np.full((8, 4), 0.25), np.full((8, 1), 0.5)
    for other, gap in (((age, sex, job), 0.0), ((sex, age, job), 0.0), ((age, sex + 1, job), None)):
        found = locate(outputs(age, job, sex), outputs(*other), [], STEP, NAMES).of("predictions")
        assert found is not None and (found.gap == gap or (gap is None and found.differs))
    whole = [age, job, sex]
    for few, alike in (([job], True), ([sex, age], True), ([job + np.eye(8, 4)], False), ([sex[1:]], False)):
        for one, other in ((few, whole), (whole, few)):
            found = locate(outputs(*one), outputs(*other), [outputs(*one)], STEP, NAMES).of("predictions")
            assert found is not None and found.differs != alike, "what one side alone gives is no difference"


def with_values(kind: str, *values: np.ndarray, factor: float = 1.0) -> CloseUp:
    """A step with other labels or predictions."""
    seen = linear_step(factor=factor)
    other = [
        replace(each, arrays=[*values, *each.arrays[1:]], rows=row_hashes(values) if kind == "targets" else ())
        if each.kind == kind
        else each
        for each in seen.steps[STEP]
    ]
    return replace(seen, steps={**seen.steps, STEP: other})


@pytest.mark.parametrize(("off", "loss", "stage"), [(0.5, "a", "examples"), (1e-9, "a", "loss"), (0.5, "b", "loss")])
def test_the_same_loss_that_is_given_other_values_has_other_labels_and_accuses_no_shuffling(
    off: float, loss: str, stage: str
) -> None:
    labels = linear_step().arrays(STEP, "targets")[0].astype(np.float64)
    other = with_values("targets", labels + off, factor=2.0)
    events = [replace(each, info={**each.info, "configuration": {"name": loss}}) for each in other.steps[STEP]]
    other = replace(other, steps={**other.steps, STEP: events})
    right = with_values("targets", labels)
    right = replace(
        right,
        steps={STEP: [replace(each, info={**each.info, "configuration": {"name": "a"}}) for each in right.steps[STEP]]},
    )
    found = locate(right, other, [TWIN], STEP, NAMES)
    assert found.stage == stage
    assert name_causes(found, sides(other)) == []


@pytest.mark.parametrize(("same", "stage"), [(True, "loss"), (False, "examples")])
def test_what_a_teacher_predicts_is_no_label_of_the_examples(same: bool, stage: str) -> None:
    labels, soft = linear_step().arrays(STEP, "targets")[0], np.linspace(0, 1, 8)

    def with_teacher(*both: np.ndarray, factor: float) -> CloseUp:
        seen = linear_step(factor=factor)
        (event,) = (each for each in seen.steps[STEP] if each.kind == "targets")
        calls = [replace(event, arrays=[each, *event.arrays[1:]], rows=row_hashes([each])) for each in both]
        events = [part for each in seen.steps[STEP] for part in (calls if each is event else [each])]
        return replace(seen, steps={**seen.steps, STEP: events})

    right = with_teacher(labels, soft, factor=1.0)
    other = with_teacher(labels if same else labels + 0.25, soft**2, factor=1.5)
    assert locate(right, other, [], STEP, NAMES).stage == stage


@pytest.mark.parametrize(("gradient", "factor", "stage"), [(4.0, 1.0, "gradients"), (1.0, 2.0, "predictions")])
def test_logits_are_no_other_predictions_than_their_probabilities_where_the_loss_agrees(
    gradient: float, factor: float, stage: str
) -> None:
    logits = np.random.default_rng(1).normal(size=(8, 3))
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    of_loss = linear_step(gradient=gradient, factor=factor)
    for given, other in ((softmax, logits), (logits, softmax), (1 / (1 + np.exp(-logits)), logits)):
        sides_ = [with_values("predictions", np.float32(each)) for each in (given, other)]
        events = [
            next(each for each in of_loss.steps[STEP] if each.kind == event.kind)
            if event.kind in ("loss", "gradients")
            else event
            for event in sides_[1].steps[STEP]
        ]
        candidate = replace(sides_[1], steps={**sides_[1].steps, STEP: events}, after=of_loss.after)
        assert locate(sides_[0], candidate, [], STEP, NAMES).stage == stage


def test_predictions_of_every_model_that_a_step_calls_are_compared() -> None:
    def calls(*outputs: float) -> CloseUp:
        seen, (given, weights, layer, predicted, *rest) = linear_step(), linear_step().steps[STEP]
        decoded = [
            replace(event, info={**event.info, "model": "decoder"}, arrays=[np.full((8, 2), output)], rows=())
            for output in outputs
            for event in (given, predicted)
        ]
        return replace(seen, steps={**seen.steps, STEP: [given, weights, layer, predicted, *decoded, *rest]})

    right = calls(0.1, 0.2)
    for other, differs in ((calls(0.1, 0.2), False), (calls(0.1, 0.3), True), (calls(0.1), False)):
        found = locate(right, other, [], STEP, NAMES).of("predictions")
        assert found is not None and found.differs == differs


@pytest.mark.parametrize(
    ("decay", "gradient", "differs"), [(1e-5, 1.0, True), (0.0, 1.0, False), (1e-5, 0.9999999, False)]
)
def test_an_update_that_differs_by_less_than_weights_round_is_told_by_equal_gradients(
    decay: float, gradient: float, differs: bool
) -> None:
    right, other = linear_step(), linear_step(gradient=gradient)
    after = [np.float32(each * (1 - decay)) for each in other.after[STEP]]
    decayed = replace(other, after={**other.after, STEP: after})
    assert updates_otherwise(right, decayed, [], STEP, NAMES) == differs


def test_an_update_is_known_by_what_the_optimizer_made_where_a_graph_makes_several_steps() -> None:
    seen = linear_step()
    updated = Event("updated", 0, {"training": 0}, seen.after[STEP])
    of_graph = CloseUp({**seen.steps, STEP: [*seen.steps[STEP], updated]})
    assert not updates_otherwise(of_graph, seen, [], STEP, NAMES)


def test_another_class_of_optimizer_is_no_cause_where_a_matrix_is_updated_alike() -> None:
    for moved, causes in (([False, True], []), ([True, True], ["optimizer-differs"])):
        other = linear_step()
        after = [each + np.float32(move) for each, move in zip(other.after[STEP], moved, strict=True)]
        other = replace(other, after={**other.after, STEP: after})
        plain = sides(other)
        fit = replace(plain.traces[0], optimizers=[{**ADAM, "class": "AdamW"}])
        both = replace(plain, traces=(fit, plain.traces[1]))
        assert [each.id for each in name_causes(located(other), both)] == causes


def test_variables_that_only_one_optimizer_is_given_are_a_hint() -> None:
    right = linear_step()
    first = {"positions": [0]}
    fewer = [
        replace(each, info=first, arrays=each.arrays[:2]) if each.kind == "gradients" else each
        for each in right.steps[STEP]
    ]
    both = sides(right)
    both = replace(both, close_ups=(replace(right, steps={STEP: fewer}), right))
    located = locate(*both.close_ups, [], STEP, NAMES)
    assert hints(located, both) == [hint("more-gradients", variables=[NAMES[1]])]
    frozen = replace(both.traces[1], layers=[{"name": "dense", "class": "Dense", "config": {"trainable": False}}])
    both = replace(both, traces=(both.traces[0], frozen))
    assert hints(located, both) == [hint("more-gradients", variables=[NAMES[1]], frozen=True)]


def test_labels_with_other_names_are_not_shuffled() -> None:
    for deviation, causes in (({"names": (2, 0, 1)}, []), ({"shuffled": True}, ["labels-shuffled-apart"])):
        other = linear_step(**deviation, factor=1.1)  # other labels make another loss
        found = located(other)
        assert (found.stage, found.where) == ("examples", "labels")
        assert [each.id for each in name_causes(found, sides(other))] == causes


@pytest.mark.parametrize(
    ("loss", "configuration", "stage"),
    [
        ("LossFunctionWrapper", {"name": "mse"}, "examples"),  # as compile(loss="mse") makes it
        ("Own", {}, "loss"),
        ("MeanSquaredError", {"name": "mean_squared_error", "label_smoothing": 0.1}, "loss"),
    ],
)
def test_labels_with_other_values_are_others_whatever_the_loss_that_gets_them_is_called(
    loss: str, configuration: dict[str, Any], stage: str
) -> None:
    other = linear_step(factor=1.1)
    (given,) = (each for each in other.steps[STEP] if each.kind == "targets")
    labels = 2 * given.arrays[0] + 1
    info = {**given.info, "loss": loss, "configuration": configuration}
    new = replace(given, info=info, arrays=[labels, given.arrays[1]], rows=tuple(row_hashes([labels])))
    other.steps[STEP][other.steps[STEP].index(given)] = new
    found = located(other)
    assert found.stage == stage
    examples = found.of("examples")
    if stage == "examples" and examples is not None:
        shown = examples.where, examples.reference, examples.candidate
        assert shown == ("labels", "0 to 2, mean 0.875", "1 to 5, mean 2.75")


def test_calls_that_only_one_side_makes_are_a_hint_where_examples_differ() -> None:
    other = linear_step(rows=slice(8, 16))
    plain = sides(other)
    fit, loop = plain.traces
    loop = replace(loop, calls=["batch(8, drop_remainder=True)", "shuffle(16)"])
    both = replace(plain, traces=(replace(fit, calls=["shuffle(16)", "batch(8)"]), loop))
    assert hints(located(other), both) == [
        hint("calls-alone", functions=["batch(8, drop_remainder=True)"]),
        hint("calls-alone", side="fit", functions=["batch(8)"]),
    ]
    scaled = linear_step(factor=2.0)
    assert hints(located(scaled), replace(both, close_ups=(linear_step(), scaled))) == []
    arrays = replace(plain, traces=(replace(fit, fit={"validation_split": 0.25}), loop))
    assert hints(located(other), arrays) == [], "fit batches its arrays itself"
    unknown = linear_step(rows=slice(0, 5), times=2.0)
    arrays = replace(arrays, close_ups=(linear_step(), unknown))
    (not_seen, split) = hints(located(unknown), arrays)
    assert (not_seen["kind"], split) == ("unknown-examples", hint("split-off", side="fit", share=0.25))
    ending = replace(arrays, step=1, traces=(replace(fit, fit={"ends_epochs": "Batches"}), replace(loop, calls=[])))
    found = [each for each in hints(located(unknown), ending) if each["kind"] == "epoch-ended-first"]
    assert found == [hint("epoch-ended-first", side="fit", data="Batches")]
    both_end = tuple(replace(each, fit={"ends_epochs": "Batches"}) for each in ending.traces)
    assert not any(
        each["kind"] == "epoch-ended-first" for each in hints(located(unknown), replace(ending, traces=both_end))
    )


@pytest.mark.parametrize(
    ("stage", "deviation"),
    [("predictions", {"offset": 0.01}), ("loss", {"factor": 2.0}), ("update", {"rate": 0.3})],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_batch_in_another_order_is_no_difference_of_its_examples_nor_of_what_is_predicted_for_them(
    stage: str, deviation: Mapping[str, Any], parts: int
) -> None:
    other = linear_step(rows=slice(7, None, -1), **deviation)
    if parts == 2:  # of two replicas, say: nobody knows which example a prediction is of
        whole = other.of(STEP, "predictions")[0]
        halves = [replace(whole, arrays=[half]) for half in np.split(whole.arrays[0], 2)]
        kept = [each for each in other.steps[STEP] if each is not whole]
        other = replace(other, steps={**other.steps, STEP: [*kept, *halves]})
    found = located(other)
    seen = {each.stage: each.gap for each in found.stages}
    assert (seen["examples"], seen["inputs"], seen["predictions"] is None) == (0.0, 0.0, parts == 2)
    assert found.stage == (stage if parts == 1 or stage != "predictions" else "loss")


def test_the_same_examples_in_another_order_are_a_hint() -> None:
    mixed = linear_step(rows=slice(1, 16, 2))
    first = replace(mixed.steps[1][0], rows=linear_step(rows=slice(0, 16, 2)).rows(STEP))
    other = replace(mixed, steps={**mixed.steps, 1: [first]})
    assert hints(located(other), sides(other)) == [hint("reordered", examples=16)]
    assert name_causes(located(other), sides(other)) == []
    assert hints(replace(located(other), where="labels"), sides(other))[0] == hint("same-inputs")
    assert hints(located(linear_step(rows=slice(4, 12))), sides(linear_step(rows=slice(4, 12)))) == []


def test_a_side_that_has_ended_has_no_examples() -> None:
    whole, ended = linear_step(), linear_step()
    found = locate(whole, CloseUp({1: ended.steps[1]}, ended.after), [TWIN], STEP, NAMES)
    examples = found.of("examples")
    assert found.stage == "examples" and examples is not None
    assert (examples.reference, examples.candidate) == ("8 examples", "no step")
    assert name_causes(found, sides(CloseUp({1: ended.steps[1]}, ended.after))) == []


def labelled(close_up: CloseUp, labels: Sequence[int] | None) -> CloseUp:
    """The same step with other labels; with None, the loss function was not seen."""
    events = [each for each in close_up.steps[STEP] if each.kind != "targets"]
    if labels is not None:
        array = np.float32(labels)[:, None]
        events.insert(4, Event("targets", 0, {"true": 1, "predicted": 0}, [array], row_hashes([array])))
    return replace(close_up, steps={**close_up.steps, STEP: events})


@pytest.mark.parametrize(("gradient", "offset", "stage"), [(0.9, 0, "gradients"), (0.9, 0.1, "predictions")])
@pytest.mark.parametrize("hidden", [1, 2])
def test_layers_that_are_called_one_by_one_predict_what_the_last_of_them_gives(
    gradient: float, offset: float, stage: str, hidden: int
) -> None:
    own, other = linear_step(), linear_step(gradient=gradient, offset=offset)
    (batch,) = own.arrays(STEP, "inputs")
    (last,) = (each for each in other.steps[STEP] if each.kind == "predictions")
    between = np.repeat(batch[:, :1], hidden, axis=1)
    first, *rest = (each for each in other.steps[STEP] if each.kind != "predictions")
    calls = [
        replace(first, info={"model": "dense"}),
        Event("predictions", 0, {"model": "dense"}, [between]),
        Event("inputs", 0, {"model": "dense_1"}, [between]),
        replace(last, info={**last.info, "model": "dense_1"}, arrays=[last.arrays[0][:, None]]),
    ]
    whole = replace(own, steps={**own.steps, STEP: [
        replace(each, arrays=[each.arrays[0][:, None]]) if each.kind == "predictions" else each
        for each in own.steps[STEP]
    ]})  # fmt: skip
    events = [*calls, *(replace(each, info={"model": "dense"}) if each.kind == "weights" else each for each in rest)]
    parts = replace(other, steps={**other.steps, STEP: events})
    assert locate(whole, parts, [TWIN], STEP, NAMES).stage == stage
    assert locate(parts, whole, [], STEP, NAMES).stage == stage, "whichever side calls them"


LABELS = [0, 1, 2, 2, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("values", "labels", "stage"),
    [
        ("scaled", LABELS, "inputs"),
        ("scaled", None, "inputs"),  # their values are alike
        ("scaled", [each + 7 for each in LABELS], "inputs"),  # the same classes by other numbers
        ("others", LABELS, "inputs"),  # as with random crops
        ("others", [2, 2, 0, 1, 0, 1, 2, 0], "examples"),
        ("others", None, "examples"),
        ("some", [0, 1, 0, 1, 2, 0, 2, 0], "examples"),
    ],
)
def test_examples_known_neither_by_value_nor_by_label_are_other_examples(
    values: str, labels: Sequence[int] | None, stage: str
) -> None:
    own = linear_step()
    (batch,) = own.arrays(STEP, "inputs")
    new = np.random.default_rng(1).normal(size=batch.shape).astype(np.float32)
    batch = {"scaled": batch * 0.5 + 1, "others": new, "some": np.concatenate([batch[:2], new[2:]])}[values]
    events = [
        replace(each, arrays=[batch], rows=row_hashes([batch])) if each.kind == "inputs" else each
        for each in linear_step(offset=0.1).steps[STEP]
    ]
    other = labelled(replace(own, steps={**own.steps, STEP: events}), labels)
    found = locate(labelled(own, LABELS), other, [TWIN], STEP, NAMES)
    assert found.stage == stage
    examples = found.of("examples")
    assert examples is not None
    if stage == "examples":
        count = {"others": "none of them", "some": "6 of them not"}[values]
        assert examples.candidate == f"8 examples ({count} recognised)"
        both = replace(sides(other), close_ups=(labelled(own, LABELS), other))
        assert name_causes(found, both) == [], "they are neither dropped nor repeated"
        told = hints(found, both)[0]
        assert (told["kind"], told["side"], told["first"], told["last"]) == ("unknown-examples", "fit", 1, STEP)


def loss_step(
    loss: float,
    *,
    penalty: float = 0.25,
    targets: tuple[Any, Any, Any, Any] | None = None,
    pairs: bool | None = None,
) -> CloseUp:
    """One step on 8 examples with this loss, and the call of the loss function: its configuration, shapes, values."""
    inputs = Event("inputs", 0, {"model": "m"}, [np.zeros((8, 1), np.float32)], tuple(range(8)))
    events = [inputs, Event("predictions", 0, {"model": "m", "training": True}, [np.zeros(8, np.float32)])]
    if targets is not None:
        name, configuration, true, predicted = targets
        info = {"loss": name, "configuration": configuration, "true": 1, "predicted": 1, "weights": 0}
        events.append(Event("targets", 0, info, [np.asarray(true), np.asarray(predicted)], tuple(range(8))))
    of = {"targets": 1, "penalties": 1, "pairs": pairs}
    events.append(Event("loss", 0, of, [np.float32(loss), np.float32(penalty)]))
    return CloseUp({STEP: events})


def causes_of_loss(right: CloseUp, other: CloseUp) -> list[str]:
    found = locate(right, other, [], STEP, NAMES)
    assert found.stage == "loss"
    return sorted(each.id for each in name_causes(found, replace(sides(other), close_ups=(right, other))))


@pytest.mark.parametrize(
    ("loss", "causes"),
    [
        (8 * 1.3, ["loss-summed", "regularization-missing"]),
        (8 * 1.3 + 0.25, ["loss-summed"]),
        (8 * (1.3 + 0.25), ["loss-summed"]),
        (1.3, ["regularization-missing"]),
        (7.9 * 1.3, []),
    ],
)
def test_two_mistakes_in_a_loss_are_named_where_only_both_explain_it(loss: float, causes: list[str]) -> None:
    right = loss_step(1.3 + 0.25)
    assert causes_of_loss(right, loss_step(loss)) == causes


def test_the_causes_of_a_pair_say_that_they_belong_together() -> None:
    right, other = loss_step(1.3 + 0.25), loss_step(8 * 1.3)
    missing, summed = name_causes(
        locate(right, other, [], STEP, NAMES), replace(sides(other), close_ups=(right, other))
    )
    assert missing.measurements["beside"] == "loss-summed"
    assert summed.measurements["beside"] == "regularization-missing"


def test_probabilities_that_are_said_to_be_logits_are_a_cause_where_only_one_side_finds_the_logits() -> None:
    """Keras finds the logits before a softmax in a graph, as of fit, and not in an eager loop."""
    random = np.random.default_rng(0)
    logits, true = random.normal(size=(8, 4)), random.integers(0, 4, 8)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    def loss(logits: np.ndarray) -> float:
        return float(-np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))[range(8), true].mean())

    call = ("SparseCategoricalCrossentropy", {"name": "sparse_categorical_crossentropy", "from_logits": True})
    right = loss_step(loss(logits), penalty=0, targets=(*call, true, probabilities))
    other = loss_step(loss(probabilities), penalty=0, targets=(*call, true, probabilities))
    (named,) = name_causes(locate(right, other, [], STEP, NAMES), replace(sides(other), close_ups=(right, other)))
    assert (named.id, named.measurements["kind"]) == ("logits-mismatch", "script-probabilities")
    assert causes_of_loss(right, loss_step(1.01 * loss(probabilities), penalty=0)) == []


@pytest.mark.parametrize(
    ("right", "other", "side"),
    [(False, True, 1), (True, False, 0), (True, True, None), (False, False, None), (None, True, None)],
)
def test_labels_of_one_dimension_are_named_by_the_shapes_in_the_graph_of_a_loss(
    right: bool | None, other: bool, side: int | None
) -> None:
    """Whatever function it is, of however many outputs; not where the other side's graph is not known."""
    seen = loss_step(1.0, pairs=right), loss_step(1.7, pairs=other)
    of = replace(sides(seen[1]), close_ups=seen)
    found = [(each.id, each.side) for each in name_causes(locate(*seen, [], STEP, NAMES), of)]
    assert found == ([] if side is None else [("label-shape-broadcast", of.names[side])])


@pytest.mark.parametrize(
    ("pairs", "labels", "causes"),
    [(True, np.arange(8.0), ["label-shape-broadcast"]), (False, np.arange(8.0), []), (True, np.ones(8), [])],
)
@pytest.mark.parametrize("huber", [False, True], ids=["squared", "Huber"])
def test_labels_that_meet_equal_predictions_are_named_by_the_next_step(
    pairs: bool, labels: np.ndarray, causes: list[str], huber: bool
) -> None:
    """Where all predictions are zero the loss is the same, and only the gradients differ, as with equal labels."""
    true, predicted = labels[:, None], np.linspace(0, 2, 8)[:, None]
    squared = "MeanSquaredError", {"name": "mean_squared_error"}
    call = (*(("Huber", {"name": "huber_loss", "delta": 1.5}) if huber else squared), true, predicted)

    def mean(gaps: np.ndarray) -> float:
        sizes = np.abs(gaps)
        return float(np.mean(np.where(sizes <= 1.5, gaps**2 / 2, 1.5 * sizes - 1.125) if huber else gaps**2))

    every = mean(true.T - predicted) if pairs else 1.2 * mean(true - predicted)
    right, other = loss_step(1.0, targets=call), loss_step(every + 0.25, targets=None)
    events = [each for each in other.steps[STEP] if each.kind != "predictions"]
    events.append(Event("predictions", 0, {"model": "m", "training": True}, [predicted]))
    following = CloseUp({STEP + 1: right.steps[STEP]}), CloseUp({STEP + 1: events})
    close_ups = tuple(
        replace(each, steps={**each.steps, **later.steps})
        for each, later in zip((linear_step(), linear_step(gradient=0.31234)), following, strict=True)
    )
    found = located(close_ups[1])
    assert found.stage == "gradients"
    both = replace(sides(close_ups[1]), close_ups=close_ups)
    assert [each.id for each in name_causes(found, both)] == causes


@pytest.mark.parametrize(("between", "calls"), [((), 2), (("loss",), 2), (("loss", "gradients"), 1)])
def test_examples_that_come_again_after_an_update_of_a_part_of_the_weights_are_no_more(
    between: Sequence[str], calls: int
) -> None:
    """In one step, of which each part of the weights has a forward pass."""
    events = loss_step(1.0).steps[STEP]
    inputs = [event for event in events if event.kind == "inputs"]
    others = [Event("inputs", 0, {"model": "m"}, [np.zeros((8, 1), np.float32)], tuple(range(8, 16)))]
    again = others if not between else [replace(each) for each in inputs]
    step = CloseUp({STEP: [*inputs, *(Event(kind, 0, {"model": "m"}, []) for kind in between), *again]})
    assert len(step.calls_with_examples(STEP)) == calls


def test_a_cause_never_contradicts_a_stage_that_agrees() -> None:
    """Each cause knows the stages at which it must show; where all of them agree, it is another one."""
    for id, stages in (("regularization-missing", ("loss",)), ("optimizer-differs", ("update", "state"))):
        assert CATALOGUE[id].stages == stages
    found = located(linear_step(gradient=0.5))
    assert found.stage == "gradients"
    contradicted = {id for id, cause in CATALOGUE.items() if cause.contradicted(found)}
    assert {"regularization-missing", "loss-summed", "examples-dropped", "training-flag-missing"} <= contradicted
    assert not contradicted & {"clipping-differs", "variables-not-trained", "optimizer-differs"}
    elsewhere = {"weights-not-shared", "empty-replica-batch", "not-finite"}
    of_training = {id for id, cause in CATALOGUE.items() if cause.kind == "training"}
    assert all(CATALOGUE[id].stages for id in of_training - elsewhere)
    assert all(set(cause.stages) <= set(STAGES) for cause in CATALOGUE.values())


@pytest.mark.parametrize(("factor", "causes"), [(0.5, ["loss-scaled"]), (1 / 3, ["loss-scaled"]), (0.51234, [])])
def test_one_factor_of_all_gradients_is_a_cause_if_it_may_be_written_and_a_hint_else(
    factor: float, causes: list[str]
) -> None:
    other = linear_step(gradient=factor)
    found, seen = located(other), hint("gradients-have-factor", factor=pytest.approx(factor))
    named = name_causes(found, sides(other))
    assert [cause.id for cause in named] == causes
    assert [cause.measurements["factor"] for cause in named] == [pytest.approx(factor)] * len(causes)
    assert hints(found, sides(other)) == [seen]


def test_gradients_that_are_zero_are_not_said_to_be_missing() -> None:
    other = linear_step(gradient=0.0)
    given = sides(other)
    (cause,) = name_causes(located(other), given)
    assert (cause.id, cause.measurements["kind"]) == ("variables-not-trained", "script-zero-gradient")
    still = replace(given.traces[1], steps=np.zeros(3, step_dtype(2, 1)))
    assert still.never_changes
    (cause,) = name_causes(located(other), replace(given, traces=(given.traces[0], still)))
    assert (cause.id, cause.measurements["kind"], cause.measurements["zero"]) == (
        "variables-not-trained", "weights-never-change", "gradients"
    )  # fmt: skip


def test_a_penalty_without_a_gradient_is_said_to_be_that() -> None:
    own = linear_step()
    kernel = own.arrays(STEP, "weights")[0]
    events = [
        replace(each, arrays=[each.arrays[0], each.arrays[1] - 0.02 * kernel, each.arrays[2]])
        if each.kind == "gradients"
        else each
        for each in own.steps[STEP]
    ]
    other = replace(own, steps={**own.steps, STEP: events})
    found = located(other)
    assert (found.stage, name_causes(found, sides(other))) == ("gradients", [])
    assert hints(found, sides(other)) == [hint("apart-by-weights", variables=["dense/kernel"])]


@pytest.mark.parametrize("of_bias", [0.02, 0.04])
def test_a_multiple_of_the_weights_that_is_added_to_gradients_is_said(of_bias: float) -> None:
    right = linear_step(penalty=0.0)
    weights, factors = right.arrays(STEP, "weights"), (0.02, of_bias)
    events = [
        replace(
            each,
            arrays=[each.arrays[0], *(g + c * w for g, c, w in zip(each.arrays[1:], factors, weights, strict=True))],
        )
        if each.kind == "gradients"
        else each
        for each in right.steps[STEP]
    ]
    other = replace(right, steps={**right.steps, STEP: events})
    both = replace(sides(other), close_ups=(right, other))
    found = locate(right, other, [TWIN], STEP, NAMES)
    added = hint(
        "weights-added",
        factor=pytest.approx(0.02),
        variables=["dense/kernel", "dense/bias"],
        penalized=False,
        line=None,
    )
    assert hints(found, both) == ([added] if of_bias == 0.02 else [])


def test_gradients_that_are_apart_by_anything_else_are_no_penalty() -> None:
    own = linear_step()
    events = [
        replace(each, arrays=[each.arrays[0], each.arrays[1] + [[0.5], [-0.25], [0.125]], each.arrays[2]])
        if each.kind == "gradients"
        else each
        for each in own.steps[STEP]
    ]
    other = replace(own, steps={**own.steps, STEP: events})
    assert located(other).stage == "gradients" and hints(located(other), sides(other)) == []


def test_weights_that_never_change_are_said_to_be_that() -> None:
    other = linear_step(rate=0.0)
    both = sides(other)
    still, moving = np.zeros(3, step_dtype(2, 1)), np.zeros(3, step_dtype(2, 1))
    moving["hashes"][1:] = 1
    for steps, said in ((still, [hint("never-changes")]), (moving, [])):
        traces = both.traces[0], replace(both.traces[1], steps=steps)
        assert hints(located(other), replace(both, traces=traces)) == said


NORMAL = "tf.random.normal"


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ({NORMAL: ["graph"]}, False),
        ({NORMAL: ["eager"]}, True),
        ({NORMAL: ["eager", "graph"]}, True),
        ({"tf.random.uniform": ["eager"]}, False),
    ],
)
def test_random_numbers_that_both_draw_but_only_one_in_a_graph_are_said(
    drawn: Mapping[str, Sequence[str]], said: bool
) -> None:
    other = linear_step(factor=1.5)
    both = sides(other)
    traces = replace(both.traces[0], drawn={NORMAL: ["graph"]}), replace(both.traces[1], drawn=drawn)
    found = hints(located(other), replace(both, traces=traces))
    assert found == [hint("drawn", functions=[NORMAL])] * said


@pytest.mark.parametrize(
    ("way", "numbers", "place", "said"),
    [
        ("graph", [7], "inputs", True),
        ("eager", [1], "inputs", False),  # other ways, but the same numbers
        ("eager", [1, 7], "inputs", False),  # the same, and then more
        ("graph", [7], "gradients", False),  # after the loss, which differs
    ],
)
def test_random_numbers_that_were_seen_are_said_only_if_they_differ_before_the_stage_does(
    way: str, numbers: Sequence[int], place: str, said: bool
) -> None:
    def drawing(close_up: CloseUp, rows: Sequence[int]) -> CloseUp:
        events = list(close_up.steps[STEP])
        at = next(i for i, each in enumerate(events) if each.kind == place)
        events.insert(at, Event("drawn", 0, {"name": NORMAL}, [], rows))
        return replace(close_up, steps={**close_up.steps, STEP: events})

    both = sides(drawing(linear_step(factor=1.5), numbers))
    traces = replace(both.traces[0], drawn={NORMAL: ["graph"]}), replace(both.traces[1], drawn={NORMAL: [way]})
    both = replace(both, traces=traces, close_ups=(drawing(both.right, [1]), both.other))
    assert kinds(locate(*both.close_ups, [TWIN], STEP, NAMES), both) == ["drawn-otherwise"] * said


def test_random_numbers_of_another_shape_are_said_to_be_that() -> None:
    def drawing(close_up: CloseUp, rows: Sequence[int], shape: list[int]) -> CloseUp:
        info = {"name": NORMAL, "shape": shape, "line": ("loop.py", 7, "tf.random.normal([n])")}
        return replace(close_up, steps={STEP: [Event("drawn", 0, info, [], rows), *close_up.steps[STEP]]})

    both = sides(drawing(linear_step(times=0.5), [7], [1]))
    traces = replace(both.traces[0], drawn={NORMAL: ["graph"]}), replace(both.traces[1], drawn={NORMAL: ["graph"]})
    both = replace(both, traces=traces, close_ups=(drawing(both.right, [1], [16]), both.other))
    _, found = found_hints.hints(locate(*both.close_ups, [TWIN], STEP, NAMES), both)
    assert words.said(found) == (
        f"loop draws numbers of shape [1] by {NORMAL} in this step, fit of shape [16], so the numbers differ "
        "(loop.py:7: tf.random.normal([n]))"
    )


@pytest.mark.parametrize(
    ("option", "clip", "stage"),
    [
        ("global_clipnorm", Clip("global", 0.01), "update"),
        ("clipnorm", Clip("norm", 0.01), "update"),
        ("clipvalue", Clip("value", 0.01), "update"),
        ("global_clipnorm", Clip("global", 0.02), "gradients"),
        ("global_clipnorm", Clip("norm", 0.01), "gradients"),
    ],
)
def test_gradients_that_one_side_clips_by_hand_as_the_others_optimizer_does_agree(
    option: str, clip: Clip, stage: str
) -> None:
    def given(close_up: CloseUp, clips: Clip | None, **options: float) -> CloseUp:
        def change(event: Event) -> Event:
            rate, *gradients = event.arrays
            info = {**event.info, "given": [options.get(name) for name in CLIPPING] + [False]}
            return replace(event, info=info, arrays=[rate, *(clips.of(gradients) if clips else gradients)])

        events = [change(each) if each.kind == "gradients" else each for each in close_up.steps[STEP]]
        return replace(close_up, steps={**close_up.steps, STEP: events})

    assert clip.of([]) == [], "of a step whose gradients were not seen"
    right, twin = (given(each, None, **{option: 0.01}) for each in (linear_step(), TWIN))
    other = given(linear_step(rate=0.3), clip)
    assert locate(right, other, [twin], STEP, NAMES).stage == stage


@pytest.mark.parametrize(
    ("in_rows", "where", "said"),
    [
        (([0], []), "dense/kernel", ["fit"]),
        (([], [0]), "dense/kernel", ["loop"]),
        (([0], [0]), "dense/kernel", []),
        (([0], []), "dense/bias", []),
        (([0], []), "dense/kernel, dense/bias", []),
        (([0], []), "", []),
    ],
)
def test_gradients_in_rows_are_said_where_only_their_variables_are_changed_otherwise(
    in_rows: tuple[list[int], list[int]], where: str, said: list[str]
) -> None:
    info = {"positions": [0, 1], "given": None}
    close_ups = [
        CloseUp({STEP: [Event("gradients", 0, info | {"in_rows": each}, [np.asarray(0.1), np.ones(3), np.ones(1)])]})
        for each in in_rows
    ]
    both = replace(sides(linear_step()), close_ups=tuple(close_ups))
    found = [each for each in hints(Located(STEP, "update", where), both) if each["kind"] == "in-rows"]
    assert [each["side"] for each in found] == said


def test_examples_that_are_made_from_random_numbers_are_said_to_be_that() -> None:
    own = linear_step()
    events = [
        replace(each, rows=[row + 1 for row in each.rows]) if each.kind == "inputs" else each
        for each in linear_step(offset=0.1).steps[STEP]
    ]
    other = replace(own, steps={**own.steps, STEP: events})
    both, found = sides(other), Located(STEP, "examples")
    traces = replace(both.traces[0], drawn={NORMAL: ["graph"]}), replace(both.traces[1], drawn={NORMAL: ["eager"]})
    assert kinds(found, replace(both, traces=traces)) == ["unknown-examples", "drawn"]


@pytest.mark.parametrize("drawing", [0, 1])
def test_random_numbers_that_only_one_script_draws_are_said(drawing: int) -> None:
    other = linear_step(times=2.0)
    given = sides(other)
    drawn = {NORMAL: ["graph"]}
    traces = [replace(trace, drawn=drawn if i == drawing else {}) for i, trace in enumerate(given.traces)]
    found = hints(located(other), replace(given, traces=tuple(traces)))
    times = hint("inputs-times", factor=2.0)
    assert found == [times, hint("calls-alone", side=given.names[drawing], functions=[NORMAL])]
    update = linear_step(rate=0.2)
    assert hints(located(update), replace(given, traces=tuple(traces))) == [], "an update draws none"
    loss = linear_step(factor=1.5)
    both = replace(given, traces=tuple(traces), close_ups=(given.close_ups[0], loss))
    assert hints(located(loss), both) == [], "the predictions agree, and so do weights that were drawn"
    draws, at = Event("drawn", 0, {"name": NORMAL}, [], [1]), [each.kind for each in loss.steps[STEP]].index("loss")
    for place, said in ((at, drawing), (0, 0)):
        events = [*loss.steps[STEP][:place], draws, *loss.steps[STEP][place:]]
        both = replace(both, close_ups=(given.close_ups[0], replace(loss, steps={**loss.steps, STEP: events})))
        found = [hint("calls-alone", side=given.names[drawing], functions=[NORMAL])] * said
        assert hints(located(loss), both) == found, "the loop has drawn it for its loss"


@pytest.mark.parametrize(("first", "second", "said"), [
    (("uniform",), ("normal",), ["fit"]),  # the loop draws the normal ones that fit draws elsewhere
    (("normal",), ("normal",), []),
    ((), ("normal",), []),
])  # fmt: skip
def test_a_function_that_one_side_alone_draws_from_in_a_step_is_said(
    first: Sequence[str], second: Sequence[str], said: list[str]
) -> None:
    other = linear_step(times=2.0)
    given = sides(other)
    names = [["uniform", "normal"] if first == ("uniform",) else ["normal"], ["normal"]]
    traces = [
        replace(trace, drawn={name: ["graph"] for name in each})
        for trace, each in zip(given.traces, names, strict=True)
    ]
    drawn = [[Event("drawn", 0, {"name": name}, [], [i]) for name in each] for i, each in enumerate((first, second))]
    close_ups = [
        replace(each, steps={**each.steps, STEP: [*events, *each.steps[STEP]]})
        for each, events in zip(given.close_ups, drawn, strict=True)
    ]
    both = replace(given, traces=tuple(traces), close_ups=tuple(close_ups))
    found = [each["side"] for each in hints(located(other), both) if each["kind"] == "calls-alone"]
    assert found == said


def test_numbers_drawn_before_the_first_step_may_be_its_weights() -> None:
    drawn = Event("drawn", 0, {"name": NORMAL}, [], [1])
    close_up = CloseUp({1: [drawn], 2: [drawn]})
    assert [_drawn_for_loss(close_up, step) for step in (1, 2)] == [set(), {NORMAL}]


def weights_of(*layers: str) -> Trace:
    """A training with the weights of these layers, each with as many units as the number in its name."""
    variables = []
    for layer in layers:
        units = int(layer.split("_")[-1])
        variables += [Variable(f"m/{layer}/kernel", (6, units), "float32")]
        variables += [Variable(f"m/{layer}/bias", (units,), "float32")]
    return Trace(tuple(variables), 1, np.zeros(0, step_dtype(len(variables), 1)))


@pytest.mark.parametrize(
    ("shared", "other", "more", "named"),
    [
        (("encoder_8", "head_1"), ("encoder_8", "copy_8", "head_1"), 2, True),
        (("encoder_8", "head_1"), ("encoder_8", "head_1"), 0, False),
        (("encoder_8", "head_1"), ("encoder_8", "copy_4", "head_1"), 0, False),  # another layer
        (("other_8", "head_1"), ("other_8", "copy_8", "head_1"), 2, False),  # one layer more; none is called twice
        (("encoder_8", "head_8"), ("encoder_8", "copy_8", "more_8", "head_8"), 4, False),  # two copies of a shared one
    ],
)
def test_copies_of_a_shared_layer_are_named(shared: Any, other: Any, more: int, named: bool) -> None:
    traces = weights_of(*shared), weights_of(*other)
    assert len(more_weights(*traces)) == len(more_weights(*traces[::-1])) == more
    calls = [Event("layer", 0, {"name": name}, []) for name in ("encoder_8", "encoder_8", *shared[1:])]
    for order in (1, -1):  # whichever is the reference
        close_ups = (CloseUp({1: calls}), CloseUp({1: []}))[::order]
        found = name_copies(Sides(("one", "two")[::order], traces[::order], close_ups, 1))
        assert [(each.id, each.side) for each in found] == [("weights-not-shared", "two")] * named
        for each in found:
            copied = {"variables": ["m/copy_8/kernel", "m/copy_8/bias"], "layers": ["encoder_8"], "times": 2}
            assert each.measurements == {"kind": "copies", "side": "two", "other": "one", **copied}


def several(deviations: Mapping[int, Mapping[str, Any]], *, given: Any = None, steps: int = 4) -> CloseUp:
    """Steps outside of a close-up, with the deviations of some, each with losses and sketches of gradients only."""
    seen = {}
    for step in range(1, steps + 1):
        events = {each.kind: each for each in linear_step(**deviations.get(step, {})).steps[STEP]}
        gradients = events["gradients"]
        info = {**gradients.info, "given": given}
        sketches = Event("sketch", 0, info, [sketch(array) for array in gradients.arrays[1:]])
        seen[step] = [replace(events["inputs"], arrays=[]), events["loss"], sketches]
    return CloseUp(seen)


@pytest.mark.parametrize(
    ("deviations", "first"),
    [
        ({}, None),
        ({step: {"factor": 2.0} for step in (2, 3, 4)}, 2),
        ({3: {"factor": 0.5}}, 3),  # a short batch
        ({step: {"gradient": 2.0} for step in (2, 3, 4)}, 2),  # the loss is the same
        ({3: {"gradient": 1.01}, 4: {}}, None),  # one unit across its kink moves a gradient, and no loss
        ({4: {"gradient": 1.01}}, 4),  # and no later step is known
        ({step: {"with_penalty": False} for step in (2, 3, 4)}, None),  # another constant has the same gradients
        ({step: {"noise": 3e-7} for step in (2, 3, 4)}, None),
    ],
)
def test_the_step_to_look_into_is_the_first_whose_gradients_differ(
    deviations: Mapping[int, Mapping[str, Any]], first: int | None
) -> None:
    twin = several({step: {"noise": 1e-7} for step in (1, 2, 3, 4)})
    assert first_apart(several({}), several(deviations), [twin], before=5) == first
    assert first_apart(several({}), several(deviations), [twin], before=2) is None, "not after the weights differ"


def test_gradients_are_not_compared_where_one_optimizer_clips_them_itself() -> None:
    wrong = {step: {"gradient": 0.1} for step in (1, 2, 3, 4)}
    assert first_apart(several({}, given=[1.0]), several(wrong, given=[None]), [], before=5) is None
    assert first_apart(several({}, given=[1.0]), several(wrong, given=[1.0]), [], before=5) == 1


def test_a_second_call_of_the_optimizer_is_part_of_the_step_whose_gradients_it_gets() -> None:
    once, twice = linear_step(), linear_step()
    gradients = [each for each in twice.steps[STEP] if each.kind == "gradients"]
    twice = replace(twice, steps={**twice.steps, STEP + 1: gradients})
    once = replace(once, steps={**once.steps, STEP + 1: once.steps[STEP]})
    assert (once.calls(STEP), twice.calls(STEP), twice.calls(STEP + 1)) == (1, 2, None)
    assert first_apart(once, twice, [TWIN], before=STEP + 1) == STEP, "the weights differ only after the second call"
    found = locate(once, twice, [TWIN], STEP, NAMES)
    update = found.of("update")
    assert found.stage == "update" and update is not None
    assert (update.reference, update.candidate) == ("1 call of the optimizer", "2 calls of the optimizer")
    for both in (sides(twice), sides(twice).turned()):
        (cause,) = name_causes(found, replace(both, close_ups=(once, twice)))
        assert (cause.id, cause.side, cause.measurements["times"]) == ("optimizer-differs", both.other_name, 2)
    (cause,) = name_causes(found, replace(sides(twice), close_ups=(twice, once)))
    assert (cause.id, cause.side) == ("optimizer-differs", "fit"), "the one that does it"
    others = [replace(each, arrays=[each.arrays[0], *(2 * g for g in each.arrays[1:])]) for each in gradients]
    apart = replace(twice, steps={**twice.steps, STEP + 1: others})
    assert name_causes(found, replace(sides(apart), close_ups=(once, apart))) == []
    assert hints(found, sides(apart))[0] == hint("applied-times", times=2)
    plain = {**ADAM, "config": {**ADAM["config"], "weight_decay": 0.0}}
    decays = {**ADAM, "config": {**ADAM["config"], "weight_decay": 0.05}}
    fit, loop = sides(apart).traces
    traces = replace(fit, optimizers=[decays]), replace(loop, optimizers=[plain])
    own = replace(sides(apart), close_ups=(once, apart), traces=traces)
    assert name_causes(found, own) == [], "the second call may be a decay of its own"


@pytest.mark.parametrize("clipping", [0, 1])
def test_weights_that_one_side_alone_sets_after_its_update_are_state(clipping: int) -> None:
    def step(clip: bool, noise: float = 0.0) -> CloseUp:
        seen = linear_step(noise=noise)
        made = Event("updated", 0, {"training": 0}, seen.after[STEP])
        kernel, bias = seen.after[STEP]
        after = {**seen.after, STEP: [np.clip(kernel, -0.1, 0.1) if clip else kernel, bias]}
        return replace(seen, steps={**seen.steps, STEP: [*seen.steps[STEP], made]}, after=after)

    pair, twin = [step(i == clipping) for i in (0, 1)], step(not clipping, 1e-7)
    found = locate(pair[0], pair[1], [twin], STEP, NAMES)
    assert (found.stage, found.where) == ("state", "dense/kernel")
    state = found.stages[-1]
    assert [text == "unchanged" for text in (state.reference, state.candidate)] == [bool(clipping), not clipping]
    assert name_causes(found, replace(sides(pair[1]), close_ups=tuple(pair))) == []


def test_weights_that_both_set_between_two_steps_but_otherwise_are_state() -> None:
    def set_to(times: float, close_up: CloseUp) -> CloseUp:
        return replace(
            close_up, after={**close_up.after, STEP - 1: [times * each for each in close_up.after[STEP - 1]]}
        )

    # Equal weights after the step before; then both are set, to the same values or to others.
    set_alike = [set_to(2.0, each) for each in (linear_step(), linear_step(), TWIN)]
    assert locate(set_alike[0], set_alike[1], [set_alike[2]], STEP, NAMES).stage is None
    other = set_to(2.0, linear_step())
    events = [
        replace(e, arrays=[1.01 * each for each in e.arrays]) if e.kind in ("weights", "predictions") else e
        for e in other.steps[STEP]
    ]
    found = locate(set_alike[0], replace(other, steps={**other.steps, STEP: events}), [set_alike[2]], STEP, NAMES)
    assert (found.stage, found.where) == ("state", "dense/kernel, dense/bias")


def test_a_flag_is_that_of_the_model_whose_predictions_differ() -> None:
    def of_a_gan(close_up: CloseUp) -> CloseUp:
        judge = Event("predictions", 0, {"model": "judge", "training": True}, [np.ones(8)])
        return replace(close_up, steps={**close_up.steps, STEP: [*close_up.steps[STEP], judge]})

    right, other = of_a_gan(linear_step()), of_a_gan(linear_step(offset=0.01, flag="not given"))
    for pair, side in (((right, other), "loop"), ((other, right), "fit")):
        both = replace(sides(other), close_ups=pair)
        (named,) = name_causes(locate(*pair, [], STEP, NAMES), both)
        assert (named.id, named.side) == ("training-flag-missing", side)
    meant = of_a_gan(linear_step(offset=0.01, flag=False))
    assert name_causes(locate(meant, right, [], STEP, NAMES), replace(sides(right), close_ups=(meant, right))) == []


def micro_batches(*, factor: float = 1.0, gradient: float = 1.0, **deviation: Any) -> CloseUp:
    """The step of ``linear_step`` whose 8 examples come in two parts; each part's gradient is added."""
    whole = linear_step(gradient=gradient, **deviation)
    given = {"factor": factor, "penalty": factor * 0.5, **deviation}
    parts = [linear_step(rows=slice(*rows), **given) for rows in ((0, 4), (4, 8))]
    before = [each for part in parts for each in part.steps[STEP] if each.kind != "gradients"]
    gradients = [each for each in whole.steps[STEP] if each.kind == "gradients"]
    return replace(whole, steps={**whole.steps, STEP: [*before, *gradients]})


def test_other_inputs_of_micro_batches_are_no_part_of_a_model() -> None:
    assert located(micro_batches(times=1.1)).stage == "inputs"


def test_micro_batches_of_different_sizes_that_count_alike_are_said() -> None:
    whole = linear_step(gradient=0.9)

    def with_parts(*rows: tuple[int, int]) -> CloseUp:
        parts = [linear_step(rows=slice(*each)) for each in rows]
        before = [each for part in parts for each in part.steps[STEP] if each.kind != "gradients"]
        gradients = [each for each in whole.steps[STEP] if each.kind == "gradients"]
        return replace(whole, steps={**whole.steps, STEP: [*before, *gradients]})

    uneven = with_parts((0, 6), (6, 8))
    (found,) = (each for each in hints(located(uneven), sides(uneven)) if each["kind"] == "micro-batches-alike")
    right = float(linear_step().arrays(STEP, "loss")[0])
    assert (found["side"], found["sizes"], found["weighted"]) == ("loop", [6, 2], pytest.approx(right))
    even = with_parts((0, 4), (4, 8))
    assert "micro-batches-alike" not in kinds(located(even), sides(even))


@pytest.mark.parametrize(("factor", "stage"), [(1.0, None), (2.0, "loss")])
def test_a_model_that_is_called_again_with_the_same_examples_for_a_term_of_the_loss_has_them_once(
    factor: float, stage: str | None
) -> None:
    usual = linear_step(factor=factor)
    events = list(usual.steps[STEP])
    begin = [each.kind for each in events].index("targets")
    again = [
        replace(each, arrays=[1.5 * each.arrays[0]]) if each.kind in ("layer", "predictions") else replace(each)
        for each in events[:begin]  # what is computed may be another thing, as with dropout
    ]
    twice = replace(usual, steps={**usual.steps, STEP: [*events[:begin], *again, *events[begin:]]})
    found = located(twice)
    assert found.stage == stage and found.of("examples").equal and found.of("predictions").equal
    assert sides(twice).parts == [1, 1], "no micro-batches"
    micro = replace(usual, steps={**usual.steps, STEP: [*events[: begin + 2], *again, *events[begin:]]})
    assert sides(micro).parts == [1, 2], "each with a loss of its own"
    both = sides(replace(usual, steps={**usual.steps, STEP: [*events, *(replace(each, replica=1) for each in events)]}))
    both = replace(both, traces=(both.traces[0], replace(both.traces[1], replicas=2)))
    assert both.parts == [1, 1], "one on each of two replicas"


@pytest.mark.parametrize("off", [0.0, 0.01])
def test_outputs_in_one_array_are_compared_with_the_same_in_two(off: float) -> None:
    def giving(close_up: CloseUp, outputs: Any) -> CloseUp:
        events = [
            replace(each, arrays=outputs(each.arrays[0])) if each.kind == "predictions" else each
            for each in close_up.steps[STEP]
        ]
        return replace(close_up, steps={**close_up.steps, STEP: events})

    one = giving(linear_step(), lambda mean: [np.hstack([mean, 1 - mean])])
    two = giving(linear_step(factor=2.0), lambda mean: [mean, 1 - mean + off])
    assert locate(one, two, [], STEP, NAMES).stage == ("predictions" if off else "loss")
    for more in ([], [1]):
        scalar = giving(linear_step(), lambda mean, more=more: [*[mean] * len(more), np.float32(off)])
        assert locate(one, scalar, [], STEP, NAMES).of("predictions").differs, "a scalar is of no example"


@pytest.mark.parametrize("off", [0.0, 0.01])
def test_several_outputs_of_micro_batches_are_compared_with_those_of_the_batch_without_losses_beside_them(
    off: float,
) -> None:
    def calls(*outputs: list[np.ndarray]) -> CloseUp:
        seen = linear_step()
        at = next(i for i, each in enumerate(seen.steps[STEP]) if each.kind == "predictions")
        event, events = seen.steps[STEP][at], list(seen.steps[STEP])
        events[at : at + 1] = [replace(event, arrays=arrays) for arrays in outputs]
        return replace(seen, steps={STEP: events})

    box, kind = np.arange(32.0).reshape(8, 4), np.arange(8.0)[:, None]
    parts = ([box[i : i + 2], kind[i : i + 2] + off, np.float32(0.5)] for i in range(0, 8, 2))
    found = locate(calls([box, kind]), calls(*parts), [], STEP, NAMES).of("predictions")
    assert found is not None and found.differs == bool(off)


def test_labels_of_several_losses_are_no_others_where_each_side_calls_the_losses_in_its_own_order() -> None:
    def given(*labels: np.ndarray, factor: float = 1.0) -> CloseUp:
        seen = linear_step(factor=factor)
        (event,) = (each for each in seen.steps[STEP] if each.kind == "targets")
        others = [each for each in seen.steps[STEP] if each.kind != "targets"]
        called = [replace(event, arrays=[y, *event.arrays[1:]], rows=tuple(row_hashes([y]))) for y in labels]
        return replace(seen, steps={STEP: [*others, *called]})

    one, two = np.arange(8.0)[:, None], np.arange(8.0, 16.0)[:, None]
    for labels, stage in (((two, one), "loss"), ((two, one[::-1].copy()), "loss"), ((two, one + 99), "examples")):
        assert locate(given(one, two), given(*labels, factor=1.1), [], STEP, NAMES).stage == stage


def test_a_step_of_several_micro_batches_is_compared_with_all_of_them() -> None:
    def stages(other: CloseUp) -> list[str]:
        return [each.stage for each in located(other).stages if each.differs and each.stage != "update"]

    assert stages(micro_batches(factor=0.5)) == stages(micro_batches()) == [], "divided before or after the gradient"
    assert stages(micro_batches(gradient=2.0)) == ["gradients"]
    for factor, differs in ((0.5, False), (2.0, False), (0.3, True)):
        loss = locate(micro_batches(), micro_batches(factor=factor), [], STEP, NAMES).of("loss")
        assert loss is not None and loss.differs == differs, "fit may accumulate, and divide afterwards"
    moved = micro_batches()
    events = [
        replace(e, arrays=[e.arrays[0] + 1]) if e.kind in ("layer", "predictions") else e for e in moved.steps[STEP]
    ]
    found = located(replace(moved, steps={**moved.steps, STEP: events}))
    assert (found.of("predictions") or found).where == "dense"
    last = [event.kind for event in events].index("layer")
    events[last] = moved.steps[STEP][last]
    assert located(replace(moved, steps={**moved.steps, STEP: events})).of("predictions").where == "dense"


def test_sketches_are_about_as_far_apart_as_the_arrays() -> None:
    random = np.random.default_rng(0)
    for shape in ((1,), (3, 5), (200, 31)):
        a, b = random.normal(size=shape), random.normal(size=shape)
        ratio = np.linalg.norm(sketch(a) - sketch(b)) / np.linalg.norm(a - b)
        assert 0.5 < ratio < 1.6
        assert np.allclose(sketch(a) + sketch(b), sketch(a + b)), "those of replicas add up"


@pytest.mark.parametrize("deviation", [{"times": 0.5}, {"offset": 0.01}, {"moved": 0.01}])
def test_no_cause_is_guessed(deviation: Any) -> None:
    other = linear_step(**deviation)
    assert name_causes(located(other), sides(other)) == []


def test_the_sentence_says_what_agrees_and_what_does_not() -> None:
    found = located(linear_step(factor=2.0))
    first = Difference(1, STEP, stage=found.stage, where=found.where)
    training = Training(DIFFERENT, None, first, 0)
    entry = Comparison("loop", training, Reporting(None, {}), stages=tuple(found.stages))
    text = stage_sentence(entry, "fit")
    assert "examples, inputs and predictions agree; the loss does not" in text
    assert [view.state for view in stage_views(entry)] == ["same"] * 3 + ["differs", "after", "after", "still"]
    unseen = [replace(each, gap=None) if i < 3 else each for i, each in enumerate(found.stages)]
    missing = replace(entry, training=replace(entry.training, reason="loop has no step 3 in epoch 1"))
    assert (stage_sentence(missing, "fit"), stage_views(missing)) == ("", []), "there is no such step to look into"
    text = stage_sentence(replace(entry, stages=tuple(unseen)), "fit")
    assert text.startswith("Inside that step, the loss differs: ")
    assert text.endswith("; examples, inputs and predictions could not be compared")


@pytest.mark.parametrize(
    ("rounding", "says"), [(4, "differ from step 4"), (2, "differ by more than rounding from step 4")]
)
def test_a_mistake_after_steps_that_only_round_differently(rounding: int, says: str) -> None:
    comparison = Comparison("loop", Training(DIFFERENT, None, Difference(1, rounding), 10), Reporting(None, {}))
    first = Difference(1, 4, stage="loss", where="")
    located = with_located(comparison, replace(comparison, training=Training(DIFFERENT, None, first, 0)))
    assert located.training.first_difference == replace(first, equal_before=rounding == 4)
    assert says in sentence(located, "fit")


def test_a_flag_that_the_first_layer_to_differ_does_not_know_is_no_cause() -> None:
    right, other = linear_step(), linear_step(offset=0.01, flag="not given")
    for flagged, named in ((True, ["training-flag-missing"]), (False, [])):
        events = [replace(each, info={**each.info, "flagged": flagged}) for each in right.steps[STEP]]
        pair = replace(right, steps={**right.steps, STEP: events}), other
        found = name_causes(locate(*pair, [], STEP, NAMES), replace(sides(other), close_ups=pair))
        assert [each.id for each in found] == named


def with_models(order: str, second: float, flag: Any = True) -> CloseUp:
    """A step that calls two models, of which b gives ``second`` where it drops out, in an order."""
    step = linear_step(factor=second)

    def called(model: str) -> list[Event]:
        first = next(each for each in step.steps[STEP] if each.kind == "inputs")
        shape, given = (8, 2) if model == "a" else (8, 3), flag if model == "b" else True
        middle = np.full(shape, 0.5, np.float32)
        out = np.full(shape, second if model == "b" else 1.0, np.float32)
        return [
            replace(first, info={"model": model, "line": ("loop.py", ord(model), f"{model}(x)")}),
            Event("layer", 0, {"name": f"dense_{model}", "class": "Dense", "model": model, "flagged": False}, [middle]),
            Event("layer", 0, {"name": f"dropout_{model}", "class": "Dropout", "model": model, "flagged": True}, [out]),
            Event("predictions", 0, {"model": model, "training": given}, [out]),
        ]

    kept = [each for each in step.steps[STEP] if each.kind in ("targets", "loss", "gradients")]
    return replace(step, steps={**step.steps, STEP: [*(event for model in order for event in called(model)), *kept]})


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_models_that_each_side_calls_in_its_own_order_are_compared_and_the_flag_is_that_of_the_one_that_differs(
    order: str,
) -> None:
    right, other = with_models("ab", 1.0), with_models(order, 1.25, "not given")
    found = locate(right, other, [], STEP, NAMES)
    assert (found.stage, found.where) == ("predictions", "dropout_b")
    (cause,) = name_causes(found, replace(sides(other), close_ups=(right, other)))
    assert cause.id == "training-flag-missing"
    assert locate(right, with_models(order, 1.0), [], STEP, NAMES).stage is None


@pytest.mark.parametrize(
    ("batches", "other", "said"),
    [
        ("AABB", "ABAB", [(1, 2)]),
        ("ABAB", "AABB", [(2, 1)]),
        ("AABB", "BBAA", []),
        ("AAB", "AAB", []),
        ("ABBC", "ABCA", []),
    ],
)
def test_steps_that_are_made_on_each_batch_are_counted(batches: str, other: str, said: list[tuple[int, int]]) -> None:
    rows = {name: linear_step(rows=slice(4 * i, 4 * i + 8)).steps[STEP] for i, name in enumerate("ABC")}

    def seen(names: str) -> CloseUp:
        return CloseUp({number: rows[name] for number, name in enumerate(names, 1)}, linear_step().after)

    plain = sides(seen(other))
    loops = tuple(replace(trace, epochs=[FitEpoch(4, {}, 1.0)]) for trace in plain.traces)
    both = replace(plain, close_ups=(seen(batches), seen(other)), traces=loops)
    found = hints(Located(STEP, "examples"), both)
    times = [(each["times"], each["other_times"]) for each in found if each["kind"] == "steps-on-each-batch"]
    assert times == said
