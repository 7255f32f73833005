#!/usr/bin/env python3
"""Measure the short check as a detector: every planted bug, unknown bug and correct style, in every setting.

Writes reports/detector/detector.csv, one row per check; a second call continues where the first stopped; and in the
end reports/detector/README.md, the tables. All of it takes hours; --models, --optimizers, --replicas and
--only choose a part, and several processes may write to the same folder, each its own part.
"""

from __future__ import annotations

import argparse
import csv
import gc
import multiprocessing
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

CELL = ("kind", "name", "model", "optimizer", "replicas")
JUDGED = ("caught", "class_right", "cause_right", "wrong_cause")
FIELDS = (*CELL, *JUDGED, "training", "reporting", "causes", "right_residual", "next_best", "seconds")
KINDS = {"bug": "Planted bugs", "unknown": "Bugs of no known cause", "correct": "Correct loops"}


def main() -> None:
    import planted  # TensorFlow itself only starts in the processes of the cells

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(planted.MODELS))
    parser.add_argument("--optimizers", nargs="*", default=list(planted.OPTIMIZERS))
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--only", nargs="*", help="names of loops in tests/planted.py")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "detector")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "detector.csv"
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n")
    # A process per cell: TensorFlow keeps what it has traced.
    start = multiprocessing.get_context("spawn").Process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a daemon dies with its parent
    for model in options.models:
        for optimizer in options.optimizers:
            for replicas in options.replicas:
                arguments = path, model, optimizer, replicas, options.only
                cell = start(target=run_cell, args=arguments, daemon=True)
                cell.start()
                cell.join()
    (options.out / "README.md").write_text(page(read(path)))
    print(options.out / "README.md")


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def loops(model: str, optimizer: str, replicas: int) -> list[tuple[str, object]]:
    """(kind, style or bug) that can be tried there."""
    import planted

    clipped = "clipped" in planted.has(model, optimizer) and replicas > 1
    styles = [style for style in planted.STYLES if not (clipped and style in planted.NOT_IF_CLIPPED)]
    found: list[tuple[str, object]] = [("correct", planted.Bug(style)) for style in styles]
    found += [("bug", bug) for bug in planted.BUGS if planted.shows(bug, model, optimizer, replicas)]
    classes = model != "regression"
    found += [("unknown", planted.Bug(u)) for u in planted.UNKNOWN if classes or u is not planted.LabelSmoothing]
    return found


def run_cell(path: Path, model: str, optimizer: str, replicas: int, only: list[str] | None) -> None:
    """All that is left to do with one model, optimizer and number of replicas."""
    import compare

    compare.configure(replicas=replicas)
    import planted

    from compare.check import Checker
    from compare.engine import strategies
    from compare.trainers.keras_fit import KerasFit

    done = {tuple(row[field] for field in CELL) for row in read(path)}
    todo = [
        (kind, bug)
        for kind, bug in loops(model, optimizer, replicas)
        if (kind, bug.name, model, optimizer, str(replicas)) not in done and (not only or bug.name in only)
    ]
    if not todo:
        return
    iterators_end_at_once()
    began = time.perf_counter()
    strategy = strategies.make("mirrored", replicas)
    checker = Checker(planted.experiment(model, optimizer), KerasFit(), strategy, batch_size=planted.BATCH_SIZE)
    gc.freeze()  # Keras collects garbage whenever a model is built
    for kind, bug in todo:
        row = dict(zip(CELL, (kind, bug.name, model, optimizer, replicas), strict=True))
        row |= judged(checker, kind, bug)
        with open(path, "a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(row)
        if not good(row):
            print(row, flush=True)
    print(model, optimizer, replicas, f"{len(todo)} in {time.perf_counter() - began:.0f} s", flush=True)


def iterators_end_at_once() -> None:
    """Spare half of the time: deleting an iterator waits for its idle autotuning thread.

    The package switches autotuning off for its data sets, but there is no option for the part that
    tf.distribute adds for each device. No number depends on it.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import multi_device_iterator_ops as ops

    create = ops._create_device_dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    ops._create_device_dataset = lambda *arguments: create(*arguments).with_options(options)


def judged(checker, kind: str, bug) -> dict[str, object]:
    """One check, and whether it is what it ought to be."""
    try:
        report = checker.check(bug.trainer())
    except Exception as error:
        told = " ".join(str(error).split())[:80]
        return {"caught": "no", "training": "raised", "reporting": type(error).__name__, "causes": told}
    training, reporting = ({f.id for f in findings} for findings in (report.training, report.reporting))
    different = report.verdict == "different"
    wanted = set(bug.training), set(bug.reporting)
    wrong = (training - wanted[0] - set(bug.also)) | (reporting - wanted[1] - set(bug.also))
    row = {
        "caught": yes(different if kind != "correct" else report.verdict in ("identical", "alike")),
        "wrong_cause": yes(bool(wrong)),
        "training": report.comparison.training.verdict,
        "reporting": report.comparison.reporting.verdict,
        "causes": " ".join(f.id for f in report.findings),
        "right_residual": figure(max((fit.right for fit in report.fits if fit.right is not None), default=None)),
        "next_best": figure(min((fit.next_best for fit in report.fits), default=None)),
        "seconds": f"{report.seconds:.1f}",
    }
    if kind == "bug":
        trains = report.comparison.training.verdict == "different"
        row["class_right"] = yes(trains if wanted[0] else not trains and different)
        row["cause_right"] = yes(wanted[0] <= training and wanted[1] <= reporting)
    return row


def good(row: dict[str, object]) -> bool:
    return row.get("wrong_cause") == "no" and "no" not in [row.get(field) for field in JUDGED[:3]]


def yes(value: bool) -> str:
    return "yes" if value else "no"


def figure(value: float | None) -> str:
    return "" if value is None or value == float("inf") else f"{value:.3g}"


# The page.


def page(rows: list[dict[str, str]]) -> str:
    """All figures as Markdown."""
    models, optimizers, replicas = (sorted({row[field] for row in rows}) for field in CELL[2:])
    lines = [
        "# The short check as a detector",
        "",
        f"{len(rows)} checks, a row each in `detector.csv`, written by `scripts/detector.py`: every loop of "
        f"`tests/planted.py` where it can show, with the models {', '.join(models)}, the optimizers "
        f"{', '.join(optimizers)} and {', '.join(replicas)} replicas. The loops are code as users write it, and know "
        "nothing of how the check recognises a cause. Loops in other styles, on other experiments, by authors who had "
        "not seen the check: [styles.md](styles.md).",
        "",
        *table(
            ["", "checks", "caught, or let pass", "class right", "cause right", "wrong cause"],
            [[text, *figures([row for row in rows if row["kind"] == kind])] for kind, text in KINDS.items()],
        ),
        "",
        "Missed, of a wrong class, without the right cause, or with a wrong one:",
        "",
        *(bad_rows(rows) or ["none."]),
        "",
        "## Why the threshold is where it is",
        "",
        "An explanation is taken where it leaves no more than 32 times the noise floor that is measured for the model "
        "at hand (`ROUNDING` in `compare/check/weight_gaps.py`). In units of that floor, the largest residual that a "
        "right explanation left, and the smallest that any other left, of all that were tried:",
        "",
        *table(["", "right: median", "99%", "largest", "other: smallest", "1%", "median"], residuals(rows)),
        "",
        "## By loop",
        "",
        *table(
            ["loop", "checks", "caught, or let pass", "class right", "cause right", "wrong cause", "causes named"],
            by(rows, "name"),
        ),
        "",
        *(line for field in CELL[2:] for line in ("", *table([field, *("checks", *JUDGED)], by(rows, field)))),
    ]
    return "\n".join(lines) + "\n"


def table(head: list[str], body: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *body]]


def figures(rows: list[dict[str, str]]) -> list[str]:
    return [str(len(rows)), *(share(rows, field) for field in JUDGED)]


def share(rows: list[dict[str, str]], field: str) -> str:
    known = [row[field] for row in rows if row[field]]
    return f"{known.count('yes')} of {len(known)}" if known else ""


def bad_rows(rows: list[dict[str, str]]) -> list[str]:
    return [
        f"- {' '.join(row[field] for field in CELL)}: training {row['training']}, reporting {row['reporting']}, "
        f"causes {row['causes'] or 'none'}"
        for row in rows
        if not good(row)
    ]


def residuals(rows: list[dict[str, str]]) -> Iterable[list[str]]:
    for kind, text in KINDS.items():
        these = [row for row in rows if row["kind"] == kind]
        right, other = (
            sorted(float(row[field]) for row in these if row[field]) for field in ("right_residual", "next_best")
        )
        yield [text, *(quantile(right, q) for q in (0.5, 0.99, 1.0)), *(quantile(other, q) for q in (0.0, 0.01, 0.5))]


def quantile(values: list[float], q: float) -> str:
    return f"{values[round(q * (len(values) - 1))]:.3g}" if values else ""


def by(rows: list[dict[str, str]], field: str) -> Iterable[list[str]]:
    """A line per value of a field: figures, and for a loop the causes named."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["kind"] if field == "name" else "", row[field]].append(row)
    for (kind, value), these in sorted(groups.items()):
        causes = Counter(row["causes"] or "none" for row in these).most_common(3)
        told = ["; ".join(f"{cause} ({count})" for cause, count in causes)] if kind else []
        yield [f"{value} ({kind})" if kind else value, *figures(these), *told]


if __name__ == "__main__":
    main()
