"""HTML pages: a run's ``report.html``, the list of runs, several runs side by side, and the stories of all causes.

Every page of a run is a single file that needs no network, generated from the run's files alone; imports no TensorFlow.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from compare.check import stage_views
from compare.check.causes import CATALOGUE
from compare.engine.preflight import CANNOT_RUN
from compare.errors import RequestError
from compare.naming import INDEX, TOGETHER, label, log_name, printable, shown_path, with_folders
from compare.records.codec import decode
from compare.records.files import replace_file
from compare.records.model import RecordError, read_file
from compare.records.run_json import identity_of, read_run
from compare.reporting import (
    gaps,
    numbers,
    page_comparison,
    page_model,
    page_tables,
    pictures,
    run_files,
    sentences,
    svg,
    weight_pictures,
)
from compare.reporting.page_model import ANSWERS, beginning, page_of, results
from compare.reporting.page_tables import compared_options, default_row, option_rows, replicas_of
from compare.reporting.pictures import overlaid_metric
from compare.reporting.run_files import read, sources, usable, verdict_of, word_of
from compare.reporting.sentences import only_beside
from compare.reporting.weight_pictures import overlaid_gaps
from compare.verdict.model import Comparison, Failure, Verdict
from compare.verdict.outcomes import ALIKE, DIFFERENT, FROM_BEST, IDENTICAL

TITLES = {"run": "</title>", "together": " runs side by side</title>", "index": ">All runs</title>"}
"""How the titles end of the pages that replace one of their own kind."""
FILES = ("--experiment", "--trainers", "--scripts", "--logs")
"""The options that name files."""


def write(folder: Path) -> Path:
    """Writes ``report.html`` from the other files of a run's folder."""
    page = page_of(folder)
    with usable(folder):
        return _render("report.html", folder / "report.html", {"page": page})


def lost(folder: Path) -> list[str]:
    """What ``report.html`` was drawn from and is no longer in the run's folder: drawn again, the page would lack it."""
    return [name for name in _meta(folder, "drawn-from").split() if name not in sources(folder)]


def has_own(folder: Path) -> bool:
    """Whether ``report.html`` in a run's folder is a page of this very run."""
    return (folder / "report.html").is_file() and _meta(folder, "run") == (identity_of(folder) or "")


def _meta(folder: Path, name: str) -> str:
    """What ``report.html`` says of itself; empty if that is not known."""
    try:
        text = read_file(folder / "report.html").decode("utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(rf'<meta name="{name}" content="([^"]*)">', text)
    return found[1] if found else ""


SCRIPTS = "two scripts"
"""What the list of runs calls their experiment."""


def write_index(reports: Path) -> Path:
    """Writes ``index.html`` in a folder of runs, listing the newest run first.

    A run whose files cannot be read is listed as unreadable, with the error. Another page of that name is left alone.
    """
    if left_alone(reports):
        return reports / INDEX
    runs = []
    for path in sorted(reports.glob("*/run.json")):
        try:
            runs.append(summary_of(path.parent))
        except (RecordError, OSError) as error:
            runs.append(_unreadable(path.parent, error))
    runs.sort(key=lambda run: run["started"], reverse=True)
    _tell_apart(runs)
    words, counted = (*FROM_BEST, "failed", "unfinished", ""), Counter(run["word"] for run in runs)
    values = {name: {run[name] for run in runs} for name in ("word", "experiment", "strategy")}
    told = {name for name in ("experiment", "strategy") if values["experiment"] != {SCRIPTS} or len(values[name]) > 1}
    choices = [
        (column, sorted(each or "unreadable" for each in values[key] if each or key == "word"))
        for column, key in (("verdict", "word"), ("experiment", "experiment"), ("strategy", "strategy"))
        if column == "verdict" or column in told
    ]
    content = {
        "runs": runs,
        "together": TOGETHER if (reports / TOGETHER).is_file() else "",
        "counts": [(word or "unreadable", counted[word]) for word in words if counted[word]],
        "choices": choices,
        "told": told | {"what differs" for run in runs if run["differs"]},
    }
    return _render("index.html", reports / INDEX, content)


def _tell_apart(runs: Sequence[dict[str, Any]]) -> None:
    """Adds to each row of the list of runs the options that differ among the runs of the same experiment."""
    for experiment in {run["experiment"] for run in runs}:
        group = [run for run in runs if run["experiment"] == experiment]
        for name, values in _differing([[*run["options"].items()] for run in group]):
            for run, value in zip(group, values, strict=True):
                told = [] if value in ("no", "not given", "") else [(name, f" {value}" * (value != "yes"))]
                run["differs"] += told


def left_alone(reports: Path) -> str:
    """What is said where ``write_index`` leaves another page alone; empty if there is none."""
    index = reports / INDEX
    if index.exists() and not os.access(index, os.W_OK):
        return f"{shown_path(index)} cannot be written and was left as it is"
    return f"{shown_path(index)} is not a list of runs and was left as it is" if is_foreign(index, "index") else ""


def is_foreign(page: Path, kind: str) -> bool:
    """Whether there is something else than a page of this kind that this toolkit has written."""
    if page.is_symlink():
        return True
    try:
        text = read_file(page).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return 'content="fit-vs-loop"' not in text or TITLES[kind] not in text


def refuse_foreign(folder: Path) -> None:
    """Refuses to replace a page of somebody else's in a run's folder."""
    if is_foreign(page := folder / "report.html", "run"):
        raise RequestError(f"{shown_path(page)} is no page of a run and is not replaced; move it elsewhere")


def write_together(folders: Sequence[Path], to: Path) -> Path:
    """Writes a page with several runs side by side: their verdicts, curves in common charts, costs and options."""
    pages = [page_of(folder, to.parent) for folder in folders]
    runs = [(page.files.folder.name, page.files) for page in pages]
    names = dict.fromkeys(name for _, files in runs for name in files.metrics)
    timeline = overlaid_gaps(runs)
    drawn = {line.key for line in timeline.series} if timeline else set()
    content = {
        "pages": pages,
        "differing": _differing([option_rows(files.run) for _, files in runs]),
        "charts": [overlaid_metric(runs, name) for name in names],
        "timeline": timeline,
        "without": [name for i, (name, _) in enumerate(runs) if f"r{i}" not in drawn],
        "validation": any(column.startswith("val_") for _, files in runs for column in files.columns),
    }
    return _render("together.html", to, content)


def _differing(rows_of_runs: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, list[str]]]:
    """The options and versions that differ between runs, with the value of each run."""
    options = [dict(each) for each in rows_of_runs]
    rows = []
    for name in dict.fromkeys(name for each in options for name in each):
        values = [each.get(name, default_row(name)) for each in options]
        if name in FILES:
            values = _short(values)
        if len(set(values)) > 1:
            rows.append((name, values))
    return rows


def _short(values: Sequence[str]) -> list[str]:
    """Paths without their folders, unless files of the same name are in several folders."""
    parts = {part: Path(part) for value in values for part in value.split(" ") if Path(part).is_absolute()}
    folders = Counter(path.name for path in {*parts.values()})
    short = {part: path.name for part, path in parts.items() if folders[path.name] == 1}
    return [" ".join(short.get(part, part) for part in value.split(" ")) for value in values]


def _render(template: str, to: Path, content: Mapping[str, Any]) -> Path:
    replace_file(to, environment().get_template(template).render(content).encode())
    return to


@cache
def environment() -> jinja2.Environment:
    """The Jinja2 environment: values are escaped, and an unknown name in a template is an error.

    Templates call the functions of the modules that derive from a run's files what a page shows.
    """
    created = jinja2.Environment(
        loader=jinja2.PackageLoader("compare.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not Markup, which is escaped text
    )
    called = (gaps, numbers, page_comparison, page_model, page_tables, pictures, run_files, sentences, stage_views, svg)
    created.globals |= {each.__name__.rpartition(".")[2]: each for each in (*called, weight_pictures)}
    created.globals |= {"answers": ANSWERS, "catalogue": CATALOGUE, "identity_of": identity_of}
    script = read_file(Path(__file__).parent / "templates" / "script.js").decode()
    created.globals["script"] = Markup(script)
    created.globals["script_hash"] = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return created


# The list of runs


def summary_of(folder: Path) -> dict[str, Any]:
    run = read_run(folder)
    verdict = verdict_of(folder)
    with usable(folder):
        return _summary(folder, run, verdict)


def _of_numbers(comparisons: Sequence[Comparison]) -> list[str]:
    """What a verdict on equal weights leaves open: whether reported numbers differ, or were not compared."""
    trained = [each for each in comparisons if not each.failure]
    if not trained or not all(each.training.verdict in (IDENTICAL, ALIKE) for each in trained):
        return []
    verdicts = {each.reporting.verdict for each in trained}
    return ["weights agree, reported numbers do not"] * (DIFFERENT in verdicts) + [
        "reported numbers were not compared"
    ] * (verdicts == {None})


def _summary(folder: Path, run: Mapping[str, Any], verdict: Verdict | None) -> dict[str, Any]:
    options = run["options"]
    comparisons = verdict.comparisons if verdict else ()
    causes = [cause.id for each in comparisons for cause in each.causes]
    first = [each.evidence or () for each in comparisons if not each.causes or only_beside(each)]
    seen = [beginning(text) for evidence in first for text in evidence[:1]]
    seen += [beginning(each.training.reason) for each in comparisons if each.training.reason]
    failures = [each.failure for each in comparisons if each.failure]
    failures = [*{each.side: each for each in failures}.values()] or [
        decode(Failure, each) for each in run.get("failures", [])
    ]
    word = word_of(run, verdict)
    failed = word == "failed"
    if word not in ANSWERS:
        raise ValueError(f"there is no verdict {word!r}")
    readable = ["report.html", "comparison.png", *(log_name(each.side) for each in failures)]
    page = next((name for name in readable if (folder / name).is_file()), "")
    checked = [each["severity"] for each in run.get("preflight", [])]
    refused = 0 if options.get("force") else checked.count(CANNOT_RUN)
    unable = [each["side"] for each in run.get("failures", [])[:refused]]  # what the checks found comes first
    how = {each.side: "failed:" for each in failures} if failed else dict.fromkeys(unable, "cannot run:")
    try:
        blank = failed or (verdict and verdict.scope == "check") or _size(folder / "metrics.csv") > LARGE
        problem, result = "", ("", "") if blank else results(read(folder))
    except RecordError as error:
        problem, result = str(error), ("", "")
    return {
        "name": folder.name,
        "link": f"{quote(folder.name)}/{quote(page)}" if page else "",
        "word": word,
        "interrupted": bool(verdict and verdict.interrupted),
        "scope": verdict.scope if verdict else "run",
        "experiment": _trained(options),
        "trainers": _trainers(run),
        "strategy": _strategy(run),
        "epochs": "" if options.get("scripts") or options.get("logs") else str(options.get("epochs", "")),
        "causes": list(dict.fromkeys([*_of_numbers(comparisons), *seen, *causes]))
        or ["cause unknown"] * (word == "different"),
        "failures": [
            (each.side, how.get(each.side, "failed:" if each.error.startswith("trainer ") else "raised"), each.error)
            for each in failures
        ],
        "notes": [beginning(text) for text in run.get("notes", ())] if options.get("scripts") else [],
        "sample": "embedded sample" in str(run.get("data", {}).get("source", "")),
        "result": result,
        "problem": problem,
        "started": str(run.get("started") or run.get("finished") or ""),
        "options": compared_options(run),
        "differs": [],
    }


LARGE = 5_000_000
"""The number of bytes from which on the numbers of a run are left out of the list of runs, which reads them all."""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _trained(options: Mapping[str, Any]) -> str:
    if options.get("logs"):
        return "curves only"
    return SCRIPTS if options.get("scripts") else label(str(options.get("experiment", "")), "experiment")


def _trainers(run: Mapping[str, Any]) -> list[str]:
    names = [str(name) for name in run.get("trainers") or run["options"].get("trainers") or []]
    return with_folders(names, run["options"].get("scripts") or ())


def _strategy(run: Mapping[str, Any]) -> str:
    if run["options"].get("logs"):
        return ""
    strategy = run.get("strategy") or {"name": run["options"].get("strategy", "")}
    if strategy.get("workers", 1) > 1:
        return f"{strategy['name']}, {strategy['workers']} workers"
    own = "their own" if run["options"].get("scripts") else str(strategy["name"])
    return ", ".join(filter(None, [own, replicas_of(run)]))


def _unreadable(folder: Path, error: Exception) -> dict[str, Any]:
    return {
        "name": folder.name, "link": f"{quote(folder.name)}/", "word": "", "interrupted": False, "scope": "run",
        "experiment": "", "trainers": [], "strategy": "", "epochs": "", "causes": [], "notes": [], "started": "",
        "failures": [], "sample": False, "result": ("", ""), "problem": str(error), "options": {}, "differs": [],
    }  # fmt: skip


PNG, MOST_OF_PICTURE = b"\x89PNG", 2**26
"""What a picture of this toolkit's begins with, and the number of bytes above which a file is none."""


def notebook(folder: Path) -> str:
    """A run as HTML for a notebook: the verdict, the causes and the plot."""
    page, picture = page_of(folder), ""
    with suppress(OSError):  # there is none, or something else in its place
        path = folder / "comparison.png"
        content = b"" if path.is_symlink() else read_file(path, MOST_OF_PICTURE)
        if content.startswith(PNG):
            picture = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    with usable(folder):
        return environment().get_template("notebook.html").render(page=page, picture=picture, path=str(folder))
