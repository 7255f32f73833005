"""Tries a user's own trainers for two steps before any full training, so that a typo in a loop shows at once."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import tensorflow as tf

from compare.app.loading import load_trainer
from compare.app.ready import Session
from compare.engine.anew import train_anew
from compare.engine.run import Run, TrainerError, TrainingTask
from compare.errors import RequestError
from compare.modes import Trained
from compare.naming import is_file
from compare.request import TRAINERS
from compare.user_errors import ProcessExit, describe, is_user_code, place_in, refusing_exit

WORTH_IT = 200
"""In a shorter training, by its number of steps, an error shows soon anyway."""
STEPS = 2


class _Tried(BaseException):
    """Ends a trial; no trainer should catch it."""


class _Trial(Run):
    """A run that ends with its first epoch, or with its first step."""

    stops_at_nan = False
    one_step = False

    def end_step(self, steps: int = 1) -> None:
        super().end_step(steps)
        if self.one_step:
            raise _Tried

    def end_epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        super().end_epoch(epoch, logs)
        raise _Tried


def try_trainers(session: Session) -> None:
    """Tries the trainers that would train after others, each on two batches of the first epoch.

    A trial uses a copy of the user's file, imported again with its neighbours, so that nothing that it leaves there
    changes the training that follows. Objects given in Python cannot be copied like that, and are not tried.
    """
    options, task = session.options, session.task
    if options.resume or options.spec.several_processes or options.epochs * task.steps_per_epoch < WORTH_IT:
        return
    for name, wanted in list(zip(session.trainers, options.trainers, strict=True))[1:]:
        if isinstance(wanted, str) and wanted not in TRAINERS and is_file(wanted):
            _try(name, options.located(wanted), options, task)


def _try(name: str, wanted: str, options: Trained, task: TrainingTask) -> None:
    size = task.global_batch_size
    trial = partial(_Trial, seed=options.seed, epochs=range(1, options.epochs + 1))
    train = task.train.first(min(STEPS * size, task.train.count))
    validation = task.validation.first(min(size, task.validation.count))
    error = _failure(wanted, trial(replace(task, train=train, validation=validation, initial_weights={})))
    if error is not None and not _is_typo(error):
        # It may have failed because there are two batches only: with all of them, up to the first step.
        run = trial(replace(task, initial_weights={}))
        run.one_step = True
        error = _failure(wanted, run)
    if error is not None:
        text = describe(error, remedy="fix it")
        place = place_in(error) if isinstance(error, TrainerError) else ""
        raise RequestError(f"trainer {name} fails in its first steps: {text}{place}") from error


def _is_typo(error: Exception) -> bool:
    """Whether an error cannot come from the number of batches."""
    if isinstance(error, UnboundLocalError) or (isinstance(error, AttributeError) and error.obj is None):
        return False  # a variable that only a later step sets
    return isinstance(error, NameError | AttributeError | ImportError | TrainerError)


def _failure(wanted: str, run: Run) -> Exception | None:
    """Returns what a trainer raises when it trains; None if it raises nothing or cannot be tried."""
    with _restored_random_numbers(), _fresh_modules(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        try:
            trainer = load_trainer(wanted)
        except Exception:
            return None  # a file that cannot be imported twice
        try:
            with refusing_exit():
                train_anew(trainer, run)
        except (_Tried, SystemExit, ProcessExit):
            pass  # a loop that ends the process is reported when it trains
        except (StopIteration, tf.errors.OutOfRangeError, tf.errors.ResourceExhaustedError, MemoryError):
            pass
        except Exception as error:
            return error
    return None


@contextmanager
def _restored_random_numbers() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _fresh_modules() -> Iterator[None]:
    """Makes imports load the user's modules again, and restores the loaded ones afterwards."""

    def own() -> dict[str, Any]:
        files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name != "__main__"}
        return {name: sys.modules[name] for name, file in files.items() if file and is_user_code(file)}

    loaded = own()
    for name in loaded:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in own():
            del sys.modules[name]
        sys.modules.update(loaded)
