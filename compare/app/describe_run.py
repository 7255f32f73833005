"""The facts about a run that are known before training: everything needed to repeat it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from compare.app.provenance import provenance
from compare.app.ready import Session
from compare.engine import preflight, strategies
from compare.engine.building import built
from compare.engine.tf_config import this_task


def before_training(session: Session) -> dict[str, Any]:
    """Values for ``RunJson`` that are known once the data are loaded and the strategy is made."""
    options, task, trainers = session.options, session.task, list(session.trainers)
    strategy, experiment = task.strategy, task.experiment
    replicas = strategy.num_replicas_in_sync
    member = this_task()
    title = f"{experiment.name}: {' and '.join(trainers)} under {options.strategy}, "
    if options.spec.parameter_servers and member is not None:
        title += f"{member.workers} worker{'s' * (member.workers > 1)}"
    else:
        title += f"{replicas} replica{'s' * (replicas > 1)}"
    title += ", Keras 2" if options.keras == 2 else ""
    title += f", {options.seeds} seeds" if options.seeds > 1 else ""
    known = provenance(options, trainers)
    return known | {
        "title": title,
        "notes": list(experiment.notes),
        "strategy": {
            "name": options.strategy,
            "class": type(strategy).__name__,
            "replicas": replicas,
            "workers": member.workers if member else 1,
            "global_batch_size": task.global_batch_size,
            "devices": strategies.devices() if member else strategies.devices()[:replicas],
        },
        "data": {
            "source": experiment.data_source,
            "training_examples": task.train.count,
            "validation_examples": task.validation.count,
            "training_sha256": task.train.sha256(),
            "validation_sha256": task.validation.sha256(),
        },
        "versions": known["versions"] | {"keras": strategies.keras_version()},
        "threads": {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
        },
    }


def for_preflight(session: Session) -> preflight.Facts:
    """The facts that the preflight checks use; builds a model and discards it."""
    options, task, member = session.options, session.task, this_task()
    layers = [type(layer).__name__ for layer in built(task.experiment, "build_model")._flatten_layers()]
    return preflight.Facts(
        strategy=options.strategy,
        keras=options.keras,
        trainers=list(session.trainers),
        replicas=task.strategy.num_replicas_in_sync,
        workers=member.workers if member else 1,
        examples=(task.train.count, task.validation.count),
        global_batch_size=task.global_batch_size,
        batch_norm=any("BatchNormalization" in name for name in layers),
        convolution=any("Conv" in name for name in layers),
        dropout=any("Dropout" in name for name in layers),
        steps_per_execution=options.steps_per_execution,
        jit_compile=options.jit,
        text=any(spec.dtype == tf.string for spec in tf.nest.flatten(task.train.spec)),
    )


def digest(weights: Sequence[np.ndarray]) -> str:
    """SHA-256 of the dtypes, shapes and bytes of weights."""
    checksum = hashlib.sha256()
    for weight in weights:
        checksum.update(f"{weight.dtype} {weight.shape}".encode())
        checksum.update(np.ascontiguousarray(weight).data)
    return checksum.hexdigest()
