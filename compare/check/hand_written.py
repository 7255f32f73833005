"""Optimizers as people write them by hand, which no setting of Keras's own computes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class DampedMomentum(tf.keras.optimizers.SGD):  # type: ignore[misc]
    """The velocity is a mean of gradients: v = momentum · v + (1 - momentum) · g."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        super().update_step((1 - self.momentum) * gradient, variable, learning_rate)


class _Adam(tf.keras.optimizers.Adam):  # type: ignore[misc]
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
        change = self._change(tf.convert_to_tensor(mean), tf.convert_to_tensor(square), *corrections)
        variable.assign(variable - tf.cast(learning_rate, variable.dtype) * change)

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        """The change of the variable, to be multiplied by the learning rate."""
        raise NotImplementedError


class UncorrectedAdam(_Adam):
    """Adam without bias correction."""

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        return mean / (tf.sqrt(square) + self.epsilon)


class MeanUncorrectedAdam(_Adam):
    """Adam that corrects the mean of squares only."""

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        return mean / (tf.sqrt(square / of_square) + self.epsilon)


class SquareUncorrectedAdam(_Adam):
    """Adam that corrects the mean of gradients only."""

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        return mean / of_mean / (tf.sqrt(square) + self.epsilon)


class EpsilonLast(_Adam):
    """Adam as in the paper: epsilon is added after the correction, which makes it larger in the first steps."""

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        return mean / of_mean / (tf.sqrt(square / of_square) + self.epsilon)


class EpsilonInside(_Adam):
    """Adam with epsilon under the root."""

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        return mean / of_mean / tf.sqrt(square / of_square + self.epsilon)


class EpsilonInsideUncorrected(_Adam):
    """Adam with epsilon under the root, before the correction."""

    def _change(self, mean: Any, square: Any, of_mean: Any, of_square: Any) -> Any:
        return mean * tf.sqrt(of_square) / of_mean / tf.sqrt(square + self.epsilon)


FORMULAS: dict[str, Any] = {
    "damped": DampedMomentum,
    "uncorrected": UncorrectedAdam,
    "mean-uncorrected": MeanUncorrectedAdam,
    "square-uncorrected": SquareUncorrectedAdam,
    "epsilon-inside": EpsilonInside,
    "epsilon-inside-uncorrected": EpsilonInsideUncorrected,
    "epsilon-last": EpsilonLast,
}
"""Each formula by the name that ``Update.formula`` has for it."""
