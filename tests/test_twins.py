"""Noise twins: equal to the reference until their noise begins, then moved by one unit in the last place per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tasks
from against_fit import task_of
from recorded import by_place

pytestmark = pytest.mark.filterwarnings(
    "ignore:To make it possible to preserve tf.data options:UserWarning",
    "ignore:.*Using MirroredStrategy eagerly has significant overhead.*",
)

REPLICAS = 2


@pytest.fixture(scope="module")
def task(tensorflow: Any) -> Any:
    return task_of(tasks.experiment(batch_norm=True), 16, REPLICAS)


def steps(task: Any, start: Any = None, twin: int = 1) -> dict[tuple[int, int], np.ndarray]:
    """Returns hashes of fit's weights by epoch and step; with ``start``, those of a twin with noise from there on."""
    from compare.engine.noise_twins import TwinRun
    from compare.engine.run import Run
    from compare.records.model import StepRecord
    from compare.trainers.keras_fit import KerasFit

    found: dict[tuple[int, int], np.ndarray] = {}

    def sink(record: Any) -> None:
        if isinstance(record, StepRecord):
            found[record.epoch, record.step] = record.hashes

    common: dict[str, Any] = {"seed": 3, "epochs": range(1, 3), "sinks": [sink]}
    KerasFit().train(Run(task, **common) if start is None else TwinRun(task, start=start, twin=twin, **common))
    return found


@pytest.fixture(scope="module")
def reference(task: Any) -> dict[tuple[int, int], np.ndarray]:
    return steps(task)


@pytest.mark.parametrize(
    "start", [(2, 1), *(pytest.param(place, marks=pytest.mark.slow) for place in ((1, 1), (1, 3), (2, 5)))]
)
def test_a_twin_equals_the_reference_until_its_noise_begins(
    task: Any, reference: dict[tuple[int, int], np.ndarray], start: tuple[int, int]
) -> None:
    from compare.records.model import EPOCH_END, INITIAL, in_time

    twin = steps(task, start)
    assert reference.keys() == twin.keys()
    for place in reference:
        if place[1] in (INITIAL, EPOCH_END):
            continue
        same = np.array_equal(reference[place], twin[place])
        assert same == (in_time(place) < in_time(start)), place
    trained = twin[2, EPOCH_END][:4]
    assert (trained == trained[:, :1]).all(), "all replicas are moved alike"


def test_each_twin_has_noise_of_its_own(task: Any) -> None:
    # Both begin at the same step, the last: with the same noise they would be equal.
    twin, another = steps(task, (2, 5)), steps(task, (2, 5), twin=2)
    assert not np.array_equal(twin[2, 5], another[2, 5])


# In the gate, test_verdict shows how the gaps count, and the test below how far weights are moved.
@pytest.mark.slow
def test_a_loud_twin_has_larger_noise_and_its_gaps_count_proportionally_less(task: Any, tmp_path: Any) -> None:
    from compare.engine.noise_twins import TwinRun
    from compare.engine.run import Run
    from compare.records.metrics_csv import MetricsFile
    from compare.records.model import INITIAL
    from compare.records.reader import read_records
    from compare.records.recorder import Recorder
    from compare.trainers.keras_fit import KerasFit
    from compare.verdict import rounding

    def record(name: str, **of_twin: Any) -> Any:
        (tmp_path / name).mkdir()
        recorder = Recorder(tmp_path / name, MetricsFile(tmp_path / name / "metrics.csv"), name, 3)
        common: dict[str, Any] = {"seed": 3, "epochs": range(1, 2), "sinks": [recorder]}
        KerasFit().train(TwinRun(task, start=(1, 1), **of_twin, **common) if of_twin else Run(task, **common))
        (found,) = read_records(tmp_path / name)
        return found

    reference = record("fit")
    quiet = [record(rounding.twin_name(twin, False), twin=twin) for twin in (1, 2, 3)]
    loud = record(rounding.twin_name(4, True), twin=4, loud=True)
    first = rounding._gap(by_place(reference)[1, 1], by_place(loud)[1, 1])
    against = rounding._gap(by_place(reference)[1, 1], by_place(quiet[0])[1, 1])
    assert 4 < np.median(first[against > 0] / against[against > 0]) < 64, "it is moved sixteen times as far"
    # While gaps are proportional to the noise, quiet and loud twins give the same ratio.
    alone, together = (rounding.measure(reference, quiet[2], twins, (1, 1)) for twins in ([loud], [*quiet[:2], loud]))
    assert 0.1 < together.ratio <= alone.ratio < rounding.FACTOR
    assert by_place(loud).keys() == by_place(reference).keys() and (1, INITIAL) in by_place(loud)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_noise_is_one_unit_in_the_last_place(tensorflow: Any, kind: str) -> None:
    import ml_dtypes  # TensorFlow's own, for bfloat16
    import tensorflow as tf

    from compare.engine.noise_twins import mover

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    values = np.array([1.0, -1.0, 3.14, -2e-3, 1e4, 0.0, np.inf, np.nan] * 8).astype(dtype)
    copies = [[tf.Variable(values), tf.Variable(values)], [tf.Variable([5, 7])]]
    mover(copies, twin=1)(tf.constant(1))
    one, other = (copy.numpy() for copy in copies[0])
    bits = np.dtype(f"int{8 * dtype.itemsize}")
    moved = one.view(bits).astype(int) - values.view(bits).astype(int)
    still = ~(np.isfinite(values.astype(float)) & (values != 0))
    assert (moved[still] == 0).all() and set(moved[~still]) == {-1, 1}
    np.testing.assert_array_equal(one.view(bits), other.view(bits))
    assert copies[1][0].numpy().tolist() == [5, 7], "whole numbers stay"
    mover(copies, twin=1)(tf.constant(2))
    again = copies[0][0].numpy().view(bits).astype(int) - values.view(bits).astype(int)
    assert set(again[~still]) == {-2, 0, 2}
    before = copies[0][0].numpy()
    mover(copies, twin=1, units=16)(tf.constant(3))
    louder = copies[0][0].numpy().view(bits).astype(int) - before.view(bits).astype(int)
    assert set(louder[~still]) == {-16, 16}


@pytest.mark.parametrize(
    ("epochs", "twins"), [pytest.param(1, 3, marks=pytest.mark.exact), pytest.param(2, 4, marks=pytest.mark.slow)]
)
def test_a_loop_that_only_rounds_differently_is_alike(task: Any, tmp_path: Any, epochs: int, twins: int) -> None:
    import tasks
    from corpus import planted

    import compare

    class Rounded(planted.ScaledAndBack, planted.Eager):
        """Other last bits with any kernels: g * 3 / 3 rounds twice, and no graph is there to be simplified."""

    options: dict[str, Any] = {
        "replicas": REPLICAS, "epochs": epochs, "batch_size": 8, "quiet": True, "reports": tmp_path
    }  # fmt: skip
    right = compare.run(tasks.experiment(batch_norm=True), trainers=("fit", Rounded()), **options)
    assert (right.verdict, right.exit_status) == ("alike", 0)
    (comparison,) = right.details["comparisons"]
    assert comparison["training"]["verdict"] == comparison["reporting"]["verdict"] == "alike"
    assert 0 < comparison["training"]["noise"]["largest_ratio"] < 30
    assert 0 < comparison["training"]["max_weight_gap"] < 1e-4
    assert comparison["training"]["noise"]["twins"] == twins, "three in the first epoch, one more in the second"
    assert comparison["causes"] == []
    assert sorted(path.name for path in (right.path / "twins").iterdir()) == ["planted"]
    assert "twin" not in (right.path / "metrics.csv").read_text()


@pytest.mark.slow
def test_where_the_cause_is_known_no_twins_are_trained(tensorflow: Any, tmp_path: Any) -> None:
    import tasks
    from corpus import planted

    import compare

    options: dict[str, Any] = {"replicas": REPLICAS, "epochs": 2, "batch_size": 8, "quiet": True, "reports": tmp_path}
    wrong = compare.run(tasks.experiment(batch_norm=True), trainers=("fit", planted.Summed()), **options)
    assert (wrong.verdict, wrong.exit_status) == ("different", 1)
    assert [cause["id"] for cause in wrong.details["comparisons"][0]["causes"]] == ["loss-summed"]
    assert not (wrong.path / "twins").exists(), "the cause is known"


@pytest.mark.slow
def test_half_precision_rounds_by_its_own_units(tensorflow: Any, tmp_path: Any) -> None:
    """A unit of float32 is nothing to layers that compute in bfloat16: twins would be equal to the reference."""
    import tasks
    import tensorflow as tf

    import compare

    class Backwards(compare.CustomLoop):
        name = "backwards"

        def train_step(self, batch: Any) -> None:
            super().train_step(tf.nest.map_structure(lambda tensor: tf.reverse(tensor, [0]), batch))

    def build_model() -> Any:
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
        return tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)])

    experiment = tasks.experiment(build_model=build_model)
    options: dict[str, Any] = {"replicas": 1, "epochs": 2, "batch_size": 8, "quiet": True, "reports": tmp_path}
    result = compare.run(experiment, trainers=("fit", Backwards()), **options)
    (comparison,) = result.details["comparisons"]
    assert comparison["training"]["verdict"] == "alike", comparison
    assert 0 < comparison["training"]["noise"]["largest_ratio"] < 30
