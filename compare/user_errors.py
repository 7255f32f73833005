"""Whose line it was: exceptions from users' code in one line, with the file and the line in it."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.errors import RequestError

LONGEST = 400
REMEDIES = {
    "Random ops require a seed": "give shuffle a seed, such as shuffle(n, seed=epoch, reshuffle_each_iteration=False)",
    "Input dataset was expected to contain": "give every epoch as many examples as epoch 1 has, with take(n), say",
    "Cannot batch tensors with different shapes": "bring all examples to one shape, by padding or cutting",
    "Cannot add tensor to the batch": "bring all examples to one shape, by padding or cutting",
}
"""What to do about messages of TensorFlow's that do not say so."""
_NOT_THEIRS = (
    str(Path(__file__).resolve().parent) + os.sep,
    *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def describe(error: BaseException, place: str = "", remedy: str = "") -> str:
    """An exception in one line, with the deepest line of a user's own file that it passed through.

    Args:
        error: the exception.
        place: what is to be named if it passed through none.
        remedy: what to do about it, if no better advice is known.
    """
    kind, text = _essence(error)
    place = _place(error) or place
    text = " ".join(text.split())
    text = text if len(text) < LONGEST else text[:LONGEST] + " …"
    if isinstance(error, RequestError) or kind == RequestError.__name__:
        return text  # it says where and what to do
    remedy = next((known for symptom, known in REMEDIES.items() if symptom in text), remedy)
    where = f" ({place})" if place else ""
    return f"{kind}: {text}".removesuffix(": ") + where + (f"; {remedy}" if remedy else "")


def _essence(error: BaseException) -> tuple[str, str]:
    """The kind of an exception and what it says, freed of the pages that TensorFlow and Keras write around it."""
    kind, text = type(error).__name__, re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    # What a layer was called with, and the names of nodes.
    text = re.split(r"\s+(?:Arguments|Call arguments) received by |\s+\[\[\{\{node |\s+\[Op:", text)[0]
    head, python, _ = text.partition("\nTraceback (most recent call last):")
    if python:  # a py_function's; it begins with what tf.data was doing
        found = re.search(r"\b([A-Z]\w*(?:Error|Exception)): (.*)", head, re.DOTALL)
        return (found[1], found[2]) if found else (kind, head)
    if "in user code:" in text or "Detected at node" in text:  # a traceback as text; what follows it counts
        text = re.split(r'File "[^\n]*\n', text)[-1]
        text = re.sub(r"^(?:[ \t]+[^\n]*\n)*\s*", "", text)  # the line of code
    text = re.sub(r"^\s*(?:Graph execution error:)?\s*(?:\{\{function_node [^}]*\}\}\s*)?", "", text)
    return kind, text.removeprefix(f"{kind}: ")


def place_of(function: Any) -> str:
    """Where a function is written: ``FILE, line N``; its module's name for what is not written in Python."""
    function = getattr(function, "func", function)  # of a partial
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
    except RequestError as error:
        place = place_of(function)
        if ", line " in str(error) or not _theirs(place.partition(", line ")[0]):
            raise
        raise RequestError(f"{part} ({place}): {error}") from error
    except Exception as error:
        raise RequestError(f"{part} raised {describe(error, place_of(function), 'mend it')}") from error


def place_of_op(operation: Any) -> str:
    """Where in a user's own file an operation of a graph was made; empty if in none."""
    return _deepest([(frame.filename, frame.lineno) for frame in operation.traceback or ()])


def _place(error: BaseException) -> str:
    # A tf.function knows lines better than the traceback, which has the code that autograph made of them.
    told = _deepest([(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))])
    return told or _deepest([(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)])


def _deepest(frames: list[tuple[str, int]]) -> str:
    """The deepest line in a user's own file, that is called by us if we are among the callers."""
    ours = [i for i, (file, _) in enumerate(frames) if file.startswith(_NOT_THEIRS[0])]
    called = frames[ours[0] :] if ours else frames
    return next((f"{file}, line {line}" for file, line in reversed(called) if _theirs(file)), "")


def _theirs(filename: str) -> bool:
    """Whether a file is a user's: not ours, not Python's, not an installed package's, nor made up at run time."""
    if filename.startswith("<") or "__autograph_generated_file" in filename or "site-packages" in filename:
        return False
    return not any(str(Path(filename).resolve()).startswith(folder) for folder in _NOT_THEIRS)
