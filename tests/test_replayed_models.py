"""The causes that the replay's rules find in made-up steps of models of many kinds; nothing is trained here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_up import RATE, judge_of, values_of

import compare
from compare.check.judge import _weights_added
from compare.check.observation import Observation
from compare.check.recipe import LossKind, Recipe, Update, divided_by, scaled

SIZES = (6, 6, 5)


def vectors(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.normal(size=(n, 4)).astype("float32")


def tokens(generator: np.random.Generator, n: int) -> np.ndarray:
    """Three tokens, the last of which is padding in every second example."""
    made = generator.integers(1, 5, (n, 3))
    made[::2, 2] = 0
    return made


def classes(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.integers(0, 3, n)


@dataclass
class Kind:
    """An experiment: how its model, loss and optimizer are built, and its inputs, labels and weights."""

    layers: Callable[[Any], list[Any]]
    loss: Callable[[Any], Any] = lambda keras: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer: Callable[[Any], Any] = lambda keras: keras.optimizers.SGD(RATE)
    inputs: Callable[..., np.ndarray] = vectors
    labels: Callable[..., Any] = classes
    weights: bool = False
    sizes: tuple[int, ...] = SIZES
    more: dict[str, Any] = field(default_factory=dict)


def two_outputs(keras: Any, size: int = 3) -> list[Any]:
    class Heads(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = keras.layers.Dense(size), keras.layers.Dense(size)

        def call(self, x: Any) -> Any:
            return {"a": self.a(x), "b": self.b(x)}

    return [Heads()]


def cross_entropies(keras: Any) -> dict[str, Any]:
    return {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in "ab"}


KINDS = {
    "plain": Kind(lambda keras: [keras.layers.Dense(3)]),
    "without a short batch": Kind(lambda keras: [keras.layers.Dense(3)], sizes=(6, 6, 6)),
    "normalized": Kind(lambda keras: [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(3)]),
    "twice normalized": Kind(
        lambda keras: [
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    ),
    "tokens": Kind(
        lambda keras: [keras.layers.Embedding(5, 2, mask_zero=True), keras.layers.Dense(3)],
        inputs=tokens,
        labels=lambda generator, n: generator.integers(0, 3, (n, 3)),
    ),
    "pooled": Kind(
        lambda keras: [
            keras.layers.Embedding(5, 2, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ],
        inputs=tokens,
    ),
    "weighted": Kind(lambda keras: [keras.layers.Dense(3)], weights=True),
    "class-weighted": Kind(lambda keras: [keras.layers.Dense(3)], more={"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}),
    "both-weighted": Kind(
        lambda keras: [keras.layers.Dense(3)], weights=True, more={"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}
    ),
    "smoothed": Kind(
        lambda keras: [keras.layers.Dense(3)],
        loss=lambda keras: keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        labels=lambda generator, n: np.eye(3, dtype="float32")[generator.integers(0, 3, n)],
    ),
    "regression": Kind(
        lambda keras: [keras.layers.Dense(1)],
        loss=lambda keras: keras.losses.MeanSquaredError(),
        labels=lambda generator, n: generator.normal(size=n).astype("float32"),
    ),
    "probabilities": Kind(lambda keras: [keras.layers.Dense(3, activation="softmax")]),
    "outputs": Kind(
        two_outputs,
        loss=cross_entropies,
        labels=lambda generator, n: {name: generator.integers(0, 3, n) for name in "ab"},
        more={"loss_weights": {"a": 1.0, "b": 0.25}},
    ),
    "numbers": Kind(
        lambda keras: two_outputs(keras, 1),
        loss=lambda keras: {"a": keras.losses.MeanSquaredError(), "b": keras.losses.Huber(0.5)},
        labels=lambda generator, n: {name: generator.normal(size=(n, 1)).astype("float32") for name in "ab"},
        more={"loss_weights": {"a": 1.0, "b": 0.25}},
    ),
    "scheduled": Kind(
        lambda keras: [keras.layers.Dense(3)],
        optimizer=lambda keras: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 1, 0.5)),
    ),
    "momentum": Kind(
        lambda keras: [keras.layers.Dense(3)], optimizer=lambda keras: keras.optimizers.SGD(RATE, momentum=0.5)
    ),
    "adam": Kind(
        lambda keras: [keras.layers.Dense(3)], optimizer=lambda keras: keras.optimizers.Adam(RATE, epsilon=0.25)
    ),
    "decayed": Kind(
        lambda keras: [keras.layers.Dense(3)], optimizer=lambda keras: keras.optimizers.AdamW(RATE, weight_decay=0.25)
    ),
}


@pytest.fixture(scope="module")
def judges(tensorflow: Any) -> Callable[[str], Any]:
    """Judges made-up steps of an experiment of a kind, on one replica."""
    made: dict[str, Any] = {}

    def judge(name: str) -> Any:
        if name not in made:
            made[name] = judge_of(replay := replay_of(tensorflow, KINDS[name]), values_of(replay)), replay
        return made[name]

    return judge


def replay_of(tf: Any, kind: Kind) -> Any:
    from compare.check.replay import Replay

    def examples(seed: int, sizes: tuple[int, ...] = kind.sizes) -> list[Any]:
        generator, made = np.random.default_rng(seed), []
        for n in sizes:
            batch = kind.inputs(generator, n), kind.labels(generator, n)
            made.append((*batch, generator.uniform(0.5, 2, n).astype("float32")) if kind.weights else batch)
        return made

    keras = tf.keras
    experiment = compare.Experiment(
        name="made-up",
        load_data=lambda: (None, None),
        build_model=lambda: keras.Sequential(kind.layers(keras)),
        build_loss=lambda: kind.loss(keras),
        build_optimizer=lambda: kind.optimizer(keras),
        build_metrics=lambda: None,
        **kind.more,
    )
    x, y, *_ = examples(1)[0]
    spec = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), (x, y))
    batches = {epoch: examples(epoch) for epoch in (1, 2, 3)}
    return Replay(experiment, batches, examples(4), replicas=1, global_batch_size=6, spec=spec)


FIRST_RATE = Update(learning_rates=(RATE,) * 6)
RATE_PER_EPOCH = Update(learning_rates=(RATE,) * 3 + (RATE / 2,) * 3)


@pytest.mark.parametrize(
    ("kind", "recipe", "update", "cause", "seen"),
    [
        *((kind, {}, Update(), "", "") for kind in KINDS),
        ("normalized", {"training": False}, Update(), "training-flag-missing", "inference-gradient"),
        ("tokens", {"loss": LossKind.UNMASKED}, Update(), "mask-missing", "mask-unused"),
        ("pooled", {"masks": False}, Update(), "mask-missing", "mask-lost"),
        ("weighted", {"sample_weights": False}, Update(), "sample-weights-dropped", "sample-weights-unused"),
        ("class-weighted", {"class_weights": False}, Update(), "sample-weights-dropped", "class-weights-unused"),
        ("both-weighted", {"sample_weights": False}, Update(), "sample-weights-dropped", "sample-weights-unused"),
        ("both-weighted", {"class_weights": False}, Update(), "sample-weights-dropped", "class-weights-unused"),
        (
            "both-weighted",
            {"sample_weights": False, "class_weights": False},
            Update(),
            "sample-weights-dropped",
            "no-weights-used",
        ),
        ("smoothed", {"loss": LossKind.UNSMOOTHED}, Update(), "label-smoothing-missing", "no-label-smoothing"),
        ("plain", {"loss": LossKind.OTHER_LOGITS}, Update(), "logits-mismatch", "other-from-logits"),
        ("plain", {"loss": LossKind.SQUASHED}, Update(), "logits-mismatch", "applied-twice"),
        ("probabilities", {"loss": LossKind.UNRECOVERED}, Update(), "logits-mismatch", "probabilities-as-logits"),
        ("regression", {"loss": LossKind.BROADCAST}, Update(), "label-shape-broadcast", "labels-broadcast"),
        ("numbers", {"loss": LossKind.BROADCAST, "output": 0}, Update(), "label-shape-broadcast", "labels-broadcast"),
        ("numbers", {"loss": LossKind.BROADCAST, "output": 1}, Update(), "label-shape-broadcast", "labels-broadcast"),
        ("outputs", {"loss_weights": (1.0, 1.0)}, Update(), "loss-scaled", "output-weight"),
        ("outputs", {"loss_weights": (1.0, 0.0)}, Update(), "variables-not-trained", "no-gradient"),
        ("plain", {"micro": 3}, Update(), "loss-scaled", "micro-batches-summed"),
        ("plain", {"share": divided_by(lambda split: 10.0)}, Update(), "loss-constant-denominator", "example-weight"),
        ("plain", {"share": scaled(Recipe().share, 0.5)}, Update(), "loss-scaled", "loss-factor"),
        ("without a short batch", {"share": divided_by(lambda split: 12.0)}, Update(), "loss-scaled", "loss-factor"),
        ("plain", {"untrained": frozenset([0])}, Update(), "variables-not-trained", "no-gradient"),
        ("plain", {}, Update(untrained=frozenset([0])), "variables-not-trained", "no-gradient"),
        ("scheduled", {}, FIRST_RATE, "learning-rate-schedule-missing", "rate-stays"),
        ("scheduled", {}, RATE_PER_EPOCH, "optimizer-differs", "learning-rate"),
        ("decayed", {}, Update(overrides={"weight_decay": 0.5}), "optimizer-differs", "setting"),
        # What the optimizer itself says is named where it does less than counts as rounding elsewhere.
        ("decayed", {}, Update(overrides={"weight_decay": 0.25 + 1e-5}), "optimizer-differs", "setting"),
        ("decayed", {}, Update(overrides={"weight_decay": 0.25 + 1e-7}), "", ""),
        ("decayed", {}, Update(overrides={"beta_1": 0.5}), "optimizer-differs", "setting"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*produced by a Softmax activation")
def test_a_mistake_is_named_by_what_it_makes_of_the_steps(
    judges: Any, kind: str, recipe: dict[str, Any], update: Update, cause: str, seen: str
) -> None:
    judgement = judges(kind)[0](Recipe(**recipe), update)
    assert {id: each.kind for id, each in judgement.causes.items()} == ({cause: seen} if cause else {})
    assert (judgement.right, judgement.evidence) == (not cause, [])


def test_a_single_layer_that_predicts_in_inference_mode_is_named(judges: Any) -> None:
    judge, replay = judges("twice normalized")
    second = [name for name in replay.layers if "normalization" in name][1]
    (seen,) = judge(Recipe(inference=(second,))).causes.values()
    assert (seen.kind, seen.quantities["layers"]) == ("inference-layers", [second])


def rates_at(*steps: int) -> Update:
    """The rates of the schedule at other steps than those that are made."""
    return Update(learning_rates=tuple(RATE / 2**step for step in steps))


@pytest.mark.parametrize(
    ("kind", "update", "seen"),
    [
        ("scheduled", rates_at(0, 0, 0, 1, 1, 1), "rate-of-epoch-from-0"),
        ("scheduled", rates_at(1, 1, 1, 2, 2, 2), "rate-of-epoch"),
        ("scheduled", rates_at(0, 0, 0, 3, 3, 3), "rate-per-epoch"),
        ("scheduled", rates_at(1, 2, 3, 4, 5, 6), "rate-of-next-step"),
        ("scheduled", rates_at(0, 0, 1, 2, 3, 4), "rate-of-step-before"),
        ("scheduled", FIRST_RATE, "rate-of-first-step"),
        ("momentum", Update(formula="damped"), "formula-damped"),
        ("momentum", Update(overrides={"nesterov": True}), "as-with-nesterov"),
        ("momentum", Update(overrides={"momentum": 0.9}), "as-with"),
        ("momentum", Update(overrides={"momentum": 0.9}, since=3), "as-with"),
        *(
            ("adam", Update(formula=formula), f"formula-{formula}")
            for formula in ("uncorrected", "mean-uncorrected", "square-uncorrected", "epsilon-last", "epsilon-inside")
        ),
        ("adam", Update(formula="epsilon-inside", overrides={"epsilon": 0.01}), "formula-epsilon-inside"),
        ("adam", Update(overrides={"epsilon": 0.001}), "as-with"),
        ("adam", Update(overrides={"beta_2": 0.99}), "as-with"),
        ("adam", Update(restarts=frozenset([3])), "begins-anew-per-epoch"),
        ("adam", Update(restarts=frozenset([3]), iterations=(0, 1, 2, 3, 4, 5)), "slots-emptied-in-epochs"),
        ("adam", Update(iterations=(0, 1, 2, 0, 1, 2)), "counted-anew-per-epoch"),
    ],
)
def test_an_optimizer_that_was_written_by_hand_is_known_by_what_it_makes_of_the_weights(
    judges: Any, kind: str, update: Update, seen: str
) -> None:
    def by_hand(made: Observation) -> None:
        made.optimizers, made.optimizer_steps = [], []
        made.updates_made = [0] * len(made.updates_made)

    judgement = judges(kind)[0](Recipe(), update, changed=by_hand)
    (found,) = judgement.causes.values()
    assert found.kind == seen
    if update.since:
        assert found.quantities["since_step"] == update.since + 1


def test_a_penalty_that_only_the_trainer_has_is_told_by_the_weights() -> None:
    random = np.random.default_rng(0)
    weights, right, others = (
        [random.normal(size=shape).astype("float32") for shape in ((3, 4), (4,))] for _ in range(3)
    )

    def told(*factors: float, of: Any = weights, losses: Any = ()) -> dict[str, Any] | None:
        case: Any = SimpleNamespace(
            steps=[SimpleNamespace(state=[weights])],
            threshold=1e-5,
            observation=SimpleNamespace(name="loop", names=["kernel", "bias"]),
            reference=SimpleNamespace(name="fit"),
            replay=SimpleNamespace(model=SimpleNamespace(losses=losses)),
        )
        observed = [a + np.float32(factor) * w for a, w, factor in zip(right, of, factors, strict=True)]
        seen = _weights_added(case, 0, observed, right)
        return None if seen is None else dict(seen.quantities)

    both = told(0.01, 0.01)
    assert both is not None and both["factor"] == pytest.approx(0.01, rel=1e-3)
    assert (both["variables"], both["penalized"]) == (["kernel", "bias"], False)
    alone = told(0.01, 0.0, losses=[0.5])
    assert alone is not None and (alone["variables"], alone["penalized"]) == (["kernel"], True)
    assert [told(0.01, 0.0103), told(0.0, 0.0), told(0.01, 0.01, of=others)] == [None] * 3
