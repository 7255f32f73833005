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
from compare.records.files import storing
from compare.records.metrics_csv import KEY_COLUMNS
from compare.records.run_json import read_run
from compare.reporting.gaps import gaps_of
from compare.reporting.sentences import causes, sentence

FOLDER = "tensorboard"
FILE = "events.out.tfevents.0000000000.compare"

NORM = "step/weights, norm"

Scalar = tuple[int, float, str, float]
"""Step, wall time in seconds since 1970, tag, value."""


def run_name(trainer: str, seed: int, *, several: bool) -> str:
    """The name of a run of the log: the trainer's, and the seed if there are several."""
    return file_name(trainer, safe=" ") + (f" seed {seed}" if several else "")


def gap_tag(reference: str) -> str:
    """The tag of the weight gap after every step."""
    return f"step/weights, gap to {reference}"


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
        return run_name(trainer, seed, several=several)

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
        values = [(number, began, NORM, norm) for number, norm in enumerate(norms.tolist(), start=1)]
        scalars.setdefault(name(record.trainer, record.seed), []).extend(values)
    for entry, reference, gaps in gaps_of(folder, verdict):
        numbered = gaps.gaps[gaps.steps != INITIAL].tolist()
        values = [(number, began, gap_tag(reference), gap) for number, gap in enumerate(numbered, start=1)]
        scalars.setdefault(name(entry["candidate"], gaps.seed), []).extend(values)
    for run, values in scalars.items():
        _write(log / run, [scalar(*value) for value in values if not math.isnan(value[3])])
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


def scalar(step: int, wall_time: float, tag: str, value: float) -> Any:
    """The event of one value."""
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
    file = EventFile(folder)
    for event in events:
        file.write(event)
    file.close()


class EventFile:
    """The event file of one run of the log, open for appending; created if it does not exist.

    Raises:
        StorageError: if the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 (lazy)
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415 (lazy)

        self._path = folder / FILE
        with storing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab")  # noqa: SIM115 (it stays open while a run is trained)
        self._writer = RecordWriter(self._file)
        if self._file.tell() == 0:
            self.write(Event(wall_time=0.0, file_version="brain.Event:2"))

    def write(self, event: Any) -> None:
        """Appends an event."""
        with storing(self._path):
            self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        """Makes all events visible to readers."""
        with storing(self._path):
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        with storing(self._path):
            self._file.close()
