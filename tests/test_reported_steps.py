"""What a loop reports of its steps, in other ways than one after every update of one batch."""

from __future__ import annotations

import numpy as np
import pytest
import tasks

import compare
from compare.records.model import EPOCH_END, INITIAL


class Loop:
    """A right loop on one replica."""

    name = "mine"
    reports = True

    def train(self, run):
        import tensorflow as tf

        model, optimizer, loss, _ = run.build()
        self.begin(model, optimizer)

        @tf.function(input_signature=run.train_dataset(1).element_spec)
        def gradients(x, y):
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            return tape.gradient(value, model.trainable_variables)

        for epoch in run.epochs:
            for batch, (x, y) in enumerate(run.train_dataset(epoch), start=1):
                if self.update(batch, x, gradients(x, y)) and self.reports:
                    run.end_step()
            run.end_epoch(epoch, {})

    def begin(self, model, optimizer):
        self.variables, self.optimizer = model.trainable_variables, optimizer

    def update(self, batch, x, gradients):
        """Updates the weights; returns whether the loop reports a step."""
        self.optimizer.apply(gradients, self.variables)
        return True


class Accumulating(Loop):
    """Calls an optimizer of its own after so many batches, with the mean of their gradients."""

    updates, left_out, emptied = 0, None, True

    def __init__(self, every):
        self.every = every

    def begin(self, model, optimizer):
        config = optimizer.get_config() | {"gradient_accumulation_steps": None}
        super().begin(model, type(optimizer).from_config(config))
        self.optimizer.build(self.variables)
        self.kept, self.batches = [], 0

    def update(self, batch, x, gradients):
        self.kept.append(gradients)
        self.batches += 1
        if self.batches % self.every:
            return False
        means = [sum(parts) / self.every for parts in zip(*self.kept, strict=True)]
        self.kept = [] if self.emptied else self.kept
        self.updates += 1
        if self.updates != self.left_out:
            self.optimizer.apply(means, self.variables)
        return True


class UpdateLeftOut(Accumulating):
    left_out = 2


class NotEmptied(Accumulating):
    emptied = False


class ShortBatchLeftOut(Loop):
    """Reports every batch, but skips the short one."""

    def update(self, batch, x, gradients):
        if batch < 3:
            self.optimizer.apply(gradients, self.variables)
        return True


class Silent(Loop):
    reports = False


def fit():
    from compare.trainers.keras_fit import KerasFit

    return KerasFit()


@pytest.mark.parametrize("every", [2, 4])  # the usual check has three batches in an epoch
def test_accumulation_by_hand_is_an_optimizer_that_accumulates(tensorflow, every):
    accumulating = tasks.experiment(
        batch_norm=True, optimizer=lambda: tensorflow.keras.optimizers.Adam(0.01, gradient_accumulation_steps=every)
    )
    compare.assert_alike(accumulating, Accumulating(every))
    for wrong in (UpdateLeftOut, NotEmptied):
        with pytest.raises(AssertionError, match="different: mine does not train like fit") as said:
            compare.assert_alike(accumulating, wrong(every))
        assert "batch-size-differs" not in str(said.value), "the optimizer uses all batches, too"


def test_a_batch_that_is_reported_and_not_trained_on_is_named(tensorflow):
    with pytest.raises(AssertionError, match=r"cause: examples-dropped \(in mine\): the last batch of each epoch"):
        compare.assert_alike(tasks.experiment(), ShortBatchLeftOut())


def test_a_loop_that_never_reports_a_step_is_told_so(tensorflow):
    with pytest.warns(UserWarning, match=r"mine never calls run\.end_step\(\), so weights were compared at the ends"):
        compare.assert_alike(tasks.experiment(), Silent())


class InScope(Loop):
    """Builds everything inside the strategy's scope, as the tutorial does; its metric belongs to the strategy."""

    def train(self, run):
        import tensorflow as tf

        strategy = run.strategy
        with strategy.scope(), strategy.scope():
            model, optimizer, loss, _ = run.build()
            self.begin(model, optimizer)
            mean = tf.keras.metrics.Mean()
        batches = strategy.experimental_distribute_dataset(run.train_dataset(1))

        @tf.function(input_signature=[batches.element_spec])
        def step(batch):
            def replica_step(x, y):
                with tf.GradientTape() as tape:
                    value = loss(y, model(x, training=True))
                optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
                mean.update_state(value)

            strategy.run(replica_step, batch)

        for epoch in run.epochs:
            for batch in strategy.experimental_distribute_dataset(run.train_dataset(epoch)):
                step(batch)
                run.end_step()
            run.end_epoch(epoch, {})


class OtherSlots(InScope):
    def begin(self, model, optimizer):
        for slow, variable in zip(optimizer.slow, model.trainable_variables, strict=True):
            slow.assign(0.9 * slow + 0.05 * variable)


@pytest.mark.parametrize(("strategy", "replicas"), [("default", 1), ("mirrored", 2)])
def test_a_loop_may_build_inside_the_scope_of_its_strategy(tensorflow, strategy, replicas):
    expected, found = (weights_after(trainer, strategy, replicas, None) for trainer in (fit(), InScope()))
    assert expected[INITIAL] != expected[EPOCH_END]
    assert expected == found


@pytest.fixture(scope="module")
def lookahead(tensorflow):
    class Lookahead(tensorflow.keras.optimizers.SGD):
        """Its build() assigns, which has no effect while a step is traced, as in plain fit without a strategy."""

        def build(self, variables):
            if self.built:
                return
            super().build(variables)
            self.slow = [self.add_variable_from_reference(variable, name="slow") for variable in variables]
            for slow, variable in zip(self.slow, variables, strict=True):
                slow.assign(variable)

        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)
            slow = self.slow[self._get_variable_index(variable)]
            together = tensorflow.equal((self.iterations + 1) % 3, 0)
            self.assign(slow, tensorflow.where(together, slow + 0.5 * (variable - slow), slow))
            self.assign(variable, tensorflow.where(together, slow, variable))

    return lambda: Lookahead(0.1)


@pytest.mark.parametrize(("strategy", "replicas"), [("default", 1), ("mirrored", 2)])
def test_slots_begin_as_those_of_users_fit(lookahead, strategy, replicas):
    from compare.check.checker import check
    from compare.engine.run import Run

    task = task_of(strategy, replicas, lookahead)
    weights = []
    for trainer in fit(), InScope():
        run = Run(task, seed=0, epochs=range(1, 2))
        trainer.train(run)
        weights.append(run.weights())
    with task.strategy.scope():
        model = task.experiment.build_model()
        model.build((None, 8))
        model.set_weights(task.initial_weights[0])
        model.compile(lookahead(), task.experiment.build_loss(), jit_compile=False)
    model.fit(Run(task, seed=0, epochs=range(1, 2)).train_dataset(1), verbose=0, shuffle=False)
    for of_trainer in weights:
        assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), of_trainer, strict=True))
    assert check(task.experiment, InScope(), strategy=task.strategy, batch_size=8).verdict == "identical"
    wrong = check(task.experiment, OtherSlots(), strategy=task.strategy, batch_size=8)
    assert wrong.comparison.training.verdict == "different", "where slots begin is no rounding"


def task_of(strategy, replicas, optimizer):
    from compare.engine import input_pipeline, strategies
    from compare.engine.run import TrainingTask

    experiment = tasks.experiment(train=64, validation=8, optimizer=optimizer)
    made = strategies.make(strategy, replicas)
    return TrainingTask(experiment, *input_pipeline.load(experiment), made, 8 * replicas)


def weights_after(trainer, strategy, replicas, optimizer):
    """The hashes of all weights after every step of one epoch."""
    from compare.engine.run import Run
    from compare.records.model import StepRecord

    records = []
    trainer.train(Run(task_of(strategy, replicas, optimizer), seed=0, epochs=range(1, 2), sinks=[records.append]))
    return {each.step: each.hashes.tolist() for each in records if isinstance(each, StepRecord)}
