#!/usr/bin/env python3
"""How good the short check is as a detector: every planted bug, unknown bug and correct style, everywhere.

Writes reports/detector/detector.csv, a row per check, as it goes; goes on where it stopped; and in the
end reports/detector/README.md, the table. All of it takes hours; --models, --optimizers, --replicas and
--only choose a part.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

FIELDS = (
    "kind", "name", "model", "optimizer", "replicas", "caught", "class_right", "cause_right", "wrong_cause",
    "training", "reporting", "causes", "seconds",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--optimizers", nargs="*")
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--only", nargs="*", help="names of loops in tests/planted.py")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "detector")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "detector.csv"

    import compare

    compare.configure(replicas=max(options.replicas))
    import planted

    done = {tuple(row[field] for field in FIELDS[:5]) for row in read(path)}
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n")
    for model in options.models or planted.MODELS:
        for optimizer in options.optimizers or planted.OPTIMIZERS:
            for replicas in options.replicas:
                run_cell(path, done, model, optimizer, replicas, options.only)
    (options.out / "README.md").write_text(table(read(path)))
    print(options.out / "README.md")


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
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


def run_cell(path: Path, done: set, model: str, optimizer: str, replicas: int, only: list[str] | None) -> None:
    import planted

    from compare import strategies
    from compare.check import Checker
    from compare.trainers.keras_fit import KerasFit

    todo = [
        (kind, bug)
        for kind, bug in loops(model, optimizer, replicas)
        if (kind, bug.name, model, optimizer, str(replicas)) not in done and (not only or bug.name in only)
    ]
    if not todo:
        return
    began = time.perf_counter()
    checker = Checker(planted.experiment(model, optimizer), KerasFit(), strategies.make("mirrored", replicas))
    for kind, bug in todo:
        row = {"kind": kind, "name": bug.name, "model": model, "optimizer": optimizer, "replicas": replicas}
        row |= judged(checker, kind, bug)
        with open(path, "a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(row)
        if "no" in (row.get("caught"), row.get("cause_right")) or row.get("wrong_cause") != "no":
            print(row, flush=True)
    print(model, optimizer, replicas, f"{len(todo)} in {time.perf_counter() - began:.0f} s", flush=True)


def judged(checker, kind: str, bug) -> dict[str, object]:
    try:
        report = checker.check(bug.trainer())
    except Exception as error:
        return {"training": "raised", "reporting": type(error).__name__, "causes": str(error)[:80].replace("\n", " ")}
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
        "seconds": f"{report.seconds:.1f}",
    }
    if kind == "bug":
        trains = report.comparison.training.verdict == "different"
        row["class_right"] = yes(trains if wanted[0] else not trains and different)
        row["cause_right"] = yes(wanted[0] <= training and wanted[1] <= reporting)
    return row


def yes(value: bool) -> str:
    return "yes" if value else "no"


def table(rows: list[dict[str, str]]) -> str:
    """The figures, and a line per loop, as Markdown."""
    lines = ["# The short check as a detector", "", f"{len(rows)} checks, written by `scripts/detector.py`.", ""]
    names = {"bug": "Planted bugs", "unknown": "Bugs of no known cause", "correct": "Correct loops"}
    lines += [
        "| | checks | caught, or let pass | class right | cause right | wrong cause |",
        "|---|---|---|---|---|---|",
    ]
    for kind, text in names.items():
        these = [row for row in rows if row["kind"] == kind]
        lines.append(f"| {text} | {len(these)} | " + " | ".join(share(these, f) for f in FIELDS[5:9]) + " |")
    lines += ["", "| loop | checks | caught, or let pass | class right | cause right | wrong cause | causes named |"]
    lines += ["|---|---|---|---|---|---|---|"]
    by_name: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_name[row["kind"], row["name"]].append(row)
    for (kind, name), these in sorted(by_name.items()):
        causes = Counter(row["causes"] or "none" for row in these).most_common(3)
        told = "; ".join(f"{cause} ({count})" for cause, count in causes)
        figures = " | ".join(share(these, field) for field in FIELDS[5:9])
        lines.append(f"| {name} ({kind}) | {len(these)} | {figures} | {told} |")
    return "\n".join(lines) + "\n"


def share(rows: list[dict[str, str]], field: str) -> str:
    known = [row[field] for row in rows if row[field]]
    return f"{known.count('yes')} of {len(known)}" if known else ""


if __name__ == "__main__":
    main()
