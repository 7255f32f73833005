"""Reads ``TF_CONFIG``, which assigns this process its task in a cluster, and waits for the other tasks."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compare.errors import NoVerdictError, RequestError

JOIN_SECONDS = 50.0
"""How long the tasks of a cluster wait for each other at the start, in seconds."""


@dataclass(frozen=True)
class ClusterTask:
    """The task of this process in a cluster, from ``TF_CONFIG``.

    Attributes:
        kind: "chief", "worker" or "ps".
        index: number of the task among the tasks of its kind, from 0.
        has_chief: whether the cluster has a task of kind "chief"; otherwise worker 0 is the chief.
        workers: number of workers that train.
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
        """Number of this task among the tasks that train, from 0; the chief has number 0."""
        return self.index + (self.has_chief and self.kind == "worker")

    @property
    def name(self) -> str:
        """Name for files and messages, such as ``worker-1``."""
        return f"{self.kind}-{self.index}"


def this_task() -> ClusterTask | None:
    """Returns the task of this process, from ``TF_CONFIG``; None if ``TF_CONFIG`` is not set.

    Raises:
        RequestError: if ``TF_CONFIG`` does not have the form that TensorFlow requires.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = str(task["type"]), int(task["index"])
        addresses = {str(name): [str(address) for address in listed] for name, listed in cluster.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(
            f"TF_CONFIG does not describe a cluster and a task ({type(error).__name__}: {error}): unset it, or use "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    for address in (each for listed in addresses.values() for each in listed):
        host, _, port = address.rpartition(":")
        if not (host and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16):
            raise RequestError(f"TF_CONFIG has the address {address!r}: give host:port, such as 10.0.0.1:2222")
    if kind not in addresses or not 0 <= index < len(addresses[kind]):
        raise RequestError(
            f"TF_CONFIG says that this process is task {kind} {index}, but its cluster has no such task: "
            "correct its type or index"
        )
    workers = len(addresses.get("worker", [])) + (kind != "ps" and "ps" not in addresses and "chief" in addresses)
    return ClusterTask(kind, index, "chief" in addresses, workers)


def meet() -> None:
    """Waits until every task of the cluster in ``TF_CONFIG`` has started. Call it before TensorFlow waits for them.

    TensorFlow would wait indefinitely while holding Python's global interpreter lock, so that no signal, not even
    Ctrl-C, could end the process.

    Raises:
        NoVerdictError: if a task has not started within ``JOIN_SECONDS``.
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
                    "TF_CONFIG, and make sure that the address can be reached"
                )
            time.sleep(0.2 if addresses else 0)


@contextmanager
def _answering(address: str) -> Iterator[None]:
    """Accepts connections at this task's address, as TensorFlow's server does later."""
    port = int(address.rpartition(":")[2])
    try:
        listener = socket.create_server(("", port), backlog=128)
    except OSError as error:
        raise NoVerdictError(
            f"this process cannot listen on {address} from TF_CONFIG ({error.strerror}): choose a free port"
        ) from None
    with listener:
        yield


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False
