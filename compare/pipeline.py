"""The input pipeline: which examples form which batch, as a pure function of (seed, epoch)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from compare.errors import RequestError
from compare.experiment import Experiment, Part


class Examples:
    """One part of an experiment's data, kept in memory once, as loaded, and read by index.

    Args:
        arrays: (x, y) or (x, y, sample_weight), each a NumPy array or a tuple or dict of them.
        prepare: the experiment's ``prepare``.
        what: "training" or "validation", for messages.

    Raises:
        RequestError: when the arrays are not equally long, or there are none.
    """

    def __init__(self, arrays: Part, prepare: Callable[..., Part] | None, what: str) -> None:
        if not isinstance(arrays, tuple) or len(arrays) not in (2, 3):
            raise RequestError(
                f"load_data must give (x, y) or (x, y, sample_weight) as {what} data, not {type(arrays).__name__}"
                + (f" of {len(arrays)}" if isinstance(arrays, (tuple, list)) else "")
            )
        arrays = tf.nest.map_structure(np.asarray, arrays)
        lengths = {len(array) if array.ndim else 0 for array in tf.nest.flatten(arrays)}
        if len(lengths) != 1 or 0 in lengths:
            raise RequestError(
                f"the {what} arrays hold {', '.join(map(str, sorted(lengths)))} examples: "
                "x, y and sample weights must be equally long, and not empty"
            )
        self.count: int = lengths.pop()
        self._prepare = prepare
        # The raw arrays, once: float32 copies of uint8 images would take four times the memory. What
        # NumPy sees from here on are views of these tensors.
        with tf.device("CPU:0"):
            self._tensors = tf.nest.map_structure(tf.constant, arrays)
        self.arrays: Part = tf.nest.map_structure(np.asarray, self._tensors)

    def first(self, count: int) -> Examples:
        """Only the first ``count`` examples."""
        if count == self.count:
            return self
        arrays = tf.nest.map_structure(lambda array: array[:count], self.arrays)
        return Examples(arrays, self._prepare, "training")

    def sha256(self) -> str:
        """A digest of all arrays: their structure, dtypes, shapes and bytes."""
        structure = tf.nest.map_structure(lambda array: f"{array.dtype} {array.shape}", self.arrays)
        digest = hashlib.sha256(repr(structure).encode())
        for array in tf.nest.flatten(self.arrays):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def batches(self, order: tf.Tensor | None, bounds: Sequence[tuple[int, int]]) -> tf.data.Dataset:
        """Batches ``order[start:stop]`` for every (start, stop) in ``bounds``.

        Args:
            order: int64 ``[count]``, a permutation of the examples; None keeps them as they stand.
            bounds: where in the order each batch begins and ends.
        """

        def batch(bound: tf.Tensor) -> Part:
            indices = tf.range(bound[0], bound[1])
            if order is not None:
                indices = tf.gather(order, indices)
            examples = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self._tensors)
            return examples if self._prepare is None else self._prepare(*examples)

        dataset = tf.data.Dataset.from_tensor_slices(np.array(bounds, np.int64)).map(batch).prefetch(2)
        return dataset.with_options(_options())


def regular_bounds(count: int, batch_size: int) -> list[tuple[int, int]]:
    """Batches of ``batch_size``; the last one may be short."""
    return [(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]


def shuffled(count: int, seed: int, epoch: int | tf.Tensor) -> tf.Tensor:
    """The order of examples in an epoch: int64 ``[count]``, a pure function of (seed, epoch)."""
    seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
    return tf.random.experimental.index_shuffle(tf.range(count, dtype=tf.int64), seeds, count - 1)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # Deleting an iterator waits for tf.data's idle autotuning thread: up to 30 s after fit's last epoch.
    options.autotune.enabled = False
    options.deterministic = True
    return options


def load(experiment: Experiment) -> tuple[Examples, Examples]:
    """The experiment's training and validation examples.

    Raises:
        RequestError: when ``load_data`` gives something else than it promises.
    """
    data = experiment.load_data()
    if not isinstance(data, tuple) or len(data) != 2:
        raise RequestError("load_data must give ((x_train, y_train), (x_val, y_val))")
    train, validation = data
    return Examples(train, experiment.prepare, "training"), Examples(validation, experiment.prepare, "validation")
