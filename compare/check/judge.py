"""Judges how a trainer trains, and what it reports: names the causes that explain it, or gives evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compare.check.case import Case
from compare.check.causes import CATALOGUE
from compare.check.causes.data import kind_of_feed
from compare.check.causes.optimizer import settings_read
from compare.check.causes.reporting import said
from compare.check.judgement import Judgement
from compare.check.measurement import Measurement
from compare.check.metric_replay import MetricTable, ReportedMetric
from compare.check.observation import changed_variables, configuration
from compare.check.optimizer_replay import clipped_gradients, residuals, rounding_noise, simulate
from compare.check.recipe import EPSILON, Recipe, Span, Update, distance, multiple
from compare.check.search import MUCH_BETTER, Explanation, find_explanations, recognisers
from compare.check.step_values import common_multiple, parallel, relative_gap
from compare.check.weight_gaps import MAX_KINK_RESIDUAL, RIGHT_LEAVES, ROUNDING, WeightGaps, norms
from compare.check.weights_only import search_by_weights
from compare.verdict.findings import NotApplicable
from compare.watch.trace import CLIPPING

OF_OTHER_MODELS = "weights-not-shared", "layer-differs"
"""The causes that are observed directly and say that another model than the one that was given is trained."""


def judge_training(case: Case, reference: Judgement | None = None) -> Judgement:
    """Judges whole steps, gradients, updates and state, each from the weights that the trainer really had.

    What holds for the reference, as it was judged, does not count against the trainer.
    """
    recipe = reference.recipe if reference and _follows(case, reference.recipe) else Recipe()
    judgement = Judgement(recipe=recipe)
    gaps: WeightGaps | None = None
    with judgement.probe("whole steps"):
        gaps = case.weight_gaps(recipe)
    all_match = gaps is not None and gaps.all_match
    with judgement.probe("state probe"):
        _judge_facts(case, judgement, all_match)
        _judge_epoch_ends(case, judgement)
    if all_match:
        if case.aligned is not None:
            with judgement.probe("gradient probe"):
                _judge_gradients(case, judgement, gaps)
        if settings_read(case):
            with judgement.probe("sequence probe"):
                _judge_updates(case, judgement, recipe)
        return judgement
    if gaps is not None and case.steps and case.changed_between_steps():
        # The optimizer does a part only, and its gradients are of weights that the loop has changed meanwhile.
        alone = Judgement(recipe=recipe)
        with alone.probe("weights probe"):
            search_by_weights(case, alone)
        if alone.causes:
            return replace(alone, causes={**judgement.causes, **alone.causes})
    if case.steps:
        with judgement.probe("gradient probe"):
            _judge_gradients(case, judgement, gaps)
    if gaps is None or case.aligned is not None:
        with judgement.probe("sequence probe"):
            _judge_updates(case, judgement, recipe)
    elif not judgement.causes:
        judgement.evidence.clear()
        with judgement.probe("weights probe"):
            search_by_weights(case, judgement)
    with judgement.probe("state probe"):
        _judge_state(case, judgement)
    if "weights-not-shared" in judgement.causes and (case.observation.foreign or case.observation.foreign_in_loss):
        judgement.evidence.clear()  # another model than the one that is replayed
    return judgement


def _follows(case: Case, recipe: Recipe) -> bool:
    """Whether a recipe, such as that of a wrong reference, explains the trainer's steps."""
    if recipe == Recipe() or case.residual(recipe, case.threshold) <= case.threshold:
        return True
    gaps = case.weight_gaps(recipe)
    return gaps is not None and gaps.all_match


def _judge_facts(case: Case, judgement: Judgement, all_match: bool) -> None:
    """Names the causes that can be observed directly."""
    for cause in CATALOGUE.values():
        if cause.fact is None or (all_match and cause.id in OF_OTHER_MODELS):
            continue  # another model, or temporarily other weights, is no mistake if the right weights result
        if (evidence := cause.fact(case)) is not None:
            judgement.mark_wrong(certain=True)
            judgement.causes[cause.id] = evidence
    if "weights-not-shared" in judgement.causes:  # so the model from run.build() never changes
        judgement.causes.pop("variables-not-trained", None)


def _judge_epoch_ends(case: Case, judgement: Judgement) -> None:
    """Compares what happens outside the steps: early stopping, and weights changed at the end of an epoch or a run."""
    observation, reference = case.observation, case.reference
    epochs, expected = observation.epoch_end_states.keys(), reference.epoch_end_states.keys()
    names = {"side": observation.name, "reference": reference.name}
    if "callbacks-missing" in judgement.causes:
        return
    if epochs != expected:
        seen = Measurement.of("other-epochs", epochs=len(epochs), expected=len(expected), **names)
        judgement.mark_wrong(seen, certain=True)
    elif "optimizer-differs" in judgement.causes:
        return  # which ends without its moving averages
    elif (changed_last := reference.changed_after_training) and not set(changed_last) & set(observation.changed_last):
        judgement.mark_wrong(Measurement.of("changed-last", variables=changed_last[:3], **names), certain=True)
    usual = {name for changes in reference.changed_after_steps.values() for name in changes}
    for epoch, changes in observation.changed_after_steps.items():
        changed = {name: gap for name, gap in changes.items() if name not in usual}
        if changed and "validation-changes-state" not in judgement.causes:
            name = max(changed, key=lambda variable: changed[variable])
            seen = Measurement.of(
                "changed-after-last-step", epoch=epoch, variable=name, others=len(changed) - 1, gap=changed[name]
            )
            judgement.mark_wrong(seen, certain=True)
            return


def _judge_gradients(case: Case, judgement: Judgement, gaps: WeightGaps | None) -> None:
    """Compares the gradients with the correct ones.

    Other gradients are accepted if they lead to the right weights, unless the optimizer merely hides them.
    """
    recipe = judgement.recipe
    off = case.residuals(recipe)
    right = max(off, default=np.inf)
    if right <= case.threshold:
        return
    if gaps is not None and gaps.trained_match and (case.only_few_off(off) or not _optimizer_hides(case, recipe, gaps)):
        return
    explanations = find_explanations(
        recipe,
        recognisers("gradient", case),
        lambda candidate: case.residual(candidate, case.threshold),
        case.threshold,
    )
    if judgement.add_explanation(explanations, right, "gradients", len(case.steps)):
        judgement.adopt_gradients(explanations[0])
    elif not explanations:
        judgement.mark_wrong(_gradient_evidence(case, recipe), certain=bool(off) and not case.only_few_off(off))


def _optimizer_hides(case: Case, recipe: Recipe, gaps: WeightGaps) -> bool:
    """Whether the optimizer turns different gradients into the same weights, as Adam does with any multiple."""
    assert case.aligned is not None
    replay, steps, update = case.replay, case.steps, case.right_update
    right = [replay.typed_gradients(step, span, recipe) for step, span in zip(steps, case.aligned, strict=True)]
    # The loop may have done the clipping that the experiment's optimizer does itself.
    observed = clipped_gradients(replay, Update(overrides=case.observation.clipping), steps)
    pairs = zip(observed, clipped_gradients(replay, update, steps, right), strict=True)
    if all(distance([replay.flatten(a)], [replay.flatten(b)]) <= case.threshold for a, b in pairs):
        return False
    from_observed = simulate(replay, steps, update)
    from_right = simulate(replay, steps, update, right)
    noise = gaps.noise_floor[:, : gaps.trainable]
    apart = (map(replay.unflatten, a - b) for a, b in zip(from_observed, from_right, strict=True))
    differences = norms([[list(copies) for copies in zip(*replicas, strict=True)] for replicas in apart], None)
    return bool((differences <= ROUNDING * noise).all())


def _gradient_evidence(case: Case, recipe: Recipe) -> Measurement:
    """The first step whose gradient is wrong: which variables are off, and by what ratio."""
    feed = case.matched_feed(recipe)
    if feed is not None:
        return kind_of_feed(case, feed)[1]
    if case.aligned is None:
        epochs = case.observation.epoch_end_states
        steps = {epoch: len(case.observation.of_epoch(epoch)) for epoch in epochs}
        return Measurement.of("optimizer-steps", steps=steps, batches=len(case.expected))
    if seen := _factors(case, case.aligned, recipe):
        return seen
    for i, span in enumerate(case.aligned):
        off = case.step_residual(i, span, recipe)
        if off <= case.threshold:
            continue
        observed = case.replay.unflatten(case.effective[i][0])
        right = case.replay.unflatten(case.replay.gradients(case.steps[i], span, recipe)[0])
        named = list(zip(case.observation.names, observed, right, strict=False))
        least = SMALL_GRADIENT * max((float(np.linalg.norm(b)) for _, _, b in named), default=0.0)
        large = [each for each in named if max(map(np.linalg.norm, each[1:])) > least]
        ratios = {name: _multiple(a, b) for name, a, b in large if relative_gap(a, b) > case.threshold}
        return _weights_added(case, i, observed, right) or Measurement.of(
            "gradient-off", step=i + 1, epoch=span.epoch, relative_error=off, multiples=ratios
        )
    return Measurement.of("gradients-off-together")


def _weights_added(case: Case, i: int, observed: Sequence[Any], right: Sequence[Any]) -> Measurement | None:
    """Gradients to which one multiple of the weights is added, as of a penalty that the loss should not have."""
    added = {
        name: (np.asarray(a, np.float64) - b, weights)
        for name, a, b, weights in zip(case.observation.names, observed, right, case.steps[i].state[0], strict=False)
        if relative_gap(a, b) > case.threshold
    }
    if not all(parallel(*pair) for pair in added.values()) or not (factor := common_multiple(list(added.values()))):
        return None
    given = {"variables": list(added), "penalized": bool(case.replay.model.losses)}
    return Measurement.of(
        "weights-added", factor=factor, side=case.observation.name, other=case.reference.name, **given
    )


def _multiple(a: np.ndarray, b: np.ndarray) -> float | str:
    """Which multiple of the right gradient an observed one is; a word where no number says it."""
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return "not finite"
    factor = multiple([a], [b])
    return "not zero" if factor is None else factor


def _factors(case: Case, feed: Sequence[Span], recipe: Recipe) -> Measurement | None:
    """Gradients that are the right ones times one number for all variables, another one in each step."""
    factors = []
    for i, span in enumerate(feed):
        observed, right = case.effective[i], case.replay.gradients(case.steps[i], span, recipe)
        factor = multiple(observed, right)
        if factor is None or distance(observed, [factor * each for each in right]) > case.threshold:
            return None
        factors.append(factor)
    return Measurement.of("gradient-factors", factors=factors)


def _judge_updates(case: Case, judgement: Judgement, expected: Recipe) -> None:
    """Compares what the optimizer made of the gradients passed to it; searches for a cause if that is wrong.

    Args:
        expected: the recipe that the trainer's gradients were expected to follow.
    """
    replay, steps, right = case.replay, case.steps, case.right_update
    if not steps or (judgement.evidence and judgement.recipe == expected):
        return  # unexplained gradients say nothing about the update
    if judgement.recipe != expected:
        gaps = case.weight_gaps(judgement.recipe)
        if gaps is not None and gaps.trained_match and not settings_read(case):
            return
    floor = max([EPSILON, *rounding_noise(replay, steps, right)])
    off = residuals(replay, steps, simulate(replay, steps, right))
    largest, threshold = max(off, default=0.0), ROUNDING * floor

    def residual(update: Update) -> float:
        try:
            return max(residuals(replay, steps, simulate(replay, steps, update)), default=0.0)
        except (TypeError, ValueError, AttributeError, IndexError):
            return float("inf")

    if largest <= threshold:
        # Other settings of the optimizer, which it says itself, may do less than counts as rounding.
        read = settings_read(case) if largest > RIGHT_LEAVES * floor else []
        of_settings = [(CATALOGUE["optimizer-differs"], lambda _: read)]
        explanations = find_explanations(right, of_settings, residual, largest * MUCH_BETTER)
        if not explanations:
            _judge_replica_gradients(case, judgement)
            return
    else:
        # If a step has several optimizers with different settings, no one of them describes the update.
        candidates = [] if case.several_optimizers else recognisers("update", case)
        explanations = find_explanations(right, candidates, residual, threshold)
    judgement.add_explanation(explanations, largest, "updates", len(steps))
    if not explanations:
        beyond = [i for i, value in enumerate(off) if value > threshold]
        i = beyond[0]
        seen = Measurement.of("update-off", step=i + 1, epoch=steps[i].epoch, relative_error=off[i])
        judgement.mark_wrong(seen, certain=len(beyond) > len(off) // 3 or largest > MAX_KINK_RESIDUAL)


def _judge_replica_gradients(case: Case, judgement: Judgement) -> None:
    """Finds wrong gradients of single replicas whose sum is right: the optimizer clips each replica's gradient."""
    gaps = case.weight_gaps(judgement.recipe)
    if not judgement.right or gaps is None or gaps.trained_match:
        return
    certain = not gaps.only_few_off
    i = gaps.failing[0]
    name, off = gaps.worst(i)
    seen = Measurement.of("weight-off", variable=name, step=i + 1, epoch=case.steps[i].epoch, relative_error=off)
    if case.replicas == 1 or not certain:
        judgement.mark_wrong(seen, certain=certain)
        return
    config = configuration(case.replay.experiment.build_optimizer())
    # Clipping is the only nonlinear operation between a replica's gradient and the update.
    if any(config.get(option) for option in CLIPPING):
        judgement.mark_wrong(certain=True)
        judgement.causes["clipping-differs"] = seen.but(gradients="clipped")
    else:
        judgement.mark_wrong(seen.but(gradients="right"), certain=True)


def _judge_state(case: Case, judgement: Judgement) -> None:
    """Compares non-trainable variables after each forward pass, and trainable ones between two steps."""
    gaps = case.weight_gaps(judgement.recipe)
    if gaps is not None:
        ratios = gaps.ratios[:, gaps.trainable :]
        for i in np.flatnonzero((ratios > ROUNDING).any(axis=1))[:1]:
            k = gaps.trainable + int(np.argmax(ratios[i]))
            certain = not gaps.only_few_off
            judgement.mark_wrong(_state_evidence(case, gaps, int(i), k), certain=certain)
    for step, following, changed in case.changed_between_steps()[:1]:
        seen = Measurement.of("changed-between-steps", variables=changed, step=step, following=following)
        judgement.mark_wrong(seen, certain=True)


def _state_evidence(case: Case, gaps: WeightGaps, i: int, k: int) -> Measurement:
    """A variable that is not trained, and is wrong at the end of a step."""
    segment = (case.segments or [])[i]
    at = {"step": i + 1, "epoch": segment.epoch}
    changed = changed_variables(segment.step.state, segment.after, None) if segment.step else []
    if k in changed:
        moved = [gaps.names[j] for j in changed if j >= gaps.trainable]
        return Measurement.of("changed-after-update", variables=moved, reference=case.reference.name, **at)
    gap, noise = float(gaps.gaps[i, k]), float(gaps.noise[:, k].max())
    return Measurement.of("state-off", variable=gaps.names[k], gap=gap, noise=noise, **at)


SMALL_GRADIENT = 1e-5
"""The part of the largest variable's gradient up to which another's may be rounding alone: a bias before batch norm."""
THRESHOLD = ROUNDING * EPSILON
"""The largest relative error of a reported number that counts as rounding."""


def judge_reporting(case: Case, recipe: Recipe, keys: Sequence[str]) -> Judgement:
    """Judges reported numbers by the weights that the trainer itself had."""
    judgement = Judgement()
    table = MetricTable(case, recipe)
    explanations: dict[str, list[Explanation]] = {}
    wrong: dict[str, float] = {}
    told: dict[str, Measurement] = {}
    for key in keys:
        with judgement.probe(f"reporting probe of {key}"):
            metric = ReportedMetric(table, key)
            if not metric.known():
                judgement.not_applicable.append(NotApplicable("reporting probe", f"{key} cannot be recomputed"))
                judgement.unexplained.add(key)
                continue
            right = metric.residual(metric.right)
            if right <= THRESHOLD:
                continue
            judgement.unexplained.add(key)  # until it is explained
            wrong[key] = right
            formulas = [metric.right]
            if recipe != Recipe():
                formulas.insert(0, replace(metric.right, trained_loss=True))
                if metric.residual(formulas[0]) <= THRESHOLD:  # reported just as it is trained on: no cause of its own
                    judgement.mark_wrong(Measurement.of("as-trained", metric=key, loss=metric.is_loss))
                    judgement.unexplained.discard(key)
                    continue
            known = recognisers("formula", metric)
            most = 3 if metric.divided else 2  # not reduced, not weighted by size, and without the layers' losses
            searches = (find_explanations(formula, known, metric.residual, THRESHOLD, most) for formula in formulas)
            explanations[key] = min(searches, key=lambda found: min((len(each.ids) for each in found), default=99))
            if explanations[key]:
                judgement.unexplained.discard(key)
            else:
                told[key] = _otherwise(metric, right)
    _name_causes(judgement, explanations, wrong, told)
    return judgement


def _name_causes(
    judgement: Judgement,
    explanations: Mapping[str, list[Explanation]],
    wrong: Mapping[str, float],
    told: Mapping[str, Measurement],
) -> None:
    """Names the causes of each metric; where one has several explanations, the other metrics may decide."""
    certain = {found[0].ids for found in explanations.values() if len(found) == 1}
    for key, found in explanations.items():
        fitting = [explanation for explanation in found if explanation.ids in certain] if len(found) > 1 else found
        if len(found) > 1 and not fitting and certain:
            fitting = [explanation for explanation in found if explanation.ids <= set().union(*certain)]
        chosen = fitting if len(fitting) == 1 else found
        judgement.add_explanation(chosen, wrong[key], "metric", metric=key)
        if not found:
            judgement.mark_wrong(told[key])


def _otherwise(metric: ReportedMetric, off: float) -> Measurement:
    """A number that no cause explains: by how much it is off, or what else gives it."""
    for variant in said(metric):
        if metric.residual(replace(metric.right, **variant.changes)) <= THRESHOLD:
            return variant.evidence
    return Measurement.of("metric-off", metric=metric.key, relative_error=off)
