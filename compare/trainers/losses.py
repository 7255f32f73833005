"""What ``fit`` does about losses that a readable loop need not show: class weights, types, ranks, order of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from compare.errors import RequestError
from compare.trainers.outputs import KERAS_3, Output

SCOPE = "compile_loss/" if KERAS_3 else ""
"""Where in the graph ``fit`` computes losses: see ``total`` for what names matter to."""


def with_class_weight(class_weight: Mapping[int, float] | None, y: Any, sample_weight: Any) -> Any:
    """Sample weights that have each example count by its class; ``y`` holds classes, or is one-hot.

    Raises:
        RequestError: where ``fit`` refuses class weights, in its words.
    """
    if class_weight is None:
        return sample_weight
    if tf.nest.is_nested(y):
        raise RequestError("class_weight is only supported for models with a single output; use sample weights")
    if sample_weight is not None and KERAS_3:
        raise RequestError("Keras 3 takes class_weight or sample weights, not both; multiply them into sample weights")
    weights = tf.constant([float(class_weight.get(i, 1.0)) for i in range(max(class_weight) + 1)])
    if y.shape.rank == 1:
        classes = tf.round(y) if y.dtype.is_floating else y
    elif y.shape[-1] == 1:
        classes = tf.squeeze(tf.round(y) if y.dtype.is_floating else y, axis=-1)
    else:
        classes = tf.argmax(y, axis=-1)
    of_examples = tf.gather(weights, tf.cast(classes, tf.int32))
    if sample_weight is None:
        return of_examples
    return sample_weight * tf.cast(of_examples, sample_weight.dtype)


def per_example(loss: tf.keras.losses.Loss, y: tf.Tensor, predictions: tf.Tensor, sample_weight: Any) -> tf.Tensor:
    """One value per example, in the type that ``fit`` computes losses in, times the sample weights."""
    if KERAS_3:  # in float32, whatever the model computes in
        y, predictions = tf.cast(y, loss.dtype), tf.cast(predictions, loss.dtype)
    values = loss.call(y, predictions)
    if sample_weight is None:
        return values
    sample_weight = tf.cast(sample_weight, values.dtype)
    if sample_weight.shape.rank == values.shape.rank + 1:
        sample_weight = tf.squeeze(sample_weight, axis=-1)
    elif sample_weight.shape.rank == values.shape.rank - 1:  # a value per time step, say
        sample_weight = sample_weight[..., tf.newaxis]
    return values * sample_weight


def total(
    losses: Sequence[tuple[Output, tf.Tensor]], model_losses: Sequence[tf.Tensor], examples: tf.Tensor, replicas: int
) -> Any:
    """The weighted sum of the outputs' losses and of the model's own, rounded as in ``fit``.

    Each of several outputs' own loss is counted too. Keras 2 weighs it by the examples of the batch. Keras 3
    takes the batch's static size for its weight, which is open here as in ``fit``: so it becomes the plain
    mean over batches and replicas, unlike the total.

    Keras 3 scales every loss to this replica's share, and its report scales their sum back. On three
    replicas this may cost the last bit of the number, and here it does too.

    Of three losses the order of summation matters. TensorFlow's graph optimizer sorts the terms of a sum by
    their names in the graph, whatever the order in the program; so they get names here that sort as in fit:
    those of the losses, or numbers, by how many other products fit makes there for each.
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
            loss = tf.multiply(loss, output.loss_weight, _product_in_fit(i, replicas))
        terms.append(loss)
    if not KERAS_3:
        terms += [tf.add_n(_of_one_type(model_losses))] if model_losses else []
        return tf.add_n(_of_one_type(terms))
    shares = [terms[0] if len(terms) == 1 else sum(terms)] if terms else []
    shares += [tf.reduce_sum(loss) * (1.0 / replicas) for loss in model_losses]
    share = shares[0] if len(shares) == 1 else tf.reduce_sum(tf.stack(shares))
    return share * replicas if replicas > 1 else share


def _product_in_fit(output: int, replicas: int) -> str:
    """The name of the product loss times weight; fit makes others before it and in between."""
    several = replicas > 1
    return f"{SCOPE}Mul_{output * (1 + several) + several}" if KERAS_3 else f"{SCOPE}mul_{output * (3 + several) + 2}"


def reduction(loss: tf.keras.losses.Loss) -> str:
    """How a loss is reduced: "mean" over the examples, or "sum".

    Raises:
        RequestError: for a reduction that a loss to be trained cannot have, or that the loop does not know.
    """
    if loss.reduction in ("sum_over_batch_size", "mean", "auto"):
        return "mean"
    if loss.reduction == "sum":
        return "sum"
    raise RequestError(f"the custom loop knows losses that are a mean or sum over examples, not {loss.reduction!r}")


def _of_one_type(losses: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The losses in the widest floating type among them, as Keras 2 adds them up."""
    types = {loss.dtype for loss in losses}
    both_halves = {tf.bfloat16, tf.float16} <= types and not {tf.float32, tf.float64} & types
    widest = tf.float32 if both_halves else max((t for t in types if t.is_floating), key=lambda t: t.size)
    return [tf.cast(loss, widest) for loss in losses]
