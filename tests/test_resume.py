"""Interrupted and resumed runs: in the end they have the same files as a run that was never interrupted."""

from __future__ import annotations

import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tasks
from against_fit import task_of
from eager import EPOCHS, Eager, run
from killed_runs import TASK, command_in, kill_and_resume, left_by

import compare
from compare.app.provenance import _threads_of_sums, arithmetic
from compare.app.resume import refuse_changes
from compare.modes import Study
from compare.records.files import read_json
from compare.records.model import EPOCH_END
from compare.records.run_json import RunJson

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _devices(tensorflow):
    """Logical devices must be created first."""


def interruptible(trainer):
    """Returns a subclass that is interrupted once during an epoch, as by Ctrl-C."""

    class Interrupted(trainer):
        name = "interrupted"
        at = 0
        epochs = ()

        def train(self, run):
            cls, end_step = type(self), run.end_step
            cls.epochs = [*cls.epochs, run.epochs]

            def interrupted():
                end_step()
                if cls.at == run.epoch:
                    cls.at = 0
                    raise KeyboardInterrupt

            run.end_step = interrupted
            super().train(run)

    return Interrupted


Interrupted = interruptible(Eager)


@pytest.fixture
def experiment():
    return tasks.experiment(batch_norm=True, dropout=True)


def interrupted(experiment, folder, at=4, trainers=None, **options):
    trainers = trainers or (Eager(), Interrupted())
    candidate = type(trainers[-1])
    candidate.at, candidate.epochs = at, []
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder, trainers, **options)


def resumed(experiment, folder, trainers=None, **options):
    return run(experiment, folder, trainers or (Eager(), Interrupted()), resume=True, **options)


def assert_same_as_uninterrupted(folder, experiment, trainers=None, **options):
    """Asserts that the resumed run has the same files as one that was never interrupted."""
    run(experiment, folder / "whole", trainers or (Eager(), Interrupted()), **options)
    assert left_by(folder / "run") == left_by(folder / "whole" / "run")


@pytest.fixture(scope="module")
def begun_once(tensorflow, tmp_path_factory):
    """The reports folders of an interrupted run of ``experiment``, and of one that was never interrupted."""
    folder, experiment = tmp_path_factory.mktemp("once"), tasks.experiment(batch_norm=True, dropout=True)
    interrupted(experiment, folder / "interrupted")
    run(experiment, folder / "whole", (Eager(), Interrupted()))
    return folder / "interrupted", folder / "whole"


@pytest.fixture
def begun(begun_once, tmp_path):
    """Copies the interrupted run to the test's own folder; returns what the resumed run must end with."""
    folder, whole = begun_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    Interrupted.at, Interrupted.epochs = 0, []
    return left_by(whole / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "kills", "forked"), [(2, 4, False), (1, 16, True)], ids=["command", "forked"])
def test_a_run_killed_at_any_moment_ends_the_same(commands, tmp_path, replicas, kills, forked):
    """The command itself; and forked processes, so that no kill is spent on the import of TensorFlow."""
    seed = random.randrange(2**32)
    print("seed", seed)
    outcome = kill_and_resume(tmp_path, replicas, kills, random.Random(seed), commands if forked else subprocess)
    print(outcome.phases)
    assert outcome.kills == kills and not outcome.differing, outcome


def test_a_run_killed_before_its_first_epoch_and_in_each_trainers_epochs_ends_the_same(commands, tmp_path):
    """Killed as soon as its request is on disk, then during fit's epochs, then the loop's; resumed each time."""
    command = command_in(tmp_path, 1)
    commands.run([*command, "--name", "whole"], check=True)
    metrics, kills = tmp_path / "run" / "metrics.csv", 0
    for reached in (
        (tmp_path / "run" / "run.json").exists,
        lambda: metrics.exists() and metrics.read_text().count("fit,") >= 2,
        lambda: metrics.exists() and metrics.read_text().count("loop,") >= 2,
    ):
        process = commands.Popen([*command, "--name", "run", *(["--resume"] if kills else [])])
        deadline = time.monotonic() + 120
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills == 3, "otherwise it had finished before it was killed"
    commands.run([*command, "--name", "run", "--resume"], check=True)
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")


def test_an_interrupted_run_continues_from_its_checkpoint(experiment, begun, tmp_path):
    verdict = read_json(tmp_path / "run" / "verdict.json")
    assert verdict["interrupted"] is True and verdict["verdict"] == "identical"
    assert (tmp_path / "run" / "comparison.png").exists()
    result = resumed(experiment, tmp_path)
    assert Interrupted.epochs == [range(3, EPOCHS + 1)], "the first trainer had finished, this one has a checkpoint"
    assert result.verdict == "identical" and "interrupted" not in result.details
    assert left_by(tmp_path / "run") == begun


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_fit_and_the_built_in_loop_continue_from_their_checkpoints(experiment, tmp_path, replicas):
    trainers = "fit", interruptible(compare.CustomLoop)()
    options = {"strategy": "mirrored", "replicas": replicas, "batch_size": 16 // replicas, "trainers": trainers}
    interrupted(experiment, tmp_path, **options)
    verdict = read_json(tmp_path / "run" / "verdict.json")
    assert verdict["interrupted"] is True and verdict["verdict"] == "identical"
    assert (tmp_path / "run" / "comparison.png").exists()
    result = resumed(experiment, tmp_path, **options)
    epochs = type(trainers[1]).epochs
    assert epochs == [range(1, EPOCHS + 1), range(3, EPOCHS + 1)], "fit had finished, the loop had a checkpoint"
    assert result.verdict == "identical" and "interrupted" not in result.details
    assert_same_as_uninterrupted(tmp_path, experiment, **options)


AT = """
import os, signal
from compare.engine.run import Run

end_step = Run.end_step

def interrupted(self, steps=1):
    if type(self) is Run and self._checkpoints._folder.name == {trainer!r} and (self.epoch, self._step) == {place}:
        os.kill(os.getpid(), signal.SIGINT)
    end_step(self, steps)

Run.end_step = interrupted
"""
"""Code that interrupts a command in a step of a trainer, as Ctrl-C does."""


@pytest.mark.parametrize(
    ("replicas", "more"),
    [
        (1, "--sequential"),
        (1, "--sequential --strategy default"),  # where fit makes its metrics in the first step
        pytest.param(2, "--sequential", marks=pytest.mark.slow),
        pytest.param(1, "--sequential --steps-per-execution 2", marks=pytest.mark.slow),
        pytest.param(2, "--parallel", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_command_continues_after_the_step_in_hand(commands, tmp_path, replicas, more):
    command = [each for each in command_in(tmp_path, replicas) if each != "--quiet"]
    command += [*more.split(), "--checkpoint-every", "100"]
    commands.run([*command, "--name", "whole"], check=True)
    command += ["--name", "run"]
    for trainer, place in [("fit", (1, 2)), ("fit", (1, 4)), ("fit", (3, 0)), ("loop", (2, 2)), ("loop", (2, 4))]:
        if more == "--parallel" and trainer == "loop":
            continue  # that is not interrupted in this process
        resume = ["--resume"] if (tmp_path / "run").exists() else []
        status, out, errors = commands.run([*command, *resume], before=AT.format(trainer=trainer, place=place))
        assert status == 130, out + errors
        assert place != (1, 4) or "fit  continues after step " in out
        assert "cannot continue" not in out
        assert list((tmp_path / "run" / "checkpoints" / trainer).glob("ckpt-*-step-*.index"))
        assert f"{errors.strip().partition('continue with: ')[2]}".endswith("--resume"), errors
    out = commands.run([*command, "--resume"], check=True)[1]
    assert "loop  continues after step " in out
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")
    assert not list(tmp_path.glob("run/checkpoints/*/*-step-*"))


@pytest.mark.parametrize(
    ("options", "continues"),
    [
        ({"epochs": 3}, "continues from its last checkpoint, saved every 2 epochs"),
        ({"epochs": 2, "checkpoint_every": 1}, "continues from its last checkpoint, saved every epoch"),
        ({"epochs": 1}, "starts again, since its first checkpoint would be saved after 2 epochs"),
        ({"epochs": 3, "checkpoint_every": 0}, "starts again, since no checkpoints are saved"),
    ],
    ids=repr,
)
def test_a_loop_that_is_not_saved_after_a_step_says_from_where_it_would_continue(
    experiment, tmp_path, capsys, options, continues
):
    run(experiment, tmp_path, (Eager(), Saving()), quiet=False, **options)
    told = [line for line in capsys.readouterr().out.splitlines() if "if interrupted" in line]
    expected = [f"eager  if interrupted and resumed, it {continues}"]
    assert told == expected + [f"saving  if interrupted and resumed, it {continues}"] * (
        "checkpoint_every" in options and not options["checkpoint_every"]
    )


class Saving(Eager):
    """Lets its interruptions be saved after every step; it has no metrics."""

    name = "saving"

    def train(self, run):
        build = run.build

        def build_and_begin():
            built = build()
            run.begin_epoch(1, [])
            return built

        run.build = build_and_begin
        super().train(run)


def test_with_checkpoint_every_0_there_are_no_checkpoints(experiment, tmp_path):
    interrupted(experiment, tmp_path, at=2, epochs=2, checkpoint_every=0)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert resumed(experiment, tmp_path, epochs=2, checkpoint_every=0).verdict == "identical"
    assert Interrupted.epochs == [range(1, 3)] * 2


@pytest.mark.parametrize(
    "harm", ["flipped", *(pytest.param(harm, marks=pytest.mark.slow) for harm in ("truncated", "removed"))]
)
def test_the_checkpoint_before_a_damaged_one_is_used_and_the_output_says_so(
    experiment, begun_once, tmp_path, harm, capsys
):
    interrupted(experiment, tmp_path, at=5)
    latest = tmp_path / "run" / "checkpoints" / "interrupted" / "ckpt-4.data-00000-of-00001"
    content = bytearray(latest.read_bytes())
    if harm == "removed":
        latest.unlink()
    else:
        content[len(content) // 2] ^= 1
        latest.write_bytes(content if harm == "flipped" else content[: len(content) // 2])
    resumed(experiment, tmp_path, quiet=False)
    told = capsys.readouterr().out
    assert "ckpt-4" in told and "damaged" in told
    assert "continues after epoch 2; what it counts in Python begins anew" in " ".join(told.split())
    assert left_by(tmp_path / "run") == left_by(begun_once[1] / "run")


def test_a_checkpoint_with_other_weights_is_not_used(experiment, begun, tmp_path, capsys):
    interrupted(experiment, tmp_path / "other", seed=5)
    ours, theirs = (folder / "checkpoints" / "interrupted" for folder in (tmp_path / "run", tmp_path / "other" / "run"))
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)
    resumed(experiment, tmp_path, quiet=False)
    assert "ckpt-2: it belongs to another run or trainer" in capsys.readouterr().out
    assert left_by(tmp_path / "run") == begun


def test_a_checkpoint_of_another_trainer_is_not_used(experiment, begun, tmp_path, capsys):
    """Its weights are the same, its metrics are not."""
    ours, theirs = (tmp_path / "run" / "checkpoints" / name for name in ("interrupted", "eager"))
    for path in theirs.glob("ckpt-2.*"):
        shutil.copy(path, ours)
    resumed(experiment, tmp_path, quiet=False)
    assert "ckpt-2: it belongs to another run or trainer" in capsys.readouterr().out
    assert Interrupted.epochs == [range(1, EPOCHS + 1)] and left_by(tmp_path / "run") == begun


def test_a_finished_run_whose_weights_are_damaged_or_gone_is_refused(experiment, begun_once, tmp_path):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "records" / "eager-seed0-epoch002.npz"
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:100]), path.unlink):
        damage()
        with pytest.raises(compare.RequestError, match=r"--resume: .*eager-seed0-epoch002\.npz: (damaged|is missing)"):
            resumed(experiment, tmp_path)


def test_a_finished_run_whose_records_rows_or_checkpoints_are_not_its_own_is_refused(experiment, begun_once, tmp_path):
    run = tmp_path / "run"

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def append(path: Path, line: bytes) -> None:
        path.write_bytes(path.read_bytes() + line)

    def swap() -> None:
        shutil.copytree(run / "checkpoints" / "eager", run / "checkpoints" / "interrupted", dirs_exist_ok=True)

    for damage, said in (
        (lambda: (run / "records" / "eager-seed0.json").unlink(), r"eager-seed0\.json: is missing"),
        (lambda: shutil.rmtree(run / "records"), "records: is missing"),
        (lambda: (run / "metrics.csv").unlink(), r"metrics\.csv: .*is missing"),
        (lambda: append(run / "metrics.csv", b"extra 1,2\n"), r"metrics\.csv: .*line"),
        (lambda: flip(next((run / "checkpoints" / "eager").glob("*.data*"))), "ckpt-.: damaged"),
        (swap, "it belongs to another run or trainer"),
        (lambda: os.truncate(next((run / "checkpoints" / "eager").glob("*.data*")), 2**36), "it has 68,719,476,736 b"),
    ):
        shutil.rmtree(tmp_path)
        shutil.copytree(begun_once[1], tmp_path)
        damage()
        with pytest.raises(compare.RequestError, match=f"--resume: .*({said})"):
            resumed(experiment, tmp_path)


def test_a_finished_run_without_its_last_checkpoint_says_so(experiment, begun_once, tmp_path, capsys):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    last = tmp_path / "run" / "checkpoints" / "eager" / f"ckpt-{EPOCHS}.index"
    resumed(experiment, tmp_path, quiet=False)
    assert "Note: " not in capsys.readouterr().out
    (last.parent / "checkpoint").write_bytes(bytes(range(256)))
    assert resumed(experiment, tmp_path, quiet=False).verdict == "identical"
    out = "".join(capsys.readouterr().out.split("\n"))
    assert f"Note: {last.parent / 'checkpoint'} does not name {last.stem}" in out
    last.unlink()
    assert resumed(experiment, tmp_path, quiet=False).verdict == "identical"
    out = capsys.readouterr().out
    assert f"Note: {last.with_suffix('')} is missing" in "".join(out.split("\n")) and "This run has finished" in out


def test_a_list_of_checkpoints_that_names_other_files_deletes_none(experiment, begun, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (mine / name).write_text("mine")
    listed = "".join(f'all_model_checkpoint_paths: "{mine}/ckpt-{number}"\n' for number in (1, 2, 3))
    (tmp_path / "run" / "checkpoints" / "interrupted" / "checkpoint").write_text(
        f'model_checkpoint_path: "{mine}/ckpt-3"\n{listed}'
    )
    assert resumed(experiment, tmp_path).verdict == "identical"
    assert len(list(mine.iterdir())) == 2 and left_by(tmp_path / "run") == begun


def test_damaged_last_lines_of_files_are_removed(experiment, begun, tmp_path, capsys):
    with open(tmp_path / "run" / "metrics.csv", "a") as file:
        file.write("interrupted,0,4,0.12")
    with open(tmp_path / "run" / "records" / "interrupted-seed0.steps", "ab") as file:
        file.write(b"half a fingerprint")
    resumed(experiment, tmp_path, quiet=False)
    assert "the last line was damaged" in capsys.readouterr().out
    assert left_by(tmp_path / "run") == begun


def test_a_trainer_whose_rows_are_gone_starts_again_and_the_output_says_so(experiment, begun, tmp_path, capsys):
    path = tmp_path / "run" / "metrics.csv"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(row for row in rows if not row.startswith("interrupted,")))
    resumed(experiment, tmp_path, quiet=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "interrupted starts again: metrics.csv and records lack the steps of its checkpoints" in told
    assert left_by(tmp_path / "run") == begun


def halved(epoch, rate):
    return rate / 2 if epoch else rate


def scheduled():
    import tensorflow as tf

    return [tf.keras.callbacks.LearningRateScheduler(halved)]


def test_a_trainer_whose_callbacks_have_state_starts_again(tmp_path, capsys):
    experiment = tasks.experiment(build_callbacks=scheduled)
    interrupted(experiment, tmp_path, at=3, epochs=3)
    resumed(experiment, tmp_path, quiet=False, epochs=3)
    assert "starts again: callbacks have their own state" in capsys.readouterr().out
    assert_same_as_uninterrupted(tmp_path, experiment, epochs=3)


def noisy():
    """Builds a model with random numbers whose state is in no checkpoint."""
    import tensorflow as tf

    class Noisy(tf.keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x), seed=1) if training else x

    return tf.keras.Sequential([Noisy(), tf.keras.layers.Dense(3)])


def test_an_interruption_that_cannot_be_continued_says_so(tmp_path, capsys):
    trainers = "fit", interruptible(compare.CustomLoop)()
    interrupted(tasks.experiment(build_model=noisy), tmp_path, at=1, epochs=1, trainers=trainers, quiet=False)
    assert "interrupted  --resume starts again: the model uses random operations" in capsys.readouterr().out


def test_random_numbers_that_cannot_be_reproduced_are_detected():
    from compare.engine.dry_run import why_not_resumable

    def why(experiment):
        return why_not_resumable(task_of(experiment, 8))

    assert "RandomStandardNormal" in why(tasks.experiment(build_model=noisy))
    assert why(tasks.experiment(dropout=True)) == ""


class OwnOptimizer(Eager):
    """Trains with an optimizer of its own, which the run does not know."""

    def train(self, run):
        build = run.build

        def built():
            model, _, *rest = build()
            optimizer = run.experiment.build_optimizer()
            optimizer.build(model.trainable_variables)
            return model, optimizer, *rest

        run.build = built
        super().train(run)


def test_a_trainer_with_an_optimizer_of_its_own_starts_again(experiment, tmp_path, capsys):
    trainers = Eager(), interruptible(OwnOptimizer)()
    interrupted(experiment, tmp_path, at=3, epochs=3, trainers=trainers)
    resumed(experiment, tmp_path, trainers=trainers, epochs=3, quiet=False)
    assert "does not train with the optimizer that run.build() returns" in capsys.readouterr().out
    assert_same_as_uninterrupted(tmp_path, experiment, trainers=trainers, epochs=3)


# Requests to resume that are granted, and those that are refused.


@pytest.mark.parametrize("missing", ["verdict.json", "comparison.png", "report.html", "../index.html"])
def test_what_is_missing_of_a_finished_run_is_made_without_training(experiment, begun_once, tmp_path, missing, capsys):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    before = left_by(tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    Interrupted.epochs = []
    assert resumed(experiment, tmp_path, quiet=False).verdict == "identical"
    assert "This run has finished; what is missing or damaged of its reports is made now." in capsys.readouterr().out
    assert (tmp_path / "run" / missing).is_file() and left_by(tmp_path / "run") == before
    assert Interrupted.epochs == []


def test_the_page_of_another_run_in_a_finished_runs_folder_is_drawn_again(experiment, begun_once, tmp_path):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    page = tmp_path / "run" / "report.html"
    own = page.read_text()
    page.write_text(re.sub('name="run" content="[^"]+"', 'name="run" content="another"', own))
    assert page.read_text() != own
    assert resumed(experiment, tmp_path).verdict == "identical" and page.read_text() == own


def test_a_page_of_somebody_else_in_the_folder_is_not_replaced(experiment, begun_once, tmp_path):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    page = tmp_path / "run" / "report.html"
    page.write_text("<title>My thesis</title>")
    with pytest.raises(compare.RequestError, match=r"report\.html is no page of a run and is not replaced; move it"):
        resumed(experiment, tmp_path)
    assert page.read_text() == "<title>My thesis</title>"


def test_a_finished_run_whose_verdict_is_damaged_says_so(experiment, begun_once, tmp_path, capsys):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "verdict.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"identical", b"different"))
    assert resumed(experiment, tmp_path, quiet=False).verdict == "identical" and path.read_bytes() == whole
    out = " ".join(capsys.readouterr().out.replace("\n", " ").split())
    assert "verdict.json: damaged, its content does not match its checksum This run has finished" in out


class Fails(Eager):
    """Fails once, in the middle of training."""

    name = "fails"
    error = None

    def train(self, run):
        end_step = run.end_step

        def failing():
            end_step()
            if run.epoch == 3 and Fails.error is not None:
                error, Fails.error = Fails.error, None
                raise error

        run.end_step = failing
        super().train(run)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()], ids=["disk", "memory"])
def test_a_run_whose_failure_may_pass_can_be_resumed(experiment, tmp_path, error):
    Fails.error = error
    with pytest.raises(type(error)):
        run(experiment, tmp_path, (Eager(), Fails()))
    assert "--resume" in read_json(tmp_path / "run" / "verdict.json")["comparisons"][0]["failure"]["remedy"]
    assert resumed(experiment, tmp_path, (Eager(), Fails())).verdict == "identical"
    assert read_json(tmp_path / "run" / "run.json")["status"] == "finished"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'model_checkpoint_path: "elsewhere/ckpt-9'])
def test_a_damaged_list_of_checkpoints_does_not_matter(experiment, begun, tmp_path, content):
    (tmp_path / "run" / "checkpoints" / "interrupted" / "checkpoint").write_bytes(content)
    assert resumed(experiment, tmp_path).verdict == "identical"
    assert Interrupted.epochs == [range(3, EPOCHS + 1)] and left_by(tmp_path / "run") == begun


def test_resuming_a_finished_run_repeats_its_verdict_and_writes_nothing(experiment, begun_once, tmp_path):
    shutil.copytree(begun_once[1], tmp_path, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name not in (".lock", "run")}
    assert resumed(experiment, tmp_path).verdict == "identical"
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 1}, "--seed 0, this request has 1"),
        ({"epochs": 9}, "--epochs 5, this request has 9"),
        ({"batch_size": 4}, "--batch-size 16, this request has 4"),
        ({"strategy": "mirrored"}, '--strategy "default", this request has "mirrored"'),
        ({"trainers": ("fit", "loop")}, '--trainers ["eager", "interrupted"], this request has ["fit", "loop"]'),
        ({"name": "never"}, "no run has begun in"),
    ],
)
def test_other_requests_are_refused_and_named(experiment, begun, tmp_path, changes, told):
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    options = {"resume": True} | changes
    with pytest.raises(compare.RequestError) as refused:
        run(experiment, tmp_path, **({"trainers": (Eager(), Interrupted())} | options))
    assert told in str(refused.value) and "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in files} == files


def test_nothing_is_written_into_a_folder_that_holds_no_run(experiment, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(compare.RequestError, match=r"run\.json.* is missing"):
        run(experiment, tmp_path, (Eager(), Eager()), resume=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_changed_data_is_refused(experiment, begun, tmp_path):
    with pytest.raises(compare.RequestError, match=r"the data \(training_examples\) changed .*from 75 to 74"):
        resumed(tasks.experiment(train=74, batch_norm=True, dropout=True), tmp_path)
    (x, y), validation = experiment.load_data()
    x[3, 3] += 1
    with pytest.raises(compare.RequestError, match=r"the data \(training_sha256\) changed"):
        resumed(tasks.experiment(batch_norm=True, dropout=True, load_data=lambda: ((x, y), validation)), tmp_path)


@pytest.mark.parametrize(
    ("part", "name", "then", "told"),
    [
        ("threads", "used", 64, r"\(used\) changed since the run began \(from 64 to \d+\): let it use as many proc"),
        ("arithmetic", "floatx", "float64", r"floatx changed .*from float64 to float32\): rest"),
        (
            "arithmetic",
            "TF_XLA_FLAGS",
            "--x",
            r"TF_XLA_FLAGS changed since the run began \(from --x to unset\): restore",
        ),
        ("versions", "oneDNN", "asked", r"\(oneDNN\) changed .*from asked to (on|off)\): set TF_ENABLE_ONEDNN_OPTS to"),
    ],
)
def test_what_the_rounding_of_sums_depends_on_may_not_change(experiment, begun, tmp_path, part, name, then, told):
    run = RunJson.read(tmp_path / "run")
    recorded = getattr(run, part)
    run.save(**{part: recorded | {name: then}})
    with pytest.raises(compare.RequestError, match=told):
        resumed(experiment, tmp_path)
    run.save(**{part: {key: value for key, value in recorded.items() if key != name}})  # as older versions wrote it
    assert resumed(experiment, tmp_path).verdict == "identical"
    assert RunJson.read(tmp_path / "run").content()[part] == recorded


@pytest.mark.parametrize(
    "name",
    [
        *("XLA_FLAGS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
        *("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    ],
)
def test_the_variables_that_choose_kernels_may_not_change(tensorflow, monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    before = {"options": {}, "arithmetic": arithmetic()}
    monkeypatch.setenv(name, "--x")
    with pytest.raises(compare.RequestError, match=rf"{name} changed since the run began \(from unset to --x\)"):
        refuse_changes(before, {"options": {}, "arithmetic": arithmetic()})


def test_a_study_uses_as_many_threads_as_each_of_its_processes(tensorflow, monkeypatch):
    monkeypatch.setattr("compare.app.processes.cores", lambda: 64)
    assert _threads_of_sums(Study(seeds=2, jobs=4), 2) == {"used": 16}


def test_changed_code_is_refused(tmp_path):
    task = tmp_path / "task.py"
    task.write_text(TASK)
    interrupted(str(task), tmp_path, at=1, epochs=2)
    task.write_text(TASK.replace("Adam(0.01)", "Adam(0.02)"))
    with pytest.raises(compare.RequestError, match=r"task.py changed since the run began"):
        resumed(str(task), tmp_path, epochs=2)
    task.write_text(TASK)
    assert resumed(str(task), tmp_path, epochs=2).verdict == "identical"


def test_changed_code_that_a_file_imports_is_refused(tmp_path, monkeypatch):
    task, rates = tmp_path / "task.py", tmp_path / "rates_of_mine.py"
    task.write_text("from rates_of_mine import RATE\n" + TASK.replace("Adam(0.01)", "Adam(RATE)"))
    for rate, told in ((0.01, ""), (0.02, r"rates_of_mine.py changed since the run began"), (0.01, "")):
        rates.write_text(f"RATE = {rate}\n")
        sys.modules.pop("rates_of_mine", None)
        monkeypatch.setattr("sys.dont_write_bytecode", True)
        importlib.invalidate_caches()
        if told:
            with pytest.raises(compare.RequestError, match=told):
                resumed(str(task), tmp_path, epochs=2)
        elif (tmp_path / "run").exists():
            assert resumed(str(task), tmp_path, epochs=2).verdict == "identical"
        else:
            interrupted(str(task), tmp_path, at=1, epochs=2)


def test_changed_settings_are_refused_also_where_no_file_tells(tensorflow, experiment, tmp_path):
    interrupted(experiment, tmp_path, at=1)
    faster = replace(experiment, build_optimizer=lambda: tensorflow.keras.optimizers.SGD(0.25))
    with pytest.raises(compare.RequestError, match=r"SGD has .*=0.25 instead of .*, with which the run began"):
        resumed(faster, tmp_path)


def test_a_damaged_run_json_is_refused(experiment, begun, tmp_path):
    (tmp_path / "run" / "run.json").write_text('{"schema": 1, "opt')
    with pytest.raises(compare.RequestError, match=r"run.json: cannot be read as JSON"):
        resumed(experiment, tmp_path)


def test_a_second_process_is_refused_at_once(experiment, begun, tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(compare.RequestError, match="by another process"):
        resumed(experiment, tmp_path)
    with pytest.raises(compare.RequestError, match="or continue that run with --resume"):
        run(experiment, tmp_path, (Eager(), Interrupted()))
    assert resumed(experiment, tmp_path).verdict == "identical"


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_within_seconds_and_the_resume_command_is_printed(commands, tmp_path, number):
    (tmp_path / "task.py").write_text(TASK)
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--experiment", str(tmp_path / "task.py")]
    command += ["--epochs", "500", "--reports", str(tmp_path), "--name", "run"]
    heard = f"import signal; signal.signal({int(number)}, signal.SIG_DFL)"  # nohup, say, lets it ignore SIGHUP
    process = commands.Popen(command, before=heard)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, errors
    assert "continue with: " in errors and errors.rstrip().endswith("--resume") and "Traceback" not in errors
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) > 1
    verdict = read_json(tmp_path / "run" / "verdict.json")
    assert verdict["interrupted"] is True and verdict["verdict"] == "inconclusive"
    assert (tmp_path / "run" / "comparison.png").exists()


def test_an_interruption_that_python_loses_takes_effect_at_the_next_step(experiment, tmp_path):
    from compare import signals

    class Losing(Eager):
        def train(self, run):
            signals._interrupted.set()
            super().train(run)

    try:
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path, (Eager(), Losing()))
    finally:
        signals._interrupted.clear()


def test_a_checkpoint_of_other_types_is_refused_without_a_verdict_on_the_trainer(tensorflow, tmp_path):
    from compare.engine.checkpoints import Checkpoints

    tf, place = tensorflow, (1, EPOCH_END)

    def checkpoints(dtype):
        model = tf.keras.Sequential(
            [tf.keras.Input([2]), tf.keras.layers.Dense(1, dtype=dtype, kernel_initializer="ones")]
        )
        optimizer = tf.keras.optimizers.SGD()
        optimizer.build(model.trainable_variables)
        found = Checkpoints(tmp_path, tmp_path)
        found.bind(tf.distribute.get_strategy(), model, optimizer, [])
        return found

    RunJson(folder=tmp_path, identity="it").save()
    checkpoints("float32").save(place, {})
    with pytest.raises(compare.RequestError, match="the checkpoint belongs to another model or optimizer"):
        checkpoints("float64").restore(place)
