"""The plot of a run, ``comparison.png``: every trainer's curves, their gaps, and the verdict."""

from __future__ import annotations

import io
import re
import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.reporting import backend  # noqa: F401 (before Matplotlib itself)

# isort: split
import numpy as np
from matplotlib import style as settings
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, TextArea, VPacker

from compare.naming import listed, printable
from compare.records.files import replace_file
from compare.records.metrics_csv import read_metrics
from compare.records.model import RecordError
from compare.reporting import pictures, run_files, weight_pictures
from compare.reporting.charts import Area, Chart, Series
from compare.reporting.run_files import RunFiles, usable
from compare.reporting.sentences import sentences, where
from compare.reporting.weight_pictures import Compared, compared_gaps
from compare.verdict.model import Verdict

DPI = 150
MAX_METRICS = 4

GREY = "#666666"
VERDICT_COLOURS = {"identical": "#00785A", "alike": "#0072B2", "different": "#C24E00"}

_drawing = threading.RLock()


@contextmanager
def _as_delivered() -> Iterator[None]:
    """Draws with Matplotlib's own settings: a user's may ask for LaTeX, say, which is not installed."""
    with _drawing, settings.context("default"), warnings.catch_warnings():  # the settings are the process's
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing")  # of a name, such as an emoji
        yield


@_as_delivered()
def draw(folder: Path) -> Path:
    """Writes ``comparison.png`` from the ``metrics.csv``, ``run.json`` and ``verdict.json`` of a folder."""
    read_metrics(folder / "metrics.csv")  # raises an error that names the missing file
    fig = figure_of(folder)
    if fig is None:
        raise RecordError(folder / "metrics.csv", "there is no epoch to draw")
    content = io.BytesIO()
    fig.savefig(content, format="png")
    replace_file(folder / "comparison.png", content.getvalue())
    return folder / "comparison.png"


@_as_delivered()
def figure_of(folder: Path) -> Figure | None:
    """The plot of the run in a folder; None if no epoch was reported."""
    files = run_files.read(folder)
    with usable(folder):
        return figure(files, compared_gaps(files)) if files.rows else None


def figure(files: RunFiles, gaps: Sequence[Compared] = ()) -> Figure:
    """The plot of a run that has reported an epoch.

    Below the curves it shows the weight gap after every step, the evidence for the verdict. The gaps of the metrics are
    drawn too if the verdict finds the reported numbers different, or if no weights were recorded; of a study of several
    seeds, their differences and the margin take the place of both.
    """
    comparisons = files.comparisons
    shown, left_out = files.metrics[:MAX_METRICS], files.metrics[MAX_METRICS:]
    notes = [str(note) for note in files.run.get("notes") or ()]
    if left_out:
        notes.append(f"Not drawn, see metrics.csv: {', '.join(left_out)}")
    trainers = [name for name in files.names if name in {trainer for trainer, _ in files.curves}]
    study = any(each.study for each in comparisons)
    compared = [] if study else [one for one in gaps if one[0].candidate in trainers]
    weights = weight_pictures.timeline(files, compared)
    numbers = weights is None or any(each.reporting.verdict == "different" for each in comparisons)

    panels = max(len(shown), 1)
    width = 3.6 + (6.2, 4.8, 4.4, 4.2)[panels - 1] * panels
    fig = Figure(dpi=DPI)
    FigureCanvasAgg(fig)
    heights = [3, *[2.3] * numbers, *[2.6 if numbers else 3] * bool(weights)]
    body = (2.3 if len(heights) > 2 else 0) + 7 + max(len(trainers) - 6, 0)  # room for the legend
    top = _header(fig, width, body, files, notes)
    fig.set_layout_engine(ConstrainedLayoutEngine(rect=(0.005, 0.005, 0.99, top - 0.005), w_pad=0.08, h_pad=0.08))
    widths = [(width - 3.6) / panels] * panels + [3.6]
    grid = fig.add_gridspec(len(heights), panels + 1, width_ratios=widths, height_ratios=heights)
    charts: list[Chart] = []

    def add(place: Any, chart: Chart | None, title: str, *, small: bool = True) -> None:
        """Draws a chart at a place of the grid; without one, there is the title only."""
        ax = fig.add_subplot(place)
        if chart is None:
            ax.set_title(title, loc="left", fontsize=10)
            ax.set_axis_off()
        else:
            draw_panel(ax, chart, title, small=small)
            charts.append(chart)

    for column, name in enumerate(shown):
        alone = "" if numbers else _lacking(files, name, 38)
        add(grid[0, column], pictures.metric_chart(files, name), wrapped(name, 40) + alone, small=False)
    if not shown:
        add(grid[0, 0], None, "no metrics were reported")
    legend = fig.add_subplot(grid[0, -1])
    for column, name in enumerate(shown if numbers else ()):
        chart = _gap_chart(files, name, study=study)
        add(grid[1, column], chart, wrapped(chart.title if chart else name, 52, 2) + _lacking(files, name, 52))
    if weights:
        told = [f"{each.candidate}{f' against {each.recorded}' if each.against else ''} from "
                f"{where(each)[:1].lower()}{where(each)[1:]}"
                for each in comparisons if each.training.first_difference and not each.failure]  # fmt: skip
        found = f"; differs: {', '.join(told)}" if told else ""
        add(grid[-1, :-1], weights, wrapped(weights.title + found, int(9 * (width - 3.6)), 2), small=False)
    seconds = pictures.seconds_chart(files)
    add(grid[1, -1], seconds, "time per epoch\n(the first includes tracing)" if seconds else "")
    interval = "\npale: 95% interval of the mean" if files.seeds >= pictures.FEWEST else ""
    draw_legend(
        legend,
        {name: min(files.names.index(name), 5) for name in trainers},
        validation=any(name.startswith("val_") for name in files.columns),
        crosses=any(series.crosses for chart in charts for series in chart.series),
        more=f"thin: single seeds{interval}" if study else "",
    )
    return fig


def _gap_chart(files: RunFiles, metric: str, *, study: bool) -> Chart | None:
    """How far a metric is apart: of a study, against the margin."""
    if not study:
        return pictures.gap_chart(files, metric)
    of_validation = f"val_{metric}"
    return pictures.margin_chart(files, of_validation if of_validation in files.columns else metric)


def _lacking(files: RunFiles, metric: str, width: int) -> str:
    """Lines for a title on the columns of a metric that some trainers do not report."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in (metric, f"val_{metric}"):
        silent = tuple(who for who in files.names if not files.values(who, name))
        if 0 < len(silent) < len(files.names):
            found.setdefault(silent, []).append(name)
    notes = (
        f"{listed(names)} {'are' if len(names) > 1 else 'is'} not reported by {listed(silent)}"
        for silent, names in found.items()
    )
    return "".join(f"\n{wrapped(note, width)}" for note in notes)


def _verdict_lines(verdict: Verdict) -> list[str]:
    """The sentences of the header: at most four on the comparisons, and one on the causes."""
    lines = sentences(verdict)
    if len(lines) > 4:
        lines[3:] = [f"and {len(lines) - 3} more, see verdict.json"]
    causes = [cause.label for each in verdict.comparisons for cause in each.causes]
    if causes:
        lines.append(f"cause{'s' * (len(causes) > 1)}: {', '.join(dict.fromkeys(causes))}")
    return lines


def draw_legend(ax: Axes, styles: Mapping[str, int], *, validation: bool, crosses: bool, more: str) -> None:
    """Draws the legend of the trainers, whose numbers are ``styles``, with the text ``more`` below it."""
    rows: list[Artist] = []
    for trainer, style in styles.items():
        role = "candidate" if style else "reference"
        rows.append(TextArea(plain(wrapped(f"{role}: {trainer}", 32)), textprops={"fontsize": 9, "fontweight": "bold"}))
        kinds = {"training": False, "validation": True} if validation else {"training": False}
        cells = [_key(layers(style, hollow), kind) for kind, hollow in kinds.items()]
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


def _header(fig: Figure, width: float, body: float, files: RunFiles, notes: Sequence[str]) -> float:
    """Sets the figure's size and writes title, verdict and notes on it, above panels that are ``body`` inches high.

    Returns the upper edge of the panels as a fraction of the figure's height.
    """
    word, lines = (files.verdict.verdict, _verdict_lines(files.verdict)) if files.verdict else ("no verdict", [])
    title = str(files.run.get("title", files.folder.name))
    blocks: list[tuple[str, float, dict[str, Any]]] = [
        (wrapped(title, int(width * 7)), 16, {"fontweight": "bold"}),
        ("\n".join(wrapped(text, int(width * 9.5 - 22)) for text in lines), 12.5, {}),
    ]
    bold = {"color": "#8A3A00", "fontweight": "bold"}
    blocks += [(wrapped(f"Note: {note}", int(width * 9.5)), 11, bold) for note in notes]
    heights = [(text.count("\n") + 1) * size * 1.3 / 72 + 0.1 for text, size, _ in blocks]
    height = 0.15 + sum(heights) + 0.1 + body
    fig.set_size_inches(width, height)
    down, left = 0.15, 0.2
    for number, ((text, size, style), tall) in enumerate(zip(blocks, heights, strict=True)):
        place: dict[str, Any] = {"y": 1 - down / height, "va": "top", "fontsize": size, "linespacing": 1.25}
        indent = left
        if number == 1:  # the verdict on its colour, the sentences next to it
            box = {"boxstyle": "round,pad=0.25", "facecolor": VERDICT_COLOURS.get(word, GREY), "linewidth": 0}
            pill = fig.text((left + 0.05) / width, s=plain(word), color="white", fontweight="bold", bbox=box, **place)
            indent = pill.get_window_extent().x1 / fig.dpi + 0.2
        fig.text(indent / width, s=plain(text), **place, **style)
        down += tall
    return 1 - (down + 0.1) / height


# Charts as panels of the figure


# Okabe and Ito's palette, which colour-blind readers can distinguish. The reference is a wide pale line, the
# candidates are thin dark lines on top of it, so coinciding curves stay distinguishable.
PALE = "#56B4E9"
DARK = ("#000000", "#D55E00", "#009E73", "#CC79A7", "#0072B2")
DASHES = ("-", (0, (3, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (7, 2)))
MARKERS = ("o", "s", "^", "D", "v")
BANDS = {"rounding": ("#F0E442", 0.45), "margin": ("#F0E442", 0.45), "twins": ("#666666", 0.2)}
"""The color and the opacity of a band of each kind."""


def draw_panel(ax: Axes, chart: Chart, title: str, *, small: bool = True) -> None:
    """Draws a chart in a panel, under a title in bold or ``small`` type."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlim(chart.x.low, chart.x.high)
    ax.set_xticks(*zip(*chart.x.ticks, strict=True))
    ax.set_xlabel(chart.x_name)
    ax.set_ylabel(plain(wrapped(chart.y_name, 26)))
    ax.set_title(plain(title), loc="left", **({"fontsize": 10} if small else {"fontweight": "bold"}))
    _draw_y_axis(ax, chart)
    for x in chart.lines:
        ax.axvline(x, color="#CCCCCC", linewidth=0.8, linestyle=":", zorder=0.8)
    for band in chart.bands:
        colour, alpha = BANDS[band.kind]
        ax.fill_between(*_edges(band.area), color=colour, alpha=alpha, linewidth=0, zorder=1)
    for series in chart.series:
        _draw_series(ax, series, chart)
    for height, text in chart.label_positions(0.17):  # beside the panel, where curves cannot cross them
        text = wrapped(text, 20 if chart.tall else 10)
        ax.annotate(text, (1, 1 - height), (5, 0), "axes fraction", "offset points", fontsize=8, va="center")


def _draw_y_axis(ax: Axes, chart: Chart) -> None:
    """Sets the limits and ticks of the vertical axis, and draws the line of zero."""
    y = chart.y
    if y.scale == "zero":  # linear below the first decade
        room = 100 if any(series.crosses for series in chart.series) else 2  # crosses are above all gaps
        ax.set_yscale("symlog", linthresh=y.low, linscale=1)
        ax.set_ylim(-y.low / 3, min(y.high * room, 1e308))
        ax.spines["bottom"].set_visible(False)
    else:
        ax.set_yscale(y.scale)
        ax.set_ylim(y.low, y.high)
    ax.minorticks_off()
    values, labels = zip(*y.ticks, strict=True)
    ax.set_yticks(values, [re.sub(r"1e(-?\d+)", r"$10^{\1}$", text) for text in labels])
    if 0 in values:
        ax.axhline(0, color="#222222", linewidth=1.4, zorder=1.5)


def _draw_series(ax: Axes, series: Series, chart: Chart) -> None:
    x, y = zip(*series.line, strict=True) if series.points else ((), ())
    colour = layers(series.style)[0]["color"]
    if series.faint or series.dots:
        ax.plot(x, y, color=colour, linewidth=0.7, alpha=0.5, zorder=1.8, clip_on=False)
    else:
        label = series.name
        for layer in layers(series.style, series.hollow, many=len(x) > 15):
            layer["markersize"] *= 1 if chart.kind != "gaps" or series.hollow else 0.5  # a ring around an equal gap
            ax.plot(x, y, label=label, clip_on=False, **layer | ({} if chart.markers else {"marker": ""}))
            label = "_core"
    if series.bars:
        ax.vlines(*_edges(series.interval), color=colour, linewidth=4, alpha=0.4, zorder=2.5)
    elif series.interval:
        ax.fill_between(*_edges(series.interval), color=colour, alpha=0.13, linewidth=0, zorder=1.7)
    if series.crosses:
        height = [0.96 - 0.04 * series.style] * len(series.crosses)
        place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        ax.plot(series.crosses, height, "x", color=colour, markeredgewidth=2, **place)


def _edges(area: Area) -> np.ndarray:
    """The places, the lower and the upper edges of an area, float64 ``[3, places]``."""
    return np.array([(at, *edges) for at, edges in sorted(area.items())]).reshape(-1, 3).T


def layers(style: int, hollow: bool = False, many: bool = False) -> list[dict[str, Any]]:
    """The line styles of a trainer, one per layer: filled for training, hollow for validation."""
    if style == 0:
        # The dot makes a single epoch visible, where a line has no length.
        dot = {"marker": "o", "markeredgewidth": 0, "solid_capstyle": "round"}
        band = {"color": PALE, "linewidth": 9, "markersize": 9, "zorder": 2.1, **dot}
        core = {"color": "white", "linewidth": 6, "markersize": 6, "zorder": 2.2, **dot}
        return [band, core] if hollow else [band]
    k = style - 1
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


def wrapped(text: str, width: int, lines: int = 3) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …"))


def plain(text: str) -> str:
    """Escapes control characters, and dollar signs, which Matplotlib would read as the start of a formula."""
    return printable(text).replace("$", r"\$")
