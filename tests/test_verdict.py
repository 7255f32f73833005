"""What two records say about each other: equal to the last bit and trained, or where they part."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import as_json
from test_thresholds import judged, without
from test_thresholds import record as in_memory
from xxhash import xxh3_64_intdigest

from compare.records import model as records
from compare.records.codec import decode
from compare.records.files import read_json, write_json
from compare.records.metrics_csv import MetricsFile
from compare.records.model import (
    EPOCH_END,
    INITIAL,
    BuildRecord,
    End,
    EpochRecord,
    Record,
    StepRecord,
    Variable,
    in_time,
)
from compare.records.reader import read_records
from compare.records.recorder import Recorder
from compare.reporting import sentences
from compare.reporting.sentences import sentence, where
from compare.verdict.exact import _lacking, compare_records, noise_start, paired_steps, rests, within_rounding
from compare.verdict.judge import Pair, _with_variables, with_noise
from compare.verdict.model import Comparison, Difference, DifferingVariable, MetricGap, Reporting, Training, Verdict
from compare.verdict.outcomes import EXIT_STATUS, FROM_BEST, worst
from compare.verdict.rounding import _moved_by_rounding, measure, twin_name

Place = tuple[int, int]
Copies = list[list[np.ndarray]]
"""``[replica][variable]``"""
Edit = Callable[[Copies], None]

KERNEL, BIAS = Variable("dense/kernel", (2, 2), "float32"), Variable("dense/bias", (2,), "float32")
LOGS = {"loss": 0.5, "accuracy": 0.75}
Train = Callable[..., Record]


@pytest.fixture(autouse=True, params=[2, records.BLOCK], ids="blocks of {}".format)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares this many fingerprints at a time, which changes no verdict."""
    monkeypatch.setattr(records, "BLOCK", request.param)


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Trains a made-up model, by adding 1 to every weight at every step, and gives the record read from disk."""
    number = itertools.count()

    def train(
        name: str = "loop",
        *,
        steps: Sequence[int] = (3, 3),
        replicas: int = 2,
        rate: float = 1.0,
        model: Sequence[Variable] = (KERNEL, BIAS),
        edits: Mapping[Place, Edit] | None = None,
        flip: tuple[int, int, int, int] | None = None,
        logs: Sequence[Mapping[str, float]] | None = None,
        said: bool = True,
        keep: bool = True,
    ) -> Record:
        """One run.

        Args:
            name: the trainer's name.
            steps: how many optimizer steps in each epoch.
            replicas: how many replicas.
            rate: what a step adds to each weight.
            model: its variables.
            edits: what else happens to the weights, at an (epoch, step), and stays.
            flip: (epoch, step, variable, replica) of the one hash that has another lowest bit.
            logs: what is reported, epoch by epoch.
            said: whether the trainer says where its steps end.
            keep: whether weights are kept at epoch ends.
        """
        folder = tmp_path / f"{next(number)}"
        folder.mkdir()
        record = Recorder(folder, MetricsFile(folder / "metrics.csv"), name, 0)
        record(BuildRecord(tuple(model), replicas))
        copies = [[np.ones(v.shape, np.float32) for v in model] for _ in range(replicas)]

        def show(epoch: int, step: int) -> None:
            (edits or {}).get((epoch, step), lambda _: None)(copies)
            if step > INITIAL and not said:
                return
            variables = list(zip(*copies, strict=True))
            hashes = np.array([[xxh3_64_intdigest(copy.tobytes()) for copy in each] for each in variables], np.uint64)
            if flip is not None and flip[:2] == (epoch, step):
                hashes[flip[2:]] ^= np.uint64(1)
            sums = [[float(np.mean([copy.sum(dtype=float) for copy in each]))] * 2 for each in variables]
            record(StepRecord(epoch, step, hashes, np.array(sums)))

        show(1, INITIAL)
        for epoch, count in enumerate(steps, start=1):
            for step in range(1, count + 1):
                for weight in itertools.chain(*copies):
                    weight += np.float32(rate)
                show(epoch, step)
            show(epoch, EPOCH_END)
            reported = LOGS if logs is None else logs[epoch - 1]
            record(EpochRecord(epoch, reported, 1.0, 1.0, copies[0] if keep else None))
        (read,) = read_records(folder)
        return read

    return train


def add(amount: float, *, variable: int = 0, replicas: slice = slice(None)) -> Edit:
    """An edit: one number of one variable grows."""

    def edit(copies: Copies) -> None:
        for weights in copies[replicas]:
            weights[variable].flat[0] += np.float32(amount)

    return edit


# Training


def test_two_runs_that_agree_everywhere_are_identical(train: Train) -> None:
    assert compare_records(train("fit"), train()) == Comparison(
        "loop",
        Training("identical", 0.0, None, 6),
        Reporting("identical", {"loss": MetricGap(0.0, 1), "accuracy": MetricGap(0.0, 1)}),
    )
    assert compare_records(train("fit"), train()).verdict == "identical"


@pytest.mark.parametrize("place", [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("variable", [0, 1])
@pytest.mark.parametrize("replica", [0, 1])
@pytest.mark.parametrize("swap", [False, True])
def test_one_bit_of_one_replica_after_one_step_is_different(
    train: Train, place: Place, variable: int, replica: int, swap: bool
) -> None:
    pair = [train("fit"), train(flip=(*place, variable, replica))]
    training = compare_records(*reversed(pair) if swap else pair).training
    assert training.verdict == "different"
    assert training.first_difference == Difference(*place)
    assert [each.name for each in training.differing_variables] == [(KERNEL, BIAS)[variable].name]
    assert training.max_weight_gap == 0.0, "at the ends of epochs nothing is left of it"
    assert training.steps_compared == 6


def test_the_first_of_many_differing_steps_is_named_with_its_variables_and_their_gap(train: Train) -> None:
    training = compare_records(train("fit"), train(edits={(1, 2): add(0.25), (2, 1): add(4, variable=1)})).training
    assert training == Training(
        "different", 4.0, Difference(1, 2), 6, differing_variables=(DifferingVariable("dense/kernel", 0.25),)
    )


def test_the_largest_gap_is_that_of_any_epoch(train: Train) -> None:
    training = compare_records(train("fit"), train(edits={(1, 2): add(8), (2, 1): add(-7.5)})).training
    assert training.max_weight_gap == 8.0


def test_epochs_that_ended_before_the_first_difference_say_nothing_of_its_gap(train: Train) -> None:
    def ended_in_epoch_2(record: Record) -> Record:
        return replace(record, logs={1: LOGS}, steps=record.steps[:-1])

    for other in (train(edits={(2, 1): add(8)}), train(steps=(3, 2))):
        training = compare_records(train("fit"), ended_in_epoch_2(other)).training
        assert (training.verdict, training.max_weight_gap) == ("different", None), training


def test_the_smallest_difference_there_is_is_found(train: Train) -> None:
    ulp = float(np.spacing(np.float32(2.0)))
    training = compare_records(train("fit", steps=(1,)), train(steps=(1,), edits={(1, 1): add(ulp)})).training
    assert (training.verdict, training.max_weight_gap) == ("different", ulp)


def test_a_difference_made_by_validation_shows_at_the_epochs_end_without_a_step(train: Train) -> None:
    training = compare_records(train("fit"), train(edits={(1, EPOCH_END): add(0.5)})).training
    assert (training.verdict, training.first_difference) == ("different", Difference(1, None))


def test_other_initial_weights_are_step_0_of_epoch_1(train: Train) -> None:
    training = compare_records(train("fit"), train(edits={(1, INITIAL): add(0.5)})).training
    assert (training.verdict, training.first_difference) == ("different", Difference(1, 0))
    assert training.differing_variables == (DifferingVariable("dense/kernel", 0.5),)


def test_initial_weights_that_both_sides_set_before_the_first_step_are_no_difference(train: Train) -> None:
    loop = train()
    steps = loop.steps.copy()
    steps["hashes"][steps["step"] == INITIAL] += 1  # recorded before a callback has set them
    training = compare_records(train("fit"), replace(loop, steps=steps)).training
    assert (training.verdict, training.first_difference) == ("identical", None)


def test_initial_weights_that_were_not_recorded_are_no_difference(train: Train) -> None:
    fit, slow = train("fit"), train(rate=2)
    late_fit, late_slow = without(fit, INITIAL), without(slow, INITIAL)
    same = compare_records(fit, without(train(), INITIAL)).training
    assert (same.verdict, same.first_difference) == ("identical", None)
    # Nobody knows whether a difference after the first step was there before it.
    for reference, candidate, lacking in [(fit, late_slow, "loop"), (late_fit, late_slow, "fit and loop")]:
        unknown = compare_records(reference, candidate).training
        assert (unknown.verdict, unknown.first_difference) == ("inconclusive", None)
        assert unknown.reason == f"the initial weights of {lacking} were not recorded, and those after step 1 differ"
    found = compare_records(fit, without(train(edits={(1, 2): add(1)}), INITIAL)).training
    assert (found.verdict, found.first_difference) == ("different", Difference(1, 2))
    once = without(train(steps=(1,)), INITIAL)
    assert compare_records(once, once).training.reason == "neither trainer changed any weight"
    once = replace(once, steps=once.steps[:1])
    assert compare_records(once, once).training.reason == "the weights were recorded once only"


@pytest.mark.parametrize(
    ("fit", "loop", "first", "reason", "compared"),
    [
        ((3, 3), (2, 3), Difference(1, 3), "loop has no step 3 in epoch 1", 5),
        ((3, 3), (4, 3), Difference(1, 4), "fit has no step 4 in epoch 1", 6),
        ((3, 3), (3, 0), Difference(2, 1), "loop has no step 1 in epoch 2", 3),
        ((3, 3), (3,), Difference(2, 1), "loop has no step 1 in epoch 2", 3),
        ((1200,), (1300,), Difference(1, 1201), "fit has no step 1,201 in epoch 1", 1200),
    ],
)
def test_a_step_that_one_side_lacks_is_the_difference(
    train: Train, fit: Sequence[int], loop: Sequence[int], first: Difference, reason: str, compared: int
) -> None:
    training = compare_records(train("fit", steps=fit), train(steps=loop)).training
    assert (training.verdict, training.first_difference, training.reason) == ("different", first, reason)
    assert training.steps_compared == compared


@pytest.mark.parametrize("swap", [False, True], ids=["candidate", "reference"])
def test_steps_after_a_number_that_stopped_training_are_not_lacking(train: Train, swap: bool) -> None:
    lost = train(steps=(3,), logs=[{"loss": math.nan}])
    sides = [train("fit"), replace(lost, end=End(1, None, "loss is nan"))]
    stopped = compare_records(*(sides[::-1] if swap else sides))
    assert stopped.training == Training("identical", 0.0, None, 3)
    assert stopped.reporting.verdict == stopped.verdict == "different"
    assert sentence(stopped, sides[swap].trainer).endswith(
        ", but reports different numbers: loss (NaN or infinite, in epoch 1); the weights are equal, bit for bit"
    )


def test_an_earlier_difference_goes_before_a_missing_step(train: Train) -> None:
    training = compare_records(train("fit"), train(steps=(3, 2), edits={(2, 1): add(1)})).training
    assert (training.first_difference, training.reason) == (Difference(2, 1), "")


def test_without_steps_the_ends_of_epochs_are_compared(train: Train) -> None:
    same = compare_records(train("fit"), train(said=False)).training
    assert same == Training("identical", 0.0, None, 0, steps_not_reported_by="loop"), (
        "and who never called end_step is named"
    )
    for edits, first in [({(2, 1): add(1)}, Difference(2, None)), ({(1, INITIAL): add(1)}, Difference(1, 0))]:
        other = compare_records(train("fit"), train(said=False, edits=edits)).training
        assert (other.verdict, other.first_difference) == ("different", first)
    lacking = compare_records(train("fit"), train(said=False, steps=(3,))).training
    assert (lacking.first_difference, lacking.reason) == (Difference(2, None), "loop does not finish epoch 2")


def test_an_untrained_model_is_never_identical(train: Train) -> None:
    neither = compare_records(train("fit", rate=0), train(rate=0))
    assert neither.verdict == neither.training.verdict == "inconclusive"
    assert neither.reporting.verdict is None
    assert "neither trainer changed any weight" in neither.training.reason
    for pair in [(train("fit", rate=0), train()), (train("fit"), train(rate=0))]:
        training = compare_records(*pair).training
        assert (training.verdict, training.first_difference) == ("different", Difference(1, 1))
    for pair in [(train("fit", steps=()), train(steps=())), (train("fit", steps=(0,)), train(steps=(0,)))]:
        assert compare_records(*pair).verdict == "inconclusive"


def test_one_replica_is_compared_with_every_copy_of_many(train: Train) -> None:
    one, many = train("fit", replicas=1), train(replicas=3)
    assert compare_records(one, many).training.verdict == "identical"
    assert compare_records(many, one).training.verdict == "identical"
    stray = train(replicas=3, edits={(1, 2): add(1, replicas=slice(2, 3))})
    for pair in [(one, stray), (stray, one), (many, stray)]:
        training = compare_records(*pair).training
        assert (training.verdict, training.first_difference) == ("different", Difference(1, 2))


def test_replicas_that_part_from_each_other_alike_on_both_sides_are_identical(train: Train) -> None:
    edits = {(1, 2): add(1, replicas=slice(1, 2))}
    assert compare_records(train("fit", edits=edits), train(edits=edits)).training.verdict == "identical"
    mirrored = train(edits={(1, 2): add(1, replicas=slice(0, 1))})
    assert compare_records(train("fit", edits=edits), mirrored).training.verdict == "different"


def test_models_of_other_shapes_are_different_from_the_start(train: Train) -> None:
    other = Variable("dense/kernel", (4, 1), "float32")
    for variables, told in [
        ((other, BIAS), "only that of fit has dense/kernel [2, 2]; only that of loop has dense/kernel [4, 1]"),
        ((KERNEL,), "only that of fit has dense/bias [2]"),
        ((BIAS, KERNEL), "they have them in another order"),
    ]:
        training = compare_records(train("fit"), train(model=variables)).training
        assert (training.verdict, training.first_difference) == ("different", Difference(1, 0))
        assert (training.max_weight_gap, training.reason) == (None, f"they train models with different weights: {told}")
    recorded = compare_records(train("fit"), train("fit", model=(KERNEL,)), "an/older/run").training
    assert recorded.reason.endswith("only that of the recorded run has dense/bias [2]")


def test_what_variables_are_called_does_not_matter(train: Train) -> None:
    renamed = [Variable(f"dense_1/{name}", v.shape, v.dtype) for name, v in (("a", KERNEL), ("b", BIAS))]
    assert compare_records(train("fit"), train(model=renamed)).verdict == "identical"


def test_a_gap_that_is_unknown_or_no_number_is_null(train: Train) -> None:
    unkept = compare_records(train("fit"), train(keep=False, edits={(1, 1): add(1)})).training
    assert (unkept.verdict, unkept.max_weight_gap) == ("different", None)
    for bad in (math.nan, math.inf):
        blown = compare_records(train("fit"), train(edits={(1, 1): add(bad)}))
        assert blown.training.max_weight_gap is None
        assert blown.training.differing_variables == (DifferingVariable("dense/kernel", None),)
        both = train("fit", edits={(1, 1): add(bad)}), train(edits={(1, 1): add(bad)})
        assert compare_records(*both).verdict == "identical", "the same NaN, bit for bit"
    later = (
        train("fit", edits={(1, 1): add(math.inf)}),
        train(edits={(1, 1): add(math.inf), (1, 2): add(1, variable=1)}),
    )
    training = compare_records(*later).training
    assert (training.first_difference, training.max_weight_gap) == (Difference(1, 2), None)
    assert training.differing_variables == (DifferingVariable("dense/bias", 1.0),)


# Reporting


def report(train: Train, ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> Comparison:
    steps = [1] * len(ours)
    return compare_records(train("fit", steps=steps, logs=ours), train(steps=steps, logs=theirs))


def test_other_numbers_for_equal_weights_are_a_reporting_difference_alone(train: Train) -> None:
    ulp = float(np.nextafter(np.float32(0.5), np.float32(1)))
    comparison = report(train, [LOGS, LOGS], [LOGS, LOGS | {"loss": ulp}])
    assert comparison.training.verdict == "identical"
    assert comparison.reporting == Reporting(
        "different", {"loss": MetricGap(2.0**-24, 2), "accuracy": MetricGap(0.0, 1)}
    )
    assert comparison.verdict == "different"


def test_other_numbers_for_other_weights_say_nothing_about_reporting(train: Train) -> None:
    fit, loop = train("fit"), train(edits={(1, 1): add(1)}, logs=[LOGS | {"loss": 0.75}, LOGS])
    assert compare_records(fit, loop).reporting == Reporting(
        None, {"loss": MetricGap(0.25, 1), "accuracy": MetricGap(0.0, 1)}
    )


def test_the_epoch_of_the_largest_gap_is_named_the_first_of_equals(train: Train) -> None:
    theirs = [{"loss": loss} for loss in (0.75, 1.5, -0.5, 1.5)]
    assert report(train, [{"loss": 0.5}] * 4, theirs).reporting.metrics == {"loss": MetricGap(1.0, 2)}


@pytest.mark.parametrize("swap", [False, True])
def test_a_metric_that_one_side_lacks_is_listed_and_changes_no_verdict(train: Train, swap: bool) -> None:
    pair = [[LOGS, LOGS], [LOGS, {"loss": 0.5}]]
    reporting = report(train, *(reversed(pair) if swap else pair)).reporting
    lacking = MetricGap(0.0, 1, "fit" if swap else "loop")
    assert reporting == Reporting("identical", {"loss": MetricGap(0.0, 1), "accuracy": lacking})


def test_a_gap_without_a_number_outweighs_every_number(train: Train) -> None:
    theirs = [{"loss": loss} for loss in (9.0, math.nan, 99.0)]
    assert report(train, [{"loss": 0.5}] * 3, theirs).reporting.metrics == {"loss": MetricGap(None, 2)}


def test_an_epoch_that_one_side_did_not_report_leaves_its_numbers_open(train: Train) -> None:
    fit, loop = train("fit"), train()
    short = replace(loop, logs={1: LOGS})
    for pair in [(fit, short), (short, fit)]:
        comparison = compare_records(*pair)
        assert comparison.reporting.verdict == comparison.verdict == "inconclusive"
        assert "weight is equal, bit for bit" in sentence(comparison, "fit")
        assert "one side lacks the numbers of an epoch" in sentence(comparison, "fit")
    wrong = replace(loop, logs={1: {**LOGS, "loss": 9.0}})
    assert compare_records(fit, wrong).reporting.verdict == "different"


# The verdict as a whole


def test_the_worst_verdict_counts() -> None:
    assert FROM_BEST == ("identical", "alike", "inconclusive", "not-comparable", "different")
    for better, worse in itertools.combinations_with_replacement(FROM_BEST, 2):
        assert worst([better, worse]) == worst([worse, better]) == worse
        assert worst([better, None]) == better
    assert worst([None]) == worst([]) == "inconclusive"


def test_exit_statuses_are_as_documented() -> None:
    assert EXIT_STATUS == {"identical": 0, "alike": 0, "different": 1, "inconclusive": 3, "not-comparable": 3}


def test_verdict_json_is_as_documented(train: Train, tmp_path: Path) -> None:
    fit = train("fit")
    others = [train("same"), train("other", edits={(1, 2): add(0.25)}), train("late", edits={(2, EPOCH_END): add(1)})]
    path = tmp_path / "verdict.json"
    write_json(path, as_json("fit", [compare_records(fit, other) for other in others], scope="run"))
    content = read_json(path)
    assert {**content, "comparisons": None} == {
        "schema": 1,
        "verdict": "different",
        "reference": "fit",
        "scope": "run",
        "comparisons": None,
    }
    same, other, late = content["comparisons"]
    assert same == {
        "candidate": "same",
        "verdict": "identical",
        "training": {
            "verdict": "identical",
            "max_weight_gap": 0.0,
            "first_difference": None,
            "steps_compared": 6,
            "differing_variables": [],
        },
        "reporting": {
            "verdict": "identical",
            "metrics": {"loss": {"max_gap": 0.0, "epoch": 1}, "accuracy": {"max_gap": 0.0, "epoch": 1}},
        },
        "causes": [],
    }
    assert other["training"]["first_difference"] == {"epoch": 1, "step": 2}
    assert other["training"]["differing_variables"] == [{"name": "dense/kernel", "gap": 0.25}]
    assert other["reporting"]["verdict"] is None
    assert late["training"]["first_difference"] == {"epoch": 2, "step": None}
    assert as_json("fit", [compare_records(fit, others[0])])["verdict"] == "identical"


def test_what_is_computed_when_judging_is_believed_when_it_is_read(train: Train) -> None:
    content = as_json("fit", [compare_records(train("fit"), train())])
    content["verdict"] = content["comparisons"][0]["verdict"] = "alike"
    read = decode(Verdict, content | {"of a later version": 1})
    assert (read.verdict, read.comparisons[0].verdict, read.comparisons[0].training.verdict) == (
        *["alike"] * 2,
        "identical",
    )
    assert read.content() == content


def test_verdict_json_is_valid_json_whatever_blew_up(train: Train) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    logs = [{"loss": math.nan, "accuracy": math.inf}] * 2
    fit = train("fit", edits={(1, 1): add(math.inf)}, logs=logs)
    for other in [train(logs=logs), train(edits={(1, 1): add(math.nan)}), train(edits={(1, 1): add(-math.inf)})]:
        json.loads(json.dumps(as_json("fit", [compare_records(fit, other)])), parse_constant=refuse)


@pytest.mark.parametrize(("ours", "theirs"), [({}, LOGS), (LOGS, {}), ({}, {})])
def test_a_side_that_reports_no_numbers_is_judged_by_its_weights(train: Train, ours: Any, theirs: Any) -> None:
    comparison = compare_records(train("fit", logs=[ours, ours]), train(logs=[theirs, theirs]))
    assert (comparison.verdict, comparison.reporting.verdict) == ("identical", None)


# Rounding


def noisy(steps: Sequence[int], start: Place, amount: float) -> Mapping[Place, Edit]:
    """Edits of a twin: something is added before every step from ``start`` on, in turn to and fro."""
    places = [(epoch, step) for epoch, count in enumerate(steps, 1) for step in range(1, count + 1)]
    return {
        place: lambda copies, i=i: [edit(copies) for edit in (add(amount * (-1) ** i), add(amount, variable=1))]
        for i, place in enumerate(place for place in places if place >= start)
    }


def held(train: Train, edits: Mapping[Place, Edit], twin: Mapping[Place, Edit] | None = None, **how: Any) -> Comparison:
    reference, candidate = train("fit"), train(edits=edits, **how)
    comparison = compare_records(reference, candidate)
    start = noise_start(reference, candidate, comparison.training)
    twins = [train("twin", edits=noisy((3, 3), start or (1, 1), 1e-3) if twin is None else twin)]
    return with_noise(comparison, reference, candidate, twins)


@pytest.mark.parametrize("place", [(1, 1), (1, 3), (2, 2)])
def test_a_gap_no_larger_than_that_of_twins_is_rounding_and_a_larger_one_is_not(train: Train, place: Place) -> None:
    within, beyond = held(train, {place: add(0.5e-3)}), held(train, {place: add(0.5)})
    assert within.verdict == within.training.verdict == "alike"
    assert within.training.noise is not None and 0.1 < within.training.noise.ratio <= 1
    assert within.training.first_difference == Difference(*place), "still located"
    assert beyond.verdict == beyond.training.verdict == "different"
    assert beyond.training.noise is not None and beyond.training.noise.ratio > 100


def test_each_variable_is_held_against_its_own_noise(train: Train) -> None:
    quiet = {place: lambda copies: add(1e-6, variable=1)(copies) for place in [(1, 1)]}
    loud = {place: lambda copies: [add(1.0)(copies), add(1e-6, variable=1)(copies)] for place in [(1, 1)]}
    assert held(train, {(1, 1): add(1e-3, variable=1)}, loud).training.verdict == "different"
    assert held(train, {(1, 1): add(1e-3)}, loud).training.verdict == "alike"
    assert held(train, {(1, 1): add(1e-3)}, quiet).training.noise.ratio == math.inf, "the twins never move it"  # type: ignore[union-attr]


def test_noise_before_the_parting_is_no_excuse(train: Train) -> None:
    """Twins are twins until the runs part: noise that had grown until then would hide what happens there."""
    comparison = held(train, {(2, 3): add(1.0)}, noisy((3, 3), (1, 1), 10.0))
    assert comparison.verdict == "inconclusive"
    assert "fit does not give the same weights" in comparison.training.reason


def test_a_gap_that_opens_later_than_the_first_is_found_too(train: Train) -> None:
    training = held(train, {(1, 1): add(0.5e-3), (2, 2): add(5.0)}).training
    assert training.verdict == "different"
    assert training.noise is not None and (training.noise.epoch, training.noise.step) == (2, 2)


def test_a_gap_that_closes_again_is_not_forgotten(train: Train) -> None:
    training = held(train, {(1, 1): add(5.0), (1, 2): add(-5.0)}).training
    assert training.verdict == "different"


def test_twins_that_were_not_trained_to_the_end_tell_as_far_as_they_go(train: Train) -> None:
    def verdict(edits: Mapping[Place, Edit], *lengths: Sequence[int]) -> str:
        reference, candidate = train("fit"), train(edits=edits)
        twins = [train("twin", steps=steps, edits=noisy(steps, (1, 1), 1e-3)) for steps in lengths]
        comparison = with_noise(compare_records(reference, candidate), reference, candidate, twins)
        return comparison.training.verdict

    small, large = {(1, 1): add(0.5e-3)}, {(1, 1): add(0.5e-3), (1, 3): add(5.0)}
    assert verdict(small, (3,)) == "inconclusive"
    assert verdict(small, (3,), (3, 3)) == verdict(small, (3, 3)) == "alike"
    assert verdict(large, (3,)) == verdict(large, (3,), (3, 3)) == "different"
    late = {(1, 1): add(0.5e-3), (2, 1): add(5.0)}
    assert verdict(late, (3,)) == "inconclusive", "nobody looked there"
    assert verdict(late, (3,), (3, 3)) == "different"


@pytest.mark.parametrize(
    "how",
    [{"edits": {(1, INITIAL): add(1e-9 + 1)}}, {"steps": (3, 2)}, {"steps": (3, 4)}, {"steps": (3,)}],
)
def test_what_no_noise_can_explain_stays_different(train: Train, how: Any) -> None:
    reference, candidate = train("fit"), train(**how)
    comparison = compare_records(reference, candidate)
    assert noise_start(reference, candidate, comparison.training) is None
    assert with_noise(comparison, reference, candidate, [train("twin", edits=noisy((3, 3), (1, 1), 1e9))]) == comparison
    assert comparison.verdict == "different"


def test_noise_starts_where_the_two_part(train: Train) -> None:
    def start(reference: Record, candidate: Record) -> Place | None:
        return noise_start(reference, candidate, compare_records(reference, candidate).training)

    fit = train("fit")
    assert start(fit, train()) is None
    assert start(fit, train(edits={(2, 2): add(1)})) == (2, 2)
    assert start(fit, train(edits={(2, EPOCH_END): add(1)})) == (2, 3), "after the epoch's last step"
    silent = train("silent", said=False, edits={(2, 2): add(1)})
    assert start(fit, silent) == (2, 1), "nobody can tell where in the epoch"
    assert start(train("fit", said=False), silent) == (2, 1)


def test_where_the_first_step_differs_the_second_twin_repeats_it(train: Train) -> None:
    """A model that changes something outside itself trains otherwise each time: nothing can be compared with it."""
    fit, loop = train("fit"), train(edits=noisy((3, 3), (1, 1), 1e-5))
    comparison = compare_records(fit, loop)
    names = [twin_name(number, False, (1, 1)) for number in (1, 2)]
    first, again = (train(name, edits=noisy((3, 3), (1, i), 1e-6)) for i, name in enumerate(names, 1))
    assert with_noise(comparison, fit, loop, [first, again]).training.verdict == "alike"
    otherwise = train(names[1], edits=noisy((3, 3), (1, 1), 1e-6))
    judged = with_noise(comparison, fit, loop, [first, otherwise]).training
    assert judged.verdict == "inconclusive"
    assert judged.reason.startswith("fit does not give the same weights when it is run again")
    second_model = train(twin_name(2, False), edits=noisy((3, 3), (1, 1), 1e-6))
    assert with_noise(comparison, fit, loop, [first, second_model]).training.verdict == "alike", "noise came before it"
    assert twin_name(2, False, (1, 2)) == "twin-2", "where a step precedes the difference, all twins repeat it"


def test_where_one_call_makes_several_steps_no_twin_repeats_the_first(train: Train) -> None:
    """Its noise, which begins with the second step, is in the weights when they are first seen."""

    def seen(name: str, start: Place, amount: float) -> Record:
        return without(train(name, edits=noisy((3, 3), start, amount)), 1, 2)

    fit, loop = seen("fit", (3, 1), 0.0), seen("loop", (1, 1), 1e-5)
    twins = [seen(twin_name(number, False, (1, 1)), (1, number), 1e-6) for number in (1, 2)]
    comparison = compare_records(fit, loop)
    assert noise_start(fit, loop, comparison.training) == (1, 1)
    assert with_noise(comparison, fit, loop, twins).training.verdict == "alike"


@pytest.mark.parametrize(
    ("kernel", "bias", "moves"),
    [
        (2.5e-4, 2.0, ("dense/kernel",)),  # in six steps, 1.5 times as far as the twin
        (4.2e-4, 2.0, ()),  # 2.5 times
        (0.0, 0.0, ()),  # all variables are such
    ],
)
def test_weights_that_only_rounding_moves_are_named(
    train: Train, kernel: float, bias: float, moves: tuple[str, ...]
) -> None:
    """A variable that training hardly moves, by these amounts in each step, so that rounding moves it as far."""

    def trained(name: str, of_kernel: float, of_bias: float) -> Record:
        def step(copies: Copies, first: bool = False) -> None:
            add(kernel - 4 + first * of_kernel)(copies)  # a step adds 1 to each of 4 numbers
            add(bias - 2 + first * of_bias, variable=1)(copies)

        edits: dict[Place, Edit] = dict.fromkeys(itertools.product((1, 2), (1, 2, 3)), step)
        return train(name, edits={**edits, (1, 1): lambda copies: step(copies, first=True)})

    fit, loop, twin = trained("fit", 0.0, 0.0), trained("loop", 5e-4, 1e-5), trained("twin", 1e-3, 1e-5)
    comparison = with_noise(compare_records(fit, loop), fit, loop, [twin])
    assert comparison.training.noise is not None and comparison.training.noise.moves == moves
    assert ("most of it is in dense/kernel, which rounding alone moves" in sentence(comparison, "fit")) == bool(moves)
    few = trained("loop", 2e-5, 1e-4)
    assert with_noise(compare_records(fit, few), fit, few, [twin]).training.noise.moves == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(("moved", "moves"), [(5.0, ("v0",)), (12.0, ())])
def test_a_variable_that_noise_moves_far_beyond_most_is_moved_by_rounding(moved: float, moves: tuple[str, ...]) -> None:
    """A bias before a batch normalization is pulled, too; its noise is still a large share of the way it went.

    A variable that is not trained has noise in a twin alone.
    """
    fit, twin, loop = (
        in_memory(name, [0] * 5, *[[moved + first, 10, 10, 10, untrained]] * 2)
        for name, first, untrained in (("fit", 0.0, 0.0), ("twin-1", 1.0, 1e-7), ("loop", 2.0, 0.0))
    )
    assert _moved_by_rounding(fit, loop, twin, fit.keys, fit) == moves


def test_the_variables_are_those_that_differ_where_more_than_rounding_begins(train: Train) -> None:
    fit = train("fit")
    loop = train("loop", edits={(1, 1): add(1e-6), (2, 1): add(0.5, variable=1)})
    exactly = compare_records(fit, loop)
    assert [each.name for each in exactly.training.differing_variables] == ["dense/kernel"]
    pair = Pair(fit, loop, fit, exactly)
    for first, names in (
        (Difference(2, 1, equal_before=False), ["dense/kernel", "dense/bias"]),
        (Difference(2, 1), ["dense/kernel"]),  # nothing differs before
        (Difference(1, 3, equal_before=False, weights=Difference(2, 1)), ["dense/kernel", "dense/bias"]),
        (Difference(9, 1, equal_before=False), ["dense/kernel"]),  # which was not seen
    ):
        located = replace(exactly, training=replace(exactly.training, first_difference=first))
        found = _with_variables(located, pair).training.differing_variables
        assert [each.name for each in found] == names, first


def test_a_loud_twins_gap_counts_by_as_much_less_as_it_was_moved_more(train: Train) -> None:
    reference, candidate = train("fit"), train(edits={(1, 1): add(1e-3)})
    quiet, loud = train("twin-1", edits={(1, 1): add(1e-4)}), train("twin-4-loud", edits={(1, 1): add(1e-3)})

    def ratio(*twins: Record) -> float:
        return measure(reference, candidate, twins, (1, 1)).ratio

    assert ratio(loud) == pytest.approx(16, rel=1e-3), "a loud twin is moved by 16 units"
    assert ratio(quiet) == ratio(quiet, loud) == pytest.approx(10, rel=1e-3)


def test_what_is_only_rounding_does_not_stand_beside_a_mistake(train: Train) -> None:
    theirs = {"loss": 0.5 + 2.0**-24, "accuracy": 0.76}
    fit, loop = train("fit"), train(logs=[LOGS, theirs])
    comparison = Pair(fit, loop, fit, compare_records(fit, loop)).compared(()).settled()
    assert comparison.reporting.verdict == "different"
    told = sentence(comparison, "fit")
    assert "reports different numbers: accuracy (by up to 0.01, in epoch 2); by no more than rounding: loss (" in told
    assert where(comparison) == "Only in the reported numbers: accuracy"
    rounded = train(logs=[LOGS, {**theirs, "accuracy": 0.75}])
    alone = Pair(fit, rounded, fit, compare_records(fit, rounded)).compared(())
    assert where(alone.settled()) == "Only in the last digits of the reported numbers: loss"
    assert alone.reporting.verdict == "alike" and not any(gap.only_rounding for gap in alone.reporting.metrics.values())


@pytest.mark.parametrize(
    ("accuracy", "reporting"), [(0.75, "alike"), (0.75 + 2.0**-24, "alike"), (0.76, None), (None, None)]
)
def test_numbers_are_alike_where_rounding_explains_them_and_the_weights(
    train: Train, accuracy: float | None, reporting: str | None
) -> None:
    fit, twin = train("fit", logs=[LOGS, LOGS]), train("twin", edits=noisy((3, 3), (1, 1), 1e-3), logs=[LOGS, LOGS])
    last = LOGS if accuracy is None else {**LOGS, "accuracy": accuracy}
    loop = train(edits={(1, 1): add(0.5e-3)}, logs=[LOGS, last])
    loop = replace(loop, logs={1: loop.logs[1]}) if accuracy is None else loop
    compared = Pair(fit, loop, fit, compare_records(fit, loop)).compared([twin])
    assert (compared.training.verdict, compared.reporting.verdict) == ("alike", reporting)


def test_the_verdict_file_tells_of_the_noise(train: Train) -> None:
    training = as_json("fit", [held(train, {(1, 2): add(0.5e-3)})])["comparisons"][0]["training"]
    assert training["noise"].keys() == {"twins", "factor", "largest_ratio", "variable", "epoch", "step"}
    assert (training["noise"]["twins"], training["noise"]["factor"]) == (1, 100)
    json.dumps(training, allow_nan=False)
    never = held(train, {(1, 1): add(1e-3)}, {(1, 1): add(1.0, variable=1)})
    assert as_json("fit", [never])["comparisons"][0]["training"]["noise"]["largest_ratio"] is None


@pytest.mark.parametrize(("off", "explained"), [(0, True), (1, True), (30, True), (50, False), (2**17, False)])
def test_numbers_that_are_some_units_in_the_last_place_apart_may_be_rounding(
    train: Train, off: int, explained: bool
) -> None:
    theirs = {"loss": 0.5 + off * 2.0**-24, "accuracy": 0.75}
    assert within_rounding(train("fit"), train(logs=[LOGS, theirs])) == explained
    assert within_rounding(train("fit", logs=[LOGS, theirs]), train()) == explained


@pytest.mark.parametrize("theirs", [{"loss": 0.5}, {**LOGS, "other": 1.0}])
def test_a_number_that_one_side_lacks_is_not_compared(train: Train, theirs: Mapping[str, float]) -> None:
    assert within_rounding(train("fit"), train(logs=[LOGS, theirs]))


def test_an_equal_number_under_another_name_is_paired(train: Train) -> None:
    ours, theirs = {"loss": 0.5, "accuracy": 0.75}, {"loss": 0.5, "acc": 0.75, "val_acc": 0.75}
    reporting = report(train, [ours, ours], [theirs, theirs]).reporting
    assert reporting.verdict == "identical"
    assert reporting.metrics["accuracy"] == MetricGap(0.0, 1, reported_as="acc")
    assert reporting.metrics["val_acc"] == MetricGap(None, 1, "fit")
    other = report(train, [ours, ours], [theirs, {**theirs, "acc": 0.5}]).reporting
    assert other.metrics["accuracy"] == MetricGap(None, 1, "loop"), "an unequal one is another number"


MOVING = Variable("batch_normalization/moving_mean", (2,), "float32")


def accumulating(train: Train, name: str, *, more: Mapping[Place, Edit] | None = None) -> Record:
    """A run that reports each batch, and updates its weights after every second one."""

    def idle(copies: Copies) -> None:
        for kernel, bias, _ in copies:
            kernel -= 1
            bias -= 1

    edits = {(epoch, step): idle for epoch in (1, 2) for step in (1, 3)}
    return train(name, steps=(4, 4), model=(KERNEL, BIAS, MOVING), edits={**edits, **(more or {})})


def by_hand(train: Train, name: str, *, off: Place | None = None) -> Record:
    """The same, but it reports its updates only; the moving average changes twice in each."""

    def updated(place: Place) -> Edit:
        def edit(copies: Copies) -> None:
            for kernel, _, moving in copies:
                moving += 1
                kernel += 0.5 * (place == off)

        return edit

    places = itertools.product((1, 2), (1, 2))
    model = (KERNEL, BIAS, MOVING)
    return train(name, steps=(2, 2), model=model, edits={place: updated(place) for place in places})


def test_epochs_of_which_nothing_was_recorded_are_not_missing_unless_they_are_the_last() -> None:
    """Such as those of a training that is one call of a function."""

    def keys(*places: Place) -> np.ndarray:
        return np.array(sorted(map(in_time, places)))

    whole = keys((1, INITIAL), *itertools.product((1, 2, 3), (1, 2)), (1, EPOCH_END), (2, EPOCH_END))
    assert not len(_lacking(keys((1, INITIAL), (3, 2)), whole))
    assert _lacking(keys((1, INITIAL), (1, 2), (2, 2)), whole).tolist() == keys(
        (1, EPOCH_END), (2, EPOCH_END), (3, 1), (3, 2)
    ).tolist()  # fmt: skip


@pytest.mark.parametrize("swapped", [False, True])
def test_steps_that_accumulate_gradients_pair_with_the_updates_of_the_other_side(train: Train, swapped: bool) -> None:
    sides = [accumulating(train, "fit"), by_hand(train, "loop")]
    pair = paired_steps(*(sides[::-1] if swapped else sides))
    comparison = compare_records(*pair)
    assert comparison.training == Training("identical", 0.0, None, 4, steps_made=0 if swapped else 8)
    assert [len(each.keys) for each in pair] == [7, 7], "the initial weights, four updates and two ends"

    off = compare_records(*paired_steps(sides[0], by_hand(train, "loop", off=(2, 1)))).training
    assert (off.verdict, off.first_difference) == ("different", Difference(2, 2, since_step=1)), (
        "by the reference's numbers"
    )


@pytest.mark.parametrize("ends", [(2, 1), (3, 1), (4, 2)])
def test_accumulated_steps_of_an_interrupted_first_epoch_are_not_held_against_updates(
    train: Train, ends: tuple[int, int]
) -> None:
    whole = [accumulating(train, "fit"), by_hand(train, "loop")]
    begun = [one.up_to((1, end)) for one, end in zip(whole, ends, strict=True)]
    assert [rests(one) for one in (*begun, train(steps=(3,)))] == [True, False, False]
    verdict = judged(begun, status="interrupted", options={"epochs": 2})
    assert verdict.verdict == "inconclusive" and "once an epoch has ended" in verdict.comparisons[0].training.reason


SINCE_LAST_WEEK = {"epochs": 2, "baseline": "reports/last-week"}


def test_a_baseline_is_compared_with_every_seed(train: Train) -> None:
    """The worst one stands for all: that another seed is equal says nothing of it."""
    earlier = [replace(train("fit"), seed=seed) for seed in (0, 1)]
    now = [replace(train("fit", edits=edits), seed=seed) for seed, edits in ((0, None), (1, {(2, 1): add(0.5)}))]
    for seeds, verdict, seed in ((now, "different", 1), (now[:1], "identical", None)):
        (found,) = judged(seeds, earlier=earlier, trainers=["fit"], options=SINCE_LAST_WEEK).comparisons
        assert (found.verdict, found.seed) == (verdict, seed)


@pytest.mark.parametrize(("end", "verdict", "steps"), [(0, "inconclusive", 0), (2, "identical", 2)])
def test_an_interrupted_run_is_compared_with_a_baseline_as_far_as_it_came(
    train: Train, end: int, verdict: str, steps: int
) -> None:
    given = {"status": "interrupted", "trainers": ["fit"], "options": SINCE_LAST_WEEK}
    (found,) = judged([train("fit").up_to((1, end))], earlier=[train("fit")], **given).comparisons
    assert (found.verdict, found.training.steps_compared, found.recorded) == (verdict, steps, "last-week")


def test_a_trainer_that_fails_is_no_difference_from_a_baseline(train: Train) -> None:
    failures = [{"side": "loop", "error": "ValueError", "what": "", "remedy": ""}]
    now, earlier = ([train("fit"), each] for each in (train("loop").up_to((1, 1)), train("loop")))
    found = judged(now, earlier=earlier, failures=failures, options=SINCE_LAST_WEEK).comparisons
    verdicts = [(each.candidate, bool(each.against), each.verdict) for each in found]
    assert verdicts == [
        ("loop", False, "not-comparable"), ("fit", True, "identical"), ("loop", True, "not-comparable")
    ]  # fmt: skip


@pytest.mark.parametrize("status", ["interrupted", "unexplained", "finished"])
def test_an_interrupted_study_has_no_verdict_on_weights_that_differ_before_a_cause_was_looked_for(
    train: Train, status: Any
) -> None:
    """Its metrics may agree all the same; a cause would make it different."""
    logs = [{"val_accuracy": 0.5}] * 2
    fits, loops = train("fit", logs=logs), train("loop", edits={(2, 1): add(1e-6)}, logs=logs)
    records = [replace(each, seed=seed) for each in (fits, loops) for seed in range(3)]
    found = judged(records, status=status, options={"epochs": 2, "margin": ["val_accuracy=0.01"]}).comparisons[0]
    assert found.verdict == ("alike" if status == "finished" else "inconclusive")
    assert ("the run was interrupted before" in found.training.reason) == (status != "finished")


def undone(copies: Copies) -> None:
    for weights in itertools.chain(*copies):
        weights -= 1


def test_an_epoch_may_end_before_the_first_update(train: Train) -> None:
    fit = train("fit", steps=(2, 2), edits=dict.fromkeys([(1, 1), (1, 2), (2, 1)], undone))
    pair = paired_steps(fit, train("loop", steps=(0, 1)))
    assert compare_records(*pair).training == Training("identical", 0.0, None, 1, steps_made=2)


def test_only_idle_steps_are_left_out(train: Train) -> None:
    every, fewer = train("fit", steps=(4, 4)), train("loop", steps=(2, 2))
    assert paired_steps(every, fewer) == (every, fewer)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_epoch_with_other_updates_is_compared_by_its_end_where_gradients_are_accumulated(
    train: Train, swapped: bool
) -> None:
    sides = by_hand(train, "fit"), accumulating(train, "loop", more={(2, 4): undone})
    training = compare_records(*paired_steps(*(sides[::-1] if swapped else sides))).training
    assert (training.verdict, training.first_difference) == ("different", Difference(2, None))


@pytest.mark.parametrize("silent", ["fit", "loop", ""])
def test_who_reports_no_steps_while_the_other_does_is_named(train: Train, silent: str) -> None:
    fit, loop = (train(name, said=name != silent) for name in ("fit", "loop"))
    found = compare_records(fit, loop)
    assert found.training.steps_not_reported_by == silent
    said = sentences.silent(found)
    told = {
        "": "",
        "fit": "fit reports no steps, so weights were",
        "loop": "loop never calls run.end_step(), so weights",
    }
    assert said.startswith(told[silent]) and bool(said) == bool(silent)
    assert ("call it after" in said) == (silent == "loop"), "the reference may be none of the user's"
    neither = compare_records(train("fit", said=False), train("loop", said=False))
    assert not sentences.silent(neither), "so it is under this strategy"
