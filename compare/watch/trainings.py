"""The trainings of a process: their variables, how many steps they make, and which one an optimizer makes a step of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import Fingerprinter, container, copies_of, reader
from compare.engine.insides_keras import Variable
from compare.watch.initial_weights import InitialWeights, mark_of
from compare.watch.settings import Detail
from compare.watch.trace import MADE_AFTER
from compare.watch.under_way import eagerly, is_tracing
from compare.watch.weights import seeds_of, strategy_of, value_of, weights_of


class Count:
    """The steps of one optimizer since it was first seen, also if its ``iterations`` are set back.

    Attributes:
        times: how often a step in a graph applies it, each time to other variables.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.times = optimizer, 1
        self._variable: Any = None
        self._read: Callable[[], list[np.ndarray]] = list
        self.begun = self._at = self.iterations()
        self._made = 0

    def iterations(self) -> int:
        """What the optimizer counts; read as weights are, since a variable itself takes a tenth of a step to ask."""
        iterations = self.optimizer.iterations
        if not isinstance(iterations, tf.Variable | Variable):  # a tensor, of one that accumulates gradients
            return int(iterations.numpy())
        if iterations is not self._variable:
            self._variable = iterations
            self._read = reader([copies_of(strategy_of([iterations]), [iterations])[0][0]])
        value = self._read()[0]
        return int(value) if np.size(value) else 0  # none yet, where it is made in a graph that is being traced

    def made(self) -> int:
        """The number of steps so far."""
        now = self.iterations()
        self._made += now - self._at if now >= self._at else now
        self._at = now
        return self._made // self.times

    def set_back(self) -> None:
        """Counts no step for what ``iterations`` were set back to, as by ``load_weights``."""
        self._at = min(self._at, self.iterations())

    def leave_out(self) -> bool:
        """Counts no step for what ``iterations`` were increased by since the last call of ``made``, if they were."""
        before, self._at = self._at, self.iterations()
        return self._at > before


class ByHand:
    """Stands for the optimizer of a script that has none, but changes its weights itself by their gradients.

    Attributes:
        learning_rate: not known.
    """

    learning_rate = 0.0

    def __init__(self) -> None:
        self.iterations = tf.Variable(0, trainable=False, dtype=tf.int64)

    def get_config(self) -> dict[str, Any]:
        return {}


class Training:
    """One training: variables that optimizers update over a stretch of steps. A model only names it.

    It goes on with another optimizer, and with other variables that begin with its weights, as after ``load_model``. It
    ends when the script sets its weights back to what they were: then another one begins. What a ``Trace`` has of it by
    the same name (``OF_TRAINING``) is told there.

    Attributes:
        root: the model or layer that it is named by; None if there is none.
        variables: the variables that are compared: all weights of the models, or else what the optimizer updates.
        initial: their values before the first step; None if they were not seen.
        over: whether it has made more steps than are recorded.
        counts: the optimizers that make its steps now, by their id.
        described: the optimizers that are in the trace.
        fingerprint: computes the fingerprints; None before the first step.
        move: moves the weights, for a noise twin.
        touched: whether the script has set one of its variables since the last step.
        adjusted: whether it did after an earlier step.
        next: the training of the same variables that has begun then.
        last: the fingerprint of the weights after the last step.
        now: the same, or that of the weights which a noise twin goes on with.
        left: the number of steps when ``fit`` or the optimizer last ended the training, and the fingerprint then.
    """

    state, of = "", -1

    def __init__(self, number: int, root: Any, created: int, variables: Sequence[Any]) -> None:
        self.number, self.root, self.created = number, root, created
        self.initial: list[np.ndarray] | None = None
        self.alike, self.changed_early, self.eager = True, False, False
        self.steps = self._before = 0
        self.over = self.touched = self.adjusted = self.closed = False
        self.counts: dict[int, Count] = {}
        self.parts: list[tuple[int, int]] = []
        self.reseeded: list[int] = []
        self.empty: list[int] = []
        self._earlier: dict[int, Count] = {}
        self.described: list[Any] = []
        self.began = self.ended = 0
        self.last: tuple[np.ndarray, np.ndarray] | None = None
        self.now: tuple[np.ndarray, np.ndarray] | None = None
        self.untaped: tuple[str, int, str] | None = None
        self.left: tuple[int, Any] = 0, None
        self.next: Training | None = None
        self.updated: set[int] = set()
        self.take(variables)

    def take(self, variables: Sequence[Any]) -> None:
        """Goes on with other variables of the same shapes."""
        self.variables = list(variables)
        self.ids = {id(container(variable)) for variable in variables}
        self.fingerprint: Fingerprinter | None = None
        self.move: Any = None
        self.updated.clear()

    def fingerprinter(self) -> Fingerprinter:
        """What computes the fingerprints of its variables."""
        return Fingerprinter(strategy_of(self.variables), self.variables)

    @property
    def name(self) -> str:
        return "" if self.root is None else str(self.root.name)

    @property
    def trained(self) -> list[int]:
        """The numbers of the variables that optimizers update."""
        return [i for i, variable in enumerate(self.variables) if id(container(variable)) in self.updated]

    def made(self) -> int:
        """The number of steps so far; optimizers that take turns make their part of the same steps."""
        return self._before + max((count.made() for count in self.counts.values()), default=0)

    def join(self, optimizer: Any, updated: set[int]) -> None:
        """Adds an optimizer: one that takes part in the same steps, or takes the place of those before."""
        again, self.updated = updated & self.updated, self.updated | updated
        if id(optimizer) in self.counts:
            return
        count = Count(optimizer)
        first, anew = not self.counts, again and getattr(optimizer, MADE_AFTER, -1) >= self.ended > 0
        # An eager loop applies one after the other, unless it makes one for each step.
        together = self.steps - self._before <= 1 and not (first or anew)
        if first or not (together or id(optimizer) in self._earlier):
            self._earlier |= self.counts
            self.counts, self._before = {}, self.steps
            if self.steps:
                self.parts.append((self.steps, count.begun))
        self.counts[id(optimizer)] = count

    def is_unchanged(self) -> bool:
        """Whether its weights are those that its last step has left."""
        if self.fingerprint is None or self.now is None:
            return False
        return np.array_equal(self.fingerprint()[0], self.now[0])

    def leave_out(self) -> None:
        """Leaves out the step that its optimizers have counted since, if any: it has changed no weights."""
        counted = [count.leave_out() for count in self.counts.values()]
        if any(counted):
            self.empty.append(self.steps)

    def is_reset(self) -> bool:
        """Whether all that is trained has its initial value again, which the last step had changed."""
        if self.initial is None or self.fingerprint is None or self.last is None:
            return False
        copies = [[value] * self.fingerprint.replicas for value in self.initial]
        if np.array_equal(self.fingerprint.of(copies)[0][self.trained], self.last[0][self.trained]):
            return False
        pairs = zip(self.variables, self.initial, strict=True)
        return all(
            np.array_equal(value_of(variable), value)
            for variable, value in pairs
            if id(container(variable)) in self.updated
        )


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
