"""One request carried out: train with every trainer, judge the records, explain a difference, write the reports."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from compare import signals
from compare.app import cluster_session
from compare.app.baseline import read_baseline, since_baseline
from compare.app.parallel_trainers import (
    EarlyChecks,
    at_once,
    getting_ready,
    load_elsewhere,
    train_in_parallel,
    worker_of,
)
from compare.app.processes import refuse_flags, refuse_too_many
from compare.app.provenance import before_training, code, digest, preflight_problems
from compare.app.ready import Session
from compare.app.resume import refuse_changes
from compare.app.run_folder import claimed, run_again
from compare.app.seeds_runner import train_study
from compare.app.short_check import check_only
from compare.app.train import train_all, train_truth
from compare.engine import preflight
from compare.engine.tf_config import this_task
from compare.errors import NoVerdictError, RequestError, StorageError
from compare.modes import Logs, Scripts, ShortCheck, Study, Trained, Training
from compare.naming import refuse_margins, shown_path
from compare.options import as_json
from compare.records.codec import encode
from compare.records.files import refuse_folder
from compare.records.model import EPOCH_END, End, RecordError, stem_of
from compare.records.reader import has_records, kept, recover, sidecar_path
from compare.records.recorder import InitialWeights
from compare.records.run_json import EXPLAINED, FINISHED, INTERRUPTED, TRAINED, RunJson
from compare.reporting.jupyter import without_log_messages
from compare.reporting.live import waiting
from compare.reporting.result import Result
from compare.reporting.sentences import sentences
from compare.reporting.tensorboard import live_log
from compare.reporting.terminal import details, say, style_of, tell
from compare.request import Request
from compare.strategy_specs import CALL_FIT
from compare.user_errors import without_exit


@without_exit("your code")
@without_log_messages()
def carry_out(options: Request, folder: Path, console: Console, *, command: bool = False) -> Result:
    """Carry out a request in a folder that ``compare.app.run_folder.claimed`` has locked.

    The command trains all trainers at the same time where it can. In Python that has to be asked for: new processes
    import the main module again.

    Raises:
        RequestError: when the request turns out impossible; the folder is removed if nothing is in it.
        NoVerdictError: when a process of a local cluster fails, a file cannot be written, or the user's code would
            have ended this process.
        KeyboardInterrupt: when it was interrupted, after the finished part has been judged.
        Exception: what a user's own trainer raised, after the other trainers' results were saved.
    """
    try:
        if this_task() is None:  # which refuses a TF_CONFIG that TensorFlow could not read either
            refuse_too_many(options)
        return _by_mode(options, folder, console, command=command)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or signals.interrupted():
            signals.heard()
            if isinstance(options, Trained):
                _judge_interrupted(folder, console)
            raise KeyboardInterrupt from error
        if isinstance(error, RequestError) and not folder.exists():
            raise StorageError(f"{shown_path(folder)} was removed meanwhile", "run it again") from error
        if isinstance(error, RecordError) and not options.goes_on and folder in Path(error.args[0]).parents:
            raise StorageError(f"{shown_path(error.args[0])} was changed meanwhile", "run it again") from error
        if isinstance(error, StorageError) and not isinstance(options, Trained):
            raise StorageError(error.reason, f"then {run_again(options, folder)}") from error.__cause__
        left = any((folder / name).exists() for name in ("metrics.csv", "verdict.json"))
        if isinstance(error, RequestError) and not options.goes_on and not left:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _by_mode(options: Request, folder: Path, console: Console, *, command: bool) -> Result:
    if isinstance(options, Scripts):
        from compare.app.scripts import compare_scripts  # noqa: PLC0415 (lazy)

        return compare_scripts(options, folder, console)
    if isinstance(options, Logs):
        from compare.app.logs import compare_logged  # noqa: PLC0415 (lazy)

        return compare_logged(options, folder, console)
    refuse_flags()
    if isinstance(options, ShortCheck):
        return check_only(options, folder, console, command=command)
    if isinstance(options, Training) and options.sizes:
        return _two_sizes(options, folder, console, command=command)
    if command and isinstance(options, Training):
        options = at_once(options, folder, console)
    assert isinstance(options, Trained)
    _begin_or_go_on(options, folder)
    if result := _finished_before(options, folder, console):
        return result
    if options.spec.several_processes and this_task() is None:
        return cluster_session.start(options, folder, console)
    with getting_ready(options) as executor:
        return _train_and_judge(options, folder, console, executor)


def _two_sizes(options: Training, folder: Path, console: Console, *, command: bool) -> Result:
    """Train with both numbers of replicas, in one folder inside the other; the second is compared with the first."""
    from compare.engine import strategies  # noqa: PLC0415 (imports TensorFlow)

    first, second = options.sizes
    if options.batch_size * second % first:
        raise RequestError(
            f"--replicas {first} {second} --batch-size {options.batch_size}: {options.batch_size * second} examples "
            f"do not split evenly over {first} replicas; the global batch is that of {second}"
        )
    strategies.configure(max(options.sizes), deterministic=not options.jit)  # before the first size is trained
    where = folder / f"{first}-replica{'s' * (first > 1)}"
    size = options.batch_size * second // first
    own = replace(options, replicas=first, batch_size=size, reports=folder, name=where.name)
    own = replace(own, resume=options.resume and where.exists())
    with claimed(own) as inner:
        carry_out(own, inner, console, command=command)
    try:
        return _by_mode(replace(options, replicas=second, baseline=where), folder, console, command=command)
    except RequestError as error:  # a refused request's folder is removed: the first size's results stay
        why = str(error).removeprefix(f"--baseline {shown_path(where)}: ")
        other = f"{second} replica{'s' * (second > 1)}"
        raise NoVerdictError(f"{other} cannot be compared with {shown_path(where)}, which is kept: {why}") from error


def _begin_or_go_on(options: Trained, folder: Path) -> None:
    """Refuse to resume what another request, or other code, has begun.

    Whether trainers train at the same time, and with how many threads, is written down before anything else is done:
    a run that is killed in its first seconds then resumes as it began.
    """
    run, now = RunJson.of_run(folder), as_json(options)
    if options.resume:
        decided = {"parallel": now["parallel"]} if run.parallel is None else {}
        begun = {**run.content(), "options": run.options | decided}
        refuse_changes(begun, {"options": now, "code": code(options)})
    if run.parallel is None:
        mode = {"processes": len(options.trainers), "threads_per_process": worker_of(options, folder).threads}
        run.save(options=now, parallel=mode if now["parallel"] else {})


WRITTEN = ("metrics.csv", "verdict.json", "report.html", "comparison.png")
"""The files that a run writes into its folder, or writes again."""


def refuse_what_cannot_be_replaced(folder: Path) -> None:
    """Refuses a run whose training would end where it is to write a file.

    Raises:
        RecordError: if a folder is in a file's place, or a file in a folder's, or a checkpoint cannot be read.
    """
    for name in WRITTEN:
        refuse_folder(folder / name)
    for name in ("records", "checkpoints"):
        if (folder / name).is_file():
            raise RecordError(folder / name, "a file is in its place: remove it")
    for part in ("index", "data-*"):
        for path in (folder / "checkpoints").glob(f"*/*.{part}"):
            refuse_folder(path)
            if not os.access(path, os.R_OK):
                raise RecordError(path, "it cannot be read: make it readable, or remove it")


def _finished_before(options: Trained, folder: Path, console: Console) -> Result | None:
    """Repair what an interruption left half written, and print the verdict if nothing is left to train; else None.

    Makes what is missing of its reports.
    """
    if not options.resume:
        return None
    try:
        run = RunJson.read(folder)
        refuse_what_cannot_be_replaced(folder)
        repaired = recover(folder, finished=run.status == FINISHED)
        if run.status == FINISHED:
            repaired += _verify(options, folder, run)
    except RecordError as error:
        raise RequestError(f"--resume: {error}") from error
    for text in repaired:
        tell(console, f"Note: {text}", style="yellow")
    if run.status not in (EXPLAINED, FINISHED):
        return None
    from compare.app.publish import finish, finished_verdict  # noqa: PLC0415 (lazy)

    verdict = finished_verdict(folder, console) if run.status == FINISHED else None
    if verdict is None:
        if run.status == FINISHED:
            tell(console, "This run has finished; what is missing or damaged of its reports is made now.")
        return Result(folder, finish(run, console))
    tell(console, f"This run has finished: {verdict.verdict}", style=style_of(verdict.verdict))
    for text in sentences(verdict):
        tell(console, text + ".")
    say(console, shown_path(folder / "verdict.json"))
    return Result(folder, verdict.verdict)


def _verify(options: Trained, folder: Path, run: RunJson) -> list[str]:
    """Verify that a finished run has its records and no damaged checkpoint; returns which last ones are missing.

    Raises:
        RecordError: if it has not.
    """
    if not has_records(folder):
        raise RecordError(folder / "records", "is missing")
    failed = {each["side"] for each in run.failures or ()}
    own = [each for each in run.trainers or () if each not in failed]
    sidecars = [sidecar_path(stem_of(folder, name, seed)) for name in own for seed in options.all_seeds]
    if gone := [path for path in sidecars if not path.exists()]:
        raise RecordError(gone[0], "is missing")
    from compare.engine.checkpoints import damage, folder_of, path_of, saved  # noqa: PLC0415 (lazy: TensorFlow)

    for path in sorted((folder / "checkpoints").rglob("*.index")):
        if text := damage(folder, path.with_suffix("")):
            raise RecordError(path.with_suffix(""), f"damaged, {text}")
    if not options.checkpointed:
        return []
    last, several = (options.epochs, EPOCH_END), len(options.all_seeds) > 1
    ended = [(name, seed) for name in own for seed in options.all_seeds if kept(folder, name, seed) == (last[0], End())]
    folders = [folder_of(folder, name, seed if several else None) for name, seed in ended]
    missing = [f"{shown_path(path_of(each, last))} is missing" for each in folders if last not in saved(each)]
    for state, name in ((each / "checkpoint", path_of(each, last).name) for each in folders if last in saved(each)):
        if not (state.is_file() and name in state.read_text(encoding="utf-8", errors="replace")):
            missing.append(f"{shown_path(state)} does not name {name}")
    return missing


def _judge_interrupted(folder: Path, console: Console) -> None:
    """Judge the finished part of an interrupted run from its files."""
    run = RunJson.read(folder)
    if run.trainers is None:
        return  # it had not begun to train
    from compare.app.publish import judge_and_publish  # noqa: PLC0415 (lazy)

    recover(folder)
    run.save(status=INTERRUPTED)
    judge_and_publish(folder, console)


def _train_and_judge(options: Trained, folder: Path, console: Console, executor: Executor | None) -> Result:
    from compare.app.publish import finish  # noqa: PLC0415 (lazy)

    with waiting(console, "starting TensorFlow, loading data and trainers"):
        session = _prepare(options, folder, console, executor)
    run = session.run
    if run.failures:
        return Result(folder, finish(run, console))
    shutil.rmtree(folder / "twins", ignore_errors=True)
    with EarlyChecks(worker_of(options, folder), console) as early:
        _train(session, executor, early)
        run.save(status=TRAINED)
        if not options.spec.several_processes:
            from compare.app import diagnose  # noqa: PLC0415 (lazy)

            diagnose.diagnose(session, early.reports)
    known = [failure["side"] for failure in run.failures or ()] if session.raised is not None else []
    result = Result(folder, finish(run, console, known))
    if session.raised is not None:
        session.raised.add_note(f"The other trainers' results are in {shown_path(folder)}.")
        raise session.raised
    return result


def _prepare(options: Trained, folder: Path, console: Console, executor: Executor | None) -> Session:
    """Load what is to be trained, print the first lines, and write down all that is known before training."""
    # One of scripts or logs is refused before anything takes long.
    baseline, notes = None if options.baseline is None else read_baseline(options.baseline), list[str]()
    threads = worker_of(options, folder).threads if isinstance(options, Training) and options.parallel else 0
    session = Session.begin(options, RunJson.read(folder), console, threads)
    if executor is not None:
        load_elsewhere(executor, options, folder)
    from compare.engine.dry_run import TriedOut, try_out  # noqa: PLC0415 (lazy)

    tried = TriedOut() if options.spec.several_processes else try_out(session.task, options.trainers)
    if isinstance(options, Study) and tried.reported and options.trainers[0] in CALL_FIT:
        refuse_margins(options.margin or (), next(iter(session.trainers)), tried.reported)
    run, known = session.run, before_training(session) | {"settings": encode(tried.settings)}
    if options.resume:
        refuse_changes(run.content(), known)
    if baseline is not None:
        known["since_baseline"] = encode(since_baseline(session, baseline, known, tried))
        alone = [name for name in session.trainers if name not in (baseline.trainers or ())]
        notes = [f"{name} is not in {baseline.folder.name}, and is not compared with it." for name in alone]
        known["notes"] = [*known["notes"], *notes]
    problems = preflight_problems(session)
    for problem in problems:
        if problem.severity == preflight.REFUSED:
            raise RequestError(str(problem))
    run.begin_training(known)
    run.preflight = [{"id": each.id, "severity": each.severity, "message": str(each)} for each in problems]
    run.failures = [
        {"side": each.side, "error": each.message, "remedy": each.remedy}
        for each in problems
        if each.severity == preflight.CANNOT_RUN and not options.force
    ]
    run.save()
    _print_first_lines(session, problems)
    for note in notes:
        tell(console, f"Note: {note}")
    return session


def _print_first_lines(session: Session, problems: list[preflight.Problem]) -> None:
    console, run, task = session.console, session.run, session.task
    assert run.strategy is not None
    tell(console, run.title or "", style="bold")
    tell(
        console,
        f"{task.train.count:,} training and {task.validation.count:,} validation examples, "
        f"global batch {task.global_batch_size}, on {', '.join(run.strategy['devices'])}",
    )
    for line in details(run.content()) if session.options.verbose else ():
        tell(console, line)
    labels = {preflight.WARNING: "Warning"} | ({preflight.CANNOT_RUN: "Cannot run"} if session.options.force else {})
    told = [each for each in problems if each.severity in labels]  # of what ends the run, the verdict says the rest
    for line in dict.fromkeys(f"{labels[each.severity]}: {each}" for each in told):  # each once
        tell(console, line)


def _train(session: Session, executor: Executor | None, early: EarlyChecks) -> None:
    from compare.app.trial import try_trainers  # noqa: PLC0415 (lazy)

    options, run, task = session.options, session.run, session.task
    names, seeds = list(session.trainers), len(options.all_seeds)
    task.initial_weights = InitialWeights(session.folder)
    with live_log(session.folder, names, seeds, wanted=options.tensorboard) as live:
        if isinstance(options, Study) and not options.spec.several_processes:
            train_study(session, options, live)
        else:
            with waiting(session.console, "trying the first steps of your trainers"):
                try_trainers(session)
            if executor is not None:
                train_in_parallel(session, live, executor, early.start)
            else:
                train_all(session, live)
    if isinstance(options, Training) and options.float64_reference:
        train_truth(session)
    digests = {str(seed): digest(weights) for seed, weights in task.initial_weights.items()}
    run.initial_weights_sha256 = {**(run.initial_weights_sha256 or {}), **digests}
