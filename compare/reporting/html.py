"""``report.html``, the page of a run: one file that needs no network, made from the run's files alone; no TensorFlow.

write(folder)                the page of one run
write_index(reports)         the list of all runs in a folder
write_together(folders, to)  several runs side by side
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from compare.check.causes import CATALOGUE
from compare.records import RecordError, read_verdict, replace_file
from compare.reporting import traps
from compare.reporting.page_model import ANSWERS, View, read_object, view_of
from compare.reporting.pictures import metric_chart


def write(folder: Path) -> Path:
    """Write ``report.html`` from the other files of a run's folder.

    Raises:
        RecordError: when the folder is not a run's, or one of its files is damaged.
    """
    return _render("report.html", folder / "report.html", view_of(folder))


def write_index(reports: Path) -> Path:
    """Write ``index.html`` in a folder of runs: all of them, the newest first.

    A run whose files cannot be read is listed, as what it is.
    """
    runs = []
    for path in sorted(reports.glob("*/run.json")):
        try:
            runs.append(summary_of(path.parent))
        except RecordError as error:
            runs.append(_unreadable(path.parent, error))
    runs.sort(key=lambda run: run["started"], reverse=True)
    return _render("index.html", reports / "index.html", {"runs": runs})


def write_together(folders: Sequence[Path], to: Path) -> Path:
    """Write several runs side by side into the file ``to``: figures in a table, curves on common scales.

    Raises:
        RecordError: as ``write`` does.
    """
    views = [view_of(folder, to.parent) for folder in folders]
    every = [values for view in views for values in view["curves"].values()]
    names = list(dict.fromkeys(name for view in views for name in view["metrics"]))
    last = max((view["epochs"] for view in views), default=1)
    rows = []
    for name in names:
        found = [v for mine in every for key in (name, f"val_{name}") for v in mine.get(key, {}).values()]
        scale = [v for v in found if math.isfinite(v)]
        charts = [metric_chart(v, name, scale, last) if name in v["metrics"] else None for v in views]
        rows.append({"name": name, "charts": charts})
    options = list(dict.fromkeys(key for view in views for key, _ in view["options"]))
    told = [dict(view["options"]) for view in views]
    unlike = [
        (key, [mine.get(key, "") for mine in told]) for key in options if len({mine.get(key, "") for mine in told}) > 1
    ]
    return _render("together.html", to, {"runs": views, "rows": rows, "unlike": unlike})


def write_traps(folder: Path) -> Path:
    """Write ``index.html``, the story of every cause, beside the pictures and CSV files of ``reports/traps``."""
    data = traps.read(folder)
    families = []
    for title, causes in traps.FAMILIES:
        stories = []
        for cause in causes:
            shown = traps.Shown(data, cause.id)
            stories.append(
                {
                    "cause": cause,
                    "picture": f"{cause.id}.png",
                    "caption": traps.caption(shown),
                    "evidence": shown.result["evidence"],
                    "met": [_met(line) for line in cause.met.splitlines()],
                    "command": traps.command(shown),
                }
            )
        families.append((title, stories))
    content = {"families": families, "count": len(CATALOGUE)}
    return _render("traps.html", folder / "index.html", content)


def _met(line: str) -> tuple[str, str]:
    """Title and address; the address is empty where there is none."""
    title, _, address = line.rpartition(", ")
    return (title, address) if address.startswith("https://") else (line, "")


def _render(template: str, to: Path, content: Mapping[str, Any]) -> Path:
    replace_file(to, environment().get_template(template).render(content).encode())
    return to


@cache
def environment() -> jinja2.Environment:
    """Jinja2, escaping whatever is put into a page; an unknown name in a template is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("compare.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["answers"] = ANSWERS
    return made


# The list of runs


def summary_of(folder: Path) -> View:
    """One line of the list of runs.

    Raises:
        RecordError: when ``run.json`` or ``verdict.json`` is damaged.
    """
    run = read_object(folder / "run.json")
    verdict = read_verdict(folder / "verdict.json") if (folder / "verdict.json").exists() else {}
    options = run.get("options")
    if not isinstance(options, dict) or verdict.get("verdict", "unfinished") not in ANSWERS:
        raise RecordError(f"{folder}: run.json or verdict.json is damaged")
    page = next((name for name in ("report.html", "comparison.png") if (folder / name).exists()), "")
    causes = [cause["id"] for entry in verdict.get("comparisons", []) for cause in entry.get("causes", [])]
    return {
        "name": folder.name,
        "link": f"{quote(folder.name)}/{page}",
        "word": verdict.get("verdict", "unfinished"),
        "interrupted": bool(verdict.get("interrupted")),
        "scope": verdict.get("scope", "run"),
        "experiment": str(options.get("experiment", "")),
        "trainers": [str(name) for name in run.get("trainers") or options.get("trainers") or []],
        "strategy": _strategy(run),
        "epochs": str(options.get("epochs", "")),
        "causes": list(dict.fromkeys(causes)),
        "started": str(run.get("started") or run.get("finished") or ""),
    }


def _strategy(run: View) -> str:
    strategy = run.get("strategy") or {"name": run["options"].get("strategy", "")}
    if strategy.get("workers", 1) > 1:
        return f"{strategy['name']}, {strategy['workers']} workers"
    replicas = strategy.get("replicas")
    return f"{strategy['name']}" + (f", {replicas} replica{'s' * (replicas > 1)}" if replicas else "")


def _unreadable(folder: Path, error: Exception) -> View:
    return {
        "name": folder.name, "link": f"{quote(folder.name)}/", "word": "", "interrupted": False, "scope": "run",
        "experiment": str(error), "trainers": [], "strategy": "", "epochs": "", "causes": [], "started": "",
    }  # fmt: skip


def notebook(folder: Path) -> str:
    """A run as a notebook shows it: verdict, causes and the picture."""
    view = view_of(folder)
    picture = folder / "comparison.png"
    return (
        environment()
        .get_template("notebook.html")
        .render(view, picture=_data_uri(picture) if picture.exists() else "", path=str(folder))
    )


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
