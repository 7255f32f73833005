"""Several processes as one run: which task of a cluster this process is, as ``TF_CONFIG`` gives it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compare.errors import NoVerdictError, RequestError

JOIN_SECONDS = 50.0
"""How long the tasks of a cluster wait for each other to begin."""


@dataclass(frozen=True)
class ClusterTask:
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


def this_task() -> ClusterTask | None:
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
    return ClusterTask(kind, index, "chief" in addresses, workers)


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
