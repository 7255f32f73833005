"""The short check: observes a few steps of two trainings, compares and explains them, on one replica and on two."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check import words
from compare.check.batches import FULL_BATCHES, MORE_BATCHES, Batches, craft_batches
from compare.check.case import Case
from compare.check.causes import CATALOGUE
from compare.check.causes.optimizer_recorded import END, SET_RATE, SET_WEIGHTS, acting
from compare.check.empty_replica import EmptyReplicaProbe, wrong_gradient
from compare.check.judge import judge_reporting, judge_training
from compare.check.judgement import Judgement, survived
from compare.check.look_inside import ACCUMULATION, LookInside, NoiseTwins
from compare.check.measurement import Measurement
from compare.check.observation import EPOCHS, Observation, callback_names, largest_weight_gap
from compare.check.observe import observe
from compare.check.recipe import EPSILON, Recipe
from compare.check.recorded import settings_apart
from compare.check.replay import Replay
from compare.check.report import Report, merged
from compare.check.weight_gaps import ROUNDING
from compare.check.weights_only import why_no_gradients
from compare.engine import input_pipeline, strategies
from compare.engine.run import Run, TrainingTask
from compare.experiment import Experiment
from compare.records.model import EPOCH_END, Record
from compare.trainer import Trainer
from compare.trainers.keras_fit import KerasFit
from compare.user_errors import describe
from compare.verdict import rounding
from compare.verdict.exact import compare_records, paired_names, paired_steps, told_from_rounding, within_rounding
from compare.verdict.findings import Finding, NotApplicable
from compare.verdict.model import Comparison, Training
from compare.verdict.outcomes import ALIKE, DIFFERENT, IDENTICAL, INCONCLUSIVE
from compare.verdict.rounding import FACTOR

Pair = tuple[Record, Record]
"""The records of the reference and of the candidate."""

KNOWN_EPOCHS = range(4)
"""The epochs whose batches are compared with the observed steps: the two that are trained, and their neighbours."""
SEVERAL = "several replicas"
FAILS_ON_TWO = "the reference or the candidate fails on two replicas"
ONE_DEVICE = "TensorFlow has one device here; call compare.configure(replicas=2) before any other TensorFlow call"

CheckOn = Callable[[tf.distribute.Strategy], Report]
"""Checks a trainer under a strategy."""


@contextmanager
def _short_training() -> Iterator[None]:
    """Disables graph rewriting, which changes rounding and takes longer than a few steps; ends datasets at once.

    TensorFlow's warning that functions are traced again is not shown: each training traces them anew.
    """
    options, logger = tf.config.optimizer.get_experimental_options(), tf.get_logger()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    logger.addFilter(_is_not_on_retracing)
    try:
        with strategies.without_idle_waits():
            yield
    finally:
        logger.removeFilter(_is_not_on_retracing)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


def _is_not_on_retracing(record: logging.LogRecord) -> bool:
    return "triggered tf.function retracing" not in record.getMessage()


class Checker:
    """Checks any number of candidates against one reference, which is observed once.

    Args:
        strategy: the strategy under which all train; the global batch is a few examples per replica.
        batch_size, data: as for ``check``.
        fulls: the number of full batches in an epoch.
    """

    @_short_training()
    def __init__(
        self,
        experiment: Experiment,
        reference: Trainer,
        strategy: tf.distribute.Strategy,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        data: Any = None,
        fulls: int = FULL_BATCHES,
    ) -> None:
        began = time.perf_counter()
        given = {"batch_size": batch_size, "seed": seed, "data": data, "fulls": MORE_BATCHES}
        self._longer = partial(Checker, experiment, reference, strategy, **given) if fulls < MORE_BATCHES else None
        train, validation = input_pipeline.load(experiment) if data is None else data
        replicas = strategy.num_replicas_in_sync
        shapes = [spec.shape[1:] for spec in tf.nest.flatten(train.spec[0])]
        numbers = sum(math.prod(size or 1 for size in shape) for shape in shapes)
        self.seed = seed

        def train_on(batches: Batches) -> None:
            samples = train.sample(batches.per_epoch()), validation.sample(batches.validation)
            self.batches, self.task = batches, TrainingTask(experiment, *samples, strategy, batches.full)
            self.reference = observe(self.task, reference, seed)

        train_on(replace(craft_batches(train.count, validation.count, batch_size, replicas, numbers), fulls=fulls))
        if (enough := 2 * self._accumulated) > fulls:
            train_on(replace(self.batches, fulls=enough))  # else it makes no two updates
        self._twins = NoiseTwins(self.task, reference, seed)
        self._inside = LookInside(self._twins, self.reference, train, self.batches)
        self._empty_replica = EmptyReplicaProbe(self.task, self.batches, reference, self.reference, seed)
        self._judged: tuple[Case, Judgement] | NotApplicable | None = None
        self._seconds = time.perf_counter() - began

    @property
    def _accumulated(self) -> int:
        """The number of steps whose gradients the reference's optimizer applies at once."""
        configurations = (config for _, config in self.reference.optimizers)
        return max((config.get("gradient_accumulation_steps") or 1 for config in configurations), default=1)

    @_short_training()
    def check(self, trainer: Trainer) -> Report:
        """Compares one candidate with the reference.

        Raises:
            Exception: whatever the trainer raises.
        """
        began = time.perf_counter() - self._seconds
        self._seconds = 0.0  # the time of the reference counts for the first candidate only
        candidate = observe(self.task, trainer, self.seed)
        if self._longer and self.reference.optimizer_steps and not (candidate.optimizer_steps or candidate.compiled):
            longer: Report = self._longer().check(trainer)  # it may make a step after several batches
            return longer
        name = trainer.name + "-2" * (trainer.name == self.reference.name)
        records = paired_steps(self.reference.record(), replace(candidate.record(), trainer=name))
        comparison = compare_records(*records)
        training = replace(comparison.training, max_weight_gap=largest_weight_gap(self.reference, candidate))
        missing = [] if candidate.optimizer_steps else [why_no_gradients(candidate)]
        if candidate.fixed_dropout:
            reason = "Keras 2's random numbers cannot be reproduced, so a fixed mask drops every other unit"
            missing.append(NotApplicable("dropout", reason))
        comparison = replace(
            comparison, candidate=name, training=training, not_applicable=tuple(missing), certain=False
        )
        report = Report(self.reference.name, (candidate.replicas,), comparison, distributed=candidate.distributed)
        hidden = comparison.training.verdict == IDENTICAL and not self._same_gradients(candidate)
        lost = comparison.weights_alone is not None  # from there on only a cause explains the numbers, no measurement
        if hidden or comparison.verdict != IDENTICAL:
            try:
                report = self._explain(report, candidate, records, hidden)
            except Exception as error:
                failure = NotApplicable("replay", f"the steps cannot be analysed: {survived(error)}")
                report = self._judge_by_twins(report, records, hidden, failure)
        report = replace(report, comparison=report.comparison.held_different())
        if lost:
            report = replace(report, unexplained=()).but(certain=True)
        if report.comparison.training.verdict in (IDENTICAL, ALIKE):
            floor = self._judged[0].threshold if isinstance(self._judged, tuple) else 0.0
            report = self._empty_replica.extend(report, trainer, max(floor, ROUNDING * EPSILON))
            if self._same_gradients(candidate):  # clipped by hand otherwise
                idle = (*self._idle_settings(candidate, name), *self._idle_callbacks(candidate, name))
                report = replace(report, idle=idle)
        judged = self._judged
        replayed = judged[0] if isinstance(judged, tuple) and judged[1].right else None
        report = self._inside.extend(report, candidate, replayed)
        return replace(report, seconds=time.perf_counter() - began)

    def _idle_settings(self, candidate: Observation, name: str) -> tuple[Measurement, ...]:
        """The settings of an optimizer of its own that have made no difference, such as a limit never reached.

        Only limits of gradients and schedules can be idle; where another one differs, the loop does it by hand.
        """
        (right, *more), (own, *others) = ([*each.optimizers, (None, {})] for each in (self.reference, candidate))
        if len(more) != 1 or len(others) != 1 or own[0] is None or own[0] is not right[0]:
            return ()
        can_be_idle = ("clipnorm", "clipvalue", "global_clipnorm", "learning_rate.")  # the last: parts of a schedule
        apart = settings_apart(own[1], right[1])
        settings = {key: both for key, both in apart.items() if key.startswith(can_be_idle)}
        seen = {"side": name, "optimizer": own[0].__name__, "settings": settings}
        return (Measurement.of("script-settings", **seen),) if settings else ()

    def _idle_callbacks(self, candidate: Observation, name: str) -> tuple[Measurement, ...]:
        """The callbacks that the reference runs and the candidate does not, which may act in later epochs."""
        if candidate.asks_callbacks or not self.reference.asks_callbacks:
            return ()
        acts = (END, SET_WEIGHTS, *([] if candidate.sets_rate else [SET_RATE]))  # which it may do by hand
        given = callback_names(self.task.experiment)
        callbacks = [each for each in given if any(acting([each], act) for act in acts)]
        return (Measurement.of("callbacks-not-run", side=name, callbacks=callbacks),) if callbacks else ()

    def _same_gradients(self, candidate: Observation) -> bool:
        """Whether the gradients passed to both optimizers are equal within rounding, given equal weights.

        The threshold is fixed. Gradients of correct loops differed by up to 5e-8, those of mistakes that the
        optimizer hides by 0.5 or more. Gradients of some models have rounding errors of up to 6e-7, which is five
        units in the last place.
        """
        steps, others = self.reference.optimizer_steps, candidate.optimizer_steps
        if [each.with_gradient for each in steps] != [each.with_gradient for each in others]:
            return True  # steps cannot be paired, but the weights are equal
        return wrong_gradient(self.reference, candidate, ROUNDING * 8 * EPSILON) is None

    def _explain(self, report: Report, candidate: Observation, records: Pair, hidden: bool) -> Report:
        """Adds causes and evidence from the replay if it explains the reference; else the noise twins decide.

        Different gradients may be hidden behind equal weights.
        """
        comparison = report.comparison
        training = comparison.training
        if training.verdict == INCONCLUSIVE:
            return report
        if self._accumulated > 1 and len(candidate.optimizer_steps) != len(self.reference.optimizer_steps):
            reason = (
                f"{self.reference.name} accumulates gradients over several batches, {candidate.name} in its own way"
            )
            return self._judge_by_twins(report, records, hidden, NotApplicable(ACCUMULATION, reason))
        judged = self._reference_case()
        if isinstance(judged, NotApplicable) or not judged[1].explained:
            return self._judge_by_twins(report, records, hidden, judged)
        reference_case, expected = judged
        case = Case(candidate, reference_case.replay, reference_case)
        same = training.verdict == IDENTICAL and not hidden
        judgement = expected if same else judge_training(case, expected)
        findings = self._findings(judgement, expected, case)
        evidence = [each for each in judgement.evidence if each not in expected.evidence]

        if same:
            pass
        elif findings or (hidden and not judgement.right) or (not judgement.right and judgement.certain):
            training = replace(training, verdict=DIFFERENT)
        elif judgement.right:
            training = training if hidden else self._within_noise(case, judgement, comparison, records)
            variable = training.noise.variable if training.noise else None
            evidence = [Measurement.of("apart", variable=variable)] if training.verdict == DIFFERENT else []
        else:  # a few steps are slightly off, or could not be paired, which may be rounding
            training = self._twins.judge(comparison, *records).training
            if training.verdict == ALIKE:
                evidence = []
        report = replace(report, unexplained=tuple(evidence)).but(
            training=training,
            causes=tuple(findings),
            certain=training.verdict == DIFFERENT and (bool(findings) or judgement.certain or hidden),
            not_applicable=(*report.not_applicable, *dict.fromkeys(judgement.not_applicable)),
        )
        return self._explain_metrics(report, case, judgement.recipe, records)

    def _within_noise(self, case: Case, judgement: Judgement, comparison: Comparison, records: Pair) -> Training:
        """The verdict on weights whose steps are all right: how far they are from the reference's counts as well.

        The rounding of all steps is added up. Where that does not explain the gap, noise twins have to.
        """
        training = comparison.training
        gaps = case.weight_gaps(judgement.recipe)
        first = training.first_difference
        if gaps is not None and first is not None:
            place = first.epoch, EPOCH_END if first.step is None else first.step
            noise = case.drift(gaps, place)
            if noise.so_far:
                return replace(training, verdict=ALIKE, noise=noise)
        training = self._twins.judge(comparison, *records).training
        if training.verdict == DIFFERENT and training.noise and training.noise.ratio < rounding.HOPELESS * FACTOR:
            reason = "every step is right, but the weights are further apart than the perturbed runs explain"
            return replace(training, verdict=INCONCLUSIVE, reason=reason)
        return training

    def _explain_metrics(self, report: Report, case: Case, recipe: Recipe, records: Pair) -> Report:
        """Adds the verdict on reported numbers, each compared with the one recomputed from the trainer's weights."""
        comparison = report.comparison
        reporting = comparison.reporting
        compared = [key for key, gap in reporting.metrics.items() if gap.compared]
        if reporting.verdict == IDENTICAL or not compared:
            return report
        trains_right = comparison.training.verdict in (IDENTICAL, ALIKE)
        if trains_right and within_rounding(*records):
            return report.but(reporting=replace(reporting, verdict=ALIKE))
        pairs = paired_names(*records)
        keys = [key for key in compared if pairs.get(key) == key]
        judgement = judge_reporting(case, recipe, keys)
        reference_case, of_reference = self._judged  # type: ignore[misc]  # _explain has made sure that there is one
        expected = judge_reporting(reference_case, of_reference.recipe, keys)
        findings = self._findings(judgement, expected, case)
        # If the replay cannot explain the reference's number either, only a gap with equal weights is a difference.
        abstained = judgement.unexplained & expected.unexplained
        distant = {key for key in abstained if not _nearly_equal(records, key)}
        known = [each for each in judgement.evidence if each not in expected.evidence]
        evidence = [each for each in known if each.quantities["metric"] not in abstained]
        wrong = bool(findings or evidence) or (comparison.training.verdict == IDENTICAL and bool(distant))
        skipped = tuple(
            NotApplicable("reporting probe", f"{key} of {self.reference.name} cannot be explained either")
            for key in sorted(abstained)
        )
        if wrong:
            reporting = told_from_rounding(reporting, *records)
        verdict = DIFFERENT if wrong else None if distant else ALIKE
        reporting = replace(reporting, verdict=verdict, unexplained=tuple(sorted(distant)))
        return replace(report, unexplained=(*report.unexplained, *evidence)).but(
            reporting=reporting,
            causes=(*report.findings, *findings),
            not_applicable=(*report.not_applicable, *dict.fromkeys((*judgement.not_applicable, *skipped))),
        )

    def _findings(self, judgement: Judgement, expected: Judgement, case: Case) -> list[Finding]:
        """The causes that affect only one of the candidate (``judgement``) and the reference (``expected``)."""
        shared = set(judgement.causes.keys() & expected.causes.keys())
        if judgement.recipe == expected.recipe:
            shared |= expected.gradient_causes  # the candidate computes its gradients as the reference does
        sides = (case.observation.name, judgement), (self.reference.name, expected)
        return [
            CATALOGUE[id].found(side, evidence, used=case.used, remedy=judged.remedies.get(id, ""))
            for side, judged in sides
            for id, evidence in judged.causes.items()
            if id not in shared
        ]

    def _judge_by_twins(
        self, report: Report, records: Pair, hidden: bool, judged: tuple[Case, Judgement] | NotApplicable
    ) -> Report:
        """Lets noise twins decide if the replay does not explain the reference; no cause is named then."""
        skipped = judged if isinstance(judged, NotApplicable) else self._why_unexplained(judged[1])
        comparison = report.comparison
        evidence: tuple[Measurement, ...] = ()
        if hidden:
            comparison = replace(comparison, training=replace(comparison.training, verdict=DIFFERENT))
            evidence = (Measurement.of("hidden-gradients"),)
        else:
            comparison = self._twins.judge(comparison, *records)
        reporting = comparison.reporting
        if reporting.verdict != IDENTICAL and comparison.training.verdict in (IDENTICAL, ALIKE):
            compared = [key for key, gap in reporting.metrics.items() if gap.compared]
            near = within_rounding(*records) or all(_nearly_equal(records, key) for key in compared)
            if compared and near:
                reporting = replace(reporting, verdict=ALIKE)
        found = replace(report, comparison=replace(comparison, reporting=reporting), unexplained=evidence)
        return found.without(skipped.probe, skipped.reason).but(certain=hidden)

    def _why_unexplained(self, judgement: Judgement) -> NotApplicable:
        failures = [entry.reason for entry in judgement.not_applicable]
        told = [*map(words.said, judgement.evidence), *failures]
        details = "; ".join(told) or "its updates differ from those of the experiment's optimizer"
        reason = f"the experiment's loss and optimizer do not explain {self.reference.name}'s own steps ({details})"
        return NotApplicable("replay", f"{reason}, so no cause is named and perturbed runs decide")

    def _reference_case(self) -> tuple[Case, Judgement] | NotApplicable:
        """The reference compared with the replay, which measures rounding and shows whether the reference is wrong."""
        if self._judged is None:
            try:
                case = Case(self.reference, self._replay())
                case.calibrate()
                off = case.residual(Recipe())
                if off <= case.threshold:
                    case.floor = max(case.floor, off)
                self._judged = case, judge_training(case)
            except Exception as error:
                reason = f"the experiment's steps cannot be recomputed ({survived(error)}), so perturbed runs decide"
                self._judged = NotApplicable("replay", reason)
        return self._judged

    def _replay(self) -> Replay:
        run = Run(self.task, seed=self.seed, epochs=EPOCHS)
        batches = {epoch: list(run.train_dataset(epoch).as_numpy_iterator()) for epoch in KNOWN_EPOCHS}
        return Replay(
            self.task.experiment,
            batches,
            list(run.validation_dataset().as_numpy_iterator()),
            replicas=self.reference.replicas,
            global_batch_size=self.task.global_batch_size,
            spec=run.train_dataset(1).element_spec,
            user_run=self.batches.user_run,
        )


def _nearly_equal(records: Pair, key: str) -> bool:
    """Whether both trainers report nearly the same number in every epoch."""
    reference, candidate = (record.logs for record in records)
    return all(
        np.isclose(reference[e].get(key, np.nan), candidate[e].get(key, np.nan), rtol=1e-4, equal_nan=True)
        for e in reference.keys() & candidate.keys()
    )


# On one replica and on two


def check(
    experiment: Experiment,
    trainer: Trainer,
    *,
    reference: Trainer | None = None,
    strategy: tf.distribute.Strategy | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    data: Any = None,
) -> Report:
    """Checks within seconds whether a trainer trains and reports like the reference, and explains any difference.

    Both train on a few small batches of the experiment's own data for two epochs, with the experiment's model, loss,
    metrics and optimizer.

    Args:
        experiment: the experiment that both train.
        trainer: the candidate.
        reference: the trainer to compare it with; stock ``fit`` by default.
        strategy: the strategy under which both train. By default they train on one replica, and then on two if
            TensorFlow has several devices and the trainer uses its strategy.
        batch_size: examples per replica in the run that this check stands for. The check's batches are then short,
            or split unevenly, only if that run's are. If None, the last batch is short and splits unevenly.
        seed: the seed of initial weights and order of examples.
        data: training and validation examples; those of the experiment by default.

    Returns:
        The report: verdict, causes and evidence.

    Raises:
        Exception: whatever a trainer raises.
    """
    reference = KerasFit() if reference is None else reference
    check_on = checking(experiment, trainer, reference, batch_size=batch_size, seed=seed, data=data)
    if strategy is not None:
        return _check_under(strategy, check_on)
    return with_two_replicas(check_on(tf.distribute.get_strategy()), lambda: on_two_replicas(check_on))


def checking(experiment: Experiment, trainer: Trainer, reference: Trainer, **asked: Any) -> CheckOn:
    """Returns a function that checks the trainer under a strategy; ``asked`` is passed to ``Checker``."""
    return lambda strategy: Checker(experiment, reference, strategy, **asked).check(trainer)


def on_two_replicas(check_on: CheckOn) -> Report | str:
    """Returns the report of a check on two replicas, or why there is none."""
    if len(strategies.devices()) == 1:
        return ONE_DEVICE
    try:
        return check_on(strategies.make("mirrored", 2))
    except Exception as error:  # both can train on one replica, so a failure on two is no difference
        return f"{FAILS_ON_TWO}: {describe(error)}"


def with_two_replicas(report: Report, on_two: Callable[[], Report | str]) -> Report:
    """Adds to a report what was found on two replicas, or why nothing was, if the trainer uses its strategy."""
    if not report.distributed:
        return report.without(SEVERAL, _why_one_replica(report))
    found = on_two()
    if isinstance(found, str):
        return report.without(SEVERAL, found)
    # On one replica, calling fit of a model of its own looks like using the run's strategy.
    return merged([report, found]) if found.distributed else report.without(SEVERAL, _why_one_replica(report))


def _check_under(strategy: tf.distribute.Strategy, check_on: CheckOn) -> Report:
    """Checks under the given strategy, or on one replica if the trainer does not use its strategy."""
    failure: Exception | None = None
    try:
        report = check_on(strategy)
        if report.distributed or strategy.num_replicas_in_sync == 1:
            return report
    except Exception as error:
        if strategy.num_replicas_in_sync == 1:
            raise
        failure = error
    on_one = check_on(tf.distribute.get_strategy())
    if failure is not None and on_one.distributed:
        raise failure
    return on_one.without(SEVERAL, _why_one_replica(on_one))


def _why_one_replica(report: Report) -> str:
    return (
        f"{report.comparison.candidate} never calls strategy.run and does not distribute its data, so it trains on one "
        "replica and was checked on one"
    )
