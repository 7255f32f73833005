"""The rooms of the package import downwards only, and none takes apart what another has put together."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from compare.verdict import model, not_finite, rounding, seeds

ROOT = Path(__file__).resolve().parents[1]

IN_OTHER_FILES = {
    "epoch", "epochs", "error", "logs", "name", "remedy", "replicas", "seed", "side", "source", "step", "study",
    "trainer",
}  # fmt: skip
"""Keys of ``run.json`` and columns of ``metrics.csv`` that ``verdict.json`` has, too."""

needs_the_linter = pytest.mark.skipif(
    not shutil.which("lint-imports", path=str(Path(sys.executable).parent)), reason="import-linter is not installed"
)


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def taken_by_key(source: str, keys: Collection[str]) -> list[str]:
    """The expressions that take one of some keys from a dictionary."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript):
            key = node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            key = node.args[0]
        else:
            continue
        if isinstance(key, ast.Constant) and key.value in keys:
            found.append(ast.unparse(node))
    return found


def test_no_page_takes_a_verdict_apart_by_key():
    kinds = [kind for module in (model, not_finite, rounding, seeds) for kind in vars(module).values()]
    names = {each.name for kind in kinds if dataclasses.is_dataclass(kind) for each in dataclasses.fields(kind)}
    keys = names - IN_OTHER_FILES
    assert {"comparisons", "training", "first_difference", "max_gap", "causes", "largest_ratio", "seeds_needed"} <= keys
    assert taken_by_key("entry['training'].get('noise')", keys) == [
        "entry['training'].get('noise')",
        "entry['training']",
    ]
    for path in (ROOT / "compare" / "reporting").glob("*.py"):
        assert taken_by_key(path.read_text(), keys) == [], path.name


@needs_the_linter
@pytest.mark.parametrize(
    ("module", "added", "broken"),
    [
        ("records/model.py", "from compare.reporting import sentences", "Rooms import downwards only BROKEN"),
        ("engine/run.py", "from compare.options import Options", "Rooms import downwards only BROKEN"),
        ("engine/memory.py", "from compare.engine import data", "No circles within a room BROKEN"),
        ("check/causes/base.py", "import tensorflow", "needs no TensorFlow BROKEN"),
    ],
)
def test_the_contracts_hold_and_an_import_against_them_breaks_them(tmp_path, module, added, broken):
    shutil.copytree(ROOT / "compare", tmp_path / "compare", ignore=shutil.ignore_patterns("__pycache__", "datasets"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    held = lint(tmp_path)
    assert held.returncode == 0, held.stdout
    with open(tmp_path / "compare" / module, "a") as file:
        file.write(f"{added}\n")
    assert broken in lint(tmp_path).stdout


def test_the_insides_of_tensorflow_and_keras_are_named_in_their_own_files():
    """A version that moves them is then dealt with in one place; ``sys.modules`` imports nothing."""
    imports = re.compile(r"^\s*(?:from|import) (?:tensorflow\.python|keras\.src)\b", re.MULTILINE)
    found = {path.name for path in (ROOT / "compare").rglob("*.py") if imports.search(path.read_text(encoding="utf-8"))}
    assert found == {"insides_tensorflow.py", "insides_keras.py"}


def test_one_module_asks_for_the_generation_of_keras():
    asks = re.compile(r"KERAS_3\b|\bkeras_version\(|\.startswith\(\"[23]\"\)")
    found = {path.name for path in (ROOT / "compare").rglob("*.py") if asks.search(path.read_text(encoding="utf-8"))}
    assert found == {"keras_generation.py", "select_keras.py", "provenance.py", "environment.py"}
