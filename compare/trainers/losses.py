"""Details of how ``fit`` computes losses: class weights, dtypes, ranks, the order of sums, and scaling for float16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from compare.engine.insides_tensorflow import called_as_it_is
from compare.engine.keras_generation import LOSS_SCOPE as LOSS_SCOPE
from compare.engine.keras_generation import WEIGHTS_ONCE, cast_for_loss
from compare.engine.keras_generation import scale_loss as scale_loss
from compare.engine.keras_generation import total as total
from compare.engine.keras_generation import unscale_gradients as unscale_gradients
from compare.errors import RequestError


@called_as_it_is
def mask_of(predictions: tf.Tensor, dtype: Any) -> Any:
    """Returns the Keras mask of the predictions (of ``mask_zero``, say) as 1 and 0; None without a mask.

    Keras attaches the mask to the tensor itself. Any operation on the tensor loses it, even a cast.
    """
    mask = getattr(predictions, "_keras_mask", None)
    return None if mask is None else tf.cast(mask, dtype)


@called_as_it_is
def with_class_weight(class_weight: Mapping[int, float] | None, y: Any, sample_weight: Any) -> Any:
    """Multiplies the sample weights by the weight of each example's class.

    Args:
        class_weight: maps each class to its weight, 1 by default; None for no class weights.
        y: labels: classes, ``[examples]`` or ``[examples, 1]``, or one-hot vectors, ``[examples, classes]``.
        sample_weight: ``[examples]``, or None.

    Returns:
        Sample weights ``[examples]``; ``sample_weight`` unchanged if there are no class weights.

    Raises:
        RequestError: if ``fit`` does not support class weights here.
    """
    if class_weight is None:
        return sample_weight
    if tf.nest.is_nested(y):
        raise RequestError("class_weight requires a model with a single output; use sample weights instead")
    if sample_weight is not None and WEIGHTS_ONCE:
        raise RequestError(
            "Keras 3 accepts either class_weight or sample weights, not both; multiply the class weights into the "
            "sample weights"
        )
    weights = tf.constant([float(class_weight.get(i, 1.0)) for i in range(max(class_weight) + 1)])
    if y.shape.rank == 1:
        classes = tf.round(y) if y.dtype.is_floating else y
    elif y.shape[-1] == 1:
        classes = tf.squeeze(tf.round(y) if y.dtype.is_floating else y, axis=-1)
    else:
        classes = tf.argmax(y, axis=-1)
    example_weights = tf.gather(weights, tf.cast(classes, tf.int32))
    if sample_weight is None:
        return example_weights
    return sample_weight * tf.cast(example_weights, sample_weight.dtype)


def per_example(loss: tf.keras.losses.Loss, y: tf.Tensor, predictions: tf.Tensor, sample_weight: Any) -> tf.Tensor:
    """Returns the weighted loss of each example, in the dtype in which ``fit`` computes losses."""
    values = loss.call(*cast_for_loss(loss, y, predictions))
    if sample_weight is None:
        return values
    sample_weight = tf.cast(sample_weight, values.dtype)
    if sample_weight.shape.rank == values.shape.rank + 1:
        sample_weight = tf.squeeze(sample_weight, axis=-1)
    elif sample_weight.shape.rank == values.shape.rank - 1:  # one loss per time step, for example
        sample_weight = sample_weight[..., tf.newaxis]
    return values * sample_weight
