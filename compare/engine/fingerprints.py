"""Fingerprints of a model's weights after a step: a hash and a few random projections per variable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from compare.records import PROJECTIONS, Variable

BLOCK = 2**14
"""Number of elements that are projected at a time; small enough for the CPU cache, which a training step evicts."""


class Fingerprinter:
    """Computes fingerprints of all replicas' copies of all variables.

    The hash (XXH3 of the bytes) shows whether two copies are equal. The projections on fixed vectors of random signs,
    in float64, show how far apart two variables are, without storing the variables: for a difference d, the mean of
    the squared projected differences estimates ||d||^2 (Achlioptas, "Database-friendly random projections", 2003).

    Args:
        strategy: the strategy under which the variables were created.
        variables: variables of a Keras model.

    Attributes:
        copies: the copy of each variable on each replica, ``[variable][replica]``.
        replicas: number of replicas in this process.
        variables: names, shapes and dtypes of the variables.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
        self.copies = [strategy.experimental_local_results(distributed(v)) for v in variables]
        self.replicas = len(self.copies[0])
        self.variables = tuple(
            Variable(getattr(v, "path", v.name), tuple(v.shape), tf.as_dtype(v.dtype).name) for v in variables
        )
        self._handles = [(copy.handle, copy.dtype) for per_replica in self.copies for copy in per_replica]
        # Variables of equal shape share a projection, to save memory.
        by_shape = {v.shape: Projection(v.shape) for v in self.variables}
        self._projections = [by_shape[v.shape] for v in self.variables]

    def read(self) -> list[list[np.ndarray]]:
        """Returns the values of all copies, ``[variable][replica]``, without copying if possible."""
        # The raw operation is fastest: read_value() takes three times as long, a traced function for all twice.
        read = tf.raw_ops.ReadVariableOp
        flat = [np.asarray(read(resource=handle, dtype=dtype)) for handle, dtype in self._handles]
        return [flat[i : i + self.replicas] for i in range(0, len(flat), self.replicas)]

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the fingerprint: hashes uint64 ``[variables, replicas]``, projections float64 ``[variables, k]``."""
        return self.of(self.read())

    def of(self, values: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the fingerprint of given values, ``[variable][replica]``."""
        hashes = [[xxhash.xxh3_64_intdigest(copy.reshape(-1).view(np.uint8).data) for copy in row] for row in values]
        projections = np.empty((len(values), PROJECTIONS), np.float64)
        for row, row_hashes, project, projected in zip(values, hashes, self._projections, projections, strict=True):
            equal = row_hashes.count(row_hashes[0]) == len(row)
            project(row[0] if equal else np.mean([copy.astype(np.float64) for copy in row], axis=0), projected)
        return np.array(hashes, np.uint64), projections

    def weights(self) -> list[np.ndarray]:
        """Returns a copy of the first replica's value of every variable."""
        return [copies[0].copy() for copies in self.read()]


def distributed(variable: Any) -> Any:
    """Returns the ``tf.Variable`` (mirrored or plain) of a Keras variable; in Keras 2 they are the same object."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def container(variable: Any) -> Any:
    """Returns the ``tf.Variable`` of all replicas, also where one replica's copy is given."""
    variable = distributed(variable)
    return variable._distributed_container() if hasattr(variable, "_distributed_container") else variable


class Projection:
    """Projects a variable on ``PROJECTIONS`` fixed vectors of random signs, in float64, one block at a time.

    To save memory, all blocks share the signs of one block, multiplied by one extra sign per block. The signs of any
    two elements are still independent, on which the estimate of ``||d||^2`` relies.

    Args:
        shape: shape of the variable.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        generator = np.random.default_rng(list(shape))
        signs, size = np.array([-1.0, 1.0]), math.prod(shape)
        self._inner = generator.choice(signs, size=(PROJECTIONS, min(size, BLOCK)))  # [k, elements of a block]
        self._outer = generator.choice(signs, size=(-(-size // BLOCK), PROJECTIONS))  # [blocks, k]
        self._block = np.empty(min(size, BLOCK))

    def __call__(self, value: np.ndarray, out: np.ndarray) -> None:
        """Projects a value of the variable's shape and any real dtype into ``out``, float64 ``[k]``."""
        flat = value.reshape(-1)
        out[:] = 0.0
        for start, signs in zip(range(0, flat.size, BLOCK), self._outer, strict=True):
            part = flat[start : start + BLOCK]
            block = self._block[: part.size]
            block[:] = part
            out += signs * (self._inner[:, : part.size] @ block)
