#!/usr/bin/env python3
"""What recording costs: this project's trainers against bare scripts, and their memory against the tutorial's.

Every program runs in a fresh process, and a round runs each of them once, one after the other: a machine
whose speed drifts slows all alike. Ratios are taken within a round. Writes benchmark.csv and README.md
into reports/benchmark/. A program says "epoch N" as each epoch ends; that is all it takes to add one.
"""

import argparse
import csv
import itertools
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Pairs stand side by side, so that little time passes between the two.
PROGRAMS = {
    "bare-fit": "scripts/benchmarks/bare.py fit {data} {epochs} {examples}",
    "fit": "scripts/benchmarks/ours.py fit {data} {epochs} {examples}",
    "bare-loop": "scripts/benchmarks/bare.py loop {data} {epochs} {examples}",
    "loop": "scripts/benchmarks/ours.py loop {data} {epochs} {examples}",
    "tutorial": "scripts/benchmarks/tutorial.py {data} {epochs} {examples}",
    "main-job": "scripts/compare.py --data-dir {data} --epochs {epochs} --train-examples {examples} --reports {out}",
}
# What is divided by what: the figure, the program, its yardstick, the most that it may be.
RATIOS = [
    ("cpu_seconds", "fit", "bare-fit", 1.05),
    ("cpu_seconds", "loop", "bare-loop", 1.05),
    ("peak_mib", "main-job", "tutorial", 0.65),
    ("peak_mib", "fit", "tutorial", 0.65),
    ("peak_mib", "loop", "tutorial", 0.65),
]
FIGURES = {
    "seconds_per_epoch": ("seconds per epoch", "{:.1f}"),
    "wall_seconds": ("wall seconds", "{:.1f}"),
    "cpu_seconds": ("CPU seconds", "{:.1f}"),
    "peak_mib": ("peak memory, MiB", "{:.0f}"),
}
EPOCH = re.compile(r"(?:\S+ +)?epoch (\d+)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Measurement:
    """One program in one round.

    Attributes:
        seconds_per_epoch: wall time from the end of one epoch to the end of the next, the median; None
            when there was one epoch only. The first, which includes start and tracing, is not counted.
        wall_seconds: of the whole process, imports included.
        cpu_seconds: the same in user and system time, over all threads.
        peak_mib: the most memory that was resident at one time.
        said: its line for the last epoch, to see that those compared did the same.
    """

    round: int
    program: str
    seconds_per_epoch: float | None
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    said: str


def measure(number: int, program: str, data: str, epochs: int, examples: int) -> Measurement:
    """Run a program once, alone in a process, whose CPU time and memory the kernel then tells.

    Raises:
        SystemExit: when the program fails, with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as out:
        command = PROGRAMS[program].format(data=data, epochs=epochs, examples=examples, out=out)
        # Without a GPU, whose work is in nobody's CPU seconds; unbuffered, to see each epoch as it ends.
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
        lines, ends = [], []
        began = time.monotonic()
        with subprocess.Popen([sys.executable, *shlex.split(command)], cwd=ROOT, env=environment, **streams) as process:
            try:
                for line in process.stdout:
                    lines.append(line)
                    if found := EPOCH.match(line):
                        ends.append((int(found[1]), time.monotonic(), line.strip()))
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            except BaseException:
                process.kill()
                raise
        wall = time.monotonic() - began
    if process.returncode or not ends:
        raise SystemExit(f"{program} ended with status {process.returncode}:\n{''.join(lines[-20:])}")
    later = [end - before for (_, before, _), (epoch, end, _) in itertools.pairwise(ends) if epoch > 1]
    return Measurement(
        round=number,
        program=program,
        seconds_per_epoch=round(statistics.median(later), 3) if later else None,
        wall_seconds=round(wall, 3),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 3),
        peak_mib=round(usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1),
        said=ends[-1][2],
    )


def spread(values: Sequence[float | None], form: str) -> str:
    """Median and range, or a dash when there are no values."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) == 1:
        return form.format(known[0])
    return f"{form} ({form}–{form})".format(statistics.median(known), min(known), max(known))


def machine() -> str:
    """Processors, memory and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = (f"{package} {version(package)}" for package in ("tensorflow", "keras", "numpy"))
    return (
        f"{os.cpu_count()} × {model[1] if model else platform.machine()}, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {', '.join(packages)}"
    )


def markdown(measurements: Sequence[Measurement], command: str) -> str:
    """The results as a page."""
    by_round = {(m.program, m.round): m for m in measurements}
    rounds = sorted({m.round for m in measurements})
    lines = [
        "# What recording costs",
        "",
        f"Made by `{command}` on {machine()}.",
        "",
        f"Medians over {len(rounds)} round(s), with the range. Every program has a process of its own; wall and CPU",
        "seconds and memory are the whole process's, imports included. An epoch is training and validation; the first",
        "does not count.",
        "",
        "| program | " + " | ".join(title for title, _ in FIGURES.values()) + " |",
        "|---" * (1 + len(FIGURES)) + "|",
    ]
    for program in dict.fromkeys(m.program for m in measurements):
        row = [by_round[program, number] for number in rounds]
        cells = [spread([getattr(m, figure) for m in row], form) for figure, (_, form) in FIGURES.items()]
        lines.append(f"| {' | '.join([program, *cells])} |")
    lines += ["", "| ratio | of | within a round | target | median meets it |", "|---" * 5 + "|"]
    for figure, program, yardstick, target in RATIOS:
        if {program, yardstick} <= {m.program for m in measurements}:
            pairs = [(by_round[program, number], by_round[yardstick, number]) for number in rounds]
            ratios = [getattr(one, figure) / getattr(other, figure) for one, other in pairs]
            met = "yes" if statistics.median(ratios) <= target else "**no**"
            measured = spread(ratios, "{:.3f}")
            lines.append(f"| {program} / {yardstick} | {FIGURES[figure][0]} | {measured} | ≤ {target} | {met} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--epochs", type=int, default=2, help="(default: 2)")
    parser.add_argument("--train-examples", type=int, default=60_000, help="the first so many (default: all 60000)")
    parser.add_argument(
        "--data-dir", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="(default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME", help="programs")
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmark", help="(default: reports/benchmark)")
    options = parser.parse_args()
    if min(options.rounds, options.epochs, options.train_examples) < 1:
        parser.error("--rounds, --epochs and --train-examples must be at least 1")
    if not options.data_dir.is_dir():
        parser.error(f"{options.data_dir} is not a folder: name the one with Fashion-MNIST's files (--data-dir)")

    data = shlex.quote(str(options.data_dir.resolve()))
    options.out.mkdir(parents=True, exist_ok=True)
    measurements = []
    with open(options.out / "benchmark.csv", "w", newline="", buffering=1) as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Measurement)], lineterminator="\n")
        writer.writeheader()
        for number in range(1, options.rounds + 1):
            for program in dict.fromkeys(options.only):
                measured = measure(number, program, data, options.epochs, options.train_examples)
                measurements.append(measured)
                writer.writerow(asdict(measured))
                print(measured, flush=True)
    command = shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]])
    page = markdown(measurements, command)
    (options.out / "README.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
