"""What has changed between two runs: said of a baseline whose weights are others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tasks
from eager import Eager, run

from compare.check.changed import changed
from compare.check.words import said
from compare.engine.described import described, without_long
from compare.errors import RequestError


class Second(Eager):
    name = "second"


LAYERS = [{"name": "dense", "class": "Dense", "config": {"units": 2, "kernel_initializer": {"class_name": "Zeros"}}}]
INPUT = {"name": "i", "class": "InputLayer", "config": {}}
RUN = {
    "options": {"jit": False, "seed": 0},
    "versions": {"tensorflow": "2.21.0"},
    "threads": {"used": 2},
    "arithmetic": {"XLA_FLAGS": ""},
    "strategy": {"name": "mirrored", "replicas": 1, "devices": ["CPU:0"], "global_batch_size": 64},
    "code": {"compare": "a", "own/task.py": "b"},
    "settings": {"model": LAYERS, "optimizer": [{"class": "SGD", "config": {"learning_rate": 0.1}}], "loss": []},
}


def settings(**parts: Any) -> dict[str, Any]:
    return {**RUN["settings"], **parts}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"options": {"jit": True, "seed": 1}}, ["this run has --jit True, not False"]),
        ({"versions": {"tensorflow": "2.22.0", "keras": "4"}}, ["this run has tensorflow 2.22.0, not 2.21.0"]),
        ({"arithmetic": {"XLA_FLAGS": "--x"}}, ["this run has XLA_FLAGS --x, not unset"]),
        ({"threads": {"used": 4}}, ["this run has threads (used) 4, not 2"]),
        (
            {"strategy": {"name": "default", "replicas": 2, "devices": ["CPU:0", "CPU:1"], "global_batch_size": 32}},
            ["this run has the strategy's replicas 2, not 1"],
        ),
        (
            {
                "strategy": {"replicas": 2},
                "settings": settings(
                    model=[*LAYERS, {"name": "d", "class": "SpatialDropout1D", "config": {}}],
                    optimizer=[{"class": "SGD", "config": {"clipnorm": 1.0, "learning_rate": 0.1}}],
                ),
            },
            [
                "this run has the layers Dense, SpatialDropout1D, not Dense",
                "this run has the strategy's replicas 2, not 1",
                "d draws",
                "both limit gradients; on 2 replicas",
            ],
        ),
        ({"code": {"compare": "a", "own/task.py": "c"}}, ["task.py has changed since the recorded run"]),
        (
            {"code": {"compare": "b", "own/task.py": "c", "new.py": "d"}},
            ["this run has the files new.py, not none", "fit-vs-loop and task.py have changed since the recorded run"],
        ),
        (
            {"settings": settings(optimizer=[{"class": "SGD", "config": {"learning_rate": 0.2, "name": "s"}}])},
            ["this run's SGD has learning_rate=0.2 instead of 0.1"],
        ),
        (
            {"settings": settings(optimizer=[{"class": "Adam", "config": {"learning_rate": 0.2}}])},
            ["this run has the optimizer Adam, not SGD"],
        ),
        (
            {"settings": settings(model=[*LAYERS, {"name": "dropout", "class": "Dropout", "config": {}}])},
            ["this run has the layers Dense, Dropout, not Dense"],
        ),
        (
            {"settings": settings(model=[LAYERS[0] | {"name": "dense_1", "config": {"units": 3}}])},
            ["this run's layer 1 (Dense) has units=3 instead of 2"],
        ),
        (
            {"settings": settings(model=[LAYERS[0] | {"config": {"kernel_initializer": {"class_name": "Ones"}}}])},
            ["this run's layer 1 (Dense) has kernel_initializer.class_name=Ones instead of Zeros"],
        ),
        (
            {
                "settings": settings(
                    model=[{"name": "i", "class": "InputLayer", "config": {}}, LAYERS[0] | {"config": {"units": 3}}]
                )
            },
            [
                "this run has the layers InputLayer, Dense, not Dense",
                "this run's layer 1 (Dense) has units=3 instead of 2",
            ],
        ),
        ({"settings": settings(loss=[{"class": "mse", "config": {}}])}, ["this run has the loss mse, not none"]),
        ({}, ["settings, versions, fit-vs-loop and task.py are as in the recorded run"]),
    ],
)
def test_what_has_changed_is_said(now: dict[str, Any], told: list[str]) -> None:
    found = [said(each) for each in changed({**RUN, **now}, RUN)]
    assert [each[: len(part)] for each, part in zip(found, told, strict=True)] == told


def test_a_long_list_of_a_configuration_is_told_by_its_checksum() -> None:
    words = [str(number) for number in range(500)]
    short = without_long({"vocabulary": words, "rate": [0.5] * 100, "of": [{"code": "x" * 101}]})
    assert short["rate"] == [0.5] * 100 and short["vocabulary"].startswith("500 values, SHA-256 ")
    assert short["of"][0]["code"].startswith("101 values")
    assert short["vocabulary"] != without_long([*words[:-1], "x"]), "another word is another value"


def test_settings_that_json_does_not_have_are_left_out_and_nothing_fails(tensorflow: Any, tmp_path: Any) -> None:
    keras = tensorflow.keras

    class Odd(keras.layers.Layer):
        def get_config(self) -> dict[Any, Any]:
            return {(1, 2): "a pair"}

        def call(self, x: Any) -> Any:
            return x

    class Failing(keras.optimizers.SGD):
        def get_config(self) -> dict[Any, Any]:
            raise RuntimeError("not today")

    limits = keras.layers.ReLU(max_value=float("inf"))
    experiment = replace(
        tasks.experiment(),
        build_model=lambda: keras.Sequential([limits, Odd(), keras.layers.Dense(3)]),
        build_optimizer=lambda: Failing(0.125),
    )
    assert described(Failing(0.125))["class"] == "Failing" and described(Odd())["config"] == {}
    assert run(experiment, tmp_path, (Eager(), Second()), epochs=1).verdict == "identical"


def test_of_a_run_of_an_earlier_version_settings_are_not_called_equal() -> None:
    (found,) = changed(RUN, {name: value for name, value in RUN.items() if name != "settings"})
    assert said(found).startswith("versions, fit-vs-loop and task.py are as in the recorded run")


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_weights_at_epoch_ends_may_be_left_out_of_a_copy_of_a_baseline(
    damage: str, tensorflow: Any, tmp_path: Any
) -> None:
    def experiment(rate: float) -> Any:
        return replace(tasks.experiment(), build_optimizer=lambda: tensorflow.keras.optimizers.SGD(rate))

    trainers = Eager(), Second()
    run(experiment(0.1), tmp_path, trainers, epochs=1, name="old")
    for path in (tmp_path / "old" / "records").glob("*-epoch*.npz"):
        path.unlink() if damage == "missing" else path.write_bytes(b"damaged")

    def against_old() -> Any:
        return run(experiment(0.2), tmp_path, trainers, epochs=1, name="new", baseline=tmp_path / "old")

    if damage == "missing":
        assert against_old().since_baseline == "different"
    else:
        with pytest.raises(RequestError, match=r"--baseline .*epoch001.npz: damaged"):
            against_old()


def test_a_baseline_with_other_weights_is_told_with_what_has_changed(tensorflow: Any, tmp_path: Any) -> None:
    experiment = tasks.experiment()
    keras = tensorflow.keras
    trainers = Eager(), Second()
    slower = replace(experiment, build_optimizer=lambda: keras.optimizers.SGD(0.0625))
    old = run(slower, tmp_path, trainers, epochs=1, name="old")
    same = run(slower, tmp_path, trainers, epochs=1, name="same", baseline=tmp_path / "old")
    assert same.verdict == "identical" and not same.evidence
    assert same.between_trainers == same.since_baseline == "identical"
    other = replace(slower, build_optimizer=lambda: keras.optimizers.SGD(0.125))
    result = run(other, tmp_path, trainers, epochs=1, name="new", baseline=tmp_path / "old")
    assert result.verdict == "different"
    assert set(result.evidence) == {"this run's SGD has learning_rate=0.125 instead of 0.0625"}
    assert (result.between_trainers, result.since_baseline) == ("identical", "different")
    assert (old.between_trainers, old.since_baseline) == ("identical", None)
    assert {"between_trainers", "since_baseline"}.isdisjoint(old.details)
    renamed = type("Renamed", (Second,), {"name": "renamed"})()
    alone = run(slower, tmp_path, (Eager(), renamed), epochs=1, name="alone", baseline=tmp_path / "old")
    assert alone.since_baseline == "identical" and alone.notes == [
        "renamed is not in old, and is not compared with it."
    ]
    assert str(result).endswith("Between this run's trainers: identical. Compared with old: different.")
    assert "Yes, exactly, but not as in old." in (result.path / "report.html").read_text(encoding="utf-8")
