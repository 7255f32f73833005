"""Holds every verdict that a test makes against the numbers beside it, and against what is read back from its file."""

from __future__ import annotations

import functools
import json
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
    """Checks each verdict that becomes JSON, and each report of the short check, in this process."""
    from compare.check.report import Report
    from compare.records.codec import decode
    from compare.verdict.model import Verdict

    as_content, init = Verdict.content, Report.__init__

    @functools.wraps(as_content)
    def checked_content(verdict):
        content = as_content(verdict)
        for entry in content["comparisons"]:
            assert not (found := contradiction(entry)), found
        text = json.dumps(content)
        assert json.dumps(as_content(decode(Verdict, json.loads(text)))) == text, "read and written, it is another"
        return content

    @functools.wraps(init)
    def checked_init(self, *args, **options):
        init(self, *args, **options)
        if self.seconds:  # it is finished
            self.as_verdict().content()

    Verdict.content, Report.__init__ = checked_content, checked_init
