"""Worker processes on this machine, their threads, and their end."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from contextlib import contextmanager, suppress
from functools import partial
from os import _exit  # user code runs with another os._exit
from pathlib import Path
from typing import Any
from unittest import mock

from compare.errors import NoVerdictError, RequestError
from compare.modes import Study, Trained
from compare.option import flag
from compare.request import Request


def cores() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


MEMORY = 512 * 2**20
"""Bytes that a process with TensorFlow needs at least."""


def free_memory() -> int | None:
    """Bytes of memory that are free for new processes, in this control group as well; None where it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        return min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        return free  # without limit


MEMORY_EACH = 1536 * 2**20
"""Bytes of memory that a process that trains should find free; one with Fashion-MNIST has a peak of half of it."""
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Devices that exist where a GPU can be used: Nvidia's, AMD's, and those of Windows' subsystem."""


def why_not(count: int) -> str | None:
    """Why this many trainers should not train on this machine at the same time; None if they can."""
    if cores() < 2:
        return "there is one processor"
    if count > 2 * cores():
        return f"{count} trainers are too many for {cores()} processors"
    if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(Path(gpu).exists() for gpu in GPUS):
        return "a GPU is not shared between processes"
    memory, needed = free_memory(), MEMORY_EACH * count
    if memory is not None and memory < needed:
        return f"{memory / 2**30:.1f} GiB of memory are free, {needed / 2**30:.1f} GiB would be needed"
    return None


def refuse_too_many(options: Request) -> None:
    """Refuses more processes than this machine can run."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    most = 16 * cores() if memory is None else max(1, min(16 * cores(), memory // MEMORY))
    for name in ("workers", "parameter_servers", "jobs"):
        if (getattr(options, name, None) or 0) > most:
            raise RequestError(
                f"{flag(name)} {getattr(options, name)}: this machine has processors and memory for at most {most} "
                f"processes ({cores()} processors); give at most {most}"
            )


FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS")
"""The environment variables that XLA reads when it first compiles."""
_COMPILE = "import tensorflow as tf\ntf.function(lambda: tf.constant(1.0) + 1.0, jit_compile=True)()"


def refuse_flags() -> None:
    """Refuses flags that XLA does not know: it ends the process with 1 then, the status of a difference."""
    given = [name for name in FLAGS if os.environ.get(name)]
    if not given:
        return
    command, nowhere = [sys.executable, "-P", "-c", _COMPILE], subprocess.DEVNULL
    tried = subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE, text=True, errors="replace")
    if said := re.search(r"^F\d{4} .*?\] (.*)", tried.stderr, re.MULTILINE):  # a fatal message
        raise RequestError(f"{' and '.join(given)}: TensorFlow ends at once ({said[1]}); change or unset it")


def division(options: Trained, jobs: int) -> tuple[int, int]:
    """Number of processes, and of threads in each; equal for all, since sums depend on it.

    Dask divides its own workers, so a run there has one thread.
    """
    wanted = options.jobs if isinstance(options, Study) else None
    if isinstance(options, Study) and options.backend == "dask":
        return jobs, 1
    processes = min(wanted or cores(), jobs)
    return processes, max(1, cores() // processes)


def refuse_unsendable(options: Trained) -> None:
    """Refuses an experiment or a trainer, given in Python, that other processes cannot be sent."""
    from loky.backend.reduction import dumps  # noqa: PLC0415 (lazy)

    for given in (options.experiment, *options.trainers):
        try:
            dumps(given)
        except Exception as error:
            text = f"{getattr(given, 'name', given)} cannot be sent to another process ({error}): keep what is open or "
            instead = "" if isinstance(options, Study) else ", or train one after the other, without parallel"
            raise RequestError(f"{text}locked, such as files, out of it{instead}") from None


LAST_MESSAGES = "TensorFlow's last messages are in tensorflow.log"
LOST = BrokenExecutor, CancelledError, ConnectionError
"""The exceptions that a lost worker raises."""


SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""With this in its environment, Python does not import from the current folder, where a ``random.py`` may be."""


@contextmanager
def local(processes: int, instead: str = "") -> Iterator[Executor]:
    """Worker processes on this machine, which end with the block.

    Raises:
        NoVerdictError: if the system has no room for the semaphores that they share; it says what to do ``instead``.
    """
    from multiprocessing import resource_tracker  # noqa: PLC0415 (lazy)

    from loky import ProcessPoolExecutor  # noqa: PLC0415 (lazy)
    from loky.backend import resource_tracker as of_loky  # noqa: PLC0415 (lazy)

    by_main = threading.current_thread() is threading.main_thread()
    # Workers are killed, and would leave behind the files that AutoGraph writes for every tf.function.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with mock.patch.dict(os.environ, SAFE_PATH):  # for what cleans up after the workers, which starts now
            resource_tracker.ensure_running()
            of_loky.ensure_running()
        try:
            executor = ProcessPoolExecutor(
                processes, initializer=_begin_worker, initargs=(os.getpid(), by_main, folder), env=SAFE_PATH
            )
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES):
                raise
            raise NoVerdictError(
                f"no other process can train, since what they share cannot be written to /dev/shm ({error.strerror}): "
                f"make room there or make it writable (for a container: --shm-size){instead}"
            ) from error
        try:
            yield executor
        finally:
            executor.shutdown(wait=True, kill_workers=True)
            for each in (resource_tracker, of_loky):  # one that somebody has stopped would stay for ever
                if (pid := each._resource_tracker._pid) is not None:  # this process's own, not its parent's
                    wake(pid)


def _begin_worker(parent: int, by_main: bool, folder: str) -> None:
    """Makes a folder the one for this process's temporary files, and its own processes find their files as usual."""
    (end_with if by_main else _watch)(parent)  # waiting for a first job it would outlive the parent
    take_forks_along()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, and the parent ends the others
    tempfile.tempdir = folder
    for name in SAFE_PATH:
        del os.environ[name]


_RUN = """
import importlib.util, runpy, sys
root, module = sys.argv.pop(1), sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("compare", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["compare"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["compare"])
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""What Python runs with this package's folder and a module of it: as ``-m`` does, but only this package is found there,
whatever else is installed beside it, and nothing in the current folder."""


def start(
    module: str,
    *arguments: str,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    **given: Any,
) -> subprocess.Popen[bytes]:
    """Starts a module of this package, whether or not that is installed, with this process's number as first argument.

    Other arguments are those of ``Popen``.

    Args:
        python: the interpreter; its environment may lack this package.
    """
    root = str(Path(__file__).resolve().parents[1])
    command = [python, "-P", "-c", _RUN, root, module, str(os.getpid()), *arguments]
    return subprocess.Popen(command, env={**os.environ, **(environment or {})}, **given)


def wake(pid: int) -> None:
    """Lets a stopped process go on."""
    if hasattr(signal, "SIGCONT"):
        with suppress(OSError):  # it has ended
            os.kill(pid, signal.SIGCONT)


KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def how_ended(status: int | None) -> str:
    """How a process has ended, in words, by its exit status; None if that is not known."""
    if status is None:
        return "died"
    if status == -KILL:
        return f"was killed (signal {KILL:d}), perhaps for lack of memory"
    return f"ended with status {status}"


def send(pid: int, number: int) -> None:
    """Sends a signal to a process that leads a session, and to all that it has started there; wakes those stopped."""
    with suppress(OSError):  # they have ended
        for each in (number, getattr(signal, "SIGCONT", number)):
            getattr(os, "killpg", os.kill)(pid, each)


def take_forks_along() -> None:
    """Have processes that this one forks, as user code may, end with it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_watch, os.getpid()))


_watched: set[int] = set()


def end_with(parent: int) -> None:
    """End this process as soon as its parent has ended, for whatever reason, and whatever this one does then.

    The thread that has started it must live as long: to Linux, that is the parent.
    """
    if sys.platform == "linux":  # which also ends a stopped process
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, KILL)
    _watch(parent)


PR_SET_PDEATHSIG = 1


def _watch(parent: int) -> None:
    """Ends this process when it has another parent."""
    if parent in _watched or sys.platform == "win32":
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        _exit(1)

    threading.Thread(target=watch, daemon=True).start()
