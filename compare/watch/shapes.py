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


def are_pairs(one: Any, other: Any) -> bool:
    """Whether the shapes of two arrays are [n] and [n, 1], so that their difference is [n, n]."""
    shapes = [tf.TensorShape(getattr(each, "shape", ())) for each in (one, other)]
    few, many = sorted(shapes, key=lambda shape: shape.rank or 0)
    columns = few.rank == 1 and many.rank == 2 and many[1] == 1
    return bool(columns and few[0] != 1 and few.is_compatible_with(many[:1]))


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
