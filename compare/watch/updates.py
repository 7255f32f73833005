"""Sees every update of weights: by an optimizer, whoever has written its methods, or by the script's own hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from compare.engine.fingerprints import container
from compare.engine.insides_keras import APPLICATIONS, BaseOptimizer, Variable, is_keras
from compare.engine.insides_tensorflow import ResourceVariable, UninitializedVariable, called_as_it_is
from compare.engine.keras_generation import learning_rate, without_loss_scale
from compare.patching import patch
from compare.watch.alike import RandomNumbers
from compare.watch.initial_weights import InitialWeights
from compare.watch.settings import Detail
from compare.watch.trace import MADE_AFTER, MADE_AT, MADE_WITH, SET_AT
from compare.watch.trainings import ByHand, Training, Trainings
from compare.watch.under_way import Here, eagerly, is_replica

CHANGE = "assign", "assign_add", "assign_sub", "_strided_slice_assign"
ASSIGNMENTS = [(owner, name) for owner in (ResourceVariable, UninitializedVariable) for name in CHANGE]
"""The methods that change a variable; one that is made while a graph is traced is of another class."""
T = TypeVar("T")


class Steps(Protocol):
    """What an update is a part of: ``Observer``, which says what each of these is."""

    settings: Detail
    initial: InitialWeights
    trainings: Trainings
    moment: int

    @property
    def outermost(self) -> bool: ...

    def line(self) -> tuple[str, int, str] | None: ...

    def begin_update(self, optimizer: Any, grads: list[Any], variables: list[Any]) -> Training | None: ...

    def end_update(self, training: Training | None, *, accumulates: bool = False) -> None: ...


class Updates:
    """Tells when an update begins and ends.

    Attributes:
        taken_at: the script's line that has taken gradients first, if it had made an optimizer.
        assigned: whether the script has then changed any variable that it had taken gradients of.
        on_update: called with optimizer, gradients and variables before every update that a method of Keras's own
            makes, also of an optimizer that belongs to no training.
    """

    def __init__(self, steps: Steps, here: Here, random: RandomNumbers) -> None:
        self._steps, self._here, self._random = steps, here, random
        self._optimizers: set[type] = set()
        self._has_optimizers = False
        self._by_hand: dict[frozenset[int], ByHand] = {}
        self._giving: dict[int, tuple[Any, Mapping[int, Any], Sequence[Any]]] = {}
        self.taken_at: tuple[str, int, str] | None = None
        self.assigned = False
        self._with_gradients: set[int] = set()
        self.on_update: Callable[[Any, list[Any], list[Any]], None] = lambda *given: None
        patch(BaseOptimizer, "__init__", self._make_optimizer)
        for owner, name in APPLICATIONS:
            patch(owner, name, self._apply if name == "apply" else self._apply_pairs)
        for owner, name in ASSIGNMENTS:
            patch(owner, name, self._assign)

    def _make_optimizer(self, original: Any, optimizer: Any, *args: Any, **options: Any) -> None:
        """Watches methods that a script's own optimizers have instead of Keras's, which they may not call."""
        new = {cls for cls in type(optimizer).__mro__ if not is_keras(cls)} - self._optimizers
        self._optimizers |= new
        self._has_optimizers = not self._steps.settings.by_hand
        for cls in new:
            for name, watch in (("apply", self._apply), ("apply_gradients", self._apply_pairs)):
                if name in vars(cls):
                    patch(cls, name, watch)
        original(optimizer, *args, **options)
        object.__setattr__(optimizer, MADE_AT, self._steps.line())
        object.__setattr__(optimizer, MADE_AFTER, self._steps.moment)
        with suppress(Exception):  # made where a graph is traced, say
            object.__setattr__(optimizer, MADE_WITH, float(learning_rate(optimizer)))

    @called_as_it_is
    def _apply_pairs(self, original: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
        call, (pairs, *_) = _with_lists(original, optimizer, args, options)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        inner = without_loss_scale(optimizer)
        if is_keras(original) and inner is optimizer and isinstance(optimizer, BaseOptimizer):
            self.on_update(optimizer, grads, variables)
        return self._applied(call, inner, grads, variables)

    @called_as_it_is
    def _apply(self, original: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
        options = dict(sorted(options.items(), key=lambda named: named[0] != "grads"))
        call, (grads, *others) = _with_lists(original, optimizer, args, options)
        variables = others[0] if others and others[0] is not None else optimizer._trainable_variables
        if is_keras(original):
            self.on_update(optimizer, list(grads), list(variables))
        return self._applied(call, optimizer, list(grads), list(variables))

    def gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """Keeps what a loss depends on, and the gradients: a script without optimizers changes it by hand."""
        if self._has_optimizers:
            self.taken_at = self.taken_at or self._steps.line()
            self._with_gradients.update(id(container(each)) for each in tf.nest.flatten(sources))
            return original(tape, target, sources, *args, **options)
        watched = () if self._here.by_hand is not None else tape.watched_variables()
        gradients = original(tape, target, sources, *args, **options)
        given = zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=False)
        pairs = [*((None, each) for each in watched), *self._here.taken.values(), *given]
        known = [pair for pair in pairs if isinstance(pair[1], tf.Variable | Variable)]
        self._here.taken = {id(container(each)): (gradient, each) for gradient, each in known}
        own = [each for each in tf.nest.flatten(sources) if isinstance(each, tf.Variable | Variable)]
        self._here.asked = () if tf.executing_eagerly() else own
        return gradients

    def called(self, function: Any, result: Any) -> None:
        """Takes the gradients that a graph gives its caller, who may change the variables by them, for taken now.

        They are known as they are traced, and found in what each call gives by their shapes.
        """
        here = self._here
        if here.asked and here.by_hand is None:
            unknown = {place: (None, variable) for place, (_, variable) in here.taken.items()}
            self._giving[id(function)] = function, unknown, here.asked
        here.asked = ()
        if id(function) in self._giving:
            _, without, asked = self._giving[id(function)]
            given, shapes = tf.nest.flatten(result), [tuple(each.shape) for each in asked]
            of_all = [tuple(getattr(each, "shape", ())) for each in given]
            begin = next((i for i in range(len(given)) if of_all[i : i + len(asked)] == shapes), len(given))
            gradients = zip(asked, given[begin:], strict=False)
            found = {id(container(each)): (gradient, each) for each, gradient in gradients}
            here.taken, here.by_hand = {**without, **found} if found else {}, None

    def _assign(self, original: Any, variable: Any, *args: Any, **options: Any) -> Any:
        """Sees a step by hand: the script changes the variables that it has just taken gradients of.

        One that has optimizers may do so beside their steps, as SAM does, so that only theirs are seen.
        """
        here, place = self._here, id(container(variable))
        if "learning_rate" in variable.name:
            setattr(variable, SET_AT, self._steps.line())
        self.assigned |= place in self._with_gradients and not self._steps.initial.aside
        if self._has_optimizers or place not in here.taken or self._steps.initial.aside or is_replica():
            if not self._steps.initial.aside and variable.trainable and tf.executing_eagerly():
                self._steps.initial.assigned(container(variable))
                for training in self._steps.trainings:
                    training.touched |= place in training.updated
            return original(variable, *args, **options)
        by_hand = None
        if here.by_hand is None:
            gradients, variables = map(list, zip(*here.taken.values(), strict=True))
            if (key := frozenset(here.taken)) not in self._by_hand:
                self._by_hand[key] = eagerly(ByHand)
            by_hand = self._by_hand[key]
            here.by_hand = self._steps.begin_update(by_hand, gradients, variables)
        with self._steps.initial.aside:
            if by_hand is not None:
                by_hand.iterations.assign_add(1)
                self._random.updated()
            result = original(variable, *args, **options)
        here.taken = {other: pair for other, pair in here.taken.items() if other != place}
        self._steps.end_update(here.by_hand)
        return result

    def _applied(self, call: Callable[[], Any], optimizer: Any, grads: list[Any], variables: list[Any]) -> Any:
        """Applies an optimizer, whoever has written its method, which may have parameters of any names."""
        if self._here.applying:  # a LossScaleOptimizer applies with the optimizer that it wraps
            return call()
        training = self._steps.begin_update(optimizer, grads, variables)
        with self._here.set(applying=True), self._steps.initial.aside:
            result = call()
            self._random.updated()
        if training is not None:
            self._join_parts(training, optimizer, variables)
        self._steps.end_update(training, accumulates=bool(getattr(optimizer, "gradient_accumulation_steps", None)))
        return result

    def _join_parts(self, training: Training, optimizer: Any, variables: Sequence[Any]) -> None:
        """Takes for one step what an optimizer does to some variables, and then to others, by the same gradients."""
        given = frozenset(id(container(variable)) for variable in variables)
        parts = self._here.applied.get(id(optimizer), ())
        parts = [given] if any(given & part for part in parts) else [*parts, given]
        self._here.applied = {**self._here.applied, id(optimizer): parts}
        if self._steps.outermost and len(parts) > 1:
            training.counts[id(optimizer)].leave_out()
        elif not self._steps.outermost:
            training.counts[id(optimizer)].times = len(parts)


def _with_lists(
    original: Callable[..., T], optimizer: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Callable[[], T], list[Any]]:
    """A call of an optimizer's method, whatever its parameters are called, and what is given for them, in order.

    What can be read only once, such as a ``zip``, is a list in both.
    """
    if not is_keras(original):
        autograph = tf.__internal__.autograph
        original = autograph.tf_convert(original, autograph.control_status_ctx())
    values = [list(value) if isinstance(value, Iterator) else value for value in (*args, *options.values())]
    named = dict(zip(options, values[len(args) :], strict=True))
    return partial(original, optimizer, *values[: len(args)], **named), values
