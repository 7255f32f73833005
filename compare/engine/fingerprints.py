"""Fingerprints of a model's weights after a step: a hash and a few random projections per variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.insides_tensorflow import context, execute
from compare.records.hashing import hash_of
from compare.records.model import PROJECTIONS, Variable

BLOCK = 2**14
"""Number of elements that are projected with the same signs."""
BUFFER = 4 * BLOCK
"""Number of elements that are projected at a time; small enough for the CPU cache, which a training step evicts."""


class Fingerprinter:
    """Computes fingerprints of all replicas' copies of all variables.

    The hash (XXH3 of the bytes) shows whether two copies are equal. The projections on fixed vectors of random signs,
    in float64, show how far apart two variables are, without storing the variables: for a difference d, the mean of
    the squared projected differences estimates ||d||^2 (Achlioptas, "Database-friendly random projections", 2003).

    Attributes:
        copies: the copy of each variable on each replica, ``[variable][replica]``.
        replicas: number of replicas in this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
        self.copies = copies_of(strategy, variables)
        self.replicas = len(self.copies[0])
        self.variables = tuple(map(described, variables))
        self._read = [reader([copies[i] for copies in self.copies]) for i in range(self.replicas)]
        # Variables of equal shape are projected together.
        shapes, buffer = [v.shape for v in self.variables], np.empty(BUFFER)
        self._projections = {
            Projection(shape, buffer): [i for i, other in enumerate(shapes) if other == shape]
            for shape in dict.fromkeys(shapes)
        }

    def read(self) -> list[list[np.ndarray]]:
        """Returns the values of all copies, ``[variable][replica]``, without copying if possible."""
        return [list(copies) for copies in zip(*(read() for read in self._read), strict=True)]

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the fingerprint: hashes uint64 ``[variables, replicas]``, projections float64 ``[variables, k]``."""
        return self.of(self.read())

    def of(self, values: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the fingerprint of given values, ``[variable][replica]``."""
        hashes = [[_hash(copy) for copy in copies] for copies in values]
        equal = [row.count(row[0]) == len(row) for row in hashes]
        means = [
            copies[0] if same else np.mean([copy.astype(np.float64) for copy in copies], axis=0)
            for copies, same in zip(values, equal, strict=True)
        ]
        projections = np.empty((len(values), PROJECTIONS), np.float64)
        for project, numbers in self._projections.items():
            projections[numbers] = project([means[i] for i in numbers])
        for i in np.flatnonzero(~np.isfinite(projections).all(axis=1)).tolist():
            # NaN has many bit patterns, without a meaning.
            hashes[i] = [_hash(np.where(np.isnan(copy), copy.dtype.type(np.nan), copy)) for copy in values[i]]
        return np.array(hashes, np.uint64), projections

    def weights(self) -> list[np.ndarray]:
        """Returns a copy of the first replica's value of every variable."""
        return [copies[0].copy() for copies in self.read()]


def copies_of(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> list[tuple[tf.Variable, ...]]:
    """Returns the copy of each variable on each of this process's replicas, ``[variable][replica]``."""
    return [strategy.experimental_local_results(distributed(v)) for v in variables]


def described(variable: Any) -> Variable:
    """Returns the path, shape and dtype of a variable of Keras's or TensorFlow's."""
    path = str(getattr(variable, "path", variable.name))
    return Variable(path, tuple(variable.shape), tf.as_dtype(variable.dtype).name)


def _hash(value: np.ndarray) -> int:
    return hash_of(np.ascontiguousarray(value))


def distributed(variable: Any) -> Any:
    """Returns the ``tf.Variable`` (mirrored or plain) of a Keras variable, which may be one itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def container(variable: Any) -> Any:
    """Returns the ``tf.Variable`` of all replicas, also where one replica's copy is given."""
    variable = distributed(variable)
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable
    holders: tuple[Any, ...] = variable, getattr(variable, "handle", None)
    owners = (each._distributed_container for each in holders if hasattr(each, "_distributed_container"))
    return next((owner() for owner in owners), variable)


def reader(variables: Sequence[tf.Variable]) -> Callable[[], list[np.ndarray]]:
    """Returns a function that reads variables of one device as NumPy arrays, without copying if possible."""
    handles, dtypes = [v.handle for v in variables], [v.dtype for v in variables]
    attributes = ("N", len(handles), "dtypes", [dtype.as_datatype_enum for dtype in dtypes])

    def at_once() -> list[np.ndarray]:
        # The operation to which TensorFlow's own graphs fuse reads: a fifth of the time of one operation for each.
        values = execute(b"_ReadVariablesOp", len(handles), inputs=handles, attrs=attributes, ctx=context())
        return [np.asarray(value) for value in values]

    def one_by_one() -> list[np.ndarray]:
        read = tf.raw_ops.ReadVariableOp
        return [np.asarray(read(resource=handle, dtype=dtype)) for handle, dtype in zip(handles, dtypes, strict=True)]

    try:
        at_once()
    except (tf.errors.OpError, TypeError, AttributeError):  # another TensorFlow, or a device that has no such operation
        return one_by_one
    return at_once


class Projection:
    """Projects variables of one shape on ``PROJECTIONS`` fixed vectors of random signs, in float64.

    To save memory, all blocks share the signs of one block, multiplied by one extra sign per block. The signs of any
    two elements are still independent, on which the estimate of ``||d||^2`` relies.

    Args:
        buffer: memory to work in, float64 ``[BUFFER]``; projections that are made one after the other may share it.
    """

    def __init__(self, shape: tuple[int, ...], buffer: np.ndarray | None = None) -> None:
        generator = np.random.default_rng(list(shape))
        signs, self._size = np.array([-1.0, 1.0]), math.prod(shape)
        self._inner = generator.choice(signs, size=(PROJECTIONS, min(self._size, BLOCK)))  # [k, elements of a block]
        self._outer = generator.choice(signs, size=(-(-self._size // BLOCK), PROJECTIONS))  # [blocks, k]
        self._buffer = np.empty(BUFFER) if buffer is None else buffer

    def __call__(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Projects values of the variables' shape and any real dtype; returns float64 ``[values, k]``."""
        flat = [value.reshape(-1) for value in values]
        whole = self._size // BLOCK
        parts = np.empty((len(values), *self._outer.shape))  # [values, blocks, k]
        if whole:
            for part, value in zip(parts, flat, strict=True):
                part[:whole] = self._rows(value[: whole * BLOCK].reshape(whole, BLOCK))
        if whole < len(self._outer):
            parts[:, whole] = self._rows([value[whole * BLOCK :] for value in flat])
        with np.errstate(invalid="ignore"):
            return np.asarray(np.einsum("vbk,bk->vk", parts, self._outer))

    def _rows(self, rows: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Projects rows of equal length, a block at most, with the signs of a block; returns float64 ``[rows, k]``."""
        length = len(rows[0])
        inner, projected = self._inner[:, :length], np.empty((len(rows), PROJECTIONS))
        several = len(self._buffer) // length
        for start in range(0, len(rows), several):
            some = rows[start : start + several]
            block = np.concatenate(some, out=self._buffer[: len(some) * length])
            with np.errstate(invalid="ignore"):  # infinite weights of both signs: their projection is NaN
                projected[start : start + several] = (inner @ block.reshape(-1, length).T).T
        return projected
