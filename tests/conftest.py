"""Four replicas without a GPU: logical CPU devices, made once, before TensorFlow's first operation."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow, with four logical CPU devices."""
    import tensorflow as tf

    import compare

    compare.configure(replicas=4)
    # Tracing makes millions of objects; to look through TensorFlow's own for garbage again and again costs a tenth.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return tf


class Commands:
    """Commands in processes of their own, forked from one that has imported TensorFlow and done nothing else.

    They are what ``scripts/compare.py`` is, and may be killed, but begin at once. Like ``subprocess`` in what is
    used of it, for one command at a time.
    """

    PIPE = subprocess.PIPE
    TimeoutExpired = subprocess.TimeoutExpired
    SERVER = """
import gc, json, os, sys
import tensorflow, pandas, matplotlib.pyplot
from compare import cli, session, trainers
gc.freeze()  # as the command does that imports TensorFlow itself

def serve():
    while request := sys.stdin.readline():
        arguments, errors = json.loads(request)
        pid = os.fork()
        if not pid:
            for number, file in ((0, os.devnull), (1, os.devnull), (2, errors)):
                os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            sys.argv = arguments
            return cli.main(arguments[1:])
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

sys.exit(serve())
"""

    def __init__(self, folder):
        self.errors = folder / "stderr"
        self.server = subprocess.Popen(
            [sys.executable, "-c", self.SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def Popen(self, command, stderr=None):
        assert command[:2] == [sys.executable, str(ROOT / "scripts" / "compare.py")]
        self.server.stdin.write(json.dumps([command[1:], str(self.errors)]).encode() + b"\n")
        self.pid, self.returncode = int(self.server.stdout.readline()), None
        return self

    def run(self, command, check):
        _, errors = self.Popen(command).communicate()
        assert not check or self.returncode == 0, errors

    def communicate(self, timeout=None):
        ready, _, _ = select.select([self.server.stdout], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired("compare.py", timeout)
        self.returncode = int(self.server.stdout.readline())
        return b"", self.errors.read_bytes()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Many commands that take no time to begin."""
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.server.communicate()
