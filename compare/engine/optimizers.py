"""What is read from a Keras optimizer, in Keras 2 and 3 alike."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def learning_rate(optimizer: Any) -> tf.Tensor:
    """Returns the learning rate of the next step."""
    schedule = getattr(optimizer, "_learning_rate", None)
    if isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
        return schedule(optimizer.iterations)  # in Keras 2 optimizer.learning_rate is that of the last step
    return tf.convert_to_tensor(optimizer.learning_rate)
