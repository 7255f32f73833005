"""Measures what fingerprints and records cost: training steps with and without them, in one process.

Prints "name: value" lines. With "pairs", blocks of steps with and without records alternate, and a line has how much
more CPU time a block took with records than the neighbouring block without, as a share. With "parts", it has the CPU
seconds per step for each turn of each part of the work done after a step; each part includes the parts before it. Run
by scripts/scaling.py.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from rich.console import Console  # noqa: E402

from compare.engine import input_pipeline, strategies  # noqa: E402
from compare.engine.fingerprints import Fingerprinter  # noqa: E402
from compare.engine.run import Run, TrainingTask  # noqa: E402
from compare.experiment import Experiment  # noqa: E402
from compare.experiments.fashion_mnist import fashion_mnist_sample  # noqa: E402
from compare.records import MetricsFile, Recorder  # noqa: E402
from compare.reporting.terminal import TrainerProgress  # noqa: E402
from scripts.measure import in_turn  # noqa: E402

WEIGHTS = 100_000
"""Number of weights of a stack of Dense layers, about."""
BLOCK_SECONDS = 0.1
"""CPU time of a block of steps, about."""

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("how", choices=["pairs", "parts"])
parser.add_argument("model", help="cnn, the tutorial's; or the number of variables of a stack of Dense layers")
parser.add_argument("batch_size", type=int)
parser.add_argument("blocks", type=int, help="blocks with records, or turns of each part")
options = parser.parse_args()


def dense_layers(variables: int) -> Experiment:
    """Returns Dense layers of equal width with about WEIGHTS weights: kernels and biases; a single one is a kernel."""
    layers = max(1, variables // 2)
    width = round((WEIGHTS / layers) ** 0.5)

    def load_data() -> Any:
        generator = np.random.default_rng(0)
        x = generator.standard_normal((4 * options.batch_size, width), np.float32)
        data = x, generator.integers(0, width, len(x))
        return data, data

    def build_model() -> tf.keras.Model:
        dense = partial(tf.keras.layers.Dense, width, use_bias=variables > 1)
        return tf.keras.Sequential([*(dense(activation="tanh") for _ in range(layers - 1)), dense()])

    sample = fashion_mnist_sample(None)
    return replace(sample, name="dense", load_data=load_data, build_model=build_model, prepare=None)


def measure(run: Run) -> None:
    model, optimizer, loss, _ = run.build()
    dataset = run.train_dataset(1).repeat()

    def step(batch: Any) -> None:
        x, y = batch
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss.call(y, model(x, training=True)))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function(input_signature=[dataset.element_spec])
    def train_on_batch(batch: Any) -> tf.Tensor:
        run.strategy.run(step, args=(batch,))
        return tf.constant(True)

    batches = iter(strategies.distribute(run.strategy, dataset))

    def block(after_step: Callable[[], Any], steps: int) -> float:
        for number in range(1 + steps):
            if number == 1:  # the first step is slowed down by what the block before left in the CPU's cache
                began = time.process_time()
            train_on_batch(next(batches))
            after_step()
        return (time.process_time() - began) / steps

    def nothing() -> None:
        pass

    block(run.end_step, 1)  # traces the step
    steps = max(1, round(BLOCK_SECONDS / block(run.end_step, 5)))
    if options.how == "pairs":
        plain, shares = [], []
        for number in range(options.blocks):
            # The order alternates, so that neither kind profits from what gets slower or faster.
            pair = [nothing, run.end_step] if number % 2 else [run.end_step, nothing]
            seconds = {after_step: block(after_step, steps) for after_step in pair}
            plain.append(seconds[nothing])
            shares.append(seconds[run.end_step] / seconds[nothing] - 1)
        print(f"seconds: {median(plain)}")
        print(f"variables: {len(model.variables)}")
        print(f"weights: {model.count_params()}")
        print(*(f"share: {share}" for share in shares), sep="\n")
        return
    fingerprint = Fingerprinter(run.strategy, model.variables)
    one = fingerprint.copies[-1][0]
    parts = {
        "nothing": nothing,
        "one variable read": lambda: tf.raw_ops.ReadVariableOp(resource=one.handle, dtype=one.dtype),
        "all variables read": fingerprint.read,
        "all of them fingerprinted": fingerprint,
        "and recorded": run.end_step,
    }
    turns = in_turn({name: partial(block, part, steps) for name, part in parts.items()}, options.blocks)
    for _, name, seconds in list(turns):  # nothing is printed while the parts are measured
        print(f"{name}: {seconds}")


strategies.configure()
strategy = strategies.make("mirrored")
experiment = fashion_mnist_sample(None) if options.model == "cnn" else dense_layers(int(options.model))
train, validation = input_pipeline.load(experiment)
full = train.first(train.count // options.batch_size * options.batch_size)  # no batch is short
task = TrainingTask(experiment, full, validation, strategy, options.batch_size)

with tempfile.TemporaryDirectory() as out:
    recorder = Recorder(Path(out), MetricsFile(Path(out) / "metrics.csv"), "loop", seed=0)
    epochs = range(1, 2)
    with TrainerProgress(Console(quiet=True), "loop", epochs, task.steps_per_epoch, 64) as progress:
        measure(Run(task, seed=0, epochs=epochs, sinks=[recorder, progress]))
