"""Whoever trains in a script is seen, or what was not seen is said: other threads, forks, the end, an own optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.app import cli
from compare.app.script_runs import ScriptRun, ScriptRunner
from compare.records.files import read_json
from compare.watch.settings import Settings
from compare.watch.trace import UNSEEN, UNTRAINED, read_traces

TASK = """
import atexit, multiprocessing, os, sys, threading, time
import keras
import numpy as np
import tensorflow as tf

x = np.ones((12, 4), "float32")

def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

def train(optimizer=None, model=None):
    model, optimizer = model or build(), optimizer or keras.optimizers.SGD(0.1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for i in range(3):
        step(x[4 * i : 4 * i + 4])

class Own(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        for grad, variable in zip(grads, trainable_variables):
            variable.assign_sub(0.1 * grad)
        self.iterations.assign_add(1)

class Pairs(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        Own.apply(self, *zip(*grads_and_vars))

class Named(keras.optimizers.SGD):
    def apply(self, gradients, weights):
        super().apply(gradients, weights)

    def apply_gradients(self, pairs, **options):
        gradients, weights = zip(*pairs)
        self.apply(weights=iter(weights), gradients=gradients) if options else self.apply(gradients, weights=weights)

class Skips(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        if tf.reduce_all([tf.reduce_all(tf.math.is_finite(grad)) for grad, _ in pairs]):
            self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])

class Uncounted(Own):
    def apply(self, grads):
        for grad, variable in zip(grads, self.trained):
            variable.assign_sub(0.1 * grad)

    def apply_gradients(self, grads_and_vars):
        grads, self.trained = zip(*grads_and_vars)
        self.apply(grads)

def within(strategy):
    with strategy.scope():
        model, optimizer = build(), keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    strategy.run(tf.function(lambda: optimizer.apply([tf.ones((4, 1)), tf.ones(1)], model.trainable_variables)))

def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()
"""
UNSEEN_THERE = {
    "thread": "in_thread(train)",
    "forgotten": "threading.Thread(target=train).start()",
    "replicas in a thread": "in_thread(within, tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1']))",
    "pool": "multiprocessing.get_context('fork').Pool(2).map(train, [None, None])",
    "fork": "child = os.fork()\ntrain()\nchild and os.waitpid(child, 0)",
    "stuck": "train()\nchild = os.fork()\nchild or build().fit\ntrain() if not child else os.waitpid(child, 0)",
}
SEEN_THERE = {
    "apply": "train(Own())",
    "pairs": "train(Pairs())",
    "names": "train(Named())",
    "skips": "train(Skips())",
    "atexit": "atexit.register(train)",
    "harmless": "in_thread(print)\nif os.fork() == 0:\n    os._exit(0)\ntrain()\nsys.stdout.close()",
    "child that fails": "child = os.fork()\nif not child:\n    raise ValueError\nos.waitpid(child, 0)\ntrain()",
    "forks at its end": "train()\nchild = os.fork()\nif not child:\n    sys.exit(0)\nos.waitpid(child, 0)",
    "replicas": "for _ in range(3):\n    within(tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1']))",
}


def unseen(run: ScriptRun) -> str:
    path = run.folder / UNSEEN
    return read_json(path) if path.exists() else ""


def test_all_who_train_are_seen_or_it_is_said_that_they_are_not(tmp_path: Path) -> None:
    codes = {**UNSEEN_THERE, **SEEN_THERE, "uncounted": "train(Uncounted())"}
    with ScriptRunner() as runner:
        runs = {}
        for number, (name, code) in enumerate(codes.items()):
            script = tmp_path / f"{number}.py"
            script.write_text(f"{TASK}\n{code}\n")
            folders = str(tmp_path / f"{number}"), str(tmp_path / f"initial{number}")
            settings = Settings(str(script), str(script), *folders, replicas=2)
            runs[name] = runner.start(settings, tmp_path / f"{number}.log")
        there = [runs[name] for name in UNSEEN_THERE]
        while any(run.status is None and not unseen(run) for run in there):
            runner._hear()
        runner.end(there)  # some of them wait for ever
        runner.wait(list(runs.values()))
    told = [("thread" in unseen(run), "forks" in unseen(run)) for run in there]
    assert told == [(True, False)] * 3 + [(False, True)] * 3
    for name in SEEN_THERE:
        run = runs[name]
        assert (run.status, unseen(run)) == (0, ""), (name, run.log.read_text())
        traces = [trace for trace in read_traces(run.folder) if not trace.state]
        assert sum(trace.last for trace in traces) == 3, name
        assert all(len(set(trace.steps["step"])) == len(trace.steps) for trace in traces), (name, "each step once")
    assert read_json(runs["uncounted"].folder / UNTRAINED) == {
        "models": [],
        "optimizers": ["Uncounted"],
        "further": [],
        "gradients": [],
        "by_hand": [],
    }


@pytest.mark.parametrize(("steps", "status"), [(3, 0), (2, 3)])
def test_a_script_that_fails_is_compared_if_it_has_made_all_steps(
    steps: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = TASK.replace("range(3)", f"range({steps})")
    for name, code in (("one", f"{TASK}\ntrain()\n"), ("two", f"{few}\ntrain()\nprint(1 / 0)\n")):
        (tmp_path / f"{name}.py").write_text(code)
    scripts = [str(tmp_path / f"{name}.py") for name in ("one", "two")]
    assert cli.main(["--scripts", *scripts, "--reports", str(tmp_path / "r")]) == status
    told = capsys.readouterr()
    if status == 0:
        assert "Note: two failed after its last step: ZeroDivisionError" in told.out and "identical: two" in told.out
        assert "failed after its last step" in next((tmp_path / "r").glob("*/report.html")).read_text()
    else:
        assert "two.py failed: ZeroDivisionError" in told.err


EDITED_ONCE = "import mine, os; os.path.getsize(mine.__file__) or open(mine.__file__, 'w').write('#')"


@pytest.mark.parametrize(
    ("file", "changes"),
    [("two.py", "open(__file__, 'a').write('#')"), ("mine.py", EDITED_ONCE)],
    ids=["own", "imported"],
)
def test_a_script_that_changes_while_it_is_compared_is_not_run_again(
    file: str, changes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").touch()
    for name, more in (("one", "train()"), ("two", f"{changes}; train(keras.optimizers.SGD(0.2))")):
        (tmp_path / f"{name}.py").write_text(f"{TASK}\n{more}\n")
    scripts = [str(tmp_path / f"{name}.py") for name in ("one", "two")]
    assert cli.main(["--scripts", *scripts, "--reports", str(tmp_path / "r"), "--quiet"]) == 3
    error = capsys.readouterr().err
    assert error.endswith(f"{file} changed while it was compared: compare again\n") and error.count("\n") == 1


def test_what_is_not_seen_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("main", "train()"), ("pool", UNSEEN_THERE["pool"])):
        (tmp_path / f"{name}.py").write_text(f"{TASK}\n{code}\n")
    scripts = [str(tmp_path / f"{name}.py") for name in ("main", "pool")]
    assert cli.main(["--scripts", *scripts, "--reports", str(tmp_path / "r"), "--quiet"]) == 3
    error = capsys.readouterr().err
    assert "pool.py trains in a process that it forks" in error and error.count("\n") == 1
