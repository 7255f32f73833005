"""Makes two scripts comparable: the same seeds and random numbers, initial weights, and order of examples."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any
from unittest import mock

import tensorflow as tf

from compare.engine.insides_keras import RandomGenerator, keras
from compare.engine.strategies import enable_op_determinism
from compare.patching import by_name, modules_with, patch
from compare.watch.initial_weights import InitialWeights
from compare.watch.settings import ORDER, SEEDS, Settings
from compare.watch.under_way import eagerly

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


STATELESS = {
    "normal": tf.random.stateless_normal,
    "truncated_normal": tf.random.stateless_truncated_normal,
    "uniform": tf.random.stateless_uniform,
    "dropout": tf.nn.experimental.stateless_dropout,
}
"""What draws the numbers of a function of ``tf.random`` or ``tf.nn``, by its name."""


class RandomNumbers:
    """Has TensorFlow's random operations draw the same numbers in every way of making a step.

    A stateful operation begins its sequence anew in every graph, and has another one in an eager loop, whatever the
    seed. So a right loop over random noise would differ from ``fit``, and from itself where its function is traced once
    more.

    The numbers depend on how many updates were made, and how many draws since, or since the script's last call. So what
    a script draws between two steps, such as noise for images to look at, moves no other numbers.
    """

    def __init__(self) -> None:
        self._place: tf.Variable | None = None  # updates, and draws since; none before the first draw
        self._generators = 0

    def take_over(self) -> None:
        """Patches TensorFlow in this process."""
        for name in STATELESS:
            for module in TF_RANDOM if name != "dropout" else (tf.nn, tf.compat.v2.nn):
                patch(module, name, partial(self._draw, name))
        if RandomGenerator is not None:
            patch(RandomGenerator, "__init__", self._make_generator)
            patch(RandomGenerator, "make_seed_for_stateless_op", self._seed_of_generator)
            for name in ("dropout", "random_normal", "random_uniform", "truncated_normal"):
                patch(RandomGenerator, name, self._draw_by_seed)

    def _make_generator(self, original: Any, generator: Any, *args: Any, **options: Any) -> None:
        """Has a layer of Keras 2 draw as in Keras 3: by a state of its own, and not by its place in a graph."""
        original(generator, *args, **options)
        if generator._rng_type == generator.RNG_LEGACY_STATEFUL:
            self._generators += 1
            generator._seed = FIRST_SEED + self._generators if generator._seed is None else generator._seed
            with tf.init_scope():
                generator.state = tf.Variable([generator._seed, 0], dtype=tf.int64, trainable=False)

    @staticmethod
    def _draw_by_seed(original: Any, generator: Any, *args: Any, **options: Any) -> Any:
        kind = generator.RNG_STATELESS if hasattr(generator, "state") else generator._rng_type
        with mock.patch.object(generator, "_rng_type", kind):
            return original(generator, *args, **options)

    @staticmethod
    def _seed_of_generator(original: Any, generator: Any) -> Any:
        if not hasattr(generator, "state"):
            return original(generator)
        seed = tf.identity(generator.state)
        generator.state.assign_add([0, 1])
        return seed

    def _draw(self, name: str, original: Any, /, *args: Any, **options: Any) -> Any:
        if _of_a_data_set():  # which draws at any time, ahead of the steps
            return original(*args, **options)
        given = inspect.signature(original).bind(*args, **options).arguments
        place = self._place
        if place is None:
            place = self._place = eagerly(lambda: tf.Variable([0, 0], dtype=tf.int32, trainable=False))
        seed = tf.convert_to_tensor(place.assign_add([0, 1]))
        return STATELESS[name](**{key: value for key, value in given.items() if key != "name"} | {"seed": seed})

    def call(self) -> None:
        """The script calls a function that may make steps."""
        if self._place is not None:
            self._place.assign(self._place * [1, 0])

    def updated(self) -> None:
        """An optimizer has made its update, or will have in the graph that is traced."""
        if self._place is not None:
            self._place.assign(self._place * [1, 0] + [1, 0])

    def restart(self) -> None:
        """Another training begins, which draws what the first one did."""
        if self._place is not None:
            self._place.assign([0, 0])


def _of_a_data_set() -> bool:
    """Whether this is a function that a data set maps; a loop over a data set in a graph has a body."""
    name = "" if tf.executing_eagerly() else str(tf.compat.v1.get_default_graph().name)
    return name.startswith("Dataset_") and not name.endswith("_body")
