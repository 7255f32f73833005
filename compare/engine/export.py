"""A trained model in formats that load without this package."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import tensorflow as tf

from compare.engine.run import Run, built, restore_policy


def export_model(run: Run, folder: Path) -> None:
    """Save a run's model as it is now: ``folder/saved_model`` and ``folder/model.keras``.

    Both are of a model built anew without a strategy, with the first replica's weights.

    Args:
        run: a run that has been trained.
        folder: made where it is not there; what it holds is replaced.
    """
    policy = tf.keras.mixed_precision.global_policy()
    try:
        model = built(run.experiment, "build_model")
        run.give_inputs(model)
    finally:
        restore_policy(policy)
    for variable, value in zip([*model.trainable_weights, *model.non_trainable_weights], run.weights(), strict=True):
        variable.assign(tf.cast(value, variable.dtype))
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.keras")
    with contextlib.redirect_stdout(io.StringIO()):  # Keras prints the signature
        model.export(str(folder / "saved_model"))
