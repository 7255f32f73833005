"""The content of a run's files, read once for its page and its charts; imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from compare.records.metrics_csv import KEY_COLUMNS, TIME_COLUMNS, Curves, Values, columns_of
from compare.records.model import RecordError
from compare.records.reader import has_records, read_costs, read_numbers, read_rows
from compare.records.run_json import read_run
from compare.reporting.sentences import worst_first
from compare.verdict.model import Comparison, Verdict


def word_of(run: Mapping[str, Any], verdict: Verdict | None) -> str:
    """A run's verdict; without one, ``failed`` if one of its scripts did, or ``unfinished``."""
    failed = run["options"].get("scripts") and any(each["side"] for each in run.get("failures", ()))
    return "failed" if failed else verdict.verdict if verdict else "unfinished"


@dataclass(frozen=True)
class RunFiles:
    """The content of a run's files, None or empty without one, with the values that are derived from several of them.

    ``rows`` are those of ``metrics.csv``, ``costs`` those of each trainer's first training, ``noise`` the curves of the
    noise twins of each candidate that has some.
    """

    folder: Path
    run: Mapping[str, Any]
    verdict: Verdict | None
    rows: Sequence[Mapping[str, str]]
    costs: Mapping[str, Mapping[str, Any]]
    noise: Sequence[Curves]

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(self.run["options"])

    @property
    def verdict_word(self) -> str:
        """The overall verdict, ``failed`` or ``unfinished``."""
        return word_of(self.run, self.verdict)

    @property
    def scope(self) -> str:
        """``run``, or ``check`` for the short check."""
        return self.verdict.scope if self.verdict else "run"

    @property
    def interrupted(self) -> bool:
        return self.verdict is not None and self.verdict.interrupted

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The comparisons, the worst verdict first."""
        return worst_first(self.verdict)

    @property
    def trainers(self) -> list[str]:
        """The names of the trainers that were to be compared."""
        return list(self.run.get("trainers") or self.options["trainers"])

    @cached_property
    def names(self) -> list[str]:
        """The names of all that was trained, the reference first."""
        names = self.trainers
        only_rows = bool(self.verdict) and bool(self.rows) and not self.comparisons
        reported = [*(row["trainer"] for row in self.rows), *(each.candidate for each in self.comparisons)]
        if not only_rows:
            names += [name for name in dict.fromkeys(reported) if name not in names]
        reference = self.verdict.reference if self.verdict else names[0]
        return [reference, *(name for name in names if name != reference)]

    @cached_property
    def columns(self) -> list[str]:
        return [name for name in (self.rows[0] if self.rows else {}) if name not in KEY_COLUMNS + TIME_COLUMNS]

    @cached_property
    def other_names(self) -> dict[tuple[str, str], str]:
        """By trainer and column, the other name under which that trainer reported what the reference did."""
        compared = [(each.candidate, each.reporting.metrics) for each in self.comparisons if not each.against]
        return {(who, name): gap.reported_as for who, gaps in compared for name, gap in gaps.items() if gap.reported_as}

    @cached_property
    def metrics(self) -> list[str]:
        """The names of the metrics without ``val_``, the loss first."""
        metrics = dict.fromkeys(name.removeprefix("val_") for name in self.columns)
        return sorted(metrics, key=lambda name: name != "loss")

    @cached_property
    def tested(self) -> list[str]:
        tests = [test for each in self.comparisons if each.study for test in each.study.tests]
        return list(dict.fromkeys(test.metric for test in tests))

    @cached_property
    def curves(self) -> Curves:
        """The columns of ``metrics.csv`` as numbers, by trainer and seed; records know their float types."""
        curves = columns_of(self.rows)
        for key, epochs in read_numbers(self.folder).items():
            for epoch, numbers in epochs.items():
                for name, value in numbers.items():
                    curves[key][name][epoch] = value
        return curves

    def values(self, trainer: str, column: str) -> dict[int, Values]:
        """The values of one column of ``curves`` by seed, of the seeds for which the trainer has some."""
        own = {seed: columns.get(column) for (who, seed), columns in self.curves.items() if who == trainer}
        return {seed: values for seed, values in own.items() if values}

    @cached_property
    def seeds(self) -> int:
        return len({row["seed"] for row in self.rows})

    @cached_property
    def epochs(self) -> int:
        """The last epoch in ``metrics.csv``; 1 if there is none."""
        return max((int(row["epoch"]) for row in self.rows), default=1)

    @cached_property
    def finished_epochs(self) -> dict[str, int]:
        """By trainer, the last epoch that it finished with every seed it was trained with."""
        finished: dict[str, int] = {}
        for (trainer, _), columns in self.curves.items():
            last = max(columns["epoch"])
            finished[trainer] = min(finished.get(trainer, last), last)
        return finished


def sources(folder: Path) -> list[str]:
    """The files and folders from which a run's pages are drawn, as far as they are there."""
    names = [name for name in ("run.json", "verdict.json", "metrics.csv") if (folder / name).is_file()]
    names += ["records"] * has_records(folder)
    return [*names, *["twins"] * any(folder.glob("twins/*/metrics.csv"))]


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turns the error to which values of another kind in a run's JSON files lead into a ``RecordError``."""
    try:
        yield
    except RecordError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, jinja2.TemplateError) as error:
        problem = f"run.json or verdict.json is damaged ({type(error).__name__}: {error})"
        raise RecordError(folder, problem) from error


def verdict_of(folder: Path) -> Verdict | None:
    """The verdict of a run; None if there is none yet."""
    with usable(folder):
        return Verdict.read(folder / "verdict.json") if (folder / "verdict.json").exists() else None


def read(folder: Path) -> RunFiles:
    twins = [read_rows(path.parent) for path in sorted(folder.glob("twins/*/metrics.csv"))]
    noise = [columns_of(rows) for rows in twins if rows]
    return RunFiles(folder, read_run(folder), verdict_of(folder), read_rows(folder), read_costs(folder), noise)
