"""Comparisons updated with further evidence: noise twins, or the seeds of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compare.records import Record
from compare.verdict.exact import absolute_gap, noise_start, paired_names
from compare.verdict.model import Comparison
from compare.verdict.outcomes import ALIKE, IDENTICAL
from compare.verdict.rounding import FACTOR, measure, units_of
from compare.verdict.seeds import Study


def with_noise(
    comparison: Comparison, reference: Record, candidate: Record, twins: Sequence[Record], anchor: Record | None = None
) -> Comparison:
    """The comparison with its weight difference judged by noise twins (see ``compare.verdict.rounding``).

    Args:
        twins: noise twins of ``anchor``, with noise from ``noise_start`` on; if empty, nothing changes.
        anchor: the run that the twins repeat; the reference by default.
    """
    start = noise_start(reference, candidate, comparison.training)
    if start is None or not twins:
        return comparison
    noise = measure(reference, candidate, twins, start, anchor)
    comparison = replace(comparison, training=replace(comparison.training, noise=noise))
    if noise.explains:
        training, reporting = replace(comparison.training, verdict=ALIKE), comparison.reporting
        moved = metrics_beyond(reference, candidate, twins, anchor or reference)
        reporting = replace(reporting, unexplained=tuple(name for name in reporting.unexplained if name in moved))
        return replace(comparison, training=training, reporting=reporting)
    if not noise.reproduced:
        name = (anchor or reference).trainer
        return comparison.undecided(
            f"{name} does not give the same weights when it is run again, so nothing can be compared with it"
        )
    if noise.so_far:
        return comparison.undecided(
            "rounding explains the gap for as long as the perturbed runs were trained, but they ended before the runs"
        )
    return comparison


def metrics_beyond(reference: Record, candidate: Record, twins: Sequence[Record], anchor: Record) -> set[str]:
    """The reference's names of the reported metrics whose gap is larger than ``FACTOR`` times that of all twins.

    As for weights, the gaps of twins are the largest up to each epoch.
    """
    beyond = set()
    for name, other in paired_names(reference, candidate).items():
        largest = 0.0
        for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
            gaps = (
                (absolute_gap(anchor.logs.get(epoch, {}).get(name), twin.logs.get(epoch, {}).get(name)) or 0.0)
                / units_of(twin.trainer)
                for twin in twins
            )
            largest = max([largest, *gaps])
            gap = absolute_gap(reference.logs[epoch].get(name), candidate.logs[epoch].get(other))
            both = name in reference.logs[epoch] and other in candidate.logs[epoch]
            if both and (gap is None or gap > FACTOR * largest):
                beyond.add(name)
    return beyond


def with_study(comparison: Comparison, study: Study, known_cause: bool) -> Comparison:
    """The comparison with the verdict of a study of several seeds.

    If the weights are not identical, the study decides the training verdict, unless the cause is known.
    """
    training = comparison.training
    if training.verdict != IDENTICAL and not known_cause:
        training = replace(training, verdict=study.verdict)
    reporting = replace(comparison.reporting, unexplained=())  # the study compares them
    return replace(comparison, training=training, reporting=reporting, study=study).held_different()
