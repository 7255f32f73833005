"""``--scripts``: two unedited scripts are compared step by step, and a difference is located in its stage."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses.losses import LossFunctionWrapper

import compare
from compare.app import cli
from compare.app.script_runs import START_METHOD, ScriptRunner
from compare.app.script_sides import as_python
from compare.app.scripts import _further_names, _say_what_trained, _shuffles_apart
from compare.app.scripts_session import ModelPair, ScriptsSession
from compare.engine.described import layers_of
from compare.errors import NoVerdictError, RequestError
from compare.naming import distinct
from compare.patching import undone
from compare.records.model import step_dtype
from compare.records.run_json import RunJson
from compare.reporting.live import console_for
from compare.reporting.result import Result
from compare.user_errors import describe
from compare.verdict.rounding import UNIT
from compare.watch.alike import _seeds_by_creation, make_alike
from compare.watch.epoch_ends import EpochEnds
from compare.watch.experiment_file import write_experiment
from compare.watch.initial_weights import InitialWeights
from compare.watch.observer import EnoughSteps
from compare.watch.reported import _recorded, watch_reports
from compare.watch.script import _run_as_main
from compare.watch.seen import ENDLESS, read_close_up, row_hashes, sketch
from compare.watch.settings import MADE_ALIKE, Detail, Nudge, Settings
from compare.watch.shapes import of_pairs
from compare.watch.stages import StageObserver
from compare.watch.trace import MADE_AT, Trace, read_traces
from compare.watch.trace_writer import TraceWriter

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "scripts"


def compared(folder: Path, *names: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The verdict, and the entry of its only comparison."""
    scripts = [str(SCRIPTS / name) for name in names]
    result = compare.run(scripts=scripts, reports=folder, name="run", quiet=True, **options)
    (entry,) = result.details["comparisons"]
    return result.details, entry


TEACHER = """
import keras
import numpy as np
x = np.ones((8, 4), "float32")
def train(units):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
train(8)
"""


def test_a_training_that_only_one_script_makes_is_never_green(tmp_path: Path) -> None:
    (tmp_path / "teacher.py").write_text(TEACHER)
    (tmp_path / "both.py").write_text(TEACHER + "train(3)\n")
    scripts = [str(tmp_path / name) for name in ("teacher.py", "both.py")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    first, others = result.details["comparisons"]
    assert (first["verdict"], first["training"]["steps_compared"]) == ("identical", 2)
    assert (others["candidate"], others["verdict"], result.exit_status) == (
        "other trainings of both",
        "inconclusive",
        3,
    )
    assert "only both also trains" in others["training"]["reason"]


def test_a_script_that_waits_long_for_the_model_of_the_reference_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    """As where the reference waits for a lock that the other script holds; here, for the line that says so."""
    said = tmp_path / "said"
    wait = "import os, time\nend = time.time() + 120\n"
    wait += f"while not os.path.exists({str(said)!r}) and time.time() < end: time.sleep(0.05)\n"
    (tmp_path / "one.py").write_text(wait + TEACHER)
    (tmp_path / "two.py").write_text(TEACHER)

    told = "two waits for the weights of one, which has made no model yet"

    @contextmanager
    def waiting(_: object, what: Callable[[], str]) -> Iterator[None]:
        def poll() -> None:
            while not (over.is_set() or said.exists()):
                time.sleep(0.05)
                if what() == f"{told}: does one wait for a lock or a port of two?":
                    said.touch()

        over, thread = threading.Event(), threading.Thread(target=poll)
        thread.start()
        yield
        over.set()
        thread.join()

    monkeypatch.setattr("compare.app.scripts_session.PATIENCE", 0.0)
    monkeypatch.setattr("compare.app.scripts_session.waiting", waiting)
    scripts = [str(tmp_path / name) for name in ("one.py", "two.py")]
    assert compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True).verdict == "identical"
    assert said.exists()


ONCE = """
from pathlib import Path
if (mark := Path(__file__).with_suffix(".mark")).exists():
    raise ValueError("only once")
mark.touch()
"""


def test_an_error_of_a_script_that_is_run_again_to_look_inside_a_step_is_said(tmp_path: Path) -> None:
    (tmp_path / "teacher.py").write_text(TEACHER)
    (tmp_path / "once.py").write_text(ONCE + TEACHER.replace("mse", "mae"))
    scripts = [str(tmp_path / name) for name in ("teacher.py", "once.py")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    (entry,) = result.details["comparisons"]
    assert (entry["verdict"], entry["causes"]) == ("different", [])
    failed = "once was run again to look inside step 1, and failed then: ValueError: only once"
    assert any(each.startswith(failed) for each in entry["evidence"]), entry["evidence"]


THREE_AFTER_A_TEACHER = (
    TEACHER.replace("train(8)", "")
    + """
import tensorflow as tf
train(8)
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
y = x[:, :1]
first = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
pupil = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
last = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))])
loss, optimizers = keras.losses.MeanSquaredError(), [keras.optimizers.SGD(0.1, m) for m in (MOMENTUM, 0.0, 0.0)]
@tf.function
def step(x, y):
    for net, optimizer in zip((pupil, first, last), optimizers):
        with tf.GradientTape() as tape:
            predictions = last(x, training=True) if net is last else first(x, training=TRAINING)
            if net is pupil:
                predictions = pupil(predictions, training=True)
            value = loss(y, predictions)
            if net is last:
                value += PENALTY
        variables = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))
for i in range(0, 40, 8):
    step(x[i : i + 8], y[i : i + 8])
"""
)


@pytest.mark.usefixtures("texts_by_id")
def test_every_training_that_differs_has_its_stage_and_its_cause(tmp_path: Path) -> None:
    for name, *given in (("right", "True", "sum(net.losses)", "0.0"), ("wrong", "False", "0.0", "0.5")):
        text = THREE_AFTER_A_TEACHER
        for place, value in zip(("TRAINING", "PENALTY", "MOMENTUM"), given, strict=True):
            text = text.replace(place, value)
        (tmp_path / f"{name}.py").write_text(text)
    scripts = [str(tmp_path / name) for name in ("right.py", "wrong.py")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    teacher, first, pupil, last = result.details["comparisons"]
    assert teacher["verdict"] == "identical", "the others only begin when it has ended"
    places = [each["training"]["first_difference"] for each in (first, pupil, last)]
    found = [(place["step"], place["stage"]) for place in places]
    assert found == [(1, "predictions"), (1, "predictions"), (1, "loss")]
    causes = [[cause["id"] for cause in each["causes"]] for each in (first, pupil, last)]
    # The pupil's step may differ by another's; its optimizer differs by itself.
    assert causes == [["training-flag-missing"], ["optimizer-differs"], ["regularization-missing"]]
    twins = [each["training"]["noise"]["twins"] for each in (first, pupil, last)]
    assert twins == [1, 1, 1], "no training is repeated to its end where the first step is far apart"
    # The pupil's step comes first, but the model that it calls first, and that differs, is not its own.
    assert pupil["evidence"] == ["follows"] and not first["evidence"] and not last["evidence"]


COUNTING = """
import keras, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer, mean = keras.optimizers.SGD(0.1), keras.metrics.Mean(name="loss")
for epoch in range(3):
    RESET
    for i in range(0, 32, 16):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.square(model(x[i : i + 16], training=True) - x[i : i + 16, :1]))
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        mean.update_state(value)
    print(float(mean.result()))
"""


DATA = """
import numpy as np
import tensorflow as tf
x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
y = x @ np.float32([[1.0], [-2.0], [0.5]])
"""
BY_FIT = """
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.1), "mse")
model.fit(x, y, batch_size=10, epochs=1, shuffle=False, verbose=0)
"""
BY_SUM = """
w, b = tf.Variable(tf.random.normal((3, 1))), tf.Variable(tf.zeros(1))
for i in range(0, 40, 10):
    with tf.GradientTape() as tape:
        losses = tf.square(x[i:i + 10] @ w + b - y[i:i + 10])
    for variable, gradient in zip([w, b], tape.gradient(losses, [w, b])):
        variable.assign_sub(0.05 * gradient / 10)
"""


@pytest.mark.usefixtures("texts_by_id")
def test_a_sum_that_the_update_divides_is_no_mistake_beside_another(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(DATA + BY_FIT)
    (tmp_path / "loop.py").write_text(DATA + BY_SUM)
    _, entry = compared(tmp_path / "reports", str(tmp_path / "fit.py"), str(tmp_path / "loop.py"))
    (cause,) = entry["causes"]
    stage = entry["training"]["first_difference"]["stage"]
    assert (stage, cause["id"], cause["side"]) == ("update", "optimizer-differs", "loop")
    assert np.allclose(cause["measurements"]["rates"], [0.05, 0.1])


REORDERED = """
order = np.random.default_rng(1).permutation(40)
optimizer = tf.keras.optimizers.SGD(0.1)
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
for i in range(0, 40, 10):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x[order[i:i + 10]], training=True) - y[order[i:i + 10]]))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""


def test_what_is_certain_of_a_loop_in_another_order_is_a_verdict_and_the_order_alone_is_none(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(DATA + BY_FIT)
    for rate, verdict, causes in (("0.1", "inconclusive", []), ("0.2", "different", ["optimizer-differs"])):
        (tmp_path / "loop.py").write_text(DATA + REORDERED.replace("0.1", rate))
        _, entry = compared(tmp_path / rate, str(tmp_path / "fit.py"), str(tmp_path / "loop.py"))
        assert (entry["verdict"], [cause["id"] for cause in entry["causes"]]) == (verdict, causes)
        said = "; ".join([*entry["evidence"], entry["training"].get("reason", "")])
        assert "the same 40 examples in this epoch, in another order" in said


BY_HAND = """
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        variable.assign_sub(0.1 * gradient)
for i in range(0, 40, 10):
    step(x[i:i + 10], y[i:i + 10])
"""


@pytest.mark.parametrize(("update", "verdict"), [
    ("variable.assign_sub(0.1 * gradient)", "alike"), ("variable.assign_sub(0.2 * gradient)", "different"),
])  # fmt: skip
def test_a_loop_that_makes_an_optimizer_and_updates_by_hand_is_compared(
    update: str, verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "fit.py").write_text(DATA + BY_FIT)
    (tmp_path / "loop.py").write_text(DATA + BY_HAND.replace("variable.assign_sub(0.1 * gradient)", update))
    _, entry = compared(tmp_path / "reports", str(tmp_path / "fit.py"), str(tmp_path / "loop.py"))
    assert entry["training"]["steps_compared"] == 4
    assert entry["verdict"] == verdict or {entry["verdict"], verdict} == {"identical", "alike"}


@pytest.mark.usefixtures("texts_by_id")
def test_whichever_script_goes_on_counting_is_named(tmp_path: Path) -> None:
    for name, reset in (("counts", "pass"), ("resets", "mean.reset_state()")):
        (tmp_path / f"{name}.py").write_text(COUNTING.replace("RESET", reset))
    for names in (("counts", "resets"), ("resets", "counts")):
        scripts = [str(tmp_path / f"{name}.py") for name in names]
        result = compare.run(scripts=scripts, reports=tmp_path, name="-".join(names), quiet=True)
        (cause,) = result.causes
        assert (result.verdict, cause.id, cause.side) == ("different", "metrics-not-reset", "counts")
        assert cause.source is not None and cause.source.text == "mean.update_state(value)"


def test_scripts_from_new_processes_say_what_those_from_forks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, penalty in (("right", "sum(net.losses)"), ("wrong", "0.0")):
        text = THREE_AFTER_A_TEACHER.replace("TRAINING", "True").replace("PENALTY", penalty).replace("MOMENTUM", "0.0")
        (tmp_path / f"{name}.py").write_text(text)
    scripts, said, steps = [str(tmp_path / name) for name in ("right.py", "wrong.py")], [], []
    for way in ("fork", "spawn"):
        monkeypatch.setenv(START_METHOD, way)
        result = compare.run(scripts=scripts, reports=tmp_path, name=way, quiet=True)
        said.append(result.details["comparisons"])
        steps.append({path.name: path.read_bytes() for path in sorted((tmp_path / way).rglob("*.steps"))})
    assert said[0] == said[1] and [each["verdict"] for each in said[0]].count("different") == 1
    assert steps[0] == steps[1] != {}


@pytest.mark.oldest
def test_an_unedited_loop_trains_like_fit(tmp_path: Path) -> None:
    verdict, entry = compared(tmp_path, "my_fit.py", "my_loop.py")
    assert (verdict["scope"], verdict["reference"], entry["candidate"]) == ("scripts", "my_fit", "my_loop")
    assert verdict["made_alike"] == ["seeds", "weights", "order"]
    assert entry["verdict"] == "alike" and entry["causes"] == []
    # The short batch, whose static shape the loop knows; on some processors, each batch's shape decides on a kernel.
    assert entry["training"]["first_difference"]["step"] in (1, 16)
    assert entry["training"]["steps_compared"] == 32
    # The loop's metrics have names of their own, and are paired with fit's by what they measure.
    assert set(entry["reporting"]["metrics"]) >= {"loss", "accuracy", "val_accuracy"}
    rows = compare.load(tmp_path / "run").metrics
    assert rows[rows.trainer == "my_loop"].val_loss.isna().all(), "what the loop does not report is blank"
    assert "epoch 2: " in (tmp_path / "run" / "my_loop.log").read_text()
    for name in ("run.json", "report.html", "comparison.png"):
        assert (tmp_path / "run" / name).exists()
    assert not (SCRIPTS / "__pycache__").exists(), "nothing is written to the scripts' folder"


@pytest.mark.parametrize(("strong", "weak", "apart"), [
    ("0.0045", "0.004", "weight_decay=0.004 instead of 0.0045"),
    ("0.004", "0.004, ['gamma']", "exclude_from_weight_decay=['gamma'] instead of []"),
])  # fmt: skip
def test_another_weight_decay_is_no_rounding_however_little_it_changes(
    strong: str, weak: str, apart: str, tmp_path: Path
) -> None:
    """One step moves a weight by 8 units in the last place more: less than 100 times the effect of rounding."""
    (tmp_path / "task.py").write_text(DECAYING)
    for name, decay in (("strong", strong), ("weak", weak)):
        (tmp_path / f"{name}.py").write_text(f"from task import train\n\ntrain({decay})\n")
    verdict, entry = compared(tmp_path, str(tmp_path / "strong.py"), str(tmp_path / "weak.py"))
    assert verdict["verdict"] == "different"
    (cause,) = entry["causes"]
    assert cause["id"] == "optimizer-differs" and apart in cause["evidence"]


DECAYING = """
import keras
import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)
x, y = random.normal(size=(96, 8)).astype("float32"), random.integers(0, 3, 96)


def train(decay, left_out=()):
    layers = keras.layers
    hidden = [layers.Dense(16), layers.BatchNormalization(), layers.ReLU()]
    model = keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(3)])
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=decay)
    if left_out:
        optimizer.exclude_from_weight_decay(var_names=left_out)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for i in range(0, 96, 16):
        step(x[i : i + 16], y[i : i + 16])
"""


@pytest.mark.slow  # test_readme runs the same in the gate
@pytest.mark.oldest
def test_a_forgotten_regularization_is_located_and_named(tmp_path: Path) -> None:
    _, entry = compared(tmp_path, "my_fit.py", "my_loop.py", script_arguments=["--forget"], max_steps=4)
    first = entry["training"]["first_difference"]
    assert (entry["verdict"], first["epoch"], first["step"], first["stage"]) == ("different", 1, 1, "loss")
    assert [(cause["id"], cause["side"]) for cause in entry["causes"]] == [("regularization-missing", "my_loop")]
    stages = {each["stage"]: each["equal"] for each in entry["stages"]}
    assert stages["examples"] and stages["inputs"] and stages["predictions"] and not stages["loss"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Inside that step" in page and 'class="differs"' in page


def test_where_one_script_fails_the_other_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.py").write_text("import no_such_module_xyz\n")
    (tmp_path / "long.py").write_text(
        f"import pathlib, time\ntime.sleep(120)\npathlib.Path({str(tmp_path / 'ended')!r}).touch()\n"
    )
    scripts = [str(tmp_path / name) for name in ("long.py", "wrong.py")]
    assert cli.main(["--scripts", *scripts, "--reports", str(tmp_path / "r"), "--quiet"]) == 3
    error = capsys.readouterr().err
    assert "wrong.py failed: ModuleNotFoundError" in error and error.count("\n") == 1
    assert not (tmp_path / "ended").exists()


def test_a_script_is_not_blamed_for_a_full_folder_of_temporary_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.app.scripts.SCARCE", 2**60)
    script = tmp_path / "fit.py"
    script.write_text("raise OSError(28, 'No space left on device')\n")
    assert cli.main(["--scripts", str(script), str(script), "--reports", str(tmp_path / "r"), "--quiet"]) == 3
    error = capsys.readouterr().err
    assert re.search(": .*, the folder for temporary files, is full: .* set TMPDIR .*\n$", error), error


def notebook(*cells: str) -> str:
    """The content of a notebook with these cells."""
    code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# Training"]}
    content = {"cells": [text, *({**code, "source": cell.splitlines(keepends=True)} for cell in cells)]}
    return json.dumps({**content, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})


def test_notebooks_are_compared_like_scripts_also_if_they_have_one_name(tmp_path: Path) -> None:
    for way in ("my_fit", "my_loop"):
        (tmp_path / way).mkdir()
        code = f"import sys\nsys.path.append({str(SCRIPTS)!r})\nprint('this is {way}')\n"
        cells = [
            "%matplotlib inline\n!pip list",
            "import asyncio\nawait asyncio.sleep(0)",
            code + (SCRIPTS / f"{way}.py").read_text(),
        ]
        (tmp_path / way / "train.ipynb").write_text(notebook(*cells))
    scripts = [str(tmp_path / way / "train.ipynb") for way in ("my_fit", "my_loop")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True, max_steps=3)
    assert "only the first 3 steps are compared (--max-steps)" in (tmp_path / "run" / "run.json").read_text()
    (entry,) = result.details["comparisons"]
    assert (entry["candidate"], entry["training"]["verdict"]) == ("train-2", "identical")
    logs = [(tmp_path / "run" / f"{name}.log").read_text() for name in ("train", "train-2")]
    assert ["this is my_fit" in logs[0], "this is my_loop" in logs[1]] == [True, True]

    (tmp_path / "no.ipynb").write_text("{}")
    with pytest.raises(RequestError, match=r"no\.ipynb: this is not a notebook"):
        compare.run(scripts=[scripts[0], str(tmp_path / "no.ipynb")], reports=tmp_path, quiet=True)


def test_code_that_a_notebook_times_runs_and_what_belongs_to_a_shell_does_not(tmp_path: Path) -> None:
    cells = "%%time\na = 1\nb = 2", "\n%%capture out\n%time c = 3", "if a:\n    %time d = 4", "%%bash\nexit 5"
    (tmp_path / "my.ipynb").write_text(notebook("%matplotlib inline\n!pip install x", *cells))
    source = as_python(str(tmp_path / "my.ipynb"), tmp_path / "notebook-0.py")
    names = runpy.run_path(source, {"get_ipython": Mock()})
    assert [names[name] for name in "abcd"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("begins", "runs"), [(b"# coding: latin-1\n# \xe4", True), (b"\xef\xbb\xbf# a", True), (b"# \xe4", False)]
)
def test_a_file_is_decoded_as_python_decodes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bytes, runs: bool
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # which is another one then
    (tmp_path / "a.py").write_bytes(begins + b"\r\nx = 1\r\n")
    with nullcontext() if runs else pytest.raises(SyntaxError):
        _run_as_main(Settings("a.py", str(tmp_path / "a.py"), str(tmp_path), str(tmp_path)))
    assert hasattr(sys.modules["__main__"], "x") == runs


def test_an_error_in_a_notebook_cites_its_cell(tmp_path: Path) -> None:
    (tmp_path / "my.ipynb").write_text(
        notebook("import math\n# In cell 2 we divide", "def f(x):\n    return 1 / x\n\n", "f(1)\nf(0)")
    )
    source = as_python(str(tmp_path / "my.ipynb"), tmp_path / "notebook-0.py")
    settings = Settings("my.ipynb", source, str(tmp_path), str(tmp_path))
    with pytest.raises(ZeroDivisionError) as raised:
        runpy.run_path(source)
    assert settings.cited(describe(raised.value)) == "ZeroDivisionError: division by zero (my.ipynb, cell 2, line 2)"
    lines = settings.cited("".join(traceback.format_exception(raised.value)))
    assert 'File "my.ipynb", cell 3, line 2, in <module>' in lines


def test_sides_and_models_never_have_one_name() -> None:
    names = ["x"]
    for wanted in ("x", "x-2", "x model 2", "x model 2"):
        names.append(distinct(wanted, names))
    assert names == ["x", "x-2", "x-2-2", "x model 2", "x model 2-2"]


@pytest.mark.parametrize(
    ("arguments", "fit", "way"),
    [
        ([], True, ""),
        ([{"buffer_size": 100}], False, ""),
        ([{"buffer_size": 100}, {"buffer_size": 100, "reshuffle_each_iteration": False}], False, ""),
        ([{"buffer_size": 100, "reshuffle_each_iteration": False, "seed": 1}], False, "loop shuffles once"),
        ([(100, None, False)], False, "loop shuffles once"),
        ([], False, "loop calls no Dataset.shuffle"),
    ],
)
def test_a_shuffle_that_is_left_out_is_told_where_the_scripts_differ_in_it(
    arguments: list[Any], fit: bool, way: str
) -> None:
    writer: Any = Mock(calls=[], shuffles=[])

    def original(dataset: Any, buffer_size: int, seed: Any = None, reshuffle_each_iteration: Any = None) -> Any:
        return dataset

    shuffle = partial(_recorded, "shuffle", writer, original, None)
    for each in arguments:
        shuffle(**each) if isinstance(each, dict) else shuffle(*each)
    of_loop = Mock(shuffles=writer.shuffles, fit={"shuffle": fit}, trained_by="loop")
    traces: Any = [Mock(shuffles=[], fit={"shuffle": True}, trained_by="fit"), of_loop]
    for keep in ((), ("order",)):
        session: Any = Mock(names=["fit", "loop"], options=Mock(keep=keep))
        said = _shuffles_apart(session, traces)
        assert len(said) == bool(way) and ("switched off" in "".join(said)) == bool(way and not keep)
        assert all(each.startswith(f"fit shuffles again in every epoch and {way}") for each in said)
        by_fit = Mock(shuffles=[], fit={}, trained_by="fit with its own train_step")
        assert _shuffles_apart(session, [by_fit, of_loop]) == [], "how its fit was called is not known"


def test_calls_of_a_data_set_are_recorded_in_one_way(tensorflow: Any) -> None:
    def batch(dataset: Any, batch_size: int, drop_remainder: bool = False) -> None:
        pass

    def padded_batch(dataset: Any, batch_size: int, padded_shapes: Any = None, drop_remainder: bool = False) -> None:
        pass

    writer: Any = Mock(calls=[])
    for method, arguments in ((batch, (tf.constant(60_000),)), (padded_batch, (8, {"x": [None] * 20}))):
        _recorded(method.__name__, writer, method, None, *arguments, drop_remainder=True)
    _recorded("batch", writer, batch, None, drop_remainder=True, batch_size=60_000)
    assert writer.calls == [
        "batch(60000, drop_remainder=True)",
        "padded_batch(8, padded_shapes=…, drop_remainder=True)",
    ]


def test_a_result_has_the_notes_of_its_run(tmp_path: Path) -> None:
    run = RunJson(folder=tmp_path, identity="it", notes=["only the first 4 steps are compared"])
    run.save()
    assert Result(tmp_path, "identical").notes == ["only the first 4 steps are compared"]
    run.save(notes=[])
    assert Result(tmp_path, "identical").notes == []


def test_an_error_in_the_search_for_causes_costs_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIT_VS_LOOP_LOUD")
    monkeypatch.setattr(
        "compare.app.scripts_explain.name_causes", Mock(side_effect=TypeError("len() of unsized object"))
    )
    for name, rate in (("slow", 0.1), ("fast", 0.2)):
        (tmp_path / f"{name}.py").write_text(
            "import keras, numpy as np\nx = np.eye(8, dtype='float32')\n"
            "model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])\n"
            f"model.compile(keras.optimizers.SGD({rate}), 'mse')\nmodel.fit(x, x[:, :1], batch_size=4, verbose=0)\n"
        )
    scripts = [str(tmp_path / f"{name}.py") for name in ("slow", "fast")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    assert (result.verdict, result.stage, result.causes) == ("different", "update", [])
    said = result.details["comparisons"][0]["evidence"]
    assert said == result.evidence == ["the search for a cause failed (TypeError: len() of unsized object)"]


def test_what_trained_is_said_with_its_model_once() -> None:
    traces = [Trace((), 1, np.zeros(0, step_dtype(1, 1)), trained_by="fit", model=name) for name in ("gen", "critic")]
    names = ("a", "b"), ("a model 2 (critic)", "b model 2")
    models = [SimpleNamespace(names=n, traces=(trace, trace)) for n, trace in zip(names, traces, strict=True)]
    out = io.StringIO()
    session: Any = SimpleNamespace(models=models, console=console_for(out, quiet=False), left_over=(), left_out=())
    _say_what_trained(session)
    heads = [line.partition(":")[0] for line in out.getvalue().splitlines()[:-1]]
    assert heads == ["a (gen)", "b (gen)", "a model 2 (critic)", "b model 2 (critic)"]


def test_a_further_training_has_the_name_of_its_model_if_both_call_it_the_same() -> None:
    session: Any = Mock(names=["a", "b"], models=[])
    for models, names in (
        (("gen", "gen"), ("a model 2 (gen)", "b model 2 (gen)")),
        (("x", "y"), ("a model 2", "b model 2")),
    ):
        pair: Any = [Mock(model=each, state="") for each in models]
        assert _further_names(session, 2, pair) == names


@pytest.mark.slow
@pytest.mark.oldest
def test_the_two_models_of_a_gan_are_paired_and_each_is_judged(tmp_path: Path) -> None:
    scripts = [str(SCRIPTS / name) for name in ("gan_fit.py", "gan_loop.py")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True, script_arguments=["wrong"])
    discriminator, generator = result.details["comparisons"]
    assert (discriminator["candidate"], generator["candidate"]) == ("gan_loop", "gan_loop model 2 (generator)")
    assert generator["reference"] == "gan_fit model 2 (generator)"
    # The generator's loss is wrong; the discriminator meets its other images later.
    places = [entry["training"]["first_difference"] for entry in (discriminator, generator)]
    assert places[0]["step"] > 1 and (places[1]["step"], places[1]["stage"]) == (1, "loss")
    assert discriminator["reporting"]["metrics"].keys() >= {"d_loss", "g_loss"}


@pytest.mark.slow
def test_a_gan_trained_by_a_right_loop_is_alike(tmp_path: Path) -> None:
    scripts = [str(SCRIPTS / name) for name in ("gan_fit.py", "gan_loop.py")]
    result = compare.run(scripts=scripts, reports=tmp_path, name="run", quiet=True)
    assert [entry["training"]["verdict"] for entry in result.details["comparisons"]] == ["alike", "alike"]


@pytest.mark.slow
def test_an_eager_loop_over_numpy_arrays_trains_like_fit(tmp_path: Path) -> None:
    _, entry = compared(tmp_path, "my_fit.py", "eager.py")
    assert entry["training"]["verdict"] == "alike" and entry["causes"] == []


@pytest.mark.slow
def test_a_mean_over_batches_is_named_from_the_losses_of_the_steps(tmp_path: Path) -> None:
    _, entry = compared(tmp_path, "my_fit.py", "averaged.py")
    assert (entry["training"]["verdict"], entry["reporting"]["verdict"]) == ("identical", "different")
    causes = [cause["id"] for cause in entry["causes"]]
    assert causes == ["loss-averaged-over-batches", "validation-loss-without-regularization"]
    averaged, _ = entry["causes"]
    lines = [line.strip() for line in (SCRIPTS / "averaged.py").read_text().splitlines()]
    assert (
        lines[averaged["source"]["line"] - 1] == averaged["source"]["text"] and "val_mean" in averaged["source"]["text"]
    )
    parts = averaged["measurements"]["parts"]
    assert [(each["metric"], each["epoch"]) for each in parts] == [("loss", 1), ("val_loss", 1)]
    assert "strategy" not in averaged["remedy"]


def test_one_script_that_trains_twice_is_compared_with_itself(tmp_path: Path) -> None:
    verdict, entry = compared(tmp_path, "both.py", script_arguments=["--slow"], max_steps=5)
    assert (verdict["reference"], entry["candidate"], entry["verdict"]) == ("both", "both-2", "different")
    first = entry["training"]["first_difference"]
    assert (first["step"], first["stage"]) == (1, "update")
    assert [(cause["id"], cause["side"]) for cause in entry["causes"]] == [("optimizer-differs", "both-2")]
    assert entry["causes"][0]["measurements"]["settings"]["learning_rate"][0] == 0.05


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import task\nraise ValueError('no data')\n", "ValueError: no data (wrong.py, line 2); its output is in"),
        (
            "import tensorflow as tf\n\ntf.keras.optimizers.legacy.SGD(0.1)\n",
            "Keras 3. (wrong.py, line 3); write tf.keras.optimizers.SGD and the like; its output",
        ),
        (
            "import numpy\nprint(numpy.zeros(3))\n",
            "wrong.py: no step of a Keras optimizer was seen, so there is nothing to compare; the last line that it "
            "printed is '[0. 0. 0.]' (",
        ),
        ("print(7)\nraise SystemExit(3)\n", "it ended with status 3; its last line: 7; its output"),
        ("import os\nos._exit(1)\n", "wrong.py failed: os._exit(1) (wrong.py, line 2)"),
        (
            "import os, threading, time\nthreading.Timer(0, os._exit, [9]).start()\ntime.sleep(300)\n",
            "wrong.py failed: os._exit(9); its output",
        ),
        (
            "import os, sys\nos.execv(sys.executable, [sys.executable] + sys.argv)\n",
            ", …) (wrong.py, line 2), and only the process that is started is watched; set what it sets before",
        ),
        ("import posix\nposix._exit(0)\n", "no step of a Keras optimizer was seen"),
        ("for i in range(3)\n    print(i)\n", "wrong.py failed: SyntaxError: expected ':' (wrong.py, line 1); its"),
        (
            "import tensorflow as tf\nv = tf.keras.Variable(1.0)\noptimizer = tf.keras.optimizers.SGD()\n"
            "@tf.function\ndef step():\n    with tf.GradientTape() as tape:\n        loss = v * v\n"
            "    return tape.gradient(loss, [v.value])\nstep()\n",
            "wrong.py takes gradients (wrong.py:8: return tape.gradient(loss, [v.value])), but never applies them, so",
        ),
    ],
)
def test_a_script_that_trains_nothing_ends_with_its_reason(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.py").write_text(text)
    (tmp_path / "task.py").write_text("")
    arguments = ["--scripts", str(SCRIPTS / "my_fit.py"), "wrong.py", "--reports", str(tmp_path / "r"), "--quiet"]
    monkeypatch.chdir(tmp_path)
    assert cli.main([*arguments, "--max-steps", "2"]) == 3
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
    listed = (tmp_path / "r" / "index.html").read_text()
    assert 'class="pill failed"' in listed and "No numbers" not in listed
    (folder,) = (each.parent for each in (tmp_path / "r").glob("*/run.json"))
    assert compare.load(folder).verdict == "not-comparable" and "cannot be compared, because" in str(
        compare.load(folder)
    )
    page = (folder / "report.html").read_text()
    assert "There is no verdict: it failed." in page and '<a href="wrong.log">' in page, "a page to hand out"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scripts", "missing.py", "other.py"], "no such file"),
        (["--scripts", f"{'x' * 5000}.py", "other.py"], "no such file"),
        (["--scripts", "a.py", "b.py", "c.py"], "one script or two"),
        (["--scripts", "a.py", "b.py", "--epochs", "3"], "--epochs has no meaning with scripts"),
        (["--scripts", "a.py", "b.py", "--keep", "rows"], "--keep rows: unknown"),
        (["--max-steps", "3"], "--max-steps is for scripts only"),
        (["--", "--lr", "1"], "-- begins the arguments of scripts"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    tmp_path: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--reports", str(tmp_path / "r"), *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
    assert not list(tmp_path.glob("r/*/metrics.csv"))


def test_watching_changes_no_weight(tmp_path: Path) -> None:
    path = str(SCRIPTS / "four.py")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    unwatched = re.findall(r"^(?:fit|function|eager|replicas) .*$", done.stdout, re.MULTILINE)
    assert len(set(unwatched)) == 4
    with ScriptRunner() as runner:
        for name, close_up in (("plain", ()), ("close", ((1, 40),))):
            settings = Settings(
                path, path, str(tmp_path / name), str(tmp_path / "initial"), own=tuple(MADE_ALIKE), close_up=close_up
            )
            run = runner.start(settings, tmp_path / f"{name}.log")
            runner.wait([run])
            printed = run.log.read_text()
            assert run.status == 0, printed
            assert [line for line in printed.splitlines() if line in unwatched] == unwatched, name
            trainings = [trace for trace in read_traces(tmp_path / name) if not trace.state]
            assert [trace.last for trace in trainings] == [32] * 4, "every step was seen"


SLEEPS = """
import time
class Sleeps(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        open("slept", "w").close()
        time.sleep(60)
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Sleeps()])
"""
FINISHES = """
import tensorflow as tf
optimizer, loss = keras.optimizers.SGD(), keras.losses.MeanSquaredError()
for i in [0, 4] * 2:
    with tf.GradientTape() as tape:
        value = loss(x[i : i + 4, :1], model(x[i : i + 4], training=True))
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_weights), model.trainable_weights))
model.set_weights([0.5 * each for each in model.get_weights()])
"""


def test_what_an_interrupted_script_has_not_come_to_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begins = TEACHER.partition("def train")[0] + "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])"
    for name, text in (("fit.py", SLEEPS), ("loop.py", FINISHES)):
        (tmp_path / name).write_text(begins + text)
    wait = ScriptRunner.wait

    def interrupted(self: ScriptRunner, runs: Any, look: Any) -> None:
        def interrupt() -> None:
            if runs[1].status == 0 and (tmp_path / "slept").exists():
                raise KeyboardInterrupt

        wait(self, runs, interrupt)

    monkeypatch.setattr(ScriptRunner, "wait", interrupted)
    entry = interrupted_comparison(tmp_path, "fit.py", "loop.py")
    assert (entry["verdict"], entry["training"]["steps_compared"]) == ("identical", 2)


def interrupted_comparison(reports: Path, *scripts: str) -> dict[str, Any]:
    """What is kept of the only comparison of two scripts, which is interrupted."""
    with pytest.raises(KeyboardInterrupt):
        compare.run(scripts=list(scripts), reports=reports, name="run", quiet=True)
    details = compare.load(reports / "run").details
    assert details["interrupted"]
    (entry,) = details["comparisons"]
    return entry


def test_an_interruption_while_a_difference_is_explained_starts_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begins = TEACHER.partition("def train")[0] + "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])"
    for name, text in (("a.py", FINISHES), ("b.py", FINISHES.replace("SGD()", "SGD(0.02)"))):
        (tmp_path / name).write_text(begins + text)
    wait, waited = ScriptRunner.wait, list[int]()

    def interrupted(self: ScriptRunner, runs: Any, look: Any) -> None:
        waited.append(len(runs))
        if len(waited) == 2:
            raise KeyboardInterrupt
        wait(self, runs, look)

    monkeypatch.setattr(ScriptRunner, "wait", interrupted)
    entry = interrupted_comparison(tmp_path, "a.py", "b.py")
    assert (entry["verdict"], entry.get("so_far")) == ("inconclusive", None)
    assert len(waited) == 2


def test_ctrl_c_judges_what_there_is(tmp_path: Path) -> None:
    for name in ("task.py", "my_fit.py"):
        (tmp_path / name).write_text((SCRIPTS / name).read_text())
    endless = (SCRIPTS / "my_loop.py").read_text().replace("range(2)", "range(10**9)")
    (tmp_path / "endless.py").write_text(endless)
    command = [sys.executable, ROOT / "scripts" / "compare.py", "--scripts", "my_fit.py", "endless.py"]
    command += ["--max-steps", str(10**9), "--name", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        log = tmp_path / "reports" / "run" / "endless.log"
        until(lambda: log.exists() and "epoch 20: " in log.read_text())
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    how = "remove reports/run, or choose another --name, and run it again"
    assert (process.returncode, error) == (130, f"compare.py: interrupted; this cannot be resumed: {how}\n")
    verdict = json.loads((tmp_path / "reports" / "run" / "verdict.json").read_text())
    (entry,) = verdict["comparisons"]
    assert verdict["interrupted"] and entry["training"]["steps_compared"] == 32
    assert str(tmp_path) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def until(condition: Callable[[], bool]) -> None:
    """Waits until something is true, at most two minutes."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited for two minutes")


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_tape_that_watches_nothing_is_as_none(by_hand: bool, tensorflow: Any) -> None:
    """As where one function trains and validates, and only its flag says which."""
    x, y = np.ones((6, 2), np.float32), np.zeros((6, 1), np.float32)
    with watched(close_up=((1, 9),)) as observer:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer, loss_fn = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()
        for training in (True, False, True):
            with tf.GradientTape(watch_accessed_variables=training and not by_hand) as tape:
                if training and by_hand:
                    for variable in model.trainable_variables:
                        tape.watch(variable.value)
                loss = loss_fn(y, model(x, training=training))
            if training:
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    seen = observer.seen(0)
    assert seen is not None
    assert [len(seen.of(step, kind)) for step in (1, 2) for kind in ("inputs", "loss")] == [1, 1, 1, 1]


@pytest.mark.parametrize(("classes", "kept"), [(100, True), (101, False)])
def test_where_only_losses_are_recorded_predictions_of_few_classes_are_kept(
    classes: int, kept: bool, tensorflow: Any
) -> None:
    x, y = np.ones((6, 2), np.float32), np.zeros(6, np.int32)
    with watched(close_up=((1, 9),), losses_only=True) as observer:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(classes)])
        optimizer, loss_fn = keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    seen = observer.seen(0)
    assert seen is not None
    (event,) = seen.of(1, "targets")
    assert [array.shape for array in event.arrays[:2]] == ([(6,), (6, classes)] if kept else [])


def test_losses_of_validation_and_penalties_are_recorded(tensorflow: Any) -> None:
    x, y = np.ones((6, 2), np.float32), np.zeros((6, 1), np.float32)
    with watched(close_up=((1, 9),), losses_only=True) as observer:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_regularizer="l2")])
        optimizer, loss_fn, expected = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(), []
        validate = tf.function(lambda x, y: loss_fn(y, model(x, training=False)), reduce_retracing=True)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            batches = [(float(validate(x[:4], y[:4])), 4), (float(loss_fn(y[4:], model(x[4:]))), 2)]
            expected.append((batches, float(sum(model.losses))))
    seen = observer.seen(0)
    assert seen is not None
    assert [(seen.untaped[step], seen.penalties[step]) for step in (1, 2)] == expected


def test_losses_that_keras_divides_by_the_replicas_are_recorded_whole_with_their_lines(tensorflow: Any) -> None:
    x, y = tf.constant(X), tf.constant(Y[:, None])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with watched(close_up=((1, 9),), losses_only=True) as observer:
        with strategy.scope():
            model, optimizer, loss_fn = column(), keras.optimizers.SGD(0.0), keras.losses.MeanSquaredError()
            optimizer.build(model.trainable_variables)

        def train() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_fn.call(y, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        tf.function(lambda: strategy.run(train))()
        validate = tf.function(lambda: strategy.run(lambda: loss_fn(y, model(x, training=False))))
        parts = [float(each) for each in strategy.experimental_local_results(validate())]
        total = float(strategy.reduce("SUM", validate(), axis=None))
    seen = observer.seen(0)
    assert seen is not None and seen.untaped[1] == 2 * [(2 * part, 4) for part in parts] and parts[0] > 0
    assert seen.summed == [total]
    assert seen.divided.keys() == {"validation"}, "the step takes the losses of the examples, which Keras leaves whole"
    file, _, text = seen.divided["validation"] or ("", 0, "")
    assert file.endswith("test_scripts.py") and "loss_fn(y, model(x, training=False))" in text


@contextmanager
def watched(folder: Path | None = None, *, begins: bool = True, **options: Any) -> Iterator[StageObserver]:
    """An observer of what this process trains; in a folder it writes a trace, and gives or takes initial weights."""
    detail = Detail(**{"own": tuple(MADE_ALIKE), **options})
    initial = (str(folder / "initial"),) if folder else ()
    with undone():
        writer = TraceWriter(folder / "trace") if folder else None
        yield StageObserver(detail, InitialWeights(detail, *initial, provides=begins and bool(folder)), writer)


def column() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])


X, Y = np.arange(8, dtype=np.float32).reshape(4, 2) / 8, np.arange(4, dtype=np.float32)


def own_loss(true: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(true - predicted))


@pytest.mark.parametrize("way", ["eager", "graph", "XLA", "XLA in Keras"])
def test_the_loss_of_variables_without_a_model_is_seen(tensorflow: Any, way: str) -> None:
    with watched(close_up=((1, 2),)) as observer:
        weights, optimizer = tf.Variable([[1.0], [2.0]]), keras.optimizers.SGD(0.1)

        def of_keras(x: Any) -> Any:  # as its convolutions are
            return tf.identity(x)

        of_keras.__module__ = "keras.src.backend.tensorflow.nn"
        inner = tf.function(of_keras, jit_compile=True) if way == "XLA in Keras" else of_keras

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = own_loss(y[:, None], inner(x) @ weights)
            optimizer.apply(tape.gradient(loss, [weights]), [weights])
            return loss

        train = step if way == "eager" else tf.function(step, jit_compile=True if way == "XLA" else None)
        losses = [float(train(tf.constant(X), tf.constant(Y))) for _ in range(2)]
    seen = observer.seen(0)
    assert seen is not None and [seen.loss(number) for number in (1, 2)] == losses
    assert seen.without_xla == (way == "XLA")


@pytest.mark.parametrize(
    ("labels", "pairs"), [((8,), True), ((None,), True), ((8, 1), False), ((None, 1), False), ((1,), False)]
)
def test_a_loss_of_pairs_is_seen_by_the_shapes_in_its_graph(
    tensorflow: Any, labels: tuple[int | None, ...], pairs: bool
) -> None:
    specs = [tf.TensorSpec(labels), tf.TensorSpec((labels[0], 1))]
    seen = []
    for square in (lambda gap: gap**2, tf.abs):

        @tf.function(input_signature=specs)
        def loss(y: Any, predictions: Any, square: Any = square) -> Any:
            value = 3 * tf.reduce_mean(square(y - predictions) + 1)
            other = tf.reduce_mean(tf.reshape(y, [-1]) - predictions)  # a number that is no part of the loss
            seen.append((of_pairs([value]), of_pairs([other])))
            return value

        loss.get_concrete_function()
    assert seen == [(pairs, labels[0] != 1)] * len(seen)


def operations_seen(feed: Callable[[Any, Any, Any], Any], folder: Path) -> list[tuple[str, int, str]]:
    """What was seen to make the data set of the first step; the comment in its line says which it is.

    ``feed`` gets a function that makes a step, and data to train and to validate on.
    """
    with watched(folder, close_up=((1, 1),)) as observer:
        model, optimizer = column(), keras.optimizers.SGD(0.1)

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = own_loss(y[:, None], model(x, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        train = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2, drop_remainder=True).repeat()  # to train on
        validation = tf.data.Dataset.from_tensor_slices((X + 9, Y)).batch(2)  # to validate on
        assert train.element_spec[1] == tf.TensorSpec((2,)) and isinstance(train, tf.data.Dataset)
        iterator = iter(validation)  # which goes on living
        next(iterator)
        observer.fitting.append(model)
        prepared = train.prefetch(1).repeat()  # by fit itself
        observer.fitting.pop()
        feed(step, prepared.take(1), validation)
    seen = observer.seen(0)
    assert seen is not None
    return [
        (name, number, line[2].partition("# ")[2])
        for event in seen.of(1, "inputs")
        for name, number, line in event.info["operations"]
    ]


def by_loop(step: Any, train: Any, validation: Any) -> None:
    for x, y in train:
        step(x, y)


def by_generator(step: Any, train: Any, validation: Any) -> None:
    for _, (x, y) in enumerate(element for element in train):
        step(x, y)


def by_iterator(step: Any, train: Any, validation: Any) -> None:
    tf.function(lambda iterator: step(*next(iterator)))(iter(train))


def in_graph(step: Any, train: Any, validation: Any) -> None:
    tf.function(by_loop)(step, train, None)


def captured(step: Any, train: Any, validation: Any) -> None:
    def epoch() -> None:
        for x, y in train:
            step(x, y)

    tf.function(epoch)()


def by_strategy(step: Any, train: Any, validation: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for x, y in strategy.experimental_distribute_dataset(train):
        step(x.values[0], y.values[0])


def by_slices(step: Any, train: Any, validation: Any) -> None:
    step(tf.constant(X[:2]), tf.constant(Y[:2]))


def of_several(step: Any, train: Any, validation: Any) -> None:
    tf.function(by_loop)(step, train, validation)


MADE = [("batch", 2, "to train on"), ("drop_remainder", 2, "to train on"), ("repeat", ENDLESS, "to train on")]
MADE += [("take", 1, "")]


@pytest.mark.parametrize(
    ("feed", "made"),
    [
        (by_loop, MADE),
        (by_generator, MADE),
        (by_iterator, MADE),
        (in_graph, MADE),
        (captured, MADE),
        (by_strategy, MADE),
        (by_slices, []),
        (of_several, []),
    ],
)
def test_the_data_set_that_a_step_takes_its_examples_from_is_known(
    tensorflow: Any, tmp_path: Path, feed: Any, made: Any
) -> None:
    """Its own, not another of equal batches; none where several may be meant, or examples are taken by hand."""
    assert operations_seen(feed, tmp_path) == made


def test_losses_and_sketches_of_gradients_are_kept_of_every_step(tensorflow: Any) -> None:
    """So that a step before the close-up is found whose loss is wrong, while Adam hides that from the weights."""
    with watched(close_up=((3, 4),)) as observer:
        model, optimizer = column(), keras.optimizers.Adam()
        loss_fn, losses = LossFunctionWrapper(own_loss), []

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_fn(y[:, None], model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        for _ in range(3):
            losses.append(float(step(X, Y)))
    seen = observer.seen(0)
    assert seen is not None
    assert [seen.loss(number) for number in (1, 2, 3)] == losses
    sketches = [seen.gradients(number, kind="sketch") for number in (1, 2, 3)]
    assert all(sketched.keys() == {0, 1} for sketched in sketches)
    assert seen.gradients(1) == {}, "the gradients themselves are kept near the step only"
    for number, array in seen.gradients(3).items():
        assert np.array_equal(sketches[2][number], sketch(array))


def test_what_was_seen_is_kept_although_a_script_does_not_come_to_its_end(tensorflow: Any, tmp_path: Path) -> None:
    with watched(close_up=((1, 2),), max_steps=1) as observer:
        observer.writer = TraceWriter(tmp_path)
        model, optimizer = column(), keras.optimizers.SGD()
        with pytest.raises(EnoughSteps):
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(X, training=True))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen = read_close_up(tmp_path, 0)
    assert seen is not None and seen.gradients(1)


def test_calls_of_an_optimizer_belong_to_the_step_whose_gradients_they_get(tensorflow: Any) -> None:
    with watched(close_up=((1, 9),)) as observer:
        model = column()
        kernel, bias = model.trainable_variables
        first, second, twice = (keras.optimizers.SGD(0.1) for _ in range(3))
        for both in (True, False):
            with tf.GradientTape() as tape:
                loss = own_loss(Y[:, None], model(X, training=True))
            gradients = tape.gradient(loss, [kernel, bias])
            if both:  # each optimizer has a part of one step
                first.apply_gradients([(gradients[0], kernel)])
                second.apply_gradients([(gradients[1], bias)])
            else:
                for _ in range(2):
                    twice.apply_gradients(zip(gradients, [kernel, bias], strict=True))
    seen = observer.seen(0)
    assert seen is not None
    assert seen.gradients(1).keys() == {0, 1}
    assert [seen.calls(step) for step in (1, 2)] == [1, 2]


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_random_numbers_belong_to_the_step_that_they_are_drawn_for(
    tensorflow: Any, tmp_path: Path, graph: bool
) -> None:
    writer = TraceWriter(tmp_path / "drawn")
    with watched(close_up=((1, 9),)) as observer:
        watch_reports(observer, writer, Settings("", "", "", ""))
        model, optimizer = column(), keras.optimizers.SGD(0.1)

        def step(x: Any) -> Any:
            noise = tf.random.normal(tf.shape(x))
            with tf.GradientTape() as tape:
                loss = own_loss(Y[:, None], model(x + noise, training=True)) * (1 + tf.random.uniform([]))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return noise

        tf.random.set_seed(0)
        train = tf.function(step) if graph else step
        drawn = [row_hashes([np.asarray(train(tf.constant(X)))[None]]) for _ in range(2)]
        next(iter(tf.data.Dataset.range(2).map(lambda i: tf.random.normal([]))))
    seen = observer.seen(0)
    assert seen is not None and writer.drawn["tf.random.uniform"] == ["graph" if graph else "eager"]
    for number, rows in enumerate(drawn, start=1):
        normal, uniform = seen.of(number, "drawn")
        assert (normal.rows, uniform.info["name"]) == (rows, "tf.random.uniform")
        kinds = [each.kind for each in seen.steps[number]]
        assert kinds.index("drawn") < kinds.index("inputs") < kinds.index("drawn", 1) < kinds.index("loss")


def test_gradients_are_known_by_their_name_in_any_order(tensorflow: Any) -> None:
    told = []
    with watched(close_up=((1, 1),)) as observer:
        observer.updates.on_update = lambda *given: told.append(given)
        weights, optimizer = tf.Variable([3.0]), keras.optimizers.SGD(0.5)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights**2)
        gradients = tape.gradient(loss, [weights])
        optimizer.apply(trainable_variables=[weights], grads=gradients)
    seen = observer.seen(0)
    assert seen is not None and [each.tolist() for each in seen.arrays(1, "gradients")] == [0.5, [6.0]]
    assert told == [(optimizer, gradients, [weights])]


class WithoutInit(keras.layers.Layer):
    """Its parameters are those of ``Layer``."""


class WithInit(keras.layers.Layer):
    def __init__(self, given: int) -> None:
        super().__init__()
        self.given = given


def test_the_line_that_makes_a_layer_is_known(tensorflow: Any) -> None:
    with watched():
        model = keras.Sequential([
            WithoutInit(name="a"),
            WithInit(3),
            keras.layers.Dropout(0.5),
        ])  # fmt: skip
    layers = layers_of(model, made=MADE_AT)
    assert {each["made"][0] for each in layers} == {__file__}
    assert [each["made"][2] for each in layers] == [
        'WithoutInit(name="a"),',
        "WithInit(3),",
        "keras.layers.Dropout(0.5),",
    ]
    assert layers[1]["config"]["given"] == 3, "Keras's own configuration is as it is without being watched"


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_a_model_that_is_loaded_is_compiled_as_it_was(tensorflow: Any, tmp_path: Path) -> None:
    """Keras compiles none whose class has another compile than its own."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    with undone():
        make_alike(Settings("a.py", "a.py", str(tmp_path), str(tmp_path), own=tuple(MADE_ALIKE)))
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.compiled and type(loaded.optimizer).__name__ == "SGD"


def test_an_initializer_takes_no_seed_from_the_layers(tensorflow: Any) -> None:
    seeds = []
    with undone():
        _seeds_by_creation()
        for before in (False, True):
            if before:
                keras.initializers.TruncatedNormal()
            seeds.append(keras.layers.Dropout(0.5).seed_generator.state.numpy()[0])
    assert seeds[1] == seeds[0] + 1


@pytest.mark.parametrize("dense", [False, True])
def test_gradients_that_an_optimizer_is_given_as_rows_are_seen(tensorflow: Any, dense: bool) -> None:
    with watched(close_up=((1, 9),)) as observer:
        table, optimizer = tf.Variable(tf.ones((3, 2))), keras.optimizers.SGD(0.1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 1]))
        gradient = tape.gradient(loss, table)
        optimizer.apply([tf.convert_to_tensor(gradient) if dense else gradient], [table])
    seen = observer.seen(0)
    assert seen is not None and [each.info["in_rows"] for each in seen.of(1, "gradients")] == [[] if dense else [0]]


def test_how_often_a_layer_has_drawn_before_a_step_is_recorded(tensorflow: Any) -> None:
    with watched(close_up=((1, 9),)) as observer:
        model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        for again in (0, 2, 0):
            with tf.GradientTape() as tape:
                loss = own_loss(Y[:, None], model(X, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            for _ in range(again):
                model(X, training=True)
    seen = observer.seen(0)
    assert seen is not None and seen.of(1, "seeds")[0].info["layers"] == [model.layers[0].name]
    assert [int(seen.arrays(step, "seeds")[0][-1]) for step in (1, 2, 3)] == [0, 1, 4]


def test_a_model_that_is_called_again_after_its_update_is_seen(tensorflow: Any) -> None:
    with watched(close_up=((1, 9),), losses_only=True) as observer:
        model, optimizer, loss_fn = column(), keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()
        for again in (X, X[::-1]):
            with tf.GradientTape() as tape:
                loss = loss_fn(Y[:, None], model(X, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            model(again)
    seen = observer.seen(0)
    assert seen is not None and list(seen.again) == [1], "the second call has the rows in another order"
    assert [len(array) for array in seen.arrays(1, "targets")[:2]] == [4, 4], "labels of one column are kept"


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("start", [1, 2])
def test_a_twin_of_layers_in_half_precision_is_moved_by_their_rounding_during_steps_only(
    tensorflow: Any, graph: bool, start: int
) -> None:
    moved, kept = [], []
    with watched(nudge=Nudge(start, 1)) as observer:
        layer = keras.layers.Dense(1, dtype="mixed_bfloat16", kernel_initializer="ones")
        model, optimizer = keras.Sequential([keras.Input((2,)), layer]), keras.optimizers.SGD(0.0)

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True))
                during = layer.kernel.value + 0.0
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return during

        train = tf.function(step) if graph else step
        for _ in range(3):
            moved.append(float(np.abs(np.asarray(train(tf.constant(X))) - 1).max()))
            kept.append(float(np.abs(np.asarray(layer.kernel) - 1).max()))
    assert observer.trainings[0].steps == 3
    unit = UNIT["bfloat16"]
    assert [0.4 * unit < each < 2 * unit for each in moved] == [step >= start for step in (1, 2, 3)], moved
    assert max(kept) < 10 * UNIT["float32"]


def test_what_metrics_are_given_is_recorded(tensorflow: Any, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    with watched(close_up=((1, 9),)) as observer:
        watch_reports(observer, writer, Settings("", "", "", ""))
        model = column()
        model.compile("sgd", "mse", metrics=["accuracy"])
        model.train_on_batch(X, Y)
        keras.metrics.CategoricalAccuracy(name="mine").update_state(Y[:, None], np.ones((4, 3)))
        keras.metrics.MeanMetricWrapper(keras.metrics.categorical_accuracy, "w").update_state(
            Y[:, None], np.ones((4, 1))
        )
    found = [(each.name, each.kind, each.by_fit, each.predicted[-1]) for each in writer.measured]
    of_fit, own = ("accuracy", "BinaryAccuracy", True, 1), ("mine", "CategoricalAccuracy", False, 3)
    assert found == [of_fit, own, ("w", "CategoricalAccuracy", False, 1)]


def test_the_noise_of_models_that_take_turns_begins_with_the_same_turn() -> None:
    rows = [np.zeros(steps + 1, step_dtype(1, 1)) for steps in (24, 8)]
    for each in rows:
        each["step"] = range(len(each))
    traces = [Trace((), 1, each, number=i) for i, each in enumerate(rows)]
    models = [ModelPair(("fit", "loop"), (trace, trace), EpochEnds()) for trace in traces]
    session: Any = SimpleNamespace(models=models)
    for model, start, others in ((models[1], 4, {0: 10}), (models[0], 10, {1: 4}), (models[0], 1, {1: 1})):
        nudge = ScriptsSession.nudge(session, model, start, 2)
        number = model.traces[0].number
        assert {number: nudge.start_of(number), **others} == {i: nudge.start_of(i) for i in (0, 1)}
        assert (nudge.start_of(number), nudge.twin) == (start, 2)


def test_places_follow_the_epochs_of_fit() -> None:
    epochs = EpochEnds((16, 32))
    assert [epochs.place(step) for step in (1, 16, 17, 32, 33)] == [(1, 1), (1, 16), (2, 1), (2, 16), (3, 1)]
    assert [epochs.step(place) for place in ((1, 1), (1, 16), (2, 1), (2, -1), (3, 1))] == [1, 16, 17, 32, 33]
    assert EpochEnds().place(40) == (1, 40)


def test_scripts_are_started_before_what_draws_is_imported() -> None:
    code = "import sys, compare.app.scripts; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_report_does_nothing_outside(tmp_path: Path) -> None:
    code = "import sys, compare; compare.report(1, loss=0.5); print(*(set(sys.modules) & {'tensorflow', 'numpy'}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", ""), "it says nothing and imports nothing"
    assert not list(tmp_path.iterdir()), "and writes nothing"


@pytest.mark.parametrize("name", ['a"""\nraise SystemExit\n"""b.py', "a\nraise SystemExit\n.py", "a\\", "a b.py"])
def test_a_scripts_name_ends_up_as_text_in_the_experiment(tensorflow: Any, tmp_path: Path, name: str) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    file = tmp_path / f"my {name}"
    write_experiment(file, name, model, {})
    code = ast.parse(file.read_text())
    assert not [node for node in ast.walk(code) if isinstance(node, ast.Name) and node.id == "SystemExit"]
    assert "--experiment 'my a" in (ast.get_docstring(code) or "")


def test_an_experiment_is_written_from_what_fit_was_given(tensorflow: Any, tmp_path: Path) -> None:
    file = tmp_path / "my_task.py"
    compared(tmp_path, "my_fit.py", "my_loop.py", max_steps=2, write_experiment=file)
    written: dict[str, Any] = {"__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), written)
    experiment = written["experiment"]
    (x, y), (x_val, _) = experiment.load_data()
    assert (x.shape, y.shape, x_val.shape) == ((1000, 20), (1000,), (200, 20))
    model = experiment.build_model()
    assert [type(layer).__name__ for layer in model.layers] == ["Dense", "Dropout", "BatchNormalization", "Dense"]
    assert model.layers[0].kernel_regularizer is not None
    assert isinstance(experiment.build_optimizer(), keras.optimizers.Adam)
    assert experiment.build_loss().get_config()["from_logits"]
    assert [metric.name for metric in experiment.build_metrics()] == ["accuracy"]
    assert not re.findall("TODO: return", file.read_text())


def test_an_experiment_has_the_object_of_a_loss_that_compile_names_and_the_weights_of_classes(
    tensorflow: Any, tmp_path: Path
) -> None:
    model, file = keras.Sequential([keras.layers.Dense(1)]), tmp_path / "task.py"
    for named in ("mse", "kl_divergence"):
        model.compile("sgd", named)
        write_experiment(file, "fit.py", model, {"class_weight": {0: 1.0, 1: 5.0}})
        written: dict[str, Any] = {"__file__": str(file)}
        exec(compile(file.read_text(), str(file), "exec"), written)
        loss = written["experiment"].build_loss()
        assert isinstance(loss, keras.losses.Loss) and loss.fn is keras.losses.get(named)
        assert written["experiment"].class_weight == {0: 1.0, 1: 5.0}


def test_the_verdict_of_a_dead_process_is_none(tmp_path: Path) -> None:
    with ScriptRunner() as runner:
        for server in runner._servers.values():
            server.kill()
            server.wait()
        with pytest.raises(NoVerdictError, match="the process that runs the scripts was killed"):
            runner.start(Settings("a.py", "a.py", str(tmp_path / "t"), str(tmp_path / "i")), tmp_path / "a.log")


def test_what_is_recorded_is_json(tmp_path: Path) -> None:
    settings = Settings("a.py", "a.py", "f", "i", arguments=("--lr", "1"), own=("seeds",), close_up=((3, 4),))
    settings.write(tmp_path / "settings.json")
    assert Settings.read(tmp_path / "settings.json") == settings
    assert json.loads((tmp_path / "settings.json").read_text())["close_up"] == [[3, 4]]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["eager", "metrics", "losses"])
def test_the_loops_of_keras_guide_train_like_fit(tmp_path: Path, which: str) -> None:
    _, entry = compared(tmp_path, "guide_fit.py", "guide.py", script_arguments=[which])
    assert entry["training"]["verdict"] in ("identical", "alike") and entry["causes"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "step"), [(None, 94), (2, 47)])
def test_the_tutorial_diverges_at_its_short_batch(tmp_path: Path, replicas: int | None, step: int) -> None:
    _, entry = compared(tmp_path, "tutorial_fit.py", "tutorial.py", replicas=replicas)
    first = entry["training"]["first_difference"]
    assert (entry["verdict"], first["epoch"], first["step"], first["stage"]) == ("different", 1, step, "loss")
    assert [cause["id"] for cause in entry["causes"]] == ["loss-constant-denominator"]
