"""Hostile trials: what must always hold of a command is what the script finds out, and every failure is found again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.hostile_trials import code, requests
from scripts.hostile_trials.common import Place, Request, Result

REFUSED = "compare.py: --epochs 0: give a whole number, at least 1\n"


class Fake:
    """Instead of the command, does what a test wants in the folder of a trial."""

    TimeoutExpired = TimeoutError
    pid = -1

    def __init__(self, here: Path, status: int, out: str, err: str, does: Callable[[Path], Any]) -> None:
        self.here, self.does = here, does
        self.returncode, self.streams = status, (out.encode(), err.encode())

    def Popen(self, command: list[str], **_: object) -> Fake:
        return self

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        self.does(self.here)
        return self.streams


def tried(
    folder: Path, status: int, out: str = "", err: str = "", does: Any = lambda here: None, **more: Any
) -> Result:
    place = Place(folder)
    (place.here / "reports" / "old").mkdir(parents=True)
    place.commands = Fake(place.here, status, out, err, does)
    return place.tried(Request([], "kind", **more))


def judge(verdict: str, where: str = "reports/run") -> Callable[[Path], Any]:
    """Writes a verdict, as a run does."""

    def does(here: Path) -> None:
        (here / where).mkdir(parents=True)
        (here / where / "verdict.json").write_text(json.dumps({"verdict": verdict}))

    return does


def test_what_is_right_is_no_failure(tmp_path):
    good: list[dict[str, Any]] = [
        {"status": 2, "err": REFUSED},
        {"status": 0, "does": judge("identical")},
        {"status": 1, "does": judge("different")},
        {"status": 3, "does": judge("not-comparable"), "err": "compare.py: ValueError: no (task.py, line 3)\n"},
        {"status": 2, "does": judge("not-comparable"), "err": "compare.py: the trainer returned early\n"},
    ]
    for number, each in enumerate(good):
        assert tried(tmp_path / str(number), **each).failures == [], each


@pytest.mark.parametrize(
    ("told", "ended"),
    [
        ("status 7", {"status": 7}),
        ("0 lines that say why", {"status": 2}),
        ("2 lines that say why", {"status": 2, "err": REFUSED * 2}),
        ("a traceback", {"status": 3, "err": "Traceback (most recent call last):\n"}),
        ("more on stderr", {"status": 2, "err": f"noise\n{REFUSED}"}),
        ("control characters", {"status": 2, "err": "compare.py: \x1b[31mred\n"}),
        ("an error of its own", {"status": 3, "err": "compare.py: KeyError: 'x' (traceback in reports)\n"}),
        ("a line of", {"status": 2, "err": f"compare.py: {'x' * 5000}\n"}),
        ("does not tell", {"status": 3, "err": "compare.py: something\n", "told": "task.py, line 3"}),
        ("without a verdict.json", {"status": 0}),
        ("but the verdict", {"status": 0, "does": judge("different")}),
        ("judged as identical", {"status": 2, "err": REFUSED, "does": judge("identical")}),
        ("refused, and changed", {"status": 2, "err": REFUSED, "does": lambda here: (here / "reports/new").mkdir()}),
        ("refused, and changed", {"status": 2, "err": REFUSED, "does": lambda here: (here / "reports/old").rmdir()}),
        ("outside the reports folder", {"status": 0, "does": judge("identical", "elsewhere")}),
    ],
)
def test_what_is_wrong_is_a_failure(tmp_path, told, ended):
    (failure, *_) = tried(tmp_path, **ended).failures
    assert told in failure


class Recorder(Place):
    """Notes what would be done."""

    def fresh(self) -> None:
        self.here.mkdir(parents=True)
        run = self.here / "reports" / "old"
        run.mkdir(parents=True)

    def tried(self, request: Request) -> Result:
        files = {
            name: (self.here / name).read_bytes() for name in ("task.py", "loop.py") if (self.here / name).exists()
        }
        return Result(request.kind, repr((request, files)), [])


def test_a_trial_depends_on_its_seed_and_number_only(tmp_path):
    def made(folder: str, seed: str) -> str:
        return code.trial(Recorder(tmp_path / folder), random.Random(seed)).what

    assert made("a", "1 code 2") == made("b", "1 code 2") != made("c", "1 code 3")


def test_every_place_for_user_code_exists_and_its_line_is_the_right_one():
    for where in code.PLACES:
        files, line = code._with(where, "harm()")
        name, _, number = line.partition(", line ")
        assert files[name].splitlines()[int(number) - 1].strip() == "harm()"
        compile(files[name], name, "exec")


def test_every_odd_trainer_changes_the_loop_and_is_python():
    for what, (old, new) in code.TRAINERS.items():
        assert code.LOOP.count(old) >= 1, what
        compile(code.LOOP.replace(old, new), what, "exec")


def test_requests_have_options_of_every_kind(tmp_path):
    generator, seen = random.Random(0), set()
    for _ in range(600):
        seen |= {each for each in requests.options(tmp_path, generator).arguments if each.startswith("--")}
    assert {"--epochs", "--check", "--reports", "--trainers", "--scripts", "--strategy"} <= seen
