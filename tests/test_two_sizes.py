"""One training on one replica and on several, at the same global batch: mistakes of scaling, and what must differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tasks
from test_script_causes import LOSS, OFF, PENALTY, RIGHT, STEP, with_loss
from test_stages import ADAM, NAMES, micro_batches, sides

import compare
from compare.check import words
from compare.check.hints import hints
from compare.check.judge_recorded import name_causes
from compare.check.stages import Located, locate
from compare.check.step_values import Sides
from compare.errors import NoVerdictError, RequestError
from compare.verdict.findings import StageValues
from compare.watch.seen import CloseUp, Event

SCRIPT = """
import sys

import numpy as np
import tensorflow as tf

mistakes = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(56, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
strategy = tf.distribute.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
batch = 16 * replicas if "batch" in mistakes else 16
data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(batch))
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8), tf.keras.layers.Dense(2)])
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_fn(y, model(x, training=True)))
        if "mean" not in mistakes:
            loss /= replicas
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))


train = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
for batch in data:
    train(*batch)
"""


def of_scripts(folder: Path, *mistakes: str) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    given = {"reports": folder / "reports", "quiet": True, "script_arguments": mistakes, "replicas": (1, 2)}
    return compare.run(scripts=[str(script)], **given).details


def test_a_right_script_is_alike_on_one_replica_and_on_two(tmp_path: Path) -> None:
    found = of_scripts(tmp_path)
    (entry,) = found["comparisons"]
    assert (found["reference"], entry["candidate"]) == ("train-1-replica", "train-2-replicas")
    assert found["verdict"] == "alike"
    (page,) = (tmp_path / "reports").glob("*/report.html")
    assert "train.py, 1 and 2 replicas" in page.read_text()


@pytest.mark.parametrize(
    ("mistake", "cause"), [("mean", "loss-not-divided-by-replicas"), ("batch", "batch-size-differs")]
)
def test_a_mistake_of_scaling_is_named(tmp_path: Path, mistake: str, cause: str) -> None:
    (entry,) = of_scripts(tmp_path, mistake)["comparisons"]
    assert [each["id"] for each in entry["causes"]] == [cause]
    assert entry["causes"][0]["side"] == "train-2-replicas"


def on_two(close_up: CloseUp) -> CloseUp:
    """The same step with half of its loss on each of two replicas, which have the whole penalty."""
    events = []
    for event in close_up.steps[STEP]:
        if event.kind == "loss":
            half = [np.asarray(event.arrays[0]) / 2, *event.arrays[1:]]
            events += [replace(event, replica=replica, arrays=half) for replica in (0, 1)]
        else:
            events.append(event)
    return replace(close_up, steps={**close_up.steps, STEP: events})


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        (LOSS, None),
        (2 * (LOSS - PENALTY) + PENALTY, "loss-not-divided-by-replicas"),
        ((LOSS - PENALTY) / 2 + PENALTY, "loss-divided-twice"),
        (LOSS + PENALTY, "regularization-not-divided-by-replicas"),
    ],
)
def test_a_loss_is_divided_by_the_replicas_of_the_side_that_has_several(loss: float, cause: str | None) -> None:
    other = on_two(with_loss(OFF, loss))
    found = locate(RIGHT, other, [], STEP, NAMES)
    both = replace(sides(other), close_ups=(RIGHT, other), step=STEP)
    one, two = both.traces
    both = replace(both, traces=(one, replace(two, replicas=2)))
    assert found.stage == ("loss" if cause else "gradients")
    assert [each.id for each in name_causes(found, both)] == [cause] * bool(cause)


@pytest.mark.usefixtures("texts_by_id")
@pytest.mark.parametrize(
    ("kind", "said"),
    [("BatchNormalization", "batch-norm-per-replica"), ("Dropout", "dropout-per-replica"), ("Dense", None)],
)
def test_layers_that_differ_by_themselves_are_said(kind: str, said: str | None) -> None:
    both = sides(RIGHT)
    one, two = (replace(trace, layers=[{"name": "layer", "class": kind, "config": {}}]) for trace in both.traces)
    located = Located(STEP, "predictions", where="layer")
    for count, expected in ((1, []), (2, [said] * bool(said))):
        of_sizes = replace(both, traces=(one, replace(two, replicas=count)))
        assert [each.kind for each in hints(located, of_sizes) if "per-replica" in each.kind] == expected


def test_gradients_that_each_replica_limits_are_said() -> None:
    both = sides(RIGHT)
    clip = Event("clip", 0, {"line": None}, [])
    limited = replace(RIGHT, steps={**RIGHT.steps, STEP: [*RIGHT.steps[STEP], clip]})
    one, two = both.traces
    for close_ups, said in (((limited, limited), True), ((RIGHT, limited), False)):
        of_sizes = replace(both, close_ups=close_ups, traces=(one, replace(two, replicas=2)))
        kinds = [each.kind for each in hints(Located(STEP, "gradients"), of_sizes)]
        assert ("clips-per-replica" in kinds) == said


@pytest.mark.parametrize(("limit", "replicas", "said"), [(1.0, 2, True), (None, 2, False), (1.0, 1, False)])
def test_gradients_that_each_replicas_optimizer_limits_are_said(limit: float | None, replicas: int, said: bool) -> None:
    both = sides(RIGHT)
    adam = {**ADAM, "config": {**ADAM["config"], "global_clipnorm": limit}}
    one, two = (replace(trace, optimizers=[adam]) for trace in both.traces)
    of_sizes = replace(both, traces=(one, replace(two, replicas=replicas)))
    kinds = [each.kind for each in hints(Located(STEP, "update"), of_sizes)]
    assert ("clips-per-replica" in kinds) == said


@pytest.mark.usefixtures("texts_by_id")
def test_what_micro_batches_change_by_themselves_is_said() -> None:
    limited = micro_batches()
    limited = replace(limited, steps={**limited.steps, STEP: [*limited.steps[STEP], Event("clip", 0, {}, [])]})
    classes = {"BatchNormalization": "batch-norm", "Dropout": "dropout", "Dense": ""}
    stages = (StageValues("loss", 0.0, 0.0),)
    for close_ups, side in (((RIGHT, limited), "loop"), ((limited, RIGHT), "fit")):
        both = replace(sides(RIGHT), close_ups=close_ups, step=STEP)
        found = {each.kind: each.quantities for each in hints(Located(STEP, "gradients", stages=stages), both)}
        assert found["clips-per-micro-batch"]["side"] == side
        for kind, said in classes.items():
            of_kind = [replace(trace, layers=[{"name": "a", "class": kind, "config": {}}]) for trace in both.traces]
            found = hints(Located(STEP, "predictions", where="a"), replace(both, traces=(of_kind[0], of_kind[1])))
            assert [(each.kind, each.quantities["count"]) for each in found] == [(f"{said}-per-micro-batch", 2)] * bool(
                said
            )
    equal = replace(sides(RIGHT), close_ups=(limited, limited), step=STEP)
    assert "clips-per-micro-batch" not in {
        each.kind for each in hints(Located(STEP, "gradients", stages=stages), equal)
    }


def test_an_experiment_trains_both_sizes_at_the_same_global_batch(tensorflow: Any, tmp_path: Path) -> None:
    given = {"experiment": "regression", "train_examples": 128, "batch_size": 16, "epochs": 1, "quiet": True}
    result = compare.run(**given, replicas=(1, 2), reports=tmp_path)
    (inner,) = result.path.glob("1-replica/run.json")
    assert '"batch_size": 32' in inner.read_text()
    loop, *across = result.details["comparisons"]
    assert loop["verdict"] == "identical" and "against" not in loop
    assert [(each["candidate"], each["verdict"]) for each in across] == [("fit", "alike"), ("loop", "alike")]
    assert all(each["against"].endswith("1-replica") for each in across)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"replicas": (1, 2, 4)}, "--replicas takes one number or two, not 3"),
        ({"replicas": (1, 0)}, "--replicas 0: give a whole number, from 1 to"),
        ({"replicas": (1, 2), "check": True}, "two numbers is for a full training with one seed, and for scripts"),
        ({"replicas": (1, 2), "seeds": 3}, "two numbers is for a full training with one seed, and for scripts"),
        ({"replicas": (1, 2), "strategy": "default"}, "--strategy default has one replica"),
        ({"replicas": (3, 2), "batch_size": 16}, "32 examples do not split evenly over 3 replicas"),
    ],
)
def test_sizes_that_cannot_be_compared_are_refused_in_one_line(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError) as refused:
        compare.run("regression", reports=tmp_path, quiet=True, **given)
    assert why in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((2, 1), "no recorded comparison is there"),  # fit fails on two replicas
        ((1, 2), "some of its 80 training examples differ from those of this comparison"),
    ],
)
def test_the_first_size_is_kept_if_the_second_cannot_be_compared(
    tensorflow: Any, tmp_path: Path, sizes: tuple[int, int], why: str
) -> None:
    random = np.random.default_rng()

    def load_data() -> Any:
        (x, y), validation = tasks.blobs(80, 15)
        return (x + random.normal(size=x.shape).astype("float32"), y), validation

    given = {"epochs": 1, "batch_size": 16, "reports": tmp_path, "name": "sizes", "quiet": True}
    with pytest.raises(NoVerdictError) as ended:
        compare.run(tasks.experiment(load_data=load_data), replicas=sizes, **given)
    assert why in str(ended.value) and "--baseline" not in str(ended.value)
    assert (tmp_path / "sizes" / f"{sizes[0]}-replica{'s' * (sizes[0] > 1)}" / "verdict.json").is_file()


@pytest.mark.parametrize("divisor", [1, 4])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("seen", [(StageValues("loss", True, 0.0, 0.0),), ()])
def test_gradients_that_are_never_set_back_are_said(
    divisor: int, kept: bool, seen: tuple[StageValues, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*gradients: tuple[float, float], rounding: float = 0.0) -> CloseUp:
        steps = {}
        for step, (one, two) in enumerate(gradients, start=1):
            info = {"positions": [0, 1, 2], "given": None, "line": ("loop.py", 7, "optimizer.apply(total, variables)")}
            arrays = [np.asarray(0.1), np.full(2, one), np.full(2, two), np.full(2, rounding)]
            sketched = [np.full(4, one), np.full(4, two), np.full(4, rounding)]
            steps[step] = [Event("gradients", 0, info, arrays), Event("sketch", 0, info, sketched)]
        return CloseUp(steps)

    monkeypatch.setattr(Sides, "parts", [1, divisor])
    limited = made((1.0, 2.0), (0.4, 0.3)) if kept else made((1.0, 2.0), (0.4, 0.2))  # a tenth of both, or of neither
    both = replace(sides(RIGHT), close_ups=(made((1.0, 2.0), (3.0, 1.0)), limited), step=2)
    assert [each.kind for each in hints(Located(2, "gradients", stages=seen), both)] == ["gradients-kept"] * kept
    # Of the third variable, all is rounding.
    second = 3.0 + 1.0 / divisor, (1.0 if kept else 1.1) + 2.0 / divisor
    right, other = made((1.0, 2.0), (3.0, 1.0)), made((1.0, 2.0), second, rounding=1e-9)
    both = replace(sides(RIGHT), close_ups=(right, other), step=2)
    located = Located(2, "gradients", stages=seen)
    found = hints(located, both)
    assert [each.kind for each in found] == ["gradients-kept"] * kept
    if kept:
        assert words.said(found[0]).endswith("after each update (loop.py:7: optimizer.apply(total, variables))")
