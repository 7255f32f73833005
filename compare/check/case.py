"""One candidate's observation beside its replay: what the entries of the catalogue read from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from compare.check.observe import EPOCHS, Applied, Observation
from compare.check.replay import Place, Recipe, Replay, distance, effective
from compare.check.update import EPSILON

ROUNDING = 32.0
"""How many times the measured noise floor still counts as rounding.

Right replays stay within 3 times it in the tests' grid of models, optimizers and replicas; the
nearest wrong hypothesis there is more than 1,000 times farther (``scripts/detector.py`` writes both down).
"""


class Case:
    """What a trainer did, and what it ought to have done.

    Args:
        seen: the trainer's observation.
        replay: the independent recomputation.
        reference: the reference's observation, for what only it can tell (a callback's learning rate).
    """

    def __init__(self, seen: Observation, replay: Replay, reference: Observation) -> None:
        self.seen, self.replay, self.reference = seen, replay, reference
        self.floor = EPSILON
        self._feeds: dict[Recipe, tuple[Place, ...] | None] = {}

    @property
    def steps(self) -> list[Applied]:
        return self.seen.applied

    @property
    def replicas(self) -> int:
        return self.replay.replicas

    @property
    def threshold(self) -> float:
        """The relative residual up to which a replay explains an observation."""
        return ROUNDING * self.floor

    @cached_property
    def expected(self) -> tuple[Place, ...]:
        """The batches in the order in which the run hands them out."""
        return tuple(place for epoch in EPOCHS for place in self.replay.places[epoch])

    @cached_property
    def aligned(self) -> tuple[Place, ...] | None:
        """The batch of each step if every step had its own; None where the numbers do not fit."""
        for epoch in EPOCHS:
            if len(self.seen.of_epoch(epoch)) != len(self.replay.places[epoch]):
                return None
        return self.expected

    @cached_property
    def effective(self) -> list[list[np.ndarray]]:
        """Per step and replica, the gradient that was in effect."""
        return [effective(step, self.replay) for step in self.steps]

    def handed(self, i: int) -> list[np.ndarray]:
        """Per replica, what the optimizer was handed in step ``i``."""
        return [self.replay.flat(gradients) for gradients in self.steps[i].gradients]

    def feed(self, recipe: Recipe) -> tuple[Place, ...] | None:
        """The batches that the steps of this recipe are made from."""
        return recipe.feed if recipe.feed is not None else self.aligned

    def residual(self, recipe: Recipe, stop: float = np.inf) -> float:
        """The largest relative distance of any step's gradient from the recipe's; may end at ``stop``."""
        feed = self.feed(recipe)
        if feed is None or len(feed) != len(self.steps) or not self.steps:
            return np.inf
        worst = 0.0
        for i, place in enumerate(feed):
            worst = max(worst, self.step_residual(i, place, recipe))
            if worst > stop:
                break
        return worst

    def step_residual(self, i: int, place: Place, recipe: Recipe) -> float:
        """The relative distance of one step's gradient from the recipe's."""
        return distance(self.effective[i], self.replay.gradients(self.steps[i], place, recipe))

    def matched_feed(self, base: Recipe) -> tuple[Place, ...] | None:
        """For each step the batch of any epoch that explains its gradient; None unless each has one."""
        if base not in self._feeds:
            self._feeds[base] = self._match_feed(base)
        return self._feeds[base]

    def _match_feed(self, base: Recipe) -> tuple[Place, ...] | None:
        # Where it should be first, then its own epoch, then the others.
        found: list[Place] = []
        everything = [place for places in self.replay.places.values() for place in places]
        for i, step in enumerate(self.steps):
            near = sorted(everything, key=lambda place, own=step.epoch: place.epoch != own)  # type: ignore[misc]
            fitting = (place for place in near if self.step_residual(i, place, base) <= self.threshold)
            place = next(fitting, None)
            if place is None:
                return self._rebatched(base) if i == 0 else None
            found.append(place)
        return tuple(found)

    def _rebatched(self, base: Recipe) -> tuple[Place, ...] | None:
        """The feed if the trainer cuts the examples, in their order, into batches of another size."""
        totals = {epoch: self.replay.places[epoch][-1].stop for epoch in EPOCHS}
        for size in range(1, max(totals.values()) + 1):
            feed = [
                Place(epoch, start, min(start + size, total))
                for epoch, total in totals.items()
                for start in range(0, total, size)
            ]
            if len(feed) != len(self.steps) or self.step_residual(0, feed[0], base) > self.threshold:
                continue
            if all(self.step_residual(i, place, base) <= self.threshold for i, place in enumerate(feed)):
                return tuple(feed)
        return None

    def changed_between_steps(self) -> list[tuple[int, int, list[str]]]:
        """(step, next step, variables) where trained weights change within an epoch, and no optimizer did it."""
        found = []
        names = self.seen.names[: self.seen.trainable]
        for i, (step, following) in enumerate(itertools.pairwise(self.steps)):
            if step.after is None or step.epoch != following.epoch:
                continue
            changed = {
                name: None
                for ours, theirs in zip(step.after, following.state, strict=True)
                for name, a, b in zip(names, ours, theirs, strict=False)
                if not np.array_equal(a, b, equal_nan=True)
            }
            if changed:
                found.append((i + 1, i + 2, list(changed)))
        return found

    def calibrate(self, others: Sequence[float] = ()) -> None:
        """Measure how far rounding alone moves a gradient: the replay again, its weights moved by one ulp."""
        floors = [EPSILON, *others]
        generator = np.random.default_rng(0)
        for step, place in zip(self.steps, self.aligned or (), strict=False):
            exact, off = [], []
            for replica, part in enumerate(self.replay.parts(place)):
                if part.start == part.stop:
                    continue
                exact.append(self.replay.pieces(step, replica, part, Recipe()).data)
                off.append(self.replay.nudged(step, replica, part, generator).data)
            floors.append(distance(exact, off))
        self.floor = max(floor for floor in floors if np.isfinite(floor))
