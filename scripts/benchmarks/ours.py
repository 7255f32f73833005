"""Trains with one of this project's trainers alone, with all fingerprints, records and progress of a real run.

Run by scripts/benchmark.py.
"""

import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402

from compare.engine.keras_generation import select_keras  # noqa: E402
from compare.options import Options  # noqa: E402
from scripts.benchmarks import common  # noqa: E402

parser = common.parser(__doc__, trainer="the name of a built-in trainer")
parser.add_argument("iteration", nargs="?", help="how the loop iterates (default: the command's)")
parser.add_argument("steps_per_execution", nargs="?", type=int, default=1, help="(default: 1)")
arguments = parser.parse_args()
wanted, epochs = arguments.trainer, range(1, arguments.epochs + 1)
how = {"iteration": arguments.iteration} if arguments.iteration else {}
options = Options(trainers=(wanted, wanted), steps_per_execution=arguments.steps_per_execution, **how)
select_keras(options.keras)  # imports TensorFlow as the command does

from compare.app.loading import load_trainers  # noqa: E402
from compare.engine import input_pipeline, strategies  # noqa: E402
from compare.engine.run import Run, TrainingTask  # noqa: E402
from compare.experiments.fashion_mnist import fashion_mnist  # noqa: E402
from compare.records import MetricsFile, Recorder  # noqa: E402
from compare.reporting.terminal import TrainerProgress  # noqa: E402

strategies.configure()
strategy = strategies.make("mirrored")
experiment = fashion_mnist(arguments.folder)
train, validation = input_pipeline.load(experiment)
task = TrainingTask(experiment, train.first(arguments.examples), validation, strategy, 64, options.execution)
(name, trainer), _ = load_trainers(options)  # Options requires two trainers

with tempfile.TemporaryDirectory() as out:
    recorder = Recorder(Path(out), MetricsFile(Path(out) / "metrics.csv"), name, seed=0)
    with TrainerProgress(Console(highlight=False), name, epochs, task.steps_per_epoch, 64) as progress:
        trainer.train(Run(task, seed=0, epochs=epochs, sinks=[recorder, progress]))
