"""One request carried out: options to runs, runs to records, records to verdict, plots and files."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import sys
import traceback
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare.app import local_cluster
from compare.app.parallel_trainers import getting_ready, limit_threads, threads_each
from compare.app.seeds_runner import train_study
from compare.app.train import fail, prepare, train_all, train_on, train_truth
from compare.engine import tf_config
from compare.engine.keras_generation import select_keras
from compare.errors import NoVerdictError, RequestError
from compare.options import CLUSTERS, Options
from compare.records import RecordError, read_json, read_verdict, recover, write_json, write_verdict
from compare.records.run_folder import refuse_changes
from compare.reporting.result import Result
from compare.reporting.sentences import sentences
from compare.reporting.terminal import details, say, style_of
from compare.verdict import DIFFERENT, as_json

if TYPE_CHECKING:
    from compare.engine.run import Task
    from compare.experiment import Experiment
    from compare.trainer import Trainer


def new_console(options: Options) -> Console:
    """Where a run's progress goes: stdout, or nowhere when the options say quiet."""
    return Console(file=sys.stdout, quiet=options.quiet, highlight=False)


def carry_out(options: Options, folder: Path, console: Console) -> Result:
    """Run all trainers of a request and judge them; the folder is one from ``compare.records.run_folder.claimed``.

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
        if options.strategy in CLUSTERS and tf_config.this_task() is None:
            return _carry_out_in_processes(options, folder, console)
        with getting_ready(options) as others:
            return _carry_out(options, folder, console, others)
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
    from compare.app.judge import judge

    recover(folder)
    write_json(folder / "run.json", content | {"status": "interrupted"})
    judge(folder, console)


def _carry_out_in_processes(options: Options, folder: Path, console: Console) -> Result:
    status, message = local_cluster.start_here(options, folder)
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
    from compare.app import diagnose
    from compare.app.judge import judge

    say(
        console,
        f"In this process, with {same.strategy} on {task.strategy.num_replicas_in_sync} replica(s), which computes the "
        f"same as {options.strategy}:",
    )
    content = read_json(folder / "run.json")
    content["check"] = diagnose.check_again(folder, trainers, task, same, console)
    write_json(folder / "run.json", content)
    diagnose.measure_noise(folder, trainers, task, same, console)
    return judge(folder, console)


def one_process(options: Options) -> Options:
    """The same request with a strategy of one process that computes the same, bit for bit.

    A worker of ``multi-worker`` is a replica of ``mirrored``; one worker with a parameter server is the
    default strategy.
    """
    task = tf_config.this_task()
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
    task = tf_config.this_task()
    assert task is not None
    select_keras(options)
    if options.strategy == "parameter-server":
        from compare.engine import strategies

        strategies.serve()
        return
    from compare.app import run_json
    from compare.app.loading import load_experiment, load_trainers
    from compare.engine import preflight

    trainers = load_trainers(options)
    shared = prepare(options, load_experiment(options))
    findings = preflight.findings(run_json.for_preflight(options, shared, [name for name, _ in trainers]))
    stops = {preflight.REFUSED} if options.force else {preflight.REFUSED, preflight.CANNOT_RUN}
    if any(finding.severity in stops for finding in findings):
        return  # as the chief does, which says why
    for seed in options.all_seeds:
        for name, trainer in trainers:
            try:
                train_on(name, trainer, dataclasses.replace(options, seed=seed), shared, folder)
            except Exception:
                traceback.print_exc()  # the chief goes on with the next trainer, and reports


def _carry_out(options: Options, folder: Path, console: Console, others: Executor | None) -> Result:
    select_keras(options)
    from compare.app import diagnose, run_json
    from compare.app.judge import judge
    from compare.engine import preflight, strategies
    from compare.engine.dry_run import try_out

    if options.parallel:
        limit_threads(threads_each(options))
    # First: a user's file may use TensorFlow when it is imported, and then there are no devices to be made.
    strategies.configure(options.replicas, deterministic=not options.jit)
    trainers, experiment = _load(options, console)
    task = prepare(options, experiment)
    if options.strategy not in CLUSTERS:
        try_out(task, fit="fit" in options.trainers)
    names = [name for name, _ in trainers]
    content = run_json.of_run(options, task, names)
    before = read_json(folder / "run.json")
    if options.resume:
        refuse_changes(before, content)
        content |= {
            "started": before.get("started", content["started"]),
            "resumed": [*before.get("resumed", []), now()],
        }
    findings = preflight.findings(run_json.for_preflight(options, task, names))
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
        raised = train_study(names, options, task, folder, console, content)
    else:
        if others is not None:
            raised = _train_beside(trainers, options, task, folder, console, content, others)
        else:
            raised = train_all(trainers, options, task, folder, console, content["failures"])
        if options.truth:
            train_truth(options, task, folder, console)
    for seed, weights in task.initial_weights.items():
        content["initial_weights_sha256"][str(seed)] = run_json.digest(weights)
    content |= {"status": "trained"}
    write_json(folder / "run.json", content)
    if options.strategy not in CLUSTERS:
        content["check"] = diagnose.check_again(folder, trainers, task, options, console)
        write_json(folder / "run.json", content)
        diagnose.measure_noise(folder, trainers, task, options, console)
    content |= {"status": "finished", "finished": now()}
    write_json(folder / "run.json", content)
    result = Result(folder, judge(folder, console))
    if raised is not None:
        raised.add_note(f"The other trainers' results are in {folder}.")
        raise raised
    return result


def _train_beside(
    trainers: list[tuple[str, Trainer]],
    options: Options,
    task: Task,
    folder: Path,
    console: Console,
    content: Any,
    others: Executor,
) -> Exception | None:
    """Train with all trainers at the same time.

    Returns:
        What the first of a user's own trainers raised.
    """
    from compare.app.loading import TRAINERS
    from compare.app.parallel_trainers import train_beside

    threads = threads_each(options)
    content["parallel"] = {"processes": len(trainers), "threads_per_process": threads}
    write_json(folder / "run.json", content)
    each = f"each with {threads} thread{'s' * (threads > 1)}"
    say(console, f"{len(trainers)} trainers at the same time, {each}: times are of a shared processor")
    raised: Exception | None = None
    for name, error in train_beside(trainers, options, task, folder, console, others):
        fail(content["failures"], name, error, console)
        if options.trainers[[each for each, _ in trainers].index(name)] not in TRAINERS:
            raised = raised or (error if isinstance(error, Exception) else RuntimeError(error))
    return raised


def check_only(options: Options, folder: Path, console: Console) -> Result:
    """The short check of every candidate, without a full training; writes ``verdict.json`` and ``run.json``.

    For a strategy of several processes it is made in this one, with the strategy that computes the same.
    """
    select_keras(options)
    from compare.app.judge import publish
    from compare.check import NotApplicable, check
    from compare.engine import strategies

    same = one_process(options) if options.strategy in CLUSTERS else options
    anywhere = same.strategy == "mirrored" and same.replicas is None
    strategies.configure(2 if anywhere and "GPU:0" not in strategies.devices() else same.replicas)
    # Only now: a user's file may use TensorFlow when it is imported, and then there are no devices to be made.
    ((reference_name, reference), *candidates), experiment = _load(options, console)
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
        report = check(
            experiment,
            trainer,
            reference=reference,
            strategy=strategy,
            batch_size=options.batch_size,
            seed=options.seed,
        )
        comparison = dataclasses.replace(report.comparison, candidate=name)
        not_applicable = (*elsewhere, *report.not_applicable)
        reports.append(dataclasses.replace(report, comparison=comparison, not_applicable=not_applicable))
        console.print()
        console.print(f"{report.verdict}: ", style=style_of(report.verdict), end="")
        say(console, str(reports[-1]))
        say(console, f"Checked in {report.seconds:.1f} s.")
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
    from compare.app.loading import load_experiment, load_trainers

    trainers, experiment = load_trainers(options), load_experiment(options)
    for note in experiment.notes:
        say(console, f"Note: {note}", style="yellow")
    return trainers, experiment


def now() -> str:
    """The time, in UTC, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
