"""Charts as data: axes, series, bands and labels, which ``svg`` draws on pages and ``plots`` with Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from compare.reporting import backend  # noqa: F401 (before Matplotlib itself)

# isort: split
from matplotlib.ticker import MaxNLocator

Points = Mapping[Any, float]
"""Maps x, an int or float, to y; a missing value is absent or not finite."""
Area = Mapping[Any, tuple[float, float]]
"""Maps x to the lower and the upper edge of what is shaded there."""


@dataclass(frozen=True)
class Axis:
    """One axis of a chart from one value to another.

    Attributes:
        scale: ``log`` is of whole decades; ``zero`` is, too, and has a place for 0 below them.
    """

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    scale: Literal["linear", "log", "zero"] = "linear"

    def position(self, value: float) -> float:
        """The position of a value on the axis, from 0 to 1."""
        if self.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        room = 0.16 if self.scale == "zero" else 0.0
        if value <= 0:
            return room / 3
        bottom, top = round(math.log10(self.low)), round(math.log10(self.high))
        fraction = (math.log10(value) - bottom) / (top - bottom)
        return room + (0.97 - room) * min(max(fraction, 0.0), 1.0)


@dataclass(frozen=True)
class Series:
    """One line of a chart; where its value is not finite, it is interrupted, and a cross marks the place.

    Attributes:
        style: the trainer's number: 0 for the reference, a wide pale line; candidates are thin and dark.
        hollow: whether markers are hollow, as for validation.
        faint: whether the line is thin and has no markers, as for one seed of several.
        tooltips: maps x to the exact value as text, shown on hover; if empty, nothing is shown.
        interval: a shaded interval around the line.
        key: the name under which readers hide and show the line; by default derived from ``style`` and ``hollow``.
        wide: whether the line is wide and pale, as the reference is by default, so that others can lie on it.
        bars: whether the interval is drawn as a vertical line at each point instead of a shaded area.
        dots: whether only the points are drawn, small and without a line between them.
        holes: where the line is interrupted because nothing was reported.
    """

    name: str
    style: int
    points: Points
    hollow: bool = False
    faint: bool = False
    tooltips: Mapping[Any, str] = field(default_factory=dict)
    interval: Area = field(default_factory=dict)
    key: str = ""
    wide: bool = False
    bars: bool = False
    dots: bool = False
    holes: Sequence[float] = ()

    @property
    def legend_key(self) -> str:
        """``key``, or the number of the style, followed by ``v`` for validation."""
        return self.key or f"{self.style}{'v' * self.hollow}"

    @property
    def line(self) -> list[tuple[float, float]]:
        """The points in order; NaN where the line is interrupted."""
        finite = {at: value if math.isfinite(value) else math.nan for at, value in self.points.items()}
        return sorted({**dict.fromkeys(self.holes, math.nan), **finite}.items())

    @property
    def crosses(self) -> list[float]:
        """Where the value is not finite."""
        return [at for at, value in self.points.items() if not math.isfinite(value)]


@dataclass(frozen=True)
class Band:
    """A shaded region; its kind is ``rounding``, ``twins`` or ``margin``."""

    kind: str
    area: Area


@dataclass(frozen=True)
class View:
    """A part of the horizontal axis to which readers can zoom by a button of its name or, without, by what is shown."""

    name: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    x_name: str


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        summary: a sentence that describes the chart, for screen readers.
        y_name: the name of the vertical axis, with its unit.
        labels: (y, text) pairs written at the right edge.
        lines: where vertical lines are.
        x_label: maps x to the heading of its tooltip; by default ``x_name`` followed by the value.
        group: charts of a group mark the same place, show the same lines and zoom together.
        kind: charts of a group and kind also show their values at that place together.
    """

    title: str
    summary: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    x_name: str = "epoch"
    y_name: str = ""
    bands: Sequence[Band] = ()
    labels: Sequence[tuple[float, str]] = ()
    lines: Sequence[float] = ()
    x_label: Callable[[float], str] | None = None
    tall: bool = False
    markers: bool = True
    group: str = "epochs"
    kind: str = "values"
    views: Sequence[View] = ()

    def label_positions(self, least: float) -> list[tuple[float, str]]:
        """The labels, moved down where they would overlap; positions and ``least`` are fractions, from the top."""
        placed: list[tuple[float, str]] = []
        for at, text in sorted((1 - self.y.position(value), text) for value, text in self.labels):
            placed.append((max(at, placed[-1][0] + least) if placed else at, text))
        return placed


RESOLVED = 1e-13
"""The smallest range, relative to its values, in which Matplotlib finds places for ticks."""
SMALLEST, LARGEST = 1e-307, 1e300
"""The least and the most that an axis shows: numbers of float64 end soon beyond them."""


def linear(low: float, high: float, pad: float = 0.06, unit: str = "") -> Axis:
    """A linear axis with some padding at both ends; what is near the largest float is beyond its end."""
    low, high = max(low, -LARGEST), min(high, LARGEST)
    if not high - low > max(RESOLVED * max(abs(low), abs(high)), SMALLEST):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    room = (high - low) * pad
    low, high = low - room, high + room
    values = [float(v) for v in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    return Axis(low, high, [(v, f"{round(v, 12):g}{unit}") for v in values if low <= v <= high])


def logarithmic(low: float, high: float, zero: bool = False) -> Axis:
    """A logarithmic axis of whole decades that includes both values; with ``zero``, 0 has a position below them."""
    bottom, top = math.floor(math.log10(max(low, SMALLEST))), math.ceil(math.log10(high))
    top = max(top, bottom + 1)
    every = math.ceil((top - bottom + 1) / 6)
    decades = [(10.0**d, f"1e{d}" if abs(d) > 2 else f"{10.0**d:g}") for d in range(bottom, top + 1, every)]
    ticks = [*([(0.0, "0")] if zero else []), *decades]
    return Axis(10.0**bottom, 10.0 ** min(top, 308), ticks, "zero" if zero else "log")


def ticks_between(low: float, high: float) -> list[tuple[float, str]]:
    """Values 1, 2 and 5 of each decade, or of several decades only 1, with their texts, for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    each = (1, 2, 5) if high < 300 * low else (1,)
    values = [one * 10.0**d for d in decades for one in each if low <= one * 10.0**d <= high]
    return [(value, f"{value:g}") for value in values]


def counts(last: float, first: float = 1) -> Axis:
    """An axis of whole numbers, with half a unit of padding at both ends."""
    values = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(first - 0.5, last + 0.5)
    shown = [(float(v), f"{v:g}") for v in values if first <= v <= last and v == int(v)]
    return Axis(first - 0.5, last + 0.5, shown)
