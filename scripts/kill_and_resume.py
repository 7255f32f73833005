#!/usr/bin/env python3
"""Kill real runs at random moments, resume them, and compare the result with an undisturbed run.

Every process is a command of its own, ended by SIGKILL after a random part of the time that a whole run takes;
The run is resumed and killed again until it finishes. Weights and numbers must then be the same, bit
for bit. Prints a line per run, and exits with status 1 if any differs.
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="for each number of replicas (default: %(default)s)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=None, help="of the random moments (default: another every time)")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"--seed {seed}")
    differing = []
    for replicas in options.replicas:
        with tempfile.TemporaryDirectory() as folder:
            outcome = kill_and_resume(Path(folder), replicas, options.kills, random.Random(seed))
        print(f"{replicas} replica(s): {outcome.kills} kills, {outcome.runs} runs through; {outcome.phases}")
        differing += outcome.differing
    print("\n".join(differing) or "every run ended the same as one that was never interrupted")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
