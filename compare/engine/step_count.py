"""Compares the number of steps that a trainer reports with the number of steps that its optimizer has made."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import copies_of, reader
from compare.engine.insides_keras import is_keras
from compare.engine.keras_generation import step_counter


class StepCount:
    """Counts reported steps and steps of the optimizer that ``run.build()`` returned.

    A report of one step that the optimizer has not made is no breach of the contract: a loop may report every batch
    while it accumulates gradients, or leave out an update, which the comparison of the weights shows. One of several
    steps is, since all later steps would have other numbers.

    A trainer may also update weights by hand or with other optimizers. So fewer steps of this optimizer are a mistake
    only where no trainable weight has changed since the last report, where this optimizer made all steps before, or
    where a report of several steps had fewer and it has made all that an epoch has.
    """

    def __init__(self, model: tf.keras.Model, optimizer: Any, strategy: tf.distribute.Strategy) -> None:
        self._trainable = len(model.trainable_weights)
        self._counter = reader(copies_of(strategy, [step_counter(optimizer)])[0][:1])
        self._before = self._start = self._epoch_start = self._read()
        self._steps = 0
        self._alone = self._short = False
        self._other_updates = False

    @staticmethod
    def can_tell(model: tf.keras.Model, optimizer: Any, strategy: tf.distribute.Strategy) -> bool:
        """Whether the optimizer's count is the number of steps.

        It is not if a model's own ``train_step`` or an optimizer of the user's own accumulates gradients, if steps are
        skipped to scale the loss, or if workers make them at any time.
        """
        return (
            type(model).train_step is tf.keras.Model.train_step
            and is_keras(type(optimizer))
            and not isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
            and not isinstance(strategy, tf.distribute.ParameterServerStrategy)
        )

    @property
    def begun(self) -> bool:
        """Whether the optimizer has made a step since, reported or not."""
        return self._read() != self._start

    def report(self, steps: int, before: np.ndarray, after: np.ndarray) -> str:
        """Counts steps that a trainer reports; returns what is wrong, or an empty string.

        The hashes of the weights before and after them are uint64 ``[variables, replicas]``, trainable ones first.
        """
        now = self._read()
        made, self._before = now - self._before, now
        self._steps += steps
        if made >= steps:
            self._alone = True
            return ""
        self._short |= steps > 1
        unchanged = np.array_equal(before[: self._trainable], after[: self._trainable])
        if not unchanged and (made == 0 or not self._alone):
            self._other_updates = True
        return "" if self._other_updates or now == self._start or steps == 1 else self._problem()

    def end_epoch(self, reported: int, expected: int) -> str:
        """What is wrong with the number of steps reported in an epoch that has ``expected``, or an empty string."""
        made, self._epoch_start = self._before - self._epoch_start, self._before
        return self._problem() if self._short and reported > made == expected else ""

    def _problem(self) -> str:
        return (
            f"end_step has been called for {self._steps} steps, and the optimizer has made {self._before - self._start}"
            " (optimizer.iterations): call it once after each step of the optimizer, or with the number of steps"
        )

    def _read(self) -> int:
        return int(self._counter()[0])
