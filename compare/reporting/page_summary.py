"""The summary of a run's page: each question with its answer in a few words; imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compare.naming import label
from compare.reporting.run_files import RunFiles
from compare.reporting.sentences import advice_on_numbers, where
from compare.verdict.model import Comparison


def summary(files: RunFiles, costs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, tuple[str, str]]]:
    """The questions after "Do they train alike?", answered for the worst comparison.

    Returns:
        The id of the section with the long answer, the question, and the short answer with a detail, if there is one.
    """
    first = files.comparisons[0] if files.comparisons else None
    return [
        ("where", "Where do they diverge?", _where(first)),
        ("why", "Why?", _why(first, files.verdict_word)),
        ("reached", "What results did they reach?", results(files)),
        ("cost", "What did they cost?", _costs(costs)),
        ("run", "What exactly was run?", _run(files.run)),
    ]


def _where(first: Comparison | None) -> tuple[str, str]:
    if first is None:
        return "Not known yet", ""
    training, more = first.training, ""
    steps, count = training.steps_compared, len(training.differing_variables)
    if training.verdict == "identical":
        more = f"weights equal after each of {steps:,} {'calls' if training.steps_made else 'steps'}" if steps else ""
    elif count:
        more = f"in {count} variable{'s' * (count > 1)}"
    return where(first), more


def _why(first: Comparison | None, verdict: str) -> tuple[str, str]:
    if first is None:
        return "Not known yet", ""
    if first.causes:
        sides = dict.fromkeys(cause.side for cause in first.causes if cause.side)
        more = f"in {' and '.join(sides)}" if sides else ""
        return ", ".join(dict.fromkeys(cause.id for cause in first.causes)), more
    if failure := first.failure:
        return f"{failure.side} cannot run" if failure.side else "No trainer can run", ""
    if not first.weights_seen:
        return "Unknown: curves only", "logs do not show why"
    if verdict == "different":
        more = "see the evidence below" if first.evidence else ""
        return "No known cause", "only reported numbers differ" if advice_on_numbers(first) else more
    if verdict == "alike":
        return "Rounding", "measured with noise twins" if first.training.noise else ""
    if verdict == "inconclusive":
        return "Too little evidence", "see below for the reason"
    return "Nothing to explain", ""


def results(files: RunFiles) -> tuple[str, str]:
    """What all trainers reached in the last epoch that all finished, and which metric and epoch that is.

    Of the metrics that most trainers report, one of validation is preferred, and one that is not a loss.
    """
    columns = sorted(files.columns, key=lambda column: (not column.startswith("val_"), "loss" in column))
    if not columns:
        return "No numbers", "short check only" if files.scope == "check" else "no epoch was finished"
    finished = files.finished_epochs
    epoch = min(finished.values())
    aliases = {
        (each.candidate, name): gap.reported_as
        for each in files.comparisons
        for name, gap in each.reporting.metrics.items()
        if gap.reported_as
    }

    def reached(name: str) -> dict[str, str]:
        values = {}
        for trainer in finished:
            own = aliases.get((trainer, name), name)
            seeds = [curves.get(own, {}) for (who, _), curves in files.curves.items() if who == trainer]
            reported = [values_of_seed[epoch] for values_of_seed in seeds if epoch in values_of_seed]
            if reported:
                values[trainer] = f"{np.mean(reported):.4g}"
        return values

    name = max(columns, key=lambda name: len(reached(name)))
    values = reached(name)
    more = f"{name} after {epoch} epoch{'s' * (epoch > 1)}{', mean of seeds' * (files.seeds > 1)}"
    if len(set(values.values())) == 1 and len(values) > 1:
        return f"{'both' if len(values) == 2 else 'all'} {next(iter(values.values()))}", more
    return ", ".join(f"{trainer} {value}" for trainer, value in values.items()), more


def _costs(costs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    if not costs:
        return "Unknown", ""
    few = {row["spread"] for row in costs if row["others"]["total"]} == {"one epoch only"}
    more = "per epoch" if any(row["epoch"] for row in costs) else "for the first epoch only, which includes tracing"
    more += ", from one epoch only" * few
    return ", ".join(
        f"{row['name']} {row['epoch'] or row['others']['first epoch'] or 'unknown'}" for row in costs
    ), more


def _run(run: Mapping[str, Any]) -> tuple[str, str]:
    options, versions = run["options"], run.get("versions", {})
    replicas = run.get("strategy", {}).get("replicas")
    size = f", {replicas} replica{'s' * (replicas > 1)}" if replicas else ""
    more = f"TensorFlow {versions['tensorflow']}, Keras {versions['keras']}" if versions else ""
    if options.get("scripts"):
        return f"{' and '.join(options['scripts'])}{size}", more
    if options.get("logs"):
        return "Nothing", f"logs were read: {' '.join(options['logs'])}"
    return f"{label(options['experiment'])} under {options['strategy']}{size}", more
