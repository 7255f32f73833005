"""Training in this process: with every trainer and seed, from the beginning or from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from compare.anew import train_anew
from compare.app.ready import Session
from compare.app.resume import is_done, resume_points
from compare.app.standard_streams import print_traceback
from compare.engine.costs import CostMeter
from compare.engine.tf_config import this_task
from compare.errors import EndedEarlyError, StorageError
from compare.modes import Training
from compare.naming import file_name
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
from compare.reporting.jupyter import side_by_side
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import RunningGap, tell
from compare.user_errors import place_in, place_of, without_exit

if TYPE_CHECKING:
    from compare.engine.run import Run

Begin = Callable[[range], None]
"""Told which epochs a training makes, before it begins."""


def all_of(*sinks: Sink) -> Sink:
    """One sink for several."""

    def told(record: AnyRecord) -> None:
        for sink in sinks:
            sink(record)

    return told


class StopAtDifference:
    """The sink that ends a training once weights are known to differ, if ``--stop-at-difference`` was given."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted, self._reason = wanted, ""

    def ask(self, trainer: str) -> None:
        """Asks to end, since the weights of ``trainer`` differ."""
        if self._wanted:
            self._reason = f"the weights of {trainer} differ, and --stop-at-difference was given"

    def forget(self) -> None:
        """Lets another training begin."""
        self._reason = ""

    def __call__(self, record: AnyRecord) -> None:
        if self._reason and isinstance(record, StepRecord) and record.step > INITIAL:
            raise EndedEarlyError(record.epoch, record.step, self._reason)


def train_all(session: Session, live: SinkOf) -> None:
    """Train with each trainer in turn; a failure goes into ``run.failures``, and the other trainers go on."""
    options, folder, task = session.options, session.folder, session.task
    metrics = MetricsFile(folder / "metrics.csv")
    task.initial_weights = InitialWeights(folder)
    for seed in options.all_seeds:
        stop = StopAtDifference(wanted=isinstance(options, Training) and options.stop_at_difference)
        gap, epochs = running_gap(session, stop.ask), range(1, options.epochs + 1)
        for name in session.trainers:
            shown = name if len(options.all_seeds) == 1 else f"{name}, seed {seed}"
            if has_finished(session, name, seed, shown):
                continue
            stop.forget()
            bar = session.progress(name, epochs, gap, shown)
            recorder = Recorder(folder, metrics, name, seed, all_of(live(name, seed), bar, stop))
            with side_by_side(session.console, [bar]):
                train_or_fail(session, name, seed, recorder, shown, bar.begin)


def has_finished(session: Session, name: str, seed: int, shown: str) -> bool:
    """Whether nothing is left to train for a trainer and a seed, which is printed then."""
    done = is_done(session, name, seed)
    if done:
        tell(session.console, f"{shown}  has finished already")
    return done


def train_or_fail(session: Session, name: str, seed: int, recorder: Recorder, shown: str, begin: Begin) -> None:
    """Train as ``train_on`` does; where the trainer fails, that is recorded and printed, and the others go on."""
    try:
        train_on(session, name, seed, recorder, shown, begin)
    except (StorageError, RecordError):
        raise
    except Exception as error:
        print_traceback()
        session.failed(name, error)
    finally:
        recorder.flush()


def running_gap(session: Session, on_difference: Callable[[str], None]) -> RunningGap:
    """The running gaps of a comparison, which print at once where a trainer's weights first differ, and tell it."""
    reference, *_ = session.trainers

    def say_where(trainer: str, place: Place) -> None:
        epoch, step = place
        where = {INITIAL: "initial weights differ from", EPOCH_END: f"weights at the end of epoch {epoch} differ from"}
        text = where.get(step, f"weights differ from step {step:,} of epoch {epoch} on from")
        tell(session.console, f"{trainer}  {text} those of {reference}", style="yellow")
        on_difference(trainer)

    return RunningGap(reference, say_where)


def train_truth(session: Session) -> None:
    """Train on one replica in float64, which shows which side is off."""
    from compare.trainers.float64 import Truth, exact_task  # noqa: PLC0415 (lazy)

    options, name = dataclasses.replace(session.options, checkpoint_every=0), Truth.name
    exact = dataclasses.replace(session, options=options, trainers={name: Truth()}, task=exact_task(session.task))
    if has_finished(exact, name, options.seed, name):
        return
    bar = exact.progress(name, range(1, options.epochs + 1))
    recorder = Recorder(session.folder, MetricsFile(session.folder / "metrics.csv"), name, options.seed, bar)
    with side_by_side(session.console, [bar]):
        train_on(exact, name, options.seed, recorder, name, bar.begin)


def train_on(
    session: Session,
    name: str,
    seed: int,
    recorder: Recorder | None = None,
    shown: str = "",
    begin: Begin = lambda epochs: None,
) -> None:
    """Train one trainer with one seed; when resumed, continue from its last checkpoint.

    A member of a cluster that is not its chief keeps no records: it has no recorder.
    """
    from compare.engine.checkpoints import Checkpoints, folder_of  # noqa: PLC0415 (lazy)
    from compare.engine.export import export_model  # noqa: PLC0415 (lazy)
    from compare.engine.run import NotResumableError, Run  # noqa: PLC0415 (lazy)

    options, folder = session.options, session.folder
    # Each worker of a synchronous cluster saves checkpoints of its own.
    member = this_task() if options.spec.several_processes and options.spec.synchronous else None
    of_seed = seed if len(options.all_seeds) > 1 else None
    places = [folder_of(folder, name, of_seed, worker) for worker in range(member.workers if member else 1)]
    own = places[member.worker if member else 0]
    for epoch, hashes in resume_points(session, name, seed, places, recorder, shown):
        checkpoints = None
        if options.checkpoint_every:
            checkpoints = Checkpoints(own, every=options.checkpoint_every, keep=options.keep_checkpoints)
        epochs = range(epoch + 1, options.epochs + 1)
        begin(epochs)
        sinks: list[Sink] = [recorder, CostMeter(recorder.keep_costs)] if recorder else []
        try:
            run = Run(session.task, seed=seed, epochs=epochs, sinks=sinks, checkpoints=checkpoints, resumed_at=hashes)
            end = train(session, name, run)
        except NotResumableError as error:
            tell(session.console, f"{shown}  cannot continue from epoch {epoch}: {error}")
            continue
        if recorder is not None:
            if isinstance(options, Training) and options.export and end == End():
                export_model(run, folder / "exports" / file_name(name))
            recorder.end(end)
        return


def train(session: Session, name: str, run: Run) -> End:
    """Train with one trainer, which takes everything from the run; returns how it ended.

    Raises:
        TrainerError: when the trainer breaks the contract.
        NotResumableError: when training cannot continue from there.
    """
    from compare.engine.run import TrainerError  # noqa: PLC0415 (lazy)
    from compare.engine.strategies import without_idle_waits  # noqa: PLC0415 (lazy)

    trainer = session.trainers[name]
    try:
        with without_exit(f"trainer {name}", trainer.train), without_idle_waits():
            train_anew(trainer, run)
    except EndedEarlyError as error:
        tell(session.console, f"{name} stops: {error}", style="red")
        return End(error.epoch, error.step, error.what)
    except TrainerError as error:
        raise TrainerError(f"trainer {name}: {error}{place_in(error)}") from error
    run.close()
    if not run.finished:
        raise TrainerError(
            f"trainer {name} ({place_of(trainer.train)}) returned without ending epoch {run.epoch} of "
            f"{run.epochs[-1]}: call run.end_epoch(epoch, logs) at the end of every epoch in run.epochs"
        )
    return End()
