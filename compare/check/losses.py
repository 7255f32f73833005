"""Variants of a loss: with the other ``from_logits``, with class weights, and with broadcast shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


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


def squash_for(loss: Any) -> Any:
    """The function that makes probabilities of the logits that a loss takes; None if it takes none."""
    if tf.nest.is_nested(loss) or not getattr(loss, "from_logits", getattr(loss, "_fn_kwargs", {}).get("from_logits")):
        return None
    return tf.nn.sigmoid if "Binary" in type(loss).__name__ else tf.nn.softmax


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
