"""A trainer whose gradients cannot be paired with batches, judged by its weights: after each step, or each epoch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from compare.check.case import KINK, Case
from compare.check.causes import CATALOGUE
from compare.check.observation import Observation
from compare.check.recipe import Recipe, Update
from compare.check.report import NotApplicable
from compare.check.search import explain
from compare.check.whole import ROUNDING, stretches, walk

if TYPE_CHECKING:
    from compare.check.judgement import Judgement


def why(seen: Observation) -> NotApplicable:
    """Why nothing is known of the gradients of a trainer whose optimizer was never seen."""
    reason = "calls no Keras optimizer's apply"
    if seen.compiled:
        reason = "applies its optimizer in a function compiled by XLA (jit_compile=True), where nothing can be recorded"
    return NotApplicable("gradient probe", f"{seen.name} {reason}: it is judged by its weights alone")


def search_by_weights(case: Case, judgement: Judgement, right: Update) -> None:
    """Look for the mistake with which the steps, made again, lead to the weights that were seen."""
    known, whole = stretches(case), case.whole(judgement.recipe, right)
    if known is None or whole is None:
        steps, batches = len(case.seen.steps), len(case.expected)
        text = f"end_step was called {steps} times, where the data set has {batches} batches"
        judgement.off("" if judgement.causes else text)
        return
    base = judgement.recipe
    noise = whole.rounding[:, : whole.trainable]
    seen = [[np.asarray(v, np.float64) for v in each.after[0][: whole.trainable]] for each in known]

    def gaps(recipe: Recipe, update: Update) -> np.ndarray:
        """float64 ``[stretches, trainable variables]``."""
        walked = walk(case, known, recipe, update)
        return np.array(
            [
                [float(np.linalg.norm(a - copies[0])) for a, copies in zip(mine, weights, strict=False)]
                for mine, weights in zip(seen, walked, strict=True)
            ]
        )

    def off(recipe: Recipe, update: Update) -> float:
        """The largest gap in units of what counts as rounding."""
        try:
            ratios = gaps(recipe, update) / (ROUNDING * noise)
        except (TypeError, ValueError, AttributeError):
            return float("inf")
        return float(np.nan_to_num(ratios, nan=np.inf).max(initial=0.0))

    def relative(recipe: Recipe, update: Update) -> float:
        return float(
            (gaps(recipe, update) / np.maximum(whole.moved, whole.noise)[:, : whole.trainable]).max(initial=0.0)
        )

    first, what = off(base, right), f"the weights after {len(known)} stretches of steps"
    if first <= 1:
        return  # only what is not trained is off
    # A factor in a gradient may look like one in the learning rate: neither is named if both explain it.
    gradients = [(cause, partial(cause.gradient, case)) for cause in CATALOGUE.values() if cause.gradient]
    updates = [(cause, partial(cause.update, case)) for cause in CATALOGUE.values() if cause.update]
    by_gradient = explain(base, gradients, lambda recipe: off(recipe, right), 1.0)
    by_update = explain(right, updates, lambda update: off(base, update), 1.0)
    found = [replace(each, residual=relative(each.recipe, right)) for each in by_gradient.found]
    found += [replace(each, residual=relative(base, each.recipe)) for each in by_update.found]
    judgement.fit("weights", first * ROUNDING, ROUNDING, by_gradient if by_gradient.found else by_update)
    if judgement.name(found, relative(base, right), what) and by_gradient.found:
        judgement.recipe = found[0].recipe
        judgement.of_gradients = set(found[0].ids)
    if not found:
        beyond = not whole.few(KINK)
        judgement.off(
            f"{what} are not what right gradients and the experiment's optimizer make: {relative(base, right):.2g} of "
            "the change, relative, is unexplained",
            certain=beyond and len(known) == len(case.expected),
        )
