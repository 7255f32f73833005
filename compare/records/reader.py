"""Reading a run's records, and repairing its files after an interruption."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from compare.records.files import checksum, read_file, read_json, replace_file, storing
from compare.records.metrics_csv import KEY_COLUMNS, TIME_COLUMNS, MetricsFile, filled, read_metrics
from compare.records.model import EPOCH_END, End, Record, RecordError, Variable, stem_of, step_dtype


def steps_path(stem: Path) -> Path:
    """The file with the fingerprints."""
    return stem.with_name(f"{stem.name}.steps")


def sidecar_path(stem: Path) -> Path:
    """The JSON file that describes the fingerprints and the reported metrics."""
    return stem.with_name(f"{stem.name}.json")


def replicas(record: Record) -> int:
    """The number of replicas that were fingerprinted."""
    return int(record.steps.dtype["hashes"].shape[1])


def read_records(folder: Path) -> list[Record]:
    """Reads all records of a run, in the order in which the trainers first reported.

    Raises:
        RecordError: if a file is missing or damaged.
    """
    metrics = folder / "metrics.csv"
    rows: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in read_metrics(metrics) if metrics.exists() else []:
        rows.setdefault((row["trainer"], int(row["seed"])), []).append(row)
    sidecars = {}
    for path in sorted((folder / "records").glob("*.json")):
        record, types, _ = read_sidecar(path)
        sidecars[record.trainer, record.seed] = record, types
    records = []
    for trainer, seed in [*rows, *(key for key in sidecars if key not in rows)]:  # no row if interrupted in epoch 1
        if (trainer, seed) not in sidecars:
            raise RecordError(f"{metrics}: there are no fingerprints of {trainer!r}, seed {seed}")
        record, types = sidecars[trainer, seed]
        logs = {int(row["epoch"]): _logs(row, types, metrics) for row in rows.get((trainer, seed), [])}
        for row in rows.get((trainer, seed), []):
            if record.rows.get(int(row["epoch"])) != checksum(filled(row)):
                raise RecordError(
                    f"{metrics}: damaged, epoch {row['epoch']} of {trainer!r} does not match its checksum"
                )
        ended = record.steps["epoch"][record.steps["step"] == EPOCH_END].tolist()
        for epoch in sorted(logs.keys() - ended):
            raise RecordError(f"{steps_path(record.stem)}: damaged, the end of epoch {epoch} is missing")
        records.append(replace(record, logs=logs))
    return records


_Types = dict[int, dict[str, str]]
"""By epoch, the float type of each reported metric."""


def recover(folder: Path) -> list[str]:
    """Repairs files that a process left in the middle of a write.

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
            content = metrics.read_bytes().rstrip(b"\n")
            complete = content[: content.rfind(b"\n") + 1]
            if attempt or b"\n" not in complete:
                raise
            replace_file(metrics, complete)
            repairs.append(f"{metrics}: the last line was damaged and removed; its epoch will be written again")
    for sidecar in (folder / "records").glob("*.json"):
        *_, cut = read_sidecar(sidecar, damaged_tail=True)
        if cut:
            path = steps_path(sidecar.with_suffix(""))
            with storing(path):
                os.truncate(path, path.stat().st_size - cut)
    return repairs


def kept(folder: Path, trainer: str, seed: int) -> tuple[int, End | None]:
    """The last epoch up to which a trainer's records are complete, and how training ended, if it has.

    Raises:
        RecordError: if the records are damaged (see ``recover``).
    """
    sidecar = sidecar_path(stem_of(folder, trainer, seed))
    if not sidecar.exists():
        return 0, None
    record, types, _ = read_sidecar(sidecar)
    rows = set(MetricsFile(folder / "metrics.csv").epochs(trainer, seed))
    ends = set(record.steps["epoch"][record.steps["step"] == EPOCH_END].tolist())
    epoch = 0
    while epoch + 1 in rows & ends & types.keys():
        epoch += 1
    return epoch, record.end if epoch == max(types, default=0) else None


def hashes_at(folder: Path, trainer: str, seed: int, epoch: int) -> np.ndarray | None:
    """The hashes of all weights at the end of an epoch, uint64 ``[variables, replicas]``; None if not recorded."""
    record, _, _ = read_sidecar(sidecar_path(stem_of(folder, trainer, seed)))
    row = record.by_place().get((epoch, EPOCH_END))
    return None if row is None else np.asarray(row["hashes"])


def read_sidecar(path: Path, *, damaged_tail: bool = False) -> tuple[Record, _Types, int]:
    """Reads a sidecar and its fingerprints.

    Args:
        path: the sidecar.
        damaged_tail: whether to accept an incomplete fingerprint at the end of the file.

    Returns:
        The record without its logs, the float type of each reported metric, and the size of an incomplete
        fingerprint at the end of the file, in bytes.

    Raises:
        RecordError: if the files are damaged.
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
        fingerprints = read_file(steps_path(stem)) if steps_path(stem).exists() else b""
    except OSError as error:
        raise RecordError(f"{steps_path(stem)}: cannot be read ({error})") from None
    tail = len(fingerprints) % dtype.itemsize
    if tail and not damaged_tail:
        raise RecordError(f"{steps_path(stem)}: damaged, its size is not a whole number of fingerprints")
    steps = np.frombuffer(fingerprints, dtype, count=len(fingerprints) // dtype.itemsize)
    return Record(trainer, seed, variables, steps, {}, stem, end, rows), types, tail


def _logs(row: Mapping[str, str], types: _Types, path: Path) -> dict[str, float]:
    """The metrics of one row, each parsed as its reported float type, so that the values are exact."""
    kinds = types.get(int(row["epoch"]), {})
    if {name for name, text in row.items() if text} - {*KEY_COLUMNS, *TIME_COLUMNS} != kinds.keys():
        raise RecordError(
            f"{path}: damaged, epoch {row['epoch']} of {row['trainer']!r} does not have the metrics that were reported"
        )
    with np.errstate(over="ignore"):
        return {name: float(np.dtype(kind).type(row[name])) for name, kind in kinds.items()}
