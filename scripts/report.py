#!/usr/bin/env python3
"""Recreates the pages of runs from their files; see --help."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent)  # this folder, also where it is called by a link, or with -P

from fit_vs_loop import command  # noqa: E402

if __name__ == "__main__":
    sys.exit(command("compare.app.redraw:main"))
