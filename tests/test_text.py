"""A verdict in words: true, complete, and understood without having read the program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.reporting.page_model import _where
from compare.reporting.sentences import causes, sentence
from compare.verdict.findings import Finding, Source
from compare.verdict.model import Comparison, Difference, DifferingVariable, MetricGap, Reporting, Training

SAME = {"loss": MetricGap(0.0, 1), "accuracy": MetricGap(0.0, 1)}
IDENTICAL = Training("identical", 0.0, None, 9380)
KERNEL = (DifferingVariable("dense/kernel", 0.25),)


def said(training: Training, reporting: Reporting) -> str:
    return sentence(Comparison("loop", training, reporting).settled(), "fit")


@pytest.mark.parametrize(
    ("steps", "when"),
    [(9380, "after each of 9,380 steps"), (1, "after the only step"), (0, "at the end of every epoch")],
)
def test_identical_says_how_much_was_compared(steps: int, when: str) -> None:
    assert said(Training("identical", 0.0, None, steps), Reporting("identical", SAME)) == (
        f"loop trains exactly like fit: every weight is equal, bit for bit, {when}, and so is every reported number"
    )


@pytest.mark.parametrize(("calls", "when"), [(4, "after each of 4 calls"), (1, "once, after 8 steps")])
def test_identical_says_how_many_steps_one_comparison_is_of(calls: int, when: str) -> None:
    assert when in said(Training("identical", 0.0, None, calls, steps_made=8), Reporting("identical", SAME))


@pytest.mark.parametrize(
    ("training", "text"),
    [
        (
            Training("different", 0.25, Difference(2, 1938), 9380, differing_variables=KERNEL),
            "their weights differ from step 1,938 of epoch 2 on; "
            "at epoch ends, individual weights differ by up to 2.5e-01",
        ),
        (
            Training("different", None, Difference(2, 3), 9380, differing_variables=KERNEL),
            "their weights differ from step 3 of epoch 2 on",
        ),
        (
            Training("different", 0.0, Difference(1, 3), 9380, differing_variables=KERNEL),
            "their weights differ from step 3 of epoch 1 on, "
            "but at epoch ends the weights of the first replica are equal",
        ),
        (
            Training("different", 0.0, Difference(3, None), 0, differing_variables=KERNEL),  # restored after its end
            "their weights first differ at the end of epoch 3",
        ),
        (
            Training("different", None, Difference(3, None), 0, differing_variables=KERNEL),
            "their weights first differ at the end of epoch 3",
        ),
        (
            Training("different", None, Difference(1, 0), 9380, differing_variables=KERNEL),
            "their initial weights differ",
        ),
        (
            Training("different", 1e-9, Difference(1, 938), 937, reason="loop has no step 938 in epoch 1"),
            "loop has no step 938 in epoch 1; at epoch ends, individual weights differ by up to 1.0e-09",
        ),
        (
            Training("different", None, Difference(1, 0), 0, reason="the models have different weights"),
            "the models have different weights",
        ),
    ],
)
def test_different_says_where_they_part_and_how_far(training: Training, text: str) -> None:
    """Whatever was reported: other weights come with other numbers."""
    for metrics in (SAME, {"loss": MetricGap(0.5, 1)}):
        assert said(training, Reporting(None, metrics)) == f"loop does not train like fit: {text}"


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (SAME | {"loss": MetricGap(2.0**-24, 3)}, "loss (by up to 6e-08, in epoch 3)"),
        (
            {"loss": MetricGap(None, 2), "accuracy": MetricGap(0.5, 1)},
            "loss (NaN or infinite, in epoch 2), accuracy (by up to 0.5, in epoch 1)",
        ),
        (SAME, "the reported epochs differ"),
    ],
)
def test_a_reporting_difference_names_its_metrics_and_that_training_is_equal(
    metrics: dict[str, MetricGap], text: str
) -> None:
    assert said(IDENTICAL, Reporting("different", metrics)) == (
        f"loop trains exactly like fit, but reports different numbers: {text}; the weights are equal, bit for bit"
    )


ALIKE = Training("alike", 1e-7, Difference(1, 3), 9380)


@pytest.mark.parametrize(
    ("reporting", "numbers"),
    [
        (
            Reporting("different", {"loss": MetricGap(0.5, 1), "mae": MetricGap(1e-8, 2)}, ("loss",)),
            ", but reports different numbers: loss (by up to 0.5, in epoch 1);",
        ),
        (Reporting("different", SAME), ", but its weights do not explain its reported numbers;"),
        (
            Reporting(None, {"loss": MetricGap(0.5, 1), "mae": MetricGap(1e-8, 2)}, ("loss",)),
            ", but its reported numbers differ by more than rounding, and could not be judged: loss (by up to 0.5, in "
            "epoch 1);",
        ),
        (Reporting("alike", {"loss": MetricGap(0.5, 1)}), ":"),
    ],
)
def test_numbers_that_weights_do_not_explain_are_said_before_the_rounding_of_weights(
    reporting: Reporting, numbers: str
) -> None:
    weights = (
        "their weights differ from step 3 of epoch 1 on; at epoch ends, individual weights differ by up to 1.0e-07"
    )
    assert said(ALIKE, reporting) == f"loop trains like fit, up to rounding{numbers} {weights}"


def test_where_weights_only_round_differently_the_page_says_that_the_numbers_are_what_differs() -> None:
    numbers = Reporting("different", {"loss": MetricGap(0.5, 1), "mae": MetricGap(1e-8, 2)}, ("loss",))
    told = _where(Comparison("loop", ALIKE, numbers).settled())
    assert told == ("In the reported numbers: loss", "weights differ by rounding only")
    assert _where(Comparison("loop", ALIKE, Reporting("alike", {}))) == ("Epoch 1, step 3", "")


def test_a_number_that_a_cause_is_named_for_is_no_rounding() -> None:
    cause = Finding("metrics-not-reset", "", "loop", "", "", {"metrics": ["mae"]})
    numbers = Reporting("different", {"loss": MetricGap(0.5, 1), "mae": MetricGap(1e-8, 2)}, ("loss",))
    settled = Comparison("loop", ALIKE, numbers, causes=(cause,)).settled()
    assert not any(gap.only_rounding for gap in settled.reporting.metrics.values())


@pytest.mark.parametrize("measurements", [(), ({"kind": "as-trained", "metric": "mae", "loss": False},)])
def test_beside_a_named_number_those_within_the_noise_of_alike_weights_are_rounding(measurements: Any) -> None:
    cause = Finding("loss-averaged-over-batches", "", "loop", "", "", {"metric": "loss"})
    numbers = Reporting("different", {"loss": MetricGap(0.5, 1), "mae": MetricGap(1e-8, 2)})
    settled = Comparison("loop", ALIKE, numbers, causes=(cause,), measurements=measurements).settled()
    assert [name for name, gap in settled.reporting.metrics.items() if gap.only_rounding] == ["mae"] * (
        not measurements
    )


def test_numbers_that_could_not_be_judged_come_with_what_to_look_at() -> None:
    unjudged = Comparison("loop", ALIKE, Reporting(None, {"loss": MetricGap(0.5, 1)}, ("loss",))).settled()
    (line,) = causes(unjudged)
    assert line.startswith("  no known cause explains this: check how loop calculates these numbers")
    assert line.endswith("those that losses and metrics of Keras calculate can be judged.")


def test_no_verdict_says_why() -> None:
    training = Training("inconclusive", None, None, 0, reason="neither trainer changed any weight")
    assert said(training, Reporting(None, SAME)) == ("no verdict on loop and fit: neither trainer changed any weight")


def test_where_weights_differ_what_was_measured_comes_before_causes_that_are_of_numbers_alone() -> None:
    differs = Training("different", 1.0, Difference(1, 1), 3)
    cause = Finding("metrics-not-reset", "", "loop", "the mean of all epochs", "metric.reset_state()", {})
    found = Comparison("loop", differs, Reporting(None, {}), causes=(cause,), evidence=("it calls the model again",))
    assert causes(found)[:2] == [
        "  evidence: it calls the model again.",
        f"  cause: {cause.label}, of the reported numbers only: {cause.evidence}.",
    ]
    for other in (replace(found, training=IDENTICAL), replace(found, causes=(replace(cause, id="loss-summed"), cause))):
        assert causes(other)[-1] == "  besides: it calls the model again."


def test_causes_cite_the_users_line_and_what_they_leave_open_is_told_besides() -> None:
    line = Source("my_loop.py", 20, "loss = loss_fn(y, predictions)")
    cause = Finding("loss-summed", "training", "loop", "64 times as much", "loss = tf.reduce_mean(loss)", {}, line)
    found = Comparison("loop", IDENTICAL, Reporting(None, {}), causes=(cause,), evidence=("it calls the model again",))
    assert causes(found) == [
        "  cause: loss-summed (in loop): 64 times as much.",
        "    at my_loop.py:20: loss = loss_fn(y, predictions)",
        "    loss = tf.reduce_mean(loss)",
        "  besides: it calls the model again.",
    ]
    shown = replace(cause, source=replace(line, shows=True))
    assert causes(replace(found, causes=(shown,)))[1] == "    seen at my_loop.py:20: loss = loss_fn(y, predictions)"
    changed = replace(cause, source=replace(line, instead="loss = right(y, predictions)"))
    assert causes(replace(found, causes=(changed,)))[1:4] == [
        "    at my_loop.py:20:",
        "    - loss = loss_fn(y, predictions)",
        "    + loss = right(y, predictions)",
    ]
    assert causes(replace(found, causes=())) == ["  evidence: it calls the model again."]


def test_a_line_is_in_the_file_that_the_user_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [Source.of((file, 3, "x")) for file in (str(tmp_path / "a.py"), "/b/c.py", "/tmp/ipykernel_12/345.py")]
    assert [each and each.file for each in shown] == ["a.py", "/b/c.py", "notebook cell"]
    assert Source.of(None) is None
