"""Assigns labels, losses, weights and metrics to the outputs of a model, as ``compile`` and ``fit`` do.

A custom loop needs this for models with several outputs: as in ``compile``, ``loss``, ``metrics`` and the like may be
a single object for all outputs, or a list or dict with an entry for each output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from compare.engine import keras_generation
from compare.errors import RequestError


@dataclass
class Output:
    """One output of a model, with its loss and metrics.

    Attributes:
        key: key or position in the model's outputs; None for a single output.
        name: prefix of the names of its metrics; empty for a single output.
        loss: its loss, or None for an output that is not trained.
        loss_weight: weight of its loss in the total loss, or None for 1.
        loss_metric: reports its loss if the model has several outputs; else None.
    """

    key: Any = None
    name: str = ""
    loss: Any = None
    loss_weight: float | None = None
    metrics: list[Any] = field(default_factory=list)
    weighted_metrics: list[Any] = field(default_factory=list)
    loss_metric: Any = None


class Outputs:
    """The outputs of a model. Create the object under the strategy's scope, because it may create metrics."""

    def __init__(
        self, model: tf.keras.Model, inputs: Any, *, loss: Any, loss_weights: Any, metrics: Any, weighted_metrics: Any
    ) -> None:
        self._all = _outputs(model, inputs)
        for value in tf.nest.flatten(loss):
            if value is not None and not isinstance(value, tf.keras.losses.Loss):
                raise RequestError(f"build_loss must return tf.keras objects (Loss), not {value!r}")
        of_losses = self._per_output(loss), self._per_output(loss_weights)
        of_metrics = self._metrics_per_output(metrics), self._metrics_per_output(weighted_metrics)
        for output, *given in zip(self._all, *of_losses, *of_metrics, strict=True):
            output.loss, output.loss_weight, output.metrics, output.weighted_metrics = given
            for metric in [*output.metrics, *output.weighted_metrics]:
                keras_generation.read_masks(metric)
        trained = [output for output in self._all if output.loss is not None]
        if keras_generation.reports_output_losses(len(self._all), len(trained)):
            for output in trained:
                output.loss_metric = tf.keras.metrics.Mean(f"{output.name or output.loss.name}_loss")
        self.metrics = self._named_metrics()

    def split(self, y: Any, predictions: Any, sample_weight: Any) -> Iterator[tuple[Output, Any, Any, Any]]:
        """Yields each output that has labels, with its labels, predictions and sample weights (or None)."""
        for i, output in enumerate(self._all):
            output_y = self._pick(y, output, i)
            if output_y is None:
                continue
            output_predictions = tf.nest.flatten(predictions)[0] if output.key is None else predictions[output.key]
            # A single array of sample weights applies to all outputs.
            shared = not tf.nest.is_nested(sample_weight)
            output_weight = sample_weight if shared else self._pick(sample_weight, output, i)
            yield output, *keras_generation.conform(output_y, output_predictions, output_weight)

    def _pick(self, values: Any, output: Output, position: int) -> Any:
        """Returns the entry for one output, or None."""
        if len(self._all) == 1:
            return tf.nest.flatten(values)[0]
        if isinstance(values, Mapping):
            return values.get(output.key, values.get(output.name))
        return values[position] if position < len(values) else None

    def _per_output(self, values: Any) -> list[Any]:
        """Expands a single value, or a list or dict of values, to one value for each output."""
        if len(self._all) == 1:
            return [next(iter(tf.nest.flatten(values)), None)]
        if not tf.nest.is_nested(values):
            return [values for _ in self._all]
        return [self._pick(values, output, i) for i, output in enumerate(self._all)]

    def _metrics_per_output(self, metrics: Any) -> list[list[Any]]:
        if len(self._all) == 1:
            return [tf.nest.flatten(metrics)]
        flat = isinstance(metrics, (list, tuple)) and not any(tf.nest.is_nested(metric) for metric in metrics)
        if flat and keras_generation.SHARES_METRICS:
            return [[type(metric).from_config(metric.get_config()) for metric in metrics] for _ in self._all]
        return [
            [metric for metric in tf.nest.flatten(output_metrics) if metric is not None]
            for output_metrics in self._per_output(metrics or [])
        ]

    def _named_metrics(self) -> dict[str, Any]:
        """Returns all metrics by the names under which ``fit`` reports them."""
        named: dict[str, Any] = {}
        for output in self._all:
            for metric in output.metrics:
                _add(named, f"{_prefix(output)}{metric.name}", metric)
        for output in self._all:
            for metric in output.weighted_metrics:
                name = f"{_prefix(output)}{metric.name}"
                _add(named, f"{_prefix(output)}weighted_{metric.name}" if name in named else name, metric)
        losses = [output.loss_metric for output in self._all if output.loss_metric is not None]
        return named | {metric.name: metric for metric in losses}


def _prefix(output: Output) -> str:
    return f"{output.name}_" if output.name else ""


def _add(named: dict[str, Any], name: str, metric: Any) -> None:
    """Adds a metric; appends a number to its name if the name is taken."""
    number = sum(known == name or known.rpartition("_")[0] == name for known in named)
    named[f"{name}_{number}" if name in named else name] = metric


def _outputs(model: tf.keras.Model, inputs: Any) -> list[Output]:
    if len(getattr(model, "outputs", None) or []) == 1:
        return [Output()]
    # A subclassed model does not declare its outputs, so it is traced once to find them.
    structure = tf.function(lambda x: model(x, training=False)).get_concrete_function(inputs).structured_outputs
    if len(tf.nest.flatten(structure)) == 1:
        return [Output()]
    keys = sorted(structure) if isinstance(structure, Mapping) else list(range(len(structure)))
    if any(tf.nest.is_nested(structure[key]) for key in keys):
        raise RequestError(
            "the model's outputs are nested too deeply: build_model must return a model whose output is a tensor, or a "
            "list, tuple or dict of tensors"
        )
    return [Output(key, name) for key, name in zip(keys, keras_generation.output_names(model, keys), strict=True)]
