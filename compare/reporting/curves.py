"""The means over seeds of the columns of ``metrics.csv``, their differences, and the effect of rounding on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compare.records.metrics_csv import Curves, Values
from compare.verdict.exact import absolute_gap
from compare.verdict.rounding import units_of
from compare.verdict.seeds import mean_interval

ROUNDING = 2.0**-24, 2.0**-23
"""The smallest and the largest relative distance of neighbouring float32 numbers."""


def mean_and_interval(seeds: Sequence[Values]) -> tuple[Values, Values, Values]:
    """The mean over seeds per epoch, and the lower and upper ends of its 95% confidence interval."""
    mean, low, high = {}, {}, {}
    for epoch in sorted(set().union(*seeds)):
        values = np.array([seed[epoch] for seed in seeds if math.isfinite(seed.get(epoch, math.nan))])
        if len(values):
            mean[epoch] = float(values.mean())
            low[epoch], high[epoch] = mean_interval(values, 0.95) if len(values) > 1 else (math.nan, math.nan)
    return mean, low, high


def differences(
    curves: Curves, reference: str, candidate: str, metric: str, *, relative: bool = False
) -> dict[int, Values]:
    """By seed and epoch, candidate minus reference; if ``relative``, in percent of the reference."""
    found: dict[int, Values] = {}
    for (trainer, seed), columns in curves.items():
        if trainer == candidate:
            expected, values = curves.get((reference, seed), {}).get(metric, {}), columns.get(metric, {})
            sizes = {e: abs(expected[e]) / 100 if relative else 1.0 for e in expected.keys() & values.keys()}
            found[seed] = {e: (values[e] - expected[e]) / size for e, size in sorted(sizes.items()) if size}
    return found


def rounding_of(sizes: Sequence[float]) -> tuple[float, float]:
    """How far one rounding of float32 moves numbers of these sizes, at least and at most; three decades or less."""
    low, high = (ROUNDING[0] * min(sizes), ROUNDING[1] * max(sizes)) if sizes else ROUNDING
    return max(low, high / 1000), high


def envelope_of(curves: Curves, reference: str, metric: str, noise: Sequence[Curves]) -> Values:
    """By epoch, the largest gap of a metric between the noise twins and the reference, in training or validation."""
    largest: Values = {}
    for (trainer, seed), columns in curves.items():
        if trainer != reference:
            continue
        for name in (metric, f"val_{metric}"):
            expected = columns.get(name, {})
            for twins in noise:
                for (twin, twin_seed), twin_columns in twins.items():
                    actual = twin_columns.get(name, {}) if twin_seed == seed else {}
                    for epoch in expected.keys() & actual.keys():
                        gap = absolute_gap(expected[epoch], actual[epoch])
                        if gap is not None:
                            largest[epoch] = max(largest.get(epoch, 0.0), gap / units_of(twin))
    return {epoch: largest[epoch] for epoch in sorted(largest)}
