"""The same network with Keras's fit on the JAX backend, arrays in memory, in a process without TensorFlow's runtime.

Run by scripts/benchmark.py as: with_jax.py FOLDER EPOCHS EXAMPLES
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import idx
import keras

folder, epochs, examples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

keras.utils.set_random_seed(0)
training, validation = (
    ((images[..., None] / 255.0).astype("float32"), labels) for images, labels in idx.load(folder, examples)
)
model = keras.Sequential(
    [
        keras.layers.Input((28, 28, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)


def report(epoch, logs):
    values = (f"{name} {float(logs[name]):.4f}" for name in ("loss", "accuracy", "val_loss", "val_accuracy"))
    print(f"epoch {epoch + 1}/{epochs}  " + "  ".join(values))


model.fit(
    *training,
    batch_size=64,
    epochs=epochs,
    validation_data=validation,
    validation_batch_size=64,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)],
    verbose=0,
)
