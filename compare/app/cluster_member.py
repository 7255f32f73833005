"""One process of a cluster on this machine, as ``cluster_session`` starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from compare import signals
from compare.app.cli import carry_out_and_report
from compare.app.processes import end_with
from compare.app.standard_streams import ending, fail
from compare.errors import PartFailedError
from compare.options import request
from compare.request import Request


def main() -> int:
    """Carry out the request behind the parent's number; returns the exit status."""
    signals.catch()
    end_with(int(sys.argv[1]))
    told = json.loads(sys.argv[2])
    sys.path[:] = told["path"]
    # The process that the user started repeats the error, under its own name.
    return ending("", lambda: _carry_out(request(**told["options"]), Path(told["folder"])))


def _carry_out(options: Request, folder: Path) -> int:
    try:
        return carry_out_and_report(options, folder)
    except PartFailedError as error:
        return fail("", error, 0)  # another status would stop the chief, which goes on and tells the verdict


if __name__ == "__main__":
    sys.exit(main())
