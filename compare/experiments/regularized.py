"""All kinds of regularization: L2 and L1 of weights, activity regularization, and ``add_loss`` in a custom layer.

A classifier with one hidden layer on the embedded sample of Fashion-MNIST.

What breaks a naive loop: these losses are in ``model.losses`` and have no effect unless the loop adds them to its loss
(``regularization-missing``). They do not depend on the number of examples: every replica computes all of them, so they
must be divided by the number of replicas (``regularization-not-divided-by-replicas``). ``fit`` also includes them in
the validation loss (``validation-loss-without-regularization``).
"""

from __future__ import annotations

import tensorflow as tf

from compare.experiments.fashion_mnist import on_sample


def build_model() -> tf.keras.Model:
    layers, regularizers = tf.keras.layers, tf.keras.regularizers

    class SmallLogits(tf.keras.layers.Layer):  # type: ignore[misc]
        """Returns its inputs unchanged, and adds a loss that keeps the logits small."""

        def call(self, logits: tf.Tensor) -> tf.Tensor:
            self.add_loss(1e-3 * tf.reduce_mean(tf.square(logits)))
            return logits

    penalties = {"kernel_regularizer": regularizers.L2(1e-3), "activity_regularizer": regularizers.L1(1e-4)}
    return tf.keras.Sequential(
        [
            layers.Flatten(),
            layers.Dense(128, activation="relu", **penalties),
            layers.Dense(10, kernel_regularizer=regularizers.L1(1e-4)),
            SmallLogits(),
        ]
    )


experiment = on_sample("regularized", build_model, build_optimizer=lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9))
