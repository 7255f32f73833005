"""Does what this project's trainers do, without its package: the yardstick for what recording costs.

Batches, model and options are the same, and so are the final weights, but it takes no fingerprints and writes no
records. Run by scripts/benchmark.py.
"""

import common
import tensorflow as tf

arguments = common.parser(__doc__, how="fit or loop").parse_args()
epochs = arguments.epochs
SEED, BATCH_SIZE = 0, 64

tf.config.experimental.enable_op_determinism()
tf.keras.utils.set_random_seed(SEED)
strategy = tf.distribute.MirroredStrategy()
options = tf.data.Options()
options.autotune.enabled = False
options.deterministic = True


def batches(images, labels, order):
    def batch(start):
        indices = tf.range(start, tf.minimum(start + BATCH_SIZE, len(images)))
        indices = indices if order is None else tf.gather(order, indices)
        x = tf.cast(tf.gather(images, indices)[..., tf.newaxis], tf.float32) / 255.0
        return x, tf.gather(labels, indices)

    starts = tf.data.Dataset.range(0, len(images), BATCH_SIZE)
    return starts.map(batch).prefetch(2).with_options(options)


def training_batches(epoch):
    seed = tf.stack([tf.constant(SEED, tf.int64), tf.cast(epoch, tf.int64)])
    order = tf.random.experimental.index_shuffle(tf.range(count, dtype=tf.int64), seed, count - 1)
    return batches(*training, order)


training, validation = (tuple(map(tf.constant, part)) for part in common.load(arguments.folder, arguments.examples))
count = len(training[0])
validation_batches = batches(*validation, order=None)

with strategy.scope():
    model = common.cnn(tf.keras)
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    mean_loss = tf.keras.metrics.Mean(name="loss")


def fit():
    model.compile(optimizer=optimizer, loss=loss_object, metrics=[accuracy], jit_compile=False)

    def on_epoch_end(epoch, logs):
        common.report(epoch + 1, epochs, logs)

    model.fit(
        tf.data.Dataset.range(1, epochs + 1).flat_map(training_batches).with_options(options),
        steps_per_epoch=int(training_batches(1).cardinality()),
        epochs=epochs,
        validation_data=validation_batches,
        shuffle=False,
        callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)],
        verbose=0,
    )


def loop():
    def train_step(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = tf.nn.compute_average_loss(loss_object.call(labels, predictions))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean_loss.update_state(loss, sample_weight=tf.shape(images)[0])
        accuracy.update_state(labels, predictions)

    def test_step(batch):
        images, labels = batch
        predictions = model(images, training=False)
        loss = tf.nn.compute_average_loss(loss_object.call(labels, predictions))
        mean_loss.update_state(loss, sample_weight=tf.shape(images)[0])
        accuracy.update_state(labels, predictions)

    @tf.function(input_signature=[validation_batches.element_spec])
    def train_on_batch(batch):
        strategy.run(train_step, args=(batch,))

    @tf.function(input_signature=[validation_batches.element_spec])
    def test_on_batch(batch):
        strategy.run(test_step, args=(batch,))

    distributed_validation = strategy.experimental_distribute_dataset(validation_batches)
    for epoch in range(1, epochs + 1):
        logs = {}
        for batch in strategy.experimental_distribute_dataset(training_batches(epoch)):
            train_on_batch(batch)
        logs |= {"loss": mean_loss.result(), "accuracy": accuracy.result()}
        mean_loss.reset_state()
        accuracy.reset_state()

        for batch in distributed_validation:
            test_on_batch(batch)
        logs |= {"val_loss": mean_loss.result(), "val_accuracy": accuracy.result()}
        mean_loss.reset_state()
        accuracy.reset_state()
        common.report(epoch, epochs, logs)


{"fit": fit, "loop": loop}[arguments.how]()
