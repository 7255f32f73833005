"""All trainers at the same time, the first in this process, every other in its own; and short checks beside them.

A process that trains elsewhere sends what it records here, where all files are written, and progress is shown.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare.app import processes
from compare.app.ready import Session, Worker, told
from compare.app.train import StopAtDifference, all_of, has_finished, running_gap, train_on, train_or_fail
from compare.engine.tf_config import this_task
from compare.errors import MAY_PASS, EndedEarlyError, StorageError, TrainerFailedError
from compare.modes import Trained, Training
from compare.records import (
    AnyRecord,
    End,
    InitialWeights,
    MetricsFile,
    Recorder,
    RecordError,
    StepRecord,
    kept,
)
from compare.records.run_json import RunJson
from compare.reporting.jupyter import side_by_side
from compare.reporting.live import UNLIMITED
from compare.reporting.sentences import causes
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import TrainerProgress, say, tell
from compare.request import Request
from compare.user_errors import without_exit

if TYPE_CHECKING:
    from compare.check import Report
    from compare.engine.run import TrainingTask

SENT_EVERY = 0.5
"""Seconds between two messages while there are only steps to send."""


def worker_of(options: Trained, folder: Path) -> Worker:
    """What the process of another trainer is told; all have as many threads as this one, since sums depend on it."""
    return Worker(options, folder, os.getpid(), processes.division(options, len(options.trainers))[1])


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


def at_once(options: Request, folder: Path, console: Console) -> Request:
    """The same request with ``parallel`` set if the command should train all trainers at the same time.

    A resumed comparison goes on as it began, if it came so far that this was decided.
    """
    if not isinstance(options, Training):
        return options
    run = RunJson.of_run(folder)
    if options.resume and run.is_decided:
        began = bool(run.options.get("parallel")) and not options.sequential
        return replace(options, parallel=began or options.parallel)
    reason = why_not(options)
    if reason:
        tell(console, f"One trainer after the other: {reason}.")
    return options if reason is not None else replace(options, parallel=True)


@contextmanager
def getting_ready(options: Trained, folder: Path) -> Iterator[Executor | None]:
    """The worker processes, which load TensorFlow and the data while this process does; None without ``--parallel``."""
    if not (isinstance(options, Training) and options.parallel):
        yield None
        return
    others = len(options.trainers) - 1
    with processes.local(others) as executor:
        for _ in range(others):
            executor.submit(get_ready, worker_of(options, folder))
        yield executor


def train_in_parallel(session: Session, live: SinkOf, executor: Executor, on_difference: Callable[[str], None]) -> None:
    """Train with the first trainer here and with every other in a process of the executor, which ends with them.

    ``on_difference`` is told the name of a trainer as soon as its weights differ from the reference's.
    """
    from compare.engine.run import initial_weights  # noqa: PLC0415 (lazy)

    options, task, folder, console = session.options, session.task, session.folder, session.console
    assert isinstance(options, Training)
    worker, seed = worker_of(options, folder), options.seed
    own, *_ = session.trainers
    each = f"each with {worker.threads} thread{'s' * (worker.threads > 1)}"
    tell(
        console, f"{len(session.trainers)} trainers run in parallel, {each}, so their times are for a shared processor"
    )
    task.initial_weights = InitialWeights(folder)
    initial_weights(task, seed)  # made here, so that no process makes its own
    metrics = MetricsFile(folder / "metrics.csv")
    stop = StopAtDifference(wanted=options.stop_at_difference)

    def differs(name: str) -> None:
        stop.ask(name)
        on_difference(name)

    gap, epochs = running_gap(session, differs), range(1, options.epochs + 1)
    bars = {name: session.progress(name, epochs, gap) for name in session.trainers}
    sinks = {name: all_of(live(name, seed), bar, stop) for name, bar in bars.items()}
    recorders = {name: Recorder(folder, metrics, name, seed, sink) for name, sink in sinks.items()}
    left = [name for name in session.trainers if not has_finished(session, name, seed, name)]
    elsewhere = {name: recorders[name] for name in left if name != own}

    def train_here(name: str) -> None:
        train_or_fail(session, name, seed, recorders[name], name, bars[name].begin)

    try:
        with side_by_side(console, list(bars.values())), _listening(elsewhere, bars, console) as (address, key, broken):
            where = address, key, _digests(task)
            futures = {name: executor.submit(_train_elsewhere, worker, name, *where) for name in elsewhere}
            if own in left:
                train_here(own)
            for name, future in futures.items():
                try:
                    error = future.result()
                except processes.lost():
                    text = f"{processes.DIED}; TensorFlow's last messages are in tensorflow.log"
                    error = TrainerFailedError(text, MAY_PASS)
                if error is not None and error.kind == OTHER_DATA:
                    tell(console, f"{name}  trains after {own}: {error}")
                    train_here(name)
                elif error is not None and kept(folder, name, seed)[1] is None:  # it was not made to end
                    session.failed(name, error)
        if broken:
            raise broken[0]
    finally:
        executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg] # loky's
        for recorder in recorders.values():
            recorder.flush()
    metrics.sort(list(session.trainers))


OTHER_DATA = "other data"
"""The kind of failure of a worker process that has loaded other data than its parent."""


def _digests(task: TrainingTask) -> tuple[str, str]:
    return task.train.sha256(), task.validation.sha256()


_ready: list[Session] = []
"""What this worker process has loaded."""


@without_exit("your code")
def get_ready(worker: Worker) -> Session:
    """Import TensorFlow and load the data, unless that is done."""
    if not _ready:
        _ready.append(worker.begin())
        _digests(_ready[0].task)  # which are kept, for later
    return _ready[0]


def _train_elsewhere(
    worker: Worker, name: str, address: Any, key: bytes, digests: tuple[str, str]
) -> TrainerFailedError | None:
    """Train with one trainer in this worker process and send its records to ``worker.parent``.

    Returns what it raised, or that it has loaded other data; None where all went well.
    """
    session = get_ready(worker)
    if _digests(session.task) != digests:
        return TrainerFailedError("load_data gives other data in another process", OTHER_DATA)
    with Client(address, authkey=key) as connection:
        recorder = _Remote(connection, name)
        session.console = Console(file=_Told(recorder), width=UNLIMITED, highlight=False)
        session.task.initial_weights = InitialWeights(session.folder)
        try:
            train_on(session, name, worker.options.seed, recorder, name, recorder.send)
        except (StorageError, RecordError):
            raise
        except Exception as error:
            return told(error)
        finally:
            with suppress(OSError, EOFError):  # the parent could not write, and says so
                recorder.flush()
                connection.send([])
                connection.recv()  # all is on disk there
    return None


class _Remote(Recorder):
    """A recorder that sends everything to the parent process, which writes the files."""

    def __init__(self, connection: Any, name: str) -> None:  # of another type on Windows
        self._connection = connection
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        connection.send(name)

    def send(self, message: Any) -> None:
        self._waiting.append(message)
        self._connection.send(self._waiting)
        self._waiting, self._sent = [], time.monotonic()

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, StepRecord) and time.monotonic() < self._sent + SENT_EVERY:
            self._waiting.append(record)
        else:
            self.send(record)

    def flush(self) -> None:
        self.send(None)

    rewind = end = keep_costs = send  # type: ignore[assignment] # each takes one thing, and what it is says enough


class _Told(StringIO):
    """Forwards console output to the parent process."""

    def __init__(self, recorder: _Remote) -> None:
        super().__init__()
        self._recorder = recorder

    def write(self, text: str) -> int:
        self._recorder.send(text)
        return len(text)


def _taking(recorder: Recorder, bar: TrainerProgress, console: Console) -> Callable[[Any], None]:
    """What writes or shows what a worker process has sent; what it is says what is to be done."""
    ways: dict[type, Callable[[Any], None]] = {
        range: bar.begin,
        str: lambda text: say(console, text.rstrip("\n")),
        int: recorder.rewind,
        End: recorder.end,
        dict: recorder.keep_costs,
        type(None): lambda _: recorder.flush(),
    }
    return lambda message: ways.get(type(message), recorder)(message)


@contextmanager
def _listening(
    recorders: Mapping[str, Recorder], bars: Mapping[str, TrainerProgress], console: Console
) -> Iterator[tuple[Any, bytes, list[Exception]]]:
    """Receive what the worker processes record, in threads, and write it to the files.

    Yields:
        Where they connect to, with which key, and what could not be written.
    """
    key = secrets.token_bytes(16)
    broken: list[Exception] = []

    def serve() -> None:
        try:
            connection = listener.accept()
        except OSError:
            return  # closed
        with connection:  # what closes it too early ends the training there
            try:
                name = connection.recv()
                take = _taking(recorders[name], bars[name], console)
                while messages := connection.recv():
                    for message in messages:
                        take(message)
                connection.send(True)
            except (EOFError, ConnectionError):
                pass  # its process is gone
            except EndedEarlyError as end:
                recorders[name].end(End(end.epoch, end.step, end.what))
                tell(console, f"{name} stops: {end}", style="red")
            except Exception as error:
                broken.append(error)

    with Listener(authkey=key) as listener:
        for _ in recorders:
            threading.Thread(target=serve, daemon=True).start()
        yield listener.address, key, broken


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
