"""``--scripts``: runs two training scripts unedited, compares them step by step, and locates the first difference."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from compare.app.notebooks import as_python
from compare.app.provenance import provenance
from compare.app.publish import judge_and_publish
from compare.app.script_runs import EpochEnds, ScriptRun, ScriptRunner, failure_of, write_records
from compare.app.scripts_explain import explain
from compare.app.scripts_session import ModelPair, ScriptsSession, paired_models, run_scripts
from compare.errors import NoVerdictError, RequestError
from compare.naming import distinct, printable
from compare.options import Options
from compare.records import MetricsFile, read_json
from compare.records.run_json import EXPLAINED, FINISHED, INTERRUPTED, TRAINED, RunJson
from compare.reporting import html
from compare.reporting.result import Result
from compare.reporting.terminal import tell
from compare.watch.settings import MADE_ALIKE
from compare.watch.trace import OTHERS, Trace, read_traces


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
                explain(session)
                session.run.save(status=EXPLAINED)
        except KeyboardInterrupt:
            interrupted = True
            session.run.save(status=INTERRUPTED)
        if not session.models:
            raise KeyboardInterrupt
        verdict = judge_and_publish(folder, console)
        if interrupted:
            raise KeyboardInterrupt
        session.run.save(status=FINISHED, verdict_sha256=RunJson.read(folder).verdict_sha256)
        return Result(folder, verdict)


def _begin(options: Options, folder: Path, work: Path, runner: ScriptRunner, console: Console) -> ScriptsSession:
    sources = [as_python(script, work / f"notebook-{side}.py") for side, script in enumerate(options.scripts)]
    names = [printable(Path(script).stem) for script in options.scripts]
    names = [names[0], distinct(names[-1], names[:1])]
    run = RunJson.read(folder)
    run.begin_training(
        provenance(options, names)
        | {
            "title": " and ".join(names) + (": two scripts" if len(options.scripts) > 1 else ": one script"),
            "notes": [],
            "strategy": _strategy(1),
        }
    )
    run.save()
    tell(console, f"Comparing {' and '.join(options.scripts)}", style="bold")
    for name, text in MADE_ALIKE.items():
        tell(console, f"  {name}: {'as in each script' if name in options.own else text}")
    return ScriptsSession(options, folder, work, runner, sources, console, run, names)


def _strategy(replicas: int) -> dict[str, object]:
    return {
        "name": "mirrored" if replicas > 1 else "default",
        "class": "the scripts' own",
        "replicas": replicas,
        "workers": 1,
        "global_batch_size": 0,
        "devices": [],
    }


def _train(session: ScriptsSession) -> bool:
    """Runs the scripts, and writes their records; returns whether they were interrupted.

    Raises:
        NoVerdictError: if there is nothing to compare.
    """
    session.passes = 1
    names = [session.names[side] for side in session.sides]
    settings = [session.settings(side) for side in session.sides]
    runs, interrupted = run_scripts(session, settings, names)
    for name, run in () if interrupted else zip(names, runs, strict=True):
        if error := failure_of(run):
            raise _failed(session, f"{run.settings.script} failed: {error}; its output is in {run.log}", name, error)
    traces = [read_traces(run.folder) for run in runs]
    paired = paired_models(session, traces)
    if not paired:
        if interrupted:
            return True
        raise _failed(session, _too_few(session, runs, [len(each) for each in traces]))
    for pair in paired:
        if [variable.shape for variable in pair[0].variables] != [variable.shape for variable in pair[1].variables]:
            raise _failed(session, _other_shapes(session.names, pair))
    (first, second), *others = paired
    epochs = EpochEnds.of(first, second)
    session.models = [ModelPair((session.names[0], session.names[1]), (first, second), epochs)]
    for number, pair in enumerate(others, start=2):
        taken = [*session.names, *(name for model in session.models for name in model.names)]
        one = distinct(f"{session.names[0]} model {number}", taken)
        other = distinct(f"{session.names[1]} model {number}", [*taken, one])
        same = [trace.last for trace in pair] == [first.last, second.last]
        session.models.append(ModelPair((one, other), pair, EpochEnds.of(*pair) or (epochs if same else EpochEnds())))
    metrics = MetricsFile(session.folder / "metrics.csv")
    for model in session.models:
        like = (first if first.epochs or not second.epochs else second) if model is session.models[0] else None
        for name, trace in zip(model.names, model.traces, strict=True):
            write_records(session.folder, name, trace, model.epochs, like, metrics)
    several = [list(each.names) for each in session.models[1:]]
    session.run.save(strategy=_strategy(first.replicas), models=several or None)
    _say_what_trained(session, [len(each) for each in traces])
    return interrupted


def _failed(session: ScriptsSession, message: str, side: str = "", error: str = "") -> NoVerdictError:
    """The error that ends a comparison; the list of runs says the same.

    Args:
        session: the comparison.
        message: what happened.
        side: the side that failed; empty if it is not one of them.
        error: what it raised.
    """
    session.run.save(failures=[{"side": side, "error": error or message, "remedy": ""}])
    html.write_index(session.folder.parent)
    return NoVerdictError(message)


def _say_what_trained(session: ScriptsSession, trainings: Sequence[int]) -> None:
    several = len(session.models) > 1
    for model in session.models:
        for name, trace in zip(model.names, model.traces, strict=True):
            what = f" ({trace.model})" if several else ""
            tell(session.console, f"{name}{what}: {trace.last:,} steps by {trace.trained_by}")
            if trace.last >= session.options.max_steps:
                tell(session.console, f"{name}: ended after {trace.last:,} steps (--max-steps)", style="yellow")
    if several:
        tell(session.console, f"Each trains {len(session.models)} models; they are paired in their order of creation")
    if not session.alone and trainings[0] != trainings[1]:
        counts = " and ".join(f"{name} {count}" for name, count in zip(session.names, trainings, strict=True))
        text = f"{counts} models are trained; the first {len(session.models)} of each are compared"
        tell(session.console, text, style="yellow")


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


def _other_shapes(names: Sequence[str], pair: tuple[Trace, Trace]) -> str:
    first, second = (trace.variables for trace in pair)
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a.shape != b.shape:
            return (
                f"the models differ: weight {i + 1} is {a.name} {list(a.shape)} in {names[0]} and {b.name} "
                f"{list(b.shape)} in {names[1]}; give both the same layers"
            )
    return (
        f"the models differ: that of {names[0]} has {len(first)} weights, that of {names[1]} "
        f"{len(second)}; give both the same layers"
    )
