"""What is trained: data, model, loss, optimizer and metrics, shared by all trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

Part = tuple[Any, ...]
"""(x, y) or (x, y, sample_weight): arrays, or tuples or dicts of arrays, equally long."""


def no_metrics() -> list[tf.keras.metrics.Metric]:
    """The default ``build_metrics``: the loss is reported all the same."""
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training task, independent of who trains it.

    Attributes:
        name: what the task is called in file names, tables and plots.
        load_data: ``() -> ((x_train, y_train), (x_val, y_val))``. x and y are NumPy arrays with the
            examples along the first axis, or tuples or dicts of them; each part may carry a third
            array, the sample weights.
        build_model: ``() -> tf.keras.Model``, Sequential, functional or subclassed.
        build_loss: ``() -> tf.keras.losses.Loss``.
        build_optimizer: ``() -> tf.keras.optimizers.Optimizer``.
        build_metrics: ``() -> list[tf.keras.metrics.Metric]``; none by default.
        prepare: ``(x, y[, w]) -> (x, y[, w])`` on a batch of tensors, traced into the input
            pipeline: the place to cast and scale, so that memory holds the raw arrays only.
        data_source: where the data came from, in words; shown wherever the run is described.
        notes: what a reader must know before trusting the numbers (a fallback, say); said in the
            first lines of output, in ``run.json`` and on the plot.
    """

    name: str
    load_data: Callable[[], tuple[Part, Part]]
    build_model: Callable[[], tf.keras.Model]
    build_loss: Callable[[], tf.keras.losses.Loss]
    build_optimizer: Callable[[], tf.keras.optimizers.Optimizer]
    build_metrics: Callable[[], list[tf.keras.metrics.Metric]] = no_metrics
    prepare: Callable[..., Part] | None = None
    data_source: str = ""
    notes: tuple[str, ...] = ()
