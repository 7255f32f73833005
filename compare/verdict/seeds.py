"""Equivalence tests over several seeds: paired differences per epoch against a margin; plain data, no TensorFlow.

Two one-sided t-tests (TOST) test whether the mean difference lies within the margin (Schuirmann, "A
comparison of the two one-sided tests procedure and the power approach", 1987). Trainers are never called
alike because a test found no difference: too few seeds are inconclusive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compare.records.codec import ALWAYS
from compare.records.model import Record
from compare.verdict.outcomes import ALIKE, DIFFERENT, INCONCLUSIVE, worst

ALPHA = 0.05
"""The significance level of each one-sided test, and of all tests for a difference together."""
POWER = 0.8
"""The probability that the recommended number of seeds is sufficient."""
MOST_SEEDS = 10_000
"""The search for a sufficient number of seeds stops beyond this number."""


@dataclass(frozen=True)
class Margin:
    """The largest difference of two means that still counts as alike.

    Attributes:
        value: in the metric's own unit, or as a fraction of the reference's value if ``relative``.
    """

    metric: str
    value: float
    relative: bool = False


DEFAULT_MARGINS = (Margin("val_accuracy", 0.01), Margin("val_loss", 0.02, relative=True))
"""One percentage point of validation accuracy and 2% of validation loss, an arbitrary choice."""


@dataclass(frozen=True)
class Test:
    """The equivalence test of one metric at the end of one epoch, over all seeds.

    Attributes:
        mean: the mean of candidate minus reference; None if it is not finite, or relative to a reference of 0.
        low, high: the ends of the mean's 90% confidence interval; None with fewer than two seeds.
        relative: whether mean, interval and margin are fractions of the reference's value.
        p: the larger p-value of the two one-sided tests; None with fewer than two seeds.
        seeds_needed: the number of seeds that would be sufficient if the observed mean and deviation are the true
            ones; None if the mean is beyond the margin, or with fewer than two seeds.
        verdict: ``alike``, ``different`` or ``inconclusive``.
    """

    metric: str
    epoch: int
    seeds: int
    mean: float | None
    low: float | None
    high: float | None
    margin: float
    relative: bool
    p: float | None
    seeds_needed: int | None
    verdict: str


@dataclass(frozen=True)
class Study:
    """The tests of one candidate over all seeds; ``alike`` only if every test of every epoch is.

    Attributes:
        seeds: the number of seeds that both trainers finished.
        seeds_needed: the number of seeds sufficient for all inconclusive tests; None if it is unknown.
        reason: why nothing could be tested; else empty.
    """

    verdict: str
    seeds: int
    seeds_needed: int | None = field(init=False)
    reason: str = field(default="", kw_only=True, metadata=ALWAYS)
    tests: tuple[Test, ...]

    def __post_init__(self) -> None:
        needed = [test.seeds_needed for test in self.tests if test.verdict == INCONCLUSIVE]
        most = None if None in needed else max((seeds for seeds in needed if seeds is not None), default=None)
        object.__setattr__(self, "seeds_needed", most)


def study(
    reference: Sequence[Record], candidate: Sequence[Record], margins: Sequence[Margin] = DEFAULT_MARGINS
) -> Study:
    """Tests the paired differences of two trainers' reported metrics.

    Args:
        candidate: the candidate's records; only seeds that both have are paired.
        margins: the metrics to test and their margins; metrics that one side never reports are skipped.
    """
    pairs = sorted(of_one_seed(reference, candidate), key=lambda pair: pair[0].seed)
    samples: list[tuple[Margin, int, np.ndarray, bool]] = []
    for margin in margins:
        by_epoch = {
            epoch: [(_value(a, epoch, margin.metric), _value(b, epoch, margin.metric)) for a, b in pairs]
            for epoch in sorted({epoch for a, b in pairs for epoch in (*a.logs, *b.logs)})
        }
        lists = list(by_epoch.values())
        if not all(any(pair[side] is not None for values in lists for pair in values) for side in (0, 1)):
            continue
        for epoch, values in by_epoch.items():
            known = np.array([pair for pair in values if None not in pair], np.float64).reshape(-1, 2)
            whole = all((a is None) == (b is None) for a, b in values)
            if not (whole and np.isnan(known).all()):
                samples.append((margin, epoch, known, whole))
    tests = tuple(_test(margin, epoch, values, len(samples), whole) for margin, epoch, values, whole in samples)
    names = " or ".join(margin.metric for margin in margins)
    reason = "" if tests else f"the trainers do not both report {names}; choose the metric with --margin"
    return Study(worst([test.verdict for test in tests]), len(pairs), tests, reason=reason)


def of_one_seed(reference: Sequence[Record], candidate: Sequence[Record]) -> list[tuple[Record, Record]]:
    """The records of both sides in pairs, by their seed; what has no partner is left out."""
    others = {record.seed: record for record in candidate}
    return [(record, others[record.seed]) for record in reference if record.seed in others]


def _value(record: Record, epoch: int, metric: str) -> float | None:
    """The reported number; NaN after training has ended because a value was not finite; None if it is unknown."""
    value = record.logs.get(epoch, {}).get(metric)
    ended = record.end.epoch if record.end is not None else None
    return np.nan if value is None and ended is not None and epoch >= ended else value


def _test(margin: Margin, epoch: int, values: np.ndarray, tests: int, whole: bool) -> Test:
    """Runs one test.

    Args:
        values: float64 ``[seeds, 2]``, reference and candidate.
        tests: the number of tests of the study.
        whole: whether no seed is left out because one side alone did not report its number; else nothing is alike.
    """
    reference, candidate = values.T
    with np.errstate(all="ignore"):
        differences = (candidate - reference) / (np.abs(reference) if margin.relative else 1.0)
    differences[candidate == reference] = 0.0  # two zeros, too
    n, limit, finite = len(differences), margin.value, np.isfinite(reference)
    result = Test(margin.metric, epoch, n, None, None, None, limit, margin.relative, None, None, INCONCLUSIVE)
    if not np.array_equal(finite, np.isfinite(candidate)):  # NaN or infinity on one side only
        return replace(result, verdict=DIFFERENT)
    differences = differences[finite]
    if not np.isfinite(differences).all():  # relative to a reference of zero
        return result
    if len(differences) == 0:
        return replace(result, verdict=ALIKE if whole else INCONCLUSIVE)
    mean = float(differences.mean())
    if len(differences) < 2:
        return replace(result, mean=mean)
    n, deviation = len(differences), float(differences.std(ddof=1))
    low, high = mean_interval(differences, 1 - 2 * ALPHA)
    p = _p(mean, deviation, n, limit)
    corrected_low, corrected_high = mean_interval(differences, 1 - ALPHA / tests)  # Bonferroni
    verdict = INCONCLUSIVE
    if p <= ALPHA:
        verdict = ALIKE if whole else INCONCLUSIVE
    elif corrected_low > limit or corrected_high < -limit:
        verdict = DIFFERENT
    needed = seeds_needed(mean, deviation, limit) if verdict == INCONCLUSIVE and whole else None
    return replace(result, seeds=n, mean=mean, low=low, high=high, p=p, seeds_needed=needed, verdict=verdict)


def mean_interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """The confidence interval of the mean of several values (Student's t)."""
    mean, deviation, n = float(values.mean()), float(values.std(ddof=1)), len(values)
    if deviation == 0:
        return mean, mean
    from scipy import stats  # noqa: PLC0415 (imported late: it takes most of a second, and a single run does not need it)

    low, high = stats.t.interval(level, n - 1, mean, deviation / np.sqrt(n))
    return float(low), float(high)


def _p(mean: float, deviation: float, n: int, limit: float) -> float:
    """The larger p-value of the two one-sided tests of |mean| < limit."""
    if deviation == 0:
        return 0.0 if abs(mean) < limit else 1.0
    from scipy import stats  # noqa: PLC0415 (lazy)

    error = deviation / np.sqrt(n)
    above = stats.t.sf((mean + limit) / error, n - 1)
    below = stats.t.cdf((mean - limit) / error, n - 1)
    return float(max(above, below))


def seeds_needed(mean: float, deviation: float, limit: float) -> int | None:
    """The number of pairs with which both tests succeed with probability ``POWER``.

    The mean and the standard deviation of the differences are assumed to be the true ones.

    Returns:
        The number; None if the mean is beyond the margin, or the search passes ``MOST_SEEDS``.
    """
    if abs(mean) >= limit:
        return None
    from scipy import stats  # noqa: PLC0415 (lazy)

    def sufficient(n: int) -> bool:
        critical, root = stats.t.ppf(1 - ALPHA, n - 1), np.sqrt(n) / deviation
        above = stats.nct.sf(critical, n - 1, (mean + limit) * root)
        below = stats.nct.cdf(-critical, n - 1, (mean - limit) * root)
        return bool(above + below - 1 >= POWER)

    if deviation == 0:
        return 2
    few = 1
    while not sufficient(2 * few):
        few *= 2
        if few > MOST_SEEDS:
            return None
    return bisect_left(range(2 * few), True, few + 1, key=sufficient)
