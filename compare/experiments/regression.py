"""Linear regression: predicts how much of an image is covered by the garment, from the mean brightness of its 28 rows.

One Dense unit, mean squared error, and SGD with a learning rate looked up by the global batch size, as in
TensorFlow's guide to distributed training. The data is derived from the embedded sample of Fashion-MNIST.

What breaks a naive loop: labels have shape ``[batch]`` and predictions ``[batch, 1]``, so
``tf.square(labels - predictions)`` has shape ``[batch, batch]`` and trains towards the mean of the labels, without any
error message (``label-shape-broadcast``). Another trap is a learning rate for a different batch size
(``optimizer-differs``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.data import SAMPLE, Array
from compare.experiment import Experiment
from compare.experiments.fashion_mnist import from_sample

LEARNING_RATES_BY_BATCH_SIZE = {64: 0.1, 128: 0.15, 256: 0.2}


def brightness(images: Array, labels: Array) -> tuple[Any, Any]:
    """Returns x, the mean brightness of each row, float32 ``[N, 28]`` in [0, 1], and y, the fraction of bright pixels.

    y is float32 ``[N]``; bright pixels have a value above 127.
    """
    rows = images.mean(axis=2) / 255
    return rows.astype(np.float32), (images > 127).mean(axis=(1, 2)).astype(np.float32)


def build_optimizer(global_batch_size: int) -> tf.keras.optimizers.Optimizer:
    """Returns SGD with the learning rate for the largest listed batch size that does not exceed this one.

    For a batch size below all listed ones, it uses the learning rate of the first.
    """
    listed = max((size for size in LEARNING_RATES_BY_BATCH_SIZE if size <= global_batch_size), default=64)
    return tf.keras.optimizers.SGD(LEARNING_RATES_BY_BATCH_SIZE[listed])


experiment = Experiment(
    name="regression",
    load_data=partial(from_sample, brightness),
    build_model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(1)]),
    build_loss=lambda: tf.keras.losses.MeanSquaredError(),
    build_optimizer=build_optimizer,
    build_metrics=lambda: [tf.keras.metrics.MeanAbsoluteError(name="mae")],
    data_source=f"brightness of rows, and share of bright pixels, from the {SAMPLE.description}",
)
