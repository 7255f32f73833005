"""Charts as panels of a Matplotlib figure."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from matplotlib.axes import Axes

from compare.naming import printable
from compare.reporting.charts import Chart, Series

# Okabe and Ito's palette, which colour-blind readers can distinguish. The reference is a wide pale line, the
# candidates are thin dark lines on top of it, so coinciding curves stay distinguishable.
PALE = "#56B4E9"
DARK = ("#000000", "#D55E00", "#009E73", "#CC79A7", "#0072B2")
DASHES = ("-", (0, (3, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (7, 2)))
MARKERS = ("o", "s", "^", "D", "v")
BANDS = {"rounding": ("#F0E442", 0.45), "margin": ("#F0E442", 0.45), "twins": ("#666666", 0.2)}
"""The color and the opacity of a band of each kind."""


def draw(ax: Axes, chart: Chart, title: str, *, small: bool = True) -> None:
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
        at, low = zip(*sorted(band.low.items()), strict=True)
        ax.fill_between(at, low, [band.high[x] for x in at], color=colour, alpha=alpha, linewidth=0, zorder=1)
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
    if series.low:
        at, low, high = zip(*series.interval, strict=True)
        if series.bars:
            ax.vlines(at, low, high, color=colour, linewidth=4, alpha=0.4, zorder=2.5)
        else:
            ax.fill_between(at, low, high, color=colour, alpha=0.22, linewidth=0, zorder=1.7)
    if series.crosses:
        height = [0.96 - 0.04 * series.style] * len(series.crosses)
        place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        ax.plot(series.crosses, height, "x", color=colour, markeredgewidth=2, **place)


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
    """The text in lines of a width."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …"))


def plain(text: str) -> str:
    """Escapes control characters, and dollar signs, which Matplotlib would read as the start of a formula."""
    return printable(text).replace("$", r"\$")
