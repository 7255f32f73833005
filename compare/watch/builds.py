"""Makes the weights of models before they are called for the first time, so that they can be set."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import tensorflow as tf

from compare.engine.insides_keras import KerasTensor, compute_output_spec
from compare.patching import Inside
from compare.watch.weights import weights_of


class Builds:
    """The models that were built here.

    Attributes:
        under_way: the building of a model, which calls it.
    """

    def __init__(self) -> None:
        self.under_way = Inside()
        self._built: weakref.WeakSet[Any] = weakref.WeakSet()

    def is_due(self, model: Any) -> bool:
        """Whether a model has no weights yet; a subclassed one may have been built without its layers."""
        return not (model.built and weights_of(model)) and model not in self._built

    def build_from(self, model: Any, x: Any) -> None:
        """Makes the weights of a model that ``fit`` would make later, from the data that it is given."""
        if (model.built and weights_of(model)) or x is None:
            return
        spec = x.element_spec if isinstance(x, tf.data.Dataset) else None
        if isinstance(spec, tuple):
            spec = spec[0]
        example = spec if spec is not None else tf.nest.map_structure(lambda each: each[:1], x)
        with model.distribute_strategy.scope():
            self.build(model, (example,), {"training": False})

    def build(self, model: Any, args: Any, options: Any) -> None:
        """Makes the weights of a model that has none, without computing anything."""

        def symbolic(value: Any) -> Any:
            if not hasattr(value, "shape"):
                return value
            return KerasTensor(value.shape, str(tf.as_dtype(value.dtype).name))

        self._built.add(model)
        with self.under_way, suppress(Exception):  # the call itself says what is wrong
            args, options = tf.nest.map_structure(symbolic, (args, options))
            compute_output_spec(model, *args, **options)
