"""Parts of a replayed pass: its result, and layers and losses that behave otherwise for a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.observation import Rows
from compare.check.recipe import OTHER_LOGITS, UNSMOOTHED, Span

OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    OTHER_LOGITS: ("from_logits", lambda given: not given),
    UNSMOOTHED: ("label_smoothing", lambda given: 0.0),
}
"""The option of a loss that a recipe changes, and how."""


@dataclass(frozen=True)
class PassResult:
    """The result of a forward pass, and in training a backward pass, over one replica's part of a batch.

    Recipes are evaluated by combining these values.

    Attributes:
        data: ``[weights]``, the gradient of the sum of the examples' losses, in the variables' dtype.
        regularization: ``[weights]``, the gradient of the layers' losses; a scalar 0 if there are none.
        loss: the sum of the examples' losses.
        outputs: the mean loss of each of several outputs, by reported name.
        masks: the mask of each prediction, as a flat list; None where there is none.
        weights: the examples' weights, the product of sample and class weights; None if there are none.
        state: all variables after the forward pass.
        rows: the sparse gradients of the data and of the layers' losses, by index of the trainable variable; an
            optimizer may update only these rows.
    """

    data: np.ndarray
    regularization: np.ndarray
    loss: float
    penalties: list[float]
    outputs: dict[str, float]
    predictions: Any
    masks: list[Any]
    weights: Any
    state: list[np.ndarray]
    rows: dict[int, tuple[Rows, Rows | None]]

    @property
    def penalty(self) -> float:
        """The sum of the layers' losses."""
        return sum(self.penalties)


def in_inference(call: Any, *args: Any, **options: Any) -> Any:
    """Calls a layer with ``training=False``, whatever the model is called with."""
    return call(*args, **{**options, "training": False})


def unmasked(layer: Any, call: Any, *args: Any, **options: Any) -> Any:
    """Calls a layer as if no mask had ever been made; a functional model passes masks as arguments, too."""
    outputs = call(*args, **({**options, "mask": None} if "mask" in options else options))
    return tf.identity(outputs) if is_masking(layer) else outputs  # whose outputs it has given a mask


def unrecovered(predictions: tf.Tensor) -> tf.Tensor:
    """The same predictions with their mask, behind which Keras finds no logits."""
    same = tf.identity(predictions)
    same._keras_mask = getattr(predictions, "_keras_mask", None)
    return same


def is_masking(layer: Any) -> bool:
    """Whether this is a ``Masking`` layer."""
    return isinstance(layer, tf.keras.layers.Masking)


def micro_batches(span: Span, size: int) -> list[Span]:
    """Splits a span into micro-batches; the last one may be short. If ``size`` is 0, there is one, or none if empty."""
    size = size or max(span.stop - span.start, 1)
    starts = range(span.start, span.stop, size)
    return [Span(span.epoch, start, min(start + size, span.stop)) for start in starts]
