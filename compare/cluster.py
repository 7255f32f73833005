"""Several processes as one run: which task of a cluster this process is, and a cluster on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.errors import NoVerdictError, RequestError
from compare.options import Options

PREFIX = "compare.py: "
"""What the command's lines on stderr begin with."""
NO_VERDICT = 3
"""The exit status of a run without a verdict."""
GRACE_SECONDS = 10.0
"""How long the other processes may take to end by themselves once one has failed."""


JOIN_SECONDS = 50.0
"""How long the tasks of a cluster wait for each other to begin."""


@dataclass(frozen=True)
class Task:
    """This process's place in a cluster, as ``TF_CONFIG`` gives it.

    Attributes:
        kind: "chief", "worker" or "ps".
        index: the number of the task among those of its kind, from 0.
        has_chief: whether the cluster has a task of kind "chief"; else worker 0 is the chief.
        workers: how many workers train.
    """

    kind: str
    index: int
    has_chief: bool
    workers: int

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the reports."""
        return self.kind == "chief" or (self.kind == "worker" and self.index == 0 and not self.has_chief)

    @property
    def worker(self) -> int:
        """The number among those who train, from 0; 0 is the chief."""
        return self.index + (self.has_chief and self.kind == "worker")

    @property
    def name(self) -> str:
        """For file names and messages: ``worker-1``."""
        return f"{self.kind}-{self.index}"


def this_task() -> Task | None:
    """What ``TF_CONFIG`` says this process is; None where it is not set.

    Raises:
        RequestError: when ``TF_CONFIG`` is not what TensorFlow's documentation asks for.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = str(task["type"]), int(task["index"])
        addresses = {str(name): [str(address) for address in listed] for name, listed in cluster.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"TF_CONFIG is not a cluster with a task ({type(error).__name__}: {error}): unset it, or give "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    if kind not in addresses or not 0 <= index < len(addresses[kind]):
        raise RequestError(f"TF_CONFIG says this is task {kind} {index}, and its cluster has no such task")
    workers = len(addresses.get("worker", [])) + (kind != "ps" and "ps" not in addresses and "chief" in addresses)
    return Task(kind, index, "chief" in addresses, workers)


def meet() -> None:
    """Wait until every task of the cluster in ``TF_CONFIG`` is there, before TensorFlow does.

    TensorFlow would wait for as long as it takes, with Python's lock held: no signal, not even Ctrl-C, ends it then.

    Raises:
        NoVerdictError: when some task is not there in time.
    """
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], int(config["task"]["index"])
    addresses = {(name, i): address for name, listed in config["cluster"].items() for i, address in enumerate(listed)}
    deadline = time.monotonic() + JOIN_SECONDS
    with _answering(addresses.pop((kind, index))):
        while addresses:
            addresses = {task: address for task, address in addresses.items() if not _answers(address)}
            if addresses and time.monotonic() > deadline:
                missing = ", ".join(f"{name} {i} ({address})" for (name, i), address in addresses.items())
                raise NoVerdictError(
                    f"{missing} did not join within {JOIN_SECONDS:.0f} s: start the same command there, with its own "
                    "TF_CONFIG, and see that the address can be reached"
                )
            time.sleep(0.2 if addresses else 0)


@contextmanager
def _answering(address: str) -> Iterator[None]:
    """Accept connections at this task's own address, as TensorFlow's server does later."""
    port = int(address.rpartition(":")[2])
    try:
        listener = socket.create_server(("", port), backlog=128)
    except OSError as error:
        raise NoVerdictError(f"{address} of TF_CONFIG cannot be listened on ({error.strerror}): is it taken?") from None
    with listener:
        yield


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


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
    if options.strategy == "parameter-server":
        kinds = {"chief": 1, **kinds, "ps": options.parameter_servers or 1}
    ports = iter(_free_ports(sum(kinds.values())))
    cluster = {kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in kinds.items()}
    with ExitStack() as stack:
        # The processes hold the read end; it closes with this process, and they end themselves then.
        read, write = os.pipe()
        stack.callback(os.close, write)
        processes = {}
        for kind, addresses in cluster.items():
            for index in range(len(addresses)):
                task = Task(kind, index, "chief" in cluster, kinds["worker"])
                config = {"cluster": cluster, "task": {"type": kind, "index": index}}
                processes[task] = _start(task, config, options, folder, read)
                stack.callback(_stop, processes[task])
        os.close(read)
        return _wait(processes)


def _start(task: Task, config: dict[str, Any], options: Options, folder: Path, pipe: int) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {
        "TF_CONFIG": json.dumps(config),
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        # A GPU cannot be shared by processes that each take all of its memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    request = json.dumps({"options": options.as_json(), "folder": str(folder), "pipe": pipe})
    # Only the chief speaks to the user: the others would say the same again.
    with open(os.devnull if task.is_chief else folder / f"{task.name}.log", "ab") as silent:
        return subprocess.Popen(
            [sys.executable, "-m", "compare.cluster", request],
            env=environment,
            pass_fds=[pipe],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that the user started, which ends the others
            stdout=None if task.is_chief else silent,
            stderr=subprocess.PIPE if task.is_chief else silent,
        )


def _wait(processes: dict[Task, subprocess.Popen[bytes]]) -> tuple[int, str]:
    """Wait for the chief; a failure of any other is the end of all, after a moment of grace."""
    chief = next(process for task, process in processes.items() if task.is_chief)
    deadline: float | None = None
    while chief.poll() is None and (deadline is None or time.monotonic() < deadline):
        if deadline is None and _failed(processes):
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(0.05)
    failed = _failed(processes)
    if failed and chief.poll() in (None, NO_VERDICT):  # the chief found no verdict because of it
        raise NoVerdictError(
            f"{failed[0].name} ended with status {processes[failed[0]].returncode} before the run was over, "
            f"which stops the others; its last words are in {failed[0].name}.log of the run's folder"
        )
    assert chief.stderr is not None
    with chief.stderr as errors:
        return chief.returncode, errors.read().decode().strip().removeprefix(PREFIX)


def _failed(processes: dict[Task, subprocess.Popen[bytes]]) -> list[Task]:
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


def _end_with_parent(pipe: int) -> None:
    """End this process when the one that started it is gone: its end of the pipe closes then."""

    def watch() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """One process of a cluster on this machine."""
    request = json.loads(sys.argv[1])
    _end_with_parent(request["pipe"])
    from compare.cli import carry_out_and_report

    return carry_out_and_report(Options.from_json(request["options"]), Path(request["folder"]))


if __name__ == "__main__":
    sys.exit(main())
