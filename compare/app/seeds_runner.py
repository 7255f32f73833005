"""A study over several seeds: each training in its own process, on this machine or on a Dask cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from compare.app.processes import LOST, division, local, refuse_unsendable
from compare.app.provenance import code_of_user, imported
from compare.app.ready import Job, Session, Worker, told
from compare.app.resume import is_done
from compare.app.train import Event, outcome_of
from compare.errors import NoVerdictError, RequestError, TrainerFailedError
from compare.modes import Study, Trained
from compare.naming import refuse_margins, some
from compare.records.metrics_csv import MetricsFile
from compare.records.model import BEGINNING, AnyRecord, End, EpochRecord
from compare.records.recorder import Recorder
from compare.reporting.live import live_line, progress_line
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import say_items, tell
from compare.threads import in_thread
from compare.user_errors import place_of, without_exit

ANSWER_SECONDS = 20.0
"""Time that a Dask scheduler has to answer."""
WORKERS_SECONDS = 5.0
"""Time between two looks for a Dask scheduler's workers."""
ATTEMPTS = 3
"""Number of times in a row that worker processes may die before any training finishes."""
Finished = tuple[list[AnyRecord], End | TrainerFailedError]
"""A training that another process has finished: what it reported, without weights, and its end or its error."""


def _run_all(
    worker: Worker,
    processes: int,
    jobs: list[Job],
    initial: Mapping[int, list[np.ndarray]],
    done: Callable[[Job, Finished], None],
    say: Callable[[str], None],
) -> None:
    """Run every training once, and call ``done`` as each ends; trainings of a lost worker are repeated.

    Models begin with the weights in ``initial``, by seed. (Made by each run, they may differ: Keras takes them from
    Python's own random numbers, and so do other threads of a Dask worker.)
    """
    left, attempts = list(jobs), 0
    while left:
        finished = 0
        try:
            with _executor(worker.options, processes, say, again=attempts > 0 or len(left) < len(jobs)) as executor:
                futures = {executor.submit(_run_one, worker, job, initial[job.seed]): job for job in left}
                for future in as_completed(futures):
                    result = future.result()
                    left.remove(futures[future])
                    finished += 1
                    done(futures[future], result)
        except RequestError:
            raise
        except LOST as error:
            attempts = 0 if finished else attempts + 1
            if attempts == ATTEMPTS:
                raise NoVerdictError(f"{_lost(left[:processes], error)}, or start another run with --jobs 1") from error
        except Exception as error:
            if type(error).__name__ == "KilledWorker":  # Dask's
                raise NoVerdictError(_lost(left, error)) from error
            raise


def _lost(jobs: Sequence[Job], error: Exception) -> str:
    """What to do where the processes that train these have died."""
    under_way = some([f"{name} with seed {seed}" for name, seed, *_ in jobs])
    return (
        f"worker processes died {ATTEMPTS} times or more while training {under_way} ({type(error).__name__}): out of "
        "memory? What TensorFlow had to say is in tensorflow.log; continue with --resume"
    )


@contextmanager
def _executor(
    options: Trained, processes: int, say: Callable[[str], None], *, again: bool = False
) -> Iterator[Executor]:
    if isinstance(options, Study) and options.backend == "dask":
        try:
            from distributed import Client  # noqa: PLC0415 (lazy)
        except ImportError:
            raise RequestError('--backend dask needs Dask: pip install "fit-vs-loop[dask]"') from None
        try:  # in a thread, since its own timeout is not that of a port which accepts, and never answers
            client = in_thread(lambda: Client(options.scheduler, timeout=5)).result(ANSWER_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            text = (
                f"--scheduler {options.scheduler}: no Dask scheduler answers there ({type(error).__name__}); start one "
                "with: dask scheduler"
            )
            raise NoVerdictError(f"{text}, and continue with --resume") if again else RequestError(text) from None
        with client, _saying_where_none_works(client, str(options.scheduler), say):
            yield client.get_executor(pure=False)
        return
    with local(processes) as executor:
        yield executor


@contextmanager
def _saying_where_none_works(client: Any, scheduler: str, say: Callable[[str], None]) -> Iterator[None]:
    """Says so whenever a Dask scheduler has no worker left: it waits for one without a word."""
    ended = threading.Event()

    def watch() -> None:
        said = False
        while not ended.is_set():
            none = not client.scheduler_info()["workers"]
            if none and not said:
                say(f"{scheduler} has no workers; waiting for one; start it with: dask worker {scheduler}")
            said = none
            ended.wait(WORKERS_SECONDS)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


_one_at_a_time = threading.Lock()


@without_exit("your code")
def _run_one(worker: Worker, job: Job, initial: list[np.ndarray]) -> Finished:
    """Run one training in this process, a worker of the parent's own pool or of Dask."""
    with _one_at_a_time:  # a Dask worker may have several threads, and TensorFlow's state is the process's
        session = worker.begin()
        if session.data != worker.data:
            place = place_of(session.task.experiment.load_data)
            raise RequestError(
                f"load_data ({place}) gives other data in another process, so the trainings of a study would not see "
                "the same: seed its random numbers, as in np.random.default_rng(0)"
            )
        now = code_of_user(worker.options) | imported(worker.options)
        if changed := [name for name in worker.code.keys() & now.keys() if worker.code[name] != now[name]]:
            raise NoVerdictError(f"{some(sorted(changed))} changed since the study began: start another run")
        session.task.initial_weights[job.seed] = initial
        records: list[AnyRecord] = []

        def keep(event: Event) -> None:
            if isinstance(event, EpochRecord):  # weights would be most of what is sent, and are of no use to a study
                event = replace(event, weights=None)
            if isinstance(event, AnyRecord):
                records.append(event)

        return records, told(outcome_of(session, job, keep))


def train_study(session: Session, options: Study, live: SinkOf) -> None:
    """Train with every trainer and seed, with one training per processor at a time."""
    from compare.engine.run import initial_weights  # noqa: PLC0415 (lazy)

    refuse_unsendable(options)
    console, folder = session.console, session.folder
    jobs = session.jobs
    # By the number of all runs, though some may have finished: sums depend on the number of threads.
    processes, threads = division(options, len(jobs))
    if options.resume:
        every = len(jobs)
        jobs = [job for job in jobs if not is_done(session, job)]
        tell(console, f"{every - len(jobs)} trainings have finished already")
    session.run.study = {"backend": options.backend, "processes": processes, "threads_per_process": threads}
    at_a_time = f"{processes} at a time with {threads} thread{'s' * (threads > 1)}"
    where = f"on {options.scheduler}" if options.backend == "dask" else at_a_time
    tell(console, f"{len(jobs)} training{'s' * (len(jobs) != 1)}, {where}; one that is interrupted begins again")
    metrics, began = MetricsFile(folder / "metrics.csv"), time.perf_counter()
    ended: list[Job] = []

    def done(job: Job, finished: Finished) -> None:
        (name, seed, _), (records, end) = job, finished
        recorder = Recorder(folder, metrics, name, seed, live(name, seed))
        recorder.rewind(BEGINNING)
        for record in records:
            recorder(record)
        recorder.flush()
        ended.append(job)
        if isinstance(end, TrainerFailedError):
            session.failed(name, end, seed)
            session.raised = session.raised or end
            return
        recorder.end(end)
        if end.epoch is not None:
            tell(console, f"{name}  seed {seed}  stops in epoch {end.epoch}: {end.what}")
            return
        last = [record for record in records if isinstance(record, EpochRecord)][-1]
        if name == next(iter(session.trainers)):
            refuse_margins(options.margin or (), name, last.logs)
        numbers = [f"{metric} {value:.4f}" for metric, value in last.logs.items()]
        count = f"(training {len(ended)} of {len(jobs)}, after {time.perf_counter() - began:.0f} s)"
        say_items(console, [name, f"seed {seed}", *numbers, count])

    def progress(columns: int) -> str:
        seconds = time.perf_counter() - began
        left = seconds / len(ended) * (len(jobs) - len(ended)) if ended else None
        head = f"{len(ended)} of {len(jobs)} training{'s' * (len(jobs) != 1)}"
        return progress_line(columns, head, len(ended) / max(len(jobs), 1), None, left, f"{seconds:.0f} s")

    initial = {seed: initial_weights(session.task, seed) for seed in options.all_seeds}
    loaded = {**(session.run.code or {}), **(session.run.imported or {})}
    worker = Worker(replace(options, resume=False), folder, threads, session.data, loaded)
    with live_line(console, progress):
        _run_all(worker, processes, jobs, initial, done, partial(tell, console))
    metrics.sort(list(session.trainers))
