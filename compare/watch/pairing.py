"""Pairs the variables of two trainings; imports no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

Key = Callable[[str, tuple[int, ...]], Hashable]
"""What must be equal of two variables, given their paths and shapes."""
PATH: Key = lambda path, shape: (path, shape)  # noqa: E731
END_OF_PATH: Key = lambda path, shape: (path.split("/")[-2:][0], path.split("/")[-1], shape)  # noqa: E731
SHAPE: Key = lambda path, shape: shape  # noqa: E731


def paired(
    there: Sequence[str], shapes_there: Sequence[Any], wanted: Sequence[str], shapes_wanted: Sequence[Any]
) -> list[int]:
    """Pairs variables by position and shape, then by path, else by shape alone where that is unique.

    A path may be longer on one side, which has one more model around its layers: then its last parts count.

    Args:
        there: the paths of the variables to choose from.
        wanted: the paths of the variables that need one.

    Returns:
        For each variable that needs one, the number of the other; empty if not all have one.
    """
    if list(map(tuple, shapes_there)) == list(map(tuple, shapes_wanted)):
        return list(range(len(there)))
    for key in (PATH, END_OF_PATH, SHAPE):
        found = by_key(key, there, shapes_there, wanted, shapes_wanted)
        if len(found) == len(wanted):
            return [found[i] for i in range(len(wanted))]
    return []


def by_key(
    key: Key, there: Sequence[str], shapes_there: Sequence[Any], wanted: Sequence[str], shapes_wanted: Sequence[Any]
) -> dict[int, int]:
    """Pairs the variables whose key is unique on both sides: the numbers of those wanted, and of their partners."""
    known = [key(path, tuple(shape)) for path, shape in zip(there, shapes_there, strict=True)]
    asked = [key(path, tuple(shape)) for path, shape in zip(wanted, shapes_wanted, strict=True)]
    counts = Counter(known), Counter(asked)
    return {i: known.index(each) for i, each in enumerate(asked) if counts[0][each] == counts[1][each] == 1}


def in_order(shapes_there: Sequence[Any], shapes_wanted: Sequence[Any]) -> list[int]:
    """Pairs variables in their order among those of equal shape, which is likely, but not sure, to be right.

    Returns:
        As ``paired``; empty if there are more, or fewer, of a shape than are wanted.
    """
    there, wanted = [tuple(shape) for shape in shapes_there], [tuple(shape) for shape in shapes_wanted]
    counts = Counter(there)
    if any(counts[shape] != number for shape, number in Counter(wanted).items()):
        return []
    left = {shape: [i for i, each in enumerate(there) if each == shape] for shape in wanted}
    return [left[shape].pop(0) for shape in wanted]
