"""All trainers at the same time, the first in this process, every other in its own; and short checks beside them.

A process that trains elsewhere sends what it records here, where all files are written, and progress is shown.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import cached_property
from io import StringIO
from itertools import chain
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare import signals
from compare.app import processes
from compare.app.ready import Job, Session, Worker, told
from compare.app.train import Event, Tell, listeners_of, outcome_of
from compare.engine.select_keras import select_keras
from compare.engine.tf_config import this_task
from compare.errors import MAY_PASS, EndedEarlyError, TrainerFailedError
from compare.modes import Trained, Training
from compare.records.model import INITIAL, End, StepRecord
from compare.records.recorder import InitialWeights
from compare.records.run_json import RunJson
from compare.reporting.jupyter import side_by_side
from compare.reporting.live import UNLIMITED
from compare.reporting.sentences import causes
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import tell
from compare.user_errors import without_exit

if TYPE_CHECKING:
    from compare.check import Report

SENT_EVERY = 0.5
"""Seconds between two messages while there are only steps to send."""


def worker_of(options: Trained, folder: Path) -> Worker:
    """What the process of another trainer is told; all have as many threads as this one, since sums depend on it."""
    return Worker(options, folder, processes.division(options, len(options.trainers))[1])


def why_not(options: Training) -> str | None:
    """Why the command does not train all trainers at the same time by itself; None where it does.

    The reason is empty where the request leaves no choice.
    """
    if options.sequential or options.parallel:
        return ""
    if options.spec.several_processes or options.spec.name == "tpu" or this_task() is not None:
        return ""
    if "tensorflow" in sys.modules:
        return ""  # imported by somebody else, who may have used it with all threads
    return processes.why_not(len(options.trainers))


def at_once(options: Training, folder: Path, console: Console) -> Training:
    """The same request with ``parallel`` set if the command should train all trainers at the same time.

    A resumed comparison goes on as it began, if it came so far that this was decided.
    """
    run = RunJson.of_run(folder)
    if options.resume and run.parallel is not None:
        began = bool(run.options.get("parallel")) and not options.sequential
        return replace(options, parallel=began or options.parallel)
    reason = why_not(options)
    if reason:
        tell(console, f"One trainer after the other: {reason}.")
    return options if reason is not None else replace(options, parallel=True)


@contextmanager
def getting_ready(options: Trained) -> Iterator[Executor | None]:
    """The worker processes, which import TensorFlow while this process does; None without ``--parallel``."""
    if not (isinstance(options, Training) and options.parallel):
        yield None
        return
    processes.refuse_unsendable(options)
    others = len(options.trainers) - 1
    with processes.local(others, ", or give --sequential") as executor:
        for _ in range(others):
            executor.submit(select_keras, options.keras)
        yield executor


def load_elsewhere(executor: Executor, options: Trained, folder: Path) -> None:
    """Have the worker processes load the data. Call it once this process has: a file that keeps them is whole then."""
    for _ in options.trainers[1:]:
        _submitted(executor, get_ready, worker_of(options, folder))


def train_in_parallel(session: Session, live: SinkOf, executor: Executor, on_difference: Callable[[str], None]) -> None:
    """Train with the first trainer here and with every other in a process of the executor, which ends with them.

    ``on_difference`` is told the name of a trainer as soon as its weights differ from the reference's.
    """
    from compare.engine.run import initial_weights  # noqa: PLC0415 (lazy)

    options, task, folder, console = session.options, session.task, session.folder, session.console
    worker = replace(worker_of(options, folder), data=session.data)
    own, *_ = session.trainers
    each = f"each with {worker.threads} thread{'s' * (worker.threads > 1)}"
    tell(
        console, f"{len(session.trainers)} trainers run in parallel, {each}, so their times are for a shared processor"
    )
    initial_weights(task, options.seed)  # made here, so that no process makes its own
    listeners = listeners_of(session, options.seed, live, on_difference)
    elsewhere = {name: listener for name, listener in listeners.items() if name != own}
    try:
        with side_by_side(console, [each.bar for each in listeners.values()]), ExitStack() as stack:
            where = {name: stack.enter_context(hearing(listener)) for name, listener in elsewhere.items()}
            futures = {
                name: _submitted(executor, _train_elsewhere, worker, listener.job, *where[name])
                for name, listener in elsewhere.items()
            }
            try:
                if own in listeners:
                    listeners[own].train()
                for name, future in futures.items():
                    try:
                        outcome = future.result()
                    except processes.LOST:
                        outcome = TrainerFailedError(f"the process of {name} died; {processes.LAST_MESSAGES}", MAY_PASS)
                    if isinstance(outcome, TrainerFailedError) and outcome.kind == OTHER_DATA:
                        tell(console, f"{name}  trains after {own}: {outcome}")
                        listeners[name].train()
                    else:
                        listeners[name].end(outcome)
            except KeyboardInterrupt:
                wait(futures.values(), signals.seconds_left())  # for the checkpoints that they save
                raise
    finally:
        executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg] # loky's
        for listener in listeners.values():
            listener.recorder.flush()
    for listener in list(listeners.values())[:1]:  # all share the file; in memory, each row has its own order
        listener.recorder.metrics.sort(list(session.trainers))


def _submitted(executor: Executor, function: Callable[..., Any], *args: Any) -> Future[Any]:
    """A function's future result; where a worker has died already, its loss is the result."""
    try:
        return executor.submit(function, *args)
    except processes.LOST as error:
        lost = Future[Any]()
        lost.set_exception(error)
        return lost


OTHER_DATA = "other data"
"""The kind of failure of a worker process that has loaded other data than its parent."""


_ready: list[Session] = []
"""What this worker process has loaded."""


@without_exit("your code")
def get_ready(worker: Worker) -> Session:
    """Import TensorFlow and load the data, unless that is done."""
    if not _ready:
        _ready.append(worker.begin())
        _ = _ready[0].data  # which is kept, for later
    return _ready[0]


def _train_elsewhere(worker: Worker, job: Job, address: Any, key: bytes) -> End | TrainerFailedError:
    """Train in this worker process, which tells its parent what it records; an error may be of other data."""
    session = get_ready(worker)
    if session.data != worker.data:
        return TrainerFailedError("load_data gives other data in another process", OTHER_DATA)
    with Client(address, authkey=key) as connection:
        sender = _Sender(connection)
        session.console = Console(file=sender, width=UNLIMITED, highlight=False)
        session.task.initial_weights = InitialWeights(session.folder)
        try:
            return told(outcome_of(session, job, sender))
        finally:
            with suppress(OSError, EOFError):  # the parent could not write, and says so
                sender.send()
                connection.send([])
                while True:
                    connection.recv()  # until the parent has written everything, and hangs up


class _Sender(StringIO):
    """Sends the parent process what a training tells, and what is written to it; ends the training when asked to."""

    def __init__(self, connection: Any) -> None:  # of another type on Windows
        super().__init__()
        self._connection = connection
        self._waiting: list[Event] = []
        self._sent = time.monotonic()

    def send(self) -> None:
        if self._waiting:
            self._connection.send(self._waiting)
        self._waiting, self._sent = [], time.monotonic()

    def __call__(self, event: Event) -> None:
        self._waiting.append(event)
        if not isinstance(event, StepRecord) or time.monotonic() > self._sent + SENT_EVERY:
            self.send()
        if isinstance(event, StepRecord) and event.step > INITIAL and self._connection.poll():
            with suppress(EOFError):  # the parent has hung up: the next time that it is told something fails
                if what := self._connection.recv():
                    raise EndedEarlyError(event.epoch, event.step, what)
                signals.interrupt()

    def write(self, text: str) -> int:
        self(text)
        return len(text)


@contextmanager
def hearing(hear: Tell) -> Iterator[tuple[Any, bytes]]:
    """Hears, in a thread, what a training in another process tells; yields where to tell it, and the key for it.

    Raises:
        Exception: what hearing it has raised, which ends the training there.
    """
    key = secrets.token_bytes(16)
    broken: list[Exception] = []

    def serve() -> None:
        with suppress(OSError, EOFError), listener.accept() as connection:  # closed, or its process is gone
            for event in chain.from_iterable(iter(connection.recv, [])):
                if signals.interrupted():
                    connection.send("")
                try:
                    hear(event)
                except EndedEarlyError as end:
                    connection.send(end.what)
                except Exception as error:
                    return broken.append(error)

    with _address() as address, Listener(address, authkey=key) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.address, key
    if broken:
        raise broken[0]


@contextmanager
def _address() -> Iterator[str | None]:
    """Where to listen: in a folder for this user alone, by a name that a socket can have however long TMPDIR is."""
    if sys.platform == "win32":  # has pipes with names of their own
        yield None
        return
    short = len(os.fsencode(tempfile.gettempdir())) <= 80  # of 103 bytes for the whole name
    with tempfile.TemporaryDirectory(dir=None if short else "/tmp", ignore_cleanup_errors=True) as folder:
        yield f"{folder}/listener"


class EarlyChecks(ExitStack):
    """Short checks that run beside the trainings; to be used as a context, which ends them."""

    def __init__(self, worker: Worker, console: Console) -> None:
        super().__init__()
        self._worker, self._console = worker, console
        self._running: dict[str, Future[Report]] = {}
        self._training = True

    @cached_property
    def _executor(self) -> Executor:
        return self.enter_context(processes.local(1))

    def start(self, trainer: str) -> None:
        """Checks a trainer whose weights differ from the reference's."""
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
    session = get_ready(worker)
    with redirect_stdout(StringIO()):  # what a loop prints belongs to the training that goes on
        return session.checker()(session.trainers[trainer])
