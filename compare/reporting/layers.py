"""The strip chart of a run's page: the weight gap of every layer after every step; imports no TensorFlow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compare.reporting import svg
from compare.reporting.charts import Axis, View
from compare.reporting.gaps import GapSeries

MOST_ROWS = 24
"""The largest number of rows; with more variables a row is a layer, and with more layers the last to differ are left
out."""
LEVELS = 5
"""The number of shades for gaps other than 0."""


def strip(
    title: str, gaps: GapSeries, starts: Sequence[int], x: Axis, x_name: str, views: Sequence[View]
) -> dict[str, Any] | None:
    """The content of the strip chart of one comparison, for the macro ``strip`` in ``parts.html``.

    Args:
        starts: the places, as indices from 0, at which the columns start, sorted; a column shows the largest gap up to
            the next one.
        x: the horizontal axis, on which the place with index ``i`` is at ``gaps.first + i``.

    Returns:
        The content; None if all weights are equal at every place.
    """
    if gaps.equal.all():
        return None
    names, values, left_out = _rows(gaps)
    columns = np.fmax.reduceat(values, starts, axis=0)
    columns[np.logical_and.reduceat(np.isnan(values), starts, axis=0)] = np.nan
    decades = _decades(columns)
    levels = _levels(columns, decades)
    first = np.where((values != 0).any(axis=0), (values != 0).argmax(axis=0), len(values))
    edges = [1000 * x.position(gaps.first + start - 0.5) for start in (*starts, len(values))]
    paths = {
        level: "".join(_cells(levels[:, row] == level, edges, row) for row in range(len(names)))
        for level in range(1, LEVELS + 2)
    }
    earliest = [name for name, at in zip(names, first, strict=True) if at == first.min()]
    together = "all of them at once" if len(earliest) == len(names) > 1 else ", ".join(earliest)
    return {
        "title": title,
        "summary": f"First to differ ({gaps.place_name(int(first.min()))}): {together}.",
        "rows": [(100 * (number + 0.5) / len(names), name, bool(first[number] == first.min()))
                 for number, name in enumerate(names)],
        "count": len(names),
        "left_out": left_out,
        "cells": [(level, path) for level, path in paths.items() if path],
        "key": _key(decades, bool(np.isnan(columns).any())),
        "x_ticks": [(100 * x.position(value), text) for value, text in x.ticks],
        "x_name": x_name,
        "views": svg.views(views, x),
        "names": names,
        "stops": [
            [
                round(100 * x.position(gaps.first + start), 3),
                gaps.place_name(start) + (f", the largest of {end - start} steps" if end - start > 1 else ""),
                [_number(value) for value in row],
            ]
            for start, end, row in zip(starts, [*starts[1:], len(values)], columns.tolist(), strict=True)
        ],
    }  # fmt: skip


def _rows(gaps: GapSeries) -> tuple[list[str], np.ndarray, int]:
    """The names of the rows, their gaps float32 ``[places, rows]``, and the number of layers that are left out."""
    names, values = list(gaps.variables), gaps.by_variable
    if len(names) > MOST_ROWS:
        layers = [name.rpartition("/")[0] or name for name in names]
        names = list(dict.fromkeys(layers))
        members = [[i for i, layer in enumerate(layers) if layer == name] for name in names]
        values = np.stack([np.sqrt(np.sum(np.square(values[:, m], dtype=np.float64), axis=1)) for m in members], axis=1)
    if len(names) > MOST_ROWS:
        differs = values != 0
        first = np.where(differs.any(axis=0), differs.argmax(axis=0), len(values))
        kept = np.sort(np.argsort(first, kind="stable")[:MOST_ROWS])
        return _short([names[i] for i in kept]), values[:, kept], len(names) - MOST_ROWS
    return _short(names), values, 0


def _short(names: Sequence[str]) -> list[str]:
    """The names without the part up to a slash with which all of them begin."""
    heads = {name.partition("/")[0] for name in names}
    if len(heads) == 1 and all("/" in name for name in names):
        return _short([name.partition("/")[2] for name in names])
    return list(names)


def _decades(values: np.ndarray) -> list[int]:
    """The exponents of ten that separate the shades."""
    found = values[np.isfinite(values) & (values > 1e-30)]
    if not len(found):
        return []
    bottom, top = math.floor(math.log10(found.min())) + 1, math.ceil(math.log10(found.max()))
    step = max(1, math.ceil((top - bottom) / (LEVELS - 1)))
    return list(range(bottom, top, step))[: LEVELS - 1]


def _levels(values: np.ndarray, decades: Sequence[int]) -> np.ndarray:
    """The shade of each gap: 0 if it is 0, ``LEVELS + 1`` if it is not a number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shades = 1 + np.digitize(values, [10.0**decade for decade in decades])
    return np.where(np.isnan(values), LEVELS + 1, np.where(values == 0, 0, shades))


def _key(decades: Sequence[int], not_finite: bool) -> list[tuple[int, str]]:
    """The shades with their meanings."""
    bounds = [f"1e{decade}" if abs(decade) > 2 else f"{10.0**decade:g}" for decade in decades]
    words = ["differs"] if not bounds else [f"below {bounds[0]}"]
    words += [f"{low} to {high}" for low, high in itertools.pairwise(bounds)]
    words += [f"{bounds[-1]} and more"] if bounds else []
    key = [(0, "equal, bit for bit"), *enumerate(words, start=1)]
    return [*key, (LEVELS + 1, "not a number")] if not_finite else key


def _cells(shown: np.ndarray, edges: Sequence[float], row: int) -> str:
    """The SVG path of the columns of one row that have the same shade, where columns side by side are one cell."""
    turns = np.flatnonzero(np.diff(shown, prepend=False, append=False)).tolist()
    pairs = zip(turns[::2], turns[1::2], strict=True)
    return "".join(f"M{edges[a]:.1f} {row}H{edges[b]:.1f}V{row + 1}H{edges[a]:.1f}Z" for a, b in pairs)


def _number(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "=" if value == 0 else f"{value:.1e}" if value > 1e-30 else "differs"
