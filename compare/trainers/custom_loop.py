"""A custom training loop that trains exactly like ``model.fit``: bit for bit, on any number of replicas.

It has the structure of TensorFlow's tutorial "Custom training with tf.distribute.Strategy". Where
naive loops go wrong a comment says how. To try a variant, subclass ``CustomLoop`` and override
``compute_loss``, ``train_step`` or ``test_step``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.runs import Run
from compare.trainers.coordinator import train_with_coordinator

KERAS_3 = hasattr(tf.keras, "__version__")  # tf-keras, which is Keras 2, has none


class CustomLoop:
    """Trains with a Python loop over distributed batches.

    Attributes, for use in the methods that a subclass overrides:
        strategy: the run's strategy.
        model, optimizer, loss: as the run built them, in the strategy's scope.
        metrics: the experiment's metrics; they serve training and, reset, validation.
        loss_metric: the mean loss over the examples seen so far.
    """

    name = "loop"

    strategy: tf.distribute.Strategy
    model: tf.keras.Model
    optimizer: tf.keras.optimizers.Optimizer
    loss: tf.keras.losses.Loss
    metrics: list[tf.keras.metrics.Metric]
    loss_metric: tf.keras.metrics.Metric

    def train(self, run: Run) -> None:
        self.strategy = run.strategy
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        with self.strategy.scope():
            # Whatever owns variables is made in scope, metrics too: otherwise each replica's
            # variables drift apart, or the numbers come from one replica only.
            self.loss_metric = tf.keras.metrics.Mean(name="loss")
        if isinstance(self.strategy, tf.distribute.ParameterServerStrategy):
            return train_with_coordinator(self, run)

        validation = self.strategy.experimental_distribute_dataset(run.validation_dataset())
        training = self.strategy.experimental_distribute_dataset(run.train_dataset(run.epochs[0]))

        # The signature leaves the batch size open. Without it the functions are traced anew for the
        # short last batch, and with a static shape batch normalization rounds differently from fit.
        @tf.function(input_signature=[training.element_spec])
        def train_on_batch(batch: Any) -> None:
            self.strategy.run(self.train_step, args=(batch,))

        @tf.function(input_signature=[validation.element_spec])
        def test_on_batch(batch: Any) -> None:
            self.strategy.run(self.test_step, args=(batch,))

        for epoch in run.epochs:
            # Asked for anew in every epoch: a data set that is distributed once and iterated again
            # gives the same order again, unless it reshuffles itself.
            training = self.strategy.experimental_distribute_dataset(run.train_dataset(epoch))
            for batch in training:
                train_on_batch(batch)
                run.end_step()
            logs = self.results()

            for batch in validation:
                test_on_batch(batch)
            logs |= {f"val_{name}": value for name, value in self.results().items()}
            run.end_epoch(epoch, logs)

    def train_step(self, batch: Any) -> None:
        """One optimizer step on one replica's part of a batch.

        Args:
            batch: (x, y) or (x, y, sample_weight), tensors of this replica's ``[examples, ...]``.
        """
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            # training=True switches dropout on, and batch normalization to the batch's statistics.
            predictions = self.model(x, training=True)
            loss = self.compute_loss(y, predictions, sample_weight)
            # apply_gradients sums the gradients over the replicas, so each contributes its share
            # only. (Times 1/3 rounds differently from divided by 3, and fit multiplies.)
            share = loss * (1.0 / self.strategy.num_replicas_in_sync)
        variables = self.model.trainable_variables
        gradients = tape.gradient(share, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._update_metrics(x, y, predictions, loss)

    def test_step(self, batch: Any) -> None:
        """Update loss and metrics with one replica's part of a validation batch."""
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predictions = self.model(x, training=False)
        # fit's validation loss has the regularization losses in it too, so this one has.
        loss = self.compute_loss(y, predictions, sample_weight)
        self._update_metrics(x, y, predictions, loss)

    def compute_loss(self, y: tf.Tensor, predictions: tf.Tensor, sample_weight: tf.Tensor | None) -> tf.Tensor:
        """This replica's loss, a scalar: the mean over its own examples, and the model's own losses.

        The mean over replicas of what this returns is the loss that is trained.

        Args:
            y: this replica's labels, ``[examples, ...]``.
            predictions: what the model made of its inputs, ``[examples, ...]``.
            sample_weight: ``[examples]``, or None.
        """
        # Loss.call gives one value per example. Loss.__call__ would reduce them itself, differently
        # in Keras 3 (mean / replicas) and Keras 2 (an error inside strategy.run).
        per_example = self.loss.call(y, predictions)
        if sample_weight is not None:
            per_example *= tf.cast(sample_weight, per_example.dtype)
        # Divided by the number of this replica's own examples, as fit does, and not by their weights'
        # sum. The tutorials' constant GLOBAL_BATCH_SIZE makes a short last batch count too little.
        count = tf.cast(tf.size(per_example), per_example.dtype)
        mean = tf.math.divide_no_nan(tf.reduce_sum(per_example), count)
        # Regularization, activity regularization and whatever a layer gave to add_loss.
        losses = [mean, *self.model.losses]
        if len(losses) == 1 or not KERAS_3:
            return tf.add_n(losses)
        # Keras 3's fit scales several losses one by one, and its report scales their sum back. On
        # three replicas this may cost the last bit of the number, and here it does too.
        replicas = self.strategy.num_replicas_in_sync
        return tf.add_n([loss * (1.0 / replicas) for loss in losses]) * replicas

    def _update_metrics(self, x: Any, y: tf.Tensor, predictions: tf.Tensor, loss: tf.Tensor) -> None:
        # Each batch's loss counts by its examples, so that the short one counts less. The loss is
        # the unscaled one: what the replicas contribute to the gradient is smaller by their number.
        examples = tf.shape(tf.nest.flatten(x)[0])[0]
        self.loss_metric.update_state(loss, sample_weight=examples)
        for metric in self.metrics:
            metric.update_state(y, predictions)

    def results(self) -> dict[str, float]:
        """The metrics as they stand, which are then reset: they would go on counting otherwise."""
        metrics = [self.loss_metric, *self.metrics]
        results = {metric.name: float(metric.result()) for metric in metrics}
        for metric in metrics:
            metric.reset_state()
        return results
