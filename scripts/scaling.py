#!/usr/bin/env python3
"""Measure how memory grows with the number of examples and time with the number of replicas, part by part.

Every measurement is a process of its own. Writes scaling.csv and README.md into reports/scaling/.
"""

import argparse
import csv
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmark import machine

ROOT = Path(__file__).resolve().parents[1]
VALUES = 28 * 28
"""uint8 values in an example."""
SIDE = 2048
BLOCKS, STEPS = 50, 20
"""How many blocks of steps there are with each part of recording, taking turns; and the steps in each."""
LIMIT = f"""
import time, tensorflow as tf
a = tf.random.normal([{SIDE}, {SIDE}])
multiply = tf.function(lambda: tf.reduce_sum(a @ a))
multiply()
best = min((lambda began: (multiply().numpy(), time.perf_counter() - began)[1])(time.perf_counter()) for _ in range(20))
print(2 * {SIDE}**3 / best)
"""


def alone(*command: str) -> list[str]:
    """The lines that a process says.

    Raises:
        SystemExit: when it fails, with the end of what it said.
    """
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{shlex.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout.strip().splitlines()


def seconds_alone(*command: str) -> float:
    """Wall seconds of a whole process."""
    began = time.perf_counter()
    alone(*command)
    return time.perf_counter() - began


def epoch_seconds(replicas: int) -> dict[str, float]:
    """Seconds of a later epoch of fit and loop on the sample, by trainer, the global batch being 64."""
    with tempfile.TemporaryDirectory() as reports:
        asked = ["--experiment", "fashion-mnist-sample", "--epochs", "4", "--checkpoint-every", "0"]
        sizes = ["--replicas", str(replicas), "--batch-size", str(64 // replicas)]
        alone("scripts/compare.py", *asked, *sizes, "--reports", reports, "--name", "run")
        with open(Path(reports, "run", "metrics.csv"), newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["epoch"]) > 1]
    trainers = dict.fromkeys(row["trainer"] for row in rows)
    return {name: statistics.median(float(r["seconds"]) for r in rows if r["trainer"] == name) for name in trainers}


def step_operations(batch: int = 64) -> float:
    """Floating-point operations of a training step of the tutorial's CNN: forward, and twice that backward.

    Multiplications and additions of convolutions and dense layers; the first layer has no gradient by its input.
    """
    layers = [26 * 26 * 32 * 9 * 1, 11 * 11 * 64 * 9 * 32, 1600 * 64, 64 * 10]
    return 2.0 * batch * (3 * sum(layers) - layers[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--examples", type=int, nargs="+", default=[6_000, 60_000, 600_000], help="(default: %(default)s)"
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4], help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "reports/scaling", help="(default: reports/scaling)")
    options = parser.parse_args()
    if min(*options.examples, *options.replicas, options.rounds) < 1 or 64 % max(options.replicas):
        parser.error("counts must be at least 1, and replicas must divide a batch of 64")
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, str, int, int, float]] = []
    with open(options.out / "scaling.csv", "w", newline="", buffering=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["round", "figure", "of", "at", "value"])

        def put(number: int, figure: str, of: str, at: int, value: float) -> None:
            rows.append((figure, of, at, number, value))
            writer.writerow([number, figure, of, at, value])
            print(number, figure, of, at, value, flush=True)

        for number in range(1, options.rounds + 1):
            put(number, "operations per second", "matrix product", SIDE, float(alone("-c", LIMIT)[-1]))
            for count in options.examples:
                for kind in ("plain", "shared"):
                    peak = float(alone("scripts/benchmarks/examples.py", str(count), kind)[-1])
                    put(number, "peak bytes", kind, count, peak)
            for line in alone("scripts/benchmarks/recording.py", str(BLOCKS), str(STEPS)):
                part, seconds = line.split(": ")
                put(number, "CPU seconds per step", part, 64, float(seconds))
            put(number, "seconds", "--help", 0, seconds_alone("scripts/compare.py", "--help"))
            with tempfile.TemporaryDirectory() as reports:
                check = ["--experiment", "fashion-mnist-sample", "--check", "--reports", reports]
                put(number, "seconds", "--check", 0, seconds_alone("scripts/compare.py", *check))
            for replicas in options.replicas:
                for trainer, seconds in epoch_seconds(replicas).items():
                    put(number, "seconds per epoch", trainer, replicas, seconds)
    (options.out / "README.md").write_text(page(rows, options.rounds), encoding="utf-8")
    print(page(rows, options.rounds))


def page(rows: Sequence[tuple[str, str, int, int, float]], rounds: int) -> str:
    def median(figure: str, of: str, at: int) -> float:
        return statistics.median(row[4] for row in rows if row[:3] == (figure, of, at))

    examples = sorted({row[2] for row in rows if row[0] == "peak bytes"})
    replicas = sorted({row[2] for row in rows if row[0] == "seconds per epoch"})
    trainers = list(dict.fromkeys(row[1] for row in rows if row[0] == "seconds per epoch"))
    rate = median("operations per second", "matrix product", SIDE)
    steps = 60_000 / 64
    lines = [
        "# What grows with what",
        "",
        f"Made by `{shlex.join(['python', 'scripts/scaling.py', *sys.argv[1:]])}` on {machine()}, medians of "
        f"{rounds} round(s), every measurement a process of its own.",
        "",
        "## Memory with the number of examples",
        "",
        "Images of 784 uint8 values each; the most that was resident at one time, in MiB. A user's arrays (plain) are",
        "copied once to where TensorFlow can use them, and for that moment are there twice. What",
        "`compare.engine.memory.empty` gave and was made read-only (shared), as the built-in data are, is there once.",
        "",
        "| examples | " + " | ".join(("plain", "shared")) + " |",
        "|---|---|---|",
    ]
    for count in examples:
        cells = [f"{median('peak bytes', kind, count) / 2**20:,.0f}" for kind in ("plain", "shared")]
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    if len(examples) > 1:
        few, many = examples[0], examples[-1]
        growth = {
            kind: (median("peak bytes", kind, many) - median("peak bytes", kind, few)) / ((many - few) * VALUES)
            for kind in ("plain", "shared")
        }
        cells = [f"{growth[kind]:.2f}" for kind in ("plain", "shared")]
        lines.append(f"| **bytes per value**, target ≤ 1.1 | {' | '.join(cells)} |")
    lines += [
        "",
        "## Time with the number of replicas",
        "",
        "Seconds per epoch on the sample of 6,000 images, global batch",
    ]
    lines += ["64, logical devices of one processor: what replicas cost, where there is nothing to win by them.", ""]
    lines += ["| replicas | " + " | ".join(trainers) + " |", "|---" * (1 + len(trainers)) + "|"]
    for count in replicas:
        cells = [f"{median('seconds per epoch', trainer, count):.2f}" for trainer in trainers]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    lines += [
        "",
        "## What recording costs",
        "",
        "CPU time of a step of the tutorial's CNN, by what is done after it; each line does what those before do, too.",
        f"The steps take turns in one process, {BLOCKS * STEPS} of each kind in a round. Of the share, medians of all",
        "rounds and their range; target ≤ 2%. A percent is about what one such measurement differs from the next.",
        "",
        "| after every step | CPU milliseconds per step | more than nothing |",
        "|---|---|---|",
    ]
    by_part: dict[str, list[float]] = {}
    for row in rows:
        if row[0] == "CPU seconds per step":
            by_part.setdefault(row[1], []).append(row[4])
    bare = by_part["nothing"]
    for part, seconds in by_part.items():
        shares = [each / without - 1 for each, without in zip(seconds, bare, strict=True)]
        share = f"{statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
        lines.append(f"| {part} | {1e3 * statistics.median(seconds):.2f} | {'–' if seconds is bare else share} |")
    lines += [
        "",
        "## What does not train",
        "",
        f"`python scripts/compare.py --help` takes {median('seconds', '--help', 0):.2f} s (target ≤ 0.3 s), and the",
        "short check of the built-in trainers, `--check --experiment fashion-mnist-sample`, "
        f"{median('seconds', '--check', 0):.0f} s (target ≤ 45 s).",
    ]
    floor = step_operations() * steps / rate
    lines += [
        "",
        "## The machine's own limit",
        "",
        f"A product of {SIDE} × {SIDE} matrices in float32 runs at {rate / 1e9:.0f} GFLOP/s here. A training step of",
        f"the tutorial's CNN takes {step_operations() / 1e9:.3f} GFLOP, an epoch of 60,000 images "
        f"{step_operations() * steps / 1e12:.2f} TFLOP: at least {floor:.1f} s.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
