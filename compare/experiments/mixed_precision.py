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
from typing import TYPE_CHECKING

from compare.engine.data import read_fashion_mnist, sample_source
from compare.experiment import Experiment
from compare.experiments.fashion_mnist import build_loss, build_metrics, build_optimizer, prepare

if TYPE_CHECKING:
    import tensorflow as tf


def build_model(policy: str) -> tf.keras.Model:
    """Builds a model from images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]`` in half precision."""
    import tensorflow as tf

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


def _experiment(name: str, policy: str) -> Experiment:
    return Experiment(
        name=name,
        load_data=lambda: read_fashion_mnist(sample_source()),
        build_model=partial(build_model, policy),
        build_loss=build_loss,
        build_optimizer=build_optimizer,
        build_metrics=build_metrics,
        prepare=prepare,
        data_source=sample_source().description,
    )


bfloat16 = _experiment("mixed-precision", "mixed_bfloat16")
float16 = _experiment("mixed-precision-float16", "mixed_float16")
