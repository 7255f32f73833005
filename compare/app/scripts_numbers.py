"""Explains why two scripts report other numbers from weights that are equal, or equal up to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from compare.app.scripts_close_ups import seen_losses
from compare.app.scripts_session import ModelPair, ScriptsSession
from compare.check import words
from compare.check.advice import at_line
from compare.check.causes import CATALOGUE
from compare.check.causes.reporting import never_reset, other_metrics
from compare.check.measurement import Measurement
from compare.check.recorded import same
from compare.check.recorded_numbers import (
    evidence_on_numbers,
    is_training_accuracy,
    losses_by_epoch,
    name_not_reset,
    name_own_accuracies,
    name_own_losses,
    name_reporting,
    validation_by_epoch,
)
from compare.check.used import Used, used_by
from compare.check.user_code import line_that_makes
from compare.records.model import Record
from compare.records.reader import read_records
from compare.reporting.terminal import tell
from compare.verdict.exact import beyond_rounding, reported_by_both
from compare.verdict.findings import Finding, Source
from compare.verdict.judge import Pair
from compare.verdict.model import Comparison, Reporting, Training
from compare.verdict.outcomes import DIFFERENT, INCONCLUSIVE
from compare.watch.reported_logs import line_of
from compare.watch.seen import CloseUp
from compare.watch.trace import BY_OWN_STEP

BEYOND_TWINS = 3
"""How much farther than all noise twins an accuracy has to be for the steps to be looked at."""


def explain_numbers(session: ScriptsSession, pair: Pair, model: ModelPair) -> dict[str, Comparison]:
    """Names the cause of different numbers from equal weights, where it is known.

    Where rounding alone explains other weights, each loss is held against those of the steps that its side made.
    """
    used = used_by(model.traces[1], model.traces[0])
    ends = model.epochs.ends or (model.traces[1].last,)
    evidence: list[Measurement] = []
    seen: CloseUp | None = None
    of_reference = name_reporting(pair.candidate, pair.reference, used=used_by(*model.traces))
    of_reference = _with_lines(of_reference, model, 0)
    if pair.exactly.training.verdict == DIFFERENT:
        both: Sequence[CloseUp | None] = (None, None)
        if lost := _other_losses(session, pair):
            tell(session.console, "The weights are alike. Holding the numbers against the loss of every step …")
            both = seen_losses(session, model, (0, 1))
        causes = [*_with_lines(name_reporting(pair.reference, pair.candidate, used=used), model, 1), *of_reference]
        known = {cause.id for cause in causes}
        causes += [cause for cause in own_numbers(pair, model, both) if cause.id not in known]
        unexplained = set(lost).difference(*(cause.metrics for cause in causes))
        if unexplained and (seen := both[1]) is not None:
            named = name_own_accuracies(pair.candidate, unexplained, seen, ends, used)
            causes += _with_lines(named, model, 1)
            unexplained = unexplained.difference(*(cause.metrics for cause in named))
            evidence = evidence_on_numbers(
                pair.reference, pair.candidate, unexplained, seen, losses_by_epoch(seen, ends), ends
            )
        return _of_numbers(pair, causes, evidence)
    others = [*of_reference, *_in_training_mode(pair, model, used), *_of_last_batches(pair, model)]
    reporting = pair.exactly.reporting
    different = {name for name in beyond_rounding(pair.reference, pair.candidate) if reporting.metrics[name].max_gap}
    near = _losses_apart(pair)  # a sum over many batches may round as much, but does not hide another mean of them
    metrics = other_metrics(*model.traces, ends, different, model.names[0]) if reporting.verdict == DIFFERENT else {}
    causes = name_reporting(pair.reference, pair.candidate, used=used, metrics=metrics)
    unexplained = (different | near).difference(*(cause.metrics for cause in (*causes, *others)))
    if unexplained and reporting.verdict == DIFFERENT:
        tell(session.console, "The weights are equal, but the numbers are not. Looking at the loss of every step …")
        (seen,) = seen_losses(session, model)
        if seen is not None:
            losses, validation = losses_by_epoch(seen, ends), validation_by_epoch(seen, ends)
            of_losses = losses, validation, used.seeing(seen.divided)
            causes = name_reporting(pair.reference, pair.candidate, *of_losses, metrics)
            left = unexplained.difference(*(cause.metrics for cause in causes))
            causes += name_own_accuracies(pair.candidate, left, seen, ends, used)
            if left := (unexplained & different).difference(*(cause.metrics for cause in causes)):
                evidence = evidence_on_numbers(pair.reference, pair.candidate, left, seen, losses, ends)
    return _of_numbers(pair, [*_with_lines(causes, model, 1, seen), *others], evidence)


def _of_numbers(pair: Pair, causes: Sequence[Finding], evidence: Sequence[Measurement]) -> dict[str, Comparison]:
    """The comparison of two sides whose numbers alone differ, by the candidate's name; empty if nothing is known."""
    if not causes and not evidence:
        return {}
    found = Comparison(
        pair.candidate.trainer,
        Training(INCONCLUSIVE, None, None, 0),
        Reporting(DIFFERENT, {}),
        certain=False,
        causes=tuple(causes),
        **words.as_evidence(evidence),
        not_applicable=(),
    )
    return {found.candidate: found}


def _losses_apart(pair: Pair) -> set[str]:
    """The losses that differ by more than sums in another order do."""
    reported = reported_by_both(pair.reference, pair.candidate)
    return {name for _, name, a, b in reported if name.removeprefix("val_") == "loss" and not same(a, b)}


def _other_losses(session: ScriptsSession, pair: Pair) -> list[str]:
    """The losses that differ, and the accuracies that differ from the reference's and those of all noise twins.

    Rounding may move a loss as much as another mean of it does; only the losses of its own side's steps tell the two
    apart.
    """
    unexplained, losses = pair.exactly.reporting.unexplained, _losses_apart(pair)
    differing = [name for name in unexplained if is_training_accuracy(name)]
    twins = read_records(session.folder / "twins" / pair.exactly.twins) if differing else []

    def gap(record: Record, wanted: str) -> float:
        both = reported_by_both(pair.reference, record)
        return max((abs(a - b) for _, name, a, b in both if name == wanted), default=0.0)

    of_twins = {name: max((gap(twin, name) for twin in twins), default=math.inf) for name in differing}
    return [name for name in unexplained if name in losses] + [
        name for name, most in of_twins.items() if gap(pair.candidate, name) > BEYOND_TWINS * most
    ]


def own_numbers(pair: Pair, model: ModelPair, seen: Sequence[CloseUp | None]) -> list[Finding]:
    """The causes of another reported loss than that of the steps that the side at fault was seen to make."""
    at_fault = int(not model.swapped)
    records, traces, ends = (pair.reference, pair.candidate), model.traces, model.epochs.ends
    own = seen[at_fault]
    used = used_by(traces[at_fault], traces[1 - at_fault]).seeing(own.divided if own is not None else ())
    right, causes = (
        name_own_losses(records[side], losses_by_epoch(close_up, ends), validation_by_epoch(close_up, ends), used)
        if (close_up := seen[side]) is not None
        else []
        for side in (1 - at_fault, at_fault)
    )
    causes += [*_in_training_mode(pair, model, used), *_of_last_batches(pair, model)]
    also = {cause.id for cause in right}  # what both do is no difference
    known, kept = (never_reset(traces[side], ends, traces[1 - at_fault]) for side in (1 - at_fault, at_fault))
    causes += name_not_reset({name: kept[name] for name in kept.keys() - known.keys()}, records[at_fault], used)
    found = {cause.id: cause for cause in causes if cause.id not in also}
    return _with_lines(list(found.values()), model, at_fault, own)


def _in_training_mode(pair: Pair, model: ModelPair, used: Used) -> list[Finding]:
    """The cause of other numbers of validation from equal weights, where one side alone validates as it trains."""
    at_fault, first = int(not model.swapped), pair.exactly.training.first_difference
    line, right_line = (model.traces[side].untaped for side in (at_fault, 1 - at_fault))
    other = [
        (epoch, name, *(values[::-1] if model.swapped else values))
        for epoch, name, *values in reported_by_both(pair.reference, pair.candidate)
        if name.startswith("val_") and not same(*values) and (first is None or epoch < first.epoch)
    ]
    if line is None or right_line is not None or not other:
        return []
    epoch, name, right, value = other[0]
    seen = Measurement.of(
        "called-in-training-mode",
        metric=name, metrics=list(dict.fromkeys(name for _, name, *_ in other)),
        epoch=epoch, value=value, right=right, other=model.names[1 - at_fault],
    )  # fmt: skip
    cause, source = CATALOGUE["validation-in-training-mode"], Source.of(line)
    found = cause.found(model.names[at_fault], seen, used=used)
    return [at_line(found, source and replace(source, instead=cause.instead_of(source.text)))]


def _of_last_batches(pair: Pair, model: ModelPair) -> list[Finding]:
    """The cause of numbers of a ``fit`` whose own step returns no metrics, where the other side reports their means."""
    found, records = [], (pair.reference, pair.candidate)
    for side, trace in enumerate(model.traces):
        if trace.trained_by != BY_OWN_STEP:
            continue
        wrong: dict[str, tuple[int, float, float]] = {}
        for epoch, name, right, value in reported_by_both(records[1 - side], records[side]):
            mean = trace.epochs[epoch - 1].means.get(name) if epoch <= len(trace.epochs) else None
            if mean is not None and same(mean, right) and not same(value, right):
                wrong.setdefault(name, (epoch, value, right))
        for name, (epoch, value, right) in list(wrong.items())[:1]:
            seen = Measurement.of(
                "returned-for-the-last-batch",
                metric=name, metrics=list(wrong), epoch=epoch, value=value, right=right, other=model.names[1 - side],
            )  # fmt: skip
            used = used_by(trace, model.traces[1 - side])
            found.append(CATALOGUE["last-batch-only"].found(model.names[side], seen, used=used))
    return found


def _with_lines(causes: Sequence[Finding], model: ModelPair, side: int, seen: CloseUp | None = None) -> list[Finding]:
    """Causes of reported numbers, with the line of a script that reports them, or whose loss Keras divides."""
    trace, ends = model.traces[side], model.epochs.ends or (model.traces[side].last,)
    divided = seen.divided if seen is not None else {}
    other = model.traces[1 - side]
    lines = (
        divided.get(each.divided) or line_that_makes(line_of(trace, ends, other, each.metrics), each.metrics)
        for each in causes
    )
    sources = (Source.of(line, shows=True) for line in lines)
    return [each if each.source else at_line(each, source) for each, source in zip(causes, sources, strict=True)]
