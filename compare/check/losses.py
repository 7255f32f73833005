"""What losses make of predictions, right and wrong: other logits, class weights, shapes that broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def other_logits(loss: Any) -> Any:
    if loss is None:  # not every output needs one
        return None
    config = loss.get_config()
    if "from_logits" not in config:
        if not hasattr(loss, "from_logits"):
            return None
        config["from_logits"] = loss.from_logits
    try:
        return type(loss).from_config(config | {"from_logits": not config["from_logits"]})
    except (TypeError, ValueError):
        return None


def class_weights(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """What each example counts by its class; ``y`` holds classes, or is one-hot."""
    classes = np.asarray(y)
    if classes.ndim > 1:
        classes = classes[..., 0] if classes.shape[-1] == 1 else classes.argmax(-1)
    weights = [class_weight.get(int(each), 1.0) for each in np.round(classes).ravel()]
    return np.array(weights, np.float32).reshape(classes.shape)


def broadcastable(predictions: Any, y: Any) -> bool:
    """Whether labels [n] meet predictions [n, 1], or the other way round."""
    if tf.nest.is_nested(predictions) or tf.nest.is_nested(y):
        return False
    shapes = sorted([tuple(predictions.shape[1:]), tuple(np.shape(y)[1:])])
    return shapes == [(), (1,)]


def broadcast(loss: Any, y: tf.Tensor, predictions: tf.Tensor, weights: Any) -> tf.Tensor:
    """The mean of what ``y - predictions`` gives for shapes [n] and [n, 1]: every label against every prediction."""
    examples = tf.shape(predictions)[0]
    labels = tf.tile(tf.reshape(y, [1, examples]), [examples, 1])
    against = tf.tile(tf.reshape(predictions, [examples, 1]), [1, examples])
    means = tf.reduce_mean(loss.call(labels[..., tf.newaxis], against[..., tf.newaxis]), axis=1)
    return tf.reduce_mean(means if weights is None else means * tf.cast(weights, means.dtype))
