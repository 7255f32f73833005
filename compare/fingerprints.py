"""All weights of a model after a step, condensed to a hash and a few projections per variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from compare.records import PROJECTIONS, Variable


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
        self._flat = [copy for per_replica in self.copies for copy in per_replica]
        # One generator per shape: equal shapes share the signs, and the memory.
        self._signs = {v.shape: _signs(v.shape) for v in self.variables}

    def read(self) -> list[list[np.ndarray]]:
        """Every copy of every variable, ``[variable][replica]``, without copying where it can."""
        # The bare operation: read_value() takes three times as long, and a traced function of all twice.
        read = tf.raw_ops.ReadVariableOp
        flat = [np.asarray(read(resource=copy.handle, dtype=copy.dtype)) for copy in self._flat]
        return [flat[i : i + self.replicas] for i in range(0, len(flat), self.replicas)]

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """The fingerprint: hashes uint64 ``[variables, replicas]``, projections float64 ``[variables, k]``."""
        values = self.read()
        hashes = np.empty((len(values), self.replicas), np.uint64)
        projections = np.empty((len(values), PROJECTIONS), np.float64)
        for i, copies in enumerate(values):
            hashes[i] = [xxhash.xxh3_64_intdigest(copy.reshape(-1).view(np.uint8).data) for copy in copies]
            if (hashes[i] == hashes[i, 0]).all():
                mean = copies[0].astype(np.float64)
            else:
                mean = np.mean([copy.astype(np.float64) for copy in copies], axis=0)
            projections[i] = self._signs[self.variables[i].shape] @ mean.ravel()
        return hashes, projections

    def weights(self) -> list[np.ndarray]:
        """A copy of the first replica's value of every variable."""
        return [copies[0].copy() for copies in self.read()]


def distributed(variable: Any) -> Any:
    """The ``tf.Variable`` (mirrored or plain) inside a Keras 3 variable; Keras 2's are that already."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _signs(shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(list(shape))
    signs = generator.choice(np.array([-1.0, 1.0]), size=(int(np.prod(shape)), PROJECTIONS))
    return np.ascontiguousarray(signs.T)  # a projection a row: faster by a quarter
