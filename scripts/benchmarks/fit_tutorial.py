"""``compile`` and ``fit`` under MirroredStrategy as TensorFlow's tutorials write them, for comparison.

The data pipeline is that of "Custom training with tf.distribute.Strategy", so that both tutorials do the same.
Run by scripts/benchmark.py as: fit_tutorial.py FOLDER EPOCHS EXAMPLES
"""

import sys

import idx
import numpy as np
import tensorflow as tf

folder, EPOCHS, examples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

(train_images, train_labels), (test_images, test_labels) = idx.load(folder, examples)

train_images = train_images[..., None]
test_images = test_images[..., None]
train_images = train_images / np.float32(255)
test_images = test_images / np.float32(255)

strategy = tf.distribute.MirroredStrategy()
BUFFER_SIZE = len(train_images)
BATCH_SIZE_PER_REPLICA = 64
GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync

train_dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
train_dataset = train_dataset.shuffle(BUFFER_SIZE).batch(GLOBAL_BATCH_SIZE)
test_dataset = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(GLOBAL_BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential(
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
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )


class PrintEpoch(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        values = (f"{name} {logs[name]:.4f}" for name in ("loss", "accuracy", "val_loss", "val_accuracy"))
        print(f"Epoch {epoch + 1}/{EPOCHS}  " + "  ".join(values))


model.fit(train_dataset, epochs=EPOCHS, validation_data=test_dataset, callbacks=[PrintEpoch()], verbose=0)
