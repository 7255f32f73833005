"""The plot of a run, ``comparison.png``: every trainer's curves, their gaps, and the verdict."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, TextArea, VPacker

from compare.records import RecordError, read_metrics, replace_file
from compare.reporting import pictures, run_files, weight_pictures
from compare.reporting.charts import Chart
from compare.reporting.panels import draw as draw_panel
from compare.reporting.panels import layers, plain, wrapped
from compare.reporting.run_files import RunFiles, usable
from compare.reporting.sentences import sentences, where
from compare.reporting.weight_pictures import Compared, compared_gaps
from compare.verdict.model import Verdict

DPI = 150
MAX_METRICS = 4

GREY = "#666666"
VERDICT_COLOURS = {"identical": "#00785A", "alike": "#0072B2", "different": "#C24E00"}


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

    Args:
        gaps: the weight gaps, as ``gaps_of`` returns them; empty if no weights were recorded.
    """
    verdict, comparisons = files.verdict, files.comparisons
    shown, left_out = files.metrics[:MAX_METRICS], files.metrics[MAX_METRICS:]
    notes = [str(note) for note in files.run.get("notes") or ()]
    if left_out:
        notes.append(f"Not drawn, see metrics.csv: {', '.join(left_out)}")
    trainers = [name for name in files.names if name in {trainer for trainer, _ in files.curves}]
    study = any(each.study for each in comparisons)
    compared = [] if study else [one for one in gaps if one[0].candidate in trainers]
    weights = weight_pictures.timeline(files, compared) if compared else None
    numbers = weights is None or any(each.reporting.verdict == "different" for each in comparisons)

    panels = max(len(shown), 1)
    width = 3.6 + (6.2, 4.8, 4.4, 4.2)[panels - 1] * panels
    fig = Figure(dpi=DPI)
    FigureCanvasAgg(fig)
    heights = [3, *[2.3] * numbers, *[2.6 if numbers else 3] * bool(weights)]
    body = (2.3 if len(heights) > 2 else 0) + 7 + max(len(trainers) - 6, 0)  # room for the legend
    word, lines = (verdict.verdict, _verdict_lines(verdict)) if verdict else ("no verdict", [])
    top = _header(fig, width, body, str(files.run.get("title", files.folder.name)), word, lines, notes)
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
        add(grid[0, column], pictures.metric_chart(files, name), wrapped(name, 40), small=False)
    if not shown:
        add(grid[0, 0], None, "no metrics were reported")
    legend = fig.add_subplot(grid[0, -1])
    for column, name in enumerate(shown if numbers else ()):
        if study:
            tested = next((each for each in (f"val_{name}", name) if each in files.columns), name)
            chart: Chart | None = pictures.margin_chart(files, tested)
        else:
            chart = pictures.gap_chart(files, name)
        lacking = "".join(f"\n{wrapped(note, 52, 2)}" for note in _lacking(files, name))
        add(grid[1, column], chart, wrapped(chart.title if chart else name, 52, 2) + lacking)
    if weights:
        told = [f"{each.candidate} from {where(each)[:1].lower()}{where(each)[1:]}"
                for each in comparisons if each.training.first_difference and not each.failure]  # fmt: skip
        found = f"; differs: {', '.join(told)}" if told else ""
        add(grid[-1, :-1], weights, wrapped(weights.title + found, int(9 * (width - 3.6)), 2), small=False)
    add(grid[1, -1], pictures.seconds_chart(files), "seconds per epoch\n(the first includes tracing)")
    _legend(
        legend,
        {name: min(files.names.index(name), 5) for name in trainers},
        validation=any(name.startswith("val_") for name in files.columns),
        crosses=any(series.crosses for chart in charts for series in chart.series),
        more="thin: single seeds\npale: 95% interval of the mean" if study else "",
    )
    return fig


def _lacking(files: RunFiles, metric: str) -> list[str]:
    """The columns of a metric that the reference, or a candidate, alone reports."""
    reported = {(who, name) for (who, _), columns in files.curves.items() for name, values in columns.items() if values}
    reference, found = files.names[0], []
    for candidate in files.names[1:]:
        for name in (f"val_{metric}", metric):
            silent = [who for who in (reference, candidate) if (who, name) not in reported]
            found += [f"{name} is not reported by {who}" for who in silent if len(silent) == 1]
    return found


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


def _legend(ax: Axes, styles: Mapping[str, int], *, validation: bool, crosses: bool, more: str) -> None:
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


def _header(
    fig: Figure, width: float, body: float, title: str, word: str, lines: Sequence[str], notes: Sequence[str]
) -> float:
    """Sets the size of the figure and writes the title, the verdict and the notes on it.

    Returns:
        The upper edge of the area for the panels, which is ``body`` inches high, as a fraction of the figure's height.
    """
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
