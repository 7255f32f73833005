#!/usr/bin/env python3
"""Measures what grows with images, steps, epochs, variables, replicas and seeds, and what recording costs.

Every measurement is a process of its own. Writes scaling.csv, a row per figure, and README.md.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402
from scripts.pages.growth import BATCH_SIZE, JUDGED_STEPS, KINDS  # noqa: E402
from scripts.pages.scaling import COLUMNS, GROUPS, SIDE, page  # noqa: E402

MODELS = [("10", 32), ("cnn", 64), ("cnn", 800), ("1", 3000), ("10", 2000), ("100", 600), ("300", 128)]
"""The CNN or the variables of a stack of Dense layers, and the batch size: steps of about 2, 20, 200 and then 20 ms."""
LONG = 100
"""The whole command is measured up to this number of epochs."""
ROUNDS = {
    "recording": 5,
    "parts": 5,
    "commands": 5,
    "start": 5,
    "large": 5,
    "replicas": 5,
    "seeds": 2,
    "examples": 2,
    "judging": 2,
    "variables": 2,
}
"""By group, the number of rounds at most; 1 for all others, whose figures vary little or take long."""

Values = list[tuple[str, str, int, float]]
"""The last four columns of some rows."""


def product() -> Values:
    done = measure.run("scripts/benchmarks/product.py", str(SIDE))
    return [("operations per second", "matrix product", SIDE, float(done.lines[-1].text))]


def memory(kind: str, count: int) -> Values:
    done = measure.run("scripts/benchmarks/examples.py", str(count), kind)
    return [("peak bytes", kind, count, done.peak_mib * 2**20)]


def examples(count: int) -> Values:
    """Seconds of the loop's later epochs; the first one includes tracing."""
    done = measure.run("scripts/benchmarks/examples.py", str(count), "shared", "--epochs", "3")
    return [("seconds per epoch", "loop", count, float(line.text)) for line in done.lines[1:]]


def named(*command: str) -> Iterator[tuple[str, float]]:
    """Runs a program that prints a name and a value per line."""
    for line in measure.run(*command).lines:
        name, value = line.text.split(": ")
        yield name, float(value)


def recording(model: str, batch_size: int, pairs: int) -> Values:
    program = "scripts/benchmarks/recording.py", "pairs"
    return [(name, model, batch_size, x) for name, x in named(*program, model, str(batch_size), str(pairs))]


def parts(turns: int) -> Values:
    printed = named("scripts/benchmarks/recording.py", "parts", "cnn", str(BATCH_SIZE), str(turns))
    medians = pd.DataFrame(printed).groupby(0, sort=False)[1].median()
    return [("CPU seconds per step", part, BATCH_SIZE, seconds) for part, seconds in medians.items()]


def large(weights: int) -> Values:
    rates = named("scripts/benchmarks/fingerprinting.py", str(weights))
    return [("bytes per second", part, weights, rate) for part, rate in rates]


def command(what: str, *arguments: str) -> Values:
    """Wall seconds of a command that trains nothing or little."""
    with tempfile.TemporaryDirectory() as reports:
        done = measure.run("scripts/compare.py", *arguments, *(["--reports", reports] if what != "help" else []))
    return [("seconds", what, 0, done.wall_seconds)]


def start() -> Values:
    """Wall seconds until the main job's first line and of its first step, and of importing TensorFlow alone."""
    imported = measure.run("-c", "import tensorflow; tensorflow.keras.Model")
    with tempfile.TemporaryDirectory() as reports:
        asked = ["--experiment", "fashion-mnist-sample", "--epochs", "1", "--reports", reports, "--name", "run"]
        done = measure.run("scripts/compare.py", *asked)
        costs = json.loads(Path(reports, "run", "costs.json").read_text())
    step = max(cost["0"]["first_step_seconds"] for cost in costs.values())
    seconds = {"import": imported.wall_seconds, "first line": done.lines[0].wall_seconds, "first step": step}
    return [("seconds", what, 0, value) for what, value in seconds.items()]


def replicas(count: int) -> Values:
    """Seconds of fit's and loop's later epochs on the sample, with the same global batch for any number of replicas."""
    with tempfile.TemporaryDirectory() as reports:
        asked = ["--experiment", "fashion-mnist-sample", "--epochs", "4", "--checkpoint-every", "0", "--sequential"]
        sizes = ["--replicas", str(count), "--batch-size", str(BATCH_SIZE // count)]
        measure.run("scripts/compare.py", *asked, *sizes, "--reports", reports, "--name", "run")
        rows = pd.read_csv(Path(reports, "run", "metrics.csv"))
    medians = rows[rows["epoch"] > 1].groupby("trainer", sort=False)["seconds"].median()
    return [("seconds per epoch", trainer, count, seconds) for trainer, seconds in medians.items()]


def judging(at: int, **sizes: int) -> Values:
    """CPU seconds, memory and page of what follows training: the verdict, the plot and the page of a recorded run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        options = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
        measure.run("scripts/benchmarks/judging.py", "write", str(run), *options)
        done = measure.run("scripts/benchmarks/judging.py", "judge", str(run))
        size = (run / "report.html").stat().st_size
    return [
        ("CPU seconds", "judging", at, done.cpu_seconds),
        ("peak bytes", "judging", at, done.peak_mib * 2**20),
        ("bytes", "report.html", at, size),
    ]


def many_epochs(count: int) -> Values:
    """The memory of a whole run of a small model."""
    with tempfile.TemporaryDirectory() as reports:
        asked = ["--experiment", "regression", "--epochs", str(count), "--reports", reports]
        done = measure.run("scripts/compare.py", *asked)
    return [("peak bytes", "command", count, done.peak_mib * 2**20)]


@contextmanager
def workers(backend: str, processes: int) -> Iterator[list[str]]:
    """The options for a study on so many processes; those of Dask are started, and ended."""
    if backend == "jobs":
        yield ["--jobs", str(processes)]
        return
    from distributed import LocalCluster

    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with LocalCluster(host="127.0.0.1", n_workers=processes, threads_per_worker=1, **quiet) as cluster:
        yield ["--backend", "dask", "--scheduler", cluster.scheduler_address]


def study(backend: str, processes: int, seeds: int) -> Values:
    """Wall seconds of a study with several seeds."""
    asked = ["--experiment", "regression", "--epochs", "2", "--seeds", str(seeds)]
    with tempfile.TemporaryDirectory() as reports, workers(backend, processes) as options:
        done = measure.run("scripts/compare.py", *asked, *options, "--reports", reports)
    return [("seconds", f"{backend} {processes}", seeds, done.wall_seconds)]


def groups_of(options: Any) -> dict[str, list[Callable[[], Values]]]:
    """What is measured, by the name of its group."""
    backends = ["jobs", *(["dask"] if find_spec("distributed") else [])]
    small = {"steps": JUDGED_STEPS, "variables": 8}
    check = "--check", "--experiment"
    return {
        "recording": [partial(recording, *model, options.pairs) for model in MODELS],
        "parts": [partial(parts, options.pairs)],
        "large": [partial(large, options.weights)],
        "commands": [
            partial(command, "help", "--help"),
            partial(command, "check of a small model", *check, "scripts/benchmarks/small_task.py"),
            partial(command, "check of the CNN", *check, "fashion-mnist-sample"),
        ],
        "start": [start],
        "examples": [partial(examples, n) for n in options.examples],
        "memory": [partial(memory, kind, n) for n in options.memory for kind in KINDS],
        "replicas": [partial(replicas, n) for n in options.replicas],
        "judging": [partial(judging, n, steps=n) for n in options.steps],
        "epochs": [partial(judging, n, **small, epochs=n) for n in options.epochs]
        + [partial(many_epochs, n) for n in options.epochs if n <= LONG],
        "variables": [partial(judging, n, steps=JUDGED_STEPS, variables=n) for n in options.variables],
        "seeds": [partial(study, kind, p, n) for n in options.seeds for p in (1, 2) for kind in backends],
        "limit": [product],
    }


def parsed() -> Any:
    parser = measure.parser(__doc__, "reports/scaling")

    def sizes(option: str, default: list[int], what: str) -> None:
        parser.add_argument(option, type=int, nargs="+", default=default, help=f"{what} (default: %(default)s)")

    sizes("--memory", [6_000, 60_000, 600_000], "numbers of images whose memory is measured")
    sizes("--examples", [3_000, 6_000, 12_000], "numbers of images whose seconds per epoch are measured")
    sizes("--replicas", [1, 2, 4], "numbers of replicas whose seconds per epoch are measured")
    sizes("--steps", [4_000, 40_000, 400_000], "steps of each trainer of recorded runs that are judged")
    sizes("--epochs", [10, 100, 1_000], f"epochs of recorded runs that are judged; up to {LONG}, also of trainings")
    sizes("--variables", [8, 80, 800], "numbers of variables of recorded runs that are judged")
    sizes("--seeds", [2, 4, 8], "numbers of seeds of studies")
    parser.add_argument("--pairs", type=int, default=70, help="pairs of blocks with and without records (default: 70)")
    text = "number of weights of the large variable (default: %(default)s)"
    parser.add_argument("--weights", type=int, default=100_000_000, help=text)
    limits = ", ".join(f"{name} {rounds}" for name, rounds in ROUNDS.items())
    text = f"repetitions of every measurement (default: 5), but at most: {limits}, others 1"
    parser.add_argument("--rounds", type=int, default=5, help=text)
    text = f"measure these groups only: {', '.join(GROUPS)}; give another --out to keep the figures of all"
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, metavar="NAME", help=text)
    options = parser.parse_args()
    for name, value in vars(options).items():
        if name not in ("out", "only") and min(value if isinstance(value, list) else [value]) < 1:
            parser.error(f"--{name} must be at least 1")
    if min(options.steps) < 20:
        parser.error("--steps must be at least 20, one per epoch")
    if max(options.epochs) > JUDGED_STEPS:
        parser.error(f"--epochs must be at most {JUDGED_STEPS}, the number of steps")
    if any(BATCH_SIZE % count for count in options.replicas):
        parser.error(f"--replicas must divide the global batch size, {BATCH_SIZE}")
    return options


def main() -> None:
    options = parsed()
    groups = groups_of(options)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "scaling.csv"
    path.unlink(missing_ok=True)
    for number in range(1, options.rounds + 1):
        for group in (group for group in options.only if number <= ROUNDS.get(group, 1)):
            began = time.monotonic()
            for part in groups[group]:
                for row in part():
                    tables.append(path, dict(zip(COLUMNS, (group, number, *row), strict=True)), COLUMNS)
            print(f"round {number}: {group}, {time.monotonic() - began:.0f} s", flush=True)
    text = page(pd.read_csv(path), measure.origin("scripts/scaling.py"))
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
