"""Calls a function in a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar
from unittest import mock

T = TypeVar("T")
_starting = threading.Lock()


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Calls a function in a thread that the end of the process does not wait for.

    It does not come from a pool, which would not work any more when a script ends. User code may have taken away
    ``sys.excepthook``, and without it Python makes no thread.
    """
    result = Future[T]()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    with _starting, mock.patch.object(sys, "excepthook", sys.__excepthook__, create=True):
        threading.Thread(target=call, daemon=True).start()
    return result
