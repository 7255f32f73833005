"""The first steps of an epoch over so many generated 28 x 28 images of uint8, for scripts/scaling.py.

Run as: examples.py COUNT plain|shared; it prints the most memory that it had resident, in bytes.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402

from compare.engine import input_pipeline, memory, strategies  # noqa: E402
from compare.engine.costs import peak_memory  # noqa: E402
from compare.engine.run import Run, TrainingTask  # noqa: E402
from compare.experiments import BUILT_IN  # noqa: E402
from compare.trainers.custom_loop import CustomLoop  # noqa: E402

COUNT, SHARED = int(sys.argv[1]), sys.argv[2] == "shared"
STEPS = 50


class EnoughError(Exception):
    pass


class FirstSteps(Run):
    def end_step(self, steps=1):
        super().end_step(steps)
        if self._step == STEPS:
            raise EnoughError


def load_data():
    size = COUNT * 28 * 28
    images = memory.empty(size) if SHARED else np.empty(size, np.uint8)
    generator = np.random.default_rng(0)
    for begin in range(0, size, 2**20):  # a little at a time: nothing else is to be in memory
        images[begin : begin + 2**20] = generator.integers(0, 256, min(2**20, size - begin), np.uint8)
    images.flags.writeable = not SHARED
    labels = generator.integers(0, 10, COUNT).astype(np.uint8)
    images = images.reshape(COUNT, 28, 28)
    return (images, labels), (images[:1000].copy(), labels[:1000])


experiment = replace(BUILT_IN["fashion-mnist-sample"](None), name="generated", load_data=load_data)
strategies.configure()
task = TrainingTask(experiment, *input_pipeline.load(experiment), strategies.make("mirrored"), 64)
try:
    CustomLoop().train(FirstSteps(task, seed=0, epochs=range(1, 2)))
except EnoughError:
    print(peak_memory())
