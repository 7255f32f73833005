"""The process of a script: forked from one that has TensorFlow already, or a new one where forking is unsafe.

``python -m compare.app.script_process PARENT`` reads a JSON line for every script to start, ``[settings, log]``, and
writes one when it has started, ``["started", pid]``, and when it has ended, ``["ended", pid, status]``. With the names
of settings and log behind PARENT it runs this one script itself.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType

POLL_SECONDS = 0.05


def main(parent: str, *script: str) -> None:
    """Serve until stdin is closed, or run one script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the scripts
    os.environ["TF_USE_LEGACY_KERAS"], os.environ["KERAS_BACKEND"] = "0", "tensorflow"
    from compare.app.processes import end_with  # noqa: PLC0415 (lazy)
    from compare.watch import script as _script  # noqa: F401, PLC0415 (lazy: TensorFlow)
    from compare.watch import stages  # noqa: F401, PLC0415 (lazy: TensorFlow)

    end_with(int(parent))
    if script:
        _run(*map(Path, script))
    else:
        _serve()


def _serve() -> None:
    if sys.platform == "win32":
        raise OSError("this system cannot fork")
    requests = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([requests], [], [], POLL_SECONDS)
        if ready:
            line = requests.readline()
            if not line:
                break
            settings, log = json.loads(line)
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                from compare.app.processes import end_with  # noqa: PLC0415 (lazy)

                end_with(parent)
                _run(Path(settings), Path(log))
            running.add(pid)
            print(json.dumps(["started", pid]), flush=True)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                print(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _run(settings: Path, log: Path) -> None:
    """Run a script in this process, which was started for it, and end as Python ends."""
    from compare.watch.script import run  # noqa: PLC0415 (lazy)
    from compare.watch.settings import Settings  # noqa: PLC0415 (lazy)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), output, output]):
        os.dup2(file, number)
    sys.stdin = open(0)  # noqa: SIM115
    faulthandler.enable()
    status = 0
    try:
        run(Settings.read(settings))
    except SystemExit as ended:
        status = _status(ended)
    except BaseException as error:
        asked = Settings.read(settings)
        lines = traceback.format_exception(type(error), error, _of_script(error.__traceback__, asked.source))
        print(asked.cited("".join(lines)), end="", file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined] # as when Python ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _status(ended: SystemExit) -> int:
    if isinstance(ended.code, str):
        print(ended.code, file=sys.stderr)
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def _of_script(trace: TracebackType | None, script: str) -> TracebackType | None:
    """A traceback from the script's own first line on."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    return frame or trace


if __name__ == "__main__":
    main(*sys.argv[1:])
