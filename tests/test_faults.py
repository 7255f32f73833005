"""Faults during training: weights or losses that are not finite, too little memory, a full disk."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tasks
from eager import Eager, run
from killed_runs import TASK
from rich.console import Console

import compare.check
from compare.app import session
from compare.app.standard_streams import forgiving, print_traceback, stderr_to
from compare.errors import NoVerdictError, StorageError
from compare.options import request
from compare.records.files import read_json
from compare.records.metrics_csv import MetricsFile
from compare.records.model import RecordError
from compare.records.recorder import Recorder


@pytest.fixture(autouse=True)
def _devices(tensorflow):
    """Logical devices must be created first."""


@pytest.fixture
def experiment():
    return tasks.experiment(batch_norm=True, dropout=True)


class Diverges(Eager):
    """Weights become NaN after step 3 of epoch 2."""

    name = "diverges"
    epoch = 2

    def train(self, run):
        build, end_step = run.build, run.end_step
        steps = 0

        def built():
            nonlocal steps
            steps = 0
            self.built = build()
            return self.built

        def diverged():
            nonlocal steps
            steps += 1
            if steps == 5 * (self.epoch - 1) + 3:
                variable = self.built[0].trainable_variables[0]
                variable.assign(variable * np.nan)
            end_step()

        run.build, run.end_step = built, diverged
        super().train(run)


class DivergesLater(Diverges):
    name = "later"
    epoch = 3


def test_trainers_that_diverge_at_the_same_step_are_compared_up_to_that_step(experiment, tmp_path):
    result = run(experiment, tmp_path, (Diverges(), Diverges()))
    assert result.verdict == "identical"
    (comparison,) = result.details["comparisons"]
    assert comparison["training"]["steps_compared"] == 5 + 3
    stopped = result.details["stopped"]
    assert [(each["trainer"], each["epoch"], each["step"]) for each in stopped] == [
        ("diverges", 2, 3),
        ("diverges-2", 2, 3),
    ]
    assert "not finite" in stopped[0]["what"]
    assert result.metrics["epoch"].tolist() == [1, 1]


def test_a_trainer_that_diverges_alone_is_different_from_that_step_on(experiment, tmp_path):
    result = run(experiment, tmp_path, (Eager(), Diverges()))
    assert result.verdict == "different"
    (comparison,) = result.details["comparisons"]
    first = comparison["training"]["first_difference"]
    assert (first["epoch"], first["step"], first["stage"]) == (2, 3, "state"), "it is assigned after the update"
    assert comparison["causes"][0]["id"] == "not-finite"
    assert result.details["stopped"][0]["trainer"] == "diverges"


@pytest.mark.slow
def test_trainers_that_diverge_at_different_steps_are_different(experiment, tmp_path):
    assert run(experiment, tmp_path, (Diverges(), DivergesLater())).verdict == "different"


def test_an_infinite_loss_ends_training_at_the_epoch_that_reports_it(tmp_path):
    import tensorflow as tf

    class Infinite(tf.keras.losses.Loss):
        def call(self, y, predictions):
            return tf.reduce_mean(tf.square(predictions), -1) + tf.constant(np.inf)

    result = run(tasks.experiment(build_loss=Infinite), tmp_path, ("fit", "loop"))
    assert result.verdict == "identical"
    assert [(each["epoch"], each["step"], each["what"]) for each in result.details["stopped"]] == [
        (1, None, "loss is inf")
    ] * 2


def test_weights_that_are_infinite_from_the_start_are_allowed(tmp_path):
    import tensorflow as tf

    class Masked(tf.keras.layers.Layer):
        def build(self, shape):
            self.mask = self.add_weight(name="mask", shape=(3,), initializer="zeros", trainable=False)
            self.mask.assign([0.0, np.inf, 0.0])

        def call(self, x):
            return x + 0.0 * tf.where(tf.math.is_inf(tf.convert_to_tensor(self.mask)), 0.0, 1.0)

    def build_model():
        return tf.keras.Sequential([tf.keras.layers.Dense(3), Masked()])

    assert run(tasks.experiment(build_model=build_model), tmp_path, (Eager(), Eager()), epochs=1).verdict == "identical"


class NoMemory(Eager):
    name = "no-memory"

    def train(self, run):
        import tensorflow as tf

        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1,2,3]")


def test_out_of_memory_says_what_to_do(experiment, tmp_path):
    with pytest.raises(Exception, match="OOM"):
        run(experiment, tmp_path, (Eager(), NoMemory()))
    verdict = read_json(tmp_path / "run" / "verdict.json")
    assert verdict["verdict"] == "not-comparable"
    assert "--batch-size" in verdict["comparisons"][0]["failure"]["remedy"]


def limited(original, size):
    """Returns the same function with a limit on the size of files, which stands for a full disk: write() fails."""

    def full(*arguments, **options):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # Python ignores SIGXFSZ
        try:
            return original(*arguments, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


@pytest.mark.parametrize(("file", "size"), [("metrics.csv", 150), ("steps", 1000), ("checkpoint", 500)])
def test_a_full_disk_is_reported_in_one_line_and_the_run_can_be_resumed(tmp_path, capfd, monkeypatch, file, size):
    from compare.app import cli
    from compare.engine import checkpoints

    (tmp_path / "task.py").write_text(TASK)
    trainers = [f"{Path(__file__).parent / 'eager.py'}:Eager"] * 2
    command = ["--experiment", str(tmp_path / "task.py"), "--trainers", *trainers, "--strategy", "default"]
    command += ["--epochs", "3", "--batch-size", "12", "--quiet", "--reports", str(tmp_path), "--name", "run"]
    owner, name = {
        "metrics.csv": (MetricsFile, "append"),
        "steps": (Recorder, "_append"),
        "checkpoint": (checkpoints.Checkpoints, "save"),
    }[file]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, limited(getattr(owner, name), size))
        assert cli.main(command) == 3
    errors = capfd.readouterr().err
    (line,) = [line for line in errors.splitlines() if line.startswith("compare.py: ")]
    assert "cannot be written" in line and "continue with --resume" in line and "Traceback" not in errors
    assert cli.main([*command, "--resume"]) == 0


BREACHES = """
import compare

class Early(compare.CustomLoop):
    name = "early"
    def train(self, run):
        run.build()

class Twice(compare.CustomLoop):
    name = "twice"
    def train(self, run):
        run.build()
        run.end_epoch(run.epochs[0], {})
        run.end_epoch(run.epochs[0], {})
"""


@pytest.mark.parametrize("breach", ["Early", "Twice"])
@pytest.mark.parametrize("at", [0, 1], ids=["reference", "candidate"])
def test_a_breach_of_the_contract_is_no_verdict_and_the_run_says_so(tmp_path, capfd, breach, at):
    from compare.app import cli

    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "loop.py").write_text(BREACHES)
    trainers = [f"{Path(__file__).parent / 'eager.py'}:Eager"]
    trainers.insert(at, f"{tmp_path / 'loop.py'}:{breach}")
    command = ["--experiment", str(tmp_path / "task.py"), "--trainers", *trainers, "--strategy", "default", "--quiet"]
    command += ["--epochs", "1", "--batch-size", "12", "--reports", str(tmp_path), "--name", "run", "--sequential"]
    assert cli.main(command) == 3
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("compare.py: ")]
    assert f"trainer {breach.lower()}" in line and "end_epoch" in line
    assert read_json(tmp_path / "run" / "verdict.json")["verdict"] == "not-comparable"


class Exits(Eager):
    """Ends the process in the middle of training, as a script does that has its own argument parser."""

    name = "exits"

    def train(self, run):
        run.build()
        sys.exit(0)


class ExitsAtOnce(Eager):
    name = "exits"

    def train(self, run):
        try:
            os._exit(0)
        finally:
            super().train(run)


class ExitsInAThread(Eager):
    name = "exits"

    def train(self, run):
        import tensorflow as tf

        tf.py_function(lambda: os._exit(0), [], [])


class ExitsInAGraph(compare.CustomLoop):
    """Its only line is called by this package, through code that AutoGraph has generated."""

    name = "exits"

    def train_step(self, batch):
        os._exit(0)


class Replaces(Eager):
    name = "exits"

    def train(self, run):
        with contextlib.suppress(BaseException):
            os.execv("/bin/true", ["true"])
        super().train(run)


class Forks(Eager):
    """Its child processes end as they wish."""

    def train(self, run):
        child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        super().train(run)


@pytest.mark.parametrize(
    ("trainer", "what"),
    [
        (Exits, "SystemExit: 0"),
        (ExitsAtOnce, r"os\._exit\(0\)"),
        (ExitsInAThread, r"os\._exit\(0\)"),
        (ExitsInAGraph, r"os\._exit\(0\)"),
        (Replaces, r"os\.execv\(/bin/true, …\)"),
    ],
)
def test_a_trainer_that_ends_the_process_is_a_failure_and_the_run_says_so(experiment, tmp_path, trainer, what):
    original = os._exit
    with pytest.raises(NoVerdictError, match=rf"trainer exits ended the run.*{what} \(.*test_faults\.py, line"):
        run(experiment, tmp_path, ("fit", trainer()))
    assert os._exit is original
    (verdict,) = tmp_path.glob("*/verdict.json")
    (entry,) = read_json(verdict)["comparisons"]
    assert (entry["verdict"], entry["failure"]["side"]) == ("not-comparable", "exits")
    with pytest.raises(NoVerdictError, match="trainer exits ended the run"):
        compare.check.check(experiment, trainer())


class TrainsInFork(Eager):
    def train(self, run):
        child = os.fork()
        if not child:
            super().train(run)
            os._exit(0)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_trainer_that_trains_in_a_process_that_it_forks_is_a_failure(experiment, tmp_path):
    with pytest.raises(
        compare.RequestError, match=r"\(.*test_faults\.py, line \d+\) trains in a process that it forks"
    ):
        run(experiment, tmp_path, (Eager(), TrainsInFork()), epochs=1)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_process_that_a_trainer_forks_may_end_at_once(experiment, tmp_path):
    assert run(experiment, tmp_path, (Eager(), Forks()), epochs=1).verdict == "identical"


@pytest.mark.parametrize(
    ("part", "function", "told"),
    [
        ("load_data", lambda: sys.exit("no data"), r"load_data ended the run.*SystemExit: no data \("),
        ("load_data", lambda: os._exit(0), r"load_data ended the run.*os\._exit\(0\) \("),
        ("build_loss", lambda: os._exit(1), r"build_loss ended the run.*os\._exit\(1\) \("),
    ],
)
def test_data_that_end_the_process_end_the_run_without_a_verdict(tmp_path, part, function, told):
    experiment = dataclasses.replace(tasks.experiment(), **{part: function})
    with pytest.raises(NoVerdictError, match=rf"{told}.*test_faults\.py, line"):
        run(experiment, tmp_path, ("fit", "loop"))
    assert not list(tmp_path.glob("*/verdict.json"))


def test_a_model_whose_call_ends_the_process_is_no_verdict(tmp_path):
    import tensorflow as tf

    class Ends(tf.keras.layers.Layer):
        def call(self, x):
            sys.exit(0)

    experiment = tasks.experiment(build_model=lambda: tf.keras.Sequential([Ends()]))
    with pytest.raises(NoVerdictError, match=r"your code ended the run.*SystemExit: 0 \(.*test_faults\.py, line"):
        run(experiment, tmp_path, ("fit", "loop"))


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("> /dev/full", "compare.py: the output cannot be written (No space left on device), so some of it is lost\n"),
        *(pytest.param(each, "", marks=pytest.mark.slow) for each in (">&-", "2>&-", "| head -1")),
    ],
)
def test_closed_and_full_outputs_stop_nothing(tmp_path, output, told):
    (tmp_path / "my_task.py").write_text(TASK)
    script = Path(__file__).parents[1] / "scripts" / "compare.py"
    command = f"{sys.executable} {script} --experiment my_task.py --strategy default --epochs 1 --reports . --name run"
    done = subprocess.run(["bash", "-c", f"{command} {output}"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, told)
    assert read_json(tmp_path / "run" / "verdict.json")["verdict"] == "identical"


def test_what_cannot_be_printed_is_dropped():
    with open("/dev/full", "w") as full:
        stream = forgiving(full)
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()
        stream.write("more")
        assert not stream.isatty()


def test_a_traceback_that_cannot_be_written_raises_nothing(monkeypatch):
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        try:
            raise ValueError
        except ValueError:
            print_traceback()


def test_a_stream_that_user_code_closes_drops_the_rest(tmp_path):
    file = open(tmp_path / "out", "w")  # noqa: SIM115
    stream = forgiving(file)
    stream.write("before")
    file.close()
    assert stream.write("after") == 5
    stream.flush()
    assert (tmp_path / "out").read_text() == "before"
    assert forgiving(None).write("set to None") == 11


def test_the_log_of_a_copy_by_hard_links_stays_as_it_is(tmp_path):
    (tmp_path / "log").write_text("earlier\n")
    os.link(tmp_path / "log", tmp_path / "copy")
    with stderr_to(tmp_path / "log"):
        os.write(2, b"later\n")
    assert (tmp_path / "log").read_text() == "earlier\nlater\n" and (tmp_path / "copy").read_text() == "earlier\n"


def test_characters_that_the_stream_cannot_encode_are_escaped(tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as file:
        forgiving(file).write("modèle")
    assert (tmp_path / "out").read_text() == r"mod\xe8le"


@pytest.mark.parametrize(
    ("resume", "error", "told"),
    [
        (False, StorageError, r"run/run\.json was changed meanwhile, run it again$"),
        (True, ValueError, "as JSON; restore"),
    ],
)
def test_a_file_of_the_run_that_changes_meanwhile_leaves_no_verdict(tmp_path, monkeypatch, resume, error, told):
    def changed(*_, **__):
        raise RecordError(tmp_path / "run" / "run.json", "cannot be read as JSON")

    monkeypatch.setattr(session, "_by_mode", changed)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.csv").touch()
    with pytest.raises(error, match=told):
        session.carry_out(request(resume=resume, name="run"), tmp_path / "run", Console(quiet=True))
