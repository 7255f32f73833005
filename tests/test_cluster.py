"""Clusters of processes on 127.0.0.1: they compute what one process computes, and none is left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import recorded
import tasks
from eager import Eager
from killed_runs import left_by
from processes import children
from rich.console import Console

import compare
from compare.app import cluster_member, cluster_session
from compare.app.cluster_session import _free_ports, _wait
from compare.app.ready import Job
from compare.engine import tf_config
from compare.errors import NoVerdictError, RequestError
from compare.options import as_json, request
from compare.records.run_json import INTERRUPTED, TRAINING, RunJson

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["--experiment", "fashion-mnist-sample", "--train-examples", "288", "--batch-size", "32", "--epochs", "1"]


def start(reports, *arguments, **environment):
    command = [sys.executable, str(ROOT / "scripts/compare.py"), *SMALL, "--reports", str(reports), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )


def run(reports, *arguments, limit=120, **environment):
    """Runs a command to its end; returns exit status, stdout, stderr."""
    process = start(reports, *arguments, **environment)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def forked(commands, reports, *arguments, **options):
    """Runs a command in a process that has imported TensorFlow already; returns the same."""
    command = [sys.executable, str(ROOT / "scripts/compare.py"), *SMALL, "--reports", str(reports), *arguments]
    return commands.run(command, **options)


def left_behind(reports):
    """Returns the command lines of the processes that still write to a reports folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(reports).encode() in command:
            found.append(command.replace(b"\0", b" ").decode())
    return found


def assert_none_left(reports):
    deadline = time.monotonic() + 15
    while left_behind(reports) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind(reports) == []


def verdict(reports, name):
    return json.loads((reports / name / "verdict.json").read_text())


@pytest.mark.slow
def test_workers_equal_replicas_bit_for_bit(tmp_path):
    """Keras 2, whose fit runs under both. Three: a sum of two is the same in any order."""
    count = 3
    status, _, err = run(tmp_path, "--keras", "2", "--replicas", str(count), "--name", "replicas")
    assert (status, err) == (0, "")
    arguments = ["--keras", "2", "--strategy", "multi-worker", "--workers", str(count), "--name", "workers"]
    status, _, err = run(tmp_path, *arguments, "--baseline", str(tmp_path / "replicas"))
    assert (status, err) == (0, "")
    found = verdict(tmp_path, "workers")["comparisons"]
    assert [(each["candidate"], "against" in each) for each in found] == [
        ("loop", False),
        ("fit", True),
        ("loop", True),
    ]
    assert {each["verdict"] for each in found} == {"identical"}
    assert all(each["training"]["steps_compared"] == -(-288 // (32 * count)) for each in found)
    assert_none_left(tmp_path)


def test_a_worker_of_a_finished_run_that_is_resumed_waits_for_nobody(tmp_path, capsys, monkeypatch):
    recorded.identical(tmp_path / "run")
    monkeypatch.setattr(cluster_session, "select_keras", Mock(side_effect=AssertionError))
    options = request(strategy="multi-worker", resume=True, name="run", reports=tmp_path)
    cluster_session.take_part(options, tmp_path / "run", Console())
    assert capsys.readouterr().out == "This run has finished; its chief tells the verdict.\n"


def test_a_worker_with_other_options_than_its_chief_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_session, "Session", Mock())
    monkeypatch.setattr(cluster_session, "select_keras", Mock())
    RunJson(folder=tmp_path, options=as_json(request(strategy="multi-worker", epochs=3))).save()
    told = "this worker: the run began with --epochs 3, this request has 4: give the original options"
    with pytest.raises(RequestError, match=told):
        cluster_session.take_part(request(strategy="multi-worker", epochs=4), tmp_path, Console())


@pytest.mark.parametrize(
    ("status", "raised", "told"),
    [
        (INTERRUPTED, KeyboardInterrupt, "the chief was interrupted; continue on every machine with the same command"),
        (TRAINING, NoVerdictError, "loop failed: UnavailableError: Collective ops is aborted by: x; another process "),
    ],
)
def test_a_worker_that_cannot_train_ends_with_a_status_and_one_line(
    tmp_path, capsys, monkeypatch, status, raised, told
):
    lost = type("UnavailableError", (Exception,), {"__module__": "tensorflow"})("Collective ops is aborted by: x")
    session = Mock(jobs=[Job("loop", 0), Job("loop-2", 0)])
    monkeypatch.setattr(cluster_session, "Session", Mock(begin=Mock(return_value=session)))
    monkeypatch.setattr(cluster_session, "train_on", Mock(side_effect=lost))
    for name, found in (("select_keras", None), ("preflight_problems", ()), ("is_done", False)):
        monkeypatch.setattr(cluster_session, name, Mock(return_value=found))
    options = request(strategy="multi-worker", trainers=("loop", "loop"))
    RunJson(folder=tmp_path, options=as_json(options), status=status).save()
    with pytest.raises(raised, match=f"^{told}"):
        cluster_session.take_part(options, tmp_path, Console())
    assert capsys.readouterr().err == ""
    if raised is NoVerdictError:  # among processes of this machine, its chief is not stopped for it
        monkeypatch.setattr(
            cluster_member, "carry_out_and_report", partial(cluster_session.take_part, console=Console())
        )
        assert cluster_member._carry_out(options, tmp_path) == 0
        assert capsys.readouterr().err.startswith(told)


# In the gate, test_preflight finds these problems, and reports another before training.
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["multi-worker", "parameter-server"])
def test_a_strategy_under_which_fit_cannot_run_is_reported_before_training(commands, tmp_path, strategy):
    status, out, err = forked(commands, tmp_path, "--strategy", strategy, "--workers", "2", "--name", "run")
    assert (status, err) == (3, "")
    assert "fit cannot run" in out
    assert "use --keras 2" in out
    found = verdict(tmp_path, "run")
    assert found["verdict"] == "not-comparable"
    assert found["comparisons"][0]["failure"]["side"] == "fit"
    assert not (tmp_path / "run" / "metrics.csv").exists(), "nothing was trained"
    assert_none_left(tmp_path)


def test_a_parameter_server_with_one_worker_is_exact(tmp_path):
    """Also behind a proxy, which cannot lead back to this machine."""
    arguments = ["--strategy", "parameter-server", "--keras", "2", "--name", "run"]
    status, _, err = run(tmp_path, *arguments, http_proxy="http://127.0.0.1:9")
    assert (status, err) == (0, "")
    (comparison,) = verdict(tmp_path, "run")["comparisons"]
    assert comparison["verdict"] == "identical"
    assert comparison["training"]["steps_compared"] == 0, "compared at the ends of epochs only"
    assert_none_left(tmp_path)


@pytest.mark.slow
def test_a_parameter_server_with_two_workers_is_inconclusive(tmp_path):
    arguments = ["--strategy", "parameter-server", "--workers", "2", "--parameter-servers", "2", "--name", "run"]
    status, out, err = run(tmp_path, *arguments, "--trainers", "loop", "loop", "--epochs", "2")
    assert (status, err) in ((3, ""), (0, "")), "racing workers may agree by chance, and differ otherwise"
    assert verdict(tmp_path, "run")["verdict"] in ("inconclusive", "identical")
    assert "without waiting for each other" in out
    assert_none_left(tmp_path)


@pytest.mark.slow
def test_a_study_over_seeds_gives_a_verdict_on_racing_workers(tmp_path):
    arguments = ["--strategy", "parameter-server", "--workers", "2", "--trainers", "loop", "loop", "--name", "run"]
    status, out, err = run(tmp_path, *arguments, "--seeds", "3", "--margin", "val_loss=1e6%", "val_accuracy=0.001")
    assert err == ""
    study = verdict(tmp_path, "run")["comparisons"][0]["study"]
    found = {test["metric"]: test["verdict"] for test in study["tests"]}
    assert found["val_loss"] == "alike" and found["val_accuracy"] != "alike", "one margin is far too narrow"
    # The workers race: one time in twenty or so three seeds happen to lie on one side, and the test is of that level.
    assert (verdict(tmp_path, "run")["verdict"], status) in {("inconclusive", 3), ("different", 1)}
    assert verdict(tmp_path, "run")["verdict"] == found["val_accuracy"]
    assert "loop-2, seed 2  epoch 1/1" in out
    assert_none_left(tmp_path)


@pytest.mark.slow
def test_a_mistake_on_several_workers_is_named_by_a_check_on_replicas(tmp_path):
    loops = tmp_path / "loops.py"
    loops.write_text(
        "import tensorflow as tf\nimport compare\n\n\n"
        "class Summed(compare.CustomLoop):\n"
        "    name = 'summed'\n\n"
        "    def compute_loss(self, y, predictions, sample_weight):\n"
        "        return tf.reduce_sum(self.loss.call(y, predictions))\n"
    )
    arguments = ["--strategy", "multi-worker", "--workers", "2", "--trainers", "loop", f"{loops}:Summed"]
    status, out, err = run(tmp_path, *arguments, "--name", "run", limit=240)
    assert (status, err) == (1, "")
    assert "with mirrored on 2 replica(s), which computes the same as multi-worker" in out
    (comparison,) = verdict(tmp_path, "run")["comparisons"]
    assert [cause["id"] for cause in comparison["causes"]] == ["loss-summed"]
    assert_none_left(tmp_path)


def free_addresses():
    """Returns two addresses that nobody listens on."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two)]


def test_the_tasks_of_a_given_cluster_equal_replicas_and_only_the_chief_writes(commands, tmp_path):
    """Two processes that the user started, each with its TF_CONFIG; under Keras 3, where only the loop can run."""
    loops = ["--trainers", "loop", "loop", "--name", "run"]
    status, out, err = forked(commands, tmp_path / "replicas", *loops, "--replicas", "2")
    assert (status, err) == (0, "") and "2 replicas" in out
    addresses = free_addresses()
    arguments = [*loops, "--strategy", "multi-worker", "--baseline", str(tmp_path / "replicas" / "run")]
    processes = []
    for index in range(2):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(start(tmp_path / str(index), *arguments, TF_CONFIG=json.dumps(config)))
    (chief_out, _), (other_out, _) = (process.communicate(timeout=120) for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert "identical: loop-2 trains exactly like loop" in chief_out
    assert other_out == ""
    comparisons = verdict(tmp_path / "0", "run")["comparisons"]
    assert [each["verdict"] for each in comparisons] == ["identical"] * 3, "one another, and each to the replicas'"
    left = {path.name for path in (tmp_path / "1" / "run").iterdir()}
    assert left == {"checkpoints"}, "checkpoints are per worker"


@pytest.mark.parametrize("strategy", ["multi-worker", pytest.param("parameter-server", marks=pytest.mark.slow)])
def test_a_task_that_never_joins_is_named_within_a_minute(commands, tmp_path, strategy):
    mine, absent = free_addresses()
    kinds = {"multi-worker": ("worker", {"worker": [mine, absent]})}
    kinds["parameter-server"] = ("chief", {"chief": [mine], "worker": [absent]})
    kind, cluster = kinds[strategy]
    config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
    assert tf_config.JOIN_SECONDS < 60
    sooner = "from compare.engine import tf_config; tf_config.JOIN_SECONDS = 5.0"
    arguments = ["--strategy", strategy, "--trainers", "loop", "loop", "--name", "run"]
    environment = {"TF_CONFIG": json.dumps(config)}
    status, _, err = forked(commands, tmp_path, *arguments, before=sooner, environment=environment)
    assert status == 3, err
    (line,) = err.splitlines()
    assert f"({absent}) did not join within 5 s" in line and "TF_CONFIG" in line
    assert_none_left(tmp_path)


@pytest.mark.slow
def test_an_interrupted_cluster_can_be_resumed_and_ends_the_same(tmp_path):
    cluster = ["--strategy", "multi-worker", "--workers", "2", "--keras", "2", "--epochs", "3"]
    cluster += ["--checkpoint-every", "1", "--quiet"]
    assert run(tmp_path, *cluster, "--name", "whole")[0] == 0
    (tmp_path / "tmp").mkdir()
    process = start(tmp_path, *cluster, "--name", "run", TMPDIR=str(tmp_path / "tmp"))
    metrics = tmp_path / "run" / "metrics.csv"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert len(left_behind(tmp_path)) == 3
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err
    assert not list((tmp_path / "tmp").iterdir())
    assert verdict(tmp_path, "run")["interrupted"] is True
    assert_none_left(tmp_path)
    status, _, err = run(tmp_path, *cluster, "--name", "run", "--resume")
    assert status == 0, err
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")


def test_a_worker_that_dies_ends_the_run_with_an_error(tmp_path):
    process = start(tmp_path, "--strategy", "multi-worker", "--workers", "2", "--keras", "2", "--epochs", "500")
    read_until(process, " 1/500")
    (worker,) = [pid for pid in children(process.pid) if b'"index": 1' in Path(f"/proc/{pid}/environ").read_bytes()]
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert len(err.strip().splitlines()) == 1, err
    assert_none_left(tmp_path)


def test_a_chief_that_was_killed_is_told_with_the_way_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_session, "start_here", lambda options, folder: (-9, ""))
    with pytest.raises(NoVerdictError, match=r"was killed \(signal 9\), perhaps .*; continue with --resume$"):
        cluster_session.start(request(strategy="multi-worker"), tmp_path, Console(quiet=True))


def test_a_verdict_without_a_worker_that_was_killed_is_taken_back(tmp_path, monkeypatch):
    """The chief has judged, and another process looks at its folder later."""

    def lost(options, folder):
        raise NoVerdictError("worker-0 was killed")

    class Second(Eager):
        name = "second"

    trainers, options = (Eager(), Second()), {"strategy": "default", "epochs": 1, "batch_size": 16, "quiet": True}
    result = compare.run(tasks.experiment(), trainers=trainers, reports=tmp_path, **options)
    assert result.verdict == "identical"
    monkeypatch.setattr(cluster_session, "start_here", lost)
    with pytest.raises(NoVerdictError, match=r"^worker-0 was killed$"):
        cluster_session.start(request(strategy="multi-worker"), result.path, Console(quiet=True))
    again = compare.load(result.path)
    assert again.verdict == "inconclusive" and "no verdict on second and eager: worker-0 was killed" in str(again)


@pytest.mark.parametrize(("ends", "refused"), [("exit 0", False), ("kill -9 $$", True)])
def test_what_the_chief_trained_without_a_worker_that_was_killed_is_no_verdict(ends, refused):
    texts = {"chief": "sleep 1; exit 0", "worker": ends}
    with ExitStack() as stack:
        running = {
            tf_config.ClusterTask(kind, 0, True, 1): stack.enter_context(
                subprocess.Popen(["sh", "-c", text], stderr=subprocess.PIPE)
            )
            for kind, text in texts.items()
        }
        if refused:
            with pytest.raises(
                NoVerdictError, match=r"worker-0 was killed \(signal 9\), .* before the run .*; run it again$"
            ):
                _wait(running)
        else:
            assert _wait(running) == (0, "")


# For SIGINT see the interrupted cluster above; in the gate see test_parallel_trainers.
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_survives_the_one_that_started_it(tmp_path, how):
    process = start(tmp_path, "--strategy", "multi-worker", "--workers", "2", "--keras", "2", "--epochs", "500")
    read_until(process, " 1/500")
    assert len(left_behind(tmp_path)) == 3
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGTERM: 130, signal.SIGKILL: -9}[how]
    assert_none_left(tmp_path)


def read_until(process, text):
    line = ""
    while text not in line:
        line = process.stdout.readline()
        assert line, process.stderr.read()
    return line


def test_objects_cannot_be_sent_to_other_processes(tmp_path):
    class Mine:
        name = "mine"

        def train(self, run): ...

    with pytest.raises(compare.RequestError, match=r"FILE\.py:ATTR"):
        compare.run("fashion-mnist-sample", trainers=("fit", Mine()), strategy="multi-worker", reports=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads who listens from /proc")
def test_a_task_of_this_machine_answers_on_the_loopback_interface_only():
    def listening(port):
        lines = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return [local for local, _, state in lines if state == "0A" and local.endswith(f":{port:04X}")]

    for host in ("127.0.0.1", "localhost"):
        (port,) = _free_ports(1)
        with tf_config._answering(f"{host}:{port}"):
            assert listening(port) == [f"0100007F:{port:04X}"]
    (port,) = _free_ports(1)
    with tf_config._answering(f"another-name-of-this-machine:{port}"):
        assert listening(port) == [f"00000000:{port:04X}"], "only the cluster knows that name"


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, ""),
        ({"no_proxy": "a.org"}, "a.org,"),
        ({"no_grpc_proxy": "b.org"}, "b.org,"),
        ({"no_proxy": "a.org", "no_grpc_proxy": "b.org"}, "b.org,"),
    ],
)
def test_local_workers_reach_each_other_without_a_proxy(tmp_path, monkeypatch, given, direct):
    """As far as gRPC is concerned: what load_data does is the user's."""
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    started = Mock()
    monkeypatch.setattr("compare.app.processes.start", started)
    cluster_session._start(tf_config.ClusterTask("worker", 0, False, 1), {}, request(), tmp_path, "")
    environment = started.call_args.kwargs["environment"]
    assert environment["no_grpc_proxy"] == f"{direct}127.0.0.1,localhost" and "no_proxy" not in environment


@pytest.mark.parametrize(("interfaces", "noted"), [(["lo", "eth0"], True), (["lo"], False)])
def test_who_starts_local_workers_is_told_that_the_network_can_reach_them(
    tmp_path, monkeypatch, capsys, interfaces, noted
):
    class FarEnough(Exception):
        pass

    def refused(options, folder):
        raise FarEnough

    monkeypatch.setattr("socket.if_nameindex", lambda: list(enumerate(interfaces)))
    monkeypatch.setattr("compare.app.cluster_session.start_here", refused)
    with pytest.raises(FarEnough):
        compare.run("fashion-mnist-sample", strategy="multi-worker", workers=2, reports=tmp_path)
    assert ("accept connections from the network" in capsys.readouterr().out) == noted


def test_a_bad_tf_config_is_one_line(tmp_path):
    """Other bad values are among the bad requests."""
    status, out, err = run(tmp_path, "--strategy", "multi-worker", TF_CONFIG="not json")
    assert (status, out) == (2, "")
    assert "TF_CONFIG" in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_tpu_the_error_is_one_line(commands, tmp_path):
    status, _, err = forked(commands, tmp_path, "--strategy", "tpu")
    assert status == 2
    assert "no TPU was found" in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
