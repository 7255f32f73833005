"""The tables that a run prints at its end: metrics per epoch, and the tests of a study."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from compare.reporting.numbers import difference, interval
from compare.reporting.page_tables import epoch_rows
from compare.reporting.run_files import RunFiles
from compare.reporting.terminal import columns_of, tell, verbatim
from compare.verdict.model import Comparison

MOST_EPOCHS = 12
"""A table of more epochs than these is shortened."""


def epoch_table(files: RunFiles) -> Table:
    """The table of every trainer's reported metrics per epoch, and their gaps to the reference.

    Of many epochs, it shows the first, the last, every n-th and the first with a gap; its caption says so.
    """
    metrics, lines_of = epoch_rows(files)
    blocks: dict[int, list[list[str]]] = {}
    for epoch, lines in lines_of.items():
        block = blocks.setdefault(epoch, [])
        for name, is_gap, cells in [line for line in lines if line[0] in files.trainers]:
            block.append(["" if block else str(epoch), GAP if is_gap else name, *map(_cell, cells)])
    every = next(n for n in (b * 10**e for e in count() for b in (1, 2, 5)) if len(blocks) <= n * MOST_EPOCHS)
    differing = (
        epoch for epoch, rows in blocks.items() if any({*row[2:]} - {"", "0"} for row in rows if row[1] == GAP)
    )
    apart = next(differing, None)
    kept = {*list(blocks)[:1], *list(blocks)[-1:], apart}
    rows = [row for epoch, block in blocks.items() if epoch % every == 0 or epoch in kept for row in block]
    columns = [("epoch", "trainer", *metrics), *rows]
    shown = [_aligned(column) if number > 1 else column for number, column in enumerate(zip(*columns, strict=True))]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, *_ in shown:
        table.add_column(verbatim(header))
    for row in list(zip(*shown, strict=True))[1:]:
        table.add_row(*map(verbatim, row), style="bold" if row[1] == GAP else "")
    if every > 1:
        nth = f"{every}{'nd' if every == 2 else 'th'}"
        table.caption = f"Of {len(blocks)} epochs: the first, every {nth}, the last" + ", the first gap" * bool(apart)
    return table


GAP = "  gap"
LONGEST = len("-0.123456789")
"""Characters of a number in a table; ``metrics.csv`` has all."""


def _aligned(column: Sequence[str]) -> list[str]:
    """A column, its name first, with the decimal points of its numbers below each other."""
    name, *numbers = column
    parts = [[*re.split(r"(?=[.e])", number, maxsplit=1), ""] for number in numbers]
    before, after = (max((len(part[i]) for part in parts), default=0) for i in (0, 1))
    width = max(cell_len(name), before + after)
    cells = [f"{part[0]:>{before}}{part[1]:<{after}}" for part in parts]
    return [" " * (width - cell_len(name)) + name, *(cell.rjust(width) for cell in cells)]


def study_table(comparisons: Sequence[Comparison]) -> Table:
    """The table of a study's tests: one row per metric and epoch."""
    studied = [(comparison.candidate, comparison.study) for comparison in comparisons if comparison.study]
    candidate = ["candidate"] * (len(studied) > 1)
    columns = [*candidate, "metric", "epoch", "difference", "90% interval", "margin", ""]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.justify = "right" if column.header in columns[-5:-1] else "left"
    for name, study in studied:
        for test in study.tests:
            mean, margin = difference(test.mean, test.relative), difference(test.margin, test.relative, "")
            names = [name] * len(candidate) + [test.metric]
            table.add_row(*map(verbatim, names), str(test.epoch), mean, interval(test), f"±{margin}", test.verdict)
    return table


def print_table(console: Console, table: Table) -> None:
    """Prints a table, if it has rows and more than two columns; those that find no room follow in further tables.

    The first two columns begin each of them, and no cell spans several lines.
    """
    fixed = [0, 1]
    widths = [max(cell_len(str(cell)) for cell in [column.header, *column.cells]) + 2 for column in table.columns]
    parts: list[list[int]] = [[]]
    for number in range(2, len(widths)):
        taken = sum(widths[i] for i in [*fixed, *parts[-1], number]) - 2
        if parts[-1] and taken > columns_of(console):
            parts.append([])
        parts[-1].append(number)
    for part in filter(None, parts if table.rows else []):
        columns = [table.columns[i] for i in [*fixed, *part]]
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            shown.add_column(column.header, justify=column.justify)
        for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
            shown.add_row(*cells, style=row.style)
        console.print(shown)
    if table.caption is not None:
        tell(console, f"{table.caption}.")


def _cell(text: str) -> str:
    """A number as it is, or, where that is much longer than a float32, to the nine digits that tell those apart."""
    return text if len(text) <= LONGEST else f"{float(text):.9g}"
