"""The training loop of TensorFlow's tutorial, unchanged, with its two differences from ``fit``.

Source: "Custom training with tf.distribute.Strategy", https://www.tensorflow.org/tutorials/distribute/custom_training
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.engine.run import Run


class Tutorial:
    """Trains with the tutorial's loop.

    It divides the loss of every batch by the constant GLOBAL_BATCH_SIZE, and averages the losses of an epoch over
    batches instead of examples. Both matter if the last batch is short: its examples have too little weight in the
    gradient and too much weight in the reported loss. (60,000 Fashion-MNIST images are 937 batches of 64 images and
    one of 32, each of which has half the weight in the gradient.)
    """

    name = "tutorial"

    def train(self, run: Run) -> None:
        strategy = run.strategy
        GLOBAL_BATCH_SIZE = run.global_batch_size
        model, optimizer, loss_object, train_metrics = run.build()
        test_dist_dataset = strategy.experimental_distribute_dataset(run.validation_dataset())

        with strategy.scope():
            test_loss = tf.keras.metrics.Mean(name="test_loss")
            test_metrics = [type(metric).from_config(metric.get_config()) for metric in train_metrics]

        def compute_loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
            per_example_loss = loss_object.call(labels, predictions)
            return tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)

        def train_step(inputs: Any) -> tf.Tensor:
            images, labels = inputs
            with tf.GradientTape() as tape:
                predictions = model(images, training=True)
                loss = compute_loss(labels, predictions)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            for metric in train_metrics:
                metric.update_state(labels, predictions)
            return loss

        def test_step(inputs: Any) -> None:
            images, labels = inputs
            predictions = model(images, training=False)
            test_loss.update_state(loss_object.call(labels, predictions))
            for metric in test_metrics:
                metric.update_state(labels, predictions)

        @tf.function
        def distributed_train_step(dataset_inputs: Any) -> tf.Tensor:
            per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

        @tf.function
        def distributed_test_step(dataset_inputs: Any) -> None:
            strategy.run(test_step, args=(dataset_inputs,))

        for epoch in run.epochs:
            total_loss = 0.0
            num_batches = 0
            for x in strategy.experimental_distribute_dataset(run.train_dataset(epoch)):
                total_loss += distributed_train_step(x)
                num_batches += 1
                run.end_step()
            train_loss = total_loss / num_batches

            for x in test_dist_dataset:
                distributed_test_step(x)

            logs = {"loss": float(train_loss)}
            logs |= {metric.name: float(metric.result()) for metric in train_metrics}
            logs |= {"val_loss": float(test_loss.result())}
            logs |= {f"val_{metric.name}": float(metric.result()) for metric in test_metrics}
            run.end_epoch(epoch, logs)

            test_loss.reset_state()
            for metric in [*train_metrics, *test_metrics]:
                metric.reset_state()
