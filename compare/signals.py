"""Handles Ctrl-C, SIGTERM and the end of the terminal, which end a run in the same way, after the step in hand.

Does not import TensorFlow.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE, LIMIT, SAME = 5, 9, 1
"""Seconds after a signal: in which a step in hand has to end; in which Python has to hear of the signal; and in which
another one is the same, which reached this process twice."""

_interrupted, _heard = threading.Event(), threading.Event()
_deadline = 0.0
_waits = _watched = False


@contextmanager
def ending_at_once(end: Callable[[], None]) -> Iterator[None]:
    """Calls ``end`` at a signal, until ``catch``: during an import an exception may be lost, or become another.

    Args:
        end: ends the process, without anything that may be in use at that moment, such as streams.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        end()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == handle:
                signal.signal(number, handler)


def catch() -> None:
    """Converts the first SIGINT, SIGTERM or SIGHUP to KeyboardInterrupt; a later one ends the process immediately.

    A SIGHUP that is ignored, as under ``nohup``, stays ignored; a SIGCHLD does not: nothing could wait for a process.
    """
    global _heard
    _interrupted.clear()
    _heard = threading.Event()  # a thread that waits for the one before goes on doing so
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _handle)


def catch_again() -> None:
    """Reinstalls the handlers if a library or user code has replaced them; does nothing if ``catch`` was not called."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    known = _watched or _handle in handlers  # of a command, also where both were replaced
    if known and handlers != [_handle] * 2 and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    if interrupted():
        return
    interrupt()
    for signal_number in (signal.SIGINT, signal.SIGTERM) if not _watched else ():
        signal.signal(signal_number, signal.SIG_DFL)
    if sys.platform == "win32" or not _waits:
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(PATIENCE)


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def interrupt() -> None:
    """Asks for the end, as a signal does: what ends a step raises KeyboardInterrupt."""
    global _deadline
    _deadline = time.monotonic() + PATIENCE
    _interrupted.set()


@contextmanager
def ended_by_force(end: Callable[[], None]) -> Iterator[None]:
    """Calls ``end`` in a thread at a second signal, and where nobody says ``heard`` after the first in time.

    Python itself hears of no signal during a call of TensorFlow.
    """
    global _watched
    if sys.platform == "win32":
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    heard_here = _heard

    def end_unless_heard() -> None:
        if not heard_here.wait(LIMIT):
            end()

    def watch() -> None:
        first = 0.0
        with open(reader, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    continue
                if not first:
                    first = time.monotonic()
                    threading.Thread(target=end_unless_heard, daemon=True).start()
                elif time.monotonic() > first + SAME:
                    end()

    threading.Thread(target=watch, daemon=True).start()
    before, _watched = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), True
    try:
        yield
    finally:
        heard_here.set()
        signal.set_wakeup_fd(before)
        _watched = False
        os.close(writer)


def heard() -> None:
    """Says that the interruption is being dealt with, which may take its time."""
    _heard.set()


def interrupted() -> bool:
    """Whether the end was asked for, also if the exception was lost: Python ignores one in ``__del__``, for example."""
    return _interrupted.is_set()


def seconds_left() -> float:
    """How long to wait for steps in hand, after an interruption."""
    return max(0.0, _deadline - time.monotonic())


def wait_for_step(yes: bool) -> None:
    """Whether a signal waits for the end of the step in hand, for some seconds; else it ends the run at once."""
    global _waits
    _waits = yes
    if sys.platform != "win32" and interrupted() and not yes:
        signal.alarm(0)
