"""One script under two interpreters, and in two commits: which default, or which line, trains otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import compare
from compare.app.processes import refuse_flags
from compare.app.script_sides import _exactly, _names_of_repository, sides_of, versions_of
from compare.app.scripts import _environments_apart
from compare.errors import RequestError
from compare.modes import Scripts
from compare.records.files import write_json
from compare.watch.script import _import_from_checkout
from compare.watch.trace import ENVIRONMENT

SCRIPT = """
import sys

import defaults
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
momentum = defaults.MOMENTUM if "momentum" in sys.argv else 0.99
epsilon = defaults.EPSILON if "epsilon" in sys.argv else 1e-7
layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(momentum=momentum)]
model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(epsilon=epsilon), loss)
model.fit(x, y, epochs=2, batch_size=32, verbose=0)
"""

Environment = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Makes the interpreter of an environment that lacks what only this package needs, with modules of its own."""

    def make(name: str, **modules: str) -> str:
        folder = tmp_path / name
        venv.create(folder, with_pip=False)
        (packages,) = folder.glob("lib/python*/site-packages")
        # What this process has comes after what stands there.
        (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        for module, text in ({"xxhash": "raise ImportError('not there')"} | modules).items():
            (packages / f"{module}.py").write_text(text)
        return str(folder / "bin" / "python")

    return make


def compared(folder: Path, script: Path, *arguments: str, **options: Any) -> dict[str, Any]:
    given = {"reports": folder, "quiet": True, "script_arguments": arguments}
    return compare.run(scripts=[str(script)], **given, **options).details


def test_a_default_that_differs_between_two_environments_is_named_with_both_values(
    tmp_path: Path, environment: Environment
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    pythons = [
        environment("old", defaults="__version__ = '1.0'\nMOMENTUM, EPSILON = 0.99, 1e-7"),
        environment("new", defaults="__version__ = '2.0'\nMOMENTUM, EPSILON = 0.5, 1e-3"),
    ]
    equal = compared(tmp_path / "equal", script, python=pythons)
    assert equal["verdict"] == "identical"
    (run,) = (tmp_path / "equal").glob("*/run.json")
    assert "the environments differ: defaults 1.0 and 2.0 (train's first)" in run.read_text()

    of_layer = compared(tmp_path / "momentum", script, "momentum", python=pythons)
    (entry,) = of_layer["comparisons"]
    (cause,) = entry["causes"]
    assert cause["id"] == "layer-differs" and cause["remedy"].startswith("tf.keras.layers.BatchNormalization(..., mom")
    assert "BatchNormalization" in cause["evidence"] and "momentum=0.5 instead of 0.99" in cause["evidence"]

    of_optimizer = compared(tmp_path / "epsilon", script, "epsilon", python=pythons)
    (entry,) = of_optimizer["comparisons"]
    assert [cause["id"] for cause in entry["causes"]] == ["optimizer-differs"]
    assert "epsilon=0.001 instead of 1e-07" in entry["causes"][0]["evidence"]


def test_an_interpreter_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, environment: Environment) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it must not run')")
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    older = environment("older", sitecustomize="import sys; sys.version_info = (3, 8, 10)")
    for python, why in {
        str(tmp_path / "no" / "python"): "there is no such program",
        "/bin/false": "this does not run as Python 3",
        str(bare / "bin" / "python"): "tensorflow is not installed there; tensorflow 2.15 or newer is needed",
        older: "it is Python 3.8.10; 3.11 or newer is needed",
    }.items():
        with pytest.raises(RequestError) as refused:
            compared(tmp_path / "reports", script, python=[sys.executable, python])
        assert str(refused.value) == f"--python {python}: {why}"
    with pytest.raises(RequestError, match="one interpreter for both sides or one for each, not 3"):
        compared(tmp_path / "reports", script, python=[sys.executable] * 3)


def test_an_interpreter_that_does_not_answer_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.app.script_sides.SECONDS", 1)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path / 'pid'}\nwait\n")
    python.chmod(0o755)
    with pytest.raises(RequestError, match="this does not run as Python 3"):
        versions_of(str(python))
    listed = subprocess.run(["ps", "-o", "stat=", (tmp_path / "pid").read_text().strip()], stdout=subprocess.PIPE)
    assert listed.stdout.strip()[:1] in (b"", b"Z"), "it has ended"


def test_an_older_version_is_refused_with_the_one_that_is_needed(tmp_path: Path, environment: Environment) -> None:
    python = environment("old")
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (packages / "tensorflow-2.14.1.dist-info").mkdir()
    (packages / "tensorflow-2.14.1.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 2.14.1\n")
    with pytest.raises(RequestError, match=r"it has tensorflow 2\.14\.1; tensorflow 2\.15 or newer is needed"):
        versions_of(python)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose first commit trains with fit as the second does, but for the learning rate."""
    folder = tmp_path / "repository"
    (folder / "code").mkdir(parents=True)
    script = folder / "code" / "train.py"
    plain = SCRIPT.replace("import defaults\n", "")
    script.write_text(plain)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    commit(folder, "as it was")
    (folder / "code" / "other.py").write_text("")
    script.write_text(plain.replace("Adam(epsilon", "Adam(0.01, epsilon"))
    git(folder, "add", "-A")
    commit(folder, "faster")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def commit(folder: Path, message: str) -> None:
    git(folder, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qam", message)


def test_two_commits_are_compared_and_the_repository_stays_as_it_was(
    tmp_path: Path, repository: Path, assert_scripts_alike: Callable[..., None]
) -> None:
    script = repository / "code" / "train.py"
    script.write_text("raise SystemExit('changes that are not committed')")
    before = git(repository, "status", "--porcelain"), git(repository, "worktree", "list")
    with pytest.raises(AssertionError, match="different: train-HEAD does not train like train-HEAD-1") as told:
        assert_scripts_alike(script, commits=["HEAD~1", "HEAD"])
    summary = str(told.value).splitlines()[0]
    assert summary == "different: optimizer-differs (in train-HEAD)", "pytest's summary has the first line only"
    (folder,) = (path.parent for path in tmp_path.glob("*/verdict.json"))
    found = compare.load(folder).details
    (entry,) = found["comparisons"]
    assert (found["reference"], entry["candidate"]) == ("train-HEAD-1", "train-HEAD")
    (cause,) = entry["causes"]
    assert cause["id"] == "optimizer-differs"
    assert "learning_rate=0.01 instead of 0.001" in cause["evidence"]
    assert cause["source"]["file"] == "code/train.py"
    assert (git(repository, "status", "--porcelain"), git(repository, "worktree", "list")) == before
    assert "changes that are not committed are in neither" in (folder / "run.json").read_text()


@pytest.mark.parametrize("of", ["PYTHONPATH", "relative PYTHONPATH", "editable"])
def test_what_is_imported_from_the_repository_is_that_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """As of a package of the repository's own, which is not beside the script."""
    folder = tmp_path / "repository"
    for name in ("src/mine", "examples"):
        (folder / name).mkdir(parents=True)
    git(folder.parent, "init", "-q", "repository")
    (folder / "examples" / "train.py").write_text(f"from mine import NAME\n{of!r}\nprint(NAME)\n")
    checkouts = []
    for name in ("first", "second"):
        (folder / "src" / "mine" / "__init__.py").write_text(f"NAME = {name!r}\n")
        git(folder, "add", "-A")
        commit(folder, name)
    script, work = folder / "examples" / "train.py", tmp_path / "work"
    monkeypatch.chdir(folder / "examples")
    sides = sides_of(Scripts(scripts=(str(script),), commits=("HEAD~1", "HEAD")), work)
    finder: Any = Mock(MAPPING={"mine": str(folder / "src" / "mine")})
    for side in sides:
        settings: Any = Mock(checkout=side.program.checkout, repository=side.program.repository)
        path = {"PYTHONPATH": str(folder / "src"), "relative PYTHONPATH": "../src", "editable": "/nothing"}[of]
        monkeypatch.setattr(sys, "path", ["/elsewhere", path, str(folder / ".venv")])
        monkeypatch.setitem(sys.modules, "__editable___mine_finder", finder)
        _import_from_checkout(settings)
        found = Path(finder.MAPPING["mine"]).parent if of == "editable" else Path(sys.path[1])
        assert sys.path[::2] == ["/elsewhere", str(folder / ".venv")], "what Git does not know stays"
        checkouts.append((found / "mine" / "__init__.py").read_text())
        finder.MAPPING["mine"] = str(folder / "src" / "mine")
    assert checkouts == ["NAME = 'first'\n", "NAME = 'second'\n"]


def test_what_is_checked_out_is_not_registered_where_a_killed_process_would_leave_it(
    tmp_path: Path, repository: Path
) -> None:
    """It is a repository of its own, with the files that the user's own filters make, and no changes."""
    script = repository / "code" / "train.py"
    git(repository, "config", "filter.loud.smudge", "sed s/print/PRINT/")
    (repository / ".git" / "info" / "attributes").write_text("train.py filter=loud\n")
    script.write_text("print('a')")
    commit(repository, "prints")
    script.write_text("changed")
    before = git(repository, "status", "--porcelain")
    one, two = sides_of(Scripts(scripts=(str(script),), commits=("HEAD~1", "HEAD")), tmp_path)
    assert Path(two.program.source).read_text() == "PRINT('a')"
    assert "faster" in one.about and "prints" in two.about
    assert (git(repository, "worktree", "list").count("\n"), git(repository, "status", "--porcelain")) == (1, before)
    checkout = Path(one.program.source).parent
    assert git(checkout, "log", "-1", "--format=%s") == "faster\n"
    assert not git(checkout, "status", "--porcelain")


@pytest.mark.parametrize("of_git", [".git", "{repository}/.git"])
def test_in_a_hook_the_repository_that_it_is_called_for_stays_as_it_was(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, of_git: str
) -> None:
    """Git tells its hooks which repository it is, and would take that for the clone."""
    script, before = repository / "code" / "train.py", git(repository, "log", "-1", "--format=%d %H")
    monkeypatch.chdir(repository)
    with monkeypatch.context() as hook:
        named = of_git.format(repository=repository)
        for name, value in {"GIT_DIR": named, "GIT_INDEX_FILE": f"{named}/index", "GIT_WORK_TREE": "."}.items():
            hook.setenv(name, value)
        one, _ = sides_of(Scripts(scripts=(str(script),), commits=("HEAD~1", "HEAD")), tmp_path)
    assert git(repository, "log", "-1", "--format=%d %H") == before and "HEAD -> " in before
    assert not git(repository, "status", "--porcelain")
    assert git(Path(one.program.source).parent, "log", "-1", "--format=%s") == "as it was\n"


def test_a_commit_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, repository: Path) -> None:
    script, late = repository / "code" / "train.py", repository / "code" / "other.py"
    outside = tmp_path / "train.py"
    outside.write_text("")
    for path, commits, why in (
        (script, ["HEAD", "nowhere"], f"--commits nowhere: there is no such commit in {repository}"),
        (script, ["--all", "HEAD"], f"--commits --all: there is no such commit in {repository}"),
        (late, ["HEAD~1", "HEAD"], "--commits HEAD~1: it has no code/other.py"),
        (script.parent, ["HEAD", "HEAD"], "--commits HEAD: code is no file there"),
        (outside, ["HEAD", "HEAD"], f"--commits: {outside} is in no Git repository"),
        (script, ["HEAD"], "--commits takes two commits, not 1"),
    ):
        with pytest.raises(RequestError) as refused:
            compared(tmp_path / "reports", path, commits=commits)
        assert str(refused.value) == why
    assert git(repository, "worktree", "list").count("\n") == 1


def test_without_git_it_is_not_said_that_there_is_no_repository(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _names_of_repository.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match=r"^--commits: git is not installed, or not in PATH$"):
        sides_of(Scripts(scripts=(str(repository / "code" / "train.py"),), commits=("HEAD~1", "HEAD")), tmp_path)


def test_of_a_repository_that_belongs_to_another_user_the_reason_is_git_s(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # which may trust every folder
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    with pytest.raises(RequestError, match=r"^--commits: Git refuses .*dubious ownership.* safe\.directory .*$"):
        sides_of(Scripts(scripts=(str(repository / "code" / "train.py"),), commits=("HEAD~1", "HEAD")), tmp_path)


def test_the_name_of_a_script_is_one_line(tmp_path: Path) -> None:
    scripts = [tmp_path / name for name in ("fit.py", "x\nidentical: \x1b[31mall is well.py")]
    for script in scripts:
        script.write_text("")
    one, other = sides_of(Scripts(scripts=tuple(map(str, scripts))), tmp_path)
    assert (one.name, other.name) == ("fit", r"x\nidentical: \x1b[31mall is well")


def test_a_commit_of_a_clone_as_ci_services_make_it(tmp_path: Path, repository: Path) -> None:
    """A branch may be the origin's only; of a shallow clone, it is said how to get the rest."""
    exact = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "branch", "trusted")
    git(tmp_path, "clone", "--quiet", str(repository), "whole")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    assert _exactly("trusted", tmp_path / "whole") == exact
    with pytest.raises(RequestError, match=r"no such commit in .*, a shallow clone: fetch all with git fetch"):
        _exactly("HEAD~1", tmp_path / "shallow")


def test_in_a_test_an_error_has_no_lines_of_this_package(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"gone.py: there is no such file") as refused:
        compare.assert_scripts_alike(tmp_path / "gone.py", tmp_path / "gone.py")
    assert [entry.name for entry in refused.traceback][1:] == ["assert_scripts_alike"]


@pytest.mark.skipif(find_spec("tf_keras") is None, reason="tf-keras is not installed")
def test_keras_2_and_3_are_compared(tmp_path: Path, environment: Environment) -> None:
    """Dropout included, whose masks have other sources in the two; and what they call by another name is no setting."""
    script = tmp_path / "train.py"
    text = SCRIPT.replace("import keras\n", "from tensorflow import keras\n")
    text = text.replace('activation="relu"', 'activation="relu", kernel_regularizer="l2"')
    script.write_text(text.replace("keras.layers.Batch", "keras.layers.Dropout(0.3), keras.layers.Batch"))
    asks = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'"
    pythons = [
        environment("old", defaults="MOMENTUM = 0.99", sitecustomize=asks),
        environment("new", defaults="MOMENTUM = 0.5"),
    ]
    assert compared(tmp_path / "equal", script, python=pythons)["verdict"] in ("identical", "alike")
    (run,) = (tmp_path / "equal").glob("*/run.json")
    assert "the environments differ: keras 2." in run.read_text()
    (entry,) = compared(tmp_path / "momentum", script, "momentum", python=pythons)["comparisons"]
    (cause,) = entry["causes"]
    assert cause["evidence"].count("instead of") == 1 and "momentum=0.5 instead of 0.99" in cause["evidence"]
    assert not any("instead of" in each for each in entry["evidence"])


def test_what_one_script_alone_imports_is_no_other_environment(tmp_path: Path) -> None:
    known = {"numpy": "2.4", "pandas": "3.0"}, {"numpy": "2.3", "XLA_FLAGS": "--a"}
    runs: list[Any] = [SimpleNamespace(name=name, folder=tmp_path / name) for name in "ab"]
    for run, environment in zip(runs, known, strict=True):
        run.folder.mkdir()
        write_json(run.folder / ENVIRONMENT, environment)
    (text,) = _environments_apart(runs)
    assert text == "the environments differ: numpy 2.4 and 2.3, XLA_FLAGS not there and --a (a's first)"


def test_flags_that_xla_does_not_know_are_refused_before_they_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    with pytest.raises(RequestError, match=r"XLA_FLAGS: TensorFlow ends at once \(Unknown flag .*xla_no_such_flag=1\)"):
        refuse_flags()
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.delenv("XLA_FLAGS")
    refuse_flags()
