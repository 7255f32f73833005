"""Converts the metrics of an experiment to ``Metric`` objects, as ``compile`` does, and checks their names."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from compare.engine.building import built
from compare.engine.keras_generation import KEEPS_METRIC_NAMES, METRICS_BY_SHAPE
from compare.errors import RequestError
from compare.experiment import Experiment
from compare.records.metrics_csv import is_column
from compare.user_errors import blaming, place_of

_made: weakref.WeakSet[tf.keras.metrics.Metric] = weakref.WeakSet()
"""The metrics that experiments have returned in this process."""


def metric_objects(experiment: Experiment, model: tf.keras.Model, spec: Any) -> tuple[Any, Any]:
    """Returns an experiment's metrics and weighted metrics as objects; call it under the strategy's scope.

    Names and functions ("accuracy", "mse") become the metrics that ``compile`` would make of them. Lists and dicts
    remain; None becomes an empty list.
    """
    return _objects(experiment, "build_metrics", model, spec), _objects(
        experiment, "build_weighted_metrics", model, spec
    )


def _objects(experiment: Experiment, part: str, model: tf.keras.Model, spec: Any) -> Any:
    function, metrics = getattr(experiment, part), built(experiment, part)
    if metrics is None:
        return []
    if not isinstance(metrics, list | tuple | dict):
        raise RequestError(
            f"{part} ({place_of(function)}) returned {_shown(metrics)}: it must return a list of metrics, or for "
            "several outputs a list or dict of lists"
        )
    with blaming(part, function):
        if not all(isinstance(metric, tf.keras.metrics.Metric) for metric in tf.nest.flatten(metrics)):
            metrics = _converted(metrics, model, spec)
        _check_names(metrics)
    objects = [metric for metric in tf.nest.flatten(metrics) if metric is not None]
    if any(metric in _made for metric in objects):  # what one run has counted would go on in the next
        raise RequestError(
            f"{part} ({place_of(function)}) returned a metric that was created earlier: create a new one in every "
            "call, since each run needs its own"
        )
    _made.update(objects)
    return metrics


def _converted(metrics: Any, model: tf.keras.Model, spec: Any) -> Any:
    outputs: list[Any] = []

    def shapes() -> Any:
        """Returns labels and predictions, traced once and only if a name depends on them."""
        if not outputs:
            forward = tf.function(lambda x: model(x, training=False)).get_concrete_function(spec[0])
            outputs.append(forward.structured_outputs)
        return spec[1], outputs[0]

    several = len(tf.nest.flatten(spec[1])) > 1 or len(tf.nest.flatten(shapes()[1])) > 1
    if not several:
        return tf.nest.map_structure(
            partial(_metric, shapes=lambda: (tf.nest.flatten(each)[0] for each in shapes())), metrics
        )

    def of_output(key: Any) -> Any:
        if metrics[key] is None:
            return []  # an output without metrics
        shapes_of_output = lambda: [_pick(values, key, model) for values in shapes()]  # noqa: E731
        return tf.nest.map_structure(partial(_metric, shapes=shapes_of_output), metrics[key])

    if isinstance(metrics, Mapping):
        return {key: of_output(key) for key in metrics}
    return [of_output(key) for key in range(len(metrics))]


def _metric(metric: Any, shapes: Callable[[], Any]) -> Any:
    if isinstance(metric, tf.keras.metrics.Metric):
        return metric
    if not isinstance(metric, str) and not callable(metric):
        raise RequestError(f"{_shown(metric)} is not a metric: give a tf.keras.metrics.Metric, or a name such as 'mse'")
    family = METRICS_BY_SHAPE.get(metric.lower()) if isinstance(metric, str) else None
    if family is not None:
        labels, predictions = shapes()
        # The rule of compile: https://github.com/keras-team/keras/blob/master/keras/src/trainers/compile_utils.py
        if predictions.shape[-1] == 1:
            kind = "binary"
        elif labels.shape.rank < predictions.shape.rank or labels.shape[-1] == 1:
            kind = "sparse_categorical"
        else:
            kind = "categorical"
        found = tf.keras.metrics.get(f"{kind}_{family}")
    else:
        found = tf.keras.metrics.get(metric)
    if isinstance(found, type):
        found = found()
    if not isinstance(found, tf.keras.metrics.Metric):
        return tf.keras.metrics.MeanMetricWrapper(found, name=metric if isinstance(metric, str) else found.__name__)
    if isinstance(metric, str) and KEEPS_METRIC_NAMES:
        found.name = metric
    return found


def _pick(values: Any, key: Any, model: tf.keras.Model) -> Any:
    """Returns the entry for one output, whose key is its position or its name."""
    names = list(getattr(model, "output_names", None) or [])
    if isinstance(values, Mapping):
        return values[key if key in values else sorted(values)[key]]
    return values[key if isinstance(key, int) else names.index(key)]


def _check_names(metrics: Any) -> None:
    """Refuses names under which results would overwrite other columns of ``metrics.csv``."""
    names = Counter(metric.name for metric in tf.nest.flatten(metrics) if metric is not None)
    for name, count in names.items():
        if not is_column(name) or name == "loss" or name.startswith("val_"):
            raise RequestError(
                f"a metric is called {name!r}, which cannot be used as a column name in metrics.csv: give it "
                "another name"
            )
        # Keras numbers equal names.
        if clash := next((f"{name}_{i}" for i in range(1, count) if f"{name}_{i}" in names), None):
            raise RequestError(
                f"{count} metrics are called {name!r}, which Keras numbers, and another one {clash!r}: "
                "give each another name"
            )


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
