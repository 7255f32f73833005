"""All trainers at the same time, the first in this process, every other in its own.

A process that trains elsewhere sends what it records here, where all files are written, and progress is shown.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from io import StringIO
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare.app import processes
from compare.app.loading import TRAINERS, load_experiment, load_trainers
from compare.app.resume import ResumePlan
from compare.app.standard_streams import print_traceback
from compare.app.train import DIED, StopAtDifference, both, fail, no_progress, prepare, running_gap, train_on
from compare.engine.keras_generation import select_keras
from compare.engine.tf_config import this_task
from compare.errors import MAY_PASS, EndedEarlyError, RequestError, StorageError, TrainerFailedError, kind_of
from compare.options import Options
from compare.records import (
    AnyRecord,
    End,
    InitialWeights,
    MetricsFile,
    Place,
    Recorder,
    RecordError,
    Sink,
    StepRecord,
    kept,
)
from compare.records.run_json import RunJson
from compare.reporting.jupyter import AnyProgress, progress, side_by_side
from compare.reporting.live import UNLIMITED
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import say, tell
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


def why_not(options: Options) -> str | None:
    """Why the command does not train all trainers at the same time by itself; None where it does.

    The reason is empty where the request leaves no choice.
    """
    if options.sequential or options.parallel or options.check or options.seeds > 1 or options.logs:
        return ""
    if options.spec.several_processes or options.spec.name == "tpu" or this_task() is not None:
        return ""
    if "tensorflow" in sys.modules:
        return ""  # imported by somebody else, who may have used it with all threads
    return processes.why_not(len(options.trainers))


def at_once(options: Options, folder: Path, console: Console) -> Options:
    """The same request with ``parallel`` set if the command should train all trainers at the same time.

    A resumed comparison goes on as it began, if it came so far that this was decided.
    """
    run = RunJson.of_run(folder)
    if options.resume and run.is_decided:
        return options.changed(parallel=True) if run.options.get("parallel") and not options.sequential else options
    reason = why_not(options)
    if reason:
        tell(console, f"One trainer after the other: {reason}.")
    return options if reason is not None else options.changed(parallel=True)


@contextmanager
def getting_ready(options: Options) -> Iterator[Executor | None]:
    """The worker processes, which load TensorFlow and the data while this process does; None without ``--parallel``."""
    if not options.parallel:
        yield None
        return
    others = len(options.trainers) - 1
    with processes.local(others) as executor:
        for _ in range(others):
            executor.submit(get_ready, options, threads_each(options), os.getpid())
        yield executor


def train_in_parallel(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: TrainingTask,
    run: RunJson,
    console: Console,
    live: SinkOf,
    executor: Executor,
    on_difference: Callable[[str, Place], None],
) -> Exception | None:
    """Train with all trainers at the same time.

    Args:
        trainers: the trainers by name.
        options: the request.
        task: what is trained.
        run: the run's ``run.json``; failures go there.
        console: where progress is printed.
        live: gives the sinks of a log that is written during training.
        executor: the processes for all but the first; they end with the training.
        on_difference: told a trainer's name and the first step whose weights differ from the reference's.

    Returns:
        What the first of a user's own trainers raised.
    """
    threads = threads_each(options)
    each = f"each with {threads} thread{'s' * (threads > 1)}"
    tell(console, f"{len(trainers)} trainers run in parallel, {each}, so their times are for a shared processor")
    raised: Exception | None = None
    for name, error in _train(trainers, options, task, run.folder, console, live, executor, on_difference):
        fail(run, name, error, console)
        if options.trainers[[each for each, _ in trainers].index(name)] not in TRAINERS:
            raised = raised or error
    return raised


def _train(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: TrainingTask,
    folder: Path,
    console: Console,
    live: SinkOf,
    executor: Executor,
    on_difference: Callable[[str, Place], None],
) -> list[tuple[str, Exception]]:
    """Train with the first trainer here and with every other in a process of its own.

    Returns:
        The failures: a trainer's name, and what it raised, or a line about it where it trained elsewhere.
    """
    from compare.engine.run import initial_weights  # noqa: PLC0415 (lazy)

    plan = ResumePlan(folder, options.resume)
    task.initial_weights = InitialWeights(folder)
    initial_weights(task, options.seed)  # made here, so that no process makes its own
    metrics = MetricsFile(folder / "metrics.csv")
    (own, trainer), *others = trainers
    stop = StopAtDifference(wanted=options.stop_at_difference)

    def differs(name: str, place: Place) -> None:
        stop.ask(name)
        on_difference(name, place)

    gap, epochs = running_gap(own, console, differs), range(1, options.epochs + 1)
    size = task.steps_per_epoch, task.global_batch_size
    bars = {name: progress(console, name, epochs, *size, gap) for name, _ in trainers}
    seen = {name: both(both(live(name, options.seed), bars[name]), stop) for name, _ in others}
    seen[own] = live(own, options.seed)
    recorders = {name: Recorder(folder, metrics, name, options.seed, seen[name]) for name, _ in trainers}

    def train_here(name: str, trainer: Trainer, recorder: Recorder) -> None:
        try:
            train_on(
                name, trainer, options, task, folder, plan, recorder, console, name, partial(_begun, bars[name], stop)
            )
        except (StorageError, RecordError):
            raise
        except Exception as error:
            print_traceback()
            failed.append((name, error))

    failed: list[tuple[str, Exception]] = []
    try:
        with side_by_side(console, list(bars.values())), _listening(recorders, bars, console) as (address, key, broken):
            where, digests = folder.resolve(), _digests(task)
            ready = options, threads_each(options), os.getpid()
            futures = {
                name: executor.submit(_train_elsewhere, *ready, number, name, where, address, key, digests)
                for number, (name, _) in enumerate(others, start=1)
            }
            train_here(own, trainer, recorders[own])
            for name, future in futures.items():
                try:
                    error = future.result()
                except processes.lost():
                    error = TrainerFailedError(f"{DIED}; TensorFlow's last messages are in tensorflow.log", MAY_PASS)
                if error is not None and error.kind == OTHER_DATA:
                    tell(console, f"{name}  trains after {own}: {error}")
                    train_here(
                        name,
                        dict(others)[name],
                        Recorder(folder, metrics, name, options.seed, live(name, options.seed)),
                    )
                elif error is not None and kept(folder, name, options.seed)[1] is None:  # it was not made to end
                    failed.append((name, error))
        if broken:
            raise broken[0]
    finally:
        executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg] # loky's
        for recorder in recorders.values():
            recorder.flush()
    metrics.sort([name for name, _ in trainers])
    return failed


OTHER_DATA = "other data"
"""The kind of failure of a worker process that has loaded other data than its parent."""


def _digests(task: TrainingTask) -> tuple[str, str]:
    return task.train.sha256(), task.validation.sha256()


def _begun(bar: AnyProgress, stop: Sink, epochs: range) -> AbstractContextManager[Sink]:
    """Lets a progress that is shown already begin."""
    bar.begin(epochs)
    return nullcontext(both(bar, stop))


_prepared: list[TrainingTask] = []
"""What this worker process has prepared."""


@without_exit("your code")
def get_ready(options: Options, threads: int, parent: int) -> TrainingTask:
    """Import TensorFlow and load the data, unless that is done."""
    processes.end_with(parent)
    if not _prepared:
        select_keras(options.keras)
        processes.limit_threads(threads)
        _prepared.append(prepare(options, load_experiment(options)))
        _digests(_prepared[0])  # which are kept, for later
    return _prepared[0]


def _train_elsewhere(
    options: Options,
    threads: int,
    parent: int,
    number: int,
    name: str,
    folder: Path,
    address: Any,
    key: bytes,
    digests: tuple[str, str],
) -> TrainerFailedError | None:
    """Train with one trainer in this worker process and send its records to ``parent``.

    Returns:
        What it raised, or that it has loaded other data; None where all went well.
    """
    task = get_ready(options, threads, parent)
    if _digests(task) != digests:
        return TrainerFailedError("load_data gives other data in another process", OTHER_DATA)

    with Client(address, authkey=key) as connection:
        recorder = _Remote(connection, name)
        console = Console(file=_Told(recorder), width=UNLIMITED, highlight=False)
        _, trainer = load_trainers(options)[number]
        task.initial_weights = InitialWeights(folder)
        try:
            plan = ResumePlan(folder, options.resume)
            train_on(name, trainer, options, task, folder, plan, recorder, console, name, recorder.begin)
        except (StorageError, RecordError):
            raise
        except Exception as error:
            print_traceback()
            return TrainerFailedError(describe(error), kind_of(error))
        finally:
            with suppress(OSError, EOFError):  # the parent could not write, and says so
                recorder.send("flush")
                recorder.send("close")
                connection.recv()  # all is on disk there
    return None


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

    def begin(self, epochs: range) -> AbstractContextManager[Sink]:
        """Tells the parent, which shows the progress, which epochs follow."""
        self.send("begin", epochs)
        return no_progress(epochs)

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


def _carry_out(method: str, arguments: Any, *, recorder: Recorder, bar: AnyProgress, console: Console) -> bool:
    """Does what a worker process asks for; returns whether it goes on."""
    if method == "begin":
        bar.begin(*arguments)
    elif method == "say":
        say(console, arguments[0].rstrip("\n"))
    elif method != "close":
        getattr(recorder, method)(*arguments)
    return method != "close"


@contextmanager
def _listening(
    recorders: Mapping[str, Recorder], bars: Mapping[str, AnyProgress], console: Console
) -> Iterator[tuple[Any, bytes, list[Exception]]]:
    """Receive what the worker processes record, in threads, and write it to the files.

    Yields:
        Where they connect to, with which key, and what could not be written.
    """
    key = secrets.token_bytes(16)
    broken: list[Exception] = []

    def serve(connection: Connection) -> None:
        try:
            ((_, (name,)), *messages) = connection.recv()  # the first message is the trainer's name
            while all(
                _carry_out(*each, recorder=recorders[name], bar=bars[name], console=console) for each in messages
            ):
                messages = connection.recv()
            connection.send(True)
        except (EOFError, ConnectionError):
            pass  # its process is gone
        except EndedEarlyError as end:
            recorders[name].end(End(end.epoch, end.step, end.what))
            tell(console, f"{name} stops: {end}", style="red")
            connection.close()  # which ends the training there
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
