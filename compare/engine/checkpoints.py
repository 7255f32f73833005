"""Checkpoints of a run: ``tf.train.Checkpoint``, as the tutorials save it, and what that leaves out.

``checkpoints/TRAINER/ckpt-EPOCH`` holds model and optimizer in TensorFlow's own format, so that
``tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)`` reads it anywhere, with a strategy
or without. TensorFlow saves the first replica's copy of a variable, and Keras 3's seed generators not at
all; so that a run that is resumed goes on exactly, ``copies`` holds every replica's copy of what differs
between replicas (batch normalization's statistics in Keras 3), of seed generators and of metrics.
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

PREFIX = "ckpt"
COPIES = "copies/"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def folder_of(run: Path, trainer: str, seed: int | None = None, worker: int = 0) -> Path:
    """Where a trainer's checkpoints are in a run's folder.

    Args:
        run: the run's folder.
        trainer: the trainer's name.
        seed: which seed, where there are several.
        worker: which worker of a cluster: every one saves its own.
    """
    name = quote(trainer, safe="")
    folder = run / "checkpoints" / ("%2E" * len(name) if set(name) == {"."} else name)
    folder = folder if seed is None else folder / f"seed-{seed}"
    return folder / f"worker-{worker}" if worker else folder


def saved(folder: Path) -> list[int]:
    """The epochs that a folder has checkpoints of, the latest first."""
    # TensorFlow writes the index last, by renaming it.
    found = [path.stem.rpartition("-")[2] for path in folder.glob(f"{PREFIX}-*.index")]
    return sorted((int(epoch) for epoch in found if epoch.isdecimal()), reverse=True)


def path_of(folder: Path, epoch: int) -> Path:
    """The checkpoint's path, as TensorFlow wants it: without the suffixes of its files."""
    return folder / f"{PREFIX}-{epoch}"


def damage(path: Path) -> str:
    """What is wrong with a checkpoint; empty when all of it can be read."""
    try:
        reader = tf.train.load_checkpoint(str(path))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)  # its checksum is looked at
    except Exception as error:  # TensorFlow raises half a dozen kinds, IndexError among them
        return " ".join(str(error).split())[:200]
    return ""


class Checkpoints:
    """Saves and restores one trainer's model, optimizer, epoch and metrics.

    Args:
        folder: where the checkpoints are: see ``folder_of``.
        every: save when so many epochs have ended, and at the last one.
        keep: how many of them to keep.
    """

    def __init__(self, folder: Path, *, every: int = 1, keep: int = 1) -> None:
        self._folder, self._every, self._keep = folder, every, keep

    def bind(
        self,
        strategy: tf.distribute.Strategy,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        metrics: Any,
    ) -> None:
        """Say what is to be saved; the optimizer has its slots already."""
        self._strategy, self._model, self._optimizer, self._metrics = strategy, model, optimizer, metrics

    def due(self, epoch: int, last: int) -> bool:
        """Whether an epoch is one to save."""
        return epoch % self._every == 0 or epoch == last

    def save(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Save everything as it is at an epoch's end.

        Args:
            epoch: that epoch.
            logs: the numbers that were reported for it, metric name to value.

        Raises:
            StorageError: when it cannot be written.
        """
        copies = {str(i): tf.Variable(np.stack(values)) for i, values in self._copies()}
        numbers = {quote(name, safe=""): tf.Variable(value, dtype=tf.float64) for name, value in logs.items()}
        checkpoint = tf.train.Checkpoint(
            model=self._model,
            optimizer=self._optimizer,
            epoch=tf.Variable(epoch, dtype=tf.int64),
            logs=numbers,
            copies=copies,
        )
        try:
            manager = tf.train.CheckpointManager(
                checkpoint, str(self._folder), max_to_keep=self._keep, checkpoint_name=PREFIX
            )
            manager.save(checkpoint_number=epoch)
        except (OSError, tf.errors.OpError) as error:
            text = " ".join(str(error).split())[:200]
            raise StorageError(
                f"{path_of(self._folder, epoch)}: the checkpoint cannot be written ({text}); what was written before "
                "is kept: make room, or the folder writable, and go on with --resume"
            ) from error

    def restore(self, epoch: int) -> None:
        """Put everything back as it was at an epoch's end, on every replica.

        Raises:
            RequestError: when the checkpoint is of another model or optimizer.
        """
        path = path_of(self._folder, epoch)
        restore(path, self._model, self._optimizer)
        stacked = copies_in(path)
        for i, copies in self._local():
            values = stacked.get(i, ())
            # Under another number of replicas each has what TensorFlow restored: the first one's.
            if len(values) == len(copies):
                for copy, value in zip(copies, values, strict=True):
                    copy.assign(value)

    def _local(self) -> Iterator[tuple[int, Sequence[Any]]]:
        """Every variable's copies on this process's replicas, by a number that is the same in every run."""
        metrics = [v for metric in tf.nest.flatten(self._metrics) for v in getattr(metric, "variables", [])]
        for i, variable in enumerate([*self._model.variables, *metrics]):
            yield i, self._strategy.experimental_local_results(distributed(variable))

    def _copies(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        saved_by_tensorflow = {id(distributed(variable)) for variable in self._model.weights}
        model = [id(distributed(variable)) for variable in self._model.variables]
        for i, copies in self._local():
            values = [np.array(copy.read_value()) for copy in copies]
            known = i < len(model) and model[i] in saved_by_tensorflow
            if not known or any(value.tobytes() != values[0].tobytes() for value in values):
                yield i, values


def restore(path: Path, model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer | None = None) -> None:
    """Restore a model, and its optimizer if one is given, under any strategy.

    Raises:
        RequestError: when the checkpoint is of another model or optimizer.
    """
    objects = {"model": model} | ({} if optimizer is None else {"optimizer": optimizer})
    try:
        status = tf.train.Checkpoint(**objects).read(str(path))
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise RequestError(f"{path}: the checkpoint is of another model or optimizer than this one ({text})") from error


def copies_in(path: Path) -> dict[int, np.ndarray]:
    """Every replica's copies in a checkpoint: by the variable's number, arrays ``[replicas, ...]``."""
    reader = tf.train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(COPIES)]
    return {int(name.removeprefix(COPIES).removesuffix(VALUE)): reader.get_tensor(name) for name in names}
