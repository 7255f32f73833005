"""Flipped bits: nothing of a damaged run is believed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import compare
from compare.app import redraw
from compare.app.judge import Recorded, judge
from compare.records import RecordError
from scripts.hostile_trials.common import Place, Request, Result

REFUSALS = compare.RequestError, RecordError
UNREAD = "checkpoints", ".lock", "tensorflow.log"
"""What is in a run's folder and is not read by what is tried here."""


def trial(place: Place, generator: random.Random) -> Result:
    """One random bit is flipped in a random file, as often in a small file as in a large one.

    Well handled is what shows nothing else than the unharmed run, or is refused in one line that names a file and says
    what to do.
    """
    run, expected = _recorded(place)
    file = generator.choice(sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file()))
    bit = generator.randrange(8 * (run / file).stat().st_size)
    where = copied(run, place.folder / "harmed" / run.name)
    content = bytearray((where / file).read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    (where / file).write_bytes(content)
    return Result(f"bit flipped in {kind_of(file)}", f"bit {bit} of {file}", judged(where, expected))


@cache
def _recorded(place: Place) -> tuple[Path, dict[str, str]]:
    """A small run without what is not read, and what copies of it show that are not harmed."""
    place.fresh()
    given = ["--experiment", "fashion-mnist-sample", "--train-examples", "640", "--epochs", "2", "--name", "run"]
    ended = place.run(Request(given, ""))
    assert ended.status == 0, ended
    run = copied(place.here / "reports" / "run", place.folder.parent / "recorded" / "run")
    where = copied(run, place.folder / "harmed" / "run")
    return run, {name: view() for name, view in views(where).items()}


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


def kind_of(file: Path) -> str:
    """The kind of a run's file."""
    return f"records/*{file.suffix}" if file.parts[0] == "records" else file.name


def copied(run: Path, to: Path) -> Path:
    """A fresh copy of a run, without what is not read."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(run, to, ignore=shutil.ignore_patterns(*UNREAD)))
