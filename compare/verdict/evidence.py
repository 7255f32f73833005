"""Comparisons updated with further evidence: noise twins, or the seeds of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from compare.records import Record
from compare.verdict.exact import noise_start
from compare.verdict.model import ALIKE, IDENTICAL, INCONCLUSIVE, Comparison
from compare.verdict.rounding import measure

if TYPE_CHECKING:
    from compare.verdict.seeds import Study


def with_noise(
    comparison: Comparison,
    reference: Record,
    candidate: Record,
    twins: Sequence[Record],
    anchor: Record | None = None,
) -> Comparison:
    """The comparison with its weight difference judged by noise twins (see ``compare.verdict.rounding``).

    Args:
        comparison: the bit-for-bit comparison of the two records.
        reference: the record of the reference.
        candidate: the record of the candidate.
        twins: noise twins of ``anchor``, with noise from ``noise_start`` on; if empty, nothing changes.
        anchor: the run that the twins repeat; the reference by default.
    """
    start = noise_start(reference, candidate, comparison.training)
    if start is None or not twins:
        return comparison
    noise = measure(reference, candidate, twins, start, anchor)
    training = replace(comparison.training, noise=noise)
    if noise.explains:
        training = replace(training, verdict=ALIKE)
    elif not noise.reproduced:
        name = (anchor or reference).trainer
        reason = f"{name} does not give the same weights when it is run again, so nothing can be compared with it"
        training = replace(training, verdict=INCONCLUSIVE, reason=reason)
    elif noise.so_far:
        reason = "rounding explains the gap for as long as the noise twins were trained, but they ended before the runs"
        training = replace(training, verdict=INCONCLUSIVE, reason=reason)
    return replace(comparison, training=training)


def with_study(comparison: Comparison, study: Study, known_cause: bool) -> Comparison:
    """The comparison with the verdict of a study of several seeds.

    If the weights are not identical, the study decides the training verdict, unless the cause is known.
    """
    training = comparison.training
    if training.verdict != IDENTICAL and not known_cause:
        training = replace(training, verdict=study.verdict)
    return replace(comparison, training=training, study=study)
