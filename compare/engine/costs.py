"""Measures a trainer's costs beside the seconds per epoch: first step (with tracing), later steps and peak memory.

This module does not import TensorFlow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compare.records.model import AnyRecord, EpochRecord, StepRecord

STEPS = 200
"""Maximum number of later steps that are timed."""
RESET = Path("/proc/self/clear_refs")
"""On Linux, writing 5 to this file resets the peak memory of the process."""


class CostMeter:
    """A sink that measures the step times and the peak memory of one trainer in this process.

    Args:
        keep: receives the costs so far at the end of every epoch, to save them in the run's folder
            (``Recorder.keep_costs``): "first_step_seconds", "step_seconds" (median), "peak_memory_bytes", and
            "own_peak", which says whether the peak memory was reset before this trainer.
    """

    def __init__(self, keep: Callable[[dict[str, Any]], None]) -> None:
        self._keep = keep
        self._last = time.perf_counter()
        self._step = 0
        self._first_step: float | None = None
        self._step_seconds: list[float] = []
        self._own_peak = True
        try:
            RESET.write_text("5")
        except OSError:
            self._own_peak = False

    def __call__(self, record: AnyRecord) -> None:
        now = time.perf_counter()
        if isinstance(record, StepRecord):
            steps = record.step - self._step  # more than one if a call executes several steps
            if record.step > 0 and self._first_step is None:
                self._first_step = now - self._last
            elif record.step > 0 and self._step > 0 and len(self._step_seconds) < STEPS:
                self._step_seconds.append((now - self._last) / steps)
            self._last, self._step = now, record.step
        elif isinstance(record, EpochRecord):
            later = float(np.median(self._step_seconds)) if self._step_seconds else None
            peak = {"peak_memory_bytes": peak_memory(), "own_peak": self._own_peak}
            self._keep({"first_step_seconds": self._first_step, "step_seconds": later, **peak})


def peak_memory() -> int | None:
    """Returns the peak resident memory of this process in bytes; None if the system does not provide it."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 (lazy: not on Windows)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
