"""Locates a difference within a step: the first stage that differs between two sides by more than rounding.

A step goes through its stages in order: which examples, their values, the model's predictions, the loss, the gradients,
the update of the weights. What lies between two steps is the state. Everything before the stage that differs agrees, so
that is where the mistake is, whether or not a cause can be named. No TensorFlow here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeVar

import numpy as np

from compare.check.recipe import EPSILON, distance, multiple
from compare.check.targets import log_probabilities, targets_of
from compare.naming import some
from compare.verdict.model import StageValues
from compare.verdict.rounding import FACTOR
from compare.watch.seen import CloseUp, Event

EXAMPLES, INPUTS, PREDICTIONS, LOSS, GRADIENTS, UPDATE, STATE = STAGES = (
    "examples", "inputs", "predictions", "loss", "gradients", "update", "state",
)  # fmt: skip
Kind = TypeVar("Kind")
Weights = Sequence[np.ndarray] | None
BEFORE, AFTER = "before the step", "after the update"
LEARNING_RATE = "the learning rate"
FEW_ROUNDINGS = 8 * EPSILON
"""A relative difference of a few roundings, which one noise twin may miss: gradients of correct loops differ from those
of fit by up to five units in the last place (see ``Checker``)."""
JUMP = 10
"""How many times as far apart weights are that both sides set at a moment, and one sets otherwise."""
FEW_EXAMPLES = 8
"""The number of examples below which inputs of other examples may look alike."""
SAME_EXAMPLES = 0.5
"""The correlation of inputs above which they are those of the same examples: normalized otherwise, or augmented."""


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
    stages: Sequence[StageValues] = field(default_factory=tuple)

    def of(self, stage: str) -> StageValues | None:
        """A stage's values, if it was compared."""
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
    at = _Step(reference, candidate, twins, step, variables)
    before = _state(at, lambda each, step: (each.after.get(step - 1), _at_forward(each, step)), BEFORE)
    after = _state(at, lambda each, step: (_updated(each, step), each.after.get(step)), AFTER)
    compared = [_examples(at, known), _inputs(at), _predictions(at), _loss(at), _gradients(at), _update(at)]
    gradients, update = compared[-2:]
    if before.differs:
        first: StageValues | None = before
    elif gradients.equal:
        # Right gradients are right, however they were computed.
        first = after if after.differs and not update.differs else update
        if not update.gap and not after.differs:
            first = None
    else:
        first = next((each for each in [*compared, after] if each.differs), None)
    state = before if before.differs or not after.differs else after
    return Located(step, first.stage if first else None, first.where if first else "", (*compared, state))


@dataclass(frozen=True)
class _Step:
    """One step of two sides and of noise twins of the reference."""

    reference: CloseUp
    candidate: CloseUp
    twins: Sequence[CloseUp]
    number: int
    variables: Sequence[str] = ()

    def of(self, seen: Callable[[CloseUp, int], Kind]) -> tuple[Kind, Kind, list[Kind]]:
        """What was seen of the reference, of the candidate and of the twins."""
        one, other, *twins = (seen(each, self.number) for each in (self.reference, self.candidate, *self.twins))
        return one, other, twins


def apart(reference: CloseUp, candidate: CloseUp, twins: Sequence[CloseUp], step: int) -> bool:
    """Whether the weights after a step differ by more than rounding explains."""
    a, b = reference.after.get(step, ()), candidate.after.get(step, ())
    others = [twin.after[step] for twin in twins if step in twin.after]
    compared = (_compared(one, b[i], [twin[i] for twin in others]) for i, one in enumerate(a[: len(b)]))
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
        if not earlier and other_calls(calls_of(reference, step), calls_of(candidate, step)):
            return step
        at = _Step(reference, candidate, twins, step)
        loss, gradients = _loss(at), _sketches(at)
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
    at = _Step(reference, candidate, twins, step, variables)
    return _gradients(at).gap == 0 and _update(at).differs


def calls_of(close_up: CloseUp, step: int) -> int | None:
    """How many times the optimizer is applied to the gradients of a step; None if no forward pass was seen."""

    def computes(number: int) -> bool:
        return any(event.kind in ("inputs", "loss") for event in close_up.steps[number])

    if step not in close_up.steps or not computes(step):
        return None
    following = step + 1
    while following in close_up.steps and not computes(following):
        following += 1
    return following - step


def other_calls(a: int | None, b: int | None) -> bool:
    """Whether one side is known to apply its optimizer more often to the gradients of a step."""
    return a is not None and b is not None and a != b


def relative_gap(a: Any, b: Any, min_scale: float = 0.0) -> float:
    """The Euclidean norm of the difference of two arrays, relative to the larger norm, or to a scale above both."""
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if a.shape != b.shape:
        return float("inf")
    return 0.0 if np.array_equal(a, b, equal_nan=True) else distance([a], [b], min_scale)


def parallel(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether one array is a multiple of the other, within what rounding may do to a small difference."""
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return bool(norms) and abs(float(np.vdot(a, b))) >= (1 - 1e-4) * norms


def common_multiple(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """The factor by which the first of each pair of parallel arrays is the second; 0 if they have no common one."""
    factors = [multiple([a], [b]) or 0.0 for a, b in pairs]
    return factors[0] if factors and np.ptp(factors) <= 0.01 * max(map(abs, factors)) else 0.0


def _compared(a: Any, b: Any, twins: Sequence[Any]) -> tuple[float, float]:
    """How far two arrays are apart, and how far rounding puts them; both relative to the larger norm of the two.

    What is nearly zero on one side only, such as a sum of parts that cancel, is no scale for the other.
    """
    scale = float(np.linalg.norm(np.asarray(b, np.float64)))
    gaps = [gap for twin in twins if np.isfinite(gap := relative_gap(a, twin, scale))]
    return relative_gap(a, b), max(FACTOR * max(gaps, default=0.0), FEW_ROUNDINGS)


def model_events(close_up: CloseUp, step: int, kind: str, model: str = "") -> list[Event]:
    """The events of a model; by default of that which the step calls first, and others take what it gives."""
    events = close_up.of(step, kind)
    first = close_up.of(step, "inputs")[:1]
    name = model or (first[0].info["model"] if first else "")
    return [event for event in events if event.info.get("model", name) == name]


def calls_with_examples(close_up: CloseUp, step: int, model: str = "") -> list[Event]:
    """The calls of a model in a step that bring examples.

    Another one with the same, before a loss has used the first, is for a term of that loss, such as a derivative; one
    after an update of a part of the weights is for that of another part.
    """
    calls, losses = model_events(close_up, step, "inputs", model), Counter[int]()
    wanted = set(map(id, calls))
    first = dict[tuple[int, int, tuple[int, ...] | int], int]()
    for number, event in enumerate(close_up.steps.get(step, ())):
        losses[event.replica] += event.kind == "loss"
        if event.kind == "gradients":
            losses[event.replica] = 0
        if id(event) in wanted:
            first.setdefault((event.replica, losses[event.replica], tuple(event.rows) or number), id(event))
    kept = set(first.values())
    return [event for event in calls if id(event) in kept]


def example_rows(close_up: CloseUp, step: int) -> list[int]:
    """The hashes of the examples of a step, in order."""
    return [row for event in calls_with_examples(close_up, step) for row in event.rows]


def all_rows(close_up: CloseUp) -> frozenset[int]:
    """The hashes of all examples that were seen."""
    return frozenset(row for step in close_up.steps for row in example_rows(close_up, step))


def rows_by_epoch(close_up: CloseUp) -> list[list[int]]:
    """The hashes of the examples of each epoch of a short check, in order."""
    epochs = (range(before + 1, end + 1) for before, end in pairwise((0, *close_up.ends)))
    return [[row for step in steps for row in example_rows(close_up, step)] for steps in epochs]


def _examples(at: _Step, elsewhere: Collection[int]) -> StageValues:
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
    if sorted(a) == sorted(b):  # another order within the batch
        return StageValues(EXAMPLES, 0.0, 0.0, shown[0], shown[1])
    known = {*elsewhere, *all_rows(at.reference)}
    # Examples of another order are known from another place. Those whose values differ are not known at all.
    other = len(a) != len(b) or any(mine != theirs and theirs in known for mine, theirs in zip(a, b, strict=True))
    unknown = sum(row not in known for row in b)
    if unknown and (other or not _same_examples(at)):
        some_of = "none of them" if unknown == len(b) else f"{unknown} of them not"
        return StageValues(EXAMPLES, 1.0, 0.0, shown[0], f"{shown[1]} ({some_of} recognised)")
    return StageValues(EXAMPLES, float(other), 0.0, shown[0], shown[1])


def _same_examples(at: _Step) -> bool:
    """Whether inputs with other values are those of the same examples: by their labels, or else by their values."""
    a, b, _ = at.of(_labels)
    if len(a) == len(b) > len(set(a)) > 1 and len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b)):
        return True  # the same labels, or each by another name
    if a == b and len(set(a)) > 1:
        return True
    alike = _correlation(*at.of(_inputs_of)[:2])
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


def _inputs_of(close_up: CloseUp, step: int) -> list[Event]:
    return model_events(close_up, step, "inputs")


def _same_inputs(at: _Step) -> bool:
    """Whether both sides call the same model first; one may call its parts instead, one after the other."""
    a, b, _ = at.of(
        lambda each, step: [np.shape(array)[1:] for one in _inputs_of(each, step)[:1] for array in one.arrays]
    )
    return a == b


def _labels_differ(at: _Step) -> bool:
    """Whether equal inputs have labels of other examples, or the same loss is given labels with other values."""
    a, b, _ = at.of(_labels)
    if not a or not b or a == b or len(a) != len(b):
        return False
    if {row for number in at.reference.steps for row in at.reference.rows(number, "targets")}.issuperset(b):
        return True
    one, other, twins = at.of(_true)
    calls = [_calls_of_loss(each, at.number, true) for each, true in ((at.reference, one), (at.candidate, other))]
    gap, noise = _compared(_joined(one), _joined(other), list(map(_joined, twins)))
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


def _inputs(at: _Step) -> StageValues:
    a, b, _ = at.of(_inputs_of)
    if not any(event.arrays for event in a) or not _same_inputs(at):
        return StageValues(INPUTS, None)
    rows = at.of(example_rows)
    numbers = _joined(a), _joined(b)
    gap = 0.0
    if sorted(rows[0]) != sorted(rows[1]):
        gap = relative_gap(*numbers) if numbers[0].size else 1.0  # text
    shown = [_range(each) for each in numbers]
    if any(shown):  # of text, there is nothing to show
        shown = [each or "no values" for each in shown]
    return StageValues(INPUTS, gap, FEW_ROUNDINGS, shown[0], shown[1])


def _joined(events: Sequence[Event]) -> np.ndarray:
    parts = [array.astype(np.float64).ravel() for array in _numbers(events)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _numbers(events: Sequence[Event]) -> list[np.ndarray]:
    """The arrays of numbers, without texts."""
    arrays = [np.asarray(array) for event in events for array in event.arrays]
    return [array for array in arrays if array.dtype.kind not in "OSU"]


SQUASHING: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": lambda logits: np.exp(log_probabilities(logits, from_logits=True)),
    "sigmoid": lambda logits: 0.5 * (1 + np.tanh(0.5 * logits)),
}
"""Functions that make probabilities of logits in float64."""


def _range(values: np.ndarray) -> str:
    return f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}" if values.size else ""


def _predictions(at: _Step) -> StageValues:
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
    found = _outputs_of(at, first[pairs[0][0]], second[pairs[0][1]], [each.get(pairs[0][0], ()) for each in twins])
    for one, other in pairs[1:]:
        same = [[each.shape for each in _numbers(side)] for side in (first[one], second[other])]
        if found.equal and same[0] == same[1]:
            found = _outputs_of(at, first[one], second[other], [each.get(one, ()) for each in twins])
    return found


def _outputs_of(
    at: _Step, reference: Sequence[Event], candidate: Sequence[Event], twins: Sequence[Sequence[Event]]
) -> StageValues:
    """Compares the outputs of one model."""
    if len(reference) == len(candidate):
        candidate = [_in_order_of(*each) for each in zip(reference, candidate, strict=True)]
    rows, arrays = at.of(example_rows)[:2], [array for event in candidate for array in event.arrays]
    moved = rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1])  # another order within the batch
    if moved and len(candidate) == 1 and all(np.shape(array)[:1] == (len(rows[1]),) for array in arrays):
        order = np.argsort(rows[1], kind="stable")[np.argsort(np.argsort(rows[0], kind="stable"))]
        candidate = [replace(candidate[0], arrays=[np.asarray(array)[order] for array in arrays])]
    elif moved:
        return StageValues(PREDICTIONS, None)
    joined = _joined if _sizes(reference) == _sizes(candidate) else _by_example
    a, b = joined(reference), joined(candidate)
    gap, noise = _compared(a, b, [joined(twin) for twin in twins if twin])
    if gap > noise and _loss(at).equal:  # logits on one side, and on the other what a softmax makes of them
        for squash, (logits, other) in product(SQUASHING.values(), ((candidate, a), (reference, b))):
            squashed = [squash(each.astype(np.float64)).ravel() for each in _numbers(logits)]
            gap = min(gap, relative_gap(np.concatenate(squashed), other))
    where = _first_layer(at) if gap > noise and not moved else ""
    return StageValues(PREDICTIONS, gap, noise, _range(a), _range(b), where)


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


def _first_layer(at: _Step) -> str:
    """The first layer whose output differs, in the order of the reference's calls."""
    counts = at.of(lambda each, step: len(each.of(step, "layer")))
    a, b, also = at.of(partial(_layers, whole=counts[0] != counts[1]))
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        if one[0].info["class"] != other[0].info["class"]:
            return ""
        gap, noise = _compared(_joined(one), _joined(other), [_joined(each[i]) for each in also if i < len(each)])
        if gap > noise:
            return str(one[0].info["name"])
    return ""


def _layers(close_up: CloseUp, step: int, *, whole: bool) -> list[list[Event]]:
    """The calls of layers in a step, in order; if asked for, each with all its micro-batches and replicas."""
    events = close_up.of(step, "layer")
    each = len(events) // max(len(close_up.of(step, "predictions")), 1)
    calls = [events[i::each] for i in range(each)]
    same = sum(map(len, calls)) == len(events) and all(len({a.info["name"] for a in call}) == 1 for call in calls)
    return calls if whole and same else [[event] for event in events]


def loss_of(close_up: CloseUp, step: int) -> float | None:
    """The sum of all losses of a step whose gradient was taken: of replicas, micro-batches and examples."""
    events = close_up.of(step, "loss")
    if not events or not all(event.arrays for event in events):
        return None
    return float(
        sum(np.asarray(a, np.float64).sum() for event in events for a in event.arrays[: event.info["targets"]])
    )


def both_losses(reference: CloseUp, candidate: CloseUp, step: int) -> tuple[float, float] | None:
    """The losses of two sides in a step; None if one is not known.

    That of micro-batches is their sum, or their mean if that is nearer: gradients may be divided afterwards.
    """
    a, b = loss_of(reference, step), loss_of(candidate, step)
    if a is None or b is None:
        return None
    one, other = (sum(event.replica == 0 for event in each.of(step, "loss")) for each in (reference, candidate))
    return a, min(b, b * one / other, key=lambda value: abs(value - a))


def _loss(at: _Step) -> StageValues:
    losses = both_losses(at.reference, at.candidate, at.number)
    if losses is None:
        return StageValues(LOSS, None)
    others = [[loss] for twin in at.twins if (loss := loss_of(twin, at.number)) is not None]
    a, b = losses
    return StageValues(LOSS, *_compared([a], [b], others), f"{a:.7g}", f"{b:.7g}")


def gradients_of(
    close_up: CloseUp, step: int, replica: int | None = None, kind: str = "gradients"
) -> dict[int, np.ndarray]:
    """The gradient of each variable, by its number: the sum over replicas, or of one, and over calls of optimizers."""
    total: dict[int, np.ndarray] = {}
    for event in close_up.of(step, kind):
        if replica is not None and event.replica != replica:
            continue
        arrays = event.arrays if kind == "sketch" else event.arrays[1:]
        for position, array in zip(event.info["positions"], arrays, strict=False):
            value = np.asarray(array, np.float64)
            total[position] = total[position] + value if position in total else value
    return total


def _sketches(at: _Step) -> StageValues:
    """Compares sketches of gradients; they agree where only one optimizer clips or unscales what it is given."""
    found = _by_variable(at, GRADIENTS, partial(gradients_of, kind="sketch"))
    given = at.of(lambda each, step: [event.info.get("given") for event in each.of(step, "sketch")][:1])
    return replace(found, gap=0.0) if found.gap is not None and given[0] != given[1] else found


def learning_rates_of(close_up: CloseUp, step: int) -> dict[int, float]:
    """The learning rate that the optimizer of each variable had in a step, by the variable's number."""
    events = [event for event in close_up.of(step, "gradients") if event.arrays]
    return {position: float(event.arrays[0]) for event in events for position in event.info["positions"]}


def _gradients(at: _Step) -> StageValues:
    return _by_variable(at, GRADIENTS, gradients_of)


def _update(at: _Step) -> StageValues:
    calls = at.of(calls_of)[:2]
    if other_calls(*calls):
        shown = [f"{count} call{'s' * (count != 1)} of the optimizer" for count in calls]
        return StageValues(UPDATE, 1.0, 0.0, shown[0], shown[1])
    found = _by_variable(at, UPDATE, changes_of)
    gradients = at.of(gradients_of)
    same = gradients[0] and gradients[0].keys() == gradients[1].keys()
    if not found.equal or not same or any(not np.array_equal(gradients[0][i], gradients[1][i]) for i in gradients[0]):
        return found
    # The same gradients, bit for bit, so that only the update itself can round.
    (a, b, _), after = at.of(changes_of), _made(at.reference, at.number) or ()
    off = [i for i in a if np.any(np.abs(a[i] - b[i]) > FEW_ROUNDINGS * np.maximum(np.abs(after[i]), np.abs(a[i])))]
    if not off:
        return found
    where = some([_name(at.variables, i) for i in off]) if len(off) < len(a) else ""
    return replace(found, noise=0.0, where=where)


def changes_of(close_up: CloseUp, step: int) -> dict[int, np.ndarray]:
    """The change of each variable in a step."""
    before = close_up.after.get(step - 1) or _at_forward(close_up, step)
    after = _made(close_up, step)
    if before is None or after is None or _shapes(before) != _shapes(after):
        return {}
    pairs = zip(before, after, strict=True)
    return {i: np.asarray(new, np.float64) - np.asarray(old, np.float64) for i, (old, new) in enumerate(pairs)}


def _shapes(weights: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(each) for each in weights)


def _updated(close_up: CloseUp, step: int) -> Weights:
    """The weights that the optimizer made in a step, of the first replica, before anything else changed them."""
    events = [event for event in close_up.of(step, "updated") if event.replica == 0]
    return events[-1].arrays if events and events[-1].arrays else None


def _made(close_up: CloseUp, step: int) -> Weights:
    """The same, or else those after the step: where a graph makes several, they are seen after the last only."""
    return _updated(close_up, step) or close_up.after.get(step)


def _at_forward(close_up: CloseUp, step: int) -> Weights:
    """The weights with which a step computed its first predictions, of the first replica."""
    events = model_events(close_up, step, "weights")
    return events[0].arrays if events and events[0].arrays else None


def _state(at: _Step, around: Callable[[CloseUp, int], tuple[Weights, Weights]], when: str) -> StageValues:
    """Finds weights that one side changes outside of its update, and the other does not, or otherwise.

    Args:
        around: the weights before and after a moment of the step when nothing should change them.
    """
    (a0, a1), (b0, b1), twins = at.of(around)
    if a0 is None or a1 is None or b0 is None or b1 is None or len({_shapes(each) for each in (a0, a1, b0, b1)}) > 1:
        return StageValues(STATE, None)  # not seen, or of the model that the step calls first, which is another one

    alone: list[int] = []
    otherwise: list[int] = []
    for i, (old, new) in enumerate(zip(b0, b1, strict=True)):
        changed = [not np.array_equal(*pair, equal_nan=True) for pair in ((a0[i], a1[i]), (old, new))]
        if not any(changed):
            continue
        twin0, twin1 = ([there[i] for twin in twins if (there := twin[moment]) is not None] for moment in (0, 1))
        (gap, noise), (now_gap, now_noise) = _compared(a0[i], old, twin0), _compared(a1[i], new, twin1)
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


def _by_variable(at: _Step, stage: str, seen: Callable[[CloseUp, int], Mapping[int, np.ndarray]]) -> StageValues:
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
        gap, noise = _compared(one, other, [twin[i] for twin in twins if i in twin])
        if gap > noise:
            off.append(i)
        if gap / noise >= worst / noise_there:
            worst, noise_there = gap, noise
    shown = [_norms(each) for each in (a, b)]
    where = some([_name(at.variables, i) for i in off]) if 0 < len(off) < len(a.keys() | b.keys()) else ""
    return StageValues(stage, worst, noise_there, shown[0], shown[1], where)


def _norms(arrays: Mapping[int, np.ndarray]) -> str:
    return f"norm {np.sqrt(sum(float(np.sum(np.square(each))) for each in arrays.values())):.6g}"


def _name(variables: Sequence[str], i: int) -> str:
    return variables[i] if i < len(variables) else f"variable {i}"
