"""Where a value first is not finite (NaN or infinite), on one side only or on both; plain data, no TensorFlow.

A value that is not finite on one side only is a difference, however it came about: rounding does not explain it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compare.records.metrics_csv import shortest
from compare.records.model import EPOCH_END, INITIAL, Place, Record, first_place, in_blocks, place_of, places_of


@dataclass(frozen=True)
class NotFinite:
    """The first value that is not finite.

    Attributes:
        side: the trainer that has it; None if both do, from the same place on.
        step: the optimizer step of that epoch, from 1; 0 for the initial weights, None for the end of the epoch.
        variables: the variables that are not finite there; None if a reported number is.
        of: the number of all variables; None if a reported number is not finite.
        metric: the reported number that is not finite; empty if weights are not.
        values: the reference's value of that number and the candidate's, as text; None if weights are not finite.
    """

    side: str | None
    epoch: int
    step: int | None
    variables: tuple[str, ...] | None = None
    of: int | None = None
    metric: str = ""
    values: tuple[str, str] | None = None

    @property
    def alone(self) -> bool:
        """Whether one side only has the value."""
        return self.side is not None

    @property
    def place(self) -> Place:
        """The place of the first fingerprint, or the end of the epoch, at which the value is not finite."""
        return self.epoch, EPOCH_END if self.step is None else self.step


def in_weights(reference: Record, candidate: Record) -> NotFinite | None:
    """Where the weights of one side only first are not finite or, if there is no such place, those of both."""
    if [v.shape for v in reference.variables] != [v.shape for v in candidate.variables]:
        return None
    sides = reference, candidate
    firsts = [_first(record) for record in sides]
    found = [_one_sided(reference, candidate)]
    for first, record, other in zip(firsts, sides, reversed(sides), strict=True):
        # Places that one side lacks: it may report the ends of its epochs only, or the other may have stopped.
        if first is not None and _finite_after(other, *first):
            found.append((*first, record))
    if known := [each for each in found if each is not None]:
        key, mask, record = min(known, key=lambda each: each[0])
        return _of_weights(record, key, mask, record.trainer)
    ours, theirs = firsts
    if ours is None or theirs is None:
        return None
    key, mask = max(ours, theirs, key=lambda first: first[0])
    return _of_weights(reference, key, mask, None)


def in_numbers(reference: str, candidate: str, numbers: Sequence[tuple[int, str, float, float]]) -> NotFinite | None:
    """The first of the numbers that both report (see ``exact``) that is not finite on one side only, else on both.

    One that is infinite on both sides, but not the same there, is a difference as those of finite numbers are.
    """
    found = []
    for epoch, name, a, b in numbers:
        if math.isfinite(a) != math.isfinite(b) or (not math.isfinite(a) and shortest(a) == shortest(b)):
            side = candidate if math.isfinite(a) else reference if math.isfinite(b) else None
            found.append(NotFinite(side, epoch, None, metric=name, values=(shortest(a), shortest(b))))
    return next((each for each in found if each.alone), found[0] if found else None)


Found = tuple[int, np.ndarray]
"""The sort key of a place, and which variables are not finite there: bool ``[variables]``."""


def _not_finite(record: Record, keys: np.ndarray) -> np.ndarray:
    """Which variables are not finite at some places: bool ``[places, variables]``."""
    return np.asarray(~np.isfinite(record.at(keys)["projections"]).all(axis=-1))


def _first(record: Record) -> Found | None:
    """The first place at which a variable is not finite that was at first; a mask may be infinite from the start."""
    initial = record.keys[:1][places_of(record.keys[:1])[1] == INITIAL]
    always = _not_finite(record, initial).any(axis=0)
    at = first_place(record.keys, lambda keys: _not_finite(record, keys) & ~always)
    if at is None:
        return None
    return int(record.keys[at]), (_not_finite(record, record.keys[at : at + 1]) & ~always)[0]


def _one_sided(reference: Record, candidate: Record) -> tuple[int, np.ndarray, Record] | None:
    """The first place of both at which a variable is not finite on one side only, and that side."""
    keys = np.intersect1d(reference.keys, candidate.keys, assume_unique=True)
    at = first_place(keys, lambda part: _not_finite(reference, part) != _not_finite(candidate, part))
    if at is None:
        return None
    (ours,), (theirs,) = (_not_finite(record, keys[at : at + 1]) for record in (reference, candidate))
    side, mask = (candidate, theirs & ~ours) if (theirs & ~ours).any() else (reference, ours & ~theirs)
    return int(keys[at]), mask, side


def _finite_after(record: Record, key: int, variables: np.ndarray) -> bool:
    """Whether some of these variables were seen to be finite at a place, or after it."""
    later = record.keys[record.keys >= key]
    return any((~_not_finite(record, keys)[:, variables]).any() for keys in in_blocks(later))


def _of_weights(record: Record, key: int, variables: np.ndarray, side: str | None) -> NotFinite:
    epoch, step = place_of(key)
    names = tuple(record.variables[i].name for i in np.flatnonzero(variables))
    return NotFinite(side, epoch, None if step == EPOCH_END else step, names, len(variables))
