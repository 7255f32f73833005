"""Names why two scripts with equal weights report other numbers; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.recorded import CLOSE, penalty_of, same
from compare.check.report import named
from compare.check.stages import example_rows, loss_of
from compare.check.used import SCRIPT_ALONE, Used
from compare.records import Record
from compare.verdict import Finding
from compare.watch.reported_logs import names_by_metric
from compare.watch.seen import CloseUp
from compare.watch.trace import Measured, Trace

NOT_RESET, AVERAGED, LAST = "metrics-not-reset", "loss-averaged-over-batches", "last-batch-only"
OTHER_METRIC = "metric-differs"
UNREGULARIZED = {"loss": "loss-without-regularization", "val_loss": "validation-loss-without-regularization"}
SMALL = 0.05
"""The largest error of an explanation, as a part of the difference that it explains."""

Named = tuple[str, Measurement]
"""The id of a cause, and its evidence."""


@dataclass(frozen=True)
class Losses:
    """The losses of the steps of an epoch.

    Attributes:
        values: the loss that each step minimized.
        examples: the number of examples of each step.
        penalties: what each contains of the model's own losses; empty if nothing.
        after: the loss of the same examples after the update; empty if it was not computed in every step.
    """

    values: Sequence[float]
    examples: Sequence[int]
    penalties: Sequence[float] = ()
    after: Sequence[float] = ()

    @property
    def mean(self) -> float:
        """The mean over examples, as fit reports it."""
        return float(np.average(self.values, weights=self.examples))

    def parts(self) -> Batches:
        """The losses without the model's own, and these."""
        penalties = np.array(self.penalties or [0.0] * len(self.values))
        return Batches(np.array(self.values) - penalties, np.array(self.examples, float), penalties)


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

    def parts(self) -> Batches:
        """As of ``Losses``."""
        return Batches(np.array(self.values), np.array(self.examples, float), np.full(len(self.values), self.penalty))


@dataclass(frozen=True)
class Batches:
    """The batches of an epoch.

    Attributes:
        values: the mean loss of the examples of each.
        examples: the number of examples of each.
        penalties: the model's own losses in each.
    """

    values: np.ndarray
    examples: np.ndarray
    penalties: np.ndarray


def validation_by_epoch(seen: CloseUp, ends: Sequence[int]) -> dict[int, Validation]:
    """What was seen of the validation after every epoch, given the number of steps at its end."""
    found = {}
    for epoch, end in enumerate(ends, start=1):
        if end in seen.penalties:
            batches = seen.untaped.get(end, ())
            values, examples = [value for value, _ in batches], [count for _, count in batches]
            found[epoch] = Validation(values, examples, seen.penalties[end])
    return found


def losses_by_epoch(seen: CloseUp, ends: Sequence[int]) -> dict[int, Losses]:
    """The losses of every epoch whose steps were all seen, given the number of steps at its end."""
    losses, begin = {}, 0
    for epoch, end in enumerate(ends, start=1):
        steps = range(begin + 1, end + 1)
        values, examples = [loss_of(seen, step) for step in steps], [len(example_rows(seen, step)) for step in steps]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and all(examples):
            after = [_after(seen, step, count) for step, count in zip(steps, examples, strict=True)]
            again = [value for value in after if value is not None]
            penalties = [penalty_of(seen, step) for step in steps]
            losses[epoch] = Losses(
                known, examples, penalties if any(penalties) else (), again if len(again) == len(after) else ()
            )
        begin = end
    return losses


def _after(seen: CloseUp, step: int, examples: int) -> float | None:
    """The loss that was computed again after a step, for as many examples."""
    return next((value for value, count in seen.untaped.get(step, ()) if count == examples), None)


def not_reset(reference: Record, candidate: Record) -> list[str]:
    """The metrics that go on with the state that they have from epochs before, or from training."""
    return [*_over_epochs(reference, candidate), *_with_training(reference, candidate)]


def _over_epochs(reference: Record, candidate: Record) -> list[str]:
    """The metrics that are the means over all epochs so far of what the reference reports."""
    found, epochs = [], sorted(reference.logs.keys() & candidate.logs.keys())
    for name in dict.fromkeys(name for logs in reference.logs.values() for name in logs):
        right, other = ([side.logs[epoch].get(name) for epoch in epochs] for side in (reference, candidate))
        if len(epochs) < 2 or None in right or None in other or right == other:
            continue
        means = np.cumsum(np.array(right, np.float64)) / np.arange(1, len(epochs) + 1)
        if np.allclose(means, np.array(other, np.float64), rtol=1e-4):
            found.append(name)
    return found


def _with_training(reference: Record, candidate: Record) -> list[str]:
    """The numbers of validation that also contain those of training: each the same part in every epoch."""
    parts: dict[str, list[float]] = {}
    for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
        right, other = reference.logs[epoch], candidate.logs[epoch]
        for name in (each for each in right if each.startswith("val_") and each in other):
            training = right.get(name.removeprefix("val_"), right[name])
            apart = training - right[name]
            parts.setdefault(name, []).append((other[name] - right[name]) / apart if apart else 0.0)
    shares = [share for each in parts.values() for share in each if abs(share) > CLOSE]
    if len(shares) < 2 or not 0 < min(shares) <= max(shares) < 1 or np.ptp(shares) > 1e-3 * max(shares):
        return []
    return [name for name, each in parts.items() if all(abs(share) > CLOSE for share in each)]


def name_reporting(
    reference: Record,
    candidate: Record,
    losses: Mapping[int, Losses] | None = None,
    validation: Mapping[int, Validation] | None = None,
    used: Used = SCRIPT_ALONE,
    metrics: Mapping[str, Measurement] | None = None,
) -> list[Finding]:
    """The causes of different numbers from equal weights, each once.

    Args:
        reference: what the reference reported.
        candidate: what the candidate reported.
        losses: the losses of the candidate's steps, by epoch; None if they are not known.
        validation: those of its validation.
        used: what the candidate uses.
        metrics: the numbers that another metric measures, with the evidence.
    """
    found: list[Named] = []
    if running := _over_epochs(reference, candidate):
        found.append((NOT_RESET, Measurement.of("running-means", metrics=running, other=reference.trainer)))
    if mixed := _with_training(reference, candidate):
        found.append((NOT_RESET, Measurement.of("mixed-means", metrics=mixed)))
        running = [*running, *mixed]
    if "loss" not in running:
        found += _of_loss(candidate, losses or {})
    if "val_loss" not in running:
        found += _of_validation(reference, candidate, validation or {})
    found += [(OTHER_METRIC, seen) for name, seen in (metrics or {}).items() if name not in running]
    causes: dict[str, list[Measurement]] = {}
    for cause, seen in found:
        causes.setdefault(cause, []).append(seen)
    return [
        named(
            cause,
            CATALOGUE[cause].kind,
            candidate.trainer,
            Measurement.all(parts),
            CATALOGUE[cause].remedy_for(used),
        )
        for cause, parts in causes.items()
    ]


def _of_loss(candidate: Record, losses: Mapping[int, Losses]) -> list[Named]:
    """Why the loss of training is another than the mean over the examples of each epoch."""
    reported = {epoch: logs["loss"] for epoch, logs in sorted(candidate.logs.items()) if "loss" in logs}
    if not _from_the_first(reported) or not losses.keys() >= reported.keys():
        return []
    seen = [losses[epoch].parts() for epoch in reported]
    return _mistaken("loss", seen, _reported(seen, ()), reported, (AVERAGED, LAST, NOT_RESET))


def _of_validation(reference: Record, candidate: Record, validation: Mapping[int, Validation]) -> list[Named]:
    """Why ``val_loss`` is another than the reference's.

    No cause is named unless, without any mistake, what was seen gives the reference's value.
    """
    reported = {epoch: logs["val_loss"] for epoch, logs in sorted(candidate.logs.items()) if "val_loss" in logs}
    right = [reference.logs.get(epoch, {}).get("val_loss", np.nan) for epoch in reported]
    if not _from_the_first(reported) or not validation.keys() >= reported.keys():
        return []
    found = [validation[epoch] for epoch in reported]
    seen = [each.parts() for each in found]
    if not all(each.values and all(each.examples) for each in found) or not _all_same(_reported(seen, ()), right):
        # The batches were not seen: of the reference's value, the penalty is known.
        pairs = zip(right, found, strict=True)
        seen = [Validation([value - each.penalty], [1], each.penalty).parts() for value, each in pairs]
    return _mistaken("val_loss", seen, right, reported, (AVERAGED, NOT_RESET), other=reference.trainer)


def _from_the_first(reported: Mapping[int, float]) -> bool:
    """Whether a number was reported for every epoch up to the last that has one."""
    return bool(reported) and list(reported) == list(range(1, len(reported) + 1))


def _mistaken(
    metric: str,
    seen: Sequence[Batches],
    right: Sequence[float],
    reported: Mapping[int, float],
    known: Sequence[str],
    **names: str,
) -> list[Named]:
    """The mistakes that give what was reported of a loss, each with what says it of one epoch, or of the last."""
    epochs, other = list(reported), list(reported.values())
    mistakes = _mistakes(seen, right, other, (UNREGULARIZED[metric], *known))
    at = next((i for i, (a, b) in enumerate(zip(right, other, strict=True)) if not same(a, b)), -1)
    batches, expected = seen[at], {"metric": metric, "right": right[at], "examples": sum(seen[at].examples), **names}
    of = {**expected, "epoch": epochs[at], "value": other[at]}
    more = {"batches": len(batches.values), "last": batches.examples[-1], "penalty": batches.penalties[-1]}
    last = {**expected, "epoch": epochs[-1], "value": other[-1]}
    quantities = {LAST: of, NOT_RESET: last}
    return [(each, Measurement.of(f"reported-{each}", **quantities.get(each, {**of, **more}))) for each in mistakes]


def _mistakes(
    seen: Sequence[Batches], right: Sequence[float], other: Sequence[float], known: Sequence[str]
) -> Sequence[str]:
    """The fewest mistakes that give the other value in every epoch; empty if there are several such sets, or none."""
    if _all_same(other, right):
        return ()
    matching = []
    for mistakes in (each for count in (1, 2, 3) for each in combinations(known, count)):
        if LAST in mistakes and (AVERAGED in mistakes or NOT_RESET in mistakes):
            continue
        values = np.array(_reported(seen, mistakes))
        effect, error = np.max(np.abs(values - right)), np.max(np.abs(values - other))
        if _all_same(list(values), other) and error < SMALL * effect:
            matching.append(mistakes)
    return matching[0] if matching and all(set(matching[0]) <= set(each) for each in matching) else ()


def _reported(seen: Sequence[Batches], mistakes: Sequence[str]) -> list[float]:
    """The loss of each epoch, as fit calculates it but for mistakes."""
    without = bool(set(mistakes) & set(UNREGULARIZED.values()))
    cut = slice(-1, None) if LAST in mistakes else slice(None)
    values = [(each.values + (0 if without else each.penalties))[cut] for each in seen]
    counts = [(np.ones_like(each.examples) if AVERAGED in mistakes else each.examples)[cut] for each in seen]
    begins = [0 if NOT_RESET in mistakes else i for i in range(len(seen))]
    return [
        float(np.average(np.concatenate(values[begin : i + 1]), weights=np.concatenate(counts[begin : i + 1])))
        for i, begin in enumerate(begins)
    ]


def name_metrics(
    reference: Trace, candidate: Trace, ends: Sequence[int], differing: Collection[str], reference_name: str
) -> dict[str, Measurement]:
    """The numbers, of those that differ, that another metric measures than in the reference, with the evidence."""
    own, found = _measures(candidate, ends, reference), {}
    for name, right in _measures(reference, ends, reference).items():
        other = own.get(name)
        if name in differing and other is not None and _what(other) != _what(right):
            measured = [
                {"metric_class": each.kind, "labels": list(each.true), "predictions": list(each.predicted)}
                for each in (other, right)
            ]
            found[name] = Measurement.of(
                "script-other-metric", metric=name, side=measured[0], other=reference_name, expected=measured[1]
            )
    return found


def _measures(trace: Trace, ends: Sequence[int], like: Trace) -> dict[str, Measured]:
    """The metrics of a training, by the names of the numbers; fit uses each for training and validation."""
    if trace.epochs:
        named = [(each.name, each) for each in trace.measured if each.by_fit]
        return {f"{part}{name}": each for name, each in named for part in ("", "val_")}
    names = names_by_metric(trace, ends, like)
    return {names[each.metric]: each for each in trace.measured if names.get(each.metric)}


def _what(metric: Measured) -> str:
    """What a metric measures: two classes measure the same if each gets labels in its own form."""
    classes = metric.predicted[-1] if metric.predicted else None
    if metric.kind == "SparseCategoricalAccuracy" and (
        metric.true[-1:] == [1] or len(metric.true) < len(metric.predicted)
    ):
        return "most probable class"
    if metric.kind == "CategoricalAccuracy" and metric.true[-1:] == [classes] and classes != 1:
        return "most probable class"
    return metric.kind


def evidence_on_numbers(
    candidate: Record, differing: Collection[str], seen: CloseUp, losses: Mapping[int, Losses], ends: Sequence[int]
) -> list[Measurement]:
    """What was seen of a training that may explain the numbers that differ, without a cause of the catalogue."""
    found = []
    steps = [step for step in seen.steps if step <= max(ends)]
    again = sum(step in seen.again for step in steps)
    reported = {epoch: logs["loss"] for epoch, logs in candidate.logs.items() if "loss" in logs}
    known = reported and all(epoch in losses and losses[epoch].after for epoch in reported)
    others = {name for name in differing if not name.startswith("val_")}
    if known and all(same(value, _mean_after(losses[epoch])) for epoch, value in reported.items()):
        epoch, value = next(iter(reported.items()))
        found.append(Measurement.of("loss-after-update", epoch=epoch, value=value, expected=losses[epoch].mean))
        others.discard("loss")
    zero = [epoch for epoch, value in reported.items() if value == 0 and epoch in losses and losses[epoch].mean]
    if "loss" in others and zero and len(zero) == len(reported):
        seen_loss = losses[zero[0]].mean
        found.append(Measurement.of("loss-never-updated", side=candidate.trainer, epoch=zero[0], expected=seen_loss))
        others.discard("loss")
    if steps and 2 * again > len(steps) and others:
        found.append(Measurement.of("called-again", side=candidate.trainer, steps=again, of=len(steps)))
    for name in sorted(differing):
        for threshold, power in product((0.5, 0.0), (1, 2, 0)):  # probabilities or logits; how much each batch counts
            shares = {epoch: _share_of_pairs(seen, ends, epoch, threshold, power) for epoch in candidate.logs}
            pairs = [(logs.get(name), shares[epoch]) for epoch, logs in candidate.logs.items()]
            if all(a is not None and b is not None and same(a, b) for a, b in pairs):
                found.append(Measurement.of("share-of-pairs", metric=name))
                break
    return found


def _mean_after(losses: Losses) -> float:
    return float(np.average(losses.after, weights=losses.examples))


def _share_of_pairs(seen: CloseUp, ends: Sequence[int], epoch: int, threshold: float, power: int) -> float | None:
    """The share of equal pairs among all pairs of a label and a prediction of each batch, the mean over an epoch."""
    begin = ends[epoch - 2] if epoch > 1 else 0
    shares, weights = [], []
    for step in range(begin + 1, ends[epoch - 1] + 1) if epoch <= len(ends) else ():
        for event in seen.of(step, "targets"):
            if not event.arrays or event.info["true"] != 1 or event.info["predicted"] != 1:
                return None
            true, predicted = (np.asarray(array).reshape(-1) for array in event.arrays[:2])
            shares.append(np.equal.outer(true, predicted > threshold).mean())
            weights.append(float(true.size) ** power)
    return float(np.average(shares, weights=weights)) if shares else None


def _all_same(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(same(one, other) for one, other in zip(a, b, strict=True))
