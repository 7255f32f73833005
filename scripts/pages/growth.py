"""The table of what grows with what, on the page of ``scaling.csv``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from scripts.tables import markdown

BATCH_SIZE = 64
"""Of the tutorial's CNN, unless something else is said; over all replicas."""
KINDS = ["plain", "shared"]
"""Of a user's arrays."""
VALUES = 28 * 28
"""uint8 values per image."""
JUDGED_STEPS = 4_000
"""Steps of recorded runs that differ in something else."""
UNITS = {
    "seconds per epoch": ("{:.2f} s", 1),
    "seconds": ("{:.1f} s", 1),
    "CPU seconds": ("{:.1f} s", 1),
    "peak bytes": ("{:,.0f} MiB", 2**20),
    "bytes": ("{:,.0f} KiB", 2**10),
}
"""By figure, the format on the page and what the value is divided by."""


STUDIES = {
    "jobs 1": "`--jobs 1`",
    "jobs 2": "`--jobs 2`",
    "dask 1": "Dask with 1 worker",
    "dask 2": "Dask with 2 workers",
}
"""How studies are trained: by the name in the table of figures, that on the page."""


class Growth(NamedTuple):
    """A row of the first table: a figure, and what it grows with."""

    what: str
    by: str
    group: str
    figure: str
    of: str


GROWTH = [
    Growth("time of an epoch", "images", "examples", "seconds per epoch", "loop"),
    Growth("memory, plain array", "images", "memory", "peak bytes", "plain"),
    Growth("memory, shared array", "images", "memory", "peak bytes", "shared"),
    Growth("time of an epoch, `fit`", "replicas", "replicas", "seconds per epoch", "fit"),
    Growth("time of an epoch, `loop`", "replicas", "replicas", "seconds per epoch", "loop"),
    *(
        Growth(what, by, group, figure, of)
        for by, group in (("steps", "judging"), ("epochs", "epochs"), ("variables", "variables"))
        for what, figure, of in (
            ("CPU time of judging", "CPU seconds", "judging"),
            ("memory of judging", "peak bytes", "judging"),
            ("size of report.html", "bytes", "report.html"),
        )
    ),
    Growth("memory of a training", "epochs", "epochs", "peak bytes", "command"),
    *(Growth(f"time of a study, {name}", "seeds", "seeds", "seconds", of) for of, name in STUDIES.items()),
]

MEASURED = {
    "examples": "**Time of an epoch by images**: seconds of training and validation of the tutorial's CNN with the "
    "built-in loop, on generated images of 28 × 28 pixels; the first epoch, which includes tracing, does not count.",
    "memory": "**Memory by images**: peak resident memory of a process that trains 50 steps on such images. A user's "
    "arrays (plain) are copied once to memory that TensorFlow can use, and are in memory twice for that moment. A "
    "read-only array from `compare.engine.memory.empty` (shared), as the built-in data sets use, is in memory once.",
    "replicas": "**Time of an epoch by replicas**: `--experiment fashion-mnist-sample --sequential --replicas N`, "
    f"6,000 images, global batch size {BATCH_SIZE} for any number of replicas. The replicas are logical devices of one "
    "processor: this shows what replicas cost where they cannot save time.",
    "judging": "**Judging by steps**: what follows training, namely the verdict, the plot and the page of a recorded "
    "run of the tutorial's CNN; two trainers made this many steps each, in 20 epochs, and are identical after each. "
    "CPU time and peak memory are those of a process that does only this, without TensorFlow. Targets for 400,000 "
    "steps: < 10 s and < 500 MiB.",
    "epochs": f"**Judging by epochs**: the same for {JUDGED_STEPS:,} steps in this many epochs, with 8 variables of "
    "10 weights. **Memory of a training**: peak memory of all processes of `--experiment regression --epochs N`.",
    "variables": f"**Judging by variables**: the same for {JUDGED_STEPS:,} steps in 20 epochs, with this many "
    "variables of 10 weights.",
    "seeds": "**Time of a study by seeds**: wall time of the whole command `--experiment regression --epochs 2 --seeds "
    "N` (see below).",
}
"""By group, what the rows of the first table are."""


def exponent(values: pd.Series) -> float:
    """Returns the least-squares slope of log(value) on log(n); NaN for less than two sizes.

    Args:
        values: positive values, indexed by n.
    """
    if values.index.nunique() < 2:
        return float("nan")
    return float(np.polyfit(np.log(values.index.astype(float)), np.log(values.to_numpy(float)), 1)[0])


def growth(by: pd.Series) -> list[str]:
    """The table of exponents, and what was measured."""
    table = []
    for what, n, group, figure, of in GROWTH:
        if (group, figure, of) not in by.index.droplevel("at"):
            continue
        values = by[group, figure, of].sort_index()
        form, unit = UNITS[figure]
        slope = exponent(values)
        table.append(
            {
                "what": what,
                "grows with the number of": n,
                "measured at": " / ".join(f"{count:,}" for count in values.index),
                "values": " / ".join(form.format(value / unit) for value in values),
                "exponent": "–" if np.isnan(slope) else f"{round(slope, 2) + 0.0:.2f}",
            }
        )
    groups = by.index.unique("group")
    lines = [
        "## Growth",
        "",
        "The exponent is the slope of log(value) on log(n) by least squares over the measured sizes of a row: 1 means",
        "proportional, 0 constant. What a program takes at any size, such as its imports, lowers it.",
        "",
        markdown(pd.DataFrame(table)),
        "",
        *(f"- {text}" for group, text in MEASURED.items() if group in groups),
    ]
    if "memory" in groups and len(peaks := by["memory", "peak bytes"].unstack(level="of")[KINDS].sort_index()) > 1:
        plain, shared = (peaks.iloc[-1] - peaks.iloc[0]) / ((peaks.index[-1] - peaks.index[0]) * VALUES)
        lines.append(
            f"- From {peaks.index[0]:,} to {peaks.index[-1]:,} images, memory grows by {plain:.2f} bytes per byte of "
            f"the images (plain) and {shared:.2f} (shared; target: ≤ 1.1)."
        )
    return lines
