"""``--check``: the short check of every candidate, without a full training."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from compare.app import processes
from compare.app.cluster_session import in_one_process
from compare.app.loading import load
from compare.app.provenance import provenance
from compare.app.ready import load_data
from compare.engine.select_keras import select_keras
from compare.modes import ShortCheck
from compare.naming import listed, shown_path
from compare.records.codec import encode
from compare.records.run_json import EXPLAINED, FINISHED, RunJson
from compare.reporting.live import waiting
from compare.reporting.result import Result
from compare.reporting.terminal import print_verdict, say, tell
from compare.user_errors import describe, without_exit
from compare.verdict.model import Comparison, Failure, Verdict, not_comparable

if TYPE_CHECKING:
    from compare.check import Report
    from compare.experiment import Experiment


def check_only(options: ShortCheck, folder: Path, console: Console, *, command: bool) -> Result:
    """Check every candidate against the reference; writes ``verdict.json``, ``run.json`` and the page.

    A strategy of several processes is checked in this process, under the strategy that computes the same. The
    command checks on one and on two replicas at the same time where it can.
    """
    at_once = command and "tensorflow" not in sys.modules and processes.why_not(2) is None
    if not (at_once and _anywhere(options)):
        return _check(options, folder, console, {})
    with processes.local(1) as executor:
        numbers = range(1, len(options.trainers))
        elsewhere = {number: executor.submit(_check_on_two, options, number) for number in numbers}
        return _check(options, folder, console, elsewhere)


def _anywhere(options: ShortCheck) -> bool:
    """Whether one replica and two are checked: nothing else was asked for."""
    return options.strategy == "mirrored" and options.replicas is None


def _on_two(future: Future[Report | str], options: ShortCheck, number: int) -> Report | str:
    """The report on two replicas, or why there is none; where its process was killed, it is made once more."""
    try:
        with suppress(*processes.LOST):
            return future.result()
        with processes.local(1) as executor:
            return executor.submit(_check_on_two, options, number).result()
    except processes.LOST:
        return f"on two replicas its process died twice; {processes.LAST_MESSAGES}"


@without_exit("your code")
def _check_on_two(options: ShortCheck, number: int) -> Report | str:
    select_keras(options.keras)
    from compare.check.checker import checking, on_two_replicas  # noqa: PLC0415 (lazy)
    from compare.engine import strategies  # noqa: PLC0415 (lazy)

    strategies.configure(2)
    with redirect_stdout(StringIO()):  # what a loop prints is printed once, on one replica
        trainers, experiment = load(options, Console(quiet=True))
        (_, reference), (_, trainer) = trainers[0], trainers[number]
        return on_two_replicas(checking(experiment, trainer, reference, **_asked(options, experiment)))


def _asked(options: ShortCheck, experiment: Experiment) -> dict[str, Any]:
    """The arguments of the check that come from the request."""
    return {"batch_size": options.batch_size, "seed": options.seed, "data": load_data(options, experiment)}


def _check(options: ShortCheck, folder: Path, console: Console, on_two: Mapping[int, Future[Report | str]]) -> Result:
    """Check every candidate in this process, but on two replicas where that is done elsewhere, by number."""
    same = in_one_process(options) if options.spec.several_processes else options
    anywhere = _anywhere(same)
    select_keras(options.keras)
    from compare.check import NotApplicable, check  # noqa: PLC0415 (lazy)
    from compare.check.checker import with_two_replicas  # noqa: PLC0415 (lazy)
    from compare.engine import strategies  # noqa: PLC0415 (lazy)

    strategies.configure(2 if anywhere and "GPU:0" not in strategies.devices() else same.replica_count)
    # Only now: a user's file may use TensorFlow when it is imported, and devices cannot be configured after that.
    ((reference_name, reference), *candidates), experiment = load(options, console)
    strategy = strategies.make("default") if on_two else None
    if not anywhere:
        strategy = strategies.make(same.strategy, same.replica_count)
    asked = _asked(options, experiment)
    names = [name for name, _ in candidates]
    title = f"{experiment.name}: short check of {listed(names)} against {reference_name}"
    known = provenance(options, [reference_name, *names]) | {"title": title}
    tell(console, title, style="bold")
    elsewhere: tuple[NotApplicable, ...] = ()
    if same is not options and strategy is not None:
        instead = f"{same.strategy} with {strategy.num_replicas_in_sync} replica(s) in this process"
        equal = "the same, bit for bit" if options.spec.synchronous else "what one worker does alone"
        text = f"--strategy {options.strategy} has several: {instead} computes {equal}, and was checked"
        elsewhere = (NotApplicable("several processes", text),)
        tell(console, f"Note: {text}", style="yellow")
    compared, raised = list[Comparison](), list[Exception]()
    for number, (name, trainer) in enumerate(candidates, start=1):
        began = time.perf_counter()
        try:
            with waiting(console, f"checking {name}"):
                report = check(experiment, trainer, reference=reference, strategy=strategy, **asked)
                if on_two:
                    report = with_two_replicas(report, partial(_on_two, on_two[number], options, number))
        except Exception as error:
            if getattr(error, "raised_by", None) is not trainer:
                raise
            raised.append(error)
            failure = Failure(name, describe(error), f"fix your trainer {name}")
            compared.append(not_comparable(name, failure))
            tell(console, f"{name} failed: {failure.error}", style="red")
            continue
        report = report.but(candidate=name, not_applicable=(*elsewhere, *report.not_applicable))
        compared.append(report.judged)
        _print(report, time.perf_counter() - began, console, verbose=options.verbose)
    result = _conclude(folder, Verdict.of(reference_name, compared, scope="check"), known, console)
    if raised:
        raise raised[0]
    return result


def _conclude(folder: Path, verdict: Verdict, known: Mapping[str, Any], console: Console) -> Result:
    """Write verdict and pages."""
    from compare.app.publish import publish  # noqa: PLC0415 (lazy)

    verdict.write(folder / "verdict.json")
    run, failed = RunJson.read(folder), [encode(each.failure) for each in verdict.comparisons if each.failure]
    run.save(status=EXPLAINED, failures=failed, **known)
    files = publish(folder)
    run.save(status=FINISHED)
    for file in [*files, "verdict.json"]:
        say(console, shown_path(folder / file))
    return Result(folder, verdict.verdict)


def _print(report: Report, seconds: float, console: Console, *, verbose: bool) -> None:
    print_verdict(report.as_verdict(), console, verbose=verbose)
    for text in report.notes:
        tell(console, f"Note: {text}.", style="yellow")
    replicas = f"{' and '.join(map(str, report.replicas))} replica{'s' * (report.replicas != (1,))}"
    tell(console, f"Checked on {replicas} in {seconds:.1f} s.")
