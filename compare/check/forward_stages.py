"""Compares the stages of a step up to its loss: examples, their values, what the model makes of them; no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from compare.check.layer_outputs import SQUASHING, first_layer_apart, joined, numbers_of
from compare.check.step_values import (
    EXAMPLES,
    FEW_ROUNDINGS,
    INPUTS,
    LOSS,
    PARALLEL,
    PREDICTIONS,
    Step,
    both_losses,
    gap_and_noise,
    relative_gap,
)
from compare.check.targets import targets_of
from compare.verdict.findings import StageValues
from compare.watch.seen import CloseUp, Event

FEW_EXAMPLES = 8
"""The number of examples below which inputs of other examples may look alike."""
_INPUTS = partial(CloseUp.model_events, kind="inputs")
SAME_EXAMPLES = 0.5
"""The correlation of inputs above which they are those of the same examples: normalized otherwise, or augmented."""


def examples_of(at: Step, elsewhere: Collection[int]) -> StageValues:
    """Compares which examples the step has, and their labels; ``elsewhere`` has those that others may be."""
    a, b, _ = at.of(CloseUp.example_rows)
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
        values = [_range(joined(each)) for each in at.of(_true)[:2]] if labels else shown
        shown = values if values[0] != values[1] else shown
        return StageValues(EXAMPLES, float(labels), 0.0, shown[0], shown[1], where)
    if sorted(a) == sorted(b) or _called_again(at, a, b):  # another order within the batch
        return StageValues(EXAMPLES, 0.0, 0.0, shown[0], shown[1])
    known = {*elsewhere, *at.reference.all_rows()}
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
    several = len(close_up.of(step, "inputs")) != len(close_up.model_events(step, "inputs"))
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
    if any(each.predictions_as_labels(at.number) for each in (at.reference, at.candidate)):
        return False  # which of both are the labels is known by their places only
    if sorted(a) == sorted(b) and len(a) > len(at.reference.example_rows(at.number)):
        return False  # of several losses, which each side calls in an order of its own
    if {row for number in at.reference.steps for row in at.reference.rows(number, "targets")}.issuperset(b):
        return True
    one, other, twins = at.of(_true)
    arrays = [(a.arrays, b.arrays) for a, b in zip(one, other, strict=False)]
    if len(one) > 1 and any(len(a) == len(b) > 0 and all(map(np.array_equal, a, b)) for a, b in arrays):
        return False  # of several losses one has equal labels: what another is given is computed, as by a teacher
    calls = [_calls_of_loss(each, at.number, true) for each, true in ((at.reference, one), (at.candidate, other))]
    gap, noise = gap_and_noise(joined(one), joined(other), list(map(joined, twins)))
    return calls[0] == calls[1] and gap > noise


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
    rows = at.of(CloseUp.example_rows)
    numbers = joined(a), joined(b)
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
        part = min(alike, key=lambda part: relative_gap(joined(whole[name]), joined(parts[part])))
        pairs = [(name, part) if whole is first else (part, name)]
    else:
        pairs = _by_outputs(first, second) or pairs
    found = _outputs_of(at, first[pairs[0][0]], second[pairs[0][1]], [each.get(pairs[0][0], ()) for each in twins])
    for one, other in pairs[1:]:
        if found.equal and _shapes(first[one]) == _shapes(second[other]):
            found = _outputs_of(at, first[one], second[other], [each.get(one, ()) for each in twins])
    return found


def behind_zeros(at: Step) -> StageValues | None:
    """The predictions, with the first layer that differs although they do not, as before a last layer of zeros.

    None if there is none, or if the models call other layers, so that one may only seem to differ.
    """
    one, other, _ = at.of(lambda each, step: [event.info["class"] for event in each.of(step, "layer")])
    apart = first_layer_apart(at, rounding=PARALLEL) if one and one == other else None
    if apart is None or not apart.where or apart.after is None:
        return None
    first, second = apart.after
    return StageValues(PREDICTIONS, relative_gap(joined([first]), joined([second])), PARALLEL, where=apart.where)


def _by_outputs(first: Mapping[str, list[Event]], second: Mapping[str, list[Event]]) -> list[tuple[str, str]]:
    """The models of both sides, which may call them in other orders, by their outputs; empty if shapes differ."""
    pairs, left = [], [*second]
    for name, events in first.items():
        gaps = {other: relative_gap(joined(events), joined(second[other])) for other in left
                if _shapes(second[other]) == _shapes(events)}  # fmt: skip
        if not gaps:
            return []
        other = min(gaps, key=lambda each: gaps[each])
        pairs.append((name, other))
        left.remove(other)
    return pairs


def _shapes(events: Sequence[Event]) -> list[tuple[int, ...]]:
    return [each.shape for each in numbers_of(events)]


def _outputs_of(
    at: Step, reference: Sequence[Event], candidate: Sequence[Event], twins: Sequence[Sequence[Event]]
) -> StageValues:
    in_one_call = len(candidate) == 1
    scalars = [sum(not np.ndim(array) for array in events[0].arrays) for events in (reference, candidate)]
    if len(reference) != len(candidate) or scalars[0] != scalars[1]:
        reference, candidate, *twins = map(_in_one, (reference, candidate, *twins))
    if len(reference) == len(candidate):
        candidate = [_like(*each) for each in zip(reference, candidate, strict=True)]
        if any(len(b.arrays) < len(a.arrays) for a, b in zip(reference, candidate, strict=True)):
            reference, *twins = ([*map(_like, candidate, side)] for side in (reference, *twins))
    rows, arrays = at.of(CloseUp.example_rows)[:2], [array for event in candidate for array in event.arrays]
    moved = rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1])  # another order within the batch
    if moved and in_one_call and all(np.shape(array)[:1] == (len(rows[1]),) for array in arrays):
        order = np.argsort(rows[1], kind="stable")[np.argsort(np.argsort(rows[0], kind="stable"))]
        candidate = [replace(candidate[0], arrays=[np.asarray(array)[order] for array in arrays])]
    elif moved:
        return StageValues(PREDICTIONS, None)
    together = joined if _sizes(reference) == _sizes(candidate) else _by_example
    a, b = together(reference), together(candidate)
    gap, noise = gap_and_noise(a, b, [together(twin) for twin in twins if twin])
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
    pairs = [(numbers_of(one), joined(other)) for one, other in ((candidate, reference), (reference, candidate))]
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
    events = [event for event in close_up.of(step, "predictions") if joined([event]).size]
    models = dict.fromkeys(event.info.get("model", "") for event in (close_up.of(step, "inputs") or events))
    outputs = {name: [event for event in events if event.info.get("model", name) == name] for name in models}
    for name in models if once else ():
        calls, kept = close_up.model_events(step, "inputs", name), close_up.calls_with_examples(step, name)
        if len(calls) == len(outputs[name]):
            pairs = zip(outputs[name], calls, strict=True)
            outputs[name] = [output for output, call in pairs if any(call is each for each in kept)]
    return {name: output for name, output in outputs.items() if output}


def _like(other: Event, own: Event) -> Event:
    """The outputs of one side that the other gives, too, in its order; as they are if it gives any that this does not.

    Those of a dict are sorted, those of a list are not; and a model may give parts of its loss besides.
    """
    ordered, left = [], list(own.arrays)
    for array in other.arrays:
        fitting = [i for i, each in enumerate(left) if np.shape(each) == np.shape(array)]
        if not fitting:
            return own
        ordered.append(left.pop(min(fitting, key=lambda i, array=array: relative_gap(array, left[i]))))  # type: ignore[misc]
    return replace(own, arrays=ordered)


def _sizes(events: Sequence[Event]) -> list[tuple[int, ...]]:
    """The shapes of the outputs of one example."""
    return [np.shape(array)[1:] for array in events[0].arrays]


def _by_example(events: Sequence[Event]) -> np.ndarray:
    """All outputs of an example beside each other: one side may give in one array what the other gives in several."""
    arrays = [numbers_of([event]) for event in events]
    lengths = [{np.shape(array)[:1] for array in each} for each in arrays]
    if any(len(each) != 1 or () in each for each in lengths):  # a scalar is of no example
        return joined(events)
    return np.concatenate([np.hstack([array.reshape(len(array), -1) for array in each]).ravel() for each in arrays])


def losses_of(at: Step) -> StageValues:
    """Compares the losses whose gradients are taken."""
    losses = both_losses(at.reference, at.candidate, at.number)
    if losses is None:
        return StageValues(LOSS, None)
    others = [[loss] for twin in at.twins if (loss := twin.loss(at.number)) is not None]
    a, b = losses
    return StageValues(LOSS, *gap_and_noise([a], [b], others), f"{a:.7g}", f"{b:.7g}")
