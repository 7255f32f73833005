"""Predicts what a step should have shown by what the other side of a comparison did on the same batch; no TensorFlow.

Nothing is computed again from weights: a prediction is arithmetic on the record of the side that is held to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from compare.check.measurement import Measurement
from compare.check.recipe import OF_OPTION, LossKind, Recipe, Share, Split, mean_of_means, multiple
from compare.check.step_values import PARALLEL, Sides, common_multiple, count_rows, parallel, relative_gap
from compare.check.targets import Targets, targets_of, value_of
from compare.watch.seen import CloseUp, Event
from compare.watch.trace import Trace

CLOSE = 1e-5
"""The relative difference up to which a loss that is computed again counts as the same: sums in another order."""
SMALL = 0.05
"""The largest error of an explanation of a loss, as a part of the difference that it explains."""
A_RATE = 1e-3
"""The relative difference up to which a change of weights, which are rounded, is a multiple of their gradients."""


def same(a: float, b: float) -> bool:
    """Whether two numbers are the same but for sums in another order."""
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def is_round(number: float, digits: int, within: float = 1e-4) -> bool:
    """Whether a number has but a few digits, as people write it."""
    return abs(number - float(f"{number:.{digits}g}")) <= within * abs(number)


NAMES = ("name", "module", "registered_name", "build_config", "seed", "batch_shape", "sparse", "ragged",
         "build_input_shape", "layers")  # fmt: skip
"""Entries of a configuration that change no number, or are compared elsewhere."""


def settings_apart(
    own: Mapping[str, Any], right: Mapping[str, Any], *, initializers: bool = False
) -> dict[str, list[Any]]:
    """The settings that both have with other values, the side's own first; objects inside, part by part.

    Versions of Keras write a configuration in other ways: an entry that one side lacks says nothing. Nor do those of
    averages of weights if an optimizer keeps none.
    """
    found: dict[str, list[Any]] = {}
    averages = own.get("use_ema") or right.get("use_ema")
    for name in own.keys() & right.keys() - set(NAMES):
        both: Any = own[name], right[name]
        lists = all(isinstance(each, list) for each in both) and len(both[0]) == len(both[1])
        if lists and all(isinstance(part, Mapping) for each in both for part in each):  # such as an RNN's cells
            both = [{str(i): part for i, part in enumerate(each)} for each in both]
        if name.endswith("initializer") and not initializers:
            continue  # what weights begin with is seen
        if name.startswith("ema_") and not averages:
            continue
        if isinstance(both[0], Mapping) and isinstance(both[1], Mapping):
            inner = settings_apart(*both, initializers=initializers)
            found |= {part if name == "config" else f"{name}.{part}": values for part, values in inner.items()}
        elif not _may_be_same(name, *both):
            found[name] = list(both)
    return dict(sorted(found.items()))


Described = Mapping[str, Any]
"""A layer, optimizer, loss or metric: its class and its configuration."""


def things_apart(
    own: Sequence[Described], right: Sequence[Described], *, initializers: bool = False
) -> Iterator[tuple[Described, Described, dict[str, list[Any]]]]:
    """The pairs of things with other settings, each with these: of a class that both have as often, in order.

    Where some classes are others, the order says less: there none of a class that are the same in another order.
    """

    def apart(one: Described, other: Described) -> dict[str, list[Any]]:
        return settings_apart(one["config"], other["config"], initializers=initializers)

    kinds = [[each["class"] for each in things] for things in (own, right)]
    pairs: list[tuple[int, Described, Described]] = []
    for kind in dict.fromkeys(kinds[0]):
        ones, others = ([each for each in things if each["class"] == kind] for things in (own, right))
        if len(ones) == len(others) and (kinds[0] == kinds[1] or not _same_in_any_order(ones, others, apart)):
            places = (i for i, each in enumerate(kinds[0]) if each == kind)
            pairs += zip(places, ones, others, strict=True)
    for _, one, other in sorted(pairs, key=lambda pair: pair[0]):
        if settings := apart(one, other):
            yield one, other, settings


def _same_in_any_order(
    ones: Sequence[Described], others: Sequence[Described], apart: Callable[[Described, Described], object]
) -> bool:
    left = list(others)
    for one in ones:
        same = next((i for i, each in enumerate(left) if not apart(one, each)), None)
        if same is None:
            return False
        del left[same]
    return True


def _may_be_same(name: str, a: Any, b: Any) -> bool:
    """Whether two values of a setting may be the same, in the words of two versions of Keras.

    They are the same number in float32, or numbers of the same size where only one is in a list: an axis, one for each
    dimension, or the ends of a range around 0. An axis may be counted from the end.
    """
    if a == b or (isinstance(a, Mapping) != isinstance(b, Mapping) and None not in (a, b)):
        return True
    with suppress(TypeError, ValueError):  # not numbers
        one, other = (np.asarray(each, np.float32) for each in (a, b))
        if one.ndim != other.ndim and name != "axis":
            one, other = abs(one), abs(other)
        elif one.size != other.size:
            return False
        return bool((one == other).all()) or (name == "axis" and bool(((one < 0) != (other < 0)).all()))
    return False


# Loss


@dataclass(frozen=True)
class RecordedLoss:
    """The loss of a step, in the parts that a recipe changes.

    Attributes:
        data: the loss of the examples.
        penalty: the sum of the model's own losses, the mean over replicas.
        penalties: each of them, on the first replica.
        split: the batch, split as evenly as can be: no share depends on where its examples are.
    """

    sides: Sides
    data: float
    penalty: float
    penalties: Sequence[float]
    split: Split

    @classmethod
    def of(cls, sides: Sides) -> RecordedLoss | None:
        """The loss of the side that is held to be right; None if it was not seen."""
        close_up, step = sides.right, sides.step
        loss = close_up.loss(step)
        if loss is None:
            return None
        examples = len(close_up.example_rows(step))
        full = max((len(close_up.example_rows(each)) for each in close_up.steps), default=examples)
        own = [float(np.sum(array)) for array in _own_losses(close_up, step)]
        sizes = tuple(len(part) for part in np.array_split(range(examples), sides.replicas))
        penalty = close_up.penalty(step)
        return cls(sides, loss - penalty, penalty, own, Split(sizes, full))

    @cached_property
    def targets(self) -> Targets | None:
        """What the loss function was called with; None if that is not known."""
        return targets_of(self.sides.right, self.sides.step)

    @cached_property
    def _values(self) -> dict[tuple[LossKind, bool], float | None]:
        """The losses of the examples that were computed, which takes long for large predictions."""
        return {(LossKind.GIVEN, True): self.data}

    def factor(self, share: Share) -> float:
        """What the examples' loss is multiplied by if each example has a share; 1 if that is not known."""
        right, other = (float(np.dot(self.split.sizes, each(self.split))) for each in (mean_of_means, share))
        return other / right if right else 1.0

    def _of_examples(self, loss: LossKind, sample_weights: bool) -> float | None:
        """The loss of the examples with the right shares; None if it cannot be computed."""
        if (targets := self.targets) is None:
            return None
        given = value_of(targets)
        if loss == LossKind.UNRECOVERED:
            # What is given is said to be logits, and the right side takes it for what it is.
            recovered = value_of(targets.with_other_logits()) if targets.from_logits else None
            return given if recovered is not None and same(recovered, self.data) else None
        if given is None or not same(given, self.data):
            return None  # of the right side, too, the loss is another one
        lacking = {LossKind.UNMASKED: targets.mask is None, LossKind.UNSMOOTHED: not targets.label_smoothing}
        if lacking.get(loss):
            return None
        if loss == LossKind.SQUASHED:
            targets = targets.squashed()
        changes: Mapping[LossKind, Mapping[str, Any]] = {
            LossKind.OTHER_LOGITS: {"from_logits": not targets.from_logits},
            LossKind.UNSMOOTHED: {"label_smoothing": 0.0},
            LossKind.UNMASKED: {"mask": None},
            LossKind.BROADCAST: {"paired": False},
        }
        weight = targets.weight if sample_weights else None
        return value_of(replace(targets, weight=weight, **changes.get(loss, {})))

    def predict(self, recipe: Recipe) -> float | None:
        """The loss of a step with a recipe; None if it cannot be computed."""
        asked = recipe.loss, recipe.sample_weights
        if asked not in self._values:
            self._values[asked] = self._of_examples(*asked)
        data = self._values[asked]
        left_out = sum(self.penalties[i] for i in recipe.omitted)
        if data is None:
            return None
        of_examples = self._shared(recipe.share) if asked == (LossKind.GIVEN, True) else None
        if of_examples is None:
            of_examples = self.factor(recipe.share) * data
        return of_examples + recipe.regularization * (self.penalty - left_out)

    def _shared(self, share: Share) -> float | None:
        """The loss of the examples if each has a share, where that of each replica is known: their sizes may be unlike.

        Where they are, ``split`` has more examples on the first replicas, as ``tf.distribute`` does.
        """
        events, sizes = self.sides.right.of(self.sides.step, "loss"), self.split.sizes
        if [each.replica for each in events] != list(range(len(sizes))) or len(sizes) < 2 or not all(sizes):
            return None
        losses = (float(sum(map(np.sum, each.arrays[: each.info["targets"]]))) for each in events)
        own = [loss - self.penalty / len(sizes) for loss in losses]
        right, other = mean_of_means(self.split), share(self.split)
        return sum(loss * b / a for loss, a, b in zip(own, right, other, strict=True))


def with_own_predictions(sides: Sides) -> Sides | None:
    """The same with the loss that should have followed from the other side's own predictions.

    So a mistake in the loss is seen whatever predictions it was given. None if the right side's loss is not known, or
    if what is known of it does not give its value.
    """
    step, recorded = sides.step, RecordedLoss.of(sides)
    if recorded is None or recorded.targets is None:
        return None
    right, own = recorded.targets, _own_targets(sides, recorded.targets)
    explains = [value_of(each) for each in (right, right.with_other_logits())]
    agrees = [value is not None and same(value, recorded.data) for value in explains]
    if own is None or not any(agrees):
        return None
    taken = own if agrees[0] else own.with_other_logits()
    data, penalty, loss = value_of(taken), sides.other.penalty(step), sides.other.loss(step)
    if taken.from_logits and taken.are_probabilities:  # Keras finds the logits behind them
        right_as_given = data is not None and loss is not None and same(data + penalty, loss)
        if taken.kind != "binary_crossentropy" or not right_as_given:  # else logits may lie between 0 and 1 by chance
            data = value_of(taken.with_other_logits())
    if data is None:
        return None
    penalties = _own_losses(sides.other, step)
    info = sides.right.of(step, "targets")[0].info
    weights = [] if own.weight is None else [own.weight]
    events = [
        *(event for event in sides.other.steps[step] if event.kind in ("inputs", "layer", "predictions")),
        Event("targets", 0, {**info, "weights": len(weights)}, [own.true, own.predicted, *weights]),
        *([] if taken.mask is None else [Event("mask", 0, {}, [taken.mask])]),
        Event("loss", 0, {"targets": 1, "penalties": len(penalties)}, [np.asarray(data + penalty), *penalties]),
    ]
    foreseen = replace(sides.other, steps={**sides.other.steps, step: events})
    return replace(sides, close_ups=(foreseen, sides.other), foreseen=True)


def _own_targets(sides: Sides, right: Targets) -> Targets | None:
    """The right call of the loss function with the other side's labels and predictions; None if they are not known."""
    step, own = sides.step, targets_of(sides.other, sides.step)
    outputs = [np.asarray(each, np.float64) for each in sides.other.arrays(step, "predictions")]

    def fit(like: Targets) -> bool:
        """Whether the model's predictions have the shape of those that a loss was given, which may be made of them."""
        alike = {each.shape[1:] for each in outputs} == {like.predicted.shape[1:]}
        return alike and count_rows(outputs) == len(like.predicted)

    if sides.right.example_rows(step) == sides.other.example_rows(step):
        return replace(right, predicted=np.concatenate(outputs)) if fit(right) else None
    if own is None or (right.weight is not None and own.weight is None):
        return None
    predicted = np.concatenate(outputs) if fit(own) else own.predicted
    return replace(right, true=own.true, predicted=predicted, weight=own.weight)


def holds_elsewhere(sides: Sides, share: Share) -> bool:
    """Whether no other step that was seen contradicts that each example has this share of the other side's loss."""
    for step in sides.other.steps.keys() - {sides.step}:
        own = with_own_predictions(replace(sides, step=step))
        recorded, loss = RecordedLoss.of(own) if own else None, sides.other.loss(step)
        if recorded is None or loss is None:
            continue
        recipes = [Recipe(share=share, regularization=each) for each in (1.0, recorded.factor(share), 0.0)]
        if not any(same(loss, each) for each in map(recorded.predict, recipes) if each is not None):
            return False
    return True


def _own_losses(close_up: CloseUp, step: int) -> list[np.ndarray]:
    """The model's own losses, on the first replica."""
    first = [event for event in close_up.of(step, "loss") if event.replica == 0]
    return [array for event in first for array in event.arrays[event.info["targets"] :]]


def drawn_more_often(right: CloseUp, other: CloseUp, step: int) -> list[Measurement]:
    """The first layer that has drawn random numbers more often on one side before a step calls the model, if any."""
    calls = [each.model_events(step, "seeds")[:1] for each in (right, other)]
    for one, another in zip(*calls, strict=False):
        for name, a, b in zip(one.info["layers"], one.arrays, another.arrays, strict=False):
            if a.shape == b.shape and a[0] == b[0] and a[-1] != b[-1]:  # a seed, and how many times it has drawn
                return [Measurement.of("drawn-more-often", layer=name, times=int(b[-1]), other_times=int(a[-1]))]
    return []


# Gradients


def subtracted(close_up: CloseUp, step: int) -> float | None:
    """By what multiple of its gradients a step changes all variables, downwards; None if by different ones."""
    changes, gradients = close_up.changes(step), close_up.gradients(step)
    if not any(map(np.any, gradients.values())) or not gradients.keys() <= changes.keys():
        return None
    rate = multiple([-changes[i] for i in gradients], list(gradients.values()))
    if rate is None or any(relative_gap(changes[i], -rate * each) > A_RATE for i, each in gradients.items()):
        return None
    return rate


def scale_of(right: CloseUp, by_hand: CloseUp, step: int) -> float:
    """How often the loss of a loop without an optimizer is the right one, if the loop divides by that as it updates.

    That is the number of examples where it takes the gradient of a sum. Else it is 1: a sum is a mistake where the loop
    subtracts the same multiple of its gradients as the right side in the step where they part.
    """
    rate, other = (subtracted(each, step) for each in (right, by_hand))
    if step == 1 and rate is not None and other is not None and relative_gap(rate, other) <= A_RATE:
        return 1.0
    expected, own = (each.gradients(1, kind="sketch") for each in (right, by_hand))
    pairs = [(own[i], expected[i]) for i in own.keys() & expected.keys() if parallel(own[i], expected[i])]
    factor, examples = common_multiple(pairs), max(len(each.example_rows(1)) for each in (right, by_hand))
    return float(examples) if abs(factor - examples) <= PARALLEL * examples else 1.0


def clipping_of(trace: Trace) -> dict[str, float]:
    return {option: float(trace.config[option]) for option in OF_OPTION if trace.config.get(option)}
