"""Does a custom training loop train like ``model.fit``, and if not, where and why do they diverge?

A comparison of Keras's ``fit`` with the custom loop of this package, on two logical CPU devices:

>>> import compare
>>> compare.configure(replicas=2)
>>> result = compare.run("fashion-mnist-sample", trainers=("fit", "loop"), replicas=2, epochs=1, quiet=True)
>>> result.verdict
'identical'

``result.metrics`` is a DataFrame, ``result.path`` the folder with the plot and all files, ``print(result)`` says what
the terminal said, and ``result.causes`` and ``result.first_difference`` say why and where the two diverge. Your own
task is a ``compare.Experiment``, your own loop any object with a ``name`` and ``train(run)``.

To compare: ``run`` (the command), ``assert_alike`` and ``assert_scripts_alike`` (in a test), ``configure`` (devices,
before TensorFlow is in use).
To describe: ``Experiment`` (the task), ``Trainer`` (a loop; it takes all it needs from a ``Run``), ``CustomLoop`` and
``TrainStep`` (to override in part), ``report`` (numbers of a script). What comes out: ``Result``, also from ``load``;
``RequestError`` if the request is wrong, ``NoVerdictError`` if a script fails or trains nothing.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, get_args, get_origin, get_type_hints

from compare.errors import NoVerdictError, RequestError
from compare.experiment import Experiment
from compare.naming import absolute, did_you_mean, given_path, refuse_unreadable, renamed, shown_path
from compare.option import Converted
from compare.options import MODES, OPTIONS, Options
from compare.request import Request, Task

if TYPE_CHECKING:
    from compare.engine.run import Run
    from compare.engine.strategies import configure
    from compare.reporting.result import Result
    from compare.trainer import Trainer
    from compare.trainers.custom_loop import CustomLoop
    from compare.trainers.train_step import TrainStep

__version__ = "0.1.0"

__all__ = [
    "CustomLoop",
    "Experiment",
    "NoVerdictError",
    "RequestError",
    "Result",
    "Run",
    "TrainStep",
    "Trainer",
    "assert_alike",
    "assert_scripts_alike",
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
    """What is meant for people; what else a module has by itself begins with two underscores."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


Given = ParamSpec("Given")

_one_at_a_time = threading.RLock()
"""Trainings in several threads would share what TensorFlow and Keras have once in a process, such as layers' names."""


def _takes(options: Callable[Given, Options]) -> Callable[[Callable[[Request], Result]], Callable[Given, Result]]:
    """Gives a function the parameters of ``Options``, for readers, editors and type checkers alike."""

    def decorate(function: Callable[[Request], Result]) -> Callable[Given, Result]:
        def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            kwargs = renamed(kwargs)  # type: ignore[assignment] # a type checker knows the names of today only
            try:
                given = inspect.signature(options).bind(*args, **kwargs).arguments
            except TypeError as error:
                meant = did_you_mean([name for name in kwargs if name not in OPTIONS], OPTIONS)
                raise RequestError(f"compare.run: {error}{meant}") from None
            if empty := [
                mode.word for mode in MODES if given.get(mode.word) == []
            ]:  # of a pattern, say: not a training
                raise RequestError(f"compare.run: {empty[0]} is an empty list: name what to compare, or leave it out")
            with _one_at_a_time:
                path = list(sys.path)
                try:
                    return function(options(*args, **kwargs).request)
                finally:
                    sys.path[:] = path  # without the folders of users' files

        _show_options(run, function)
        return run

    return decorate


def _show_options(run: Callable[..., Result], function: Callable[..., Result]) -> None:
    """Shows every option in a function's signature and docstring, from its one declaration."""
    hints = get_type_hints(Options)
    parameters: list[inspect.Parameter] = []
    lines: list[str] = []
    for name, option in OPTIONS.items():
        kind = inspect.Parameter.KEYWORD_ONLY if parameters else inspect.Parameter.POSITIONAL_OR_KEYWORD
        annotation = get_args(hints[name])[0] if get_origin(hints[name]) is Converted else hints[name]
        parameters.append(inspect.Parameter(name, kind, default=option.default, annotation=annotation))
        lines.append(f"        {name}: {option.full_help().replace('%%', '%')}.")
    update_wrapper(run, function)
    del run.__wrapped__  # type: ignore[attr-defined] # which takes something else
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": "Result"}
    run.__signature__ = inspect.Signature(parameters, return_annotation="Result")  # type: ignore[attr-defined]
    run.__doc__ = f"{(function.__doc__ or '').rstrip()}\n" + "\n".join(lines) + "\n"


@_takes(Options)
def run(request: Request) -> Result:
    """Train an experiment with two or more trainers and compare the results.

    Does everything that the command does and writes the same files. Can be called many times in one process.
    Sets the process's random seeds and turns op determinism on (see ``configure``).

    For example::

        result = compare.run("fashion-mnist-sample", trainers=("fit", MyLoop()), epochs=2, quiet=True)
        print(result.verdict)  # identical, alike, different, …

    Returns:
        The verdict, its causes, the first difference, the metrics and the folder; see ``help(compare.Result)``.

    Raises:
        RequestError: where the command would exit with status 2.

    Args:
    """
    from compare.app.run_folder import claimed  # noqa: PLC0415 (lazy)
    from compare.app.session import carry_out  # noqa: PLC0415 (lazy)
    from compare.app.standard_streams import console  # noqa: PLC0415 (lazy)

    if isinstance(request, Task):
        request.refuse_missing_files()
    with claimed(request) as folder:
        return carry_out(request, folder, console(quiet=request.quiet))


def load(folder: str | Path) -> Result:
    """Load the result of an earlier ``run`` from its files alone, without TensorFlow.

    For example::

        result = compare.load("reports/example-different")
        print(result)  # what the terminal said
        result.metrics  # a pandas DataFrame
        result.first_difference.epoch, result.first_difference.step, result.stage
        [cause.id for cause in result.causes]

    Args:
        folder: where the results are, such as ``result.path``.

    Returns:
        As ``compare.run`` gives it: the verdict, its causes, the first difference, the metrics as a DataFrame, the gap
        per step, the figures.

    Raises:
        RequestError: when no verdict is there, or ``run.json``, ``verdict.json`` or ``metrics.csv`` is damaged. Records
            of weights are verified when they are read, as by ``gaps`` and ``figures``.
    """
    from compare.records.model import RecordError  # noqa: PLC0415 (lazy)
    from compare.records.reader import read_rows  # noqa: PLC0415 (lazy)
    from compare.records.run_json import RunJson, read_verdict  # noqa: PLC0415 (lazy)
    from compare.reporting.result import Result  # noqa: PLC0415 (lazy)
    from compare.reporting.run_files import verdict_of  # noqa: PLC0415 (lazy)
    from compare.verdict.outcomes import EXIT_STATUS  # noqa: PLC0415 (lazy)

    if not isinstance(folder, str | Path):
        raise RequestError(f"compare.load: {type(folder).__name__} is not a folder: give the folder of a comparison")
    folder = absolute(given_path(folder))
    refuse_unreadable(folder)
    if not os.path.isdir(folder):  # of a name that is too long, too
        what = "it is not a folder" if os.path.exists(folder) else "there is no such folder"
        raise RequestError(f"{shown_path(folder)}: no run with a verdict is there: {what}")
    try:
        word = read_verdict(folder / "verdict.json")["verdict"]
        if word not in [*EXIT_STATUS]:
            raise RequestError(f"{shown_path(folder / 'verdict.json')}: damaged, it has no verdict")
        verdict_of(folder), read_rows(folder)  # whatever else is damaged is said now
    except RecordError as error:
        if (folder / "verdict.json").exists():
            raise
        within = sorted(each.parent.name for each in folder.glob("*/verdict.json"))
        what = f"it is a folder of runs: give one of them, such as {within[0]}" if within else f"{error}"
        with suppress(RecordError):
            what = next((each["error"] for each in RunJson.read(folder).failures or ()), what)
        raise RequestError(f"{shown_path(folder)}: no run with a verdict is there: {what}") from None
    return Result(folder, word)


def assert_alike(
    experiment: str | Experiment,
    trainer: str | Trainer,
    *,
    reference: str | Trainer = "fit",
    seed: int = 0,
    batch_size: int | None = None,
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
        batch_size: examples per replica in the training that this stands for. The check's batches are smaller; its
            last one is short, or splits unevenly over replicas, only if one of that training is. By default both.

    Warns:
        UserWarning: if the candidate reports names that the reference does not, in place of others, reports no steps,
            cannot be copied, so that its trainings share what it keeps, has an optimizer with other settings that make
            no difference in the few steps of the check, if the weights or numbers of both are NaN or infinite, or if
            the candidate uses its strategy, but was checked on one replica only: there is one device, or one of both
            raises on two.

    Raises:
        AssertionError: when they do not train and report alike, or there is no verdict (``inconclusive``); the message
            names the cause.
        RequestError: when the experiment or a trainer does not exist.
    """
    from compare.app import standard_streams  # noqa: PLC0415 (lazy)

    __tracebackhide__ = True  # pytest then shows the line of the test
    options = Task(experiment=experiment, trainers=(reference, trainer), seed=seed)
    options = options if batch_size is None else replace(options, batch_size=batch_size)
    options.refuse_missing_files()
    standard_streams.provide()
    with _one_at_a_time, standard_streams.stderr_to(Path(os.devnull)):  # TensorFlow's messages at its start
        import tensorflow as tf  # noqa: PLC0415 (lazy)

        tf.config.list_physical_devices()
    from compare.app.loading import load_experiment, load_trainers  # noqa: PLC0415 (lazy)
    from compare.check import check  # noqa: PLC0415 (lazy)
    from compare.check.checker import FAILS_ON_TWO, ONE_DEVICE  # noqa: PLC0415 (lazy)
    from compare.engine.anew import shared_state  # noqa: PLC0415 (lazy)
    from compare.engine.strategies import configure  # noqa: PLC0415 (lazy)
    from compare.reporting.sentences import misnamed, silent, warning  # noqa: PLC0415 (lazy)
    from compare.reporting.terminal import in_short  # noqa: PLC0415 (lazy)
    from compare.verdict.outcomes import EXIT_STATUS  # noqa: PLC0415 (lazy)

    (_, held_against), (_, candidate) = load_trainers(options)
    configure()
    with _one_at_a_time:
        report = check(load_experiment(options), candidate, reference=held_against, seed=seed, batch_size=batch_size)
    judged, name = report.judged, report.reference
    failed = (each.reason for each in report.not_applicable if each.reason.startswith((FAILS_ON_TWO, ONE_DEVICE)))
    texts = misnamed(judged, name), silent(judged), shared_state(candidate), warning(judged, name), *report.notes
    for text in (*texts, *(f"checked on one replica only: {reason}" for reason in failed)):
        if text:
            warnings.warn(text, stacklevel=2)
    if EXIT_STATUS[report.verdict]:
        given = [*map(_as_argument, (experiment, reference, trainer))]
        asked = "--experiment {} --trainers {} {}".format(*given) + f" --batch-size {batch_size}" * bool(batch_size)
        text = in_short(report.as_verdict(), asked)
        if any(each.endswith(":NAME") for each in given):
            text += "; NAME is what this test gives, once a file makes it under that name"
        if batch_size is None and any(each.id in OF_LAST_BATCH for each in judged.causes):
            text += f"\n  {NO_BATCH_SIZE}"
        raise AssertionError(text)


OF_LAST_BATCH = "loss-constant-denominator", "uneven-replica-batches"
"""The causes that a training whose batches all have one size does not have."""
NO_BATCH_SIZE = (
    "No batch_size was given, so the last batch was short and split unevenly; that of your training may not be: "
    "assert_alike(..., batch_size=64) checks it with 64 examples per replica."
)


def _as_argument(given: str | Experiment | Trainer) -> str:
    """An experiment or a trainer as the command names it: a file in which it has a name, and this name."""
    if isinstance(given, str):
        return given
    cls = given if isinstance(given, type) else type(given)
    named = []
    for module, there in [(name, getattr(module, "__dict__", {})) for name, module in [*sys.modules.items()]]:
        if file := there.get("__file__"):  # a lazy module that is asked for an attribute would be loaded
            order = module != cls.__module__, Path(file).name.startswith("test")  # who only imports it is last
            values = [*there.items()]
            named += [(order, file, name) for name, value in values if value is given or value is cls is not Experiment]
    _, file, name = min(named, default=(None, "FILE.py", "NAME"))
    made = given is not cls and getattr(sys.modules.get(cls.__module__), name, None) is cls
    # Of one that was made with arguments, the class would be another trainer.
    return f"{shown_path(file)}:{'NAME' if made and inspect.signature(cls).parameters else name}"


def assert_scripts_alike(*scripts: str | Path, reports: str | Path | None = None, **options: Any) -> None:
    """Compare scripts as an assertion in a test of your own: two, or one under two interpreters or in two commits.

    For example::

        def test_the_upgrade_changes_no_training():
            compare.assert_scripts_alike("train.py", python=("old/bin/python", "new/bin/python"), max_steps=100)


        def test_my_branch_trains_as_main_does():
            compare.assert_scripts_alike("train.py", commits=("main", "HEAD"))

    Args:
        scripts: one script or two.
        reports: the folder that keeps the files and the page; by default nothing is kept.
        options: other options of ``run`` that scripts have.

    Raises:
        AssertionError: when they do not train and report alike; the message is the cause and what the terminal says.
        RequestError: when a script, an interpreter or a commit does not exist.
        NoVerdictError: when a script fails, or trains nothing.
    """
    import tempfile  # noqa: PLC0415 (lazy)

    from compare.reporting.sentences import worst_first  # noqa: PLC0415 (lazy)
    from compare.reporting.terminal import headline  # noqa: PLC0415 (lazy)
    from compare.verdict.outcomes import EXIT_STATUS  # noqa: PLC0415 (lazy)

    __tracebackhide__ = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = run(scripts=[str(each) for each in scripts], reports=reports or folder, quiet=True, **options)
        except (RequestError, NoVerdictError) as error:
            raise error.with_traceback(None) from None  # its text says it all
        if EXIT_STATUS[result.verdict]:
            worst, *_ = worst_first(result._verdict)
            raise AssertionError("\n".join([*headline(worst), str(result)]))


def report(epoch: int | None = None, **metrics: float) -> None:
    """Report numbers of an epoch from a script that ``fit-vs-loop scripts`` runs; elsewhere it does nothing.

    For scripts that calculate their losses and metrics without Keras's ``Metric`` objects, which are seen anyway.

    For example::

        compare.report(epoch=epoch + 1, loss=total / len(y_train), val_accuracy=correct / len(y_val))

    ``fit`` reports means over examples: ``total`` has the loss of each batch times the number of its examples.

    Args:
        epoch: the epoch, from 1, or from 0 in all calls; by default the one that has just been trained.
        metrics: the numbers, under the names that ``fit`` gives them.

    Raises:
        TypeError: in such a script, if one of them is not a single number.
    """
