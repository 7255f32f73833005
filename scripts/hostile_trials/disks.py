"""Full disks: a run that finds no room says so, and ends as an undisturbed one when it is resumed with room."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from killed_runs import TASK, command_in, left_by

from scripts.hostile_trials.common import COMMAND, Place, Request, Result
from scripts.hostile_trials.kills import WAYS

NO_OUTPUT = "for number in {numbers}: os.dup2(os.open('/dev/full', os.O_WRONLY), number)\n"


def trial(place: Place, generator: random.Random) -> Result:
    """One run without room for its files, or for what it prints; then the same with room, by --resume."""
    place.fresh()
    (place.here / "way").write_text(generator.choice(WAYS))
    ways: list[Callable[[Place, random.Random], Result]] = [_small_files, _small_files, _no_output]
    if os.geteuid() == 0 and _mounts(place.folder):
        ways += [_small_disk, _small_disk]
    return generator.choice(ways)(place, generator)


def _small_files(place: Place, generator: random.Random) -> Result:
    size = int(10 ** generator.uniform(2, 5.5))
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    result = place.tried(_request(place, "no file larger than a limit", limit, f"at most {size} bytes in a file"))
    return _resumed(place, result)


def _no_output(place: Place, generator: random.Random) -> Result:
    numbers = generator.choice([[1], [2], [1, 2]])
    before = NO_OUTPUT.format(numbers=numbers)
    result = place.tried(_request(place, "stdout or stderr on a full disk", before, f"streams {numbers}"))
    return _resumed(place, result)


def _small_disk(place: Place, generator: random.Random) -> Result:
    pages = int(10 ** generator.uniform(0.5, 2.3))
    disk = place.here / "reports"
    with _mounted(disk, 4 * pages):
        request = _request(place, "a full disk (tmpfs)", "", f"a disk of {4 * pages} KiB")
        result = place.tried(request)
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        return _resumed(place, result)


def _request(place: Place, kind: str, before: str, what: str) -> Request:
    (place.here / "state.py").write_text(TASK)
    return Request(_arguments(place), kind, before=before, what=what, silent="streams" in what)


def _arguments(place: Place) -> list[str]:
    """The command of ``killed_runs``, in this place."""
    way = (place.here / "way").read_text()
    return [*command_in(place.here, 1)[len(COMMAND) :], "--reports", "reports", "--name", "full", way]


def _resumed(place: Place, result: Result) -> Result:
    """Adds what is wrong with the run after it was resumed with room; begun, if it had not begun."""
    begun = (place.here / "reports" / "full").exists()
    ended = place.run(Request([*_arguments(place), *(["--resume"] if begun else [])], ""))
    failures = list(result.failures)
    if ended.status != 0:
        failures.append(f"with room and {'--resume' if begun else 'anew'}: status {ended.status}: {ended.err[-400:]}")
    else:
        expected, found = (
            _undisturbed(place, (place.here / "way").read_text()),
            left_by(place.here / "reports" / "full"),
        )
        failures += [f"resumed, and other {part}" for part in expected if found.get(part) != expected[part]]
    return Result(result.kind, result.what, failures, shown=result.shown)


@cache
def _undisturbed(place: Place, way: str) -> dict[str, object]:
    """What the run leaves where there is room."""
    ended = place.run(Request([*_arguments(place), "--name", "undisturbed"], ""))
    assert ended.status == 0, ended
    return left_by(place.here / "reports" / "undisturbed")


@cache
def _mounts(folder: Path) -> bool:
    """Whether this process may mount a file system."""
    probe = folder / "probe"
    probe.mkdir()
    try:
        with _mounted(probe, 4):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        shutil.rmtree(probe)


@contextmanager
def _mounted(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system in memory, of this size, in an emptied folder."""
    shutil.rmtree(folder)
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
