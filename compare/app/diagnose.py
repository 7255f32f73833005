"""Explaining a comparison that is not identical: the short check, which names causes, and noise twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from compare.anew import train_anew
from compare.app.judge import Pair, Recorded, pairs
from compare.app.standard_streams import print_traceback
from compare.check import Checker, Report
from compare.check.late_callbacks import callback_names, missing_callbacks
from compare.check.look_inside import first_not_finite
from compare.engine.noise_twins import TwinRun
from compare.engine.run import Run, TrainingTask
from compare.engine.strategies import without_idle_waits
from compare.options import Options
from compare.records import MetricsFile, Place, Recorder, Sink, read_records
from compare.records.run_json import RunJson
from compare.reporting.jupyter import progress
from compare.reporting.live import waiting
from compare.reporting.terminal import tell
from compare.trainer import Trainer
from compare.user_errors import describe
from compare.verdict import DIFFERENT, rounding
from compare.verdict.codec import encode


def diagnose(
    run: RunJson,
    trainers: Sequence[tuple[str, Trainer]],
    task: TrainingTask,
    options: Options,
    console: Console,
    early: Callable[[], dict[str, Report]] = dict,
) -> None:
    """Explain every comparison that is not identical: causes go into ``run.json``, noise twins into ``twins/``.

    Args:
        run: the run's ``run.json``.
        trainers: the trainers by name, the reference first.
        task: what they train.
        options: the request.
        console: where progress is printed.
        early: gives the short checks that were made beside the trainings, by trainer.
    """
    recorded = Recorded.read(run.folder)
    run.save(check=_check(_not_identical(recorded), trainers, task, options, console, early))
    run.save(not_finite=_look_at_not_finite(_not_identical(recorded), trainers, task, console) or None)
    # With what the check found: it may leave nothing for twins to explain.
    _measure_noise(_not_identical(replace(recorded, run=run)), run.folder, trainers, task, options, console)


def _check(
    differing: Sequence[Pair],
    trainers: Sequence[tuple[str, Trainer]],
    task: TrainingTask,
    options: Options,
    console: Console,
    early: Callable[[], dict[str, Report]],
) -> dict[str, Any]:
    """The short check of every candidate that is not identical, by name, as in ``verdict.json``."""
    different = {pair.candidate.trainer: pair for pair in differing if not pair.exactly.against}
    if not different:
        return {}
    with waiting(console, "short check"):
        reports = {name: report for name, report in early().items() if name in different}
    left = {name: trainer for name, trainer in trainers[1:] if name in different.keys() - reports.keys()}
    if left:
        tell(console, f"Looking for the cause: short check of {' and '.join(left)} …")
        reports |= _reports(left, trainers[0][1], task, options, console)
    for name, report in reports.items():
        if not report.training:
            reports[name] = _with_callbacks(report, different[name], task)
    return {name: encode(report.judged) for name, report in reports.items()}


def _reports(
    candidates: Mapping[str, Trainer], reference: Trainer, task: TrainingTask, options: Options, console: Console
) -> dict[str, Report]:
    """The short checks that did not fail: a comparison stands without them."""
    try:
        with waiting(console, f"short check: {reference.name}"):
            checker = Checker(
                task.experiment,
                reference,
                task.strategy,
                batch_size=options.batch_size,
                seed=options.seed,
                data=(task.train, task.validation),
            )
    except Exception as error:
        print_traceback()
        tell(console, f"The short check failed: {describe(error)}")
        return {}
    reports = {}
    for name, trainer in candidates.items():
        try:
            with waiting(console, f"short check of {name}"):
                reports[name] = checker.look_inside(checker.check(trainer), trainer)
        except Exception as error:
            print_traceback()
            tell(console, f"The short check of {name} failed: {describe(error)}")
    return reports


def _with_callbacks(report: Report, pair: Pair, task: TrainingTask) -> Report:
    """Adds callbacks that act later than the short check lasts."""
    callbacks = callback_names(task.experiment)
    found = missing_callbacks(pair.reference, pair.candidate, pair.exactly, callbacks)
    return report if found is None else replace(report, findings=(found, *report.findings))


def _look_at_not_finite(
    differing: Sequence[Pair], trainers: Sequence[tuple[str, Trainer]], task: TrainingTask, console: Console
) -> dict[str, dict[str, Any]]:
    """Where in its step a value first is not finite, by candidate: that part of training is repeated and observed."""
    inside: dict[str, dict[str, Any]] = {}
    for pair in differing:
        found = pair.exactly.weights_alone
        if found is None or pair.exactly.against:
            continue
        candidate, reference = pair.candidate.trainer, pair.reference.trainer
        side, other = (candidate, reference) if found.side == candidate else (reference, candidate)
        tell(
            console,
            f"The weights of {side} are not finite. Training it again up to there, to see what was first …",
        )

        def make_run(sinks: Sequence[Sink], epoch: int = found.epoch, seed: int = pair.candidate.seed) -> Run:
            return Run(task, seed=seed, epochs=range(1, epoch + 1), sinks=sinks)

        known = dict(trainers)
        names = [variable.name for variable in pair.reference.variables]
        try:
            with waiting(console, f"looking into {side}"), without_idle_waits(), redirect_stdout(StringIO()):
                first = first_not_finite(known[side], known[other], make_run, found, names)
        except Exception as error:  # the comparison stands without it
            print_traceback()
            tell(console, f"Looking into {side} failed: {describe(error)}")
            continue
        if first is not None:
            inside[candidate] = first.as_json()
    return inside


def _measure_noise(
    differing: Sequence[Pair],
    folder: Path,
    trainers: Sequence[tuple[str, Trainer]],
    task: TrainingTask,
    options: Options,
    console: Console,
) -> None:
    """Train noise twins for every difference of weights that rounding might explain."""
    for pair in differing:
        start = pair.noise_start
        if start is None:
            continue
        name = pair.anchor.trainer
        tell(
            console,
            f"{pair.candidate.trainer} is not identical. Training noise twins of {name} to measure rounding: "
            "from there on, all weights are moved by one unit in the last place before every step …",
        )
        try:
            _train_twins(pair, start, dict(trainers)[name], folder, task, options, console)
        except Exception as error:  # the comparison stands without them
            print_traceback()
            tell(console, f"The noise twins failed: {describe(error)}")


def _not_identical(recorded: Recorded) -> list[Pair]:
    return [pair for pair in pairs(recorded) if isinstance(pair, Pair) and pair.exactly.verdict == DIFFERENT]


def _train_twins(
    pair: Pair, start: Place, trainer: Trainer, folder: Path, task: TrainingTask, options: Options, console: Console
) -> None:
    """Train twins up to the end of the first epoch that differs and, if they explain that much, one to the end.

    More twins of either kind are trained where these do not explain the difference.
    """
    where = folder / "twins" / pair.twins
    where.mkdir(parents=True)
    metrics = MetricsFile(where / "metrics.csv")
    count = 0

    def measured(epochs: int, loud: bool = False) -> rounding.Noise:
        nonlocal count
        count += 1
        shown = f"{pair.anchor.trainer}, noise twin {count}"
        numbers = range(1, epochs + 1)
        with progress(console, shown, numbers, task.steps_per_epoch, task.global_batch_size) as line:
            sinks: list[Sink] = [Recorder(where, metrics, rounding.twin_name(count, loud), options.seed), line]
            run = TwinRun(task, seed=options.seed, epochs=numbers, start=start, twin=count, loud=loud, sinks=sinks)
            with without_idle_waits():
                train_anew(trainer, run)
            run.close()
        return rounding.measure(pair.reference, pair.candidate, read_records(where), start, pair.anchor)

    first_epoch, _ = start
    for epochs in sorted({first_epoch, options.epochs}):
        least, most = count + (rounding.TWINS if epochs == first_epoch else 1), count + rounding.MORE_TWINS
        noise = measured(epochs)
        while not rounding.enough(noise, count, least, most):
            noise = measured(epochs, loud=count >= least)
        if not noise.so_far:
            return
