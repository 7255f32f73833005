"""Which labels, loss, weights and metrics belong to which of a model's outputs: what ``compile`` and ``fit`` decide.

For a loop that trains models with several outputs, as ``compile`` takes them: ``loss``, ``metrics`` and
the like may be one for all outputs, or a list or dict with an entry for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from compare.errors import RequestError

KERAS_3 = hasattr(tf.keras, "__version__")  # tf-keras, which is Keras 2, has none


@dataclass
class Output:
    """One output of a model, and what it is trained and measured with.

    Attributes:
        key: its key or position in what the model puts out; None for an only output.
        name: what its metrics' names begin with; empty for an only output.
        loss: its loss, or None: not every output needs one.
        loss_weight: what its loss counts in the total, or None.
        metrics: the metrics that do not see sample weights.
        weighted_metrics: those that do.
        loss_metric: its own loss, which is reported where there are several; else None.
    """

    key: Any = None
    name: str = ""
    loss: Any = None
    loss_weight: float | None = None
    metrics: list[Any] = field(default_factory=list)
    weighted_metrics: list[Any] = field(default_factory=list)
    loss_metric: Any = None


class Outputs:
    """A model's outputs; metrics that are made here are made in the current strategy's scope.

    Args:
        model: the model, built.
        inputs: a batch of its inputs, as tensor specs.
        loss, loss_weights, metrics, weighted_metrics: as ``compile`` takes them.

    Raises:
        RequestError: for a loss or metric that is not an object (a string, say), and for outputs that
            are nested more deeply than one list or dict.
    """

    def __init__(
        self, model: tf.keras.Model, inputs: Any, *, loss: Any, loss_weights: Any, metrics: Any, weighted_metrics: Any
    ) -> None:
        self._all = _outputs(model, inputs)
        for values, what in ((loss, "build_loss"), (metrics, "build_metrics"), (weighted_metrics, "build_metrics")):
            kind = tf.keras.losses.Loss if what == "build_loss" else tf.keras.metrics.Metric
            for value in tf.nest.flatten(values):
                if value is not None and not isinstance(value, kind):
                    raise RequestError(f"{what} must give tf.keras objects ({kind.__name__}), not {value!r}")
        for output, its_loss in zip(self._all, self._each(loss), strict=True):
            output.loss = its_loss
        for output, weight in zip(self._all, self._each(loss_weights), strict=True):
            output.loss_weight = weight
        for output, its_metrics in zip(self._all, self._each_metrics(metrics), strict=True):
            output.metrics = its_metrics
        for output, its_metrics in zip(self._all, self._each_metrics(weighted_metrics), strict=True):
            output.weighted_metrics = its_metrics
        trained = [output for output in self._all if output.loss is not None]
        if len(trained) > 1 if KERAS_3 else len(self._all) > 1:
            for output in trained:
                output.loss_metric = tf.keras.metrics.Mean(f"{output.name or output.loss.name}_loss")
        self.metrics = self._named_metrics()

    def split(self, y: Any, predictions: Any, sample_weight: Any) -> Iterator[tuple[Output, Any, Any, Any]]:
        """Each output that has labels, with its own labels, predictions and sample weights (or None)."""
        for i, output in enumerate(self._all):
            its_y = self._pick(y, output, i)
            if its_y is None:
                continue
            its_predictions = tf.nest.flatten(predictions)[0] if output.key is None else predictions[output.key]
            # One array of sample weights is for all outputs.
            shared = not tf.nest.is_nested(sample_weight)
            its_weight = sample_weight if shared else self._pick(sample_weight, output, i)
            yield output, *_conform(its_y, its_predictions, its_weight)

    def _pick(self, values: Any, output: Output, position: int) -> Any:
        if len(self._all) == 1:
            return tf.nest.flatten(values)[0]
        if isinstance(values, Mapping):
            return values.get(output.key, values.get(output.name))
        return values[position] if position < len(values) else None

    def _each(self, values: Any) -> list[Any]:
        """One value for each output, from one for all, or a list or dict of them."""
        if len(self._all) == 1:
            return [next(iter(tf.nest.flatten(values)), None)]
        if not tf.nest.is_nested(values):
            return [values for _ in self._all]
        return [self._pick(values, output, i) for i, output in enumerate(self._all)]

    def _each_metrics(self, metrics: Any) -> list[list[Any]]:
        if len(self._all) == 1:
            return [tf.nest.flatten(metrics)]
        flat = isinstance(metrics, (list, tuple)) and not any(tf.nest.is_nested(metric) for metric in metrics)
        if flat and not KERAS_3:
            # Keras 2 measures every output with a copy of each; Keras 3 takes them for one per output.
            return [[type(metric).from_config(metric.get_config()) for metric in metrics] for _ in self._all]
        return [[m for m in tf.nest.flatten(its) if m is not None] for its in self._each(metrics or [])]

    def _named_metrics(self) -> dict[str, Any]:
        """All metrics by the names that ``fit`` reports them under."""
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
    """Add a metric; one whose name is taken gets a number."""
    number = sum(known == name or known.rpartition("_")[0] == name for known in named)
    named[f"{name}_{number}" if name in named else name] = metric


def _outputs(model: tf.keras.Model, inputs: Any) -> list[Output]:
    if len(getattr(model, "outputs", None) or []) == 1:
        return [Output()]
    # A subclassed model does not say what it puts out: it is traced once, to see.
    structure = tf.function(lambda x: model(x, training=False)).get_concrete_function(inputs).structured_outputs
    if len(tf.nest.flatten(structure)) == 1:
        return [Output()]
    names = getattr(model, "output_names", None)
    if isinstance(structure, Mapping):
        keys = sorted(structure)
        names = keys if KERAS_3 else (names or keys)
    else:
        keys = list(range(len(structure)))
        names = names or [("" if KERAS_3 else f"output_{i + 1}") for i in keys]
    if any(tf.nest.is_nested(structure[key]) for key in keys):
        raise RequestError("a model's outputs must be a list, tuple or dict of tensors, not nested more deeply")
    return [Output(key, name) for key, name in zip(keys, names, strict=True)]


def _conform(y: Any, predictions: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """What ``fit`` does to labels and weights before loss and metrics see them: nothing in Keras 3.

    Keras 2 gives labels ``[n]`` of predictions ``[n, k]`` a second axis, and floats the predictions' type.
    """
    if KERAS_3:
        return y, predictions, sample_weight
    if y.shape.rank == 1 and predictions.shape.rank == 2:
        y = y[:, tf.newaxis]
    if y.dtype.is_floating == predictions.dtype.is_floating:
        y = tf.cast(y, predictions.dtype)
    if sample_weight is not None:
        if sample_weight.shape.rank == 1 and predictions.shape.rank == 2:
            sample_weight = sample_weight[:, tf.newaxis]
        sample_weight = tf.cast(sample_weight, predictions.dtype)
    return y, predictions, sample_weight
