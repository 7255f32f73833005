#!/usr/bin/env python3
"""Restores the checkpoints of a run's trainers and evaluates them; see --help."""

import sys
from pathlib import Path

# Replaces this folder, whose compare.py would shadow the package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from compare.app.restore import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
