"""A run's folder: created or reopened, and locked by one process at a time; imports no TensorFlow."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from compare.app.provenance import code
from compare.errors import RequestError, StorageError
from compare.naming import absolute, is_utf8, printable, shown_path
from compare.options import as_json
from compare.records.files import umask
from compare.records.model import RecordError
from compare.records.run_json import FINISHED, RunJson
from compare.request import Request, Task


@contextmanager
def claimed(options: Request) -> Iterator[Path]:
    """Creates the run's folder, or opens it to resume the run, and locks it against other processes.

    The options are on disk before the body of the ``with`` statement runs.
    """
    reports = absolute(options.reports)
    if isinstance(options, Task) and not is_utf8(str(reports)):
        why = "TensorFlow saves no checkpoints in a folder whose path is not UTF-8; give another one"
        raise RequestError(f"--reports {printable(str(reports))}: {why}")
    new = [each for each in (reports, *reports.parents) if not os.path.exists(each)]
    folder = _begun(options) if options.goes_on else _new(options)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        with lock:
            yield folder
    except Timeout:
        raise RequestError(
            f"{shown_path(folder)} is in use by another process; wait until it ends, or choose another --name"
        ) from None
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) != str(folder / ".lock"):
            raise
        remedy = "let this user write there" if isinstance(error, PermissionError) else "remove it"
        remedy += ", or choose another --name"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "make room, or give another folder as --reports"
        if error.errno == errno.EROFS:
            remedy = "copy the run to a folder that can be written, and give that as --reports"
        raise RequestError(f"{shown_path(folder / '.lock')} cannot be locked ({error.strerror}); {remedy}") from None
    finally:
        if not folder.exists():  # the request was refused
            with suppress(OSError):
                for each in new:
                    each.rmdir()


def _new(options: Request) -> Path:
    """Creates the folder of a new run, with its options in ``run.json``; never changes an existing folder."""
    reports = absolute(options.reports)  # user code may change the working directory
    wanted = reports / (options.name or options.default_name())
    temporary = None
    try:
        reports.mkdir(parents=True, exist_ok=True)
        # Filled first and then renamed, so that an interruption never leaves a half-filled folder.
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=reports))
        temporary.chmod(0o777 & ~umask())
        identity = secrets.token_hex(8)
        RunJson(folder=temporary, identity=identity, options=as_json(options), code=code(options)).save()
        for number in range(1, 10_000):
            folder = numbered(wanted, number)
            try:
                if not os.path.lexists(folder):  # rename would replace an empty folder
                    os.rename(temporary, folder)
                    return folder
            except OSError:
                if not os.path.lexists(folder):
                    raise
            if options.name is not None:
                resumable = "resume" in vars(options)
                raise RequestError(
                    f"--name {options.name}: {shown_path(folder)} exists and is not overwritten; choose another name"
                    + (", or continue that run with --resume" if resumable and _unfinished(folder) else "")
                )
        raise RequestError(
            f"--reports {options.reports}: there are too many runs with this name; choose one with --name"
        )
    except (OSError, StorageError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        raise RequestError(
            f"--reports {options.reports}: results cannot be written there ({reason}); "
            "give a folder that can be written to"
        ) from None
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def run_again(options: Request, folder: Path) -> str:
    """How to run again what cannot be resumed, in words: the folder of that name is not overwritten."""
    return f"{f'remove {shown_path(folder)}, or choose another --name, and ' * bool(options.name)}run it again"


def numbered(wanted: Path, number: int) -> Path:
    """The folder of the ``number``-th run with this name: ``NAME``, ``NAME-2``, ``NAME-3`` and so on."""
    return wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")


def _begun(options: Request) -> Path:
    """The folder of the run to resume: the one called ``--name``, or the latest one with these options."""
    from compare.reporting.html import refuse_foreign  # noqa: PLC0415 (lazy)

    wanted = absolute(options.reports) / (options.name or options.default_name())
    last = 0
    while numbered(wanted, last + 1).is_dir() and (last == 0 or options.name is None):
        last += 1
    if last == 0:
        raise RequestError(f"--resume: no run has begun in {shown_path(wanted)}; omit --resume to start one")
    folder = numbered(wanted, last)
    RunJson.read(folder)  # nothing is written into a folder that holds no run
    refuse_foreign(folder)
    return folder


def _unfinished(folder: Path) -> bool:
    try:
        return RunJson.read(folder).status != FINISHED
    except RecordError:
        return False
