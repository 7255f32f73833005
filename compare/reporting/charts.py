"""The geometry of the charts in HTML pages, which templates render as scalable vector graphics.

Positions are percentages of the plotting area, from its left and upper edges; paths use a square of 1000 by 1000 units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from matplotlib.ticker import MaxNLocator

Points = Mapping[Any, float]
"""Maps x, an int or float, to y; a missing value is absent or not finite."""


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        position: maps a value to its position on the axis, from 0 to 1.
        ticks: the (value, label) pairs of the ticks.
    """

    position: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        style: the trainer's number: 0 for the reference, a wide pale line; candidates are thin and dark.
        hollow: whether markers are hollow, as for validation.
        faint: whether the line is thin and has no markers, as for one seed of several.
        tooltips: maps x to the exact value as text, shown on hover; if empty, nothing is shown.
        low: the lower edge of a shaded interval around the line; empty without an interval.
        high: the upper edge of that interval.
        key: the name under which readers hide and show the line; by default derived from ``style`` and ``hollow``.
        wide: whether the line is wide and pale, as the reference is by default, so that others can lie on it.
        bars: whether the interval is drawn as a vertical line at each point instead of a shaded area.
        dots: whether only the points are drawn, small and without a line between them.
    """

    name: str
    style: int
    points: Points
    hollow: bool = False
    faint: bool = False
    tooltips: Mapping[Any, str] = field(default_factory=dict)
    low: Points = field(default_factory=dict)
    high: Points = field(default_factory=dict)
    key: str = ""
    wide: bool = False
    bars: bool = False
    dots: bool = False

    @property
    def legend_key(self) -> str:
        """``key``, or the number of the style, followed by ``v`` for validation."""
        return self.key or f"{self.style}{'v' * self.hollow}"


@dataclass(frozen=True)
class Band:
    """A shaded region.

    Attributes:
        kind: its CSS class, ``rounding``, ``twins`` or ``margin``.
    """

    kind: str
    low: Points
    high: Points


@dataclass(frozen=True)
class View:
    """A part of the horizontal axis to which readers can zoom.

    Attributes:
        name: the text of the button; empty if the view is chosen by which lines are shown.
        low: its left edge, a percentage of the whole axis.
        high: its right edge.
        ticks: (position, label) pairs, positions as percentages of the whole axis.
    """

    name: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    x_name: str


def linear(low: float, high: float, ticks: int = 5, pad: float = 0.06) -> Axis:
    """A linear axis with some padding at both ends."""
    if not high > low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    room = (high - low) * pad
    low, high = low - room, high + room
    values = [float(v) for v in MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    shown = [(v, f"{round(v, 12):g}") for v in values if low <= v <= high]
    return Axis(lambda value: (value - low) / (high - low), shown)


def logarithmic(low: float, high: float, zero: bool = False) -> Axis:
    """A logarithmic axis of whole decades that includes both values; with ``zero``, 0 has a position below them."""
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    top = max(top, bottom + 1)
    room = 0.16 if zero else 0.0

    def position(value: float) -> float:
        if value <= 0:
            return room / 3
        fraction = (math.log10(value) - bottom) / (top - bottom)
        return room + (0.97 - room) * min(max(fraction, 0.0), 1.0)

    every = math.ceil((top - bottom + 1) / 6)
    decades = [(10.0**d, f"1e{d}" if abs(d) > 2 else f"{10.0**d:g}") for d in range(bottom, top + 1, every)]
    return Axis(position, [*([(0.0, "0")] if zero else []), *decades])


def counts(last: float, first: float = 1, most: int = 8) -> Axis:
    """An axis of whole numbers, with half a unit of padding at both ends."""
    low, high = first - 0.5, last + 0.5
    values = MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]).tick_values(low, high)
    shown = [(float(v), f"{v:g}") for v in values if first <= v <= last and v == int(v)]
    return Axis(lambda value: (value - low) / (high - low), shown)


def chart(  # noqa: PLR0913 (keyword arguments with defaults, as in plotting libraries)
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
    x_label: Callable[[float], str] | None = None,
    tall: bool = False,
    markers: bool = True,
    group: str = "epochs",
    kind: str = "values",
    views: Sequence[View] = (),
) -> dict[str, Any]:
    """The content of a chart, for the macro ``chart`` in ``parts.html``.

    Args:
        summary: a sentence that describes the chart, for screen readers.
        y_name: the name of the vertical axis, with its unit.
        labels: (y, text) pairs written at the right edge.
        x_label: maps x to the heading of its tooltip; by default ``x_name`` followed by the value.
        group: charts of a group mark the same place, show the same lines and zoom together.
        kind: charts of a group and kind also show their values at that place together.
    """
    heading = x_label or (lambda value: f"{x_name} {value:g}")
    stops: dict[float, list[tuple[str, str, str, float | None]]] = {}
    for line in series:
        for at, text in line.tooltips.items():
            value = line.points.get(at, math.nan)
            height = round(100 * (1 - y.position(value)), 1) if math.isfinite(value) else None
            stops.setdefault(at, []).append((line.name, text, line.legend_key, height))
    return {
        "title": title,
        "summary": summary,
        "x_name": x_name,
        "y_name": y_name,
        "x_ticks": [(100 * x.position(value), text) for value, text in x.ticks],
        "y_ticks": [(100 * (1 - y.position(value)), text) for value, text in y.ticks],
        "zero": any(value == 0 for value, _ in y.ticks) and 100 * (1 - y.position(0)),
        "bands": [{"kind": band.kind, "path": _region(band.low, band.high, x, y)} for band in bands if band.low],
        "labels": _separated([(100 * (1 - y.position(value)), text) for value, text in labels]),
        "lines": [100 * x.position(value) for value in lines],
        "curves": [_curve(line, x, y, markers) for line in series],
        "stops": [[round(100 * x.position(at), 3), heading(at), rows] for at, rows in sorted(stops.items())],
        "tall": tall,
        "group": group,
        "kind": kind,
        "views": [asdict(view) for view in views],
    }


def _curve(series: Series, x: Axis, y: Axis, markers: bool) -> dict[str, Any]:
    """The geometry of one line."""
    finite = {at: value for at, value in series.points.items() if math.isfinite(value)}
    return {
        "name": series.name,
        "style": series.style,
        "hollow": series.hollow,
        "faint": series.faint,
        "key": series.legend_key,
        "wide": series.wide,
        "dots": series.dots,
        "end": round(100 * x.position(max(finite)), 3) if finite else 0.0,
        "path": _path(series.points, x, y),
        "interval": _region(series.low, series.high, x, y) if series.low and not series.bars else "",
        "bars": [
            (100 * x.position(at), *(100 * (1 - y.position(edge[at])) for edge in (series.low, series.high)))
            for at in finite
            if series.bars and math.isfinite(series.low.get(at, math.nan))
        ],
        "points": [(100 * x.position(at), 100 * (1 - y.position(value))) for at, value in finite.items()]
        if markers and not series.faint
        else [],
        "crosses": [100 * x.position(at) for at, v in series.points.items() if not math.isfinite(v)],
    }


def _path(points: Points, x: Axis, y: Axis) -> str:
    """An SVG path; a non-finite point interrupts it, and an isolated point becomes a dot."""
    parts, pen = [], "M"
    for at in sorted(points):
        if not math.isfinite(points[at]):
            pen = "M"
            continue
        where = f"{1000 * x.position(at):.1f} {1000 * (1 - y.position(points[at])):.1f}"
        parts.append(f"{pen}{where}" + (f"L{where}" if pen == "M" else ""))
        pen = "L"
    return "".join(parts)


def _region(low: Points, high: Points, x: Axis, y: Axis) -> str:
    """The SVG path around the area between two lines."""
    inside = [at for at in sorted(low) if math.isfinite(low[at]) and math.isfinite(high.get(at, math.nan))]
    above = [f"{1000 * x.position(at):.1f} {1000 * _clipped(1 - y.position(high[at])):.1f}" for at in inside]
    below = [f"{1000 * x.position(at):.1f} {1000 * _clipped(1 - y.position(low[at])):.1f}" for at in reversed(inside)]
    return f"M{'L'.join([*above, *below])}Z" if inside else ""


def _clipped(position: float) -> float:
    return min(max(position, 0.0), 1.0)


def _separated(labels: Sequence[tuple[float, str]], least: float = 10.5) -> list[tuple[float, str]]:
    """The labels, moved down if they would overlap; positions and ``least`` are percentages of the height."""
    placed: list[tuple[float, str]] = []
    for at, text in sorted(labels):
        placed.append((max(at, placed[-1][0] + least) if placed else at, text))
    return placed
