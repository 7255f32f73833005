"""Sees which data sets a step takes its examples from, and the script's lines that have made them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from compare.engine.insides_tensorflow import ScanDataset, data_set_of
from compare.patching import by_name, classes_with, patch
from compare.watch.seen import ENDLESS, row_hashes
from compare.watch.under_way import Here

if TYPE_CHECKING:
    from compare.watch.observer import Observer

SIZED = {"batch": "batch_size", "padded_batch": "batch_size", "take": "count", "skip": "count", "repeat": "count"}
"""Methods of a data set that are remembered, and the argument that says how many."""
ITERATED = tf.data.Dataset, tf.data.Iterator, tf.distribute.DistributedDataset, tf.distribute.DistributedIterator

Operation = tuple[str, int, tuple[str, int, str]]
"""A method of a data set, ``drop_remainder`` for one more of a ``batch``; its number; and the line that calls it."""


class DataSets:
    """The data sets of a script.

    Attributes:
        given: the arguments of the call that is under way.
    """

    def __init__(self, observer: Observer, here: Here) -> None:
        self._observer, self._here = observer, here
        self._latest: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.given: Any = ()
        for name in SIZED:
            patch(tf.data.Dataset, name, partial(self._derive, name))
        patch(ScanDataset, "__init__", self._loop)
        for base in (tf.data.Iterator, tf.distribute.DistributedIterator):
            for owner in classes_with(base, "__next__"):
                patch(owner, "__next__", self._next)

    def _derive(self, name: str, original: Any, data_set: Any, /, *args: Any, **options: Any) -> Any:
        derived = original(data_set, *args, **options)
        with suppress(Exception):  # a number that is not known yet, as in a graph
            given = by_name(original, data_set, args, options)
            number, line = int(given.get(SIZED[name]) or 0), self._observer.line()
            names = [name, "drop_remainder"] if given.get("drop_remainder") else [name]
            if line and not self._observer.fitting:  # else it is Keras's own
                derived._operations = [(each, number if number > 0 else ENDLESS, line) for each in names]
        return derived

    def _loop(self, original: Any, scanned: Any, data_set: Any, *args: Any, **options: Any) -> None:
        """Traces the body of a loop over a data set, which AutoGraph makes a function of."""
        with self._here.set(data_set=data_set):
            original(scanned, data_set, *args, **options)

    def _next(self, original: Any, iterator: Any) -> Any:
        element = original(iterator)
        if tf.executing_eagerly():
            self._latest[iterator] = element
        return element

    def operations(self, inputs: Sequence[np.ndarray]) -> list[Operation]:
        """What has made the data sets that a step with these inputs takes its examples from.

        Those are what the call of the step is given, or that had the inputs in the element that was taken last.
        """
        with suppress(Exception):  # such as inputs that are ragged, or data sets of the script's own classes
            given = [each for each in tf.nest.flatten(self.given) if isinstance(each, ITERATED)]
            latest = [iterator for iterator, element in list(self._latest.items()) if _has(element, inputs)]
            several = [operations_of(data_set_of(each)) for each in given or latest]
            return several[0] if all(each == several[0] for each in several) else []
        return []


def operations_of(data_set: Any) -> list[Operation]:
    """What has made a data set."""
    inputs = [] if data_set is None else data_set._inputs()
    return [*(operation for each in inputs for operation in operations_of(each)), *getattr(data_set, "_operations", ())]


def _has(element: Any, inputs: Sequence[np.ndarray]) -> bool:
    """Whether an element of a data set has all examples of these inputs."""
    parts = [part for value in tf.nest.flatten(element) for part in getattr(value, "values", [value])]
    arrays = [part.numpy() for part in parts if isinstance(part, tf.Tensor) and part.shape.rank]
    known = [set(row_hashes([array])) for array in arrays]
    rows = [set(row_hashes([array])) for array in inputs]
    return all(some and any(some <= every for every in known) for some in rows)
