"""Describes exceptions from users' code in one line, with the file and the line number in that code."""

from __future__ import annotations

import hashlib
import linecache
import math
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

from compare.errors import NoVerdictError, RequestError, TrainerFailedError
from compare.naming import printable
from compare.patching import patch, undone
from compare.remedies import remedy_for

LONGEST = 400
"""Maximum number of characters of an exception's message."""
LONGEST_READ = 100_000
"""Maximum number of characters in which its type, its place and advice are looked for; it may have millions."""
_NOT_USER_CODE = (
    str(Path(__file__).resolve().parent) + os.sep,
    *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")},
    *(str(Path(__file__).resolve().parents[1] / "scripts" / name) for name in ("compare.py", "fit_vs_loop.py")),
)


def describe(error: BaseException, place: str = "", remedy: str = "") -> str:
    """Describes an exception in one line, with the innermost line of the user's code in its traceback.

    Args:
        place: the place to name if the traceback contains no user code.
        remedy: what to do about it, unless ``compare.remedies`` has better advice.
    """
    if isinstance(error, TrainerFailedError):
        return str(error)  # described in the process where it was raised
    kind, text = essence(error)
    place = getattr(error, "place", "") or _place(error) or place
    text = " ".join(text.split())
    remedy = remedy_for(f"{kind}: {text}") or remedy
    text = printable(text)
    text = text if len(text) < LONGEST else text[:LONGEST] + " …"
    if not _raised_by_user(error) and (isinstance(error, RequestError | NoVerdictError) or kind == "RequestError"):
        return text  # it already contains the place and the remedy
    where = f" ({place})" if place else ""
    told = text if isinstance(error, ProcessExit) else f"{kind}: {text}".removesuffix(": ")
    return told + where + (f"; {remedy}" if remedy else "")


def _text_of(error: BaseException) -> str:
    """The message of an exception, which may fail to give it; then what Python shows in its place."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def essence(error: BaseException) -> tuple[str, str]:
    """Returns the type and the message of an exception, without the long context that TensorFlow and Keras add."""
    text = _text_of(error)
    if len(text) > LONGEST_READ:  # the text of a large tensor, say
        text = f"{text[: LONGEST_READ // 2]} … {text[-LONGEST_READ // 2 :]}"
    kind, text = type(error).__name__, re.sub(r"\x1b\[[0-9;]*m", "", text)
    if kind == "StagingError" and (raised := re.search(r"^\s*([A-Z]\w+): ", text, re.MULTILINE)):
        kind = raised[1]  # what AutoGraph raises in place of an error that takes other arguments
    # Cut off the arguments of a layer's call, the names of nodes, and advice for which there is better.
    text = re.split(
        r"\s+(?:Arguments|Call arguments) received by |\s+\[\[\{\{node |\s+\[Op:|\s+When using `tf\.keras`, to ", text
    )[0]
    text = re.sub(r"(<Variable path=[^>]*?), value=[^>]*>", r"\1>", text)  # all numbers of a weight
    text = re.sub(r"\[\[[-+\d.einfa,\s\[\]]{60,}\]", "[[…]]", text)  # or of an input, in errors about its shape
    head, python, _ = text.partition("\nTraceback (most recent call last):")
    if python:  # from a py_function; the text starts with the operation of tf.data
        match = re.search(r"\b([A-Z]\w*(?:Error|Exception)): (.*)", head, re.DOTALL)
        return (match[1], match[2]) if match else (kind, head)
    if "in user code:" in text or "Detected at node" in text:  # a traceback as text, followed by the message
        text = re.split(r'File "[^\n]*\n', text)[-1]
        text = re.sub(r"^(?:[ \t]+[^\n]*\n)*\s*", "", text)  # the source line of the last frame
    text = re.sub(r"^\s*(?:Graph execution error:)?\s*(?:\{\{function_node [^}]*\}\}\s*)?", "", text)
    return kind, text.removeprefix(f"{kind}: ")


def place_of(function: Any) -> str:
    """Returns where a function is defined, as ``FILE, line N``; its module if it is not written in Python."""
    code, function = _code_of(function), getattr(function, "func", function)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else str(getattr(function, "__module__", ""))


def is_users(function: Any) -> bool:
    code = _code_of(function)
    return code is not None and is_user_code(code.co_filename)


def _code_of(function: Any) -> CodeType | None:
    function = getattr(function, "func", function)  # of functools.partial
    code: CodeType | None = getattr(getattr(function, "__func__", function), "__code__", None)
    return code


def place_in(error: BaseException) -> str:
    """Returns the innermost line of user code in an exception's traceback, in brackets; empty if there is none."""
    place = _place(error)
    return f" ({place})" if place else ""


@contextmanager
def blaming(part: str, function: Callable[..., Any]) -> Iterator[None]:
    """Converts an exception in a function of an experiment to a ``RequestError`` that names the function."""
    with without_exit(part, function):
        try:
            yield
        except Exception as error:
            own = error if isinstance(error, RequestError) and not _raised_by_user(error) else None
            if own and (own.blames or not is_users(function)):
                raise
            place = place_of(function)
            text = f"{part} ({place}): {error}" if own else f"{part} raised {describe(error, place, 'fix it')}"
            blame = RequestError(text)
            blame.blames = True
            raise blame from error


class ProcessExit(BaseException):
    """User code called a function of ``os`` that would have ended the process at once, or replaced it.

    Attributes:
        status: the exit status; None if another program would have replaced this one.
        place: the line of the user's code that called it, also where AutoGraph has converted that code.
    """

    def __init__(self, function: str, *arguments: Any) -> None:
        super().__init__(f"os.{function}({arguments[0] if arguments else ''}{', …' * (len(arguments) > 1)})")
        self.status = arguments[0] if function == "_exit" and arguments else None
        self.place = place_now()


@contextmanager
def refusing_exit(in_thread: Callable[[ProcessExit], None] | None = None) -> Iterator[None]:
    """Replaces ``os._exit``, ``os.execv`` and ``os.execve``, which end a process without cleaning up, in this process.

    Also where ``os`` has them from: in the module ``posix``, say.

    Processes that user code forks keep them.

    Args:
        in_thread: if given, is told of a call in another thread than the main one, which may wait for ever; the
            process then ends, or is replaced, as it would have been.

    Raises:
        ProcessExit: if one of them is called in the block, even in another thread or where user code catches it.
    """
    process, refused = os.getpid(), list[ProcessExit]()
    over: list[bool] = []

    def refuse(original: Any, *arguments: Any, **options: Any) -> Any:
        if os.getpid() != process:
            return original(*arguments, **options)
        if over:  # kept since, by atexit, say
            return getattr(os, original.__name__)(*arguments, **options)
        error = ProcessExit(original.__name__, *arguments)
        if in_thread is not None and threading.current_thread() is not threading.main_thread():
            in_thread(error)
            return original(*arguments, **options)
        refused.append(error)
        raise error

    try:
        with undone():
            for module in (os, sys.modules[os.name]):
                for name in ("_exit", "execv", "execve"):
                    patch(module, name, refuse)
            try:
                yield
            finally:
                over.append(True)
    except Exception:
        if not refused:  # otherwise it is what TensorFlow made of it
            raise
    if refused:
        raise refused[0]


@contextmanager
def without_exit(part: str, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Converts what would end the process, such as ``sys.exit`` in a user's trainer, to an ordinary exception.

    Any other exception is raised as it is, with a note if ``compare.remedies`` knows what to write instead. One of this
    package's own that user code raises becomes one of Python's own.

    Raises:
        NoVerdictError: if the block raises ``SystemExit``, or another exception that is not meant to be caught, or
            calls ``os._exit`` (see ``refusing_exit``).
    """
    try:
        with refusing_exit():
            yield
    except KeyboardInterrupt:
        raise
    except Exception as error:
        if isinstance(error, RequestError | NoVerdictError) and _raised_by_user(error):
            # Its text says neither what this package's own errors say, nor where it was raised.
            plain = ValueError if isinstance(error, ValueError) else RuntimeError
            raise plain(str(error)).with_traceback(error.__traceback__) from error
        if is_users(function) and not _place(error):
            with suppress(AttributeError):
                error.place = place_of(function)  # type: ignore[attr-defined] # it takes other arguments, say
        kind, text = essence(error)
        if remedy := remedy_for(f"{kind}: {' '.join(text.split())}"):
            error.add_note(f"{_place(error) or place_of(function)}: {remedy}")
        raise
    except BaseException as error:
        text = describe(error, place_of(function), "raise an error instead")
        raise NoVerdictError(f"{part} ended the run before its verdict: {text}") from error


def _raised_by_user(error: BaseException) -> bool:
    """Returns whether user code raised an exception itself, and not a function of this package that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (is_user_code(frames[-1].filename) or "in user code:" in _text_of(error))


def place_now() -> str:
    """Returns the innermost line of user code that is running, as ``FILE, line N``; empty if there is none."""
    found = line_now()
    return f"{found[0]}, line {found[1]}" if found else ""


def line_now() -> tuple[str, int, str] | None:
    """Returns the innermost line of user code that is running, also where AutoGraph runs it: file, number and text."""
    tf_stack = sys.modules.get("tensorflow.python.util.tf_stack")
    stack: Any = traceback.extract_stack() if tf_stack is None else tf_stack.extract_stack()
    frames = _places(stack)
    while frames and frames[-1][0].startswith(_NOT_USER_CODE[0]):  # of this package, which asks
        frames.pop()
    return _with_text(frames)


def line_that_made(tensor: Any) -> tuple[str, int, str] | None:
    """Returns the innermost line of user code that has made a tensor of a graph; None if that is not known."""
    return _with_text(_places(getattr(getattr(tensor, "op", None), "traceback", ())))


def _places(stack: Any) -> list[tuple[str, int]]:
    """The file and line of each frame; none at all if TensorFlow cannot give them."""
    try:
        return [(frame.filename, frame.lineno) for frame in stack]
    except RuntimeError:  # the name of a file is not UTF-8
        return []


def _with_text(frames: list[tuple[str, int]]) -> tuple[str, int, str] | None:
    found = _innermost(_called_from_here(frames))
    return found and (*found, linecache.getline(*found).strip())


def _place(error: BaseException) -> str:
    # The message of a tf.function has the user's lines; its traceback has lines of the code generated by AutoGraph.
    found = _innermost([(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', _text_of(error))])
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    found = found or _innermost(_called_from_here(frames))
    return f"{found[0]}, line {found[1]}" if found else ""


def _called_from_here(frames: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The frames that this package has called; all if it is not among them."""
    package = [i for i, (file, _) in enumerate(frames) if file.startswith(_NOT_USER_CODE[0])]
    return frames[package[0] :] if package else frames


def _innermost(frames: list[tuple[str, int]]) -> tuple[str, int] | None:
    return next(((file, line) for file, line in reversed(frames) if is_user_code(file)), None)


def imported_by(files: Iterable[Path], began: float = math.inf) -> dict[str, str]:
    """SHA-256 digests of the files that these have imported from their own folders in this process, by path.

    They are empty where a file was written after the time ``began``, since it may have been imported before that.
    """
    own = {each.resolve() for each in files}
    folders = tuple(f"{each.parent}{os.sep}" for each in own)
    imported = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    digests = {}
    for file in sorted(imported - set(map(str, own))):
        if file.startswith(folders) and is_user_code(file):
            with suppress(OSError):  # it may be gone since
                later = os.path.getmtime(file) > began
                digests[file] = "" if later else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return digests


def is_user_code(filename: str) -> bool:
    """Returns whether a file is user code: not of this package, Python, an installed package or generated code."""
    if filename.startswith("<") or "__autograph_generated_file" in filename or "site-packages" in filename:
        return False
    return not any(str(Path(filename).resolve()).startswith(folder) for folder in _NOT_USER_CODE)
