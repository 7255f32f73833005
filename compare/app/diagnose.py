"""What is run when a comparison is not identical: the short check, which names causes, and noise twins."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from compare.app.judge import Pair, pairs
from compare.check import Checker
from compare.engine.noise_twins import TwinRun
from compare.engine.run import Task
from compare.options import Options
from compare.records import MetricsFile, Place, Recorder, Sink, read_records
from compare.reporting.terminal import TrainerProgress, say
from compare.trainer import Trainer
from compare.user_errors import describe
from compare.verdict import DIFFERENT, rounding


def check_again(
    folder: Path, trainers: Sequence[tuple[str, Trainer]], task: Task, options: Options, console: Console
) -> dict[str, Any]:
    """The short check of every candidate that is not identical, by its name: entries of ``comparisons``."""
    different = [pair.candidate.trainer for pair in _not_identical(folder) if not pair.exactly.against]
    if not different:
        return {}
    say(console, f"Looking for the cause (the short check of {' and '.join(different)}, some seconds) …")
    (_, reference), *candidates = trainers
    found: dict[str, Any] = {}
    try:
        checker = Checker(
            task.experiment,
            reference,
            task.strategy,
            batch_size=options.batch_size,
            seed=options.seed,
            data=(task.train, task.validation),
        )
    except Exception as error:  # the comparison stands without it
        traceback.print_exc()
        say(console, f"The short check failed: {describe(error)}")
        return {}
    for name, trainer in candidates:
        if name not in different:
            continue
        try:
            found[name] = checker.check(trainer).as_json()["comparisons"][0]
        except Exception as error:
            traceback.print_exc()
            say(console, f"The short check of {name} failed: {describe(error)}")
    return found


def measure_noise(
    folder: Path, trainers: Sequence[tuple[str, Trainer]], task: Task, options: Options, console: Console
) -> None:
    """Train noise twins for every difference of weights that rounding might explain."""
    for pair in _not_identical(folder):
        start = pair.noise_start
        if start is None:
            continue
        name = pair.anchor.trainer
        say(
            console,
            f"{pair.candidate.trainer} is not identical. How far does rounding alone drive {name}? It is "
            "trained again, all its weights moved by one unit in the last place before every step from there on …",
        )
        try:
            _train_twins(pair, start, dict(trainers)[name], folder, task, options, console)
        except Exception as error:  # the comparison stands without them
            traceback.print_exc()
            say(console, f"The noise twins failed: {describe(error)}")


def _not_identical(folder: Path) -> list[Pair]:
    return [pair for pair in pairs(folder) if isinstance(pair, Pair) and pair.exactly.verdict == DIFFERENT]


def _train_twins(
    pair: Pair, start: Place, trainer: Trainer, folder: Path, task: Task, options: Options, console: Console
) -> None:
    """Some twins up to the end of the epoch in which the two part, then, if they explain it so far, one over all.

    More of either kind, where these do not explain it.
    """
    where = pair.twins(folder)
    where.mkdir(parents=True)
    metrics = MetricsFile(where / "metrics.csv")
    count = 0

    def measured(epochs: int, loud: bool = False) -> rounding.Noise:
        nonlocal count
        count += 1
        shown = f"{pair.anchor.trainer}, noise twin {count}"
        numbers = range(1, epochs + 1)
        with TrainerProgress(console, shown, numbers, task.steps_per_epoch, task.global_batch_size) as progress:
            sinks: list[Sink] = [Recorder(where, metrics, rounding.twin_name(count, loud), options.seed), progress]
            run = TwinRun(task, seed=options.seed, epochs=numbers, start=start, twin=count, loud=loud, sinks=sinks)
            trainer.train(run)
            run.close()
        return rounding.measure(pair.reference, pair.candidate, read_records(where), start, pair.anchor)

    first_epoch, _ = start
    for epochs in sorted({first_epoch, options.epochs}):
        least, most = count + (rounding.TWINS if epochs == first_epoch else 1), count + rounding.MORE_TWINS
        found = measured(epochs)
        while not rounding.enough(found, count, least, most):
            found = measured(epochs, loud=count >= least)
        if not found.so_far:
            return
