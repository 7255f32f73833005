"""Replaces functions of Keras and TensorFlow in the process of a watched script."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a function or method for the rest of the process.

    Args:
        owner: the class or module that has it.
        name: its name.
        replacement: called with the original, followed by the arguments of the call.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        return replacement(original, *args, **options)

    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(call) if static else call)


def modules_with(name: str, package: str) -> Iterator[ModuleType]:
    """The loaded modules of a package that refer to a function by this name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] == package and name in vars(module):
            yield module
