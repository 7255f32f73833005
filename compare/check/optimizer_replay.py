"""What the optimizer made of the gradients it was handed, against what the experiment's would have made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.observation import Applied, Gradient, Rows
from compare.check.recipe import EPSILON, Update
from compare.check.replay import Replay
from compare.engine.fingerprints import distributed
from compare.engine.strategies import keras_version

KERAS_3 = keras_version().startswith("3")

Handed = list[list[Gradient]]
"""Gradients ``[replica][trainable variable]``."""


def simulate(
    replay: Replay, steps: Sequence[Applied], update: Update, handed: Sequence[Handed] | None = None
) -> list[np.ndarray]:
    """Apply an optimizer to the observed gradients, each step from the observed weights.

    An optimizer's slots live through all steps.

    Args:
        replay: lends its model's variables.
        steps: the observed steps.
        update: how.
        handed: other gradients than the observed ones.

    Returns:
        Per step float64 ``[replica, weights]``, the weights after it.
    """
    variables = replay.variables[: replay.trainable]
    # Each replica's copy lives through its own history where nothing ties the copies together.
    histories = replay.replicas if update.reduce == "own" else 1
    results: list[list[np.ndarray]] = [[] for _ in steps]
    rule = _rule(replay, update)
    for replica in range(histories):
        rule.begin()
        for i, step in enumerate(steps):
            for variable, value in zip(variables, step.state[replica], strict=False):
                variable.assign(value)
            if update.learning_rates is not None:
                rule.set_rate(update.learning_rates[min(i, len(update.learning_rates) - 1)])
            if update.iterations is not None:
                rule.optimizer.iterations.assign(update.iterations[i])
            given = step.gradients if handed is None else handed[i]
            total = _total(given, update, rule.clipped, replica)
            present = [k for k, gradient in enumerate(total) if gradient is not None and k not in update.untrained]
            if present:
                rule.apply([total[k] for k in present], [variables[k] for k in present])
            after = replay.flat([variable.numpy() for variable in variables])
            results[i].append(after)
    return [np.stack(each if histories > 1 else each * replay.replicas) for each in results]


class Rule:
    """An optimizer without its clipping, which can begin anew.

    Args:
        optimizer: built for the variables.
        traced: whether its steps are traced once, rather than run operation by operation.
        rates: whether its learning rate is to be set.
    """

    def __init__(self, optimizer: Any, *, traced: bool, rates: bool) -> None:
        self.optimizer = optimizer
        self._clip = _clipping(optimizer)
        optimizer.clipnorm = optimizer.clipvalue = optimizer.global_clipnorm = None
        self._variables = [distributed(v) for v in _variables(optimizer)]
        self._initial = [v.numpy() for v in self._variables]
        if rates and KERAS_3:
            self._rate = tf.Variable(0.0)
            # In Keras 3 a function is the one kind of rate that every optimizer takes, with a schedule or without.
            optimizer.learning_rate = self._rate.read_value
        self._traced = traced
        self._steps: dict[tuple[int, ...], Any] = {}

    def begin(self) -> None:
        """Forget all steps."""
        for variable, value in zip(self._variables, self._initial, strict=True):
            variable.assign(value)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        if KERAS_3:
            self._rate.assign(rate)
        else:
            self.optimizer.learning_rate = rate

    def clipped(self, gradients: Sequence[Any]) -> list[Any]:
        """What the optimizer's own clipping makes of gradients, sparse ones included."""
        return _clipped(self.optimizer, self._clip, gradients)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Make a step."""
        if not self._traced:
            self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            return
        which = tuple(map(id, variables))  # as arguments of a tf.function they would come as mere tensors
        if which not in self._steps:
            self._steps[which] = tf.function(lambda given: self.optimizer.apply(given, list(variables)))
        self._steps[which](list(gradients))


MANY = 30
"""From so many variables on, the experiment's own optimizer is traced: once takes as long as a few steps without."""


def _rule(replay: Replay, update: Update) -> Rule:
    variables = replay.variables[: replay.trainable]
    rates = update.learning_rates is not None
    own = update.optimizer is None and not update.overrides and KERAS_3
    if not own or len(variables) < MANY:
        return Rule(_built(replay, update, variables), traced=False, rates=rates)
    if rates not in replay.rules:
        replay.rules[rates] = Rule(_built(replay, update, variables), traced=True, rates=rates)
    return replay.rules[rates]  # type: ignore[no-any-return]


def _variables(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def through_clipping(
    replay: Replay, update: Update, steps: Sequence[Applied], handed: Sequence[Handed] | None = None
) -> list[list[Any]]:
    """Per step ``[trainable variable]``: what an optimizer works with once it has clipped what it was handed."""
    rule = _rule(replay, update)
    given = [step.gradients for step in steps] if handed is None else handed
    totals = [_total(each, update, rule.clipped, 0) for each in given]
    return [[None if g is None else tf.convert_to_tensor(g).numpy() for g in total] for total in totals]


def observed(replay: Replay, step: Applied) -> np.ndarray | None:
    """float64 ``[replica, weights]``: the weights after a step; None if they were never seen."""
    if step.after is None:
        return None
    return np.stack([replay.flat(state[: replay.trainable]) for state in step.after])


def residuals(replay: Replay, steps: Sequence[Applied], predicted: Sequence[np.ndarray]) -> list[float]:
    """How much of each step's change of weights is not as predicted, relative to that change.

    What the weights' own last place hides is left out of account: 0 if that is all of the change.
    """
    result = []
    for step, after in zip(steps, predicted, strict=True):
        seen = observed(replay, step)
        if seen is None:
            continue
        before = np.stack([replay.flat(state[: replay.trainable]) for state in step.state])
        moved = max(np.linalg.norm(after - before), np.linalg.norm(seen - before))
        hidden = 4 * EPSILON * np.linalg.norm(before)
        if not np.isfinite(moved):
            result.append(np.inf)
        elif moved <= 16 * hidden and moved < 1e-3:
            result.append(0.0 if np.linalg.norm(after - seen) <= hidden else 1.0)
        else:
            result.append(max(0.0, float(np.linalg.norm(after - seen) - hidden)) / float(moved))
    return result


def twin(replay: Replay, steps: Sequence[Applied], update: Update) -> list[float]:
    """How far gradients whose elements are off by their last place move the update: the noise floor of ``residuals``.

    Args:
        replay: lends its model's variables.
        steps: the observed steps.
        update: how weights come from gradients.
    """
    generator = np.random.default_rng(0)

    def nudged(gradient: Gradient) -> Gradient:
        if gradient is None:
            return None
        if isinstance(gradient, Rows):
            values = nudged(gradient.values)
            assert isinstance(values, np.ndarray)
            return Rows(gradient.indices, values, gradient.shape)
        size = EPSILON * np.abs(gradient)
        return np.asarray(gradient + size * generator.normal(size=gradient.shape), gradient.dtype)

    handed = [[[nudged(each) for each in replica] for replica in step.gradients] for step in steps]
    exact, off = simulate(replay, steps, update), simulate(replay, steps, update, handed)
    result = []
    for step, a, b in zip(steps, exact, off, strict=True):
        before = np.stack([replay.flat(state[: replay.trainable]) for state in step.state])
        result.append(float(np.linalg.norm(a - b) / (np.linalg.norm(a - before) or 1.0)))
    return result


def _built(replay: Replay, update: Update, variables: Sequence[Any]) -> Any:
    if update.optimizer is None:
        optimizer = replay.experiment.build_optimizer()
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # what scales losses has one that updates
    if update.optimizer is not None or (update.learning_rates and not KERAS_3):
        cls, config = update.optimizer or (type(optimizer), optimizer.get_config())
        # In Keras 2 the rate of an optimizer with a schedule cannot be set.
        fixed = {} if KERAS_3 or not update.learning_rates else {"learning_rate": update.learning_rates[0]}
        optimizer = cls.from_config({**config, **fixed})
    for name, value in update.overrides.items():
        setattr(optimizer, name, value)
    optimizer.build(list(variables))
    return optimizer


Clipping = tuple[str, float] | None


def _clipping(optimizer: Any) -> Clipping:
    for kind in ("clipnorm", "clipvalue", "global_clipnorm"):
        if (limit := getattr(optimizer, kind, None)) is not None and limit > 0:
            return kind, float(limit)
    return None


def _clipped(optimizer: Any, clip: Clipping, gradients: Sequence[Any]) -> list[Any]:
    """What the optimizer's own clipping makes of gradients, sparse ones included."""
    if clip is None:
        return list(gradients)
    kind, limit = clip
    setattr(optimizer, kind, limit)
    clipped = optimizer._clip_gradients(list(gradients))
    setattr(optimizer, kind, None)
    return list(clipped)


def _total(handed: Handed, update: Update, clip: Callable[[Sequence[Any]], list[Any]], replica: int) -> list[Any]:
    """What one replica's optimizer works with in the end."""
    tensors = [[_tensor(gradient) for gradient in each] for each in handed]
    if update.clip == "handed":
        tensors = [clip(each) for each in tensors]
    if update.reduce == "own":
        total = tensors[replica]
    elif update.reduce == "first":
        total = tensors[0]
    else:
        total = [_sum([each[k] for each in tensors]) for k in range(len(tensors[0]))]
    return clip(total) if update.clip == "reduced" else total


def _tensor(gradient: Gradient) -> Any:
    if isinstance(gradient, Rows):
        shape = tf.constant(gradient.shape, tf.int64)
        return tf.IndexedSlices(tf.constant(gradient.values), tf.constant(gradient.indices), shape)
    return None if gradient is None else tf.constant(gradient)


def _sum(gradients: Sequence[Any]) -> Any:
    known = [g for g in gradients if g is not None]
    if len(known) > 1 and all(isinstance(g, tf.IndexedSlices) for g in known):
        values, indices = tf.concat([g.values for g in known], 0), tf.concat([g.indices for g in known], 0)
        return tf.IndexedSlices(values, indices, known[0].dense_shape)
    return known[0] if len(known) == 1 else tf.add_n([tf.convert_to_tensor(g) for g in known]) if known else None
