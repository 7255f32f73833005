"""Details of how ``fit`` computes losses: class weights, dtypes, ranks, the order of sums, and scaling for float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from compare.errors import RequestError
from compare.trainers.outputs import KERAS_3, Output

SCOPE = "compile_loss/" if KERAS_3 else ""
"""The name scope in which ``fit`` computes losses; ``total`` explains why names matter."""


def mask_of(predictions: tf.Tensor, dtype: Any) -> Any:
    """Returns the Keras mask of the predictions (of ``mask_zero``, say) as 1 and 0; None without a mask.

    Keras attaches the mask to the tensor itself. Any operation on the tensor loses it, even a cast.
    """
    mask = getattr(predictions, "_keras_mask", None)
    return None if mask is None else tf.cast(mask, dtype)


def mask_for_metrics(predictions: tf.Tensor) -> Any:
    """Returns the mask by which a metric's sample weights are multiplied; None for Keras 3's, which read it."""
    return None if KERAS_3 else mask_of(predictions, predictions.dtype)


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
    if sample_weight is not None and KERAS_3:
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
    if KERAS_3:  # float32 by default, whatever the compute dtype of the model
        y, predictions = tf.cast(y, loss.dtype), tf.cast(predictions, loss.dtype)
    values = loss.call(y, predictions)
    if sample_weight is None:
        return values
    sample_weight = tf.cast(sample_weight, values.dtype)
    if sample_weight.shape.rank == values.shape.rank + 1:
        sample_weight = tf.squeeze(sample_weight, axis=-1)
    elif sample_weight.shape.rank == values.shape.rank - 1:  # one loss per time step, for example
        sample_weight = sample_weight[..., tf.newaxis]
    return values * sample_weight


def total(
    losses: Sequence[tuple[Output, tf.Tensor]], model_losses: Sequence[tf.Tensor], examples: tf.Tensor, replicas: int
) -> Any:
    """Returns the weighted sum of the outputs' losses and the model's own losses, rounded as in ``fit``.

    The function also updates the loss metric of each output, for a model with several outputs. Keras 2 weights it by
    the number of examples. Keras 3 weights it by the static batch size, which is unknown here as in ``fit``; the
    metric is then the plain mean over batches and replicas, unlike the total loss.

    Keras 3 scales every loss to this replica's share, and scales the sum back for the report. On three replicas this
    can change the last bit of the reported loss, here as in ``fit``.

    The order of summation matters from three losses on. TensorFlow's graph optimizer sorts the terms of a sum by
    their names in the graph, whatever their order in the program. So the terms get names here that sort as in
    ``fit``: the names of the losses, or numbers that count the other products that ``fit`` creates in that scope.

    Losses and ``examples``, their number, are scalars of this replica.
    """
    terms = []
    for i, (output, loss) in enumerate(losses):
        if KERAS_3 and replicas > 1:
            loss = tf.multiply(loss, 1.0 / replicas, f"{SCOPE}{output.loss.name}/Mul")
        if output.loss_metric is not None:
            if KERAS_3:
                output.loss_metric.update_state(loss * replicas if replicas > 1 else loss)
            else:
                output.loss_metric.update_state(loss, sample_weight=examples)
        if output.loss_weight is not None:
            loss = tf.multiply(loss, output.loss_weight, _name_of_product(i, replicas))
        terms.append(loss)
    if not KERAS_3:
        terms += [tf.add_n(_cast_to_widest(model_losses))] if model_losses else []
        return tf.add_n(_cast_to_widest(terms))
    shares = [terms[0] if len(terms) == 1 else sum(terms)] if terms else []
    shares += [tf.reduce_sum(loss) * (1.0 / replicas) for loss in model_losses]
    share = shares[0] if len(shares) == 1 else tf.reduce_sum(tf.stack(shares))
    return share * replicas if replicas > 1 else share


def _name_of_product(output: int, replicas: int) -> str:
    """Returns the name that ``fit`` gives to the product of an output's loss and its weight.

    The number in the name counts the products that ``fit`` creates in the same scope before this one.
    """
    several = replicas > 1
    return f"{SCOPE}Mul_{output * (1 + several) + several}" if KERAS_3 else f"{SCOPE}mul_{output * (3 + several) + 2}"


def reduction(loss: tf.keras.losses.Loss) -> str:
    """Returns the reduction of a loss over the examples: "mean" or "sum"."""
    if loss.reduction in ("sum_over_batch_size", "mean", "auto"):
        return "mean"
    if loss.reduction == "sum":
        return "sum"
    raise RequestError(
        f"the custom loop does not support the loss reduction {loss.reduction!r}; use a mean or sum over the examples"
    )


def _cast_to_widest(losses: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Casts the losses to the widest floating dtype among them, as Keras 2 does before it adds them."""
    dtypes = {loss.dtype for loss in losses}
    widest = max((dtype for dtype in dtypes if dtype.is_floating), key=lambda dtype: dtype.size)
    if {tf.bfloat16, tf.float16} <= dtypes and not {tf.float32, tf.float64} & dtypes:
        widest = tf.float32
    return [tf.cast(loss, widest) for loss in losses]


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
