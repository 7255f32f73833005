"""How a step comes about, as plain values: which examples, which loss, which update, which reading; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GIVEN, OTHER_LOGITS, BROADCAST = "given", "other-logits", "broadcast"


@dataclass(frozen=True)
class Parts:
    """How a global batch is split: the sizes of the replicas' parts, and what a full batch would be."""

    sizes: tuple[int, ...]
    global_batch_size: int

    @property
    def replicas(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> int:
        return sum(self.sizes)


Share = Callable[[Parts], Sequence[float]]
"""The weight of one example in the loss that is differentiated, per replica."""


def mean_of_means(parts: Parts) -> list[float]:
    """What ``fit`` does: each replica's mean, divided by the number of replicas."""
    return [1 / (size * parts.replicas) if size else 0.0 for size in parts.sizes]


@dataclass(frozen=True)
class Clip:
    """Clipping outside of the optimizer: "value", "norm" (each variable) or "global" at ``limit``."""

    kind: str
    limit: float
    reduced: bool
    """Whether it comes after the sum over replicas, not before."""


@dataclass(frozen=True, order=True)
class Place:
    """Where the examples of a batch come from: a stretch of an epoch's examples in their order."""

    epoch: int
    start: int
    stop: int


@dataclass(frozen=True)
class Recipe:
    """How the gradient of a step comes about; as it stands, the right way. A cause changes some of it.

    Attributes:
        training: the ``training`` flag of the forward pass.
        loss: ``GIVEN``, ``OTHER_LOGITS`` or ``BROADCAST``.
        sample_weights, class_weights: whether they are used.
        share: the weight of each example.
        regularization: the weight of the layers' losses, summed over replicas; right is 1.
        reduce: "sum" over replicas, each replica its "own", or everywhere the "first" one's.
        clip: clipping before the optimizer's own.
        untrained: the trainable variables, by index, that get no gradient.
        feed: the batch of each step; None for those of the run, in order.
        xla: whether XLA compiles it, which rounds in another way.
        scale: a factor that the loss has on its way back, and is divided by in the end: for rounding only.
    """

    training: bool = True
    loss: str = GIVEN
    sample_weights: bool = True
    class_weights: bool = True
    share: Share = mean_of_means
    regularization: float = 1.0
    reduce: str = "sum"
    clip: Clip | None = None
    untrained: frozenset[int] = frozenset()
    feed: tuple[Place, ...] | None = None
    xla: bool = False
    scale: float = 1.0


def distance(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], least: float = 0.0) -> float:
    """The relative distance of two lists of vectors: 0 equal, around 1 unrelated; infinite for no number.

    It is relative to the longer of the two, or to ``least`` if that is longer still.
    """
    a, b = np.concatenate(list(ours)), np.concatenate(list(theirs))
    scale = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)), least)
    if not np.isfinite(scale):
        return np.inf
    return float(np.linalg.norm(a - b) / scale) if scale else 0.0


EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Update:
    """How weights come from gradients; a cause changes some of it.

    Attributes:
        optimizer: class and configuration, or None for the experiment's own.
        overrides: hyper-parameters, name to value, that are others than the optimizer's own.
        learning_rates: of every step; None for the optimizer's own.
        iterations: the count before every step; None for the natural one.
        clip: the optimizer's clipping comes "handed", before the sum over replicas (as in Keras 3),
            "reduced", after it (as in Keras 2), or "off".
        reduce: as in ``Recipe``.
        untrained: the trainable variables, by index, that are left as they are.
    """

    optimizer: tuple[type[Any], Any] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    learning_rates: tuple[float, ...] | None = None
    iterations: tuple[int, ...] | None = None
    clip: str = "handed"
    reduce: str = "sum"
    untrained: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Reading:
    """How a reported number comes from what the model gave; as it stands, the right way.

    Attributes:
        per: a loss is the mean over "examples", or over "batches", each of which is the mean over
            its replicas, or over "batches-of-examples", each of which is the mean over its examples; or
            over "parts", what a replica has of a batch, be they large or small.
        carry: what is still in the metric when an epoch begins: "nothing", its "own" past, its own
            "sum" (but not its count); or, in a metric that serves both, training "shared" with
            validation, and "everything" since the start.
        scale: a factor in front.
        replica: the only replica that counts; None for all.
        batches: only so many of the batches count; None for all.
        regularization: whether the layers' losses are in the loss.
        training: whether validation calls the model with ``training=True``.
        sample_weights: whether validation uses them.
        own_loss: whether the loss is the one the trainer differentiates, right or wrong; and what a
            metric counts examples by are the weights of that.
    """

    per: str = "examples"
    carry: str = "nothing"
    scale: float = 1.0
    replica: int | None = None
    batches: int | None = None
    regularization: bool = True
    training: bool = False
    sample_weights: bool = True
    own_loss: bool = False
