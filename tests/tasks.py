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
    **changes: Any,
) -> compare.Experiment:
    """A classifier with one hidden layer and the given complications."""
    import tensorflow as tf

    def build_model() -> Any:
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
