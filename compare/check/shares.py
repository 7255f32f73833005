"""The share that each example has in the loss by mistake; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from compare.check.recipe import Share, Split, mean_of_means


def scaled(share: Share, factor: float) -> Share:
    """Returns a share multiplied by a factor."""
    return lambda split: [factor * weight for weight in share(split)]


def divided_by(denominator: Callable[[Split], float]) -> Share:
    """Returns a share of 1/denominator for every example, on any replica."""
    return lambda split: [1 / denominator(split)] * split.replicas


def by_replicas(share: Share, power: int) -> Share:
    """Returns a share multiplied by the number of replicas, or divided by it: to the power of -1."""
    return lambda split: [weight * split.replicas**power for weight in share(split)]


LOSS_SCALE = 2.0**15
"""The scale with which Keras's LossScaleOptimizer begins, unless it is told otherwise."""
OTHER_SHARES: Mapping[str, Share] = {
    "loss-constant-denominator": divided_by(lambda split: float(split.global_batch_size)),
    "loss-summed": divided_by(lambda split: 1.0),
    "loss-not-divided-by-replicas": by_replicas(mean_of_means, 1),
    "loss-divided-twice": by_replicas(mean_of_means, -1),
}
"""The share that each example gets by mistake, by cause, the more usual one first."""
OF_SIZE = ("loss-constant-denominator", "loss-summed")
"""Those by which the loss is another multiple of the right one in a batch of another size."""


def loss_scale(factor: float) -> float | None:
    """The power of two that a factor is close to, if it looks like loss scaling: very large or very small."""
    power = np.log2(factor) if factor > 0 else 0.0
    return float(2.0 ** np.round(power)) if abs(power) >= 6 and abs(power - round(power)) < 0.01 else None
