"""How far apart two runs' weights are after every step, and how far rounding alone drives them; no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from compare.records import EPOCH_END, INITIAL, Place, Record, RecordError, in_time, read_records
from compare.verdict.rounding import units_of

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""By dtype, half the relative distance of neighbouring numbers, at its largest: the error of one rounding."""


@dataclass(frozen=True)
class WeightGaps:
    """The gap between two runs, place by place.

    Gaps are estimates, from the recorded projections, of the Euclidean norm of the difference of all weights.

    Attributes:
        seed: of both runs.
        places: (epoch, step) of each; ``EPOCH_END`` as step where one side does not tell its steps.
        gaps: float64 ``[places]``; 0 where all weights are equal, bit for bit, and NaN where either has no numbers.
        equal: bool ``[places]``, whether all weights are equal, bit for bit, on every replica.
        noise: float64 ``[places]``, the largest gap of any noise twin so far; NaN before the first and without any.
        rounding: float64 ``[places]``, the gap that one rounding of every weight may make.
    """

    seed: int
    places: tuple[Place, ...]
    gaps: np.ndarray
    equal: np.ndarray
    noise: np.ndarray
    rounding: np.ndarray


def gaps_of(folder: Path, verdict: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str, WeightGaps]]:
    """The gaps of every comparison of a run: its entry in ``verdict.json``, the reference, the gaps.

    A comparison is left out where the records of one side are not there, or not any more.

    Args:
        folder: the run's.
        verdict: the content of its ``verdict.json``.
    """
    records = _recorded(folder)
    first = min((seed for _, seed in records), default=0)
    found = []
    for entry in verdict.get("comparisons", ()):
        seed, candidate, against = entry.get("seed", first), entry["candidate"], entry.get("against")
        name = f"{candidate} of {against}" if against else verdict["reference"]
        theirs = records.get((candidate, seed))
        if against:
            reference, anchor = _recorded(Path(against)).get((candidate, seed)), theirs
        else:
            reference = anchor = records.get((verdict["reference"], seed))
        if reference is None or theirs is None:
            continue
        twins = folder / "twins" / (quote(candidate, safe="") + (" against" if against else ""))
        gaps = weight_gaps(reference, theirs, read_records(twins) if twins.exists() else [], anchor)
        if gaps is not None:
            found.append((entry, name, gaps))
    return found


def _recorded(folder: Path) -> dict[tuple[str, int], Record]:
    """By trainer and seed; nothing for a run that was copied without its records."""
    try:
        return {(record.trainer, record.seed): record for record in read_records(folder)}
    except RecordError:
        return {}


def weight_gaps(
    reference: Record, candidate: Record, twins: Sequence[Record] = (), anchor: Record | None = None
) -> WeightGaps | None:
    """Hold two records against each other at every place that both have; None where there is none.

    Args:
        reference: one side.
        candidate: the other.
        twins: noise twins of ``anchor``.
        anchor: the run that the twins are twins of; the reference by default.
    """
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return None
    ours, theirs, base = (_rows(record) for record in (reference, candidate, anchor or reference))
    both = sorted(ours.keys() & theirs.keys(), key=in_time)
    places = [place for place in both if place[1] > INITIAL or place == (1, INITIAL)]
    if not any(step > INITIAL for _, step in places):
        places = [place for place in both if place[1] == EPOCH_END or place == (1, INITIAL)]
    if not places:
        return None
    a, b = _at(reference, ours, places), _at(candidate, theirs, places)
    hashes = a["hashes"][:, :, :, np.newaxis] == b["hashes"][:, :, np.newaxis, :]
    if a["hashes"].shape == b["hashes"].shape:
        hashes = a["hashes"] == b["hashes"]
    equal = hashes.reshape(len(places), -1).all(axis=1)
    noise = np.full(len(places), np.nan)
    for twin in twins:
        its = _rows(twin)
        at = [i for i, place in enumerate(places) if place in its and place in base]
        common = [places[i] for i in at]
        if common:
            seen = _distance(_at(anchor or reference, base, common), _at(twin, its, common))
            noise[at] = np.fmax(noise[at], np.where(seen > 0, seen / units_of(twin.trainer), np.nan))
    units = np.array([UNIT.get(variable.dtype, 0.0) for variable in reference.variables])
    norms = np.sqrt(np.mean(np.square(a["projections"]), axis=2))
    with np.errstate(over="ignore", invalid="ignore"):
        rounding = np.sqrt(np.sum((norms * units) ** 2, axis=1))
    return WeightGaps(
        candidate.seed, tuple(places), np.where(equal, 0.0, _distance(a, b)), equal, np.fmax.accumulate(noise), rounding
    )


def _rows(record: Record) -> dict[Place, int]:
    """Place to number of the row; the last one counts."""
    both = zip(record.steps["epoch"].tolist(), record.steps["step"].tolist(), strict=True)
    return {place: row for row, place in enumerate(both)}


def _at(record: Record, rows: dict[Place, int], places: Sequence[Place]) -> np.ndarray:
    return record.steps[[rows[place] for place in places]]


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 ``[places]``: the root of the sum over variables of the squared, estimated norms."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.mean(np.square(a["projections"] - b["projections"]), axis=2)
        distance = np.sqrt(np.sum(squares, axis=1))
    return np.where(np.isfinite(distance), distance, np.nan)
