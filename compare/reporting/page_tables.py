"""The tables of a run's page: metrics per epoch, costs and options, and the command that repeats the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare.modes import Study, Training
from compare.naming import is_file
from compare.option import flag, options_of
from compare.options import OPTIONS, as_json, mode_of
from compare.reporting.numbers import signed_gap
from compare.reporting.run_files import RunFiles
from compare.request import EXPERIMENTS, RESULTS, TRAINERS, Task

DEFAULTS = as_json(Training(keras=3))


# Metrics per epoch


def epoch_rows(files: RunFiles) -> tuple[list[str], dict[int, list[tuple[str, bool, Sequence[str]]]]]:
    """The columns, and by epoch a line for each trainer's metrics as in ``metrics.csv``, and one for their gaps.

    A line has the trainer's name; whether it has the gaps to the reference; the cells. Lines without a number are left
    out. What a candidate reports by another name is in the column of the reference's.
    """
    names, renamed = files.names, {(trainer, other) for (trainer, _), other in files.other_names.items()}
    columns = [c for c in files.columns if any((name, c) not in renamed and files.values(name, c) for name in names)]
    rows = {(row["trainer"], int(row["epoch"])): row for row in files.rows}
    curves = {trainer: values for (trainer, _), values in files.curves.items()}
    table: dict[int, list[tuple[str, bool, Sequence[str]]]] = {}
    for epoch in sorted({epoch for _, epoch in rows}):
        lines = table.setdefault(epoch, [])
        for name in [name for name in names if (name, epoch) in rows]:
            own = [files.other_names.get((name, column), column) for column in columns]
            lines.append((name, False, [rows[name, epoch][column] for column in own]))
            if name != names[0] and (names[0], epoch) in rows:
                expected = (curves[names[0]].get(column, {}).get(epoch) for column in columns)
                actual = (curves[name].get(column, {}).get(epoch) for column in own)
                lines.append((name, True, [*map(signed_gap, expected, actual)]))
    return columns, {epoch: [line for line in lines if any(line[2])] for epoch, lines in table.items()}


# Results of a study, by seed


def seed_columns(files: RunFiles) -> tuple[list[str], dict[int, list[str]]]:
    """What every trainer reported with each seed in the last epoch that all finished: the headings, the cells by seed.

    The metrics are those that the study tests; a candidate's value is followed by its gap to the reference.
    """
    epoch = min(files.finished_epochs.values(), default=0)
    reference = files.names[0]
    columns = [(name, metric) for metric in files.tested for name in files.names]
    headings = [text for name, metric in columns for text in (f"{name} {metric}", "gap")[: 2 - (name == reference)]]
    cells: dict[int, list[str]] = {}
    texts = {(row["trainer"], int(row["seed"]), int(row["epoch"])): row for row in files.rows}
    for seed in dict.fromkeys(seed for _, seed in files.curves):
        row = cells.setdefault(seed, [])
        for name, metric in columns:
            row.append(texts.get((name, seed, epoch), {}).get(metric, ""))
            if name != reference:
                sides = (files.curves.get((side, seed), {}).get(metric, {}) for side in (reference, name))
                row.append(signed_gap(*(values.get(epoch) for values in sides)))
    return headings, cells


# Costs


def cost_rows(files: RunFiles) -> list[dict[str, Any]]:
    """The costs of every trainer whose time was measured, as text; of two scripts, of both if one was.

    ``epoch`` is the median duration of the later epochs if there are several (one alone says nothing about another
    trainer's), and ``spread`` the shortest and the longest of them;
    ``own_peak`` is whether the peak memory covers only this trainer's training, and ``others`` are by heading.
    """
    table = []
    measured = any(each["seconds"] for each in files.curves.values())
    for name in files.names:
        runs = files.values(name, "seconds").values()
        if not runs and not (measured and files.scope == "scripts"):
            continue
        first = [seconds[1] for seconds in runs if 1 in seconds]
        later = [v for seconds in runs for e, v in seconds.items() if e > 1]
        speeds = files.values(name, "examples_per_second").values()
        rates = [v for speed in speeds for e, v in speed.items() if e > 1 and len(later) > 1]
        costs = files.costs.get(name, {})
        peak = costs.get("peak_memory_bytes")
        table.append(
            {
                "name": name,
                "epoch": f"{np.median(later):,.1f} s" if len(later) > 1 else "",
                "spread": _spread(later) if runs else "not measured",
                "own_peak": costs.get("own_peak", True),
                "others": {
                    "first epoch": f"{np.median(first):,.1f} s" if first else "",
                    "examples/s": f"{np.median(rates):,.0f}" if rates else "",
                    "first step": _duration(costs.get("first_step_seconds")),
                    "later step": _duration(costs.get("step_seconds")),
                    "peak memory": f"{peak / 1e9:.2f} GB" if peak else "",
                    "total": f"{sum(v for seconds in runs for v in seconds.values()):,.1f} s" if runs else "",
                },
            }
        )
    return table


def cost_headings(costs: Sequence[Mapping[str, Any]], scope: str) -> list[str]:
    """The headings of the costs beside that of the later epochs: of two scripts, only of those that are known."""
    headings = list(costs[0]["others"]) if costs else []
    return [name for name in headings if scope != "scripts" or any(row["others"][name] for row in costs)]


def _spread(seconds: Sequence[float]) -> str:
    """The shortest and the longest of the later epochs, or that there is no more than one."""
    if not seconds:
        return "first epoch only"
    if len(seconds) == 1:
        return "one later epoch only"
    return f"{min(seconds):,.1f} to {max(seconds):,.1f} s, {len(seconds)} epochs"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def parallel_note(run: Mapping[str, Any]) -> str:
    """A sentence that says that trainings ran in parallel, if they did."""
    parallel = run.get("parallel") or run.get("study") or {}
    processes, threads = parallel.get("processes", 1), parallel.get("threads_per_process", 1)
    if processes < 2:
        return ""
    return (
        f"{processes} trainings ran in parallel, each in a process with {threads} thread{'s' * (threads > 1)}, "
        "so these times are for a shared processor."
    )


# Options and the command


def option_rows(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The options, devices, data set and versions of a run: (name, value) pairs."""
    shown = {name: value for name, value in run["options"].items() if _has_meaning(name, run["options"])}
    rows = [(flag(name), _value(value)) for name, value in shown.items()]
    strategy, data, versions = run.get("strategy", {}), run.get("data", {}), run.get("versions", {})
    if strategy:
        rows += [("strategy class", strategy["class"]), ("replicas in sync", " and ".join(map(str, _sizes_of(run))))]
        rows += [("workers", str(strategy["workers"]))]
        if strategy["devices"]:  # not known of scripts
            rows += [("global batch size", str(strategy["global_batch_size"]))]
            rows += [("devices", ", ".join(strategy["devices"]))]
    if data:
        parts = ("training", "validation")
        rows += [("data set", str(data["source"]))]
        rows += [(f"{part} examples", f"{data[f'{part}_examples']:,}") for part in parts]
        rows += [(f"{part} data, SHA-256", str(data[f"{part}_sha256"])) for part in parts]
    for seed, digest in run.get("initial_weights_sha256", {}).items():
        rows.append((f"initial weights of seed {seed}, SHA-256", digest))
    rows += [(f"version of {name}", str(value)) for name, value in versions.items()]
    machine = run.get("machine", {})
    if machine:
        rows += [("platform", machine["platform"]), ("processors", str(machine["processors"]))]
    threads = {name: str(value or "chosen by TensorFlow") for name, value in run.get("threads", {}).items()}
    rows += [(f"threads, {name.replace('_', '-')}", value) for name, value in threads.items()]
    rows += [(name, str(run[name])) for name in ("started", "finished") if run.get(name)]
    return rows


def compared_options(run: Mapping[str, Any]) -> dict[str, str]:
    """The rows of options that change what is compared, without those that the list of runs has columns for."""
    shown = ("experiment", "trainers", "scripts", "logs", "strategy", "replicas", "workers", "epochs", "check")
    timing = ("parallel", "sequential")
    changing = {
        flag(name)
        for name, each in OPTIONS.items()
        if name not in shown + timing and not each.may_change and each.kind is not Path and each.group != RESULTS
    }
    return {name: value for name, value in option_rows(run) if name in changing}


def replicas_of(run: Mapping[str, Any]) -> str:
    """The number of replicas, or both if a comparison has two; empty if it is not known."""
    sizes = _sizes_of(run)
    return f"{' and '.join(map(str, sizes))} replica{'s' * (max(sizes) > 1)}" if sizes else ""


def _sizes_of(run: Mapping[str, Any]) -> list[int]:
    strategy = run.get("strategy") or {}
    return strategy.get("sizes") or [each for each in [strategy.get("replicas")] if each]


def default_row(name: str) -> str:
    """The value of a row of ``option_rows`` if the option was not given; ``unknown`` for what is no option."""
    option = name.removeprefix("--").replace("-", "_")
    return _value(DEFAULTS.get(option)) if name.startswith("--") else "unknown"


def _has_meaning(name: str, options: Mapping[str, Any]) -> bool:
    """Whether an option means something in a run's mode, or in another one that trains as it does."""
    mode = mode_of(options)
    known = {*options_of(Training), *options_of(Study), "check"} if issubclass(mode, Task) else options_of(mode)
    return name in known or name not in OPTIONS


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def repeat_command(run: Mapping[str, Any]) -> tuple[str, str]:
    """The command that repeats a run, without its ``--name``, which is taken; and a note for the reader."""
    given = [str(part) for part in run.get("command", [])]
    program, note = "python scripts/compare.py", "The option --name is omitted because that name is taken."
    if given and Path(given[0]).name in ("compare.py", "fit-vs-loop"):
        program, arguments = (program if given[0].endswith(".py") else "fit-vs-loop"), given[1:]
    else:  # started from Python, or by a process of a cluster
        arguments = _arguments(run["options"])
        if not _is_nameable(run["options"]):
            return "", "The run was started from Python: compare.run with the options below and objects of the caller."
    kept, skip = [], False
    for part in arguments:
        if skip or part == "--name":
            skip = not skip
        elif part != "--resume" and not part.startswith("--name="):
            kept.append(part)
    named = any(part.partition("=")[0] == "--name" for part in arguments)
    return f"{program} {shlex.join(kept)}".strip(), note if named else ""


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """The command-line arguments for the options that differ from their defaults."""
    arguments = []
    for name, value in options.items():
        if value == DEFAULTS.get(name) or value is None or value is False or name == "script_arguments":
            continue
        values = [] if value is True else map(str, value) if isinstance(value, list) else [str(value)]
        arguments += [flag(name), *values]
    rest = options.get("script_arguments")
    return [*arguments, "--", *rest] if rest else arguments


def _is_nameable(options: Mapping[str, Any]) -> bool:
    """Whether the experiment and the trainers can be given on the command line by their recorded names."""
    named = (options["experiment"], EXPERIMENTS), *((trainer, TRAINERS) for trainer in options["trainers"])
    return all(name in known or is_file(name) or ":" in name for name, known in named)
