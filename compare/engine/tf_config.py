"""Reads ``TF_CONFIG``, which assigns this process its task in a cluster, and waits for the other tasks."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from compare.errors import NoVerdictError, RequestError

JOIN_SECONDS = 50.0
"""How long the tasks of a cluster wait for each other at the start, in seconds."""
KINDS = ("chief", "worker", "ps")
"""The kinds of tasks that take part in a run."""


@dataclass(frozen=True)
class ClusterTask:
    """The task of this process in a cluster, from ``TF_CONFIG``.

    Attributes:
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
    """Returns the task of this process, from ``TF_CONFIG``; None if ``TF_CONFIG`` is not set."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        addresses, kind, index = _parsed(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(
            f"TF_CONFIG does not describe a cluster and a task ({type(error).__name__}: {error}): unset it, or use "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    if kind not in addresses or not 0 <= index < len(addresses[kind]):
        raise RequestError(
            f"TF_CONFIG says that this process is task {kind} {index}, but its cluster has no such task: "
            "correct its type or index"
        )
    workers = len(addresses.get("worker", [])) + (kind != "ps" and "ps" not in addresses and "chief" in addresses)
    return ClusterTask(kind, index, "chief" in addresses, workers)


def _parsed(text: str) -> tuple[dict[str, list[str]], str, int]:
    """The addresses of the cluster's tasks by kind, and the kind and index of this one.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, RecursionError: if the text has another form.
    """
    config = json.loads(text)
    cluster, task = config["cluster"], config["task"]
    for name, listed in cluster.items():
        if not (isinstance(listed, list) and all(map(_is_address, listed))):
            raise ValueError(f"{json.dumps(name)} is not a list of host:port")
    kind, index = task["type"], task["index"]
    if kind not in KINDS:
        raise ValueError(f"the task's type is not one of {', '.join(KINDS)}")
    if isinstance(index, bool) or not re.fullmatch("[0-9]{1,9}", str(index)):
        raise ValueError("the task's index is not a number")
    return cluster, kind, int(index)


def _is_address(address: Any) -> bool:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return bool(host) and bool(re.fullmatch("[0-9]{1,5}", port)) and 0 < int(port) < 2**16


def meet(*, serving: bool = False) -> None:
    """Waits until every task of the cluster in ``TF_CONFIG`` has started. Call it before TensorFlow waits for them.

    TensorFlow would wait indefinitely while holding Python's global interpreter lock, so that no signal, not even
    Ctrl-C, could end the process.

    Args:
        serving: whether TensorFlow's server listens at this task's address already.

    Raises:
        NoVerdictError: if a task has not started within ``JOIN_SECONDS``.
    """
    cluster, kind, index = _parsed(os.environ["TF_CONFIG"])
    addresses = {(name, i): address for name, listed in cluster.items() for i, address in enumerate(listed)}
    deadline = time.monotonic() + JOIN_SECONDS
    own = addresses.pop((kind, index))
    with nullcontext() if serving else _answering(own):
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
    """Accepts connections at this task's address, as TensorFlow's server does later.

    TensorFlow's server listens on every interface. So does this one, unless the address is of this machine alone: other
    machines may know this one by an address that it does not have itself.
    """
    host, _, port = address.rpartition(":")
    here = host if host == "localhost" or host.startswith("127.") else ""
    try:
        listener = socket.create_server((here, int(port)), backlog=128)
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
