"""How one option of the command is declared: its help, and the values it accepts."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from compare.errors import RequestError
from compare.naming import unknown

LARGEST = 2**31 - 1
"""The largest count of anything; TensorFlow's own counters end there or later."""

Given = TypeVar("Given")
Kept = TypeVar("Kept")


class Converted(Generic[Given, Kept]):
    """The annotation of a field that is given as one type and kept as another, for type checkers."""

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: type) -> Kept: ...

        def __set__(self, instance: object, value: Given) -> None: ...


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
        given: the default, or a function that gives it.
        help: for ``--help``; a default is added to it.
        group: the heading of ``--help`` that it is listed under.
        more: what ``--help-all`` adds to it.
        metavar: what stands for its value in ``--help``.
        kind: the type of its value: ``int``, ``str``, ``Path``, ``bool`` (a flag), or ``object`` (a name or an object).
        most: the largest number allowed; None for any that TensorFlow counts to.
        shown: the default as ``--help`` shows it, where that is not the value itself.
        may_change: whether a resumed run may have another value than it began with.
        pair: whether it may be two numbers.
        python_only: whether the command has another way to say it.
        rare: whether few people need it, so that only ``--help-all`` lists it.
    """

    given: Any
    help: str
    group: Group
    more: str = ""
    metavar: str | tuple[str, str] | None = None
    kind: type[Any] = str
    least: int | None = None
    most: int | None = None
    choices: tuple[Any, ...] = ()
    several: bool = False
    pair: bool = False
    shown: str = ""
    may_change: bool = False
    python_only: bool = False
    rare: bool = False

    @property
    def default(self) -> Any:
        """The value that it has unless another one is given."""
        return self.given() if callable(self.given) else self.given

    def checked(self, name: str, value: Any) -> Any:
        """The value in the option's own type."""
        if isinstance(value, os.PathLike) and "FILE" in str(self.metavar):
            value = os.fspath(value)
        if value is None and self.default is None:
            return None
        if self.choices and value not in self.choices:
            if self.kind is int:
                raise RequestError(f"{flag(name)} {value}: there are {' and '.join(map(str, self.choices))}")
            raise RequestError(f"{flag(name)} {value}: {unknown(str(value), self.choices)}")
        if self.several:
            each = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
            return tuple(map(str, each)) if self.kind is str else each
        if self.kind is bool and not isinstance(value, bool):
            raise RequestError(f"{flag(name)} {value!r}: give True or False")
        if self.kind is Path:
            if not isinstance(value, str | os.PathLike) or "\0" in str(value) or not str(value):
                raise RequestError(f"{flag(name)} {value!r}: give a {'file' if '.' in str(self.metavar) else 'folder'}")
            return Path(value)
        if self.least is not None:
            given = tuple(value) if self.pair and isinstance(value, list | tuple) else (value,)
            if len(given) not in (1, 2):
                raise RequestError(f"{flag(name)} takes one number or two, not {len(given)}")
            counts = tuple(_count(name, each, self.least, self.most) for each in given)
            if len(counts) > len(set(counts)):
                raise RequestError(f"{flag(name)} {counts[0]} {counts[0]}: give two numbers that are not the same")
            return counts if len(counts) > 1 else counts[0]
        return value

    def full_help(self) -> str:
        return f"{self.help}; {self.more}" if self.more else self.help

    def add_to(self, parser: argparse._ActionsContainer, name: str, text: str) -> None:
        """Declare the option to ``argparse``, with this text as its help."""
        if self.kind is bool:
            parser.add_argument(flag(name), action="store_true", help=text)
            return
        shown = self.shown or ("" if self.default in (None, ()) else "%(default)s")
        parser.add_argument(
            flag(name),
            metavar=self.metavar,
            type=_number if self.kind is int else str,  # Path('') would be the current folder
            default=self.default,
            nargs="+" if self.several or self.pair else None,
            help=f"{text} (default: {shown})" if shown and text != argparse.SUPPRESS else text,
        )


class Group(str):
    """A heading of ``--help``, under which fields are declared as options."""

    __slots__ = ()

    def option(self, default: Any, help: str, **declared: Any) -> Any:
        """A field that is an option; the arguments are those of ``Option``."""
        default_of: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
        return field(**default_of, metadata={"option": Option(default, help, group=self, **declared)})

    def number(self, default: int | None, help: str, *, least: int = 1, metavar: str = "N", **declared: Any) -> Any:
        """A field that is an option with a whole number."""
        return self.option(default, help, kind=int, least=least, metavar=metavar, **declared)

    def texts(self, help: str, **declared: Any) -> Any:
        """A field that is an option with several texts, none by default."""
        return self.option((), help, several=True, **declared)

    def switch(self, help: str, **declared: Any) -> Any:
        """A field that is false unless its flag is given."""
        return self.option(False, help, kind=bool, **declared)


def options_of(mode: Any) -> dict[str, Option]:
    """The options that a dataclass, or its instance, has as fields, by name."""
    return {each.name: each.metadata["option"] for each in fields(mode) if "option" in each.metadata}


def flag(name: str) -> str:
    """A field's name as an option of the command: ``--batch-size``."""
    return "--" + name.replace("_", "-")


def _number(text: str) -> int | str:
    """The number that was given; other text is refused when it is checked."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,99}", text) else text


def _count(name: str, value: Any, least: int, most: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{flag(name)} {value!r}: give a whole number")
    number = int(value)  # JSON cannot hold NumPy's integers
    if not least <= number <= (LARGEST if most is None else most):
        bounds = f"at least {least}" if most is None and number < least else f"from {least} to {most or LARGEST}"
        raise RequestError(f"{flag(name)} {number}: give a whole number, {bounds}")
    return number
