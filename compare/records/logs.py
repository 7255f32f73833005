"""Reads what trainings elsewhere have logged: CSV files, TensorBoard folders, and our own ``metrics.csv``."""

from __future__ import annotations

import csv
import glob
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from compare.errors import RequestError
from compare.naming import distinct, refuse_unreadable, shown_path
from compare.records.event_files import event_files, read_scalars
from compare.records.metrics_csv import (
    KEY_COLUMNS,
    TIME_COLUMNS,
    as_number,
    columns_of,
    exact_column,
    is_column,
    is_float32,
    read_metrics,
    shortest,
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


def read_sides(wanted: Sequence[str]) -> dict[str, list[Log]]:
    """The logs of every training that is to be compared, by name, one log per seed; the reference comes first.

    Logs whose names differ only in a number are seeds of one training, if every training has several, or if it is the
    number of a seed by its name.

    Args:
        wanted: files, folders and patterns; a folder may hold the logs of several seeds.

    Raises:
        RequestError: if there is no log, it cannot be read, or there are fewer than two trainings.
    """
    arguments = [_logs_at(text) for text in wanted]
    for logs in arguments if len(arguments) > 1 else ():
        if len(names := _by_name(logs)) > 1:
            raise RequestError(
                f"{logs[0].source}: it holds the trainings {' and '.join(names)}; give it alone, or give logs "
                "of one training each"
            )
    sides = _grouped(arguments)
    if len(sides) < 2:
        raise RequestError(
            f"{' '.join(wanted)}: that is one training, {next(iter(sides))}; give the log to compare it with as well"
        )
    sides = _of_one_type(sides)
    seeds = [{log.seed for log in logs} for logs in sides.values()]
    if max(map(len, seeds)) == 1:
        return {name: [replace(log, seed=0)] for name, (log,) in sides.items()}
    for name, own in list(zip(sides, seeds, strict=True))[1:]:
        if len(seeds[0] & own) < 2:
            reference = next(iter(sides))
            raise RequestError(
                f"{reference} has {_listed(seeds[0])}, and {name} has {_listed(own)}; a study needs at least two seeds "
                "of both, the same numbers in the names of both logs"
            )
    return sides


def _of_one_type(sides: Mapping[str, list[Log]]) -> dict[str, list[Log]]:
    """The same with every metric as float64 that has more digits than a float32 somewhere: equal texts are equal."""
    values = [
        each for logs in sides.values() for log in logs for numbers in log.epochs.values() for each in numbers.items()
    ]
    wide = {name for name, value in values if not is_float32(value)}

    def alike(log: Log) -> Log:
        rows = log.epochs.items()
        epochs = {i: {k: float(shortest(v)) if k in wide else v for k, v in numbers.items()} for i, numbers in rows}
        return replace(log, epochs=epochs)

    return {name: list(map(alike, logs)) for name, logs in sides.items()}


def _listed(seeds: set[int | None]) -> str:
    known = sorted(seed for seed in seeds if seed is not None)
    return f"the seeds {', '.join(map(str, known))}" if len(known) > 1 else "one log"


def _grouped(arguments: Sequence[Sequence[Log]]) -> dict[str, list[Log]]:
    if any(len(logs) > 1 for logs in arguments):  # folders, patterns, and files with several trainings
        groups = [list(each) for logs in arguments for each in _by_name(logs).values()]
        return _named([_with_seeds(logs) for logs in groups])
    logs = [log for (log,) in arguments]
    _refuse_two_numbers(logs)
    sides = _by_name([replace(log, name=_training_of(log)) for log in logs])
    if len(sides) == 1:  # names that differ only in a number: then folders tell the trainings apart
        sides = _by_name([replace(log, name=str(_folder_of(log))) for log in logs])
    several = [side for side in sides.values() if len(side) > 1]
    if len(sides) > 1 and (len(several) == len(sides) or any(all(map(_is_seed, side)) for side in several)):
        return _named([_with_seeds(side) for side in sides.values()])
    return _named([[replace(log, seed=0)] for log in logs])


def _by_name(logs: Sequence[Log]) -> dict[str, list[Log]]:
    groups: dict[str, list[Log]] = {}
    for log in logs:
        groups.setdefault(log.name, []).append(log)
    return groups


def _named(sides: Sequence[list[Log]]) -> dict[str, list[Log]]:
    """The trainings under different names: those of their folders if the files have the same name."""
    names = [os.path.basename(side[0].name) for side in sides]
    if len(set(names)) < len(names):
        parents = [side[0].source.resolve().parent.name for side in sides]
        names = parents if len(set(parents)) == len(parents) and all(parents) else names
    different: dict[str, list[Log]] = {}
    for name, side in zip(names, sides, strict=True):
        different[distinct(name, different)] = side
    return different


def _with_seeds(logs: Sequence[Log]) -> list[Log]:
    """The logs of one training with their seeds: the numbers in their names, else in their paths, else in order."""
    if len(logs) == 1 or all(log.seed is not None for log in logs):
        return [replace(log, seed=log.seed or 0) for log in logs]
    for numbers in (
        [found[1] if (found := _number_in(log.source.stem)) else "" for log in logs],
        [_last_number(log.source.parent) for log in logs],
        [_last_number(log.source) for log in logs],
    ):
        if all(numbers) and len({*map(int, numbers)}) == len(logs):
            return [replace(log, seed=int(number)) for log, number in zip(logs, numbers, strict=True)]
    return [replace(log, seed=number) for number, log in enumerate(logs)]


def _number_in(name: str) -> re.Match[str] | None:
    """Where the number of a seed is in a log's name: after ``seed`` or ``run``, or else the only one, or at the end."""
    found = [*re.finditer(r"(?i)[-_. ([]*(?:seed|run)?[-_. ]*(\d+)[])]*", name)]
    named = [each for each in found if re.search("(?i)seed|run", each[0])]
    at_end = found if len(found) == 1 else found[-1:] if re.search(r"\d$", name) else []
    return next(iter(named or at_end), None)


def _last_number(path: Path) -> str:
    return "".join(re.findall(r"\d+", str(path))[-1:])


def _without_number(name: str) -> str:
    """A log's name without its seed: ``fit`` for ``fit-0``, ``fit_seed3`` and ``seed3_fit``; empty for a seed alone."""
    found = _number_in(name)
    return name if found is None else f"{name[: found.start()]}{name[found.end() :]}".strip("-_. ")


def _is_seed(log: Log) -> bool:
    """Whether a log's name says that its number is a seed, or is that number alone."""
    return "seed" in log.source.stem.lower() or not _without_number(log.source.stem)


def _folder_of(log: Log) -> Path:
    return log.source.resolve().parent


def _training_of(log: Log) -> str:
    """The name of a log without its seed; where it is only a seed, the folder, unless that is one, too."""
    in_seed = re.fullmatch(r"(?i)[-_. ]*seed[-_. ]*\d+", _folder_of(log).name)
    return _without_number(log.name) or (log.name if in_seed else str(_folder_of(log)))


def _refuse_two_numbers(logs: Sequence[Log]) -> None:
    """Refuses logs of which nothing tells whether their own number is the seed or that of their folder."""
    named = [log for log in logs if _training_of(log) == str(_folder_of(log)) and "seed" not in log.name.lower()]
    folders, names = {_folder_of(log).name for log in named}, {log.name for log in named}
    if len(names) > 1 and len(folders) > 1 and len({*map(_without_number, folders)}) == 1:
        raise RequestError(
            f"{named[0].source}: is the number of the file the seed, or that of its folder? give a folder or a pattern "
            "in quotes for each training"
        )


def _logs_at(text: str) -> list[Log]:
    """The logs in a file or folder, or in those that match a pattern."""
    path = Path(text)
    refuse_unreadable(path)
    if os.path.isdir(path):
        return _in_folder(path)
    if os.path.exists(path):
        return _of_file(path)
    matches = sorted(map(Path, glob.glob(text)), key=_natural)
    if not matches:
        raise RequestError(f"{text}: there is no such file or folder")
    logs = [log for match in matches for log in (_in_folder(match) if match.is_dir() else _of_file(match))]
    head = re.split(r"\.csv$|[*?[]", path.name)[0]  # a number before ``-*`` is no seed
    name = _without_number(head) if head[-1:].isdigit() else head.rstrip("-_. ")
    return _as_one(logs, os.path.basename(name or _training_of(logs[0])))


def _in_folder(folder: Path) -> list[Log]:
    """The log or logs in a folder: a run's, a TensorBoard log, or one per seed."""
    if (folder / "run.json").is_file() and (folder / "metrics.csv").is_file():
        return _of_file(folder / "metrics.csv")
    if any(event_files(folder / sub) for sub in FOLDERS):
        return [_of_event_files(folder)]
    found = [path for path in folder.iterdir() if path.suffix == ".csv" or path.is_dir()]
    found = [path for path in found if path.is_file() or any(event_files(path / sub) for sub in FOLDERS)]
    if not found:
        raise RequestError(f"{folder}: there is no log in it (a .csv file, or event files of TensorBoard)")
    logs = []
    for path in sorted(found, key=_natural):
        logs += _in_folder(path) if path.is_dir() else _of_file(path)
    stems = _by_name([replace(log, name=_without_number(log.name)) for log in logs])
    if len(stems) > 1:
        raise RequestError(
            f"{folder}: it holds logs of several trainings ({', '.join(stems)}); a folder is one training, with "
            "a log per seed: give the logs one by one"
        )
    return _as_one(logs, folder.resolve().name)


def _as_one(logs: Sequence[Log], name: str) -> list[Log]:
    """Several logs as the seeds of one training."""
    if len(logs) == 1 and _without_number(logs[0].name):
        return list(logs)
    return _with_seeds([replace(log, name=shown_path(name), seed=None) for log in logs])


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts ``fit-2`` before ``fit-10``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]


# CSV files


def _of_file(path: Path) -> list[Log]:
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: not a CSV file that can be read ({error})") from None
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


def _of_event_files(folder: Path) -> Log:
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
        raise RequestError(f"{source}: there is no column with numbers, such as loss or val_loss")
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
    if metric == "loss":
        return f"{prefix}loss"
    return f"{prefix}{metric}" if prefix else name.strip()
