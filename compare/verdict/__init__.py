"""Verdict: compares the records of two runs; plain data in, plain data out, imports no TensorFlow.

``compare_records`` compares bit for bit. ``with_noise`` judges a difference by noise twins, ``with_study`` by the seeds
of a study. The result is a ``Comparison``; ``as_json`` converts comparisons to the content of ``verdict.json``.
"""

from compare.verdict.evidence import with_noise, with_study
from compare.verdict.exact import (
    absolute_gap,
    beyond_rounding,
    compare_records,
    compare_training,
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
from compare.verdict.not_finite import NotFinite, warning

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
    "NotFinite",
    "Reporting",
    "Training",
    "absolute_gap",
    "as_json",
    "asynchronous",
    "beyond_rounding",
    "compare_records",
    "compare_training",
    "moved",
    "noise_start",
    "not_comparable",
    "paired_names",
    "warning",
    "with_noise",
    "with_study",
    "within_rounding",
    "worst",
]
