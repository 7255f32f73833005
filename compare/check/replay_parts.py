"""Parts of a replayed pass: batches and gradients, its result, layers and losses that behave otherwise for a recipe."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.observation import Rows
from compare.check.recipe import LossKind, Span

Batch = tuple[Any, ...]
"""(x, y) or (x, y, sample_weight) as NumPy arrays, or nests of them."""


def length(batch: Any) -> int:
    return len(tf.nest.flatten(batch)[0])


def concatenate(batches: Sequence[Any]) -> Any:
    """Concatenates nests of arrays or tensors along the first axis."""
    return tf.nest.map_structure(lambda *arrays: np.concatenate([np.asarray(array) for array in arrays]), *batches)


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    return tf.nest.map_structure(lambda array: array[start:stop], batch)  # type: ignore[no-any-return]


def batch_spans(epoch: int, batches: Sequence[Batch]) -> list[Span]:
    edges = np.cumsum([0, *map(length, batches)])
    return [Span(epoch, int(a), int(b)) for a, b in itertools.pairwise(edges)]


def divide(gradient: Any, factor: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divide(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / tf.cast(factor, gradient.dtype)


def dense(gradients: Sequence[Any], variables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the gradients as dense tensors, with zeros for missing ones."""
    pairs = zip(gradients, variables, strict=False)
    return [
        tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient) for gradient, variable in pairs
    ]


def pack(gradients: Sequence[tf.Tensor]) -> np.ndarray:
    """Concatenates gradients into one vector; a scalar 0 if there are none."""
    return np.concatenate([np.asarray(gradient).ravel() for gradient in gradients]) if gradients else np.zeros(())


def sparse_rows(shape: tuple[int, ...], data: Any, regularization: Any) -> tuple[Rows, Rows | None]:
    """The sparse gradients of a variable: of the data, and of the layers' losses, if there is one."""
    of_data, *of_layers = [
        Rows(np.asarray(indices, np.int64), np.asarray(values), shape) for indices, values in (data, *regularization)
    ]
    return of_data, of_layers[0] if of_layers else None


def add_rows(data: Rows, share: float, regularization: Rows | None, weight: float) -> Rows:
    """Returns ``share * data + weight * regularization`` as sparse rows."""
    indices, values = [data.indices], [data.values * np.asarray(share, data.values.dtype)]
    if regularization is not None:
        indices.append(regularization.indices)
        values.append(regularization.values * np.asarray(weight, regularization.values.dtype))
    return Rows(np.concatenate(indices), np.concatenate(values), data.shape)


OPTIONS: Mapping[LossKind, tuple[str, Callable[[Any], Any]]] = {
    LossKind.OTHER_LOGITS: ("from_logits", lambda given: not given),
    LossKind.UNSMOOTHED: ("label_smoothing", lambda given: 0.0),
}
"""The option of a loss that a recipe changes, and how."""


@dataclass(frozen=True)
class PassResult:
    """The result of a forward pass, and in training a backward pass, over one replica's part of a batch.

    Recipes are evaluated by combining these values.

    Attributes:
        data: ``[weights]``, the gradient of the sum of the examples' losses, in the variables' dtype.
        regularization: ``[weights]``, the gradient of the layers' losses; a scalar 0 if there are none.
        loss: the sum of the examples' losses.
        outputs: the mean loss of each of several outputs, by reported name.
        masks: the mask of each prediction, as a flat list; None where there is none.
        weights: the examples' weights, the product of sample and class weights; None if there are none.
        state: all variables after the forward pass.
        rows: the sparse gradients of the data and of the layers' losses, by index of the trainable variable; an
            optimizer may update only these rows.
    """

    data: np.ndarray
    regularization: np.ndarray
    loss: float
    penalties: list[float]
    outputs: dict[str, float]
    predictions: Any
    masks: list[Any]
    weights: Any
    state: list[np.ndarray]
    rows: dict[int, tuple[Rows, Rows | None]]

    @property
    def penalty(self) -> float:
        return sum(self.penalties)


def in_inference(call: Any, *args: Any, **options: Any) -> Any:
    """Calls a layer with ``training=False``, whatever the model is called with."""
    return call(*args, **{**options, "training": False})


def unmasked(layer: Any, call: Any, *args: Any, **options: Any) -> Any:
    """Calls a layer as if no mask had ever been made; a functional model passes masks as arguments, too."""
    outputs = call(*args, **({**options, "mask": None} if "mask" in options else options))
    return tf.identity(outputs) if is_masking(layer) else outputs  # whose outputs it has given a mask


def unrecovered(predictions: tf.Tensor) -> tf.Tensor:
    """The same predictions with their mask, behind which Keras finds no logits."""
    same = tf.identity(predictions)
    same._keras_mask = getattr(predictions, "_keras_mask", None)
    return same


def is_masking(layer: Any) -> bool:
    return isinstance(layer, tf.keras.layers.Masking)


def micro_batches(span: Span, size: int) -> list[Span]:
    """Splits a span into micro-batches; the last one may be short. If ``size`` is 0, there is one, or none if empty."""
    size = size or max(span.stop - span.start, 1)
    starts = range(span.start, span.stop, size)
    return [Span(span.epoch, start, min(start + size, span.stop)) for start in starts]


def with_other(loss: Any, option: str, change: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """Returns the loss with another value of an option, and the value it has; None if it cannot have another one."""
    try:
        config = loss.get_config()
        value = config.get(option, getattr(loss, option, None))
        if value is None or change(value) == value:
            return None
        return type(loss).from_config(config | {option: change(value)}), value
    except (AttributeError, TypeError, ValueError):  # not every output has a loss
        return None


def class_weights(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """Returns each example's class weight; ``y`` holds class indices, or is one-hot encoded."""
    classes = np.asarray(y)
    if classes.ndim > 1:
        classes = classes[..., 0] if classes.shape[-1] == 1 else classes.argmax(-1)
    weights = [class_weight.get(int(label), 1.0) for label in np.round(classes).ravel()]
    return np.array(weights, np.float32).reshape(classes.shape)


def broadcastable(predictions: Any, y: Any) -> list[int]:
    """The outputs of one number per example, whose labels [n] may meet predictions [n, 1], or the reverse."""
    pairs = zip(tf.nest.flatten(predictions), tf.nest.flatten(y), strict=False)
    shapes = [{tuple(predicted.shape[1:]), tuple(np.shape(label)[1:])} for predicted, label in pairs]
    return [i for i, both in enumerate(shapes) if (1,) in both and both <= {(), (1,)}]


class Broadcast(tf.keras.losses.Loss):  # type: ignore[misc]
    """A loss over all pairs of a label and a prediction, as broadcasting [n] with [n, 1] computes."""

    def __init__(self, loss: Any) -> None:
        super().__init__(name=loss.name, reduction=loss.reduction)
        self.loss = loss

    def call(self, y: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the mean over all labels of each prediction's loss: ``[n]``."""
        examples = tf.shape(predictions)[0]
        labels = tf.tile(tf.reshape(y, [1, examples]), [examples, 1])
        outputs = tf.tile(tf.reshape(predictions, [examples, 1]), [1, examples])
        losses = self.loss.call(labels[..., tf.newaxis], outputs[..., tf.newaxis])
        return tf.reduce_mean(tf.reshape(losses, [examples, -1]), axis=1)
