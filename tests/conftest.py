"""Four replicas without a GPU: logical CPU devices, made once, before TensorFlow's first operation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow, with four logical CPU devices."""
    import tensorflow as tf

    import compare

    compare.configure(replicas=4)
    return tf
