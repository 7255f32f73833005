"""Checkpoints of a run: a ``tf.train.Checkpoint`` as in the tutorials, with the state that it omits.

``checkpoints/TRAINER/ckpt-EPOCH`` contains model and optimizer in TensorFlow's format, so that
``tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)`` can read it anywhere, with or without a
strategy. TensorFlow saves only the first replica's copy of a variable, and omits Keras 3's seed generators. To resume
a run exactly, ``copies`` contains the copies of all replicas where they differ (the statistics of batch normalization
in Keras 3), and those of seed generators and metrics. ``owner`` says of which run and trainer it is.
An interruption leaves ``ckpt-EPOCH-step-STEP``, until the next one; ``of_epoch`` has the metrics of its epoch so far.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import copies_of, distributed
from compare.engine.insides_tensorflow import without_deprecations
from compare.errors import RequestError, StorageError
from compare.naming import file_name
from compare.records.model import EPOCH_END, Place, in_time
from compare.records.run_json import identity_of
from compare.user_errors import essence

PREFIX = "ckpt"
COPIES, OF_EPOCH = "copies/", "of_epoch/"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
SECONDS = "seconds"
LARGEST_TEXT = 2**20
"""The number of bytes that the texts in a checkpoint have at most."""
OWNER = "owner/.ATTRIBUTES/py_state"


def folder_of(run: Path, trainer: str, seed: int | None = None, worker: int = 0) -> Path:
    """Returns the folder of a trainer's checkpoints; in a cluster, every worker saves its own."""
    folder = run / "checkpoints" / file_name(trainer)
    folder = folder if seed is None else folder / f"seed-{seed}"
    return folder / f"worker-{worker}" if worker else folder


def saved(folder: Path) -> list[Place]:
    """Returns the places for which a folder has checkpoints, the latest first."""
    # A checkpoint with an index is complete: TensorFlow creates the index last, by renaming.
    names = [re.fullmatch(rf"{PREFIX}-(\d+)(?:-step-(\d+))?", path.stem) for path in folder.glob(f"{PREFIX}-*.index")]
    places = [(int(name[1]), int(name[2] or EPOCH_END)) for name in names if name]
    return sorted(places, key=in_time, reverse=True)


def path_of(folder: Path, place: Place) -> Path:
    """Returns the path of a checkpoint as TensorFlow expects it, without the suffixes of its files."""
    epoch, step = place
    return folder / (f"{PREFIX}-{epoch}" if step == EPOCH_END else f"{PREFIX}-{epoch}-step-{step}")


def damage(run: Path, path: Path) -> str:
    """Returns a description of what is wrong with a checkpoint of a run; empty if all of it can be read."""
    try:
        reader = tf.train.load_checkpoint(str(path))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        size = sum(math.prod(shape) * types[name].size for name, shape in shapes.items())
        found = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}.data-*"))
        if found > size + LARGEST_TEXT:
            return f"it has {found:,} bytes, its variables have {size:,}"
        content = {name: reader.get_tensor(name) for name in shapes}  # verifies checksums
    except Exception as error:  # TensorFlow raises many kinds of exceptions, even IndexError
        return " ".join(str(error).split())[:200]
    return "" if content.get(OWNER) == _owner(run, path).encode() else "it belongs to another run or trainer"


def _owner(run: Path, path: Path) -> str:
    """What a checkpoint says of whose it is: the identity of its run, and its place in the folder of the run."""
    return f"{identity_of(run)} {path.relative_to(run).as_posix()}"


class _Owner(tf.train.experimental.PythonState):  # type: ignore[misc] # TensorFlow is untyped
    """A text in a checkpoint. A variable of several workers would have the first one's, which broadcast no texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text

    def deserialize(self, value: str) -> None:
        """Nothing: it is read by ``damage``."""


class Checkpoints:
    """Saves and restores one trainer's model, optimizer, epoch and metrics.

    Args:
        run: the folder of the run.
        folder: that of the trainer's checkpoints in there.
        every: save a checkpoint every this many epochs, and after the last epoch.
        saves_steps: whether an interruption may save one after a step.
    """

    def __init__(self, run: Path, folder: Path, *, every: int = 1, keep: int = 1, saves_steps: bool = False) -> None:
        self._run, self._folder, self._every, self._keep = run, folder, every, keep
        self.saves_steps = saves_steps
        self._of_epoch: Iterable[Any] = ()

    def bind(self, strategy: tf.distribute.Strategy, model: tf.keras.Model, optimizer: Any, metrics: Any) -> None:
        """Sets the objects to save; the optimizer must be built, with its slots."""
        self._strategy, self._model, self._optimizer, self._metrics = strategy, model, optimizer, metrics

    def due(self, epoch: int, last: int) -> bool:
        return epoch % self._every == 0 or epoch == last

    def save(self, place: Place, logs: Mapping[str, float]) -> None:
        """Saves the state at the end of an epoch, or after a step, with the metrics of its epoch so far.

        Raises:
            StorageError: if the checkpoint cannot be written.
        """
        copies = {str(i): tf.Variable(np.stack(values)) for i, values in self._copies()}
        numbers = {quote(name, safe=""): tf.Variable(value, dtype=tf.float64) for name, value in logs.items()}
        path = path_of(self._folder, place)
        state = {"epoch": tf.Variable(place[0], dtype=tf.int64), "logs": numbers, "copies": copies}
        if place[1] != EPOCH_END:
            each = [np.stack([copy.read_value() for copy in self._local(each)]) for each in self._variables_of_epoch]
            state["of_epoch"] = {str(i): tf.Variable(values) for i, values in enumerate(each)}
        state["owner"] = _Owner(_owner(self._run, path))
        checkpoint = tf.train.Checkpoint(model=self._model, optimizer=self._optimizer, **state)
        try:
            checkpoint.write(str(path))
            # Not by a CheckpointManager, which believes the list that it finds, and deletes what that names.
            ends = [each for each in saved(self._folder) if each[1] == EPOCH_END and in_time(each) < in_time(place)]
            kept = [place, *ends[: self._keep - (place[1] == EPOCH_END)]]
            names = [path_of(self._folder, each).name for each in reversed(kept)]
            with without_deprecations():
                tf.compat.v1.train.update_checkpoint_state(str(self._folder), names[-1], names)
            for old in self._folder.glob(f"{PREFIX}-*.*"):
                if old.name.partition(".")[0] not in names:
                    old.unlink()
        except (OSError, tf.errors.OpError) as error:
            text = " ".join(essence(error)[1].split())[-200:]
            raise StorageError(
                f"{path}: the checkpoint cannot be written ({text}); earlier files are kept: "
                "free disk space or make the folder writable, then continue with --resume"
            ) from error

    def restore(self, place: Place) -> None:
        """Restores the state at a place on every replica."""
        path = path_of(self._folder, place)
        try:
            status = tf.train.Checkpoint(model=self._model, optimizer=self._optimizer).read(str(path))
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.OpError) as error:  # other variables, shapes or dtypes
            text = " ".join(essence(error)[1].split())[:200]
            raise RequestError(f"{path}: the checkpoint belongs to another model or optimizer ({text})") from error
        stacked = copies_in(path)
        for i, variable in self._variables():
            copies, values = self._local(variable), stacked.get(i, ())
            # With another number of replicas, all of them keep what TensorFlow restored: the first replica's copy.
            if len(values) == len(copies):
                for copy, value in zip(copies, values, strict=True):
                    copy.assign(value)

    def begin_epoch(self, metrics: Iterable[Any], place: Place | None) -> float:
        """Saves these metrics, too, after a step of this epoch, and restores them as they were at a place.

        Returns:
            The seconds that the epoch had taken up to there.

        Raises:
            ValueError: if the metrics saved there are others.
        """
        self._of_epoch = list(metrics) if isinstance(metrics, Iterator) else metrics
        if place is None:
            return 0.0
        path = path_of(self._folder, place)
        stacked = copies_in(path, OF_EPOCH)
        for variable, i in zip(self._variables_of_epoch, sorted(stacked), strict=True):
            for copy, value in zip(self._local(variable), stacked[i], strict=True):
                copy.assign(value)
        return float(tf.train.load_variable(str(path), f"logs/{SECONDS}{VALUE}"))

    @property
    def _variables_of_epoch(self) -> list[Any]:
        return [variable for metric in self._of_epoch for variable in metric.variables]

    def _local(self, variable: Any) -> Sequence[Any]:
        """Returns the copies of a variable on this process's replicas."""
        return copies_of(self._strategy, [variable])[0]

    def _variables(self) -> Iterator[tuple[int, Any]]:
        """Yields each variable with an index that is equal in every run."""
        metrics = [v for metric in tf.nest.flatten(self._metrics) for v in getattr(metric, "variables", [])]
        yield from enumerate([*self._model.variables, *metrics])

    def _copies(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yields the index and the copies of each variable that TensorFlow's checkpoint does not fully contain."""
        saved_by_tensorflow = {id(distributed(variable)) for variable in self._model.weights}
        model = [id(distributed(variable)) for variable in self._model.variables]
        for i, variable in self._variables():
            values = [np.array(copy.read_value()) for copy in self._local(variable)]
            is_saved = i < len(model) and model[i] in saved_by_tensorflow
            if not is_saved or any(value.tobytes() != values[0].tobytes() for value in values):
                yield i, values


def copies_in(path: Path, group: str = COPIES) -> dict[int, np.ndarray]:
    """Returns the replicas' copies in a checkpoint: arrays ``[replicas, ...]`` by the index of the variable."""
    reader = tf.train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(group)]
    return {int(name.removeprefix(group).removesuffix(VALUE)): reader.get_tensor(name) for name in names}
