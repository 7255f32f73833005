"""Tells by shapes alone what a step's arrays are, and what its loss is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

DIFFERENCES = ("Sub", "SquaredDifference")
"""The operations of TensorFlow by which a loss compares labels with predictions."""


def is_column(values: Any) -> bool:
    """Whether the shape is [n, 1]."""
    return len(values.shape) == 2 and values.shape[1] == 1


def of_pairs(losses: Sequence[Any]) -> bool | None:
    """Whether a difference of shapes [n] and [n, 1] goes into a loss, which is [n, n]; None where no graph tells."""
    if tf.executing_eagerly():
        return None
    waiting, known = [each.op for each in losses], set()
    while waiting:
        if (operation := waiting.pop()) in known:
            continue
        known.add(operation)
        if operation.type in DIFFERENCES:
            few, many = sorted((each.shape for each in operation.inputs), key=lambda shape: shape.rank or 0)
            if few.rank == 1 and many.rank == 2 and many[1] == 1 and few[0] != 1 and few.is_compatible_with(many[:1]):
                return True
        waiting += [each.op for each in operation.inputs]
    return False
