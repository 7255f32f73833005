"""A verdict in one sentence that a stranger understands, from the content of ``verdict.json``."""

from __future__ import annotations

from typing import Any


def sentence(comparison: dict[str, Any], reference: str) -> str:
    """What one comparison found, in words.

    Args:
        comparison: one entry of ``comparisons`` in ``verdict.json``.
        reference: the reference trainer's name.
    """
    candidate, training = comparison["candidate"], comparison["training"]
    if comparison["verdict"] == "identical":
        return (
            f"{candidate} trains exactly like {reference}: every weight is equal, bit for bit, after each of "
            f"{_steps(training['steps_compared'])}, and so is every reported number"
        )
    if training["verdict"] == "different":
        return f"{candidate} does not train like {reference}: {_parting(training)}"
    if training["verdict"] == "identical":
        return (
            f"{candidate} trains exactly like {reference}, but reports other numbers: "
            f"{_metrics(comparison['reporting']['metrics'])}; the weights are equal, bit for bit"
        )
    return f"whether {candidate} trains like {reference} cannot be told: {training.get('reason', '')}"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


def _parting(training: dict[str, Any]) -> str:
    first = training["first_difference"]
    if training.get("reason"):
        text = training["reason"]
    elif first["step"] is None:
        text = f"their weights differ for the first time at the end of epoch {first['epoch']}"
    elif (first["epoch"], first["step"]) == (1, 0):
        text = "they begin with different weights"
    elif training["differing_variables"]:
        text = f"their weights differ from step {first['step']:,} of epoch {first['epoch']} on"
    else:
        text = f"one of them makes no step {first['step']:,} in epoch {first['epoch']}"
    gap = training["max_weight_gap"]
    return text if gap is None else f"{text}, by up to {gap:.1e}"


def _metrics(metrics: dict[str, Any]) -> str:
    texts = []
    for name, gap in metrics.items():
        if gap["max_gap"] is None:
            texts.append(f"{name} (reported by one side only, or not a number, in epoch {gap['epoch']})")
        elif gap["max_gap"]:
            texts.append(f"{name} (by up to {gap['max_gap']:.1e}, in epoch {gap['epoch']})")
    return ", ".join(texts) or "other epochs"
