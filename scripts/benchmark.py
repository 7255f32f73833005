#!/usr/bin/env python3
"""Measures what a comparison costs, beside what a user would pick instead.

That is TensorFlow's tutorial, or a bare script with fit. Every program runs in a fresh process.
A round runs each program once, one after the other, so that changes in the machine's speed affect all alike; ratios are
taken within a round. Writes benchmark.csv, benchmark.png and README.md.

A new program only has to print a line with its loss at the end of each epoch.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402
from scripts.pages.benchmark import COLUMNS, FIGURES, draw, page  # noqa: E402

JOB = "scripts/compare.py --data-dir {data} --epochs {epochs} --train-examples {examples} --reports {out}"
BOTH = "import subprocess, sys; begun = [subprocess.Popen([sys.executable, each]) for each in sys.argv[1:]]; \
sys.exit(max(each.wait() for each in begun))"
PROGRAMS = {
    "main-job": JOB,
    "main-job-sequential": f"{JOB} --sequential",
    "yardstick": "scripts/benchmarks/yardstick.py {data} {epochs} {examples}",
    "tutorial": "{out}/tutorial.py",
    "bare-fit": "{out}/tutorial_fit.py",
    "both-at-once": f"-c '{BOTH}' {{out}}/tutorial.py {{out}}/tutorial_fit.py",
}
"""What this project does by default, one training after the other, and what a user would pick instead.

The yardstick is the least that the main job could take: its two trainings alone.
"""
TWICE = {"main-job", "main-job-sequential", "yardstick", "both-at-once"}
"""Programs that train twice, so that nothing is known of an epoch."""
END = re.compile(r"(?:\S+ +)?epoch +\d+\b.*loss|\d+/\d+ - .*loss", re.IGNORECASE)
"""A line at the end of an epoch."""


def run(program: str, data: Path, epochs: int, examples: int) -> dict[str, Any]:
    """Runs a program once and returns its figures, and what it said at the end of the last epoch.

    An epoch's are medians of the times between the ends of consecutive epochs; NaN for a single epoch, and for programs
    that train twice. What starts and ends late is what the whole program took longer before and after.
    """
    with tempfile.TemporaryDirectory() as out:
        measure.write_scripts(Path(out), epochs, data, examples)
        work = {"data": shlex.quote(str(data)), "epochs": epochs, "examples": examples, "out": out}
        command = shlex.split(PROGRAMS[program].format(**work))
        done = measure.run(*command, CUDA_VISIBLE_DEVICES="-1")  # GPUs' work is in no CPU seconds
    ends = [line for line in done.lines if END.match(line.text)]
    if not ends:
        raise SystemExit(f"{program} printed no line at the end of an epoch")
    times = pd.DataFrame([(line.wall_seconds, line.cpu_seconds) for line in ends])
    epoch, cpu = (math.nan, math.nan) if program in TWICE else times.diff().median()
    around = ends[0].wall_seconds - epoch, done.wall_seconds - ends[-1].wall_seconds
    figures = epoch, cpu, *around, done.wall_seconds, done.cpu_seconds, done.peak_mib
    return dict(zip(FIGURES, (round(value, 3) for value in figures), strict=True)) | {"said": ends[-1].text.strip()}


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keeps as many processors busy with programs that count, as other work on the machine would."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for each in programs:
            each.kill()
            each.wait()


def main() -> None:
    parser = measure.parser(__doc__, "reports/benchmark")
    parser.add_argument("--rounds", type=int, default=5, help="how often each program runs (default: 5)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs per program (default: 2)")
    parser.add_argument("--train-examples", type=int, default=60_000, help="first N images to train on (default: all)")
    measure.add_data_dir(parser)
    text = f"run these programs only: {', '.join(PROGRAMS)} (default: all)"
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME", help=text)
    text = "how many other programs keep the processors busy at the same time (default: 0)"
    parser.add_argument("--busy", type=int, default=0, metavar="N", help=text)
    options = parser.parse_args()
    if min(options.rounds, options.epochs, options.train_examples) < 1:
        parser.error("--rounds, --epochs and --train-examples must be at least 1")

    work = options.data_dir.resolve(), options.epochs, options.train_examples
    parts = {name: partial(run, name, *work) for name in options.only}
    path = tables.anew(options.out / "benchmark.csv")
    with busy(options.busy):
        for number, program, figures in measure.in_turn(parts, options.rounds):
            tables.append(path, {"round": number, "program": program, **figures}, [*COLUMNS, *FIGURES, "said"])
            print(number, program, figures, flush=True)
    rows = pd.read_csv(path)
    text = page(rows, measure.origin("scripts/benchmark.py"))
    draw(rows, options.out / "benchmark.png")
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
