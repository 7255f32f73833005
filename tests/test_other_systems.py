"""What other systems lack has another way here, which is taken on this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compare import signals
from compare.app import script_runs
from compare.app.script_runs import START_METHOD, ScriptRunner, start_method
from compare.watch.settings import Settings


def test_processes_are_forked_only_where_that_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_METHOD, raising=False)
    for system, way in (("linux", "fork"), ("darwin", "spawn")):
        monkeypatch.setattr(sys, "platform", system)
        assert start_method() == way, "macOS's own libraries do not survive a fork"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "fork")
    assert start_method() == "spawn"


DEAF = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""
OBEDIENT = "import time; print('here', flush=True); time.sleep(60)"


def test_a_script_that_does_not_end_when_asked_to_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_METHOD, "spawn")
    monkeypatch.setattr(script_runs, "GRACE_SECONDS", 2.0)
    codes = iter([DEAF, OBEDIENT])

    def process(script: list[str], **files: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", next(codes)], **files)

    monkeypatch.setattr(script_runs, "_process", process)
    with ScriptRunner() as runner:
        folders = [str(tmp_path / name) for name in ("deaf", "obedient")]
        runs = [runner.start(Settings("a.py", "a.py", f, f, begins=False), Path(f"{f}.log")) for f in folders]
        while not all(run.log.read_text() for run in runs):
            time.sleep(0.05)
        began = time.monotonic()
        runner.end(runs)
        assert 2 <= time.monotonic() - began < 20
    assert [run.status for run in runs] == [-signal.SIGKILL, -signal.SIGTERM]


def test_interruptions_are_caught_without_the_signals_that_windows_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for name in ("SIGHUP", "SIGKILL"):
        monkeypatch.delattr(signal, name)
    try:
        signals.catch()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals._interrupted.clear()
