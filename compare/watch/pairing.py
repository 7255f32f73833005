"""Pairs the variables of two trainings; imports no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any


def paired(
    there: Sequence[str], shapes_there: Sequence[Any], wanted: Sequence[str], shapes_wanted: Sequence[Any]
) -> list[int]:
    """Pairs variables by position and shape, then by path, else by shape alone where that is unique.

    A path may be longer on one side, which has one more model around its layers: then its last parts count.

    Args:
        there: the paths of the variables to choose from.
        shapes_there: their shapes.
        wanted: the paths of the variables that need one.
        shapes_wanted: their shapes.

    Returns:
        For each variable that needs one, the number of the other; empty if not all have one.
    """
    a, b = [tuple(shape) for shape in shapes_there], [tuple(shape) for shape in shapes_wanted]
    if a == b:
        return list(range(len(a)))
    keys: list[Callable[[str, Any], Hashable]] = [
        lambda path, shape: (path, shape),
        lambda path, shape: (path.split("/")[-2:][0], path.split("/")[-1], shape),
        lambda path, shape: shape,
    ]
    for key in keys:
        known = [key(path, shape) for path, shape in zip(there, a, strict=True)]
        asked = [key(path, shape) for path, shape in zip(wanted, b, strict=True)]
        counts = Counter(known)
        if len(set(asked)) == len(asked) and all(counts[each] == 1 for each in asked):
            return [known.index(each) for each in asked]
    return []
