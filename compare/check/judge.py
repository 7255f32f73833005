"""From one trainer's case to the causes that explain it, and to evidence where none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from compare.check.case import KINK, Case
from compare.check.causes import CATALOGUE
from compare.check.causes.data import kind_of_feed
from compare.check.causes.step import CLIPPING
from compare.check.judgement import Judgement
from compare.check.metric_replay import ReadingCase, ReadingTable
from compare.check.observation import configuration
from compare.check.optimizer_replay import KERAS_3, residuals, simulate, through_clipping, twin
from compare.check.recipe import EPSILON, Recipe, Update, distance
from compare.check.report import Fit, NotApplicable
from compare.check.search import Explanation, explain
from compare.check.weights_only import search_by_weights
from compare.check.whole import ROUNDING, Whole


def judge_training(case: Case, base: Judgement | None = None) -> Judgement:
    """Judge whole steps, gradients, updates and state, each from the weights that the trainer really had.

    Args:
        case: what was seen.
        base: the reference's judgement: what is true of the reference just as well is not held against the trainer.
    """
    update = right_update(case)
    recipe = base.recipe if base and _comes_about(case, base.recipe, update) else Recipe()
    judgement = Judgement(recipe=recipe)
    whole: Whole | None = None
    with judgement.probe("whole steps"):
        whole = case.whole(recipe, update)
        if whole is not None and whole.right:
            judgement.fits.append(Fit("whole steps", float(whole.ratios.max(initial=0.0)), np.inf))
    with judgement.probe("state probe"):
        for cause in CATALOGUE.values():
            if cause.fact is None or (whole is not None and whole.right and cause.id == "weights-not-shared"):
                continue  # another model, or other weights for a while, whose steps arrive at the right ones
            if (text := cause.fact(case)) is not None:
                judgement.off(certain=True)
                judgement.causes[cause.id] = text
        _judge_ends(case, judgement)
    if whole is not None and whole.right:
        if case.aligned is not None:
            with judgement.probe("gradient probe"):
                _judge_gradients(case, judgement, update, whole)
        return judgement
    if case.steps:
        with judgement.probe("gradient probe"):
            _judge_gradients(case, judgement, update, whole)
    if whole is None or case.aligned is not None:
        with judgement.probe("sequence probe"):
            _judge_updates(case, judgement, update, recipe)
    elif not judgement.causes:
        judgement.evidence.clear()
        with judgement.probe("weights probe"):
            search_by_weights(case, judgement, update)
    with judgement.probe("state probe"):
        _judge_state(case, judgement, update)
    return judgement


def _comes_about(case: Case, recipe: Recipe, update: Update) -> bool:
    """Whether a trainer's steps come about by a recipe: that of a reference with a mistake, say."""
    if recipe == Recipe() or case.residual(recipe, case.threshold) <= case.threshold:
        return True
    whole = case.whole(recipe, update)
    return whole is not None and whole.right


def _judge_ends(case: Case, judgement: Judgement) -> None:
    """What callbacks do: end training early, or change the weights when it is over; and what a loop does by itself."""
    seen, reference = case.seen, case.reference
    if seen.ended.keys() != reference.ended.keys():
        counts = f"{seen.name} trains {len(seen.ended)} epoch(s), {reference.name} {len(reference.ended)}"
        judgement.off(f"{counts}: does a callback, or model.stop_training, end it?", certain=True)
    elif reference.changed_in_the_end and not seen.changed_in_the_end:
        names = ", ".join(reference.changed_in_the_end[:3])
        judgement.off(
            f"when training is over {reference.name}'s {names} change once more (a callback's on_train_end, the "
            f"optimizer's average of weights), {seen.name}'s do not",
            certain=True,
        )
    usual = {name for changes in reference.changed_after_steps.values() for name in changes}
    for epoch, changes in seen.changed_after_steps.items():
        changed = {name: gap for name, gap in changes.items() if name not in usual}
        if changed and "validation-changes-state" not in judgement.causes:
            name = max(changed, key=lambda each: changed[each])
            others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
            judgement.off(
                f"changed after the last step of epoch {epoch}: {name}{others}, by up to {changed[name]:.3g}",
                certain=True,
            )
            return


def _judge_gradients(case: Case, judgement: Judgement, update: Update, whole: Whole | None) -> None:
    """Hold the gradients against the right ones; what arrives at the right weights has made up for other ones."""
    off = case.residuals(judgement.recipe)
    right = max(off, default=np.inf)
    if right <= case.threshold:
        judgement.fit("gradients", right, case.threshold)
        return
    if (
        whole is not None
        and whole.trains_right
        and (case.few(off) or not _hides(case, judgement.recipe, update, whole))
    ):
        return
    _search_gradients(case, judgement)


def _search_gradients(case: Case, judgement: Judgement) -> None:
    base = judgement.recipe
    off = case.residuals(base)
    right = max(off, default=np.inf)
    recognisers = [(cause, partial(cause.gradient, case)) for cause in CATALOGUE.values() if cause.gradient]
    search = explain(base, recognisers, lambda recipe: case.residual(recipe, case.threshold), case.threshold)
    found = search.found
    judgement.fit("gradients", right, case.threshold, search)
    if judgement.name(found, right, f"{len(case.steps)} steps' gradients"):
        judgement.recipe = found[0].recipe
        judgement.of_gradients = set(found[0].ids)
    elif not found:
        judgement.off(_gradient_evidence(case, base), certain=bool(off) and not case.few(off))


def _hides(case: Case, recipe: Recipe, update: Update, whole: Whole) -> bool:
    """Whether the optimizer makes the same of other gradients, as Adam does of any multiple of them."""
    assert case.aligned is not None
    replay, steps = case.replay, case.steps
    right = [replay.given(step, place, recipe) for step, place in zip(steps, case.aligned, strict=True)]
    # What the experiment's optimizer clips itself, the loop may have clipped before.
    clipped = through_clipping(replay, Update(overrides=case.clipping(case.seen)), steps)
    pairs = zip(clipped, through_clipping(replay, update, steps, right), strict=True)
    if all(distance([replay.flat(a)], [replay.flat(b)]) <= case.threshold for a, b in pairs):
        return False
    seen = simulate(replay, steps, update)
    exact = simulate(replay, steps, update, right)
    noise = whole.rounding[:, : whole.trainable]
    gaps = np.array(
        [
            [
                max(float(np.linalg.norm(part)) for part in parts)
                for parts in zip(*map(replay.split, a - b), strict=True)
            ]
            for a, b in zip(seen, exact, strict=True)
        ]
    )
    return bool((gaps <= ROUNDING * noise).all())


def _gradient_evidence(case: Case, base: Recipe) -> str:
    """The first step that is not as it ought to be: which variables, by what ratio."""
    feed = case.matched_feed(base)
    if feed is not None:
        return kind_of_feed(case, feed)[1]
    if case.aligned is None:
        counts = ", ".join(f"{len(case.seen.of_epoch(e))} in epoch {e}" for e in case.seen.ended)
        return f"the optimizer steps are {counts}, where the data set has {len(case.expected)} batches in all"
    for i, place in enumerate(case.aligned):
        off = case.step_residual(i, place, base)
        if off <= case.threshold:
            continue
        seen = case.replay.split(case.effective[i][0])
        right = case.replay.split(case.replay.gradients(case.steps[i], place, base)[0])
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


def _judge_updates(case: Case, judgement: Judgement, right: Update, base: Recipe) -> None:
    """What the optimizer made of the gradients it was handed; they are right, or a cause explains them."""
    replay, steps = case.replay, case.steps
    if not steps or (judgement.evidence and judgement.recipe == base):
        return  # unexplained gradients say nothing about the update
    if judgement.recipe != base and (whole := case.whole(judgement.recipe, right)) is not None and whole.trains_right:
        return
    floor = max([EPSILON, *twin(replay, steps, right)])
    off = residuals(replay, steps, simulate(replay, steps, right))
    first, threshold = max(off, default=0.0), ROUNDING * floor
    if first <= threshold:
        judgement.fit("updates", first, threshold)
        _judge_parts(case, judgement, right)
        return

    def residual(update: Update) -> float:
        try:
            return max(residuals(replay, steps, simulate(replay, steps, update)), default=0.0)
        except (TypeError, ValueError, AttributeError):
            return float("inf")

    recognisers = [(cause, partial(cause.update, case)) for cause in CATALOGUE.values() if cause.update]
    # Several optimizers in one step, each with its own settings: none of them stands for all.
    search = explain(right, [] if case.several_optimizers else recognisers, residual, threshold)
    judgement.fit("updates", first, threshold, search)
    if not judgement.name(search.found, first, f"{len(steps)} updates") and not search.found:
        beyond = [i for i, each in enumerate(off) if each > threshold]
        i = beyond[0]
        judgement.off(
            f"the weights after step {i + 1} (epoch {steps[i].epoch}) are not what the experiment's optimizer makes of "
            f"the gradients it was handed: {off[i]:.2g} of the change, relative, is unexplained",
            certain=len(beyond) > len(off) // 3 or first > KINK,
        )


def _judge_parts(case: Case, judgement: Judgement, update: Update) -> None:
    """Right gradients and a right optimizer must give the weights seen: clipping looks at each replica's part."""
    whole = case.whole(judgement.recipe, update)
    if not judgement.right or whole is None or whole.trains_right:
        return
    certain = not whole.few(KINK)
    i = whole.off[0]
    name, off = whole.worst(i)
    step = f"step {i + 1} (epoch {case.steps[i].epoch})"
    if case.replicas == 1 or not certain:
        judgement.off(f"{name} after {step} is off by {off:.2g} of its change", certain=certain)
        return
    text = f"the gradients add up to the right ones, yet {name} after {step} is off by {off:.2g} of its change"
    config = configuration(case.replay.experiment.build_optimizer())
    if any(config.get(name) for name in CLIPPING):  # the only thing between the parts and the update that is not linear
        judgement.off(certain=True)
        judgement.causes["clipping-differs"] = (
            f"{text}: the optimizer clips each replica's part, and the parts are others"
        )
    else:
        judgement.off(text, certain=True)


def right_update(case: Case) -> Update:
    """The experiment's optimizer, with the learning rates that the reference had: a callback may set them."""
    rates = tuple(step.learning_rate for step in case.reference.applied)
    clip = "handed" if KERAS_3 else "reduced"
    return Update(learning_rates=rates if case.reference.applied else None, clip=clip)


def _judge_state(case: Case, judgement: Judgement, update: Update) -> None:
    """Weights that are not trained, after each forward pass; and trained ones between two steps."""
    whole = case.whole(judgement.recipe, update)
    if whole is not None:
        ratios = whole.ratios[:, whole.trainable :]
        for i in np.flatnonzero((ratios > ROUNDING).any(axis=1))[:1]:
            k = whole.trainable + int(np.argmax(ratios[i]))
            judgement.off(
                f"{whole.names[k]} after the forward pass of step {i + 1} is not what the model makes of the batch: "
                f"off by {whole.gaps[i, k]:.3g}, where rounding makes {whole.noise[:, k].max():.1g} of it",
                certain=not whole.few(KINK),
            )
    for one, other, changed in case.changed_between_steps()[:1]:
        judgement.off(f"{', '.join(changed)} changes between step {one} and {other}, by no optimizer", certain=True)


def judge_reporting(case: Case, recipe: Recipe, keys: Sequence[str]) -> Judgement:
    """Judge reported numbers by the weights that the trainer itself had.

    Args:
        case: what was seen.
        recipe: how its gradients come about.
        keys: the names of the numbers.
    """
    judgement = Judgement()
    table = ReadingTable(case, recipe)
    open_keys: dict[str, list[Explanation]] = {}
    wrong: dict[str, float] = {}
    threshold = ROUNDING * EPSILON
    for key in keys:
        with judgement.probe(f"reporting probe of {key}"):
            metric = ReadingCase(table, key)
            if not metric.known():
                judgement.not_applicable.append(NotApplicable("reporting probe", f"{key} cannot be recomputed"))
                judgement.unknown.add(key)
                continue
            right = metric.residual(metric.right)
            if right <= threshold:
                judgement.fit(key, right, threshold)
                continue
            judgement.unknown.add(key)  # unless it can be explained
            wrong[key] = right
            # A wrong loss that is printed as it is trained on needs no cause of its own.
            bases = [replace(metric.right, own_loss=True), metric.right] if recipe != Recipe() else [metric.right]
            if bases[0].own_loss and metric.residual(bases[0]) <= threshold:
                what = "is the loss" if metric.is_loss else "counts examples as in the loss"
                judgement.off(f"{key} {what} that is trained on, which is not the experiment's")
                judgement.unknown.discard(key)
                continue
            recognisers = [(cause, partial(cause.reading, metric)) for cause in CATALOGUE.values() if cause.reading]
            for base in bases:
                search = explain(base, recognisers, metric.residual, threshold)
                open_keys[key] = search.found
                if search.found:
                    judgement.unknown.discard(key)
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
