"""Does a custom training loop train like ``model.fit``, and if not, where and why do they part?

A comparison of Keras's ``fit`` with the custom loop of this package, on two logical CPU devices:

>>> import compare
>>> compare.configure(replicas=2)
>>> result = compare.run("fashion-mnist-sample", trainers=("fit", "loop"), replicas=2, epochs=1, quiet=True)
>>> result.verdict
'identical'

``result.metrics`` is a DataFrame, ``result.path`` the folder with the plot and all files. Your own
task is a ``compare.Experiment``, your own loop any object with a ``name`` and ``train(run)``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.errors import RequestError
from compare.experiment import Experiment
from compare.options import Options

if TYPE_CHECKING:
    from compare.engine.run import Run
    from compare.engine.strategies import configure
    from compare.reporting.result import Result
    from compare.trainer import Trainer
    from compare.trainers.custom_loop import CustomLoop

__all__ = [
    "CustomLoop",
    "Experiment",
    "RequestError",
    "Result",
    "Run",
    "Trainer",
    "assert_alike",
    "configure",
    "load",
    "run",
]

# Imported when first asked for: TensorFlow takes seconds, and reading reports does without it.
_LAZY = {
    "CustomLoop": "compare.trainers.custom_loop",
    "Result": "compare.reporting.result",
    "Run": "compare.engine.run",
    "Trainer": "compare.trainer",
    "configure": "compare.engine.strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'compare' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def run(experiment: str | Experiment = "fashion-mnist", **options: Any) -> Result:
    """Train an experiment with two or more trainers and compare what they did.

    Does all that the command does, with the same files. May be called many times in one process.

    Args:
        experiment: a built-in experiment's name, ``FILE.py[:ATTR]``, or an ``Experiment``.
        **options: the command's options by name (``trainers``, ``strategy``, ``replicas``, ``epochs``,
            ``batch_size``, ``seed``, ``train_examples``, ``reports``, ``name``, ``data_dir``, ``quiet``);
            see ``compare.options.Options``.

    Returns:
        The verdict, the metrics and the folder.

    Raises:
        RequestError: where the command would exit with status 2.

    The process's random seeds are set and op determinism is switched on (see ``configure``).
    """
    try:
        request = Options(experiment=experiment, **options)
    except TypeError as error:
        raise RequestError(f"compare.run: {str(error).partition(' ')[2]}") from None
    from compare.app.session import carry_out, new_console
    from compare.records.run_folder import claimed

    with claimed(request) as folder:
        return carry_out(request, folder, new_console(request))


def load(run: str | Path) -> Result:
    """A recorded run, from its files alone: ``load("reports/example")``; no TensorFlow.

    Args:
        run: the run's folder.

    Returns:
        As ``compare.run`` gives it: the verdict, the metrics as a DataFrame, the gap per step, the figures.

    Raises:
        RequestError: when no judged run is there, or its files are damaged.
    """
    from compare.records import RecordError, read_verdict
    from compare.reporting.result import Result
    from compare.verdict import EXIT_STATUS

    folder = Path(run)
    try:
        verdict = read_verdict(folder / "verdict.json")
    except RecordError as error:
        raise RequestError(f"{folder}: no run with a verdict is there: {error}") from None
    if not isinstance(verdict, dict) or verdict.get("verdict") not in EXIT_STATUS:
        raise RequestError(f"{folder / 'verdict.json'}: damaged, it has no verdict")
    return Result(folder, verdict["verdict"])


def assert_alike(
    experiment: str | Experiment, trainer: str | Trainer, *, reference: str | Trainer = "fit", seed: int = 0
) -> None:
    """The short check as an assertion, for a test of your own: some seconds, no files.

    Trains a few small batches on one replica, and on two where there are devices (``configure``).

    Args:
        experiment: as for ``run``.
        trainer: the candidate: a trainer, or what the command's ``--trainers`` takes.
        reference: what it is held against.
        seed: of initial weights and order of examples.

    Raises:
        AssertionError: when they do not train and report alike; the message names the cause.
        RequestError: when the experiment or a trainer does not exist.
    """
    from compare.app.loading import load_experiment, load_trainers
    from compare.check import check
    from compare.engine.strategies import configure
    from compare.verdict import EXIT_STATUS

    options = Options(experiment=experiment, trainers=(reference, trainer), seed=seed)
    (_, held_against), (_, candidate) = load_trainers(options)
    configure()
    report = check(load_experiment(options), candidate, reference=held_against, seed=seed)
    if EXIT_STATUS[report.verdict]:
        raise AssertionError(str(report))
