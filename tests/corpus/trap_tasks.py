"""Experiments for the page of traps (``scripts/traps.py``) that the package has not."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from compare.experiments import training_mode
from compare.experiments.fashion_mnist import fashion_mnist_sample
from corpus import planted

STEPS = 128
"""Optimizer steps of a run: 8 epochs of 16."""

scheduled = replace(
    fashion_mnist_sample,
    name="scheduled",
    build_optimizer=lambda: tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(0.003, STEPS)),
)

mlp = replace(
    training_mode.dropout,
    name="mlp",
    build_model=lambda: tf.keras.Sequential(
        [tf.keras.layers.Flatten(), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    ),
    build_optimizer=lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
)

mlp_batchnorm = replace(
    mlp,
    name="mlp-batchnorm",
    # With Keras's default momentum of 0.99, the moving statistics would not converge in so short a run.
    build_model=lambda: tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64),
            tf.keras.layers.BatchNormalization(momentum=0.9),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(10),
        ]
    ),
)


def _one_hot(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(x, tf.float32) / 255, tf.one_hot(tf.cast(y, tf.int32), 10)


smoothed = replace(
    mlp,
    name="smoothed",
    prepare=_one_hot,
    build_loss=lambda: tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    build_metrics=lambda: [tf.keras.metrics.CategoricalAccuracy(name="accuracy")],
)

plateau = replace(
    mlp,
    name="plateau",
    # It would otherwise wait for ten epochs without progress.
    build_callbacks=lambda: [tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.05 * 0.6**epoch)],
)

masked = planted.masked()
