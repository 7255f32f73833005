"""Replaces functions of Python, TensorFlow and Keras in this process for a while, such as a training."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_ABSENT = object()
_replaced: list[tuple[Any, str, Any]] = []
"""What was replaced: the owner, the name, and what was there before."""


def patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a function or method, until the end of ``undone`` or of the process.

    The replacement is called with the original, followed by the arguments of the call.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        return replacement(original, *args, **options)

    _replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(call) if static else call)


@contextmanager
def undone() -> Iterator[None]:
    """Puts back, at its end, everything that ``patch`` has replaced since it began."""
    before = len(_replaced)
    try:
        yield
    finally:
        undo(before)


def undo(before: int = 0) -> None:
    """Puts back everything that ``patch`` has replaced, but for the first replacements."""
    while len(_replaced) > before:
        owner, name, original = _replaced.pop()
        if original is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


class Inside:
    """Whether calls of some kind are under way; a context in which one is, which may be entered again inside."""

    def __init__(self) -> None:
        self._depth = 0

    def __bool__(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1

    def call(self, original: Any, *args: Any, **options: Any) -> Any:
        """Replaces a function whose calls are of this kind."""
        with self:
            return original(*args, **options)


def by_name(method: Any, owner: Any, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a method, all by name.

    Raises:
        TypeError: if it has no such parameters, in the words of Python, which begin with the method.
    """
    try:
        bound = inspect.signature(method).bind(owner, *args, **options)
    except TypeError as error:
        raise TypeError(f"{method.__qualname__}() {error}") from None
    return dict(list(bound.arguments.items())[1:])


def classes_with(base: type, name: str) -> list[type]:
    """A class and all its subclasses that define a method themselves."""
    classes, found = [base], []
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        if name in vars(cls) and cls not in found:
            found.append(cls)
    return found


def modules_with(name: str, package: str) -> Iterator[ModuleType]:
    """The loaded modules of a package that refer to a function by this name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] == package and name in vars(module):
            yield module
