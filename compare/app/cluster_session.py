"""A request under a strategy of several processes: as the chief's parent on this machine, or as another task."""

from __future__ import annotations

import socket
from pathlib import Path

from rich.console import Console

from compare.app import local_cluster
from compare.app.ready import Session
from compare.app.resume import is_done
from compare.app.standard_streams import print_traceback
from compare.app.train import train_on
from compare.engine import preflight
from compare.engine.keras_generation import select_keras
from compare.engine.tf_config import this_task
from compare.errors import EXIT_REQUEST, NoVerdictError, RequestError
from compare.options import Options
from compare.records import read_verdict
from compare.records.run_json import FINISHED, TRAINED, RunJson
from compare.reporting.result import Result
from compare.reporting.terminal import tell
from compare.strategy_specs import SPECS
from compare.user_errors import without_exit
from compare.verdict import DIFFERENT, EXIT_STATUS

EXPOSED = (
    "until this run ends, TensorFlow's servers accept connections from the network, without a password; "
    "reports/guide/security.md says how to run without network"
)
"""TensorFlow binds 0.0.0.0, whatever address the cluster names (``grpc_server_lib.cc``, TensorFlow 2.21)."""


def start(options: Options, folder: Path, console: Console) -> Result:
    """Start the cluster on this machine, and look for the cause of a difference in this process.

    Raises:
        RequestError: what the chief refused.
        NoVerdictError: when a process failed.
    """
    if any(not name.startswith("lo") for _, name in socket.if_nameindex()):
        tell(console, f"Note: {EXPOSED}", style="yellow")
    status, message = local_cluster.start_here(options, folder)
    if status == EXIT_REQUEST:
        raise RequestError(message)
    path = folder / "verdict.json"
    verdict = read_verdict(path)["verdict"] if path.exists() else ""
    # It may be an earlier verdict, of the part that was finished when the run was interrupted.
    if not verdict or status != EXIT_STATUS[verdict]:
        raise NoVerdictError(message or f"the chief process ended with status {status}")
    if verdict == DIFFERENT:
        RunJson.read(folder).save(status=TRAINED)  # to be explained on --resume, if this process is killed
        verdict = _diagnose_here(options, folder, console) or verdict
    return Result(folder, verdict)


def _diagnose_here(options: Options, folder: Path, console: Console) -> str | None:
    """The verdict with the cause of a difference, looked for in this process; None if it cannot make the check.

    Replicas take the place of the workers.
    """
    same = in_one_process(options)
    run = RunJson.read(folder)
    try:
        session = Session.begin(same, run, Console(quiet=True))
    except RequestError as error:
        tell(console, f"The cause was not looked for: {error}")
        run.save(status=FINISHED)
        return None
    from compare.app import diagnose  # noqa: PLC0415 (lazy)
    from compare.app.publish import finish  # noqa: PLC0415 (lazy)

    replicas = session.task.strategy.num_replicas_in_sync
    what = f"with {same.strategy} on {replicas} replica(s), which computes the same as {options.strategy}"
    tell(console, f"In this process, {what}:")
    session.console = console
    diagnose.diagnose(session)
    return finish(run, console)


def in_one_process(options: Options) -> Options:
    """The same request with the strategy of one process that computes the same, bit for bit.

    A worker of ``multi-worker`` becomes a replica of ``mirrored``; one worker with a parameter server becomes the
    default strategy.
    """
    task = this_task()
    strategy = SPECS[options.spec.in_one_process]
    replicas = None if strategy.one_replica else options.workers or (task.workers if task else 1)
    return options.changed(strategy=strategy.name, replicas=replicas)


@without_exit("your code")
def take_part(options: Options, folder: Path) -> None:
    """Be a task of a cluster that is not its chief: train along, or serve variables; the chief writes the reports."""
    if options.check:
        return  # the chief's process is enough for it
    if options.resume and not (folder / "run.json").exists():
        raise RequestError(f"--resume: {folder} does not exist here: it must be in a file system that all tasks share")
    select_keras(options.keras)
    if options.spec.parameter_servers:
        from compare.engine import strategies  # noqa: PLC0415 (lazy)

        strategies.serve()
        return
    from compare.app import describe_run  # noqa: PLC0415 (lazy)

    session = Session.begin(options, RunJson(folder=folder), Console(quiet=True))
    problems = preflight.problems(describe_run.for_preflight(session))
    stops = {preflight.REFUSED} if options.force else {preflight.REFUSED, preflight.CANNOT_RUN}
    if any(problem.severity in stops for problem in problems):
        return  # as the chief does, which says why
    for seed in options.all_seeds:
        for name in session.trainers:
            try:
                if not is_done(session, name, seed):
                    train_on(session, name, seed)
            except Exception:
                print_traceback()  # the chief goes on with the next trainer, and reports
