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
    if comparison.get("against"):
        reference = f"{candidate} of the recorded run {comparison['against']}"
    if comparison.get("failure"):
        failure = comparison["failure"]
        who = failure["side"] or "no trainer"
        cannot = "can run" if who == "no trainer" else "cannot run"
        return f"{candidate} and {reference} cannot be compared, since {who} {cannot}: {failure['error']}; {failure['remedy']}"
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


def truth_sentence(truth: dict[str, Any]) -> str:
    """How far from one replica in float64 every trainer is, from ``truth`` in ``verdict.json``."""
    texts = []
    for each in truth["after"]:
        when = f"at the end of epoch {each['epoch']}"
        if each["step"] is not None:
            when = f"after step {each['step']:,} of epoch {each['epoch']}"
        known = [f"{name} {_relative(distance)}" for name, distance in each["distance"].items()]
        texts.append(f"{when} {', '.join(known)}")
    gaps = [
        f"{name} reports {metric} up to {gap['max_gap']:.1e} off (epoch {gap['epoch']})"
        for name, metrics in truth["metrics"].items()
        for metric, gap in metrics.items()
        if gap["max_gap"]
    ]
    off = f"{truth['off']} is off. " if truth["off"] else ""
    return f"{off}Distance of weights to one replica in float64, relative: {'; '.join(texts)}. " + "; ".join(gaps)


def _relative(distance: float | None) -> str:
    return "unknown" if distance is None else f"{distance:.1e}"


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
