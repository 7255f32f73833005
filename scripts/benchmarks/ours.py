"""One of this project's trainers alone in a process, with all fingerprints, records and progress of a real run.

Run by scripts/benchmark.py as: ours.py TRAINER FOLDER EPOCHS EXAMPLES [ITERATION [STEPS_PER_EXECUTION]]
"""

import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402

from compare.engine.keras_generation import select_keras  # noqa: E402
from compare.options import Options  # noqa: E402

wanted, folder, epochs, examples = sys.argv[1], Path(sys.argv[2]), range(1, int(sys.argv[3]) + 1), int(sys.argv[4])
how = {"iteration": sys.argv[5]} if sys.argv[5:] else {}
options = Options(trainers=(wanted, wanted), steps_per_execution=int((sys.argv[6:] or [1])[0]), **how)
select_keras(options.keras)  # imports TensorFlow as the command does

from compare.app.loading import load_trainers  # noqa: E402
from compare.engine import input_pipeline, strategies  # noqa: E402
from compare.engine.run import Run, TrainingTask  # noqa: E402
from compare.experiments.fashion_mnist import fashion_mnist  # noqa: E402
from compare.records import MetricsFile, Recorder  # noqa: E402
from compare.reporting.terminal import TrainerProgress  # noqa: E402

strategies.configure()
strategy = strategies.make("mirrored")
experiment = fashion_mnist(folder)
train, validation = input_pipeline.load(experiment)
task = TrainingTask(experiment, train.first(examples), validation, strategy, 64, options.execution)
(name, trainer), _ = load_trainers(options)  # options take no fewer than two

with tempfile.TemporaryDirectory() as out:
    recorder = Recorder(Path(out), MetricsFile(Path(out) / "metrics.csv"), name, seed=0)
    with TrainerProgress(Console(highlight=False), name, epochs, task.steps_per_epoch, 64) as progress:
        trainer.train(Run(task, seed=0, epochs=epochs, sinks=[recorder, progress]))
