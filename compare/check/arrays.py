"""Combines and splits batches and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.observation import Rows
from compare.check.recipe import Span

Batch = tuple[Any, ...]
"""(x, y) or (x, y, sample_weight) as NumPy arrays, or nests of them."""


def length(batch: Any) -> int:
    """Returns the number of examples in a batch."""
    return len(tf.nest.flatten(batch)[0])


def concatenate(batches: Sequence[Any]) -> Any:
    """Concatenates nests of arrays or tensors along the first axis."""
    return tf.nest.map_structure(lambda *arrays: np.concatenate([np.asarray(array) for array in arrays]), *batches)


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Returns the examples from ``start`` to ``stop`` of a batch."""
    return tf.nest.map_structure(lambda array: array[start:stop], batch)  # type: ignore[no-any-return]


def batch_spans(epoch: int, batches: Sequence[Batch]) -> list[Span]:
    """Returns the span of each batch of an epoch."""
    edges = np.cumsum([0, *map(length, batches)])
    return [Span(epoch, int(a), int(b)) for a, b in itertools.pairwise(edges)]


def divide(gradient: Any, factor: tf.Tensor) -> Any:
    """Divides a dense, sparse or missing gradient by a factor."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divide(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / tf.cast(factor, gradient.dtype)


def dense(gradients: Sequence[Any], variables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the gradients as dense tensors, with zeros for missing ones."""
    pairs = zip(gradients, variables, strict=False)
    return [
        tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient) for gradient, variable in pairs
    ]


def pack(gradients: Sequence[tf.Tensor]) -> np.ndarray:
    """Concatenates gradients into one vector; a scalar 0 if there are none."""
    return np.concatenate([np.asarray(gradient).ravel() for gradient in gradients]) if gradients else np.zeros(())


def add_rows(data: Rows, share: float, regularization: Rows | None, weight: float) -> Rows:
    """Returns ``share * data + weight * regularization`` as sparse rows."""
    indices, values = [data.indices], [data.values * np.asarray(share, data.values.dtype)]
    if regularization is not None:
        indices.append(regularization.indices)
        values.append(regularization.values * np.asarray(weight, regularization.values.dtype))
    return Rows(np.concatenate(indices), np.concatenate(values), data.shape)
