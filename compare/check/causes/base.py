"""What an entry of the catalogue is: texts for people, and the wrong variant that it recognises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compare.check.recipe import Reading, Recipe, Update
from compare.check.report import REPORTING, TRAINING

if TYPE_CHECKING:
    from compare.check.case import Case
    from compare.check.metric_replay import ReadingCase

__all__ = ["REPORTING", "TRAINING", "Cause", "Variant"]


@dataclass(frozen=True)
class Variant:
    """One wrong way: which fields of the right recipe it changes, and to what.

    Attributes:
        changes: field name to value.
        evidence: what would be true if the trainer did this, in words, with numbers.
        measured: whether a number in it was read from the observation (it has to explain all steps
            all the same); such variants are tried after those without.
        remedy: what to write instead, where it is not the cause's usual remedy.
    """

    changes: Mapping[str, Any]
    evidence: str
    measured: bool = False
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One entry: a mistake that users make, and how to tell it from every other.

    A recogniser gives variants of the right way; one that explains what was seen, where nothing
    simpler and nothing else does, names the cause. Which one is given says where the cause shows:

    Attributes:
        id: as in ``verdict.json``.
        kind: ``TRAINING`` or ``REPORTING``.
        symptom: what the user sees.
        explanation: why it happens.
        wrong: the mistake, in code.
        remedy: what to write instead, in code.
        recognised: how the recogniser tells it, in a sentence or two.
        met: where users met it, "title, URL", a line each; empty where nothing public was found.
        gradient: variants of how a step's gradient comes about, on top of the given recipe.
        update: variants of what the optimizer makes of it.
        reading: variants of how reported numbers come from weights.
        fact: evidence that needs no variant, since it was seen directly; None if it is not so.
    """

    id: str
    kind: str = TRAINING
    symptom: str
    explanation: str
    wrong: str = ""
    remedy: str
    recognised: str = ""
    met: str = ""
    gradient: Callable[[Case, Recipe], Iterable[Variant]] | None = None
    update: Callable[[Case, Update], Iterable[Variant]] | None = None
    reading: Callable[[ReadingCase, Reading], Iterable[Variant]] | None = None
    fact: Callable[[Case], str | None] | None = None
