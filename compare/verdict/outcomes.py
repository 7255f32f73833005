"""The words of a verdict, from best to worst."""

from __future__ import annotations

from collections.abc import Sequence

IDENTICAL = "identical"
ALIKE = "alike"
INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not-comparable"
DIFFERENT = "different"
FROM_BEST = (IDENTICAL, ALIKE, INCONCLUSIVE, NOT_COMPARABLE, DIFFERENT)
EXIT_STATUS = {IDENTICAL: 0, ALIKE: 0, DIFFERENT: 1, INCONCLUSIVE: 3, NOT_COMPARABLE: 3}


def worst(verdicts: Sequence[str | None]) -> str:
    """The worst of several verdicts; None (not judged) is ignored."""
    return max((v for v in verdicts if v is not None), key=FROM_BEST.index, default=INCONCLUSIVE)
