"""Noise twins: the reference trained again, its weights moved by one unit in the last place after every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from compare.records import AnyRecord, EpochRecord, Place, Sink, in_time
from compare.runs import Run, Task

BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


class TwinRun(Run):
    """A run that adds noise of one unit in the last place from some step on.

    Moving the initial weights alone is not enough: a contracting problem forgets them.

    Args:
        task: what is trained.
        seed: of the run.
        epochs: the epochs to train.
        start: (epoch, step) of the first step whose weights are moved, before it is made.
        twin: the twin's number: each has other noise.
        sinks: where the records go, without weights.
    """

    stops_at_nan = False

    def __init__(
        self, task: Task, *, seed: int, epochs: range, start: Place, twin: int, sinks: Sequence[Sink] = ()
    ) -> None:
        super().__init__(task, seed=seed, epochs=epochs, sinks=[_without_weights(sink) for sink in sinks])
        self._start, self._twin = start, twin
        self._moves = 0
        self._move: Any = None

    def build(self) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer, Any, Any]:
        built = super().build()
        self._move = None
        self._noise_before(self.epochs[0], 1)
        return built

    def end_step(self) -> None:
        super().end_step()
        self._noise_before(self._epoch, self._step + 1)

    def end_epoch(self, epoch: int, logs: Any) -> None:
        super().end_epoch(epoch, logs)
        self._noise_before(epoch + 1, 1)

    def _noise_before(self, epoch: int, step: int) -> None:
        if not tf.executing_eagerly() or in_time((epoch, step)) < in_time(self._start):
            return
        assert self._fingerprint is not None
        if self._move is None:
            self._move = _mover(self._fingerprint.copies, self._twin)
        self._moves += 1
        self._move(tf.constant(self._moves))


def _mover(copies: Sequence[Sequence[tf.Variable]], twin: int) -> Any:
    """A function that moves every copy of every variable by one unit in the last place, up or down at random."""

    @tf.function
    def move(moves: tf.Tensor) -> None:
        for i, replicas in enumerate(copies):
            if not replicas[0].dtype.is_floating:
                continue
            kind = BITS[replicas[0].dtype.size]
            seed = tf.stack([tf.constant(twin * len(copies) + i), moves])
            up = tf.random.stateless_uniform(replicas[0].shape, seed, 0, 2, tf.int32)
            for copy in replicas:  # the same way everywhere: replicas stay in step
                value = copy.read_value()
                moved = tf.bitcast(tf.bitcast(value, kind) + tf.cast(2 * up - 1, kind), value.dtype)
                # Next to zero there is only what processors take for zero.
                movable = tf.logical_and(tf.math.is_finite(value), tf.not_equal(value, 0))
                copy.assign(tf.where(movable, moved, value))

    return move


def _without_weights(sink: Sink) -> Sink:
    def pass_on(record: AnyRecord) -> None:
        if isinstance(record, EpochRecord):
            record = EpochRecord(record.epoch, record.logs, record.seconds, record.examples_per_second)
        sink(record)

    return pass_on
