"""Which processes a process has started, and which are left; by Linux's /proc."""

from __future__ import annotations

from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that it started itself."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[int]:
    """Those, and all that they started."""
    found = children(pid)
    return found + [each for child in found for each in descendants(child)]


def alive(pid: int) -> bool:
    """Whether it runs: one that has ended and was not asked for its status does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:
        return False
