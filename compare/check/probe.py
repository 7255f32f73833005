"""The short check itself: two short runs, observed, compared, and explained where they part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from compare import pipeline, strategies
from compare.check.case import ROUNDING, Case
from compare.check.causes import CATALOGUE
from compare.check.judge import Judgement, judge_reporting, judge_training
from compare.check.observe import Applied, Observation, ProbeRun, crafted, observe, sizes
from compare.check.replay import Recipe, Replay, distance
from compare.check.report import REPORTING, TRAINING, Finding, NotApplicable, Report, merged
from compare.check.unseen import why
from compare.check.update import EPSILON
from compare.experiment import Experiment
from compare.records import BuildRecord, Record, StepRecord, step_dtype
from compare.runs import Task
from compare.trainers.base import Trainer
from compare.trainers.keras_fit import KerasFit
from compare.verdict import ALIKE, DIFFERENT, IDENTICAL, INCONCLUSIVE, Comparison, Reporting, compare_records

FIRST_AND_LATER = range(4)
"""The epochs whose batches are known to the check: the two trained, and those beside them."""


def check(
    experiment: Experiment,
    trainer: Trainer,
    *,
    reference: Trainer | None = None,
    strategy: tf.distribute.Strategy | None = None,
    seed: int = 0,
) -> Report:
    """Check in seconds whether a trainer trains and reports like the reference, and if not, why.

    Both train a few small batches of the experiment's own data for two epochs, with the experiment's
    model, loss, metrics and optimizer.

    Args:
        experiment: what is trained.
        trainer: the candidate.
        reference: what it is held against; stock ``fit`` by default.
        strategy: where both train. By default on one replica, and then on two if there are devices.
        seed: of initial weights and order of examples.

    Raises:
        Exception: what a trainer raises.
    """
    reference = KerasFit() if reference is None else reference
    if strategy is not None:
        return Checker(experiment, reference, strategy, seed=seed).check(trainer)
    counts = [1, 2] if len(strategies.devices()) > 1 else [1]
    checkers = [Checker(experiment, reference, strategies.make("mirrored", count), seed=seed) for count in counts]
    report = merged([checker.check(trainer) for checker in checkers])
    if len(counts) == 1:
        alone = NotApplicable(
            "several replicas",
            "TensorFlow has one device here: call compare.configure(replicas=2) before anything else",
        )
        report = replace(report, not_applicable=(*report.not_applicable, alone))
    return report


class Checker:
    """Checks any number of candidates against one reference, which is observed once.

    Args:
        experiment: what is trained.
        reference: what candidates are held against.
        strategy: where all train; the global batch is a few examples per replica.
        seed: of initial weights and order of examples.
    """

    def __init__(
        self, experiment: Experiment, reference: Trainer, strategy: tf.distribute.Strategy, *, seed: int = 0
    ) -> None:
        began = time.perf_counter()
        replicas = strategy.num_replicas_in_sync
        whole = Task(experiment, *pipeline.load(experiment), strategy, 0)
        train, validation = crafted(whole, replicas=replicas)
        self.task = Task(experiment, train, validation, strategy, sizes(replicas, 1)[0])
        self.seed = seed
        self.reference = observe(self.task, reference, seed)
        self._trainer = reference
        self._empty: Observation | NotApplicable | None = None
        self._replay: Replay | None = None
        self._judged: tuple[Case, Judgement] | None = None
        self._seconds = time.perf_counter() - began

    def check(self, trainer: Trainer) -> Report:
        """Hold one candidate against the reference."""
        began = time.perf_counter() - self._seconds
        self._seconds = 0.0  # the reference's time counts once
        candidate = observe(self.task, trainer, self.seed, like=self.reference)
        comparison = compare_records(_record(self.reference), _record(candidate))
        comparison = replace(
            comparison,
            candidate=_own_name(trainer.name, self.reference.name),
            training=_gap(comparison, self, candidate),
        )
        missing = [] if candidate.applied else [why(candidate)]
        if candidate.fixed_dropout:
            text = "Keras 2 draws numbers that cannot be drawn again: here every other unit is dropped, always the same"
            missing.append(NotApplicable("dropout", text))
        report = Report(self.reference.name, (candidate.replicas,), comparison, not_applicable=tuple(missing))
        hidden = comparison.training.verdict == IDENTICAL and not self._same_gradients(candidate)
        if hidden:  # clipping, or Adam, makes up for it, here and now
            comparison = replace(comparison, training=replace(comparison.training, verdict=DIFFERENT))
            report = replace(report, comparison=comparison)
        if comparison.verdict != IDENTICAL:
            report = self._explained(report, candidate)
        if report.comparison.training.verdict in (IDENTICAL, ALIKE):
            report = self._with_empty_replica(report, trainer)
        return replace(report, seconds=time.perf_counter() - began)

    def _same_gradients(self, candidate: Observation) -> bool:
        """Whether both optimizers were handed the same, to rounding; the weights are known to be the same.

        No floor is measured for that. Correct loops were up to 5e-8 off, mistakes that the optimizer hides 0.5
        and more; the floor of a gradient, which models have of up to 6e-7, is five units in the last place.
        """
        pairs = zip(self.reference.applied, candidate.applied, strict=False)
        return all(distance([_summed(a)], [_summed(b)]) <= ROUNDING * 8 * EPSILON for a, b in pairs)

    def _with_empty_replica(self, report: Report, trainer: Trainer) -> Report:
        """Both again, with a last batch that leaves one replica without examples.

        All else was found right, so that a difference can only come from there.
        """
        if self.reference.replicas == 1:
            return report
        if self._empty is None:
            self._empty = self._observe_empty()
        if isinstance(self._empty, NotApplicable):
            return replace(report, not_applicable=(*report.not_applicable, self._empty))
        ours = self._empty
        theirs = observe(self.task, trainer, self.seed, empty=True)
        threshold = max(self._judged[0].threshold if self._judged else 0.0, ROUNDING * EPSILON)
        for i, (a, b) in enumerate(zip(ours.applied, theirs.applied, strict=False)):
            right, seen = _summed(a), _summed(b)
            off = distance([right], [seen])
            if off > threshold and not (np.isnan(right).any() and np.isnan(seen).any()):
                text = "is not a number" if np.isnan(seen).any() else f"is {off:.2g} off, relative,"
                cause = CATALOGUE["empty-replica-batch"]
                evidence = f"the gradient of step {i + 1}, whose batch leaves one replica empty, {text} and no other is"
                finding = Finding(cause.id, TRAINING, trainer.name, evidence, cause.remedy)
                comparison = report.comparison
                training = replace(comparison.training, verdict=DIFFERENT)
                return replace(
                    report,
                    comparison=replace(comparison, training=training),
                    findings=(finding, *report.findings),
                )
        for epoch in ours.logs.keys() & theirs.logs.keys():
            for key, value in theirs.logs[epoch].items():
                if np.isnan(value) and np.isfinite(ours.logs[epoch].get(key, np.nan)):
                    cause = CATALOGUE["empty-replica-batch"]
                    evidence = f"{key} is not a number where a batch leaves one replica empty"
                    finding = Finding(cause.id, REPORTING, trainer.name, evidence, cause.remedy)
                    comparison = report.comparison
                    reporting = replace(comparison.reporting, verdict=DIFFERENT)
                    return replace(
                        report,
                        comparison=replace(comparison, reporting=reporting),
                        findings=(*report.findings, finding),
                    )
        return report

    def _observe_empty(self) -> Observation | NotApplicable:
        failing = sorted({name for name in self.reference.layers if "Conv" in name or "BatchNormalization" in name})
        if failing:  # an exception, NaN, or the end of the process, whoever trains
            return NotApplicable("empty replica", f"{', '.join(failing)} cannot take a replica without examples")
        try:
            return observe(self.task, self._trainer, self.seed, empty=True)
        except Exception as error:  # whatever the reference cannot do is nothing to hold against the candidate
            reason = " ".join(str(error).split())[:200]
            return NotApplicable("empty replica", f"{self.reference.name} cannot take one: {reason}")

    def _explained(self, report: Report, candidate: Observation) -> Report:
        comparison = report.comparison
        if comparison.training.verdict == INCONCLUSIVE:
            return report
        base, theirs = self._reference_case()
        case = Case(candidate, self._replay_of(), self.reference)
        case.floor = base.floor
        ours = theirs if comparison.training.verdict == IDENTICAL else judge_training(case)
        training = comparison.training
        if training.verdict == DIFFERENT and ours.right and theirs.right:
            training = replace(training, verdict=ALIKE)
        findings = _findings(TRAINING, ours, theirs, self.reference.name, candidate.name)
        evidence = [text for text in ours.evidence if text not in theirs.evidence]
        evidence += [f"{self.reference.name}: {text}" for text in theirs.evidence if text not in ours.evidence]

        reporting = comparison.reporting
        printed = Judgement()
        silent = not (any(self.reference.logs.values()) and any(candidate.logs.values()))
        if reporting.verdict != IDENTICAL and not silent:
            printed = judge_reporting(case, ours.recipe)
            other = judge_reporting(base, theirs.recipe)
            findings += _findings(REPORTING, printed, other, self.reference.name, candidate.name)
            missing = [key for key, gap in reporting.metrics.items() if gap.max_gap is None]
            evidence += [text for text in printed.evidence if text not in other.evidence]
            evidence += [f"{key} is reported by one side only, or is not a number" for key in missing]
            right = printed.right and other.right and not missing
            reporting = Reporting(ALIKE if right else DIFFERENT, reporting.metrics)
        return replace(
            report,
            comparison=replace(comparison, training=training, reporting=reporting),
            findings=tuple(findings),
            evidence=tuple(evidence),
            not_applicable=(*report.not_applicable, *dict.fromkeys([*ours.not_applicable, *printed.not_applicable])),
            fits=(*(ours.fits if ours is not theirs else ()), *printed.fits),
        )

    def _reference_case(self) -> tuple[Case, Judgement]:
        """The reference held against the replay: which side is off, and how far rounding goes."""
        if self._judged is None:
            case = Case(self.reference, self._replay_of(), self.reference)
            case.calibrate()
            off = case.residual(Recipe())
            if off <= case.threshold:
                case.floor = max(case.floor, off)
            self._judged = case, judge_training(case)
        return self._judged

    def _replay_of(self) -> Replay:
        if self._replay is None:
            run = ProbeRun(self.task, seed=self.seed, name="")
            batches = {epoch: list(run.train_dataset(epoch).as_numpy_iterator()) for epoch in FIRST_AND_LATER}
            self._replay = Replay(
                self.task.experiment,
                batches,
                list(run.validation_dataset().as_numpy_iterator()),
                replicas=self.reference.replicas,
                global_batch_size=self.task.global_batch_size,
                spec=run.train_dataset(1).element_spec,
            )
        return self._replay


def _summed(step: Applied) -> np.ndarray:
    """The gradient of all replicas together, in one float64 vector."""
    parts = zip(*[[g for g in gradients if g is not None] for gradients in step.gradients], strict=False)
    return np.concatenate([np.sum(each, axis=0, dtype=np.float64).ravel() for each in parts] or [np.zeros(0)])


def _own_name(candidate: str, reference: str) -> str:
    return f"{candidate}-2" if candidate == reference else candidate


def _findings(kind: str, ours: Judgement, theirs: Judgement, reference: str, candidate: str) -> list[Finding]:
    """The causes that one side has and the other has not."""
    found = [(candidate, id, text) for id, text in ours.causes.items() if id not in theirs.causes]
    found += [(reference, id, text) for id, text in theirs.causes.items() if id not in ours.causes]
    return [Finding(id, kind, side, text, CATALOGUE[id].remedy) for side, id, text in found]


def _gap(comparison: Comparison, checker: Checker, candidate: Observation) -> Any:
    """The comparison of training, with the largest gap of any weight at an epoch's end."""
    gaps = [
        np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0.0)
        for epoch in checker.reference.ended.keys() & candidate.ended.keys()
        for a, b in zip(checker.reference.ended[epoch][0], candidate.ended[epoch][0], strict=True)
        if a.dtype.kind == "f"
    ]
    largest = float(max(gaps, default=np.nan))
    return replace(comparison.training, max_weight_gap=largest if np.isfinite(largest) else None)


def _record(seen: Observation) -> Record:
    """An observation as the record that a full run would have left."""
    build = next(record for record in seen.records if isinstance(record, BuildRecord))
    steps: Sequence[StepRecord] = [record for record in seen.records if isinstance(record, StepRecord)]
    rows = np.zeros(len(steps), step_dtype(len(build.variables), build.replicas))
    for row, record in zip(rows, steps, strict=True):
        row["epoch"], row["step"] = record.epoch, record.step
        row["hashes"], row["projections"] = record.hashes, record.projections
    return Record(seen.name, 0, build.variables, rows, seen.logs, Path("/nonexistent"))
