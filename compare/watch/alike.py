"""Makes two scripts comparable: the same seeds, the same initial weights, the same order of examples."""

from __future__ import annotations

import time
import weakref
from copy import copy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from compare.watch.patching import modules_with, patch
from compare.watch.settings import ALL_BEGUN, ORDER, SEEDS, WEIGHTS, Settings

FIRST_SEED = 1000


def make_alike(settings: Settings) -> InitialWeights:
    """Patches Keras and TensorFlow in this process; call it before the script runs."""
    _provide_devices(settings.replicas)
    tf.config.experimental.enable_op_determinism()  # without it no two runs of one script are equal
    keras.utils.set_random_seed(0)
    if SEEDS not in settings.own:
        _seeds_by_creation()
    if ORDER not in settings.own:
        _leave_out_shuffles()
    return InitialWeights(settings)


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

    Keras draws them from Python's global random numbers.
    """
    made = FIRST_SEED

    def make_default_seed(original: Any) -> int:
        nonlocal made
        made += 1
        return made

    for module in modules_with("make_default_seed", "keras"):
        patch(module, "make_default_seed", make_default_seed)
    patch(tf.random, "set_seed", lambda original, seed: original(0))


DERIVED = ("batch", "map", "prefetch", "repeat", "cache")
"""Methods of a data set that keep what was shuffled apart from what was not."""


def _leave_out_shuffles() -> None:
    """Makes ``Dataset.shuffle`` do nothing, unless that would hide that two data sets are shuffled apart and zipped."""

    def shuffle(original: Any, dataset: Any, *args: Any, **options: Any) -> Any:
        same = copy(dataset)
        same._shuffle_left_out = lambda later: original(later, *args, **options)
        return same

    def derive(original: Any, dataset: Any, *args: Any, **options: Any) -> Any:
        derived = original(dataset, *args, **options)
        if hasattr(dataset, "_shuffle_left_out"):
            derived._shuffle_left_out = dataset._shuffle_left_out
        return derived

    def zipped(original: Any, *args: Any, datasets: Any = None, **options: Any) -> Any:
        parts = args if len(args) > 1 else args[0] if args else datasets
        if isinstance(parts, tuple | list):
            first, *others = parts
            apart = [each._shuffle_left_out(each) if hasattr(each, "_shuffle_left_out") else each for each in others]
            parts = (first, *apart) if hasattr(first, "_shuffle_left_out") else tuple(parts)
        return original(parts, **options)

    patch(tf.data.Dataset, "shuffle", shuffle)
    for name in DERIVED:
        patch(tf.data.Dataset, name, derive)
    patch(tf.data.Dataset, "zip", zipped)


class InitialWeights:
    """Keeps the initial weights of every model of the first script, and gives them to the models of the second.

    Models are paired by the shapes of their weights, in the order in which they are first used.

    Args:
        settings: says whether this script provides or takes the weights, and where they are.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = Path(settings.initial)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._provides = settings.begins
        self._alone = settings.alone
        self._own = WEIGHTS in settings.own
        self._models: list[weakref.ref[Any]] = []
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        self._used: set[Path] = set()
        self._kept: list[tuple[weakref.ref[Any], list[np.ndarray]]] = []
        self.trained = False
        patch(keras.Model, "__new__", self._create)

    def _create(self, original: Any, cls: type, *args: Any, **options: Any) -> Any:
        model = original(cls, *args, **options)
        self._models.append(weakref.ref(model))
        return model

    def look(self) -> list[Any]:
        """Begins every model that was built since the last look; returns those models."""
        begun = []
        for reference in self._models:
            model = reference()
            if model is None or model in self._begun or not getattr(model, "built", False) or not model.weights:
                continue
            self._begin(model)
            self._begun.add(model)
            begun.append(model)
        return begun

    def models(self) -> list[Any]:
        """The models that exist, in the order of creation."""
        models: list[Any] = [reference() for reference in self._models]
        return [model for model in models if model is not None and model.built]

    def step_made(self) -> None:
        """Says that the first optimizer step was made."""
        self.trained = True
        if self._provides:
            (self._folder / ALL_BEGUN).touch()

    def place(self, model: Any) -> int:
        """The number of a model in the order of creation; one that is not known comes last."""
        return next((i for i, reference in enumerate(self._models) if reference() is model), len(self._models))

    def of(self, model: Any) -> list[np.ndarray] | None:
        """The weights with which a model began, in the order of ``model.weights``; None if that was not seen."""
        count = len(model.weights)
        return next((values[:count] for reference, values in self._kept if reference() is model), None)

    def _begin(self, model: Any) -> None:
        variables = _state(model)
        values = [np.array(variable.numpy()) for variable in variables]
        source = self._source(values)
        if source is not None:
            for variable, value in zip(variables, source, strict=True):
                variable.assign(value)
            values = source
        self._kept.append((weakref.ref(model), values))
        if self._provides:
            path = self._folder / f"{len(list(self._folder.glob('*.npz')))}.npz"
            with open(path.with_suffix(".part"), "wb") as file:
                np.savez(file, *[_storable(value) for value in values])
            path.with_suffix(".part").rename(path)

    def _source(self, values: list[np.ndarray]) -> list[np.ndarray] | None:
        """The weights that a model begins with instead of its own."""
        if self._own:
            return None
        if self._alone and self.trained:
            return next((kept for _, kept in self._kept if _same_shapes(kept, values)), None)
        if self._provides:
            return None
        while True:
            ended = (self._folder / ALL_BEGUN).exists()
            for path in sorted(self._folder.glob("*.npz"), key=lambda path: int(path.stem)):
                if path in self._used:
                    continue
                with np.load(path) as content:
                    stored = [content[name] for name in content.files]
                if _same_shapes(stored, values):
                    self._used.add(path)
                    return stored
            if ended:
                return None
            time.sleep(0.05)


def _state(model: Any) -> list[Any]:
    """The weights of a model, followed by the state of its random number generators."""
    weights: list[Any] = list(model.weights)
    known = {id(variable) for variable in weights}
    return weights + [variable for variable in model.variables if id(variable) not in known]


def _same_shapes(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return [value.shape for value in a] == [value.shape for value in b]


def _storable(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype.kind == "V" else value  # bfloat16
