"""Intercepts calls of the distribution strategy while a trainer runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from traceback import walk_stack
from types import FrameType
from typing import Any

import tensorflow as tf

from compare.engine.insides_keras import named_keras
from compare.patching import patch

STRATEGY_METHODS = "run", "experimental_distribute_dataset", "distribute_datasets_from_function"
"""The methods of a strategy that a distributed trainer calls, itself or through Keras."""


def intercept_strategy(strategy: tf.distribute.Strategy, on_use: Callable[[], None]) -> None:
    """Calls ``on_use`` whenever the trainer, or ``fit``, distributes work or data with the strategy."""

    def call(original: Any, *args: Any, **options: Any) -> Any:
        if _is_distributed_use(sys._getframe(2)):  # of the frame before patch's own
            on_use()
        return original(*args, **options)

    for name in STRATEGY_METHODS:
        patch(strategy, name, call)


def _is_distributed_use(frame: FrameType) -> bool:
    """Whether a call of the strategy comes from the trainer itself, or from ``fit``.

    Keras's train_on_batch, evaluate and predict use the strategy as well, but train_on_batch passes the whole batch
    to every replica.
    """
    if not _in_keras(frame):
        return True
    return any(caller.f_code.co_name == "fit" and _in_keras(caller) for caller, _ in walk_stack(frame))


def _in_keras(frame: FrameType) -> bool:
    return named_keras(str(frame.f_globals.get("__name__", "")))
