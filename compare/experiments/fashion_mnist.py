"""The experiment of TensorFlow's tutorial "Custom training with tf.distribute.Strategy"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from compare.engine.data import SAMPLE, Array, Source, locate_fashion_mnist, read_fashion_mnist
from compare.errors import RequestError
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


def fashion_mnist_sample(data_dir: Path | None) -> Experiment:
    """Returns the experiment with the embedded sample of 6,000 and 1,000 images, which needs no external files."""
    if data_dir is not None:
        raise RequestError(
            "--data-dir has no effect with fashion-mnist-sample, which is part of the package: "
            "leave it out, or use --experiment fashion-mnist"
        )
    return _experiment("fashion-mnist-sample", SAMPLE)


def on_sample(name: str, build_model: Callable[[], tf.keras.Model], **other: Any) -> Experiment:
    """Returns an experiment with another model, and whatever else is given, on the embedded sample.

    The model maps images ``[batch, 28, 28, 1]`` to logits ``[batch, 10]``.
    """
    return replace(fashion_mnist_sample(None), name=name, build_model=build_model, **other)


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
