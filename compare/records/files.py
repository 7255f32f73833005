"""Files that are whole or not there: written at once, appended and flushed, checked by their sums."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.errors import StorageError
from compare.records.model import RecordError


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Say which file could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}); what was written before is kept: make room, or the "
            "folder writable, and go on with --resume"
        ) from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never half of it.

    Raises:
        StorageError: when the disk is full, say.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with storing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def append_to_file(path: Path, content: bytes) -> None:
    """Append to a file, and see it on the disk.

    Raises:
        StorageError: when the disk is full, say.
    """
    with storing(path), open(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON; NaN and infinity, which JSON has not, are an error."""
    replace_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RecordError: when it is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as JSON ({error})") from None


def write_verdict(path: Path, verdict: Mapping[str, Any]) -> None:
    """Write ``verdict.json``, with a checksum of its content as the last entry."""
    write_json(path, {**verdict, "sha256": checksum(verdict)})


def read_verdict(path: Path) -> dict[str, Any]:
    """The content of a ``verdict.json``.

    Raises:
        RecordError: when it cannot be read, or is not as it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "verdict" not in content:
        raise RecordError(f"{path}: damaged, it has no verdict")
    if content.pop("sha256", None) != checksum(content):
        raise RecordError(f"{path}: damaged, its content is not what was written")
    return content


def checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
