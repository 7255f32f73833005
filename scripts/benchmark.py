#!/usr/bin/env python3
"""What recording costs: this project's trainers against bare scripts, and the memory against the tutorial's.

Every program runs in a fresh process; a round runs each of them once, so that a machine whose speed
drifts slows all alike. Ratios are taken within a round; medians and the range over rounds are shown.
Writes benchmark.csv and README.md into reports/benchmark/.
"""

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "scripts/benchmarks"

# Name of the program, and its command with the folder of the data, epochs and examples to come.
PROGRAMS = {
    "bare fit": [BENCHMARKS / "bare.py", "fit"],
    "fit": [BENCHMARKS / "ours.py", "fit"],
    "bare loop": [BENCHMARKS / "bare.py", "loop"],
    "loop": [BENCHMARKS / "ours.py", "loop"],
    "tutorial": [BENCHMARKS / "tutorial.py"],
    "main job": [ROOT / "scripts/compare.py"],
}
# What is divided by what: the figure, its program, the yardstick, the target.
RATIOS = [
    ("cpu_seconds", "fit", "bare fit", 1.05),
    ("cpu_seconds", "loop", "bare loop", 1.05),
    ("peak_mib", "main job", "tutorial", 0.65),
    ("peak_mib", "fit", "tutorial", 0.65),
    ("peak_mib", "loop", "tutorial", 0.65),
]
UNITS = {"cpu_seconds": "CPU seconds", "peak_mib": "peak memory"}


def measure(name: str, data: Path, epochs: int, examples: int) -> dict[str, float]:
    """Run one program; wall and CPU seconds of the process and its peak memory, as the kernel counts them."""
    with tempfile.TemporaryDirectory() as reports:
        command = [sys.executable, *map(str, PROGRAMS[name])]
        if name == "main job":
            command += ["--data-dir", str(data), "--epochs", str(epochs), "--train-examples", str(examples)]
            command += ["--reports", reports]
        else:
            command += [str(data), str(epochs), str(examples)]
        began = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                output.seek(0)
                raise SystemExit(f"{name} ended with status {process.returncode}:\n{output.read().decode()[-2000:]}")
    return {
        "wall_seconds": time.monotonic() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def spread(values: list[float], form: str = "{:.2f}") -> str:
    """Median and range."""
    if len(values) == 1:
        return form.format(values[0])
    return f"{form} ({form}–{form})".format(statistics.median(values), min(values), max(values))


def report(rows: list[dict[str, object]], options: argparse.Namespace) -> str:
    """The results as Markdown."""
    by = {(row["program"], row["round"]): row for row in rows}
    rounds = sorted({row["round"] for row in rows})
    lines = [
        "# What recording costs",
        "",
        f"Made by `python scripts/benchmark.py --rounds {options.rounds} --epochs {options.epochs}"
        f" --train-examples {options.train_examples}` on {os.cpu_count()} processors ({platform.machine()}), "
        f"Python {platform.python_version()}, TensorFlow {version('tensorflow')}, Keras {version('keras')}. "
        "Median and range over the rounds; the process as a whole, imports included.",
        "",
        "| program | CPU seconds | wall seconds | peak memory, MiB |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["program"] for row in rows):
        cells = [
            spread([by[name, r][figure] for r in rounds], form)
            for figure, form in (("cpu_seconds", "{:.1f}"), ("wall_seconds", "{:.1f}"), ("peak_mib", "{:.0f}"))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| ratio | of | measured | target |", "|---|---|---|---|"]
    for figure, name, yardstick, target in RATIOS:
        if all((each, r) in by for each in (name, yardstick) for r in rounds):
            values = [by[name, r][figure] / by[yardstick, r][figure] for r in rounds]
            lines.append(f"| {name} / {yardstick} | {UNITS[figure]} | {spread(values, '{:.3f}')} | at most {target} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--epochs", type=int, default=2, help="(default: 2)")
    parser.add_argument("--train-examples", type=int, default=60_000, help="(default: 60000, all)")
    parser.add_argument("--data-dir", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="PROGRAM")
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmark", help="(default: reports/benchmark)")
    options = parser.parse_args()
    rows = []
    for number in range(1, options.rounds + 1):
        for name in options.only:
            figures = measure(name, options.data_dir, options.epochs, options.train_examples)
            rows.append({"round": number, "program": name, **figures})
            print(f"round {number}  {name:10}", *(f"{key} {value:.1f}" for key, value in figures.items()), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "benchmark.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (options.out / "README.md").write_text(report(rows, options), encoding="utf-8")
    print(report(rows, options))


if __name__ == "__main__":
    main()
