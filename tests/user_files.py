"""An experiment and a loop as files of a user's, for tests to run and to break."""

TASK = """import numpy as np
import tensorflow as tf

import compare


def load_data():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return (x[:40], y[:40]), (x[40:], y[40:])


def build_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(2)])


def build_loss():
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build_optimizer():
    return tf.keras.optimizers.SGD(0.1)


def build_metrics():
    return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


experiment = compare.Experiment(
    name="task",
    load_data=load_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_metrics=build_metrics,
)
"""

LOOP = """import tensorflow as tf


class MyLoop:
    name = "my-loop"

    def train(self, run):
        model, optimizer, loss, metrics = run.build()

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(loss.call(y, model(x, training=True)))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        for epoch in run.epochs:
            for x, y in run.train_dataset(epoch):
                step(x, y)
                run.end_step()
            run.end_epoch(epoch, {})
"""
