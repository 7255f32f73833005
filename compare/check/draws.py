"""What was seen of random numbers that may explain a difference of two recorded sides; no TensorFlow here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from compare.check.measurement import Measurement
from compare.check.recorded import drawn_more_often
from compare.check.stages import Located
from compare.check.step_values import EXAMPLES, LOSS, Sides
from compare.verdict.findings import Source
from compare.watch.seen import CloseUp


def hints_on_draws(sides: Sides, located: Located) -> Iterator[Measurement]:
    """A layer that has drawn random numbers more often on one side, maybe in validation."""
    called = Source.of(sides.other_trace.untaped)
    steps = [sides.step - 1 + sum(step < sides.step for step in each.empty)
             for each in (sides.other_trace, sides.right_trace)]  # fmt: skip
    for seen in drawn_more_often(*sides.close_ups, sides.step):
        times = seen.quantities["times"], seen.quantities["other_times"]
        if steps[0] != steps[1] and times[0] * steps[1] == times[1] * steps[0]:
            yield Measurement("drawn-without-data", seen.quantities)
            continue
        more = times[0] > times[1]
        validates = called is not None and sides.right_trace.untaped is None and more
        yield Measurement("drawn-in-validation", {**seen.quantities, "line": str(called)}) if validates else seen


def hints_on_random_numbers(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Random numbers that were seen to differ before the stage; where they were not seen, those of graph and loop."""
    drawn = sides.other_trace.drawn, sides.right_trace.drawn
    stage = located.stage or ""
    numbers = [_drawn_before(each, sides.step, stage) for each in (sides.other, sides.right)]
    both = [name for name in drawn[1] if name in drawn[0]]
    seen = [name for name in both if all(name in each for each in numbers)]
    one, another = numbers
    # Where one side has drawn all that the other has, and goes on, the numbers are the same.
    if apart := [name for name in seen if not (one[name] <= another[name] or one[name] >= another[name])]:
        yield _of_other_shapes(sides, apart[0]) or Measurement.of("drawn-otherwise", functions=apart)
    elif other_ways := [name for name in both if name not in seen and set(drawn[0][name]) != set(drawn[1][name])]:
        yield Measurement.of("drawn", functions=other_ways)
    for at in (sides, sides.turned()):
        own = at.other_trace.drawn
        late = _drawn_for_loss(at.other, at.step) if stage == LOSS else own
        right, other = ({event.info["name"] for event in each.of(at.step, "drawn")} for each in at.close_ups)
        inside = other - right
        alone = [each for each in own if each in (inside if at.right_trace.drawn else late)]
        if alone and not at.right_trace.drawn.keys() & {*alone}:
            yield Measurement.of("calls-alone", side=at.other_name, functions=alone)


def _of_other_shapes(sides: Sides, name: str) -> Measurement | None:
    """What says that a function was asked for numbers of another shape on each side, which are others by that."""
    drawn = [[each for each in side.of(sides.step, "drawn") if each.info["name"] == name] for side in sides.close_ups]
    for right, other in zip(*drawn, strict=False):
        shape, other_shape = (str(each.info.get("shape")) for each in (other, right))
        if shape != other_shape:
            line = Source.of(other.info.get("line"))
            numbers = {"function": name, "shape": shape, "other_shape": other_shape}
            return Measurement.of("drawn-in-other-shape", **numbers, line=str(line) if line else None)
    return None


def _drawn_for_loss(close_up: CloseUp, step: int) -> set[str]:
    """The functions that have drawn numbers after a step's predictions; before the first, also weights are drawn."""
    events = close_up.steps.get(step, ())
    begin = next((i for i, each in enumerate(events) if each.kind == "predictions"), len(events) if step == 1 else 0)
    return {event.info["name"] for event in events[begin:] if event.kind == "drawn"}


def _drawn_before(close_up: CloseUp, step: int, stage: str) -> dict[str, Counter[int]]:
    """The hashes of the random numbers that a step has drawn before it came to a stage, by function."""
    events = close_up.steps.get(step, ())
    kind = "inputs" if stage == EXAMPLES else stage
    end = max((i for i, event in enumerate(events) if event.kind == kind), default=len(events))
    found: dict[str, Counter[int]] = {}
    for event in events[:end]:
        if event.kind == "drawn":
            found.setdefault(event.info["name"], Counter()).update(event.rows)
    return found
