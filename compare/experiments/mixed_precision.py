"""Mixed precision: layers that compute in bfloat16 (``mixed-precision``) or float16 (``mixed-precision-float16``).

A small CNN on the embedded sample of Fashion-MNIST; the weights stay float32.

What breaks a naive loop: logits come in half precision, and ``fit`` takes them to float32 before the loss; a loss
that is computed in bfloat16 has three digits. (No cause id is for that.) In float16, gradients would become too
small to be told from zero: the optimizer, a ``LossScaleOptimizer``, expects those of a loss multiplied by 32,768,
which is ``optimizer.scale_loss(loss)``, and divides them by it; without, training is as good as still
(``loss-scaled``).
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
    """Images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]`` in half precision."""
    import tensorflow as tf

    # For the layers made from here on. Who builds the model sets it back for those made later.
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
