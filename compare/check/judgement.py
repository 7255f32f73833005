"""What is known about one trainer in the end: causes, evidence, and what could not be probed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from compare.check.causes.base import Variant
from compare.check.recipe import Recipe
from compare.check.report import Fit, NotApplicable
from compare.check.search import Explanation, Search
from compare.check.whole import ROUNDING
from compare.user_errors import describe


@dataclass
class Judgement:
    """What is known about one trainer.

    Attributes:
        right: whether nothing but rounding separates it from the replay.
        certain: whether, where it is not right, more than rounding was seen, whatever noise twins say: gradients,
            updates or state are off in more steps than rounding could explain, or a cause explains all of them.
        causes: the causes that were recognised, with their evidence.
        evidence: what was measured where no cause explains it.
        recipe: how its gradients come about; the right recipe where that is unknown.
        of_gradients: those of the causes that were read from gradients.
        not_applicable: what could not be probed.
        fits: how well gradients, updates, whole steps and reported numbers are explained.
        remedies: of causes whose remedy is another than usual here, by id.
        unknown: the reported numbers that nothing explains.
    """

    right: bool = True
    certain: bool = False
    causes: dict[str, str] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    recipe: Recipe = field(default_factory=Recipe)
    of_gradients: set[str] = field(default_factory=set)
    not_applicable: list[NotApplicable] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    remedies: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    @property
    def explained(self) -> bool:
        """Whether the replay explains this trainer to rounding, as right or by a mistake with a name."""
        return self.right or bool(self.causes and not self.evidence)

    def off(self, evidence: str = "", *, certain: bool = False) -> None:
        """Take down that something is not right."""
        self.right, self.certain = False, self.certain or certain
        if evidence:
            self.evidence.append(evidence)

    def fit(self, what: str, right: float, threshold: float, search: Search | None = None) -> None:
        """Keep how well something was explained: as it should be, or by what a search found."""
        floor = threshold / ROUNDING
        if search is None:
            self.fits.append(Fit(what, right / floor, np.inf))
        else:
            best = max((each.residual / floor for each in search.found), default=None)
            self.fits.append(Fit(what, best, min(right, search.next_best) / floor))

    def name(self, explanations: Sequence[Explanation], right: float, steps: str) -> bool:
        """Take over the one explanation there is; say so where there are several."""
        self.off(certain=bool(explanations))
        if len(explanations) == 1:
            for cause, variant in explanations[0].causes:
                self.causes.setdefault(cause.id, _told(variant, explanations[0].residual, right, steps))
                if variant.remedy:
                    self.remedies.setdefault(cause.id, variant.remedy)
            return True
        if explanations:
            names = " or ".join(" and ".join(sorted(each.ids)) for each in explanations)
            self.evidence.append(f"{names} would explain {steps} equally well, so no cause is named")
        return False

    @contextmanager
    def probe(self, name: str) -> Iterator[None]:
        """Lose one probe to an exception, and not what the others find."""
        try:
            yield
        except Exception as error:
            self.right = False
            self.not_applicable.append(NotApplicable(name, f"the steps cannot be made again: {describe(error)}"))


def _told(variant: Variant, residual: float, right: float, steps: str) -> str:
    how = f"to a relative error of {residual:.1e}" if residual else "exactly"
    without = "nothing else does" if not np.isfinite(right) else f"{right:.2g} without it"
    return f"{variant.evidence}; this explains {steps} {how} ({without})"
