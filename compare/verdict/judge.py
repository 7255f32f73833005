"""From a run's records to its verdict: its trainings in pairs, each judged in the light of all that is known of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from compare.naming import MADE_ALIKE, margin
from compare.records.codec import decode
from compare.records.model import EPOCH_END, INITIAL, Place, Record, in_time, step_dtype
from compare.records.reader import read_records
from compare.records.run_json import INTERRUPTED, UNEXPLAINED, RunJson
from compare.strategy_specs import SPECS
from compare.verdict import exact
from compare.verdict.float64 import distances
from compare.verdict.model import (
    Comparison,
    Failure,
    Reporting,
    SoFar,
    Stop,
    Training,
    Verdict,
    asynchronous,
    not_comparable,
)
from compare.verdict.outcomes import ALIKE, DIFFERENT, FROM_BEST, IDENTICAL, INCONCLUSIVE
from compare.verdict.rounding import FACTOR, measure, units_of
from compare.verdict.seeds import DEFAULT_MARGINS, Margin, Study, study

UNMEASURED = "their weights differ, and the run was interrupted before it was measured whether rounding explains that"
IN_ONE_PROCESS = (
    "their weights differ, and rounding cannot be measured: repeated in one process, the steps give other weights than "
    "those of the workers"
)
UNSEARCHED = "their weights differ, and the run was interrupted before a cause was looked for"
FLOAT64 = "float64"
"""The name of the records of the float64 run."""


@dataclass(frozen=True)
class Recorded:
    """Everything that a verdict rests on, read from a run's files once.

    Beside the records of every trainer and seed, these are the run's options, failures and findings of the short check,
    the records of the run named by ``--baseline``, and those of the noise twins, by the name of their folder.
    """

    run: RunJson
    records: Sequence[Record]
    against: Sequence[Record] = ()
    twins: Mapping[str, Sequence[Record]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Recorded:
        """Read a run's folder.

        Raises:
            RecordError: when a file is missing or damaged.
        """
        run = RunJson.read(folder)
        against = run.options.get("baseline")
        twins = {path.name: read_records(path) for path in sorted((folder / "twins").glob("*")) if path.is_dir()}
        earlier = [each.without_missing() for each in read_records(Path(against))] if against else ()
        return cls(run, read_records(folder), earlier, twins)

    @property
    def shown(self) -> list[Record]:
        """One record of each trainer, the reference first: of a study, that of the first seed."""
        records = _by_trainer(self.records)
        return [records[name][min(records[name])] for name in self.run.trainers or () if name in records]


@dataclass(frozen=True)
class Pair:
    """Two records, and how they compare bit for bit.

    Attributes:
        anchor: the one of the two that was trained in this run, so that noise twins of it can be trained.
        exactly: the comparison bit for bit; what is known where there are no records to compare.
        checked: what the short check, or a look into two scripts, has found; None if there was none.
        study: the comparison over all seeds; None for a single seed.
        inside: the stage in which a value first is not finite on one side only, and where in it; empty if that was
            not seen.
        trained: whether there are records to compare.
    """

    reference: Record
    candidate: Record
    anchor: Record
    exactly: Comparison
    checked: Comparison | None = None
    study: Study | None = None
    inside: tuple[str, str] = ("", "")
    trained: bool = True

    @classmethod
    def of_none(cls, known: Comparison) -> Pair:
        """The pair of trainings that did not take place, or not far enough."""
        missing = Record(known.candidate, 0, (), np.zeros(0, step_dtype(0, 1)), {}, Path())
        return cls(missing, missing, missing, known, trained=False)

    @property
    def noise_start(self) -> Place | None:
        """Where noise twins start to differ from their original; None if they cannot explain the difference.

        If the short check saw wrong gradients or updates, noise in the weights is no excuse.
        """
        if self.study is not None or self.certain:
            return None
        return exact.noise_start(self.reference, self.candidate, self.exactly.training)

    @property
    def certain(self) -> bool:
        """Whether the short check saw more than rounding, by a replay that explains the reference."""
        checked = self.checked
        return checked is not None and checked.training.verdict == DIFFERENT and checked.certain is not False

    def compared(self, twins: Sequence[Record], of_weights: Collection[str] = ()) -> Comparison:
        """The comparison in the light of noise twins, of the short check and of the other seeds (see ``judge``)."""
        comparison = self.exactly
        if not self.trained:
            return comparison
        if self.noise_start is not None and twins:
            comparison = with_noise(comparison, self.reference, self.candidate, twins, self.anchor)
        reporting = comparison.reporting
        checked = self.checked.reporting.verdict if self.checked else None
        if reporting.verdict is None:  # the weights differ; the check judged the numbers by the trainer's own weights
            # Where the check could not tell either, what counts are the numbers of this run.
            known = None if checked == INCONCLUSIVE else checked
            reporting = replace(reporting, verdict=known or self._alike(comparison))
        elif reporting.verdict == DIFFERENT != checked and exact.within_rounding(self.reference, self.candidate):
            reporting = replace(reporting, verdict=ALIKE)
        elif reporting.verdict == DIFFERENT:
            reporting = exact.told_from_rounding(reporting, self.reference, self.candidate)
        comparison = replace(comparison, reporting=reporting).held_different()
        known_cause = self.checked is not None and any(cause.id in of_weights for cause in self.checked.causes)
        if not known_cause:  # else the difference begins where that mistake does
            comparison = comparison.led_by_not_finite(*self.inside)
        return comparison if self.study is None else with_study(comparison, self.study, known_cause)

    def _alike(self, comparison: Comparison) -> str | None:
        """Alike where rounding explains both the weights and each number; None if numbers are left open."""
        reporting, whole = comparison.reporting, self.reference.logs.keys() == self.candidate.logs.keys()
        compared = any(gap.compared for gap in reporting.metrics.values())
        explained = comparison.training.verdict == ALIKE and compared and whole and not reporting.unexplained
        return ALIKE if explained else None


def with_noise(
    comparison: Comparison, reference: Record, candidate: Record, twins: Sequence[Record], anchor: Record | None = None
) -> Comparison:
    """The comparison with its weight difference judged by noise twins (see ``compare.verdict.rounding``).

    Args:
        twins: noise twins of ``anchor``, with noise from ``noise_start`` on; if empty, nothing changes.
        anchor: the run that the twins repeat; the reference by default.
    """
    start = exact.noise_start(reference, candidate, comparison.training)
    if start is None or not twins:
        return comparison
    noise = measure(reference, candidate, twins, start, anchor)
    comparison = comparison.with_training(noise=noise)
    if noise.explains:
        reporting, moved = comparison.reporting, metrics_beyond(reference, candidate, twins, anchor or reference)
        reporting = replace(reporting, unexplained=tuple(name for name in reporting.unexplained if name in moved))
        return replace(comparison.with_training(verdict=ALIKE), reporting=reporting)
    if not noise.reproduced:
        name = (anchor or reference).trainer
        return comparison.undecided(
            f"{name} does not give the same weights when it is run again, so nothing can be compared with it"
        )
    if noise.so_far:
        return comparison.undecided(
            "rounding explains the gap for as long as the perturbed runs were trained, but they ended before the runs"
        )
    return comparison


def metrics_beyond(reference: Record, candidate: Record, twins: Sequence[Record], anchor: Record) -> set[str]:
    """The reference's names of the reported metrics whose gap is larger than ``FACTOR`` times that of all twins.

    As for weights, the gaps of twins are the largest up to each epoch.
    """
    beyond = set()
    for name, other in exact.paired_names(reference, candidate).items():
        largest = 0.0
        for epoch in sorted(reference.logs.keys() & candidate.logs.keys()):
            gaps = (
                (exact.absolute_gap(anchor.logs.get(epoch, {}).get(name), twin.logs.get(epoch, {}).get(name)) or 0.0)
                / units_of(twin.trainer)
                for twin in twins
            )
            largest = max([largest, *gaps])
            gap = exact.absolute_gap(reference.logs[epoch].get(name), candidate.logs[epoch].get(other))
            both = name in reference.logs[epoch] and other in candidate.logs[epoch]
            if both and (gap is None or gap > FACTOR * largest):
                beyond.add(name)
    return beyond


def with_study(comparison: Comparison, study: Study, known_cause: bool) -> Comparison:
    """The comparison with the verdict of a study of several seeds.

    If the weights are not identical, the study decides the training verdict, unless the cause is known.
    """
    if comparison.training.verdict != IDENTICAL and not known_cause:
        comparison = comparison.with_training(verdict=study.verdict)
    reporting = replace(comparison.reporting, unexplained=())  # the study compares them
    return replace(comparison, reporting=reporting, study=study).held_different()


def pairs(recorded: Recorded) -> list[Pair]:
    """Pair each candidate with the reference, and each trainer with the run named by ``--baseline``."""
    run, records = recorded.run, _by_trainer(recorded.records)
    reference, *candidates = run.trainers or [""]
    failures = {each["side"]: decode(Failure, each) for each in run.failures or ()}
    paired: list[Pair] = []
    for name in candidates:
        failure = failures.get("") or failures.get(reference) or failures.get(name)
        if failure:
            paired.append(Pair.of_none(not_comparable(name, failure)))
        else:
            paired.append(_pair(run, name, records.get(reference, {}), records.get(name, {})))
    for first, second in run.models or ():
        pair = _pair(run, second, records.get(first, {}), records.get(second, {}))
        paired.append(replace(pair, exactly=replace(pair.exactly, reference=first)) if pair.trained else pair)
    earlier = _by_trainer(recorded.against)
    for name in (name for name in run.trainers or () if name in earlier):
        where, failure = run.options["baseline"], failures.get("") or failures.get(name)
        sides, reason = _together(run, earlier[name], records.get(name, {}))
        if failure or reason:
            known = not_comparable(name, failure) if failure else _unknown(name, reason)
            paired.append(Pair.of_none(replace(known, against=where)))
        elif sides:
            seed, exactly = _worst({seed: exact.compare_records(*both, where) for seed, both in sides.items()})
            old, new = sides[seed]
            paired.append(Pair(old, new, new, replace(exactly, seed=seed) if len(sides) > 1 else exactly))
    return paired


def _together(
    run: RunJson, reference: Mapping[int, Record], candidate: Mapping[int, Record]
) -> tuple[Mapping[int, tuple[Record, Record]], str]:
    """The records of two trainers by seed, of an interrupted run as far as both have come; or why there are none."""
    sides = {seed: (reference[seed], candidate[seed]) for seed in sorted(reference.keys() & candidate.keys())}
    if run.status == INTERRUPTED:
        begun = {seed: both for seed, both in sides.items() if all(one.last[1] != INITIAL for one in both)}
        ends = {seed: min((one.last for one in both), key=in_time) for seed, both in begun.items()}
        sides = {seed: (one.up_to(ends[seed]), other.up_to(ends[seed])) for seed, (one, other) in begun.items()}
        if not sides:
            return {}, "the run was interrupted before both had a step, or the end of an epoch, to compare"
        if any(
            exact.rests(begun[seed][0]) != exact.rests(begun[seed][1]) and not one.logs
            for seed, (one, _) in sides.items()
        ):
            return {}, "one of the two accumulates gradients: its steps can be paired once an epoch has ended"
    return {seed: exact.paired_steps(*both) for seed, both in sides.items()}, ""


def _pair(run: RunJson, name: str, reference: Mapping[int, Record], candidate: Mapping[int, Record]) -> Pair:
    assert run.strategy is not None
    sides, reason = _together(run, reference, candidate)
    if reason:
        return Pair.of_none(_unknown(name, reason))
    seed, exactly = _worst({seed: exact.compare_records(*both) for seed, both in sides.items()})
    if not SPECS[run.strategy["name"]].synchronous and run.strategy["workers"] > 1:
        exactly = asynchronous(exactly)
    over_seeds = None
    if len(sides) > 1:
        margins = [Margin(*margin(text)) for text in run.options["margin"] or ()] or DEFAULT_MARGINS
        references, candidates = zip(*sides.values(), strict=True)
        over_seeds = study(references, candidates, margins)
        exactly = replace(exactly, seed=seed)
    inside, checked = (run.not_finite or {}).get(name), (run.check or {}).get(name)
    found = decode(Comparison, checked) if checked else None
    where = (inside["stage"], inside["where"]) if inside else ("", "")
    return Pair(*sides[seed], sides[seed][0], exactly, found, over_seeds, where)


def _worst(compared: Mapping[int, Comparison]) -> tuple[int, Comparison]:
    """The first seed with the worst verdict, which stands for all; one that is not finite is worse than different."""
    return max(
        compared.items(),
        key=lambda each: (FROM_BEST.index(each[1].verdict), each[1].weights_alone is not None, -each[0]),
    )


def _unknown(name: str, reason: str) -> Comparison:
    return Comparison(name, Training(INCONCLUSIVE, None, None, 0, reason=reason), Reporting(None, {}))


def _by_trainer(records: Sequence[Record]) -> dict[str, dict[int, Record]]:
    by_trainer: dict[str, dict[int, Record]] = {}
    for record in records:
        by_trainer.setdefault(record.trainer, {})[record.seed] = record
    return by_trainer


def judge(recorded: Recorded, of_weights: Collection[str] = ()) -> Verdict:
    """The verdict on a run.

    Args:
        of_weights: the causes, by id, from which it follows that weights are not finite.
    """
    run, records, paired = recorded.run, _by_trainer(recorded.records), pairs(recorded)
    compared = [pair.compared(recorded.twins.get(pair.exactly.twins, ()), of_weights) for pair in paired]
    scripts, names, truth = bool(run.options.get("scripts")), run.trainers or [], None
    if FLOAT64 in records and FLOAT64 not in names:
        measured = distances(records[FLOAT64][min(records[FLOAT64])], recorded.shown, compared)
        truth = measured if measured.after else None  # it may have failed in its first step
    interrupted = run.status in (INTERRUPTED, UNEXPLAINED)
    comparisons = []
    for pair, comparison in zip(paired, compared, strict=True):
        found = comparison
        if pair.trained:
            if scripts:
                found = _with_variables(with_located(found, pair.checked), pair)
            noise = found.training.noise
            if noise is not None and not noise.reproduced and (run.strategy or {}).get("workers", 1) > 1:
                found = found.undecided(IN_ONE_PROCESS)
            if interrupted and pair.noise_start is not None and found.training.verdict == DIFFERENT:
                found = found.undecided(UNMEASURED)
            if interrupted and pair.study is not None and pair.checked is None and found.training.verdict == ALIKE:
                found = found.undecided(UNSEARCHED)
            if run.status == INTERRUPTED:
                found = replace(found, so_far=_so_far(pair, None if scripts else run.options["epochs"]))
            found = _with_check(found, pair.checked, scripts=scripts)
            if pair.checked is not None and pair.checked.stages_at is not None:
                found = _with_variables(found, pair)
            if found.against and found.verdict == DIFFERENT:
                since: dict[str, Any] = {name: tuple(seen) for name, seen in (run.since_baseline or {}).items()}
                found = replace(found, **since)
        comparisons.append(found)
    comparisons += [_unknown(what, reason) for what, reason in (run.unpaired or {}).items()]
    return Verdict.of(
        names[0],
        comparisons,
        scope="scripts" if scripts else "run",
        made_alike=tuple(name for name in MADE_ALIKE if name not in run.options["keep"]) if scripts else None,
        interrupted=interrupted,
        stopped=tuple(
            Stop(record.trainer, record.seed, record.end.epoch, record.end.step, record.end.what)
            for record in recorded.records
            if record.end is not None and record.end.epoch is not None
        ),
        truth=truth,
    )


def _with_check(comparison: Comparison, checked: Comparison | None, *, scripts: bool) -> Comparison:
    """The comparison with what the short check, or a look into two scripts, has found."""
    if checked is None:
        return comparison
    explained = comparison.verdict in (IDENTICAL, ALIKE)  # by noise twins of the whole run
    evidence, measurements = ((), ()) if explained else (checked.evidence, checked.measurements)
    found = replace(comparison, causes=checked.causes, evidence=evidence, measurements=measurements)
    found = replace(found, not_applicable=checked.not_applicable)
    if comparison.training.verdict != DIFFERENT or checked.stages is None:
        return found
    if checked.stages_at is not None:  # seen in the run itself, in the step where it diverges
        return replace(found.with_training(first_difference=checked.stages_at), stages=checked.stages)
    at = None if scripts else checked.training.first_difference
    return replace(found, stages=checked.stages, stages_at=at)


def _with_variables(comparison: Comparison, pair: Pair) -> Comparison:
    """The comparison with the variables that differ where the difference begins, where only rounding precedes it."""
    first = comparison.training.first_difference
    if first is None or first.step is None or first.equal_before:
        return comparison
    place = first.weights or first
    variables = exact.differing_at(pair.reference, pair.candidate, (place.epoch, place.step or INITIAL))
    variables = variables or comparison.training.differing_variables
    return comparison.with_training(differing_variables=variables)


def _so_far(pair: Pair, epochs: int | None) -> SoFar | None:
    """For an interrupted run, the epoch in which a comparison ends, and how many were wanted; None if it is whole."""
    epoch, step = min(pair.reference.last, pair.candidate.last, key=in_time)
    epoch += step == EPOCH_END
    return None if epochs is not None and epoch > epochs else SoFar(epoch, epochs)


def with_located(comparison: Comparison, checked: Comparison | None) -> Comparison:
    """A comparison of scripts with the step and the stage that were located, and with what is known better."""
    unsure = checked is not None and checked.training.verdict == INCONCLUSIVE and bool(checked.training.reason)
    if checked is None or (comparison.training.verdict != DIFFERENT and not unsure):
        return comparison
    found, reason = checked.training.first_difference, checked.training.reason
    own = comparison.training.first_difference
    same = found is not None and own is not None and (own.epoch, own.step) == (found.epoch, found.step)
    if found is None or (comparison.weights_alone is not None and not (same and found.stage)):
        return comparison  # which may be led by the first value that is not finite
    if unsure:
        nowhere = dict.fromkeys(("max_weight_gap", "first_difference", "noise"))
        return comparison.with_training(**nowhere, differing_variables=()).undecided(reason)
    first, reason = replace(found, equal_before=same), reason or comparison.training.reason
    return comparison.with_training(first_difference=first, reason=reason)
