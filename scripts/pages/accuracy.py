"""The pages of scripts/accuracy.py, from its CSV files: right and wrong verdicts, rounding, and waiting times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from scripts import tables
from scripts.measure import spread

CELL = ["kind", "name", "model", "optimizer", "replicas"]
JUDGED = {
    "caught": "caught, or passed",
    "class_right": "class right",
    "cause_right": "cause right",
    "wrong_cause": "wrong cause",
}
DETECTOR = [*CELL, *JUDGED, "training", "reporting", "causes", "seconds"]
STYLE = ["style", "experiment", "replicas", "fault"]
STYLES = [*STYLE, "kind", "verdict", "causes", "allowed", "seconds", "date"]
LOOP = ["kind", "loop", "model", "optimizer", "replicas", "seed"]
CALIBRATION = [*LOOP, "ratio", "epoch", "step", "variable", "twins", "verdict", "check"]
"""The columns of the CSV files."""
KINDS = {"bug": "Planted bugs", "unknown": "Bugs of no known cause", "correct": "Correct loops"}
RIGHT = ["identical", "alike"]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def share(holds: pd.Series) -> str:
    return f"{holds.sum()} of {len(holds)}"


# The short check as a detector.


def detector(rows: pd.DataFrame) -> str:
    models, optimizers, replicas = (", ".join(sorted(rows[field].unique())) for field in CELL[2:])
    kinds = judgements(rows, ["kind"]).sort_values("kind", key=lambda kinds: kinds.map(list(KINDS).index))
    kinds = kinds.replace({"kind": KINDS}).rename(columns={"kind": ""})
    by_loop = judgements(rows, ["kind", "name"])
    by_loop.insert(0, "loop", by_loop.pop("name") + " (" + by_loop.pop("kind") + ")")
    causes = rows.groupby(["kind", "name"])["causes"].agg(tables.most_common)
    good = (rows["wrong_cause"] == "no") & ~(rows[["caught", "class_right", "cause_right"]] == "no").any(axis=1)
    bad = [
        f"{' '.join(row[CELL])}: training {row['training']}, reporting {row['reporting']}, "
        f"causes {row['causes'] or 'none'}"
        for _, row in rows[~good].iterrows()
    ]
    return tables.page(
        "detector",
        checks=len(rows),
        models=models,
        optimizers=optimizers,
        replicas=replicas,
        kinds=tables.markdown(kinds),
        bad=tables.listed(bad),
        by_loop=tables.markdown(by_loop.assign(**{"causes named": causes.to_numpy()})),
        by={field: tables.markdown(judgements(rows, [field])) for field in CELL[2:]},
    )


def judgements(rows: pd.DataFrame, fields: list[str]) -> pd.DataFrame:
    """Counts the checks and their judgements, grouped by fields."""
    grouped = rows.groupby(fields)
    counts = grouped[list(JUDGED)].agg(lambda each: share(each[each != ""] == "yes") if (each != "").any() else "")
    counts = counts.rename(columns=JUDGED)
    counts.insert(0, "checks", grouped.size())
    return counts.reset_index()


# Loops in any style.


def styles(rows: pd.DataFrame) -> str:
    named, allowed = (rows[column].str.split().map(set) for column in ("causes", "allowed"))
    correct = rows["kind"] == "correct"
    rows = rows.assign(
        caught=rows["verdict"].isin(RIGHT).where(correct, rows["verdict"] == "different"),
        wrong=[bool(a - b) for a, b in zip(named, allowed, strict=True)],
        right=[bool(a & b) for a, b in zip(named, allowed, strict=True)],
    )
    rows["good"] = rows["caught"] & ~rows["wrong"]
    correct, faulty = rows[correct], rows[~correct]
    nameable = faulty[faulty["allowed"] != ""]
    shares = [
        ("Correct loops", len(correct), "called identical or alike", share(correct["good"])),
        ("Faulty loops", len(faulty), "called different", share(faulty["caught"])),
        ("Faulty loops whose cause has a name", len(nameable), "named", share(nameable["right"])),
        ("All", len(rows), "with a wrong cause", share(rows["wrong"])),
    ]
    bad = [
        f"{row['style']}, {row['experiment']}, {row['replicas']} replica(s), {row['fault'] or 'correct'}: "
        f"{row['verdict']}, causes {row['causes'] or 'none'}"
        for _, row in rows[~rows["good"]].iterrows()
    ]
    by_fault = faulty.groupby("fault")
    faults = {
        "checks": by_fault.size(),
        "different": by_fault["caught"].agg(share),
        "causes named": by_fault["causes"].agg(tables.most_common),
        "causes allowed": by_fault["allowed"].first().replace("", "none"),
    }
    correct_by = {}
    for field in ("style", "experiment"):
        counts = pd.crosstab(correct[field], correct["verdict"]).reindex(columns=RIGHT, fill_value=0)
        counts.insert(0, "checks", correct.groupby(field).size())
        correct_by[field] = tables.markdown(counts.reset_index())
    return tables.page(
        "styles",
        rows=rows,
        dates=" to ".join(sorted({rows["date"].min(), rows["date"].max()})),
        shares=tables.markdown(pd.DataFrame(shares, columns=["", "checks", "result", "share"])),
        seconds=tables.numbers(rows["seconds"]),
        bad=tables.listed(bad),
        correct_by=correct_by,
        faults=tables.markdown(pd.DataFrame(faults).reset_index()),
    )


# Rounding, measured.

EXAMPLES, GALLERY_EPOCHS, GALLERY_BATCH_SIZE = 150, 2, 16
"""Of a built-in experiment. The last batch is short and splits evenly over 2 replicas."""
ITS_OWN = "its own"
"""Stands for the optimizer of a built-in experiment."""
THREADS, REPLICAS = "another thread count", "another replica count"
OTHER_WITH_REPLICAS = {
    "batchnorm": "batch normalization",
    "densenet": "batch normalization",
    "mlp-l2-bn": "batch normalization",
    "dropout": "dropout",
    "mlp-dropout": "dropout",
    "transformer": "dropout and clipping",
    "ncf": "clipping",
    "clipped": "clipping",
    "nmt": "each replica divides its loss by the number of its own characters that are not padding",
}
"""By model or optimizer, why the computation differs on two replicas."""


def calibration(rows: pd.DataFrame) -> str:
    from compare.verdict import rounding

    kinds, by_loop = {"correct": "Correct", **{kind: KINDS[kind] for kind in ("bug", "unknown")}}, []
    for kind, text in kinds.items():
        of_kind = rows[rows["kind"] == kind]
        by_loop.append(ratios(f"**{text}, all**", of_kind, rounding.FACTOR))
        by_loop += [ratios(name, these, rounding.FACTOR) for name, these in of_kind.groupby("loop")]
    by_experiment = [
        ratios(f"{name}: {kinds[kind].lower()}", these[these["kind"] == kind], rounding.FACTOR)
        for name, these in rows[rows["optimizer"] == ITS_OWN].groupby("model")
        for kind in ("correct", "bug")
    ]
    hidden = [
        f"{row['model']}, {row['replicas']} replica(s), {row['loop']}: {float(row['ratio']):.2g}; {row['check']}"
        for _, row in rows[rows["check"] != ""].iterrows()
    ]
    return tables.page(
        "calibration",
        rounding=rounding,
        by_loop=tables.markdown(pd.DataFrame(by_loop)),
        by_experiment=tables.markdown(pd.DataFrame(by_experiment)) if by_experiment else "None was measured.",
        examples=EXAMPLES,
        epochs=GALLERY_EPOCHS,
        batch_size=GALLERY_BATCH_SIZE,
        hidden=tables.listed(hidden),
        others=tables.listed([f"{name}: {reason}" for name, reason in OTHER_WITH_REPLICAS.items()]),
    )


def ratios(name: str, rows: pd.DataFrame, factor: float) -> dict[str, Any]:
    """Smallest, median and largest ratio of some rows, and how many are within the factor."""
    ratios = tables.numbers(rows["ratio"]).sort_values(ignore_index=True)
    line = {"": name, "cells": len(rows), "smallest": "", "median": "", "largest": "", "within the factor": ""}
    if len(ratios):
        three = {"smallest": ratios.iloc[0], "median": ratios[len(ratios) // 2], "largest": ratios.iloc[-1]}
        line |= {title: f"{value:.2g}" if math.isfinite(value) else "∞" for title, value in three.items()}
        line["within the factor"] = share(ratios <= factor)
    return line


# Waiting.

STEPS = 94
"""Steps per epoch: 6,000 images in batches of 64."""
LEFT_OUT = 2
"""The epochs at the beginning that are not measured, for tracing and for the first hundred steps."""
TARGET = 60
"""Seconds to the cause."""


def watching(rows: pd.DataFrame, origin: str) -> str:
    by = rows.pivot(index=["script", "round"], columns="watched", values="milliseconds")
    more = by["watched"] / by["unwatched"] - 1
    table = [
        {
            "script": name,
            "unwatched": spread(by.loc[name, "unwatched"], "{:.2f}"),
            "watched": spread(by.loc[name, "watched"], "{:.2f}"),
            "more": spread(more[name], "{:+.1%}"),
        }
        for name in rows["script"].unique()
    ]
    page = {"origin": origin, "left_out": LEFT_OUT * STEPS, "rounds": rows["round"].nunique()}
    return tables.page("watching", table=tables.markdown(pd.DataFrame(table)), **page)


def time_to_cause(rows: pd.DataFrame, origin: str) -> str:
    waits = {
        "from the start to the line that the weights differ": rows["difference"],
        f"from there to the cause; target: ≤ {TARGET}": rows["cause"] - rows["difference"],
    }
    table = [{"wall seconds": what, "median (range)": spread(x, "{:.1f}")} for what, x in waits.items()]
    return tables.page("time-to-cause", origin=origin, rounds=len(rows), table=tables.markdown(pd.DataFrame(table)))
