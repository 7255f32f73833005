"""``report.html``, the page of a run: one file that needs no network, made from the run's files alone; no TensorFlow.

write(folder)                the page of one run
write_index(reports)         the list of all runs in a folder
write_together(folders, to)  several runs side by side
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np

from compare.check.causes import CATALOGUE
from compare.costs import FILE as COSTS
from compare.options import EXPERIMENTS, Options, is_file
from compare.records import (
    EPOCH_END,
    INITIAL,
    KEY_COLUMNS,
    TIME_COLUMNS,
    RecordError,
    read_json,
    read_metrics,
    replace_file,
)
from compare.report import traps
from compare.report.charts import Axis, Band, Series, chart, counts, linear, logarithmic
from compare.report.gaps import WeightGaps, gaps_of
from compare.report.plots import ROUNDING, Curves, envelope_of, mean_and_interval, read_curves
from compare.report.text import difference, sentence, truth_sentence
from compare.verdict import FROM_BEST, absolute_gap

STOPS = 400
"""As many points at most has the timeline; of the steps between two the largest gap is drawn."""
PRECISE = ".3g"
TRAPS = Path(__file__).resolve().parents[2] / "reports" / "traps" / "index.html"
"""The stories of all causes, where the toolkit was not installed without them."""
TRAINERS = ("fit", "loop", "tutorial")
"""The built-in trainers' names, as in ``compare.loading``."""
DEFAULTS = Options(keras=3).as_json()
ANSWERS = {
    "identical": ("=", "Yes, exactly."),
    "alike": ("≈", "Yes, up to rounding."),
    "different": ("≠", "No."),
    "inconclusive": ("?", "It cannot be told."),
    "not-comparable": ("!", "They cannot be compared."),
    "unfinished": ("…", "No verdict yet."),
}
"""By verdict: a sign, and the answer to "Do they train alike?"."""

View = dict[str, Any]


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
        charts = [_metric_chart(v, name, scale, last) if name in v["metrics"] else None for v in views]
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


def environment() -> jinja2.Environment:
    """Jinja2, escaping whatever is put into a page; an unknown name in a template is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("compare.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["answers"] = ANSWERS
    return made


# A run's files as what the template shows


def view_of(folder: Path, beside: Path | None = None) -> View:
    """All that the page of a run shows.

    Args:
        folder: the run's.
        beside: the folder that the page is in, by default the run's own.

    Raises:
        RecordError: when the folder is not a run's, or one of its files is damaged.
    """
    run = _read(folder / "run.json")
    if not isinstance(run.get("options"), dict):
        raise RecordError(f"{folder / 'run.json'}: damaged, it has no options")
    verdict = _read(folder / "verdict.json") if (folder / "verdict.json").exists() else {}
    rows = read_metrics(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    try:
        return _view(folder, beside or folder, run, verdict, rows)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{folder}: run.json or verdict.json is damaged ({type(error).__name__}: {error})") from error


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise RecordError(f"{path}: damaged, it is not an object")
    return content


def _view(folder: Path, beside: Path, run: View, verdict: View, rows: list[dict[str, str]]) -> View:
    options = run["options"]
    entries = verdict.get("comparisons", [])
    names = list(run.get("trainers") or options["trainers"])
    for name in [*(row["trainer"] for row in rows), *(entry["candidate"] for entry in entries)]:
        if name not in names and not (verdict and rows and not entries):
            names.append(name)
    names = [verdict.get("reference", names[0]), *(n for n in names if n != verdict.get("reference", names[0]))]
    columns = [name for name in (rows[0] if rows else {}) if name not in KEY_COLUMNS + TIME_COLUMNS]
    metrics = list(dict.fromkeys(name.removeprefix("val_") for name in columns))
    metrics.sort(key=lambda name: name != "loss")
    interrupted = bool(verdict.get("interrupted"))
    view: View = {
        "folder": folder.name,
        "title": run.get("title") or f"{options['experiment']}: short check of {' and '.join(names[1:])}",
        "word": verdict.get("verdict", "unfinished"),
        "scope": verdict.get("scope", "run"),
        "interrupted": interrupted,
        "status": run.get("status", ""),
        "notes": [str(note) for note in run.get("notes", [])],
        "preflight": run.get("preflight", []),
        "failures": run.get("failures", []) if not entries else [],
        "trainers": [{"name": name, "style": min(number, 5)} for number, name in enumerate(names)],
        "names": names,
        "metrics": metrics,
        "columns": columns,
        "curves": read_curves(rows),
        "seeds": len({row["seed"] for row in rows}),
        "epochs": max((int(row["epoch"]) for row in rows), default=1),
        "asked_epochs": options.get("epochs"),
        "started": run.get("started", ""),
        "run": run,
        "costs.json": _read(folder / COSTS) if (folder / COSTS).exists() else {},
        "report": quote(os.path.relpath(folder / "report.html", beside)),
    }
    twins = [read_metrics(path) for path in sorted(folder.glob("twins/*/metrics.csv"))]
    view["noise"] = [read_curves(each) for each in twins if each]
    view["comparisons"] = [
        _comparison(entry, verdict["reference"], folder, beside, view)
        for entry in sorted(entries, key=lambda entry: -FROM_BEST.index(entry["verdict"]))
    ]
    view["timeline"] = _timeline(folder, verdict, view)
    view["truth"] = truth_sentence(verdict["truth"]) + "." if verdict.get("truth") else ""
    view["charts"] = [
        (
            _metric_chart(view, name),
            _gap_chart(view, name) if len(names) > 1 and view["seeds"] <= 1 else None,
        )
        for name in metrics
    ]
    view["table"] = _table(rows, names, columns) if view["seeds"] <= 1 else []
    view["costs"] = _costs(view)
    view["seconds"] = _seconds_chart(view) if rows else None
    view["options"] = _options(run)
    view["command"], view["command_note"] = _command(run)
    view["glance"] = _glance(view)
    view["answer"] = _answer(view)
    view["done"] = ", ".join(f"{who} {epoch}" for who, epoch in _done(view).items()) or "none"
    made = ("metrics.csv", "verdict.json", "run.json", "comparison.png", "tensorflow.log")
    view["files"] = [name for name in made if (folder / name).exists()]
    return view


def _answer(view: View) -> str:
    """The answer in a few words."""
    first = view["comparisons"][0] if view["comparisons"] else None
    if view["interrupted"] and view["word"] in ("identical", "alike"):
        return "As far as the run came, yes."
    if first and first["training"]["verdict"] == "identical" and first["verdict"] == "different":
        return "They train exactly alike, but report other numbers."
    if first and first["training"]["verdict"] == "alike" and first["verdict"] == "different":
        return "They train alike, but report other numbers."
    return ANSWERS[view["word"]][1]


def _comparison(entry: View, reference: str, folder: Path, beside: Path, view: View) -> View:
    """One candidate against the reference, in words."""
    story = os.path.relpath(TRAPS, beside.resolve()) if TRAPS.exists() else ""
    causes = []
    for cause in entry["causes"]:
        known = CATALOGUE.get(cause["id"])
        causes.append(
            {
                **cause,
                "known": known,
                "link": f"{quote(story)}#{quote(cause['id'])}" if story and known else "",
                "evidence": _sentences(cause["evidence"]),
            }
        )
    against = entry.get("against", "")
    return {
        **entry,
        "against": against,
        "reference": f"{entry['candidate']} of {against}" if against else reference,
        "training": {"reason": "", "differing_variables": [], **entry["training"]},
        "sentence": sentence(entry, reference) + ".",
        "rests_on": _evidence(entry, view),
        "where": _where(entry),
        "named": causes,
        "evidence": [_sentences(text) for text in entry.get("evidence", [])],
        "not_applicable": entry.get("not_applicable", []),
        "failure": entry.get("failure"),
        "study": _study(entry["study"]) if entry.get("study") else None,
    }


def _sentences(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _evidence(entry: View, view: View) -> list[tuple[str, str]]:
    """What the verdict rests on: (heading, sentence) each."""
    training, reporting = entry["training"], entry["reporting"]
    found: list[tuple[str, str]] = []
    steps = training.get("steps_compared", 0)
    if entry.get("failure"):
        return [("What happened", _sentences(entry["failure"]["error"]))]
    if view["scope"] == "check":
        found.append(
            ("How it was compared", "A few small batches were trained, on one replica and on two if there are.")
        )
    elif steps:
        how = "a hash of all weights, on every replica, after each of them"
        found.append(("Weights", f"{steps:,} optimizer steps were compared, bit for bit: {how}."))
    elif training["verdict"] != "not-comparable":
        found.append(("Weights", "They were compared bit for bit at the end of every epoch."))
    gap = training.get("max_weight_gap")
    if gap is not None and steps:
        equal = "No weight differs at the end of any epoch." if gap == 0 else ""
        found.append(("Largest gap", equal or f"At the ends of epochs some weight differs by {gap:{PRECISE}}."))
    noise = training.get("noise")
    if noise:
        ratio = noise["largest_ratio"]
        times = f"{ratio:.2g} times" if ratio is not None else "beyond"
        found.append(
            (
                "Rounding",
                f"The gap is {times} what {noise['twins']} noise twins show that rounding does; "
                f"up to {noise['factor']:g} times counts as rounding.",
            )
        )
    metrics = reporting.get("metrics", {})
    if reporting["verdict"] == "identical" and metrics:
        found.append(("Numbers", f"{', '.join(metrics)}: equal in every epoch, to the last bit."))
    elif metrics:
        gaps = [f"{name} {m['max_gap']:.1e}" for name, m in metrics.items() if m["max_gap"]]
        worst = ", ".join(gaps)
        judged = {"different": ", and not what its weights give", "alike": ", no more than rounding"}
        if worst:
            found.append(("Numbers", f"Up to this far apart: {worst}{judged.get(reporting['verdict'] or '', '')}."))
    if entry.get("study"):
        study = entry["study"]
        found.append(("Seeds", f"{study['seeds']} seeds: {study['verdict']} by paired differences, see below."))
    return found


def _where(entry: Mapping[str, Any]) -> str:
    """Where two runs part, in a few words."""
    training, first = entry["training"], entry["training"]["first_difference"]
    if entry.get("failure"):
        return "There is nothing to compare"
    if first is None:
        differing = [name for name, gap in entry["reporting"]["metrics"].items() if gap["max_gap"] != 0]
        if training["verdict"] == "identical" and differing and entry["verdict"] != "identical":
            return f"Only in the numbers: {', '.join(differing)}"
        return "Nowhere" if training["verdict"] == "identical" else "Not known"
    if first["step"] is None:
        return f"At the end of epoch {first['epoch']}"
    if first["step"] == INITIAL:
        return "Before the first step"
    return f"Epoch {first['epoch']}, step {first['step']:,}"


def _study(study: View) -> View:
    """A study's tests as rows of text."""
    tests = [
        {
            "metric": test["metric"],
            "epoch": test["epoch"],
            "difference": difference(test, "mean"),
            "interval": "" if test["low"] is None else f"{difference(test, 'low')} to {difference(test, 'high')}",
            "margin": f"±{difference(test, 'margin', '')}",
            "verdict": test["verdict"],
        }
        for test in study["tests"]
    ]
    return {**study, "rows": tests}


# Where they part


def _timeline(folder: Path, verdict: View, view: View) -> View | None:
    """The chart of the weight gap per step; None where there is nothing to draw."""
    entries = [each for each in view["comparisons"] if not each["failure"]]
    if not entries or view["scope"] == "check":
        return None
    found = [(entry, gaps) for entry, _, gaps in gaps_of(folder, {**verdict, "comparisons": entries})]
    if found:
        return _gaps_per_step(found, view)
    if all(each["training"]["verdict"] == "identical" for each in entries):  # then every gap is 0
        return _all_equal(entries, view)
    return None


def _gaps_per_step(found: Sequence[tuple[Mapping[str, Any], WeightGaps]], view: View) -> View:
    series, heights, bands, labels = [], [], [], []
    longest = max((gaps for _, gaps in found), key=lambda gaps: len(gaps.places))
    count = len(longest.places)
    every = max(1, math.ceil(count / STOPS))
    for entry, gaps in found:
        points: dict[float, float] = {}
        told: dict[float, str] = {}
        parted = np.flatnonzero(~gaps.equal)
        first = int(parted[0]) if len(parted) else -1
        starts = sorted({*range(0, len(gaps.places), every), *([first] if first >= 0 else [])})
        for start, end in zip(starts, [*starts[1:], len(gaps.places)], strict=True):
            part = gaps.gaps[start:end]
            known = part[np.isfinite(part)]
            value = float(known.max()) if len(known) else math.nan
            points[start + 1] = value
            equal = bool(gaps.equal[start:end].all())
            text = "equal, bit for bit" if equal else f"{value:{PRECISE}}" if math.isfinite(value) else "not a number"
            noise = gaps.noise[start:end]
            if np.isfinite(noise).any():
                text += f" (rounding alone: {np.nanmax(noise):{PRECISE}})"
            told[start + 1] = text + (f", the largest of {end - start} steps" if end - start > 1 and not equal else "")
        style = view["names"].index(entry["candidate"]) if entry["candidate"] in view["names"] else 1
        name = f"{entry['candidate']} − {entry['reference']}"
        series.append(Series(name, max(1, min(style, 5)), points, told=told))
        heights += [value for value in points.values() if math.isfinite(value) and value > 0]
    base = found[0][1]
    low = {i + 1.0: float(base.rounding[i]) for i in [*range(0, len(base.places), every), len(base.places) - 1]}
    high = {at: 2 * value for at, value in low.items()}
    if any(np.isfinite(gaps.noise).any() for _, gaps in found):
        (_, noisy) = next((entry, gaps) for entry, gaps in found if np.isfinite(gaps.noise).any())
        at = [i for i in range(0, len(noisy.places), every) if np.isfinite(noisy.noise[i])]
        top = {i + 1.0: float(noisy.noise[i]) for i in at}
        bands.append(Band("twins", dict.fromkeys(top, 0.0), top))
        if top:
            labels.append((list(top.values())[-1], "rounding alone, measured by noise twins"))
        heights += [value for value in top.values() if value > 0]
    elif any(value > 0 for value in low.values()):
        bands.append(Band("rounding", low, high))
        labels.append((list(high.values())[-1], "one rounding of every weight"))
        heights += [value for value in (*low.values(), *high.values()) if value > 0]
    equal = all(gaps.equal.all() for _, gaps in found)
    labels.append((0.0, "equal, bit for bit, in every step" if equal else "equal, bit for bit"))
    lines = [
        float(i + 1) for i, (a, b) in enumerate(zip(longest.places, longest.places[1:], strict=False), 1) if a[0] < b[0]
    ]
    begins = {epoch: i + 1 for i, (epoch, _) in reversed(list(enumerate(longest.places)))}
    some = sorted(begins)[:: max(1, math.ceil(len(begins) / 10))]
    x = counts(count, 1)
    axis = Axis(lambda value: (value - 1) / max(count - 1, 1) * 0.98 + 0.01, [(begins[e], f"{e}") for e in some])
    if len(begins) == 1:
        axis = Axis(axis.place, x.ticks)
    place = {i + 1.0: text for i, text in enumerate(map(_place, longest.places))}
    return chart(
        "Weight gap after every step",
        "; ".join(f"{entry['candidate']}: {_where(entry)}" for entry, _ in found),
        axis,
        logarithmic(min([*heights, 1e-8]), max([*heights, 1e-6]), zero=True),
        series,
        x_name="epoch begins" if len(begins) > 1 else "step",
        y_name="distance of all weights (Euclidean norm)",
        bands=bands,
        labels=labels,
        lines=lines,
        told=lambda value: place.get(value, f"step {value:g}"),
        tall=True,
        markers=count <= 40,
    )


def _place(place: tuple[int, int]) -> str:
    epoch, step = place
    if step == EPOCH_END:
        return f"end of epoch {epoch}"
    return "before the first step" if step == INITIAL else f"epoch {epoch}, step {step:,}"


def _all_equal(entries: Sequence[View], view: View) -> View:
    steps = max(entry["training"]["steps_compared"] for entry in entries) or view["epochs"]
    series = [
        Series(
            f"{entry['candidate']} − {entry['reference']}",
            max(1, min(view["names"].index(entry["candidate"]), 5)),
            {1: 0.0, float(steps): 0.0},
            told={1: "equal, bit for bit", float(steps): "equal, bit for bit"},
        )
        for entry in entries
    ]
    x = counts(steps)
    return chart(
        "Weight gap after every step",
        "All weights are equal, bit for bit, after every step.",
        Axis(lambda value: (value - 1) / max(steps - 1, 1) * 0.98 + 0.01, x.ticks),
        logarithmic(1e-8, 1e-2, zero=True),
        series,
        x_name="step",
        y_name="distance of all weights (Euclidean norm)",
        labels=[(0.0, "equal, bit for bit, in every step")],
        tall=True,
        markers=False,
    )


# What they reached


def _metric_chart(view: View, name: str, scale: Sequence[float] = (), last: int = 0) -> View:
    """The curves of one metric, in training and validation, on a scale of their own or on the given values'."""
    series: list[Series] = []
    curves: Curves = view["curves"]
    for number, trainer in enumerate(view["names"]):
        for column in (f"val_{name}", name):
            its = [mine[column] for (who, _), mine in curves.items() if who == trainer and mine.get(column)]
            style, label = min(number, 5), f"{trainer} {column}"
            hollow = column.startswith("val_")
            if len(its) > 1:
                mean, low, high = mean_and_interval(its, 0.95)
                series += [Series(label, style, values, hollow, faint=True) for values in its]
                told = {
                    float(e): f"{v:.6g} (95% interval {low[e]:.4g} to {high[e]:.4g})"
                    if math.isfinite(low[e])
                    else f"{v:.6g}"
                    for e, v in mean.items()
                }
                series.append(Series(label, style, mean, hollow, told=told, low=low, high=high))
            elif its:
                told = {float(e): _exact(value) for e, value in its[0].items()}
                series.append(Series(label, style, its[0], hollow, told=told))
    series.sort(key=lambda each: each.style)
    shown = list(scale) or [v for each in series for v in each.points.values() if math.isfinite(v)]
    least, most = min(shown, default=0.0), max(shown, default=1.0)
    axis = logarithmic(least, most) if least > 0 and most > 1000 * least else linear(least, most)
    ends = ", ".join(
        f"{each.name} {_exact(list(each.points.values())[-1])}" for each in series if each.points and not each.faint
    )
    unit = "fraction of examples" if name.endswith("accuracy") else ""
    return chart(name, f"{name}, last epoch: {ends}", counts(last or view["epochs"]), axis, series, y_name=unit)


def _exact(value: float) -> str:
    """A number as ``metrics.csv`` has it."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return str(single) if float(single) == value else repr(value)


def _gap_chart(view: View, name: str) -> View:
    """The distance of each candidate's numbers from the reference's, on a scale that has a zero."""
    curves: Curves = view["curves"]
    series, heights, sizes = [], [], []
    candidates = view["names"][1:]
    wanted = [(trainer, column) for trainer in candidates for column in (name, f"val_{name}")]
    for (trainer, seed), mine in curves.items():
        ours = curves.get((view["names"][0], seed), {})
        for column in (name, f"val_{name}"):
            sizes += [abs(v) for v in mine.get(column, {}).values() if math.isfinite(v) and v]
            if trainer not in candidates or not ours.get(column):
                continue
            both = sorted(ours[column].keys() & mine.get(column, {}).keys())
            gaps = {float(e): absolute_gap(ours[column][e], mine[column][e]) for e in both}
            told = {
                e: "equal" if gap == 0 else "not a number" if gap is None else f"{gap:.2e}" for e, gap in gaps.items()
            }
            points = {e: math.nan if gap is None else gap for e, gap in gaps.items()}
            style = min(view["names"].index(trainer), 5)
            series.append(
                (trainer, column, Series(f"{trainer} {column}", style, points, column.startswith("val_"), told=told))
            )
            heights += [gap for gap in points.values() if math.isfinite(gap) and gap > 0]
    series.sort(key=lambda each: wanted.index(each[:2]))
    low, high = (ROUNDING[0] * min(sizes), ROUNDING[1] * max(sizes)) if sizes else ROUNDING
    low = max(low, high / 1000)
    around = {0.5: low, view["epochs"] + 0.5: low}
    bands = [Band("rounding", around, dict.fromkeys(around, high))]
    labels = [(math.sqrt(low * high), "float32 rounding"), (0.0, "equal")]
    envelope = envelope_of(curves, view["names"][0], name, view["noise"])
    if any(envelope.values()):
        bands.insert(
            0, Band("twins", dict.fromkeys(map(float, envelope), 0.0), {float(e): v for e, v in envelope.items()})
        )
        labels.append((list(envelope.values())[-1], "noise twins"))
        heights += [value for value in envelope.values() if value > 0]
    many = len(series)
    told_gap = "equal in every epoch" if not heights else f"up to {max(heights):.2e}"
    return chart(
        f"{name}: gap to {view['names'][0]}",
        f"{name}: the gap is {told_gap}",
        counts(view["epochs"]),
        logarithmic(min([low, *heights]), max([high, 1e-2, *heights]), zero=True),
        [each for _, _, each in series],
        bands=bands,
        labels=labels,
        shift=lambda number: 0.4 * ((number + 0.5) / many - 0.5),
    )


def _table(rows: Sequence[Mapping[str, str]], names: Sequence[str], columns: Sequence[str]) -> list[View]:
    """Per epoch each trainer's numbers, as the file has them, and the gap to the reference."""
    by = {(row["trainer"], int(row["epoch"])): row for row in rows}
    curves = {trainer: mine for (trainer, _), mine in read_curves(rows).items()}
    table = []
    for epoch in sorted({epoch for _, epoch in by}):
        lines: list[View] = []
        for name in [name for name in names if (name, epoch) in by]:
            lines.append(
                {"name": name, "style": min(names.index(name), 5), "cells": [by[name, epoch][c] for c in columns]}
            )
            if name != names[0] and (names[0], epoch) in by:
                gaps = [
                    _gap(curves[names[0]].get(c, {}).get(epoch), curves[name].get(c, {}).get(epoch)) for c in columns
                ]
                lines.append({"name": "gap", "style": None, "cells": gaps})
        table.append({"epoch": epoch, "lines": lines})
    return table


def _gap(ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return ""
    if absolute_gap(ours, theirs) == 0:
        return "0"
    return f"{theirs - ours:+.1e}"


# What they cost


def _costs(view: View) -> list[View]:
    """Per trainer: seconds per epoch, examples per second, the first step, memory."""
    curves: Curves = view["curves"]
    recorded = view["costs.json"]
    costs = []
    for trainer in view["trainers"]:
        runs = [mine for (who, _), mine in curves.items() if who == trainer["name"]]
        if not runs:
            continue
        first = [mine["seconds"][1] for mine in runs if 1 in mine["seconds"]]
        later = [v for mine in runs for e, v in mine["seconds"].items() if e > 1]
        rates = [v for mine in runs for e, v in mine["examples_per_second"].items() if e > 1 or not later]
        its: View = next(iter(recorded.get(trainer["name"], {}).values()), {})
        costs.append(
            {
                **trainer,
                "first_epoch": f"{np.median(first):,.1f} s" if first else "",
                "epoch": f"{np.median(later):,.1f} s" if later else "",
                "rate": f"{np.median(rates):,.0f}" if rates else "",
                "total": f"{sum(v for mine in runs for v in mine['seconds'].values()):,.1f} s",
                "first_step": _duration(its.get("first_step_seconds")),
                "step": _duration(its.get("step_seconds")),
                "memory": f"{its['peak_memory_bytes'] / 1e9:.2f} GB" if its.get("peak_memory_bytes") else "",
                "own_peak": its.get("own_peak", True),
            }
        )
    return costs


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _seconds_chart(view: View) -> View:
    series = []
    curves: Curves = view["curves"]
    for number, name in enumerate(view["names"]):
        its = [mine["seconds"] for (who, _), mine in curves.items() if who == name]
        if its:
            mean = mean_and_interval(its, 0.95)[0] if len(its) > 1 else its[0]
            told = {float(epoch): f"{value:,.2f} s" for epoch, value in mean.items()}
            series.append(Series(name, min(number, 5), mean, told=told))
    most = max((v for each in series for v in each.points.values()), default=1.0)
    ends = ", ".join(f"{each.name} {list(each.told.values())[-1]}" for each in series)
    return chart(
        "seconds per epoch",
        f"In the last epoch: {ends}",
        counts(view["epochs"]),
        linear(0, most, pad=0.04),
        series,
        y_name="s",
    )


# What was run


def _options(run: View) -> list[tuple[str, str]]:
    """Everything that was asked, and with what it was run: (name, value) each."""
    found = [(f"--{name.replace('_', '-')}", _value(value)) for name, value in run["options"].items()]
    strategy, data, versions = run.get("strategy", {}), run.get("data", {}), run.get("versions", {})
    if strategy:
        found += [
            ("strategy class", strategy["class"]),
            ("replicas in sync", str(strategy["replicas"])),
            ("workers", str(strategy["workers"])),
            ("global batch size", str(strategy["global_batch_size"])),
            ("devices", ", ".join(strategy["devices"])),
        ]
    if data:
        found += [
            ("data set", str(data["source"])),
            ("training examples", f"{data['training_examples']:,}"),
            ("validation examples", f"{data['validation_examples']:,}"),
            ("training data, SHA-256", str(data["training_sha256"])),
            ("validation data, SHA-256", str(data["validation_sha256"])),
        ]
    for seed, digest in run.get("initial_weights_sha256", {}).items():
        found.append((f"initial weights of seed {seed}, SHA-256", digest))
    found += [(f"version of {name}", str(value)) for name, value in versions.items()]
    machine = run.get("machine", {})
    if machine:
        found += [("platform", machine["platform"]), ("processors", str(machine["processors"]))]
    threads = {name: str(value or "as many as TensorFlow chooses") for name, value in run.get("threads", {}).items()}
    found += [(f"threads, {name.replace('_', '-')}", value) for name, value in threads.items()]
    found += [(name, str(run[name])) for name in ("started", "finished", "status") if run.get(name)]
    return found


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return (
        {None: "not given", True: "yes", False: "no"}.get(value, str(value))
        if not isinstance(value, int) or isinstance(value, bool)
        else str(value)
    )


def _command(run: View) -> tuple[str, str]:
    """The command that repeats a run, without the name that is taken now; and what to know of it."""
    given = [str(part) for part in run.get("command", [])]
    start, note = "python scripts/compare.py", "Without --name, since that one is taken."
    if given and Path(given[0]).name in ("compare.py", "fit-vs-loop"):
        start, rest = (start if given[0].endswith(".py") else "fit-vs-loop"), given[1:]
    else:  # from Python, or by a process of a cluster
        rest = _arguments(run["options"])
        if not _is_nameable(run["options"]):
            return "", "It was started from Python, by compare.run with the options below and objects of its own."
    kept, skip = [], False
    for part in rest:
        if skip or part == "--name":
            skip = not skip
        elif part != "--resume" and not part.startswith("--name="):
            kept.append(part)
    return f"{start} {shlex.join(kept)}".strip(), "" if kept == rest else note


def _arguments(options: View) -> list[str]:
    """The command line that gives these options, where they are not the defaults."""
    arguments = []
    for name, value in options.items():
        if value == DEFAULTS.get(name) or value is None or value is False:
            continue
        values = [] if value is True else map(str, value) if isinstance(value, list) else [str(value)]
        arguments += [f"--{name.replace('_', '-')}", *values]
    return arguments


def _is_nameable(options: View) -> bool:
    """Whether experiment and trainers can be asked for by what is recorded of them."""
    named = (options["experiment"], EXPERIMENTS), *((trainer, TRAINERS) for trainer in options["trainers"])
    return all(name in known or is_file(name) or ":" in name for name, known in named)


# In a glance


def _glance(view: View) -> list[View]:
    """The other questions with an answer in a few words: id, question, answer, more."""
    first = view["comparisons"][0] if view["comparisons"] else None
    steps = first["training"].get("steps_compared", 0) if first else 0
    where = {"answer": first["where"] if first else "Not known yet", "more": ""}
    if first and first["training"]["verdict"] == "identical" and steps:
        where["more"] = f"weights equal after each of {steps:,} steps"
    elif first and first["training"].get("differing_variables"):
        count = len(first["training"]["differing_variables"])
        where["more"] = f"in {count} variable{'s' * (count > 1)}"
    why = {"answer": "Nothing to explain", "more": ""}
    if first and first["named"]:
        why["answer"] = ", ".join(dict.fromkeys(cause["id"] for cause in first["named"]))
        why["more"] = f"in {' and '.join(dict.fromkeys(c['side'] for c in first['named'] if c.get('side')))}"
    elif first and first["failure"]:
        side = first["failure"]["side"]
        why["answer"] = f"{side} cannot run" if side else "No trainer can run"
    elif first and view["word"] == "different":
        why |= {"answer": "No known cause", "more": "the evidence is told below"}
    elif first and view["word"] == "alike":
        why |= {"answer": "Rounding", "more": "measured with noise twins" if first["training"].get("noise") else ""}
    elif first and view["word"] == "inconclusive":
        why |= {"answer": "Too little evidence", "more": "what would tell is said below"}
    elif not first:
        why["answer"] = "Not known yet"
    return [
        {"id": "where", "question": "Where do they part?", **where},
        {"id": "why", "question": "Why?", **why},
        {"id": "reached", "question": "What did they reach?", **_reached(view)},
        {"id": "cost", "question": "What did they cost?", **_cost(view)},
        {"id": "run", "question": "What exactly was run?", **_what(view)},
    ]


def _reached(view: View) -> View:
    columns = [c for c in view["columns"] if c.startswith("val_")] or view["columns"]
    columns = [c for c in columns if "loss" not in c] or columns
    if not columns:
        return {
            "answer": "No numbers",
            "more": "nothing was trained to the end of an epoch"
            if view["scope"] != "check"
            else "the short check only",
        }
    name = columns[0]
    done = _done(view)
    epoch = min(done.values())
    values = {}
    for trainer in done:
        its = [mine.get(name, {}) for (who, _), mine in view["curves"].items() if who == trainer]
        found = [each[epoch] for each in its if epoch in each]
        if found:
            values[trainer] = f"{np.mean(found):.4g}"
    more = f"{name} after {epoch} epoch{'s' * (epoch > 1)}{', mean of seeds' * (view['seeds'] > 1)}"
    if len(set(values.values())) == 1 and len(values) > 1:
        return {"answer": f"{'both' if len(values) == 2 else 'all'} {next(iter(values.values()))}", "more": more}
    return {"answer": ", ".join(f"{who} {value}" for who, value in values.items()), "more": more}


def _done(view: View) -> dict[str, int]:
    """By trainer, the last epoch that it ended, with every seed that it was trained with."""
    done: dict[str, int] = {}
    for (trainer, _), mine in view["curves"].items():
        done[trainer] = min(done.get(trainer, max(mine["epoch"])), max(mine["epoch"]))
    return done


def _cost(view: View) -> View:
    if not view["costs"]:
        return {"answer": "Nothing to tell", "more": ""}
    told = ", ".join(f"{each['name']} {each['epoch'] or each['first_epoch']}" for each in view["costs"])
    return {"answer": told, "more": "per epoch"}


def _what(view: View) -> View:
    options, versions = view["run"]["options"], view["run"].get("versions", {})
    strategy = view["run"].get("strategy", {})
    replicas = strategy.get("replicas")
    size = f", {replicas} replica{'s' * (replicas > 1)}" if replicas else ""
    more = f"TensorFlow {versions['tensorflow']}, Keras {versions['keras']}" if versions else ""
    return {"answer": f"{options['experiment']} under {options['strategy']}{size}", "more": more}


# The list of runs


def summary_of(folder: Path) -> View:
    """One line of the list of runs.

    Raises:
        RecordError: when ``run.json`` or ``verdict.json`` is damaged.
    """
    run = _read(folder / "run.json")
    verdict = _read(folder / "verdict.json") if (folder / "verdict.json").exists() else {}
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
    import base64

    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
