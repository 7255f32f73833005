"""Problems that are found before any training."""

from __future__ import annotations

import pytest
import tasks

import compare
from compare.engine.preflight import CANNOT_RUN, REFUSED, WARNING, Facts, batch_sizes, problems, split_sizes

EVEN = {
    "strategy": "mirrored",
    "keras": 3,
    "trainers": ("fit", "loop"),
    "replicas": 2,
    "workers": 1,
    "examples": (256, 128),
    "global_batch_size": 128,
}


def found(**changes):
    return {finding.id: finding for finding in problems(Facts(**(EVEN | changes)))}


def test_an_even_run_has_no_findings():
    assert found() == {}


@pytest.mark.parametrize(
    ("examples", "replicas", "split"),
    [(64, 2, [32, 32]), (17, 2, [9, 8]), (17, 4, [5, 5, 5, 2]), (1, 2, [1, 0]), (5, 4, [2, 2, 1, 0]), (0, 2, [0, 0])],
)
def test_split_sizes(examples, replicas, split):
    assert split_sizes(examples, replicas) == split


def test_split_sizes_equal_those_of_a_distributed_dataset(tensorflow):
    from compare.engine import strategies

    strategy = strategies.make("mirrored", 4)
    for size in range(1, 18):
        dataset = tensorflow.data.Dataset.from_tensor_slices(tensorflow.range(size)).batch(size)
        (batch,) = strategy.experimental_distribute_dataset(dataset)
        assert [len(part) for part in strategy.experimental_local_results(batch)] == split_sizes(size, 4)


def test_batch_sizes_are_the_full_one_and_the_short_last_one():
    assert batch_sizes(60_000, 64) == [64, 32]
    assert batch_sizes(128, 64) == [64]
    assert batch_sizes(40, 64) == [40]


@pytest.mark.parametrize("strategy", ["multi-worker", "parameter-server"])
def test_keras_3_fit_cannot_run_on_a_cluster(strategy):
    finding = found(strategy=strategy, workers=2)[f"fit-{strategy}-keras-3"]
    assert (finding.severity, finding.side) == (CANNOT_RUN, "fit")
    assert "--keras 2" in finding.remedy
    assert f"fit-{strategy}-keras-3" not in found(strategy=strategy, workers=2, keras=2)
    assert f"fit-{strategy}-keras-3" not in found(strategy=strategy, workers=2, trainers=("loop", "tutorial"))


def test_what_keras_3s_fit_cannot_run_train_step_cannot_run_either():
    runs = [{"strategy": "multi-worker", "workers": 2}, {"examples": (256, 33)}, {"steps_per_execution": 2}]
    for run in runs:
        sides = {trainers: [each.side for each in problems(Facts(**(EVEN | run | {"trainers": trainers})))]
                 for trainers in (("loop", "train-step"), ("fit", "train-step"), ("loop", "tutorial"))}  # fmt: skip
        assert [side for side in sides["loop", "train-step"] if side] == ["train-step"], run
        assert [side for side in sides["fit", "train-step"] if side] == ["fit", "train-step"], run
        assert not any(sides["loop", "tutorial"]), run


def test_keras_3_fit_cannot_begin_with_an_uneven_batch():
    assert found(examples=(256, 33))["fit-first-batch-uneven"].severity == CANNOT_RUN
    assert "fit-first-batch-uneven" not in found(examples=(256, 33), keras=2)
    assert "fit-first-batch-uneven" not in found(examples=(256, 128 + 33)), "a later one may be uneven"


def test_keras_3_fit_cannot_take_strings_on_several_replicas():
    assert found(text=True)["fit-text-several-replicas"].severity == CANNOT_RUN
    for fine in ({"keras": 2}, {"replicas": 1, "strategy": "default"}, {"trainers": ("loop", "tutorial")}):
        assert "fit-text-several-replicas" not in found(text=True, **fine)


def test_what_one_call_of_several_replicas_cannot_run():
    assert list(found(steps_per_execution=2)) == ["fit-steps-per-execution-keras-3"]
    assert found(steps_per_execution=2, keras=2) == found(steps_per_execution=2, replicas=1) == {}
    assert list(found(jit_compile=True)) == ["jit-several-replicas"]
    assert found(jit_compile=True, replicas=1) == {}


def test_what_fit_cannot_run_is_reported_before_training(tensorflow, tmp_path):
    options = {"replicas": 2, "batch_size": 32, "reports": tmp_path, "name": "run", "quiet": True}
    result = compare.run(tasks.experiment(train=64, validation=33), **options)
    assert (result.verdict, result.exit_status) == ("not-comparable", 3)
    failure = result.details["comparisons"][0]["failure"]
    assert failure["side"] == "fit" and failure["remedy"]
    assert not (tmp_path / "run" / "metrics.csv").exists(), "nothing was trained"


def test_an_empty_replica_is_fatal_in_a_convolution_and_a_warning_elsewhere():
    assert found(examples=(257, 128))["empty-replica-batch"].severity == WARNING
    assert found(examples=(257, 128), convolution=True)["empty-replica-batch"].severity == CANNOT_RUN
    assert "empty-replica-batch" in found(examples=(256 + 5, 128), replicas=4), "5 examples are 2, 2, 1 and 0"
    assert "empty-replica-batch" not in found(examples=(257, 128), replicas=1)


def test_uneven_parts_are_a_warning():
    assert found(examples=(256 + 17, 128))["uneven-replica-batches"].severity == WARNING
    assert "[9, 8]" in found(examples=(256 + 17, 128))["uneven-replica-batches"].message
    assert "uneven-replica-batches" not in found(examples=(256 + 16, 128))


def test_central_storage_under_keras_3_on_several_replicas():
    several = {"strategy": "central-storage"}
    assert "central-storage-metrics-keras-3" in found(**several)
    assert found(**several, batch_norm=True)["central-storage-state-keras-3"].severity == CANNOT_RUN
    assert found(**several, dropout=True)["central-storage-state-keras-3"].severity == CANNOT_RUN
    assert found(**several, replicas=1, batch_norm=True) == {}
    assert found(**several, keras=2) == {}


def test_batch_norm_on_replicas_is_a_warning():
    assert found(batch_norm=True)["batch-norm-per-replica"].severity == WARNING
    assert found(batch_norm=True, replicas=1) == {}


@pytest.mark.parametrize(
    ("environment", "uses", "machine", "off"),
    [
        ({}, False, "x86_64", True),
        ({}, True, "x86_64", False),
        ({}, False, "arm64", False),
        ({"TF_ENABLE_ONEDNN_OPTS": "0"}, False, "x86_64", False),
    ],
)
def test_that_tensorflow_leaves_onednn_off_is_said_where_it_costs(
    tensorflow, monkeypatch, environment, uses, machine, off
):
    from compare.engine import insides_tensorflow

    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(insides_tensorflow, "uses_onednn", lambda: uses)
    assert insides_tensorflow.leaves_onednn_off() is off
    assert set(found(convolution=True, without_onednn=off)) == ({"onednn-off"} if off else set())
    assert found(without_onednn=off) == {}, "nothing else takes that much longer"


def test_every_finding_has_a_message_and_a_remedy():
    worst = Facts(**(EVEN | {"examples": (257, 33), "strategy": "central-storage", "batch_norm": True}))
    for finding in problems(worst):
        assert finding.message
        assert finding.remedy
        assert "\n" not in str(finding)


def test_a_batch_larger_than_the_data_is_refused():
    finding = found(examples=(127, 128))["batch-exceeds-examples"]
    assert finding.severity == REFUSED
    assert "at most 63" in finding.remedy
    assert "batch-exceeds-examples" not in found(examples=(128, 128))


def test_more_replicas_than_examples_are_refused_with_the_largest_number():
    finding = found(examples=(120, 128), replicas=200, global_batch_size=200)["batch-exceeds-examples"]
    assert finding.remedy == "use at most 120 replicas"


def test_more_logical_devices_than_make_sense_are_refused(tensorflow):
    with pytest.raises(compare.RequestError, match="--replicas 100000: at most 256 logical devices are made"):
        compare.configure(replicas=100_000)
