"""The charts of a run's page: the weight gap per step, metrics and their gaps, seconds per epoch; no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare.records import EPOCH_END, INITIAL
from compare.reporting.charts import Axis, Band, Series, chart, counts, linear, logarithmic
from compare.reporting.gaps import WeightGaps, gaps_of
from compare.reporting.plots import ROUNDING, Curves, envelope_of, mean_and_interval
from compare.reporting.sentences import where
from compare.verdict import absolute_gap

STOPS = 400
"""As many points at most has the timeline; of the steps between two the largest gap is drawn."""

View = dict[str, Any]


# Where they part


def timeline(folder: Path, verdict: View, view: View) -> View | None:
    """The chart of the weight gap per step; None where there is nothing to draw."""
    entries = [each for each in view["comparisons"] if not each["failure"]]
    if not entries or view["scope"] == "check":
        return None
    found = [(entry, gaps) for entry, _, gaps in gaps_of(folder, {**verdict, "comparisons": entries})]
    if found:
        return _gaps_per_step(found, view)
    if all(each["training"]["verdict"] == "identical" for each in entries):  # then every gap is 0
        return _all_equal(entries, view)
    return None


def _gaps_per_step(found: Sequence[tuple[Mapping[str, Any], WeightGaps]], view: View) -> View:
    series, heights, bands, labels = [], [], [], []
    unit = unit_of([entry for entry, _ in found])
    longest = max((gaps for _, gaps in found), key=lambda gaps: len(gaps.places))
    count = len(longest.places)
    every = max(1, math.ceil(count / STOPS))
    for entry, gaps in found:
        points: dict[float, float] = {}
        told: dict[float, str] = {}
        parted = np.flatnonzero(~gaps.equal)
        first = int(parted[0]) if len(parted) else -1
        starts = sorted({*range(0, len(gaps.places), every), *([first] if first >= 0 else [])})
        for start, end in zip(starts, [*starts[1:], len(gaps.places)], strict=True):
            part = gaps.gaps[start:end]
            known = part[np.isfinite(part)]
            value = float(known.max()) if len(known) else math.nan
            points[start + 1] = value
            equal = bool(gaps.equal[start:end].all())
            text = "equal, bit for bit" if equal else f"{value:.3g}" if math.isfinite(value) else "not a number"
            noise = gaps.noise[start:end]
            if np.isfinite(noise).any():
                text += f" (rounding alone: {np.nanmax(noise):.3g})"
            told[start + 1] = text + (f", the largest of {end - start} steps" if end - start > 1 and not equal else "")
        style = view["names"].index(entry["candidate"]) if entry["candidate"] in view["names"] else 1
        name = f"{entry['candidate']} − {entry['reference']}"
        series.append(Series(name, max(1, min(style, 5)), points, told=told))
        heights += [value for value in points.values() if math.isfinite(value) and value > 0]
    base = found[0][1]
    at = [i for i in [*range(0, len(base.places), every), len(base.places) - 1] if np.isfinite(base.rounding[i])]
    low = {i + 1.0: float(base.rounding[i]) for i in at}
    high = {at: 2 * value for at, value in low.items()}
    if any(np.isfinite(gaps.noise).any() for _, gaps in found):
        (_, noisy) = next((entry, gaps) for entry, gaps in found if np.isfinite(gaps.noise).any())
        at = [i for i in range(0, len(noisy.places), every) if np.isfinite(noisy.noise[i])]
        top = {i + 1.0: float(noisy.noise[i]) for i in at}
        bands.append(Band("twins", dict.fromkeys(top, 0.0), top))
        if top:
            labels.append((list(top.values())[-1], "rounding alone, measured by noise twins"))
        heights += [value for value in top.values() if value > 0]
    elif any(value > 0 for value in low.values()):
        bands.append(Band("rounding", low, high))
        labels.append((list(high.values())[-1], "one rounding of every weight"))
        heights += [value for value in (*low.values(), *high.values()) if value > 0]
    equal = all(gaps.equal.all() for _, gaps in found)
    labels.append((0.0, f"equal, bit for bit, after every {unit}" if equal else "equal, bit for bit"))
    lines = [
        float(i + 1) for i, (a, b) in enumerate(zip(longest.places, longest.places[1:], strict=False), 1) if a[0] < b[0]
    ]
    begins = {epoch: i + 1 for i, (epoch, _) in reversed(list(enumerate(longest.places)))}
    some = sorted(begins)[:: max(1, math.ceil(len(begins) / 10))]
    x = counts(count, 1)
    axis = Axis(lambda value: (value - 1) / max(count - 1, 1) * 0.98 + 0.01, [(begins[e], f"{e}") for e in some])
    if len(begins) == 1:
        axis = Axis(axis.place, x.ticks)
    place = {i + 1.0: text for i, text in enumerate(map(_place, longest.places))}
    return chart(
        f"Weight gap after every {unit}",
        "; ".join(f"{entry['candidate']}: {where(entry)}" for entry, _ in found),
        axis,
        logarithmic(min([*heights, 1e-8]), max([*heights, 1e-6]), zero=True),
        series,
        x_name="epoch begins" if len(begins) > 1 else unit,
        y_name="distance of all weights (Euclidean norm)",
        bands=bands,
        labels=labels,
        lines=lines,
        told=lambda value: place.get(value, f"step {value:g}"),
        tall=True,
        markers=count <= 40,
    )


def unit_of(entries: Sequence[Mapping[str, Any]]) -> str:
    """What weights were compared after: every step, a call that made several, or an epoch where no step is told."""
    if entries and not any(entry["training"].get("steps_compared") for entry in entries):
        return "epoch"
    return "call" if any("steps_made" in entry["training"] for entry in entries) else "step"


def _place(place: tuple[int, int]) -> str:
    epoch, step = place
    if step == EPOCH_END:
        return f"end of epoch {epoch}"
    return "before the first step" if step == INITIAL else f"epoch {epoch}, step {step:,}"


def _all_equal(entries: Sequence[View], view: View) -> View:
    unit = unit_of(entries)
    steps = max(entry["training"]["steps_compared"] for entry in entries) or view["epochs"]
    series = [
        Series(
            f"{entry['candidate']} − {entry['reference']}",
            max(1, min(view["names"].index(entry["candidate"]), 5)),
            {1: 0.0, float(steps): 0.0},
            told={1: "equal, bit for bit", float(steps): "equal, bit for bit"},
        )
        for entry in entries
    ]
    x = counts(steps)
    return chart(
        f"Weight gap after every {unit}",
        f"All weights are equal, bit for bit, after every {unit}.",
        Axis(lambda value: (value - 1) / max(steps - 1, 1) * 0.98 + 0.01, x.ticks),
        logarithmic(1e-8, 1e-2, zero=True),
        series,
        x_name=unit,
        y_name="distance of all weights (Euclidean norm)",
        labels=[(0.0, f"equal, bit for bit, after every {unit}")],
        tall=True,
        markers=False,
    )


# What they reached


def metric_chart(view: View, name: str, scale: Sequence[float] = (), last: int = 0) -> View:
    """The curves of one metric, in training and validation, on a scale of their own or on the given values'."""
    series: list[Series] = []
    curves: Curves = view["curves"]
    for number, trainer in enumerate(view["names"]):
        for column in (f"val_{name}", name):
            its = [mine[column] for (who, _), mine in curves.items() if who == trainer and mine.get(column)]
            style, label = min(number, 5), f"{trainer} {column}"
            hollow = column.startswith("val_")
            if len(its) > 1:
                mean, low, high = mean_and_interval(its, 0.95)
                series += [Series(label, style, values, hollow, faint=True) for values in its]
                told = {
                    float(e): f"{v:.6g} (95% interval {low[e]:.4g} to {high[e]:.4g})"
                    if math.isfinite(low[e])
                    else f"{v:.6g}"
                    for e, v in mean.items()
                }
                series.append(Series(label, style, mean, hollow, told=told, low=low, high=high))
            elif its:
                told = {float(e): _exact(value) for e, value in its[0].items()}
                series.append(Series(label, style, its[0], hollow, told=told))
    series.sort(key=lambda each: each.style)
    shown = list(scale) or [v for each in series for v in each.points.values() if math.isfinite(v)]
    least, most = min(shown, default=0.0), max(shown, default=1.0)
    axis = logarithmic(least, most) if least > 0 and most > 1000 * least else linear(least, most)
    ends = ", ".join(
        f"{each.name} {_exact(list(each.points.values())[-1])}" for each in series if each.points and not each.faint
    )
    unit = "fraction of examples" if name.endswith("accuracy") else ""
    return chart(name, f"{name}, last epoch: {ends}", counts(last or view["epochs"]), axis, series, y_name=unit)


def _exact(value: float) -> str:
    """A number as ``metrics.csv`` has it."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return str(single) if float(single) == value else repr(value)


def gap_chart(view: View, name: str) -> View:
    """The distance of each candidate's numbers from the reference's, on a scale that has a zero."""
    curves: Curves = view["curves"]
    series, heights, sizes = [], [], []
    candidates = view["names"][1:]
    wanted = [(trainer, column) for trainer in candidates for column in (name, f"val_{name}")]
    for (trainer, seed), mine in curves.items():
        ours = curves.get((view["names"][0], seed), {})
        for column in (name, f"val_{name}"):
            sizes += [abs(v) for v in mine.get(column, {}).values() if math.isfinite(v) and v]
            if trainer not in candidates or not ours.get(column):
                continue
            both = sorted(ours[column].keys() & mine.get(column, {}).keys())
            gaps = {float(e): absolute_gap(ours[column][e], mine[column][e]) for e in both}
            told = {
                e: "equal" if gap == 0 else "not a number" if gap is None else f"{gap:.2e}" for e, gap in gaps.items()
            }
            points = {e: math.nan if gap is None else gap for e, gap in gaps.items()}
            style = min(view["names"].index(trainer), 5)
            series.append(
                (trainer, column, Series(f"{trainer} {column}", style, points, column.startswith("val_"), told=told))
            )
            heights += [gap for gap in points.values() if math.isfinite(gap) and gap > 0]
    series.sort(key=lambda each: wanted.index(each[:2]))
    low, high = (ROUNDING[0] * min(sizes), ROUNDING[1] * max(sizes)) if sizes else ROUNDING
    low = max(low, high / 1000)
    around = {0.5: low, view["epochs"] + 0.5: low}
    bands = [Band("rounding", around, dict.fromkeys(around, high))]
    labels = [(math.sqrt(low * high), "float32 rounding"), (0.0, "equal")]
    envelope = envelope_of(curves, view["names"][0], name, view["noise"])
    if any(envelope.values()):
        bands.insert(
            0, Band("twins", dict.fromkeys(map(float, envelope), 0.0), {float(e): v for e, v in envelope.items()})
        )
        labels.append((list(envelope.values())[-1], "noise twins"))
        heights += [value for value in envelope.values() if value > 0]
    many = len(series)
    told_gap = "equal in every epoch" if not heights else f"up to {max(heights):.2e}"
    return chart(
        f"{name}: gap to {view['names'][0]}",
        f"{name}: the gap is {told_gap}",
        counts(view["epochs"]),
        logarithmic(min([low, *heights]), max([high, 1e-2, *heights]), zero=True),
        [each for _, _, each in series],
        bands=bands,
        labels=labels,
        shift=lambda number: 0.4 * ((number + 0.5) / many - 0.5),
    )


def seconds_chart(view: View) -> View:
    series = []
    curves: Curves = view["curves"]
    for number, name in enumerate(view["names"]):
        its = [mine["seconds"] for (who, _), mine in curves.items() if who == name]
        if its:
            mean = mean_and_interval(its, 0.95)[0] if len(its) > 1 else its[0]
            told = {float(epoch): f"{value:,.2f} s" for epoch, value in mean.items()}
            series.append(Series(name, min(number, 5), mean, told=told))
    most = max((v for each in series for v in each.points.values()), default=1.0)
    ends = ", ".join(f"{each.name} {list(each.told.values())[-1]}" for each in series)
    return chart(
        "seconds per epoch",
        f"In the last epoch: {ends}",
        counts(view["epochs"]),
        linear(0, most, pad=0.04),
        series,
        y_name="s",
    )
