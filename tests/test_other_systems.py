"""What other systems lack has another way here, which is taken on this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from compare import signals
from compare.app import script_runs
from compare.app.script_runs import START_METHOD, ScriptRunner, failure_of, last_line, start_method
from compare.errors import NoVerdictError, RequestError
from compare.watch.settings import Settings
from compare.watch.trace import read_traces


def test_processes_are_forked_only_where_that_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_METHOD, raising=False)
    for system, way in (("linux", "fork"), ("darwin", "spawn")):
        monkeypatch.setattr(sys, "platform", system)
        assert start_method() == way, "macOS's own libraries do not survive a fork"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "fork")
    assert start_method() == "spawn"
    monkeypatch.setenv(START_METHOD, "thread")
    with pytest.raises(RequestError, match=f"{START_METHOD} is 'thread': there are fork and spawn"):
        start_method()


ENDLESS = {
    "deaf": "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "obedient": "",
    "stubborn": "signal.signal(signal.SIGTERM, signal.default_int_handler)\nwhile True:\n    try:\n        wait()\n"
    "    except BaseException:\n        pass",
    "stopped": "print('here', flush=True)\nsignal.raise_signal(signal.SIGSTOP)",
    "blocking": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))",
    "forking": "os.fork()\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "starting": "import subprocess\nsubprocess.Popen(['sleep', '60'])",
}
WAITS = "import os, signal, time\ndef wait():\n    print('here', flush=True)\n    time.sleep(60)\n"


def sessions() -> set[int]:
    """The sessions of all processes that run, of which none is only waiting to be asked for its status."""
    listed = subprocess.run(["ps", "-eo", "sid=,stat="], capture_output=True, text=True).stdout.splitlines()
    return {int(line.split()[0]) for line in listed if "Z" not in line}


@pytest.mark.parametrize(("way", "names"), [("fork", list(ENDLESS)), ("spawn", ["deaf"])])
def test_a_script_is_ended_whatever_it_does_with_signals(
    way: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(START_METHOD, way)
    with ScriptRunner() as runner:
        runs = []
        for name in names:
            script = tmp_path / f"{name}.py"
            script.write_text(f"{WAITS}{ENDLESS[name]}\nwait()\n")
            settings = Settings(*[str(script)] * 2, *[str(tmp_path / name)] * 2, begins=False)
            runs.append(runner.start(settings, tmp_path / f"{name}.log"))
        while not all("here" in run.log.read_text() for run in runs):
            time.sleep(0.05)
        began = time.monotonic()
        runner.end(runs)
        assert time.monotonic() - began < 8
        assert not any(failure_of(run) for run in runs), "it was asked to end"
        deadline = time.monotonic() + 5
        while (left := sessions() & {run.pid for run in runs}) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, "nothing is left of what they have started"


SWALLOWS = """
import keras
import numpy as np
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
while True:
    try:
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
    except BaseException:
        print("on it goes", flush=True)
"""


@pytest.mark.parametrize("left", [("enough", "others"), ("enough",), ("others",)])
def test_what_a_script_raises_as_it_is_ended_is_no_failure(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Such as after a bare except, which takes the end of fit for an error of fit's."""
    for name in left:
        (tmp_path / name).touch()
    run = script_runs.ScriptRun(Settings("a", "a", str(tmp_path), str(tmp_path)), tmp_path / "a.log", 0, status=1)
    assert bool(failure_of(run)) == (left != ("enough", "others"))


def test_a_script_that_another_ends_has_failed_and_one_that_goes_on_after_its_steps_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_runs, "GRACE_SECONDS", 1.0)
    with ScriptRunner() as runner:
        runs = []
        for name, code in (("swallows", SWALLOWS), ("waits", f"{WAITS}wait()")):
            script = tmp_path / f"{name}.py"
            script.write_text(code)
            settings = Settings(*[str(script)] * 2, *[str(tmp_path / name)] * 2, max_steps=3)
            runs.append(runner.start(settings, tmp_path / f"{name}.log"))
        while "here" not in runs[1].log.read_text():
            time.sleep(0.05)
        os.kill(runs[1].pid, signal.SIGTERM)
        runner.wait(runs)
    assert failure_of(runs[0]) == "" and "on it goes" in runs[0].log.read_text()
    assert [(trace.last, trace.epochs[0].steps) for trace in read_traces(runs[0].folder)] == [(3, 2)]
    assert failure_of(runs[1]) == "signal 15 ended its process (Terminated)"


THREAD = """
import keras, threading, time
import numpy as np
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=4, verbose=0)
threading.Thread(target=time.sleep, args=[1e6]).start()
"""


def test_a_script_of_which_a_thread_goes_on_after_its_last_line_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_runs, "GRACE_SECONDS", 1.0)
    (tmp_path / "script.py").write_text(THREAD)
    with ScriptRunner() as runner:
        settings = Settings("script.py", str(tmp_path / "script.py"), str(tmp_path / "run"), str(tmp_path / "initial"))
        run = runner.start(settings, tmp_path / "log")
        runner.wait([run])
    trace, _ = read_traces(run.folder)
    assert (run.lingered, failure_of(run), trace.last, trace.whole) == (True, "", 2, True)
    assert run.steps() == 2


def test_that_the_process_of_the_scripts_was_killed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(script_runs.START_METHOD, "spawn")
    settings = Settings(*["script.py"] * 2, *[str(tmp_path / "run")] * 2)
    with ScriptRunner() as runner:
        (server,) = runner._servers.values()
        server.kill()
        with pytest.raises(NoVerdictError, match=r"was killed \(signal 9\), perhaps for lack of memory; run it again$"):
            runner.start(settings, tmp_path / "log")


def test_a_stopped_process_of_the_scripts_is_ended_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(script_runs.START_METHOD, "spawn")
    settings = Settings(*["script.py"] * 2, *[str(tmp_path / "run")] * 2)
    with ScriptRunner() as runner:
        run = runner.start(settings, tmp_path / "log")
        (server,) = runner._servers.values()
        watch = threading.Timer(60, server.kill)  # which a stopped one would wait for
        watch.start()
        os.kill(server.pid, signal.SIGSTOP)
        runner.end([run])
        assert run.status is not None
        os.kill(server.pid, signal.SIGSTOP)
    watch.cancel()
    assert server.returncode == 0


def test_interruptions_are_caught_without_the_signals_that_windows_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for name in ("SIGHUP", "SIGKILL"):
        monkeypatch.delattr(signal, name)
    try:
        signals.catch()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals._interrupted.clear()


def test_what_tensorflow_prints_by_itself_is_no_last_line_of_a_script(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "\x1b[1mnearly done\x1b[0m\n\n"
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "E0000 00:00:1795568399.712226 6666 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n"
        "2026-11-25 01:03:38.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This binary is optimized\n"
    )
    assert last_line(log) == "nearly done"
    log.write_text("I0000 00:00:1795565282.920480   20706 port.cc:153] oneDNN custom operations are on.\n")
    assert last_line(log) == last_line(tmp_path / "none.log") == ""


FORKS = """
import os, time
from compare.app.processes import take_forks_along

take_forks_along()
time.sleep(0 if os.fork() else 60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_what_user_code_forks_ends_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, timeout=30)  # waits for both
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize(
    "number",
    [
        "SIGCONT",
        pytest.param("SIGSTOP", marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends what stops")),
    ],
)
def test_a_worker_that_waits_for_a_job_ends_with_its_parent(number: str) -> None:
    code = (
        "import os, signal\nfrom compare.app import processes\nwith processes.local(1) as executor:\n"
        "    print(worker := executor.submit(os.getpid).result(), flush=True)\n"
        f"    os.kill(worker, signal.{number})\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    worker, end = int(done.stdout), time.monotonic() + 20
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(worker, 0)
            time.sleep(0.1)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process")
def test_what_cleans_up_after_workers_ends_though_it_was_stopped() -> None:
    code = (
        "import os, signal\nfrom multiprocessing import resource_tracker\n"
        "from loky.backend import resource_tracker as of_loky\nfrom compare.app import processes\n"
        "with processes.local(1) as executor:\n    executor.submit(os.getpid).result()\n"
        "    for tracker in (resource_tracker, of_loky):\n"
        "        os.kill(tracker._resource_tracker._pid, signal.SIGSTOP)"
    )
    # It waits for all that have its output, as a pipe in a shell does.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


CHILD = """
import multiprocessing, os
from compare.app import processes

def work():
    with processes.local(1) as executor:
        executor.submit(os.getpid).result()

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
"""


def test_a_process_whose_parent_has_the_cleaners_can_have_workers(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    done = subprocess.run([sys.executable, str(tmp_path / "child.py")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
