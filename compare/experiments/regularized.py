"""Regularization of every kind: L2 and L1 of weights, of a layer's activity, and a layer's own ``add_loss``.

A classifier with one hidden layer on the embedded sample of Fashion-MNIST.

What breaks a naive loop: these losses are in ``model.losses``, and only who adds them trains them
(``regularization-missing``). They do not depend on how many examples a replica has: each replica has them whole,
and they must be divided by the number of replicas (``regularization-not-divided-by-replicas``). ``fit`` reports them
in the validation loss too (``validation-loss-without-regularization``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.engine.data import read_fashion_mnist, sample_source
from compare.experiment import Experiment
from compare.experiments.fashion_mnist import build_loss, build_metrics, prepare

if TYPE_CHECKING:
    import tensorflow as tf


def build_model() -> tf.keras.Model:
    """Images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]``."""
    import tensorflow as tf

    regularizers = tf.keras.regularizers

    class SmallLogits(tf.keras.layers.Layer):  # type: ignore[misc]
        """Passes logits through, and has a loss that keeps them small."""

        def call(self, logits: tf.Tensor) -> tf.Tensor:
            self.add_loss(1e-3 * tf.reduce_mean(tf.square(logits)))
            return logits

    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(
                128,
                activation="relu",
                kernel_regularizer=regularizers.L2(1e-3),
                activity_regularizer=regularizers.L1(1e-4),
            ),
            tf.keras.layers.Dense(10, kernel_regularizer=regularizers.L1(1e-4)),
            SmallLogits(),
        ]
    )


def build_optimizer() -> tf.keras.optimizers.Optimizer:
    import tensorflow as tf

    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


experiment = Experiment(
    name="regularized",
    load_data=lambda: read_fashion_mnist(sample_source()),
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_metrics=build_metrics,
    prepare=prepare,
    data_source=sample_source().description,
)
