"""A small DenseNet: batch normalization throughout, and every layer's output concatenated with its input.

Two dense blocks of three layers (Huang et al. 2017, https://arxiv.org/abs/1608.06993) on the embedded sample of
Fashion-MNIST.

What breaks a naive loop: without ``training=True``, all eight batch normalizations use moving averages that are never
updated (``training-flag-missing``). A step that is traced for a fixed batch size rounds batch normalization
differently from ``fit``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.experiments.fashion_mnist import on_sample
from compare.experiments.training_mode import MOMENTUM

GROWTH = 8
"""Number of channels that each layer of a dense block adds."""


def build_model() -> tf.keras.Model:
    layers = tf.keras.layers

    def activated(x: Any) -> Any:
        return layers.ReLU()(layers.BatchNormalization(momentum=MOMENTUM)(x))

    def dense_block(x: Any) -> Any:
        for _ in range(3):
            new = layers.Conv2D(GROWTH, 3, padding="same", use_bias=False)(activated(x))
            x = layers.Concatenate()([x, new])
        return x

    images = tf.keras.Input((28, 28, 1))
    x = layers.Conv2D(2 * GROWTH, 3, strides=2, padding="same", use_bias=False)(images)
    x = dense_block(x)
    # The transition halves the number of channels; pooling halves the size.
    x = layers.Conv2D(2 * GROWTH, 1, use_bias=False)(activated(x))
    x = layers.AveragePooling2D(2)(x)
    x = dense_block(x)
    x = layers.GlobalAveragePooling2D()(activated(x))
    return tf.keras.Model(images, layers.Dense(10)(x))


experiment = on_sample("densenet", build_model, build_optimizer=lambda: tf.keras.optimizers.Adam(0.005))
