"""Judges, draws and writes a recorded run of the tutorial's CNN: two trainers that are identical after every step.

Nothing is trained: ``write`` makes the records up, ``judge`` is the part to measure. Run by scripts/scaling.py.
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np  # noqa: E402
import recorded  # noqa: E402
from rich.console import Console  # noqa: E402

from compare.app.publish import judge_and_publish  # noqa: E402
from compare.records import (  # noqa: E402
    EPOCH_END,
    INITIAL,
    BuildRecord,
    EpochRecord,
    MetricsFile,
    Recorder,
    StepRecord,
    Variable,
)

EPOCHS = 20
SHAPES = [(3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (1600, 64), (64,), (64, 10), (10,)]
VARIABLES = tuple(Variable(f"variable {i}", shape, "float32") for i, shape in enumerate(SHAPES))


def write(folder: Path, steps: int) -> None:
    """Writes a run whose trainers made this many steps each."""
    folder.mkdir()
    metrics = MetricsFile(folder / "metrics.csv")
    for trainer in ("fit", "loop"):
        recorder = Recorder(folder, metrics, trainer, 0)
        recorder(BuildRecord(VARIABLES, replicas=1))
        generator = np.random.default_rng(0)
        for epoch in range(1, EPOCHS + 1):
            for step in [*([INITIAL] if epoch == 1 else []), *range(1, steps // EPOCHS + 1), EPOCH_END]:
                hashes = generator.integers(2**63, size=(len(VARIABLES), 1), dtype=np.uint64)
                recorder(StepRecord(epoch, step, hashes, generator.normal(size=(len(VARIABLES), 2))))
            weights = [np.full(variable.shape, epoch, np.float32) for variable in VARIABLES]
            recorder(
                EpochRecord(epoch, {"loss": 1 / epoch, "accuracy": 0.5, "val_loss": 2 / epoch}, 2.0, 500.0, weights)
            )
    recorded.finish(folder)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("action", choices=["write", "judge"])
parser.add_argument("folder", type=Path, help="the run's folder")
parser.add_argument("--steps", type=int, default=400_000, help="write: steps of each trainer (default: %(default)s)")
options = parser.parse_args()
if options.action == "write":
    write(options.folder, options.steps)
else:
    judge_and_publish(options.folder, Console(quiet=True))
