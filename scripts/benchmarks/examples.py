"""Trains with the built-in loop on generated 28 x 28 images of uint8: the first steps of an epoch, or whole epochs.

Prints the seconds of each whole epoch. Run by scripts/scaling.py, which measures the peak memory.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402

from compare.engine import input_pipeline, memory, strategies  # noqa: E402
from compare.engine.run import Run, TrainingTask  # noqa: E402
from compare.experiments import BUILT_IN  # noqa: E402
from compare.records import EpochRecord  # noqa: E402
from compare.trainers.custom_loop import CustomLoop  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("count", type=int, help="number of images")
parser.add_argument(
    "kind", choices=["plain", "shared"], help="a plain NumPy array, or memory shared between NumPy and TensorFlow"
)
parser.add_argument("--epochs", type=int, default=0, help="whole epochs (default: only the first steps of one)")
options = parser.parse_args()
COUNT, SHARED = options.count, options.kind == "shared"
STEPS = 50
VALIDATION = 64
"""Images of validation: few, since their time does not grow."""


class FirstSteps(Run):
    def end_step(self, steps=1):
        super().end_step(steps)
        if self._step == STEPS:
            sys.exit()


def load_data():
    size = COUNT * 28 * 28
    images = memory.empty(size) if SHARED else np.empty(size, np.uint8)
    generator = np.random.default_rng(0)
    for begin in range(0, size, 2**20):  # in small parts, because temporary arrays would add to the peak memory
        images[begin : begin + 2**20] = generator.integers(0, 256, min(2**20, size - begin), np.uint8)
    images.flags.writeable = not SHARED
    labels = generator.integers(0, 10, COUNT).astype(np.uint8)
    images = images.reshape(COUNT, 28, 28)
    return (images, labels), (images[:VALIDATION].copy(), labels[:VALIDATION])


experiment = replace(BUILT_IN["fashion-mnist-sample"](None), name="generated", load_data=load_data)
strategies.configure()
task = TrainingTask(experiment, *input_pipeline.load(experiment), strategies.make("mirrored"), 64)


def sink(record):
    if isinstance(record, EpochRecord):
        print(record.seconds)


run = Run if options.epochs else FirstSteps
CustomLoop().train(run(task, seed=0, epochs=range(1, max(1, options.epochs) + 1), sinks=[sink]))
