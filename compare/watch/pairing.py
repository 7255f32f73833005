"""Pairs the variables of two trainings; imports no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from compare.records.model import Variable

Key = Callable[[Variable], Hashable]
"""What must be equal of two variables."""
PATH: Key = lambda variable: (variable.name, variable.shape)  # noqa: E731
END_OF_PATH: Key = lambda each: (each.name.split("/")[-2:][0], each.name.split("/")[-1], each.shape)  # noqa: E731
SHAPE: Key = lambda variable: variable.shape  # noqa: E731


def shapes_of(variables: Sequence[Variable]) -> list[tuple[int, ...]]:
    return [variable.shape for variable in variables]


def paired(there: Sequence[Variable], wanted: Sequence[Variable]) -> list[int]:
    """Pairs variables by position and shape, then by path, else by shape alone where that is unique.

    A path may be longer on one side, which has one more model around its layers: then its last parts count.

    Args:
        there: the variables to choose from.
        wanted: the variables that need one.

    Returns:
        For each variable that needs one, the number of the other; empty if not all have one.
    """
    if shapes_of(there) == shapes_of(wanted):
        return list(range(len(there)))
    for key in (PATH, END_OF_PATH, SHAPE):
        found = by_key(key, there, wanted)
        if len(found) == len(wanted):
            return [found[i] for i in range(len(wanted))]
    return []


def by_key(key: Key, there: Sequence[Variable], wanted: Sequence[Variable]) -> dict[int, int]:
    """Pairs the variables whose key is unique on both sides: the numbers of those wanted, and of their partners."""
    known, asked = list(map(key, there)), list(map(key, wanted))
    counts = Counter(known), Counter(asked)
    return {i: known.index(each) for i, each in enumerate(asked) if counts[0][each] == counts[1][each] == 1}


def in_order(there: Sequence[Variable], wanted: Sequence[Variable]) -> list[int]:
    """Pairs variables in their order among those of equal shape, which is likely, but not sure, to be right.

    Returns:
        As ``paired``; empty if there are more, or fewer, of a shape than are wanted.
    """
    counts = Counter(shapes_of(there))
    if any(counts[shape] != number for shape, number in Counter(shapes_of(wanted)).items()):
        return []
    left = {shape: [i for i, each in enumerate(there) if each.shape == shape] for shape in counts}
    return [left[each.shape].pop(0) for each in wanted]
