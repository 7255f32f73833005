"""Explains how two scripts differ: measures rounding, locates the first difference inside its step, and names it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from compare.app.script_runs import write_records
from compare.app.scripts_close_ups import (
    NEAR,
    CloseUps,
    Departure,
    called_first,
    close_ups,
    first_before,
    look_early,
    look_into,
    other_settings_of,
    seen_first,
    seen_losses,
)
from compare.app.scripts_numbers import explain_numbers, own_numbers
from compare.app.scripts_session import ModelPair, ScriptsSession, run_scripts
from compare.check import words
from compare.check.causes import CATALOGUE
from compare.check.hints import called_between_steps, hints
from compare.check.judge_recorded import name_causes, name_copies, name_further, name_left, name_settings
from compare.check.judgement import survived
from compare.check.measurement import Measurement
from compare.check.not_finite import FirstValue, first_of_steps, of_step
from compare.check.recorded import things_apart
from compare.check.stages import Located
from compare.check.step_values import EXAMPLES, GRADIENTS, INPUTS, LOSS, PREDICTIONS, STATE, UPDATE, Sides
from compare.naming import some
from compare.records.codec import encode
from compare.records.metrics_csv import MetricsFile
from compare.records.model import INITIAL, Place, Record
from compare.records.reader import read_records
from compare.reporting.terminal import tell
from compare.verdict import rounding
from compare.verdict.findings import Finding
from compare.verdict.judge import Pair, Recorded, pairs
from compare.verdict.model import Comparison, Difference, Reporting, Training
from compare.verdict.outcomes import DIFFERENT, INCONCLUSIVE
from compare.watch.trace import CLIPPING, LEFT, Trace, read_traces

LEAST_TWINS, MOST_TWINS = 2, 6
"""The number of noise twins: at first, and where rounding may have crossed a kink that these did not."""
MUCH = 20.0
"""Times the effect of rounding that correct loops hardly ever reach, though up to ``rounding.FACTOR`` may be one's."""
NOT_REPEATED = (
    "{} begins with other weights or inputs when it is run again; seed its random numbers, and have it load nothing "
    "that it has saved itself"
)
"""Why nothing can be compared with a script."""


def explain(session: ScriptsSession) -> None:
    """Measures rounding by noise twins of the reference; locates and names what is more than that."""
    paired = pairs(Recorded.read(session.folder))
    compared = [(pair, model) for pair, model in zip(paired, session.models, strict=True) if pair.trained]
    differing = [(pair, model) for pair, model in compared if pair.exactly.training.verdict == DIFFERENT]
    early = look_early(session, differing)
    departures = [_departure(session, pair, model, early) for pair, model in differing]
    found = [each for each in departures if each is not None]
    seen = look_into(session, found, early)
    not_finite = {each.name: value for each in found if (value := _first_not_finite(each, seen.get(each.name)))}
    losses = {each[0].candidate.trainer: value for each in compared if (value := _of_lost_loss(session, *each))}
    checked = {each.name: _checked(session, each, seen, early.get(each.name)) for each in found}
    if compared[0][0].candidate.trainer not in checked:  # which has the numbers
        checked |= explain_numbers(session, *compared[0])
    session.run.save(
        check=encode(checked) if checked else None,
        not_finite={name: asdict(value) for name, value in (not_finite | losses).items()} or None,
    )
    for _, model in compared:
        _say_which_have_fewer_replicas(session, model)
    parting = {each.name for each in found}
    leaving_others = {each.model.traces[0].of for each in found}
    for pair, model in compared:
        if pair.candidate.trainer not in parting and model.traces[0].number not in leaving_others:
            _say_which_settings_do_nothing(session, model)
            if pair.exactly.training.verdict == DIFFERENT:
                _say_what_the_optimizer_hides(session, model)
            _say_which_is_eager(session, model, equal=pair.exactly.training.verdict != DIFFERENT)


def _say_which_have_fewer_replicas(session: ScriptsSession, model: ModelPair) -> None:
    """Says of which trainings the number of replicas that was asked for is no matter."""
    asked = session.options.sizes or (session.options.replica_count or 1,) * 2
    for name, trace, replicas in zip(model.names, model.traces, asked, strict=True):
        if trace.replicas < replicas:
            _note(
                session,
                f"{name} trains on {trace.replicas} of {replicas} replicas; a strategy such as "
                "tf.distribute.MirroredStrategy() uses all of them",
            )


def _say_which_settings_do_nothing(session: ScriptsSession, model: ModelPair) -> None:
    """Says how the optimizers and layers of two trainings differ that are alike all the same.

    So it is with a limit that is never reached, or with a softmax of which Keras takes the logits. Averages of weights
    make one that is seen when training is over.
    """
    first, second = model.traces
    found = {each["class"]: other_settings_of(model.traces, 1) for each in second.optimizers[:1]}
    if [each["class"] for each in second.layers] == [each["class"] for each in first.layers]:
        apart = things_apart(second.layers, first.layers)
        found |= {f"{own['class']} {own['name']}": settings for own, _, settings in apart}
    for thing, both in found.items():
        if settings := {name: values for name, values in both.items() if "ema" not in name.split("_")}:
            seen = Measurement.of("script-settings", side=model.names[1], optimizer=thing, settings=settings)
            limits = ": none is reached, or the gradients are limited by hand" * (settings.keys() <= {*CLIPPING})
            _note(session, f"{words.said(seen)}, which makes no difference here{limits}")


def _say_what_the_optimizer_hides(session: ScriptsSession, model: ModelPair) -> None:
    """Says that all gradients of one side are a multiple of the other's, where weights are alike in spite of that."""
    kinds = {trace.optimizers[0]["class"] if trace.optimizers else "SGD" for trace in model.traces}
    if len(kinds) != 1 or "SGD" in kinds or model.traces[0].state:
        return
    (kind,) = kinds
    tell(session.console, "Looking into step 1: running both again up to there …")
    sides = seen_first(session, model)
    if sides is not None and (factor := sides.factor_of_gradients):
        named = name_causes(Located(1, LOSS), sides)
        mistake = "".join(f" ({each.id}{f', {each.source}' if each.source else ''})" for each in named[:1])
        _note(
            session,
            f"the gradients of {sides.other_name} are {factor:.6g} times those of {sides.right_name}{mistake}, which "
            f"{kind} evens out; with SGD or clipping, the two would differ",
        )


def _say_which_is_eager(session: ScriptsSession, model: ModelPair, *, equal: bool) -> None:
    """Says which of two trainings that are alike makes its steps eagerly, if only one does, and what that costs it."""
    first, second = model.traces
    if first.eager == second.eager:
        return
    name, other = session.names if first.eager else reversed(session.names)
    fits = (first if first.eager else second).by_fit_alone
    how = (
        f"without run_eagerly in {name}" if fits else f"with @tf.function on the step of {name} (and no .numpy() in it)"
    )
    differently = f"{name} makes its steps eagerly, and {other} in a tf.function"
    if equal:
        _note(session, f"{differently}: {how} it would train as it does now, and most likely faster")
    else:
        _note(session, f"{differently}, which may round differently: {how} they may be equal, bit for bit")


def _note(session: ScriptsSession, text: str) -> None:
    if text not in (notes := session.run.notes or []):  # else it is said of another model
        session.run.save(notes=[*notes, text])
        tell(session.console, f"Note: {text}")


def _departure(session: ScriptsSession, pair: Pair, model: ModelPair, seen: dict[str, CloseUps]) -> Departure | None:
    """Where two models part by more than rounding; None if they do not.

    Where they hardly do not, the first step that is not equal is looked into, too, and ``seen`` has it.
    """
    start, early = pair.noise_start, seen.get(pair.candidate.trainer)
    twins = [] if start is None else _train_twins(session, pair, model, start, early)
    training = pair.compared(twins).training
    noise, step = training.noise, INITIAL if start is None else model.epochs.step(start)
    hardly = noise is not None and noise.ratio > MUCH and training.verdict != DIFFERENT
    if early is None and hardly and step > INITIAL and not model.traces[0].state:
        (early,) = close_ups(session, [Departure(step, start, pair, model)])
        seen[pair.candidate.trainer] = early
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
    if early is not None and other_settings_of(model.traces, early.departure.step):
        update = early.located.of(UPDATE) if early.located.stage == UPDATE else None
        if update is not None and update.equal is False:
            return replace(early.departure, start=None)  # other settings make another update, however small it is
    made = early.located.stages if early is not None and early.located.stage == LOSS else ()
    if early is not None and made and all((each.gap or 0) > NEAR for each in made if each.stage in (LOSS, GRADIENTS)):
        return replace(early.departure, start=None)  # rounding is not what makes another loss, which Adam only hides
    return None


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
    try:
        causes, evidence = _found(departure, located, None if unsure else sides, seen)
    except Exception as error:  # the verdict does not rest on what explains it
        causes, evidence = [], [Measurement.of("not-looked-for", error=survived(error))]
    reordered = [each for each in evidence if each.kind == "reordered" and not causes]  # a cause is one in any order
    unsure = unsure or "; ".join(map(words.said, reordered))
    evidence = [each for each in evidence if each not in reordered]
    before = early.sides if early is not None and early.departure.step < departure.step else None
    if early is not None and before is not None and departure.pair.exactly.weights_alone is not None:
        roots = name_causes(early.located, before)  # what differed before a value was lost
        causes += [*roots, *name_further(early.located, before, roots)]
        if roots:  # where the difference begins
            departure, located, weights = early.departure, early.located, early.departure.step
    if close is not None and close.sides is not None and weights == INITIAL:
        causes = name_copies(close.sides)
    numbers = []
    if close is not None and sides is not None and not unsure:
        numbers = _of_right_losses(own_numbers(departure.pair, departure.model, close.seen), causes)
        evidence += called_between_steps(sides, {each.id for each in (*causes, *numbers)})
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


def _of_right_losses(numbers: list[Finding], causes: Sequence[Finding]) -> list[Finding]:
    """The causes of numbers, but for those that are judged by a loss which is itself another one, as a cause says."""
    entries = [CATALOGUE[each.id] for each in causes]
    wrong, penalized = (any(getattr(each, what) for each in entries) for what in ("of_whole_loss", "of_penalty"))
    return [
        each
        for each in numbers
        if not (wrong and CATALOGUE[each.id].of_whole_loss)
        and not (penalized and each.id == "loss-without-regularization")
    ]


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
    maker, earlier, further = None, first_before(departure, seen), list[Finding]()
    if sides is not None:
        place = departure.model.epochs.place(max(located.step, 1))
        if lost := of_step(sides.names, sides.close_ups, located, place):
            return lost, []
        maker = called_first(seen[departure.name], seen)
        another = maker or (earlier and located.stage in (EXAMPLES, INPUTS))  # which another model may make
        causes = [] if another else name_causes(located, sides)
        further = name_settings(located, sides) if another else name_further(located, sides, causes)
        if causes:
            return [*causes, *further], []
    lengths, names, traces = departure.model.lengths, departure.model.names, departure.model.traces
    evidence = []
    if departure.step > min(lengths):
        evidence.append(Measurement.of("steps-made", steps=dict(zip(names, lengths, strict=True))))
    still = [
        name for name, trace in zip(names, traces, strict=True) if trace.state not in ("", LEFT) and trace.never_changes
    ]
    if still:
        evidence.append(Measurement.of("never-changes", side=still[0]))
    elif other := maker or earlier:
        epoch, step = other.model.epochs.place(other.step)
        state = bool(traces[0].state)
        evidence.append(Measurement.of("follows", side=other.name, epoch=epoch, step=step, state=state))
    elif sides is not None:
        evidence += hints(located, sides)
        compiled = [name for name, side in zip(sides.names, sides.close_ups, strict=True) if side.without_xla]
        if compiled and located.stage is None:
            evidence.append(Measurement.of("equal-without-xla", sides=compiled, step=located.step))
        if further and not evidence and located.stage is not None:
            evidence.append(Measurement.of("stage-unexplained", stage=located.stage))
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


def _train_twins(
    session: ScriptsSession, pair: Pair, model: ModelPair, start: Place, early: CloseUps | None
) -> list[Record]:
    """Repeats the reference with noise from a place on, until that is enough to measure rounding."""
    where, reference = session.folder / "twins" / pair.exactly.twins, model.traces[0]

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
        if noise is not None and noise.reproduced and (noise.hopeless or (early.no_kink and not noise.so_far)):
            return read_records(where)
        shutil.rmtree(where)  # what is recorded inside its steps may have changed the rounding of a graph
    step = first = max(model.epochs.step(start), 1)
    repeats = start if reference.number == 0 else None  # models before it have had noise when it begins
    _say_what_rounding_hides(session, reference)
    while True:
        tell(session.console, "Not identical. Repeating the reference with noise to measure rounding …")
        for numbers, loud in rounding.wanted_twins(measured, 0, LEAST_TWINS, MOST_TWINS, at_a_time=2):
            units = rounding.LOUD if loud else 1
            begins = {number: rounding.noise_begins((1, step), number)[1] for number in numbers}
            nudges = {number: session.nudge(model, begin, number, units) for number, begin in begins.items()}
            missing = {number: nudge for number, nudge in nudges.items() if nudge not in session.twins}
            if missing:  # not trained for another model yet
                settings = [replace(session.settings(0), nudge=nudge) for nudge in missing.values()]
                runs = run_scripts(session, settings, [f"perturbed run {number}" for number in missing])
                session.twins |= {nudge: run.folder for nudge, run in zip(missing.values(), runs, strict=True)}
            write({rounding.twin_name(number, loud, repeats): session.twins[nudges[number]] for number in numbers})
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
    (losses,) = seen_losses(session, model)
    steps = sorted(losses.steps) if losses else []
    step = next((step for step in steps if losses and not np.isfinite(losses.arrays(step, "loss")).all()), None)
    if step is None:
        return None
    departure = Departure(step, None, pair, model)
    return _first_not_finite(departure, close_ups(session, [departure])[0])
