"""Classes of unequal size, made up for by weights: of the examples (``weighted``) or the classes (``class-weighted``).

Of class c of the embedded sample of Fashion-MNIST, 0.75 to the power of c of the images are kept: 600 T-shirts, and
45 ankle boots. ``weighted`` has sample weights in training and in validation; ``class-weighted`` has
``class_weight``, which is for training only, and is validated on equally many images of each class.

What breaks a naive loop: it unpacks ``(x, y)`` and drops the third, or knows nothing of ``class_weight``
(``sample-weights-dropped``, and ``validation-sample-weights-dropped``). ``fit`` divides by the number of examples,
not by the sum of their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compare.engine.data import Array, read_fashion_mnist, sample_source
from compare.experiment import Experiment
from compare.experiments.fashion_mnist import build_loss, build_metrics, build_optimizer

if TYPE_CHECKING:
    import tensorflow as tf

KEPT = 0.75 ** np.arange(10)
"""The share of each class's images that is kept."""
WEIGHTS = (KEPT.mean() / KEPT).astype(np.float32)
"""Each class's weight: the rarer the heavier, and 1 on average over the examples."""


def long_tail(images: Array, labels: Array) -> tuple[Array, Array]:
    """The first ``KEPT[c]`` of the images of every class c, in their order."""
    keep = np.zeros(len(labels), bool)
    for c, share in enumerate(KEPT):
        of_class = np.flatnonzero(labels == c)
        keep[of_class[: int(share * len(of_class))]] = True
    return images[keep], labels[keep]


def load_weighted_data() -> tuple[Any, Any]:
    """Images, labels and sample weights float32 ``[N]``, of 2,262 and 374 images."""

    def part(images: Array, labels: Array) -> tuple[Any, Any, Any]:
        images, labels = long_tail(images, labels)
        return images, labels, WEIGHTS[labels]

    train, validation = read_fashion_mnist(sample_source())
    return part(*train), part(*validation)


def load_data() -> tuple[Any, Any]:
    """Images and labels: 2,262 of classes of unequal size, and 100 of each class to validate on."""
    train, validation = read_fashion_mnist(sample_source())
    return long_tail(*train), validation


def build_model() -> tf.keras.Model:
    """Images ``[batch, 28, 28]`` of grey values to logits ``[batch, 10]``."""
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def build_weighted_metrics() -> list[tf.keras.metrics.Metric]:
    """Accuracy in which every class counts the same, since weights make up for their sizes."""
    import tensorflow as tf

    return [tf.keras.metrics.SparseCategoricalAccuracy(name="balanced_accuracy")]


weighted = Experiment(
    name="weighted",
    load_data=load_weighted_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_metrics=build_metrics,
    build_weighted_metrics=build_weighted_metrics,
    data_source=f"classes of 600 to 45 images, from the {sample_source().description}",
)

class_weighted = Experiment(
    name="class-weighted",
    load_data=load_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_metrics=build_metrics,
    class_weight={c: float(weight) for c, weight in enumerate(WEIGHTS)},
    data_source=weighted.data_source,
)
