"""Simulates optimizers on observed gradients and compares the resulting weights with the observed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from compare.check.observation import Gradient, OptimizerStep, Rows, State
from compare.check.recipe import EPSILON, Recipe, Span, Update
from compare.check.replay import Replay
from compare.check.weight_gaps import Segment, Weights, by_variable
from compare.engine.fingerprints import distributed
from compare.engine.insides_tensorflow import own_graph
from compare.engine.keras_generation import HAS_APPLY, settable_rate
from compare.watch.trace import CLIPPING, EXCLUDED

ReplicaGradients = list[list[Gradient]]
"""Gradients ``[replica][trainable variable]``."""


def simulate(
    replay: Replay, steps: Sequence[OptimizerStep], update: Update, gradients: Sequence[ReplicaGradients] | None = None
) -> list[np.ndarray]:
    """Applies an optimizer to the observed gradients, each step from the observed weights.

    The optimizer's slots are kept over all steps.

    Args:
        gradients: gradients to use instead of the observed ones, one item per step.

    Returns:
        The weights after each step: float64 ``[replica, weights]``.
    """
    variables = replay.variables[: replay.trainable]
    # If gradients are not reduced, each replica's copy of the weights has its own history.
    histories = replay.replicas if update.reduce == "own" else 1
    results: list[list[np.ndarray]] = [[] for _ in steps]
    for variable, value in zip(variables, steps[0].state[0] if steps else (), strict=False):
        variable.assign(value)  # an optimizer's slots may begin at the weights
    optimizer = _optimizer(replay, update)
    for replica in range(histories):
        optimizer.reset()
        for i, step in enumerate(steps):
            if i in update.restarts:
                optimizer.reset()
            if update.since and i == update.since:
                for name, changed in update.overrides.items():  # never of an optimizer that is traced
                    setattr(optimizer.optimizer, name, changed)
            for variable, value in zip(variables, step.state[replica], strict=False):
                variable.assign(value)
            if update.learning_rates is not None:
                optimizer.rate.assign(update.learning_rates[min(i, len(update.learning_rates) - 1)])
            if update.iterations is not None:
                optimizer.optimizer.iterations.assign(update.iterations[i])
            given = step.gradients if gradients is None else gradients[i]
            total = _total(given, update, optimizer.clipped, replica)
            present = [k for k, gradient in enumerate(total) if gradient is not None and k not in update.untrained]
            for group in update.groups or ([present] if present else []):
                chosen = [k for k in present if k in group]
                for _ in range(update.times):
                    optimizer.apply([total[k] for k in chosen], [variables[k] for k in chosen])
            after = replay.flatten([variable.numpy() for variable in variables])
            results[i].append(after)
    return [np.stack(copies if histories > 1 else copies * replay.replicas) for copies in results]


def replay_segments(
    replay: Replay, known: Sequence[Segment], recipe: Recipe, update: Update, nudge: int = 0
) -> Iterator[Weights]:
    """Yields the variables after each segment, from recomputed gradients."""
    if all(len(segment.spans) == 1 for segment in known):
        steps = [segment.start for segment in known]
        gradients = [replay.typed_gradients(each.start, each.spans[0], recipe, nudge) for each in known]
        for segment, after in zip(known, simulate(replay, steps, update, gradients), strict=True):
            forward = _forward(replay, segment.start, segment.spans[0], recipe, nudge)
            pairs = zip(after, forward, strict=True)
            yield by_variable([[*replay.unflatten(flat), *rest[replay.trainable :]] for flat, rest in pairs])
        return
    steps_so_far: list[OptimizerStep] = []
    gradients_so_far: list[ReplicaGradients] = []
    for segment in known:
        state = segment.before
        for span in segment.spans:
            step = OptimizerStep(span.epoch, [], state, state)
            steps_so_far.append(step)
            gradients_so_far.append(replay.typed_gradients(step, span, recipe, nudge))
            # All steps so far are repeated, since the optimizer's slots depend on them.
            after = simulate(replay, steps_so_far, update, gradients_so_far)[-1]
            forward = _forward(replay, step, span, recipe, nudge)
            state = [
                [part.astype(v.dtype) for part, v in zip(replay.unflatten(flat), step.state[0], strict=False)]
                + forward[replica][replay.trainable :]
                for replica, flat in enumerate(after)
            ]
        yield by_variable(state)


def _forward(replay: Replay, step: OptimizerStep, span: Span, recipe: Recipe, nudge: int) -> State:
    """All variables of each replica after the forward pass."""
    return [
        step.before[replica]
        if part.start == part.stop
        else replay.replica_pass(step, replica, part, recipe, nudge).state
        for replica, part in enumerate(replay.parts(span))
    ]


class UnclippedOptimizer:
    """An optimizer whose clipping is separate from its updates, and which can be reset.

    Args:
        optimizer: a Keras optimizer that is built for the variables.
        traced: whether steps are traced once, rather than run eagerly.
        rates: whether its ``rate`` will be set.
    """

    def __init__(self, optimizer: Any, *, traced: bool, rates: bool) -> None:
        self.optimizer = optimizer
        limits = ((kind, float(getattr(optimizer, kind, None) or 0.0)) for kind in CLIPPING)
        self._clip = next((each for each in limits if each[1] > 0), None)
        for kind in CLIPPING:
            setattr(optimizer, kind, None)
        self._variables = [distributed(v) for v in optimizer.variables]
        self._initial = [v.numpy() for v in self._variables]
        if rates:
            self.rate = settable_rate(optimizer)
        self._traced = traced
        self._steps: dict[tuple[int, ...], Any] = {}

    def reset(self) -> None:
        """Restores the state before the first step."""
        for variable, value in zip(self._variables, self._initial, strict=True):
            variable.assign(value)

    def clipped(self, gradients: Sequence[Any]) -> list[Any]:
        """Applies the optimizer's own clipping to dense or sparse gradients."""
        if self._clip is None:
            return list(gradients)
        kind, limit = self._clip
        setattr(self.optimizer, kind, limit)
        clipped = self.optimizer._clip_gradients(list(gradients))
        setattr(self.optimizer, kind, None)
        return list(clipped)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if not self._traced:
            self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            return
        key = tuple(map(id, variables))  # a tf.function would receive variables passed as arguments as plain tensors
        if key not in self._steps:
            self._steps[key] = own_graph(lambda given: self.optimizer.apply(given, list(variables)))
        self._steps[key](list(gradients))


MIN_TRACED_VARIABLES = 30
"""The experiment's own optimizer is traced from this number of variables on, where tracing pays off in a few steps."""


def _optimizer(replay: Replay, update: Update) -> UnclippedOptimizer:
    """Builds the optimizer of an update, or returns a traced one that was built before."""
    variables = replay.variables[: replay.trainable]
    rates = update.learning_rates is not None
    own = update.optimizer is None and not update.overrides and not update.formula and HAS_APPLY
    if not own or len(variables) < MIN_TRACED_VARIABLES:
        return UnclippedOptimizer(_built(replay, update, variables), traced=False, rates=rates)
    if rates not in replay.optimizers:
        replay.optimizers[rates] = UnclippedOptimizer(_built(replay, update, variables), traced=True, rates=rates)
    return replay.optimizers[rates]  # type: ignore[no-any-return]


def clipped_gradients(
    replay: Replay, update: Update, steps: Sequence[OptimizerStep], gradients: Sequence[ReplicaGradients] | None = None
) -> list[list[Any]]:
    """Returns the gradients after the optimizer's clipping and reduction: ``[step][trainable variable]``.

    The arguments are those of ``simulate``.
    """
    optimizer = _optimizer(replay, update)
    given = [step.gradients for step in steps] if gradients is None else gradients
    totals = [_total(of_step, update, optimizer.clipped, 0) for of_step in given]
    return [[None if g is None else tf.convert_to_tensor(g).numpy() for g in total] for total in totals]


def _stacked(replay: Replay, state: State) -> np.ndarray:
    """The trained weights of a state: float64 ``[replica, weights]``."""
    return np.stack([replay.flatten(of_replica[: replay.trainable]) for of_replica in state])


def residuals(replay: Replay, steps: Sequence[OptimizerStep], predicted: Sequence[np.ndarray]) -> list[float]:
    """Returns the difference between observed and predicted weights after each step, relative to the step's change.

    The resolution of float32 weights is subtracted; if the whole change is within it, the residual is 0.
    """
    result = []
    for step, after in zip(steps, predicted, strict=True):
        if step.after is None:
            continue
        observed, before = _stacked(replay, step.after), _stacked(replay, step.state)
        moved = np.max([np.linalg.norm(after - before), np.linalg.norm(observed - before)])
        resolution = 4 * EPSILON * np.linalg.norm(before)
        if not np.isfinite(moved):
            same = np.array_equal(after, observed, equal_nan=True)
            result.append(0.0 if same else np.inf)
        elif moved <= 16 * resolution and moved < 1e-3:
            result.append(0.0 if np.linalg.norm(after - observed) <= resolution else 1.0)
        else:
            result.append(max(0.0, float(np.linalg.norm(after - observed) - resolution)) / float(moved))
    return result


def rounding_noise(replay: Replay, steps: Sequence[OptimizerStep], update: Update) -> list[float]:
    """Measures the noise floor of ``residuals``: the effect of changing gradients in their last place.

    Returns:
        The change of each update, relative to the update.
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

    gradients = [[[nudged(gradient) for gradient in replica] for replica in step.gradients] for step in steps]
    exact, noisy = simulate(replay, steps, update), simulate(replay, steps, update, gradients)
    return [
        float(np.linalg.norm(a - b) / (np.linalg.norm(a - _stacked(replay, step.state)) or 1.0))
        for step, a, b in zip(steps, exact, noisy, strict=True)
    ]


def _built(replay: Replay, update: Update, variables: Sequence[Any]) -> Any:
    if update.optimizer is None:
        optimizer = replay.experiment.build_optimizer()
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # a LossScaleOptimizer wraps the one that updates
    else:
        cls, config = update.optimizer
        optimizer = cls.from_config({name: value for name, value in config.items() if name != EXCLUDED})
    if update.formula:
        optimizer = by_hand(update.formula).from_config(optimizer.get_config())
    overrides = dict(update.overrides)
    excluded = overrides.pop(EXCLUDED, None if update.optimizer is None else update.optimizer[1].get(EXCLUDED))
    if excluded is not None:
        optimizer.exclude_from_weight_decay(var_list=[variables[i] for i in excluded])
    before = {name: getattr(optimizer, name) for name in overrides}
    for name, value in overrides.items():
        setattr(optimizer, name, value or before[name])
    optimizer.build(list(variables))  # with the slots that are needed before and after the change
    for name, value in (before if update.since else overrides).items():
        setattr(optimizer, name, value)
    return optimizer


def _total(
    gradients: ReplicaGradients, update: Update, clip: Callable[[Sequence[Any]], list[Any]], replica: int
) -> list[Any]:
    """The gradients that one replica is updated with, after clipping and reduction."""
    tensors = [[_tensor(gradient) for gradient in replica_gradients] for replica_gradients in gradients]
    if update.clip == "per-replica":
        tensors = [clip(replica_tensors) for replica_tensors in tensors]
    if update.reduce == "own":
        total = tensors[replica]
    elif update.reduce == "first":
        total = tensors[0]
    else:
        total = [_sum([replica_tensors[k] for replica_tensors in tensors]) for k in range(len(tensors[0]))]
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


class DampedMomentum(tf.keras.optimizers.SGD):  # type: ignore[misc]
    """The velocity is a mean of gradients: v = momentum · v + (1 - momentum) · g."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step((1 - self.momentum) * gradient, variable, learning_rate)


class HandWrittenAdam(tf.keras.optimizers.Adam):  # type: ignore[misc]
    """Adam by a formula of ``CHANGES``, in which correction and epsilon have another place than in Keras's."""

    formula: ClassVar[str]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = tf.convert_to_tensor(gradient)
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        mean.assign(self.beta_1 * mean + (1 - self.beta_1) * gradient)
        square.assign(self.beta_2 * square + (1 - self.beta_2) * gradient * gradient)
        step = tf.cast(self.iterations, variable.dtype) + 1
        corrections = 1 - self.beta_1**step, 1 - self.beta_2**step
        moments = tf.convert_to_tensor(mean), tf.convert_to_tensor(square)
        change = CHANGES[self.formula](*moments, *corrections, self.epsilon)
        variable.assign(variable - tf.cast(learning_rate, variable.dtype) * change)


CHANGES: Mapping[str, Callable[..., Any]] = {
    "uncorrected": lambda m, v, of_m, of_v, epsilon: m / (tf.sqrt(v) + epsilon),
    "mean-uncorrected": lambda m, v, of_m, of_v, epsilon: m / (tf.sqrt(v / of_v) + epsilon),
    "square-uncorrected": lambda m, v, of_m, of_v, epsilon: m / of_m / (tf.sqrt(v) + epsilon),
    # As in the paper: epsilon is added after the correction, which makes it larger in the first steps.
    "epsilon-last": lambda m, v, of_m, of_v, epsilon: m / of_m / (tf.sqrt(v / of_v) + epsilon),
    "epsilon-inside": lambda m, v, of_m, of_v, epsilon: m / of_m / tf.sqrt(v / of_v + epsilon),
    "epsilon-inside-uncorrected": lambda m, v, of_m, of_v, epsilon: m * tf.sqrt(of_v) / of_m / tf.sqrt(v + epsilon),
}
"""The change of a variable, to be multiplied by the learning rate, from the means of gradients and of their squares,
what each is divided by to correct its bias, and epsilon; by the name that ``Update.formula`` has for it."""


def by_hand(formula: str) -> type[Any]:
    """The class of optimizer that computes a formula."""
    return DampedMomentum if formula == "damped" else type(formula, (HandWrittenAdam,), {"formula": formula})
