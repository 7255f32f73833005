"""Loss scaling for mixed_float16, in which small gradients would otherwise underflow to zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from compare.trainers.outputs import KERAS_3


def scale_loss(optimizer: tf.keras.optimizers.Optimizer, loss: tf.Tensor) -> tf.Tensor:
    """Multiplies the loss by the optimizer's loss scale, if it has one."""
    if KERAS_3:
        return optimizer.scale_loss(loss)
    return optimizer.get_scaled_loss(loss) if _scales(optimizer) else loss


def unscale_gradients(optimizer: tf.keras.optimizers.Optimizer, gradients: Sequence[Any]) -> Sequence[Any]:
    """Divides the gradients by the optimizer's loss scale; a no-op in Keras 3, whose optimizers do it themselves."""
    if not KERAS_3 and _scales(optimizer):
        return optimizer.get_unscaled_gradients(gradients)  # type: ignore[no-any-return]
    return gradients


def _scales(optimizer: tf.keras.optimizers.Optimizer) -> bool:
    return isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
