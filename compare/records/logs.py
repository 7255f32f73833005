"""Reads what trainings elsewhere have logged: CSV files, TensorBoard folders, and our own ``metrics.csv``."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from compare.errors import RequestError
from compare.naming import shown_path
from compare.records.event_files import event_files, read_scalars
from compare.records.metrics_csv import (
    KEY_COLUMNS,
    TIME_COLUMNS,
    as_number,
    columns_of,
    exact_column,
    is_column,
    read_metrics,
)
from compare.records.model import RecordError, read_file
from compare.records.reader import read_rows

ACCURACY = ("accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy")
"""What Keras calls the fraction of correct examples: ``accuracy`` stands for one of the others, by the loss."""
PREFIXES = {"train_": "", "training_": "", "val_": "val_", "valid_": "val_", "validation_": "val_", "eval_": "val_",
            "test_": "val_"}  # fmt: skip
"""How loops call the numbers of training and of validation, and what fit calls them."""
FOLDERS = {"": "", "train": "", "training": "", "val": "val_", "valid": "val_", "validation": "val_", "eval": "val_",
           "test": "val_"}  # fmt: skip
"""The subfolders of a TensorBoard log, and how fit calls what is in them."""
TIMES = re.compile(
    r"((epoch|step|train|training|total|wall|elapsed|run)_?)?(seconds|secs?|time|duration|elapsed|date|timestamp)"
    r"(_elapsed)?(_s|_\(s\))?|(epoch_)?(examples|samples|images|steps|batches)_per_(second|sec|s)|seed|trainer"
    r"|(global_)?(step|iteration)s?"
)
"""The columns that say when, not how well."""
MISSING = ("", "NA", "N/A", "None", "null", "-")
"""What stands for a missing value; ``NA`` is that of ``CSVLogger``."""
MOST_EPOCHS = 1_000_000
"""The largest epoch, as for ``--epochs``."""
EPOCH_TAGS = ("epoch_", "epoch/")
"""How the tags of numbers per epoch begin: those of Keras's ``TensorBoard``, and our own."""


@dataclass(frozen=True)
class Log:
    """What one training has logged.

    Attributes:
        source: where it was read, as the user gave it.
        seed: its seed, if the log names one; else None.
        epochs: for each epoch, counted from 1, the metrics under the names that fit gives them.
        seconds: for each epoch whose time is known, its duration in seconds.
        renamed: the names that were changed, with the new ones.
        left_out: the columns that hold no metric.
    """

    source: Path
    name: str
    seed: int | None
    epochs: Mapping[int, Mapping[str, float]]
    seconds: Mapping[int, float] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()


def read_log(path: Path) -> list[Log]:
    """The logs in a CSV file: one, or one for each trainer and seed of a ``metrics.csv``.

    Raises:
        RequestError: if it cannot be read as such.
    """
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        remedy = "; save it in UTF-8" * isinstance(error, UnicodeDecodeError)
        raise RequestError(f"{path}: not a CSV file that can be read ({error}){remedy}") from None
    if text.lstrip().startswith(("{", "[")):
        raise RequestError(f"{path}: this is JSON; give a CSV file, such as Keras's CSVLogger writes")
    if tuple(text.partition("\n")[0].strip().split(",")[: len(KEY_COLUMNS)]) == KEY_COLUMNS:
        return _of_metrics_csv(path)
    rows = list(_rows(path, text))
    if not rows:
        raise RequestError(f"{path}: there is no epoch in it")
    epochs = _epochs(path, rows)
    columns = [name for name in rows[0] if name != "epoch" and not _is_time(name)]
    left_out = [name for name in rows[0] if name not in (*columns, "epoch", "seconds")]
    metrics: dict[str, dict[int, float]] = {}
    for name in columns:
        texts = {epoch: row[name] for epoch, row in zip(epochs, rows, strict=True)}
        known = {epoch: value for epoch, value in texts.items() if value not in MISSING}
        numbers = {epoch: as_number(value) for epoch, value in known.items()}
        wrong = [value for epoch, value in known.items() if numbers[epoch] is None]
        if len(wrong) == len(known):
            left_out.append(name)
        elif wrong:
            raise RequestError(f"{path}: {wrong[0]!r} in the column {name!r} is not a number")
        else:
            metrics[name] = exact_column(known)
    seconds = {epoch: as_number(row.get("seconds", "")) for epoch, row in zip(epochs, rows, strict=True)}
    known_seconds = {epoch: value for epoch, value in seconds.items() if value is not None}
    name = shown_path(path.stem)
    return [_log(path, name, None, metrics, epochs, known_seconds, left_out)]


MOST_COLUMNS = 1000
"""Of a log; each is a column of the table and a chart."""
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
"""A number as spreadsheets write it in many languages."""


def _rows(path: Path, text: str) -> Iterator[dict[str, str]]:
    """The rows of a CSV file by column; the separator is taken from the header, which blank lines may precede."""
    text = text.lstrip("\r\n")
    header = text.partition("\n")[0]
    separator = max(",;\t|", key=header.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        columns = [re.sub("(?i)^epoch$", "epoch", column.strip()) for column in next(lines, [])]
        if len(set(columns)) < len(columns):
            raise RequestError(f"{path}: the header names a column twice")
        if len(columns) > MOST_COLUMNS:
            raise RequestError(
                f"{path}: it has {len(columns):,} columns; keep those to compare, {MOST_COLUMNS:,} at most"
            )
        if columns and all(as_number(column) is not None for column in columns):
            raise RequestError(f"{path}: the first line is no header with the names of the columns")
        for row in filter(None, lines):
            if len(row) != len(columns) and len(columns) == 1:
                raise RequestError(
                    f"{path}: it is not a CSV log, whose first line has the names of the columns, such as "
                    "epoch,loss,val_loss"
                )
            if len(row) != len(columns):
                raise RequestError(f"{path}: line {lines.line_num} has {len(row)} values for {len(columns)} columns")
            values = [value.strip() for value in row]
            if separator != ",":
                values = [value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value for value in values]
            yield {name: value for name, value in zip(columns, values, strict=True) if name}
    except csv.Error as error:
        raise RequestError(f"{path}: line {lines.line_num}: {error}") from None


def _epochs(path: Path, rows: Sequence[Mapping[str, str]]) -> list[int]:
    """The epochs of the rows, counted from 1; without such a column, the rows in order."""
    if "epoch" not in rows[0]:
        return list(range(1, len(rows) + 1))
    epochs = []
    for row in rows:
        number = as_number(row["epoch"])
        if number is None or not number.is_integer():
            raise RequestError(f"{path}: {row['epoch']!r} in the column 'epoch' is not a whole number")
        epochs.append(int(number))
    return _from_one(path, epochs)


def _from_one(source: Path, epochs: Sequence[int]) -> list[int]:
    """Epochs counted from 0, as Keras's callbacks do, or from 1, as epochs counted from 1."""
    first = min(epochs)
    if first not in (0, 1):
        raise RequestError(f"{source}: it begins with epoch {first}; give a log that begins with epoch 0 or 1")
    if max(epochs) > MOST_EPOCHS:
        raise RequestError(f"{source}: the largest epoch is {MOST_EPOCHS:,}, not {max(epochs)}")
    for before, epoch in pairwise(sorted(epochs)):
        if before == epoch:
            raise RequestError(
                f"{source}: epoch {epoch} occurs twice, so it holds several trainings: give each a log of its own"
            )
    return [epoch + 1 - first for epoch in epochs]


def _of_metrics_csv(path: Path) -> list[Log]:
    """The trainings in a ``metrics.csv`` of ours."""
    try:
        ours = path.name == "metrics.csv" and (path.parent / "run.json").is_file()
        rows = read_rows(path.parent) if ours else read_metrics(path)  # a run's are verified
    except RecordError as error:
        raise RequestError(f"{error}") from None
    logs = []
    for (trainer, seed), columns in columns_of(rows).items():
        metrics = {n: values for n, values in columns.items() if values and n not in KEY_COLUMNS + TIME_COLUMNS}
        logs.append(_log(path, shown_path(trainer), seed, metrics, list(columns["epoch"]), columns["seconds"]))
    if not logs:
        raise RequestError(f"{path}: there is no epoch in it")
    return logs


# TensorBoard folders


def read_event_files(folder: Path) -> Log:
    """The scalars per epoch in a folder of TensorBoard, with subfolders as Keras and the guides write them."""
    found: dict[str, dict[int, float]] = {}
    for sub, prefix in FOLDERS.items():
        if not event_files(folder / sub):
            continue
        scalars = read_scalars(folder / sub)
        of_epochs = {tag: steps for tag, steps in scalars.items() if tag.startswith(EPOCH_TAGS)}
        for tag, steps in (of_epochs or scalars).items():
            name = tag[len(EPOCH_TAGS[0]) :] if tag.startswith(EPOCH_TAGS) else tag
            if _is_time(name):
                continue
            found[name if name.startswith("val_") else prefix + name] = steps
    if not found:
        raise RequestError(f"{folder}: there is no scalar in its event files")
    numbers = sorted(set().union(*found.values()))
    epochs = dict(zip(numbers, _from_one(folder, numbers), strict=True))
    metrics = {name: {epochs[step]: value for step, value in values.items()} for name, values in found.items()}
    return _log(folder, shown_path(folder.resolve().name), None, metrics, list(epochs.values()))


# Names of metrics


def _log(
    source: Path,
    name: str,
    seed: int | None,
    metrics: Mapping[str, Mapping[int, float]],
    epochs: Sequence[int],
    seconds: Mapping[int, float] | None = None,
    left_out: Sequence[str] = (),
) -> Log:
    """A log with its metrics under the names that fit gives them."""
    if not metrics:
        whose = "" if name in str(source) else f" of {name}"
        raise RequestError(f"{source}: there is no column with numbers{whose}, such as loss or val_loss")
    names = {metric: fit_name(metric) for metric in metrics}
    for metric, new in list(names.items()):
        if new != metric and (new in metrics or list(names.values()).count(new) > 1):
            names[metric] = metric  # two metrics would have one name
    if unusable := next((metric for metric, new in names.items() if not is_column(new)), None):
        raise RequestError(f"{source}: {unusable!r} cannot be the name of a column in metrics.csv: rename it")
    by_epoch = {
        epoch: {names[metric]: values[epoch] for metric, values in metrics.items() if epoch in values}
        for epoch in sorted(epochs)
    }
    renamed = {metric: new for metric, new in names.items() if new != metric}
    known = {epoch: value for epoch, value in (seconds or {}).items() if math.isfinite(value)}
    return Log(source, name, seed, by_epoch, known, renamed, left_out)


def _is_time(name: str) -> bool:
    return TIMES.fullmatch(name.strip().lower().replace(" ", "_")) is not None


def fit_name(name: str) -> str:
    """What fit calls a metric: ``val_accuracy`` for ``test_acc`` or ``val_sparse_categorical_accuracy``."""
    plain = name.strip().lower().replace(" ", "_")
    prefix, metric = next(
        ((new, plain.removeprefix(old)) for old, new in PREFIXES.items() if plain.startswith(old)), ("", plain)
    )
    if metric in ACCURACY:
        return f"{prefix}accuracy"
    return f"{prefix}{metric}" if prefix or metric == "loss" else name.strip()
