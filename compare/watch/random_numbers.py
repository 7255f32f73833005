"""Has TensorFlow's random operations draw the same numbers in every way of making a step.

A stateful operation begins its sequence anew in every graph, and has another one in an eager loop, whatever the seed.
So a right loop over random noise would differ from ``fit``, and from itself where its function is traced once more.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any
from unittest import mock

import tensorflow as tf

from compare.engine.insides_keras import RandomGenerator
from compare.patching import patch
from compare.watch.alike import FIRST_SEED, TF_RANDOM
from compare.watch.under_way import eagerly

STATELESS = {
    "normal": tf.random.stateless_normal,
    "truncated_normal": tf.random.stateless_truncated_normal,
    "uniform": tf.random.stateless_uniform,
    "dropout": tf.nn.experimental.stateless_dropout,
}
"""What draws the numbers of a function of ``tf.random`` or ``tf.nn``, by its name."""


class RandomNumbers:
    """Numbers that depend on how many updates were made, and how many draws since, or since the script's last call.

    So what a script draws between two steps, such as noise for images to look at, moves no other numbers.
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

    def _draw(self, name: str, original: Any, *args: Any, **options: Any) -> Any:
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
