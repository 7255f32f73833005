"""Small experiments for tests, each with something in it that naive loops get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

import compare


def blobs(train: int, validation: int, *, weights: bool = False) -> Any:
    """Three classes of points in 8 dimensions, as ((x, y[, w]), (x, y[, w]))."""
    generator = np.random.default_rng(7)
    centres = generator.normal(size=(3, 8)) * 2

    def part(count: int) -> tuple[np.ndarray, ...]:
        labels = generator.integers(0, 3, count)
        points = (centres[labels] + generator.normal(size=(count, 8))).astype(np.float32)
        part = (points, labels.astype(np.int32))
        return (*part, generator.uniform(0.5, 2, count).astype(np.float32)) if weights else part

    return part(train), part(validation)


def experiment(
    *,
    train: int = 75,
    validation: int = 36,
    optimizer: Any = None,
    batch_norm: bool = False,
    regularize: bool = False,
    dropout: bool = False,
    weights: bool = False,
    policy: str = "",
    **changes: Any,
) -> compare.Experiment:
    """A classifier with one hidden layer and the given complications."""
    import tensorflow as tf

    def build_model() -> Any:
        if policy:  # for all layers created from now on; the caller restores it
            tf.keras.mixed_precision.set_global_policy(policy)
        regularizer = tf.keras.regularizers.L2(0.01) if regularize else None
        layers = [tf.keras.layers.Dense(16, activation="relu", kernel_regularizer=regularizer)]
        layers += [tf.keras.layers.BatchNormalization()] if batch_norm else []
        layers += [tf.keras.layers.Dropout(0.3)] if dropout else []
        return tf.keras.Sequential([*layers, tf.keras.layers.Dense(3)])

    parts: dict[str, Any] = {
        "name": "blobs",
        "load_data": lambda: blobs(train, validation, weights=weights),
        "build_model": build_model,
        "build_loss": lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "build_optimizer": optimizer or (lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9)),
        "build_metrics": lambda: [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    }
    return compare.Experiment(**(parts | changes))


def words(validation: int = 100, **changes: Any) -> compare.Experiment:
    """Words to classes: an embedding with sparse gradients, in which rows of repeated words occur twice."""
    import tensorflow as tf

    def part(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.random.default_rng(seed).integers(0, 20, (count, 6)).astype(np.int32)
        return x, (x.sum(1) % 3).astype(np.int32)

    layers = tf.keras.layers
    return experiment(
        load_data=lambda: (part(200, 1), part(validation, 2)),
        build_model=lambda: tf.keras.Sequential([layers.Embedding(30, 4), layers.Flatten(), layers.Dense(3)]),
        **changes,
    )


def several(
    *,
    outputs: str = "tuple",
    inputs: str = "one",
    kind: str = "functional",
    train: int = 45,
    validation: int = 21,
    weights: str = "",
    extra: bool = False,
    numbers_only: bool = False,
    **changes: Any,
) -> compare.Experiment:
    """A model with a class ``a``, a number ``b`` and a number ``c`` to predict, from one input or two.

    Args:
        outputs: "tuple", "list" or "dict": how model and labels hold the three.
        inputs: "one", "tuple" or "dict" (of two).
        kind: "functional" or "subclassed".
        weights: "shared" for sample weights, "each" for those of each output.
        extra: losses of the layers' own: add_loss, activity and weight regularizers.
        numbers_only: ``a`` is three numbers instead of a class.
    """
    import tensorflow as tf

    keras = tf.keras

    def holding(a: Any, b: Any, c: Any) -> Any:
        return {"a": a, "b": b, "c": c} if outputs == "dict" else (list if outputs == "list" else tuple)((a, b, c))

    def part(count: int, seed: int) -> Any:
        (points, labels), _ = blobs(count, 1)
        generator = np.random.default_rng(seed)
        x = {"one": points, "tuple": (points[:, :3], points[:, 3:]), "dict": {"u": points[:, :3], "v": points[:, 3:]}}
        numbers = points[:, :1] ** 2, np.abs(points[:, 1:2]) * 30
        of = holding if outputs == "dict" else lambda *three: three
        weight = [generator.uniform(0.5, 2, count).astype(np.float32) for _ in range(3)]
        sample_weight = {"": (), "shared": (weight[0],), "each": (of(*weight),)}[weights]
        return (x[inputs], of(points[:, 5:] if numbers_only else labels, *numbers), *sample_weight)

    class AddsLoss(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * tf.reduce_mean(x * x))
            return x

    def layers() -> dict[str, Any]:
        regularizer = keras.regularizers.L2(0.01) if extra else None
        return {
            "join": keras.layers.Concatenate(),
            "hidden": keras.layers.Dense(
                8,
                activation="relu",
                kernel_regularizer=regularizer,
                activity_regularizer=keras.regularizers.L1(0.01) if extra else None,
            ),
            "add": AddsLoss() if extra else keras.layers.Activation("linear"),
            "a": keras.layers.Dense(3, name="a", kernel_regularizer=regularizer),
            "b": keras.layers.Dense(1, name="b", bias_regularizer=regularizer),
            "c": keras.layers.Dense(1, name="c", kernel_regularizer=regularizer),
        }

    def forward(layer: dict[str, Any], x: Any) -> Any:
        x = x if inputs == "one" else layer["join"](list(x.values()) if isinstance(x, dict) else list(x))
        hidden = layer["add"](layer["hidden"](x))
        return holding(layer["a"](hidden), layer["b"](hidden), layer["c"](hidden))

    class Subclassed(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = layers()

        def call(self, x: Any, training: bool = False) -> Any:
            return forward(self.parts, x)

    def build_model() -> Any:
        if kind == "subclassed":
            return Subclassed()
        shapes = {"one": 8, "tuple": (3, 5), "dict": {"u": 3, "v": 5}}[inputs]
        x = tf.nest.map_structure(lambda size: keras.Input((size,)), shapes)
        if inputs == "dict":
            x = {name: keras.Input((size,), name=name) for name, size in shapes.items()}
        return keras.Model(x, forward(layers(), x))

    parts: dict[str, Any] = {
        "name": "several",
        "load_data": lambda: (part(train, 1), part(validation, 2)),
        "build_model": build_model,
        "build_loss": lambda: holding(
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            keras.losses.MeanSquaredError(),
            keras.losses.Huber(),
        ),
        "build_optimizer": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        "build_metrics": lambda: holding(
            [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            [keras.metrics.MeanAbsoluteError(name="mae"), keras.metrics.MeanSquaredError(name="mse")],
            [],
        ),
    }
    return compare.Experiment(**(parts | changes))
