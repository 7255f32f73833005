"""A user's loop is tried for two steps before a full training, without any effect on that training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from eager import Eager
from user_files import LOOP as ANY_LOOP
from user_files import TASK

import compare
from compare.app import cli

# At lines of its own: in one process TensorFlow takes equal code at equal lines for the same file's.
LOOP = "\n\n" + ANY_LOOP

STEPS_AND_VALIDATION = LOOP.replace(
    "            run.end_epoch(epoch, {})",
    """            for x, y in run.validation_dataset():
                model(x)
            run.end_epoch(epoch, {})""",
)
HELPER = "counts = []\n"
STATEFUL = (
    LOOP.replace("import tensorflow as tf", "import helper\nimport tensorflow as tf\n\nCALLS = []")
    .replace(
        "    def train(self, run):",
        """    seen = []

    def train(self, run):
        for kept in (CALLS, self.seen, helper.counts):
            kept.append(1)
        print("a line of mine")
        tf.config.run_functions_eagerly(True)""",
    )
    .replace("epoch, {}", "epoch, {'calls': len(CALLS) + len(self.seen) + len(helper.counts)}")
)
STATEFUL += "        tf.config.run_functions_eagerly(False)\n"
HARD_CODED = LOOP.replace(
    "            for x, y in run.train_dataset(epoch):\n                step",
    """            batches = iter(run.train_dataset(epoch))
            for _ in range(4):
                x, y = next(batches)
                step""",
)
FEW_STEPS_FAIL = LOOP.replace(
    "        for epoch in", "        assert int(run.train_dataset(1).cardinality()) == 4\n        for epoch in"
)


@pytest.fixture(autouse=True)
def tf(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from compare.app import trial

    monkeypatch.setattr(trial, "WORTH_IT", 8)
    return tensorflow


def command(folder: Path, loop: str, reference: Any = None, **options: Any) -> compare.Result:
    (folder / "trial_helper_task.py").write_text(TASK)
    (folder / "trial_loop.py").write_text(loop)
    (folder / "helper.py").write_text(HELPER)
    common: dict[str, Any] = {"strategy": "default", "epochs": 2, "batch_size": 10, "quiet": True, "name": "run"}
    trainers = (reference or Eager(), f"{folder / 'trial_loop.py'}:MyLoop")
    return compare.run(
        str(folder / "trial_helper_task.py"), trainers=trainers, reports=folder / "reports", **(common | options)
    )


class NeverTrains:
    name = "never-trains"

    def train(self, run: Any) -> None:
        pytest.fail("the reference was trained before the loop was tried")


class NotEager(Eager):
    def train(self, run: Any) -> None:
        import tensorflow as tf

        assert not tf.config.functions_run_eagerly(), "left by the trial"
        super().train(run)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tf.reduce_mean(", "tf.reduce_meen(", "AttributeError: module 'tensorflow' has no attribute 'reduce_meen'"),
        ("step(x, y)\n", "stepp(x, y)\n", "NameError: name 'stepp' is not defined"),
        ("model(x, training=True)", "model(x[:, :3], training=True)", "trainer my-loop fails in its first steps: "),
        ("                model(x)\n", "                modell(x)\n", "NameError: name 'modell' is not defined"),
        (
            "epoch, {}",
            "epoch, {'loss': None}",
            "takes a dict of metric name to float: loss is None, which is no number",
        ),
        ("epoch, {}", "epoch, {'loss': 10**400}", "takes a dict of metric name to float: loss is 1000"),
        ("epoch, {}", "float(epoch), {}", "end_epoch was called for 1.0, which is no whole number, but epoch 1 of"),
        ("run.end_step()", "run.end_step(0)", "end_step was called for 0 steps"),
    ],
)
def test_a_mistake_shows_before_any_training(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert STEPS_AND_VALIDATION.count(old) == 1
    loop = STEPS_AND_VALIDATION.replace(old, new)
    with pytest.raises(compare.RequestError) as caught:
        command(tmp_path, loop, NeverTrains())
    text = str(caught.value)
    line = 1 + loop[: loop.index(new.strip())].count("\n")
    assert told in text and "\n" not in text and f"{tmp_path / 'trial_loop.py'}, line {line}" in text
    assert not (tmp_path / "reports" / "run").exists()


@pytest.mark.parametrize("loop", [HARD_CODED, FEW_STEPS_FAIL], ids=["hard-coded", "few steps fail"])
def test_a_loop_that_needs_all_batches_is_not_refused(tmp_path: Path, loop: str) -> None:
    assert loop != LOOP and command(tmp_path, loop).verdict == "identical"


@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning")
def test_a_trial_changes_nothing(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from compare.app import trial

    tried = []
    failure = trial._failure
    monkeypatch.setattr(trial, "_failure", lambda *arguments: tried.append(1) or failure(*arguments))
    results = []
    for name, least in (("with", 8), ("without", 9)):
        monkeypatch.setattr(trial, "WORTH_IT", least)
        results.append(command(tmp_path, STATEFUL, NotEager(), name=name))
        sys.modules.pop("helper")
    assert tried == [1], "the second run is too short to be worth it"
    metrics = [result.metrics.drop(columns=["seconds", "examples_per_second"]) for result in results]
    assert metrics[0].equals(metrics[1]), "a module, a class and a neighbour keep nothing of the trial"
    assert set(metrics[0]["calls"].dropna()) == {3.0}
    assert [result.verdict for result in results] == ["identical", "identical"]
    digests = [(result.path / "run.json").read_text().partition("initial_weights_sha256")[2][:90] for result in results]
    assert digests[0] == digests[1] != ""
    assert capfd.readouterr().out.count("a line of mine") == 2, "one for each training"


def test_what_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compare.app import trial

    monkeypatch.setattr(trial, "_try", lambda *arguments: pytest.fail("tried"))
    monkeypatch.setattr(trial, "WORTH_IT", 9)
    command(tmp_path, LOOP, name="short")
    (tmp_path / "reports" / "short" / "verdict.json").unlink()
    monkeypatch.setattr(trial, "WORTH_IT", 0)
    command(tmp_path, LOOP, name="short", resume=True)
    experiment = str(tmp_path / "trial_helper_task.py")
    options: dict[str, Any] = {"strategy": "default", "epochs": 1, "batch_size": 20, "reports": tmp_path, "quiet": True}
    compare.run(experiment, trainers=("fit", "loop"), **options)
    compare.run(experiment, trainers=("fit", Eager()), **options)
    compare.run(experiment, trainers=(f"{tmp_path / 'trial_loop.py'}:MyLoop", "fit"), **options)


def test_an_interruption_of_a_trial_interrupts_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        command(tmp_path, LOOP.replace("step(x, y)\n", "raise KeyboardInterrupt\n"), NeverTrains())


def test_the_command_says_it_in_a_line(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "loop.py").write_text(LOOP.replace("step(x, y)\n", "stepp(x, y)\n"))
    request = ["--experiment", str(tmp_path / "task.py"), "--trainers", "fit", f"{tmp_path / 'loop.py'}:MyLoop"]
    request += ["--strategy", "default", "--batch-size", "2", "--reports", str(tmp_path / "reports"), "--quiet"]
    assert cli.main(request) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("compare.py: trainer my-loop fails in its first steps: NameError") and "line 21" in line
