#!/usr/bin/env python3
"""Measures the short check on loops in many styles: whether correct loops pass and bugs are named correctly.

Checks every loop of tests/styles. Writes styles.csv, a row per check, and finally styles.md with the tables. A second
call continues where the first one stopped. Everything together takes about an hour; --only and --sample select a part.
"""

from __future__ import annotations

import datetime
import gc
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

from scripts import measure, tables  # noqa: E402

KEY = ["style", "experiment", "replicas", "fault"]
FIELDS = [*KEY, "kind", "verdict", "causes", "allowed", "seconds", "date"]
RIGHT = ["identical", "alike"]


def main() -> None:
    import corpus  # TensorFlow itself only starts in the processes of the cells

    parser = measure.parser(__doc__, "reports/detector")
    text = "check only loops whose names contain all these words"
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help=text)
    parser.add_argument("--sample", type=int, metavar="N", help="check N loops that are as different as possible")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "styles.csv"
    done = set(tables.read(path, FIELDS)[KEY].itertuples(index=False, name=None))
    loops = corpus.cells() if options.sample is None else corpus.sample(options.sample)
    cells = [cell for cell in loops if all(word in cell.name for word in options.only)]
    todo = [cell for cell in cells if key(cell) not in done]
    for _, group in groupby(sorted(todo, key=task), task):
        measure.call_in_process(run_cells, path, list(group))
    (options.out / "styles.md").write_text(page(tables.read(path, FIELDS)), encoding="utf-8")
    print(options.out / "styles.md")


def key(cell: Any) -> tuple[str, str, str, str]:
    return cell.style, cell.experiment, str(cell.replicas), cell.fault or ""


def task(cell: Any) -> tuple[str, int]:
    return cell.experiment, cell.replicas


def run_cells(path: Path, cells: list[Any]) -> None:
    """Runs the checks of one experiment on one number of replicas, with one reference for all."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import compare

    compare.configure(replicas=2)
    from compare.check import Checker
    from compare.engine import strategies
    from compare.trainers.keras_fit import KerasFit

    checker = None
    for cell in cells:
        experiment, trainer = cell.build()
        if checker is None:
            strategy = strategies.make("mirrored", cell.replicas)
            checker = Checker(experiment, KerasFit(), strategy, batch_size=cell.batch_size)
            gc.freeze()  # Keras collects garbage whenever a model is built
        row = dict(zip(KEY, key(cell), strict=True)) | {"kind": cell.kind, "allowed": " ".join(cell.allowed)}
        row["date"] = datetime.date.today().isoformat()
        try:
            report = checker.look_inside(checker.check(trainer), trainer)
            row |= {"verdict": report.verdict, "causes": " ".join(finding.id for finding in report.findings)}
            row["seconds"] = f"{report.seconds:.1f}"
        except Exception as error:
            row |= {"verdict": "raised", "causes": type(error).__name__}
        tables.append(path, row, FIELDS)
        if not good(row):
            print(row, flush=True)
    print(*task(cells[0]), f"{len(cells)} checks", flush=True)


def caught(row: dict[str, str] | pd.Series) -> bool:
    """Returns whether a correct loop passed, or a faulty one was called different."""
    return row["verdict"] in RIGHT if row["kind"] == "correct" else row["verdict"] == "different"


def wrong_cause(row: dict[str, str] | pd.Series) -> bool:
    return bool(set(row["causes"].split()) - set(row["allowed"].split()))


def right_cause(row: dict[str, str] | pd.Series) -> bool:
    return bool(set(row["causes"].split()) & set(row["allowed"].split()))


def good(row: dict[str, str] | pd.Series) -> bool:
    return caught(row) and not wrong_cause(row)


def page(rows: pd.DataFrame) -> str:
    """All tables as Markdown."""
    judgements = {check.__name__: rows.apply(check, axis=1) for check in (caught, wrong_cause, right_cause, good)}
    rows = rows.assign(**judgements)
    correct, faulty = rows[rows["kind"] == "correct"], rows[rows["kind"] != "correct"]
    nameable = faulty[faulty["allowed"] != ""]
    shares = [
        ("Correct loops", len(correct), "called identical or alike", share(correct["good"])),
        ("Faulty loops", len(faulty), "called different", share(faulty["caught"])),
        ("Faulty loops whose cause has a name", len(nameable), "named", share(nameable["right_cause"])),
        ("All", len(rows), "with a wrong cause", share(rows["wrong_cause"])),
    ]
    seconds = tables.numbers(rows["seconds"])
    lines = [
        "# Loops in any style",
        "",
        f"{len(rows)} checks of {' to '.join(sorted({rows['date'].min(), rows['date'].max()}))}, a row each in "
        "`styles.csv`, generated by `python scripts/styles.py`: the loops of `tests/corpus`, correct and faulty, in "
        f"{rows['style'].nunique()} styles, on {rows['experiment'].nunique()} experiments, with 1 and 2 replicas. "
        "Their authors had not seen the check. A row is of its date: what was judged rightly is not checked again "
        "whenever the check changes.",
        "",
        tables.markdown(pd.DataFrame(shares, columns=["", "checks", "result", "share"])),
        "",
        f"The median time of a check was {seconds.quantile(0.5, interpolation='higher'):.1f} s and the longest "
        f"{seconds.max():.0f} s, with the reference of each experiment counted once.",
        "",
        "Checks that missed a bug, rejected a correct loop, raised or named a wrong cause:",
        "",
        *([f"- {describe(row)}" for _, row in rows[~rows["good"]].iterrows()] or ["none."]),
        "",
        "## Correct loops by style",
        "",
        tables.markdown(verdicts(correct, "style")),
        "",
        "## Correct loops by experiment",
        "",
        tables.markdown(verdicts(correct, "experiment")),
        "",
        "## Faulty loops by fault",
        "",
        tables.markdown(faults(faulty)),
        "",
    ]
    return "\n".join(lines)


def describe(row: pd.Series) -> str:
    cell = f"{row['style']}, {row['experiment']}, {row['replicas']} replica(s), {row['fault'] or 'correct'}"
    return f"{cell}: {row['verdict']}, causes {row['causes'] or 'none'}"


def share(holds: pd.Series) -> str:
    return f"{holds.sum()} of {len(holds)}"


def verdicts(rows: pd.DataFrame, field: str) -> pd.DataFrame:
    counts = pd.crosstab(rows[field], rows["verdict"]).reindex(columns=RIGHT, fill_value=0)
    counts.insert(0, "checks", rows.groupby(field).size())
    return counts.reset_index()


def faults(rows: pd.DataFrame) -> pd.DataFrame:
    grouped = rows.groupby("fault")
    table = {
        "checks": grouped.size(),
        "different": grouped["caught"].agg(share),
        "causes named": grouped["causes"].agg(tables.most_common),
        "causes allowed": grouped["allowed"].first().replace("", "none"),
    }
    return pd.DataFrame(table).reset_index()


if __name__ == "__main__":
    main()
