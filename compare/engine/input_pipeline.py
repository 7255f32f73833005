"""The input pipeline. The assignment of examples to batches is a pure function of (seed, epoch)."""

from __future__ import annotations

import copy
import hashlib
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np
import tensorflow as tf

from compare.engine import memory
from compare.engine.insides_tensorflow import called_as_it_is, converted
from compare.engine.tf_config import this_task
from compare.errors import RequestError
from compare.experiment import Experiment, Part
from compare.user_errors import blaming

COUNTING = 60
"""Time limit for counting the examples of a dataset of unknown size, in seconds."""
READ_AGAIN = 64
"""Number of examples that are read several times, to see whether they stay the same."""
AUGMENTATION = (
    "augment in the model, with layers such as tf.keras.layers.RandomFlip, or seed each example, as in "
    "tf.image.stateless_random_flip_left_right(x, seed=(epoch, i))"
)
"""How to augment so that every trainer sees the same examples."""
HASHED_TOGETHER = 2**24
"""Approximate number of bytes that are hashed at a time."""


class Data(ABC):
    """Training or validation data."""

    count: int
    """Number of examples in each epoch."""
    _prepare: Callable[..., Part] | None = None

    @abstractmethod
    def first(self, count: int) -> Self:
        """Returns the same data, limited to the first ``count`` examples of each epoch."""

    @abstractmethod
    def sample(self, count: int) -> Examples:
        """Returns ``count`` examples at regular intervals; repeats examples if there are fewer."""

    def preparing(self, prepare: Callable[..., Part]) -> Self:
        """Returns the same data with another preparation step after the experiment's ``prepare``."""
        data, first = copy.copy(self), self._prepare
        vars(data).pop("spec", None)  # of what is given to the new step
        data._prepare = converted(prepare if first is None else lambda *batch: prepare(*first(*batch)))
        return data

    @cached_property
    def spec(self) -> Any:
        """Tensor specs of a batch, with unknown batch size."""
        return self.in_order(self.count).element_spec

    def in_order(self, batch_size: int) -> tf.data.Dataset:
        """Returns batches of all examples, always in the same order; the last batch may be short."""
        return self.of_epoch(0, 1, batch_size)

    @abstractmethod
    def of_epoch(self, seed: int, epoch: int | tf.Tensor, batch_size: int) -> tf.data.Dataset:
        """Returns batches of all examples in the order of an epoch; the epoch of arrays may be a scalar tensor."""

    def of_epochs(
        self, epochs: range | tf.Variable, of_epoch: Callable[[Any], tf.data.Dataset], *, elsewhere: bool = False
    ) -> tf.data.Dataset:
        """Returns one dataset of several epochs.

        Args:
            epochs: their numbers; a variable has the number of a single epoch, read whenever the dataset is iterated.
            of_epoch: makes the dataset of an epoch.
            elsewhere: whether another process will iterate the dataset.
        """
        if isinstance(epochs, range):
            numbers = tf.data.Dataset.range(epochs[0], epochs[-1] + 1)
        else:
            numbers = tf.data.Dataset.range(1).map(lambda _: epochs.read_value())
        return numbers.flat_map(of_epoch).with_options(_options())

    @cached_property
    @abstractmethod
    def sha256(self) -> str:
        """A digest of the structure, dtypes, shapes and bytes of all examples; in a stream, of those of epoch 1."""

    def changes(self) -> bool:
        """Returns whether the first examples change when they are read again.

        A random operation of ``tf.random`` or of a Keras layer may continue where it stopped, within one dataset of
        several epochs (which ``fit`` reads) or from one dataset to the next (which loops read).
        """
        few = self.first(min(self.count, READ_AGAIN))

        def of_epoch_1(_: Any) -> tf.data.Dataset:
            return few.of_epoch(0, 1, READ_AGAIN // 2)

        def digest(*datasets: tf.data.Dataset) -> str:
            batches = (tf.nest.flatten(batch, expand_composites=True) for dataset in datasets for batch in dataset)
            return _digest("", (tf.nest.map_structure(np.asarray, batch) for batch in batches))

        return digest(of_epoch_1(1), of_epoch_1(1)) != digest(few.of_epochs(range(1, 3), of_epoch_1))


class Examples(Data):
    """Data in arrays. They are kept in memory once, as loaded, and read by index.

    Args:
        arrays: (x, y) or (x, y, sample_weight), each a NumPy array or a tuple or dict of arrays.

    Raises:
        RequestError: if the data cannot be converted to arrays, or the arrays are empty, too large or differ in length.
    """

    def __init__(self, arrays: Part, prepare: Callable[..., Part] | None, what: str) -> None:
        if not isinstance(arrays, tuple) or len(arrays) not in (2, 3):
            raise RequestError(
                f"load_data must return (x, y) or (x, y, sample_weight) as {what} data, not {type(arrays).__name__}"
                + (f" of {len(arrays)}" if isinstance(arrays, (tuple, list)) else "")
                + _instead(arrays)
            )
        try:
            arrays = tuple(_arrays(part) for part in arrays)
            with tf.device("CPU:0"):
                # Keep the raw arrays only: float32 copies of uint8 images would take four times the memory.
                # self.arrays are views of these tensors.
                self._tensors = tf.nest.map_structure(memory.tensor, arrays)
                # The pipeline captures variables, which share this memory. Captured tensors would be copied whenever
                # TensorFlow serializes the pipeline, for op determinism or to split it over replicas. (In a cluster
                # the pipeline may be sent to another process, which cannot access the variable.)
                self._read = self._tensors
                if not this_task():
                    self._read = tf.nest.map_structure(lambda x: tf.Variable(x, trainable=False), self._tensors)
        except (TypeError, ValueError, BufferError) as error:
            raise RequestError(
                f"the {what} data cannot be converted to tensors ({error}): use NumPy arrays of a dtype that TensorFlow"
                " has, such as float32, with examples of one shape"
            ) from None
        except MemoryError as error:
            raise RequestError(
                f"there is no memory for a copy of the {what} data ({error}): return fewer, or a tf.data.Dataset"
            ) from None
        self.arrays: Part = tf.nest.map_structure(np.asarray, self._tensors)
        lengths = {len(array) if array.ndim else 0 for array in tf.nest.flatten(self.arrays)}
        if len(lengths) != 1 or 0 in lengths:
            raise RequestError(
                f"the {what} arrays hold {', '.join(map(str, sorted(lengths)))} examples: "
                "x, y and sample weights must have the same length and must not be empty"
            )
        self.count = lengths.pop()
        self._prepare = prepare and converted(prepare)

    def first(self, count: int) -> Examples:
        return self if count == self.count else self._some(slice(count))

    def sample(self, count: int) -> Examples:
        return self._some(np.linspace(0, self.count - 1, count).round().astype(int))

    def _some(self, index: Any) -> Examples:
        arrays = tf.nest.map_structure(lambda array: array[index], self.arrays)
        return Examples(arrays, self._prepare, "some")

    def in_order(self, batch_size: int) -> tf.data.Dataset:
        return self._batches(None, batch_size)

    def of_epoch(self, seed: int, epoch: int | tf.Tensor, batch_size: int) -> tf.data.Dataset:
        return self._batches(shuffled(self.count, seed, epoch), batch_size)

    def changes(self) -> bool:
        """Returns whether ``prepare`` changes the same examples in another way when they are read again."""
        if self._prepare is None:
            return False
        spec = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), self._tensors
        )
        graph = tf.function(self._prepare).get_concrete_function(*spec).graph
        # Reading takes half a second, which most experiments can save.
        has_state = any(op.op_def.is_stateful and op.type != "ReadVariableOp" for op in graph.get_operations())
        return has_state and super().changes()

    @cached_property
    def sha256(self) -> str:
        structure = tf.nest.map_structure(lambda array: f"{array.dtype} {array.shape}", self.arrays)
        return _digest(repr(structure), [self.arrays])

    def _batches(self, order: tf.Tensor | None, size: int) -> tf.data.Dataset:
        """Returns batches of the examples in an order, int64 ``[count]``, or None for the original one."""
        starts = np.arange(0, self.count, size)
        bounds = np.stack([starts, np.minimum(starts + size, self.count)], axis=1)  # [batches, start and stop]

        @called_as_it_is
        def batch(bound: tf.Tensor) -> Part:
            indices = tf.range(bound[0], bound[1])
            if order is not None:
                indices = tf.gather(order, indices)
            examples = tf.nest.map_structure(
                lambda values: tf.gather(tf.convert_to_tensor(values), indices), self._read
            )
            return examples if self._prepare is None else self._prepare(*examples)

        dataset = tf.data.Dataset.from_tensor_slices(bounds.astype(np.int64)).map(batch).prefetch(2)
        return dataset.with_options(_options())


class Stream(Data):
    """Data from a function that returns the ``tf.data.Dataset`` of an epoch, and determines the order of the examples.

    Args:
        of_epoch: ``(epoch) -> tf.data.Dataset`` of single examples, (x, y) or (x, y, sample_weight). It is called
            with a Python integer, or without arguments if it takes none. A dataset instead of a function is used
            for every epoch.

    Raises:
        RequestError: if the function does not return a finite dataset of single examples, or returns different
            examples when it is called again.
    """

    def __init__(self, of_epoch: Any, prepare: Callable[..., Part] | None, what: str) -> None:
        self._of_epoch, self._what = of_epoch, what
        self._limit: int | None = None
        dataset = self._epoch(1)
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) not in (2, 3):
            raise RequestError(
                f"the {what} dataset has elements {spec}: give single examples, (x, y) or (x, y, sample_weight)"
            )
        if not all(isinstance(component, tf.TensorSpec) for component in tf.nest.flatten(spec)):
            raise RequestError(f"the {what} dataset has elements {spec}: give dense tensors, with to_tensor(), say")
        if _is_batched(dataset):
            raise RequestError(
                f"the {what} dataset gives batches instead of single examples: leave out batch(), or add unbatch() "
                "after it (the batch size depends on the number of replicas)"
            )
        known = int(dataset.cardinality())
        if known == tf.data.INFINITE_CARDINALITY:
            raise RequestError(f"the {what} dataset has no end: give take(n), with n examples per epoch")
        digests = [_digest("", self._epoch(1).batch(READ_AGAIN).take(1).as_numpy_iterator()) for _ in range(2)]
        if digests[0] != digests[1]:
            self._refuse_changes("created")
        self.count = self._counted(dataset) if known == tf.data.UNKNOWN_CARDINALITY else known
        if self.count == 0:
            raise RequestError(f"the {what} dataset of epoch 1 is empty: load_data must return at least one example")
        if self.changes():
            self._refuse_changes("read")
        self._prepare = prepare and converted(prepare)

    def _refuse_changes(self, when: str) -> None:
        raise RequestError(
            f"the {self._what} dataset of epoch 1 has other examples or another order when it is {when} again, so two "
            "trainers would not see the same data: give shuffle a seed and turn off reshuffling, as in "
            f"shuffle(n, seed=epoch, reshuffle_each_iteration=False); {AUGMENTATION}"
        )

    def _epoch(self, epoch: int) -> tf.data.Dataset:
        """Returns the examples of one epoch, unprepared and not batched."""
        dataset = self._of_epoch
        if callable(dataset):
            with blaming(f"the {self._what} data's function for epoch {epoch}", dataset):
                dataset = dataset(*(epoch,) * _parameters(dataset))
        if not isinstance(dataset, tf.data.Dataset):
            raise RequestError(
                f"the {self._what} data of epoch {epoch} is of type {type(dataset).__name__}: the function returned by "
                f"load_data must return a tf.data.Dataset of single examples{_instead(dataset)}"
            )
        return dataset if self._limit is None else dataset.take(self._limit)

    def _counted(self, dataset: tf.data.Dataset) -> int:
        """Returns the number of examples, found by iterating over them."""
        count, start = 0, time.monotonic()
        for batch in dataset.map(lambda *_: True).batch(256).as_numpy_iterator():
            count += len(batch)
            if time.monotonic() - start > COUNTING:
                raise RequestError(
                    f"the {self._what} dataset has an unknown number of examples, and counting was stopped at "
                    f"{count:,} after {COUNTING} s: give take(n), or, if an epoch has n examples, "
                    "apply(tf.data.experimental.assert_cardinality(n))"
                )
        return count

    def first(self, count: int) -> Stream:
        if count == self.count:
            return self
        stream = copy.copy(self)
        stream.count = stream._limit = count
        vars(stream).pop("sha256", None)  # of all examples
        return stream

    def sample(self, count: int) -> Examples:
        first = self._epoch(1).batch(min(self.count, 20 * count))  # not all of them, which may be slow to read
        arrays = next(iter(first.as_numpy_iterator()))
        return Examples(arrays, self._prepare, self._what).sample(count)

    def of_epoch(self, seed: int, epoch: int | tf.Tensor, batch_size: int) -> tf.data.Dataset:
        """Returns batches as ``Data.of_epoch`` does; the seed has no effect on the order of the user's function.

        Raises:
            RequestError: if the epoch is a tensor, or has a different number of examples than epoch 1.
        """
        if not isinstance(epoch, int | np.integer):
            raise RequestError(
                f"the {self._what} data comes from a function, which takes the epoch as a number and not as a tensor: "
                "use run.train_datasets() for one dataset of all epochs"
            )
        dataset = self._epoch(int(epoch))
        known = int(dataset.cardinality())
        if known >= 0 and known != self.count:
            raise RequestError(
                f"epoch {epoch} has {known} {self._what} examples and epoch 1 has {self.count}: give every epoch the "
                "same number of examples"
            )
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.count)).batch(batch_size)
        if self._prepare is not None:
            dataset = dataset.map(self._prepare)
        return dataset.prefetch(2).with_options(_options())

    def of_epochs(
        self, epochs: range | tf.Variable, of_epoch: Callable[[Any], tf.data.Dataset], *, elsewhere: bool = False
    ) -> tf.data.Dataset:
        """Returns one dataset of several epochs, each of which is created when it starts.

        Otherwise all of them would be in memory together, with the arrays from which they were created, as they are
        where another process will iterate the dataset, which cannot call ``of_epoch``.
        """
        if elsewhere and isinstance(epochs, range):
            datasets = [of_epoch(epoch) for epoch in epochs]
            while len(datasets) > 1:  # in pairs, so that the nesting depth is only logarithmic in the number of epochs
                pairs = [datasets[i : i + 2] for i in range(0, len(datasets), 2)]
                datasets = [pair[0] if len(pair) == 1 else pair[0].concatenate(pair[1]) for pair in pairs]
            return datasets[0].with_options(_options())

        def create(epoch: tf.Tensor) -> tf.Tensor:
            return tf.data.experimental.to_variant(of_epoch(int(epoch)))

        @tf.autograph.experimental.do_not_convert
        def create_lazily(epoch: tf.Tensor) -> tf.data.Dataset:
            variant = tf.py_function(create, [epoch], tf.variant)
            variant.set_shape([])
            return tf.data.experimental.from_variant(variant, spec)

        spec = of_epoch(epochs[0] if isinstance(epochs, range) else int(epochs)).element_spec
        return super().of_epochs(epochs, create_lazily)

    @cached_property
    def sha256(self) -> str:
        first = next(iter(self._epoch(1).as_numpy_iterator()))
        size = sum(np.asarray(value).nbytes for value in tf.nest.flatten(first))
        # In batches: hashing 60,000 images one at a time takes 40 s.
        batches = self._epoch(1).batch(max(1, HASHED_TOGETHER // max(1, size)))
        return _digest(repr(self._epoch(1).element_spec), batches.as_numpy_iterator())


def _digest(structure: str, batches: Iterable[Any]) -> str:
    digest = hashlib.sha256(structure.encode())
    for batch in batches:
        for array in tf.nest.flatten(batch):
            text = array.dtype.kind == "O"  # an object array holds pointers, not the text itself
            digest.update(repr(array.tolist()).encode() if text else np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _arrays(part: Any) -> Any:
    """Converts x, y or sample weights to arrays, or to tuples or dicts of arrays.

    A list of arrays stands for several inputs, as in Keras; any other list is converted to one array.
    """
    if isinstance(part, dict):
        return {name: _arrays(value) for name, value in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and any(hasattr(value, "shape") for value in part)):
        return tuple(_arrays(value) for value in part)
    array = np.asarray(part)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 0:
        raise TypeError(f"one value is a single {type(part).__name__}")
    return array


def _instead(data: Any) -> str:
    """Returns what to give instead of a kind of data that ``fit`` takes and trainers cannot share; else empty."""
    if isinstance(data, tf.keras.utils.Sequence):  # an older name of PyDataset
        return f"; return a PyDataset's arrays, or a tf.data.Dataset of its examples; {AUGMENTATION}"
    if isinstance(data, Iterator):
        return (
            "; an iterator can be read once only: return arrays, or "
            "tf.data.Dataset.from_generator(function, output_signature=...)"
        )
    if isinstance(data, tf.distribute.DistributedDataset):
        return "; return the tf.data.Dataset, since each trainer distributes it"
    return ""


def _is_batched(dataset: tf.data.Dataset) -> bool:
    if not all(spec.shape.rank != 0 and spec.shape[:1] == [None] for spec in tf.nest.flatten(dataset.element_spec)):
        return False  # the first dimension has a fixed size, as in a window of a time series
    while True:
        kind, inputs = type(dataset).__name__, dataset._inputs()
        if "BatchDataset" in kind and "Unbatch" not in kind:
            return True
        if len(inputs) != 1 or any(word in kind for word in ("Unbatch", "FlatMap", "Interleave", "Window")):
            return False
        (dataset,) = inputs


def _parameters(function: Callable[..., Any]) -> int:
    """Returns the number of arguments of a data function: 1 (the epoch) or 0."""
    for count in (1, 0):
        if _takes(function, count):
            return count
    raise RequestError(f"{getattr(function, '__name__', function)} must take one argument, the epoch, or none")


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function takes as many arguments; it may not tell."""
    try:
        inspect.signature(function).bind(*(1,) * count)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def shuffled(count: int, seed: int, epoch: int | tf.Tensor) -> tf.Tensor:
    """Returns the order of the examples in an epoch, int64 ``[count]``; a pure function of (seed, epoch)."""
    seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
    return tf.random.experimental.index_shuffle(tf.range(count, dtype=tf.int64), seeds, count - 1)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # Deleting an iterator would sometimes wait for its autotuning thread (see strategies.without_idle_waits).
    options.autotune.enabled = False
    options.deterministic = True
    # Every worker takes a part of every batch, even if the data is read from several files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def load(experiment: Experiment) -> tuple[Data, Data]:
    with blaming("load_data", experiment.load_data):
        data = experiment.load_data()
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise RequestError(
                "load_data must return ((x_train, y_train), (x_val, y_val)), or functions from epoch to tf.data.Dataset"
                f", not {type(data).__name__}" + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
            )
        kinds = [Stream if callable(part) or isinstance(part, tf.data.Dataset) else Examples for part in data]
        loaded = kinds[0](data[0], experiment.prepare, "training"), kinds[1](data[1], experiment.prepare, "validation")
    if experiment.prepare is not None:
        with blaming("prepare", experiment.prepare):
            for each in (part for part in data if isinstance(part, tuple)):
                if not _takes(experiment.prepare, len(each)):
                    parts = ", ".join(("x", "y", "sample_weight")[: len(each)])
                    raise RequestError(f"it must take ({parts}), as load_data returns them, and return as many")
            for part in loaded:
                if not isinstance(part.spec, tuple) or len(part.spec) not in (2, 3):
                    raise RequestError(f"prepare returned {part.spec}: it must return (x, y) or (x, y, sample_weight)")
                if part.changes():
                    raise RequestError(
                        "the examples change when they are prepared again, so two trainers would not "
                        f"see the same data: {AUGMENTATION}"
                    )
    return loaded
