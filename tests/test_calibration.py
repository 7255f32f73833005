"""The check measures how far rounding alone moves gradients before it calls any of them wrong."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

UNIT = 2.0**-23
"""The relative rounding of float32, below which no gradient is computed."""


def floor(nudged: Sequence[float], scaled: Sequence[float]) -> float:
    """What is measured where gradients of steps move so far, relative to their norm, when their rounding changes.

    Args:
        nudged: by step, with weights moved by one unit in the last place.
        scaled: by step, with a factor on the loss that is divided out again.
    """
    from compare.check.case import Case
    from compare.check.recipe import Recipe

    def gradients(step: int, span: int, recipe: Any, nudge: int = 0) -> list[np.ndarray]:
        assert step == span, "each step on its own batch"
        right, moved = np.zeros(2), nudged[step] if nudge else scaled[step] if recipe != Recipe() else 0.0
        right[:] = (1.0, 0.0)
        return [right + np.array([0.0, moved])]

    case = Case.__new__(Case)
    steps: Any = tuple(range(len(nudged)))
    case.steps, case.aligned = list(steps), steps
    case.replay = SimpleNamespace(gradients=gradients)  # type: ignore[assignment]
    case.calibrate()
    return case.floor


@pytest.mark.parametrize(
    ("nudged", "scaled", "expected"),
    [
        ([3e-6] * 3, [0.0] * 3, 3e-6),
        ([0.0] * 3, [3e-6] * 3, 3e-6),
        ([1e-6, 2e-6, 3e-6], [3e-6, 1e-6, 1e-6], 3e-6),
        ([1e-6, 2e-6, 0.1], [0.0] * 3, 2e-6),
        ([1e-6, 2e-6, np.nan], [0.0] * 3, 1.5e-6),
        ([1e-9] * 3, [0.0] * 3, UNIT),
        ([np.nan] * 3, [np.nan] * 3, UNIT),
        ([], [], UNIT),
    ],
    ids=[
        "the forward pass",
        "the backward pass",
        "the larger of both in each step",
        "a step at a kink does not count for all",
        "nor does one that is not finite",
        "never less than float32 has",
        "nothing is finite",
        "no step was seen",
    ],
)
def test_the_noise_floor_is_that_of_the_usual_step(
    tensorflow: Any, nudged: Sequence[float], scaled: Sequence[float], expected: float
) -> None:
    assert floor(nudged, scaled) == pytest.approx(expected, rel=1e-4)
