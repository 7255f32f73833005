"""Training beside fit in one process, a few examples on a few replicas; for tests of many experiments."""

from __future__ import annotations

from typing import Any

import compare
from compare.records.metrics_csv import MetricsFile
from compare.records.reader import read_records
from compare.records.recorder import Recorder
from compare.verdict.exact import compare_records, moved
from compare.verdict.model import Comparison

GLOBAL_BATCH_SIZE = 32
TRAINING = 140
VALIDATION = 86
"""The last batch of an epoch is short, and splits evenly over two replicas."""


def checker_of(experiment: compare.Experiment, replicas: int = 0, reference: Any = None, **options: Any) -> Any:
    """The short check of any loop against fit, or another reference; under the default strategy without replicas."""
    from compare.check import Checker
    from compare.trainers.keras_fit import KerasFit

    return Checker(experiment, reference or KerasFit(), _strategy(replicas), **options)


def task_of(experiment: compare.Experiment, batch_size: int = 8, replicas: int = 0, *execution: Any) -> Any:
    """What trainers get, with a global batch size; under the default strategy without replicas."""
    from compare.engine import input_pipeline
    from compare.engine.run import TrainingTask

    return TrainingTask(experiment, *input_pipeline.load(experiment), _strategy(replicas), batch_size, *execution)


def run_of(experiment: compare.Experiment, *task: Any, epochs: range = range(1, 2), seed: int = 0, **given: Any) -> Any:
    """The run that a trainer gets, of one epoch by default."""
    from compare.engine.run import Run

    return Run(task_of(experiment, *task), seed=seed, epochs=epochs, **given)


def _strategy(replicas: int) -> Any:
    from compare.engine import strategies

    return strategies.make("mirrored", replicas) if replicas else strategies.make("default")


def held_against_fit(
    experiment: compare.Experiment, trainers: list[Any], folder: Any, replicas: int
) -> list[Comparison]:
    """Train with fit and with each trainer, two epochs of a few examples; what the records say."""
    from compare.engine import input_pipeline, strategies
    from compare.engine.run import Run, TrainingTask
    from compare.trainers.keras_fit import KerasFit

    train, validation = input_pipeline.load(experiment)
    task = TrainingTask(
        experiment,
        train.first(min(TRAINING, train.count)),
        validation.first(min(VALIDATION, validation.count)),
        strategies.make("mirrored", replicas),
        GLOBAL_BATCH_SIZE,
    )
    metrics = MetricsFile(folder / "metrics.csv")
    for trainer in [KerasFit(), *trainers]:
        recorder = Recorder(folder, metrics, trainer.name, 0)
        run = Run(task, seed=0, epochs=range(1, 3), sinks=[recorder])
        trainer.train(run)
        run.close()
    fit, *others = read_records(folder)
    assert moved(fit), "training must have moved the weights"
    return [compare_records(fit, other) for other in others]
