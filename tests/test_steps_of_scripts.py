"""A step is the same in a graph and in an eager loop: its random numbers, and what follows its update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_scripts import column, watched

from compare.watch.settings import MADE_ALIKE, SEEDS
from compare.watch.trace import BY_HAND, read_traces

WITH_SEEDS = tuple(set(MADE_ALIKE) - {SEEDS})


def in_graph(function: Callable[..., Any]) -> Any:
    return tf.function(function)


def eager(function: Callable[..., Any]) -> Any:
    return function


def normal_and_uniform(x: Any) -> Sequence[Any]:
    return tf.random.normal(tf.shape(x)), tf.random.uniform((2,), 1.0, 2.0)


def dropped(x: Any) -> Sequence[Any]:
    return [tf.nn.dropout(tf.ones((32, tf.shape(x)[0])), 0.5)]


def drawn(
    way: Callable[..., Any], *, besides: bool = False, of: Callable[[Any], Sequence[Any]] = normal_and_uniform
) -> list[list[float]]:
    """The random numbers that each of three steps draws; the last one's shape has its function traced once more."""
    numbers = []
    with watched(own=WITH_SEEDS):
        weights, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(0.1)

        def step(x: Any) -> Any:
            noise = of(x)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weights) * tf.reduce_sum(noise[0])
            optimizer.apply(tape.gradient(loss, [weights]), [weights])
            return tf.concat([tf.reshape(each, [-1]) for each in noise], 0)

        train = way(step)
        for size in (3, 3, 2):
            numbers.append(np.asarray(train(tf.zeros((size, 1)))).tolist())
            if besides:
                tf.random.normal((4,))
    return numbers


def test_random_numbers_of_a_step_are_the_same_in_a_graph_and_in_an_eager_loop(tensorflow: Any) -> None:
    first = drawn(in_graph)
    assert drawn(eager) == first
    assert drawn(in_graph, besides=True) == first, "not moved by what is drawn between steps"
    flat = [number for numbers in first for number in numbers]
    assert len(set(flat)) == len(flat), "and none twice"


def test_what_tensorflow_drops_is_the_same_in_a_graph_and_in_an_eager_loop(tensorflow: Any) -> None:
    first, second, short = drawn(in_graph, of=dropped)
    assert drawn(eager, of=dropped) == [first, second, short]
    assert first != second and {*first, *second, *short} == {0.0, 2.0}


def test_random_numbers_of_a_data_set_are_its_own(tensorflow: Any) -> None:
    with watched(own=WITH_SEEDS):
        data = tf.data.Dataset.range(3).map(lambda i: tf.random.uniform((), seed=1))
        numbers = [float(each) for each in data]

        @tf.function
        def over() -> Any:
            total = tf.zeros(())
            for _ in data:
                total += tf.random.normal(())
            return total

        once, again = float(over()), float(over())
    assert len(set(numbers)) == 3
    assert once == again, "a loop over a data set in a graph is the script's own"


def trained(folder: Path, way: Callable[..., Any], rate: float) -> Any:
    with watched(folder) as observer:
        weights, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.SGD(rate)

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weights)
            optimizer.apply(tape.gradient(loss, [weights]), [weights])
            weights.assign(tf.maximum(weights, 1.0))

        train = way(step)
        for _ in range(4):
            train()
        observer.ended()
        observer.writer.close()
    return [trace for trace in read_traces(folder / "trace") if not trace.state]


def test_weights_that_are_set_after_an_update_belong_to_its_step(tensorflow: Any, tmp_path: Path) -> None:
    (one,), (other,) = (trained(tmp_path / way.__name__, way, 0.25) for way in (in_graph, eager))
    assert one.last == other.last == 4
    assert one.steps["hashes"].tolist() == other.steps["hashes"].tolist()


@pytest.mark.parametrize("way", [in_graph, eager])
def test_weights_that_never_move_are_not_set_back(tensorflow: Any, tmp_path: Path, way: Callable[..., Any]) -> None:
    assert [trace.last for trace in trained(tmp_path, way, 1e-12)] == [4]


@pytest.mark.parametrize("way", [in_graph, eager])
@pytest.mark.parametrize("decays", [True, False])
def test_weights_that_change_between_the_first_gradients_and_the_first_update_are_known(
    tensorflow: Any, tmp_path: Path, way: Callable[..., Any], decays: bool
) -> None:
    """As by a decay of each micro-batch; what the script sets them to before is what training begins with."""
    with watched(tmp_path) as observer:
        model, optimizer = column(), keras.optimizers.SGD(0.1)
        model(tf.ones((2, 2)))
        for each in model.trainable_variables:  # as restoring a checkpoint does
            tf.raw_ops.AssignVariableOp(resource=each.value.handle, value=2 * each.value)
        total = [tf.Variable(tf.zeros_like(each), trainable=False) for each in model.trainable_variables]

        def accumulate() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(tf.ones((2, 2)), training=True))
            for each, gradient in zip(total, tape.gradient(loss, model.trainable_variables), strict=True):
                each.assign_add(gradient)
            if decays:
                model.trainable_variables[0].assign_sub(0.1 * model.trainable_variables[0])

        def update() -> None:
            optimizer.apply([tf.identity(each) for each in total], model.trainable_variables)

        micro_step, step = way(accumulate), way(update)
        for _ in range(2):
            micro_step()
        step()
        observer.ended()
        observer.writer.close()
    (trace,) = (trace for trace in read_traces(tmp_path / "trace") if not trace.state)
    assert trace.changed_early == decays


class Slow(keras.optimizers.SGD):
    """Keeps the weights that it is built with, as slots of a Lookahead do."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slow = [variable.numpy() for variable in variables]


def test_an_optimizer_that_is_built_early_keeps_the_weights_that_training_begins_with(
    tensorflow: Any, tmp_path: Path
) -> None:
    slow = []
    for begins in (True, False):
        with watched(tmp_path, own=(), begins=begins):
            model, optimizer = column(), Slow()
            made = model.layers[0].kernel.numpy()
            optimizer.build(model.trainable_variables)
            slow.append(optimizer.slow[0])
            assert np.array_equal(made, slow[-1]) == begins
            np.testing.assert_array_equal(model.layers[0].kernel.numpy(), slow[-1])
    np.testing.assert_array_equal(*slow)


def test_a_model_may_make_a_variable_before_keras_knows_it(tensorflow: Any, tmp_path: Path) -> None:
    class Early(keras.Model):
        def __init__(self) -> None:
            scale = tf.Variable(2.0)
            super().__init__()
            self.scale = scale

    with watched(tmp_path, own=()):
        assert float(Early().scale) == 2.0


def test_sums_of_gradients_are_not_given_a_models_initial_weights(tensorflow: Any, tmp_path: Path) -> None:
    kernels = []
    for begins in (True, False):
        with watched(tmp_path, own=(), begins=begins):
            model = column()
            sums = [tf.Variable(tf.zeros_like(each)) for each in model.trainable_variables]  # trainable by default
            model(tf.ones((2, 2)))
            assert not any(np.any(each.numpy()) for each in sums)
            kernels.append(model.layers[0].kernel.numpy())
    np.testing.assert_array_equal(*kernels)


def subtracted(variables: Any, gradients: Any) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)


def assigned(variables: Any, gradients: Any) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign(variable - 0.1 * gradient)


def in_slices(variables: Any, gradients: Any) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable[:].assign(variable - 0.1 * gradient)


def by_update(
    folder: Path, way: Callable[..., Any], update: Callable[..., Any], *, one_by_one: bool = False, given: bool = False
) -> Any:
    """The trace of three steps of a linear model; the gradients may be ``given`` by a graph of their own."""
    with watched(folder) as observer:
        weights = [tf.Variable([[1.0], [2.0]]), tf.Variable([0.5])]

        def take(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weights[0] + weights[1]))
            return loss, tape.gradient(loss, weights)

        take = tf.function(take) if given else take

        def step(x: Any) -> None:
            if one_by_one:
                with tf.GradientTape(persistent=True) as tape:
                    loss = tf.reduce_mean(tf.square(x @ weights[0] + weights[1]))
                for each in weights:
                    update([each], [tape.gradient(loss, each)])
            else:
                update(weights, take(x)[1])
            weights[1].assign(tf.clip_by_value(weights[1], 0.3, 0.4))

        train = way(step)
        for size in (1, 2, 3):
            train(tf.fill((2 if size < 3 else 3, 2), 0.1 * size))  # the last one is traced again
        observer.ended()
        assert observer.writer is not None
        observer.writer.close()
    (trace,) = [each for each in read_traces(folder / "trace") if not each.state]
    return trace


@pytest.mark.parametrize("way", [eager, in_graph])
def test_steps_without_an_optimizer_are_those_of_sgd(tensorflow: Any, tmp_path: Path, way: Callable[..., Any]) -> None:
    def by_sgd(variables: Any, gradients: Any) -> None:
        optimizer.apply(gradients, variables)

    for number, (update, one_by_one) in enumerate(
        [(subtracted, False), (assigned, False), (assigned, True), (in_slices, False)]
    ):
        found = by_update(tmp_path / str(number), way, update, one_by_one=one_by_one)
        assert [each["class"] for each in found.optimizers] == [BY_HAND]
        optimizer = keras.optimizers.SGD(0.1)
        right = by_update(tmp_path / f"{number}-right", way, by_sgd)
        assert found.steps["step"].tolist() == right.steps["step"].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(found.steps["hashes"], right.steps["hashes"])


def test_gradients_that_a_graph_gives_its_caller_make_a_step_by_hand_each_time(tensorflow: Any, tmp_path: Path) -> None:
    found, right = (by_update(tmp_path / f"{given}", eager, subtracted, given=given) for given in (True, False))
    assert [each["class"] for each in found.optimizers] == [BY_HAND]
    assert found.steps["step"].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(found.steps["projections"], right.steps["projections"], rtol=1e-6)


def test_a_graph_that_is_called_between_gradients_and_update_gives_none(tensorflow: Any, tmp_path: Path) -> None:
    with watched(tmp_path) as observer:
        table, noted = tf.Variable([[1.0], [2.0]]), tf.function(lambda: tf.constant(1.0))
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.gather(table, [0, 1])))
            (gradient,) = tape.gradient(loss, [table])
            assert isinstance(gradient, tf.IndexedSlices)
            noted()
            table.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        observer.ended()
        observer.writer.close()
    (trace,) = [each for each in read_traces(tmp_path / "trace") if not each.state]
    assert trace.steps["step"].tolist() == [0, 1, 2, 3]


def test_changes_beside_an_optimizer_are_no_steps(tensorflow: Any, tmp_path: Path) -> None:
    """As SAM moves the weights along their gradients, and back, before it takes those of its step."""
    optimizers = []

    def update(variables: Any, gradients: Any) -> None:
        optimizers.append(optimizers[0] if optimizers else keras.optimizers.SGD(0.1))
        subtracted(variables, gradients)
        optimizers[0].apply(gradients, variables)

    found = by_update(tmp_path, eager, update)
    assert [each["class"] for each in found.optimizers] == ["SGD"]
    assert found.steps["step"].tolist() == [0, 1, 2, 3]
