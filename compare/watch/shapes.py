"""Tells by shapes alone what a step's arrays are, and what its loss is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

DIFFERENCES = ("Sub", "SquaredDifference")
"""The operations of TensorFlow by which a loss compares labels with predictions."""
RESHAPING = ("ExpandDims", "Identity", "Reshape", "Squeeze", "StridedSlice")
"""Those that change no numbers."""
FEW = 100
"""How many predictions of an example are kept of every step."""


def are_few(values: Any) -> bool:
    """Whether the shape is [n, m], as of the predictions of some classes, of which each step can be kept."""
    return len(values.shape) == 2 and values.shape[1] <= FEW


def are_pairs(one: Any, other: Any) -> bool:
    """Whether the shapes of two arrays are [n] and [n, 1], so that their difference is [n, n], which nobody meant.

    That of the same numbers, as of scores that are ranked, is meant.
    """
    shapes = [tf.TensorShape(getattr(each, "shape", ())) for each in (one, other)]
    few, many = sorted(shapes, key=lambda shape: shape.rank or 0)
    columns = few.rank == 1 and many.rank == 2 and many[1] == 1
    paired = bool(columns and few[0] != 1 and few.is_compatible_with(many[:1]))
    if paired and tf.executing_eagerly():
        return not np.array_equal(np.ravel(one), np.ravel(other))
    return paired and _source(one) != _source(other)


def _source(tensor: Any) -> tuple[Any, int]:
    """What makes the numbers of a tensor of a graph, whatever shape they have since."""
    while tensor.op.type in RESHAPING:
        tensor = tensor.op.inputs[0]
    return tensor.op, tensor.value_index


def of_pairs(losses: Sequence[Any]) -> bool:
    """Whether the graph of a loss has a difference of all pairs."""
    waiting, known = [each.op for each in losses], set()
    while waiting:
        if (operation := waiting.pop()) in known:
            continue
        known.add(operation)
        if operation.type in DIFFERENCES and are_pairs(*operation.inputs):
            return True
        waiting += [each.op for each in operation.inputs]
    return False
