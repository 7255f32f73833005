"""A fixture for pytest, which finds it wherever this package is installed; TensorFlow is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import compare


@pytest.fixture
def assert_scripts_alike(tmp_path: Path) -> Callable[..., None]:
    """``compare.assert_scripts_alike``, which keeps its page in ``tmp_path``."""
    return partial(compare.assert_scripts_alike, reports=tmp_path)
