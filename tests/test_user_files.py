"""Errors in a user's files are reported in one line, with the file, its line and a remedy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from eager import Eager
from user_files import LOOP, TASK

import compare
from compare.records.files import read_json
from compare.records.metrics_csv import read_metrics

pytestmark = pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")


def line_of(text: str, part: str) -> int:
    return 1 + text[: text.index(part)].count("\n")


def run(
    folder: Path, task: str = TASK, loop: str | None = None, reference: Any = "fit", **options: Any
) -> compare.Result:
    """Compares a reference with a loop; experiment and loop are files."""
    (folder / "my_task.py").write_text(task)
    trainer = "loop"
    if loop is not None:
        (folder / "my_loop.py").write_text(loop)
        trainer = f"{folder / 'my_loop.py'}:MyLoop"
    common: dict[str, Any] = {"strategy": "default", "epochs": 2, "batch_size": 20, "quiet": True, "name": "run"}
    reports = folder / "reports"
    return compare.run(str(folder / "my_task.py"), trainers=(reference, trainer), reports=reports, **(common | options))


METRICS = 'return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]'

MODEL, SGD, MADE = (
    "return tf.keras.Sequential([tf.keras.layers.Dense(2)])",
    "return tf.keras.optimizers.SGD(0.1)",
    "def build_model",
)
CACHED = """

WIDTHS = iter(range(3, 9))


def cached(name, make, kept={}):
    return kept[name] if name in kept else kept.setdefault(name, make())
"""


@pytest.fixture(autouse=True)
def tf(tensorflow: Any) -> Any:
    return tensorflow


def test_the_files_without_an_error_are_identical(tmp_path: Path) -> None:
    assert run(tmp_path, loop=LOOP).verdict == "identical"


@pytest.mark.parametrize(
    ("old", "new", "culprit", "told"),
    [
        ("import numpy as np", "import nunpy as np", "import nunpy", "No module named 'nunpy'"),
        ("experiment = compare", "task = compare", None, "has no 'experiment'; it has task"),
        ("return (x[:40]", "raise OSError('no disk')  # (x[:40]", "raise OSError", "load_data raised OSError: no disk"),
        (
            "return (x[:40]",
            "raise compare.RequestError('mine')  # (x[:40]",
            "raise compare",
            "load_data raised RequestError: mine (",
        ),
        ("return (x[:40], y[:40]),", "return (x[:40], y[:30]),", "def load_data", "30, 40 examples: x, y and sample"),
        ("return (x[:40], y[:40]), (x[40:], y[40:])", "return x, y, x", "def load_data", "load_data must return (("),
        (
            "return (x[:40], y[:40]),",
            "return (x[:40], {1, 2}),",
            "def load_data",
            "one value is a single set): use NumPy",
        ),
        ("build_loss=build_loss,", "build_loss=build_loss, prepare=lambda x, y: z,", "prepare=", "prepare raised Name"),
        (
            "build_loss=build_loss,",
            "build_loss=build_loss, prepare=lambda x: x,",
            "prepare=",
            "it must take (x, y), as load_data returns them",
        ),
        (
            "build_loss=build_loss,",
            "build_loss=build_loss, prepare=lambda x, y: x,",
            "prepare=",
            "it must return (x, y)",
        ),
        ("return tf.keras.Sequential", "return str  # ", "def build_model", "it must return a tf.keras.Model"),
        ("layers.Dense(2)", "layers.Densse(2)", "layers.Densse", "build_model raised AttributeError"),
        (
            "return tf.keras.optimizers.SGD(0.1)",
            "return 'sgd'",
            "def build_optimizer",
            "it must return a tf.keras.optimizers",
        ),
        (SGD, "return tf.keras.optimizers.SGD", "def build_optimizer", "returned the class SGD: it must return a tf"),
        (
            "return tf.keras.losses.Sparse",
            "return tf.keras.losses.MeanSquaredError  # ",
            "def build_loss",
            "returned the class MeanSquaredError: it must return a tf.keras.losses.Loss",
        ),
        (
            "build_loss=build_loss,",
            "build_loss=build_loss, build_callbacks=lambda: [tf.keras.callbacks.EarlyStopping],",
            "build_callbacks=",
            "returned a list of the class EarlyStopping: it must return a list of tf.keras.callbacks.Callback objects",
        ),
        (
            "build_loss=build_loss,",
            "build_loss=build_loss, build_callbacks=lambda: [1, 'x'],",
            "build_callbacks=",
            "returned a list of int, str: it must return a list of tf.keras.callbacks.Callback objects",
        ),
        (
            "build_loss=build_loss,",
            "build_loss=build_loss, build_callbacks=lambda: [tf.keras.callbacks.BackupAndRestore('here')],",
            "build_callbacks=",
            "returned a BackupAndRestore, so a trainer would go on with what another has left: leave it out",
        ),
        (
            "from_logits=True)",
            "from_logits=True, reduction='none')",
            "def build_loss",
            "trainer loop does not support reduction='none' of SparseCategoricalCrossentropy",
        ),
        (
            "return tf.keras.losses.Sparse",
            "return 'mse'  # ",
            "def build_loss",
            "it must return a tf.keras.losses.Loss",
        ),
        ("return tf.keras.losses.Sparse", "return {}  # ", "def build_loss", "it must return a tf.keras.losses.Loss"),
        ("y = (x[:, 0] > 0)", "y = (x > 0)", "def load_data", "on the training data: "),
        (
            "return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
            "return tf.keras.losses.MeanSquaredError()",  # of labels [20] and predictions [20, 2]
            "def build_loss",
            "on the training data: ",
        ),
        ("(x[40:], y", "(x[40:, :3], y", "def load_data", "on the validation data: "),
        ("layers.Dense(2)", "layers.Conv2D(2, 3)", "def build_model", "Input 0"),
        ("optimizers.SGD(0.1)", "optimizers.legacy.SGD(0.1)", "optimizers.legacy", "; write tf.keras.optimizers.SGD"),
        (SGD, "return cached('sgd', lambda: tf.keras.optimizers.SGD(0.1))", "def build_optimizer", "created earlier"),
        (
            METRICS,
            "return [cached('auc', lambda: tf.keras.metrics.SparseCategoricalAccuracy())]",
            "def build_metrics",
            "created earlier",
        ),
        (MODEL, "return cached('model', lambda: tf.keras.Sequential([tf.keras.layers.Dense(2)]))", MADE, "model again"),
        (
            MODEL,
            "return tf.keras.Sequential([tf.keras.layers.Dense(next(WIDTHS)), tf.keras.layers.Dense(2)])",
            MADE,
            "kernel has shape (4, 4) instead of (4, 3)",
        ),
        (
            MODEL,
            "return tf.keras.Sequential([tf.keras.layers.Dense(2) for _ in range(next(WIDTHS))])",
            MADE,
            "variables instead",
        ),
        (METRICS, 'return ["acuracy"]', "def build_metrics", "Could not interpret metric identifier: acuracy"),
        (METRICS, "return 'accuracy'", "def build_metrics", "returned 'accuracy': it must return a list of metrics"),
        (METRICS, "return {'accuracy'}", "def build_metrics", "returned set: it must return a list of metrics"),
        (METRICS, "return (m for m in ['mse'])", "def build_metrics", "returned generator: it must return a list"),
        (METRICS, "return [5]", "def build_metrics", "5 is not a metric"),
        (METRICS, "return tf.keras.metrics.AUC()", "def build_metrics", "it must return a list of metrics"),
        (
            METRICS,
            "return [tf.keras.metrics.AUC(name='loss')]",
            "def build_metrics",
            "'loss', which cannot be used as a column name",
        ),
        (METRICS, "return [tf.keras.metrics.AUC(name='val_x')]", "def build_metrics", "'val_x', which"),
        (METRICS, "return [tf.keras.metrics.AUC(name='a\\nb')]", "def build_metrics", "'a\\nb', which"),
        (
            METRICS,
            "return ['mae', 'mae', tf.keras.metrics.AUC(name='mae_1')]",
            "def build_metrics",
            "2 metrics are called 'mae'",
        ),
    ],
)
def test_a_wrong_experiment(tmp_path: Path, old: str, new: str, culprit: str | None, told: str) -> None:
    assert TASK.count(old) == 1
    task = TASK.replace(old, new) + CACHED
    with pytest.raises(compare.RequestError) as caught:
        run(tmp_path, task)
    text = str(caught.value)
    assert told in text and "\n" not in text
    if culprit is not None:
        assert f"{tmp_path / 'my_task.py'}, line {line_of(task, culprit)}" in text
    assert not (tmp_path / "reports" / "run").exists(), "nothing was trained, and nothing is left"


@pytest.mark.parametrize(
    ("old", "new", "culprit", "told"),
    [
        (
            "            run.end_epoch(epoch, {})\n",
            "",
            "def train",
            "returned without ending epoch 1 of 2",
        ),
        ("                run.end_step()", "", None, None),
        ("def train(self, run)", "def train(self, run, more)", "def train", "missing 1 required positional argument"),
        ("run.end_step()", "run.end_step(True)", "run.end_step", "end_step was called for True steps"),
        ("run.end_step()", "run.end_step('1')", "run.end_step", "end_step was called for '1' steps"),
        ("run.end_step()", "run.end_step(10**30)", "run.end_step", f"end_step was called for {10**30} steps"),
        ("run.end_step()", "[run.end_step(), run.end_step()]", None, None),
        (
            "step(x, y)\n",
            "tf.function(lambda: run.end_step())()\n",
            "tf.function(lambda",
            "inside a tf.function (",
        ),
        ("end_epoch(epoch", "end_epoch(epoch + 1", "run.end_epoch", "for epoch 2, but epoch 1 of 1..2 was expected"),
        ("end_epoch(epoch", "end_epoch(str(epoch)", "run.end_epoch", "for '1', which is text, but epoch 1 of 1..2 was"),
        ("{})", "{'loss': None})", "run.end_epoch", "takes a dict of metric name to float"),
        ("{})", "{1: 2.0})", "run.end_epoch", "takes a dict of metric name to float: 1 is not a name"),
        pytest.param("{})", "[1.0])", "run.end_epoch", "takes a dict of metric name to float", marks=pytest.mark.slow),
        ("step(x, y)\n", "raise ValueError('a bug of mine')\n", "raise ValueError", "ValueError: a bug of mine"),
        ("step(x, y)\n", "import compare; raise compare.RequestError('mine')\n", "import compare", "ValueError: mine"),
        ("tf.reduce_mean(", "tf.reduce_meen(", "tf.reduce_meen", "reduce_meen"),
        ("model(x, training=True)", "model(x, True)", "model(x, True)", "as in model(x, training=True)"),
        ("model(x, training=True)", "model(x[:, :3], training=True)", "model(x[:, :3]", "input"),
        (
            "            gradients = tape",
            "            tf.debugging.assert_less(value, 0.0, message='not less')\n            gradients = tape",
            "tf.debugging",
            "InvalidArgumentError: assertion failed: [not less]",
        ),
        (
            "            gradients = tape",
            "            tf.py_function(lambda: 1 / 0, [], [])\n            gradients = tape",
            "tf.py_function",
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_a_wrong_loop(tmp_path: Path, old: str, new: str, culprit: str | None, told: str | None) -> None:
    assert LOOP.count(old) == 1
    loop = LOOP.replace(old, new)
    if told is None:
        assert run(tmp_path, loop=loop).verdict == "identical", (
            "steps may be reported twice, or not at all: then epochs are compared"
        )
        return
    with pytest.raises(Exception) as caught:
        run(tmp_path, loop=loop, reference=Eager())
    (failure,) = read_json(tmp_path / "reports" / "run" / "run.json")["failures"]
    assert failure["side"] == "my-loop" and told in failure["error"] and "\n" not in failure["error"]
    if culprit is not None:
        assert f"{tmp_path / 'my_loop.py'}, line {line_of(loop, culprit)}" in failure["error"]
    assert len(failure["error"]) < 700
    rows = read_metrics(tmp_path / "reports" / "run" / "metrics.csv")
    assert [row["epoch"] for row in rows if row["trainer"] == "eager"] == ["1", "2"], "the other's results are kept"
    contract = isinstance(caught.value, compare.RequestError)
    assert contract == (told.startswith(("returned", "inside", "for ", "takes", "end_step")))
    verdict = read_json(tmp_path / "reports" / "run" / "verdict.json")
    assert verdict["verdict"] == "not-comparable"


def test_where_fit_itself_fails_the_experiment_is_to_be_fixed(tmp_path: Path) -> None:
    """Keras 3 takes class weights or weights of examples, not both, which only fit finds out."""
    task = TASK.replace("(x[:40], y[:40]),", "(x[:40], y[:40], x[:40, 0] ** 2),")
    task = task.replace("    build_loss=build_loss,", "    build_loss=build_loss,\n    class_weight={0: 1.0, 1: 2.0},")
    assert run(tmp_path, task).verdict == "not-comparable"
    failures = {each["side"]: each for each in read_json(tmp_path / "reports" / "run" / "run.json")["failures"]}
    assert failures["fit"]["remedy"] == "fix the experiment, which fit cannot train"


def test_the_page_of_a_short_check_names_both_and_the_command_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compare.app.cli import main

    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "my_loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    given = ["--experiment", "my_task.py", "--trainers", "fit", "my_loop.py:MyLoop", "--check"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fit-vs-loop", *given])
    assert main(given) == 0
    (page,) = (tmp_path / "reports").glob("*/report.html")
    assert page.parent.name == "my_task-fit-my_loop-mirrored-check-seed-0"
    text = page.read_text()
    assert re.findall("<h1>(.*)</h1>", text) == ["task: short check of my-loop against fit"]
    assert f"fit-vs-loop {' '.join(given)}</code>" in text and "MyLoop and" not in text


def test_a_loop_that_raises_in_a_short_check_does_not_keep_the_others_from_being_checked(tmp_path: Path) -> None:
    # Its lines are others than those of any other loop with this mistake, whose graph AutoGraph may have kept.
    wrong = "\n\n\n" + LOOP.replace("tf.reduce_mean(", "tf.reduce_meen(").replace('"my-loop"', '"wrong"')
    for name, text in {"my_task": TASK, "my_loop": LOOP, "wrong": wrong}.items():
        (tmp_path / f"{name}.py").write_text(text)
    trainers = ("fit", *(f"{tmp_path / name}.py:MyLoop" for name in ("wrong", "my_loop")))
    asked: dict[str, Any] = {"strategy": "default", "quiet": True, "name": "run", "reports": tmp_path / "reports"}
    with pytest.raises(AttributeError, match="reduce_meen") as caught:
        compare.run(str(tmp_path / "my_task.py"), trainers=trainers, check=True, **asked)
    assert "raised as the trainer wrong was checked" in caught.value.__notes__
    folder = tmp_path / "reports" / "run"
    verdict = read_json(folder / "verdict.json")
    each = {comparison["candidate"]: comparison for comparison in verdict["comparisons"]}
    assert {name: comparison["verdict"] for name, comparison in each.items()} == {
        "wrong": "not-comparable",
        "my-loop": "identical",
    }
    assert f"{tmp_path / 'wrong.py'}, line {line_of(wrong, 'tf.reduce_meen')}" in each["wrong"]["failure"]["error"]
    assert (
        read_json(folder / "run.json")["status"] == "finished" and "reduce_meen" in (folder / "report.html").read_text()
    )


def test_a_working_directory_that_user_code_changes_changes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir(), elsewhere.mkdir()
    leaves = f"import os; os.chdir({str(elsewhere)!r})"
    (here / "my_loop.py").write_text(LOOP.replace("import tensorflow", f"{leaves}\nimport tensorflow"))
    (here / "my_task.py").write_text(TASK.replace("def load_data():", f"def load_data():\n    {leaves}"))
    asked: dict[str, Any] = {"strategy": "default", "epochs": 1, "batch_size": 20, "quiet": True, "reports": "reports"}
    for more in {"name": "a"}, {"name": "b", "against": "reports/a"}, {"name": "b", "against": "reports/a"}:
        monkeypatch.chdir(here)
        more["resume"] = (here / "reports" / more["name"]).exists()
        result = compare.run("my_task.py", trainers=("fit", "my_loop.py:MyLoop"), **(asked | more))
        assert result.verdict == "identical" and result.path == here / "reports" / more["name"]
        assert Path.cwd() == (here if more["resume"] else elsewhere), "of a finished run nothing is imported"
    assert {path.name for path in here.iterdir()} - {"__pycache__"} == {"my_task.py", "my_loop.py", "reports"}
    assert list(elsewhere.iterdir()) == []
    content = read_json(here / "reports" / "b" / "run.json")
    assert (content["options"]["experiment"], content["options"]["reports"]) == ("my_task.py", "reports"), "as given"
    assert content["code"].keys() == {"compare", "my_task.py", "my_loop.py:MyLoop"}


def test_a_layer_that_is_shared_works_on_one_replica_and_is_refused_on_two(tmp_path: Path) -> None:
    layer = "cached('layer', lambda: tf.keras.layers.Dense(2, name='shared'))"
    task = TASK.replace("tf.keras.layers.Dense(2)", layer) + CACHED
    assert run(tmp_path, task).verdict == "identical"
    with pytest.raises(compare.RequestError, match=r"variable .*shared/kernel was created earlier: create all layers"):
        run(tmp_path, task, strategy="mirrored", replicas=2, batch_size=10, name="two")
    assert not (tmp_path / "reports" / "two").exists()


def test_a_metric_that_one_side_does_not_report_is_named_with_the_side(tmp_path: Path) -> None:

    class Forgetful(compare.CustomLoop):
        name = "forgetful"

        def results(self) -> dict[str, float]:
            return {name: value for name, value in super().results().items() if name == "loss"}

    (tmp_path / "my_task.py").write_text(TASK)
    result = compare.run(
        str(tmp_path / "my_task.py"),
        trainers=("fit", Forgetful()),
        strategy="default",
        epochs=1,
        batch_size=20,
        reports=tmp_path,
        quiet=True,
    )
    assert result.verdict == "identical"
    (comparison,) = result.details["comparisons"]
    assert comparison["training"]["verdict"] == comparison["reporting"]["verdict"] == "identical"
    assert comparison["reporting"]["metrics"]["accuracy"]["not_reported_by"] == "forgetful"
    told = "so is every number that both report; not compared, since forgetful does not report them: accuracy"
    assert told in str(result)


OLD_CODE = {
    "model(x, True)": "as in model(x, training=True)",
    "functional(x, True)": "as in model(x, training=True)",
    "model.fit_generator(iter([(x, y)]))": "model.fit,",
    "model.evaluate_generator(iter([(x, y)]))": "model.evaluate or",
    "model.predict_classes(x)": "np.argmax",
    "model.predict_proba(x)": "model.predict(x)",
    "model.fit(x, y, shuffle=False, validation_data=x)": "validation_data=(x_val, y_val)",
    "model.fit(x, y, workers=2)": "PyDataset takes it",
    "gan.compile(optimizer='sgd')": "fit-vs-loop scripts FIT.py LOOP.py",
    "model.train_on_batch(x, y, reset_metrics=False)": "leave it out",
    "tape.watch(variables)": "leave out tape.watch",
    "variables[0].read_value()": "write variable.value",
    "variables[0].value()": "without parentheses",
    "variables[0].experimental_ref()": "id(variable)",
    "variables[0].ref()": "id(variable)",
    "optimizer.get_scaled_loss(x)": "optimizer.scale_loss(loss)",
    "optimizer.get_unscaled_gradients([x])": "leave it out",
    "tf.keras.mixed_precision.experimental.set_policy('mixed_float16')": "set_global_policy",
    "from tensorflow.keras.mixed_precision import experimental": "set_global_policy",
    "from tensorflow.keras.mixed_precision.experimental import Policy": "set_global_policy",
    "tf.keras.mixed_precision.LossScaleOptimizer(optimizer, loss_scale='dynamic')": "leave out loss_scale",
    "optimizer.lr": "write optimizer.learning_rate",
    "tf.keras.optimizers.Adam(lr=0.1)": "write learning_rate=",
    "optimizer._decayed_lr('float32')": "write optimizer.learning_rate",
    "optimizer._get_hyper('momentum')": "optimizer.momentum",
    "optimizer.iterations = 5": "optimizer.iterations.assign",
    "optimizer.get_weights()": "for v in optimizer.variables",
    "optimizer.weights": "write optimizer.variables",
    "optimizer.get_slot(variables[0], 'momentum')": "optimizer.variables",
    "optimizer.minimize(lambda: 1.0, variables)": "optimizer.apply_gradients",
    "optimizer.get_gradients(x, variables)": "tape.gradient",
    "optimizer._create_all_weights(variables)": "optimizer.build(variables)",
    "optimizer.apply_gradients([], experimental_aggregate_gradients=False)": "each replica's own gradients",
    "optimizer.apply_gradients([], name='step')": "leave it out",
    "tf.keras.optimizers.legacy.Adam()": "write tf.keras.optimizers.SGD",
    "tf.keras.optimizers.experimental.SGD()": "write tf.keras.optimizers.SGD",
    "from tensorflow.keras.optimizers.experimental import SGD": "write tf.keras.optimizers.SGD",
    "tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO)": "leave reduction out",
    "import keras; keras.losses.Reduction.NONE": 'write reduction="none"',
    "from keras.losses import Reduction": 'write reduction="none"',
    "tf.keras.metrics.Mean().reset_states()": "write reset_state()",
    "tf.function(lambda: two.run(lambda: adam.apply([tf.ones_like(v) for v in weights], weights)))()": (
        "optimizer.build(model.trainable_variables)"
    ),
    "tf.keras.optimizers.SGD().apply([tf.ones_like(v) for v in weights], weights)": "--strategy default",
    "strategy.experimental_run_v2(print)": "write strategy.run",
    "strategy.experimental_make_numpy_dataset(x)": "from_tensor_slices",
    "strategy.reduce('SUM', x)": "axis=None",
    "dataset.make_one_shot_iterator()": "write iter(dataset)",
    "next(iter(dataset)).get_next()": "write next(iterator)",
    "dataset.output_types": "dataset.element_spec",
    "tf.keras.utils.experimental.DatasetCreator(print)": "the tf.data.Dataset itself",
    "from tensorflow.keras.utils.experimental import DatasetCreator": "the tf.data.Dataset itself",
    "tf.keras.layers.experimental.preprocessing.Rescaling(2)": "tf.keras.layers.Rescaling",
    "from tensorflow.keras.layers.experimental import preprocessing": "tf.keras.layers.Rescaling",
    "from tensorflow.keras.utils import np_utils": "to_categorical",
    "tf.keras.backend.set_learning_phase(1)": "training=False",
    "tf.reduce_mean(x, keep_dims=True)": "write keepdims",
    "tf.Session()": "no sessions",
    "tf.placeholder(tf.float32)": "no sessions",
    "tf.set_random_seed(1)": "tf.random.set_seed",
    "tf.train.AdamOptimizer(0.1)": "tf.keras.optimizers.Adam",
    "tf.log(x)": "TensorFlow 1",
}
"""Code for older versions, and a part of the advice for it."""
OTHER_REMEDIES = {
    "failed to map segment|[Cc]annot allocate memory|^MemoryError",
    "Collective ops is aborted by",
    "Random ops require a seed",
    "Input dataset was expected to contain",
    "Cannot batch tensors with different shapes|Cannot add tensor to the batch",
    "^ValueError: decay is deprecated",  # Keras 2
}
"""Advice that other tests meet."""


def raised(code: str, names: dict[str, Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        exec(compile(code, "old.py", "exec"), dict(names))
    return caught.value


def test_old_code_gets_its_replacement_and_every_replacement_has_an_error(tf: Any) -> None:

    from compare.remedies import REMEDIES
    from compare.user_errors import describe

    class Gan(tf.keras.Model):  # type: ignore[misc]
        def compile(self, d_optimizer: Any, g_optimizer: Any) -> None: ...

    inputs = tf.keras.Input([4])
    names: dict[str, Any] = {
        "tf": tf,
        "x": tf.ones([8, 4]),
        "y": tf.ones([8], tf.int32),
        "model": tf.keras.Sequential([tf.keras.layers.Dense(2)]),
        "functional": tf.keras.Model(inputs, tf.keras.layers.Dense(2)(inputs)),
        "optimizer": tf.keras.optimizers.SGD(0.1),
        "gan": Gan(),
        "strategy": tf.distribute.get_strategy(),
        "dataset": tf.data.Dataset.range(3),
        "tape": tf.GradientTape(persistent=True),
    }
    names["two"] = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with names["two"].scope():
        net = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
        names["weights"], names["adam"] = net.trainable_variables, tf.keras.optimizers.Adam()
    model = names["model"]
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model(names["x"])
    names["variables"] = model.trainable_variables
    met = set(OTHER_REMEDIES)
    for code, advice in OLD_CODE.items():
        with names["tape"]:
            text = describe(raised(code, names), "old.py, line 1")
        assert "(old.py, line 1); " in text and advice in text.rpartition("(old.py, line 1); ")[2], f"{code}: {text}"
        assert "value=[" not in text and len(text) < 600
        met |= {next(symptom for symptom in REMEDIES if re.search(symptom, text))}
    assert met == set(REMEDIES), "no advice for what nothing raises"


def test_the_same_names_of_other_objects_get_no_advice(tf: Any) -> None:
    from compare.user_errors import describe

    class Settings:
        pass

    names = {"settings": Settings(), "tf": tf}
    for code in ("settings.lr", "settings.weights", "settings.minimize", "tf.reduce_meen", "tf.nn.log"):
        assert describe(raised(code, names), "old.py, line 1").endswith("(old.py, line 1)"), code


def test_the_terminal_shows_one_line_and_an_exception_bears_the_advice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from compare.app.cli import main

    value = "                value ="
    loop = LOOP.replace(value, f"                tape.watch(model.trainable_variables)\n{value}")
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "my_loop.py").write_text(loop)
    trainers = ["fit", f"{tmp_path}/my_loop.py:MyLoop"]
    given = ["--experiment", f"{tmp_path}/my_task.py", "--trainers", *trainers, "--reports", str(tmp_path / "reports")]
    place = f"{tmp_path / 'my_loop.py'}, line {line_of(loop, 'tape.watch')}"
    assert main(["--check", *given]) == 3
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("compare.py: ")]
    assert f"({place}); leave out tape.watch" in line and "value=" not in line
    with pytest.raises(ValueError, match="Passed in object") as caught:
        compare.assert_alike(f"{tmp_path}/my_task.py", trainers[1])
    assert caught.value.__notes__[0].startswith(f"{place}: leave out tape.watch")
