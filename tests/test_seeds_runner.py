"""Studies over seeds: each training in a worker process, here or on a Dask cluster; none is lost or repeated."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from processes import alive

from compare.app import seeds_runner
from compare.app.processes import division
from compare.app.ready import Job
from compare.app.resume import refuse_changes
from compare.errors import NoVerdictError, RequestError
from compare.modes import Study
from compare.options import as_json, request
from compare.records.files import read_json
from compare.records.metrics_csv import read_metrics

ROOT = Path(__file__).resolve().parents[1]

TASK = """
import os, signal
from pathlib import Path

import numpy as np
import tensorflow as tf

import compare

HERE = Path(__file__).parent


def load_data():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(120, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return (x[:80], y[:80]), (x[80:], y[80:])


def build_model():
    # Different weights in every process, as if something else drew from Python's random numbers at the same time.
    other = tf.keras.initializers.GlorotUniform(seed=os.getpid())
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Dense(8, activation="relu", kernel_initializer=other), layers.Dense(2)])


experiment = compare.Experiment(
    name="sign",
    load_data=load_data,
    build_model=build_model,
    build_loss=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    build_optimizer=lambda: tf.keras.optimizers.SGD(0.1),
    build_metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)


class Counted(compare.CustomLoop):
    name = "counted"

    def train(self, run):
        super().train(run)
        with open(HERE / "made", "a") as file:
            file.write(f"{run._seed} {os.getpid()}\\n")


class DiesOnce(Counted):
    def train(self, run):
        try:
            (HERE / "died").touch(exist_ok=False)
        except FileExistsError:
            return super().train(run)
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAlways(Counted):
    def train(self, run):
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(Counted):
    def train(self, run):
        if run._seed == 1:
            raise ValueError("a bug of mine")
        super().train(run)


class Exits(Counted):
    def train(self, run):
        if run._seed == 1:
            os._exit(0)
        super().train(run)


class Sleeps(Counted):
    def train(self, run):
        import time

        (HERE / f"asleep-{os.getpid()}").touch()
        time.sleep(60)
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


def command(task: Path, trainer: str, *options: str) -> list[str]:
    file = f"{task}:{trainer}"
    arguments = ["--experiment", str(task), "--trainers", "fit", file, "--epochs", "2", "--batch-size", "16"]
    arguments += ["--reports", str(task.parent / "reports"), "--name", "study", *options]
    return [sys.executable, str(ROOT / "scripts" / "compare.py"), *arguments]


def run(task: Path, trainer: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(task, trainer, *options), capture_output=True, text=True, timeout=300)


def made(task: Path) -> Counter[str]:
    """Returns how often the candidate finished training, by seed."""
    return Counter(line.split()[0] for line in (task.parent / "made").read_text().splitlines())


def test_the_processors_are_divided_fairly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.app.processes.cores", lambda: 8)
    assert division(request(seeds=20), 40) == (8, 1)
    assert division(request(seeds=3), 6) == (6, 1)
    assert division(request(seeds=2, jobs=2), 4) == (2, 4)
    assert division(request(seeds=2, jobs=1), 4) == (1, 8)
    assert division(request(seeds=2, jobs=16), 4) == (4, 2)
    assert division(request(seeds=9, backend="dask", scheduler="tcp://a:1"), 18)[1] == 1


def test_only_the_run_of_a_worker_that_dies_is_repeated(task: Path) -> None:
    done = run(task, "DiesOnce", "--seeds", "2", "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "identical: counted trains exactly like fit, for each of 2 seeds" in done.stdout
    assert (task.parent / "died").exists(), "otherwise nothing was tested"
    rows = read_metrics(task.parent / "reports" / "study" / "metrics.csv")
    assert Counter((row["trainer"], row["seed"]) for row in rows) == {
        (trainer, f"{seed}"): 2 for trainer in ("fit", "counted") for seed in range(2)
    }
    assert made(task).keys() == {"0", "1"}
    content = read_json(task.parent / "reports" / "study" / "run.json")
    assert content["initial_weights_sha256"].keys() == {"0", "1"}
    assert len(set(content["initial_weights_sha256"].values())) == 2, "each seed has its own initial weights"
    assert content["study"]["processes"] == 2


def test_a_margin_for_what_nobody_reports_is_refused_as_soon_as_that_is_known(task: Path) -> None:
    """Of fit that is before training; of another reference, when its first training has ended."""
    done = run(task, "Counted", "--seeds", "2", "--margin", "nosuch=1", "--trainers", f"{task}:Counted", "fit")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--margin nosuch=1: counted reports no nosuch, but loss" in line


def test_data_that_each_process_makes_anew_are_refused(task: Path) -> None:
    """A correct loop would differ from fit, for a reason that the report does not know."""
    task.write_text(TASK.replace("default_rng(1)", "default_rng()"))
    done = run(task, "Counted", "--seeds", "2")
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert f"load_data ({task}, line 13) gives other data in another process" in line and "seed its random" in line


@pytest.mark.slow
def test_a_killed_study_is_resumed_and_no_finished_run_is_repeated(task: Path) -> None:
    study = task.parent / "reports" / "study"
    options = ["--seeds", "3", "--jobs", "2", "--margin", "val_loss=5%"]
    process = subprocess.Popen(command(task, "Counted", *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (study / "metrics.csv").exists() or len(read_metrics(study / "metrics.csv")) < 4:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    through = [path.stem for path in (study / "records").glob("*.json") if "end" in read_json(path)]
    before = {name: (study / "records" / f"{name}.steps").stat().st_mtime_ns for name in through}
    assert through and len(through) < 6
    done = run(task, "Counted", *options, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{len(through)} trainings have finished already" in done.stdout
    assert {name: (study / "records" / f"{name}.steps").stat().st_mtime_ns for name in through} == before
    rows = read_metrics(study / "metrics.csv")
    order = [(seed, trainer) for seed in "012" for trainer in ("fit", "counted") for _ in range(2)]
    assert [(row["seed"], row["trainer"]) for row in rows] == order


@pytest.mark.slow
def test_a_study_whose_workers_always_die_ends(task: Path) -> None:
    done = run(task, "DiesAlways", "--seeds", "2", "--jobs", "1")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "worker processes died" in line and "with seed 0" in line and "--resume, or" in line and "--jobs 1" in line


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "says"), [("Raises", "a bug of mine"), ("Exits", "os._exit(0)")])
def test_an_exception_with_one_seed_is_reported_with_its_line(task: Path, trainer: str, says: str) -> None:
    done = run(task, trainer, "--seeds", "2")
    assert done.returncode == 3
    assert says in done.stderr and "task.py" in done.stderr and "Traceback" not in done.stderr
    rows = read_metrics(task.parent / "reports" / "study" / "metrics.csv")
    assert {(row["trainer"], row["seed"]) for row in rows} == {("fit", "0"), ("fit", "1"), ("counted", "0")}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_no_process_outlives_a_killed_study(task: Path) -> None:
    with open(task.parent / "log", "w") as log:
        process = subprocess.Popen(command(task, "Sleeps", "--seeds", "2", "--jobs", "2"), stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while not (asleep := list(task.parent.glob("asleep-*"))) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert asleep
        process.send_signal(signal.SIGKILL)
        process.wait()
    pids = [int(path.name.removeprefix("asleep-")) for path in asleep]
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline + 20:
        time.sleep(0.2)
    assert not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_dask_cluster_trains_and_repeats_the_runs_of_a_lost_worker(task: Path) -> None:
    distributed = pytest.importorskip("distributed")
    environment = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(host="127.0.0.1", env=environment, silence_logs=50, **options) as cluster:
        address = cluster.scheduler_address
        done = run(task, "DiesOnce", "--seeds", "2", "--backend", "dask", "--scheduler", address)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "identical: counted trains exactly like fit, for each of 2 seeds" in done.stdout
    assert (task.parent / "died").exists()
    assert made(task).keys() == {"0", "1"}
    pids = {line.split()[1] for line in (task.parent / "made").read_text().splitlines()}
    assert str(os.getpid()) not in pids


def test_a_scheduler_that_does_not_answer_is_reported_in_one_line(task: Path) -> None:
    done = run(task, "Counted", "--seeds", "2", "--backend", "dask", "--scheduler", "tcp://127.0.0.1:9")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--scheduler tcp://127.0.0.1:9: no Dask scheduler answers there" in line
    assert not (task.parent / "reports" / "study").exists(), "no folder is left behind"


def test_a_port_that_accepts_and_never_answers_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_runner, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        study = Study(seeds=2, backend="dask", scheduler=address)
        with pytest.raises(RequestError, match=f"{address}: no Dask scheduler answers"):
            seeds_runner._run_all(Mock(options=study), 1, [Job("fit", 0)], {}, Mock(), Mock())


@pytest.mark.parametrize(("workers", "times"), [([0, 0], 1), ([1, 2], 0), ([1, 0, 0, 1, 0], 2)])
def test_a_scheduler_without_workers_is_said_also_when_the_last_has_gone(
    monkeypatch: pytest.MonkeyPatch, workers: list[int], times: int
) -> None:
    client, say, counts, seen = MagicMock(), Mock(), iter(workers), threading.Event()

    def scheduler_info() -> dict[str, Any]:
        if (count := next(counts, None)) is None:
            seen.set()
        return {"workers": {str(number): {} for number in range(workers[-1] if count is None else count)}}

    client.scheduler_info = scheduler_info
    monkeypatch.setattr("distributed.Client", Mock(return_value=client))
    monkeypatch.setattr(seeds_runner, "WORKERS_SECONDS", 0.0)
    study = Study(seeds=2, backend="dask", scheduler="tcp://127.0.0.1:9")
    with seeds_runner._executor(study, 1, say):
        assert seen.wait(10)
    waits = "tcp://127.0.0.1:9 has no workers; waiting for one; start it with: dask worker tcp://127.0.0.1:9"
    assert [call.args[0] for call in say.call_args_list] == [waits] * times


def test_a_study_whose_scheduler_dies_can_be_continued_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dies:
        def __init__(self, *_: Any, **__: Any) -> None:
            monkeypatch.setattr("distributed.Client", Mock(side_effect=OSError))

        def __enter__(self) -> None:
            raise CancelledError

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("distributed.Client", Dies)
    begun = Study(seeds=2, backend="dask", scheduler="tcp://127.0.0.1:9")
    with pytest.raises(NoVerdictError, match=r"no Dask scheduler answers there .*, and continue with --resume"):
        seeds_runner._run_all(Mock(options=begun), 1, [Job("fit", 0)], {}, Mock(), Mock())
    options = [{"options": as_json(each)} for each in (begun, replace(begun, scheduler="tcp://127.0.0.1:8"))]
    refuse_changes(*options)
