"""Which Keras ``tf.keras`` is: Keras 3, or the tf-keras package, which is Keras 2."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from compare.errors import RequestError
from compare.options import Options


def select_keras(options: Options) -> None:
    """Put the Keras generation that the options ask for in ``tf.keras``'s place; before importing TensorFlow.

    Raises:
        RequestError: when tf-keras is not installed, or TensorFlow has been imported with the other one.
    """
    if options.keras == 2 and find_spec("tf_keras") is None:
        raise RequestError('--keras 2 needs the package tf-keras: pip install "fit-vs-loop[keras2]"')
    first = "tensorflow" not in sys.modules
    if first:
        os.environ["TF_USE_LEGACY_KERAS"] = "1" if options.keras == 2 else "0"
    with _importing_for_good() if first else nullcontext():
        from compare.engine.strategies import keras_version

        version = keras_version()  # imports Keras
    if int(version.partition(".")[0]) != options.keras:
        raise RequestError(
            f"--keras {options.keras}: this process has imported TensorFlow with Keras {version}; "
            f"set TF_USE_LEGACY_KERAS={int(options.keras == 2)} before importing it"
        )


@contextmanager
def _importing_for_good() -> Iterator[None]:
    """Spare Python's garbage collector what is imported here.

    To look through a million objects of TensorFlow's that stay, while they are made and whenever Keras asks for a
    collection, takes a fifth of the time to the first step.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
