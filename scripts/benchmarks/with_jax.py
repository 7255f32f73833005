"""Trains the same network with Keras's fit on the JAX backend, from arrays in memory.

Run by scripts/benchmark.py.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import common
import keras

arguments = common.parser(__doc__).parse_args()

keras.utils.set_random_seed(0)
training, validation = (
    ((images[..., None] / 255.0).astype("float32"), labels)
    for images, labels in common.load(arguments.folder, arguments.examples)
)
model = common.cnn(keras)
model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)


def on_epoch_end(epoch, logs):
    common.report(epoch + 1, arguments.epochs, logs)


model.fit(
    *training,
    batch_size=64,
    epochs=arguments.epochs,
    validation_data=validation,
    validation_batch_size=64,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)],
    verbose=0,
)
