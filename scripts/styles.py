#!/usr/bin/env python3
"""Whether right loops are let pass and wrong ones blamed rightly, in whatever style they are written.

Checks every loop of ``tests/styles`` and writes reports/detector/styles.csv, a row per check, as it goes; goes on
where it stopped; and in the end reports/detector/styles.md, the tables. All of it takes about an hour; --only
and --sample choose a part.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gc
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

FIELDS = ("style", "experiment", "replicas", "fault", "kind", "verdict", "causes", "allowed", "seconds", "date")
RIGHT = ("identical", "alike")


def main() -> None:
    import styles  # TensorFlow itself only starts in the processes of the cells

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="words in the names of the loops to check")
    parser.add_argument("--sample", type=int, metavar="N", help="N of the loops, as different as possible")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "detector")
    options = parser.parse_args()
    path = options.out / "styles.csv"
    options.out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n")
    done = {(row["style"], row["experiment"], row["replicas"], row["fault"]) for row in read(path)}
    loops = styles.cells() if options.sample is None else styles.sample(options.sample)
    cells = [cell for cell in loops if all(word in cell.name for word in options.only)]
    todo = [cell for cell in cells if key(cell) not in done]
    # A process per experiment: TensorFlow keeps what it has traced.
    start = multiprocessing.get_context("spawn").Process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a daemon dies with its parent
    for _, group in groupby(sorted(todo, key=where), where):
        process = start(target=run_cells, args=(path, list(group)), daemon=True)
        process.start()
        process.join()
    (options.out / "styles.md").write_text(page(read(path)))
    print(options.out / "styles.md")


def key(cell) -> tuple[str, str, str, str]:
    return cell.style, cell.experiment, str(cell.replicas), cell.fault or ""


def where(cell) -> tuple[str, int]:
    return cell.experiment, cell.replicas


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def run_cells(path: Path, cells: list) -> None:
    """The checks of one experiment on so many replicas, with one reference for all."""
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
        row = dict(zip(FIELDS[:4], key(cell), strict=True)) | {"kind": cell.kind, "allowed": " ".join(cell.allowed)}
        row["date"] = datetime.date.today().isoformat()
        try:
            report = checker.check(trainer)
            row |= {"verdict": report.verdict, "causes": " ".join(finding.id for finding in report.findings)}
            row["seconds"] = f"{report.seconds:.1f}"
        except Exception as error:
            row |= {"verdict": "raised", "causes": type(error).__name__}
        with open(path, "a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(row)
        if not good(row):
            print(row, flush=True)
    print(*where(cells[0]), f"{len(cells)} checks", flush=True)


def good(row: dict[str, str]) -> bool:
    """Whether a right loop was let pass, or a wrong one was caught, and no wrong cause named."""
    right = row["verdict"] in RIGHT if row["kind"] == "correct" else row["verdict"] == "different"
    return right and not set(row["causes"].split()) - set(row["allowed"].split())


def named(row: dict[str, str]) -> bool:
    return bool(set(row["causes"].split()) & set(row["allowed"].split()))


def page(rows: list[dict[str, str]]) -> str:
    """All figures as Markdown."""
    correct = [row for row in rows if row["kind"] == "correct"]
    faulty = [row for row in rows if row["kind"] != "correct"]
    nameable = [row for row in faulty if row["allowed"]]
    wrong = [row for row in rows if set(row["causes"].split()) - set(row["allowed"].split())]
    seconds = sorted(float(row["seconds"]) for row in rows if row["seconds"])
    dates = sorted({row["date"] for row in rows})
    lines = [
        "# Loops in anybody's style",
        "",
        f"{len(rows)} checks of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, a row each in `styles.csv`, "
        "written by `python scripts/styles.py`: the loops of `tests/styles`, right and wrong, in "
        f"{len({row['style'] for row in rows})} styles, on {len({row['experiment'] for row in rows})} experiments, "
        "with 1 and 2 replicas. Whoever wrote them had not seen the check.",
        "",
        *table(
            ["", "checks", "", "share"],
            [
                ["Correct loops", str(len(correct)), "called identical or alike", share(correct, good)],
                [
                    "Faulty loops",
                    str(len(faulty)),
                    "called different",
                    share(faulty, lambda r: r["verdict"] == DIFFERENT),
                ],
                ["of these, with a cause that has a name", str(len(nameable)), "named", share(nameable, named)],
                ["All", str(len(rows)), "with a wrong cause", f"{len(wrong)} of {len(rows)}"],
            ],
        ),
        "",
        f"A check took {seconds[len(seconds) // 2]:.1f} s in the median, {seconds[-1]:.0f} s at most, the reference "
        "of each experiment counted once.",
        "",
        "Missed, raised, or with a wrong cause:",
        "",
        *([f"- {describe(row)}" for row in rows if not good(row)] or ["none."]),
        "",
        "## Correct loops by style",
        "",
        *table(["style", "checks", "identical", "alike"], verdicts(correct, "style")),
        "",
        "## Correct loops by experiment",
        "",
        *table(["experiment", "checks", "identical", "alike"], verdicts(correct, "experiment")),
        "",
        "## Faulty loops by fault",
        "",
        *table(["fault", "checks", "different", "causes named", "causes allowed"], faults(faulty)),
    ]
    return "\n".join(lines) + "\n"


DIFFERENT = "different"


def describe(row: dict[str, str]) -> str:
    cell = f"{row['style']}, {row['experiment']}, {row['replicas']} replica(s), {row['fault'] or 'correct'}"
    return f"{cell}: {row['verdict']}, causes {row['causes'] or 'none'}"


def table(head: list[str], body: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *body]]


def share(rows: list[dict[str, str]], holds) -> str:
    return f"{sum(map(holds, rows))} of {len(rows)}"


def verdicts(rows: list[dict[str, str]], field: str) -> Iterable[list[str]]:
    for value in sorted({row[field] for row in rows}):
        counts = Counter(row["verdict"] for row in rows if row[field] == value)
        yield [value, str(counts.total()), *(str(counts[word]) for word in RIGHT)]


def faults(rows: list[dict[str, str]]) -> Iterable[list[str]]:
    for value in sorted({row["fault"] for row in rows}):
        these = [row for row in rows if row["fault"] == value]
        causes = Counter(row["causes"] or "none" for row in these).most_common(3)
        told = "; ".join(f"{cause} ({count})" for cause, count in causes)
        caught = share(these, lambda r: r["verdict"] == DIFFERENT)
        yield [value, str(len(these)), caught, told, these[0]["allowed"] or "none"]


if __name__ == "__main__":
    main()
