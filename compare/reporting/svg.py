"""Charts as scalable vector graphics: the geometry that the templates of pages render.

Positions are percentages of the plotting area, from its left and upper edges; paths use a square of 1000 by 1000 units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from compare.reporting.charts import Area, Axis, Chart, Series, View, ticks_between


def content(chart: Chart) -> dict[str, Any]:
    """The content of a chart, for the macro ``chart`` in ``parts.html``."""
    x, y = chart.x, chart.y
    heading = chart.x_label or (lambda value: f"{chart.x_name} {value:g}")
    stops: dict[float, list[tuple[str, str, str, float | None]]] = {}
    for line in chart.series:
        for at, text in line.tooltips.items():
            value = line.points.get(at, math.nan)
            height = round(100 * (1 - y.position(value)), 1) if math.isfinite(value) else None
            stops.setdefault(at, []).append((line.name, text, line.legend_key, height))
    return vars(chart) | {
        "x_ticks": [(100 * x.position(value), text) for value, text in x.ticks],
        "y_ticks": [(100 * (1 - y.position(value)), text) for value, text in y.ticks],
        "zero": any(value == 0 for value, _ in y.ticks) and 100 * (1 - y.position(0)),
        "bands": [{"kind": band.kind, "path": _region(band.area, x, y)} for band in chart.bands if band.area],
        "labels": [(100 * at, text) for at, text in chart.label_positions(0.105)],
        "lines": [100 * x.position(value) for value in chart.lines],
        "curves": [_curve(line, x, y, chart.markers) for line in chart.series],
        "stops": [[round(100 * x.position(at), 3), heading(at), rows] for at, rows in sorted(stops.items())],
        "views": views(chart.views, x),
        "ways": _ways(chart),
    }


def _ways(chart: Chart) -> dict[str, Any] | None:
    """What the script needs to draw lines smoothed and on a logarithmic axis; None where that would mislead."""
    if chart.bands or chart.labels or chart.group != "epochs" or any(each.dots for each in chart.series):
        return None
    values = [value for line in chart.series for value in line.points.values() if math.isfinite(value)]
    low, high, least = chart.y.low, chart.y.high, min(values, default=0.0)
    if chart.y.scale != "linear" or least <= 0:
        return {"ticks": []}
    bottom = least * (least / high) ** 0.06
    ticks = ticks_between(bottom, high)
    linear = [each for each in chart.y.ticks if each[0] > bottom]
    return {"low": low, "high": high, "bottom": bottom, "ticks": ticks if len(ticks) > 2 else linear}


def views(parts: Sequence[View], x: Axis) -> list[dict[str, Any]]:
    """The views of a chart, for the script; positions are percentages of the whole axis."""

    def percent(value: float) -> float:
        return round(min(max(100 * x.position(value), 0.0), 100.0), 3)

    content = []
    for each in parts:
        ticks = [(percent(value), text) for value, text in each.ticks]
        content.append(vars(each) | {"low": percent(each.low), "high": percent(each.high), "ticks": ticks})
    return content


def _curve(series: Series, x: Axis, y: Axis, markers: bool) -> dict[str, Any]:
    finite = [(at, value) for at, value in series.points.items() if math.isfinite(value)]
    return vars(series) | {
        "key": series.legend_key,
        "end": round(100 * x.position(max(finite)[0]), 3) if finite else 0.0,
        "path": _path(series, x, y),
        "interval": "" if series.bars else _region(series.interval, x, y),
        "bars": [
            (100 * x.position(at), 100 * (1 - y.position(low)), 100 * (1 - y.position(high)))
            for at, (low, high) in sorted(series.interval.items())
            if series.bars
        ],
        "points": [(100 * x.position(at), 100 * (1 - y.position(value))) for at, value in finite]
        if markers and not series.faint
        else [],
        "crosses": [100 * x.position(at) for at in series.crosses],
    }


def _path(series: Series, x: Axis, y: Axis) -> str:
    """An SVG path; an isolated point becomes a dot."""
    parts, pen = [], "M"
    for at, value in series.line:
        if math.isnan(value):
            pen = "M"
            continue
        where = f"{1000 * x.position(at):.1f} {1000 * (1 - y.position(value)):.1f}"
        parts.append(f"{pen}{where}" + (f"L{where}" if pen == "M" else ""))
        pen = "L"
    return "".join(parts)


def _region(area: Area, x: Axis, y: Axis) -> str:
    def along(line: Iterable[tuple[float, float]]) -> list[str]:
        return [f"{1000 * x.position(at):.1f} {1000 * min(max(1 - y.position(v), 0.0), 1.0):.1f}" for at, v in line]

    edges = sorted(area.items())
    above, below = [(at, high) for at, (_, high) in edges], [(at, low) for at, (low, _) in reversed(edges)]
    return f"M{'L'.join([*along(above), *along(below)])}Z" if edges else ""
