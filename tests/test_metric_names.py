"""Metrics given by name or as functions become the metrics that compile would make of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tasks
from against_fit import held_against_fit, run_of

import compare


def one_output(labels: str) -> compare.Experiment:
    """Three classes as numbers or as vectors, or two classes, with metrics by name."""
    import tensorflow as tf

    def load_data() -> Any:
        return tuple((x, convert(y)) for x, y in tasks.blobs(24, 12))

    convert = {
        "classes": lambda y: y,
        "column": lambda y: y[:, None],
        "vectors": lambda y: np.eye(3, dtype="float32")[y],
        "binary": lambda y: (y[:, None] > 0).astype("float32"),
    }[labels]
    width, loss = {"vectors": (3, tf.keras.losses.CategoricalCrossentropy), "binary": (1, tf.keras.losses.Hinge)}.get(
        labels, (3, tf.keras.losses.SparseCategoricalCrossentropy)
    )
    numbers = ["mse", "MeanAbsoluteError", tf.keras.losses.cosine_similarity] if labels in ("vectors", "binary") else []
    return tasks.experiment(
        load_data=load_data,
        build_model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(width)]),
        build_loss=loss,
        build_metrics=lambda: ["accuracy", *numbers],
        build_weighted_metrics=lambda: ("acc",),
    )


def three_outputs(**options: Any) -> compare.Experiment:
    metrics = {"a": ["accuracy"], "b": None, "c": ["mae", "mse"]}
    of = metrics if options.get("outputs") == "dict" else list(metrics.values())
    return tasks.several(build_metrics=lambda: of, train=24, validation=12, **options)


def odd(make: Any) -> compare.Experiment:
    """Metrics in a form that few people write and compile accepts."""
    import tensorflow as tf

    return replace(one_output("classes"), build_metrics=lambda: make(tf.keras.metrics.SparseCategoricalAccuracy))


CASES: dict[str, Any] = {
    "classes": lambda: one_output("classes"),
    "column": lambda: one_output("column"),
    "vectors": lambda: one_output("vectors"),
    "binary": lambda: one_output("binary"),
    "a class": lambda: odd(lambda kind: [kind]),
    "a tuple": lambda: odd(lambda kind: (kind(), "accuracy")),
    "one twice": lambda: odd(lambda kind: [kind()] * 2),
    "two of one name": lambda: odd(lambda kind: [kind(), kind()]),
    "two by one name": lambda: odd(lambda kind: ["accuracy", "accuracy"]),
    "a list in a list": lambda: odd(lambda kind: [["accuracy"]]),
    "a dict": lambda: odd(lambda kind: {"dense": "accuracy"}),
    "none": lambda: odd(lambda kind: None),
    "three outputs": lambda: three_outputs(),
    "three outputs in a dict": lambda: three_outputs(outputs="dict", kind="subclassed"),
}


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")  # a model with layers in a dict
@pytest.mark.parametrize("name", CASES)
def test_they_are_reported_as_by_fit_itself(tensorflow: Any, name: str) -> None:
    experiment = CASES[name]()
    run = run_of(experiment)
    model, _, loss, metrics = run.build()
    reported = []
    for given in (
        {"metrics": experiment.build_metrics(), "weighted_metrics": experiment.build_weighted_metrics()},
        {"metrics": metrics, "weighted_metrics": run.weighted_metrics},
    ):
        model.compile(loss=loss, **given)
        reported.append(model.evaluate(run.validation_dataset(), verbose=0, return_dict=True))
    assert reported[0] == reported[1]
    assert any("accuracy" in key or key.endswith("acc") for key in reported[0])


def test_fit_and_loop_both_get_them(tensorflow: Any, tmp_path: Any) -> None:
    experiment = three_outputs(outputs="dict")
    (right,) = held_against_fit(experiment, [compare.CustomLoop()], tmp_path, replicas=2)
    assert right.verdict == "identical" and {"a_accuracy", "c_mae", "val_c_mse"} <= set(right.reporting.metrics)


def test_no_metrics_at_all(tensorflow: Any, tmp_path: Any) -> None:
    (right,) = held_against_fit(
        tasks.experiment(build_metrics=lambda: None), [compare.CustomLoop()], tmp_path, replicas=1
    )
    assert right.verdict == "identical" and set(right.reporting.metrics) == {"loss", "val_loss"}


def test_two_accuracies_are_each_measured_as_another_class_would(tensorflow: Any) -> None:
    from compare.check.metric_replay import ReportedMetric
    from compare.check.recipe import MetricFormula

    right = SimpleNamespace(predictions=np.float32([[0.1, 0.9], [0.8, 0.2]]), weights=None, masks=())
    cells: Any = [[SimpleNamespace(y=np.array([1, 1]), right=right)]]
    table: Any = SimpleNamespace(replay=SimpleNamespace(replicas=1, output_losses=()), measured={})
    formula = MetricFormula(metric="SparseCategoricalAccuracy")
    for name in ("accuracy", "accuracy_07"):
        assert ReportedMetric(table, name)._of_rows(formula, cells, 1, 1) == 0.5


def test_a_metric_that_several_runs_would_share_is_refused_by_a_short_check(tensorflow: Any) -> None:
    metric = tensorflow.keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    with pytest.raises(compare.RequestError, match=r"build_metrics \(.*\) returned a metric that was created earlier"):
        compare.assert_alike(tasks.experiment(build_metrics=lambda: [metric]), compare.CustomLoop())
