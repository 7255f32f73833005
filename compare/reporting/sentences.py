"""Plain-English sentences about a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from compare.check.causes import CATALOGUE
from compare.check.causes.base import REPORTING
from compare.check.stage_views import steps_made
from compare.check.step_values import EXAMPLES, STAGES
from compare.naming import Code, did_you_mean, some
from compare.records.logs import fit_name
from compare.reporting.numbers import difference, differing_numbers
from compare.verdict import rounding
from compare.verdict.findings import Finding
from compare.verdict.model import Comparison, Difference, Distance, Reporting, Stop, Training, Truth, Verdict
from compare.verdict.not_finite import NotFinite
from compare.verdict.outcomes import ALIKE, DIFFERENT, FROM_BEST, IDENTICAL, INCONCLUSIVE


def worst_first(verdict: Verdict | None) -> list[Comparison]:
    """The comparisons, the worst verdict first; none without a verdict."""
    comparisons = verdict.comparisons if verdict is not None else ()
    return sorted(comparisons, key=lambda each: -FROM_BEST.index(each.verdict))


def sentences(verdict: Verdict) -> list[str]:
    """One sentence per candidate, the worst verdict first."""
    return [sentence(comparison, verdict.reference) for comparison in worst_first(verdict)]


def sentence(comparison: Comparison, reference: str, known: Sequence[str] = ()) -> str:
    """The result of one comparison as a sentence, without the final period.

    Readers have seen the errors of ``known`` trainers already.
    """
    text = _not_finite(comparison, comparison.reference or reference) or _result(comparison, reference, known)
    if so_far := comparison.so_far:
        of = f" of {so_far.epochs}" if so_far.epochs else ""
        return f"so far (interrupted in epoch {so_far.epoch}{of}), {text}"
    return text


def with_sentences(
    comparisons: Sequence[Comparison], reference: str, known: Sequence[str] = ()
) -> Iterator[tuple[Comparison, str]]:
    """Comparisons with their sentences; the error of a trainer is told with the first of them only."""
    for each in comparisons:
        yield each, sentence(each, reference, known)
        known = [*known, *([each.failure.side] if each.failure else [])]


def _result(comparison: Comparison, reference: str, known: Sequence[str]) -> str:
    """The sentence on a comparison, as far as it was trained."""
    candidate, training, reporting = comparison.candidate, comparison.training, comparison.reporting
    reference = comparison.reference or reference
    if comparison.against:
        reference = f"{candidate} of the recorded run {comparison.recorded}"
    if failure := comparison.failure:
        why = f"{failure.what}: {failure.error}" if failure.what else failure.error
        if failure.side in known:
            why = f"{failure.side} failed" if failure.side else failure.what
        told = f"{candidate} and {reference} cannot be compared, because {why}"
        return f"{told}; {failure.remedy}" if failure.remedy else told
    if not comparison.weights_seen:  # of logs: what was compared were curves
        curves = f"{candidate} compared with {reference}: {training.reason}"
        return f"curves only, weights not seen: {_study(comparison, reference) if comparison.study else curves}"
    if comparison.study and training.verdict != "identical":
        return _study(comparison, reference)
    if training.verdict == "identical":
        exactly, differing = f"{candidate} trains exactly like {reference}", differing_numbers(reporting.metrics)
        if reporting.verdict == DIFFERENT:
            return f"{exactly}, but reports different numbers: {differing}; the weights are equal, bit for bit"
        equal = f"every weight is equal, bit for bit, {_when(training)}"
        if reporting.verdict == ALIKE:
            return f"{exactly}: {equal}; the reported numbers differ only by rounding: {differing}"
        seeds = f", for each of {comparison.study.seeds} seeds" if comparison.study else ""
        return f"{exactly}{seeds}: {equal}{_numbers(comparison)}"
    if training.verdict == "alike":
        apart = f"{_divergence(training)}{_noise(training)}"
        numbers = _unlike_numbers(reporting)
        return f"{candidate} trains like {reference}, up to rounding{numbers}{';' if numbers else ':'} {apart}"
    if training.verdict == "different":
        sides = {cause.side for cause in comparison.causes if cause.side}
        fault = f"; the mistake is in {reference}" if sides == {reference} else ""  # else the candidate would be blamed
        if made := steps_made(comparison):
            ends = " and ".join(f"{name} ends after {count:,} steps" for name, count in made.items())
            return f"{candidate} does not train like {reference}: {ends}"
        return f"{candidate} does not train like {reference}: {_divergence(training)}{_noise(training)}{fault}"
    return f"no verdict on {candidate} and {reference}: {training.reason}"


def _unlike_numbers(reporting: Reporting) -> str:
    """The clause on reported numbers that differ, or may differ, by more than rounding; else empty."""
    if reporting.verdict not in (DIFFERENT, INCONCLUSIVE):
        return ""
    beyond, but = {name: gap for name, gap in reporting.metrics.items() if gap.differs}, "reports different numbers"
    if reporting.verdict == INCONCLUSIVE:
        but = "its reported numbers differ by more than rounding, and could not be judged"
    elif not beyond:  # such as in a second epoch, which the check has
        return ", but its weights do not explain its reported numbers"
    return f", but {but}: {differing_numbers(beyond)}"


def _not_finite(comparison: Comparison, reference: str) -> str:
    """The sentence on a side that alone is not finite, which leads all others; empty if there is none."""
    candidate, judged = comparison.candidate, (comparison.training.verdict, comparison.reporting.verdict)
    if lost := comparison.weights_alone:
        other = reference if lost.side == candidate else candidate
        return (
            f"{candidate} does not train like {reference}: {_when_seen(lost)}, {len(lost.variables or ())} of {lost.of}"
            f" variables of {lost.side} are NaN or infinite, and those of {other} are not"
        )
    number = next((each for each in comparison.not_finite if each.alone), None)
    if number is None or number.values is None or judged != ("alike", DIFFERENT):
        return ""
    of_reference, of_candidate = number.values
    weights = "the weights agree up to rounding" if comparison.weights_seen else "curves only, weights not seen"
    return (
        f"{number.metric} of epoch {number.epoch} is {of_candidate} with {candidate} and {of_reference} with "
        f"{reference}; {weights}"
    )


def warning(comparison: Comparison, reference: str) -> str:
    """What is not finite on both sides, as a warning; empty if nothing is."""
    both = next((each for each in comparison.not_finite if not each.alone), None)
    if both is None:
        return ""
    sides = f"{comparison.candidate} and {comparison.reference or reference}"
    if both.values is not None:
        return f"{both.metric} of epoch {both.epoch} is {both.values[1]} with both {sides}"
    at = f"the end of epoch {both.epoch}" if both.step is None else step_of(both)
    return (
        f"both {sides} fail: after {at}, {len(both.variables or ())} of {both.of} variables of both are NaN or "
        "infinite, so that what is equal from there on says nothing"
    )


def step_of(place: NotFinite | Distance | Difference | Stop) -> str:
    """The step at which something was seen, in words."""
    return f"step {place.step:,} of epoch {place.epoch}"


def _when_seen(place: NotFinite | Distance) -> str:
    if place.step is None:
        return f"at the end of epoch {place.epoch}"
    return f"after {step_of(place)}" if place.step else "before the first step"


def _numbers(comparison: Comparison) -> str:
    """The clause on the reported numbers if all compared numbers are equal."""
    reporting, metrics = comparison.reporting, comparison.reporting.metrics
    alone = {name: gap.not_reported_by for name, gap in metrics.items() if gap.not_reported_by}
    other = [f"{name} (reported as {gap.reported_as})" for name, gap in metrics.items() if gap.reported_as]
    if _of_another_training(comparison):
        return "; losses and metrics are compared of the scripts' first training only"
    if not reporting.verdict:
        return "; losses and metrics were not compared, since the two report none in common"
    if reporting.verdict == "inconclusive":
        return ", but one side lacks the numbers of an epoch, so there is no verdict on them"
    if not alone and not other:
        return ", and so is every reported number"
    text = f", and so is every number that both report{', ' * bool(other)}{', '.join(other)}"
    for who in dict.fromkeys(alone.values()):
        names = [name for name, silent in alone.items() if silent == who]
        text += f"; not compared, since {who} does not report {'them' if len(names) > 1 else 'it'}: {', '.join(names)}"
    return text


def misnamed(comparison: Comparison, reference: str) -> str:
    """A warning if a candidate reports names that the reference does not, and lacks others; else empty."""
    candidate, reference = comparison.candidate, comparison.reference or reference
    unknown, missing = _left_out(comparison, reference), _left_out(comparison, candidate)
    if not unknown or not missing:
        return ""
    both = [name for name, gap in comparison.reporting.metrics.items() if gap.compared]
    return (
        f"{candidate} reports {', '.join(unknown)}, which {reference} does not; not compared: {', '.join(missing)}"
        f"{did_you_mean([name for name in unknown if fit_name(name) not in both], missing) or '.'}"
    )


def silent(comparison: Comparison) -> str:
    """A warning if one side reports no steps, so that weights are compared at the ends of epochs only; else empty."""
    who = comparison.training.steps_not_reported_by
    if not who:
        return ""
    compared = "weights were compared at the ends of epochs only"
    if who != comparison.candidate:  # the reference may be none of the user's
        return f"{who} reports no steps, so {compared}."
    how = "call it after every optimizer step, unless one call trains a whole epoch"
    return f"{who} never calls run.end_step(), so {compared}; {how}."


def _of_another_training(comparison: Comparison) -> bool:
    """Whether it compares a training of scripts that is not their first: numbers are read of that one only."""
    return bool(comparison.reference) and not comparison.reporting.metrics


def unreported(comparison: Comparison, scope: str) -> str:
    """How the candidate would report the numbers that only the reference reports, without the final period.

    Empty if there are none, or nothing can be added; two scripts of which no number was seen are told so.
    """
    missing, candidate = _left_out(comparison, comparison.candidate), comparison.candidate
    missing = [name for name in missing if name != "learning_rate"]  # which fit's callback reports; weights say more
    if scope == "scripts":
        how = (
            "read the result() of Keras metrics at the end of each epoch, or add there, with the means over it: "
            "import compare; compare.report(epoch=…, {})"
        )
        compared = comparison.training.steps_compared and not _of_another_training(comparison)
        if compared and not comparison.reporting.metrics and not comparison.failure:
            more = f"To compare some, {how.format('loss=…')}"
            return f"No loss or metric was seen of both at the end of the same epoch. {more}"
        call = f"in {candidate} {how.format(', '.join(f'{name}=…' for name in missing))}"
    else:
        call = f"add to {candidate}: run.end_epoch(epoch, {{…, {', '.join(f'{name!r}: …' for name in missing)}}})"
    if not missing or scope == "logs":
        return ""
    return f"To compare {', '.join(missing)} too, {call}"


def stops(verdict: Verdict) -> list[str]:
    """One sentence per trainer that stopped early because its weights or loss were no longer finite."""
    lines = []
    for stop in verdict.stopped:
        where = f"epoch {stop.epoch}" if stop.step is None else step_of(stop)
        lines.append(f"{stop.trainer} stopped after {where} and is compared up to that point: {stop.what}")
    return lines


def where(comparison: Comparison) -> str:
    """Where two runs diverge, in a few words."""
    training, first = comparison.training, comparison.training.first_difference
    if not comparison.weights_seen:
        return f"In the numbers of epoch {first.epoch}" if first else "Unknown: the weights were not seen"
    if comparison.failure:
        return "Nothing to compare"
    if first is None:
        differing = [name for name, gap in comparison.reporting.metrics.items() if gap.differs]
        if training.verdict == "identical" and differing and comparison.verdict != "identical":
            only = "the last digits of " * (comparison.verdict == ALIKE)
            return f"Only in {only}the reported numbers: {', '.join(differing)}"
        return "Nowhere" if training.verdict == "identical" else "Unknown"
    if first.step is None:
        return f"At the end of epoch {first.epoch}"
    if first.step == 0:
        return "Before the first step"
    if first.since_step is not None:
        return f"Epoch {first.epoch}, in steps {first.since_step:,} to {first.step:,}"
    return f"Epoch {first.epoch}, step {first.step:,}"


def _study(comparison: Comparison, reference: str) -> str:
    """The sentence on several seeds whose weights are not equal."""
    candidate, study, training = comparison.candidate, comparison.study, comparison.training
    assert study is not None
    margins = {test.metric: difference(test.margin, test.relative, "") for test in study.tests}
    listed = " and ".join(f"{name} ±{margin}" for name, margin in margins.items())
    others = any(gap.compared and name not in margins for name, gap in comparison.reporting.metrics.items())
    only = "; other numbers have none, and were not judged" * (others and not comparison.weights_seen)
    how = f"{study.seeds} seeds; margins {listed}{only}"
    divergence = f"for seed {comparison.seed}, {_divergence(training)}"
    failing: dict[str, list[int]] = {}
    for test in study.tests:
        if test.verdict == study.verdict:
            failing.setdefault(test.metric, []).append(test.epoch)
    where = ", ".join(f"{name} in epoch {_ranges(epochs)}" for name, epochs in failing.items())
    if study.reason:
        result = f"the study of seeds is inconclusive: {study.reason}"
    elif study.verdict == "alike":
        shared = "" if comparison.weights_seen else " that both log"
        result = f"the metrics agree within the margins in every epoch{shared} ({how})"
    elif study.verdict == "different":
        result = f"the metrics differ by more than the margin: {where} ({how})"
    else:
        needed = study.seeds_needed
        enough = f"about {needed} seeds would be enough" if needed else "the number of seeds needed is unknown"
        unknown = sorted({test.metric for test in study.tests if test.relative and test.seeds and test.mean is None})
        if unknown:  # of 0, mostly
            what = f"the difference is no percentage of {reference}'s {some(unknown)}"
            enough = f"{what}: give a margin in its own unit, as with --margin {unknown[0]}=0.01"
        result = f"the seeds are inconclusive for {where} ({how}); {enough}"
    if training.verdict == "different" and comparison.weights_seen:
        even_so = "even so, " if study.verdict == "alike" else ""
        return f"{candidate} does not train like {reference}: {divergence}; {even_so}{result}"
    return f"{candidate} compared with {reference}: {result}; {divergence}"


def _ranges(epochs: Sequence[int]) -> str:
    """Formats the epochs 1, 2, 3 and 5 as ``1-3, 5``."""
    numbered = groupby(enumerate(epochs), lambda each: each[1] - each[0])
    parts = [[epoch for _, epoch in part] for _, part in numbered]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def causes(comparison: Comparison) -> list[str]:
    """The terminal lines on a comparison's causes with evidence and remedy, and on evidence that leads to no cause."""
    told = comparison.evidence or ()
    first = not comparison.causes or only_beside(comparison)
    lines = [f"  evidence: {text}." for text in told if first]
    for cause in comparison.causes:
        of = beside(comparison, cause)
        lines += [f"  cause: {cause.label}{f', {of}' if of else ''}: {cause.evidence}."]
        source, advice = cause.source, cause.remedy.splitlines()
        if source is not None and source.instead:
            advice = [f"at {source.file}:{source.line}:", f"- {source.text}", f"+ {source.instead}"]
        elif source is not None:
            advice = [source.where, *advice]
        lines += [Code(f"    {line}") for line in advice]
    lines += [f"  besides: {text}." for text in told if not first]
    return lines or (
        [f"  no known cause explains this: {advice}." for advice in [advice_on_numbers(comparison)] if advice]
    )


LOOK_AT = {
    "examples": "which examples a batch has", "inputs": "how inputs are prepared",
    "predictions": "how the model is called", "loss": "how the loss is computed",
    "gradients": "how the gradients are computed",
    "update": "the optimizer, and what it is given", "state": "what changes weights between steps",
}  # fmt: skip
"""Where a mistake is to be looked for that has no name, by the first stage that differs."""


def more_may_follow(comparison: Comparison, scope: str) -> str:
    """That a mistake of a script may hide another one, or does hide one in other numbers, or that none is known."""
    named = any(not of_numbers(comparison, cause) for cause in comparison.causes)
    if comparison.training.verdict == DIFFERENT:
        if scope != "scripts" or (comparison.causes and not named):
            return ""
        if comparison.causes or comparison.evidence:
            return "A mistake may hide another one: run this again once it is fixed"
        first = comparison.training.first_difference
        look = LOOK_AT.get(first.stage or "") if first else None
        return f"No known cause explains it: look at {look}" if look else ""
    told = comparison.told
    gaps = comparison.reporting.metrics.items() if named and comparison.reporting.verdict == DIFFERENT else ()
    left = [name for name, gap in gaps if gap.differs]
    others = [name for name in left if name not in told]
    if not told or not others:
        return ""
    explained = "what is said besides may explain it" if comparison.evidence else "nothing that is named explains it"
    differ = f"{some(others)} differ{'s' * (len(others) == 1)} too, and {explained}"
    return f"{differ}: run this again once the rest is fixed"


def of_numbers(comparison: Comparison, cause: Finding) -> bool:
    """Whether weights differ, and a cause is one of reported numbers."""
    known = CATALOGUE.get(cause.id)
    return comparison.training.verdict == DIFFERENT and known is not None and known.kind == REPORTING


def beside(comparison: Comparison, cause: Finding) -> str:
    """Of what a cause is that does not explain where weights first differ; empty if it may explain that."""
    if of_numbers(comparison, cause):
        return "of the reported numbers only"
    first, known = comparison.training.first_difference, CATALOGUE.get(cause.id)
    if first is None or known is None or not known.stages or not comparison.evidence or first.stage not in STAGES:
        return ""
    epoch, step = cause.measurements.get("at_place") or (1, cause.measurements.get("at_step", 0))
    if EXAMPLES in known.stages and first.stage != EXAMPLES and (epoch, step) > (first.epoch, first.step or 0):
        return "of a later step"
    later = min(map(STAGES.index, known.stages)) > STAGES.index(first.stage)
    return "of a later stage" if later else ""


def only_beside(comparison: Comparison) -> bool:
    """Whether no cause that is named explains where weights first differ."""
    return bool(comparison.causes) and all(beside(comparison, cause) for cause in comparison.causes)


def advice_on_numbers(comparison: Comparison) -> str:
    """What to look at where only numbers differ and no cause is named; empty elsewhere."""
    numbers = comparison.training.verdict, comparison.reporting.verdict
    unjudged = numbers == (ALIKE, INCONCLUSIVE)
    if comparison.causes or not (unjudged or numbers in ((IDENTICAL, DIFFERENT), (ALIKE, DIFFERENT))):
        return ""
    return (
        f"check how {comparison.candidate} calculates these numbers: with which weights, over which examples, with "
        "model.losses or without, with which training flag, and whether they start anew in every epoch"
        f"{'; those that losses and metrics of Keras calculate can be judged' if unjudged else ''}"
    )


def truth_sentence(truth: Truth) -> str:
    """The errors of every trainer relative to training on one replica in float64, and what follows from them."""
    weights = [f"{_when_seen(each)}: {_by_value(each.distance)}" for each in truth.after]
    names = list(dict.fromkeys(name for metrics in truth.metrics.values() for name in metrics))
    metrics = [
        f"{name}: {_by_value({who: gaps[name].max_gap for who, gaps in truth.metrics.items() if name in gaps})}"
        for name in names
    ]
    return (
        "Error of the weights compared with training on one replica in float64, relative to how far training moved "
        f"them: {'; '.join(weights)}. Largest error of the reported numbers: {'; '.join(metrics)}. {_who_is_off(truth)}"
    )


def _who_is_off(truth: Truth) -> str:
    """What the errors relative to float64 say of the trainers, without the final period."""
    left = truth.leaving or {}
    since = {name: f" from {step_of(first)} on" for name, first in left.items() if first.step}
    if truth.off:
        return f"So {truth.off} is the side that is off{since.get(truth.off, '')}"
    if truth.leaving is None:
        return "So no side is clearly farther from it than the other"
    if not left:
        return f"So {' and '.join(truth.metrics)} are as near to it as rounding allows"
    farther = " and ".join(f"{name}{since[name]}" for name in left)
    return f"So no side is clearly farther from it where they diverge, but rounding alone does not explain {farther}"


def _by_value(values: Mapping[str, float | None]) -> str:
    """Formats values by name, grouping equal ones, as in ``fit and loop 1.2e-07, tutorial 3.4e-02``."""
    together: dict[str, list[str]] = {}
    for name, value in values.items():
        together.setdefault("unknown" if value is None else f"{value:.1e}", []).append(name)
    return ", ".join(f"{' and '.join(names)} {text}" for text, names in together.items())


def _when(training: Training) -> str:
    steps = training.steps_compared
    if training.steps_made and steps == 1:
        return f"once, after {training.steps_made:,} steps"
    if training.steps_made:
        return f"after each of {steps:,} calls, which made {training.steps_made:,} steps"
    if steps == 0:
        return "at the end of every epoch"
    return "after the only step" if steps == 1 else f"after each of {steps:,} steps"


def _divergence(training: Training) -> str:
    """Where the weights of two runs diverge and by how much."""
    first = training.first_difference
    if training.reason or first is None:
        text = training.reason
    elif first.step is None:
        text = f"their weights first differ at the end of epoch {first.epoch}"
    elif (first.epoch, first.step) == (1, 0):
        text = "their initial weights differ"
    elif first.since_step is not None:
        call = f"the last step of a call that started with step {first.since_step:,}"
        text = f"their weights differ after {step_of(first)}, {call}"
    elif (later := first.weights) is not None:
        beyond = f"their weights differ by more than rounding from {step_of(later)} on"
        text = f"they diverge in {step_of(first)}, and {beyond}"
    else:
        more = "" if first.equal_before else " by more than rounding"
        text = f"their weights differ{more} from {step_of(first)} on"
    gap = training.max_weight_gap
    if gap is None or (gap == 0 and first is not None and first.step is None):  # after the last epoch
        return text
    if gap == 0:  # the difference is in other replicas, or it disappeared again
        return f"{text}, but at epoch ends the weights of the first replica are equal"
    return f"{text}; at epoch ends, individual weights differ by up to {gap:.1e}"


def _noise(training: Training) -> str:
    """A clause that compares the gap with the perturbed runs, if there are any."""
    noise = training.noise
    if noise is None:
        return ""
    if noise.largest_ratio is None:
        return f"; rounding does not explain it (measured with {_twins(noise)})"
    at_most = "" if noise.largest_ratio > noise.factor else "at most "
    times = f"{at_most}{_times(noise.largest_ratio)} times" if noise.largest_ratio else "within"
    text = f"; the gap is {times} the effect of rounding"
    if noise.largest_ratio > noise.factor**2:  # nobody asks where the limit is
        return text
    measured = f"measured with {_twins(noise)}" if noise.twins else "measured by computing each step again"
    text += f" ({measured}; up to {noise.factor:g} times counts as rounding)"
    if noise.moves and noise.explains:
        alone = "which rounding alone moves, since the loss does not depend on it"
        alone += " (as on a bias before a BatchNormalization, or on that of attention's keys)"
        text += f"; most of it is in {some(noise.moves)}, {alone}"
    return text


def _twins(noise: rounding.Noise) -> str:
    return "a perturbed run" if noise.twins == 1 else f"{noise.twins} perturbed runs"


def _times(ratio: float) -> str:
    """Formats a ratio with two significant digits, as in 1.3, 94 or 130,000; very large ones with an exponent."""
    return f"{float(f'{ratio:.2g}'):,.0f}" if 10 <= ratio < 1e9 else f"{ratio:.2g}"


def _left_out(comparison: Comparison, who: str) -> list[str]:
    """The metrics that are not compared, since one side does not report them."""
    metrics = comparison.reporting.metrics
    return [name for name, gap in metrics.items() if not gap.compared and gap.not_reported_by == who]
