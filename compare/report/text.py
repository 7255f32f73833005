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
            f"{candidate} trains exactly like {reference}: every weight is equal, bit for bit, "
            f"{_when(training['steps_compared'])}, and so is every reported number"
        )
    if training["verdict"] == "different":
        return f"{candidate} does not train like {reference}: {_parting(training)}"
    if training["verdict"] == "identical":
        return (
            f"{candidate} trains exactly like {reference}, but reports other numbers: "
            f"{_metrics(comparison['reporting']['metrics'])}; the weights are equal, bit for bit"
        )
    return f"whether {candidate} trains like {reference} cannot be told: {training.get('reason', '')}"


def _when(steps: int) -> str:
    if steps == 0:
        return "at the end of every epoch"
    return "after the only step" if steps == 1 else f"after each of {steps:,} steps"


def _parting(training: dict[str, Any]) -> str:
    first = training["first_difference"]
    text: str
    if training.get("reason"):
        text = training["reason"]
    elif first["step"] is None:
        text = f"their weights differ for the first time at the end of epoch {first['epoch']}"
    elif (first["epoch"], first["step"]) == (1, 0):
        text = "they begin with different weights"
    else:
        text = f"their weights differ from step {first['step']:,} of epoch {first['epoch']} on"
    gap = training["max_weight_gap"]
    if gap is None:
        return text
    if gap == 0:  # the difference is in other replicas, or it vanished again
        return f"{text}, though at the ends of epochs those of the first replica are equal"
    return f"{text}; at the ends of epochs, weights are up to {gap:.1e} apart"


def _metrics(metrics: dict[str, Any]) -> str:
    texts = []
    for name, gap in metrics.items():
        if gap["max_gap"] is None:
            texts.append(f"{name} (reported by one side only, or not a number, in epoch {gap['epoch']})")
        elif gap["max_gap"]:
            texts.append(f"{name} (by up to {gap['max_gap']:.1e}, in epoch {gap['epoch']})")
    return ", ".join(texts) or "other epochs"
