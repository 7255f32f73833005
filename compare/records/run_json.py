"""``run.json``: a run's options, data, strategy, versions and status. Only ``RunJson`` writes the file."""

from __future__ import annotations

import datetime
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from compare.errors import RequestError, StorageError
from compare.naming import refuse_unreadable, renamed, shown_path
from compare.records.files import checksum, read_checked, write_checked
from compare.records.metrics_csv import filled, read_metrics
from compare.records.model import RecordError

BEGUN, TRAINING, INTERRUPTED, TRAINED = "begun", "training", "interrupted", "trained"
UNEXPLAINED, EXPLAINED, FINISHED = "unexplained", "explained", "finished"
"""The values of ``status``, in the order in which a run reaches them. An unexplained comparison of scripts was
interrupted when they had ended. Of an explained run everything has been measured; a finished run has its verdict, plot,
page and place in the list of runs, too, which are made from its files."""

SCHEMA, OF_VERDICTS = 2, 1
"""The versions of the formats of ``run.json`` and ``verdict.json``."""

READ_BACK = ("run.json", "verdict.json", "metrics.csv", "records", "checkpoints", "twins")
"""The files and folders in a run's folder that are read back."""


@dataclass(kw_only=True)
class RunJson:
    """The content of ``run.json``. Values that are None are not known yet and are not in the file.

    Attributes:
        identity: a random text that all records of the run have, too.
        status: ``begun``, ``training``, ``interrupted``, ``trained``, ``unexplained``, ``explained`` or ``finished``.
        notes: notes shown with every result, such as "sample of the data set".
        models: of two scripts that train several models, the names of the records of all but the first, in pairs.
        unpaired: of two scripts, what could not be compared, and why: other trainings, or weights that one has alone.
        strategy: its name, class, devices, global batch size, and numbers of replicas and workers.
        data: the source of the data set, and the number of examples and the SHA-256 of each part.
        arithmetic: the floating-point type and variables of the environment that choose kernels; "" if one is not set.
        settings: the classes and configurations of the model's layers, optimizer, loss and metrics, by part.
        started: when training started (ISO 8601, UTC).
        code: SHA-256 digests of this package and of the user's files, by name.
        imported: SHA-256 digests of the files that these import from their own folders, by path.
        resumed: the times at which the run was resumed (ISO 8601, UTC).
        preflight: the findings of the checks before training: id, severity and message.
        failures: why a trainer, or all, have no result, as ``compare.verdict.model.Failure``.
        initial_weights_sha256: the SHA-256 digests of the initial weights, by seed.
        parallel: how ``--parallel`` divides the processor; empty where one trainer trains after the other, None until
            that is decided.
        study: how the trainings of a study were distributed.
        check: the findings of the short check by candidate, as in ``verdict.json``.
        since_baseline: what has changed since the run named by ``--baseline``, as fields of a ``Comparison``.
        not_finite: by candidate, where in its step a value first is not finite on one side only.
        finished: when everything had been measured (ISO 8601, UTC).
        verdict_sha256: the checksum in ``verdict.json``; None if there is none yet.
        metrics_sha256: a checksum of the rows that ``metrics.csv`` had then; None while more are trained.
    """

    folder: Path
    schema: int = SCHEMA
    identity: str | None = None
    status: str = BEGUN
    title: str | None = None
    notes: list[str] | None = None
    command: list[str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    trainers: list[str] | None = None
    models: list[list[str]] | None = None
    unpaired: dict[str, str] | None = None
    strategy: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    machine: dict[str, Any] | None = None
    threads: dict[str, int] | None = None
    arithmetic: dict[str, str] | None = None
    settings: dict[str, list[dict[str, Any]]] | None = None
    started: str | None = None
    code: dict[str, str] | None = None
    imported: dict[str, str] | None = None
    resumed: list[str] | None = None
    preflight: list[dict[str, str]] | None = None
    failures: list[dict[str, Any]] | None = None
    initial_weights_sha256: dict[str, str] | None = None
    parallel: dict[str, int] | None = None
    study: dict[str, Any] | None = None
    check: dict[str, Any] | None = None
    since_baseline: dict[str, Any] | None = None
    not_finite: dict[str, dict[str, Any]] | None = None
    finished: str | None = None
    verdict_sha256: str | None = None
    metrics_sha256: str | None = None

    @classmethod
    def read(cls, folder: Path) -> RunJson:
        """Reads the ``run.json`` of a run's folder.

        Raises:
            RecordError: if the file is missing or damaged.
        """
        content = read_run(folder)
        known = {item.name for item in fields(cls)} - {"folder"}
        return cls(folder=folder, **{name: content[name] for name in known & content.keys()})

    @classmethod
    def of_run(cls, folder: Path) -> RunJson:
        """Reads the ``run.json`` of a folder that the user gave.

        Raises:
            RequestError: if the folder is not a run's.
        """
        try:
            return cls.read(folder)
        except RecordError as error:
            remedy = "" if (folder / "run.json").exists() else "; give the folder of a run"
            raise RequestError(f"{error}{remedy}") from None

    def save(self, **changes: Any) -> None:
        """Changes some values and writes the file atomically.

        Raises:
            StorageError: if the file cannot be written.
        """
        for name, value in changes.items():
            setattr(self, name, value)
        if self.status in (EXPLAINED, FINISHED) and self.finished is None:
            self.finished = now()
        if self.started is not None and not (self.folder / "run.json").exists():  # somebody else's folder by now
            raise StorageError(f"{shown_path(self.folder)} was removed meanwhile", "run it again")
        write_checked(self.folder / "run.json", {**self.content(), "schema": SCHEMA})

    def begin_training(self, known: Mapping[str, Any]) -> None:
        """Adds the values that are known once the data is loaded and the strategy is created.

        A resumed run keeps its start time and the digests of its initial weights.
        """
        if self.started is not None:
            self.resumed = [*(self.resumed or []), now()]
        known = {**known, "started": self.started or known["started"], "status": TRAINING}
        for name, value in known.items():
            setattr(self, name, value)
        self.initial_weights_sha256 = self.initial_weights_sha256 or {}
        self.failures, self.check, self.not_finite, self.finished = [], None, None, None
        self.metrics_sha256 = None

    @property
    def may_go_on(self) -> bool:
        """Whether a trainer failed in a way that may pass, so that the run can be resumed."""
        return any(failure.get("may_pass") for failure in self.failures or ())

    def content(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "folder"}
        return {name: value for name, value in values.items() if value is not None}


def read_run(folder: Path) -> dict[str, Any]:
    """Reads the ``run.json`` of a run's folder as a JSON object.

    Raises:
        RecordError: if the file is missing or damaged, or what is read back is not all in plain files in the folder.
        RequestError: if the folder may not be looked into.
    """
    refuse_unreadable(folder)
    _refuse_links(folder)
    content = read_checked(folder / "run.json", SCHEMA)
    if not isinstance(content.get("options"), dict):
        raise RecordError(folder / "run.json", "it is not a run's, it has no options")
    content["options"] = renamed(content["options"])
    for item in fields(RunJson):
        kind = {"str": str, "int": int, "list": list}.get(re.split(r"\W", str(item.type))[0], dict)
        if item.name != "folder" and not isinstance(content.get(item.name), kind | None):
            raise RecordError(folder / "run.json", f"its {item.name} is no {kind.__name__}")
    return content


def _refuse_links(folder: Path) -> None:
    """Refuses a run that is not all in plain files: links lead out of its folder, and pipes are waited for."""
    left = [folder / name for name in READ_BACK]
    while left:
        path = left.pop()
        try:
            mode = os.lstat(path).st_mode
            left += path.iterdir() if stat.S_ISDIR(mode) else ()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # a name with a null byte is no OSError
            raise RecordError(path, f"cannot be read ({getattr(error, 'strerror', error)})") from None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RecordError(path, f"is a {'link' if stat.S_ISLNK(mode) else 'pipe or device'}, not a run's own file")


def read_verdict(path: Path) -> dict[str, Any]:
    """Reads ``verdict.json`` and verifies its checksum, also by the ``run.json`` beside it.

    Raises:
        RecordError: if a file cannot be read, was changed after it was written, or is that of another run.
    """
    run, content = read_run(path.parent), read_checked(path, OF_VERDICTS)
    if "verdict" not in content:
        raise RecordError(path, "damaged, it has no verdict")
    if run.get("verdict_sha256") != checksum(content):
        raise RecordError(path, f"is not the verdict that {shown_path(path.with_name('run.json'))} belongs to")
    return content


def write_verdict(path: Path, content: Mapping[str, Any]) -> None:
    """Writes ``verdict.json``, after ``run.json`` beside it has got the checksums of it and of ``metrics.csv``.

    Raises:
        RecordError: if one of them is damaged.
        StorageError: if the file cannot be written.
    """
    metrics = path.with_name("metrics.csv")
    sha256 = rows_checksum(metrics) if metrics.exists() else None
    RunJson.read(path.parent).save(verdict_sha256=checksum(content), metrics_sha256=sha256)
    write_checked(path, content)


def rows_checksum(metrics: Path) -> str:
    return checksum({"rows": [filled(row) for row in read_metrics(metrics)]})


def run_of(folder: Path) -> Path:
    """The ``run.json`` of the run that a folder with records belongs to: the run's own, or that of noise twins."""
    own = folder / "run.json"
    return folder.parents[1] / "run.json" if folder.parent.name == "twins" and not own.exists() else own


def identity_of(folder: Path) -> str | None:
    """The identity of the run that a folder with records belongs to; None if there is no ``run.json`` or it has none.

    Raises:
        RecordError: if ``run.json`` is damaged.
    """
    path = run_of(folder)
    identity: str | None = read_run(path.parent).get("identity") if path.exists() else None
    return identity


def now() -> str:
    """The current time in UTC, in ISO 8601 format."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
