"""What is done with a Keras optimizer, in Keras 2 and 3 alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from compare.engine.metrics import KERAS_3


def learning_rate(optimizer: Any) -> tf.Tensor:
    """Returns the learning rate of the next step."""
    schedule = getattr(optimizer, "_learning_rate", None)
    if isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
        return schedule(optimizer.iterations)  # in Keras 2 optimizer.learning_rate is that of the last step
    return tf.convert_to_tensor(optimizer.learning_rate)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds an optimizer's slots as ``fit`` does; call it under the strategy's scope.

    Under a strategy, Keras 3 builds the optimizer before the first step, and so does Keras 2. Without one, it is built
    while the first step is traced. TensorFlow then runs the initial values of the slots and traces the step again: what
    the ``build`` of a user's optimizer assigns, such as the slow weights of a Lookahead, has no effect.
    """
    by_keras = type(getattr(optimizer, "inner_optimizer", optimizer)).build.__module__.startswith("keras.")
    if by_keras or not KERAS_3 or tf.distribute.has_strategy():
        optimizer.build(variables)
    else:
        tf.function(lambda: optimizer.build(variables))()
