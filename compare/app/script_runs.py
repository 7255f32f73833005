"""Runs scripts in processes of their own, and turns what they leave into a run's records."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compare.errors import NoVerdictError
from compare.records import (
    EPOCH_END,
    BuildRecord,
    EpochRecord,
    MetricsFile,
    Place,
    Recorder,
    StepRecord,
    read_json,
)
from compare.watch.reported_logs import logs_by_epoch
from compare.watch.settings import ALL_BEGUN, ENDED, Settings
from compare.watch.trace import FAILED, OTHERS, Trace, steps_made

POLL_SECONDS = 0.2


@dataclass
class ScriptRun:
    """One script that runs, or has run; while it runs, its exit status is None."""

    settings: Settings
    log: Path
    pid: int
    status: int | None = None

    @property
    def folder(self) -> Path:
        """Where its trace is."""
        return Path(self.settings.folder)

    def steps(self) -> int:
        """The number of optimizer steps so far, over all its trainings."""
        return sum(steps_made(self.folder, number) for number in range(self.settings.trainings))

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Asks the script to end."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ScriptRunner:
    """Starts scripts, each in a process of its own that has TensorFlow already; a context manager."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "compare.app.script_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # lines are read when they are there
            env={**os.environ, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"},
        )
        self._running: dict[int, ScriptRun] = {}

    def __enter__(self) -> ScriptRunner:
        return self

    def __exit__(self, *error: object) -> None:
        for run in self._running.values():
            run.end(signal.SIGKILL)
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._server.wait()

    def start(self, settings: Settings, log: Path) -> ScriptRun:
        """Starts a script.

        Raises:
            NoVerdictError: if the process that scripts come from has died.
        """
        folder = Path(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings.write(folder / "settings.json")
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(json.dumps([str(folder / "settings.json"), str(log)]).encode() + b"\n")
        except OSError:
            raise NoVerdictError(DIED) from None
        while (message := self._message(None)) and message[0] != "started":
            self._ended(message)
        if message is None:
            raise NoVerdictError(DIED)
        run = ScriptRun(settings, log, message[1])
        self._running[run.pid] = run
        return run

    def wait(self, runs: Sequence[ScriptRun], look: Callable[[], None] = lambda: None) -> None:
        """Waits until all scripts have ended; ``look`` is called now and then."""
        while any(run.status is None for run in runs):
            message = self._message(POLL_SECONDS)
            if message is not None:
                self._ended(message)
            elif self._server.poll() is not None:
                raise NoVerdictError(DIED)
            look()

    def _message(self, seconds: float | None) -> list[Any] | None:
        """The next line of the process that scripts come from; None if there is none within that time."""
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], seconds)[0]:
            return None
        line = self._server.stdout.readline()
        return json.loads(line) if line else None

    def _ended(self, message: list[Any]) -> None:
        _, pid, status = message
        run = self._running.pop(pid)
        run.status = status
        if run.settings.begins:  # the other script goes on with its own weights
            folder = Path(run.settings.initial)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ALL_BEGUN).touch()
            (folder / ENDED).touch()


DIED = "the process that runs the scripts died; see tensorflow.log"


def _python_path() -> str:
    """This package stays importable, whether or not it is installed."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


@dataclass(frozen=True)
class EpochEnds:
    """The numbers of steps at which the epochs of a training end, from the training by ``fit``.

    Attributes:
        ends: the steps made up to the end of each epoch; empty if everything is one epoch.
    """

    ends: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ends)

    def place(self, step: int) -> Place:
        """The epoch and the step in it, from the step over the whole training."""
        before = 0
        for epoch, end in enumerate(self.ends, start=1):
            if step <= end:
                return epoch, step - before
            before = end
        return len(self.ends) + 1, step - before

    def step(self, place: Place) -> int:
        """The step over the whole training, from the epoch and the step in it."""
        epoch, step = place
        if step == EPOCH_END:
            return self.ends[epoch - 1] if epoch <= len(self.ends) else 0
        return step + (self.ends[min(epoch - 2, len(self.ends) - 1)] if epoch > 1 and self.ends else 0)

    @classmethod
    def of(cls, *traces: Trace) -> EpochEnds:
        """The ends of the first training that has epochs."""
        for trace in traces:
            ends = [epoch.steps for epoch in trace.epochs]
            if ends and all(ends) and ends == sorted(set(ends)):
                return cls(tuple(ends))
        return cls()


def write_records(
    folder: Path, name: str, trace: Trace, epochs: EpochEnds, like: Trace | None, metrics: MetricsFile
) -> None:
    """Writes the records of a training as those of a run.

    Epochs are those of fit. Metrics have the names that they have in ``like``; without it, no numbers are written.
    """
    recorder = Recorder(folder, metrics, name, 0)
    recorder(BuildRecord(trace.variables, trace.replicas))
    ends = epochs.ends or ((trace.last,) if trace.last else ())
    logs = {} if like is None else logs_by_epoch(trace, ends, like)
    for row in trace.steps:
        step = int(row["step"])
        epoch, within = epochs.place(step) if step else (1, 0)
        record = StepRecord(epoch, within, np.array(row["hashes"]), np.array(row["projections"]))
        recorder(record)
        if step in ends:
            recorder(replace(record, step=EPOCH_END))
            if like is not None:
                numbers, seconds = logs.get(ends.index(step) + 1, ({}, math.nan))
                recorder(EpochRecord(ends.index(step) + 1, numbers, seconds, math.nan))
    recorder.flush()


def failure_of(run: ScriptRun) -> str:
    """What a failed script raised, or else the last line that it printed; empty if it did not fail."""
    if not run.status:
        ended = (run.folder / OTHERS).exists()
        unknown = "something ended its process at once, with status 0, and what it had trained is not known"
        return "" if ended else unknown
    if (run.folder / FAILED).exists():
        return str(read_json(run.folder / FAILED))
    lines = run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if run.log.exists() else []
    return lines[-1].strip() if lines else f"exit status {run.status}"
