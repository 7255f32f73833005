"""Runs the short check of one trainer on one replica and, where possible, on two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from compare.check.checker import Checker
from compare.check.report import Report, merged
from compare.engine import strategies
from compare.experiment import Experiment
from compare.trainer import Trainer
from compare.trainers.keras_fit import KerasFit
from compare.user_errors import describe

__all__ = ["Checker", "check"]

SEVERAL = "several replicas"
FAILS_ON_TWO = "the reference or the candidate fails on two replicas"
ONE_DEVICE = "TensorFlow has one device here; call compare.configure(replicas=2) before any other TensorFlow call"

CheckOn = Callable[[tf.distribute.Strategy], Report]
"""Checks a trainer under a strategy."""


def check(
    experiment: Experiment,
    trainer: Trainer,
    *,
    reference: Trainer | None = None,
    strategy: tf.distribute.Strategy | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    data: Any = None,
) -> Report:
    """Checks within seconds whether a trainer trains and reports like the reference, and explains any difference.

    Both train on a few small batches of the experiment's own data for two epochs, with the experiment's model, loss,
    metrics and optimizer.

    Args:
        experiment: the experiment that both train.
        trainer: the candidate.
        reference: the trainer to compare it with; stock ``fit`` by default.
        strategy: the strategy under which both train. By default they train on one replica, and then on two if
            TensorFlow has several devices and the trainer uses its strategy.
        batch_size: examples per replica in the run that this check stands for. The check's batches are then short,
            or split unevenly, only if that run's are. If None, the last batch is short and splits unevenly.
        seed: the seed of initial weights and order of examples.
        data: training and validation examples; those of the experiment by default.

    Returns:
        The report: verdict, causes and evidence.

    Raises:
        Exception: whatever a trainer raises.
    """
    reference = KerasFit() if reference is None else reference
    check_on = checking(experiment, trainer, reference, batch_size=batch_size, seed=seed, data=data)
    if strategy is not None:
        return _check_under(strategy, check_on)
    return with_two_replicas(check_on(tf.distribute.get_strategy()), lambda: on_two_replicas(check_on))


def checking(experiment: Experiment, trainer: Trainer, reference: Trainer, **asked: Any) -> CheckOn:
    """Returns a function that checks the trainer under a strategy; ``asked`` is passed to ``Checker``."""
    return lambda strategy: Checker(experiment, reference, strategy, **asked).check(trainer)


def on_two_replicas(check_on: CheckOn) -> Report | str:
    """Returns the report of a check on two replicas, or why there is none."""
    if len(strategies.devices()) == 1:
        return ONE_DEVICE
    try:
        return check_on(strategies.make("mirrored", 2))
    except Exception as error:  # both can train on one replica, so a failure on two is no difference
        return f"{FAILS_ON_TWO}: {describe(error)}"


def with_two_replicas(report: Report, on_two: Callable[[], Report | str]) -> Report:
    """Adds to a report what was found on two replicas, or why nothing was, if the trainer uses its strategy."""
    if not report.distributed:
        return report.without(SEVERAL, _why_one_replica(report))
    found = on_two()
    if isinstance(found, str):
        return report.without(SEVERAL, found)
    # On one replica, calling fit of a model of its own looks like using the run's strategy.
    return merged([report, found]) if found.distributed else report.without(SEVERAL, _why_one_replica(report))


def _check_under(strategy: tf.distribute.Strategy, check_on: CheckOn) -> Report:
    """Checks under the given strategy, or on one replica if the trainer does not use its strategy."""
    failure: Exception | None = None
    try:
        report = check_on(strategy)
        if report.distributed or strategy.num_replicas_in_sync == 1:
            return report
    except Exception as error:
        if strategy.num_replicas_in_sync == 1:
            raise
        failure = error
    on_one = check_on(tf.distribute.get_strategy())
    if failure is not None and on_one.distributed:
        raise failure
    return on_one.without(SEVERAL, _why_one_replica(on_one))


def _why_one_replica(report: Report) -> str:
    return (
        f"{report.comparison.candidate} never calls strategy.run and does not distribute its data, so it trains on one "
        "replica and was checked on one"
    )
