"""Reads the scalars of TensorBoard's event files, with TensorBoard's own classes and without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compare.errors import RequestError
from compare.records.model import OF_WEIGHTS, read_file

PATTERN = "*tfevents*"
LARGEST_SCALAR = 2**16
"""The size in bytes above which an event cannot be that of scalars: graphs and images are skipped unread."""


def event_files(folder: Path) -> list[Path]:
    """The event files directly in a folder, in the order in which they were begun."""
    return sorted(path for path in folder.glob(PATTERN) if path.is_file())


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars in the event files directly in a folder: tag, then step, to value.

    An event that is still being written is left out.

    Raises:
        RequestError: if tensorboard is not installed, a file is damaged, or a step of a tag occurs twice.
    """
    if find_spec("tensorboard") is None:
        raise RequestError(
            f'{folder}: event files need the package tensorboard: pip install "fit-vs-loop[tensorboard]"'
        )
    scalars: dict[str, dict[int, float]] = {}
    for path in event_files(folder):
        for event in _events(path):
            for tag, value in _scalars(event):
                steps = scalars.setdefault(tag, {})
                if event.step in steps:
                    raise RequestError(
                        f"{folder}: {tag} has step {event.step} twice, so the folder holds several trainings: "
                        "give each a folder of its own"
                    )
                steps[event.step] = value
    return scalars


def _events(path: Path) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # noqa: PLC0415 (lazy)

    # Each record: its length, a checksum of that, the event, a checksum of it.
    try:
        content = memoryview(read_file(path, OF_WEIGHTS))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error})") from None
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        damaged = masked_crc32c(bytes(content[at : at + 8])) != struct.unpack_from("<I", content, at + 8)[0]
        event = bytes(content[at + 12 : at + 12 + length]) if length <= LARGEST_SCALAR and not damaged else b""
        end = at + 16 + length
        if not damaged and end > len(content):
            return
        if event:
            damaged = masked_crc32c(event) != struct.unpack_from("<I", content, end - 4)[0]
        if damaged:
            raise RequestError(f"{path}: damaged at byte {at}; restore it from a copy")
        if event:
            yield Event.FromString(event)
        at = end


def _scalars(event: Any) -> Iterator[tuple[str, float]]:
    from tensorboard.util import tensor_util  # noqa: PLC0415 (lazy)

    for value in event.summary.value:
        if value.HasField("simple_value"):
            yield value.tag, float(value.simple_value)
        elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
            yield value.tag, float(tensor_util.make_ndarray(value.tensor))
