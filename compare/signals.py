"""Handles Ctrl-C, SIGTERM and the end of the terminal, which end a run in the same way, within a step or two.

Does not import TensorFlow.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_interrupted = threading.Event()


def catch() -> None:
    """Converts the first SIGINT, SIGTERM or SIGHUP to KeyboardInterrupt; a second one ends the process immediately.

    A SIGHUP that is ignored, as under ``nohup``, stays ignored.
    """
    _interrupted.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _handle)


def catch_again() -> None:
    """Reinstalls the handlers if a library has replaced one of them; does nothing if ``catch`` was not called."""
    if signal.getsignal(signal.SIGTERM) is _handle or signal.getsignal(signal.SIGINT) is _handle:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_DFL)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether a signal has asked for the end, also if what was under way has made another error of it."""
    return _interrupted.is_set()


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt again if Python lost it; Python ignores exceptions in ``__del__``, for example."""
    if interrupted():
        raise KeyboardInterrupt
