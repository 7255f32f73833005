"""Checkpoints, interruption and resuming: whatever happens, the end is that of a run that was never interrupted."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import tasks
from killed_runs import TASK, command_in, kill_and_resume, left_by

import compare
from compare.records import read_json

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 5


@pytest.fixture(autouse=True)
def _devices(tensorflow):
    """Logical devices, before anything else is made."""


class Eager:
    """A loop without a graph, which takes no time to trace."""

    name = "eager"

    def train(self, run):
        import tensorflow as tf

        model, optimizer, loss, _ = run.build()
        for epoch in run.epochs:
            for x, y in run.train_dataset(epoch):
                with tf.GradientTape() as tape:
                    value = loss(y, model(x, training=True))
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
                run.end_step()
            run.end_epoch(epoch, {"loss": float(value), "val_loss": float(value)})


def interruptible(trainer):
    """The same trainer, interrupted once amid an epoch, as by Ctrl-C."""

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


def run(experiment, folder, trainers=(), **options):
    given = {"strategy": "default", "epochs": EPOCHS, "batch_size": 16, "quiet": True, "reports": folder, "name": "run"}
    return compare.run(experiment, trainers=trainers or (Eager(), Interrupted()), **(given | options))


def interrupted(experiment, folder, at=4, trainers=(), **options):
    candidate = type(trainers[-1]) if trainers else Interrupted
    candidate.at, candidate.epochs = at, []
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder, trainers, **options)


def resumed(experiment, folder, **options):
    return run(experiment, folder, resume=True, **options)


def assert_the_same(folder, experiment, **options):
    """What was resumed in a folder is what a run that was never interrupted leaves."""
    run(experiment, folder / "whole", **options)
    assert left_by(folder / "run") == left_by(folder / "whole" / "run")


@pytest.fixture(scope="module")
def begun_once(tensorflow, tmp_path_factory):
    """The folder of an interrupted run of ``experiment``, and what one leaves that was never interrupted."""
    folder, experiment = tmp_path_factory.mktemp("once"), tasks.experiment(batch_norm=True, dropout=True)
    interrupted(experiment, folder / "interrupted")
    run(experiment, folder / "whole")
    return folder / "interrupted", left_by(folder / "whole" / "run")


@pytest.fixture
def begun(begun_once, tmp_path):
    """The interrupted run, in a folder of the test's own; gives what it must leave when it is through."""
    folder, whole = begun_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "kills", "forked"), [(2, 4, False), (1, 16, True)], ids=["command", "forked"])
def test_a_run_killed_at_any_moment_ends_the_same(commands, tmp_path, replicas, kills, forked):
    """The command itself; and forked ones, of which no kill is spent on the import of TensorFlow."""
    seed = random.randrange(2**32)
    print("seed", seed)
    outcome = kill_and_resume(tmp_path, replicas, kills, random.Random(seed), commands if forked else subprocess)
    print(outcome.phases)
    assert outcome.kills == kills and not outcome.differing, outcome


def test_a_run_killed_before_its_first_epoch_and_in_each_trainers_epochs_ends_the_same(commands, tmp_path):
    """Killed as soon as its request is on disk, and amid the epochs of fit and of the loop; it goes on each time."""
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
    assert kills == 3, "else it was through before it was killed"
    commands.run([*command, "--name", "run", "--resume"], check=True)
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_from_its_checkpoint(experiment, tmp_path, replicas):
    trainers = "fit", interruptible(compare.CustomLoop)()
    options = {"strategy": "mirrored", "replicas": replicas, "batch_size": 16 // replicas, "trainers": trainers}
    interrupted(experiment, tmp_path, **options)
    verdict = read_json(tmp_path / "run" / "verdict.json")
    assert verdict["interrupted"] is True and verdict["verdict"] == "identical"
    assert (tmp_path / "run" / "comparison.png").exists()
    result = resumed(experiment, tmp_path, **options)
    epochs = type(trainers[1]).epochs
    assert epochs == [range(1, EPOCHS + 1), range(3, EPOCHS + 1)], "fit was through, the loop had a checkpoint"
    assert result.verdict == "identical" and "interrupted" not in result.details
    assert_the_same(tmp_path, experiment, **options)


def test_no_checkpoints_where_none_are_wanted(experiment, tmp_path):
    interrupted(experiment, tmp_path, checkpoint_every=0)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert resumed(experiment, tmp_path, checkpoint_every=0).verdict == "identical"
    assert Interrupted.epochs == [range(1, EPOCHS + 1)] * 2


@pytest.mark.parametrize("harm", ["truncated", "flipped", "removed"])
def test_the_checkpoint_before_a_damaged_one_is_used_and_said(experiment, begun_once, tmp_path, harm, capsys):
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
    assert "ckpt-4" in told and "damaged" in told and "continues after epoch 2" in told
    assert left_by(tmp_path / "run") == begun_once[1]


def test_a_checkpoint_of_other_weights_is_not_gone_on_from(experiment, begun, tmp_path, capsys):
    run(experiment, tmp_path / "other", seed=5)
    ours, theirs = (folder / "checkpoints" / "interrupted" for folder in (tmp_path / "run", tmp_path / "other" / "run"))
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)
    resumed(experiment, tmp_path, quiet=False)
    assert "cannot continue from epoch 2" in capsys.readouterr().out
    assert left_by(tmp_path / "run") == begun


def test_damaged_tails_of_files_are_mended(experiment, begun, tmp_path, capsys):
    with open(tmp_path / "run" / "metrics.csv", "a") as file:
        file.write("interrupted,0,4,0.12")
    with open(tmp_path / "run" / "records" / "interrupted-seed0.steps", "ab") as file:
        file.write(b"half a fingerprint")
    resumed(experiment, tmp_path, quiet=False)
    assert "the last line was damaged" in capsys.readouterr().out
    assert left_by(tmp_path / "run") == begun


def halved(epoch, rate):
    return rate / 2 if epoch else rate


def scheduled():
    import tensorflow as tf

    return [tf.keras.callbacks.LearningRateScheduler(halved)]


def test_what_no_checkpoint_holds_is_begun_again(tmp_path, capsys):
    experiment = tasks.experiment(build_callbacks=scheduled)
    interrupted(experiment, tmp_path)
    resumed(experiment, tmp_path, quiet=False)
    assert "starts again: callbacks have their own state" in capsys.readouterr().out
    assert_the_same(tmp_path, experiment)


def test_random_numbers_that_cannot_be_drawn_again_are_seen():
    import tensorflow as tf

    from compare.engine import input_pipeline, strategies
    from compare.engine.dry_run import why_not_resumable
    from compare.engine.run import TrainingTask

    class Noisy(tf.keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x), seed=1) if training else x

    def noisy():
        return tf.keras.Sequential([Noisy(), tf.keras.layers.Dense(3)])

    def why(experiment):
        return why_not_resumable(
            TrainingTask(experiment, *input_pipeline.load(experiment), strategies.make("default"), 8)
        )

    assert "RandomStandardNormal" in why(tasks.experiment(build_model=noisy))
    assert why(tasks.experiment(dropout=True)) == ""


class OwnOptimizer(Eager):
    """Trains with an optimizer that the run does not know."""

    def train(self, run):
        build = run.build

        def built():
            model, _, *rest = build()
            optimizer = run.experiment.build_optimizer()
            optimizer.build(model.trainable_variables)
            return model, optimizer, *rest

        run.build = built
        super().train(run)


def test_a_trainer_with_an_optimizer_of_its_own_is_begun_again(experiment, tmp_path, capsys):
    trainers = Eager(), interruptible(OwnOptimizer)()
    interrupted(experiment, tmp_path, trainers=trainers)
    resumed(experiment, tmp_path, trainers=trainers, quiet=False)
    assert "does not train with the optimizer that run.build() returns" in capsys.readouterr().out
    assert_the_same(tmp_path, experiment, trainers=trainers)


# What may be resumed, and what may not.


def test_a_finished_run_gives_its_verdict_again(experiment, tmp_path):
    first = run(experiment, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in sorted(first.path.rglob("*")) if path.name != ".lock"}
    again = run(experiment, tmp_path, resume=True)
    assert again.verdict == first.verdict
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing is written"


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
        run(experiment, tmp_path, **options)
    assert told in str(refused.value) and "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in files} == files


def test_other_data_are_refused(experiment, begun, tmp_path):
    with pytest.raises(compare.RequestError, match=r"the data \(training_examples\) changed .*from 75 to 74"):
        resumed(tasks.experiment(train=74, batch_norm=True, dropout=True), tmp_path)
    (x, y), validation = experiment.load_data()
    x[3, 3] += 1
    with pytest.raises(compare.RequestError, match=r"the data \(training_sha256\) changed"):
        resumed(tasks.experiment(batch_norm=True, dropout=True, load_data=lambda: ((x, y), validation)), tmp_path)


def test_other_code_is_refused(tmp_path):
    task = tmp_path / "task.py"
    task.write_text(TASK)
    interrupted(str(task), tmp_path)
    task.write_text(TASK.replace("Adam(0.01)", "Adam(0.02)"))
    with pytest.raises(compare.RequestError, match=r"task.py changed since the run began"):
        resumed(str(task), tmp_path)
    task.write_text(TASK)
    assert resumed(str(task), tmp_path).verdict == "identical"


def test_a_damaged_run_json_is_refused(experiment, begun, tmp_path):
    (tmp_path / "run" / "run.json").write_text('{"schema": 1, "opt')
    with pytest.raises(compare.RequestError, match=r"run.json: cannot be read as JSON"):
        resumed(experiment, tmp_path)


def test_a_second_process_is_refused_at_once(experiment, begun, tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(compare.RequestError, match="by another process"):
        resumed(experiment, tmp_path)
    with pytest.raises(compare.RequestError, match="or continue that run with --resume"):
        run(experiment, tmp_path)
    assert resumed(experiment, tmp_path).verdict == "identical"


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_within_seconds_and_says_how_to_go_on(commands, tmp_path, number):
    (tmp_path / "task.py").write_text(TASK)
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--experiment", str(tmp_path / "task.py")]
    command += ["--epochs", "500", "--reports", str(tmp_path), "--name", "run"]
    process = commands.Popen(command)
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


def test_an_interruption_that_python_loses_is_seen_at_the_next_step(experiment, tmp_path):
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


# Faults.


class Diverges(Eager):
    """Its weights are not a number any more after step 3 of epoch 2."""

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


def test_two_that_diverge_at_the_same_step_are_compared_up_to_there(experiment, tmp_path):
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


def test_one_that_diverges_is_different_from_that_step_on(experiment, tmp_path):
    result = run(experiment, tmp_path, (Eager(), Diverges()))
    assert result.verdict == "different"
    (comparison,) = result.details["comparisons"]
    assert comparison["training"]["first_difference"] == {"epoch": 2, "step": 3}
    assert result.details["stopped"][0]["trainer"] == "diverges"


@pytest.mark.slow
def test_two_that_diverge_at_different_steps_are_different(experiment, tmp_path):
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


def test_weights_that_are_infinite_to_begin_with_may_stay_so(tmp_path):
    import tensorflow as tf

    class Masked(tf.keras.layers.Layer):
        def build(self, shape):
            self.mask = self.add_weight(name="mask", shape=(3,), initializer="zeros", trainable=False)
            self.mask.assign([0.0, np.inf, 0.0])

        def call(self, x):
            return x + 0.0 * tf.where(tf.math.is_inf(tf.convert_to_tensor(self.mask)), 0.0, 1.0)

    def build_model():
        return tf.keras.Sequential([tf.keras.layers.Dense(3), Masked()])

    assert run(tasks.experiment(build_model=build_model), tmp_path, epochs=1).verdict == "identical"


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


@pytest.mark.parametrize("file", ["metrics.csv", "steps", "checkpoint"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(commands, tmp_path, file):
    """A limit on the size of files stands for the disk: the process gets an error from write()."""
    (tmp_path / "task.py").write_text(TASK)
    limits = {"metrics.csv": 150, "steps": 1000, "checkpoint": 500}
    filling = f"""
import resource, signal
from compare import records
from compare.engine import checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
owner, name = {{"metrics.csv": (records.MetricsFile, "append"), "steps": (records.Recorder, "flush"),
                "checkpoint": (checkpoints.Checkpoints, "save")}}[{file!r}]
original = getattr(owner, name)
def full(self, *arguments, **more):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limits[file]}, before[1]))
    try:
        return original(self, *arguments, **more)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
setattr(owner, name, full)
"""
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--experiment", str(tmp_path / "task.py")]
    command += ["--epochs", "3", "--batch-size", "12", "--quiet"]
    command += ["--replicas", "1", "--reports", str(tmp_path), "--name", "run"]
    status, _, errors = commands.run(command, before=filling)
    assert status == 3, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("compare.py: ")]
    assert "cannot be written" in line and "continue with --resume" in line and "Traceback" not in errors
    commands.run([*command, "--resume"], check=True)


# Restoring and exporting.


@pytest.fixture(scope="module")
def finished(tensorflow, tmp_path_factory):
    """The folder of a run with batch norm and dropout on two replicas, its models exported."""
    experiment = tmp_path_factory.mktemp("finished") / "task.py"
    experiment.write_text(TASK)
    options = {"strategy": "mirrored", "replicas": 2, "epochs": 3, "checkpoint_every": 1, "keep_checkpoints": 2}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras's
        return run(str(experiment), experiment.parent, ("fit", "loop"), export=True, **options).path


def restored(capsys, *arguments):
    from compare.app.restore import main

    status = main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_the_last_checkpoints_are_kept_and_restore_in_plain_tensorflow(finished):
    import tensorflow as tf

    from compare.app.loading import load_experiment
    from compare.options import Options

    experiment = load_experiment(Options(experiment=str(finished.parent / "task.py")))
    for name in ("fit", "loop"):
        folder = finished / "checkpoints" / name
        assert sorted(path.name for path in folder.glob("*.index")) == ["ckpt-2.index", "ckpt-3.index"]
        assert tf.train.latest_checkpoint(str(folder)) == str(folder / "ckpt-3")
        model, optimizer = experiment.build_model(), experiment.build_optimizer()
        model(tf.keras.Input((8,)))
        optimizer.build(model.trainable_variables)
        status = tf.train.Checkpoint(model=model, optimizer=optimizer).read(str(folder / "ckpt-3"))
        status.assert_existing_objects_matched()
        with np.load(finished / "records" / f"{name}-seed0-epoch003.npz", allow_pickle=False) as weights:
            for i, variable in enumerate([*model.trainable_weights, *model.non_trainable_weights]):
                assert np.array_equal(variable.numpy(), weights[f"{i}"])
        assert int(optimizer.iterations.numpy()) == 3 * 3


def test_restore_evaluates_what_was_reported(finished, capsys):
    status, told, _ = restored(capsys, finished)
    assert status == 0
    assert told.count("as reported") == 4 and "fit, epoch 3" in told and "loop, epoch 3" in told
    status, told, _ = restored(capsys, finished, "--trainer", "loop", "--epoch", "2", "--strategy", "default")
    assert status == 0 and "those of the first replica are used here" in told and "loop, epoch 2, under default" in told


def test_without_batch_norm_the_accuracy_is_the_same_under_every_strategy(tmp_path, capsys):
    task = tmp_path / "task.py"
    task.write_text(TASK.replace("layers.BatchNormalization(), ", ""))
    path = run(str(task), tmp_path, ("fit", "loop"), epochs=2).path
    cells = [("fit", strategy) for strategy in ("default", "one-device", "mirrored", "mirrored --replicas 2")]
    for trainer, strategy in [*cells, ("loop", "default")]:
        status, told, _ = restored(capsys, path, "--trainer", trainer, "--strategy", *strategy.split())
        (line,) = [line for line in told.splitlines() if "val_accuracy" in line]
        assert status == 0 and "as reported" in line, told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--trainer", "nobody"], "has fit, loop"),
        (["--epoch", "7"], "no checkpoint of epoch 7"),
        (["--strategy", "multi-worker"], "use mirrored"),
        (["--strategy", "central-storage"], "use --strategy default"),
        (["--strategy", "nothing"], "unknown"),
        (["--strategy", "mirrored", "--replicas", "99"], "--replicas 99: TensorFlow is already in use"),
    ],
)
def test_bad_requests_of_restore_are_one_line(finished, capsys, arguments, told):
    status, _, errors = restored(capsys, finished, *arguments)
    assert status == 2 and told in errors and len(errors.splitlines()) == 1, errors


def test_restore_without_a_run_is_refused(tmp_path, capsys):
    status, _, errors = restored(capsys, tmp_path / "none")
    assert status == 2 and "give the folder of a run" in errors


def test_exported_models_load_without_this_package(finished, tmp_path):
    script = f"""
import sys
import numpy as np
import tensorflow as tf
x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
for name in ("fit", "loop"):
    model = tf.keras.models.load_model(f"{finished}/exports/{{name}}/model.keras")
    saved = tf.saved_model.load(f"{finished}/exports/{{name}}/saved_model")
    with np.load(f"{finished}/records/{{name}}-seed0-epoch003.npz") as weights:
        for i, variable in enumerate([*model.trainable_weights, *model.non_trainable_weights]):
            assert np.array_equal(variable.numpy(), weights[f"{{i}}"])
    np.testing.assert_allclose(saved.serve(x), model(x, training=False), rtol=1e-6, atol=1e-6)
assert not any(name.partition(".")[0] == "compare" for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
