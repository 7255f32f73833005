"""Numbers, and how they differ, as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from compare.verdict.exact import absolute_gap
from compare.verdict.model import MetricGap
from compare.verdict.seeds import Test

ROUNDING = 2.0**-24
"""How far, relative to a number, float32 is from it at most."""


def difference(value: float | None, relative: bool, sign: str = "+") -> str:
    """Formats a value of a study's test: in the metric's own unit, or as a percentage of the reference's value."""
    if value is None:
        return "unknown"
    return f"{100 * value:{sign}.2g}%" if relative else f"{value:{sign}.2g}"


def interval(test: Test) -> str:
    """Formats the interval of a study's test; empty if it is unknown."""
    edges = [difference(edge, test.relative) for edge in (test.low, test.high) if edge is not None]
    return " to ".join(edges)


def differing_numbers(metrics: Mapping[str, MetricGap]) -> str:
    """The metrics that differ, each with its largest gap; last those that differ by no more than rounding."""
    texts: list[str] = []
    rounding: list[str] = []
    for name, gap in metrics.items():
        if not gap.compared:
            continue
        if gap.max_gap is None:
            texts.append(f"{name} (NaN or infinite, in epoch {gap.epoch})")
        elif gap.max_gap:
            found = rounding if gap.only_rounding else texts
            found.append(f"{name} (by up to {gap.max_gap:.2g}, in epoch {gap.epoch})")
    text = ", ".join(texts) or "the reported epochs differ"
    return text + (f"; by no more than rounding: {', '.join(rounding)}" if rounding else "")


def signed_gap(reference: float | None, candidate: float | None) -> str:
    """How much larger a reported number is than the reference's; 0 if both are NaN, empty if one is missing.

    One side may have computed in float64 what the other did in float32: "≈ 0" is no more than that rounding.
    """
    if reference is None or candidate is None:
        return ""
    if absolute_gap(reference, candidate) == 0:
        return "0"
    rounding = math.isclose(reference, candidate, rel_tol=ROUNDING)
    return "≈ 0" if rounding else f"{candidate - reference:+.2g}"
