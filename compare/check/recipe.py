"""Describes as plain values how gradients, updates and reported numbers are computed; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np


class LossKind(StrEnum):
    """How the loss of each example is computed: as the experiment says, or by a mistake.

    Of the last two, one is the loss of a softmax or sigmoid of the predictions. The other takes a softmax's
    probabilities for logits, as the loss asks for; in a graph, Keras finds the logits behind them.
    """

    GIVEN = "given"
    OTHER_LOGITS = "other-logits"
    BROADCAST = "broadcast"
    UNSMOOTHED = "unsmoothed"  # without label smoothing
    UNMASKED = "unmasked"
    SQUASHED = "squashed"
    UNRECOVERED = "unrecovered"


@dataclass(frozen=True)
class Split:
    """How a global batch is split over the replicas.

    Attributes:
        sizes: the number of examples on each replica.
    """

    sizes: tuple[int, ...]
    global_batch_size: int

    @property
    def replicas(self) -> int:
        return len(self.sizes)


Share = Callable[[Split], Sequence[float]]
"""The weight of one example in the loss that is differentiated, per replica."""


def mean_of_means(split: Split) -> list[float]:
    """The shares of ``fit``: each replica's mean, divided by the number of replicas."""
    return [1 / (size * split.replicas) if size else 0.0 for size in split.sizes]


def norm_of(arrays: Sequence[np.ndarray]) -> float:
    return float(np.linalg.norm(np.concatenate([each.ravel() for each in arrays]))) if arrays else 0.0


@dataclass(frozen=True)
class Clip:
    """Gradient clipping outside the optimizer.

    Attributes:
        kind: "value", "norm" (of each variable) or "global" (the norm over all variables).
        limit: the largest value or norm that is left unchanged.
        reduced: whether gradients are clipped after the sum over replicas, not before.
    """

    kind: str
    limit: float
    reduced: bool = False

    def of(self, gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The gradients of all variables after clipping."""
        if self.kind == "value":
            return [np.clip(each, -self.limit, self.limit) for each in gradients]
        norms = [norm_of([each]) for each in gradients]
        if self.kind == "global":
            norms = [norm_of(gradients)] * len(norms)
        return [each * min(1.0, self.limit / (norm or 1.0)) for each, norm in zip(gradients, norms, strict=True)]

    def of_variables(self, gradients: Mapping[int, np.ndarray]) -> Mapping[int, np.ndarray]:
        """The same, by the number of each variable."""
        return dict(zip(gradients, self.of(list(gradients.values())), strict=True))

    @classmethod
    def by_options(cls, options: Mapping[str, Any]) -> Clip | None:
        """The clipping of an optimizer, by its options; None if it does not clip."""
        return next((cls(kind, float(options[name])) for name, kind in OF_OPTION.items() if options.get(name)), None)


OF_OPTION = {"clipnorm": "norm", "clipvalue": "value", "global_clipnorm": "global"}
"""The kind of clipping of each option of an optimizer."""


@dataclass(frozen=True, order=True)
class Span:
    """A contiguous range of an epoch's examples in training order, such as the examples of one batch.

    Attributes:
        epoch: the epoch, from 1.
        start: the position of the first example.
        stop: the position after the last example.
    """

    epoch: int
    start: int
    stop: int


@dataclass(frozen=True)
class Recipe:
    """How the gradient of a step is computed. The defaults are correct; a cause changes some fields.

    Attributes:
        inference: the names of layers that are called with ``training=False`` all the same.
        masks: whether layers pass on their masks.
        output: the output whose labels are broadcast.
        loss_weights: the weight of each output's loss, in order; None for the experiment's.
        regularization: the weight of the layers' losses, summed over replicas; 1 is correct.
        omitted: the indices of the layers' losses that are left out.
        micro: the number of examples in the micro-batches whose gradients are added up; 0 for none.
        micro_factor: a factor of each micro-batch's gradient.
        reduce: "sum" over replicas, "own" if each replica keeps its own gradient, or "first" if all replicas use
            that of the first.
        clip: clipping before the optimizer's own.
        untrained: the indices of trainable variables that get no gradient.
        feed: the batch of each step; None for the batches of the run, in order.
        xla: whether the step is compiled with XLA, which rounds differently.
        scale: a factor applied to the loss and divided out of the gradient; it changes rounding only.
    """

    training: bool = True
    inference: tuple[str, ...] = ()
    masks: bool = True
    loss: LossKind = LossKind.GIVEN
    output: int = 0
    loss_weights: tuple[float, ...] | None = None
    sample_weights: bool = True
    class_weights: bool = True
    share: Share = mean_of_means
    regularization: float = 1.0
    omitted: frozenset[int] = frozenset()
    micro: int = 0
    micro_factor: float = 1.0
    reduce: str = "sum"
    clip: Clip | None = None
    untrained: frozenset[int] = frozenset()
    feed: tuple[Span, ...] | None = None
    xla: bool = False
    scale: float = 1.0

    @property
    def graph(self) -> tuple[Any, ...]:
        """What a traced forward and backward pass depends on."""
        return self.training, self.inference, self.masks, self.loss, self.output, self.loss_weights, self.xla

    @property
    def one_pass(self) -> Recipe:
        """The same in what the result of one pass depends on, and right in the rest."""
        right = Recipe()
        rest = ("share", "regularization", "micro", "micro_factor", "reduce", "clip", "untrained", "feed")
        return replace(self, **{name: getattr(right, name) for name in rest})


def distance(a: Sequence[np.ndarray], b: Sequence[np.ndarray], min_scale: float = 0.0) -> float:
    """Returns the relative distance of two lists of vectors.

    Args:
        a: float64 vectors.
        b: float64 vectors of the same lengths.
        min_scale: the smallest norm that the distance may be relative to.

    Returns:
        The norm of the difference divided by the larger norm: 0 if equal, about 1 if unrelated, infinity if
        any element is not finite.
    """
    left, right = np.concatenate(list(a)), np.concatenate(list(b))
    scale = float(np.max([np.linalg.norm(left), np.linalg.norm(right), min_scale]))  # max() may leave out a NaN
    if not np.isfinite(scale):
        return np.inf
    return float(np.linalg.norm(left - right) / scale) if scale else 0.0


def multiple(observed: Sequence[np.ndarray], predicted: Sequence[np.ndarray]) -> float | None:
    """The multiple of predicted arrays that is nearest to those observed; None if they are zero, or some not finite."""
    size = sum(float(np.vdot(each, each)) for each in predicted)
    factor = sum(float(np.vdot(a, b)) for a, b in zip(observed, predicted, strict=True)) / size if size else np.nan
    return factor if np.isfinite(factor) else None


EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Update:
    """How the optimizer turns gradients into weights. A cause changes some fields.

    Attributes:
        optimizer: class and configuration, or None for the experiment's own optimizer.
        formula: what people write by hand instead of the optimizer: one that ``optimizer_replay.by_hand`` knows.
        overrides: hyperparameters that differ from the optimizer's own, by name.
        since: the first step in which they differ.
        restarts: the steps before which the optimizer loses its slots and its iteration count.
        learning_rates: the learning rate of each step; None for the optimizer's own.
        iterations: the optimizer's iteration count before each step; None for 0, 1, 2 and so on.
        times: how often the optimizer takes each step's gradients.
        groups: the variables of each of several calls of ``apply`` in every step; empty for one call for all.
        clip: when the optimizer clips: "per-replica", before the sum over replicas (as in Keras 3), "reduced",
            after it (as in Keras 2), or "off".
        reduce: as in ``Recipe``.
        untrained: the indices of trainable variables that are not updated.
    """

    optimizer: tuple[type[Any], Any] | None = None
    formula: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    since: int = 0
    restarts: frozenset[int] = frozenset()
    learning_rates: tuple[float, ...] | None = None
    iterations: tuple[int, ...] | None = None
    times: int = 1
    groups: tuple[frozenset[int], ...] = ()
    clip: str = "per-replica"
    reduce: str = "sum"
    untrained: frozenset[int] = frozenset()


@dataclass(frozen=True)
class MetricFormula:
    """How a reported number is computed from the model's outputs. The defaults are correct.

    Attributes:
        per: what a loss is the mean over: "examples"; "batches", each the mean over its replicas;
            "batches-of-examples", each the mean over its examples; or "parts", one replica's examples of one
            batch, each counting the same whatever its size.
        carry: what the metric still holds when an epoch begins: "nothing"; its "own" earlier epochs; their
            "sum", but not their count; training's examples if it is "shared" with validation; the last
            "validation", in training; or "everything" since the start.
        replica: the only replica that counts; None for all.
        batches: the number of batches that count, from the first; None for all.
        chosen: the number of batches that count, whichever they are; 0 for all.
        last: whether only the last batch of the epoch counts.
        regularization: the weight of the layers' losses; 1 is correct.
        without: the index of a layer's loss that is not part of it; None if all are.
        training: whether validation calls the model with ``training=True``.
        after: in training, whether a step's numbers are computed after its update, by calling the model once more: with
            ``training=False`` ("inference") or ``training=True`` ("training"); empty for those of the step itself.
        paired: False if each label is compared with the prediction of every example of a batch.
        trained_loss: whether the loss is the one that the trainer differentiates, correct or not, and metrics
            weight examples as that loss does.
        metric: the class of Keras that measures it; empty for the experiment's.
    """

    per: str = "examples"
    carry: str = "nothing"
    scale: float = 1.0
    replica: int | None = None
    batches: int | None = None
    chosen: int = 0
    last: bool = False
    regularization: float = 1.0
    without: int | None = None
    training: bool = False
    after: str = ""
    paired: bool = True
    sample_weights: bool = True
    trained_loss: bool = False
    metric: str = ""

    def mean(self, batches: Sequence[Sequence[tuple[float, int]]], of: int) -> float:
        """The loss over some batches, of which an epoch has ``of``; each part of one with its number of examples."""
        parts = [part for batch in batches for part in batch]
        if self.per == "parts":
            return float(self.scale * np.mean([loss for loss, _ in parts]))
        if self.per == "examples":
            return self.scale * sum(count * loss for loss, count in parts) / sum(count for _, count in parts)
        counted = self.per == "batches-of-examples"
        means = [np.average([a for a, _ in each], weights=[n if counted else 1 for _, n in each]) for each in batches]
        return float(self.scale * sum(means) / (of if self.carry == "sum" else len(means)))


def scaled(share: Share, factor: float) -> Share:
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
