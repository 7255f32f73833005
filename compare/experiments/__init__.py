"""The built-in experiments (``compare.request.EXPERIMENTS``), imported when they are asked for: all need TensorFlow."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from compare.errors import RequestError
from compare.experiment import Experiment
from compare.request import EXPERIMENTS


def built_in(name: str, data_dir: Path | None = None) -> Experiment:
    """The experiment of this name, with the folder of its files.

    Raises:
        RequestError: if it reads none, and a folder is given.
    """
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found: Any = getattr(importlib.import_module(f"compare.experiments.{module}"), attribute)
    if not isinstance(found, Experiment):
        made: Experiment = found(data_dir)
        return made
    if data_dir is not None:
        raise RequestError(f"--data-dir has no effect with {name}, which reads no external files: leave it out")
    return found
