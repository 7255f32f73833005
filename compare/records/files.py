"""Atomic file writes, flushed appends, and JSON files with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.errors import StorageError
from compare.records.model import RecordError


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turns an ``OSError`` into a ``StorageError`` that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}); everything written before is kept: free some disk "
            "space or make the folder writable, then continue with --resume"
        ) from error


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically: a reader sees the old content or the new content, never a part of it.

    Raises:
        StorageError: if the file cannot be written, for example because the disk is full.
    """
    with storing(path):
        # A random name that did not exist: nobody can put a link in its place.
        number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~umask())
            os.replace(temporary, path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def umask() -> int:
    """The permissions that new files do not get; it can be read only by setting it."""
    with _umask_lock:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


_umask_lock = threading.Lock()


def read_file(path: Path) -> bytes:
    """Reads a file. Something else in its place, such as a pipe, would be waited for without end.

    Raises:
        OSError: if there is no such file, or it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is not a file")
    return path.read_bytes()


def append_to_file(path: Path, content: bytes) -> None:
    """Appends to a file and flushes it to disk.

    Raises:
        StorageError: if the file cannot be written, for example because the disk is full.
    """
    with storing(path), open(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Writes ``content`` as indented JSON.

    Raises:
        ValueError: if ``content`` holds NaN or infinity, which JSON cannot represent.
        StorageError: if the file cannot be written.
    """
    replace_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        RecordError: if the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(read_file(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as JSON ({error})") from None


def write_verdict(path: Path, verdict: Mapping[str, Any]) -> None:
    """Writes ``verdict.json``, with a checksum of its content as the last entry."""
    write_json(path, {**verdict, "sha256": checksum(verdict)})


def read_verdict(path: Path) -> dict[str, Any]:
    """Reads ``verdict.json`` and verifies its checksum.

    Raises:
        RecordError: if the file cannot be read or was changed after it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "verdict" not in content:
        raise RecordError(f"{path}: damaged, it has no verdict")
    if content.pop("sha256", None) != checksum(content):
        raise RecordError(f"{path}: damaged, its content does not match its checksum")
    return content


def checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a JSON object, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
