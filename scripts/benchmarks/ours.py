"""One of this project's trainers alone in a process, with all the recording of a real run.

Run by scripts/benchmark.py as: ours.py TRAINER FOLDER EPOCHS EXAMPLES
"""

import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from compare import pipeline, strategies  # noqa: E402
from compare.experiments import BUILT_IN  # noqa: E402
from compare.loading import load_trainers  # noqa: E402
from compare.options import Options  # noqa: E402
from compare.records import MetricsFile, Recorder  # noqa: E402
from compare.runs import Run, Task  # noqa: E402

name, folder, epochs, examples = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
strategies.configure()
strategy = strategies.make("mirrored")
train, validation = pipeline.load(BUILT_IN["fashion-mnist"](folder))
task = Task(BUILT_IN["fashion-mnist"](folder), train.first(examples), validation, strategy, 64)
((_, trainer), _) = load_trainers(Options(trainers=(name, "loop")))
with tempfile.TemporaryDirectory() as out:
    recorder = Recorder(Path(out), MetricsFile(Path(out) / "metrics.csv"), name, 0)
    trainer.train(Run(task, seed=0, epochs=range(1, epochs + 1), sinks=[recorder]))
    print((Path(out) / "metrics.csv").read_text())
