#!/usr/bin/env python3
"""Measures how far correct and faulty loops are from fit, in units of the gap between fit and its noise twins.

Writes calibration.csv, a row per loop and cell, and finally README.md with the tables. A second call continues where
the first one stopped. The factor in compare/verdict/rounding.py is based on these figures.

    scripts/calibrate.py --gallery --seeds 1 --bugs        # the built-in experiments, with a few examples
    scripts/calibrate.py --models mlp --optimizers adam    # those of tests/corpus/planted.py
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

from scripts import measure, tables  # noqa: E402

KEY = ["kind", "loop", "model", "optimizer", "replicas", "seed"]
FIELDS = [*KEY, "ratio", "epoch", "step", "variable", "twins", "verdict", "check"]
EPOCHS, GALLERY_EPOCHS = 4, 2
BATCH_SIZE, GALLERY_BATCH_SIZE = 8, 16
EXAMPLES = 150
"""Training examples of a built-in experiment. The last batch is short and splits evenly over 2 replicas."""
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

KINDS = {"correct": "Correct", "bug": "Planted bugs", "unknown": "Bugs of no known cause"}
NOTES = (
    "XLA is left out with more than one replica (TensorFlow does not support it), with dropout (the masks differ) and "
    "with max pooling (its gradient has no deterministic implementation). Reversed sums are left out with dropout, "
    "because the masks apply to other examples.",
    "",
    "Kinks: where rounding decides on which side of a bend a value lies (a ReLU, or the pixel that is the maximum), a "
    "gap opens that is thousands of times larger. Of eight twins of densenet moved by one unit, none hit the kink that "
    "reversed sums and XLA hit (ratios 1,168 and 4,274); loud twins explain them.",
    "",
    "Half precision: layers that compute in bfloat16 do not see a change by one unit of float32, so twins equalled fit "
    "in the first step (an infinite ratio for every loop that rounds differently). Since the twins change weights by a "
    "unit of bfloat16 during each step, correct loops are within 22.",
)


class Cell(NamedTuple):
    model: str
    optimizer: str
    replicas: int
    seed: int

    @property
    def of_gallery(self) -> bool:
        return self.optimizer == ITS_OWN

    @property
    def same_on_two(self) -> bool:
        """Whether the cell computes the same on two replicas with half of each batch."""
        names = {self.model, self.optimizer, f"{self.model}, {self.optimizer}"}
        return self.replicas == 1 and not names & OTHER_WITH_REPLICAS.keys()

    @property
    def folder(self) -> str:
        return " ".join(map(str, self))


def main() -> None:
    parser = measure.parser(__doc__, "reports/calibration")
    parser.add_argument("--gallery", action="store_true", help="the built-in experiments with their own optimizers")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="experiments (default: all)")
    parser.add_argument("--optimizers", nargs="*", metavar="NAME", help="of tests/corpus (default: all)")
    text = "numbers of replicas (default: %(default)s)"
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2], help=text)
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (default: %(default)s)")
    parser.add_argument("--bugs", action="store_true", help="include the planted bugs, with the first seed")
    text = "only train fit in every cell and write its records here"
    parser.add_argument("--record", type=Path, metavar="FOLDER", help=text)
    text = "threads for and within operations (default: TensorFlow's choice)"
    parser.add_argument("--threads", type=int, metavar="N", help=text)
    options = parser.parse_args()

    import tensorflow as tf

    import compare
    from scripts.detector import disable_iterator_autotuning

    if options.threads:
        tf.config.threading.set_inter_op_parallelism_threads(options.threads)
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    compare.configure(replicas=2)
    disable_iterator_autotuning()
    cells = chosen(options)
    if options.record:
        for cell in cells:
            recorded(cell, options.record / cell.folder)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "calibration.csv"
    done = set(tables.read(path, FIELDS)[KEY].itertuples(index=False, name=None))
    todo = {cell: [loop for loop in loops(cell, options) if (*loop[:2], *map(str, cell)) not in done] for cell in cells}
    with tempfile.TemporaryDirectory() as elsewhere:
        if any(name == THREADS for of_cell in todo.values() for _, name, _ in of_cell):
            command = [sys.executable, __file__, *sys.argv[1:], "--record", elsewhere, "--threads", "1"]
            subprocess.run(command, check=True)
        for cell, of_cell in todo.items():
            if of_cell:
                began = time.perf_counter()
                run_cell(path, of_cell, cell, Path(elsewhere))
                print(*cell, f"{len(of_cell)} loops in {time.perf_counter() - began:.0f} s", flush=True)
    (options.out / "README.md").write_text(page(tables.read(path, FIELDS)), encoding="utf-8")
    print(options.out / "README.md")


def chosen(options: argparse.Namespace) -> list[Cell]:
    from corpus import planted

    from compare.experiments import BUILT_IN

    gallery = [name for name in BUILT_IN if name != "fashion-mnist"]
    return [
        Cell(model, optimizer, replicas, seed)
        for model in options.models or (gallery if options.gallery else planted.MODELS)
        for optimizer in ([ITS_OWN] if options.gallery else options.optimizers or planted.OPTIMIZERS)
        for replicas in options.replicas
        for seed in range(options.seeds)
    ]


def loops(cell: Cell, options: argparse.Namespace) -> list[tuple[str, str, Any]]:
    """Returns kind, name and trainer of the loops of a cell; the trainer is None for fit in another setting."""
    from scripts import calibrate_loops

    found = list(calibrate_loops.correct(cell.model, cell.replicas))
    found.append(("correct", THREADS, None))
    if cell.same_on_two:
        found.append(("correct", REPLICAS, None))
    if options.bugs and cell.seed == 0:
        if cell.of_gallery:
            found += calibrate_loops.wrong_in_gallery(cell.model, cell.replicas)
        else:
            found += calibrate_loops.wrong(cell.model, cell.optimizer, cell.replicas)
    return found


def experiment_of(cell: Cell) -> Any:
    from corpus import planted

    from compare.engine.data import sample_source
    from compare.experiments import BUILT_IN

    if not cell.of_gallery:
        return planted.experiment(cell.model, cell.optimizer)
    # Through sys.modules, because the package has a function of the same name as this module.
    sys.modules["compare.experiments.fashion_mnist"].locate_fashion_mnist = lambda data_dir: sample_source()
    return BUILT_IN[cell.model](None)


def task_of(cell: Cell, split: int = 1) -> Any:
    """Returns the task of a cell, on ``split`` times as many replicas with the same global batch size."""
    from compare.engine import input_pipeline, strategies
    from compare.engine.run import TrainingTask

    experiment = experiment_of(cell)
    strategy = strategies.make("mirrored", cell.replicas * split)
    size = GALLERY_BATCH_SIZE if cell.of_gallery else BATCH_SIZE
    parts = input_pipeline.load(experiment)
    if cell.of_gallery:
        parts = tuple(part.first(min(EXAMPLES, part.count)) for part in parts)
    return TrainingTask(experiment, *parts, strategy, size * cell.replicas)


def recorded(cell: Cell, folder: Path, trainer: Any = None, task: Any = None, **of_twin: Any) -> Any:
    """Trains fit, a twin of fit (given ``of_twin``) or another trainer, and returns the record."""
    from compare.engine.noise_twins import TwinRun
    from compare.engine.run import Run
    from compare.records import MetricsFile, Recorder, read_records
    from compare.trainers.keras_fit import KerasFit
    from compare.verdict import rounding

    folder.mkdir()
    name = rounding.twin_name(of_twin["twin"], of_twin["loud"]) if of_twin else "trainer"
    sinks = [Recorder(folder, MetricsFile(folder / "metrics.csv"), name, cell.seed)]
    epochs = range(1, 1 + (GALLERY_EPOCHS if cell.of_gallery else EPOCHS))
    run = (TwinRun if of_twin else Run)(task or task_of(cell), seed=cell.seed, epochs=epochs, sinks=sinks, **of_twin)
    (trainer or KerasFit()).train(run)
    return read_records(folder)[0]


def run_cell(path: Path, todo: list[tuple[str, str, Any]], cell: Cell, elsewhere: Path) -> None:
    from compare.check import Checker
    from compare.records import read_records
    from compare.trainers.keras_fit import KerasFit
    from compare.verdict import DIFFERENT, compare_records, noise_start, rounding, with_noise
    from compare.verdict.rounding import TWINS, enough

    task, checker = task_of(cell), None
    twins: dict[tuple[int, int], list[Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = (Path(temporary) / str(i) for i in range(1000))
        reference = recorded(cell, next(folders), task=task)
        for kind, name, trainer in todo:
            row = {"kind": kind, "loop": name, **cell._asdict()}
            try:
                if name == THREADS:
                    (candidate,) = read_records(elsewhere / cell.folder)
                elif name == REPLICAS:
                    candidate = recorded(cell, next(folders), task=task_of(cell, 2))
                else:
                    candidate = recorded(cell, next(folders), trainer, task)
            except Exception as error:
                print(name, *cell, "raised", type(error).__name__, str(error)[:100].replace("\n", " "), flush=True)
                continue
            comparison = compare_records(reference, candidate)
            start = noise_start(reference, candidate, comparison.training)
            if start is not None:
                these = twins.setdefault(start, [])

                # As in a real comparison: train more twins while these do not explain the gap but others might.
                while True:
                    if these:
                        found = rounding.measure(reference, candidate, these, start)
                        if enough(found, len(these)):
                            break
                    number = len(these) + 1
                    noisy = {"start": start, "twin": number, "loud": number > TWINS}
                    these.append(recorded(cell, next(folders), task=task, **noisy))
                assert found.reproduced
                row |= {"ratio": f"{found.ratio:.4g}", "variable": found.variable, "twins": found.twins}
                row |= dict(zip(("epoch", "step"), found.at, strict=True))
                comparison = with_noise(comparison, reference, candidate, these)
            elif comparison.training.verdict != DIFFERENT:
                row |= {"ratio": "0"}
            row["verdict"] = comparison.training.verdict
            if kind != "correct" and row["verdict"] != DIFFERENT:
                # The short check sees in the gradients what noise hides in the weights.
                checker = checker or Checker(task.experiment, KerasFit(), task.strategy, seed=cell.seed)
                row["check"] = checker.check(trainer).comparison.verdict
            tables.append(path, row, FIELDS)


def page(rows: pd.DataFrame) -> str:
    """All tables as Markdown."""
    from compare.verdict.rounding import FACTOR, LOUD, MORE_TWINS, TWINS

    by_loop = []
    for kind, text in KINDS.items():
        of_kind = rows[rows["kind"] == kind]
        by_loop.append(summary(f"**{text}, all**", of_kind, FACTOR))
        by_loop += [summary(name, these, FACTOR) for name, these in of_kind.groupby("loop")]
    gallery = rows[rows["optimizer"] == ITS_OWN]
    by_experiment = [
        summary(f"{name}: {KINDS[kind].lower()}", these[these["kind"] == kind], FACTOR)
        for name, these in gallery.groupby("model")
        for kind in ("correct", "bug")
    ]
    lines = [
        "# Rounding, measured",
        "",
        "The gap between a loop's weights and fit's, in units of the gap that noise twins of fit open from the same "
        f"step on: the largest ratio of any variable at any step. There are {TWINS} twins, and up to {MORE_TWINS} if "
        f"these do not explain the gap; the additional ones are loud: they are moved by {LOUD} units, and their gap is "
        f"divided by {LOUD}. `python scripts/calibrate.py` generated this page; calibration.csv has the cells.",
        "",
        f"A ratio of up to {FACTOR:g} counts as rounding. It is blank for a difference that noise cannot explain "
        "(other steps or other initial weights). It is 0 for equal weights (bugs in reporting only, bugs that cancel, "
        "bugs that need unevenly split batches). What the short check finds different is different, whatever the "
        "ratio: with Adam, a wrongly scaled loss hardly changes the weights.",
        "",
        tables.markdown(pd.DataFrame(by_loop)),
        "",
        "## By experiment",
        "",
        f"The built-in experiments, with {EXAMPLES} examples, {GALLERY_EPOCHS} epochs and {GALLERY_BATCH_SIZE} "
        "examples per replica: correct loops and planted bugs.",
        "",
        tables.markdown(pd.DataFrame(by_experiment)),
        "",
        "Bugs that noise hides in the weights, and the short check's verdict:",
        "",
        *([f"- {hidden(row)}" for _, row in rows[rows["check"] != ""].iterrows()] or ["none."]),
        "",
        "Not compared with another number of replicas, where the computation differs:",
        "",
        *(f"- {name}: {reason}" for name, reason in OTHER_WITH_REPLICAS.items()),
        "",
        *NOTES,
        "",
    ]
    return "\n".join(lines)


def hidden(row: pd.Series) -> str:
    cell = f"{row['model']}, {row['replicas']} replica(s), {row['loop']}"
    return f"{cell}: {float(row['ratio']):.2g}; {row['check']}"


def summary(name: str, rows: pd.DataFrame, factor: float) -> dict[str, Any]:
    """Smallest, median and largest ratio of some rows, and how many are within the factor."""
    ratios = tables.numbers(rows["ratio"]).sort_values(ignore_index=True)
    line = {"": name, "cells": len(rows), "smallest": "", "median": "", "largest": "", "within the factor": ""}
    if len(ratios):
        three = {"smallest": ratios.iloc[0], "median": ratios[len(ratios) // 2], "largest": ratios.iloc[-1]}
        line |= {title: f"{value:.2g}" if math.isfinite(value) else "∞" for title, value in three.items()}
        line["within the factor"] = f"{(ratios <= factor).sum()} of {len(ratios)}"
    return line


if __name__ == "__main__":
    main()
