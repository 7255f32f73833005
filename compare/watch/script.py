"""Runs one script unedited, as ``python SCRIPT.py ARGUMENTS`` would, and records its trainings."""

from __future__ import annotations

import builtins
import os
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

from compare.records import write_json
from compare.user_errors import ProcessExit, describe, refusing_exit
from compare.watch.alike import make_alike
from compare.watch.environment import environment
from compare.watch.observer import EnoughSteps, Observer
from compare.watch.reported import watch_reports
from compare.watch.settings import Settings
from compare.watch.stages import StageObserver
from compare.watch.trace import ENVIRONMENT, FAILED, OTHERS, UNTRAINED, TraceWriter


def run(settings: Settings) -> None:
    """Runs the script to its end, or until its trainings have made enough steps.

    Raises:
        BaseException: whatever the script raises.
    """
    writer = TraceWriter(Path(settings.folder))
    initial = make_alike(settings)
    kind = StageObserver if settings.close_up else Observer
    observer = kind(settings, initial, writer)
    watch_reports(observer, writer)
    if settings.cwd:
        os.chdir(settings.cwd)
    sys.argv = [settings.script, *settings.arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(settings.script)))  # as Python does, be it called by a link
    sys.dont_write_bytecode = True  # nothing is written to the script's folder
    whole = True
    try:
        with refusing_exit():
            _run_as_main(settings)
    except EnoughSteps:
        whole = False
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    except ProcessExit as ended:
        if ended.status != 0:
            write_json(Path(settings.folder) / FAILED, settings.cited(describe(ended)))
            raise
    except Exception as error:
        write_json(Path(settings.folder) / FAILED, settings.cited(describe(error)))
        raise
    finally:
        write_json(Path(settings.folder) / OTHERS, other_libraries())
        write_json(Path(settings.folder) / ENVIRONMENT, environment(settings.source))
        nothing = [str(model.name) for model in observer.fitted if model.built and not model.trainable_weights]
        write_json(Path(settings.folder) / UNTRAINED, nothing)
        if whole and sys.exc_info()[0] is None:
            observer.ended()
        writer.close()
        if isinstance(observer, StageObserver):
            observer.close()


def _run_as_main(settings: Settings) -> None:
    """Runs the script as the module ``__main__``, which remains that when the script has ended, as in Python itself."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__file__=settings.source, __builtins__=builtins)
    if settings.notebook:  # which asks its shell for things such as %matplotlib, that do nothing
        vars(main).update(get_ipython=Mock(), display=print)
    exec(compile(Path(settings.source).read_bytes(), settings.source, "exec", dont_inherit=True), vars(main))


def other_libraries() -> list[str]:
    """What the script trains with, if it is not Keras 3 on TensorFlow."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    others = {"torch": "PyTorch", "jax": "JAX", "tf_keras": "tf-keras (Keras 2)"}
    used = [name for module, name in others.items() if module in sys.modules]
    return ([f"Keras on {backend}"] if backend != "tensorflow" else []) + used
