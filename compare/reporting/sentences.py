"""A verdict in one sentence that a stranger understands, from the content of ``verdict.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compare.verdict import FROM_BEST


def sentences(verdict: Mapping[str, Any]) -> list[str]:
    """What ``verdict.json`` says of each candidate, in words, the worst first."""
    worst_first = sorted(verdict.get("comparisons", ()), key=lambda each: -FROM_BEST.index(each["verdict"]))
    return [sentence(comparison, verdict["reference"]) for comparison in worst_first]


def sentence(comparison: dict[str, Any], reference: str) -> str:
    """What one comparison found, in words.

    Args:
        comparison: one entry of ``comparisons`` in ``verdict.json``.
        reference: the reference trainer's name.
    """
    candidate, training = comparison["candidate"], comparison["training"]
    if comparison.get("against"):
        reference = f"{candidate} of the recorded run {comparison['against']}"
    if comparison.get("failure"):
        failure = comparison["failure"]
        who = f"{failure['side']} cannot run" if failure["side"] else "no trainer can run"
        why = f"{who}: {failure['error']}; {failure['remedy']}"
        return f"{candidate} and {reference} cannot be compared, since {why}"
    if comparison.get("study") and training["verdict"] != "identical":
        return _study(comparison, reference)
    if comparison["verdict"] == "identical":
        numbers = _numbers(comparison["reporting"])
        seeds = f", for each of {comparison['study']['seeds']} seeds" if comparison.get("study") else ""
        return (
            f"{candidate} trains exactly like {reference}{seeds}: every weight is equal, bit for bit, "
            f"{_when(training)}, and {numbers}"
        )
    if training["verdict"] == "alike" and comparison["reporting"]["verdict"] != "different":
        return f"{candidate} trains like {reference}, up to rounding: {_parting(training)}{_noise(training)}"
    if training["verdict"] == "different":
        fault = _fault(comparison, reference)
        return f"{candidate} does not train like {reference}: {_parting(training)}{_noise(training)}{fault}"
    if training["verdict"] == "identical" and comparison["reporting"]["verdict"] == "alike":
        return (
            f"{candidate} trains exactly like {reference}: every weight is equal, bit for bit, "
            f"{_when(training)}; the reported numbers differ by no more than rounding: "
            f"{_metrics(comparison['reporting']['metrics'])}"
        )
    if training["verdict"] == "identical":
        return (
            f"{candidate} trains exactly like {reference}, but reports other numbers: "
            f"{_metrics(comparison['reporting']['metrics'])}; the weights are equal, bit for bit"
        )
    if training["verdict"] == "alike":
        return (
            f"{candidate} trains like {reference}, up to rounding, but reports other numbers than its weights give: "
            f"{_parting(training)}{_noise(training)}"
        )
    return f"whether {candidate} trains like {reference} cannot be told: {training.get('reason', '')}"


def _numbers(reporting: Mapping[str, Any]) -> str:
    """What is said of the reported numbers where all that were compared are equal."""
    metrics = reporting["metrics"]
    alone = {name: gap["not_reported_by"] for name, gap in metrics.items() if gap.get("not_reported_by")}
    other = [f"{name} (reported as {gap['reported_as']})" for name, gap in metrics.items() if gap.get("reported_as")]
    if not reporting["verdict"]:
        return "no number was reported by both"
    if not alone and not other:
        return "so is every reported number"
    text = f"so is every number that both report{', ' * bool(other)}{', '.join(other)}"
    for who in dict.fromkeys(alone.values()):
        text += f"; not compared, since {who} does not report it: {', '.join(n for n, w in alone.items() if w == who)}"
    return text


def _fault(comparison: Mapping[str, Any], reference: str) -> str:
    """That the mistake is the reference's, where it is: whoever reads "does not train like" thinks of the candidate."""
    sides = {cause["side"] for cause in comparison["causes"] if cause.get("side")}
    return f"; the mistake is in {reference}" if sides == {reference} else ""


def stops(verdict: Mapping[str, Any]) -> list[str]:
    """Where trainers stopped because nothing finite was left, in words."""
    found = []
    for stop in verdict.get("stopped", ()):
        where = f"epoch {stop['epoch']}" if stop["step"] is None else f"step {stop['step']:,} of epoch {stop['epoch']}"
        found.append(f"{stop['trainer']} stops after {where}, and is compared up to there: {stop['what']}")
    return found


def where(entry: Mapping[str, Any]) -> str:
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
    if first["step"] == 0:
        return "Before the first step"
    if "since_step" in first:
        return f"Epoch {first['epoch']}, in steps {first['since_step']:,} to {first['step']:,}"
    return f"Epoch {first['epoch']}, step {first['step']:,}"


def _study(comparison: Mapping[str, Any], reference: str) -> str:
    """What several seeds say, where their weights are not equal."""
    candidate, study, training = comparison["candidate"], comparison["study"], comparison["training"]
    judged = list(dict.fromkeys(test["metric"] for test in study["tests"]))
    margins = {test["metric"]: difference(test, "margin", "") for test in study["tests"]}
    said = " and ".join(f"{name} ±{margins[name]}" for name in judged)
    how = f"{study['seeds']} seeds; margins {said}"
    parting = f"with seed {comparison['seed']} {_parting(training)}"
    failing = [test for test in study["tests"] if test["verdict"] == study["verdict"]]
    where = ", ".join(
        f"{name} in epoch {_ranges([test['epoch'] for test in failing if test['metric'] == name])}"
        for name in judged
        if any(test["metric"] == name for test in failing)
    )
    if study["reason"]:
        reached = f"whether it reaches the same cannot be told: {study['reason']}"
    elif study["verdict"] == "alike":
        reached = f"it reaches the same in every epoch, within the margins ({how})"
    elif study["verdict"] == "different":
        reached = f"it does not reach the same: it is beyond the margin of {where} ({how})"
    else:
        needed = study["seeds_needed"]
        enough = f"about {needed} seeds would tell" if needed else "and no number of seeds is known to do so"
        reached = f"whether it reaches the same cannot be told yet, {enough} ({how}): {where}"
    if training["verdict"] == "different":
        return f"{candidate} does not train like {reference}: {parting}; {reached}"
    return f"{candidate} against {reference}: {reached}; {parting}"


def difference(test: Mapping[str, Any], key: str, sign: str = "+") -> str:
    """A figure of one of a study's tests: in the metric's unit, or in percent of the reference's value."""
    return f"{100 * test[key]:{sign}.2g}%" if test["relative"] else f"{test[key]:{sign}.2g}"


def _ranges(epochs: Sequence[int]) -> str:
    """1, 2, 3, 5 as ``1-3, 5``."""
    parts: list[list[int]] = []
    for epoch in epochs:
        if parts and epoch == parts[-1][-1] + 1:
            parts[-1].append(epoch)
        else:
            parts.append([epoch])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def causes(comparison: Mapping[str, Any]) -> list[str]:
    """The causes that were named, with evidence and remedy, or the evidence alone: some lines."""
    lines = []
    for cause in comparison["causes"]:
        side = f" (in {cause['side']})" if cause.get("side") else ""
        lines += [f"  cause: {cause['id']}{side}: {cause['evidence']}."]
        lines += [f"    {line}" for line in cause["remedy"].splitlines()]
    return lines or [f"  evidence: {text}." for text in comparison.get("evidence", ())]


def truth_sentence(truth: dict[str, Any]) -> str:
    """How far from one replica in float64 every trainer is, from ``truth`` in ``verdict.json``."""
    weights = []
    for each in truth["after"]:
        when = f"at the end of epoch {each['epoch']}"
        if each["step"] is not None:
            when = f"after step {each['step']:,} of epoch {each['epoch']}"
        weights.append(f"{when} {_by_value(each['distance'])}")
    names = list(dict.fromkeys(name for metrics in truth["metrics"].values() for name in metrics))
    metrics = [
        f"{name} {_by_value({who: gaps[name]['max_gap'] for who, gaps in truth['metrics'].items() if name in gaps})}"
        for name in names
    ]
    off = f"{truth['off']} is the side that is off. " if truth["off"] else ""
    return (
        f"{off}Held against one replica in float64, the weights are off, relative to how far they have moved, by: "
        f"{'; '.join(weights)}. Reported numbers are off by up to: {'; '.join(metrics)}"
    )


def _by_value(values: Mapping[str, float | None]) -> str:
    """``fit and loop 1.2e-07, tutorial 3.4e-02``."""
    together: dict[str, list[str]] = {}
    for name, value in values.items():
        together.setdefault("unknown" if value is None else f"{value:.1e}", []).append(name)
    return ", ".join(f"{' and '.join(names)} {text}" for text, names in together.items())


def _when(training: Mapping[str, Any]) -> str:
    steps = training["steps_compared"]
    if "steps_made" in training:
        return f"after each of {steps:,} calls, which made {training['steps_made']:,} steps"
    if steps == 0:
        return "at the end of every epoch"
    return "after the only step" if steps == 1 else f"after each of {steps:,} steps"


def _parting(training: dict[str, Any]) -> str:
    first = training["first_difference"]
    text: str
    if training.get("reason"):
        text = training["reason"]
    elif first["step"] is None:
        text = f"their weights differ for the first time at the end of epoch {first['epoch']}"
    elif (first["epoch"], first["step"]) == (1, 0):
        text = "they begin with different weights"
    elif "since_step" in first:
        text = (
            f"their weights differ after step {first['step']:,} of epoch {first['epoch']}, which was made in one call "
            f"with those from step {first['since_step']:,} on"
        )
    else:
        text = f"their weights differ from step {first['step']:,} of epoch {first['epoch']} on"
    gap = training["max_weight_gap"]
    if gap is None:
        return text
    if gap == 0:  # the difference is in other replicas, or it vanished again
        return f"{text}, though at the ends of epochs those of the first replica are equal"
    return f"{text}; at the ends of epochs single weights differ by up to {gap:.1e}"


def _noise(training: Mapping[str, Any]) -> str:
    """What noise twins say of a gap, where there are any."""
    noise = training.get("noise")
    if noise is None:
        return ""
    if noise["largest_ratio"] is None:
        return f"; rounding alone, measured by {noise['twins']} noise twins, does not move {noise['variable']} at all"
    where = f"at the end of epoch {noise['epoch']}"
    if noise["step"] is not None:
        where = f"at step {noise['step']:,} of epoch {noise['epoch']}"
    beyond = noise["largest_ratio"] > noise["factor"]
    times = f"{noise['largest_ratio']:.2g} times"
    by = f"{noise['twins']} noise twins; {where}"
    return (
        f"; the gap is {times if beyond else f'at most {times}'} what rounding alone makes of it ({by}), "
        f"{'where' if beyond else 'and'} up to {noise['factor']:g} times counts as rounding"
    )


def _metrics(metrics: dict[str, Any]) -> str:
    texts = []
    for name, gap in metrics.items():
        if gap["max_gap"] is None and gap.get("not_reported_by"):
            continue  # not compared
        if gap["max_gap"] is None:
            texts.append(f"{name} (not a number on one side only, in epoch {gap['epoch']})")
        elif gap["max_gap"]:
            texts.append(f"{name} (by up to {gap['max_gap']:.1e}, in epoch {gap['epoch']})")
    return ", ".join(texts) or "other epochs"
