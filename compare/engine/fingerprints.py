"""All weights of a model after a step, condensed to a hash and a few projections per variable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from compare.records import PROJECTIONS, Variable

BLOCK = 2**14
"""Elements that are projected at once: few enough for the processor's cache, where a step leaves nothing."""


class Fingerprinter:
    """Reads every replica's copy of every variable and condenses it.

    The hash (XXH3 over the bytes) says whether two copies are equal. The projections, on fixed
    vectors of random signs in float64, say how far apart two variables are without keeping them:
    for a difference d, the mean of the squared projected differences estimates ||d||^2
    (Achlioptas, "Database-friendly random projections", 2003).

    Args:
        strategy: the strategy under which the variables were made.
        variables: a Keras model's variables.

    Attributes:
        copies: every replica's copy of every variable, ``[variable][replica]``.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
        self.copies = [strategy.experimental_local_results(distributed(v)) for v in variables]
        self.replicas = len(self.copies[0])
        self.variables = tuple(
            Variable(getattr(v, "path", v.name), tuple(v.shape), tf.as_dtype(v.dtype).name) for v in variables
        )
        self._handles = [(copy.handle, copy.dtype) for per_replica in self.copies for copy in per_replica]
        # Equal shapes share the signs, and the memory.
        of_shape = {v.shape: Projection(v.shape) for v in self.variables}
        self._projections = [of_shape[v.shape] for v in self.variables]

    def read(self) -> list[list[np.ndarray]]:
        """Every copy of every variable, ``[variable][replica]``, without copying where it can."""
        # The bare operation: read_value() takes three times as long, and a traced function of all twice.
        read = tf.raw_ops.ReadVariableOp
        flat = [np.asarray(read(resource=handle, dtype=dtype)) for handle, dtype in self._handles]
        return [flat[i : i + self.replicas] for i in range(0, len(flat), self.replicas)]

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """The fingerprint: hashes uint64 ``[variables, replicas]``, projections float64 ``[variables, k]``."""
        values = self.read()
        hashes = [[xxhash.xxh3_64_intdigest(copy.reshape(-1).view(np.uint8).data) for copy in row] for row in values]
        projections = np.empty((len(values), PROJECTIONS), np.float64)
        for row, its_hashes, project, projected in zip(values, hashes, self._projections, projections, strict=True):
            equal = its_hashes.count(its_hashes[0]) == len(row)
            project(row[0] if equal else np.mean([copy.astype(np.float64) for copy in row], axis=0), projected)
        return np.array(hashes, np.uint64), projections

    def weights(self) -> list[np.ndarray]:
        """A copy of the first replica's value of every variable."""
        return [copies[0].copy() for copies in self.read()]


def distributed(variable: Any) -> Any:
    """The ``tf.Variable`` (mirrored or plain) inside a Keras 3 variable; Keras 2's are that already."""
    return variable if isinstance(variable, tf.Variable) else variable.value


class Projection:
    """Projects a variable on ``PROJECTIONS`` fixed vectors of random signs, in float64, a block at a time.

    All blocks share a block's signs, and each has one sign more of its own: signs of any two elements are
    independent still, which is what the estimate of ``||d||^2`` stands on, and a large variable's take little memory.

    Args:
        shape: the variable's.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        generator = np.random.default_rng(list(shape))
        signs, size = np.array([-1.0, 1.0]), math.prod(shape)
        self._inner = generator.choice(signs, size=(PROJECTIONS, min(size, BLOCK)))  # [k, elements of a block]
        self._outer = generator.choice(signs, size=(-(-size // BLOCK), PROJECTIONS))  # [blocks, k]
        self._block = np.empty(min(size, BLOCK))

    def __call__(self, value: np.ndarray, out: np.ndarray) -> None:
        """Project a value, of the variable's shape and any real dtype, into ``out``, float64 ``[k]``."""
        flat = value.reshape(-1)
        out[:] = 0.0
        for start, signs in zip(range(0, flat.size, BLOCK), self._outer, strict=True):
            part = flat[start : start + BLOCK]
            block = self._block[: part.size]
            block[:] = part
            out += signs * (self._inner[:, : part.size] @ block)
