"""The command's door: help, refusals in one line, and no TensorFlow before it is needed."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock

import compare
from compare import signals
from compare.app import cli, loading, redraw, restore
from compare.app.command_line import parsed, parser
from compare.app.loading import load_experiment, load_trainers
from compare.app.provenance import code
from compare.app.run_folder import claimed
from compare.app.session import refuse_what_cannot_be_replaced
from compare.errors import NoVerdictError, RequestError, StorageError
from compare.modes import Logs, Scripts, ShortCheck, Study, Training
from compare.options import request
from compare.records.model import RecordError
from compare.reporting.result import Result
from compare.request import EXPERIMENTS, GROUPS, LOGGED, STRATEGIES, TWO_SCRIPTS, Request

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "compare.py"
HEAVY = ("tensorflow", "keras", "pandas", "matplotlib")

TRAINERS = """
class Loop:
    name = "my-loop"
    def train(self, run):
        raise AssertionError("must not be reached")
instance = Loop()
number = 5
class NoTrain:
    name = "no-train"
class NoName:
    def train(self, run): ...
class Blank(Loop):
    name = ""
class TwoLines(Loop):
    name = "a\\nb"
class Wants(Loop):
    def __init__(self, rate): ...
"""

Refuse = Callable[..., str]


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Carries out a command line that must be refused, in a folder with the file ``mine.py``; what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TRAINERS)

    def refuse(*arguments: str) -> str:
        assert cli.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("compare.py: ") and said.err.count("\n") == 1 and said.err.endswith("\n"), said.err
        return said.err.removeprefix("compare.py: ").rstrip("\n")

    return refuse


def python(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120)


# Statuses


@pytest.mark.parametrize("command", ["compare.py", "report.py", "restore.py"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("no"), 2),
        (RecordError("file", "damaged"), 2),
        (NoVerdictError("no"), 3),
        (StorageError("full"), 3),
        (MemoryError(), 3),
        (AssertionError("two\nlines"), 3),
        (OSError(5, "Input/output error"), 3),
        (KeyboardInterrupt(), 130),
    ],
    ids=repr,
)
def test_whatever_ends_a_command_is_one_line_and_never_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, error: BaseException, status: int
) -> None:
    """A status of 1 means ``different``; Python exits with it when an exception is not caught."""

    def ends(*_: object) -> None:
        raise error

    status = 2 if command == "report.py" and isinstance(error, StorageError) else status
    main, module, function, arguments = {
        "compare.py": (cli.main, cli, "refuse_if_missing", []),
        "report.py": (redraw.main, redraw, "make", ["run"]),
        "restore.py": (restore.main, restore, "restore", ["run"]),
    }[command]
    monkeypatch.setattr(module, function, ends)
    assert main(arguments) == status
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"{command}: ") and said.err.count("\n") == 1


WAITS = """
import os, signal, time
from compare import signals

signals.PATIENCE = 1
signals.catch()
signals.wait_for_step(True)
os.kill(os.getpid(), signal.SIGINT)
print("the step goes on", signals.interrupted(), 0 < signals.seconds_left() <= 1, flush=True)
began = time.monotonic()
try:
    time.sleep(30)
except KeyboardInterrupt:
    print("out of time", time.monotonic() - began < 10, flush=True)
signals.wait_for_step(False)
signals.catch()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
except KeyboardInterrupt:
    print("at once", flush=True)
"""


def test_a_signal_waits_for_the_step_in_hand_but_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, tmp_path / "waits.py"], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["the step goes on True True", "out of time True", "at once"], done.stderr


IGNORES = """
import os, signal
from compare import signals

signals.catch()
with signals.ended_by_force(lambda: None):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signals.catch_again()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        print("ignored")
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_user_code_that_ignores_signals_is_interrupted_after_its_step(tmp_path: Path) -> None:
    (tmp_path / "ignores.py").write_text(IGNORES)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, tmp_path / "ignores.py"], capture_output=True, text=True, env=environment)
    assert done.stdout == "interrupted\n", done.stderr


STUCK = """
import ctypes, os, signal, sys, threading
from compare import signals

signals.LIMIT, *seconds = map(float, sys.argv[1:])
signals.catch()
signal.siginterrupt(signal.SIGINT, False)
reader, writer = os.pipe()
with signals.ended_by_force(lambda: os._exit(130)):
    for each in seconds:
        threading.Timer(each, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Timer(6, os.write, (writer, b"x")).start()
    try:
        ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.parametrize(
    ("limit", "signals", "ends"),
    [(1, [0.5], True), (90, [0.5, 0.7, 3], True), (90, [0.5, 0.7], False)],
    ids=["unheard", "again", "twice at once"],
)
def test_a_call_that_does_not_return_to_python_ends_by_signals(
    tmp_path: Path, limit: int, signals: list[float], ends: bool
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, tmp_path / "stuck.py", str(limit), *map(str, signals)]
    assert subprocess.run(command, env=environment, timeout=60).returncode == (130 if ends else 0)


SIGNAL_IN_AN_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == os.environ["IMPORTED"]:
            try:
                signal.raise_signal(int(os.environ["SIGNAL"]))
            except BaseException:  # as an import in C may lose it
                pass
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    ("imported", "number", "says"),
    [
        ("compare.app.cli", signal.SIGINT, ""),
        ("compare.app.session", signal.SIGINT, "compare.py: interrupted\n"),
        ("compare.app.session", signal.SIGTERM, "compare.py: interrupted\n"),
    ],
)
def test_an_interruption_during_an_import_is_not_lost(tmp_path: Path, imported: str, number: int, says: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNAL_IN_AN_IMPORT)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "IMPORTED": imported, "SIGNAL": str(int(number))}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "compare.py", "--reports", tmp_path / "reports"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, says)
    assert not (tmp_path / "reports").exists()


def test_what_was_interrupted_and_has_ended_does_not_end_the_command_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, over = threading.Event(), threading.Event()

    class Late(threading.Thread):
        def run(self) -> None:
            begin.wait()
            super().run()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(signals.threading, "Thread", Late)
    monkeypatch.setattr(signals, "LIMIT", 0.1)
    try:
        signals.catch()
        with pytest.raises(KeyboardInterrupt), signals.ended_by_force(over.set):
            signal.raise_signal(signal.SIGINT)
        signals.catch()  # by the command after it
        begin.set()
        assert not over.wait(1)
    finally:
        signals.catch()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="this system has no SIGCHLD")
def test_a_supervisor_that_ignores_the_ends_of_children_keeps_nobody_from_waiting_for_them() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        signals.catch()
        assert subprocess.run(["false"]).returncode == 1
    finally:
        for number, handler in {**handlers, signal.SIGCHLD: before}.items():
            signal.signal(number, handler)


# Help, from anywhere, at once


@pytest.mark.parametrize("where", ["/", ROOT, ROOT / "scripts", ROOT / "compare"], ids=str)
def test_help_works_from_any_folder_and_imports_nothing_heavy(where: str | Path) -> None:
    done = python("-X", "importtime", SCRIPT, "--help", cwd=Path(where))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ") and "--trainers" in done.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "compare" in imported
    assert imported.isdisjoint(HEAVY)


def test_help_works_without_the_package_installed(tmp_path: Path) -> None:
    """-S: no site-packages, hence no package but the one beside the script."""
    done = python("-S", os.path.relpath(SCRIPT, tmp_path), "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_dependencies_a_line_says_how_to_install_them(tmp_path: Path) -> None:
    """-S: no site-packages, as in another Python than the one that has the package."""
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    shutil.copytree(ROOT / "compare", project / "compare", ignore=shutil.ignore_patterns("__pycache__", "datasets"))
    script = shutil.copy(SCRIPT, project / "scripts")
    shutil.copy(SCRIPT.with_name("fit_vs_loop.py"), project / "scripts")
    before = sorted(tmp_path.rglob("[!_]*"))
    done = python("-S", "-B", script, "--reports", tmp_path / "reports", cwd=tmp_path)
    assert (done.returncode, done.stdout, sorted(tmp_path.rglob("[!_]*"))) == (2, "", before)
    assert done.stderr.startswith(f"compare.py: {sys.executable} has no tensorflow, keras, numpy, ")
    assert done.stderr.count("\n") == 1 and "pip install -e" in done.stderr and str(project) in done.stderr
    activate = project / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    assert python("-S", script, cwd=tmp_path).stderr.endswith(
        f"; activate the environment that has them: . {activate}\n"
    )
    # What is wrong with the request comes first: it would be refused anyway.
    assert "--epochs 0" in python("-S", SCRIPT, "--epochs", "0", cwd=tmp_path).stderr


def test_a_machine_without_a_folder_for_temporary_files_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    assert cli.main(["--help"]) == 2
    assert "no folder for temporary files can be written to: set TMPDIR" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["report.py", "restore.py"])
def test_other_scripts_say_which_python_lacks_packages(tmp_path: Path, script: str) -> None:
    done = python("-S", SCRIPT.with_name(script), "run", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{sys.executable} lacks packages" in done.stderr and "PYTHONPATH" not in done.stderr


def test_a_current_folder_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for main in (cli.main, redraw.main):
        assert main(["--help"]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.endswith(
            "the current folder does not exist any more: change to another one\n"
        )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: (run / "comparison.png").mkdir(), "comparison.png: a folder is in its place: remove it"),
        (lambda run: (run / "records").write_text(""), "records: a file is in its place: remove it"),
        (lambda run: (run / "checkpoints" / "fit" / "ckpt-1.index").mkdir(parents=True), "ckpt-1.index: a folder is"),
        (lambda run: (run / "checkpoints" / "fit" / "ckpt-1.data-00000-of-00001").mkdir(parents=True), "a folder is"),
    ],
)
def test_a_run_is_not_resumed_where_its_training_would_end(
    tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    refuse_what_cannot_be_replaced(tmp_path)
    damage(tmp_path)
    with pytest.raises(RecordError, match=re.escape(told)):
        refuse_what_cannot_be_replaced(tmp_path)


def test_the_packages_that_are_looked_for_are_those_that_pyproject_requires() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [re.match(r"[\w-]+", each).group() for each in required] == list(cli.PACKAGES)  # type: ignore[union-attr]


def test_the_version_is_shown_with_tensorflows(tmp_path: Path) -> None:
    done = python("-X", "importtime", SCRIPT, "--version", cwd=tmp_path)
    assert re.fullmatch(
        rf"fit-vs-loop {compare.__version__}, TensorFlow 2\.\S+, Keras 3\.\S+, Python 3\.\S+\n", done.stdout
    )
    assert done.returncode == 0 and "| tensorflow" not in done.stderr
    without = python("-S", SCRIPT, "--version", cwd=tmp_path)
    assert (without.returncode, without.stderr) == (0, "") and "TensorFlow" not in without.stdout


MODES = {"": Training, "check": ShortCheck, "scripts": Scripts, "logs": Logs}


@pytest.mark.parametrize("word", MODES)
def test_help_fits_a_screen_and_its_examples_are_accepted(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/fit-vs-loop"])
    monkeypatch.setenv("COLUMNS", "80")
    text = parser(MODES[word]).format_help()
    lines = text.splitlines()
    assert 24 <= len(lines) <= 50 and max(map(len, lines)) <= 80, text
    assert lines[0].startswith(f"usage: fit-vs-loop {word}".rstrip()) and "--help-all" in text
    for other in ("--jobs", "--parallel", "--checkpoint-every"):
        assert other not in text, "few people need it, or it has no meaning here"
    examples = re.findall(r"^  (\S.*)$", text.partition("examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        assert type(parsed(shlex.split(example)[1:])) is MODES[word]


def test_all_options_are_in_groups() -> None:
    text = parser(everything=True).format_help()
    headings = re.findall(r"^([a-z ]+):$", text, re.MULTILINE)
    assert headings == ["options", *(group for group in GROUPS if group not in (TWO_SCRIPTS, LOGGED)), "examples"]
    assert text.partition("options:")[2].partition(f"{GROUPS[0]}:")[0].count("  -") == 3, "help and version only"
    assert "--checkpoint-every" in text and "--jobs" in text and "--max-steps" not in text


def test_help_of_all_options_is_asked_for_of_each_mode(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for arguments in (["--help"], ["--help-all"], ["check", "--help-all"], ["--check", "--help-all"]):
        with pytest.raises(SystemExit, match="0"):
            parsed(arguments)
        said[" ".join(arguments)] = capsys.readouterr().out
    assert "--tensorboard" not in said["--help"] and "--tensorboard" in said["--help-all"]
    assert "--tensorboard" not in said["check --help-all"] and "--jit" not in said["check --help-all"]
    assert said["--check --help-all"] == said["check --help-all"]


@pytest.mark.parametrize(
    ("one", "other", "mode"),
    [
        (["scripts", "a.py", "b.py", "--quiet", "--", "--x", "3"],
         ["--quiet", "--scripts", "a.py", "b.py", "--", "--x", "3"], Scripts),
        (["scripts", "a.py"], ["--scripts=a.py"], Scripts),
        (["check", "--seed", "3"], ["--seed", "3", "--check"], ShortCheck),
        (["check", "--seed", "3"], ["--seed", "3", "--epochs", "2", "--check"], ShortCheck),
        (["logs", "a.csv", "b.csv", "--margin", "loss=1%"], ["--logs", "a.csv", "b.csv", "--margin", "loss=1%"], Logs),
        (["--seed", "3"], ["--seeds", "1", "--seed", "3"], Training),
        (["--seeds", "3", "--jobs", "2"], ["--jobs", "2", "--seeds", "3"], Study),
    ],
)  # fmt: skip
def test_each_mode_is_asked_for_by_a_subcommand_or_an_option(
    one: list[str], other: list[str], mode: type[Request]
) -> None:
    assert parsed(one) == parsed(other)
    assert type(parsed(one)) is mode


def test_the_command_calls_itself_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for called, shown, prefix in (
        ("/somewhere/bin/fit-vs-loop", "fit-vs-loop", "fit-vs-loop"),
        ("scripts/compare.py", "python scripts/compare.py", "compare.py"),
    ):
        monkeypatch.setattr("sys.argv", [called])
        text = parser().format_help()
        assert text.startswith(f"usage: {shown} [options]\n") and text.count(f"{shown} ") >= 6
        assert cli.main(["--epochs", "0"]) == 2
        assert capsys.readouterr().err.startswith(f"{prefix}: --epochs 0: ")


def test_the_script_works_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "compare.py"
    link.symlink_to(SCRIPT)
    assert python(link, "--help", cwd=tmp_path).returncode == 0


def test_a_refusal_of_the_real_command_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = python(SCRIPT, "--epochs", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "compare.py: --epochs 0: give a whole number, from 1 to 1000000\n"
    assert list(tmp_path.iterdir()) == []


# What argparse refuses, and the options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "two"], "--epochs 'two': give a whole number"),
        (["--epochs", "1e3"], "--epochs '1e3': give a whole number"),
        (["--epochs"], "argument --epochs: expected one argument (see --help)"),
        (["--epoch", "2"], "unrecognized arguments: --epoch 2; did you mean --epochs? (see --help)"),
        (
            ["scripts", "a.py", "b.py", "--epoch", "2"],
            "unrecognized arguments: --epoch 2; what the scripts themselves take comes after -- (see --help)",
        ),
        (["--epo", "2"], "unrecognized arguments: --epo 2; did you mean --epochs? (see --help)"),
        (["--trainer=fit"], "unrecognized arguments: --trainer=fit; did you mean --trainers? (see --help)"),
        (
            ["a.py", "b.py"],
            "a.py: no such subcommand; there are check, scripts, logs; did you mean scripts a.py b.py? (see --help)",
        ),
        (
            ["a.py", "--epochs", "2"],
            "a.py: no such subcommand; there are check, scripts, logs; did you mean --experiment a.py, or scripts "
            "a.py? (see --help)",
        ),
        (
            ["scrips", "a.py", "b.py"],
            "scrips: no such subcommand; there are check, scripts, logs; did you mean scripts? (see --help)",
        ),
        (
            ["check", "a.py", "b.py"],
            "unrecognized arguments: a.py b.py; did you mean scripts a.py b.py? (see --help)",
        ),
        (["--quiet", "check"], "check after options; a subcommand comes first (see --help)"),
        (
            ["scripts", "a.py", "--epochs", "2"],
            "--epochs has no meaning with scripts, which train as written: leave it out",
        ),
        (["check", "--export"], "--export has no meaning in a short check: leave it out"),
        (["check", "--scripts", "a.py"], "--scripts has no meaning in a short check: leave it out"),
        (["--max-steps", "9"], "--max-steps is for scripts only: leave it out, or give two scripts"),
        (
            ["scripts", "a.py", "b.py", "c.py"],
            "scripts takes one script or two, not 3; for more, run it once for each: "
            'for each in loops/*.py; do fit-vs-loop scripts FIT.py "$each"; done',
        ),
        (["check", "--", "3"], "-- begins the arguments of scripts: give two scripts before it, or leave it out"),
        (
            ["--keep", "sed", "--scripts", "a.py"],
            "--keep sed: unknown; there are seeds, weights, order; did you mean seeds?",
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense (see --help)"),
        (["--a\nb"], "unrecognized arguments: --a b (see --help)"),
        (["fit", "loop"], "fit: no such subcommand; there are check, scripts, logs (see --help)"),
        (["--trainers"], "argument --trainers: expected at least one argument (see --help)"),
        (["--trainers", "fit"], "--trainers needs a reference and at least one candidate, such as: fit loop"),
        (["--seed", "-1"], "--seed -1: give a whole number, from 0 to 4294967295"),
        (["--name", "../x"], "--name '../x': give a plain folder name, it is made inside reports"),
        (
            ["--name", "\udcc3"],
            r"--name '\udcc3': this locale (LC_ALL, LANG) cannot read it; give a plain folder name, "
            "it is made inside reports",
        ),
        (
            ["--strategy", "MirroredStrategy"],
            f"--strategy MirroredStrategy: unknown; there are {', '.join(STRATEGIES)}; did you mean mirrored?",
        ),
        (["--strategy", "fast"], f"--strategy fast: unknown; there are {', '.join(STRATEGIES)}"),
        (
            ["--strategy", "default", "--replicas", "2"],
            "--strategy default has one replica, --replicas asks for 2: use --strategy mirrored",
        ),
    ],
)
def test_a_bad_option_is_named(refuse: Refuse, tmp_path: Path, arguments: list[str], message: str) -> None:
    assert refuse(*arguments) == message
    assert not (tmp_path / "reports").exists()


def test_a_script_that_may_not_be_read_is_refused(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: not str(path).endswith(".py"))
        assert refuse("--scripts", "mine.py", "bad.py") == "mine.py: cannot be read (Permission denied)"
    assert not (tmp_path / "reports").exists()


def test_an_option_may_be_written_as_the_keyword_of_python_is(refuse: Refuse) -> None:
    assert refuse("--train_examples=0") == refuse("--train-examples=0") and "--train-examples" in refuse(
        "--train_examples=0"
    )
    given = parsed(["scripts", "mine.py", "mine.py", "--max_steps", "5", "--", "--max_steps", "--own"])
    assert (given.max_steps, given.script_arguments) == (5, ("--max_steps", "--own"))  # type: ignore[attr-defined]


def test_a_file_in_a_folder_that_cannot_be_entered_is_not_called_missing(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def forbidden(path: object, *args: object, **options: object) -> object:
        if str(path).endswith("hidden.py"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", forbidden)
    assert refuse("--scripts", "mine.py", "hidden.py") == "hidden.py: cannot be read (Permission denied)"


def test_a_file_that_is_not_there_may_be_one_beside_it(refuse: Refuse, tmp_path: Path) -> None:
    os.symlink("gone.py", "link.py")
    assert refuse("--scripts", "mine.py", "link.py") == "link.py: it is a link that leads to no file"
    assert refuse("--scripts", "mine.py", "mime.py") == "mime.py: there is no such file; did you mean mine.py?"
    assert refuse("--scripts", "mine.py", "") == "'': there is no such file"
    (tmp_path / "log.csv").write_text("epoch,loss\n1,0.5\n")
    assert (
        refuse("--scripts", "mine.py", "log.csv") == "log.csv is a log, not a script: compare it with fit-vs-loop logs"
    )
    with zipfile.ZipFile("app.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    (tmp_path / "mine.pyc").write_bytes(MAGIC_NUMBER + b"\0")
    assert refuse("--scripts", "mine.py", "mine.pyc") == "mine.pyc is compiled, not a script: give its source"
    told = "app.pyz is an archive, not a script: unpack it, and give its __main__.py"
    assert refuse("--scripts", "mine.py", "app.pyz") == told


# Names of trainers and experiments


def test_an_unknown_trainer_lists_what_there_is(refuse: Refuse, tmp_path: Path) -> None:
    assert refuse("--trainers", "fitt", "loop") == (
        "--trainers fitt: unknown; there are fit, loop, train-step, tutorial, or FILE.py:ATTR or package.module:ATTR "
        "for your own; did you mean fit?"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.py"], "nothing is left of a request that was refused"


def test_an_unknown_experiment_lists_what_there_is(refuse: Refuse, tmp_path: Path) -> None:
    assert refuse("--experiment", "mnist", "--trainers", "mine.py:Loop", "mine.py:instance") == (
        f"--experiment mnist: unknown; there are {', '.join(EXPERIMENTS)}, or FILE.py[:ATTR] for your own; did you "
        "mean fashion-mnist?"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.py"]


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ("gone.py:Loop", "gone.py: there is no such file"),
        ("mine.py", "--trainers mine.py: name the trainer after a colon, as in mine.py:MyLoop"),
        ("mine.py:Lop", "mine.py has no 'Lop'; did you mean Loop?"),
        ("mine.py:Xyz", "mine.py has no 'Xyz'; it has Loop, instance, NoName, Blank, TwoLines"),
        (
            "mine.py:number",
            "mine.py:number is no trainer: it needs a name in one printable line and a method train(self",
        ),
        ("mine.py:NoTrain", "mine.py:NoTrain is no trainer: it needs a name"),
        ("mine.py:NoName", "mine.py:NoName is no trainer: it needs a name"),
        ("mine.py:Blank", "mine.py:Blank is no trainer: it needs a name"),
        ("mine.py:TwoLines", "mine.py:TwoLines is no trainer: it needs a name"),
        ("mine.py:Wants", "trainer Wants cannot be made without arguments: TypeError: "),
        ("no.such.module:Loop", "no.such.module cannot be imported: ModuleNotFoundError: No module named 'no'; give "),
        (":Loop", "--trainers :Loop: unknown; there are fit, loop, train-step, tutorial, or FILE.py:ATTR"),
        ("json:Gone", "json has no 'Gone'"),
    ],
)
def test_a_trainer_of_ones_own_that_is_none_is_refused(refuse: Refuse, trainer: str, message: str) -> None:
    assert refuse("--trainers", trainer, "mine.py:Loop").startswith(message)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\nx = 1 / 0\n", "broken.py cannot be imported: ZeroDivisionError: division by zero (FILE, line 2)"),
        ("def f():\n    raise OSError('a\\nb')\n\nf()\n", "broken.py cannot be imported: OSError: a b (FILE, line 2)"),
        ("x = (\n", "broken.py cannot be imported: SyntaxError: '(' was never closed (broken.py, line 1)"),
        (
            "import compare\nraise compare.RequestError('mine')\n",
            "broken.py cannot be imported: RequestError: mine (FILE, line 2)",
        ),
    ],
)
def test_a_file_of_ones_own_that_fails_is_refused_with_its_line(
    refuse: Refuse, tmp_path: Path, code: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(code)
    message = message.replace("FILE", str(tmp_path / "broken.py"))
    assert refuse("--trainers", "broken.py:Loop", "mine.py:Loop") == message
    assert refuse("--experiment", "broken.py", "--trainers", "mine.py:Loop", "mine.py:Loop") == message


def test_a_file_that_switches_eager_execution_off_is_refused(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphs.py").write_text("import sys\nsys.modules['tensorflow'].executing_eagerly = bool\nLoop = 1\n")
    monkeypatch.setitem(
        sys.modules,
        "tensorflow",
        Mock(**{"executing_eagerly": lambda: True, "distribute.has_strategy": bool}, __spec__=Mock()),
    )
    told = "graphs.py switches eager execution off, which training needs: remove that from it"
    assert refuse("--trainers", "graphs.py:Loop", "graphs.py:Loop") == told


def test_a_module_that_is_beside_the_folder_of_a_file_is_found_by_advice(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "task.py").write_text("import my_models.cnn\n")
    said = refuse("--experiment", "tests/task.py")
    assert "No module named 'my_models' (" in said and "PYTHONPATH" not in said
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "cnn.py").write_text("import no_such_package\n")
    assert refuse("--experiment", "tests/task.py").endswith("; run it with PYTHONPATH=.")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("import os\nos._exit(1)\n", "os._exit(1)"),
        ("import posix\nposix._exit(0)\n", "os._exit(0)"),
        ("\nraise GeneratorExit\n", "GeneratorExit"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--parallel"], ["--seeds", "2"], ["--check"], ["--resume", "--name", "begun"]])
def test_a_file_of_ones_own_that_ends_the_process_is_no_verdict(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    what: str,
    more: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("compare.app.ready.limit_threads", lambda threads: None)  # another test may have used them
    (tmp_path / "broken.py").write_text(code)
    arguments = ["--experiment", "broken.py", "--trainers", "fit", "loop", *more]
    if "--resume" in more:
        with claimed(request(experiment="broken.py", name="begun")):
            pass  # it was interrupted before the file was imported
    assert cli.main(arguments) == 3
    said = capsys.readouterr().err
    told = f"{what} ({tmp_path / 'broken.py'}, line 2); raise an error instead\n"
    assert said == f"compare.py: importing broken.py ended the run before its verdict: {told}"


def test_an_experiment_of_ones_own_that_is_none_is_refused(refuse: Refuse) -> None:
    trainers = ("--trainers", "mine.py:Loop", "mine.py:instance")
    assert refuse("--experiment", "mine.py:numbr", *trainers) == "mine.py has no 'numbr'; did you mean number?"
    trainers = ["--trainers", "mine.py:Loop", "mine.py:Loop"]
    assert refuse("--experiment", "gone.py", *trainers) == "gone.py: there is no such file"
    assert not Path("reports").exists(), "nothing is left"
    assert "… unknown; there are " in (text := refuse("--trainers", "a" * 5000, "loop")) and len(text) < 500
    assert refuse("--experiment", "mine.py", *trainers).startswith("mine.py has no 'experiment'")
    assert refuse("--experiment", "mine.py:number", *trainers) == (
        "mine.py:number is of type int, not a compare.Experiment"
    )
    assert refuse("--experiment", "mine.py:number", "--data-dir", "x", *trainers).startswith(
        "--data-dir is for built-in"
    )


def test_trainers_of_the_same_name_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINERS)
    path = f"{tmp_path}/mine.py"
    loaded = load_trainers(request(trainers=(f"{path}:Loop", f"{path}:instance", f"{path}:Loop")))
    assert [name for name, _ in loaded] == ["my-loop", "my-loop-2", "my-loop-3"]
    assert len({id(trainer) for _, trainer in loaded}) == 3


def test_two_files_that_import_neighbours_of_one_name_have_each_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(loading, "_folders", [])
    for number, file in (("one", "neighbour.py"), ("two", "neighbour.py"), ("three", "neighbour/__init__.py")):
        (tmp_path / number / file).parent.mkdir(parents=True)
        (tmp_path / number / file).write_text(f"name = {number!r}")
        (tmp_path / number / "task.py").write_text("import neighbour\nname = neighbour.name\n")
    assert [loading._file_module(tmp_path / each / "task.py").name for each in ("one", "two", "three", "one")] == [
        "one", "two", "three", "one",
    ]  # fmt: skip


def test_a_run_in_python_leaves_the_search_path_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(TRAINERS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as in a script that is beside it
    before = list(sys.path)
    with pytest.raises(RequestError, match="has no 'gone'"):
        compare.run(f"{tmp_path}/mine.py:gone", strategy="default", reports=tmp_path, quiet=True)
    assert sys.path == before


@pytest.mark.parametrize("folder", ["plain", "with space", "12:30", "ünïcode"])
def test_a_file_of_ones_own_is_found_wherever_it_lies_and_finds_its_neighbours(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    helper = f"helper_{abs(hash(folder))}"
    (tmp_path / folder / f"{helper}.py").write_text("RATE = 0.5\n")
    # Text annotations make dataclasses look their module up.
    (tmp_path / folder / "json.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        f"from {helper} import RATE\n"
        "@dataclass\nclass Loop:\n    rate: float = RATE\n    name: str = 'mine'\n    def train(self, run): ...\n"
    )
    wanted = f"{tmp_path / folder}/json.py:Loop"
    ((_, trainer), _) = load_trainers(request(trainers=(wanted, wanted)))
    assert trainer.rate == 0.5  # type: ignore[attr-defined]
    assert sys.modules["json"] is json, "a file takes the place of no module of its name"


def test_an_experiment_object_is_taken_as_it_is() -> None:
    for wrong in (5, None, ("x",)):
        with pytest.raises(RequestError, match=r"not a compare\.Experiment"):
            load_experiment(request(experiment=wrong))  # type: ignore[arg-type]


# The run's folder


def test_a_name_that_is_taken_is_refused_and_what_is_there_untouched(refuse: Refuse, tmp_path: Path) -> None:
    taken = tmp_path / "reports" / "mine"
    taken.mkdir(parents=True)
    (taken / "metrics.csv").write_text("precious")
    (tmp_path / "reports" / "file").write_text("precious")
    (tmp_path / "reports" / "link").symlink_to("gone")
    for name in ("mine", "file", "link"):
        assert refuse("--name", name) == (
            f"--name {name}: reports/{name} exists and is not overwritten; choose another name"
        )
    assert sorted(str(path.relative_to(tmp_path / "reports")) for path in tmp_path.rglob("reports/**/*")) == [
        "file",
        "link",
        "mine",
        "mine/metrics.csv",
    ]
    assert (taken / "metrics.csv").read_text() == (tmp_path / "reports" / "file").read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ("class MyLoop:\n    pass", True),
        ("MyLoop = make()", True),
        ("class MyLoop:\n    pass\nfrom more import *", False),
        ("class MyLoop:\n    pass\nglobals()[name] = 1", False),
        ("class MyLoop:\n    pass\nfrom more import MyLop", False),
        ("class MyLoop(:", False),  # said when it is run
        ("class Other:\n    pass", False),  # what it has is said when it was run
    ],
)
def test_a_misspelt_attribute_is_said_before_tensorflow_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, refused: bool
) -> None:
    (tmp_path / "loop.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    options = request(trainers=("fit", "loop.py:MyLop"))
    if not refused:
        options.refuse_missing_files()
        return
    with pytest.raises(RequestError, match=r"^loop.py has no 'MyLop'; did you mean MyLoop\?$"):
        options.refuse_missing_files()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "copy the run to a folder that can be written"),
        (errno.ENOSPC, "make room, or give another folder"),
    ],
)
def test_a_run_on_a_file_system_that_cannot_be_written_is_told_what_to_do(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(lock: FileLock) -> None:
        raise OSError(number, "no", lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(RequestError, match=rf"\(no\); {advice}"), claimed(request(name="begun", reports=tmp_path)):
        pass


def test_only_what_can_be_resumed_is_to_be_resumed(tmp_path: Path) -> None:
    with claimed(request(name="begun", reports=tmp_path)):
        pass
    (tmp_path / "fit.py").touch()
    scripts = parsed(["scripts", str(tmp_path / "fit.py"), "--name", "begun", "--reports", str(tmp_path)])
    for options, told in ((request(name="begun", reports=tmp_path), True), (scripts, False)):
        with pytest.raises(RequestError, match="is not overwritten; choose another name") as refused, claimed(options):
            pass
        assert ("--resume" in str(refused.value)) == told


def test_a_name_made_from_the_options_gets_a_number_when_it_is_taken(tmp_path: Path) -> None:
    options = request(reports=tmp_path / "new" / "reports", seed=7)
    names = []
    for _ in range(3):
        with claimed(options) as folder:
            names.append(folder.name)
    assert names == [options.default_name() + number for number in ("", "-2", "-3")]


def test_a_pipe_as_experiment_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    reading = threading.Thread(target=code, args=[request(experiment=str(tmp_path / "pipe.py"))], daemon=True)
    reading.start()
    reading.join(20)
    assert not reading.is_alive()


@pytest.mark.parametrize("reports", ["a/b/c", "new/../other"])
def test_a_refused_request_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reports: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--experiment", "gone.py", "--reports", reports]) == 2
    assert "gone.py: there is no such file" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        "main(['--experiment', 'gone.py'])",
        "main(['check', '--experiment', 'task.py', '--trainers', 'fit', 'gone.py:Loop'])",
        "compare.run('task.py', trainers=('fit', 'gone.py:Loop'))",
        "compare.assert_alike('gone.py', 'loop')",
    ],
)
def test_a_file_that_is_not_there_is_refused_before_tensorflow_is_imported(tmp_path: Path, call: str) -> None:
    (tmp_path / "task.py").write_text("")
    code = (
        f"import sys, compare\nfrom compare.app.cli import main\ntry:\n    {call}\n"
        "except compare.RequestError as error:\n    print(error, file=sys.stderr)\nprint('tensorflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (ended.stdout, "gone.py: there is no such file" in ended.stderr) == ("False\n", True)


@pytest.mark.parametrize("reports", ["file", "file/below", "dangling"])
def test_reports_that_cannot_be_a_folder_are_refused(refuse: Refuse, tmp_path: Path, reports: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "gone")
    assert "folder whose path is not UTF-8; give another one" in refuse("--reports", str(tmp_path / "r\udcff"))
    message = refuse("--reports", reports)
    assert message.startswith(f"--reports {reports}: results cannot be written there (")
    assert message.endswith("; give a folder that can be written to")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc is the one place where even root cannot write")
def test_reports_where_nothing_can_be_written_are_refused(refuse: Refuse) -> None:
    for reports in ("/proc", "/proc/reports"):
        assert refuse("--reports", reports).startswith(f"--reports {reports}: results cannot be written there (")


@pytest.mark.parametrize("name", [".lock", "tensorflow.log"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_file_in_the_place_of_one_is_refused_and_left_as_it_is(
    refuse: Refuse, tmp_path: Path, name: str, kind: str
) -> None:
    if (name, kind) == (".lock", "pipe"):
        pytest.skip("a pipe can be locked")
    (tmp_path / "precious").write_text("precious")
    with claimed(request(name="begun")) as folder:
        pass
    path = folder / name
    path.unlink(missing_ok=True)
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(tmp_path / "precious"),
    }
    make[kind]()
    message = refuse("--resume", "--name", "begun")
    assert message.startswith(f"reports/begun/{name} cannot be ") and "; remove it, " in message
    assert (tmp_path / "precious").read_text() == "precious"


# Exit status


def test_a_thread_that_user_code_leaves_does_not_keep_the_command_from_ending(tmp_path: Path) -> None:
    code = """
import threading, time
from compare.app import cli
from compare.app.command_line import parsed, parser
def main(arguments):
    threading.Thread(target=time.sleep, args=[1000]).start()
    print("done")
    return 1
cli.main, cli.PATIENCE = main, 0.1
raise SystemExit(cli.command([]))
"""
    ended = python("-c", code, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "done\n", "")


def test_what_user_code_does_as_python_ends_is_cut_short_after_an_interruption(tmp_path: Path) -> None:
    code = """
import atexit, time
from compare.app import cli
atexit.register(time.sleep, 1000)
print("done")
cli.main, cli.PATIENCE = (lambda arguments: 130), 0.1
raise SystemExit(cli.command([]))
"""
    ended = python("-c", code, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "done\n", "")


@pytest.mark.parametrize("registered", ["lambda: os._exit(0)", "os._exit, 0"])
def test_what_user_code_does_as_python_ends_is_no_verdict(tmp_path: Path, registered: str) -> None:
    code = f"""
import atexit, os
from compare.app import cli
from compare.user_errors import refusing_exit
with refusing_exit():
    atexit.register({registered})
cli.main = lambda arguments: 1
raise SystemExit(cli.command([]))
"""
    ended = python("-c", code, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(("verdict", "out", "err"), [
    ("not-comparable", "", "compare.py: fit cannot run\n"), ("different", "fit cannot run\n/a/report.html\n", ""),
    ("identical", "", ""), ("alike", "", ""),
])  # fmt: skip
def test_quiet_hides_neither_an_error_nor_a_verdict_that_is_not_good(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: str,
    out: str,
    err: str,
) -> None:
    monkeypatch.setattr("compare.app.session.carry_out", lambda options, folder, *_, **__: Result(folder, verdict))
    monkeypatch.setattr(Result, "__str__", lambda _: "fit cannot run\n/a/report.html")
    cli.main(["--reports", str(tmp_path), "--quiet"])
    assert capsys.readouterr() == (out, err)


@pytest.mark.parametrize(("verdict", "status"), [("different", 1), ("not-comparable", 3), (None, 3)])
def test_the_exit_status_is_that_of_the_verdict_also_where_a_trainer_has_raised(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: str | None,
    status: int,
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise ValueError("no such layer")

    monkeypatch.setattr("compare.app.session.carry_out", raises)
    monkeypatch.setattr("compare.records.run_json.RunJson.read", lambda _: Mock(failures=[]))
    found = None if verdict is None else Mock(verdict=verdict)
    monkeypatch.setattr("compare.reporting.run_files.verdict_of", lambda _: found)
    assert cli.main(["--reports", str(tmp_path)]) == status
    assert "no such layer" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("verdict", "status"),
    [("identical", 0), ("alike", 0), ("different", 1), ("inconclusive", 3), ("not-comparable", 3)],
)
def test_the_exit_status_is_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, status: int
) -> None:
    monkeypatch.setattr("compare.app.session.carry_out", lambda options, folder, *_, **__: Result(folder, verdict))
    assert cli.main(["--reports", str(tmp_path)]) == status


def test_an_interruption_is_said_and_exit_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr("compare.app.session.carry_out", interrupted)
    assert cli.main(["--reports", str(tmp_path)]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("compare.py: interrupted; continue with: ") and line.endswith(" --resume")
    assert line.partition("with: ")[2].split()[0] == (sys.executable if sys.argv[0].endswith(".py") else sys.argv[0])


# The one-way rule

WITHOUT_TENSORFLOW = """
import sys
import threading
sys.modules["tensorflow"] = sys.modules["keras"] = sys.modules["tf_keras"] = None

from pathlib import Path
import numpy as np
import compare
from compare import errors, experiment, options
from compare.app import cli, loading, session
from compare.records import files, metrics_csv, model, reader, recorder
from compare.reporting import plots, run_files, sentences, tables
from compare.verdict.exact import compare_records
from compare.verdict.model import Verdict

folder = Path(sys.argv[1])
metrics = metrics_csv.MetricsFile(folder / "metrics.csv")
for trainer in ("fit", "loop"):
    sink = recorder.Recorder(folder, metrics, trainer, 0)
    sink(model.BuildRecord((model.Variable("v", (1,), "float32"),), 1))
    for step in (model.INITIAL, 1, model.EPOCH_END):
        sink(model.StepRecord(1, step, np.array([[abs(step)]], np.uint64), np.zeros((1, 2))))
    sink(model.EpochRecord(1, {"loss": 0.5}, 1.0, 1.0, [np.ones(1, np.float32)]))

fit, loop = reader.read_records(folder)
judged = Verdict.of(fit.trainer, [compare_records(fit, loop)])
files.write_checked(folder / "run.json", {"options": {"trainers": ["fit", "loop"]}})
judged.write(folder / "verdict.json")
plots.draw(folder)
tables.epoch_table(run_files.read(folder))
print(sentences.sentence(judged.comparisons[0], fit.trainer))
print(session.Result(folder, judged.verdict).metrics.shape)
print(options.request().default_name(), cli.main(["--name", ""]))
"""


def test_the_garbage_collector_is_spared_tensorflow_and_goes_on(tmp_path: Path) -> None:
    code = """
import gc
from compare.options import request
from compare.engine.select_keras import select_keras
select_keras(request().keras)
assert gc.isenabled() and gc.get_freeze_count() > 100_000, gc.get_freeze_count()
frozen = gc.get_freeze_count()
select_keras(request().keras)
assert gc.get_freeze_count() <= frozen, "what was made since is not TensorFlow's"
"""
    done = python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_everything_from_the_records_on_works_without_tensorflow(tmp_path: Path) -> None:
    done = python("-W", "error", "-c", WITHOUT_TENSORFLOW, tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "loop trains exactly like fit: every weight is equal, bit for bit, after the only step, "
        "and so is every reported number",
        "(2, 6)",
        "fashion-mnist-fit-loop-mirrored-10-epochs-seed-0 2",
    ]
    assert (tmp_path / "comparison.png").exists()


def test_ctrl_c_that_becomes_another_error_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*options: object, **more: object) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("Can't close the ZIP file while there is an open writing handle on it")

    monkeypatch.setattr("compare.app.session._by_mode", broken)
    try:
        assert cli.main(["--reports", str(tmp_path)]) == 130
    finally:
        signals.catch()  # forgets this interruption
    assert "ZIP" not in capsys.readouterr().err


def test_an_error_that_nobody_expected_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(options: Request) -> None:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("compare.app.run_folder.claimed", broken)
    assert cli.main(["--reports", str(tmp_path)]) == 3, "1 would mean different"
    assert re.fullmatch(r"compare\.py: LookupError: a bug of ours \(.*, line \d+\)\n", capsys.readouterr().err)
