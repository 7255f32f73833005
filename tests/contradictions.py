"""Holds every verdict that a test makes against the numbers beside it: none may contradict them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any


def contradiction(entry: Mapping[str, Any]) -> str:
    """What in an entry of ``comparisons`` contradicts its verdict on the weights; empty if nothing does."""
    training = entry["training"]
    if entry.get("study") or entry.get("weights_seen") is False:
        return ""  # judged by many seeds, or by curves alone
    gap, noise = training["max_weight_gap"], training.get("noise")
    if training["verdict"] == "identical" and (gap or training["first_difference"]):
        return f"identical, with a gap of {gap} and {training['first_difference']}"
    if training["verdict"] != "alike":
        return ""
    if noise is None:
        return f"alike, with a gap of {gap} and no noise that would explain it"
    ratio = noise["largest_ratio"]
    return "" if ratio is not None and ratio <= noise["factor"] else f"alike, {ratio} times as far apart as rounding"


def install() -> None:
    """Checks each comparison that becomes JSON, and each report of the short check, in this process."""
    from compare.check.report import Report
    from compare.verdict import model

    as_entry, init = model._comparison_json, Report.__init__

    @functools.wraps(as_entry)
    def checked_entry(comparison):
        entry = as_entry(comparison)
        assert not (found := contradiction(entry)), found
        return entry

    @functools.wraps(init)
    def checked_init(self, *args, **options):
        init(self, *args, **options)
        if self.seconds:  # it is finished
            self.as_json()

    model._comparison_json, Report.__init__ = checked_entry, checked_init
