"""``--iteration`` and ``--steps-per-execution``: different calls make the same steps, and the verdict counts both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tasks
from against_fit import task_of
from recorded import by_place
from test_thresholds import record, without

import compare
from compare.engine.costs import CostMeter
from compare.execution import Execution
from compare.options import request
from compare.records.codec import encode
from compare.records.metrics_csv import MetricsFile
from compare.records.model import EPOCH_END, INITIAL, Record, StepRecord
from compare.records.reader import read_records
from compare.records.recorder import Recorder
from compare.reporting.sentences import sentence, where
from compare.verdict.exact import compare_records, noise_start
from compare.verdict.outcomes import DIFFERENT, IDENTICAL

# 75 examples, 5 batches of 16 on one replica; the last one is short.
FOR, ITERATOR, FUNCTION = Execution("for"), Execution("iterator"), Execution("function")
TWO, THREE = Execution("iterator", 2), Execution("iterator", 3)

Train = Callable[..., Record]


@pytest.fixture(scope="module")
def train(tensorflow: Any, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains with a built-in or a given trainer; returns the records, read back from disk."""
    from compare.app.loading import load_trainers
    from compare.engine.run import Run

    @functools.cache
    def train(
        trainer: Any,
        execution: Execution,
        *,
        replicas: int = 1,
        given: compare.Experiment | None = None,
        epochs: int = 2,
    ) -> Record:
        experiment = given or tasks.experiment(batch_norm=True, dropout=True, regularize=True)
        task = task_of(experiment, 16, replicas, execution)
        folder = tmp_path_factory.mktemp("run")
        (name, found), _ = load_trainers(request(trainers=(trainer, "fit")))
        recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), name, 0)
        found.train(Run(task, seed=0, epochs=range(1, epochs + 1), sinks=[recorder]))
        recorder.flush()
        (record,) = read_records(folder)
        return record

    return train


def images() -> compare.Experiment:
    """A convolution, whose bias oneDNN adds differently."""
    import tensorflow as tf

    def load_data() -> Any:
        generator = np.random.default_rng(3)
        x = generator.normal(size=(60, 12, 12, 1)).astype("float32")
        y = (x.mean((1, 2, 3)) > 0).astype("int32")
        return (x[:40], y[:40]), (x[40:], y[40:])

    layers = tf.keras.layers
    conv = [(layers.Conv2D, {"filters": 8, "kernel_size": 3, "activation": "relu"}), (layers.Flatten, {})]
    return replace(
        tasks.experiment(),
        name="images",
        load_data=load_data,
        build_model=lambda: tf.keras.Sequential([*(kind(**given) for kind, given in conv), layers.Dense(3)]),
    )


def places(record: Record) -> list[tuple[int, int]]:
    return [place for place in by_place(record) if place[1] not in (INITIAL, EPOCH_END)]


@pytest.fixture(scope="module")
def fits(train: Train) -> dict[Any, Record]:
    return {1: train("fit", FOR), 2: train("fit", FOR, replicas=2)}


def test_one_replica_on_a_cpu_uses_the_dataset_itself(tensorflow: Any) -> None:
    from compare.engine import strategies

    dataset = tensorflow.data.Dataset.range(8).batch(4)
    for name, replicas, itself in (("mirrored", 1, True), ("one-device", None, True), ("mirrored", 2, False)):
        distributed = strategies.distribute(strategies.make(name, replicas), dataset)
        assert (distributed is dataset) == itself, name
        assert itself or isinstance(distributed, tensorflow.distribute.DistributedDataset)


def test_fit_on_one_cpu_trains_as_with_keras_own_distribution(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.data.ops.multi_device_iterator_ops import OwnedMultiDeviceIterator

    from compare.engine import strategies

    distributed, made = [], OwnedMultiDeviceIterator.__init__

    def make(self: Any, *args: Any, **given: Any) -> None:
        distributed.append(self)
        made(self, *args, **given)

    monkeypatch.setattr(OwnedMultiDeviceIterator, "__init__", make)
    fit = functools.partial(train.__wrapped__, "fit", FOR)  # type: ignore[attr-defined] # trained anew
    direct = fit()
    assert not distributed
    monkeypatch.setattr(strategies, "_on_one_cpu", lambda strategy: False)
    comparison = compare_records(fit(), direct)
    assert distributed
    assert comparison.verdict == IDENTICAL
    assert comparison.training.steps_compared == 10


def test_a_strategy_distributes_again_after_fit(tensorflow: Any) -> None:
    from compare.engine import strategies

    dataset = tensorflow.data.Dataset.range(8).batch(4)
    strategy, name = strategies.make("mirrored", 1), "experimental_distribute_dataset"
    with strategies.without_needless_distribution(strategy):
        assert strategy.experimental_distribute_dataset(dataset) is dataset
    assert name not in vars(strategy)
    setattr(strategy, name, print)  # as while a trainer is checked
    with strategies.without_needless_distribution(strategy):
        pass
    assert vars(strategy)[name] is print
    several = strategies.make("mirrored", 2)
    with strategies.without_needless_distribution(several):
        assert isinstance(several.experimental_distribute_dataset(dataset), tensorflow.distribute.DistributedDataset)


@pytest.mark.parametrize(
    ("execution", "replicas"),
    [
        pytest.param(way, replicas, id=f"{way.iteration}-{replicas}", marks=[] if in_gate else [pytest.mark.slow])
        for way, replicas, in_gate in [
            (FOR, 1, False),  # see the trainer that reports several steps at once
            (FOR, 2, False),
            (ITERATOR, 1, False),  # the default, in most other tests
            (ITERATOR, 2, False),
            (FUNCTION, 1, False),
            (FUNCTION, 2, True),
        ]
    ],
)
def test_every_way_of_iterating_trains_exactly_like_fit(
    train: Train, fits: dict[Any, Record], execution: Execution, replicas: int
) -> None:
    comparison = compare_records(fits[replicas], train("loop", execution, replicas=replicas))
    assert comparison.verdict == IDENTICAL
    # On two replicas the last batch, which is short, is a separate call.
    steps = 2 * replicas if execution is FUNCTION else 10
    assert (comparison.training.steps_compared, comparison.training.steps_made) == (steps, 0 if steps == 10 else 10)


@pytest.mark.exact
@pytest.mark.slow
def test_a_whole_epoch_of_convolutions_on_two_replicas_equals_fit(train: Train) -> None:
    experiment = images()
    fit, loop = (train(name, way, replicas=2, given=experiment) for name, way in (("fit", FOR), ("loop", FUNCTION)))
    assert compare_records(fit, loop).verdict == IDENTICAL


@pytest.mark.slow
def test_a_short_batch_of_an_embedding_on_two_replicas(train: Train, tensorflow: Any) -> None:
    """Replicas gather its gradients, a row per example; in a while loop TensorFlow allows one shape only."""
    import tensorflow as tf

    def load_data() -> Any:
        x = np.arange(74) % 7  # batches of 32, 32 and 10, which divide evenly
        return (x, x % 3), (x[:20], x[:20] % 3)

    layers = tf.keras.layers
    experiment = replace(
        tasks.experiment(),
        name="embedding",
        load_data=load_data,
        build_model=lambda: tf.keras.Sequential([tf.keras.Input(()), layers.Embedding(7, 4), layers.Dense(3)]),
    )
    fit, loop = (train(name, way, replicas=2, given=experiment) for name, way in (("fit", FOR), ("loop", FUNCTION)))
    assert compare_records(fit, loop).verdict == IDENTICAL


@pytest.mark.parametrize("execution", [THREE, pytest.param(Execution("iterator", 8), marks=pytest.mark.slow)], ids=str)
def test_several_steps_per_execution_make_the_same_steps_and_no_more(
    train: Train, fits: dict[Any, Record], execution: Execution
) -> None:
    fit, loop, train_step = (train(name, execution, epochs=3) for name in ("fit", "loop", "train-step"))
    assert places(fit) == places(loop) == places(train_step)
    size = execution.steps_per_execution
    assert [step for epoch, step in places(fit) if epoch == 2] == sorted({*range(size, 6, size), 5})
    assert compare_records(fit, loop).verdict == compare_records(fit, train_step).verdict == IDENTICAL
    # Not only equal to each other but to single steps, which use each example of an epoch once.
    alone = compare_records(fits[1], fit.up_to((2, EPOCH_END)))
    assert alone.verdict == IDENTICAL and alone.training.steps_made == 10


def test_trainers_that_record_different_steps_are_compared_where_both_record(
    train: Train, fits: dict[Any, Record]
) -> None:
    comparison = compare_records(train("fit", TWO), train("loop", THREE))
    assert comparison.verdict == IDENTICAL
    assert comparison.training.steps_compared == 2, "only step 5 of each epoch is recorded by both"


def test_a_trainer_may_report_several_steps_at_once_but_not_zero(train: Train, fits: dict[Any, Record]) -> None:
    class AtOnce(compare.CustomLoop):
        name = "at-once"

        def __init__(self, said: int) -> None:
            self.said = said

        def train(self, run: Any) -> None:
            end_step, waiting = run.end_step, []

            def later() -> None:
                waiting.append(1)
                if len(waiting) == 5:
                    end_step(self.said)
                    waiting.clear()

            run.end_step = later
            super().train(run)

    assert compare_records(fits[1], train(AtOnce(5), FOR)).verdict == IDENTICAL
    with pytest.raises(compare.RequestError, match="end_step was called for 0 steps"):
        train(AtOnce(0), FOR)


class Skips(compare.CustomLoop):
    """A mistake in every fourth step."""

    name = "skips"

    def compute_loss(self, y: Any, predictions: Any, sample_weight: Any) -> Any:
        loss = super().compute_loss(y, predictions, sample_weight)
        fourth = self.optimizer.iterations % 4 == 3
        import tensorflow as tf

        return tf.where(tf.convert_to_tensor(fourth), loss * 1.5, loss)


def test_a_difference_is_located_between_the_recorded_steps(train: Train, fits: dict[Any, Record]) -> None:
    fit, loop = train("fit", THREE), train(Skips(), THREE)
    comparison = compare_records(fit, loop)
    first = comparison.training.first_difference
    assert comparison.training.verdict == DIFFERENT and first is not None
    assert (first.epoch, first.since_step, first.step) == (1, 4, 5)
    assert noise_start(fit, loop, comparison.training) == (1, 4), (
        "the twins' noise begins before all steps that may differ"
    )
    assert encode(first) == {"epoch": 1, "step": 5, "since_step": 4}
    assert where(comparison) == "Epoch 1, in steps 4 to 5"
    assert "differ after step 5 of epoch 1, the last step of a call that started with step 4" in sentence(
        comparison, "fit"
    )

    exactly = compare_records(fits[1], train(Skips(), FOR)).training.first_difference
    assert exactly is not None and (exactly.step, exactly.since_step) == (4, None)


def test_the_sentence_for_identical_counts_calls_and_steps(train: Train) -> None:
    fit = train("fit", TWO)
    same = compare_records(fit, replace(fit, trainer="loop"))
    assert (same.training.steps_compared, same.training.steps_made) == (6, 10)
    assert "after each of 6 calls, which made 10 steps" in sentence(same, "fit")


def test_a_step_that_one_trainer_never_makes_is_a_difference() -> None:
    fit, loop = without(record("fit", *range(7)), 1, 3, 5), record("loop", *range(5))
    training = compare_records(fit, loop).training
    assert training.verdict == DIFFERENT and training.first_difference is not None
    assert training.first_difference.step == 6 and training.reason == "loop has no step 6 in epoch 1"


def test_the_time_of_a_step_is_its_share_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from compare.engine import costs
    from compare.records.model import EpochRecord

    clock = iter([0.0, 0.0, 10.0, 14.0, 16.0, 17.0])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(clock))
    kept: list[dict[str, Any]] = []
    meter, nothing = CostMeter(kept.append), (np.zeros((1, 1), np.uint64), np.zeros((1, 2)))
    for step in (INITIAL, 4, 8, 10):
        meter(StepRecord(1, step, *nothing))
    meter(EpochRecord(1, {}, 1.0, 1.0))
    assert (kept[0]["first_step_seconds"], kept[0]["step_seconds"]) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iteration": "while"}, "--iteration while: unknown; there are for, iterator, function"),
        ({"iteration": "for", "steps_per_execution": 2}, "--iteration for makes one step per call"),
        ({"iteration": "function", "steps_per_execution": 2}, "--iteration function makes all steps of an epoch"),
        ({"steps_per_execution": 0}, "--steps-per-execution 0: give a whole number, at least 1"),
        ({"jit": True, "check": True}, "--jit has no meaning in a short check"),
        ({"iteration": "iterator", "check": True}, "--iteration has no meaning in a short check"),
        ({"steps_per_execution": 2, "strategy": "parameter-server"}, "sends out single steps"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(compare.RequestError, match=message):
        request(**given)


def test_the_default_is_an_iterator_except_for_single_steps_of_several_processes() -> None:
    assert request().execution == ITERATOR
    assert request(strategy="multi-worker", workers=2).execution == FOR
    assert request(strategy="multi-worker", workers=2, steps_per_execution=2).execution == TWO
    assert request(steps_per_execution=2).execution == TWO
    assert request(iteration="function", jit=True).execution == Execution("function", 1, True)


def test_what_preflight_finds_cannot_run_indeed(train: Train) -> None:
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError, match="feed a value for placeholder"):
        train("fit", TWO, replicas=2)


def test_xla_needs_a_process_without_op_determinism(tensorflow: Any, tmp_path: Path) -> None:
    with pytest.raises(compare.RequestError, match="--jit: op determinism is already enabled"):
        compare.run(tasks.experiment(), jit=True, replicas=1, reports=tmp_path)
    assert not list(tmp_path.iterdir())


def test_iterators_of_distributed_datasets_have_no_threads_to_wait_for(
    tensorflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads cannot be counted: TensorFlow's own end late."""
    from tensorflow.python.data.ops import iterator_ops

    from compare.engine import strategies

    tf, autotuned = tensorflow, []

    made = iterator_ops.OwnedIterator.__init__

    def make(self: Any, dataset: Any = None, **given: Any) -> None:
        autotuned.append(dataset.options().autotune.enabled)
        made(self, dataset, **given)

    monkeypatch.setattr(iterator_ops.OwnedIterator, "__init__", make)
    options, strategy = tf.data.Options(), strategies.make("mirrored", 2)
    options.autotune.enabled = False
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2).with_options(options))
    for context, expected in ((strategies.without_idle_waits(), False), (nullcontext(), None)):
        autotuned.clear()
        with context:
            batches = list(dataset)
        assert len(batches) == 4
        assert autotuned == [expected] * strategy.num_replicas_in_sync
