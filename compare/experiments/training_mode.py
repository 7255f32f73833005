"""Layers that behave differently in training: batch normalization (``batchnorm``) and dropout (``dropout``).

Small classifiers on the embedded sample of Fashion-MNIST. The dropout layer has a seed, so that every trainer uses the
same masks.

What breaks a naive loop: without ``training=True``, dropout does nothing, and batch normalization uses moving averages
that are never updated (``training-flag-missing``). Validation with ``training=True`` changes those averages
(``validation-changes-state``). With several replicas, each replica normalizes by its own part of the batch.
"""

from __future__ import annotations

import tensorflow as tf

from compare.experiments.fashion_mnist import on_sample

MOMENTUM = 0.9
"""Momentum of the moving averages. Keras's default 0.99 needs more than the 47 or 94 steps of an epoch here."""


def build_batchnorm_model() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, strides=2, use_bias=False),
            tf.keras.layers.BatchNormalization(momentum=MOMENTUM),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Conv2D(32, 3, strides=2, use_bias=False),
            tf.keras.layers.BatchNormalization(momentum=MOMENTUM),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


def build_dropout_model() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(256, activation="relu"),
            tf.keras.layers.Dropout(0.5, seed=1),
            tf.keras.layers.Dense(10),
        ]
    )


batchnorm = on_sample("batchnorm", build_batchnorm_model)

dropout = on_sample("dropout", build_dropout_model)
