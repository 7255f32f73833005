"""What several seeds say: paired differences, epoch by epoch, against a margin; plain data, no TensorFlow.

Two one-sided t-tests (TOST) ask whether the mean difference lies within the margin (Schuirmann, "A
comparison of the two one-sided tests procedure and the power approach", 1987). Nothing is ever called
alike because a test found no difference: too few seeds are inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from compare.records import Record
from compare.verdict.model import ALIKE, DIFFERENT, IDENTICAL, INCONCLUSIVE

ALPHA = 0.05
"""The level of each one-sided test, and of all proofs of a difference together."""
POWER = 0.8
"""The probability with which the number of seeds that is recommended would do."""
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Margin:
    """How far apart two means may be and still be called alike.

    Attributes:
        metric: the metric's name.
        value: the largest mean difference that does not matter: in the metric's own unit, or a
            fraction of the reference's value if ``relative``.
        relative: which of the two.
    """

    metric: str
    value: float
    relative: bool = False

    def __str__(self) -> str:
        return f"{self.metric}={f'{100 * self.value:g}%' if self.relative else f'{self.value:g}'}"


DEFAULT_MARGINS = (Margin("val_accuracy", 0.01), Margin("val_loss", 0.02, relative=True))
"""A choice: one percentage point of validation accuracy, and 2% of validation loss."""


@dataclass(frozen=True)
class Test:
    """One metric at the end of one epoch, over all seeds.

    Attributes:
        metric: its name.
        epoch: the epoch, from 1.
        seeds: how many pairs.
        mean: the mean of candidate minus reference .
        low: the lower end of the mean's 90% confidence interval; None with fewer than two seeds.
        high: the upper end.
        margin: what the interval has to lie within.
        relative: whether mean, interval and margin are fractions of the reference's value.
        p: the larger p-value of the two one-sided tests; None with fewer than two seeds.
        seeds_needed: how many seeds would do, if the difference is what it seems; None where the mean
            itself is beyond the margin, or there are fewer than two seeds.
        verdict: ``alike``, ``different`` or ``inconclusive``.
    """

    metric: str
    epoch: int
    seeds: int
    mean: float
    low: float | None
    high: float | None
    margin: float
    relative: bool
    p: float | None
    seeds_needed: int | None
    verdict: str


@dataclass(frozen=True)
class Study:
    """What all seeds say of one candidate: alike only if every test of every epoch says so."""

    verdict: str
    seeds: int
    tests: tuple[Test, ...]
    reason: str = ""

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds would do for all tests that were inconclusive; None where nobody can tell."""
        needed = [test.seeds_needed for test in self.tests if test.verdict == INCONCLUSIVE]
        return None if None in needed else max((each for each in needed if each is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """``study`` in ``verdict.json``."""
        content = {"verdict": self.verdict, "seeds": self.seeds, "seeds_needed": self.seeds_needed}
        return {**content, "reason": self.reason, "tests": [asdict(test) for test in self.tests]}


def study(
    reference: Sequence[Record], candidate: Sequence[Record], margins: Sequence[Margin] = DEFAULT_MARGINS
) -> Study:
    """Judge the paired differences of two trainers' reported numbers.

    Args:
        reference: its records, one for each seed.
        candidate: the other's; only seeds that both have are paired.
        margins: for which metrics, and how far; those that nobody reports are left out.
    """
    ours, theirs = ({record.seed: record.logs for record in records} for records in (reference, candidate))
    seeds = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[seed], theirs[seed]) for seed in seeds]
    found: list[tuple[Margin, int, np.ndarray]] = []
    for margin in margins:
        for epoch in sorted({epoch for a, b in pairs for epoch in (*a, *b)}):
            values = [(_value(a, epoch, margin.metric), _value(b, epoch, margin.metric)) for a, b in pairs]
            if not np.isnan(values).all():
                found.append((margin, epoch, np.array(values)))
    if not found:
        names = " or ".join(margin.metric for margin in margins)
        return Study(INCONCLUSIVE, len(seeds), (), f"no trainer reports {names}: say what to judge with --margin")
    tests = tuple(_test(margin, epoch, values, len(found)) for margin, epoch, values in found)
    verdicts = {test.verdict for test in tests}
    verdict = DIFFERENT if DIFFERENT in verdicts else INCONCLUSIVE if INCONCLUSIVE in verdicts else ALIKE
    return Study(verdict, len(seeds), tests)


def _value(logs: Mapping[int, Mapping[str, float]], epoch: int, metric: str) -> float:
    return logs.get(epoch, {}).get(metric, np.nan)


def _test(margin: Margin, epoch: int, values: np.ndarray, tests: int) -> Test:
    """One test; ``values`` are float64 ``[seeds, 2]``, reference and candidate."""
    ours, theirs = values.T
    with np.errstate(all="ignore"):
        differences = (theirs - ours) / (np.abs(ours) if margin.relative else 1.0)
    n, limit = len(differences), margin.value
    result = Test(margin.metric, epoch, n, 0.0, None, None, limit, margin.relative, None, None, INCONCLUSIVE)
    both = np.array_equal(np.isfinite(ours), np.isfinite(theirs))
    differences = differences[np.isfinite(differences)]
    if not both:  # NaN, infinity or nothing at all on one side only
        return _with(result, verdict=DIFFERENT)
    if len(differences) == 0:
        return _with(result, verdict=ALIKE)
    mean = float(differences.mean())
    if len(differences) < 2:
        return _with(result, mean=mean)
    n, deviation = len(differences), float(differences.std(ddof=1))
    low, high = _interval(mean, deviation, n, 1 - 2 * ALPHA)
    p = _p(mean, deviation, n, limit)
    surely_low, surely_high = _interval(mean, deviation, n, 1 - ALPHA / tests)
    verdict = INCONCLUSIVE
    if p <= ALPHA:
        verdict = ALIKE
    elif surely_low > limit or surely_high < -limit:
        verdict = DIFFERENT
    needed = seeds_needed(mean, deviation, limit) if verdict == INCONCLUSIVE else None
    return _with(result, seeds=n, mean=mean, low=low, high=high, p=p, seeds_needed=needed, verdict=verdict)


def _with(test: Test, **changes: Any) -> Test:
    return Test(**(asdict(test) | changes))


def _interval(mean: float, deviation: float, n: int, level: float) -> tuple[float, float]:
    if deviation == 0:
        return mean, mean
    from scipy import stats  # takes most of a second, and a single run needs none

    low, high = stats.t.interval(level, n - 1, mean, deviation / np.sqrt(n))
    return float(low), float(high)


def _p(mean: float, deviation: float, n: int, limit: float) -> float:
    """The larger p-value of the two one-sided tests of |mean| < limit."""
    if deviation == 0:
        return 0.0 if abs(mean) < limit else 1.0
    from scipy import stats

    error = deviation / np.sqrt(n)
    above = stats.t.sf((mean + limit) / error, n - 1)
    below = stats.t.cdf((mean - limit) / error, n - 1)
    return float(max(above, below))


def seeds_needed(mean: float, deviation: float, limit: float) -> int | None:
    """The number of pairs with which both tests succeed with probability ``POWER``; None if no number would do.

    Args:
        mean: of the differences, taken for the true one.
        deviation: their standard deviation, taken for the true one.
        limit: the margin.
    """
    if abs(mean) >= limit:
        return None
    from scipy import stats

    def enough(n: int) -> bool:
        critical, root = stats.t.ppf(1 - ALPHA, n - 1), np.sqrt(n) / deviation
        above = stats.nct.sf(critical, n - 1, (mean + limit) * root)
        below = stats.nct.cdf(-critical, n - 1, (mean - limit) * root)
        return bool(above + below - 1 >= POWER)

    if deviation == 0:
        return 2
    few, many = 1, 2
    while not enough(many):
        few, many = many, 2 * many
        if few > MOST_SEEDS:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def overall(exactly: Sequence[str], found: Study) -> str:
    """A study's verdict, which is ``identical`` where every seed's comparison bit for bit is."""
    return IDENTICAL if set(exactly) == {IDENTICAL} else found.verdict
