"""Searches for the simplest explanations of an observation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

from compare.check.causes import CATALOGUE, Cause
from compare.check.causes.base import Variant

MUCH_BETTER = 1 / 3
"""Of two explanations by the same cause the later one counts if its residual is less than this part of the other's."""


@dataclass(frozen=True)
class Explanation:
    """A recipe that explains an observation.

    Attributes:
        recipe: the ``Recipe``, ``Update`` or ``MetricFormula``.
        causes: the causes that make it differ from the correct one, each with its variant.
        residual: the relative distance that it leaves.
    """

    recipe: Any
    causes: tuple[tuple[Cause, Variant], ...]
    residual: float

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(cause.id for cause, _ in self.causes)


Recogniser = Callable[[Any], Iterable[Variant]]
Candidate = tuple[Any, tuple[tuple[Cause, Variant], ...]]


def recognisers(field: Literal["gradient", "update", "formula"], case: Any) -> list[tuple[Cause, Recogniser]]:
    """All causes that one field of ``Cause`` recognises, bound to a ``Case``; by "formula", to a ``ReportedMetric``."""
    functions = ((cause, getattr(cause, field)) for cause in CATALOGUE.values())
    return [(cause, partial(function, case)) for cause, function in functions if function is not None]


def find_explanations(
    right: Any,
    recognisers: Sequence[tuple[Cause, Recogniser]],
    residual: Callable[[Any], float],
    threshold: float,
    most: int = 2,
) -> list[Explanation]:
    """Finds the simplest explanations: none, one, or several that cannot be distinguished.

    Candidates are tried in this order until one fits: one cause without a measured number; one cause with a
    number read from the observation; two causes without; two causes, one of which has such a number.

    Args:
        right: the correct recipe, or the one to start from.
        threshold: the largest residual of an explanation.
        most: how many causes without a measured number may explain it together.
    """

    def fitting(candidates: Iterable[Candidate]) -> list[Explanation]:
        explanations: dict[frozenset[str], Explanation] = {}
        for recipe, causes in candidates:
            explanation = Explanation(recipe, causes, residual(recipe))
            if explanation.residual <= threshold:
                known = explanations.setdefault(explanation.ids, explanation)
                if explanation.residual < MUCH_BETTER * known.residual:
                    explanations[explanation.ids] = explanation
        return list(explanations.values())

    singles = [(cause, variant) for cause, recognise in recognisers for variant in recognise(right)]
    fixed = [(cause, variant) for cause, variant in singles if not variant.measured]
    measured = [(cause, variant) for cause, variant in singles if variant.measured]
    for candidates in (
        _together(right, fixed, 1),
        _together(right, measured, 1),
        _together(right, fixed, 2),
        _two_causes_one_measured(right, fixed, recognisers),
        *(_together(right, fixed, count) for count in range(3, most + 1)),
    ):
        if explanations := fitting(candidates):
            return explanations
    return []


def _together(right: Any, variants: Sequence[tuple[Cause, Variant]], count: int) -> Iterator[Candidate]:
    for chosen in combinations(variants, count):
        changes = {name: value for _, variant in chosen for name, value in variant.changes.items()}
        alone = len(changes) == sum(len(variant.changes) for _, variant in chosen)
        if alone and len({cause.id for cause, _ in chosen}) == count:
            yield replace(right, **changes), chosen


def _two_causes_one_measured(
    right: Any, variants: Iterable[tuple[Cause, Variant]], recognisers: Sequence[tuple[Cause, Recogniser]]
) -> Iterator[Candidate]:
    for one, a in variants:
        changed = replace(right, **a.changes)
        for other, recognise in recognisers:
            if other.id == one.id:
                continue
            for b in recognise(changed):
                if b.measured and not a.changes.keys() & b.changes.keys():
                    yield replace(changed, **b.changes), ((one, a), (other, b))
