"""The data classes of a run's records: fingerprints of all weights, and the metrics of each epoch."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from compare.errors import RequestError
from compare.naming import file_name, printable, shown_path
from compare.records.codec import ALWAYS

INITIAL = 0
"""The ``step`` of the fingerprint taken before the first optimizer step."""

EPOCH_END = -1
"""The ``step`` of the fingerprint taken at the end of an epoch, after validation."""

PROJECTIONS = 2
"""The number of random projections kept per variable (see ``compare.engine.fingerprints``)."""

LARGEST, OF_WEIGHTS = 2**30, 2**36
"""The number of bytes above which a file is none of a run's: one of text, or one with weights."""

OWNER = "owner"
"""The entry of an ``.npz`` file that says whose it is."""

BLOCK = 2**13
"""The number of fingerprints that are compared at a time."""


class RecordError(RequestError):
    """A recorded file that is damaged or incomplete; the message names the file and the remedy."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(path, problem)

    def __str__(self) -> str:
        path, problem = self.args
        return (
            f"{shown_path(path)}: {printable(' '.join(problem.split()))}; restore it from a copy, or start another run"
        )


@dataclass(frozen=True)
class Variable:
    """One variable of the model: its path, shape and dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class BuildRecord:
    """Describes the fingerprints that follow: the model's variables, in order, and the number of replicas."""

    variables: tuple[Variable, ...]
    replicas: int


@dataclass(frozen=True)
class StepRecord:
    """A fingerprint of all weights after one optimizer step.

    Attributes:
        epoch: the epoch, from 1.
        step: the optimizer step within the epoch, from 1; or ``INITIAL`` (if there are several, the last
            one is used) or ``EPOCH_END``.
        hashes: uint64 ``[variables, replicas]``, a hash of the bytes of each replica's copy.
        projections: float64 ``[variables, PROJECTIONS]``, projections of the mean over replicas.
    """

    epoch: int
    step: int
    hashes: np.ndarray
    projections: np.ndarray


@dataclass(frozen=True)
class EpochRecord:
    """The metrics that a trainer reported for one epoch, and the weights at its end.

    Attributes:
        epoch: the epoch, from 1.
        logs: metric name to value; a metric that was not reported is absent.
        seconds: wall time of the epoch's training and validation, in seconds; NaN if it was not measured.
        examples_per_second: training examples seen divided by ``seconds``; NaN if one of them is not known.
        weights: one array per variable (the first replica's), or None if weights are not kept.
    """

    epoch: int
    logs: Mapping[str, float]
    seconds: float
    examples_per_second: float
    weights: Sequence[np.ndarray] | None = field(default=None, repr=False)


AnyRecord = BuildRecord | StepRecord | EpochRecord

Sink = Callable[[AnyRecord], None]
"""A listener of a run, called with every record: a writer, a progress bar or a probe."""

Place = tuple[int, int]
"""(epoch, step) of a fingerprint."""

BEGINNING: Place = (0, EPOCH_END)
"""The place before all others: the end of no epoch."""


Key = TypeVar("Key", int, np.ndarray)


def in_time(place: tuple[Key, Key]) -> Key:
    """A chronological sort key: the end of an epoch comes after its steps.

    ``place_of`` and ``places_of`` return the places of such keys.

    Args:
        place: the epoch and the step, each an int or int64 ``[places]``.
    """
    epoch, step = place
    return epoch << 32 | step & 0xFFFFFFFF


def places_of(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The epochs and the steps of sort keys (see ``in_time``), int32 ``[places]`` each."""
    return (keys >> 32).astype(np.int32), keys.astype(np.uint32).view(np.int32)


def place_of(key: int) -> Place:
    """The place of one sort key (see ``in_time``)."""
    (epoch,), (step,) = places_of(np.array([key]))
    return int(epoch), int(step)


def in_blocks(keys: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of an array of sort keys: what is computed of a part's fingerprints takes little memory."""
    return (keys[start : start + BLOCK] for start in range(0, len(keys), BLOCK))


def first_place(keys: np.ndarray, found: Callable[[np.ndarray], np.ndarray]) -> int | None:
    """The index of the first of some sort keys for which something is found; None if there is none.

    Args:
        found: looks at a part of the keys; returns bool ``[places, variables]``.
    """
    rows = (found(part).any(axis=1) for part in in_blocks(keys))
    return next((number * BLOCK + int(row.argmax()) for number, row in enumerate(rows) if row.any()), None)


def keys_of(steps: np.ndarray) -> np.ndarray:
    """The sort keys of the places of fingerprints, int64 ``[fingerprints]``."""
    return in_time((steps["epoch"].astype(np.int64), steps["step"].astype(np.int64)))


def step_dtype(variables: int, replicas: int) -> np.dtype[Any]:
    """The layout of one fingerprint on disk and in memory."""
    return np.dtype(
        [
            ("epoch", "<i4"),
            ("step", "<i4"),
            ("hashes", "<u8", (variables, replicas)),
            ("projections", "<f8", (variables, PROJECTIONS)),
        ]
    )


def rows_of(steps: Sequence[StepRecord], dtype: np.dtype[Any]) -> np.ndarray:
    """Fingerprints as they are on disk and in memory, of ``step_dtype``."""
    return np.array([(each.epoch, each.step, each.hashes, each.projections) for each in steps], dtype)


def variable_norms(a: np.ndarray, b: np.ndarray | float = 0.0) -> np.ndarray:
    """The estimated Euclidean norm of ``a - b`` for each variable.

    The square of a vector's projection on random signs has the vector's squared Euclidean norm as its expected value
    (Achlioptas, "Database-friendly random projections", 2003), so the root mean square over the projections estimates
    it.

    Args:
        a: the projections of some weights, float64 ``[..., variables, PROJECTIONS]``.
        b: the projections of others; 0 for the norm of ``a``.

    Returns:
        float64 ``[..., variables]``; not finite where the projections are not.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.mean(np.square(a - b), axis=-1)))


def total_norm(a: np.ndarray, b: np.ndarray | float = 0.0) -> np.ndarray:
    """The estimated Euclidean norm of ``a - b`` over all variables, float64 ``[...]``; see ``variable_norms``."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.sum(np.mean(np.square(a - b), axis=-1), axis=-1)))


def stem_of(folder: Path, trainer: str, seed: int) -> Path:
    """The common prefix of the paths of a trainer's records in a run's folder."""
    return folder / "records" / f"{file_name(trainer)}-seed{seed}"


def weights_path(stem: Path, epoch: int) -> Path:
    return stem.with_name(f"{stem.name}-epoch{epoch:03d}.npz")


@dataclass(frozen=True)
class End:
    """How a trainer's run ended.

    Attributes:
        epoch: the epoch in which the weights or the loss became non-finite; None if training finished normally.
        step: the step of that epoch after which this was seen; None if it was seen only at the end of the epoch.
        what: the value that was not finite, for messages.
    """

    epoch: int | None = field(default=None, metadata=ALWAYS)
    step: int | None = field(default=None, metadata=ALWAYS)
    what: str = field(default="", metadata=ALWAYS)


@dataclass(frozen=True)
class Record:
    """The records of one trainer and one seed, read back from their files.

    Attributes:
        steps: the fingerprints, a structured array of ``step_dtype``, in the order they were taken.
        logs: for each finished epoch, the reported metrics with their exact values.
        stem: the common prefix of the paths of the files.
        end: how training ended; None if it has not ended.
        weights_crc32: for each epoch whose weights were kept, the CRC-32 of their file.
    """

    trainer: str
    seed: int
    variables: tuple[Variable, ...]
    steps: np.ndarray
    logs: Mapping[int, Mapping[str, float]]
    stem: Path = field(repr=False)
    end: End | None = None
    weights_crc32: Mapping[int, int] = field(default_factory=dict, repr=False)

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The sort keys of all places, each once, and the index of the last fingerprint of each."""
        keys = keys_of(self.steps)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        last = np.diff(keys, append=-1) != 0
        return keys[last], order[last]

    @property
    def keys(self) -> np.ndarray:
        """The places of the fingerprints as sort keys (see ``in_time``), int64 ``[places]``, sorted, each once."""
        return self._rows[0]

    def has(self, keys: np.ndarray) -> np.ndarray:
        """Whether there are fingerprints at places given as sort keys, bool ``[places]``."""
        return np.asarray(np.append(self.keys, -1)[np.searchsorted(self.keys, keys)] == keys)

    def at(self, keys: np.ndarray) -> np.ndarray:
        """The fingerprints at places that the record has, given as sort keys: ``step_dtype`` ``[places]``.

        If a place has several, the last one is used.
        """
        known, rows = self._rows
        return np.asarray(self.steps[rows[np.searchsorted(known, keys)]])

    @property
    def last(self) -> Place:
        """The place of the last fingerprint; ``(1, INITIAL)`` if there is none."""
        return place_of(self.keys[-1]) if len(self.keys) else (1, INITIAL)

    @property
    def stop(self) -> int:
        """The sort key of the end of the epoch whose numbers stopped training: the steps after it are not lacking.

        The largest one if no number did; where weights did, they tell the difference themselves.
        """
        if self.end is None or self.end.epoch is None or self.end.step is not None:
            return int(np.iinfo(np.int64).max)
        return in_time((self.end.epoch, EPOCH_END))

    def up_to(self, place: Place) -> Record:
        """A copy of the record that ends at a place."""
        logs = {epoch: logs for epoch, logs in self.logs.items() if in_time((epoch, EPOCH_END)) <= in_time(place)}
        return replace(self, steps=self.steps[keys_of(self.steps) <= in_time(place)], logs=logs)

    def without_missing(self) -> Record:
        """A copy of the record that keeps no weights at epoch ends whose files are missing, as in a copy of a run."""
        there = {epoch: crc for epoch, crc in self.weights_crc32.items() if weights_path(self.stem, epoch).exists()}
        return replace(self, weights_crc32=there)

    def weights(self, epoch: int) -> list[np.ndarray] | None:
        """The weights at the end of an epoch, or None if they were not kept.

        Raises:
            RecordError: if the file is damaged or missing.
        """
        if epoch not in self.weights_crc32:
            return None
        path = weights_path(self.stem, epoch)
        weights = read_arrays(path, read_weights(path, self.weights_crc32[epoch]))
        if [weight.shape for weight in weights] != [variable.shape for variable in self.variables]:
            raise RecordError(path, "damaged, it does not hold the weights of this model")
        return weights


def read_weights(path: Path, crc32: int) -> bytes:
    """Reads a file with weights at the end of an epoch, and verifies its checksum.

    Raises:
        RecordError: if it is missing or damaged.
    """
    content = read_part(path, OF_WEIGHTS)
    if zlib.crc32(content) != crc32:
        raise RecordError(path, "damaged, it does not match its checksum")
    return content


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """Reads a file. Something else in its place, such as a pipe, would be waited for without end.

    Args:
        most: the number of bytes above which it is not what it should be, such as a sparse file of any size.

    Raises:
        OSError: if there is no such file, or it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is not a file")
    if path.stat().st_size > most:
        raise OSError(f"it has {path.stat().st_size:,} bytes, too many for such a file")
    try:
        return path.read_bytes()
    except MemoryError:
        raise OSError(f"there is not enough memory for its {path.stat().st_size:,} bytes") from None


def read_part(path: Path, most: int = LARGEST) -> bytes:
    """Reads a file of a run, as ``read_file``.

    Raises:
        RecordError: if it is missing or cannot be read.
    """
    try:
        return read_file(path, most)
    except OSError as error:
        raise RecordError(path, "is missing" if not path.exists() else f"cannot be read ({error})") from None


def read_arrays(path: Path, content: bytes, owner: str = "") -> list[np.ndarray]:
    """The arrays of an ``.npz`` file whose entries are numbered.

    Args:
        owner: whose arrays they must be, if the file says so itself in its entry ``owner``.

    Raises:
        RecordError: if the content is damaged, or somebody else's.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = str(arrays[OWNER]) if owner else ""
            read = [arrays[f"{i}"] for i in range(len(arrays) - bool(owner))]
    except Exception as error:  # zipfile, zlib and NumPy raise many exception types for a damaged file
        reason = str(error).partition(". If you trust")[0]  # NumPy's advice on a pickle is none here
        raise RecordError(path, f"damaged ({reason})") from None
    if found != owner:
        raise RecordError(path, "belongs to another run")
    return read


def npz(arrays: Sequence[Any], owner: str = "") -> bytes:
    """The content of an ``.npz`` file that ``read_arrays`` reads."""
    named: dict[str, Any] = {f"{i}": _storable(np.asarray(array)) for i, array in enumerate(arrays)}
    named |= {OWNER: np.array(owner)} if owner else {}
    content = io.BytesIO()
    np.savez(content, **named)
    return content.getvalue()


def _storable(weight: np.ndarray) -> np.ndarray:
    """The array in a dtype that ``.npz`` files support; bfloat16 is converted to float32, which is exact."""
    return weight.astype(np.float32) if weight.dtype.kind == "V" else weight
