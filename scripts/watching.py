#!/usr/bin/env python3
"""Measures what --scripts adds to the CPU time of a training step, beyond the first hundred steps.

The tutorial's script, and a script with fit for the same model, run unwatched and watched in turn, each in a process of
its own. Writes watching.csv, a row per measurement, and README.md.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import partial
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402

SCRIPTS = {"tutorial": ("tutorial.py", r"EPOCHS = 1", "EPOCHS = {}"), "fit": ("tutorial_fit.py", "verbose=0", "")}
STEPS = 94
"""Steps per epoch: 6,000 images in batches of 64."""
LEFT_OUT = 2
"""The epochs at the beginning that are not measured, for tracing and for the first hundred steps."""


def written(name: str, epochs: int, folder: Path) -> Path:
    """A script of the tests, with more epochs and a line printed after each."""
    file, old, new = SCRIPTS[name]
    text = (ROOT / "tests" / "scripts" / file).read_text()
    changed = re.sub(old, new.format(epochs) or f"verbose=2, epochs={epochs}", text)
    assert changed != text
    path = folder / file
    path.write_text(changed)
    images = (ROOT / "tests" / "scripts" / "images.py").read_text()
    (folder / "images.py").write_text(images.replace("Path(__file__).resolve().parents[2]", f"Path({str(ROOT)!r})"))
    return path


def milliseconds(script: Path, epochs: int, watched: bool) -> float:
    """CPU milliseconds per step of the later epochs."""
    program = ["scripts/benchmarks/watched.py"] if watched else []
    done = measure.run(*program, str(script), PYTHONPATH=str(ROOT))
    ends = [line.cpu_seconds for line in done.lines if re.search(r"[Ll]oss: ", line.text)]
    assert len(ends) == epochs, done.lines
    return 1e3 * (ends[-1] - ends[LEFT_OUT - 1]) / (STEPS * (epochs - LEFT_OUT))


def main() -> None:
    parser = measure.parser(__doc__, "reports/watching")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of every run (default: 6)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of every measurement (default: 5)")
    options = parser.parse_args()
    if options.epochs <= LEFT_OUT or options.rounds < 1:
        parser.error(f"--epochs must be more than {LEFT_OUT} and --rounds at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    columns = ["round", "script", "watched", "milliseconds"]
    path = options.out / "watching.csv"
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            f"{name}, {'watched' if watched else 'unwatched'}": partial(
                milliseconds, written(name, options.epochs, Path(folder)), options.epochs, watched
            )
            for name in SCRIPTS
            for watched in (False, True)
        }
        for number, part, value in measure.in_turn(parts, options.rounds):
            name, watched = part.split(", ")
            tables.append(path, dict(zip(columns, (number, name, watched, value), strict=True)), columns)
            print(number, part, f"{value:.2f} ms", flush=True)
    text = page(pd.read_csv(path), measure.origin("scripts/watching.py"))
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


def page(rows: pd.DataFrame, origin: str) -> str:
    """The measurements as a Markdown document."""
    by = rows.pivot(index=["script", "round"], columns="watched", values="milliseconds")
    share = by["watched"] / by["unwatched"] - 1
    table = [
        {
            "script": name,
            "unwatched": measure.spread(by.loc[name, "unwatched"], "{:.2f}"),
            "watched": measure.spread(by.loc[name, "watched"], "{:.2f}"),
            "more": measure.spread(share[name], "{:+.1%}"),
        }
        for name in SCRIPTS
    ]
    lines = [
        "# What watching a script costs",
        "",
        origin,
        f"CPU milliseconds per step beyond the first {LEFT_OUT * STEPS} steps, validation included: medians and ranges "
        f"of {rows['round'].nunique()} round(s), in which all four took turns. Target: at most 10% more.",
        "",
        tables.markdown(pd.DataFrame(table)),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
