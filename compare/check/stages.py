"""Locates a difference within a step: the first stage that differs between two sides by more than rounding.

A step goes through its stages in order: which examples, their values, the model's predictions, the loss, the gradients,
the update of the weights. What lies between two steps is the state. Everything before the stage that differs agrees, so
that is where the mistake is, whether or not a cause can be named. No TensorFlow here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from compare.check.forward_stages import behind_zeros, examples_of, inputs_of, losses_of, predictions_of
from compare.check.recipe import Clip, norm_of
from compare.check.step_values import FEW_ROUNDINGS, GRADIENTS, STATE, UPDATE, Step, gap_and_noise, other_calls
from compare.naming import some
from compare.verdict.findings import StageValues
from compare.watch.seen import CloseUp, Weights, shapes_of
from compare.watch.trace import CLIPPING

BEFORE, AFTER = "before the step", "after the update"
LEARNING_RATE = "the learning rate"


JUMP = 10
"""How many times as far apart weights are that both sides set at a moment, and one sets otherwise."""


@dataclass(frozen=True)
class Located:
    """Where in a step two trainings part.

    Attributes:
        step: the step, counted over the whole training.
        stage: the first stage that differs; None if none could be found.
        where: the layer, variables or replica, as far as it was seen.
        stages: all stages that were compared, in order.
    """

    step: int
    stage: str | None
    where: str = ""
    stages: Sequence[StageValues] = ()

    def of(self, stage: str) -> StageValues | None:
        return next((each for each in self.stages if each.stage == stage), None)


def locate(
    reference: CloseUp,
    candidate: CloseUp,
    twins: Sequence[CloseUp],
    step: int,
    variables: Sequence[str],
    known: Collection[int] = (),
) -> Located:
    """Finds the first stage of a step that differs.

    The step is one after which the weights differ by more than rounding. So where everything up to the gradients
    agrees, it is the update, even if its own noise (Adam's, for tiny gradients) is as large as the difference.

    Args:
        twins: noise twins of the reference, whose distance from it is what rounding explains.
        step: the step, counted over the whole training.
        known: hashes of examples that the candidate may have from elsewhere than the reference.
    """
    at = Step(reference, candidate, twins, step, variables)
    before = _state(at, lambda each, step: (each.after.get(step - 1), each.weights_at_forward(step)), BEFORE)
    after = _state(at, lambda each, step: (each.weights_updated(step), each.after.get(step)), AFTER)
    moved = _moved(at)
    forward, loss, gradients, update = [inputs_of(at), predictions_of(at)], losses_of(at), _gradients(at), _update(at)
    hidden = behind_zeros(at) if loss.equal and gradients.differs else None
    if hidden is not None:
        forward = [forward[0], forward[1] if forward[0].differs else hidden]
    elif loss.equal and (gradients.differs or update.differs):
        # With an equal loss, what seems to differ before it is not the same thing, such as another output of a model.
        forward = [StageValues(each.stage, None) if each.differs else each for each in forward]
    compared = [examples_of(at, known), *forward, loss, gradients, update]
    if before.differs:
        first: StageValues | None = before
    elif gradients.equal:
        # Right gradients are right, however they were computed.
        first = next((each for each in (update, moved, after) if each.differs), update if update.gap else None)
    else:
        first = next((each for each in [*compared, after] if each.differs), None)
    state = next((each for each in (before, moved, after) if each.differs), before)
    return Located(step, first.stage if first else None, first.where if first else "", (*compared, state))


def apart(
    reference: CloseUp,
    candidate: CloseUp,
    twins: Sequence[CloseUp],
    step: int,
    weights: Callable[[CloseUp, int], Weights] = lambda close_up, step: close_up.after.get(step),
) -> bool:
    """Whether the weights after a step, or others of it, differ by more than rounding explains."""
    a, b = weights(reference, step) or (), weights(candidate, step) or ()
    others = [twin for each in twins if (twin := weights(each, step))]
    compared = (gap_and_noise(one, b[i], [twin[i] for twin in others]) for i, one in enumerate(a[: len(b)]))
    return any(gap > noise for gap, noise in compared)


def first_apart(reference: CloseUp, candidate: CloseUp, twins: Sequence[CloseUp], before: int) -> int | None:
    """The first step before one in which gradients, or calls of the optimizer, differ; None if there is none.

    Weights may differ only later: Adam makes the same update of any multiple of a gradient. Where only the loss is
    known, the loss decides. It also must differ where only one step has other gradients, since a gradient jumps where
    rounding moves a unit across its kink, and a loss does not.

    Args:
        twins: noise twins of the reference; a step where they have no noise yet is judged by a few roundings.
        before: the step, counted over the whole training, after which the weights differ by more than rounding.
    """
    earlier = False
    for step in range(1, before):
        if not earlier and other_calls(reference.calls(step), candidate.calls(step)):
            return step
        at = Step(reference, candidate, twins, step)
        loss, gradients = losses_of(at), _sketches(at)
        differs = loss.differs if gradients.gap is None else gradients.differs
        if earlier and differs:
            return step - 1
        earlier = differs and gradients.gap is not None and not loss.differs
        if differs and not earlier:
            return step
    return before - 1 if earlier else None


def updates_otherwise(
    reference: CloseUp, candidate: CloseUp, twins: Sequence[CloseUp], step: int, variables: Sequence[str]
) -> bool:
    """Whether equal gradients, bit for bit, give another update in a step, such as one without weight decay.

    That may be less than what counts as rounding of the weights, and shows in the loss of the next step.
    """
    at = Step(reference, candidate, twins, step, variables)
    return _gradients(at).gap == 0 and _update(at).differs


def _sketches(at: Step) -> StageValues:
    """Compares sketches of gradients; they agree where only one optimizer clips or unscales what it is given."""
    found = _by_variable(at, GRADIENTS, partial(CloseUp.gradients, kind="sketch"))
    given = at.of(lambda each, step: [event.info.get("given") for event in each.of(step, "sketch")][:1])
    return replace(found, gap=0.0) if found.gap is not None and given[0] != given[1] else found


def _gradients(at: Step) -> StageValues:
    """Compares gradients; they agree, too, if both optimizers clip them to the same."""
    found = _by_variable(at, GRADIENTS, CloseUp.gradients)
    clipped = found if found.equal is not False else _by_variable(at, GRADIENTS, _as_clipped)
    return clipped if clipped.equal else found


def _as_clipped(close_up: CloseUp, step: int) -> Mapping[int, np.ndarray]:
    """The gradients as the step's optimizer clips them."""
    gradients = close_up.gradients(step)
    given = next((event.info.get("given") for event in close_up.of(step, GRADIENTS)), None) or ()
    clip = Clip.by_options(dict(zip(CLIPPING, given, strict=False)))
    return clip.of_variables(gradients) if clip else gradients


def _update(at: Step) -> StageValues:
    calls = at.of(CloseUp.calls)[:2]
    if other_calls(*calls):
        shown = [f"{count} call{'s' * (count != 1)} of the optimizer" for count in calls]
        return StageValues(UPDATE, 1.0, 0.0, shown[0], shown[1])
    found = _by_variable(at, UPDATE, lambda *given: _changes(at, *given, updated=True))
    gradients = at.of(CloseUp.gradients)
    same = gradients[0] and gradients[0].keys() == gradients[1].keys()
    if not found.equal or not same or any(not np.array_equal(gradients[0][i], gradients[1][i]) for i in gradients[0]):
        return found
    # The same gradients, bit for bit, so that only the update itself can round.
    (a, b, _), after = at.of(CloseUp.changes), at.reference.weights_made(at.number) or ()
    off = [i for i in a if np.any(np.abs(a[i] - b[i]) > FEW_ROUNDINGS * np.maximum(np.abs(after[i]), np.abs(a[i])))]
    if not off:
        return found
    where = some([_name(at.variables, i) for i in off]) if len(off) < len(a) else ""
    return replace(found, noise=0.0, where=where)


def _changes(at: Step, close_up: CloseUp, step: int, *, updated: bool) -> dict[int, np.ndarray]:
    """The changes of the variables that are updated, or of the others; where no gradients were seen, all are."""
    gradients, others, _ = at.of(CloseUp.gradients)
    given = gradients.keys() | others.keys()
    changes = close_up.changes(step)
    return {i: each for i, each in changes.items() if (i in given or not given) == updated}


def _moved(at: Step) -> StageValues:
    """Compares what calls of the model change, such as the statistics of batch normalization."""
    found = _by_variable(at, STATE, lambda *given: _changes(at, *given, updated=False))
    texts = [
        each and f"changed by {each.removeprefix('norm ')} as the model is called"
        for each in (found.reference, found.candidate)
    ]
    return replace(found, reference=texts[0], candidate=texts[1])


def _state(at: Step, around: Callable[[CloseUp, int], tuple[Weights, Weights]], when: str) -> StageValues:
    """Finds weights that one side changes outside of its update, and the other does not, or otherwise.

    Args:
        around: the weights before and after a moment of the step when nothing should change them.
    """
    (a0, a1), (b0, b1), twins = at.of(around)
    if a0 is None or a1 is None or b0 is None or b1 is None or len({shapes_of(each) for each in (a0, a1, b0, b1)}) > 1:
        return StageValues(STATE, None)  # not seen, or of the model that the step calls first, which is another one

    alone: list[int] = []
    otherwise: list[int] = []
    for i, (old, new) in enumerate(zip(b0, b1, strict=True)):
        changed = [not np.array_equal(*pair, equal_nan=True) for pair in ((a0[i], a1[i]), (old, new))]
        if not any(changed):
            continue
        twin0, twin1 = ([there[i] for twin in twins if (there := twin[moment]) is not None] for moment in (0, 1))
        (gap, noise), (now_gap, now_noise) = gap_and_noise(a0[i], old, twin0), gap_and_noise(a1[i], new, twin1)
        if now_gap > max(now_noise, JUMP * gap) and (not all(changed) or gap <= noise):
            (otherwise if all(changed) else alone).append(i)
    if not (which := alone or otherwise):
        return StageValues(STATE, 0.0, 0.0, "unchanged", "unchanged")

    def text(old: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> str:
        differences = (np.asarray(new[i], np.float64) - old[i] for i in which)
        most = max(float(np.abs(each).max(initial=0)) for each in differences)
        return f"changed by up to {most:.3g} {when}" if most else "unchanged"

    where = some([_name(at.variables, i) for i in which])
    return StageValues(STATE, 1.0, 0.0, text(a0, a1), text(b0, b1), where)


def _by_variable(at: Step, stage: str, seen: Callable[[CloseUp, int], Mapping[int, np.ndarray]]) -> StageValues:
    """Compares arrays of variables, each against its own noise; where one side lacks one, that counts as zero."""
    a, b, twins = at.of(seen)
    if not a or not b:
        return StageValues(stage, None)
    off: list[int] = []
    worst, noise_there = 0.0, FEW_ROUNDINGS
    norms = [float(np.linalg.norm(each)) for each in a.values()]
    scale = max((norm for norm in norms if np.isfinite(norm)), default=0.0)
    for i in sorted(a.keys() | b.keys()):
        one = a.get(i, np.zeros(1))
        other = b.get(i, np.zeros_like(one))
        one = one if i in a else np.zeros_like(other)
        if np.max([np.linalg.norm(one), np.linalg.norm(other)]) <= FEW_ROUNDINGS * scale:  # never where one is NaN
            continue  # nothing but rounding, such as the gradient of a bias before batch normalization
        gap, noise = gap_and_noise(one, other, [twin[i] for twin in twins if i in twin])
        if gap > noise:
            off.append(i)
        if gap / noise >= worst / noise_there:
            worst, noise_there = gap, noise
    shown = [f"norm {norm_of(list(each.values())):.6g}" for each in (a, b)]
    where = some([_name(at.variables, i) for i in off]) if 0 < len(off) < len(a.keys() | b.keys()) else ""
    return StageValues(stage, worst, noise_there, shown[0], shown[1], where)


def _name(variables: Sequence[str], i: int) -> str:
    return variables[i] if i < len(variables) else f"variable {i}"
