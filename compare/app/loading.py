"""Loads the experiments and trainers that a user names: built-in ones, and those in the user's own files."""

from __future__ import annotations

import importlib
import importlib.util
import math
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from compare.errors import RequestError
from compare.experiment import Experiment
from compare.experiments import built_in
from compare.naming import did_you_mean, distinct, is_file, refuse_missing, shown_path, source_and_attribute
from compare.reporting.terminal import tell
from compare.request import EXPERIMENTS, TRAINERS, Task
from compare.trainer import Trainer
from compare.user_errors import describe, without_exit

MOST_NAMES = 5
"""How many of a file's names are told."""


def load(options: Task, console: Console) -> tuple[list[tuple[str, Trainer]], Experiment]:
    """The trainers and the experiment that the options name; prints what must be said about them."""
    from compare.engine.anew import shared_state  # noqa: PLC0415 (lazy)

    trainers, experiment = load_trainers(options), load_experiment(options)
    for note in (*experiment.notes, *filter(None, (shared_state(trainer) for _, trainer in trainers))):
        tell(console, f"Note: {note}", style="yellow")
    return trainers, experiment


def load_experiment(options: Task) -> Experiment:
    wanted: Any = options.located(options.experiment)
    if isinstance(wanted, str) and wanted in EXPERIMENTS:
        return built_in(wanted, options.located(options.data_dir))
    if options.data_dir is not None:
        raise RequestError("--data-dir is for built-in experiments; your own experiment loads its data itself")
    experiment = wanted
    if isinstance(wanted, str):
        path, attribute = source_and_attribute(wanted)
        experiment = _attribute(_file_module(Path(path)), attribute or "experiment", path)
    if not isinstance(experiment, Experiment):
        raise RequestError(f"{shown_path(wanted)} is of type {type(experiment).__name__}, not a compare.Experiment")
    for field, (what, is_valid) in FIELDS.items():
        if not is_valid(value := getattr(experiment, field)):
            raise RequestError(f"the experiment's {field} is {reprlib.repr(value)}: give {what}")
    return experiment


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_class_weight(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    classes = all(isinstance(key, Integral) and int(key) >= 0 for key in value)
    return bool(value) and classes and all(map(_is_number, value.values()))


def _are_loss_weights(value: Any) -> bool:
    if isinstance(value, list | tuple | Mapping):
        return all(map(_are_loss_weights, value.values() if isinstance(value, Mapping) else value))
    return value is None or _is_number(value)


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": (
        "a text in one printable line",
        lambda value: isinstance(value, str) and value != "" and value.isprintable(),
    ),
    "class_weight": ("a dict from each class, a whole number, to its weight, a number", _is_class_weight),
    "loss_weights": ("numbers in a list or dict, one per output", _are_loss_weights),
    "data_source": ("a text", lambda value: isinstance(value, str)),
    "notes": (
        "a tuple of texts",
        lambda value: isinstance(value, list | tuple) and all(isinstance(note, str) for note in value),
    ),
}
"""What a field of an experiment that is no function must be: a description for messages, and a check."""


def load_trainers(options: Task) -> list[tuple[str, Trainer]]:
    """The trainers that the options name, under unique names: a second ``fit`` is ``fit-2``."""
    loaded: list[tuple[str, Trainer]] = []
    for wanted in options.trainers:
        trainer = load_trainer(options.located(wanted))
        loaded.append((distinct(str(trainer.name), [taken for taken, _ in loaded]), trainer))
    return loaded


def load_trainer(wanted: str | Trainer) -> Trainer:
    """The trainer that an option names, a new instance if it names a class."""
    trainer: Any = wanted
    if isinstance(wanted, str):
        source, attribute = source_and_attribute(TRAINERS.get(wanted, wanted))
        if is_file(wanted):
            module = _file_module(Path(source))
        else:
            with _importing(source):
                module = importlib.import_module(source)
        trainer = _attribute(module, attribute, source)
    if isinstance(trainer, type):
        try:
            trainer = trainer()
        except Exception as error:
            raise RequestError(
                f"trainer {trainer.__name__} cannot be made without arguments: {describe(error)}; give an instance"
            ) from error
    name = getattr(trainer, "name", None)
    if not (isinstance(name, str) and name and name.isprintable() and callable(getattr(trainer, "train", None))):
        raise RequestError(
            f"{shown_path(wanted)} is no trainer: it needs a name in one printable line and a method train(self, run)"
        )
    return trainer  # type: ignore[no-any-return]


def _attribute(module: Any, attribute: str, source: str) -> Any:
    if not hasattr(module, attribute):
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        known = {name: value for name, value in public.items() if not isinstance(value, ModuleType)}
        own = [name for name, value in known.items() if isinstance(value, Experiment) or hasattr(value, "train")]
        there = f"; it has {', '.join(own[:MOST_NAMES])}" if own else ": name one of its attributes after the colon"
        meant = did_you_mean(attribute, known) or there
        raise RequestError(f"{shown_path(source)} has no {attribute!r}{meant}")
    return getattr(module, attribute)


def _file_module(path: Path) -> Any:
    refuse_missing(path)
    spec = importlib.util.spec_from_file_location(f"user_file_{path.stem}", path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    _put_first(path.resolve().parent)
    with _importing(shown_path(path), [Path.cwd(), *path.resolve().parents]):
        spec.loader.exec_module(module)
    return module


_folders: list[str] = []
"""The folders of users' files, which come last in ``sys.path``."""


def _put_first(folder: Path) -> None:
    """Lets a file import its neighbours, as when Python itself runs it, also those named as another file's are."""
    others = [each for each in _folders if each != str(folder)]
    _folders[:] = [str(folder), *others]
    sys.path[:] = [each for each in sys.path if each not in _folders] + _folders

    def of_another(name: str) -> bool:
        name = name.partition(".")[0]
        file = Path(getattr(sys.modules.get(name), "__file__", None) or "/")
        of = file.parent.parent if file.name == "__init__.py" else file.parent
        return str(of) in others and ((folder / f"{name}.py").exists() or (folder / name).is_dir())

    for name in list(filter(of_another, sys.modules)) if others else ():
        del sys.modules[name]


def _executes_eagerly() -> bool:
    """Whether operations run at once; so they do where TensorFlow is not there yet."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is None or bool(tensorflow.executing_eagerly())


@contextmanager
def _importing(what: str, folders: Sequence[Path] = ()) -> Iterator[None]:
    """Converts what user code raises when it is imported to a RequestError, or a NoVerdictError if it would exit.

    Where it misses a module that is in one of the folders, the error says so.
    """
    if not _executes_eagerly():
        raise RequestError(
            "eager execution is off here, as in a tf.function, and training needs it: run this elsewhere"
        )
    if (tensorflow := sys.modules.get("tensorflow")) and tensorflow.distribute.has_strategy():
        raise RequestError("this is in the scope of a strategy: run it outside, where a strategy can be asked for")
    with without_exit(f"importing {what}"):
        try:
            yield
        except Exception as error:
            missed = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
            having = (each for each in folders if (each / f"{missed}.py").is_file() or (each / missed).is_dir())
            remedy = ""
            if missed and missed == what.partition(".")[0]:
                remedy = "; give its file, or the folder that it is in as PYTHONPATH"
            elif missed and (folder := next(having, None)):
                remedy = f"; run it with PYTHONPATH={shown_path(folder)}"
            raise RequestError(f"{what} cannot be imported: {describe(error)}{remedy}") from error
    if not _executes_eagerly():
        raise RequestError(f"{what} switches eager execution off, which training needs: remove that from it")
