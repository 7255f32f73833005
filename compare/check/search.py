"""Finds what explains an observation: simple explanations first, and a name only if there is one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.check.causes.base import Cause, Variant


@dataclass(frozen=True)
class Explanation:
    """A recipe that explains an observation, and the causes that make it differ from the right one."""

    recipe: Any
    causes: tuple[tuple[Cause, Variant], ...]
    residual: float

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(cause.id for cause, _ in self.causes)


@dataclass(frozen=True)
class Search:
    """What a search came to.

    Attributes:
        found: all simplest explanations: none, one, or several that cannot be told apart.
        next_best: the smallest residual that any other cause left, of those tried; infinite if none was.
    """

    found: list[Explanation]
    next_best: float


Recogniser = Callable[[Any], Iterable[Variant]]


def explain(
    right: Any,
    recognisers: Sequence[tuple[Cause, Recogniser]],
    residual: Callable[[Any], float],
    threshold: float,
) -> Search:
    """Look for the simplest explanations.

    Tried in turn, until something fits: one cause without a free number; one with a number read from
    the observation; two without; two of which one has.
    """

    rejected: list[Explanation] = []

    def fitting(candidates: Iterable[tuple[Any, tuple[tuple[Cause, Variant], ...]]]) -> list[Explanation]:
        found: dict[frozenset[str], Explanation] = {}
        for recipe, causes in candidates:
            explanation = Explanation(recipe, causes, residual(recipe))
            if explanation.residual <= threshold:
                found.setdefault(explanation.ids, explanation)
            else:
                rejected.append(explanation)
        return list(found.values())

    singles = [(cause, variant) for cause, recognise in recognisers for variant in recognise(right)]
    fixed = [(cause, variant) for cause, variant in singles if not variant.measured]
    measured = [(cause, variant) for cause, variant in singles if variant.measured]

    def pairs() -> Iterable[tuple[Any, tuple[tuple[Cause, Variant], ...]]]:
        for i, (one, a) in enumerate(fixed):
            for other, b in fixed[i + 1 :]:
                if one.id != other.id and not a.changes.keys() & b.changes.keys():
                    yield replace(right, **a.changes, **b.changes), ((one, a), (other, b))

    def measured_pairs() -> Iterable[tuple[Any, tuple[tuple[Cause, Variant], ...]]]:
        for one, a in fixed:
            base = replace(right, **a.changes)
            for other, recognise in recognisers:
                if other.id == one.id:
                    continue
                for b in recognise(base):
                    if b.measured and not a.changes.keys() & b.changes.keys():
                        yield replace(base, **b.changes), ((one, a), (other, b))

    for level in (
        lambda: ((replace(right, **v.changes), ((c, v),)) for c, v in fixed),
        lambda: ((replace(right, **v.changes), ((c, v),)) for c, v in measured),
        pairs,
        measured_pairs,
    ):
        if found := fitting(level()):
            break
    named = frozenset[str]().union(*(each.ids for each in found))
    return Search(found, min((each.residual for each in rejected if not each.ids & named), default=float("inf")))
