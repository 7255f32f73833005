"""The charts of a run's page: the weight gap per step, metrics and their gaps, seconds per epoch; no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compare.records import EPOCH_END, INITIAL
from compare.reporting.charts import Axis, Band, Series, chart, counts, linear, logarithmic
from compare.reporting.curves import ROUNDING, envelope_of, mean_and_interval
from compare.reporting.gaps import GapSeries, gaps_of, reference_name
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import where
from compare.verdict import absolute_gap

STOPS = 400
"""The largest number of points in the timeline; a point shows the largest gap of the steps up to the next point."""

Chart = dict[str, Any]
Entry = Mapping[str, Any]
"""One entry of ``comparisons`` in ``verdict.json``."""


# The weight gap per step


def timeline(files: RunFiles) -> Chart | None:
    """The chart of the weight gap per step; None if there is nothing to draw."""
    entries = [entry for entry in files.entries if not entry.get("failure")]
    if not entries or files.scope == "check":
        return None
    series = gaps_of(files.folder, {**files.verdict, "comparisons": entries})
    if series:
        return _gaps_per_step(series, files)
    if all(entry["training"]["verdict"] == "identical" for entry in entries):  # then every gap is 0
        return _all_equal(entries, files)
    return None


def _gaps_per_step(compared: Sequence[tuple[Entry, str, GapSeries]], files: RunFiles) -> Chart:
    """The timeline drawn from recorded fingerprints."""
    unit = unit_of([entry for entry, _, _ in compared])
    longest = max((gaps for _, _, gaps in compared), key=lambda gaps: len(gaps.steps))
    every = max(1, math.ceil(len(longest.steps) / STOPS))
    lines = [
        _gap_line(f"{entry['candidate']} − {reference}", _style(files, entry["candidate"]), gaps, every)
        for entry, reference, gaps in compared
    ]
    heights = [value for line in lines for value in line.points.values() if math.isfinite(value) and value > 0]
    bands, labels = _rounding_bands([gaps for _, _, gaps in compared], every)
    heights += [v for band in bands for v in (*band.low.values(), *band.high.values()) if v > 0]
    equal = all(gaps.equal.all() for _, _, gaps in compared)
    labels.append((0.0, f"equal, bit for bit, after every {unit}" if equal else "equal, bit for bit"))
    new = 1 + np.flatnonzero(np.diff(longest.epochs))  # where epochs begin
    return chart(
        f"Weight gap after every {unit}",
        "; ".join(f"{entry['candidate']}: {where(entry)}" for entry, _, _ in compared),
        _place_axis(longest.epochs, new),
        logarithmic(min([*heights, 1e-8]), max([*heights, 1e-6]), zero=True),
        lines,
        x_name="start of epoch" if len(new) else unit,
        y_name="distance of all weights (Euclidean norm)",
        bands=bands,
        labels=labels,
        lines=(new + 1.0).tolist(),
        x_label=lambda value: _place_name(int(longest.epochs[int(value) - 1]), int(longest.steps[int(value) - 1])),
        tall=True,
        markers=len(longest.steps) <= 40,
    )


def _gap_line(name: str, style: int, gaps: GapSeries, every: int) -> Series:
    """The line of one candidate: of every ``every`` steps the largest gap, and the first step that differs."""
    points: dict[float, float] = {}
    tooltips: dict[float, str] = {}
    different = np.flatnonzero(~gaps.equal)
    starts = sorted({*range(0, len(gaps.steps), every), *different[:1].tolist()})
    for start, end in zip(starts, [*starts[1:], len(gaps.steps)], strict=True):
        part = gaps.gaps[start:end]
        finite = part[np.isfinite(part)]
        value = float(finite.max()) if len(finite) else math.nan
        points[start + 1] = value
        equal = bool(gaps.equal[start:end].all())
        text = "equal, bit for bit" if equal else f"{value:.3g}" if math.isfinite(value) else "not a number"
        noise = gaps.noise[start:end]
        if np.isfinite(noise).any():
            text += f" (rounding alone: {np.nanmax(noise):.3g})"
        largest = f", the largest of {end - start} steps" if end - start > 1 and not equal else ""
        tooltips[start + 1] = text + largest
    return Series(name, style, points, tooltips=tooltips)


def _rounding_bands(series: Sequence[GapSeries], every: int) -> tuple[list[Band], list[tuple[float, str]]]:
    """The band that shows the effect of rounding, and its label: noise twins, or else one rounding of every weight."""
    noisy = next((gaps for gaps in series if np.isfinite(gaps.noise).any()), None)
    if noisy is not None:
        at = [i for i in range(0, len(noisy.steps), every) if np.isfinite(noisy.noise[i])]
        top = {i + 1.0: float(noisy.noise[i]) for i in at}
        labels = [(list(top.values())[-1], "rounding alone, measured by noise twins")] if top else []
        return [Band("twins", dict.fromkeys(top, 0.0), top)], labels
    first = series[0]
    steps = [*range(0, len(first.steps), every), len(first.steps) - 1]
    low = {i + 1.0: float(first.rounding[i]) for i in steps if np.isfinite(first.rounding[i])}
    if not any(value > 0 for value in low.values()):
        return [], []
    high = {at: 2 * value for at, value in low.items()}
    return [Band("rounding", low, high)], [(list(high.values())[-1], "one rounding of every weight")]


def _place_axis(epochs: np.ndarray, new: np.ndarray) -> Axis:
    """The axis of the timeline: ticks at the starts of epochs, or at steps if there is a single epoch."""
    position = _span(len(epochs))
    if not len(new):
        return Axis(position, counts(len(epochs)).ticks)
    starts = [0, *new.tolist()]
    return Axis(position, [(start + 1, f"{epochs[start]}") for start in starts[:: max(1, math.ceil(len(starts) / 10))]])


def _span(count: int) -> Callable[[float], float]:
    """Maps 1 to ``count`` to positions on an axis with a little padding."""
    return lambda value: (value - 1) / max(count - 1, 1) * 0.98 + 0.01


def _style(files: RunFiles, candidate: str) -> int:
    return max(1, min(files.names.index(candidate), 5)) if candidate in files.names else 1


def unit_of(entries: Sequence[Entry]) -> str:
    """The unit after which weights were compared: ``step``, ``call`` (of several steps) or ``epoch``."""
    if entries and not any(entry["training"].get("steps_compared") for entry in entries):
        return "epoch"
    return "call" if any("steps_made" in entry["training"] for entry in entries) else "step"


def _place_name(epoch: int, step: int) -> str:
    if step == EPOCH_END:
        return f"end of epoch {epoch}"
    return "before the first step" if step == INITIAL else f"epoch {epoch}, step {step:,}"


def _all_equal(entries: Sequence[Entry], files: RunFiles) -> Chart:
    """The timeline of identical runs whose fingerprints are missing."""
    unit = unit_of(entries)
    steps = max(entry["training"]["steps_compared"] for entry in entries) or files.epochs
    lines = [
        Series(
            f"{entry['candidate']} − {reference_name(entry, files.verdict['reference'])}",
            _style(files, entry["candidate"]),
            {1: 0.0, float(steps): 0.0},
            tooltips={1: "equal, bit for bit", float(steps): "equal, bit for bit"},
        )
        for entry in entries
    ]
    return chart(
        f"Weight gap after every {unit}",
        f"All weights are equal, bit for bit, after every {unit}.",
        Axis(_span(steps), counts(steps).ticks),
        logarithmic(1e-8, 1e-2, zero=True),
        lines,
        x_name=unit,
        y_name="distance of all weights (Euclidean norm)",
        labels=[(0.0, f"equal, bit for bit, after every {unit}")],
        tall=True,
        markers=False,
    )


# Metrics, their gaps, and seconds per epoch


def metric_chart(files: RunFiles, name: str, scale: Sequence[float] = (), last: int = 0) -> Chart:
    """The curves of one metric in training and validation.

    Args:
        files: the content of the run's files.
        name: the metric, without ``val_``.
        scale: values that the vertical axis has to include instead of the run's own.
        last: the last epoch on the horizontal axis; the run's last epoch by default.
    """
    series: list[Series] = []
    for number, trainer in enumerate(files.names):
        for column in (f"val_{name}", name):
            seeds = [c[column] for (who, _), c in files.curves.items() if who == trainer and c.get(column)]
            style, label = min(number, 5), f"{trainer} {column}"
            hollow = column.startswith("val_")
            if len(seeds) > 1:
                mean, low, high = mean_and_interval(seeds, 0.95)
                series += [Series(label, style, values, hollow, faint=True) for values in seeds]
                tooltips = {
                    float(e): f"{v:.6g} (95% interval {low[e]:.4g} to {high[e]:.4g})"
                    if math.isfinite(low[e])
                    else f"{v:.6g}"
                    for e, v in mean.items()
                }
                series.append(Series(label, style, mean, hollow, tooltips=tooltips, low=low, high=high))
            elif seeds:
                tooltips = {float(e): _exact(value) for e, value in seeds[0].items()}
                series.append(Series(label, style, seeds[0], hollow, tooltips=tooltips))
    series.sort(key=lambda line: line.style)
    shown = list(scale) or [v for line in series for v in line.points.values() if math.isfinite(v)]
    least, most = min(shown, default=0.0), max(shown, default=1.0)
    axis = logarithmic(least, most) if least > 0 and most > 1000 * least else linear(least, most)
    ends = ", ".join(
        f"{line.name} {_exact(list(line.points.values())[-1])}" for line in series if line.points and not line.faint
    )
    unit = "fraction of examples" if name.endswith("accuracy") else ""
    return chart(name, f"{name}, last epoch: {ends}", counts(last or files.epochs), axis, series, y_name=unit)


def _exact(value: float) -> str:
    """Formats a number as in ``metrics.csv``."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return str(single) if float(single) == value else repr(value)


def gap_chart(files: RunFiles, name: str) -> Chart:
    """The gaps of one metric between each candidate and the reference, on a logarithmic axis with a zero."""
    reference, *candidates = files.names
    series, heights, sizes = [], [], []
    order = [(trainer, column) for trainer in candidates for column in (name, f"val_{name}")]
    for (trainer, seed), curves in files.curves.items():
        expected = files.curves.get((reference, seed), {})
        for column in (name, f"val_{name}"):
            sizes += [abs(v) for v in curves.get(column, {}).values() if math.isfinite(v) and v]
            if trainer not in candidates or not expected.get(column):
                continue
            both = sorted(expected[column].keys() & curves.get(column, {}).keys())
            gaps = {float(e): absolute_gap(expected[column][e], curves[column][e]) for e in both}
            tooltips = {
                e: "equal" if gap == 0 else "not a number" if gap is None else f"{gap:.2e}" for e, gap in gaps.items()
            }
            points = {e: math.nan if gap is None else gap for e, gap in gaps.items()}
            hollow = column.startswith("val_")
            line = Series(f"{trainer} {column}", _style(files, trainer), points, hollow, tooltips=tooltips)
            series.append((trainer, column, line))
            heights += [gap for gap in points.values() if math.isfinite(gap) and gap > 0]
    series.sort(key=lambda item: order.index(item[:2]))
    low, high = (ROUNDING[0] * min(sizes), ROUNDING[1] * max(sizes)) if sizes else ROUNDING
    low = max(low, high / 1000)
    edges = {0.5: low, files.epochs + 0.5: low}
    bands = [Band("rounding", edges, dict.fromkeys(edges, high))]
    labels = [(math.sqrt(low * high), "float32 rounding"), (0.0, "equal")]
    envelope = envelope_of(files.curves, reference, name, files.noise)
    if any(envelope.values()):
        bands.insert(
            0, Band("twins", dict.fromkeys(map(float, envelope), 0.0), {float(e): v for e, v in envelope.items()})
        )
        labels.append((list(envelope.values())[-1], "noise twins"))
        heights += [value for value in envelope.values() if value > 0]
    count = len(series)
    size = "equal in every epoch" if not heights else f"up to {max(heights):.2e}"
    return chart(
        f"{name}: gap to {reference}",
        f"{name}: the gap is {size}",
        counts(files.epochs),
        logarithmic(min([low, *heights]), max([high, 1e-2, *heights]), zero=True),
        [line for _, _, line in series],
        bands=bands,
        labels=labels,
        shift=lambda number: 0.4 * ((number + 0.5) / count - 0.5),
    )


def seconds_chart(files: RunFiles) -> Chart | None:
    """The wall time of every epoch by trainer, in seconds; None if it was not measured."""
    series = []
    for number, name in enumerate(files.names):
        seeds = [each["seconds"] for (trainer, _), each in files.curves.items() if trainer == name and each["seconds"]]
        if seeds:
            mean = mean_and_interval(seeds, 0.95)[0] if len(seeds) > 1 else seeds[0]
            tooltips = {float(epoch): f"{value:,.2f} s" for epoch, value in mean.items()}
            series.append(Series(name, min(number, 5), mean, tooltips=tooltips))
    if not series:
        return None
    most = max(v for line in series for v in line.points.values())
    ends = ", ".join(f"{line.name} {list(line.tooltips.values())[-1]}" for line in series)
    return chart(
        "seconds per epoch",
        f"In the last epoch: {ends}",
        counts(files.epochs),
        linear(0, most, pad=0.04),
        series,
        y_name="s",
    )
