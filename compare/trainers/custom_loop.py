"""A custom training loop that trains exactly like ``model.fit``: bit for bit, on any number of replicas.

It has the structure of TensorFlow's tutorial "Custom training with tf.distribute.Strategy". Where
naive loops go wrong a comment says how. To try a variant, subclass ``CustomLoop`` and override
``compute_loss``, ``train_step`` or ``test_step``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from compare.engine import strategies
from compare.engine.run import Run, scalars
from compare.trainers import losses, precision
from compare.trainers.callbacks import Callbacks
from compare.trainers.coordinator import train_with_coordinator
from compare.trainers.iteration import Iteration, tracing
from compare.trainers.outputs import KERAS_3, Outputs


class CustomLoop:
    """Trains with a loop over distributed batches, in one of three ways (``run.execution``), bit for bit the same.

    Attributes, for use in the methods that a subclass overrides:
        strategy: the run's strategy.
        model, optimizer, loss: as the run built them, in the strategy's scope.
        metrics: the experiment's metrics; they serve training and, reset, validation.
        outputs: which loss and metrics belong to which output; most models have one only.
        loss_metric: the mean loss over the examples seen so far.
        class_weight: class to weight, for the training loss; None for none.
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
        self.strategy = run.strategy
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        self.class_weight = run.class_weight
        first_epoch, every_validation = run.train_dataset(run.epochs[0]), run.validation_dataset()
        validation = strategies.distribute(self.strategy, every_validation)
        training = strategies.distribute(self.strategy, first_epoch)
        with self.strategy.scope():
            # Whatever owns variables is made in scope, metrics too: otherwise each replica's
            # variables drift apart, or the numbers come from one replica only.
            self.loss_metric = tf.keras.metrics.Mean(name="loss")
            self.outputs = Outputs(
                self.model,
                first_epoch.element_spec[0],
                loss=self.loss,
                loss_weights=run.loss_weights,
                metrics=self.metrics,
                weighted_metrics=run.weighted_metrics,
            )
        if isinstance(self.strategy, tf.distribute.ParameterServerStrategy):
            return train_with_coordinator(self, run)

        # The signature leaves the batch size open. Without it the functions are traced anew for the
        # short last batch, and with a static shape batch normalization rounds differently from fit.
        # Something is returned, since TensorFlow does not optimize the graph of a function that returns
        # nothing: sums would be taken in another order than in fit, and the last bit would tell.
        replicas = self.strategy.num_replicas_in_sync
        traced = tracing(run.execution, self.model, replicas)

        @tf.function(input_signature=[training.element_spec], **traced)
        def train_on_batch(batch: Any) -> tf.Tensor:
            self.strategy.run(self.train_step, args=(batch,))
            return tf.constant(True)

        @tf.function(input_signature=[validation.element_spec], **traced)
        def test_on_batch(batch: Any) -> tf.Tensor:
            self.strategy.run(self.test_step, args=(batch,))
            return tf.constant(True)

        # The three ways of iterating differ only in how many batches one call from Python takes.
        in_training = Iteration(run.execution, train_on_batch, _batches(first_epoch), replicas)
        in_validation = Iteration(run.execution, test_on_batch, _batches(every_validation), replicas)

        callbacks = Callbacks(run, self.model, self.optimizer, self._named_metrics())
        callbacks.on_train_begin({})
        for epoch in run.epochs:
            callbacks.on_epoch_begin(epoch - 1, {})  # Keras counts epochs from 0
            # Asked for anew in every epoch: a data set that is distributed once and iterated again
            # gives the same order again, unless it reshuffles itself.
            training = strategies.distribute(self.strategy, run.train_dataset(epoch))
            for call in in_training.calls(training):
                callbacks.on_train_batch_begin(call.first, {})
                call.make()
                callbacks.on_train_batch_end(call.last, callbacks.logs_so_far())
                run.end_step(call.steps) if call.steps > 1 else run.end_step()
                if self.model.stop_training:
                    break
            logs = self.results()

            callbacks.on_test_begin({})
            for call in in_validation.calls(validation):
                callbacks.on_test_batch_begin(call.first, {})
                call.make()
                callbacks.on_test_batch_end(call.last, callbacks.logs_so_far())
            validation_logs = self.results()
            callbacks.on_test_end(validation_logs)

            logs |= {f"val_{name}": value for name, value in validation_logs.items()}
            callbacks.on_epoch_end(epoch - 1, logs)
            run.end_epoch(epoch, logs)
            if self.model.stop_training:
                break
        # An optimizer that keeps a moving average of the weights puts it in their place at the end.
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        callbacks.on_train_end(logs)

    def train_step(self, batch: Any) -> None:
        """One optimizer step on one replica's part of a batch.

        Args:
            batch: (x, y) or (x, y, sample_weight), tensors of this replica's ``[examples, ...]``, or
                tuples or dicts of them.
        """
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        # A class's weight is that of each of its examples: in training only, as with fit.
        sample_weight = losses.with_class_weight(self.class_weight, y, sample_weight)
        with tf.GradientTape() as tape:
            # training=True switches dropout on, and batch normalization to the batch's statistics.
            predictions = self.model(x, training=True)
            loss = self.compute_loss(y, predictions, sample_weight)
            # apply_gradients sums the gradients over the replicas, so each contributes its share
            # only. (Times 1/3 rounds differently from divided by 3, and fit multiplies.)
            share = loss * (1.0 / self.strategy.num_replicas_in_sync)
            # In float16 small gradients would vanish: an optimizer that scales losses makes them larger.
            share = precision.scaled(self.optimizer, share)
        variables = self.model.trainable_variables
        gradients = precision.unscaled(self.optimizer, tape.gradient(share, variables))
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._update_metrics(x, y, predictions, sample_weight, loss)

    def test_step(self, batch: Any) -> None:
        """Update loss and metrics with one replica's part of a validation batch."""
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predictions = self.model(x, training=False)
        # fit's validation loss has the regularization losses in it too, so this one has.
        loss = self.compute_loss(y, predictions, sample_weight)
        self._update_metrics(x, y, predictions, sample_weight, loss)

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> tf.Tensor:
        """This replica's loss, a scalar: the mean over its own examples, and the model's own losses.

        The mean over replicas of what this returns is the loss that is trained. Where there are several
        outputs, each one's own loss is counted on the way, to be reported.

        Args:
            y: this replica's labels, ``[examples, ...]``; a tuple or dict of them for several outputs.
            predictions: what the model made of its inputs, ``[examples, ...]``, or several of them.
            sample_weight: ``[examples]``, for each output or for all, or None.
        """
        means = []
        for output, *its in self.outputs.split(y, predictions, sample_weight):
            if output.loss is not None:
                with tf.name_scope(losses.SCOPE + output.loss.name):  # names decide on rounding: see losses.total
                    means.append((output, self._mean_loss(output.loss, *its)))
        # Regularization, activity regularization and whatever a layer gave to add_loss.
        examples = tf.shape(tf.nest.flatten(y)[0])[0]
        return losses.total(means, self.model.losses, examples, self.strategy.num_replicas_in_sync)

    def _mean_loss(self, loss: Any, y: tf.Tensor, predictions: tf.Tensor, sample_weight: Any) -> tf.Tensor:
        summed = losses.reduction(loss) == "sum"
        mask = _mask(predictions, getattr(loss, "dtype", predictions.dtype))
        if mask is not None:
            # Padding must not count, and Loss.call knows nothing of masks. The positions that are not
            # masked weigh so much more that the division by all, below, is in effect by their number.
            if not summed:
                mask *= tf.math.divide_no_nan(tf.cast(tf.size(mask), mask.dtype), tf.reduce_sum(mask))
            sample_weight = _times(sample_weight, mask)
        # Loss.call gives one value per example. Loss.__call__ would reduce them itself, differently
        # in Keras 3 (mean / replicas) and Keras 2 (an error inside strategy.run).
        per_example = losses.per_example(loss, y, predictions, sample_weight)
        if summed:  # over all replicas' examples; this returns the replicas' mean
            return tf.reduce_sum(per_example) * self.strategy.num_replicas_in_sync
        # Divided by the number of this replica's own examples, as fit does, and not by their weights'
        # sum. The tutorials' constant GLOBAL_BATCH_SIZE makes a short last batch count too little.
        count = tf.cast(tf.size(per_example), per_example.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(per_example), count)

    def _update_metrics(self, x: Any, y: Any, predictions: Any, sample_weight: Any, loss: tf.Tensor) -> None:
        # Each batch's loss counts by its examples, so that the short one counts less. The loss is
        # the unscaled one: what the replicas contribute to the gradient is smaller by their number.
        examples = tf.shape(tf.nest.flatten(x)[0])[0]
        self.loss_metric.update_state(loss, sample_weight=examples)
        for output, its_y, its_predictions, its_weight in self.outputs.split(y, predictions, sample_weight):
            # Keras 3's metrics look for a mask themselves; Keras 2's are given it as sample weights.
            mask = None if KERAS_3 else _mask(its_predictions, its_predictions.dtype)
            for metric in output.metrics:
                metric.update_state(its_y, its_predictions, *([] if mask is None else [mask]))
            for metric in output.weighted_metrics:
                metric.update_state(its_y, its_predictions, _times(its_weight, mask))

    def _named_metrics(self) -> dict[str, Any]:
        # The last are metrics that the model's own layers update while they are called.
        own = {metric.name: metric for metric in self.model.metrics}
        return {self.loss_metric.name: self.loss_metric} | self.outputs.metrics | own

    def results(self) -> dict[str, float]:
        """The metrics as they stand, which are then reset: they would go on counting otherwise."""
        metrics = self._named_metrics()
        results = scalars({name: metric.result() for name, metric in metrics.items()})
        for metric in metrics.values():
            metric.reset_state()
        return results


def _batches(dataset: tf.data.Dataset) -> int:
    return int(dataset.cardinality())


def _mask(predictions: tf.Tensor, dtype: Any) -> Any:
    """1 where a prediction counts and 0 where the model masked it (``mask_zero``, say); None without a mask.

    Keras hangs masks on its tensors, and every operation on a tensor loses it: even a cast.
    """
    mask = getattr(predictions, "_keras_mask", None)
    return None if mask is None else tf.cast(mask, dtype)


def _times(sample_weight: Any, mask: Any) -> Any:
    if sample_weight is None or mask is None:
        return mask if sample_weight is None else sample_weight
    return tf.cast(sample_weight, mask.dtype) * mask
