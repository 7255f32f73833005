"""Mixed precision: layers that compute in bfloat16 (``mixed-precision``) or float16 (``mixed-precision-float16``).

A small CNN on the embedded sample of Fashion-MNIST; the weights stay float32.

What breaks a naive loop: the logits have half precision, and ``fit`` casts them to float32 before it computes the
loss; a loss computed in bfloat16 has only three significant digits. (There is no cause id for that.) In float16, small
gradients would underflow to zero. Therefore the optimizer, a ``LossScaleOptimizer``, expects the gradients of
``optimizer.scale_loss(loss)``, the loss multiplied by 32,768, and divides them by that factor. Without the scaled loss,
training makes almost no progress (``loss-scale-missing``).
"""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from compare.experiments.fashion_mnist import on_sample


def build_model(policy: str) -> tf.keras.Model:
    """Builds a model from images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]`` in half precision."""
    # The policy applies to all layers created from now on; the caller restores it afterwards.
    tf.keras.mixed_precision.set_global_policy(policy)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            tf.keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


bfloat16 = on_sample("mixed-precision", partial(build_model, "mixed_bfloat16"))
float16 = on_sample("mixed-precision-float16", partial(build_model, "mixed_float16"))
