"""Calls the functions of an experiment that build its parts, and checks what they return."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import distributed
from compare.engine.insides_tensorflow import called_as_it_is
from compare.engine.keras_generation import step_counter
from compare.errors import RequestError
from compare.experiment import Experiment
from compare.naming import some
from compare.patching import patch, undone
from compare.user_errors import blaming, place_of


def _is_object(value: Any, method: str) -> bool:
    """Whether a value has a method, and is not the class that its objects have it from."""
    return hasattr(value, method) and not isinstance(value, type)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "build_model": ("a tf.keras.Model", lambda value: isinstance(value, tf.keras.Model)),
    "build_optimizer": ("a tf.keras.optimizers.Optimizer", lambda value: _is_object(value, "apply_gradients")),
    "build_loss": (
        "a tf.keras.losses.Loss, or one for each output",
        lambda value: (
            any(loss is not None for loss in tf.nest.flatten(value))
            and all(loss is None or _is_object(loss, "call") for loss in tf.nest.flatten(value))
        ),
    ),
    "build_callbacks": (
        "a list of tf.keras.callbacks.Callback objects",
        lambda value: isinstance(value, list | tuple) and all(_is_object(each, "set_model") for each in value),
    ),
}
"""What a function of an experiment must return: a description for messages, and a check."""


def built(experiment: Experiment, part: str) -> Any:
    """Calls one of an experiment's functions and returns its result.

    Raises:
        RequestError: if the function raises, or returns an object of the wrong kind; the message names file and line.
    """
    function = getattr(experiment, part)
    with blaming(part, function):
        value = function()
    expected, is_valid = KINDS.get(part, ("", lambda value: True))
    if not is_valid(value):
        parts = value if isinstance(value, list | tuple) and value else [value]
        kinds = [f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__ for each in parts]
        what = kinds[0] if parts[0] is value else f"a {type(value).__name__} of {some(list(dict.fromkeys(kinds)))}"
        raise RequestError(f"{part} ({place_of(function)}) returned {what}: it must return {expected}")
    return value


def clear_session() -> None:
    """Clears Keras's session, also inside the scope of a strategy, but for the global dtype policy, which users set.

    Keras resets the default graph as well. It is empty in eager mode, but inside a scope it holds the strategy, and
    leaving the scope would fail.
    """
    with undone(), own_policy():
        if tf.distribute.has_strategy():
            patch(tf.compat.v1, "reset_default_graph", lambda original: None)
        tf.keras.backend.clear_session()


def refuse_used(
    optimizer: Any, experiment: Experiment, strategy: tf.distribute.Strategy, *, made_twice: bool = False
) -> None:
    """Refuses an optimizer that was created earlier: it belongs to another strategy or model, or was returned twice."""
    elsewhere = not strategy.extended.variable_created_in_scope(distributed(step_counter(optimizer)))
    if made_twice or elsewhere or getattr(optimizer, "built", False):
        raise RequestError(
            f"build_optimizer ({place_of(experiment.build_optimizer)}) returned an optimizer that was created earlier: "
            "create a new one in every call, since each run needs its own variables under its strategy's scope"
        )


def refuse_shared(
    model: tf.keras.Model, other: tf.keras.Model, experiment: Experiment, strategy: tf.distribute.Strategy
) -> None:
    """Refuses two models with variables in common, of a shared layer, say, that do not belong to the strategy."""
    known = {id(distributed(variable)) for variable in other.variables}
    for variable in model.variables:
        common = id(distributed(variable)) in known
        if common and not strategy.extended.variable_created_in_scope(distributed(variable)):
            raise RequestError(
                f"build_model ({place_of(experiment.build_model)}) returned a model whose variable "
                f"{getattr(variable, 'path', variable.name)} was created earlier: create all layers in every call, "
                "since each run needs its own variables under its strategy's scope"
            )


def refuse_another(variables: Sequence[Any], shapes: Sequence[Sequence[int]], experiment: Experiment) -> None:
    """Refuses a model that differs from the first one."""
    found = [tuple(variable.shape) for variable in variables]
    expected = [tuple(shape) for shape in shapes]
    if found == expected:
        return
    change = f"{len(found)} variables instead of {len(expected)}"
    if len(found) == len(expected):
        i = next(i for i, shape in enumerate(expected) if shape != found[i])
        change = f"{getattr(variables[i], 'path', variables[i].name)} has shape {found[i]} instead of {expected[i]}"
    raise RequestError(
        f"build_model ({place_of(experiment.build_model)}) returned another model than in its first call: {change}; "
        "all trainers must train the same model"
    )


def give_inputs(model: tf.keras.Model, spec: Any) -> None:
    """Builds a deferred model with symbolic inputs."""
    if not (model.built and model.weights):
        model(tf.nest.map_structure(lambda each: tf.keras.Input(each.shape[1:], dtype=each.dtype), spec))


@called_as_it_is
def reduction(loss: tf.keras.losses.Loss, made_by: str = "") -> str:
    """Returns the reduction of a loss over the examples: "mean" or "sum"; ``made_by`` is for the error."""
    if loss.reduction in ("sum_over_batch_size", "mean", "auto"):
        return "mean"
    if loss.reduction == "sum":
        return "sum"
    raise RequestError(
        f"trainer loop does not support reduction={loss.reduction!r} of {type(loss).__name__}{made_by}: use "
        'reduction="sum", or leave it out for the mean'
    )


def refuse_own_steps(model: tf.keras.Model, experiment: Experiment, trainer: str = "train-step") -> None:
    """Refuses a model with its own steps for a trainer that would replace them."""
    for step in ("train_step", "test_step"):
        if getattr(type(model), step) is not getattr(tf.keras.Model, step):
            raise RequestError(
                f"trainer {trainer} would replace the model's own {step} (build_model, "
                f"{place_of(experiment.build_model)}): train this model with fit, which calls its own"
            )


@contextmanager
def own_policy() -> Iterator[None]:
    """Restores the global dtype policy after the block: one that build_model sets applies to its own layers only.

    The policy is set only if it was changed: until it is set for the first time, it may follow ``floatx``.
    """
    policy = tf.keras.mixed_precision.global_policy()
    try:
        yield
    finally:
        if tf.keras.mixed_precision.global_policy().name != policy.name:
            tf.keras.mixed_precision.set_global_policy(policy)


def scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    """Converts reported values to floats, by name.

    A metric whose result is a vector is split into ``name[0]``, ``name[1]`` and so on.

    Raises:
        TypeError, ValueError: if a value is not a number, or a name not a text.
    """
    values: dict[str, float] = {}
    for name, value in logs.items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not a name")
        array = np.asarray(value)
        try:
            if array.ndim == 0:
                values[name] = float(value)
            else:
                values |= {f"{name}[{i}]": float(element) for i, element in enumerate(array.reshape(-1))}
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{name} is {reprlib.repr(value)}, which is no number") from None
    return values
