"""Whose line it was: exceptions from users' code in one line, with the file and the line in it."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.errors import RequestError

LONGEST = 400
_NOT_THEIRS = (
    str(Path(__file__).resolve().parent),
    *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def describe(error: BaseException) -> str:
    """An exception in one line, with the deepest line of a user's own file that it passed through."""
    text, place = str(error), _place(error)
    if "in user code:" in text:  # a tf.function wraps it in a traceback of its own, as text
        places = re.findall(r'File "([^"]+)", line (\d+)', text)
        place = next((f"{file}, line {line}" for file, line in reversed(places) if _theirs(file)), place)
        text = text.strip().split("\n\n")[-1] if "\n\n" in text.strip() else text
        text = re.sub(rf"^\s*{type(error).__name__}: ", "", text)
    text = " ".join(f"{type(error).__name__}: {text}".split())
    text = text if len(text) < LONGEST else text[:LONGEST] + " …"
    return text + (f" ({place})" if place else "")


def place_of(function: Any) -> str:
    """Where a function is written: ``FILE, line N``; its module's name for what is not written in Python."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else str(getattr(function, "__module__", ""))


def place_in(error: BaseException) -> str:
    """Where in a user's own file an exception came about, in brackets; empty if in none."""
    place = _place(error)
    return f" ({place})" if place else ""


@contextmanager
def blaming(part: str, function: Callable[..., Any]) -> Iterator[None]:
    """Turn what a function of an experiment raises into a request's error that names it.

    Args:
        part: the experiment's field, such as "build_loss".
        function: what is called.
    """
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        place = "" if _place(error) else f" ({place_of(function)})"
        raise RequestError(f"{part} raised {describe(error)}{place}: mend it") from error


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _theirs(f.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _theirs(filename: str) -> bool:
    """Whether a file is a user's: not ours, not Python's, not an installed package's, nor made up at run time."""
    if filename.startswith("<") or "__autograph_generated_file" in filename or "site-packages" in filename:
        return False
    return not any(str(Path(filename).resolve()).startswith(folder) for folder in _NOT_THEIRS)
