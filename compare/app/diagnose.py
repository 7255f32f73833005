"""Explaining a comparison that is not identical: the short check, which names causes, and noise twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from io import StringIO
from typing import Any

from compare.app.ready import Session, surviving
from compare.check import Report
from compare.check.look_inside import first_not_finite, locate_again
from compare.check.measurement import Measurement
from compare.check.observation import callback_names
from compare.check.whole_run import causes_of
from compare.engine.anew import train_anew
from compare.engine.noise_twins import TwinRun
from compare.engine.run import Run
from compare.engine.strategies import without_idle_waits
from compare.naming import listed
from compare.records.codec import encode
from compare.records.metrics_csv import MetricsFile
from compare.records.model import EPOCH_END, INITIAL, Place, Record, Sink
from compare.records.reader import read_records
from compare.records.recorder import Recorder
from compare.reporting.live import waiting
from compare.reporting.terminal import tell
from compare.verdict import rounding
from compare.verdict.judge import Pair, Recorded, pairs
from compare.verdict.model import Difference
from compare.verdict.outcomes import DIFFERENT


def diagnose(session: Session, early: Callable[[], dict[str, Report]] = dict) -> None:
    """Explain every comparison that is not identical: causes go into ``run.json``, noise twins into ``twins/``.

    ``early`` gives the short checks that were made beside the trainings, by trainer.
    """
    run = session.run
    recorded = Recorded.read(run.folder)
    run.save(check=_check(session, _not_identical(recorded), early))
    run.save(not_finite=_look_at_not_finite(session, _not_identical(recorded)) or None)
    # With what the check found: it may leave nothing for twins to explain.
    for pair in _not_identical(replace(recorded, run=run)):
        if pair.noise_start is not None:
            what = f"perturbed runs of {pair.anchor.trainer} to measure rounding"
            how = "from there on, all weights are moved by one unit in the last place before every step"
            other = f" to that of {pair.exactly.recorded}" if pair.exactly.against else ""
            tell(session.console, f"{pair.candidate.trainer} is not identical{other}. Training {what}: {how} …")
            with surviving(session.console, "The perturbed runs"):
                _train_twins(session, pair, pair.noise_start)
    if any(found["training"]["verdict"] != DIFFERENT for found in (run.check or {}).values()):
        _look_at_late(session, Recorded.read(run.folder))


def _check(session: Session, differing: Sequence[Pair], early: Callable[[], dict[str, Report]]) -> dict[str, Any]:
    """The short check of every candidate that is not identical, by name, as in ``verdict.json``."""
    different = {pair.candidate.trainer: pair for pair in differing if not pair.exactly.against}
    if not different:
        return {}
    with waiting(session.console, "short check"):
        reports = {name: report for name, report in early().items() if name in different}
    reference, *candidates = session.trainers
    left = [name for name in candidates if name in different.keys() - reports.keys()]
    if left:
        tell(session.console, f"Looking for the cause: short check of {listed(left)} …")
        with surviving(session.console, "The short check"):
            with waiting(session.console, f"short check: {session.trainers[reference].name}"):
                check = session.checker()
            for name in left:
                shown = f"short check of {name}"
                with surviving(session.console, f"The {shown}"), waiting(session.console, shown):
                    reports[name] = check(session.trainers[name])
    for name in [name for name, report in reports.items() if _made_no_step(report, different[name].candidate)]:
        del reports[name]
        tell(session.console, f"{name} makes no step in the short check, whose batches are small: it cannot say why.")
    for name, report in reports.items():
        if not report.distributed and session.task.strategy.num_replicas_in_sync > 1 and not report.training:
            seen = Measurement.of("uses-one-replica", side=name, replicas=session.task.strategy.num_replicas_in_sync)
            reports[name] = report = replace(report, unexplained=(seen,))
        if different[name].exactly.training.verdict == DIFFERENT != report.comparison.training.verdict:
            reports[name] = report = replace(report, unexplained=(*report.unexplained, *report.idle))
        if not report.training:
            pair, callbacks = different[name], callback_names(session.task.experiment)
            found = causes_of(pair.reference, pair.candidate, pair.exactly, callbacks)
            reports[name] = report.but(causes=(*found, *report.findings))
    return {name: encode(report.judged) for name, report in reports.items()}


def _made_no_step(report: Report, record: Record) -> bool:
    """Whether a trainer has made steps in the run, but none in its check, as one that skips short batches."""
    never = {"kind": "weights-never-change", "zero": None}.items()
    made = set(record.steps["step"].tolist()) - {INITIAL, EPOCH_END}
    return bool(made) and any(never <= dict(each.measurements).items() for each in report.findings)


def _look_at_not_finite(session: Session, differing: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """Where in its step a value first is not finite, by candidate: that part of training is repeated and observed."""
    inside: dict[str, dict[str, Any]] = {}
    for pair in differing:
        found = pair.exactly.lost_alone
        if found is None or pair.exactly.against:
            continue
        candidate, reference = pair.candidate.trainer, pair.reference.trainer
        side, other = (candidate, reference) if found.side == candidate else (reference, candidate)
        tell(
            session.console,
            f"The {'loss' if found.metric else 'weights'} of {side} {'is' if found.metric else 'are'} not finite. "
            "Training it again up to there, to see what was first …",
        )
        make_run = partial(Run, session.task, seed=pair.candidate.seed, epochs=range(1, found.epoch + 1))
        trainers, names = session.trainers, [variable.name for variable in pair.reference.variables]
        with _looking_into(session, side):
            first = first_not_finite(trainers[side], trainers[other], make_run, found, names)
            if first is not None:
                inside[candidate] = asdict(first)
    return inside


def _look_at_late(session: Session, recorded: Recorded) -> None:
    """Adds the stage of a difference that begins later than the few steps of the short check, which saw none."""
    for pair in _not_identical(recorded):
        checked, name = pair.checked, pair.candidate.trainer
        if checked is None or checked.training.verdict == DIFFERENT or pair.exactly.against:
            continue
        twins = recorded.twins.get(pair.exactly.twins, ())
        training = pair.compared(twins).training
        first = training.first_difference
        if training.verdict != DIFFERENT or first is None or not first.step or pair.exactly.weights_alone is not None:
            continue
        place, start = (first.epoch, first.step), pair.noise_start
        if start is not None:  # rounding may come before it
            place = rounding.first_beyond(pair.reference, pair.candidate, twins, start) or place
        epoch, step = place
        if step < 1:
            continue
        task, reference = session.task, pair.reference.trainer
        again = f"{reference} and {name} again up to step {step:,} of epoch {epoch}"
        tell(session.console, f"{name} trains like {reference} in the short check. Training {again}, to look inside …")
        make: dict[str, Any] = {"seed": pair.candidate.seed, "epochs": range(1, epoch + 1)}
        trainers, names = session.trainers, [variable.name for variable in pair.reference.variables]
        number = (epoch - 1) * task.steps_per_epoch + step
        runs = partial(Run, task, **make), partial(TwinRun, task, start=start or place, twin=1, **make)
        with _looking_into(session, name):
            callbacks = callback_names(task.experiment)
            found = locate_again(trainers[reference], trainers[name], *runs, place, number, names, callbacks)
            if found is not None and (located := found[0]).stage is not None:
                same = place == (first.epoch, first.step)
                at = Difference(epoch, step, None, located.stage, located.where, equal_before=same)
                causes = (*found[1], *checked.causes)
                seen = replace(checked, causes=causes, stages=tuple(located.stages), stages_at=at)
                session.run.save(check={**(session.run.check or {}), name: encode(seen)})


@contextmanager
def _looking_into(session: Session, side: str) -> Iterator[None]:
    """Shows that a training is repeated and observed; what fails there costs no verdict."""
    with (
        surviving(session.console, f"Looking into {side}"),
        waiting(session.console, f"looking into {side}"),
        without_idle_waits(),
        redirect_stdout(StringIO()),
    ):
        yield


def _not_identical(recorded: Recorded) -> list[Pair]:
    return [pair for pair in pairs(recorded) if pair.exactly.verdict == DIFFERENT]


def _train_twins(session: Session, pair: Pair, start: Place) -> None:
    """Train twins up to the end of the first epoch that differs and, if they explain that much, one to the end.

    More twins of either kind are trained where these do not explain the difference.
    """
    name, seed = pair.anchor.trainer, pair.anchor.seed
    where = session.folder / "twins" / pair.exactly.twins
    where.mkdir(parents=True)
    metrics, count = MetricsFile(where / "metrics.csv"), 0

    def measured() -> rounding.Noise:
        return rounding.measure(pair.reference, pair.candidate, read_records(where), start, pair.anchor)

    first_epoch, _ = start
    for last in sorted({first_epoch, session.options.epochs}):
        if count and not measured().so_far:
            return
        epochs = range(1, last + 1)
        least, most = count + (rounding.TWINS if last == first_epoch else 1), count + rounding.MORE_TWINS
        for (twin,), loud in rounding.wanted_twins(measured, count, least, most):
            with session.progress(f"{name}, perturbed run {twin}", epochs) as line:
                sinks: list[Sink] = [Recorder(where, metrics, rounding.twin_name(twin, loud, start), seed), line]
                run = TwinRun(session.task, seed=seed, epochs=epochs, start=start, twin=twin, loud=loud, sinks=sinks)
                with without_idle_waits():
                    train_anew(session.trainers[name], run)
                run.close()
            count = twin
