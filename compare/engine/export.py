"""Exports a trained model to formats that can be loaded without this package."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import tensorflow as tf

from compare.engine.building import built, own_policy
from compare.engine.run import Run


def export_model(run: Run, folder: Path) -> None:
    """Saves the current model of a run as ``folder/saved_model`` and ``folder/model.keras``.

    A new model is built without a strategy, and receives the weights of the first replica.
    """
    with own_policy():
        model = built(run.experiment, "build_model")
        run.give_inputs(model)
    for variable, value in zip([*model.trainable_weights, *model.non_trainable_weights], run.weights(), strict=True):
        variable.assign(tf.cast(value, variable.dtype))
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.keras")
    with contextlib.redirect_stdout(io.StringIO()):  # Keras prints the signature to stdout
        model.export(str(folder / "saved_model"))
