"""The one way to train with a trainer: with a copy of it, whose functions hold no graphs of an earlier training.

A comparison trains with the same trainer several times, on another model each time: the training itself, the short
check, noise twins, further seeds. But a method under ``@tf.function`` keeps the graph of the first model, and an
attribute what the first training left in it.
"""

from __future__ import annotations

import copy
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import IOBase
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import tensorflow as tf

from compare.engine.building import own_policy
from compare.engine.insides_tensorflow import Function, unwrap
from compare.engine.run import Run, TrainerError
from compare.trainer import Trainer
from compare.user_errors import essence, is_users, place_in, place_of

_NO_STATE = (IOBase, logging.Logger, type(threading.Lock()), type(threading.RLock()), ModuleType)
"""Kinds of attributes that need no copy of their own: writing to the same file twice changes no training."""


def train_anew(trainer: Trainer, run: Run) -> None:
    """Trains with a copy of a trainer; the trainer itself stays as it was given, and so do the process's settings."""
    with _restored_settings():
        if _of_this_package(trainer):
            trainer.train(run)
            return
        own, _ = copied(trainer)
        with _without_graphs():
            own.train(run)


def train_whole(trainer: Trainer, name: str, run: Run) -> None:
    """Trains all epochs with a copy of a trainer, as ``train_anew`` does.

    Raises:
        TrainerError: if it violates the contract; the message names the trainer, and the place in the user's code.
        Exception: whatever the trainer raises.
    """
    try:
        train_anew(trainer, run)
    except TrainerError as error:
        raise TrainerError(f"trainer {name}: {error}{place_in(error)}") from error
    run.close()
    if run.forked:
        raise TrainerError(
            f"trainer {name} ({place_of(trainer.train)}) trains in a process that it forks, where TensorFlow does not "
            "work: train in the process that calls train(run)"
        )
    if not run.finished:
        raise TrainerError(
            f"trainer {name} ({place_of(trainer.train)}) returned without ending epoch {run.epoch} of "
            f"{run.epochs[-1]}: call run.end_epoch(epoch, logs) at the end of every epoch in run.epochs"
        )


def shared_state(trainer: Trainer) -> str:
    """What all trainings with a trainer have to share because it cannot be copied, in one line; empty if nothing."""
    reasons = [] if _of_this_package(trainer) else copied(trainer)[1]
    return f"{'; '.join(reasons)}: all trainings share it, the short check too" if reasons else ""


def _of_this_package(trainer: Trainer) -> bool:
    """Whether this is one of the trainers here, of which no training depends on what an earlier one has left."""
    return type(trainer).__module__.startswith("compare.")


def copied(trainer: Trainer) -> tuple[Trainer, list[str]]:
    """Returns a copy of a trainer and of everything in its attributes, and what could not be copied, with the reason.

    Functions are copied where they refer to the trainer: a function that ``__init__`` defines, say.
    """
    if isinstance(trainer, ModuleType):
        return trainer, []  # its functions, whose graphs are forgotten; nobody imports it again
    try:
        own = copy.copy(trainer)
    except Exception as error:
        return trainer, [f"trainer {trainer.name} cannot be copied ({_why(error)})"]
    if own is trainer:
        return trainer, []  # it says itself that there is one of it only
    functions = _functions()
    memo: dict[int, Any] = {id(trainer): own, **{id(function): function for function in functions}}
    reasons = []
    for name, value in _attributes(own):
        try:
            new = value if _stateless(value) else copy.deepcopy(value, memo)
        except Exception as error:
            new = value
            reasons.append(f"trainer {trainer.name}: its attribute {name} cannot be copied ({_why(error)})")
        object.__setattr__(own, name, new)
    for name, value in _attributes(own):
        object.__setattr__(own, name, _rebound(value, memo))
    return own, reasons


def _why(error: Exception) -> str:
    kind, text = essence(error)
    return f"{kind}: {' '.join(text.split())[:100]}"


def _attributes(instance: Any) -> list[tuple[str, Any]]:
    """The attributes of an instance, in ``__dict__`` and in slots."""
    slots = [name for cls in type(instance).__mro__ for name in _slots(cls) if hasattr(instance, name)]
    return [*getattr(instance, "__dict__", {}).items(), *((name, getattr(instance, name)) for name in slots)]


def _slots(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if not name.startswith("__")]


def _stateless(value: Any) -> bool:
    """Whether an attribute needs no copy: TensorFlow's own objects without a state (data sets, strategies, writers)."""
    has_state = hasattr(value, "assign") or isinstance(value, Iterator | tf.random.Generator)
    of_tensorflow = type(value).__module__.partition(".")[0] == "tensorflow" and not has_state
    return of_tensorflow or isinstance(value, _NO_STATE)


def _rebound(value: Any, memo: dict[int, Any]) -> Any:
    """Returns a function that refers to the copies where ``value`` refers to what was copied; also in containers."""
    if isinstance(value, dict) and type(value) is dict:
        value.update({key: _rebound(each, memo) for key, each in value.items()})
        return value
    if type(value) is list:
        value[:] = [_rebound(each, memo) for each in value]
        return value
    if type(value) is tuple:
        return tuple(_rebound(each, memo) for each in value)
    if isinstance(value, FunctionType):
        return _rebound_closure(value, memo)
    if isinstance(value, Function):
        python = value.python_function
        if isinstance(python, MethodType):
            target = memo.get(id(python.__self__), python.__self__)
            new = python if target is python.__self__ else MethodType(python.__func__, target)
        else:
            new = _rebound(python, memo)
        return value if new is python else value._clone(new)
    return value


def _rebound_closure(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Returns a function with the copies in its closure, or the function itself if none of it was copied."""
    if id(function) in memo:
        found: FunctionType = memo[id(function)]
        return found
    memo[id(function)] = function  # for one that refers to itself
    cells = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # it is empty
            cells.append(cell)
            continue
        is_function = isinstance(content, FunctionType | Function)
        new = _rebound(content, memo) if is_function else memo.get(id(content), content)
        cells.append(cell if new is content else CellType(new))
    if all(new is old for new, old in zip(cells, function.__closure__ or (), strict=True)):
        return function
    own = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    own.__kwdefaults__, own.__dict__ = function.__kwdefaults__, dict(function.__dict__)
    memo[id(function)] = own
    return own


@contextmanager
def _restored_settings() -> Iterator[None]:
    """Restores the settings of the process that a trainer may change: they are none of the trainers' after it."""
    floatx = tf.keras.backend.floatx()
    eagerly, jit = tf.config.functions_run_eagerly(), tf.config.optimizer.get_jit()
    try:
        with own_policy():
            yield
    finally:
        tf.keras.backend.set_floatx(floatx)
        if tf.config.functions_run_eagerly() != eagerly:
            tf.config.run_functions_eagerly(eagerly)
        if tf.config.optimizer.get_jit() != jit:
            tf.config.optimizer.set_jit(jit or False)


@contextmanager
def _without_graphs() -> Iterator[None]:
    """Forgets the graphs of all functions of users' own while a trainer trains, and puts them back afterwards."""
    kept = []
    for function in _functions():
        if not is_users(unwrap(function.python_function)[1]):  # also inside that of a bound method
            continue
        kept.append((function, dict(vars(function))))
        vars(function).pop("_concrete_variable_creation_fn", None)
        function._created_variables = function._variable_creation_config = None
        function._no_variable_creation_config = None
        for name in ("_function_cache", "_function_captures", "_descriptor_cache"):
            setattr(function, name, type(getattr(function, name))())
    try:
        yield
    finally:
        for function, state in kept:
            vars(function).clear()
            vars(function).update(state)


def _functions() -> list[Any]:
    """Returns all ``tf.function`` objects of this process; TensorFlow keeps no list of them."""
    return [each for each in gc.get_objects() if type(each) is Function]
