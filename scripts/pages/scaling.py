"""The page of ``scaling.csv``, which scripts/scaling.py writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from scripts.pages.growth import BATCH_SIZE, MEASURED, STUDIES, growth
from scripts.tables import markdown

COLUMNS = ["group", "round", "figure", "of", "at", "value"]
SIDE = 2048
"""Rows and columns of the matrices whose product shows the machine's limit."""
TARGET = 0.02
"""Share of a step that recording may take at most."""


def interval(values: pd.Series) -> tuple[float, float]:
    """Returns a 95% confidence interval of the median, between two of the values in order; NaN for fewer than six.

    It assumes that the values are independent, and nothing about their distribution.
    """
    found = stats.quantile_test(values.to_numpy(float), p=0.5).confidence_interval(0.95)
    return float(found.low), float(found.high)


def established(low: float, high: float) -> str:
    """Says whether a share is at most ``TARGET``: what the whole interval says."""
    return "yes" if high <= TARGET else "**no**" if low > TARGET else "not established"


def page(rows: pd.DataFrame, origin: str) -> str:
    """The measurements as a Markdown document.

    Args:
        rows: the figures, with the columns ``COLUMNS``; sections without figures are left out.
        origin: the sentence on the command and the machine.
    """
    by = rows.groupby(["group", "figure", "of", "at"])["value"].median()
    rounds = rows.groupby("group", sort=False)["round"].nunique()
    counts = ", ".join(f"{name} {count}" for name, count in rounds.items())
    lines = ["# What grows with what, and what recording costs", "", origin, ""]
    lines += [f"Every measurement is a process of its own. Values are medians over rounds; number of rounds: {counts}."]
    if set(rounds.index) & set(MEASURED):
        lines += ["", *growth(by)]
    for group in (group for group in SECTIONS if group in rounds.index):
        lines += ["", *SECTIONS[group](rows[rows["group"] == group], by[group])]
    return "\n".join([*lines, ""])


def recording(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    table = []
    for (model, batch_size), shares in rows[rows["figure"] == "share"].groupby(["of", "at"], sort=False):
        seconds, variables, weights = (by[name, model, batch_size] for name in ("seconds", "variables", "weights"))
        low, high = interval(shares["value"])
        between = "too few pairs" if np.isnan(high) else f"{low:.1%} to {high:.1%}"
        medians = shares.groupby("round")["value"].median()
        table.append(
            {
                "model": "the tutorial's CNN" if model == "cnn" else "Dense layers",
                "batch size": batch_size,
                "variables": f"{variables:.0f}",
                "weights": f"{weights:,.0f}",
                "step, CPU ms": f"{1e3 * seconds:.1f}",
                "recording, share of a step": f"{shares['value'].median():.1%} ({between})",
                "rounds": f"{medians.min():.1%} to {medians.max():.1%}",
                f"≤ {TARGET:.0%}": established(low, high),
            }
        )
    pairs = rows[rows["figure"] == "share"].groupby(["round", "of", "at"]).size().median()
    return [
        "## What recording costs",
        "",
        "How much more CPU time a training step takes if all weights are fingerprinted and recorded after it, in a",
        f"process that trains blocks of steps with and without this in turn ({pairs:.0f} pairs of blocks per round, in",
        "alternating order). The share is the median over the pairs of all rounds, with a 95% interval between two of",
        "the values in order, which takes the pairs as independent; the next column has the lowest and the highest",
        'median of a round. "yes": the whole interval is at most the target; "no": all of it is above; else the',
        "question is open. The Dense layers are of equal width, without bias if there is one variable. The optimizer",
        "is Adam.",
        "",
        markdown(pd.DataFrame(table)),
    ]


def parts(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    seconds = rows.pivot(index="round", columns="of", values="value")[rows["of"].unique()]
    shares = (seconds.div(seconds["nothing"], axis=0) - 1).median().map("{:.1%}".format)
    table = pd.DataFrame(
        {
            "CPU milliseconds per step": (1e3 * seconds.median()).map("{:.2f}".format),
            "more than nothing": shares.where(seconds.columns != "nothing", "–"),
        }
    )
    return [
        "### Which part of it",
        "",
        "CPU time of a step of the tutorial's CNN, by the work done after it; each row includes the work of the rows",
        "above it. Blocks of steps take turns in one process. Differences of a percent are chance here.",
        "",
        markdown(table.rename_axis("after every step").reset_index()),
    ]


def large(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    rates = by["bytes per second"]
    weights = rates.index.get_level_values("at")[0]
    names = {
        "copied": "copied to another array (`numpy.copyto`)",
        "hashed": "hashed (XXH3)",
        "fingerprinted": "fingerprinted (read, hashed and projected)",
    }
    values = rates.droplevel("at")
    table = pd.DataFrame(
        {
            "the weights are": list(names.values()),
            "GB/s": [f"{values[name] / 1e9:.2f}" for name in names],
            "ms": [f"{4e3 * weights / values[name]:.0f}" for name in names],
        }
    )
    return [
        "## Large models",
        "",
        f"One variable of {weights:,} float32 weights ({4 * weights / 1e6:,.0f} MB): bytes of weights per second of",
        "wall time.",
        "",
        markdown(table),
    ]


def seeds(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    seconds = by["seconds"].unstack(level="of")
    seconds = seconds[[name for name in STUDIES if name in seconds]]
    trainings = pd.Series(2 * seconds.index, seconds.index)
    rates = (60 / seconds).mul(trainings, axis=0).map("{:.0f}".format)
    lines = [
        "## Throughput of studies",
        "",
        "Trainings per minute of wall time of the whole command; two trainers, so two trainings per seed. With Dask, a",
        "scheduler and one or two workers of one thread run on the same machine, and were started before.",
        "",
        markdown(rates.rename(columns=STUDIES).rename_axis("seeds", columns=None).reset_index()),
    ]
    both = [n for n in (1, 2) if {f"jobs {n}", f"dask {n}"} <= set(seconds)]
    for n in both:
        more = seconds[f"dask {n}"] - seconds[f"jobs {n}"]
        added = ", ".join(f"{value:+.1f} s ({value / seconds[f'jobs {n}'][k]:+.0%})" for k, value in more.items())
        sizes = ", ".join(map(str, more.index))
        lines += ["", f"{STUDIES[f'dask {n}']} takes longer than `--jobs {n}`, for {sizes} seeds, by {added}."]
    return lines if both else [*lines, "", "Dask was skipped: it needs the package distributed."]


def commands(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    listed = {
        "help": ("`--help`", 0.3),
        "check of a small model": ("`--check --experiment scripts/benchmarks/small_task.py` (two Dense layers)", 10),
        "check of the CNN": ("`--check --experiment fashion-mnist-sample` (the tutorial's CNN)", 12),
    }
    table = pd.DataFrame(
        {
            "`python scripts/compare.py` with": [text for text, _ in listed.values()],
            "seconds": [f"{by['seconds', what, 0]:.1f}" for what in listed],
            "target": [f"≤ {target}" for _, target in listed.values()],
        }
    )
    return [
        "## Commands that train nothing or little",
        "",
        "Wall time; the targets are for a machine that does nothing else.",
        "",
        markdown(table),
    ]


def start(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    listed = {
        "import": "importing TensorFlow and Keras, alone in a process",
        "first line": "from the start of the command to its first line: TensorFlow is imported, the data are loaded",
        "first step": "the first step, which includes tracing (the slower trainer)",
    }
    table = pd.DataFrame({"what": list(listed.values()), "seconds": [f"{by['seconds', x, 0]:.1f}" for x in listed]})
    return [
        "## From the command to the first step",
        "",
        "Wall time of `--experiment fashion-mnist-sample --epochs 1`, whose trainers start at the same time in two",
        "processes. Each of them imports TensorFlow and loads the data.",
        "",
        markdown(table),
    ]


def limit(rows: pd.DataFrame, by: pd.Series) -> list[str]:
    rate = by["operations per second", "matrix product", SIDE]
    epoch = step_operations() * 60_000 / BATCH_SIZE
    return [
        "## The machine's limit",
        "",
        f"A product of {SIDE} × {SIDE} matrices in float32 runs at {rate / 1e9:.0f} GFLOP/s here. A training step of",
        f"the tutorial's CNN with {BATCH_SIZE} images takes {step_operations() / 1e9:.3f} GFLOP, an epoch of 60,000 "
        f"images {epoch / 1e12:.2f} TFLOP: at least {epoch / rate:.1f} s.",
    ]


def step_operations() -> float:
    """Floating-point operations of a training step of the tutorial's CNN: the forward pass, and twice that backward.

    Counts multiplications and additions of convolutions and dense layers. The first layer needs no gradient with
    respect to its input.
    """
    layers = [26 * 26 * 32 * 9 * 1, 11 * 11 * 64 * 9 * 32, 1600 * 64, 64 * 10]
    return 2.0 * BATCH_SIZE * (3 * sum(layers) - layers[0])


Section = Callable[[pd.DataFrame, pd.Series], list[str]]
SECTIONS: dict[str, Section] = {
    "recording": recording,
    "parts": parts,
    "large": large,
    "seeds": seeds,
    "commands": commands,
    "start": start,
    "limit": limit,
}
"""By group, the lines of its section, from its rows and their medians by figure, of and at."""
GROUPS = list(dict.fromkeys([*SECTIONS, *MEASURED]))
"""Everything that is measured."""
