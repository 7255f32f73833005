"""What runs on each side of a comparison of scripts: a file, its interpreter, and the commit that it is taken from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TypeVar

from compare.app import processes
from compare.errors import RequestError
from compare.modes import Scripts
from compare.naming import distinct, plain, refuse_missing, shown_path
from compare.request import LEGACY_KERAS, keras_of_the_environment
from compare.watch.cells import codes_of, joined
from compare.watch.settings import Program

T = TypeVar("T")
PACKAGES = ("tensorflow", "keras", "numpy")
"""What decides how a script trains."""
LEGACY = "tf-keras"
"""What is ``tf.keras`` in place of Keras 3 where ``TF_USE_LEGACY_KERAS`` asks for Keras 2."""
OLDEST = {"tensorflow": (2, 15), "keras": (2, 15)}
"""The oldest versions whose scripts can be watched."""
OLDEST_OF_3 = (3, 3)
"""The oldest version of Keras 3; Keras 2 is that of TensorFlow 2.15, or tf-keras."""
_ASK = f"""
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {{"python": ".".join(map(str, sys.version_info[:3]))}}
for name in {(*PACKAGES, LEGACY)}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
SECONDS = 60
FIRST_LINES = 10_000
"""The number of characters in which a script says which Keras it uses."""
_ASKS_FOR_KERAS_2 = re.compile(
    rf"""^(?:\s*")?os\.environ\[\\?['"]{LEGACY_KERAS}\\?['"]\]\s*=\s*\\?['"](?:1|True|true)\b""", re.MULTILINE
)
"""A line of a script, or of a notebook's JSON, that is not indented: one in an ``if`` may not run."""
_CELL_MAGIC = re.compile(r"\A\s*%%(?:time|timeit|capture|prun)\b")
"""Begins a cell whose code runs, whatever else is done with it."""
_LINE_MAGIC = re.compile(r"^([ \t]*)%(?:time|prun)[ \t]+(?!-)", re.MULTILINE)
"""Begins a line whose code runs."""


@dataclass(frozen=True)
class Side:
    """A side, and what runs on it.

    Attributes:
        name: what it is called in records and reports.
        versions: of Python and the packages there; empty if that is this process's own.
        commit: the hash of the commit that it is taken from and the first line of its message; empty for the files as
            they are.
    """

    name: str
    program: Program
    versions: Mapping[str, str]
    commit: str

    @property
    def about(self) -> str:
        """What it runs in, and which commit it is of; empty if that is what everybody would think."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return "; ".join(filter(None, [self.commit, versions]))


@contextmanager
def keras_of_scripts(scripts: Sequence[str]) -> Iterator[None]:
    """Has this process and those that it starts use Keras 2 where all scripts ask for it in their first lines.

    They do so too late where TensorFlow is imported before they run.
    """
    texts = []
    for script in filter(os.path.isfile, scripts):  # what is none is refused later: reading a pipe may wait for ever
        with suppress(OSError), open(script, encoding="utf-8", errors="replace") as file:
            texts.append(file.read(FIRST_LINES))
    if not texts or LEGACY_KERAS in os.environ or not all(map(_ASKS_FOR_KERAS_2.search, texts)):
        yield
        return
    os.environ[LEGACY_KERAS] = "1"
    try:
        yield
    finally:
        del os.environ[LEGACY_KERAS]


def sides_of(options: Scripts, work: Path) -> list[Side]:
    """What runs on each side, or the one script that trains twice; what is checked out goes into a temporary folder.

    Raises:
        RequestError: if there is no such script, interpreter or commit.
    """
    count = max(map(len, (options.scripts, options.python, options.commits, options.sizes)))
    scripts, pythons = (_for_each(given, count) for given in (options.scripts, options.python or (sys.executable,)))
    replicas = _for_each(options.sizes or (options.replica_count,), count)
    for script in options.scripts if not options.commits else ():
        refuse_missing(script)
    asked = options.python or (keras_of_the_environment() == 2 and pythons)
    known = {python: versions_of(python) for python in dict.fromkeys(asked or ())}
    versions = [known.get(python, {}) for python in pythons]
    ends = _ends(options, versions)
    sides: list[Side] = []
    for number, script in enumerate(scripts):
        commit, where = "", dict[str, str]()
        if options.commits:
            script, commit, where = _checked_out(options.commits[number], script, work / f"commit-{number + 1}")
        name = distinct(shown_path(Path(script).stem) + ends[number], [each.name for each in sides])
        source = as_python(script, work / f"notebook-{number}.py")
        if zipfile.is_zipfile(script):
            raise RequestError(f"{shown_path(script)} is an archive, not a script: unpack it, and give its __main__.py")
        with suppress(PermissionError), open(script, "rb") as file:
            if file.read(len(MAGIC_NUMBER)) == MAGIC_NUMBER:
                raise RequestError(f"{shown_path(script)} is compiled, not a script: give its source")
        if Path(script).suffix == ".csv":
            raise RequestError(f"{shown_path(script)} is a log, not a script: compare it with fit-vs-loop logs")
        program = Program(script, source, python=pythons[number], replicas=replicas[number], **where)
        sides.append(Side(name, program, versions[number], commit))
    return sides


def _for_each(given: Sequence[T], count: int) -> list[T]:
    return list(given) * (count // len(given))


def _ends(options: Scripts, versions: Sequence[Mapping[str, str]]) -> list[str]:
    """What tells the sides of one script apart in their names: the commit, size, or first version that differs."""
    if len(options.scripts) > 1 or len(versions) == 1:
        return [""] * len(versions)
    if options.sizes:
        return [f"-{count}-replica{'s' * (count > 1)}" for count in options.sizes]
    if options.commits:
        return [f"-{plain(commit)[:40]}" for commit in options.commits]
    apart = next((name for name in (*PACKAGES, "python") if versions[0].get(name) != versions[1].get(name)), "")
    return [f"-{apart}-{known[apart]}" if apart else "" for known in versions]


def as_python(script: str, path: Path) -> str:
    """The Python file to run: the script itself, or, written to ``path``, what the cells of a notebook say."""
    if Path(script).suffix != ".ipynb":
        return os.path.join(os.getcwd(), script)  # as Python does: a folder before .. may be a link
    try:
        from nbconvert.filters import ipython2python  # noqa: PLC0415 (an extra)
    except ImportError:
        raise RequestError(
            f"{script}: notebooks need nbconvert; install it with: pip install 'fit-vs-loop[notebooks]'"
        ) from None
    try:
        codes = codes_of(Path(script))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise RequestError(f"{script}: this is not a notebook that can be read ({text})") from None
    # Without the magics that run a cell's code and measure it, or hide its output; its lines stay where they are.
    timed = [_LINE_MAGIC.sub(r"\1", _CELL_MAGIC.sub("# timed:", code)) for code in codes]
    lines = [ipython2python(code) for code in timed]  # type: ignore[no-untyped-call]
    path.write_text(joined(lines), encoding="utf-8")
    return str(path)


def versions_of(python: str) -> dict[str, str]:
    """The version of Python and of each of ``PACKAGES`` that an interpreter has.

    Raises:
        RequestError: if no script can be watched there.
    """
    try:
        found: dict[str, str] = json.loads(_answer(python))
    except FileNotFoundError:
        raise RequestError(f"--python {python}: there is no such program") from None
    except (OSError, ValueError, subprocess.SubprocessError):
        raise RequestError(f"--python {python}: this does not run as Python 3") from None
    legacy = found.pop(LEGACY, "")
    if keras_of_the_environment() == 2 and (legacy or _numbers(found.get("keras", "3")) >= (3,)):
        found["keras"] = legacy
    if _numbers(found["python"]) < (3, 11):
        raise RequestError(f"--python {python}: it is Python {found['python']}; 3.11 or newer is needed")
    for name, least in OLDEST.items():
        needed = f"{name} {'.'.join(map(str, least))} or newer"
        if found.get(name) == "":
            raise RequestError(f"TF_USE_LEGACY_KERAS asks for {LEGACY}, which {python} lacks; install it there")
        if name not in found:
            raise RequestError(f"--python {python}: {name} is not installed there; {needed} is needed")
        if _numbers(found[name]) < least:
            raise RequestError(f"--python {python}: it has {name} {found[name]}; {needed} is needed")
    if (3,) <= _numbers(found["keras"]) < OLDEST_OF_3:
        raise RequestError(f"--python {python}: it has keras {found['keras']}; of Keras 3, 3.3 or newer is needed")
    return found


def _answer(python: str) -> str:
    """What an interpreter answers; ends it, and all that it has started."""
    command, nowhere = [python, "-I", "-c", _ASK], subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, text=True, start_new_session=True
    ) as process:
        try:
            answer, _ = process.communicate(timeout=SECONDS)
            return answer
        finally:
            processes.send(process.pid, processes.KILL)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _checked_out(commit: str, script: str, where: Path) -> tuple[str, str, dict[str, str]]:
    """A script as it is in a commit, in a clone that shares the repository's objects, and what is said of the commit.

    The folders are by the name that they have in ``Program``.

    A worktree would stay registered in the user's repository where this process is killed. The repository itself writes
    the files, by its own filters and with what it has yet to fetch.

    Raises:
        RequestError: if the script is in no repository, or Git refuses that, or the commit, or the script in it, does
            not exist or cannot be checked out.
    """
    given = Path(script).resolve()
    try:
        top = Path(_git(given.parent, "rev-parse", "--show-toplevel", LC_ALL="C"))
    except OSError:
        raise RequestError("--commits: git is not installed, or not in PATH") from None
    except subprocess.CalledProcessError as error:
        if "not a git repository" in error.stderr:
            raise RequestError(f"--commits: {script} is in no Git repository") from None
        why = " ".join(error.stderr.split())
        raise RequestError(f"--commits: Git refuses the repository of {script}: {why}") from None
    exact = _exactly(commit, top)
    inside = given.relative_to(top)
    try:
        kind = _git(top, "cat-file", "-t", f"{exact}:{inside.as_posix()}")
    except subprocess.CalledProcessError:
        raise RequestError(f"--commits {commit}: it has no {inside}") from None
    if kind != "blob":
        raise RequestError(f"--commits {commit}: {inside} is no file there")
    try:
        _git(top, "clone", "--shared", "--no-checkout", str(top), str(where))
        _git(where, "update-ref", "--no-deref", "HEAD", exact)
        write = ("read-tree", "--no-sparse-checkout", "--reset", "-u", exact)
        _git(top, f"--work-tree={where}", *write, GIT_INDEX_FILE=str(where / ".git" / "index"))
    except subprocess.CalledProcessError as error:
        raise RequestError(f"--commits {commit}: Git cannot check it out: {' '.join(error.stderr.split())}") from None
    here = Path.cwd()
    folder = where / here.relative_to(top) if here.is_relative_to(top) else here
    about = _git(top, "show", "--no-patch", "--format=commit %h: %s", exact)
    cwd = str(folder if folder.is_dir() else where)
    return str(where / inside), about, {"checkout": str(where), "repository": str(top), "cwd": cwd}


def _exactly(commit: str, top: Path) -> str:
    """The hash of a commit; a branch may be that of ``origin`` only, as where a CI service has checked out another.

    Raises:
        RequestError: if there is no such commit.
    """
    for name in (commit, *([] if commit.startswith("HEAD") else [f"refs/remotes/origin/{commit}"])):
        with suppress(subprocess.CalledProcessError):
            return _git(top, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    shallow = _git(top, "rev-parse", "--is-shallow-repository") == "true"
    more = ", a shallow clone: fetch all with git fetch --unshallow, or fetch-depth: 0 of actions/checkout" * shallow
    raise RequestError(f"--commits {commit}: there is no such commit in {top}{more}")


def changed_since(script: str) -> bool:
    """Whether the repository of a script has changes that are in no commit."""
    return bool(_git(Path(script).resolve().parent, "status", "--porcelain", "--untracked-files=no"))


@cache
def _names_of_repository() -> frozenset[str]:
    """The variables by which Git's environment names a repository; not settings, such as that its folder is safe."""
    asked = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    return frozenset(name for name in asked.stdout.split() if not name.startswith("GIT_CONFIG"))


def _git(folder: Path, *arguments: str, **variables: str) -> str:
    """What Git prints in a folder, whose repository it looks for, whichever one the environment names, as in a hook."""
    known = {name: value for name, value in os.environ.items() if name not in _names_of_repository()}
    command = ["git", "-C", str(folder), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env={**known, **variables})
    return ended.stdout.strip()
