"""The short check: does a trainer train like the reference, and if not, what causes the difference?

    from compare.check import check
    report = check(experiment, MyLoop())
    report.verdict, [finding.id for finding in report.findings]    # as in verdict.json

A report is plain data. ``compare.check.causes.CATALOGUE`` holds all causes that can be named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compare.check.report import Report
from compare.verdict.findings import Finding, NotApplicable

if TYPE_CHECKING:
    from compare.check.checker import Checker, check

__all__ = ["Checker", "Finding", "NotApplicable", "Report", "check"]


def __getattr__(name: str) -> Any:
    # Imported lazily: reports and the catalogue must not import TensorFlow.
    if name in ("Checker", "check"):
        from compare.check import checker  # noqa: PLC0415 (lazy)

        return getattr(checker, name)
    raise AttributeError(f"module 'compare.check' has no attribute {name!r}")
