"""The verdict words and the data classes of a comparison, with their JSON form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from compare.records import EPOCH_END, in_time
from compare.verdict.not_finite import NotFinite
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
    """The worst of several verdicts; None (not judged) is ignored."""
    return max((v for v in verdicts if v is not None), key=FROM_BEST.index, default=INCONCLUSIVE)


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ.

    Attributes:
        epoch: the epoch, from 1.
        step: the optimizer step within the epoch, from 1; 0 if the initial weights differ; None if the difference
            was seen only at the end of the epoch.
        since: the first step that may have caused the difference, if one call makes several steps and only the
            weights after the last of them can be observed; else None.
        stage: the first stage of the step that differs; None if none could be told, empty if none was recorded.
        where: the layer, the variables or the replica that differ in that stage, as far as it was seen.
        equal_before: whether all weights are equal before, bit for bit; else they differ by no more than rounding.
        weights: the epoch and step from which the weights differ by more than rounding, if the stage was seen to
            differ earlier; else None.
    """

    epoch: int
    step: int | None
    since: int | None = None
    stage: str | None = ""
    where: str = ""
    equal_before: bool = True
    weights: tuple[int, int] | None = None


@dataclass(frozen=True)
class Training:
    """Whether two runs computed the same weights.

    Attributes:
        verdict: the verdict on the weights alone.
        max_weight_gap: the largest absolute difference of any weight at the end of any epoch that
            both runs finished, in the weights' own unit; None if it is unknown or not a number.
        first_difference: the first optimizer step after which a weight differs.
        steps: the number of optimizer steps after which all weights were compared.
        variables: the variables that differ at ``first_difference``, each with an estimate of the
            Euclidean norm of its difference.
        reason: why there is no verdict, or how the runs differ other than in the weights after the same
            step; else empty.
        noise: how the gap compares with rounding; None if that was not measured.
        made: the number of optimizer steps, if the weights could be compared after some of them only; else 0.
        silent: the trainer that reports no steps, while the other does; else empty.
    """

    verdict: str
    max_weight_gap: float | None
    first_difference: Difference | None
    steps: int
    variables: tuple[tuple[str, float | None], ...] = ()
    reason: str = ""
    noise: Noise | None = None
    made: int = 0
    silent: str = ""


@dataclass(frozen=True)
class MetricGap:
    """The largest absolute difference of one reported metric.

    Attributes:
        max_gap: the difference; None if one side did not report the metric, or the difference is not finite.
        epoch: the epoch of that difference, from 1.
        lacking: the trainer that did not report the metric in some epoch; else empty.
        alias: the name under which the candidate reported the metric, if it is another one; else empty.
        only_rounding: whether the metric differs, in every epoch by no more than rounding, beside one that differs by
            more.
        no_number: whether both reported it, and the difference is not finite.
    """

    max_gap: float | None
    epoch: int
    lacking: str = ""
    alias: str = ""
    only_rounding: bool = False
    no_number: bool = field(default=False, compare=False)

    @property
    def compared(self) -> bool:
        """Whether both trainers reported the metric in some epoch."""
        return self.max_gap is not None or self.no_number or not self.lacking


@dataclass(frozen=True)
class Reporting:
    """Whether two runs reported the same metrics.

    Attributes:
        verdict: None if that could not be judged.
        metrics: the gap of every metric, by the reference's name of it.
        unexplained: where weights differ, the metrics whose gaps are larger than the rounding that was measured.
    """

    verdict: str | None
    metrics: dict[str, MetricGap]
    unexplained: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Failure:
    """Why a trainer could not run.

    Attributes:
        side: the name of the trainer; empty if no trainer can run.
        error: what happened.
        remedy: what to use instead.
    """

    side: str
    error: str
    remedy: str


@dataclass(frozen=True)
class Comparison:
    """The comparison of one candidate with the reference.

    Attributes:
        candidate: the name of the candidate.
        training: the comparison of the weights.
        reporting: the comparison of the reported metrics.
        failure: why one side could not run; else None.
        against: the folder of a recorded run of the candidate that takes the place of the reference; else empty.
        reference: what it is compared with, if that is not the run's reference: of two scripts, another model.
        seed: in a study of several seeds, the seed that ``training`` and ``reporting`` describe; else None.
        study: the study of several seeds; else None.
        weights_seen: whether there were weights to compare, not only logged numbers.
        not_finite: where values first are not finite: of the weights, and of the reported numbers.
    """

    candidate: str
    training: Training
    reporting: Reporting
    failure: Failure | None = None
    against: str = ""
    reference: str = ""
    seed: int | None = None
    study: Study | None = None
    weights_seen: bool = True
    not_finite: tuple[NotFinite, ...] = ()

    @property
    def verdict(self) -> str:
        return worst([self.training.verdict, self.reported])

    @property
    def reported(self) -> str | None:
        """The verdict on the reported metrics.

        If weights are alike, metrics that differ by more than rounding need a judge; without one there is no verdict.
        """
        unjudged = self.reporting.verdict is None and self.reporting.unexplained
        return INCONCLUSIVE if unjudged and self.training.verdict in (IDENTICAL, ALIKE) else self.reporting.verdict

    @property
    def weights_alone(self) -> NotFinite | None:
        """Where weights first are not finite on one side only."""
        return next((each for each in self.not_finite if each.alone and not each.metric), None)

    @property
    def number_alone(self) -> NotFinite | None:
        """Where a reported number first is not finite on one side only, if that side's weights do not explain it."""
        number = next((each for each in self.not_finite if each.alone and each.metric), None)
        weights = self.weights_alone
        if number is None or weights is None or weights.side != number.side:
            return number
        return number if in_time(number.place) < in_time(weights.place) else None

    def held_different(self) -> Comparison:
        """The comparison, different wherever a value is not finite on one side only, whatever other evidence says."""
        training, reporting = self.training, self.reporting
        if self.weights_alone is not None:
            training = replace(training, verdict=DIFFERENT, noise=None)
        if self.number_alone is not None:
            reporting = replace(reporting, verdict=DIFFERENT)
        elif any(each.alone and each.metric for each in self.not_finite) and reporting.verdict != DIFFERENT:
            reporting = replace(reporting, verdict=None)  # it follows from the weights
        return replace(self, training=training, reporting=reporting)

    def led_by_not_finite(self, stage: str = "", where: str = "") -> Comparison:
        """The comparison whose first difference is where weights first are not finite on one side only.

        Equal numbers may differ by rounding before.

        Args:
            stage: the first stage of that step with such a value; empty if it was not seen.
            where: the layer or the variables.
        """
        found, exact = self.weights_alone, self.training.first_difference
        if found is None:
            return self
        same = exact is None or (exact.epoch, exact.step) == (found.epoch, found.step)
        since = exact.since if exact is not None and same else None
        before = exact is None or (same and exact.equal_before)
        first = Difference(found.epoch, found.step, since, stage, where, equal_before=before)
        return replace(self, training=replace(self.training, first_difference=first))


def not_comparable(candidate: str, failure: Failure) -> Comparison:
    """The comparison of a candidate if one side failed and nothing can be compared."""
    return Comparison(candidate, Training(NOT_COMPARABLE, None, None, 0), Reporting(None, {}), failure)


def asynchronous(comparison: Comparison) -> Comparison:
    """The comparison under asynchronous updates by several workers, where a difference of weights proves nothing."""
    if comparison.training.verdict != DIFFERENT or comparison.weights_alone is not None:
        return comparison
    reason = (
        "several workers updated the parameters without waiting for each other, so even two runs of the same trainer "
        "differ; use one worker (--workers 1) for an exact comparison"
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
    only_rounding = {name for name, gap in reporting.metrics.items() if gap.only_rounding}
    if comparison.reported == INCONCLUSIVE:
        only_rounding |= {name for name, gap in reporting.metrics.items() if gap.max_gap} - {*reporting.unexplained}
    return {
        "candidate": comparison.candidate,
        **({"against": comparison.against} if comparison.against else {}),
        **({"reference": comparison.reference} if comparison.reference else {}),
        "verdict": comparison.verdict,
        **({} if comparison.weights_seen else {"weights_seen": False}),
        **({"not_finite": [each.as_json() for each in comparison.not_finite]} if comparison.not_finite else {}),
        "training": {
            "verdict": training.verdict,
            "max_weight_gap": training.max_weight_gap,
            "first_difference": None if first is None else _difference_json(first),
            "steps_compared": training.steps,
            **({"steps_made": training.made} if training.made else {}),
            **({"steps_not_reported_by": training.silent} if training.silent else {}),
            "differing_variables": [{"name": name, "gap": gap} for name, gap in training.variables],
            **({"reason": training.reason} if training.reason else {}),
            **({"noise": _noise_json(training.noise)} if training.noise else {}),
        },
        "reporting": {
            "verdict": comparison.reported,
            "metrics": {
                name: {
                    "max_gap": gap.max_gap,
                    "epoch": gap.epoch,
                    **({"not_reported_by": gap.lacking} if gap.lacking else {}),
                    **({"only_rounding": True} if name in only_rounding else {}),
                    **({"reported_as": gap.alias} if gap.alias else {}),
                }
                for name, gap in reporting.metrics.items()
            },
        },
        **({"seed": comparison.seed, "study": comparison.study.as_json()} if comparison.study else {}),
        **({"failure": asdict(comparison.failure)} if comparison.failure else {}),
        "causes": [],
    }


def _difference_json(first: Difference) -> dict[str, Any]:
    return {
        "epoch": first.epoch,
        "step": first.step,
        **({"since_step": first.since} if first.since is not None else {}),
        **({"stage": first.stage, "where": first.where} if first.stage != "" else {}),
        **({} if first.equal_before else {"equal_before": False}),
        **({} if first.weights is None else {"weights": dict(zip(("epoch", "step"), first.weights, strict=True))}),
    }


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
