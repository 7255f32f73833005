"""Trains the same network with Orbit, the loop library in tf-models-official; an epoch is one inner loop.

Run by scripts/benchmark.py.
"""

import common
import orbit
import tensorflow as tf

arguments = common.parser(__doc__).parse_args()
BATCH_SIZE = 64

training, validation = common.load(arguments.folder, arguments.examples)
steps = -(-len(training[1]) // BATCH_SIZE)
strategy = tf.distribute.MirroredStrategy()


def batches(images, labels, *, shuffled):
    dataset = tf.data.Dataset.from_tensor_slices((images[..., None], labels))
    if shuffled:
        dataset = dataset.shuffle(len(images))
    dataset = dataset.batch(BATCH_SIZE).map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y))
    return strategy.experimental_distribute_dataset((dataset.repeat() if shuffled else dataset).prefetch(2))


class Training(orbit.StandardTrainer, orbit.StandardEvaluator):
    def __init__(self):
        with strategy.scope():
            self.model = common.cnn(tf.keras)
            self.optimizer = tf.keras.optimizers.Adam()
            self.optimizer.build(self.model.trainable_variables)
            self.loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.mean_loss = tf.keras.metrics.Mean(name="loss")
            self.accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        orbit.StandardTrainer.__init__(self, batches(*training, shuffled=True))
        orbit.StandardEvaluator.__init__(self, batches(*validation, shuffled=False))

    def train_loop_begin(self):
        self.reset()

    def train_step(self, iterator):
        def step(batch):
            images, labels = batch
            with tf.GradientTape() as tape:
                predictions = self.model(images, training=True)
                loss = tf.nn.compute_average_loss(self.loss_object.call(labels, predictions))
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            self.update(labels, predictions, loss)

        strategy.run(step, args=(next(iterator),))
        self.global_step.assign_add(1)

    def train_loop_end(self):
        return {"loss": self.mean_loss.result(), "accuracy": self.accuracy.result()}

    def eval_begin(self):
        self.reset()

    def eval_step(self, iterator):
        def step(batch):
            images, labels = batch
            predictions = self.model(images, training=False)
            self.update(labels, predictions, tf.nn.compute_average_loss(self.loss_object.call(labels, predictions)))

        strategy.run(step, args=(next(iterator),))

    def eval_end(self):
        return {"val_loss": self.mean_loss.result(), "val_accuracy": self.accuracy.result()}

    def reset(self):
        self.mean_loss.reset_state()
        self.accuracy.reset_state()

    def update(self, labels, predictions, loss):
        self.mean_loss.update_state(loss, sample_weight=tf.shape(labels)[0])
        self.accuracy.update_state(labels, predictions)


task = Training()
controller = orbit.Controller(
    trainer=task, evaluator=task, strategy=strategy, global_step=task.global_step, steps_per_loop=steps
)
for epoch in range(1, arguments.epochs + 1):
    controller.train(steps=epoch * steps, checkpoint_at_completion=False)
    logs = task.train_loop_end() | controller.evaluate()
    common.report(epoch, arguments.epochs, logs)
