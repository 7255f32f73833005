"""The trainings of a watched process: which one an optimizer makes a step of, and what each begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import container
from compare.watch.initial_weights import InitialWeights, mark_of
from compare.watch.settings import Detail
from compare.watch.training import Training
from compare.watch.under_way import eagerly, is_tracing
from compare.watch.weights import seeds_of, value_of, weights_of


class Trainings(list[Training]):
    """All of them, by number.

    Attributes:
        fitted: the models whose ``fit`` was called, in order.
        updated: the ids of all variables that optimizers were given.
        further: what is trained beyond the largest number of trainings, by name.
    """

    def __init__(self, settings: Detail, initial: InitialWeights) -> None:
        super().__init__()
        self._settings, self._initial = settings, initial
        self.fitted: list[Any] = []
        self.updated: set[int] = set()
        self.further: list[str] = []

    def of_update(self, optimizer: Any, variables: Sequence[Any]) -> Training | None:
        """The training that an optimizer is about to make a step of."""
        updated = {id(container(variable)) for variable in variables}
        among = [each for each in self if not each.closed and updated <= each.ids]
        for training in among:
            if id(optimizer) in training.counts:
                training.updated |= updated
                return training
        if not updated:
            return None
        self.updated |= updated
        # Nothing has been computed yet while a graph is traced.
        return eagerly(lambda: self._joined(among[0] if among else None, optimizer, variables, updated))

    def _joined(
        self, training: Training | None, optimizer: Any, variables: Sequence[Any], updated: set[int]
    ) -> Training | None:
        """The training that goes on, or begins, with an optimizer."""
        if training is None:
            known = getattr(optimizer, "_trainable_variables", ())  # it may get some of them now, and others later
            all_given = updated <= {id(container(variable)) for variable in known}
            root, weights = self._weights_of(optimizer, known if all_given else variables)
            self._initial.use(weights, root, begin=is_tracing())
            training = self._continued(weights, root) or self._new(root, weights)
        if training is not None:
            training.join(optimizer, updated)
        return training

    def _new(self, root: Any, weights: Sequence[Any]) -> Training | None:
        if len(self) == self._settings.trainings:
            name = str(weights[0].name if root is None else root.name)
            self.further += [name] * (name not in self.further)
            return None
        training = Training(len(self), root, self._initial.place(root), weights)
        self._set_out(training)
        self.append(training)
        return training

    def begin_again(self, training: Training) -> None:
        """Ends a training whose weights were set back, and begins another one with the same variables."""
        training.closed = True
        again = self._new(training.root, training.variables)
        if again is not None:
            again.initial, again.alike = [value_of(each) for each in again.variables], True
            training.next = again
            for count in training.counts.values():
                again.join(count.optimizer, training.updated)

    def now(self, number: int) -> int:
        """The number of the training that a graph makes steps of, which was traced for a training."""
        training = self[number]
        while training.next is not None:
            training = training.next
        return training.number

    def _set_out(self, training: Training) -> None:
        """Keeps what a training begins with, as far as its variables have values."""
        # The step that is under way has not changed what it trains. It may have changed the state of layers, and so may
        # the first step of another training, before or after this one begins: that is taken as it was before both.
        trained = set().union(*(each.updated for each in self))
        training.initial = _values(
            training.variables, lambda each: not each.trainable and id(container(each)) not in trained
        )
        pairs = zip(training.variables, training.initial or (), strict=False)
        new = [(mark_of(each), now) for each, now in pairs if each.trainable and id(container(each)) not in trained]
        # Whether the script has changed what no training has trained yet, since gradients were first taken of it.
        training.changed_early = any(mark.used_first not in (None, hash(now.tobytes())) for mark, now in new)
        training.alike = self._initial.alike(training.variables)
        if training.initial is not None:
            self._initial.keep(training.variables, training.initial, training.root)

    def set_out_late(self, trainings: Sequence[Training]) -> None:
        """Keeps what trainings begin with whose variables had no values until now."""
        for training in trainings:
            self._initial.begin_late(training.variables, training.root)
            self._set_out(training)

    def _continued(self, weights: Sequence[Any], root: Any) -> Training | None:
        """The training that goes on with these variables, which begin with its weights."""
        shapes = [tuple(weight.shape) for weight in weights]
        for training in reversed(self):
            if not training.steps or training.closed or [tuple(each.shape) for each in training.variables] != shapes:
                continue
            # An eager loop has computed its predictions already, which may change the state of layers.
            now = _values(weights, lambda _: not is_tracing())
            pairs = zip(training.variables, now or (), strict=False)
            if all(np.array_equal(value_of(before), after) for before, after in pairs):
                training.take(weights)
                random = [
                    [value_of(seed) for seed in seeds_of(each)] for each in (training.root, root) if each is not None
                ]
                if len(random) == 2 and not all(map(np.array_equal, *random)):
                    training.reseeded.append(training.steps)
                return training
        return None

    def _weights_of(self, optimizer: Any, variables: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What an optimizer's variables are the weights of, and all of those weights.

        That is the model that ``fit`` trains with this optimizer; else the smallest model, or layer, that has them all,
        unless smaller ones have them together; else the ones that have some of them each, and nothing else to train.
        """
        wanted = [id(container(variable)) for variable in variables]
        fitted = [model for model in reversed(self.fitted) if getattr(model, "optimizer", None) is optimizer]
        roots = self._initial.smallest_first()
        has = {id(root): {id(container(weight)) for weight in weights_of(root)} for root in (*fitted, *roots)}
        trained = {id(root): {id(container(weight)) for weight in root.trainable_weights} for root in roots}
        weights: dict[int, Any] = {}
        parts = [root for root in reversed(roots) if has[id(root)] and trained[id(root)] <= set(wanted)]
        covered = set(wanted) <= set().union(*(has[id(part)] for part in parts))
        for root in (*fitted, *roots):
            # What has more to train than parts of it that are models of their own is trained by several optimizers.
            larger = root not in fitted and covered and not trained[id(root)] <= set(wanted)
            if set(wanted) <= has[id(root)] and not larger:
                return root, weights_of(root)
        for place, variable in zip(wanted, variables, strict=True):
            root = next((each for each in parts if place in has[id(each)]), None)
            for weight in [variable] if root is None else weights_of(root):
                weights.setdefault(id(container(weight)), weight)
        return None, list(weights.values())

    def of_model(self, model: Any) -> list[Training]:
        """The trainings of a model or of its parts, the model's own first."""
        weights = {id(container(weight)) for weight in weights_of(model)}
        parts = [each for each in self if not each.closed and each.ids & weights]
        return sorted(parts, key=lambda each: each.root is not model)

    def of_fit(self, model: Any) -> Training | None:
        """The training that ``fit`` of a model makes steps of: the model's own, or that of its first part."""
        return next(iter(self.of_model(model)), None)

    @property
    def now_trained(self) -> list[Training]:
        """Those that make steps now, since the last one has begun."""
        last = max((training.began for training in self), default=0)
        return [training for training in self if training.ended >= last]

    @property
    def second_began(self) -> bool:
        """Whether a training has begun after the first one had made its last step."""
        begun = [training for training in self if training.began]
        return any(training.began > begun[0].ended for training in begun)


def _values(weights: Sequence[Any], kept: Callable[[Any], bool]) -> list[np.ndarray] | None:
    """The values of weights, of some those that are kept of before the step under way; None if there are none."""
    try:
        known = [mark_of(each).value if kept(each) else None for each in weights]
        return [value_of(each) if value is None else value for each, value in zip(weights, known, strict=True)]
    except tf.errors.FailedPreconditionError:  # variables made in a graph that has not run yet
        return None
