"""Whatever is asked for wrongly: one line on stderr with what is wrong, exit 2, and nothing touched."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from user_files import LOOP, TASK

import compare
from compare.app.cli import main
from compare.engine.data import SAMPLE_FOLDER
from compare.errors import RequestError
from compare.records.files import read_checked, write_checked

FOLDER = "{folder}"
"""Stands for the folder of a test in the table below; there are task.py, loop.py and reports/old, a run."""
MY_TASK = ["--experiment", f"{FOLDER}/task.py"]
MY_LOOP = [*MY_TASK, "--trainers", "fit", f"{FOLDER}/loop.py:MyLoop"]


def task(old: str, new: str) -> Callable[[Path], None]:
    """Makes a mistake in the user's experiment."""
    return lambda folder: edit(folder / "task.py", old, new)


def field(text: str) -> Callable[[Path], None]:
    """Gives the user's experiment one more field."""
    return task("    build_loss=build_loss,", f"    build_loss=build_loss,\n    {text},")


def loop(old: str, new: str) -> Callable[[Path], None]:
    """Makes a mistake in the user's loop."""
    return lambda folder: edit(folder / "loop.py", old, new)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def run_json(**changes: object) -> Callable[[Path], None]:
    """Changes what the old run's request says."""

    def make(folder: Path) -> None:
        path = folder / "reports" / "old" / "run.json"
        content = read_checked(path, 2) | {"status": "training"}
        content["options"] |= changes
        write_checked(path, content)

    return make


def unfinished(folder: Path) -> None:
    """Makes the old run's loop one that has not ended."""
    path = folder / "reports" / "old" / "records" / "loop-seed0.json"
    write_checked(path, {name: value for name, value in read_checked(path, 2).items() if name != "end"})


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Puts a file into the test's folder."""

    def make(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def data(name: str, change: Callable[[bytes], bytes] | None) -> Callable[[Path], None]:
    """A data folder of which one file is damaged, or is not there."""

    def make(folder: Path) -> None:
        shutil.copytree(SAMPLE_FOLDER, folder / "data")
        path = folder / "data" / f"{name}.gz"
        content = path.read_bytes()
        path.unlink()
        if change is not None:
            path.write_bytes(change(content))

    return make


def nothing(folder: Path) -> None:
    pass


DATA = ["--experiment", "fashion-mnist", "--data-dir", f"{FOLDER}/data"]
OLD = ["--experiment", f"{FOLDER}/task.py", "--strategy", "default", "--epochs", "1", "--name", "old"]
AGAINST_OLD = [*OLD[:-2], "--baseline", f"{FOLDER}/reports/old"]
LONG = "x" * 5000
"""Longer than any file's name."""
CLUSTER = ["--strategy", "multi-worker"]

TABLE: list[tuple[list[str], Callable[[Path], None], str]] = [
    # Options.
    (["--epochs", "0"], nothing, "from 1 to"),
    (["--epochs", "2147483648", *MY_TASK], nothing, "from 1 to"),
    *((["--epochs", each], nothing, "give a whole number") for each in ("two", "1_0", "\u0662", " 1 ")),
    (["--name", "  "], nothing, "give a plain folder name"),
    (["--epochs", "9" * 5000], nothing, "9… give a whole number"),
    (["--epochs"], nothing, "see --help"),
    (["--epoch", "2"], nothing, "see --help"),
    (["extra"], nothing, "no such subcommand"),
    (["--batch-size", "-3"], nothing, "from 1 to"),
    (["--seed", "-1"], nothing, "from 0 to"),
    (["--seed", "4294967295", "--seeds", "2"], nothing, "the largest seed is"),
    (["--seeds", "0"], nothing, "from 1 to"),
    (["--replicas", "0"], nothing, "from 1 to"),
    (["--replicas", "99", *MY_TASK], nothing, "configure"),
    (["--replicas", "100000"], nothing, "from 1 to 256"),
    (["--replicas", "4", "--batch-size", "11", *MY_TASK], nothing, "use a --batch-size of at most 10"),
    (["--epochs", "1000000000"], nothing, "from 1 to 1000000"),
    (["--batch-size", "9" * 30], nothing, "from 1 to 2147483647"),
    (["--batch-size", "2147483647", *MY_TASK], nothing, "use a --batch-size of at most"),
    (["--train-examples", "9" * 30, *MY_TASK], nothing, "from 1 to"),
    (["--seeds", "1000000000"], nothing, "from 1 to 10000"),
    (["--seeds", "2", "--jobs", "100000"], nothing, "give at most"),
    ([*CLUSTER, "--workers", "100000"], nothing, "give at most"),
    (["--strategy", "parameter-server", "--parameter-servers", "100000"], nothing, "give at most"),
    (["--strategy", "default", "--steps-per-execution", "5", *MY_TASK], nothing, "use at most 4"),
    (["--strategy", "default", "--steps-per-execution", "9" * 30, *MY_TASK], nothing, "from 1 to"),
    (["--strategy", "mirrord"], nothing, "there are default"),
    (["--strategy", "default", "--replicas", "2"], nothing, "use --strategy mirrored"),
    (["--strategy", "multi-worker", "--replicas", "2"], nothing, "use --workers"),
    (["--workers", "2"], nothing, "use --replicas"),
    (["--parameter-servers", "1"], nothing, "parameter-server only"),
    (["--keras", "4"], nothing, "there are 3 and 2"),
    (["--keras", "2", *MY_TASK], nothing, "set TF_USE_LEGACY_KERAS=1"),
    (["--trainers", "fit"], nothing, "at least one candidate"),
    (["--trainers", "fit", "lop"], nothing, "there are fit, loop, train-step, tutorial"),
    (["--trainers", "fit", "os:getcwd"], nothing, "name"),
    (["--experiment", "mnist"], nothing, "FILE.py[:ATTR]"),
    (["--experiment", f"{FOLDER}/task.py:"], nothing, "FILE.py[:ATTR]"),
    (["--reports", "", *MY_TASK], nothing, "give a folder"),
    (["--margin", "val_loss=0.1"], nothing, "add --seeds N"),
    (["--margin", "val_loss", "--seeds", "2"], nothing, "give METRIC=VALUE"),
    (
        [*MY_TASK, "--seeds", "2", "--margin", "accuracy=1", "nosuch=1"],
        nothing,
        "--margin nosuch=1: fit reports no nosuch, but loss, accuracy, val_loss, val_accuracy",
    ),
    (["--jobs", "2"], nothing, "add --seeds N"),
    (["--jobs", "0", "--seeds", "2"], nothing, "at least 1"),
    (["--backend", "slurm", "--seeds", "2"], nothing, "there are local, dask"),
    (["--backend", "dask", "--seeds", "2"], nothing, "go together"),
    (["--check", "--seeds", "2"], nothing, "leave it out"),
    (["--check", "--resume"], nothing, "no meaning in a short check"),
    (["check", "--export"], nothing, "no meaning in a short check"),
    (["check", "--epochs", "3"], nothing, "--epochs has no meaning in a short check"),
    (["--tensorboard", "--check"], nothing, "--tensorboard has no meaning in a short check"),
    (["--export", "--seeds", "2"], nothing, "no meaning in a study"),
    (["--checkpoint-every", "-1"], nothing, "at least 0"),
    (["--keep-checkpoints", "0"], nothing, "at least 1"),
    (["--train-examples", "0"], nothing, "at least 1"),
    (["--train-examples", "41", *MY_TASK], nothing, "has 40 training examples"),
    (["--batch-size", "64", *MY_TASK], nothing, "--batch-size"),
    (["--name", "../out"], nothing, "give a plain folder name"),
    (["--name", ".."], nothing, "give a plain folder name"),
    (["--name", "index.html"], nothing, "it is the name of a page beside the runs"),
    # A user's experiment.
    (["--experiment", f"{FOLDER}/gone.py"], nothing, "gone.py"),
    (["--experiment", f"{FOLDER}/task.py:other"], nothing, "it has experiment"),
    (MY_TASK, task("import numpy as np", "import numpy as"), "line 1"),
    (MY_TASK, task("import numpy as np", "import nunpy as np"), "nunpy"),
    (MY_TASK, task("    build_loss=build_loss,\n", ""), "build_loss"),
    (MY_TASK, task("experiment = compare.Experiment", "experiment = dict"), "not a compare.Experiment"),
    (MY_TASK, task("return (x[:40], y[:40]),", "return (x[:40], y[:30]),"), "30, 40 examples"),
    (MY_TASK, task("return (x[:40], y[:40]), (x[40:], y[40:])", "return None"), "load_data must return"),
    (
        MY_TASK,
        task("return (x[:40], y", "return (np.broadcast_to(x[0], (10**14, *x[0].shape)), y"),
        "): there is no memory for a copy of the training data (Unable to allocate",
    ),
    (MY_TASK, task("layers.Dense(2)", "layers.Dens(2)"), "build_model raised"),
    (MY_TASK, task("layers.Dense(2)", "layers.Flatten()"), "to train"),
    (MY_TASK, task("return tf.keras.optimizers.SGD(0.1)", "return None"), "it must return a tf.keras.optimizers"),
    ([*MY_TASK, "--data-dir", FOLDER], nothing, "built-in experiments"),
    (MY_TASK, task('name="task"', "name=7"), "the experiment's name is 7: give a text"),
    (MY_TASK, task('name="task"', "name='a\\x1b[0m'"), "name is 'a\\x1b[0m': give a text in one printable line"),
    (MY_TASK, field("class_weight=[1]"), "class_weight is [1]: give a dict"),
    (MY_TASK, field("class_weight={'a': 1}"), "class_weight is {'a': 1}: give a dict"),
    (MY_TASK, field("class_weight={0: 1e999}"), "class_weight is {0: inf}: give a dict"),
    (MY_TASK, field("class_weight={}"), "class_weight is {}: give a dict"),
    (MY_TASK, field("loss_weights='x'"), "loss_weights is 'x': give numbers"),
    (MY_TASK, field("loss_weights=[1.0, 2.0]"), "on the training data: "),
    (MY_TASK, field("loss_weights={1.0, 2.0}"), "loss_weights is {1.0, 2.0}: give numbers"),
    (MY_TASK, field("notes='two'"), "notes is 'two': give a tuple of texts"),
    # A user's loop.
    ([*MY_TASK, "--trainers", "fit", f"{FOLDER}/gone.py:MyLoop"], nothing, "gone.py"),
    ([*MY_TASK, "--trainers", "fit", f"{FOLDER}/loop.py"], nothing, "name the trainer after a colon"),
    ([*MY_TASK, "--trainers", "fit", f"{FOLDER}/loop.py:Other"], nothing, "has no 'Other'"),
    (MY_LOOP, loop("import tensorflow as tf", "import tensorflow as"), "line 1"),
    (MY_LOOP, loop('    name = "my-loop"\n', ""), "name"),
    (MY_LOOP, loop("def train(self, run)", "def fit(self, run)"), "train"),
    (MY_LOOP, loop("class MyLoop:", "class MyLoop:\n    def __init__(self, x):\n        pass\n"), "MyLoop"),
    # Data files.
    (DATA, data("train-images-idx3-ubyte", None), "train-images-idx3-ubyte"),
    (DATA, data("t10k-labels-idx1-ubyte", None), "t10k-labels-idx1-ubyte"),
    (DATA, data("train-images-idx3-ubyte", lambda content: content[: len(content) // 2]), "with an intact copy"),
    (DATA, data("train-images-idx3-ubyte", lambda content: b"no gzip"), "with an intact copy"),
    (DATA, data("train-images-idx3-ubyte", lambda content: gzip.compress(b"x" * 1008)), "with an intact copy"),
    (DATA, data("train-images-idx3-ubyte", lambda content: content), "with an intact copy"),  # a sample of it
    (DATA, nothing, "/data"),
    (DATA, written("data", "a file"), "/data"),
    # Run folders.
    (OLD, nothing, "exists and is not overwritten"),
    ([*OLD[:-1], "new", "--resume"], nothing, "no run has begun"),
    ([*OLD, "--resume"], written("reports/old/run.json", "{"), "cannot be read as JSON"),
    (
        [*OLD, "--resume"],
        written("reports/old/run.json", "[]"),
        "damaged, it is not a JSON object; restore it",
    ),
    ([*OLD, "--resume"], run_json(seed=5), "the run began with --seed 5"),
    (
        [*OLD, "--train-examples", "9", "--resume"],
        run_json(),
        "the run began without --train-examples, this request has 9",
    ),
    ([*OLD, "--resume"], run_json(trainers=["fit", "tutorial"]), "the run began with --trainers"),
    (
        AGAINST_OLD,
        written("reports/old/records/x-seed0.json", "{"),
        "x-seed0.json: cannot be read as JSON",
    ),
    (AGAINST_OLD, run_json(scripts=["a.py"]), "it compares scripts; give the folder of a comparison of trainers"),
    (AGAINST_OLD, run_json(logs=["a.csv", "b.csv"]), "it compares logs; give"),
    (
        [*AGAINST_OLD, "--trainers", "train-step", "tutorial"],
        nothing,
        "its trainers are fit and loop, here train-step and tutorial: only the same names are compared",
    ),
    ([*AGAINST_OLD, "--seed", "5"], nothing, "it has trained with seed 0, not 5: give --seed 0"),
    ([*AGAINST_OLD, "--seeds", "2"], nothing, "it has trained with seed 0, not 1: give --seed 0 --seeds 1"),
    ([*MY_TASK, "--replicas", "2", "2"], nothing, "--replicas 2 2: give two numbers that are not the same"),
    ([*AGAINST_OLD, "--epochs", "2"], nothing, "it has trained for 1 epoch(s), not 2: give --epochs 1"),
    ([*AGAINST_OLD, "--batch-size", "5"], nothing, "its global batch has 10 examples, not 5"),
    (
        [*AGAINST_OLD, "--train-examples", "30"],
        nothing,
        "it has trained all examples, not the first 30 examples",
    ),
    (AGAINST_OLD, task("default_rng(0)", "default_rng(1)"), "some of its 40 training examples differ from"),
    (
        AGAINST_OLD,
        task("layers.Dense(2)", "layers.Dense(2, use_bias=False)"),
        "this run's layer 1 (Dense) has use_bias=False",
    ),
    (AGAINST_OLD, unfinished, "its loop has not finished: continue it with --resume, or leave loop out here"),
    (["--baseline", f"{FOLDER}/reports/none"], nothing, "a folder with a metrics.csv"),
    (["--baseline", LONG], nothing, "a folder with a metrics.csv"),
    (["--experiment", f"{LONG}.py"], nothing, "there is no such file"),
    (["--experiment", f"{FOLDER}/folder.py"], lambda folder: (folder / "folder.py").mkdir(), "is a folder: give"),
    (["--reports", f"{FOLDER}/task.py"], nothing, "cannot be written there"),
]


@pytest.fixture(scope="module")
def before(tensorflow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a right experiment, a right loop and a run of them."""
    folder = tmp_path_factory.mktemp("before")
    (folder / "task.py").write_text(TASK)
    (folder / "loop.py").write_text(LOOP)
    arguments = [argument.replace(FOLDER, str(folder)) for argument in OLD]
    assert main([*arguments, "--batch-size", "10", "--reports", str(folder / "reports"), "--quiet"]) == 0
    return folder


NOT_COMPARABLE = "some of its 40 training examples differ from", "this run's layer 1 (Dense) has use_bias=False"
"""What is no fault of the request: the recorded run is of another task by now."""


def test_there_are_enough() -> None:
    assert len(TABLE) >= 50


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.parametrize(
    ("arguments", "make", "told"),
    TABLE,
    ids=[" ".join(row[0])[:200].replace(FOLDER, "") + f": {row[2]}" for row in TABLE],
)
def test_a_bad_request(before, tmp_path, capfd, arguments, make, told) -> None:
    folder = tmp_path / "here"
    shutil.copytree(before, folder)
    task = folder / "task.py"  # which names files in full, as run.json does
    task.write_text(task.read_text().replace(str(before), str(folder)))
    run = folder / "reports" / "old" / "run.json"
    write_checked(run, json.loads(json.dumps(read_checked(run, 2)).replace(str(before), str(folder))))
    make(folder)
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}
    given = [argument.replace(FOLDER, str(folder)) for argument in arguments]
    if "--reports" not in given:
        given += ["--reports", str(folder / "reports")]
    if "--batch-size" not in given:
        given += ["--batch-size", "10"]
    status = main(given)
    err = capfd.readouterr().err
    assert status == (3 if told in NOT_COMPARABLE else 2), err
    (line,) = err.splitlines()
    assert line.startswith("compare.py: ") and told in line and "Traceback" not in line
    left = {path for path in folder.rglob("*") if path.is_file() and path.name != ".lock" and path.suffix != ".pyc"}
    assert left == set(files), "nothing is left behind"
    assert {path: path.read_bytes() for path in files} == files, "nothing is changed"


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0.5}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1e999}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": ["worker"], "index": 0}}',
        '{"cluster": {"worker": ["a:1"], "boss": ["b:1"]}, "task": {"type": "boss", "index": 0}}',
        '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": {"0": "a:1"}}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:0"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:65536"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:x"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": [1]}, "task": {"type": "worker", "index": 0}}',
        pytest.param("[" * 100_000, id="nested"),
        "\x1b[2J\udcff",
        "null",
        "5",
    ],
)
@pytest.mark.parametrize("request_", [CLUSTER, ["--strategy", "default"], ["--check"], ["--scripts", "a.py"]])
def test_a_bad_tf_config(tmp_path, capfd, monkeypatch, config, request_) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    assert main([*request_, "--reports", str(tmp_path / "reports")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "TF_CONFIG" in line and "\x1b" not in line and not (tmp_path / "reports").exists()


def test_a_bad_tf_config_is_refused_in_python_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(RequestError, match="TF_CONFIG"):
        compare.run(scripts=("a.py",), reports=tmp_path)
    assert not list(tmp_path.iterdir())
