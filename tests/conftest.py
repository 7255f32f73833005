"""Fixtures of many tests: four logical CPU devices, for replicas without a GPU; and commands that start fast."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import contradictions
import pytest
from forked import Commands

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("FIT_VS_LOOP_LOUD", "1")  # the short check hides none of its own errors
sys.path.append(str(Path(__file__).resolve().parents[1]))  # for scripts.pages, the maintainers' pages


@pytest.fixture(scope="session", autouse=True)
def no_verdict_contradicts_its_numbers():
    """Every verdict that is made in this process is held against the numbers beside it."""
    contradictions.install()


@pytest.fixture(autouse=True)
def no_line_is_printed_because_a_test_is_slow(monkeypatch):
    monkeypatch.setattr("compare.reporting.live.FIRST_PAUSE", 600.0)


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow, with four logical CPU devices."""
    import tensorflow as tf

    import compare
    from compare.engine import strategies

    compare.configure(replicas=4)
    # A test's own MirroredStrategy must not meet the all-reduce groups of other tests of its process either.
    bases = property(lambda strategy: next(strategies._collective_key_bases))
    tf.distribute.MirroredStrategy._collective_key_base = bases
    # Tracing creates millions of objects; collecting garbage among TensorFlow's own costs a tenth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return tf


def pytest_addoption(parser):
    parser.addoption("--texts-as-ids", action="store_true", help="replace evidence and remedies: no judge reads them")


def _replace_texts(patch):
    """Replaces every sentence on a measurement by its kind, and every remedy by its cause's id."""
    from compare.check import report, words

    said, finding = words.said, report.Finding
    patch.setattr(words, "said", lambda seen: seen.kind if said(seen) else "")  # still made: it may lack a quantity
    patch.setattr(report, "Finding", lambda id, *given: finding(id, *given[:3], id, *given[4:]))


@pytest.fixture(scope="session", autouse=True)
def _texts_as_asked(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--texts-as-ids"):
            _replace_texts(patch)
        yield


@pytest.fixture
def texts_by_id(monkeypatch):
    """Runs a test of judging without the texts."""
    _replace_texts(monkeypatch)


LONGEST = (
    "test_scripts",
    "test_check",
    "test_resume",
    "test_gallery",
    "test_cluster",
    "test_notebook",
    "test_pseudo_terminal",
    "test_truth",
    "test_trainers",
    "test_twins",
    "test_check_any",
    "test_command",
    "test_parallel_trainers",
    "test_readme",
    "test_check_strangers",
    "test_user_files",
    "test_faults",
    "test_keras2",
    "test_seeds_runner",
    "test_styles",
    "test_any_experiment",
    "test_restore",
    "test_live_tensorboard",
    "test_iteration",
    "test_assert_alike",
    "test_not_finite_loops",
)


def pytest_collection_modifyitems(items):
    """Run the longest files first: with one process per file, none of them is left running alone at the end."""
    places = {f"{name}.py": place for place, name in enumerate(LONGEST)}
    assert all((Path(__file__).parent / name).is_file() for name in places), "LONGEST names a file that does not exist"
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Runs commands in forks of one process that has imported TensorFlow."""
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.server.communicate()
