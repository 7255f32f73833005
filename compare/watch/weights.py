"""The weights and random states of models, layers and variables: what they are, their values, and setting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import copies_of, distributed
from compare.engine.insides_keras import seeds_of_layer, weights_of_layer


def weights_of(root: Any) -> list[Any]:
    """The weights of a model or layer; of a variable, itself."""
    return [root] if isinstance(root, tf.Variable) else weights_of_layer(root)


def strategy_of(variables: Sequence[Any]) -> tf.distribute.Strategy:
    """Returns the strategy under which variables were created."""
    return getattr(distributed(variables[0]), "distribute_strategy", None) or tf.distribute.get_strategy()


def value_of(variable: Any) -> np.ndarray:
    """The value of a variable, on the first replica.

    Raises:
        tf.errors.FailedPreconditionError: if it has none yet, as one that is made in a graph that has not run; read
            as it is, it may have no elements.
    """
    value = np.array(copies_of(strategy_of([variable]), [variable])[0][0].numpy())
    if not tf.TensorShape(variable.shape).is_compatible_with(value.shape):
        raise tf.errors.FailedPreconditionError(None, None, "the variable has no value yet")
    return value


def set_value(variable: Any, value: np.ndarray) -> None:
    """Sets a variable on all replicas."""
    for copy_ in copies_of(strategy_of([variable]), [variable])[0]:
        copy_.assign(tf.cast(value, copy_.dtype))


def seeds_of(root: Any) -> list[Any]:
    """The state of the random number generators of a model or layer."""
    return [state for _, state in named_seeds_of(root)]


def named_seeds_of(root: Any) -> list[tuple[str, Any]]:
    """The same, each with the name of its layer."""
    rates = {layer: rates_of(layer) for layer in root._flatten_layers()}
    return [(layer.name, seed) for layer in rates for seed in seeds_of_layer(layer) if any(rates[layer] or [True])]


def rates_of(layer: Any) -> list[Any]:
    """The options of a layer by which it is random; where they are 0, it is not."""
    names = ("rate", "dropout", "recurrent_dropout", "stddev")
    return [getattr(layer, name) for name in names if hasattr(layer, name)]
