"""What a run leaves for people: its verdict, plot and pages as files, and the last lines in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from compare.app.judge import Recorded, judge
from compare.check.stage_views import stage_sentence
from compare.records import write_verdict
from compare.records.run_json import RunJson
from compare.reporting import html, plots, tensorboard
from compare.reporting.sentences import causes, sentence, stops, truth_sentence
from compare.reporting.terminal import epoch_table, say, study_table, style_of, variables


def judge_and_publish(folder: Path, console: Console) -> str:
    """Judge a run from its files, write its reports and print the last lines; returns the verdict."""
    recorded = Recorded.read(folder)
    verdict = judge(recorded)
    write_verdict(folder / "verdict.json", verdict)
    files = ["metrics.csv", "verdict.json"]
    shown = recorded.shown
    if any(record.logs for record in shown):
        plots.draw(folder)
        files.insert(0, "comparison.png")
        if recorded.run.options.get("seeds", 1) > 1:
            console.print(study_table(verdict["comparisons"]))
        else:
            console.print(epoch_table(shown[0], [record for record in shown[1:] if any(record.logs.values())]))
    files = publish(folder) + files
    if html.is_foreign(folder.parent / "index.html"):
        say(console, f"{folder.parent / 'index.html'} is not a list of runs and was left as it is", style="yellow")
    _print_verdict(verdict, console, verbose=bool(recorded.run.options.get("verbose")))
    for file in files:
        if (folder / file).exists():
            say(console, str(folder / file))
    return str(verdict["verdict"])


def publish(folder: Path) -> list[str]:
    """Write the pages of a judged run, and the TensorBoard log if asked for; returns the names of the new files."""
    html.write(folder)
    html.write_index(folder.parent)
    asked = RunJson.read(folder).options.get("tensorboard")
    return ["report.html", *([tensorboard.write(folder).name] if asked else [])]


def _print_verdict(verdict: Mapping[str, Any], console: Console, *, verbose: bool) -> None:
    for entry in verdict["comparisons"]:
        console.print()
        console.print(f"{entry['verdict']}: ", style=style_of(entry["verdict"]), end="")
        say(console, sentence(entry, verdict["reference"]) + ".")
        if text := stage_sentence(entry, verdict["reference"]):
            say(console, text + ".")
        for line in causes(entry):
            say(console, line)
        for line in variables(entry) if verbose else ():
            say(console, line)
    if verdict.get("interrupted"):
        say(console, "The run was interrupted; the finished part was judged.")
    for text in stops(verdict):
        say(console, text + ".")
    if "truth" in verdict:
        say(console, truth_sentence(verdict["truth"]) + ".")
