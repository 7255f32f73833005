"""Each cause of a script is named where its numbers are seen, and not where they are nearly so; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_stages import ADAM, NAMES, STEP, linear_step, micro_batches, sides

from compare.app.scripts_close_ups import CloseUps, called_first, first_before
from compare.app.scripts_explain import _found
from compare.check import not_finite, recorded
from compare.check.causes import CATALOGUE
from compare.check.causes.base import Variant
from compare.check.causes.data_recorded import _in_whole_epoch
from compare.check.causes.loss_of_examples import _recorded_logits
from compare.check.causes.loss_recorded import _is_times, recorded_share, recorded_without_penalty
from compare.check.causes.optimizer_recorded import kind_of_setting, with_options
from compare.check.draws import hints_on_draws
from compare.check.hints import called_between_steps, hints
from compare.check.judge_recorded import _with_updates_of, name_causes, name_further
from compare.check.measurement import Measurement
from compare.check.recorded import scale_of
from compare.check.stages import Located, locate
from compare.check.step_values import Sides, equal_gradients
from compare.check.targets import Targets, losses_of, targets_of, value_of
from compare.check.words import said as told
from compare.records.model import step_dtype
from compare.verdict.findings import Finding, Source, StageValues
from compare.watch.epoch_ends import EpochEnds
from compare.watch.seen import ENDLESS, CloseUp, Event, each_once, row_hashes, sketch
from compare.watch.trace import BY_HAND, FitEpoch, Trace

pytestmark = pytest.mark.usefixtures("texts_by_id")  # no cause rests on a sentence

PENALTY = 0.5
"""The model's own losses in ``linear_step``."""


def accused(
    right: CloseUp, other: CloseUp, *, names: Sequence[str] = NAMES, step: int = STEP, **given: Any
) -> list[tuple[str, str]]:
    """The stage and the id of the cause, if any, of two scripts whose step ``STEP`` was seen; see ``found_causes``."""
    stage = str(locate(right, other, [], step, names).stage)
    return [(stage, cause.id) for cause in found_causes(right, other, names=names, step=step, **given)]


def found_causes(
    right: CloseUp,
    other: CloseUp,
    *,
    replicas: int = 1,
    ends: Sequence[int] = (2,),
    rate: Any = 0.001,
    names: Sequence[str] = NAMES,
    step: int = STEP,
    lengths: Sequence[int] = (0, 0),
    trained_by: str = "fit",
    **fit: Any,
) -> list[Finding]:
    """The causes of two scripts whose step ``STEP`` was seen.

    Args:
        right: what was seen of fit.
        other: what was seen of the loop.
        replicas: of both.
        ends: the number of steps made at the end of each of fit's epochs.
        rate: the learning rate of fit's optimizer, as configured.
        names: the variables.
        step: the step.
        lengths: how many steps fit makes in all, and the loop.
        trained_by: what trains in place of fit.
        fit: what fit was called with.
    """
    given = sides(other)
    variables = tuple(replace(v, name=name) for v, name in zip(given.traces[0].variables, names, strict=True))
    adam = {**ADAM, "config": {**ADAM["config"], "learning_rate": rate}}
    epochs = [FitEpoch(end, {}, 1.0) for end in ends]
    steps = [np.zeros(length, step_dtype(2, 1)) for length in lengths]
    for each in steps:
        each["step"] = len(each)
    traces = (
        replace(
            given.traces[0],
            variables=variables, replicas=replicas, optimizers=[adam], epochs=epochs, fit=fit, steps=steps[0],
            trained_by=trained_by,
        ),
        replace(given.traces[1], variables=variables, replicas=replicas, steps=steps[1]),
    )  # fmt: skip
    found = locate(right, other, [], step, names)
    both = replace(given, traces=traces, close_ups=(right, other), step=step)
    return name_causes(found, both)


def test_a_scalar_beside_the_predictions_hides_no_factor_of_the_loss() -> None:
    """As of a model that returns its own loss, too."""

    def seen(factor: float) -> CloseUp:
        with_scalar = lambda event: replace(event, arrays=[*event.arrays, np.float32(1.0)])  # noqa: E731
        close_up = changed(linear_step(factor=factor, with_penalty=False), "predictions", with_scalar)
        return replace(close_up, steps={**close_up.steps, STEP + 1: close_up.steps[STEP]})

    (found,) = found_causes(seen(1.0), seen(3.0))
    assert found.id == "loss-scaled"


def remedies(cause: str, right: CloseUp, other: CloseUp) -> str:
    """What a cause says to write instead, for all that its recogniser sees."""
    both, located = replace(sides(other), close_ups=(right, other)), locate(right, other, [], STEP, NAMES)
    stage = next(iter(CATALOGUE[cause].recorded)) if located.stage is None else located.stage
    return "".join(variant.remedy for variant in CATALOGUE[cause].recorded[stage](both, located))


def changed(close_up: CloseUp, kind: str, change: Callable[[Event], Event | list[Event]]) -> CloseUp:
    """A close-up whose events of one kind in ``STEP`` are others."""
    events: list[Event] = []
    for event in close_up.steps[STEP]:
        new = change(event) if event.kind == kind else event
        events += new if isinstance(new, list) else [new]
    return replace(close_up, steps={**close_up.steps, STEP: events})


def with_loss(close_up: CloseUp, loss: float, penalty: float = PENALTY) -> CloseUp:
    return changed(close_up, "loss", lambda event: replace(event, arrays=[np.float64(loss), np.float64(penalty)]))


def with_gradients(close_up: CloseUp, *gradients: Any) -> CloseUp:
    return changed(close_up, "gradients", lambda event: replace(event, arrays=[event.arrays[0], *gradients]))


def gradients(close_up: CloseUp) -> list[np.ndarray]:
    return [np.asarray(each) for each in close_up.arrays(STEP, "gradients")[1:]]


RIGHT = linear_step()
LOSS = float(RIGHT.arrays(STEP, "loss")[0])
OFF = linear_step(gradient=0.9)
"""A loop whose gradients are not fit's; its loss is to be said."""


def test_a_loss_that_is_nearly_zero_on_one_side_is_no_scale_for_the_other() -> None:
    zero, twin = with_loss(RIGHT, 1.4e-7), with_loss(RIGHT, 3e-8)
    for loss, stage in ((-7.4, "loss"), (1e-3, "loss"), (-5e-8, "gradients")):
        other = with_loss(OFF, loss)
        assert locate(zero, other, [twin], STEP, NAMES).stage == stage, loss


LINES = {"inputs": 5, "targets": 6, "loss": 7, "gradients": 8}
"""The line of each call in a loop: of its model, its loss, its tape and its optimizer."""


@pytest.mark.parametrize(
    ("other", "lines", "cause", "line"),
    [
        (linear_step(flag=False, offset=1.0), LINES, "training-flag-missing", 5),
        (with_loss(OFF, LOSS - PENALTY), LINES, "regularization-missing", 6),
        # A loss without a function of Keras is first seen where its gradient is taken.
        (with_loss(OFF, LOSS - PENALTY), {**LINES, "targets": None}, "regularization-missing", 7),
        (linear_step(rate=0.2), LINES, "optimizer-differs", 8),
        (with_loss(OFF, LOSS - PENALTY), {}, "regularization-missing", None),
    ],
)
def test_a_cause_cites_the_line_of_the_call_that_differs(
    other: CloseUp, lines: dict[str, int | None], cause: str, line: int | None
) -> None:
    for kind, number in lines.items():
        if number:
            text = "/a/loop.py", number, f"{kind}()"
            other = changed(other, kind, lambda e, text=text: replace(e, info={**e.info, "line": text}))  # type: ignore[misc]
    right = changed(RIGHT, "layer", lambda e: replace(e, info={**e.info, "flagged": True}))
    other = changed(other, "layer", lambda e: replace(e, info={**e.info, "flagged": True}))
    (found,) = found_causes(right, other, rate=0.1)
    assert found.id == cause
    assert (found.source.line if found.source else None) == line
    if found.source and line == 6:
        assert str(found.source) == "/a/loop.py:6: targets()"


@pytest.mark.parametrize(
    ("cause", "stage", "called", "line"),
    [
        ("loss-summed", "loss", True, 9), ("logits-mismatch", "loss", True, 6), ("logits-mismatch", "loss", False, 9),
        ("loss-scaled", "gradients", True, 7),
    ],
)  # fmt: skip
def test_the_line_that_has_made_the_loss_is_cited_for_what_it_is_made_of(
    cause: str, stage: str, called: bool, line: int
) -> None:
    lines = {"loss": {"line": ("/a/loop.py", 7, ""), "made": ("/a/loop.py", 9, "")}}
    lines |= {"targets": {"line": ("/a/loop.py", 6, "")}} if called else {}
    seen = CloseUp({STEP: [Event(kind, 0, info, []) for kind, info in lines.items()]})
    source = CATALOGUE[cause].line_in(seen, STEP, stage)
    assert source is not None and source.line == line


FLAG, MEAN, SUM = "training-flag-missing", "loss-not-divided-by-replicas", "loss-summed"
FULL, SHORT = "tf.nn.compute_average_loss(one(y, p), global_batch_size=64)", "tf.nn.compute_average_loss(one(y, p))"


@pytest.mark.parametrize(
    ("cause", "text", "instead"),
    [
        (FLAG, "out = self.net(x)  # here", "out = self.net(x, training=True)  # here"),
        (FLAG, "return model(batch.x, training=False)", "return model(batch.x, training=True)"),
        *((FLAG, text, "") for text in ("l = loss(y, model(x))", "h = model.fit(x)", "p = model(", "model(x)")),
        (FLAG, "out = model(x, training=True)", ""),
        (SUM, "loss = tf.reduce_sum(per_example)", "loss = tf.nn.compute_average_loss(per_example)"),
        (SUM, "loss = tf.reduce_sum(one(y, p))", "loss = tf.nn.compute_average_loss(one(y, p))"),
        *((SUM, f"loss = {text}", "") for text in ("tf.reduce_sum(x, 0)", "tf.reduce_sum(x) + penalty", "sum(x)")),
        ("loss-constant-denominator", f"loss = {FULL}", f"loss = {SHORT}"),
        ("loss-constant-denominator", f"loss = {FULL} + penalty", ""),
        ("loss-constant-denominator", "loss = tf.reduce_sum(one(y, p)) / BATCH", f"loss = {SHORT}"),
        ("loss-constant-denominator", "loss = tf.reduce_sum(one(y, p)) / 64 / 2", ""),
        (MEAN, "l = tf.reduce_mean(x)", "l = tf.reduce_mean(x) / tf.distribute.get_strategy().num_replicas_in_sync"),
        ("regularization-missing", "loss = loss_fn(y, predictions)", ""),
    ],
)  # fmt: skip
def test_a_line_is_rewritten_only_where_all_that_it_computes_is_the_mistake(
    cause: str, text: str, instead: str
) -> None:
    assert CATALOGUE[cause].instead_of(text) == instead
    kind, key = ("inputs", "line") if cause == FLAG else ("loss", "made")
    events = [Event(kind, 0, {key: ("/a/loop.py", number, text)}, []) for number in (7, 8)]
    one, two = (CloseUp({STEP: events[:count]}).steps for count in (1, 2))
    stage = CATALOGUE[cause].stages[0]
    for seen, usual, expected in ((one, True, instead), (one, False, ""), (two, True, "")):
        source = CATALOGUE[cause].line_in(CloseUp(seen), STEP, stage, usual=usual)
        assert source is not None and source.instead == expected, "which of two lines it is, is not known"


def test_weights_of_a_column_are_one_for_each_example() -> None:
    (event,) = RIGHT.of(STEP, "targets")
    weight = np.arange(8, dtype=np.float32)
    for shape in ((8,), (8, 1)):
        info, arrays = {**event.info, "weights": 1}, [*event.arrays, weight.reshape(shape)]
        targets = targets_of(replace(RIGHT, steps={STEP: [replace(event, info=info, arrays=arrays)]}), STEP)
        assert targets is not None
        squares = np.square(targets.true - targets.predicted).mean(-1)
        assert value_of(targets) == pytest.approx((squares * weight).mean()), shape


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1)])
def test_calls_of_a_loss_may_have_one_weight_for_all_examples(shape: tuple[int, ...]) -> None:
    """As the micro-batches of an update; weights of other numbers have no value, and raise nothing."""
    (event,) = RIGHT.of(STEP, "targets")
    calls = [
        replace(event, info={**event.info, "weights": 1}, arrays=[each[part] for each in event.arrays] + [weight])
        for part, weight in ((slice(4), np.float32(0.5)), (slice(4, 8), np.full(shape, 0.25, np.float32)))
    ]
    targets = targets_of(replace(RIGHT, steps={STEP: calls}), STEP)
    if shape == ():
        assert targets is not None
        squares = np.square(targets.true - targets.predicted).mean(-1)
        assert value_of(targets) == pytest.approx((squares * np.repeat([0.5, 0.25], 4)).mean())
    else:
        assert targets is None or value_of(targets) is None


@pytest.mark.parametrize("several", [{"true": 2}, {"predicted": 2}, {"loss": "another"}])
def test_calls_of_several_losses_or_outputs_have_no_targets(several: dict[str, Any]) -> None:
    (event,) = RIGHT.of(STEP, "targets")
    events = [event, replace(event, info={**event.info, **several})]
    if "loss" not in several:
        events.reverse()
    assert targets_of(replace(RIGHT, steps={STEP: [event]}), STEP) is not None
    assert targets_of(replace(RIGHT, steps={STEP: events}), STEP) is None


def test_labels_that_are_to_be_the_inputs_are_shuffled_apart_by_the_side_whose_are_not() -> None:
    batch = RIGHT.of(STEP, "inputs")[0].arrays[0]

    def with_labels(close_up: CloseUp, labels: np.ndarray) -> CloseUp:
        rows = row_hashes([labels])
        return changed(close_up, "targets", lambda e: replace(e, arrays=[labels, *e.arrays[1:]], rows=rows))

    others = np.roll(batch, 1, axis=0)
    for labels, side in (((batch, others), "loop"), ((others, batch), "fit")):
        (found,) = found_causes(with_labels(RIGHT, labels[0]), with_labels(OFF, labels[1]))
        assert (found.id, found.side) == ("labels-shuffled-apart", side)
        assert found.measurements["side"] == side


def drawn(close_up: CloseUp, *state: int) -> CloseUp:
    """The same step with the seed of a layer, and how many times it has drawn."""
    event = Event("seeds", 0, {"layers": ["sampling"]}, [np.array(state, np.uint32)])
    return replace(close_up, steps={STEP: [*close_up.steps[STEP], event]})


@pytest.mark.parametrize(("seed", "times", "said"), [(3, 5, True), (3, 6, False), (4, 5, False)])
def test_a_layer_that_has_drawn_more_often_is_a_hint_where_predictions_differ(
    seed: int, times: int, said: bool
) -> None:
    right, other = drawn(RIGHT, 3, 6), drawn(linear_step(offset=1.0), seed, times)
    given = replace(sides(other), close_ups=(right, other))
    found = [each for each in hints(locate(right, other, [], STEP, NAMES), given) if each.kind == "drawn-more-often"]
    assert [(each.quantities["layer"], each.quantities["times"]) for each in found] == [("sampling", 5)] * said


@pytest.mark.parametrize(("own", "right", "apart"), [
    ([("Dropout", 0.3), ("Dense", 1)], [("Dropout", 0.3), ("Dense", 1)], []),
    ([("Dropout", 0.5), ("Dense", 1)], [("Dropout", 0.3), ("Dense", 1)], [(0.5, 0.3)]),
    ([("Dropout", 0.5)], [("Flatten", 0), ("Dropout", 0.3)], [(0.5, 0.3)]),  # a function flattens there
    ([("Dropout", 0.1), ("Dropout", 0.2)], [("Dropout", 0.2), ("Flatten", 0), ("Dropout", 0.1)], []),  # made in turn
    ([("Dropout", 0.1), ("Dropout", 0.2)], [("Dropout", 0.2), ("Dropout", 0.1)], [(0.1, 0.2), (0.2, 0.1)]),
    ([("Dropout", 0.1), ("Dropout", 0.2)], [("Dropout", 0.3)], []),
])  # fmt: skip
def test_layers_of_a_class_that_both_have_as_many_of_are_compared_in_order(
    own: list[Any], right: list[Any], apart: list[Any]
) -> None:
    both = [[{"class": cls, "name": str(i), "config": {"rate": rate}} for i, (cls, rate) in enumerate(each)]
            for each in (own, right)]  # fmt: skip
    assert [tuple(settings["rate"]) for *_, settings in recorded.things_apart(*both)] == apart


@pytest.mark.parametrize(("added", "said"), [
    (0.005, "all weights"), (0.0, ""), (0.00512345, ""), (0.50025, ""), (-0.005, "all weights"),
])  # fmt: skip
def test_a_decay_that_is_written_into_the_loss_is_told(added: float, said: str) -> None:
    weights = [np.asarray(each, np.float64) for each in RIGHT.arrays(STEP, "weights")]
    squares = sum(float(np.sum(each**2)) for each in weights)
    loss = RIGHT.loss(STEP) or 0.0
    other = with_loss(RIGHT, loss + added * squares)
    given = replace(sides(other), close_ups=(RIGHT, other))
    found = [each for each in hints(Located(STEP, "loss"), given) if each.kind == "squares-added"]
    assert [each.quantities["weights"] for each in found] == [said] * bool(said)
    for each in found:
        assert each.quantities["factor"] == 0.005
        assert each.quantities["side"] == (given.other_name if added > 0 else given.right_name)


@pytest.mark.parametrize(("own", "weight", "turned", "said"), [
    ((2.0, 3.0), 0.1, False, "the loss of loop is the plain sum of 2 (mean_squared_error) and 3 (huber); fit "),
    ((2.0, 3.0), 0.1, True, "the loss of fit is the plain sum of 2 (mean_squared_error) and 3 (huber); loop "),
    ((2.0, 4.0), 1.0, False, "of 2 losses in the step, huber alone differs: 4 in loop, 3 in fit"),
    ((2.5, 4.0), 1.0, False, ""),
    ((2.0, 3.0), 1.0, False, ""),
])  # fmt: skip
def test_the_losses_that_a_step_adds_up_are_told(
    own: tuple[float, float], weight: float, turned: bool, said: str
) -> None:
    def with_terms(values: tuple[float, float], names: tuple[str, str], weight: float) -> CloseUp:
        def calls(event: Event) -> list[Event]:
            infos = [{**event.info, "configuration": {"name": name}} for name in names]
            return [replace(event, info=info, arrays=[*event.arrays, np.float32(value)])
                    for info, value in zip(infos, values, strict=True)]  # fmt: skip

        return with_loss(changed(RIGHT, "targets", calls), values[0] + weight * values[1] + PENALTY)

    right = with_terms((2.0, 3.0), ("mse", "huber_loss"), weight)
    other = with_terms(own, ("mean_squared_error", "huber"), 1.0)
    both = (other, right) if turned else (right, other)
    found = [
        each for each in hints(Located(STEP, "loss"), replace(sides(other), close_ups=both)) if "term" in each.kind
    ]
    assert [told(each)[: len(said)] for each in found] == [said] * bool(said)
    same = with_terms((2.0, 3.0), ("mse", "mse"), 1.0), with_terms((2.0, 4.0), ("mse", "mse"), 1.0)
    (found, *_) = hints(Located(STEP, "loss"), replace(sides(same[1]), close_ups=same))
    assert told(found).startswith("of 2 losses in the step, number 2 (mean_squared_error) alone differs: 4 in loop")


@pytest.mark.parametrize(("loss", "said"), [(0.9, True), (1.1, False)])  # larger: the penalty is added by hand
def test_layers_with_the_same_other_settings_are_told_together(loss: float, said: bool) -> None:
    given = sides(
        changed(linear_step(offset=1.0), "loss", lambda e: replace(e, arrays=[loss * RIGHT.arrays(STEP, "loss")[0]]))
    )
    own, right = ({"kernel_regularizer": each} for each in (None, "L2"))
    layers = [
        [{"class": "Dense", "name": name, "config": config} for name in "abc"]
        + [{"class": "Conv2D", "name": "d", "config": config}]
        for config in (own, right)
    ]
    other = given.names.index(given.other_name)
    traces = [replace(trace, layers=layers[i != other]) for i, trace in enumerate(given.traces)]
    given = replace(given, traces=(traces[0], traces[1]))
    found = [each for each in hints(Located(STEP, "loss"), given) if each.kind == "layer-settings"]
    assert [each.quantities["layer"] for each in found] == (["Dense (a, b, c)", "Conv2D d"] if said else [])
    assert all(each.quantities["settings"] == {"kernel_regularizer": [None, "L2"]} for each in found)


def with_layers(given: Any, *apart: tuple[str, str, str, Any, Any], file: str = "/loop.py") -> Any:
    """The sides with layers that have another setting each: class, name, setting, the other side's value, the right."""
    both = [
        [{"class": cls, "name": name, "config": {setting: each[i]}, "made": (made, 7, "Layer()")}
         for cls, name, setting, *each in apart]
        for i, made in ((1, "/fit.py"), (0, file))
    ]  # fmt: skip
    one, two = (replace(trace, layers=layers) for trace, layers in zip(given.traces, both, strict=True))
    return replace(given, traces=(one, two))


DROPOUT, NORM = ("Dropout", "dropout", "rate", 0.5, 0.3), ("BatchNormalization", "norm", "momentum", 0.9, 0.99)
PENALIZED = ("Dense", "dense", "kernel_regularizer", {"class_name": "L2", "config": {"l2": 0.1}}, None)


@pytest.mark.parametrize(("stage", "where", "layer", "caused"), [
    ("predictions", "dropout", DROPOUT, True),
    ("predictions", "dense", DROPOUT, False),  # comes later than what differs first
    ("predictions", "", DROPOUT, True),  # of models whose layers are not all the same
    ("predictions", "", ("Dense", "dense", "activation", "relu", "linear"), False),  # a function may do the same
    ("predictions", "dense", ("Dense", "dense", "activation", "relu", "linear"), False),
    ("predictions", "dense", ("Dense", "dense", "activation", "relu", "tanh"), True),
    ("predictions", "", ("Dense", "dense", "trainable", True, False), False),
    ("predictions", "dense", PENALIZED, False),
    ("predictions", "dense", ("Dense", "dense", "kernel_constraint", "NonNeg", None), False),
    ("update", "dense/kernel", ("Dense", "dense", "kernel_constraint", "NonNeg", None), True),
    ("update", "dense/kernel", ("Dense", "dense", "activation", "relu", "tanh"), False),
    ("state", "", NORM, True),
    ("state", "", DROPOUT, False),
])  # fmt: skip
def test_a_layer_with_another_setting_is_accused_of_what_it_computes(
    stage: str, where: str, layer: Any, caused: bool
) -> None:
    given = with_layers(sides(linear_step(offset=1.0)), layer)
    found = name_causes(Located(STEP, stage, where), given)
    assert [each.id for each in found if each.id == "layer-differs"] == ["layer-differs"] * caused
    for each in found * caused:
        assert each.source == Source("/loop.py", 7, "Layer()") and each.side == given.other_name
        assert each.measurements["settings"] == {layer[2]: list(layer[3:])}


def relu(values: Any) -> Any:
    return np.maximum(values, 0)


def with_calls(close_up: CloseUp, *calls: tuple[str, str, Any]) -> CloseUp:
    """The step of a model that calls these layers, or is given this for one: class, name, and a function of values."""
    values = np.float64(RIGHT.of(STEP, "layer")[0].arrays[0])

    def each(event: Event) -> list[Event]:
        return [
            Event("given" if cls == "given" else "layer", 0, {**event.info, "class": cls, "name": name}, [made(values)])
            for cls, name, made in calls
        ]

    return changed(close_up, "layer", each)


def dense(made: Any = lambda values: values, name: str = "dense") -> tuple[str, str, Any]:
    return "Dense", name, made


def given(made: Any, name: str = "last") -> tuple[str, str, Any]:
    return "given", name, made


def more(values: Any) -> Any:
    return values + 9


def relu_more(values: Any) -> Any:
    return relu(values) + 9


POOL = ("MaxPooling2D", "pool", relu)


@pytest.mark.parametrize(("right", "other", "where"), [
    ((dense(relu),), (dense(), given(relu)), "last"),  # a function stands in its place
    ((dense(np.tanh),), (dense(), given(np.tanh)), "last"),
    ((dense(relu),), (dense(),), "dense"),
    ((dense(relu),), (dense(), given(np.tanh)), "last"),  # what comes between the two
    ((dense(), given(relu)), (dense(),), "last"),  # two functions differ, and no layer is between them
    ((dense(relu), given(relu_more)), (dense(), given(relu_more)), "last"),
    ((dense(lambda values: 2 * values),), (dense(),), "dense"),
    ((dense(relu), POOL), (dense(), given(relu)), ""),  # in place of the layer before may stand another function
    ((dense(relu), POOL, dense(name="equal")), (dense(), given(relu), dense(name="equal")), "last"),
    ((dense(relu), dense(relu, "two")), (dense(), dense(name="two"), given(relu)), "last"),  # one function after both
    ((dense(relu), dense(relu, "two")), (dense(), dense(name="two")), "dense"),
])  # fmt: skip
def test_the_first_layer_that_differs_is_one_that_no_function_makes_up_for(right: Any, other: Any, where: str) -> None:
    one = with_calls(RIGHT, *right, dense(name="last"))
    two = with_calls(linear_step(offset=1.0), *other, dense(lambda values: 3 * values + 1, "last"))
    for both in (one, two), (two, one):
        found = locate(*both, [], STEP, NAMES)
        assert (found.stage, found.where) == ("predictions", where)


def test_several_losses_of_micro_batches_are_no_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls(event: Event) -> list[Event]:
        return [replace(event, arrays=[*event.arrays, np.float32(value)]) for value in (2.0, 3.0)]

    right, other = (with_loss(changed(RIGHT, "targets", calls), loss + PENALTY) for loss in (2.5, 5.0))
    both = replace(sides(other), close_ups=(right, other))
    for parts, kinds in ((1, ["terms-summed"]), (2, [])):
        monkeypatch.setattr(Sides, "parts", [parts, parts])
        assert [each.kind for each in hints(Located(STEP, "loss"), both) if "term" in each.kind] == kinds


def test_loss_functions_of_other_names_are_told() -> None:
    right, other = (with_targets(each, kind, TRUE, LOGITS) for each, kind in (
        (RIGHT, "binary_crossentropy"), (with_loss(OFF, 9.0), "mean_squared_error")))  # fmt: skip
    found = hints(Located(STEP, "loss"), replace(sides(other), close_ups=(right, other)))
    (seen,) = [each for each in found if each.kind == "other-loss"]
    assert (seen.quantities["loss"], seen.quantities["right"]) == ("mean_squared_error", "binary_crossentropy")


@pytest.mark.parametrize(("of_loss", "added", "told"), [(2.0, 0.75, True), (2.1, 0.75, False), (2.0, PENALTY, False)])
def test_what_is_added_to_equal_losses_is_told(of_loss: float, added: float, told: bool) -> None:
    def given(close_up: CloseUp, value: float, more: float) -> CloseUp:
        one = changed(close_up, "targets", lambda event: [replace(event, arrays=[*event.arrays, np.float32(value)])])
        return with_loss(one, value + more)

    right, other = given(RIGHT, 2.0, PENALTY), given(OFF, of_loss, added)
    found = hints(Located(STEP, "loss"), replace(sides(other), close_ups=(right, other)))
    assert [each.kind for each in found if each.kind == "added-to-loss"] == ["added-to-loss"] * told


@pytest.mark.parametrize(("labels", "equal"), [(0.0, True), (1.0, False)])
def test_inputs_that_attack_a_model_are_no_other_examples(labels: float, equal: bool) -> None:
    """They have the labels of the examples; more examples have others."""

    def again(event: Event) -> list[Event]:
        more = event.arrays[0] + np.float32(0.5)
        return [event, replace(event, arrays=[more], rows=row_hashes([more]))]

    def called_again(event: Event) -> list[Event]:
        true = event.arrays[0] + np.float32(labels)
        return [event, replace(event, arrays=[true, *event.arrays[1:]], rows=row_hashes([true]))]

    attacked = changed(changed(RIGHT, "inputs", again), "targets", called_again)
    for both in ((attacked, RIGHT), (RIGHT, attacked)):
        examples = locate(*both, [], STEP, NAMES).of("examples")
        assert examples is not None and examples.equal == equal


def test_a_factor_is_that_of_the_loss_of_own_labels_which_weights_may_give() -> None:
    other = changed(RIGHT, "targets", lambda event: replace(event, arrays=[event.arrays[0] + 1, event.arrays[1]]))
    own, right = targets_of(other, STEP), targets_of(RIGHT, STEP)
    assert own is not None and right is not None
    value = value_of(own)
    assert value is not None
    given = sides(with_loss(other, 0.5 * (value + PENALTY)))
    assert _is_times(0.5, given, STEP, right, apart=False) and not _is_times(0.6, given, STEP, right, apart=False)
    # Several calls, as of the steps of a decoder, have labels of another shape: those of the right side count.
    parts = changed(other, "targets", lambda e: [replace(e, arrays=[a[i::2] for a in e.arrays]) for i in range(2)])
    parts = changed(parts, "targets", lambda e: replace(e, arrays=[np.repeat(a, 2, axis=0) for a in e.arrays[:2]]))
    mean = value_of(right)
    assert mean is not None
    given = sides(with_loss(parts, 9 * (mean + PENALTY)))
    assert targets_of(parts, STEP).true.shape != right.true.shape  # type: ignore[union-attr]
    assert _is_times(9.0, given, STEP, right, apart=False) and not _is_times(8.0, given, STEP, right, apart=False)


def test_gradients_that_are_rounding_beside_large_ones_hide_no_factor() -> None:
    """Such as that of a bias before a batch normalization, which may be any number of this size."""
    large, noise = np.full(4, 0.25, np.float32), np.array([1e-7, -2e-7], np.float32)
    for off, equal in ((0.0, True), (5e-7, True), (1e-5, False)):
        other = {0: large, 1: (-noise + off).astype(np.float32)}
        assert equal_gradients(other, {0: large, 1: noise}) == equal


@pytest.mark.parametrize(("own", "remedy"), [(None, "2 * tf.nn.l2_loss"), (PENALIZED[3], "loss += tf.add_n")])
def test_half_a_penalty_of_a_model_without_regularizers_is_mended_by_hand(own: Any, remedy: str) -> None:
    given = with_layers(sides(RIGHT), (*PENALIZED[:3], own, PENALIZED[3]))
    halves = [each for each in recorded_without_penalty(given, Located(STEP, "loss"))
              if each.evidence.kind == "script-half-penalty"]  # fmt: skip
    assert [each.remedy.startswith(remedy) for each in halves] == [True]


@pytest.mark.parametrize(("foreseen", "remedy"), [(True, "return logits  # "), (False, "loss_object = ")])
def test_probabilities_of_one_model_alone_are_mended_in_the_model(foreseen: bool, remedy: str) -> None:
    first, *_ = _recorded_logits(replace(sides(RIGHT), foreseen=foreseen), Located(STEP, "loss"))
    assert first.evidence.kind == "script-probabilities" and first.remedy.startswith(remedy)


@pytest.mark.parametrize(("right", "other", "before", "calls"), [
    ((dense(),), (dense(), given(np.tanh)), "dense", []),
    ((dense(relu),), (dense(), given(np.tanh)), "dense", []),
    ((dense(), POOL), (dense(),), "dense", ["fit calls MaxPooling2D"]),
    ((dense(), POOL), (dense(), ("Flatten", "flatten", more), given(more)), "dense",
     ["fit calls MaxPooling2D", "loop calls Flatten"]),
    ((dense(),), (dense(),), None, []),  # nothing is between the two
    ((dense(relu),), (dense(), given(relu)), None, []),  # the same
    ((), (given(relu),), None, []),
])  # fmt: skip
def test_what_comes_between_two_layers_is_told_where_the_second_differs(
    right: Any, other: Any, before: str | None, calls: list[str]
) -> None:
    one = with_calls(RIGHT, *right, dense(name="last"))
    two = with_calls(linear_step(offset=1.0), *other, dense(lambda values: 3 * values + 1, "last"))
    both = replace(sides(two), close_ups=(one, two), names=("fit", "loop"))
    told = [each.quantities for each in hints(Located(STEP, "predictions"), both) if each.kind == "between-layers"]
    assert [(each["before"], each["after"], each["calls"]) for each in told] == [(before, "last", calls)] * bool(before)


@pytest.mark.parametrize(("calls", "named", "said"), [
    ((False, True), (), ["loop"]),
    ((True, False), ("loss-scaled",), ["fit"]),
    ((True, True), (), []),
    ((False, True), ("validation-in-training-mode",), []),
])  # fmt: skip
def test_a_model_that_one_side_calls_in_training_mode_between_steps_is_told(
    calls: tuple[bool, bool], named: Sequence[str], said: list[str]
) -> None:
    both = replace(sides(RIGHT), names=("fit", "loop"))
    lines = [(f"{name}.py", 7, "net(x, training=True)") if calls_it else None
             for name, calls_it in zip(both.names, calls, strict=True)]  # fmt: skip
    traces = [replace(trace, untaped=line) for trace, line in zip(both.traces, lines, strict=True)]
    found = list(called_between_steps(replace(both, traces=(traces[0], traces[1])), named))
    assert [each.quantities["side"] for each in found] == said
    assert all(each.quantities["line"] == f"{each.quantities['side']}.py:7: net(x, training=True)" for each in found)


@pytest.mark.parametrize(("parts", "later", "said"), [(1, 4, True), (5, 4, True), (1, 1, False), (4, 4, False)])
def test_a_first_update_of_another_number_of_micro_batches_is_told(parts: int, later: int, said: bool) -> None:
    def in_parts(first: int, then: int) -> CloseUp:
        (event,) = RIGHT.of(STEP, "inputs")
        calls = [replace(event, rows=[row]) for row in range(8)]
        return replace(RIGHT, steps={1: calls[:first], 2: calls[:then]})

    one, two = in_parts(4, 4), in_parts(parts, later)
    both = replace(sides(two), close_ups=(one, two), step=1)
    told = [each for each in hints(Located(1, "examples"), both) if each.kind == "first-update"]
    assert [(each.quantities["micro"], each.quantities["expected"]) for each in told] == [(parts, 4)] * said
    other, at = replace(two, steps={9: two.steps[1], 10: two.steps[2]}), {9: one.steps[1], 10: one.steps[2]}
    later_ones = replace(both, close_ups=(replace(one, steps=at), other), step=9)
    told = [each for each in hints(Located(9, "examples"), later_ones) if each.kind == "left-over"]
    assert bool(told) == (parts > 4 and later == 4)
    ended = replace(both, close_ups=(in_parts(0, 0), in_parts(parts, 0)))
    assert not [each for each in hints(Located(1, "examples"), ended) if each.kind == "first-update"]


@pytest.mark.parametrize(("other", "where", "caused"), [
    ((dense(),), "dense", True),
    ((dense(), given(relu)), "dense", False),
    ((dense(), given(np.tanh)), "dense", False),  # there the function is the mistake
    ((dense(more),), "dense", False),
    ((dense(),), "last", False),
])  # fmt: skip
def test_a_layer_without_its_activation_is_accused_if_no_function_follows(other: Any, where: str, caused: bool) -> None:
    last = dense(lambda values: 3 * values, "last")
    pair = with_calls(RIGHT, dense(relu), last), with_calls(linear_step(offset=1.0), *other, last)
    setting = ("Dense", "dense", "activation", "linear", "relu")
    both = with_layers(replace(sides(pair[1]), close_ups=pair), setting)
    found = [each for each in name_causes(Located(STEP, "predictions", where), both) if each.id == "layer-differs"]
    assert [each.measurements["settings"] for each in found] == [{"activation": ["linear", "relu"]}] * caused
    told = [each for each in hints(Located(STEP, "predictions"), both) if each.kind == "layer-settings"]
    assert bool(told) == (not any(cls == "given" for cls, *_ in other))


def test_a_function_in_place_of_an_activation_hides_no_other_setting() -> None:
    """The output of the layer before the function is not that of the layer which has the activation."""
    relu = ("Dense", "dense", "activation", "linear", "relu")
    given = with_layers(sides(linear_step(offset=1.0)), relu, DROPOUT)
    (found,) = name_causes(Located(STEP, "predictions", "dense"), given)
    assert found.measurements["settings"] == {"rate": [0.5, 0.3]}


@pytest.mark.parametrize(("alone", "where", "caused"), [
    ("loop", "dense", True),
    ("loop", "dropout", False),  # a layer that both train alike
    ("fit", "dense", False),  # which is variables-not-trained
    ("", "dense", False),
])  # fmt: skip
def test_a_layer_that_one_side_alone_trains_is_accused_of_what_it_predicts(
    alone: str, where: str, caused: bool
) -> None:
    def kernel_alone(event: Event) -> Event:
        return replace(event, info={**event.info, "positions": [0]}, arrays=event.arrays[:2])

    both = [RIGHT, linear_step(offset=1.0)]
    if alone:
        fewer = 0 if alone == "loop" else 1
        both[fewer] = changed(both[fewer], "gradients", kernel_alone)
    given = replace(sides(both[1]), close_ups=(both[0], both[1]))
    found = [each.id for each in name_causes(Located(STEP, "predictions", where), given)]
    assert ("layer-differs" in found) == caused, found


@pytest.mark.parametrize(("data", "penalty", "caused"), [(1.0, 0.1, True), (0.8123, 0.1, False), (1.0, 0.6, False)])
def test_another_penalty_is_accused_where_the_rest_of_the_loss_is_the_same(
    data: float, penalty: float, caused: bool
) -> None:
    """And where it makes the loss larger, as the one with a regularizer must."""
    right, other = with_loss(RIGHT, 1.0 + PENALTY, PENALTY), with_loss(RIGHT, data + penalty, penalty)
    layer = (*PENALIZED[:3], None, PENALIZED[3])
    given = with_layers(replace(sides(other), close_ups=(right, other)), layer)
    found = [each.id for each in name_causes(Located(STEP, "loss"), given)]
    assert ("layer-differs" in found) == caused, found


@pytest.mark.parametrize(("layer", "file", "remedy"), [
    (DROPOUT, "/loop.py", "tf.keras.layers.Dropout(..., rate=0.3)"),
    (DROPOUT, "/fit.py", "tf.keras.layers.Dropout(..., rate=0.3)"),
    (("Dropout", "dropout", "trainable", True, False), "/loop.py", "layer.trainable = False"),
])  # fmt: skip
def test_the_line_of_a_layer_is_shown_if_it_can_give_the_setting(layer: Any, file: str, remedy: str) -> None:
    """One that makes the layers of both scripts can not, nor what is set later."""
    given = with_layers(sides(linear_step(offset=1.0)), layer, file=file)
    (found,) = name_causes(Located(STEP, "predictions", "dropout"), given)
    assert found.remedy.partition("  #")[0] == remedy.partition("  #")[0]
    assert (found.source is not None) == (remedy.startswith("tf.") and file == "/loop.py")


@pytest.mark.parametrize(("layer", "named"), [
    (DROPOUT, True),
    (("Dense", "dense", "activation", "softmax", "linear"), False),  # which the loss may make up for
    (PENALIZED, False),
])  # fmt: skip
def test_another_setting_is_named_besides_other_mistakes(layer: Any, named: bool) -> None:
    given = with_layers(sides(linear_step(rate=0.1)), layer)
    further = name_further(Located(STEP, "update"), given, [])
    assert [each.id for each in further if each.id == "layer-differs"] == ["layer-differs"] * named


@pytest.mark.parametrize(("times", "empty", "kind"), [
    (STEP, (STEP - 1,), "drawn-without-data"),
    (STEP, (STEP,), "drawn-more-often"),  # only after this step
    (STEP + 1, (STEP - 1,), "drawn-more-often"),
    (STEP, (), "drawn-more-often"),
])  # fmt: skip
def test_draws_of_a_step_without_data_are_said_to_be_that(times: int, empty: tuple[int, ...], kind: str) -> None:
    right, other = drawn(RIGHT, 3, times), drawn(linear_step(offset=1.0), 3, STEP - 1)
    given = replace(sides(other), close_ups=(right, other))
    fit = given.names.index(given.right_name)
    traces = [replace(trace, empty=empty if i == fit else ()) for i, trace in enumerate(given.traces)]
    seen = list(hints(locate(right, other, [], STEP, NAMES), replace(given, traces=(traces[0], traces[1]))))
    assert [each.kind for each in seen if each.kind.startswith("drawn")] == [kind]


@pytest.mark.parametrize(
    ("times", "lines", "kind"),
    [
        (8, (None, 7), "drawn-in-validation"),
        (5, (None, 7), "drawn-more-often"),  # the other draws more often
        (8, (7, 7), "drawn-more-often"),
        (8, (None, None), "drawn-more-often"),
    ],
)
def test_draws_of_a_model_in_training_mode_between_steps_are_told_with_their_line(
    times: int, lines: tuple[int | None, int | None], kind: str
) -> None:
    right, other = drawn(RIGHT, 3, 6), drawn(linear_step(offset=1.0), 3, times)
    given = replace(sides(other), close_ups=(right, other))
    untaped = [None if line is None else ("loop.py", line, "model(x, training=True)") for line in lines]
    first, second = (replace(trace, untaped=line) for trace, line in zip(given.traces, untaped, strict=True))
    given, located = replace(given, traces=(first, second)), Located(STEP, "predictions")
    seen = next(hints_on_draws(given, located))
    named = [(cause.id, str(cause.source)) for cause in name_causes(located, given)]
    in_validation = ("validation-changes-state", "loop.py:7: model(x, training=True)")
    assert named == ([in_validation] if kind == "drawn-in-validation" else [])
    assert (seen.kind, seen.quantities.get("line")) == (
        kind, "loop.py:7: model(x, training=True)" if kind == "drawn-in-validation" else None)  # fmt: skip


def test_a_layer_that_only_one_script_calls_is_a_hint_where_predictions_differ() -> None:
    masked = changed(RIGHT, "layer", lambda event: [replace(event, info={"name": "m", "class": "Masking"}), event])
    other = linear_step(offset=1.0)
    given = replace(sides(other), close_ups=(masked, other))
    found = locate(masked, other, [], STEP, NAMES)
    assert found.stage == "predictions"
    assert hints(found, given) == [Measurement.of("layers-alone", side="fit", other="fit", classes=["Masking"])]


def test_layers_in_whose_place_a_function_may_stand_are_no_hint() -> None:
    pooled = changed(RIGHT, "layer", lambda event: [replace(event, info={"name": "m", "class": "MaxPooling2D"}), event])
    other = linear_step(offset=1.0)
    given = replace(sides(other), close_ups=(pooled, other))
    assert hints(locate(pooled, other, [], STEP, NAMES), given) == []


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "", "constant"])
def test_probabilities_made_of_the_logits_of_the_other_side_are_a_hint_where_predictions_differ(name: str) -> None:
    logits = np.random.default_rng(0).normal(size=(8, 4))
    odds = np.exp(logits)
    made = {"softmax": odds / odds.sum(1, keepdims=True), "sigmoid": odds / (1 + odds), "": 1.01 * odds / (1 + odds)}

    def predicting(*outputs: np.ndarray) -> CloseUp:
        return changed(RIGHT, "predictions", lambda e: replace(e, arrays=list(outputs)))

    both = [predicting(logits), predicting(made.get(name, np.full((8, 4), 0.5)))]
    if name == "constant":
        both[0] = predicting(np.zeros((8, 4)))
    for one, other, side in ((0, 1, "loop"), (1, 0, "fit")):
        given = replace(sides(both[other]), close_ups=(both[one], both[other]))
        found = [each for each in hints(Located(STEP, "predictions"), given) if each.kind == "predictions-squashed"]
        said = [{"side": side, "other": "fit" if side == "loop" else "loop", "function": name}]
        assert [each.quantities for each in found] == (said if name in ("softmax", "sigmoid") else [])
    for outputs in ((logits, logits[:, :2]), (logits[:0],), (logits > 0,)):
        several = [predicting(*outputs), predicting(*reversed(outputs))]
        given = replace(sides(several[1]), close_ups=(several[0], several[1]))
        assert not [each for each in hints(Located(STEP, "predictions"), given) if each.kind == "predictions-squashed"]


def test_predictions_in_place_of_the_labels_are_a_hint() -> None:
    def swapped(close_up: CloseUp) -> CloseUp:
        return changed(close_up, "targets", lambda e: replace(e, arrays=[e.arrays[1], e.arrays[0], *e.arrays[2:]]))

    for right, other, side in ((RIGHT, swapped(RIGHT), "loop"), (swapped(RIGHT), RIGHT, "fit"), (RIGHT, RIGHT, "")):
        given = replace(sides(other), close_ups=(right, other))
        found = hints(Located(STEP, "loss", stages=[StageValues("predictions", 0.0, 0.0)]), given)
        swaps = [each.quantities["side"] for each in found if each.kind == "predictions-as-labels"]
        assert swaps == [side] * bool(side)
        assert not [each for each in found if each.kind == "given-to-loss"], "which is the same, said twice more"


def test_labels_that_are_given_as_predictions_are_those_of_the_examples_all_the_same() -> None:
    def given(close_up: CloseUp, *, swapped: bool) -> CloseUp:
        def targets(event: Event) -> Event:
            labels, predictions = np.zeros_like(event.arrays[1]), event.arrays[1]
            rows = tuple(row + swapped for row in event.rows)
            return replace(event, arrays=[predictions, labels][:: 1 if swapped else -1], rows=rows)

        return changed(close_up, "targets", targets)

    right, turned = (given(RIGHT, swapped=swapped) for swapped in (False, True))
    other = changed(
        right, "targets", lambda e: replace(e, arrays=[e.arrays[0] + 1, e.arrays[1]], rows=turned.rows(STEP, "targets"))
    )
    for one, two, equal in ((right, turned, True), (turned, right, True), (right, other, False)):
        examples = locate(one, two, [], STEP, []).of("examples")
        assert examples is not None and examples.equal == equal


def test_labels_that_equal_the_predictions_are_no_hint_where_these_are_given_in_their_own_place() -> None:
    """As a teacher's do in the first step, before the student has moved away from it."""
    other = changed(RIGHT, "targets", lambda e: replace(e, arrays=[e.arrays[1], *e.arrays[1:]]))
    given = replace(sides(other), close_ups=(RIGHT, other))
    assert not [each for each in hints(Located(STEP, "loss"), given) if each.kind == "predictions-as-labels"]


def clipping_by_hand(close_up: CloseUp) -> CloseUp:
    event = Event("clip", 0, {"line": ("loop.py", 3, "clip()")}, [])
    return replace(close_up, steps={STEP: [*close_up.steps[STEP], event]})


def test_a_call_that_limits_gradients_on_one_side_alone_is_a_hint_where_they_differ() -> None:
    """As of an embedding's gradients, whose norm is not that of the sum of equal rows."""

    off = with_gradients(RIGHT, *(0.9 * each + 0.1 for each in gradients(RIGHT)))
    for right, other, side in (
        (RIGHT, clipping_by_hand(off), "loop"),
        (clipping_by_hand(RIGHT), off, "fit"),
        (RIGHT, off, ""),
    ):
        given = replace(sides(other), close_ups=(right, other))
        found = [each for each in hints(locate(right, other, [], STEP, NAMES), given) if each.kind == "limits-alone"]
        assert [(each.quantities["side"], each.quantities["line"]) for each in found] == (
            [(side, "loop.py:3: clip()")] if side else []
        )
        limited = [replace(trace, optimizers=[{**ADAM, "config": {"clipnorm": 1.0}}]) for trace in given.traces[:1]]
        given = replace(given, traces=(limited[0], given.traces[1]))
        kinds = [each.kind for each in hints(locate(right, other, [], STEP, NAMES), given)]
        assert "limits-alone" not in kinds, "fit's optimizer limits them, too"


def test_gradients_that_are_rounding_have_any_factor() -> None:
    """Such as that of a bias before batch normalization, a millionth of the others."""
    kernel, bias = np.ones((3, 1)), np.array([1e-6])
    for error, fits in ((1e-7, True), (1e-3, False)):
        pair = with_gradients(RIGHT, kernel, bias), with_gradients(RIGHT, 2 * kernel, 2 * bias + error)
        assert replace(sides(pair[1]), close_ups=pair).have_factor(2.0) == fits, error


@pytest.mark.parametrize(("stage", "named"), [("loss", ["not-finite"]), ("gradients", [])])
def test_a_value_that_is_lost_is_the_cause_at_its_own_stage_only(stage: str, named: list[str]) -> None:
    lost = with_loss(RIGHT, np.inf)
    found = not_finite.of_step(("fit", "loop"), (RIGHT, lost), Located(STEP, stage), (1, STEP))
    assert [(each.id, each.side) for each in found] == [(id, "loop") for id in named]


# What goes wrong after the first stage that differs


def further(right: CloseUp, other: CloseUp, **options: Any) -> list[str]:
    """The causes besides those of the first stage, judged by what the loop itself had done before."""
    given = sides(other, **options)
    both = replace(given, close_ups=(right, other))
    found = locate(right, other, [], STEP, NAMES)
    return [cause.id for cause in name_further(found, both, name_causes(found, both))]


def of_zeros(**options: Any) -> CloseUp:
    """A step whose labels are 0, so that its loss is the mean square that its call of the loss function says."""
    return linear_step(names=(0, 0, 0), **options)


def test_a_loss_is_judged_by_the_predictions_it_was_given() -> None:
    right = of_zeros()
    assert further(right, of_zeros(offset=1.0)) == []
    assert further(right, of_zeros(offset=1.0, with_penalty=False)) == ["regularization-missing"]
    assert further(right, of_zeros(offset=1.0, factor=8.0)) == ["loss-summed"]
    assert further(right, of_zeros(rows=slice(4, 12), factor=8.0)) == ["loss-summed"]
    assert further(right, of_zeros(offset=1.0, factor=7.9)) == [], "no mistake that is known gives this loss"
    both = of_zeros(offset=1.0, factor=8.0, with_penalty=False)
    twice = [replace(each, steps={**each.steps, STEP + 1: each.steps[STEP]}) for each in (right, both)]
    assert set(further(*twice)) == {"loss-summed", "regularization-missing"}, "the next step bears it out"
    rows = of_zeros(rows=slice(4, 12))
    made_of = changed(rows, "targets", lambda e: replace(e, arrays=[e.arrays[0], 8**-0.5 * e.arrays[1]]))
    assert further(right, made_of) == [], "the loss is that of the model's own predictions"
    other_labels = linear_step(offset=1.0, with_penalty=False)
    assert further(linear_step(), other_labels) == [], "what is known of fit's loss does not give its value"


@pytest.mark.parametrize(("deviation", "given", "causes"), [
    ({"factor": 7.9}, [0], ["variables-not-trained"]),
    ({"factor": 7.9}, [0, 1], []),
    ({"gradient": 1.3}, [0], []),  # where gradients differ first, they are looked at anyway
])  # fmt: skip
def test_variables_that_get_no_gradient_are_told_beside_another_loss(
    deviation: dict[str, Any], given: list[int], causes: list[str]
) -> None:
    """Only those that the optimizer is not given at all: that a gradient is zero may follow from the loss."""

    def some(event: Event) -> Event:
        return replace(event, info={**event.info, "positions": given}, arrays=event.arrays[: 1 + len(given)])

    other = changed(linear_step(**deviation), "gradients", some)
    found = [each for each in further(linear_step(), other) if each == "variables-not-trained"]
    assert found == causes
    zero = changed(linear_step(**deviation), "gradients", lambda e: replace(e, arrays=[*e.arrays[:2], 0 * e.arrays[2]]))
    assert "variables-not-trained" not in further(linear_step(), zero)


def test_a_loop_without_an_optimizer_divides_where_it_updates() -> None:
    """Its loss, a sum or a vector, is brought to the other side's scale before it is compared."""
    for scale, called in ((1.0, ""), (0.125, "gradients")):
        both = replace(sides(other := of_zeros(factor=8.0)), close_ups=(of_zeros(), replace(other, scale=scale)))
        found = list(recorded_share("loss-summed")(both, Located(STEP, "loss")))
        assert found and {each.called or "" for each in found} == {called}
        assert all(each.remedy.startswith("variable.assign_sub") == bool(called) for each in found)


def test_the_loss_of_micro_batches_is_their_mean_whatever_their_predictions() -> None:
    """Which dropout and batch normalization make others than those of the whole batch."""
    for factor, causes in ((1.0, []), (3.0, ["loss-scaled"])):
        micro = micro_batches(names=(0, 0, 0), offset=1.0)
        scaled = changed(micro, "loss", lambda e, f=factor: replace(e, arrays=[f * e.arrays[0], *e.arrays[1:]]))
        both = of_zeros(), scaled
        assert further(*(replace(each, steps={**each.steps, STEP + 1: each.steps[STEP]}) for each in both)) == causes


def test_of_several_predictions_only_those_that_the_loss_can_have_had_are_its_own() -> None:
    """A generator's images and a discriminator's scores of them, say."""
    other = of_zeros(offset=1.0, with_penalty=False)

    def in_two(axes: tuple[int, ...]) -> CloseUp:
        return changed(
            other,
            "predictions",
            lambda e: [
                replace(e, arrays=[np.expand_dims(e.arrays[0][:4], axes)]),
                replace(e, arrays=[e.arrays[0][4:]]),
            ],
        )

    assert further(of_zeros(), in_two(())) == ["regularization-missing"]
    assert further(of_zeros(), in_two((1, 2))) == []


def test_the_last_batch_of_the_epoch_tells_more_of_the_loss() -> None:
    def epoch(*, divisor: int, rate: float) -> CloseUp:
        """A full batch of 8, and a short one of 4 whose loss is divided by a number."""
        full, short = of_zeros(rate=rate), of_zeros(rows=slice(8, 12), with_penalty=False, factor=4 / divisor)
        penalty = np.float32(0.5)
        events = [
            replace(e, arrays=[e.arrays[0] + penalty, penalty]) if e.kind == "loss" else e for e in short.steps[STEP]
        ]
        return replace(full, steps={1: full.steps[STEP], STEP: full.steps[STEP], STEP + 1: events})

    right, three = epoch(divisor=4, rate=0.1), {"epochs": [FitEpoch(3, {}, 1.0)]}
    for divisor, causes in ((8, ["loss-constant-denominator"]), (4, [])):
        other = epoch(divisor=divisor, rate=0.2)
        given = replace(sides(other), close_ups=(right, other))
        both = replace(given, traces=(replace(given.traces[0], **three), given.traces[1]))
        found = locate(right, other, [], STEP, NAMES)
        assert found.stage == "update"
        assert [each.id for each in name_further(found, both, [])] == causes


@pytest.mark.parametrize(("divisors", "first", "further"), [
    ((8, 4), [], []), ((8, 8), [], ["loss-constant-denominator"]),
    ((16, 8), [], []), ((1, 1), ["loss-summed"], []), ((1, 0.5), [], []),
])  # fmt: skip
@pytest.mark.parametrize("whole", [False, True])
def test_a_share_depends_on_the_size_of_a_batch_and_a_factor_does_not(
    divisors: tuple[float, float], first: list[str], further: list[str], whole: bool
) -> None:
    """A full batch of 8 and a short one of 4 whose losses are divided by a number; such as a sum over outputs."""

    def epoch(divisors: tuple[float, float], gradient: float) -> CloseUp:
        full, short = (of_zeros(rows=rows, gradient=gradient, with_penalty=False) for rows in (slice(8), slice(8, 12)))
        steps = {1: full.steps[1]}
        for number, (step, divisor, size) in enumerate(zip((full, short), divisors, (8, 4), strict=True), STEP):
            (data, penalty), factor = step.arrays(STEP, "loss"), size / divisor
            loss = float(data) * factor + float(penalty) * (factor if whole else 1)
            steps[number] = with_loss(step, loss, float(penalty)).steps[STEP]
        return replace(full, steps=steps)

    right, other = epoch((8, 4), 1.0), epoch(divisors, 0.91234)
    given = replace(sides(other), close_ups=(right, other))
    both = replace(given, traces=(replace(given.traces[0], epochs=[FitEpoch(3, {}, 1.0)]), given.traces[1]))
    found = locate(right, other, [], STEP, NAMES)
    causes = name_causes(found, both)
    assert [each.id for each in causes] == first
    assert [each.id for each in name_further(found, both, causes)] == further


def test_other_examples_are_not_named_after_a_step_whose_own_are_not_known() -> None:
    def after(first: CloseUp, rows: slice) -> CloseUp:
        return replace(first, steps={**first.steps, STEP + 1: of_zeros(rows=rows).steps[STEP]})

    nothing = changed(of_zeros(), "inputs", lambda e: replace(e, arrays=[e.arrays[0][:0]], rows=()))
    right, other = after(of_zeros(), slice(8, 16)), after(nothing, slice(4, 12))
    given = replace(sides(other), close_ups=(right, other))
    both = replace(given, traces=(replace(given.traces[0], epochs=[FitEpoch(3, {}, 1.0)]), given.traces[1]))
    found = locate(right, other, [], STEP, NAMES)
    assert name_further(replace(found, stage="inputs"), both, []) == []
    inputs = found.of("inputs")
    assert inputs is not None and inputs.candidate == "no values"


@pytest.mark.parametrize(("schedule", "causes"), [(True, ["learning-rate-schedule-missing"]), (False, [])])
def test_a_schedule_that_begins_with_the_other_rate_is_seen_in_the_epochs_last_step(
    schedule: bool, causes: list[str]
) -> None:
    def epoch(last: float, **options: Any) -> CloseUp:
        first = of_zeros(**options)
        return replace(first, steps={**first.steps, STEP + 1: of_zeros(rate=last).steps[STEP]})

    right, other = epoch(0.05 if schedule else 0.1), epoch(0.1, offset=1.0)
    given = replace(sides(other), close_ups=(right, other))
    rate = {"class_name": "CosineDecay"} if schedule else 0.1
    adam = {**ADAM, "config": {**ADAM["config"], "learning_rate": rate}}
    trace = replace(given.traces[0], optimizers=[adam], epochs=[FitEpoch(3, {}, 1.0)])
    located = locate(right, other, [], STEP, NAMES)
    found = name_further(located, replace(given, traces=(trace, given.traces[1])), [])
    assert [each.id for each in found] == causes
    assert all(has(each, at_step=STEP + 1, at_end=True) for each in found), "it may differ since an earlier one"


@pytest.mark.parametrize(
    ("factor", "causes"), [(7.0, [("loss", "loss-scaled")]), (1 / 7, [("loss", "loss-scaled")]), (6.9, [])]
)
def test_a_loss_of_unknown_parts_that_are_added_up_is_that_many_times_the_right_one(
    factor: float, causes: list[tuple[str, str]]
) -> None:
    """As of the steps of a decoder, each of which calls the loss."""

    def unknown(close_up: CloseUp) -> CloseUp:
        without = [each for each in close_up.steps[STEP] if each.kind != "targets"]
        return replace(close_up, steps={STEP: without, STEP + 1: without})

    other = with_gradients(with_loss(RIGHT, factor * LOSS, factor * PENALTY), *(factor * g for g in gradients(RIGHT)))
    assert accused(unknown(RIGHT), unknown(other)) == causes


def test_a_loss_of_examples_that_were_not_seen_has_no_share_of_them() -> None:
    """As of a model that is a function, and no layer."""

    def unseen(close_up: CloseUp) -> CloseUp:
        events = [each for each in close_up.steps[STEP] if each.kind in ("loss", "gradients", "weights")]
        return replace(close_up, steps={STEP: events})

    other = with_gradients(with_loss(RIGHT, 8 * LOSS), *(8 * each for each in gradients(RIGHT)))
    assert accused(unseen(RIGHT), unseen(other)) == []


@pytest.mark.parametrize(("then", "named"), [(1 / 8, True), (1 / 4, False)])
def test_a_factor_of_the_loss_to_which_penalties_are_added_afterwards(then: float, named: bool) -> None:
    def with_data(close_up: CloseUp, *factors: float) -> CloseUp:
        labelled = with_targets(close_up, "mean_squared_error", TRUE, LOGITS, None, 1.0)
        data = float(np.mean(np.square(TRUE - LOGITS)))
        steps = [with_loss(labelled, factor * data + PENALTY).steps[STEP] for factor in factors]
        return replace(labelled, steps={STEP + i: events for i, events in enumerate(steps)})

    other = with_gradients(RIGHT, *(0.1 * each + 0.1 for each in gradients(RIGHT)))
    given = replace(sides(other), close_ups=(with_data(RIGHT, 1, 1), with_data(other, 1 / 8, then)))
    found = list(CATALOGUE["loss-scaled"].recorded["loss"](given, Located(STEP, "loss")))
    assert [each.remedy for each in found] == ["loss = ...  # as it is, without the division by 8"] * named
    assert all(each.evidence.kind == "script-data-loss-factor" for each in found)


@pytest.mark.parametrize(("factor", "named"), [(7.0, True), (6.5, False)])
def test_a_loss_function_that_gets_labels_of_another_shape_leaves_the_number_of_parts(
    factor: float, named: bool
) -> None:
    """Such as the values of chosen actions, where fit gets those of all: labels of later steps are not known then."""

    def called(close_up: CloseUp, labels: Any, loss: float) -> CloseUp:
        given = [
            with_loss(with_targets(close_up, "mean_squared_error", each, LOGITS, None, 1.0), loss)
            for each in (labels, labels + 1)
        ]
        return replace(close_up, steps={STEP + i: each.steps[STEP] for i, each in enumerate(given)})

    other = with_gradients(RIGHT, *(factor * each for each in gradients(RIGHT)))
    few = called(other, np.repeat(TRUE, 2, axis=1), factor * LOSS)
    assert accused(called(RIGHT, TRUE, LOSS), few) == [("loss", "loss-scaled")] * named


@pytest.mark.parametrize("loss", [0.0, np.inf, np.nan, -LOSS])
def test_a_loss_that_is_no_number_of_parts_has_no_factor(loss: float) -> None:
    """Whose function is not known in the step after, and that was foreseen, so that no gradients have to agree."""

    def unknown(close_up: CloseUp) -> CloseUp:
        without = [each for each in close_up.steps[STEP] if each.kind != "targets"]
        return replace(close_up, steps={**close_up.steps, STEP + 1: without})

    right, other = unknown(RIGHT), unknown(with_loss(OFF, loss))
    both = replace(sides(other), close_ups=(right, other), foreseen=True)
    assert not list(CATALOGUE["loss-scaled"].recorded["loss"](both, Located(STEP, "loss")))


def test_calls_of_a_loss_for_outputs_of_other_sizes_are_none_of_one_output() -> None:
    one = of_zeros()
    two = changed(one, "targets", lambda e: [e, replace(e, arrays=[np.tile(each, (1, 2)) for each in e.arrays])])
    assert targets_of(one, STEP) is not None and targets_of(two, STEP) is None
    assert further(two, changed(two, "predictions", lambda e: replace(e, arrays=[e.arrays[0] + 1]))) == []


@pytest.mark.parametrize("over_all", [True, False])
def test_a_mask_by_hand_that_one_side_alone_applies_is_named(over_all: bool) -> None:
    """Whether the masked losses are divided by the number of all positions or of those that are kept."""
    labels = np.float32([0, 2, 0, 5, 5, 1, 0, 3])[:, None]

    def seen(close_up: CloseUp, loss: float) -> CloseUp:
        given = changed(close_up, "targets", lambda e: replace(e, arrays=[labels, *e.arrays[1:]]))
        return with_loss(given, loss + PENALTY)

    targets = targets_of(seen(RIGHT, 0.0), STEP)
    losses = None if targets is None else losses_of(targets)
    assert losses is not None
    masked = losses[labels[:, 0] != 0].sum() / (8 if over_all else 5)
    whole, right = losses.mean(), seen(RIGHT, masked)
    (cause,) = found_causes(right, seen(OFF, whole))
    assert (cause.id, cause.side) == ("mask-missing", "loop") and "tf.not_equal(y, 0)" in cause.remedy
    assert ("reduce_mean" in cause.remedy) is over_all
    assert has(cause, kind="script-mask-by-hand", label=0, left_out=3, positions=8)
    (cause,) = found_causes(seen(RIGHT, whole), seen(OFF, masked))
    assert (cause.id, cause.side) == ("mask-missing", "fit") and "model.compile" in cause.remedy
    unknown = changed(right, "targets", lambda e: replace(e, info={**e.info, "loss": "f", "configuration": {}}))
    assert accused(unknown, seen(OFF, whole)) == [("loss", "mask-missing")], "fit may have a function of its own"
    for other in (1.001 * whole, 0.999 * masked):
        assert accused(right, seen(OFF, other)) == []
    assert accused(seen(RIGHT, 0.99 * masked), seen(OFF, whole)) == [], "no label leaves that"
    alike = changed(seen(RIGHT, 1.0), "targets", lambda e: replace(e, arrays=[labels, labels + 1, *e.arrays[2:]]))
    both = replace(sides(alike), close_ups=(alike, alike))
    kinds = [each.evidence.kind for each in CATALOGUE["mask-missing"].recorded["loss"](both, Located(STEP, "loss"))]
    assert "script-mask-by-hand" not in kinds, "the mean is the same whatever is left out"


def test_a_loss_that_is_called_again_with_the_same_was_not_used() -> None:
    (first,), events = RIGHT.of(STEP, "targets"), list(RIGHT.steps[STEP])
    again = replace(first, info={**first.info, "line": ("loop.py", 3, "loss = loss_fn(y, p)")})
    other = replace(first, arrays=[first.arrays[0] + 1, *first.arrays[1:]])
    at = events.index(first)
    for more in ([again], [other, again], [again, other]):
        kept = each_once([*events[: at + 1], *more, *events[at + 1 :]])
        assert [each for each in kept if each.kind == "targets"] == more
    loss = next(i for i, each in enumerate(events) if each.kind == "loss")
    assert each_once([*events[: loss + 1], again, *events[loss + 1 :]]).count(first) == 1, "gradients were taken before"


def test_the_mean_without_sample_weights_is_named_where_the_other_loss_is_their_sum() -> None:
    weight = np.float32([0.0, 0.25, 0.25, 0.0, 0.5, 0.0, 0.0, 0.0])

    def weighted(loss: float) -> CloseUp:
        with_weight = lambda e: replace(e, info={**e.info, "weights": 1}, arrays=[*e.arrays, weight])  # noqa: E731
        return with_loss(changed(RIGHT, "targets", with_weight), loss + PENALTY)

    targets = targets_of(RIGHT, STEP)
    losses = None if targets is None else losses_of(targets)
    assert losses is not None
    right = weighted((losses * weight).sum())
    (cause,) = found_causes(right, with_loss(OFF, losses.mean() + PENALTY))
    assert cause.id == "sample-weights-dropped" and has(cause, kind="script-mean-unweighted")
    assert "reduce_sum" in cause.remedy
    assert accused(right, with_loss(OFF, 1.001 * losses.mean() + PENALTY)) == []
    assert accused(weighted(1.01 * (losses * weight).sum()), with_loss(OFF, losses.mean() + PENALTY)) == []


def test_a_loss_over_positions_that_the_mask_leaves_out_is_named() -> None:
    targets = targets_of(of_zeros(), STEP)
    assert targets is not None
    mask = np.arange(len(targets.true)) < 3
    kept, whole = value_of(replace(targets, mask=mask)), value_of(targets)
    assert kept == pytest.approx(float(np.square(targets.predicted[:3]).mean()))
    assert kept is not None and whole is not None

    def masked(close_up: CloseUp, loss: float) -> CloseUp:
        marked = changed(close_up, "targets", lambda event: [Event("mask", 0, {}, [mask]), event])
        return with_loss(marked, loss + PENALTY)

    right, off = masked(of_zeros(), kept), with_gradients(of_zeros(), *(2 * each for each in gradients(RIGHT)))
    assert accused(right, with_loss(off, whole + PENALTY)) == [("loss", "mask-missing")]
    (cause,) = found_causes(right, with_loss(off, kept * np.mean(mask) + PENALTY))
    assert cause.id == "mask-missing" and has(cause, kind="script-mask-zeros", counted=np.mean(mask))
    assert accused(right, with_loss(off, 1.01 * whole + PENALTY)) == []
    assert accused(with_loss(of_zeros(), kept + PENALTY), with_loss(off, whole + PENALTY)) == [], "no mask was seen"
    assert further(right, of_zeros(offset=1.0)) == ["mask-missing"], "by the predictions that the loss was given"


def test_a_loss_without_label_smoothing_is_named() -> None:
    generator = np.random.default_rng(1)
    true, predicted = np.eye(3)[generator.integers(0, 3, 8)], generator.normal(size=(8, 3))
    smoothed = Targets("categorical_crossentropy", true, predicted, None, True, 0.25)
    right, plain = value_of(smoothed), value_of(replace(smoothed, label_smoothing=0.0))
    assert right is not None and plain is not None
    configuration = {"name": smoothed.kind, "from_logits": True, "label_smoothing": 0.25}

    def given(close_up: CloseUp, configuration: dict[str, Any], loss: float) -> CloseUp:
        info = {"configuration": configuration}
        called = changed(close_up, "targets", lambda e: replace(e, info={**e.info, **info}, arrays=[true, predicted]))
        return with_loss(called, loss + PENALTY)

    fit = given(RIGHT, configuration, right)
    (cause,) = found_causes(fit, given(OFF, configuration, plain))
    assert cause.id == "label-smoothing-missing" and has(cause, label_smoothing=0.25)
    own = changed(given(OFF, configuration, plain), "targets", lambda e: replace(e, info={**e.info, "loss": "Own"}))
    assert found_causes(fit, own)[0].remedy == "loss_object = tf.keras.losses.Own(..., label_smoothing=0.25)"
    assert accused(fit, given(OFF, configuration, 1.01 * plain)) == []
    assert (
        accused(given(RIGHT, configuration | {"label_smoothing": 0.0}, right), given(OFF, configuration, plain)) == []
    )
    without = configuration | {"label_smoothing": 0.0}
    (of_fit,) = found_causes(given(RIGHT, without, plain), given(OFF, configuration, right))
    assert (of_fit.id, of_fit.side) == ("label-smoothing-missing", "fit") and "model.compile" in of_fit.remedy
    assert accused(given(RIGHT, without, 1.01 * plain), given(OFF, configuration, right)) == []


def test_an_optimizers_settings_are_named_wherever_the_difference_begins() -> None:
    right = of_zeros()
    assert further(right, of_zeros(offset=1.0, rate=0.2)) == ["optimizer-differs"]
    assert further(right, of_zeros(offset=1.0), beta_1=0.8) == ["optimizer-differs"]
    assert further(right, of_zeros(offset=1.0), clipnorm=1e9) == [], "it clips none of these gradients"
    assert further(right, of_zeros(offset=1.0), clipnorm=1e-3) == ["clipping-differs"]
    assert further(right, of_zeros(offset=1.0), gradient_accumulation_steps=2) == [], "its steps are others"

    limit = float(np.hypot.reduce([np.linalg.norm(each) for each in gradients(right)])) / 4
    assert further(right, of_zeros(rate=0.2), clipnorm=limit) == ["optimizer-differs"], "beside clipping-differs"
    assert further(right, of_zeros(rate=0.2)) == [], "it is the first cause"


def test_the_rate_of_an_optimizer_of_some_variables_only() -> None:
    def in_parts(close_up: CloseUp, *rates: float) -> CloseUp:
        """The same step by two optimizers, of a variable each."""

        def parts(event: Event) -> list[Event]:
            return [
                replace(event, info={**event.info, "positions": [i]}, arrays=[np.float64(rate), event.arrays[1 + i]])
                for i, rate in enumerate(rates)
            ]

        return changed(close_up, "gradients", parts)

    expected = {
        "kind": "script-settings",
        "at_step": 2,
        "optimizer": "Adam",
        "settings": {"learning_rate": [0.2, 0.1]},
    }
    (found,) = found_causes(in_parts(RIGHT, 0.1, 0.1), in_parts(linear_step(rate=0.2), 0.1, 0.2), rate=0.1)
    assert has(found, variables=[NAMES[1]], **expected)
    (whole,) = found_causes(RIGHT, in_parts(linear_step(rate=0.2), 0.2, 0.2), rate=0.1)
    assert has(whole, **expected) and not whole.measurements.get("variables")

    right, other = in_parts(RIGHT, 0.1, 0.1), in_parts(linear_step(rate=0.2), 0.1, 0.2)
    adams = [{**ADAM, "config": {**ADAM["config"], "learning_rate": rate}, "made": ("loop.py", line, "Adam()")}
             for line, rate in ((4, 0.1), (5, 0.2))]  # fmt: skip
    fit, loop = sides(other).traces
    for made, line in ((adams, "loop.py:5: Adam()"), ([*adams, adams[1]], "None")):
        traces = replace(fit, optimizers=adams[:1]), replace(loop, optimizers=made)
        both = replace(sides(other), close_ups=(right, other), traces=traces)
        (found,) = name_causes(locate(right, other, [], STEP, NAMES), both)
        assert has(found, variables=[NAMES[1]], **expected), "it has this rate from the beginning"
        assert str(found.source) == line and "begun" not in found.measurements
    lines = [("loop.py", 7, "first.apply(a)"), ("loop.py", 8, "second.apply(b)")]
    lined = changed(other, "gradients", lambda each: [
        replace(each, info={**each.info, "line": lines[each.info["positions"][0]]})])  # fmt: skip
    (found,) = name_causes(locate(right, other, [], STEP, NAMES), replace(both, close_ups=(right, lined)))
    assert str(found.source) == "loop.py:8: second.apply(b)", "where its variables are updated"
    ended = replace(both, close_ups=(right, replace(lined, steps={})))
    assert _with_updates_of(ended, NAMES) is ended.other, "it makes no such step"


@pytest.mark.parametrize(
    ("begins", "measured", "line"),
    [
        ((0.1, 0.2), {}, "loop.py:4: Adam()"),  # it is made with the rate of the step
        ((0.1, 0.1), {"begun": 0.1}, "None"),
        ((0.1, 0.3), {"set_later": 0.3}, "None"),
    ],
)
def test_a_rate_that_is_set_later_is_not_that_of_the_line_that_made_the_optimizer(
    begins: tuple[float, float], measured: dict[str, float], line: str
) -> None:
    right, other = RIGHT, linear_step(rate=0.2)
    adams = [
        {**ADAM, "config": {**ADAM["config"], "learning_rate": used}, "made": ("loop.py", 4, "Adam()"), "begins": made}
        for used, made in zip((0.1, 0.2), begins, strict=True)
    ]
    first, second = (replace(t, optimizers=[adam]) for t, adam in zip(sides(other).traces, adams, strict=True))
    both = replace(sides(other), close_ups=(right, other), traces=(first, second))
    (found,) = name_causes(locate(right, other, [], STEP, NAMES), both)
    assert found.id == "optimizer-differs" and str(found.source) == line
    assert {key: found.measurements.get(key) for key in ("begun", "set_later") if key in found.measurements} == measured


def test_a_rate_that_is_set_by_hand_where_fit_has_a_schedule_lacks_no_schedule_where_the_optimizer_is_made() -> None:
    right, other = RIGHT, linear_step(rate=0.2)
    rates = {"class_name": "ExponentialDecay", "config": {}}, 0.2
    adams = [
        {**ADAM, "config": {**ADAM["config"], "learning_rate": rate}, "made": ("loop.py", 4, "Adam()"), "begins": 0.1}
        for rate in rates
    ]
    first, second = (replace(t, optimizers=[adam]) for t, adam in zip(sides(other).traces, adams, strict=True))
    both = replace(sides(other), close_ups=(right, other), traces=(first, second))
    (found,) = name_causes(locate(right, other, [], STEP, NAMES), both)
    assert found.id == "optimizer-differs" and found.source is None
    assert found.measurements["set_later"] == 0.1 and "schedule(optimizer.iterations)" in found.remedy


def test_equal_schedules_after_other_numbers_of_steps_are_no_other_setting() -> None:
    right, other = of_zeros(), of_zeros(offset=1.0, rate=0.2)
    given = replace(sides(other), close_ups=(right, other))
    for schedules, causes in (
        (({"decay": 0.5}, {"decay": 0.5}), []),
        (({"decay": 0.5}, {"decay": 0.9}), ["optimizer-differs"]),
        ((0.001, 0.001), ["optimizer-differs"]),
    ):
        adams = [{"class": "Adam", "config": {**ADAM["config"], "learning_rate": each}} for each in schedules]
        traces = [replace(t, optimizers=[adam]) for t, adam in zip(given.traces, adams, strict=True)]
        both = replace(given, traces=(traces[0], traces[1]))
        found = name_further(locate(right, other, [], STEP, NAMES), both, [])
        assert [cause.id for cause in found] == causes, schedules


@pytest.mark.parametrize(
    ("last", "rows", "cause"), [(3, slice(4, 12), "examples-repeated"), (2, slice(8, 12), "batch-size-differs")]
)
def test_other_examples_are_named_in_a_later_step(last: int, rows: slice, cause: str) -> None:
    """Of the epoch, or in the first of the next one, as of an update that has batches of both."""
    right, other = of_zeros(), of_zeros(factor=8.0)
    right = replace(right, steps={**right.steps, STEP + 1: of_zeros(rows=slice(8, 16)).steps[STEP]})
    other = replace(other, steps={**other.steps, STEP + 1: of_zeros(rows=rows).steps[STEP]})
    given = replace(sides(other), close_ups=(right, other))
    three = replace(given.traces[0], epochs=[FitEpoch(last, {}, 1.0)])
    found = locate(right, other, [], STEP, NAMES)
    assert found.stage == "loss"
    (named,) = name_further(found, replace(given, traces=(three, given.traces[1])), [])
    assert named.id == cause and has(named, at_step=3)


@pytest.mark.parametrize(("unknown", "causes"), [(0, ["labels-shuffled-apart"]), (1, [])])
def test_later_examples_that_may_depend_on_weights_are_no_cause(unknown: int, causes: list[str]) -> None:
    """As of an agent: what it meets, and so what it is given as labels, follows from what it has learned."""
    right, other = of_zeros(), of_zeros(gradient=2.0)
    one, two, apart = (
        linear_step(rows=rows, shuffled=shuffled).steps[STEP]
        for rows, shuffled in ((slice(0, 8), False), (slice(8, 16), False), (slice(8, 16), True))
    )
    met = [
        replace(event, rows=(*range(unknown), *event.rows[unknown:])) if event.kind == "inputs" else event
        for event in apart
    ]
    right = replace(right, steps={**right.steps, STEP + 1: one, STEP + 2: two})
    other = replace(other, steps={**other.steps, STEP + 1: met, STEP + 2: one})
    given = replace(sides(other), close_ups=(right, other))
    four = replace(given.traces[0], epochs=[FitEpoch(4, {}, 1.0)])
    found = locate(right, other, [], STEP, NAMES)
    assert found.stage == "gradients"
    further = name_further(found, replace(given, traces=(four, given.traces[1])), [])
    assert [cause.id for cause in further] == causes


@pytest.mark.parametrize("named", [True, False])
def test_labels_of_other_examples_with_equal_inputs_are_not_shuffled_apart(named: bool) -> None:
    """As of rows that fit keeps for validation; where they are shuffled apart, an epoch has the same ones."""
    inputs, labels = [1, 1, 2, 3], ([10, 20, 10, 20], [20, 20, 10, 10] if named else [20, 30, 10, 10])

    def epoch(labels: Sequence[int], *, more: bool) -> CloseUp:
        def step(number: int) -> list[Event]:
            rows, part = inputs + [3] * more, slice(2 * number, 2 * number + 2 + more)
            of = [*labels, 10][part]
            return [Event("inputs", 0, {"model": "m"}, [], rows[part]), Event("targets", 0, {}, [], of)]

        return CloseUp({number + 1: step(number) for number in range(2)})

    right, other = epoch(labels[0], more=False), epoch(labels[1], more=False)
    both = replace(sides(RIGHT), close_ups=(right, other), step=2)
    apart = list(CATALOGUE["labels-shuffled-apart"].recorded["examples"](both, Located(2, "examples")))
    assert bool(apart) == named
    both = replace(both, close_ups=(right, epoch(labels[0], more=True)))
    assert name_causes(Located(2, "examples"), both) == [], "nor are they repeated"
    kept = replace(both, traces=(replace(both.traces[0], fit={"validation_split": 0.2}), both.traces[1]))
    assert [each.kind for each in hints(Located(2, "examples"), kept)] == ["split-off"]


# Several trainings


@pytest.mark.parametrize(
    ("judge", "maker", "follows"),
    [
        # The judge is trained first, on what the maker gives; then the maker.
        ((1, "predictions"), (2, "predictions"), ["maker", None]),
        ((1, "inputs"), (2, "inputs"), ["maker", None]),
        ((1, "examples"), (2, "state"), [None, "judge"]),
        ((1, "update"), (2, "loss"), [None, "judge"]),
        # The other way round.
        ((2, "predictions"), (1, "predictions"), ["maker", None]),
        ((2, "loss"), (1, "update"), ["maker", None]),
    ],
)
def test_of_two_trainings_one_at_most_follows_from_the_other(
    judge: tuple[int, str], maker: tuple[int, str], follows: list[str | None]
) -> None:
    inputs = Event("inputs", 0, {"model": "maker"}, [])
    seen: dict[str, Any] = {}
    for name, (moment, stage) in (("judge", judge), ("maker", maker)):
        model = SimpleNamespace(traces=[SimpleNamespace(model=name)])
        departure = SimpleNamespace(name=name, step=1, noise=1, model=model)
        close = {"seen": (CloseUp({1: [inputs]}), None), "moment": moment, "located": Located(1, stage)}
        seen[name] = SimpleNamespace(departure=departure, **close)
    found = [called_first(each, seen) or first_before(each.departure, seen) for each in seen.values()]
    assert [each and each.name for each in found] == follows


@pytest.mark.parametrize(("apart", "follows"), [(0.0, [None, "judge"]), (0.5, ["maker", None])])
def test_a_training_does_not_follow_from_a_model_that_gives_it_the_same(
    apart: float, follows: list[str | None]
) -> None:
    """Such as a critic that draws other numbers, before the generator has made its first step."""
    seen: dict[str, Any] = {}
    for name, moment in (("judge", 1), ("maker", 2)):
        model = SimpleNamespace(traces=[SimpleNamespace(model=name)])
        departure = SimpleNamespace(name=name, step=1, noise=1, model=model)
        sides = [
            CloseUp({1: [Event("inputs", 0, {"model": "maker"}, []),
                         Event("predictions", 0, {"model": "maker"}, [np.ones(2) + off])]})
            for off in (0.0, apart)
        ]  # fmt: skip
        close = {"seen": sides, "moment": moment, "located": Located(1, "predictions")}
        seen[name] = SimpleNamespace(departure=departure, **close)
    found = [called_first(each, seen) or first_before(each.departure, seen) for each in seen.values()]
    assert [each and each.name for each in found] == follows


# Examples


def test_batches_of_another_size_and_examples_left_out_are_told_apart() -> None:
    five = linear_step(rows=slice(0, 5))
    assert accused(RIGHT, five, ends=(1, 2)) == [("examples", "batch-size-differs")], "the first step of an epoch"
    assert accused(RIGHT, five, ends=(2,)) == [("examples", "examples-dropped")], "its last step"


@pytest.mark.parametrize("skipped", [0, 2])
def test_examples_of_updates_that_a_loss_scale_leaves_out_are_not_those_of_the_step(skipped: int) -> None:
    scaled, five = Event("scaled", 0, {"skipped": skipped}, []), linear_step(rows=slice(0, 5))
    right = changed(RIGHT, "gradients", lambda event: [scaled, event])
    assert bool(accused(right, five, ends=(1, 2))) == (not skipped)
    located = locate(right, five, [], STEP, NAMES)
    seen = hints(located, replace(sides(five), close_ups=(right, five)))
    numbers = {"kind": "updates-skipped", "side": "loop", "count": 0, "other": "fit", "others": 2}
    assert [each.as_json() for each in seen if each.kind == "updates-skipped"] == [numbers] * bool(skipped)


def test_what_was_computed_for_an_update_that_is_left_out_is_forgotten() -> None:
    from compare.watch.step_events import Replica

    replica = Replica()

    def applies(optimizer: int) -> None:
        replica.waiting.append(Event("inputs", 0, {}, []))
        event = Event("scaled", 0, {"optimizer": optimizer, "skipped": replica.skipped(optimizer)}, [])
        replica.waiting.append(event)

    for optimizer, events, skipped in ((1, 2, 0), (1, 2, 1), (2, 4, 0), (1, 4, 2), (2, 4, 1)):
        applies(optimizer)
        assert (len(replica.waiting), replica.waiting[-1].info["skipped"]) == (events, skipped)
    replica.ended.add(1)  # which has made its update
    applies(2)
    assert (len(replica.waiting), replica.waiting[-1].info["skipped"]) == (6, 0)


def test_an_epoch_that_begins_before_the_last_is_over_drops_examples() -> None:
    assert accused(RIGHT, linear_step(rows=slice(8, 16))) == [("examples", "examples-dropped")]
    assert accused(RIGHT, linear_step(rows=slice(4, 12))) == [("examples", "examples-repeated")]


def epochs_of(*steps: CloseUp) -> CloseUp:
    """Steps from the second on, after one with the last 8 examples, which begin each epoch."""
    seen = {STEP + i: each.steps[STEP] for i, each in enumerate(steps)}
    return replace(steps[0], steps={1: RIGHT.steps[1], **seen})


BEGIN, REST, SHORT = linear_step(rows=slice(8, 16)), linear_step(rows=slice(0, 8)), linear_step(rows=slice(0, 5))


@pytest.mark.parametrize("more", [0, 1])
def test_updates_of_fewer_micro_batches_are_no_batches_of_another_size(more: int) -> None:
    def parts(close_up: CloseUp) -> CloseUp:
        return changed(close_up, "inputs", lambda event: [
            replace(event, arrays=[event.arrays[0][i : i + 2]], rows=event.rows[i : i + 2])
            for i in range(0, len(event.rows), 2)
        ])  # fmt: skip

    def with_losses(close_up: CloseUp) -> CloseUp:
        return changed(close_up, "loss", lambda event: [event] * len(close_up.of(STEP, "inputs")))

    right, other = parts(RIGHT), linear_step(rows=slice(0, 6 + more))
    assert found_causes(right, parts(other), ends=(1, 2)) == [], "one loss of two calls, as of pairs"
    right, other = with_losses(right), with_losses(other if more else parts(other))
    (cause,) = found_causes(right, other, ends=(1, 2))
    if more:
        assert (cause.id, cause.measurements["kind"]) == ("batch-size-differs", "script-batch-size")
    else:
        assert has(cause, kind="script-parts-of-update", parts=3, expected=4, examples=2)


def test_micro_batches_that_are_too_few_for_an_update_get_one_of_their_own() -> None:
    """The last ones of an epoch are given up, or kept for the next epoch's first update."""
    rows, few = slice(0, 4), linear_step(rows=slice(8, 12))
    short, later = linear_step(rows=rows), linear_step(rows=rows, gradient=2.0)
    for following, more in ((BEGIN, 8), (few, 4)):
        other = epochs_of(changed(later, "inputs", lambda event, b=following: [event, *b.of(STEP, "inputs")]), BEGIN)
        right, ends = epochs_of(short, BEGIN), epochs_of(short)  # whose next epoch was not seen: it begins as the first
        pairs = [((right, other), "loop"), ((other, right), "fit")] + [((ends, other), "loop")] * (following is BEGIN)
        for pair, side in pairs:
            (cause,) = found_causes(*pair)
            assert (cause.id, cause.side) == ("examples-dropped", side)
            assert has(cause, kind="rest-without-update", examples=4, more=more)
    goes_on = found_causes(right, other, ends=(3,))
    assert not any(has(cause, kind="rest-without-update") for cause in goes_on), "they are in an epoch that goes on"
    both = replace(sides(other), close_ups=(right, other), step=STEP)
    adam = {**ADAM, "config": {**ADAM["config"], "gradient_accumulation_steps": 4}}
    keeps = replace(both, traces=(both.traces[0], replace(both.traces[1], optimizers=[adam])))
    recognise = CATALOGUE["examples-dropped"].recorded["examples"]
    applied = [
        "apply_gradients" in each.remedy for two in (both, keeps) for each in recognise(two, Located(STEP, None))
    ]
    assert applied == [True, False], "an optimizer keeps them for the next epoch"
    whole = epochs_of(linear_step(rows=slice(0, 16)), BEGIN)
    assert not any(has(cause, kind="rest-without-update") for cause in found_causes(epochs_of(short, BEGIN), whole))


@pytest.mark.parametrize("rows", [slice(0, 4), slice(0, 8)])
def test_micro_batches_that_are_counted_anew_in_each_epoch_where_an_optimizer_counts_on(rows: slice) -> None:
    """That of fit makes no update of the rest; it may have as many examples as each other update."""
    update = linear_step(rows=rows)
    more = changed(
        linear_step(rows=rows, gradient=2.0),
        "inputs",
        lambda event: [event, *linear_step(rows=slice(8, 12)).of(STEP, "inputs")],
    )
    right, other = epochs_of(update, BEGIN), epochs_of(more, BEGIN)
    (cause,) = configured(right, other, {"gradient_accumulation_steps": 4}, {})
    assert (cause.id, cause.side) == ("examples-dropped", "loop")
    assert has(cause, kind="micro-batches-counted-anew", examples=rows.stop, more=4)
    assert "if micro_batch % 4 == 0:" in cause.remedy and not cause.source


def test_an_update_that_goes_on_with_the_next_epoch_repeats_nothing() -> None:
    short = linear_step(rows=slice(0, 4))
    begins, whole = BEGIN.of(STEP, "inputs")[0], short.of(STEP, "inputs")[0]
    one = replace(whole, arrays=[np.concatenate([*whole.arrays, *begins.arrays])], rows=(*whole.rows, *begins.rows))
    for inputs, cause in (([one], "examples-repeated"), ([whole, begins], None)):
        other = epochs_of(changed(short, "inputs", lambda event, inputs=inputs: inputs), REST)
        both = replace(sides(other), close_ups=(epochs_of(short, BEGIN), other))
        all_right = [*BEGIN.rows(STEP), *short.rows(STEP)]
        found = _in_whole_epoch(both, [1, 2], all_right)
        assert (found and found[0]) == cause


def test_a_short_last_batch_that_fit_leaves_out_is_no_other_batch_size() -> None:
    without, whole = epochs_of(BEGIN, BEGIN), epochs_of(SHORT, BEGIN)
    assert accused(without, whole, ends=(1, 2)) == [("examples", "examples-dropped")]
    (cause,) = found_causes(without, whole, ends=(1, 2))
    assert cause.side == "fit" and has(cause, never=5, of_all=13)
    more = epochs_of(SHORT, REST)
    assert accused(without, more, ends=(1, 2)) == [], "its epoch goes on"


def test_a_batch_that_is_trained_twice_drops_nothing() -> None:
    right, twice = epochs_of(REST, BEGIN), epochs_of(BEGIN, REST)
    assert accused(right, twice) == [("examples", "examples-repeated")]
    assert accused(right, epochs_of(BEGIN, BEGIN)) == [("examples", "examples-dropped")], "the rest never comes"


def test_examples_of_a_data_set_with_equal_ones_are_counted_as_often_as_it_has_them() -> None:
    def with_rows(seen: CloseUp, *second: int) -> CloseUp:
        def step(*rows: int) -> list[Event]:
            return [replace(each, rows=rows) if each.kind == "inputs" else each for each in seen.steps[STEP]]

        return replace(seen, steps={1: step(1, 1, 2, 3), STEP: step(*second), 3: step(8, 9, 10, 11)})

    right = with_rows(RIGHT, 4, 5, 6, 7)
    (cause,) = found_causes(right, with_rows(OFF, 4, 5, 6, 6), ends=(3,))
    assert cause.id == "examples-repeated" and has(cause, kind="repeats", repeats=1, of=12, epoch=1)
    (cause,) = found_causes(right, with_rows(OFF, 4, 5, 6), ends=(3,))
    assert cause.id == "examples-dropped" and has(cause, kind="never-seen", never=1, of_all=12, epoch=1)
    later = {4: with_rows(RIGHT, 20, 21, 22, 23).steps[STEP]}
    further, mixed = replace(right, steps={**right.steps, **later}), with_rows(OFF, 4, 5, 20, 21)
    assert found_causes(further, mixed, ends=(3, 4)) == [], "some are of the next epoch"


ALL = tuple(range(100, 120))
"""The hashes of a data set's examples, of which one epoch has 8, 8 and 4."""
AGAIN = ALL * 2
CUT, FEW = "for x in data.batch(8, drop_remainder=True):", "for x in data.take(1):"
ENDS = 8, 16, 24


def batched(ends: Sequence[int], rows: Sequence[int], operations: dict[tuple[str, int], str], times: int) -> CloseUp:
    """Steps with examples that the operations of one data set have made, by name and number, with their lines."""
    made = [(*each, ("loop.py", 3, text)) for each, text in operations.items()]
    info = {"model": "m", "operations": made, "line": ("loop.py", 5, "model(x)")}
    batches = [tuple(rows[first:last]) for first, last in zip((0, *ends), ends, strict=False)]
    return CloseUp({step: [Event("inputs", 0, info, [], batch)] for step, batch in enumerate(batches * times, 1)})


@pytest.mark.parametrize(
    ("ends", "rows", "operations", "step", "line"),
    [
        ((5, 10), ALL, {("batch", 5): "data = data.batch(5)", ("batch", 8): "other"}, 1, "data = data.batch(8)"),
        ((5, 10), ALL, {("batch", 5): ".batch(n)"}, 1, ".batch(n)"),
        ((5, 10), ALL, {("batch", 8): "data.batch(8)"}, 1, None),
        (ENDS[:2], ALL, {("batch", 8): CUT, ("drop_remainder", 8): CUT}, 3, "for x in data.batch(8):"),
        (ENDS[:2], ALL, {("batch", 8): ".batch(8)", ("take", 20): ".take(20)"}, 3, None),  # the loop leaves it out
        (ENDS[:2], ALL, {("take", 2): ".take(2)", ("drop_remainder", 8): CUT}, 3, None),  # either of them does
        (ENDS[:1], ALL, {("take", 1): FEW}, 2, "for x in data:"),
        (ENDS[:1], ALL, {("take", 8): "data = data.take(8).batch(8)"}, 2, "data = data.batch(8)"),
        (ENDS[:1], ALL, {("take", 1): FEW, ("repeat", ENDLESS): "data.repeat()"}, 2, FEW),  # endless without it
        (ENDS[:1], ALL, {("drop_remainder", 8): CUT}, 2, None),  # a full batch is left out, too
        (ENDS[:2], ALL[4:], {("skip", 4): "data.skip(4)"}, 1, "data"),
        (ENDS[:2], ALL[4:], {("skip", 8): "data.skip(8)"}, 1, None),
        (ENDS[:2], ALL[:8] + ALL[12:], {("skip", 4): "data.skip(4)"}, 2, None),  # the first ones are there
        (ENDS, AGAIN, {("repeat", 2): "data.repeat(2)"}, 3, "data.repeat(2)"),  # it may be the loop over epochs
        (ENDS, AGAIN, {("repeat", 1): "data.repeat(1)"}, 3, None),
        (ENDS, ALL[:16] + ALL[4:12], {("repeat", 2): "data.repeat(2)"}, 3, None),  # it has not come to the end
    ],
)
def test_the_line_of_a_data_set_is_cited_that_does_what_was_seen(
    ends: Sequence[int], rows: Sequence[int], operations: dict[tuple[str, int], str], step: int, line: str | None
) -> None:
    """Only if it is the one that does, by its number; else the call of the model is, which only shows it."""
    other = batched(ends, rows, operations, times=1 if rows != ALL or step == 1 else 2)
    (cause,) = found_causes(batched((8, 16, 20), ALL, {}, times=2), other, ends=(3, 6), step=step)
    assert cause.source is not None and cause.source.shows == (line is None)
    assert (cause.source.instead or cause.source.text) == (line or "model(x)")


def test_examples_left_out_are_counted_to_the_end_of_the_epoch_whose_last_batch_is_short() -> None:
    right, other = (batched(ends, ALL, {}, times=2) for ends in ((8, 16, 20), (8,)))
    (cause,) = found_causes(right, other, ends=(3, 6), step=2)
    assert has(cause, kind="tail-left-out", examples=12, never=12, of_all=20)


def test_what_is_left_out_is_told_where_an_update_goes_on_with_the_next_epoch() -> None:
    """As in a loop that accumulates, and keeps what is left for the next epoch."""
    rows = [*ALL[:18], *ALL[:18]]
    right, other = batched((8, 16, 20), ALL, {}, times=2), batched((8, 16, 24, 32), rows, {}, times=1)
    (cause,) = found_causes(right, other, ends=(3, 6), step=3)
    assert cause.id == "examples-dropped" and has(cause, kind="tail-left-out", examples=2, never=2, of_all=20)


@pytest.mark.parametrize(("made", "cause"), [(4, "examples-dropped"), (5, "examples-repeated")])
def test_epochs_that_each_end_early_are_no_examples_that_are_repeated(made: int, cause: str) -> None:
    """The next epoch's order is another one, so only the number of all steps shows that it has begun."""
    reshuffled = (*ALL[:16], *ALL[3:11], *ALL[11:19])
    right, other = batched((8, 16, 20), ALL, {}, times=2), batched((8, 16, 24, 32), reshuffled, {}, times=1)
    (found,) = found_causes(right, other, ends=(3, 6), step=3, lengths=(6, made))
    assert found.id == cause
    assert has(found, kind="tail-left-out", examples=4, never=4, of_all=20) == (made == 4)


def test_the_line_of_a_data_set_of_fit_is_cited_that_leaves_out_the_short_batch() -> None:
    right = batched(ENDS[:2], ALL, {("drop_remainder", 8): CUT}, times=2)
    (cause,) = found_causes(right, batched((8, 16, 20), ALL, {}, times=2), ends=(2, 4), step=3)
    assert (cause.side, cause.source and cause.source.instead) == ("fit", "for x in data.batch(8):")


# Callbacks


@pytest.mark.parametrize(("wanted", "causes"), [(5, [("None", "callbacks-missing")]), (2, [])])
def test_a_loop_that_trains_on_after_a_callback_has_stopped_fit(wanted: int, causes: Any) -> None:
    ended = replace(RIGHT, steps={})
    assert accused(ended, ended, ends=(1, 2), step=3, epochs=wanted, callbacks=["EarlyStopping"]) == causes
    goes_on = [replace(each, info={**each.info, "line": ("loop.py", 1, "model(x)")}) for each in RIGHT.steps[STEP]]
    other = replace(RIGHT, steps={3: goes_on})
    found = found_causes(ended, other, ends=(1, 2), step=3, epochs=wanted, callbacks=["EarlyStopping"])
    assert [(each.id, each.source) for each in found] == [(id, None) for _, id in causes], "no line of a step does it"
    assert accused(ended, ended, ends=(1, 2), step=3, epochs=wanted) == [], "without a callback"
    innocent: list[dict[str, Any]] = [
        {"callbacks": ["CSVLogger", "LearningRateScheduler"]}, {"initial_epoch": 3, "callbacks": ["Own"]},
    ]  # fmt: skip
    for given in innocent:
        assert accused(ended, ended, ends=(1, 2), step=3, epochs=wanted, **given) == [], "which has not ended it"


def test_a_callback_is_not_accused_of_what_it_cannot_have_done() -> None:
    def named(other: CloseUp, ends: Sequence[int] = (1, 2)) -> list[str]:
        slowed = linear_step(rate=0.05)  # fit's optimizer was made with 0.1
        given: dict[str, Any] = {"rate": 0.1, "callbacks": ["LearningRateScheduler"]}
        return [cause for _, cause in accused(slowed, other, ends=ends, **given)]

    assert named(linear_step(rate=0.1)) == ["callbacks-missing"]
    printing = ["PrintLR", "LearningRateScheduler"]
    (cause,) = found_causes(linear_step(rate=0.05), linear_step(rate=0.1), ends=(1, 2), rate=0.1, callbacks=printing)
    assert has(cause, callbacks=["LearningRateScheduler"]), "others only print it"
    for name, causes in (("EarlyStopping", "optimizer-differs"), ("Warmup", "callbacks-missing")):
        (cause,) = found_causes(
            linear_step(rate=0.05), linear_step(rate=0.1), ends=(1, 2), rate=0.1, callbacks=["TensorBoard", name]
        )
        assert cause.id == causes and has(cause, callbacks=[name]) == (name == "Warmup")
    assert named(linear_step(rate=0.1), ends=(2,)) == ["optimizer-differs"], "still in fit's first epoch"
    line = ("loop.py", 9, "optimizer.learning_rate = rates[epoch]")
    given, slow, fast = sides(RIGHT), linear_step(rate=0.05), linear_step(rate=0.1)
    fit = replace(given.traces[0], fit={**given.traces[0].fit, "callbacks": ["LearningRateScheduler"]})
    adam = {**ADAM, "config": {**ADAM["config"], "learning_rate": 0.1}}
    for set_at, causes in ((None, "callbacks-missing"), (line, "optimizer-differs")):
        second = replace(given.traces[1], optimizers=[{**adam, "rate_set": set_at}])
        first = replace(fit, optimizers=[adam], epochs=[replace(each, steps=1) for each in fit.epochs])
        both = replace(given, traces=(first, second), close_ups=(slow, fast))
        (cause,) = name_causes(locate(slow, fast, [], STEP, NAMES), both)
        assert cause.id == causes, "a loop that sets the rate does so at another time"
    assert named(linear_step(rate=0.1, gradient=0.91234)) == [], "the gradients differ before that"
    same = linear_step(rate=0.05)
    moved = replace(same, after={**same.after, STEP: [value + 1 for value in same.after[STEP]]})
    assert named(moved) == [], "both have the same rate"


# Loss


def test_a_loss_without_the_models_own_losses() -> None:
    assert accused(RIGHT, with_loss(OFF, LOSS - PENALTY)) == [("loss", "regularization-missing")]
    assert accused(RIGHT, with_loss(OFF, LOSS - 0.99 * PENALTY)) == []
    slight = with_loss(RIGHT, LOSS, 1e-6 * LOSS)
    assert accused(slight, with_loss(OFF, LOSS - 1e-6 * LOSS)) == [("loss", "regularization-missing")]
    assert accused(slight, with_loss(OFF, LOSS + 5e-6 * LOSS)) == [], "the loss is larger, not smaller"
    right, other = ({**each.steps, STEP + 1: RIGHT.steps[STEP]} for each in (RIGHT, with_loss(OFF, LOSS - PENALTY)))
    other[STEP + 1] = [each for each in other[STEP + 1] if each.kind == "gradients"]
    again = replace(RIGHT, steps=right), replace(OFF, steps=other)
    assert accused(*again) == [], "a second call of the optimizer may decay the weights"
    assert hints(locate(*again, [], STEP, NAMES), replace(sides(again[1]), close_ups=again))[0].kind == "applied-times"


@pytest.mark.parametrize(
    ("times", "of_weights", "named"), [(2, True, True), (0.1, True, True), (2, False, False), (1.234, True, False)]
)
def test_a_loss_with_a_multiple_of_the_models_own_losses(times: float, of_weights: bool, named: bool) -> None:
    weights = [np.asarray(each) for each in RIGHT.arrays(STEP, "weights")]
    added = [0.01 * (times - 1) * (each if of_weights else np.ones_like(each)) for each in weights]
    pairs = zip(gradients(RIGHT), added, strict=True)
    other = with_gradients(with_loss(RIGHT, LOSS + (times - 1) * PENALTY), *(a + b for a, b in pairs))
    found = found_causes(RIGHT, other)
    assert [each.id for each in found] == ["regularization-scaled"] * named
    assert not named or has(found[0], kind="script-penalty-times", factor=times, penalty=PENALTY)
    with_other_layers = with_loss(other, LOSS + (times - 1) * PENALTY, times * PENALTY)
    assert "regularization-scaled" not in [each.id for each in found_causes(RIGHT, with_other_layers)]


def test_a_loss_with_the_models_own_losses_once_per_replica() -> None:
    often = with_loss(OFF, LOSS + PENALTY)
    assert accused(RIGHT, often, replicas=2) == [("loss", "regularization-not-divided-by-replicas")]
    assert accused(RIGHT, often, replicas=3) == accused(RIGHT, often) == []


@pytest.mark.parametrize(
    ("replicas", "factor", "cause"),
    [
        (2, 2.0, "loss-not-divided-by-replicas"),
        (2, 0.5, "loss-divided-twice"),
        (1, 8.0, "loss-summed"),
        (3, 3.0, "loss-not-divided-by-replicas"),
        (3, 1 / 3, "loss-divided-twice"),
        (3, 2.0, None),
        (3, 0.5, None),
        (1, 2.0, None),
        (2, 2.001, None),
        (1, 7.99, None),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_loss_times_a_known_factor(replicas: int, factor: float, cause: str | None, whole: bool) -> None:
    """Of the examples' losses alone, or of the model's own ones as well."""
    loss = factor * LOSS if whole else factor * (LOSS - PENALTY) + PENALTY
    found = accused(RIGHT, with_loss(OFF, loss), replicas=replicas)
    assert found == ([] if cause is None else [("loss", cause)])


def test_of_two_stages_the_optimizers_of_the_step_are_compared() -> None:
    def trained(trace: Trace, rate: float) -> Trace:
        stages = [{"class": name, "config": {"learning_rate": each}} for name, each in (("Adam", 0.1), ("SGD", rate))]
        return replace(trace, optimizers=stages, parts=[(0, 0), (STEP - 1, 0)])

    other = linear_step(rate=0.1)
    given = sides(other)
    traces = tuple(trained(trace, rate) for trace, rate in zip(given.traces, (0.01, 0.1), strict=True))
    both = replace(given, traces=traces, close_ups=(linear_step(rate=0.01), other))
    (found,) = name_causes(locate(*both.close_ups, [], STEP, NAMES), both)
    assert has(found, kind="script-settings", optimizer="SGD", settings={"learning_rate": [0.1, 0.01]})


def test_a_short_batch_divided_by_the_size_of_a_full_one() -> None:
    short, off = linear_step(rows=slice(0, 5)), linear_step(rows=slice(0, 5), gradient=0.9)
    data = float(short.arrays(STEP, "loss")[0]) - PENALTY
    assert accused(short, with_loss(off, data * 5 / 8 + PENALTY)) == [("loss", "loss-constant-denominator")]
    assert accused(short, with_loss(off, data * 5 / 9 + PENALTY)) == []
    wrong = with_loss(short, data * 5 / 8 + PENALTY)
    (found,) = found_causes(wrong, off, trained_by="loop")
    assert (found.id, found.side) == ("loss-constant-denominator", "fit"), "of two loops, the first may be wrong"
    assert found_causes(wrong, off) == []
    for later, named in ((1.0, True), (0.7, False)):  # by the number of classes, say, that was the size by chance
        full = of_zeros(rows=slice(0, 8))
        data = float(full.arrays(STEP, "loss")[0]) - PENALTY
        short, off = (of_zeros(rows=slice(0, 5), gradient=each) for each in (1.0, 0.9))
        wrong = with_loss(off, (float(short.arrays(STEP, "loss")[0]) - PENALTY) * 5 / 8 + PENALTY)
        following = full, with_loss(full, later * data + PENALTY)
        both = (
            replace(each, steps={**each.steps, STEP + 1: next_one.steps[STEP]})
            for each, next_one in zip((short, wrong), following, strict=True)
        )
        assert [cause for _, cause in accused(*both, ends=(3,))] == ["loss-constant-denominator"] * named
    assert accused(RIGHT, with_loss(OFF, (LOSS - PENALTY) * 5 / 8 + PENALTY)) == [], "this batch is full"


@pytest.mark.parametrize(("loss", "named"), [((3 * 1.0 + 2 * 3.0) / 8, True), (5 / 8 * (1.0 + 3.0) / 2, False)])
def test_of_a_short_batch_that_is_split_unevenly_each_example_counts_as_on_its_replica(
    loss: float, named: bool
) -> None:
    """Three examples with the mean loss 1 on one replica, two with 3 on the other; eight would be a full batch."""

    def of_replicas(event: Event) -> list[Event]:
        shares = [[np.float64((mean + PENALTY) / 2), np.float64(PENALTY)] for mean in (1.0, 3.0)]
        return [replace(event, replica=number, arrays=share) for number, share in enumerate(shares)]

    right = changed(linear_step(rows=slice(0, 5)), "loss", of_replicas)
    right = replace(right, steps={**right.steps, STEP + 1: linear_step().steps[STEP]})
    other = with_loss(linear_step(rows=slice(0, 5), gradient=0.9), loss + PENALTY)
    assert accused(right, other, replicas=2) == [("loss", "loss-constant-denominator")] * named


def test_a_factor_with_two_names_has_the_more_usual_one() -> None:
    half, off = linear_step(rows=slice(0, 4)), linear_step(rows=slice(0, 4), gradient=0.9)
    data = float(half.arrays(STEP, "loss")[0]) - PENALTY
    found = accused(half, with_loss(off, data / 2 + PENALTY), replicas=2)
    assert found == [("loss", "loss-constant-denominator")], "full batches, before it, were not halved"


def test_a_loss_that_two_mistakes_explain_alone_has_no_name() -> None:
    right = with_loss(RIGHT, 3.0, 1.0)
    assert accused(right, with_loss(OFF, 2.0)) == [("loss", "regularization-missing")]
    assert accused(right, with_loss(OFF, 2.0), replicas=2) == [], "or the loss of the examples is halved"


def with_targets(
    close_up: CloseUp, kind: str, true: Any, predicted: Any, weight: Any = None, loss: float | None = None, **given: Any
) -> CloseUp:
    """A close-up whose loss function was called with these labels and predictions."""
    info = {"loss": "", "configuration": {"name": kind, **given}, "true": 1, "predicted": 1, "weights": 0}
    arrays = [np.asarray(true), np.asarray(predicted)]
    if weight is not None:
        info, arrays = {**info, "weights": 1}, [*arrays, np.asarray(weight)]
    close_up = changed(close_up, "targets", lambda event: replace(event, info=info, arrays=arrays))
    return close_up if loss is None else with_loss(close_up, loss + PENALTY)


TRUE = np.arange(8)[:, None] % 2
LOGITS = np.linspace(0.05, 0.95, 8)[:, None]


def test_probabilities_taken_for_logits() -> None:
    as_logits = float(np.mean(np.log1p(np.exp(LOGITS)) - TRUE * LOGITS))
    as_probabilities = float(-np.mean(TRUE * np.log(LOGITS) + (1 - TRUE) * np.log(1 - LOGITS)))
    for flag, loss, other in ((True, as_logits, as_probabilities), (False, as_probabilities, as_logits)):
        right = with_targets(RIGHT, "binary_crossentropy", TRUE, LOGITS, loss=loss, from_logits=flag)
        assert f"losses.BinaryCrossentropy(from_logits={flag})" in remedies(
            "logits-mismatch", right, with_loss(OFF, 9.0)
        )
        assert accused(right, with_loss(OFF, other + PENALTY)) == [("loss", "logits-mismatch")]
        assert accused(right, with_loss(OFF, 1.001 * other + PENALTY)) == []


def test_logits_that_a_softmax_makes_probabilities_of_before_a_loss_that_takes_logits() -> None:
    """The other side's own loss function was not seen, as one of ``tf.nn``."""
    logits = np.linspace(-1, 2, 8)[:, None]
    sigmoid, softmax = 1 / (1 + np.exp(-logits)), np.exp(both := np.hstack([logits, -logits]))
    softmax /= softmax.sum(-1, keepdims=True)
    binary = [float(np.mean(np.log1p(np.exp(each)) - TRUE * each)) for each in (logits, sigmoid)]
    one_hot = TRUE == [0, 1]
    classes = [
        -float(np.mean((each - np.log(np.exp(each).sum(-1, keepdims=True)))[one_hot])) for each in (both, softmax)
    ]
    for kind, function, true, predicted, (once, twice) in (
        ("binary_crossentropy", "sigmoid", TRUE, logits, binary),
        ("categorical_crossentropy", "softmax", one_hot, both, classes),
        ("sparse_categorical_crossentropy", "softmax", one_hot.argmax(-1), both, classes),
    ):
        right = with_targets(RIGHT, kind, true, predicted, loss=once, from_logits=True)
        (cause,) = found_causes(right, with_loss(OFF, twice + PENALTY))
        assert cause.id == "logits-mismatch" and has(cause, function=function) and f"without {function}" in cause.remedy
        assert accused(right, with_loss(OFF, 1.001 * twice + PENALTY)) == []


@pytest.mark.parametrize("kind", ["binary_crossentropy", "categorical_crossentropy"])
def test_predictions_that_are_no_probabilities_accuse_the_side_that_takes_them_for_such(kind: str) -> None:
    true = TRUE if kind.startswith("binary") else TRUE == [0, 1]
    logits = np.linspace(-1, 2, 8 * true.shape[1]).reshape(8, -1)
    targets = Targets(kind, true, logits)
    losses = {flag: float(value_of(replace(targets, from_logits=flag)) or 0) for flag in (True, False)}
    right = with_targets(RIGHT, kind, true, logits, loss=losses[False])
    (cause,) = found_causes(right, with_loss(OFF, losses[True] + PENALTY))
    assert (cause.id, cause.side) == ("logits-mismatch", "fit")
    assert cause.remedy.startswith("model.compile") and "from_logits=True" in cause.remedy
    assert has(cause, from_logits=True, side="loop", logits=True)
    both = replace(sides(OFF), close_ups=(right, OFF), foreseen=True)
    wanted = CATALOGUE["logits-mismatch"].recorded["loss"](both, Located(STEP, "loss"))
    assert "other-logits" not in [each.changes["loss"] for each in wanted], "its model has another last layer"


def test_the_loss_of_other_targets_is_computed_once_however_many_mistakes_are_tried_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed = []
    monkeypatch.setattr(recorded, "value_of", lambda targets: computed.append(targets) or value_of(targets))
    right = with_targets(RIGHT, "binary_crossentropy", TRUE, LOGITS, np.linspace(0.5, 2, 8), loss=0.5)
    value = float(value_of(targets_of(right, STEP)) or 0)
    assert accused(with_loss(right, value + PENALTY), with_loss(OFF, 1.2345), replicas=2) == []
    assert 5 < len(computed) < 25, "each once, with the right one beside it"


def test_sample_weights_left_out() -> None:
    errors, weight = np.square(TRUE - LOGITS)[:, 0], np.linspace(0.5, 2, 8)
    right = with_targets(RIGHT, "mean_squared_error", TRUE, LOGITS, weight, float(np.mean(errors * weight)))
    plain = with_targets(RIGHT, "mean_squared_error", TRUE, LOGITS, None, float(np.mean(errors * weight)))
    other = with_loss(OFF, float(np.mean(errors)) + PENALTY)
    assert accused(right, other) == [("loss", "sample-weights-dropped")]
    assert accused(plain, other) == [], "fit has no weights either"
    mean = with_targets(RIGHT, "mean_squared_error", TRUE, LOGITS, None, float(np.mean(errors)))
    weighted = with_targets(OFF, "mean_squared_error", TRUE, LOGITS, weight, float(np.mean(errors * weight)))
    (of_fit,) = found_causes(mean, weighted)
    assert (of_fit.id, of_fit.side) == ("sample-weights-dropped", "fit") and "class_weight" in of_fit.remedy
    parts = changed(other, "inputs", halves)
    assert accused(right, parts) == [], "the gradient of each part may be weighed"
    for given, text in ((True, "tf.gather(class_weights, "), (False, "x, y, sample_weight = batch")):
        assert text in found_causes(right, other, class_weight=given)[0].remedy
    foreseen = replace(sides(parts), close_ups=(parts, parts), foreseen=True)
    assert not list(CATALOGUE["sample-weights-dropped"].recorded["loss"](foreseen, Located(STEP, "loss")))


def test_weighted_losses_that_are_divided_by_the_sum_of_the_weights_are_told_so() -> None:
    errors, weight = np.square(TRUE - LOGITS)[:, 0], np.linspace(0.5, 2, 8)
    mean, weighted = float(np.mean(errors * weight)), float(np.sum(errors * weight) / np.sum(weight))

    def kinds(right: float, other: float) -> list[tuple[str, str]]:
        close_ups = [
            with_targets(each, "mean_squared_error", TRUE, LOGITS, weight, loss)
            for each, loss in ((RIGHT, right), (OFF, other))
        ]
        both = replace(sides(close_ups[1]), close_ups=(close_ups[0], close_ups[1]))
        seen = hints(locate(*both.close_ups, [], STEP, NAMES), both)
        return [(each.kind, each.quantities["side"]) for each in seen if each.kind == "divided-by-weights"]

    assert kinds(mean, weighted) == [("divided-by-weights", "loop")]
    assert kinds(weighted, mean) == [("divided-by-weights", "fit")]
    assert kinds(mean, 1.01 * weighted) == []


@pytest.mark.parametrize(
    ("gaps", "told"), [((0.0, 0.1), True), ((1e-3, 0.1), False), ((0.0, 0.0), False), ((0.1,), False)]
)
def test_a_model_that_is_called_with_other_weights_is_told(gaps: Sequence[float], told: bool) -> None:
    def calling(close_up: CloseUp, *off: float) -> CloseUp:
        arrays = [close_up.after[STEP - 1], *([np.full(8, 3.0)] for _ in off[1:])]
        weights = [
            Event("weights", 0, {"model": name}, [each * np.float32(1 + gap) for each in of])
            for name, of, gap in zip(("student", "teacher"), arrays, off, strict=False)
        ]
        others = [event for event in close_up.steps[STEP] if event.kind != "weights"]
        return replace(close_up, steps={**close_up.steps, STEP: [*others, *weights]})

    right, other = calling(RIGHT, *(0.0 for _ in gaps)), calling(linear_step(offset=0.01), *gaps)
    both = replace(sides(other), close_ups=(right, other))
    found = [each for each in hints(Located(STEP, "predictions"), both) if each.kind == "model-begins-apart"]
    assert [each.quantities["model"] for each in found] == ["teacher"] * told


def test_labels_broadcast_against_predictions() -> None:
    right = with_targets(RIGHT, "mean_squared_error", TRUE, LOGITS, None, float(np.mean(np.square(TRUE - LOGITS))))
    pairs = float(np.mean(np.square(TRUE.ravel() - LOGITS)))
    assert accused(right, with_targets(OFF, "mean_squared_error", TRUE.ravel(), LOGITS, None, pairs)) == [
        ("loss", "label-shape-broadcast")
    ]
    assert accused(right, with_targets(OFF, "mean_squared_error", TRUE, LOGITS, None, 1.01 * pairs)) == []


@pytest.mark.parametrize(("then", "causes"), [(1.25, [("loss", "loss-scaled")]), (1.0, [])])
def test_a_loss_and_gradients_times_any_factor_in_the_next_step_too(then: float, causes: Any) -> None:
    def labelled(close_up: CloseUp) -> CloseUp:
        return with_targets(close_up, "mean_squared_error", TRUE, LOGITS, None, 1.0)

    def next_step(close_up: CloseUp, factor: float) -> CloseUp:
        events = labelled(close_up).steps[STEP]
        loss = factor * (float(np.mean(np.square(TRUE - LOGITS))) + PENALTY)
        events = [replace(each, arrays=[np.float64(loss), *each.arrays[1:]]) if each.kind == "loss" else each
                  for each in events]  # fmt: skip
        return replace(close_up, steps={**close_up.steps, STEP + 1: events})

    right = next_step(RIGHT, 1.0)
    scaled = with_gradients(with_loss(RIGHT, 1.25 * LOSS), *(1.25 * each for each in gradients(RIGHT)))
    assert accused(right, next_step(scaled, then)) == causes
    later = next_step(scaled, 1.26).steps[STEP + 1]
    norm = replace(next_step(scaled, then), steps={**next_step(scaled, then).steps, STEP + 2: later})
    with_later = replace(right, steps={**right.steps, STEP + 2: right.steps[STEP + 1]})
    assert accused(with_later, norm) == [], "another factor in a later batch, such as the sum of its weights"
    fewer = [replace(e, arrays=[e.arrays[0][:3]]) if e.kind == "predictions" else e for e in later]
    short = replace(norm, steps={**norm.steps, STEP + 2: fewer})
    assert accused(with_later, short) == causes, "what divides by a constant has another factor in a short batch"
    other = with_gradients(with_loss(RIGHT, 1.25 * LOSS), *(1.2 * each for each in gradients(RIGHT)))
    assert accused(right, next_step(other, then)) == [], "the gradients have another factor"


# Gradients


def test_gradients_of_the_first_replica_alone() -> None:
    def by_replica(first: Sequence[Any], second: Sequence[Any]) -> CloseUp:
        def split(event: Event) -> list[Event]:
            parts = enumerate((first, second))
            return [replace(event, replica=i, arrays=[event.arrays[0], *part]) for i, part in parts]

        return changed(RIGHT, "gradients", split)

    whole = gradients(RIGHT)
    first, second = ([part * each for each in whole] for part in (np.float64([0.3]), np.float64([0.7])))
    zeros = [0 * each for each in whole]
    right = by_replica(first, second)
    assert accused(right, by_replica(first, zeros), replicas=2) == [("gradients", "gradients-not-reduced")]
    assert accused(right, by_replica(second, zeros), replicas=2) == [], "not the first"


def test_clipped_gradients() -> None:
    kernel, bias = gradients(RIGHT)
    limit = float(np.median(np.abs(kernel)))
    by_value = with_gradients(RIGHT, np.clip(kernel, -limit, limit), np.clip(bias, -limit, limit))
    assert accused(RIGHT, by_value) == [("gradients", "clipping-differs")]
    norm = float(np.sqrt(np.sum(np.square(kernel)) + np.sum(np.square(bias))))
    assert 1 < norm < 20
    for length, causes in ((0.5, [("gradients", "clipping-differs")]), (0.51234, []), (20, [])):
        shorter = with_gradients(RIGHT, kernel * length / norm, bias * length / norm)
        assert accused(RIGHT, shorter) == accused(shorter, RIGHT) == causes, length


def test_gradients_that_no_limit_explains_are_not_clipped() -> None:
    kernel, bias = gradients(RIGHT)
    for factor in (1 + 3e-5, 1 - 3e-5):
        assert accused(RIGHT, with_gradients(RIGHT, factor * kernel, factor * bias)) == [], "no value is cut off"
    for length, causes in ((0.5, [("gradients", "clipping-differs")]), (0.4, [])):
        parts = (each * limit / np.linalg.norm(each) for each, limit in ((kernel, 0.5), (bias, length)))
        assert accused(RIGHT, with_gradients(RIGHT, *parts)) == causes, "one limit for both variables"


@pytest.mark.parametrize(("factor", "half", "causes"), [
    (2.0**15, True, [("gradients", "loss-scale-missing")]), (2.0**15, False, []),
    (1000.0, True, [("gradients", "loss-scaled")]), (4.0, True, [("gradients", "loss-scaled")]),
    (128.0, True, [("gradients", "loss-scaled")]),
])  # fmt: skip
def test_gradients_that_nobody_divides_by_the_loss_scale(factor: float, half: bool, causes: Any) -> None:
    right, other = linear_step(half=half), linear_step(half=half, gradient=factor)
    assert accused(right, other) == causes, "in Keras 2, what is scaled is not seen"
    right = replace(right, steps={**right.steps, STEP: [*right.steps[STEP], Event("scaled", 0, {"skipped": 0}, [])]})
    assert ("gradients", "loss-scale-missing") not in accused(right, other), "it is fit that does not scale its loss"
    right = replace(right, steps={**right.steps, STEP: [*right.steps[STEP], Event("scaled-loss", 0, {}, [])]})
    assert accused(right, other) == causes


@pytest.mark.parametrize(("begun", "skipped", "named"), [(None, 8, True), (128.0, 0, True), (None, 0, False)])
def test_the_loss_scale_is_that_of_the_optimizer(begun: float | None, skipped: int, named: bool) -> None:
    """A loss that is divided by the size of a batch once too often is no loss that is not scaled."""
    right, other = linear_step(half=True), linear_step(half=True, factor=1 / 128, with_penalty=False)
    right = replace(right, steps={**right.steps, 1: [Event("scaled", 0, {"skipped": skipped}, [])]})
    given = sides(other)
    scaling = {**ADAM, "config": {**ADAM["config"], "initial_scale": begun}}
    both = replace(given, traces=(given.traces[0], replace(given.traces[1], optimizers=[scaling])))
    both = replace(both, close_ups=(right, other))
    assert bool(list(CATALOGUE["loss-scale-missing"].recorded["loss"](both, Located(STEP, "loss")))) == named


# Update and state


def test_a_schedule_that_only_fit_has() -> None:
    schedule = {"class_name": "ExponentialDecay", "config": {}}
    assert accused(RIGHT, linear_step(rate=0.2), rate=schedule) == [("update", "learning-rate-schedule-missing")]
    assert accused(RIGHT, linear_step(rate=0.2)) == [("update", "optimizer-differs")]
    own = linear_step(rate=0.2)
    other = replace(own, steps={**own.steps, STEP + 1: linear_step(rate=0.15).steps[STEP]})
    assert accused(RIGHT, other, rate=schedule) == [("update", "optimizer-differs")], "it sets its rates itself"


def test_statistics_that_change_between_steps_are_those_of_a_validation_in_training_mode() -> None:
    moving, moved = ["bn/moving_mean", "bn/gamma"], linear_step(moved=0.01)
    moved = changed(moved, "gradients", lambda e: replace(e, info={**e.info, "line": ("/a/loop.py", 8, "apply()")}))
    (found,) = found_causes(RIGHT, moved, names=moving)
    assert (found.id, found.source) == ("validation-changes-state", None), "no line of a step makes this mistake"
    assert "in validation" not in found.remedy, "which a script may not have"
    assert accused(RIGHT, moved) == [], "a kernel is no statistic"
    given = sides(moved)
    variables = tuple(replace(each, name=name) for each, name in zip(given.traces[0].variables, moving, strict=True))
    line = "loop.py", 34, "logits = model(xb, training=True)"
    traces = (
        replace(given.traces[0], variables=variables),
        replace(given.traces[1], variables=variables, untaped=line),
    )
    both = replace(given, traces=traces)
    (found,) = name_causes(locate(RIGHT, moved, [], STEP, moving), both)
    assert str(found.source) == "loop.py:34: logits = model(xb, training=True)"
    assert found.source is not None and found.source.instead == "logits = model(xb, training=False)"


def test_every_variable_that_differs_is_named_and_no_other() -> None:
    kernel, bias = gradients(RIGHT)
    for other, where in (((kernel, 2 * bias), NAMES[1]), ((2 * kernel, bias), NAMES[0]), ((2 * kernel, 2 * bias), "")):
        found = locate(RIGHT, with_gradients(RIGHT, *other), [], STEP, NAMES)
        assert (found.stage, found.where) == ("gradients", where)


def test_another_order_within_a_batch_is_no_other_examples() -> None:
    found = locate(RIGHT, linear_step(rows=slice(7, None, -1)), [], STEP, NAMES)
    assert [stage for stage in ("examples", "inputs") if (values := found.of(stage)) and values.differs] == []
    assert found.stage not in ("examples", "inputs", "predictions")
    mixed = locate(RIGHT, linear_step(rows=slice(8, 0, -1)), [], STEP, NAMES)
    assert mixed.stage == "examples", "one of them is another"


# Causes that numbers prove, and their measurements


def has(cause: Finding, **quantities: Any) -> bool:
    """Whether a cause rests on these quantities, besides others."""
    return cause.measurements.items() >= quantities.items()


def measured(right: CloseUp, other: CloseUp, **given: Any) -> dict[str, Any]:
    """What the only cause rests on, and its id."""
    (cause,) = found_causes(right, other, **given)
    return {"id": cause.id, **cause.measurements}


def configured(
    right: CloseUp, other: CloseUp, *optimizers: dict[str, Any], located: Located | None = None
) -> list[Finding]:
    """The causes of two scripts whose optimizers have these options."""
    given = sides(other)
    traces = [
        replace(trace, optimizers=[{**ADAM, "config": {**ADAM["config"], **options}}])
        for trace, options in zip(given.traces, optimizers, strict=True)
    ]
    both = replace(given, traces=tuple(traces), close_ups=(right, other))
    return name_causes(located or locate(right, other, [], STEP, NAMES), both)


def test_the_line_shown_of_another_optimizer_is_the_one_that_made_it() -> None:
    given = sides(RIGHT)
    optimizers = [{**ADAM, "class": name, "made": ("loop.py", 4, f"{name}()")} for name in ("Adam", "SGD")]
    traces = [replace(t, optimizers=[each]) for t, each in zip(given.traces, optimizers, strict=True)]
    moved = linear_step(rate=0.2)
    both = replace(given, traces=tuple(traces), close_ups=(RIGHT, moved))
    (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), both)
    assert (cause.id, cause.side, str(cause.source)) == ("optimizer-differs", "loop", "loop.py:4: SGD()")
    # With several optimizers, it is not known which of them has the other settings.
    second = {**optimizers[1], "made": ("loop.py", 5, "SGD()")}
    several = replace(both, traces=(traces[0], replace(traces[1], optimizers=[optimizers[1], second])))
    (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), several)
    assert cause.id == "optimizer-differs" and cause.source is None


def test_the_line_that_made_an_optimizer_is_not_shown_for_a_rate_that_is_set_later() -> None:
    given, moved = sides(RIGHT), linear_step(rate=0.2)
    adam = {**ADAM, "config": {**ADAM["config"], "learning_rate": 0.1}, "made": ("loop.py", 4, "Adam(0.1)")}
    traces = [replace(trace, optimizers=[adam]) for trace in given.traces]
    both = replace(given, traces=(traces[0], traces[1]), close_ups=(RIGHT, moved))
    (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), both)
    assert (cause.id, cause.measurements["begun"], cause.source) == ("optimizer-differs", 0.1, None)
    second = replace(traces[1], optimizers=[{**adam, "rate_set": ("loop.py", 9, "optimizer.learning_rate = 0.2")}])
    (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), replace(both, traces=(traces[0], second)))
    assert str(cause.source) == "loop.py:9: optimizer.learning_rate = 0.2"


def test_a_rate_that_is_set_too_unregularizedis_no_schedule_that_is_missing() -> None:
    schedule, line = {"class_name": "ExponentialDecay", "config": {}}, ("loop.py", 9, "optimizer.learning_rate = 0.1")
    given, moved = sides(RIGHT), linear_step(rate=0.2)
    for set_at, cause in ((None, "learning-rate-schedule-missing"), (line, "optimizer-differs")):
        adams = [
            {**ADAM, "config": {**ADAM["config"], "learning_rate": rate}, "rate_set": place}
            for rate, place in ((schedule, None), (0.2, set_at))
        ]
        first, second = (replace(trace, optimizers=[adam]) for trace, adam in zip(given.traces, adams, strict=True))
        both = replace(given, traces=(first, second), close_ups=(RIGHT, moved))
        (found,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), both)
        assert found.id == cause and (set_at is None or str(found.source).startswith("loop.py:9"))


def test_layers_without_the_regularizers_of_the_others_are_to_get_these() -> None:
    other = with_loss(OFF, LOSS - PENALTY)
    l2 = {"class_name": "L2", "config": {"l2": 0.001}}
    layers = [[{"name": "dense", "class": "Dense", "config": {"kernel_regularizer": each}}] for each in (l2, None)]
    for second, remedy in (
        (layers[1], "layers.Dense(..., kernel_regularizer=tf.keras.regularizers.L2(l2=0.001))"),
        (layers[0], "loss += tf.add_n(model.losses)"),
        ([], "loss += tf.add_n(model.losses)"),
    ):
        given = sides(other)
        traces = (replace(given.traces[0], layers=layers[0]), replace(given.traces[1], layers=second))
        both = replace(given, traces=traces, close_ups=(RIGHT, other))
        (found,) = name_causes(locate(RIGHT, other, [], STEP, NAMES), both)
        assert found.id == "regularization-missing" and found.remedy.startswith(remedy)

    def set_late(event: Event) -> Event:
        """A loss whose model has no losses, although its layers have regularizers: they were built without."""
        return replace(event, info={**event.info, "penalties": 0}, arrays=event.arrays[:1])

    late = [set_late(each) if each.kind == "loss" else each for each in other.steps[STEP]]
    unregularized = replace(other, steps={**other.steps, STEP: late})
    traces = (replace(given.traces[0], layers=layers[0]), replace(given.traces[1], layers=layers[0]))
    (found,) = name_causes(
        locate(RIGHT, unregularized, [], STEP, NAMES), replace(given, traces=traces, close_ups=(RIGHT, unregularized))
    )
    assert "# when the layer is made" in found.remedy


def test_beside_another_setting_a_rate_that_is_set_later_is_no_argument_of_the_optimizer() -> None:
    given, moved = sides(RIGHT), linear_step(rate=0.2)
    moved = replace(moved, after={**moved.after, STEP: tuple(3 * each for each in moved.after[STEP])})
    traces = [
        replace(trace, optimizers=[{**ADAM, "config": {**ADAM["config"], "learning_rate": 0.1, "beta_1": beta},
                                    "made": ("loop.py", 4, "Adam(0.1)")}])
        for trace, beta in zip(given.traces, (0.9, 0.8), strict=True)
    ]  # fmt: skip
    both = replace(given, traces=(traces[0], traces[1]), close_ups=(RIGHT, moved))
    (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), both)
    assert str(cause.source) == "loop.py:4: Adam(0.1)"
    made, later = cause.remedy.split("\n")
    assert made == "optimizer = tf.keras.optimizers.Adam(..., beta_1=0.9)" and "learning_rate" in later


def test_the_options_of_the_other_optimizer_are_written_out_where_they_are_known() -> None:
    for settings, options in (
        ({"learning_rate": [0.2, 0.1], "nesterov": [False, True]}, "learning_rate=0.1, nesterov=True"),
        ({"weight_decay": [0.1, None]}, "weight_decay=None"),
        ({"weight_decay": [0.1, None], "gradient_accumulation_steps": [None, 4]}, "weight_decay=None"),
        ({"learning_rate.config.decay_rate": [0.5, 0.9]}, ""),
    ):
        written = with_options(ADAM, settings)
        assert written == (f"optimizer = tf.keras.optimizers.Adam(..., {options})" if options else "")
    own = {**ADAM, "class": "CoreAdam", "own": True}
    assert with_options(own, {"epsilon": [1e-3, 1e-7]}) == "optimizer = CoreAdam(..., epsilon=1e-07)"
    excluded = {"exclude_from_weight_decay": [[], ["bias"]]}
    called = "optimizer.exclude_from_weight_decay(var_names=['bias'])"
    assert with_options(ADAM, excluded) == f"optimizer = tf.keras.optimizers.Adam(...)\n{called}"
    nothing = {"exclude_from_weight_decay": [["bias"], []]}
    assert with_options(ADAM, nothing) == "", "a call is to be left out"
    averaging = {**ADAM, "config": {**ADAM["config"], "use_ema": True}}
    assert with_options(averaging, {"epsilon": [1e-3, 1e-7]}) == "", "which are to be taken over as well"


def test_the_rate_that_a_schedule_has_in_one_step_is_not_written_as_a_constant() -> None:
    def trace(trace: Any, every: int | None = None, **options: Any) -> Any:
        schedule = {"class_name": "ExponentialDecay", "config": options}
        config = {**ADAM["config"], "gradient_accumulation_steps": every, "learning_rate": schedule}
        return replace(trace, optimizers=[{**ADAM, "config": config, "begins": schedule}])

    moved = linear_step(rate=0.2)
    for decay, remedy in (
        (0.5, "tf.keras.optimizers.Adam(schedule, ...)"),
        (0.9, "tf.keras.optimizers.Adam(schedule)  # as in fit"),
    ):
        given = sides(moved)
        traces = trace(given.traces[0], decay_rate=0.9), trace(given.traces[1], decay_rate=decay)
        both = replace(given, traces=traces, close_ups=(RIGHT, moved))
        (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), both)
        assert cause.id == "optimizer-differs" and remedy in cause.remedy
        assert ("learning_rate.decay_rate" in cause.measurements["settings"]) == (decay == 0.5)
        assert "set_later" not in cause.measurements, "it is a schedule's on both sides"
    both = replace(both, traces=(trace(given.traces[0], 4, decay_rate=0.9), traces[1]))
    (cause,) = name_causes(locate(RIGHT, moved, [], STEP, NAMES), both)
    assert "optimizer.learning_rate = schedule(4 * update + 3)" in cause.remedy


def by_hand(moved: CloseUp, *optimizers: str) -> Variant:
    """What is seen of two scripts, fit's first, some of which update their weights without an optimizer."""
    given = sides(moved)
    traces = [
        replace(t, optimizers=[{**ADAM, "class": name}]) for t, name in zip(given.traces, optimizers, strict=True)
    ]
    both = replace(given, traces=tuple(traces), close_ups=(RIGHT, moved))
    located = locate(RIGHT, moved, [], STEP, NAMES)
    (cause,) = name_causes(located, both)
    assert (cause.id, cause.side) == ("optimizer-differs", "loop")
    found = kind_of_setting(both, located)
    assert found is not None and found[1].evidence.quantities["optimizers"] == cause.measurements["optimizers"]
    return found[1]


def moved_by(*times: float) -> CloseUp:
    """A loop that changes each variable by a multiple of the right change."""
    old, new = RIGHT.after[STEP - 1], RIGHT.after[STEP]
    after = [a + np.float32(factor) * (b - a) for a, b, factor in zip(old, new, times, strict=True)]
    return replace(RIGHT, after={**RIGHT.after, STEP: after})


@pytest.mark.parametrize(
    ("optimizers", "remedy"),
    [
        (("SGD", BY_HAND), "variable.assign_sub(0.1 * gradient)"),
        ((BY_HAND, BY_HAND), "variable.assign_sub(0.1 * gradient)"),
        ((BY_HAND, "SGD"), "optimizer = tf.keras.optimizers.SGD(0.1)"),
    ],
)
def test_an_update_by_hand_is_told_by_what_it_subtracts(optimizers: tuple[str, str], remedy: str) -> None:
    seen = by_hand(linear_step(rate=0.2), *optimizers)
    own = seen.evidence.quantities
    assert (np.round(own["rates"], 6).tolist(), seen.remedy) == ([0.2, 0.1], remedy)
    assert own["optimizers"] == [name.replace(BY_HAND, "") for name in reversed(optimizers)]


def test_an_update_by_hand_that_is_no_multiple_of_the_gradients_has_no_rate_and_so_no_cause() -> None:
    rates = by_hand(moved_by(2, 2 + 1e-5), "Adam", BY_HAND).evidence.quantities["rates"]
    assert np.allclose(rates, [0.2, 0.1])
    with pytest.raises(ValueError, match="not enough values"):
        by_hand(moved_by(2, 2.1), "Adam", BY_HAND)


@pytest.mark.parametrize(("momentum", "step", "named"), [(0.0, 2, True), (0.9, 2, False), (0.9, 1, True)])
def test_a_multiple_of_the_gradients_is_chance_where_an_optimizer_has_momentum(
    momentum: float, step: int, named: bool
) -> None:
    def at(close_up: CloseUp) -> CloseUp:
        after = {step - 1: close_up.after[STEP - 1], step: close_up.after[STEP]}
        return replace(close_up, steps={step: close_up.steps[STEP]}, after=after)

    given = sides(linear_step(rate=0.2))
    settings = {"learning_rate": 0.1, "momentum": momentum}
    traces = [
        replace(trace, optimizers=[{"class": name, "config": config}])
        for trace, name, config in zip(given.traces, ("SGD", BY_HAND), (settings, {}), strict=True)
    ]
    both = replace(given, traces=tuple(traces), close_ups=(at(RIGHT), at(linear_step(rate=0.2))), step=step)
    found = kind_of_setting(both, locate(*both.close_ups, [], step, NAMES))
    assert bool(found) == named
    assert found is None or ("velocity" in found[1].remedy) == bool(momentum)


@pytest.mark.parametrize(
    ("step", "rates", "times", "named"),
    [
        (1, (0.1, 0.1), (1.0, 1.2), True),  # what is applied second counts one step more
        (1, (0.1, 0.1), (1.2, 1.2), False),
        (STEP, (0.1, 0.1), (1.0, 1.2), False),  # it would have shown in the first step
        (STEP, (0.1, 0.2), (1.2, 1.2), True),  # of a schedule
    ],
)
def test_an_optimizer_applied_to_parts_of_the_weights_counts_more_steps(
    step: int, rates: Sequence[float], times: Sequence[float], named: bool
) -> None:
    def parts(event: Event) -> list[Event]:
        infos = [{**event.info, "positions": [i]} for i in range(2)]
        return [
            replace(event, info=info, arrays=[np.float64(rate), event.arrays[1 + i]])
            for i, (info, rate) in enumerate(zip(infos, rates, strict=True))
        ]

    def at_step(close_up: CloseUp) -> CloseUp:
        steps, after = ({number - STEP + step: each for number, each in of.items()} for of in (
            close_up.steps, close_up.after))  # fmt: skip
        return replace(close_up, steps=steps, after=after)

    right, other = at_step(RIGHT), at_step(changed(moved_by(*times), "gradients", parts))
    given = sides(other)
    for settings in ({}, {"beta_1": 0.8}):
        adams = [{**ADAM, "config": {**ADAM["config"], **own}} for own in ({}, settings)]
        traces = [replace(trace, optimizers=[adam]) for trace, adam in zip(given.traces, adams, strict=True)]
        both = replace(given, traces=(traces[0], traces[1]), close_ups=(right, other), step=step)
        found = kind_of_setting(both, locate(right, other, [], step, NAMES))
        in_parts = found is not None and found[1].evidence.kind == "applied-in-parts"
        assert in_parts == (named and not settings)


@pytest.mark.parametrize(
    ("times", "after", "named"),
    [
        ((1.2, 1.2), STEP - 1, True),
        ((1.2, 1.2), STEP, False),  # it is counted after this step
        ((1.2, 1.3), STEP - 1, False),
        ((1.0, 1.0), STEP - 1, False),
    ],
)
def test_a_count_without_data_is_named_where_it_scales_all_updates_alike(
    times: Sequence[float], after: int, named: bool
) -> None:
    given = sides(moved_by(*times))
    traces = [replace(t, optimizers=[ADAM], empty=[after] * i) for i, t in enumerate(given.traces)]
    both = replace(given, traces=tuple(traces), close_ups=(RIGHT, moved_by(*times)))
    found = kind_of_setting(both, locate(*both.close_ups, [], STEP, NAMES))
    assert (found is not None and found[1].evidence.kind == "script-counted-more") == named
    if found is not None and named:
        assert (found[1].evidence.quantities["iterations"], found[1].by_right) == (STEP, False)


def test_any_update_of_a_single_number_is_a_multiple_of_its_gradient() -> None:
    def of_bias(close_up: CloseUp) -> CloseUp:
        def alone(event: Event) -> Event:
            return replace(event, info={**event.info, "positions": [1]}, arrays=[event.arrays[0], event.arrays[2]])

        return changed(close_up, "gradients", alone)

    given = sides(RIGHT)
    traces = [
        replace(trace, optimizers=[{**ADAM, "class": name}])
        for trace, name in zip(given.traces, ("SGD", BY_HAND), strict=True)
    ]
    for step, named in ((STEP, False), (1, True)):
        close_ups = [
            CloseUp({step: each.steps[STEP]}, {step - 1: each.after[STEP - 1], step: each.after[STEP]})
            for each in (of_bias(RIGHT), of_bias(moved_by(1, 2)))
        ]
        both = replace(given, traces=tuple(traces), close_ups=tuple(close_ups), step=step)
        assert bool(kind_of_setting(both, locate(*close_ups, [], step, NAMES))) == named


@pytest.mark.parametrize("by_hand", [(False, True), (True, False), (True, True), (False, False)])
def test_the_losses_of_a_loop_by_hand_are_brought_to_the_scale_of_the_other(by_hand: tuple[bool, bool]) -> None:
    def of(factor: float) -> CloseUp:
        return with_first_step(linear_step(factor=factor, with_penalty=False), factor)

    factors = [8.0 if by_hand[0] and not by_hand[1] else 1.0, 8.0 if by_hand[1] else 1.0]
    traces = [SimpleNamespace(by_hand=each) for each in by_hand]
    departure = SimpleNamespace(model=SimpleNamespace(traces=traces), step=STEP)
    first, second = map(of, factors)
    close = CloseUps(departure, (first, second), ("", ""), [first]).in_one_scale()  # type: ignore[arg-type]
    losses = [float(each.arrays(STEP, "loss")[0]) for each in (*close.seen, *close.twins) if each is not None]
    assert np.allclose(losses, losses[0]) and len(losses) == 3


def test_a_loop_by_hand_without_the_momentum_of_fit_is_told_so() -> None:
    given, right = sides(RIGHT), moved_by(1, 1.5)
    for momentum, own, named in ((0.9, RIGHT, True), (0.0, RIGHT, False), (0.9, moved_by(1, 1.2), False)):
        traces = [
            replace(trace, optimizers=[{"class": name, "config": config}])
            for trace, name, config in zip(given.traces, ("SGD", BY_HAND), ({"momentum": momentum}, {}), strict=True)
        ]
        both = replace(given, traces=tuple(traces), close_ups=(right, own))
        causes = name_causes(locate(right, own, [], STEP, NAMES), both)
        assert [(cause.id, cause.measurements["momentum"]) for cause in causes] == [("optimizer-differs", 0.9)] * named
        assert all(f"velocity.assign({momentum:g} * velocity" in cause.remedy for cause in causes)
        nesterov = replace(traces[0], optimizers=[{"class": "SGD", "config": {"momentum": momentum, "nesterov": True}}])
        causes = name_causes(locate(right, own, [], STEP, NAMES), replace(both, traces=(nesterov, traces[1])))
        assert not any("velocity" in cause.remedy for cause in causes), "which moves otherwise"


def test_a_variable_that_a_loop_by_hand_does_not_change_is_not_trained() -> None:
    line = "/a/loop.py", 7, "w.assign_sub(rate * gradient)"  # of another variable
    other = changed(moved_by(1, 0), "gradients", lambda e: replace(e, info={**e.info, "line": line}))
    given = sides(other)
    found = locate(RIGHT, other, [], STEP, NAMES)
    for by, named in ((BY_HAND, ["variables-not-trained"]), ("SGD", [])):
        traces = [replace(t, optimizers=[{**ADAM, "class": c}]) for t, c in zip(given.traces, ("SGD", by), strict=True)]
        causes = name_causes(found, replace(given, traces=tuple(traces), close_ups=(RIGHT, other)))
        assert [cause.id for cause in causes] == named, by
        assert all(has(cause, kind="script-not-updated", variables=["dense/bias"], side="loop") for cause in causes)
        assert all(cause.source is None for cause in causes)


def with_first_step(close_up: CloseUp, factor: float, *, rows: int = 8, of_bias: float = 1.0) -> CloseUp:
    """A close-up whose first step has gradients, as many times the right ones, of so many examples."""
    event = Event("sketch", 0, {"positions": [0, 1]}, [factor * sketch([1.0, 2.0]), factor * of_bias * sketch([3.0])])
    return replace(close_up, steps={**close_up.steps, 1: [Event("inputs", 0, {"model": "m"}, [], range(rows)), event]})


@pytest.mark.parametrize(
    ("step", "own", "factor"),
    [
        (STEP, with_first_step(RIGHT, 8.0), 8),
        (STEP, with_first_step(RIGHT, 8.0, of_bias=1.1), 1),  # no common factor
        (STEP, with_first_step(RIGHT, 8.01), 1),
        (STEP, with_first_step(RIGHT, 7.0), 1),
        (STEP, with_first_step(RIGHT, 1.0), 1),
    ],
)
def test_a_loop_that_divides_a_summed_loss_as_it_updates_has_a_scale(step: int, own: CloseUp, factor: float) -> None:
    assert scale_of(with_first_step(RIGHT, 1.0), own, step) == factor


@pytest.mark.parametrize(("rate", "factor"), [(0.1, 1), (0.0125, 8), (0.05, 8)])
def test_a_summed_loss_whose_update_is_as_large_is_a_mistake(rate: float, factor: float) -> None:
    """Those of a first step: the weights before it are those at its forward pass."""

    def first(close_up: CloseUp, times: float) -> CloseUp:
        sketches = Event("sketch", 0, {"positions": [0, 1]}, [times * sketch(each) for each in gradients(RIGHT)])
        events = [*close_up.steps[STEP], sketches]
        return CloseUp({1: events}, {0: close_up.after[STEP - 1], 1: close_up.after[STEP]})

    assert scale_of(first(RIGHT, 1.0), first(linear_step(factor=8.0, penalty=0, rate=rate), 8.0), 1) == factor


def test_losses_and_gradients_are_brought_to_another_scale() -> None:
    own = linear_step(factor=8.0, with_penalty=False, rate=0.1 / 8)
    found = locate(linear_step(with_penalty=False), own.scaled(1 / 8), [], STEP, NAMES)
    assert (found.stage, found.of("loss").equal, found.of("gradients").equal) == (None, True, True)  # type: ignore[union-attr]
    assert locate(linear_step(with_penalty=False), own, [], STEP, NAMES).stage == "loss"
    seen = by_hand(linear_step(factor=8.0, with_penalty=False, rate=0.2 / 8).scaled(1 / 8), "SGD", BY_HAND)
    assert np.round(seen.evidence.quantities["rates"], 6).tolist() == [0.2, 0.1]
    assert seen.remedy == "variable.assign_sub(0.0125 * gradient)", "of the sum that the loop takes"


def test_clipping_is_measured_on_each_side() -> None:
    kernel, bias = gradients(RIGHT)
    norm = float(np.hypot(np.linalg.norm(kernel), np.linalg.norm(bias)))
    both = with_gradients(RIGHT, kernel * 0.5 / norm, bias * 0.5 / norm)
    (cause,) = configured(RIGHT, both, {"clipnorm": 0.5}, {})
    together = "the norm of all gradients together"
    assert has(
        cause, limited=together, limit=pytest.approx(0.5), side="loop", clipping={}, other_clipping={"clipnorm": 0.5}
    )
    assert cause.remedy.startswith("gradients = [tf.clip_by_norm(each, 0.5) for each in gradients]  # as the other")
    (cause,) = configured(RIGHT, both, {}, {"clipvalue": 0.1})
    assert has(cause, limited=together, clipping={"clipvalue": 0.1}, other_clipping={})
    alone = with_gradients(RIGHT, *(each * 0.5 / np.linalg.norm(each) for each in (kernel, bias)))
    (cause,) = configured(RIGHT, alone, {}, {})
    assert has(cause, limited="the norm of each variable's gradient")
    (cause,) = configured(alone, RIGHT, {}, {})
    assert cause.side == "loop" and has(cause, side="fit", other="loop", limit=pytest.approx(0.5))
    assert "tf.clip_by_norm(each, 0.5)" in remedies("clipping-differs", alone, RIGHT)
    assert configured(RIGHT, alone, {"clipnorm": 0.5}, {}) == [], "fit's optimizer does the same"
    assert configured(RIGHT, both, {"global_clipnorm": 0.5}, {}) == []
    short = clipping_by_hand(with_gradients(RIGHT, *(0.177579 * each for each in (kernel, bias))))
    assert configured(RIGHT, short, {"clipnorm": 0.05}, {}) == [], "no limit is such a number"
    of_rows = changed(short, "gradients", lambda event: replace(event, info={**event.info, "in_rows": [0]}))
    (cause,) = configured(RIGHT, of_rows, {"clipnorm": 0.05}, {})
    assert cause.id == "clipping-differs" and has(cause, limited=together, other_clipping={"clipnorm": 0.05})
    assert cause.remedy.startswith("gradients = [tf.clip_by_norm(each, 0.05)")
    (cause,) = configured(RIGHT, of_rows, {"global_clipnorm": 0.05}, {})
    assert cause.remedy.startswith("optimizer = ...  # with global_clipnorm=0.05"), "the loop does the other already"


def test_a_vector_of_losses_is_summed_by_the_side_that_has_it() -> None:
    losses = np.full(8, LOSS)
    vector = with_loss(linear_step(gradient=8), 0)
    vector = changed(vector, "loss", lambda event: replace(event, arrays=[losses, np.float64(PENALTY)]))
    (cause,) = found_causes(vector, RIGHT)
    assert (cause.id, cause.side) == ("loss-summed", "fit") and has(cause, kind="script-losses-summed", losses=8)
    positions = changed(vector, "loss", lambda e: replace(e, arrays=[np.full((8, 10), LOSS), np.float64(PENALTY)]))
    (cause,) = found_causes(RIGHT, positions)
    assert (cause.id, cause.side) == ("loss-summed", "loop") and has(cause, losses=80, summing="loop")
    of_four = [np.full(4, LOSS), np.float64(PENALTY)]
    micro_batches = changed(vector, "loss", lambda event: [replace(event, arrays=of_four)] * 2)
    (cause,) = found_causes(RIGHT, micro_batches)
    assert (cause.id, cause.side) == ("loss-summed", "loop") and has(cause, kind="script-losses-summed", losses=4)
    assert accused(with_loss(linear_step(gradient=8), 8 * LOSS), RIGHT) == [], "the loss of fit has no more than one"
    assert accused(vector, with_loss(RIGHT, 1.001 * LOSS)) == []


def test_regularizers_left_out_beside_losses_that_the_model_adds() -> None:
    def adding(close_up: CloseUp, loss: float) -> CloseUp:
        own = [np.float64(each) for each in (loss, LOSS - 0.5, 0.375, 0.125)]
        return changed(close_up, "loss", lambda event: replace(event, arrays=own))

    right = adding(RIGHT, LOSS)
    assert accused(right, with_loss(OFF, LOSS - 0.5)) == [("loss", "regularization-missing")]
    assert accused(right, with_loss(OFF, LOSS - 0.4)) == []
    for lacking, losses in ((0.5, 2), (LOSS - 0.5, 1), (0.375, 1), (LOSS - 0.125, 2)):
        found = measured(right, with_loss(OFF, LOSS - lacking))
        assert (found["losses"], found["of"], found["penalty"]) == (losses, 3, pytest.approx(lacking))
        (cause,) = found_causes(right, with_loss(OFF, LOSS - lacking))
        assert "in place of the line" in cause.remedy


def test_a_loss_that_is_not_finite_is_the_cause_where_weights_stay_finite() -> None:
    departure: Any = SimpleNamespace(name="loop", model=SimpleNamespace(epochs=EpochEnds((1, 2))))
    other = with_loss(OFF, np.inf)
    both = replace(sides(other), close_ups=(RIGHT, other))
    ((cause,), _) = _found(departure, locate(RIGHT, other, [], STEP, NAMES), both, {})
    assert (cause.id, cause.side) == ("not-finite", "loop")
    assert has(cause, step=1, epoch=2, stage="loss", value="inf", other="fit", variables=[])
    assert float(cause.measurements["other_value"]) == pytest.approx(LOSS)


def test_the_step_of_a_cause_is_given_in_its_epoch_too() -> None:
    other = with_loss(OFF, LOSS - PENALTY)
    for ends, place in (((2,), None), ((1, 2), [2, 1])):
        found = measured(RIGHT, other, ends=ends)
        assert (found["at_step"], found.get("at_place")) == (2, place)


def test_a_factor_of_the_examples_losses_alone_is_theirs() -> None:
    for own, alone in ((PENALTY, True), (0.0, False)):
        found = measured(RIGHT, with_loss(OFF, 8 * (LOSS - own) + own))
        assert (found["kind"], found["examples"], bool(found.get("alone"))) == ("script-loss-summed", 8, alone)
    first, second = found_causes(RIGHT, with_loss(OFF, 8 * (LOSS - PENALTY)))
    assert has(first, kind="script-no-penalty") and has(second, kind="script-loss-summed", examples=8, alone=True)


def halves(event: Event) -> list[Event]:
    """The examples of a step in two calls of the model."""
    both = zip((0, 4), np.split(event.arrays[0], 2), strict=True)
    return [replace(event, arrays=[half], rows=event.rows[i : i + 4]) for i, half in both]


@pytest.mark.parametrize(("factor", "named"), [(2, True), (4, False)])
def test_gradients_of_micro_batches_that_are_added_up(factor: int, named: bool) -> None:
    micro = changed(RIGHT, "inputs", halves)
    summed = with_gradients(micro, *(factor * each for each in gradients(RIGHT)))
    assert accused(RIGHT, summed) == accused(summed, RIGHT) == [("gradients", "loss-scaled")]
    norm = float(np.hypot.reduce([np.linalg.norm(each) for each in gradients(RIGHT)]))
    of_micro, of_whole = (
        with_gradients(close_up, *(each * length / norm for each in gradients(RIGHT)))
        for close_up, length in ((micro, factor * 0.5), (RIGHT, 0.5))
    )
    cause = "loss-scaled" if named else "clipping-differs"
    assert accused(of_micro, of_whole) == [("gradients", cause)], "a limit is the last thing to be thought of"
    if named:
        twice = with_gradients(micro, *(each / factor for each in gradients(RIGHT)))
        lines = {kind: {"line": ("loop.py", i, kind)} for i, kind in enumerate(("loss", "gradients"), 1)}
        for other, kind in ((summed, "script-micro-batches"), (twice, "script-divided-twice")):
            for called, info in lines.items():
                other = changed(other, called, lambda event, info=info: replace(event, info={**event.info, **info}))
            for pair, side in (((RIGHT, other), "loop"), ((other, RIGHT), "fit")):
                (cause,) = found_causes(*pair)
                assert has(cause, kind=kind, at_step=2, side=side, factor=2)
                assert cause.source and cause.source.line == 2, "where they are applied"
                assert kind == "script-divided-twice" or cause.remedy.endswith("total in accumulated]  # apply these")
    else:
        (cause,) = found_causes(RIGHT, summed)
        assert has(cause, kind="gradients-have-factor", factor=pytest.approx(factor))


def test_the_sum_of_micro_batches_is_divided_before_it_is_limited() -> None:
    """The limit hides the factor, and is no other one than fit's."""
    norm = float(np.hypot.reduce([np.linalg.norm(each) for each in gradients(RIGHT)]))
    micro, limit = changed(RIGHT, "inputs", halves), 1.5 * norm
    for length, written, name in (
        (1.5, "clipped, _ = tf.clip_by_global_norm(acc, 1.0)", "acc"),
        (2.0, "clipped = [tf.clip_by_norm(each, 9.0) for each in sums]", "sums"),
        (1.5, "clipped = clip(totals)", "accumulated"),
    ):
        clip = Event("clip", 0, {"line": ("loop.py", 3, written)}, [])
        by_hand = with_gradients(micro, *(length * each for each in gradients(RIGHT)))
        by_hand = changed(by_hand, "gradients", lambda event, clip=clip: [clip, event])
        (cause,) = configured(RIGHT, by_hand, {"global_clipnorm": limit}, {})
        assert cause.id == "loss-scaled" and has(cause, kind="script-micro-batches", factor=2)
        assert cause.source and cause.source.line == 3
        assert cause.remedy == f"gradients = [total / 2 for total in {name}]  # before clipping: clip and apply these"
    by_hand = with_gradients(by_hand, *(0.3 * each for each in gradients(RIGHT)))
    at = Located(STEP, "gradients")
    assert configured(RIGHT, by_hand, {"global_clipnorm": 0.3 * norm}, {}, located=at) == [], "both have their limit"


def test_a_layer_that_is_never_made_trainable_predicts_otherwise() -> None:
    def only_bias(event: Event) -> Event:
        return replace(event, info={**event.info, "positions": [1]}, arrays=[event.arrays[0], event.arrays[2]])

    frozen = changed(linear_step(offset=0.01), "gradients", only_bias)
    assert accused(RIGHT, frozen) == [("predictions", "variables-not-trained")]
    assert has(*found_causes(RIGHT, frozen), kind="script-frozen", side="loop", variables=[NAMES[0]])
    assert accused(RIGHT, frozen, names=["head/kernel", "head/bias"]) == [], "the first layer that differs is another"
    equal = [StageValues(stage, 0.0) for stage in ("gradients", "update")]
    given = replace(sides(frozen), close_ups=(RIGHT, frozen))
    for agree, causes in (([], ["variables-not-trained"]), (equal, [])):
        found = Located(STEP, "predictions", "dense", agree)
        assert [each.id for each in name_causes(found, given)] == causes, "all variables are trained alike"
    assert accused(RIGHT, linear_step(offset=0.01)) == []


def test_statistics_that_both_sides_change_between_steps_accuse_no_validation() -> None:
    names = ["bn/moving_mean", "bn/gamma"]
    assert accused(linear_step(moved=0.01), linear_step(moved=0.02), names=names) == []


def test_a_training_flag_that_is_not_given_is_that_of_fit_or_of_the_loop() -> None:
    without = linear_step(offset=0.01, flag="not given")
    for pair, side in (((without, RIGHT), "fit"), ((RIGHT, without), "loop")):
        (cause,) = found_causes(*pair)
        assert (cause.id, cause.side) == ("training-flag-missing", side)
        assert has(cause, training="not given", by_fit=side == "fit")


def test_one_of_several_calls_of_a_model_that_has_no_training_flag_is_cited() -> None:
    def called(close_up: CloseUp, *flags: Any) -> CloseUp:
        """The same step with as many calls, each in a line of its own."""

        def calls(event: Event) -> list[Event]:
            line = ("made.py", 0, "out = model(x)")
            infos = [{"training": flag, "line": (*line[:1], i, *line[2:])} for i, flag in enumerate(flags, 1)]
            return [replace(event, info={**event.info, **info}) for info in infos]

        return changed(changed(close_up, "inputs", calls), "predictions", calls)

    right, other = RIGHT, linear_step(offset=0.01)
    (cause,) = found_causes(called(right, True, True), called(other, True, "not given"))
    assert cause.id == "training-flag-missing" and cause.side == "loop" and has(cause, training="not given", call=2)
    assert cause.source is not None and cause.source.line == 2
    assert not found_causes(called(right, True), called(other, True, "not given")), "which one is more is not known"
    assert not found_causes(called(right, True, False), called(other, True, "not given")), "that may be meant"
    assert not found_causes(called(right, True, "not given"), called(other, True, "not given"))


@pytest.mark.parametrize(
    ("flags", "takes", "side"),
    [
        ((True, False), True, "loop"),
        ((True, False), False, "loop"),
        ((False, True), False, "fit"),
        ((False, True), True, None),  # it is meant: fit could have said otherwise
        ((None, True), False, None),
        ((True, True), False, None),
    ],
)
def test_a_layer_that_is_told_not_to_train_by_a_flag_of_another_name(
    flags: tuple[Any, Any], takes: bool, side: str | None
) -> None:
    def told(close_up: CloseUp, flag: Any) -> CloseUp:
        close_up = changed(close_up, "predictions", lambda e: replace(e, info={**e.info, "takes_training": takes}))
        return changed(close_up, "layer", lambda e: replace(e, info={**e.info, "flagged": True, "training": flag}))

    right, other = (told(linear_step(offset=i, flag="not given"), flag) for i, flag in enumerate(flags))
    found = found_causes(right, other)
    assert [(cause.id, cause.side) for cause in found] == ([("training-flag-missing", side)] if side else [])
    assert all(has(cause, kind="script-layer-flag", layer="dense", by_fit=side == "fit") for cause in found)


def test_options_of_an_optimizer_are_causes_where_they_make_a_difference() -> None:
    def named(other: CloseUp, first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(cause.id, cause.measurements["settings"]) for cause in configured(RIGHT, other, first, second)]

    slower, norm = linear_step(rate=0.05), float(np.hypot.reduce([np.linalg.norm(each) for each in gradients(RIGHT)]))
    rates = {"learning_rate": [0.05, 0.1]}
    assert named(slower, {"clipnorm": 2 * norm}, {}) == [("optimizer-differs", rates)], "no gradient is that long"
    (cause,) = configured(RIGHT, slower, {"clipnorm": 2 * norm}, {"beta_1": 0.8})
    assert has(cause, others={"beta_1": [0.8, 0.9], "clipnorm": [None, 2 * norm]})
    assert f"(..., beta_1=0.9, clipnorm={2 * norm!r})\n" in cause.remedy, "it will limit a later step"
    (cause,) = configured(RIGHT, clipping_by_hand(slower), {"clipnorm": 2 * norm}, {})
    assert not has(cause, others={"clipnorm": [None, 2 * norm]}), "the loop limits them by itself"
    (cause,) = configured(RIGHT, slower, {"learning_rate": 0.1}, {"learning_rate": 0.1})
    assert has(cause, settings=rates, begun=0.1), "it was set later"
    clipping = [("clipping-differs", {"clipnorm": [None, norm / 4]})]
    assert named(slower, {"clipnorm": norm / 4}, {}) == clipping
    (cause,) = configured(RIGHT, slower, {"clipnorm": norm / 4}, {})
    assert cause.remedy == f"optimizer = tf.keras.optimizers.Adam(..., clipnorm={norm / 4!r})"
    assert named(clipping_by_hand(slower), {"clipnorm": norm / 4}, {}) == clipping, "its own limit was not reached"
    of_rows = with_gradients(slower, *(0.9 * each + 0.1 for each in gradients(slower)))  # as of an embedding
    at = Located(STEP, "update")
    (cause,) = configured(RIGHT, clipping_by_hand(of_rows), {"clipnorm": norm / 4}, {}, located=at)
    assert has(cause, settings=rates) and cause.id == "optimizer-differs"
    schedule = {"learning_rate": {"class_name": "ExponentialDecay", "config": {}}}
    same_rate = replace(RIGHT, after={**RIGHT.after, STEP: [each + 1 for each in RIGHT.after[STEP]]})
    assert configured(RIGHT, same_rate, schedule, {}) == [], "the loop sets the rate of the schedule by hand"
    unused = {"ema_overwrite_frequency": None}, {"ema_overwrite_frequency": 100}
    assert configured(RIGHT, same_rate, *unused) == [], "no averages are kept"
    frequency = [("optimizer-differs", {"ema_overwrite_frequency": [100, None]})]
    assert named(same_rate, *(each | {"use_ema": True} for each in unused)) == frequency
    assert named(same_rate, {"epsilon": 1e-7}, {"epsilon": float(np.float32(1e-7))}) == []
    traces = [replace(each, optimizers=[{"class": "Own", "config": {}}]) for each in sides(slower).traces]
    (cause,) = name_causes(locate(RIGHT, slower, [], STEP, NAMES), replace(sides(slower), traces=tuple(traces)))
    assert has(cause, settings=rates), "its configuration has no learning rate"


@pytest.mark.parametrize(("part", "leads"), [(0.04, True), (0.1, False)])
def test_a_rate_that_explains_an_update_leads_the_settings(part: float, leads: bool) -> None:
    """But for a part of what it explains, which the others may explain; both are written into the remedy."""
    slower = linear_step(rate=0.05)
    apart = (b - a for a, b in zip(slower.after[STEP], RIGHT.after[STEP], strict=True))
    weights = [a + part * each for a, each in zip(slower.after[STEP], apart, strict=True)]
    slower = replace(slower, after={**slower.after, STEP: weights})
    rate, others = {"learning_rate": [0.05, 0.1]}, {"epsilon": [1e-8, 1e-7], "gradient_accumulation_steps": [None, 4]}
    made = [{name: each[i] for name, each in (rate | others).items()} for i in (1, 0)]
    (cause,) = configured(RIGHT, slower, *made)
    assert has(cause, **({"settings": rate, "others": others} if leads else {"settings": rate | others}))
    assert cause.remedy.endswith("(..., learning_rate=0.1, epsilon=1e-07)")


def test_what_seems_to_differ_before_an_equal_loss_is_another_tensor() -> None:
    """As where fit trains on one output of a model, and the loop's model gives another one first."""
    kernel, bias = gradients(RIGHT)
    features = changed(RIGHT, "predictions", lambda event: replace(event, arrays=[each + 1 for each in event.arrays]))
    found = locate(RIGHT, with_gradients(features, kernel, 0 * bias), [], STEP, NAMES)
    assert found.stage == "gradients" and found.of("predictions") == StageValues("predictions", None)
    (cause,) = name_causes(
        found, replace(sides(features), close_ups=(RIGHT, with_gradients(features, kernel, 0 * bias)))
    )
    assert cause.id == "variables-not-trained"
    other_loss = with_loss(with_gradients(features, kernel, 0 * bias), 2 * LOSS)
    assert locate(RIGHT, other_loss, [], STEP, NAMES).stage == "predictions"


@pytest.mark.parametrize(("model", "stage"), [("inner", "loss"), ("", "predictions")])
def test_the_output_of_a_part_of_the_model_is_not_compared_with_that_of_the_whole(model: str, stage: str) -> None:
    """All layers agree, so the two may be different tensors; of one model they are not."""
    other = with_loss(OFF, 2 * LOSS)
    for kind in ("predictions", "inputs"):
        other = changed(other, kind, lambda e: replace(e, info=e.info | ({"model": model} if model else {})))
    other = changed(other, "predictions", lambda event: replace(event, arrays=[each + 1 for each in event.arrays]))
    layers = [event for event in RIGHT.steps[STEP] if event.kind == "layer"]
    other = changed(other, "layer", lambda event: layers.pop(0))
    assert locate(RIGHT, other, [], STEP, NAMES).stage == stage


def test_inputs_of_the_last_layers_are_not_compared_with_those_of_all() -> None:
    """As where one side augments images in its model, and the other does so before it calls the rest."""

    def augmented(event: Event) -> Event:
        arrays = [0.9 * each for each in event.arrays]
        return replace(event, arrays=arrays, rows=tuple(row_hashes(arrays)))

    other = changed(with_loss(OFF, 2 * LOSS), "inputs", augmented)
    assert locate(RIGHT, other, [], STEP, NAMES).stage == "inputs"
    flip = Event("layer", 0, {"name": "flip", "class": "RandomFlip"}, [np.zeros(1)])
    first = next(event for event in RIGHT.steps[STEP] if event.kind == "layer")
    whole = changed(RIGHT, "layer", lambda event: [flip, event] if event is first else event)
    found = locate(whole, other, [], STEP, NAMES)
    assert found.stage == "loss" and found.of("inputs") == StageValues("inputs", None)


def test_a_rate_in_another_precision_is_a_cause_if_it_explains_the_update() -> None:
    close = linear_step(rate=0.1 * (1 + 5e-6))
    (cause,) = configured(RIGHT, close, {}, {})
    assert cause.id == "optimizer-differs" and has(cause, settings={"learning_rate": [0.1000005, 0.1]})
    moved = replace(close, after={**close.after, STEP: [each * (1 + 1e-4) for each in close.after[STEP]]})
    assert configured(RIGHT, moved, {}, {}) == []


def test_labels_meet_every_prediction_only_where_predictions_are_one_column() -> None:
    def broadcast(shape: tuple[int, ...]) -> float | None:
        true, predicted = np.zeros(shape), np.full(shape, 0.5)
        return value_of(Targets("mean_squared_error", true, predicted, paired=False))

    infinite = Targets("sparse_categorical_crossentropy", np.zeros(1), np.array([[np.inf, 0.0]]), from_logits=True)
    assert np.isnan(value_of(infinite))
    assert broadcast((2, 1)) == 0.25
    assert broadcast((1, 2)) is None


@pytest.mark.parametrize(("part", "named"), [(0.5, True), (0.51, False), (0.25, False)])
def test_half_of_the_penalty_is_said_to_be_half(part: float, named: bool) -> None:
    found = found_causes(RIGHT, with_loss(OFF, LOSS - PENALTY * (1 - part), PENALTY * part))
    assert [each.id for each in found] == ["regularization-missing"] * named
    assert all(has(each, kind="script-half-penalty", penalty=0.25, whole=0.5) for each in found)
    assert all("l2_loss" in each.remedy for each in found)


@pytest.mark.parametrize(
    ("gap", "flag", "said"),
    [(None, "not given", ["script-flag"]), (None, False, ["script-flag"]), (None, True, []), (0.0, "not given", [])],
)
def test_a_training_flag_is_a_hint_where_predictions_could_not_be_compared(
    gap: float | None, flag: Any, said: list[str]
) -> None:
    other = linear_step(factor=1.5, flag=flag)
    found = hints(Located(STEP, "loss", stages=[StageValues("predictions", gap)]), replace(sides(other)))
    assert [each.kind for each in found if each.kind == "script-flag"] == said


def test_the_loss_of_probabilities_is_foreseen_with_the_logits_behind_them_that_keras_finds() -> None:
    true = np.eye(2, dtype=np.float32)[np.arange(8) % 2]
    logits = np.linspace(-1, 2, 16).reshape(8, 2).astype(np.float32)
    squashed = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    value = float(value_of(Targets("categorical_crossentropy", true, logits, from_logits=True)) or 0)
    right = with_targets(RIGHT, "categorical_crossentropy", true, logits, loss=value, from_logits=True)
    for predictions in (logits, squashed):
        other = changed(OFF, "predictions", lambda each, made=predictions: replace(each, arrays=[made]))
        own = recorded.with_own_predictions(replace(sides(other), close_ups=(right, other)))
        assert own is not None
        assert own.right.loss(STEP) == pytest.approx(value + PENALTY)


def test_logits_that_happen_to_lie_between_0_and_1_are_no_probabilities() -> None:
    logits = np.linspace(0.01, 0.2, 8)[:, None]
    value = float(value_of(Targets("binary_crossentropy", TRUE, logits, from_logits=True)) or 0)
    right = with_targets(RIGHT, "binary_crossentropy", TRUE, logits, loss=value, from_logits=True)
    given = with_loss(OFF, value + PENALTY)
    right, other = (changed(each, "predictions", lambda it: replace(it, arrays=[logits])) for each in (right, given))
    own = recorded.with_own_predictions(replace(sides(other), close_ups=(right, other)))
    assert own is not None and own.right.loss(STEP) == pytest.approx(value + PENALTY)


def test_the_logits_behind_a_softmax_are_found_also_where_the_other_model_ends_with_logits() -> None:
    true = np.eye(2, dtype=np.float32)[np.arange(8) % 2]
    logits = np.linspace(-1, 2, 16).reshape(8, 2).astype(np.float32)
    squashed = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    value = float(value_of(Targets("categorical_crossentropy", true, logits, from_logits=True)) or 0)
    right = with_targets(RIGHT, "categorical_crossentropy", true, logits, loss=value, from_logits=True)
    right = changed(right, "predictions", lambda it: replace(it, arrays=[logits]))
    other = changed(with_loss(OFF, value + PENALTY), "predictions", lambda it: replace(it, arrays=[squashed]))
    own = recorded.with_own_predictions(replace(sides(other), close_ups=(right, other)))
    assert own is not None and own.right.loss(STEP) == pytest.approx(value + PENALTY)
