"""What a trainer costs beside seconds per epoch: the first step, which compiles, a later one, memory; no TensorFlow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compare.records import AnyRecord, EpochRecord, StepRecord

STEPS = 200
"""Later steps that are timed, at most."""
RESET = Path("/proc/self/clear_refs")
"""Linux: writing 5 makes the process's peak memory begin anew."""


class CostMeter:
    """The sink that takes the time of steps and the peak of memory of one trainer, trained in this process.

    Args:
        keep: is given both as soon as an epoch ends, to be put in the run's folder (``Recorder.keep_costs``).
    """

    def __init__(self, keep: Callable[[dict[str, Any]], None]) -> None:
        self._keep = keep
        self._last = time.perf_counter()
        self._step = 0
        self._first_step: float | None = None
        self._steps: list[float] = []
        self._own_peak = _begin_anew()

    def __call__(self, record: AnyRecord) -> None:
        now = time.perf_counter()
        if isinstance(record, StepRecord):
            made = record.step - self._step  # several in one call, it may be
            if record.step > 0 and self._first_step is None:
                self._first_step = now - self._last
            elif record.step > 0 and self._step > 0 and len(self._steps) < STEPS:
                self._steps.append((now - self._last) / made)
            self._last, self._step = now, record.step
        elif isinstance(record, EpochRecord):
            costs = {
                "first_step_seconds": self._first_step,
                "step_seconds": float(np.median(self._steps)) if self._steps else None,
                "peak_memory_bytes": peak_memory(),
                "own_peak": self._own_peak,
            }
            self._keep(costs)


def peak_memory() -> int | None:
    """The largest resident memory of this process, in bytes; None where nobody counts it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _begin_anew() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return True
