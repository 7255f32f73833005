"""Many runs at the same time, each in a process of its own: this machine's, or those of a Dask cluster."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compare.blame import describe
from compare.errors import NoVerdictError, RequestError
from compare.options import Options, is_file, source_and_attribute
from compare.records import AnyRecord, End, EpochRecord

ATTEMPTS = 3
"""How often worker processes may die, with no run finished in between, before that is an error."""

Job = tuple[int, int]
"""A trainer, by its place in the options, and a seed."""


@dataclass(frozen=True)
class Finished:
    """A run that was made elsewhere.

    Attributes:
        records: all that it reported, without the weights.
        error: what the trainer raised, in a line; empty where all went well.
        end: how it ended, where it raised nothing.
    """

    records: list[AnyRecord]
    error: str = ""
    end: End = field(default_factory=End)


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def division(options: Options, jobs: int) -> tuple[int, int]:
    """How many processes, and how many threads in each; the same for all, since sums depend on it.

    Dask's workers are not ours to divide: a run there has one thread.
    """
    if options.backend == "dask":
        return jobs, 1
    processes = min(options.jobs or cores(), jobs)
    return processes, max(1, cores() // processes)


def run_all(
    options: Options,
    jobs: list[Job],
    initial: Mapping[int, list[np.ndarray]],
    done: Callable[[Job, Finished], None],
    processes: int,
    threads: int,
) -> None:
    """Make every run once; those of a worker that is lost are made again.

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
    options = absolute(options)
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


def lost() -> tuple[type[BaseException], ...]:
    """What is raised when a worker is gone."""
    from concurrent.futures import BrokenExecutor, CancelledError

    return BrokenExecutor, CancelledError, ConnectionError


@contextmanager
def _executor(options: Options, processes: int) -> Iterator[Executor]:
    if options.backend == "dask":
        try:
            from distributed import Client
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


@contextmanager
def local(processes: int) -> Iterator[Executor]:
    """So many processes of this machine, which end with this block however it ends."""
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(max_workers=processes)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, kill_workers=True)


def limit_threads(threads: int) -> None:
    """Have TensorFlow use so many threads in this process.

    Raises:
        RuntimeError: when it is in use already, with another number.
    """
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


_one_at_a_time = threading.Lock()


def run_one(options: Options, number: int, seed: int, initial: list[np.ndarray], threads: int, parent: int) -> Finished:
    """Make one run in this process, which is a worker's; its processes are the parent's own, or Dask's.

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
        from compare.session import select_keras

        select_keras(options)
        limit_threads(threads)
        from compare.loading import load_experiment, load_trainers
        from compare.training import prepare, train

        records: list[AnyRecord] = []

        def sink(record: AnyRecord) -> None:
            # Weights would be most of what is sent, and are of no use to a study.
            records.append(dataclasses.replace(record, weights=None) if isinstance(record, EpochRecord) else record)

        name, trainer = load_trainers(options)[number]
        task = prepare(options, load_experiment(options))
        task.initial_weights[seed] = initial
        error, end = "", End()
        try:
            end = train(
                trainer, dataclasses.replace(options, seed=seed, seeds=1, **_NOT_A_STUDY), task, [sink], name=name
            )
        except Exception as raised:
            traceback.print_exc()
            error = describe(raised)
        return Finished(records, error, end)


_NOT_A_STUDY: dict[str, Any] = {"margin": None, "jobs": None, "backend": "local", "scheduler": None}


def absolute(options: Options) -> Options:
    """The same options with files named in full: a worker may stand in another folder."""

    def full(wanted: Any) -> Any:
        if not (isinstance(wanted, str) and is_file(wanted)):
            return wanted
        source, attribute = source_and_attribute(wanted)
        return f"{Path(source).resolve()}{f':{attribute}' if attribute else ''}"

    folder = None if options.data_dir is None else options.data_dir.resolve()
    trainers = tuple(full(trainer) for trainer in options.trainers)
    return dataclasses.replace(options, experiment=full(options.experiment), trainers=trainers, data_dir=folder)


_watched: set[int] = set()


def end_with(parent: int) -> None:
    """End this process when its parent is gone, however that ended."""
    if parent in _watched or sys.platform == "win32":
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
