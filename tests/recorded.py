"""Runs on disk, written by the product's own recorder, without any training: what the pages' tests look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from compare.check.causes import CATALOGUE
from compare.options import as_json as options_as_json
from compare.options import request
from compare.records.codec import decode
from compare.records.files import write_checked
from compare.records.metrics_csv import MetricsFile, shortest
from compare.records.model import EPOCH_END, INITIAL, BuildRecord, EpochRecord, Place, Record, StepRecord, Variable
from compare.records.reader import read_records
from compare.records.recorder import Recorder
from compare.records.run_json import read_verdict
from compare.reporting import html, plots
from compare.reporting.run_files import RunFiles
from compare.verdict.exact import compare_records
from compare.verdict.model import Comparison, Failure, Verdict, not_comparable


def as_json(reference: str, comparisons: Sequence[Comparison], **more: Any) -> dict[str, Any]:
    """The content of ``verdict.json``."""
    return Verdict.of(reference, comparisons, **more).content()


VARIABLES = (Variable("dense/kernel", (2, 2), "float32"), Variable("dense/bias", (2,), "float32"))


def record(
    folder: Path,
    trainer: str,
    *,
    epochs: int = 3,
    steps: int = 4,
    off_from: int | None = None,
    seed: int = 0,
    gap: float = 1e-3,
    variables: Sequence[Variable] = VARIABLES,
    renamed: Mapping[str, str] = MappingProxyType({}),
    factor: float = 1.0,
    seconds: float = 2.0,
    rate: float = 500.0,
) -> None:
    """One trainer's records: from the optimizer step ``off_from`` on (counted over all epochs), weights are off.

    Metrics that are ``renamed`` are reported times a factor.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = MetricsFile(folder / "metrics.csv")
    recorder = Recorder(folder, metrics, trainer, seed)
    recorder(BuildRecord(tuple(variables), 1))
    number = 0

    def fingerprint(epoch: int, step: int) -> None:
        off = off_from is not None and number >= off_from
        hashes = np.full((len(variables), 1), number, np.uint64) + np.uint64(1000 * off)
        projections = np.array([[1.0, -1.0], *[[0.5, 0.5]] * (len(variables) - 1)]) * (1 + 0.01 * number)
        projections += gap * off * (1 + number - (off_from or 0))
        recorder(StepRecord(epoch, step, hashes, projections))

    fingerprint(1, INITIAL)
    for epoch in range(1, epochs + 1):
        for step in range(1, steps + 1):
            number += 1
            fingerprint(epoch, step)
        fingerprint(epoch, EPOCH_END)
        off = 0.0 if off_from is None or number < off_from else 0.0625
        loss, accuracy = 1 / epoch + off, 1 - 0.5 / epoch
        logs = {"loss": loss, "accuracy": accuracy, "val_loss": loss + 0.25, "val_accuracy": accuracy - 0.1}
        logs = {renamed.get(name, name): value * (factor if name in renamed else 1) for name, value in logs.items()}
        weights = [np.full(variable.shape, number + 0.125 * bool(off), np.float32) for variable in variables]
        recorder(EpochRecord(epoch, {k: float(np.float32(v)) for k, v in logs.items()}, seconds / epoch, rate, weights))


def reported(logs: Mapping[str, Mapping[int, Mapping[str, float]]]) -> RunFiles:
    """The files of a run of which only numbers are known, by trainer and epoch."""
    rows = [
        {"trainer": trainer, "seed": "0", "epoch": str(epoch)} | {name: shortest(value) for name, value in own.items()}
        for trainer, epochs in logs.items()
        for epoch, own in epochs.items()
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    rows = [dict.fromkeys(columns, "") | row for row in rows]
    return RunFiles(Path("of-a-test"), {"options": {}, "trainers": list(logs)}, None, rows, {}, ())


def by_place(record: Record) -> dict[Place, Any]:
    """The fingerprints of a record by place."""
    return {(int(row["epoch"]), int(row["step"])): row for row in record.steps}


def finish(
    folder: Path,
    trainers: Sequence[str] = ("fit", "loop"),
    *,
    causes: Sequence[str] = (),
    failure: Failure | None = None,
    verdict: Mapping[str, Any] | None = None,
    title: str = "my-task: fit and loop under mirrored, 2 replicas",
    started: str = "2026-01-02T03:04:05+00:00",
    **run: Any,
) -> Path:
    """Write ``run.json``, ``verdict.json``, the picture and the page of what was recorded."""
    folder.mkdir(parents=True, exist_ok=True)
    reference, *candidates = trainers
    content = {
        "schema": 2,
        "status": "finished",
        "title": title,
        "notes": [],
        "command": ["compare.py", "--experiment", "my task.py", "--name", folder.name, "--epochs", "3"],
        "options": {**options_as_json(request()), "experiment": "my task.py", "trainers": list(trainers), "epochs": 3},
        "trainers": list(trainers),
        "strategy": {
            "name": "mirrored", "class": "MirroredStrategy", "replicas": 2, "workers": 1, "global_batch_size": 128,
            "devices": ["CPU:0", "CPU:1"],
        },
        "data": {
            "source": "made up", "training_examples": 512, "validation_examples": 64, "training_sha256": "a" * 64,
            "validation_sha256": "b" * 64,
        },
        "versions": {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1"},
        "machine": {"platform": "Linux", "processors": 2},
        "threads": {"intra_op": 0, "inter_op": 0},
        "started": started,
        "preflight": [],
        "failures": [],
        "initial_weights_sha256": {"0": "c" * 64},
        "finished": started,
        **run,
    }  # fmt: skip
    write_checked(folder / "run.json", content)
    if failure is not None:
        made = as_json(reference, [not_comparable(name, failure) for name in candidates], scope="run")
    else:
        records = {each.trainer: each for each in read_records(folder) if each.seed == 0}
        made = as_json(
            reference, [compare_records(records[reference], records[name]) for name in candidates], scope="run"
        )
    for entry in (entry for entry in made["comparisons"] if entry["verdict"] == "different"):
        entry["causes"] = [
            {"id": id, "side": entry["candidate"], "evidence": f"evidence of {id}", "remedy": CATALOGUE[id].remedy}
            for id in causes
        ]
    decode(Verdict, made | dict(verdict or {})).write(folder / "verdict.json")
    if (folder / "metrics.csv").exists():
        plots.draw(folder)
    html.write(folder)
    return folder


def two(folder: Path, *, off_from: int | None = None, run: Mapping[str, Any] | None = None, **both: Any) -> Path:
    """Fit and a loop, equal up to the optimizer step ``off_from``, both with the same number of epochs and steps."""
    record(folder, "fit", **both)
    record(folder, "loop", off_from=off_from, **both)
    return finish(folder, **(run or {}))


def identical(folder: Path) -> Path:
    return two(folder)


def different(folder: Path, **options: Any) -> Path:
    """Three trainers, one of which parts from the reference in step 2 of epoch 2, for two known reasons."""
    record(folder, "fit")
    record(folder, "loop")
    record(folder, "mine", off_from=6)
    causes = ["loss-constant-denominator", "loss-averaged-over-batches"]
    return finish(folder, ("fit", "loop", "mine"), causes=causes, title="my-task: fit, loop and mine", **options)


def inconclusive(folder: Path) -> Path:
    """A study of three seeds whose tests cannot tell."""
    for seed in range(3):
        record(folder, "fit", seed=seed)
        record(folder, "loop", seed=seed, off_from=2 + seed)
    test = {
        "metric": "val_loss", "epoch": 3, "seeds": 3, "mean": 0.03, "low": -0.01, "high": 0.07, "margin": 0.02,
        "relative": True, "p": 0.2, "seeds_needed": 12, "verdict": "inconclusive",
    }  # fmt: skip
    finish(folder, title="my-task: fit and loop, 3 seeds")
    made = read_verdict(folder / "verdict.json")
    study = {"verdict": "inconclusive", "seeds": 3, "seeds_needed": 12, "reason": "", "tests": [test]}
    made["comparisons"][0] |= {"verdict": "inconclusive", "seed": 0, "study": study}
    made["comparisons"][0]["training"]["verdict"] = "inconclusive"
    return finish(folder, title="my-task: fit and loop, 3 seeds", verdict=made | {"verdict": "inconclusive"})


def not_comparable_run(folder: Path) -> Path:
    failure = Failure("fit", "Keras 3's fit does not run there (ValueError: no)", "use --keras 2, or the custom loop")
    preflight = [{"id": "no", "severity": "cannot-run", "message": f"{failure.error}; {failure.remedy}"}]
    return finish(folder, failure=failure, status="training", preflight=preflight, failures=[asdict(failure)])


def interrupted(folder: Path) -> Path:
    record(folder, "fit")
    record(folder, "loop", epochs=1)
    finish(folder, status="interrupted")
    made = read_verdict(folder / "verdict.json")
    entry = made["comparisons"][0]
    entry["training"] |= {"verdict": "identical", "first_difference": None, "max_weight_gap": 0.0, "steps_compared": 4}
    entry["training"].pop("reason", None)
    entry["reporting"]["verdict"] = entry["verdict"] = "identical"
    return finish(folder, status="interrupted", verdict=made | {"verdict": "identical", "interrupted": True})


KINDS = {
    "identical": identical,
    "different": different,
    "inconclusive": inconclusive,
    "not-comparable": not_comparable_run,
    "interrupted": interrupted,
}
"""By verdict, or state, what makes such a run in a folder."""
