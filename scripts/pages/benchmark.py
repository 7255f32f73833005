"""The page and the picture of ``benchmark.csv``, which scripts/benchmark.py writes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from scripts import tables
from scripts.measure import spread

COLUMNS = ["round", "program"]
FIGURES = {
    "seconds_per_epoch": ("seconds per epoch", "{:.1f}"),
    "cpu_seconds_per_epoch": ("CPU seconds per epoch", "{:.1f}"),
    "start_seconds": ("seconds before", "{:.1f}"),
    "late_seconds": ("seconds after", "{:.1f}"),
    "wall_seconds": ("wall seconds", "{:.1f}"),
    "cpu_seconds": ("CPU seconds", "{:.1f}"),
    "peak_mib": ("peak memory, MiB", "{:.0f}"),
}
"""By column of the CSV file, the heading and the format on the page."""


RATIOS = [
    ("peak_mib", "main-job", ("tutorial",), 1.2),
    ("peak_mib", "main-job-sequential", ("tutorial",), 0.9),
    ("wall_seconds", "main-job", ("yardstick",), 1.08),
    ("wall_seconds", "main-job", ("main-job-sequential",), 1.0),
    ("wall_seconds", "main-job", ("both-at-once",), 0.75),
    ("wall_seconds", "main-job", ("tutorial", "bare-fit"), 0.45),
    ("wall_seconds", "main-job-sequential", ("tutorial", "bare-fit"), 0.65),
]
"""A figure of a program, divided by the sum of its yardsticks', and the target for the median over all rounds."""


def page(rows: pd.DataFrame, origin: str) -> str:
    """The benchmark as a Markdown document.

    Args:
        rows: one program in one round each, with the columns ``COLUMNS`` and ``FIGURES``; NaN where there is no figure.
        origin: the sentence on the command and the machine.
    """
    grouped = rows.groupby("program", sort=False)
    figures = {title: grouped[name].agg(spread, form) for name, (title, form) in FIGURES.items()}
    return tables.page(
        "benchmark",
        origin=origin,
        rounds=rows["round"].nunique(),
        figures=tables.markdown(pd.DataFrame(figures).reset_index()),
        ratios=tables.markdown(ratios(rows)),
    )


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    found = []
    for figure, program, yardsticks, target in RATIOS:
        values = rows.pivot(index="round", columns="program", values=figure)
        if not {program, *yardsticks} <= set(values):
            continue
        within_round = values[program] / values[list(yardsticks)].sum(axis=1)
        divisor = " + ".join(yardsticks)
        found.append(
            {
                "ratio": f"{program} / {f'({divisor})' if len(yardsticks) > 1 else divisor}",
                "of": FIGURES[figure][0],
                "within a round": spread(within_round, "{:.3f}"),
                "target": f"≤ {target}",
                "median meets it": "yes" if within_round.median() <= target else "**no**",
            }
        )
    return pd.DataFrame(found, columns=["ratio", "of", "within a round", "target", "median meets it"])


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draws a bar per program for the median, and a dot per round."""
    programs = list(rows["program"].unique())[::-1]
    figure = Figure(figsize=(8, 0.4 * len(programs) + 1.2), layout="constrained")
    axes = figure.subplots()
    for y, program in enumerate(programs):
        values = rows.loc[rows["program"] == program, "wall_seconds"]
        ours = program.startswith("main-job")
        axes.barh(y, values.median(), color="#0072b2" if ours else "#cccccc")
        axes.plot(values, [y] * len(values), "o", color="black", markersize=3)
        text = {"xytext": (4, -3), "textcoords": "offset points", "color": "white" if ours else "black"}
        axes.annotate(f"{values.median():.1f}", (0, y), **text)
    axes.set_yticks(range(len(programs)), programs)
    axes.set_xlabel("wall seconds of the whole program (bar: median, dots: rounds); blue is this project")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
