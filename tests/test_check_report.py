"""What the short check reports, and its catalogue: plain data, without TensorFlow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compare
from compare.check import NotApplicable, Report
from compare.check.causes import CATALOGUE
from compare.check.causes.optimizer import FORMULAS
from compare.check.measurement import Measurement
from compare.check.report import REPORTING, TRAINING, merged, named
from compare.check.stages import Located
from compare.check.words import TEXTS, said
from compare.reporting.terminal import as_text
from compare.verdict import Comparison, Reporting, StageValues, Training

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
    "regularization-not-divided-by-replicas",
    "training-flag-missing",
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
    "loss-without-regularization",
    "loss-not-reduced",
    "validation-loss-without-regularization",
    "validation-in-training-mode",
    "validation-examples-dropped",
    "metrics-from-one-replica",
    "validation-sample-weights-dropped",
]


def report(verdict="identical", reporting="identical", findings=(), replicas=1, **more):
    comparison = Comparison("mine", Training(verdict, 0.0, None, 6), Reporting(reporting, {}))
    return Report("fit", (replicas,), comparison, tuple(findings), **more)


def finding(id="loss-summed", kind=TRAINING, factor=2):
    return named(id, kind, "mine", Measurement.of("loss-factor", factor=factor), "do this")


def test_the_catalogue_has_every_cause_of_the_interfaces_and_no_other():
    assert {id for id, cause in CATALOGUE.items() if cause.kind == TRAINING} == set(TRAINING_IDS)
    assert {id for id, cause in CATALOGUE.items() if cause.kind == REPORTING} == set(REPORTING_IDS)


@pytest.mark.parametrize("id", [*TRAINING_IDS, *REPORTING_IDS])
def test_an_entry_has_its_texts(id):
    cause = CATALOGUE[id]
    assert cause.id == id
    assert cause.symptom and cause.explanation and cause.remedy


def test_each_kind_of_measurement_has_a_sentence_and_each_sentence_is_used():
    files = [path.read_text() for path in Path(compare.__file__).parent.rglob("*.py")]
    kinds = set(re.findall(r'(?:Measurement\.of|_of|_one)\(\s*(?:case, |"[\w-]+",\s*)?"([\w-]+)"', "".join(files)))
    formulas = {f"formula-{name}" for names in FORMULAS.values() for name in names}
    others = {kind for kind in TEXTS if f'"{kind}"' in "".join(files).replace(f'"{kind}":', "")}
    losses = {f"script-{id}" for id in CATALOGUE} | {f"reported-{id}" for id in CATALOGUE}
    assert kinds <= set(TEXTS) and set(TEXTS) <= kinds | formulas | others | losses


def test_a_measurement_is_numbers_in_json_and_a_sentence_for_people():
    factor = Measurement.of(
        "loss-factor", factor=np.float32(2), explains="updates", places=6, residual=np.float64(1e-8)
    )
    assert factor.as_json() == {
        "kind": "loss-factor",
        "factor": 2.0,
        "explains": "updates",
        "places": 6,
        "residual": 1e-8,
    }
    explained = "the loss has a constant factor of 2; this explains all 6 updates to a relative error of 1.0e-08"
    assert said(factor.but(otherwise=0.5)) == f"{explained} (0.5 without it)"
    assert said(factor.but(otherwise=np.inf)) == f"{explained} (nothing else does)"
    assert factor.but(otherwise=np.inf).as_json()["otherwise"] is None, "JSON has no infinity"
    unexplained = factor.but(otherwise=np.inf)
    for seen in (unexplained, Measurement.all([unexplained, Measurement.of("same-order")])):
        assert said(Measurement.read(json.loads(json.dumps(seen.as_json())))) == said(seen)
    factor = Measurement.of("loss-factor", factor=2)
    assert said(factor.but(since_step=3, since_epoch=2)).startswith("from step 3 (epoch 2) on, the loss has")


@pytest.mark.parametrize(("gap", "who"), [(0.0, "every gradient has"), (0.5, "the loss has")])
def test_a_factor_that_the_loss_does_not_have_is_said_to_be_the_gradients(gap, who):
    located = Located(1, "gradients", stages=[StageValues("loss", gap), StageValues("gradients", 0.5)])
    seen = report("different", findings=[finding("loss-scaled"), finding("metrics-not-reset", REPORTING)])
    (factor, _) = seen.of_gradients(located).findings
    assert factor.id == "loss-scaled" and factor.evidence.startswith(f"{who} a constant factor of 2")


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
    said = "the loss has a constant factor of 2"
    cause = {"id": "loss-summed", "side": "mine", "evidence": said, "remedy": "do this"}
    assert comparison["causes"] == [{**cause, "measurements": {"kind": "loss-factor", "factor": 2}}]
    assert comparison["evidence"] == ["the second epoch has the order of the first"]
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


def test_a_report_reads_as_every_other_verdict():
    found = report("different", "identical", [finding()], not_applicable=(NotApplicable("this", "that"),))
    first, *others = as_text(found.as_verdict()).splitlines()
    assert first.startswith("different: mine does not train like fit: ")
    assert others == [
        "  cause: loss-summed (in mine): the loss has a constant factor of 2.",
        "    do this",
        "  not applicable: this: that",
    ]
