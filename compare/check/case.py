"""Observed and recomputed steps of one trainer, queried by causes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from compare.check.observation import (
    EPOCHS,
    Observation,
    OptimizerStep,
    State,
    callback_names,
    changed_variables,
    configuration,
)
from compare.check.optimizer_replay import replay_segments
from compare.check.recipe import EPSILON, Recipe, Span, Update, distance
from compare.check.replay import Replay
from compare.check.replay_parts import micro_batches
from compare.check.used import ALONE, AVERAGES, RUN, Used
from compare.check.weight_gaps import MAX_KINK_RESIDUAL, ROUNDING, Segment, WeightGaps, by_variable, norms
from compare.engine.keras_generation import CLIPS_EACH_REPLICA
from compare.records.model import EPOCH_END, Place
from compare.verdict.rounding import Noise
from compare.watch.trace import ON_BATCHES

UNEVEN = 1.37
"""A factor that is not a power of two, so that multiplying by it changes the rounding."""
NUDGES = 3
"""The number of perturbations of the weights that are tried first."""
MORE_NUDGES = 8
"""The number tried in all if a few steps are slightly off: rounding may decide on which side of a kink a value lies."""


class Case:
    """The observed steps of a trainer, compared with the expected ones.

    Args:
        reference_case: the reference's own case, which has measured rounding, and whose observation shows what no
            replay can (such as a callback's learning rate); None if this is the reference.
    """

    def __init__(self, observation: Observation, replay: Replay, reference_case: Case | None = None) -> None:
        self.observation, self.replay, self.reference_case = observation, replay, reference_case
        self.reference = observation if reference_case is None else reference_case.observation
        self.floor: float = EPSILON if reference_case is None else reference_case.floor
        self.matched_feed = cache(self._match_feed)
        self._weight_gaps: dict[Recipe, WeightGaps | None] = {}

    @cached_property
    def steps(self) -> list[OptimizerStep]:
        """The optimizer steps of the epochs to be judged."""
        return [step for step in self.observation.optimizer_steps if step.epoch in self.epochs]

    @cached_property
    def passes(self) -> list[OptimizerStep]:
        """The optimizer steps; if no optimizer was seen, the steps between calls of ``end_step``, without gradients."""
        if self.aligned is not None or len(self.observation.step_states) != len(self.expected):
            return self.steps
        states = itertools.pairwise([self.observation.initial, *self.observation.step_states])
        return [
            OptimizerStep(span.epoch, [], before, before, after=after)
            for span, (before, after) in zip(self.expected, states, strict=True)
        ]

    def settings(self, observation: Observation) -> list[tuple[type[Any], dict[str, Any]]]:
        """The class and configuration of the optimizer in each step; the experiment's if none was observed."""
        used = [step.calls[0].optimizer for step in observation.optimizer_steps if step.calls]
        if used or observation.optimizers:
            return [observation.optimizers[i] for i in used or [0]]
        optimizer = self.replay.experiment.build_optimizer()
        return [(type(optimizer), configuration(optimizer))]

    @cached_property
    def optimizers(self) -> list[tuple[type[Any], dict[str, Any]]]:
        """The class and configuration of the optimizer in the first step: the trainer's, and the reference's."""
        return [self.settings(each)[0] for each in (self.observation, self.reference)]

    @property
    def averages(self) -> bool:
        """Whether the reference's optimizer keeps moving averages of the weights, which fit takes over at its end."""
        return bool(self.optimizers[1][1].get("use_ema"))

    @cached_property
    def moved_by_reference(self) -> frozenset[int]:
        """The indices of variables that are not trained and that the reference changes after its updates, in callbacks.

        They cannot be replayed, so only their values in the end are compared.
        """
        return frozenset(
            k
            for step in self.reference.optimizer_steps
            for k in changed_variables(step.state, step.after or step.state, None)
            if k >= self.reference.trainable
        )

    @cached_property
    def callbacks(self) -> list[str]:
        """The class names of the experiment's callbacks, which fit runs."""
        return callback_names(self.replay.experiment)

    @cached_property
    def repeated(self) -> int:
        """How often the optimizer was given each step's gradients, if more than once in every step; else 1."""
        made, ends = self.observation.optimizer_steps, [0, *self.observation.updates_made]
        updates = [made[a:b] for a, b in itertools.pairwise(ends)]  # between two calls of end_step
        counts = {len(of_step) for of_step in updates}
        if len(updates) != len(self.expected) or len(counts) != 1:
            return 1
        pairs = ((of_step[0].gradients, other.gradients) for of_step in updates for other in of_step[1:])
        return 1 if any(changed_variables(*pair, None) for pair in pairs) else max(counts.pop(), 1)

    @cached_property
    def by_hand(self) -> bool:
        """Whether the weights are changed, at least in part, by something else than an optimizer."""
        return not self.observation.optimizers or bool(self.changed_between_steps())

    @property
    def replicas(self) -> int:
        return self.replay.replicas

    @property
    def threshold(self) -> float:
        """The largest relative residual with which a replay explains an observation."""
        return ROUNDING * self.floor

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs to be judged: those that the reference trained. A callback may have stopped it early."""
        return tuple(self.reference.epoch_end_states) or tuple(EPOCHS)

    @cached_property
    def expected(self) -> tuple[Span, ...]:
        """The batches in the order in which the run provides them."""
        return tuple(span for epoch in self.epochs for span in self.replay.spans[epoch])

    @cached_property
    def right_update(self) -> Update:
        """The experiment's optimizer with the learning rates that the reference had, since a callback may set them."""
        rates = tuple(step.learning_rate for step in self.reference.optimizer_steps)
        return Update(learning_rates=rates or None, clip="per-replica" if CLIPS_EACH_REPLICA else "reduced")

    @cached_property
    def aligned(self) -> tuple[Span, ...] | None:
        """The batch of each step; None if the numbers of steps and batches differ."""
        spans = self.replay.spans
        same = all(len(self.observation.of_epoch(epoch)) == len(spans[epoch]) for epoch in self.epochs)
        return self.expected if same else None

    @cached_property
    def effective(self) -> list[list[np.ndarray]]:
        """The gradient that each update was made from, before the optimizer's clipping.

        ``[step][replica]``; each is float64 ``[weights]``.
        """
        return [[np.sum(self.replica_gradients(i), axis=0)] * self.replicas for i in range(len(self.steps))]

    @cached_property
    def _min_scales(self) -> list[float]:
        """The smallest norm that each step's distance may be relative to: a tenth of the largest gradient so far.

        A gradient far smaller than those before it (all examples are learned, or a probability is clipped) is a
        difference of large numbers and has their rounding; 2e-7 of the first gradient was observed.
        """
        norms = [float(np.linalg.norm(gradients)) for gradients in self.effective]
        return list(0.1 * np.fmax.accumulate([norm if np.isfinite(norm) else 0.0 for norm in norms]))

    def replica_gradients(self, i: int) -> list[np.ndarray]:
        """The gradients passed to the optimizer in step ``i``, per replica: float64 ``[weights]``."""
        return [self.replay.flatten(gradients) for gradients in self.steps[i].gradients]

    @cached_property
    def segments(self) -> list[Segment] | None:
        """Splits training at the observed states: after each step or, without those, after each epoch.

        Returns:
            The segments; None if the number of steps differs from that of batches, or states are missing.
        """
        observation = self.observation
        if self.aligned is not None and self.steps and not observation.foreign:
            if any(step.after is None for step in self.steps):
                return None
            return [
                Segment(step.epoch, step.before, (span,), self._at_end(step), step)
                for step, span in zip(self.steps, self.aligned, strict=True)
            ]
        if tuple(observation.epoch_end_states) != self.epochs:
            return None
        if observation.step_states:
            if len(observation.step_states) != len(self.expected):
                return None
            states, groups = observation.step_states, [[span] for span in self.expected]
        else:
            states = list(observation.epoch_end_states.values())
            groups = [self.replay.spans[epoch] for epoch in self.epochs]
        pairs = zip(itertools.pairwise([observation.initial, *states]), groups, strict=True)
        return [Segment(group[0].epoch, a, tuple(group), b) for (a, b), group in pairs]

    def _at_end(self, step: OptimizerStep) -> State:
        """All variables at the end of a step, without what the reference changes as well after its update."""
        after = step.after or step.state
        usual = self.moved_by_reference
        if not usual:
            return after
        return [
            [b if k in usual else a for k, (a, b) in enumerate(zip(*copies, strict=True))]
            for copies in zip(after, step.state, strict=True)
        ]

    def weight_gaps(self, recipe: Recipe) -> WeightGaps | None:
        """Compares the weights after each step with those of this recipe; None if steps cannot be paired with batches.

        Raises:
            Exception: whatever the model or the optimizer raises while the steps are recomputed.
        """
        if recipe not in self._weight_gaps:
            self._weight_gaps[recipe] = self._compare_weights(recipe)
        return self._weight_gaps[recipe]

    def _compare_weights(self, recipe: Recipe) -> WeightGaps | None:
        known = self.segments
        if not known:
            return None
        exact = list(replay_segments(self.replay, known, recipe, self.right_update))
        observed = [by_variable(segment.after) for segment in known]
        before = [by_variable(segment.before) for segment in known]
        gaps, moved = norms(observed, exact), norms(exact, before)
        floor = 4 * EPSILON * norms(before, None) + EPSILON * moved
        weight_gaps = WeightGaps(self.observation.names, self.replay.trainable, gaps, floor, moved)
        # The reference's noise is used first; more is measured only if it is exceeded.
        reference = self.reference_case._weight_gaps.get(recipe) if self.reference_case else None
        if reference is not None and reference.noise.shape == floor.shape:
            weight_gaps = replace(weight_gaps, noise=np.fmax(floor, reference.noise))
            if weight_gaps.all_match:
                return weight_gaps
        for variant, nudge in self._variants(recipe):
            if nudge > 1 and (weight_gaps.all_match or not self.only_few_off(self.residuals(recipe))):
                break
            if nudge > NUDGES and not weight_gaps.only_few_off:
                break
            noisy = list(replay_segments(self.replay, known, variant, self.right_update, nudge))
            weight_gaps = replace(weight_gaps, noise=np.fmax(weight_gaps.noise, norms(noisy, exact)))
        return weight_gaps

    def drift(self, gaps: WeightGaps, start: Place) -> Noise:
        """Compares the weights and all state at the ends of epochs with the reference's, by the rounding of all steps.

        Steps that are right from the weights that they had lead as far as their rounding adds up. What changes the
        weights or the state besides is seen here, whatever it is. The gaps of the steps have the rounding of each.
        """
        epochs = np.array([segment.epoch for segment in self.segments or ()])
        worst = Noise.of(0, 0.0, start, gaps.names[0])
        for epoch in self.epochs:
            states = [observed.epoch_end_states.get(epoch) for observed in (self.observation, self.reference)]
            if states[0] is None or states[1] is None:
                continue
            distances = norms(*([by_variable(state)] for state in states if state))[0]
            rounding = gaps.noise_floor[: len(epochs)][epochs <= epoch].sum(axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                known = np.isfinite(distances) & np.isfinite(rounding)
                ratios = np.where(distances == 0, 0.0, np.where(known, distances / rounding, np.inf))
            k = int(ratios.argmax())
            if ratios[k] > worst.ratio:
                worst = Noise.of(0, float(ratios[k]), (epoch, EPOCH_END), gaps.names[k])
        return worst

    def _variants(self, recipe: Recipe) -> Iterator[tuple[Recipe, int]]:
        """Equivalent computations that round differently, as pairs of recipe and nudge."""
        yield recipe, 1
        yield replace(recipe, scale=UNEVEN), 0  # the backward pass: in half precision only this changes its rounding
        if self.observation.compiled:
            yield replace(recipe, xla=True), 0
        for nudge in range(2, MORE_NUDGES + 1):
            yield recipe, nudge

    def feed(self, recipe: Recipe) -> tuple[Span, ...] | None:
        """The batches of the steps under this recipe."""
        return recipe.feed if recipe.feed is not None else self.aligned

    def residual(self, recipe: Recipe, stop: float = np.inf) -> float:
        """The largest relative distance of any step's gradient from the recipe's; it ends beyond ``stop``."""
        return max(self.residuals(recipe, stop), default=np.inf)

    def residuals(self, recipe: Recipe, stop: float = np.inf) -> list[float]:
        """The relative distance of each step's gradient from the recipe's; empty if steps cannot be paired.

        If only a few steps are slightly off, the smallest distance on either side of a kink counts (see
        ``_kink_residual``).
        """
        feed = self.feed(recipe)
        if feed is None or len(feed) != len(self.steps):
            return []
        off: list[float] = []
        for i, span in enumerate(feed):
            off.append(self.step_residual(i, span, recipe))
            if off[-1] > stop and not self.only_few_off([*off, *[0.0] * (len(feed) - len(off))]):
                return off
        if self.only_few_off(off):
            off = [min(residual, self._kink_residual(i, feed[i], recipe)) for i, residual in enumerate(off)]
        return off

    def only_few_off(self, residuals: list[float]) -> bool:
        """Whether only a few residuals exceed the threshold, and only slightly, as when rounding crosses a kink."""
        off = [residual for residual in residuals if residual > self.threshold]
        return len(off) <= len(residuals) // 3 and max(off, default=0.0) <= MAX_KINK_RESIDUAL

    def step_residual(self, i: int, span: Span, recipe: Recipe, nudge: int = 0) -> float:
        """The relative distance of one step's gradient from the recipe's."""
        expected = self.replay.gradients(self.steps[i], span, recipe, nudge)
        return distance(self.effective[i], expected, self._min_scales[i])

    def _kink_residual(self, i: int, span: Span, recipe: Recipe) -> float:
        """The smallest residual of a step over several perturbations of its weights.

        A unit's input, or a value that a loss clips, may be so close to a kink that rounding decides which slope
        counts. Weights changed by one unit in the last place fall on either side of it.
        """
        best, nudge = self.step_residual(i, span, recipe), 0
        while best > self.threshold and nudge < MORE_NUDGES:
            nudge += 1
            best = min(best, self.step_residual(i, span, recipe, nudge))
        return best

    @cached_property
    def seen_feed(self) -> tuple[Span, ...] | None:
        """The batch of each step by its examples, of those that the reference had; None unless every step has one.

        So another mistake in the gradients does not hide other batches.
        """
        seen, reference = self.observation.inside, self.reference.inside
        if seen is None or reference is None or len(reference.steps) != len(self.expected):
            return None
        pairs = zip(sorted(reference.steps), self.expected, strict=True)
        known = {tuple(reference.example_rows(step)): span for step, span in pairs}
        feed = [known.get(tuple(seen.example_rows(step))) for step in sorted(seen.steps)]
        found = tuple(span for span in feed if span is not None)
        return found if len(found) == len(feed) == len(self.steps) and found != self.aligned else None

    def _match_feed(self, recipe: Recipe) -> tuple[Span, ...] | None:
        """The batch of any epoch that explains each step's gradient, or that the step was seen to have; else None."""
        feed: list[Span] = []
        candidates = [span for spans in self.replay.spans.values() for span in spans]
        for i, step in enumerate(self.steps):
            # Batches of the step's own epoch are tried first.
            ordered = sorted(candidates, key=lambda span, own=step.epoch: span.epoch != own)  # type: ignore[misc]
            fitting = (span for span in ordered if self.step_residual(i, span, recipe) <= self.threshold)
            span = next(fitting, None)
            if span is None:
                return (self._rebatched(recipe) if i == 0 else None) or self.seen_feed
            feed.append(span)
        return tuple(feed) or self.seen_feed

    def _rebatched(self, recipe: Recipe) -> tuple[Span, ...] | None:
        """The batches if the trainer splits the examples, in order, into batches of another size; else None."""
        totals = {epoch: self.replay.spans[epoch][-1].stop for epoch in self.epochs}
        for size in range(1, max(totals.values()) + 1):
            feed = [part for epoch, total in totals.items() for part in micro_batches(Span(epoch, 0, total), size)]
            if len(feed) != len(self.steps) or self.step_residual(0, feed[0], recipe) > self.threshold:
                continue
            if all(self.step_residual(i, span, recipe) <= self.threshold for i, span in enumerate(feed)):
                return tuple(feed)
        return None

    @property
    def several_optimizers(self) -> bool:
        """Whether any step uses optimizers of different classes or settings, each for its own variables."""
        return any(
            not step.groups and len({(call.optimizer, call.learning_rate) for call in step.calls}) > 1
            for step in self.steps
        )

    @property
    def used(self) -> Used:
        """What the trainer uses, as far as remedies depend on it."""
        alone = not self.observation.distributed and self.replicas == 1
        words = {RUN: True, ALONE: alone, ON_BATCHES: self.observation.on_batch, AVERAGES: self.averages}
        return Used.of(words).seeing(self.divided)

    @property
    def divided(self) -> Mapping[str, Any]:
        """The line of the first loss that Keras divides by the number of replicas, in training and in validation."""
        inside = self.observation.inside
        return inside.divided if inside is not None else {}

    def changed_between_steps(self) -> list[tuple[int, int, list[str]]]:
        """Finds trained weights that change between two steps of an epoch.

        Returns:
            Tuples of step and next step, both from 1, and the names of the variables.
        """
        changes = []
        for i, (step, following) in enumerate(itertools.pairwise(self.steps)):
            if step.after is None or step.epoch != following.epoch:
                continue
            changed = changed_variables(step.after, following.state, self.observation.trainable)
            if changed:
                changes.append((i + 1, i + 2, list(dict.fromkeys(self.observation.names[k] for k in changed))))
        return changes

    def calibrate(self) -> None:
        """Measures how far rounding alone moves a gradient, and sets ``floor``.

        Each step is recomputed in two ways that differ in rounding only. Weights changed by one unit in the last
        place perturb the forward pass. A factor on the loss that is divided out again perturbs the backward pass;
        in half precision only this changes the rounding there.

        The floor is the median over the steps, since a single step may be at a kink (see ``residuals``).
        """
        floors = []
        for step, span in zip(self.steps, self.aligned or (), strict=False):
            right = self.replay.gradients(step, span, Recipe())
            nudged = self.replay.gradients(step, span, Recipe(), 1)
            scaled = self.replay.gradients(step, span, Recipe(scale=UNEVEN))
            floors.append(max(distance(right, nudged), distance(right, scaled)))
        known = [floor for floor in floors if np.isfinite(floor)]
        self.floor = max(EPSILON, float(np.median(known)) if known else 0.0)
