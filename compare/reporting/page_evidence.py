"""What a cause did in the run itself, in the run's own numbers; imports no TensorFlow.

The evidence in ``verdict.json`` comes from the short check, which trains a few small batches of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compare.check.causes.base import REPORTING
from compare.reporting.run_files import RunFiles
from compare.verdict.model import Comparison, Finding


def in_this_run(entry: Comparison, kind: str, cause: Finding, files: RunFiles, reference: str) -> str:
    """What of a cause is seen in the run, as sentences; empty if nothing is."""
    if files.scope == "check":
        return ""
    if kind == REPORTING:
        return _numbers(entry, cause.metrics, files, reference)
    return " ".join(filter(None, [_weights(entry, files), _last_epoch(entry, files, reference)]))


def _weights(entry: Comparison, files: RunFiles) -> str:
    """Where the weights diverge, how large that batch is, and which variable differs most."""
    training = entry.training
    first = training.first_difference
    if not first or not first.step:
        return ""
    where = f"step {first.step:,} of epoch {first.epoch}"
    batch = _short_batch(first.step, files)
    gaps = [(variable.gap, variable.name) for variable in training.differing_variables if variable.gap is not None]
    most = max(gaps, key=lambda each: each[0], default=None)
    text = f"The weights first differ after {where}{batch}"
    if most is not None:
        text += f"; there {most[1]} differs most, by {most[0]:.2g} (Euclidean norm)"
    gap = training.max_weight_gap
    return f"{text}. At epoch ends, individual weights differ by up to {gap:.2g}." if gap else f"{text}."


def _short_batch(step: int, files: RunFiles) -> str:
    """A clause that says that the batch of a step is shorter than others; empty if it is not."""
    count, size = (
        files.run.get("data", {}).get("training_examples"),
        files.run.get("strategy", {}).get("global_batch_size"),
    )
    if not count or not size or not count % size or step != count // size + 1:
        return ""
    return f", the last of the epoch, whose batch has {count % size} examples instead of {size}"


def _last_epoch(entry: Comparison, files: RunFiles, reference: str) -> str:
    """What both sides reported for the last epoch that both finished."""
    sides = _rows(entry, files, reference)
    epochs = set.intersection(*(set(rows) for rows in sides.values())) if len(sides) == 2 else set()
    if not epochs:
        return ""
    last = max(epochs)
    names = [name for name in ("val_loss", "loss") if all(rows[last].get(name) for rows in sides.values())][:1]
    names += [name for name in files.columns if name.startswith("val_") and name not in names][:1]
    shown = [
        f"{name} is {' and '.join(f'{rows[last][name]} with {side}' for side, rows in sides.items())}"
        for name in names
        if all(rows[last].get(name) for rows in sides.values())
    ]
    return f"After epoch {last}, {'; '.join(shown)}." if shown else ""


def _numbers(entry: Comparison, concerned: Sequence[str], files: RunFiles, reference: str) -> str:
    """What both sides reported where a metric differs most; of those that a cause concerns, if they are known."""
    sides = _rows(entry, files, reference)
    metrics = entry.reporting.metrics
    named = {name: metric for name, metric in metrics.items() if name in concerned}
    shown = []
    for name, metric in (named or metrics).items():
        values = {side: rows.get(metric.epoch, {}).get(name) for side, rows in sides.items()}
        if metric.max_gap != 0 and len(values) == 2 and all(values.values()):
            told = " and ".join(f"{side} {value}" for side, value in values.items())
            shown.append(f"{name} of epoch {metric.epoch}: {told}")
    return f"Reported where they differ most: {'; '.join(shown)}." if shown else ""


def _rows(entry: Comparison, files: RunFiles, reference: str) -> dict[str, dict[int, Mapping[str, str]]]:
    """The rows of ``metrics.csv`` of both sides by epoch; of the seed that was compared step by step."""
    seed = str(entry.seed) if entry.seed is not None else files.rows[0]["seed"] if files.rows else "0"
    names = [] if entry.against else [reference, entry.candidate]
    return {
        name: {int(row["epoch"]): row for row in files.rows if row["trainer"] == name and row["seed"] == seed}
        for name in names
    }
