"""Optimizers as people write them by hand, which no setting of Keras's own computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import tensorflow as tf


class DampedMomentum(tf.keras.optimizers.SGD):  # type: ignore[misc]
    """The velocity is a mean of gradients: v = momentum · v + (1 - momentum) · g."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        super().update_step((1 - self.momentum) * gradient, variable, learning_rate)


class HandWrittenAdam(tf.keras.optimizers.Adam):  # type: ignore[misc]
    """Adam by a formula of ``CHANGES``, in which correction and epsilon have another place than in Keras's."""

    formula: ClassVar[str]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        if isinstance(gradient, tf.IndexedSlices):
            gradient = tf.convert_to_tensor(gradient)
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        mean.assign(self.beta_1 * mean + (1 - self.beta_1) * gradient)
        square.assign(self.beta_2 * square + (1 - self.beta_2) * gradient * gradient)
        step = tf.cast(self.iterations, variable.dtype) + 1
        corrections = 1 - self.beta_1**step, 1 - self.beta_2**step
        moments = tf.convert_to_tensor(mean), tf.convert_to_tensor(square)
        change = CHANGES[self.formula](*moments, *corrections, self.epsilon)
        variable.assign(variable - tf.cast(learning_rate, variable.dtype) * change)


CHANGES: Mapping[str, Callable[..., Any]] = {
    "uncorrected": lambda m, v, of_m, of_v, epsilon: m / (tf.sqrt(v) + epsilon),
    "mean-uncorrected": lambda m, v, of_m, of_v, epsilon: m / (tf.sqrt(v / of_v) + epsilon),
    "square-uncorrected": lambda m, v, of_m, of_v, epsilon: m / of_m / (tf.sqrt(v) + epsilon),
    # As in the paper: epsilon is added after the correction, which makes it larger in the first steps.
    "epsilon-last": lambda m, v, of_m, of_v, epsilon: m / of_m / (tf.sqrt(v / of_v) + epsilon),
    "epsilon-inside": lambda m, v, of_m, of_v, epsilon: m / of_m / tf.sqrt(v / of_v + epsilon),
    "epsilon-inside-uncorrected": lambda m, v, of_m, of_v, epsilon: m * tf.sqrt(of_v) / of_m / tf.sqrt(v + epsilon),
}
"""The change of a variable, to be multiplied by the learning rate, from the means of gradients and of their squares,
what each is divided by to correct its bias, and epsilon; by the name that ``Update.formula`` has for it."""


def by_hand(formula: str) -> type[Any]:
    """The class of optimizer that computes a formula."""
    return DampedMomentum if formula == "damped" else type(formula, (HandWrittenAdam,), {"formula": formula})
