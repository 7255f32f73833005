"""What is said of a loop that takes its examples from elsewhere than its run, by the rows of its steps."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from compare.check.batches import Batches, UserRun
from compare.check.causes.data import kind_of_feed
from compare.check.causes.data_recorded import Known, kinds_of_own_rows
from compare.check.recipe import Span
from compare.check.whole_run import causes_of
from compare.records.model import Record, step_dtype
from compare.verdict.model import Comparison, Difference, Reporting, Training
from compare.watch.seen import CloseUp, Event

pytestmark = pytest.mark.usefixtures("texts_by_id")  # no cause rests on a sentence

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
    return CloseUp(steps, ends=ends)


def named(epochs, **options):
    """The causes, and what was measured: kinds with their quantities."""
    causes, others = kinds_of_own_rows(DATA, seen(FIT), seen(epochs, **options), BATCHES)
    return {id for id, _ in causes}, [each.as_json() for each in [*(each for _, each in causes), *others]]


def cut(rows, size=4):
    return [list(rows[i : i + size]) for i in range(0, len(rows), size)]


@pytest.mark.parametrize(("epochs", "causes", "kind", "quantities"), [
    ([cut(ALL), cut(ALL[::-1])], set(), "own-order", {}),
    ([cut(ALL), cut(ALL)], {"not-reshuffled"}, "same-order", {}),
    ([cut(ALL)[:4], cut(ALL[::-1])[:4]], {"examples-dropped"}, "never-seen", {"never": 4, "of_all": 20, "epoch": 1}),
    ([cut(ALL), []], {"examples-dropped"}, "never-seen", {"never": 20, "of_all": 20, "epoch": 2}),
    ([cut([*ALL, 3, 3, 4, 5]), cut(ALL)], {"examples-repeated"}, "repeats", {"epoch": 1, "repeats": 4, "of": 24}),
    ([cut([3] * 16 + [1] * 4), cut(ALL)], {"examples-repeated"}, "repeats", {"never": 18, "of_all": 20}),
    ([cut(ALL, 5), cut(ALL[::-1], 5)], {"batch-size-differs"}, "batch-size", {"examples": 5, "expected": 4}),
    ([cut(RUN[::-1]), cut(RUN)], set(), "other-order", {}),
    ([[rows + rows for rows in epoch] for epoch in FIT], set(), "passes", {"times": 2}),
    ([[rows[:3] for rows in epoch] for epoch in FIT], {"examples-dropped"}, "never-seen", {"never": 2, "of_all": 10}),
    ([cut(RUN, 8)[:1], cut(RUN[::-1], 8)[:1]], {"batch-size-differs"}, "several-batches", {"batches": 2}),
])  # fmt: skip
def test_the_rows_of_the_steps_say_what_is_wrong(epochs, causes, kind, quantities):
    found, seen = named(epochs)
    assert found == causes
    assert any(each.items() >= {"kind": kind, **quantities}.items() for each in seen)
    own = any(row >= len(RUN) for epoch in epochs for rows in epoch for row in rows)
    assert any(each.get("own_data") for each in seen) == own


def test_labels_of_other_examples_are_counted():
    found, measured = named([cut(RUN), cut(RUN[::-1])], labels=lambda row: 100 + (row ^ 1 if row < 6 else row))
    assert found == {"labels-shuffled-apart"}
    assert measured == [{"kind": "labels-apart", "examples": 12, "of": 20, "own_data": False}]


def test_nothing_is_said_of_examples_or_labels_that_are_not_the_experiments():
    assert named([cut(range(50, 60)), cut(range(50, 60))]) == (set(), [])
    for labels in (lambda row: 7000 + row, lambda row: 100):  # such as one-hot labels, or noise
        found, _ = named([cut(RUN[::-1]), cut(RUN)], labels=labels)
        assert found == set()
    assert named(FIT, labels=lambda row: 100) == (set(), [{"kind": "other-labels", "own_data": False}])


SPANS = {epoch: [Span(epoch, 0, 4), Span(epoch, 4, 8), Span(epoch, 8, 10)] for epoch in range(4)}


@pytest.mark.parametrize(("epochs", "cause", "measured"), [
    ((["10", "11", "12"], ["10", "11", "12"]), "not-reshuffled", {"kind": "same-order"}),
    ((["10", "11", "12"], ["21", "22"]), "examples-dropped",
     {"kind": "never-seen", "never": 4, "of_all": 10, "epoch": 2}),
    ((["10", "11"], ["20", "21"]), "examples-dropped", {"kind": "last-batch-dropped"}),
    ((["10", "10", "11", "12"], ["20", "21", "22"]), "examples-repeated",
     {"kind": "repeats", "repeats": 4, "of": 14, "never": 0, "of_all": 10, "epoch": 1}),
    ((["10", "11"], ["12", "20", "20", "21", "22"]), "examples-repeated", {"kind": "other-order"}),  # in another epoch
    ((["10", "10", "11"], ["20", "21", "22"]), None,
     {"kind": "repeats", "repeats": 4, "of": 12, "never": 2, "of_all": 10, "epoch": 1}),
    ((["10", "12", "11"], ["20", "21", "22"]), None, {"kind": "other-order"}),
    ((["00", "01", "02"], ["10", "11", "12"]), None, {"kind": "other-order"}),
])  # fmt: skip
def test_batches_that_gradients_tell_are_counted_as_rows_are(epochs, cause, measured):
    steps = [SimpleNamespace(epoch=number) for number, of_epoch in enumerate(epochs, 1) for _ in of_epoch]
    feed = tuple(SPANS[int(epoch)][int(i)] for of_epoch in epochs for epoch, i in of_epoch)
    replay = SimpleNamespace(user_run=None, spans=SPANS)
    case = SimpleNamespace(replay=replay, steps=steps, epochs=(1, 2), expected=(*SPANS[1], *SPANS[2]))
    id, seen = kind_of_feed(case, feed)
    assert (id, seen.as_json()) == (cause, measured)


def record(trainer, logs, weights=()):
    """A record with these logs by epoch, and a number that stands for the weights at each place."""
    steps = np.zeros(len(weights), step_dtype(1, 1))
    for row, (place, number) in zip(steps, weights, strict=True):
        row["epoch"], row["step"] = place
        row["hashes"] = number
    return Record(trainer, 0, (), steps, logs, None)


def departs(epoch, step):
    training = Training("different", 0.1, Difference(epoch, step), 20)
    return Comparison("mine", training, Reporting(None, {}))


RATES = {epoch: {"learning_rate": 0.1 if epoch < 4 else 0.05} for epoch in range(1, 6)}


@pytest.mark.parametrize(("fit", "epochs", "first", "measured"), [
    (RATES, 5, (4, 1), {"kind": "callbacks-changed-rate", "before": 0.1, "learning_rate": 0.05, "epoch": 4,
                        "callbacks": ["ReduceLROnPlateau"]}),
    ({1: {}, 2: {}, 3: {}}, 5, (4, 1), {"kind": "ended", "expected": 3, "epochs": 5, "side": "mine"}),
    ({1: {}, 2: {}}, 2, (2, None), {"kind": "callbacks-changed-weights", "epoch": 2}),
    (RATES, 5, (4, 2), None),  # equal in the first step with the new rate
    (RATES, 5, (3, 1), None),  # before the rate changes
    ({1: {}, 2: {}}, 2, (2, 1), None),
    ({1: {}, 2: {}, 3: {}}, 2, (3, 1), None),  # it is the loop that ends
])  # fmt: skip
def test_callbacks_that_act_late_are_named_by_the_whole_run(fit, epochs, first, measured):
    logs = {epoch: {} for epoch in range(1, epochs + 1)}
    loop = record("mine", logs, [((epoch, 1), epoch) for epoch in logs])
    found = list(causes_of(record("fit", fit), loop, departs(*first), ["EarlyStopping", "ReduceLROnPlateau"]))
    assert len(found) == (measured is not None)
    for each in found:
        assert (each.id, each.side) == ("callbacks-missing", "mine")
        callbacks = {"callbacks": ["EarlyStopping"], "reference": "fit"}
        assert each.measurements.items() >= {**callbacks, **measured}.items()
    assert not list(causes_of(record("fit", fit), loop, departs(*first), []))
    if first[1] is None:
        assert not list(causes_of(record("fit", fit), loop, departs(*first), ["TerminateOnNaN", "CSVLogger"]))
        silent = record("mine", logs)
        assert not list(causes_of(record("fit", fit), silent, departs(*first), ["EarlyStopping"]))


FIVE = [((1, step), step) for step in range(6)] + [((1, -1), 5)]
"""An epoch of five steps and its end, each with its weights."""


@pytest.mark.parametrize(("weights", "first", "logs", "dropped"), [
    ([*FIVE[:4], ((1, -1), 3)], 4, {1: {}}, True),
    ([*FIVE[:4], ((1, -1), 5)], 4, {1: {}}, False),  # it makes the others too, and calls no end_step
    ([*FIVE[:4], ((1, -1), 3)], 3, {1: {}}, False),  # the third step is another one
    ([FIVE[0], ((1, -1), 0)], 1, {1: {}}, False),  # steps that nothing says
    (FIVE[:4], 4, {}, False),  # interrupted
    ([*FIVE[:6], ((1, 6), 6), ((1, -1), 6)], 6, {1: {}}, False),  # more of them
])  # fmt: skip
def test_an_epoch_that_ends_early_leaves_out_examples(weights, first, logs, dropped):
    found = list(causes_of(record("fit", {1: {}}, FIVE), record("mine", logs, weights), departs(1, first), []))
    assert [(each.id, each.side) for each in found] == [("examples-dropped", "mine")] * dropped
    for each in found:
        assert each.measurements.items() >= {"epoch": 1, "steps": 3, "expected": 5, "reference": "fit"}.items()
