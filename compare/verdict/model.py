"""A verdict: what is judged, what is shown, and what ``verdict.json`` holds, under the same names.

Its fields are the keys of ``verdict.json``, in their order (see ``compare.records.codec``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from compare.naming import file_name
from compare.records.codec import ALWAYS, decode, encode, unwritten
from compare.records.files import as_text, with_checksum
from compare.records.model import in_time
from compare.records.run_json import read_verdict, write_verdict
from compare.verdict.findings import Finding, NotApplicable, StageValues
from compare.verdict.not_finite import NotFinite
from compare.verdict.outcomes import ALIKE, DIFFERENT, IDENTICAL, INCONCLUSIVE, NOT_COMPARABLE, worst
from compare.verdict.rounding import Noise
from compare.verdict.seeds import Study


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ.

    Attributes:
        epoch: the epoch, from 1.
        step: the optimizer step within the epoch, from 1; 0 if the initial weights differ; None if the difference
            was seen only at the end of the epoch.
        since_step: the first step that may have caused the difference, if one call makes several steps and only the
            weights after the last of them can be observed; else None.
        stage: the first stage of the step that differs; None if none could be told, empty if none was recorded.
        where: the layer, the variables or the replica that differ in that stage, as far as it was seen.
        equal_before: whether all weights are equal before, bit for bit; else they differ by no more than rounding.
        weights: the place from which the weights differ by more than rounding, if the stage was seen to differ
            earlier; else None.
    """

    epoch: int
    step: int | None
    since_step: int | None = None
    stage: str | None = ""
    where: str | None = None
    equal_before: bool = True
    weights: Difference | None = None


@dataclass(frozen=True)
class DifferingVariable:
    """A variable that differs, with an estimate of the Euclidean norm of its difference; None if it is not finite."""

    name: str
    gap: float | None


@dataclass(frozen=True)
class Training:
    """Whether two runs computed the same weights.

    Attributes:
        max_weight_gap: the largest absolute difference of any weight at the end of any epoch that both runs
            finished, from the one that differs on, in the weights' own unit; None if unknown or not a number.
        steps_compared: the number of optimizer steps after which all weights were compared.
        steps_made: the number of optimizer steps, if the weights could be compared after some of them only; else 0.
        steps_not_reported_by: the trainer that reports no steps, while the other does; else empty.
        reason: why there is no verdict, or how the runs differ other than in the weights after the same
            step; else empty.
        noise: how the gap compares with rounding; None if that was not measured.
    """

    verdict: str
    max_weight_gap: float | None
    first_difference: Difference | None
    steps_compared: int
    _: KW_ONLY
    steps_made: int = 0
    steps_not_reported_by: str = ""
    differing_variables: tuple[DifferingVariable, ...] = field(default=(), metadata=ALWAYS)
    reason: str = ""
    noise: Noise | None = None


@dataclass(frozen=True)
class MetricGap:
    """The largest absolute difference of one reported metric.

    Attributes:
        max_gap: the difference; None if one side did not report the metric, or the difference is not finite.
        epoch: the epoch of that difference, from 1.
        not_reported_by: the trainer that did not report the metric in some epoch; empty if both did in all, or if the
            difference is not finite.
        only_rounding: whether the metric differs, in every epoch by no more than rounding, beside one that differs by
            more.
        reported_as: the name under which the candidate reported the metric, if it is another one; else empty.
    """

    max_gap: float | None
    epoch: int
    not_reported_by: str = ""
    _: KW_ONLY
    only_rounding: bool = False
    reported_as: str = ""

    @property
    def compared(self) -> bool:
        """Whether both trainers reported the metric in some epoch."""
        return self.max_gap is not None or not self.not_reported_by

    @property
    def differs(self) -> bool:
        """Whether it differs by more than rounding, as far as that is known."""
        return self.compared and self.max_gap != 0 and not self.only_rounding


@dataclass(frozen=True)
class Reporting:
    """Whether two runs reported the same metrics.

    Attributes:
        verdict: None if that could not be judged.
        unexplained: where weights differ, the metrics whose gaps are larger than the rounding that was measured.
    """

    verdict: str | None
    metrics: dict[str, MetricGap]
    unexplained: tuple[str, ...] = field(default=(), compare=False, metadata=unwritten(()))


@dataclass(frozen=True)
class Failure:
    """Why a trainer, the ``side``, could not run; the side is empty if no trainer can run.

    Attributes:
        may_pass: whether the cause may have passed, as of a process that was killed.
    """

    side: str
    error: str
    remedy: str
    may_pass: bool = False

    @property
    def what(self) -> str:
        """Who cannot run; empty where what was trained cannot be compared."""
        if not self.side:
            return "no trainer can run" if self.remedy else ""
        return f"{self.side} {'failed' if self.may_pass else 'cannot run'}"

    @property
    def shown(self) -> str:
        """The same as the beginning of a sentence."""
        return self.what if self.side else self.what.capitalize() or "They do not train the same variables"


@dataclass(frozen=True)
class SoFar:
    """How far the trainings of an interrupted run had come: into which epoch, of how many (None if unknown)."""

    epoch: int
    epochs: int | None


@dataclass(frozen=True)
class Comparison:
    """The comparison of one candidate with the reference.

    Attributes:
        against: the folder of a recorded run of the candidate that takes the place of the reference; else empty.
        reference: what it is compared with, if that is not the run's reference: of two scripts, another model.
        weights_seen: whether there were weights to compare, not only logged numbers.
        not_finite: where values first are not finite: of the weights, and of the reported numbers.
        seed: in a study of several seeds, the seed that ``training`` and ``reporting`` describe; else None.
        causes: the named causes, those of training first.
        so_far: of an interrupted run, where the comparison ends; else None.
        evidence: what no cause explains, in words; None if nothing looked for causes.
        measurements: the same as quantities by name, one for each.
        not_applicable: the probes that could not be made; None if nothing looked for causes.
        certain: in the short check, whether the difference exceeds rounding beyond doubt; else None.
        stages: the stages of the first differing step; empty if they were not seen, None if nothing looked for them.
        stages_at: in a full training, the step of the short check that they belong to; None if they are those of the
            first differing step itself.
    """

    candidate: str
    against: str = field(default="", kw_only=True)
    reference: str = field(default="", kw_only=True)
    verdict: str = field(init=False)
    weights_seen: bool = field(default=True, kw_only=True)
    not_finite: tuple[NotFinite, ...] = field(default=(), kw_only=True)
    training: Training
    reporting: Reporting
    _: KW_ONLY
    seed: int | None = None
    study: Study | None = None
    failure: Failure | None = None
    causes: tuple[Finding, ...] = field(default=(), metadata=ALWAYS)
    so_far: SoFar | None = None
    evidence: tuple[str, ...] | None = None
    measurements: tuple[Mapping[str, Any], ...] = ()
    not_applicable: tuple[NotApplicable, ...] | None = None
    certain: bool | None = None
    stages: tuple[StageValues, ...] | None = None
    stages_at: Difference | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", worst([self.training.verdict, self.reported]))

    @property
    def twins(self) -> str:
        """The name of the folder of its noise twins, in the run's folder ``twins``."""
        return file_name(self.candidate) + " against" * bool(self.against)

    @property
    def recorded(self) -> str:
        """The name of the recorded run that it is compared with; empty if it is none."""
        return Path(self.against).name

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

    @property
    def lost_alone(self) -> NotFinite | None:
        """Where weights, or else the training loss, first are not finite on one side only: their steps tell more."""
        number = self.number_alone
        return self.weights_alone or (number if number is not None and number.metric == "loss" else None)

    def with_training(self, **changes: Any) -> Comparison:
        return replace(self, training=replace(self.training, **changes))

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

        Equal numbers may differ by rounding before. ``stage`` is the first one of that step with such a value, if seen.
        """
        found, exact = self.weights_alone, self.training.first_difference
        if found is None:
            return self
        same = exact is None or (exact.epoch, exact.step) == (found.epoch, found.step)
        since = exact.since_step if exact is not None and same else None
        before = exact is None or (same and exact.equal_before)
        first = Difference(found.epoch, found.step, since, stage, where if stage else None, equal_before=before)
        return self.with_training(first_difference=first)

    @property
    def told(self) -> set[str]:
        """The reported numbers of which a cause or evidence says why they differ."""
        causes = {name for cause in self.causes for name in cause.metrics}
        return causes | {each["metric"] for each in self.measurements if "metric" in each}

    def undecided(self, reason: str) -> Comparison:
        """The comparison without a verdict on the weights."""
        return self.with_training(verdict=INCONCLUSIVE, reason=reason)

    def settled(self) -> Comparison:
        """The comparison as it is written: what the verdict on its numbers means for each of them is said there."""
        metrics, unexplained = self.reporting.metrics, self.reporting.unexplained
        if self.reported == INCONCLUSIVE or (self.training.verdict == ALIKE and (unexplained or self.causes)):
            named = {*unexplained, *self.told}
            metrics = {
                name: replace(gap, only_rounding=gap.only_rounding or bool(gap.max_gap and name not in named))
                for name, gap in metrics.items()
            }
        return replace(self, reporting=Reporting(self.reported, metrics))


def not_comparable(candidate: str, failure: Failure) -> Comparison:
    """The comparison of a candidate if one side failed and nothing can be compared."""
    return Comparison(candidate, Training(NOT_COMPARABLE, None, None, 0), Reporting(None, {}), failure=failure)


def asynchronous(comparison: Comparison) -> Comparison:
    """The comparison under asynchronous updates by several workers, where a difference of weights proves nothing."""
    if comparison.training.verdict != DIFFERENT or comparison.weights_alone is not None:
        return comparison
    reason = (
        "several workers updated the parameters without waiting for each other, so even two runs of the same trainer "
        "differ; use one worker (--workers 1) for an exact comparison"
    )
    return comparison.undecided(reason)


@dataclass(frozen=True)
class Stop:
    """A trainer that stopped early, because a value was no longer finite (see ``compare.records.model.End``)."""

    trainer: str
    seed: int
    epoch: int
    step: int | None
    what: str


@dataclass(frozen=True)
class Distance:
    """The distance of every trainer's weights from those of the float64 run after a step, or at an epoch's end."""

    epoch: int
    step: int | None
    distance: dict[str, float | None]


@dataclass(frozen=True)
class Truth:
    """How far every trainer is from training on one replica in float64 (see ``compare.verdict.float64``).

    Attributes:
        metrics: by trainer, the gaps of its metrics.
        off: the trainer that is clearly farther away where the trainers diverge; None if there is none.
        leaving: by trainer, the first step that takes it farther away than rounding does; None if not recorded.
    """

    after: tuple[Distance, ...]
    metrics: dict[str, dict[str, MetricGap]]
    off: str | None
    leaving: dict[str, Difference] | None = None


@dataclass(frozen=True)
class Verdict:
    """The content of ``verdict.json``.

    Attributes:
        schema: the version of the file's format.
        between_trainers: of a run with a baseline, the worst verdict on its own trainers; else empty.
        since_baseline: the worst verdict on what is compared with the baseline; else empty.
        scope: ``run``, ``check``, ``scripts`` or ``logs``.
        made_alike: of two scripts, what was changed to make them comparable; else None.
        replicas: the numbers of replicas of a check that was made alone; else None.
    """

    schema: int = field(default=1, kw_only=True, metadata=ALWAYS)
    verdict: str = field(init=False)
    between_trainers: str = field(init=False, default="")
    since_baseline: str = field(init=False, default="")
    reference: str
    _: KW_ONLY
    scope: str = field(default="run", metadata=ALWAYS)
    made_alike: tuple[str, ...] | None = None
    interrupted: bool = False
    stopped: tuple[Stop, ...] = ()
    truth: Truth | None = None
    replicas: tuple[int, ...] | None = None
    comparisons: tuple[Comparison, ...] = field(default=(), kw_only=False, metadata=ALWAYS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", worst([comparison.verdict for comparison in self.comparisons]))
        if any(comparison.against for comparison in self.comparisons):
            for name, recorded in (("between_trainers", False), ("since_baseline", True)):
                parts = [each.verdict for each in self.comparisons if bool(each.against) == recorded]
                object.__setattr__(self, name, worst(parts))

    @classmethod
    def of(cls, reference: str, comparisons: Sequence[Comparison], **more: Any) -> Verdict:
        """The verdict on comparisons that were judged."""
        return cls(reference, tuple(comparison.settled() for comparison in comparisons), **more)

    @classmethod
    def read(cls, path: Path) -> Verdict:
        """Reads ``verdict.json``.

        Raises:
            RecordError: if the file cannot be read, was changed after it was written, or is that of another run.
            LookupError, TypeError, ValueError: if its content is not that of a verdict.
        """
        return decode(cls, read_verdict(path))

    def to_json(self) -> str:
        return as_text(with_checksum(self.content()))

    def write(self, path: Path) -> None:
        write_verdict(path, self.content())

    def content(self) -> dict[str, Any]:
        """The content of the file, without its checksum."""
        return dict(encode(self))
