"""The input pipeline: which examples form which batch, as a pure function of (seed, epoch)."""

from __future__ import annotations

import copy
import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine import memory
from compare.engine.tf_config import this_task
from compare.errors import RequestError
from compare.experiment import Experiment, Part
from compare.user_errors import blaming

COUNTING = 60
"""Seconds after which examples are counted no further."""
HASHED_TOGETHER = 2**24
"""About so many bytes are read at a time for a digest."""


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
        try:
            arrays = tuple(_arrays(part) for part in arrays)
            with tf.device("CPU:0"):
                # The raw arrays, once: float32 copies of uint8 images would take four times the memory.
                # What NumPy sees from here on are views of these tensors.
                self._tensors = tf.nest.map_structure(memory.tensor, arrays)
                # A pipeline reads variables, which have the same memory. Tensors would be copied into it: for op
                # determinism, or to divide it between replicas, TensorFlow writes it out, with all that it captured.
                # (In a cluster it may go to another process, where there is no such variable.)
                self._read = self._tensors if this_task() else tf.nest.map_structure(_variable, self._tensors)
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"the {what} data cannot be arrays ({error}): give NumPy arrays, with examples of one shape"
            ) from None
        self.arrays: Part = tf.nest.map_structure(np.asarray, self._tensors)
        lengths = {len(array) if array.ndim else 0 for array in tf.nest.flatten(self.arrays)}
        if len(lengths) != 1 or 0 in lengths:
            raise RequestError(
                f"the {what} arrays hold {', '.join(map(str, sorted(lengths)))} examples: "
                "x, y and sample weights must be equally long, and not empty"
            )
        self.count: int = lengths.pop()
        self._prepare = prepare

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

    @cached_property
    def spec(self) -> Any:
        """What a batch is: tensor specs, with a batch size that is open."""
        return self.batches(None, [(0, 1)]).element_spec

    def in_order(self, batch_size: int) -> tf.data.Dataset:
        """All examples as they stand, in batches; the last one may be short."""
        return self.batches(None, regular_bounds(self.count, batch_size))

    def of_epoch(self, seed: int, epoch: int | tf.Tensor, batch_size: int) -> tf.data.Dataset:
        """All examples in an epoch's own order, in batches; the epoch may be a tensor."""
        return self.batches(shuffled(self.count, seed, epoch), regular_bounds(self.count, batch_size))

    def of_epochs(
        self, epochs: range | tf.Variable, of_epoch: Callable[[Any], tf.data.Dataset], *, elsewhere: bool = False
    ) -> tf.data.Dataset:
        """One data set of several epochs, each as ``of_epoch`` gives it; any process can iterate it.

        Args:
            epochs: which; a variable is the number of the only one, read whenever the data set is iterated.
            of_epoch: what gives an epoch's data set.
            elsewhere: whether another process iterates it.
        """
        return _numbers(epochs).flat_map(of_epoch).with_options(_options())

    def sha256(self) -> str:
        """A digest of all arrays: their structure, dtypes, shapes and bytes."""
        structure = tf.nest.map_structure(lambda array: f"{array.dtype} {array.shape}", self.arrays)
        return _digest(repr(structure), [self.arrays])

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
            examples = tf.nest.map_structure(
                lambda values: tf.gather(tf.convert_to_tensor(values), indices), self._read
            )
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
        self._sha256: str | None = None
        dataset = self._epoch(1)
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            raise RequestError(
                f"the {what} data set has elements {spec}: give single examples, (x, y) or (x, y, sample_weight)"
            )
        if not all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec)):
            raise RequestError(f"the {what} data set has elements {spec}: give dense tensors, with to_tensor(), say")
        if _is_batched(dataset):
            raise RequestError(
                f"the {what} data set gives batches, and single examples are wanted, since the batch size depends on "
                "the number of replicas: leave out batch(), or put unbatch() after it"
            )
        known = int(dataset.cardinality())
        if known == tf.data.INFINITE_CARDINALITY:
            raise RequestError(f"the {what} data set has no end: give take(n) to say how many examples an epoch has")
        some = [_digest("", self._epoch(1).batch(64).take(1).as_numpy_iterator()) for _ in range(2)]
        if some[0] != some[1]:
            raise RequestError(
                f"the {what} data set of epoch 1 has other examples when it is made again, so that no two trainers "
                "would see the same: give shuffle a seed and tell it to keep to it, such as "
                "shuffle(n, seed=epoch, reshuffle_each_iteration=False)"
            )
        self.count = self._counted(dataset) if known == tf.data.UNKNOWN_CARDINALITY else known
        if self.count == 0:
            raise RequestError(f"the {what} data set of epoch 1 is empty")

    def _epoch(self, epoch: int) -> tf.data.Dataset:
        """The examples of one epoch, as they come."""
        found = self._of_epoch
        if callable(found):
            with blaming(f"the {self._what} data's function for epoch {epoch}", found):
                found = found(*(epoch,) * _parameters(found))
        if not isinstance(found, tf.data.Dataset):
            raise RequestError(
                f"the {self._what} data of epoch {epoch} are a {type(found).__name__}: the function that load_data "
                "gives must return a tf.data.Dataset of single examples"
            )
        return found if self._limit is None else found.take(self._limit)

    def _counted(self, dataset: tf.data.Dataset) -> int:
        """How many examples there are, by going through them."""
        count, began = 0, time.monotonic()
        for some in dataset.map(lambda *_: True).batch(256).as_numpy_iterator():
            count += len(some)
            if time.monotonic() - began > COUNTING:
                raise RequestError(
                    f"the {self._what} data set does not say how many examples it has, and after {count:,}, counted in "
                    f"{COUNTING} s, no end is in sight: give take(n), or, where an epoch's number of examples is "
                    "known, apply(tf.data.experimental.assert_cardinality(n))"
                )
        return count

    def first(self, count: int) -> Stream:
        """Only the first ``count`` examples of each epoch."""
        if count == self.count:
            return self
        found = copy.copy(self)
        found.count = found._limit = count
        found._sha256 = None
        return found

    def sample(self, count: int) -> Examples:
        """So many examples from the beginning of epoch 1, spread over twenty times as many."""
        some = next(iter(self._epoch(1).batch(min(self.count, 20 * count)).as_numpy_iterator()))
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

    def of_epochs(
        self, epochs: range | tf.Variable, of_epoch: Callable[[int], tf.data.Dataset], *, elsewhere: bool = False
    ) -> tf.data.Dataset:
        """One data set of several epochs, each as ``of_epoch`` gives it.

        An epoch's data set is made when its turn has come: made beforehand, all of them would be in memory,
        each with the arrays that it was made from.

        Args:
            epochs: which; a variable is the number of the only one, read whenever the data set is iterated.
            of_epoch: what gives an epoch's data set.
            elsewhere: whether another process iterates it, which cannot call ``of_epoch``.
        """
        if elsewhere and isinstance(epochs, range):
            return _one_after_another([of_epoch(epoch) for epoch in epochs]).with_options(_options())

        def made(epoch: tf.Tensor) -> tf.Tensor:
            return tf.data.experimental.to_variant(of_epoch(int(epoch)))

        @tf.autograph.experimental.do_not_convert
        def made_in_turn(epoch: tf.Tensor) -> tf.data.Dataset:
            variant = tf.py_function(made, [epoch], tf.variant)
            variant.set_shape([])
            return tf.data.experimental.from_variant(variant, spec)

        spec = of_epoch(epochs[0] if isinstance(epochs, range) else int(epochs)).element_spec
        return _numbers(epochs).flat_map(made_in_turn).with_options(_options())

    def sha256(self) -> str:
        """A digest of the examples of epoch 1: their structure, dtypes, shapes and bytes."""
        if self._sha256 is None:
            first = next(iter(self._epoch(1).as_numpy_iterator()))
            size = sum(np.asarray(value).nbytes for value in tf.nest.flatten(first))
            # One by one, 60,000 images take 40 s.
            batches = self._epoch(1).batch(max(1, HASHED_TOGETHER // max(1, size)))
            self._sha256 = _digest(repr(self._epoch(1).element_spec), batches.as_numpy_iterator())
        return self._sha256


def _variable(tensor: tf.Tensor) -> tf.Variable:
    return tf.Variable(tensor, trainable=False)


def _numbers(epochs: range | tf.Variable) -> tf.data.Dataset:
    if isinstance(epochs, range):
        return tf.data.Dataset.range(epochs[0], epochs[-1] + 1)
    return tf.data.Dataset.range(1).map(lambda _: epochs.read_value())


def _one_after_another(datasets: list[tf.data.Dataset]) -> tf.data.Dataset:
    while len(datasets) > 1:  # in pairs: otherwise they would nest as deeply as there are epochs
        pairs = [datasets[i : i + 2] for i in range(0, len(datasets), 2)]
        datasets = [pair[0] if len(pair) == 1 else pair[0].concatenate(pair[1]) for pair in pairs]
    return datasets[0]


def _digest(structure: str, batches: Iterable[Any]) -> str:
    """SHA-256 of arrays, text by its bytes."""
    digest = hashlib.sha256(structure.encode())
    for batch in batches:
        for array in tf.nest.flatten(batch):
            text = array.dtype.kind == "O"  # what NumPy holds of text are addresses
            digest.update(repr(array.tolist()).encode() if text else np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _arrays(part: Any) -> Any:
    """What a user gives for x, y or weights, as arrays or tuples or dicts of them.

    A list of arrays is several inputs, as Keras takes it; any other list is one array.
    """
    if isinstance(part, dict):
        return {name: _arrays(each) for name, each in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and any(hasattr(each, "shape") for each in part)):
        return tuple(_arrays(each) for each in part)
    array = np.asarray(part)
    if array.ndim == 0:
        raise TypeError(f"one of them is a {type(part).__name__}")
    return array


def _is_batched(dataset: tf.data.Dataset) -> bool:
    """Whether a data set was batched: it must not be batched again."""
    if not all(spec.shape.rank != 0 and spec.shape[:1] == [None] for spec in tf.nest.flatten(dataset.element_spec)):
        return False  # a window of a series has a length, say
    while True:
        kind, inputs = type(dataset).__name__, dataset._inputs()
        if "BatchDataset" in kind and "Unbatch" not in kind:
            return True
        if len(inputs) != 1 or any(word in kind for word in ("Unbatch", "FlatMap", "Interleave", "Window")):
            return False
        (dataset,) = inputs


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
    # Every worker takes its part of every batch, also of data that come from several files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def load(experiment: Experiment) -> tuple[Examples | Stream, Examples | Stream]:
    """The experiment's training and validation examples.

    Raises:
        RequestError: when ``load_data`` gives something else than it promises.
    """
    with blaming("load_data", experiment.load_data):
        data = experiment.load_data()
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise RequestError(
                "load_data must give ((x_train, y_train), (x_val, y_val)), or functions from epoch to tf.data.Dataset"
            )
        train, validation = data
        loaded = _part(train, experiment.prepare, "training"), _part(validation, experiment.prepare, "validation")
    if experiment.prepare is not None:
        with blaming("prepare", experiment.prepare):
            for part in loaded:
                if not isinstance(part.spec, tuple) or len(part.spec) not in (2, 3):
                    raise RequestError(f"prepare gave {part.spec}: it must return (x, y) or (x, y, sample_weight)")
    return loaded


def _part(data: Any, prepare: Callable[..., Part] | None, what: str) -> Examples | Stream:
    kind = Stream if callable(data) or isinstance(data, tf.data.Dataset) else Examples
    return kind(data, prepare, what)
