#!/usr/bin/env python3
"""How far correct loops that round differently, and wrong ones, are from fit, in units of its noise twins' gap.

Writes reports/calibration/calibration.csv, a row per loop and cell, as it goes, and reports/calibration/README.md.
The factor in compare/verdict/rounding.py stands on these figures. Rows that are there already are not made again.

    scripts/calibrate.py --gallery --seeds 1 --bugs        # the built-in experiments, with a few examples
    scripts/calibrate.py --models mlp --optimizers adam    # those of tests/planted.py
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path += [str(ROOT / "scripts"), str(ROOT / "tests")]

FIELDS = (
    *("kind", "loop", "model", "optimizer", "replicas", "seed"),
    *("ratio", "epoch", "step", "variable", "twins", "verdict", "check"),
)
EPOCHS, GALLERY_EPOCHS = 4, 2
BATCH_SIZE, GALLERY_BATCH_SIZE = 8, 16
EXAMPLES = 150
"""Of an experiment of the gallery; its last batch is short, and splits evenly over 2 replicas."""
ITS_OWN = "its own"
"""The optimizer of an experiment of the gallery."""

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
    "nmt": "each replica's loss is divided by the number of its own characters that are not padding",
}
"""What makes the same on two replicas another computation, by model or optimizer."""

KINDS = {"correct": "Correct", "bug": "Planted mistakes", "unknown": "Of no known cause"}
HEAD = "| | cells | smallest | median | largest | within the factor |"
NOTES = (
    "No XLA with more than one replica (TensorFlow cannot), with dropout (other masks), or with max pooling: its "
    "gradient has no deterministic implementation there. No sums in reverse with dropout: an example meets another "
    "mask.",
    "",
    "Kinks: where rounding decides on which side of a bend a value comes to lie (a ReLU, the pixel that a maximum is "
    "taken of), a gap opens that is thousands of times larger. Of eight twins of densenet, moved by one unit, none met "
    "the bend that sums in reverse and XLA did (ratios 1,168 and 4,274); with loud ones they are explained.",
    "",
    "Half precision: weights moved by a unit of float32 are the same weights to layers that compute in bfloat16, and "
    "twins equalled fit in the first step (ratio infinite, for every loop that rounds otherwise). Since they lend the "
    "weights a unit of bfloat16 for the time of each step, correct loops are within 22.",
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
        """Whether one replica here can be held against two with half of each batch."""
        names = {self.model, self.optimizer, f"{self.model}, {self.optimizer}"}
        return self.replicas == 1 and not names & OTHER_WITH_REPLICAS.keys()

    @property
    def folder(self) -> str:
        return " ".join(map(str, self))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gallery", action="store_true", help="the built-in experiments")
    parser.add_argument("--models", nargs="*", help="experiments by name")
    parser.add_argument("--optimizers", nargs="*")
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--bugs", action="store_true", help="the planted mistakes too, with the first seed")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "calibration")
    parser.add_argument("--record", type=Path, help="only train fit in every cell, and leave its records there")
    parser.add_argument("--threads", type=int, help="how many, for and in each operation")
    options = parser.parse_args()

    import detector
    import tensorflow as tf

    import compare

    if options.threads:
        tf.config.threading.set_inter_op_parallelism_threads(options.threads)
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    compare.configure(replicas=2)
    detector.iterators_end_at_once()
    cells = chosen(options)
    if options.record:
        for cell in cells:
            recorded(cell, options.record / cell.folder)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "calibration.csv"
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n")
    done = {tuple(row[field] for field in FIELDS[:6]) for row in read(path)}
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
    (options.out / "README.md").write_text(table(read(path)))
    print(options.out / "README.md")


def chosen(options: argparse.Namespace) -> list[Cell]:
    import planted

    from compare.experiments import BUILT_IN

    gallery = [name for name in BUILT_IN if name != "fashion-mnist"]
    return [
        Cell(model, optimizer, replicas, seed)
        for model in options.models or (gallery if options.gallery else planted.MODELS)
        for optimizer in ([ITS_OWN] if options.gallery else options.optimizers or planted.OPTIMIZERS)
        for replicas in options.replicas
        for seed in range(options.seeds)
    ]


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file, restval=""))


def loops(cell: Cell, options: argparse.Namespace) -> list[tuple[str, str, Any]]:
    """(kind, name, trainer); None for fit itself, in another setting."""
    import calibrate_loops

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
    import planted

    from compare.engine.data import sample_source
    from compare.experiments import BUILT_IN

    if not cell.of_gallery:
        return planted.experiment(cell.model, cell.optimizer)
    # By way of sys.modules: in the package, the name of this module is that of a function.
    sys.modules["compare.experiments.fashion_mnist"].locate_fashion_mnist = lambda data_dir: sample_source()
    return BUILT_IN[cell.model](None)


def task_of(cell: Cell, split: int = 1) -> Any:
    """What a cell trains, on ``split`` times its replicas, with as large a global batch."""
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
    """What a run leaves in a folder, read back; of fit by default, and of its twin with ``of_twin``."""
    from compare.engine.noise_twins import TwinRun
    from compare.engine.run import Run
    from compare.records import MetricsFile, Recorder, read_records
    from compare.trainers.keras_fit import KerasFit
    from compare.verdict import rounding

    folder.mkdir()
    name = rounding.twin_name(of_twin["twin"], of_twin["loud"]) if of_twin else "it"
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

                # As for a user: some twins, and some more where these do not explain it but others might.
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
                # What noise hides in the weights, the short check sees in the gradients.
                checker = checker or Checker(task.experiment, KerasFit(), task.strategy, seed=cell.seed)
                row["check"] = checker.check(trainer).comparison.verdict
            with open(path, "a", newline="") as file:
                csv.DictWriter(file, FIELDS, lineterminator="\n").writerow(row)


def table(rows: list[dict[str, str]]) -> str:
    """The figures as Markdown."""
    from compare.verdict.rounding import FACTOR, LOUD, MORE_TWINS, TWINS

    lines = [
        "# Rounding, measured",
        "",
        "The gap between a loop's weights and fit's, in units of the gap that noise twins of fit open from the same "
        f"step on ({TWINS} twins, up to {MORE_TWINS} where these do not explain it, all others of which are loud: "
        f"moved by {LOUD} units, which its gap is divided by; largest ratio of any variable at "
        "any step), written by `scripts/calibrate.py` (the cells are in calibration.csv). "
        f"Up to {FACTOR:g} counts as rounding. Blank: a "
        "difference that no noise could explain (other steps, or other weights to begin with). Zero: equal weights "
        "(mistakes in reporting only, or that hide each other, or that need batches split unevenly). What the short "
        "check finds different is so whatever the ratio: under Adam a loss of another scale hardly moves the weights.",
        "",
        HEAD,
        "|---|---|---|---|---|---|",
    ]
    for kind, text in KINDS.items():
        names = sorted({row["loop"] for row in rows if row["kind"] == kind})
        lines.append(line(f"**{text}, all**", [row for row in rows if row["kind"] == kind], FACTOR))
        lines += [line(name, [r for r in rows if (r["kind"], r["loop"]) == (kind, name)], FACTOR) for name in names]
    gallery = [row for row in rows if row["optimizer"] == ITS_OWN]
    names = sorted({row["model"] for row in gallery})
    lines += ["", "## By experiment", ""]
    lines += [
        f"The built-in ones, each with {EXAMPLES} examples, {GALLERY_EPOCHS} epochs, and {GALLERY_BATCH_SIZE} examples "
        "per replica: correct loops, and mistakes.",
        "",
        HEAD,
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        for kind in ("correct", "bug"):
            of_kind = [row for row in gallery if (row["model"], row["kind"]) == (name, kind)]
            lines.append(line(f"{name}: {KINDS[kind].lower()}", of_kind, FACTOR))
    lines += ["", "Mistakes that noise hides in the weights, and what the short check says:", ""]
    lines += [
        f"- {row['model']}, {row['replicas']} replica(s), {row['loop']}: {float(row['ratio']):.2g}; {row['check']}"
        for row in rows
        if row["check"]
    ] or ["none."]
    lines += ["", "Not held against another number of replicas, where it is another computation:", ""]
    lines += [f"- {name}: {reason}" for name, reason in OTHER_WITH_REPLICAS.items()]
    lines += ["", *NOTES]
    return "\n".join(lines) + "\n"


def line(name: str, rows: list[dict[str, str]], factor: float) -> str:
    ratios = sorted(float(row["ratio"]) for row in rows if row["ratio"])
    if not ratios:
        return f"| {name} | {len(rows)} | | | | |"
    three = ratios[0], ratios[len(ratios) // 2], ratios[-1]
    shown = [f"{value:.2g}" if math.isfinite(value) else "∞" for value in three]
    return f"| {name} | {len(rows)} | {' | '.join(shown)} | {sum(r <= factor for r in ratios)} of {len(ratios)} |"


if __name__ == "__main__":
    main()
