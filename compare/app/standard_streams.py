"""Standard output and error that may be closed or full: what cannot be printed never stops training or judging."""

from __future__ import annotations

import errno
import faulthandler
import os
import re
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from compare.errors import EXIT_INTERRUPTED, EXIT_NO_VERDICT, NoVerdictError, RequestError, StorageError
from compare.naming import printable, shown_path
from compare.user_errors import is_user_code

if TYPE_CHECKING:
    from rich.console import Console


GONE = OSError, ValueError, AttributeError
"""What a stream raises that cannot be written, or that user code has closed, or set to None."""
TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_lost: list[str] = []
"""Why something could not be printed, where nobody has closed or left the stream."""


def provide() -> None:
    """Opens those of the three standard streams that are closed (``2>&-``), so that no other file takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def console(*, quiet: bool) -> Console:
    """Where progress is printed: stdout, or nowhere."""
    from compare.reporting.jupyter import NotebookConsole, in_notebook  # noqa: PLC0415 (lazy: may be missing)
    from compare.reporting.live import console_for  # noqa: PLC0415 (lazy: may be missing)

    if in_notebook():
        return NotebookConsole(forgiving(sys.stdout), quiet=quiet)
    return console_for(forgiving(sys.stdout), quiet=quiet)


def forgiving(stream: TextIO) -> TextIO:
    """A stream that drops what it cannot write, as after ``| head -1`` or on a full disk, and escapes other characters.

    The stream may be closed in the meantime, and its encoding may lack characters that a user's names have.
    """
    return cast(TextIO, _Forgiving(stream))


def _regular(path: str, flags: int) -> int:
    """Opens a file, but not a link to another folder, nor a pipe, which would be waited for."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def _unlink_copies(path: Path) -> None:
    """Lets a file go on apart from those that share it by hard links, as in a copy of a run's folder."""
    from compare.records.files import replace_file  # noqa: PLC0415 (lazy: needs packages)

    with suppress(FileNotFoundError):
        about = os.lstat(path)
        if about.st_nlink > 1 and stat.S_ISREG(about.st_mode):
            replace_file(path, path.read_bytes())


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Redirect stderr to a file, including TensorFlow's start-up messages, which bypass ``sys.stderr``."""
    sys.stderr.flush()
    try:
        _unlink_copies(path)
        file = open(path, "ab", opener=_regular)  # noqa: SIM115
    except OSError as error:
        raise RequestError(
            f"{shown_path(path)} cannot be written ({error.strerror}); remove it, or make room for it"
        ) from None
    with open(os.dup(2), "w", buffering=1) as real, file as log:
        os.dup2(log.fileno(), 2)
        if ours := not faulthandler.is_enabled():
            faulthandler.enable(file=real)  # a crash in C++ still says on the terminal where it happened
        try:
            yield
        finally:
            forgiving(sys.stderr).flush()  # which user code may have taken away
            if ours:
                faulthandler.disable()
            os.dup2(real.fileno(), 2)


def print_traceback() -> None:
    """Prints the traceback of the exception that is being handled to stderr, a file that may be on a full disk.

    It begins with the user's own code, where that is part of it.
    """
    kind, error, whole = sys.exc_info()
    frame = whole
    while frame is not None and not is_user_code(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    traceback.print_exception(kind, error, frame or whole, file=forgiving(sys.stderr))


def fail(program: str, error: object, status: int) -> int:
    """Print to stderr, in one line that begins with the program's name, why it ends with this status; returns it."""
    text = re.sub(r"(\S{300})\S{200,}", r"\1…", " ".join(str(error).split()))  # an endless name or value
    print(f"{program and f'{program}: '}{printable(text)}", file=forgiving(sys.stderr))
    return status


def ending(program: str, carry_out: Callable[[], int]) -> int:
    """The exit status of a command; whatever ends it is printed in one line, since Python would exit with 1."""
    try:
        _refuse_without_folder()
        status = carry_out()
        _flush()
    except KeyboardInterrupt as error:
        status = fail(program, str(error) or "interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        text, status = str(error), EXIT_NO_VERDICT
        if {getattr(each, "errno", 0) for each in (error, error.__cause__, error.__context__)} & TOO_MANY_FILES:
            then = error.then if isinstance(error, StorageError) else "then run it again"
            text = f"too many open files: allow more (ulimit -n), {then}"
        elif isinstance(error, RequestError | NoVerdictError):
            status = error.status
        else:
            *_, last = traceback.extract_tb(error.__traceback__)
            text = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        fail(program, text, status)
    with suppress(NoVerdictError):  # one reason is enough
        _flush()
    if _lost:
        fail(program, f"the output cannot be written ({_lost[0]}), so some of it is lost", status)
        _lost.clear()
    return status


def _refuse_without_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise RequestError("the current folder does not exist any more: change to another one") from None
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise RequestError("no folder for temporary files can be written to: set TMPDIR to one that can") from None


def _flush() -> None:
    """Writes all output; Python itself would end with 120 where that fails.

    Raises:
        NoVerdictError: if it cannot be written.
    """
    try:
        sys.stdout.flush()
    except (ValueError, AttributeError):  # user code has closed it, or taken it away
        return
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        if not isinstance(error, BrokenPipeError):  # as of | head -1
            raise NoVerdictError(f"the output cannot be written ({error.strerror})") from None


class _Forgiving:
    """Writes to a stream as far as possible; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except GONE as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except GONE as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Leads the stream nowhere: Python would fail again when it flushes the stream at its end."""
        if isinstance(error, OSError) and error.errno in FULL:
            _lost.append(str(error.strerror))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(*GONE):
            os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
