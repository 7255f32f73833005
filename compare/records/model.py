"""What a run leaves behind, as plain values: fingerprints of all weights, and the numbers of each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def stem_of(folder: Path, trainer: str, seed: int) -> Path:
    """What the paths of a trainer's records in a run's folder begin with."""
    return folder / "records" / f"{quote(trainer, safe='')}-seed{seed}"


def weights_path(stem: Path, epoch: int) -> Path:
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
        path = weights_path(self.stem, epoch)
        if not path.exists():
            return None
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                return [arrays[f"{i}"] for i in range(len(self.variables))]
        except Exception as error:  # zipfile, zlib and NumPy raise half a dozen kinds for a damaged file
            raise RecordError(f"{path}: damaged ({error})") from None
