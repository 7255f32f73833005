"""A request under a strategy of several processes: as the chief's parent on this machine, or as another task."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from compare.app import processes
from compare.app.provenance import preflight_problems
from compare.app.ready import Session
from compare.app.resume import is_done, refuse_changes
from compare.app.standard_streams import print_traceback
from compare.app.train import train_on
from compare.engine import preflight
from compare.engine.select_keras import select_keras
from compare.engine.tf_config import ClusterTask, this_task
from compare.errors import EXIT_NO_VERDICT, EXIT_REQUEST, LOST_TASK, NoVerdictError, PartFailedError, RequestError
from compare.modes import Trained
from compare.options import as_json
from compare.records.run_json import EXPLAINED, FINISHED, INTERRUPTED, TRAINED, RunJson, read_verdict
from compare.reporting.result import Result
from compare.reporting.terminal import tell
from compare.request import Task
from compare.strategy_specs import SPECS
from compare.user_errors import describe, without_exit
from compare.verdict.outcomes import DIFFERENT, EXIT_STATUS

AnyTask = TypeVar("AnyTask", bound=Task)
GRACE_SECONDS = 10.0
"""Time that the other processes have to end by themselves after one has failed."""
EXPOSED = (
    "until this run ends, TensorFlow's servers accept connections from the network, without a password; "
    "reports/guide/security.md says how to run without network"
)
"""TensorFlow binds 0.0.0.0, whatever address the cluster names (``grpc_server_lib.cc``, TensorFlow 2.21)."""


def start(options: Trained, folder: Path, console: Console) -> Result:
    """Start the cluster on this machine, and look for the cause of a difference in this process."""
    if any(not name.startswith("lo") for _, name in socket.if_nameindex()):
        tell(console, f"Note: {EXPOSED}", style="yellow")
    try:
        status, message = start_here(options, folder)
    except NoVerdictError as error:
        run = RunJson.of_run(folder)
        if run.status == FINISHED:  # the chief has judged what was trained without a process that was lost
            from compare.app.publish import finish  # noqa: PLC0415 (lazy)

            run.save(unpaired=dict.fromkeys((run.trainers or [])[1:], str(error)), status=EXPLAINED)
            finish(run, Console(quiet=True))
        raise
    if status == EXIT_REQUEST:
        raise RequestError(message)
    path = folder / "verdict.json"
    content: dict[str, Any] = read_verdict(path) if path.exists() else {"interrupted": True}
    verdict = "" if content.get("interrupted") else content["verdict"]  # of the part that was finished then
    if not verdict or status != EXIT_STATUS[verdict]:
        raise NoVerdictError(message or f"the chief process {processes.how_ended(status)}{_go_on(status)}")
    if verdict == DIFFERENT:
        RunJson.read(folder).save(status=TRAINED)  # to be explained on --resume, if this process is killed
        verdict = _diagnose_here(options, folder, console) or verdict
    return Result(folder, verdict)


def _diagnose_here(options: Trained, folder: Path, console: Console) -> str | None:
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


def in_one_process(options: AnyTask) -> AnyTask:
    """The same request with the strategy of one process that computes the same, bit for bit.

    A worker of ``multi-worker`` becomes a replica of ``mirrored``; one worker with a parameter server becomes the
    default strategy.
    """
    task = this_task()
    strategy = SPECS[options.spec.in_one_process]
    replicas = None if strategy.one_replica else options.workers or (task.workers if task else 1)
    return replace(options, strategy=strategy.name, replicas=replicas, workers=None, parameter_servers=None)


@without_exit("your code")
def take_part(options: Task, folder: Path, console: Console) -> None:
    """Be a task of a cluster that is not its chief: train along, or serve variables; the chief writes the reports.

    Raises:
        PartFailedError: if a trainer failed here; the chief goes on with the next one, as this task does, and reports.
        KeyboardInterrupt: if the chief was interrupted.
    """
    if not isinstance(options, Trained):
        return  # the chief's process is enough for it
    if options.resume and not (folder / "run.json").exists():
        raise RequestError(f"--resume: {folder} does not exist here: it must be in a file system that all tasks share")
    if options.resume and RunJson.of_run(folder).status in (EXPLAINED, FINISHED):
        tell(console, "This run has finished; its chief tells the verdict.")
        return  # as the chief does
    select_keras(options.keras)
    if options.spec.parameter_servers:
        from compare.engine import strategies  # noqa: PLC0415 (lazy)

        strategies.serve()
        return
    session = Session.begin(options, RunJson(folder=folder), Console(quiet=True))
    if (folder / "run.json").exists():  # the chief's, in a folder that is shared; it has joined
        refuse_changes({"options": RunJson.of_run(folder).options}, {"options": as_json(options)}, "this worker")
    stops = {preflight.REFUSED} if options.force else {preflight.REFUSED, preflight.CANNOT_RUN}
    if any(problem.severity in stops for problem in preflight_problems(session)):
        return  # as the chief does, which says why
    _train_along(session, folder)


def _train_along(session: Session, folder: Path) -> None:
    failures: list[str] = []
    for job in session.jobs:
        try:
            if not is_done(session, job):
                train_on(session, job)
        except Exception as error:
            if (folder / "run.json").exists() and RunJson.of_run(folder).status == INTERRUPTED:
                told = "the chief was interrupted; continue on every machine with the same command and --resume"
                raise KeyboardInterrupt(told) from None
            if type(error).__name__ not in LOST_TASK:
                print_traceback()
            failures.append(f"{job.trainer} failed: {describe(error)}")
    if failures:
        raise PartFailedError(failures[0])


def start_here(options: Trained, folder: Path) -> tuple[int, str]:
    """Start the cluster that the options ask for as processes on this machine, and wait for its end.

    Every process does what the same command does on a machine of a real cluster. When one fails the
    others are stopped; when this process ends, however it ends, all of them do.

    Returns the chief's exit status, and the line that it wrote to stderr, if any.
    """
    for thing in (options.experiment, *options.trainers):
        if not isinstance(thing, str):
            raise RequestError(
                f"--strategy {options.strategy} starts processes that must import {type(thing).__name__} by "
                "themselves: give it as FILE.py:ATTR or package.module:ATTR"
            )
    kinds = {"worker": options.workers or 1}
    if options.spec.parameter_servers:
        kinds = {"chief": 1, **kinds, "ps": options.parameter_servers or 1}
    ports = iter(_free_ports(sum(kinds.values())))
    cluster = {kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in kinds.items()}
    with ExitStack() as stack:
        # Who is killed leaves behind the files that AutoGraph writes for every tf.function.
        temporary = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        running = {}
        for kind, addresses in cluster.items():
            for index in range(len(addresses)):
                task = ClusterTask(kind, index, "chief" in cluster, kinds["worker"])
                config = {"cluster": cluster, "task": {"type": kind, "index": index}}
                running[task] = stack.enter_context(_start(task, config, options, folder, temporary))
                stack.callback(_kill, running)
        return _wait(running)


def _start(
    task: ClusterTask, config: dict[str, Any], options: Trained, folder: Path, temporary: str
) -> subprocess.Popen[bytes]:
    request = json.dumps({"options": as_json(options), "folder": str(folder), "path": sys.path})
    direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy")  # noqa: SIM112 (as gRPC reads it)
    # Only the chief speaks to the user: the others would say the same again.
    with open(os.devnull if task.is_chief else folder / f"{task.name}.log", "ab") as silent:
        return processes.start(
            "compare.app.cluster_member",
            request,
            # A GPU cannot be shared by processes that each take all of its memory.
            environment={
                "TF_CONFIG": json.dumps(config),
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                "TMPDIR": temporary,
                # gRPC reaches even this machine through http_proxy, and no_grpc_proxy is read in place of no_proxy.
                "no_grpc_proxy": ",".join(filter(None, [direct, "127.0.0.1", "localhost"])),
            },
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that the user started, which ends the others
            stdout=None if task.is_chief else silent,
            stderr=subprocess.PIPE if task.is_chief else silent,
        )


def _kill(running: dict[ClusterTask, subprocess.Popen[bytes]]) -> None:
    """Kills all, the chief first: it would take the end of another one for a failure of the trainer."""
    for process in running.values():
        process.kill()


def _wait(running: dict[ClusterTask, subprocess.Popen[bytes]]) -> tuple[int, str]:
    """Wait for the chief; when another process fails, all are stopped after ``GRACE_SECONDS``.

    One that was killed is missing from what the chief has trained, also where the chief has not noticed.
    """
    chief = next(process for task, process in running.items() if task.is_chief)
    deadline: float | None = None
    while chief.poll() is None and (deadline is None or time.monotonic() < deadline):
        if deadline is None and _failed(running):
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(0.05)
    failed = _failed(running)
    killed = [task for task in failed if running[task].returncode == -processes.KILL]
    if killed or (failed and chief.poll() in (None, EXIT_NO_VERDICT)):  # the chief found no verdict because of it
        status = running[failed[0]].returncode
        raise NoVerdictError(
            f"{failed[0].name} {processes.how_ended(status)}, before the run was over; its last words are in "
            f"{failed[0].name}.log of the run's folder"
            + (_go_on(status) if chief.poll() is None or chief.returncode == EXIT_NO_VERDICT else "; run it again")
        )
    assert chief.stderr is not None
    with chief.stderr as errors:
        return chief.returncode, errors.read().decode(errors="replace").strip()


def _go_on(status: int) -> str:
    return "; continue with --resume" * (status == -processes.KILL)


def _failed(running: dict[ClusterTask, subprocess.Popen[bytes]]) -> list[ClusterTask]:
    return [task for task, process in running.items() if process.poll() and not task.is_chief]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
