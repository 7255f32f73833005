"""Training in this process: with every trainer and seed, from the beginning or from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare.anew import train_anew
from compare.app.loading import TRAINERS
from compare.app.resume import ResumePlan, ResumePoint
from compare.app.standard_streams import print_traceback
from compare.engine.costs import CostMeter
from compare.engine.tf_config import this_task
from compare.errors import MAY_PASS, NO_MEMORY, EndedEarlyError, RequestError, StorageError, kind_of
from compare.naming import file_name
from compare.options import Options
from compare.records import (
    EPOCH_END,
    INITIAL,
    AnyRecord,
    End,
    InitialWeights,
    MetricsFile,
    Place,
    Recorder,
    RecordError,
    Sink,
    StepRecord,
)
from compare.records.run_json import FailureEntry, RunJson
from compare.reporting.jupyter import progress
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import RunningGap, tell
from compare.user_errors import describe, place_in, place_of, without_exit

if TYPE_CHECKING:
    from compare.engine.checkpoints import Checkpoints
    from compare.engine.input_pipeline import Examples, Stream
    from compare.engine.run import TrainingTask
    from compare.experiment import Experiment
    from compare.trainer import Trainer

    Data = Examples | Stream


DIED = "its process died"
"""The beginning of what is told of a trainer whose process was lost."""


ProgressOf = Callable[[range], AbstractContextManager[Sink]]
"""Gives the sink that shows the progress of one training, for the epochs that it will make."""


def no_progress(epochs: range) -> AbstractContextManager[Sink]:
    """Shows nothing."""
    return nullcontext(lambda record: None)


@contextmanager
def shown_alone(
    console: Console,
    trainer: str,
    task: TrainingTask,
    gap: RunningGap | None,
    shown: str,
    stop: Sink,
    epochs: range,
) -> Iterator[Sink]:
    """Shows the progress of the only trainer that is training, and may stop it."""
    with progress(console, trainer, epochs, task.steps_per_epoch, task.global_batch_size, gap, shown) as bar:
        yield both(bar, stop)


def both(first: Sink, second: Sink) -> Sink:
    """One sink for two."""

    def told(record: AnyRecord) -> None:
        first(record)
        second(record)

    return told


class StopAtDifference:
    """The sink that ends a training once weights are known to differ from the reference's.

    Args:
        wanted: whether ``--stop-at-difference`` was given; if not, it does nothing.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted, self._reason = wanted, ""

    def ask(self, trainer: str) -> None:
        """Asks to end, since the weights of ``trainer`` differ."""
        if self._wanted:
            self._reason = f"the weights of {trainer} differ, and --stop-at-difference was given"

    def __call__(self, record: AnyRecord) -> None:
        if self._reason and isinstance(record, StepRecord) and record.step > INITIAL:
            raise EndedEarlyError(record.epoch, record.step, self._reason)


def load_data(options: Options, experiment: Experiment) -> tuple[Data, Data]:
    """The training and validation examples that the options ask for.

    Raises:
        RequestError: when there are fewer training examples, or the data cannot be used.
    """
    from compare.engine import input_pipeline  # noqa: PLC0415 (lazy)

    train, validation = input_pipeline.load(experiment)
    if options.train_examples is not None:
        if options.train_examples > train.count:
            raise RequestError(
                f"--train-examples {options.train_examples}: {experiment.name} has {train.count} training examples"
            )
        train = train.first(options.train_examples)
    return train, validation


def prepare(options: Options, experiment: Experiment) -> TrainingTask:
    """Make the strategy and load the data: everything that all trainers share."""
    from compare.engine import strategies  # noqa: PLC0415 (lazy)
    from compare.engine.run import TrainingTask  # noqa: PLC0415 (lazy)

    strategies.configure(options.replicas, deterministic=not options.jit)
    # Before the data: some strategies allow no operation before they are made.
    strategy = strategies.make(options.strategy, options.replicas)
    train, validation = load_data(options, experiment)
    # The last epoch too, now rather than in the middle of training: a function may ask for a file that is not there.
    train.of_epoch(options.seed, options.epochs, options.batch_size)
    # Under a parameter server every worker takes whole batches of its own: its replicas are not in sync.
    replicas = 1 if options.spec.parameter_servers else strategy.num_replicas_in_sync
    global_batch_size = options.batch_size * replicas
    return TrainingTask(experiment, train, validation, strategy, global_batch_size, options.execution)


def train_all(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: TrainingTask,
    run: RunJson,
    plan: ResumePlan,
    console: Console,
    live: SinkOf,
) -> Exception | None:
    """Train with each trainer in turn; a failure goes into ``run.failures``, and the other trainers go on.

    Args:
        trainers: the trainers by name.
        options: the request.
        task: what is trained.
        run: the run's ``run.json``.
        plan: what an interrupted run has done already.
        console: where progress is printed.
        live: gives the sinks of a log that is written during training.

    Returns:
        What the first of a user's own trainers raised.
    """
    raised: Exception | None = None
    folder = run.folder
    metrics = MetricsFile(folder / "metrics.csv")
    task.initial_weights = InitialWeights(folder)
    for seed in options.all_seeds:
        stops = {name: StopAtDifference(wanted=options.stop_at_difference) for name, _ in trainers}
        gap = running_gap(trainers[0][0], console, partial(_stop, stops))
        for (name, trainer), wanted in zip(trainers, options.trainers, strict=True):
            recorder = Recorder(folder, metrics, name, seed, live(name, seed))
            try:
                shown = name if options.seeds == 1 else f"{name}, seed {seed}"
                of_seed = dataclasses.replace(options, seed=seed)
                bar = partial(shown_alone, console, name, task, gap, shown, stops[name])
                train_on(name, trainer, of_seed, task, folder, plan, recorder, console, shown, bar)
            except (StorageError, RecordError, KeyboardInterrupt):
                raise
            except Exception as error:
                print_traceback()
                fail(run, name, error, console)
                if wanted not in TRAINERS:
                    raised = raised or error
            finally:
                recorder.flush()
    return raised


def _stop(stops: Mapping[str, StopAtDifference], trainer: str, place: Place) -> None:
    stops[trainer].ask(trainer)


def running_gap(
    reference: str, console: Console, on_difference: Callable[[str, Place], None] = lambda trainer, place: None
) -> RunningGap:
    """The running gaps of a comparison, which print at once where a trainer's weights first differ, and tell it."""

    def say_where(trainer: str, place: Place) -> None:
        epoch, step = place
        where = {INITIAL: "initial weights differ from", EPOCH_END: f"weights at the end of epoch {epoch} differ from"}
        text = where.get(step, f"weights differ from step {step:,} of epoch {epoch} on from")
        tell(console, f"{trainer}  {text} those of {reference}", style="yellow")
        on_difference(trainer, place)

    return RunningGap(reference, say_where)


def train_truth(options: Options, task: TrainingTask, folder: Path, plan: ResumePlan, console: Console) -> None:
    """Train on one replica in float64, which shows which side is off."""
    from compare.trainers.float64 import Truth, exact_task  # noqa: PLC0415 (lazy)

    never_saved = dataclasses.replace(options, checkpoint_every=0)
    recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), Truth.name, options.seed)
    exact = exact_task(task)
    never = StopAtDifference(wanted=False)
    bar = partial(shown_alone, console, Truth.name, exact, None, Truth.name, never)
    train_on(Truth.name, Truth(), never_saved, exact, folder, plan, recorder, console, Truth.name, bar)


def train_on(
    name: str,
    trainer: Trainer,
    options: Options,
    task: TrainingTask,
    folder: Path,
    plan: ResumePlan,
    recorder: Recorder | None = None,
    console: Console | None = None,
    shown: str = "",
    bar: ProgressOf = no_progress,
) -> None:
    """Train one trainer with one seed; when resumed, continue from its last checkpoint, or skip it if it finished.

    Args:
        name: the trainer's name in the run's files.
        trainer: the trainer.
        options: the request, for this seed.
        task: what is trained.
        folder: the run's folder.
        plan: what an interrupted run has done already.
        recorder: what keeps the records; None for a member of a cluster that is not its chief.
        console: where messages are printed.
        shown: the trainer's name as printed.
        bar: shows the progress.
    """
    from compare.engine.checkpoints import Checkpoints, folder_of  # noqa: PLC0415 (lazy)
    from compare.engine.run import NotResumableError  # noqa: PLC0415 (lazy)

    console = console or Console(quiet=True)
    if plan.done(name, options.seed):
        tell(console, f"{shown}  has finished already")
        return
    # Each worker of a synchronous cluster saves checkpoints of its own.
    member = this_task() if options.spec.several_processes and options.spec.synchronous else None
    seed = options.seed if options.seeds > 1 else None
    places = [folder_of(folder, name, seed, worker) for worker in range(member.workers if member else 1)]
    own = places[member.worker if member else 0]
    for point in plan.points(name, options, task, places, recorder, console, shown):
        checkpoints = None
        if options.checkpoint_every:
            checkpoints = Checkpoints(own, every=options.checkpoint_every, keep=options.keep_checkpoints)
        try:
            end = train(
                trainer,
                options,
                task,
                [recorder, CostMeter(recorder.keep_costs)] if recorder else [],
                console,
                shown,
                bar=bar,
                checkpoints=checkpoints,
                point=point,
                export=folder / "exports" / file_name(name) if options.export and recorder else None,
            )
        except NotResumableError as error:
            tell(console, f"{shown}  cannot continue from epoch {point.epoch}: {error}")
            continue
        if recorder is not None:
            recorder.end(end)
        return


def train(
    trainer: Trainer,
    options: Options,
    task: TrainingTask,
    sinks: Sequence[Any],
    console: Console | None = None,
    name: str = "",
    *,
    checkpoints: Checkpoints | None = None,
    point: ResumePoint = ResumePoint(),  # noqa: B008 (it is immutable)
    export: Path | None = None,
    bar: ProgressOf = no_progress,
) -> End:
    """Train with one trainer.

    Args:
        trainer: the trainer.
        options: the request, for one seed.
        task: what is trained.
        sinks: what receives the records.
        console: where messages are printed.
        name: the trainer's name as printed.
        checkpoints: where to save, and to resume from.
        point: where to continue from.
        export: the folder for the final model; None for no export.
        bar: shows the progress.

    Returns:
        How it ended.

    Raises:
        TrainerError: when the trainer breaks the contract.
        NotResumableError: when training cannot continue from there.
    """
    from compare.engine.run import Run, TrainerError  # noqa: PLC0415 (lazy)
    from compare.engine.strategies import without_idle_waits  # noqa: PLC0415 (lazy)

    name = name or trainer.name
    epochs = range(point.epoch + 1, options.epochs + 1)
    console = console or Console(quiet=True)
    with bar(epochs) as shown:
        run = Run(
            task,
            seed=options.seed,
            epochs=epochs,
            sinks=[*sinks, shown],
            checkpoints=checkpoints,
            resumed_at=point.hashes,
        )
        try:
            with without_exit(f"trainer {name}", trainer.train), without_idle_waits():
                train_anew(trainer, run)
        except EndedEarlyError as error:
            tell(console, f"{name} stops: {error}", style="red")
            return End(error.epoch, error.step, error.what)
        except TrainerError as error:
            raise TrainerError(f"trainer {name}: {error}{place_in(error)}") from error
        run.close()
    if not run.finished:
        raise TrainerError(
            f"trainer {name} ({place_of(trainer.train)}) returned without ending epoch {run.epoch} of "
            f"{options.epochs}: call run.end_epoch(epoch, logs) at the end of every epoch in run.epochs"
        )
    if export is not None:
        from compare.engine.export import export_model  # noqa: PLC0415 (lazy)

        export_model(run, export)
    return End()


def fail(run: RunJson, name: str, error: Exception, console: Console) -> None:
    """Record a trainer's failure, once, and print it."""
    run.failures = run.failures or []
    if name in [failure["side"] for failure in run.failures]:
        return
    text, kind = describe(error), kind_of(error)
    remedy = f"fix your trainer {name}" + ", or compare without it" * (len(run.trainers or ()) > 2)
    failure: FailureEntry = {"side": name, "error": text, "remedy": remedy}
    if kind == NO_MEMORY:
        failure["remedy"] = "there is not enough memory: free some and continue with --resume, or start another run "
        failure["remedy"] += "with a smaller --batch-size"
        failure["may_pass"] = True
    elif kind == MAY_PASS:
        failure["remedy"] = f"if its cause has passed, continue with --resume; else fix your trainer {name}"
        failure["may_pass"] = True
    run.failures.append(failure)
    tell(console, f"{name} failed: {text}", style="red")
