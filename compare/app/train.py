"""The runs of a request: every trainer with every seed, here or in processes, from the beginning or a checkpoint on."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from compare.engine import tf_config
from compare.engine.costs import CostMeter
from compare.errors import RequestError, StorageError
from compare.options import Options
from compare.records import End, InitialWeights, MetricsFile, Recorder, hashes_at, kept
from compare.reporting.terminal import RunningGap, TrainerProgress, say
from compare.user_errors import describe, place_in, place_of

if TYPE_CHECKING:
    from compare.engine.checkpoints import Checkpoints
    from compare.engine.run import Task
    from compare.experiment import Experiment
    from compare.trainer import Trainer


def prepare(options: Options, experiment: Experiment) -> Task:
    from compare.engine import input_pipeline, strategies
    from compare.engine.run import Task

    strategies.configure(options.replicas, deterministic=not options.jit)
    strategy = strategies.make(options.strategy, options.replicas)  # first: some bear no operation before them
    train, validation = input_pipeline.load(experiment)
    if options.train_examples is not None:
        if options.train_examples > train.count:
            raise RequestError(
                f"--train-examples {options.train_examples}: {experiment.name} has {train.count} training examples"
            )
        train = train.first(options.train_examples)
    # The last one too, now rather than in the middle of training: a function may ask for a file that is not there.
    train.of_epoch(options.seed, options.epochs, options.batch_size)
    # Under a parameter server every worker takes whole batches of its own: its replicas are not in sync.
    replicas = 1 if options.strategy == "parameter-server" else strategy.num_replicas_in_sync
    global_batch_size = options.batch_size * replicas
    return Task(experiment, train, validation, strategy, global_batch_size, options.execution)


def train_all(
    trainers: Sequence[tuple[str, Trainer]],
    options: Options,
    task: Task,
    folder: Path,
    console: Console,
    failures: list[dict[str, str]],
) -> Exception | None:
    """Train with each trainer; one that fails goes into ``failures``, and the others are trained all the same.

    Returns:
        What the first of a user's own trainers raised.
    """
    from compare.app.loading import TRAINERS

    raised: Exception | None = None
    metrics = MetricsFile(folder / "metrics.csv")
    task.initial_weights = InitialWeights(folder)
    for seed in options.all_seeds:
        gap = RunningGap()
        for (name, trainer), wanted in zip(trainers, options.trainers, strict=True):
            recorder = Recorder(folder, metrics, name, seed)
            try:
                shown = name if options.seeds == 1 else f"{name}, seed {seed}"
                of_seed = dataclasses.replace(options, seed=seed)
                train_on(name, trainer, of_seed, task, folder, recorder, console, shown, gap)
            except (StorageError, KeyboardInterrupt):
                raise
            except Exception as error:
                traceback.print_exc()
                fail(failures, name, error, console)
                if wanted not in TRAINERS:
                    raised = raised or error
            finally:
                recorder.flush()
    return raised


def train_truth(options: Options, task: Task, folder: Path, console: Console) -> None:
    """Train the plain truth: one replica, in float64."""
    from compare.trainers.float64 import Truth, exact_task

    never_saved = dataclasses.replace(options, checkpoint_every=0)
    recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), Truth.name, options.seed)
    train_on(Truth.name, Truth(), never_saved, exact_task(task), folder, recorder, console, Truth.name)


def train_on(
    name: str,
    trainer: Trainer,
    options: Options,
    task: Task,
    folder: Path,
    recorder: Recorder | None = None,
    console: Console | None = None,
    shown: str = "",
    gap: RunningGap | None = None,
) -> None:
    """Train one trainer with one seed; if it is resumed, from its last checkpoint on, or not at all if it is through.

    Args:
        name: the trainer's, in the run's files.
        trainer: the trainer.
        options: the request, for this seed.
        task: what is trained.
        folder: the run's.
        recorder: what keeps the records; None for a member of a cluster that is not its chief.
        console: where progress is told.
        shown: the name to show.
        gap: the gap to the trainers before it.
    """
    from compare.engine.checkpoints import Checkpoints, folder_of
    from compare.engine.run import NotResumableError

    console = console or Console(quiet=True)
    member = tf_config.this_task() if options.strategy == "multi-worker" else None  # where each worker saves its own
    seed = options.seed if options.seeds > 1 else None
    places = [folder_of(folder, name, seed, worker) for worker in range(member.workers if member else 1)]
    own = places[member.worker if member else 0]
    begins: Iterable[int] = [0]
    if options.resume:
        done, end = kept(folder, name, options.seed)
        if end is not None:
            say(console, f"{shown}  is through already")
            return
        # Never from the last epoch: what a trainer does when training ends would not be done.
        begins = _resume_points(shown, places, min(done, options.epochs - 1), task, console)
    for begin in begins:
        checkpoints = None
        if options.checkpoint_every:
            checkpoints = Checkpoints(own, every=options.checkpoint_every, keep=options.keep_checkpoints)
        resumed_at = None
        if recorder is not None and options.resume:
            recorder.rewind(begin)
            resumed_at = hashes_at(folder, name, options.seed, begin) if begin else None
        try:
            end = train(
                trainer,
                options,
                task,
                [recorder, CostMeter(recorder.keep_costs)] if recorder else [],
                console,
                shown,
                gap=gap,
                checkpoints=checkpoints,
                begin=begin,
                resumed_at=resumed_at,
                export=folder / "exports" / name if options.export and recorder else None,
            )
        except NotResumableError as error:
            say(console, f"{shown}  cannot go on from epoch {begin}: {error}")
            continue
        if recorder is not None:
            recorder.end(end)
        return


def _resume_points(shown: str, places: Sequence[Path], last: int, task: Task, console: Console) -> Iterator[int]:
    """The epochs after which training may go on, the latest first; in the end 0, the beginning.

    Args:
        shown: the trainer's name.
        places: where its checkpoints are, for each worker.
        last: the last epoch that has records.
        task: what is trained.
        console: where to say which are used.
    """
    from compare.engine.checkpoints import damage, path_of, saved
    from compare.engine.dry_run import why_not_resumable

    reason = why_not_resumable(task) if last else ""
    for epoch in saved(places[0]) if not reason else []:
        if epoch > last:
            continue
        found = [(path, damage(path)) for path in (path_of(place, epoch) for place in places)]
        if damaged := [f"{path}: {text}" for path, text in found if text]:
            say(console, f"Note: a checkpoint is damaged, and the one before it used: {damaged[0]}", style="yellow")
            continue
        say(console, f"{shown}  goes on after epoch {epoch}")
        yield epoch
    if last:
        say(console, f"{shown}  begins again: {reason or 'there is no checkpoint to go on from'}")
    yield 0


def train(
    trainer: Trainer,
    options: Options,
    task: Task,
    sinks: Sequence[Any],
    console: Console | None = None,
    name: str = "",
    *,
    checkpoints: Checkpoints | None = None,
    begin: int = 0,
    resumed_at: np.ndarray | None = None,
    export: Path | None = None,
    gap: RunningGap | None = None,
) -> End:
    """Let a trainer train.

    Args:
        trainer: the trainer.
        options: the request, for one seed.
        task: what is trained.
        sinks: where the records go.
        console: where progress is told.
        name: the name to show.
        checkpoints: where to save, and to resume from.
        begin: after which epoch to go on; 0 for the beginning.
        resumed_at: the weights' hashes at that epoch's end, where they are known.
        export: the folder for the final model; None for no export.
        gap: the gap to the trainers before it.

    Returns:
        How it ended.

    Raises:
        TrainerError: when the trainer does not keep the contract.
        NotResumableError: when it cannot go on from there.
    """
    from compare.engine.run import NotFiniteError, Run, TrainerError

    name = name or trainer.name
    epochs = range(begin + 1, options.epochs + 1)
    console = console or Console(quiet=True)
    with TrainerProgress(console, name, epochs, task.steps_per_epoch, task.global_batch_size, gap) as progress:
        run = Run(
            task,
            seed=options.seed,
            epochs=epochs,
            sinks=[*sinks, progress],
            checkpoints=checkpoints,
            resumed_at=resumed_at,
        )
        try:
            trainer.train(run)
        except NotFiniteError as error:
            say(console, f"{name} stops: {error}", style="red")
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
        from compare.engine.export import export_model

        export_model(run, export)
    return End()


def fail(failures: list[dict[str, str]], name: str, error: Exception | str, console: Console) -> None:
    """Put a trainer's failure down, once, and say it."""
    if name in [failure["side"] for failure in failures]:
        return
    text = error if isinstance(error, str) else describe(error)
    remedy = f"mend {name}, or compare without it"
    if isinstance(error, MemoryError) or "ResourceExhausted" in text:
        remedy = "there is not enough memory: give a smaller --batch-size"
    failures.append({"side": name, "error": text, "remedy": remedy})
    say(console, f"{name} failed: {text}", style="red")
