#!/usr/bin/env python3
"""Measures what training costs: this project's trainers beside bare scripts, the tutorials and other libraries.

Every program runs in a fresh process. A round runs each program once, one after the other, so that changes in the
machine's speed affect all alike; ratios are taken within a round. Writes benchmark.csv, benchmark.png and README.md.

Programs whose library is not installed are skipped with a message. A new program only has to print a line
"epoch N" at the end of each epoch.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402
from scripts.pages.benchmark import COLUMNS, FIGURES, draw, page  # noqa: E402

# The two programs of a ratio are neighbours, so that little time passes between them.
PROGRAMS = {
    "bare-fit": "scripts/benchmarks/bare.py fit {data} {epochs} {examples}",
    "bare-both": "scripts/benchmarks/bare_both.py {data} {epochs} {examples}",
    "fit": "scripts/benchmarks/ours.py fit {data} {epochs} {examples}",
    "fit-67-steps": "scripts/benchmarks/ours.py fit {data} {epochs} {examples} iterator 67",
    "bare-loop": "scripts/benchmarks/bare.py loop {data} {epochs} {examples}",
    "loop": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} for",
    "loop-iterator": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} iterator",
    "loop-67-steps": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} iterator 67",
    "loop-function": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} function",
    "tutorial": "scripts/benchmarks/tutorial.py loop {data} {epochs} {examples}",
    "fit-tutorial": "scripts/benchmarks/tutorial.py fit {data} {epochs} {examples}",
    "orbit": "scripts/benchmarks/with_orbit.py {data} {epochs} {examples}",
    "pytorch": "scripts/benchmarks/with_torch.py {data} {epochs} {examples}",
    "keras-jax": "scripts/benchmarks/with_jax.py {data} {epochs} {examples}",
    "main-job": "scripts/compare.py --data-dir {data} --epochs {epochs} --train-examples {examples} --reports {out}",
    "main-job-sequential": "scripts/compare.py --sequential --data-dir {data} --epochs {epochs} "
    "--train-examples {examples} --reports {out}",
}
AT_ONCE = ("bare-both", "main-job")
"""The programs that train twice at the same time, whose lines are not those of a single training."""
SEVERAL = (*AT_ONCE, "main-job-sequential")
"""The programs that train twice."""
DEFAULT = [name for name in PROGRAMS if name not in SEVERAL]
NEEDS = {"orbit": ("orbit", "tf-models-official"), "pytorch": ("torch", "torch"), "keras-jax": ("jax", "jax")}
"""The module that a program imports, and the package that contains it."""
EPOCH = re.compile(r"(?:\S+ +)?epoch (\d+)\b", re.IGNORECASE)


def has(python: str, module: str) -> bool:
    """Returns whether a module is installed for an interpreter."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code]).returncode == 0


def run(program: str, python: str, data: str, epochs: int, examples: int) -> dict[str, Any]:
    """Runs a program once and returns its figures.

    Returns:
        By column, rounded: seconds_per_epoch and cpu_seconds_per_epoch, the median of the times between the ends of
        consecutive epochs; start_seconds, how much longer the first epoch took, measured from the program's start;
        late_seconds, from the end of the last epoch to the program's end; wall_seconds, cpu_seconds and peak_mib of the
        whole process; said, the line printed at the end of the last epoch, which shows that programs did the same work.
        Figures per epoch are NaN for a single epoch, and for programs that train twice at the same time.

    Raises:
        SystemExit: if the program fails.
    """
    with tempfile.TemporaryDirectory() as out:
        command = shlex.split(PROGRAMS[program].format(data=data, epochs=epochs, examples=examples, out=out))
        done = measure.run(*command, python=python, CUDA_VISIBLE_DEVICES="-1")  # GPUs' work is in no CPU seconds
    ends = [(int(found[1]), line) for line in done.lines if (found := EPOCH.match(line.text))]
    if not ends:
        raise SystemExit(f"{program} printed no line that begins with “epoch N”")
    times = pd.DataFrame([(epoch, line.wall_seconds, line.cpu_seconds) for epoch, line in ends])
    between = times.diff()
    _, epoch, cpu = between[between[0] == 1].median()
    if program in AT_ONCE:
        epoch = cpu = math.nan
    last = ends[-1][1]
    figures = {
        "seconds_per_epoch": epoch,
        "cpu_seconds_per_epoch": cpu,
        "start_seconds": ends[0][1].wall_seconds - epoch,
        "late_seconds": done.wall_seconds - last.wall_seconds,
        "wall_seconds": done.wall_seconds,
        "cpu_seconds": done.cpu_seconds,
        "peak_mib": done.peak_mib,
    }
    digits = {"peak_mib": 1}
    return {name: round(value, digits.get(name, 3)) for name, value in figures.items()} | {"said": last.text.strip()}


def main() -> None:
    parser = measure.parser(__doc__, "reports/benchmark")
    parser.add_argument("--rounds", type=int, default=5, help="how often each program runs (default: 5)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs per program (default: 2)")
    parser.add_argument("--train-examples", type=int, default=60_000, help="first N images to train on (default: all)")
    measure.add_data_dir(parser)
    text = f"run these programs only: {', '.join(PROGRAMS)} (default: all but {', '.join(SEVERAL)})"
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=DEFAULT, metavar="NAME", help=text)
    text = (
        "the interpreter for orbit, pytorch and keras-jax. Use a separate environment: where these libraries are "
        "installed, Keras imports parts of them and every program takes more memory (default: this interpreter)"
    )
    parser.add_argument("--others", default=sys.executable, metavar="PYTHON", help=text)
    options = parser.parse_args()
    if min(options.rounds, options.epochs, options.train_examples) < 1:
        parser.error("--rounds, --epochs and --train-examples must be at least 1")

    pythons = {name: options.others if name in NEEDS else sys.executable for name in options.only}
    skipped = [name for name in pythons if name in NEEDS and not has(pythons[name], NEEDS[name][0])]
    missing = [f"{name} was skipped: it needs the package {NEEDS[name][1]}." for name in skipped]
    print(*missing, sep="\n", end="\n" * bool(missing))
    work = options.epochs, options.train_examples
    data = shlex.quote(str(options.data_dir))
    parts = {name: partial(run, name, pythons[name], data, *work) for name in pythons if name not in skipped}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "benchmark.csv"
    path.unlink(missing_ok=True)
    for number, program, figures in measure.in_turn(parts, options.rounds):
        tables.append(path, {"round": number, "program": program, **figures}, [*COLUMNS, *FIGURES, "said"])
        print(number, program, figures, flush=True)
    rows = pd.read_csv(path)
    text = page(rows, measure.origin("scripts/benchmark.py"), missing)
    draw(rows, options.out / "benchmark.png")
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
