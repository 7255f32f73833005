"""Recognises loops that do not take their examples from the run, by the rows that each step saw.

Such a loop loads and batches the data by itself. Its gradients match no batch of the run, but its rows are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from compare.check.batches import Batches
from compare.check.measurement import Measurement
from compare.check.observation import Seen
from compare.check.stages import example_rows
from compare.engine.input_pipeline import Examples, Stream
from compare.watch.seen import row_hashes

MOST = 200_000
"""The largest number of examples that are hashed."""

Named = tuple[str, Measurement]
"""The id of a cause, and its evidence."""


@dataclass(frozen=True)
class Data:
    """Examples by the hash of their inputs.

    Attributes:
        of_run: how often the run has each example.
        of_experiment: how often the experiment's own data has it.
        labels: the hashes of its labels; equal inputs may have several.
    """

    of_run: Counter[int]
    of_experiment: Counter[int]
    labels: dict[int, set[int]]

    @staticmethod
    def of(run: Examples | Stream, experiment: Examples | Stream) -> Data:
        """Hashes the training examples of a run and of its experiment."""
        labels: dict[int, set[int]] = {}
        counted = Counter[int](), Counter[int]()
        for rows, examples in zip(counted, (run, experiment), strict=True):
            if examples.count > MOST:
                continue
            for x, y, *_ in examples.in_order(1024).as_numpy_iterator():
                hashes = row_hashes(tf.nest.flatten(x))
                rows.update(hashes)
                for row, label in zip(hashes, row_hashes(tf.nest.flatten(y)), strict=False):
                    labels.setdefault(row, set()).add(label)
        return Data(*counted, labels)


def name_own_data(
    data: Data, reference: Seen, candidate: Seen, batches: Batches
) -> tuple[list[Named], list[Measurement]]:
    """What is wrong with the examples of a loop whose steps have other examples than the reference's.

    Returns:
        Causes, and evidence where there are none; both empty if its examples are not known.
    """
    right, epochs = ([side.rows(steps) for steps in side.epochs()] for side in (reference, candidate))
    seen = candidate.examples
    if not seen or not seen <= data.labels.keys():
        return [], []
    own = not seen <= data.of_run.keys()
    source = data.of_experiment if own else data.of_run
    if (times := _passes(reference, candidate)) > 1:
        return [], [Measurement.of("passes", times=times)]
    causes = [*_labels(data, candidate), *_batch_size(reference, candidate, batches, own)]
    if not any(cause == "batch-size-differs" for cause, _ in causes):  # batches that are collected for an update
        causes += _count(epochs, source)
        if len(epochs) > 1 and epochs[0] == epochs[1] and len(right) > 1 and right[0] != right[1]:
            causes.append(("not-reshuffled", Measurement.of("same-order")))
    named = [(cause, seen.but(own_data=own)) for cause, seen in causes]
    kind = "own-order" if own else "other-order"
    if epochs == right:
        kind = "other-labels"
    return named, [] if named else [Measurement.of(kind, own_data=own)]


def _passes(reference: Seen, candidate: Seen) -> int:
    """How often every step of the candidate sees each example of the reference's step; 0 if it sees other ones."""
    ratios = set()
    for step in reference.steps.steps:
        batch, rows = (Counter(example_rows(side.steps, step)) for side in (reference, candidate))
        times = rows.total() // max(batch.total(), 1)
        ratios.add(times if rows == Counter({row: times * number for row, number in batch.items()}) else 0)
    return ratios.pop() if len(ratios) == 1 else 0


def _labels(data: Data, candidate: Seen) -> Iterator[Named]:
    pairs: list[tuple[int, int]] = []
    for step in candidate.steps.steps:
        rows, labels = example_rows(candidate.steps, step), candidate.steps.rows(step, "targets")
        if len(rows) == len(labels):
            pairs += zip(rows, labels, strict=True)
    known = [data.labels[row] for row, _ in pairs]
    right = Counter(next(iter(labels)) for labels in known)
    if any(len(labels) > 1 for labels in known) or Counter(label for _, label in pairs) != right:
        return  # labels in a form of the loop's own, or others than those of its examples
    if apart := sum(label not in data.labels[row] for row, label in pairs):
        yield "labels-shuffled-apart", Measurement.of("labels-apart", examples=apart, of=len(pairs))


def _batch_size(reference: Seen, candidate: Seen, batches: Batches, own: bool) -> Iterator[Named]:
    user_run = batches.user_run
    if own and user_run is None:
        return  # the loop may know the batch size of the user's own run
    whole, seen = ([frozenset(side.rows([step])) for step in (1, 2)] for side in (reference, candidate))
    if all(some < every for some, every in zip(seen, whole, strict=True)):
        return  # a part of each batch
    sizes = {batches.full} | ({user_run.global_batch_size} if own and user_run is not None else set())
    first, second = (len(example_rows(candidate.steps, step)) for step in (1, 2))
    expected = user_run.global_batch_size if own and user_run is not None else batches.full
    if not own and first > batches.full and first % batches.full == 0:
        several = Measurement.of("several-batches", batches=first // batches.full, examples=batches.full)
        yield "batch-size-differs", several
    elif first not in sizes and second in (first, 0):
        yield "batch-size-differs", Measurement.of("own-batch-size", examples=first, expected=expected)


def _count(epochs: Sequence[Sequence[int]], source: Counter[int]) -> Iterator[Named]:
    for number, rows in enumerate(epochs, 1):
        seen = Counter(rows)
        never, again = (source - seen).total(), (seen - source).total()
        if again:
            counts = {"repeats": again, "of": len(rows), "never": never, "of_all": source.total()}
            yield "examples-repeated", Measurement.of("repeats", epoch=number, **counts)
            return
        if never:
            yield "examples-dropped", Measurement.of("never-seen", epoch=number, never=never, of_all=source.total())
            return
