"""Noise twins: the reference trained again, its weights moved by units in the last place after every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from compare.engine.run import Run, Task
from compare.records import AnyRecord, EpochRecord, Place, Sink, in_time
from compare.verdict.rounding import LOUD

BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
HALVES = {"bfloat16": 1 << 16, "float16": 1 << 13}
"""One unit in the last place of a half-precision type, in those of float32."""


class TwinRun(Run):
    """A run that adds noise of one unit in the last place, or of several, from some step on.

    Moving the initial weights alone is not enough: a contracting problem forgets them.

    Where layers compute in half precision, weights that are moved by a unit of float32 are the same to them. What
    is trained is moved by a unit of their type as well, for the time of the step: what is left is what the step
    made of it. (To stay, it would be much more than rounding does, since the weights themselves are float32.)

    Args:
        task: what is trained.
        seed: of the run.
        epochs: the epochs to train.
        start: (epoch, step) of the first step whose weights are moved, before it is made.
        twin: the twin's number: each has other noise.
        loud: whether weights are moved by ``noise.LOUD`` units.
        sinks: where the records go, without weights.
    """

    stops_at_nan = False

    def __init__(
        self,
        task: Task,
        *,
        seed: int,
        epochs: range,
        start: Place,
        twin: int,
        loud: bool = False,
        sinks: Sequence[Sink] = (),
    ) -> None:
        super().__init__(task, seed=seed, epochs=epochs, sinks=[_without_weights(sink) for sink in sinks])
        self._start, self._twin, self._units = start, twin, LOUD if loud else 1
        self._moves = 0
        self._move: Any = None
        self._move_half: Any = None
        self._half: Sequence[Sequence[tf.Variable]] = []
        self._lent: list[tf.Tensor] = []

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        built = super().build()
        assert self._fingerprint is not None
        copies = self._fingerprint.copies
        self._move = _mover(copies, self._twin, self._units)
        half = {layer.compute_dtype for layer in built[0]._flatten_layers()} & HALVES.keys()
        trained = copies[: len(built[0].trainable_variables)] if half else []
        self._half = [replicas for replicas in trained if replicas[0].dtype == tf.float32]
        unit = max((HALVES[kind] for kind in half), default=0)
        self._move_half = _mover(self._half, -self._twin, self._units * unit)
        self._noise_before(self.epochs[0], 1)
        return built

    def end_step(self, steps: int = 1) -> None:
        self._take_back()
        # After the step too: a bias that was 0 before could not be moved, and Adam's first step makes no difference.
        self._noise_before(self._epoch, self._step + 1)
        self._take_back()
        super().end_step(steps)
        self._noise_before(self._epoch, self._step + 1)

    def end_epoch(self, epoch: int, logs: Any) -> None:
        self._take_back()
        super().end_epoch(epoch, logs)
        self._noise_before(epoch + 1, 1)

    def close(self) -> None:
        self._take_back()
        super().close()

    def _noise_before(self, epoch: int, step: int) -> None:
        if not tf.executing_eagerly() or in_time((epoch, step)) < in_time(self._start):
            return
        self._take_back()
        self._moves += 1
        self._move(tf.constant(self._moves))
        self._lent = self._move_half(tf.constant(self._moves))

    def _take_back(self) -> None:
        """Undo what was lent for the time of a step."""
        if not (self._lent and tf.executing_eagerly()):
            return
        for change, replicas in zip(self._lent, self._half, strict=True):
            for copy in replicas:
                copy.assign_sub(change)
        self._lent = []


def _mover(copies: Sequence[Sequence[tf.Variable]], twin: int, units: int = 1) -> Any:
    """A function that moves every copy of every variable by units in the last place, up or down at random.

    It returns the changes, one for each variable, of the first copies.
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
                for copy in replicas:  # the same way everywhere: replicas stay in step
                    value = copy.read_value()
                    moved = tf.bitcast(tf.bitcast(value, kind) + tf.cast(units * (2 * up - 1), kind), value.dtype)
                    # Next to zero there is only what processors take for zero.
                    movable = tf.logical_and(tf.math.is_finite(value), tf.not_equal(value, 0))
                    copy.assign(tf.where(movable, moved, value))
            changes.append(replicas[0].read_value() - before)
        return changes

    return move


def _without_weights(sink: Sink) -> Sink:
    def pass_on(record: AnyRecord) -> None:
        if isinstance(record, EpochRecord):
            record = EpochRecord(record.epoch, record.logs, record.seconds, record.examples_per_second)
        sink(record)

    return pass_on
