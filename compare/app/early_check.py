"""The short check of a trainer as soon as its weights differ, in a process of its own while training goes on."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

from compare.app import processes
from compare.app.parallel_trainers import get_ready
from compare.app.ready import Worker
from compare.reporting.sentences import causes
from compare.reporting.terminal import tell
from compare.user_errors import without_exit

if TYPE_CHECKING:
    from compare.check import Report


class EarlyChecks(ExitStack):
    """Short checks that run beside the trainings; to be used as a context, which ends them."""

    def __init__(self, worker: Worker, console: Console) -> None:
        super().__init__()
        self._worker, self._console = worker, console
        self._executor: Executor | None = None
        self._running: dict[str, Future[Report]] = {}
        self._training = True

    def start(self, trainer: str) -> None:
        """Checks a trainer whose weights differ from the reference's."""
        if self._executor is None:
            self._executor = self.enter_context(processes.local(1))
        future = self._executor.submit(_check, self._worker, trainer)
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
def _check(worker: Worker, trainer: str) -> Report:
    """Checks one trainer in this worker process."""
    session = get_ready(worker)
    with redirect_stdout(StringIO()):  # what a loop prints belongs to the training that goes on
        return session.checker()(session.trainers[trainer])
