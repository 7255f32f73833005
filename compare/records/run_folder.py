"""A run's folder: made or found again, and held by one process at a time; no TensorFlow here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from compare.errors import RequestError, StorageError
from compare.options import Options, is_file, source_and_attribute
from compare.records.files import read_json, write_json
from compare.records.model import RecordError

HARMLESS = {"resume", "quiet", "verbose", "tensorboard", "reports", "name"}
"""Options that may be others when a run is resumed."""
FACTS = ("code", "versions", "data", "threads", "strategy")
"""What else of ``run.json`` must be the same."""


@contextmanager
def claimed(options: Options) -> Iterator[Path]:
    """The run's folder, new or, to be resumed, old; no other process can write to it meanwhile.

    The request is on disk before this returns.

    Raises:
        RequestError: when the name is taken, the folder cannot be made, another process has it, or the
            run cannot be resumed.
    """
    folder = _begun(options) if options.resume else _new(options)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        with lock:
            if options.resume:
                refuse_changes(request_of(folder), begun(options))
            yield folder
    except Timeout:
        raise RequestError(
            f"{folder} is being written by another process; wait for it, or choose another --name"
        ) from None


def begun(options: Options) -> dict[str, Any]:
    """``run.json`` before anything is known but the request."""
    return {"schema": 1, "status": "begun", "options": options.as_json(), "code": code(options)}


def code(options: Options) -> dict[str, str]:
    """SHA-256 of what computes: this package, and the files that the options name, by name."""
    package = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        package.update(path.read_bytes())
    found = {"compare": package.hexdigest()}
    for wanted in (options.experiment, *options.trainers):
        if isinstance(wanted, str) and (source := _source(wanted)) is not None:
            try:
                found[wanted] = hashlib.sha256(source.read_bytes()).hexdigest()
            except OSError:
                continue  # it will be missed where it is loaded
    return found


def _source(wanted: str) -> Path | None:
    """The file behind ``FILE.py[:ATTR]``, or behind ``package.module:ATTR`` once that is imported."""
    source, attribute = source_and_attribute(wanted)
    if is_file(wanted):
        return Path(source)
    path = getattr(sys.modules.get(source), "__file__", None) if attribute else None
    return Path(path) if path else None


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], who: str = "--resume") -> None:
    """Refuse to resume a run that began as another.

    Args:
        before: ``run.json`` as the run left it.
        now: the same of this request; what either lacks is not known yet.
        who: refuses, for the message.

    Raises:
        RequestError: naming what has changed.
    """
    ours, theirs = before["options"], now["options"]
    names = [name for name in theirs if name not in HARMLESS and ours.get(name) != theirs[name]]
    if names:
        name = names[0]
        was, asked = (json.dumps(each.get(name)) for each in (ours, theirs))
        raise RequestError(
            f"{who}: the run began with --{name.replace('_', '-')} {was}, this asks for {asked}: "
            "give the options that it began with, or start another run"
        )
    for part in FACTS:
        known, found = before.get(part) or {}, now.get(part) or {}
        for name in sorted(known.keys() & found.keys()):
            if known[name] != found[name]:
                told = "" if "sha256" in name or part == "code" else f" (from {known[name]} to {found[name]})"
                raise RequestError(
                    f"{who}: {_named(part, name)} changed since the run began{told}: put it back, or start another run"
                )


def _named(part: str, name: str) -> str:
    if part == "code":
        return "the code of this package" if name == "compare" else name
    return f"the {part} ({name})"


def _new(options: Options) -> Path:
    """Make the run's folder, with the request in it; nobody else can have it then, and nothing is touched."""
    wanted = options.reports / (options.name or options.default_name())
    temporary = None
    try:
        options.reports.mkdir(parents=True, exist_ok=True)
        # Filled first and renamed then: whenever this ends, there is a whole folder or none.
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=options.reports))
        temporary.chmod(0o777 & ~_umask())
        write_json(temporary / "run.json", begun(options))
        for number in range(1, 10_000):
            folder = numbered(wanted, number)
            try:
                if not folder.exists():  # an empty one would be replaced
                    os.rename(temporary, folder)
                    return folder
            except OSError:
                if not folder.exists():
                    raise
            if options.name is not None:
                raise RequestError(
                    f"--name {options.name}: {folder} exists and is not overwritten; choose another name"
                    + (", or go on with it: --resume" if _unfinished(folder) else "")
                )
        raise RequestError(f"--reports {options.reports}: full of runs of this name; give a --name")
    except (OSError, StorageError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        raise RequestError(
            f"--reports {options.reports}: results cannot be written there ({reason}); "
            "give a folder that can be written to"
        ) from None
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def numbered(wanted: Path, number: int) -> Path:
    """The folder's name when it is the ``number``th of its kind."""
    return wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")


def _begun(options: Options) -> Path:
    """The folder of the run to resume: of the name, or the last one that was made from these options."""
    wanted = options.reports / (options.name or options.default_name())
    last = 0
    while numbered(wanted, last + 1).is_dir() and (last == 0 or options.name is None):
        last += 1
    if last == 0:
        raise RequestError(f"--resume: no run has begun in {wanted}; leave out --resume to begin one")
    return numbered(wanted, last)


def request_of(folder: Path) -> dict[str, Any]:
    """What a run left in ``run.json``.

    Raises:
        RequestError: when it is not that of a run.
    """
    try:
        content = read_json(folder / "run.json")
        if not isinstance(content["options"], dict):
            raise TypeError("options")
    except RecordError as error:
        raise RequestError(f"{error}; give the folder of a run") from None
    except (KeyError, TypeError):
        raise RequestError(f"{folder}/run.json is not that of a run; give the folder of a run") from None
    return dict(content)


def _unfinished(folder: Path) -> bool:
    try:
        return bool(request_of(folder).get("status") != "finished")
    except RequestError:
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
