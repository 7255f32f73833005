"""Noise twins: repeat the reference with noise in the weights after every step, to measure the effect of rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from compare.engine.run import Run
from compare.records import AnyRecord, EpochRecord, Place, in_time
from compare.verdict.rounding import LOUD

BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
HALVES = {"bfloat16": 1 << 16, "float16": 1 << 13}
"""One unit in the last place of a half-precision dtype, in units in the last place of float32."""


class TwinRun(Run):
    """A run that adds noise to the weights, of one or more units in the last place, from a given step on.

    Noise in the initial weights alone is not sufficient, because a contracting problem forgets it.

    Layers that compute in half precision do not notice a change by one float32 unit. So the trainable weights are
    also changed by one unit of the half-precision dtype, but only during each step, so that only its effect on the
    update remains. (A permanent change would be far larger than rounding, since the weights themselves are float32.)

    Args:
        start: (epoch, step) of the first step that starts from changed weights.
        twin: number of the twin; determines the noise.
        loud: whether the noise is ``LOUD`` units (``compare.verdict.rounding``) instead of one.
    """

    stops_at_nan = False

    def __init__(self, *given: Any, start: Place, twin: int, loud: bool = False, **more: Any) -> None:
        super().__init__(*given, **more)
        self._start, self._twin, self._units = start, twin, LOUD if loud else 1
        self._moves = 0
        self._move: Any = None
        self._move_half: Any = None
        self._half_variables: Sequence[Sequence[tf.Variable]] = []
        self._temporary_changes: list[tf.Tensor] = []

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        built = super().build()
        assert self._fingerprint is not None
        copies = self._fingerprint.copies
        self._move = mover(copies, self._twin, self._units)
        half = half_dtypes(built[0])
        trained = copies[: len(built[0].trainable_variables)] if half else []
        self._half_variables = [replicas for replicas in trained if replicas[0].dtype == tf.float32]
        unit = max((HALVES[kind] for kind in half), default=0)
        self._move_half = mover(self._half_variables, -self._twin, self._units * unit)
        self._noise_before(self.epochs[0], 1)
        return built

    def end_step(self, steps: int = 1) -> None:
        self._undo_temporary_changes()
        # Add noise after the step too: a bias that was 0 could not be changed before it, and noise in the gradient has
        # no effect on Adam's first step.
        self._noise_before(self._epoch, self._step + 1)
        self._undo_temporary_changes()
        super().end_step(steps)
        self._noise_before(self._epoch, self._step + 1)

    def end_epoch(self, epoch: int, logs: Any) -> None:
        self._undo_temporary_changes()
        super().end_epoch(epoch, logs)
        self._noise_before(epoch + 1, 1)

    def close(self) -> None:
        self._undo_temporary_changes()
        super().close()

    def _emit(self, record: AnyRecord) -> None:
        super()._emit(replace(record, weights=None) if isinstance(record, EpochRecord) else record)

    def _noise_before(self, epoch: int, step: int) -> None:
        if not tf.executing_eagerly() or in_time((epoch, step)) < in_time(self._start):
            return
        self._undo_temporary_changes()
        self._moves += 1
        self._move(tf.constant(self._moves))
        self._temporary_changes = self._move_half(tf.constant(self._moves))

    def _undo_temporary_changes(self) -> None:
        """Undoes the half-precision noise, which lasts for a single step only."""
        if not (self._temporary_changes and tf.executing_eagerly()):
            return
        for change, replicas in zip(self._temporary_changes, self._half_variables, strict=True):
            for copy in replicas:
                copy.assign_sub(change)
        self._temporary_changes = []


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
