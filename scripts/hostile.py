#!/usr/bin/env python3
"""Does hostile things to the toolkit in numbers, and says which of them it handled badly.

Bad requests, hostile user code, full disks, kills at random moments and flipped bits, all made from one seed. What is
right is no expected text but what must always hold: an exit status that is documented, one line that says what is wrong
and no traceback, nothing lost or written elsewhere, no verdict that nothing supports, and a resumed run that ends as
an undisturbed one. Prints a table, writes it to README.md, and exits with status 1 if any trial was handled badly.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))  # the tests' way to start commands fast, and to kill them

from scripts.hostile_trials import code, disks, flips, kills, requests  # noqa: E402
from scripts.hostile_trials.common import Place, Result  # noqa: E402

TRIALS = {
    "requests": (requests.trial, 300, "bad requests"),
    "code": (code.trial, 200, "commands with hostile user code"),
    "disks": (disks.trial, 30, "runs without room for their files or output"),
    "kills": (kills.trial, 100, f"kills of runs that are resumed, {kills.KILLS} per trial"),
    "flips": (flips.trial, 2000, "single bits flipped in a recorded run"),
    "damage": (flips.damage, 200, "files of a recorded run cut, zeroed, doubled or replaced by another run's"),
}
"""Every kind of trial: what does one, how many there are by default, and what they are."""
PER_TRIAL = {"kills": kills.KILLS}
_places: list[Place] = []
"""The place of this worker process."""


def carried_out(folder: str, seed: int, kind: str, number: int) -> tuple[Result, float]:
    """One trial in a worker process, and its seconds; random choices depend on the seed, the kind and the number."""
    if not _places:
        multiprocessing.util.Finalize(None, lambda: _places[0].close(), exitpriority=1)
        _places.append(Place(Path(tempfile.mkdtemp(dir=folder))))
    began = time.monotonic()
    try:
        result = TRIALS[kind][0](_places[0], random.Random(f"{seed} {kind} {number}"))
    except Exception:
        result = Result(f"{kind} (this script failed)", "", [traceback.format_exc()])
    return result, time.monotonic() - began


def results(
    wanted: dict[str, range], seed: int, jobs: int, minutes: float
) -> Iterator[tuple[str, int, tuple[Result, float]]]:
    """Kinds, numbers, results and seconds of all trials that begin within so many minutes, as they end."""
    trials = [(kind, number) for kind, numbers in wanted.items() for number in numbers]
    random.Random(seed).shuffle(trials)  # however early this ends, there are some of every kind
    deadline = time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(jobs, mp_context=context) as pool,
    ):
        running = {}
        while running or (trials and time.monotonic() < deadline):
            while trials and len(running) < jobs and time.monotonic() < deadline:
                trial = trials.pop()
                running[pool.submit(carried_out, folder, seed, *trial)] = trial
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield *running.pop(done), done.result()


def page(command: str, done: str, table: list[str], failures: list[str]) -> str:
    """The page with the table and the failures."""
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    packages = ", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "numpy"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    at = f"at commit {commit.strip()}, " if commit else ""
    return "\n".join(
        [
            "# Hostile trials",
            "",
            f"`{command}` did {done} ({at}{machine}, {packages}).",
            "",
            "Well handled is a trial of which all of this holds: the exit status is a documented one; a refusal is one "
            "line that says why, with no traceback, and has changed no file; an error in user code names the file and "
            "the line; nothing is written outside the reports folder; exit statuses 0 and 1 come with a verdict of "
            "that run; no process is left; a run that was killed, or that found the disk full, ends bit for bit like "
            "an undisturbed one when it is resumed; a damaged file is refused by name, or changes nothing of what is "
            "shown.",
            "",
            *table,
            "",
            "## Failures",
            "",
            "What follows the colon reproduces a failure: `python scripts/hostile.py` with these options does that "
            "trial alone and shows what it printed, as long as the lists that trials choose from are the same.",
            "",
            *(failures or ["none."]),
            "",
        ]
    )


def main() -> int:
    options = parsed()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and what was started here ends, too
    print(f"--seed {seed}")
    numbers = {kind: range(-(-getattr(options, kind) // PER_TRIAL.get(kind, 1))) for kind in options.only or TRIALS}
    if options.number is not None:
        numbers = {kind: range(options.number, options.number + 1) for kind in numbers}
    trials, bad, seconds = Counter[str](), Counter[str](), Counter[str]()
    failures, began = [], time.monotonic()
    total = sum(map(len, numbers.values()))
    every = enumerate(results(numbers, seed, options.jobs, options.minutes), 1)
    done = 0
    for done, (kind, number, (result, took)) in every:
        trials[result.kind] += result.trials
        seconds[result.kind] += took
        bad[result.kind] += min(len(result.failures), result.trials)
        if result.failures:
            how = f"--seed {seed} --only {kind} --number {number}"
            failures.append(f"- {result.kind}: `{how}`\n  {result.what}: **{'; '.join(result.failures)}**")
            print(failures[-1], flush=True)
        if options.number is not None:
            print(f"{result.what}\n{result.shown}")
        if done % 25 == 0:
            minutes = (time.monotonic() - began) / 60
            print(f"{done} of {total} trials, {len(failures)} failures, {minutes:.1f} minutes", flush=True)
    trials["all"], bad["all"], seconds["all"] = trials.total(), bad.total(), seconds.total()
    table = ["| kind | trials | well handled | failures | seconds each |", "|---|---|---|---|---|"]
    for kind, n in sorted(trials.items(), key=lambda row: (row[0] == "all", row)):
        table.append(f"| {kind} | {n} | {n - bad[kind]} | {bad[kind]} | {seconds[kind] / max(1, n):.1f} |")
    print("", *table, sep="\n")
    if options.number is None:
        options.out.mkdir(parents=True, exist_ok=True)
        given = shlex.join([*sys.argv[1:], *([] if options.seed is not None else ["--seed", str(seed)])])
        ended = f"{done} of {total} trials in {(time.monotonic() - began) / 60:.0f} minutes"
        text = page(f"python scripts/hostile.py {given}".strip(), ended, table, failures)
        (options.out / "README.md").write_text(text, encoding="utf-8")
        print(options.out / "README.md")
    return 1 if failures else 0


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, (_, number, what) in TRIALS.items():
        parser.add_argument(f"--{kind}", metavar="N", type=int, default=number, help=f"{what} (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=TRIALS, metavar="KIND", help=f"only these: {', '.join(TRIALS)}")
    parser.add_argument("--seed", type=int, help="seed of the random choices (default: a new one each time)")
    parser.add_argument("--number", type=int, help="only the trial with this number, and show what it printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at a time (default: %(default)s)")
    text = "begin no trial after so many minutes (default: no limit)"
    parser.add_argument("--minutes", type=float, default=math.inf, help=text)
    text = "folder for README.md (default: reports/hostile)"
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "hostile", help=text)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
