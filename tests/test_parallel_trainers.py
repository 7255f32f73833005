"""``--parallel``: the same results as trainers one after the other, and a process that dies loses nothing else."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from forked import Commands
from processes import alive, descendants
from recorded import by_place
from rich.console import Console

from compare.app import parallel_trainers, processes, session
from compare.app.parallel_trainers import (
    EarlyChecks,
    _submitted,
    at_once,
    get_ready,
    getting_ready,
    hearing,
    why_not,
    worker_of,
)
from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.report import Report
from compare.engine.select_keras import select_keras
from compare.errors import NoVerdictError, RequestError
from compare.options import as_json, request
from compare.records.files import read_json, write_checked
from compare.records.metrics_csv import read_metrics
from compare.records.reader import read_costs, read_records
from compare.records.run_json import RunJson, read_verdict
from compare.verdict.model import Comparison, Reporting, Training

ROOT = Path(__file__).resolve().parents[1]
TASK = """
import os, signal, time
from pathlib import Path

import numpy as np
import tensorflow as tf

import compare

HERE = Path(__file__).parent


def load_data():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(120, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return (x[:90], y[:90]), (x[90:], y[90:])


def build_model():
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Dense(8, activation="relu"), layers.Dropout(0.2), layers.Dense(2)])


experiment = compare.Experiment(
    name="sign",
    load_data=load_data,
    build_model=build_model,
    build_loss=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    build_optimizer=lambda: tf.keras.optimizers.Adam(0.01),
    build_metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)


class Dies(compare.CustomLoop):
    name = "dies"

    def train_step(self, batch):
        os.kill(os.getpid(), signal.SIGKILL)


class Exits(compare.CustomLoop):
    name = "exits"

    def train_step(self, batch):
        os._exit(0)


class OnTwo(compare.CustomLoop):
    name = "on-two"  # wrong on two replicas, where it dies as often as there are files that ask for it

    def train(self, run):
        replicas = run.strategy.num_replicas_in_sync
        (HERE / f"process-{replicas}").write_text(str(os.getpid()))
        for asks in sorted(HERE.glob("die-*")) if replicas == 2 else ():
            asks.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().train(run)

    def compute_loss(self, *args):
        return super().compute_loss(*args) * self.strategy.num_replicas_in_sync


class Waits(compare.CustomLoop):
    name = "loop"  # which waits after its second epoch for as long as a file asks for it

    def train(self, run):
        end_epoch = run.end_epoch

        def ended(epoch, logs):
            end_epoch(epoch, logs)
            while epoch == 2 and (HERE / "wait").exists():
                time.sleep(0.02)

        run.end_epoch = ended
        super().train(run)


class Raises(compare.CustomLoop):
    name = "raises"

    def train_step(self, batch):
        raise LookupError("nothing here")
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "task.py"
    path.write_text(TASK)
    return path


@pytest.fixture(scope="module")
def whole(commands: Commands, task: Path) -> str:
    """The output of a run with both trainers in parallel, in the folder "whole"."""
    temporary = task.parent / "temporary"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    status, out, errors = commands.run(command(task, "whole", "--parallel", "--export"), environment=environment)
    assert (status, errors) == (0, ""), out
    assert not list(temporary.iterdir()), "no temporary files are left"
    return out


def command(task: Path, name: str, *arguments: str) -> list[str]:
    given = ["--experiment", str(task), "--reports", str(task.parent), "--name", name, "--epochs", "4"]
    return [sys.executable, str(ROOT / "scripts" / "compare.py"), *given, "--batch-size", "16", *arguments]


def test_results_equal_those_of_one_after_the_other_on_as_many_threads(
    commands: Commands, task: Path, whole: str
) -> None:
    assert "each with 1 thread" in whole and "loop  epoch 4/4" in whole
    folder = task.parent / "whole"
    content = read_json(folder / "run.json")
    assert content["parallel"] == {"processes": 2, "threads_per_process": content["threads"]["intra_op"]}
    assert [row["trainer"] for row in read_metrics(folder / "metrics.csv")] == ["fit"] * 4 + ["loop"] * 4
    costs = read_costs(folder)
    assert all(costs[name]["peak_memory_bytes"] for name in ("fit", "loop"))
    for name in ("fit", "loop"):
        assert sorted(path.name for path in (folder / "checkpoints" / name).glob("*.index")) == [
            "ckpt-2.index",
            "ckpt-4.index",
        ]
        assert (folder / "exports" / name).is_dir()
    page = (folder / "report.html").read_text()
    assert "2 trainings ran in parallel" in page, "times of trainers that shared the processor are marked as such"

    # One after the other on as many threads gives the same weights and numbers.
    threads = {
        name: str(content["threads"]["intra_op"]) for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    }
    commands.run(command(task, "one-after-the-other"), check=True, environment=threads)
    whole_run, after = (read_records(task.parent / name) for name in ("whole", "one-after-the-other"))
    for ours, theirs in zip(whole_run, after, strict=True):
        assert ours.logs == theirs.logs
        assert (by_place(ours)[4, -1]["hashes"] == by_place(theirs)[4, -1]["hashes"]).all()


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        ("Dies", "the process of dies died"),
        ("Exits", "os._exit(0)"),
        pytest.param("Raises", "LookupError: nothing here", marks=pytest.mark.slow),
    ],
)
def test_results_of_the_others_are_kept_if_a_trainer_fails(
    commands: Commands, task: Path, trainer: str, says: str
) -> None:
    status, out, errors = commands.run(command(task, trainer, "--parallel", "--trainers", "fit", f"{task}:{trainer}"))
    assert status == 3, out + errors
    assert out.count(says) == errors.count(says) == 1, out + errors
    assert f"failed; fix your trainer {trainer.lower()}." in out or "--resume" in out
    assert "RuntimeError" not in errors and "compare without it" not in out
    folder = task.parent / trainer
    assert [row["epoch"] for row in read_metrics(folder / "metrics.csv")] == ["1", "2", "3", "4"]
    assert read_verdict(folder / "verdict.json")["verdict"] == "not-comparable"


def test_a_worker_that_died_before_its_job_came_is_told_as_its_trainers() -> None:
    class Broken(Executor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise BrokenProcessPool("a worker was terminated")

    with pytest.raises(processes.LOST):
        _submitted(Broken(), len, ()).result()


@pytest.mark.usefixtures("whole")
def test_an_interrupted_run_can_be_resumed_and_ends_the_same(commands: Commands, task: Path) -> None:
    broken = command(task, "broken", "--parallel", "--trainers", "fit", f"{task}:Waits")
    (task.parent / "wait").touch()
    process = commands.Popen(broken)
    metrics = task.parent / "broken" / "metrics.csv"
    until = time.monotonic() + 120
    while not (metrics.exists() and "loop,0,2," in metrics.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    rows = [row["epoch"] for row in read_metrics(metrics) if row["trainer"] == "loop"]
    assert rows == ["1", "2"], "it was interrupted while it trained"
    (task.parent / "wait").unlink()
    commands.run([*broken, "--resume"], check=True)
    for ours, theirs in zip(*(read_records(task.parent / name) for name in ("broken", "whole")), strict=True):
        assert ours.logs == theirs.logs
        assert ours.steps.tobytes() == theirs.steps.tobytes()


def test_no_process_outlives_a_killed_run(commands: Commands, task: Path) -> None:
    process = commands.Popen(command(task, "killed", "--parallel", "--epochs", "500"))
    metrics = task.parent / "killed" / "metrics.csv"
    until = time.monotonic() + 120
    while not (metrics.exists() and "loop" in metrics.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    others = descendants(process.pid)
    assert others, "there must be another process"
    process.kill()
    process.communicate(timeout=60)
    until = time.monotonic() + 20
    while any(map(alive, others)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(alive, others))


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="has no sockets in files")
@pytest.mark.parametrize("length", [0, 80, 81, 150])
def test_the_processes_talk_through_a_socket_that_only_the_user_can_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """However long the name of the folder for temporary files is."""
    temporary = tmp_path / ("t" * (length - len(f"{tmp_path}/")))
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with hearing(print) as (address, _):
        assert Path(address).is_socket() and Path(address).parent.stat().st_mode & 0o077 == 0
    assert not Path(address).parent.exists()


@pytest.mark.parametrize(
    "given",
    [{"check": True}, {"seeds": 2}, {"strategy": "multi-worker", "workers": 2}],
)
def test_requests_that_are_parallel_already_or_need_one_process_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"--parallel .*leave it out"):
        request(parallel=True, **given)


def test_the_data_are_loaded_elsewhere_once_this_process_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load_data that keeps them in a file would otherwise find it half written by the other process."""

    class FarEnough(Exception):
        pass

    done: list[Any] = []

    def load_here(*_: Any) -> Mock:
        done.append("loaded here")
        return Mock()

    executor = Mock(submit=lambda function, *_: done.append(function))
    monkeypatch.setattr(processes, "local", lambda *_: nullcontext(executor))
    monkeypatch.setattr(session.Session, "begin", load_here)
    monkeypatch.setitem(sys.modules, "compare.engine.dry_run", Mock(try_out=Mock(side_effect=FarEnough)))
    options = request(parallel=True)
    RunJson(folder=tmp_path).save()
    with getting_ready(options) as started, pytest.raises(FarEnough):
        session._prepare(options, tmp_path, Console(quiet=True), started)
    assert done == [select_keras, "loaded here", get_ready]


def test_what_cannot_be_sent_to_another_process_is_refused_before_one_starts() -> None:
    class Locked:
        name, lock = "locked", threading.Lock()

        def train(self, run: Any) -> None: ...

    for asked, told in ((request(parallel=True, trainers=("fit", Locked())), ", without parallel"),
                        (request(seeds=2, trainers=("fit", Locked())), "out of it")):  # fmt: skip
        with pytest.raises(RequestError, match=r"^locked cannot be sent to another process \(.*lock") as raised:
            processes.refuse_unsendable(asked)
        assert str(raised.value).endswith(told)
    with (
        pytest.raises(RequestError, match=r"^locked cannot"),
        getting_ready(request(parallel=True, trainers=("fit", Locked()))),
    ):
        pass


GIB = 2**30


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_a_system_without_room_for_semaphores_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr("loky.ProcessPoolExecutor", Mock(side_effect=error))
    named = f"written to /dev/shm ({error.strerror}): make room there"
    expected: type[Exception] = OSError if number == errno.EMFILE else NoVerdictError
    with pytest.raises(expected) as raised, getting_ready(request(parallel=True)):
        pass
    told = str(raised.value)
    assert raised.value is error or (named in told and told.endswith(", or give --sequential") and "\n" not in told)


@pytest.mark.parametrize(
    ("options", "cores", "free", "gpu", "reason"),
    [
        ({}, 2, 8 * GIB, False, None),
        ({"trainers": ("fit", "loop", "tutorial")}, 2, 8 * GIB, False, None),
        ({}, 2, None, False, None),
        ({}, 1, 8 * GIB, False, "there is one processor"),
        ({"trainers": ("fit", *["loop"] * 4)}, 2, 64 * GIB, False, "5 trainers are too many for 2 processors"),
        ({}, 2, 2 * GIB, False, "2.0 GiB of memory are free, 3.0 GiB would be needed"),
        ({}, 2, 8 * GIB, True, "a GPU is not shared between processes"),
        ({"sequential": True}, 2, 8 * GIB, False, ""),
        ({"strategy": "multi-worker"}, 2, 8 * GIB, False, ""),
    ],
)
def test_all_train_at_once_where_a_machine_can(
    options: dict[str, Any], cores: int, free: int, gpu: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(processes, "cores", lambda: cores)
    monkeypatch.setattr(processes, "free_memory", lambda: free)
    monkeypatch.setattr(processes, "GPUS", ["/dev/null"] if gpu else [])
    assert why_not(request(**options)) == reason
    if gpu:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert why_not(request(**options)) is None


@pytest.mark.parametrize(
    ("machine", "limit", "used", "free"),
    [
        ("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", None, None, 8_192_000),
        ("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", "max", "1000000", 8_192_000),
        ("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", "3000000", "1000000", 2_000_000),
        ("MemTotal: 9000 kB\nMemAvailable: 1 kB\n", "3000000", "1000000", 1024),
        ("MemTotal: 9000 kB\n", "3000000", "1000000", None),
        (None, None, None, None),
    ],
)
def test_free_memory_is_what_the_machine_and_the_control_group_leave(
    machine: str | None, limit: str | None, used: str | None, free: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    group = "sys/fs/cgroup/memory"
    for name, text in (("proc/meminfo", machine), (f"{group}.max", limit), (f"{group}.current", used)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(processes, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert processes.free_memory() == free


@pytest.mark.parametrize("began", [True, False])
def test_what_is_resumed_goes_on_as_it_began(began: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_trainers, "why_not", lambda options: "there is one processor" if began else None)
    written = {"processes": 2, "threads_per_process": 1} if began else {}
    write_checked(tmp_path / "run.json", {"options": {"parallel": began}, "parallel": written})
    console = Console(quiet=True)
    assert at_once(request(resume=True), tmp_path, console).parallel is began
    assert not at_once(request(resume=True, sequential=True), tmp_path, console).parallel
    assert at_once(request(), tmp_path, console).parallel is not began


@pytest.mark.parametrize("parallel", [True, False])
def test_what_was_killed_before_it_was_known_whether_all_train_at_once_is_begun_anew(
    parallel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = request(experiment="task.py", trainers=("fit", "mine.py:Mine"), resume=True)
    write_checked(tmp_path / "run.json", {"options": as_json(options)})
    for now in (parallel, not parallel):  # what is written down then holds, whatever the machine has meanwhile
        monkeypatch.setattr(parallel_trainers, "why_not", lambda options, now=now: None if now else "no memory")
        resumed = at_once(options, tmp_path, Console(quiet=True))
        session._begin_or_go_on(resumed, tmp_path)
        assert resumed.parallel is parallel
    written = read_json(tmp_path / "run.json")["options"]
    assert (written["parallel"], written["experiment"], written["trainers"]) == (
        parallel,
        "task.py",
        ["fit", "mine.py:Mine"],
    ), "as they were given, so that the same command resumes the run"


RANDOM_DATA = (
    TASK.replace("default_rng(1)", "default_rng()")
    + """

class Wrong(compare.CustomLoop):
    name = "wrong"

    def compute_loss(self, y, predictions, sample_weight):
        return 2 * super().compute_loss(y, predictions, sample_weight)


class Fails(compare.CustomLoop):
    name = "fails"

    def train(self, run):
        import multiprocessing

        if multiprocessing.parent_process() is not None:
            raise ValueError("of its own")
        super().train(run)
"""
)


def test_other_data_in_each_process_are_noticed_and_a_difference_is_said_at_once(
    commands: Commands, tmp_path: Path
) -> None:
    task = tmp_path / "task.py"
    task.write_text(RANDOM_DATA)
    status, out, errors = commands.run(command(task, "random", "--parallel", "--epochs", "2"))
    assert (status, errors) == (0, ""), out
    assert "loop  trains after fit: load_data gives other data in another process" in out
    task.write_text(RANDOM_DATA.replace("default_rng()", "default_rng(1)"))
    status, out, errors = commands.run(
        command(task, "wrong", "--parallel", "--epochs", "2", "--trainers", "fit", f"{task}:Wrong")
    )
    assert (status, errors) == (1, ""), out
    lines = out.splitlines()
    said = lines.index("wrong  weights differ from step 1 of epoch 1 on from those of fit")
    assert said < next(i for i, line in enumerate(lines) if "wrong  epoch 2/2" in line)
    assert "Looking for the cause" not in out, "it was looked for while both trained"
    assert "cause: loss-scaled (in wrong)" in out


def test_what_an_early_check_finds_is_printed_while_training_goes_on_only(tmp_path: Path) -> None:
    finding = CATALOGUE["loss-scaled"].found("loop", Measurement.of("loss-factor", factor=2), remedy="loss")
    training = Training("different", 1.0, None, 1)
    report = Report("fit", (1,), Comparison("loop", training, Reporting("identical", {}), causes=(finding,)))
    done: Future[Any] = Future()
    done.set_result(report)
    for training in (True, False):
        out = StringIO()
        with EarlyChecks(worker_of(request(), tmp_path), Console(file=out, width=200)) as early:
            assert training or early.reports() == {}
            early._tell("loop", done)
        assert ("cause: loss-scaled (in loop): the loss has a constant factor of 2" in out.getvalue()) == training


@pytest.mark.parametrize("way", ["--parallel", "--sequential"])
def test_training_ends_at_the_first_difference_if_asked_to(commands: Commands, tmp_path: Path, way: str) -> None:
    task = tmp_path / "task.py"
    task.write_text(RANDOM_DATA.replace("default_rng()", "default_rng(1)"))
    wrong = ["--trainers", "fit", f"{task}:Wrong", "--stop-at-difference"]
    status, out, errors = commands.run(command(task, "wrong", way, *wrong))
    assert (status, errors) == (1, ""), out
    assert "wrong stops: after step 1 of epoch 1 the weights of wrong differ" in out or way == "--parallel"
    verdict = read_verdict(tmp_path / "wrong" / "verdict.json")
    assert verdict["comparisons"][0]["training"]["first_difference"] == {"epoch": 1, "step": 1}
    assert [cause["id"] for cause in verdict["comparisons"][0]["causes"]] == ["loss-scaled"]
    stopped = [stop["trainer"] for stop in verdict["stopped"]]
    assert "wrong" in stopped and (way == "--parallel") >= ("fit" in stopped)
    assert all("--stop-at-difference" in stop["what"] for stop in verdict["stopped"])


def test_a_trainer_that_fails_is_not_taken_for_one_that_was_stopped(commands: Commands, tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(RANDOM_DATA.replace("default_rng()", "default_rng(1)"))
    trainers = ["--trainers", "fit", f"{task}:Wrong", f"{task}:Fails", "--stop-at-difference"]
    _, out, _ = commands.run(command(task, "three", "--parallel", *trainers))
    assert "fails failed: ValueError: of its own" in out
    (failure,) = read_json(tmp_path / "three" / "run.json")["failures"]
    assert failure["side"] == "fails"


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_the_command_checks_on_one_and_on_two_replicas_at_the_same_time(tmp_path: Path, dies: int) -> None:
    """A process that is killed is made again, once: else the mistakes of several replicas would be none."""
    given = ["--check", "--trainers", "fit", "task.py:OnTwo"]
    (tmp_path / "task.py").write_text(TASK)
    for again in range(dies):
        (tmp_path / f"die-{again}").write_text("")
    arguments = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--experiment", "task.py", *given]
    # Not forked: a process that has imported TensorFlow checks by itself.
    done = subprocess.run([*arguments, "--reports", ".", "--name", "run"], cwd=tmp_path, capture_output=True, text=True)
    one, two = ((tmp_path / f"process-{replicas}").read_text() for replicas in (1, 2))
    assert one != two
    (comparison,) = read_json(tmp_path / "run" / "verdict.json")["comparisons"]
    if dies == 2:
        assert (done.returncode, comparison["causes"]) == (0, [])
        (missing,) = comparison["not_applicable"]
        assert missing["reason"].startswith("on two replicas its process died twice; TensorFlow's last messages are in")
    else:
        assert (done.returncode, comparison["training"]["verdict"]) == (1, "different")
        assert "loss-not-divided-by-replicas" in [cause["id"] for cause in comparison["causes"]]
        assert "Checked on 1 and 2 replicas" in done.stdout
    assert done.stderr == ""
