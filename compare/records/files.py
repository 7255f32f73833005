"""Atomic file writes, flushed appends, and JSON files with a checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from compare.errors import StorageError
from compare.naming import shown_path
from compare.records.model import RecordError, read_part


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turns an ``OSError`` into a ``StorageError`` that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        if not path.parent.exists():
            raise StorageError(
                f"{shown_path(path)} cannot be written: its folder was removed meanwhile; give another --reports if "
                "your own code clears it",
                "then run it again",
            ) from error
        raise StorageError(
            f"{shown_path(path)} cannot be written ({error.strerror or error}); everything written before is kept: "
            f"{_remedy(error, path.parent)}",
            "then continue with --resume",
        ) from error


def _remedy(error: OSError, folder: Path) -> str:
    if error.errno == errno.EFBIG:
        return "allow larger files (ulimit -f)"
    if error.errno == errno.ENOSPC and hasattr(os, "statvfs"):
        room = os.statvfs(folder)
        if room.f_files and not room.f_favail:
            return "remove some files, of which there can be no more there (inodes)"
    return "free some disk space or make the folder writable"


def refuse_folder(path: Path) -> None:
    """Raises a RecordError if a folder is where a file is to be written."""
    if path.is_dir():
        raise RecordError(path, "a folder is in its place: remove it")


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically: a reader sees the old content or the new content, never a part of it.

    Raises:
        StorageError: if the file cannot be written, for example because the disk is full.
        RecordError: if a folder is in its place.
    """
    refuse_folder(path)
    with storing(path):
        if path.is_char_device() or path.is_block_device():
            raise OSError("it is a device")
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


def remove_unfinished(folder: Path) -> None:
    """Removes what ``replace_file`` was writing in a folder, and in those below, when its process was killed."""
    for path in folder.rglob(".*.????????"):
        if path.is_file() and path.with_name(path.stem[1:]).exists():
            with suppress(OSError):
                path.unlink()


def umask() -> int:
    """The permissions that new files do not get; it can be read only by setting it."""
    with _umask_lock:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


_umask_lock = threading.Lock()


def append_to_file(path: Path, content: bytes, after: int | None = None) -> None:
    """Appends to a file and flushes it to disk.

    Args:
        after: the number of bytes to keep; what follows them, of an interrupted write, is removed. None keeps all.

    Raises:
        StorageError: if the file cannot be written, for example because the disk is full, or what was in it has gone.
    """
    links = path.stat().st_nlink if path.exists() else 0
    if after != 0 and not links and path.parent.exists():
        raise StorageError(f"{shown_path(path)} was removed meanwhile", "run it again")
    if links > 1:  # a copy of the run by ``cp -al`` shares it, and is to stay as it is
        replace_file(path, path.read_bytes()[:after] + content)
        return
    with storing(path), open(path, "ab") as file:
        file.truncate(after)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Writes ``content`` as indented JSON.

    Raises:
        ValueError: if ``content`` holds NaN or infinity, which JSON cannot represent.
        StorageError: if the file cannot be written.
    """
    replace_file(path, as_text(content).encode())


def as_text(content: Any) -> str:
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        RecordError: if the file is missing, unreadable or not JSON.
    """
    content = read_part(path)
    try:
        return json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise RecordError(path, f"cannot be read as JSON ({error})") from None
    except RecursionError:
        raise RecordError(path, "cannot be read as JSON (nested too deeply)") from None


def write_checked(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object with a checksum of its content as the last entry.

    Raises:
        ValueError: if ``content`` holds NaN or infinity, which JSON cannot represent.
        StorageError: if the file cannot be written.
    """
    write_json(path, with_checksum(content))


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of its content as the last entry."""
    return {**content, "sha256": checksum(content)}


def read_checked(path: Path, schema: int) -> dict[str, Any]:
    """Reads a JSON object and verifies its checksum, and that its format is of this version.

    Raises:
        RecordError: if the file cannot be read, was changed after it was written, or has another format.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise RecordError(path, "damaged, it is not a JSON object")
    if content.pop("sha256", None) != checksum(content):
        raise RecordError(path, "damaged, its content does not match its checksum")
    if (found := content.get("schema", schema)) != schema:
        raise RecordError(path, f"is of another version of this tool (its format is {found}, this one reads {schema})")
    return content


def checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a JSON object, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
