"""Every training has a trainer of its own: nothing that one training leaves behind changes the next."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tasks
from against_fit import task_of

import compare

KINDS = (
    "method",
    "made in __init__",
    "closure in __init__",
    "in a dict",
    "equal objects",
    "function of the module",
    "helper",
    "variables at the first call",
    "namespace",
    "static",
    "counter",
    "list",
    "array",
    "kept model",
    "metric",
    "slots",
    "file",
    "random numbers",
    "generator",
    "iterator",
)


def trainers(tf):  # noqa: C901
    """Right loops, each with something that a second training with the same object would find changed."""

    class Eager:
        name = "mine"

        def train(self, run):
            self.model, self.optimizer, self.loss, _ = run.build()
            for epoch in run.epochs:
                for x, y in run.train_dataset(epoch):
                    self.step(x, y)
                    run.end_step()
                run.end_epoch(epoch, {})

        def step(self, x, y):
            with tf.GradientTape() as tape:
                loss = self.loss(y, self.model(x, training=True))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply(gradients, self.model.trainable_variables)

    class Method(Eager):
        @tf.function
        def step(self, x, y):
            Eager.step(self, x, y)

    class MadeInInit(Eager):
        def __init__(self):
            self.step = tf.function(self.step)

    class ClosureInInit(Eager):
        def __init__(self):
            def helper(x, y):
                Eager.step(self, x, y)

            @tf.function
            def step(x, y):
                helper(x, y)

            self.step = step

    class InADict(Eager):
        def __init__(self):
            self.steps = {"train": tf.function(lambda x, y: Eager.step(self, x, y))}

        def step(self, x, y):
            self.steps["train"](x, y)

    class Equal(Method):
        def __eq__(self, other):
            return type(other) is type(self)

        def __hash__(self):
            return 1

    trained = []

    @tf.function
    def step_of_module(x, y):
        Eager.step(trained[-1], x, y)

    class OfTheModule(Eager):
        def step(self, x, y):
            trained.append(self)
            step_of_module(x, y)

    class Stepper:
        @tf.function
        def step(self, x, y):
            Eager.step(trained[-1], x, y)

    stepper = Stepper()

    class Helper(Eager):
        def step(self, x, y):
            trained.append(self)
            stepper.step(x, y)

    class Variables(Eager):
        count = None

        @tf.function
        def step(self, x, y):
            if self.count is None:
                self.count = tf.Variable(1.0)
            self.count.assign_add(1.0)
            Eager.step(self, x, y)

    method = Method()

    class Static(Eager):
        @staticmethod
        def train(run):
            method.train(run)

    class Counter(Eager):
        steps = 0

        def step(self, x, y):
            self.steps += 1
            self.optimizer.learning_rate.assign(0.1 / self.steps)
            super().step(x, y)

    class List(Eager):
        def __init__(self):
            self.rates = [0.1, 0.2, 0.3, 0.4]

        def step(self, x, y):
            self.optimizer.learning_rate.assign(self.rates.pop() if self.rates else 0.05)
            super().step(x, y)

    class Array(Eager):
        def __init__(self):
            self.order = np.arange(8)

        def step(self, x, y):
            self.order[:] = np.roll(self.order, 1)
            super().step(tf.gather(x, self.order), y)

    class KeptModel(Eager):
        model = None

        def train(self, run):
            if self.model is None:
                super().train(run)

    class Metric(Eager):
        def __init__(self):
            self.seen = tf.keras.metrics.Sum()

        def step(self, x, y):
            self.seen.update_state(1.0)
            self.optimizer.learning_rate.assign(0.1 / self.seen.result())
            super().step(x, y)

    class Slots:
        __slots__ = ("left",)
        name = "mine"

        def __init__(self):
            self.left = [1]

        def train(self, run):
            self.left.pop()
            Method().train(run)

    class File(Method):
        def __init__(self):
            self.steps = []
            self.log, self.logger = sys.__stdout__, logging.getLogger("mine")
            self.data = tf.data.Dataset.range(3)

        def step(self, x, y):
            assert len(self.steps) < 6
            self.steps.append(1)
            super().step(x, y)

    class RandomNumbers(Method):
        def __init__(self):
            self.random = tf.random.Generator.from_seed(1)

        def step(self, x, y):
            super().step(x + self.random.normal(tf.shape(x)), y)

    class Generator(List):
        def __init__(self):
            super().__init__()
            self.endless = (i for i in range(10**9))

    class Batches(Method):
        def __init__(self):
            self.batches = iter(tf.data.Dataset.range(10**9))

    kinds = Method, MadeInInit, ClosureInInit, InADict, Equal, OfTheModule, Helper, Variables, Eager, Static
    kinds += Counter, List, Array, KeptModel, Metric, Slots, File, RandomNumbers, Generator, Batches
    made = {name: kind() for name, kind in zip(KINDS, kinds, strict=True)}
    return made | {"namespace": SimpleNamespace(name="mine", train=lambda run: method.train(run))}


def train(trainer, task):
    """Trains two epochs with a trainer; returns the hashes of all weights after every step."""
    from compare.engine.anew import train_anew
    from compare.engine.run import Run
    from compare.records.model import StepRecord

    records = []
    run = Run(task, seed=0, epochs=range(1, 3), sinks=[records.append])
    train_anew(trainer, run)
    assert run.finished
    return [record.hashes.tolist() for record in records if isinstance(record, StepRecord)]


@pytest.fixture(scope="module")
def task(tensorflow):
    return task_of(tasks.experiment(train=24, validation=8), 8)


@pytest.fixture(scope="module")
def given(tensorflow):
    return trainers(tensorflow)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_training_with_the_same_object_is_the_first_one_again(kind, given, task):
    first, second = train(given[kind], task), train(given[kind], task)
    assert first[0] != first[-1], "it trained"
    assert first == second


def test_what_cannot_be_copied_is_said_in_one_line(given):
    from compare.engine.anew import shared_state

    class Whole:
        name = "mine"

        def __copy__(self):
            raise TypeError("there is one of it")

        def train(self, run):
            """Not called."""

    text = shared_state(given["generator"])
    assert text.startswith("trainer mine: its attribute endless cannot be copied (TypeError: ")
    assert text.endswith("all trainings share it, the short check too")
    assert shared_state(Whole()).startswith("trainer mine cannot be copied (TypeError: there is one of it)")
    shared = [kind for kind in KINDS if shared_state(given[kind])]
    assert shared == ["generator", "iterator"], "files and data sets need no copy"


def test_settings_that_a_trainer_changes_are_its_own(given, task, tensorflow):
    class Wide:
        name = "wide"

        def train(self, run):
            given["method"].train(run)
            tensorflow.keras.backend.set_floatx("float64")
            tensorflow.config.run_functions_eagerly(True)

    train(Wide(), task)
    assert tensorflow.keras.backend.floatx() == "float32" and not tensorflow.config.functions_run_eagerly()


def test_a_dtype_policy_that_a_users_file_sets_is_that_of_all_models(task, tensorflow):
    mixed_precision, built = tensorflow.keras.mixed_precision, []

    class Building:
        name = "building"

        def train(self, run):
            built.append(run.build()[0].layers[0].dtype_policy.name)
            raise ValueError("enough")

    mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match="enough"):
                train(Building(), task)
    finally:
        mixed_precision.set_global_policy("float32")
    assert built == ["mixed_bfloat16"] * 2


def test_a_function_of_the_user_has_its_own_graphs_again_after_a_training(given, task, tensorflow):
    @tensorflow.function
    def double(x):
        return 2 * x

    graph = double.get_concrete_function(1)
    train(given["method"], task)
    assert double.get_concrete_function(1) is graph


@pytest.fixture(scope="module")
def wrong_loss(tensorflow):
    """A loop under ``tf.function`` that trains right in other last bits, and reports a loss that is off."""
    tf = tensorflow

    class WrongLoss:
        name = "mine"

        @tf.function
        def step(self, x, y):
            with tf.GradientTape() as tape:
                loss = self.loss(y, self.model(x, training=True))
            # Other last bits than fit's.
            gradients = [g * (1 + 2**-23) for g in tape.gradient(loss, self.model.trainable_variables)]
            self.optimizer.apply(gradients, self.model.trainable_variables)
            return loss

        def train(self, run):
            self.model, self.optimizer, self.loss, _ = run.build()
            for epoch in run.epochs:
                losses = []
                for x, y in run.train_dataset(epoch):
                    losses.append(float(self.step(x, y)) + 0.039)
                    run.end_step()
                run.end_epoch(epoch, {"loss": float(np.mean(losses))})

    return WrongLoss


def compared(loop, tmp_path, **options):
    experiment = tasks.experiment(train=64, validation=16)
    return compare.run(
        experiment, trainers=("fit", loop), strategy="default", epochs=2, batch_size=8, reports=tmp_path, **options
    )


def test_the_check_of_a_loop_that_has_trained_judges_its_numbers(wrong_loss, tmp_path, capsys):
    loop = wrong_loss()
    result = compared(loop, tmp_path)
    assert "failed" not in capsys.readouterr().out
    assert result.verdict == "different"
    assert vars(loop) == {}, "the object is as it was given"


def test_numbers_that_nobody_could_judge_are_never_alike(wrong_loss, tmp_path, monkeypatch, capsys):
    def broken(*args, **options):
        raise ValueError("no check today")

    monkeypatch.setattr("compare.check.checker.Checker", broken)
    result = compared(wrong_loss(), tmp_path)
    (comparison,) = json.loads((result.path / "verdict.json").read_text())["comparisons"]
    assert (comparison["training"]["verdict"], comparison["reporting"]["verdict"]) == ("alike", "inconclusive")
    assert result.verdict == "inconclusive"
    assert "its reported numbers differ by more than rounding, and could not be judged: loss" in capsys.readouterr().out
