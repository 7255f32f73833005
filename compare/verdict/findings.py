"""What was found of a difference: causes with the user's own line, the stages of a step, what could not be done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from compare.naming import shown_path
from compare.records.codec import ALWAYS, unwritten


@dataclass(frozen=True)
class Source:
    """A line of a user's code.

    Attributes:
        instead: the line to write in its place; empty if no line is known to be right there.
        shows: whether it only shows a mistake that is made elsewhere, as the line that reports a wrong number does.
    """

    file: str
    line: int
    text: str
    instead: str = ""
    shows: bool = False

    @classmethod
    def of(cls, line: tuple[str, int, str] | None, *, shows: bool = False) -> Source | None:
        """A line as it was seen, with its file as messages show it; a cell of Jupyter is in none."""
        if line is None:
            return None
        file = "notebook cell" if re.search(r"[/\\]ipykernel_\d+[/\\]", line[0]) else shown_path(line[0])
        return cls(file, *line[1:], shows=shows)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"

    @property
    def where(self) -> str:
        """Where the mistake is made, or where it was seen: ``at my_loop.py:14: loss = ...``."""
        return f"{'seen at' if self.shows else 'at'} {self}"


@dataclass(frozen=True)
class Finding:
    """A cause that was named: it explains the observation, and no other cause does.

    Attributes:
        kind: ``training`` or ``reporting``; empty if it was read from a file, for the catalogue knows it.
        side: the name of the trainer that is affected, candidate or reference.
        evidence: what was measured, with numbers.
        measurements: quantities by name, where the cause has any.
        source: the line that makes the mistake, or shows it; None if it was not seen.
    """

    id: str
    kind: str = field(metadata=unwritten(""))
    side: str
    evidence: str
    remedy: str
    measurements: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None

    @property
    def label(self) -> str:
        """Its id with the side that it is in: ``loss-scaled (in loop)``."""
        return self.id + f" (in {self.side})" * bool(self.side)

    @property
    def metrics(self) -> list[str]:
        """The reported numbers that it concerns, as far as they were measured."""
        names = (
            [*part.get("metrics", ()), *filter(None, [part.get("metric")]), *part.get("also", ())]
            for part in self._parts
        )
        return list(dict.fromkeys(chain.from_iterable(names)))

    @property
    def divided(self) -> str:
        """Where Keras was seen to divide the loss that it concerns, "train" or "validation"; else empty."""
        return next((part["divided"] for part in self._parts if part.get("divided")), "")

    @property
    def _parts(self) -> list[Mapping[str, Any]]:
        return [self.measurements, *self.measurements.get("parts", ())]


@dataclass(frozen=True)
class NotApplicable:
    """A probe that could not be made, with the reason. It does not count against the trainer."""

    probe: str
    reason: str


@dataclass(frozen=True)
class StageValues:
    """One stage of a step on both sides.

    Attributes:
        equal: whether the sides differ by no more than rounding; None if they could not be compared.
        gap: the relative distance between the sides; None if they could not be compared, or in a file if not finite.
        noise: the distance that rounding explains.
    """

    stage: str
    equal: bool | None = field(init=False)
    gap: float | None
    noise: float = field(default=0.0, metadata=ALWAYS)
    reference: str = field(default="", metadata=ALWAYS)
    candidate: str = field(default="", metadata=ALWAYS)
    where: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "equal", None if self.gap is None else bool(self.gap <= self.noise))

    @property
    def differs(self) -> bool:
        """Whether the sides differ by more than rounding."""
        return self.equal is False
