"""Checkpoints evaluated by ``restore.py``, and exported models: they contain what was trained."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from urllib.parse import unquote

import numpy as np
import pytest
import tasks
from eager import Eager, run
from killed_runs import TASK

from compare.records.files import read_checked, write_checked


@pytest.fixture(scope="module")
def finished(tensorflow, tmp_path_factory):
    """The folder of a run with batch norm and dropout on two replicas, with exported models."""
    experiment = tmp_path_factory.mktemp("finished") / "task.py"
    experiment.write_text(TASK)
    options = {"strategy": "mirrored", "replicas": 2, "epochs": 3, "checkpoint_every": 1, "keep_checkpoints": 2}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras's
        return run(str(experiment), experiment.parent, ("fit", "loop"), export=True, **options).path


def restored(capsys, folder, *arguments, experiment=None):
    """Exit status, stdout and stderr; the experiment is that of the run, unless another one is given."""
    from compare.app.restore import main

    experiment = experiment or folder.parent / "task.py"
    status = main([str(argument) for argument in (folder, "--experiment", experiment, *arguments)])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_the_last_checkpoints_are_kept_and_can_be_restored_by_plain_tensorflow(finished):
    import tensorflow as tf

    from compare.app.loading import load_experiment
    from compare.options import request

    experiment = load_experiment(request(experiment=str(finished.parent / "task.py")))
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


def test_restored_models_have_the_reported_metrics(finished, capsys):
    status, told, _ = restored(capsys, finished)
    assert status == 0
    assert told.count("as reported") == 4 and "fit, epoch 3" in told and "loop, epoch 3" in told
    status, told, _ = restored(capsys, finished, "--trainer", "loop", "--epoch", "2", "--strategy", "default")
    assert status == 0 and "those of the first replica are used here" in told and "loop, epoch 2, under default" in told


@pytest.mark.slow
def test_without_batch_norm_the_accuracy_is_the_same_under_every_strategy(tensorflow, tmp_path, capsys):
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
        (["--seed", "5"], "--seed 5: "),
        (["--epoch", "7"], "no checkpoint of epoch 7"),
        (["--epoch", "0"], "no checkpoint of epoch 0"),
        (["--strategy", "multi-worker"], "use mirrored"),
        (["--strategy", "central-storage"], "use --strategy default"),
        (["--strategy", "nothing"], "unknown"),
        (["--strategy", "mirrored", "--replicas", "99"], "--replicas 99: TensorFlow is already in use"),
    ],
)
def test_bad_requests_of_restore_are_one_line(finished, capsys, arguments, told):
    status, _, errors = restored(capsys, finished, *arguments)
    assert status == 2 and told in errors and len(errors.splitlines()) == 1, errors


def test_a_file_that_only_the_run_names_is_not_executed(finished, tmp_path, capsys):
    from compare.app.restore import main

    theirs = tmp_path / "their run"
    shutil.copytree(finished, theirs)
    (tmp_path / "task.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n" + TASK)
    content = read_checked(theirs / "run.json", 2)
    content["options"] |= {"experiment": str(tmp_path / "task.py"), "trainers": [str(tmp_path / "task.py:A"), "loop"]}
    content["code"] = {}
    write_checked(theirs / "run.json", content)
    assert main([str(theirs)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"if you trust it, add --experiment {tmp_path / 'task.py'}")
    assert not (tmp_path / "executed").exists()
    status, told, _ = restored(capsys, theirs, experiment=finished.parent / "task.py")  # one's own copy
    assert status == 0 and told.count("as reported") == 4
    assert not (tmp_path / "executed").exists()


def test_an_experiment_that_is_not_the_runs_is_refused(finished, tmp_path, capsys):
    other = tmp_path / "task.py"
    other.write_text(TASK + "# changed\n")
    status, _, errors = restored(capsys, finished, experiment=other)
    assert status == 2 and f"{other} changed since the run began" in errors and len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"experiment": 5}, "the run's experiment is 5, whose code would be executed"),
        ({"experiment": "my-task"}, "add --experiment FILE.py[:ATTR]"),
        ({"experiment": "regression"}, "the run's is regression; leave it out"),
        ({"experiment": "a.py", "unheard-of": 1}, "run.json is not a run's"),
        ({"experiment": "a.py", "strategy": []}, "--strategy []: unknown"),
        ({"experiment": "a.py", "epochs": "many"}, "give a whole number"),
    ],
)
def test_a_request_that_was_tampered_with_is_one_line(tmp_path, capsys, options, told):
    from compare.app.restore import main

    strategy = {"replicas": 1}
    write_checked(tmp_path / "run.json", {"options": options, "trainers": ["fit"], "strategy": strategy})
    given = [] if told.startswith(("the run's experiment", "add")) else ["--experiment", "b.py"]
    assert main([str(tmp_path), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_wrong_option_is_one_line(tmp_path, capsys):
    from compare.app.restore import main

    assert main([str(tmp_path), "--epochs", "3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "restore.py: unrecognized arguments: --epochs 3; did you mean --epoch? (see --help)"


def test_an_empty_name_is_not_the_run_in_the_current_folder(capsys):
    from compare.app.restore import main

    assert main([""]) == 2
    assert capsys.readouterr().err == "restore.py: '': give the name of a file or folder\n"


def test_restore_without_a_run_is_refused(tmp_path, capsys):
    status, _, errors = restored(capsys, tmp_path / "none")
    assert status == 2 and "give the folder of a run" in errors
    (tmp_path / "file").touch()
    status, _, errors = restored(capsys, tmp_path / "file")
    assert (status, errors) == (2, f"restore.py: {tmp_path}/file: this is no folder; give the folder of a run\n")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's
def test_names_of_trainers_lead_nowhere_else(tensorflow, tmp_path):
    def named(text):
        return type("Named", (Eager,), {"name": text})()

    names = ["..", "../../up", "=cmd() [/road] 'a\""]
    options = {"epochs": 1, "strategy": "default", "export": True, "tensorboard": True, "checkpoint_every": 1}
    folder = tmp_path / "reports"
    result = run(tasks.experiment(), folder, [named(name) for name in names], **options)
    assert result.verdict == "identical" and result.metrics.trainer.tolist() == names
    expected = ["%2E%2E", "..%2F..%2Fup", "%3Dcmd%28%29%20%5B%2Froad%5D%20%27a%22"]
    for part in ("exports", "checkpoints", "tensorboard"):
        found = sorted(unquote(path.name) for path in (folder / "run" / part).iterdir() if path.is_dir())
        assert found == sorted([*names, "verdict"] if part == "tensorboard" else names)
    assert sorted(path.name for path in (folder / "run" / "exports").iterdir()) == sorted(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "run"]


OUTPUTS = """
import numpy as np
import tensorflow as tf
import compare
from tasks import blobs


def load_data():
    return [(x, {"a": y, "b": x[:, :1]}) for x, y in blobs(16, 8)]


class Net(tf.keras.Model):
    def __init__(self, layers):
        super().__init__()
        self.parts = layers

    def call(self, x):
        return {name: layer(x) for name, layer in self.parts.items()}


class Own:
    name = "own"

    def train(self, run):
        model, _, losses, _ = run.build()
        optimizer = tf.keras.optimizers.SGD(0.1)
        for epoch in run.epochs:
            for x, y in run.train_dataset(epoch):
                with tf.GradientTape() as tape:
                    outputs = model(x)
                    loss = sum(losses[key](y[key], outputs[key]) for key in y)
                optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))
                run.end_step()
            run.end_epoch(epoch, {})


experiment = compare.Experiment(
    name="outputs",
    load_data=load_data,
    build_model=lambda: Net({"a": tf.keras.layers.Dense(3), "b": tf.keras.layers.Dense(1)}),
    build_loss=lambda: {
        "a": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "b": tf.keras.losses.MeanSquaredError(),
    },
    build_optimizer=lambda: tf.keras.optimizers.SGD(0.1),
    build_metrics=lambda: {"a": ["accuracy"], "b": [tf.keras.metrics.MeanAbsoluteError(name="mae")]},
)
"""


def test_metrics_by_output_and_another_optimizer_are_restored_and_a_model_that_cannot_be_saved_is_compared(
    tensorflow, tmp_path, capsys
):
    """Keras cannot save ``Net``, which has no ``get_config``."""
    task = tmp_path / "task.py"
    task.write_text(OUTPUTS)
    ended = run(str(task), tmp_path, ("fit", f"{task}:Own"), strategy="default", export=True, epochs=1, batch_size=8)
    assert ended.verdict in ("identical", "alike")
    status, told, _ = restored(capsys, ended.path)
    assert status == 0 and told.count("as reported") >= 3 and "own, epoch 1" in told


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
