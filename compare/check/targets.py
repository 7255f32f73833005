"""What a loss function was called with, and the loss computed again from it in NumPy; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compare.watch.seen import CloseUp

HUBER = "huber"
TINY = 1e-7
"""Keras's epsilon, by which probabilities stay away from 0 and 1."""


@dataclass(frozen=True)
class Targets:
    """One call of a loss function with a single output.

    Attributes:
        kind: the loss, as in ``KINDS``.
        true: the labels.
        predicted: the predictions.
        weight: the weight of each example; None if all count the same.
        from_logits: whether predictions are logits.
        label_smoothing: as in Keras.
        delta: that of the Huber loss.
        mask: which of the predictions count; None if all do.
        paired: False if each label is compared with the prediction of every example.
    """

    kind: str
    true: np.ndarray
    predicted: np.ndarray
    weight: np.ndarray | None = None
    from_logits: bool = False
    label_smoothing: float = 0.0
    delta: float = 1.0
    mask: np.ndarray | None = None
    paired: bool = True

    @property
    def are_probabilities(self) -> bool:
        """Whether predictions can be what a loss without ``from_logits`` takes them for."""
        sums = np.ones(1) if self.kind == "binary_crossentropy" else self.predicted.sum(-1)
        between = (self.predicted >= 0).all() and (self.predicted <= 1).all()
        return bool(between and np.allclose(sums, 1, atol=0.01))

    def with_other_logits(self) -> Targets:
        return replace(self, from_logits=not self.from_logits)

    @property
    def squash(self) -> str:
        """The function that makes probabilities of the logits that this loss takes; empty if it takes none."""
        if not self.from_logits or self.are_probabilities:
            return ""
        return "sigmoid" if self.kind == "binary_crossentropy" else "softmax"

    def squashed(self) -> Targets:
        """The same with that function applied to the logits, which are taken for logits all the same."""
        if self.squash == "sigmoid":
            return replace(self, predicted=1 / (1 + np.exp(-self.predicted)))
        return replace(self, predicted=np.exp(log_probabilities(self.predicted, from_logits=True)))


def targets_of(close_up: CloseUp, step: int) -> Targets | None:
    """The call of the loss function in a step; None if there were several, or it is one that is not known here."""
    events = close_up.of(step, "targets")
    if not events or any(not event.arrays for event in events):
        return None
    infos = [event.info for event in events]
    first = infos[0]
    if first["true"] != 1 or first["predicted"] != 1 or any(info["loss"] != first["loss"] for info in infos):
        return None
    configuration: Mapping[str, Any] = first["configuration"]
    kind = name_of(first)
    if kind not in KINDS and kind not in (HUBER, "sparse_categorical_crossentropy"):
        return None
    if any(len({np.shape(event.arrays[i])[1:] for event in events}) > 1 for i in (0, 1)):
        return None  # of several outputs
    true, predicted = (np.concatenate([np.asarray(event.arrays[i]) for event in events]) for i in (0, 1))
    given = [event.arrays for event in events if event.info["weights"]]
    # There may be one weight for all examples.
    weights = [np.full(np.shape(a[0])[:1], a[2]) if np.ndim(a[2]) == 0 else np.asarray(a[2]) for a in given]
    if len({each.shape[1:] for each in weights}) > 1:
        return None
    weight = np.concatenate(weights) if len(weights) == len(events) else None
    return Targets(
        kind,
        true,
        predicted.astype(np.float64),
        None if weight is None else weight.astype(np.float64),
        bool(configuration.get("from_logits", False)),
        float(configuration.get("label_smoothing", 0.0)),
        float(configuration.get("delta", 1.0)),
        np.concatenate(masks) if (masks := close_up.arrays(step, "mask")) else None,
    )


def name_of(call: Mapping[str, Any]) -> str:
    """The name of the loss that was called, whichever of Keras's names for it the script has."""
    name = str(call["configuration"].get("name") or call["loss"])
    return {"mse": "mean_squared_error", "mae": "mean_absolute_error", "huber_loss": HUBER}.get(name, name)


def value_of(targets: Targets) -> float | None:
    """The mean loss of the batch; None if the shapes do not fit."""
    losses = losses_of(targets)
    return None if losses is None else float(losses.mean())


def losses_of(targets: Targets) -> np.ndarray | None:
    """The losses of which that is the mean, of each example or position."""
    true, predicted = targets.true, targets.predicted
    try:
        if targets.kind == "sparse_categorical_crossentropy":
            losses = None if not targets.paired else _sparse(true, predicted, targets.from_logits)
        else:
            losses = _dense(targets)
        if losses is not None and targets.weight is not None:
            weight = targets.weight
            if weight.ndim == losses.ndim + 1 and weight.shape[-1] == 1:  # as Keras does
                weight = weight[..., 0]
            losses = losses * weight.reshape(weight.shape + (1,) * (losses.ndim - weight.ndim))
    except (ValueError, IndexError):
        return None
    if losses is None:
        return None
    if targets.mask is not None:
        if targets.mask.shape != losses.shape or not targets.mask.any():
            return None
        losses = losses * targets.mask * (targets.mask.size / targets.mask.sum())
    return losses


def _dense(targets: Targets) -> np.ndarray | None:
    true, predicted = targets.true.astype(np.float64), targets.predicted
    if true.shape != predicted.shape:
        if true.size != predicted.size:
            return None
        true = true.reshape(predicted.shape)
    if not targets.paired:
        if predicted.ndim != 2 or predicted.shape[1] != 1:
            return None
        true, predicted = np.broadcast_arrays(true.reshape(1, -1), predicted)
    if targets.label_smoothing:
        classes = true.shape[-1] if targets.kind == "categorical_crossentropy" else 2
        true = true * (1 - targets.label_smoothing) + targets.label_smoothing / classes
    if targets.kind == HUBER:
        gap = np.abs(true - predicted)
        losses = np.where(gap <= targets.delta, np.square(gap) / 2, targets.delta * (gap - targets.delta / 2))
        return np.asarray(losses.mean(-1))
    return KINDS[targets.kind](true, predicted, targets.from_logits)


def _sparse(true: np.ndarray, predicted: np.ndarray, from_logits: bool) -> np.ndarray:
    labels = true.reshape(predicted.shape[:-1]).astype(int)
    if not from_logits:  # Keras takes the logarithms as logits
        predicted, from_logits = np.log(np.clip(predicted, TINY, 1 - TINY)), True
    return -np.take_along_axis(log_probabilities(predicted, from_logits), labels[..., None], -1)[..., 0]


def log_probabilities(predicted: np.ndarray, from_logits: bool) -> np.ndarray:
    """The logarithms of probabilities, or of what a softmax makes of logits."""
    with np.errstate(divide="ignore", invalid="ignore"):  # predictions may be infinite
        if from_logits:
            shifted = predicted - predicted.max(-1, keepdims=True)
            return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
        return np.asarray(np.log(np.clip(predicted / predicted.sum(-1, keepdims=True), TINY, 1 - TINY)))


def _binary(true: np.ndarray, predicted: np.ndarray, from_logits: bool) -> np.ndarray:
    if from_logits:
        losses = np.maximum(predicted, 0) - predicted * true + np.log1p(np.exp(-np.abs(predicted)))
    else:
        clipped = np.clip(predicted, TINY, 1 - TINY)
        losses = -(true * np.log(clipped) + (1 - true) * np.log(1 - clipped))
    return np.asarray(losses.mean(-1))


KINDS: dict[str, Callable[[np.ndarray, np.ndarray, bool], np.ndarray]] = {
    "categorical_crossentropy": lambda true, predicted, from_logits: np.asarray(
        -(true * log_probabilities(predicted, from_logits)).sum(-1)
    ),
    "binary_crossentropy": _binary,
    "mean_squared_error": lambda true, predicted, _: np.asarray(np.square(true - predicted).mean(-1)),
    "mean_absolute_error": lambda true, predicted, _: np.asarray(np.abs(true - predicted).mean(-1)),
}
