"""Which logs belong to one training, and which seed each is of, by the names of files and folders."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compare.errors import RequestError
from compare.naming import distinct, given_path, refuse_unreadable, shown_path
from compare.records.event_files import event_files
from compare.records.logs import FOLDERS, Log, read_event_files, read_log
from compare.records.metrics_csv import is_float32, shortest

MOST = 2**63
"""A seed is below this number, so that it fits a column of int64."""


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
    files = Counter(source for logs in arguments for source in {log.source.resolve() for log in logs})
    for source in (source for source, count in files.items() if count > 1):
        raise RequestError(f"{source}: it is given twice; give the logs of two trainings")
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
        folders = (_folder_of(log).parent if _in_seed(log) else _folder_of(log) for log in logs)
        sides = _by_name([replace(log, name=str(folder)) for log, folder in zip(logs, folders, strict=True)])
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
        seeds = [*map(int, numbers)] if all(numbers) else []
        counted = Counter(seeds)
        for seed in (each for each in counted if counted[each] > 1 and len(set(numbers)) == len(logs)):
            one, two, *_ = (log.source for log, own in zip(logs, seeds, strict=True) if own == seed)
            raise RequestError(
                f"{one}: it is of seed {seed}, and so is {two.name}; rename one of them, or leave it out"
            )
        if any(seed >= MOST for seed in counted):
            raise RequestError(f"{logs[0].source}: the number in a log's name is its seed, and must be below {MOST:,}")
        if len(counted) == len(logs):
            return [replace(log, seed=seed) for log, seed in zip(logs, seeds, strict=True)]
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
    return _without_number(log.name) or (log.name if _in_seed(log) else str(_folder_of(log)))


def _in_seed(log: Log) -> bool:
    """Whether a log's folder is that of a seed."""
    return re.fullmatch(r"(?i)[-_. ]*seed[-_. ]*\d+", _folder_of(log).name) is not None


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
    path = given_path(text)
    refuse_unreadable(path)
    if os.path.exists(path):
        return _read(path)
    matches = sorted(map(Path, glob.glob(text)), key=_natural)
    if not matches:
        raise RequestError(f"{text}: there is no such file or folder")
    logs = [log for match in matches for log in _read(match)]
    head = re.split(r"\.csv$|[*?[]", path.name)[0]  # a number before ``-*`` is no seed
    name = _without_number(head) if head[-1:].isdigit() else head.rstrip("-_. ")
    return _as_one(logs, os.path.basename(name or _training_of(logs[0])))


def _read(path: Path) -> list[Log]:
    return _in_folder(path) if path.is_dir() else read_log(path)


def _in_folder(folder: Path) -> list[Log]:
    """The log or logs in a folder: a run's, a TensorBoard log, or one per seed."""
    if (folder / "run.json").is_file() and (folder / "metrics.csv").is_file():
        return read_log(folder / "metrics.csv")
    if any(event_files(folder / sub) for sub in FOLDERS):
        return [read_event_files(folder)]
    found = [path for path in folder.iterdir() if path.suffix == ".csv" or path.is_dir()]
    found = [path for path in found if path.is_file() or any(event_files(path / sub) for sub in FOLDERS)]
    if not found:
        raise RequestError(f"{folder}: there is no log in it (a .csv file, or event files of TensorBoard)")
    logs = [log for path in sorted(found, key=_natural) for log in _read(path)]
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
