"""Collects what the check concludes about one trainer: causes, evidence, and probes that were not applicable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from compare.check.measurement import Measurement
from compare.check.recipe import Recipe
from compare.check.search import Explanation
from compare.user_errors import describe
from compare.verdict.findings import NotApplicable

LOUD = "FIT_VS_LOOP_LOUD"
"""The environment variable with which an error of the check itself ends it, as in tests, instead of costing a probe."""


def survived(error: Exception) -> str:
    """Describes an error that costs the check one of its probes only; raises it in tests, where nobody would see it."""
    if os.environ.get(LOUD):
        raise error
    return describe(error)


@dataclass
class Judgement:
    """The conclusions about one trainer.

    Attributes:
        right: whether the trainer matches the replay within rounding.
        certain: whether a difference exceeds rounding beyond doubt, so that no noise twins are needed: gradients,
            updates or state are off in more steps than rounding could explain, or a cause explains all of them.
        causes: the evidence for each cause that was named, by id.
        evidence: measurements that no cause explains; those of a reported number say which ``metric`` it is.
        recipe: how the trainer computes its gradients; the correct recipe where that is unknown.
        gradient_causes: the ids of causes that were found from gradients.
        remedies: the remedies that replace a cause's usual one, by id.
        unexplained: the names of reported numbers that nothing explains.
    """

    right: bool = True
    certain: bool = False
    causes: dict[str, Measurement] = field(default_factory=dict)
    evidence: list[Measurement] = field(default_factory=list)
    recipe: Recipe = field(default_factory=Recipe)
    gradient_causes: set[str] = field(default_factory=set)
    not_applicable: list[NotApplicable] = field(default_factory=list)
    remedies: dict[str, str] = field(default_factory=dict)
    unexplained: set[str] = field(default_factory=set)

    @property
    def explained(self) -> bool:
        """Whether the trainer is right, or wrong only by named causes."""
        return self.right or bool(self.causes and not self.evidence)

    def mark_wrong(self, evidence: Measurement | None = None, *, certain: bool = False) -> None:
        """Records a difference from the replay, with what was measured unless the caller records that elsewhere."""
        self.right, self.certain = False, self.certain or certain
        if evidence is not None:
            self.evidence.append(evidence)

    def add_explanation(
        self, explanations: Sequence[Explanation], right: float, what: str, places: int = 0, *, metric: str = ""
    ) -> bool:
        """Names the causes of the only explanation, or records that several explain the steps equally well.

        Args:
            right: the residual of the correct recipe.
            what: the id of what was explained, as in ``words.EXPLAINED``.
            places: in how many steps or epochs.

        Returns:
            Whether it is explained.
        """
        alone = explanations[0].causes if len(explanations) == 1 else ()
        named = [(cause, variant) for cause, variant in alone if not variant.harmless]
        if alone and not named:
            return True
        self.mark_wrong(certain=bool(explanations))
        of = {"explains": what, "metric": metric} if metric else {"explains": what, "places": places}
        if named:
            for cause, variant in named:
                fit = {"residual": explanations[0].residual, "otherwise": right}
                known = self.causes.setdefault(cause.id, variant.evidence.but(**of, **fit)).quantities
                if metric and known.get("metric") not in (None, metric):
                    self.causes[cause.id] = self.causes[cause.id].but(also=[*known.get("also", ()), metric])
                if variant.remedy:
                    self.remedies.setdefault(cause.id, variant.remedy)
            return True
        if explanations:
            ids = [sorted(explanation.ids) for explanation in explanations]
            self.mark_wrong(Measurement.of("ambiguous", causes=ids, **of))
        return False

    def adopt_gradients(self, explanation: Explanation) -> None:
        """Records that the trainer computes its gradients as this explanation says."""
        self.recipe = explanation.recipe
        self.gradient_causes = set(explanation.ids) & self.causes.keys()

    @contextmanager
    def probe(self, name: str) -> Iterator[None]:
        """Turns an exception of one probe into a "not applicable" entry, so that the other probes still count."""
        try:
            yield
        except Exception as error:
            self.right = False
            self.not_applicable.append(NotApplicable(name, f"the steps cannot be recomputed: {survived(error)}"))
