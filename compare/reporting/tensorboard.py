"""A run as a TensorBoard log, written from its files with TensorBoard's own record format; no TensorFlow.

    tensorboard --logdir reports/NAME/tensorboard

Every trainer is a run of the log: its numbers per epoch; and per optimizer step, counted over all epochs, estimates of
its weights' Euclidean norm and of their distance from the reference's. The verdict is a text of the run "verdict".
"""

from __future__ import annotations

import datetime
import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from compare.errors import RequestError
from compare.records import INITIAL, Record, RecordError, read_json, read_metrics, read_records, read_verdict
from compare.records.metrics_csv import KEY_COLUMNS
from compare.reporting.gaps import gaps_of
from compare.reporting.sentences import causes, sentence

FOLDER = "tensorboard"
FILE = "events.out.tfevents.0000000000.compare"

Scalar = tuple[int, float, str, float]
"""Step, wall time in seconds since 1970, tag, value."""


def require() -> None:
    """Say so where the package that writes the log is missing.

    Raises:
        RequestError: when tensorboard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise RequestError('--tensorboard needs the package tensorboard: pip install "fit-vs-loop[tensorboard]"')


def write(folder: Path) -> Path:
    """Write the log of a run's folder, from its other files; an old log goes.

    Raises:
        RequestError: when tensorboard is not installed.
        RecordError: when a file is damaged.
    """
    require()
    log = folder / FOLDER
    shutil.rmtree(log, ignore_errors=True)
    rows = read_metrics(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    verdict = read_verdict(folder / "verdict.json") if (folder / "verdict.json").exists() else {}
    began = _time(read_json(folder / "run.json").get("started"))
    several = len({row["seed"] for row in rows}) > 1

    def name(trainer: str, seed: int) -> str:
        return quote(trainer, safe=" ") + (f" seed {seed}" if several else "")

    scalars: dict[str, list[Scalar]] = {}
    clock: dict[str, float] = {}
    for row in rows:
        run = name(row["trainer"], int(row["seed"]))
        clock[run] = clock.get(run, began) + float(row["seconds"] or 0)
        numbers = {tag: text for tag, text in row.items() if text and tag not in KEY_COLUMNS}
        scalars.setdefault(run, []).extend(
            (int(row["epoch"]), clock[run], f"epoch/{tag}", float(text)) for tag, text in numbers.items()
        )
    for record in _records(folder):
        steps = record.steps[record.steps["step"] > INITIAL]
        norms = np.sqrt(np.sum(np.mean(np.square(steps["projections"]), axis=2), axis=1))
        found = [(number, began, "step/weights, norm", norm) for number, norm in enumerate(norms.tolist(), start=1)]
        scalars.setdefault(name(record.trainer, record.seed), []).extend(found)
    for entry, reference, gaps in gaps_of(folder, verdict):
        numbered = [gap for (_, step), gap in zip(gaps.places, gaps.gaps.tolist(), strict=True) if step != INITIAL]
        tag = f"step/weights, gap to {reference}"
        found = [(number, began, tag, gap) for number, gap in enumerate(numbered, start=1)]
        scalars.setdefault(name(entry["candidate"], gaps.seed), []).extend(found)
    for run, its in scalars.items():
        _write(log / run, [_scalar(*each) for each in its if not math.isnan(each[3])])
    if verdict:
        _write(log / "verdict", [_text("verdict", _told(verdict), began)])
    return log


def _records(folder: Path) -> list[Record]:
    try:
        return read_records(folder)
    except RecordError:  # a run that was copied without them
        return []


def _time(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _told(verdict: dict[str, Any]) -> str:
    """The verdict as Markdown."""
    lines = [f"**{verdict['verdict']}**"]
    for comparison in verdict["comparisons"]:
        lines += ["", sentence(comparison, verdict["reference"]) + "."]
        lines += [f"    {line.strip()}" for line in causes(comparison)]
    return "\n".join(lines)


def _scalar(step: int, wall_time: float, tag: str, value: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Event(step=step, wall_time=wall_time, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def _text(tag: str, text: str, wall_time: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    value = Summary.Value(tag=tag, tensor=tensor, metadata=create_summary_metadata(tag, ""))
    return Event(wall_time=wall_time, summary=Summary(value=[value]))


def _write(folder: Path, events: list[Any]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FILE, "wb") as file:
        writer = RecordWriter(file)
        for event in [Event(wall_time=0.0, file_version="brain.Event:2"), *events]:
            writer.write(event.SerializeToString())
