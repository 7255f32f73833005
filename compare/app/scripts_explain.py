"""Explains how two scripts differ: measures rounding, locates the first difference inside its step, and names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compare.app.judge import Pair, Recorded, pairs
from compare.app.script_runs import write_records
from compare.app.scripts_session import ModelPair, ScriptsSession, run_scripts
from compare.check.measurement import Measurement
from compare.check.not_finite import FirstValue, first_of_steps
from compare.check.script_causes import hints, more_weights, name_causes, name_copies
from compare.check.script_numbers import (
    evidence_on_numbers,
    losses_by_epoch,
    name_metrics,
    name_reporting,
    not_reset,
    validation_by_epoch,
)
from compare.check.script_remedies import used_by
from compare.check.sides import Sides
from compare.check.stages import PREDICTIONS, Located, first_apart, locate, some
from compare.check.words import said
from compare.records import MetricsFile, Place, Record, read_records
from compare.reporting.terminal import tell
from compare.verdict import (
    DIFFERENT,
    INCONCLUSIVE,
    Comparison,
    Difference,
    NotFinite,
    Reporting,
    Training,
    rounding,
)
from compare.verdict.codec import encode
from compare.watch.seen import CloseUp, read_close_up
from compare.watch.settings import Nudge, Settings
from compare.watch.trace import read_traces

LEAST_TWINS, MOST_TWINS = 2, 6
"""The number of noise twins: at first, and where rounding may have crossed a kink that these did not."""
FIT = "fit"
"""What trained, where Keras's own ``fit`` did."""


@dataclass(frozen=True)
class Departure:
    """The first step after which two models differ by more than rounding.

    Attributes:
        step: counted over the whole training.
        start: where the noise of the twins begins; None if rounding cannot explain the difference.
        pair: the comparison.
        model: the models.
    """

    step: int
    start: Place | None
    pair: Pair
    model: ModelPair


def explain(session: ScriptsSession) -> None:
    """Measures rounding by noise twins of the reference; locates and names what is more than that."""
    paired = pairs(Recorded.read(session.folder))
    compared = [(pair, model) for pair, model in zip(paired, session.models, strict=True) if isinstance(pair, Pair)]
    differing = [(pair, model) for pair, model in compared if pair.exactly.training.verdict == DIFFERENT]
    if any(pair.noise_start is not None for pair, _ in differing):
        tell(session.console, "Not identical. Repeating the reference with noise to measure rounding …")
    departures = [_departure(session, pair, model) for pair, model in differing]
    found = [each for each in departures if each is not None]
    if found:
        first = min(found, key=lambda each: each.step)
        checked = {each.pair.candidate.trainer: _checked(session, each, None) for each in found}
        name = first.pair.candidate.trainer
        if first.step > 0 and first.pair.exactly.weights_alone is not None:
            value = _first_not_finite(session, first, first.pair.exactly.weights_alone)
            session.run.save(not_finite={name: value.as_json()} if value else None)
        elif first.step > 0 and not (_goes_on(session, first) or first.model.traces[0].state):  # else nothing is seen
            nearer, seen = _look_into(session, first)
            checked[name] = _checked(session, nearer, seen, first.step)
        elif more_weights(*first.model.traces):
            begin = replace(first, step=1)
            sides = _close_ups(session, begin, noisy=False).around(begin)
            causes = () if sides is None else tuple(name_copies(sides))
            checked[name] = replace(checked[name], causes=causes)
        for each in found:
            evidence = []
            for side, trace in zip(each.model.names, each.model.traces, strict=True):
                if each.step - 1 in trace.reseeded:
                    evidence.append(said(Measurement.of("reseeded", step=each.step - 1, side=side)))
            other = each.pair.candidate.trainer
            checked[other] = replace(checked[other], evidence=(*(checked[other].evidence or ()), *evidence))
        session.run.save(check=encode(checked))
    else:
        _explain_numbers(session, *compared[0])


def _departure(session: ScriptsSession, pair: Pair, model: ModelPair) -> Departure | None:
    """Where two models part by more than rounding; None if they do not."""
    start = pair.noise_start
    twins = [] if start is None else _train_twins(session, pair, model, start)
    training = pair.compared(twins).training
    if training.verdict == DIFFERENT and training.first_difference is not None:
        first = training.first_difference
        place: Place = (first.epoch, first.step if first.step is not None else 1)
        if start is not None:
            place = rounding.first_beyond(pair.reference, pair.candidate, twins, start) or place
        return Departure(model.epochs.step(place), start, pair, model)
    if len(set(model.lengths)) > 1:
        return Departure(min(model.lengths) + 1, start, pair, model)
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
    session: ScriptsSession,
    departure: Departure,
    seen: tuple[Located, Sides | None] | None,
    weights: int = 0,
) -> Comparison:
    """The comparison with what was found inside a step.

    Args:
        session: the comparison.
        departure: the first step that differs.
        seen: where in it.
        weights: the first step after which the weights differ by more than rounding.
    """
    located, sides = seen or (Located(departure.step, None), None)
    unsure = _unsure(departure, located)
    sides = None if unsure else sides
    causes = name_causes(located, sides) if sides is not None else []
    evidence = hints(located, sides) if sides is not None and not causes else []
    lengths, (one, other) = departure.model.lengths, departure.model.names
    if departure.step > min(lengths):
        evidence.insert(0, Measurement.of("steps-made", steps={one: lengths[0], other: lengths[1]}))
    epoch, within = departure.model.epochs.place(departure.step) if departure.step > 0 else (1, 0)
    later = Difference(*departure.model.epochs.place(weights)) if weights > departure.step else None
    first = Difference(epoch, within, None, located.stage, located.where, weights=later)
    state = departure.model.traces[0]
    reason = unsure or _other_trainings(session, departure)
    if state.state:
        reason = f"no optimizer trains {state.model}, and at the end its weights are different"
    return Comparison(
        departure.pair.candidate.trainer,
        Training(INCONCLUSIVE if unsure else DIFFERENT, None, first, 0, reason=reason),
        Reporting(None, {}),
        certain=departure.start is None or departure.step > min(lengths),
        causes=tuple(causes),
        evidence=tuple(map(said, evidence)) if not causes else (),
        not_applicable=(),
        stages=tuple(located.stages),
    )


def _explain_numbers(session: ScriptsSession, pair: Pair, model: ModelPair) -> None:
    """Names the cause of different numbers from equal weights, where it is known."""
    reporting = pair.exactly.reporting
    used = used_by(model.traces[1], model.traces[0])
    replicas = model.traces[1].replicas
    evidence: list[Measurement] = []
    ends = model.epochs.ends or (model.traces[1].last,)
    different = {name for name, gap in reporting.metrics.items() if gap.compared and gap.max_gap}
    metrics = name_metrics(*model.traces, ends, different, model.names[0]) if reporting.verdict == DIFFERENT else {}
    causes = name_reporting(pair.reference, pair.candidate, replicas=replicas, used=used, metrics=metrics)
    unexplained = different - set(not_reset(pair.reference, pair.candidate)) - metrics.keys()
    if unexplained and reporting.verdict == DIFFERENT:
        tell(session.console, "The weights are equal, but the numbers are not. Looking at the loss of every step …")
        if seen := _seen_losses(session, model):
            losses, validation = losses_by_epoch(seen, ends), validation_by_epoch(seen, ends)
            causes = name_reporting(pair.reference, pair.candidate, losses, validation, replicas, used, metrics)
            evidence = [] if causes else evidence_on_numbers(pair.candidate, unexplained, seen, losses, ends)
    if causes or evidence:
        found = Comparison(
            pair.candidate.trainer,
            Training(INCONCLUSIVE, None, None, 0),
            Reporting(DIFFERENT, {}),
            certain=False,
            causes=tuple(causes),
            evidence=tuple(map(said, evidence)),
            not_applicable=(),
        )
        session.run.save(check={found.candidate: encode(found)})


def _train_twins(session: ScriptsSession, pair: Pair, model: ModelPair, start: Place) -> list[Record]:
    """Repeats the reference with noise from a place on, until that is enough to measure rounding."""
    where = session.folder / "twins" / pair.twins
    where.mkdir(parents=True)
    metrics = MetricsFile(where / "metrics.csv")
    step, count, reference = max(model.epochs.step(start), 1), 0, model.traces[0]
    while True:
        numbers = [count + 1, count + 2]
        count += 2
        loud = count > LEAST_TWINS
        missing = [number for number in numbers if (step, number) not in session.twins]
        if missing:  # not trained for another model yet
            session.passes += 1
            nudges = [Nudge(step, number, rounding.LOUD if loud else 1) for number in missing]
            settings = [replace(session.settings(0), nudge=nudge, begins=False) for nudge in nudges]
            run_scripts(session, settings, [f"noise twin {number}" for number in missing])
            session.twins |= {(step, n): Path(each.folder) for n, each in zip(missing, settings, strict=True)}
        for number in numbers:
            name = rounding.twin_name(number, loud)
            for trace in read_traces(session.twins[step, number]):
                if trace.number == reference.number:
                    write_records(where, name, trace.ordered(reference.order), model.epochs, reference, metrics)
        twins = read_records(where)
        noise = rounding.measure(pair.reference, pair.candidate, twins, start)
        if rounding.enough(noise, count, LEAST_TWINS, MOST_TWINS):
            return twins


def _seen_losses(session: ScriptsSession, model: ModelPair) -> CloseUp | None:
    """Runs the second script once more, for the losses of its steps and of its validation."""
    session.passes += 1
    usual, trace = session.settings(1), model.traces[1]
    settings = replace(usual, close_up=(1, trace.last), losses_only=True, begins=False)
    run_scripts(session, [settings], [session.names[0 if session.alone else 1]])
    return read_close_up(Path(settings.folder), trace.number, trace.order)


def _look_into(session: ScriptsSession, departure: Departure) -> tuple[Departure, tuple[Located, Sides | None]]:
    """Looks inside the first step in which two models differ: their weights, or what these are made from.

    Adam hides a wrong loss from the weights for some steps, but not from losses and gradients.
    """
    seen, start = _close_ups(session, departure), departure.start
    earlier = seen.first_apart(departure.step)
    if earlier is not None:
        before = replace(departure, step=earlier, start=None if start is None else (1, 1))
        nearer = _close_ups(session, before)
        if nearer.first_apart(departure.step) == earlier:  # with noise from the first step on
            return before, nearer.located(before)
    return departure, seen.located(departure)


@dataclass(frozen=True)
class CloseUps:
    """What was seen of two models around a step.

    Attributes:
        sides: the reference and the candidate; None of one that was not seen.
        twins: noise twins of the reference.
    """

    sides: tuple[CloseUp | None, CloseUp | None]
    twins: Sequence[CloseUp]

    def first_apart(self, before: int) -> int | None:
        """The first step before one that differs by more than rounding; None if there is none."""
        first, second = self.sides
        return None if first is None or second is None else first_apart(first, second, self.twins, before)

    def around(self, departure: Departure) -> Sides | None:
        """Both sides around the step; None if one was not seen."""
        (first, second), traces = self.sides, departure.model.traces
        if first is None or second is None:
            return None
        swapped = traces[0].trained_by != FIT and traces[1].trained_by == FIT
        return Sides(departure.model.names, traces, (first, second), departure.step, swapped)

    def located(self, departure: Departure) -> tuple[Located, Sides | None]:
        """Where in the step the models differ."""
        sides = self.around(departure)
        if sides is None:
            return Located(departure.step, None), None
        variables = [variable.name for variable in departure.pair.reference.variables]
        return locate(*sides.close_ups, self.twins, departure.step, variables), sides


def _first_not_finite(session: ScriptsSession, departure: Departure, found: NotFinite) -> FirstValue | None:
    """Runs both scripts once more up to the step whose weights are not finite on one side only."""
    reference, candidate = _close_ups(session, departure, noisy=False).sides
    of_candidate = found.side == departure.pair.candidate.trainer
    side, other = (candidate, reference) if of_candidate else (reference, candidate)
    names = [variable.name for variable in departure.pair.reference.variables]
    return None if side is None else first_of_steps(side, other, [departure.step], names, found)


def _close_ups(session: ScriptsSession, departure: Departure, *, noisy: bool = True) -> CloseUps:
    """Runs both scripts once more up to a step, and records what happens inside it; a noise twin too, if asked for."""
    step, start, model = departure.step, departure.start, departure.model
    tell(session.console, f"Looking into step {step:,}: running both again up to that step …")
    session.passes += 1
    ends = model.epochs
    last = max(step + 2, ends.step((ends.place(step)[0] + 1, 0)) if ends else 0)

    def settings_of(side: int, nudge: Nudge | None = None) -> Settings:
        usual = session.settings(side)
        steps = min(last, usual.max_steps)
        return replace(usual, close_up=(step, step + 1), max_steps=steps, begins=False, nudge=nudge)

    settings, shown = [settings_of(side) for side in session.sides], [session.names[side] for side in session.sides]
    twins = [settings_of(0, Nudge(max(ends.step(start), 1) if start is not None else step, 1))] if noisy else []
    run_scripts(session, [*settings, *twins], [*shown, *["noise twin"] * len(twins)])
    folders = [Path(each.folder) for each in settings]
    first, second = (
        read_close_up(folders[0 if session.alone else side], trace.number, trace.order)
        for side, trace in enumerate(model.traces)
    )
    of_twin = model.traces[0]
    seen = (read_close_up(Path(each.folder), of_twin.number, of_twin.order) for each in twins)
    return CloseUps((first, second), [each for each in seen if each is not None])
