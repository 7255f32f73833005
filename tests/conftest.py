"""Four replicas without a GPU: logical CPU devices, made once, before TensorFlow's first operation."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from forked import Commands

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).resolve().parents[1]))  # for scripts.pages, the maintainers' pages


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow, with four logical CPU devices."""
    import tensorflow as tf

    import compare

    compare.configure(replicas=4)
    # Tracing makes millions of objects; to look through TensorFlow's own for garbage again and again costs a tenth.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return tf


LONGEST = (
    "test_resume",
    "test_gallery",
    "test_check",
    "test_cluster",
    "test_trainers",
    "test_readme",
    "test_command",
    "test_check_any",
    "test_parallel",
    "test_twins",
    "test_any_experiment",
    "test_iteration",
    "test_styles",
    "test_beside",
    "test_advice",
    "test_user_files",
)


def pytest_collection_modifyitems(items):
    """The files that take longest come first: with a file per process, none is left to wait for in the end."""
    places = {f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Many commands that take no time to begin."""
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.server.communicate()
