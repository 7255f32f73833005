"""Layers, optimizers, losses and metrics in plain values: a class and its configuration."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from typing import Any
from unittest import mock

import numpy as np

LONG = 100
"""The most values of a list, or characters of a text, that are written out."""


def described(thing: Any) -> dict[str, Any]:
    """The class and the configuration, in values that JSON has; of a function or a text, its name alone."""
    if isinstance(thing, str) or not hasattr(thing, "get_config"):
        name = thing if isinstance(thing, str) else getattr(thing, "__name__", type(thing).__name__)
        return {"class": name, "config": {}}
    config: dict[str, Any] = {}
    with suppress(Exception):  # of the user's own code, or keys that JSON does not have
        config = json.loads(json.dumps(configuration_of(thing), default=_plain))
    return {"class": type(thing).__name__, "config": config}


def layers_of(model: Any, **more: str) -> list[dict[str, Any]]:
    """The layers of a model, each with its name; none of what has no layers, such as a variable's root.

    Args:
        more: attributes that tell more of a layer, by what they are called here.
    """
    flatten = getattr(model, "_flatten_layers", lambda **_: ())
    return [
        {"name": layer.name, **described(layer), **{name: getattr(layer, own, None) for name, own in more.items()}}
        for layer in flatten(include_self=False)
    ]


def configuration_of(thing: Any) -> dict[str, Any]:
    """The configuration of a layer or an optimizer; what has no ``get_config`` is told by its plain attributes.

    That is a schedule of the user's, or else the thing itself.
    """
    try:
        return dict(thing.get_config())
    except Exception:
        schedule = getattr(thing, "_learning_rate", None)
        if not hasattr(schedule, "get_config"):
            return _plain_attributes(thing)
        with mock.patch.object(type(schedule), "get_config", _plain_attributes):
            return dict(thing.get_config())


def _plain_attributes(thing: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if isinstance(value, bool | int | float | str)}


def without_long(value: Any) -> Any:
    """The same, with the number and a checksum of the values in place of long lists, such as a vocabulary."""
    if isinstance(value, dict):
        return {name: without_long(each) for name, each in value.items()}
    if isinstance(value, list | str) and len(value) > LONG:
        return f"{len(value):,} values, SHA-256 {hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]}"
    return [without_long(each) for each in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Numbers of NumPy's as Python's; anything else in words, without its address in memory."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else re.sub(r" at 0x\w+", "", repr(value))
