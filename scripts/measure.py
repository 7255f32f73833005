"""Measures programs in processes of their own: wall time, CPU time, peak memory and printed lines."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "compare" / "datasets" / "fashion-mnist-sample"


def parser(description: str, out: str) -> argparse.ArgumentParser:
    """Returns a parser with the description as it stands and the option --out, a folder."""
    created = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    created.add_argument("--out", type=Path, default=ROOT / out, help=f"output folder (default: {out})")
    return created


def add_data_dir(created: argparse.ArgumentParser) -> None:
    default, text = Path("/usr/share/datasets/fashion-mnist"), "Fashion-MNIST's folder (default: %(default)s)"
    created.add_argument("--data-dir", type=Path, default=default, help=text)


@dataclass(frozen=True)
class Line:
    """A line of standard output, with the wall and CPU seconds from the program's start until it was read."""

    text: str
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Measurement:
    """One execution of a program; times and peak memory are those of the process and of all that it has started."""

    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    lines: tuple[Line, ...]
    errors: str
    failure: str


class PeakMemory(threading.Thread):
    """Watches the memory that all processes of a session take together, twice a second; on Linux only.

    Memory that several share counts once (proportional set size). Short peaks of a single process are seen better by
    the kernel, which knows no sum.
    """

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self._session, self.peak_mib, self.ended = session, 0.0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.5):
            kib = [_proportional_kib(entry) for entry in Path("/proc").glob("[0-9]*") if self._is_in(int(entry.name))]
            self.peak_mib = max(self.peak_mib, sum(kib) / 2**10)

    def _is_in(self, pid: int) -> bool:
        with suppress(OSError):
            return os.getsid(pid) == self._session
        return False


def _proportional_kib(process: Path) -> int:
    with suppress(OSError, StopIteration):
        lines = (process / "smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0


def run(
    *command: str,
    limit: float = math.inf,
    until: str | None = None,
    check: bool = True,
    **environment: str,
) -> Measurement:
    """Runs a Python program in the project's folder and measures it.

    Args:
        limit: seconds after which the program and all processes it started are killed.
        until: what is in the line after which they are killed, which is no failure.
        check: whether this program ends if the measured one fails; else ``failure`` tells why it failed.

    Raises:
        SystemExit: if the program fails, with the end of its output.
    """
    variables = os.environ | {"PYTHONUNBUFFERED": "1"} | environment  # lines are timed as they appear
    lines: list[Line] = []
    late, found = threading.Event(), False
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=variables, stderr=errors, start_new_session=True, **streams
        ) as process,
    ):

        def stop() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        memory = PeakMemory(process.pid)
        memory.start()
        timer = threading.Timer(min(limit, threading.TIMEOUT_MAX), stop)
        timer.daemon = True
        timer.start()
        try:
            for line in process.stdout:
                lines.append(Line(line.rstrip("\n"), time.monotonic() - began, cpu_seconds(process.pid)))
                if found := until is not None and until in line:
                    os.killpg(process.pid, signal.SIGKILL)
                    break
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
            memory.ended.set()
        wall_seconds = time.monotonic() - began
        errors.seek(0)
        printed = errors.read().decode(errors="replace")
    code = process.returncode
    failure = "" if found else f"status {code}" if code > 0 else f"signal {-code}" if code < 0 else ""
    failure = f"no end after {limit:.0f} s" if late.is_set() else failure
    if failure and check:
        output = "\n".join([*(line.text for line in lines[-20:]), printed[-3000:]])
        raise SystemExit(f"{shlex.join(command)} failed ({failure}):\n{output}")
    peak_mib = max(usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), memory.peak_mib)
    return Measurement(wall_seconds, usage.ru_utime + usage.ru_stime, peak_mib, tuple(lines), printed, failure)


def in_turn(parts: Mapping[str, Callable[[], Any]], rounds: int) -> Iterator[tuple[int, str, Any]]:
    """Calls all parts once per round, so that changes in the machine's speed affect all parts alike.

    Yields:
        The number of the round (from 1), the name of the part and its result.
    """
    for number in range(1, rounds + 1):
        for name, part in parts.items():
            yield number, name, part()


def call_in_process(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process, because TensorFlow never releases what it traced."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly exit ends daemon processes, too
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, daemon=True)
    process.start()
    process.join()


def write_scripts(folder: Path, epochs: int, data: Path = SAMPLE, examples: int = 60_000) -> None:
    """Writes the tests' tutorial.py and tutorial_fit.py to a folder: more epochs, other data, a line for each epoch."""
    sample = 'Path(__file__).resolve().parents[2] / "compare" / "datasets" / "fashion-mnist-sample"'
    changes = {
        "tutorial.py": {"EPOCHS = 1": f"EPOCHS = {epochs}"},
        "tutorial_fit.py": {"verbose=0": f"verbose=2, epochs={epochs}"},
        "images.py": {
            sample: f"Path({str(data)!r})",
            'part("train"),': f'tuple(each[:{examples}] for each in part("train")),',
        },
    }
    for name, replaced in changes.items():
        text = (ROOT / "tests" / "scripts" / name).read_text()
        for old, new in replaced.items():
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (folder / name).write_text(text)


def cpu_seconds(pid: int) -> float:
    """Returns the user and system time of a running process so far; NaN if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread(values: pd.Series, form: str) -> str:
    """Formats the median and the range; a dash if there are no values."""
    known = values.dropna()
    if len(known) < 2:
        return form.format(known.iloc[0]) if len(known) else "–"
    return f"{form} ({form}–{form})".format(known.median(), known.min(), known.max())


def origin(script: str) -> str:
    """Returns the command that is running and the machine, for the head of a page."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = (f"{package} {version(package)}" for package in ("tensorflow", "keras", "numpy"))
    return (
        f"Generated by `{shlex.join(['python', script, *sys.argv[1:]])}` on {os.cpu_count()} × "
        f"{model[1] if model else platform.machine()}, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {', '.join(packages)}."
    )
