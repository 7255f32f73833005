"""Where each rule of a verdict begins to hold: numbers just below it and just above it, written out; no TensorFlow."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from compare.app.run_folder import claimed
from compare.check.stages import locate
from compare.options import request
from compare.records.files import write_json
from compare.records.model import EPOCH_END, Record, Variable, step_dtype
from compare.records.run_json import RunJson
from compare.verdict.exact import compare_records
from compare.verdict.float64 import distances
from compare.verdict.judge import Recorded, judge, metrics_beyond, pairs, with_noise, with_study
from compare.verdict.logged import compare_logs
from compare.verdict.model import Comparison, Reporting, Training, Verdict, asynchronous
from compare.verdict.rounding import Noise, first_beyond, unlikely, wanted_twins
from compare.verdict.seeds import Margin, study
from compare.watch.seen import CloseUp, Event


def record(
    trainer: str,
    *weights: float | Sequence[float],
    logs: Mapping[int, Mapping[str, float]] | None = None,
    seed: int = 0,
) -> Record:
    """One epoch of a model, the value of each variable before the first step and after every step."""
    values = np.array([np.atleast_1d(each) for each in weights], np.float64)
    steps = np.zeros(len(values) + 1, step_dtype(values.shape[1], 1))
    for row, step, value in zip(steps, [*range(len(values)), EPOCH_END], [*values, values[-1]], strict=True):
        row["epoch"], row["step"] = 1, step
        row["hashes"], row["projections"] = value.view(np.uint64)[:, None], value[:, None]
    variables = tuple(Variable(f"v{i}", (1,), "float32") for i in range(values.shape[1]))
    return Record(trainer, seed, variables, steps, logs or {}, Path("/nonexistent"))


def without(kept: Record, *steps: int) -> Record:
    """A record that lacks the fingerprints of some steps."""
    return replace(kept, steps=kept.steps[~np.isin(kept.steps["step"], steps)])


# Rounding: a gap is explained by up to 100 times that of the noise twins


def apart_by(times: float) -> tuple[Comparison, Record, Record, Record]:
    """A loop whose weight is off by so many times what its noise twin's is."""
    fit, loop, twin = record("fit", 1, 2), record("loop", 1, 2 + times / 1024), record("twin-1", 1, 2 + 1 / 1024)
    return compare_records(fit, loop), fit, loop, twin


@pytest.mark.parametrize(("times", "verdict"), [(1, "alike"), (99, "alike"), (101, "different"), (300, "different")])
def test_a_gap_up_to_a_hundred_times_the_twins_is_rounding(times: float, verdict: str) -> None:
    comparison, fit, loop, twin = apart_by(times)
    assert comparison.training.verdict == "different", "bit for bit"
    judged = with_noise(comparison, fit, loop, [twin])
    assert judged.training.noise is not None and judged.training.noise.ratio == pytest.approx(times)
    assert judged.training.verdict == verdict
    assert first_beyond(fit, loop, [twin], (1, 1)) == (None if verdict == "alike" else (1, 1))


@pytest.mark.parametrize(("began", "times", "explained"), [(0, 399, True), (0, 401, False), (1.9, 101, False)])
def test_four_units_of_what_training_moved_are_rounding(began: float, times: float, explained: bool) -> None:
    unit = 2.0**-22
    loop, twin = record("loop", began, 2 + times * unit), record("twin-1", began, 2 + unit)
    fit = record("fit", began, 2)
    judged = with_noise(compare_records(fit, loop), fit, loop, [twin]).training.noise
    assert judged is not None and judged.explains is explained


def seen(loss: float) -> CloseUp:
    """A step of which the loss was seen."""
    return CloseUp({1: [Event("loss", 0, {"targets": 1}, [np.float64(loss)])]})


@pytest.mark.parametrize(("units", "verdict"), [(1, "alike"), (2, "different")])
def test_where_no_twin_moves_one_unit_in_the_last_place_is_rounding(units: int, verdict: str) -> None:
    """Adam's first step of one bias is the learning rate: all twins may end where the reference does, by chance."""
    fit, loop = record("fit", 0, 0.0009999644), record("loop", 0, 0.0009999644 + units * 2.0**-33)
    comparison = compare_records(fit, loop)
    assert with_noise(comparison, fit, loop, [record("twin-1", 0, 0.0009999644)]).training.verdict == verdict


@pytest.mark.parametrize(("times", "stage"), [(99, None), (101, "loss")])
def test_a_stage_differs_from_a_hundred_times_the_twins_on(times: float, stage: str | None) -> None:
    assert locate(seen(1.0), seen(1 - times / 2**20), [seen(1 - 1 / 2**20)], 1, ["w"]).stage == stage


@pytest.mark.parametrize(("times", "stage"), [(7, None), (9, "loss")])
def test_where_no_twin_moves_eight_roundings_are_no_difference(times: float, stage: str | None) -> None:
    assert locate(seen(1.0), seen(1 - times / 2**23), [seen(1.0)], 1, ["w"]).stage == stage


@pytest.mark.parametrize(
    ("ratio", "twins"),
    [
        (99, 3),
        (101, 12),  # a kink that three twins did not cross
        (901, 12),
        (29_900, 12),
        (30_100, 3),  # no kink is so large
        (math.inf, 3),
    ],
)
def test_more_twins_are_trained_up_to_three_hundred_times_what_rounding_explains(ratio: float, twins: int) -> None:
    trained: dict[int, bool] = {}
    for (number,), loud in wanted_twins(lambda: Noise.of(len(trained), ratio, (1, 1), "w")):
        trained[number] = loud
    assert trained == {number: number > 3 for number in range(1, twins + 1)}


def test_where_twins_do_not_repeat_the_run_no_more_of_them_are_trained() -> None:
    noise = Noise.of(3, 901, (1, 1), "w", reproduced=False)
    assert [list(numbers) for numbers, _ in wanted_twins(lambda: noise)] == [[1], [2], [3]]


@pytest.mark.parametrize(("gap", "said"), [(0.9e-5, False), (1.1e-5, True)])
def test_a_first_gap_above_a_hundred_thousandth_of_the_weights_is_looked_into_at_once(gap: float, said: bool) -> None:
    one, other = (each.steps["projections"] for each in (record("fit", 0, 1), record("loop", 0, 1 + gap)))
    assert unlikely(one, other) == said


# The float64 run: whoever is ten times as far from it as the other is off


@pytest.mark.parametrize(("fit", "loop", "off"), [(1, 9.9, None), (1, 10.1, "loop"), (10.1, 1, "fit"), (9.9, 1, None)])
def test_a_trainer_ten_times_as_far_from_the_float64_run_is_off(fit: float, loop: float, off: str | None) -> None:
    truth = record("truth", 0, 1)
    sides = [record(name, 0, 1 + times / 1024) for name, times in (("fit", fit), ("loop", loop))]
    found = distances(truth, sides, [compare_records(*sides)])
    assert found.off == off
    assert found.after[0].distance == pytest.approx({"fit": fit / 1024, "loop": loop / 1024})


@pytest.mark.parametrize(
    ("twin", "times", "beyond"),
    [("twin-1", 99, False), ("twin-1", 101, True), ("twin-1-loud", 6, False), ("twin-1-loud", 7, True)],
)
def test_a_reported_number_may_be_a_hundred_times_as_far_off_as_the_twins_and_a_loud_one_counts_a_sixteenth(
    twin: str, times: float, beyond: bool
) -> None:
    fit, loop, noisy = (
        record(name, 1, 2, logs={1: {"loss": 0.5 + off / 1024}})
        for name, off in (("fit", 0), ("loop", times), (twin, 1))
    )
    assert metrics_beyond(fit, loop, [noisy], fit) == ({"loss"} if beyond else set())


# Logs


@pytest.mark.parametrize(("first", "begin"), [(("loss", 2), 2), (("accuracy", 2), 2), (("loss", 3), 3)])
def test_logs_differ_from_the_first_epoch_in_which_any_number_does(first: tuple[str, int], begin: int) -> None:
    same = {epoch: {"loss": 1 / epoch, "accuracy": epoch / 10} for epoch in (1, 2, 3, 4)}
    starts = {"loss": 4, "accuracy": 4} | dict([first])
    other = {
        epoch: {name: value + (epoch >= starts[name]) for name, value in logs.items()} for epoch, logs in same.items()
    }
    training = compare_logs([record("a", 0, logs=same)], [record("b", 0, logs=other)], ()).training
    assert (training.verdict, training.first_difference and training.first_difference.epoch) == ("inconclusive", begin)


def test_of_several_seeds_the_one_whose_number_is_lost_is_shown() -> None:
    fit = [record("fit", 0, logs={1: {"loss": 0.5}}, seed=seed) for seed in range(4)]
    loop = [
        record("loop", 0, logs={1: {"loss": loss}}, seed=seed) for seed, loss in enumerate((0.5, 0.75, math.nan, 1))
    ]
    shown = compare_logs(fit, loop, [Margin("loss", 10.0)])
    assert (shown.seed, shown.verdict) == (2, "different") and shown.number_alone is not None


@pytest.mark.parametrize(("known_cause", "verdict"), [(False, "alike"), (True, "different")])
def test_seeds_that_agree_excuse_no_difference_of_known_cause(known_cause: bool, verdict: str) -> None:
    fit, loop = (
        [record(name, 0, last, logs={1: {"loss": 0.5}}, seed=seed) for seed in range(4)]
        for name, last in (("fit", 1), ("loop", 2))
    )
    studied = study(fit, loop, [Margin("loss", 0.1)])
    assert studied.verdict == "alike"
    assert with_study(compare_records(fit[0], loop[0]), studied, known_cause).training.verdict == verdict


# Several workers without waiting


@pytest.mark.parametrize(
    ("exactly", "verdict"),
    [("identical", "identical"), ("different", "inconclusive"), ("inconclusive", "inconclusive")],
)
def test_weights_that_differ_between_workers_that_do_not_wait_prove_nothing(exactly: str, verdict: str) -> None:
    given = Comparison("loop", Training(exactly, 0.5, None, 3, reason=""), Reporting(None, {}))
    judged = asynchronous(given)
    assert judged.training.verdict == judged.verdict == verdict
    assert ("use one worker (--workers 1)" in judged.training.reason) == (exactly == "different")
    assert replace(judged, training=given.training) == given, "only the weights' verdict changes"


def judged(
    records: Sequence[Record],
    strategy: str = "default",
    workers: int = 1,
    twins: Sequence[Record] = (),
    earlier: Sequence[Record] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    **run: Any,
) -> Verdict:
    devices: Any = {"name": strategy, "class": "", "replicas": 1, "workers": workers, "global_batch_size": 1,
                    "devices": []}  # fmt: skip
    run = {"trainers": ["fit", "loop"], "strategy": devices, **run}
    given = RunJson(folder=Path("/nonexistent"), options={"margin": None, "keep": [], **options}, **run)
    recorded = Recorded(given, records, earlier)
    return judge(replace(recorded, twins={pairs(recorded)[0].exactly.twins: twins}))


@pytest.mark.parametrize(("workers", "said"), [(1, "when it is run again"), (2, "repeated in one process")])
def test_what_one_process_repeats_otherwise_is_not_blamed_on_several_workers(workers: int, said: str) -> None:
    records, twin = [record("fit", 0, 1, 2), record("loop", 0, 1, 3)], record("twin-1", 0, 1.5, 2.5)
    (found,) = judged(records, "multi-worker", workers, [twin]).comparisons
    assert found.verdict == "inconclusive" and said in found.training.reason


@pytest.mark.parametrize(
    ("strategy", "workers", "verdict"),
    [
        ("parameter-server", 2, "inconclusive"),
        ("parameter-server", 1, "different"),
        ("multi-worker", 2, "different"),
    ],
)
def test_only_several_workers_of_a_parameter_server_do_not_wait(strategy: str, workers: int, verdict: str) -> None:
    assert judged([record("fit", 0, 1), record("loop", 0, 2)], strategy, workers).verdict == verdict


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_run_that_was_interrupted_is_said_to_be(status: str) -> None:
    made = judged([record("fit", 0, 1), record("loop", 0, 1)], status=status, options={"epochs": 1})
    assert made.interrupted == (status == "interrupted")


@pytest.mark.parametrize("status", ["interrupted", "unexplained"])
@pytest.mark.parametrize("options", [{"scripts": ["a.py", "b.py"]}, {}], ids=["scripts", "trainers"])
def test_what_was_interrupted_before_rounding_was_measured_is_not_different(
    status: str, options: Mapping[str, Any]
) -> None:
    scripts: Any = {"status": status, "options": {"epochs": 1, **options}}
    made = judged([record("fit", 0, 1), record("loop", 0, 2)], **scripts)
    assert made.interrupted and made.verdict == "inconclusive"
    assert judged([record("fit", 0, 1), record("loop", 0, np.nan)], **scripts).verdict == "different"
    assert judged([record("fit", 0, 1), record("loop", 0, 1)], **scripts).verdict == "identical"


def test_a_number_that_one_log_lacks_in_an_epoch_is_no_difference() -> None:
    whole = {1: {"loss": 0.5, "accuracy": 0.25}, 2: {"loss": 0.25, "accuracy": 0.5}}
    part = {1: {"loss": 0.5}, 2: {"loss": 0.25, "accuracy": 0.75}}
    for first, second in ((whole, part), (part, whole)):
        training = compare_logs([record("a", 0, logs=first)], [record("b", 0, logs=second)], ()).training
        assert training.first_difference is not None and training.first_difference.epoch == 2


# Two models of a script


@pytest.mark.parametrize(
    ("unpaired", "verdict"),
    [({}, "identical"), ({"other trainings": "only a trains x", "weights of b": "only b has y"}, "inconclusive")],
)
def test_what_could_not_be_paired_is_never_green(unpaired: dict[str, str], verdict: str) -> None:
    made = judged([record("fit", 0, 1), record("loop", 0, 1)], unpaired=unpaired)
    assert made.verdict == verdict and made.comparisons[0].verdict == "identical"
    assert {each.candidate: each.training.reason for each in made.comparisons[1:]} == unpaired


@pytest.mark.parametrize(
    ("first", "second", "verdicts"),
    [
        (1, 1, ["identical", "identical"]),
        (1, 2, ["identical", "different"]),
        (2, 1, ["different", "identical"]),
    ],
)
def test_the_second_model_of_two_scripts_counts_as_much_as_the_first(
    first: float, second: float, verdicts: Sequence[str]
) -> None:
    records = [record("fit", 0, 1), record("loop", 0, first), record("fit 2", 0, 1), record("loop 2", 0, second)]
    verdict = judged(records, models=[["fit 2", "loop 2"]], options={"scripts": ["fit.py", "loop.py"]})
    assert [each.verdict for each in verdict.comparisons] == verdicts
    assert verdict.verdict == max(verdicts, key=["identical", "different"].index)
    assert [(each.candidate, each.reference) for each in verdict.comparisons] == [
        ("loop", ""),
        ("loop 2", "fit 2"),
    ]


# Files


@pytest.fixture
def mask() -> Any:
    """Sets the permissions that new files do not get."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(
    ("hidden", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0, 0o666, 0o777)]
)
def test_a_runs_files_are_as_open_as_the_users_own(
    mask: Callable[[int], int], tmp_path: Path, hidden: int, file: int, folder: int
) -> None:
    mask(hidden)
    write_json(tmp_path / "verdict.json", {})
    with claimed(request(name="run", reports=tmp_path)) as claim:
        pass
    assert mask(hidden) == hidden, "asking for it changes nothing"
    assert stat.S_IMODE((tmp_path / "verdict.json").stat().st_mode) == file
    assert stat.S_IMODE(claim.stat().st_mode) == folder
