"""Bad requests: options, files and environments, made at random from right and wrong values."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from compare.engine.data import SAMPLE_FOLDER
from compare.option import flag
from compare.options import EXPERIMENTS, TRAINERS, Options, declaration
from compare.records import read_checked, write_checked
from compare.strategy_specs import CLUSTERS
from scripts.hostile_trials.common import LOOP, SMALL, TASK, Place, Request, Result

OLD_RUN = [*SMALL, "--name", "old"]
CUT_RUN = [*SMALL, "--name", "cut"]
NUMBERS = [
    "-1",
    "1.5",
    "1e3",
    "two",
    "0x10",
    "1_0",
    "nan",
    "inf",
    "-0",
    "٣",
    "²",
    "",
    " ",
    "1\n2",
    "\udcff",
    "½",
    "true",
]
HUGE = ["9" * 25, "9" * 5000, str(2**31), str(2**32), str(2**63), "1000000"]
TEXTS = [
    "", " ", "nothing", "\udcff", "é", "a\nb", "\x1b[31mred", "a" * 300, "a" * 5000, "../out", ".", "..", "~",
    "$HOME", "%s%n%(x)s", "{folder}", "{0}", "{strategy}", "[bold]", "<b>&amp;", "-x", "x;y", "a/b", "*", "None",
    "\u202e", "=1+1", "e\u0301", "\u00a0", "-", "--", "0", "/", "//", "../../..", "a\\nb", "\ufeffx", "a:b:c", ":",
    "::", "\\", "'\"", "None:None", "\t", "..\\..", "CON", "😀",
]  # fmt: skip
NAMES = [
    "task.py", "reports", "reports/old", "gone", "pipe", "pipe.py", "folder.py", "circle", "dangling", "/dev/null",
    "/dev/full", "/proc/1/mem", "/proc/nothing", "reports/old/metrics.csv", "data", "broken.py:x", ".",
]  # fmt: skip
REFERENCES = [
    "os:getcwd", "json:dumps", "loop.py", "loop.py:", "loop.py:Other", "loop.py:MyLoop:x", "loop.py:__name__",
    "task.py:experiment", "compare:Run", "compare.nothing:x", "gone.py:x", "pipe.py:x", "folder.py:x", "sys:path",
    "loop:MyLoop", "./loop.py:MyLoop", "fit.py:fit", ".:x", ".loop:MyLoop", "a..b:c", "FIT", "fit:",
    "compare:CustomLoop",
]  # fmt: skip
COSTLY = {"epochs", "workers", "parameter_servers", "seeds", "max_steps", "jobs", "train_examples"}
"""Options of which a large number is right, and would keep the machine busy."""


def trial(place: Place, generator: random.Random) -> Result:
    """One request that is wrong in one way or more, or by chance in none."""
    place.fresh()
    _strange_files(place.here)
    kinds = list(KINDS)
    make = generator.choices(kinds, [KINDS[kind] for kind in kinds])[0]
    return place.tried(make(place.here, generator))


def _strange_files(here: Path) -> None:
    """Files that no one expects where a name is given."""
    os.mkfifo(here / "pipe")
    os.mkfifo(here / "pipe.py")
    (here / "folder.py").mkdir()
    (here / "circle").symlink_to("circle")
    (here / "dangling").symlink_to("nowhere")
    (here / "broken.py").write_bytes(b"\xff\x00 = (")


# Options


def options(here: Path, generator: random.Random) -> Request:
    """One to three options with values of every kind, mostly wrong ones."""
    arguments, reports = list(SMALL), "reports"
    declared = [each for each in fields(Options) if not declaration(each).python_only]
    for each in generator.choices(declared, k=generator.choice([1, 1, 2, 3])):
        values = _values(each, generator)
        arguments += [flag(each.name), *values]
        if each.name == "reports" and values:
            reports = values[0]
    if generator.random() < 0.1:
        extra = ["extra", "--nothing", "--epoch", "-e", "--", "--epochs=", "--check=yes", "--keras", "--reports"]
        arguments.insert(generator.randrange(len(arguments) + 1), generator.choice(extra))
    last = len(arguments) - arguments[::-1].index("--experiment")
    if re.fullmatch("[a-z0-9-]+", "".join(arguments[last : last + 1])):  # a built-in one, which may take minutes
        arguments[len(SMALL) : len(SMALL)] = ["--train-examples", "100"]
    anywhere = "--write-experiment" in arguments
    return Request(arguments, "options", reports=None if anywhere else reports)


def _values(declared: Any, generator: random.Random) -> list[str]:
    """Values on the command line for one option."""
    option, name = declaration(declared), declared.name
    if option.kind is bool:
        return []
    if option.several:
        return [_value(declared, generator) for _ in range(generator.choice([0, 1, 2, 2, 3]))]
    if generator.random() < 0.03:
        return []
    value = _value(declared, generator)
    return [value] if name != "reports" or value not in ("/", "~") else ["reports"]


def _value(declared: Any, generator: random.Random) -> str:
    option, name = declaration(declared), declared.name
    own: dict[str, Sequence[str]] = {
        "experiment": [*EXPERIMENTS, *NAMES, "task.py:other", "task.py:load_data", "task.py:", "loop.py"],
        "trainers": [*TRAINERS, *REFERENCES, "loop.py:MyLoop"],
        "margin": ["loss", "loss=", "=1", "loss=-1", "loss=0", "loss=nan%", "loss=1e999", "x=1", "loss=%", "loss=1%"],
        "scheduler": ["tcp://127.0.0.1:1", "tcp://", "127.0.0.1", "http://[", "tcp://127.0.0.1:99999999"],
        "scripts": ["task.py", "loop.py", *NAMES],
        "own": ["seeds", "weights", "order", "all"],
        "name": ["old", "cut", "new", ".lock", ".new-x"],
    }
    if option.kind is int and not option.choices:
        right = ["0", "1", "2", "3", "20"]
        return generator.choice([*right, *NUMBERS, *(HUGE[:2] if name in COSTLY else HUGE)])
    if option.choices:
        right = [str(each) for each in option.choices if each not in CLUSTERS or generator.random() < 0.3]
        return generator.choice([*right, right[0].upper(), right[0][:-1], f"{right[0]} ", *TEXTS[:8]])
    if option.kind is Path:
        return generator.choice([*NAMES, *TEXTS, "a/b/c", "new", "./reports/", "pipe/x", "task.py/x"])
    return generator.choice([*own.get(name, ()), *own.get(name, ()), *TEXTS])


# Users' files


def experiment_file(here: Path, generator: random.Random) -> Request:
    """An experiment's file that lost or gained something."""
    what = _damaged(here / "task.py", TASK, generator)
    return Request(_short(generator), "experiment files", what=what)


def trainer_file(here: Path, generator: random.Random) -> Request:
    """A loop's file that lost or gained something."""
    what = _damaged(here / "loop.py", LOOP, generator)
    return Request([*_short(generator), "--trainers", "fit", "loop.py:MyLoop"], "trainer files", what=what)


def _short(generator: random.Random) -> list[str]:
    return [*SMALL, *(["--check"] if generator.random() < 0.3 else [])]


def _damaged(path: Path, text: str, generator: random.Random) -> str:
    """Damages a Python file; returns how."""
    lines = text.splitlines(keepends=True)
    at = generator.randrange(len(lines))
    words = [index for index, line in enumerate(lines) if any(c.isalpha() for c in line)]
    word = generator.choice(words)
    junk = generator.choice(["None", "3", "object()", "''", "lambda *_: None", "[]", "print", "float('nan')", "{}"])
    ways: dict[str, Callable[[], bytes]] = {
        f"without line {at + 1}": lambda: "".join(lines[:at] + lines[at + 1 :]).encode(),
        f"line {at + 1} twice": lambda: "".join(lines[: at + 1] + lines[at:]).encode(),
        f"cut after line {at}": lambda: "".join(lines[:at]).encode(),
        f"every return returns {junk}": lambda: _returning(lines, junk, generator).encode(),
        f"line {word + 1} misspelled": lambda: "".join(
            _misspelled(line, generator) if index == word else line for index, line in enumerate(lines)
        ).encode(),
        "a byte that is no text": lambda: text.encode()[: at * 3] + b"\xff" + text.encode()[at * 3 :],
        "a null byte": lambda: text.encode()[: at * 3] + b"\0" + text.encode()[at * 3 :],
        "empty": lambda: b"",
        "deeply nested": lambda: (text + "x = " + "(" * 500 + ")" * 500 + "\n").encode(),
        f"an argument {junk}": lambda: text.replace("build_loss=build_loss", f"build_loss={junk}").encode(),
        "UTF-16": lambda: text.encode("utf-16"),
    }
    what = generator.choice(list(ways))
    path.write_bytes(ways[what]())
    return f"{path.name} {what}"


def _returning(lines: list[str], junk: str, generator: random.Random) -> str:
    at = generator.choice([index for index, line in enumerate(lines) if "return" in line] or [0])
    return "".join(
        f"    return {junk}\n" if index == at and "return" in line else line for index, line in enumerate(lines)
    )


def _misspelled(line: str, generator: random.Random) -> str:
    at = generator.choice([index for index, c in enumerate(line) if c.isalpha()])
    return line[:at] + generator.choice("xyz_9(") + line[at + 1 :]


# Data files


def data_files(here: Path, generator: random.Random) -> Request:
    """The built-in data set's files, of which one is damaged or of another kind."""
    shutil.copytree(SAMPLE_FOLDER, here / "data")
    path = generator.choice(sorted((here / "data").iterdir()))
    what = _harm(path, generator)
    return Request(["--experiment", "fashion-mnist", "--data-dir", "data", "--epochs", "1"], "data files", what=what)


def _harm(path: Path, generator: random.Random) -> str:
    """Damages a file, or replaces it by something else; returns how."""
    content = path.read_bytes()
    cut = generator.randrange(len(content) + 1)
    bit = generator.randrange(8 * max(1, len(content)))
    way = generator.choice(["cut", "empty", "gone", "folder", "pipe", "circle", "noise", "flip", "doubled", "json"])
    path.unlink()
    if way == "cut":
        path.write_bytes(content[:cut])
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "folder":
        path.mkdir()
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "circle":
        path.symlink_to(path.name)
    elif way == "noise":
        path.write_bytes(generator.randbytes(len(content)))
    elif way == "flip":
        path.write_bytes(bytes(b ^ (1 << bit % 8) * (i == bit // 8) for i, b in enumerate(content)))
    elif way == "doubled":
        path.write_bytes(content * 2)
    elif way == "json":
        path.write_text(generator.choice(["{}", "[]", "null", '""', "[" * 100_000, "1e999", '{"options": {}}']))
    return f"{path.name}: {way}"


# Recorded runs


def recorded_run(here: Path, generator: random.Random) -> Request:
    """A recorded run that is damaged, or another one, to be resumed, overwritten or compared with."""
    name = generator.choice(["old", "cut"])
    run = here / "reports" / name
    base = OLD_RUN if name == "old" else CUT_RUN
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    if generator.random() < 0.4:
        what = _other_value(run / "run.json", generator)
    else:
        what = _harm(generator.choice([*files, run / "run.json", run / "metrics.csv"]), generator)
    again = generator.choice(
        [
            [*base, "--resume"],
            [*base, "--resume"],
            base,
            [*SMALL, "--against", f"reports/{name}"],
            [*base, "--resume", "--seed", "1"],
        ]
    )
    return Request(again, "recorded runs", what=f"{name}: {what}")


def _other_value(path: Path, generator: random.Random) -> str:
    """Replaces one value in a JSON file of a run, whose checksum is right again then; returns what was done."""
    content = read_checked(path, since=1)
    place: Any = content
    where = []
    while isinstance(place, dict | list) and place:
        key = generator.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        where.append(key)
        holder, place = place, place[key]
        if generator.random() < 0.3:
            break
    holder[key] = generator.choice(JUNK)
    write_checked(path, content)
    return f"{path.name}: {where} is {str(holder[key])[:40]!r}"


JUNK: list[Any] = [None, "", "x", -1, 0, 10**30, 1.5, [], {}, [[]], {"a": None}, True, "../../x", "a" * 1000, "\u202e"]


# The environment


def tf_config(here: Path, generator: random.Random) -> Request:
    """A cluster that TF_CONFIG describes wrongly."""
    address = generator.choice(
        ["127.0.0.1:1", "a", "a:b", "127.0.0.1:99999999", ":::", "", "[::1]", "256.1.1.1:1", ":0"]
    )
    config: Any = {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
    part = generator.choice([config, config["cluster"], config["task"]])
    part[generator.choice(sorted(part))] = generator.choice(JUNK)
    text = json.dumps(config)
    ways = [
        text,
        text[: generator.randrange(len(text))],
        "[" * 100_000,
        "\udcff",
        text + text,
        "null",
        text.upper(),
        "{}",
    ]
    strategy = generator.choice(CLUSTERS)
    arguments = [*SMALL, "--strategy", strategy, *(["--workers", "1"] if generator.random() < 0.2 else [])]
    return Request(arguments, "TF_CONFIG", {"TF_CONFIG": generator.choice([*[text] * 5, *ways])})


def folders(here: Path, generator: random.Random) -> Request:
    """Folders that are links, have strange names, are nested or cannot be written, and a run that is in use."""
    name = generator.choice(
        ["ü 😀", "a" * 200, "-x", "e\u0301", " x ", "$HOME", "%s", "a'b\"c", "reports/deep/er", "x\u202ey"]
    )
    folder = here / name
    folder.mkdir(parents=True)
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: None,
        "link": lambda: (folder.rmdir(), folder.symlink_to("reports")),
        "link outside": lambda: (folder.rmdir(), folder.symlink_to("../tmp")),
        "file": lambda: (folder.rmdir(), folder.write_text("")),
        "foreign index": lambda: (folder / "index.html").write_text("<p>mine"),
        "index is a folder": lambda: (folder / "index.html").mkdir(),
        "index is a pipe": lambda: os.mkfifo(folder / "index.html"),
        "neighbour is damaged": lambda: _neighbour(here / "reports" / "old", folder, "run.json", generator),
        "neighbour's verdict is damaged": lambda: _neighbour(
            here / "reports" / "old", folder, "verdict.json", generator
        ),
        "neighbour is a pipe": lambda: os.mkfifo(folder / "old"),
        "attribute": lambda: folder.chmod(0o500),
    }
    way = generator.choice(list(ways))
    ways[way]()
    arguments = [
        *SMALL,
        *generator.choice([["--check"], ["--quiet"], ["--name", "new"], ["--name", "new", "--resume"]]),
    ]
    before = f"import os; os.chdir({str(folder)!r})" if generator.random() < 0.1 and folder.is_dir() else ""
    inside = "link" in way or bool(before)
    given = generator.choice([name, f"./{name}/", f"reports/../{name}"])
    if given[0] == "-":
        arguments += [f"--reports={given}"]
    else:
        arguments += ["--reports", given]
    return Request(arguments, "folders", before=before, reports=None if inside else name, what=way)


def _neighbour(old: Path, folder: Path, file: str, generator: random.Random) -> None:
    shutil.copytree(old, folder / "old")
    _harm(folder / "old" / file, generator)


def environment(here: Path, generator: random.Random) -> Request:
    """Variables and a working directory that no one expects."""
    variables = [
        "TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "TMPDIR", "MPLBACKEND", "COLUMNS", "LINES", "TERM", "NO_COLOR",
        "HOME", "LANG", "PYTHONHASHSEED", "OMP_NUM_THREADS", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "FORCE_COLOR",
    ]  # fmt: skip
    chosen = {
        generator.choice(variables): generator.choice(["", "0", "-1", "x", "nonsense", "/gone", "9" * 30, "\udcff"])
    }
    before = generator.choice(["", "", "os.mkdir('left'); os.chdir('left'); os.rmdir('../left')", "os.umask(0o777)"])
    return Request([*SMALL, "--check"], "environments", chosen, before, what=before)


def scripts(here: Path, generator: random.Random) -> Request:
    """Two scripts that train nothing, are damaged or are no scripts."""
    bodies = [
        "", "import sys; sys.exit(3)", "raise ValueError('no')", "import os; os._exit(0)", "print('x' * 10**6)",
        "import tensorflow as tf", "syntax error", "import os; os.chdir('/')", "import gone", "1/0",
        "def f(): f()\nf()",
    ]  # fmt: skip
    for name in ("first.py", "second.py"):
        (here / name).write_text(generator.choice(bodies))
    named = generator.choice([["first.py", "second.py"], ["first.py"], ["first.py", generator.choice(NAMES)]])
    more = generator.choice([[], [], ["--max-steps", "2"], ["--own", "seeds"], ["--epochs", "2"], ["--", "-x", "é"]])
    bodies_used = [(here / name).read_text() for name in ("first.py", "second.py")]
    return Request(["--scripts", *named, *more], "scripts", what=str(bodies_used))


KINDS: dict[Callable[[Path, random.Random], Request], float] = {
    options: 55, experiment_file: 10, trainer_file: 8, data_files: 6, recorded_run: 12, tf_config: 6, environment: 3,
    folders: 8,
    scripts: 3,
}  # fmt: skip
"""The kinds of bad requests, and how many of a hundred there are of each."""
