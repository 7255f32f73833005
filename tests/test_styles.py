"""Loops in many styles: a correct one is never different, and a mistake is never given a wrong cause.

These are a sample of ``tests/corpus``; ``python scripts/accuracy.py styles`` checks them all and writes
reports/detector.
"""

from __future__ import annotations

import functools

import corpus
import pytest
from against_fit import checker_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*from_logits=True.*Was this intended:UserWarning"),
    # Raised by Keras's own LearningRateScheduler.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*shuffle=True. was passed, but will be ignored:UserWarning"),
]

GATE, MORE = 3, 60
"""Number of cells in the gate, and together with the slow tests."""


@functools.cache
def checker(experiment, replicas, batch_size):
    return checker_of(corpus.EXPERIMENTS[experiment].build(), replicas, batch_size=batch_size)


def sampled():
    cells = corpus.sample(MORE)
    return [
        pytest.param(cell, id=cell.name, marks=[pytest.mark.slow] if i >= GATE else []) for i, cell in enumerate(cells)
    ]


@pytest.mark.parametrize("cell", sampled())
def test_a_loop_is_judged_correctly_whatever_its_style(tensorflow, cell):
    _, trainer = cell.build()
    same = checker(cell.experiment, cell.replicas, cell.batch_size)
    report = same.check(trainer)
    named = {finding.id for finding in report.findings}
    if cell.kind == "correct":
        assert report.verdict in ("identical", "alike"), report
        assert named == set(), report
    else:
        assert report.verdict == "different", report
        assert named <= cell.allowed, report


def test_there_are_enough_of_them():
    cells = corpus.cells()
    correct = [cell for cell in cells if cell.kind == "correct"]
    assert len(correct) >= 120
    assert len(cells) - len(correct) >= 200
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.replicas for cell in correct} == {1, 2}
