"""One request carried out: options to runs, runs to records, records to verdict, plots and files."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from compare import cluster
from compare.blame import describe, place_in, place_of
from compare.costs import CostMeter
from compare.errors import NoVerdictError, RequestError, StorageError
from compare.folder import refuse_changes
from compare.options import CLUSTERS, Options
from compare.records import (
    End,
    EpochRecord,
    InitialWeights,
    MetricsFile,
    Recorder,
    RecordError,
    hashes_at,
    kept,
    read_json,
    read_metrics,
    read_verdict,
    recover,
    write_json,
    write_verdict,
)
from compare.report.text import sentences
from compare.terminal import RunningGap, TrainerProgress, details, say, style_of
from compare.verdict import DIFFERENT, EXIT_STATUS, as_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from compare.checkpoints import Checkpoints
    from compare.experiment import Experiment
    from compare.runs import Task
    from compare.trainers.base import Trainer


@dataclass(frozen=True)
class Result:
    """What a run found, and where its files are.

    Attributes:
        path: the run's folder.
        verdict: the overall verdict, as in ``verdict.json``.
    """

    path: Path
    verdict: str

    @property
    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: one row per trainer, seed and epoch; missing values are NaN."""
        import pandas as pd

        frame = pd.DataFrame(read_metrics(self.path / "metrics.csv"))
        whole = {"seed": int, "epoch": int}
        # Not read_csv: depending on pandas's version its floats are off by one in the last place.
        return frame.replace("", np.nan).astype(
            {name: whole.get(name, float) for name in frame.columns if name != "trainer"}
        )

    @property
    def details(self) -> dict[str, Any]:
        """The content of ``verdict.json``."""
        content: dict[str, Any] = read_verdict(self.path / "verdict.json")
        return content

    @property
    def exit_status(self) -> int:
        """The command's exit status for this verdict."""
        return EXIT_STATUS[self.verdict]

    @property
    def gaps(self) -> pd.DataFrame:
        """How far apart the weights are after every step: candidate, seed, epoch, step, gap, equal, noise.

        ``gap`` and ``noise`` (of noise twins; NaN without any) are estimates of a Euclidean norm; ``step`` is -1 at
        the end of an epoch of a trainer that does not tell its steps. Empty where no steps were recorded.
        """
        import pandas as pd

        from compare.report.gaps import gaps_of

        frames = [
            pd.DataFrame(
                {
                    "candidate": entry["candidate"],
                    "seed": gaps.seed,
                    "epoch": [epoch for epoch, _ in gaps.places],
                    "step": [step for _, step in gaps.places],
                    "gap": gaps.gaps,
                    "equal": gaps.equal,
                    "noise": gaps.noise,
                }
            )
            for entry, _, gaps in gaps_of(self.path, self.details)
        ]
        columns = ["candidate", "seed", "epoch", "step", "gap", "equal", "noise"]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    @property
    def figures(self) -> dict[str, Figure]:
        """Matplotlib's figures of the run, by name: ``comparison``; none where no epoch was reported."""
        from compare.report import plots

        drawn = plots.figure_of(self.path)
        return {} if drawn is None else {"comparison": drawn}

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from compare.report import html

        return html.notebook(self.path)


def new_console(options: Options) -> Console:
    """Where a run's progress goes: stdout, or nowhere when the options say quiet."""
    return Console(file=sys.stdout, quiet=options.quiet, highlight=False)


def carry_out(options: Options, folder: Path, console: Console) -> Result:
    """Run all trainers of a request and judge them; the folder is one from ``compare.folder.claimed``.

    Raises:
        RequestError: when the request turns out impossible; the folder is removed if nothing is in it.
        NoVerdictError: when a process of a local cluster fails, or a file cannot be written.
        KeyboardInterrupt: when it was interrupted, once what there is has been judged.
        Exception: what a user's own trainer raised, after the other trainers' results were saved.
    """
    try:
        if options.resume:
            try:
                mended = recover(folder)
            except RecordError as error:
                raise RequestError(f"--resume: {error}; start another run") from error
            for told in mended:
                say(console, f"Note: {told}", style="yellow")
            if result := _finished(folder, console):
                return result
        if options.check:
            return check_only(options, folder, console)
        if options.strategy in CLUSTERS and cluster.this_task() is None:
            return _carry_out_in_processes(options, folder, console)
        return _carry_out(options, folder, console)
    except RequestError:
        if not options.resume and not (folder / "metrics.csv").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        _judge_interrupted(folder, console)
        raise


def _finished(folder: Path, console: Console) -> Result | None:
    """The result of a run that needs no resuming; None for one that does."""
    content = read_json(folder / "run.json")
    if content["status"] != "finished" or not (folder / "verdict.json").exists():
        return None
    verdict = read_verdict(folder / "verdict.json")
    if verdict.get("interrupted"):
        return None
    say(console, f"This run is finished: {verdict['verdict']}", style=style_of(verdict["verdict"]))
    for told in sentences(verdict):
        say(console, told + ".")
    say(console, str(folder / "verdict.json"))
    return Result(folder, verdict["verdict"])


def _judge_interrupted(folder: Path, console: Console) -> None:
    """Judge an interrupted run as far as it came, from its files."""
    content = read_json(folder / "run.json")
    if "trainers" not in content:
        return  # it had not begun to train
    from compare.judging import judge

    recover(folder)
    write_json(folder / "run.json", content | {"status": "interrupted"})
    judge(folder, console)


def _carry_out_in_processes(options: Options, folder: Path, console: Console) -> Result:
    status, message = cluster.start_here(options, folder)
    if status == 2:
        raise RequestError(message)
    if not (folder / "verdict.json").exists():
        raise NoVerdictError(message or f"the chief process ended with status {status}")
    verdict = read_verdict(folder / "verdict.json")["verdict"]
    if verdict == DIFFERENT:
        verdict = _explain_here(options, folder, console) or verdict
    return Result(folder, verdict)


def _explain_here(options: Options, folder: Path, console: Console) -> str | None:
    """Look for the reason of a difference between processes in this one, where replicas take their places.

    Returns:
        The verdict with what was found; None if this process is not up to it.
    """
    same = one_process(options)
    try:
        select_keras(same)
        trainers, experiment = _load(same, Console(quiet=True))
        task = prepare(same, experiment)
    except RequestError as error:
        say(console, f"The cause was not looked for: {error}")
        return None
    from compare import explain
    from compare.judging import judge

    say(
        console,
        f"In this process, with {same.strategy} on {task.strategy.num_replicas_in_sync} replica(s), which computes the "
        f"same as {options.strategy}:",
    )
    content = read_json(folder / "run.json")
    content["check"] = explain.check_again(folder, trainers, task, same, console)
    write_json(folder / "run.json", content)
    explain.measure_noise(folder, trainers, task, same, console)
    return judge(folder, console)


def one_process(options: Options) -> Options:
    """The same request with a strategy of one process that computes the same, bit for bit.

    A worker of ``multi-worker`` is a replica of ``mirrored``; one worker with a parameter server is the
    default strategy.
    """
    task = cluster.this_task()
    workers = options.workers or (task.workers if task else 1)
    strategy, replicas = ("mirrored", workers) if options.strategy == "multi-worker" else ("default", None)
    return dataclasses.replace(options, strategy=strategy, replicas=replicas, workers=None, parameter_servers=None)


def take_part(options: Options, folder: Path) -> None:
    """Be a task of a cluster that is not its chief: train along, or serve; the chief writes the reports.

    Args:
        options: the request.
        folder: the run's; only checkpoints go there, and are resumed from.
    """
    if options.check:
        return  # the chief's process is enough for it
    if options.resume and not (folder / "run.json").exists():
        raise RequestError(f"--resume: {folder} is not there: it must be in a file system that all tasks share")
    task = cluster.this_task()
    assert task is not None
    select_keras(options)
    if options.strategy == "parameter-server":
        from compare import strategies

        strategies.serve()
        return
    from compare import facts, preflight
    from compare.loading import load_experiment, load_trainers

    trainers = load_trainers(options)
    shared = prepare(options, load_experiment(options))
    findings = preflight.findings(facts.for_preflight(options, shared, [name for name, _ in trainers]))
    stops = {preflight.REFUSED} if options.force else {preflight.REFUSED, preflight.CANNOT_RUN}
    if any(finding.severity in stops for finding in findings):
        return  # as the chief does, which says why
    for seed in options.all_seeds:
        for name, trainer in trainers:
            try:
                _train_on(name, trainer, dataclasses.replace(options, seed=seed), shared, folder)
            except Exception:
                traceback.print_exc()  # the chief goes on with the next trainer, and reports


def select_keras(options: Options) -> None:
    """Put the Keras generation that the options ask for in ``tf.keras``'s place; before importing TensorFlow.

    Raises:
        RequestError: when tf-keras is not installed, or TensorFlow has been imported with the other one.
    """
    if options.keras == 2 and find_spec("tf_keras") is None:
        raise RequestError('--keras 2 needs the package tf-keras: pip install "fit-vs-loop[keras2]"')
    if "tensorflow" not in sys.modules:
        os.environ["TF_USE_LEGACY_KERAS"] = "1" if options.keras == 2 else "0"
    from compare.strategies import keras_version

    if int(keras_version().partition(".")[0]) != options.keras:
        raise RequestError(
            f"--keras {options.keras}: this process has imported TensorFlow with Keras {keras_version()}; "
            f"set TF_USE_LEGACY_KERAS={int(options.keras == 2)} before importing it"
        )


def _carry_out(options: Options, folder: Path, console: Console) -> Result:
    select_keras(options)
    from compare import explain, facts, preflight
    from compare.judging import judge
    from compare.trial import try_out

    trainers, experiment = _load(options, console)
    task = prepare(options, experiment)
    if options.strategy not in CLUSTERS:
        try_out(task, fit="fit" in options.trainers)
    names = [name for name, _ in trainers]
    content = facts.of_run(options, task, names)
    before = read_json(folder / "run.json")
    if options.resume:
        refuse_changes(before, content)
        content |= {
            "started": before.get("started", content["started"]),
            "resumed": [*before.get("resumed", []), now()],
        }
    findings = preflight.findings(facts.for_preflight(options, task, names))
    for finding in findings:
        if finding.severity == preflight.REFUSED:
            raise RequestError(str(finding))
    content["preflight"] = [{"id": f.id, "severity": f.severity, "message": str(f)} for f in findings]
    content["failures"] = [
        {"side": f.side, "error": f.message, "remedy": f.remedy}
        for f in findings
        if f.severity == preflight.CANNOT_RUN and not options.force
    ]
    write_json(folder / "run.json", content)
    say(console, content["title"], style="bold")
    say(
        console,
        f"{task.train.count:,} training and {task.validation.count:,} validation examples, "
        f"global batch {task.global_batch_size}, on {', '.join(content['strategy']['devices'])}",
    )
    for line in details(content) if options.verbose else ():
        say(console, line)
    for finding in findings:
        say(console, f"{'Warning' if finding.severity == preflight.WARNING else 'Cannot run'}: {finding}")
    if content["failures"]:
        write_json(folder / "run.json", content | {"status": "finished", "finished": now()})
        return Result(folder, judge(folder, console))

    shutil.rmtree(folder / "twins", ignore_errors=True)
    content["initial_weights_sha256"] = before.get("initial_weights_sha256", {})
    if options.seeds > 1 and options.strategy not in CLUSTERS:
        raised = _train_study(names, options, folder, console, content)
    else:
        raised = _train_all(trainers, options, task, folder, console, content["failures"])
        for seed, weights in task.initial_weights.items():
            content["initial_weights_sha256"][str(seed)] = facts.digest(weights)
    content |= {"status": "trained"}
    write_json(folder / "run.json", content)
    if options.strategy not in CLUSTERS:
        content["check"] = explain.check_again(folder, trainers, task, options, console)
        write_json(folder / "run.json", content)
        explain.measure_noise(folder, trainers, task, options, console)
    content |= {"status": "finished", "finished": now()}
    write_json(folder / "run.json", content)
    result = Result(folder, judge(folder, console))
    if raised is not None:
        raised.add_note(f"The other trainers' results are in {folder}.")
        raise raised
    return result


def _train_all(
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
    from compare.loading import TRAINERS

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
                _train_on(name, trainer, of_seed, task, folder, recorder, console, shown, gap)
            except (StorageError, KeyboardInterrupt):
                raise
            except Exception as error:
                traceback.print_exc()
                _fail(failures, name, error, console)
                if wanted not in TRAINERS:
                    raised = raised or error
            finally:
                recorder.flush()
    if options.truth:
        from compare.trainers.truth import Truth, exact_task

        never_saved = dataclasses.replace(options, checkpoint_every=0)
        recorder = Recorder(folder, metrics, Truth.name, options.seed)
        _train_on(Truth.name, Truth(), never_saved, exact_task(task), folder, recorder, console, Truth.name)
    return raised


def _train_on(
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
    from compare.checkpoints import Checkpoints, folder_of
    from compare.runs import NotResumableError

    console = console or Console(quiet=True)
    member = cluster.this_task() if options.strategy == "multi-worker" else None  # where each worker saves its own
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
                [recorder, CostMeter(folder, name, options.seed)] if recorder else [],
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


def _train_study(
    names: Sequence[str], options: Options, folder: Path, console: Console, content: dict[str, Any]
) -> Exception | None:
    """Train with every trainer and seed, as many at a time as there are processors.

    Args:
        names: the trainers' names.
        options: the request.
        folder: the run's folder.
        console: where progress is told.
        content: of ``run.json``; failures, digests of initial weights and the division of threads go there.

    Returns:
        What the first trainer that failed raised.
    """
    from compare import parallel

    jobs = [(number, seed) for seed in options.all_seeds for number in range(len(names))]
    # By all runs, though some may be through: sums depend on the number of threads.
    processes, threads = parallel.division(options, len(jobs))
    if options.resume:
        made = [(number, seed) for number, seed in jobs if kept(folder, names[number], seed)[1] is not None]
        jobs = [job for job in jobs if job not in made]
        say(console, f"{len(made)} runs are through already")
    content["study"] = {"backend": options.backend, "processes": processes, "threads_per_process": threads}
    say(
        console,
        f"{len(jobs)} runs, "
        + (
            f"on {options.scheduler}"
            if options.backend == "dask"
            else f"{processes} at a time with {threads} thread(s)"
        ),
    )
    metrics, began = MetricsFile(folder / "metrics.csv"), time.perf_counter()
    raised: list[Exception] = []
    ended: list[parallel.Job] = []

    def done(job: parallel.Job, finished: parallel.Finished) -> None:
        number, seed = job
        recorder = Recorder(folder, metrics, names[number], seed)
        recorder.rewind(0)
        for record in finished.records:
            recorder(record)
        recorder.flush()
        ended.append(job)
        if finished.digest:
            content["initial_weights_sha256"][str(seed)] = finished.digest
        if finished.error:
            raised.append(RuntimeError(finished.error))
            _fail(content["failures"], names[number], finished.error, console)
            return
        recorder.end(finished.end)
        if finished.end.epoch is not None:
            say(console, f"{names[number]}  seed {seed}  stops in epoch {finished.end.epoch}: {finished.end.what}")
            return
        last = [record for record in finished.records if isinstance(record, EpochRecord)][-1]
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in last.logs.items())
        took = time.perf_counter() - began
        say(console, f"{names[number]}  seed {seed}  {numbers}  (run {len(ended)} of {len(jobs)}, after {took:.0f} s)")

    parallel.run_all(options, jobs, done, processes, threads)
    metrics.sort(names)
    return raised[0] if raised else None


def _fail(failures: list[dict[str, str]], name: str, error: Exception | str, console: Console) -> None:
    """Put a trainer's failure down, once, and say it."""
    if name in [failure["side"] for failure in failures]:
        return
    text = error if isinstance(error, str) else describe(error)
    remedy = f"mend {name}, or compare without it"
    if isinstance(error, MemoryError) or "ResourceExhausted" in text:
        remedy = "there is not enough memory: give a smaller --batch-size"
    failures.append({"side": name, "error": text, "remedy": remedy})
    say(console, f"{name} failed: {text}", style="red")


def check_only(options: Options, folder: Path, console: Console) -> Result:
    """The short check of every candidate, without a full training; writes ``verdict.json`` and ``run.json``.

    For a strategy of several processes it is made in this one, with the strategy that computes the same.
    """
    select_keras(options)
    from compare import strategies
    from compare.check import NotApplicable, check
    from compare.judging import publish

    ((reference_name, reference), *candidates), experiment = _load(options, console)
    same = one_process(options) if options.strategy in CLUSTERS else options
    anywhere = same.strategy == "mirrored" and same.replicas is None
    strategies.configure(2 if anywhere and "GPU:0" not in strategies.devices() else same.replicas)
    strategy = None if anywhere else strategies.make(same.strategy, same.replicas)
    say(console, f"{experiment.name}: short check of {' and '.join(name for name, _ in candidates)}", style="bold")
    elsewhere: tuple[NotApplicable, ...] = ()
    if same is not options and strategy is not None:
        instead = f"{same.strategy} with {strategy.num_replicas_in_sync} replica(s) in this process"
        equal = "the same, bit for bit" if options.strategy == "multi-worker" else "what one worker does alone"
        text = f"--strategy {options.strategy} has several: {instead} computes {equal}, and was checked"
        elsewhere = (NotApplicable("several processes", text),)
        say(console, f"Note: {text}", style="yellow")
    reports = []
    for name, trainer in candidates:
        report = check(experiment, trainer, reference=reference, strategy=strategy, seed=options.seed)
        comparison = dataclasses.replace(report.comparison, candidate=name)
        not_applicable = (*elsewhere, *report.not_applicable)
        reports.append(dataclasses.replace(report, comparison=comparison, not_applicable=not_applicable))
        console.print()
        say(console, f"{report.verdict}: ", style=style_of(report.verdict))
        say(console, f"{reports[-1]} ({report.seconds:.1f} s)")
    verdict = as_json(reference_name, [report.comparison for report in reports], scope="check")
    for entry, report in zip(verdict["comparisons"], reports, strict=True):
        entry |= report.causes_json()
    write_verdict(folder / "verdict.json", verdict)
    content = {"schema": 1, "status": "finished", "options": options.as_json(), "finished": now()}
    write_json(folder / "run.json", content)
    for file in [*publish(folder), "verdict.json"]:
        say(console, str(folder / file))
    return Result(folder, verdict["verdict"])


def _load(options: Options, console: Console) -> tuple[list[tuple[str, Trainer]], Experiment]:
    """The trainers and the experiment, with what must be said of it before anything else."""
    from compare.loading import load_experiment, load_trainers

    trainers, experiment = load_trainers(options), load_experiment(options)
    for note in experiment.notes:
        say(console, f"Note: {note}", style="yellow")
    return trainers, experiment


def prepare(options: Options, experiment: Experiment) -> Task:
    from compare import pipeline, strategies
    from compare.runs import Task

    strategies.configure(options.replicas)
    strategy = strategies.make(options.strategy, options.replicas)  # first: some bear no operation before them
    train, validation = pipeline.load(experiment)
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
    return Task(experiment, train, validation, strategy, global_batch_size)


def _resume_points(shown: str, places: Sequence[Path], last: int, task: Task, console: Console) -> Iterator[int]:
    """The epochs after which training may go on, the latest first; in the end 0, the beginning.

    Args:
        shown: the trainer's name.
        places: where its checkpoints are, for each worker.
        last: the last epoch that has records.
        task: what is trained.
        console: where to say which are used.
    """
    from compare.checkpoints import damage, path_of, saved
    from compare.trial import why_not_resumable

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
    from compare.runs import NotFiniteError, Run, TrainerError

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
        from compare.export import export_model

        export_model(run, export)
    return End()


def now() -> str:
    """The time, in UTC, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
