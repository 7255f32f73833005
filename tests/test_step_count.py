"""A trainer that reports several steps of which it made fewer is refused, wherever the number that it made is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tasks
from against_fit import run_of

import compare

Report = Callable[..., None]
Apply = Callable[[], None]


def accumulating(apply: Apply, by_hand: Apply, report: Report) -> None:
    for batch in range(6):
        if batch % 2:
            apply()
        report()


def twice(apply: Apply, by_hand: Apply, report: Report) -> None:
    apply()
    report()
    report()


def last_call_short(apply: Apply, by_hand: Apply, report: Report) -> None:
    for made in (4, 4, 2):
        for _ in range(made):
            apply()
        report(4)


def in_calls(apply: Apply, by_hand: Apply, report: Report) -> None:
    for made in (4, 4, 2):
        for _ in range(made):
            apply()
        report(np.int64(made))


def hand_written(apply: Apply, by_hand: Apply, report: Report) -> None:
    for _ in range(3):
        by_hand()
        report()


def in_turns(apply: Apply, by_hand: Apply, report: Report) -> None:
    for _ in range(3):
        for update in (by_hand, by_hand, apply):
            update()
            report()


def several_in_a_call(apply: Apply, by_hand: Apply, report: Report) -> None:
    for _ in range(2):
        for update in (by_hand, by_hand, apply):
            update()
        report(3)


def too_few(apply: Apply, by_hand: Apply, report: Report) -> None:
    for _ in range(4):
        apply()
    report()


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (accumulating, ""),
        (twice, ""),
        (last_call_short, "for 12 steps, and the optimizer has made 10 "),
        (in_calls, ""),
        (hand_written, ""),
        (in_turns, ""),
        (several_in_a_call, ""),
        (too_few, ""),
    ],
)
def test_steps_that_were_not_made(tensorflow: Any, steps: Any, told: str) -> None:
    run = run_of(tasks.experiment(batch_norm=True))
    model, optimizer, *_ = run.build()

    def apply() -> None:
        optimizer.apply(model.trainable_variables)  # the weights themselves, as gradients

    def by_hand() -> None:
        model.trainable_variables[0].assign_add(np.full((8, 16), 0.1))

    def report(*arguments: Any) -> None:
        model(np.ones((4, 8), np.float32), training=True)  # the moving averages change without any step
        run.end_step(*arguments)

    if not told:
        return steps(apply, by_hand, report)
    with pytest.raises(compare.RequestError, match=told):
        steps(apply, by_hand, report)


@pytest.mark.parametrize("reported", [2, 3])
def test_more_steps_than_an_epoch_has_of_which_the_optimizer_made_all_are_refused(
    tensorflow: Any, reported: int
) -> None:
    run = run_of(tasks.experiment())
    model, optimizer, *_ = run.build()
    for _ in range(run.steps_per_epoch):
        optimizer.apply(model.trainable_variables)
        run.end_step(reported)
    made, told = run.steps_per_epoch, reported * run.steps_per_epoch
    with pytest.raises(compare.RequestError, match=f"for {told} steps, and the optimizer has made {made} "):
        run.end_epoch(1, {"loss": 1.0})


@pytest.mark.parametrize("kind", ["own train_step", "own optimizer", "loss scale"])
def test_nothing_can_be_said_where_steps_are_not_iterations(tensorflow: Any, kind: str) -> None:
    class Accumulates(tensorflow.keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            raise NotImplementedError

    class Own(tensorflow.keras.optimizers.SGD):  # type: ignore[misc]
        pass

    changes: dict[str, Any] = {"own optimizer": {"optimizer": Own}, "loss scale": {"policy": "mixed_float16"}}.get(
        kind, {}
    )
    if kind == "own train_step":
        inputs = tensorflow.keras.Input((8,))
        changes = {"build_model": lambda: Accumulates(inputs, tensorflow.keras.layers.Dense(3)(inputs))}
    run = run_of(tasks.experiment(**changes))
    model, optimizer, *_ = run.build()
    optimizer.apply(model.trainable_variables)
    run.end_step()
    run.end_step()


def test_the_initial_weights_are_those_before_the_first_step_reported_or_not(tensorflow: Any) -> None:
    """A loop whose epoch is one call may ask for its examples again before the epoch ends."""
    records: list[Any] = []
    run = run_of(tasks.experiment(), sinks=[records.append])
    model, optimizer, *_ = run.build()
    model.trainable_variables[0].assign_add(np.full((8, 16), 0.1))
    run.train_dataset(1)
    optimizer.apply(model.trainable_variables)
    run.train_dataset(1)
    assert [type(each).__name__ for each in records].count("StepRecord") == 2, "at first, and as the trainer begins"


def test_a_clock_that_stands_still_is_no_error(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = []
    monkeypatch.setattr("time.perf_counter", lambda: 1e9)
    run = run_of(tasks.experiment(), sinks=[records.append])
    run.build()
    run.end_epoch(1, {"loss": 1.0})
    assert np.isnan(records[-1].examples_per_second)


def test_a_step_after_the_last_epoch_is_refused(tensorflow: Any) -> None:
    run = run_of(tasks.experiment())
    model, optimizer, *_ = run.build()
    for _ in range(run.steps_per_epoch):
        optimizer.apply(model.trainable_variables)
        run.end_step()
    run.end_epoch(1, {"loss": 1.0})
    with pytest.raises(compare.RequestError, match="end_step was called after the end_epoch of the last epoch"):
        run.end_step()
