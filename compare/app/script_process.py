"""The process that starts those of scripts: as forks of itself, or as new ones where forking is unsafe.

Called with its parent's number and ``fork`` or ``spawn``, it reads a JSON line for every script to start,
``[settings, log]``, and writes one when it has started, ``["started", pid]``, and when it has ended,
``["ended", pid, status]``. Called with the names of settings and log, it runs this one script itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from compare.app import processes
from compare.watch.settings import Settings

POLL_SECONDS = 0.05
Started = tuple[int, Callable[[], int | None]]
"""The number of a process, and what gives its exit status, or None while it runs."""


def main(parent: str, *given: str) -> None:
    """Start scripts until stdin is closed, or run one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends the scripts
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if find_spec("tf_keras") is None or "TF_USE_LEGACY_KERAS" not in os.environ:
        os.environ["TF_USE_LEGACY_KERAS"] = "0"  # also where tf.keras is Keras 2 by itself, as of TensorFlow 2.15
    processes.end_with(int(parent))
    if given == ("spawn",):
        return _serve(_spawned)
    from compare.watch import script as _script  # noqa: F401, PLC0415 (lazy: TensorFlow)
    from compare.watch import stages  # noqa: F401, PLC0415 (lazy: TensorFlow)

    return _serve(_forked) if given == ("fork",) else _run(*given)


def _serve(start: Callable[[str, str], Started]) -> None:
    requests, running = Queue[bytes](), dict[int, Callable[[], int | None]]()

    def listen() -> None:
        with open(0, "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                requests.put(line)
        requests.put(b"")

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with suppress(Empty):
            if not (line := requests.get(timeout=POLL_SECONDS)):
                break
            pid, status_of = start(*json.loads(line))
            running[pid] = status_of
            print(json.dumps(["started", pid]), flush=True)
        for pid, status_of in list(running.items()):
            if (status := status_of()) is not None:
                processes.send(pid, processes.KILL)  # what it has left behind
                del running[pid]
                print(json.dumps(["ended", pid, status]), flush=True)
    for pid in running:
        processes.send(pid, processes.KILL)


def _spawned(settings: str, log: str) -> Started:
    """A new process, which imports TensorFlow by itself."""
    with open(log, "ab") as output:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = processes.start(__spec__.name, settings, log, start_new_session=True, **given)
    return process.pid, process.poll


def _forked(settings: str, log: str) -> Started:
    """A fork of this process, which has TensorFlow already."""
    if sys.platform == "win32":
        raise OSError("this system cannot fork")
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        os.setsid()
        processes.end_with(parent)
        _run(settings, log)

    def status() -> int | None:
        ended, code = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(code) if ended else None

    return pid, status


def _run(settings: str, log: str) -> None:
    """Run a script in this process, which was started for it, and end as Python ends."""
    from compare.watch.script import run  # noqa: PLC0415 (lazy)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), output, output]):
        os.dup2(file, number)
    sys.stdin = open(0)  # noqa: SIM115
    faulthandler.enable()
    try:
        status = run(Settings.read(Path(settings)))
    except OSError as error:  # its trace is this package's
        print(f"what it does cannot be recorded ({error}): does it change its user?", file=sys.stderr)
        status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script may have closed it
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
