"""The rooms of the package import downwards only, and the contract that says so can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    not shutil.which("lint-imports", path=str(Path(sys.executable).parent)), reason="import-linter is not installed"
)


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


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
