"""The ``Experiment``: data, model, loss, optimizer and metrics, shared by all trainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

Part = tuple[Any, ...]
"""(x, y) or (x, y, sample_weight): arrays of equal length, or tuples or dicts of such arrays."""


def nothing() -> list[Any]:
    """Returns an empty list: the default of ``build_metrics``, ``build_weighted_metrics`` and ``build_callbacks``."""
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training task, independent of the trainer.

    Attributes:
        name: name of the experiment in file names, tables and plots.
        load_data: ``() -> (training, validation)``. Each of the two is ``(x, y)`` or ``(x, y, sample_weight)``: NumPy
            arrays with the examples along the first axis, or tuples or dicts of arrays. Alternatively, each may be a
            function ``(epoch) -> tf.data.Dataset`` of single examples of the same form, in the order in which the
            epoch uses them; for validation, the function is called with epoch 1.
        build_model: ``() -> tf.keras.Model``, Sequential, functional or subclassed, with any number of inputs and
            outputs.
        build_loss: ``() -> tf.keras.losses.Loss``; for several outputs a list or dict of losses, as in ``compile``, or
            a single loss for all outputs.
        build_optimizer: ``() -> tf.keras.optimizers.Optimizer``; or with a parameter named ``global_batch_size``, for a
            learning rate that depends on it.
        build_metrics: ``() -> list[tf.keras.metrics.Metric]``, metrics that ignore sample weights; for several outputs
            a list or dict of lists, as in ``compile``. Names ("accuracy") and functions become the metrics that
            ``compile`` would make of them. By default, or for None, there are no metrics.
        build_weighted_metrics: the same, for metrics that use sample and class weights.
        loss_weights: the weight of each output's loss, as in ``compile``.
        class_weight: maps each class to its weight in training, as in ``fit``.
        build_callbacks: ``() -> list[tf.keras.callbacks.Callback]``, the callbacks passed to ``fit`` (a learning rate
            schedule or early stopping, say); other trainers must have the same effect.
        prepare: ``(x, y[, w]) -> (x, y[, w])`` on a batch of tensors, traced into the input pipeline. Cast and scale
            here, so that only the raw arrays are kept in memory. The same examples must always give the same result.
        data_source: description of the origin of the data; shown wherever the run is described.
        notes: what a reader must know before trusting the results (a fallback, say); shown in the first lines of
            output, in ``run.json`` and on the plot.
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
        """Returns the experiment with ``global_batch_size`` bound in ``build_optimizer``, if it has that parameter."""
        try:
            has_parameter = "global_batch_size" in inspect.signature(self.build_optimizer).parameters
        except (TypeError, ValueError):  # not callable; reported when it is called
            return self
        if not has_parameter:
            return self
        return replace(self, build_optimizer=partial(self.build_optimizer, global_batch_size=global_batch_size))
