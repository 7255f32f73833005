"""``scripts/report.py``: recreates the pages of runs from their files, without TensorFlow."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from compare.app.command_line import OneLineParser
from compare.app.standard_streams import ending, forgiving
from compare.errors import RequestError, StorageError
from compare.naming import TOGETHER, given_path, refuse_output, shown_path
from compare.records.files import refuse_folder
from compare.reporting import html, plots, tensorboard


def parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="report.py",
        allow_abbrev=False,
        description="Recreate report.html and comparison.png of each run from its files, and the list of all runs "
        "beside it; for several runs, also one page that shows them side by side.",
        epilog="Exit status: 0; 2 when a folder holds no run or its files are damaged; 3 after an internal error.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run's folder, such as reports/example")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help=f"for several runs: the page that shows them side by side (default: {TOGETHER} beside the first run)",
    )
    parser.add_argument("--tensorboard", action="store_true", help="also recreate each run's TensorBoard log")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return ending("report.py", lambda: _make(parser().parse_args(arguments)))


def _make(options: argparse.Namespace) -> int:
    if options.out is not None and len(options.runs) < 2:
        raise RequestError("--out is for the page of several runs: give two or more")
    try:
        for page in make([given_path(run) for run in options.runs], options.out, options.tensorboard):
            print(shown_path(page), file=forgiving(sys.stdout))
    except StorageError as error:
        raise RequestError(error.reason) from error
    return 0


def make(runs: Sequence[Path], out: Path | None, log: bool) -> list[Path]:
    """Write all pages; returns their paths."""
    for run in runs:
        _refuse(run)
    together = out or runs[0].resolve().parent / TOGETHER
    if len(runs) > 1 and html.is_foreign(together, "together"):
        raise RequestError(
            f"{together}: it is no page of several runs and is not replaced; give another name with --out"
        )
    if len(runs) > 1 and not together.exists():
        refuse_output("--out", together)
    pages = []
    for run in runs:
        pages.append(html.write(run))
        if plots.figure_of(run) is not None:
            pages.append(plots.draw(run))
        if log:
            pages.append(tensorboard.write(run))
    if len(runs) > 1:
        pages.append(html.write_together(runs, together))
    for reports in dict.fromkeys(run.resolve().parent for run in runs):
        index = html.write_index(reports)  # which links to the page of several runs
        if left_alone := html.left_alone(reports):
            print(left_alone, file=forgiving(sys.stdout))
        else:
            pages.append(index)
    return pages


def _refuse(run: Path) -> None:
    """Refuses a run whose pages cannot be drawn, or would lose something."""
    if not os.path.isfile(run / "run.json"):  # of a folder that cannot be entered, or a name that is too long, too
        raise RequestError(f"{run}: no recorded run is there that can be read (a folder with a run.json)")
    for name in ("report.html", "comparison.png"):
        refuse_folder(run / name)
    html.refuse_foreign(run)
    if missing := html.lost(run):
        raise RequestError(
            f"{run}: its page would lose what it shows of {' and '.join(missing)}, which that folder no longer has as "
            "plain files; put them back, or delete report.html to draw it without them"
        )
