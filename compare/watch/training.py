"""One training that is watched: its variables, and how many steps its optimizers have made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import Fingerprinter, container, copies_of, reader
from compare.engine.insides_keras import Variable
from compare.watch.trace import MADE_AFTER
from compare.watch.weights import strategy_of, value_of


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
