"""The main job's two trainings at the same time, with nothing recorded, shown, drawn or judged.

Data, strategy, threads and steps are the main job's. Run by scripts/benchmark.py with the data folder, the number of
epochs, and of images; the process that it starts gets the trainer's name too.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402

from compare.app import processes  # noqa: E402
from compare.app.command_line import parsed  # noqa: E402
from compare.app.ready import Session  # noqa: E402
from compare.engine.anew import train_anew  # noqa: E402
from compare.records.model import EpochRecord  # noqa: E402
from compare.records.run_json import RunJson  # noqa: E402


def train(data: str, epochs: str, examples: str, name: str) -> None:
    options = parsed(["--data-dir", data, "--epochs", epochs, "--train-examples", examples])
    with tempfile.TemporaryDirectory() as folder:
        threads = processes.division(options, len(options.trainers))[1]
        session = Session.begin(options, RunJson(folder=Path(folder)), Console(quiet=True), threads)
    from compare.engine.run import Run
    from compare.engine.strategies import without_idle_waits

    class Unrecorded(Run):
        def end_step(self, steps: int = 1) -> None:
            self._step += steps

        def _emit_fingerprint(self, step: int) -> str:
            return ""

    def say(record: object) -> None:
        if isinstance(record, EpochRecord):
            print(f"{name}  epoch {record.epoch}  loss {record.logs['loss']!r}")

    run = Unrecorded(session.task, seed=options.seed, epochs=range(1, options.epochs + 1), sinks=[say])
    with without_idle_waits():
        train_anew(session.trainers[name], run)
    run.close()


if len(sys.argv) == 4:
    with subprocess.Popen([sys.executable, *sys.argv, "loop"]) as other:
        train(*sys.argv[1:], "fit")
    sys.exit(other.returncode)
train(*sys.argv[1:])
