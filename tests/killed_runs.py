"""Runs that are killed at random moments and resumed: what they leave is what an uninterrupted run leaves."""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compare.errors import EXIT_INTERRUPTED

ROOT = Path(__file__).resolve().parents[1]
TASK = '''
"""A little of everything that has a state: batch normalization, dropout, Adam, a short last batch."""

import numpy as np

import compare


def load_data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 8)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return (x[:86], y[:86]), (x[86:], y[86:])


def build_model():
    import tensorflow as tf

    layers = tf.keras.layers
    hidden = [layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.2)]
    return tf.keras.Sequential([*hidden, layers.Dense(2)])


def build_loss():
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build_optimizer():
    import tensorflow as tf

    return tf.keras.optimizers.Adam(0.01)


def build_metrics():
    import tensorflow as tf

    return [tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


experiment = compare.Experiment(
    name="everything-with-a-state",
    load_data=load_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_metrics=build_metrics,
)
'''


@dataclass
class Outcome:
    """What became of many kills.

    Attributes:
        kills: how many processes were killed.
        runs: how many runs were finished.
        differing: what differed, in words.
        phases: how often the killed process had begun, trained or ended, by the run's status.
    """

    kills: int = 0
    runs: int = 0
    differing: list[str] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)


def command_in(folder: Path, replicas: int) -> list[str]:
    """Trains the task with fit and loop, of which a file is made in the folder of all runs."""
    task = folder / "task.py"
    task.write_text(TASK)
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), "--experiment", str(task)]
    command += ["--replicas", str(replicas), "--batch-size", str(12 // replicas), "--epochs", "5"]
    return [*command, "--reports", str(folder), "--quiet"]


def kill_and_resume(
    folder: Path,
    replicas: int,
    kills: int,
    generator: random.Random,
    processes=subprocess,
    number: signal.Signals = signal.SIGKILL,
    more: Sequence[str] = (),
) -> Outcome:
    """Kill so many ``processes`` of runs with so many replicas; the runs go to ``folder``. Prints a line per run.

    Each has ``more`` arguments.

    Any other signal than SIGKILL must end a process with status 130, or as the signal does by default.
    """
    command = [*command_in(folder, replicas), *more]
    began = time.perf_counter()
    processes.run([*command, "--name", "never-interrupted"], check=True)
    whole = time.perf_counter() - began
    expected = left_by(folder / "never-interrupted")
    outcome = Outcome()
    while outcome.kills < kills or outcome.runs == 0:
        name, here = f"run-{outcome.runs + 1}", 0
        while True:
            resume = ["--resume"] if (folder / name).exists() else []
            process = processes.Popen([*command, "--name", name, *resume], stderr=subprocess.PIPE)
            # In the end it is let through; and a kill after it is through is none.
            wait = generator.uniform(0, whole) if outcome.kills < kills else None
            try:
                _, errors = process.communicate(timeout=wait)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
                process.communicate()
                if process.returncode not in (-number, EXIT_INTERRUPTED, 0):  # 0: it had just finished
                    outcome.differing.append(f"{name}: {number.name} ended it with status {process.returncode}")
                outcome.kills, here = outcome.kills + 1, here + 1
                phase = status(folder / name)
                outcome.phases[phase] = outcome.phases.get(phase, 0) + 1
                continue
            if process.returncode != 0:
                outcome.differing.append(f"{name}: status {process.returncode}: {errors.decode().strip()}")
            break
        outcome.runs += 1
        found = left_by(folder / name)
        differing = [f"{name}: {part}" for part in expected if found.get(part) != expected[part]]
        outcome.differing += differing
        print(
            f"{replicas} replica(s), {name}: killed {here} times, {'DIFFERENT' if differing else 'the same in the end'}"
        )
    return outcome


def status(folder: Path) -> str:
    """How far a killed run had come."""
    if not (folder / "run.json").exists():
        return "before its request was on disk"
    if (folder / "metrics.csv").exists():
        rows = len((folder / "metrics.csv").read_text().splitlines()) - 1
        return f"{'first' if rows <= 5 else 'second'} trainer's epochs"
    return "before the first epoch had ended"


def left_by(folder: Path) -> dict[str, object]:
    """What must be the same: every fingerprint, every epoch's weights, every number but times, the verdict."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [[row[name] for name in row if "second" not in name] for row in csv.DictReader(file)]
    found: dict[str, object] = {"metrics.csv": rows}
    found |= {path.name: path.read_bytes() for path in sorted((folder / "records").glob("*.steps"))}
    for path in sorted((folder / "records").glob("*.npz")):
        with np.load(path) as arrays:  # without the name of the run
            found[path.name] = [arrays[name].tobytes() for name in arrays.files if name != "owner"]
    found["verdict.json"] = (folder / "verdict.json").read_text()
    return found
