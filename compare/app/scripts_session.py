"""A comparison of two scripts while it lasts: what was asked for, what the scripts trained, and how they are run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from compare.app.script_runs import EpochEnds, ScriptRun, ScriptRunner
from compare.options import Options
from compare.records.run_json import RunJson
from compare.reporting.live import waiting
from compare.reporting.terminal import say
from compare.watch.pairing import paired
from compare.watch.settings import Settings
from compare.watch.trace import Trace, read_traces


@dataclass(frozen=True)
class ModelPair:
    """One model of each side.

    Attributes:
        names: what they are called in the records, the reference first.
        traces: what was seen of their trainings.
        epochs: where epochs end.
    """

    names: tuple[str, str]
    traces: tuple[Trace, Trace]
    epochs: EpochEnds

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of steps that both sides made."""
        first, second = self.traces
        return first.last, second.last


@dataclass
class ScriptsSession:
    """One comparison of two scripts, or of the two trainings of one.

    Attributes:
        options: the request.
        folder: the run's folder.
        work: a temporary folder for what the processes write.
        runner: what starts the scripts.
        sources: the Python files to run: the scripts, or what was made of notebooks.
        console: where progress is printed.
        run: the run's ``run.json``.
        names: the sides, the reference first.
        models: the models that both train, in pairs.
        left_over: what only one of them trains.
        passes: how many times the scripts were run.
        started: how many processes were started for them.
    """

    options: Options
    folder: Path
    work: Path
    runner: ScriptRunner
    sources: list[str]
    console: Console
    run: RunJson
    names: list[str]
    models: list[ModelPair] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    passes: int = 0
    started: int = 0

    @property
    def alone(self) -> bool:
        """Whether one script trains twice."""
        return len(self.options.scripts) == 1

    @property
    def sides(self) -> list[int]:
        """The sides that have a script of their own."""
        return [0] if self.alone else [0, 1]

    def settings(self, side: int) -> Settings:
        """How to run the script of a side, with a folder of its own."""
        self.started += 1
        experiment = self.options.write_experiment if self.passes == 1 else None
        return Settings(
            script=self.options.scripts[0 if self.alone else side],
            source=self.sources[0 if self.alone else side],
            folder=str(self.work / f"{self.started}"),
            initial=str(self.work / "initial"),
            arguments=self.options.script_arguments,
            alone=self.alone,
            max_steps=self.options.max_steps,
            replicas=self.options.replicas,
            own=self.options.own,
            begins=side == 0 and self.passes == 1,
            write_experiment=None if experiment is None else str(experiment.resolve()),
        )


def run_scripts(
    session: ScriptsSession, settings: Sequence[Settings], shown: Sequence[str]
) -> tuple[list[ScriptRun], bool]:
    """Runs scripts at the same time and shows their progress; returns them, and whether they were interrupted."""
    first = session.passes == 1
    logs = [
        session.folder / f"{name}.log" if first else Path(each.folder).with_suffix(".log")
        for name, each in zip(shown, settings, strict=True)
    ]
    interrupted = False
    printed = dict.fromkeys(logs, 0)
    steps = [0] * len(shown)

    def progress() -> str:
        if not any(steps):
            return f"starting {', '.join(shown)}"
        return ", ".join(f"{name} {count:,} steps" for name, count in zip(shown, steps, strict=True))

    with waiting(session.console, progress):
        runs = [session.runner.start(each, log) for each, log in zip(settings, logs, strict=True)]

        def look() -> None:
            steps[:] = [run.steps() for run in runs]
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
    for sides in paired_models(session, [read_traces(run.folder) for run in runs]):
        a, b = (trace.steps["hashes"][trace.steps["step"] > 0] for trace in sides)
        common = min(len(a), len(b))
        if a.shape[1:] != b.shape[1:] or not np.array_equal(a[:common], b[:common]):
            return True
    return False


def paired_models(session: ScriptsSession, traces: Sequence[Sequence[Trace]]) -> list[tuple[Trace, Trace]]:
    """The trainings that are compared, in pairs.

    Each training of the reference, models in their order of creation, is paired with the first of the other script
    whose variables it shares, as ``pairing.paired`` says. Where one of them was trained more often than the other, as
    for trial, those that make equally many steps are pairs. The trainings of one script that go on at the same time,
    as of a GAN's two models, are paired with those that come next.
    """
    if session.alone:
        first, second = [*stretches(traces[0]), [], []][:2]
    else:
        first, second = ([trace for stretch in stretches(side) for trace in stretch] for side in traces)
    again = len(first) != len(second)
    left, pairs = list(second), []
    for one in first:
        orders = [(other, _order(one, other)) for other in left]
        fitting = [(other, order) for other, order in orders if order]
        if fitting:
            other, order = min(fitting, key=lambda each: again and each[0].last != one.last)
            left.remove(other)
            pairs.append(limited(session, one, other.ordered(order)))
    return pairs


def left_over(
    names: Sequence[str], traces: Sequence[Sequence[Trace]], paired: Sequence[tuple[Trace, Trace]]
) -> list[str]:
    """What only one of two scripts trains, as sentences."""
    found = []
    for side, (name, trainings) in enumerate(zip(names, traces, strict=True)):
        taken = {pair[side].number for pair in paired}
        for trace in trainings:
            if trace.number not in taken:
                weights = [trace.variables[i].name for i in trace.trained] or [each.name for each in trace.variables]
                what = f"{trace.model + ': ' if trace.model else ''}{weights[0]} to {weights[-1]}, {trace.last:,} steps"
                found.append(
                    f"only {name} also trains {what}; {names[1 - side]} makes no other training of such weights"
                )
    return found


def stretches(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The trainings of a script that go on at the same time, as of a GAN's two models, in their order of creation.

    The first of each stretch has what the script reports.
    """
    found: list[list[Trace]] = []
    for trace in sorted(traces, key=lambda trace: trace.began):
        if found and trace.began <= max(each.ended for each in found[-1]):
            found[-1].append(trace)
        else:
            found.append([trace])
    return [_in_order(stretch) for stretch in found]


def _in_order(traces: Sequence[Trace]) -> list[Trace]:
    first, *others = sorted(traces, key=lambda trace: trace.created)
    told = next((trace for trace in traces if trace.epochs or trace.reported), first)
    if not (first.epochs or first.reported):
        first = replace(first, epochs=told.epochs, reported=told.reported)
    return [first, *others]


def _order(one: Trace, other: Trace) -> list[int]:
    """For each variable of a training, the number of that of the other; empty if they are not the same."""
    if len(one.variables) != len(other.variables):
        return []
    names, shapes = zip(*((variable.name, variable.shape) for variable in other.variables), strict=True)
    wanted = [variable.name for variable in one.variables]
    return paired(names, shapes, wanted, [variable.shape for variable in one.variables])


def limited(session: ScriptsSession, *pair: Trace) -> tuple[Trace, Trace]:
    """Two trainings up to the last step that both have, if only the limit has ended them."""
    one, other = pair
    limit = session.options.max_steps
    if min(one.last, other.last) >= limit:
        common = np.intersect1d(one.steps["step"], other.steps["step"])
        last = int(common.max(initial=0))
        return one.up_to(last), other.up_to(last)
    return one, other
