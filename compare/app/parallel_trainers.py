"""One seed, all trainers at the same time: the first in this process, every other in a process of its own.

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
from compare.errors import RequestError, StorageError
from compare.options import Options
from compare.records import AnyRecord, End, InitialWeights, MetricsFile, Recorder, StepRecord
from compare.reporting.terminal import say
from compare.user_errors import describe

if TYPE_CHECKING:
    from compare.engine.run import Task
    from compare.trainer import Trainer

SENT_EVERY = 0.5
"""Seconds between two messages while there is nothing to tell but steps."""


def threads_each(options: Options) -> int:
    """How many threads each trainer's process has: as many for each, since sums depend on their number."""
    return processes.division(options, len(options.trainers))[1]


def limit_threads(threads: int) -> None:
    """Have TensorFlow use so many threads in this process.

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
    """The processes of ``--parallel``, which prepare what they will train while this one does; None without it."""
    if not options.parallel:
        yield None
        return
    others = len(options.trainers) - 1
    with processes.local(others) as executor:
        for _ in range(others):
            executor.submit(_get_ready, processes.absolute(options), threads_each(options), os.getpid())
        yield executor


def train_beside(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: Task,
    folder: Path,
    console: Console,
    executor: Executor,
) -> list[tuple[str, Exception | str]]:
    """Train with all trainers at once.

    Args:
        trainers: each with its name.
        options: the request.
        task: what is trained.
        folder: the run's.
        console: where progress is told.
        executor: the processes for all but the first; they end with the training.

    Returns:
        What failed: a trainer's name, and what it raised, or that in a line where it was elsewhere.
    """
    from compare.app.train import train_on
    from compare.engine.run import initial_weights

    task.initial_weights = InitialWeights(folder)
    initial_weights(task, options.seed)  # made here, so that no process makes its own
    metrics = MetricsFile(folder / "metrics.csv")
    recorders = {name: Recorder(folder, metrics, name, options.seed) for name, _ in trainers}
    (own, trainer), *others = trainers
    failed: list[tuple[str, Exception | str]] = []
    try:
        with _listening(recorders, console) as (address, key, broken):
            here = folder.resolve(), address, key
            ready = processes.absolute(options), threads_each(options), os.getpid()
            futures = {
                name: executor.submit(_train_elsewhere, *ready, number, name, *here)
                for number, (name, _) in enumerate(others, start=1)
            }
            try:
                train_on(own, trainer, options, task, folder, recorders[own], console)
            except StorageError:
                raise
            except Exception as error:
                traceback.print_exc()
                failed.append((own, error))
            for name, future in futures.items():
                try:
                    text = future.result()
                except processes.lost():
                    text = "its process died; what TensorFlow had to say is in tensorflow.log"
                failed += [(name, text)] if text else []
        if broken:
            raise broken[0]
    finally:
        executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg] # loky's
        for recorder in recorders.values():
            recorder.flush()
    metrics.sort([name for name, _ in trainers])
    return failed


_prepared: list[Task] = []
"""What this process, which is a worker's, has got ready."""


def _get_ready(options: Options, threads: int, parent: int) -> Task:
    """Import TensorFlow and load the data; nothing the second time."""
    processes.end_with(parent)
    if not _prepared:
        from compare.engine.keras_generation import select_keras

        select_keras(options)
        processes.limit_threads(threads)
        from compare.app.loading import load_experiment
        from compare.app.train import prepare

        _prepared.append(prepare(options, load_experiment(options)))
    return _prepared[0]


def _train_elsewhere(
    options: Options, threads: int, parent: int, number: int, name: str, folder: Path, address: Any, key: bytes
) -> str:
    """Train with one trainer in this process, and tell ``parent``.

    Returns:
        What it raised, in a line; empty where all went well.
    """
    task = _get_ready(options, threads, parent)
    from compare.app.loading import load_trainers
    from compare.app.train import train_on

    with Client(address, authkey=key) as connection:
        recorder = _Remote(connection, name)
        console = Console(file=_Told(recorder), width=200, highlight=False)
        _, trainer = load_trainers(options)[number]
        task.initial_weights = InitialWeights(folder)
        try:
            train_on(name, trainer, options, task, folder, recorder, console)
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
    """A recorder whose files are written by another process: it passes on what it is told."""

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
    """What is printed, told there."""

    def __init__(self, recorder: _Remote) -> None:
        super().__init__()
        self._recorder = recorder

    def write(self, text: str) -> int:
        self._recorder.send("say", text)
        return len(text)


@contextmanager
def _listening(recorders: dict[str, Recorder], console: Console) -> Iterator[tuple[Any, bytes, list[Exception]]]:
    """Do what other processes' recorders are told to, in threads, while this lasts.

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
