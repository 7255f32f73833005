"""One comparison of a run, as its page shows it; imports no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compare.check.causes import CATALOGUE
from compare.check.causes.base import REPORTING
from compare.records.model import INITIAL
from compare.reporting import sentences
from compare.reporting.run_files import RunFiles
from compare.verdict.findings import Finding
from compare.verdict.model import Comparison, DifferingVariable


def variables(entry: Comparison) -> list[DifferingVariable]:
    """The variables that differ where the two diverge: the largest gap first; what is not a number is larger."""
    return sorted(entry.training.differing_variables, key=lambda each: -math.inf if each.gap is None else -each.gap)


def before(entry: Comparison) -> str:
    """What is known of the steps before the first difference; empty if there are none."""
    first, alone = entry.training.first_difference, any(each.alone for each in entry.not_finite)
    if not first or not first.step:
        return ""
    equal = first.equal_before
    if equal and (first.epoch, first.step) == (1, 1):
        return "Both start from equal weights."
    if alone and not equal:
        return "Before that, all weights are finite on both sides, but not equal, bit for bit."
    return f"Before that, {'all weights are equal, bit for bit' if equal else 'the weights differ by rounding only'}."


def in_this_run(cause: Finding, entry: Comparison, files: RunFiles) -> str:
    """What is seen of a cause in the run's own numbers; empty if nothing is."""
    if cause.id not in CATALOGUE or files.scope == "check":
        return ""
    return _numbers(entry, cause.metrics, files) if CATALOGUE[cause.id].kind == REPORTING else _weights(entry, files)


def basis(entry: Comparison, files: RunFiles) -> list[tuple[str, str]]:
    """What the verdict is based on: (heading, sentence) pairs."""
    if entry.failure:
        return []  # the sentence says it
    weights = [("Weights", "Not seen: only logged numbers were compared.")]
    if entry.weights_seen:
        weights = _basis_of_weights(entry, files.scope)
    causes = [_cause_in_short(cause, entry) for cause in entry.causes]
    measured = [("Measured", f"{text}.") for text in entry.evidence or () if sentences.only_beside(entry)]
    based = [*measured, *causes, *weights, *_basis_of_numbers(entry, files.scope)]
    if (study := entry.study) and entry.verdict != "identical":
        text = f"The verdict on the paired differences of {study.seeds} seeds is {study.verdict}; see below."
        based.append(("Seeds", text))
    return based


def _cause_in_short(cause: Finding, entry: Comparison) -> tuple[str, str]:
    """What the section on causes says at length, for who reads no further."""
    of = sentences.beside(entry, cause).replace("the reported numbers", "numbers")
    what = f"Cause, {of}" if of else "Cause"
    where = f" ({cause.source.file}, line {cause.source.line})" if cause.source and not cause.source.shows else ""
    return what, f"{cause.id}: {cause.evidence}{where}."


def _basis_of_weights(entry: Comparison, scope: str) -> list[tuple[str, str]]:
    """What was compared of the weights; the sentence above says how large the gap is."""
    basis, training = [], entry.training
    steps = training.steps_compared
    if scope == "check":
        basis.append(("Method", "A few small batches were trained for two epochs."))
    elif training.steps_made and steps == 1:
        basis.append(("Weights", "A hash of all weights on every replica was compared once, at the end."))
    elif training.steps_made:
        how = f"A hash of all weights on every replica was compared after each of the {steps:,} calls"
        basis.append(("Weights", f"{how}, which made {training.steps_made:,} optimizer steps."))
    elif steps:
        how = "bit for bit, by a hash of all weights on every replica after each step"
        basis.append(("Weights", f"{steps:,} optimizer step{' was' if steps == 1 else 's were'} compared {how}."))
    elif training.first_difference is not None and training.first_difference.step == INITIAL:
        basis.append(("Weights", "Those before the first step differ, so none were compared after it."))
    elif training.first_difference is not None or training.verdict == "identical":
        basis.append(("Weights", "The weights were compared bit for bit at the end of every epoch."))
    if text := sentences.silent(entry):
        basis.append(("No steps", text))
    return basis


def _basis_of_numbers(entry: Comparison, scope: str) -> list[tuple[str, str]]:
    """Which reported numbers were compared, and how they differ."""
    basis, reporting = [], entry.reporting
    metrics = reporting.metrics
    alone = {name: m.not_reported_by for name, m in metrics.items() if m.not_reported_by}
    apart = any(m.max_gap for m in metrics.values())
    if reporting.verdict == "identical" and metrics and not apart:
        renamed = {name: f" (reported as {m.reported_as})" for name, m in metrics.items() if m.reported_as}
        compared = [name + renamed.get(name, "") for name in metrics if name not in alone]
        basis.append(("Numbers", f"{', '.join(compared)}: equal in every epoch, bit for bit."))
    elif metrics:
        gaps, small = (
            [f"{name} {m.max_gap:.2g}" for name, m in metrics.items() if m.max_gap and m.only_rounding is rounding]
            for rounding in (False, True)
        )
        weights_differ = entry.training.verdict == "different"
        explained = "; the different weights explain them" if weights_differ else "; no more than rounding"
        judged = {
            "different": f"; the weights do not explain {'all of ' * weights_differ}them",
            "inconclusive": "; more than rounding, and they could not be judged",
            "alike": explained,
            "identical": explained,
        }
        if gaps or small:
            text = f"Largest differences: {', '.join(gaps or small)}{judged.get(reporting.verdict or '', '')}."
            rest = f" By no more than rounding differ {', '.join(small)}." if gaps and small else ""
            basis.append(("Numbers", text + rest))
    for who in dict.fromkeys(alone.values()):
        names = ", ".join(name for name, lacking in alone.items() if lacking == who)
        how = "was not seen to report" if scope == "scripts" else "does not report"
        basis.append(("Not compared", f"{names}: {who} {how} {'them' if ',' in names else 'it'}."))
    if how := sentences.unreported(entry, scope):
        basis.append(("To add", f"{how}."))
    return basis


# What a cause did in the run itself: the evidence in ``verdict.json`` comes from the short check, on batches of its own


def _weights(entry: Comparison, files: RunFiles) -> str:
    """Where the weights diverge, how large that batch is, and which variable differs most."""
    training = entry.training
    first = training.first_difference
    if not first or not first.step:
        return ""
    batch = _short_batch(first.step, files)
    gaps = [(variable.gap, variable.name) for variable in training.differing_variables if variable.gap is not None]
    most = max(gaps, key=lambda each: each[0], default=None)
    more = "first differ" if first.equal_before else "differ by more than rounding"
    text = f"The weights {more} after {sentences.step_of(first)}{batch}"
    if most is not None:
        text += f"; there {most[1]} differs most, by about {most[0]:.1g} (Euclidean norm)"
    return f"{text}."


def _short_batch(step: int, files: RunFiles) -> str:
    """A clause that says that the batch of a step is shorter than others; empty if it is not."""
    count = files.run.get("data", {}).get("training_examples")
    size = files.run.get("strategy", {}).get("global_batch_size")
    if not count or not size or not count % size or step != count // size + 1:
        return ""
    return f", the last of the epoch, whose batch has {count % size} examples instead of {size}"


def _numbers(entry: Comparison, concerned: Sequence[str], files: RunFiles) -> str:
    """What both sides reported where a metric differs most; of those that a cause concerns, if they are known."""
    sides = [] if entry.against else [entry.reference or files.names[0], entry.candidate]
    seed = files.rows[0]["seed"] if entry.seed is None and files.rows else str(entry.seed)
    rows = {(row["trainer"], int(row["epoch"])): row for row in files.rows if row["seed"] == seed}
    metrics = entry.reporting.metrics
    named = {name: metric for name, metric in metrics.items() if name in concerned}
    shown = []
    for name, metric in (named or metrics).items():
        values = {side: rows.get((side, metric.epoch), {}).get(name) for side in sides}
        if metric.max_gap != 0 and len(values) == 2 and all(values.values()):
            told = " and ".join(f"{side} {value}" for side, value in values.items())
            shown.append(f"{name} of epoch {metric.epoch}: {told}")
    return f"Reported where they differ most: {'; '.join(shown)}." if shown else ""
