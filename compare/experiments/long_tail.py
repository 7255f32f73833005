"""Classes of unequal size, balanced by sample weights (``weighted``) or class weights (``class-weighted``).

For each class c of the embedded sample of Fashion-MNIST, a fraction 0.75**c of the images is kept, from 600 T-shirts
to 45 ankle boots. ``weighted`` has sample weights in training and validation. ``class-weighted`` has
``class_weight``, which applies to training only, and validates with the same number of images of each class.

What breaks a naive loop: it unpacks ``(x, y)`` and drops the sample weights, or ignores ``class_weight``
(``sample-weights-dropped`` and ``validation-sample-weights-dropped``). ``fit`` divides by the number of examples, not
by the sum of their weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.data import SAMPLE, Array, read_fashion_mnist
from compare.experiment import nothing
from compare.experiments.fashion_mnist import from_sample, on_sample

KEPT = 0.75 ** np.arange(10)
"""Fraction of the images of each class that is kept."""
WEIGHTS = (KEPT.mean() / KEPT).astype(np.float32)
"""Weight of each class: larger for rarer classes, and 1 on average over the examples."""


def long_tail(images: Array, labels: Array) -> tuple[Array, Array]:
    """Keeps the first images of each class, a fraction of ``KEPT[c]`` of class c, in their original order."""
    keep = np.zeros(len(labels), bool)
    for c, share in enumerate(KEPT):
        indices = np.flatnonzero(labels == c)
        keep[indices[: int(share * len(indices))]] = True
    return images[keep], labels[keep]


def weighted_long_tail(images: Array, labels: Array) -> tuple[Any, Any, Any]:
    """Returns images, labels and sample weights, float32 ``[N]``, of 2,262 or 374 images."""
    images, labels = long_tail(images, labels)
    return images, labels, WEIGHTS[labels]


def load_data() -> tuple[Any, Any]:
    """Returns images and labels: 2,262 from classes of unequal size, and 100 of each class for validation."""
    train, validation = read_fashion_mnist(SAMPLE)
    return long_tail(*train), validation


def build_model() -> tf.keras.Model:
    """Builds a model from images of grey values ``[batch, 28, 28]`` to logits ``[batch, 10]``."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


weighted = on_sample(
    "weighted",
    build_model,
    load_data=partial(from_sample, weighted_long_tail),
    prepare=None,
    # Every class has the same weight in this accuracy, because sample weights balance the classes.
    build_weighted_metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy(name="balanced_accuracy")],
    data_source=f"classes of 600 to 45 images, from the {SAMPLE.description}",
)

class_weighted = replace(
    weighted,
    name="class-weighted",
    load_data=load_data,
    build_weighted_metrics=nothing,
    class_weight={c: float(weight) for c, weight in enumerate(WEIGHTS)},
)
