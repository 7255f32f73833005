"""What a run leaves on disk: written while it trains, read back for the verdict; no TensorFlow here.

Of each trainer and seed a run keeps

- its rows of ``metrics.csv``, one per epoch;
- ``records/TRAINER-seedN.steps``, a fingerprint of all weights after every optimizer step;
- ``records/TRAINER-seedN.json``, the names of those weights and the float type of each reported number;
- ``records/TRAINER-seedN-epochM.npz``, the weights themselves at the end of every epoch.

All of it is appended and flushed as each epoch ends, since the next one may fail. Whatever moment a process
dies at, ``recover`` leaves files that can be read, and ``Recorder.rewind`` goes back to an epoch's end.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import math
import os
import threading
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from compare.errors import RequestError, StorageError

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
        step: the optimizer step within the epoch, from 1; or ``INITIAL`` (the last one counts, where
            there are several) or ``EPOCH_END``.
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


Place = tuple[int, int]
"""(epoch, step) of a fingerprint."""


def in_time(place: Place) -> tuple[int, float]:
    """A key that sorts places as they come: an epoch's end after its steps."""
    epoch, step = place
    return epoch, math.inf if step == EPOCH_END else step


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
    if is_float32(value):
        text = str(np.float32(value))
        # Readers round twice, to float64 and then to float32, which turns 7.038531e-26 into its neighbour.
        if not math.isfinite(value) or np.float32(text) == value:
            return text
    return repr(float(value))


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
    write_json(path, {**verdict, "sha256": _checksum(verdict)})


def read_verdict(path: Path) -> dict[str, Any]:
    """The content of a ``verdict.json``.

    Raises:
        RecordError: when it cannot be read, or is not as it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "verdict" not in content:
        raise RecordError(f"{path}: damaged, it has no verdict")
    if content.pop("sha256", None) != _checksum(content):
        raise RecordError(f"{path}: damaged, its content is not what was written")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class MetricsFile:
    """``metrics.csv``: one row per trainer, seed and epoch; rows that are there already are kept.

    Recorders that share it take its ``lock`` while they write: they may be used by several threads.

    The columns are known once the first epoch has been reported. A trainer that later reports a
    metric of another name widens the table: the file is written anew with the column added.

    Raises:
        RecordError: when there is a file, and it is damaged (see ``recover``).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._rows = [_filled(row) for row in read_metrics(path)] if path.exists() else []
        self._columns: list[str] = _columns(self._rows)

    def epochs(self, trainer: str, seed: int) -> list[int]:
        """The epochs that have a row, in the order of the rows."""
        return [int(row["epoch"]) for row in self._rows if (row["trainer"], row["seed"]) == (trainer, str(seed))]

    def rewind(self, trainer: str, seed: int, epoch: int) -> None:
        """Remove a trainer's rows of later epochs."""
        kept = [
            row
            for row in self._rows
            if (row["trainer"], row["seed"]) != (trainer, str(seed)) or int(row["epoch"]) <= epoch
        ]
        if len(kept) < len(self._rows):
            self._rows, self._columns = kept, _columns(kept)
            self._rewrite()

    def sort(self, trainers: Sequence[str]) -> None:
        """Put the rows in the order of trainers and seeds, for runs that ended in any order."""
        self._rows.sort(key=lambda row: (int(row["seed"]), trainers.index(row["trainer"])))
        self._rewrite()

    def _rewrite(self) -> None:
        if self._rows:
            replace_file(self.path, _csv(self._rows, self._columns, header=True).encode())
        else:
            self.path.unlink(missing_ok=True)

    def row(self, trainer: str, seed: int, record: EpochRecord) -> dict[str, str]:
        """One epoch's row, as it is to be written.

        Raises:
            RequestError: for a metric that cannot have a column of its name.
        """
        for name in record.logs:
            if not (name and name.isprintable()) or name in KEY_COLUMNS + TIME_COLUMNS:
                raise RequestError(
                    f"trainer {trainer} reports a metric called {name!r}, which cannot be a metric's column in "
                    f"{self.path.name}: give it another name"
                )
        row = {"trainer": trainer, "seed": str(seed), "epoch": str(record.epoch)}
        row |= {name: shortest(value) for name, value in record.logs.items()}
        row |= {
            "seconds": f"{record.seconds:.3f}",
            "examples_per_second": f"{record.examples_per_second:.1f}",
        }
        return row

    def append(self, row: dict[str, str]) -> None:
        """Write one epoch's row."""
        self._rows.append(row)
        columns = _columns(self._rows)
        if columns == self._columns:
            append_to_file(self.path, _csv([row], columns, header=False).encode())
        else:
            self._columns = columns
            self._rewrite()


def _filled(row: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in row.items() if text}


def _columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The columns that these rows need: metrics in the order in which they were first reported."""
    names = dict.fromkeys(name for row in rows for name in row)
    metrics = [name for name in names if name not in KEY_COLUMNS + TIME_COLUMNS]
    return [*KEY_COLUMNS, *metrics, *TIME_COLUMNS] if rows else []


def _csv(rows: Sequence[Mapping[str, str]], columns: Sequence[str], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


COSTS = "costs.json"
"""By trainer and seed: seconds of the first step and of a later one, peak memory in bytes (None: not known), and
``own_peak``, whether that peak is of the time when this trainer trained, or since the process began."""


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
        self._folder, self._trainer, self._seed = folder, trainer, seed
        self._stem = stem_of(folder, trainer, seed)
        with storing(self._stem):
            self._stem.parent.mkdir(exist_ok=True)
        self._variables: Sequence[Variable] = ()
        self._replicas = 0
        self._pending: list[StepRecord] = []
        self._reported: dict[int, dict[str, str]] = {}
        self._rows: dict[int, str] = {}

    def rewind(self, epoch: int) -> None:
        """Forget whatever came after an epoch's end; 0 forgets all."""
        self._pending.clear()
        with self._metrics.lock:
            self._metrics.rewind(self._trainer, self._seed, epoch)
        for path in self._stem.parent.glob(f"{glob.escape(self._stem.name)}-epoch*.npz"):
            if int(path.stem.rpartition("epoch")[2]) > epoch:
                path.unlink()
        sidecar = _sidecar_path(self._stem)
        if not sidecar.exists():
            _steps_path(self._stem).unlink(missing_ok=True)
            return
        record, types, _ = _read_sidecar(sidecar)
        self._reported = {number: kinds for number, kinds in types.items() if number <= epoch}
        self._rows = {number: text for number, text in record.rows.items() if number <= epoch}
        self._variables, self._replicas = record.variables, _replicas(record)
        steps = record.steps[record.steps["epoch"] <= epoch] if epoch else record.steps[:0]
        replace_file(_steps_path(self._stem), steps.tobytes())
        self._write_sidecar()

    def keep_costs(self, costs: dict[str, Any]) -> None:
        """Put down what the trainer costs so far (see ``compare.costs``)."""
        path = self._folder / COSTS
        with self._metrics.lock:
            content = read_json(path) if path.exists() else {}
            content.setdefault(self._trainer, {})[str(self._seed)] = costs
            write_json(path, content)

    def end(self, end: End) -> None:
        """Say that the trainer is through."""
        self.flush()
        self._write_sidecar(end)

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, BuildRecord):
            self._variables, self._replicas = record.variables, record.replicas
            self._write_sidecar()
        elif isinstance(record, StepRecord):
            self._pending.append(record)
            if record.step == EPOCH_END:
                self.flush()
        else:
            self._end_epoch(record)

    def _end_epoch(self, record: EpochRecord) -> None:
        if record.weights is not None:
            replace_file(_weights_path(self._stem, record.epoch), _npz(record.weights))
        types = {name: "float32" if is_float32(value) else "float64" for name, value in record.logs.items()}
        row = self._metrics.row(self._trainer, self._seed, record)
        self._reported[record.epoch], self._rows[record.epoch] = types, _checksum(row)
        self._write_sidecar()
        with self._metrics.lock:
            self._metrics.append(row)

    def flush(self) -> None:
        """Append the fingerprints that are still in memory (an interrupted epoch's, say)."""
        if not self._pending:
            return
        block = np.zeros(len(self._pending), step_dtype(len(self._variables), self._replicas))
        for row, record in zip(block, self._pending, strict=True):
            row["epoch"], row["step"] = record.epoch, record.step
            row["hashes"], row["projections"] = record.hashes, record.projections
        append_to_file(_steps_path(self._stem), block.tobytes())
        self._pending.clear()

    def _write_sidecar(self, end: End | None = None) -> None:
        content = {
            "trainer": self._trainer,
            "seed": self._seed,
            "replicas": self._replicas,
            "variables": [{"name": v.name, "shape": v.shape, "dtype": v.dtype} for v in self._variables],
            "reported": {str(epoch): types for epoch, types in self._reported.items()},
            "rows_sha256": {str(epoch): text for epoch, text in self._rows.items()},
        }
        if end is not None:
            content["end"] = asdict(end)
        write_json(_sidecar_path(self._stem), content)


class InitialWeights(UserDict[int, list[np.ndarray]]):
    """By seed, the weights that the first model began with, kept in a run's folder for one that is resumed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "records"
        super().__init__()
        for path in self._folder.glob("initial-seed*.npz"):
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                self.data[int(path.stem.removeprefix("initial-seed"))] = [arrays[f"{i}"] for i in range(len(arrays))]

    def __setitem__(self, seed: int, weights: list[np.ndarray]) -> None:
        super().__setitem__(seed, weights)
        with storing(self._folder):
            self._folder.mkdir(exist_ok=True)
        replace_file(self._folder / f"initial-seed{seed}.npz", _npz(weights))


def _npz(arrays: Sequence[Any]) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **{f"{i}": _storable(np.asarray(each)) for i, each in enumerate(arrays)})
    return content.getvalue()


def stem_of(folder: Path, trainer: str, seed: int) -> Path:
    """What the paths of a trainer's records in a run's folder begin with."""
    return folder / "records" / f"{quote(trainer, safe='')}-seed{seed}"


def _storable(weight: np.ndarray) -> np.ndarray:
    """The array in a type that NumPy's files know; bfloat16 is none, float32 holds all its values."""
    return weight.astype(np.float32) if weight.dtype.kind == "V" else weight


def _steps_path(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}.steps")


def _sidecar_path(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}.json")


def _replicas(record: Record) -> int:
    return int(record.steps.dtype["hashes"].shape[1])


def _weights_path(stem: Path, epoch: int) -> Path:
    return stem.with_name(f"{stem.name}-epoch{epoch:03d}.npz")


@dataclass(frozen=True)
class End:
    """How a trainer's run ended.

    Attributes:
        epoch: where the weights or the loss were no longer finite; None where all went well.
        step: after which step of that epoch; None where it was seen at the epoch's end only.
        what: what was not finite.
    """

    epoch: int | None = None
    step: int | None = None
    what: str = ""


@dataclass(frozen=True)
class Record:
    """One trainer's run with one seed, read back from its files.

    Attributes:
        trainer: the trainer's name.
        seed: the seed.
        variables: the weights that were fingerprinted.
        steps: the fingerprints, structured as ``step_dtype`` says, in the order they were taken.
        logs: for each epoch that ended, the reported metrics as they were reported, bit for bit.
        end: how it ended; None while it has not.
        rows: for each epoch that ended, a checksum of its row of ``metrics.csv``.
    """

    trainer: str
    seed: int
    variables: tuple[Variable, ...]
    steps: np.ndarray
    logs: Mapping[int, Mapping[str, float]]
    stem: Path = field(repr=False)
    end: End | None = None
    rows: Mapping[int, str] = field(default_factory=dict, repr=False)

    @property
    def last(self) -> Place:
        """The last place with a fingerprint; before the first step where there is none."""
        return max(self.by_place(), key=in_time, default=(1, INITIAL))

    def up_to(self, place: Place) -> Record:
        """The same, as if nothing had come after a place."""
        kept = [in_time((int(row["epoch"]), int(row["step"]))) <= in_time(place) for row in self.steps]
        logs = {epoch: logs for epoch, logs in self.logs.items() if in_time((epoch, EPOCH_END)) <= in_time(place)}
        return replace(self, steps=self.steps[kept], logs=logs)

    def by_place(self) -> dict[Place, np.void]:
        """The fingerprints by place; the last one counts where there are several."""
        return {(int(row["epoch"]), int(row["step"])): row for row in self.steps}

    def weights(self, epoch: int) -> list[np.ndarray] | None:
        """The weights at the end of an epoch, or None when they were not kept.

        Raises:
            RecordError: when the file is damaged.
        """
        path = _weights_path(self.stem, epoch)
        if not path.exists():
            return None
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
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
        seen: set[tuple[str, int, int]] = set()
        for values in lines:
            where = f"{path}: line {lines.line_num}"
            if len(values) != len(columns):
                raise RecordError(f"{where} has {len(values)} values for {len(columns)} columns")
            row = dict(zip(columns, values, strict=True))
            if not (row["trainer"] and _is_count(row["seed"], 0) and _is_count(row["epoch"], 1)):
                raise RecordError(f"{where} does not name a trainer, seed and epoch")
            key = row["trainer"], int(row["seed"]), int(row["epoch"])
            if key in seen:
                raise RecordError(f"{where} repeats an epoch of {row['trainer']!r}")
            seen.add(key)
            for name in columns[3:]:
                _number(row[name], f"{where}, column {name!r}")
            rows.append(row)
    except csv.Error as error:
        raise RecordError(f"{path}: line {lines.line_num}: {error}") from None
    if not text.endswith("\n"):
        raise RecordError(f"{path}: the last line is incomplete")
    return rows


def _is_count(text: str, least: int) -> bool:
    return text.isdecimal() and len(text) < 19 and int(text) >= least


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
    metrics = folder / "metrics.csv"
    rows: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in read_metrics(metrics) if metrics.exists() else []:
        rows.setdefault((row["trainer"], int(row["seed"])), []).append(row)
    sidecars = {}
    for path in sorted((folder / "records").glob("*.json")):
        record, types, _ = _read_sidecar(path)
        sidecars[record.trainer, record.seed] = record, types
    records = []
    for trainer, seed in [*rows, *(key for key in sidecars if key not in rows)]:  # no row: interrupted in epoch 1
        if (trainer, seed) not in sidecars:
            raise RecordError(f"{metrics}: there are no fingerprints of {trainer!r}, seed {seed}")
        record, types = sidecars[trainer, seed]
        logs = {int(row["epoch"]): _logs(row, types, metrics) for row in rows.get((trainer, seed), [])}
        for row in rows.get((trainer, seed), []):
            if record.rows.get(int(row["epoch"])) != _checksum(_filled(row)):
                raise RecordError(f"{metrics}: damaged, epoch {row['epoch']} of {trainer!r} is not what was written")
        ended = record.steps["epoch"][record.steps["step"] == EPOCH_END].tolist()
        for epoch in sorted(logs.keys() - ended):
            raise RecordError(f"{_steps_path(record.stem)}: damaged, it lacks the end of epoch {epoch}")
        records.append(replace(record, logs=logs))
    return records


_Types = dict[int, dict[str, str]]
"""By epoch, the float type of each reported metric."""


def recover(folder: Path) -> list[str]:
    """Make a run's files whole again that a process left in the middle of a write.

    Returns:
        What was mended, in words.

    Raises:
        RecordError: for damage that no interruption leaves behind.
    """
    told = []
    metrics = folder / "metrics.csv"
    for attempt in range(2):
        try:
            if metrics.exists():
                read_metrics(metrics)
            break
        except RecordError:
            whole = metrics.read_bytes().rstrip(b"\n")
            whole = whole[: whole.rfind(b"\n") + 1]
            if attempt or b"\n" not in whole:
                raise
            replace_file(metrics, whole)
            told.append(f"{metrics}: the last line was damaged, and is written again")
    for sidecar in (folder / "records").glob("*.json"):
        *_, cut = _read_sidecar(sidecar, damaged_tail=True)
        if cut:
            path = _steps_path(sidecar.with_suffix(""))
            with storing(path):
                os.truncate(path, path.stat().st_size - cut)
    return told


def kept(folder: Path, trainer: str, seed: int) -> tuple[int, End | None]:
    """How far a trainer's records go without a gap: the last such epoch, and how it ended, if it has.

    Raises:
        RecordError: when they are damaged (see ``recover``).
    """
    sidecar = _sidecar_path(stem_of(folder, trainer, seed))
    if not sidecar.exists():
        return 0, None
    record, types, _ = _read_sidecar(sidecar)
    rows = set(MetricsFile(folder / "metrics.csv").epochs(trainer, seed))
    ends = set(record.steps["epoch"][record.steps["step"] == EPOCH_END].tolist())
    epoch = 0
    while epoch + 1 in rows & ends & types.keys():
        epoch += 1
    return epoch, record.end if epoch == max(types, default=0) else None


def hashes_at(folder: Path, trainer: str, seed: int, epoch: int) -> np.ndarray | None:
    """The hashes of all weights at an epoch's end, uint64 ``[variables, replicas]``; None where there are none."""
    record, _, _ = _read_sidecar(_sidecar_path(stem_of(folder, trainer, seed)))
    row = record.by_place().get((epoch, EPOCH_END))
    return None if row is None else np.asarray(row["hashes"])


def _read_sidecar(path: Path, *, damaged_tail: bool = False) -> tuple[Record, _Types, int]:
    """A trainer's record, still without its logs, the float types to read those with, and bytes of half a fingerprint.

    Raises:
        RecordError: when it is damaged; half a fingerprint at the end is let pass with ``damaged_tail``.
    """
    content = read_json(path)
    try:
        trainer, seed = str(content["trainer"]), int(content["seed"])
        variables = tuple(Variable(v["name"], tuple(v["shape"]), v["dtype"]) for v in content["variables"])
        dtype = step_dtype(len(variables), content["replicas"])
        types = {int(epoch): dict(kinds) for epoch, kinds in content["reported"].items()}
        if not {kind for kinds in types.values() for kind in kinds.values()} <= {"float32", "float64"}:
            raise ValueError("a metric is neither float32 nor float64")
        rows = {int(epoch): str(text) for epoch, text in content["rows_sha256"].items()}
        end = End(**content["end"]) if "end" in content else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path}: damaged ({error})") from None
    stem = path.with_suffix("")
    try:
        fingerprints = _steps_path(stem).read_bytes() if _steps_path(stem).exists() else b""
    except OSError as error:
        raise RecordError(f"{_steps_path(stem)}: cannot be read ({error})") from None
    half = len(fingerprints) % dtype.itemsize
    if half and not damaged_tail:
        raise RecordError(f"{_steps_path(stem)}: damaged, its size is not a whole number of fingerprints")
    steps = np.frombuffer(fingerprints, dtype, count=len(fingerprints) // dtype.itemsize)
    return Record(trainer, seed, variables, steps, {}, stem, end, rows), types, half


def _logs(row: Mapping[str, str], types: _Types, path: Path) -> dict[str, float]:
    """The metrics of one row, each read as its own type: the values reported, not the nearest float64s."""
    kinds = types.get(int(row["epoch"]), {})
    if {name for name, text in row.items() if text} - {*KEY_COLUMNS, *TIME_COLUMNS} != kinds.keys():
        raise RecordError(
            f"{path}: damaged, epoch {row['epoch']} of {row['trainer']!r} has other metrics than were reported"
        )
    with np.errstate(over="ignore"):
        return {name: float(np.dtype(kind).type(row[name])) for name, kind in kinds.items()}
