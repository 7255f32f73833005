"""A small experiment: a classifier of 10 numbers, two Dense layers. Checked by scripts/scaling.py."""

import numpy as np
import tensorflow as tf

import compare


def load_data():
    x = np.random.default_rng(0).normal(size=(1000, 10)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int32")
    return (x[:900], y[:900]), (x[900:], y[900:])


experiment = compare.Experiment(
    name="small",
    load_data=load_data,
    build_model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)]),
    build_loss=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    build_optimizer=lambda: tf.keras.optimizers.Adam(),
    build_metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)
