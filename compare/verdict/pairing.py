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
    sides = reference, candidate
    steps = [[_steps(record, epoch) for epoch in epochs] for record in sides]
    counts = [[len(keys) for keys in own] for own in steps]
    if counts[0] == counts[1] or not all(map(all, counts)):
        return reference, candidate
    more = int(sum(counts[1]) > sum(counts[0]))
    wanted = counts[1 - more]
    places = zip(epochs, steps[more], wanted, strict=True)
    steps[more] = [_updates(sides[more], epoch, keys, count) for epoch, keys, count in places]
    if [len(keys) for keys in steps[more]] != wanted:
        return reference, candidate
    ours, theirs = map(np.concatenate, steps)
    return _with_steps(reference, ours, ours), _with_steps(candidate, theirs, ours)


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
