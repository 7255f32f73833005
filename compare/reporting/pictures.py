"""The charts of metrics: curves, gaps, seconds per epoch, and a study's differences; imports no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compare.records import shortest
from compare.reporting.charts import Axis, Band, Series, View, chart, counts, linear, logarithmic
from compare.reporting.curves import Values, differences, envelope_of, mean_and_interval, rounding_of
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import difference, interval
from compare.reporting.weight_pictures import Chart, style_of, views_of_lengths
from compare.verdict import absolute_gap


def metric_chart(files: RunFiles, name: str) -> Chart:
    """The curves of one metric in training and validation; of several seeds the mean, its interval, and each seed."""
    series: list[Series] = []
    for number, label, hollow, seeds in _columns(files, name):
        series += _curves(label, min(number, 5), hollow, seeds)
    series.sort(key=lambda line: line.style)
    return _metric_chart(name, series, files.epochs)


def _columns(files: RunFiles, metric: str) -> Iterator[tuple[int, str, bool, dict[int, Values]]]:
    """The columns of a metric: the trainer's number, the name, whether it is of validation, the values by seed."""
    for number, trainer in enumerate(files.names):
        for column in (f"val_{metric}", metric):
            seeds = {s: c[column] for (who, s), c in files.curves.items() if who == trainer and c.get(column)}
            yield number, f"{trainer} {column}", column.startswith("val_"), seeds


def _curves(label: str, style: int, hollow: bool, seeds: Mapping[int, Values], **more: Any) -> list[Series]:
    """The line of one column of a trainer; of several seeds a thin line each and their mean with its interval."""
    if len(seeds) > 1:
        mean, low, high = mean_and_interval(list(seeds.values()), 0.95)
        tooltips = {
            float(e): f"{v:.6g} (95% interval {low[e]:.4g} to {high[e]:.4g})" if math.isfinite(low[e]) else f"{v:.6g}"
            for e, v in mean.items()
        }
        name = f"{label}, mean"
        lines = [Series(label, style, values, hollow, faint=True, **more) for values in seeds.values()]
        return [*lines, Series(name, style, mean, hollow, tooltips=tooltips, low=low, high=high, **more)]
    return [
        Series(label, style, values, hollow, tooltips={float(e): shortest(v) for e, v in values.items()}, **more)
        for values in seeds.values()
    ]


def _metric_chart(name: str, series: Sequence[Series], epochs: int, views: Sequence[View] = ()) -> Chart:
    shown = [v for line in series for v in line.points.values() if math.isfinite(v)]
    least, most = min(shown, default=0.0), max(shown, default=1.0)
    axis = logarithmic(least, most) if least > 0 and most > 1000 * least else linear(least, most)
    ends = ", ".join(
        f"{line.name} {shortest(list(line.points.values())[-1])}" for line in series if line.points and not line.faint
    )
    unit = "fraction of examples" if name.endswith("accuracy") else ""
    return chart(name, f"{name}, last epoch: {ends}", counts(epochs), axis, series, y_name=unit, views=views)


def gap_chart(files: RunFiles, name: str) -> Chart | None:
    """The gaps of one metric between each candidate and the reference, on a logarithmic axis with a zero.

    None if there is no candidate, or no epoch that a candidate and the reference both reported.
    """
    reference, *candidates = files.names
    series, heights, sizes = [], [], []
    order = [(trainer, column) for trainer in candidates for column in (f"val_{name}", name)]
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
            if not points:
                continue
            hollow = column.startswith("val_")
            line = Series(f"{trainer} {column}", style_of(files, trainer), points, hollow, tooltips=tooltips)
            series.append((trainer, column, line))
            heights += [gap for gap in points.values() if math.isfinite(gap) and gap > 0]
    if not series:
        return None
    series.sort(key=lambda item: order.index(item[:2]))
    low, high = rounding_of(sizes)
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
    size = "equal in every epoch" if not heights else f"up to {max(heights):.2e}"
    return chart(
        f"{name}: gap to {reference}",
        f"{name}: the gap is {size}",
        counts(files.epochs),
        logarithmic(min([low, *heights]), max([high, 1e-2, *heights]), zero=True),
        [line for _, _, line in series],
        bands=bands,
        labels=labels,
        kind="gaps",
    )


def seconds_chart(files: RunFiles) -> Chart | None:
    """The wall time of every epoch by trainer, in seconds; None if it was not measured."""
    series = []
    for number, name in enumerate(files.names):
        seeds = [each["seconds"] for (trainer, _), each in files.curves.items() if trainer == name and each["seconds"]]
        if seeds:
            mean = mean_and_interval(seeds, 0.95)[0] if len(seeds) > 1 else seeds[0]
            tooltips = {float(epoch): f"{value:,.2f} s" for epoch, value in mean.items()}
            series.append(Series(name, min(number, 5), mean, tooltips=tooltips, key=f"seconds{number}"))
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
        kind="seconds",
    )


# Studies of several seeds


def margin_charts(files: RunFiles) -> list[Chart]:
    """Per tested metric of a study, the differences of every seed and their mean with its interval, and the margin."""
    metrics = dict.fromkeys(test.metric for each in files.comparisons if each.study for test in each.study.tests)
    return [_margin_chart(files, metric) for metric in metrics]


def _margin_chart(files: RunFiles, metric: str) -> Chart:
    series: list[Series] = []
    margins: dict[float, float] = {}
    relative = False
    studies = [(each, each.study) for each in files.comparisons if each.study]
    for number, (comparison, study) in enumerate(studies):
        tests = {float(test.epoch): test for test in study.tests if test.metric == metric}
        relative = any(test.relative for test in tests.values())
        style, scale = style_of(files, comparison.candidate), 100.0 if relative else 1.0
        margins |= {epoch: scale * test.margin for epoch, test in tests.items()}
        reference = comparison.reference or files.names[0]
        found = differences(files.curves, reference, comparison.candidate, metric, relative=relative)
        for seed, values in found.items():
            tooltips = {float(epoch): difference(v / scale, relative) for epoch, v in values.items()}
            name = f"{comparison.candidate}, seed {seed}"
            series.append(Series(name, style, values, key=f"m{number}", tooltips=tooltips, dots=True))
        mean = {epoch: scale * test.mean for epoch, test in tests.items()}
        low = {epoch: scale * test.low for epoch, test in tests.items() if test.low is not None}
        high = {epoch: scale * test.high for epoch, test in tests.items() if test.high is not None}
        tooltips = {
            epoch: difference(test.mean, test.relative)
            + (f" (90% interval {interval(test)})" if epoch in low else "")
            + f": {test.verdict}"
            for epoch, test in tests.items()
        }
        name = f"{comparison.candidate}, mean"
        line = Series(name, style, mean, key=f"m{number}", tooltips=tooltips, low=low, high=high, bars=True)
        series.append(line)
    edges = {min(margins) - 0.5: margins[min(margins)], **margins, max(margins) + 0.5: margins[max(margins)]}
    band = Band("margin", {at: -value for at, value in edges.items()}, edges)
    heights = [v for line in series for part in (line.points, line.low, line.high) for v in part.values()]
    heights = [v for v in (*heights, *edges.values(), *band.low.values()) if math.isfinite(v)]
    unit = "%" if relative else ""
    words = "; ".join(f"{line.name}, last epoch: {list(line.tooltips.values())[-1]}" for line in series if line.bars)
    axis = linear(min(heights), max(heights))
    return chart(
        f"{metric}: difference to {files.names[0]}, and the margin",
        words,
        counts(files.epochs),
        Axis(axis.position, [(value, f"{text}{unit}") for value, text in axis.ticks]),
        series,
        y_name=f"candidate \N{MINUS SIGN} reference{', % of the reference' if relative else ''}",
        bands=[band],
        labels=[(max(edges.values()), "margin")],
        kind="differences",
    )


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
    return _metric_chart(name, series, last, views_of_lengths(lengths, counts(last), "epoch"))
