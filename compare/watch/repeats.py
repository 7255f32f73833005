"""Leaves out calls that would only go on with the first of a script's two trainings, whose steps are enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.watch.trainings import Trainings

IDLE_SECONDS = 20
"""How long such calls are left out."""
VALUES = (tf.Tensor, tf.distribute.DistributedValues, np.ndarray, np.generic, bool, int, float, str, bytes)
"""What may be another one at every call of a step."""


class Repeats:
    """The last call that may make steps, where those of the first training were enough after it.

    What only repeats it is left out, so that the second training begins soon; but not for long: the script may wait for
    something that only training brings about.

    Attributes:
        result: what that call has returned.
    """

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings
        self._last: Sequence[Any] = ()
        self._idle = 0.0
        self.result: Any = None

    def keep(self, call: Sequence[Any], result: Any, *, over: bool) -> None:
        """Keeps what a call was given; ``over`` says whether the steps that it made are enough."""
        self._last, self.result = (call, result) if call and over else ((), None)

    def leave_out(self, call: Sequence[Any]) -> bool:
        """Whether a call is to be left out."""
        same = len(call) == len(self._last) > 0 and all(
            a is b or (isinstance(a, VALUES) and isinstance(b, VALUES)) for a, b in zip(call, self._last, strict=True)
        )
        if not same or self._trainings.second_began or any(training.closed for training in self._trainings):
            return False
        self._idle = self._idle or time.monotonic() + IDLE_SECONDS
        for training in self._trainings:
            training.over = True
        return time.monotonic() < self._idle


def leaves(*arguments: Any) -> list[Any]:
    """What a call is given; empty if that cannot be told."""
    try:
        return list(tf.nest.flatten(arguments))
    except Exception:  # dictionaries whose keys have no order
        return []
