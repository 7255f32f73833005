"""What scripts/scaling.py measures, each in a process of its own.

record MODEL BATCH_SIZE PAIRS   prints figures as JSON, pairs of a name and a value: how much more CPU time a block of
                                training steps takes with records than the neighbouring block without, as shares
memory COUNT                    trains the first steps on so many generated images
write FOLDER STEPS              makes up a recorded run of the tutorial's CNN, identical after each step
judge FOLDER                    judges, draws and writes it
suite COUNT                     checks so many small loops, half of them wrong; then as many again, and prints how much
                                memory each of those has left behind
"""

import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(__file__).resolve().parents[2])
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

from compare.experiments import built_in  # noqa: E402
from compare.records.metrics_csv import MetricsFile  # noqa: E402
from compare.records.model import Variable  # noqa: E402
from compare.records.recorder import Recorder  # noqa: E402

SAMPLE = partial(built_in, "fashion-mnist-sample")
WEIGHTS = 100_000
"""Number of weights of a stack of Dense layers, about."""
BLOCK_SECONDS = 0.1
"""CPU time of a block of steps, about."""
STEPS, VALIDATION = 50, 64
"""Steps of a training whose memory is measured, and images of its validation."""
SHAPES = [(3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (1600, 64), (64,), (64, 10), (10,)]


def run_of(experiment, batch_size, run=None, sinks=(), full=False):
    """A run of an experiment on this machine's devices; if ``full``, no batch is short."""
    from compare.engine import input_pipeline, strategies
    from compare.engine.run import Run, TrainingTask

    strategies.configure()
    train, validation = input_pipeline.load(experiment)
    train = train.first(train.count // batch_size * batch_size) if full else train
    task = TrainingTask(experiment, train, validation, strategies.make("mirrored"), batch_size)
    return (run or Run)(task, seed=0, epochs=range(1, 2), sinks=sinks)


def dense_layers(variables, batch_size):
    """Dense layers of equal width with about WEIGHTS weights: kernels and biases; a single one is a kernel."""
    import tensorflow as tf

    layers = max(1, variables // 2)
    width = round((WEIGHTS / layers) ** 0.5)

    def load_data():
        generator = np.random.default_rng(0)
        x = generator.standard_normal((4 * batch_size, width), np.float32)
        data = x, generator.integers(0, width, len(x))
        return data, data

    def build_model():
        dense = partial(tf.keras.layers.Dense, width, use_bias=variables > 1)
        return tf.keras.Sequential([*(dense(activation="tanh") for _ in range(layers - 1)), dense()])

    return replace(SAMPLE(), name="dense", load_data=load_data, build_model=build_model, prepare=None)


def record(model, batch_size, pairs):
    import tensorflow as tf

    from compare.engine import strategies
    from compare.engine.fingerprints import Fingerprinter
    from compare.records.hashing import hash_of
    from compare.reporting.terminal import TrainerProgress

    experiment = SAMPLE() if model == "cnn" else dense_layers(int(model), int(batch_size))
    with tempfile.TemporaryDirectory() as out:
        recorder = Recorder(Path(out), MetricsFile(Path(out) / "metrics.csv"), "loop", seed=0)
        with TrainerProgress(Console(quiet=True), "loop", range(1, 2), 1, 64) as progress:
            run = run_of(experiment, int(batch_size), sinks=[recorder, progress], full=True)
            model, optimizer, loss, _ = run.build()
            dataset = run.train_dataset(1).repeat()

            def step(batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    value = tf.reduce_mean(loss.call(y, model(x, training=True)))
                gradients = tape.gradient(value, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

            @tf.function(input_signature=[dataset.element_spec])
            def train_on_batch(batch):
                run.strategy.run(step, args=(batch,))
                return tf.constant(True)

            batches = iter(strategies.distribute(run.strategy, dataset))

            def block(after_step, steps):
                for number in range(1 + steps):
                    if number == 1:  # the first step is slowed down by what the block before left in the CPU's cache
                        began = time.process_time()
                    train_on_batch(next(batches))
                    after_step()
                return (time.process_time() - began) / steps

            def nothing():
                pass

            weights = Fingerprinter(run.strategy, model.variables)

            def read_and_hash():
                for copies in weights.read():
                    for copy in copies:
                        hash_of(copy)

            block(run.end_step, 1)  # traces the step
            steps = max(1, round(BLOCK_SECONDS / block(run.end_step, 5)))
            kinds = [nothing, read_and_hash, run.end_step]
            measured = []
            for number in range(int(pairs)):
                # The order alternates, so that no kind profits from what gets slower or faster.
                measured.append({kind: block(kind, steps) for kind in kinds[:: 1 if number % 2 else -1]})
    plain = median(seconds[nothing] for seconds in measured)
    figures = [("seconds", plain), ("variables", len(model.variables)), ("weights", float(model.count_params()))]
    for name, kind in (("share", run.end_step), ("least", read_and_hash)):
        figures += [(name, seconds[kind] / seconds[nothing] - 1) for seconds in measured]
    print(json.dumps(figures))


def memory(count):
    from compare.engine import memory
    from compare.engine.run import Run
    from compare.trainers.custom_loop import CustomLoop

    class FirstSteps(Run):
        def end_step(self, steps=1):
            super().end_step(steps)
            if self._step == STEPS:
                sys.exit()

    def load_data():
        images = memory.empty(int(count) * 28 * 28).reshape(int(count), 28, 28)
        for number in range(int(count)):  # one by one, because temporary arrays would add to the peak memory
            images[number] = number % 251
        images.flags.writeable = False
        labels = np.arange(int(count)).astype(np.uint8) % 10
        return (images, labels), (images[:VALIDATION].copy(), labels[:VALIDATION])

    CustomLoop().train(run_of(replace(SAMPLE(), name="generated", load_data=load_data), 64, run=FirstSteps))


def write(folder, steps):
    import recorded

    made = [Variable(f"variable {i}", shape, "float32") for i, shape in enumerate(SHAPES)]
    recorded.two(Path(folder), epochs=20, steps=max(1, int(steps) // 20), variables=made)


def judge(folder):
    from compare.app.publish import judge_and_publish

    judge_and_publish(Path(folder), Console(quiet=True))


def suite(count):
    import compare

    class Scaled(compare.CustomLoop):
        name = "scaled"

        def compute_loss(self, *given):
            return self.factor * super().compute_loss(*given)

    def check(number):
        loop = Scaled()
        loop.factor = 1 if number % 2 else 2 + number
        try:
            compare.assert_alike("regression", loop)
        except AssertionError as error:
            assert "loss-scaled" in str(error) and loop.factor > 1
        else:
            assert loop.factor == 1

    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for number in range(int(count)):
        check(number)
    print("done")
    before = resident()
    for number in range(int(count)):
        check(number)
    print((resident() - before) / int(count))


{"record": record, "memory": memory, "write": write, "judge": judge, "suite": suite}[sys.argv[1]](*sys.argv[2:])
