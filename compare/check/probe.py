"""The short check itself: two short runs, observed, compared, and explained where they diverge."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.batches import like_those_of
from compare.check.case import Case
from compare.check.causes import CATALOGUE
from compare.check.judge import judge_reporting, judge_training
from compare.check.judgement import Judgement
from compare.check.observation import EPOCHS, Applied, Observation, as_record
from compare.check.observe import Crafted, ProbeRun, observe
from compare.check.recipe import EPSILON, Recipe, distance
from compare.check.replay import Replay
from compare.check.report import REPORTING, TRAINING, Finding, NotApplicable, Report, merged
from compare.check.weights_only import why
from compare.check.whole import ROUNDING
from compare.engine import input_pipeline, strategies
from compare.engine.noise_twins import TwinRun
from compare.engine.run import Task
from compare.experiment import Experiment
from compare.records import AnyRecord, Place, Record
from compare.trainer import Trainer
from compare.trainers.keras_fit import KerasFit
from compare.user_errors import describe
from compare.verdict import (
    ALIKE,
    DIFFERENT,
    IDENTICAL,
    INCONCLUSIVE,
    Comparison,
    Reporting,
    compare_records,
    noise_start,
    paired_names,
    rounding,
    with_noise,
    within_rounding,
)

Pair = tuple[Record, Record]
"""The reference's record and the candidate's."""

FIRST_AND_LATER = range(4)
"""The epochs whose batches are known to the check: the two trained, and those beside them."""

TWINS, MORE_TWINS = 2, 6
"""How many noise twins a short run is held against: at first, and at most."""


def check(
    experiment: Experiment,
    trainer: Trainer,
    *,
    reference: Trainer | None = None,
    strategy: tf.distribute.Strategy | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Report:
    """Check in seconds whether a trainer trains and reports like the reference, and if not, why.

    Both train a few small batches of the experiment's own data for two epochs, with the experiment's
    model, loss, metrics and optimizer.

    Args:
        experiment: what is trained.
        trainer: the candidate.
        reference: what it is held against; stock ``fit`` by default.
        strategy: where both train. By default on one replica, and then on two if there are devices and the
            trainer uses its strategy.
        batch_size: per replica, of the run that this stands for: the check's batches then are short, or split
            unevenly, only where that run's are. None where it is not known: the last batch then is both.
        seed: of initial weights and order of examples.

    Raises:
        Exception: what a trainer raises.
    """
    reference = KerasFit() if reference is None else reference

    def on(where: tf.distribute.Strategy) -> Report:
        return Checker(experiment, reference, where, batch_size=batch_size, seed=seed).check(trainer)

    return _anywhere(on) if strategy is None else _as_asked(on, strategy)


def _anywhere(on: Callable[[tf.distribute.Strategy], Report]) -> Report:
    """On one replica, and on two if that can be."""
    alone = on(tf.distribute.get_strategy())
    if not alone.distributed:
        return alone.without("several replicas", _knows_one(alone))
    if len(strategies.devices()) == 1:
        reason = "TensorFlow has one device here: call compare.configure(replicas=2) before anything else"
        return alone.without("several replicas", reason)
    try:
        report = on(strategies.make("mirrored", 2))
    except Exception as error:  # it can train on one replica: that it cannot on two is no difference
        return alone.without("several replicas", f"on two one side fails: {describe(error)}")
    # With one replica, a model of its own that it calls fit of looks as if it used the run's strategy.
    return merged([alone, report]) if report.distributed else alone.without("several replicas", _knows_one(alone))


def _as_asked(on: Callable[[tf.distribute.Strategy], Report], strategy: tf.distribute.Strategy) -> Report:
    """Under the strategy asked for; on one replica a trainer that knows only one."""
    failed: Exception | None = None
    try:
        report = on(strategy)
        if report.distributed or strategy.num_replicas_in_sync == 1:
            return report
    except Exception as error:
        if strategy.num_replicas_in_sync == 1:
            raise
        failed = error
    alone = on(tf.distribute.get_strategy())
    if failed is not None and alone.distributed:
        raise failed
    return alone.without("several replicas", _knows_one(alone))


def _knows_one(report: Report) -> str:
    return (
        f"{report.comparison.candidate} never calls strategy.run, nor distributes its data: it trains on one replica, "
        "and was checked on one"
    )


@contextmanager
def _as_traced() -> Iterator[None]:
    """Run graphs as they are traced: rewriting them only rounds in another way, and takes longer than a few steps."""
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


class CraftedTwin(Crafted, TwinRun):
    """A noise twin over the check's batches."""


class Checker:
    """Checks any number of candidates against one reference, which is observed once.

    Args:
        experiment: what is trained.
        reference: what candidates are held against.
        strategy: where all train; the global batch is a few examples per replica.
        batch_size: as for ``check``.
        seed: of initial weights and order of examples.
        data: training and validation examples; those of the experiment by default.
    """

    @_as_traced()
    def __init__(
        self,
        experiment: Experiment,
        reference: Trainer,
        strategy: tf.distribute.Strategy,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        data: Any = None,
    ) -> None:
        began = time.perf_counter()
        train, validation = input_pipeline.load(experiment) if data is None else data
        replicas = strategy.num_replicas_in_sync
        shapes = [spec.shape[1:] for spec in tf.nest.flatten(train.spec[0])]
        numbers = sum(math.prod(size or 1 for size in shape) for shape in shapes)
        self.batches = like_those_of(train.count, validation.count, batch_size, replicas, numbers)
        some = train.sample(self.batches.per_epoch), validation.sample(self.batches.validation)
        self.task = Task(experiment, *some, strategy, self.batches.full)
        self.seed = seed
        self.reference = observe(self.task, self.batches, reference, seed)
        self._trainer = reference
        self._empty: Observation | NotApplicable | None = None
        self._judged: tuple[Case, Judgement] | NotApplicable | None = None
        self._twins: dict[Place, list[Record]] = {}
        self._seconds = time.perf_counter() - began

    @_as_traced()
    def check(self, trainer: Trainer) -> Report:
        """Hold one candidate against the reference."""
        began = time.perf_counter() - self._seconds
        self._seconds = 0.0  # the reference's time counts once
        candidate = observe(self.task, self.batches, trainer, self.seed, like=self.reference)
        records = self.reference.record(), candidate.record()
        comparison = compare_records(*records)
        comparison = replace(
            comparison,
            candidate=_own_name(trainer.name, self.reference.name),
            training=_gap(comparison, self, candidate),
        )
        missing = [] if candidate.applied else [why(candidate)]
        if candidate.fixed_dropout:
            text = "Keras 2 draws numbers that cannot be drawn again: here every other unit is dropped, always the same"
            missing.append(NotApplicable("dropout", text))
        report = Report(
            self.reference.name,
            (candidate.replicas,),
            comparison,
            not_applicable=tuple(missing),
            distributed=candidate.distributed,
        )
        hidden = comparison.training.verdict == IDENTICAL and not self._same_gradients(candidate)
        if hidden or comparison.verdict != IDENTICAL:
            try:
                report = self._explained(report, candidate, records, hidden)
            except Exception as error:
                lost = NotApplicable("replay", f"its steps cannot be looked into: {describe(error)}")
                report = self._by_twins_alone(report, records, hidden, lost)
        if report.comparison.training.verdict in (IDENTICAL, ALIKE):
            report = self._with_empty_replica(report, trainer)
        return replace(report, seconds=time.perf_counter() - began)

    def _same_gradients(self, candidate: Observation) -> bool:
        """Whether both optimizers were handed the same, to rounding; the weights are known to be the same.

        No floor is measured for that. Correct loops were up to 5e-8 off, mistakes that the optimizer hides 0.5
        and more; the floor of a gradient, which models have of up to 6e-7, is five units in the last place.
        """
        ours, theirs = self.reference.applied, candidate.applied
        if len(ours) != len(theirs) or any(a.given != b.given for a, b in zip(ours, theirs, strict=True)):
            return True  # they cannot be paired, and the weights are equal
        pairs = zip(ours, theirs, strict=True)
        return all(distance([_summed(a)], [_summed(b)]) <= ROUNDING * 8 * EPSILON for a, b in pairs)

    def _explained(self, report: Report, candidate: Observation, records: Pair, hidden: bool) -> Report:
        """What the replay says, where it explains the reference too; else what noise twins say."""
        comparison = report.comparison
        if comparison.training.verdict == INCONCLUSIVE:
            return report
        judged = self._reference_case()
        if isinstance(judged, NotApplicable) or not judged[1].explained:
            return self._by_twins_alone(report, records, hidden, judged)
        base, theirs = judged
        case = Case(candidate, base.replay, self.reference, base)
        same = comparison.training.verdict == IDENTICAL and not hidden
        ours = theirs if same else judge_training(case, theirs)
        findings = _findings(TRAINING, ours, theirs, self.reference.name, candidate.name)
        evidence = [text for text in ours.evidence if text not in theirs.evidence]

        training = comparison.training
        if same:
            pass
        elif findings or (hidden and not ours.right) or (not ours.right and ours.certain):
            training = replace(training, verdict=DIFFERENT)
        elif ours.right:
            training = replace(training, verdict=IDENTICAL if training.verdict == IDENTICAL else ALIKE)
            evidence = []
        else:  # a few steps are off by little, or could not be paired: that may be rounding
            training = self._with_twins(comparison, records).training
            if training.verdict == ALIKE:
                evidence = []
        report = replace(
            report,
            comparison=replace(comparison, training=training),
            findings=tuple(findings),
            evidence=tuple(evidence),
            certain=training.verdict == DIFFERENT and (bool(findings) or ours.certain or hidden),
            not_applicable=(*report.not_applicable, *dict.fromkeys(ours.not_applicable)),
            fits=() if ours is theirs else tuple(ours.fits),
        )
        return self._reported(report, case, ours.recipe, records)

    def _reported(self, report: Report, case: Case, recipe: Recipe, records: Pair) -> Report:
        """The verdict on the reported numbers, each judged by what the trainer's own weights give."""
        comparison = report.comparison
        reporting = comparison.reporting
        compared = [key for key, gap in reporting.metrics.items() if gap.compared]
        if reporting.verdict == IDENTICAL or not compared:
            return report
        trains_right = comparison.training.verdict in (IDENTICAL, ALIKE)
        if trains_right and within_rounding(*records):
            return replace(report, comparison=replace(comparison, reporting=Reporting(ALIKE, reporting.metrics)))
        pairs = paired_names(*records)
        keys = [key for key in compared if pairs.get(key) == key]
        ours = judge_reporting(case, recipe, keys)
        base, theirs = self._judged  # type: ignore[misc]  # a replay that explains the reference is there
        other = judge_reporting(base, theirs.recipe, keys)
        findings = _findings(REPORTING, ours, other, self.reference.name, case.seen.name)
        evidence = [text for text in ours.evidence if text not in other.evidence]
        # A number that the replay cannot explain of the reference either says nothing, unless weights are equal.
        abstained = ours.unknown & other.unknown
        beyond = {key for key in abstained if not self._near(records, key)}
        if abstained:
            evidence = [text for text in evidence if not text.startswith(tuple(f"{key} is off" for key in abstained))]
        wrong = bool(findings or evidence) or (comparison.training.verdict == IDENTICAL and bool(beyond))
        told = tuple(
            NotApplicable("reporting probe", f"{key} of {self.reference.name} cannot be explained either")
            for key in sorted(abstained)
        )
        verdict: str | None = DIFFERENT if wrong else ALIKE
        if not wrong and beyond:
            verdict = None
        return replace(
            report,
            comparison=replace(comparison, reporting=Reporting(verdict, reporting.metrics)),
            findings=(*report.findings, *findings),
            evidence=(*report.evidence, *evidence),
            not_applicable=(*report.not_applicable, *dict.fromkeys((*ours.not_applicable, *told))),
            fits=(*report.fits, *ours.fits),
        )

    @staticmethod
    def _near(records: Pair, key: str) -> bool:
        """Whether both report nearly the same number, though neither can be recomputed."""
        ours, theirs = records
        epochs = ours.logs.keys() & theirs.logs.keys()
        return all(
            np.isclose(ours.logs[e].get(key, np.nan), theirs.logs[e].get(key, np.nan), rtol=1e-4, equal_nan=True)
            for e in epochs
        )

    def _by_twins_alone(self, report: Report, records: Pair, hidden: bool, judged: Any) -> Report:
        """Without a replay that explains the reference: it condemns nobody, and the noise twins decide."""
        name = self.reference.name
        if isinstance(judged, NotApplicable):
            abstained = judged
        else:
            lost = [each.reason for each in judged[1].not_applicable]
            told = "; ".join([*judged[1].evidence, *lost]) or "its updates are not those of the experiment's optimizer"
            reason = f"{name}'s own steps are not explained by the experiment's loss and optimizer ({told})"
            abstained = NotApplicable("replay", f"{reason}, so no cause is named and noise twins decide")
        comparison = report.comparison
        if hidden:
            comparison = replace(comparison, training=replace(comparison.training, verdict=DIFFERENT))
            evidence: tuple[str, ...] = ("the weights are equal, but the optimizers were handed other gradients",)
        else:
            comparison = self._with_twins(comparison, records)
            evidence = ()
        reporting = comparison.reporting
        if reporting.verdict != IDENTICAL and comparison.training.verdict in (IDENTICAL, ALIKE):
            compared = [key for key, gap in reporting.metrics.items() if gap.compared]
            near = within_rounding(*records) or all(self._near(records, key) for key in compared)
            if compared and near:
                reporting = replace(reporting, verdict=ALIKE)
        return replace(
            report,
            comparison=replace(comparison, reporting=reporting),
            evidence=evidence,
            certain=hidden,
            not_applicable=(*report.not_applicable, abstained),
        )

    def _with_twins(self, comparison: Comparison, records: Pair) -> Comparison:
        """The comparison, held against noise twins of the reference over the same batches."""
        start = noise_start(*records, training=comparison.training)
        if start is None:
            return comparison
        twins = self._twins.setdefault(start, [])
        while not twins or not rounding.enough(
            rounding.measure(*records, twins=twins, start=start), len(twins), TWINS, MORE_TWINS
        ):
            twins.append(self._twin(start, len(twins) + 1, loud=len(twins) >= TWINS))
        return with_noise(comparison, *records, twins=twins)

    def _twin(self, start: Place, number: int, *, loud: bool) -> Record:
        kept: list[AnyRecord] = []
        run = CraftedTwin(
            self.task, seed=self.seed, epochs=EPOCHS, start=start, twin=number, loud=loud, sinks=[kept.append]
        )
        run.batches = self.batches
        self._trainer.train(run)
        run.close()
        return as_record(rounding.twin_name(number, loud), kept)

    def _with_empty_replica(self, report: Report, trainer: Trainer) -> Report:
        """Both again, with a last batch that leaves one replica without examples, as the user's data does.

        All else was found right, so that a difference can only come from there.
        """
        if self.reference.replicas == 1 or not self.batches.empty:
            return report
        if self._empty is None:
            self._empty = self._observe_empty()
        if isinstance(self._empty, NotApplicable):
            return replace(report, not_applicable=(*report.not_applicable, self._empty))
        ours = self._empty
        try:
            theirs = observe(self.task, self.batches, trainer, self.seed, empty=True)
        except Exception as error:
            missing = NotApplicable("empty replica", f"{trainer.name} cannot take one: {describe(error)}")
            return replace(report, not_applicable=(*report.not_applicable, missing))
        floor = self._judged[0].threshold if isinstance(self._judged, tuple) else 0.0
        threshold = max(floor, ROUNDING * EPSILON)
        for i, (a, b) in enumerate(zip(ours.applied, theirs.applied, strict=False)):
            right, seen = _summed(a), _summed(b)
            off = distance([right], [seen]) if right.shape == seen.shape else 0.0
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
                    certain=True,
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
            return observe(self.task, self.batches, self._trainer, self.seed, empty=True)
        except Exception as error:  # whatever the reference cannot do is nothing to hold against the candidate
            return NotApplicable("empty replica", f"{self.reference.name} cannot take one: {describe(error)}")

    def _reference_case(self) -> tuple[Case, Judgement] | NotApplicable:
        """The reference held against the replay: which side is off, and how far rounding goes."""
        if self._judged is None:
            try:
                case = Case(self.reference, self._replay(), self.reference)
                case.calibrate()
                off = case.residual(Recipe())
                if off <= case.threshold:
                    case.floor = max(case.floor, off)
                self._judged = case, judge_training(case)
            except Exception as error:
                reason = f"the experiment's steps cannot be made again ({describe(error)}), so noise twins decide"
                self._judged = NotApplicable("replay", reason)
        return self._judged

    def _replay(self) -> Replay:
        run = ProbeRun(self.task, self.batches, seed=self.seed, name="")
        batches = {epoch: list(run.train_dataset(epoch).as_numpy_iterator()) for epoch in FIRST_AND_LATER}
        return Replay(
            self.task.experiment,
            batches,
            list(run.validation_dataset().as_numpy_iterator()),
            replicas=self.reference.replicas,
            global_batch_size=self.task.global_batch_size,
            spec=run.train_dataset(1).element_spec,
            own=self.batches.own,
        )


def _summed(step: Applied) -> np.ndarray:
    """The gradient of all replicas together, in one float64 vector."""
    parts = zip(*step.gradients, strict=True)
    known = [[np.asarray(g).astype(np.float64) for g in part if g is not None] for part in parts]
    return np.concatenate([np.sum(each, axis=0).ravel() for each in known if each] or [np.zeros(0)])


def _own_name(candidate: str, reference: str) -> str:
    return f"{candidate}-2" if candidate == reference else candidate


def _findings(kind: str, ours: Judgement, theirs: Judgement, reference: str, candidate: str) -> list[Finding]:
    """The causes that one side has and the other has not."""
    shared = set(ours.causes.keys() & theirs.causes.keys())
    if ours.recipe == theirs.recipe:
        shared |= theirs.of_gradients  # the candidate's gradients come about as the reference's do
    sides = (candidate, ours), (reference, theirs)
    return [
        Finding(id, kind, side, text, judged.remedies.get(id, CATALOGUE[id].remedy))
        for side, judged in sides
        for id, text in judged.causes.items()
        if id not in shared
    ]


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
