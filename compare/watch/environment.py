"""What a script ran in, as far as it matters for numbers: versions, variables of the environment, and settings."""

from __future__ import annotations

import ast
import os
import sys
from contextlib import suppress
from pathlib import Path

import tensorflow as tf

from compare.engine.insides_keras import keras
from compare.engine.insides_tensorflow import uses_onednn
from compare.engine.keras_generation import keras_version

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS", "TF_USE_LEGACY_KERAS", "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
"""The variables of the environment on which numbers may depend."""


def environment(source: str) -> dict[str, str]:
    """What is known now, at the end of the script, by name."""
    found = {"Python": ".".join(map(str, sys.version_info[:3])), "keras": keras_version()}
    for name in ("tensorflow", "numpy", *_imported(source)):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found.setdefault(name, version)
    found |= {name: os.environ[name] for name in VARIABLES if name in os.environ}
    threads = tf.config.threading
    return found | {
        "oneDNN": "on" if uses_onednn() else "off",
        "XLA for all functions (jit)": str(tf.config.optimizer.get_jit() or "off"),
        "TensorFloat-32": "on" if tf.config.experimental.tensor_float_32_execution_enabled() else "off",
        "threads within operations": str(threads.get_intra_op_parallelism_threads() or "TensorFlow's choice"),
        "precision of new layers": str(keras.mixed_precision.global_policy().name),
        "epsilon of Keras's functions": str(keras.backend.epsilon()),
    }


def _imported(source: str) -> list[str]:
    """The packages that a script imports by itself."""
    names: set[str] = set()
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(Path(source).read_bytes())):
            if isinstance(node, ast.Import):
                names |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return sorted(names)
