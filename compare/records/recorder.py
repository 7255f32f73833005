"""The sink that writes a trainer's records to disk as each epoch ends."""

from __future__ import annotations

import glob
import io
import zlib
from collections import UserDict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from compare.records.costs import COSTS, add_costs
from compare.records.files import append_to_file, checksum, replace_file, storing, write_checked
from compare.records.metrics_csv import MetricsFile, is_float32
from compare.records.model import (
    EPOCH_END,
    AnyRecord,
    BuildRecord,
    End,
    EpochRecord,
    RecordError,
    Sink,
    StepRecord,
    Variable,
    read_arrays,
    read_file,
    stem_of,
    step_dtype,
    weights_path,
)
from compare.records.reader import SCHEMA, Block, read_sidecar, replicas, sidecar_path, steps_path
from compare.records.run_json import identity_of


class Recorder:
    """The sink that writes one trainer's records to disk.

    Args:
        metrics: the run's ``metrics.csv``, shared by all recorders of the run.
        live: also receives every record, after it was kept.
    """

    def __init__(
        self, folder: Path, metrics: MetricsFile, trainer: str, seed: int, live: Sink = lambda record: None
    ) -> None:
        self._metrics, self._live = metrics, live
        self._folder, self._trainer, self._seed = folder, trainer, seed
        self._run = identity_of(folder)
        self._stem = stem_of(folder, trainer, seed)
        with storing(self._stem):
            self._stem.parent.mkdir(exist_ok=True)
        self._variables: Sequence[Variable] = ()
        self._replicas = 0
        self._pending: list[StepRecord] = []
        self._reported: dict[int, dict[str, str]] = {}
        self._rows: dict[int, str] = {}
        self._blocks: list[Block] = []
        self._uncounted = False
        self._weights_crc32: dict[int, int] = {}

    def rewind(self, epoch: int) -> None:
        """Deletes all records after the end of ``epoch``; 0 deletes all records."""
        self._pending.clear()
        with self._metrics.lock:
            self._metrics.rewind(self._trainer, self._seed, epoch)
        for path in self._stem.parent.glob(f"{glob.escape(self._stem.name)}-epoch*.npz"):
            if int(path.stem.rpartition("epoch")[2]) > epoch:
                path.unlink()
        path = sidecar_path(self._stem)
        if not path.exists():
            return
        sidecar = read_sidecar(path)
        record = sidecar.record
        self._reported = {number: kinds for number, kinds in sidecar.types.items() if number <= epoch}
        self._rows = {number: text for number, text in record.rows.items() if number <= epoch}
        self._weights_crc32 = {number: crc32 for number, crc32 in record.weights_crc32.items() if number <= epoch}
        self._variables, self._replicas = record.variables, replicas(record)
        self._blocks = sidecar.blocks_up_to(epoch)
        self._write_sidecar()  # fingerprints in later blocks of the file do not count any more

    def keep_costs(self, costs: dict[str, Any]) -> None:
        """Writes the trainer's costs so far (see ``compare.engine.costs``)."""
        with self._metrics.lock:
            add_costs(self._folder / COSTS, self._trainer, self._seed, costs)

    def end(self, end: End) -> None:
        """Records that the trainer finished, and how."""
        self._append()
        self._write_sidecar(end)

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, BuildRecord):
            self._variables, self._replicas = record.variables, record.replicas
            self._write_sidecar()
        elif isinstance(record, StepRecord):
            self._pending.append(record)
            if record.step == EPOCH_END:
                # Weights may change once more after the last epoch was reported, at the end of training.
                self.flush() if record.epoch in self._reported else self._append()
        else:
            self._end_epoch(record)
        self._live(record)

    def _end_epoch(self, record: EpochRecord) -> None:
        if record.weights is not None:
            content = _npz(record.weights)
            self._weights_crc32[record.epoch] = zlib.crc32(content)
            replace_file(weights_path(self._stem, record.epoch), content)
        types = {name: "float32" if is_float32(value) else "float64" for name, value in record.logs.items()}
        row = self._metrics.row(self._trainer, self._seed, record)
        self._reported[record.epoch], self._rows[record.epoch] = types, checksum(row)
        self._write_sidecar()
        with self._metrics.lock:
            self._metrics.append(row)

    def flush(self) -> None:
        """Writes the fingerprints that do not count yet, for example those of an interrupted epoch."""
        self._append()
        if self._uncounted:
            self._write_sidecar()

    def _append(self) -> None:
        """Appends the fingerprints that are still in memory; they count once the sidecar, written next, says so."""
        if not self._pending:
            return
        block = np.zeros(len(self._pending), step_dtype(len(self._variables), self._replicas))
        for row, record in zip(block, self._pending, strict=True):
            row["epoch"], row["step"] = record.epoch, record.step
            row["hashes"], row["projections"] = record.hashes, record.projections
        append_to_file(steps_path(self._stem), block.tobytes(), after=sum(block.size for block in self._blocks))
        self._blocks.append(Block.of(block))
        self._uncounted = True
        self._pending.clear()

    def _write_sidecar(self, end: End | None = None) -> None:
        content = {
            "schema": SCHEMA,
            "run": self._run,
            "trainer": self._trainer,
            "seed": self._seed,
            "replicas": self._replicas,
            "variables": [{"name": v.name, "shape": v.shape, "dtype": v.dtype} for v in self._variables],
            "reported": {str(epoch): types for epoch, types in self._reported.items()},
            "rows_sha256": {str(epoch): text for epoch, text in self._rows.items()},
            "weights_crc32": {str(epoch): crc32 for epoch, crc32 in self._weights_crc32.items()},
            "blocks": [asdict(block) for block in self._blocks],
        }
        if end is not None:
            content["end"] = asdict(end)
        write_checked(sidecar_path(self._stem), content)
        self._uncounted = False


class InitialWeights(UserDict[int, list[np.ndarray]]):
    """The initial weights by seed, stored in the run's folder so that a resumed run starts from the same ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "records"
        super().__init__()
        for path in self._folder.glob("initial-seed*.npz"):
            try:
                seed, content = int(path.stem.removeprefix("initial-seed")), read_file(path)
            except (OSError, ValueError) as error:
                raise RecordError(path, f"cannot be read ({error})") from None
            self.data[seed] = read_arrays(path, content)

    def __setitem__(self, seed: int, weights: list[np.ndarray]) -> None:
        super().__setitem__(seed, weights)
        with storing(self._folder):
            self._folder.mkdir(exist_ok=True)
        replace_file(self._folder / f"initial-seed{seed}.npz", _npz(weights))


def _npz(arrays: Sequence[Any]) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **{f"{i}": _storable(np.asarray(array)) for i, array in enumerate(arrays)})
    return content.getvalue()


def _storable(weight: np.ndarray) -> np.ndarray:
    """The array in a dtype that ``.npz`` files support; bfloat16 is converted to float32, which is exact."""
    return weight.astype(np.float32) if weight.dtype.kind == "V" else weight
