"""Reading a run's records, and repairing its files after an interruption."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from compare.naming import shown_path
from compare.records.codec import decode, encode, unwritten
from compare.records.files import checksum, read_checked, remove_unfinished, replace_file, write_checked
from compare.records.metrics_csv import KEY_COLUMNS, TIME_COLUMNS, MetricsFile, filled, read_metrics
from compare.records.model import (
    EPOCH_END,
    LARGEST,
    OF_WEIGHTS,
    End,
    Place,
    Record,
    RecordError,
    Variable,
    in_time,
    keys_of,
    read_arrays,
    read_part,
    read_weights,
    stem_of,
    step_dtype,
    weights_path,
)
from compare.records.run_json import identity_of, read_run, rows_checksum, run_of

SCHEMA = 2
"""The version of the sidecar's format."""


def steps_path(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}.steps")


def sidecar_path(stem: Path) -> Path:
    """The JSON file that describes the fingerprints and the reported metrics."""
    return stem.with_name(f"{stem.name}.json")


def initial_path(folder: Path, seed: object) -> Path:
    return folder / "records" / f"initial-seed{seed}.npz"


def initial_owner(folder: Path, seed: int) -> str:
    """What a file with initial weights says of whose they are."""
    return f"{identity_of(folder)}, seed {seed}"


def read_initial(folder: Path, seed: int) -> list[np.ndarray]:
    """Reads the initial weights of a seed.

    Raises:
        RecordError: if the file is missing or damaged, or belongs to another run.
    """
    path = initial_path(folder, seed)
    return read_arrays(path, read_part(path, OF_WEIGHTS), initial_owner(folder, seed))


def has_records(folder: Path) -> bool:
    """Whether a run's folder holds any records; runs may be copied without them."""
    return any((folder / "records").glob("*.json"))


def read_records(folder: Path) -> list[Record]:
    """Reads all records of a run, in the order in which the trainers first reported.

    Raises:
        RecordError: if a file is missing or damaged.
    """
    metrics = folder / "metrics.csv"
    sidecars = _sidecars(folder)
    rows = _verified(folder, sidecars)
    records = []
    for key in dict.fromkeys([*rows, *sidecars]):  # no row if interrupted in epoch 1
        if key not in sidecars:
            raise RecordError(sidecar_path(stem_of(folder, *key)), "is missing")
        sidecar = sidecars[key]
        steps, variables, stem = sidecar.steps(), sidecar.variables, sidecar.stem
        logs = _numbers(sidecar, rows.get(key, []), metrics)
        ended = steps["epoch"][steps["step"] == EPOCH_END].tolist()
        for epoch in sorted(logs.keys() - ended):
            raise RecordError(steps_path(stem), f"damaged, the end of epoch {epoch} is missing")
        records.append(Record(*key, variables, steps, logs, stem, sidecar.end, sidecar.weights_crc32))
    return records


def read_numbers(folder: Path) -> dict[_Key, dict[int, dict[str, float]]]:
    """The reported numbers of a run's records, by trainer and seed and by epoch, without what was seen of weights."""
    sidecars = _sidecars(folder)
    rows = _verified(folder, sidecars)
    return {key: _numbers(each, rows.get(key, []), folder / "metrics.csv") for key, each in sidecars.items()}


def read_costs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What the first training of each trainer cost beside its seconds per epoch (see ``Sidecar``)."""
    return {trainer: sidecar.costs for (trainer, _), sidecar in sorted(_sidecars(folder).items(), reverse=True)}


def _numbers(sidecar: Sidecar, rows: Sequence[Mapping[str, str]], path: Path) -> dict[int, dict[str, float]]:
    """By epoch, the metrics of its row, each parsed as its reported float type, so that the values are exact."""
    numbers = {}
    for row in rows:
        epoch = int(row["epoch"])
        kinds = sidecar.reported.get(epoch, {})
        if {name for name, text in row.items() if text} - {*KEY_COLUMNS, *TIME_COLUMNS} != kinds.keys():
            text = f"damaged, epoch {row['epoch']} of {row['trainer']!r} does not have the metrics that were reported"
            raise RecordError(path, text)
        with np.errstate(over="ignore"):
            numbers[epoch] = {name: float(np.dtype(kind).type(row[name])) for name, kind in kinds.items()}
    return numbers


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Reads the rows of a run's ``metrics.csv``, and verifies them by the run's records, or else by ``run.json``.

    Returns:
        The rows as text, a blank value means missing; none if there is no ``metrics.csv`` yet.

    Raises:
        RecordError: if the file is damaged, or a number was changed; the message names the row.
    """
    return [row for rows in _verified(folder, _sidecars(folder)).values() for row in rows]


def _verified(
    folder: Path, sidecars: Mapping[_Key, Sidecar], *, complete: bool = True
) -> dict[_Key, list[dict[str, str]]]:
    """The rows of ``metrics.csv`` by trainer and seed, each as it was reported; none is missing if ``complete``."""
    metrics = folder / "metrics.csv"
    rows: dict[_Key, list[dict[str, str]]] = {}
    for row in read_metrics(metrics) if os.path.lexists(metrics) else []:
        rows.setdefault((row["trainer"], int(row["seed"])), []).append(row)
    run = read_run(folder) if (folder / "run.json").exists() else {}
    judged, unknown = run.get("metrics_sha256"), rows.keys() - sidecars.keys()
    trainers, seeds = {*(run.get("trainers") or ()), *(name for name, _ in sidecars)}, {seed for _, seed in sidecars}
    foreign = [key for key in unknown if key[0] not in trainers or key[1] not in seeds]
    if foreign and sidecars and not complete:
        trainer, seed = min(foreign)
        raise RecordError(metrics, f"its rows of {trainer!r}, seed {seed} are of another run")
    if judged is None and unknown:  # copied without its records
        trainer, seed = min(unknown)
        if trainer in (run.get("trainers") or ()):
            text = f"is missing, and with it the checksums of the rows of {trainer!r} in metrics.csv"
            raise RecordError(sidecar_path(stem_of(folder, trainer, seed)), text)
        text = f"its rows of {trainer!r} match no checksum, neither in records nor in run.json"
        raise RecordError(metrics, text)
    for key, sidecar in sidecars.items():
        sums, trainer, seed = sidecar.rows_sha256, *key
        found = {int(row["epoch"]): row for row in rows.get(key, [])}
        for epoch, row in found.items():
            if sums.get(epoch) != checksum(filled(row)):
                raise RecordError(
                    metrics, f"damaged, the row of {trainer!r}, seed {seed}, epoch {epoch} does not match its checksum"
                )
        # The last rows may be missing before training has ended: it was killed, or is about to be resumed.
        last = max(sums if sidecar.end is not None else found, default=0)
        for epoch in sorted(sums.keys() - found.keys()) if complete else ():
            if epoch <= last:
                text = f"damaged, the row of {trainer!r}, seed {seed}, epoch {epoch} is missing"
                raise RecordError(metrics, text if os.path.lexists(metrics) else "is missing")
    if complete and judged is not None and judged != rows_checksum(metrics):
        raise RecordError(metrics, "damaged, its rows are not those that run.json knows")
    return rows


_Key = tuple[str, int]
"""A trainer and a seed."""


def recover(folder: Path, *, finished: bool = False) -> list[str]:
    """Repairs files that a process left in the middle of a write.

    A ``finished`` run has all rows of its records, and its last line was written whole.

    Returns:
        One message per repair.

    Raises:
        RecordError: if a file is damaged in a way that an interrupted write cannot explain.
    """
    repairs = []
    remove_unfinished(folder)
    metrics = folder / "metrics.csv"
    try:
        if metrics.exists():
            read_metrics(metrics)
    except RecordError as error:
        content = b"" if metrics.is_dir() else read_part(metrics).rstrip(b"\n")
        complete = content[: content.rfind(b"\n") + 1]
        if finished or b"\n" not in complete:
            raise
        try:
            read_metrics(metrics, complete)
        except RecordError:
            raise error from None
        replace_file(metrics, complete)
        repairs.append(f"{metrics}: the last line was damaged and removed; its epoch will be written again")
    sidecars = _sidecars(folder)
    if not metrics.exists() and any(sidecar.reported for sidecar in sidecars.values()):
        repairs.append(f"{metrics} is missing: what was trained is trained again")
    _verified(folder, sidecars, complete=finished)
    for sidecar in sidecars.values():
        sidecar.steps()
        for epoch, crc32 in sidecar.weights_crc32.items():
            read_weights(weights_path(sidecar.stem, epoch), crc32)
        if sidecar.variables and run_of(folder).exists():
            read_initial(folder, sidecar.seed)
    return repairs


def kept(folder: Path, trainer: str, seed: int) -> tuple[int, End | None]:
    """The last epoch up to which a trainer's records are complete, and how training ended, if it has.

    Raises:
        RecordError: if the records are damaged (see ``recover``).
    """
    path = sidecar_path(stem_of(folder, trainer, seed))
    if not path.exists():
        return 0, None
    sidecar = read_sidecar(path)
    steps = sidecar.steps()
    rows = set(MetricsFile(folder / "metrics.csv").epochs(trainer, seed))
    ends = set(steps["epoch"][steps["step"] == EPOCH_END].tolist())
    epoch = 0
    while epoch + 1 in rows & ends & sidecar.reported.keys():
        epoch += 1
    return epoch, sidecar.end if epoch == max(sidecar.reported, default=0) else None


def hashes_at(folder: Path, trainer: str, seed: int, place: Place) -> np.ndarray | None:
    """The hashes of all weights at a place, uint64 ``[variables, replicas]``; None if not recorded."""
    path = sidecar_path(stem_of(folder, trainer, seed))
    if not path.exists():
        return None
    steps = read_sidecar(path).steps()
    rows = steps[(steps["epoch"] == place[0]) & (steps["step"] == place[1])]
    return np.asarray(rows["hashes"][-1]) if len(rows) else None


@dataclass(frozen=True)
class Block:
    """One append to a file of fingerprints: the fingerprints of an epoch, or of its part before an interruption.

    Attributes:
        crc32: the CRC-32 of these bytes.
    """

    epoch: int
    size: int
    crc32: int

    @classmethod
    def of(cls, steps: np.ndarray) -> Block:
        """The block with these fingerprints, which are of one epoch."""
        content = steps.tobytes()
        return cls(int(steps["epoch"][-1]), len(content), zlib.crc32(content))


@dataclass(frozen=True)
class Sidecar:
    """The JSON file beside the fingerprints; its fields are the keys, in their order (see ``compare.records.codec``).

    Attributes:
        run: the identity of the run; None if there is no ``run.json``.
        reported: by epoch, the float type of each reported metric.
        rows_sha256: for each finished epoch, a checksum of its row of ``metrics.csv``.
        weights_crc32: for each epoch whose weights were kept, the CRC-32 of their file.
        end: how training ended; None if it has not.
        costs: beside the seconds per epoch, the duration of the first step and of a later step in seconds, the peak
            memory in bytes (None if unknown), and ``own_peak``: whether that covers only this training, else the time
            since the process started.
        stem: the common prefix of the paths of the files.
    """

    schema: int
    run: str | None
    trainer: str
    seed: int
    replicas: int
    variables: tuple[Variable, ...]
    reported: dict[int, dict[str, str]]
    rows_sha256: dict[int, str]
    weights_crc32: dict[int, int]
    blocks: tuple[Block, ...]
    end: End | None = None
    costs: dict[str, Any] = field(default_factory=dict)
    stem: Path = field(default=Path(), metadata=unwritten(Path()))

    @classmethod
    def of(cls, folder: Path, trainer: str, seed: int) -> Sidecar:
        """What is known of a trainer's records before its training begins."""
        return cls(
            SCHEMA, identity_of(folder), trainer, seed, 0, (), {}, {}, {}, (), stem=stem_of(folder, trainer, seed)
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        return step_dtype(len(self.variables), self.replicas)

    def steps(self) -> np.ndarray:
        """Reads the fingerprints; until training ends, a write that was interrupted may follow, which is left out.

        Raises:
            RecordError: if the file is damaged.
        """
        path, at = steps_path(self.stem), 0
        most = LARGEST + sum(block.size for block in self.blocks)
        content = memoryview(read_part(path, most) if self.blocks else b"")
        for number, block in enumerate(self.blocks, start=1):
            part = content[at : at + block.size]
            if len(part) < block.size:
                raise RecordError(path, f"damaged, the end of epoch {block.epoch} is missing")
            if zlib.crc32(part) != block.crc32:
                raise RecordError(path, f"damaged, block {number} does not match its checksum")
            at += block.size
        if self.end is not None and len(content) > at:
            raise RecordError(path, "damaged, something follows the end of training")
        return np.frombuffer(content[:at], self.dtype)

    def up_to(self, place: Place) -> Sidecar:
        """What it says of the training up to a place, before it ended."""

        def until(known: dict[int, Any]) -> dict[int, Any]:
            return {number: value for number, value in known.items() if in_time((number, EPOCH_END)) <= in_time(place)}

        ends = np.cumsum([block.size // self.dtype.itemsize for block in self.blocks], dtype=int)
        parts = [part[keys_of(part) <= in_time(place)] for part in np.split(self.steps(), ends)]
        return replace(
            self,
            reported=until(self.reported),
            rows_sha256=until(self.rows_sha256),
            weights_crc32=until(self.weights_crc32),
            blocks=tuple(Block.of(part) for part in parts if len(part)),
            end=None,
        )

    def write(self) -> None:
        """Writes the file; what is in other files counts from then on."""
        write_checked(sidecar_path(self.stem), encode(self))


def _sidecars(folder: Path) -> dict[_Key, Sidecar]:
    identity, run = identity_of(folder), run_of(folder)
    sidecars = [read_sidecar(path) for path in sorted((folder / "records").glob("*.json"))]
    for sidecar in sidecars:
        if sidecar.run != (identity if run.exists() else sidecars[0].run):
            metrics = shown_path(folder / "metrics.csv")
            raise RecordError(
                sidecar_path(sidecar.stem), f"belongs to another run than {shown_path(run)}, as may {metrics}"
            )
    return {(sidecar.trainer, sidecar.seed): sidecar for sidecar in sidecars}


def read_sidecar(path: Path) -> Sidecar:
    """Reads the JSON file beside the fingerprints.

    Raises:
        RecordError: if the file is damaged.
    """
    content = read_checked(path, SCHEMA)
    try:
        sidecar = replace(decode(Sidecar, content), stem=path.with_suffix(""))
        if not {kind for kinds in sidecar.reported.values() for kind in kinds.values()} <= {"float32", "float64"}:
            raise ValueError("a metric is neither float32 nor float64")
        if sum(block.size for block in sidecar.blocks) % sidecar.dtype.itemsize:
            raise ValueError("the size of the blocks is not a whole number of fingerprints")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(path, f"damaged ({error})") from None
    trainer, seed = sidecar.trainer, sidecar.seed
    if sidecar.stem.name != stem_of(Path(), trainer, seed).name:
        raise RecordError(path, f"damaged, it holds the records of {trainer!r}, seed {seed}")
    return sidecar
