"""Reading and writing ``metrics.csv``: one row per trainer, seed and epoch, numbers as shortest exact decimals."""

from __future__ import annotations

import csv
import io
import math
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from compare.errors import NoVerdictError
from compare.records.files import append_to_file, replace_file
from compare.records.model import EpochRecord, RecordError, read_part

KEY_COLUMNS = ("trainer", "seed", "epoch")
TIME_COLUMNS = ("seconds", "examples_per_second")
"""The first columns and the last."""
FORMULA = r"'*[=+\-@\t\r]"
"""How a name begins that a spreadsheet would take for a formula, or that was quoted because of that."""

Values = dict[int, float]
"""Maps an epoch to a value; missing values are absent."""
Curves = dict[tuple[str, int], dict[str, Values]]
"""The columns of ``metrics.csv`` by trainer and seed."""


def is_column(name: object) -> bool:
    """Whether the name of a metric can be that of a column of ``metrics.csv``."""
    usable = isinstance(name, str) and name != "" and name.isprintable()
    return usable and name not in KEY_COLUMNS + TIME_COLUMNS


def _known(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def is_float32(value: float) -> bool:
    """Whether float32 represents the value exactly, as it does for all numbers that TensorFlow reports."""
    with np.errstate(over="ignore"):
        return not math.isfinite(value) or float(np.float32(value)) == value


def shortest(value: float) -> str:
    """The shortest decimal that reads back to the same value of its own type, float32 or float64."""
    if is_float32(value):
        text = str(np.float32(value))
        # Readers round twice, to float64 and then to float32, which turns 7.038531e-26 into its neighbour.
        if not math.isfinite(value) or np.float32(text) == value:
            return text
    return repr(float(value))


def exact_column(texts: Mapping[int, str]) -> dict[int, float]:
    """The values of a column by epoch. If all have the fewest digits that identify a float32, they are those.

    Else a gap of one unit in the last place would be wrong.
    """
    with np.errstate(over="ignore"):
        single = all(str(np.float32(text)) == text for text in texts.values() if math.isfinite(float(text)))
        return {epoch: float(np.float32(text) if single else text) for epoch, text in texts.items()}


def columns_of(rows: Sequence[Mapping[str, str]]) -> Curves:
    """The columns of some rows as numbers; ``epoch`` is one of them, for every epoch that has a row."""
    curves: Curves = {}
    for key in dict.fromkeys((row["trainer"], int(row["seed"])) for row in rows):
        selected = [row for row in rows if (row["trainer"], int(row["seed"])) == key]
        curves[key] = {}
        for name in list(selected[0])[2:]:
            curves[key][name] = exact_column({int(row["epoch"]): row[name] for row in selected if row[name]})
    return curves


class MetricsFile:
    """A ``metrics.csv`` open for appending: one row per trainer, seed and epoch. Existing rows are kept.

    Recorders that share the file hold its ``lock`` while they write, so they may run in several threads.

    The first reported epoch determines the columns. When a trainer later reports a metric with a new name,
    the file is rewritten with that column added.

    Raises:
        RecordError: if the file exists and is damaged (see ``recover``).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._rows = [filled(row) for row in read_metrics(path)] if path.exists() else []
        self._columns: list[str] = _columns(self._rows)

    def epochs(self, trainer: str, seed: int) -> list[int]:
        """The epochs with a row for this trainer and seed, in file order."""
        return [int(row["epoch"]) for row in self._rows if (row["trainer"], row["seed"]) == (trainer, str(seed))]

    def rewind(self, trainer: str, seed: int, epoch: int) -> None:
        """Removes the rows of this trainer and seed after ``epoch``."""
        kept = [
            row
            for row in self._rows
            if (row["trainer"], row["seed"]) != (trainer, str(seed)) or int(row["epoch"]) <= epoch
        ]
        if len(kept) < len(self._rows):
            self._rows = kept
            self._rewrite()

    def sort(self, trainers: Sequence[str]) -> None:
        """Sorts the rows by seed, then by trainer in the given order, and the columns by the first row that has them.

        Parallel runs finish in any order. Rows of others, as those in float64, are the last of their seed.
        """
        places = {name: place for place, name in enumerate(trainers)}
        self._rows.sort(key=lambda row: (int(row["seed"]), places.get(row["trainer"], len(places))))
        self._rewrite()

    def _rewrite(self) -> None:
        self._columns = _columns(self._rows)
        if self._rows:
            replace_file(self.path, _csv(self._rows, self._columns, header=True).encode())
        else:
            self.path.unlink(missing_ok=True)

    def row(self, trainer: str, seed: int, record: EpochRecord) -> dict[str, str]:
        """Formats one epoch's row.

        Raises:
            NoVerdictError: if a metric's name cannot be used as a column name.
        """
        for name in record.logs:
            if not is_column(name):
                raise NoVerdictError(
                    f"trainer {trainer} reports a metric called {name!r}, which cannot be used as a column name in "
                    f"{self.path.name}: give it another name"
                )
        row = {"trainer": trainer, "seed": str(seed), "epoch": str(record.epoch)}
        row |= {name: shortest(value) for name, value in record.logs.items()}
        times = _known(record.seconds, 3), _known(record.examples_per_second, 1)
        return filled(row | dict(zip(TIME_COLUMNS, times, strict=True)))

    def extend(self, rows: Sequence[dict[str, str]]) -> None:
        self._rows += rows
        self._rewrite()

    def append(self, row: dict[str, str]) -> None:
        self._rows.append(row)
        if _columns(self._rows) == self._columns:
            append_to_file(self.path, _csv([row], self._columns, header=False).encode())
        else:
            self._rewrite()


def as_cell(name: str) -> str:
    """A name as a cell that spreadsheets show as text: one that they would take for a formula begins with ``'``."""
    return f"'{name}" if re.match(FORMULA, name) else name


def of_cell(cell: str) -> str:
    """The name that ``as_cell`` has written."""
    return cell[1:] if re.match(f"'{FORMULA}", cell) else cell


def filled(row: Mapping[str, str]) -> dict[str, str]:
    """The row without its blank values."""
    return {name: text for name, text in row.items() if text}


def _columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The columns for these rows, with metrics in the order in which they were first reported."""
    names = dict.fromkeys(name for row in rows for name in row)
    metrics = [name for name in names if name not in KEY_COLUMNS + TIME_COLUMNS]
    return [*KEY_COLUMNS, *metrics, *TIME_COLUMNS] if rows else []


def _csv(rows: Sequence[Mapping[str, str]], columns: Sequence[str], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(map(as_cell, columns))
    writer.writerows([as_cell(row["trainer"]), *(row.get(name, "") for name in columns[1:])] for row in rows)
    return text.getvalue()


def read_metrics(path: Path, content: bytes | None = None) -> list[dict[str, str]]:
    """Reads the rows of a ``metrics.csv`` as text; a blank value means missing.

    Args:
        content: what is read in place of the file's, if it is given.

    Raises:
        RecordError: if the file is missing or damaged; the message names the line.
    """
    try:
        text = (read_part(path) if content is None else content).decode("utf-8")
    except UnicodeError as error:
        raise RecordError(path, f"cannot be read ({error})") from None
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [of_cell(cell) for cell in next(lines, [])]
        if tuple(columns[: len(KEY_COLUMNS)]) != KEY_COLUMNS or tuple(columns[-len(TIME_COLUMNS) :]) != TIME_COLUMNS:
            raise RecordError(path, "line 1 is not the header of a metrics.csv")
        if len(set(columns)) != len(columns):
            raise RecordError(path, "line 1 names a column twice")
        rows: list[dict[str, str]] = []
        seen: set[tuple[str, int, int]] = set()
        for values in lines:
            where = f"line {lines.line_num}"
            if len(values) != len(columns):
                raise RecordError(path, f"{where} has {len(values)} values for {len(columns)} columns")
            row = dict(zip(columns, [of_cell(values[0]), *values[1:]], strict=True))
            if not (row["trainer"] and _is_count(row["seed"], 0) and _is_count(row["epoch"], 1)):
                raise RecordError(path, f"{where} does not name a trainer, seed and epoch")
            key = row["trainer"], int(row["seed"]), int(row["epoch"])
            if key in seen:
                raise RecordError(path, f"{where} repeats an epoch of {row['trainer']!r}")
            seen.add(key)
            for name in columns[len(KEY_COLUMNS) :]:
                if row[name] and as_number(row[name]) is None:
                    raise RecordError(path, f"{where}, column {name!r}: {row[name]!r} is not a number")
            rows.append(row)
    except csv.Error as error:
        raise RecordError(path, f"line {lines.line_num}: {error}") from None
    if not text.endswith("\n"):
        raise RecordError(path, "the last line is incomplete")
    return rows


def _is_count(text: str, least: int) -> bool:
    return text.isdecimal() and len(text) < 19 and int(text) >= least


def as_number(text: str) -> float | None:
    """The number that a text is, as programs write it; None if it is none."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
