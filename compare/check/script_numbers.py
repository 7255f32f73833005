"""Names why two scripts with equal weights report other numbers; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.report import Finding
from compare.check.script_causes import Named, same
from compare.check.script_remedies import script_remedy
from compare.check.stages import example_rows, loss_of
from compare.records import Record
from compare.watch.seen import CloseUp

NOT_RESET, AVERAGED = "metrics-not-reset", "loss-averaged-over-batches"
UNREGULARIZED = "validation-loss-without-regularization"
SMALL = 0.05
"""The largest error of an explanation, as a part of the difference that it explains."""


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


@dataclass(frozen=True)
class Validation:
    """What the validation losses of an epoch are made of.

    Attributes:
        values: the mean loss of each validation batch; empty if it was not seen.
        examples: the number of examples of each.
        penalty: the weights' regularization at the end of the epoch.
    """

    values: Sequence[float]
    examples: Sequence[int]
    penalty: float


def validation_by_epoch(seen: CloseUp, ends: Sequence[int]) -> dict[int, Validation]:
    """What was seen of the validation after every epoch.

    Args:
        seen: the steps of a whole training.
        ends: the number of steps at the end of each epoch.
    """
    found = {}
    for epoch, end in enumerate(ends, start=1):
        if end in seen.penalties:
            batches = seen.untaped.get(end, ())
            values, examples = [value for value, _ in batches], [count for _, count in batches]
            found[epoch] = Validation(values, examples, seen.penalties[end])
    return found


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


def not_reset(reference: Record, candidate: Record) -> list[str]:
    """The metrics that are the means over all epochs so far of what the reference reports."""
    names = dict.fromkeys(name for logs in reference.logs.values() for name in logs)
    return [name for name in names if _running(reference, candidate, name)]


def name_reporting(
    reference: Record,
    candidate: Record,
    losses: Mapping[int, Losses] | None = None,
    validation: Mapping[int, Validation] | None = None,
    replicas: int = 1,
) -> list[Finding]:
    """The causes of different numbers from equal weights, each once.

    Args:
        reference: what the reference reported.
        candidate: what the candidate reported.
        losses: the losses of the candidate's steps, by epoch; None if they are not known.
        validation: those of its validation.
        replicas: the number of replicas on which it trains.
    """
    found: list[Named] = []
    if running := not_reset(reference, candidate):
        means = f"the mean over all epochs so far of what {reference.trainer} reports"
        found.append((NOT_RESET, f"{' and '.join(running)} in each epoch is {means}"))
    if "loss" not in running:
        found += _of_loss(candidate, losses or {})
    if "val_loss" not in running:
        found += _of_validation(reference, candidate, validation or {})
    causes = dict.fromkeys(cause for cause, _ in found)
    evidence = {cause: "; ".join(text for each, text in found if each == cause) for cause in causes}
    return [
        Finding(cause, CATALOGUE[cause].kind, candidate.trainer, evidence[cause], script_remedy(cause, replicas))
        for cause in causes
    ]


def _of_loss(candidate: Record, losses: Mapping[int, Losses]) -> list[Named]:
    """Why the loss of training is another than the mean over the examples of each epoch."""
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
        return [("last-batch-only", f"{shown}, that of the epoch's last batch alone; {right}")]
    if explained(means) and not explained(last):
        count = len(losses[epoch].values)
        text = f"{shown}, the mean over {count} batches, of which the last has {losses[epoch].examples[-1]} examples"
        return [(AVERAGED, f"{text}; {right}")]
    return []


def _of_validation(reference: Record, candidate: Record, validation: Mapping[int, Validation]) -> list[Named]:
    """Why ``val_loss`` is another than the reference's: the fewest mistakes that give its value in every epoch.

    No cause is named unless, without any mistake, what was seen gives the reference's value.
    """
    epochs = sorted(epoch for epoch, logs in candidate.logs.items() if "val_loss" in logs)
    right = [reference.logs.get(epoch, {}).get("val_loss", np.nan) for epoch in epochs]
    other = [candidate.logs[epoch]["val_loss"] for epoch in epochs]
    if not epochs or epochs != list(range(1, len(epochs) + 1)) or not validation.keys() >= set(epochs):
        return []
    seen = [validation[epoch] for epoch in epochs]
    if not all(each.values and all(each.examples) for each in seen) or not _all_same(_val_losses(seen, ()), right):
        # The batches were not seen: of the reference's value, the penalty is known.
        seen = [Validation([value - each.penalty], [1], each.penalty) for value, each in zip(right, seen, strict=True)]
    if _all_same(other, right):
        return []
    matching = []
    for mistakes in (each for count in (1, 2, 3) for each in combinations((UNREGULARIZED, AVERAGED, NOT_RESET), count)):
        values = np.array(_val_losses(seen, mistakes))
        effect, error = np.max(np.abs(values - right)), np.max(np.abs(values - other))
        if _all_same(list(values), other) and error < SMALL * effect:
            matching.append(mistakes)
    if not matching or not all(set(matching[0]) <= set(each) for each in matching):
        return []
    at = next(i for i, (a, b) in enumerate(zip(right, other, strict=True)) if not same(a, b))
    shown = f"val_loss in epoch {epochs[at]} is {other[at]:.6g}, and {right[at]:.6g} in {reference.trainer}"
    texts = {
        UNREGULARIZED: f"{shown}: it lacks the model's own losses, {seen[at].penalty:.6g}",
        AVERAGED: f"{shown}: it is the mean over {len(seen[at].values)} batches, of which the last has "
        f"{seen[at].examples[-1]} examples",
        NOT_RESET: f"val_loss in epoch {epochs[-1]} is {other[-1]:.6g}, the mean over all epochs so far",
    }
    return [(each, texts[each]) for each in matching[0]]


def _val_losses(seen: Sequence[Validation], mistakes: Sequence[str]) -> list[float]:
    """``val_loss`` of each epoch, as fit calculates it but for mistakes."""
    values = [np.array(each.values) + (0 if UNREGULARIZED in mistakes else each.penalty) for each in seen]
    counts = [np.ones(len(each.values)) if AVERAGED in mistakes else np.array(each.examples, float) for each in seen]
    begins = [0 if NOT_RESET in mistakes else i for i in range(len(seen))]
    return [
        float(np.average(np.concatenate(values[begin : i + 1]), weights=np.concatenate(counts[begin : i + 1])))
        for i, begin in enumerate(begins)
    ]


def _all_same(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(same(one, other) for one, other in zip(a, b, strict=True))


def _running(reference: Record, candidate: Record, name: str) -> bool:
    """Whether a metric is the mean over all epochs so far."""
    epochs = sorted(reference.logs.keys() & candidate.logs.keys())
    right = [reference.logs[epoch].get(name) for epoch in epochs]
    other = [candidate.logs[epoch].get(name) for epoch in epochs]
    if len(epochs) < 2 or None in right or None in other or right == other:
        return False
    means = np.cumsum(np.array(right, np.float64)) / np.arange(1, len(epochs) + 1)
    return bool(np.allclose(means, np.array(other, np.float64), rtol=1e-4))
