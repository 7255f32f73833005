"""What a script has beside its trainings: models that no optimizer trains, and what trainings leave at its end."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.watch.initial_weights import InitialWeights, mark_of
from compare.watch.trace import APART, INSIDE, LEFT
from compare.watch.trace_writer import TraceWriter
from compare.watch.trainings import Training, Trainings
from compare.watch.weights import value_of, weights_of


class Beside:
    """What a script may change by hand, such as an average of another model's weights."""

    def __init__(self, initial: InitialWeights) -> None:
        self._initial = initial
        self._models: list[tuple[Callable[[], Any], list[np.ndarray | None]]] = []

    def keep(self) -> None:
        """Keeps what all models, and the script's own variables, have before its first step."""
        for root in self._initial.smallest_first():
            self._models.append((weakref.ref(root), [mark_of(each).value for each in weights_of(root)]))
        for variable in self._initial.variables():  # which a function of the script's may be the last to have
            self._models.append((partial(_same, variable), [mark_of(variable).value]))

    def write(self, writer: TraceWriter, trainings: Trainings) -> None:
        """Writes, when the script has ended, what trainings leave, and the models that no optimizer has trained."""
        known, numbers = set(trainings.updated), itertools.count(len(trainings))
        for training in [each for each in trainings if each.fingerprint and not (each.over or each.closed)]:
            assert training.fingerprint is not None and training.last is not None
            state = Training(next(numbers), training.root, training.created, training.variables)
            state.state, state.of = LEFT, training.number
            writer.begin(state, training.fingerprint, "loop")
            content = writer.content(training.number)
            writer.content(state.number).update(optimizers=content["optimizers"], fit=content["fit"])
            left = training.left[1] if training.left[0] == training.steps else training.last
            moments = (0, training.last), (training.steps, left), (training.steps + 1, training.fingerprint())
            for step, weights in moments:
                writer.step(state.number, step, *weights)
        steps = max((each.steps for each in trainings), default=0)
        for reference, values in self._models:
            root = reference()
            if root is None:
                continue
            state = Training(next(numbers), root, self._initial.place(root), weights_of(root))
            initial = [value for value in values if value is not None]
            if not state.ids or state.ids & known or len(initial) != len(state.variables):
                continue
            if isinstance(root, tf.Variable) and not np.array_equal(value_of(root), initial[0]):
                continue  # such as a sum over steps
            known |= state.ids
            state.state = INSIDE if any(state.ids <= each.ids for each in trainings) else APART
            state.initial, fingerprint = initial, state.fingerprinter()
            writer.begin(state, fingerprint, "loop")
            writer.step(state.number, steps, *fingerprint())


def _same(root: Any) -> Any:
    return root
