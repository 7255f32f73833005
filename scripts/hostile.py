#!/usr/bin/env python3
"""Damages a small recorded run in many ways and checks what the toolkit then says.

Each trial harms a fresh copy of the run, reads it in every way that a user can, and counts as well handled if nothing
damaged is believed: everything that is shown is what the unharmed run shows, or there is an error of one line that
names a file and says what to do. Prints one table and exits with status 1 if any trial was handled badly.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import compare  # noqa: E402
from compare.app import redraw  # noqa: E402
from compare.app.judge import Recorded, judge  # noqa: E402
from compare.records import RecordError  # noqa: E402

REFUSALS = compare.RequestError, RecordError
UNREAD = "checkpoints", ".lock", "tensorflow.log"
"""What is in a run's folder and is not read by what is tried here."""


@dataclass(frozen=True)
class Trial:
    """One harm done to the product.

    Attributes:
        kind: the row of the table that it counts in.
        what: what is done, for the list of failures.
        failure: does it, and returns what was handled badly; empty if nothing was.
    """

    kind: str
    what: str
    failure: Callable[[], str]


def views(run: Path) -> dict[str, Callable[[], str]]:
    """Every way to read a run without TensorFlow: a function that returns all that it shows as text."""

    def pages() -> str:
        redraw.make([run], None, False)
        return (run / "report.html").read_text()

    return {
        "load": lambda: repr(compare.load(run)),
        "metrics": lambda: compare.load(run).metrics.to_csv(),
        "details": lambda: repr(compare.load(run).details),
        "gaps": lambda: compare.load(run).gaps.to_csv(),
        "judge": lambda: repr(judge(Recorded.read(run))),
        "weights": lambda: repr([[w.sum() for w in r.weights(1) or ()] for r in Recorded.read(run).records]),
        "report": pages,
    }


def shown(view: Callable[[], str]) -> tuple[str, str]:
    """What a view shows, and what is wrong with the way in which it refuses to."""
    try:
        return view(), ""
    except REFUSALS as error:
        text = str(error)
        clear = "/" in text and "\n" not in text and ("run again, or restore it from a copy" in text or "give " in text)
        return "", "" if clear else f"unclear: {text!r}"
    except Exception as error:
        return "", f"{type(error).__name__}: {error}"


def judged(run: Path, expected: dict[str, str]) -> str:
    """What is shown of a harmed run and is neither what the unharmed run shows nor a clear refusal."""
    failures = []
    for name, view in views(run).items():
        text, failure = shown(view)
        if text and text != expected[name]:
            failure = "shows something else than the undamaged run"
        if failure:
            failures.append(f"{name}: {failure}")
    return "; ".join(failures)


# Kinds of trials


def flips(run: Path, number: int, generator: random.Random) -> Iterator[Trial]:
    """One random bit is flipped in a random file, as often in a small file as in a large one."""
    where = run.parent / "harmed" / run.name
    expected = {name: view() for name, view in views(copied(run, where)).items()}
    files = sorted(path.relative_to(where) for path in where.rglob("*") if path.is_file())
    for _ in range(number):
        file = generator.choice(files)
        bit = generator.randrange(8 * (run / file).stat().st_size)

        def failure(file: Path = file, bit: int = bit) -> str:
            path = copied(run, where) / file
            content = bytearray(path.read_bytes())
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            return judged(where, expected)

        yield Trial(f"bit flipped in {kind_of(file)}", f"bit {bit} of {file}", failure)


def kind_of(file: Path) -> str:
    """The kind of a run's file."""
    return f"records/*{file.suffix}" if file.parts[0] == "records" else file.name


def copied(run: Path, to: Path) -> Path:
    """A fresh copy of a run, without what is not read."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(run, to, ignore=shutil.ignore_patterns(*UNREAD)))


# The command


def recorded(folder: Path) -> Path:
    """A small run, made by the command."""
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--experiment", "fashion-mnist-sample", "--quiet"]
    command += ["--train-examples", "640", "--epochs", "2", "--reports", str(folder), "--name", "run"]
    subprocess.run(command, check=True)
    return folder / "run"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=300, help="single bits to flip (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="seed of the random choices (default: a new one each time)")
    parser.add_argument("--run", type=Path, help="a recorded run to harm copies of (default: a new small one)")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"--seed {seed}")
    table: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.run is None:
            run = recorded(Path(folder))
        else:
            run = Path(shutil.copytree(options.run, Path(folder) / options.run.name))
        generator = random.Random(seed)
        for trial in itertools.chain(flips(run, options.flips, generator)):
            failure = trial.failure()
            row = table.setdefault(trial.kind, [0, 0])
            row[bool(failure)] += 1
            if failure:
                print(f"{trial.what}: {failure}", flush=True)
    print("\n| kind | trials | well handled | failures |\n|---|---|---|---|")
    for kind, (well, badly) in sorted(table.items()):
        print(f"| {kind} | {well + badly} | {well} | {badly} |")
    return 1 if any(badly for _, badly in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
