"""Small experiments on generated data for ``corpus.cells``, each with something that loops get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import compare

SGD_RATE, MOMENTUM, ADAM_RATE = 0.05, 0.9, 0.01
"""The hyper-parameters that several experiments share, and loops with a hand-written optimizer repeat."""
CLASSES = 4


@dataclass(frozen=True)
class Traits:
    """What decides which styles and faults make sense for an experiment.

    Attributes:
        build: makes the experiment.
        optimizer: "sgd", "momentum", "adam" or "rmsprop".
        has: what else there is: "bn", "dropout", "penalty", "weights", "outputs", "classes", ...
    """

    build: Callable[[], compare.Experiment]
    optimizer: str
    has: frozenset[str]


EXPERIMENTS: dict[str, Traits] = {}


def experiment(optimizer: str, *has: str) -> Callable[[Callable[[], dict[str, Any]]], Any]:
    """Register a function that gives the parts of an experiment, under its name."""

    def register(parts: Callable[[], dict[str, Any]]) -> Any:
        name = parts.__name__.replace("_", "-")

        def build() -> compare.Experiment:
            defaults = {"name": name, "build_loss": crossentropy, "build_metrics": accuracy}
            return compare.Experiment(**(defaults | parts()))

        EXPERIMENTS[name] = Traits(build, optimizer, frozenset(has))
        return parts

    return register


def crossentropy() -> Any:
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def accuracy() -> Any:
    import tensorflow as tf

    return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def momentum_sgd() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.SGD(SGD_RATE, momentum=MOMENTUM)


def sgd() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.SGD(SGD_RATE)


def adam() -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.Adam(ADAM_RATE)


def blobs(shape: tuple[int, ...] = (8,), train: int = 231, validation: int = 102, weights: bool = False) -> Any:
    """Noisy points around one centre per class, of any shape."""
    generator = np.random.default_rng(5)
    centres = generator.normal(size=(CLASSES, *shape))

    def part(count: int) -> tuple[np.ndarray, ...]:
        labels = generator.integers(0, CLASSES, count)
        points = (centres[labels] + generator.normal(size=(count, *shape))).astype(np.float32)
        part = (points, labels.astype(np.int32))
        return (*part, generator.uniform(0.2, 3, count).astype(np.float32)) if weights else part

    return part(train), part(validation)


def sentences(train: int = 231, validation: int = 102) -> Any:
    """Sequences of 12 out of 60 words; each class prefers words of its own."""
    generator = np.random.default_rng(6)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.integers(0, CLASSES, count)
        own = generator.random((count, 12)) < 0.4
        words = np.where(own, labels[:, None] * 15 + generator.integers(0, 15, (count, 12)), 0)
        words = np.where(own, words, generator.integers(0, 60, (count, 12)))
        return words.astype(np.int32), labels.astype(np.int32)

    return part(train), part(validation)


def line(train: int, validation: int) -> Any:
    """Points and a real number for each, ``[count]``."""
    generator = np.random.default_rng(8)
    slope = generator.normal(size=6)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = generator.normal(size=(count, 6))
        y = np.tanh(x @ slope) + 0.1 * generator.normal(size=count)
        return x.astype(np.float32), y.astype(np.float32)

    return part(train), part(validation)


def mlp(regularizer: Any = None, outputs: int = CLASSES) -> Any:
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(16, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Dense(12, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Dense(outputs),
        ]
    )


@experiment("momentum", "bn", "dropout", "classes", "sequential")
def cnn() -> dict[str, Any]:
    import tensorflow as tf

    def build_model() -> Any:
        return tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(6, 3, use_bias=False),
                tf.keras.layers.BatchNormalization(momentum=0.8),
                tf.keras.layers.ReLU(),
                tf.keras.layers.Conv2D(8, 3, strides=2),
                tf.keras.layers.BatchNormalization(momentum=0.8),
                tf.keras.layers.ReLU(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dropout(0.3),
                tf.keras.layers.Dense(CLASSES),
            ]
        )

    return {"load_data": lambda: blobs((8, 8, 1)), "build_model": build_model, "build_optimizer": momentum_sgd}


def normalized_mlp() -> Any:
    """A hidden layer, and batch normalization before its activation."""
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(16),
            tf.keras.layers.BatchNormalization(momentum=0.8),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(CLASSES),
        ]
    )


@experiment("adam", "bn", "classes", "sequential")
def dense_bn() -> dict[str, Any]:
    """The bias before batch normalization has a gradient of zero, which Adam makes steps of."""
    return {"load_data": blobs, "build_model": normalized_mlp, "build_optimizer": adam}


@experiment("momentum", "rnn", "classes")
def gru() -> dict[str, Any]:
    import tensorflow as tf

    def build_model() -> Any:
        return tf.keras.Sequential([tf.keras.layers.GRU(10), tf.keras.layers.Dense(CLASSES)])

    return {"load_data": lambda: blobs((6, 4)), "build_model": build_model, "build_optimizer": momentum_sgd}


@experiment("adam", "rnn", "classes")
def lstm() -> dict[str, Any]:
    import tensorflow as tf

    def build_model() -> Any:
        return tf.keras.Sequential([tf.keras.layers.LSTM(10), tf.keras.layers.Dense(CLASSES)])

    return {"load_data": lambda: blobs((6, 4)), "build_model": build_model, "build_optimizer": adam}


def bag_of_words() -> Any:
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(60, 8),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(12, activation="relu"),
            tf.keras.layers.Dense(CLASSES),
        ]
    )


@experiment("adam", "embedding", "classes")
def embedding_adam() -> dict[str, Any]:
    return {"load_data": sentences, "build_model": bag_of_words, "build_optimizer": adam}


@experiment("rmsprop", "embedding", "classes")
def embedding_rmsprop() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "load_data": sentences,
        "build_model": bag_of_words,
        "build_optimizer": lambda: tf.keras.optimizers.RMSprop(0.005, momentum=0.5),
    }


@experiment("sgd", "embedding", "clipnorm", "classes")
def embedding_clipnorm() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "load_data": sentences,
        "build_model": bag_of_words,
        "build_optimizer": lambda: tf.keras.optimizers.SGD(0.5, clipnorm=0.05),
    }


@experiment("momentum", "global_clipnorm", "classes")
def global_clipnorm() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "load_data": blobs,
        "build_model": mlp,
        "build_optimizer": lambda: tf.keras.optimizers.SGD(SGD_RATE, momentum=MOMENTUM, global_clipnorm=0.3),
    }


@experiment("momentum", "outputs")
def two_outputs() -> dict[str, Any]:
    """What kind, and how large: dicts of labels, losses, metrics and loss weights."""
    import tensorflow as tf

    def load_data() -> Any:
        parts = blobs()
        return tuple((x, {"kind": y, "size": np.linalg.norm(x, axis=1, keepdims=True) / 4}) for x, y in parts)

    def build_model() -> Any:
        x = tf.keras.Input((8,))
        hidden = tf.keras.layers.Dense(16, activation="relu")(x)
        kind = tf.keras.layers.Dense(CLASSES, name="kind")(hidden)
        size = tf.keras.layers.Dense(1, name="size")(hidden)
        return tf.keras.Model(x, {"kind": kind, "size": size})

    return {
        "load_data": load_data,
        "build_model": build_model,
        "build_optimizer": momentum_sgd,
        "build_loss": lambda: {"kind": crossentropy(), "size": tf.keras.losses.MeanSquaredError()},
        "build_metrics": lambda: {"kind": accuracy(), "size": [tf.keras.metrics.MeanAbsoluteError(name="mae")]},
        "loss_weights": {"kind": 1.0, "size": 0.4},
    }


@experiment("sgd", "weights", "classes")
def weighted() -> dict[str, Any]:
    return {"load_data": lambda: blobs(weights=True), "build_model": mlp, "build_optimizer": sgd}


@experiment("momentum", "fp16", "classes")
def float16() -> dict[str, Any]:
    import tensorflow as tf

    def build_model() -> Any:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        return mlp()

    return {"load_data": blobs, "build_model": build_model, "build_optimizer": momentum_sgd}


@experiment("momentum", "penalty", "activity", "classes")
def activity() -> dict[str, Any]:
    """An activity regularizer, and a layer that adds a loss of its own."""
    import tensorflow as tf

    class Spread(tf.keras.layers.Layer):  # type: ignore[misc]
        """Passes its inputs on, which are not to spread too far."""

        def call(self, inputs: Any) -> Any:
            self.add_loss(0.02 * tf.reduce_sum(tf.square(tf.reduce_mean(inputs, axis=0))))
            return inputs

    def build_model() -> Any:
        penalized = tf.keras.layers.Dense(12, activation="relu", activity_regularizer=tf.keras.regularizers.L2(0.02))
        hidden = tf.keras.layers.Dense(16, activation="relu")
        return tf.keras.Sequential([hidden, Spread(), penalized, tf.keras.layers.Dense(CLASSES)])

    return {"load_data": blobs, "build_model": build_model, "build_optimizer": momentum_sgd}


@experiment("momentum", "penalty", "classes")
def l2_momentum() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "load_data": blobs,
        "build_model": lambda: mlp(tf.keras.regularizers.L2(0.02)),
        "build_optimizer": momentum_sgd,
    }


@experiment("sgd", "regression", "one-left")
def regression() -> dict[str, Any]:
    """Labels [n] and predictions [n, 1]; the last of its 257 examples has a batch for itself."""
    import tensorflow as tf

    return {
        "load_data": lambda: line(257, 102),
        "build_model": lambda: mlp(outputs=1),
        "build_optimizer": sgd,
        "build_loss": tf.keras.losses.MeanSquaredError,
        "build_metrics": lambda: [tf.keras.metrics.MeanAbsoluteError(name="mae")],
    }


@experiment("adam", "schedule", "classes")
def adam_schedule() -> dict[str, Any]:
    import tensorflow as tf

    def build_optimizer() -> Any:
        return tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(0.02, 4, 0.6))

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": build_optimizer}


@experiment("sgd", "callbacks", "classes")
def step_decay() -> dict[str, Any]:
    """A callback lowers the learning rate after every epoch."""
    import tensorflow as tf

    def build_callbacks() -> Any:
        return [tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (1 + 2 * epoch))]

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": sgd, "build_callbacks": build_callbacks}
