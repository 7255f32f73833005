"""What other systems lack has another way here, which is taken on this one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

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
print("here", flush=True)
time.sleep(60)
"""
OBEDIENT = "import time; print('here', flush=True); time.sleep(60)"


def test_a_script_that_does_not_end_when_asked_to_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_METHOD, "spawn")
    monkeypatch.setattr(script_runs, "GRACE_SECONDS", 2.0)
    with ScriptRunner() as runner:
        runs = []
        for name, code in {"deaf": DEAF, "obedient": OBEDIENT}.items():
            script = tmp_path / f"{name}.py"
            script.write_text(code)
            settings = Settings(*[str(script)] * 2, *[str(tmp_path / name)] * 2, begins=False)
            runs.append(runner.start(settings, tmp_path / f"{name}.log"))
        while not all(run.log.read_text().count("here") for run in runs):
            time.sleep(0.05)
        began = time.monotonic()
        runner.end(runs)
        assert 2 <= time.monotonic() - began < 20
    assert [run.status for run in runs] == [-signal.SIGKILL, 0]


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
