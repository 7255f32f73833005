"""Three ways of iterating over an epoch, as in TensorFlow's tutorials; all of them execute the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from compare.engine.keras_generation import step_in_a_call
from compare.execution import Execution


def function_options(execution: Execution, model: tf.keras.Model, replicas: int) -> dict[str, Any]:
    """Returns the keyword arguments with which ``tf.function`` has to trace a distributed step of this model."""
    # Inside a loop body on several replicas, oneDNN sums the gradient of a convolution's bias in a different order,
    # unless the step is kept as a separate function (not inlined). No other layer needs that, and with other layers it
    # would itself change the rounding.
    convolution = any("Conv" in type(layer).__name__ for layer in model._flatten_layers())
    separate = execution.iteration == "function" and replicas > 1 and convolution
    attributes = {"experimental_attributes": {"_noinline": True}} if separate else {}
    return {"jit_compile": execution.jit_compile or None, **attributes}


class Call(NamedTuple):
    """One call of a ``tf.function`` from Python, which executes one or more steps.

    Attributes:
        first_step: number of its first step in the epoch, from 0.
    """

    first_step: int
    steps: int
    execute: Callable[[], Any]

    @property
    def last_step(self) -> int:
        """Number of its last step in the epoch, from 0."""
        return self.first_step + self.steps - 1


class Iteration:
    """Calls a step function for every batch of a dataset, either from Python or in a loop inside a ``tf.function``.

    The step function takes a distributed batch; of the dataset of one epoch, only the cardinality is used.
    """

    def __init__(
        self, execution: Execution, step_function: Any, dataset: tf.data.Dataset, strategy: tf.distribute.Strategy
    ) -> None:
        step = step_in_a_call(step_function) if execution.steps_per_execution > 1 else step_function

        @tf.function
        def several_steps(iterator: Any, count: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(count):
                done = step(next(iterator))
            return done

        @tf.function
        def single_step(iterator: Any, count: tf.Tensor) -> tf.Tensor:
            return step_function(next(iterator))

        batches = int(dataset.cardinality())
        self._from_python = execution.iteration == "for"
        self._steps_per_call = batches if execution.iteration == "function" else execution.steps_per_execution
        self._step_function, self._batches = step_function, batches
        self._on_iterator = several_steps if self._steps_per_call > 1 else single_step
        # Within a call, all-reduce requires the shapes of the first batch. The gradient of an embedding has as many
        # rows as the batch has examples, so the last batch, which may be short, gets a separate call.
        separate_last_batch = strategy.num_replicas_in_sync > 1 and self._steps_per_call > 1
        self._grouped_batches = batches - 1 if separate_last_batch else batches

    def calls(self, dataset: Any, made: int = 0) -> Iterator[Call]:
        """Yields the calls of one epoch in order; execute each call before requesting the next one.

        The dataset lacks the batches of the steps that were ``made`` before.
        """
        if self._from_python:
            for step, batch in enumerate(dataset, made):
                yield Call(step, 1, partial(self._step_function, batch))
            return
        iterator = iter(dataset)
        step = made
        while step < self._batches:
            end = self._grouped_batches if step < self._grouped_batches else self._batches
            count = min(self._steps_per_call, end - step)
            # A tensor, because each new Python number would cause the function to be retraced.
            yield Call(step, count, partial(self._on_iterator, iterator, tf.constant(count)))
            step += count
