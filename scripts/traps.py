#!/usr/bin/env python3
"""Measures every cause in the catalogue in a real run of a loop that has it, and writes the page of traps.

Trains fit and one wrong loop per cause on a small task, compares all weights after every step, runs the short check,
and writes CSV files with the measurements, a picture per cause, and index.html. Takes about twenty minutes on two
cores; each cause is saved as soon as it is measured. --redraw makes pictures and page from the CSV files alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

from corpus.traps import STAGES, Stage, tutorials_example  # noqa: E402

from compare.check.causes import CATALOGUE  # noqa: E402
from scripts import measure, tables  # noqa: E402
from scripts.pages import traps  # noqa: E402

GLOBAL_BATCH = 64

Row = dict[str, Any]


def main() -> None:
    parser = measure.parser(__doc__, "reports/traps")
    text = "measure or redraw these causes only"
    parser.add_argument("--only", nargs="*", metavar="ID", choices=list(CATALOGUE), help=text)
    parser.add_argument("--redraw", action="store_true", help="train nothing and use the existing CSV files")
    options = parser.parse_args()
    if missing := CATALOGUE.keys() - STAGES.keys():
        parser.error(f"STAGES in tests/corpus/traps.py lacks a loop and a task for {', '.join(sorted(missing))}")
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.redraw:
        measure_causes(options.out, options.only or list(CATALOGUE))
    data = traps.read(options.out)
    for cause in options.only or CATALOGUE:
        traps.draw(options.out, cause, data)
    print(traps.write_page(options.out))


def measure_causes(out: Path, causes: list[str]) -> None:
    """Measures causes and saves each in the CSV files."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import compare

    compare.configure(replicas=max(stage.replicas for stage in STAGES.values()))
    pd.DataFrame([tutorials_example()]).to_csv(out / traps.EXAMPLE, index=False, lineterminator="\n")
    # Ordered by task, so that several causes share fit's run, the check's reference and the data.
    causes.sort(key=lambda id: (STAGES[id].experiment, STAGES[id].examples, STAGES[id].epochs, STAGES[id].replicas))
    theater: Theater | None = None
    for number, id in enumerate(causes, 1):
        began = time.perf_counter()
        if theater is None or replace(STAGES[id], loop=theater.stage.loop) != theater.stage:
            theater = Theater(STAGES[id])
        result, epochs, steps = theater.play(id, STAGES[id])
        for table, rows in ((traps.RESULTS, [result]), (traps.EPOCHS, epochs), (traps.STEPS, steps)):
            save(out / table, id, pd.DataFrame(rows))
        seconds = time.perf_counter() - began
        print(f"{number:2}/{len(causes)} {id}: {result['named'] or 'no cause named'} ({seconds:.0f} s)", flush=True)


def save(path: Path, id: str, rows: pd.DataFrame) -> None:
    """Replaces the rows of a cause in a CSV file, whose rows are in the catalogue's order."""
    before = tables.read(path, ["cause"])
    together = pd.concat([before[before["cause"] != id], rows.astype(object)])
    together = together.sort_values("cause", kind="stable", key=lambda ids: ids.map(list(CATALOGUE).index))
    together.to_csv(path, index=False, lineterminator="\n")


class Theater:
    """A task and fit's run on it, which wrong loops are compared with."""

    def __init__(self, stage: Stage) -> None:
        from compare.check import Checker
        from compare.engine import input_pipeline, strategies
        from compare.engine.run import TrainingTask
        from compare.trainers.keras_fit import KerasFit

        self.stage = stage
        experiment = find_experiment(stage.experiment)
        train, validation = input_pipeline.load(experiment)
        self.strategy = strategies.make("mirrored", stage.replicas)
        data = train.first(stage.examples), validation
        self.task = TrainingTask(experiment, *data, self.strategy, GLOBAL_BATCH)
        self.checker = Checker(experiment, KerasFit(), self.strategy, data=data)
        self.folder = tempfile.TemporaryDirectory()
        self.fit = self.train(KerasFit(), "fit")

    def train(self, trainer: Any, name: str) -> tuple[Any, dict[tuple[int, int], list[list[np.ndarray]]]]:
        """Returns the record of a run, and every replica's copy of every weight after each step."""
        from compare.engine.run import Run
        from compare.records.metrics_csv import MetricsFile
        from compare.records.reader import read_records
        from compare.records.recorder import Recorder

        weights: dict[tuple[int, int], list[list[np.ndarray]]] = {}

        class Watched(Run):
            stops_at_nan = False

            def end_step(self) -> None:
                super().end_step()
                weights[self._epoch, self._step] = [[c.copy() for c in copies] for copies in self._fingerprint.read()]

        folder = Path(tempfile.mkdtemp(dir=self.folder.name))  # weights at the ends of epochs are read from it later
        recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), name, 0)
        run = Watched(self.task, seed=0, epochs=range(1, self.stage.epochs + 1), sinks=[recorder])
        trainer.train(run)
        run.close()
        (record,) = read_records(folder)
        return record, weights

    def play(self, id: str, stage: Stage) -> tuple[Row, list[Row], list[Row]]:
        """Trains the wrong loop and returns the rows of the three tables."""
        import corpus

        from compare.verdict.exact import compare_training

        loop = corpus.named(stage.loop)
        (fit, ours), (record, theirs) = self.fit, self.train(loop(), "loop")
        training = compare_training(fit, record)
        trainer = loop()
        report = self.checker.check(trainer)
        gaps = {place: largest_gap(ours[place], theirs.get(place)) for place in ours}
        steps = [{"cause": id, "epoch": epoch, "step": step, "gap": gap} for (epoch, step), gap in gaps.items()]
        epochs = [
            {"cause": id, "trainer": each.trainer, "epoch": epoch}
            | {key: f"{value:.7g}" for key, value in logs.items()}
            for each in (fit, record)
            for epoch, logs in each.logs.items()
        ]
        first = training.first_difference
        result = {
            "cause": id,
            **asdict(stage),
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
    """Returns the largest difference of any weight on any replica; blank if the loop does not make this step."""
    if theirs is None:
        return ""
    pairs = [(a, b) for each in zip(ours, theirs, strict=True) for a, b in zip(*each, strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.max([np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0) for a, b in pairs])
    return f"{gap:.3g}"


def find_experiment(name: str) -> Any:
    from compare.experiments import built_in

    module, _, attribute = name.rpartition(":")
    return getattr(import_module(f"corpus.{module}"), attribute) if module else built_in(name)


if __name__ == "__main__":
    main()
