"""What is said of a loop that takes its examples from elsewhere than its run, by the rows of its steps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from compare.check.batches import Batches, UserRun
from compare.check.causes.data import Known, kinds_of_own_rows
from compare.check.judge_recorded import missing_callbacks
from compare.check.observation import Seen
from compare.check.words import said
from compare.records import Record, step_dtype
from compare.verdict import Comparison, Difference, Reporting, Training
from compare.watch.seen import CloseUp, Event

BATCHES = Batches(1, 4, 2, 4, user_run=UserRun(20, 4))
RUN, ALL = range(10), range(20)
"""The run has the first 10 of 20 examples; the label of example i is 100 + i."""
DATA = Known(Counter(RUN), Counter(ALL), {row: {100 + row} for row in ALL})
FIT = [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]]


def seen(epochs, labels=lambda row: 100 + row):
    """Steps with these rows; an epoch is a list of batches."""
    steps, ends = {}, []
    for epoch in epochs:
        for rows in epoch:
            inputs = Event("inputs", 0, {"model": "m"}, [], rows)
            steps[len(steps) + 1] = [inputs, Event("targets", 0, {}, [], [labels(row) for row in rows])]
        ends.append(len(steps))
    return Seen(CloseUp(steps), tuple(ends))


def named(epochs, **options):
    causes, evidence = kinds_of_own_rows(DATA, seen(FIT), seen(epochs, **options), BATCHES)
    return {id for id, _ in causes}, [said(each) for each in [*(each for _, each in causes), *evidence]]


def cut(rows, size=4):
    return [list(rows[i : i + size]) for i in range(0, len(rows), size)]


@pytest.mark.parametrize(
    ("epochs", "causes", "text"),
    [
        ([cut(ALL), cut(ALL[::-1])], set(), "experiment's examples in an order of its own"),
        ([cut(ALL), cut(ALL)], {"not-reshuffled"}, "second epoch has the order of the first"),
        ([cut(ALL)[:4], cut(ALL[::-1])[:4]], {"examples-dropped"}, "4 of all 20 examples are never seen in epoch 1"),
        ([cut(ALL), []], {"examples-dropped"}, "20 of all 20 examples are never seen in epoch 2"),
        ([cut([*ALL, 3, 3, 4, 5]), cut(ALL)], {"examples-repeated"}, "in epoch 1, 4 of its 24 examples are repeats"),
        ([cut([3] * 16 + [1] * 4), cut(ALL)], {"examples-repeated"}, "and 18 of all 20 are never seen"),
        ([cut(ALL, 5), cut(ALL[::-1], 5)], {"batch-size-differs"}, "its batches have 5 examples, but the global batch"),
        ([cut(RUN[::-1]), cut(RUN)], set(), "the examples are in another order"),
        ([[rows + rows for rows in epoch] for epoch in FIT], set(), "predictions for its batch 2 times"),
        ([[rows[:3] for rows in epoch] for epoch in FIT], {"examples-dropped"}, "2 of all 10 examples are never seen"),
        ([cut(RUN, 8)[:1], cut(RUN[::-1], 8)[:1]], {"batch-size-differs"}, "each update is made from 2 batches of 4"),
    ],
)
def test_the_rows_of_the_steps_say_what_is_wrong(epochs, causes, text):
    found, texts = named(epochs)
    assert found == causes
    assert text in " ".join(texts)
    own = any(row >= len(RUN) for epoch in epochs for rows in epoch for row in rows)
    assert ("does not use run.train_dataset" in " ".join(texts)) == own


def test_labels_of_other_examples_are_counted():
    found, texts = named([cut(RUN), cut(RUN[::-1])], labels=lambda row: 100 + (row ^ 1 if row < 6 else row))
    assert found == {"labels-shuffled-apart"}
    assert texts == ["12 of 20 examples are trained on with another one's label"]


def test_nothing_is_said_of_examples_or_labels_that_are_not_the_experiments():
    assert named([cut(range(50, 60)), cut(range(50, 60))]) == (set(), [])
    for labels in (lambda row: 7000 + row, lambda row: 100):  # such as one-hot labels, or noise
        found, _ = named([cut(RUN[::-1]), cut(RUN)], labels=labels)
        assert found == set()
    assert named(FIT, labels=lambda row: 100) == (set(), ["the labels are not those of the examples"])


def record(trainer, logs):
    return Record(trainer, 0, (), np.zeros(0, step_dtype(1, 1)), logs, None)


def departs(epoch, step):
    training = Training("different", 0.1, Difference(epoch, step), 20)
    return Comparison("mine", training, Reporting(None, {}))


RATES = {epoch: {"learning_rate": 0.1 if epoch < 4 else 0.05} for epoch in range(1, 6)}


@pytest.mark.parametrize(
    ("fit", "epochs", "first", "text"),
    [
        (RATES, 5, (4, 1), "changed the learning rate from 0.1 to 0.05 for epoch 4"),
        ({1: {}, 2: {}, 3: {}}, 5, (4, 1), "fit ended after epoch 3 (EarlyStopping), mine after epoch 5"),
        ({1: {}, 2: {}}, 2, (2, None), "at the end of epoch 2 EarlyStopping of fit changed the weights"),
        (RATES, 5, (4, 2), None),  # equal in the first step with the new rate
        (RATES, 5, (3, 1), None),  # before the rate changes
        ({1: {}, 2: {}}, 2, (2, 1), None),
    ],
)
def test_callbacks_that_act_late_are_named_by_the_whole_run(fit, epochs, first, text):
    loop = record("mine", {epoch: {} for epoch in range(1, epochs + 1)})
    found = missing_callbacks(record("fit", fit), loop, departs(*first), ["EarlyStopping"])
    assert (found.evidence if found else None) == text or text in found.evidence
    assert found is None or (found.id, found.side) == ("callbacks-missing", "mine")
    assert missing_callbacks(record("fit", fit), loop, departs(*first), []) is None
