"""The page and the picture of ``benchmark.csv``, which scripts/benchmark.py writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from scripts.measure import spread
from scripts.tables import markdown

LOOPS = ("loop", "loop-iterator", "loop-67-steps", "loop-function")
OURS = ("fit", "fit-67-steps", *LOOPS, "main-job", "main-job-sequential")
"""The programs that run this project's trainers."""

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


@dataclass(frozen=True)
class Ratio:
    """A figure of one program divided by that of its yardsticks, with a target.

    Attributes:
        figure: a column of the CSV file.
        programs: the program with the smallest median is used.
        yardsticks: the programs whose figures are added up.
        target: the maximum of the median over all rounds; None for a figure that shows what is possible.
        without_late: leaves out what the yardsticks do after their last epoch.
    """

    figure: str
    programs: tuple[str, ...]
    yardsticks: tuple[str, ...]
    target: float | None = None
    without_late: bool = False


RATIOS = [
    Ratio("cpu_seconds", ("fit",), ("bare-fit",), 1.02),
    Ratio("cpu_seconds", ("loop",), ("bare-loop",), 1.02),
    Ratio("cpu_seconds_per_epoch", LOOPS, ("tutorial",), 0.80),
    Ratio("peak_mib", ("fit",), ("tutorial",), 0.60),
    Ratio("peak_mib", ("loop",), ("tutorial",), 0.60),
    Ratio("peak_mib", ("main-job",), ("tutorial",), 1.2),
    Ratio("peak_mib", ("main-job-sequential",), ("tutorial",), 0.9),
    Ratio("cpu_seconds", ("main-job",), ("bare-fit", "bare-loop"), 0.94),
    Ratio("wall_seconds", ("main-job",), ("tutorial", "fit-tutorial"), 0.45),
    Ratio("wall_seconds", ("main-job",), ("bare-both",), 1.1),
    Ratio("wall_seconds", ("bare-both",), ("tutorial", "fit-tutorial")),
    Ratio("wall_seconds", ("main-job-sequential",), ("tutorial", "fit-tutorial"), 0.65),
]


def page(rows: pd.DataFrame, origin: str, missing: Sequence[str]) -> str:
    """The benchmark as a Markdown document.

    Args:
        rows: one program in one round each, with the columns ``COLUMNS`` and ``FIGURES``; NaN where there is no figure.
        origin: the sentence on the command and the machine.
        missing: a sentence for each program that was left out.
    """
    grouped = rows.groupby("program", sort=False)
    figures = {title: grouped[name].agg(spread, form) for name, (title, form) in FIGURES.items()}
    lines = [
        "# What training costs",
        "",
        origin,
        "",
        f"Medians over {rows['round'].nunique()} round(s), with the range. Every program is a process of its own. Wall",
        "and CPU seconds and memory are those of the whole process, imports included. An epoch is training and",
        'validation; the first epoch does not count. "Before" is how much longer the first epoch took than a later',
        'one (imports, data, tracing); "after" is the time from the end of the last epoch to the end of the program.',
        "",
        *missing,
        *([""] if missing else []),
        f"![{drawn(rows)[1]}](benchmark.png)",
        "",
        markdown(pd.DataFrame(figures).reset_index()),
        "",
        markdown(ratios(rows)),
        "",
    ]
    return "\n".join(lines)


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """The ratios whose programs were all measured."""
    found = []
    late = rows.pivot(index="round", columns="program", values="late_seconds")
    for ratio in RATIOS:
        values = rows.pivot(index="round", columns="program", values=ratio.figure)
        programs, yardsticks = [name for name in ratio.programs if name in values], list(ratio.yardsticks)
        if not programs or not set(yardsticks) <= set(values) or values[[*programs, *yardsticks]].isna().any(axis=None):
            continue
        best = values[programs].median().idxmin()
        against = values[yardsticks] - late[yardsticks] if ratio.without_late else values[yardsticks]
        within_round = values[best] / against.sum(axis=1)
        divisor = " + ".join(yardsticks)
        found.append(
            {
                "ratio": f"{best} / {f'({divisor})' if len(yardsticks) > 1 else divisor}",
                "of": FIGURES[ratio.figure][0] + (", without those after" if ratio.without_late else ""),
                "within a round": spread(within_round, "{:.3f}"),
                "target": "–" if ratio.target is None else f"≤ {ratio.target}",
                "median meets it": _met(within_round.median(), ratio.target),
            }
        )
    return pd.DataFrame(found, columns=["ratio", "of", "within a round", "target", "median meets it"])


def _met(median: float, target: float | None) -> str:
    return "–" if target is None else "yes" if median <= target else "**no**"


def drawn(rows: pd.DataFrame) -> tuple[str, str]:
    """The column that is drawn, and its title: whole jobs if they were measured, else an epoch."""
    if rows["program"].str.startswith("main-job").any():
        return "wall_seconds", "wall seconds of the whole program"
    return "cpu_seconds_per_epoch", "CPU seconds per epoch of training and validation"


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draws a bar per program for the median, and a dot per round."""
    column, title = drawn(rows)
    programs = list(rows["program"].unique())[::-1]
    figure = Figure(figsize=(8, 0.4 * len(programs) + 1.2), layout="constrained")
    axes = figure.subplots()
    for y, program in enumerate(programs):
        values = rows.loc[rows["program"] == program, column].dropna()
        if values.empty:
            continue
        ours = program in OURS
        axes.barh(y, values.median(), color="#0072b2" if ours else "#cccccc")
        axes.plot(values, [y] * len(values), "o", color="black", markersize=3)
        text = {"xytext": (4, -3), "textcoords": "offset points", "color": "white" if ours else "black"}
        axes.annotate(f"{values.median():.1f}", (0, y), **text)
    axes.set_yticks(range(len(programs)), programs)
    axes.set_xlabel(f"{title} (bar: median, dots: rounds); blue is this project")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
