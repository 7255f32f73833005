"""The weight gap of two runs after every step, and the gap that rounding alone causes; imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compare.records.model import (
    EPOCH_END,
    INITIAL,
    Record,
    RecordError,
    in_blocks,
    in_time,
    places_of,
    total_norm,
    variable_norms,
)
from compare.records.reader import has_records, read_records
from compare.verdict.exact import paired_steps, unequal
from compare.verdict.model import Comparison, Verdict
from compare.verdict.rounding import unit_in_last_place, units_of


@dataclass(frozen=True)
class GapSeries:
    """The weight gap between two runs at every place that both recorded.

    Gaps are estimates, from the recorded projections, of the Euclidean norm of the difference of all weights.

    Attributes:
        epochs: the epochs of these places, int32 ``[places]``.
        steps: their steps, int32 ``[places]``; ``EPOCH_END`` if one side does not report its steps.
        gaps: float64 ``[places]``; 0 if all weights are equal, bit for bit, and NaN if a weight is not finite.
        equal: bool ``[places]``, whether all weights are equal, bit for bit, on every replica.
        noise: float64 ``[places]``, the largest gap of any noise twin up to that place; NaN without a twin.
        rounding: float64 ``[places]``, the largest gap that one rounding of every weight can cause.
        by_variable: float32 ``[places, variables]``, the gap of each variable alone: 0 if it is equal, bit for bit, on
            every replica, and NaN if one of its elements is not finite.
    """

    seed: int
    epochs: np.ndarray
    steps: np.ndarray
    gaps: np.ndarray
    equal: np.ndarray
    noise: np.ndarray
    rounding: np.ndarray
    by_variable: np.ndarray
    variables: Sequence[str]

    @property
    def places(self) -> np.ndarray:
        """Their sort keys, int64 ``[places]`` (see ``in_time``)."""
        return np.asarray(in_time((self.epochs.astype(np.int64), self.steps.astype(np.int64))))

    @property
    def first(self) -> int:
        """The number of the first place: 0 for the initial weights, else 1, so that step n is number n."""
        return 0 if self.steps[0] == INITIAL else 1

    @property
    def last(self) -> int:
        return self.first + len(self.steps) - 1

    def place_name(self, index: int) -> str:
        """The place with this index, from 0, in words."""
        epoch, step = int(self.epochs[index]), int(self.steps[index])
        if step == EPOCH_END:
            return f"end of epoch {epoch}"
        return "before the first step" if step == INITIAL else f"epoch {epoch}, step {step:,}"


def reference_name(comparison: Comparison, reference: str) -> str:
    """What a candidate is compared with: the reference, or the candidate itself in another recorded run."""
    if comparison.against:
        return f"{comparison.candidate} of {comparison.recorded}"
    return comparison.reference or reference


def gaps_of(folder: Path, verdict: Verdict | None) -> list[tuple[Comparison, str, GapSeries]]:
    """Every comparison of a run, with the name of its reference and the weight gaps.

    A comparison is skipped if the folder does not contain the records of both sides, or those of another run, named by
    ``--baseline``, cannot be read any more.
    """
    if verdict is None:
        return []
    records = _records(folder)
    first = min((seed for _, seed in records), default=0)
    series = []
    for each in verdict.comparisons:
        seed, candidate, against = first if each.seed is None else each.seed, each.candidate, each.against
        record = records.get((candidate, seed))
        try:
            others = _records(Path(against)) if against else records
        except RecordError:
            continue
        reference = others.get((candidate if against else reference_name(each, verdict.reference), seed))
        if reference is None or record is None:
            continue
        reference, record = paired_steps(reference, record)  # as they were judged
        anchor = record if against else reference
        twins = folder / "twins" / each.twins
        gaps = gap_series(reference, record, read_records(twins) if twins.exists() else [], anchor)
        if gaps is not None:
            series.append((each, reference_name(each, verdict.reference), gaps))
    return series


def _records(folder: Path) -> dict[tuple[str, int], Record]:
    """A run's records by trainer and seed; empty if the run was copied without them."""
    return {(record.trainer, record.seed): record for record in read_records(folder)} if has_records(folder) else {}


def gap_series(
    reference: Record, candidate: Record, twins: Sequence[Record] = (), anchor: Record | None = None
) -> GapSeries | None:
    """Computes the weight gap at every place that both records have; ``twins`` repeat ``anchor``, or the reference.

    None if the records have no place in common or the shapes of the weights differ.
    """
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return None
    keys = np.intersect1d(reference.keys, candidate.keys, assume_unique=True)
    _, steps = places_of(keys)
    kept = steps > INITIAL if (steps > INITIAL).any() else steps == EPOCH_END
    keys = keys[kept | (keys == in_time((1, INITIAL)))]
    if not len(keys):
        return None
    units = unit_in_last_place(reference.variables) / 2  # the largest relative error of one rounding
    parts = [_part(reference, candidate, twins, anchor or reference, units, part) for part in in_blocks(keys)]
    gaps, equal, noise, rounding, by_variable = map(np.concatenate, zip(*parts, strict=True))
    names = [variable.name for variable in reference.variables]
    noise = np.fmax.accumulate(noise)
    return GapSeries(candidate.seed, *places_of(keys), gaps, equal, noise, rounding, by_variable, names)


def _part(
    reference: Record, candidate: Record, twins: Sequence[Record], anchor: Record, units: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The arrays of ``GapSeries`` from ``gaps`` to ``by_variable`` at some places; the noise at each alone."""
    a, b = reference.at(keys), candidate.at(keys)
    equal_variables = ~unequal(a["hashes"], b["hashes"])
    equal = np.asarray(equal_variables.all(axis=1))
    noise = np.full(len(keys), np.nan)
    for twin in twins:
        has = twin.has(keys) & anchor.has(keys)
        distance = _distance(anchor.at(keys[has]), twin.at(keys[has]))
        noise[has] = np.fmax(noise[has], np.where(distance > 0, distance / units_of(twin.trainer), np.nan))
    rounding = total_norm(a["projections"] * units[:, np.newaxis])
    limits = np.finfo(np.float32)
    norms = np.clip(_finite(variable_norms(a["projections"], b["projections"])), limits.tiny, limits.max)
    by_variable = np.where(equal_variables, 0.0, norms).astype(np.float32)
    return np.where(equal, 0.0, _distance(a, b)), equal, noise, rounding, by_variable


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The estimated Euclidean norm of the difference of all weights, float64 ``[places]``; NaN if it is not finite."""
    return _finite(total_norm(a["projections"], b["projections"]))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)
