"""The page of traps: a description and a plot of every cause, from the catalogue and CSV files of scripts/traps.py."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import ChoiceLoader, FileSystemLoader
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator
from PIL import Image

from compare.check.causes import CATALOGUE, data, loss, loss_of_examples, not_finite, optimizer, reporting, step
from compare.check.causes.base import Cause
from compare.records import replace_file
from compare.reporting.html import environment
from compare.reporting.plots import PALE
from scripts import tables

RESULTS, EPOCHS, STEPS, EXAMPLE = "traps.csv", "epochs.csv", "steps.csv", "example.csv"
"""One row per cause; per cause, trainer and epoch; per cause and optimizer step of fit; and for one worked example."""

Data = Mapping[str, pd.DataFrame]

FAMILIES: tuple[tuple[str, tuple[Cause, ...]], ...] = (
    ("Values that are not finite", not_finite.CAUSES),
    ("The loss of each example, and from there to one number", (*loss.CAUSES, *loss_of_examples.CAUSES)),
    ("The step: forward pass and gradients", step.CAUSES),
    ("The optimizer, its schedule and callbacks", optimizer.CAUSES),
    ("Which examples, which weights, and validation", data.CAUSES),
    ("The numbers that are printed", reporting.CAUSES),
)
DARK = "#000000"
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
        """The largest finite weight gap."""
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
    figure = Figure(figsize=(9.8, 3.3), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, width_ratios=[1, 1, 1.15])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
        axes.set_axisbelow(True)
    _draw_metric(panels[0], shown, "loss", "loss")
    unit = {"accuracy": "accuracy (fraction right)", "mae": "mean absolute error"}[shown.metric]
    _draw_metric(panels[1], shown, shown.metric, unit)
    _draw_gaps(panels[2], shown)
    _legend(figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    path = folder / f"{id}.png"
    # A palette of a few colours takes a third of the space and looks the same.
    Image.open(content).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def _layers(trainer: str, validation: bool) -> list[dict[str, Any]]:
    """The line styles of a trainer: fit is a wide pale line, the loop a thin dark one on top; validation is hollow."""
    if trainer == "fit":
        band = {"color": PALE, "linewidth": 8, "solid_capstyle": "round", "zorder": 2.1}
        return [band, *([band | {"color": "white", "linewidth": 5, "zorder": 2.2}] if validation else [])]
    hollow = {"markerfacecolor": "white" if validation else DARK}
    return [{"color": DARK, "linewidth": 1.4, "marker": "o", "markersize": 4.5, "zorder": 3} | hollow]


def _draw_metric(axes: Axes, shown: Shown, metric: str, label: str) -> None:
    finite: list[float] = []
    epochs = range(1, shown.epochs + 1)
    for trainer in ("fit", "loop"):
        for validation in (True, False):
            values = shown.curve(trainer, f"val_{metric}" if validation else metric)
            for layer in _layers(trainer, validation):
                axes.plot(epochs, [v if math.isfinite(v) else math.nan for v in values], clip_on=False, **layer)
            finite += [value for value in values if math.isfinite(value)]
            missing = [epoch for epoch, value in zip(epochs, values, strict=True) if not math.isfinite(value)]
            _cross(axes, missing, "not a number")
    if finite and min(finite) > 0 and max(finite) > 100 * min(finite):
        axes.set_yscale("log")
    axes.set_xlim(0.7, shown.epochs + 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    last = ", ".join(f"{trainer} {shown.last(trainer, f'val_{metric}')}" for trainer in ("fit", "loop"))
    axes.set_title(f"{metric}: in the last validation\n{last}", loc="left", fontsize=9.5)


def _cross(axes: Axes, places: Sequence[float], text: str) -> None:
    """Marks places without a number at the upper edge."""
    if places:
        edge = axes.get_xaxis_transform()
        style: dict[str, Any] = {"markeredgewidth": 1.8, "markersize": 5, "zorder": 5, "transform": edge}
        axes.plot(places, [0.97] * len(places), "x", color="#D55E00", clip_on=False, **style)
        axes.text(places[0], 0.9, text, color="#A04600", fontsize=8.5, transform=edge, va="top")


def _draw_gaps(axes: Axes, shown: Shown) -> None:
    gaps = shown.gaps
    numbers = [gap for gap in gaps if math.isfinite(gap) and gap > 0]
    floor = 10.0 ** math.floor(math.log10(min([*numbers, 1e-8])))
    top = 10.0 ** math.ceil(math.log10(max([*numbers, 1.0])) + 0.3)
    axes.set_yscale("symlog", linthresh=floor, linscale=0.7)
    axes.set_ylim(-floor / 4, top)
    decades = range(round(math.log10(floor)), round(math.log10(top)) + 1)
    axes.yaxis.set_major_locator(FixedLocator([0, *(10.0**d for d in decades[:: math.ceil(len(decades) / 6)])]))
    axes.yaxis.set_major_formatter(lambda y, _: f"$10^{{{round(math.log10(y))}}}$" if y > 0 else "0")
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.axhline(0, color="#777777", linewidth=1)
    per_epoch = int(shown.result["fit_steps"])
    for epoch in range(1, shown.epochs):
        axes.axvline(epoch * per_epoch + 0.5, color="#EEEEEE", linewidth=0.8, zorder=0)
    steps = range(1, len(gaps) + 1)
    axes.plot(steps, [g if math.isfinite(g) else math.nan for g in gaps], color="#B34700", linewidth=2, clip_on=False)
    lacking = [i for i, gap in zip(steps, shown.steps["gap"], strict=True) if not gap]
    _cross(axes, lacking, "no such step")
    _cross(axes, [i for i, gap in zip(steps, gaps, strict=True) if not math.isfinite(gap) and i not in lacking], "NaN")
    axes.set_xlim(0, len(gaps) + 1)
    axes.set_xlabel(f"optimizer step ({per_epoch} an epoch)")
    axes.set_ylabel("|loop \N{MINUS SIGN} fit|, 0: equal")
    equal = f"equal, bit for bit, in all {len(gaps)} steps"
    text = equal if shown.first is None else f"differ {_place(shown)}"
    axes.set_title(f"largest gap of any weight\nweights {text}", loc="left", fontsize=9.5)


def _place(shown: Shown) -> str:
    """The place from which on weights differ, in words."""
    assert shown.first is not None
    epoch, step = shown.first
    if step == 0:
        return "before the first step"
    if step is None or step > int(shown.result["fit_steps"]):  # seen only at the end, or after the last step of fit
        return f"from the end of epoch {epoch} on"
    return f"from step {step} of epoch {epoch} on"


def _legend(figure: Figure) -> None:
    entries = [(trainer, validation) for trainer in ("fit", "loop") for validation in (False, True)]
    # The layers of one entry are drawn on top of each other; Matplotlib's type hints allow single artists only.
    handles: list[Any] = [tuple(Line2D([], [], **layer) for layer in _layers(*entry)) for entry in entries]
    names = {"fit": "fit", "loop": "the loop with this bug"}
    labels = [f"{names[trainer]}, {'validation' if validation else 'training'}" for trainer, validation in entries]
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9, handlelength=2.6)


# The page


def caption(shown: Shown) -> str:
    """The caption of a plot, with the measured numbers."""
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
    """What the template shows of one cause."""
    met = [_met(line) for line in cause.met.splitlines()]
    measured = {"caption": caption(shown), "evidence": shown.result["evidence"], "command": command(shown)}
    return {"cause": cause, "picture": f"{cause.id}.png", "met": met, **measured}


def write_page(folder: Path) -> Path:
    """Writes ``index.html``, the page with the story of every cause, next to its pictures and CSV files."""
    tables_of = read(folder)
    families = [(title, [story(Shown(tables_of, cause.id), cause) for cause in causes]) for title, causes in FAMILIES]
    templates = ChoiceLoader([FileSystemLoader(Path(__file__).parent / "templates"), environment().loader])
    template = environment().overlay(loader=templates).get_template("traps.html")
    path = folder / "index.html"
    (example,) = tables_of[EXAMPLE].astype(float).to_dict("records")
    replace_file(path, template.render(families=families, count=len(CATALOGUE), example=example).encode())
    return path


def _met(line: str) -> tuple[str, str]:
    """Splits "title, address"; the address is empty if there is none."""
    title, _, address = line.rpartition(", ")
    return (title, address) if address.startswith("https://") else (line, "")
