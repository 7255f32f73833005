"""Looks inside the steps of the short check: where in the first differing step do two trainers diverge?

What rounding explains is measured where the reference's steps are recomputed; else a noise twin of it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check import not_finite
from compare.check.advice import at_line
from compare.check.batches import Batches
from compare.check.case import Case
from compare.check.causes import CATALOGUE
from compare.check.causes.data_recorded import Known, kinds_of_own_rows
from compare.check.causes.optimizer_recorded import setting_rate
from compare.check.judgement import survived
from compare.check.measurement import Measurement
from compare.check.not_finite import FirstValue, first_of_steps
from compare.check.observation import EPOCHS, Observation, as_record
from compare.check.observe import observing
from compare.check.optimizer_replay import replay_segments
from compare.check.recipe import EPSILON, Recipe
from compare.check.recorded import drawn_more_often
from compare.check.report import REPORTING, Report
from compare.check.stages import Located, apart, first_apart, locate
from compare.check.step_values import EXAMPLES, PREDICTIONS, UPDATE
from compare.check.user_code import line_that_makes
from compare.engine.anew import train_anew
from compare.engine.input_pipeline import Data
from compare.engine.noise_twins import TwinRun, half_dtypes
from compare.engine.run import Run, TrainingTask
from compare.errors import EndedEarlyError
from compare.records.model import EPOCH_END, INITIAL, AnyRecord, Place, Record, StepRecord, in_time
from compare.trainer import Trainer
from compare.verdict import rounding
from compare.verdict.exact import noise_start
from compare.verdict.findings import Finding, Source
from compare.verdict.judge import with_noise
from compare.verdict.model import Comparison, Difference, Training
from compare.verdict.not_finite import NotFinite
from compare.verdict.outcomes import DIFFERENT
from compare.watch.epoch_ends import EpochEnds
from compare.watch.seen import CloseUp, Event, row_hashes, sketch

Values = Sequence[np.ndarray]
TWINS, MORE_TWINS = 2, 6
"""The number of noise twins that a short run is compared with: at first, and at most."""


class NoiseTwins:
    """Trains noise twins of the reference when they are needed, and keeps their records and what is seen of them."""

    def __init__(self, task: TrainingTask, reference: Trainer, seed: int) -> None:
        self.task, self._reference, self._seed = task, reference, seed
        self._twins: dict[Place, list[Record]] = {}
        self._seen: dict[Place, list[CloseUp]] = {}

    def judge(self, comparison: Comparison, reference: Record, candidate: Record) -> Comparison:
        """Returns the comparison with its weight difference judged by noise twins."""
        start = noise_start(reference, candidate, training=comparison.training)
        if start is None:
            return comparison
        twins = self._twins.setdefault(start, [])
        measured = partial(rounding.measure, reference, candidate, twins, start)
        for (number,), loud in rounding.wanted_twins(measured, len(twins), TWINS, MORE_TWINS):
            twins.append(self._train(start, number, loud=loud))
        return with_noise(comparison, reference, candidate, twins=twins)

    def inside(self, start: Place) -> list[CloseUp]:
        """What is seen inside the steps of twins with noise from a place on, at least of one; empty if nothing is."""
        twins = self._twins.setdefault(start, [])
        if not twins:
            twins.append(self._train(start, 1, loud=False))
        return self._seen.get(start, [])

    def _train(self, start: Place, number: int, *, loud: bool) -> Record:
        records: list[AnyRecord] = []
        given = {"seed": self._seed, "epochs": EPOCHS, "sinks": [records.append]}
        twin = partial(TwinRun, self.task, start=start, twin=number, loud=loud, **given)
        inside = _seen_inside(self._reference, twin)
        if inside is not None and not loud:
            self._seen.setdefault(start, []).append(inside)
        return as_record(rounding.twin_name(number, loud, start), records)


def _seen_inside(
    trainer: Trainer, make_run: Callable[[], Run], *window: tuple[int, int], latest_only: bool = False
) -> CloseUp | None:
    """What is seen inside the steps of a run, which may end itself early."""
    with observing(*window, latest_only=latest_only) as observer:
        run = make_run()
        with suppress(EndedEarlyError):
            train_anew(trainer, run)
            run.close()
        return observer.seen(0)


def replayed_twin(case: Case, seen: CloseUp, begin: int) -> CloseUp | None:
    """What a noise twin of the reference would have shown; None if that cannot be recomputed.

    Each step is recomputed twice, from the weights that it had and from weights moved by one unit in the last place.
    The difference of the two is added to what was seen. In the weights it adds up from step to step, with such a unit.

    Args:
        case: the reference, whose steps the replay explains.
        seen: what was seen inside the reference's steps.
        begin: the first step whose noise goes into the weights, counted over the whole training.
    """
    replay, known = case.replay, case.segments
    if (
        half_dtypes(replay.model)
        or known is None
        or case.aligned is None
        or list(seen.steps) != list(range(1, len(known) + 1))
    ):
        return None  # weights in half precision do not notice a unit of float32
    places = {id(variable): i for i, variable in enumerate(replay.variables)}
    order = [places[id(variable)] for variable in replay.model.weights]
    noise: list[np.ndarray] = [np.zeros(())] * len(order)
    steps, after = {}, dict(seen.after)
    both = (replay_segments(case.replay, known, Recipe(), case.right_update, nudge) for nudge in (1, 0))
    for i, (number, moved, exact) in enumerate(zip(seen.steps, *both, strict=True)):
        if number >= begin:
            own = [moved[k][0] - exact[k][0] + EPSILON * np.abs(exact[k][0]) for k in order]
            noise = [before + now for before, now in zip(noise, own, strict=True)]
        if number in seen.after:
            after[number] = _moved(seen.after[number], noise)
        steps[number] = [_recomputed(case, order, i, noise, event) for event in seen.steps[number]]
    return replace(seen, steps=steps, after=after)


def _recomputed(case: Case, order: Sequence[int], i: int, noise: Values, event: Event) -> Event:
    """An event of step ``i`` as it would have been from moved weights; itself if that cannot be told."""
    assert case.aligned is not None
    replay, step, span = case.replay, case.steps[i], case.aligned[i]
    part = replay.parts(span)[event.replica]
    if event.kind in ("predictions", "loss") and part.start < part.stop:
        exact, moved = (replay.replica_pass(step, event.replica, part, Recipe(), nudge) for nudge in (0, 1))
        if event.kind == "predictions":
            pairs = zip(*(tf.nest.flatten(each.predictions) for each in (moved, exact)), strict=True)
            return replace(event, arrays=_moved(event.arrays, [_gap(a, b) for a, b in pairs]))
        means = [each.loss / (part.stop - part.start) + each.penalty for each in (moved, exact)]
        return replace(event, arrays=[array * (means[0] / (means[1] or 1.0)) for array in event.arrays])
    if event.kind in ("gradients", "sketch"):
        both = [replay.typed_gradients(step, span, Recipe(), nudge)[event.replica] for nudge in (1, 0)]
        gaps = [_gap(*(gradients[order[k]] for gradients in both)) for k in event.info["positions"]]
        if event.kind == "sketch":
            return replace(event, arrays=_moved(event.arrays, [sketch(gap) for gap in gaps]))
        return replace(event, arrays=[*event.arrays[:1], *_moved(event.arrays[1:], gaps)])
    return replace(event, arrays=_moved(event.arrays, noise)) if event.kind == "updated" else event


def _gap(moved: Any, exact: Any) -> np.ndarray:
    """The difference of two arrays, tensors or gradients; a missing one is zero."""
    return np.subtract(*(np.zeros(()) if each is None else np.asarray(each, np.float64) for each in (moved, exact)))


def _moved(arrays: Values, gaps: Values) -> list[np.ndarray]:
    """Arrays with what rounding adds; as they are where their shapes are others than those that are recomputed."""
    if len(arrays) != len(gaps) or any(np.shape(a) != np.shape(b) for a, b in zip(arrays, gaps, strict=True)):
        return list(arrays)
    return [np.asarray(a, np.float64) + b for a, b in zip(arrays, gaps, strict=True)]


MOST = 200_000
"""The largest number of examples that are hashed."""
OF_RUN = "dataset = {}  # in fit's order\n# or, with data of your own:\n"
"""What to write instead of batches of one's own, before the remedy of a cause."""
ACCUMULATION = "accumulation"
"""The probe that is missing where steps of one side are several of the other: no single ones can be compared."""


class LookInside:
    """Locates the first difference of any number of candidates from one reference.

    Args:
        runs: the noise twins of the reference.
        everything: the experiment's own training examples, of which the task has a few.
        batches: their batch sizes.
    """

    def __init__(self, runs: NoiseTwins, reference: Observation, everything: Data, batches: Batches) -> None:
        self._runs, self._reference, self._everything, self._batches = runs, reference, everything, batches
        self._ends = EpochEnds(tuple(epoch * runs.task.steps_per_epoch for epoch in EPOCHS))
        self.place = self._ends.place
        self._replayed: dict[int, CloseUp | None] = {}

    @cached_property
    def data(self) -> Known:
        """The examples that a loop can have, of the run and of the experiment."""
        return Known.of(_hashes(self._runs.task.train), _hashes(self._everything))

    def extend(self, report: Report, candidate: Observation, replayed: Case | None) -> Report:
        """Adds to a report what was seen inside the steps: the stage that differs first, and the lines that make it.

        Args:
            replayed: the reference's steps, if the replay explains them.
        """
        return self._with_lines(self._located(report, candidate, replayed), candidate)

    def _located(self, report: Report, candidate: Observation, replayed: Case | None) -> Report:
        """Adds the stage of the first differing step to a report, if the trainer is different and could be observed."""
        report = self._look_at_not_finite(report, candidate)
        training, reference, own = report.comparison.training, self._reference.inside, candidate.inside
        if training.verdict != DIFFERENT or report.comparison.weights_alone is not None:
            return report
        if ACCUMULATION in [entry.probe for entry in report.not_applicable] or reference is None or own is None:
            return report
        try:
            found = self.locate(reference, own, training, replayed)
            if found is None:
                return report
            located, apart_from = found
            located = self._explained_earlier(report, located, own, replayed) or located
            report = _without_contradicted(report.of_gradients(located), located)
            if located.stage == EXAMPLES and not report.training:
                report = self._name_examples(report, reference, own)
        except Exception as error:
            return report.without("stages", f"the steps cannot be looked into: {survived(error)}")
        both = reference, own
        if located.stage == PREDICTIONS and not report.training and (drawn := drawn_more_often(*both, located.step)):
            seen = drawn[0].but(side=report.comparison.candidate, other=self._reference.name)
            report = replace(report, unexplained=(seen, *(each for each in report.unexplained if each.kind != "apart")))
        epoch, step = self.place(located.step)
        same_calls = len({side.calls(located.step) for side in both}) == 1  # else its steps are not those of fit
        later = apart_from if same_calls and apart_from and apart_from > located.step else None
        weights = Difference(*self.place(later)) if later else None
        names = self._reference.name, report.comparison.candidate
        lost = not_finite.of_step(names, both, located, (epoch, step), " of the check")
        in_order = sorted(report.findings, key=lambda each: located.stage not in CATALOGUE[each.id].stages)
        first = Difference(epoch, step, None, located.stage, located.where, weights=weights)
        training = replace(training, first_difference=first)
        return report.but(training=training, causes=(*lost, *in_order), stages=tuple(located.stages) or None)

    def _with_lines(self, report: Report, candidate: Observation) -> Report:
        """Adds to each cause the line of the user's code that makes the mistake, as far as it was seen."""
        first, findings = report.comparison.training.first_difference, []
        step = self.number(first) if first is not None and first.step is not None else 1
        for each in report.findings:
            side = self._reference if each.side == self._reference.name else candidate
            source = None
            if each.kind == REPORTING:
                divided = side.inside.divided.get(each.divided) if side.inside is not None else None
                source = Source.of(divided or line_that_makes(side.reported_at, each.metrics), shows=True)
            elif each.measurements.get("kind") == "learning-rate" and side.rate_set:
                source = Source.of(side.rate_set)
            elif EXAMPLES in CATALOGUE[each.id].stages and side.dataset_at:
                source = Source.of(side.dataset_at, shows=True)
            elif side.inside is not None:
                source = CATALOGUE[each.id].line_in(side.inside, step, (first and first.stage) or "")
            if source is not None and each.id == "optimizer-differs" and not side.rate_set:
                source = replace(source, shows=True)  # the update, not where the setting is made
            findings.append(at_line(each, source))
        return report.but(causes=tuple(findings))

    def _look_at_not_finite(self, report: Report, candidate: Observation) -> Report:
        """Adds the cause ``not-finite``, if one side alone is, with the stage of the first such value."""
        found, inside = report.comparison.lost_alone, None
        try:
            if found is not None:
                side, other = self._reference.inside, candidate.inside
                if found.side != self._reference.name:
                    side, other = other, side
                inside = self.first_not_finite(side, other, found)
        except Exception as error:
            report = report.without("stages", f"the steps cannot be looked into: {survived(error)}")
        if not report.training:  # else the difference begins where that mistake does
            stage, where = (inside.stage, inside.where) if inside else ("", "")
            report = replace(report, comparison=report.comparison.led_by_not_finite(stage, where))
        lost = not_finite.findings(report.comparison, report.reference, inside, " of the check")
        return report.but(causes=(*lost, *report.findings))

    def _name_examples(self, report: Report, reference: CloseUp, candidate: CloseUp) -> Report:
        """Adds what is wrong with the examples of a loop that batches them by itself."""
        causes, evidence = kinds_of_own_rows(self.data, reference, candidate, self._batches)
        if not causes and not evidence:
            return report
        side = report.comparison.candidate
        given = "run.train_dataset(epoch)"
        of_run = OF_RUN.format(f"strategy.experimental_distribute_dataset({given})" if report.distributed else given)
        found = [CATALOGUE[id].found(side, seen, remedy=of_run + CATALOGUE[id].remedy) for id, seen in causes]
        return replace(report, unexplained=tuple(evidence)).but(causes=(*found, *report.findings), certain=True)

    def locate(
        self, reference: CloseUp, candidate: CloseUp, training: Training, case: Case | None
    ) -> tuple[Located, int | None] | None:
        """Finds the first step and stage that differ by more than rounding; None if there are none.

        Where the weights are equal, what differs is inside a step.

        Args:
            case: the reference's steps, if the replay explains them.

        Returns:
            The stage, and the first step after which the weights differ by more than rounding; None if there is none.

        Raises:
            Exception: whatever the reference raises.
        """
        first = training.first_difference
        begin = 1 if first is None else self.number(first)
        sides, twins = (reference, candidate), self._twins_from(begin, reference, case)
        steps = range(begin, self._ends.ends[-1] + 1)
        end = next((step for step in steps if first is not None and apart(*sides, twins, step)), steps.stop)
        earlier = first_apart(*sides, twins, end)
        apart_from = end if end in steps else None
        if earlier is not None and first_apart(*sides, self._twins_from(1, reference, case), end) != earlier:
            earlier = None  # rounding, before the noise of these twins began
        elsewhere = self.data.labels if candidate.all_rows() - reference.all_rows() else ()
        for step in [*([earlier] if earlier else []), *steps]:
            if first is not None and step != earlier and not apart(*sides, twins, step):
                continue
            located = locate(*sides, twins, step, reference.names, elsewhere)
            values = located.of(located.stage) if located.stage else None
            if values is not None and (first is not None or values.differs):
                return located, apart_from
        return None

    def _explained_earlier(self, report: Report, located: Located, own: CloseUp, case: Case | None) -> Located | None:
        """The first step before one with a stage of causes that explain exactly what was seen; None if none do.

        One weight decay in place of another changes no step by more than what may be rounding, and then the loss.
        """
        causes, reference = [CATALOGUE[each.id] for each in report.training], self._reference.inside
        exact = bool(causes) and not any(each.measurements.get("residual", 1) for each in report.training)
        if not exact or reference is None or any(not each.stages or located.stage in each.stages for each in causes):
            return None
        stages = {stage for each in causes for stage in each.stages}
        for step in range(1, located.step):
            at = locate(reference, own, self._twins_from(1, reference, case), step, reference.names)
            first = next((each for each in at.stages if each.stage in stages and each.gap), None)
            if first is not None:
                seen = [replace(each, noise=0.0) if each is first else each for each in at.stages]
                return Located(step, first.stage, first.where, seen)
        return None

    def first_not_finite(self, side: CloseUp | None, other: CloseUp | None, found: NotFinite) -> FirstValue | None:
        """Finds where in its step a value first is not finite on one side only; None if that cannot be observed."""
        if side is None:
            return None
        last = self.number(Difference(found.epoch, found.step))
        steps = [last] if found.step is not None else range(self._ends.step((found.epoch, 1)), last + 1)
        return first_of_steps(side, other, list(steps), side.names, found)

    def number(self, first: Difference) -> int:
        """The step over the whole training; of the initial weights, the first."""
        return self._ends.step((first.epoch, EPOCH_END if first.step is None else max(first.step, 1)))

    def _twins_from(self, begin: int, reference: CloseUp, case: Case | None) -> list[CloseUp]:
        """The noise twins with noise from a step on, as far as they can be recomputed or observed."""
        if begin not in self._replayed and case is not None:
            self._replayed[begin] = replayed_twin(case, reference, begin)
        replayed = self._replayed.get(begin)
        return [replayed] if replayed else self._runs.inside(self.place(begin))


def _without_contradicted(report: Report, located: Located) -> Report:
    """Leaves out the causes of training where none of them can be what differs first: the stages of all agree."""
    if not report.training or not all(CATALOGUE[each.id].contradicted(located) for each in report.training):
        return report
    known = [(each.id, Measurement.read(each.measurements)) for each in report.training]
    seen = [measurement.but(as_with=id, agrees=CATALOGUE[id].stages) for id, measurement in known]
    return replace(report, unexplained=(*report.unexplained, *seen)).but(causes=report.reporting)


def _hashes(examples: Data) -> Iterator[tuple[int, int]]:
    """The hashes of each example and of its label, unless there are too many."""
    if examples.count <= MOST:
        for x, y, *_ in examples.in_order(1024).as_numpy_iterator():
            yield from zip(row_hashes(tf.nest.flatten(x)), row_hashes(tf.nest.flatten(y)), strict=False)


def first_not_finite(
    side: Trainer, other: Trainer, make_run: Callable[..., Run], found: NotFinite, variables: Sequence[str]
) -> FirstValue | None:
    """Trains again up to the place where one side's weights first are not finite; finds the first value if it can.

    Args:
        make_run: makes a run with the ``sinks`` that it is given.

    Raises:
        Exception: whatever a trainer raises.
    """
    ending = partial(make_run, sinks=[_until(found.place)])
    seen = _seen_inside(side, ending, latest_only=True)
    steps = sorted(step for step in seen.steps if seen.of(step, "updated")) if seen else []
    if seen is None or not steps:
        return None
    given = _seen_inside(other, ending, (steps[0] + 1, steps[-1]))
    return first_of_steps(seen, given, steps, variables, found)


def locate_again(
    reference: Trainer,
    candidate: Trainer,
    make_run: Callable[..., Run],
    make_twin: Callable[..., Run],
    place: Place,
    step: int,
    variables: Sequence[str],
    callbacks: Sequence[str] = (),
) -> tuple[Located, list[Finding]] | None:
    """Trains both again up to the step where they diverge, and finds the stage in it; None if that is not seen.

    Args:
        make_run, make_twin: make a run, and one with noise before that step, with the ``sinks`` that they are given.
        step: the same step as ``place``, counted over the whole training.
        callbacks: the classes of those that ``fit`` has.

    Returns:
        The stage, and its cause, if a callback of the reference's has set another learning rate.

    Raises:
        Exception: whatever a trainer raises.
    """
    runs = (reference, make_run), (candidate, make_run), (reference, make_twin)
    seen = [_seen_inside(trainer, partial(make, sinks=[_until(place)]), (step, step)) for trainer, make in runs]
    one, other, *twins = [each or CloseUp({}) for each in seen]
    if not apart(one, other, twins, step):
        return None
    located = locate(one, other, twins, step, variables)
    (right, *_), (own, *_) = ([*each.learning_rates(step).values(), None] for each in (one, other))
    if located.stage != UPDATE or right is None or own is None or right == own or not setting_rate(callbacks):
        return located, []
    rates = {"callbacks": setting_rate(callbacks), "learning_rate": right, "other_rate": own}
    changed = Measurement.of("script-rate-changed", side=reference.name, other=candidate.name, **rates)
    return located, [CATALOGUE["callbacks-missing"].found(candidate.name, changed)]


def _until(place: Place) -> Callable[[AnyRecord], None]:
    """The sink that ends a training after a step."""

    def end(record: AnyRecord) -> None:
        if not isinstance(record, StepRecord) or record.step <= INITIAL:
            return
        if in_time((record.epoch, record.step)) >= in_time(place):
            raise EndedEarlyError(record.epoch, record.step, "enough was seen")

    return end
