"""The charts of metrics: curves, gaps, seconds per epoch, and a study's differences; imports no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compare.records.metrics_csv import Curves, Values, shortest
from compare.reporting.charts import Band, Chart, Points, Series, View, counts, linear, logarithmic
from compare.reporting.numbers import ROUNDING, difference, interval
from compare.reporting.run_files import RunFiles
from compare.reporting.weight_pictures import style_of, views_of_lengths
from compare.verdict.exact import absolute_gap
from compare.verdict.rounding import units_of
from compare.verdict.seeds import mean_interval


def metric_chart(files: RunFiles, name: str) -> Chart:
    """The curves of one metric in training and validation; of several seeds the mean, its interval, and each seed."""
    series: list[Series] = []
    for number, label, hollow, seeds in _columns(files, name):
        series += _curves(label, min(number, 5), hollow, seeds)
    series.sort(key=lambda line: line.style)
    return chart_of_metric(name, series, files.epochs)


def _columns(files: RunFiles, metric: str) -> Iterator[tuple[int, str, bool, dict[int, Values]]]:
    """The columns of a metric: the trainer's number, the name, whether it is of validation, the values by seed."""
    for number, trainer in enumerate(files.names):
        for column in (f"val_{metric}", metric):
            yield number, f"{trainer} {column}", column.startswith("val_"), files.values(trainer, column)


def _curves(label: str, style: int, hollow: bool, seeds: Mapping[int, Values], **more: Any) -> list[Series]:
    """The line of one column of a trainer; of several seeds a thin line each and their mean with its interval."""
    if len(seeds) > 1:
        mean, interval = mean_and_interval(list(seeds.values()))
        ends = {epoch: f" (95% interval {low:.4g} to {high:.4g})" for epoch, (low, high) in interval.items()}
        tooltips = {epoch: f"{value:.6g}{ends.get(epoch, '')}" for epoch, value in mean.items()}
        name = f"{label}, mean"
        lines = [Series(label, style, values, hollow, faint=True, **more) for values in seeds.values()]
        return [*lines, Series(name, style, mean, hollow, tooltips=tooltips, interval=interval, **more)]
    lines = []
    for values in seeds.values():
        tooltips = {epoch: shortest(value) for epoch, value in values.items()}
        holes = sorted({*range(min(values), max(values))} - values.keys())
        lines.append(Series(label, style, values, hollow, tooltips=tooltips, holes=holes, **more))
    return lines


def chart_of_metric(name: str, series: Sequence[Series], epochs: int, views: Sequence[View] = ()) -> Chart:
    shown = [v for line in series for v in line.points.values() if math.isfinite(v)]
    least, most = min(shown, default=0.0), max(shown, default=1.0)
    axis = logarithmic(least, most) if least > 0 and most > 1000 * least else linear(least, most)
    ends = ", ".join(
        f"{line.name} {shortest(list(line.points.values())[-1])}" for line in series if line.points and not line.faint
    )
    unit = "fraction of examples" if name.endswith("accuracy") else ""
    return Chart(name, f"{name}, last epoch: {ends}", counts(epochs), axis, series, y_name=unit, views=views)


def gap_chart(files: RunFiles, name: str) -> Chart | None:
    """The gaps of one metric between each candidate and the reference, on a logarithmic axis with a zero.

    A cross marks the epochs for which one side alone reported a number. None if there is no candidate, or no metric
    that a candidate and the reference both reported.
    """
    reference, *candidates = files.names
    series = []
    for trainer, column in ((trainer, column) for trainer in candidates for column in (f"val_{name}", name)):
        expected, found = files.values(reference, column), files.values(trainer, column)
        for seed in [seed for seed in found if seed in expected]:
            known, actual = expected[seed], found[seed]
            ended, also_ended = (files.curves[who, seed]["epoch"].keys() for who in (reference, trainer))
            both = sorted(ended & also_ended & (known.keys() | actual.keys()))
            gaps = {e: absolute_gap(known.get(e), actual.get(e)) for e in both}
            tooltips = {
                e: "equal" if gap == 0 else f"{gap:.2e}" if gap is not None else
                "not a number" if e in known and e in actual else "not reported by both"
                for e, gap in gaps.items()
            }  # fmt: skip
            points = {e: math.nan if gap is None else gap for e, gap in gaps.items()}
            hollow, label = column.startswith("val_"), f"{trainer} {column}"
            series.append(Series(label, style_of(files, trainer), points, hollow, tooltips=tooltips))
    if not series:
        return None
    heights = [gap for line in series for gap in line.points.values() if math.isfinite(gap) and gap > 0]
    reported = [curves.get(column, {}) for curves in files.curves.values() for column in (name, f"val_{name}")]
    low, high = rounding_of([abs(v) for values in reported for v in values.values() if math.isfinite(v) and v])
    bands = [Band("rounding", dict.fromkeys((0.5, files.epochs + 0.5), (low, high)))]
    labels = [(math.sqrt(low * high), "float32 rounding"), (0.0, "equal")]
    envelope = envelope_of(files.curves, reference, name, files.noise)
    if any(envelope.values()):
        bands.insert(0, Band("twins", {at: (0.0, edge) for at, edge in _widened(envelope).items()}))
        labels.append((list(envelope.values())[-1], "perturbed runs"))
        heights += [value for value in envelope.values() if value > 0]
    size = "equal in every epoch" if not heights else f"up to {max(heights):.2e}"
    title, summary = f"{name}: gap to {reference}", f"{name}: the gap is {size}"
    y = logarithmic(min([low, *heights]), max([high, 1e-2, *heights]), zero=True)
    return Chart(title, summary, counts(files.epochs), y, series, bands=bands, labels=labels, kind="gaps")


def _widened(edge: Points) -> dict[float, float]:
    """The edge of a band by epoch, with half an epoch more at both ends."""
    first, last = min(edge), max(edge)
    return {first - 0.5: edge[first], **edge, last + 0.5: edge[last]}


def seconds_chart(files: RunFiles) -> Chart | None:
    """The wall time of every epoch by trainer, in seconds; None unless two were measured, or the only one."""
    series = []
    for number, name in enumerate(files.names):
        if seeds := list(files.values(name, "seconds").values()):
            mean = mean_and_interval(seeds)[0] if len(seeds) > 1 else seeds[0]
            tooltips = {epoch: f"{value:,.2f} s" for epoch, value in mean.items()}
            series.append(Series(name, min(number, 5), mean, tooltips=tooltips, key=f"seconds{number}"))
    if len(series) < min(2, len(files.names)):
        return None
    y = linear(0, max(v for line in series for v in line.points.values()), pad=0.04)
    ends = ", ".join(f"{line.name} {list(line.tooltips.values())[-1]}" for line in series)
    summary = f"In the last epoch: {ends}"
    return Chart("time per epoch", summary, counts(files.epochs), y, series, y_name="seconds", kind="seconds")


# Studies of several seeds


def margin_chart(files: RunFiles, metric: str) -> Chart:
    """The differences of one metric by seed and, if the study tests it, their mean, its interval and the margin."""
    series: list[Series] = []
    margins: dict[int, float] = {}
    studies = [(each, each.study) for each in files.comparisons if each.study]
    relative = any(test.relative for _, study in studies for test in study.tests if test.metric == metric)
    scale, unit = (100.0, "%") if relative else (1.0, "")
    for number, (comparison, study) in enumerate(studies):
        tests = {test.epoch: test for test in study.tests if test.metric == metric}
        candidate, reference = comparison.candidate, comparison.reference or files.names[0]
        line = Series(f"{candidate}, mean", style_of(files, candidate), {}, key=f"m{number}")
        margins |= {epoch: scale * test.margin for epoch, test in tests.items()}
        found = differences(files.curves, reference, candidate, metric, relative=relative)
        for seed, values in found.items():
            tooltips = {epoch: difference(v / scale, relative) for epoch, v in values.items()}
            series.append(replace(line, name=f"{candidate}, seed {seed}", points=values, tooltips=tooltips, dots=True))
        tooltips = {
            epoch: difference(test.mean, test.relative)
            + (f" (90% interval {interval(test)})" if test.low is not None else "")
            + f": {test.verdict}"
            for epoch, test in tests.items()
        }
        mean = {epoch: scale * test.mean for epoch, test in tests.items() if test.mean is not None}
        ends = {
            epoch: (scale * test.low, scale * test.high)
            for epoch, test in tests.items()
            if test.low is not None and test.high is not None
        }
        series += [replace(line, points=mean, tooltips=tooltips, interval=ends, bars=True)] * bool(tests)
    edges = _widened(margins) if margins else {}
    band = Band("margin", {at: (-value, value) for at, value in edges.items()})
    areas = [band.area, *(line.interval for line in series)]
    heights = [v for line in series for v in line.points.values() if math.isfinite(v)]
    heights += [v for area in areas for ends in area.values() for v in ends]
    words = "; ".join(f"{line.name}, last epoch: {list(line.tooltips.values())[-1]}" for line in series if line.bars)
    y = linear(min(heights, default=0), max(heights, default=0), unit=unit)
    name = f"candidate \N{MINUS SIGN} reference{', % of the reference' if relative else ''}"
    title = f"{metric}: difference to {files.names[0]}, and the margin"
    chart = Chart(title, words, counts(files.epochs), y, series, y_name=name, kind="differences")
    return replace(chart, bands=[band], labels=[(max(edges.values()), "margin")]) if edges else chart


# Several runs in one chart


def overlaid_metric(runs: Sequence[tuple[str, RunFiles]], name: str) -> Chart:
    """The curves of one metric of several runs, each as long as its run."""
    series = []
    for i, (run, files) in enumerate(runs):
        for number, label, hollow, seeds in _columns(files, name):
            key = f"r{i} r{i}t{number} {'validation' if hollow else 'training'}"
            series += _curves(f"{run}: {label}", 1 + i % 5, hollow, seeds, key=key, wide=number == 0)
    series.sort(key=lambda line: not line.wide)
    lengths = [files.epochs for _, files in runs]
    last = max(lengths, default=1)
    return chart_of_metric(name, series, last, views_of_lengths(lengths, "epoch"))


# Means over seeds, their differences, and the effect of rounding on them


FEWEST = 5
"""The smallest number of seeds for which an interval of the mean is drawn: of fewer it is wider than the chart."""


def mean_and_interval(seeds: Sequence[Values]) -> tuple[Values, dict[int, tuple[float, float]]]:
    """The mean over seeds per epoch, and the ends of its 95% confidence interval, for no fewer than ``FEWEST``."""
    mean, interval = {}, {}
    for epoch in sorted(set().union(*seeds)):
        values = np.array([seed[epoch] for seed in seeds if math.isfinite(seed.get(epoch, math.nan))])
        if len(values):
            mean[epoch] = float(values.mean())
        if len(values) >= FEWEST and np.isfinite(ends := mean_interval(values, 0.95)).all():
            interval[epoch] = ends
    return mean, interval


def differences(
    curves: Curves, reference: str, candidate: str, metric: str, *, relative: bool = False
) -> dict[int, Values]:
    """By seed and epoch, candidate minus reference; if ``relative``, in percent of the reference."""
    found: dict[int, Values] = {}
    for (trainer, seed), columns in curves.items():
        if trainer == candidate:
            expected, values = curves.get((reference, seed), {}).get(metric, {}), columns.get(metric, {})
            sizes = {e: abs(expected[e]) / 100 if relative else 1.0 for e in expected.keys() & values.keys()}
            found[seed] = {e: (values[e] - expected[e]) / size for e, size in sorted(sizes.items()) if size}
    return found


def rounding_of(sizes: Sequence[float]) -> tuple[float, float]:
    """How far one rounding of float32 moves numbers of these sizes, at least and at most; three decades or less."""
    low, high = ROUNDING * min(sizes, default=1.0), 2 * ROUNDING * max(sizes, default=1.0)
    return max(low, high / 1000), high


def envelope_of(curves: Curves, reference: str, metric: str, noise: Sequence[Curves]) -> Values:
    """By epoch, the largest gap of a metric between the noise twins and the reference, in training or validation."""
    largest: Values = {}
    for (twin, seed), columns in (each for twins in noise for each in twins.items()):
        for name in (metric, f"val_{metric}"):
            expected, actual = curves.get((reference, seed), {}).get(name, {}), columns.get(name, {})
            for epoch in expected.keys() & actual.keys():
                gap = absolute_gap(expected[epoch], actual[epoch])
                if gap is not None:
                    largest[epoch] = max(largest.get(epoch, 0.0), gap / units_of(twin))
    return {epoch: largest[epoch] for epoch in sorted(largest)}
