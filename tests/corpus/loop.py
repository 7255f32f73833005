"""The plain training loop of ``corpus.cells``, in small parts that styles and faults override."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

SUM = tf.distribute.ReduceOp.SUM


def examples_in(batch: Any) -> tf.Tensor:
    return tf.shape(tf.nest.flatten(batch)[0])[0]


class Loop:
    """The plain style: strategy.run inside a tf.function with an input signature."""

    name = "planted"
    persistent = False
    load_data: Callable[[], Any]
    """The experiment's, for loops that take examples from there and not from the run."""

    def train(self, run: Any) -> None:
        self.run, self.strategy = run, run.strategy
        self.replicas = run.strategy.num_replicas_in_sync
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        with self.strategy.scope():
            self.make()
        self.fit_epochs()

    def make(self) -> None:
        """Whatever owns variables, in scope."""
        self.loss_metric = tf.keras.metrics.Mean(name="loss")
        self.callbacks = self.run.build_callbacks()
        if self.callbacks:
            self.model.optimizer = self.optimizer  # where callbacks look for it
        self.model.stop_training = False
        for callback in self.callbacks:
            callback.set_params({"epochs": self.run.epochs[-1], "verbose": 0})
            callback.set_model(self.model)

    def call_back(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(*arguments)

    def fit_epochs(self) -> None:
        self.on_train = self.compiled(self.train_step, self.distribute(self.batches(self.run.epochs[0])))
        self.on_test = self.compiled(self.test_step, self.distribute(self.validation_batches()))
        self.call_back("on_train_begin")
        for epoch in self.run.epochs:
            self.begin_epoch(epoch)
            self.train_epoch(epoch)
            logs = self.results()
            self.reset_metrics()
            self.call_back("on_test_begin")
            self.validate()
            self.call_back("on_test_end")
            logs |= {f"val_{name}": value for name, value in self.results().items()}
            self.reset_metrics()
            logs = self.reported(logs)
            self.end_epoch(epoch, dict(logs))
            self.run.end_epoch(epoch, logs)
            if getattr(self.model, "stop_training", False):  # a clone has none
                break
        if getattr(self.optimizer, "use_ema", False):
            self.optimizer.finalize_variable_values(self.model.trainable_variables)
        self.call_back("on_train_end")

    def begin_epoch(self, epoch: int) -> None:
        self.call_back("on_epoch_begin", epoch - 1)

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> None:
        self.call_back("on_epoch_end", epoch - 1, logs)

    def train_epoch(self, epoch: int) -> None:
        for i, batch in enumerate(self.distribute(self.batches(epoch))):
            self.call_back("on_train_batch_begin", i)
            self.on_train(batch)
            self.run.end_step()

    def validate(self) -> None:
        for batch in self.distribute(self.validation_batches()):
            self.on_test(batch)

    def batches(self, epoch: int) -> tf.data.Dataset:
        return self.run.train_dataset(epoch)

    def validation_batches(self) -> tf.data.Dataset:
        return self.run.validation_dataset()

    def distribute(self, dataset: tf.data.Dataset) -> Any:
        return self.strategy.experimental_distribute_dataset(dataset)

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        @tf.function(input_signature=[dataset.element_spec])
        def on_batch(batch: Any) -> Any:
            return self.strategy.run(step, args=(batch,))

        return on_batch

    # One replica's step.

    def train_step(self, batch: Any) -> Any:
        x, y, weight = self.unpack(batch)
        with tf.GradientTape(persistent=self.persistent) as tape:
            predictions = self.forward(x)
            loss = self.loss_value(y, predictions, weight)
            scaled = self.scaled(self.share(loss))
        variables = self.variables()
        self.update(self.gradients(tape, scaled, variables), variables)
        return self.record(loss, x, y, predictions, weight)

    def unpack(self, batch: Any) -> Any:
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        if self.run.class_weight is not None:
            weight = tf.gather(
                [self.run.class_weight[i] for i in range(len(self.run.class_weight))], tf.cast(y, tf.int32)
            )
        return x, y, weight

    def forward(self, x: Any) -> Any:
        return self.model(x, training=True)

    def loss_value(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        """The loss over this replica's own examples."""
        return self.data_loss(y, predictions, weight) + self.penalty()

    def data_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        terms = self.terms(y, predictions, weight)
        return tf.add_n(
            [factor * self.mean(self.masked(self.example_losses(*term), term[2])) for factor, *term in terms]
        )

    def terms(self, y: Any, predictions: Any, weight: Any) -> Iterator[tuple[Any, ...]]:
        """(loss weight, loss, labels, predictions, sample weights) of each output."""
        if not isinstance(y, dict):
            yield 1.0, self.loss, y, predictions, weight
            return
        for key in y:
            yield self.run.loss_weights[key], self.loss[key], y[key], predictions[key], weight

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        values = loss.call(y, tf.cast(predictions, getattr(loss, "dtype", predictions.dtype)))  # Keras 2: none
        return values if weight is None else values * tf.cast(weight, values.dtype)

    def masked(self, values: tf.Tensor, predictions: Any) -> tf.Tensor:
        """Leaves out what a layer has masked, so that the mean is one of the others."""
        mask = getattr(predictions, "_keras_mask", None)
        if mask is None:
            return values
        kept = tf.cast(mask, values.dtype)
        return values * kept * tf.math.divide_no_nan(tf.cast(tf.size(kept), kept.dtype), tf.reduce_sum(kept))

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        # Nothing over nothing is 0: the last batch may leave a replica without examples.
        return tf.math.divide_no_nan(tf.reduce_sum(values), tf.cast(tf.size(values), values.dtype))

    def penalty(self) -> Any:
        return tf.add_n([tf.reduce_sum(loss) for loss in self.model.losses]) if self.model.losses else 0.0

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        """What this replica contributes to the sum over all."""
        return loss / self.replicas

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return self.optimizer.scale_loss(loss) if hasattr(self.optimizer, "scale_loss") else loss  # Keras 2: none

    def variables(self) -> list[Any]:
        return list(self.model.trainable_variables)

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        return tape.gradient(loss, variables)

    def update(self, gradients: list[Any], variables: list[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def test_step(self, batch: Any) -> Any:
        x, y, weight = self.unpack_validation(batch)
        predictions = self.predict(x)
        loss = self.validation_loss(y, predictions, weight)
        return self.record_validation(loss, x, y, predictions, weight)

    def unpack_validation(self, batch: Any) -> Any:
        return tf.keras.utils.unpack_x_y_sample_weight(batch)

    def predict(self, x: Any) -> Any:
        return self.model(x, training=False)

    def validation_loss(self, y: Any, predictions: Any, weight: Any) -> tf.Tensor:
        return self.loss_value(y, predictions, weight)

    # The numbers to report.

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        self.loss_metric.update_state(loss, sample_weight=examples_in(x))
        for key, metric in self.named_metrics():
            its_y, its_predictions = (y, predictions) if key is None else (y[key], predictions[key])
            metric.update_state(its_y, its_predictions)

    def record_validation(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return self.record(loss, x, y, predictions, weight)

    def named_metrics(self) -> Iterator[tuple[Any, Any]]:
        """Each metric with its output's key, None for an only output."""
        if not isinstance(self.metrics, dict):
            yield from ((None, metric) for metric in self.metrics)
            return
        for key, metrics in self.metrics.items():
            yield from ((key, metric) for metric in metrics)

    def results(self) -> dict[str, float]:
        logs = {"loss": float(self.loss_metric.result())}
        for key, metric in self.named_metrics():
            logs[metric.name if key is None else f"{key}_{metric.name}"] = float(metric.result())
        return logs

    def reset_metrics(self) -> None:
        for metric in [self.loss_metric, *tf.nest.flatten(self.metrics)]:
            metric.reset_state()

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        return logs
