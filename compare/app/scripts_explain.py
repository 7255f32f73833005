"""Explains how two scripts differ: measures rounding, locates the first difference inside its step, and names it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from compare.app.script_runs import failure_of, write_records
from compare.app.scripts_session import ModelPair, ScriptsSession, run_scripts
from compare.check import words
from compare.check.causes.optimizer import settings_apart
from compare.check.causes.reporting import never_reset, other_metrics
from compare.check.judge_recorded import hints, more_weights, name_causes, name_copies, name_further, name_left
from compare.check.measurement import Measurement
from compare.check.not_finite import FirstValue, first_of_steps, of_step
from compare.check.recorded import scale_of
from compare.check.recorded_numbers import (
    evidence_on_numbers,
    losses_by_epoch,
    name_not_reset,
    name_own_loss,
    name_reporting,
    validation_by_epoch,
)
from compare.check.sides import Sides
from compare.check.stages import (
    EXAMPLES,
    INPUTS,
    LOSS,
    PREDICTIONS,
    STATE,
    Located,
    first_apart,
    locate,
    relative_gap,
    updates_otherwise,
)
from compare.check.used import used_by
from compare.naming import some
from compare.records import INITIAL, MetricsFile, Place, Record, read_records
from compare.records.codec import encode
from compare.reporting.terminal import tell
from compare.verdict import rounding
from compare.verdict.exact import beyond_rounding, reported_by_both
from compare.verdict.judge import Pair, Recorded, pairs
from compare.verdict.model import Comparison, Difference, Finding, Reporting, Source, Training
from compare.verdict.outcomes import DIFFERENT, INCONCLUSIVE
from compare.watch.reported_logs import line_of
from compare.watch.seen import CloseUp, read_close_up
from compare.watch.settings import Nudge, Settings
from compare.watch.trace import LEFT, Trace, read_traces

LEAST_TWINS, MOST_TWINS = 2, 6
"""The number of noise twins: at first, and where rounding may have crossed a kink that these did not."""
NEAR, TINY = 0.1, 1e-6
"""How far apart what a run and its noise twin begin with may be, relative to the larger norm, or to a tiny one."""
NOT_REPEATED = (
    "{} begins with other weights or inputs when it is run again; seed its random numbers, and have it load nothing "
    "that it has saved itself"
)
"""Why nothing can be compared with a script."""
BEYOND_TWINS = 3
"""How much farther than all noise twins a reported loss has to be for the losses of all steps to be looked at."""


@dataclass(frozen=True)
class Departure:
    """The first step after which two models differ by more than rounding.

    Attributes:
        step: counted over the whole training.
        start: where the noise of the twins begins; None if rounding cannot explain the difference.
    """

    step: int
    start: Place | None
    pair: Pair
    model: ModelPair

    @property
    def name(self) -> str:
        """The name of the candidate."""
        return self.pair.candidate.trainer

    @property
    def noise(self) -> int | None:
        """The first step that starts from moved weights in a noise twin; None if rounding plays no part."""
        if self.step == INITIAL or self.pair.exactly.weights_alone is not None or more_weights(*self.model.traces):
            return None
        return self.step if self.start is None else max(self.model.epochs.step(self.start), 1)

    @property
    def end(self) -> int:
        """The last step that tells more of the difference: of the epoch, since a batch may come later in it."""
        ends = self.model.epochs
        return max(self.step + 2, ends.step((ends.place(self.step)[0] + 1, 0)) if ends else 0)


def explain(session: ScriptsSession) -> None:
    """Measures rounding by noise twins of the reference; locates and names what is more than that."""
    paired = pairs(Recorded.read(session.folder))
    compared = [(pair, model) for pair, model in zip(paired, session.models, strict=True) if pair.trained]
    differing = [(pair, model) for pair, model in compared if pair.exactly.training.verdict == DIFFERENT]
    early = _look_early(session, differing)
    departures = [_departure(session, pair, model, early.get(pair.candidate.trainer)) for pair, model in differing]
    found = [each for each in departures if each is not None]
    seen = _look_into(session, found, early)
    not_finite = {each.name: value for each in found if (value := _first_not_finite(each, seen.get(each.name)))}
    losses = {each[0].candidate.trainer: value for each in compared if (value := _of_lost_loss(session, *each))}
    checked = {each.name: _checked(session, each, seen, early.get(each.name)) for each in found}
    if compared[0][0].candidate.trainer not in checked:  # which has the numbers
        checked |= _explain_numbers(session, *compared[0])
    session.run.save(
        check=encode(checked) if checked else None,
        not_finite={name: asdict(value) for name, value in (not_finite | losses).items()} or None,
    )
    parting = {each.name for each in found}
    for pair, model in compared:
        if pair.candidate.trainer not in parting:
            _say_which_settings_do_nothing(session, model)


def _say_which_settings_do_nothing(session: ScriptsSession, model: ModelPair) -> None:
    """Says how the optimizers of two trainings differ that are alike all the same, as with a limit never reached."""
    reference, candidate = (trace.optimizers[:1] for trace in model.traces)
    if reference and candidate and reference[0]["class"] == candidate[0]["class"]:
        settings = settings_apart(candidate[0]["config"], reference[0]["config"])
        if settings:
            seen = {"side": model.names[1], "optimizer": candidate[0]["class"], "settings": settings}
            _note(session, f"{words.said(Measurement.of('script-settings', **seen))}, which makes no difference here")


def _note(session: ScriptsSession, text: str) -> None:
    session.run.save(notes=list(dict.fromkeys([*(session.run.notes or ()), text])))
    tell(session.console, f"Note: {text}")


def _look_early(session: ScriptsSession, differing: Sequence[tuple[Pair, ModelPair]]) -> dict[str, CloseUps]:
    """Looks at once into the first step that is not equal, where the gap after it can hardly be rounding.

    Its noise twin, which goes no further than the epoch, then tells so, and none has to be trained to the end. Where a
    value is lost later, on one side only, what differed before may be its cause; there no twins are needed.
    """
    begin = []
    for pair, model in differing:
        start, first = pair.noise_start, pair.exactly.training.first_difference
        lost = start is None and pair.exactly.weights_alone is not None
        place = (first.epoch, first.step) if lost and first is not None and first.step is not None else start
        if place is None or model.traces[0].state:
            continue
        if rounding.unlikely(pair.reference, pair.candidate, place):
            begin.append(Departure(model.epochs.step(place), start, pair, model))
    return {each.departure.name: each for each in _close_ups(session, [each for each in begin if each.step > INITIAL])}


def _departure(session: ScriptsSession, pair: Pair, model: ModelPair, early: CloseUps | None) -> Departure | None:
    """Where two models part by more than rounding; None if they do not."""
    start = pair.noise_start
    twins = [] if start is None else _train_twins(session, pair, model, start, early)
    training = pair.compared(twins).training
    if early is not None and not early.repeats and training.verdict != DIFFERENT:
        return early.departure
    if training.verdict == DIFFERENT and training.first_difference is not None:
        first = training.first_difference
        place: Place = (first.epoch, first.step if first.step is not None else 1)
        if start is not None:
            place = rounding.first_beyond(pair.reference, pair.candidate, twins, start) or place
        return Departure(model.epochs.step(place), start, pair, model)
    if len(set(model.lengths)) > 1:
        return Departure(min(model.lengths) + 1, start, pair, model)
    loss = early.located.of(LOSS) if early is not None else None
    if early is not None and loss is not None and early.located.stage == LOSS and (loss.gap or 0.0) > NEAR:
        both = f"{loss.reference} in {model.names[0]} and {loss.candidate} in {model.names[1]}"
        _note(
            session, f"the loss of step {early.departure.step:,} is {both}, from the same predictions: Adam may hide it"
        )
    return None


def _goes_on(session: ScriptsSession, departure: Departure) -> bool:
    """Whether one side goes on with another optimizer where the other ends this training, and makes another one."""
    end = min(departure.model.lengths)
    parts = [step for trace in departure.model.traces for step, _ in trace.parts]
    return bool(session.left_over) and departure.step == end + 1 and end in parts


def _other_trainings(session: ScriptsSession, departure: Departure) -> str:
    """How two scripts differ of which one makes more steps, if the trainings that they make differ; else empty."""
    lengths, names = departure.model.lengths, departure.model.names
    if departure.step <= min(lengths) or not session.left_over:
        return ""
    longer = int(lengths[1] > lengths[0])
    trace = departure.model.traces[longer]
    goes_on = f"{names[longer]} goes on to train {trace.model or trace.variables[0].name} after step {min(lengths):,}"
    return f"{'; '.join(session.left_over)}; {goes_on}, where {names[1 - longer]} ends"


def _unsure(departure: Departure, located: Located) -> str:
    """Why nobody knows whether two trainings differ: wrong pairs of variables may have begun with each other's values.

    They have not where both make equal predictions in the first step, or where the first step is equal.
    """
    names, predictions = departure.model.traces[1].unsure, located.of(PREDICTIONS)
    if not names or located.step > 1 or (predictions and predictions.equal):
        return ""
    return (
        f"{some(names)} were paired by their order only, since they have equal shapes, and the first step differs, as "
        "it does where they are paired wrongly; make the variables in the same order in both scripts"
    )


def _checked(
    session: ScriptsSession, departure: Departure, seen: Mapping[str, CloseUps], early: CloseUps | None = None
) -> Comparison:
    """The comparison with what was found inside the first step that differs."""
    weights, close = departure.step, seen.get(departure.name)
    located, sides = Located(departure.step, None), None
    if close is not None and departure.noise is not None:
        departure, sides, located = close.departure, close.sides, close.located
    unsure = _unsure(departure, located) if close is None or close.repeats else NOT_REPEATED.format(session.names[0])
    causes, evidence = _found(departure, located, None if unsure else sides, seen)
    before = early.sides if early is not None and early.departure.step < departure.step else None
    if early is not None and before is not None and departure.pair.exactly.weights_alone is not None:
        roots = name_causes(early.located, before)  # what differed before a value was lost
        causes += [*roots, *name_further(early.located, before, roots)]
        if roots:  # where the difference begins
            departure, located, weights = early.departure, early.located, early.departure.step
    if close is not None and close.sides is not None and weights == INITIAL:
        causes = name_copies(close.sides)
    numbers = [] if unsure or sides is None else _own_numbers(departure.pair, departure.model, sides.close_ups)
    lengths, state = departure.model.lengths, departure.model.traces[0]
    for side, trace in zip(departure.model.names, departure.model.traces, strict=True):
        if weights - 1 in trace.reseeded:
            evidence.append(Measurement.of("reseeded", step=weights - 1, side=side))
    epoch, within = departure.model.epochs.place(departure.step) if departure.step > INITIAL else (1, INITIAL)
    later = Difference(*departure.model.epochs.place(weights)) if weights > departure.step else None
    first = Difference(epoch, within, None, located.stage, located.where, weights=later)
    reason = unsure or _other_trainings(session, departure)
    if state.state == LEFT:
        training = next(each for each in session.models if each.traces[0].number == state.of)
        ending = replace(training, traces=departure.model.traces)
        causes, reason = name_left(ending.names, ending.traces), _changed_last(ending)
        first = replace(first, stage=STATE)
    elif weights == INITIAL and (changed := _changed_first(departure.model)):
        reason = changed
    elif state.state:
        reason = f"no optimizer trains {state.model}, and at the end its weights are different"
    return Comparison(
        departure.name,
        Training(INCONCLUSIVE if unsure else DIFFERENT, None, first, 0, reason=reason),
        Reporting(DIFFERENT if numbers else None, {}),
        certain=departure.start is None or departure.step > min(lengths),
        causes=(*causes, *numbers),
        **words.as_evidence(evidence),
        not_applicable=(),
        stages=tuple(located.stages),
    )


def _changed_first(model: ModelPair) -> str:
    """The sides that change weights before their first step, where these then differ, as a sentence; or empty."""
    changing = [name for name, trace in zip(model.names, model.traces, strict=True) if trace.changed_early]
    how = "changes the" if len(changing) == 1 else "change their"
    when = "after gradients of them were taken and before an optimizer's first update"
    return f"{' and '.join(changing)} {how} weights {when}" if changing else ""


def _changed_last(model: ModelPair) -> str:
    """What happens after the last step, as a sentence."""
    changing = [name for name, trace in zip(model.names, model.traces, strict=True) if not trace.never_changes]
    how = "changes the weights" if len(changing) == 1 else "change the weights in different ways"
    return f"after the last step {' and '.join(changing)} {how} once more"


def _found(
    departure: Departure, located: Located, sides: Sides | None, seen: Mapping[str, CloseUps]
) -> tuple[list[Finding], list[Measurement]]:
    """The causes of a difference, or else what may explain it: the difference of another model, for example."""
    maker, earlier, further = None, _earlier(departure, seen), list[Finding]()
    if sides is not None:
        place = departure.model.epochs.place(max(located.step, 1))
        if lost := of_step(sides.names, sides.close_ups, located, place):
            return lost, []
        maker = _called_first(seen[departure.name], seen)
        another = maker or (earlier and located.stage in (EXAMPLES, INPUTS))  # which another model may make
        causes = [] if another else name_causes(located, sides)
        further = [] if another else name_further(located, sides, causes)
        if causes:
            return [*causes, *further], []
    lengths, names, traces = departure.model.lengths, departure.model.names, departure.model.traces
    evidence = []
    if departure.step > min(lengths):
        evidence.append(Measurement.of("steps-made", steps=dict(zip(names, lengths, strict=True))))
    still = [name for name, trace in zip(names, traces, strict=True) if trace.state and trace.never_changes]
    if still:
        evidence.append(Measurement.of("never-changes", side=still[0]))
    elif other := maker or earlier:
        epoch, step = other.model.epochs.place(other.step)
        state = bool(traces[0].state)
        evidence.append(Measurement.of("follows", side=other.name, epoch=epoch, step=step, state=state))
    elif sides is not None:
        evidence += hints(located, sides)
        compiled = [name for name, side in zip(names, sides.close_ups, strict=True) if side.without_xla]
        if compiled and located.stage is None:
            evidence.append(Measurement.of("equal-without-xla", sides=compiled, step=located.step))
    return further, [*evidence, *_not_repeated(departure, seen.get(departure.name))]


def _not_repeated(departure: Departure, close: CloseUps | None) -> list[Measurement]:
    """The scripts that have made fewer steps when they were run again, to look inside one."""
    made = [max(side.steps, default=0) if side else 0 for side in (close.seen if close else ())]
    return [
        Measurement.of("not-repeated", side=name, step=departure.step, made=steps, error=error)
        for name, steps, before, error in zip(
            departure.model.names, made, departure.model.lengths, close.errors if close else (), strict=False
        )
        if steps < departure.step <= before
    ]


def _explain_numbers(session: ScriptsSession, pair: Pair, model: ModelPair) -> dict[str, Comparison]:
    """Names the cause of different numbers from equal weights, where it is known.

    Where rounding alone explains other weights, each loss is held against those of the steps that its side made.
    """
    used = used_by(model.traces[1], model.traces[0])
    of_reference = name_reporting(pair.candidate, pair.reference, used=used_by(*model.traces))
    of_reference = _with_lines(of_reference, model, 0)
    if pair.exactly.training.verdict == DIFFERENT:
        both: Sequence[CloseUp | None] = (None, None)
        if _other_loss(session, pair):
            tell(session.console, "The weights are alike, but the loss is not. Looking at the loss of every step …")
            both = _seen_losses(session, model, (0, 1))
        causes = [*_with_lines(name_reporting(pair.reference, pair.candidate, used=used), model, 1), *of_reference]
        known = {cause.id for cause in causes}
        return _of_numbers(pair, [*causes, *(c for c in _own_numbers(pair, model, both) if c.id not in known)], [])
    reporting = pair.exactly.reporting
    evidence: list[Measurement] = []
    seen: CloseUp | None = None
    ends = model.epochs.ends or (model.traces[1].last,)
    different = {name for name in beyond_rounding(pair.reference, pair.candidate) if reporting.metrics[name].max_gap}
    metrics = other_metrics(*model.traces, ends, different, model.names[0]) if reporting.verdict == DIFFERENT else {}
    causes = name_reporting(pair.reference, pair.candidate, used=used, metrics=metrics)
    unexplained = different.difference(*(cause.metrics for cause in (*causes, *of_reference)))
    if unexplained and reporting.verdict == DIFFERENT:
        tell(session.console, "The weights are equal, but the numbers are not. Looking at the loss of every step …")
        (seen,) = _seen_losses(session, model)
        if seen is not None:
            losses, validation = losses_by_epoch(seen, ends), validation_by_epoch(seen, ends)
            of_losses = losses, validation, used.seeing(seen.divided)
            causes = name_reporting(pair.reference, pair.candidate, *of_losses, metrics)
            if left := unexplained.difference(*(cause.metrics for cause in causes)):
                evidence = evidence_on_numbers(pair.candidate, left, seen, losses, ends)
    return _of_numbers(pair, [*_with_lines(causes, model, 1, seen), *of_reference], evidence)


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


def _other_loss(session: ScriptsSession, pair: Pair) -> bool:
    """Whether the candidate reports another training loss than the reference and all of its noise twins do."""
    if "loss" not in pair.exactly.reporting.unexplained:
        return False

    def gap(record: Record) -> float:
        both = reported_by_both(pair.reference, record)
        return max((abs(a - b) for _, name, a, b in both if name == "loss"), default=0.0)

    twins = [gap(twin) for twin in read_records(session.folder / "twins" / pair.twins)]
    return bool(twins) and gap(pair.candidate) > BEYOND_TWINS * max(twins)


def _own_numbers(pair: Pair, model: ModelPair, seen: Sequence[CloseUp | None]) -> list[Finding]:
    """The causes of another reported loss than that of the steps that the side at fault was seen to make."""
    at_fault = int(not model.swapped)
    records, traces, ends = (pair.reference, pair.candidate), model.traces, model.epochs.ends
    own = seen[at_fault]
    used = used_by(traces[at_fault], traces[1 - at_fault]).seeing(own.divided if own is not None else ())
    right, causes = (
        [] if close_up is None else name_own_loss(records[side], losses_by_epoch(close_up, ends), used)
        for side, close_up in ((side, seen[side]) for side in (1 - at_fault, at_fault))
    )
    also = {cause.id for cause in right}  # what both do is no difference
    known, kept = (never_reset(traces[side], ends, traces[1 - at_fault]) for side in (1 - at_fault, at_fault))
    causes += name_not_reset({name: kept[name] for name in kept.keys() - known.keys()}, records[at_fault], used)
    found = {cause.id: cause for cause in causes if cause.id not in also}
    return _with_lines(list(found.values()), model, at_fault, own)


def _with_lines(causes: Sequence[Finding], model: ModelPair, side: int, seen: CloseUp | None = None) -> list[Finding]:
    """Causes of reported numbers, with the line of a script that reports them, or whose loss Keras divides."""
    trace, ends = model.traces[side], model.epochs.ends or (model.traces[side].last,)
    divided = seen.divided if seen is not None else {}
    lines = (divided.get(each.divided) or line_of(trace, ends, model.traces[1 - side], each.metrics) for each in causes)
    return [replace(each, source=Source.of(line, shows=True)) for each, line in zip(causes, lines, strict=True)]


def _train_twins(
    session: ScriptsSession, pair: Pair, model: ModelPair, start: Place, early: CloseUps | None
) -> list[Record]:
    """Repeats the reference with noise from a place on, until that is enough to measure rounding."""
    where, reference = session.folder / "twins" / pair.twins, model.traces[0]

    def write(folders: Mapping[str, Path]) -> None:
        """Writes the records of twins, by name, whose processes have written traces in a folder."""
        where.mkdir(parents=True, exist_ok=True)
        metrics = MetricsFile(where / "metrics.csv")
        for name, folder in folders.items():
            for trace in read_traces(folder):
                if trace.number == reference.number:
                    epochs = model.epochs.or_whole(trace)
                    write_records(where, name, trace.like(reference), epochs, reference, metrics)

    def measured() -> rounding.Noise:
        return rounding.measure(pair.reference, pair.candidate, read_records(where), start)

    if early is not None and early.twin is not None:
        write({rounding.twin_name(1, False): early.twin})
        noise = measured() if read_records(where) else None
        if noise is not None and noise.reproduced and noise.hopeless:
            return read_records(where)
        shutil.rmtree(where)  # what is recorded inside its steps may have changed the rounding of a graph
    step = first = max(model.epochs.step(start), 1)
    _say_what_rounding_hides(session, reference)
    while True:
        tell(session.console, "Not identical. Repeating the reference with noise to measure rounding …")
        for numbers, loud in rounding.wanted_twins(measured, 0, LEAST_TWINS, MOST_TWINS, at_a_time=2):
            missing = [number for number in numbers if (step, number) not in session.twins]
            if missing:  # not trained for another model yet
                nudges = [Nudge(step, number, rounding.LOUD if loud else 1) for number in missing]
                settings = [replace(session.settings(0), nudge=nudge) for nudge in nudges]
                run_scripts(session, settings, [f"perturbed run {number}" for number in missing])
                session.twins |= {(step, n): Path(each.folder) for n, each in zip(missing, settings, strict=True)}
            write({rounding.twin_name(number, loud): session.twins[step, number] for number in numbers})
        if len(session.models) == 1 or step > first or measured().reproduced:
            return read_records(where)
        step += 1  # a model that is trained before this one in each round was moved too early
        shutil.rmtree(where)


def _say_what_rounding_hides(session: ScriptsSession, trace: Trace) -> None:
    policies = " ".join(str(layer["config"].get("dtype")) for layer in trace.layers)
    halves = [dtype for dtype in ("bfloat16", "float16") if f"'mixed_{dtype}'" in policies]
    if halves:
        rounding = f"layers compute in {' and '.join(halves)}, whose rounding may hide a mistake of some percent"
        _note(session, f"{rounding}; with the policy float32 in both scripts the answer is sharper")


def _seen_losses(session: ScriptsSession, model: ModelPair, sides: Sequence[int] = (1,)) -> list[CloseUp | None]:
    """Runs scripts once more, the second by default, for the losses of their steps and of their validation."""
    scripts, steps = [0] if session.alone else sides, (1, max(model.lengths))  # one script that trains twice has both
    settings = {side: replace(session.settings(side), close_up=(steps,), losses_only=True) for side in scripts}
    run_scripts(session, list(settings.values()), [session.names[side] for side in scripts])
    folders = [Path(settings[0 if session.alone else side].folder) for side in sides]
    traces = [model.traces[side] for side in sides]
    return [read_close_up(folder, each.number, each.order) for folder, each in zip(folders, traces, strict=True)]


def _look_into(
    session: ScriptsSession, found: Sequence[Departure], early: Mapping[str, CloseUps]
) -> dict[str, CloseUps]:
    """Looks inside the first step in which the models of each pair differ: their weights, or what these are made from.

    Adam hides a wrong loss from the weights for some steps, but not from losses and gradients.
    """
    begin = [
        each if each.step > INITIAL else replace(each, step=INITIAL + 1)
        for each in found
        if not (each.model.traces[0].state or _goes_on(session, each))
        if each.step > INITIAL or more_weights(*each.model.traces)
    ]  # else nothing is seen
    seen = {
        each.name: replace(close, departure=each)
        for each in begin
        if (close := early.get(each.name)) and close.begins == (each.step, each.noise)
    }
    rest = [each for each in begin if each.name not in seen]
    seen |= {each.departure.name: each for each in _close_ups(session, rest)}
    earlier = [
        replace(each.departure, step=step, start=None if each.departure.start is None else (1, 1))
        for each in seen.values()
        if (step := each.first_apart(each.departure.step)) is not None
    ]
    for nearer in _close_ups(session, earlier):
        departure = seen[nearer.departure.name].departure
        if nearer.first_apart(departure.step) == nearer.departure.step:  # with noise from the first step on
            seen[departure.name] = nearer
    return {name: each.of_update_before() for name, each in seen.items()}


@dataclass(frozen=True)
class CloseUps:
    """What was seen of two models around the step in which they differ.

    Attributes:
        seen: the reference and the candidate; None of one that was not seen.
        errors: how each of the two failed when it was run again; empty if it did not.
        twin: the folder where the first of the noise twins has written its trace.
        begins_again: whether the reference, run again, has begun with the weights that it had before.
    """

    departure: Departure
    seen: tuple[CloseUp | None, CloseUp | None]
    errors: tuple[str, str]
    twins: Sequence[CloseUp]
    twin: Path | None = None
    begins_again: bool = True

    @property
    def begins(self) -> tuple[int, int | None]:
        """The step that was looked into, and the first with noise."""
        return self.departure.step, self.departure.noise

    def first_apart(self, before: int) -> int | None:
        """The first step before one that differs by more than rounding; None if there is none."""
        first, second = self.seen
        if first is None or second is None or self.departure.noise is None:
            return None
        return first_apart(first, second, self.twins, before)

    def in_one_scale(self) -> CloseUps:
        """The same with the losses of a loop without an optimizer as large as the other side's, whatever it divides by.

        Of two such loops, the candidate's are changed.
        """
        (first, second), (one, other) = self.seen, self.departure.model.traces
        if first is None or second is None:
            return self
        if other.by_hand:
            scale = 1 / scale_of(first, second, self.departure.step)
            return replace(self, seen=(first, second.scaled(scale)))
        if one.by_hand:
            scale = 1 / scale_of(second, first, self.departure.step)
            return replace(self, seen=(first.scaled(scale), second), twins=[each.scaled(scale) for each in self.twins])
        return self

    def of_update_before(self) -> CloseUps:
        """The same at the step before, if it is there that equal gradients give another update."""
        (first, second), before = self.seen, self.departure.step - 1
        if first is None or second is None or before <= INITIAL or self.departure.noise is None:
            return self
        if not updates_otherwise(first, second, self.twins, before, self.names):
            return self
        return replace(self, departure=replace(self.departure, step=before))

    @property
    def sides(self) -> Sides | None:
        """Both sides around the step; None if one was not seen."""
        (first, second), model = self.seen, self.departure.model
        if first is None or second is None:
            return None
        return Sides(model.names, model.traces, (first, second), self.departure.step, model.swapped)

    @property
    def repeats(self) -> bool:
        """Whether the reference, run again, begins as it did, and with about the same inputs as its noise twin."""
        first, step = self.seen[0], self.departure.step
        if first is None or step != INITIAL + 1:  # a later step is preceded by some that are equal, bit for bit
            return True
        own, *others = (each.arrays(step, "inputs") for each in (first, *self.twins))
        same = all(len(twin) == len(own) and all(map(_about_the_same, own, twin)) for twin in others)
        return self.begins_again and same

    @property
    def names(self) -> list[str]:
        """The names of the weights."""
        return [variable.name for variable in self.departure.pair.reference.variables]

    @cached_property
    def located(self) -> Located:
        """Where in the step the models differ."""
        first, second = self.seen
        if first is None or second is None:
            return Located(self.departure.step, None)
        return locate(first, second, self.twins, self.departure.step, self.names)

    @property
    def moment(self) -> float:
        """When the reference has applied the gradients of the step, among those of all its models."""
        return self.seen[0].applied.get(self.departure.step, math.inf) if self.seen[0] else math.inf


def _about_the_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether noise in weights explains how far apart two arrays are."""
    if a.dtype.kind in "OSU" or a.shape != b.shape:
        return np.array_equal(a, b)
    return relative_gap(a, b, TINY) <= NEAR


def _earlier(departure: Departure, seen: Mapping[str, CloseUps]) -> Departure | None:
    """What first differs before a step of another model does; None if nothing does, or only what that one makes."""
    own = seen.get(departure.name)
    others = [each for each in seen.values() if own is None or _called_first(each, seen) is not own.departure]
    first = min(others, key=lambda each: each.moment, default=None)
    return first.departure if first is not None and first.moment < (own.moment if own else math.inf) else None


def _called_first(close: CloseUps, seen: Mapping[str, CloseUps]) -> Departure | None:
    """The other model, as of a GAN, that a step calls first, if both trainings differ in what it is given or gives."""
    departure, reference, model = close.departure, close.seen[0], close.departure.model.traces[0].model
    if departure.noise is None or close.located.stage not in (EXAMPLES, INPUTS, PREDICTIONS) or reference is None:
        return None
    called = next((event.info["model"] for event in reference.of(departure.step, "inputs")), None)
    for other in seen.values():
        named = other.departure.noise is not None and other.departure.model.traces[0].model == called != model
        if named and other.departure.step <= departure.step and other.located.stage == close.located.stage:
            return other.departure
    return None


def _first_not_finite(departure: Departure, seen: CloseUps | None) -> FirstValue | None:
    """What is first not finite in a step whose weights are not, on one side only."""
    found = departure.pair.exactly.lost_alone
    if seen is None or found is None:
        return None
    side, other = seen.seen[::-1] if found.side == departure.name else seen.seen
    return None if side is None else first_of_steps(side, other, [departure.step], seen.names, found)


def _of_lost_loss(session: ScriptsSession, pair: Pair, model: ModelPair) -> FirstValue | None:
    """What is first not finite in the first step of the second script whose loss is not, where its weights are."""
    found = pair.exactly.lost_alone
    if found is None or not found.metric or found.side != pair.candidate.trainer:
        return None
    (losses,) = _seen_losses(session, model)
    steps = sorted(losses.steps) if losses else []
    step = next((step for step in steps if losses and not np.isfinite(losses.arrays(step, "loss")).all()), None)
    if step is None:
        return None
    departure = Departure(step, None, pair, model)
    return _first_not_finite(departure, _close_ups(session, [departure])[0])


def _close_ups(session: ScriptsSession, departures: Sequence[Departure]) -> list[CloseUps]:
    """Runs both scripts once more, and records what happens inside steps; in noise twins too."""
    if not departures:
        return []
    steps = sorted({each.step for each in departures})
    shown = f"step{'s' * (len(steps) > 1)} {' and '.join(f'{step:,}' for step in steps)}"
    tell(session.console, f"Looking into {shown}: running both again up to there …")

    def settings_of(side: int, nudge: Nudge | None = None) -> Settings:
        awaits = {
            trace.number
            for each in departures
            for trace in each.model.traces[side : None if session.alone else side + 1]
        }
        return replace(
            usual := session.settings(side),
            close_up=(*((step, step + 1) for step in steps), *((each.end, each.end) for each in departures)),
            max_steps=min(max(each.end for each in departures), usual.max_steps),
            awaits=tuple(sorted(awaits)),
            nudge=nudge,
        )

    begins = dict.fromkeys(each.noise for each in departures if each.noise is not None)
    twins = {begin: settings_of(0, Nudge(begin, 1)) for begin in begins}
    settings = [settings_of(side) for side in session.sides]
    runs, _ = run_scripts(
        session,
        [*settings, *twins.values()],
        [session.names[side] for side in session.sides] + ["perturbed run"] * len(twins),
    )

    def seen(side: int, of: Settings, model: ModelPair) -> CloseUp | None:
        return read_close_up(Path(of.folder), model.traces[side].number, model.traces[side].order)

    initial = {trace.number: trace.initial for trace in read_traces(Path(settings[0].folder))}

    def begins_again(reference: Trace) -> bool:
        """Whether the reference begins with the same weights as it did when it was run first."""
        again = initial.get(reference.number)
        before = None if reference.order or reference.still else reference.initial
        return again is None or before is None or np.array_equal(again, before)

    errors = failure_of(runs[0]), failure_of(runs[len(settings) - 1])
    found = []
    for each in departures:
        twin = None if each.noise is None else seen(0, twins[each.noise], each.model)
        both = seen(0, settings[0], each.model), seen(1, settings[-1], each.model)
        folder = None if each.noise is None else Path(twins[each.noise].folder)
        again = begins_again(each.model.traces[0])
        found.append(CloseUps(each, both, errors, [] if twin is None else [twin], folder, again).in_one_scale())
    return found
