#!/usr/bin/env python3
"""Measures how right verdicts are, over the loops of tests/corpus, and how long one waits for them.

    scripts/accuracy.py detector           # the short check on right loops, planted bugs and unknown ones, everywhere
    scripts/accuracy.py styles             # the same on right and faulty loops in any style, on many experiments
    scripts/accuracy.py calibration        # how far loops are from fit, in units of its perturbed runs' distance
    scripts/accuracy.py watching           # what --scripts adds to the CPU time of a step
    scripts/accuracy.py time-to-cause      # how long one waits for a cause after the first different step

Each writes a CSV file, row by row, and a page. The first three take hours; a second call continues where the first one
stopped, and --only and the like select a part.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / "tests"))

from scripts import measure, tables  # noqa: E402
from scripts.pages import accuracy as pages  # noqa: E402


def main() -> None:
    from corpus import planted  # without TensorFlow: each part measures in processes of its own

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(metavar="PART", required=True)

    def add(measured: Callable[[Any], Path], out: str) -> argparse.ArgumentParser:
        part = parts.add_parser(measured.__name__.replace("_", "-"))
        part.set_defaults(measured=measured)
        part.add_argument("--out", type=Path, default=ROOT / out, help=f"output folder (default: {out})")
        return part

    models, optimizers = list(planted.MODELS), list(planted.OPTIMIZERS)
    for measured, replicas in ((detector, [1, 2, 4]), (calibration, [1, 2])):
        part = add(measured, f"reports/{measured.__name__}")
        part.add_argument("--models", nargs="*", default=models, help=f"models of the corpus (default: {models})")
        part.add_argument("--optimizers", nargs="*", default=optimizers, help=f"(default: {optimizers})")
        part.add_argument("--replicas", nargs="*", type=int, default=replicas, help=f"(default: {replicas})")
        part.add_argument("--only", nargs="*", metavar="NAME", help="names of loops (default: all)")
    part.add_argument("--gallery", action="store_true", help="the built-in experiments with their own optimizers")
    part.add_argument("--seeds", type=int, default=2, help="number of seeds (default: %(default)s)")
    part.add_argument("--bugs", action="store_true", help="include the planted bugs, with the first seed")
    part = add(styles, "reports/detector")
    part.add_argument("--only", nargs="*", default=[], metavar="WORD", help="loops whose names contain all these words")
    part.add_argument("--sample", type=int, metavar="N", help="check N loops that are as different as possible")
    for measured, out, epochs in ((watching, "watching", 6), (time_to_cause, "benchmark/time-to-cause", 10)):
        part = add(measured, f"reports/{out}")
        part.add_argument("--epochs", type=int, default=epochs, help="epochs of every run (default: %(default)s)")
        part.add_argument("--rounds", type=int, default=5, help="repetitions (default: %(default)s)")
    measure.add_data_dir(part)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(options.measured(options))


def checker_of(experiment: Any, replicas: int, batch_size: int, **options: Any) -> Any:
    import against_fit

    checker = against_fit.checker_of(experiment, replicas, batch_size=batch_size, **options)
    gc.freeze()  # Keras collects garbage whenever a model is built
    return checker


def start(replicas: int, threads: int = 0) -> None:
    """Begins a process that uses TensorFlow, on so many logical devices."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    import compare

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    compare.configure(replicas=replicas)


# The short check as a detector.


def detector(options: Any) -> Path:
    path = options.out / "detector.csv"
    for model, optimizer, replicas in product(options.models, options.optimizers, options.replicas):
        measure.call_in_process(check_planted, path, model, optimizer, replicas, options.only)
    return pages.write(options.out / "README.md", pages.detector(tables.read(path, pages.DETECTOR)))


def check_planted(path: Path, model: str, optimizer: str, replicas: int, only: list[str] | None) -> None:
    """Checks the remaining loops that apply to one model, optimizer and number of replicas."""
    from corpus import planted

    cell, done = (model, optimizer, str(replicas)), set(keys(path, pages.DETECTOR, pages.CELL))
    todo = [
        (kind, bug)
        for kind, bugs in (("correct", planted.STYLES), ("bug", planted.BUGS), ("unknown", planted.UNKNOWN))
        for bug in bugs
        if planted.shows(bug, model, optimizer, replicas) and (not only or bug.name in only)
        if (kind, bug.name, *cell) not in done
    ]
    if not todo:
        return
    start(replicas)
    checker = checker_of(planted.experiment(model, optimizer), replicas, planted.BATCH_SIZE)
    for kind, bug in todo:
        row = dict(zip(pages.CELL, (kind, bug.name, *cell), strict=True)) | judged(checker, kind, bug)
        tables.append(path, row, pages.DETECTOR)
        print(*row.values(), flush=True)


def keys(path: Path, fields: list[str], key: list[str]) -> Iterator[tuple[str, ...]]:
    return tables.read(path, fields)[key].itertuples(index=False, name=None)


def judged(checker: Any, kind: str, bug: Any) -> dict[str, str]:
    """Runs one check and compares its result with the expected one."""
    try:
        report = checker.check(bug.trainer())
    except Exception as error:
        message = " ".join(str(error).split())[:80]
        return {"caught": "no", "training": "raised", "reporting": type(error).__name__, "causes": message}
    training, reporting = ({f.id for f in findings} for findings in (report.training, report.reporting))
    different = report.verdict == "different"
    wanted = set(bug.training), set(bug.reporting)
    wrong = (training - wanted[0] - set(bug.also)) | (reporting - wanted[1] - set(bug.also))
    row = {
        "caught": yes(different if kind != "correct" else report.verdict in pages.RIGHT),
        "wrong_cause": yes(bool(wrong)),
        "training": report.comparison.training.verdict,
        "reporting": report.comparison.reporting.verdict,
        "causes": " ".join(f.id for f in report.findings),
        "seconds": f"{report.seconds:.1f}",
    }
    if kind == "bug":
        trains = report.comparison.training.verdict == "different"
        row["class_right"] = yes(trains if wanted[0] else not trains and different)
        row["cause_right"] = yes(wanted[0] <= training and wanted[1] <= reporting)
    return row


def yes(value: bool) -> str:
    return "yes" if value else "no"


# Loops in any style.


def styles(options: Any) -> Path:
    import corpus

    path = options.out / "styles.csv"
    done = set(keys(path, pages.STYLES, pages.STYLE))
    cells = corpus.cells() if options.sample is None else corpus.sample(options.sample)
    todo = [cell for cell in cells if all(word in cell.name for word in options.only) and cell.key not in done]
    task = attrgetter("experiment", "replicas")
    for _, group in groupby(sorted(todo, key=task), task):
        measure.call_in_process(check_styles, path, list(group))
    return pages.write(options.out / "styles.md", pages.styles(tables.read(path, pages.STYLES)))


def check_styles(path: Path, cells: list[Any]) -> None:
    """Runs the checks of one experiment on one number of replicas, with one reference for all."""
    start(2)
    checker = None
    for cell in cells:
        experiment, trainer = cell.build()
        checker = checker or checker_of(experiment, cell.replicas, cell.batch_size)
        row = dict(zip(pages.STYLE, cell.key, strict=True)) | {"kind": cell.kind, "allowed": " ".join(cell.allowed)}
        row["date"] = datetime.date.today().isoformat()
        try:
            report = checker.check(trainer)
            row |= {"verdict": report.verdict, "causes": " ".join(finding.id for finding in report.findings)}
            row["seconds"] = f"{report.seconds:.1f}"
        except Exception as error:
            row |= {"verdict": "raised", "causes": type(error).__name__}
        tables.append(path, row, pages.STYLES)
        print(*row.values(), flush=True)


# Rounding, measured.

EPOCHS, BATCH_SIZE = 4, 8


class Cell(NamedTuple):
    model: str
    optimizer: str
    replicas: int
    seed: int

    @property
    def of_gallery(self) -> bool:
        return self.optimizer == pages.ITS_OWN

    @property
    def same_on_two(self) -> bool:
        """Whether the cell computes the same on two replicas with half of each batch."""
        names = {self.model, self.optimizer, f"{self.model}, {self.optimizer}"}
        return self.replicas == 1 and not names & pages.OTHER_WITH_REPLICAS.keys()


def calibration(options: Any) -> Path:
    from compare.request import EXPERIMENTS

    gallery = [name for name in EXPERIMENTS if name != "fashion-mnist"]
    parts = (gallery, [pages.ITS_OWN]) if options.gallery else (options.models, options.optimizers)
    path = options.out / "calibration.csv"
    done = set(keys(path, pages.CALIBRATION, pages.LOOP))
    for cell in map(Cell._make, product(*parts, options.replicas, range(options.seeds))):
        todo = [each for each in loops(cell, bugs=options.bugs) if not options.only or each[1] in options.only]
        if todo := [each for each in todo if (*each[:2], *map(str, cell)) not in done]:
            with tempfile.TemporaryDirectory() as folder:
                if any(name == pages.THREADS for _, name, _ in todo):
                    measure.call_in_process(record_on_one_thread, cell, Path(folder) / "elsewhere")
                measure.call_in_process(calibrate, path, todo, cell, Path(folder))
    return pages.write(options.out / "README.md", pages.calibration(tables.read(path, pages.CALIBRATION)))


def loops(cell: Cell, *, bugs: bool) -> list[tuple[str, str, str]]:
    """The kind, the name on the page and the class of the loops of a cell; no class for fit in another setting."""
    from corpus import planted

    found = [("correct", *names) for names in planted.rounding(cell.model, cell.replicas).items()]
    found += [("correct", pages.THREADS, ""), *([("correct", pages.REPLICAS, "")] if cell.same_on_two else [])]
    if bugs and cell.seed == 0:
        of_gallery = planted.of_any(cell.model, cell.replicas)
        wrong = of_gallery if cell.of_gallery else planted.training(cell.model, cell.optimizer, cell.replicas)
        found += [("unknown" if bug in planted.UNKNOWN else "bug", bug.name, bug.name) for bug in wrong]
    return found


def task_of(cell: Cell, split: int = 1) -> Any:
    """Returns the task of a cell, on ``split`` times as many replicas with the same global batch size."""
    from corpus import planted

    from compare.engine import input_pipeline, strategies
    from compare.engine.data import SAMPLE
    from compare.engine.run import TrainingTask
    from compare.experiments import built_in, fashion_mnist

    if cell.of_gallery:
        fashion_mnist.locate_fashion_mnist = lambda data_dir: SAMPLE
    experiment = built_in(cell.model) if cell.of_gallery else planted.experiment(cell.model, cell.optimizer)
    strategy = strategies.make("mirrored", cell.replicas * split)
    parts = input_pipeline.load(experiment)
    if cell.of_gallery:
        parts = tuple(part.first(min(pages.EXAMPLES, part.count)) for part in parts)
    size = pages.GALLERY_BATCH_SIZE if cell.of_gallery else BATCH_SIZE
    return TrainingTask(experiment, *parts, strategy, size * cell.replicas)


def record_on_one_thread(cell: Cell, folder: Path) -> None:
    start(2, threads=1)
    recorded(cell, folder)


def recorded(cell: Cell, folder: Path, trainer: Any = None, task: Any = None, **of_twin: Any) -> Any:
    """Trains fit, a twin of fit (given ``of_twin``) or another trainer, and returns the record."""
    from compare.engine.noise_twins import TwinRun
    from compare.engine.run import Run
    from compare.engine.strategies import without_idle_waits
    from compare.records.metrics_csv import MetricsFile
    from compare.records.reader import read_records
    from compare.records.recorder import Recorder
    from compare.trainers.keras_fit import KerasFit
    from compare.verdict import rounding

    folder.mkdir()
    name = rounding.twin_name(of_twin["twin"], of_twin["loud"]) if of_twin else "trainer"
    sinks = [Recorder(folder, MetricsFile(folder / "metrics.csv"), name, cell.seed)]
    epochs = range(1, 1 + (pages.GALLERY_EPOCHS if cell.of_gallery else EPOCHS))
    run = (TwinRun if of_twin else Run)(task or task_of(cell), seed=cell.seed, epochs=epochs, sinks=sinks, **of_twin)
    with without_idle_waits():
        (trainer or KerasFit()).train(run)
    return read_records(folder)[0]


def calibrate(path: Path, todo: list[tuple[str, str, str]], cell: Cell, folder: Path) -> None:
    """Compares the loops of a cell with fit, and fit with as many noise twins as a real comparison would train."""
    start(2)
    import corpus

    from compare.records.reader import read_records
    from compare.verdict import rounding
    from compare.verdict.exact import compare_records, noise_start
    from compare.verdict.judge import with_noise
    from compare.verdict.outcomes import DIFFERENT

    task, checker = task_of(cell), None
    twins: dict[tuple[int, int], list[Any]] = {}
    folders = (folder / str(i) for i in range(1000))
    reference = recorded(cell, next(folders), task=task)
    for kind, name, loop in todo:
        row = {"kind": kind, "loop": name, **cell._asdict()}
        try:
            if name == pages.THREADS:
                (candidate,) = read_records(folder / "elsewhere")
            elif name == pages.REPLICAS:
                candidate = recorded(cell, next(folders), task=task_of(cell, 2))
            else:
                candidate = recorded(cell, next(folders), corpus.named(loop)(), task)
        except Exception as error:
            print(name, *cell, "raised", type(error).__name__, str(error)[:100].replace("\n", " "), flush=True)
            continue
        comparison = compare_records(reference, candidate)
        place = noise_start(reference, candidate, comparison.training)
        if place is not None:
            these = twins.setdefault(place, [])
            measured = partial(rounding.measure, reference, candidate, these, place)
            for (number,), loud in rounding.wanted_twins(measured, len(these)):
                these.append(recorded(cell, next(folders), task=task, start=place, twin=number, loud=loud))
            found = measured()
            assert found.reproduced
            row |= {"ratio": f"{found.ratio:.4g}", "variable": found.variable, "twins": found.twins}
            row |= {"epoch": found.epoch, "step": found.step}
            comparison = with_noise(comparison, reference, candidate, these)
        elif comparison.training.verdict != DIFFERENT:
            row |= {"ratio": "0"}
        row["verdict"] = comparison.training.verdict
        if kind != "correct" and row["verdict"] != DIFFERENT:
            # The short check sees in the gradients what noise hides in the weights.
            checker = checker or checker_of(task.experiment, cell.replicas, 64, seed=cell.seed)
            row["check"] = checker.check(corpus.named(loop)()).comparison.verdict
        tables.append(path, row, pages.CALIBRATION)
        print(*row.values(), flush=True)


# What watching a script costs, and how long one waits for a cause.

SCRIPTS = {"tutorial": "tutorial.py", "fit": "tutorial_fit.py"}
WATCHED = """
import sys
from compare.watch.script import run
from compare.watch.settings import Settings
folder, script = sys.argv[1:]
run(Settings(script, script, folder, folder, max_steps=10**9))
"""


def watching(options: Any) -> Path:
    """Runs the tutorial's script, and one with fit for the same model, unwatched and watched in turn."""
    assert options.epochs > pages.LEFT_OUT
    path = tables.anew(options.out / "watching.csv")
    with tempfile.TemporaryDirectory() as folder:
        measure.write_scripts(Path(folder), options.epochs)
        parts = {
            f"{name}, {'watched' if watched else 'unwatched'}": partial(
                milliseconds, f"{folder}/{file}", options.epochs, watched
            )
            for name, file in SCRIPTS.items()
            for watched in (False, True)
        }
        for number, part, value in measure.in_turn(parts, options.rounds):
            name, watched = part.split(", ")
            row = {"round": number, "script": name, "watched": watched, "milliseconds": value}
            tables.append(path, row, list(row))
            print(*row.values(), flush=True)
    origin = measure.origin("scripts/accuracy.py")
    return pages.write(options.out / "README.md", pages.watching(pd.read_csv(path), origin))


def milliseconds(script: str, epochs: int, watched: bool) -> float:
    """CPU milliseconds per step of the later epochs."""
    with tempfile.TemporaryDirectory() as folder:
        done = measure.run(*(["-c", WATCHED, folder] if watched else []), script, PYTHONPATH=str(ROOT))
    ends = [line.cpu_seconds for line in done.lines if re.search(r"[Ll]oss: ", line.text)]
    assert len(ends) == epochs, done.lines
    return 1e3 * (ends[-1] - ends[pages.LEFT_OUT - 1]) / (pages.STEPS * (epochs - pages.LEFT_OUT))


DIFFERS, CAUSE = "weights differ from step", "the short check has found why"


def time_to_cause(options: Any) -> Path:
    """Trains with fit and with the tutorial's loop, which differ from the last step of the first epoch on."""
    path = tables.anew(options.out / "time_to_cause.csv")
    asked = ["--trainers", "fit", "tutorial", "--epochs", str(options.epochs), "--data-dir", str(options.data_dir)]
    for number in range(1, options.rounds + 1):
        with tempfile.TemporaryDirectory() as reports:
            done = measure.run("scripts/compare.py", *asked, "--reports", reports, until=CAUSE)
        found = {text: line.wall_seconds for line in done.lines for text in (DIFFERS, CAUSE) if text in line.text}
        if len(found) < 2:
            raise SystemExit("\n".join(["no difference or no cause was printed:", *(x.text for x in done.lines)]))
        row = {"round": number, "difference": found[DIFFERS], "cause": found[CAUSE]}
        tables.append(path, row, list(row))
        print(row, flush=True)
    origin = measure.origin("scripts/accuracy.py")
    return pages.write(options.out / "README.md", pages.time_to_cause(pd.read_csv(path), origin))


if __name__ == "__main__":
    main()
