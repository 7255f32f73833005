"""From one trainer's case to the causes that explain it, and to evidence where none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from compare.check.case import ROUNDING, Case
from compare.check.causes import CATALOGUE
from compare.check.causes.base import Variant
from compare.check.causes.data import kind_of_feed
from compare.check.causes.step import CLIPPING
from compare.check.reading import ReadingCase, ReadingTable
from compare.check.replay import Recipe
from compare.check.report import Fit, NotApplicable
from compare.check.search import Explanation, Search, explain
from compare.check.unseen import judge_by_weights
from compare.check.update import EPSILON, KERAS_3, Handed, Update, residuals, simulate, twin


@dataclass
class Judgement:
    """What is known about one trainer.

    Attributes:
        right: whether nothing but rounding separates it from the replay.
        causes: the causes that were recognised, with their evidence.
        evidence: what was measured where no cause explains it.
        recipe: how its gradients come about; the right recipe where that is unknown.
        not_applicable: what could not be probed.
        fits: how well gradients, updates, both together and reported numbers are explained.
    """

    right: bool = True
    causes: dict[str, str] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    recipe: Recipe = field(default_factory=Recipe)
    not_applicable: list[NotApplicable] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)

    def fit(self, what: str, right: float, threshold: float, search: Search | None = None) -> None:
        """Keep how well something was explained: as it should be, or by what a search found."""
        floor = threshold / ROUNDING
        if search is None:
            self.fits.append(Fit(what, right / floor, np.inf))
        else:
            best = max((each.residual / floor for each in search.found), default=None)
            self.fits.append(Fit(what, best, min(right, search.next_best) / floor))

    def name(self, explanations: Sequence[Explanation], right: float, steps: str) -> bool:
        """Take over the one explanation there is; say so where there are several."""
        self.right = False
        if len(explanations) == 1:
            for cause, variant in explanations[0].causes:
                self.causes.setdefault(cause.id, _told(variant, explanations[0].residual, right, steps))
            return True
        if explanations:
            names = " or ".join(" and ".join(sorted(each.ids)) for each in explanations)
            self.evidence.append(f"{names} would explain {steps} equally well: nothing is named")
        return False


def _told(variant: Variant, residual: float, right: float, steps: str) -> str:
    off = "which nothing else explains" if not np.isfinite(right) else f"without it {right:.2g}"
    return f"{variant.evidence}. That leaves {residual:.1e} of {steps} unexplained, relative; {off}"


def judge_training(case: Case) -> Judgement:
    """Judge gradients, updates and state, each from the weights that the trainer really had."""
    judgement = Judgement()
    for cause in CATALOGUE.values():
        if cause.fact is not None and (text := cause.fact(case)) is not None:
            judgement.right = False
            judgement.causes[cause.id] = text
    _judge_ends(case, judgement)
    if not case.steps:
        judge_by_weights(case, judgement, _right_update(case))
        return judgement
    _judge_gradients(case, judgement)
    _judge_updates(case, judgement)
    _judge_state(case, judgement)
    return judgement


def _judge_ends(case: Case, judgement: Judgement) -> None:
    """What callbacks do: end training early, or change the weights when it is over."""
    seen, reference = case.seen, case.reference
    if seen.ended.keys() != reference.ended.keys():
        counts = f"{seen.name} trains {len(seen.ended)} epoch(s), {reference.name} {len(reference.ended)}"
        judgement.right = False
        judgement.evidence.append(f"{counts}: does a callback, or model.stop_training, end it?")
    elif reference.changed_in_the_end and not seen.changed_in_the_end:
        judgement.right = False
        judgement.evidence.append(
            f"when training is over {reference.name}'s {', '.join(reference.changed_in_the_end[:3])} "
            f"change once more (a callback's on_train_end, the optimizer's average of weights), {seen.name}'s do not"
        )


def _judge_gradients(case: Case, judgement: Judgement) -> None:
    right = case.residual(Recipe())
    if right <= case.threshold:
        judgement.fit("gradients", right, case.threshold)
        return
    recognisers = [(cause, partial(cause.gradient, case)) for cause in CATALOGUE.values() if cause.gradient]
    search = explain(Recipe(), recognisers, lambda recipe: case.residual(recipe, case.threshold), case.threshold)
    found = search.found
    judgement.fit("gradients", right, case.threshold, search)
    count = f"{len(case.steps)} steps' gradients"
    if judgement.name(found, right, count):
        judgement.recipe = found[0].recipe
    elif not found:
        judgement.evidence.append(_gradient_evidence(case))


def _gradient_evidence(case: Case) -> str:
    """The first step that is not as it ought to be: which variables, by what ratio."""
    feed = case.matched_feed(Recipe())
    if feed is not None:
        return kind_of_feed(case, feed)[1]
    if case.aligned is None:
        counts = ", ".join(f"{len(case.seen.of_epoch(e))} in epoch {e}" for e in case.seen.ended)
        return f"the optimizer steps are {counts}, where the data set has {len(case.expected)} batches in all"
    for i, place in enumerate(case.aligned):
        off = case.step_residual(i, place, Recipe())
        if off <= case.threshold:
            continue
        seen = case.replay.split(case.effective[i][0])
        right = case.replay.split(case.replay.gradients(case.steps[i], place, Recipe())[0])
        texts = []
        for name, a, b in zip(case.seen.names, seen, right, strict=False):
            scale = max(np.linalg.norm(a), np.linalg.norm(b))
            if scale and np.linalg.norm(a - b) > case.threshold * scale:
                ratio = float(np.vdot(a, b) / (np.vdot(b, b) or np.nan))
                texts.append(f"{name} {ratio:.4g}")
        return (
            f"the gradient of step {i + 1} (epoch {place.epoch}) is off by {off:.2g}, relative, and no cause explains "
            f"it; times the right one, it is: {', '.join(texts)}"
        )
    return "no single step's gradient is off, yet they are not as they ought to be together"


def _judge_updates(case: Case, judgement: Judgement) -> None:
    replay, steps = case.replay, case.steps
    try:
        right = _right_update(case)
        floor = max([EPSILON, *twin(replay, steps, right)])
        first = max(residuals(replay, steps, simulate(replay, steps, right)), default=0.0)
    except (TypeError, ValueError) as error:
        judgement.not_applicable.append(NotApplicable("sequence probe", f"the optimizer cannot be rebuilt: {error}"))
        return
    threshold = ROUNDING * floor
    if first <= threshold:
        judgement.fit("updates", first, threshold)
        _judge_whole(case, judgement, right)
        return

    def residual(update: Update) -> float:
        try:
            return max(residuals(replay, steps, simulate(replay, steps, update)), default=0.0)
        except (TypeError, ValueError, AttributeError):
            return float("inf")

    recognisers = [(cause, partial(cause.update, case)) for cause in CATALOGUE.values() if cause.update]
    search = explain(right, recognisers, residual, threshold)
    found = search.found
    judgement.fit("updates", first, threshold, search)
    if not judgement.name(found, first, f"{len(steps)} updates") and not found:
        off = residuals(replay, steps, simulate(replay, steps, right))
        i = next(i for i, each in enumerate(off) if each > threshold)
        judgement.evidence.append(
            f"the weights after step {i + 1} (epoch {steps[i].epoch}) are not what the experiment's optimizer makes of "
            f"the gradients it was handed: {off[i]:.2g} of the change, relative, is unexplained"
        )


def _judge_whole(case: Case, judgement: Judgement, update: Update) -> None:
    """Right gradients and a right optimizer must give the weights seen: clipping looks at each replica's part."""
    if not judgement.right or case.aligned is None:
        return
    replay, steps = case.replay, case.steps
    handed: list[Handed] = []
    for i, (step, place) in enumerate(zip(steps, case.aligned, strict=True)):
        nudge = case.nudges.get((i, Recipe()), 0)
        each = [replay.split(flat) for flat in replay.handed(step, place, Recipe(), nudge)]
        handed.append([[part.astype(v.dtype) for part, v in zip(parts, step.state[0], strict=False)] for parts in each])
    noise = max(twin(replay, steps, update, case.floor))
    off = residuals(replay, steps, simulate(replay, steps, update, handed))
    threshold = ROUNDING * max(noise, EPSILON)
    if max(off, default=0.0) <= threshold:
        judgement.fit("whole steps", max(off, default=0.0), threshold)
        return
    judgement.right = False
    config = replay.experiment.build_optimizer().get_config()
    i = int(np.argmax(off))
    text = (
        f"the gradients add up to the right ones, yet each replica's part is another, and the update of step {i + 1} "
        f"(epoch {steps[i].epoch}) is {off[i]:.2g} off, relative"
    )
    if any(config.get(name) for name in CLIPPING):  # the only thing between the parts and the update that is not linear
        judgement.causes["clipping-differs"] = f"{text}: the optimizer clips each part"
    else:
        judgement.evidence.append(text)


def _right_update(case: Case) -> Update:
    """The experiment's optimizer, with the learning rates that the reference had: a callback may set them."""
    rates = tuple(step.learning_rate for step in case.reference.applied)
    clip = "handed" if KERAS_3 else "reduced"
    return Update(learning_rates=rates if case.reference.applied else None, clip=clip)


def _judge_state(case: Case, judgement: Judgement) -> None:
    """Weights that are not trained, after each forward pass; and trained ones between two steps."""
    feed = case.feed(judgement.recipe)
    begin, names = case.replay.trainable, case.seen.names
    if feed is None or len(feed) != len(case.steps):
        return
    for i, (step, place) in enumerate(zip(case.steps, feed, strict=True)):
        for replica, part in enumerate(case.replay.parts(place)):
            if part.start == part.stop:
                continue
            expected = case.replay.pieces(step, replica, part, judgement.recipe).state[begin:]
            seen = step.state[replica][begin:]
            for name, a, b in zip(names[begin:], seen, expected, strict=True):
                if not _close(a, b, case.threshold):
                    judgement.right = False
                    judgement.evidence.append(
                        f"{name} after the forward pass of step {i + 1} (epoch {step.epoch}) is not what the model "
                        f"makes of the batch: up to {np.abs(np.subtract(a, b, dtype=np.float64)).max():.3g} off"
                    )
                    return
    for one, other, changed in case.changed_between_steps()[:1]:
        judgement.right = False
        judgement.evidence.append(f"{', '.join(changed)} changes between step {one} and {other}, by no optimizer")


def _close(a: np.ndarray, b: np.ndarray, threshold: float) -> bool:
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    scale = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return bool(np.linalg.norm(np.subtract(a, b, dtype=np.float64)) <= threshold * scale)


def judge_reporting(case: Case, recipe: Recipe) -> Judgement:
    """Judge every reported number by the weights that the trainer itself had."""
    judgement = Judgement()
    table = ReadingTable(case, recipe)
    keys = list(dict.fromkeys(key for logs in case.seen.logs.values() for key in logs))
    open_keys: dict[str, list[Explanation]] = {}
    wrong: dict[str, float] = {}
    threshold = ROUNDING * EPSILON
    for key in keys:
        metric = ReadingCase(table, key)
        if not metric.known():
            judgement.not_applicable.append(NotApplicable("reporting probe", f"{key} cannot be recomputed"))
            continue
        right = metric.residual(metric.right)
        if right <= threshold:
            judgement.fit(key, right, threshold)
            continue
        judgement.right = False
        wrong[key] = right
        # A wrong loss that is printed as it is trained on needs no cause of its own.
        bases = [replace(metric.right, own_loss=True), metric.right] if recipe != Recipe() else [metric.right]
        if bases[0].own_loss and metric.residual(bases[0]) <= threshold:
            what = "is the loss" if metric.is_loss else "counts examples as in the loss"
            judgement.evidence.append(f"{key} {what} that is trained on, which is not the experiment's")
            continue
        recognisers = [(cause, partial(cause.reading, metric)) for cause in CATALOGUE.values() if cause.reading]
        for base in bases:
            search = explain(base, recognisers, metric.residual, threshold)
            open_keys[key] = search.found
            if search.found:
                break
        judgement.fit(key, right, threshold, search)
    _settle(judgement, open_keys, wrong)
    return judgement


def _settle(judgement: Judgement, explanations: Mapping[str, list[Explanation]], wrong: Mapping[str, float]) -> None:
    """Name what every metric allows: where one could be this or that, the others may tell."""
    certain = {each.ids for found in explanations.values() if len(found) == 1 for each in found}
    for key, found in explanations.items():
        fitting = [each for each in found if each.ids in certain] if len(found) > 1 else found
        if len(found) > 1 and not fitting:
            fitting = [each for each in found if each.ids <= set().union(*certain)] if certain else []
        if not judgement.name(fitting if len(fitting) == 1 else found, wrong[key], key) and not found:
            judgement.evidence.append(f"{key} is off by {wrong[key]:.2g}, relative, from what the weights give")
