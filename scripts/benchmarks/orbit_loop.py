"""Trains the tutorial's network with Orbit, the loop library in tf-models-official; an epoch is one inner loop.

Run by scripts/benchmark.py, which writes the module images beside it.
"""

import sys

import images
import orbit
import tensorflow as tf

BATCH_SIZE, EPOCHS = 64, int(sys.argv[1])

training, validation = images.load_data()
steps = -(-len(training[1]) // BATCH_SIZE)
strategy = tf.distribute.MirroredStrategy()


def batches(x, y, *, shuffled):
    dataset = tf.data.Dataset.from_tensor_slices((x[..., None], y))
    if shuffled:
        dataset = dataset.shuffle(len(x))
    dataset = dataset.batch(BATCH_SIZE).map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y))
    return strategy.experimental_distribute_dataset((dataset.repeat() if shuffled else dataset).prefetch(2))


class Training(orbit.StandardTrainer, orbit.StandardEvaluator):
    def __init__(self):
        layers = tf.keras.layers
        with strategy.scope():
            convolutions = [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()]
            convolutions += [layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
            dense = [layers.Dense(64, activation="relu"), layers.Dense(10)]
            self.model = tf.keras.Sequential([layers.Input((28, 28, 1)), *convolutions, *dense])
            self.optimizer = tf.keras.optimizers.Adam()
            self.optimizer.build(self.model.trainable_variables)
            self.loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.mean_loss = tf.keras.metrics.Mean(name="loss")
            self.accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        orbit.StandardTrainer.__init__(self, batches(*training, shuffled=True))
        orbit.StandardEvaluator.__init__(self, batches(*validation, shuffled=False))

    def train_loop_begin(self):
        self.mean_loss.reset_state()
        self.accuracy.reset_state()

    eval_begin = train_loop_begin

    def train_step(self, iterator):
        def step(batch):
            with tf.GradientTape() as tape:
                loss = self.loss_of(batch, training=True)
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(step, args=(next(iterator),))
        self.global_step.assign_add(1)

    def eval_step(self, iterator):
        strategy.run(lambda batch: self.loss_of(batch, training=False), args=(next(iterator),))

    def loss_of(self, batch, training):
        images, labels = batch
        predictions = self.model(images, training=training)
        loss = tf.nn.compute_average_loss(self.loss_object.call(labels, predictions))
        self.mean_loss.update_state(loss, sample_weight=tf.shape(labels)[0])
        self.accuracy.update_state(labels, predictions)
        return loss

    def train_loop_end(self):
        return {"loss": self.mean_loss.result(), "accuracy": self.accuracy.result()}

    eval_end = train_loop_end


task = Training()
controller = orbit.Controller(
    trainer=task, evaluator=task, strategy=strategy, global_step=task.global_step, steps_per_loop=steps
)
for epoch in range(1, EPOCHS + 1):
    controller.train(steps=epoch * steps, checkpoint_at_completion=False)
    logs = task.train_loop_end() | {f"val_{name}": value for name, value in controller.evaluate().items()}
    print(f"epoch {epoch}/{EPOCHS}  " + "  ".join(f"{name} {float(value):.4f}" for name, value in logs.items()))
