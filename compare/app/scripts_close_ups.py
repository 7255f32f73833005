"""Runs both scripts once more, to look inside the step in which two of their models part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from compare.app.script_runs import failure_of
from compare.app.scripts_session import ModelPair, ScriptsSession, run_scripts
from compare.check.judge_recorded import more_weights
from compare.check.recorded import scale_of, settings_apart
from compare.check.stages import Located, apart, first_apart, locate, updates_otherwise
from compare.check.step_values import EXAMPLES, INPUTS, LOSS, PREDICTIONS, Sides, relative_gap
from compare.records.model import INITIAL, Place, in_time
from compare.reporting.terminal import tell
from compare.verdict import rounding
from compare.verdict.judge import Pair
from compare.watch.seen import CloseUp, shapes_of
from compare.watch.settings import Nudge, Settings
from compare.watch.trace import Trace, read_traces

NEAR, TINY = 0.1, 1e-6
"""How far apart what a run and its noise twin begin with may be, relative to the larger norm, or to a tiny one."""
STEPS_OF_CALL = 8
"""How many steps of one call are looked into, from its first."""
OTHER_BEGINNING = "it begins with other weights, as of a checkpoint that it has saved itself, which is to be removed"
"""Why nothing is known of the steps of a script that was run again."""


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
        return self.pair.candidate.trainer

    @property
    def noise(self) -> int | None:
        """The first step that starts from moved weights in a noise twin; None if rounding plays no part."""
        if self.step == INITIAL or self.pair.exactly.weights_alone is not None or more_weights(*self.model.traces):
            return None
        return self.step if self.start is None else max(self.model.epochs.step(self.start), 1)

    @property
    def window(self) -> tuple[int, int]:
        """The steps to look into before ``step``: one call may make several, after which weights are seen next."""
        first, second = (trace.steps["step"] for trace in self.model.traces)
        known = np.intersect1d(first, second)
        begin = int(known[known < self.step].max(initial=INITIAL)) + 1
        return begin, min(begin + STEPS_OF_CALL, self.step) - 1

    @property
    def ending(self) -> tuple[int, int]:
        """The last steps that tell more of the difference: of the epoch, since a batch may come later in it.

        An optimizer that accumulates gradients has some batches left there, for an update with the next epoch's first.
        """
        ends = self.model.epochs
        end = max(self.step + 2, ends.step((ends.place(self.step)[0] + 1, 0)) if ends else 0)
        return end, end + 2 * any(trace.config.get("gradient_accumulation_steps") for trace in self.model.traces)


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

    def of_first_update(self) -> CloseUps:
        """The same at the first update that differs, where one call makes several, after which weights are seen."""
        (first, second), (begin, last) = self.seen, self.departure.window
        if first is None or second is None:
            return self
        steps = (
            step for step in range(begin, last + 1) if apart(first, second, self.twins, step, CloseUp.weights_made)
        )
        return replace(self, departure=replace(self.departure, step=next(steps, self.departure.step)))

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
        sides = Sides(model.names, model.traces, (first, second), self.departure.step)
        return sides.turned() if model.swapped else sides

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
        return [variable.name for variable in self.departure.pair.reference.variables]

    @cached_property
    def located(self) -> Located:
        """Where in the step the models differ."""
        first, second = self.seen
        if first is None or second is None:
            return Located(self.departure.step, None)
        return locate(first, second, self.twins, self.departure.step, self.names)

    @property
    def no_kink(self) -> bool:
        """Whether the sides are too far apart for rounding, and before their gradients, which alone may jump."""
        stage = self.located.of(self.located.stage or "")
        if stage is None or stage.stage not in (EXAMPLES, INPUTS, PREDICTIONS, LOSS):
            return False
        return self.repeats and (stage.gap or 0) > max(NEAR, rounding.HOPELESS * stage.noise)

    @property
    def moment(self) -> float:
        """When the reference has applied the gradients of the step, among those of all its models."""
        return self.seen[0].applied.get(self.departure.step, math.inf) if self.seen[0] else math.inf


def _about_the_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether noise in weights explains how far apart two arrays are."""
    if a.dtype.kind in "OSU" or a.shape != b.shape:
        return np.array_equal(a, b)
    return relative_gap(a, b, TINY) <= NEAR


def look_early(session: ScriptsSession, differing: Sequence[tuple[Pair, ModelPair]]) -> dict[str, CloseUps]:
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
        sides = (each.at(np.array([in_time(place)]))["projections"] for each in (pair.reference, pair.candidate))
        step = model.epochs.step(place)
        if rounding.unlikely(*sides) or other_settings_of(model.traces, step):
            begin.append(Departure(step, start, pair, model))
    return {each.departure.name: each for each in close_ups(session, [each for each in begin if each.step > INITIAL])}


def other_settings_of(traces: Sequence[Trace], step: int) -> dict[str, list[Any]]:
    """The settings that differ of two trainings' optimizers in a step, if these are of one class; else none."""
    reference, candidate = (trace.optimizer_at(step) for trace in traces)
    if reference is None or candidate is None or reference["class"] != candidate["class"]:
        return {}
    return settings_apart(candidate["config"], reference["config"])


def look_into(
    session: ScriptsSession, found: Sequence[Departure], early: Mapping[str, CloseUps]
) -> dict[str, CloseUps]:
    """Looks inside the first step in which the models of each pair differ: their weights, or what these are made from.

    Adam hides a wrong loss from the weights for some steps, but not from losses and gradients.
    """
    begin = [
        each if each.step > INITIAL else replace(each, step=INITIAL + 1)
        for each in found
        if not (each.model.traces[0].state or goes_on(session, each))
        if each.step > INITIAL or more_weights(*each.model.traces)
    ]  # else nothing is seen
    seen = {
        each.name: replace(close, departure=each)
        for each in begin
        if (close := early.get(each.name)) is not None
        and (close.departure.step, close.departure.noise) == (each.step, each.noise)
    }
    rest = [each for each in begin if each.name not in seen]
    seen |= {each.departure.name: each for each in close_ups(session, rest)}
    seen = {name: each.of_first_update() for name, each in seen.items()}
    earlier = [
        replace(each.departure, step=step, start=None if each.departure.start is None else (1, 1))
        for each in seen.values()
        if (step := each.first_apart(each.departure.step)) is not None
    ]
    for nearer in close_ups(session, earlier):
        departure = seen[nearer.departure.name].departure
        if nearer.first_apart(departure.step) == nearer.departure.step:  # with noise from the first step on
            seen[departure.name] = nearer
    return {name: each.of_update_before() for name, each in seen.items()}


def goes_on(session: ScriptsSession, departure: Departure) -> bool:
    """Whether one side goes on with another optimizer where the other ends this training, and makes another one."""
    end = min(departure.model.lengths)
    parts = [step for trace in departure.model.traces for step, _ in trace.parts]
    return bool(session.left_over) and departure.step == end + 1 and end in parts


def first_before(departure: Departure, seen: Mapping[str, CloseUps]) -> Departure | None:
    """What first differs before a step of another model does; None if nothing does, or only what that one makes."""
    own = seen.get(departure.name)
    others = [each for each in seen.values() if own is None or called_first(each, seen) is not own.departure]
    first = min(others, key=lambda each: each.moment, default=None)
    return first.departure if first is not None and first.moment < (own.moment if own else math.inf) else None


def called_first(close: CloseUps, seen: Mapping[str, CloseUps]) -> Departure | None:
    """The other model, as of a GAN, that a step calls first, if both trainings differ in what it is given or gives."""
    departure, reference, model = close.departure, close.seen[0], close.departure.model.traces[0].model
    if departure.noise is None or close.located.stage not in (EXAMPLES, INPUTS, PREDICTIONS) or reference is None:
        return None
    called = next((event.info["model"] for event in reference.of(departure.step, "inputs")), None)
    given = [
        next((each.arrays for each in side.of(departure.step, "predictions") if each.info.get("model") == called), ())
        for side in close.seen
        if side is not None
    ]
    if len(given) == 2 and all(given) and all(map(np.array_equal, *given)):
        return None  # what it gives is the same
    for other in seen.values():
        named = other.departure.noise is not None and other.departure.model.traces[0].model == called != model
        if named and other.departure.step <= departure.step and other.located.stage == close.located.stage:
            return other.departure
    return None


def close_ups(session: ScriptsSession, departures: Sequence[Departure]) -> list[CloseUps]:
    """Runs both scripts once more, and records what happens inside steps; in noise twins too."""
    if not departures:
        return []
    steps = sorted({each.step for each in departures})
    listed = f"step{'s' * (len(steps) > 1)} {' and '.join(f'{step:,}' for step in steps)}"
    tell(session.console, f"Looking into {listed}: running both again up to there …")

    def settings_of(side: int, nudge: Nudge | None = None) -> Settings:
        awaits = {
            trace.number
            for each in departures
            for trace in each.model.traces[side : None if session.alone else side + 1]
        }
        return replace(
            usual := session.settings(side),
            close_up=(
                *((step, step + 1) for step in steps),
                *(each.ending for each in departures),
                *(each.window for each in departures),
            ),
            max_steps=min(max(each.ending[1] for each in departures), usual.max_steps),
            awaits=tuple(sorted(awaits)),
            nudge=nudge,
        )

    nudges = [None if each.noise is None else session.nudge(each.model, each.noise, 1) for each in departures]
    perturbed = [nudge for nudge in dict.fromkeys(nudges) if nudge is not None]
    settings = [*map(settings_of, session.sides), *(settings_of(0, nudge) for nudge in perturbed)]
    shown = [session.names[side] for side in session.sides] + ["perturbed run"] * len(perturbed)
    runs = run_scripts(session, settings, shown)
    first, second = runs[0], runs[session.sides[-1]]  # one script that trains twice has both
    twins = dict(zip(perturbed, runs[len(session.sides) :], strict=True))
    initial = [{trace.number: trace.initial for trace in read_traces(run.folder)} for run in (first, second)]

    def begins_again(side: int, trace: Trace) -> bool:
        """Whether a script begins with the same weights as it did when it was run first."""
        again = initial[side].get(trace.number)
        before = None if trace.order or trace.still else trace.initial
        return again is None or before is None or np.array_equal(again, before)

    found = []
    for each, nudge in zip(departures, nudges, strict=True):
        model, twin = each.model, None if nudge is None else twins[nudge]
        noisy = [] if twin is None else [close for close in [model.seen(0, twin)] if close is not None]
        both, errors = (model.seen(0, first), model.seen(1, second)), (failure_of(first), failure_of(second))
        own, other = both
        if own is not None and other is not None:
            noisy = [close.without_untrained(other) for close in noisy]
            both = own.without_untrained(other), other.without_untrained(own)
        if not begins_again(1, model.traces[1]):
            both, errors = (both[0], None), (errors[0], OTHER_BEGINNING)
        again = begins_again(0, model.traces[0])
        found.append(CloseUps(each, both, errors, noisy, twin.folder if twin else None, again).in_one_scale())
    return found


def seen_losses(session: ScriptsSession, model: ModelPair, sides: Sequence[int] = (1,)) -> list[CloseUp | None]:
    """Runs scripts once more, the second by default, for the losses of their steps and of their validation."""
    return _seen_again(session, model, sides, close_up=((1, max(model.lengths)),), losses_only=True)


def seen_first(session: ScriptsSession, model: ModelPair) -> Sides | None:
    """Runs both scripts once more, for their first step; None if it was not seen, or begins with other weights."""
    wanted = {"close_up": ((1, 1),), "max_steps": 1, "awaits": tuple(sorted({each.number for each in model.traces}))}
    first, second = _seen_again(session, model, (0, 1), **wanted)
    if first is None or second is None:
        return None
    sides = Sides(model.names, model.traces, (first, second), 1)
    own, other = (each or () for each in sides.both(CloseUp.weights_at_forward))
    same = bool(own) and shapes_of(own) == shapes_of(other) and all(map(np.array_equal, own, other))
    return sides if same else None


def _seen_again(session: ScriptsSession, model: ModelPair, sides: Sequence[int], **wanted: Any) -> list[CloseUp | None]:
    scripts = [0] if session.alone else sides  # one script that trains twice has both
    settings = [replace(session.settings(side), **wanted) for side in scripts]
    runs = run_scripts(session, settings, [session.names[side] for side in scripts])
    return [model.seen(side, run) for side, run in zip(sides, cycle(runs), strict=False)]
