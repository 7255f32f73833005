"""How a process gets ready to train, in one way for all of them, and what is shared from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from compare.app.loading import load
from compare.app.standard_streams import print_traceback
from compare.engine.select_keras import select_keras
from compare.errors import MAY_PASS, NO_MEMORY, RequestError, TrainerFailedError, kind_of
from compare.modes import Trained, Training
from compare.records.codec import encode
from compare.records.model import End
from compare.records.run_json import RunJson
from compare.reporting.jupyter import progress
from compare.reporting.terminal import RunningGap, TrainerProgress, tell
from compare.request import TRAINERS, Task
from compare.user_errors import describe
from compare.verdict.judge import FLOAT64
from compare.verdict.model import Failure

if TYPE_CHECKING:
    from compare.check import Report
    from compare.engine.input_pipeline import Data
    from compare.engine.run import TrainingTask
    from compare.experiment import Experiment
    from compare.trainer import Trainer


class Job(NamedTuple):
    """One training: a trainer's name, a seed, and what it is called on the screen."""

    trainer: str
    seed: int
    shown: str = ""


@dataclass
class Session:
    """What all stages of one request share.

    Attributes:
        run: the run's ``run.json``; only the process of the request saves it.
        trainers: the trainers by name, the reference first.
        raised: what the first of a user's own trainers raised.
    """

    options: Trained
    run: RunJson
    console: Console
    trainers: dict[str, Trainer]
    task: TrainingTask
    raised: Exception | None = None

    @classmethod
    def begin(cls, options: Trained, run: RunJson, console: Console, threads: int = 0) -> Session:
        """Select Keras, configure TensorFlow, and load trainers, experiment and data: all that trainers share.

        Raises:
            RequestError: when something that the options name does not exist, or cannot be used.
        """
        select_keras(options.keras)
        from compare.engine import strategies  # noqa: PLC0415 (lazy)
        from compare.engine.run import TrainingTask  # noqa: PLC0415 (lazy)

        if threads:
            limit_threads(threads)
        # First: a user's file may use TensorFlow when it is imported, and devices cannot be configured after that.
        strategies.configure(options.replica_count, deterministic=not options.jit)
        trainers, experiment = load(options, console)
        if isinstance(options, Training) and options.float64_reference and FLOAT64 in dict(trainers):
            raise RequestError(f"--float64-reference is called {FLOAT64} itself: give that trainer another name")
        # Before the data: some strategies allow no operation before they are made.
        strategy = strategies.make(options.strategy, options.replica_count)
        train, validation = load_data(options, experiment)
        # The last epoch too, now rather than in the middle of training: a function may ask for a file that is not there
        train.of_epoch(options.seed, options.epochs, options.batch_size)
        # Under a parameter server every worker takes whole batches of its own: its replicas are not in sync.
        replicas = 1 if options.spec.parameter_servers else strategy.num_replicas_in_sync
        size = options.batch_size * replicas
        task = TrainingTask(experiment, train, validation, strategy, size, options.execution)
        return cls(options, run, console, dict(trainers), task)

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def jobs(self) -> list[Job]:
        """All trainings, those with one seed after the other."""
        options = self.options
        shown = "{}, seed {}" if len(options.all_seeds) > 1 else "{}"
        return [Job(name, seed, shown.format(name, seed)) for seed in options.all_seeds for name in self.trainers]

    @property
    def data(self) -> tuple[str, ...]:
        """The digests of the training and of the validation data."""
        return self.task.train.sha256, self.task.validation.sha256

    def progress(self, name: str, epochs: range, gap: RunningGap | None = None, shown: str = "") -> TrainerProgress:
        size = self.task.steps_per_epoch, self.task.global_batch_size
        padded = (shown or name).ljust(max(map(len, self.trainers)))
        return progress(self.console, name, epochs, *size, gap, padded)

    def is_own(self, name: str) -> bool:
        """Whether a trainer is the user's."""
        return dict(zip(self.trainers, self.options.trainers, strict=False))[name] not in TRAINERS

    def failed(self, name: str, error: Exception, seed: int | None = None) -> None:
        """Record, once, and print that a trainer failed; where it is none of the user's, the experiment is at fault.

        ``seed`` is that of a study's training.
        """
        if own := self.is_own(name):
            self.raised = self.raised or error
        failures = self.run.failures = self.run.failures or []
        if name in [failure["side"] for failure in failures]:
            return
        text, kind = describe(error) if seed is None else f"seed {seed}: {describe(error)}", kind_of(error)
        remedy = f"fix your trainer {name}" if own else f"fix the experiment, which {name} cannot train"
        remedies = {
            "": remedy + ", or compare without it" * (len(self.run.trainers or ()) > 2),
            NO_MEMORY: "there is not enough memory: free some and continue with --resume, or start another run with a "
            "smaller --batch-size",
            MAY_PASS: f"if its cause has passed, continue with --resume; else {remedy}",
        }
        failures.append(encode(Failure(name, text, remedies[kind], may_pass=bool(kind))))
        tell(self.console, f"{name} failed: {text}", style="red")

    def checker(self) -> Callable[[Trainer], Report]:
        """The short check against the reference, with a look inside the first step that differs."""
        from compare.check import Checker  # noqa: PLC0415 (lazy)

        options, task, (reference, *_) = self.options, self.task, self.trainers.values()
        data, seed = (task.train, task.validation), options.seed
        return Checker(
            task.experiment, reference, task.strategy, batch_size=options.batch_size, seed=seed, data=data
        ).check


@dataclass(frozen=True)
class Worker:
    """What a worker process is told before all else.

    Attributes:
        folder: the run's folder; a worker on Dask has none.
        threads: how many threads TensorFlow may use; 0 for any number.
        data: the digests of the data that it has to load; empty where nobody has loaded them yet.
        code: those of the user's files and what these import, as the run has loaded them.
    """

    options: Trained
    folder: Path
    threads: int = 0
    data: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    def begin(self) -> Session:
        return Session.begin(self.options, RunJson(folder=self.folder), Console(quiet=True), self.threads)


def limit_threads(threads: int) -> None:
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    if tf.config.threading.get_intra_op_parallelism_threads() == threads:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        raise RequestError(
            "--parallel divides the processor's threads between the trainers, and TensorFlow, already in use in this "
            "process, has taken them all: use a process of its own"
        ) from None


def load_data(options: Task, experiment: Experiment) -> tuple[Data, Data]:
    from compare.engine import input_pipeline  # noqa: PLC0415 (lazy)

    train, validation = input_pipeline.load(experiment)
    if options.train_examples is not None:
        if options.train_examples > train.count:
            raise RequestError(
                f"--train-examples {options.train_examples}: {experiment.name} has {train.count} training examples"
            )
        train = train.first(options.train_examples)
    return train, validation


@contextmanager
def surviving(console: Console, what: str) -> Iterator[None]:
    """Do what a comparison stands without: an error is printed, and the comparison goes on."""
    try:
        yield
    except Exception as error:
        print_traceback()
        tell(console, f"{what} failed: {describe(error)}")


def told(outcome: End | Exception) -> End | TrainerFailedError:
    """What a worker process tells its parent of how a training ended, or of what its trainer raised."""
    return outcome if isinstance(outcome, End) else TrainerFailedError(describe(outcome), kind_of(outcome))
