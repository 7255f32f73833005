"""The page of ``scaling.csv``, which scripts/scaling.py writes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from scripts.measure import spread
from scripts.tables import markdown
from scripts.tables import page as page_of

COLUMNS = ["group", "round", "figure", "of", "at", "value"]
TARGET = 0.02
"""Share of a step that recording may take at most."""
IMAGES, SEEDS, SUITE = (60_000, 600_000), 6, 10
"""The numbers of images, of seeds and of checks in one process for which memory and time are measured."""


def interval(values: pd.Series) -> tuple[float, float]:
    """Returns a 95% confidence interval of the median of independent values; NaN for fewer than six."""
    found = stats.quantile_test(values.to_numpy(float), p=0.5).confidence_interval(0.95)
    return float(found.low), float(found.high)


def page(rows: pd.DataFrame, origin: str) -> str:
    """The measurements, with the columns ``COLUMNS``, as a Markdown document; what was not measured is left out.

    ``origin`` is the sentence on the command and the machine.
    """
    rounds = rows.groupby("group", sort=False)["round"].nunique()
    shares = rows[rows["figure"] == "share"]
    return page_of(
        "scaling",
        origin=origin,
        rounds=", ".join(f"{name} {count}" for name, count in rounds.items()),
        numbers=markdown(pd.DataFrame(numbers(rows), columns=["what", "value", "target"])),
        pairs=0 if shares.empty else f"{shares.groupby(['round', 'of', 'at']).size().median():.0f}",
        table="" if shares.empty else markdown(recording(rows)),
    )


def numbers(rows: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The numbers that were measured, with the range over the rounds, and what they should be at most."""
    by = dict(iter(rows.groupby(["group", "figure", "of", "at"])["value"]))

    def seconds(of: str, at: int = 1) -> str:
        return spread(by["waiting", "seconds", of, at], "{:.1f}") + " s"

    found, groups = [], set(rows["group"])
    if ("recording", "share", "cnn", 64) in by:
        share = by["recording", "share", "cnn", 64].median()
        found.append(("recording, share of a step of the tutorial's CNN", f"{share:.1%}", f"≤ {TARGET:.0%}"))
    if "memory" in groups:
        few, many = (by["memory", "peak bytes", "shared", count].median() for count in IMAGES)
        found.append(("memory per byte of the images, in arrays as the built-in data sets use them",
                      f"{(many - few) / ((IMAGES[1] - IMAGES[0]) * 28 * 28):.2f} bytes", "≤ 1.1"))  # fmt: skip
    if "judging" in groups:
        steps = rows[rows["group"] == "judging"]["at"].max()
        cpu, peak = by["judging", "CPU seconds", "judging", steps], by["judging", "peak bytes", "judging", steps]
        found.append((f"verdict, plot and page of two trainers with {steps:,} equal steps each",
                      f"{spread(cpu, '{:.1f}')} s of CPU time, {spread(peak / 2**20, '{:.0f}')} MiB",
                      "< 10 s, < 500 MiB"))  # fmt: skip
    if "seeds" in groups:
        one, two = (120 * SEEDS / by["seeds", "seconds", f"jobs {jobs}", SEEDS].median() for jobs in (1, 2))
        found.append((f"trainings per minute of a study with {SEEDS} seeds, with `--jobs 2`",
                      f"{two:.0f} ({one:.0f} with `--jobs 1`)", "–"))  # fmt: skip
    if "waiting" in groups:
        found += [
            ("`fit-vs-loop check --experiment fashion-mnist-sample`", seconds("check, cnn"), "≤ 6 s"),
            ("`fit-vs-loop check --experiment regression`", seconds("check, regression"), "≤ 5 s"),
            ("`fit-vs-loop scripts` of two small scripts that train alike", seconds("scripts, alike"), "≤ 8 s"),
            ("the same where one forgets the regularizer", seconds("scripts, different"), "≤ 14 s"),
            (f"{SUITE} small loops by `compare.assert_alike` in one process, half of them wrong",
             seconds("suite", SUITE), "≤ 25 s"),
            ("memory that each further one of them leaves behind",
             spread(by["waiting", "bytes", "suite", SUITE] / 1e6, "{:.1f}") + " MB", "≤ 5 MB"),
        ]  # fmt: skip
    return found


def recording(rows: pd.DataFrame) -> pd.DataFrame:
    """What recording costs, by model and batch size."""
    table = []
    for (model, batch_size), these in rows[rows["group"] == "recording"].groupby(["of", "at"], sort=False):
        shares = these[these["figure"] == "share"]
        seconds, variables, weights = (
            these[these["figure"] == name]["value"].median() for name in ("seconds", "variables", "weights")
        )
        least = these[these["figure"] == "least"]["value"]
        low, high = interval(shares["value"])
        medians = shares.groupby("round")["value"].median()
        table.append(
            {
                "model": "the tutorial's CNN" if model == "cnn" else "Dense layers",
                "batch size": batch_size,
                "variables": f"{variables:.0f}",
                "weights": f"{weights:,.0f}",
                "step, CPU ms": f"{1e3 * seconds:.1f}",
                "recording, share of a step": f"{shares['value'].median():.1%} "
                f"({'too few pairs' if np.isnan(high) else f'{low:.1%} to {high:.1%}'})",
                "rounds": f"{medians.min():.1%} to {medians.max():.1%}",
                f"≤ {TARGET:.0%}": "yes" if high <= TARGET else "**no**" if low > TARGET else "not established",
            }
            | ({} if least.empty else {"reading and hashing alone": f"{least.median():.1%}"})
        )
    return pd.DataFrame(table)
