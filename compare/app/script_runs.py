"""Runs scripts in processes of their own, and turns what they leave into a run's records."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np

from compare.app import processes
from compare.errors import NoVerdictError, RequestError
from compare.naming import shown_path
from compare.records.files import read_json
from compare.records.hashing import PORTABLE_HASHES
from compare.records.metrics_csv import MetricsFile
from compare.records.model import EPOCH_END, BuildRecord, EpochRecord, StepRecord
from compare.records.recorder import Recorder
from compare.watch.epoch_ends import EpochEnds
from compare.watch.reported_logs import logs_by_epoch
from compare.watch.settings import ALL_BEGUN, ENDED, Settings
from compare.watch.trace import ENOUGH, FAILED, OTHERS, OVER, UNTRAINED, Trace, steps_made

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""Time that a script has to end after its last line, or the last step that counts; then it is asked to."""
ENDING = (signal.SIGINT, 2.0), (signal.SIGTERM, 2.0), (getattr(signal, "SIGKILL", signal.SIGTERM), math.inf)
"""How a script is asked to end, and how long it has for that."""
START_METHOD = "FIT_VS_LOOP_START_METHOD"
"""The environment variable with ``fork`` or ``spawn``, the way to start the processes of scripts; for tests."""


def start_method() -> str:
    """How the processes of scripts are started: forking is fast, but unsafe on macOS, and unknown to Windows."""
    forks = hasattr(os, "fork") and sys.platform != "darwin"
    wanted = os.environ.get(START_METHOD) or ("fork" if forks else "spawn")
    if wanted not in ("fork", "spawn"):
        raise RequestError(f"{START_METHOD} is {wanted!r}: there are fork and spawn")
    return wanted


@dataclass
class ScriptRun:
    """One script that runs, or has run; while it runs, its exit status is None.

    Attributes:
        name: what it is called on the screen.
        asked: whether it was asked to end, so that its status says nothing.
    """

    settings: Settings
    log: Path
    pid: int
    name: str = ""
    status: int | None = None
    asked: bool = False

    @property
    def folder(self) -> Path:
        """Where its trace is."""
        return Path(self.settings.folder)

    @property
    def script(self) -> str:
        """The script as the user calls it."""
        return self.settings.cited(self.settings.script)

    @property
    def untrained(self) -> dict[str, list[str]]:
        """Why steps may be missing, as ``Observer.untrained``."""
        unknown: dict[str, list[str]] = {"models": [], "optimizers": [], "further": [], "gradients": [], "by_hand": []}
        return left_by(self, UNTRAINED) or unknown

    def steps(self) -> int:
        """The number of optimizer steps so far, over all its trainings."""
        return sum(steps_made(self.folder, number) for number in range(self.settings.trainings))

    @property
    def lingers(self) -> bool:
        """Whether it still runs, without any step, though its last line or all steps that count came long ago."""
        marks = [mark for name in (ENOUGH, OVER) if (mark := self.folder / name).exists()]
        if self.status is not None or not marks:
            return False
        last = max(file.stat().st_mtime for file in (*marks, *self.folder.glob("*.steps")))
        return time.time() > last + GRACE_SECONDS

    @property
    def lingered(self) -> bool:
        """Whether it was ended after its last line, since a thread or a function of atexit went on."""
        return self.asked and (self.folder / OVER).exists() and not (self.folder / ENOUGH).exists()


class ScriptRunner:
    """Starts scripts, each in a process of its own; a context manager.

    One process starts them all, or one of each interpreter: as forks of itself, which has TensorFlow already, or as new
    processes.

    Args:
        pythons: the interpreters.
        log: the file for what TensorFlow prints as it is imported.
    """

    def __init__(self, pythons: Sequence[str] = (sys.executable,), log: Path = Path(os.devnull)) -> None:
        self._log = log
        self._messages: Queue[list[Any] | None] = Queue()
        self._running: dict[int, ScriptRun] = {}
        environment = {"PYTHONUNBUFFERED": "1"}
        if {*pythons} != {sys.executable}:
            environment[PORTABLE_HASHES] = "1"
        self._servers = {python: self._serve(python, environment) for python in dict.fromkeys(pythons)}

    def _serve(self, python: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as errors:
            server = processes.start(
                "compare.app.script_process",
                start_method(),
                python=python,
                environment=environment,
                bufsize=0,  # lines are read when they are there
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        threading.Thread(target=self._listen, args=[server], daemon=True).start()
        return server

    def _listen(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdout is not None
        with server.stdout as lines:
            for line in lines:
                self._messages.put(json.loads(line))
        with suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_SECONDS)
        self._messages.put(None)

    def _next(self, seconds: float | None) -> list[Any]:
        message = self._messages.get(timeout=seconds)
        if message is None:
            raise self._lost()
        return message

    def _lost(self) -> NoVerdictError:
        """The error that a process that scripts come from has died."""
        status = next((status for each in self._servers.values() if (status := each.poll()) is not None), None)
        see = "run it again" if status == -processes.KILL else f"see {shown_path(self._log)}"
        return NoVerdictError(f"the process that runs the scripts {processes.how_ended(status)}; {see}")

    def __enter__(self) -> ScriptRunner:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends all processes, which are killed."""
        for server in self._servers.values():
            assert server.stdin is not None
            with suppress(OSError):
                server.stdin.close()
            processes.wake(server.pid)
        for server in self._servers.values():
            server.wait()

    def start(self, settings: Settings, log: Path, name: str = "") -> ScriptRun:
        """Starts a script.

        Raises:
            NoVerdictError: if the process that scripts come from has died.
        """
        folder = Path(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings.write(folder / "settings.json")
        log.touch()
        server = self._servers[settings.python]
        assert server.stdin is not None
        try:
            server.stdin.write(json.dumps([str(folder / "settings.json"), str(log)]).encode() + b"\n")
        except OSError:
            raise self._lost() from None
        while (message := self._next(None))[0] != "started":
            self._ended(*message[1:])
        run = self._running[message[1]] = ScriptRun(settings, log, message[1], name)
        return run

    def wait(self, runs: Sequence[ScriptRun], look: Callable[[], None] = lambda: None) -> None:
        """Waits until all scripts have ended; ``look`` is called now and then."""
        while any(run.status is None for run in runs):
            self._hear()
            self.end([run for run in runs if run.lingers])
            look()

    def end(self, runs: Sequence[ScriptRun]) -> None:
        """Ends scripts, whatever they do with signals, and all processes that they have started."""
        running = [run for run in runs if run.status is None]
        for server in self._servers.values():  # which say that they have ended
            processes.wake(server.pid)
        for number, seconds in ENDING:
            deadline = time.monotonic() + seconds
            for run in running:
                run.asked = True
                processes.send(run.pid, number)
            while (running := [run for run in running if run.status is None]) and time.monotonic() < deadline:
                self._hear()

    def _hear(self) -> None:
        """Hears for a short time whether a script has ended."""
        with suppress(Empty):
            self._ended(*self._next(POLL_SECONDS)[1:])

    def _ended(self, pid: int, status: int) -> None:
        run = self._running.pop(pid)
        run.status = status
        if run.settings.begins:  # the other script goes on with its own weights
            folder = Path(run.settings.initial)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ALL_BEGUN).touch()
            (folder / ENDED).touch()


def write_records(
    folder: Path, name: str, trace: Trace, epochs: EpochEnds, like: Trace | None, metrics: MetricsFile
) -> bool:
    """Writes the records of a training as those of a run; returns whether they have numbers.

    Metrics have the names that they have in ``like``; without it, no numbers are written.
    """
    recorder = Recorder(folder, metrics, name, 0)
    recorder(BuildRecord(trace.variables, trace.replicas))
    own = epochs.own_of(trace)
    ends = {*epochs.ends, *own[-1:]}
    logs = {} if like is None else logs_by_epoch(trace, own, like)
    for row in trace.steps:
        step = int(row["step"])
        epoch, within = epochs.place(step) if step else (1, 0)
        record = StepRecord(epoch, within, np.array(row["hashes"]), np.array(row["projections"]))
        recorder(record)
        if step in ends:
            recorder(replace(record, step=EPOCH_END))
            if like is not None:
                numbers, seconds = logs.get(epoch, ({}, math.nan))
                recorder(EpochRecord(epoch, numbers, seconds, math.nan))
    recorder.flush()
    return any(numbers for numbers, _ in logs.values())


def left_by(run: ScriptRun, name: str) -> Any:
    """What a script has left in a file of its folder, in JSON; None without such a file."""
    path = run.folder / name
    return read_json(path) if path.exists() else None


def failure_of(run: ScriptRun) -> str:
    """What a failed script raised, or else how it ended and the last line that it printed; empty if it did not fail.

    What it raises once it has made its steps may come from being ended then.
    """
    ended = (run.folder / OTHERS).exists()
    if run.asked or (ended and (run.folder / ENOUGH).exists()):
        return ""
    if not run.status:
        unknown = "something ended its process at once, with status 0, and what it had trained is not known"
        return "" if ended else unknown
    if raised := left_by(run, FAILED):
        return str(raised)
    if run.status < 0:
        return f"signal {-run.status} ended its process ({signal.strsignal(-run.status)})"
    last = last_line(run.log)
    return f"it ended with status {run.status}" + (f"; its last line: {last}" if last else "")


OF_TENSORFLOW = re.compile(r"[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d [\d:.]+: [IWEF] |WARNING: All log messages before absl")
"""How a line begins that TensorFlow prints by itself."""


def last_line(log: Path) -> str:
    """The last line that a script has printed, without colours and bars; empty if it has printed nothing."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m|\x08", "", text).splitlines()]
    return next((line for line in reversed(lines) if line and not OF_TENSORFLOW.match(line)), "")
