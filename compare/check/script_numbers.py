"""Names why two scripts with equal weights report other numbers; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.report import Finding
from compare.check.script_causes import same
from compare.check.stages import example_rows, loss_of
from compare.records import Record
from compare.watch.seen import CloseUp


@dataclass(frozen=True)
class Losses:
    """The losses of the steps of an epoch.

    Attributes:
        values: the loss that each step minimized.
        examples: the number of examples of each step.
    """

    values: Sequence[float]
    examples: Sequence[int]

    @property
    def mean(self) -> float:
        """The mean over examples, as fit reports it."""
        return float(np.average(self.values, weights=self.examples))

    @property
    def mean_of_batches(self) -> float:
        """The mean over batches, whatever their size."""
        return float(np.mean(self.values))


def losses_by_epoch(seen: CloseUp, ends: Sequence[int]) -> dict[int, Losses]:
    """The losses of every epoch whose steps were all seen.

    Args:
        seen: the steps of a whole training.
        ends: the number of steps at the end of each epoch.
    """
    losses, begin = {}, 0
    for epoch, end in enumerate(ends, start=1):
        steps = range(begin + 1, end + 1)
        values, examples = [loss_of(seen, step) for step in steps], [len(example_rows(seen, step)) for step in steps]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and all(examples):
            losses[epoch] = Losses(known, examples)
        begin = end
    return losses


def name_reporting(reference: Record, candidate: Record, losses: Mapping[int, Losses] | None = None) -> list[Finding]:
    """The cause of different numbers from equal weights.

    Args:
        reference: what the reference reported.
        candidate: what the candidate reported.
        losses: the losses of the candidate's steps, by epoch; None if they are not known.
    """
    names = dict.fromkeys(name for logs in reference.logs.values() for name in logs)
    running = [name for name in names if _running(reference, candidate, name)]
    if running:
        evidence = (
            f"{' and '.join(running)} in each epoch is the mean over all epochs so far of what {reference.trainer} "
            "reports"
        )
        return [_finding("metrics-not-reset", candidate, evidence)]
    reported = {epoch: logs["loss"] for epoch, logs in candidate.logs.items() if "loss" in logs}
    if not losses or not reported or not losses.keys() >= reported.keys():
        return []

    def explained(by: Mapping[int, float]) -> bool:
        return all(same(value, by[epoch]) for epoch, value in reported.items())

    if explained({epoch: each.mean for epoch, each in losses.items()}):
        return []
    last = {epoch: each.values[-1] for epoch, each in losses.items()}
    means = {epoch: each.mean_of_batches for epoch, each in losses.items()}
    epoch, value = next(iter(reported.items()))
    shown = f"loss in epoch {epoch} is {value:.6g}"
    right = f"the mean over its {sum(losses[epoch].examples):,} examples is {losses[epoch].mean:.6g}"
    if explained(last) and not explained(means):
        return [_finding("last-batch-only", candidate, f"{shown}, that of the epoch's last batch alone; {right}")]
    if explained(means) and not explained(last):
        count = len(losses[epoch].values)
        text = f"{shown}, the mean over {count} batches, of which the last has {losses[epoch].examples[-1]} examples"
        return [_finding("loss-averaged-over-batches", candidate, f"{text}; {right}")]
    return []


def _finding(cause: str, candidate: Record, evidence: str) -> Finding:
    entry = CATALOGUE[cause]
    return Finding(entry.id, entry.kind, candidate.trainer, evidence, entry.remedy)


def _running(reference: Record, candidate: Record, name: str) -> bool:
    """Whether a metric is the mean over all epochs so far."""
    epochs = sorted(reference.logs.keys() & candidate.logs.keys())
    right = [reference.logs[epoch].get(name) for epoch in epochs]
    other = [candidate.logs[epoch].get(name) for epoch in epochs]
    if len(epochs) < 2 or None in right or None in other or right == other:
        return False
    means = np.cumsum(np.array(right, np.float64)) / np.arange(1, len(epochs) + 1)
    return bool(np.allclose(means, np.array(other, np.float64), rtol=1e-4))
