#!/usr/bin/env python3
"""Measures the short check as a detector: every planted bug, unknown bug and correct style, in every setting.

Writes detector.csv, a row per check, and finally README.md with the tables. A second call continues where the first
one stopped. Everything together takes hours. --models, --optimizers, --replicas and --only select a part; several
processes may write different parts to the same folder.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

from scripts import measure, tables  # noqa: E402

CELL = ["kind", "name", "model", "optimizer", "replicas"]
JUDGED = {
    "caught": "caught, or passed",
    "class_right": "class right",
    "cause_right": "cause right",
    "wrong_cause": "wrong cause",
}
FIELDS = [*CELL, *JUDGED, "training", "reporting", "causes", "right_residual", "next_best", "seconds"]
KINDS = {"bug": "Planted bugs", "unknown": "Bugs of no known cause", "correct": "Correct loops"}


def main() -> None:
    import planted  # TensorFlow itself only starts in the processes of the cells

    parser = measure.parser(__doc__, "reports/detector")
    models, optimizers = list(planted.MODELS), list(planted.OPTIMIZERS)
    parser.add_argument("--models", nargs="*", default=models, help=f"models of tests/corpus (default: {models})")
    parser.add_argument("--optimizers", nargs="*", default=optimizers, help=f"optimizers (default: {optimizers})")
    text = "numbers of replicas (default: %(default)s)"
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2, 4], help=text)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of loops in tests/corpus (default: all)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "detector.csv"
    for model in options.models:
        for optimizer in options.optimizers:
            for replicas in options.replicas:
                measure.call_in_process(run_cell, path, model, optimizer, replicas, options.only)
    (options.out / "README.md").write_text(page(tables.read(path, FIELDS)), encoding="utf-8")
    print(options.out / "README.md")


def loops(model: str, optimizer: str, replicas: int) -> list[tuple[str, Any]]:
    """Returns the kind and the bug (without causes for a correct style) of all loops that apply to a cell."""
    from corpus import planted

    clipped = "clipped" in planted.has(model, optimizer) and replicas > 1
    styles = [style for style in planted.STYLES if not (clipped and style in planted.NOT_IF_CLIPPED)]
    found = [("correct", planted.Bug(style)) for style in styles]
    found += [("bug", bug) for bug in planted.BUGS if planted.shows(bug, model, optimizer, replicas)]
    classes = model != "regression"
    found += [("unknown", planted.Bug(u)) for u in planted.UNKNOWN if classes or u is not planted.LabelSmoothing]
    return found


def run_cell(path: Path, model: str, optimizer: str, replicas: int, only: list[str] | None) -> None:
    """Runs the remaining checks of one model, optimizer and number of replicas."""
    import compare

    compare.configure(replicas=replicas)
    from corpus import planted

    from compare.check import Checker
    from compare.engine import strategies
    from compare.trainers.keras_fit import KerasFit

    done = set(tables.read(path, FIELDS)[CELL].itertuples(index=False, name=None))
    todo = [
        (kind, bug)
        for kind, bug in loops(model, optimizer, replicas)
        if (kind, bug.name, model, optimizer, str(replicas)) not in done and (not only or bug.name in only)
    ]
    if not todo:
        return
    disable_iterator_autotuning()
    began = time.perf_counter()
    strategy = strategies.make("mirrored", replicas)
    checker = Checker(planted.experiment(model, optimizer), KerasFit(), strategy, batch_size=planted.BATCH_SIZE)
    gc.freeze()  # Keras collects garbage whenever a model is built
    for kind, bug in todo:
        row = dict(zip(CELL, (kind, bug.name, model, optimizer, replicas), strict=True))
        row |= judged(checker, kind, bug)
        tables.append(path, row, FIELDS)
        if not good(row):
            print(row, flush=True)
    print(model, optimizer, replicas, f"{len(todo)} in {time.perf_counter() - began:.0f} s", flush=True)


def disable_iterator_autotuning() -> None:
    """Halves the time: deleting an iterator waits for its idle autotuning thread.

    The package disables autotuning for its data sets, but there is no option for the data set that tf.distribute adds
    for each device. No result depends on it.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import multi_device_iterator_ops as ops

    create = ops._create_device_dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    ops._create_device_dataset = lambda *arguments: create(*arguments).with_options(options)


def judged(checker: Any, kind: str, bug: Any) -> dict[str, str]:
    """Runs one check and compares its result with the expected one."""
    try:
        report = checker.check(bug.trainer())
    except Exception as error:
        message = " ".join(str(error).split())[:80]
        return {"caught": "no", "training": "raised", "reporting": type(error).__name__, "causes": message}
    training, reporting = ({f.id for f in findings} for findings in (report.training, report.reporting))
    different = report.verdict == "different"
    wanted = set(bug.training), set(bug.reporting)
    wrong = (training - wanted[0] - set(bug.also)) | (reporting - wanted[1] - set(bug.also))
    row = {
        "caught": yes(different if kind != "correct" else report.verdict in ("identical", "alike")),
        "wrong_cause": yes(bool(wrong)),
        "training": report.comparison.training.verdict,
        "reporting": report.comparison.reporting.verdict,
        "causes": " ".join(f.id for f in report.findings),
        "right_residual": figure(max((fit.right for fit in report.fits if fit.right is not None), default=None)),
        "next_best": figure(min((fit.next_best for fit in report.fits), default=None)),
        "seconds": f"{report.seconds:.1f}",
    }
    if kind == "bug":
        trains = report.comparison.training.verdict == "different"
        row["class_right"] = yes(trains if wanted[0] else not trains and different)
        row["cause_right"] = yes(wanted[0] <= training and wanted[1] <= reporting)
    return row


def good(row: dict[str, str] | pd.Series) -> bool:
    rights = [row.get(field) for field in ("caught", "class_right", "cause_right")]
    return row.get("wrong_cause") == "no" and "no" not in rights


def yes(value: bool) -> str:
    return "yes" if value else "no"


def figure(value: float | None) -> str:
    return "" if value is None or value == float("inf") else f"{value:.3g}"


def page(rows: pd.DataFrame) -> str:
    """All tables as Markdown."""
    models, optimizers, replicas = (", ".join(sorted(rows[field].unique())) for field in CELL[2:])
    kinds = summary(rows, ["kind"]).set_index("kind").reindex(KINDS).rename(index=KINDS).rename_axis("").reset_index()
    by_loop = summary(rows, ["kind", "name"])
    by_loop.insert(0, "loop", by_loop.pop("name") + " (" + by_loop.pop("kind") + ")")
    causes = rows.groupby(["kind", "name"])["causes"].agg(tables.most_common)
    bad = rows[~rows.apply(good, axis=1)]
    lines = [
        "# The short check as a detector",
        "",
        f"{len(rows)} checks, a row each in `detector.csv`, generated by `python scripts/detector.py`: every loop of "
        f"`tests/corpus/planted.py` wherever its bug shows, with the models {models}, the optimizers {optimizers} and "
        f"{replicas} replicas. The loops are code as users write it, and do not depend on how the check recognises a "
        "cause. [styles.md](styles.md) has loops in other styles, on other experiments, by authors who had not seen "
        "the check.",
        "",
        tables.markdown(kinds),
        "",
        "Checks that missed a bug, judged the wrong class, lacked the right cause or named a wrong one:",
        "",
        *([f"- {describe(row)}" for _, row in bad.iterrows()] or ["none."]),
        "",
        "## Where the threshold comes from",
        "",
        "An explanation is accepted if it leaves at most 32 times the noise floor, which is measured for each model "
        "(`ROUNDING` in `compare/check/weight_gaps.py`). The table shows, in units of that floor, the largest residual "
        "that a right explanation left, and the smallest that any other explanation left.",
        "",
        tables.markdown(residuals(rows)),
        "",
        "## By loop",
        "",
        tables.markdown(by_loop.assign(**{"causes named": causes.to_numpy()})),
        *(line for field in CELL[2:] for line in ("", f"## By {field}", "", tables.markdown(summary(rows, [field])))),
        "",
    ]
    return "\n".join(lines)


def summary(rows: pd.DataFrame, fields: list[str]) -> pd.DataFrame:
    """Counts the checks and their judgements, grouped by fields."""
    grouped = rows.groupby(fields)
    counts = grouped[list(JUDGED)].agg(share).rename(columns=JUDGED)
    counts.insert(0, "checks", grouped.size())
    return counts.reset_index()


def share(judgements: pd.Series) -> str:
    known = judgements[judgements != ""]
    return f"{(known == 'yes').sum()} of {len(known)}" if len(known) else ""


def describe(row: pd.Series) -> str:
    causes = row["causes"] or "none"
    return f"{' '.join(row[CELL])}: training {row['training']}, reporting {row['reporting']}, causes {causes}"


def residuals(rows: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of the residuals of right and other explanations, by kind."""
    columns = {
        "right_residual": {"right: median": 0.5, "99%": 0.99, "largest": 1.0},
        "next_best": {"other: smallest": 0.0, "1%": 0.01, "median": 0.5},
    }
    found = []
    for kind, text in KINDS.items():
        line = {"": text}
        for field, quantiles in columns.items():
            values = tables.numbers(rows.loc[rows["kind"] == kind, field])
            for title, q in quantiles.items():
                line[title] = f"{values.quantile(q, interpolation='nearest'):.3g}" if len(values) else ""
        found.append(line)
    return pd.DataFrame(found)


if __name__ == "__main__":
    main()
