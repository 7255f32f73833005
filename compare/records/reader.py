"""Reading a run's records, and repairing its files after an interruption."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from compare.naming import shown_path
from compare.records.costs import COSTS, read_costs
from compare.records.files import checksum, read_checked, replace_file, storing
from compare.records.metrics_csv import KEY_COLUMNS, TIME_COLUMNS, MetricsFile, filled, read_metrics
from compare.records.model import EPOCH_END, End, Record, RecordError, Variable, read_file, stem_of, step_dtype
from compare.records.run_json import identity_of, run_of

SCHEMA = 2
"""The version of the sidecar's format."""


def steps_path(stem: Path) -> Path:
    """The file with the fingerprints."""
    return stem.with_name(f"{stem.name}.steps")


def sidecar_path(stem: Path) -> Path:
    """The JSON file that describes the fingerprints and the reported metrics."""
    return stem.with_name(f"{stem.name}.json")


def replicas(record: Record) -> int:
    """The number of replicas that were fingerprinted."""
    return int(record.steps.dtype["hashes"].shape[1])


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
            raise RecordError(metrics, f"there are no fingerprints of {key[0]!r}, seed {key[1]}")
        sidecar = sidecars[key]
        record = replace(sidecar.record, steps=sidecar.steps())
        logs = {int(row["epoch"]): _logs(row, sidecar.types, metrics) for row in rows.get(key, [])}
        ended = record.steps["epoch"][record.steps["step"] == EPOCH_END].tolist()
        for epoch in sorted(logs.keys() - ended):
            raise RecordError(steps_path(record.stem), f"damaged, the end of epoch {epoch} is missing")
        records.append(replace(record, logs=logs))
    return records


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Reads the rows of a run's ``metrics.csv``, and verifies them by the run's records if it has some.

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
    for key, sidecar in sidecars.items():
        sums, trainer, seed = sidecar.record.rows, *key
        found = {int(row["epoch"]): row for row in rows.get(key, [])}
        for epoch, row in found.items():
            if sums.get(epoch) != checksum(filled(row)):
                raise RecordError(
                    metrics, f"damaged, the row of {trainer!r}, seed {seed}, epoch {epoch} does not match its checksum"
                )
        # The last rows may be missing before training has ended: it was killed, or is about to be resumed.
        last = max(sums if sidecar.record.end is not None else found, default=0)
        for epoch in sorted(sums.keys() - found.keys()) if complete else ():
            if epoch <= last:
                raise RecordError(metrics, f"damaged, the row of {trainer!r}, seed {seed}, epoch {epoch} is missing")
    return rows


_Key = tuple[str, int]
"""A trainer and a seed."""
_Types = dict[int, dict[str, str]]
"""By epoch, the float type of each reported metric."""


def recover(folder: Path) -> list[str]:
    """Repairs files that a process left in the middle of a write, and removes a damaged ``costs.json``.

    Returns:
        One message per repair.

    Raises:
        RecordError: if a file is damaged in a way that an interrupted write cannot explain.
    """
    repairs = []
    metrics = folder / "metrics.csv"
    for attempt in range(2):
        try:
            if metrics.exists():
                read_metrics(metrics)
            break
        except RecordError:
            try:
                content = read_file(metrics).rstrip(b"\n")
            except OSError:
                content = b""
            complete = content[: content.rfind(b"\n") + 1]
            if attempt or b"\n" not in complete:
                raise
            replace_file(metrics, complete)
            repairs.append(f"{metrics}: the last line was damaged and removed; its epoch will be written again")
    sidecars = _sidecars(folder)
    _verified(folder, sidecars, complete=False)
    for sidecar in sidecars.values():
        sidecar.steps()
    try:
        read_costs(folder / COSTS)
    except RecordError:
        with storing(folder / COSTS):
            (folder / COSTS).unlink()
        repairs.append(f"{folder / COSTS} was damaged and removed; the costs measured so far are lost")
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
    while epoch + 1 in rows & ends & sidecar.types.keys():
        epoch += 1
    return epoch, sidecar.record.end if epoch == max(sidecar.types, default=0) else None


def hashes_at(folder: Path, trainer: str, seed: int, epoch: int) -> np.ndarray | None:
    """The hashes of all weights at the end of an epoch, uint64 ``[variables, replicas]``; None if not recorded."""
    sidecar = read_sidecar(sidecar_path(stem_of(folder, trainer, seed)))
    steps = sidecar.steps()
    rows = steps[(steps["epoch"] == epoch) & (steps["step"] == EPOCH_END)]
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
    """What the JSON file beside the fingerprints says.

    Attributes:
        record: the record without its fingerprints and its logs.
        types: by epoch, the float type of each reported metric.
        run: the identity of the run; None if there is no ``run.json``.
    """

    record: Record
    types: _Types
    blocks: Sequence[Block]
    run: str | None = None

    def steps(self) -> np.ndarray:
        """Reads the fingerprints; what follows them in the file, of a write that was interrupted, is left out.

        Raises:
            RecordError: if the file is damaged.
        """
        path, dtype = steps_path(self.record.stem), self.record.steps.dtype
        try:
            content = memoryview(read_file(path) if os.path.lexists(path) else b"")
        except OSError as error:
            raise RecordError(path, f"cannot be read ({error})") from None
        at = 0
        for number, block in enumerate(self.blocks, start=1):
            part = content[at : at + block.size]
            if len(part) < block.size:
                raise RecordError(path, f"damaged, the end of epoch {block.epoch} is missing")
            if zlib.crc32(part) != block.crc32:
                raise RecordError(path, f"damaged, block {number} does not match its checksum")
            at += block.size
        return np.frombuffer(content[:at], dtype)

    def blocks_up_to(self, epoch: int) -> list[Block]:
        """The blocks of the epochs up to ``epoch``."""
        return [block for block in self.blocks if block.epoch <= epoch]


def _sidecars(folder: Path) -> dict[_Key, Sidecar]:
    sidecars = [read_sidecar(path) for path in sorted((folder / "records").glob("*.json"))]
    identity, run = identity_of(folder) if sidecars else None, run_of(folder)
    for sidecar in sidecars if run.exists() else ():
        if sidecar.run != identity:
            metrics = shown_path(folder / "metrics.csv")
            raise RecordError(
                sidecar_path(sidecar.record.stem), f"belongs to another run than {shown_path(run)}, as may {metrics}"
            )
    return {(sidecar.record.trainer, sidecar.record.seed): sidecar for sidecar in sidecars}


def read_sidecar(path: Path) -> Sidecar:
    """Reads the JSON file beside the fingerprints.

    Raises:
        RecordError: if the file is damaged.
    """
    content = read_checked(path)
    try:
        trainer, seed = str(content["trainer"]), int(content["seed"])
        variables = tuple(Variable(v["name"], tuple(v["shape"]), v["dtype"]) for v in content["variables"])
        dtype = step_dtype(len(variables), content["replicas"])
        types = {int(epoch): dict(kinds) for epoch, kinds in content["reported"].items()}
        if not {kind for kinds in types.values() for kind in kinds.values()} <= {"float32", "float64"}:
            raise ValueError("a metric is neither float32 nor float64")
        rows = {int(epoch): str(text) for epoch, text in content["rows_sha256"].items()}
        end = End(**content["end"]) if "end" in content else None
        blocks = [Block(**block) for block in content["blocks"]]
        weights = {int(epoch): int(crc32) for epoch, crc32 in content["weights_crc32"].items()}
        if sum(block.size for block in blocks) % dtype.itemsize:
            raise ValueError("the size of the blocks is not a whole number of fingerprints")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(path, f"damaged ({error})") from None
    stem = path.with_suffix("")
    if stem.name != stem_of(Path(), trainer, seed).name:
        raise RecordError(path, f"damaged, it holds the records of {trainer!r}, seed {seed}")
    record = Record(trainer, seed, variables, np.zeros(0, dtype), {}, stem, end, rows, weights)
    return Sidecar(record, types, blocks, content.get("run"))


def _logs(row: Mapping[str, str], types: _Types, path: Path) -> dict[str, float]:
    """The metrics of one row, each parsed as its reported float type, so that the values are exact."""
    kinds = types.get(int(row["epoch"]), {})
    if {name for name, text in row.items() if text} - {*KEY_COLUMNS, *TIME_COLUMNS} != kinds.keys():
        raise RecordError(
            path, f"damaged, epoch {row['epoch']} of {row['trainer']!r} does not have the metrics that were reported"
        )
    with np.errstate(over="ignore"):
        return {name: float(np.dtype(kind).type(row[name])) for name, kind in kinds.items()}
