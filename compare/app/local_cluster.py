"""A cluster on this machine: one process for each of its tasks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compare.engine.tf_config import ClusterTask
from compare.errors import EXIT_NO_VERDICT, NoVerdictError, RequestError
from compare.options import Options

PREFIX = "compare.py: "
"""The beginning of every line that the command writes to stderr."""

GRACE_SECONDS = 10.0
"""Time that the other processes have to end by themselves after one has failed."""


def start_here(options: Options, folder: Path) -> tuple[int, str]:
    """Start the cluster that the options ask for as processes on this machine, and wait for its end.

    Every process does what the same command does on a machine of a real cluster. When one fails the
    others are stopped; when this process ends, however it ends, all of them do.

    Returns:
        The chief's exit status, and the line that it wrote to stderr, if any.

    Raises:
        NoVerdictError: when a process other than the chief fails.
        RequestError: when the experiment or a trainer is an object, which other processes cannot import.
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
        processes = {}
        for kind, addresses in cluster.items():
            for index in range(len(addresses)):
                task = ClusterTask(kind, index, "chief" in cluster, kinds["worker"])
                config = {"cluster": cluster, "task": {"type": kind, "index": index}}
                processes[task] = _start(task, config, options, folder)
                stack.callback(_stop, processes[task])
        return _wait(processes)


def _start(task: ClusterTask, config: dict[str, Any], options: Options, folder: Path) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {
        "TF_CONFIG": json.dumps(config),
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        # A GPU cannot be shared by processes that each take all of its memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    request = json.dumps({"options": options.as_json(), "folder": str(folder), "parent": os.getpid()})
    # Only the chief speaks to the user: the others would say the same again.
    with open(os.devnull if task.is_chief else folder / f"{task.name}.log", "ab") as silent:
        return subprocess.Popen(
            [sys.executable, "-m", "compare.app.cluster_member", request],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that the user started, which ends the others
            stdout=None if task.is_chief else silent,
            stderr=subprocess.PIPE if task.is_chief else silent,
        )


def _wait(processes: dict[ClusterTask, subprocess.Popen[bytes]]) -> tuple[int, str]:
    """Wait for the chief; when another process fails, all are stopped after ``GRACE_SECONDS``."""
    chief = next(process for task, process in processes.items() if task.is_chief)
    deadline: float | None = None
    while chief.poll() is None and (deadline is None or time.monotonic() < deadline):
        if deadline is None and _failed(processes):
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(0.05)
    failed = _failed(processes)
    if failed and chief.poll() in (None, EXIT_NO_VERDICT):  # the chief found no verdict because of it
        raise NoVerdictError(
            f"{failed[0].name} ended with status {processes[failed[0]].returncode} before the run was over, "
            f"which stops the others; its last words are in {failed[0].name}.log of the run's folder"
        )
    assert chief.stderr is not None
    with chief.stderr as errors:
        return chief.returncode, errors.read().decode().strip().removeprefix(PREFIX)


def _failed(processes: dict[ClusterTask, subprocess.Popen[bytes]]) -> list[ClusterTask]:
    return [task for task, process in processes.items() if process.poll() and not task.is_chief]


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
