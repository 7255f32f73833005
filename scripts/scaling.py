#!/usr/bin/env python3
"""Measures what recording costs, what images, steps and seeds cost, and how long short commands take.

Every measurement is a process of its own. Writes scaling.csv, a row per figure, and README.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402
from scripts.pages.scaling import COLUMNS, IMAGES, SEEDS, SUITE, page  # noqa: E402

MODELS = [("cnn", 64), ("cnn", 800), ("10", 32), ("1", 3000), ("10", 2000), ("100", 600), ("300", 128)]
"""The CNN or the variables of a stack of Dense layers, and the batch size: steps of about 20, 200, 2 and then 20 ms."""
PROGRAM = "scripts/benchmarks/scaled.py"

Figures = Iterator[tuple[str, str, int, float]]
"""The last four columns of some rows."""


def recording(models: list[tuple[str, int]], pairs: int) -> Figures:
    """How much more CPU time blocks of steps take with records than without, as shares."""
    for model, batch_size in models:
        figures = json.loads(measure.run(PROGRAM, "record", model, str(batch_size), str(pairs)).lines[-1].text)
        yield from ((name, model, batch_size, float(value)) for name, value in figures)


def memory(counts: tuple[int, ...]) -> Figures:
    """Peak memory of the first steps of a training on so many images."""
    for count in counts:
        yield "peak bytes", "shared", count, measure.run(PROGRAM, "memory", str(count)).peak_mib * 2**20


def judging(steps: int) -> Figures:
    """What follows training: the verdict, the plot and the page of a recorded run."""
    with tempfile.TemporaryDirectory() as folder:
        measure.run(PROGRAM, "write", f"{folder}/run", str(steps))
        done = measure.run(PROGRAM, "judge", f"{folder}/run")
    yield "CPU seconds", "judging", steps, done.cpu_seconds
    yield "peak bytes", "judging", steps, done.peak_mib * 2**20


def study(seeds: int) -> Figures:
    """Wall seconds of a study with several seeds, in one process and in two."""
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory() as reports:
            asked = ["--experiment", "regression", "--epochs", "2", "--seeds", str(seeds), "--jobs", str(jobs)]
            done = measure.run("scripts/compare.py", *asked, "--reports", reports)
        yield "seconds", f"jobs {jobs}", seeds, done.wall_seconds


def waiting() -> Figures:
    """Wall seconds of short commands, and of checks in one process, and the memory that such a check leaves behind."""
    scripts = ["scripts", "tests/scripts/my_fit.py", "tests/scripts/my_loop.py"]
    commands = {
        "check, cnn": ["check", "--experiment", "fashion-mnist-sample"],
        "check, regression": ["check", "--experiment", "regression"],
        "scripts, alike": scripts,
        "scripts, different": [*scripts, "--", "--forget"],
    }
    for name, asked in commands.items():
        with tempfile.TemporaryDirectory() as reports:
            command = [asked[0], "--reports", reports, *asked[1:]]
            done = measure.run("scripts/compare.py", *command, check=name != "scripts, different")
        yield "seconds", name, 1, done.wall_seconds
    done = measure.run(PROGRAM, "suite", str(SUITE))
    yield "seconds", "suite", SUITE, done.lines[-2].wall_seconds
    yield "bytes", "suite", SUITE, float(done.lines[-1].text)


def main() -> None:
    parser = measure.parser(__doc__, "reports/scaling")
    groups = ("recording", "memory", "judging", "seeds", "waiting")
    text = f"measure these only: {', '.join(groups)}; give another --out to keep the figures of all"
    parser.add_argument("--only", nargs="+", choices=groups, default=groups, metavar="NAME", help=text)
    parser.add_argument("--models", type=int, default=len(MODELS), help="the first N models only (default: all)")
    parser.add_argument("--pairs", type=int, default=70, help="pairs of blocks with and without records (default: 70)")
    parser.add_argument("--steps", type=int, default=400_000, help="steps of each trainer that are judged")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of every measurement (default: 5)")
    options = parser.parse_args()
    for name in ("models", "pairs", "steps", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    parts = {
        "recording": partial(recording, MODELS[: options.models], options.pairs),
        "memory": partial(memory, IMAGES),
        "judging": partial(judging, options.steps),
        "seeds": partial(study, SEEDS),
        "waiting": waiting,
    }
    path = tables.anew(options.out / "scaling.csv")
    for number, group, figures in measure.in_turn({name: parts[name] for name in options.only}, options.rounds):
        for row in figures:
            tables.append(path, dict(zip(COLUMNS, (group, number, *row), strict=True)), COLUMNS)
        print(f"round {number}: {group}", flush=True)
    text = page(pd.read_csv(path), measure.origin("scripts/scaling.py"))
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
