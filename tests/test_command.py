"""The command as a user runs it: real processes, real data, exit status and the files of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import compare
from compare.records.metrics_csv import read_metrics

ROOT = Path(__file__).resolve().parents[1]
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
full_data = pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")


SAMPLE = ["--experiment", "fashion-mnist-sample", "--train-examples", "1200", "--epochs", "2"]


def command(reports, *arguments, limit=300, **environment):
    """Runs the command; returns exit status, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/compare.py"), "--reports", str(reports), *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        cwd="/",
        env=os.environ | environment,
    )
    return done.returncode, done.stdout, done.stderr


def forked(commands, reports, *arguments, **options):
    """Runs the command in a process that has imported TensorFlow already; returns the same."""
    return commands.run(
        [sys.executable, str(ROOT / "scripts/compare.py"), "--reports", str(reports), *arguments], **options
    )


@pytest.fixture(scope="module")
def sample_run(tmp_path_factory):
    """A run on part of the embedded sample: its folder and output."""
    reports = tmp_path_factory.mktemp("reports")
    status, out, err = command(reports, *SAMPLE, "--name", "run", KERAS_BACKEND="torch")  # for other programs
    assert (status, err) == (0, "")
    return reports / "run", out


def test_a_run_leaves_what_the_interface_promises(sample_run):
    folder, _ = sample_run
    files = {path.name for path in folder.iterdir()}
    assert files >= {"metrics.csv", "comparison.png", "run.json", "verdict.json", "tensorflow.log", "records"}
    assert files >= {"report.html"} and (folder.parent / "index.html").is_file()
    assert "loop trains exactly like fit" in (folder / "report.html").read_text(encoding="utf-8")
    rows = read_metrics(folder / "metrics.csv")
    columns = "trainer,seed,epoch,loss,accuracy,val_loss,val_accuracy,seconds,examples_per_second"
    assert list(rows[0]) == columns.split(",")
    assert [(row["trainer"], row["epoch"]) for row in rows] == [
        ("fit", "1"),
        ("fit", "2"),
        ("loop", "1"),
        ("loop", "2"),
    ]
    for fit, loop in zip(rows[:2], rows[2:], strict=True):
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert fit[name] == loop[name], "digit for digit"
            assert str(np.float32(fit[name])) == fit[name], "the shortest decimal of a float32"
    assert float(rows[1]["loss"]) < float(rows[0]["loss"]), "training helped"


@pytest.mark.oldest
@pytest.mark.exact
def test_the_verdict_file_is_what_the_interface_says(sample_run):
    verdict = json.loads((sample_run[0] / "verdict.json").read_text())
    assert (verdict["schema"], verdict["verdict"], verdict["reference"]) == (1, "identical", "fit")
    (comparison,) = verdict["comparisons"]
    assert comparison["candidate"] == "loop"
    assert comparison["training"]["max_weight_gap"] == 0.0
    assert comparison["training"]["first_difference"] is None
    assert comparison["training"]["steps_compared"] == 2 * 19, "1,200 = 18 x 64 + 48, in two epochs"
    assert comparison["reporting"]["metrics"]["val_loss"] == {"max_gap": 0.0, "epoch": 1}
    assert comparison["causes"] == []


def test_run_json_says_what_was_run(sample_run):
    run = json.loads((sample_run[0] / "run.json").read_text())
    assert run["status"] == "finished"
    assert run["options"]["epochs"] == 2
    assert run["strategy"] == {
        "name": "mirrored",
        "class": "MirroredStrategy",
        "replicas": 1,
        "workers": 1,
        "global_batch_size": 64,
        "devices": ["CPU:0"],
    }
    assert run["versions"]["tensorflow"]
    assert len(run["data"]["training_sha256"]) == len(run["initial_weights_sha256"]["0"]) == 64
    assert run["data"]["training_examples"] == 1200


def test_the_output_has_the_run_its_metrics_the_verdict_and_the_files(sample_run):
    folder, out = sample_run
    lines = [line for line in out.splitlines() if not line.endswith(" s")]  # without signs of life of a busy machine
    assert "2 replica" not in lines[0] and "1 replica" in lines[0]
    assert "CPU:0" in lines[1]
    assert any(re.match(r"fit(/loop| +)  epoch 1/2  loss \d", line) and " s, " in line for line in lines)
    assert "identical: loop trains exactly like fit" in out
    assert lines[-3:] == [str(folder / name) for name in ("comparison.png", "metrics.csv", "verdict.json")]


def test_the_same_command_gives_the_same_numbers(commands, sample_run, tmp_path):
    status, _, _ = forked(commands, tmp_path, *SAMPLE, "--name", "again", "--parallel")
    assert status == 0
    timing = ("seconds", "examples_per_second")
    first, again = (
        [{name: value for name, value in row.items() if name not in timing} for row in read_metrics(path)]
        for path in (sample_run[0] / "metrics.csv", tmp_path / "again" / "metrics.csv")
    )
    assert first == again


# In the gate, test_cluster and test_keras2 run commands with --replicas.
@pytest.mark.slow
def test_logical_replicas(commands, tmp_path):
    status, out, err = forked(
        commands, tmp_path, "--experiment", "fashion-mnist-sample", "--epochs", "1", "--replicas", "2",
        "--name", "run", "--batch-size", "16", "--train-examples", "144",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "2 replicas" in out
    assert json.loads((tmp_path / "run" / "verdict.json").read_text())["verdict"] == "identical"


def test_steps_compiled_by_xla_are_identical_to_each_other_but_not_to_uncompiled_ones(commands, tmp_path):
    """In processes of their own: XLA needs op determinism off, which cannot be undone in one."""
    for name, more in (("plain", []), ("compiled", ["--jit"])):
        arguments = ["--experiment", "weighted", "--replicas", "1", "--train-examples", "320", "--epochs", "1"]
        status, out, err = forked(commands, tmp_path, *arguments, "--name", name, *more)
        assert (status, err) == (0, "") and "identical: loop trains exactly like fit" in out, out
    plain, compiled = ((tmp_path / name / "records" / "fit-seed0.steps").read_bytes() for name in ("plain", "compiled"))
    assert len(plain) == len(compiled) and plain != compiled, "XLA rounds differently"


@pytest.mark.slow
@full_data
def test_on_the_full_data_the_tutorial_diverges_at_step_938(tmp_path):
    # The loop does not diverge there: see the README's first command, and sample_run, whose last batch is short too.
    arguments = ["--trainers", "fit", "tutorial", "--epochs", "1", "--data-dir", str(DEBIAN), "--name", "run"]
    status, out, err = command(tmp_path, *arguments)
    assert (status, err) == (1, "")
    (tutorial,) = json.loads((tmp_path / "run" / "verdict.json").read_text())["comparisons"]
    assert tutorial["training"]["first_difference"] == {"epoch": 1, "step": 938}
    assert "step 938 of epoch 1" in out


def test_without_the_data_the_sample_is_used_and_the_output_says_so(commands, tmp_path):
    """In an empty cache, with no network and no Debian package: as on a fresh machine."""
    before = (
        "from pathlib import Path; from compare.engine import data;"
        "data.DEBIAN_FOLDER = Path('/nowhere'); data.ORIGIN = 'https://127.0.0.1:9/'"
    )
    arguments = ["--epochs", "1", "--train-examples", "640", "--name", "run"]
    environment = {"KERAS_HOME": str(tmp_path / "keras")}
    status, out, err = forked(commands, tmp_path / "reports", *arguments, before=before, environment=environment)
    assert (status, err) == (0, "")
    assert "embedded sample" in out.splitlines()[0]
    run = json.loads((tmp_path / "reports/run/run.json").read_text())
    assert "embedded sample" in run["notes"][0]
    assert "embedded sample" in run["data"]["source"]


def test_refusals_that_need_the_data_leave_nothing_behind(tensorflow, tmp_path, capfd):
    from compare.app import cli

    sample = ["--experiment", "fashion-mnist-sample", "--name", "run", "--reports", str(tmp_path)]
    for arguments, told in (
        (["--batch-size", "6001"], "6000 training examples"),
        (["--batch-size", "3001", "--replicas", "2"], "at most 3000"),
        (["--train-examples", "6001"], "6000 training examples"),
        (["--train-examples", "63"], "more than the 63 training examples"),
    ):
        status = cli.main([*sample, *arguments])
        _, err = capfd.readouterr()
        assert status == 2
        assert told in err
        assert len(err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == [], arguments


def test_a_trainer_that_fails_is_named_and_the_others_results_are_kept(commands, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nclass Mine:\n    name = 'mine'\n    def train(self, run):\n        run.build()\n"
        "        os.write(2, b'W0000 what a library in C++ has to say\\n')\n        raise KeyError('oops')\n"
    )
    arguments = ["--experiment", "fashion-mnist-sample", "--train-examples", "640", "--epochs", "1", "--name", "run"]
    trainers = ["--trainers", "fit", f"{tmp_path}/mine.py:Mine"]
    status, out, err = forked(commands, tmp_path / "reports", *arguments, *trainers)
    assert status == 3
    assert "mine.py, line 7" in out
    assert out.count("KeyError: 'oops'") == err.count("KeyError: 'oops'") == 1, "while it trains, and as the last line"
    assert "mine failed; fix your trainer mine." in out
    assert len(err.splitlines()) == 1
    log = (tmp_path / "reports/run/tensorflow.log").read_text()
    assert "W0000 what a library in C++ has to say\n" in log, "kept out of the way, but not lost"
    assert "Traceback" in log and "KeyError: 'oops'" in log
    verdict = json.loads((tmp_path / "reports/run/verdict.json").read_text())
    assert verdict["verdict"] == "not-comparable"
    assert verdict["comparisons"][0]["failure"]["side"] == "mine"
    assert [row["trainer"] for row in read_metrics(tmp_path / "reports/run/metrics.csv")] == ["fit"]


def test_the_api_raises_the_users_own_exception_and_keeps_the_others_results(tensorflow, tmp_path):
    import tasks

    class Mine:
        name = "mine"

        def train(self, run):
            raise KeyError("oops")

    with pytest.raises(KeyError, match="oops"):
        compare.run(tasks.experiment(), trainers=("fit", Mine()), replicas=1, epochs=1, batch_size=8, reports=tmp_path,
                    name="run", quiet=True)  # fmt: skip
    assert [row["trainer"] for row in read_metrics(tmp_path / "run/metrics.csv")] == ["fit"]


# In the gate, test_user_files breaks the contract in loops from files.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda run: run.end_epoch(2, {}), "but epoch 1 of 1..1 was expected"),
        (lambda run: run.end_epoch(1, {"loss": "high"}), "dict of metric name to float"),
        (lambda run: run.end_epoch(1, 0.5), "dict of metric name to float"),
        (lambda run: None, "without ending epoch 1 of 1"),
    ],
)
def test_a_trainer_that_breaks_the_contract_is_refused_with_a_remedy(tensorflow, tmp_path, wrong, told):
    import tasks

    class Mine:
        name = "mine"

        def train(self, run):
            run.build()
            wrong(run)

    with pytest.raises(compare.RequestError, match=told):
        compare.run(tasks.experiment(), trainers=("fit", Mine()), replicas=1, epochs=1, batch_size=8, reports=tmp_path,
                    quiet=True)  # fmt: skip


@pytest.mark.slow
def test_a_step_reported_while_tracing_is_refused(tensorflow, tmp_path):
    import tasks

    class Traced:
        name = "traced"

        def train(self, run):
            run.build()
            tensorflow.function(run.end_step)()
            run.end_epoch(1, {"loss": 0.5})

    with pytest.raises(compare.RequestError, match=r"inside a tf\.function"):
        compare.run(tasks.experiment(), trainers=("fit", Traced()), replicas=1, epochs=1, batch_size=8,
                    reports=tmp_path, quiet=True)  # fmt: skip


def test_help_lists_the_options():
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/compare.py"), "--help-all"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert time.monotonic() - began < 60, "a guard against hanging, not a measurement"
    for option in ("--experiment", "--trainers", "--strategy", "--replicas", "--reports", "--data-dir"):
        assert option in done.stdout
