"""``scripts/restore.py``: restores a run's checkpoint under its own or another strategy, and evaluates it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from compare.app.command_line import OneLineParser
from compare.app.provenance import code
from compare.app.ready import Session
from compare.app.resume import refuse_changes
from compare.app.standard_streams import ending, forgiving, stderr_to
from compare.engine.preflight import Facts
from compare.errors import RequestError
from compare.modes import Trained
from compare.naming import given_path, is_file, refuse_unreadable, shown_path
from compare.options import request
from compare.records.metrics_csv import shortest
from compare.records.model import EPOCH_END
from compare.records.reader import read_rows
from compare.records.run_json import RunJson
from compare.request import EXPERIMENTS
from compare.strategy_specs import SPECS
from compare.user_errors import without_exit

ONE_PROCESS = [spec.name for spec in SPECS.values() if not spec.several_processes]


def parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="restore.py",
        allow_abbrev=False,
        description="Restore the checkpoints of a run's trainers, evaluate them on the validation set, and compare "
        "the metrics with the reported ones.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, such as reports/NAME")
    parser.add_argument(
        "--experiment",
        metavar="FILE.py[:ATTR]",
        help="the run's experiment, if it is not built in; its code is executed, as by compare.py",
    )
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
    return ending("restore.py", lambda: restore(parser().parse_args(arguments)))


@stderr_to(Path(os.devnull))
@without_exit("your code")
def restore(given: argparse.Namespace) -> int:
    given.run = given_path(given.run)
    refuse_unreadable(given.run)
    if not os.path.isdir(given.run):
        raise RequestError(f"{shown_path(given.run)}: this is no folder; give the folder of a run")
    recorded = RunJson.of_run(given.run)
    if recorded.trainers is None or recorded.strategy is None:
        raise RequestError(f"{given.run} ended before training started: there is nothing to restore")
    names = recorded.trainers if given.trainer is None else [given.trainer]
    if unknown := [name for name in names if name not in recorded.trainers]:
        raise RequestError(f"--trainer {unknown[0]}: {given.run} has {', '.join(recorded.trainers)}")
    original = _request(recorded, given.experiment)
    if given.seed is not None and given.seed not in (seeds := original.all_seeds):
        several = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
        raise RequestError(f"--seed {given.seed}: {given.run} has {several}")
    options = _under(original, recorded.strategy["replicas"], given)

    task = Session.begin(options, recorded, Console(quiet=True)).task
    from compare.engine.checkpoints import folder_of, saved  # noqa: PLC0415 (lazy)

    seed, count = original.seed if given.seed is None else given.seed, task.strategy.num_replicas_in_sync
    rows = {(row["trainer"], row["epoch"]): row for row in read_rows(given.run) if int(row["seed"]) == seed}
    for name in names:
        folder = folder_of(given.run, name, seed if len(original.all_seeds) > 1 else None)
        ends = [epoch for epoch, step in saved(folder) if step == EPOCH_END]
        epochs = [epoch for epoch in ends if given.epoch in (None, epoch)]
        if not epochs:
            of_epoch = "" if given.epoch is None else f" of epoch {given.epoch}"
            raise RequestError(
                f"{folder}: no checkpoint{of_epoch} of {name} is there ({', '.join(map(str, ends)) or 'none at all'})"
            )
        evaluated, notes = _evaluate(task, given.run, folder, epochs, seed)
        reported = rows.get((name, str(evaluated["epoch"])), {})
        out = forgiving(sys.stdout)
        under = f"{options.strategy}, {count} replica{'s' * (count > 1)}"
        print(f"{name}, epoch {evaluated.pop('epoch'):g}, under {under}:", file=out)
        for metric, value in evaluated.items():
            told = reported.get(metric, "")
            same = told and np.float32(value) == np.float32(told)
            reported_as = ", as reported" if same else f" (reported: {told})" * bool(told)
            print(f"  {metric} {shortest(value)}{reported_as}", file=out)
        for note in notes:
            print(f"  {note}", file=out)
    return 0


def _request(recorded: RunJson, experiment: str | None) -> Trained:
    """The run's own request, with the experiment of this command line.

    The run may come from someone else: code that only its ``run.json`` names is not executed.
    """
    own = recorded.options.get("experiment")
    if own in EXPERIMENTS:
        if experiment not in (None, own):
            raise RequestError(f"--experiment {experiment}: the run's is {own}; leave it out")
        experiment = own
    elif experiment is None:
        raise RequestError(
            f"the run's experiment is {own}, whose code would be executed: if you trust it, add --experiment "
            + (shlex.quote(own) if isinstance(own, str) and is_file(own) else "FILE.py[:ATTR]")
        )
    try:
        # Trainers are not needed, and their files are not read.
        options = request(**{**recorded.options, "experiment": experiment, "trainers": ("fit", "loop")})
    except (TypeError, AttributeError):
        raise RequestError(f"{recorded.folder}/run.json is not a run's: give the folder of a run") from None
    if not isinstance(options, Trained):
        raise RequestError(f"{recorded.folder} is no training's: give the folder of a run that trained")
    # This package may be a newer one: only the user's file must be the same.
    before, now = (recorded.code or {}).get(str(own)), code(options).get(str(experiment))
    refuse_changes(
        {"options": {}, "code": {experiment: before} if before else {}},
        {"options": {}, "code": {experiment: now} if now else {}},
        str(recorded.folder),
    )
    return options


def _under(original: Trained, own: int, given: argparse.Namespace) -> Trained:
    strategy = given.strategy or ("default" if original.spec.several_processes else original.strategy)
    if strategy not in SPECS:
        raise RequestError(f"--strategy {strategy}: unknown; there are {', '.join(ONE_PROCESS)}")
    if SPECS[strategy].several_processes:
        raise RequestError(f"--strategy {strategy} needs several processes, and restoring uses one: use mirrored")
    replicas = given.replicas
    facts = Facts(strategy, original.keras, (), replicas or own, 1, (0, 0), 0)
    for limit in SPECS[strategy].limits:
        if limit.metrics and limit.applies(facts):
            raise RequestError(
                f"nothing can be evaluated with --strategy {strategy}: {limit.message}; use --strategy default"
            )
    if replicas is None and not SPECS[strategy].one_replica:
        replicas = own
    return replace(original, strategy=strategy, replicas=replicas, workers=None, parameter_servers=None, baseline=None)


def _evaluate(
    task: Any, home: Path, folder: Path, epochs: Sequence[int], seed: int
) -> tuple[dict[str, float], list[str]]:
    """Metrics of the latest undamaged checkpoint on the validation set, and notes to print with them."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    from compare.engine.checkpoints import Checkpoints, copies_in, damage, path_of  # noqa: PLC0415 (lazy)
    from compare.engine.run import Run  # noqa: PLC0415 (lazy)
    from compare.trainers.keras_fit import KerasFit  # noqa: PLC0415 (lazy)

    notes = []
    for epoch in epochs:
        path = path_of(folder, (epoch, EPOCH_END))
        if text := damage(home, path):
            notes.append(f"Note: {path} is damaged and was skipped: {text}")
            continue
        run = Run(task, seed=seed, epochs=range(epoch + 1, epoch + 2), checkpoints=Checkpoints(home, folder))
        run.trains = False
        model = KerasFit().compiled(run)
        saved = copies_in(path).values()
        replicas = {len(copies) for copies in saved}
        differing = any(copy.tobytes() != copies[0].tobytes() for copies in saved for copy in copies)
        if differing and replicas != {task.strategy.num_replicas_in_sync}:
            notes.append(
                f"Note: the {max(replicas)} replicas' batch normalization statistics differ (Keras 3 does not average "
                "them); those of the first replica are used here, so the metrics differ from the reported ones"
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
