"""The sink that writes a trainer's records to disk as each epoch ends."""

from __future__ import annotations

import glob
import zlib
from collections import UserDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compare.records import reader
from compare.records.files import append_to_file, checksum, replace_file, storing
from compare.records.metrics_csv import MetricsFile, is_float32
from compare.records.model import (
    EPOCH_END,
    AnyRecord,
    BuildRecord,
    End,
    EpochRecord,
    Place,
    Sink,
    StepRecord,
    npz,
    rows_of,
    weights_path,
)


class Recorder:
    """The sink that writes one trainer's records to disk.

    Args:
        metrics: the run's ``metrics.csv``, shared by all recorders of the run.
        live: also receives every record, after it was kept.
    """

    def __init__(
        self, folder: Path, metrics: MetricsFile, trainer: str, seed: int, live: Sink = lambda record: None
    ) -> None:
        self.metrics, self._live = metrics, live
        self._trainer, self._seed = trainer, seed
        self._sidecar = reader.Sidecar.of(folder, trainer, seed)
        self._stem = self._sidecar.stem
        with storing(self._stem):
            self._stem.parent.mkdir(exist_ok=True)
        self._pending: list[StepRecord] = []
        self._uncounted = False

    def rewind(self, place: Place) -> None:
        """Deletes all records after a place; ``BEGINNING`` deletes all records."""
        epoch = place[0] - (place[1] != EPOCH_END)
        self._pending.clear()
        with self.metrics.lock:
            self.metrics.rewind(self._trainer, self._seed, epoch)
        sidecar = reader.sidecar_path(self._stem)
        if sidecar.exists():
            self._sidecar = replace(reader.read_sidecar(sidecar).up_to(place), run=self._sidecar.run)
            self._write_sidecar()  # fingerprints in later blocks of the file do not count any more
            if blocks := self._sidecar.blocks:
                append_to_file(reader.steps_path(self._stem), b"", after=sum(block.size for block in blocks))
        for path in self._stem.parent.glob(f"{glob.escape(self._stem.name)}-epoch*.npz"):
            if int(path.stem.rpartition("epoch")[2]) > epoch:
                path.unlink()  # after the file that counts on them

    def keep_costs(self, costs: dict[str, Any]) -> None:
        """Writes the trainer's costs so far (see ``compare.engine.costs``)."""
        self._write_sidecar(costs=costs)

    def end(self, end: End) -> None:
        self._append()
        self._write_sidecar(end=end)

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, BuildRecord):
            self._write_sidecar(variables=record.variables, replicas=record.replicas)
        elif isinstance(record, StepRecord):
            self._pending.append(record)
            if record.step == EPOCH_END:
                # Weights may change once more after the last epoch was reported, at the end of training.
                self.flush() if record.epoch in self._sidecar.reported else self._append()
        else:
            self._end_epoch(record)
        self._live(record)

    def _end_epoch(self, record: EpochRecord) -> None:
        known, epoch = self._sidecar, record.epoch
        weights = known.weights_crc32
        if record.weights is not None:
            content = npz(record.weights)
            weights = weights | {epoch: zlib.crc32(content)}
            replace_file(weights_path(self._stem, epoch), content)
        types = {name: "float32" if is_float32(value) else "float64" for name, value in record.logs.items()}
        row = self.metrics.row(self._trainer, self._seed, record)
        self._write_sidecar(
            reported=known.reported | {epoch: types},
            rows_sha256=known.rows_sha256 | {epoch: checksum(row)},
            weights_crc32=weights,
        )
        with self.metrics.lock:
            self.metrics.append(row)

    def flush(self) -> None:
        """Writes the fingerprints that do not count yet, for example those of an interrupted epoch."""
        self._append()
        if self._uncounted:
            self._write_sidecar()

    def _append(self) -> None:
        """Appends the fingerprints that are still in memory; they count once the sidecar, written next, says so."""
        if not self._pending:
            return
        block = rows_of(self._pending, self._sidecar.dtype)
        blocks = self._sidecar.blocks
        append_to_file(reader.steps_path(self._stem), block.tobytes(), after=sum(block.size for block in blocks))
        self._sidecar = replace(self._sidecar, blocks=(*blocks, reader.Block.of(block)))
        self._uncounted = True
        self._pending.clear()

    def _write_sidecar(self, **changes: Any) -> None:
        self._sidecar = replace(self._sidecar, **changes)
        self._sidecar.write()
        self._uncounted = False


class InitialWeights(UserDict[int, list[np.ndarray]]):
    """The initial weights by seed, stored in the run's folder so that a resumed run starts from the same ones.

    Raises:
        RecordError: if a file is damaged, or belongs to another run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__()
        for path in (folder / "records").glob("initial-seed*.npz"):
            if (seed := path.stem.removeprefix("initial-seed")).isdecimal():
                self.data[int(seed)] = reader.read_initial(folder, int(seed))

    def __setitem__(self, seed: int, weights: list[np.ndarray]) -> None:
        super().__setitem__(seed, weights)
        path = reader.initial_path(self._folder, seed)
        with storing(path.parent):
            path.parent.mkdir(exist_ok=True)
        replace_file(path, npz(weights, reader.initial_owner(self._folder, seed)))
