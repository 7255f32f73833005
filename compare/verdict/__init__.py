"""Verdict: compares the records of two runs; plain data in, plain data out, imports no TensorFlow.

``compare_records`` compares bit for bit. ``with_noise`` judges a difference by noise twins, ``with_study`` by the seeds
of a study. The result is a ``Comparison``; a ``Verdict`` of all comparisons is what ``verdict.json`` holds.
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
    Comparison,
    Difference,
    DifferingVariable,
    Failure,
    Finding,
    MetricGap,
    NotApplicable,
    Reporting,
    Source,
    StageValues,
    Stop,
    Training,
    Verdict,
    asynchronous,
    not_comparable,
    warning,
)
from compare.verdict.not_finite import NotFinite
from compare.verdict.outcomes import (
    ALIKE,
    DIFFERENT,
    EXIT_STATUS,
    FROM_BEST,
    IDENTICAL,
    INCONCLUSIVE,
    worst,
)
