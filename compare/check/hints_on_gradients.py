"""What was seen of gradients and updates that may explain a difference without proving it; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from compare.check.measurement import Measurement
from compare.check.recipe import norm_of
from compare.check.recorded import CLOSE, clipping_of
from compare.check.stages import Located
from compare.check.step_values import GRADIENTS, LOSS, Sides, common_multiple, equal_gradients, parallel, relative_gap
from compare.verdict.findings import Source
from compare.watch.seen import CloseUp


def _hints_on_limits(sides: Sides, located: Located) -> Iterator[Measurement]:
    """A call that limits gradients on one side alone, where the other's optimizer does not."""
    if any(map(clipping_of, sides.traces)):
        return
    for at in (sides, sides.turned()):
        others, own = (line_of(close_up, at.step, "clip") for close_up in at.close_ups)
        if own and not others:
            yield Measurement.of("limits-alone", side=at.other_name, line=own)


def hints_on_gradients(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Those of the step before, or where losses agree a factor, a limit, or a part that is missing, as of a penalty."""
    if _keeps_gradients(sides):
        yield Measurement.of("gradients-kept", step=sides.step, line=line_of(sides.other, sides.step, GRADIENTS))
        return
    if (loss := located.of(LOSS)) is None or loss.gap is None:
        return
    yield from _hints_on_limits(sides, located)
    right, other = sides.gradients()
    names = sides.variables
    if more := sorted(other.keys() - right.keys()) if right else []:
        trained, layers = [names[i] for i in more], sides.other_trace.layers
        still = {each["name"] for each in layers if not each["config"].get("trainable", True)}
        frozen = all(still.intersection(each.split("/")) for each in trained)
        yield Measurement.of("more-gradients", variables=trained, **({"frozen": True} if frozen else {}))
    if not right or right.keys() != other.keys():
        return
    if factor := sides.factor_of_gradients:
        yield Measurement.of("gradients-have-factor", factor=factor)
        return
    weights = sides.right.arrays(sides.step, "weights")
    off = [i for i in right if relative_gap(right[i], other[i]) > CLOSE and i < len(weights)]
    factor = common_multiple([(other[i], right[i]) for i in off])
    if factor and equal_gradients({i: other[i] for i in off}, {i: right[i] for i in off}, factor):
        yield Measurement.of("some-gradients-have-factor", factor=factor, variables=[names[i] for i in off])
        return
    if not off or not all(parallel(right[i] - other[i], weights[i]) for i in off):
        yield from _hints_on_tapes(sides) if off else ()
        return
    if sides.right.penalty(sides.step):
        yield Measurement.of("apart-by-weights", variables=[names[i] for i in off])
        return
    if factor := common_multiple([(other[i] - right[i], weights[i]) for i in off]):
        line = line_of(sides.other, sides.step, GRADIENTS)
        variables = [names[i] for i in off]
        yield Measurement.of("weights-added", factor=factor, variables=variables, penalized=False, line=line)


def _keeps_gradients(sides: Sides) -> bool:
    """Whether the gradients are the right ones and those of the step before; sketches add up as gradients do.

    If the mean over micro-batches is kept in place of their sum, it is divided by their number once more. Limited
    together, as what was kept is when it is used, they are a multiple of the sum of the first two right ones.
    """
    sketches = partial(CloseUp.gradients, kind="sketch")
    before, earlier = (sketches(side, sides.step - 1) for side in (sides.other, sides.right))
    right, now = sides.both(sketches)
    if sides.step == 2 and earlier.keys() == right.keys() == now.keys() and now:
        total = {i: earlier[i] + right[i] for i in now}
        norms = [norm_of(list(each.values())) for each in (now, total)]
        if 0 < norms[0] < norms[1] and equal_gradients(now, total, norms[0] / norms[1]):
            return True
    if not before or not right.keys() == now.keys() == before.keys():
        return False
    shares = {1, sides.parts[1] or 1}
    return any(equal_gradients(right, {i: now[i] - before[i] / share for i in now}) for share in shares)


def _hints_on_tapes(sides: Sides) -> Iterator[Measurement]:
    """Calls of models that the gradient of one side alone goes through, or that its tape leaves out."""
    (others, of_right), (calls, made) = sides.both(_calls_under_tape)
    line = line_of(sides.other, sides.step, LOSS)
    if calls > others > 0:
        yield Measurement.of("called-under-tape", times=calls, other_times=others, line=line)
    elif made > calls > 0 and of_right == others:
        yield Measurement.of("calls-not-taped", times=made, taped=calls, line=line)


def _calls_under_tape(close_up: CloseUp, step: int) -> tuple[int, int]:
    """How many calls of models the only gradient of a step goes through, and how many the step makes under tapes."""
    losses = [event.info.get("calls", 0) for event in close_up.of(step, "loss") if event.replica == 0]
    made = sum(event.replica == 0 for event in close_up.of(step, "predictions"))
    return (losses[0], made) if len(losses) == 1 else (0, 0)


def hints_on_updates(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Optimizers in turn, constraints by hand, and gradients as rows where only their variables differ."""
    made = len(sides.other_trace.optimizers), len(sides.right_trace.optimizers)
    shared = len([event for event in sides.other.of(sides.step, "gradients") if event.replica == 0])
    if made[0] > made[1] and shared < made[0]:  # they do not share each step
        yield Measurement.of("optimizers-in-turn", optimizers=made[0])
    names = sides.variables
    apart = {i for i, name in enumerate(names) if name in located.where.split(", ")}
    for layer in sides.right_trace.layers if sides.other_trace.by_hand and not sides.right_trace.by_hand else ():
        options = [name for name, value in layer["config"].items() if name.endswith("_constraint") and value]
        weights = [f"{layer['name']}/{name.removesuffix('_constraint')}" for name in options]
        if wanted := [names[i] for i in sorted(apart) if names[i].endswith(tuple(weights)) and weights]:
            line = line_of(sides.other, sides.step, GRADIENTS)
            yield Measurement.of("constraint-left-out", variables=wanted, line=line)
    for at in (sides, sides.turned()):
        given = [[event.info.get("in_rows", ()) for event in side.of(at.step, "gradients")] for side in at.close_ups]
        others, own = (set[int]().union(*each) for each in given)
        if apart and apart <= own - others:
            yield at.named(Measurement.of("in-rows", variables=[names[i] for i in sorted(apart)]))


def line_of(close_up: CloseUp, step: int, kind: str) -> str | None:
    """The script's line that made the events of a kind in a step, if it was seen; of a loss the one that ends it."""
    infos = [event.info for event in close_up.of(step, kind)]
    source = Source.of(next((line for each in infos if (line := each.get("made") or each.get("line"))), None))
    return None if source is None else str(source)
