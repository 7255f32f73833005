"""``--parallel``: all trainers at the same time, the first in this process, every other in its own.

A process that trains elsewhere sends what it records here, where all files are written, and progress is shown.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from io import StringIO
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare.app import processes
from compare.app.loading import TRAINERS, load_experiment, load_trainers
from compare.app.resume import ResumePlan
from compare.app.train import DIED, fail, prepare, train_on
from compare.engine.keras_generation import select_keras
from compare.errors import RequestError, StorageError
from compare.options import Options
from compare.records import AnyRecord, End, InitialWeights, MetricsFile, Recorder, RecordError, StepRecord
from compare.records.run_json import RunJson
from compare.reporting.terminal import say
from compare.user_errors import describe, without_exit

if TYPE_CHECKING:
    from compare.engine.run import TrainingTask
    from compare.trainer import Trainer

SENT_EVERY = 0.5
"""Seconds between two messages while there are only steps to send."""


def threads_each(options: Options) -> int:
    """Number of threads of each trainer's process; equal for all, since sums depend on it."""
    return processes.division(options, len(options.trainers))[1]


def limit_threads(threads: int) -> None:
    """Limit the number of threads that TensorFlow uses in this process.

    Raises:
        RequestError: when it is in use already, with another number.
    """
    try:
        processes.limit_threads(threads)
    except RuntimeError:
        raise RequestError(
            "--parallel divides the processor's threads between the trainers, and TensorFlow, already in use in this "
            "process, has taken them all: use a process of its own"
        ) from None


@contextmanager
def getting_ready(options: Options) -> Iterator[Executor | None]:
    """The worker processes, which load TensorFlow and the data while this process does; None without ``--parallel``."""
    if not options.parallel:
        yield None
        return
    others = len(options.trainers) - 1
    with processes.local(others) as executor:
        for _ in range(others):
            executor.submit(_get_ready, options, threads_each(options), os.getpid())
        yield executor


def train_in_parallel(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: TrainingTask,
    run: RunJson,
    console: Console,
    executor: Executor,
) -> Exception | None:
    """Train with all trainers at the same time.

    Args:
        trainers: the trainers by name.
        options: the request.
        task: what is trained.
        run: the run's ``run.json``; failures and the division of threads go there.
        console: where progress is printed.
        executor: the processes for all but the first; they end with the training.

    Returns:
        What the first of a user's own trainers raised.
    """
    threads = threads_each(options)
    run.save(parallel={"processes": len(trainers), "threads_per_process": threads})
    each = f"each with {threads} thread{'s' * (threads > 1)}"
    say(console, f"{len(trainers)} trainers at the same time, {each}: times are of a shared processor")
    raised: Exception | None = None
    for name, error in _train(trainers, options, task, run.folder, console, executor):
        fail(run, name, error, console)
        if options.trainers[[each for each, _ in trainers].index(name)] not in TRAINERS:
            raised = raised or (error if isinstance(error, Exception) else RuntimeError(error))
    return raised


def _train(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: TrainingTask,
    folder: Path,
    console: Console,
    executor: Executor,
) -> list[tuple[str, Exception | str]]:
    """Train with the first trainer here and with every other in a process of its own.

    Returns:
        The failures: a trainer's name, and what it raised, or a line about it where it trained elsewhere.
    """
    from compare.engine.run import initial_weights  # noqa: PLC0415 (lazy)

    plan = ResumePlan(folder, options.resume)
    task.initial_weights = InitialWeights(folder)
    initial_weights(task, options.seed)  # made here, so that no process makes its own
    metrics = MetricsFile(folder / "metrics.csv")
    recorders = {name: Recorder(folder, metrics, name, options.seed) for name, _ in trainers}
    (own, trainer), *others = trainers
    failed: list[tuple[str, Exception | str]] = []
    try:
        with _listening(recorders, console) as (address, key, broken):
            here = folder.resolve(), address, key
            ready = options, threads_each(options), os.getpid()
            futures = {
                name: executor.submit(_train_elsewhere, *ready, number, name, *here)
                for number, (name, _) in enumerate(others, start=1)
            }
            try:
                train_on(own, trainer, options, task, folder, plan, recorders[own], console)
            except (StorageError, RecordError):
                raise
            except Exception as error:
                traceback.print_exc()
                failed.append((own, error))
            for name, future in futures.items():
                try:
                    text = future.result()
                except processes.lost():
                    text = f"{DIED}; TensorFlow's last messages are in tensorflow.log"
                failed += [(name, text)] if text else []
        if broken:
            raise broken[0]
    finally:
        executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg] # loky's
        for recorder in recorders.values():
            recorder.flush()
    metrics.sort([name for name, _ in trainers])
    return failed


_prepared: list[TrainingTask] = []
"""What this worker process has prepared."""


@without_exit("your code")
def _get_ready(options: Options, threads: int, parent: int) -> TrainingTask:
    """Import TensorFlow and load the data, unless that is done."""
    processes.end_with(parent)
    if not _prepared:
        select_keras(options.keras)
        processes.limit_threads(threads)

        _prepared.append(prepare(options, load_experiment(options)))
    return _prepared[0]


def _train_elsewhere(
    options: Options, threads: int, parent: int, number: int, name: str, folder: Path, address: Any, key: bytes
) -> str:
    """Train with one trainer in this worker process and send its records to ``parent``.

    Returns:
        What it raised, in a line; empty where all went well.
    """
    task = _get_ready(options, threads, parent)

    with Client(address, authkey=key) as connection:
        recorder = _Remote(connection, name)
        console = Console(file=_Told(recorder), width=200, highlight=False)
        _, trainer = load_trainers(options)[number]
        task.initial_weights = InitialWeights(folder)
        try:
            train_on(name, trainer, options, task, folder, ResumePlan(folder, options.resume), recorder, console)
        except Exception as error:
            traceback.print_exc()
            return describe(error)
        finally:
            with suppress(OSError, EOFError):  # the parent could not write, and says so
                recorder.send("flush")
                recorder.send("close")
                connection.recv()  # all is on disk there
    return ""


class _Remote(Recorder):
    """A recorder that sends everything to the parent process, which writes the files."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._waiting: list[tuple[str, tuple[Any, ...]]] = [("name", (name,))]
        self._sent = time.monotonic()

    def send(self, method: str, *arguments: Any) -> None:
        self._waiting.append((method, arguments))
        self._connection.send(self._waiting)
        self._waiting, self._sent = [], time.monotonic()

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, StepRecord) and time.monotonic() < self._sent + SENT_EVERY:
            self._waiting.append(("__call__", (record,)))
        else:
            self.send("__call__", record)

    def rewind(self, epoch: int) -> None:
        self.send("rewind", epoch)

    def end(self, end: End) -> None:
        self.send("end", end)

    def flush(self) -> None:
        self.send("flush")

    def keep_costs(self, costs: dict[str, Any]) -> None:
        self.send("keep_costs", costs)


class _Told(StringIO):
    """Forwards console output to the parent process."""

    def __init__(self, recorder: _Remote) -> None:
        super().__init__()
        self._recorder = recorder

    def write(self, text: str) -> int:
        self._recorder.send("say", text)
        return len(text)


@contextmanager
def _listening(recorders: dict[str, Recorder], console: Console) -> Iterator[tuple[Any, bytes, list[Exception]]]:
    """Receive what the worker processes record, in threads, and write it to the files.

    Yields:
        Where they connect to, with which key, and what could not be written.
    """
    key = secrets.token_bytes(16)
    broken: list[Exception] = []

    def serve(connection: Connection) -> None:
        recorder: Any = None
        try:
            while True:
                for method, arguments in connection.recv():
                    if method == "name":
                        recorder = recorders[arguments[0]]
                    elif method == "say":
                        say(console, arguments[0].rstrip("\n"))
                    elif method == "close":
                        connection.send(True)
                        return
                    else:
                        getattr(recorder, method)(*arguments)
        except (EOFError, ConnectionError):
            pass  # its process is gone
        except Exception as error:
            broken.append(error)
            connection.close()  # which ends the training there

    def accept() -> None:
        for _ in recorders:
            try:
                connection = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    with Listener(authkey=key) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.address, key, broken
