"""The float64 baseline: trains on the same global batches on one replica in float64, to find which side is off."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from compare.engine.run import Run, TrainingTask
from compare.experiment import Part
from compare.trainers.custom_loop import CustomLoop


class Truth:
    """The custom loop with every layer, loss and metric in float64; train it on a task from ``exact_task``."""

    name = "float64"

    def train(self, run: Run) -> None:
        # Keras takes the dtype of layers from floatx, but from the global policy as soon as anybody has asked for that.
        # Both are restored after the training, as after that of any trainer.
        tf.keras.backend.set_floatx("float64")
        tf.keras.mixed_precision.set_global_policy("float64")
        CustomLoop().train(run)


def exact_task(task: TrainingTask) -> TrainingTask:
    """Returns the task for one replica and with float64 data; initial weights and batches are unchanged."""

    def to_float64(*batch: Any) -> Part:
        return tuple(tf.nest.map_structure(_widen, part) for part in batch)

    return dataclasses.replace(
        task,
        strategy=tf.distribute.get_strategy(),
        train=task.train.preparing(to_float64),
        validation=task.validation.preparing(to_float64),
    )


def _widen(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor
