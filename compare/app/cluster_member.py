"""One process of a cluster on this machine, as ``cluster_session`` starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from compare import signals
from compare.app.cli import carry_out_and_report
from compare.app.processes import end_with
from compare.app.standard_streams import ending
from compare.options import request


def main() -> int:
    """Carry out the request behind the parent's number; returns the exit status."""
    signals.catch()
    end_with(int(sys.argv[1]))
    told = json.loads(sys.argv[2])
    sys.path[:] = told["path"]
    # The process that the user started repeats the error, under its own name.
    return ending("", lambda: carry_out_and_report(request(**told["options"]), Path(told["folder"])))


if __name__ == "__main__":
    sys.exit(main())
