"""What is used of the insides of Keras on TensorFlow, which any version may move; nothing else imports them.

Keras 3.3 to 3.15 have all of it. What Keras 2 (2.15, and tf-keras) has instead stands here by the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import tensorflow as tf

from compare.engine.keras_generation import HAS_APPLY
from compare.errors import RequestError
from compare.patching import classes_with

if HAS_APPLY:
    import keras

    try:
        from keras.src.backend import compute_output_spec
        from keras.src.backend.common.keras_tensor import any_symbolic_tensors
        from keras.src.backend.tensorflow.core import Variable as KerasVariable
        from keras.src.losses import loss as _loss
        from keras.src.losses.losses import LossFunctionWrapper
        from keras.src.optimizers.base_optimizer import BaseOptimizer
    except ImportError as error:
        raise RequestError(f"Keras {keras.__version__}: {error}; this works with Keras 3.3 to 3.15") from None
    KerasTensor, Variable = keras.KerasTensor, keras.Variable
    APPLICATIONS: list[tuple[Any, str]] = [(BaseOptimizer, "apply")]
    """The methods by which optimizers change weights, with the classes that have them."""
    MAKES_VARIABLES: tuple[Any, str] = (KerasVariable, "_initialize")
    """The method in which Keras makes variables of its own."""
    RandomGenerator: Any = None
    """What draws the random numbers of Keras 2's layers."""
    DIVIDES = [(_loss, name) for name in ("scale_loss_for_distribution",) if hasattr(_loss, name)]
    """The function by which Keras divides a loss by the number of replicas, with its module."""
else:
    keras = tf.keras
    try:
        BaseOptimizer, LossFunctionWrapper = keras.optimizers.Optimizer, keras.losses.MeanSquaredError.__base__
        _Symbolic, _Legacy = keras.__internal__.KerasTensor, keras.optimizers.legacy.Optimizer
        RandomGenerator = import_module(f"{keras.Model.__module__.partition('.')[0]}.src.backend").RandomGenerator
    except (AttributeError, ImportError) as error:
        raise RequestError(f"Keras 2: {error}; this works with Keras 2.15 or newer") from None
    KerasTensor, Variable = tf.TensorSpec, tf.Variable
    APPLICATIONS = [
        (owner, "apply_gradients")
        for base in (BaseOptimizer, _Legacy)
        for owner in classes_with(base, "apply_gradients")
    ]
    MAKES_VARIABLES = keras.layers.Layer, "add_weight"
    DIVIDES = []

    def any_symbolic_tensors(args: Any = None, kwargs: Any = None) -> bool:
        """Whether there is a symbolic input, from which a functional model is made."""
        return any(isinstance(each, _Symbolic) for each in tf.nest.flatten((args, kwargs)))

    def compute_output_spec(model: Any, *args: Any, **options: Any) -> None:
        """Makes a model's weights: Keras 2 does so outside of the graph that calls it."""
        tf.function(model).get_concrete_function(*args, **options)


def is_keras(cls: Any) -> bool:
    """Whether a class or function is Keras's own."""
    return named_keras(str(cls.__module__))


def named_keras(module: str) -> bool:
    """Whether the name of a module is that of one of Keras's own."""
    return module.startswith(("keras.", "tf_keras."))


def weights_of_layer(layer: Any) -> list[Any]:
    """The weights of a model or layer.

    In Keras 2, those of a model that is not built cannot be asked for, and they have among them the state of its
    metrics.
    """
    if HAS_APPLY:
        return list(layer.weights)
    state = {id(each) for metric in layer.metrics for each in metric.variables} if layer.built else set()
    return [each for each in layer.weights if id(each) not in state] if layer.built else []


def seeds_of_layer(layer: Any) -> list[Any]:
    """The states of a layer's own random number generators; in Keras 2, those that ``RandomNumbers`` gives it."""
    if HAS_APPLY:
        return [seed.state for seed in getattr(layer, "_seed_generators", ())]
    generator: Any = getattr(layer, "_random_generator", None)
    return [generator.state] if hasattr(generator, "state") else []


def build_metrics(model: Any, batch: Any) -> None:
    """Makes the variables of a compiled model's metrics; ``fit`` does so before its first step if it has a strategy."""
    model._symbolic_build(data_batch=batch)
