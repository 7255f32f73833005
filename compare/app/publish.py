"""What a run leaves for people: its verdict, plot and pages as files, and the last lines in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from compare.check.not_finite import OF_WEIGHTS, FirstValue, led
from compare.naming import INDEX, shown_path
from compare.records.model import RecordError
from compare.records.reader import has_records, read_rows
from compare.records.run_json import EXPLAINED, FINISHED, TRAINED, RunJson
from compare.reporting import html, plots, run_files, tensorboard
from compare.reporting.jupyter import NotebookConsole
from compare.reporting.live import waiting
from compare.reporting.run_files import verdict_of
from compare.reporting.sentences import sentence, warning
from compare.reporting.tables import epoch_table, print_table, study_table
from compare.reporting.terminal import print_verdict, say, tell
from compare.verdict.judge import Recorded, judge
from compare.verdict.model import Verdict


def finish(run: RunJson, console: Console, known: Sequence[str] = ()) -> str:
    """Finish a run of which all has been measured; returns the verdict.

    Of the trainers ``known``, whose errors were printed and end the run, the verdict is printed without the error.

    A run whose trainer failed in a way that may pass is judged, but has not finished: ``--resume`` goes on with it.
    """
    run.save(status=TRAINED if run.may_go_on else EXPLAINED)
    verdict = judge_and_publish(run.folder, console, known)
    if not run.may_go_on:
        RunJson.read(run.folder).save(status=FINISHED)
    return verdict


def finished_verdict(folder: Path, console: Console) -> Verdict | None:
    """The verdict of a run that has everything that a finished run leaves; None if some of it is missing or damaged.

    What is damaged is printed.
    """
    try:
        verdict = verdict_of(folder)
        drawn = (folder / "comparison.png").is_file() or not (has_records(folder) and read_rows(folder))
    except RecordError as error:
        path, problem = error.args
        tell(console, f"Note: {shown_path(path)}: {problem}", style="yellow")
        return None
    pages = html.has_own(folder) and (folder.parent / INDEX).exists()
    return verdict if verdict and drawn and pages and not verdict.interrupted else None


def judge_and_publish(folder: Path, console: Console, known: Sequence[str] = ()) -> str:
    """Judge a run from its files, write its reports and print the last lines as ``finish``; returns the verdict."""
    with waiting(console, "judging"):
        recorded = Recorded.read(folder)
        run = recorded.run
        inside = {name: FirstValue(**first) for name, first in (run.not_finite or {}).items()}
        verdict = led(judge(recorded, OF_WEIGHTS), inside)
    del recorded  # the pages read the records again: this memory is needed only once
    return publish_verdict(run, verdict, console, study=run.options.get("seeds", 1) > 1, known=known)


def publish_verdict(run: RunJson, verdict: Verdict, console: Console, *, study: bool, known: Sequence[str] = ()) -> str:
    """Write the reports of a run that has been judged and print the last lines as ``finish``; returns the verdict."""
    folder = run.folder
    verdict.write(folder / "verdict.json")
    files, in_notebook = run_files.read(folder), isinstance(console, NotebookConsole)
    if files.rows and not in_notebook:  # where the result shows itself
        print_table(console, study_table(verdict.comparisons) if study else epoch_table(files))
    if files.rows:
        with waiting(console, "drawing"):
            plots.draw(folder)
    written = [*publish(folder), *["comparison.png"] * bool(files.rows), "metrics.csv", "verdict.json"]
    if left_alone := html.left_alone(folder.parent):
        tell(console, left_alone, style="yellow")
    if in_notebook:
        for each in verdict.comparisons:
            tell(console, f"{each.verdict}: {sentence(each, verdict.reference)}.")
            if text := warning(each, verdict.reference):
                tell(console, f"WARNING: {text}.")
        return verdict.verdict
    print_verdict(verdict, console, known, verbose=bool(run.options.get("verbose")))
    for file in written:
        if (folder / file).exists():
            say(console, shown_path(folder / file))
    return verdict.verdict


def publish(folder: Path) -> list[str]:
    """Write the pages of a judged run, and the TensorBoard log if asked for; returns the names of the new files."""
    html.write(folder)
    html.write_index(folder.parent)
    asked = RunJson.read(folder).options.get("tensorboard")
    return ["report.html", *([tensorboard.write(folder).name] if asked else [])]
