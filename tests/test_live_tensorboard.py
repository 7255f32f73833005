"""``--tensorboard`` while a run is trained: what TensorBoard would show is there before the next epoch ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded
from forked import Commands

from compare.records.event_files import read_scalars
from compare.records.files import write_checked
from compare.records.metrics_csv import MetricsFile
from compare.records.model import EPOCH_END, BuildRecord, End, EpochRecord, StepRecord
from compare.records.recorder import Recorder
from compare.reporting import tensorboard
from compare.reporting.tensorboard import live_log

ROOT = Path(__file__).resolve().parents[1]
GAP = tensorboard.gap_tag("fit")
TASK = """
import os, time
from pathlib import Path

import numpy as np
import tensorflow as tf

import compare
from compare.records.event_files import read_scalars


def load_data():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(120, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return (x[:90], y[:90]), (x[90:], y[90:])


experiment = compare.Experiment(
    name="sign",
    load_data=load_data,
    build_model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(2)]),
    build_loss=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    build_optimizer=lambda: tf.keras.optimizers.SGD(0.1),
)


class Waits(compare.CustomLoop):
    name = "waits"

    def train(self, run):
        end = run.end_epoch

        def look_first(epoch, logs):
            for _ in range(200 if epoch == 2 else 0):
                found = read_scalars(Path(os.environ["LOG"]) / "waits")
                if 1 in found.get("epoch/loss", {}) and {1, 2} <= set(found.get("step/weights, gap to fit", {})):
                    break
                time.sleep(0.1)
            else:
                if epoch == 2:
                    raise RuntimeError("epoch 1 is not in the log")
            end(epoch, logs)

        run.end_epoch = look_first
        super().train(run)
"""


def fingerprint(epoch: int, step: int, off: float = 0.0) -> StepRecord:
    number = 10 * epoch + step
    return StepRecord(
        epoch, step, np.array([[number + 1000 * (off > 0)]], np.uint64), np.array([[number + off, number + off]])
    )


def feed(recorder: Recorder, epoch: int, off: float = 0.0, steps: int = 3) -> None:
    """An epoch of a training."""
    for step in range(1, steps + 1):
        recorder(fingerprint(epoch, step, off))
    recorder(fingerprint(epoch, EPOCH_END, off))
    weights = [np.zeros((1,), np.float32)]
    recorder(EpochRecord(epoch, {"loss": 1 / epoch}, 1.0, 10.0, weights))


def recorder_of(folder: Path, metrics: MetricsFile, name: str, live: Any) -> Recorder:
    made = Recorder(folder, metrics, name, 0, live(name, 0))
    made(BuildRecord((recorded.Variable("dense/kernel", (1,), "float32"),), 1))
    made(fingerprint(1, 0))
    return made


def test_gaps_appear_step_by_step_while_the_candidate_trains(tmp_path: Path) -> None:
    log, metrics = tmp_path / "tensorboard", MetricsFile(tmp_path / "metrics.csv")
    with live_log(tmp_path, ["fit", "loop"], 1, wanted=True) as live:
        fit = recorder_of(tmp_path, metrics, "fit", live)
        feed(fit, 1)
        assert read_scalars(log / "fit")["epoch/loss"] == {1: 1.0}  # before epoch 2
        feed(fit, 2)
        loop = recorder_of(tmp_path, metrics, "loop", live)
        feed(loop, 1)
        assert read_scalars(log / "loop")[GAP] == {1: 0.0, 2: 0.0, 3: 0.0}
        feed(loop, 2, off=0.5)
        for name, each in (("fit", fit), ("loop", loop)):
            each.end(End())
            assert set(read_scalars(log / name)[tensorboard.NORM]) == {1, 2, 3, 4, 5, 6}
    assert read_scalars(log / "loop")[GAP] == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.5, 5: 0.5, 6: 0.5}
    during = {name: read_scalars(log / name) for name in ("fit", "loop")}
    recorded.finish(tmp_path)
    tensorboard.write(tmp_path)
    assert {name: read_scalars(log / name) for name in ("fit", "loop")} == during  # as made from the files


def test_side_by_side_a_gap_waits_for_the_other_side(tmp_path: Path) -> None:
    log, metrics = tmp_path / "tensorboard", MetricsFile(tmp_path / "metrics.csv")
    with live_log(tmp_path, ["fit", "loop"], 1, wanted=True) as live:
        loop, fit = (recorder_of(tmp_path, metrics, name, live) for name in ("loop", "fit"))
        feed(loop, 1, off=0.5)
        assert GAP not in read_scalars(log / "loop")
        feed(fit, 1)
        assert read_scalars(log / "loop")[GAP] == {1: 0.5, 2: 0.5, 3: 0.5}


def test_trainers_that_report_no_steps_have_a_gap_per_epoch(tmp_path: Path) -> None:
    log, metrics = tmp_path / "tensorboard", MetricsFile(tmp_path / "metrics.csv")
    with live_log(tmp_path, ["fit", "loop"], 1, wanted=True) as live:
        fit, loop = (recorder_of(tmp_path, metrics, name, live) for name in ("fit", "loop"))
        for each, off in ((fit, 0.0), (loop, 0.5)):
            feed(each, 1, off, steps=0)
            feed(each, 2, off, steps=0)
        assert read_scalars(log / "loop")[GAP] == {1: 0.5, 2: 0.5}


def test_a_resumed_run_goes_on_with_its_log(tmp_path: Path) -> None:
    log, metrics = tmp_path / "tensorboard", MetricsFile(tmp_path / "metrics.csv")
    with live_log(tmp_path, ["fit", "loop"], 1, wanted=True) as live:
        fit, loop = (recorder_of(tmp_path, metrics, name, live) for name in ("fit", "loop"))
        feed(fit, 1)
        feed(fit, 2)
        feed(loop, 1)
    write_checked(tmp_path / "run.json", {"options": {}})
    with live_log(tmp_path, ["fit", "loop"], 1, wanted=True) as live:
        again = Recorder(tmp_path, metrics, "loop", 0, live("loop", 0))
        again.rewind((1, EPOCH_END))
        feed(again, 2, off=0.5)
        found = read_scalars(log / "loop")
    assert found["epoch/loss"] == {1: 1.0, 2: 0.5}
    assert {4: 0.5, 5: 0.5, 6: 0.5}.items() <= found[GAP].items()


def test_without_the_option_there_is_no_log(tmp_path: Path) -> None:
    with live_log(tmp_path, ["fit", "loop"], 1, wanted=False) as live:
        feed(recorder_of(tmp_path, MetricsFile(tmp_path / "metrics.csv"), "fit", live), 1)
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("how", [[], ["--parallel"]], ids=["in turn", "in parallel"])
def test_a_trainer_finds_its_first_epoch_in_the_log_before_its_second_ends(
    commands: Commands, tmp_path: Path, how: list[str]
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    task = str(tmp_path / "task.py")
    asked = ["--experiment", task, "--trainers", "fit", f"{task}:Waits", "--strategy", "default", "--epochs", "2"]
    asked += ["--batch-size", "45", "--reports", str(tmp_path), "--name", "run", "--tensorboard", *how]
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), *asked]
    status, out, errors = commands.run(command, environment={"LOG": str(tmp_path / "run" / "tensorboard")})
    assert (status, errors) == (0, ""), out
    assert set(read_scalars(tmp_path / "run" / "tensorboard" / "waits")["epoch/loss"]) == {1, 2}
