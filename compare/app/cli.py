"""The command: from the command line to an exit status."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from os import _exit  # user code runs with another os._exit
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from compare import signals
from compare.app import processes, standard_streams
from compare.app.command_line import parsed, program
from compare.app.standard_streams import ending, fail, forgiving, print_traceback, stderr_to
from compare.engine.tf_config import this_task
from compare.errors import EXIT_INTERRUPTED, NoVerdictError, RequestError
from compare.modes import Logs, Trained
from compare.naming import absolute, shown_path
from compare.request import Request, Task
from compare.user_errors import describe
from compare.verdict.outcomes import DIFFERENT, EXIT_STATUS, NOT_COMPARABLE

PATIENCE = 5.0
"""Seconds that threads of user code, and after an interruption its ``atexit`` functions, have to end."""
PACKAGES = (
    "tensorflow", "keras", "numpy", "pandas", "matplotlib", "jinja2", "rich", "scipy", "loky", "filelock", "xxhash",
)  # fmt: skip
"""What ``pyproject.toml`` requires; all are imported by the name that they are installed by."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; returns the exit status."""
    standard_streams.provide()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it says where its cache is if HOME cannot be written
    given = list(sys.argv[1:] if arguments is None else arguments)
    return ending(program(), lambda: _main(given))


def _main(given: Sequence[str]) -> int:
    with signals.ending_at_once(_end_at_once):
        options = parsed(given)
        refuse_if_missing()
        if isinstance(options, Task):
            options.refuse_missing_files()
        from compare.reporting.live import waiting  # noqa: PLC0415 (lazy)

        with waiting(standard_streams.console(quiet=options.quiet), "starting"):
            import_module("compare.app.session")  # and what else a run needs before TensorFlow
        if not isinstance(options, Logs):
            _refuse_little_memory()
        this_task()  # whatever the strategy: TensorFlow reads TF_CONFIG too
        signals.catch()
    if _helps(options):
        with _shared_folder(options) as folder:
            return carry_out_and_report(options, folder)
    from compare.app.run_folder import claimed  # noqa: PLC0415 (lazy)

    terminal = os.dup(2)
    with claimed(options) as folder:
        text = _how_to_go_on(options, given, folder)

        def end() -> None:
            os.dup2(terminal, 2)
            _exit(fail(program(), text, EXIT_INTERRUPTED))

        try:
            with signals.ended_by_force(end):
                return carry_out_and_report(options, folder)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(text) from None
        finally:
            os.close(terminal)


def _end_at_once() -> None:
    """Ends the command before it has begun anything."""
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\r\x1b[2K\x1b[?25h")  # removes the line that moves, and shows the cursor again
        os.write(2, f"{program()}: interrupted\n".encode(errors="replace"))
    _exit(EXIT_INTERRUPTED)


def _helps(options: Request) -> TypeGuard[Task]:
    """Whether this process is a task of a cluster that is not its chief."""
    task = this_task() if isinstance(options, Task) and options.spec.several_processes else None
    return task is not None and not task.is_chief


def _how_to_go_on(options: Request, given: Sequence[str], folder: Path) -> str:
    if not isinstance(options, Trained):
        from compare.app.run_folder import run_again  # noqa: PLC0415 (lazy)

        return f"interrupted; this cannot be resumed: {run_again(options, folder)}"
    again = [argument for argument in given if argument != "--resume"]
    name = [] if options.name else ["--name", folder.name]
    called = [sys.executable] * sys.argv[0].endswith(".py") + [sys.argv[0]]
    return f"interrupted; continue with: {shlex.join([*called, *again, *name, '--resume'])}"


LEAST_MEMORY = 3 << 30
"""Bytes of address space that TensorFlow takes to train anything; with less, it ends the process in the middle."""


def _refuse_little_memory() -> None:
    with suppress(ImportError):  # elsewhere than on Unix
        resource: Any = import_module("resource")
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if resource.RLIM_INFINITY != limit < LEAST_MEMORY:
            raise RequestError("too little memory: TensorFlow needs 3 GiB of address space; allow more (ulimit -v)")


def refuse_if_missing() -> None:
    """Refuse to go on where packages are not installed, with the command that installs them, or hidden by a file."""
    found = {name: find_spec(name) for name in PACKAGES}
    for name, spec in found.items():
        if spec is not None and spec.submodule_search_locations is None:
            raise RequestError(f"{spec.origin} hides the package {name}: rename it, or take it from PYTHONPATH")
    library = Path(os.__file__).parent
    for path in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for name in sys.stdlib_module_names & sys.modules.keys() if Path(path).resolve() != library else ():
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().parent == Path(path).resolve():
                raise RequestError(f"{file} hides Python's own {name}: rename it, or take it from PYTHONPATH")
    missing = [name for name, spec in found.items() if spec is None]
    if not missing:
        return
    root = Path(__file__).resolve().parents[2]
    activate = root / ".venv" / "bin" / "activate"
    if activate.is_file():
        remedy = f"activate the environment that has them: . {activate}"
    elif sys.prefix != sys.base_prefix:
        remedy = f"install them into this environment: {sys.executable} -m pip install -e {root}"
    else:  # many systems do not let pip change their own Python
        remedy = f"install them: cd {root} && python3 -m venv .venv && . .venv/bin/activate && pip install -e ."
    raise RequestError(f"{sys.executable} has no {', '.join(missing)}; {remedy}")


@contextmanager
def _shared_folder(options: Task) -> Iterator[Path]:
    """The folder for a cluster member's checkpoints: the chief's folder, if its name is known."""
    if options.name is not None:
        yield absolute(Path(options.reports) / options.name)
        return
    if options.goes_on:
        raise RequestError("--resume in a cluster of your own: give --name, so that every task finds the same folder")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def command(arguments: Sequence[str] | None = None) -> int:
    """As ``main``, in a process of its own, which ends although user code may have left threads that do not.

    Python would wait for them; nothing of a run depends on them.
    """
    status = main(arguments)
    if status == EXIT_INTERRUPTED:  # whatever user code has Python do at its end
        by_force = threading.Timer(PATIENCE, _exit, [status])
        by_force.daemon = True
        _flush()
        by_force.start()
    deadline = time.monotonic() + PATIENCE
    own = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in own:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in own):
        atexit._run_exitfuncs()
        _flush()
        os._exit(status)
    result = status

    def end(status: int) -> NoReturn:  # by user code, as Python ends
        _exit(result)

    os._exit = end
    return result


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        forgiving(stream).flush()


def carry_out_and_report(options: Request, folder: Path) -> int:
    """Carry out a request and print its progress; returns the exit status.

    Results go to the folder; of a member of a cluster that is not its chief, checkpoints only.

    Raises:
        RequestError, NoVerdictError, KeyboardInterrupt: as ``carry_out``; any other exception, whose traceback is in
            the log, has become a NoVerdictError.
    """
    from compare.app.cluster_session import take_part  # noqa: PLC0415 (lazy)
    from compare.app.session import carry_out  # noqa: PLC0415 (lazy)
    from compare.records.run_json import RunJson  # noqa: PLC0415 (lazy: needs packages)
    from compare.reporting.run_files import verdict_of  # noqa: PLC0415 (lazy: needs packages)

    processes.take_forks_along()
    console = standard_streams.console(quiet=options.quiet)
    if _helps(options):
        take_part(options, folder, console)
        return 0
    seen_once = console.is_terminal and not console.quiet and sys.stderr.isatty()
    with stderr_to(folder / "tensorflow.log"):
        try:
            result = carry_out(options, folder, console, command=True)
        except (RequestError, NoVerdictError):
            raise
        except Exception as error:  # a user's trainer raised: the verdict says so
            print_traceback()
            text = describe(error)
            printed = [each["side"] for each in RunJson.read(folder).failures or () if each["error"] == text]
            if printed and seen_once:  # in the same terminal, when it was raised
                text = f"{printed[0]} failed"
            text = f"{text} (traceback in {shown_path(folder)}/tensorflow.log)"
            verdict = verdict_of(folder)
            if verdict is not None and verdict.verdict == DIFFERENT:  # that of another trainer
                return fail(program(), text, EXIT_STATUS[verdict.verdict])
            raise NoVerdictError(text) from error
    if options.quiet and result.verdict == NOT_COMPARABLE:
        return fail(program(), str(result).partition("\n")[0], result.exit_status)
    if options.quiet and result.exit_status:
        print(result, file=forgiving(sys.stdout))
    return result.exit_status
