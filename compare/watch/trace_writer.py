"""Writes the files of a watched script, one set per training, which ``trace.py`` describes and reads."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from compare.engine.described import described, layers_of
from compare.records.files import replace_file, write_json
from compare.records.model import step_dtype
from compare.watch.trace import ENOUGH, EXCLUDED, MADE_AT, MADE_WITH, SET_AT, UNSEEN, Measured

FLUSH_SECONDS = 0.5
OF_TRAINING = (
    "number", "created", "alike", "changed_early", "eager", "parts", "began", "ended", "trained", "reseeded",
    "empty", "state", "of", "untaped",
)  # fmt: skip
"""What a trace has of the watched training by the same name."""
OF_SCRIPT = "calls", "shuffles", "drawn", "measured", "averages", "whole"
"""What it has of the script, and so of its writer."""


class TraceWriter:
    """Writes the traces of one script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._traces: dict[int, dict[str, Any]] = {}
        self._trainings: list[Any] = []
        self._rows: dict[int, list[tuple[int, np.ndarray, np.ndarray]]] = {}
        self._flushed = 0.0
        self.calls: list[str] = []
        self.shuffles: list[bool] = []
        self.drawn: dict[str, list[str]] = {}
        self.measured: list[Measured] = []
        self.averages = self.whole = self.left = False

    def leave(self) -> None:
        """Writes nothing more, in a process that the script has forked: its own process writes what it has."""
        self.left = True
        self._rows.clear()
        self._trainings.clear()

    def content(self, number: int) -> dict[str, Any]:
        """What is known of a training so far, by the names that ``Trace`` has for it."""
        return self._traces.setdefault(number, {"optimizers": [], "fit": {}, "epochs": [], "reported": []})

    def optimizer(self, number: int, optimizer: Any, *, own: bool) -> None:
        """Records an optimizer that is used for the first time, and whether its class is the script's own."""
        seen = described(optimizer)
        if seen["config"].get("weight_decay") and hasattr(optimizer, "_use_weight_decay"):
            left_out = [each for each in optimizer._trainable_variables if not optimizer._use_weight_decay(each)]
            seen["config"][EXCLUDED] = sorted({each.name.rpartition("/")[2] for each in left_out})
        self.content(number)["optimizers"].append(seen | {
            "made": getattr(optimizer, MADE_AT, None),
            "own": own,
            "begins": getattr(optimizer, MADE_WITH, None),
        })  # fmt: skip

    def begin(self, training: Any, fingerprint: Any, trained_by: str) -> None:
        """Records a training's variables, and its initial weights where they are known."""
        content = self.content(training.number)
        content["trained_by"] = trained_by
        content["variables"] = tuple(fingerprint.variables)
        content["replicas"] = fingerprint.replicas
        content["layers"] = layers_of(training.root, made=MADE_AT)
        self._trainings.append(training)
        if training.initial is not None:
            hashes, projections = fingerprint.of([[value] * fingerprint.replicas for value in training.initial])
            self.step(training.number, 0, hashes, projections)
        for each in self._trainings:  # the others may have ended
            self._write(each)

    def step(self, number: int, step: int, hashes: np.ndarray, projections: np.ndarray) -> None:
        """Records the weights after a step; of a step that is recorded again, the last ones count."""
        self._rows.setdefault(number, []).append((step, hashes, projections))
        if time.monotonic() > self._flushed + FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        for number, rows in self._rows.items():
            if not rows:
                continue
            block = np.array([(1, *row) for row in rows], step_dtype(*rows[0][1].shape))
            with open(self.folder / f"{number}.steps", "ab") as file:
                file.write(block.tobytes())
            rows.clear()

    def enough(self) -> None:
        """Writes everything once, and says that the script is to end."""
        if not (self.folder / ENOUGH).exists():
            self.close()
            (self.folder / ENOUGH).touch()

    def unseen(self, how: str) -> None:
        """Says how the script trains where it is not watched; then there is nothing to compare."""
        write_json(self.folder / UNSEEN, how)

    def close(self) -> None:
        """Writes everything; the script has ended."""
        self.flush()
        for training in self._trainings:
            self._write(training)

    def _write(self, training: Any) -> None:
        content = self.content(training.number)
        of_script = {name: getattr(self, name) for name in OF_SCRIPT}
        of_training = {name: getattr(training, name) for name in OF_TRAINING} | {"model": training.name}
        for seen, optimizer in zip(content["optimizers"], training.described, strict=False):
            seen["lr"] = None if seen["own"] else _without_effect(optimizer)
            seen["rate_set"] = rate_set_at(optimizer)
        replace_file(self.folder / f"{training.number}.trace", pickled(content | of_script | of_training))


def rate_set_at(optimizer: Any) -> tuple[str, int, str] | None:
    """The line of the script that has set an optimizer's learning rate last; None if none has."""
    rate = getattr(optimizer, "_learning_rate", None)
    value = getattr(rate, "value", rate)
    copies = value, *getattr(value, "values", ())
    return next(filter(None, (getattr(each, SET_AT, None) for each in copies)), None)


def _without_effect(optimizer: Any) -> float | None:
    """The learning rate that a script has set as ``lr``, by which Keras 3 has no option."""
    try:
        return float(vars(optimizer)["lr"])
    except (KeyError, TypeError, ValueError):
        return None


PACKAGE = sys.modules[__name__.partition(".")[0]]
"""This package."""


def pickled(content: Any) -> bytes:
    """What can be read back, with classes of this package, also where the script has a module of its name.

    Pickling imports the package that a class is of; the script's would run.
    """
    of_script = sys.modules.get(PACKAGE.__name__)
    sys.modules[PACKAGE.__name__] = PACKAGE
    try:
        return pickle.dumps(content)
    finally:
        if of_script is None:
            del sys.modules[PACKAGE.__name__]
        else:
            sys.modules[PACKAGE.__name__] = of_script
