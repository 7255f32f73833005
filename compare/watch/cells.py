"""A notebook's cells in the Python file that is run for it, one after the other; imports no TensorFlow."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Sequence
from pathlib import Path

MARK = "# In cell "
"""Begins the line before each cell, followed by the cell's number among those with code, from 1."""


def codes_of(notebook: Path) -> list[str]:
    """The code of each cell that has any.

    Raises:
        OSError, ValueError, KeyError, TypeError: if that is no notebook.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def joined(cells: Sequence[str]) -> str:
    """The content of the Python file, from the code of each cell."""
    return "".join(f"{MARK}{number}\n{code.rstrip()}\n\n" for number, code in enumerate(cells, start=1))


def citing_cells(text: str, notebook: str, source: str) -> str:
    """A text in which lines of a notebook's Python file are cited as lines of the notebook's cells.

    Args:
        text: an error message or a traceback.
        source: its Python file.
    """

    def cite(found: re.Match[str]) -> str:
        cell, line = place_in_cells(int(found[2]), f"{notebook}{found[1] or ''}", source)
        return f"{cell}, line {line}"

    either = f"{re.escape(source)}|{re.escape(Path(source).name)}"
    return re.sub(rf'(?:{either})("?), line (\d+)', cite, text)


def place_in_cells(line: int, notebook: str, source: str) -> tuple[str, int]:
    """The cell of a line of a notebook's Python file, and the line in that cell."""
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    marks = [number for number, text in enumerate(lines, start=1) if re.fullmatch(rf"{MARK}\d+", text)]
    cell = bisect.bisect_left(marks, line)
    return (f"{notebook}, cell {cell}", line - marks[cell - 1]) if cell else (notebook, line)
