"""Data as a function from epoch to tf.data.Dataset: the same for every trainer, and said where it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tasks

import compare

pytestmark = pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")

EXAMPLES = 75


def stream(**changes: Any) -> compare.Experiment:
    """The blobs as functions, shuffled by epoch, with one more example wherever a class is 0 (to see weights)."""

    def load_data() -> Any:
        import tensorflow as tf

        (x, y, *w), (x_val, y_val, *w_val) = tasks.blobs(EXAMPLES, 36, weights=True)

        def train(epoch: int) -> Any:
            assert isinstance(epoch, int), "a plain number, to choose files by"
            dataset = tf.data.Dataset.from_tensor_slices((x, y, *w))
            return dataset.shuffle(EXAMPLES, seed=epoch, reshuffle_each_iteration=False)

        return train, lambda: tf.data.Dataset.from_tensor_slices((x_val, y_val, *w_val))

    def prepare(x: Any, y: Any, w: Any) -> Any:
        return x / 2, y, w

    parts: dict[str, Any] = {"load_data": load_data, "prepare": prepare, "name": "stream"}
    return tasks.experiment(**(parts | changes))


@pytest.fixture(scope="module")
def tf(tensorflow: Any) -> Any:
    return tensorflow


def loads(data: Any) -> Any:
    """An experiment with this training data."""
    return stream(load_data=lambda: (data, tasks.blobs(8, 8)[1]), prepare=None)


@pytest.mark.parametrize("replicas", [1, 2])
def test_fit_and_loop_are_identical(tf: Any, tmp_path: Any, replicas: int) -> None:
    options: dict[str, Any] = {"replicas": replicas, "epochs": 3, "batch_size": 12, "reports": tmp_path, "quiet": True}
    result = compare.run(stream(), **options)
    assert result.verdict == "identical"
    (comparison,) = result.details["comparisons"]
    assert comparison["training"]["steps_compared"] == 3 * -(-EXAMPLES // (12 * replicas))
    assert result.metrics["loss"].nunique() == 3, "it trains"

    class SameOrder(compare.CustomLoop):
        name = "same-order"

        def train(self, run: Any) -> None:
            given = run.train_dataset
            run.train_dataset = lambda epoch: given(1)
            super().train(run)

    wrong = compare.run(stream(), trainers=("fit", SameOrder()), **options)
    assert wrong.verdict == "different"
    training = wrong.details["comparisons"][0]["training"]
    assert training["first_difference"] == {"epoch": 2, "step": 1}
    assert [cause["id"] for cause in wrong.details["comparisons"][0]["causes"]] == ["not-reshuffled"]


def test_the_short_check_takes_a_sample_of_it(tf: Any) -> None:
    compare.assert_alike(stream(), compare.CustomLoop())


def test_only_the_first_examples_of_each_epoch(tf: Any) -> None:
    from compare.pipeline import load

    train, _ = load(stream())
    few = train.first(20)
    assert (train.count, few.count) == (EXAMPLES, 20)
    whole, part = (list(each.of_epoch(0, 2, 10).unbatch().as_numpy_iterator()) for each in (train, few))
    assert len(whole) == EXAMPLES
    for (x, *_), (same, *_) in zip(whole, part, strict=False):
        np.testing.assert_array_equal(x, same)
    assert train.sha256() == load(stream())[0].sha256() != few.sha256()


def test_all_epochs_follow_each_other(tf: Any) -> None:
    from compare.pipeline import load

    train, _ = load(stream())
    epochs = range(2, 7)
    joined = train.of_epochs(epochs, lambda epoch: train.of_epoch(0, epoch, 40))
    one_by_one = [batch for epoch in epochs for batch in train.of_epoch(0, epoch, 40)]
    assert int(joined.cardinality()) == len(one_by_one) == 10
    for (x, *_), (same, *_) in zip(joined, one_by_one, strict=True):
        np.testing.assert_array_equal(x, same)


def test_a_plain_data_set_is_that_of_every_epoch_and_unknown_lengths_are_counted(tf: Any) -> None:
    from compare.pipeline import load

    x, y = tasks.blobs(30, 8)[0]
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: y > 0)
    train, _ = load(loads(dataset))
    assert train.count == int((y > 0).sum())
    first, second = (list(train.of_epoch(0, epoch, 7)) for epoch in (1, 2))
    assert len(first) == -(-train.count // 7)
    np.testing.assert_array_equal(first[0][0], second[0][0])


def epochs_of(tf: Any, *lengths: int, known: bool = True) -> Any:
    x, y = tasks.blobs(50, 8)[0]
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    whole = whole if known else whole.filter(lambda x, y: True)
    return lambda epoch: whole.take(lengths[epoch - 1])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            lambda tf: lambda epoch: [1, 2],
            "are a list: the function that load_data gives must return",
        ),
        (lambda tf: lambda epoch: tf.data.Dataset.range(5), r"give single examples, \(x, y\)"),
        (lambda tf: epochs_of(tf, 0), "training data set of epoch 1 is empty"),
        (lambda tf: tf.data.Dataset.from_tensor_slices(tasks.blobs(9, 8)[0]).repeat(), r"has no end: give take\(n\)"),
        (
            lambda tf: lambda: tf.data.Dataset.from_tensor_slices(tasks.blobs(50, 8)[0]).shuffle(50),
            "other examples when it is made again.* give shuffle a seed",
        ),
        (lambda tf: lambda a, b: None, "must take one argument, the epoch, or none"),
    ],
)
def test_data_that_two_trainers_cannot_share_are_refused(tf: Any, data: Any, text: str) -> None:
    from compare.pipeline import load

    with pytest.raises(compare.RequestError, match=text):
        load(loads(data(tf)))


def test_epochs_of_other_lengths_are_refused(tf: Any) -> None:
    from compare.pipeline import load

    train, _ = load(loads(epochs_of(tf, 40, 30)))
    with pytest.raises(compare.RequestError, match="epoch 2 has 30 training examples and epoch 1 has 40"):
        train.of_epoch(0, 2, 8)
    train, _ = load(loads(epochs_of(tf, 40, 30, known=False)))
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 40"):
        list(train.of_epoch(0, 2, 8))


def test_one_replica_in_float64_sees_the_same(tf: Any, tmp_path: Any) -> None:
    result = compare.run(
        stream(), replicas=1, epochs=1, batch_size=25, reports=tmp_path, quiet=True, truth=True, name="truth"
    )
    distances = [each["distance"]["fit"] for each in result.details["truth"]["after"]]
    assert all(0 < distance < 1e-5 for distance in distances)
