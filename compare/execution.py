"""How a trainer executes its steps, where that changes no number."""

from __future__ import annotations

from dataclasses import dataclass

ITERATIONS = ("for", "iterator", "function")


@dataclass(frozen=True)
class Execution:
    """How a trainer executes its steps.

    Attributes:
        steps_per_execution: optimizer steps per call of a ``tf.function``.
    """

    iteration: str = "for"
    steps_per_execution: int = 1
    jit_compile: bool = False
