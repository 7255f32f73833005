#!/usr/bin/env python3
"""Find out which strategies fit and the loop run under, and whether they train alike: strategy x replicas x Keras.

Every cell is a run of the main job on the embedded sample, in a process of its own with a time limit.
Writes matrix.csv, README.md and matrix.png into reports/matrix/. Takes some ten minutes on two cores.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

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
# 2,016 examples split evenly over 1 to 4 replicas, the short last batch too: only then is fit exact.
TASK = ["--experiment", "fashion-mnist-sample", "--train-examples", "2016", "--epochs", "2", "--truth", "--force"]


@dataclass
class Cell:
    """One cell's outcome; an empty text is "yes", or nothing to say.

    ``weights`` and ``metrics`` are the larger trainer's distance to one replica in float64: of the
    weights after the first step, relative to how far they had moved; and of any reported number.
    """

    strategy: str
    size: str
    keras: int
    fit: str
    loop: str
    verdict: str
    weights: float | None
    metrics: float | None
    seconds: float


def run_cell(strategy: str, size: list[str], keras: int, folder: Path, limit: float) -> Cell:
    """Run one cell, whatever becomes of it."""
    name = f"{strategy}-{'-'.join(size).strip('-')}-keras-{keras}"
    command = [sys.executable, str(ROOT / "scripts/compare.py"), "--reports", str(folder), "--name", name]
    command += [*TASK, "--strategy", strategy, *size, "--keras", str(keras)]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=limit)
        ended = f"status {process.returncode}" if process.returncode >= 0 else f"signal {-process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        ended = f"no end after {limit:.0f} s"
    finally:
        seconds = time.monotonic() - began
    run = folder / name
    count = size[1] if size else "1"
    try:
        verdict = json.loads((run / "verdict.json").read_text())
        failures = {
            failure["side"]: failure["error"] for failure in json.loads((run / "run.json").read_text())["failures"]
        }
    except (OSError, ValueError, KeyError):
        reason = (errors.strip().splitlines() or [ended])[-1].removeprefix("compare.py: ")
        return Cell(strategy, count, keras, reason, reason, "not-comparable", None, None, seconds)
    weights, metrics = distance_to_truth(verdict.get("truth"))
    fit, loop = failures.get("fit", ""), failures.get("loop", "")
    return Cell(strategy, count, keras, fit, loop, verdict["verdict"], weights, metrics, seconds)


def distance_to_truth(truth: dict | None) -> tuple[float | None, float | None]:
    """The larger of the trainers' distances: weights after the first step seen, any reported number."""
    if not truth:
        return None, None
    seen = [[d for d in each["distance"].values() if d is not None] for each in truth["after"]]
    first = next(filter(None, seen), [])
    gaps = [gap["max_gap"] for metrics in truth["metrics"].values() for gap in metrics.values()]
    known = [gap for gap in gaps if gap is not None]
    return max(first, default=None), max(known, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports/matrix", help="(default: reports/matrix)")
    parser.add_argument("--only", default="", help="only strategies whose name contains this text")
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS", help="per cell (default: 120)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for keras in (3, 2):
            for strategy, size in CELLS:
                if options.only in strategy:
                    cells.append(run_cell(strategy, size, keras, Path(folder), options.limit))
                    print(f"{cells[-1].seconds:6.1f} s  {cells[-1]}", flush=True)
    with open(options.out / "matrix.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Cell)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in asdict(cell).items()} for cell in cells)
    (options.out / "README.md").write_text(markdown(options.out / "matrix.csv"), encoding="utf-8")
    print(draw(options.out / "matrix.csv"))


if __name__ == "__main__":
    main()
