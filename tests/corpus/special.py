"""Experiments with one thing each that only some people use: callbacks, class weights, masks, smoothing, decay."""

from __future__ import annotations

from typing import Any

import numpy as np

from corpus.experiments import (
    ADAM_RATE,
    CLASSES,
    EXPERIMENTS,
    MOMENTUM,
    SGD_RATE,
    accuracy,
    adam,
    blobs,
    crossentropy,
    experiment,
    mlp,
    momentum_sgd,
    normalized_mlp,
    sgd,
)

COMMON = tuple(EXPERIMENTS)
CLASS_WEIGHTS = {0: 1.0, 1: 3.0, 2: 0.25, 3: 1.5}
DECAY = 0.5
"""The weight decay of AdamW, large so that it shows on biases too."""

# Callbacks.


@experiment("momentum", "callbacks", "classes")
def rate_by_epoch() -> dict[str, Any]:
    """The usual scheduler: each epoch's rate from the one before."""
    import tensorflow as tf

    def build_callbacks() -> Any:
        return [tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.3 if epoch else rate * 1.0)]

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": momentum_sgd, "build_callbacks": build_callbacks}


@experiment("adam", "callbacks", "epoch-end", "classes")
def decay_at_epoch_end() -> dict[str, Any]:
    import tensorflow as tf

    class Decay(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.2 * float(self.model.optimizer.learning_rate.numpy())

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": adam, "build_callbacks": lambda: [Decay()]}


@experiment("sgd", "callbacks", "epoch-end", "stops", "classes")
def stop_when_good() -> dict[str, Any]:
    """The beginners' callback: stop as soon as the accuracy is good enough, which it is after one epoch."""
    import tensorflow as tf

    class GoodEnough(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if (logs or {}).get("loss", np.inf) < 5.0:
                self.model.stop_training = True

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": sgd, "build_callbacks": lambda: [GoodEnough()]}


@experiment("momentum", "callbacks", "epoch-end", "idle", "classes")
def patience() -> dict[str, Any]:
    """Keras's own callbacks, of which none does anything in two epochs."""
    import tensorflow as tf

    def build_callbacks() -> Any:
        return [
            tf.keras.callbacks.ReduceLROnPlateau(patience=2),
            tf.keras.callbacks.EarlyStopping(patience=3),
            tf.keras.callbacks.TerminateOnNaN(),
        ]

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": momentum_sgd, "build_callbacks": build_callbacks}


@experiment("momentum", "callbacks", "batch-callbacks", "classes")
def warm_up() -> dict[str, Any]:
    """A callback raises the rate over the first ten steps."""
    import tensorflow as tf

    class WarmUp(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.steps = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            self.model.optimizer.learning_rate = SGD_RATE * min(1.0, self.steps / 10)

    return {
        "load_data": blobs,
        "build_model": mlp,
        "build_optimizer": momentum_sgd,
        "build_callbacks": lambda: [WarmUp()],
    }


@experiment("averaged", "callbacks", "ema", "classes")
def swapped_average() -> dict[str, Any]:
    """Validation uses the moving average of the weights."""
    import tensorflow as tf

    return {
        "load_data": blobs,
        "build_model": mlp,
        "build_optimizer": lambda: tf.keras.optimizers.SGD(SGD_RATE, use_ema=True, ema_momentum=0.9),
        "build_callbacks": lambda: [tf.keras.callbacks.SwapEMAWeights()],
    }


# The loss.


@experiment("sgd", "class-weights", "classes")
def class_weights() -> dict[str, Any]:
    return {"load_data": blobs, "build_model": mlp, "build_optimizer": sgd, "class_weight": CLASS_WEIGHTS}


@experiment("adam", "class-weights", "dropout", "classes")
def class_weights_adam() -> dict[str, Any]:
    import tensorflow as tf

    def build_model() -> Any:
        hidden = tf.keras.layers.Dense(24, activation="relu")
        return tf.keras.Sequential([hidden, tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(CLASSES)])

    return {"load_data": blobs, "build_model": build_model, "build_optimizer": adam, "class_weight": CLASS_WEIGHTS}


@experiment("sgd", "outputs", "penalty")
def two_heads() -> dict[str, Any]:
    """Two classifications of unequal weight, and penalties on a shared layer and on one head."""
    import tensorflow as tf

    def load_data() -> Any:
        return tuple((x, {"kind": y, "half": (y // 2).astype(np.int32)}) for x, y in blobs())

    def build_model() -> Any:
        regularizer = tf.keras.regularizers.L2(0.02)
        x = tf.keras.Input((8,))
        hidden = tf.keras.layers.Dense(16, activation="relu", kernel_regularizer=regularizer)(x)
        kind = tf.keras.layers.Dense(CLASSES, name="kind", kernel_regularizer=regularizer)(hidden)
        half = tf.keras.layers.Dense(2, name="half")(hidden)
        return tf.keras.Model(x, {"kind": kind, "half": half})

    return {
        "load_data": load_data,
        "build_model": build_model,
        "build_optimizer": sgd,
        "build_loss": lambda: {"kind": crossentropy(), "half": crossentropy()},
        "build_metrics": lambda: {"kind": accuracy(), "half": accuracy()},
        "loss_weights": {"kind": 1.0, "half": 0.3},
    }


@experiment("momentum", "smoothing")
def smoothed() -> dict[str, Any]:
    import tensorflow as tf

    def load_data() -> Any:
        return tuple((x, np.eye(CLASSES, dtype=np.float32)[y]) for x, y in blobs())

    return {
        "load_data": load_data,
        "build_model": mlp,
        "build_optimizer": momentum_sgd,
        "build_loss": lambda: tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2),
        "build_metrics": lambda: [tf.keras.metrics.CategoricalAccuracy(name="accuracy")],
    }


@experiment("adam", "smoothing", "binary")
def smoothed_binary() -> dict[str, Any]:
    import tensorflow as tf

    def load_data() -> Any:
        return tuple((x, (y[:, None] % 2).astype(np.float32)) for x, y in blobs())

    return {
        "load_data": load_data,
        "build_model": lambda: mlp(outputs=1),
        "build_optimizer": adam,
        "build_loss": lambda: tf.keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2),
        "build_metrics": lambda: [tf.keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
    }


# Masks.


def padded(labels_of_words: bool) -> Any:
    """Sentences of 3 to 12 words, with zeros to the end."""
    generator = np.random.default_rng(7)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.integers(0, CLASSES, count)
        lengths = generator.integers(3, 13, count)
        own = generator.random((count, 12)) < 0.5
        words = np.where(own, 1 + labels[:, None] * 10 + generator.integers(0, 10, (count, 12)), 0)
        words = np.where(own, words, generator.integers(1, 41, (count, 12)))
        words = np.where(np.arange(12) < lengths[:, None], words, 0)
        labels = (words + CLASSES - 1) // 10 % CLASSES if labels_of_words else labels
        return words.astype(np.int32), labels.astype(np.int32)

    return part(231), part(102)


@experiment("momentum", "mask", "embedding", "rnn", "classes")
def masked_words() -> dict[str, Any]:
    """The recurrent layer skips the padding."""
    import tensorflow as tf

    def build_model() -> Any:
        embedding = tf.keras.layers.Embedding(41, 6, mask_zero=True)
        return tf.keras.Sequential([embedding, tf.keras.layers.GRU(8), tf.keras.layers.Dense(CLASSES)])

    return {"load_data": lambda: padded(False), "build_model": build_model, "build_optimizer": momentum_sgd}


@experiment("sgd", "mask", "tags", "embedding", "rnn")
def masked_tags() -> dict[str, Any]:
    """A label for each word, and none for the padding, which the loss leaves out."""
    import tensorflow as tf

    def build_model() -> Any:
        embedding = tf.keras.layers.Embedding(41, 6, mask_zero=True)
        recurrent = tf.keras.layers.LSTM(8, return_sequences=True)
        return tf.keras.Sequential([embedding, recurrent, tf.keras.layers.Dense(CLASSES)])

    return {
        "load_data": lambda: padded(True),
        "build_model": build_model,
        "build_optimizer": lambda: tf.keras.optimizers.SGD(0.5),
    }


# Optimizers.


@experiment("adamw", "exclusions", "classes")
def adamw() -> dict[str, Any]:
    """Biases do not decay."""
    import tensorflow as tf

    def build_optimizer() -> Any:
        optimizer = tf.keras.optimizers.AdamW(ADAM_RATE, weight_decay=DECAY)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": build_optimizer}


@experiment("momentum-decay", "exclusions", "bn", "classes", "sequential")
def decaying_kernels() -> dict[str, Any]:
    """Neither biases nor batch normalization decay."""
    import tensorflow as tf

    def build_optimizer() -> Any:
        optimizer = tf.keras.optimizers.SGD(SGD_RATE, momentum=MOMENTUM, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return optimizer

    return {"load_data": blobs, "build_model": normalized_mlp, "build_optimizer": build_optimizer}


@experiment("momentum", "schedule", "classes")
def cosine() -> dict[str, Any]:
    import tensorflow as tf

    def build_optimizer() -> Any:
        return tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.CosineDecay(0.1, 20), momentum=0.5)

    return {"load_data": blobs, "build_model": mlp, "build_optimizer": build_optimizer}


@experiment("sgd", "fp16", "classes")
def float16_sgd() -> dict[str, Any]:
    import tensorflow as tf

    def build_model() -> Any:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        hidden = tf.keras.layers.Dense(24, activation="tanh")
        return tf.keras.Sequential([hidden, tf.keras.layers.Dense(CLASSES, dtype="float32")])

    return {"load_data": blobs, "build_model": build_model, "build_optimizer": sgd}
