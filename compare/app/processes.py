"""Many runs at the same time, each in a process of its own: this machine's, or those of a Dask cluster."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.options import Options, is_file, source_and_attribute


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


def lost() -> tuple[type[BaseException], ...]:
    """What is raised when a worker is gone."""
    from concurrent.futures import BrokenExecutor, CancelledError

    return BrokenExecutor, CancelledError, ConnectionError


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
