"""How far rounding alone drives a model: the envelope of its noise twins; plain data, no TensorFlow.

A noise twin is the reference again, bit for bit, until the step at which the candidate parts from it;
from there on all of its weights are moved by one unit in the last place before every step, or by several
(see ``compare.engine.noise_twins``). What twins and reference are apart, step by step, is what rounding does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compare.records import INITIAL, Place, Record, in_time

FACTOR = 100.0
"""How many times the twins' largest gap a candidate's may be and still count as rounding.

In 303 cells of correct loops (eager, XLA, sums in another order, whole epochs in one function, other numbers of
threads and replicas; five optimizers and all built-in experiments but the full data) the largest ratio was 94, of
densenet, where a bend is met; 13 elsewhere in float32, and 22 in half precision. The smallest of a planted mistake
that moved float32 weights more than the optimizer hides was 1,447. Half precision hides several, which only the
short check tells (``scripts/calibrate.py``, reports/calibration).
"""
LOUD = 16
"""By how many units in the last place a loud twin's weights are moved, whose gap then counts by so much less.

Where rounding decides on which side of a bend a value comes to lie (of a ReLU, say), both sides are right, and a gap
may open at once that is thousands of times larger. Of densenet's twins not one of eight met the bend that sums in
reverse and XLA did; of loud twins every other one meets one, and a sixteenth of such a gap is still far beyond the
others. As long as gaps grow with the noise, a loud twin says what the others say.
"""


TWINS = 3
"""How many twins the step at which two runs part is held against."""
MORE_TWINS = 12
"""How many at most, where the first do not explain it: rounding may cross a kink that they did not.

Those are loud (``LOUD``): noise sixteen times as large meets such a bend that much sooner.
"""
HOPELESS = 300.0
"""A gap that exceeds what counts as rounding by this factor needs no more twins.

At a kink gaps of up to 85 times that were seen (``scripts/calibrate.py``: XLA on densenet, held against three twins).
"""


def twin_name(number: int, loud: bool) -> str:
    """What a twin is called in its records."""
    return f"twin-{number}{'-loud' * loud}"


def units_of(name: str) -> int:
    """How many units in the last place the twin of this name was moved by: its gaps are divided by them."""
    return LOUD if name.endswith("-loud") else 1


@dataclass(frozen=True)
class Noise:
    """A candidate's gap held against the twins'.

    Attributes:
        twins: how many twins there are.
        start: the place (epoch, step) of the first step with noise.
        ratio: the largest gap of any variable at any step, in units of the twins' largest so far;
            infinite where twins do not move at all.
        at: the place of that step.
        variable: the name of that variable.
        reproduced: whether the twins equalled the reference until ``start``, as they must.
        whole: whether some twin was trained as long as both; the ratio is of the steps that were.
    """

    twins: int
    start: Place
    ratio: float
    at: Place
    variable: str
    reproduced: bool = True
    whole: bool = True

    @property
    def so_far(self) -> bool:
        """Whether rounding explains the candidate's gap as far as the twins go."""
        return self.reproduced and self.ratio <= FACTOR

    @property
    def explains(self) -> bool:
        """Whether rounding alone explains the candidate's gap, to the end."""
        return self.so_far and self.whole


def measure(
    reference: Record, candidate: Record, twins: Sequence[Record], start: Place, anchor: Record | None = None
) -> Noise:
    """Hold the gap between two records against that of twins.

    Gaps are estimated per variable from the projections. Both sides count with the largest gap so
    far, since a gap that noise has opened may close again by chance.

    Args:
        reference: one side.
        candidate: the other.
        twins: of ``anchor``, with noise from ``start`` on; at least one; which are loud is in their names.
        start: place of the first step that differs between the two.
        anchor: the run that the twins are twins of; the reference by default.
    """
    anchor = reference if anchor is None else anchor
    ours, theirs, base = reference.by_place(), candidate.by_place(), anchor.by_place()
    places = sorted((ours.keys() & theirs.keys() & base.keys()) - {(1, INITIAL)}, key=in_time)
    places = [place for place in places if in_time(place) >= in_time(start)]
    seen = largest = np.zeros(len(reference.variables))
    worst, at, which = 0.0, start, 0
    copies = [twin.by_place() for twin in twins]
    whole = all(any(place in copy for copy in copies) for place in places)
    for place in places:
        if not any(place in copy for copy in copies):
            break
        gap = _gap(ours[place], theirs[place])
        if np.isnan(gap).all():
            break  # neither has numbers any more
        seen = np.fmax(seen, gap)
        for twin, copy in zip(twins, copies, strict=True):
            if place in copy:
                its = np.nan_to_num(_gap(base[place], copy[place]), nan=0.0)
                largest = np.maximum(largest, its / units_of(twin.trainer))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(seen > 0, seen / largest, 0.0)
        ratios[np.isnan(ratios)] = 0.0  # both infinite
        if ratios.max(initial=0.0) > worst:
            which = int(ratios.argmax())
            worst, at = float(ratios[which]), place
    reproduced = all(_equal_until(base, copy, start) for copy in copies)
    return Noise(len(twins), start, worst, at, reference.variables[which].name, reproduced, whole)


def _gap(a: np.void, b: np.void) -> np.ndarray:
    """float64 ``[variables]``: an estimate of the Euclidean norm; NaN if both sides are no number, else infinity."""
    mine, yours = np.isfinite(a["projections"]).all(axis=1), np.isfinite(b["projections"]).all(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.sqrt(np.mean((a["projections"] - b["projections"]) ** 2, axis=1))
    return np.where(mine & yours, gap, np.where(mine | yours, np.inf, np.nan))


def _equal_until(base: dict[Place, np.void], copy: dict[Place, np.void], start: Place) -> bool:
    before = [place for place in base.keys() & copy.keys() if in_time(place) < in_time(start)]
    return all(np.array_equal(base[place]["hashes"], copy[place]["hashes"]) for place in before if place[1] != INITIAL)


def enough(found: Noise, twins: int, least: int = TWINS, most: int = MORE_TWINS) -> bool:
    """Whether more twins would say no more: these explain the gap, or it is beyond all bends, or there are many."""
    near = not found.so_far and found.ratio < HOPELESS * FACTOR
    return twins >= least and not (near and twins < most)
