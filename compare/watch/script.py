"""Runs one script unedited, as ``python SCRIPT.py ARGUMENTS`` would, and records its trainings."""

from __future__ import annotations

import ast
import asyncio
import atexit
import builtins
import os
import sys
import threading
import time
import traceback
from contextlib import nullcontext, suppress
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import tensorflow as tf

from compare.engine.insides_keras import APPLICATIONS, keras
from compare.errors import StorageError
from compare.patching import patch, undo
from compare.records.files import write_json
from compare.request import keras_of_the_environment
from compare.user_errors import ProcessExit, describe, imported_by, refusing_exit
from compare.watch.alike import make_alike
from compare.watch.environment import environment
from compare.watch.observer import EnoughSteps, Observer
from compare.watch.reported import watch_reports
from compare.watch.settings import Settings
from compare.watch.stages import StageObserver
from compare.watch.trace import ENOUGH, ENVIRONMENT, FAILED, IMPORTED, OTHERS, OVER, UNTRAINED
from compare.watch.trace_writer import TraceWriter


def run(settings: Settings) -> int:
    """Runs the script to the end of its process, or until its trainings have made enough steps.

    Returns the exit status.
    """
    folder, process, began = Path(settings.folder), os.getpid(), time.time()
    generation = keras_of_the_environment()
    writer = TraceWriter(folder)
    initial = make_alike(settings)
    kind = StageObserver if settings.close_up else Observer
    observer = kind(settings, initial, writer)
    watch_reports(observer, writer, settings)
    if sys.platform != "win32":  # which cannot fork
        os.register_at_fork(after_in_child=lambda: _leave_alone(writer))
        patch(os, "setpgrp", _lead_group)
    if settings.checkout:
        _import_from_checkout(settings)
    if settings.cwd:
        os.chdir(settings.cwd)
    sys.argv = [settings.script, *settings.arguments]
    folder_of_script = os.path.dirname(os.path.realpath(settings.script))
    sys.path.insert(0, folder_of_script)  # as Python does, also where the script is called by a link
    _forget_hidden(folder_of_script)
    sys.dont_write_bytecode = True  # nothing is written to the script's folder
    try:
        with refusing_exit(lambda error: _fail(error, settings, writer)):
            raised = _run_to_its_end(settings, writer)
    except BaseException as error:
        raised = error
    status = _status_of(raised)
    if os.getpid() != process:
        return status  # the script has forked, and this is the other process
    if status and isinstance(raised, Exception | ProcessExit):
        _fail(raised, settings, writer)
    if keras_of_the_environment() != generation:
        writer.unseen("sets TF_USE_LEGACY_KERAS itself, when TensorFlow is already there: set it for the command")
    write_json(folder / OTHERS, other_libraries())
    write_json(folder / IMPORTED, imported_by([Path(settings.script)], began))
    if observer.trainings:  # otherwise asking TensorFlow would be the first use of it, which prints
        write_json(folder / ENVIRONMENT, environment(settings.source))
    write_json(folder / UNTRAINED, observer.untrained())
    if not (status or (folder / ENOUGH).exists()):
        observer.ended()
    writer.close()
    if isinstance(observer, StageObserver):
        observer.write(folder)
    return status


def _fail(error: BaseException, settings: Settings, writer: TraceWriter) -> None:
    """Leaves what has ended the script; replaced by another program, its process cannot be watched."""
    told = error.reason if isinstance(error, StorageError) else settings.cited(describe(error))
    write_json(Path(settings.folder) / FAILED, told)
    if isinstance(error, ProcessExit) and error.status is None:
        why = f"replaces its process: {told}, and only the process that is started is watched"
        writer.unseen(f"{why}; set what it sets before, such as a variable of the environment, for the command")


def _import_from_checkout(settings: Settings) -> None:
    """Has a package that PYTHONPATH or an editable installation names in the repository come from the commit, too."""

    def of_commit(path: str) -> str:
        own = Path(path).resolve()
        known = own.is_relative_to(settings.repository)
        there = Path(settings.checkout) / own.relative_to(settings.repository) if known else own
        return str(there) if there.exists() else path  # what Git does not know, such as an environment, stays

    sys.path[:] = map(of_commit, sys.path)
    for finder in [module for name, module in sys.modules.items() if name.startswith("__editable__")]:
        mapping = getattr(finder, "MAPPING", {})
        mapping.update({package: of_commit(path) for package, path in mapping.items()})


def _forget_hidden(folder: str) -> None:
    """Forgets packages of whose names the script has modules of its own, which are imported when it asks for them."""
    named = {name.partition(".")[0] for name in os.listdir(folder)} & sys.modules.keys() - sys.stdlib_module_names
    for name in named:
        own = PathFinder.find_spec(name, [folder])
        if own is not None and own.origin and own.origin != getattr(sys.modules[name], "__file__", None):
            del sys.modules[name]


def _lead_group(original: Any) -> None:
    """Begins a group of processes, which a session's leader has already and may not ask for, unlike other scripts."""
    if sys.platform == "win32" or os.getpid() != os.getsid(0):
        original()


def _leave_alone(writer: TraceWriter) -> None:
    """Watches nothing in a process that the script has forked, but whether it trains."""

    def unseen(original: Any, *args: Any, **options: Any) -> Any:
        writer.unseen("trains in a process that it forks, and only the script's own is watched: train there")
        return original(*args, **options)

    undo()
    writer.leave()
    for owner, name in ((keras.Model, "fit"), (tf.GradientTape, "__enter__"), *APPLICATIONS):
        patch(owner, name, unseen)


def _run_to_its_end(settings: Settings, writer: TraceWriter) -> BaseException | None:
    """Runs the script, and then what Python runs at the end of its process; returns what the script has raised."""
    raised = None
    try:
        _run_as_main(settings)
    except ProcessExit:
        raise
    except BaseException as error:
        raised = error
        _print(error, settings)
        writer.close()  # what comes now may have no end
    else:
        writer.flush()
        if not writer.left:
            (Path(settings.folder) / OVER).touch()
    with suppress(KeyboardInterrupt) if raised is None else nullcontext():  # by which the command ends a thread
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return raised


def _run_as_main(settings: Settings) -> None:
    """Runs the script as the module ``__main__``, which remains that when the script has ended, as in Python itself."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    loader = SourceFileLoader("__main__", settings.source)
    vars(main).update(__file__=settings.source, __builtins__=builtins, __loader__=loader)
    vars(main).update(__annotations__={}, __cached__=None)
    if settings.notebook:  # which asks its shell for things such as %matplotlib, that do nothing
        vars(main).update(get_ipython=Mock(), display=print)
    awaits = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if settings.notebook else 0
    source = decode_source(Path(settings.source).read_bytes())  # or an error, as in Python itself
    code = compile(source, settings.source, "exec", awaits, dont_inherit=True)
    awaited = eval(code, vars(main))
    if awaited is not None:
        asyncio.run(awaited)


def _print(error: BaseException, settings: Settings) -> None:
    """Prints what has ended the script, as Python does, from the script's own first line on, where that is possible."""
    with suppress(Exception):  # of a hook of the script's, or since it has closed stderr
        if isinstance(error, SystemExit):
            if not isinstance(error.code, int | None):
                print(error.code, file=sys.stderr)
        elif sys.excepthook is not sys.__excepthook__ and not isinstance(error, EnoughSteps):
            sys.excepthook(type(error), error, error.__traceback__)
        elif not isinstance(error, EnoughSteps):
            frame = error.__traceback__
            while frame is not None and frame.tb_frame.f_code.co_filename != settings.source:
                frame = frame.tb_next
            lines = traceback.format_exception(type(error), error, frame or error.__traceback__)
            print(settings.cited("".join(lines)), end="", file=sys.stderr)


def _status_of(raised: BaseException | None) -> int:
    """The exit status of a process that has ended with this."""
    if raised is None or isinstance(raised, EnoughSteps):
        return 0
    code = raised.code if isinstance(raised, SystemExit) else raised.status if isinstance(raised, ProcessExit) else 1
    if code is None:
        return int(not isinstance(raised, SystemExit))
    return (code & 0xFF if code.bit_length() < 64 else 0xFF) if isinstance(code, int) else 1


def other_libraries() -> list[str]:
    """What the script trains with, if it is not this process's ``tf.keras`` on TensorFlow."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    others = {"torch": "PyTorch", "jax": "JAX", "tf_keras": "tf-keras (Keras 2)", "keras": "Keras 3"}
    del others[keras.Model.__module__.partition(".")[0]]
    used = [name for module, name in others.items() if module in sys.modules]
    return ([f"Keras on {backend}"] if backend != "tensorflow" else []) + used
