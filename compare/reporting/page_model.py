"""A run's files as the words and figures that its page shows; no TensorFlow."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from compare.check.causes import CATALOGUE
from compare.options import EXPERIMENTS, Options, is_file
from compare.records import COSTS, RecordError, read_json, read_metrics, read_verdict
from compare.records.metrics_csv import KEY_COLUMNS, TIME_COLUMNS
from compare.reporting import pictures
from compare.reporting.plots import Curves, read_curves
from compare.reporting.sentences import difference, sentence, truth_sentence, where
from compare.verdict import FROM_BEST, absolute_gap

TRAPS = Path(__file__).resolve().parents[2] / "reports" / "traps" / "index.html"
"""The stories of all causes, where the toolkit was not installed without them."""
TRAINERS = ("fit", "loop", "tutorial")
"""The built-in trainers' names, as in ``compare.app.loading``."""
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


def view_of(folder: Path, beside: Path | None = None) -> View:
    """All that the page of a run shows.

    Args:
        folder: the run's.
        beside: the folder that the page is in, by default the run's own.

    Raises:
        RecordError: when the folder is not a run's, or one of its files is damaged.
    """
    run = read_object(folder / "run.json")
    if not isinstance(run.get("options"), dict):
        raise RecordError(f"{folder / 'run.json'}: damaged, it has no options")
    verdict = read_verdict(folder / "verdict.json") if (folder / "verdict.json").exists() else {}
    rows = read_metrics(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    try:
        return _view(folder, beside or folder, run, verdict, rows)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{folder}: run.json or verdict.json is damaged ({type(error).__name__}: {error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object.

    Raises:
        RecordError: when it cannot be read, or is none.
    """
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
        "costs.json": read_object(folder / COSTS) if (folder / COSTS).exists() else {},
        "report": quote(os.path.relpath(folder / "report.html", beside)),
    }
    twins = [read_metrics(path) for path in sorted(folder.glob("twins/*/metrics.csv"))]
    view["noise"] = [read_curves(each) for each in twins if each]
    view["comparisons"] = [
        _comparison(entry, verdict["reference"], folder, beside, view)
        for entry in sorted(entries, key=lambda entry: -FROM_BEST.index(entry["verdict"]))
    ]
    view["timeline"], view["unit"] = pictures.timeline(folder, verdict, view), pictures.unit_of(entries)
    view["truth"] = truth_sentence(verdict["truth"]) + "." if verdict.get("truth") else ""
    view["charts"] = [
        (
            pictures.metric_chart(view, name),
            pictures.gap_chart(view, name) if len(names) > 1 and view["seeds"] <= 1 else None,
        )
        for name in metrics
    ]
    view["table"] = _table(rows, names, columns) if view["seeds"] <= 1 else []
    view["costs"], view["shared"] = _costs(view), _shared(run)
    view["seconds"] = pictures.seconds_chart(view) if rows else None
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
                "evidence": _as_sentence(cause["evidence"]),
                "of_reference": cause.get("side") == reference,
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
        "where": where(entry),
        "named": causes,
        "evidence": [_as_sentence(text) for text in entry.get("evidence", [])],
        "not_applicable": entry.get("not_applicable", []),
        "failure": entry.get("failure"),
        "study": _study(entry["study"]) if entry.get("study") else None,
    }


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _evidence(entry: View, view: View) -> list[tuple[str, str]]:
    """What the verdict rests on: (heading, sentence) each."""
    training, reporting = entry["training"], entry["reporting"]
    found: list[tuple[str, str]] = []
    steps = training.get("steps_compared", 0)
    if entry.get("failure"):
        return [("What happened", _as_sentence(entry["failure"]["error"]))]
    if view["scope"] == "check":
        found.append(
            ("How it was compared", "A few small batches were trained, on one replica and on two if there are.")
        )
    elif "steps_made" in training:
        how = f"after each of the {steps:,} calls a hash of all weights, on every replica, was compared"
        found.append(("Weights", f"{training['steps_made']:,} optimizer steps were made, several in one call; {how}."))
    elif steps:
        how = "a hash of all weights, on every replica, after each of them"
        found.append(("Weights", f"{steps:,} optimizer steps were compared, bit for bit: {how}."))
    elif training["first_difference"] is not None or training["verdict"] == "identical":
        found.append(("Weights", "They were compared bit for bit at the end of every epoch."))
    gap = training.get("max_weight_gap")
    if gap is not None and steps:
        equal = "No weight differs at the end of any epoch." if gap == 0 else ""
        found.append(("Largest gap", equal or f"At the ends of epochs, a single weight differs by up to {gap:.3g}."))
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
    alone = {name: m["not_reported_by"] for name, m in metrics.items() if m.get("not_reported_by")}
    if reporting["verdict"] == "identical" and metrics:
        compared = [_named(name, m) for name, m in metrics.items() if name not in alone]
        found.append(("Numbers", f"{', '.join(compared)}: equal in every epoch, to the last bit."))
    elif metrics:
        gaps = [f"{name} {m['max_gap']:.1e}" for name, m in metrics.items() if m["max_gap"]]
        worst = ", ".join(gaps)
        judged = {"different": ", and not what its weights give", "alike": ", no more than rounding"}
        if worst:
            found.append(("Numbers", f"Up to this far apart: {worst}{judged.get(reporting['verdict'] or '', '')}."))
    for who in dict.fromkeys(alone.values()):
        names = ", ".join(name for name, lacking in alone.items() if lacking == who)
        found.append(("Not compared", f"{names}: {who} does not report {'them' if ',' in names else 'it'}."))
    if entry.get("study"):
        study = entry["study"]
        found.append(("Seeds", f"{study['seeds']} seeds: {study['verdict']} by paired differences, see below."))
    return found


def _named(name: str, metric: Mapping[str, Any]) -> str:
    return f"{name} (reported as {metric['reported_as']})" if metric.get("reported_as") else name


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


# What they reached, and what it cost


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


def _shared(run: View) -> str:
    """That times are those of runs which shared the processor, if they did."""
    found = run.get("parallel") or run.get("study") or {}
    processes, threads = found.get("processes", 1), found.get("threads_per_process", 1)
    if processes < 2:
        return ""
    return (
        f"{processes} runs were made at the same time, each in a process with {threads} thread{'s' * (threads > 1)}: "
        "these times are of a shared processor, not of one trainer alone."
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


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
        where["more"] = (
            f"weights equal after each of {steps:,} {'calls' if 'steps_made' in first['training'] else 'steps'}"
        )
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
