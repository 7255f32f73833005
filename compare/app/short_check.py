"""``--check``: the short check of every candidate, without a full training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.console import Console

from compare.app.cluster_session import in_one_process
from compare.app.loading import load
from compare.app.provenance import provenance
from compare.app.train import load_data
from compare.engine.keras_generation import select_keras
from compare.naming import shown_path
from compare.options import Options
from compare.records import write_verdict
from compare.records.files import checksum
from compare.records.run_json import EXPLAINED, FINISHED, RunJson
from compare.reporting.live import waiting
from compare.reporting.result import Result
from compare.reporting.terminal import say, style_of, tell
from compare.verdict import as_json


def check_only(options: Options, folder: Path, console: Console) -> Result:
    """Check every candidate against the reference; writes ``verdict.json``, ``run.json`` and the page.

    A strategy of several processes is checked in this process, under the strategy that computes the same.
    """
    select_keras(options.keras)
    from compare.app.publish import publish  # noqa: PLC0415 (lazy)
    from compare.check import NotApplicable, check  # noqa: PLC0415 (lazy)
    from compare.engine import strategies  # noqa: PLC0415 (lazy)

    same = in_one_process(options) if options.spec.several_processes else options
    anywhere = same.strategy == "mirrored" and same.replicas is None
    strategies.configure(2 if anywhere and "GPU:0" not in strategies.devices() else same.replicas)
    # Only now: a user's file may use TensorFlow when it is imported, and devices cannot be configured after that.
    ((reference_name, reference), *candidates), experiment = load(options, console)
    strategy = None if anywhere else strategies.make(same.strategy, same.replicas)
    data = load_data(options, experiment)
    names = [name for name, _ in candidates]
    title = f"{experiment.name}: short check of {' and '.join(names)} against {reference_name}"
    known = provenance(options, [reference_name, *names]) | {"title": title}
    tell(console, title, style="bold")
    elsewhere: tuple[NotApplicable, ...] = ()
    if same is not options and strategy is not None:
        instead = f"{same.strategy} with {strategy.num_replicas_in_sync} replica(s) in this process"
        equal = "the same, bit for bit" if options.spec.synchronous else "what one worker does alone"
        text = f"--strategy {options.strategy} has several: {instead} computes {equal}, and was checked"
        elsewhere = (NotApplicable("several processes", text),)
        tell(console, f"Note: {text}", style="yellow")
    reports = []
    for name, trainer in candidates:
        with waiting(console, f"checking {name}"):
            report = check(
                experiment,
                trainer,
                reference=reference,
                strategy=strategy,
                batch_size=options.batch_size,
                seed=options.seed,
                data=data,
            )
        comparison = dataclasses.replace(report.comparison, candidate=name)
        not_applicable = (*elsewhere, *report.not_applicable)
        reports.append(dataclasses.replace(report, comparison=comparison, not_applicable=not_applicable))
        console.print()
        first, *others = str(reports[-1]).splitlines()
        tell(console, first, style_of(report.verdict), head=f"{report.verdict}: ")
        for line in others:
            (say if line.startswith(" ") else tell)(console, line)  # what is indented is code
        tell(console, f"Checked in {report.seconds:.1f} s.")
    verdict = as_json(reference_name, [report.comparison for report in reports], scope="check")
    for entry, report in zip(verdict["comparisons"], reports, strict=True):
        entry |= report.causes_json()
    write_verdict(folder / "verdict.json", verdict)
    run = RunJson.read(folder)
    run.save(status=EXPLAINED, verdict_sha256=checksum(verdict), **known)
    files = publish(folder)
    run.save(status=FINISHED)
    for file in [*files, "verdict.json"]:
        say(console, shown_path(folder / file))
    return Result(folder, verdict["verdict"])
