"""The weight gap of two runs after every step, and the gap that rounding alone causes; imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compare.naming import file_name
from compare.records import (
    EPOCH_END,
    INITIAL,
    Place,
    Record,
    RecordError,
    has_records,
    in_time,
    read_records,
    total_norm,
)
from compare.verdict.rounding import units_of

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""By dtype, the largest relative error of one rounding: half the distance between neighbouring numbers."""


@dataclass(frozen=True)
class GapSeries:
    """The weight gap between two runs at every place that both recorded.

    Gaps are estimates, from the recorded projections, of the Euclidean norm of the difference of all weights.

    Attributes:
        seed: the seed of both runs.
        places: the (epoch, step) pairs; the step is ``EPOCH_END`` if one side does not report its steps.
        gaps: float64 ``[places]``; 0 if all weights are equal, bit for bit, and NaN if a weight is not finite.
        equal: bool ``[places]``, whether all weights are equal, bit for bit, on every replica.
        noise: float64 ``[places]``, the largest gap of any noise twin up to that place; NaN without a twin.
        rounding: float64 ``[places]``, the largest gap that one rounding of every weight can cause.
    """

    seed: int
    places: tuple[Place, ...]
    gaps: np.ndarray
    equal: np.ndarray
    noise: np.ndarray
    rounding: np.ndarray


def reference_name(entry: Mapping[str, Any], reference: str) -> str:
    """What a candidate is compared with: the reference, or the candidate itself in another recorded run.

    Args:
        entry: one entry of ``comparisons`` in ``verdict.json``.
        reference: the reference trainer's name.
    """
    against = entry.get("against")
    return f"{entry['candidate']} of {against}" if against else str(entry.get("reference", reference))


def gaps_of(folder: Path, verdict: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str, GapSeries]]:
    """The weight gaps of every comparison of a run.

    A comparison is skipped if the folder does not contain the records of both sides, or those of another run, named by
    ``--against``, cannot be read any more.

    Args:
        folder: the run's folder.
        verdict: the content of its ``verdict.json``.

    Returns:
        For each comparison its entry in ``verdict.json``, the name of its reference, and the gaps.

    Raises:
        RecordError: if this run's records are damaged.
    """
    records = _records(folder)
    first = min((seed for _, seed in records), default=0)
    series = []
    for entry in verdict.get("comparisons", ()):
        seed, candidate, against = entry.get("seed", first), entry["candidate"], entry.get("against")
        record = records.get((candidate, seed))
        if against:
            try:
                reference, anchor = _records(Path(against)).get((candidate, seed)), record
            except RecordError:
                continue
        else:
            reference = anchor = records.get((entry.get("reference", verdict["reference"]), seed))
        if reference is None or record is None:
            continue
        twins = folder / "twins" / (file_name(candidate) + (" against" if against else ""))
        gaps = gap_series(reference, record, read_records(twins) if twins.exists() else [], anchor)
        if gaps is not None:
            series.append((entry, reference_name(entry, verdict["reference"]), gaps))
    return series


def _records(folder: Path) -> dict[tuple[str, int], Record]:
    """A run's records by trainer and seed; empty if the run was copied without them."""
    return {(record.trainer, record.seed): record for record in read_records(folder)} if has_records(folder) else {}


def gap_series(
    reference: Record, candidate: Record, twins: Sequence[Record] = (), anchor: Record | None = None
) -> GapSeries | None:
    """Computes the weight gap at every place that both records have.

    Args:
        reference: the record of the reference.
        candidate: the record of the candidate.
        twins: noise twins of ``anchor``.
        anchor: the run that the twins repeat; the reference by default.

    Returns:
        The gaps; None if the records have no place in common or the shapes of the weights differ.
    """
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return None
    reference_rows, candidate_rows, base = (_rows(record) for record in (reference, candidate, anchor or reference))
    both = sorted(reference_rows.keys() & candidate_rows.keys(), key=in_time)
    places = [place for place in both if place[1] > INITIAL or place == (1, INITIAL)]
    if not any(step > INITIAL for _, step in places):
        places = [place for place in both if place[1] == EPOCH_END or place == (1, INITIAL)]
    if not places:
        return None
    a, b = _at(reference, reference_rows, places), _at(candidate, candidate_rows, places)
    same = a["hashes"][:, :, :, np.newaxis] == b["hashes"][:, :, np.newaxis, :]
    if a["hashes"].shape == b["hashes"].shape:
        same = a["hashes"] == b["hashes"]
    equal = same.reshape(len(places), -1).all(axis=1)
    noise = np.full(len(places), np.nan)
    for twin in twins:
        twin_rows = _rows(twin)
        at = [i for i, place in enumerate(places) if place in twin_rows and place in base]
        common = [places[i] for i in at]
        if common:
            distance = _distance(_at(anchor or reference, base, common), _at(twin, twin_rows, common))
            noise[at] = np.fmax(noise[at], np.where(distance > 0, distance / units_of(twin.trainer), np.nan))
    units = np.array([UNIT.get(variable.dtype, 0.0) for variable in reference.variables])
    rounding = total_norm(a["projections"] * units[:, np.newaxis])
    return GapSeries(
        candidate.seed, tuple(places), np.where(equal, 0.0, _distance(a, b)), equal, np.fmax.accumulate(noise), rounding
    )


def _rows(record: Record) -> dict[Place, int]:
    """Maps each place to the index of its row; if a place has several rows, the last one is used."""
    places = zip(record.steps["epoch"].tolist(), record.steps["step"].tolist(), strict=True)
    return {place: row for row, place in enumerate(places)}


def _at(record: Record, rows: dict[Place, int], places: Sequence[Place]) -> np.ndarray:
    return record.steps[[rows[place] for place in places]]


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The estimated Euclidean norm of the difference of all weights, float64 ``[places]``; NaN if it is not finite."""
    distance = total_norm(a["projections"], b["projections"])
    return np.where(np.isfinite(distance), distance, np.nan)
