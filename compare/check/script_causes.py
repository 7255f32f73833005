"""Names the cause of a difference between two scripts from what was seen inside the step where they diverge.

Each recognition starts from the stage that differs, and must explain the numbers of that step to rounding. Where none
does, or several do, no cause is named: the stage says where to look. No TensorFlow here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.causes.loss import MICRO_BATCHES, PROBABILITIES, is_loss_scale
from compare.check.causes.optimizer import NOT_TAKEN
from compare.check.causes.step import FROZEN, NO_ARGUMENT
from compare.check.measurement import Measurement
from compare.check.report import named
from compare.check.sides import Sides
from compare.check.stages import (
    EXAMPLES,
    GRADIENTS,
    INPUTS,
    LOSS,
    PREDICTIONS,
    STATE,
    UPDATE,
    Located,
    calls_of,
    example_rows,
    gradients_of,
    learning_rate_of,
    loss_of,
    model_events,
    relative_gap,
)
from compare.check.targets import targets_of, value_of
from compare.check.used import used_by
from compare.records import Variable
from compare.verdict import Finding
from compare.watch.seen import CloseUp
from compare.watch.trace import Trace

RESTORES = "EarlyStopping"
"""The callback that sets weights after the last step (``restore_best_weights``)."""
CLOSE = 1e-5
"""The relative difference up to which a loss that is computed again counts as the same: sums in another order."""


@dataclass(frozen=True)
class Named:
    """A cause that explains a difference, alone or with others.

    Attributes:
        id: the id of the cause.
        evidence: what was seen.
        variant: the kind of the mistake, where it has a remedy of its own; else empty.
        by_right: whether the side that is held to be right made it.
    """

    id: str
    evidence: Measurement
    variant: str = ""
    by_right: bool = False


Explanation = tuple[Named, ...]
"""Causes that explain a difference together; mostly it is one."""


def _one(cause: str, kind: str, **quantities: Any) -> Explanation:
    return (Named(cause, Measurement.of(kind, **quantities)),)


def name_causes(located: Located, sides: Sides) -> list[Finding]:
    """The causes of a difference, if exactly one explanation is found: one cause, or two that only together explain it.

    A cause is left out where all stages at which it must show agree.
    """
    recognise = {
        EXAMPLES: _of_examples,
        PREDICTIONS: _of_predictions,
        LOSS: _of_loss,
        GRADIENTS: _of_gradients,
        UPDATE: _of_update,
        STATE: _of_state,
    }.get(located.stage or "")
    explanations = [*_of_callbacks(sides, located), *_of_loss_scale(sides, located)]
    if not explanations and recognise is not None:
        explanations = list(recognise(sides, located))
    found = {
        tuple(each.id for each in explanation): explanation
        for explanation in explanations
        if not any(CATALOGUE[each.id].contradicted(located) for each in explanation)
    }
    if len(found) != 1:
        return []
    return [
        named(
            each.id,
            CATALOGUE[each.id].kind,
            sides.right_name if each.by_right else sides.other_name,
            sides.named(each.evidence).but(at_step=sides.step),
            CATALOGUE[each.id].remedy_for(used_by(sides.other_trace, sides.right_trace), each.variant),
        )
        for each in next(iter(found.values()))
    ]


def more_weights(first: Trace, second: Trace) -> list[Variable]:
    """The weights that one training has more than the other, if it has others of each of their shapes; else none."""
    few, many = sorted((first, second), key=lambda trace: len(trace.variables))
    left = Counter(variable.shape for variable in few.variables)
    if not left.keys() >= {variable.shape for variable in many.variables}:
        return []
    more = []
    for variable in many.variables:
        if left[variable.shape]:
            left[variable.shape] -= 1
        else:
            more.append(variable)
    return [] if left.total() else more


def name_copies(sides: Sides) -> list[Finding]:
    """The cause of more weights on one side: copies of layers that the other side calls several times in a step."""
    more = more_weights(*sides.traces)
    copying = int(len(sides.traces[1].variables) > len(sides.traces[0].variables))
    sharing = 1 - copying
    layers = sides.close_ups[sharing].of(sides.step, "layer")
    calls = Counter(event.info["name"] for event in layers if event.replica == 0)
    shared = {
        variable.name: variable.name.split("/")[-2]
        for variable in sides.traces[sharing].variables
        if "/" in variable.name and calls[variable.name.split("/")[-2]] > 1
    }
    shapes = [variable.shape for variable in sides.traces[sharing].variables if variable.name in shared]
    if not more or Counter(shapes) != Counter(variable.shape for variable in more):
        return []
    copies, names = sides.names[copying], list(dict.fromkeys(shared.values()))
    cause = CATALOGUE["weights-not-shared"]
    seen = Measurement.of(
        "copies",
        side=copies, other=sides.names[sharing], variables=[each.name for each in more], layers=names,
        times=calls[names[0]],
    )  # fmt: skip
    remedy = cause.remedy_for(used_by(*reversed(sides.traces) if copying else sides.traces))
    return [named(cause.id, cause.kind, copies, seen, remedy)]


def name_left(names: Sequence[str], traces: Sequence[Trace]) -> list[Finding]:
    """The cause of weights that only one side changes after the last step: averages, or what a callback restores."""
    changing = [not trace.never_changes for trace in traces]
    right = changing.index(True)
    side, trace = names[1 - right], traces[right]
    if all(changing):
        return []
    of = {"reference": names[right], "variables": [v.name for i, v in enumerate(trace.variables) if trace.changes(i)]}
    if all((_optimizer(each) or {"config": {}})["config"].get("use_ema") for each in traces):
        cause, seen = "optimizer-differs", Measurement.of("averages-not-taken", side=side, **of)
    elif RESTORES in trace.fit.get("callbacks", ()):
        cause, seen = "callbacks-missing", Measurement.of("changed-after-training", callbacks=[RESTORES], **of)
    else:
        return []
    remedy = CATALOGUE[cause].remedy_for(used_by(traces[1 - right], trace), NOT_TAKEN)
    return [named(cause, CATALOGUE[cause].kind, side, seen, remedy)]


def hints(located: Located, sides: Sides) -> list[Measurement]:
    """What was seen that may explain a difference without proving it."""
    found = []
    made = len(sides.other_trace.optimizers), len(sides.right_trace.optimizers)
    if located.stage == UPDATE and made[0] > made[1]:
        found.append(Measurement.of("optimizers-in-turn", optimizers=made[0]))
    if located.stage == EXAMPLES:
        found += _hints_on_examples(sides)
    if located.stage == UPDATE and (calls := calls_of(sides.other, sides.step) or 1) > 1:
        found.insert(0, Measurement.of("applied-times", times=calls))
    if located.stage == GRADIENTS and (loss := located.of(LOSS)) is not None and loss.gap is not None:
        found += _hints_on_gradients(sides)
    if located.stage != UPDATE and _begins_anew(sides):
        found += [each.evidence for each in _new_optimizer(sides)]
    if sides.other_trace.never_changes:
        found.insert(0, Measurement.of("never-changes"))
    if located.stage in (INPUTS, PREDICTIONS, LOSS, STATE):
        found += _hints_on_random_numbers(sides, located.stage)
    return list(map(sides.named, found))


def _hints_on_random_numbers(sides: Sides, stage: str) -> Iterator[Measurement]:
    """Random numbers that were seen to differ before the stage; where they were not seen, those of graph and loop."""
    drawn = sides.other_trace.drawn, sides.right_trace.drawn
    numbers = [_drawn_before(each, sides.step, stage) for each in (sides.other, sides.right)]
    both = [name for name in drawn[1] if name in drawn[0]]
    seen = [name for name in both if all(name in each for each in numbers)]
    if apart := [name for name in seen if numbers[0][name] != numbers[1][name]]:
        yield Measurement.of("drawn-otherwise", functions=apart)
    elif other_ways := [name for name in both if name not in seen and set(drawn[0][name]) != set(drawn[1][name])]:
        yield Measurement.of("drawn", functions=other_ways)
    for name, own, others in zip((sides.other_name, sides.right_name), drawn, reversed(drawn), strict=True):
        if own and not others:
            yield Measurement.of("calls-alone", side=name, functions=list(own))


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


def _hints_on_examples(sides: Sides) -> Iterator[Measurement]:
    right, other = (
        sorted(row for step in _steps_of_epoch(sides) for row in example_rows(side, step))
        for side in (sides.right, sides.other)
    )
    if unknown := len(set(other) - _known(sides)):
        names = {"side": sides.right_name, "other": sides.other_name}
        numbers = {"examples": unknown, "of": len(other), "first": min(_steps_of_epoch(sides))}
        yield Measurement.of("unknown-examples", **numbers, last=max(_steps_of_epoch(sides)), **names)
        yield from _hints_on_random_numbers(sides, EXAMPLES)
    elif right and right == other:
        yield Measurement.of("reordered", examples=len(right))
    calls = [each.calls for each in (sides.other_trace, sides.right_trace)]
    for name, own, others in zip((sides.other_name, sides.right_name), calls, reversed(calls), strict=True):
        if alone := [call for call in own if call not in others]:
            yield Measurement.of("calls-alone", side=name, functions=alone)


def _hints_on_gradients(sides: Sides) -> Iterator[Measurement]:
    """One factor of all gradients, or a part that is missing from some, such as that of a penalty."""
    right, other = gradients_of(sides.right, sides.step), gradients_of(sides.other, sides.step)
    if not right or right.keys() != other.keys():
        return
    norm = sum(float(np.vdot(each, each)) for each in right.values())
    factor = sum(float(np.vdot(right[i], other[i])) for i in right) / norm if norm else 0.0
    if factor and _gradients_have_factor(sides, factor):
        yield Measurement.of("gradients-have-factor", factor=factor)
        return
    weights = sides.right.arrays(sides.step, "weights")
    off = [i for i in right if relative_gap(right[i], other[i]) > CLOSE and i < len(weights)]
    if off and penalty_of(sides.right, sides.step) and all(_parallel(right[i] - other[i], weights[i]) for i in off):
        yield Measurement.of("apart-by-weights", variables=[sides.right_trace.variables[i].name for i in off])


def _parallel(a: np.ndarray, b: np.ndarray) -> bool:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return bool(norms) and abs(float(np.vdot(a, b))) >= (1 - 1e-4) * norms


# Callbacks of fit


def _of_callbacks(sides: Sides, located: Located) -> Iterator[Explanation]:
    fit, callbacks = sides.right_trace, list(sides.right_trace.fit.get("callbacks", ()))
    if not callbacks or sides.step <= fit.epochs[0].steps:
        return
    if located.stage in (None, EXAMPLES) and sides.step > fit.last and len(fit.epochs) < int(fit.fit.get("epochs", 0)):
        yield _one(
            "callbacks-missing", "script-ended", side=sides.right_name, epochs=len(fit.epochs), callbacks=callbacks
        )
    rates = learning_rate_of(sides.right, sides.step), learning_rate_of(sides.other, sides.step)
    if located.stage != UPDATE or rates[0] is None or rates[1] is None or same(rates[0], rates[1]):
        return
    right, other = _optimizer(fit), _optimizer(sides.other_trace)
    begun = None if right is None or other is None else right["config"].get("learning_rate")
    if isinstance(begun, float) and not same(begun, rates[0]):
        names = {"side": sides.right_name, "other": sides.other_name}
        numbers = {"learning_rate": rates[0], "other_rate": rates[1]}
        yield _one("callbacks-missing", "script-rate-changed", callbacks=callbacks, **numbers, **names)


# Examples


def _of_examples(sides: Sides, located: Located) -> Iterator[Explanation]:
    right, other = (example_rows(each, sides.step) for each in (sides.right, sides.other))
    if not right or not other:
        return
    if apart := _with_another_label(sides):
        yield _one("labels-shuffled-apart", "script-labels-apart", examples=apart, of=len(other))
        return
    epoch = _steps_of_epoch(sides)
    all_right = [row for step in epoch for row in example_rows(sides.right, step)]
    full = max((len(example_rows(sides.right, step)) for step in epoch), default=0)
    if sides.step == epoch[0] and len(right) != len(other) and len(right) == full:
        if left_out := _short_batch_left_out(sides):
            yield (left_out,)
            return
        if full in (len(example_rows(sides.other, step)) for step in sides.other.steps if step > sides.step):
            return  # one short batch is no other size of all
        yield _one("batch-size-differs", "script-batch-size", examples=len(other), expected=len(right))
        return
    if set(other) - _known(sides):
        return  # examples that the right side has never had
    first = example_rows(sides.right, epoch[0])
    unseen = set(right) - {row for step in sides.other.steps for row in example_rows(sides.other, step)}
    if len(epoch) > 1 and other[: len(first)] == first[: len(other)] and right != first and unseen:
        left = len(right) * (epoch[-1] - sides.step + 1) if sides.step != epoch[-1] else len(right)
        numbers = {"examples": len(right), "never": min(left, len(all_right)), "of_all": len(all_right)}
        yield _one("examples-dropped", "tail-left-out", side=sides.right_name, other=sides.other_name, **numbers)
        return
    again = [step for step in epoch if step < sides.step and example_rows(sides.other, step) == other]
    if again:
        yield _one("examples-repeated", "had-again", examples=len(other), earlier_step=again[-1])
        return
    whole = [row for step in epoch for row in example_rows(sides.other, step)]
    missing = set(all_right) - set(whole)
    repeats = len(whole) - len(set(whole))
    if repeats and set(whole) <= set(all_right) and len(set(all_right)) == len(all_right):
        numbers = {"repeats": repeats, "of": len(whole), "never": len(missing), "of_all": len(all_right)}
        yield _one("examples-repeated", "script-repeats", **numbers)
        return
    if missing and len(set(whole)) == len(whole) < len(all_right):
        yield _one("examples-dropped", "script-never-seen", never=len(missing), of_all=len(all_right))


def _short_batch_left_out(sides: Sides) -> Named | None:
    """The last batch of an epoch, shorter than the others, in whose place the right side begins its next epoch."""
    begins = [example_rows(side, 1) for side in (sides.right, sides.other)]
    right, other = (example_rows(side, sides.step) for side in (sides.right, sides.other))
    following = example_rows(sides.other, sides.step + 1)
    if not begins[0] or begins[0] != begins[1] or right != begins[0] or len(other) >= len(right):
        return None
    if following != begins[1] or set(other) & _known(sides):
        return None
    total = sum(len(example_rows(sides.other, step)) for step in range(1, sides.step + 1))
    numbers = {"examples": len(other), "never": len(other), "of_all": total}
    return Named("examples-dropped", Measurement.of("tail-left-out", **numbers), by_right=True)


def _known(sides: Sides) -> set[int]:
    """The hashes of all examples that the right side was seen to have."""
    return {row for step in sides.right.steps for row in example_rows(sides.right, step)}


def _with_another_label(sides: Sides) -> int:
    """The number of examples of the step whose label is another one than that of equal inputs on the right side.

    It is 0 if labels are only called by other names: where each right label has become one and the same other.
    """
    labels: dict[int, set[int]] = {}
    for step in sides.right.steps:
        for row, label in zip(example_rows(sides.right, step), sides.right.rows(step, "targets"), strict=False):
            labels.setdefault(row, set()).add(label)
    pairs = zip(example_rows(sides.other, sides.step), sides.other.rows(sides.step, "targets"), strict=False)
    known = [(row, label) for row, label in pairs if row in labels]
    became: dict[int, set[int]] = {}
    for row, label in known:
        for old in labels[row]:
            became.setdefault(old, set()).add(label)
    renamed = len(became) < len(known) and all(len(others) == 1 for others in became.values())
    return 0 if renamed else sum(label not in labels[row] for row, label in known)


def _steps_of_epoch(sides: Sides) -> list[int]:
    """The steps of fit's epoch in which the trainings diverge, as far as they were seen."""
    ends = [epoch.steps for epoch in (sides.right_trace.epochs or sides.other_trace.epochs)]
    begin = max((end for end in ends if end < sides.step), default=0) + 1
    end = next((end for end in ends if end >= sides.step), max(sides.right.steps, default=sides.step))
    return [step for step in range(begin, end + 1) if step in sides.right.steps or step in sides.other.steps]


# Predictions


def _of_predictions(sides: Sides, located: Located) -> Iterator[Explanation]:
    right, other = (
        [event.info["training"] for event in model_events(each, sides.step, "predictions")]
        for each in (sides.right, sides.other)
    )
    untrained = _untrained(sides)
    if any(located.where in name.split("/") for name in untrained) and all(flag is True for flag in (*right, *other)):
        yield (Named("variables-not-trained", Measurement.of("script-frozen", variables=untrained), FROZEN),)
        return
    layers = [event.info for event in sides.right.of(sides.step, "layer")]
    first = [info for info in layers if info["name"] == located.where] or layers
    if first and not any(info.get("flagged", True) for info in first):
        return  # the first layer that differs does not know the flag
    names = sides.right_name, sides.other_name
    # An explicit training=False on the side that is held to be right is meant.
    for by_right, given, others in (
        (False, other, right),
        (True, [each for each in right if each is not False], other),
    ):
        if given and others and all(flag is True for flag in others) and not any(flag is True for flag in given):
            by_fit = by_right and sides.right_trace.trained_by == "fit"
            sided = {"side": names[not by_right], "other": names[by_right]}
            seen = Measurement.of("script-flag", training=given[0], by_fit=by_fit, **sided)
            yield (Named("training-flag-missing", seen, NO_ARGUMENT if by_fit else "", by_right),)


# Loss


def _of_loss(sides: Sides, located: Located) -> Iterator[Explanation]:
    """One mistake that makes the right loss the other one, or else two mistakes that do so together."""
    right, other = loss_of(sides.right, sides.step), loss_of(sides.other, sides.step)
    if right is None or other is None:
        return
    losses = {"loss": other, "right_loss": right}
    penalty = penalty_of(sides.right, sides.step)
    groups = [list(_of_penalty(sides, right, penalty)), list(_of_targets(sides, right - penalty)), _factors(sides)]
    for count in (1, 2):
        found: dict[frozenset[str], Explanation] = {}
        for chosen in combinations(groups, count):
            for mistakes in product(*chosen):
                if same(_loss_with(mistakes, right - penalty, penalty), other):
                    beside = [{"beside": each.id} for each in reversed(mistakes)] if count > 1 else [{}]
                    named = tuple(
                        replace(mistake, evidence=mistake.evidence.but(**losses, **with_))
                        for mistake, with_ in zip(mistakes, beside, strict=True)
                    )
                    found.setdefault(frozenset(each.id for each in mistakes), named)
        if found:
            # One factor may have two names: the first is the more usual.
            factors = [ids for ids in found if ids & {each.id for each in groups[2]}]
            for ids in factors[1:] if len(factors) == len(found) else []:
                del found[ids]
            yield from found.values()
            return
    if not right:
        return
    factor = other / right
    if _gradients_have_factor(sides, factor) and _constant_factor(sides, factor):
        yield _one("loss-scaled", "script-loss-factor", factor=factor, **losses)


@dataclass(frozen=True)
class Mistake(Named):
    """One change of the loss, which is ``whole * (data * part + penalty * penalties)``.

    Attributes:
        data: the loss of the examples instead of the right one; None for the right one.
        part: the factor of the loss of the examples.
        penalties: the factor of the model's own losses.
        whole: the factor of both.
    """

    data: float | None = None
    part: float = 1.0
    penalties: float = 1.0
    whole: float = 1.0


def _loss_with(mistakes: Sequence[Mistake], data: float, penalty: float) -> float:
    part, penalties, whole = (float(np.prod([getattr(m, name) for m in mistakes])) for name in FACTORS)
    data = next((each.data for each in mistakes if each.data is not None), data)
    return whole * (part * data + penalties * penalty)


FACTORS = ("part", "penalties", "whole")


def _of_penalty(sides: Sides, loss: float, penalty: float) -> Iterator[Mistake]:
    if not penalty:
        return
    yield Mistake("regularization-missing", Measurement.of("script-no-penalty", penalty=penalty), penalties=0.0)
    events = [event for event in sides.right.of(sides.step, "loss") if event.replica == 0]
    own = [float(np.sum(array)) for event in events for array in event.arrays[event.info["targets"] :]]
    # The first ones may come from add_loss, such as the loss of the examples.
    for count in range(1, len(own)):
        lacking = sum(own[count:])
        if not same(loss, loss - lacking):
            seen = Measurement.of("script-some-penalties", losses=len(own) - count, of=len(own), penalty=lacking)
            yield Mistake("regularization-missing", seen, penalties=1 - lacking / penalty)
    if sides.replicas > 1:
        seen = Measurement.of("script-penalty-each", penalty=penalty)
        yield Mistake("regularization-not-divided-by-replicas", seen, penalties=float(sides.replicas))


def penalty_of(close_up: CloseUp, step: int) -> float:
    """The sum of the model's own losses, the mean over replicas."""
    events = close_up.of(step, "loss")
    sums = [sum(float(np.sum(array)) for array in event.arrays[event.info["targets"] :]) for event in events]
    return float(np.mean(sums)) if sums else 0.0


def same(a: float, b: float) -> bool:
    """Whether two numbers are the same but for sums in another order."""
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def _of_targets(sides: Sides, data: float) -> Iterator[Mistake]:
    """What the loss function is called with: another configuration, other shapes, no weights."""
    spread = [float(array) for array in sides.right.arrays(sides.step, "spread")]
    own = targets_of(sides.other, sides.step)
    shapes = {} if own is None else {"labels": own.true.shape, "predictions": own.predicted.shape}
    broadcast = Measurement.of("script-pairs", **shapes)
    right = targets_of(sides.right, sides.step)
    if right is None:
        if spread:  # a loss function of the script's own
            yield Mistake("label-shape-broadcast", broadcast, data=float(np.mean(spread)))
        return
    given, logits = value_of(right), value_of(right.with_other_logits())
    if given is None or not same(given, data):
        if given is not None and logits is not None and right.from_logits and same(logits, data):
            yield Mistake("logits-mismatch", Measurement.of("script-probabilities"), PROBABILITIES, data=given)
        return
    flag = not right.from_logits
    for cause, value, seen in (
        ("logits-mismatch", logits, Measurement.of("script-from-logits", from_logits=flag)),
        (
            "sample-weights-dropped",
            None if right.weight is None else value_of(right.without_weights()),
            Measurement.of("script-unweighted"),
        ),
        ("label-shape-broadcast", value_of(right.broadcast()), broadcast),
    ):
        if value is not None and not same(value, data):
            yield Mistake(cause, seen, data=value)


def _factors(sides: Sides) -> list[Mistake]:
    """The losses of the examples, or the whole loss, times a factor."""
    examples = len(example_rows(sides.right, sides.step))
    full = max((len(example_rows(sides.right, step)) for step in sides.right.steps), default=examples)
    replicas = sides.replicas
    known = {
        "loss-constant-denominator": examples / full if examples < full else None,
        "loss-summed": float(examples) if examples > 1 else None,
        "loss-not-divided-by-replicas": float(replicas) if replicas > 1 else None,
        "loss-divided-twice": 1 / replicas if replicas > 1 else None,
    }
    found = [
        Mistake(cause, Measurement.of(f"script-{cause}", examples=examples, full=full, replicas=replicas), part=factor)
        for cause, factor in known.items()
        if factor is not None
    ]
    losses = [event.arrays[: event.info["targets"]] for event in sides.right.of(sides.step, "loss")]
    if len(losses) == 1 and len(losses[0]) == 1 and (count := np.size(losses[0][0])) > 1:
        seen = Measurement.of("script-losses-summed", losses=count)
        found.append(Mistake("loss-summed", seen, part=1 / count, by_right=True))
    return [*found, *(replace(each, part=1.0, whole=each.part) for each in found)]


def _constant_factor(sides: Sides, factor: float) -> bool:
    """Whether the loss has the same factor in the next step, where the predictions are already other ones.

    There it is compared with the loss computed again from the other side's own predictions.
    """
    following = sides.step + 1
    right, own = targets_of(sides.right, following), targets_of(sides.other, following)
    predictions = sides.other.arrays(following, "predictions")
    loss = loss_of(sides.other, following)
    if right is None or loss is None or len(predictions) != 1:
        return False
    predicted = predictions[0] if own is None else own.predicted
    expected = value_of(replace(right, predicted=np.asarray(predicted, np.float64)))
    return expected is not None and same(loss, factor * (expected + penalty_of(sides.other, following)))


def _gradients_have_factor(sides: Sides, factor: float) -> bool:
    right, other = gradients_of(sides.right, sides.step), gradients_of(sides.other, sides.step)
    if not right or right.keys() != other.keys():
        return False
    scale = max(float(np.linalg.norm(each)) for each in right.values())

    def fits(i: int) -> bool:
        allowed = 1e-4 * abs(factor) * max(float(np.linalg.norm(right[i])), 1e-3 * scale)
        return bool(np.linalg.norm(other[i] - factor * right[i]) <= allowed)

    return all(fits(i) for i in right)


# Gradients


def _of_loss_scale(sides: Sides, located: Located) -> Iterator[Explanation]:
    """In float16, the loss is multiplied by a large power of two, and the gradients are divided by it."""
    half = any(array.dtype == np.float16 for array in sides.right.arrays(sides.step, "layer"))
    right, other = (gradients_of(each, sides.step) for each in (sides.right, sides.other))
    if located.stage not in (LOSS, GRADIENTS) or not half or right.keys() != other.keys():
        return
    norms = [float(np.hypot.reduce([np.linalg.norm(each) for each in side.values()])) for side in (right, other)]
    if not all(norms) or not is_loss_scale(factor := norms[1] / norms[0]):
        return
    scale = 2.0 ** abs(round(np.log2(factor)))
    if factor < 1 and located.stage == LOSS:
        yield _one("loss-scale-missing", "script-not-scaled", loss_scale=scale)
    elif factor > 1 and located.stage == GRADIENTS:
        yield _one("loss-scale-missing", "script-not-unscaled", loss_scale=scale)


def _of_gradients(sides: Sides, located: Located) -> Iterator[Explanation]:
    right, other = gradients_of(sides.right, sides.step), gradients_of(sides.other, sides.step)
    if untrained := _untrained(sides):
        yield _one("variables-not-trained", "script-no-gradient", variables=untrained)
        return
    if right.keys() != other.keys():
        return
    if found := _sum_of_micro_batches(sides):
        yield (found,)
        return
    if broadcast := _broadcast_next(sides):
        yield broadcast
        return
    if sides.replicas > 1 and _equal_gradients(other, gradients_of(sides.right, sides.step, replica=0)):
        yield _one("gradients-not-reduced", "script-first-replica")
        return
    replicas = range(sides.replicas) if sides.replicas > 1 else (None,)
    parts = [[gradients_of(each, sides.step, replica) for each in (sides.right, sides.other)] for replica in replicas]
    limits = {_limit(*part) for part in parts if part[0] and part[1]}
    if len(limits) == 1 and (limit := limits.pop()) and not _clip_alike(sides):
        clipping = {"clipping": _clipping(sides.other_trace), "other_clipping": _clipping(sides.right_trace)}
        yield _one("clipping-differs", "script-limits", limited=limit, replicas=sides.replicas, **clipping)


def _untrained(sides: Sides) -> list[str]:
    """The names of the variables to which only the right side's optimizer applies a gradient."""
    right, other = gradients_of(sides.right, sides.step), gradients_of(sides.other, sides.step)
    lacking = [i for i in right if np.any(right[i]) and (i not in other or not np.any(other[i]))]
    return [sides.right_trace.variables[i].name for i in lacking] if other else []


def _sum_of_micro_batches(sides: Sides) -> Named | None:
    """One side adds up the gradients of micro-batches, which the other averages, or computes at once."""
    counts = [len(model_events(each, sides.step, "inputs")) // sides.replicas for each in (sides.right, sides.other)]
    names = sides.right_name, sides.other_name
    for i, count in enumerate(counts):
        if count > 1 and _gradients_have_factor(sides, count if i else 1 / count):
            seen = Measurement.of("script-micro-batches", factor=count, side=names[i], other=names[1 - i])
            return Named("loss-scaled", seen, MICRO_BATCHES, by_right=not i)
    return None


def _clip_alike(sides: Sides) -> bool:
    """Whether both sides have the same gradients once their optimizers have clipped them."""
    return _equal_gradients(
        _clipped(gradients_of(sides.right, sides.step), _clipping(sides.right_trace)),
        _clipped(gradients_of(sides.other, sides.step), _clipping(sides.other_trace)),
    )


def _clipping(trace: Trace) -> dict[str, float]:
    """How a training's optimizer clips."""
    config: dict[str, Any] = (_optimizer(trace) or {"config": {}})["config"]
    return {key: float(config[key]) for key in ("clipnorm", "global_clipnorm", "clipvalue") if config.get(key)}


def _clipped(gradients: dict[int, np.ndarray], clipping: dict[str, float]) -> dict[int, np.ndarray]:
    """The gradients as an optimizer clips them."""

    def shortened(gradient: np.ndarray, norm: float, limit: float) -> np.ndarray:
        return gradient * min(1.0, limit / norm) if norm else gradient

    if limit := clipping.get("clipnorm"):
        return {i: shortened(each, float(np.linalg.norm(each)), limit) for i, each in gradients.items()}
    if limit := clipping.get("global_clipnorm"):
        norm = float(np.hypot.reduce([np.linalg.norm(each) for each in gradients.values()]))
        return {i: shortened(each, norm, limit) for i, each in gradients.items()}
    limit = clipping.get("clipvalue", np.inf)
    return {i: np.clip(each, -limit, limit) for i, each in gradients.items()}


def _broadcast_next(sides: Sides) -> Explanation | None:
    """Labels that meet every prediction: of predictions that are all equal, as at first, only the gradients tell.

    In the next step the loss is calculated again from the other side's own predictions.
    """
    following = sides.step + 1
    right, loss = targets_of(sides.right, following), loss_of(sides.other, following)
    predictions = sides.other.arrays(following, "predictions")
    same_rows = example_rows(sides.right, following) == example_rows(sides.other, following)
    if right is None or loss is None or len(predictions) != 1 or not same_rows:
        return None
    own = replace(right, predicted=np.asarray(predictions[0], np.float64))
    pairs, mean, penalty = value_of(own.broadcast()), value_of(own), penalty_of(sides.other, following)
    if pairs is None or mean is None or not same(pairs + penalty, loss) or same(mean + penalty, loss):
        return None
    return _one("label-shape-broadcast", "script-pairs-next", next_loss=loss, next_right=mean + penalty)


def _limit(right: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> str:
    """What of the right gradients the other side limits: every value, or a norm; empty if neither."""
    if right.keys() != other.keys():
        return ""
    largest = max(float(np.max(np.abs(each))) for each in other.values())
    if all(np.allclose(other[i], np.clip(right[i], -largest, largest), rtol=1e-4, atol=1e-12) for i in right):
        return "every value of the gradients"
    norms = {i: (float(np.linalg.norm(other[i])), float(np.linalg.norm(right[i]))) for i in right if np.any(right[i])}
    parallel = all(same(abs(float(np.vdot(other[i], right[i]))), a * b) for i, (a, b) in norms.items())
    ratios = [a / b for a, b in norms.values()]
    shorter = bool(ratios) and max(ratios) <= 1 + CLOSE and min(ratios) < 1 - CLOSE
    together = same(max(ratios, default=0.0), min(ratios, default=0.0))
    limited = "the norm of all gradients together" if together else "the norm of each variable's gradient"
    return limited if parallel and shorter and _clips(other) else ""


def _equal_gradients(a: dict[int, np.ndarray], b: dict[int, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(relative_gap(a[i], b[i]) <= 1e-4 for i in a)


def _clips(gradients: dict[int, np.ndarray]) -> bool:
    """Whether the norm of all gradients, or the largest norm of one, is a round number, as limits are."""
    norms = [float(np.linalg.norm(each)) for each in gradients.values()]
    return any(abs(norm - float(f"{norm:.2g}")) <= 1e-4 * norm for norm in (float(np.hypot.reduce(norms)), max(norms)))


# Update


def _of_update(sides: Sides, located: Located) -> Iterator[Explanation]:
    right, other = _optimizer(sides.right_trace), _optimizer(sides.other_trace)
    if right is None or other is None:
        return
    if right["class"] != other["class"]:
        yield _one("optimizer-differs", "script-optimizer", optimizer=other["class"], expected=right["class"])
        return
    rates = learning_rate_of(sides.right, sides.step), learning_rate_of(sides.other, sides.step)
    a, b = right["config"], other["config"]
    apart = 0.0 if rates[0] is None or rates[1] is None else relative_gap(*rates)
    if apart > CLOSE and isinstance(a.get("learning_rate"), dict) and not isinstance(b.get("learning_rate"), dict):
        numbers = {"learning_rate": rates[1], "expected": rates[0]}
        schedule = a["learning_rate"].get("class_name", "a schedule")
        yield _one("learning-rate-schedule-missing", "script-schedule", schedule=schedule, **numbers)
        return
    differing = [key for key in a if key not in ("name", "learning_rate") and a.get(key) != b.get(key)]
    clipping = [key for key in differing if "clip" in key]
    if clipping and not _clip_alike(sides):
        settings = {key: [b.get(key), a.get(key)] for key in clipping}
        yield _one("clipping-differs", "script-settings", optimizer="optimizer", settings=settings)
        return
    differing = [key for key in differing if key not in clipping]
    update = located.of(UPDATE)
    as_apart = not differing and update is not None and update.gap and abs(update.gap - apart) <= 0.1 * apart
    if apart > CLOSE or (apart and as_apart):  # such as one rate in float32 and the other in float64
        differing.insert(0, "learning_rate")
        digits = 6 if apart > CLOSE else 10
        a, b = ({**each, "learning_rate": f"{rate:.{digits}g}"} for each, rate in zip((a, b), rates, strict=True))
    if differing:
        settings = {key: [b.get(key), a.get(key)] for key in differing}
        yield _one("optimizer-differs", "script-settings", settings=settings, optimizer=other["class"])
    elif _begins_anew(sides):
        yield _new_optimizer(sides)


def _new_optimizer(sides: Sides) -> Explanation:
    optimizer = sides.other_trace.optimizers[0]["class"]
    return _one("optimizer-differs", "script-new-optimizer", optimizer=optimizer)


def _begins_anew(sides: Sides) -> bool:
    """Whether one side makes the same optimizer again, and the sides part where an epoch begins."""
    made = [(each["class"], each["config"] | {"name": ""}) for each in sides.other_trace.optimizers]
    again = len(made) > 1 and all(each == made[0] for each in made)
    ends = [epoch.steps for epoch in (sides.right_trace.epochs or sides.other_trace.epochs)]
    return again and len(sides.right_trace.optimizers) == 1 and sides.step - 1 in ends


def _optimizer(trace: Trace) -> dict[str, Any] | None:
    return dict(trace.optimizers[0]) if trace.optimizers else None


# State


def _of_state(sides: Sides, located: Located) -> Iterator[Explanation]:
    right, changed = (_changed_between(each, sides.step, sides.other_trace) for each in (sides.right, sides.other))
    if changed and not right and all("moving_" in name for name in changed):
        yield _one("validation-changes-state", "script-changed-between", variable=changed[0], steps=sides.step - 1)


def _changed_between(close_up: CloseUp, step: int, trace: Trace) -> list[str]:
    """The names of the weights that change between the step before and the predictions of this one."""
    before, now = close_up.after.get(step - 1), close_up.of(step, "weights")
    pairs = zip(trace.variables, before or (), now[0].arrays if now else (), strict=False)
    return [variable.name for variable, a, b in pairs if not np.array_equal(a, b)]
