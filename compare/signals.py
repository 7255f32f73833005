"""Ctrl-C and SIGTERM end a run in the same way, within a step or two; no TensorFlow here."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_asked = threading.Event()


def catch() -> None:
    """Turn SIGINT and SIGTERM into KeyboardInterrupt, once; a second one ends the process at once."""
    _asked.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def catch_again() -> None:
    """Put the handlers back that a library has replaced; nothing where there were none of ours."""
    if signal.getsignal(signal.SIGTERM) is _handle or signal.getsignal(signal.SIGINT) is _handle:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    _asked.set()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    raise KeyboardInterrupt


def raise_if_asked() -> None:
    """Raise KeyboardInterrupt where Python lost it: it ignores what is raised while an object is deleted, say."""
    if _asked.is_set():
        raise KeyboardInterrupt
