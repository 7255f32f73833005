"""What the short check found: plain data, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.verdict import FROM_BEST, Comparison, as_json

TRAINING = "training"
REPORTING = "reporting"


@dataclass(frozen=True)
class Finding:
    """A cause that was recognised, and no other explains what was seen.

    Attributes:
        id: the cause's id, as in the catalogue.
        kind: ``TRAINING`` or ``REPORTING``.
        side: the name of the trainer that has it: the candidate's or the reference's.
        evidence: what was measured, with numbers.
        remedy: what to write instead.
    """

    id: str
    kind: str
    side: str
    evidence: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        """One entry of ``causes`` in ``verdict.json``."""
        return {"id": self.id, "side": self.side, "evidence": self.evidence, "remedy": self.remedy}


@dataclass(frozen=True)
class NotApplicable:
    """A probe that could not be made, and why; no judgement on the trainer."""

    probe: str
    reason: str


@dataclass(frozen=True)
class Fit:
    """How well something was explained, in units of the noise floor that was measured for it.

    Attributes:
        what: what was to be explained: gradients, updates, whole steps, or the key of a reported number.
        right: the residual of the explanation that was taken, be it that all is right; None without one.
        next_best: the smallest residual of any other that was tried; infinite if none was.
    """

    what: str
    right: float | None
    next_best: float


@dataclass(frozen=True)
class Report:
    """What the short check says about one candidate.

    Attributes:
        reference: the reference's name.
        replicas: with how many replicas the check was made.
        comparison: the verdict on training and on reporting.
        findings: the causes, those of training first.
        evidence: what was measured where no cause explains it; never a guess.
        not_applicable: the probes that could not be made.
        certain: whether a difference stands whatever noise twins say, since gradients or updates were off.
        distributed: whether the candidate uses its strategy.
        fits: how well what was seen is explained, for those who measure the check itself.
        seconds: wall time of the check.
    """

    reference: str
    replicas: tuple[int, ...]
    comparison: Comparison
    findings: tuple[Finding, ...] = ()
    evidence: tuple[str, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    certain: bool = False
    distributed: bool = True
    fits: tuple[Fit, ...] = ()
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The worse of the verdicts on training and on reporting."""
        return self.comparison.verdict

    @property
    def training(self) -> tuple[Finding, ...]:
        """The causes that make the weights differ."""
        return tuple(finding for finding in self.findings if finding.kind == TRAINING)

    @property
    def reporting(self) -> tuple[Finding, ...]:
        """The causes that make the reported numbers differ."""
        return tuple(finding for finding in self.findings if finding.kind == REPORTING)

    def without(self, probe: str, reason: str) -> Report:
        """The same, with a probe that could not be made."""
        return replace(self, not_applicable=(*self.not_applicable, NotApplicable(probe, reason)))

    def as_json(self) -> dict[str, Any]:
        """The content of ``verdict.json`` for this check alone."""
        content = as_json(self.reference, [self.comparison], scope="check", replicas=list(self.replicas))
        content["comparisons"][0] |= self.causes_json()
        return content

    def causes_json(self) -> dict[str, Any]:
        """What the check adds to an entry of ``comparisons``."""
        return {
            "causes": [finding.as_json() for finding in self.findings],
            "evidence": list(self.evidence),
            "not_applicable": [{"probe": each.probe, "reason": each.reason} for each in self.not_applicable],
            "certain": self.certain,
        }

    def __str__(self) -> str:
        """Some lines for a terminal, or for the message of a failed assertion."""
        candidate = self.comparison.candidate
        replicas = " and ".join(map(str, self.replicas))
        training, reporting = self.comparison.training.verdict, self.comparison.reporting.verdict
        lines = [
            f"{candidate} against {self.reference}, short check on {replicas} replica{'s' * (self.replicas != (1,))}: "
            f"training {training}, reporting {reporting or 'not compared'}"
        ]
        for finding in self.findings:
            lines += [f"{finding.kind}: {finding.id} (in {finding.side}): {finding.evidence}", f"  {finding.remedy}"]
        lines += [f"evidence: {each}" for each in self.evidence]
        lines += [f"not applicable: {each.probe}: {each.reason}" for each in self.not_applicable]
        return "\n".join(lines)


def merged(reports: Sequence[Report]) -> Report:
    """Several checks of one candidate (with 1 and with 2 replicas, say) as one; the worst verdict counts.

    A cause that several checks found is reported once, with the evidence of the first.
    """
    verdicts = [report.comparison for report in reports]
    training = max((each.training for each in verdicts), key=lambda each: _badness(each.verdict))
    reporting = max((each.reporting for each in verdicts), key=lambda each: _badness(each.verdict))
    first = reports[0]
    findings: dict[tuple[str, str], Finding] = {}
    for report in reports:
        for finding in report.findings:
            findings.setdefault((finding.id, finding.side), finding)
    ordered = sorted(findings.values(), key=lambda finding: finding.kind != TRAINING)
    return Report(
        reference=first.reference,
        replicas=tuple(replicas for report in reports for replicas in report.replicas),
        comparison=Comparison(first.comparison.candidate, training, reporting),
        findings=tuple(ordered),
        evidence=tuple(dict.fromkeys(each for report in reports for each in report.evidence)),
        not_applicable=tuple(dict.fromkeys(each for report in reports for each in report.not_applicable)),
        certain=any(report.certain for report in reports),
        distributed=first.distributed,
        fits=tuple(each for report in reports for each in report.fits),
        seconds=sum(report.seconds for report in reports),
    )


def _badness(verdict: str | None) -> int:
    return -1 if verdict is None else FROM_BEST.index(verdict)
