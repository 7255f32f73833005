"""Notebooks among ``--scripts``: turned into Python, cell by cell."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from compare.errors import RequestError
from compare.watch.cells import joined

_CELL_MAGIC = re.compile(r"\A\s*%%(?:time|timeit|capture|prun)\b")
"""Begins a cell whose code runs, whatever else is done with it."""
_LINE_MAGIC = re.compile(r"^([ \t]*)%(?:time|prun)[ \t]+(?!-)", re.MULTILINE)
"""Begins a line whose code runs."""


def as_python(script: str, path: Path) -> str:
    """The Python file to run: the script itself, or, written to ``path``, what the cells of a notebook say."""
    if Path(script).suffix != ".ipynb":
        return os.path.join(os.getcwd(), script)  # as Python does: a folder before .. may be a link
    try:
        from nbconvert.filters import ipython2python  # noqa: PLC0415 (an extra)
    except ImportError:
        raise RequestError(
            f"--scripts {script}: notebooks need nbconvert; install it with: pip install 'fit-vs-loop[notebooks]'"
        ) from None
    try:
        cells = json.loads(Path(script).read_text(encoding="utf-8"))["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise RequestError(f"--scripts {script}: this is not a notebook that nbconvert can read ({text})") from None
    # Without the magics that run a cell's code and measure it, or hide its output; its lines stay where they are.
    timed = [_LINE_MAGIC.sub(r"\1", _CELL_MAGIC.sub("# timed:", code)) for code in codes]
    lines = [ipython2python(code) for code in timed]  # type: ignore[no-untyped-call]
    path.write_text(joined(lines), encoding="utf-8")
    return str(path)
