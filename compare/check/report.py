"""The report of the short check as plain data; no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.check import words
from compare.check.measurement import Measurement
from compare.check.stages import Located
from compare.check.step_values import LOSS
from compare.verdict.findings import Finding, NotApplicable
from compare.verdict.model import Comparison, Verdict
from compare.verdict.not_finite import NotFinite
from compare.verdict.outcomes import DIFFERENT, FROM_BEST

TRAINING = "training"
REPORTING = "reporting"
NOT_FINITE = "not-finite"
"""The id of the cause that leads all others."""


OF_REPLICAS = (
    "loss-not-divided-by-replicas",
    "loss-divided-twice",
    "regularization-not-divided-by-replicas",
    "uneven-replica-batches",
    "gradients-not-reduced",
)
"""The causes that change nothing on one replica."""


@dataclass(frozen=True)
class Report:
    """The result of the short check of one candidate.

    Attributes:
        replicas: the numbers of replicas that were checked.
        comparison: all that is written, but for what no cause explains.
        unexplained: what no cause explains.
        distributed: whether the candidate uses the strategy it is given.
        idle: the settings of its optimizer that are others and make no difference in the steps of the check.
        seconds: the wall time of the check, in seconds.
    """

    reference: str
    replicas: tuple[int, ...]
    comparison: Comparison
    unexplained: tuple[Measurement, ...] = ()
    distributed: bool = True
    idle: tuple[Measurement, ...] = ()
    seconds: float = 0.0

    def of_gradients(self, located: Located) -> Report:
        """The report in which a constant factor is said to be that of the gradients, where the loss is equal."""
        loss, findings = located.of(LOSS), []
        for each in self.findings:
            if loss is not None and loss.equal and each.measurements.get("kind") == "loss-factor":
                seen = Measurement.read({**each.measurements, "kind": "gradients-factor"})
                each = replace(each, evidence=words.said(seen), measurements=seen.as_json())
            findings.append(each)
        return self.but(causes=tuple(findings))

    @property
    def notes(self) -> list[str]:
        """What the check does not see, but a full training may, as sentences without the final period."""
        return [f"{words.said(each)}, which makes no difference in the few steps of this check" for each in self.idle]

    @property
    def verdict(self) -> str:
        """The worse of the verdicts on training and on reporting."""
        return self.comparison.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The named causes, those of training first."""
        return self.comparison.causes

    @property
    def training(self) -> tuple[Finding, ...]:
        """The causes that make the weights differ."""
        return tuple(finding for finding in self.findings if finding.kind == TRAINING)

    @property
    def reporting(self) -> tuple[Finding, ...]:
        """The causes that make the reported numbers differ."""
        return tuple(finding for finding in self.findings if finding.kind == REPORTING)

    @property
    def not_applicable(self) -> tuple[NotApplicable, ...]:
        return self.comparison.not_applicable or ()

    def but(self, **parts: Any) -> Report:
        """The report with other parts of its comparison."""
        return replace(self, comparison=replace(self.comparison, **parts))

    def without(self, probe: str, reason: str) -> Report:
        return self.but(not_applicable=(*self.not_applicable, NotApplicable(probe, reason)))

    @property
    def judged(self) -> Comparison:
        """The comparison with all that the check found."""
        return replace(self.comparison, **words.as_evidence(self.unexplained)).settled()

    def as_verdict(self) -> Verdict:
        return Verdict.of(self.reference, [self.judged], scope="check", replicas=self.replicas)


def merged(reports: Sequence[Report]) -> Report:
    """Merges several checks of one candidate, such as those with 1 and 2 replicas; the worst verdict counts.

    A cause that several checks name is reported once, with the evidence of the first. One that several replicas alone
    can have is none where one replica differs, too, unless what is named there explains a part of both.
    """
    comparisons = [report.comparison for report in reports]
    worst = max(reports, key=lambda report: _severity(report.comparison.training.verdict))
    reporting = max(comparisons, key=lambda each: _severity(each.reported)).reporting
    first = reports[0]
    findings: dict[tuple[str, str], Finding] = {}
    one = next(
        (each for each in reports if each.replicas == (1,) and each.comparison.training.verdict == DIFFERENT), None
    )
    of_one = {each.id for each in one.training} if one is not None else set()
    for report in reports:
        apart = one is not None and of_one.isdisjoint(each.id for each in report.training)
        for finding in report.findings:
            if not (apart and finding.id in OF_REPLICAS):
                findings.setdefault((finding.id, finding.side), finding)
    # What is not finite leads.
    ordered = sorted(findings.values(), key=lambda each: (each.id != NOT_FINITE, each.kind != TRAINING))
    return Report(
        reference=first.reference,
        replicas=tuple(replicas for report in reports for replicas in report.replicas),
        comparison=Comparison(
            first.comparison.candidate,
            worst.comparison.training,
            reporting,
            not_finite=_not_finite(comparisons),
            causes=tuple(ordered),
            not_applicable=tuple(dict.fromkeys(each for report in reports for each in report.not_applicable)),
            certain=any(each.certain for each in comparisons),
            stages=worst.comparison.stages,
        ),
        unexplained=tuple(dict.fromkeys(each for report in reports for each in report.unexplained)),
        distributed=first.distributed,
        idle=tuple(dict.fromkeys(each for report in reports for each in report.idle)),
        seconds=sum(report.seconds for report in reports),
    )


def _not_finite(comparisons: Sequence[Comparison]) -> tuple[NotFinite, ...]:
    """What is not finite in several checks: of weights and of numbers, what one side alone has counts most."""
    found = [each for comparison in comparisons for each in comparison.not_finite]
    kinds = [[each for each in found if bool(each.metric) == of_number] for of_number in (False, True)]
    return tuple(max(kind, key=lambda each: each.alone) for kind in kinds if kind)


def _severity(verdict: str | None) -> int:
    return -1 if verdict is None else FROM_BEST.index(verdict)
