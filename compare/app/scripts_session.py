"""A comparison of two scripts while it lasts: what was asked for, what the scripts trained, and how they are run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from compare.app.provenance import code_of_user
from compare.app.script_pairs import paired_models
from compare.app.script_runs import ScriptRun, ScriptRunner, failure_of, left_by
from compare.app.script_sides import Side
from compare.errors import NoVerdictError
from compare.modes import Scripts
from compare.naming import log_name, shown_path, some
from compare.records.run_json import RunJson
from compare.reporting.live import waiting
from compare.reporting.terminal import say
from compare.verdict.rounding import unlikely
from compare.watch.epoch_ends import EpochEnds
from compare.watch.seen import CloseUp, read_close_up
from compare.watch.settings import AWAITED, ENDED, Nudge, Settings
from compare.watch.trace import IMPORTED, UNSEEN, Trace, read_traces

PATIENCE = 60.0
"""Seconds that a script waits for the initial weights of the reference until it is said that there is no model yet."""


@dataclass(frozen=True)
class ModelPair:
    """One model of each side, the reference first: its name in the records, its training, and where epochs end."""

    names: tuple[str, str]
    traces: tuple[Trace, Trace]
    epochs: EpochEnds

    @property
    def lengths(self) -> tuple[int, int]:
        first, second = self.traces
        return first.last, second.last

    @property
    def swapped(self) -> bool:
        """Whether the candidate is plain ``fit``, which the reference is not, so that the reference is at fault."""
        first, second = self.traces
        return first.trained_by != "fit" and second.trained_by == "fit"

    def seen(self, side: int, run: ScriptRun) -> CloseUp | None:
        """What one side was seen to do inside its steps when its script was run once more; None if nothing was."""
        trace = self.traces[side]
        return read_close_up(run.folder, trace.number, trace.order)


@dataclass
class ScriptsSession:
    """One comparison of two scripts, or of the two trainings of one.

    Attributes:
        work: a temporary folder for what the processes write.
        scripts: what runs on each side, or the one script that trains twice.
        first: whether the scripts run for the first time, in which their trainings are recorded.
        interrupted: whether that was interrupted; what they trained until then can be compared.
        stopped: whether they were ended where their weights were seen to differ.
        failed: which of them failed after as many steps as the other has made, as sentences.
        by_hand: the sides whose scripts make optimizers, but change the weights without them.
        left_over: what only one of them trains.
        left_out: what else only one of them has in a training that both make.
        twins: where noise twins of the reference are, by their noise.
    """

    options: Scripts
    folder: Path
    work: Path
    runner: ScriptRunner
    scripts: Sequence[Side]
    console: Console
    run: RunJson
    names: list[str]
    models: list[ModelPair] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    by_hand: list[int] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    twins: dict[Nudge, Path] = field(default_factory=dict)
    first: bool = True
    interrupted: bool = False
    stopped: bool = False
    started: int = 0

    @property
    def ended(self) -> bool:
        """Whether the scripts were ended before they had done all that they would have."""
        return self.interrupted or self.stopped or bool(self.failed)

    @property
    def alone(self) -> bool:
        """Whether one script trains twice."""
        return len(self.scripts) == 1

    @property
    def sides(self) -> list[int]:
        """The sides that have a script of their own."""
        return list(range(len(self.scripts)))

    def nudge(self, model: ModelPair, start: int, twin: int, units: int = 1) -> Nudge:
        """The noise of a twin of the reference that begins with a step of a model.

        Models that take turns may make several steps in each; the noise of all begins with the same turn.
        """
        own = model.traces[0].last
        traces = [each.traces[0] for each in self.models]
        others = ((trace.number, (start - 1) * trace.last // own + 1) for trace in traces if trace.last != own)
        return Nudge(start, twin, units, tuple(others))

    def settings(self, side: int) -> Settings:
        """How to run the script of a side, with a folder of its own."""
        self.started += 1
        experiment = self.options.write_experiment if self.first else None
        return Settings(
            **asdict(self.scripts[0 if self.alone else side].program),
            folder=str(self.work / f"{self.started}"),
            initial=str(self.work / "initial"),
            arguments=self.options.script_arguments,
            alone=self.alone,
            max_steps=self.options.max_steps,
            own=self.options.keep,
            begins=side == 0 and self.first,
            by_hand=side in self.by_hand,
            write_experiment=None if experiment is None else str(experiment.resolve()),
        )


def run_scripts(session: ScriptsSession, settings: Sequence[Settings], shown: Sequence[str]) -> list[ScriptRun]:
    """Runs scripts at the same time and shows their progress.

    Raises:
        KeyboardInterrupt: if it was interrupted, unless they run for the first time.
    """
    first = session.first
    _refuse_changed(session, {} if session.options.commits else code_of_user(session.options))
    logs = [
        session.folder / log_name(name) if first else Path(each.folder).with_suffix(".log")
        for name, each in zip(shown, settings, strict=True)
    ]
    printed = dict.fromkeys(logs, 0)
    steps = [0] * len(shown)
    known = session.models[0].lengths if not first and len(session.models) == 1 else ()
    of = [f" of {min(each.max_steps, max(known)):,}" if known else "" for each in settings]

    def progress() -> str:
        if first and _awaits_model(Path(settings[0].initial)):
            waits, own = shown[::-1]
            why = f"does {own} wait for a lock or a port of {waits}?"
            return f"{waits} waits for the weights of {own}, which has made no model yet: {why}"
        if not any(steps):
            return f"starting {', '.join(shown)}"
        return ", ".join(f"{name} {count:,}{total} steps" for name, count, total in zip(shown, steps, of, strict=True))

    with waiting(session.console, progress):
        runs = list(map(session.runner.start, settings, logs, shown))

        def look() -> None:
            steps[:] = [run.steps() for run in runs]
            if first and session.options.verbose:
                for run in runs:
                    printed[run.log] += _print_new(run, printed[run.log], session.console)
            unseen = any(left_by(run, UNSEEN) for run in runs)
            # One that fails after its last step is compared: the other may make as many.
            over = [run.steps() for run in runs if run.status is not None and failure_of(run)]
            failed = first and bool(over) and not 0 < min(over) == max(run.steps() for run in runs)
            stopped = first and (session.stopped or _to_be_stopped(session, runs))
            session.stopped |= stopped
            if unseen or failed or stopped:
                session.runner.end(runs)

        try:
            session.runner.wait(runs, look)
        except KeyboardInterrupt:
            session.runner.end(runs)
            if not first:
                raise
            session.interrupted = True
    for run in runs:
        _refuse_changed(
            session, {shown_path(Path(file)): each for file, each in (left_by(run, IMPORTED) or {}).items()}
        )
    return runs


def _refuse_changed(session: ScriptsSession, now: Mapping[str, str]) -> None:
    """Raises a NoVerdictError if code was changed since it was first run: its steps are other ones now.

    Args:
        now: digests of files, by what they are called.
    """
    known = session.run.code = {**now, **(session.run.code or {})}
    if changed := [name for name in now if now[name] != known[name]]:
        raise NoVerdictError(f"{some(sorted(changed))} changed while it was compared: compare again")


def _awaits_model(initial: Path) -> bool:
    """Whether a script has waited long for initial weights, since the reference has made no model, nor ended."""
    try:
        since = (initial / AWAITED).stat().st_mtime
    except FileNotFoundError:
        return False
    return time.time() > since + PATIENCE and not (any(initial.glob("*.npz")) or (initial / ENDED).exists())


def _print_new(run: ScriptRun, begin: int, console: Console) -> int:
    """Prints what a log has gained; returns how many bytes that is."""
    with open(run.log, "rb") as file:
        file.seek(begin)
        new = file.read()
    for line in new.decode(errors="replace").splitlines():
        say(console, f"{run.name}: {line}")
    return len(new)


def _to_be_stopped(session: ScriptsSession, runs: Sequence[ScriptRun]) -> bool:
    """Whether scripts are to end where they differ, and after a step that both have, rounding will not explain it."""
    if not session.options.stop_at_difference or all(run.status is not None for run in runs):
        return False
    for first, second in paired_models([read_traces(run.folder) for run in runs], session.options.max_steps):
        _, *rows = np.intersect1d(first.steps["step"], second.steps["step"], return_indices=True)
        a, b = (trace.steps["projections"][each] for trace, each in zip((first, second), rows, strict=True))
        if unlikely(a, b):
            return True
    return False
