"""What the short check reports, and its catalogue: plain data, without TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compare.check import Report
from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.report import REPORTING, TRAINING, merged
from compare.check.stages import Located
from compare.check.user_code import line_that_makes
from compare.records.model import EPOCH_END, INITIAL, Record
from compare.verdict.findings import StageValues
from compare.verdict.model import Comparison, Reporting, Training

TRAINING_IDS = [
    "loss-not-divided-by-replicas",
    "loss-divided-twice",
    "loss-summed",
    "loss-constant-denominator",
    "loss-scaled",
    "loss-scale-missing",
    "label-smoothing-missing",
    "mask-missing",
    "regularization-missing",
    "regularization-scaled",
    "regularization-not-divided-by-replicas",
    "training-flag-missing",
    "layer-differs",
    "not-finite",
    "logits-mismatch",
    "label-shape-broadcast",
    "clipping-differs",
    "gradients-not-reduced",
    "variables-not-trained",
    "optimizer-differs",
    "learning-rate-schedule-missing",
    "callbacks-missing",
    "not-reshuffled",
    "examples-dropped",
    "examples-repeated",
    "batch-size-differs",
    "labels-shuffled-apart",
    "sample-weights-dropped",
    "weights-not-shared",
    "validation-changes-state",
    "uneven-replica-batches",
    "empty-replica-batch",
]
REPORTING_IDS = [
    "metrics-not-reset",
    "metric-differs",
    "loss-averaged-over-batches",
    "last-batch-only",
    "metrics-after-update",
    "loss-without-regularization",
    "loss-not-reduced",
    "validation-loss-without-regularization",
    "validation-in-training-mode",
    "validation-examples-dropped",
    "metrics-from-one-replica",
    "validation-sample-weights-dropped",
]


def report(verdict="identical", reporting="identical", findings=(), replicas=1, **more):
    comparison = Comparison("mine", Training(verdict, 0.0, None, 6), Reporting(reporting, {}), causes=tuple(findings))
    return Report("fit", (replicas,), comparison, **more)


def finding(id="loss-summed", kind=TRAINING, factor=2):
    found = CATALOGUE[id].found("mine", Measurement.of("loss-factor", factor=factor), remedy="do this")
    return replace(found, kind=kind)


def test_the_catalogue_has_every_cause_of_the_interfaces_and_no_other():
    assert {id for id, cause in CATALOGUE.items() if cause.kind == TRAINING} == set(TRAINING_IDS)
    assert {id for id, cause in CATALOGUE.items() if cause.kind == REPORTING} == set(REPORTING_IDS)


@pytest.mark.parametrize(("gap", "kind"), [(0.0, "gradients-factor"), (0.5, "loss-factor")])
def test_a_factor_that_the_loss_does_not_have_is_the_gradients(gap, kind):
    located = Located(1, "gradients", stages=[StageValues("loss", gap), StageValues("gradients", 0.5)])
    seen = report("different", findings=[finding("loss-scaled"), finding("metrics-not-reset", REPORTING)])
    (factor, _) = seen.of_gradients(located).findings
    assert factor.id == "loss-scaled" and factor.measurements == {"kind": kind, "factor": 2}


def test_reports_and_catalogue_do_without_tensorflow():
    code = "import sys, compare.check, compare.check.causes; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_worse_verdict_counts():
    assert report("identical", "different").verdict == "different"
    assert report("alike", "identical").verdict == "alike"


def test_a_report_is_a_verdict_file():
    unexplained = (Measurement.of("same-order"),)
    content = report("different", "identical", [finding()], unexplained=unexplained).as_verdict().content()
    assert content["scope"] == "check"
    assert content["verdict"] == "different"
    (comparison,) = content["comparisons"]
    (cause,) = comparison["causes"]
    assert list(cause) == ["id", "side", "evidence", "remedy", "measurements"]
    assert (cause["id"], cause["side"]) == ("loss-summed", "mine")
    assert cause["measurements"] == {"kind": "loss-factor", "factor": 2}
    assert cause["evidence"] and len(comparison["evidence"]) == 1
    assert comparison["measurements"] == [{"kind": "same-order"}]
    json.dumps(content, allow_nan=False)


def test_several_replica_counts_are_one_report():
    one = report("identical", "different", [finding("metrics-not-reset", REPORTING, 1)], seconds=2)
    two = report("different", None, [finding(), finding("metrics-not-reset", REPORTING, 2)], replicas=2, seconds=3)
    both = merged([one, two])
    assert both.replicas == (1, 2)
    assert both.comparison.training.verdict == both.comparison.reporting.verdict == "different"
    assert [each.id for each in both.findings] == ["loss-summed", "metrics-not-reset"]
    assert both.reporting[0].measurements["factor"] == 1
    assert both.seconds == 5


@pytest.mark.parametrize(
    ("verdict", "of_one", "of_two", "named"),
    [
        ("different", ["loss-scaled"], ["loss-divided-twice"], ["loss-scaled"]),
        ("different", [], ["regularization-not-divided-by-replicas"], []),
        ("identical", [], ["loss-divided-twice"], ["loss-divided-twice"]),
        ("different", ["loss-summed"], ["loss-summed", "loss-divided-twice"], ["loss-summed", "loss-divided-twice"]),
    ],
)
def test_what_one_replica_differs_by_is_no_mistake_of_several(verdict, of_one, of_two, named):
    one = report(verdict, findings=map(finding, of_one))
    two = report("different", findings=map(finding, of_two), replicas=2)
    assert [each.id for each in merged([one, two]).findings] == named


def test_a_check_that_saw_no_step_says_nothing_of_a_run_with_steps(tensorflow):
    from compare.app.diagnose import _made_no_step

    never, other = (
        report("different", findings=[CATALOGUE["variables-not-trained"].found("mine", seen)])
        for seen in (Measurement.of("weights-never-change", zero=None), Measurement.of("no-gradient", variables=["w"]))
    )
    for steps, nothing in (([INITIAL, 1, 2, EPOCH_END], True), ([INITIAL, EPOCH_END], False)):
        made = Record(
            "mine", 0, (), np.array([(1, step) for step in steps], [("epoch", int), ("step", int)]), {}, Path()
        )
        assert (_made_no_step(never, made), _made_no_step(other, made)) == (nothing, False)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("total += loss\ncompare.report(loss=total / n)", 1),
        ("total = total + loss\nloss = float(total / n)\ncompare.report(loss=loss)", 1),
        ("losses.append(loss)\ncompare.report(epoch=1, loss=np.mean(losses))", 1),
        ("all.append(loss)\ncompare.report(loss=sum(float(each) for each in all) / len(all))", 1),
        ("total.assign_add(loss)\ncompare.report(**{'loss': total.numpy()})", 1),
        ("def epoch():\n  total += loss\n  return total / n, 0\nloss, acc = epoch()\ncompare.report(loss=loss)", 2),
        ("def epoch():\n  total += loss\n  return total / n, 0\na, b = epoch()\ncompare.report(loss=b)", 5),
        ("t += a\nloss = t / n\nt = 0\nt += b\nval = t / n\ncompare.report(loss=loss, val=val)", 1),
        ("total += loss\ncompare.report(loss=loss, other=total)", 2),
        ("acc = metric.result()\nmetric.reset_state()\ncompare.report(loss=float(acc))", 1),
        ("n += 1\ncompare.report(loss=loss / n)", 2),
        ("step += 1\nloss = train(x, step)\ncompare.report(loss=loss)", 3),
        ("def a():\n  return b()\ndef b():\n  return a()\ncompare.report(loss=a())", 5),
    ],
)
def test_the_line_that_makes_up_a_number_in_python_is_found(tmp_path: Path, script: str, found: int) -> None:
    file, lines = str(tmp_path / "loop.py"), script.split("\n")
    Path(file).write_text(script)
    reports = len(lines)
    line = (file, reports, lines[-1])
    assert line_that_makes(line, ["loss"]) == (file, found, lines[found - 1].strip())
    assert line_that_makes((file, reports, "what stood there before"), ["loss"]) == (
        file,
        reports,
        "what stood there before",
    )
