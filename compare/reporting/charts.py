"""Charts as plain geometry, for a template to write as vector graphics that stretch with the page.

Positions are percent of the plotting area, from its left and upper edge; paths are in a square of 1000 by 1000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.ticker import MaxNLocator

Points = Mapping[Any, float]
"""x, an int or float, to y; an x without a number is absent, or its y is not finite."""


@dataclass(frozen=True)
class Axis:
    """One axis: where a value lies, as a share of its length, and which values are named.

    Attributes:
        place: value to share, from 0 to 1.
        ticks: (value, text) of those that are named.
    """

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: what it is, for readers.
        style: the trainer's number: 0 for the reference, a broad pale band; candidates are thin and dark.
        points: what is drawn.
        hollow: for validation: its markers are not filled.
        faint: thin and without markers, for one seed of many.
        told: x to the exact value as text; what hovering shows. Empty: nothing.
        low: with ``high``, the lower edge of a shaded interval around the line.
        high: its upper edge.
    """

    name: str
    style: int
    points: Points
    hollow: bool = False
    faint: bool = False
    told: Mapping[Any, str] = field(default_factory=dict)
    low: Points = field(default_factory=dict)
    high: Points = field(default_factory=dict)


@dataclass(frozen=True)
class Band:
    """A shaded region: by x, from where to where."""

    kind: str
    low: Points
    high: Points
    label: str = ""


def linear(low: float, high: float, ticks: int = 5, pad: float = 0.06) -> Axis:
    """An axis of equal distances, with some room at both ends."""
    if not high > low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    room = (high - low) * pad
    low, high = low - room, high + room
    values = [float(v) for v in MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    shown = [(v, f"{round(v, 12):g}") for v in values if low <= v <= high]
    return Axis(lambda value: (value - low) / (high - low), shown)


def logarithmic(low: float, high: float, zero: bool = False) -> Axis:
    """An axis of whole decades that hold both; with ``zero``, a place of its own for 0 below them."""
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    top = max(top, bottom + 1)
    room = 0.16 if zero else 0.0

    def place(value: float) -> float:
        if value <= 0:
            return room / 3
        share = (math.log10(value) - bottom) / (top - bottom)
        return room + (0.97 - room) * min(max(share, 0.0), 1.0)

    every = math.ceil((top - bottom + 1) / 6)
    decades = [(10.0**d, f"1e{d}" if abs(d) > 2 else f"{10.0**d:g}") for d in range(bottom, top + 1, every)]
    return Axis(place, [*([(0.0, "0")] if zero else []), *decades])


def counts(last: float, first: float = 1, most: int = 8) -> Axis:
    """An axis of whole numbers, with half a place more at both ends."""
    low, high = first - 0.5, last + 0.5
    values = MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]).tick_values(low, high)
    shown = [(float(v), f"{v:g}") for v in values if first <= v <= last and v == int(v)]
    return Axis(lambda value: (value - low) / (high - low), shown)


def chart(
    title: str,
    summary: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    x_name: str = "epoch",
    y_name: str = "",
    bands: Sequence[Band] = (),
    labels: Sequence[tuple[float, str]] = (),
    lines: Iterable[float] = (),
    told: Callable[[float], str] | None = None,
    shift: Callable[[int], float] = lambda number: 0.0,
    tall: bool = False,
    markers: bool = True,
) -> dict[str, Any]:
    """What the template draws.

    Args:
        title: the heading.
        summary: what the picture shows, in a sentence, for those who cannot see it.
        x: the horizontal axis.
        y: the vertical axis.
        series: the lines, the reference's first.
        x_name: what x counts.
        y_name: what y is, with its unit.
        bands: shaded regions.
        labels: (y, text) to be written beside the right edge.
        lines: x of thin vertical lines.
        told: what an x is called when it is hovered; by default "epoch N".
        shift: by how much of x the n-th line is moved, where equal ones would hide each other.
        tall: whether it is the main picture of its section.
        markers: whether points are marked.
    """
    name_of = told or (lambda value: f"{x_name} {value:g}")
    stops: dict[float, list[tuple[str, str, int, bool]]] = {}
    for each in series:
        for at, text in each.told.items():
            stops.setdefault(at, []).append((each.name, text, each.style, each.hollow))
    return {
        "title": title,
        "summary": summary,
        "x_name": x_name,
        "y_name": y_name,
        "x_ticks": [(100 * x.place(value), text) for value, text in x.ticks],
        "y_ticks": [(100 * (1 - y.place(value)), text) for value, text in y.ticks],
        "zero": any(value == 0 for value, _ in y.ticks) and 100 * (1 - y.place(0)),
        "bands": [{"kind": band.kind, "path": _region(band.low, band.high, x, y)} for band in bands if band.low],
        "labels": _apart([(100 * (1 - y.place(value)), text) for value, text in labels]),
        "lines": [100 * x.place(value) for value in lines],
        "curves": [_drawn(each, x, y, shift(number), markers) for number, each in enumerate(series)],
        "stops": [[round(100 * x.place(at), 3), name_of(at), rows] for at, rows in sorted(stops.items())],
        "tall": tall,
    }


def _drawn(series: Series, x: Axis, y: Axis, shift: float, markers: bool) -> dict[str, Any]:
    finite = {at: value for at, value in series.points.items() if math.isfinite(value)}
    return {
        "name": series.name,
        "style": series.style,
        "hollow": series.hollow,
        "faint": series.faint,
        "path": _path(series.points, x, y, shift),
        "interval": _region(series.low, series.high, x, y) if series.low else "",
        "points": [(100 * x.place(at + shift), 100 * (1 - y.place(value))) for at, value in finite.items()]
        if markers and not series.faint
        else [],
        "crosses": [100 * x.place(at + shift) for at, v in series.points.items() if not math.isfinite(v)],
    }


def _path(points: Points, x: Axis, y: Axis, shift: float) -> str:
    """An SVG path; a point that is no number interrupts it, and a lone point is a line of no length, a dot."""
    parts, pen = [], "M"
    for at in sorted(points):
        if not math.isfinite(points[at]):
            pen = "M"
            continue
        where = f"{1000 * x.place(at + shift):.1f} {1000 * (1 - y.place(points[at])):.1f}"
        parts.append(f"{pen}{where}" + (f"L{where}" if pen == "M" else ""))
        pen = "L"
    return "".join(parts)


def _region(low: Points, high: Points, x: Axis, y: Axis) -> str:
    """The outline between two lines."""
    inside = [at for at in sorted(low) if math.isfinite(low[at]) and math.isfinite(high.get(at, math.nan))]
    above = [f"{1000 * x.place(at):.1f} {1000 * _inside(1 - y.place(high[at])):.1f}" for at in inside]
    below = [f"{1000 * x.place(at):.1f} {1000 * _inside(1 - y.place(low[at])):.1f}" for at in reversed(inside)]
    return f"M{'L'.join([*above, *below])}Z" if inside else ""


def _inside(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _apart(labels: Sequence[tuple[float, str]], least: float = 9.0) -> list[tuple[float, str]]:
    """Labels beside the edge, moved down where they would lie on one another."""
    placed: list[tuple[float, str]] = []
    for at, text in sorted(labels):
        placed.append((max(at, placed[-1][0] + least) if placed else at, text))
    return placed
