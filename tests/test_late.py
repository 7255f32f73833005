"""A difference that begins after the few steps of the short check: its own step is looked into."""

from __future__ import annotations

from typing import Any

import pytest
import tasks
from eager import Eager, run


class HalvedLate(Eager):
    """Halves the loss from the 12th step on, the second of the third epoch; rounds otherwise before, if it is told."""

    name = "late"

    def __init__(self, rounded: float) -> None:
        self.rounded = rounded

    def train(self, run: Any) -> None:
        import tensorflow as tf

        model, optimizer, loss, _ = run.build()
        for epoch in run.epochs:
            for x, y in run.train_dataset(epoch):
                with tf.GradientTape() as tape:
                    value = loss(y, model(x, training=True)) * self.rounded / self.rounded
                    value *= 1.0 if int(optimizer.iterations) < 11 else 0.5
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
                run.end_step()
            run.end_epoch(epoch, {"loss": float(value), "val_loss": float(value)})


@pytest.mark.parametrize("rounded", [1.0, 3.7])
def test_a_step_that_the_check_does_not_reach_is_looked_into(rounded: float, tensorflow: Any, tmp_path: Any) -> None:
    result = run(tasks.experiment(), tmp_path, (Eager(), HalvedLate(rounded)), epochs=3)
    first = result.first_difference
    assert result.verdict == "different" and first is not None
    assert (first.epoch, first.step, first.stage, first.equal_before) == (3, 2, "loss", rounded == 1.0)
    assert result.stage == "loss" and "Inside that step, examples, inputs and predictions agree" in str(result)
    page = (result.path / "report.html").read_text(encoding="utf-8")
    assert "the different weights explain them" in page and "equal in every epoch" not in page


class OtherBoundary(Eager):
    """Trains with an optimizer of its own, whose learning rate falls a step too early, long after the check."""

    name = "boundary"

    def train(self, run: Any) -> None:
        build = run.build

        def with_own() -> Any:
            model, _, loss, metrics = build()
            own = falling(11)
            own.build(model.trainable_variables)
            return model, own, loss, metrics

        run.build = with_own
        super().train(run)


def falling(boundary: int) -> Any:
    import tensorflow as tf

    return tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.PiecewiseConstantDecay([boundary], [0.1, 0.01]))


def test_settings_that_make_no_difference_in_the_check_are_evidence_of_a_later_one(
    tensorflow: Any, tmp_path: Any
) -> None:
    result = run(tasks.experiment(optimizer=lambda: falling(12)), tmp_path, (Eager(), OtherBoundary()), epochs=3)
    assert result.first_difference is not None
    assert (result.first_difference.epoch, result.first_difference.step, result.stage) == (3, 3, "update")
    assert result.evidence == ["boundary's SGD has learning_rate.boundaries=[11] instead of [12]"]


def test_a_rate_that_a_callback_changes_after_the_check_is_named(tensorflow: Any, tmp_path: Any) -> None:
    class Halves(tensorflow.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                self.model.optimizer.learning_rate = 0.05

    result = run(tasks.experiment(build_callbacks=lambda: [Halves()]), tmp_path, ("fit", Eager()), epochs=3)
    cause, *_ = result.causes  # the loop reports its last batch
    assert (result.verdict, result.stage, cause.id) == ("different", "update", "callbacks-missing")
    assert cause.measurements.items() >= {"callbacks": ["Halves"], "side": "fit"}.items()
    assert [cause.measurements[name] for name in ("learning_rate", "other_rate")] == pytest.approx([0.05, 0.1])
