"""``--scripts``: runs two training scripts unedited, compares them step by step, and locates the first difference."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

from rich.console import Console

from compare.app.provenance import provenance
from compare.app.script_pairs import (
    begin_equal,
    begun_apart,
    changed_apart,
    changed_last,
    further_trainings,
    left_out,
    left_over,
    paired_models,
    set_at_the_end,
    stretches,
)
from compare.app.script_runs import ScriptRun, ScriptRunner, failure_of, last_line, left_by, write_records
from compare.app.script_sides import Side, changed_since, keras_of_scripts, sides_of
from compare.app.scripts_explain import explain
from compare.app.scripts_session import ModelPair, ScriptsSession, run_scripts
from compare.check import words
from compare.check.judge_recorded import more_weights
from compare.check.measurement import Measurement
from compare.check.recorded import things_apart
from compare.errors import NoVerdictError
from compare.modes import Scripts
from compare.naming import distinct, printable, shown_path, some, with_folders
from compare.records.metrics_csv import MetricsFile
from compare.records.run_json import INTERRUPTED, TRAINED, UNEXPLAINED, RunJson
from compare.reporting.result import Result
from compare.reporting.terminal import say, tell
from compare.verdict.findings import Source
from compare.watch.epoch_ends import EpochEnds
from compare.watch.settings import MADE_ALIKE, ORDER, WEIGHTS
from compare.watch.trace import ENOUGH, ENVIRONMENT, LEFT, OTHERS, UNSEEN, Trace, read_traces


def compare_scripts(options: Scripts, folder: Path, console: Console) -> Result:
    """Runs the scripts and judges what they trained.

    Raises:
        RequestError: if a script does not exist.
        NoVerdictError: if a script raises, or trains nothing.
        KeyboardInterrupt: if it was interrupted, after what there is was judged.
    """
    with ExitStack() as stack:
        work = stack.enter_context(_work_folder())
        stack.enter_context(keras_of_scripts(options.scripts))
        sides = sides_of(options, work)
        runner = stack.enter_context(ScriptRunner([side.program.python for side in sides], folder / "tensorflow.log"))
        # Only now: it takes half a second, while TensorFlow is imported in the runner's process.
        from compare.app.publish import finish, judge_and_publish  # noqa: PLC0415 (lazy)

        session = _begin(options, folder, work, runner, sides, console)
        try:
            _train(session)
            if session.interrupted:
                raise KeyboardInterrupt
            session.run.save(status=TRAINED)
            explain(session)
        except KeyboardInterrupt:
            session.run.save(status=UNEXPLAINED if session.run.status == TRAINED else INTERRUPTED)
            if session.models:
                judge_and_publish(folder, console)
            raise
    return Result(folder, finish(session.run, console))  # after all scripts have ended


@contextmanager
def _work_folder() -> Iterator[Path]:
    """A temporary folder; what fails while it has no room left, as a script that is watched, is not to blame."""
    with tempfile.TemporaryDirectory(prefix="fit-vs-loop-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        except Exception as error:
            if shutil.disk_usage(name).free > SCARCE:
                raise
            place = shown_path(Path(name).parent)
            remedy = "free some space there, or set TMPDIR to another folder, and run this again"
            raise NoVerdictError(f"{place}, the folder for temporary files, is full: {remedy}") from error


SCARCE = 2**20
"""Bytes below which a folder is full: what is seen of a script takes more."""


def _begin(
    options: Scripts, folder: Path, work: Path, runner: ScriptRunner, sides: Sequence[Side], console: Console
) -> ScriptsSession:
    names = [sides[0].name, sides[1].name if len(sides) > 1 else distinct(sides[0].name, [sides[0].name])]
    run, about = RunJson.read(folder), _about(options, sides)
    title = " and ".join(with_folders(names, options.scripts)) + (
        ": two scripts" if len(options.scripts) > 1 else ": one script"
    )
    known = provenance(options, names)
    for name, own in known["versions"].items():
        versions = dict.fromkeys(side.versions.get(name, own) for side in sides)
        known["versions"][name] = " / ".join(versions)
    run.begin_training(
        known | {"title": title, "notes": about, "strategy": _strategy(options.sizes or [options.replica_count or 1])}
    )
    run.save()
    what = names if len(sides) > len(options.scripts) else map(shown_path, options.scripts)
    tell(console, f"Comparing {' and '.join(what)}", style="bold")
    if len(sides) == 1:
        tell(console, "  one script: its first two trainings are compared with each other; give two to compare these")
    for text in about:
        tell(console, f"  {text}")
    for name, text in MADE_ALIKE.items():
        tell(console, f"  {name}: {'as in each script' if name in options.keep else text}")
    return ScriptsSession(options, folder, work, runner, sides, console, run, names)


def _about(options: Scripts, sides: Sequence[Side]) -> list[str]:
    """What the sides run in, where that is not the same."""
    told = [f"{side.name}: {side.about}" for side in sides if side.about]
    if options.commits and any(map(changed_since, options.scripts)):
        told.append("changes that are not committed are in neither")
    return told


FEW_PARTS = 3
"""The number of times that a training may go on from where it ended of which each is told."""


def _strategy(replicas: Sequence[int]) -> dict[str, object]:
    name = "mirrored" if max(replicas) > 1 else "default"
    known = {"name": name, "class": "the scripts' own", "replicas": replicas[0], "sizes": list(dict.fromkeys(replicas))}
    return {**known, "workers": 1, "global_batch_size": 0, "devices": []}


def _train(session: ScriptsSession) -> None:
    """Runs the scripts, and writes the records of what they have trained, also if they were interrupted."""
    runs = _run_first(session)
    session.by_hand = [side for side, run in enumerate(runs) if run.untrained["by_hand"]]
    if session.by_hand and not session.interrupted:  # only now is it known that its optimizers are not used
        runs = _run_first(session)
    session.first = False
    traces = [read_traces(run.folder) for run in runs]
    # Scripts that were stopped are compared up to the last step that both have.
    paired = paired_models(traces, 0 if session.stopped else session.options.max_steps) or _copies(session, traces)
    if session.ended:  # else a script that had no time to leave its last weights would differ
        paired = [pair for pair in paired if not pair[0].state]
    if not paired:
        if session.interrupted:
            return
        for run, made in zip(runs, traces, strict=True):
            if not made:
                raise _failed(session, _no_training(run), run.name)
        raise _failed(session, _nothing_to_compare(session, traces))
    if unlike := next((pair for pair in paired if not _begin_alike(session, pair)), None):
        paired = _copies(session, traces)
        if not paired:
            raise _failed(session, _other_weights(session.names[1], unlike[1]))
    (first, second), *others = paired
    epochs = EpochEnds.of(first, second)
    session.models = [ModelPair((session.names[0], session.names[1]), (first, second), epochs)]
    for number, pair in enumerate(others, start=2):
        same = [trace.last for trace in pair] == [first.last, second.last]
        ends = EpochEnds.of(*pair) or (epochs if same and pair[0].state in ("", LEFT) else EpochEnds())
        session.models.append(ModelPair(_further_names(session, number, pair), pair, ends))
    shown = _write_records(session)
    models = session.models
    several = [list(each.names) for each in models[1:]]
    session.run.save(strategy=_strategy([first.replicas, second.replicas]), models=several or None)
    unknown = _look_at_the_rest(session, runs, traces, paired)
    unpaired = {what: "; ".join(texts) for what, texts in unknown.items() if texts}
    commits = _about(session.options, session.scripts) if session.options.commits else []
    notes = [*_environments_apart(runs), *(_unknown_ends(session.models[0]) if shown else ()), *_cut(session, runs)]
    notes += [*session.failed, *_shuffles_apart(session, (first, second)), *_both_fit(session, paired), *_undone(runs)]
    session.run.save(notes=[*commits, *notes, *session.left_over, *session.left_out], unpaired=unpaired or None)
    for text in notes:
        tell(session.console, f"Note: {text}")
    _say_what_trained(session)


def _run_first(session: ScriptsSession) -> list[ScriptRun]:
    """Runs the scripts to record what they train."""
    settings = [session.settings(side) for side in session.sides]
    runs = run_scripts(session, settings, session.names[: len(settings)])
    if not session.interrupted:
        _refuse_failed(session, runs)
    return runs


def _look_at_the_rest(
    session: ScriptsSession,
    runs: Sequence[ScriptRun],
    traces: Sequence[Sequence[Trace]],
    paired: Sequence[tuple[Trace, Trace]],
) -> dict[str, list[str]]:
    """What is not compared, as sentences: what allows no verdict, by what that is; the rest is told of the session."""
    others_begin = begun_apart(session.names, traces, paired)
    told = [*paired, *others_begin.values()]
    unknown = {f"other weights of {each.names[1]}": left_out(each.names, each.traces, told, changing=True)
               for each in session.models}  # fmt: skip
    unused = (text for each in session.models for text in left_out(each.names, each.traces, told, changing=False))
    averages, both_average = _averages(runs, paired[0])
    session.left_out = [*unused, *_uncounted(runs), *(further := _further(runs)), *averages]
    unknown[f"the moving averages of {session.names[1]}"] = [] if both_average else averages
    if session.alone:
        session.left_out += further_trainings(session.names[0], traces[0], paired)
    elif not session.ended:  # else the other side may have been about to do the same
        session.left_over = left_over(session.names, traces, paired)
        unknown[f"other trainings of {session.names[1]}"] = [*session.left_over, *further]
        unknown[f"other models of {session.names[1]}"] = [*others_begin, *changed_apart(session.names, traces, told)]
        both_set, one_sets = set_at_the_end(session.names, traces, paired)
        unknown[f"the weights left by {session.names[1]}"] = changed_last(session.names, traces, paired) + both_set
        session.left_out += one_sets
    return unknown


def _write_records(session: ScriptsSession) -> bool:
    """Writes the records of all trainings; returns whether they have numbers."""
    first, second = session.models[0].traces
    metrics, shown = MetricsFile(session.folder / "metrics.csv"), False
    for model in session.models:
        like = (first if first.epochs or not second.epochs else second) if model is session.models[0] else None
        for name, trace in zip(model.names, model.traces, strict=True):
            # A training that was interrupted has ended no epoch of which nothing is known.
            epochs = model.epochs if session.ended else model.epochs.or_whole(trace)
            shown |= write_records(session.folder, name, trace, epochs, like, metrics)
    return shown


def _unknown_ends(model: ModelPair) -> list[str]:
    """That numbers are not those of epochs, as a sentence, where they were read more than once."""
    read = {each.steps for trace in model.traces for each in trace.reported}
    unknown = len(read) > 1 and not model.epochs
    return ["where epochs end is not known: all steps count as one epoch"] if unknown else []


def _further_names(session: ScriptsSession, number: int, pair: Sequence[Trace]) -> tuple[str, str]:
    """The names of both sides of a training that is not the scripts' first, with the model's if that is the same."""
    called = {trace.model for trace in pair}
    what = f"model {number}" + (f" ({called.pop()})" if len(called) == 1 and all(called) else "")
    what = "at the end" if pair[0].state == LEFT else what
    taken = [*session.names, *(name for model in session.models for name in model.names)]
    one = distinct(f"{session.names[0]} {what}", taken)
    return one, distinct(f"{session.names[1]} {what}", [*taken, one])


def _cut(session: ScriptsSession, runs: Sequence[ScriptRun]) -> list[str]:
    """That no script was watched for longer, as sentences, if one would have gone on."""
    threads = [
        f"{run.name} was ended: its last line had run, and a thread or a function of atexit went on"
        for run in runs
        if run.lingered
    ]
    most = session.options.max_steps
    cut = any(trace.last >= most for model in session.models for trace in model.traces)
    ended = not session.alone and any((run.folder / ENOUGH).exists() for run in runs)
    later = ", and no training that begins after them" if ended else ""
    stopped = ["the scripts were ended where their weights differ (--stop-at-difference)"] if session.stopped else []
    return threads + stopped + ([f"only the first {most:,} steps are compared (--max-steps){later}"] if cut else [])


def _shuffles_apart(session: ScriptsSession, traces: Sequence[Trace]) -> list[str]:
    """How the scripts shuffle, as a sentence, if they do so differently, or would if they were not kept from it."""
    ways = []
    for trace in traces:
        again, once = trace.fit.get("shuffle") or any(trace.shuffles), "shuffles once" if trace.shuffles else ""
        ways.append("shuffles again in every epoch" if again else once or "calls no Dataset.shuffle")
    unknown = any(trace.trained_by.startswith("fit") and not trace.fit for trace in traces)  # as of a GAN's two models
    if unknown or ways[0] == ways[1]:
        return []
    how = " and ".join(f"{name} {way}" for name, way in zip(session.names, ways, strict=True))
    off = "; that is not compared, since Dataset.shuffle and fit(shuffle=...) are switched off"
    return [how + off * (ORDER not in session.options.keep)]


def _both_fit(session: ScriptsSession, paired: Sequence[tuple[Trace, Trace]]) -> list[str]:
    """That neither of two scripts has a loop, as a sentence; one file may be run in two environments."""
    files = {each.program.script for each in session.scripts if not each.about}
    traces = [trace for pair in paired for trace in pair]
    fits = len(files) == 2 and all(trace.trained_by == "fit" and trace.by_fit_alone for trace in traces)
    return ["both scripts train by fit: no loop of one's own was compared"] if fits else []


UNDONE = re.compile(r"received `from_logits=True`, but the `output` argument was produced by a (\w+) activation")
"""What Keras warns of as it takes the logits from which a softmax or sigmoid has made probabilities."""


def _undone(runs: Sequence[ScriptRun]) -> list[str]:
    """The one script that gives its loss probabilities for logits, which Keras undoes, as a sentence."""
    warned = []
    for run in runs:
        with suppress(FileNotFoundError), open(run.log, encoding="utf-8", errors="replace") as lines:  # of any number
            warned += [(run.name, found[1].lower()) for found in islice(filter(None, map(UNDONE.search, lines)), 1)]
    return [
        f"{name} gives a loss with from_logits=True what a {function} has made, and Keras takes the values before the "
        f"{function} (it could not after tf.nn.{function} in an eager step): leave out one of the two"
        for name, function in warned
        if len(warned) == 1
    ]


def _environments_apart(runs: Sequence[ScriptRun]) -> list[str]:
    """What the scripts ran in that may change numbers and is not the same, as a sentence."""
    found = [left_by(run, ENVIRONMENT) for run in runs]
    if len(found) < 2 or not all(found):
        return []
    # What only one of them imports is no other version; a variable may be set in one.
    names_of_both = [name for name in {**found[0], **found[1]} if name.isupper() or all(name in each for each in found)]
    both = {name: [each.get(name, "not there") for each in found] for name in names_of_both}
    apart = [f"{name} {one} and {other}" for name, (one, other) in both.items() if one != other]
    return [f"the environments differ: {', '.join(apart)} ({runs[0].name}'s first)"] if apart else []


def _refuse_failed(session: ScriptsSession, runs: Sequence[ScriptRun]) -> None:
    """Raises the error of a script that failed, unless it has made as many steps as the other, which did not fail."""
    whole = [run.steps() for run in runs if not failure_of(run)]
    for run in runs:
        if how := left_by(run, UNSEEN):
            raise _failed(session, f"no verdict is possible: {run.script} {how}", run.name, how)
        if (error := failure_of(run)) and 0 < run.steps() in whole:
            session.failed.append(f"{run.name} failed after its last step: {error}")
        elif error:
            raise _failed(session, f"{run.script} failed: {error}; its output is in {run.log}", run.name, error)


def _averages(runs: Sequence[ScriptRun], traces: Sequence[Trace]) -> tuple[list[str], bool]:
    """The moving averages of weights, of which only the making was seen, as a sentence; and whether all have some."""
    keeping = [run.name for run, trace in zip(runs, traces, strict=False) if trace.averages]
    both = len(keeping) == len(runs)
    what = f"keep{'s' * (len(keeping) == 1)} moving averages by tf.train.ExponentialMovingAverage"
    who = "only " * (not both) + " and ".join(keeping)
    return [f"{who} {what}, and they are not compared"] if keeping else [], both


def _uncounted(runs: Sequence[ScriptRun]) -> list[str]:
    """The optimizers whose steps could not be counted, as sentences."""
    found = {run.name: run.untrained["optimizers"] for run in runs}
    return [f"{name} applies {some(each)}, whose iterations stay the same" for name, each in found.items() if each]


def _further(runs: Sequence[ScriptRun]) -> list[str]:
    """The trainings that are more than the largest number of those that are compared, as sentences."""
    return [
        f"{run.name} also trains {some(further)}: only its first {run.settings.trainings} trainings can be compared"
        for run in runs
        if (further := run.untrained["further"])
    ]


def _begin_alike(session: ScriptsSession, pair: tuple[Trace, Trace]) -> bool:
    """Whether a pair may be compared: its initial weights are equal, or known to differ for a reason."""
    known = WEIGHTS in session.options.keep or pair[1].alike or more_weights(*pair)
    return bool(known) or any(trace.initial is None for trace in pair) or begin_equal(*pair)


def _copies(session: ScriptsSession, traces: Sequence[Sequence[Trace]]) -> list[tuple[Trace, Trace]]:
    """Two models of which one may have copies of what the other shares; empty if they differ otherwise."""
    if session.alone or not all(traces):
        return []
    one, other = (stretches(each)[0][0] for each in traces)
    return [(one, other)] if more_weights(one, other) else []


def _failed(session: ScriptsSession, message: str, side: str = "", error: str = "") -> NoVerdictError:
    """The error that ends a comparison, maybe since a side has raised one; page and list of runs say the same."""
    from compare.app.publish import judge_and_publish  # noqa: PLC0415 (lazy)

    session.run.save(failures=[{"side": side, "error": error or message, "remedy": ""}])
    judge_and_publish(session.folder, Console(quiet=True))
    say(session.console, shown_path(session.folder / "report.html"))
    return NoVerdictError(message)


def _say_what_trained(session: ScriptsSession) -> None:
    several = sum(model.traces[0].state != LEFT for model in session.models)
    for model in session.models:
        for name, trace, other in zip(model.names, model.traces, model.traces[::-1], strict=True):
            what = f" ({trace.model})" if several > 1 and trace.model else ""
            what = "" if name.endswith(what) else what
            parts = "".join(f"; {text}" for text in _continuations(trace, other))
            made = f"{trace.last:,} steps by {trace.trained_by}{parts}"
            made = "changed without an optimizer, so compared as it is at the end" if trace.state else made
            made = "the weights that its training leaves" if trace.state == LEFT else made
            tell(session.console, f"{name}{what}: {made}")
    if several > 1:
        tell(
            session.console,
            f"{several} trainings of each are compared; they are paired by the shapes of their weights",
        )
    for text in (*session.left_over, *session.left_out):
        tell(session.console, f"Not compared: {text}", style="yellow")


def _continuations(trace: Trace, other: Trace | None = None) -> list[str]:
    """Where a training goes on from what was trained before."""
    (_, iterations), *parts = trace.parts or [(0, 0)]
    reset = other is not None and begin_equal(trace, other) and not dict(other.parts).get(0)
    whence = "which keeps its slots, but with the weights of the other" if reset else "so it goes on with an earlier"
    begun = [f"it begins with an optimizer at iteration {iterations:,}, {whence} training"]
    if len(parts) > FEW_PARTS:
        after = some([f"{step:,}" for step, _ in parts])
        texts = [f"after each of the steps {after} it goes on from the trained weights"]
    else:
        texts = [
            f"after step {step:,} it goes on from the trained weights with an optimizer at iteration {at:,}"
            for step, at in parts
        ]
    return (begun if iterations else []) + texts


def _nothing_to_compare(session: ScriptsSession, traces: Sequence[Sequence[Trace]]) -> str:
    """Why trainings of which each script makes one cannot be compared."""
    if not session.alone:
        one, other = (stretches(each)[0][0] for each in traces)
        return _other_shapes(session.names, (one, other))
    script, found = session.options.scripts[0], stretches(traces[0])
    if len(found) > 1:
        return _other_shapes(session.names, (found[0][0], found[1][0]))
    way = "set the weights back to the initial ones before the second training (set_weights), or give two scripts"
    if texts := _continuations(found[0][0]):
        return f"{script} makes one training, in parts: {'; '.join(texts)}. To compare two trainings, {way}"
    return f"{script} makes one training with a Keras optimizer, and one script is compared with itself; {way}"


def _no_training(run: ScriptRun) -> str:
    """Why a script has made no step that could be seen."""
    script = run.script
    if others := left_by(run, OTHERS):
        watched = "Keras 3 on TensorFlow, or tf-keras if TF_USE_LEGACY_KERAS=1 is set for the command"
        return f"{script} uses {' and '.join(others)}; --scripts watches {watched}"
    untrained = run.untrained
    if optimizers := untrained["optimizers"]:
        return (
            f"{script} applies {some(optimizers)}, which leaves its iterations as they are, so there is no step to "
            "compare: they count the steps; an apply of your own adds 1 to them"
        )
    if models := untrained["models"]:
        return (
            f"{script} calls fit of {some(models)}, which has no trainable weights, so there is no step to compare: "
            "Keras 3 knows those of layers and of self.add_weight, and not a tf.Variable"
        )
    if gradients := untrained["gradients"]:
        called = re.search(r": (\w+) = ", gradients[0])
        apply = f"optimizer.apply_gradients(zip({called[1] if called else 'gradients'}, model.trainable_variables))"
        return (
            f"{script} takes gradients ({gradients[0]}), but never applies them, so its weights never change; after "
            f"that line, write {apply}"
        )
    last = last_line(run.log)
    printed = f"the last line that it printed is {printable(last)!r} ({run.log})" if last else "it printed nothing"
    return (
        f"{script}: no step of a Keras optimizer was seen, so there is nothing to compare; {printed}. "
        "Is it the script that trains? Only optimizer.apply, apply_gradients and, without any optimizer, variables "
        "assigned after tape.gradient outside of strategy.run are seen, and only in the script's own process"
    )


def _other_weights(name: str, trace: Trace) -> str:
    some = ", ".join(f"{variable.name} {list(variable.shape)}" for variable in trace.variables[:3])
    return (
        f"no verdict on {name}: it begins with weights of its own ({some}), which could not be given "
        "those of the reference before its first step; give both the same weights, and ask for --keep weights"
    )


SHAPING = (
    "units", "filters", "kernel_size", "strides", "padding", "use_bias", "input_dim", "output_dim", "num_heads",
    "key_dim", "scale", "center", "axis", "depth_multiplier", "pool_size",
)  # fmt: skip
"""Settings of layers on which the shapes of weights depend, their own or those of the next layer."""


def _other_shapes(names: Sequence[str], pair: tuple[Trace, Trace]) -> str:
    first, second = ([trace.variables[i] for i in trace.trained] or trace.variables for trace in pair)
    for own, _, settings in things_apart(pair[1].layers, pair[0].layers):
        if shaping := {name: settings[name] for name in SHAPING if name in settings}:
            layer, line = f"{own['class']} {own['name']}", Source.of(own.get("made"))
            seen = words.said(Measurement.of("layer-settings", side=names[1], layer=layer, settings=shaping))
            return f"the models differ: {seen}{f' ({line})' if line else ''}; give both the same layers"
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a.shape != b.shape:
            return (
                f"the trainings differ: weight {i + 1} of those that the optimizer gets is {a.name} {list(a.shape)} in "
                f"{names[0]} and {b.name} {list(b.shape)} in {names[1]}; give both the same layers, and their weights "
                "to the optimizer"
            )
    return (
        f"the trainings differ: the optimizer gets {len(first)} weights in {names[0]} and {len(second)} in {names[1]}; "
        "give both the same layers, and all their weights to the optimizer, in one call for each batch"
    )
