"""The input pipeline: which examples form which batch, as a pure function of (seed, epoch)."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.blame import blaming
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
        return self if count == self.count else self._some(slice(count))

    def sample(self, count: int) -> Examples:
        """So many examples, spread over all of them, some more than once if there are not enough."""
        return self._some(np.linspace(0, self.count - 1, count).round().astype(int))

    def _some(self, where: Any) -> Examples:
        arrays = tf.nest.map_structure(lambda array: array[where], self.arrays)
        return Examples(arrays, self._prepare, "some")

    def preparing(self, prepare: Callable[..., Part]) -> Examples:
        """The same examples, prepared in another way after their own."""
        return Examples(self.arrays, _both(self._prepare, prepare), "same")

    @property
    def spec(self) -> Any:
        """What a batch is: tensor specs, with a batch size that is open."""
        return self.batches(None, [(0, 1)]).element_spec

    def in_order(self, batch_size: int) -> tf.data.Dataset:
        """All examples as they stand, in batches; the last one may be short."""
        return self.batches(None, regular_bounds(self.count, batch_size))

    def of_epoch(self, seed: int, epoch: int | tf.Tensor, batch_size: int) -> tf.data.Dataset:
        """All examples in an epoch's own order, in batches; the epoch may be a tensor."""
        return self.batches(shuffled(self.count, seed, epoch), regular_bounds(self.count, batch_size))

    def of_epochs(self, epochs: range, of_epoch: Callable[[Any], tf.data.Dataset]) -> tf.data.Dataset:
        """One data set of several epochs, each as ``of_epoch`` gives it."""
        following = tf.data.Dataset.range(epochs[0], epochs[-1] + 1).flat_map(of_epoch)
        return following.with_options(_options())

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


class Stream:
    """One part of an experiment's data that is a function from epoch to ``tf.data.Dataset``.

    It has what ``Examples`` has, as far as a run needs it. The order of the examples is the function's.

    Args:
        of_epoch: ``(epoch) -> tf.data.Dataset`` of single examples, (x, y) or (x, y, sample_weight); it is
            called with Python's integers, and may take none. A data set is taken for that of each epoch.
        prepare: the experiment's ``prepare``.
        what: "training" or "validation", for messages.

    Raises:
        RequestError: when it gives something else, endless data, or other examples when it is called again.
    """

    def __init__(self, of_epoch: Any, prepare: Callable[..., Part] | None, what: str) -> None:
        self._of_epoch, self._prepare, self._what = of_epoch, prepare, what
        self._limit: int | None = None
        self._digest: str | None = None
        dataset = self._epoch(1)
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            raise RequestError(
                f"the {what} data set has elements {spec}: give single examples, (x, y) or (x, y, sample_weight)"
            )
        if self._some_digest() != self._some_digest():
            raise RequestError(
                f"the {what} data set of epoch 1 has other examples when it is made again, so that no two trainers "
                "would see the same: give shuffle a seed, such as shuffle(n, seed=epoch)"
            )
        known = int(dataset.cardinality())
        if known == tf.data.INFINITE_CARDINALITY:
            raise RequestError(f"the {what} data set has no end: give take(n) to say how many examples an epoch has")
        if known == tf.data.UNKNOWN_CARDINALITY:
            known = int(dataset.reduce(np.int64(0), lambda count, _: count + 1))
        if known == 0:
            raise RequestError(f"the {what} data set of epoch 1 is empty")
        self.count = known

    def _epoch(self, epoch: int) -> tf.data.Dataset:
        """The examples of one epoch, as they come."""
        found = self._of_epoch
        if callable(found):
            with blaming(f"the {self._what} data's function", found):
                found = found(*(epoch,) * _parameters(found))
        if not isinstance(found, tf.data.Dataset):
            raise RequestError(
                f"the {self._what} data of epoch {epoch} are a {type(found).__name__}: the function that load_data "
                "gives must return a tf.data.Dataset of single examples"
            )
        return found if self._limit is None else found.take(self._limit)

    def _some_digest(self) -> str:
        digest = hashlib.sha256()
        for example in self._epoch(1).take(64).as_numpy_iterator():
            for value in tf.nest.flatten(example):
                digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def first(self, count: int) -> Stream:
        """Only the first ``count`` examples of each epoch."""
        if count == self.count:
            return self
        found = copy.copy(self)
        found.count = found._limit = count
        found._digest = None
        return found

    def sample(self, count: int) -> Examples:
        """So many examples from the beginning of epoch 1, spread over twenty times as many."""
        try:
            some = next(iter(self._epoch(1).batch(min(self.count, 20 * count)).as_numpy_iterator()))
        except tf.errors.InvalidArgumentError as error:
            raise RequestError(f"the {self._what} examples cannot be batched: {_first_line(error)}") from None
        return Examples(some, self._prepare, self._what).sample(count)

    def preparing(self, prepare: Callable[..., Part]) -> Stream:
        """The same examples, prepared in another way after their own."""
        found = copy.copy(self)
        found._prepare = _both(self._prepare, prepare)
        return found

    @property
    def spec(self) -> Any:
        """What a batch is: tensor specs, with a batch size that is open."""
        return self.of_epoch(0, 1, 1).element_spec

    def in_order(self, batch_size: int) -> tf.data.Dataset:
        """The examples of epoch 1, in batches; the last one may be short."""
        return self.of_epoch(0, 1, batch_size)

    def of_epoch(self, seed: int, epoch: int | tf.Tensor, batch_size: int) -> tf.data.Dataset:
        """The examples of one epoch, in batches; their order is the function's, whatever the seed."""
        if not isinstance(epoch, int | np.integer):
            raise RequestError(
                f"the {self._what} data come from a function, which takes the epoch as a number and not as a tensor: "
                "use run.train_datasets() for one data set of all epochs"
            )
        dataset = self._epoch(int(epoch))
        known = int(dataset.cardinality())
        if known >= 0 and known != self.count:
            raise RequestError(
                f"epoch {epoch} has {known} {self._what} examples and epoch 1 has {self.count}: give each epoch as many"
            )
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.count)).batch(batch_size)
        if self._prepare is not None:
            dataset = dataset.map(self._prepare)
        return dataset.prefetch(2).with_options(_options())

    def of_epochs(self, epochs: range, of_epoch: Callable[[int], tf.data.Dataset]) -> tf.data.Dataset:
        """One data set of several epochs, each as ``of_epoch`` gives it."""
        datasets = [of_epoch(epoch) for epoch in epochs]
        while len(datasets) > 1:  # in pairs: one after another they would nest as deeply as there are epochs
            pairs = [datasets[i : i + 2] for i in range(0, len(datasets), 2)]
            datasets = [pair[0] if len(pair) == 1 else pair[0].concatenate(pair[1]) for pair in pairs]
        return datasets[0].with_options(_options())

    def sha256(self) -> str:
        """A digest of the examples of epoch 1: their structure, dtypes, shapes and bytes."""
        if self._digest is None:
            digest = hashlib.sha256(repr(self._epoch(1).element_spec).encode())
            for example in self._epoch(1).as_numpy_iterator():
                for value in tf.nest.flatten(example):
                    digest.update(np.ascontiguousarray(value).tobytes())
            self._digest = digest.hexdigest()
        return self._digest


def _parameters(function: Callable[..., Any]) -> int:
    """How many parameters a data function takes: the epoch, or none."""
    for count in (1, 0):
        try:
            inspect.signature(function).bind(*(1,) * count)
            return count
        except TypeError:
            pass
    raise RequestError(f"{getattr(function, '__name__', function)} must take one argument, the epoch, or none")


def _both(first: Callable[..., Part] | None, then: Callable[..., Part]) -> Callable[..., Part]:
    return then if first is None else lambda *batch: then(*first(*batch))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


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


def load(experiment: Experiment) -> tuple[Examples | Stream, Examples | Stream]:
    """The experiment's training and validation examples.

    Raises:
        RequestError: when ``load_data`` gives something else than it promises.
    """
    with blaming("load_data", experiment.load_data):
        data = experiment.load_data()
    if not isinstance(data, tuple) or len(data) != 2:
        raise RequestError(
            "load_data must give ((x_train, y_train), (x_val, y_val)), or functions from epoch to tf.data.Dataset"
        )
    train, validation = data
    with blaming("load_data", experiment.load_data):
        return _part(train, experiment.prepare, "training"), _part(validation, experiment.prepare, "validation")


def _part(data: Any, prepare: Callable[..., Part] | None, what: str) -> Examples | Stream:
    kind = Stream if callable(data) or isinstance(data, tf.data.Dataset) else Examples
    return kind(data, prepare, what)
