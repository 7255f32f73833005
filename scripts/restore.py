#!/usr/bin/env python3
"""Restore the checkpoints of a run's trainers and evaluate them; see --help."""

import sys
from pathlib import Path

# The package beside this script, from any folder and without installing; not this folder, which has a compare.py.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from compare.app.restore import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
