"""Judges a trainer by its weights alone, where its gradients were not seen or cannot be paired with batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from compare.check.case import Case
from compare.check.measurement import Measurement
from compare.check.observation import Observation
from compare.check.optimizer_replay import replay_segments
from compare.check.recipe import Recipe, Update, multiple
from compare.check.search import find_explanations, recognisers
from compare.check.weight_gaps import ROUNDING, Segment, Weights, by_variable, norms
from compare.verdict.findings import NotApplicable

if TYPE_CHECKING:
    from compare.check.judgement import Judgement


def why_no_gradients(observation: Observation) -> NotApplicable:
    reason = "never calls apply of a Keras optimizer"
    if observation.compiled:
        reason = "applies its optimizer in a function compiled by XLA (jit_compile=True), where nothing can be recorded"
    return NotApplicable("gradient probe", f"{observation.name} {reason}, so it is judged by its weights alone")


def search_by_weights(case: Case, judgement: Judgement) -> None:
    """Searches for the cause with which the recomputed steps lead to the observed weights."""
    known, weight_gaps = case.segments, case.weight_gaps(judgement.recipe)
    if known is None or weight_gaps is None:
        steps, batches = len(case.observation.step_states), len(case.expected)
        seen = Measurement.of("end-steps", steps=steps, batches=batches)
        judgement.mark_wrong(None if judgement.causes else seen)
        return
    recipe, right = judgement.recipe, case.right_update
    first_wrong = weight_gaps.failing[0] if weight_gaps.failing else 0
    trainable = weight_gaps.trainable
    noise = weight_gaps.noise_floor[:, :trainable]
    observed = [by_variable(segment.after) for segment in known]

    def gaps(recipe: Recipe, update: Update, count: int) -> np.ndarray:
        return norms(observed[:count], list(replay_segments(case.replay, known[:count], recipe, update)))[:, :trainable]

    def off(recipe: Recipe, update: Update) -> float:
        """The largest gap in units of what counts as rounding; up to the first wrong step, if it is wrong there."""
        worst = 0.0
        for count in dict.fromkeys((first_wrong + 1, len(known))):
            try:
                ratios = gaps(recipe, update, count) / (ROUNDING * noise[:count])
            except (TypeError, ValueError, AttributeError, IndexError):
                return float("inf")
            worst = float(np.nan_to_num(ratios, nan=np.inf).max(initial=0.0))
            if worst > 1:
                break
        return worst

    def relative(recipe: Recipe, update: Update) -> float:
        """The largest gap relative to the change of the variable."""
        change = np.maximum(weight_gaps.moved, weight_gaps.noise)[:, :trainable]
        return float(np.nan_to_num(gaps(recipe, update, len(known)) / change, nan=np.inf).max(initial=0.0))

    if off(recipe, right) <= 1:
        return  # only variables that are not trained are off
    # A factor in the gradient may look like one in the learning rate: if both explain it, neither is named.
    by_gradient = find_explanations(recipe, recognisers("gradient", case), lambda r: off(r, right), 1.0)
    by_update = find_explanations(right, recognisers("update", case), lambda update: off(recipe, update), 1.0)
    explanations = [replace(e, residual=relative(e.recipe, right)) for e in by_gradient]
    explanations += [replace(e, residual=relative(recipe, e.recipe)) for e in by_update]
    what = f"weights after {'steps' if len(known) == len(case.expected) else 'epochs'}"
    if judgement.add_explanation(explanations, relative(recipe, right), what, len(known)) and by_gradient:
        judgement.adopt_gradients(explanations[0])
    if explanations or _name_factor(case, judgement, known, first_wrong, partial(off, recipe), what):
        return
    beyond = not weight_gaps.only_few_off
    seen = Measurement.of("weights-off", relative_error=relative(recipe, right))
    judgement.mark_wrong(seen, certain=beyond and len(known) == len(case.expected))


def _name_factor(
    case: Case,
    judgement: Judgement,
    known: Sequence[Segment],
    first: int,
    off: Callable[[Update], float],
    what: str,
) -> bool:
    """Reports a constant factor in all changes of the weights from one step on; returns whether there is one."""
    right = case.right_update
    replayed = list(replay_segments(case.replay, known, judgement.recipe, right))
    factor, rates = _factor(known, replayed, case.replay.trainable, first), right.learning_rates
    if not factor or not rates:
        return False
    since = first if len(known) == len(rates) else 0
    changed = (*rates[:since], *(rate * factor for rate in rates[since:]))
    if off(replace(right, learning_rates=changed)) > 1:
        return False
    optimizer = type(case.replay.experiment.build_optimizer()).__name__
    seen = Measurement.of("weights-change", factor=factor, learning_rate=rates[since], explains=what, places=len(known))
    judgement.mark_wrong(seen if optimizer in FOLLOWS_LOSS and not since else None, certain=True)
    if since or optimizer not in FOLLOWS_LOSS:
        place = {"since_step": since + 1, "since_epoch": known[since].epoch} if since else {}
        judgement.causes["optimizer-differs"] = seen.but(as_rate=rates[since] * factor, **place)
    return True


def _factor(known: Sequence[Segment], replayed: Sequence[Weights], trainable: int, i: int) -> float | None:
    """How many times as large as the right one a change of the weights is; None if it is none."""
    before = [np.asarray(v, np.float64) for v in known[i].before[0][:trainable]]
    changes = [new - old for new, old in zip(known[i].after[0], before, strict=False)]
    return multiple(changes, [copies[0] - old for copies, old in zip(replayed[i], before, strict=False)])


FOLLOWS_LOSS = ("SGD", "Adadelta", "Ftrl")
"""Optimizers whose steps are as many times as large as the loss."""
