"""Pairs the numbers that a loop reports with those of fit, by what they measure; imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compare.watch.trace import Reported, Trace

OF_VALIDATION = ("val", "test", "eval", "dev")
"""What the name of a metric contains if it measures validation."""

Logs = dict[int, tuple[dict[str, float], float]]
"""By epoch, the reported numbers and the wall time in seconds."""


def logs_by_epoch(trace: Trace, ends: Sequence[int], like: Trace) -> Logs:
    """The numbers that a training reported for each epoch.

    Args:
        trace: the training.
        ends: the number of steps at the end of each epoch.
        like: the training with ``fit``, whose names are used; a number is left out if it measures none of them.
    """
    if trace.epochs:
        return {number: (dict(epoch.logs), epoch.seconds) for number, epoch in enumerate(trace.epochs, start=1)}
    wanted = list(like.epochs[0].logs) if like.epochs else []
    logs: Logs = {number: ({}, trace.seconds / len(ends)) for number in range(1, len(ends) + 1)}
    names: dict[str, str] = {}
    for each in trace.reported:
        epoch = each.epoch or next((number for number, end in enumerate(ends, start=1) if each.steps <= end), len(ends))
        name = each.name if not each.kind else names.setdefault(each.name, _fitting(each, wanted, names))
        if name and epoch in logs and (not wanted or name in wanted or not each.kind):
            logs[epoch][0][name] = each.value
    return logs


def _fitting(reported: Reported, wanted: Sequence[str], taken: Mapping[str, str]) -> str:
    """The name that fit gives to what a metric measures; empty if it reports nothing like it."""
    name = reported.name.lower()
    validation = any(word in name for word in OF_VALIDATION)
    if reported.name in wanted and reported.name not in taken.values():
        return reported.name
    base = _base(reported, [each.removeprefix("val_") for each in wanted])
    if not base:
        return "" if wanted else name
    choices = [f"val_{base}"] if validation else [base, f"val_{base}"]
    return next((each for each in choices if each not in taken.values() and (each in wanted or not wanted)), "")


def _base(reported: Reported, wanted: Sequence[str]) -> str:
    name = reported.name.lower()
    if "acc" in name or "Accuracy" in reported.kind:
        return next((each for each in wanted if "acc" in each), "")
    if "loss" in name or reported.kind == "Mean":
        return "loss"
    return next((each for each in wanted if each in name), "")
