"""Noise twins repeat the reference with noise in the weights after every step, to measure the effect of rounding.

People read of them as perturbed runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from compare.engine.run import Run
from compare.records.model import AnyRecord, EpochRecord, Place, in_time
from compare.verdict.rounding import LOUD, noise_begins

BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
HALVES = {"bfloat16": 1 << 16, "float16": 1 << 13}
"""One unit in the last place of a half-precision dtype, in units in the last place of float32."""


class TwinRun(Run):
    """A run that adds noise to the weights, of one or more units in the last place, from a given step on.

    Noise in the initial weights alone is not sufficient, because a contracting problem forgets it. Where layers compute
    in half precision, each step has ``HalfNoise`` too.

    Args:
        start: (epoch, step) of the first step that differs, before which the noise begins (see ``noise_begins``).
        twin: number of the twin; determines the noise.
        loud: whether the noise is ``LOUD`` units (``compare.verdict.rounding``) instead of one.
    """

    stops_at_nan = False

    def __init__(self, *given: Any, start: Place, twin: int, loud: bool = False, **more: Any) -> None:
        super().__init__(*given, **more)
        self._start, self._twin, self._units = noise_begins(start, twin), twin, LOUD if loud else 1
        self._moves = 0
        self._move: Any = None
        self._half = HalfNoise((), set(), twin, self._units)  # none yet

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        built = super().build()
        copies = self._fingerprinter.copies
        self._move = mover(copies, self._twin, self._units)
        trained = copies[: len(built[0].trainable_variables)]
        self._half = HalfNoise(trained, half_dtypes(built[0]), self._twin, self._units)
        self._noise_before(self.epochs[0], 1)
        return built

    def end_step(self, steps: int = 1) -> None:
        self._end_half()
        # Add noise after the step too: a bias that was 0 could not be changed before it, and noise in the gradient has
        # no effect on Adam's first step.
        self._noise_before(self._epoch, self._step + 1)
        self._end_half()
        super().end_step(steps)
        self._noise_before(self._epoch, self._step + 1)

    def end_epoch(self, epoch: int, logs: Any) -> None:
        self._end_half()
        super().end_epoch(epoch, logs)
        self._noise_before(epoch + 1, 1)

    def close(self) -> None:
        self._end_half()
        super().close()

    def _emit(self, record: AnyRecord) -> None:
        super()._emit(replace(record, weights=None) if isinstance(record, EpochRecord) else record)

    def _noise_before(self, epoch: int, step: int) -> None:
        if not tf.executing_eagerly() or in_time((epoch, step)) < in_time(self._start):
            return
        self._half.end()
        self._moves += 1
        self._move(tf.constant(self._moves))
        self._half.begin()

    def _end_half(self) -> None:
        if tf.executing_eagerly():
            self._half.end()


class HalfNoise:
    """Noise of one or more units in the last place of the half-precision dtype that layers compute in.

    Such layers do not notice a change by one float32 unit. The trained weights are changed during each step only, so
    that only the effect on the update remains. (A permanent change would be far larger than rounding, since the weights
    themselves are float32.)

    Args:
        copies: the trained variables ``[variable][replica]``; those that are not float32 are left out.
        dtypes: the half-precision dtypes in which layers compute; none if there is no such noise.
        twin: number of the twin; determines the noise.
        units: the size of the noise, in units in the last place.
    """

    def __init__(self, copies: Sequence[Sequence[tf.Variable]], dtypes: set[str], twin: int, units: int) -> None:
        self._copies = [replicas for replicas in copies if dtypes and replicas[0].dtype == tf.float32]
        self._move = mover(self._copies, -twin, units * max((HALVES[dtype] for dtype in dtypes), default=0))
        self._changes: list[tf.Tensor] = []
        self._moves = 0

    def begin(self) -> None:
        if self._copies:
            self.end()
            self._moves += 1
            self._changes = self._move(tf.constant(self._moves))

    def end(self) -> None:
        for change, replicas in zip(self._changes, self._copies, strict=False):
            for copy in replicas:
                copy.assign_sub(change)
        self._changes = []


def half_dtypes(model: tf.keras.Model) -> set[str]:
    """The half-precision dtypes in which layers of a model compute."""
    return {layer.compute_dtype for layer in model._flatten_layers()} & HALVES.keys()


def mover(copies: Sequence[Sequence[tf.Variable]], twin: int, units: int = 1) -> Any:
    """Returns a function that moves copies ``[variable][replica]`` by units in the last place, at random up or down.

    That function returns the change of each variable, measured at its first copy.
    """

    @tf.function
    def move(moves: tf.Tensor) -> list[tf.Tensor]:
        changes = []
        for i, replicas in enumerate(copies):
            before = replicas[0].read_value()
            if replicas[0].dtype.is_floating:
                kind = BITS[replicas[0].dtype.size]
                seed = tf.stack([tf.constant(twin * len(copies) + i), moves])
                up = tf.random.stateless_uniform(replicas[0].shape, seed, 0, 2, tf.int32)
                for copy in replicas:  # the same change on each replica, so that replicas stay in sync
                    value = copy.read_value()
                    moved = tf.bitcast(tf.bitcast(value, kind) + tf.cast(units * (2 * up - 1), kind), value.dtype)
                    # Zero stays: its neighbors are denormal numbers, which CPUs may flush to zero.
                    movable = tf.logical_and(tf.math.is_finite(value), tf.not_equal(value, 0))
                    copy.assign(tf.where(movable, moved, value))
            changes.append(replicas[0].read_value() - before)
        return changes

    return move
