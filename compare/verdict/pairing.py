"""Pairs the steps of two records of which one has idle steps: while gradients accumulate, no weight is updated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compare.records import EPOCH_END, INITIAL, Record, in_time, places_of


def paired_steps(reference: Record, candidate: Record) -> tuple[Record, Record]:
    """Both records without the idle steps of the one that reports more, under the reference's numbers.

    ``fit`` reports a step for every batch, also if its optimizer accumulates the gradients of several; a loop that
    accumulates by hand reports one when it updates the weights. Both trained the same if the weights are the same
    after each update. Records are returned as they are unless that makes their numbers of steps equal in every epoch.
    """
    epochs = sorted(reference.logs.keys() & candidate.logs.keys())
    known = {name: [_steps(record, epoch) for epoch in epochs] for name, record in _named(reference, candidate)}
    counts = {name: [len(keys) for keys in steps] for name, steps in known.items()}
    if counts["reference"] == counts["candidate"] or not all(all(each) for each in counts.values()):
        return reference, candidate
    records = dict(_named(reference, candidate))
    longer = max(counts, key=lambda name: sum(counts[name]))
    (shorter,) = counts.keys() - {longer}
    for i, epoch in enumerate(epochs):
        known[longer][i] = _updates(records[longer], epoch, known[longer][i], counts[shorter][i])
    if [len(keys) for keys in known[longer]] != counts[shorter]:
        return reference, candidate
    numbers = np.concatenate(known["reference"])
    renumbered = [
        _with_steps(record, np.concatenate(known[name]), numbers) for name, record in _named(reference, candidate)
    ]
    return renumbered[0], renumbered[1]


def _named(reference: Record, candidate: Record) -> list[tuple[str, Record]]:
    return [("reference", reference), ("candidate", candidate)]


def _steps(record: Record, epoch: int) -> np.ndarray:
    """The places of an epoch's steps as sort keys; none if some steps were made in one call."""
    epochs, steps = places_of(record.keys)
    own = (epochs == epoch) & (steps > INITIAL)
    whole = own.any() and steps[own].max() == own.sum()
    return record.keys[own] if whole else record.keys[:0]


def _updates(record: Record, epoch: int, keys: np.ndarray, wanted: int) -> np.ndarray:
    """The steps of an epoch that update weights, if there are as many as ``wanted``; else all.

    What an update changes stays the same in all other steps; moving averages of a batch may change in these, too.
    """
    starts = np.array([in_time((epoch, INITIAL)), in_time((epoch - 1, EPOCH_END))])
    starts = starts[record.has(starts)]
    if not len(starts) or len(keys) <= wanted:
        return keys
    hashes = record.at(np.append(starts[:1], keys))["hashes"]
    changed = (hashes[1:] != hashes[:-1]).any(axis=2)
    updated = (~changed).sum(axis=0) >= len(keys) - wanted
    updates = changed[:, updated].any(axis=1)
    return keys[updates] if updates.sum() == wanted else keys


def _with_steps(record: Record, keys: np.ndarray, numbers: np.ndarray) -> Record:
    """A record with these steps only, under other numbers."""
    steps = record.at(keys).copy()
    steps["epoch"], steps["step"] = places_of(numbers)
    others = record.steps[record.steps["step"] <= INITIAL]
    return replace(record, steps=np.concatenate([others, steps]))
