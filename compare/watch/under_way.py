"""What is under way where code runs: on this replica, in a graph that is traced, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import tensorflow as tf

from compare.threads import in_thread

T = TypeVar("T")
_traced = threading.local()


class Here(threading.local):
    """What is under way on this replica; each runs in a thread of its own.

    Attributes:
        layer: the model or layer that is being called.
        model: the outermost model that is being called under a tape.
        known: what that model's layers were given or gave so far, by id.
        models: those called since the outermost tape began.
        losses: what gradients were taken of since then.
        pairs: whether a difference of all pairs of labels and predictions was computed since then.
        divided: by what Keras has divided the loss that is being computed.
        last: the event that was last added to a graph.
        clip: the script's line that has limited gradients since they were taken.
        taken: the gradients taken since, with their variables, by id; without those that were then changed by hand.
        asked: the variables that the last of these gradients were asked of, in order, if a graph is traced.
        data_set: what a loop in the graph that is traced iterates over.
        by_hand: the training of which changes by hand make a step; None before the first of them.
        applied: the variables that each optimizer was applied to since the outermost tape began, one set for each time.
    """

    tapes = 0
    layer: Any = None
    model: Any = None
    known: dict[int, Any] | None = None
    models: tuple[Any, ...] = ()
    losses: tuple[Any, ...] = ()
    pairs = False
    in_loss = False
    divided = 1
    last: Any = None
    clip: tuple[str, int, str] | None = None
    applying = False
    data_set: Any = None
    taken: Mapping[int, tuple[Any, Any]] = MappingProxyType({})
    asked: Sequence[Any] = ()
    by_hand: Any = None
    applied: Mapping[int, Sequence[frozenset[int]]] = MappingProxyType({})

    @contextmanager
    def set(self, **values: Any) -> Iterator[None]:
        """Sets some of these inside the block."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


def is_replica() -> bool:
    """Whether this is a replica's thread, inside ``Strategy.run``."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def is_tracing() -> bool:
    """Whether ``eagerly`` calls the function that asks while a graph is traced."""
    return bool(getattr(_traced, "now", False))


def eagerly(function: Callable[[], T]) -> T:
    """Calls a function where operations run at once, also while a graph is traced or a replica runs."""
    if tf.executing_eagerly() and threading.current_thread() is threading.main_thread():
        return function()
    tracing = not tf.executing_eagerly()

    def call() -> T:
        _traced.now = tracing
        return function()

    return in_thread(call).result()
