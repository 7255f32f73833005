"""The experiment of TensorFlow's tutorial "Custom training with tf.distribute.Strategy", and its CNN in other styles.

The data is the full dataset, or the embedded sample if it is not available.

What breaks a naive loop: ``fashion-mnist-softmax``, from TensorFlow's older tutorials, ends with a softmax, and
``tf.nn.sparse_softmax_cross_entropy_with_logits`` applies softmax again (``logits-mismatch``). Keras's own losses find
the logits behind the probabilities and use those. ``fashion-mnist-functional`` can be cloned, but the clone starts
from other weights (``weights-not-shared``). ``fashion-mnist-subclassed`` has a weight that belongs to the model and
to none of its layers: a loop that collects variables layer by layer does not train it (``variables-not-trained``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from compare.engine.data import SAMPLE, Array, Source, locate_fashion_mnist, read_fashion_mnist
from compare.experiment import Experiment, Part


def build_model() -> tf.keras.Model:
    """Builds the tutorial's CNN, from images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]``."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def build_loss() -> tf.keras.losses.Loss:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build_optimizer() -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.Adam()


def build_metrics() -> list[tf.keras.metrics.Metric]:
    return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def prepare(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Converts images from uint8 ``[batch, 28, 28]`` to float32 ``[batch, 28, 28, 1]`` in [0, 1]."""
    return tf.cast(images[..., tf.newaxis], tf.float32) / 255.0, labels


def fashion_mnist(data_dir: Path | None, **other: Any) -> Experiment:
    """Returns the experiment, or another one, with 60,000 training and 10,000 validation images.

    See ``compare.engine.data`` for where they are.
    """
    return replace(_experiment("fashion-mnist", locate_fashion_mnist(data_dir)), **other)


def on_sample(name: str, build_model: Callable[[], tf.keras.Model], **other: Any) -> Experiment:
    """Returns an experiment with another model, and whatever else is given, on the embedded sample.

    The model maps images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]``.
    """
    return replace(fashion_mnist_sample, name=name, build_model=build_model, **other)


def from_sample(part: Callable[[Array, Array], Part]) -> tuple[Part, Part]:
    """Returns what a function makes of the images and labels of the embedded sample, of training and of validation."""
    train, validation = read_fashion_mnist(SAMPLE)
    return part(*train), part(*validation)


def _experiment(name: str, source: Source) -> Experiment:
    return Experiment(
        name=name,
        load_data=lambda: read_fashion_mnist(source),
        build_model=build_model,
        build_loss=build_loss,
        build_optimizer=build_optimizer,
        build_metrics=build_metrics,
        prepare=prepare,
        data_source=source.description,
        notes=(source.description,) if source.sample and name == "fashion-mnist" else (),
    )


fashion_mnist_sample = _experiment("fashion-mnist-sample", SAMPLE)
"""The experiment with the embedded sample of 6,000 and 1,000 images, which needs no external files."""


# The same CNN in other styles


def build_functional_model() -> tf.keras.Model:
    """Builds the same layers as a functional model."""
    x = images = tf.keras.Input((28, 28, 1))
    for layer in build_model().layers:
        x = layer(x)
    return tf.keras.Model(images, x)


def build_subclassed_model() -> tf.keras.Model:
    """Builds the same layers in a class, with a trainable scale of the logits."""

    class ScaledCNN(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cnn = build_model()
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
            return self.scale * self.cnn(images, training=training)

    return ScaledCNN()


softmax = partial(
    fashion_mnist,
    name="fashion-mnist-softmax",
    build_model=lambda: tf.keras.Sequential([*build_model().layers, tf.keras.layers.Softmax()]),
    build_loss=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False),
)
functional = partial(fashion_mnist, name="fashion-mnist-functional", build_model=build_functional_model)
subclassed = partial(fashion_mnist, name="fashion-mnist-subclassed", build_model=build_subclassed_model)
