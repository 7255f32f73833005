"""Trains the first steps of an epoch on generated 28 x 28 images of uint8.

Run by scripts/scaling.py, which measures the peak memory.
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
from compare.trainers.custom_loop import CustomLoop  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("count", type=int, help="number of images")
parser.add_argument(
    "kind", choices=["plain", "shared"], help="a plain NumPy array, or memory shared between NumPy and TensorFlow"
)
options = parser.parse_args()
COUNT, SHARED = options.count, options.kind == "shared"
STEPS = 50


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
    return (images, labels), (images[:1000].copy(), labels[:1000])


experiment = replace(BUILT_IN["fashion-mnist-sample"](None), name="generated", load_data=load_data)
strategies.configure()
task = TrainingTask(experiment, *input_pipeline.load(experiment), strategies.make("mirrored"), 64)
CustomLoop().train(FirstSteps(task, seed=0, epochs=range(1, 2)))
