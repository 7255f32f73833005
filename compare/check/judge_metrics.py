"""Judges the numbers that a trainer reports against those recomputed from the weights that it had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compare.check.case import Case
from compare.check.causes.reporting import said
from compare.check.judgement import Judgement
from compare.check.measurement import Measurement
from compare.check.metric_replay import MetricTable, ReportedMetric
from compare.check.recipe import EPSILON, Recipe
from compare.check.search import Explanation, find_explanations, recognisers
from compare.check.weight_gaps import ROUNDING
from compare.verdict.findings import NotApplicable

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
                judgement.add_fit(key, right, THRESHOLD)
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
            search = min(searches, key=lambda each: min((len(found.ids) for found in each.explanations), default=99))
            explanations[key] = search.explanations
            if search.explanations:
                judgement.unexplained.discard(key)
            else:
                told[key] = _otherwise(metric, right)
            judgement.add_fit(key, right, THRESHOLD, search)
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
        if not judgement.add_explanation(chosen, wrong[key], "metric", metric=key) and not found:
            judgement.mark_wrong(told[key])


def _otherwise(metric: ReportedMetric, off: float) -> Measurement:
    """A number that no cause explains: by how much it is off, or what else gives it."""
    for variant in said(metric):
        if metric.residual(replace(metric.right, **variant.changes)) <= THRESHOLD:
            return variant.evidence
    return Measurement.of("metric-off", metric=metric.key, relative_error=off)
