"""The matrix of strategies as a table and a picture, from the ``matrix.csv`` that scripts/matrix.py writes."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, and a sign for each, so that neither colour nor grey is needed to tell them apart.
LOOKS = {
    "identical": ("#009E73", "= identical"),
    "alike": ("#56B4E9", "≈ alike"),
    "inconclusive": ("#E69F00", "? inconclusive"),
    "different": ("#D55E00", "≠ different"),
    "not-comparable": ("#6E6E6E", "– not comparable"),
}
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The cells of a ``matrix.csv``, every value as text."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def where(row: Row) -> str:
    """A row's strategy and size, as users write them."""
    return (
        row["strategy"] if row["strategy"] in ("default", "one-device", "tpu") else f"{row['strategy']} × {row['size']}"
    )


def is_off(row: Row, rows: list[Row]) -> bool:
    """Whether the reported numbers are much farther from the truth than rounding takes the default strategy."""
    default = next((each for each in rows if each["strategy"] == "default" and each["keras"] == row["keras"]), row)
    return bool(row["metrics"] and default["metrics"]) and float(row["metrics"]) > 10 * float(default["metrics"])


def markdown(path: Path) -> str:
    """The matrix as a Markdown document."""
    lines = [
        "# Which strategy runs, and do fit and loop train alike?",
        "",
        "Made by `python scripts/matrix.py` on the embedded sample. *weights* and *metrics* are the distance to one",
        "replica in float64: of the weights after the first step that can be seen, relative to how far they had moved",
        "(under a parameter server, after the last epoch), and of any reported number in two epochs. *off*: ten times",
        "farther than the default strategy's numbers, which differ by rounding and what training makes of it.",
        "",
        "| strategy | Keras | fit | loop | fit and loop | weights | metrics |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = read(path)
    for row in rows:
        runs = [_cell(row[side]) for side in ("fit", "loop")]
        far = [f"{float(row[name]):.0e}" if row[name] else "" for name in ("weights", "metrics")]
        far[1] += " **off**" if is_off(row, rows) else ""
        lines.append(f"| {where(row)} | {row['keras']} | {' | '.join(runs)} | {row['verdict']} | {' | '.join(far)} |")
    return "\n".join([*lines, "", "![The matrix as a picture](matrix.png)", ""])


def _cell(error: str) -> str:
    text = error.replace("|", "\\|").replace("<", "&lt;")
    return "runs" if not error else text if len(text) < 90 else text[:90] + " …"


def draw(path: Path) -> Path:
    """Draw the matrix beside its CSV; returns the picture's path."""
    rows = read(path)
    names = list(dict.fromkeys(where(row) for row in rows))
    columns = [(keras, what) for keras in ("3", "2") for what in ("fit", "loop", "verdict")]
    figure = Figure(figsize=(11, 0.9 + 0.42 * len(names)), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.2, 0.02, 0.79, 1 - 0.85 / figure.get_figheight()))
    axes.set(xlim=(0, len(columns)), ylim=(len(names), 0), yticks=[i + 0.5 for i in range(len(names))])
    axes.set_yticklabels(names)
    axes.set_xticks([i + 0.5 for i in range(len(columns))])
    heads = {"fit": "fit", "loop": "loop", "verdict": "fit and loop"}
    axes.set_xticklabels([f"Keras {keras}\n{heads[what]}" for keras, what in columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row in rows:
        for x, (keras, what) in enumerate(columns):
            if row["keras"] != keras:
                continue
            if what == "verdict":
                colour, text = LOOKS[row["verdict"]]
                text += ", and off" if row["verdict"] == "identical" and is_off(row, rows) else ""
            else:
                colour, text = ("#6E6E6E", "✕ cannot run") if row[what] else ("#CFE8DD", "runs")
            y = names.index(where(row))
            axes.add_patch(_box(x, y, colour))
            dark = colour in ("#CFE8DD", "#E69F00", "#56B4E9")
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color="black" if dark else "white")
    picture = path.with_suffix(".png")
    figure.savefig(picture)
    return picture


def _box(x: int, y: int, colour: str) -> Rectangle:
    return Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, facecolor=colour, linewidth=0)
