"""The table and the picture of ``matrix.csv``, which scripts/matrix.py writes: verdicts by strategy and Keras."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scripts import tables

# Okabe and Ito's palette, with a symbol for each verdict so that the picture can be read without colours.
LOOKS = {
    "identical": ("#009E73", "= identical"),
    "alike": ("#56B4E9", "≈ alike"),
    "inconclusive": ("#E69F00", "? inconclusive"),
    "different": ("#D55E00", "≠ different"),
    "not-comparable": ("#6E6E6E", "– not comparable"),
}
HEADINGS = {"fit": "fit", "loop": "loop", "verdict": "fit and loop"}


def read(path: Path) -> pd.DataFrame:
    """Reads a ``matrix.csv``, and adds the columns "where" (strategy and size) and "off".

    "off" says whether the reported numbers are ten times farther from the float64 run than the default strategy's.
    """
    rows = tables.read(path)
    single = rows["strategy"].isin(["default", "one-device", "tpu"])
    rows["where"] = rows["strategy"].where(single, rows["strategy"] + " × " + rows["size"])
    metrics = pd.to_numeric(rows["metrics"], errors="coerce")
    default = metrics[rows["strategy"] == "default"].groupby(rows["keras"]).first()
    rows["off"] = metrics > 10 * rows["keras"].map(default)
    return rows


def markdown(path: Path) -> str:
    rows = read(path)
    weights, metrics = (
        rows[name].map(lambda text: f"{float(text):.0e}" if text else "") for name in ("weights", "metrics")
    )
    table = {
        "strategy": rows["where"],
        "Keras": rows["keras"],
        "fit": rows["fit"].map(_cell),
        "loop": rows["loop"].map(_cell),
        "fit and loop": rows["verdict"],
        "weights": weights,
        "metrics": metrics.where(~rows["off"], metrics + " **off**"),
    }
    return tables.page("matrix", table=tables.markdown(pd.DataFrame(table)))


def _cell(error: str) -> str:
    text = error.replace("|", "\\|").replace("<", "&lt;")
    return "runs" if not error else text if len(text) < 90 else text[:90] + " …"


def draw(path: Path) -> Path:
    """Draws the matrix next to its CSV file, and returns the path of the picture."""
    rows = read(path)
    names = list(rows["where"].unique())
    columns = [(keras, what) for keras in ("3", "2") for what in HEADINGS]
    figure = Figure(figsize=(11, 0.9 + 0.42 * len(names)), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.2, 0.02, 0.79, 1 - 0.85 / figure.get_figheight()))
    axes.set(xlim=(0, len(columns)), ylim=(len(names), 0), yticks=[i + 0.5 for i in range(len(names))])
    axes.set_yticklabels(names)
    axes.set_xticks([i + 0.5 for i in range(len(columns))])
    axes.set_xticklabels([f"Keras {keras}\n{HEADINGS[what]}" for keras, what in columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row in rows.to_dict("records"):
        for x, (keras, what) in enumerate(columns):
            if row["keras"] != keras:
                continue
            if what == "verdict":
                colour, text = LOOKS[row["verdict"]]
                text += ", and off" if row["verdict"] == "identical" and row["off"] else ""
            else:
                colour, text = ("#6E6E6E", "✕ cannot run") if row[what] else ("#CFE8DD", "runs")
            y = names.index(row["where"])
            axes.add_patch(Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, facecolor=colour, linewidth=0))
            dark = colour in ("#CFE8DD", "#E69F00", "#56B4E9")
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color="black" if dark else "white")
    picture = path.with_suffix(".png")
    figure.savefig(picture)
    return picture
