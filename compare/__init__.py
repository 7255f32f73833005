"""Does a custom training loop train like ``model.fit``, and if not, where and why do they diverge?

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
    from compare.trainers.train_step import TrainStep

__all__ = [
    "CustomLoop",
    "Experiment",
    "RequestError",
    "Result",
    "Run",
    "TrainStep",
    "Trainer",
    "assert_alike",
    "configure",
    "load",
    "report",
    "run",
]

# Imported when first asked for: TensorFlow takes seconds, and reading reports does without it.
_LAZY = {
    "CustomLoop": "compare.trainers.custom_loop",
    "Result": "compare.reporting.result",
    "Run": "compare.engine.run",
    "TrainStep": "compare.trainers.train_step",
    "Trainer": "compare.trainer",
    "configure": "compare.engine.strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'compare' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 (lazy)

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def run(experiment: str | Experiment = "fashion-mnist", **options: Any) -> Result:
    """Train an experiment with two or more trainers and compare the results.

    Does everything that the command does and writes the same files. Can be called many times in one process.
    Sets the process's random seeds and turns op determinism on (see ``configure``).

    For example::

        result = compare.run("fashion-mnist-sample", trainers=("fit", MyLoop()), epochs=2, quiet=True)
        print(result.verdict)  # identical, alike, different, …

    Returns:
        The verdict, the metrics and the folder.

    Raises:
        RequestError: where the command would exit with status 2.

    Args:
    """
    try:
        request = Options(experiment=experiment, **options)
    except TypeError as error:
        raise RequestError(f"compare.run: {str(error).partition(' ')[2]}") from None
    from compare.app.run_folder import claimed  # noqa: PLC0415 (lazy)
    from compare.app.session import carry_out, new_console  # noqa: PLC0415 (lazy)

    with claimed(request) as folder:
        return carry_out(request, folder, new_console(request))


def _show_options() -> None:
    """Show every option in the signature and in the docstring of ``run``, from its one declaration."""
    import inspect  # noqa: PLC0415 (lazy)
    from dataclasses import fields  # noqa: PLC0415 (lazy)

    from compare.option import default_of  # noqa: PLC0415 (lazy)
    from compare.options import declaration  # noqa: PLC0415 (lazy)

    parameters: list[inspect.Parameter] = []
    lines: list[str] = []
    for declared in fields(Options):
        kind = inspect.Parameter.KEYWORD_ONLY if parameters else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = default_of(declared)
        parameters.append(inspect.Parameter(declared.name, kind, default=default, annotation=declared.type))
        lines.append(f"        {declared.name}: {declaration(declared).help.replace('%%', '%')}.")
    run.__signature__ = inspect.Signature(parameters, return_annotation="Result")  # type: ignore[attr-defined]
    run.__doc__ = f"{(run.__doc__ or '').rstrip()}\n" + "\n".join(lines) + "\n"


_show_options()


def load(run: str | Path) -> Result:
    """Load a recorded run from its files alone, without TensorFlow.

    For example::

        compare.load("reports/example").metrics  # a pandas DataFrame

    Args:
        run: the run's folder.

    Returns:
        As ``compare.run`` gives it: the verdict, the metrics as a DataFrame, the gap per step, the figures.

    Raises:
        RequestError: when no judged run is there, or its files are damaged.
    """
    from compare.records import RecordError, read_verdict  # noqa: PLC0415 (lazy)
    from compare.reporting.result import Result  # noqa: PLC0415 (lazy)
    from compare.verdict import EXIT_STATUS  # noqa: PLC0415 (lazy)

    if not isinstance(run, str | Path):
        raise RequestError(f"compare.load: {type(run).__name__} is not a folder: give the folder of a run")
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
    """Run the short check as an assertion in a test of your own; takes seconds and writes no files.

    Trains a few small batches on one replica, and on two if there are two devices (see ``configure``).

    For example::

        def test_my_loop():
            compare.assert_alike(experiment, MyLoop())

    Args:
        experiment: as for ``run``.
        trainer: the candidate: a trainer, or what the command's ``--trainers`` takes.
        reference: the trainer that the candidate is compared with.
        seed: seed of the initial weights and of the order of examples.

    Raises:
        AssertionError: when they do not train and report alike; the message names the cause.
        RequestError: when the experiment or a trainer does not exist.
    """
    from compare.app.loading import load_experiment, load_trainers  # noqa: PLC0415 (lazy)
    from compare.check import check  # noqa: PLC0415 (lazy)
    from compare.engine.strategies import configure  # noqa: PLC0415 (lazy)
    from compare.verdict import EXIT_STATUS  # noqa: PLC0415 (lazy)

    options = Options(experiment=experiment, trainers=(reference, trainer), seed=seed)
    (_, held_against), (_, candidate) = load_trainers(options)
    configure()
    report = check(load_experiment(options), candidate, reference=held_against, seed=seed)
    if EXIT_STATUS[report.verdict]:
        raise AssertionError(str(report))


def report(*, epoch: int = 0, **metrics: float) -> None:
    """Report numbers of an epoch from a script that ``compare.py --scripts`` runs; elsewhere it does nothing.

    For scripts that calculate their losses and metrics without Keras's ``Metric`` objects, which are seen anyway.

    For example::

        compare.report(epoch=epoch + 1, loss=total / steps, val_accuracy=correct / len(y_val))

    Args:
        epoch: the epoch, from 1; by default the one that has just been trained.
        metrics: the numbers, under the names that ``fit`` gives them.
    """
