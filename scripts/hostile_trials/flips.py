"""Flipped bits and other damage: nothing of a damaged run is believed."""

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
from compare.reporting import html
from scripts.hostile_trials.common import LOOP, SMALL, Place, Request, Result

REFUSALS = compare.RequestError, RecordError
DRAWN = 0.05
"""How many of the harmed runs are drawn."""
UNREAD = "checkpoints", ".lock", "tensorflow.log"
"""What is in a run's folder and is not read by what is tried here."""


def trial(place: Place, generator: random.Random) -> Result:
    """One random bit is flipped in a random file, as often in a small file as in a large one.

    Well handled is what shows nothing else than the unharmed run, or is refused in one line that names a file and says
    what to do.
    """
    run, _, expected = _recorded(place)
    file = generator.choice(files_of(run))
    bit = generator.randrange(8 * (run / file).stat().st_size)
    where = copied(run, place.folder / "harmed" / run.name)
    content = bytearray((where / file).read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    (where / file).write_bytes(content)
    failures = judged(where, expected, drawn=generator.random() < DRAWN)
    return Result(f"bit flipped in {kind_of(file)}", f"bit {bit} of {file}", failures)


def damage(place: Place, generator: random.Random) -> Result:
    """A file of a run is cut, zeroed or doubled; or files of another run take the place of its own."""
    run, other, expected = _recorded(place)
    where = copied(run, place.folder / "harmed" / run.name)
    groups = [["metrics.csv", "records"], ["records"], ["verdict.json"], ["metrics.csv"], ["run.json"]]
    groups += [["verdict.json", "report.html", "comparison.png"], ["metrics.csv", "records", "verdict.json"]]
    way = generator.choice(["cut", "zeroed", "doubled", "another run's", "another run's"])
    if way == "another run's":
        names = generator.choice([*groups, [str(generator.choice(files_of(run)))]])
        for name in names:
            source, target = other / name, where / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    else:
        names = [str(generator.choice(files_of(run)))]
        content = (where / names[0]).read_bytes()
        at, to = sorted(generator.randrange(len(content) + 1) for _ in range(2))
        zeroed = content[:at] + bytes(to - at) + content[to:]
        (where / names[0]).write_bytes({"cut": content[:at], "zeroed": zeroed, "doubled": content * 2}[way])
    failures = judged(where, expected, drawn=generator.random() < DRAWN)
    return Result("files cut, zeroed, doubled or another run's", f"{way}: {', '.join(names)}", failures)


@cache
def _recorded(place: Place) -> tuple[Path, Path, dict[str, str]]:
    """Two runs without what is not read; the first is identical. Also what a copy of it shows that is not harmed."""
    place.fresh()
    twice = LOOP.replace("step(x, y)\n", "step(x, y)\n                step(x, y)\n")
    (place.here / "loop.py").write_text(twice.replace("run.end_step()", "run.end_step(2)").replace("my-loop", "loop"))
    given = [*SMALL, "--epochs", "2", "--checkpoint-every", "0"]
    runs = []
    for name, more, status in ("run", [], 0), ("other", ["--trainers", "fit", "loop.py:MyLoop"], 1):
        ended = place.run(Request([*given, "--name", name, *more], ""))
        assert ended.status == status, ended
        runs.append(copied(place.here / "reports" / name, place.folder.parent / "recorded" / name))
    where = copied(runs[0], place.folder / "harmed" / "run")
    return runs[0], runs[1], {name: view() for name, view in views(where).items()}


def files_of(run: Path) -> list[Path]:
    """The files of a run."""
    return sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())


def views(run: Path) -> dict[str, Callable[[], str]]:
    """Every way to read a run without TensorFlow: a function that returns all that it shows as text."""

    def page() -> str:
        html.write(run)
        return (run / "report.html").read_text()

    def drawn() -> str:
        redraw.make([run], None, False)
        return (run / "report.html").read_text()

    return {
        "load": lambda: repr(compare.load(run)),
        "metrics": lambda: compare.load(run).metrics.to_csv(),
        "details": lambda: repr(compare.load(run).details),
        "gaps": lambda: compare.load(run).gaps.to_csv(),
        "judge": lambda: repr(judge(Recorded.read(run))),
        "weights": lambda: repr([[w.sum() for w in r.weights(1) or ()] for r in Recorded.read(run).records]),
        "report": page,
        "drawn": drawn,
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


def judged(run: Path, expected: dict[str, str], *, drawn: bool) -> list[str]:
    """What is shown of a harmed run and is neither what the unharmed run shows nor a clear refusal.

    Args:
        run: the harmed run.
        expected: what the unharmed run shows, by the view.
        drawn: whether its picture is drawn, too, which takes a second.
    """
    failures = []
    for name, view in views(run).items():
        if name == "drawn" and not drawn:
            continue
        text, failure = shown(view)
        if text and text != expected[name]:
            failure = "shows something else than the undamaged run"
        if failure:
            failures.append(f"{name}: {failure}")
    return failures


def kind_of(file: Path) -> str:
    """The kind of a run's file."""
    return f"records/*{file.suffix}" if file.parts[0] == "records" else file.name


def copied(run: Path, to: Path) -> Path:
    """A fresh copy of a run, without what is not read."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(run, to, ignore=shutil.ignore_patterns(*UNREAD)))
