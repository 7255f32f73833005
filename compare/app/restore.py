"""A run's checkpoint brought back: under its own strategy, another, or none, and evaluated."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare.app.cli import stderr_to
from compare.errors import RequestError
from compare.options import CLUSTERS, STRATEGIES, Options
from compare.records import read_metrics, shortest
from compare.records.run_folder import begun, refuse_changes, request_of

ONE_PROCESS = [name for name in STRATEGIES if name not in CLUSTERS]


def parser() -> argparse.ArgumentParser:
    """The options of ``scripts/restore.py``."""
    parser = argparse.ArgumentParser(
        prog="restore.py",
        allow_abbrev=False,
        description="Restore what a run's trainers had learned, evaluate it on the validation set, and hold the "
        "numbers against those that were reported.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder, such as reports/NAME")
    parser.add_argument("--trainer", metavar="NAME", help="one of the run's trainers (default: all of them)")
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        help=f"{', '.join(ONE_PROCESS)} (default: the run's own; for a cluster's: default)",
    )
    parser.add_argument("--replicas", metavar="N", type=int, help="how many replicas (default: as many as in the run)")
    parser.add_argument("--epoch", metavar="N", type=int, help="the checkpoint of this epoch (default: the last)")
    parser.add_argument("--seed", metavar="N", type=int, help="one of several seeds (default: the first)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        with stderr_to(Path(os.devnull)):
            restore(given)
    except RequestError as error:
        print(f"restore.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def restore(given: argparse.Namespace) -> None:
    """Restore, evaluate and print.

    Raises:
        RequestError: when there is no such run, trainer or checkpoint, or it does not fit the code.
    """
    content = request_of(given.run)
    if "trainers" not in content:
        raise RequestError(f"{given.run} had not begun to train when it ended: there is nothing to restore")
    names = content["trainers"] if given.trainer is None else [given.trainer]
    if unknown := [name for name in names if name not in content["trainers"]]:
        raise RequestError(f"--trainer {unknown[0]}: {given.run} has {', '.join(content['trainers'])}")
    original = Options.from_json(content["options"])
    refuse_changes({**content, "code": _of_user(content)}, begun(original), "restore.py")
    options = _under(original, content, given)

    from compare.app.train import prepare
    from compare.engine.keras_generation import select_keras

    select_keras(options)
    from compare.app.loading import load_experiment
    from compare.engine.checkpoints import folder_of, saved

    task = prepare(options, load_experiment(options))
    seed = original.seed if given.seed is None else given.seed
    rows = {(row["trainer"], row["epoch"]): row for row in _rows(given.run) if int(row["seed"]) == seed}
    for name in names:
        folder = folder_of(given.run, name, seed if original.seeds > 1 else None)
        epochs = [epoch for epoch in saved(folder) if given.epoch in (None, epoch)]
        if not epochs:
            raise RequestError(
                f"{folder}: no checkpoint{f' of epoch {given.epoch}' if given.epoch else ''} of {name} is there "
                f"({', '.join(map(str, saved(folder))) or 'none at all'})"
            )
        found, notes = _evaluate(task, folder, epochs, seed)
        reported = rows.get((name, str(found["epoch"])), {})
        print(f"{name}, epoch {found.pop('epoch'):g}, under {options.strategy}, {_replicas(task)}:")
        for metric, value in found.items():
            print(f"  {metric} {shortest(value)}{_held_against(value, reported.get(metric, ''))}")
        for note in notes:
            print(f"  {note}")


def _under(original: Options, content: Mapping[str, Any], given: argparse.Namespace) -> Options:
    """The run's options with the strategy that is asked for."""
    own = content["strategy"]["replicas"]
    strategy = given.strategy or ("default" if original.strategy in CLUSTERS else original.strategy)
    if strategy in CLUSTERS:
        raise RequestError(f"--strategy {strategy} is of several processes, and restoring takes one: use mirrored")
    replicas = given.replicas
    if strategy == "central-storage" and original.keras == 3 and (replicas or own) > 1:
        raise RequestError(
            "Keras 3 counts every example twice in its metrics under --strategy central-storage with several replicas, "
            "so that nothing can be evaluated there: use --strategy default"
        )
    if replicas is None and strategy not in ("default", "one-device"):
        replicas = own
    return dataclasses.replace(
        original, strategy=strategy, replicas=replicas, workers=None, parameter_servers=None, against=None
    )


def _of_user(content: Mapping[str, Any]) -> dict[str, str]:
    """The users' files alone: this package may be a newer one."""
    return {name: digest for name, digest in content.get("code", {}).items() if name != "compare"}


def _rows(run: Path) -> list[dict[str, str]]:
    path = run / "metrics.csv"
    return read_metrics(path) if path.exists() else []


def _evaluate(task: Any, folder: Path, epochs: Sequence[int], seed: int) -> tuple[dict[str, float], list[str]]:
    """What the newest checkpoint that is whole gives on the validation set; and what is to be said of it."""
    import tensorflow as tf

    from compare.engine.checkpoints import Checkpoints, copies_in, damage, path_of
    from compare.engine.run import Run

    notes = []
    for epoch in epochs:
        if text := damage(path_of(folder, epoch)):
            notes.append(f"Note: {path_of(folder, epoch)} is damaged, and not used: {text}")
            continue
        run = Run(task, seed=seed, epochs=range(epoch + 1, epoch + 2), checkpoints=Checkpoints(folder))
        model, optimizer, loss, metrics = run.build()
        replicas = {len(copies) for copies in copies_in(path_of(folder, epoch)).values()}
        differing = any(_differ(copies) for copies in copies_in(path_of(folder, epoch)).values())
        if differing and replicas != {task.strategy.num_replicas_in_sync}:
            notes.append(
                f"Note: the {max(replicas)} replicas' batch normalization had statistics of its own on each (Keras 3 "
                "does not average them): the first one's are used here, and other numbers come out than were reported"
            )
        with task.strategy.scope():
            model.compile(
                optimizer=optimizer,
                loss=loss,
                loss_weights=run.loss_weights,
                metrics=metrics,
                weighted_metrics=run.weighted_metrics,
                jit_compile=False,
            )
        try:
            results = model.evaluate(run.validation_dataset(), return_dict=True, verbose=0)
        except tf.errors.OpError as error:
            raise RequestError(
                f"the model cannot be evaluated under this strategy ({' '.join(str(error).split())[:120]}); "
                "try --strategy default"
            ) from error
        in_order = sorted(results, key=lambda name: name != "loss")
        return {"epoch": epoch} | {f"val_{name}": float(results[name]) for name in in_order}, notes
    raise RequestError(f"{folder}: every checkpoint is damaged; {notes[-1]}")


def _differ(copies: np.ndarray) -> bool:
    return any(copy.tobytes() != copies[0].tobytes() for copy in copies)


def _held_against(value: float, reported: str) -> str:
    if not reported:
        return ""
    return ", as reported" if np.float32(value) == np.float32(reported) else f" (reported: {reported})"


def _replicas(task: Any) -> str:
    count = task.strategy.num_replicas_in_sync
    return f"{count} replica{'s' * (count > 1)}"
