"""The charts of the weight gap per step: of a run's page, and of several runs; imports no TensorFlow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compare.reporting import svg
from compare.reporting.charts import Axis, Band, Chart, Series, View, counts, logarithmic
from compare.reporting.gaps import GapSeries, gaps_of
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import where
from compare.verdict.model import Comparison

STOPS = 300
"""The largest number of points in the timeline, beside the steps around the first difference; a point shows the largest
gap of the steps up to the next point."""
COLUMNS = 100
"""The same for the columns of the strip chart of layers."""
AROUND = 100, 10
"""How many steps before and after the first difference readers can zoom to."""

Compared = tuple[Comparison, str, GapSeries]
"""A comparison, the name of its reference, and the gaps."""


def compared_gaps(files: RunFiles) -> list[Compared]:
    """The gaps of the comparisons of a run, as far as its records are there; none of the short check."""
    entries = tuple(each for each in files.comparisons if not each.failure)
    if files.verdict is None or files.scope == "check":
        return []
    return gaps_of(files.folder, replace(files.verdict, comparisons=entries))


def strips(files: RunFiles, compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """For each comparison whose weights differ, the chart of its layers."""
    if not compared:
        return []
    found, steps = [], _Steps(files, compared)
    for (entry, reference, _), (gaps, at) in zip(compared, steps.placed, strict=True):
        title = f"{entry.candidate} \N{MINUS SIGN} {reference}: weight gap of each layer after every {steps.unit}"
        starts = _starts(gaps, COLUMNS, steps.first)
        found.append(strip(title + steps.seed, gaps, starts, at, steps.axis, steps.x_name, steps.views))
    return [strip for strip in found if strip]


class _Steps:
    """The horizontal axis that the charts of a run's steps have in common."""

    def __init__(self, files: RunFiles, compared: Sequence[Compared]) -> None:
        self.unit, self.longest = unit_of(compared), _longest(compared)[2]
        gaps = self.longest
        self.seed = f", seed {self.longest.seed}" if files.seeds > 1 else ""
        self.new = (1 + np.flatnonzero(np.diff(gaps.epochs))).tolist()  # where epochs begin
        by_epoch = bool(self.new) and self.unit != "epoch"
        self.axis = span(gaps.last, gaps.first)
        if by_epoch:
            starts = sorted({1 - gaps.first, *self.new})
            every = max(1, math.ceil(len(starts) / 10))
            ticks = [(gaps.first + start, f"{gaps.epochs[start]}") for start in starts[::every]]
            self.axis = replace(self.axis, ticks=ticks)
        self.x_name = "start of epoch" if by_epoch else self.unit
        self.placed = [(gaps, self._positions(gaps)) for _, _, gaps in compared]
        differing = (at[gaps.equal.argmin()] for gaps, at in self.placed if not gaps.equal.all())
        self.first = next((int(at) - self.longest.first for at in differing), None)
        self.views = [] if self.first is None else self._views(self.first)

    def _positions(self, gaps: GapSeries) -> np.ndarray:
        """Where the places of a comparison are on the axis, int64 ``[places]``; it may have a few of all places only.

        Places of a training with other epochs follow each other as they come.
        """
        own, all_places = (each.places for each in (gaps, self.longest))
        if np.isin(own, all_places).all():
            return self.longest.first + np.searchsorted(all_places, own)
        return _one_after_another(gaps)

    def _views(self, first: int) -> list[View]:
        """The parts of the axis to which readers can zoom: all of it, and the steps around the first difference."""
        gaps, count, views = self.longest, len(self.longest.steps), list[View]()
        for around in [around for around in AROUND if 2 * around + 1 < 0.8 * count]:
            low, high = max(first - around, 0), min(first + around, count - 1)
            one_epoch = gaps.epochs[low] == gaps.epochs[high]
            shown = sorted({first, *range(first, low - 1, -around // 2), *range(first, high + 1, around // 2)})
            steps = [f"{gaps.steps[i]:,}" if one_epoch else f"{gaps.epochs[i]} · {gaps.steps[i]:,}" for i in shown]
            name = f"{self.unit} of epoch {gaps.epochs[low]}" if one_epoch else f"epoch · {self.unit}"
            ticks = [(gaps.first + at, text) for at, text in zip(shown, steps, strict=True)]
            left, right = gaps.first + low - 0.5, gaps.first + high + 0.5
            views.append(View(f"First difference ± {around} {self.unit}s", left, right, ticks, name))
        everything = View(f"All {self.unit}s", self.axis.low, self.axis.high, self.axis.ticks, self.x_name)
        return [everything, *views] if views else []


def timeline(files: RunFiles, compared: Sequence[Compared]) -> Chart | None:
    """The distance of all weights after every step; None if there is nothing to draw."""
    if not compared:
        return None
    steps = _Steps(files, compared)
    longest, lines = steps.longest, []
    for number, ((entry, reference, _), (gaps, at)) in enumerate(zip(compared, steps.placed, strict=True)):
        name = f"{entry.candidate} \N{MINUS SIGN} {reference}"
        starts = _starts(gaps, STOPS, steps.first)
        if np.diff(at[:2]).max(initial=1) > 1:  # nothing is known in between, so there is no line to draw
            starts = starts[1:]
        lines.append(
            _gap_line(name, style_of(files, entry.candidate, against=entry.against), gaps, starts, at, f"g{number}")
        )
    every = math.ceil(len(longest.steps) / STOPS)
    bands, labels = _rounding_bands(steps.placed, every)
    equal = all(gaps.equal.all() for _, _, gaps in compared)
    labels.append((0.0, f"equal, bit for bit, after every {steps.unit}" if equal else "equal, bit for bit"))
    return chart_of_steps(
        f"Weight gap after every {steps.unit}{steps.seed}",
        "; ".join(f"{entry.candidate}: {where(entry)}" for entry, _, _ in compared),
        steps.axis,
        lines,
        [v for band in bands for edges in band.area.values() for v in edges if v > 0],
        x_name=steps.x_name,
        bands=bands,
        labels=labels,
        lines=[longest.first + float(start) for start in steps.new],
        x_label=lambda value: longest.place_name(int(value) - longest.first),
        markers=len(longest.steps) <= 40,
        views=steps.views,
    )


def chart_of_steps(
    title: str, summary: str, axis: Axis, series: Sequence[Series], heights: Sequence[float] = (), **more: Any
) -> Chart:
    """The chart of weight gaps, whose vertical axis shows the lines, and other ``heights``."""
    shown = [*heights, *(v for line in series for v in line.points.values() if math.isfinite(v) and v > 0)]
    y = logarithmic(min([*shown, 1e-8]), max([*shown, 1e-6]), zero=True)
    name = "distance of all weights (Euclidean norm)"
    return Chart(title, summary, axis, y, series, y_name=name, tall=True, group="steps", **more)


def _starts(gaps: GapSeries, most: int, around: int | None) -> list[int]:
    """The indices of the places that are drawn: few, but all around one, and the first that differs."""
    count = len(gaps.steps)
    starts = {*range(0, count, max(1, math.ceil(count / most))), *np.flatnonzero(~gaps.equal)[:1].tolist()}
    if around is not None:
        starts |= {*range(max(around - AROUND[0], 0), min(around + AROUND[0] + 1, count))}
    return sorted(starts)


def _one_after_another(gaps: GapSeries) -> np.ndarray:
    return gaps.first + np.arange(len(gaps.steps))


def _gap_line(name: str, style: int, gaps: GapSeries, starts: Sequence[int], at: np.ndarray, key: str) -> Series:
    """The line of one candidate: the largest gap from each of the places ``starts`` up to the next."""
    points: dict[float, float] = {}
    tooltips: dict[float, str] = {}
    for start, end in zip(starts, [*starts[1:], len(gaps.steps)], strict=True):
        part = gaps.gaps[start:end]
        finite = part[np.isfinite(part)]
        value = float(finite.max()) if len(finite) else math.nan
        points[float(at[start])] = value
        equal = bool(gaps.equal[start:end].all())
        text = "equal, bit for bit" if equal else f"{value:.3g}" if math.isfinite(value) else "not a number"
        noise = gaps.noise[start:end]
        if np.isfinite(noise).any():
            text += f" (rounding alone: {np.nanmax(noise):.3g})"
        largest = f", the largest of {end - start} steps" if end - start > 1 and not equal else ""
        tooltips[float(at[start])] = text + largest
    return Series(name, style, points, tooltips=tooltips, key=key)


def _rounding_bands(
    series: Sequence[tuple[GapSeries, np.ndarray]], every: int
) -> tuple[list[Band], list[tuple[float, str]]]:
    """The band that shows the effect of rounding, and its label: noise twins, or else one rounding of every weight.

    Args:
        series: with the positions of the places on the axis.
    """
    noisy, at_place = next(((gaps, at) for gaps, at in series if np.isfinite(gaps.noise).any()), (None, series[0][1]))
    if noisy is not None:
        begin, count = int(np.isfinite(noisy.noise).argmax()), len(noisy.steps)  # it may begin with the last step
        at = sorted({begin, *range(0, count, every), count - 1} - {*range(begin)})
        area = {float(at_place[i]): (0.0, float(noisy.noise[i])) for i in at}
        return [Band("twins", area)], [(area[float(at_place[-1])][1], "rounding alone, measured by perturbed runs")]
    first, at_place = series[0]
    steps = [*range(0, len(first.steps), every), len(first.steps) - 1]
    low = {float(at_place[i]): float(first.rounding[i]) for i in steps if np.isfinite(first.rounding[i])}
    if not any(value > 0 for value in low.values()):
        return [], []
    area = {at: (value, 2 * value) for at, value in low.items()}
    return [Band("rounding", area)], [(list(area.values())[-1][1], "one rounding of every weight")]


def span(last: int, first: int = 1) -> Axis:
    """An axis of whole numbers from ``first`` to ``last`` with a little padding."""
    length = max(last - first, 1) / 0.98
    return Axis(first - 0.01 * length, first + 0.99 * length, counts(last, first).ticks)


def style_of(files: RunFiles, candidate: str, *, against: str = "") -> int:
    """The style of a candidate's lines; another one in a comparison with a recorded run."""
    own = files.names.index(candidate) if candidate in files.names else 1
    return max(1, min(own + len(files.names) * bool(against), 5))


def unit_of(compared: Sequence[Compared]) -> str:
    """The unit after which most weights were compared: ``step``, ``call`` (of several steps) or ``epoch``."""
    if not compared:
        return "step"
    training = _longest(compared)[0].training
    if not training.steps_compared:
        return "epoch"
    return "call" if training.steps_made else "step"


def _longest(compared: Sequence[Compared]) -> Compared:
    return max(compared, key=lambda each: len(each[2].steps))


def overlaid_gaps(runs: Sequence[tuple[str, RunFiles]]) -> Chart | None:
    """The weight gap after every step of several runs, each as long as its run; None if no run has records."""
    compared = [(i, *one) for i, (_, files) in enumerate(runs) for one in gaps_of(files.folder, files.verdict)]
    if not compared:
        return None
    lengths = [gaps.last for _, _, _, gaps in compared]
    every, initial = max(lengths), min(gaps.first for _, _, _, gaps in compared)
    lines = []
    for i, entry, reference, gaps in compared:
        starts = _starts(gaps, 1 + len(gaps.steps) * STOPS // every, None)
        label = f"{runs[i][0]}: {entry.candidate} \N{MINUS SIGN} {reference}"
        lines.append(_gap_line(label, 1 + i % 5, gaps, starts, _one_after_another(gaps), f"r{i}"))
    return chart_of_steps(
        "Weight gap after every step",
        "; ".join(f"{runs[i][0]}, {entry.candidate}: {where(entry)}" for i, entry, _, _ in compared),
        span(every, initial),
        lines,
        x_name="step of the run",
        labels=[(0.0, "equal, bit for bit")],
        x_label=lambda value: f"step {value:,.0f} of the run" if value else "before the first step",
        markers=every <= 40,
        views=views_of_lengths(lengths, "step of the run", initial),
    )


def views_of_lengths(lengths: Sequence[int], x_name: str, first: int = 1) -> list[View]:
    """For each length of a run the part of the axis that it takes: shown while no longer run is."""
    return [View("", -math.inf, length + 0.5, counts(length, first).ticks, x_name) for length in sorted(set(lengths))]


# The strip chart: the weight gap of every layer after every step


MOST_ROWS = 24
"""The largest number of rows; with more variables a row is a layer, and with more layers the last to differ are left
out."""
LEVELS = 5
"""The number of shades for gaps other than 0."""


def strip(
    title: str, gaps: GapSeries, starts: Sequence[int], at: np.ndarray, x: Axis, x_name: str, views: Sequence[View]
) -> dict[str, Any] | None:
    """The content of the strip chart of one comparison, for the macro ``strip`` in ``parts.html``.

    Args:
        starts: the places, as indices from 0, at which the columns start, sorted; a column shows the largest gap up to
            the next one.
        at: where the places are on the horizontal axis ``x``, int64 ``[places]``.

    Returns:
        The content; None if all weights are equal at every place.
    """
    if gaps.equal.all():
        return None
    names, values, left_out = _rows(gaps)
    columns = np.fmax.reduceat(values, starts, axis=0)
    decades = _decades(columns)
    levels = _levels(columns, decades)
    first = np.where((values != 0).any(axis=0), (values != 0).argmax(axis=0), len(values))
    begins = [*at[starts] - 0.5, at[-1] + 0.5]
    edges = [1000 * min(max(x.position(begin), 0), 1) for begin in begins]
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
