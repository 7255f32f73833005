"""``--scripts``: runs two training scripts unedited, compares them step by step, and locates the first difference."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from compare.app.judge import Pair, Recorded, pairs
from compare.app.publish import judge_and_publish
from compare.app.run_folder import code
from compare.app.script_runs import EpochEnds, ScriptRun, ScriptRunner, refuse_failures, write_records
from compare.check.script_causes import hints, name_causes, name_reporting
from compare.check.sides import Sides
from compare.check.stages import Located, locate
from compare.errors import NoVerdictError, RequestError
from compare.options import Options
from compare.records import MetricsFile, Place, Record, read_json, read_records
from compare.records.run_json import FINISHED, INTERRUPTED, TRAINED, RunJson, now
from compare.reporting.result import Result
from compare.reporting.terminal import say
from compare.verdict import DIFFERENT, rounding
from compare.watch.seen import CloseUp, read_close_up
from compare.watch.settings import MADE_ALIKE, Nudge, Settings
from compare.watch.trace import OTHERS, Trace, read_traces

LEAST_TWINS, MOST_TWINS = 2, 6
"""The number of noise twins: at first, and where rounding may have crossed a kink that these did not."""
FIT = "fit"
"""What trained, where Keras's own ``fit`` did."""


@dataclass
class ScriptsSession:
    """One comparison of two scripts, or of the two trainings of one.

    Attributes:
        options: the request.
        folder: the run's folder.
        work: a temporary folder for what the processes write.
        runner: what starts the scripts.
        console: where progress is printed.
        run: the run's ``run.json``.
        names: the sides, the reference first.
        traces: what was seen of the sides.
        epochs: where epochs end.
    """

    options: Options
    folder: Path
    work: Path
    runner: ScriptRunner
    console: Console
    run: RunJson
    names: list[str]
    traces: list[Trace] = field(default_factory=list)
    epochs: EpochEnds = field(default_factory=EpochEnds)
    passes: int = 0

    @property
    def alone(self) -> bool:
        """Whether one script trains twice."""
        return len(self.options.scripts) == 1

    def settings(self, side: int, name: str) -> Settings:
        """How to run the script of a side."""
        experiment = self.options.write_experiment if self.passes == 1 else None
        return Settings(
            script=self.options.scripts[0 if self.alone else side],
            folder=str(self.work / name),
            initial=str(self.work / "initial"),
            arguments=self.options.script_arguments,
            trainings=2 if self.alone else 1,
            max_steps=self.options.max_steps,
            replicas=self.options.replicas,
            own=self.options.own,
            begins=side == 0 and self.passes == 1,
            write_experiment=None if experiment is None else str(experiment.resolve()),
        )

    def training(self, side: int) -> int:
        """The number of a side's training in its script."""
        return side if self.alone else 0


def compare_scripts(options: Options, folder: Path, console: Console) -> Result:
    """Runs the scripts and judges what they trained.

    Raises:
        RequestError: if a script does not exist.
        NoVerdictError: if a script raises, or trains nothing.
        KeyboardInterrupt: if it was interrupted, after what there is was judged.
    """
    for script in options.scripts:
        if not Path(script).is_file():
            raise RequestError(f"--scripts {script}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="fit-vs-loop-") as work, ScriptRunner() as runner:
        session = _begin(options, folder, Path(work), runner, console)
        try:
            interrupted = _train(session)
            session.run.save(status=INTERRUPTED if interrupted else TRAINED)
            if not interrupted:
                _explain(session)
                session.run.save(status=FINISHED)
        except KeyboardInterrupt:
            interrupted = True
            session.run.save(status=INTERRUPTED)
        if not session.traces:
            raise KeyboardInterrupt
        verdict = judge_and_publish(folder, console)
        if interrupted:
            raise KeyboardInterrupt
        return Result(folder, verdict)


def _begin(options: Options, folder: Path, work: Path, runner: ScriptRunner, console: Console) -> ScriptsSession:
    names = [Path(script).stem for script in options.scripts]
    names = [names[0], names[-1] if names[-1] != names[0] else f"{names[0]}-2"]
    run = RunJson.read(folder)
    run.begin_training(
        {
            "title": " and ".join(names) + (": two scripts" if len(options.scripts) > 1 else ": one script"),
            "notes": [],
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "options": options.as_json(),
            "trainers": names,
            "strategy": _strategy(1),
            "versions": {
                "python": platform.python_version(),
                **{package: version(package) for package in ("tensorflow", "keras", "numpy", "fit-vs-loop")},
            },
            "machine": {"platform": platform.platform(), "processors": os.cpu_count()},
            "code": code(options),
            "started": now(),
        }
    )
    run.save()
    say(console, f"Comparing {' and '.join(options.scripts)}", style="bold")
    for name, text in MADE_ALIKE.items():
        say(console, f"  {name}: {'as in each script' if name in options.own else f'made alike, {text}'}")
    return ScriptsSession(options, folder, work, runner, console, run, names)


def _strategy(replicas: int) -> dict[str, object]:
    return {
        "name": "mirrored" if replicas > 1 else "default",
        "class": "the scripts' own",
        "replicas": replicas,
        "workers": 1,
        "global_batch_size": 0,
        "devices": [],
    }


# Training


def _run(session: ScriptsSession, settings: Sequence[Settings], shown: Sequence[str]) -> tuple[list[ScriptRun], bool]:
    """Runs scripts at the same time and shows their progress; returns them, and whether they were interrupted."""
    first = session.passes == 1
    logs = [(session.folder if first else session.work) / f"{name}.log" for name in shown]
    interrupted = False
    printed = dict.fromkeys(logs, 0)
    with _progress(session.console) as progress:
        bars = [progress.add_task(name, total=None) for name in shown]
        runs = [session.runner.start(each, log) for each, log in zip(settings, logs, strict=True)]

        def look() -> None:
            for bar, run in zip(bars, runs, strict=True):
                progress.update(bar, completed=run.steps())
            if first and session.options.verbose:
                for log in logs:
                    printed[log] += _print_new(log, printed[log], session.console)
            if first and session.options.stop_at_difference and _differ_so_far(session, runs):
                for run in runs:
                    run.end()

        try:
            session.runner.wait(runs, look)
        except KeyboardInterrupt:
            interrupted = True
            for run in runs:
                run.end()
            session.runner.wait(runs)
    return runs, interrupted


def _print_new(log: Path, begin: int, console: Console) -> int:
    """Prints what a log has gained; returns how many bytes that is."""
    with open(log, "rb") as file:
        file.seek(begin)
        new = file.read()
    for line in new.decode(errors="replace").splitlines():
        say(console, f"{log.stem}: {line}")
    return len(new)


def _differ_so_far(session: ScriptsSession, runs: Sequence[ScriptRun]) -> bool:
    """Whether a step of the trainings that are running differs."""
    traces = [read_traces(run.folder) for run in runs]
    sides = traces[0][:2] if session.alone else [each[0] for each in traces if each]
    if len(sides) < 2:
        return False
    a, b = (trace.steps["hashes"][trace.steps["step"] > 0] for trace in sides)
    common = min(len(a), len(b))
    return a.shape[1:] != b.shape[1:] or not np.array_equal(a[:common], b[:common])


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.completed} steps"), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=console.quiet)


def _train(session: ScriptsSession) -> bool:
    """Runs the scripts, and writes their records; returns whether they were interrupted.

    Raises:
        NoVerdictError: if there is nothing to compare.
    """
    session.passes = 1
    sides = [0] if session.alone else [0, 1]
    settings = [session.settings(side, session.names[side]) for side in sides]
    runs, interrupted = _run(session, settings, [session.names[side] for side in sides])
    if not interrupted:
        refuse_failures(runs)
    traces = [read_traces(run.folder) for run in runs]
    session.traces = traces[0][:2] if session.alone else [each[0] for each in traces if each]
    if len(session.traces) < 2:
        if interrupted:
            session.traces = []
            return True
        raise NoVerdictError(_too_few(session, runs, [len(each) for each in traces]))
    shapes = [[variable.shape for variable in trace.variables] for trace in session.traces]
    if shapes[0] != shapes[1]:
        raise NoVerdictError(_other_shapes(session))
    first, second = session.traces
    session.epochs = EpochEnds.of(first, second)
    like = first if first.epochs or not second.epochs else second
    metrics = MetricsFile(session.folder / "metrics.csv")
    for name, trace in zip(session.names, session.traces, strict=True):
        write_records(session.folder, name, trace, session.epochs, like, metrics)
    session.run.save(strategy=_strategy(first.replicas))
    for name, trace in zip(session.names, session.traces, strict=True):
        say(session.console, f"{name}: {trace.last:,} steps by {trace.trained_by}")
        if trace.last >= session.options.max_steps:
            say(session.console, f"{name}: ended after {trace.last:,} steps (--max-steps)", style="yellow")
    return interrupted


def _too_few(session: ScriptsSession, runs: Sequence[ScriptRun], trainings: Sequence[int]) -> str:
    if session.alone:
        return (
            f"{session.options.scripts[0]} makes {trainings[0]} training(s) with a Keras optimizer, and one script is "
            "compared with itself: give it two, or give two scripts"
        )
    name, run = session.options.scripts[trainings.index(0)], runs[trainings.index(0)]
    path = run.folder / OTHERS
    if path.exists() and (others := read_json(path)):
        return f"{name} uses {' and '.join(others)}; --scripts watches Keras 3 on TensorFlow only"
    return (
        f"{name} never applies a Keras optimizer (optimizer.apply or apply_gradients), so there is no step to compare; "
        f"its output is in {run.log}"
    )


def _other_shapes(session: ScriptsSession) -> str:
    first, second = (trace.variables for trace in session.traces)
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a.shape != b.shape:
            return (
                f"the models differ: weight {i + 1} is {a.name} {list(a.shape)} in {session.names[0]} and {b.name} "
                f"{list(b.shape)} in {session.names[1]}; give both the same layers"
            )
    return (
        f"the models differ: that of {session.names[0]} has {len(first)} weights, that of {session.names[1]} "
        f"{len(second)}; give both the same layers"
    )


# Explaining a difference


def _explain(session: ScriptsSession) -> None:
    """Measures rounding by noise twins of the reference; locates and names what is more than that."""
    (pair,) = pairs(Recorded.read(session.folder))
    assert isinstance(pair, Pair)
    if pair.exactly.training.verdict != DIFFERENT:
        _explain_numbers(session, pair)
        return
    start = pair.noise_start
    twins: list[Record] = []
    if start is not None:
        say(session.console, "Not identical. Repeating the reference with noise to measure rounding …")
        twins = _train_twins(session, pair, start)
    training = pair.compared(twins).training
    lengths = [trace.last for trace in session.traces]
    if training.verdict == DIFFERENT and training.first_difference is not None:
        first = training.first_difference
        place: Place = (first.epoch, first.step if first.step is not None else 1)
        if start is not None:
            place = rounding.first_beyond(pair.reference, pair.candidate, twins, start) or place
        step = session.epochs.step(place)
    elif lengths[0] != lengths[1]:
        step = min(lengths) + 1
    else:
        _explain_numbers(session, pair)
        return
    if step < 1:
        return  # the initial weights
    located, sides = _look_into(session, pair, step, start)
    causes = name_causes(located, sides) if sides is not None else []
    evidence = hints(located, sides) if sides is not None and not causes else []
    if step > min(lengths):
        evidence.insert(0, f"{session.names[0]} makes {lengths[0]:,} steps, {session.names[1]} {lengths[1]:,}")
    epoch, within = session.epochs.place(step)
    found = {
        "training": {"verdict": DIFFERENT},
        "reporting": {"verdict": None},
        "certain": start is None or step > min(lengths),
        "causes": [cause.as_json() for cause in causes],
        "evidence": evidence if not causes else [],
        "not_applicable": [],
        "located": {"epoch": epoch, "step": within, "stage": located.stage, "where": located.where},
        "stages": [each.as_json() for each in located.stages],
    }
    session.run.save(check={pair.candidate.trainer: found})


def _explain_numbers(session: ScriptsSession, pair: Pair) -> None:
    """Names the cause of different numbers from equal weights, where it is known."""
    causes = name_reporting(pair.reference, pair.candidate)
    if causes:
        found = {
            "training": {"verdict": None},
            "reporting": {"verdict": DIFFERENT},
            "certain": False,
            "causes": [cause.as_json() for cause in causes],
            "evidence": [],
            "not_applicable": [],
        }
        session.run.save(check={pair.candidate.trainer: found})


def _train_twins(session: ScriptsSession, pair: Pair, start: Place) -> list[Record]:
    where = session.folder / "twins" / pair.twins
    where.mkdir(parents=True)
    metrics = MetricsFile(where / "metrics.csv")
    step, count = max(session.epochs.step(start), 1), 0
    least, most = LEAST_TWINS, MOST_TWINS
    while True:
        numbers = [count + 1, count + 2]
        count += 2
        session.passes += 1
        loud = count > least
        settings = []
        for number in numbers:
            nudge = Nudge(step, number, rounding.LOUD if loud else 1)
            settings.append(replace(session.settings(0, f"twin-{number}"), nudge=nudge, begins=False))
        _run(session, settings, [f"noise twin {number}" for number in numbers])
        for number, each in zip(numbers, settings, strict=True):
            traces = read_traces(Path(each.folder))
            if traces:
                name = rounding.twin_name(number, loud)
                write_records(where, name, traces[0], session.epochs, session.traces[0], metrics)
        twins = read_records(where)
        noise = rounding.measure(pair.reference, pair.candidate, twins, start)
        if rounding.enough(noise, count, least, most):
            return twins


def _look_into(session: ScriptsSession, pair: Pair, step: int, start: Place | None) -> tuple[Located, Sides | None]:
    """Runs both scripts once more up to a step, and records what happens inside it."""
    say(session.console, f"Looking into step {step:,}: running both up to there again …")
    session.passes += 1
    last = max(step + 2, session.epochs.step((session.epochs.place(step)[0] + 1, 0)) if session.epochs.ends else 0)

    def settings_of(side: int, name: str, nudge: Nudge | None = None) -> Settings:
        usual = session.settings(side, name)
        steps = min(last, usual.max_steps)
        return replace(usual, close_up=(max(step, 1), step + 1), max_steps=steps, begins=False, nudge=nudge)

    sides = [0] if session.alone else [0, 1]
    settings = [settings_of(side, f"close-up-{side}") for side in sides]
    nudge = Nudge(max(session.epochs.step(start), 1) if start is not None else step, 1)
    twin = settings_of(0, "close-up-twin", nudge)
    _run(session, [*settings, twin], [*(session.names[side] for side in sides), "noise twin"])
    folders = [Path(each.folder) for each in settings]
    seen: list[CloseUp | None] = [
        read_close_up(folders[0 if session.alone else side], session.training(side)) for side in (0, 1)
    ]
    noisy = read_close_up(Path(twin.folder), 0)
    if seen[0] is None or seen[1] is None:
        return Located(step, None), None
    variables = [variable.name for variable in pair.reference.variables]
    located = locate(seen[0], seen[1], [noisy] if noisy else [], step, variables)
    names = (session.names[0], session.names[1])
    traces = (session.traces[0], session.traces[1])
    swapped = traces[0].trained_by != FIT and traces[1].trained_by == FIT
    return located, Sides(names, traces, (seen[0], seen[1]), step, swapped)
