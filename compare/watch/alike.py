"""Makes two scripts comparable: the same seeds, the same initial weights, the same order of examples."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from copy import copy
from typing import Any

import tensorflow as tf

from compare.engine.insides_keras import keras
from compare.engine.strategies import enable_op_determinism
from compare.patching import by_name, modules_with, patch
from compare.watch.initial_weights import InitialWeights
from compare.watch.settings import ORDER, SEEDS, Settings

FIRST_SEED = 1000
TF_RANDOM = tf.random, tf.compat.v2.random
"""The module of random operations that scripts and Keras 3 use, and that of Keras 2."""


def make_alike(settings: Settings) -> InitialWeights:
    """Patches Keras and TensorFlow in this process; call it before the script runs."""
    _provide_devices(settings.replicas)
    enable_op_determinism()  # without it no two runs of one script are equal
    # Where it is defined: a model whose class has another one is not compiled when it is loaded.
    patch(next(cls for cls in keras.Model.__mro__ if "compile" in vars(cls)), "compile", _compile_by_xla)
    keras.utils.set_random_seed(0)
    if SEEDS not in settings.own:
        _seeds_by_creation()
    if ORDER not in settings.own:
        _leave_out_shuffles()
    return InitialWeights(settings, settings.initial, provides=settings.begins)


def _compile_by_xla(original: Any, model: Any, *args: Any, **options: Any) -> None:
    """Keeps the XLA that ``compile`` is asked for, as a loop does; Keras 3 leaves it out under op determinism.

    Then XLA has no gradient of max pooling.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Model doesn't support `jit_compile=True`")
        original(model, *args, **options)
    asked = by_name(original, model, args, options).get("jit_compile") is True
    layers = list(model._flatten_layers()) if asked else []
    pools = any(type(each).__name__.startswith("MaxPool") for each in layers)
    if asked and not pools and all(getattr(each, "supports_jit", False) for each in layers):
        model._jit_compile = True


def _provide_devices(replicas: int | None) -> None:
    """Gives a ``MirroredStrategy()`` several logical CPUs where there is no GPU."""
    if replicas is None or tf.config.list_physical_devices("GPU"):
        return
    cpu, *_ = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)

    def initialize(original: Any, self: Any, devices: Any = None, *args: Any, **options: Any) -> None:
        original(self, devices or [f"CPU:{i}" for i in range(replicas)], *args, **options)

    patch(tf.distribute.MirroredStrategy, "__init__", initialize)


def _seeds_by_creation() -> None:
    """Numbers the seeds of layers in their order of creation, whatever else draws random numbers.

    Keras draws them from Python's global random numbers, by a function that layers' generators and initializers have
    from two modules. Each has a sequence of its own: a script may make initializers at any time.
    """

    def numbered() -> Callable[..., int]:
        seeds = itertools.count(FIRST_SEED + 1)
        return lambda original: next(seeds)

    for module in modules_with("make_default_seed", "keras"):
        patch(module, "make_default_seed", numbered())
    for module in TF_RANDOM:
        patch(module, "set_seed", lambda original, seed: original(0))


DERIVED = ("batch", "map", "prefetch", "repeat", "cache")
"""Methods of a data set that keep what was shuffled apart from what was not."""


def _leave_out_shuffles() -> None:
    """Makes ``Dataset.shuffle`` do nothing, unless that would hide that two data sets are shuffled apart and zipped."""

    def shuffle(original: Any, dataset: Any, *args: Any, **options: Any) -> Any:
        same, given = copy(dataset), by_name(original, dataset, args, options)
        size = given.get("buffer_size")
        # In one order, whether they are zipped once or for each epoch.
        same._shuffle_left_out = lambda later: original(later, size, seed=0, reshuffle_each_iteration=False)
        same._shuffled_by = size, given.get("seed")
        return same

    def derive(original: Any, dataset: Any, *args: Any, **options: Any) -> Any:
        derived = original(dataset, *args, **options)
        if hasattr(dataset, "_shuffle_left_out"):
            derived._shuffle_left_out, derived._shuffled_by = dataset._shuffle_left_out, dataset._shuffled_by
        return derived

    def shuffled_apart(one: Any, other: Any) -> bool:
        by, of_other = one._shuffled_by, getattr(other, "_shuffled_by", None)
        return by[1] is None or by != of_other  # the same seed gives the same order

    def zipped(original: Any, *args: Any, datasets: Any = None, **options: Any) -> Any:
        parts = args if len(args) > 1 else args[0] if args else datasets
        if isinstance(parts, tuple | list):
            first, *others = parts
            apart = [
                each._shuffle_left_out(each) if hasattr(each, "_shuffled_by") and shuffled_apart(each, first) else each
                for each in others
            ]
            parts = (first, *apart) if hasattr(first, "_shuffle_left_out") else tuple(parts)
        return original(parts, **options)

    patch(tf.data.Dataset, "shuffle", shuffle)
    for name in DERIVED:
        patch(tf.data.Dataset, name, derive)
    patch(tf.data.Dataset, "zip", zipped)
