"""Scripts that train with Keras 2: tf-keras where ``TF_USE_LEGACY_KERAS`` asks for it, or that of TensorFlow 2.15."""

from __future__ import annotations

import os
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import compare
from compare.app.script_sides import versions_of
from compare.check.recorded import settings_apart
from compare.errors import NoVerdictError, RequestError

needs_keras_2 = pytest.mark.skipif(find_spec("tf_keras") is None, reason="tf-keras is not installed")

SCRIPT = """
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        tf.keras.Input((4,)),
        layers.Dense(8, activation="relu", kernel_regularizer="l2"),
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        layers.Dense(2),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(np.float32(0.01))
assert not hasattr(optimizer, "apply")  # Keras 2
"""
FIT = SCRIPT + "model.compile(optimizer, loss)\nmodel.fit(x, y, epochs=2, batch_size=32, verbose=0)\n"
LOOP = (
    SCRIPT
    + """
@tf.function
def step(inputs, labels):
    with tf.GradientTape() as tape:
        value = loss(labels, model(inputs, training=True)) + tf.add_n(model.losses)
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

for epoch in range(2):
    for i in range(0, 64, 32):
        step(tf.constant(x[i : i + 32]), tf.constant(y[i : i + 32]))
"""
)


def compared(folder: Path, *texts: str) -> dict[str, Any]:
    scripts = [folder / name for name in ("fit.py", "loop.py")]
    for script, text in zip(scripts, texts, strict=True):
        script.write_text(text)
    return compare.run(scripts=[*map(str, scripts)], reports=folder / "reports", quiet=True).details


@needs_keras_2
def test_a_right_loop_is_identical_and_a_mistake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert compared(tmp_path, FIT, LOOP)["verdict"] == "identical"
    (entry,) = compared(tmp_path, FIT, LOOP.replace("training=True", "training=False"))["comparisons"]
    assert [cause["id"] for cause in entry["causes"]] == ["training-flag-missing"]
    monkeypatch.delenv("TF_USE_LEGACY_KERAS")
    asks = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
    assert compared(tmp_path, asks + FIT, asks + LOOP)["verdict"] == "identical"
    assert "TF_USE_LEGACY_KERAS" not in os.environ, "only the scripts have asked for it"


@needs_keras_2
def test_scaled_losses_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer that scales is another one than that which makes the update, and another one than in Keras 3."""
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    policy = "tf.keras.mixed_precision.set_global_policy('mixed_float16')\nlayers ="
    changes = {"layers =": policy, ', kernel_regularizer="l2"': "", "Adam(np.float32(0.01))": "SGD(1e-4)"}
    changes |= {
        " + tf.add_n(model.losses)": "\n        scaled = optimizer.get_scaled_loss(value)",
        "gradient(value,": "gradient(scaled,",
        "@tf.function": "optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)\n\n@tf.function",
    }
    fit, loop = FIT, LOOP
    for old, new in changes.items():
        fit, loop = fit.replace(old, new), loop.replace(old, new)
    (entry,) = compared(tmp_path, fit, loop)["comparisons"]
    assert [cause["id"] for cause in entry["causes"]] == ["loss-scale-missing"]
    right = loop.replace("zip(gradients,", "zip(optimizer.get_unscaled_gradients(gradients),")
    assert compared(tmp_path, fit, right)["verdict"] == "identical"


@needs_keras_2
@pytest.mark.parametrize(
    ("asked", "line", "why"),
    [
        ("1", "import keras\nprint(keras.Model)", "uses Keras 3; --scripts watches Keras 3 on TensorFlow, or tf-keras"),
        ("0", "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'", "sets TF_USE_LEGACY_KERAS itself"),
        ("", "import os\nif True:\n    os.environ['TF_USE_LEGACY_KERAS'] = '1'", "sets TF_USE_LEGACY_KERAS itself"),
    ],
)
def test_another_keras_than_the_one_that_is_asked_for_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, line: str, why: str
) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    if asked:
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", asked)
    with pytest.raises(NoVerdictError, match=why):
        compared(tmp_path, line, line)


@pytest.mark.parametrize(
    ("packages", "legacy", "found"),
    [
        ({"keras": "2.15.0"}, "0", "2.15.0"),
        ({"keras": "2.15.0"}, "1", "2.15.0"),
        ({"keras": "3.5.0", "tf_keras": "2.16.0"}, "0", "3.5.0"),
        ({"keras": "3.5.0", "tf_keras": "2.16.0"}, "1", "2.16.0"),
        ({"keras": "3.5.0"}, "1", "TF_USE_LEGACY_KERAS asks for tf-keras, which {} lacks; install it there"),
        ({"keras": "3.1.0"}, "0", "--python {}: it has keras 3.1.0; of Keras 3, 3.3 or newer is needed"),
        ({"keras": "2.13.1"}, "0", "--python {}: it has keras 2.13.1; keras 2.15 or newer is needed"),
    ],
)
def test_the_keras_of_an_environment_is_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], legacy: str, found: str
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    venv.create(tmp_path / "old", with_pip=False)
    (folder,) = (tmp_path / "old").glob("lib/python*/site-packages")
    for name, version in ({"tensorflow": "2.16.2", "numpy": "1.26.4"} | packages).items():
        (folder / f"{name}-{version}.dist-info").mkdir()
        (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    python = str(tmp_path / "old" / "bin" / "python")
    try:
        assert versions_of(python)["keras"] == found
    except RequestError as error:
        assert str(error) == found.format(python)


@pytest.mark.parametrize(
    ("own", "right", "found"),
    [
        ({"momentum": 0.5}, {"momentum": 0.99}, {"momentum": [0.5, 0.99]}),
        ({"l2": 0.1}, {"l2": 0.10000000149011612}, {}),
        ({"axis": -1}, {"axis": [3]}, {}),
        ({"axis": [-1]}, {"axis": [3]}, {}),
        ({"axis": [1]}, {"axis": [3]}, {"axis": [[1], [3]]}),
        ({"axis": [1, 2]}, {"axis": -1}, {"axis": [[1, 2], -1]}),
        ({"axis": 1}, {"axis": [3]}, {"axis": [1, [3]]}),
        ({"factor": 0.1}, {"factor": [-0.1, 0.1]}, {}),
        ({"factor": 0.1}, {"factor": [-0.3, 0.3]}, {"factor": [0.1, [-0.3, 0.3]]}),
        ({"pool_size": 2}, {"pool_size": [2, 2]}, {}),
        ({"pool_size": [2, 2]}, {"pool_size": 3}, {"pool_size": [[2, 2], 3]}),
        ({"activation": "relu"}, {"activation": "tanh"}, {"activation": ["relu", "tanh"]}),
        ({"clipnorm": None}, {"clipnorm": 1.0}, {"clipnorm": [None, 1.0]}),
        ({"regularizer": {"l2": 0.1}}, {"regularizer": None}, {"regularizer": [{"l2": 0.1}, None]}),
        ({"initializer": {"class_name": "Zeros"}}, {"initializer": {"class_name": "Ones"}}, {}),  # weights are seen
        ({"dtype": "float32"}, {"dtype": {"class_name": "DTypePolicy"}}, {}),
        (
            {"cells": [{"config": {"name": "a", "units": 2}, "build_config": 1}, {"config": {"units": 3}}]},
            {"cells": [{"config": {"name": "b", "units": 2}, "build_config": 4}, {"config": {"units": 5}}]},
            {"cells.1.units": [3, 5]},
        ),
        ({"cells": [{"units": 2}]}, {"cells": []}, {"cells": [[{"units": 2}], []]}),
    ],
)
def test_a_setting_that_two_versions_write_otherwise_is_the_same(
    own: dict[str, Any], right: dict[str, Any], found: dict[str, Any]
) -> None:
    assert settings_apart(own, right) == found
