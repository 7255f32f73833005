"""A custom training loop that trains exactly like ``model.fit``: bit for bit, on any number of replicas.

It follows TensorFlow's tutorial "Custom training with tf.distribute.Strategy"
(https://www.tensorflow.org/tutorials/distribute/custom_training). The steps of the tutorial are found here:

=====================================================  =====================================================
Create the model and the optimizer in the scope        ``run.build()``, called first in ``train``
Define the metrics in the scope                        ``_create_metrics``
Define the loss function                               ``compute_loss``
Training and test step on one replica                  ``train_step``, ``test_step``
``distributed_train_step``, ``distributed_test_step``  in ``train``
Epoch loop with its TRAIN LOOP and TEST LOOP           in ``train``, with ``_test_epoch``
Read and reset the metrics                             ``results``
=====================================================  =====================================================

Comments explain why each line is needed wherever loops commonly differ from ``fit``. To try a variant, subclass
``CustomLoop`` and override ``compute_loss``, ``train_step`` or ``test_step``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from compare.engine import strategies
from compare.engine.building import reduction, scalars
from compare.engine.run import Run
from compare.trainers import losses
from compare.trainers.callbacks import Callbacks
from compare.trainers.coordinator import train_with_coordinator
from compare.trainers.iteration import Iteration, function_options
from compare.trainers.outputs import Outputs


class CustomLoop:
    """Trains with a custom loop over distributed batches.

    ``run.execution`` selects one of three ways of iterating; all of them give bit-identical results.

    Attributes, for use in the methods that a subclass overrides:
        strategy: the run's strategy.
        model, optimizer, loss: as built by the run, under the strategy's scope.
        metrics: the experiment's metrics; used for training and, after a reset, for validation.
        outputs: maps losses and metrics to the model's outputs; most models have a single output.
        loss_metric: the mean loss over the examples seen since the last reset.
        class_weight: maps each class to its weight in the training loss; None for no class weights.
    """

    name = "loop"

    strategy: tf.distribute.Strategy
    model: tf.keras.Model
    optimizer: tf.keras.optimizers.Optimizer
    loss: Any
    metrics: Any
    outputs: Outputs
    loss_metric: tf.keras.metrics.Metric
    class_weight: Mapping[int, float] | None

    def train(self, run: Run) -> None:
        """Trains for ``run.epochs``, and reports every step and epoch to the run."""
        strategy = self.strategy = run.strategy
        # The run creates model and optimizer under strategy.scope(); every trainer gets the same initial weights.
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        self.class_weight = run.class_weight
        train_dataset, test_dataset = run.train_dataset(run.epochs[0]), run.validation_dataset()
        test_dist_dataset = strategies.distribute(strategy, test_dataset)
        train_dist_dataset = strategies.distribute(strategy, train_dataset)
        self._create_metrics(run, train_dataset.element_spec[0])
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            return train_with_coordinator(self, run)  # in coordinator.py, because the workers are asynchronous

        # The signature leaves the batch size open. Without it, the short last batch would be traced separately; with a
        # static batch size, batch normalization rounds differently from fit. Each function returns a tensor because
        # TensorFlow does not optimize a graph without outputs: sums would be ordered, and rounded, differently.
        options = function_options(run.execution, self.model, strategy.num_replicas_in_sync)

        @tf.function(input_signature=[train_dist_dataset.element_spec], **options)
        def distributed_train_step(batch: Any) -> tf.Tensor:
            strategy.run(self.train_step, args=(batch,))
            return tf.constant(True)

        @tf.function(input_signature=[test_dist_dataset.element_spec], **options)
        def distributed_test_step(batch: Any) -> tf.Tensor:
            strategy.run(self.test_step, args=(batch,))
            return tf.constant(True)

        # iteration.py: each call from Python executes one step, several steps, or all steps of the epoch.
        training = Iteration(run.execution, distributed_train_step, train_dataset, strategy)
        testing = Iteration(run.execution, distributed_test_step, test_dataset, strategy)
        # callbacks.py: calls the hooks of the experiment's callbacks in the same order as fit.
        callbacks = Callbacks(run, self.model, self.optimizer, self._named_metrics())
        callbacks.on_train_begin({})

        for epoch in run.epochs:
            callbacks.on_epoch_begin(epoch - 1, {})  # Keras counts epochs from 0
            # Optional: after Ctrl-C, an interrupted epoch continues behind the steps that it made, with their metrics.
            made = run.begin_epoch(epoch, self._named_metrics().values())
            # TRAIN LOOP. A dataset that is distributed only once would repeat the order of its first epoch.
            train_dist_dataset = strategies.distribute(strategy, run.train_dataset(epoch).skip(made))
            for call in training.calls(train_dist_dataset, made):
                callbacks.on_train_batch_begin(call.first_step, {})
                call.execute()  # calls distributed_train_step for one batch or for several
                callbacks.on_train_batch_end(call.last_step, callbacks.current_logs())
                run.end_step(call.steps) if call.steps > 1 else run.end_step()
                if self.model.stop_training:
                    break
            logs = self.results()
            # TEST LOOP
            test_logs = self._test_epoch(testing, test_dist_dataset, callbacks)
            logs |= {f"val_{name}": value for name, value in test_logs.items()}
            callbacks.on_epoch_end(epoch - 1, logs)
            run.end_epoch(epoch, logs)
            if self.model.stop_training:
                break

        # An optimizer with a moving average of the weights (use_ema) copies it into the model at the end.
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        callbacks.on_train_end(logs)

    def _test_epoch(self, testing: Iteration, dataset: Any, callbacks: Callbacks) -> dict[str, float]:
        """Validates on a distributed dataset; returns the loss and the metrics by name."""
        callbacks.on_test_begin({})
        for call in testing.calls(dataset):
            callbacks.on_test_batch_begin(call.first_step, {})
            call.execute()  # calls distributed_test_step for one batch or for several
            callbacks.on_test_batch_end(call.last_step, callbacks.current_logs())
        logs = self.results()
        callbacks.on_test_end(logs)
        return logs

    def train_step(self, batch: Any) -> None:
        """Performs one optimizer step on one replica's part of a batch.

        Args:
            batch: (x, y) or (x, y, sample_weight): tensors of shape ``[examples, ...]`` with the examples of this
                replica, or tuples or dicts of such tensors.
        """
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        # fit applies class weights as sample weights, in training only.
        sample_weight = losses.with_class_weight(self.class_weight, y, sample_weight)
        with tf.GradientTape() as tape:
            # training=True enables dropout, and makes batch normalization use the statistics of the batch.
            predictions = self.model(x, training=True)
            loss = self.compute_loss(y, predictions, sample_weight)
            # apply_gradients sums the gradients over the replicas, so each replica contributes only its share.
            # (fit multiplies by 1/3 on three replicas; a division by 3 would round differently.)
            scaled_loss = loss * (1.0 / self.strategy.num_replicas_in_sync)
            # Small gradients would underflow in float16. losses.py: a LossScaleOptimizer scales the loss up first.
            scaled_loss = losses.scale_loss(self.optimizer, scaled_loss)
        variables = self.model.trainable_variables
        gradients = losses.unscale_gradients(self.optimizer, tape.gradient(scaled_loss, variables))
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._update_metrics(x, y, predictions, sample_weight, loss)

    def test_step(self, batch: Any) -> None:
        """Updates the loss and the metrics with one replica's part of a validation batch; see ``train_step``."""
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predictions = self.model(x, training=False)
        # fit includes the regularization losses in the validation loss too; compute_loss adds them.
        loss = self.compute_loss(y, predictions, sample_weight)
        self._update_metrics(x, y, predictions, sample_weight, loss)

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> tf.Tensor:
        """Computes the loss of this replica: the mean over its own examples plus the model's own losses.

        The training loss is the mean of the returned values over the replicas. For a model with several outputs,
        this method also updates the loss metric of each output.

        Args:
            y: labels of this replica, ``[examples, ...]``; a tuple or dict of them for several outputs.
            predictions: outputs of the model, ``[examples, ...]``; a tuple or dict of them for several outputs.
            sample_weight: ``[examples]``, for all outputs or one for each, or None.

        Returns:
            A scalar tensor.
        """
        output_losses = []
        # outputs.py: selects the labels, predictions and sample weights of each output.
        for output, *values in self.outputs.split(y, predictions, sample_weight):
            if output.loss is not None:
                # The name scope is the one that fit uses: names decide the order of sums, see losses.total.
                with tf.name_scope(losses.LOSS_SCOPE + output.loss.name):
                    output_losses.append((output, self._output_loss(output.loss, *values)))
        # model.losses: regularization, activity regularization and losses from add_loss. GradientTape does not see
        # them unless they are added here. losses.py: adds all losses in the same order as fit.
        examples = tf.shape(tf.nest.flatten(y)[0])[0]
        return losses.total(output_losses, self.model.losses, examples, self.strategy.num_replicas_in_sync)

    def _output_loss(self, loss: Any, y: tf.Tensor, predictions: tf.Tensor, sample_weight: Any) -> tf.Tensor:
        """Computes the loss of one output on this replica, a scalar."""
        is_sum = reduction(loss) == "sum"
        mask = losses.mask_of(predictions, getattr(loss, "dtype", predictions.dtype))
        if mask is not None:
            # Padding must not count, but Loss.call ignores masks. The unmasked positions are weighted up, so that the
            # division by the number of all positions below amounts to a division by the number of unmasked ones.
            if not is_sum:
                mask *= tf.math.divide_no_nan(tf.cast(tf.size(mask), mask.dtype), tf.reduce_sum(mask))
            sample_weight = mask if sample_weight is None else tf.cast(sample_weight, mask.dtype) * mask
        # Loss.call returns one value per example. Loss.__call__ would reduce them to their mean, divided by the number
        # of replicas.
        per_example_loss = losses.per_example(loss, y, predictions, sample_weight)
        if is_sum:  # the sum over all replicas, which train_step will divide by the number of replicas
            return tf.reduce_sum(per_example_loss) * self.strategy.num_replicas_in_sync
        # fit divides by the number of this replica's examples, not by the sum of their weights. The tutorial divides
        # by the constant GLOBAL_BATCH_SIZE, which gives the examples of a short last batch too little weight.
        count = tf.cast(tf.size(per_example_loss), per_example_loss.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(per_example_loss), count)

    def _create_metrics(self, run: Run, inputs: Any) -> None:
        """Creates the metrics for a model whose inputs have the given tensor specs."""
        # Objects with variables must be created in the scope, metrics included. Otherwise the variables of the replicas
        # diverge, or the results come from one replica only.
        with self.strategy.scope():
            self.loss_metric = tf.keras.metrics.Mean(name="loss")
            # outputs.py: assigns losses and metrics to the model's outputs, as compile does.
            self.outputs = Outputs(
                self.model,
                inputs,
                loss=self.loss,
                loss_weights=run.loss_weights,
                metrics=self.metrics,
                weighted_metrics=run.weighted_metrics,
            )

    def _update_metrics(self, x: Any, y: Any, predictions: Any, sample_weight: Any, loss: tf.Tensor) -> None:
        # The loss is weighted by the number of examples, so that a short batch counts less. It is the loss before
        # scaling: the share that a replica contributes to the gradient is smaller by the number of replicas.
        examples = tf.shape(tf.nest.flatten(x)[0])[0]
        self.loss_metric.update_state(loss, sample_weight=examples)
        for output, labels, outputs, weights in self.outputs.split(y, predictions, sample_weight):
            for metric in output.metrics:
                metric.update_state(labels, outputs)
            for metric in output.weighted_metrics:
                metric.update_state(labels, outputs, weights)

    def _named_metrics(self) -> dict[str, Any]:
        # Layers of the model may have metrics of their own, which they update when they are called.
        model_metrics = {metric.name: metric for metric in self.model.metrics}
        return {self.loss_metric.name: self.loss_metric} | self.outputs.metrics | model_metrics

    def results(self) -> dict[str, float]:
        """Returns the results of all metrics by name, and resets the metrics."""
        metrics = self._named_metrics()
        results = scalars({name: metric.result() for name, metric in metrics.items()})
        for metric in metrics.values():
            metric.reset_state()  # otherwise validation and the next epoch would add to these results
        return results
