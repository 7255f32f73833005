"""The short check of a trainer as soon as its weights differ, in a process of its own while training goes on."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

from compare.app import processes
from compare.app.loading import load_trainers
from compare.options import Options
from compare.records import Place
from compare.reporting.sentences import causes
from compare.reporting.terminal import tell
from compare.user_errors import without_exit

if TYPE_CHECKING:
    from compare.check import Report


class EarlyChecks:
    """Short checks that run beside the trainings; to be used as a context, which ends them.

    Args:
        options: the request.
        names: the trainers' names, the reference first.
        threads: the number of threads of each process.
        console: where what they find is printed.
    """

    def __init__(self, options: Options, names: list[str], threads: int, console: Console) -> None:
        self._options, self._names, self._threads, self._console = options, names, threads, console
        self._stack = ExitStack()
        self._executor: Executor | None = None
        self._running: dict[str, Future[Report]] = {}
        self._training = True

    def __enter__(self) -> EarlyChecks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, trainer: str, place: Place) -> None:
        """Checks a trainer whose weights differ from the reference's."""
        if self._executor is None:
            self._executor = self._stack.enter_context(processes.local(1))
        number = self._names.index(trainer)
        future = self._executor.submit(_check, self._options, self._threads, os.getpid(), number)
        future.add_done_callback(lambda done: self._tell(trainer, done))
        self._running[trainer] = future

    def reports(self) -> dict[str, Report]:
        """What the checks have found, by trainer, when training is over; waits for them, and leaves out what failed."""
        self._training = False
        return {name: future.result() for name, future in self._running.items() if future.exception() is None}

    def _tell(self, trainer: str, done: Future[Report]) -> None:
        if not self._training or done.cancelled() or done.exception() is not None or not done.result().training:
            return  # the verdict says it, or more is known then
        tell(self._console, f"{trainer}  the short check has found why its weights differ:", style="yellow")
        for line in causes(done.result().judged):
            tell(self._console, line)


@without_exit("your code")
def _check(options: Options, threads: int, parent: int, number: int) -> Report:
    """Checks one trainer in this worker process."""
    from compare.app.parallel_trainers import get_ready  # noqa: PLC0415 (lazy)

    task = get_ready(options, threads, parent)
    from compare.check import Checker  # noqa: PLC0415 (lazy)

    trainers = load_trainers(options)
    (_, reference), (_, trainer) = trainers[0], trainers[number]
    data = task.train, task.validation
    checker = Checker(
        task.experiment, reference, task.strategy, batch_size=options.batch_size, seed=options.seed, data=data
    )
    with redirect_stdout(StringIO()):  # what a loop prints belongs to the training that goes on
        return checker.look_inside(checker.check(trainer), trainer)
