"""One comparison of a run, as its page shows it; imports no TensorFlow."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from compare.check.causes import CATALOGUE
from compare.check.causes.base import Cause
from compare.check.stage_views import StageView, stage_sentence, stage_views
from compare.reporting.gaps import reference_name
from compare.reporting.page_evidence import in_this_run
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import advice_on_numbers, difference, differing_numbers, sentence, where
from compare.verdict import Failure, warning

Entry = Mapping[str, Any]
"""One entry of ``comparisons`` in ``verdict.json``."""


@dataclass(frozen=True)
class NamedCause:
    """A cause that a comparison names.

    Attributes:
        id: its id in the catalogue.
        side: the trainer at fault; empty if it is unknown.
        evidence: the evidence, a sentence.
        seen: what of it is seen in the run itself, in the run's numbers; may be empty.
        remedy: the line of code to write, or what to do.
        known: its entry in the catalogue; None if the catalogue does not have it.
        link: the address of its story, relative to the page; empty if there is none.
        of_reference: whether the reference is at fault.
    """

    id: str
    side: str
    evidence: str
    seen: str
    remedy: str
    known: Cause | None
    link: str
    of_reference: bool


@dataclass(frozen=True)
class StudyRow:
    """One test of a study, as text."""

    metric: str
    epoch: int
    difference: str
    interval: str
    margin: str
    verdict: str


@dataclass(frozen=True)
class StudyTable:
    """The tests of a study of several seeds."""

    seeds: int
    seeds_needed: int | None
    reason: str
    rows: Sequence[StudyRow]


@dataclass(frozen=True)
class ComparisonView:
    """One candidate compared with its reference.

    Attributes:
        entry: the comparison's entry in ``verdict.json``.
        candidate: the name of the candidate.
        verdict: the verdict of the comparison.
        against: the folder of a recorded run that the candidate is compared with; else empty.
        reference: the name of the reference.
        sentence: the verdict as a sentence.
        basis: (heading, sentence) pairs that state what the verdict is based on.
        where: where the two diverge, in a few words.
        causes: the named causes.
        evidence: sentences on what was measured, if no cause is named.
        numbers: the reported numbers that differ, if nothing else does and no cause is named; else empty.
        advice: what to look at then.
        not_applicable: the probes that could not run, each with ``probe`` and ``reason``.
        failure: why one side could not run; else None.
        study: the tests of several seeds; else None.
        reason: why there is no verdict, or how the runs differ other than in weights; else empty.
        equal_before: whether all weights are equal before, bit for bit.
        before: what is known of the steps before the first difference, as a sentence; else empty.
        variables: the variables that differ at the first difference, each with ``name`` and ``gap``.
        stages: the stages of the step where they diverge; empty if they were not seen.
        stages_step: which step that is.
        stage_sentence: which of the stages agree; empty if that is not known.
        warning: what is not finite on both sides; else empty.
    """

    entry: Entry
    candidate: str
    verdict: str
    against: str
    reference: str
    sentence: str
    basis: Sequence[tuple[str, str]]
    where: str
    causes: Sequence[NamedCause]
    evidence: Sequence[str]
    numbers: str
    advice: str
    not_applicable: Sequence[Mapping[str, str]]
    failure: Failure | None
    study: StudyTable | None
    reason: str
    before: str
    equal_before: bool
    variables: Sequence[Mapping[str, Any]]
    stages: Sequence[StageView]
    stages_step: str
    stage_sentence: str
    warning: str


def comparison_view(entry: Entry, files: RunFiles, stories: str) -> ComparisonView:
    """Describes one comparison for the page.

    Args:
        entry: the comparison's entry in ``verdict.json``.
        files: the content of the run's files.
        stories: the path of the page with the stories of all causes, relative to the run's page; empty if absent.
    """
    training, failure, reference = entry["training"], entry.get("failure"), files.verdict["reference"]
    first, advice = training["first_difference"], advice_on_numbers(entry)
    return ComparisonView(
        entry=entry,
        candidate=entry["candidate"],
        verdict=entry["verdict"],
        against=entry.get("against", ""),
        reference=reference_name(entry, reference),
        sentence=sentence(dict(entry), reference) + ".",
        basis=_basis(entry, files),
        where=where(entry),
        causes=[_named_cause(cause, entry, files, stories) for cause in entry["causes"]],
        evidence=[_as_sentence(text, files) for text in entry.get("evidence", [])],
        numbers=differing_numbers(entry["reporting"]["metrics"]) if advice else "",
        advice=_as_sentence(advice, files) if advice else "",
        not_applicable=entry.get("not_applicable", []),
        failure=Failure(failure["side"], failure["error"], failure["remedy"]) if failure else None,
        study=_study(entry["study"]) if entry.get("study") else None,
        reason=training.get("reason", "") if entry.get("weights_seen", True) else "",  # else it is in the sentence
        before=_before(first, alone=any(each["side"] for each in entry.get("not_finite", ()))),
        equal_before=bool(not first or first.get("equal_before", True)),
        # The largest gap first; what is not a number is larger.
        variables=sorted(training.get("differing_variables", []), key=_largest_first),
        stages=stage_views(entry),
        stages_step="a step of the short check" if "stages_at" in entry else "that step",
        stage_sentence=stage_sentence(entry, reference),
        warning=warning(entry, reference),
    )


def _largest_first(variable: Mapping[str, Any]) -> float:
    return -math.inf if variable["gap"] is None else -float(variable["gap"])


def _before(first: Mapping[str, Any] | None, *, alone: bool = False) -> str:
    """What is known of the steps before the first difference; empty if there are none.

    Args:
        first: the first difference.
        alone: whether it is that one side is not finite, so that rounding was not measured.
    """
    if not first or not first["step"]:
        return ""
    equal = first.get("equal_before", True)
    if alone and not equal:
        return "Before that, all weights are finite on both sides, but not equal, bit for bit."
    return f"Before that, {'all weights are equal, bit for bit' if equal else 'the weights differ by rounding only'}."


def _named_cause(cause: Mapping[str, Any], entry: Entry, files: RunFiles, stories: str) -> NamedCause:
    known, reference = CATALOGUE.get(cause["id"]), files.verdict["reference"]
    return NamedCause(
        id=cause["id"],
        side=cause.get("side") or "",
        evidence=_as_sentence(cause["evidence"], files),
        seen=in_this_run(entry, known.kind, cause["evidence"], files, entry.get("reference", reference))
        if known
        else "",
        remedy=cause["remedy"],
        known=known,
        link=f"{quote(stories)}#{quote(cause['id'])}" if stories and cause["id"] in CATALOGUE else "",
        of_reference=cause.get("side") == reference,
    )


def _as_sentence(text: str, files: RunFiles) -> str:
    """The text with a final period and, unless it starts with the name of a metric or a trainer, a capital letter."""
    first = re.split(r"[\s,:;'’]", text, maxsplit=1)[0]
    named = "_" in first or first in (*files.names, *files.columns)
    return (text if named else text[:1].upper() + text[1:]) + ("" if text.endswith(".") else ".")


def _basis(entry: Entry, files: RunFiles) -> list[tuple[str, str]]:
    """What the verdict is based on: (heading, sentence) pairs."""
    if entry.get("failure"):
        return [("What happened", _as_sentence(entry["failure"]["error"], files))]
    weights = [("Weights", "Not seen: only logged numbers were compared.")]
    if entry.get("weights_seen", True):
        weights = _basis_of_weights(entry["training"], files.scope)
    basis = [*weights, *_basis_of_numbers(entry["reporting"])]
    if entry.get("study"):
        study = entry["study"]
        text = f"The verdict on the paired differences of {study['seeds']} seeds is {study['verdict']}; see below."
        basis.append(("Seeds", text))
    return basis


def _basis_of_weights(training: Mapping[str, Any], scope: str) -> list[tuple[str, str]]:
    """What was compared of the weights, and how large the gap is."""
    basis = []
    steps = training.get("steps_compared", 0)
    if scope == "check":
        basis.append(("Method", "A few small batches were trained on one replica, and on two if available."))
    elif "steps_made" in training:
        how = f"A hash of all weights on every replica was compared after each of the {steps:,} calls"
        basis.append(("Weights", f"{how}, which made {training['steps_made']:,} optimizer steps."))
    elif steps:
        how = "bit for bit, by a hash of all weights on every replica after each step"
        basis.append(("Weights", f"{steps:,} optimizer steps were compared {how}."))
    elif training["first_difference"] is not None or training["verdict"] == "identical":
        basis.append(("Weights", "The weights were compared bit for bit at the end of every epoch."))
    if who := training.get("steps_not_reported_by"):
        basis.append(("No steps", f"{who} never calls run.end_step(), so its single steps were not compared."))
    gap = training.get("max_weight_gap")
    if gap is not None and steps:
        equal = "No weight differs at the end of any epoch." if gap == 0 else ""
        basis.append(("Largest gap", equal or f"At epoch ends, individual weights differ by up to {gap:.3g}."))
    return basis


def _basis_of_numbers(reporting: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which reported numbers were compared, and how they differ."""
    basis = []
    metrics = reporting.get("metrics", {})
    alone = {name: m["not_reported_by"] for name, m in metrics.items() if m.get("not_reported_by")}
    if reporting["verdict"] == "identical" and metrics:
        compared = [_metric_name(name, m) for name, m in metrics.items() if name not in alone]
        basis.append(("Numbers", f"{', '.join(compared)}: equal in every epoch, bit for bit."))
    elif metrics:
        gaps = [
            f"{name} {m['max_gap']:.1e}" + " (rounding)" * bool(m.get("only_rounding"))
            for name, m in metrics.items()
            if m["max_gap"]
        ]
        judged = {
            "different": "; the numbers do not match the weights",
            "inconclusive": "; more than rounding, and they could not be judged",
            "alike": "; no more than rounding",
        }
        if gaps:
            text = f"Largest differences: {', '.join(gaps)}{judged.get(reporting['verdict'] or '', '')}."
            basis.append(("Numbers", text))
    for who in dict.fromkeys(alone.values()):
        names = ", ".join(name for name, lacking in alone.items() if lacking == who)
        basis.append(("Not compared", f"{names}: {who} does not report {'them' if ',' in names else 'it'}."))
    return basis


def _metric_name(name: str, metric: Mapping[str, Any]) -> str:
    return f"{name} (reported as {metric['reported_as']})" if metric.get("reported_as") else name


def _study(study: Mapping[str, Any]) -> StudyTable:
    """Formats the tests of a study."""
    rows = [
        StudyRow(
            metric=test["metric"],
            epoch=test["epoch"],
            difference=difference(test, "mean"),
            interval="" if test["low"] is None else f"{difference(test, 'low')} to {difference(test, 'high')}",
            margin=f"±{difference(test, 'margin', '')}",
            verdict=test["verdict"],
        )
        for test in study["tests"]
    ]
    return StudyTable(study["seeds"], study["seeds_needed"], study["reason"], rows)
