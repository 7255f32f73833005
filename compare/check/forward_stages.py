"""Compares the stages of a step up to its loss: examples, their values, what the model makes of them; no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from compare.check.step_values import (
    EXAMPLES,
    FEW_ROUNDINGS,
    INPUTS,
    LOSS,
    PREDICTIONS,
    Step,
    all_rows,
    both_losses,
    calls_with_examples,
    example_rows,
    gap_and_noise,
    loss_of,
    model_events,
    predictions_as_labels,
    relative_gap,
)
from compare.check.targets import log_probabilities, targets_of
from compare.verdict.findings import StageValues
from compare.watch.seen import CloseUp, Event

FEW_EXAMPLES = 8
"""The number of examples below which inputs of other examples may look alike."""
_INPUTS = partial(model_events, kind="inputs")
SAME_EXAMPLES = 0.5
"""The correlation of inputs above which they are those of the same examples: normalized otherwise, or augmented."""


def examples_of(at: Step, elsewhere: Collection[int]) -> StageValues:
    """Compares which examples the step has, and their labels; ``elsewhere`` has those that others may be."""
    a, b, _ = at.of(example_rows)
    shown = [f"{len(rows)} example{'s' * (len(rows) != 1)}" for rows in (a, b)]
    ended = [bool(each.steps) and max(each.steps) < at.number for each in (at.reference, at.candidate)]
    if any(ended):  # one side has no such step
        shown = ["no step" if over else text for over, text in zip(ended, shown, strict=True)]
        return StageValues(EXAMPLES, 1.0, 0.0, shown[0], shown[1])
    if not a or not b or not _same_inputs(at):
        return StageValues(EXAMPLES, None)
    if a == b:
        labels = _labels_differ(at)
        where = "labels" if labels else ""
        values = [_range(_joined(each)) for each in at.of(_true)[:2]] if labels else shown
        shown = values if values[0] != values[1] else shown
        return StageValues(EXAMPLES, float(labels), 0.0, shown[0], shown[1], where)
    if sorted(a) == sorted(b) or _called_again(at, a, b):  # another order within the batch
        return StageValues(EXAMPLES, 0.0, 0.0, shown[0], shown[1])
    known = {*elsewhere, *all_rows(at.reference)}
    # Examples of another order are known from another place. Those whose values differ are not known at all.
    other = len(a) != len(b) or any(mine != theirs and theirs in known for mine, theirs in zip(a, b, strict=True))
    unknown = sum(row not in known for row in b)
    if unknown and (other or not _same_examples(at)):
        some_of = "none of them" if unknown == len(b) else f"{unknown} of them not"
        return StageValues(EXAMPLES, 1.0, 0.0, shown[0], f"{shown[1]} ({some_of} recognised)")
    return StageValues(EXAMPLES, float(other), 0.0, shown[0], shown[1])


def _called_again(at: Step, a: Collection[int], b: Collection[int]) -> bool:
    """Whether one side has all rows of the other, and as many others with the same labels: inputs that attack a model.

    It calls the model once more for these.
    """
    more = len(a) > len(b)
    many, few = (a, b) if more else (b, a)
    calls, labels = at.of(_INPUTS)[:2], at.of(_labels)[:2]
    again = {label: count * len(many) // len(few) for label, count in Counter(labels[more]).items()}
    return len(calls[more]) < len(calls[not more]) and set(few) < set(many) and Counter(labels[not more]) == again != {}


def _same_examples(at: Step) -> bool:
    """Whether inputs with other values are those of the same examples: by their labels, or else by their values."""
    a, b, _ = at.of(_labels)
    if len(a) == len(b) > len(set(a)) > 1 and len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b)):
        return True  # the same labels, or each by another name
    if a == b and len(set(a)) > 1:
        return True
    alike = _correlation(*at.of(_INPUTS)[:2])
    return alike > SAME_EXAMPLES if alike is not None else a == b or not a or not b


def _labels(close_up: CloseUp, step: int) -> list[int]:
    """The hashes of the labels of a step; empty if it has several models, as of a GAN, whose labels are made up."""
    several = len(close_up.of(step, "inputs")) != len(model_events(close_up, step, "inputs"))
    return [] if several else close_up.rows(step, "targets")


def _correlation(a: Sequence[Event], b: Sequence[Event]) -> float | None:
    """How alike the inputs of two batches are, example by example; None if there are too few to say."""
    if not a or len(a) != len(b) or not a[0].arrays or not b[0].arrays:
        return None
    one, other = (np.asarray(each[0].arrays[0]) for each in (a, b))  # of the first replica
    if one.shape != other.shape or len(one) < FEW_EXAMPLES or one.dtype.kind in "OSU" or other.dtype.kind in "OSU":
        return None
    one, other = (each.reshape(len(each), -1).astype(np.float64) for each in (one, other))
    one, other = one - one.mean(0), other - other.mean(0)
    norms = np.linalg.norm(one, axis=0) * np.linalg.norm(other, axis=0)
    varied = norms > 0
    return float(np.mean((one * other).sum(0)[varied] / norms[varied])) if varied.any() else None


def _same_inputs(at: Step) -> bool:
    """Whether both sides call the same model first; one may call its parts instead, one after the other."""
    a, b, _ = at.of(lambda each, step: [np.shape(array)[1:] for one in _INPUTS(each, step)[:1] for array in one.arrays])
    return a == b


def _labels_differ(at: Step) -> bool:
    """Whether equal inputs have labels of other examples, or the same loss is given labels with other values."""
    a, b, _ = at.of(_labels)
    if not a or not b or a == b or len(a) != len(b):
        return False
    if any(predictions_as_labels(each, at.number) for each in (at.reference, at.candidate)):
        return False  # which of both are the labels is known by their places only
    if sorted(a) == sorted(b) and len(a) > len(example_rows(at.reference, at.number)):
        return False  # of several losses, which each side calls in an order of its own
    if {row for number in at.reference.steps for row in at.reference.rows(number, "targets")}.issuperset(b):
        return True
    one, other, twins = at.of(_true)
    if len(one) > 1 and any(_equal(*pair) for pair in zip(one, other, strict=False)):
        return False  # of several losses one has equal labels: what another is given is computed, as by a teacher
    calls = [_calls_of_loss(each, at.number, true) for each, true in ((at.reference, one), (at.candidate, other))]
    gap, noise = gap_and_noise(_joined(one), _joined(other), list(map(_joined, twins)))
    return calls[0] == calls[1] and gap > noise


def _equal(one: Event, other: Event) -> bool:
    return len(one.arrays) == len(other.arrays) > 0 and all(map(np.array_equal, one.arrays, other.arrays))


def _calls_of_loss(close_up: CloseUp, step: int, true: Sequence[Event]) -> list[Any]:
    """The loss functions that a step calls, and the shapes of the labels; one that is known by what it computes."""
    known, shapes = targets_of(close_up, step), [[np.shape(array) for array in each.arrays] for each in true]
    called = [(each.info.get("loss"), each.info.get("configuration")) for each in true]
    return [[(known.kind, known.label_smoothing)] if known else called, shapes]


def _true(close_up: CloseUp, step: int) -> list[Event]:
    """The labels of a step, without the predictions that they are compared with."""
    events = close_up.of(step, "targets")
    return [replace(event, arrays=event.arrays[: event.info["true"]]) for event in events if event.arrays]


def inputs_of(at: Step) -> StageValues:
    """Compares the values of the examples, as the model is given them."""
    a, b, _ = at.of(_INPUTS)
    if not any(event.arrays for event in a) or not _same_inputs(at):
        return StageValues(INPUTS, None)
    rows = at.of(example_rows)
    numbers = _joined(a), _joined(b)
    gap = 0.0
    if sorted(rows[0]) != sorted(rows[1]):
        gap = relative_gap(*numbers) if numbers[0].size else 1.0  # text
    if gap and _is_last_part(at):
        return StageValues(INPUTS, None)  # of a model and of what it gives to the rest of it, as once it is augmented
    shown = [_range(each) for each in numbers]
    if any(shown):  # of text, there is nothing to show
        shown = [each or "no values" for each in shown]
    return StageValues(INPUTS, gap, FEW_ROUNDINGS, shown[0], shown[1])


def _is_last_part(at: Step) -> bool:
    """Whether one side calls a model that is only the last layers of the other's."""

    def of_one_call(close_up: CloseUp, step: int) -> list[str]:
        calls = max(len(close_up.of(step, "predictions")), 1)  # as of micro-batches
        classes = [event.info["class"] for event in close_up.of(step, "layer")]
        return classes[: len(classes) // calls]

    few, many = sorted(at.of(of_one_call)[:2], key=len)
    return 0 < len(few) < len(many) and many[-len(few) :] == few


def _joined(events: Sequence[Event]) -> np.ndarray:
    parts = [array.astype(np.float64).ravel() for array in _numbers(events)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _numbers(events: Sequence[Event]) -> list[np.ndarray]:
    arrays = [np.asarray(array) for event in events for array in event.arrays]
    return [array for array in arrays if array.dtype.kind not in "OSU"]


SQUASHING: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": lambda logits: np.exp(log_probabilities(logits, from_logits=True)),
    "sigmoid": lambda logits: 0.5 * (1 + np.tanh(0.5 * logits)),
}
"""Functions that make probabilities of logits in float64."""


def _range(values: np.ndarray) -> str:
    return f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}" if values.size else ""


def predictions_of(at: Step) -> StageValues:
    """Compares what the model makes of the examples, layer by layer where layers were seen."""
    first, second, twins = at.of(_outputs)
    if [*map(len, first.values())] != [*map(len, second.values())]:
        first, second, twins = at.of(partial(_outputs, once=True))
    if not first or not second or not _same_inputs(at):
        return StageValues(PREDICTIONS, None)
    pairs = list(zip(first, second, strict=False))  # of the models that the step calls, in order
    if len(first) != len(second):  # one side may call the layers one by one: the last gives the output
        whole, parts = sorted((first, second), key=len)
        name = next(iter(whole))
        alike = [part for part, each in parts.items() if _sizes(each) == _sizes(whole[name])]
        if not alike:
            return StageValues(PREDICTIONS, None)
        part = min(alike, key=lambda part: relative_gap(_joined(whole[name]), _joined(parts[part])))
        pairs = [(name, part) if whole is first else (part, name)]
    else:
        pairs = _by_outputs(first, second) or pairs
    found = _outputs_of(at, first[pairs[0][0]], second[pairs[0][1]], [each.get(pairs[0][0], ()) for each in twins])
    for one, other in pairs[1:]:
        if found.equal and _shapes(first[one]) == _shapes(second[other]):
            found = _outputs_of(at, first[one], second[other], [each.get(one, ()) for each in twins])
    return found


def _by_outputs(first: Mapping[str, list[Event]], second: Mapping[str, list[Event]]) -> list[tuple[str, str]]:
    """The models of both sides, which may call them in other orders, by their outputs; empty if shapes differ."""
    pairs, left = [], [*second]
    for name, events in first.items():
        gaps = {other: relative_gap(_joined(events), _joined(second[other])) for other in left
                if _shapes(second[other]) == _shapes(events)}  # fmt: skip
        if not gaps:
            return []
        other = min(gaps, key=lambda each: gaps[each])
        pairs.append((name, other))
        left.remove(other)
    return pairs


def _shapes(events: Sequence[Event]) -> list[tuple[int, ...]]:
    return [each.shape for each in _numbers(events)]


def _outputs_of(
    at: Step, reference: Sequence[Event], candidate: Sequence[Event], twins: Sequence[Sequence[Event]]
) -> StageValues:
    in_one_call = len(candidate) == 1
    scalars = [sum(not np.ndim(array) for array in events[0].arrays) for events in (reference, candidate)]
    if len(reference) != len(candidate) or scalars[0] != scalars[1]:
        reference, candidate, *twins = map(_in_one, (reference, candidate, *twins))
    if len(reference) == len(candidate):
        candidate = [_in_order_of(*each) for each in zip(reference, candidate, strict=True)]
    rows, arrays = at.of(example_rows)[:2], [array for event in candidate for array in event.arrays]
    moved = rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1])  # another order within the batch
    if moved and in_one_call and all(np.shape(array)[:1] == (len(rows[1]),) for array in arrays):
        order = np.argsort(rows[1], kind="stable")[np.argsort(np.argsort(rows[0], kind="stable"))]
        candidate = [replace(candidate[0], arrays=[np.asarray(array)[order] for array in arrays])]
    elif moved:
        return StageValues(PREDICTIONS, None)
    joined = _joined if _sizes(reference) == _sizes(candidate) else _by_example
    a, b = joined(reference), joined(candidate)
    gap, noise = gap_and_noise(a, b, [joined(twin) for twin in twins if twin])
    if gap > noise and losses_of(at).equal:  # logits on one side, and on the other what a softmax makes of them
        gap = min(gap, _gap_of_squashed(reference, candidate))
    models = {event.info.get("model") for event in (*reference, *candidate)}
    only = next(iter(models)) if len(models) == 1 else None
    where = first_layer_apart(at, only or "").where if gap > noise and not moved else ""
    if where is None and len(models) > 1 and _gap_of_squashed(reference, candidate) > noise:
        return StageValues(PREDICTIONS, None)  # one model may be a part of the other, whose output is another tensor
    return StageValues(PREDICTIONS, gap, noise, _range(a), _range(b), where or "")


def _gap_of_squashed(reference: Sequence[Event], candidate: Sequence[Event]) -> float:
    """How far one side's outputs are from what a softmax or a sigmoid makes of the other's, whichever is nearer."""
    pairs = [(_numbers(one), _joined(other)) for one, other in ((candidate, reference), (reference, candidate))]
    squashed = (
        (np.concatenate([squash(each.astype(np.float64)).ravel() for each in logits]), other)
        for squash, (logits, other) in product(SQUASHING.values(), pairs)
    )
    return min((relative_gap(*each) for each in squashed if each[0].shape == each[1].shape), default=np.inf)


def _in_one(events: Sequence[Event]) -> Sequence[Event]:
    """The outputs of all micro-batches and replicas as those of one call, without what has no examples, as a loss."""
    arrays = [[array for array in map(np.asarray, event.arrays) if array.ndim] for event in events]
    if not all(arrays) or len({tuple(array.shape[1:] for array in each) for each in arrays}) != 1:
        return events
    return [replace(events[0], arrays=[np.concatenate(parts) for parts in zip(*arrays, strict=True)])]


def _outputs(close_up: CloseUp, step: int, *, once: bool = False) -> dict[str, list[Event]]:
    """The predictions of each model that a step calls, in the order of the calls: of all micro-batches and replicas.

    If asked for, ``once`` for the same examples.
    """
    events = [event for event in close_up.of(step, "predictions") if _joined([event]).size]
    models = dict.fromkeys(event.info.get("model", "") for event in (close_up.of(step, "inputs") or events))
    outputs = {name: [event for event in events if event.info.get("model", name) == name] for name in models}
    for name in models if once else ():
        calls, kept = model_events(close_up, step, "inputs", name), calls_with_examples(close_up, step, name)
        if len(calls) == len(outputs[name]):
            pairs = zip(outputs[name], calls, strict=True)
            outputs[name] = [output for output, call in pairs if any(call is each for each in kept)]
    return {name: output for name, output in outputs.items() if output}


def _in_order_of(reference: Event, candidate: Event) -> Event:
    """A candidate's outputs in the order of the reference's: those of a dict are sorted, those of a list are not."""
    ordered, left = [], list(candidate.arrays)
    for array in reference.arrays:
        fitting = [i for i, each in enumerate(left) if np.shape(each) == np.shape(array)]
        if not fitting:
            return candidate
        ordered.append(left.pop(min(fitting, key=lambda i, array=array: relative_gap(array, left[i]))))  # type: ignore[misc]
    return replace(candidate, arrays=[*ordered, *left])


def _sizes(events: Sequence[Event]) -> list[tuple[int, ...]]:
    """The shapes of the outputs of one example."""
    return [np.shape(array)[1:] for array in events[0].arrays]


def _by_example(events: Sequence[Event]) -> np.ndarray:
    """All outputs of an example beside each other: one side may give in one array what the other gives in several."""
    arrays = [_numbers([event]) for event in events]
    lengths = [{np.shape(array)[:1] for array in each} for each in arrays]
    if any(len(each) != 1 or () in each for each in lengths):  # a scalar is of no example
        return _joined(events)
    return np.concatenate([np.hstack([array.reshape(len(array), -1) for array in each]).ravel() for each in arrays])


class FirstApart(NamedTuple):
    """Where the outputs of layers begin to differ.

    Attributes:
        where: the first layer whose output differs; None if those of all agree, empty if that is unknown.
        before: the last layer whose output agrees, if need be but for an activation, for which a function may stand;
            None if the next one is given the same.
        after: the first whose output does not.
        alone: of each side, the layers between these two that only this side calls.
    """

    where: str | None
    before: Event | None = None
    after: tuple[Event, Event] | None = None
    alone: Sequence[Sequence[str]] = ((), ())


def first_layer_apart(at: Step, model: str = "", rounding: float = 0.0) -> FirstApart:
    """The first layer whose output differs, in the order of calls; by more than ``rounding``, where it is not measured.

    Those of one ``model``, if it has the same name on both sides. Of layers that one side alone has, nothing is known:
    functions may stand in their place.
    """
    counts = at.of(lambda each, step: len(each.of(step, "layer")))
    a, b, also = at.of(partial(_layers, model=model, whole=counts[0] != counts[1]))
    classes = [[one[0].info["class"] for one in each] for each in (a, b)]
    both = set(classes[0]) & set(classes[1])
    places = [[i for i, each in enumerate(one) if each in both] for one in classes]
    sides = at.reference, at.candidate
    without, last = "", (-1, -1)  # the layer that lacks its activation, and the last that does not differ otherwise
    for i, j in zip(*places, strict=False):
        one, other = a[i], b[j]
        if one[0].info["class"] != other[0].info["class"]:
            return FirstApart(without)
        gap, noise = gap_and_noise(_joined(one), _joined(other), [_joined(each[i]) for each in also if i < len(each)])
        name = str(one[0].info["name"])
        if gap <= max(noise, rounding):
            without = ""
        elif (lacking := _without_activation(one, other)) is not None and not (
            given_to(sides[lacking], at.number, (one, other)[lacking][0]) and _fed_otherwise(at, one[0], other[0])
        ):
            made_up = given_to(sides[lacking], at.number, (one, other)[lacking][0], after=True)
            without = "" if made_up else without or name
        else:
            alone = classes[0][last[0] + 1 : i], classes[1][last[1] + 1 : j]
            before = a[last[0]][0] if last[0] >= 0 and _fed_otherwise(at, one[0], other[0]) else None
            return FirstApart(without or ("" if any(alone) else name), before, (one[0], other[0]), alone)
        last = i, j
    return FirstApart(None if classes[0] == classes[1] != [] else "")


def _fed_otherwise(at: Step, one: Event, other: Event) -> bool:
    """Whether two calls of a layer are given other values, as far as that was seen."""
    fed = _beside(at.reference, at.number, one, -1), _beside(at.candidate, at.number, other, -1)
    a, b = (_joined([each] if each else []) for each in fed)
    return None not in fed and relative_gap(a, b) > FEW_ROUNDINGS


def function_follows(close_ups: Sequence[CloseUp], step: int, layers: Sequence[str]) -> bool | None:
    """Whether a function follows a layer that lacks the activation of its namesake; None if neither lacks one."""
    seen = [[event for event in close_up.of(step, "layer") if event.info["name"] == layer]
            for close_up, layer in zip(close_ups, layers, strict=True)]  # fmt: skip
    lacking = _without_activation(*seen) if all(seen) else None
    return None if lacking is None else given_to(close_ups[lacking], step, seen[lacking][0], after=True) is not None


def given_to(close_up: CloseUp, step: int, called: Event, after: bool = False) -> Event | None:
    """What a function has made for a layer that is called, or for the one ``after`` it; None if none has."""
    beside = _beside(close_up, step, called, 1 if after else -1)
    return beside if beside and beside.kind == "given" else None


def _beside(close_up: CloseUp, step: int, called: Event, by: int) -> Event | None:
    """What comes before a layer's call (-1) or after it (1): what a function made for a layer, or a layer's output."""
    own = [each for each in close_up.steps[step] if each.replica == called.replica and each.kind in ("given", "layer")]
    place = next(i for i, each in enumerate(own) if each is called) + by
    return own[place] if 0 <= place < len(own) else None


def _without_activation(one: Sequence[Event], other: Sequence[Event]) -> int | None:
    """Which of two calls of a layer lacks its activation, which is all that the other's has more; None if neither."""
    arrays = [_joined(one), _joined(other)]
    for i, (a, b) in enumerate((arrays, arrays[::-1]) if arrays[0].shape == arrays[1].shape else ()):
        if any(relative_gap(function(a), b) <= FEW_ROUNDINGS for function in ACTIVATIONS):
            return i
    return None


ACTIVATIONS: Sequence[Callable[[np.ndarray], np.ndarray]] = (
    lambda values: np.maximum(values, 0),
    np.tanh,
    SQUASHING["sigmoid"],
    lambda values: values * SQUASHING["sigmoid"](values),
)
"""Functions of single values that layers have as their activation, in float64."""


def _layers(close_up: CloseUp, step: int, *, model: str, whole: bool) -> list[list[Event]]:
    """The calls of a model's layers in a step, in order; if asked for, each with all its micro-batches and replicas."""
    events, outputs = (
        [event for event in close_up.of(step, kind) if not model or event.info.get("model", model) == model]
        for kind in ("layer", "predictions")
    )
    each = len(events) // max(len(outputs), 1)
    calls = [events[i::each] for i in range(each)]
    same = sum(map(len, calls)) == len(events) and all(len({a.info["name"] for a in call}) == 1 for call in calls)
    return calls if whole and same else [[event] for event in events]


def losses_of(at: Step) -> StageValues:
    """Compares the losses whose gradients are taken."""
    losses = both_losses(at.reference, at.candidate, at.number)
    if losses is None:
        return StageValues(LOSS, None)
    others = [[loss] for twin in at.twins if (loss := loss_of(twin, at.number)) is not None]
    a, b = losses
    return StageValues(LOSS, *gap_and_noise([a], [b], others), f"{a:.7g}", f"{b:.7g}")
