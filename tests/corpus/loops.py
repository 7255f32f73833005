"""Styles of running the steps of a right loop, and of reporting; those of a step itself are in ``steps.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from corpus.loop import SUM, Loop, examples_in


class Signature(Loop):
    """The plain loop as it is."""


# How a step is run.


class Eager(Loop):
    """No tf.function at all."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        return lambda batch: self.strategy.run(step, args=(batch,))


class Retracing(Loop):
    """A tf.function without signature, traced again for the short last batch."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        return tf.function(lambda batch: self.strategy.run(step, args=(batch,)))


class ReplicaFunction(Loop):
    """The tf.function is what each replica runs; strategy.run is called from Python."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        function = tf.function(step)
        return lambda batch: self.strategy.run(function, args=(batch,))


class NoStrategy(Loop):
    """A loop of somebody who never heard of strategies."""

    def distribute(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        return tf.function(step, reduce_retracing=True)

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(values)


class EagerNoStrategy(NoStrategy):
    """The first loop of every tutorial: for x, y in dataset, a tape, apply_gradients."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        return step


class NextInside(Loop):
    """The iterator goes into the tf.function, which calls next()."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        @tf.function
        def on_next(iterator: Any) -> Any:
            return self.strategy.run(step, args=(next(iterator),))

        return on_next

    def train_epoch(self, epoch: int) -> None:
        dataset = self.batches(epoch)
        iterator = iter(self.distribute(dataset))
        for _ in range(int(dataset.cardinality())):
            self.on_train(iterator)
            self.run.end_step()

    def validate(self) -> None:
        dataset = self.validation_batches()
        iterator = iter(self.distribute(dataset))
        for _ in range(int(dataset.cardinality())):
            self.on_test(iterator)


class EpochFunction(Loop):
    """A whole epoch in one call; Python sees its end only."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        @tf.function
        def on_epoch(iterator: Any, steps: tf.Tensor) -> None:
            for _ in tf.range(steps):
                self.strategy.run(step, args=(next(iterator),))

        return on_epoch

    def train_epoch(self, epoch: int) -> None:
        dataset = self.batches(epoch)
        self.on_train(iter(self.distribute(dataset)), dataset.cardinality())

    def validate(self) -> None:
        dataset = self.validation_batches()
        self.on_test(iter(self.distribute(dataset)), dataset.cardinality())


class StepsOfThree(EpochFunction):
    """Three steps in each call, or what is left of the epoch."""

    def train_epoch(self, epoch: int) -> None:
        dataset = self.batches(epoch)
        iterator, left = iter(self.distribute(dataset)), int(dataset.cardinality())
        while left:
            steps = min(3, left)
            self.on_train(iterator, tf.constant(steps, tf.int64))
            self.run.end_step(steps)
            left -= steps


class EpochOverDataset(NoStrategy):
    """A whole epoch in one call, as ``for batch in dataset`` inside the tf.function."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        @tf.function
        def on_epoch(dataset: tf.data.Dataset) -> None:
            for batch in dataset:
                step(batch)

        return on_epoch

    def train_epoch(self, epoch: int) -> None:
        self.on_train(self.batches(epoch))

    def validate(self) -> None:
        self.on_test(self.validation_batches())


class WholeEpoch(Loop):
    """A whole epoch in one call, as ``for batch in dataset`` over distributed batches."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        @tf.function
        def on_epoch(dataset: Any) -> None:
            for batch in dataset:
                self.strategy.run(step, args=(batch,))

        return on_epoch

    def train_epoch(self, epoch: int) -> None:
        self.on_train(self.distribute(self.batches(epoch)))

    def validate(self) -> None:
        self.on_test(self.distribute(self.validation_batches()))


class RunEagerly(Loop):
    """tf.function everywhere, and all of it switched off."""

    def train(self, run: Any) -> None:
        tf.config.run_functions_eagerly(True)
        try:
            super().train(run)
        finally:
            tf.config.run_functions_eagerly(False)


class CompiledByXla(Loop):
    """The training step is compiled by XLA, which TensorFlow supports on one replica only."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        if step != self.train_step:
            return super().compiled(step, dataset)
        return tf.function(lambda batch: self.strategy.run(step, args=(batch,)), jit_compile=True)


class Backwards(Loop):
    """Reverses each replica's examples, so that sums are taken in another order."""

    def unpack(self, batch: Any) -> Any:
        return super().unpack(tf.nest.map_structure(lambda tensor: tf.reverse(tensor, [0]), batch))


class NumpySlices(Loop):
    """All of an epoch as NumPy arrays, cut into batches by hand, and those into replicas' halves."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        return tf.function(lambda batch: self.strategy.run(step, args=(batch,)))

    def train_epoch(self, epoch: int) -> None:
        for batch in self.slices(self.batches(epoch)):
            self.on_train(batch)
            self.run.end_step()

    def validate(self) -> None:
        for batch in self.slices(self.validation_batches()):
            self.on_test(batch)

    def slices(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        arrays = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *dataset.as_numpy_iterator())
        count, size = len(tf.nest.flatten(arrays)[0]), self.run.global_batch_size
        for start in range(0, count, size):
            yield self.spread(tf.nest.map_structure(lambda array, start=start: array[start : start + size], arrays))

    def spread(self, batch: Any) -> Any:
        half = -(-len(tf.nest.flatten(batch)[0]) // self.replicas)

        def part(context: Any) -> Any:
            first = context.replica_id_in_sync_group * half
            return tf.nest.map_structure(lambda array: tf.constant(array[first : first + half]), batch)

        return self.strategy.experimental_distribute_values_from_function(part)


# What is reported.


class Silent(Loop):
    """Reports nothing."""

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        return {}


class LossOnly(Loop):
    """Reports the two losses, summed over replicas and batches in Python."""

    def compiled(self, step: Callable[..., Any], dataset: Any) -> Callable[..., Any]:
        on_batch = super().compiled(step, dataset)

        def add(batch: Any) -> None:
            total, count = on_batch(batch)
            self.total += float(self.strategy.reduce(SUM, total, axis=None))
            self.count += int(self.strategy.reduce(SUM, count, axis=None))

        return add

    def record(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        count = examples_in(x)
        return loss * tf.cast(count, loss.dtype), count

    def results(self) -> dict[str, float]:
        return {"loss": self.total / self.count}

    def reset_metrics(self) -> None:
        self.total, self.count = 0.0, 0

    def make(self) -> None:
        super().make()
        self.reset_metrics()


class MetricsApart(Loop):
    """Validation has metrics of its own."""

    def make(self) -> None:
        super().make()
        training = self.loss_metric, self.metrics
        validation = tf.nest.map_structure(lambda metric: type(metric).from_config(metric.get_config()), training)
        self.of_training, self.of_validation = training, validation

    def record_validation(self, loss: Any, x: Any, y: Any, predictions: Any, weight: Any) -> Any:
        self.loss_metric, self.metrics = self.of_validation
        recorded = super().record_validation(loss, x, y, predictions, weight)
        self.loss_metric, self.metrics = self.of_training
        return recorded

    def validate(self) -> None:
        super().validate()
        self.loss_metric, self.metrics = self.of_validation

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.loss_metric, self.metrics = self.of_training


class NumpyValidation(Loop):
    """Validates without the strategy and with NumPy, and reports accuracy alone of it."""

    def validate(self) -> None:
        batches = self.validation_batches()
        right = [y.numpy() == np.argmax(self.model(x, training=False), axis=-1) for x, y, *_ in batches]
        self.accuracy = float(np.mean(np.concatenate(right)))

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        training = {name: value for name, value in logs.items() if not name.startswith("val_")}
        return training | {"val_accuracy": self.accuracy}


# Keras's own machinery.


class Evaluating(Loop):
    """Trains by hand and validates with model.evaluate."""

    def make(self) -> None:
        super().make()
        others = tf.nest.map_structure(lambda metric: type(metric).from_config(metric.get_config()), self.metrics)
        self.model.compile(
            self.optimizer, self.loss, metrics=others, loss_weights=self.run.loss_weights, jit_compile=False
        )

    def validate(self) -> None:
        self.evaluated = self.model.evaluate(self.validation_batches(), return_dict=True, verbose=0)

    def reported(self, logs: dict[str, float]) -> dict[str, float]:
        training = {name: value for name, value in logs.items() if not name.startswith("val_")}
        return training | {f"val_{name}": value for name, value in self.evaluated.items()}


class TrainOnBatch(Loop):
    """compile, train_on_batch and test_on_batch, whose numbers are of one batch each."""

    def fit_epochs(self) -> None:
        with self.strategy.scope():
            self.model.compile(
                self.optimizer, self.loss, metrics=self.metrics, loss_weights=self.run.loss_weights, jit_compile=False
            )
        for epoch in self.run.epochs:
            logs = self.means(self.model.train_on_batch, self.batches(epoch), self.run.end_step)
            validation = self.means(self.model.test_on_batch, self.validation_batches(), lambda: None)
            self.run.end_epoch(epoch, self.reported(logs | {f"val_{name}": validation[name] for name in validation}))

    def means(self, on_batch: Callable[..., Any], dataset: Any, done: Callable[[], None]) -> dict[str, float]:
        total, count = dict[str, float](), 0
        for batch in dataset:
            x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
            weights = {"sample_weight": weight}
            if on_batch == self.model.train_on_batch:
                weights["class_weight"] = self.run.class_weight
            logs = on_batch(x, y, **weights, return_dict=True)
            done()
            examples = int(examples_in(x))
            total = {name: total.get(name, 0.0) + float(logs[name]) * examples for name in self.names(logs)}
            count += examples
        return {name: value / count for name, value in total.items()}

    def names(self, logs: dict[str, Any]) -> list[str]:
        """All but the single outputs' losses, which fit averages in a way of its own."""
        return [name for name in logs if not name.endswith("_loss")]


class OwnTrainStep(Loop):
    """A Model around the model, with its own train_step, trained by fit."""

    def fit_epochs(self) -> None:
        with self.strategy.scope():
            wrapper = wrapped(self)
            wrapper.compile(optimizer=self.optimizer, jit_compile=False)
        end_step = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: self.run.end_step())
        for epoch in self.run.epochs:
            history = wrapper.fit(
                self.batches(epoch),
                epochs=epoch,
                initial_epoch=epoch - 1,
                validation_data=self.validation_batches(),
                callbacks=[*self.run.build_callbacks(), end_step],
                shuffle=False,
                verbose=0,
            )
            self.run.end_epoch(epoch, self.reported({name: values[-1] for name, values in history.history.items()}))


def wrapped(loop: Loop) -> tf.keras.Model:
    class Wrapper(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = loop.model

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.inner(inputs, training=training)

        @property
        def metrics(self) -> list[Any]:
            return [loop.loss_metric, *tf.nest.flatten(loop.metrics)]

        def numbers(self) -> dict[str, Any]:
            named = {"loss": loop.loss_metric}
            named |= {m.name if key is None else f"{key}_{m.name}": m for key, m in loop.named_metrics()}
            return {name: metric.result() for name, metric in named.items()}

        def train_step(self, data: Any) -> dict[str, Any]:
            loop.train_step(data)
            return self.numbers()

        def test_step(self, data: Any) -> dict[str, Any]:
            loop.test_step(data)
            return self.numbers()

    return Wrapper()
