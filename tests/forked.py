"""Commands that start fast: forked from a process that has imported TensorFlow."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Commands:
    """Commands in their own processes, forked from one that has imported TensorFlow and done nothing else.

    They behave like ``scripts/compare.py`` and can be killed, but need not import TensorFlow. A subset of the interface
    of ``subprocess``, for one command at a time.
    """

    PIPE = subprocess.PIPE
    TimeoutExpired = subprocess.TimeoutExpired
    SERVER = """
import gc, json, os, sys
import tensorflow, pandas, matplotlib.pyplot
from compare import trainers
from compare.app import cli, session
import contradictions

contradictions.install()
gc.freeze()  # as the command does that imports TensorFlow itself

def serve():
    while request := sys.stdin.readline():
        arguments, before, environment, *files = json.loads(request)
        pid = os.fork()
        if not pid:
            for number, file in enumerate([os.devnull, *files]):
                os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            os.environ.update(environment)
            sys.argv = arguments
            exec(before, {})
            return cli.command(arguments[1:])
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

sys.exit(serve())
"""

    def __init__(self, folder, **environment):
        self.files = folder / "stdout", folder / "stderr"
        self.server = subprocess.Popen(
            [sys.executable, "-c", self.SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])} | environment,
        )

    def Popen(self, command, stderr=None, before="", environment=None):
        """Start a command, after executing the code ``before`` in its process."""
        assert command[:2] == [sys.executable, str(ROOT / "scripts" / "compare.py")]
        request = [command[1:], before, environment or {}, *map(str, self.files)]
        self.server.stdin.write(json.dumps(request).encode() + b"\n")
        self.pid, self.returncode = int(self.server.stdout.readline()), None
        return self

    def run(self, command, check=False, **options):
        """Run a command to its end; returns exit status, stdout and stderr."""
        out, errors = (content.decode() for content in self.Popen(command, **options).communicate(300))
        assert not check or self.returncode == 0, errors
        return self.returncode, out, errors

    def communicate(self, timeout=None):
        ready, _, _ = select.select([self.server.stdout], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired("compare.py", timeout)
        self.returncode = int(self.server.stdout.readline())
        return tuple(file.read_bytes() for file in self.files)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)
