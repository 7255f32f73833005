"""Loss scaling, which mixed_float16 needs: gradients too small for float16 would become zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from compare.trainers.outputs import KERAS_3


def scaled(optimizer: tf.keras.optimizers.Optimizer, loss: tf.Tensor) -> tf.Tensor:
    """The loss times the optimizer's loss scale, if it has one."""
    if KERAS_3:
        return optimizer.scale_loss(loss)
    return optimizer.get_scaled_loss(loss) if _scales(optimizer) else loss


def unscaled(optimizer: tf.keras.optimizers.Optimizer, gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients divided by that scale again; Keras 3's optimizers do it themselves."""
    if not KERAS_3 and _scales(optimizer):
        return optimizer.get_unscaled_gradients(gradients)  # type: ignore[no-any-return]
    return gradients


def _scales(optimizer: tf.keras.optimizers.Optimizer) -> bool:
    return isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
