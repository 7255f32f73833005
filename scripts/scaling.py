#!/usr/bin/env python3
"""Measures what grows with the number of examples, replicas, steps and epochs, and what recording costs.

Every measurement is a process of its own. Writes scaling.csv, a row per measurement, and README.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402

VALUES = 28 * 28
"""uint8 values per example."""
SIDE = 2048
"""Rows and columns of the matrices whose product shows the machine's limit."""
BLOCKS, STEPS = 50, 20
"""Blocks of steps for each part of recording, and the steps in a block."""
KINDS = ["plain", "shared"]
COLUMNS = ["round", "figure", "of", "at", "value"]
BATCH_SIZE = 64

Values = list[tuple[str, str, int, float]]
"""The last four columns of some rows."""


def product() -> Values:
    done = measure.run("scripts/benchmarks/product.py", str(SIDE))
    return [("operations per second", "matrix product", SIDE, float(done.lines[-1].text))]


def memory(count: int, kind: str) -> Values:
    done = measure.run("scripts/benchmarks/examples.py", str(count), kind)
    return [("peak bytes", kind, count, done.peak_mib * 2**20)]


def recording() -> Values:
    done = measure.run("scripts/benchmarks/recording.py", str(BLOCKS), str(STEPS))
    turns = pd.DataFrame([line.text.split(": ") for line in done.lines], columns=["part", "seconds"])
    medians = turns["seconds"].astype(float).groupby(turns["part"], sort=False).median()
    return [("CPU seconds per step", part, BATCH_SIZE, seconds) for part, seconds in medians.items()]


def command(option: str, *others: str) -> Values:
    """Wall seconds of the command with an option."""
    with tempfile.TemporaryDirectory() as reports:
        reports_option = ["--reports", reports] if others else []
        done = measure.run("scripts/compare.py", option, *others, *reports_option)
    return [("seconds", option, 0, done.wall_seconds)]


def epochs(replicas: int) -> Values:
    """Seconds of fit's and loop's later epochs on the sample, with the same global batch for any number of replicas."""
    with tempfile.TemporaryDirectory() as reports:
        asked = ["--experiment", "fashion-mnist-sample", "--epochs", "4", "--checkpoint-every", "0"]
        sizes = ["--replicas", str(replicas), "--batch-size", str(BATCH_SIZE // replicas)]
        measure.run("scripts/compare.py", *asked, *sizes, "--reports", reports, "--name", "run")
        rows = pd.read_csv(Path(reports, "run", "metrics.csv"))
    medians = rows[rows["epoch"] > 1].groupby("trainer", sort=False)["seconds"].median()
    return [("seconds per epoch", trainer, replicas, seconds) for trainer, seconds in medians.items()]


def judging(steps: int) -> Values:
    """CPU seconds and memory of what follows training: the verdict, the plot and the page of a recorded run."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder, "run"))
        measure.run("scripts/benchmarks/judging.py", "write", run, "--steps", str(steps))
        done = measure.run("scripts/benchmarks/judging.py", "judge", run)
    return [
        ("CPU seconds", "judging", steps, done.cpu_seconds),
        ("peak bytes", "judging", steps, done.peak_mib * 2**20),
    ]


def many_epochs(count: int) -> Values:
    """The memory of a whole run of a small model."""
    with tempfile.TemporaryDirectory() as reports:
        asked = ["--experiment", "regression", "--epochs", str(count), "--reports", reports]
        done = measure.run("scripts/compare.py", *asked)
    return [("peak bytes", "epochs", count, done.peak_mib * 2**20)]


def step_operations() -> float:
    """Floating-point operations of a training step of the tutorial's CNN: the forward pass, and twice that backward.

    Counts multiplications and additions of convolutions and dense layers. The first layer needs no gradient with
    respect to its input.
    """
    layers = [26 * 26 * 32 * 9 * 1, 11 * 11 * 64 * 9 * 32, 1600 * 64, 64 * 10]
    return 2.0 * BATCH_SIZE * (3 * sum(layers) - layers[0])


def main() -> None:
    parser = measure.parser(__doc__, "reports/scaling")
    several: dict[str, Any] = {"type": int, "nargs": "+"}
    text = "numbers of examples whose memory is measured (default: %(default)s)"
    parser.add_argument("--examples", default=[6_000, 60_000, 600_000], help=text, **several)
    text = "numbers of replicas whose seconds per epoch are measured (default: %(default)s)"
    parser.add_argument("--replicas", default=[1, 2, 4], help=text, **several)
    text = "steps of each trainer of recorded runs that are judged (default: %(default)s)"
    parser.add_argument("--steps", default=[4_000, 40_000, 400_000], help=text, **several)
    text = "numbers of epochs of runs whose memory is measured (default: %(default)s)"
    parser.add_argument("--epochs", default=[6, 60], help=text, **several)
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of every measurement (default: 5)")
    options = parser.parse_args()
    if min(*options.examples, *options.replicas, *options.epochs, options.rounds) < 1:
        parser.error("--examples, --replicas, --epochs and --rounds must be at least 1")
    if min(options.steps) < 20:
        parser.error("--steps must be at least 20, one per epoch")
    if any(BATCH_SIZE % replicas for replicas in options.replicas):
        parser.error(f"--replicas must divide the global batch size, {BATCH_SIZE}")
    parts: dict[str, Callable[[], Values]] = {"product": product}
    parts |= {f"{n} {kind}": partial(memory, n, kind) for n in options.examples for kind in KINDS}
    parts |= {
        "recording": recording,
        "help": partial(command, "--help"),
        "check": partial(command, "--check", "--experiment", "fashion-mnist-sample"),
    }
    parts |= {f"{n} replicas": partial(epochs, n) for n in options.replicas}
    parts |= {f"{n} steps": partial(judging, n) for n in options.steps}
    parts |= {f"{n} epochs": partial(many_epochs, n) for n in options.epochs}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "scaling.csv"
    path.unlink(missing_ok=True)
    for number, _, values in measure.in_turn(parts, options.rounds):
        for row in values:
            tables.append(path, dict(zip(COLUMNS, (number, *row), strict=True)), COLUMNS)
            print(number, *row, flush=True)
    text = page(pd.read_csv(path), measure.origin("scripts/scaling.py"))
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


def page(rows: pd.DataFrame, origin: str) -> str:
    """The measurements as a Markdown document."""
    by = rows.groupby(["figure", "of", "at"], sort=False)["value"].median()
    rate = by["operations per second", "matrix product", SIDE]
    epoch_operations = step_operations() * 60_000 / BATCH_SIZE
    lines = [
        "# What grows with what",
        "",
        origin,
        f"Medians of {rows['round'].nunique()} round(s); every measurement is a process of its own.",
        "",
        "## Memory by the number of examples",
        "",
        "Peak resident memory in MiB, for images of 784 uint8 values each. A user's arrays (plain) are copied once to",
        "memory that TensorFlow can use, and are in memory twice for that moment. A read-only array from",
        "`compare.engine.memory.empty` (shared), as the built-in data sets use, is in memory once.",
        "",
        tables.markdown(memory_table(by["peak bytes"].unstack(level="of")[KINDS].dropna())),
        "",
        "## Time by the number of replicas",
        "",
        f"Seconds per epoch on the sample of 6,000 images, global batch size {BATCH_SIZE}. The replicas are logical",
        "devices of one processor: this shows what replicas cost where they cannot save time.",
        "",
        tables.markdown(
            _formatted(by["seconds per epoch"].unstack(level="of", sort=False).sort_index(), "{:.2f}", "replicas")
        ),
        "",
        "## What follows training, by the number of steps",
        "",
        "Verdict, plot and page of a recorded run of the tutorial's CNN: two trainers, each of which made this many",
        "steps, identical after each. CPU time and peak resident memory of a process that does only this, without",
        "TensorFlow. Targets for 400,000 steps: < 10 s and < 500 MiB.",
        "",
        tables.markdown(judging_table(by)),
        "",
        "## Memory by the number of epochs",
        "",
        "Peak resident memory in MiB of the whole command, `--experiment regression --epochs N`.",
        "",
        tables.markdown(_formatted(by["peak bytes"]["epochs"].div(2**20).to_frame("MiB"), "{:,.0f}", "epochs")),
        "",
        "## What recording costs",
        "",
        "CPU time of a step of the tutorial's CNN, by the work done after it; each row includes the work of the rows",
        f"above it. The steps take turns in one process, {BLOCKS * STEPS} of each kind per round. The share is the",
        "median of all rounds with the range; target: ≤ 2%. Repeated measurements differ by about one percent.",
        "",
        tables.markdown(recording_table(rows[rows["figure"] == "CPU seconds per step"])),
        "",
        "## Commands that train nothing or little",
        "",
        f"`python scripts/compare.py --help` takes {by['seconds', '--help', 0]:.2f} s (target: ≤ 0.3 s). The short",
        "check of the built-in trainers, `--check --experiment fashion-mnist-sample`, takes "
        f"{by['seconds', '--check', 0]:.0f} s (target: ≤ 45 s).",
        "",
        "## The machine's limit",
        "",
        f"A product of {SIDE} × {SIDE} matrices in float32 runs at {rate / 1e9:.0f} GFLOP/s here. A training",
        f"step of the tutorial's CNN takes {step_operations() / 1e9:.3f} GFLOP, an epoch of 60,000 images "
        f"{epoch_operations / 1e12:.2f} TFLOP: at least {epoch_operations / rate:.1f} s.",
        "",
    ]
    return "\n".join(lines)


def memory_table(peaks: pd.DataFrame) -> pd.DataFrame:
    """Formats the peak memory by number of examples, and its growth in bytes per value."""
    peaks = peaks.sort_index()
    table = _formatted(peaks / 2**20, "{:,.0f}", "examples")
    table["examples"] = [f"{count:,}" for count in peaks.index]
    if len(peaks) > 1:
        growth = (peaks.iloc[-1] - peaks.iloc[0]) / ((peaks.index[-1] - peaks.index[0]) * VALUES)
        table.loc[len(table)] = ["**bytes per value**, target: ≤ 1.1", *growth.map("{:.2f}".format)]
    return table


def judging_table(by: pd.Series) -> pd.DataFrame:
    """Formats CPU time and memory of judging by number of steps."""
    steps = [f"{count:,}" for count in by["CPU seconds"]["judging"].index]
    seconds = by["CPU seconds"]["judging"].map("{:.1f}".format).tolist()
    memory = by["peak bytes"]["judging"].div(2**20).map("{:,.0f}".format).tolist()
    return pd.DataFrame({"steps": steps, "CPU seconds": seconds, "MiB": memory})


def recording_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Formats the time of a step by part of the work, and what it is more than without any."""
    seconds = rows.pivot(index="round", columns="of", values="value")[rows["of"].unique()]
    shares = seconds.div(seconds["nothing"], axis=0) - 1
    median, low, high = (share.map("{:.1%}".format) for share in (shares.median(), shares.min(), shares.max()))
    more = (median + " (" + low + " to " + high + ")").where(seconds.columns != "nothing", "–")
    milliseconds = (1e3 * seconds.median()).map("{:.2f}".format)
    table = pd.DataFrame({"CPU milliseconds per step": milliseconds, "more than nothing": more})
    return table.rename_axis("after every step").reset_index()


def _formatted(values: pd.DataFrame, form: str, index: str) -> pd.DataFrame:
    return values.map(form.format).rename_axis(index, columns=None).reset_index()


if __name__ == "__main__":
    main()
