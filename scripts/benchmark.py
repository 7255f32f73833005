#!/usr/bin/env python3
"""Measure what training costs: this project's trainers beside bare scripts, the tutorials and other libraries.

Every program runs in a fresh process, and a round runs each of them once, one after the other: a machine
whose speed drifts slows all alike. Ratios are taken within a round. Writes benchmark.csv, a plot and README.md
into reports/benchmark/. A program says "epoch N" as each epoch ends; that is all it takes to add one. Programs
whose library is not installed are left out, and said.
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
    "fit-67-steps": "scripts/benchmarks/ours.py fit {data} {epochs} {examples} iterator 67",
    "bare-loop": "scripts/benchmarks/bare.py loop {data} {epochs} {examples}",
    "loop": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} for",
    "loop-iterator": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} iterator",
    "loop-67-steps": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} iterator 67",
    "loop-function": "scripts/benchmarks/ours.py loop {data} {epochs} {examples} function",
    "tutorial": "scripts/benchmarks/tutorial.py {data} {epochs} {examples}",
    "fit-tutorial": "scripts/benchmarks/fit_tutorial.py {data} {epochs} {examples}",
    "orbit": "scripts/benchmarks/with_orbit.py {data} {epochs} {examples}",
    "pytorch": "scripts/benchmarks/with_torch.py {data} {epochs} {examples}",
    "keras-jax": "scripts/benchmarks/with_jax.py {data} {epochs} {examples}",
    "main-job": "scripts/compare.py --data-dir {data} --epochs {epochs} --train-examples {examples} --reports {out}",
    "main-job-parallel": "scripts/compare.py --parallel --data-dir {data} --epochs {epochs} "
    "--train-examples {examples} --reports {out}",
}
DEFAULT = [name for name in PROGRAMS if not name.startswith("main-job")]
NEEDS = {"orbit": ("orbit", "tf-models-official"), "pytorch": ("torch", "torch"), "keras-jax": ("jax", "jax")}
"""The module that a program needs, and the package that has it."""
LOOPS = ("loop", "loop-iterator", "loop-67-steps", "loop-function")


@dataclass(frozen=True)
class Ratio:
    """A figure of one program over that of its yardstick, or of several added up, and the most that it may be.

    Attributes:
        figure: an attribute of ``Measurement``.
        programs: of which the one with the least median is taken.
        yardsticks: what it is divided by.
        target: the most that the median over the rounds may be.
        without_late: whether what the yardsticks do after their last epoch is left out.
    """

    figure: str
    programs: tuple[str, ...]
    yardsticks: tuple[str, ...]
    target: float
    without_late: bool = False


RATIOS = [
    Ratio("cpu_seconds", ("fit",), ("bare-fit",), 1.02),
    Ratio("cpu_seconds", ("loop",), ("bare-loop",), 1.02),
    Ratio("cpu_seconds_per_epoch", LOOPS, ("tutorial",), 0.80),
    Ratio("peak_mib", ("fit",), ("tutorial",), 0.60),
    Ratio("peak_mib", ("loop",), ("tutorial",), 0.60),
    Ratio("peak_mib", ("main-job",), ("tutorial",), 0.60),
    Ratio("peak_mib", ("main-job-parallel",), ("tutorial",), 0.60),
    Ratio("wall_seconds", ("main-job",), ("tutorial", "fit-tutorial"), 0.65),
    Ratio("wall_seconds", ("main-job",), ("tutorial", "fit-tutorial"), 0.80, without_late=True),
    Ratio("wall_seconds", ("main-job-parallel",), ("tutorial", "fit-tutorial"), 0.65),
    Ratio("wall_seconds", ("main-job-parallel",), ("tutorial", "fit-tutorial"), 0.80, without_late=True),
]
FIGURES = {
    "seconds_per_epoch": ("seconds per epoch", "{:.1f}"),
    "cpu_seconds_per_epoch": ("CPU seconds per epoch", "{:.1f}"),
    "start_seconds": ("seconds before", "{:.1f}"),
    "late_seconds": ("seconds after", "{:.1f}"),
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
        cpu_seconds_per_epoch: the same in user and system time, over all threads; None too where the program
            trains in several processes.
        start_seconds: what the first epoch took, from the program's start on, more than a later one.
        late_seconds: from the end of the last epoch to that of the program.
        wall_seconds: of the whole process, imports included.
        cpu_seconds: the same in user and system time, over all threads.
        peak_mib: the most memory that was resident at one time, in any one process.
        said: its line for the last epoch, to see that those compared did the same.
    """

    round: int
    program: str
    seconds_per_epoch: float | None
    cpu_seconds_per_epoch: float | None
    start_seconds: float | None
    late_seconds: float
    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    said: str


def has(python: str, module: str) -> bool:
    """Whether an environment's Python has a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code]).returncode == 0


def measure(number: int, program: str, python: str, data: str, epochs: int, examples: int) -> Measurement:
    """Run a program once in a process of its own, and read its CPU time and peak memory from the kernel.

    Args:
        number: of the round.
        program: its name.
        python: that runs it.
        data: Fashion-MNIST's folder, quoted.
        epochs: how many.
        examples: how many to train on.

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
        with subprocess.Popen([python, *shlex.split(command)], cwd=ROOT, env=environment, **streams) as process:
            try:
                for line in process.stdout:
                    lines.append(line)
                    if found := EPOCH.match(line):
                        ends.append((int(found[1]), time.monotonic(), cpu_seconds(process.pid), line.strip()))
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            except BaseException:
                process.kill()
                raise
        ended = time.monotonic()
    if process.returncode or not ends:
        raise SystemExit(f"{program} ended with status {process.returncode}:\n{''.join(lines[-20:])}")
    later = [(end, before) for before, end in itertools.pairwise(ends) if end[0] == before[0] + 1]
    epoch = statistics.median(end[1] - before[1] for end, before in later) if later else None
    cpu = statistics.median(end[2] - before[2] for end, before in later) if later else None
    return Measurement(
        round=number,
        program=program,
        seconds_per_epoch=_rounded(epoch),
        cpu_seconds_per_epoch=None if program == "main-job-parallel" else _rounded(cpu),
        start_seconds=None if epoch is None else _rounded(ends[0][1] - began - epoch),
        late_seconds=round(ended - ends[-1][1], 3),
        wall_seconds=round(ended - began, 3),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 3),
        peak_mib=round(usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1),
        said=ends[-1][3],
    )


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a running process; NaN if the kernel does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rounded(value: float | None) -> float | None:
    return None if value is None or value != value else round(value, 3)


def spread(values: Sequence[float | None], form: str) -> str:
    """Median and range, or a dash if there are no values."""
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


def markdown(measurements: Sequence[Measurement], command: str, missing: Sequence[str]) -> str:
    """The results as a page."""
    by_round = {(m.program, m.round): m for m in measurements}
    rounds = sorted({m.round for m in measurements})
    programs = list(dict.fromkeys(m.program for m in measurements))
    lines = [
        "# What training costs",
        "",
        f"Made by `{command}` on {machine()}.",
        "",
        f"Medians over {len(rounds)} round(s), with the range. Every program has a process of its own; wall and CPU",
        "seconds and memory are the whole process's, imports included. An epoch is training and validation; the first",
        'does not count. "Before" is what the first epoch took more than a later one (imports, data, tracing), and',
        '"after" is from the end of the last epoch to that of the program.',
        "",
        *[f"{name} was left out: it needs the package {NEEDS[name][1]}." for name in missing],
        *([""] if missing else []),
        f"![{drawn(programs)[1]}](benchmark.png)",
        "",
        "| program | " + " | ".join(title for title, _ in FIGURES.values()) + " |",
        "|---" * (1 + len(FIGURES)) + "|",
    ]
    for program in programs:
        row = [by_round[program, number] for number in rounds]
        cells = [spread([getattr(m, figure) for m in row], form) for figure, (_, form) in FIGURES.items()]
        lines.append(f"| {' | '.join([program, *cells])} |")
    lines += ["", "| ratio | of | within a round | target | median meets it |", "|---" * 5 + "|"]
    for ratio in RATIOS:
        named = [name for name in ratio.programs if name in programs]
        if not named or not {*ratio.yardsticks} <= {*programs}:
            continue
        involved = [by_round[name, number] for name in (*named, *ratio.yardsticks) for number in rounds]
        if any(getattr(m, ratio.figure) is None for m in involved):  # there was one epoch only
            continue
        best = min(named, key=lambda name: median_of([by_round[name, number] for number in rounds], ratio.figure))
        found = []
        for number in rounds:
            yardsticks = [by_round[name, number] for name in ratio.yardsticks]
            whole = [getattr(m, ratio.figure) - (m.late_seconds if ratio.without_late else 0.0) for m in yardsticks]
            found.append(getattr(by_round[best, number], ratio.figure) / sum(whole))
        met = "yes" if statistics.median(found) <= ratio.target else "**no**"
        against = " + ".join(ratio.yardsticks)
        what = FIGURES[ratio.figure][0] + (", without those after" if ratio.without_late else "")
        against = f"({against})" if len(ratio.yardsticks) > 1 else against
        lines.append(f"| {best} / {against} | {what} | {spread(found, '{:.3f}')} | ≤ {ratio.target} | {met} |")
    return "\n".join([*lines, ""])


def median_of(row: Sequence[Measurement], figure: str) -> float:
    known = [getattr(m, figure) for m in row if getattr(m, figure) is not None]
    return statistics.median(known) if known else float("inf")


def drawn(programs: Sequence[str]) -> tuple[str, str]:
    """Which figure of these programs is drawn, and what it is called: that of whole jobs, or else of an epoch."""
    if any(name.startswith("main-job") for name in programs):
        return "wall_seconds", "wall seconds of the whole program"
    return "cpu_seconds_per_epoch", "CPU seconds per epoch of training and validation"


def draw(measurements: Sequence[Measurement], path: Path) -> None:
    """One figure of every program: a bar for the median, a dot for each round."""
    from matplotlib.figure import Figure

    attribute, title = drawn([m.program for m in measurements])
    programs = list(dict.fromkeys(m.program for m in measurements))[::-1]
    figure = Figure(figsize=(8, 0.4 * len(programs) + 1.2), layout="constrained")
    axes = figure.subplots()
    for row, program in enumerate(programs):
        values = [getattr(m, attribute) for m in measurements if m.program == program]
        values = [value for value in values if value is not None]
        if not values:
            continue
        ours = PROGRAMS[program].startswith(("scripts/benchmarks/ours.py", "scripts/compare.py"))
        axes.barh(row, statistics.median(values), color="#0072b2" if ours else "#cccccc")
        axes.plot(values, [row] * len(values), "o", color="black", markersize=3)
        text = {"xytext": (4, -3), "textcoords": "offset points", "color": "white" if ours else "black"}
        axes.annotate(f"{statistics.median(values):.1f}", (0, row), **text)
    axes.set_yticks(range(len(programs)), programs)
    axes.set_xlabel(f"{title} (bar: median, dots: rounds); blue is this project")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--epochs", type=int, default=2, help="(default: 2)")
    parser.add_argument("--train-examples", type=int, default=60_000, help="the first so many (default: all 60000)")
    parser.add_argument(
        "--data-dir", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="(default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PROGRAMS,
        default=DEFAULT,
        metavar="NAME",
        help=f"of {', '.join(PROGRAMS)} (default: all but the main job)",
    )
    parser.add_argument(
        "--others",
        default=sys.executable,
        metavar="PYTHON",
        help="the Python of an environment with tf-models-official, torch and jax; where they are installed, Keras "
        "imports parts of them, and everything takes more memory (default: this one)",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmark", help="(default: reports/benchmark)")
    options = parser.parse_args()
    if min(options.rounds, options.epochs, options.train_examples) < 1:
        parser.error("--rounds, --epochs and --train-examples must be at least 1")
    if not options.data_dir.is_dir():
        parser.error(f"{options.data_dir} is not a folder: name the one with Fashion-MNIST's files (--data-dir)")

    pythons = {name: options.others if name in NEEDS else sys.executable for name in options.only}
    missing = [name for name in pythons if name in NEEDS and not has(pythons[name], NEEDS[name][0])]
    for name in missing:
        print(f"{name} is left out: it needs the package {NEEDS[name][1]}")
    programs = [name for name in dict.fromkeys(options.only) if name not in missing]
    data = shlex.quote(str(options.data_dir.resolve()))
    options.out.mkdir(parents=True, exist_ok=True)
    measurements = []
    with open(options.out / "benchmark.csv", "w", newline="", buffering=1) as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Measurement)], lineterminator="\n")
        writer.writeheader()
        for number in range(1, options.rounds + 1):
            for program in programs:
                measured = measure(number, program, pythons[program], data, options.epochs, options.train_examples)
                measurements.append(measured)
                writer.writerow(asdict(measured))
                print(measured, flush=True)
    command = shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]])
    page = markdown(measurements, command, missing)
    draw(measurements, options.out / "benchmark.png")
    (options.out / "README.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
