"""Other numbers from equal weights of two scripts are named from the losses of the steps; no TensorFlow here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compare.check.script_numbers import Losses, losses_by_epoch, name_reporting
from compare.watch.seen import CloseUp, Event

LOSSES = {1: Losses([2.0, 1.5, 1.0], [64, 64, 8]), 2: Losses([0.9, 0.8, 0.3], [64, 64, 8])}


def record(trainer: str, losses: list[float]) -> Any:
    return SimpleNamespace(trainer=trainer, logs={epoch: {"loss": loss} for epoch, loss in enumerate(losses, 1)})


FIT = record("fit", [each.mean for each in LOSSES.values()])


@pytest.mark.parametrize(
    ("reported", "causes"),
    [
        ([each.mean for each in LOSSES.values()], []),
        ([each.mean_of_batches for each in LOSSES.values()], ["loss-averaged-over-batches"]),
        ([1.0, 0.3], ["last-batch-only"]),
        ([1.0, 0.31], []),
        ([LOSSES[1].mean, (LOSSES[1].mean + LOSSES[2].mean) / 2], ["metrics-not-reset"]),
    ],
)
def test_a_cause_is_named_if_it_explains_every_epoch(reported: list[float], causes: list[str]) -> None:
    found = name_reporting(FIT, record("loop", reported), LOSSES)
    assert [each.id for each in found] == causes
    assert all(each.side == "loop" for each in found)


def test_evidence_has_the_numbers_of_the_run() -> None:
    (found,) = name_reporting(FIT, record("loop", [1.5, 2 / 3]), LOSSES)
    assert found.evidence == (
        "loss in epoch 1 is 1.5, the mean over 3 batches, of which the last has 8 examples; the mean over its 136 "
        "examples is 1.70588"
    )


def test_equal_batches_leave_nothing_to_name() -> None:
    even = {1: Losses([2.0, 1.0], [64, 64])}
    assert name_reporting(FIT, record("loop", [1.5]), even) == []


def step(loss: float, examples: int) -> list[Event]:
    return [
        Event("inputs", 0, {"model": "m"}, [], tuple(range(examples))),
        Event("loss", 0, {"targets": 1, "penalties": 0}, [np.float32(loss)]),
    ]


def test_losses_are_read_from_the_steps_of_each_epoch() -> None:
    seen = CloseUp({1: step(2.0, 64), 2: step(1.0, 8), 3: step(0.5, 64), 4: [*step(0.25, 4), *step(0.25, 4)]})
    losses = losses_by_epoch(seen, [2, 4, 6])
    assert losses == {1: Losses([2.0, 1.0], [64, 8]), 2: Losses([0.5, 0.5], [64, 8])}, "the third was not seen whole"
