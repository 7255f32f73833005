"""What a replay predicts of a step, and the causes that its rules find in made-up steps; nothing is trained here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_up import RATE, judge_of, observed
from numpy.testing import assert_allclose

import compare
from compare.check.causes.loss import _weight_of_output
from compare.check.causes.reporting import said
from compare.check.observation import Observation, OptimizerStep
from compare.check.recipe import OTHER_SHARES, Clip, Recipe, Span, Update
from compare.watch.seen import CloseUp

SIZES = (4, 4, 3)
"""Of two replicas, the last has a single example of the last batch."""
LAST = Span(1, 8, 11)
KERNEL = np.array([[0.5, -0.25, 0.125], [-0.5, 0.75, 0.25]], np.float32)
BIAS = np.array([0.0, 0.125, -0.25], np.float32)
PENALTY = 0.0625
RIGHT = Recipe()


def examples(seed: int, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    """Batches of inputs, and labels of three classes."""
    generator = np.random.default_rng(seed)
    return [(generator.normal(size=(n, 2)).astype("float32"), generator.integers(0, 3, n)) for n in sizes]


BATCHES, VALIDATION = {epoch: examples(epoch) for epoch in (1, 2, 3)}, examples(4, (4, 3))


@pytest.fixture(scope="module")
def replay(tensorflow: Any) -> Any:
    """The replay of a layer with an L2 penalty, on two replicas."""
    return replay_of(tensorflow, 2)


def replay_of(tf: Any, replicas: int, optimizer: Callable[[], Any] | None = None) -> Any:
    from compare.check.replay import Replay

    keras = tf.keras
    dense = lambda: keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(PENALTY))  # noqa: E731
    experiment = compare.Experiment(
        name="layer",
        load_data=lambda: (None, None),
        build_model=lambda: keras.Sequential([dense()]),
        build_loss=lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        build_optimizer=optimizer or (lambda: keras.optimizers.SGD(RATE, momentum=0.5)),
        build_metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    spec = tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64)
    return Replay(experiment, BATCHES, VALIDATION, replicas=replicas, global_batch_size=4, spec=spec)


# Gradients


def state(replicas: int) -> list[list[np.ndarray]]:
    return [[KERNEL, BIAS] for _ in range(replicas)]


def rows_of(span: Span) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.concatenate(parts) for parts in zip(*BATCHES[span.epoch], strict=True))
    return x[span.start : span.stop].astype("float64"), y[span.start : span.stop]


def by_hand(first: int, stop: int, weights: Any, *, penalty: float = 1.0, bias: float = 1.0) -> np.ndarray:
    """The gradient of some rows of the last batch, each example times its weight, from the formula of softmax."""
    x, y = (part[first:stop] for part in rows_of(LAST))
    logits = x @ KERNEL + BIAS
    off = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(3)[y]
    off *= np.broadcast_to(weights, len(x))[:, None]
    return np.concatenate([(x.T @ off + penalty * 2 * PENALTY * KERNEL).ravel(), bias * off.sum(axis=0)])


HALVES = (1 / 4, 1 / 4, 1 / 2)
"""What fit's mean of means weights each example with: two of the first replica, one of the second."""
WHOLE = by_hand(0, 3, HALVES)
NORM = float(np.linalg.norm(WHOLE))
FIRST, SECOND = by_hand(0, 2, 1 / 4, penalty=0.5), by_hand(2, 3, 1 / 2, penalty=0.5)


def recipes() -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    shares = {
        "loss-constant-denominator": by_hand(0, 3, 1 / 4),
        "loss-summed": by_hand(0, 3, 1.0),
        "loss-not-divided-by-replicas": by_hand(0, 3, (1 / 2, 1 / 2, 1)),
        "loss-divided-twice": by_hand(0, 3, (1 / 8, 1 / 8, 1 / 4)),
    }
    return {
        "right": ({}, WHOLE),
        **{cause: ({"share": OTHER_SHARES[cause]}, expected) for cause, expected in shares.items()},
        "twice the penalty": ({"regularization": 2.0}, by_hand(0, 3, HALVES, penalty=2)),
        "no penalty": ({"omitted": frozenset([0])}, by_hand(0, 3, HALVES, penalty=0)),
        "untrained bias": ({"untrained": frozenset([1])}, by_hand(0, 3, HALVES, bias=0)),
        "a factor that is divided out": ({"scale": 1.37}, WHOLE),
        "the first replica's": ({"reduce": "first"}, FIRST),
        "micro-batches": ({"micro": 1}, by_hand(0, 3, 1 / 2, penalty=1.5)),
        "halved micro-batches": ({"micro": 1, "micro_factor": 0.5}, by_hand(0, 3, 1 / 4, penalty=0.75)),
        "values clipped": ({"clip": Clip("value", 0.125, True)}, np.clip(WHOLE, -0.125, 0.125)),
        "values of replicas clipped": (
            {"clip": Clip("value", 0.125)},
            np.clip(FIRST, -0.125, 0.125) + np.clip(SECOND, -0.125, 0.125),
        ),
        "all clipped": ({"clip": Clip("global", NORM / 2, True)}, WHOLE / 2),
        "clipped by a limit above": ({"clip": Clip("global", NORM * 2, True)}, WHOLE),
    }


def test_a_weight_of_an_output_that_may_be_left_out_is_any_but_none_and_one() -> None:
    case: Any = SimpleNamespace(replay=SimpleNamespace(loss_weights=(("a", "b", "c"), (0.0, 1.0, 2.0))))
    changed = [each.changes["loss_weights"] for each in _weight_of_output(case, RIGHT)]
    assert changed == [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0)]


@pytest.mark.parametrize("name", recipes())
def test_a_gradient_is_that_of_its_formula(replay: Any, name: str) -> None:
    changes, expected = recipes()[name]
    step = OptimizerStep(1, [], state(2), state(2))
    seen = replay.gradients(step, LAST, Recipe(**changes))
    assert_allclose(seen, [expected] * 2, atol=2e-7)
    if changes.get("reduce") != "first" and not getattr(changes.get("clip"), "reduced", False):
        typed = replay.typed_gradients(step, LAST, Recipe(**changes))
        assert {part.dtype for part in typed[0]} == {np.dtype("float32")}
        assert_allclose(sum(replay.flatten(each) for each in typed), expected, atol=3e-7)


def test_replicas_that_keep_their_own_gradients_have_those_of_their_parts(replay: Any) -> None:
    step = OptimizerStep(1, [], state(2), state(2))
    assert_allclose(replay.gradients(step, LAST, Recipe(reduce="own")), [FIRST, SECOND], atol=2e-7)
    nothing = replay.gradients(step, Span(1, 8, 9), Recipe(reduce="own"))[1]
    assert not nothing.any(), "a replica without examples"


def test_a_nudge_changes_weights_by_one_unit_in_the_last_place_and_a_replay_repeats_itself(replay: Any) -> None:
    step = OptimizerStep(1, [], state(2), state(2))
    exact, nudged = (replay.replica_pass(step, 0, LAST, Recipe(), nudge) for nudge in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(exact.state, state(1)[0], strict=True))
    steps = [np.abs(a - b) / np.spacing(np.abs(b)) for a, b in zip(nudged.state, [KERNEL, BIAS], strict=True)]
    assert all(((each >= 0.5) & (each <= 1)).all() for each in steps)
    assert replay.replica_pass(step, 0, LAST, Recipe(), 1) is nudged
    assert not replay.scales_losses, "in float32"
    assert exact.penalty == pytest.approx(PENALTY * (KERNEL**2).sum())


# Updates


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({}, [-0.25, -0.375, -0.4375]),
        ({"restarts": frozenset([1])}, [-0.25, -0.25, -0.375]),
        ({"times": 2}, [-0.625, -0.90625, -0.9765625]),
        ({"learning_rates": (0.125, 0.25)}, [-0.25, -0.625, -0.8125]),
        ({"overrides": {"momentum": 0.0}}, [-0.25, -0.25, -0.25]),
        ({"overrides": {"momentum": 0.0}, "since": 2}, [-0.25, -0.375, -0.25]),
        ({"reduce": "first"}, [-0.125, -0.1875, -0.21875]),
        ({"overrides": {"clipvalue": 0.75}}, [-0.1875, -0.28125, -0.328125]),
        ({"overrides": {"clipvalue": 0.75}, "clip": "reduced"}, [-0.09375, -0.140625, -0.1640625]),
        ({"overrides": {"clipvalue": 0.75}, "clip": "off"}, [-0.25, -0.375, -0.4375]),
    ],
    ids=lambda each: "" if isinstance(each, list) else str(each),
)
def test_an_update_is_that_of_its_formula(replay: Any, update: dict[str, Any], expected: list[float]) -> None:
    """All gradients are 1 on each of two replicas: 2 in all."""
    from compare.check.optimizer_replay import simulate

    ones: list[Any] = [np.ones_like(KERNEL), np.ones_like(BIAS)]
    steps = [OptimizerStep(1, [ones, ones], state(2), state(2)) for _ in range(3)]
    before = np.concatenate([KERNEL.ravel(), BIAS])
    after = simulate(replay, steps, Update(**update))
    assert_allclose([each - before for each in after], np.broadcast_to(np.reshape(expected, (3, 1, 1)), (3, 2, 9)))
    untouched = simulate(replay, steps, Update(**update, untrained=frozenset([1])))
    assert all(np.array_equal(each[:, 6:], [BIAS] * 2) for each in untouched)


# Causes of steps that are made up from a wrong recipe or update


@pytest.fixture(scope="module")
def judged(replay: Any) -> Callable[..., Any]:
    return judge_of(replay, state(replay.replicas))


SECOND_EPOCH_AS_FIRST = tuple(Span(1, a, b) for a, b in ((0, 4), (4, 8), (8, 11))) * 2


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({}, set()),
        *[({"share": share}, {cause}) for cause, share in OTHER_SHARES.items()],
        ({"regularization": 0.0}, {"regularization-missing"}),
        ({"regularization": 2.0}, {"regularization-not-divided-by-replicas"}),
        ({"loss": "other-logits"}, {"logits-mismatch"}),
        ({"loss": "squashed"}, {"logits-mismatch"}),
        ({"reduce": "own"}, {"gradients-not-reduced"}),
        ({"untrained": frozenset([1])}, {"variables-not-trained"}),
        ({"feed": SECOND_EPOCH_AS_FIRST}, {"not-reshuffled"}),
        ({"clip": Clip("global", 0.25)}, {"clipping-differs"}),
        ({"clip": Clip("value", 0.0625)}, {"clipping-differs"}),
        (
            {"share": OTHER_SHARES["loss-summed"], "regularization": 0.0},
            {"loss-summed", "regularization-missing"},
        ),
    ],
    ids=lambda each: "+".join(sorted(each)) or "none" if isinstance(each, set) else "",
)
def test_the_cause_of_wrong_gradients_is_named(judged: Any, changes: dict[str, Any], causes: set[str]) -> None:
    update = Update(reduce="own") if changes.get("reduce") == "own" else Update()
    judgement = judged(Recipe(**changes), update)
    assert set(judgement.causes) == causes
    assert (judgement.right, judgement.certain) == (not causes, bool(causes))
    assert not judgement.evidence


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({"overrides": {"momentum": 0.0}}, {"optimizer-differs"}),
        ({"overrides": {"momentum": 0.75}}, {"optimizer-differs"}),
        ({"overrides": {"nesterov": True}}, {"optimizer-differs"}),
        ({"learning_rates": (0.25,) * 6}, {"optimizer-differs"}),
        ({"learning_rates": (0.125, 0.125, 0.125, 0.25, 0.25, 0.25)}, {"optimizer-differs"}),
        ({"overrides": {"momentum": 0.0}, "since": 3}, {"optimizer-differs"}),
        ({"restarts": frozenset([3])}, {"optimizer-differs"}),
    ],
    ids=str,
)
def test_the_cause_of_a_wrong_update_is_named(judged: Any, changes: dict[str, Any], causes: set[str]) -> None:
    judgement = judged(Recipe(), Update(**changes))
    assert set(judgement.causes) == causes
    assert not judgement.evidence


ADAM = {"class_name": "adam", "config": {"learning_rate": RATE}}
PLAIN = {"class_name": "sgd", "config": {"learning_rate": RATE}}
CLIPPING = {"class_name": "sgd", "config": {"learning_rate": RATE, "clipnorm": 0.25}}


@pytest.mark.parametrize(
    ("replicas", "settings", "recipe", "update", "causes"),
    [
        (1, ADAM, {}, {}, []),
        (1, ADAM, {"regularization": 0.0}, {}, ["regularization-missing"]),
        (1, ADAM, {"share": OTHER_SHARES["loss-summed"]}, {}, ["loss-summed"]),
        (1, ADAM, {}, {"overrides": {"epsilon": 0.25}}, ["optimizer-differs"]),
        (1, CLIPPING, {}, {}, []),
        (1, CLIPPING, {}, {"overrides": {"clipnorm": None}}, ["clipping-differs"]),
        (2, CLIPPING, {}, {"clip": "reduced"}, ["clipping-differs"]),
        (1, CLIPPING, {"clip": Clip("norm", 0.25)}, {"overrides": {"clipnorm": None}}, []),
        (1, PLAIN, {"micro": 2}, {}, ["loss-scaled"]),
    ],
)
def test_the_optimizer_says_what_is_a_mistake(
    tensorflow: Any, replicas: int, settings: Any, recipe: Any, update: Any, causes: list[str]
) -> None:
    """Adam hides a factor of the gradients; what the optimizer clips, the loop may clip itself."""
    replay = replay_of(tensorflow, replicas, lambda: tensorflow.keras.optimizers.deserialize(settings))
    judgement = judge_of(replay, state(replicas))(Recipe(**recipe), Update(**update))
    assert (list(judgement.causes), judgement.right, judgement.evidence) == (causes, not causes, [])


@pytest.mark.parametrize(
    ("recipe", "update", "causes"),
    [
        ({}, {}, []),
        ({"share": OTHER_SHARES["loss-summed"]}, {}, ["loss-summed"]),
        ({"regularization": 0.0}, {}, ["regularization-missing"]),
        ({}, {"overrides": {"nesterov": True}}, ["optimizer-differs"]),
        ({}, {"overrides": {"momentum": 0.0}}, ["optimizer-differs"]),
    ],
)
def test_without_an_optimizer_weights_alone_show_the_cause(judged: Any, recipe: Any, update: Any, causes: Any) -> None:
    def by_hand(seen: Observation) -> None:
        seen.optimizers, seen.optimizer_steps = [], []
        seen.updates_made = [0] * len(seen.updates_made)

    judgement = judged(Recipe(**recipe), Update(**update), changed=by_hand)
    assert (list(judgement.causes), judgement.right, judgement.evidence) == (causes, not causes, [])


# Weights and state besides the steps


def moved(variable: int, factor: float, *, step: int, before: bool = False) -> Callable[[Observation], None]:
    """Changes one variable of the first replica after, or before, one step."""

    def change(seen: Observation) -> None:
        made = seen.optimizer_steps[step]
        copies = [[part.copy() for part in each] for each in (made.state if before else made.after or [])]
        copies[0][variable] *= np.float32(factor)
        if before:
            made.state = made.before = copies
        else:
            made.after = copies

    return change


def ends_otherwise(seen: Observation) -> None:
    """Weights that are changed after the last step of the first epoch."""
    seen.epoch_end_states[1] = [[part * np.float32(1.01) for part in each] for each in seen.epoch_end_states[1]]


def kinds(judgement: Any) -> list[str]:
    return [each.kind for each in judgement.evidence]


@pytest.mark.parametrize(
    ("change", "right", "evidence"),
    [
        (moved(0, 1 + 2e-7, step=2), True, []),
        (moved(0, 1.01, step=2), False, ["update-off"]),
        (moved(0, 1.01, step=2, before=True), False, ["update-off", "changed-between-steps"]),
        (ends_otherwise, False, ["changed-after-last-step"]),
    ],
)
def test_weights_that_the_update_does_not_explain_are_evidence(
    judged: Any, change: Any, right: bool, evidence: list[str]
) -> None:
    judgement = judged(changed=change)
    assert (judgement.right, kinds(judgement), judgement.causes) == (right, evidence, {})


@pytest.mark.parametrize(
    ("fit", "loop", "error"),
    [(1.0, 1.0, "none"), (1.0, 2.0, 0.5), (np.nan, np.nan, "none"), (1.0, np.nan, None), (np.nan, 1.0, np.inf)],
)
def test_a_gradient_on_an_empty_replica_is_wrong_where_fits_is_not_the_same(
    fit: float, loop: float, error: Any
) -> None:
    from compare.check.empty_replica import wrong_gradient

    def seen(value: float) -> Observation:
        step = OptimizerStep(1, [[np.full(2, value)]], [], [])
        return Observation("", 1, optimizer_steps=[step])

    found = wrong_gradient(seen(fit), seen(loop), 0.1)
    assert ("none" if found is None else found.quantities["relative_error"]) == error


# Reported numbers


@pytest.mark.parametrize(
    ("kind", "labels", "predictions", "expected"),
    [
        ("BinaryAccuracy", [0, 1], [[0.9, 0.2], [0.8, 0.3]], 0.5),  # as one-hot vectors
        ("BinaryAccuracy", [[1.0], [0.0]], [[0.9], [0.2]], 1.0),
        ("SparseCategoricalAccuracy", [0, 1], [[0.9, 0.2], [0.8, 0.3]], 0.5),
        ("CategoricalAccuracy", [[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]], 0.5),
        ("SparseCategoricalAccuracy", {"a": [0]}, [[0.9, 0.2]], np.nan),
    ],
)
def test_an_accuracy_of_another_kind_takes_the_labels_as_it_needs_them(
    tensorflow: Any, kind: str, labels: Any, predictions: Any, expected: float
) -> None:
    from compare.check.metric_replay import _accuracy

    given = labels if isinstance(labels, dict) else np.array(labels)
    assert_allclose(_accuracy(kind, given, np.array(predictions, np.float32)), expected)


Part = tuple[int, float, float, float]
"""The number of examples, and their mean loss, accuracy, and loss without the penalty."""


def losses(replay: Any, seen: Observation) -> Mapping[str, dict[int, list[Part]]]:
    """For training and validation, of each epoch and part of a batch: its examples, mean loss and accuracy."""

    def part(x: np.ndarray, y: np.ndarray, weights: Any) -> Part:
        logits = x.astype("float64") @ weights[0] + weights[1]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        loss = float(-np.log(probabilities[np.arange(len(y)), y]).mean())
        return len(y), loss + PENALTY * float((weights[0] ** 2).sum()), float((logits.argmax(axis=1) == y).mean()), loss

    def parts(x: np.ndarray, y: np.ndarray, weights: Any) -> list[Part]:
        half = -(-len(y) // 2)
        return [part(x[:half], y[:half], weights), part(x[half:], y[half:], weights)]

    train, validation = {}, {}
    for epoch in (1, 2):
        steps = seen.of_epoch(epoch)
        train[epoch] = [p for (x, y), s in zip(BATCHES[epoch], steps, strict=True) for p in parts(x, y, s.state[0])]
        end = seen.epoch_end_states[epoch][0]
        validation[epoch] = [p for x, y in VALIDATION for p in parts(x, y, end)]
    return {"": train, "val_": validation}


def mean(parts: list[Part], *, number: int = 1, by_examples: bool = True) -> float:
    weights = [each[0] for each in parts] if by_examples else None
    return float(np.average([each[number] for each in parts], weights=weights))


def of_batches(parts: list[Part]) -> float:
    return float(np.mean([mean(parts[i : i + 2], by_examples=False) for i in range(0, len(parts), 2)]))


@pytest.mark.parametrize(
    ("key", "reported", "causes"),
    [
        ("loss", lambda now, before: mean(now), set()),
        ("val_loss", lambda now, before: mean(now), set()),
        ("accuracy", lambda now, before: mean(now, number=2), set()),
        ("val_accuracy", lambda now, before: mean(now, number=2), set()),
        ("loss", lambda now, before: of_batches(now), {"loss-averaged-over-batches"}),
        ("val_loss", lambda now, before: of_batches(now), {"loss-averaged-over-batches"}),
        ("loss", lambda now, before: mean(now[-2:]), {"last-batch-only"}),
        ("loss", lambda now, before: mean(before + now), {"metrics-not-reset"}),
        ("val_loss", lambda now, before: mean(before + now), {"metrics-not-reset"}),
        ("accuracy", lambda now, before: mean(before + now, number=2), {"metrics-not-reset"}),
        ("val_loss", lambda now, before: mean(now[::2]), {"metrics-from-one-replica"}),
        ("val_accuracy", lambda now, before: mean(now[:2], number=2), {"validation-examples-dropped"}),
        ("loss", lambda now, before: 2 * mean(now), {"loss-not-reduced"}),
        ("loss", lambda now, before: mean(now, number=3), {"loss-without-regularization"}),
        ("val_loss", lambda now, before: mean(now, number=3), {"validation-loss-without-regularization"}),
        ("val_loss", lambda now, before: mean(now) / 2, {"loss-not-reduced"}),
        ("loss", lambda now, before: mean(now) - mean(now, number=3) / 2, {"loss-not-reduced"}),
        ("val_loss", lambda now, before: mean(now) - mean(now, number=3) / 2, {"loss-not-reduced"}),
        ("val_loss", lambda now, before: mean(now, number=3, by_examples=False) / 2, None),
        ("loss", lambda now, before: mean(now) + 0.01, None),
    ],
)
def test_the_cause_of_a_wrong_number_is_named(replay: Any, key: str, reported: Any, causes: set[str] | None) -> None:
    from compare.check.case import Case
    from compare.check.judge import judge_reporting

    seen = observed(replay, state(replay.replicas))
    parts = losses(replay, seen)["val_" if key.startswith("val_") else ""]
    seen.logs = {epoch: {key: reported(parts[epoch], parts.get(epoch - 1, []))} for epoch in (1, 2)}
    judgement = judge_reporting(Case(seen, replay), Recipe(), [key])
    assert (set(judgement.causes), judgement.unexplained) == (causes or set(), {key} if causes is None else set())
    assert kinds(judgement) == (["metric-off"] if causes is None else [])


def test_a_loss_that_keras_divides_may_have_three_mistakes(replay: Any) -> None:
    from compare.check.case import Case
    from compare.check.judge import judge_reporting

    seen = observed(replay, state(replay.replicas))
    parts = losses(replay, seen)["val_"]
    seen.logs = {epoch: {"val_loss": mean(parts[epoch], number=3, by_examples=False) / 2} for epoch in (1, 2)}
    seen.inside = CloseUp({}, divided={"validation": None})
    judgement = judge_reporting(Case(seen, replay), Recipe(), ["val_loss"])
    causes = {"loss-not-reduced", "loss-averaged-over-batches", "validation-loss-without-regularization"}
    assert set(judgement.causes) == causes
    assert judgement.causes["loss-not-reduced"].quantities["divided"] == "validation"


def test_a_number_with_one_mistake_has_no_other_for_the_loss_that_is_trained_on(replay: Any) -> None:
    """The loop trains on twice the loss, and its validation loss, which is right but for a reset, needs no half."""
    from compare.check.case import Case
    from compare.check.judge import judge_reporting

    wrong = Recipe(share=OTHER_SHARES["loss-not-divided-by-replicas"])
    seen = observed(replay, state(replay.replicas), wrong)
    now = losses(replay, seen)["val_"]
    seen.logs = {1: {"val_loss": mean(now[1])}, 2: {"val_loss": mean(now[1] + now[2])}}
    judgement = judge_reporting(Case(seen, replay), wrong, ["val_loss"])
    assert list(judgement.causes) == ["metrics-not-reset"]


def test_the_loss_of_an_output_over_examples_is_said_to_be_that() -> None:
    case: Any = SimpleNamespace(part="validation", key="val_a_loss", of_output=True, is_loss=True)
    (variant,) = said(case)
    assert (variant.changes, variant.evidence.kind) == ({"per": "examples"}, "mean-over-examples")
