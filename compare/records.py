"""What a run leaves on disk: written while it trains, read back for the verdict; no TensorFlow here.

Of each trainer and seed a run keeps

- its rows of ``metrics.csv``, one per epoch;
- ``records/TRAINER-seedN.steps``, a fingerprint of all weights after every optimizer step;
- ``records/TRAINER-seedN.json``, the names of those weights and the float type of each metric;
- ``records/TRAINER-seedN-epochM.npz``, the weights themselves at the end of every epoch.

All of it is appended and flushed as each epoch ends, since the next one may fail.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

INITIAL = 0
"""The ``step`` of the fingerprint taken before the first optimizer step."""
EPOCH_END = -1
"""The ``step`` of the fingerprint taken when an epoch is over, validation included."""
PROJECTIONS = 2
"""Random projections kept per variable (see ``compare.fingerprints``)."""

KEY_COLUMNS = ("trainer", "seed", "epoch")
TIME_COLUMNS = ("seconds", "examples_per_second")


class RecordError(ValueError):
    """A recorded file that is damaged or incomplete; the message names the file."""


@dataclass(frozen=True)
class Variable:
    """One weight of the model: its path, shape and dtype name, in the model's own order."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class BuildRecord:
    """What the fingerprints to come are of: the model's variables, and how many replicas hold a copy."""

    variables: tuple[Variable, ...]
    replicas: int


@dataclass(frozen=True)
class StepRecord:
    """All weights after one optimizer step, condensed.

    Attributes:
        epoch: the epoch, from 1.
        step: the optimizer step within the epoch, from 1; or ``INITIAL`` or ``EPOCH_END``.
        hashes: uint64 ``[variables, replicas]``, a hash of the bytes of each replica's copy.
        projections: float64 ``[variables, PROJECTIONS]``, of the mean over replicas.
    """

    epoch: int
    step: int
    hashes: np.ndarray
    projections: np.ndarray


@dataclass(frozen=True)
class EpochRecord:
    """What a trainer reported for one epoch, and the weights it ended with.

    Attributes:
        epoch: the epoch, from 1.
        logs: metric name to value; a metric that was not reported is absent.
        seconds: wall time of the epoch's training and validation, in seconds.
        examples_per_second: training examples seen divided by ``seconds``.
        weights: one array per variable (the first replica's), or None when they are not kept.
    """

    epoch: int
    logs: Mapping[str, float]
    seconds: float
    examples_per_second: float
    weights: Sequence[np.ndarray] | None = field(default=None, repr=False)


AnyRecord = BuildRecord | StepRecord | EpochRecord
Sink = Callable[[AnyRecord], None]
"""Whatever listens to a run: a writer, a progress bar, a probe."""


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


def is_float32(value: float) -> bool:
    """Whether the value is one that float32 can hold, as everything that TensorFlow reports is."""
    with np.errstate(over="ignore"):
        return not math.isfinite(value) or float(np.float32(value)) == value


def shortest(value: float) -> str:
    """The shortest decimal that reads back to the same value of its own type, float32 or float64."""
    return str(np.float32(value)) if is_float32(value) else repr(float(value))


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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


class MetricsFile:
    """``metrics.csv``: one row per trainer, seed and epoch.

    The columns are known once the first epoch has been reported. A trainer that later reports a
    metric of another name widens the table: the file is written anew with the column added.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[dict[str, str]] = []
        self._columns: list[str] = []

    def append(self, trainer: str, seed: int, record: EpochRecord) -> None:
        row = {"trainer": trainer, "seed": str(seed), "epoch": str(record.epoch)}
        row |= {name: shortest(value) for name, value in record.logs.items()}
        row |= {
            "seconds": f"{record.seconds:.3f}",
            "examples_per_second": f"{record.examples_per_second:.1f}",
        }
        self._rows.append(row)
        metrics = [name for name in self._columns if name not in KEY_COLUMNS + TIME_COLUMNS]
        metrics += [name for name in record.logs if name not in metrics]
        columns = [*KEY_COLUMNS, *metrics, *TIME_COLUMNS]
        if columns == self._columns:
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                file.write(_csv([row], columns, header=False))
                file.flush()
                os.fsync(file.fileno())
        else:
            self._columns = columns
            replace_file(self.path, _csv(self._rows, columns, header=True).encode())


def _csv(rows: Sequence[Mapping[str, str]], columns: Sequence[str], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class Recorder:
    """The sink that puts one trainer's records on disk.

    Args:
        folder: the run's folder.
        metrics: the run's ``metrics.csv``, shared by all recorders of the run.
        trainer: the trainer's name.
        seed: the run's seed.
    """

    def __init__(self, folder: Path, metrics: MetricsFile, trainer: str, seed: int) -> None:
        self._metrics = metrics
        self._trainer, self._seed = trainer, seed
        self._stem = folder / "records" / f"{quote(trainer, safe='')}-seed{seed}"
        self._stem.parent.mkdir(exist_ok=True)
        self._variables: Sequence[Variable] = ()
        self._replicas = 0
        self._pending: list[StepRecord] = []
        self._float32: dict[str, bool] = {}

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, BuildRecord):
            self._variables, self._replicas = record.variables, record.replicas
            self._write_sidecar()
        elif isinstance(record, StepRecord):
            self._pending.append(record)
        else:
            self._end_epoch(record)

    def _end_epoch(self, record: EpochRecord) -> None:
        self.flush()
        if record.weights is not None:
            content = io.BytesIO()
            named = {f"{i}": np.asarray(weight) for i, weight in enumerate(record.weights)}
            np.savez(content, allow_pickle=False, **named)
            replace_file(_weights_path(self._stem, record.epoch), content.getvalue())
        before = dict(self._float32)
        for name, value in record.logs.items():
            self._float32[name] = self._float32.get(name, True) and is_float32(value)
        if self._float32 != before:
            self._write_sidecar()
        self._metrics.append(self._trainer, self._seed, record)

    def flush(self) -> None:
        """Append the fingerprints that are still in memory (an interrupted epoch's, say)."""
        if not self._pending:
            return
        block = np.zeros(len(self._pending), step_dtype(len(self._variables), self._replicas))
        for row, record in zip(block, self._pending, strict=True):
            row["epoch"], row["step"] = record.epoch, record.step
            row["hashes"], row["projections"] = record.hashes, record.projections
        with open(self._stem.with_name(self._stem.name + ".steps"), "ab") as file:
            file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self._pending.clear()

    def _write_sidecar(self) -> None:
        content = {
            "trainer": self._trainer,
            "seed": self._seed,
            "replicas": self._replicas,
            "variables": [{"name": v.name, "shape": v.shape, "dtype": v.dtype} for v in self._variables],
            "metrics": {name: "float32" if single else "float64" for name, single in self._float32.items()},
        }
        write_json(self._stem.with_name(self._stem.name + ".json"), content)


def _weights_path(stem: Path, epoch: int) -> Path:
    return stem.with_name(f"{stem.name}-epoch{epoch:03d}.npz")


@dataclass(frozen=True)
class Record:
    """One trainer's run with one seed, read back from its files.

    Attributes:
        trainer: the trainer's name.
        seed: the seed.
        variables: the weights that were fingerprinted.
        steps: the fingerprints, structured as ``step_dtype`` says, in the order they were taken.
        logs: for each epoch that ended, the reported metrics as they were reported, bit for bit.
    """

    trainer: str
    seed: int
    variables: tuple[Variable, ...]
    steps: np.ndarray
    logs: Mapping[int, Mapping[str, float]]
    stem: Path = field(repr=False)

    def weights(self, epoch: int) -> list[np.ndarray] | None:
        """The weights at the end of an epoch, or None when they were not kept.

        Raises:
            RecordError: when the file is damaged.
        """
        path = _weights_path(self.stem, epoch)
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return [arrays[f"{i}"] for i in range(len(self.variables))]
        except Exception as error:  # zipfile, zlib and NumPy raise half a dozen kinds for a damaged file
            raise RecordError(f"{path}: damaged ({error})") from None


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The rows of a ``metrics.csv``, every value as it stands in the file; blank means missing.

    Raises:
        RecordError: when the file is missing or damaged; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from None
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = next(lines, [])
        if tuple(columns[:3]) != KEY_COLUMNS or tuple(columns[-2:]) != TIME_COLUMNS:
            raise RecordError(f"{path}: line 1 is not the header of a metrics.csv")
        if len(set(columns)) != len(columns):
            raise RecordError(f"{path}: line 1 names a column twice")
        rows: list[dict[str, str]] = []
        seen = set()
        for number, values in enumerate(lines, start=2):
            where = f"{path}: line {number}"
            if len(values) != len(columns):
                raise RecordError(f"{where} has {len(values)} values for {len(columns)} columns")
            row = dict(zip(columns, values, strict=True))
            key = tuple(row[name] for name in KEY_COLUMNS)
            if key in seen:
                raise RecordError(f"{where} repeats an epoch of {row['trainer']}")
            seen.add(key)
            if not (row["seed"].isdecimal() and row["epoch"].isdecimal() and row["trainer"]):
                raise RecordError(f"{where} does not name a trainer, seed and epoch")
            for name in columns[3:]:
                _number(row[name], f"{where}, column {name}")
            rows.append(row)
    except csv.Error as error:
        raise RecordError(f"{path}: line {lines.line_num}: {error}") from None
    if not text.endswith("\n"):
        raise RecordError(f"{path}: the last line is incomplete")
    return rows


def _number(text: str, where: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise RecordError(f"{where}: {text!r} is not a number") from None


def read_records(folder: Path) -> list[Record]:
    """All records of a run, in the order in which its trainers first reported.

    Raises:
        RecordError: when a file is missing or damaged.
    """
    rows = read_metrics(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    sidecars = {(c["trainer"], c["seed"]): (c, stem) for c, stem in _sidecars(folder)}
    order = list(dict.fromkeys((row["trainer"], int(row["seed"])) for row in rows))
    order += [key for key in sidecars if key not in order]  # interrupted in its first epoch: no row yet
    records = []
    for key in order:
        if key not in sidecars:
            raise RecordError(f"{folder / 'metrics.csv'}: there are no fingerprints of {key[0]}, seed {key[1]}")
        content, stem = sidecars[key]
        mine = [row for row in rows if (row["trainer"], int(row["seed"])) == key]
        records.append(_record(stem, content, mine))
    return records


def _sidecars(folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    for path in sorted((folder / "records").glob("*.json")):
        yield read_json(path), path.with_suffix("")


def _record(stem: Path, content: dict[str, Any], rows: Sequence[Mapping[str, str]]) -> Record:
    try:
        variables = tuple(Variable(v["name"], tuple(v["shape"]), v["dtype"]) for v in content["variables"])
        dtype = step_dtype(len(variables), content["replicas"])
        types = {name: np.dtype(kind).type for name, kind in content["metrics"].items()}
    except (KeyError, TypeError) as error:
        raise RecordError(f"{stem}.json: damaged ({error})") from None
    path = stem.with_name(stem.name + ".steps")
    content_bytes = path.read_bytes() if path.exists() else b""
    if len(content_bytes) % dtype.itemsize:
        raise RecordError(f"{path}: damaged, its size is not a whole number of fingerprints")
    logs = {}
    for row in rows:
        # Through its own type, so that the value is the one reported, not the nearest float64.
        values = {name: types[name](text) for name, text in row.items() if name in types and text}
        logs[int(row["epoch"])] = {name: float(value) for name, value in values.items()}
    steps = np.frombuffer(content_bytes, dtype)
    return Record(content["trainer"], content["seed"], variables, steps, logs, stem)
