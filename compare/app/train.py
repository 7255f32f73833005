"""One training, from the beginning or from a checkpoint, and what listens to it; and all of them in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compare import signals
from compare.app.ready import Job, Session, surviving
from compare.app.resume import is_done, resume_points, shown_place
from compare.app.standard_streams import print_traceback
from compare.engine.costs import CostMeter
from compare.engine.tf_config import this_task
from compare.errors import EndedEarlyError, StorageError
from compare.modes import Trained, Training
from compare.naming import file_name
from compare.records.metrics_csv import MetricsFile
from compare.records.model import BEGINNING, EPOCH_END, INITIAL, AnyRecord, End, Place, RecordError, Sink, StepRecord
from compare.records.reader import hashes_at
from compare.records.recorder import Recorder
from compare.reporting.jupyter import side_by_side
from compare.reporting.tensorboard import SinkOf
from compare.reporting.terminal import RunningGap, say, tell
from compare.user_errors import without_exit

if TYPE_CHECKING:
    from compare.engine.run import Run


Event = AnyRecord | Place | dict[str, Any] | str
"""What a training tells: records, the place after which it begins, its costs so far, and lines to print."""
Tell = Callable[[Event], None]


class Listener:
    """Writes and shows what one training tells, wherever that runs."""

    def __init__(
        self, session: Session, job: Job, metrics: MetricsFile, sink: Sink, gap: RunningGap | None = None
    ) -> None:
        self._session, self.job, self._difference = session, job, ""
        self.bar = session.progress(job.trainer, range(1, session.options.epochs + 1), gap, job.shown)

        def shown(record: AnyRecord) -> None:
            sink(record)
            self.bar(record)

        self.recorder = Recorder(session.folder, metrics, job.trainer, job.seed, shown)

    def stop_at_difference(self, trainer: str) -> None:
        """Ends the training if ``--stop-at-difference`` was given: the weights of a trainer differ."""
        options = self._session.options
        if isinstance(options, Training) and options.stop_at_difference:
            self._difference = f"the weights of {trainer} differ, and --stop-at-difference was given"

    def __call__(self, event: Event) -> None:
        if isinstance(event, str):
            say(self._session.console, event.rstrip("\n"))
        elif isinstance(event, tuple):
            self.recorder.rewind(event)
            self.bar.begin(event[0] + (event[1] == EPOCH_END))
        elif isinstance(event, dict):
            self.recorder.keep_costs(event)
        else:
            self.recorder(event)
        if self._difference and isinstance(event, StepRecord) and event.step > INITIAL:
            what, self._difference = self._difference, ""
            raise EndedEarlyError(event.epoch, event.step, what)

    def train(self) -> None:
        """Train in this process; where the trainer fails, that is recorded and printed."""
        try:
            self.end(outcome_of(self._session, self.job, self))
        finally:
            self.recorder.flush()
        if signals.interrupted():  # in its last epoch
            raise KeyboardInterrupt

    def end(self, outcome: End | Exception) -> None:
        """Record how the training ended, or print what its trainer raised."""
        self.recorder.flush()
        self.bar.end()
        if isinstance(outcome, End):
            self.recorder.end(outcome)
        else:
            self._session.failed(self.job.trainer, outcome)


def listeners_of(
    session: Session, seed: int, live: SinkOf, at_once: Callable[[str], None] | None = None
) -> dict[str, Listener]:
    """The listeners of the trainings with a seed that are not over, by trainer; they print where weights first differ.

    Trainings that run at once all stop at the first difference if asked to, and ``at_once`` is told of each.
    """
    listeners: dict[str, Listener] = {}
    reference, *_ = session.trainers

    def differs(trainer: str, place: Place) -> None:
        epoch, step = place
        where = {INITIAL: "initial weights differ from", EPOCH_END: f"weights at the end of epoch {epoch} differ from"}
        text = where.get(step, f"weights differ from step {step:,} of epoch {epoch} on{gap.or_before(trainer)} from")
        tell(session.console, f"{trainer}  {text} those of {reference}", style="yellow")
        for listener in [listeners[trainer]] if at_once is None else listeners.values():
            listener.stop_at_difference(trainer)
        if at_once is not None:
            at_once(trainer)

    metrics = MetricsFile(session.folder / "metrics.csv")
    left = [job for job in session.jobs if job.seed == seed and not has_finished(session, job)]
    gap = RunningGap(reference, differs, () if at_once is None else [job.trainer for job in left])
    for job in left:
        listeners[job.trainer] = Listener(session, job, metrics, live(job.trainer, seed), gap)
    return listeners


def train_all(session: Session, live: SinkOf) -> None:
    """Train with each trainer in turn; a failure goes into ``run.failures``, and the other trainers go on."""
    for seed in session.options.all_seeds:
        for listener in listeners_of(session, seed, live).values():
            with side_by_side(session.console, [listener.bar]):
                listener.train()


def has_finished(session: Session, job: Job) -> bool:
    """Whether nothing is left of a training, which is printed then."""
    if done := is_done(session, job):
        tell(session.console, f"{job.shown}  has finished already")
    return done


def outcome_of(session: Session, job: Job, told: Tell) -> End | Exception:
    """Train as ``train_on`` does; returns how it ended, or what the trainer raised, whose traceback is printed."""
    try:
        return train_on(session, job, told)
    except (StorageError, RecordError):
        raise
    except Exception as error:
        if signals.interrupted():  # which what was under way has made another error of
            raise KeyboardInterrupt from error
        print_traceback()
        return error


def train_truth(session: Session) -> None:
    """Train on one replica in float64, which shows which side is off; no verdict depends on it."""
    from compare.trainers.float64 import Truth, exact_task  # noqa: PLC0415 (lazy)

    options, name = dataclasses.replace(session.options, checkpoint_every=0), Truth.name
    exact = dataclasses.replace(session, options=options, trainers={name: Truth()}, task=exact_task(session.task))
    job = Job(name, options.seed, "float64")
    if has_finished(exact, job):
        return
    listener = Listener(exact, job, MetricsFile(session.folder / "metrics.csv"), lambda record: None)
    with side_by_side(session.console, [listener.bar]), surviving(session.console, "The float64 reference"):
        listener.end(train_on(exact, job, listener))


def train_on(session: Session, job: Job, told: Tell | None = None) -> End:
    """Train one trainer with one seed; when resumed, continue from its last checkpoint.

    A member of a cluster that is not its chief tells nobody.
    """
    from compare.engine.checkpoints import Checkpoints, folder_of  # noqa: PLC0415 (lazy)
    from compare.engine.export import export_model  # noqa: PLC0415 (lazy)
    from compare.engine.run import NotResumableError, Run  # noqa: PLC0415 (lazy)

    options, folder, (name, seed, shown) = session.options, session.folder, job
    # Each worker of a synchronous cluster saves checkpoints of its own.
    member = this_task() if options.spec.several_processes and options.spec.synchronous else None
    of_seed = seed if len(options.all_seeds) > 1 else None
    places = [folder_of(folder, name, of_seed, worker) for worker in range(member.workers if member else 1)]
    own = places[member.worker if member else 0]
    for place in resume_points(session, job, places):
        checkpoints = hashes = None
        if options.checkpointed:
            often = {"every": options.checkpoint_every, "keep": options.keep_checkpoints}
            # Several processes do not end after the same step.
            checkpoints = Checkpoints(folder, own, **often, saves_steps=not options.spec.several_processes)
        made = max(place[1], 0)
        epochs = range(place[0] if made else place[0] + 1, options.epochs + 1)
        sinks: list[Sink] = []
        if told is not None:
            hashes = hashes_at(folder, name, seed, place) if place != BEGINNING else None
            told(place)
            sinks = [told, CostMeter(told)]
        try:
            run = Run(
                session.task, seed=seed, epochs=epochs, made=made, sinks=sinks, checkpoints=checkpoints,
                resumed_at=hashes,
            )  # fmt: skip
            sinks += [_says_whence(run, options, shown, told)] if told is not None else []
            end = _train(session, name, run)
        except NotResumableError as error:
            tell(session.console, f"{shown}  cannot continue after {shown_place(place)}: {error}")
            continue
        finally:
            signals.wait_for_step(False)
        if told is not None and isinstance(options, Training) and options.export and end == End():
            with surviving(session.console, f"The export of {shown}"):
                export_model(run, folder / "exports" / file_name(name))
        return end
    raise AssertionError("the beginning is the last of the points")


def _says_whence(run: Run, options: Trained, shown: str, told: Tell) -> Sink:
    """Says after the first step from where an interrupted training continues, unless from the step in hand."""
    begun: list[bool] = []

    def say_whence(record: AnyRecord) -> None:
        if begun or not isinstance(record, StepRecord) or record.step == INITIAL:
            return
        begun.append(True)
        in_one_call = record.step > run.made + 1 and record.step >= run.steps_per_epoch - 1
        if run.saves_steps and not in_one_call:
            return
        every = options.checkpoint_every
        whence = f"continues from its last checkpoint, saved {'every epoch' if every == 1 else f'every {every} epochs'}"
        if run.has_callbacks:
            whence = "starts again, since its callbacks' state is not saved"
        elif not options.checkpointed:
            whence = "starts again, since no checkpoints are saved"
        elif every >= options.epochs:
            whence = f"starts again, since its first checkpoint would be saved after {every} epochs"
        told(f"{shown}  if interrupted and resumed, it {whence}")

    return say_whence


def _train(session: Session, name: str, run: Run) -> End:
    from compare.engine.anew import train_whole  # noqa: PLC0415 (lazy)
    from compare.engine.dry_run import why_not_resumable  # noqa: PLC0415 (lazy)
    from compare.engine.strategies import without_idle_waits  # noqa: PLC0415 (lazy)

    trainer = session.trainers[name]
    try:
        with without_exit(f"trainer {name}", trainer.train), without_idle_waits():
            train_whole(trainer, name, run)
    except KeyboardInterrupt:
        if run.saves_steps and (reason := why_not_resumable(session.task)):
            tell(session.console, f"{name}  --resume starts again: {reason}")
        raise
    except EndedEarlyError as error:
        tell(session.console, f"{name} stops: {error}", style="red")
        return End(error.epoch, error.step, error.what)
    return End()
