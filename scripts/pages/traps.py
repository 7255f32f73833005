"""The page of traps: a description and a plot of every cause, from the catalogue and CSV files of scripts/traps.py."""

from __future__ import annotations

import io
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import ChoiceLoader, FileSystemLoader
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from compare.check.causes import CATALOGUE, data, layers, loss, loss_of_examples, not_finite, optimizer, reporting, step
from compare.check.causes.base import Cause
from compare.records.files import replace_file
from compare.reporting import plots
from compare.reporting.charts import Chart, Series
from compare.reporting.html import environment
from compare.reporting.pictures import chart_of_metric
from compare.reporting.weight_pictures import chart_of_steps, span
from scripts import tables

RESULTS, EPOCHS, STEPS, EXAMPLE = "traps.csv", "epochs.csv", "steps.csv", "example.csv"
"""One row per cause; per cause, trainer and epoch; per cause and optimizer step of fit; and for one worked example."""

Data = Mapping[str, pd.DataFrame]

FAMILIES: tuple[tuple[str, tuple[Cause, ...]], ...] = (
    ("Values that are not finite", not_finite.CAUSES),
    ("The loss of each example, and from there to one number", (*loss.CAUSES, *loss_of_examples.CAUSES)),
    ("The step: forward pass and gradients", (*step.CAUSES, *layers.CAUSES)),
    ("The optimizer, its schedule and callbacks", optimizer.CAUSES),
    ("Which examples, which weights, and validation", data.CAUSES),
    ("The numbers that are printed", reporting.CAUSES),
)
TRAINERS = ("fit", "loop")
TEMPLATES = Path(__file__).parent / "templates"
TOLD = tomllib.loads((TEMPLATES / "causes.toml").read_text(encoding="utf-8"))
"""How the check recognises each cause, and where users met it."""
COLOURS = 48


def read(folder: Path) -> Data:
    """Reads all tables, every value as text."""
    return {name: tables.read(folder / name, ["cause"]) for name in (RESULTS, EPOCHS, STEPS, EXAMPLE)}


class Shown:
    """The measurements of one cause; a LookupError if it was not measured."""

    def __init__(self, data: Data, id: str) -> None:
        results, self.rows, self.steps = (data[name][data[name]["cause"] == id] for name in (RESULTS, EPOCHS, STEPS))
        if results.empty:
            raise LookupError(f"{id} was not measured: run python scripts/traps.py --only {id}")
        (self.result,) = results.to_dict("records")
        self.epochs = int(self.result["epochs"])
        self.metric = "accuracy" if "accuracy" in self.rows and self.rows["accuracy"].any() else "mae"
        self.gaps = [float(gap or "nan") for gap in self.steps["gap"]]
        """The largest weight gap after each of fit's steps; NaN if it is unknown or not finite."""

    def curve(self, trainer: str, column: str) -> list[float]:
        """A column of one trainer per epoch; NaN where there is no number."""
        rows = self.rows[self.rows["trainer"] == trainer]
        values = dict(zip(rows["epoch"].astype(int), rows[column], strict=True))
        return [float(values.get(epoch) or "nan") for epoch in range(1, self.epochs + 1)]

    def last(self, trainer: str, column: str) -> str:
        """The value of the last epoch, as text."""
        value = self.curve(trainer, column)[-1]
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.2g}" if math.isfinite(value) else "not a number"

    @property
    def largest(self) -> float:
        return max((gap for gap in self.gaps if math.isfinite(gap)), default=math.nan)

    @property
    def first(self) -> tuple[int, int | None] | None:
        """The epoch and step from which on weights differ; None if they never differ."""
        epoch, step = self.result["first_epoch"], self.result["first_step"]
        return (int(epoch), int(step) if step else None) if epoch else None


# Pictures


def draw(folder: Path, id: str, data: Data) -> Path:
    """Draws the plot of one cause next to the tables, and returns its path."""
    shown = Shown(data, id)
    charts = {}
    for metric in ("loss", shown.metric):
        last = ", ".join(f"{trainer} {shown.last(trainer, f'val_{metric}')}" for trainer in TRAINERS)
        charts[f"{metric}: in the last validation\n{last}"] = _metric_chart(shown, metric)
    equal = f"equal, bit for bit, in all {len(shown.gaps)} steps"
    text = equal if shown.first is None else f"differ {_place(shown)}"
    charts[f"largest gap of any weight\nweights {text}"] = _gap_chart(shown)
    figure = Figure(figsize=(12, 3.1), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    *panels, legend = figure.subplots(1, 4, width_ratios=[1, 1, 1.15, 1.05])
    for axes, (title, chart) in zip(panels, charts.items(), strict=True):
        plots.draw_panel(axes, chart, title)
    crosses = any(series.crosses for chart in charts.values() for series in chart.series)
    plots.draw_legend(legend, {name: i for i, name in enumerate(TRAINERS)}, validation=True, crosses=crosses, more="")
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    path = folder / f"{id}.png"
    # A palette of a few colours takes a third of the space and looks the same.
    Image.open(content).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def _metric_chart(shown: Shown, metric: str) -> Chart:
    columns = [(i, hollow, f"val_{metric}" if hollow else metric) for i in (0, 1) for hollow in (True, False)]
    series = [
        Series(f"{TRAINERS[i]} {column}", i, dict(enumerate(shown.curve(TRAINERS[i], column), 1)), hollow)
        for i, hollow, column in columns
    ]
    return chart_of_metric(metric, series, shown.epochs)


def _gap_chart(shown: Shown) -> Chart:
    per_epoch = int(shown.result["fit_steps"])
    gaps = Series("loop \N{MINUS SIGN} fit", 1, dict(enumerate(shown.gaps, 1)))
    ends = [epoch * per_epoch + 0.5 for epoch in range(1, shown.epochs)]
    name, labels = f"optimizer step ({per_epoch} an epoch)", [(0.0, "equal")]
    chart = chart_of_steps(
        "", "", span(len(gaps.points)), [gaps], x_name=name, labels=labels, lines=ends, markers=False
    )
    return replace(chart, y_name="|loop \N{MINUS SIGN} fit|")


def _place(shown: Shown) -> str:
    assert shown.first is not None
    epoch, step = shown.first
    if step == 0:
        return "before the first step"
    if step is None or step > int(shown.result["fit_steps"]):  # seen only at the end, or after the last step of fit
        return f"from the end of epoch {epoch} on"
    return f"from step {step} of epoch {epoch} on"


# The page


def caption(shown: Shown) -> str:
    result, metric = shown.result, {"accuracy": "accuracy", "mae": "mean absolute error"}[shown.metric]
    value = f"val_{shown.metric}"
    texts = [
        f"After {shown.epochs} epochs, the validation {metric} is {shown.last('fit', value)} with fit and "
        f"{shown.last('loop', value)} with the loop; the validation loss is {shown.last('fit', 'val_loss')} and "
        f"{shown.last('loop', 'val_loss')}."
    ]
    for column in ("loss", "val_loss"):
        epochs = [i for i, value in enumerate(shown.curve("loop", column), 1) if not math.isfinite(value)]
        if epochs:
            texts.append(
                f"The loop's {column} is not a number in {len(epochs)} epochs, the first being epoch {epochs[0]}."
            )
    if result["fit_steps"] != result["loop_steps"]:
        texts.append(f"An epoch has {result['fit_steps']} steps with fit, {result['loop_steps']} with the loop.")
    if shown.first is None:
        texts.append(f"All weights are equal, bit for bit, after each of {len(shown.steps)} steps.")
    else:
        broken = any(gap and not math.isfinite(float(gap)) for gap in shown.steps["gap"])
        texts.append(
            f"Weights differ {_place(shown)}, by up to {shown.largest:.2g}"
            + (" until they become NaN or infinite." if broken else ".")
        )
    return " ".join(texts)


def command(shown: Shown) -> str:
    """The command that repeats the run, with a comment on how to run only the check."""
    result = shown.result
    module, _, task = result["experiment"].rpartition(":")
    loop = f"tests/corpus/planted.py:{result['loop']}"
    experiment = f"tests/corpus/{module}.py:{task}" if module else task
    replicas, batch = int(result["replicas"]), 64
    return (
        f"python scripts/compare.py --experiment {experiment} --trainers fit {loop} --replicas {replicas} \\\n"
        f"    --batch-size {batch // replicas} --train-examples {result['examples']} --epochs {result['epochs']}"
        "    # or add --check, which takes seconds"
    )


def story(shown: Shown, cause: Cause) -> dict[str, Any]:
    met = [_met(line) for line in TOLD[cause.id].get("met", ())]
    measured = {"caption": caption(shown), "evidence": shown.result["evidence"], "command": command(shown)}
    recognised = TOLD[cause.id]["recognised"]
    return {"cause": cause, "picture": f"{cause.id}.png", "recognised": recognised, "met": met, **measured}


def write_page(folder: Path) -> Path:
    """Writes ``index.html``, the page with the story of every cause, next to its pictures and CSV files."""
    tables_of = read(folder)
    families = [(title, [story(Shown(tables_of, cause.id), cause) for cause in causes]) for title, causes in FAMILIES]
    templates = ChoiceLoader([FileSystemLoader(TEMPLATES), environment().loader])
    template = environment().overlay(loader=templates).get_template("traps.html")
    path = folder / "index.html"
    (example,) = tables_of[EXAMPLE].astype(float).to_dict("records")
    replace_file(path, template.render(families=families, count=len(CATALOGUE), example=example).encode())
    return path


def _met(line: str) -> tuple[str, str]:
    """Splits "title, address"; the address is empty if there is none."""
    title, _, address = line.rpartition(", ")
    return (title, address) if address.startswith("https://") else (line, "")
