"""Measures what fingerprints and records cost: training steps of the tutorial's CNN with and without them.

Prints a line with the CPU seconds per step for each turn of each part of the work done after a step; each part
includes the parts before it. All parts take turns in one process. Run by scripts/scaling.py.
"""

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import tensorflow as tf  # noqa: E402
from rich.console import Console  # noqa: E402

from compare.engine import input_pipeline, strategies  # noqa: E402
from compare.engine.fingerprints import Fingerprinter  # noqa: E402
from compare.engine.run import Run, TrainingTask  # noqa: E402
from compare.experiments.fashion_mnist import fashion_mnist_sample  # noqa: E402
from compare.records import MetricsFile, Recorder  # noqa: E402
from compare.reporting.terminal import TrainerProgress  # noqa: E402
from scripts.measure import in_turn  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("blocks", type=int, help="how often each part takes its turn")
parser.add_argument("steps", type=int, help="consecutive steps in a turn")
options = parser.parse_args()
strategies.configure()
strategy = strategies.make("mirrored")
experiment = fashion_mnist_sample(None)
task = TrainingTask(experiment, *input_pipeline.load(experiment), strategy, 64)

with tempfile.TemporaryDirectory() as out:
    recorder = Recorder(Path(out), MetricsFile(Path(out) / "metrics.csv"), "loop", seed=0)
    epochs = range(1, 2)
    with TrainerProgress(Console(quiet=True), "loop", epochs, task.steps_per_epoch, 64) as progress:
        run = Run(task, seed=0, epochs=epochs, sinks=[recorder, progress])
        model, optimizer, loss, _ = run.build()
        dataset = run.train_dataset(1).repeat()

        def step(batch):
            images, labels = batch
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(loss.call(labels, model(images, training=True)))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        @tf.function(input_signature=[dataset.element_spec])
        def train_on_batch(batch):
            strategy.run(step, args=(batch,))
            return tf.constant(True)

        batches = iter(strategies.distribute(strategy, dataset))

        def block(after_step):
            began = time.process_time()
            for _ in range(options.steps):
                train_on_batch(next(batches))
                after_step()
            return (time.process_time() - began) / options.steps

        fingerprint = Fingerprinter(strategy, model.variables)
        one = fingerprint.copies[-1][0]
        parts = {
            "nothing": lambda: None,
            "one variable read": lambda: tf.raw_ops.ReadVariableOp(resource=one.handle, dtype=one.dtype),
            "all variables read": fingerprint.read,
            "all of them fingerprinted": fingerprint,
            "and recorded": run.end_step,
        }
        block(run.end_step)  # traces the step
        turns = in_turn({name: partial(block, part) for name, part in parts.items()}, options.blocks)
        for _, name, seconds in list(turns):  # nothing is printed while the parts are measured
            print(f"{name}: {seconds}")
