"""How much of a weight gap rounding alone explains, measured with noise twins; plain data, no TensorFlow.

A noise twin repeats the reference bit for bit up to the step at which the candidate diverges from it. From
that step on, all of its weights are moved by one or more units in the last place before every step (see
``compare.engine.noise_twins``). The twins' distance from the reference, step by step, measures rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compare.records.codec import unwritten
from compare.records.model import (
    EPOCH_END,
    INITIAL,
    Place,
    Record,
    Variable,
    in_blocks,
    in_time,
    place_of,
    places_of,
    total_norm,
    variable_norms,
)

FACTOR = 100.0
"""The largest ratio of a candidate's gap to the twins' largest gap that still counts as rounding.

In 303 combinations with correct loops (eager, XLA, other summation orders, whole epochs in one function, other
numbers of threads and replicas; five optimizers and all built-in experiments except the full data set) the largest
ratio was 94, for densenet, where rounding crosses a kink; it was 13 elsewhere in float32, and 22 in half precision.
The smallest ratio of a planted bug that changed float32 weights by more than the optimizer hides was 1,447. Half
precision hides several bugs, which only the short check finds (``scripts/accuracy.py``, reports/calibration).
"""
LOUD = 16
"""The number of units in the last place by which a loud twin's weights are moved; its gaps are divided by this number.

If rounding decides on which side of a kink a value lies (of a ReLU, for example), both sides are correct, and the gap
may suddenly be thousands of times larger. None of eight twins of densenet crossed the kink that XLA and sums in
reverse order crossed; of the loud twins every second one does, and a sixteenth of its gap is still far larger than the
other gaps. As long as gaps grow in proportion to the noise, loud twins and other twins agree.
"""
TWINS = 3
"""The number of twins trained first."""
MORE_TWINS = 12
"""The largest number of twins, if the first ones do not explain the gap: rounding may cross a kink that they did not.

The additional twins are loud (``LOUD``), since larger noise crosses a kink much sooner.
"""
REPEATER = 2
"""The number of the twin that repeats the first step; there are always two, and the first is looked into."""
UNLIKELY = 1e-5
"""The gap of all weights, relative to their norm, above which a first difference is thought to be no rounding."""
UPDATE = 4.0
"""The least gap of a variable's twins, in units in the last place of the distance that training has moved it.

Twins move weights, not the optimizer's own arithmetic, which loses digits too: Keras's Adam takes ``1 - beta_2**t`` in
float32, so its first step is off by 6e-6, or 54 such units. Nothing shows it but a bias that began at zero.
"""
UNIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""One unit in the last place of a number near 1, by its dtype."""
FAR_SHARE, FAR_BEYOND = 0.1, 30.0
"""Rounding alone moves a variable in which a noise twin goes this share of the way that training leads, and so many
times as far as in most."""
HOPELESS = 300.0
"""If the gap exceeds ``FACTOR`` by this factor, no more twins are trained.

At a kink, gaps of up to 85 times ``FACTOR`` were seen (``scripts/accuracy.py``: XLA on densenet, with three twins).
"""


def twin_name(number: int, loud: bool, start: Place | None = None) -> str:
    """The trainer name in a twin's records.

    Args:
        start: where the candidate diverges; None if the twin's first step need not be that of the reference, as that of
            a script's second model, whose first one has had noise by then.
    """
    later = start is not None and noise_begins(start, number) != start
    return f"twin-{number}{'-loud' * loud}{'-later' * later}"


def units_of(name: str) -> int:
    """The units in the last place by which the twin of this name was moved; its gaps are divided by them."""
    return LOUD if name.endswith("-loud") else 1


def noise_begins(start: Place, twin: int) -> Place:
    """Where the noise of a twin begins, by its number, if the candidate diverges at ``start``.

    The second twin of a difference in the very first step repeats that step, so that there is a step that shows
    whether the reference gives the same weights when it is run again. (There is none if one call makes several steps.)
    """
    return (1, 2) if start == (1, 1) and twin == REPEATER else start


@dataclass(frozen=True)
class Noise:
    """A candidate's weight gap compared with the gaps of noise twins.

    Attributes:
        twins: the number of twins; 0 if the rounding of each step was measured, by recomputing it, and added up.
        factor: the largest ratio that counts as rounding.
        largest_ratio: the largest ratio, over variables and steps, of the gap to the twins' largest gap up to
            that step; None if it is infinite, because no twin moves the variable.
        step: its step; None at the end of the epoch.
        reproduced: whether the twins equal the reference before their noise starts, as they must.
        whole: whether some twin was trained for as long as both runs; if not, the ratio covers fewer steps.
        moves: the variables that rounding alone moves, by name, if most of the candidate's gap is in them.
    """

    twins: int
    factor: float
    largest_ratio: float | None
    variable: str
    epoch: int
    step: int | None
    reproduced: bool = field(default=True, metadata=unwritten(True))
    whole: bool = field(default=True, metadata=unwritten(True))
    moves: tuple[str, ...] = ()

    @classmethod
    def of(cls, twins: int, ratio: float, at: Place, variable: str, **more: Any) -> Noise:
        """The comparison, from the largest ratio, which may be infinite, and its place."""
        epoch, step = at
        finite = ratio if math.isfinite(ratio) else None
        return cls(twins, FACTOR, finite, variable, epoch, None if step == EPOCH_END else step, **more)

    @property
    def ratio(self) -> float:
        return math.inf if self.largest_ratio is None else self.largest_ratio

    @property
    def so_far(self) -> bool:
        """Whether rounding explains the candidate's gap for all steps that the twins were trained."""
        return self.reproduced and self.ratio <= self.factor

    @property
    def hopeless(self) -> bool:
        """Whether the gap is too large for a kink, so that no more twins can explain it."""
        return not self.so_far and self.ratio >= HOPELESS * FACTOR

    @property
    def certain(self) -> bool:
        """Whether more twins would say the same."""
        return self.so_far or self.hopeless or not self.reproduced

    @property
    def explains(self) -> bool:
        """Whether rounding alone explains the candidate's gap at all steps."""
        return self.so_far and self.whole


def measure(
    reference: Record, candidate: Record, twins: Sequence[Record], start: Place, anchor: Record | None = None
) -> Noise:
    """Compares the gap between two records with the gaps of noise twins.

    Gaps are estimated per variable from the projections. Both the candidate's and the twins' gap at a
    step are the largest up to that step, since a gap may close again by chance.

    Args:
        twins: at least one noise twin of ``anchor``, with noise from ``start`` on; the names of loud twins say so.
        start: the place of the first step that differs between the two.
        anchor: the run that the twins repeat; the reference by default.
    """
    anchor = reference if anchor is None else anchor
    worst, at, which = 0.0, start, 0
    for keys, ratios in _ratios(reference, candidate, twins, start, anchor):
        if ratios.max(initial=0.0) > worst:
            row, which = map(int, np.unravel_index(ratios.argmax(), ratios.shape))
            worst, at = float(ratios[row, which]), place_of(keys[row])
    keys = _places(reference, candidate, anchor, start)
    whole = len(_seen(keys, twins)) == len(keys)
    reproduced = all(_equal_until(anchor, twin, start) for twin in twins)
    name = reference.variables[which].name
    moves = _moved_by_rounding(reference, candidate, twins[0], _seen(keys, twins[:1]), anchor)
    return Noise.of(len(twins), worst, at, name, reproduced=reproduced, whole=whole, moves=moves)


def _moved_by_rounding(
    reference: Record, candidate: Record, twin: Record, keys: np.ndarray, anchor: Record
) -> tuple[str, ...]:
    """The variables that rounding alone moves, if most of the gap is in them, but not all variables are such.

    A batch normalization takes out the bias of the layer before it, whose gradient is then zero but for rounding. Adam
    makes steps of full size of that, which lead a noise twin as far away as training leads from where it began.
    """
    last, first = keys[-1:], anchor.keys[:1]
    moved = variable_norms(anchor.at(first)["projections"], anchor.at(last)["projections"])
    noise, gap = _gap(anchor.at(last), twin.at(last)), _gap(reference.at(last), candidate.at(last))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.nan_to_num(noise / moved, posinf=1.0)
    pulled = (shares > 0.5) | (shares > FAR_SHARE) & (shares > FAR_BEYOND * np.median(shares))
    alone = (pulled & (gap > 0)).any(axis=0)  # a twin moves weights that are not trained, too
    if alone.all() or not 2 * np.square(gap[:, alone]).sum() > np.square(gap).sum() > 0:
        return ()
    return tuple(variable.name for variable, each in zip(reference.variables, alone, strict=True) if each)


def first_beyond(reference: Record, candidate: Record, twins: Sequence[Record], start: Place) -> Place | None:
    """The first place where the gap is larger than rounding explains; None if there is none."""
    ratios = _ratios(reference, candidate, twins, start, reference)
    beyond = (keys[(values > FACTOR).any(axis=1)] for keys, values in ratios)
    return next((place_of(keys[0]) for keys in beyond if len(keys)), None)


def _places(reference: Record, candidate: Record, anchor: Record, start: Place) -> np.ndarray:
    """The places from ``start`` on that all have, in order, as sort keys."""
    keys = np.intersect1d(reference.keys, candidate.keys, assume_unique=True)
    keys = np.intersect1d(keys, anchor.keys, assume_unique=True)
    return np.asarray(keys[(keys >= in_time(start)) & (keys != in_time((1, INITIAL)))])


def _seen(keys: np.ndarray, twins: Sequence[Record]) -> np.ndarray:
    """The places up to the first that no twin has."""
    seen = np.any([twin.has(keys) for twin in twins], axis=0)
    return keys[: len(keys) if seen.all() else int(seen.argmin())]


def _ratios(
    reference: Record, candidate: Record, twins: Sequence[Record], start: Place, anchor: Record
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sort keys of places, in blocks, and the ratios of gaps to the twins' gaps, float64 ``[places, variables]``.

    In a variable of a few elements the noise of all twins may be undone by chance, by the rounding of the step itself.
    So a gap of one unit in the last place, by which twins are moved, counts as rounding in any case.
    """
    began = anchor.at(anchor.keys[:1])["projections"]
    gaps = twin_gaps = np.zeros((1, len(reference.variables)))  # the largest so far
    units = unit_in_last_place(reference.variables)
    for keys in in_blocks(_seen(_places(reference, candidate, anchor, start), twins)):
        gap = _gap(reference.at(keys), candidate.at(keys))
        ended = np.isnan(gap).all(axis=1)  # no weight is finite any more on either side
        if ended.any():
            keys, gap = keys[: ended.argmax()], gap[: ended.argmax()]
        twin_gap, base = np.zeros_like(gap), anchor.at(keys)
        for twin in twins:
            has = twin.has(keys)
            distance = np.nan_to_num(_gap(base[has], twin.at(keys[has])), nan=0.0)
            twin_gap[has] = np.maximum(twin_gap[has], distance / units_of(twin.trainer))
        gaps = np.fmax.accumulate(np.concatenate([gaps[-1:], gap]))[1:]
        twin_gaps = np.maximum.accumulate(np.concatenate([twin_gaps[-1:], twin_gap]))[1:]
        one_unit = units * np.nan_to_num(variable_norms(base["projections"]), posinf=0.0)
        of_update = UPDATE * units * np.nan_to_num(variable_norms(base["projections"], began), posinf=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_chance = (twin_gaps == 0) & (gaps <= one_unit)
            rounding = np.where(twin_gaps > 0, np.maximum(twin_gaps, of_update), 0.0)
            ratios = np.where(by_chance, FACTOR * gaps / one_unit, gaps / rounding)
        ratios[np.isnan(ratios)] = 0.0  # there is no gap, or both are infinite
        yield keys, ratios
        if ended.any():
            break


def unit_in_last_place(variables: Sequence[Variable]) -> np.ndarray:
    """By variable, the distance of neighbouring numbers near 1, float64 ``[variables]``; 0 for whole numbers."""
    return np.array([UNIT.get(variable.dtype, 0.0) for variable in variables])


def _gap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Estimated Euclidean norms of the differences of fingerprints, float64 ``[..., variables]``.

    A norm is NaN if both sides are not finite, and infinite if only one is not.
    """
    a_finite, b_finite = np.isfinite(a["projections"]).all(axis=-1), np.isfinite(b["projections"]).all(axis=-1)
    gap = variable_norms(a["projections"], b["projections"])
    return np.where(a_finite & b_finite, gap, np.where(a_finite | b_finite, np.inf, np.nan))


def _equal_until(anchor: Record, twin: Record, start: Place) -> bool:
    """Whether a twin repeats every step before its noise, bit for bit."""
    begin = noise_begins(start, REPEATER) if twin.trainer.endswith("-later") else start
    before = np.intersect1d(anchor.keys, twin.keys, assume_unique=True)
    before = before[(before < in_time(begin)) & (places_of(before)[1] != INITIAL)]
    return all(np.array_equal(anchor.at(keys)["hashes"], twin.at(keys)["hashes"]) for keys in in_blocks(before))


def wanted_twins(
    measured: Callable[[], Noise], count: int = 0, least: int = TWINS, most: int = MORE_TWINS, *, at_a_time: int = 1
) -> Iterator[tuple[range, bool]]:
    """Yields the numbers of the next noise twins to train, and whether they are loud, until more would say the same.

    Args:
        measured: measures with all twins that there are.
        count: the number of twins that there are already.
    """
    while count < least or (count < most and not measured().certain):
        yield range(count + 1, count + at_a_time + 1), count >= least
        count += at_a_time


def unlikely(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether weights, given by projections, are so far apart that rounding that has just begun does not explain it."""
    return bool((total_norm(a, b) > UNLIKELY * total_norm(a)).any())
