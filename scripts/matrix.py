#!/usr/bin/env python3
"""Measures which strategies fit and the loop run under, and whether they train alike: strategy x replicas x Keras.

Every cell is a run of the main job on the embedded sample, in a process of its own with a time limit. Writes
matrix.csv, matrix.png and README.md. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402
from scripts.pages.matrix import draw, markdown  # noqa: E402

CELLS = [
    ("default", []),
    ("one-device", []),
    *(("mirrored", ["--replicas", str(n)]) for n in (1, 2, 3, 4)),
    *(("central-storage", ["--replicas", str(n)]) for n in (1, 2)),
    *(("multi-worker", ["--workers", str(n)]) for n in (1, 2, 3)),
    *(("parameter-server", ["--workers", str(n)]) for n in (1, 2)),
    ("tpu", []),
]
# 2,016 examples split evenly over 1 to 4 replicas, even in the short last batch: only then is fit exact.
TASK = ["--experiment", "fashion-mnist-sample", "--train-examples", "2016", "--epochs", "2"]
TASK += ["--float64-reference", "--force"]
COLUMNS = ["strategy", "size", "keras", "fit", "loop", "verdict", "weights", "metrics", "seconds"]
"""fit and loop hold the error, empty if the trainer runs; weights and metrics the larger distance to the truth."""


def run_cell(strategy: str, size: list[str], keras: int, folder: Path, limit: float) -> dict[str, Any]:
    """Runs one cell and returns its row, whether the run succeeds or not."""
    name = f"{strategy}-{'-'.join(size).strip('-')}-keras-{keras}"
    wanted = ["--strategy", strategy, *size, "--keras", str(keras), "--reports", str(folder), "--name", name]
    done = measure.run("scripts/compare.py", *TASK, *wanted, limit=limit, check=False)
    row = {"strategy": strategy, "size": size[1] if size else "1", "keras": keras, "seconds": done.wall_seconds}
    try:
        verdict = json.loads((folder / name / "verdict.json").read_text())
        failures = json.loads((folder / name / "run.json").read_text())["failures"]
        errors = {failure["side"]: failure["error"] for failure in failures}
    except (OSError, ValueError, KeyError):
        reason = (done.errors.strip().splitlines() or [done.failure])[-1]
        return row | {"fit": reason, "loop": reason, "verdict": "not-comparable"}
    weights, metrics = distance_to_truth(verdict.get("truth"))
    return row | errors | {"verdict": verdict["verdict"], "weights": weights, "metrics": metrics}


def distance_to_truth(truth: dict[str, Any] | None) -> tuple[float | None, float | None]:
    """Returns the larger of the trainers' distances to one replica in float64, of weights and of reported numbers."""
    if not truth:
        return None, None
    seen = [[d for d in each["distance"].values() if d is not None] for each in truth["after"]]
    first = next(filter(None, seen), [])
    gaps = [gap["max_gap"] for metrics in truth["metrics"].values() for gap in metrics.values()]
    known = [gap for gap in gaps if gap is not None]
    return max(first, default=None), max(known, default=None)


def main() -> None:
    parser = measure.parser(__doc__, "reports/matrix")
    parser.add_argument("--only", default="", metavar="TEXT", help="only strategies whose name contains this text")
    text = "kill a cell after this time (default: 120)"
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS", help=text)
    options = parser.parse_args()
    cells = [cell for cell in CELLS if options.only in cell[0]]
    if not cells:
        parser.error(f"--only {options.only}: the strategies are {', '.join(dict(CELLS))}")
    path = tables.anew(options.out / "matrix.csv")
    with tempfile.TemporaryDirectory() as folder:
        for keras in (3, 2):
            for strategy, size in cells:
                row = run_cell(strategy, size, keras, Path(folder), options.limit)
                tables.append(path, row, COLUMNS)
                print(f"{row['seconds']:6.1f} s  {row}", flush=True)
    (options.out / "README.md").write_text(markdown(path), encoding="utf-8")
    print(draw(path))


if __name__ == "__main__":
    main()
