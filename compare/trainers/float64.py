"""The plain truth: the same global batches on one replica in float64, to tell which side is off."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from compare.engine.run import Run, Task
from compare.experiment import Part
from compare.trainers.custom_loop import CustomLoop


class Truth:
    """The custom loop with every layer, loss and metric in float64; for a task of ``exact_task``."""

    name = "truth"

    def train(self, run: Run) -> None:
        before = tf.keras.backend.floatx()
        tf.keras.backend.set_floatx("float64")
        try:
            CustomLoop().train(run)
        finally:
            tf.keras.backend.set_floatx(before)


def exact_task(task: Task) -> Task:
    """The same task on one replica, with its data in float64; initial weights and batches are the same."""

    def exactly(*batch: Any) -> Part:
        return tuple(tf.nest.map_structure(_widen, part) for part in batch)

    return dataclasses.replace(
        task,
        strategy=tf.distribute.get_strategy(),
        train=task.train.preparing(exactly),
        validation=task.validation.preparing(exactly),
    )


def _widen(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor
