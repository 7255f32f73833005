"""Selects the Keras generation of ``tf.keras``: Keras 3, or the tf-keras package, which is Keras 2."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from compare.errors import RequestError


def select_keras(generation: int) -> None:
    """Makes ``tf.keras`` the requested Keras generation. Call it before TensorFlow is imported.

    Raises:
        RequestError: if tf-keras is not installed, or TensorFlow has already been imported with the other generation.
    """
    if generation == 2 and find_spec("tf_keras") is None:
        raise RequestError('--keras 2 needs the package tf-keras: pip install "fit-vs-loop[keras2]"')
    first = "tensorflow" not in sys.modules
    if first:
        os.environ["TF_USE_LEGACY_KERAS"] = "1" if generation == 2 else "0"
        os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user's other programs train with
    with _permanent_imports() if first else nullcontext():
        from compare.engine.keras_generation import keras_version  # noqa: PLC0415 (lazy)

        version = keras_version()  # imports Keras
    if int(version.partition(".")[0]) != generation:
        raise RequestError(
            f"--keras {generation}: this process has already imported TensorFlow with Keras {version}; "
            f"set TF_USE_LEGACY_KERAS={int(generation == 2)} before TensorFlow is imported"
        )


@contextmanager
def _permanent_imports() -> Iterator[None]:
    """Excludes the objects that are imported here from garbage collection.

    TensorFlow creates a million objects that are never freed. Scanning them during the import, and again whenever
    Keras starts a collection, takes a fifth of the time to the first step.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
