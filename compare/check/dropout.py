"""Makes the dropout of Keras 2 reproducible."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.engine.strategies import keras_version


def fix_dropout(model: tf.keras.Model) -> bool:
    """Replaces the dropout of Keras 2 by a fixed mask that drops every other unit; returns whether any layer has it.

    The random numbers of Keras 2's dropout cannot be reproduced. The mask applies in training only, so a call with
    the wrong ``training`` flag is still detected.
    """
    if keras_version().startswith("3"):
        return False
    layers = [layer for layer in model._flatten_layers() if "Dropout" in type(layer).__name__ and layer.rate]
    for layer in layers:
        layer.call = _drop_every_other
    return bool(layers)


def _drop_every_other(inputs: tf.Tensor, *, training: Any = None) -> tf.Tensor:
    training = tf.keras.backend.learning_phase() if training is None else training
    kept = 2 * tf.cast(tf.range(tf.shape(inputs)[-1]) % 2, inputs.dtype)
    return tf.where(tf.cast(training, tf.bool), inputs * kept, inputs)
