"""Checkpoints of a run: a ``tf.train.Checkpoint`` as in the tutorials, with the state that it omits.

``checkpoints/TRAINER/ckpt-EPOCH`` contains model and optimizer in TensorFlow's format, so that
``tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)`` can read it anywhere, with or without a
strategy. TensorFlow saves only the first replica's copy of a variable, and omits Keras 3's seed generators. To resume
a run exactly, ``copies`` contains the copies of all replicas where they differ (the statistics of batch normalization
in Keras 3), and those of seed generators and metrics. ``owner`` says of which run and trainer it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import distributed
from compare.errors import RequestError, StorageError
from compare.naming import file_name
from compare.records.run_json import identity_of
from compare.user_errors import essence

PREFIX = "ckpt"
COPIES = "copies/"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
OWNER = "owner/.ATTRIBUTES/py_state"


def folder_of(run: Path, trainer: str, seed: int | None = None, worker: int = 0) -> Path:
    """Returns the folder of a trainer's checkpoints; in a cluster, every worker saves its own."""
    folder = run / "checkpoints" / file_name(trainer)
    folder = folder if seed is None else folder / f"seed-{seed}"
    return folder / f"worker-{worker}" if worker else folder


def saved(folder: Path) -> list[int]:
    """Returns the epochs for which a folder has checkpoints, the latest first."""
    # A checkpoint with an index is complete: TensorFlow creates the index last, by renaming.
    epochs = [path.stem.rpartition("-")[2] for path in folder.glob(f"{PREFIX}-*.index")]
    return sorted((int(epoch) for epoch in epochs if epoch.isdecimal()), reverse=True)


def path_of(folder: Path, epoch: int) -> Path:
    """Returns the path of a checkpoint as TensorFlow expects it, without the suffixes of its files."""
    return folder / f"{PREFIX}-{epoch}"


def damage(run: Path, path: Path) -> str:
    """Returns a description of what is wrong with a checkpoint of a run; empty if all of it can be read."""
    try:
        reader = tf.train.load_checkpoint(str(path))
        content = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}  # verifies checksums
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
    """

    def __init__(self, run: Path, folder: Path, *, every: int = 1, keep: int = 1) -> None:
        self._run, self._folder, self._every, self._keep = run, folder, every, keep

    def bind(self, strategy: tf.distribute.Strategy, model: tf.keras.Model, optimizer: Any, metrics: Any) -> None:
        """Sets the objects to save; the optimizer must be built, with its slots."""
        self._strategy, self._model, self._optimizer, self._metrics = strategy, model, optimizer, metrics

    def due(self, epoch: int, last: int) -> bool:
        return epoch % self._every == 0 or epoch == last

    def save(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Saves the state at the end of an epoch.

        Raises:
            StorageError: if the checkpoint cannot be written.
        """
        copies = {str(i): tf.Variable(np.stack(values)) for i, values in self._copies()}
        numbers = {quote(name, safe=""): tf.Variable(value, dtype=tf.float64) for name, value in logs.items()}
        path = path_of(self._folder, epoch)
        state = {"epoch": tf.Variable(epoch, dtype=tf.int64), "logs": numbers, "copies": copies}
        state["owner"] = _Owner(_owner(self._run, path))
        checkpoint = tf.train.Checkpoint(model=self._model, optimizer=self._optimizer, **state)
        try:
            checkpoint.write(str(path))
            # Not by a CheckpointManager, which believes the list that it finds, and deletes what that names.
            kept = sorted(each for each in saved(self._folder) if each <= epoch)[-self._keep :]
            names = [f"{PREFIX}-{each}" for each in kept]
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

    def restore(self, epoch: int) -> None:
        """Restores the state at the end of an epoch on every replica."""
        path = path_of(self._folder, epoch)
        try:
            status = tf.train.Checkpoint(model=self._model, optimizer=self._optimizer).read(str(path))
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise RequestError(f"{path}: the checkpoint belongs to another model or optimizer ({text})") from error
        stacked = copies_in(path)
        for i, copies in self._local():
            values = stacked.get(i, ())
            # With another number of replicas, all of them keep what TensorFlow restored: the first replica's copy.
            if len(values) == len(copies):
                for copy, value in zip(copies, values, strict=True):
                    copy.assign(value)

    def _local(self) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yields the copies of each variable on this process's replicas, with an index that is equal in every run."""
        metrics = [v for metric in tf.nest.flatten(self._metrics) for v in getattr(metric, "variables", [])]
        for i, variable in enumerate([*self._model.variables, *metrics]):
            yield i, self._strategy.experimental_local_results(distributed(variable))

    def _copies(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yields the index and the copies of each variable that TensorFlow's checkpoint does not fully contain."""
        saved_by_tensorflow = {id(distributed(variable)) for variable in self._model.weights}
        model = [id(distributed(variable)) for variable in self._model.variables]
        for i, copies in self._local():
            values = [np.array(copy.read_value()) for copy in copies]
            is_saved = i < len(model) and model[i] in saved_by_tensorflow
            if not is_saved or any(value.tobytes() != values[0].tobytes() for value in values):
                yield i, values


def copies_in(path: Path) -> dict[int, np.ndarray]:
    """Returns the replicas' copies in a checkpoint: arrays ``[replicas, ...]`` by the index of the variable."""
    reader = tf.train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(COPIES)]
    return {int(name.removeprefix(COPIES).removesuffix(VALUE)): reader.get_tensor(name) for name in names}
