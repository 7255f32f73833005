"""Three ways of going through an epoch, as TensorFlow's tutorials show them: all make the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from compare.options import Execution
from compare.trainers.outputs import KERAS_3


def tracing(execution: Execution, model: tf.keras.Model, replicas: int) -> dict[str, Any]:
    """How to trace the function for a batch: arguments of ``tf.function``."""
    # Inside a loop's body oneDNN takes the gradients of a convolution's bias on several replicas in another order than
    # outside, unless the step stays a function of its own; which no other layer needs, nor bears without rounding.
    convolution = any("Conv" in type(layer).__name__ for layer in model._flatten_layers())
    alone = execution.iteration == "function" and replicas > 1 and convolution
    attributes = {"experimental_attributes": {"_noinline": True}} if alone else {}
    return {"jit_compile": execution.jit_compile or None, **attributes}


class Call(NamedTuple):
    """One call of TensorFlow from Python, to be made: the number of its first step, from 0, and how many it makes."""

    first: int
    steps: int
    make: Callable[[], Any]

    @property
    def last(self) -> int:
        """The number of its last step."""
        return self.first + self.steps - 1


class Iteration:
    """Calls a function for every batch of a data set: from Python, or several batches inside a ``tf.function``.

    Args:
        execution: which way, and how many batches in one call.
        on_batch: the ``tf.function`` to call for a batch.
        batches: how many an epoch has.
        replicas: how many share a batch.
    """

    def __init__(self, execution: Execution, on_batch: Any, batches: int, replicas: int) -> None:
        # As fit has it in each generation: Keras 2's steps are inline, and what the last one gives is asked for,
        # for which AutoGraph traces the loop's body twice. Dropout's seeds go by such things in Keras 2.
        inline = execution.steps_per_execution > 1 and not KERAS_3
        step = on_batch.python_function if inline else on_batch

        @tf.function
        def on_batches(iterator: Any, count: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(count):
                done = step(next(iterator))
            return done

        @tf.function
        def on_next_batch(iterator: Any, count: tf.Tensor) -> tf.Tensor:
            return on_batch(next(iterator))

        self._from_python = execution.iteration == "for"
        self._at_once = batches if execution.iteration == "function" else execution.steps_per_execution
        self._on_batch, self._batches = on_batch, batches
        self._on_batches = on_batches if self._at_once > 1 else on_next_batch
        # Within a call TensorFlow keeps to the shapes that replicas exchanged first. An embedding's gradients have as
        # many rows as a batch has examples, so that the last batch, which may be short, has a call of its own.
        self._together = batches - 1 if replicas > 1 and self._at_once > 1 else batches

    def calls(self, dataset: Any) -> Iterator[Call]:
        """The calls of one epoch, in order; each must be made before the next is asked for.

        Args:
            dataset: a data set of global batches, distributed where there are replicas to distribute them to.
        """
        if self._from_python:
            for step, batch in enumerate(dataset):
                yield Call(step, 1, partial(self._on_batch, batch))
            return
        iterator = iter(dataset)
        step = 0
        while step < self._batches:
            end = self._together if step < self._together else self._batches
            count = min(self._at_once, end - step)
            # A tensor: a Python number would have the function traced anew for each.
            yield Call(step, count, partial(self._on_batches, iterator, tf.constant(count)))
            step += count
