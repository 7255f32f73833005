"""Features of experiments: fit and loop are identical with each, and a loop without it is different."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tasks
import tensorflow as tf
from against_fit import held_against_fit

import compare

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning"),  # a model with layers in a dict
]
CLASS_WEIGHT = {0: 0.5, 1: 2.0, 2: 1.0}


class NoClassWeights(compare.CustomLoop):
    name = "no-class-weights"

    def train(self, run: Any) -> None:
        run.class_weight = None
        super().train(run)


class NoLossWeights(compare.CustomLoop):
    name = "no-loss-weights"

    def train(self, run: Any) -> None:
        run.loss_weights = None
        super().train(run)


class NoCallbacks(compare.CustomLoop):
    name = "no-callbacks"

    def train(self, run: Any) -> None:
        run.build_callbacks = list
        super().train(run)


class NoWeights(compare.CustomLoop):
    name = "no-weights"

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        return super().compute_loss(y, predictions, None)


class NoPenalty(compare.CustomLoop):
    name = "no-penalty"

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        return super().compute_loss(y, predictions, sample_weight) - tf.add_n(self.model.losses)


class UnweightedMetrics(compare.CustomLoop):
    """Trains correctly, but computes its weighted metrics without weights."""

    name = "unweighted-metrics"

    def _update_metrics(self, x: Any, y: Any, predictions: Any, sample_weight: Any, loss: Any) -> None:
        super()._update_metrics(x, y, predictions, None, loss)


def several(**options: Any) -> compare.Experiment:
    """Three outputs, with as many examples as split evenly over the replicas, which Keras 3's fit requires."""
    return tasks.several(train=44, validation=20, **options)


def halve(epoch: int, rate: float) -> float:
    return rate / 2 if epoch else rate


class Stops(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Ends training after the first epoch, and changes the weights."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(variable * 0.5)


class Meddles(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Listens to every batch, moves weights, and adds to what is reported."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if logs["loss"] > 0.8:
            for variable in self.model.trainable_variables:
                variable.assign(variable * 0.99)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["twice"] = 2 * logs["val_loss"]


def stop_and_restore() -> list[Any]:
    """Ends training after the second epoch, and restores the weights of the first."""
    return [tf.keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=1, restore_best_weights=True)]


def moving_average() -> Any:
    return tf.keras.optimizers.Adam(0.05, use_ema=True)


def summed() -> Any:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")


class NoAverage(compare.CustomLoop):
    """Ignores that an optimizer may replace the weights when training ends."""

    name = "no-average"

    def train(self, run: Any) -> None:
        build = run.build

        def built() -> Any:
            model, optimizer, *rest = build()
            optimizer.finalize_variable_values = lambda variables: None
            return model, optimizer, *rest

        run.build = built
        super().train(run)


def weighted_accuracy() -> list[Any]:
    return [tf.keras.metrics.SparseCategoricalAccuracy(name="weighted")]


CASES: dict[str, tuple[Any, type[Any] | None]] = {
    "class weights": (lambda: tasks.experiment(class_weight=CLASS_WEIGHT), NoClassWeights),
    "weighted metrics": (
        lambda: tasks.experiment(weights=True, build_weighted_metrics=weighted_accuracy),
        UnweightedMetrics,
    ),
    "weighted metrics with class weights": (
        lambda: tasks.experiment(class_weight=CLASS_WEIGHT, build_weighted_metrics=weighted_accuracy),
        UnweightedMetrics,
    ),
    "a schedule by callback": (
        lambda: tasks.experiment(build_callbacks=lambda: [tf.keras.callbacks.LearningRateScheduler(halve)]),
        NoCallbacks,
    ),
    "stopping early": (lambda: tasks.experiment(build_callbacks=lambda: [Stops()]), NoCallbacks),
    "weights restored at the end": (lambda: tasks.experiment(build_callbacks=stop_and_restore), NoCallbacks),
    "a callback for every batch": (lambda: tasks.experiment(build_callbacks=lambda: [Meddles()]), NoCallbacks),
    "a moving average of weights": (lambda: tasks.experiment(optimizer=moving_average), NoAverage),
    "a summed loss": (
        lambda: tasks.experiment(weights=True, build_loss=summed, optimizer=lambda: tf.keras.optimizers.SGD(0.01)),
        NoWeights,
    ),
    "three outputs": (lambda: several(loss_weights=[1.0, 0.5, 0.1]), NoLossWeights),
    "three outputs in a dict, from two inputs in a dict": (
        lambda: several(outputs="dict", inputs="dict", loss_weights={"a": 1.0, "b": 0.5, "c": 0.1}),
        NoLossWeights,
    ),
    "sample weights of each output": (lambda: several(outputs="dict", weights="each"), NoWeights),
    "losses of layers, subclassed": (lambda: several(kind="subclassed", extra=True), NoPenalty),
    "batch norm, dropout and regularization together": (
        lambda: tasks.experiment(batch_norm=True, dropout=True, regularize=True, weights=True),
        NoPenalty,
    ),
}


IN_THE_GATE = {
    "weights restored at the end",
    "a callback for every batch",
    "three outputs in a dict, from two inputs in a dict",
}


# In the gate, the gallery and test_check_any have class weights, weighted metrics and sample weights.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_THE_GATE else [pytest.mark.slow]) for name in CASES]
)
def test_fit_and_loop_are_identical_and_a_loop_without_it_is_not(tensorflow: Any, name: str, tmp_path: Any) -> None:
    make, wrong = CASES[name]
    trainers = [compare.CustomLoop(), compare.TrainStep(), *([wrong()] if wrong else [])]
    loop, train_step, *others = held_against_fit(make(), trainers, tmp_path, replicas=2)
    assert loop.verdict == "identical", loop
    assert train_step.verdict == "identical", train_step
    for other in others:
        assert other.verdict == "different", other
        assert (other.training.verdict == "identical") == (wrong is UnweightedMetrics), other


class Summed(compare.CustomLoop):
    name = "summed"

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        return tf.reduce_sum(self.loss.call(y, predictions))


def text_experiment() -> compare.Experiment:
    """Three kinds of sentences, looked up in a vocabulary by the model itself."""

    def load_data() -> Any:
        text = np.array(["red big", "blue small", "green big", "blue big"] * 15)
        labels = np.arange(60) % 4 % 3
        return (text[:40], labels[:40]), (text[40:], labels[40:])

    def build_model() -> Any:
        words = ["red", "blue", "green", "big", "small"]
        return tf.keras.Sequential(
            [
                tf.keras.Input((), dtype="string"),
                tf.keras.layers.TextVectorization(vocabulary=words, output_sequence_length=2),
                tf.keras.layers.Embedding(8, 4),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3),
            ]
        )

    return tasks.experiment(load_data=load_data, build_model=build_model)


def test_text_as_input(tensorflow: Any, tmp_path: Any) -> None:
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "reports": tmp_path, "quiet": True}
    result = compare.run(text_experiment(), trainers=("fit", "loop"), strategy="default", **options)
    assert result.verdict == "identical"
    two = compare.run(text_experiment(), trainers=("fit", "loop"), strategy="mirrored", replicas=2, **options)
    assert "cannot take strings" in two.details["comparisons"][0]["failure"]["error"]
    with (
        pytest.warns(UserWarning, match="checked on one replica only: .*string"),
        pytest.raises(AssertionError, match="loss-summed") as caught,
    ):
        compare.assert_alike(text_experiment(), Summed())
    assert "stages: the steps cannot be looked into" not in str(caught.value)
    assert re.search(r"^    at \S*test_any_experiment\.py:\d+:(\n    -)? \S*return ", str(caught.value), re.MULTILINE)
