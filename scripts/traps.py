#!/usr/bin/env python3
"""The page of traps: every cause in the catalogue, shown in a real run of a loop that has it.

Trains fit and one wrong loop per cause on a small task, holds all weights against each other after
every step, asks the short check for its opinion, and writes reports/traps/: three CSV files with
what was measured, a picture per cause, and README.md. Takes some twenty minutes on two busy cores;
each cause is on disk as soon as it is measured, and --only ID… measures these alone. --redraw makes
pictures and page from the files, without TensorFlow.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path += [str(ROOT / "tests"), str(ROOT / "scripts")]

import numpy as np  # noqa: E402

from compare.check.causes import CATALOGUE  # noqa: E402
from scripts.pages import traps  # noqa: E402

OUT = ROOT / "reports" / "traps"
GLOBAL_BATCH = 64


@dataclass(frozen=True)
class Stage:
    """Where a cause shows: a wrong loop, and a small task for it.

    The last of 1,000 examples' batches of 64 has 40, which splits evenly over two replicas.
    """

    loop: str
    experiment: str = "fashion-mnist-sample"
    replicas: int = 2
    examples: int = 1000
    epochs: int = 8


# Loops of tests/planted.py, but for those with a file's name in front; experiments likewise.
STAGES = {
    "loss-not-divided-by-replicas": Stage("NotDivided", "regularized"),
    "loss-divided-twice": Stage("KerasDividesToo", "traps_loops:mlp"),
    "loss-summed": Stage("Summed", "traps_loops:mlp"),
    "loss-constant-denominator": Stage("ConstantDenominator"),
    "loss-scaled": Stage("LossWeight"),
    "uneven-replica-batches": Stage("TrueCount", "traps_loops:mlp", examples=963),
    "regularization-missing": Stage("NoPenalty", "regularized"),
    "regularization-not-divided-by-replicas": Stage("PenaltyNotDivided", "regularized"),
    "logits-mismatch": Stage("LogitsAsProbabilities"),
    "label-shape-broadcast": Stage("Broadcast", "regression"),
    "sample-weights-dropped": Stage("WeightsForgotten", "weighted"),
    "training-flag-missing": Stage("NoFlagDropout", "traps_loops:mlp_batchnorm"),
    "clipping-differs": Stage("ClippedGlobally", "traps_loops:mlp"),
    "gradients-not-reduced": Stage("EachItsOwn", "traps_loops:mlp"),
    "variables-not-trained": Stage("HeadOnly"),
    "optimizer-differs": Stage("OtherRate"),
    "learning-rate-schedule-missing": Stage("NoSchedule", "traps_loops:scheduled"),
    "not-reshuffled": Stage("SameOrder"),
    "examples-dropped": Stage("TailCut"),
    "examples-repeated": Stage("WholeTwice"),
    "batch-size-differs": Stage("DoubleBatches"),
    "weights-not-shared": Stage("NewWeights"),
    "validation-changes-state": Stage("traps_loops:TrainingFlagInValidation", "traps_loops:mlp_batchnorm"),
    "empty-replica-batch": Stage("MeanOfNothing", "traps_loops:mlp", examples=961),
    "metrics-not-reset": Stage("NeverReset"),
    "loss-averaged-over-batches": Stage("MeanOverBatches", examples=964),
    "loss-not-reduced": Stage("LossOfShares"),
    "validation-loss-without-regularization": Stage("NoPenaltyInValidation", "regularized"),
    "validation-in-training-mode": Stage("traps_loops:TrainingFlagInValidation", "dropout"),
    "validation-examples-dropped": Stage("ThreeValidationSteps"),
    "metrics-from-one-replica": Stage("FirstReplicaReports"),
    "validation-sample-weights-dropped": Stage("ValidationWeightsForgotten", "weighted"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="ID", choices=list(CATALOGUE), help="measure these causes only")
    parser.add_argument("--redraw", action="store_true", help="train nothing, use what was measured before")
    parser.add_argument("--out", type=Path, default=OUT, help="(default: reports/traps)")
    options = parser.parse_args()
    if missing := CATALOGUE.keys() - STAGES.keys():
        parser.error(f"give STAGES in scripts/traps.py a loop and a task for {', '.join(sorted(missing))}")
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.redraw:
        measure(options.out, options.only or list(CATALOGUE))
    data = traps.read(options.out)
    for cause in options.only or CATALOGUE:
        traps.draw(options.out, cause, data)
    (options.out / "README.md").write_text(traps.page(CATALOGUE, data), encoding="utf-8")
    traps.write_page(options.out)
    print(options.out / "README.md")


def measure(out: Path, causes: list[str]) -> None:
    """Run the stages and put what they show into the CSV files, a cause at a time."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import compare

    compare.configure(replicas=max(stage.replicas for stage in STAGES.values()))
    traps.write(out, traps.EXAMPLE, [tutorials_example()])
    # By task, so that fit, the short check's reference and the data are there once for several causes.
    causes.sort(key=lambda id: (STAGES[id].experiment, STAGES[id].examples, STAGES[id].epochs, STAGES[id].replicas))
    theater: Theater | None = None
    for number, id in enumerate(causes, 1):
        began = time.perf_counter()
        if theater is None or not theater.serves(STAGES[id]):
            theater = Theater(STAGES[id])
        result, epochs, steps = theater.play(id, STAGES[id])
        for table, rows in ((traps.RESULTS, [result]), (traps.EPOCHS, epochs), (traps.STEPS, steps)):
            kept = [row for row in traps.read_table(out, table) if row["cause"] != id]
            rows = sorted([*kept, *rows], key=lambda row: list(CATALOGUE).index(row["cause"]))
            traps.write(out, table, rows)
        seconds = time.perf_counter() - began
        print(f"{number:2}/{len(causes)} {id}: {result['named'] or 'nothing named'} ({seconds:.0f} s)", flush=True)


class Theater:
    """A task, and what fit does on it; wrong loops are held against that."""

    def __init__(self, stage: Stage) -> None:
        from compare.check import Checker
        from compare.engine import input_pipeline, strategies
        from compare.engine.run import TrainingTask
        from compare.trainers.keras_fit import KerasFit

        self.stage = stage
        experiment = find_experiment(stage.experiment)
        train, validation = input_pipeline.load(experiment)
        self.strategy = strategies.make("mirrored", stage.replicas)
        self.task = TrainingTask(experiment, train.first(stage.examples), validation, self.strategy, GLOBAL_BATCH)
        self.checker = Checker(experiment, KerasFit(), self.strategy)
        self.folder = tempfile.TemporaryDirectory()
        self.fit = self.train(KerasFit(), "fit")

    def serves(self, stage: Stage) -> bool:
        mine = self.stage
        return (mine.experiment, mine.replicas, mine.examples, mine.epochs) == (
            stage.experiment,
            stage.replicas,
            stage.examples,
            stage.epochs,
        )

    def train(self, trainer: Any, name: str) -> tuple[Any, dict[tuple[int, int], list[list[np.ndarray]]]]:
        """The record of a run, and every replica's copy of every weight after each step."""
        from compare.engine.run import Run
        from compare.records import MetricsFile, Recorder, read_records

        weights: dict[tuple[int, int], list[list[np.ndarray]]] = {}

        class Watched(Run):
            def end_step(self) -> None:
                super().end_step()
                weights[self._epoch, self._step] = [[c.copy() for c in copies] for copies in self._fingerprint.read()]

        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder), MetricsFile(Path(folder) / "metrics.csv"), name, 0)
            run = Watched(self.task, seed=0, epochs=range(1, self.stage.epochs + 1), sinks=[recorder])
            trainer.train(run)
            run.close()
            (record,) = read_records(Path(folder))
        return record, weights

    def play(self, id: str, stage: Stage) -> tuple[traps.Row, list[traps.Row], list[traps.Row]]:
        """Train the wrong loop; the rows of the three tables."""
        from compare.verdict import compare_training

        loop = find_loop(stage.loop)
        (fit, ours), (record, theirs) = self.fit, self.train(loop(), "loop")
        training = compare_training(fit, record)
        report = self.checker.check(loop())
        steps = [
            {
                "cause": id,
                "epoch": epoch,
                "step": step,
                "gap": largest_gap(ours[epoch, step], theirs.get((epoch, step))),
            }
            for epoch, step in ours
        ]
        epochs = [
            {"cause": id, "trainer": each.trainer, "epoch": epoch}
            | {key: f"{value:.7g}" for key, value in logs.items()}
            for each in (fit, record)
            for epoch, logs in each.logs.items()
        ]
        first = training.first_difference
        result = {
            "cause": id,
            "loop": stage.loop,
            "experiment": stage.experiment,
            "replicas": stage.replicas,
            "examples": stage.examples,
            "epochs": stage.epochs,
            "training": training.verdict,
            "first_epoch": first.epoch if first else "",
            "first_step": first.step if first and first.step is not None else "",
            "fit_steps": sum(epoch == 1 for epoch, _ in ours),
            "loop_steps": sum(epoch == 1 for epoch, _ in theirs),
            "named": " ".join(finding.id for finding in report.findings),
            "evidence": next((finding.evidence for finding in report.findings if finding.id == id), ""),
        }
        return result, epochs, steps


def largest_gap(ours: list[list[np.ndarray]], theirs: list[list[np.ndarray]] | None) -> str:
    """The largest difference of any weight on any replica; blank where the loop makes no such step."""
    if theirs is None:
        return ""
    pairs = [(a, b) for each in zip(ours, theirs, strict=True) for a, b in zip(*each, strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.max([np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0) for a, b in pairs])
    return f"{gap:.3g}"


def tutorials_example() -> traps.Row:
    """Two replicas with losses [2, 3] and [4, 5], by the tutorial's own means: what becomes of their mean."""
    import tensorflow as tf

    from compare.engine import strategies

    strategy = strategies.make("mirrored", 2)
    losses = [[2.0, 3.0], [4.0, 5.0]]
    with strategy.scope():
        metric = tf.keras.metrics.Mean()

    def of_replica(context: Any) -> Any:
        return tf.constant(losses[context.replica_id_in_sync_group])

    @tf.function
    def step(per_example: Any) -> Any:
        scaled = tf.nn.compute_average_loss(per_example, global_batch_size=4)
        metric.update_state(scaled)
        return scaled

    values = strategy.experimental_distribute_values_from_function(of_replica)
    shares = strategy.run(step, args=(values,))
    first, second = (float(share) for share in strategy.experimental_local_results(shares))
    return {
        "first": first,
        "second": second,
        "metric": float(metric.result()),
        "sum": float(strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)),
        "mean": float(np.mean(losses)),
    }


def find_loop(name: str) -> Any:
    import importlib

    module, _, attribute = name.rpartition(":")
    return getattr(importlib.import_module(module or "planted"), attribute)


def find_experiment(name: str) -> Any:
    import importlib

    from compare.experiments import BUILT_IN

    module, _, attribute = name.rpartition(":")
    return getattr(importlib.import_module(module), attribute) if module else BUILT_IN[name](None)


if __name__ == "__main__":
    main()
