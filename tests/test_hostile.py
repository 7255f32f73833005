"""Whatever user code, options or files are: what must always hold of a command, on random examples of each."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import ROOT, Commands
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from user_files import LOOP, TASK

import compare
from compare.option import flag
from compare.options import OPTIONS
from compare.records.model import RecordError
from compare.reporting import html
from compare.verdict.outcomes import EXIT_STATUS

COMMAND = [sys.executable, str(ROOT / "scripts" / "compare.py")]
SMALL = ["--experiment", "task.py", "--strategy", "default", "--epochs", "1", "--batch-size", "10"]
FEW = settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

PLACES = {
    "task.py imported": ("task.py", "import compare\n"),
    "load_data": ("task.py", "def load_data():\n"),
    "build_model": ("task.py", "def build_model():\n"),
    "build_metrics": ("task.py", "def build_metrics():\n"),
    "loop.py imported": ("loop.py", "import tensorflow as tf\n"),
    "train begins": ("loop.py", "    def train(self, run):\n"),
    "traced step": ("loop.py", "        def step(x, y):\n"),
    "after a step": ("loop.py", "                run.end_step()\n"),
    "between epochs": ("loop.py", "        for epoch in run.epochs:\n"),
}
"""Where code is put: into which file, and after which text."""
CODE = [
    "raise ValueError('a\\nb\\rc')", "raise ValueError('\\x1b[31mred')", "raise ValueError('x' * 10**6)",
    "raise SystemExit(0)", "raise SystemExit('text')", "raise BaseException('no')", "raise MemoryError", "import gone",
    "raise OSError(28, 'No space left')", "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "raise KeyError('\\udcff')", "f = lambda: f(); f()", "import os; os._exit(0)", "raise GeneratorExit", "exec('1 +')",
    "print('x' * 10**6)", "import os; os.chdir('/')", "import sys; sys.stdout.close()", "import sys; sys.stdout = None",
    "import os; os.close(1)", "import warnings; warnings.simplefilter('error')", "import sys; sys.argv.clear()",
    "import threading, time; threading.Thread(target=time.sleep, args=[1]).start()",
    "import tensorflow as tf; tf.config.run_functions_eagerly(True)", "import os; os.environ.clear()",
    "import os; os.fork() or os._exit(0)", "import numpy as np; np.seterr(all='raise')",
]  # fmt: skip
"""Code that ends what calls it, or leaves something behind in the process."""
VALUES = [
    "None", "3", "'text'", "[]", "{}", "object()", "float('nan')", "lambda: None", "b''", "(1, 2, 3)", "[None]",
    "{'loss': None}", "{'loss': 'x'}", "{'loss': 1j}", "{3: 1.0}", "{'a\\nb': 1.0}", "{'epoch': 1.0}",
    "{'loss': 10**400}", "{'=1+1': 1.0}", "{'loss': tf.zeros(3)}", "{'../x': 1.0}", "{'\\udcff': 1.0}", "range(3)",
]  # fmt: skip
"""What user code returns or reports where something else is wanted."""
TEXTS = [
    "",
    " ",
    "-1",
    "0",
    "nan",
    "x",
    "../x",
    "a" * 300,
    "\x1b[31m",
    "task.py",
    "task.py:other",
    "old",
    "1e99",
    "\udcff",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> tuple[Path, Path]:
    """A folder with the user's files and two recorded runs, to be copied for every example; and where it is copied."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "task.py").write_text(TASK)
    (folder / "loop.py").write_text(LOOP.replace('"my-loop"', '"loop"'))
    more = ["--epochs", "2", "--checkpoint-every", "0"]
    for name, trainer in ("old", "loop"), ("other", "loop.py:MyLoop"):
        before = f"import os; os.chdir({str(folder)!r})"
        commands.run([*COMMAND, *SMALL, *more, "--name", name, "--trainers", "fit", trainer], check=True, before=before)
    return folder, tmp_path_factory.mktemp("work") / "here"


def fresh(place: tuple[Path, Path]) -> Path:
    saved, here = place
    shutil.rmtree(here, ignore_errors=True)
    return Path(shutil.copytree(saved, here))


def files(here: Path) -> dict[str, bytes]:
    """What is there, without locks and what Python compiles files to."""
    paths = (path for path in here.parent.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in paths if "__pycache__" not in path.parts}


def holds(commands: Commands, here: Path, arguments: list[str], *, silent: bool = False) -> None:
    """Carries out a command, and asserts what must always hold of it."""
    before = files(here)
    status, out, err = commands.run([*COMMAND, *arguments], before=f"import os; os.chdir({str(here)!r})")
    own = [line for line in err.splitlines() if line.startswith("compare.py: ")]
    assert status in (0, 1, 2, 3)
    assert "Traceback (most recent" not in out + err
    assert len(own) <= 1 and all(line.isprintable() and len(line) < 1500 for line in own)
    assert status != 2 or silent or own
    after = files(here)
    changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
    verdicts = [json.loads(after[path])["verdict"] for path in changed if path.endswith("verdict.json")]
    if status in (0, 1) and not out.startswith("usage:"):
        assert [EXIT_STATUS[verdict] for verdict in verdicts] == [status]
    if status == 2 and not verdicts:
        assert changed == []
    assert all(path.startswith(str(here / "reports")) for path in changed)


def with_code(text: str, after: str, code: str) -> str:
    """A file with a line more behind some text, indented like the next line."""
    head, found, tail = text.partition(after)
    assert found, after
    line = tail.lstrip("\n").splitlines()[0]
    return f"{head}{found}{' ' * (len(line) - len(line.lstrip()))}{code}\n{tail}"


@FEW
@given(where=st.sampled_from(sorted(PLACES)), code=st.sampled_from(CODE), check=st.booleans())
def test_whatever_user_code_does(place: Any, commands: Commands, where: str, code: str, check: bool) -> None:
    here = fresh(place)
    name, after = PLACES[where]
    (here / name).write_text(with_code((here / name).read_text(), after, code))
    arguments = [*SMALL, "--trainers", "fit", "loop.py:MyLoop", *(["--check"] if check else [])]
    holds(commands, here, arguments, silent="std" in code or "close" in code)


RETURNS = [
    "return tf.keras.Sequential([tf.keras.layers.Dense(2)])",
    "return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    "return tf.keras.optimizers.SGD(0.1)",
    'return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]',
    "run.end_epoch(epoch, {})",
]
"""Lines of the user's files that give a value."""


@FEW
@given(line=st.sampled_from(RETURNS), value=st.sampled_from(VALUES))
def test_whatever_user_code_returns_or_reports(place: Any, commands: Commands, line: str, value: str) -> None:
    here = fresh(place)
    name = "loop.py" if "epoch" in line else "task.py"
    text = (here / name).read_text()
    assert line in text
    new = f"run.end_epoch(epoch, {value})" if "epoch" in line else f"return {value}"
    (here / name).write_text(text.replace(line, new))
    holds(commands, here, [*SMALL, "--trainers", "fit", "loop.py:MyLoop"])


@st.composite
def options(draw: Any) -> list[str]:
    """One to three options with values of every kind, mostly wrong ones."""
    arguments = []
    known = [(name, option) for name, option in OPTIONS.items() if not option.python_only]
    for name, option in draw(st.lists(st.sampled_from(known), max_size=3)):
        values = [] if option.kind is bool else [draw(st.sampled_from([*map(str, option.choices or ()), *TEXTS]))]
        arguments += [flag(name), *values * (2 if option.several else 1)]
    return arguments


@FEW
@given(given_options=options())
def test_whatever_is_asked_for(place: Any, commands: Commands, given_options: list[str]) -> None:
    if {"--reports", "--write-experiment"} & {*given_options}:
        return  # may write elsewhere
    holds(commands, fresh(place), [*SMALL, *given_options])


def shown(run: Path) -> str:
    """What a run shows where it is read without TensorFlow."""
    loaded = compare.load(run)
    html.write(run)
    page = re.sub('base64,[^"]*', "", (run / "report.html").read_text())  # files to download, byte by byte
    return f"{loaded}{loaded.details}{loaded.metrics.to_csv()}{loaded.gaps.to_csv()}{page}"


@settings(FEW, max_examples=25)
@given(data=st.data(), way=st.sampled_from(["flip", "cut", "doubled", "empty", "of another run"]))
def test_a_damaged_run_shows_what_it_showed_or_is_refused_by_name(place: Any, data: Any, way: str) -> None:
    here = fresh(place)
    run = here / "reports" / "old"
    expected = shown(run)
    unread = {".lock", "tensorflow.log", "report.html", "comparison.png"}
    names = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.name not in unread)
    name = data.draw(st.sampled_from(names))
    content = (run / name).read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
    other = here / "reports" / "other" / name
    changed = {"flip": flipped, "cut": content[:at], "doubled": content * 2, "empty": b""}
    (run / name).write_bytes(changed.get(way) if way in changed else other.read_bytes() if other.exists() else content)
    try:
        assert shown(run) == expected
    except (compare.RequestError, RecordError) as error:
        assert os.sep in str(error) and "\n" not in str(error)
