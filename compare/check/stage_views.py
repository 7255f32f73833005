"""The stages of the step where two trainings diverge: as a sentence, and as a picture on the page."""

from __future__ import annotations

from dataclasses import dataclass

from compare.check.phrases import SENTENCES
from compare.check.step_values import EXAMPLES, GRADIENTS, INPUTS, PREDICTIONS, STATE
from compare.verdict.model import Comparison

OUTSIDE = "state outside of the update"
PLURAL = (EXAMPLES, INPUTS, PREDICTIONS, GRADIENTS)
SAME, DIFFERS, AFTER, STILL, OTHERWISE, UNKNOWN = "same", "differs", "after", "still", "otherwise", "unknown"


@dataclass(frozen=True)
class StageView:
    """One stage of the step.

    Attributes:
        state: ``same``, ``differs`` (the first that does), ``after`` (a later one that does), ``still`` (a later one
            that does not), ``otherwise`` (it differs, with the same gradients in the end) or ``unknown``.
        reference: the reference's value in short.
        candidate: the candidate's.
        where: the layer, the variables or the replica that differ; else empty.
    """

    title: str
    state: str
    reference: str
    candidate: str
    where: str


def stage_views(comparison: Comparison) -> list[StageView]:
    """The stages of a comparison; empty if none were seen."""
    # The step that they belong to is that of the short check, or the first that differs.
    first = comparison.stages_at or comparison.training.first_difference
    located = first.stage if first is not None else None
    if comparison.training.reason:  # one side has no such step: the other's was held against its next one
        return []
    views: list[StageView] = []
    for each in comparison.stages or ():  # in the order of ``STAGES``
        passed = any(view.state == DIFFERS for view in views)
        if each.stage == located:
            state = DIFFERS
        elif each.equal is None:
            state = UNKNOWN
        elif each.equal and not passed:
            state = SAME
        else:
            # Differs before the located stage only where the state did from the start, or to the same effect.
            state = OTHERWISE if not passed and located != STATE else STILL if each.equal else AFTER
        where = (first.where or "") if first is not None and state == DIFFERS else ""
        title = OUTSIDE if each.stage == STATE else each.stage
        views.append(StageView(title, state, each.reference, each.candidate, where))
    return views


def steps_made(comparison: Comparison) -> dict[str, int]:
    """The numbers of steps by side, the smaller first, where one side has ended before the other differs; else none."""
    made = (each["steps"] for each in comparison.measurements if each["kind"] == "steps-made")
    return dict(sorted(next(made, {}).items(), key=lambda count: count[1]))


def stage_sentence(comparison: Comparison, reference: str) -> str:
    """Which stages of the step agree, and which one does not; empty if that is not known."""
    views = stage_views(comparison)
    differs = next((view for view in views if view.state == DIFFERS), None)
    if differs is None or steps_made(comparison):
        return ""
    same = [view.title for view in views if view.state == SAME]
    agree = (
        f"{SENTENCES.format_field(same, 'and')} {'agree' if len(same) > 1 or same[0] in PLURAL else 'agrees'}; "
        if same
        else ""
    )
    verb = "do not" if differs.title in PLURAL else "does not"
    if not same:
        verb = "differ" if differs.title in PLURAL else "differs"
    reference = comparison.reference or reference
    values = f": {differs.reference} in {reference}, {differs.candidate} in {comparison.candidate}"
    shown = values if differs.reference != differs.candidate else ""
    where = f" ({differs.where})" if differs.where else ""
    unknown = [view.title for view in views[: views.index(differs)] if view.state == UNKNOWN]
    unseen = f"; {SENTENCES.format_field(unknown, 'and')} could not be compared" if unknown and not same else ""
    step = "that step"
    if at := comparison.stages_at:
        step = f"step {at.step} of epoch {at.epoch} of the short check"
    return f"Inside {step}, {agree}the {differs.title} {verb}{shown}{where}{unseen}"
