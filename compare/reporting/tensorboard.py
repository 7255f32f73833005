"""A run as a TensorBoard log, written from the run's files with TensorBoard's record writer; imports no TensorFlow.

    tensorboard --logdir reports/NAME/tensorboard

Every trainer is a run of the log, with its metrics per epoch. Per optimizer step, counted over all epochs, it has
estimates of the Euclidean norm of its weights and of their distance from the reference's weights. The run "verdict"
contains the verdict as text.
"""

from __future__ import annotations

import datetime
import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compare.errors import RequestError
from compare.naming import file_name
from compare.records import INITIAL, has_records, read_records, read_rows, read_verdict, total_norm
from compare.records.metrics_csv import KEY_COLUMNS
from compare.records.run_json import read_run
from compare.reporting.gaps import gaps_of
from compare.reporting.sentences import causes, sentence

FOLDER = "tensorboard"
FILE = "events.out.tfevents.0000000000.compare"

Scalar = tuple[int, float, str, float]
"""Step, wall time in seconds since 1970, tag, value."""


def require() -> None:
    """Checks that the package that writes the log is installed.

    Raises:
        RequestError: if tensorboard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise RequestError('--tensorboard needs the package tensorboard: pip install "fit-vs-loop[tensorboard]"')


def write(folder: Path) -> Path:
    """Writes the log from the other files of a run's folder, replacing an existing log.

    Returns:
        The folder of the log.

    Raises:
        RequestError: if tensorboard is not installed.
        RecordError: if a file is damaged.
    """
    require()
    log = folder / FOLDER
    shutil.rmtree(log, ignore_errors=True)
    rows = read_rows(folder)
    verdict = read_verdict(folder / "verdict.json") if (folder / "verdict.json").exists() else {}
    began = _time(read_run(folder).get("started"))
    several = len({row["seed"] for row in rows}) > 1

    def name(trainer: str, seed: int) -> str:
        return file_name(trainer, safe=" ") + (f" seed {seed}" if several else "")

    scalars: dict[str, list[Scalar]] = {}
    clock: dict[str, float] = {}
    for row in rows:
        run = name(row["trainer"], int(row["seed"]))
        clock[run] = clock.get(run, began) + float(row["seconds"] or 0)
        numbers = {tag: text for tag, text in row.items() if text and tag not in KEY_COLUMNS}
        scalars.setdefault(run, []).extend(
            (int(row["epoch"]), clock[run], f"epoch/{tag}", float(text)) for tag, text in numbers.items()
        )
    for record in read_records(folder) if has_records(folder) else ():
        steps = record.steps[record.steps["step"] > INITIAL]
        norms = total_norm(steps["projections"])
        values = [(number, began, "step/weights, norm", norm) for number, norm in enumerate(norms.tolist(), start=1)]
        scalars.setdefault(name(record.trainer, record.seed), []).extend(values)
    for entry, reference, gaps in gaps_of(folder, verdict):
        numbered = gaps.gaps[gaps.steps != INITIAL].tolist()
        tag = f"step/weights, gap to {reference}"
        values = [(number, began, tag, gap) for number, gap in enumerate(numbered, start=1)]
        scalars.setdefault(name(entry["candidate"], gaps.seed), []).extend(values)
    for run, values in scalars.items():
        _write(log / run, [_scalar(*value) for value in values if not math.isnan(value[3])])
    if verdict:
        _write(log / "verdict", [_text("verdict", _markdown(verdict), began)])
    return log


def _time(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _markdown(verdict: dict[str, Any]) -> str:
    """The verdict as Markdown."""
    lines = [f"**{verdict['verdict']}**"]
    for comparison in verdict["comparisons"]:
        lines += ["", sentence(comparison, verdict["reference"]) + "."]
        lines += [f"    {line.strip()}" for line in causes(comparison)]
    return "\n".join(lines)


def _scalar(step: int, wall_time: float, tag: str, value: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 (lazy)

    return Event(step=step, wall_time=wall_time, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def _text(tag: str, text: str, wall_time: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 (lazy)
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # noqa: PLC0415 (lazy)
    from tensorboard.compat.proto.types_pb2 import DT_STRING  # noqa: PLC0415 (lazy)
    from tensorboard.plugins.text.metadata import create_summary_metadata  # noqa: PLC0415 (lazy)

    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    value = Summary.Value(tag=tag, tensor=tensor, metadata=create_summary_metadata(tag, ""))
    return Event(wall_time=wall_time, summary=Summary(value=[value]))


def _write(folder: Path, events: list[Any]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415 (lazy)

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FILE, "wb") as file:
        writer = RecordWriter(file)
        for event in [Event(wall_time=0.0, file_version="brain.Event:2"), *events]:
            writer.write(event.SerializeToString())
