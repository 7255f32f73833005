#!/usr/bin/env python3
"""Recreate the pages of runs from their files; see --help."""

import sys
from pathlib import Path

# This folder is first on the path, and holds a file with the package's own name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from compare.app.redraw import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
