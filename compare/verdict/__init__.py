"""Verdict: what the records of two runs say about each other; plain data in, plain data out, no TensorFlow.

``compare_records`` compares bit for bit; ``with_noise`` holds a difference against noise twins, ``with_study`` against
the seeds of a study. The outcome is a ``Comparison``, which ``as_json`` turns into an entry of ``verdict.json``.
"""

from compare.verdict.evidence import with_noise, with_study
from compare.verdict.exact import (
    absolute_gap,
    compare_records,
    compare_training,
    max_weight_gap,
    metric_gaps,
    moved,
    noise_start,
    paired_names,
    within_rounding,
)
from compare.verdict.model import (
    ALIKE,
    DIFFERENT,
    EXIT_STATUS,
    FROM_BEST,
    IDENTICAL,
    INCONCLUSIVE,
    NOT_COMPARABLE,
    Comparison,
    Difference,
    Failure,
    MetricGap,
    Reporting,
    Training,
    as_json,
    asynchronous,
    not_comparable,
    worst,
)

__all__ = [
    "ALIKE",
    "DIFFERENT",
    "EXIT_STATUS",
    "FROM_BEST",
    "IDENTICAL",
    "INCONCLUSIVE",
    "NOT_COMPARABLE",
    "Comparison",
    "Difference",
    "Failure",
    "MetricGap",
    "Reporting",
    "Training",
    "absolute_gap",
    "as_json",
    "asynchronous",
    "compare_records",
    "compare_training",
    "max_weight_gap",
    "metric_gaps",
    "moved",
    "noise_start",
    "not_comparable",
    "paired_names",
    "with_noise",
    "with_study",
    "within_rounding",
    "worst",
]
