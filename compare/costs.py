"""What a trainer costs beside seconds per epoch: the first step, which compiles, a later one, memory; no TensorFlow."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from compare.records import AnyRecord, EpochRecord, StepRecord, read_json, write_json

FILE = "costs.json"
"""By trainer and seed: seconds of the first step and of a later one, peak memory in bytes (None: not known), and
``own_peak``, whether that peak is of the time when this trainer trained, or since the process began."""
STEPS = 200
"""Later steps that are timed, at most."""
RESET = Path("/proc/self/clear_refs")
"""Linux: writing 5 makes the process's peak memory begin anew."""


class CostMeter:
    """The sink that takes the time of steps and the peak of memory of one trainer, trained in this process.

    Both are in ``costs.json`` of the run's folder as soon as an epoch ends.
    """

    def __init__(self, folder: Path, trainer: str, seed: int) -> None:
        self._path, self._trainer, self._seed = folder / FILE, trainer, str(seed)
        self._last = time.perf_counter()
        self._first_step: float | None = None
        self._steps: list[float] = []
        self._own_peak = _begin_anew()

    def __call__(self, record: AnyRecord) -> None:
        now = time.perf_counter()
        if isinstance(record, StepRecord):
            if record.step > 1 and len(self._steps) < STEPS:
                self._steps.append(now - self._last)
            elif record.step == 1 and self._first_step is None:
                self._first_step = now - self._last
            self._last = now
        elif isinstance(record, EpochRecord):
            content = read_json(self._path) if self._path.exists() else {}
            content.setdefault(self._trainer, {})[self._seed] = {
                "first_step_seconds": self._first_step,
                "step_seconds": float(np.median(self._steps)) if self._steps else None,
                "peak_memory_bytes": peak_memory(),
                "own_peak": self._own_peak,
            }
            write_json(self._path, content)


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
