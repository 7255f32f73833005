"""Intercepts calls of optimizers and of the distribution strategy while a trainer runs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf

OnApply = Callable[[Any, list[Any], list[Any]], None]
"""Called with an optimizer, its gradients and its variables before every ``apply``."""

STRATEGY_METHODS = "run", "experimental_distribute_dataset", "distribute_datasets_from_function"
"""The methods of a strategy that a distributed trainer calls, itself or through Keras."""


@contextlib.contextmanager
def intercept_apply(on_apply: OnApply) -> Iterator[None]:
    """Calls ``on_apply`` before every call of any Keras optimizer's ``apply``.

    All optimizers are intercepted, since a loop may create its own.
    """
    # Keras 3 has apply, which apply_gradients calls; Keras 2 has apply_gradients only.
    mro = tf.keras.optimizers.Optimizer.__mro__
    owner, method = next((cls, name) for name in ("apply", "apply_gradients") for cls in mro if name in vars(cls))
    original = getattr(owner, method)

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        on_apply(self, grads, variables)
        return original(self, grads, variables)

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        on_apply(self, [gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return original(self, pairs, *args, **options)

    setattr(owner, method, {"apply": apply, "apply_gradients": apply_gradients}[method])
    try:
        yield
    finally:
        setattr(owner, method, original)


@contextlib.contextmanager
def intercept_tape(on_gradient: Callable[[Sequence[Any]], None]) -> Iterator[None]:
    """Calls ``on_gradient`` with the variables that a loss was computed from, before its gradient is taken."""
    original = tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(self: Any, *args: Any, **options: Any) -> Any:
        on_gradient(self.watched_variables())
        return original(self, *args, **options)

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original


@contextlib.contextmanager
def intercept_strategy(strategy: tf.distribute.Strategy, on_use: Callable[[], None]) -> Iterator[None]:
    """Calls ``on_use`` whenever the trainer, or ``fit``, distributes work or data with the strategy."""

    def intercepted(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if _is_distributed_use(sys._getframe(1)):
                on_use()
            return original(*args, **options)

        return call

    for name in STRATEGY_METHODS:
        setattr(strategy, name, intercepted(getattr(strategy, name)))
    try:
        yield
    finally:
        for name in STRATEGY_METHODS:
            delattr(strategy, name)


def _is_distributed_use(frame: FrameType) -> bool:
    """Whether a call of the strategy comes from the trainer itself, or from ``fit``.

    Keras's train_on_batch, evaluate and predict use the strategy as well, but train_on_batch passes the whole batch
    to every replica.
    """
    if not _in_keras(frame):
        return True
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_name == "fit" and _in_keras(caller):
            return True
        caller = caller.f_back
    return False


def _in_keras(frame: FrameType) -> bool:
    return "keras" in str(frame.f_globals.get("__name__", "")).partition(".")[0]
