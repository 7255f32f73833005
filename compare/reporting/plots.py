"""The plot of a run, ``comparison.png``: every trainer's curves, their gaps, and the verdict."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, TextArea, VPacker
from matplotlib.ticker import FixedLocator, MaxNLocator

from compare.naming import printable
from compare.records import EPOCH_END, RecordError, read_metrics, replace_file
from compare.reporting import run_files
from compare.reporting.curves import Curves, Values, differences, envelope_of, mean_and_interval, rounding_of
from compare.reporting.gaps import GapSeries, gaps_of
from compare.reporting.run_files import RunFiles, usable
from compare.reporting.sentences import sentences, where
from compare.verdict import Comparison, Verdict, absolute_gap
from compare.verdict.seeds import Study

DPI = 150
MAX_METRICS = 4

# Okabe and Ito's palette, which colour-blind readers can distinguish. The reference is a wide pale line, the
# candidates are thin dark lines on top of it, so coinciding curves stay distinguishable.
PALE = "#56B4E9"
DARK = ("#000000", "#D55E00", "#009E73", "#CC79A7", "#0072B2")
DASHES = ("-", (0, (3, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (7, 2)))
MARKERS = ("o", "s", "^", "D", "v")
GREY = "#666666"
VERDICT_COLOURS = {"identical": "#00785A", "alike": "#0072B2", "different": "#C24E00"}

HeaderTexts = tuple[str, str, Sequence[str], Sequence[str]]
"""Title, verdict, sentences and notes."""


def draw(folder: Path) -> Path:
    """Writes ``comparison.png`` from the ``metrics.csv``, ``run.json`` and ``verdict.json`` of a folder.

    Raises:
        RecordError: if ``metrics.csv`` is missing or has no epoch, or one of the files is damaged.
    """
    read_metrics(folder / "metrics.csv")  # raises an error that names the missing file
    fig = figure_of(folder)
    if fig is None:
        raise RecordError(folder / "metrics.csv", "there is no epoch to draw")
    content = io.BytesIO()
    fig.savefig(content, format="png")
    replace_file(folder / "comparison.png", content.getvalue())
    return folder / "comparison.png"


def figure_of(folder: Path) -> Figure | None:
    """The plot of the run in a folder; None if no epoch was reported.

    Raises:
        RecordError: if one of the files is missing or damaged.
    """
    files = run_files.read(folder)
    with usable(folder):
        return figure(files, gaps_of(folder, files.verdict)) if files.rows else None


def figure(files: RunFiles, gaps: Sequence[tuple[Comparison, str, GapSeries]] = ()) -> Figure:
    """The plot of a run that has reported an epoch.

    Below the curves it shows the weight gap after every step, the evidence for the verdict. The gaps of the metrics are
    drawn too if the verdict finds the reported numbers different, or if no weights were recorded; of a study of several
    seeds, their differences and the margin take the place of both.

    Args:
        files: the content of the run's files.
        gaps: the weight gaps, as ``gaps_of`` returns them; empty if no weights were recorded.
    """
    run, verdict, curves = files.run, files.verdict, files.curves
    trainers = list(dict.fromkeys(trainer for trainer, _ in curves))
    if verdict:  # the reference comes first, whatever order they ran in
        trainers.sort(key=lambda trainer: trainer != verdict.reference)
    shown, left_out = files.metrics[:MAX_METRICS], files.metrics[MAX_METRICS:]
    notes = [str(note) for note in run.get("notes") or ()]
    if left_out:
        notes.append(f"Not drawn, see metrics.csv: {', '.join(left_out)}")

    panels = max(len(shown), 1)
    width = 3.6 + (6.2, 4.8, 4.4, 4.2)[panels - 1] * panels
    fig = Figure(dpi=DPI)
    FigureCanvasAgg(fig)
    comparisons = verdict.comparisons if verdict else ()
    studies = {each.candidate: each.study for each in comparisons if each.study}
    weights = [] if studies else [one for one in gaps if one[0].candidate in trainers]
    numbers = not weights or any(each.reporting.verdict == "different" for each in comparisons)
    heights = [3, *[2.3] * numbers, *[2.6 if numbers else 3] * bool(weights)]
    body = (2.3 if len(heights) > 2 else 0) + 7 + max(len(trainers) - 6, 0)  # room for the legend
    word, lines = (verdict.verdict, _verdict_lines(verdict)) if verdict else ("no verdict", [])
    texts = str(run.get("title", files.folder.name)), word, lines, notes
    top = _header(fig, width, body, texts)
    fig.set_layout_engine(ConstrainedLayoutEngine(rect=(0.005, 0.005, 0.99, top - 0.005), w_pad=0.08, h_pad=0.08))
    widths = [(width - 3.6) / panels] * panels + [3.6]
    grid = fig.add_gridspec(len(heights), panels + 1, width_ratios=widths, height_ratios=heights)
    upper = [fig.add_subplot(grid[0, column]) for column in range(panels + 1)]
    lower = [fig.add_subplot(grid[1, column]) for column in range(panels)] if numbers else []
    if weights:
        _draw_weight_gaps(fig.add_subplot(grid[-1, :-1]), weights, trainers, files.epochs, int(9 * (width - 3.6)))
    seconds = fig.add_subplot(grid[1, -1])
    for ax in (*upper, *lower, seconds):
        _style_panel(ax, files.epochs)
    for ax, name in zip(upper, shown, strict=False):
        _draw_curves(ax, curves, trainers, name)
    for ax, name in zip(lower, shown, strict=False):
        if studies:
            _draw_differences(ax, curves, trainers, name, studies)
        else:
            _draw_gaps(ax, curves, trainers, name, files.noise)
    if not shown:
        upper[0].set_title("no metrics were reported", loc="left")
    _draw_seconds(seconds, curves, trainers)
    validation = any(name.startswith("val_") for name in files.columns)
    crosses = any(line.get_marker() == "x" for ax in fig.axes for line in ax.lines)
    _legend(
        upper[-1],
        trainers,
        validation,
        crosses,
        "thin: single seeds\npale: 95% interval of the mean" if studies else "",
    )
    return fig


def _style_panel(ax: Axes, last: int) -> None:
    """Sets the grid and the horizontal axis, whose last epoch is ``last``."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlim(0.5, last + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    ax.set_xlabel("epoch")


def _verdict_lines(verdict: Verdict) -> list[str]:
    """The sentences of the header: at most four on the comparisons, and one on the causes."""
    lines = sentences(verdict)
    if len(lines) > 4:
        lines[3:] = [f"and {len(lines) - 3} more, see verdict.json"]
    causes = [
        cause.id + (f" (in {cause.side})" if cause.side else "")
        for each in verdict.comparisons
        for cause in each.causes
    ]
    if causes:
        lines.append(f"cause{'s' * (len(causes) > 1)}: {', '.join(dict.fromkeys(causes))}")
    return lines


def _layers(trainers: Sequence[str], trainer: str, hollow: bool, many: bool = False) -> list[dict[str, Any]]:
    """The line styles of a trainer, one per layer: filled for training, hollow for validation."""
    number = trainers.index(trainer)
    if number == 0:
        # The dot makes a single epoch visible, where a line has no length.
        dot = {"marker": "o", "markeredgewidth": 0, "solid_capstyle": "round"}
        band = {"color": PALE, "linewidth": 9, "markersize": 9, "zorder": 2.1, **dot}
        core = {"color": "white", "linewidth": 6, "markersize": 6, "zorder": 2.2, **dot}
        return [band, core] if hollow else [band]
    k = (number - 1) % len(DARK)
    line = {  # later candidates are narrower, so that coinciding lines stay visible
        "color": DARK[k],
        "linestyle": DASHES[k],
        "linewidth": max(1.8 - 0.3 * k, 1.0),
        "marker": MARKERS[k],
        "markersize": max(5.8 - 0.8 * k, 3.2) * (0.65 if many else 1),
        "markerfacecolor": "white" if hollow else DARK[k],
        "zorder": 3 + 0.1 * k,
    }
    return [line]


def _line(ax: Axes, values: Values, trainers: Sequence[str], trainer: str, name: str, marker: float = 1) -> None:
    """Draws one column of ``metrics.csv`` or its gap; an epoch without a number interrupts the line."""
    epochs = range(min(values), max(values) + 1)
    numbers = [values.get(epoch, math.nan) for epoch in epochs]
    y = [number if math.isfinite(number) else math.nan for number in numbers]
    label = f"{trainer} {name}"
    for layer in _layers(trainers, trainer, name.startswith("val_"), many=len(epochs) > 15):
        layer["markersize"] *= marker
        ax.plot(list(epochs), y, label=label, clip_on=False, **layer)
        label = "_core"


def _draw_curves(ax: Axes, curves: Curves, trainers: Sequence[str], metric: str) -> None:
    """Draws one metric of every trainer in training and validation."""
    unit = " (fraction of examples)" if metric == "accuracy" else ""
    ax.set_title(_plain(_wrap(metric, 40)), loc="left", fontweight="bold")
    ax.set_ylabel(_plain(_wrap(metric, 40) + unit))
    finite = []
    for trainer in trainers:
        for name in (f"val_{metric}", metric):
            seeds = [columns.get(name, {}) for (who, _), columns in curves.items() if who == trainer]
            _draw_seeds(ax, seeds, trainers, trainer, name)
    for (trainer, _), columns in curves.items():
        for name in (f"val_{metric}", metric):
            values = columns.get(name, {})
            finite += [value for value in values.values() if math.isfinite(value)]
            crosses = [epoch for epoch, value in values.items() if not math.isfinite(value)]
            _draw_crosses(ax, crosses, 1 - 0.05 * trainers.index(trainer), trainers, trainer)
    if finite and min(finite) > 0 and max(finite) > 1000 * min(finite):
        ax.set_yscale("log")  # otherwise a diverging run would flatten all others


def _draw_seeds(ax: Axes, seeds: Sequence[Values], trainers: Sequence[str], trainer: str, name: str) -> None:
    """Draws one column of a trainer; with several seeds the mean, its interval, and a thin line per seed."""
    seeds = [values for values in seeds if values]
    if not seeds:
        return
    if len(seeds) == 1:
        _line(ax, seeds[0], trainers, trainer, name)
        return
    colour = _layers(trainers, trainer, hollow=False)[0]["color"]
    for values in seeds:
        epochs = [epoch for epoch, value in values.items() if math.isfinite(value)]
        y = [values[epoch] for epoch in epochs]
        ax.plot(epochs, y, color=colour, linewidth=0.7, alpha=0.5, zorder=1.8, clip_on=False)
    mean, low, high = mean_and_interval(seeds, 0.95)
    _line(ax, mean, trainers, trainer, name)
    ax.fill_between(
        list(mean), list(low.values()), list(high.values()), color=colour, alpha=0.22, linewidth=0, zorder=1.7
    )


def _draw_differences(
    ax: Axes, curves: Curves, trainers: Sequence[str], metric: str, studies: Mapping[str, Study]
) -> None:
    """Draws a study's paired differences: a thin line per seed, their mean with its 90% interval, and the margin."""
    names = [name for name in (f"val_{metric}", metric) if any(columns.get(name) for columns in curves.values())][:1]
    for trainer, name in ((trainer, name) for trainer in trainers[1:] for name in names):
        seeds = [values for values in differences(curves, trainers[0], trainer, name).values() if values]
        if not seeds:
            continue
        colour = _layers(trainers, trainer, hollow=False)[0]["color"]
        for values in seeds:
            ax.plot(
                list(values), list(values.values()), color=colour, linewidth=0.7, alpha=0.5, zorder=1.8, clip_on=False
            )
        mean, low, high = mean_and_interval(seeds, 0.9)
        _line(ax, mean, trainers, trainer, name)
        ax.vlines(list(mean), list(low.values()), list(high.values()), color=colour, linewidth=4, alpha=0.4, zorder=2.5)
    tests = {t.epoch: t for study in studies.values() for t in study.tests if t.metric in names}
    sizes, _, _ = mean_and_interval(
        [columns.get(n, {}) for (who, _), columns in curves.items() if who == trainers[0] for n in names], 0.9
    )
    if tests:
        epochs = sorted(tests)
        limits = [tests[e].margin * (abs(sizes.get(e, math.nan)) if tests[e].relative else 1) for e in epochs]
        edges = [epochs[0] - 0.5, *epochs, epochs[-1] + 0.5]
        limits = [limits[0], *limits, limits[-1]]
        ax.fill_between(edges, [-limit for limit in limits], limits, color="#F0E442", alpha=0.45, linewidth=0, zorder=1)
        _label(ax, {limits[-1]: "margin"})
    ax.axhline(0, color="#222222", linewidth=1.4, zorder=1.5)
    ax.set_ylabel("candidate \N{MINUS SIGN} reference")
    ax.set_title(_plain(f"{' '.join(names)}: difference, mean and 90% interval"), loc="left", fontsize=10)


def _draw_crosses(ax: Axes, epochs: Sequence[float], height: float, trainers: Sequence[str], trainer: str) -> None:
    """Marks the epochs without a number at the upper edge of the panel."""
    if epochs:
        colour = _layers(trainers, trainer, hollow=False)[0]["color"]
        edge = ax.get_xaxis_transform()
        y = [height] * len(epochs)
        ax.plot(epochs, y, "x", color=colour, markeredgewidth=2, transform=edge, clip_on=False, zorder=5)


def _draw_gaps(ax: Axes, curves: Curves, trainers: Sequence[str], metric: str, noise: Sequence[Curves]) -> None:
    """Draws the gaps of one metric between each candidate and the reference, with the effect of rounding."""
    gaps, sizes = [], []
    lacking: dict[str, None] = {}  # an ordered set
    crosses: list[tuple[str, list[int]]] = []
    for (trainer, seed), candidate in curves.items():
        reference = curves.get((trainers[0], seed))
        if trainer == trainers[0] or reference is None:
            continue
        for name in (f"val_{metric}", metric):
            expected, actual = reference.get(name, {}), candidate.get(name, {})
            sizes += [abs(v) for v in (*expected.values(), *actual.values()) if math.isfinite(v) and v]
            if bool(expected) != bool(actual):
                lacking[f"{name} is not reported by {trainer if expected else trainers[0]}"] = None
                continue
            both = sorted(reference["epoch"].keys() & candidate["epoch"].keys() & (expected.keys() | actual.keys()))
            values = {epoch: absolute_gap(expected.get(epoch), actual.get(epoch)) for epoch in both}
            known = {epoch: value for epoch, value in values.items() if value is not None}
            if known:  # a small filled marker leaves an equal gap of validation visible as a ring around it
                _line(ax, known, trainers, trainer, name, 1.0 if name.startswith("val_") else 0.5)
            crosses.append((trainer, [epoch for epoch in values if epoch not in known]))
            gaps += list(values.values())
    numbers = [value for value in gaps if value]
    envelope = envelope_of(curves, trainers[0], metric, noise)
    numbers += [value for value in envelope.values() if value]
    low, high = rounding_of(sizes)
    room = 100 if any(epochs for _, epochs in crosses) else 1  # for crosses above all gaps
    _logarithmic_with_zero(ax, min(low, *numbers, 1e-8), max(high, *numbers, 1e-2) * room)
    for trainer, epochs in crosses:
        _draw_crosses(ax, epochs, 0.95, trainers, trainer)
    ax.axhspan(low, high, color="#F0E442", alpha=0.45, linewidth=0, zorder=1)
    ax.set_ylabel("|candidate \N{MINUS SIGN} reference|")
    notes = "".join(f"\n{_wrap(note, 52, 2)}" for note in lacking)
    ax.set_title(_plain(f"gap to the reference per epoch{notes}"), loc="left", fontsize=10)
    equal = bool(gaps) and all(value == 0 for value in gaps)
    labels = {
        math.sqrt(low * high): "float32\nrounding",
        0: "exactly\nequal" + (" in\nall epochs" if equal else ""),
    }
    if envelope:
        edges = [min(envelope) - 0.5, *envelope, max(envelope) + 0.5]
        heights = list(envelope.values())
        heights = [heights[0], *heights, heights[-1]]
        ax.fill_between(edges, heights, color=GREY, alpha=0.2, linewidth=0, zorder=0.9)
        if not low / 8 < heights[-1] < high * 8:
            labels[heights[-1]] = "noise\ntwins"
    _label(ax, labels)


def _label(ax: Axes, labels: Mapping[float, str]) -> None:
    """Writes texts next to the panel at their heights, where curves cannot cross them."""
    for y, text in labels.items():
        ax.annotate(text, (1, y), (5, 0), ax.get_yaxis_transform(), "offset points", fontsize=8, va="center")


def _logarithmic_with_zero(ax: Axes, low: float, high: float) -> None:
    """Sets a vertical axis that is linear below ``low`` and logarithmic above, and draws the line of zero."""
    floor = 10.0 ** math.floor(math.log10(low))
    top = 10.0 ** min(math.ceil(math.log10(high) + 0.3), 308)
    ax.set_yscale("symlog", linthresh=floor, linscale=1)
    ax.set_ylim(-floor / 3, top)
    decades = range(round(math.log10(floor)), round(math.log10(top)) + 1)
    step = math.ceil(len(decades) / 6)
    ax.yaxis.set_major_locator(FixedLocator([0, *(10.0**decade for decade in decades[::step])]))
    ax.yaxis.set_major_formatter(lambda y, _: f"$10^{{{round(math.log10(y))}}}$" if y > 0 else "0")
    ax.yaxis.set_minor_locator(FixedLocator([]))
    ax.axhline(0, color="#222222", linewidth=1.4, zorder=1.5)
    ax.spines["bottom"].set_visible(False)


def _draw_weight_gaps(
    ax: Axes,
    compared: Sequence[tuple[Comparison, str, GapSeries]],
    trainers: Sequence[str],
    last: int,
    width: int,
) -> None:
    """Draws the weight gap after every step, with a marker at the end of each epoch, and the effect of rounding.

    The horizontal axis ends with the epoch ``last``, or within the next if that was interrupted; the title has at most
    ``width`` characters a line.
    """
    _style_panel(ax, last)
    end = max(last, *(float(_in_epochs(gaps)[-1]) for _, _, gaps in compared))
    ax.set_xlim(-0.02 * end, end * 1.02)
    told = []
    for entry, _, gaps in compared:
        (layer,) = _layers(trainers, entry.candidate, hollow=False, many=last > 15)
        ends = np.flatnonzero(np.diff(gaps.epochs, append=-1))
        y = np.where(np.isfinite(gaps.gaps), gaps.gaps, np.nan)
        label = f"{entry.candidate} weight gap"
        ax.plot(_in_epochs(gaps), y, label=label, clip_on=False, markevery=ends.tolist(), **layer)
        if not gaps.equal.all():
            told.append(f"{entry.candidate} from {where(entry)[:1].lower()}{where(entry)[1:]}")
            ax.axvline(_in_epochs(gaps)[np.argmin(gaps.equal)], color=layer["color"], linewidth=1, linestyle=":")
    finite = np.concatenate([gaps.gaps[np.isfinite(gaps.gaps) & (gaps.gaps > 0)] for _, _, gaps in compared])
    noisy = next((gaps for _, _, gaps in compared if np.isfinite(gaps.noise).any()), None)
    first = compared[0][2]
    known = first.rounding[np.isfinite(first.rounding) & (first.rounding > 0)]
    labels = {0.0: "exactly\nequal"}
    if noisy is not None:
        ax.fill_between(_in_epochs(noisy), noisy.noise, color=GREY, alpha=0.25, linewidth=0, zorder=0.9)
        labels[float(np.nanmax(noisy.noise))] = "noise twins"
    elif len(known):
        x, low = _in_epochs(first), first.rounding
        ax.fill_between(x, low, 2 * low, color="#F0E442", alpha=0.6, linewidth=0, zorder=1)
        labels[float(1.4 * known[-1])] = "one rounding\nof every weight"
    _logarithmic_with_zero(ax, min([*finite, *known, 1e-8]), max([*finite, *known, 1e-2]))
    ax.set_xlabel("epoch (every step is drawn; markers at the ends of epochs)")
    ax.set_ylabel("distance of all weights")
    found = f"; differs: {', '.join(told)}" if told else ": equal, bit for bit"
    title = _wrap(f"weight gap after every step{found}", width, 2)
    ax.set_title(_plain(title), loc="left", fontsize=11, fontweight="bold")
    _label(ax, labels)


def _in_epochs(gaps: GapSeries) -> np.ndarray:
    """The places on an axis of epochs, float64 ``[places]``: an epoch's last step is at its number."""
    steps = gaps.steps.astype(np.float64)
    lasts = {epoch: max(steps[gaps.epochs == epoch].max(), 1.0) for epoch in np.unique(gaps.epochs).tolist()}
    lasts[int(gaps.epochs[-1])] = max(lasts.values())  # if the run was interrupted, its last epoch is shorter
    share = np.where(steps == EPOCH_END, 1.0, steps / np.array([lasts[epoch] for epoch in gaps.epochs.tolist()]))
    return np.asarray(gaps.epochs - 1 + share)


def _draw_seconds(ax: Axes, curves: Curves, trainers: Sequence[str]) -> None:
    """Draws the wall time of every epoch."""
    for trainer in trainers:
        seeds = [columns["seconds"] for (who, _), columns in curves.items() if who == trainer]
        _draw_seeds(ax, seeds, trainers, trainer, "seconds")
    if not ax.lines:
        ax.set_axis_off()  # logs hold no times
        return
    ax.set_ylim(0, ax.get_ylim()[1] * 1.05)
    ax.set_ylabel("seconds per epoch")
    ax.set_title("time (first epoch includes tracing)", loc="left", fontsize=10)


def _legend(ax: Axes, trainers: Sequence[str], validation: bool, crosses: bool, more: str) -> None:
    """Draws the legend, with the text ``more`` below it."""
    rows: list[Artist] = []
    for trainer in trainers:
        role = "reference" if trainer == trainers[0] else "candidate"
        rows.append(TextArea(_plain(_wrap(f"{role}: {trainer}", 32)), textprops={"fontsize": 9, "fontweight": "bold"}))
        kinds = {"training": False, "validation": True} if validation else {"training": False}
        cells = [_key(_layers(trainers, trainer, hollow), kind) for kind, hollow in kinds.items()]
        rows.append(HPacker(pad=0, sep=10, children=cells))
    if crosses:
        cross = {"color": GREY, "linestyle": "", "marker": "x", "markeredgewidth": 2}
        rows.append(_key([cross], "missing, NaN or infinite"))
    if more:
        rows.append(TextArea(more, textprops={"fontsize": 9}))
    ax.set_axis_off()
    packed = VPacker(pad=0, sep=5, children=rows)
    place: dict[str, Any] = {"bbox_to_anchor": (-0.1, 1), "bbox_transform": ax.transAxes}
    box = AnchoredOffsetbox("upper left", child=packed, frameon=False, borderpad=0, **place)
    box.set_in_layout(False)  # otherwise a long legend would squeeze the panels
    ax.add_artist(box)


def _key(layers: Sequence[Mapping[str, Any]], text: str) -> Artist:
    area = DrawingArea(40, 12)
    for layer in layers:
        area.add_artist(Line2D([5, 20, 35], [6, 6, 6], markevery=[1], **layer))
    return HPacker(pad=0, sep=3, align="center", children=[area, TextArea(text, textprops={"fontsize": 9})])


def _header(fig: Figure, width: float, body: float, texts: HeaderTexts) -> float:
    """Sets the size of the figure and writes the title, the verdict and the notes on it.

    Returns:
        The upper edge of the area for the panels, which is ``body`` inches high, as a fraction of the figure's height.
    """
    title, word, lines, notes = texts
    blocks: list[tuple[str, float, dict[str, Any]]] = [
        (_wrap(title, int(width * 7)), 16, {"fontweight": "bold"}),
        ("\n".join(_wrap(text, int(width * 9.5 - 22)) for text in lines), 12.5, {}),
    ]
    bold = {"color": "#8A3A00", "fontweight": "bold"}
    blocks += [(_wrap(f"Note: {note}", int(width * 9.5)), 11, bold) for note in notes]
    heights = [(text.count("\n") + 1) * size * 1.3 / 72 + 0.1 for text, size, _ in blocks]
    height = 0.15 + sum(heights) + 0.1 + body
    fig.set_size_inches(width, height)
    down, left = 0.15, 0.2
    for number, ((text, size, style), tall) in enumerate(zip(blocks, heights, strict=True)):
        place: dict[str, Any] = {"y": 1 - down / height, "va": "top", "fontsize": size, "linespacing": 1.25}
        indent = left
        if number == 1:  # the verdict on its colour, the sentences next to it
            box = {"boxstyle": "round,pad=0.25", "facecolor": VERDICT_COLOURS.get(word, GREY), "linewidth": 0}
            pill = fig.text((left + 0.05) / width, s=_plain(word), color="white", fontweight="bold", bbox=box, **place)
            indent = pill.get_window_extent().x1 / fig.dpi + 0.2
        fig.text(indent / width, s=_plain(text), **place, **style)
        down += tall
    return 1 - (down + 0.1) / height


def _wrap(text: str, width: int, lines: int = 3) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …"))


def _plain(text: str) -> str:
    """Escapes control characters, and dollar signs, which Matplotlib would read as the start of a formula."""
    return printable(text).replace("$", r"\$")
