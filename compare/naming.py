"""Names of experiments, trainers, files and folders, as they are given and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def label(thing: Any) -> str:
    """What an experiment or trainer is called: the text it was asked for by, or its own name."""
    if isinstance(thing, str):
        return Path(source_and_attribute(thing)[0]).stem if is_file(thing) else thing
    return str(getattr(thing, "name", type(thing).__name__))


def is_file(wanted: str) -> bool:
    """Whether a name means a Python file, with or without an attribute."""
    return source_and_attribute(wanted)[0].endswith(".py")


def source_and_attribute(wanted: str) -> tuple[str, str]:
    """``SOURCE:ATTR`` in its two parts; the second is empty where there is none."""
    source, colon, attribute = wanted.rpartition(":")
    return (source, attribute) if colon and not wanted.endswith(".py") else (wanted, "")


def is_folder_name(name: Any) -> bool:
    """Whether a name is a plain folder name, which every file system takes."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\"):
        return False
    return name.isprintable() and len(name.encode()) < 256  # what file systems allow
