"""Names the cause of a difference between two recorded sides, by what both did in the step where they diverge.

Nothing is trained or computed again: the record of the side that is held to be right says what the other's should have
shown. The entries that have a recogniser for the stage that differs are tried, and must explain the numbers of that
step to rounding. Where none does, or several do, no cause is named: the stage says where to look. No TensorFlow here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from compare.check.advice import at_line
from compare.check.causes import CATALOGUE, Cause
from compare.check.causes.base import Variant
from compare.check.causes.data_recorded import operation_of
from compare.check.causes.layers import layers_apart, of_layers
from compare.check.causes.optimizer import TAKEN
from compare.check.causes.optimizer_recorded import (
    OF_GRADIENTS,
    RESTORES,
    SET_WEIGHTS,
    acting,
    begins_with,
    kind_of_setting,
)
from compare.check.measurement import Measurement
from compare.check.recipe import OF_SIZE, OTHER_SHARES, Recipe
from compare.check.recorded import CLOSE, SMALL, RecordedLoss, holds_elsewhere, same, with_own_predictions
from compare.check.search import find_explanations
from compare.check.stages import Located, locate
from compare.check.step_values import EXAMPLES, GRADIENTS, INPUTS, LOSS, PREDICTIONS, STATE, UPDATE, Sides, relative_gap
from compare.check.used import FIT, used_by
from compare.check.whole_run import RATE
from compare.records.model import Variable
from compare.verdict.exact import without_counterpart
from compare.verdict.findings import Finding, Source
from compare.watch.seen import CloseUp
from compare.watch.trace import Trace

OF_SETTINGS = ("script-optimizer", "script-schedule", "script-settings")
"""What is seen of an optimizer whatever gradients it is given."""


Shown = tuple[Cause, Variant]


def name_causes(located: Located, sides: Sides) -> list[Finding]:
    """The causes of a difference at the first stage that differs, if exactly one explanation is found.

    That is one cause, or two that only together explain it. A cause is left out where all stages at which it must show
    agree. Where there is none, the side that is held to be right may make the mistake: ``fit``, by what it is given.
    """
    explanations = _explanations(located, sides, CATALOGUE.values())
    if not explanations and located.stage == LOSS and not sides.foreseen:
        fits, sides = sides.right_trace.trained_by.startswith("fit"), sides.turned()
        causes = [each for each in CATALOGUE.values() if FIT in each.remedies or not fits]
        explanations = _explanations(located, sides, causes)
    return _findings(sides, located, explanations[0]) if len(explanations) == 1 else []


def _explanations(located: Located, sides: Sides, causes: Iterable[Cause]) -> list[Sequence[Shown]]:
    """What explains the difference, the simplest only, each by one cause or by two together."""
    shown = [
        (cause, variant)
        for cause in causes
        if (recognise := cause.recorded.get(located.stage or "")) and not cause.contradicted(located)
        for variant in recognise(sides, located)
    ]
    seen = [each for each in shown if not each[1].changes]
    if sides.foreseen:
        seen = [each for each in seen if each[1].measured]
    for explanations in (
        [(each,) for each in seen if not each[1].measured],
        _of_loss(sides, [each for each in shown if each[1].changes]),
        [(each,) for each in seen if each[1].measured],
    ):
        found: dict[frozenset[str], Sequence[Shown]] = {
            frozenset(cause.id for cause, _ in each): each for each in explanations
        }
        if found:
            return list(found.values())
    return []


def name_further(located: Located, sides: Sides, causes: Sequence[Finding]) -> list[Finding]:
    """The causes of what goes wrong after that stage, besides these.

    It is judged by what a step should have made of what the side at fault itself had done before.
    """
    named = {cause.id for cause in causes}
    more = (
        *_of_own_loss(located, sides),
        *name_settings(located, sides, named),
        *_of_layers(sides),
        *_of_gradients(located, sides),
        *_of_later(located, sides),
    )
    found = {cause.id: cause for cause in more}
    return [found[id] for id in found if id not in named]


def _of_own_loss(located: Located, sides: Sides) -> list[Finding]:
    """The causes of another loss than that of the predictions that the side at fault has, there or in a later batch."""
    epoch = [step for step in sides.steps_of_epoch if step > sides.step]
    here = [sides.step] if located.stage in (EXAMPLES, INPUTS, PREDICTIONS) else []
    for step in (*here, *epoch[-1:]):  # the last batch may be a short one
        at = replace(sides, step=step)
        own = with_own_predictions(at)
        causes = name_causes(Located(step, LOSS), own) if own else []
        if causes := [c for c in causes if c.id not in OF_SIZE or holds_elsewhere(at, OTHER_SHARES[c.id])]:
            return causes
    return []


def name_settings(located: Located, sides: Sides, named: Collection[str] = ()) -> list[Finding]:
    """The cause of other updates, where an optimizer's class, options or learning rate say so by themselves.

    They do in the update itself where only limits of gradients were named there.
    """
    limits = "clipping-differs" not in named
    if located.stage in (UPDATE, STATE) and limits:
        return []
    for step in (sides.step, *sides.steps_of_epoch[-1:]):  # a schedule may begin with the other side's rate
        at = replace(sides, step=step)
        found = kind_of_setting(at, located, limits=limits)
        if found is not None and found[1].evidence.kind in OF_SETTINGS:
            break
    else:
        return []
    settings = found[1].evidence.quantities.get("settings", {})
    if "begun" in found[1].evidence.quantities and located.stage == EXAMPLES:
        return []  # a rate that both set later, in steps of different epochs maybe
    schedules = [trace.config.get(RATE) for trace in sides.traces]
    scheduled = isinstance(schedules[0], dict) and schedules[0] == schedules[1]
    if (scheduled and list(settings) == [RATE]) or not settings.keys().isdisjoint(OF_GRADIENTS):
        return []
    id, variant = found
    if at.step != sides.step:  # only seen there: it may differ since an earlier one
        variant = replace(variant, evidence=variant.evidence.but(at_end=True))
    return _findings(at, Located(at.step, UPDATE), [(CATALOGUE[id], variant)])


def _of_layers(sides: Sides) -> list[Finding]:
    """The cause of layers with other settings, whatever else differs."""
    located = Located(sides.step, PREDICTIONS)
    apart = [each for each in layers_apart(sides, located, certain=True) if each[1].get("made")]
    return _findings(sides, located, [(CATALOGUE["layer-differs"], each) for each in of_layers(apart)])


def _of_gradients(located: Located, sides: Sides) -> list[Finding]:
    """The cause of variables of which the side at fault gives its optimizer no gradient, whatever the loss is."""
    if located.stage not in (EXAMPLES, INPUTS, PREDICTIONS, LOSS):
        return []
    cause, at = CATALOGUE["variables-not-trained"], Located(sides.step, GRADIENTS)
    variants = cause.recorded[GRADIENTS](sides, at)
    return _findings(sides, at, [(cause, each) for each in variants if each.evidence.kind == "script-no-gradient"])


def _of_later(located: Located, sides: Sides) -> list[Finding]:
    """The cause of other examples in a later step of the epoch, if they are none that depend on weights.

    Those do that a model has chosen, such as what an agent meets once it has learned otherwise: the right side never
    had them.
    """
    examples = located.of(EXAMPLES)
    if examples is None or not examples.equal:  # what the step itself has is not known to be right
        return []
    steps = sides.steps_of_epoch
    steps += [step + 1 for step in steps[-1:]]  # an update that may have the last batches of this epoch, too
    for step in (each for each in steps if each > sides.step):
        rows = [side.example_rows(step) for side in sides.close_ups]
        if rows[0] != rows[1]:
            if not sides.right.all_rows().issuperset(rows[1]):
                return []
            found = locate(*sides.close_ups, [], step, sides.variables)
            return name_causes(found, replace(sides, step=step)) if found.stage == EXAMPLES else []
    return []


def _findings(sides: Sides, located: Located, explanation: Sequence[Shown]) -> list[Finding]:
    used = used_by(sides.other_trace, sides.right_trace, sides.step)
    epoch, step = sides.epochs.place(sides.step)
    place = {"at_step": sides.step} if epoch == 1 else {"at_step": sides.step, "at_place": [epoch, step]}

    def source(cause: Cause, variant: Variant, at: Sides) -> Source | None:
        later = {"begun", "set_later"}.intersection(variant.evidence.quantities)
        set_at = (at.other_trace.optimizer_at(at.step) or {}).get("rate_set") if later else None
        if line := Source.of(set_at or variant.line):
            return replace(line, instead=cause.instead_of(line.text))
        if variant.called is None:
            return None
        close_up = _with_updates_of(at, variant.evidence.quantities.get("variables", ()))
        seen = cause.line_in(close_up, at.step, located.stage or "", usual=not variant.remedy, called=variant.called)
        return _made_at(at.other_trace, variant.evidence) or operation_of(at.other, at.step, variant) or seen

    found = []
    for cause, variant in explanation:
        at = sides.turned() if variant.by_right else sides
        seen = at.named(variant.evidence).but(**place)
        named = cause.found(at.other_name, seen, used=used, remedy=variant.remedy)
        found.append(at_line(named, source(cause, variant, at)))
    return found


def _with_updates_of(at: Sides, variables: Sequence[str]) -> CloseUp:
    """What was seen of the side at fault, of its updates only those of some variables, if any of these is updated."""
    wanted = {i for i, name in enumerate(at.variables) if name in variables}
    events = at.other.steps.get(at.step, ())
    chosen = [each for each in events if each.kind != "gradients" or wanted.intersection(each.info["positions"])]
    some_left = any(each.kind == "gradients" for each in chosen)
    return replace(at.other, steps={**at.other.steps, at.step: chosen}) if some_left else at.other


def _made_at(trace: Trace, seen: Measurement) -> Source | None:
    """The line that made an optimizer whose class or settings were seen to differ, or that was made again."""
    if seen.kind == "script-new-optimizer":
        return Source.of(trace.optimizers[-1].get("made"))
    settings = seen.quantities.get("settings", {})
    rate, _ = settings.get("learning_rate", (None, None))
    made = [each for each in trace.optimizers if rate is None or begins_with(rate, each)]
    made = made or list(trace.optimizers if len(settings) > 1 else ())  # the rate may be set later, the others are not
    return Source.of(made[0].get("made")) if seen.kind in OF_SETTINGS and len(made) == 1 else None


def _of_loss(sides: Sides, changing: Sequence[Shown]) -> list[Sequence[Shown]]:
    """The simplest changes of the right loss that make it the other one: of one cause, or of two together."""
    recorded = RecordedLoss.of(sides) if changing else None
    losses = sides.losses
    if recorded is None or losses is None:
        return []
    right, other = losses
    if sides.foreseen and same(right, other):
        return []

    def residual(recipe: Recipe) -> float:
        loss = recorded.predict(recipe)
        if loss is None or abs(loss - other) > SMALL * abs(right - other):
            return np.inf
        return relative_gap(loss, other)

    each_alone = [(cause, lambda _, variant=variant: [variant]) for cause, variant in changing]
    explanations = find_explanations(Recipe(), each_alone, residual, CLOSE)
    return [list(_with_losses(each.causes, sides, other, right)) for each in explanations]


def _with_losses(explanation: Sequence[Shown], sides: Sides, loss: float, right: float) -> Iterator[Shown]:
    """An explanation whose evidence gives the losses, and beside which other mistake each was made; factors last."""
    for cause, variant in sorted(explanation, key=lambda each: "share" in each[1].changes):
        seen = variant.evidence.but(loss=loss, right_loss=right)
        seen = seen.but(foreseen=True) if sides.foreseen else seen
        for other in (each for each, _ in explanation if each is not cause):
            seen = seen.but(beside=other.id)
        yield cause, replace(variant, evidence=seen)


def more_weights(first: Trace, second: Trace) -> list[Variable]:
    """The weights that one training has more than the other, if it has others of each of their shapes; else none."""
    few, many = sorted((first.variables, second.variables), key=len)
    others = {variable.shape for variable in many} - {variable.shape for variable in few}
    return [] if others or without_counterpart(few, many) else without_counterpart(many, few)


def name_copies(sides: Sides) -> list[Finding]:
    """The cause of more weights on one side: copies of layers that the other side calls several times in a step."""
    more = more_weights(*sides.traces)
    at = sides if len(sides.other_trace.variables) > len(sides.right_trace.variables) else sides.turned()
    sharing, layers = at.right_trace.variables, at.right.of(at.step, "layer")
    calls = Counter(event.info["name"] for event in layers if event.replica == 0)
    shared = {
        variable.name: variable.name.split("/")[-2]
        for variable in sharing
        if "/" in variable.name and calls[variable.name.split("/")[-2]] > 1
    }
    shapes = [variable.shape for variable in sharing if variable.name in shared]
    if not more or Counter(shapes) != Counter(variable.shape for variable in more):
        return []
    names, variables = list(dict.fromkeys(shared.values())), [each.name for each in more]
    seen = at.named(Measurement.of("copies", variables=variables, layers=names, times=calls[names[0]]))
    used = used_by(at.other_trace, at.right_trace)
    return [CATALOGUE["weights-not-shared"].found(at.other_name, seen, used=used)]


def name_left(names: Sequence[str], traces: Sequence[Trace]) -> list[Finding]:
    """The cause of weights that only one side changes after the last step: averages, or what a callback restores."""
    changing = [not trace.never_changes for trace in traces]
    right = changing.index(True)
    side, trace = names[1 - right], traces[right]
    if all(changing):
        return []
    restores = trace.fit.get("restores", True)
    callbacks = acting([each for each in trace.fit.get("callbacks", ()) if each != RESTORES or restores], SET_WEIGHTS)
    of = {"reference": names[right], "variables": [v.name for i, v in enumerate(trace.variables) if trace.changes(i)]}
    if all(each.config.get("use_ema") for each in traces):
        cause, remedy = "optimizer-differs", TAKEN
        seen = Measurement.of("averages-not-taken", side=side, **of)
    elif callbacks:
        cause, remedy = "callbacks-missing", ""
        seen = Measurement.of("changed-after-training", callbacks=callbacks, **of)
    else:
        return []
    return [CATALOGUE[cause].found(side, seen, used=used_by(traces[1 - right], trace), remedy=remedy)]
