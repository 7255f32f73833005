"""What this project's trainers do, written by hand without it: the yardstick for what recording costs.

Run by scripts/benchmark.py as: bare.py fit|loop FOLDER EPOCHS EXAMPLES
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

how, folder, epochs, examples = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
tf.config.experimental.enable_op_determinism()
tf.keras.utils.set_random_seed(0)
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
BATCH = 64


def read(name, header):
    return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)


x, y = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)[:examples], read("train-labels-idx1-ubyte.gz", 8)
x_val, y_val = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28), read("t10k-labels-idx1-ubyte.gz", 8)
options = tf.data.Options()
options.autotune.enabled = False


def batches(images, labels, count, order):
    def batch(start):
        indices = tf.range(start, tf.minimum(start + BATCH, count))
        indices = indices if order is None else tf.gather(order, indices)
        return tf.cast(tf.gather(images, indices)[..., tf.newaxis], tf.float32) / 255.0, tf.gather(labels, indices)

    starts = tf.data.Dataset.range(0, count, BATCH)
    return starts.map(lambda start: batch(tf.cast(start, tf.int32))).prefetch(2).with_options(options)


def epoch_batches(epoch):
    seed = tf.stack([tf.constant(0, tf.int64), tf.cast(epoch, tf.int64)])
    return batches(*train, count, tf.random.experimental.index_shuffle(tf.range(count), seed, count - 1))


count = len(x)
train = tf.constant(x), tf.constant(y[:examples])
validation = batches(tf.constant(x_val), tf.constant(y_val), len(x_val), None)
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.Adam()
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    mean_loss = tf.keras.metrics.Mean()
    optimizer.build(model.trainable_variables)

if how == "fit":
    model.compile(optimizer=optimizer, loss=loss_object, metrics=[accuracy], jit_compile=False)
    data = tf.data.Dataset.range(1, epochs + 1).flat_map(epoch_batches).with_options(options)
    steps = -(-count // BATCH)
    model.fit(data, epochs=epochs, steps_per_epoch=steps, validation_data=validation, shuffle=False, verbose=0)
else:

    def compute_loss(labels, predictions):
        return tf.nn.compute_average_loss(loss_object.call(labels, predictions))

    def train_step(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = compute_loss(labels, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean_loss.update_state(loss, sample_weight=tf.shape(images)[0])
        accuracy.update_state(labels, predictions)

    def test_step(batch):
        images, labels = batch
        predictions = model(images, training=False)
        mean_loss.update_state(compute_loss(labels, predictions), sample_weight=tf.shape(images)[0])
        accuracy.update_state(labels, predictions)

    @tf.function(input_signature=[validation.element_spec])
    def train_on_batch(batch):
        strategy.run(train_step, args=(batch,))

    @tf.function(input_signature=[validation.element_spec])
    def test_on_batch(batch):
        strategy.run(test_step, args=(batch,))

    for epoch in range(1, epochs + 1):
        for dataset, step in ((epoch_batches(epoch), train_on_batch), (validation, test_on_batch)):
            for batch in strategy.experimental_distribute_dataset(dataset):
                step(batch)
            print(epoch, float(mean_loss.result()), float(accuracy.result()))
            mean_loss.reset_state()
            accuracy.reset_state()
