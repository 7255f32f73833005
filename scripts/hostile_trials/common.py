"""What hostile trials share: a place to do them in, one command carried out there, and what must always hold of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from forked import Commands
from user_files import LOOP, TASK

from compare.verdict import EXIT_STATUS, NOT_COMPARABLE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "scripts" / "compare.py")]
PREFIX = "compare.py: "
LONGEST_LINE = 1500
"""Characters in an error's line: names that are given may be long."""
SECONDS = 150.0
"""A command that has not ended by then counts as a failure; a cluster waits 50 seconds for its members."""
ADDRESS_SPACE = 24 * 2**30
"""In bytes; a request for a million replicas must not take the whole machine's memory."""
SMALL = ["--experiment", "task.py", "--strategy", "default", "--epochs", "1", "--batch-size", "10"]


@dataclass(frozen=True)
class Result:
    """What became of one trial.

    Attributes:
        kind: the row of the table.
        what: what was done, in one line.
        failures: what was handled badly; empty if nothing was.
        trials: how many it counts as.
        shown: what the command printed, for a trial that is looked at alone.
    """

    kind: str
    what: str
    failures: Sequence[str]
    trials: int = 1
    shown: str = ""


@dataclass(frozen=True)
class Request:
    """One command line, and what is special about it.

    Attributes:
        arguments: of the command.
        kind: the row of the table.
        environment: variables of its environment.
        before: Python code executed in its process first.
        told: what its line must contain if it ends with status 2 or 3.
        statuses: the exit statuses that are right.
        reports: the only folder that it may write to, relative to where it runs; None if it may write anywhere.
        silent: whether it may end without a line, since it has closed stderr.
        noisy: whether other code may have written to stderr before.
        keeps: whether a refused request must leave every file as it was, and an error must name a line of user code;
            not where user code destroys what is needed for that.
        what: what was done beside the arguments, for the list of failures.
    """

    arguments: Sequence[str]
    kind: str
    environment: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    told: str = ""
    statuses: Collection[int] = (0, 1, 2, 3)
    reports: str | None = "reports"
    silent: bool = False
    noisy: bool = False
    keeps: bool = True
    what: str = ""


@dataclass(frozen=True)
class Ended:
    """How a command ended; the status is negative for a signal, None if it had to be killed."""

    status: int | None
    out: str
    err: str


class Place:
    """A folder of one worker, with the user's files and recorded runs, fresh for every trial.

    Attributes:
        folder: everything that commands started here may touch.
        here: the working directory, with ``task.py``, ``loop.py`` and ``reports``: ``old`` has finished, ``cut`` was
            interrupted before its second trainer.
    """

    def __init__(self, folder: Path) -> None:
        self._saved, self.folder = folder / "saved", folder / "place"
        self.here = self.folder / "here"
        (folder / "streams").mkdir(parents=True)
        self._streams = folder / "streams"

    @cached_property
    def commands(self) -> Any:
        """Starts commands fast."""
        return Commands(self._streams, TMPDIR=str(self.folder / "tmp"), TF_CPP_MIN_LOG_LEVEL="3")

    def close(self) -> None:
        """Ends what starts commands."""
        if "commands" in vars(self):
            self.commands.server.communicate()

    def fresh(self) -> None:
        """The files as they were before the last trial."""
        if not self._saved.exists():
            self._record()
        erase(self.folder)
        shutil.copytree(self._saved, self.folder, symlinks=True)

    def _record(self) -> None:
        self.here.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        (self.here / "task.py").write_text(TASK)
        (self.here / "loop.py").write_text(LOOP)
        stopped = "from compare.trainers import custom_loop\ndef train(*_): raise KeyboardInterrupt\n"
        stopped += "custom_loop.CustomLoop.train = train"
        for name, before, status in ("old", "", 0), ("cut", stopped, 130):
            ended = self.run(Request([*SMALL, "--name", name], "", before=before))
            assert ended.status == status, ended
        shutil.copytree(self.folder, self._saved, symlinks=True)

    def run(self, request: Request, seconds: float = SECONDS) -> Ended:
        """Carry out a command here, in a session of its own, and wait for its end."""
        before = "import os, resource; os.setsid(); "
        before += f"resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE},) * 2); os.chdir({str(self.here)!r})\n"
        process = self.commands.Popen(
            [*COMMAND, *request.arguments], before=before + request.before, environment=dict(request.environment)
        )
        try:
            out, err = process.communicate(timeout=seconds)
            status = process.returncode
        except self.commands.TimeoutExpired:
            end_session(process.pid)
            (out, err), status = process.communicate(timeout=30), None
        return Ended(status, out.decode(errors="replace"), err.decode(errors="replace"))

    def tried(self, request: Request) -> Result:
        """Carry out a command here and judge what it did."""
        before, began = self.contents(), time.time()
        ended = self.run(request)
        left = left_over(self.commands.pid)
        failures = [*_judged_end(request, ended), *self._judged_files(request, ended, before)]
        if left:
            failures.append(f"processes left: {'; '.join(left)}")
        words = " ".join(map(repr, request.arguments))[:600]
        words += f" {str(dict(request.environment) or '')[:200]} {request.what[:400]}"
        seconds = f"{time.time() - began:.1f} s"
        shown = f"status {ended.status} after {seconds}\nstdout: {ended.out[-3000:]}\nstderr: {ended.err[-3000:]}"
        return Result(request.kind, printable(words.strip()), [printable(each) for each in failures], shown=shown)

    def contents(self) -> dict[str, str]:
        """Every file, folder and link here, with a digest of its content."""
        return {os.path.relpath(path, self.here): _digest(path) for path in _walk(str(self.folder)) if _counts(path)}

    def _judged_files(self, request: Request, ended: Ended, before: dict[str, str]) -> Iterator[str]:
        after = self.contents()
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        verdicts = [self.here / path for path in changed if path in after and path.endswith("verdict.json")]
        # A trainer that breaks its contract is found out in training; then there is a verdict.
        if ended.status == 2 and request.keeps and changed and not verdicts:
            yield f"refused, and changed {_first(changed)}"
        if request.reports is not None:
            folder = os.path.normpath(request.reports)
            outside = [path for path in changed if f"{path}/".startswith("../") or not _within(path, folder)]
            if outside:
                yield f"changed outside the reports folder: {_first(outside)}"
        yield from _judged_verdicts(request, ended, verdicts)


def _judged_end(request: Request, ended: Ended) -> Iterator[str]:
    lines = ended.err.splitlines()
    own = [line for line in lines if line.startswith(PREFIX)]
    if ended.status is None:
        yield f"did not end within {SECONDS:.0f} s"
        return
    if ended.status not in request.statuses:
        yield f"status {ended.status}: {ended.err[-400:]}"
    if "Traceback (most" in ended.err + ended.out:
        yield f"a traceback: {ended.err[-400:]}"
    if ended.status == 2 and not request.silent and len(own) != 1:
        yield f"status 2 with {len(own)} lines that say why: {ended.err[-400:]}"
    if lines != own and not request.noisy:
        yield f"more on stderr than lines of its own: {ended.err[:400]}"
    if len(own) > 1:
        yield f"{len(own)} lines on stderr: {ended.err[:400]}"
    for line in own:
        if len(line) > LONGEST_LINE:
            yield f"a line of {len(line)} characters: {line[:200]}"
        if not line.isprintable():
            yield f"a line with control characters: {line[:400]}"
        raised = re.match(rf"{PREFIX}\w+(Error|Exception|Warning): ", line)
        if request.keeps and raised and ", line " not in line:
            yield f"an error of its own: {line[:400]}"
    if ended.status in (2, 3) and request.told and request.told not in ended.err + ended.out:
        yield f"does not tell {request.told!r}: {(ended.err or ended.out)[-400:]}"


def _judged_verdicts(request: Request, ended: Ended, verdicts: list[Path]) -> Iterator[str]:
    """What is wrong with the verdicts that a command wrote, given its status."""
    statuses = []
    for path in verdicts:
        try:
            content = json.loads(path.read_text())
            statuses.append(EXIT_STATUS[content["verdict"]])
            if ended.status == 2 and request.keeps and content["verdict"] != NOT_COMPARABLE:
                yield f"refused, and judged as {content['verdict']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield f"{path.name} is no verdict: {type(error).__name__}: {error}"
    if ended.status in (0, 1) and not ended.out.startswith("usage:") and "This run has finished" not in ended.out:
        if not statuses:
            yield f"status {ended.status} without a verdict.json of this run"
        elif ended.status not in statuses:
            yield f"status {ended.status}, but the verdict in verdict.json has {statuses}"


# Files


def erase(folder: Path) -> None:
    """Removes a folder, whatever its permissions."""
    if folder.exists():
        shutil.rmtree(folder)


def _walk(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        yield entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _counts(path: str) -> bool:
    """Whether a file counts: not a lock, which every process takes, nor what Python compiles a user's file to.

    Nor the file of AutoGraph's that TensorFlow leaves behind where it cannot be written.
    """
    return not (path.endswith("/.lock") or "/__pycache__" in path or "/__autograph_generated_file" in path)


def _digest(path: str) -> str:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return f"-> {os.readlink(path)}"
    if not stat.S_ISREG(found.st_mode):
        return oct(stat.S_IFMT(found.st_mode))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _within(path: str, folder: str) -> bool:
    return folder == "." or f"{path}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{path}/")


def _first(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def printable(text: str) -> str:
    """One line to print, whatever the text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


# Processes


def _session(session: int) -> dict[int, str]:
    """The processes of a session that have not ended, and their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, _, of_session = (folder / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(of_session) == session and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()[-150:]
    return found


def end_session(session: int) -> None:
    """Kills the processes of a session."""
    for process in _session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def left_over(session: int, patience: float = 8.0) -> list[str]:
    """The processes of a session that have not ended after some seconds; they are killed."""
    deadline = time.monotonic() + patience
    while (left := _session(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    end_session(session)
    return list(left.values())
