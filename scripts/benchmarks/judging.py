"""Judges, draws and writes a recorded run of the tutorial's CNN: two trainers that are identical after every step.

Nothing is trained: ``write`` makes the records up, ``judge`` is the part to measure. Run by scripts/scaling.py.
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

import recorded  # noqa: E402
from rich.console import Console  # noqa: E402

from compare.app.publish import judge_and_publish  # noqa: E402
from compare.records import Variable  # noqa: E402

SHAPES = [(3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (1600, 64), (64,), (64, 10), (10,)]


def write(folder: Path, steps: int, epochs: int, variables: int) -> None:
    """Writes a run whose trainers made this many steps each."""
    shapes = [(10,)] * variables or SHAPES
    made = [Variable(f"variable {i}", shape, "float32") for i, shape in enumerate(shapes)]
    for trainer in ("fit", "loop"):
        recorded.record(folder, trainer, epochs=epochs, steps=steps // epochs, variables=made)
    recorded.finish(folder)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("action", choices=["write", "judge"])
parser.add_argument("folder", type=Path, help="the run's folder")
parser.add_argument("--steps", type=int, default=400_000, help="write: steps of each trainer (default: %(default)s)")
parser.add_argument("--epochs", type=int, default=20, help="write: epochs of these steps (default: %(default)s)")
text = "write: N variables of 10 weights each (default: those of the tutorial's CNN)"
parser.add_argument("--variables", type=int, default=0, metavar="N", help=text)
options = parser.parse_args()
if options.action == "write":
    write(options.folder, options.steps, options.epochs, options.variables)
else:
    judge_and_publish(options.folder, Console(quiet=True))
