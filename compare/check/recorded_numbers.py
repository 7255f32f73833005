"""Names why two recorded sides with equal weights report other numbers, by the losses that they had; no TensorFlow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.causes.reporting import mixed, over_epochs
from compare.check.measurement import Measurement
from compare.check.recipe import MetricFormula
from compare.check.recorded import SMALL, same
from compare.check.search import find_explanations, recognisers
from compare.check.used import SCRIPT_ALONE, Used
from compare.records.model import Record
from compare.verdict.findings import Finding
from compare.watch.seen import CloseUp

NOT_RESET, AVERAGED, LAST = "metrics-not-reset", "loss-averaged-over-batches", "last-batch-only"
AFTER = "metrics-after-update"
SHARE = "loss-not-reduced"
OTHER_METRIC = "metric-differs"
KNOWN = (SHARE, "loss-without-regularization", "validation-loss-without-regularization", AVERAGED, LAST, NOT_RESET)
"""The mistakes that can be predicted from the losses of batches, in the order in which they are told."""

Named = tuple[str, Measurement]
"""The id of a cause, and its evidence."""


@dataclass(frozen=True)
class Losses:
    """The losses of the batches of an epoch, of training or of validation.

    Attributes:
        values: the loss of each batch; empty if none was seen, but for the penalty.
        examples: the number of examples of each.
        penalties: what each contains of the model's own losses; empty if nothing.
        after: the loss of the same examples after the update; empty if it was not computed in every step.
        parts: how many of these make a batch: one for each replica, or one.
        shares: into how many shares, which are not summed, each is divided over the replicas; 1 if it is not.
        divided: whether Keras divides it.
    """

    values: Sequence[float]
    examples: Sequence[int]
    penalties: Sequence[float] = ()
    after: Sequence[float] = ()
    parts: int = 1
    shares: int = 1
    divided: bool = False

    @property
    def mean(self) -> float:
        """The mean over examples, as fit reports it."""
        return float(np.average(self.values, weights=self.examples))


@dataclass(frozen=True)
class ReportedLoss:
    """A loss that the candidate reports, which the losses of its batches predict.

    It has what the causes that are ``KNOWN`` ask of a ``ReportedMetric``.

    Attributes:
        epochs: the losses of the batches of each epoch, from the first.
        right: what should be reported of each.
        reported: what is.
    """

    key: str
    epochs: Sequence[Losses]
    right: Sequence[float]
    reported: Sequence[float]
    is_loss: bool = True

    @property
    def replicas(self) -> int:
        return min(each.shares for each in self.epochs)

    @property
    def penalties(self) -> bool:
        return any(any(each.penalties) for each in self.epochs)

    @property
    def divided(self) -> str:
        return self.part if all(each.divided for each in self.epochs) else ""

    @property
    def part(self) -> str:
        return "validation" if self.key.startswith("val_") else "train"

    def predict(self, formula: MetricFormula) -> list[float] | None:
        """What is reported of each epoch by a formula; None if the losses of batches do not say."""
        known = {name: getattr(formula, name) for name in ("per", "carry", "scale", "last", "regularization")}
        if formula != MetricFormula(**known) or formula.carry not in ("nothing", "own") or formula.scale > 1:
            return None
        found: list[float] = []
        kept: list[list[tuple[float, int]]] = []
        for each in self.epochs:
            own = np.multiply(each.penalties or 0.0, 1 - formula.regularization)
            parts = zip(np.subtract(each.values, own).tolist(), each.examples, strict=True)
            now = [[part] for part in parts][-1 if formula.last else 0 :]
            kept = [*(kept if formula.carry == "own" else []), *now]
            found.append(formula.mean(kept, len(now)))
        return found

    def residual(self, formula: MetricFormula) -> float:
        """The error of a formula as a part of the difference that it explains; infinite if one number is another."""
        values = self.predict(formula)
        if values is None or not all(map(same, values, self.reported)):
            return np.inf
        error, effect = (np.max(np.abs(np.subtract(values, each))) for each in (self.reported, self.right))
        return float(error / effect) if effect else np.inf

    def mistakes(self, **names: str) -> list[Named]:
        """The causes of a wrong number, if one explanation is found, each with what says it of one epoch."""
        at = next((i for i, pair in enumerate(zip(self.right, self.reported, strict=True)) if not same(*pair)), None)
        if at is None:
            return []
        candidates = [each for each in recognisers("formula", self) if each[0].id in KNOWN]
        explanations = find_explanations(MetricFormula(), candidates, self.residual, SMALL, most=3)
        if len(explanations) != 1:
            return []
        batches = self.epochs[at]
        expected = {"metric": self.key, "right": self.right[at], "examples": float(sum(batches.examples)), **names}
        of = {**expected, "epoch": at + 1, "value": self.reported[at]}
        penalty = batches.penalties[-1] if batches.penalties else 0.0
        examples = float(sum(batches.examples[-batches.parts :]))
        more = {"batches": len(batches.values) // batches.parts, "last": examples, "penalty": penalty}
        last = {**expected, "epoch": len(self.reported), "value": self.reported[-1]}
        share = {**of, "replicas": self.replicas, **({"divided": self.divided} if self.divided else {})}
        if explanations[0].recipe.regularization > 1:
            share["alone"] = True
        quantities = {LAST: of, NOT_RESET: last, SHARE: share}
        ids = sorted(explanations[0].ids, key=KNOWN.index)
        parts = {id: {"rest": [each for each in ids if each != id]} if len(ids) > 1 else {} for id in ids}
        return [(id, Measurement.of(f"reported-{id}", **quantities.get(id, {**of, **more}), **parts[id])) for id in ids]


def validation_by_epoch(seen: CloseUp, ends: Sequence[int]) -> dict[int, Losses]:
    """What was seen of the validation after every epoch, given the number of steps at its end."""
    found = {}
    for epoch, end in enumerate(ends, start=1):
        if end in seen.penalties:
            batches, penalty = seen.untaped.get(end, ()), seen.penalties[end]
            values, examples = [value + penalty for value, _ in batches], [count for _, count in batches]
            losses = Losses(values, examples, [penalty] * max(len(values), 1))
            if "validation" in seen.divided and values:
                replicas = _replicas(seen)
                sums = [float(np.mean(values[:replicas])) + penalty * times for times in (-1, 0, replicas - 1)]
                losses = replace(losses, parts=replicas, shares=_shares(seen, sums), divided=True)
            found[epoch] = losses
    return found


def _replicas(seen: CloseUp) -> int:
    """On how many replicas losses are computed."""
    return max((event.replica for event in seen.of(min(seen.steps, default=0), "loss")), default=0) + 1


def _shares(seen: CloseUp, sums: Sequence[float]) -> int:
    """Into how many shares losses are divided, of which the first has such a sum; 1 if the shares are summed."""
    return 1 if any(same(each, total) for each in seen.summed for total in sums) else _replicas(seen)


def _steps_by_epoch(ends: Sequence[int]) -> Iterator[tuple[int, range]]:
    """The epochs, from 1, with the numbers of their steps."""
    for epoch, (begin, end) in enumerate(pairwise((0, *ends)), start=1):
        yield epoch, range(begin + 1, end + 1)


def losses_by_epoch(seen: CloseUp, ends: Sequence[int]) -> dict[int, Losses]:
    """The losses of every epoch whose steps were all seen, given the number of steps at its end."""
    losses = {}
    for epoch, steps in _steps_by_epoch(ends):
        values = [seen.loss(step) for step in steps]
        # An input may be the same for all examples, such as the matrix of a graph.
        examples = [len(seen.example_rows(step) or seen.rows(step, "targets")) for step in steps]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and all(examples):
            # The losses that were computed again after each step, the first for as many examples.
            after = [{count: value for value, count in reversed(seen.untaped.get(step, ()))} for step in steps]
            again = [values[count] for values, count in zip(after, examples, strict=True) if count in values]
            penalties = [seen.penalty(step) for step in steps]
            losses[epoch] = Losses(
                known,
                examples,
                penalties if any(penalties) else (),
                again if len(again) == len(after) else (),
                shares=_shares(seen, known[:1]),
                divided="train" in seen.divided,
            )
    return losses


def name_reporting(
    reference: Record,
    candidate: Record,
    losses: Mapping[int, Losses] | None = None,
    validation: Mapping[int, Losses] | None = None,
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
    if over := over_epochs(reference, candidate):
        found.append((NOT_RESET, Measurement.of("running-means", metrics=over, other=reference.trainer)))
    running = set(over)
    for part, kind in (("train", "mixed-means-of-train"), ("validation", "mixed-means-of-validation")):
        if names := mixed(reference, candidate, part):
            found.append((NOT_RESET, Measurement.of(kind, metrics=names)))
            running.update(names)
    for key, known in (("loss", losses), ("val_loss", validation)):
        if key not in running:
            found += _of_loss(key, reference, candidate, known or {})
    found += [(OTHER_METRIC, seen) for name, seen in (metrics or {}).items() if name not in running]
    return _together(found, candidate, used)


def name_own_losses(
    side: Record, losses: Mapping[int, Losses], validation: Mapping[int, Losses], used: Used
) -> list[Finding]:
    """The causes of other reported losses than those of the side's own steps and its own validation."""
    of_validation = {at: each for at, each in validation.items() if each.values}
    return _together([*_of_own("loss", side, losses), *_of_own("val_loss", side, of_validation)], side, used)


def is_training_accuracy(name: str) -> bool:
    """Whether a reported number is an accuracy of training, whose predictions are seen."""
    return "acc" in name and not name.startswith("val_")


def name_own_accuracies(
    side: Record, names: Iterable[str], seen: CloseUp, ends: Sequence[int], used: Used
) -> list[Finding]:
    """The causes of other accuracies of training than those of the side's own predictions in each step."""
    found: list[Named] = []
    for key in filter(is_training_accuracy, names):
        named = (_of_own(key, side, known) for known in _correct_by_epoch(seen, ends))
        found += next(filter(None, named), [])
    return _together(found, side, used)


def _correct_by_epoch(seen: CloseUp, ends: Sequence[int]) -> Iterator[dict[int, Losses]]:
    """The share of right predictions of each batch, for classes, and for probabilities or logits of one label."""
    for threshold in (None, 0.5, 0.0):
        found = {}
        for epoch, steps in _steps_by_epoch(ends):
            batches = [_correct(seen, step, threshold) for step in steps]
            known = [each for each in batches if each is not None and len(each)]
            if known and len(known) == len(batches):
                found[epoch] = Losses([float(each.mean()) for each in known], list(map(len, known)))
        if found:
            yield found


def _correct(seen: CloseUp, step: int, threshold: float | None) -> np.ndarray | None:
    """Which predictions of a step are right; None if that is not known."""
    events = seen.of(step, "targets")
    if len(events) != 1 or len(events[0].arrays) < 2 or (events[0].info["true"], events[0].info["predicted"]) != (1, 1):
        return None
    true, predicted = (np.asarray(each) for each in events[0].arrays[:2])
    if threshold is None and predicted.ndim == 2 and predicted.shape[1] > 1:
        labels = true.argmax(-1) if true.shape == predicted.shape else true
        return labels.reshape(-1) == predicted.argmax(-1) if labels.size == len(predicted) else None
    of_one_label = threshold is not None and true.size == predicted.size
    return true.reshape(-1) == (predicted.reshape(-1) > threshold) if of_one_label else None


def name_not_reset(counts: Mapping[str, Sequence[float]], side: Record, used: Used) -> list[Finding]:
    """The cause of metrics that go on counting, from how many values each has counted at the end of each epoch."""
    alike: dict[tuple[float, ...], list[str]] = {}
    for name in sorted(counts):
        alike.setdefault(tuple(counts[name]), []).append(name)
    found = [
        Measurement.of("counts-all-epochs", metrics=names, epochs=len(each), first=each[0], counted=each[-1])
        for each, names in alike.items()
    ]
    return _together([(NOT_RESET, seen) for seen in found], side, used)


def _together(found: Sequence[Named], side: Record, used: Used) -> list[Finding]:
    """Each cause once, with all its evidence."""
    causes: dict[str, list[Measurement]] = {}
    for cause, seen in found:
        causes.setdefault(cause, []).append(seen)
    return [CATALOGUE[id].found(side.trainer, Measurement.all(parts), used=used) for id, parts in causes.items()]


def _of_own(key: str, side: Record, known: Mapping[int, Losses]) -> list[Named]:
    """Why a number is another than the mean of what its own side was seen to have, in the epochs of which all was."""
    reported = replace(side, logs={epoch: logs for epoch, logs in side.logs.items() if epoch in known})
    own = replace(side, logs={epoch: {key: each.mean} for epoch, each in known.items()})
    return _of_loss(key, own, reported, known)


def _of_loss(key: str, reference: Record, candidate: Record, losses: Mapping[int, Losses]) -> list[Named]:
    """Why a loss is another than the mean over the examples of each epoch; of validation, than the reference's.

    A loss that the reference reports too is no difference, however it came to be. Of validation, no cause is named
    unless, without any mistake, what was seen gives the reference's value.
    """
    reported = {epoch: logs[key] for epoch, logs in sorted(candidate.logs.items()) if key in logs}
    if not reported or list(reported) != list(range(1, len(reported) + 1)) or not losses.keys() >= reported.keys():
        return []  # not of every epoch up to the last that has one
    seen, values = [losses[epoch] for epoch in reported], list(reported.values())
    right = [reference.logs.get(epoch, {}).get(key, np.nan) for epoch in reported]
    if all(map(same, right, values)):
        return []
    if not key.startswith("val_"):
        if not all(same(each.mean, value) for each, value in zip(seen, right, strict=True)):
            seen = [replace(each, shares=1) for each in seen]  # a replica's loss may be whole
        return ReportedLoss(key, seen, [each.mean for each in seen], values).mistakes() or _after_update(seen, values)
    pairs = list(zip(seen, right, strict=True))
    if not all(each.values and all(each.examples) and same(each.mean, value) for each, value in pairs):
        # The batches were not seen: of the reference's value, the penalty is known.
        seen = [Losses([value], [1], each.penalties[-1:]) for each, value in pairs]
    other = {} if reference.trainer == candidate.trainer else {"other": reference.trainer}
    return ReportedLoss(key, seen, right, values).mistakes(**other)


def _after_update(losses: Sequence[Losses], reported: Sequence[float]) -> list[Named]:
    """The cause of training losses that are those of the batches after their update."""
    pairs = zip(losses, reported, strict=True)
    if not all(each.after and same(value, np.average(each.after, weights=each.examples)) for each, value in pairs):
        return []
    first = {"epoch": 1, "value": reported[0], "expected": losses[0].mean}
    return [(AFTER, Measurement.of("loss-after-update", metric="loss", **first))]


def evidence_on_numbers(
    reference: Record,
    candidate: Record,
    differing: Collection[str],
    seen: CloseUp,
    losses: Mapping[int, Losses],
    ends: Sequence[int],
) -> list[Measurement]:
    """What was seen of the candidate's training that may explain numbers that differ, without a cause.

    Its steps have the losses of the reference's, whose number of them may be the one that is never updated.
    """
    found = []
    steps = [step for step in seen.steps if step <= max(ends)]
    again = sum(step in seen.again for step in steps)
    reported, of_reference = (
        {epoch: logs["loss"] for epoch, logs in side.logs.items() if "loss" in logs} for side in (candidate, reference)
    )
    others = {name for name in differing if not name.startswith("val_")}
    for side, values in ((candidate, reported), (reference, of_reference)) if "loss" in others else ():
        if values and all(not value and epoch in losses and losses[epoch].mean for epoch, value in values.items()):
            found.append(Measurement.of("loss-never-updated", side=side.trainer, epoch=min(values)))
            others.discard("loss")
    if steps and 2 * again > len(steps) and others:
        found.append(Measurement.of("called-again", side=candidate.trainer, steps=again, of=len(steps)))
    for name in sorted(differing):
        for threshold, power in product((0.5, 0.0), (1, 2, 0)):  # probabilities or logits; how much each batch counts
            shares = {epoch: _share_of_pairs(seen, ends, epoch, threshold, power) for epoch in candidate.logs}
            pairs = [(logs.get(name), shares[epoch]) for epoch, logs in candidate.logs.items()]
            telling = any(value not in (0, 1) for value, _ in pairs)  # those that any metric may have by chance
            if telling and all(a is not None and b is not None and same(a, b) for a, b in pairs):
                found.append(Measurement.of("share-of-pairs", metric=name))
                break
    return found


def _share_of_pairs(seen: CloseUp, ends: Sequence[int], epoch: int, threshold: float, power: int) -> float | None:
    """The share of equal pairs among all pairs of a label and a prediction of each batch, the mean over an epoch."""
    shares, weights = [], []
    for step in dict(_steps_by_epoch(ends)).get(epoch, ()):
        for event in seen.of(step, "targets"):
            one = event.arrays and (event.info["true"], event.info["predicted"]) == (1, 1)
            if not one or event.arrays[1].shape[1:] != (1,):
                return None
            true, predicted = (np.asarray(array).reshape(-1) for array in event.arrays[:2])
            shares.append(np.equal.outer(true, predicted > threshold).mean())
            weights.append(float(true.size) ** power)
    return float(np.average(shares, weights=weights)) if shares else None
