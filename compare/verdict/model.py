"""The words of a verdict and what a comparison of two records holds, as typed values and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from compare.records import EPOCH_END
from compare.verdict.rounding import FACTOR, Noise

if TYPE_CHECKING:
    from compare.verdict.seeds import Study

IDENTICAL = "identical"

ALIKE = "alike"

INCONCLUSIVE = "inconclusive"

NOT_COMPARABLE = "not-comparable"

DIFFERENT = "different"

FROM_BEST = (IDENTICAL, ALIKE, INCONCLUSIVE, NOT_COMPARABLE, DIFFERENT)

EXIT_STATUS = {IDENTICAL: 0, ALIKE: 0, DIFFERENT: 1, INCONCLUSIVE: 3, NOT_COMPARABLE: 3}


def worst(verdicts: Sequence[str | None]) -> str:
    """The worst of several verdicts; None, "nothing could tell", does not count."""
    return max((v for v in verdicts if v is not None), key=FROM_BEST.index, default=INCONCLUSIVE)


@dataclass(frozen=True)
class Difference:
    """Where two runs part: the optimizer step (None: seen only when the epoch had ended).

    ``since`` is the first step that may have made the difference: another one where several steps are made in one
    call, and only the weights after the last of them can be seen.
    """

    epoch: int
    step: int | None
    since: int | None = None


@dataclass(frozen=True)
class Training:
    """Whether two runs computed the same weights.

    Attributes:
        verdict: the verdict on the weights alone.
        max_weight_gap: the largest absolute difference of any weight at the end of any epoch that
            both runs finished, in the weights' own unit; None when it is unknown or not a number.
        first_difference: the first optimizer step after which a weight differs.
        steps: after how many optimizer steps weights were compared, all of them.
        variables: the variables that differ at ``first_difference``, with an estimate of how far
            (the Euclidean norm of the difference).
        reason: why there is no verdict, or a difference that is not one of weights after the same
            step; else empty.
        noise: how the gap compares with what rounding does; None where that was not measured.
        made: how many steps were made where weights could be compared after some of them only; else 0.
    """

    verdict: str
    max_weight_gap: float | None
    first_difference: Difference | None
    steps: int
    variables: tuple[tuple[str, float | None], ...] = ()
    reason: str = ""
    noise: Noise | None = None
    made: int = 0


@dataclass(frozen=True)
class MetricGap:
    """The largest absolute difference of one reported metric, and the epoch it was reported for.

    ``max_gap`` is None where one side did not report the metric, or only one reported a number;
    ``lacking`` names the trainer that did not report it in some epoch, where it is not compared, and ``alias`` the
    name under which the candidate reported it.
    """

    max_gap: float | None
    epoch: int
    lacking: str = ""
    alias: str = ""

    @property
    def compared(self) -> bool:
        """Whether both reported it in some epoch."""
        return self.max_gap is not None or not self.lacking


@dataclass(frozen=True)
class Reporting:
    """Whether two runs reported the same numbers; the verdict is None where nothing could tell."""

    verdict: str | None
    metrics: dict[str, MetricGap]


@dataclass(frozen=True)
class Failure:
    """Why one side could not run at all: which trainer, what happened, what to use instead."""

    side: str
    error: str
    remedy: str


@dataclass(frozen=True)
class Comparison:
    """One candidate held against the reference; with ``against``, against its own recorded run.

    In a study of several seeds, ``seed`` is the one that training and reporting are told of.
    """

    candidate: str
    training: Training
    reporting: Reporting
    failure: Failure | None = None
    against: str = ""
    seed: int | None = None
    study: Study | None = None

    @property
    def verdict(self) -> str:
        return worst([self.training.verdict, self.reporting.verdict])


def not_comparable(candidate: str, failure: Failure) -> Comparison:
    """A comparison that one side's failure left without anything to compare."""
    return Comparison(candidate, Training(NOT_COMPARABLE, None, None, 0), Reporting(None, {}), failure)


def asynchronous(comparison: Comparison) -> Comparison:
    """The same comparison where workers do not wait for each other: unequal weights prove nothing."""
    if comparison.training.verdict != DIFFERENT:
        return comparison
    reason = (
        "several workers updated the parameters without waiting for each other, so that no two runs are equal, of "
        "the same trainer or of two; one worker (--workers 1) can be compared exactly"
    )
    training = replace(comparison.training, verdict=INCONCLUSIVE, reason=reason)
    return replace(comparison, training=training)


def as_json(reference: str, comparisons: Sequence[Comparison], **extra: Any) -> dict[str, Any]:
    """The content of ``verdict.json``."""
    return {
        "schema": 1,
        "verdict": worst([comparison.verdict for comparison in comparisons]),
        "reference": reference,
        **extra,
        "comparisons": [_comparison_json(comparison) for comparison in comparisons],
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    training, reporting = comparison.training, comparison.reporting
    first = training.first_difference
    return {
        "candidate": comparison.candidate,
        **({"against": comparison.against} if comparison.against else {}),
        "verdict": comparison.verdict,
        "training": {
            "verdict": training.verdict,
            "max_weight_gap": training.max_weight_gap,
            "first_difference": None if first is None else _difference_json(first),
            "steps_compared": training.steps,
            **({"steps_made": training.made} if training.made else {}),
            "differing_variables": [{"name": name, "gap": gap} for name, gap in training.variables],
            **({"reason": training.reason} if training.reason else {}),
            **({"noise": _noise_json(training.noise)} if training.noise else {}),
        },
        "reporting": {
            "verdict": reporting.verdict,
            "metrics": {
                name: {
                    "max_gap": gap.max_gap,
                    "epoch": gap.epoch,
                    **({"not_reported_by": gap.lacking} if gap.lacking else {}),
                    **({"reported_as": gap.alias} if gap.alias else {}),
                }
                for name, gap in reporting.metrics.items()
            },
        },
        **({"seed": comparison.seed, "study": comparison.study.as_json()} if comparison.study else {}),
        **({"failure": asdict(comparison.failure)} if comparison.failure else {}),
        "causes": [],
    }


def _difference_json(first: Difference) -> dict[str, int | None]:
    content = {"epoch": first.epoch, "step": first.step}
    return content if first.since is None else content | {"since_step": first.since}


def _noise_json(noise: Noise) -> dict[str, Any]:
    epoch, step = noise.at
    return {
        "twins": noise.twins,
        "factor": FACTOR,
        "largest_ratio": noise.ratio if math.isfinite(noise.ratio) else None,
        "variable": noise.variable,
        "epoch": epoch,
        "step": None if step == EPOCH_END else step,
    }
