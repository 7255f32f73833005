"""The packages that the command needs, looked for before it uses them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from compare.errors import RequestError

PACKAGES = (
    "tensorflow", "keras", "numpy", "pandas", "matplotlib", "jinja2", "rich", "scipy", "loky", "filelock", "xxhash",
)  # fmt: skip
"""What ``pyproject.toml`` requires; all are imported by the name that they are installed by."""


def refuse_if_missing() -> None:
    """Refuse to go on where packages are not installed.

    Raises:
        RequestError: with the command that installs them.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return
    root = Path(__file__).resolve().parents[2]
    activate = root / ".venv" / "bin" / "activate"
    if activate.is_file():
        remedy = f"activate the environment that has them: . {activate}"
    elif sys.prefix != sys.base_prefix:
        remedy = f"install them into this environment: {sys.executable} -m pip install -e {root}"
    else:  # many systems do not let pip change their own Python
        remedy = f"install them: cd {root} && python3 -m venv .venv && . .venv/bin/activate && pip install -e ."
    raise RequestError(f"{sys.executable} has no {', '.join(missing)}; {remedy}")
