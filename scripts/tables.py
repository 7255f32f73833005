"""Tables of measurements: CSV files that grow row by row, and pages in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent / "pages" / "templates"


def read(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Reads a CSV file with every value as text; a missing value is "", a missing file a table without rows."""
    if not path.exists():
        return pd.DataFrame(columns=list(columns), dtype=str)
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def anew(path: Path) -> Path:
    """Removes a file, whose folder is made if it does not exist, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def append(path: Path, row: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Appends a row to a CSV file, which is created if it does not exist; columns the row lacks are left blank."""
    frame = pd.DataFrame([row], columns=list(columns))
    frame.to_csv(path, mode="a", header=not path.exists(), index=False, lineterminator="\n")


def markdown(frame: pd.DataFrame) -> str:
    """Formats a table as Markdown, without the index."""
    head, *body = (f"| {' | '.join(map(str, row))} |" for row in [frame.columns, *frame.itertuples(index=False)])
    return "\n".join([head, "|---" * len(frame.columns) + "|", *body])


def numbers(texts: pd.Series) -> pd.Series:
    """Converts text to numbers, without the rows that have none."""
    return texts[texts != ""].astype(float)


def most_common(texts: pd.Series, count: int = 3) -> str:
    """Lists the most common values and how often they occur."""
    counts = texts.replace("", "none").value_counts(sort=False).sort_values(ascending=False, kind="stable")
    return "; ".join(f"{text} ({times})" for text, times in counts.head(count).items())


def page(name: str, **parts: Any) -> str:
    options = {"trim_blocks": True, "keep_trailing_newline": True, "undefined": StrictUndefined}
    template = Environment(loader=FileSystemLoader(TEMPLATES), **options).get_template(f"{name}.md")
    return template.render(parts)


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "none."
