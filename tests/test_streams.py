"""Data as a function from epoch to tf.data.Dataset: equal for all trainers; refused where it cannot be."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tasks
from against_fit import GLOBAL_BATCH_SIZE, held_against_fit, run_of

import compare
from compare.verdict.model import Difference

pytestmark = pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")

EXAMPLES = 75


def stream(**changes: Any) -> compare.Experiment:
    """The blobs as functions that return datasets: shuffled by epoch, with sample weights, and prepared."""

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


class SameOrder(compare.CustomLoop):
    """Trains every epoch on the first epoch's dataset."""

    name = "same-order"

    def train(self, run: Any) -> None:
        given = run.train_dataset
        run.train_dataset = lambda epoch: given(1)
        super().train(run)


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fit_and_loop_are_identical_and_a_loop_with_the_same_order_in_every_epoch_is_not(
    tf: Any, tmp_path: Any, replicas: int
) -> None:
    loop, wrong = held_against_fit(stream(), [compare.CustomLoop(), SameOrder()], tmp_path, replicas)
    assert loop.verdict == "identical", loop
    assert loop.training.steps_compared == 2 * -(-EXAMPLES // GLOBAL_BATCH_SIZE)
    assert wrong.verdict == "different", wrong
    assert wrong.training.first_difference == Difference(2, 1)


def test_the_short_check_reads_only_the_beginning_of_a_stream(tf: Any) -> None:
    (x, y), _ = tasks.blobs(EXAMPLES, 36)
    read = []

    def example(i: Any) -> Any:
        read.append(int(i))
        return x[i % EXAMPLES], y[i % EXAMPLES]

    def train(epoch: int) -> Any:
        def shaped(*parts: Any) -> Any:
            return tf.ensure_shape(parts[0], x.shape[1:]), tf.ensure_shape(parts[1], ())

        examples = tf.data.Dataset.range(100_000)
        return examples.map(lambda i: shaped(*tf.numpy_function(example, [i], [x.dtype, y.dtype])))

    compare.assert_alike(loads(train), compare.CustomLoop())
    assert 100 < max(read) < 5_000, "of 100,000"


def test_only_the_first_examples_of_each_epoch(tf: Any) -> None:
    from compare.engine.input_pipeline import load

    train, _ = load(stream())
    few = train.first(20)
    assert (train.count, few.count) == (EXAMPLES, 20)
    whole, part = (list(each.of_epoch(0, 2, 10).unbatch().as_numpy_iterator()) for each in (train, few))
    assert len(whole) == EXAMPLES
    for (x, *_), (same, *_) in zip(whole, part, strict=False):
        np.testing.assert_array_equal(x, same)
    assert train.sha256 == load(stream())[0].sha256 != few.sha256


@pytest.mark.parametrize("of", ["arrays", "functions"])
def test_data_that_is_prepared_once_more_is_described_as_it_is_then(tf: Any, of: str) -> None:
    from compare.engine.input_pipeline import load

    train, _ = load(stream() if of == "functions" else loads(tasks.blobs(EXAMPLES, 8)[0]))
    given = train.spec
    exact = train.preparing(lambda *batch: tuple(tf.cast(part, tf.float64) for part in batch))
    (x, *_), (same, *_) = (next(iter(each.of_epoch(0, 1, 8))) for each in (exact, train))
    assert exact.spec[0].dtype == x.dtype == tf.float64 and train.spec is given
    np.testing.assert_array_equal(x, same)
    assert exact.sha256 == train.sha256, "the data stays the same"


def test_all_epochs_follow_each_other(tf: Any) -> None:
    from compare.engine.input_pipeline import load

    train, _ = load(stream())
    epochs = range(2, 7)
    joined = train.of_epochs(epochs, lambda epoch: train.of_epoch(0, epoch, 40))
    one_by_one = [batch for epoch in epochs for batch in train.of_epoch(0, epoch, 40)]
    assert len(one_by_one) == 10
    for (x, *_), (same, *_) in zip(joined, one_by_one, strict=True):
        np.testing.assert_array_equal(x, same)


def test_a_plain_data_set_is_that_of_every_epoch_and_unknown_lengths_are_counted(tf: Any) -> None:
    from compare.engine.input_pipeline import load

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


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_epochs_dataset_is_created_when_the_epoch_begins_unless_in_another_process(tf: Any, elsewhere: bool) -> None:
    from compare.engine.input_pipeline import load

    train, _ = load(stream())
    made = []

    def of_epoch(epoch: int) -> Any:
        made.append(epoch)
        return train.of_epoch(0, epoch, 40)

    epochs = range(1, 10)
    batches = iter(train.of_epochs(epochs, of_epoch, elsewhere=elsewhere))
    next(batches)
    assert set(made) == (set(epochs) if elsewhere else {1})
    assert len(list(batches)) == 2 * len(epochs) - 1
    assert set(made) == set(epochs)


def test_initial_weights_are_recorded_once_however_many_epochs_there_are(tf: Any) -> None:
    from compare.records.model import INITIAL, StepRecord

    records: list[Any] = []
    run = run_of(stream(), 25, epochs=range(1, 10), sinks=[records.append])
    run.build()
    for _ in run.train_datasets():
        pass
    assert [record.step for record in records if isinstance(record, StepRecord)] == [INITIAL, INITIAL]


def test_equal_text_has_equal_digests_and_other_text_another(tf: Any) -> None:
    from compare.engine.input_pipeline import load

    def of(*words: str) -> list[Any]:
        x, y = np.array([words] * 4), np.arange(4)
        slices = tf.data.Dataset.from_tensor_slices((x, y))
        return [load(loads(data))[0].sha256 for data in ((x, y), slices, lambda: slices)]

    assert of("one", "two") == of("one", "two")
    assert not set(of("one", "two")) & set(of("one", "too"))


def test_a_list_of_arrays_is_several_inputs_and_other_lists_are_one_array(tf: Any) -> None:
    from compare.engine.input_pipeline import load

    x, y = tasks.blobs(30, 8)[0]
    for several in ([x, x[:, :2]], (x, x[:, :2])):
        train, _ = load(loads((several, y.tolist())))
        assert [part.shape.as_list() for part in tf.nest.flatten(train.spec)] == [[None, 8], [None, 2], [None]]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            lambda tf: lambda epoch: [1, 2],
            "is of type list: the function returned by load_data must return",
        ),
        (lambda tf: lambda epoch: tf.data.Dataset.range(5), r"give single examples, \(x, y\)"),
        (lambda tf: epochs_of(tf, 0), "training dataset of epoch 1 is empty"),
        (lambda tf: tf.data.Dataset.from_tensor_slices(tasks.blobs(9, 8)[0]).repeat(), r"has no end: give take\(n\)"),
        (
            lambda tf: lambda: tf.data.Dataset.from_tensor_slices(tasks.blobs(50, 8)[0]).shuffle(50),
            "another order when it is created again.* give shuffle a seed|Random ops require .* give shuffle a seed",
        ),
        (
            lambda tf: tf.data.Dataset.from_tensor_slices(tasks.blobs(50, 8)[0]).shuffle(50, seed=1),
            "another order when it is created again.* reshuffle_each_iteration=False",
        ),
        (
            lambda tf: lambda: tf.data.Dataset.from_tensor_slices(tasks.blobs(50, 8)[0]).batch(8).map(lambda *b: b),
            r"gives batches.* leave out batch\(\)",
        ),
        (
            lambda tf: tf.data.Dataset.range(9).map(lambda i: (tf.zeros([i]), i)),
            r"load_data raised InvalidArgumentError.*test_streams.py, line \d+\); give all examples the same shape",
        ),
        (lambda tf: lambda a, b: None, "must take one argument, the epoch, or none"),
        (
            lambda tf: lambda epoch: {}[epoch],
            r"^the training data's .* epoch 1 raised KeyError: 1 \(\S*, line \d+\); fix it$",
        ),
        (lambda tf: flowing(tf), r"streams.py, line \d+\): .*not NumpyArrayIterator; return a PyDataset's arrays, or"),
        (lambda tf: iter([1, 2]), "not list_iterator; an iterator can be read once only: return arrays, or"),
        (lambda tf: lambda: (pair for pair in ()), r"is of type generator: .*: return arrays, or .*from_generator\("),
        (
            lambda tf: tf.distribute.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(points(tf).batch(8)),
            "Dataset; return the tf.data.Dataset, since each trainer distributes it",
        ),
        (
            lambda tf: points(tf).map(lambda x, y: (x + tf.random.normal([8], seed=1), y)),
            "another order when it is read again.* augment in the model, .* or seed each example",
        ),
    ],
)
def test_data_that_two_trainers_cannot_share_are_refused(tf: Any, data: Any, text: str) -> None:
    from compare.engine.input_pipeline import load

    with pytest.raises(compare.RequestError, match=text):
        load(loads(data(tf)))


@pytest.mark.parametrize("layer", [False, True])
def test_random_numbers_in_prepare_are_refused_unless_every_trainer_gets_the_same(tf: Any, layer: bool) -> None:
    from compare.engine.input_pipeline import load

    jitter = tf.keras.layers.GaussianNoise(1.0, seed=1)

    def continuing(x: Any, y: Any) -> Any:
        return (jitter(x, training=True) if layer else x + tf.random.normal(tf.shape(x), seed=1)), y

    def seeded(x: Any, y: Any) -> Any:
        return x + tf.random.stateless_normal(tf.shape(x), seed=(1, 2)), y

    task = loads(tasks.blobs(50, 8)[0])
    with pytest.raises(
        compare.RequestError, match=r"prepare \(.*streams.py, line \d+\): the examples change.* augment in"
    ):
        load(dataclasses.replace(task, prepare=continuing))
    load(dataclasses.replace(task, prepare=seeded))


def test_augmentation_by_epoch_and_example_and_in_the_model_is_identical(tf: Any, tmp_path: Any) -> None:
    def of_epoch(epoch: int) -> Any:
        def jitter(i: Any, example: Any) -> Any:
            return example[0] + tf.random.stateless_normal([8], seed=(epoch, i)), example[1]

        return points(tf).enumerate().map(jitter)

    def build_model() -> Any:
        return tf.keras.Sequential([tf.keras.layers.GaussianNoise(0.1), tf.keras.layers.Dense(3)])

    task = dataclasses.replace(loads(of_epoch), build_model=build_model)
    result = compare.run(task, replicas=2, epochs=2, batch_size=10, reports=tmp_path, quiet=True)
    assert result.verdict == "identical"


def points(tf: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(tasks.blobs(50, 8)[0])


def flowing(tf: Any) -> Any:
    images = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)
    return images.flow(np.zeros([4, 8, 8, 1]), np.zeros(4))


def test_a_generator_without_an_end_is_not_counted_forever(tf: Any, monkeypatch: Any) -> None:
    from compare.engine import input_pipeline

    x, y = (part[0] for part in tasks.blobs(9, 8)[0])
    spec = tuple(tf.TensorSpec(part.shape, part.dtype) for part in (x, y))
    endless = tf.data.Dataset.from_generator(lambda: iter(lambda: (x, y), None), output_signature=spec)
    monkeypatch.setattr(input_pipeline, "COUNTING", 0)
    with pytest.raises(compare.RequestError, match=r"counting was stopped at .*: give take\(n\)"):
        input_pipeline.load(loads(lambda: endless))
    monkeypatch.setattr(input_pipeline, "COUNTING", 60)
    assert input_pipeline.load(loads(lambda: endless.take(300)))[0].count == 300


def test_windows_and_unbatched_batches_are_single_examples(tf: Any) -> None:
    from compare.engine.input_pipeline import load

    x, y = tasks.blobs(40, 8)[0]
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
    assert load(loads(batches))[0].count == 5, "eight points and their labels are one example: a series"
    assert load(loads(batches.unbatch()))[0].count == 40


def test_a_function_that_fails_for_the_last_epoch_is_found_before_training(tf: Any, tmp_path: Any) -> None:
    whole = tf.data.Dataset.from_tensor_slices(tasks.blobs(24, 8)[0])
    files = {1: whole, 2: whole}
    options: dict[str, Any] = {"replicas": 1, "batch_size": 8, "reports": tmp_path, "quiet": True}
    with pytest.raises(compare.RequestError, match=r"epoch 3 raised KeyError: 3 \(.*streams.py, line \d+\); fix it"):
        compare.run(loads(lambda epoch: files[epoch]), epochs=3, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_that_turns_out_shorter_says_what_to_do(tf: Any, tmp_path: Any) -> None:
    from compare.records.files import read_json

    data = epochs_of(tf, 40, 30, 40, known=False)
    result = compare.run(loads(data), replicas=1, epochs=3, batch_size=10, reports=tmp_path, name="run", quiet=True)
    assert result.verdict == "not-comparable"
    for failure in read_json(tmp_path / "run" / "run.json")["failures"]:
        assert "expected to contain 40 elements but contained only 30" in failure["error"]
        assert failure["error"].endswith("; give every epoch as many examples as epoch 1, for example with take(n)")
        assert "\n" not in failure["error"]


def test_epochs_of_other_lengths_are_refused(tf: Any) -> None:
    from compare.engine.input_pipeline import load

    train, _ = load(loads(epochs_of(tf, 40, 30)))
    with pytest.raises(compare.RequestError, match="epoch 2 has 30 training examples and epoch 1 has 40"):
        train.of_epoch(0, 2, 8)
    train, _ = load(loads(epochs_of(tf, 40, 30, known=False)))
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 40"):
        list(train.of_epoch(0, 2, 8))


def test_the_float64_replica_trains_on_the_same_stream(tf: Any, tmp_path: Any) -> None:
    result = compare.run(
        stream(),
        replicas=1,
        epochs=1,
        batch_size=25,
        reports=tmp_path,
        quiet=True,
        float64_reference=True,
        name="truth",
    )
    distances = [each["distance"]["fit"] for each in result.details["truth"]["after"]]
    assert all(0 < distance < 1e-5 for distance in distances)
