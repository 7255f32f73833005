"""Dataclasses to JSON and back, under the same names: a field is a key, in the order in which the fields are declared.

A field with a default is left out where it has that value, unless it is marked ``ALWAYS``. A field that is computed
(``init=False``) is written, and believed when it is read. A field marked ``unwritten`` is not part of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
ALWAYS = {"always": True}
_hints = cache(get_type_hints)


def unwritten(when_read: Any) -> Mapping[str, Any]:
    """Marks a field that is not in the file, with its value in what is read from one."""
    return {"unwritten": when_read}


def encode(value: Any) -> Any:
    """A value as what JSON can hold."""
    if is_dataclass(value):
        kept = [(each, getattr(value, each.name)) for each in fields(value) if "unwritten" not in each.metadata]
        return {each.name: encode(one) for each, one in kept if "always" in each.metadata or one != _default(each)}
    if isinstance(value, Mapping):
        return {str(name): encode(one) for name, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # for which JSON has no number
    return [encode(one) for one in value] if isinstance(value, list | tuple) else value


def decode(kind: type[Kind], content: Any) -> Kind:
    """What ``encode`` was given; keys that the dataclass does not know are ignored.

    Raises:
        KeyError: if a key is missing.
        TypeError: if a value is of another type.
        ValueError: if a value makes no sense.
    """
    if not isinstance(content, dict):
        raise TypeError(f"{content!r} is no {kind.__name__}")
    hints, given, computed = _hints(kind), dict[str, Any](), dict[str, Any]()  # type: ignore[arg-type]
    for each in fields(kind):  # type: ignore[arg-type]
        if "unwritten" in each.metadata:
            given[each.name] = each.metadata["unwritten"]
        elif each.name in content or (_default(each) is MISSING and each.init):
            (given if each.init else computed)[each.name] = _value(hints[each.name], content[each.name])
    decoded = kind(**given)
    for name, value in computed.items():
        object.__setattr__(decoded, name, value)
    return decoded


def _value(hint: Any, content: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return content
    if NoneType in parts:
        return None if content is None else _value(parts[0], content)
    if is_dataclass(hint):
        return decode(hint, content)  # type: ignore[arg-type]
    allowed: Any = {tuple: list, float: (int, float)}.get(origin or hint, origin or hint)
    if not isinstance(content, allowed):
        raise TypeError(f"{content!r} is no {(origin or hint).__name__}")
    if origin is tuple:
        return tuple(_value(parts[0], one) for one in content)
    return {parts[0](name): _value(parts[1], one) for name, one in content.items()} if origin else content


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()
