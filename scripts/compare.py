#!/usr/bin/env python3
"""Trains with fit and with a custom loop and reports whether both train alike; see --help."""

import sys
from pathlib import Path

# Replaces this folder, whose compare.py would shadow the package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

if sys.version_info < (3, 11):  # noqa: UP036 (whatever python3 may be)
    print(f"compare.py: {sys.executable} is Python {sys.version.split()[0]}; use 3.11 or newer", file=sys.stderr)
    sys.exit(2)

from compare.app.cli import command  # noqa: E402

if __name__ == "__main__":
    sys.exit(command())
