"""What is trained: data, model, loss, optimizer and metrics, shared by all trainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

Part = tuple[Any, ...]
"""(x, y) or (x, y, sample_weight): arrays, or tuples or dicts of arrays, equally long."""


def nothing() -> list[Any]:
    """The default ``build_metrics``, ``build_weighted_metrics`` and ``build_callbacks``: an empty list."""
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training task, independent of who trains it.

    Attributes:
        name: what the task is called in file names, tables and plots.
        load_data: ``() -> (training, validation)``. Each of the two is ``(x, y)`` or ``(x, y,
            sample_weight)``: NumPy arrays with the examples along the first axis, or tuples or dicts
            of them. Or it is a function ``(epoch) -> tf.data.Dataset`` of single examples of the same
            form, in the order in which that epoch is to see them; validation is asked for epoch 1.
        build_model: ``() -> tf.keras.Model``, Sequential, functional or subclassed; any number of inputs
            and outputs.
        build_loss: ``() -> tf.keras.losses.Loss``; for several outputs a list or dict of them as
            ``compile`` takes it, or one that serves all outputs.
        build_optimizer: ``() -> tf.keras.optimizers.Optimizer``; or with a parameter ``global_batch_size``, for
            a learning rate that goes by it.
        build_metrics: ``() -> list[tf.keras.metrics.Metric]``, which do not see sample weights; for
            several outputs a list or dict of lists as ``compile`` takes it. None by default.
        build_weighted_metrics: the same for metrics that do see sample and class weights.
        loss_weights: the weight of each output's loss, as ``compile`` takes it.
        class_weight: class to weight, for training, as ``fit`` takes it.
        build_callbacks: ``() -> list[tf.keras.callbacks.Callback]`` that ``fit`` is given (a learning rate
            schedule, early stopping); other trainers must do what they do.
        prepare: ``(x, y[, w]) -> (x, y[, w])`` on a batch of tensors, traced into the input
            pipeline: the place to cast and scale, so that memory holds the raw arrays only.
        data_source: where the data came from, in words; shown wherever the run is described.
        notes: what a reader must know before trusting the numbers (a fallback, say); said in the
            first lines of output, in ``run.json`` and on the plot.
    """

    name: str
    load_data: Callable[[], tuple[Any, Any]]
    build_model: Callable[[], tf.keras.Model]
    build_loss: Callable[[], Any]
    build_optimizer: Callable[..., tf.keras.optimizers.Optimizer]
    build_metrics: Callable[[], Any] = nothing
    build_weighted_metrics: Callable[[], Any] = nothing
    loss_weights: Any = None
    class_weight: Mapping[int, float] | None = None
    build_callbacks: Callable[[], list[tf.keras.callbacks.Callback]] = nothing
    prepare: Callable[..., Part] | None = None
    data_source: str = ""
    notes: tuple[str, ...] = ()

    def with_batches_of(self, global_batch_size: int) -> Experiment:
        """The same, its ``build_optimizer`` knowing how many examples a step has over all replicas."""
        try:
            wanted = "global_batch_size" in inspect.signature(self.build_optimizer).parameters
        except (TypeError, ValueError):  # nothing that can be called; whoever calls it says so
            return self
        if not wanted:
            return self
        return replace(self, build_optimizer=partial(self.build_optimizer, global_batch_size=global_batch_size))
