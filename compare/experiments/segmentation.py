"""Segmentation: classifies every pixel as background or as part of a top, trousers, a dress, a shoe or a bag.

A small U-Net. The labels are derived from the embedded sample of Fashion-MNIST: every pixel that is not black belongs
to the garment.

What breaks a naive loop: labels have shape ``[batch, 28, 28]``, and ``fit`` averages the loss over the pixels too. The
tutorial's ``compute_average_loss(per_example_loss, global_batch_size=…)`` divides the sum by the number of images only,
which makes the loss 784 times larger (``loss-scaled``); Adam hides the difference.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.data import SAMPLE, Array
from compare.experiments.fashion_mnist import from_sample, on_sample

BACKGROUND, TOP, TROUSERS, DRESS, SHOE, BAG = range(6)
KIND_OF_CLASS = np.array([TOP, TROUSERS, TOP, DRESS, TOP, SHOE, TOP, SHOE, BAG, SHOE], np.uint8)
"""The kind of garment for each of the ten classes of Fashion-MNIST."""


def kinds(images: Array, labels: Array) -> tuple[Any, Any]:
    """Returns images, uint8 ``[N, 28, 28]``, and the kind of each pixel, uint8 ``[N, 28, 28]``."""
    return images, np.where(images > 0, KIND_OF_CLASS[labels][:, None, None], np.uint8(BACKGROUND))


def build_model() -> tf.keras.Model:
    """Builds a model from images ``[batch, 28, 28, 1]`` to logits ``[batch, 28, 28, 6]``."""
    layers = tf.keras.layers

    def convolution(filters: int, x: Any) -> Any:
        return layers.Conv2D(filters, 3, padding="same", activation="relu")(x)

    images = tf.keras.Input((28, 28, 1))
    fine = convolution(8, images)
    middle = convolution(16, layers.MaxPooling2D()(fine))
    coarse = convolution(32, layers.MaxPooling2D()(middle))
    x = convolution(16, layers.Concatenate()([layers.UpSampling2D()(coarse), middle]))
    x = convolution(8, layers.Concatenate()([layers.UpSampling2D()(x), fine]))
    return tf.keras.Model(images, layers.Conv2D(6, 1)(x))


experiment = on_sample(
    "segmentation",
    build_model,
    load_data=partial(from_sample, kinds),
    data_source=f"pixels labelled by kind of garment, from the {SAMPLE.description}",
)
