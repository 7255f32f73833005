"""How one option of the command is declared: its help, the values it accepts, and when it is refused."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from compare.errors import RequestError
from compare.naming import unknown

Refusals = Mapping[str, str]
"""Situation to the reason that an option is refused in it; a reason may name other options, as ``{seeds}``."""
TRAINING = "training"
"""The heading of ``--help`` for options that name no other."""
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
        help: for ``--help``; a default is added to it.
        group: the heading of ``--help`` that it is listed under.
        metavar: what stands for its value in ``--help``.
        kind: the type of its value: ``int``, ``str``, ``Path`` or ``bool`` (a flag).
        most: the largest number allowed; None for any that TensorFlow counts to.
        shown: the default as ``--help`` shows it, where that is not the value itself.
        refused: the situations in which a value other than the default is refused, and why.
        may_change: whether a resumed run may have another value than it began with.
        with_scripts: whether it means something with ``--scripts``; others are refused there.
        with_logs: whether it means something with ``--logs``; others are refused there.
        python_only: whether the command has another way to say it.
    """

    help: str
    group: str = TRAINING
    metavar: str | tuple[str, str] | None = None
    kind: type[Any] = str
    least: int | None = None
    most: int | None = None
    choices: tuple[Any, ...] = ()
    several: bool = False
    shown: str = ""
    refused: Refusals = field(default_factory=dict)
    may_change: bool = False
    with_scripts: bool = False
    with_logs: bool = False
    python_only: bool = False

    def checked(self, name: str, value: Any, default: Any) -> Any:
        """The value in the option's own type.

        Raises:
            RequestError: when it is not one that the option accepts.
        """
        if value is None and default is None:
            return None
        if self.choices and value not in self.choices:
            if self.kind is int:
                raise RequestError(f"{flag(name)} {value}: there are {' and '.join(map(str, self.choices))}")
            raise RequestError(f"{flag(name)} {value}: {unknown(str(value), self.choices)}")
        if self.kind is Path:
            return _folder(name, value)
        if self.least is not None:
            return _count(name, value, self.least, self.most)
        return value

    def add_to(self, parser: argparse._ActionsContainer, name: str, default: Any) -> None:
        """Declare the option to ``argparse``."""
        if self.python_only:
            return
        if self.kind is bool:
            parser.add_argument(flag(name), action="store_true", help=self.help)
            return
        shown = self.shown or ("" if default in (None, ()) else "%(default)s")
        parser.add_argument(
            flag(name),
            metavar=self.metavar,
            type=self.kind,
            default=default,
            nargs="+" if self.several else None,
            help=f"{self.help} (default: {shown})".strip() if shown else self.help,
        )


def option(default: Any, help: str, *, default_factory: Callable[[], Any] | None = None, **declared: Any) -> Any:
    """A field of ``Options``; the arguments are those of ``Option``."""
    metadata = {"option": Option(help, **declared)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def number(default: int | None, help: str, *, least: int = 1, metavar: str = "N", **declared: Any) -> Any:
    """A field of ``Options`` that is a whole number."""
    return option(default, help, kind=int, least=least, metavar=metavar, **declared)


def switch(help: str, **declared: Any) -> Any:
    """A field of ``Options`` that is false unless its flag is given."""
    return option(False, help, kind=bool, **declared)


def default_of(declared: Field[Any]) -> Any:
    """The default of a field of ``Options``."""
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def type_given(annotation: Any) -> Any:
    """The type that a field of ``Options`` is given as, from its annotation."""
    return get_args(annotation)[0] if get_origin(annotation) is Converted else annotation


def flag(name: str) -> str:
    """A field's name as an option of the command: ``--batch-size``."""
    return "--" + name.replace("_", "-")


def _count(name: str, value: Any, least: int, most: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{flag(name)} {value!r}: give a whole number")
    number = int(value)  # JSON cannot hold NumPy's integers
    if not least <= number <= (LARGEST if most is None else most):
        bounds = f"at least {least}" if most is None and number < least else f"from {least} to {most or LARGEST}"
        raise RequestError(f"{flag(name)} {number}: give a whole number, {bounds}")
    return number


def _folder(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise RequestError(f"{flag(name)} {value!r}: give a folder")
    return Path(value)
