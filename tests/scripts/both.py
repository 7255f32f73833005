"""Trains twice: with fit, and with a loop that has another learning rate if it is told so."""

import sys

import keras
import task
import tensorflow as tf

(x, y), _ = task.data()
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
first = task.model()
first.compile(keras.optimizers.SGD(0.1), loss_fn)
first.fit(x, y, batch_size=100, epochs=1, verbose=0)

second = task.model()
optimizer = keras.optimizers.SGD(0.05 if "--slow" in sys.argv else 0.1)
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(100):
    with tf.GradientTape() as tape:
        loss = loss_fn(b, second(a, training=True)) + sum(second.losses)
    optimizer.apply(tape.gradient(loss, second.trainable_variables), second.trainable_variables)
