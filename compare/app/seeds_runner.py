"""A study over several seeds: each training in its own process, on this machine or on a Dask cluster."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from compare.app.loading import load_experiment, load_trainers
from compare.app.processes import division, end_with, limit_threads, local, lost
from compare.app.resume import ResumePlan
from compare.app.standard_streams import print_traceback
from compare.app.train import fail, prepare, train
from compare.engine.keras_generation import select_keras
from compare.errors import NoVerdictError, RequestError, TrainerFailedError, kind_of
from compare.options import Options
from compare.records import AnyRecord, End, EpochRecord, InitialWeights, MetricsFile, Recorder
from compare.records.run_json import RunJson
from compare.reporting.live import live_line, progress_line
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import say_items, tell
from compare.user_errors import describe, without_exit

if TYPE_CHECKING:
    from compare.engine.run import TrainingTask

ATTEMPTS = 3
"""Number of times in a row that worker processes may die before any training finishes."""


Job = tuple[int, int]
"""The index of a trainer in the options, and a seed."""


@dataclass(frozen=True)
class Finished:
    """A training that another process has finished.

    Attributes:
        records: all that it reported, without the weights.
        error: what the trainer raised; None where all went well.
        end: how it ended, where it raised nothing.
    """

    records: list[AnyRecord]
    error: TrainerFailedError | None = None
    end: End = field(default_factory=End)


def run_all(
    options: Options,
    jobs: list[Job],
    initial: Mapping[int, list[np.ndarray]],
    done: Callable[[Job, Finished], None],
    processes: int,
    threads: int,
) -> None:
    """Run every training once; trainings of a lost worker are repeated.

    Args:
        options: the request; a file named in it must be there for the workers too.
        jobs: the runs.
        initial: by seed, what every model begins with. (Made by each run, they may differ: Keras takes them from
            Python's own random numbers, and so do other threads of a Dask worker.)
        done: called here, as each run ends.
        processes: how many at a time.
        threads: how many threads each has.

    Raises:
        RequestError: when no Dask scheduler answers.
        NoVerdictError: when workers keep dying.
    """
    options = options.located()
    left, attempts = list(jobs), 0
    while left:
        finished = 0
        try:
            with _executor(options, processes) as executor:
                futures = {
                    executor.submit(run_one, options, *job, initial[job[1]], threads, os.getpid()): job for job in left
                }
                for future in as_completed(futures):
                    result = future.result()
                    left.remove(futures[future])
                    finished += 1
                    done(futures[future], result)
        except RequestError:
            raise
        except lost() as error:
            attempts = 0 if finished else attempts + 1
            if attempts == ATTEMPTS:
                raise NoVerdictError(
                    f"worker processes died {ATTEMPTS} times before any run was over ({type(error).__name__}): out of "
                    "memory? try --jobs 1; what TensorFlow had to say is in tensorflow.log"
                ) from error


@contextmanager
def _executor(options: Options, processes: int) -> Iterator[Executor]:
    if options.backend == "dask":
        try:
            from distributed import Client  # noqa: PLC0415 (lazy)
        except ImportError:
            raise RequestError('--backend dask needs Dask: pip install "fit-vs-loop[dask]"') from None
        try:
            client = Client(options.scheduler, timeout=5)
        except (OSError, ValueError, TimeoutError) as error:
            raise RequestError(
                f"--scheduler {options.scheduler}: no Dask scheduler answers there ({type(error).__name__}); start one "
                "with: dask scheduler"
            ) from None
        with client:
            yield client.get_executor(pure=False)
        return
    with local(processes) as executor:
        yield executor


_one_at_a_time = threading.Lock()


@without_exit("your code")
def run_one(options: Options, number: int, seed: int, initial: list[np.ndarray], threads: int, parent: int) -> Finished:
    """Run one training in this process, a worker of the parent's own pool or of Dask.

    Args:
        options: the request.
        number: which of its trainers.
        seed: the run's seed.
        initial: what every model begins with.
        threads: how many threads TensorFlow may use.
        parent: the process that asked; a worker of this machine ends with it.
    """
    with _one_at_a_time:  # a Dask worker may have several threads, and TensorFlow's state is the process's
        if options.backend == "local":
            end_with(parent)

        select_keras(options.keras)
        limit_threads(threads)

        records: list[AnyRecord] = []

        def sink(record: AnyRecord) -> None:
            # Weights would be most of what is sent, and are of no use to a study.
            records.append(dataclasses.replace(record, weights=None) if isinstance(record, EpochRecord) else record)

        name, trainer = load_trainers(options)[number]
        task = prepare(options, load_experiment(options))
        task.initial_weights[seed] = initial
        error, end = None, End()
        try:
            end = train(trainer, options.changed(seed=seed, seeds=1), task, [sink], name=name)
        except Exception as raised:
            print_traceback()
            error = TrainerFailedError(describe(raised), kind_of(raised))
        return Finished(records, error, end)


def train_study(
    names: Sequence[str],
    options: Options,
    task: TrainingTask,
    run: RunJson,
    plan: ResumePlan,
    console: Console,
    live: SinkOf,
) -> Exception | None:
    """Train with every trainer and seed, with one training per processor at a time.

    Args:
        names: the trainers' names.
        options: the request.
        task: what is trained.
        run: the run's ``run.json``; failures and the division of threads go there.
        plan: what an interrupted run has done already.
        console: where progress is printed.
        live: gives the sinks of a log that is written as runs end.

    Returns:
        What the first trainer that failed raised.
    """
    from compare.engine.run import initial_weights  # noqa: PLC0415 (lazy)

    jobs = [(number, seed) for seed in options.all_seeds for number in range(len(names))]
    folder = run.folder
    # By the number of all runs, though some may have finished: sums depend on the number of threads.
    processes, threads = division(options, len(jobs))
    if plan.resumed:
        every = len(jobs)
        jobs = [(number, seed) for number, seed in jobs if not plan.done(names[number], seed)]
        tell(console, f"{every - len(jobs)} trainings have finished already")
    run.study = {"backend": options.backend, "processes": processes, "threads_per_process": threads}
    tell(
        console,
        f"{len(jobs)} trainings, "
        + (
            f"on {options.scheduler}"
            if options.backend == "dask"
            else f"{processes} at a time with {threads} thread{'s' * (threads > 1)}"
        ),
    )
    metrics, began = MetricsFile(folder / "metrics.csv"), time.perf_counter()
    raised: list[Exception] = []
    ended: list[Job] = []

    def done(job: Job, finished: Finished) -> None:
        number, seed = job
        recorder = Recorder(folder, metrics, names[number], seed, live(names[number], seed))
        recorder.rewind(0)
        for record in finished.records:
            recorder(record)
        recorder.flush()
        ended.append(job)
        if finished.error is not None:
            raised.append(finished.error)
            fail(run, names[number], finished.error, console)
            return
        recorder.end(finished.end)
        if finished.end.epoch is not None:
            tell(console, f"{names[number]}  seed {seed}  stops in epoch {finished.end.epoch}: {finished.end.what}")
            return
        last = [record for record in finished.records if isinstance(record, EpochRecord)][-1]
        numbers = [f"{name} {value:.4f}" for name, value in last.logs.items()]
        count = f"(training {len(ended)} of {len(jobs)}, after {time.perf_counter() - began:.0f} s)"
        say_items(console, [names[number], f"seed {seed}", *numbers, count])

    def progress(columns: int) -> str:
        seconds = time.perf_counter() - began
        left = seconds / len(ended) * (len(jobs) - len(ended)) if ended else None
        head = f"{len(ended)} of {len(jobs)} trainings"
        return progress_line(columns, head, len(ended) / max(len(jobs), 1), None, left, f"{seconds:.0f} s")

    task.initial_weights = InitialWeights(folder)
    initial = {seed: initial_weights(task, seed) for seed in options.all_seeds}
    with live_line(console, progress):
        run_all(options, jobs, initial, done, processes, threads)
    metrics.sort(names)
    return raised[0] if raised else None
