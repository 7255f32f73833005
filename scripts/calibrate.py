#!/usr/bin/env python3
"""How far correct loops that round differently, and wrong ones, are from fit, in units of its noise twins' gap.

Writes reports/calibration/calibration.csv, a row per loop and cell, as it goes, and reports/calibration/README.md.
The factor in compare/noise.py stands on these figures. Rows that are there already are not made again.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

FIELDS = ("kind", "loop", "model", "optimizer", "replicas", "seed", "ratio", "epoch", "step", "variable")
EPOCHS = 4
BATCH_SIZE = 8
TWINS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--optimizers", nargs="*")
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--bugs", action="store_true", help="the planted mistakes too, with the first seed")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "calibration")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "calibration.csv"

    import compare

    compare.configure(replicas=max(options.replicas))
    import planted

    done = {tuple(row[field] for field in FIELDS[:6]) for row in read(path)}
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n")
    for model in options.models or planted.MODELS:
        for optimizer in options.optimizers or planted.OPTIMIZERS:
            for replicas in options.replicas:
                for seed in range(options.seeds):
                    began = time.perf_counter()
                    loops = list(correct(model, optimizer, replicas))
                    if options.bugs and seed == 0:
                        loops += wrong(model, optimizer, replicas)
                    cell = (model, optimizer, str(replicas), str(seed))
                    todo = [(kind, name, make) for kind, name, make in loops if (kind, name, *cell) not in done]
                    if todo:
                        run_cell(path, todo, cell)
                        print(*cell, f"{len(todo)} loops in {time.perf_counter() - began:.0f} s", flush=True)
    (options.out / "README.md").write_text(table(read(path)))
    print(options.out / "README.md")


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def correct(model: str, optimizer: str, replicas: int):
    """(kind, name, trainer) of loops that compute the same in another order of rounding."""
    import planted
    import tensorflow as tf

    class Backwards(planted.Loop):
        """Each replica's examples in reverse: sums are taken in another order."""

        def replica_step(self, batch):
            return super().replica_step(tf.nest.map_structure(lambda tensor: tf.reverse(tensor, [0]), batch))

    class Compiled(planted.Loop):
        """XLA, which TensorFlow supports on one replica only."""

        def distributed_step(self, batch):
            if getattr(self, "_compiled_model", None) is not self.model:
                self._compiled_model = self.model
                self._compiled = tf.function(self.replica_step, jit_compile=True)
            return self._compiled(batch)

    yield "correct", "eager", planted.Eager()
    if "dropout" not in model:  # masks would meet other examples
        yield "correct", "reversed sums", Backwards()
    if replicas == 1 and "dropout" not in model:
        yield "correct", "XLA", Compiled()


def wrong(model: str, optimizer: str, replicas: int):
    import planted

    for bug in planted.BUGS:
        if bug.training and planted.shows(bug, model, optimizer, replicas):
            yield "bug", bug.name, bug.trainer()
    for unknown in planted.UNKNOWN:
        if model != "regression" or unknown is not planted.LabelSmoothing:
            yield "unknown", unknown.__name__, planted.Bug(unknown).trainer()


def run_cell(path: Path, loops, cell: tuple[str, str, str, str]) -> None:
    import planted

    from compare import noise, pipeline, strategies
    from compare.runs import Run, Task
    from compare.trainers.keras_fit import KerasFit
    from compare.twins import TwinRun
    from compare.verdict import compare_records, noise_start

    model, optimizer, replicas, seed = cell[0], cell[1], int(cell[2]), int(cell[3])
    strategy = strategies.make("mirrored", replicas)
    experiment = planted.experiment(model, optimizer)
    task = Task(experiment, *pipeline.load(experiment), strategy, BATCH_SIZE * replicas)
    epochs = range(1, EPOCHS + 1)
    reference = recorded(KerasFit(), lambda sinks: Run(task, seed=seed, epochs=epochs, sinks=sinks))
    twins: dict[tuple[int, int], list] = {}
    for kind, name, trainer in loops:
        row = {"kind": kind, "loop": name, "model": model, "optimizer": optimizer, "replicas": replicas, "seed": seed}
        try:
            candidate = recorded(trainer, lambda sinks: Run(task, seed=seed, epochs=epochs, sinks=sinks))
        except Exception as error:
            print(name, *cell, "raised", type(error).__name__, str(error)[:100].replace("\n", " "))
            continue
        training = compare_records(reference, candidate).training
        start = noise_start(reference, candidate, training)
        if start is not None:
            if start not in twins:
                twins[start] = [
                    recorded(
                        KerasFit(),
                        lambda sinks, twin=twin, start=start: TwinRun(
                            task, seed=seed, epochs=epochs, start=start, twin=twin, sinks=sinks
                        ),
                    )
                    for twin in range(1, TWINS + 1)
                ]
            found = noise.measure(reference, candidate, twins[start], start)
            assert found.reproduced
            row |= {
                "ratio": f"{found.ratio:.4g}",
                "epoch": found.at[0],
                "step": found.at[1],
                "variable": found.variable,
            }
        elif training.verdict == "identical":
            row |= {"ratio": "0"}
        with open(path, "a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(row)


def recorded(trainer, make_run):
    """What a run leaves, read back."""
    from compare.records import MetricsFile, Recorder, read_records

    with tempfile.TemporaryDirectory() as folder:
        trainer.train(make_run([Recorder(Path(folder), MetricsFile(Path(folder) / "metrics.csv"), "it", 0)]))
        return read_records(Path(folder))[0]


def table(rows: list[dict[str, str]]) -> str:
    """The figures as Markdown."""
    from compare.noise import FACTOR

    lines = [
        "# Rounding, measured",
        "",
        "The gap between a loop's weights and fit's, in units of the gap that noise twins of fit open from the same "
        f"step on ({TWINS} twins, {EPOCHS} epochs, largest ratio of any variable at any step), written by "
        f"`scripts/calibrate.py` (the cells are in calibration.csv). Up to {FACTOR:g} counts as rounding. Blank: a "
        "difference that no noise could explain (other steps, or other weights to begin with). Zero: equal weights "
        "(mistakes in reporting only, or that hide each other, or that need batches split unevenly). What the short "
        "check finds different is so whatever the ratio: under Adam a loss of another scale hardly moves the weights.",
        "",
        "| | cells | smallest | median | largest | within the factor |",
        "|---|---|---|---|---|---|",
    ]
    for kind, text in {"correct": "Correct", "bug": "Planted mistakes", "unknown": "Of no known cause"}.items():
        names = sorted({row["loop"] for row in rows if row["kind"] == kind})
        lines.append(line(f"**{text}, all**", [row for row in rows if row["kind"] == kind], FACTOR))
        lines += [line(name, [r for r in rows if (r["kind"], r["loop"]) == (kind, name)], FACTOR) for name in names]
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
