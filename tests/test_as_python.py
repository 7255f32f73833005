"""Scripts, workers and the command itself are run as Python runs them, whatever files lie around."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compare.app import cli, standard_streams
from compare.app.script_runs import ScriptRunner, failure_of
from compare.app.script_sides import as_python
from compare.records.files import storing
from compare.records.model import RecordError, Variable
from compare.user_errors import describe
from compare.watch.settings import Settings
from compare.watch.trace_writer import pickled

ROOT = Path(__file__).resolve().parents[1]
COMMAND = str(ROOT / "scripts" / "compare.py")
INSTALLED = "import sys\nsys.argv = ['fit-vs-loop', *sys.argv[1:]]\nimport fit_vs_loop\nsys.exit(fit_vs_loop.command())"
WORKERS = """
import os, sys
sys.path[0] = sys.argv[1]
from compare.app import processes
server = processes.start("compare.app.script_process", "spawn", stdin=processes.subprocess.DEVNULL)
with processes.local(2) as executor:
    assert executor.submit(os.environ.get, "PYTHONSAFEPATH").result() is None
assert server.wait() == 0 and "PYTHONSAFEPATH" not in os.environ
"""


def run(*command: str, cwd: Path, **environment: str) -> tuple[int, str, str]:
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_no_file_in_the_current_folder_is_taken_for_a_module_of_pythons_or_of_ours(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in {*sys.stdlib_module_names, *cli.PACKAGES, "compare"}:
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder')")
    (tmp_path / "workers.py").write_text(WORKERS)
    assert run(str(tmp_path / "workers.py"), str(ROOT), cwd=here) == (0, "", "")


def test_a_file_on_the_path_hides_neither_the_command_nor_an_error(tmp_path: Path) -> None:
    (tmp_path / "compare.py").write_text("raise SystemExit(1)")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "scripts")])
    assert run("-c", INSTALLED, "--help", cwd=tmp_path, PYTHONPATH=paths)[::2] == (0, "")
    (tmp_path / "numpy.py").write_text("")
    status, _, error = run(COMMAND, "--check", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, error.count("\n")) == (2, 1) and f"{tmp_path / 'numpy.py'} hides the package numpy" in error
    (tmp_path / "numpy.py").unlink()
    (tmp_path / "json.py").write_text("")  # which nothing at the start of the command fails without
    status, _, error = run(COMMAND, "--check", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, error.count("\n")) == (2, 1) and f"{tmp_path / 'json.py'} hides Python's own json: rename" in error
    (tmp_path / "random.py").write_text("1 / 0")
    status, _, error = run(COMMAND, "--check", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, error.count("\n")) == (2, 1) and "PYTHONPATH" in error
    assert f"ZeroDivisionError: division by zero, in {tmp_path / 'random.py'}" in error


SCRIPT = """
import os, sys
from compare import name
from sibling import number
from xxhash import mine
def here(): return here.__code__.co_filename
if hasattr(os, "setpgrp"): os.setpgrp()
print(number, name, mine, __name__, __file__, here(), sys.path[0], sys.argv, os.environ.get("PYTHONPATH"))
print(sys.modules["__main__"].here is here, __spec__, __package__, __annotations__, __cached__, type(__loader__))
"""
EXITS = ("[1, 'why']", "'why'", "None", "True", "0", "256", "-1", "3", "2**70")


def test_a_script_sees_what_it_sees_under_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, number in (("real", 1), ("links", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sibling.py").write_text(f"number = {number}")
        (tmp_path / folder / "compare.py").write_text("name = 'another module of this name'")
        (tmp_path / folder / "xxhash.py").write_text("mine = 'not that of the package'")
    (tmp_path / "real" / "script.py").write_text(SCRIPT)
    (tmp_path / "links" / "link.py").symlink_to("../real/script.py")
    (tmp_path / "real" / "deep").mkdir()
    (tmp_path / "deep").symlink_to("real/deep")
    for i, code in enumerate(EXITS):
        (tmp_path / f"exits{i}.py").write_text(f"import sys\nprint('begun', file=sys.stderr)\nsys.exit({code})\n")
    with ScriptRunner() as runner:
        for i, script in enumerate(
            ["links/link.py", "deep/.././script.py", *(f"exits{i}.py" for i in range(len(EXITS)))]
        ):
            folders = str(tmp_path / f"{i}"), str(tmp_path / "initial")
            settings = Settings(script, as_python(script, tmp_path), *folders, arguments=("a",))
            begun = runner.start(settings, tmp_path / f"{i}.log")
            runner.wait([begun])
            status, out, error = run(script, "a", cwd=tmp_path)
            assert (begun.status, begun.log.read_text()) == (status, out + error), script
            assert not (status and (error or out).strip().splitlines()[-1] not in failure_of(begun))
        for code in ("del sys.excepthook", "sys.excepthook = None", "sys.stderr.close()"):
            (tmp_path / "fails.py").write_text(f"import sys\n{code}\nraise KeyError('mine')\n")
            settings = Settings("fails.py", str(tmp_path / "fails.py"), str(tmp_path / code), str(tmp_path / "initial"))
            begun = runner.start(settings, tmp_path / f"{code}.log")
            runner.wait([begun])
            assert (begun.status, failure_of(begun)) == (1, "KeyError: 'mine' (fails.py, line 3)"), code


UNWRITABLE = """
import sys
from types import SimpleNamespace
from unittest.mock import Mock
error = PermissionError(13, "Permission denied", "/tmp/fit-vs-loop-x/1/failed")
sys.modules["compare.watch.script"] = SimpleNamespace(run=Mock(side_effect=error))
from compare.app.script_process import _run
_run(sys.argv[1], sys.argv[2])
"""


def test_what_cannot_be_recorded_any_more_is_one_line_of_a_scripts_log(tmp_path: Path) -> None:
    """As where the script has become another user."""
    Settings("x.py", "x.py", str(tmp_path), str(tmp_path)).write(tmp_path / "settings.json")
    paths = str(tmp_path / "settings.json"), str(tmp_path / "log")
    assert run("-c", UNWRITABLE, *paths, cwd=ROOT)[0] == 1
    told = "what it does cannot be recorded ([Errno 13] Permission denied: '/tmp/fit-vs-loop-x/1/failed'): does it"
    assert Path(paths[1]).read_text() == f"{told} change its user?\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_cannot_be_written_at_the_end_is_one_line() -> None:
    code = "import sys\nfrom compare.app.standard_streams import ending\nsys.exit(ending('x', lambda: print('a') or 0))"
    with open("/dev/full", "w") as full:
        given: Any = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONUNBUFFERED": ""}}
        done = subprocess.run([sys.executable, "-c", code], stdout=full, cwd=ROOT, **given)
    assert (done.returncode, done.stderr) == (3, "x: the output cannot be written (No space left on device)\n")


def test_the_version_for_a_reader_that_has_left_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    given: Any = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONUNBUFFERED": "1"}}
    done = subprocess.run([sys.executable, "scripts/compare.py", "--version"], stdout=write, cwd=ROOT, **given)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_too_many_open_files_are_no_wrong_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def read_one_more() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def damaged() -> int:
        try:
            return read_one_more()
        except OSError as error:
            raise RecordError(tmp_path, f"cannot be read ({error.strerror})") from None

    def unwritten() -> int:
        with storing(tmp_path / "metrics.csv"):
            return read_one_more()

    again = "run it again"
    for what, then in [(read_one_more, again), (damaged, again), (unwritten, "continue with --resume")]:
        assert standard_streams.ending("x", what) == 3
        assert capsys.readouterr().err == f"x: too many open files: allow more (ulimit -n), then {then}\n"


def test_too_little_memory_to_load_tensorflow_is_told() -> None:
    for error in (ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"), MemoryError()):
        assert describe(error).endswith("; there is too little memory: free some, or allow more (ulimit -v)")


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
@pytest.mark.parametrize(("limit", "option", "told"), [
    (900_000, "--version", "allow at least a gigabyte (ulimit -v)"),
    (2_500_000, "--quiet", "TensorFlow needs 3 GiB of address space; allow more (ulimit -v)"),
])  # fmt: skip
def test_less_memory_than_libraries_need_to_say_so_is_told_first(limit: int, option: str, told: str) -> None:
    limited = ["bash", "-c", f'ulimit -v {limit} && exec "$0" "$@"', sys.executable, "-c", INSTALLED, option]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"fit-vs-loop: too little memory: {told}\n")


def test_output_that_user_code_has_closed_changes_no_status() -> None:
    code = (
        "import os, sys\nfrom compare.app.standard_streams import ending\nfrom compare.errors import RequestError\n"
        "def refused():\n    print('x')\n    os.close(1)\n    raise RequestError('no')\n"
        "sys.exit(ending('x', refused))"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert (done.returncode, done.stderr) == (2, "x: no\n")


def test_what_is_recorded_runs_no_module_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compare.py").write_text("raise SystemExit('the script did not import it')")
    monkeypatch.syspath_prepend(tmp_path)
    variable = Variable("dense/kernel", (2, 3), "float32")
    with monkeypatch.context() as context:
        context.delitem(sys.modules, "compare")
        written = pickled([variable])
        assert "compare" not in sys.modules
    assert pickle.loads(written) == [variable]


TRAINS = """
import keras
import numpy as np
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=4, verbose=0)
"""


def test_scripts_may_have_any_name_and_no_hook_for_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = [tmp_path / f"{'f' * 252}.py", Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff model 2.py"))]
    for script, first in zip(scripts, ["", "import sys\nsys.excepthook = sys.stdout = sys.stderr = None"], strict=True):
        script.write_text(first + TRAINS)
    arguments = ["--scripts", *map(str, scripts), "--reports", str(tmp_path / "r"), "--name", "run", "--verbose"]
    assert cli.main(arguments) == 0, capsys.readouterr().err


def test_a_printed_traceback_begins_with_the_users_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standard_streams, "is_user_code", lambda name: name == "mine.py")
    names: dict[str, Any] = {}
    exec(compile("def train():\n    raise ValueError('boom')\n", "mine.py", "exec"), names)
    try:
        names["train"]()
    except ValueError:
        standard_streams.print_traceback()
    said = capsys.readouterr().err
    assert said.splitlines()[1].strip() == 'File "mine.py", line 2, in train' and "test_as_python" not in said
    try:
        [].index(1)
    except ValueError:
        standard_streams.print_traceback()
    assert "test_as_python" in capsys.readouterr().err, "where the user's code is no part of it, all is printed"
