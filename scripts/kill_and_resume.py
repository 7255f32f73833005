#!/usr/bin/env python3
"""Kills real runs at random moments, resumes them, and compares the results with an undisturbed run.

Every process is a real command, killed by SIGKILL after a random part of the time that a whole run takes. The run is
resumed and killed again until it finishes. Its weights and numbers must then be bit-identical. Prints a line per
number of replicas, and exits with status 1 if any run differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests")

from killed_runs import kill_and_resume  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills per number of replicas (default: %(default)s)")
    text = "numbers of replicas (default: %(default)s)"
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2], help=text)
    parser.add_argument("--seed", type=int, help="seed of the random moments (default: a new one each time)")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"--seed {seed}")
    differing = []
    for replicas in options.replicas:
        with tempfile.TemporaryDirectory() as folder:
            outcome = kill_and_resume(Path(folder), replicas, options.kills, random.Random(seed))
        print(f"{replicas} replica(s): {outcome.kills} kills, {outcome.runs} finished runs; {outcome.phases}")
        differing += outcome.differing
    print("\n".join(differing) or "all runs are bit-identical to an undisturbed run")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
