"""One request carried out: options to runs, runs to records, records to verdict, plots and files."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from compare.errors import RequestError
from compare.options import Options
from compare.records import MetricsFile, Recorder, read_json, read_metrics, read_records, write_json
from compare.verdict import EXIT_STATUS, as_json, compare_records

if TYPE_CHECKING:
    import pandas as pd

    from compare.runs import Task
    from compare.trainers.base import Trainer


@dataclass(frozen=True)
class Result:
    """What a run found, and where its files are.

    Attributes:
        path: the run's folder.
        verdict: the overall verdict, as in ``verdict.json``.
    """

    path: Path
    verdict: str

    @property
    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: one row per trainer, seed and epoch; missing values are NaN."""
        import pandas as pd

        frame = pd.DataFrame(read_metrics(self.path / "metrics.csv"))
        whole = {"seed": int, "epoch": int}
        # Not read_csv: depending on pandas's version its floats are off by one in the last place.
        return frame.replace("", np.nan).astype(
            {name: whole.get(name, float) for name in frame.columns if name != "trainer"}
        )

    @property
    def details(self) -> dict[str, Any]:
        """The content of ``verdict.json``."""
        content: dict[str, Any] = read_json(self.path / "verdict.json")
        return content

    @property
    def exit_status(self) -> int:
        """The command's exit status for this verdict."""
        return EXIT_STATUS[self.verdict]


def claim_folder(options: Options) -> Path:
    """Make the run's folder; nobody else can have it then, and nothing that exists is touched.

    Raises:
        RequestError: when the name is taken, or the folder cannot be made.
    """
    wanted = options.reports / (options.name or options.default_name())
    try:
        options.reports.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            try:
                folder.mkdir()
                break
            except FileExistsError:
                if options.name is not None:
                    raise RequestError(
                        f"--name {options.name}: {folder} exists and is not overwritten; choose another name"
                    ) from None
        write_json(folder / "run.json", {"schema": 1, "status": "begun", "options": options.as_json()})
    except OSError as error:
        raise RequestError(
            f"--reports {options.reports}: results cannot be written there ({error.strerror}); "
            "give a folder that can be written to"
        ) from None
    return folder


def new_console(options: Options) -> Console:
    """Where a run's progress goes: stdout, or nowhere when the options say quiet."""
    return Console(file=sys.stdout, quiet=options.quiet, highlight=False)


def carry_out(options: Options, folder: Path, console: Console) -> Result:
    """Run all trainers of a request and judge them; the folder is one from ``claim_folder``.

    Raises:
        RequestError: when the request turns out impossible; the folder is removed if nothing is in it.
    """
    try:
        return _carry_out(options, folder, console)
    except RequestError:
        if not (folder / "metrics.csv").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _carry_out(options: Options, folder: Path, console: Console) -> Result:
    from compare.loading import load_experiment, load_trainers

    trainers = load_trainers(options)
    experiment = load_experiment(options)
    for note in experiment.notes:
        console.print(f"Note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    task = _prepare(options, experiment)
    facts = _facts(options, task, [name for name, _ in trainers])
    write_json(folder / "run.json", facts)
    console.print(facts["title"], style="bold", markup=False, highlight=False)
    console.print(
        f"{task.train.count:,} training and {task.validation.count:,} validation examples, "
        f"global batch {task.global_batch_size}, on {', '.join(facts['strategy']['devices'])}",
        markup=False,
        highlight=False,
    )

    metrics = MetricsFile(folder / "metrics.csv")
    for name, trainer in trainers:
        _train(name, trainer, options, task, Recorder(folder, metrics, name, options.seed), console)
    facts["initial_weights_sha256"] = {str(seed): _digest(weights) for seed, weights in task.initial_weights.items()}
    facts |= {"status": "finished", "finished": _now()}
    write_json(folder / "run.json", facts)
    return _judge(folder, console)


def _prepare(options: Options, experiment: Any) -> Task:
    from compare import pipeline, strategies
    from compare.runs import Task

    train, validation = pipeline.load(experiment)
    if options.train_examples is not None:
        if options.train_examples > train.count:
            raise RequestError(
                f"--train-examples {options.train_examples}: {experiment.name} has {train.count} training examples"
            )
        train = train.first(options.train_examples)
    strategies.configure(options.replicas)
    strategy = strategies.make(options.strategy, options.replicas)
    replicas = strategy.num_replicas_in_sync
    global_batch_size = options.batch_size * replicas
    if global_batch_size > train.count:
        raise RequestError(
            f"--batch-size {options.batch_size} on {replicas} replica(s) makes a global batch of {global_batch_size}, "
            f"more than the {train.count} training examples; at most {train.count // replicas} fit"
        )
    return Task(experiment, train, validation, strategy, global_batch_size)


def _train(name: str, trainer: Trainer, options: Options, task: Task, recorder: Recorder, console: Console) -> None:
    from compare.runs import Run, TrainerError
    from compare.terminal import TrainerProgress

    epochs = range(1, options.epochs + 1)
    with TrainerProgress(console, name, epochs, task.steps_per_epoch, task.global_batch_size) as progress:
        run = Run(task, seed=options.seed, epochs=epochs, sinks=[recorder, progress])
        trainer.train(run)
    if not run.finished:
        raise TrainerError(
            f"trainer {name} returned without ending epoch {run.epoch} of {options.epochs}: call "
            "run.end_epoch(epoch, logs) at the end of every epoch in run.epochs"
        )


def _judge(folder: Path, console: Console) -> Result:
    """Everything from here on is made from the files alone."""
    from compare.report import plots
    from compare.report.text import sentence
    from compare.terminal import epoch_table

    reference, *candidates = read_records(folder)
    verdict = as_json(reference.trainer, [compare_records(reference, other) for other in candidates], scope="run")
    write_json(folder / "verdict.json", verdict)
    plots.draw(folder)
    console.print(epoch_table(reference, candidates))
    for comparison in verdict["comparisons"]:
        console.print()
        style = "bold green" if EXIT_STATUS[comparison["verdict"]] == 0 else "bold red"
        console.print(f"{comparison['verdict']}: ", style=style, end="")
        console.print(sentence(comparison, reference.trainer) + ".", markup=False, highlight=False, soft_wrap=True)
    for file in ("comparison.png", "metrics.csv", "verdict.json"):
        console.print(folder / file, markup=False, highlight=False, soft_wrap=True)
    return Result(folder, verdict["verdict"])


def _facts(options: Options, task: Task, trainers: Sequence[str]) -> dict[str, Any]:
    """The content of ``run.json``: whatever is needed to repeat the run, or to doubt it."""
    import tensorflow as tf

    from compare import strategies

    strategy, experiment = task.strategy, task.experiment
    replicas = strategy.num_replicas_in_sync
    title = f"{experiment.name}: {' and '.join(trainers)} under {options.strategy}, {replicas} replica"
    return {
        "schema": 1,
        "status": "training",
        "title": title + ("s" if replicas > 1 else ""),
        "notes": list(experiment.notes),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "options": options.as_json(),
        "trainers": list(trainers),
        "strategy": {
            "name": options.strategy,
            "class": type(strategy).__name__,
            "replicas": replicas,
            "global_batch_size": task.global_batch_size,
            "devices": strategies.devices()[:replicas],
        },
        "data": {
            "source": experiment.data_source,
            "training_examples": task.train.count,
            "validation_examples": task.validation.count,
            "training_sha256": task.train.sha256(),
            "validation_sha256": task.validation.sha256(),
        },
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": tf.keras.__version__,
            "numpy": np.__version__,
            "fit-vs-loop": version("fit-vs-loop"),
        },
        "machine": {"platform": platform.platform(), "processors": os.cpu_count()},
        "threads": {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
        },
        "started": _now(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _digest(weights: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(f"{weight.dtype} {weight.shape}".encode())
        digest.update(np.ascontiguousarray(weight).data)
    return digest.hexdigest()
