"""One candidate's observation beside its replay: what the entries of the catalogue read from."""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np

from compare.check.observation import EPOCHS, Applied, Observation
from compare.check.recipe import EPSILON, Place, Recipe, Update, distance
from compare.check.replay import Replay, effective
from compare.check.whole import MORE_NUDGES, ROUNDING, UNEVEN, Whole, judge

KINK = 0.1
"""Up to this relative residual a step may be thought to be at a kink; a wrong recipe is farther off on most steps.

In those checks no right recipe needed it, and a wrong one got so near on a single step five times: no nudge
helped it.
"""


class Case:
    """What a trainer did, and what it ought to have done.

    Args:
        seen: the trainer's observation.
        replay: the independent recomputation.
        reference: the reference's observation, for what only it can tell (a callback's learning rate).
        base: the reference's own case, which has measured how far rounding goes; None of the reference itself.
    """

    def __init__(self, seen: Observation, replay: Replay, reference: Observation, base: Case | None = None) -> None:
        self.seen, self.replay, self.reference, self.base = seen, replay, reference, base
        self.floor: float = EPSILON if base is None else base.floor
        self.nudges: dict[tuple[int, Recipe], int] = {}
        self._feeds: dict[Recipe, tuple[Place, ...] | None] = {}
        self._wholes: dict[Recipe, Whole | None] = {}

    @cached_property
    def steps(self) -> list[Applied]:
        """The optimizer's steps, in the epochs to be judged."""
        return [step for step in self.seen.applied if step.epoch in self.epochs]

    @cached_property
    def passes(self) -> list[Applied]:
        """The steps; where no optimizer was seen, what ``end_step`` saw of them, without gradients."""
        if self.aligned is not None or len(self.seen.steps) != len(self.expected):
            return self.steps
        states = itertools.pairwise([self.seen.initial, *self.seen.steps])
        return [
            Applied(place.epoch, [], before, before, after=after)
            for place, (before, after) in zip(self.expected, states, strict=True)
        ]

    @property
    def replicas(self) -> int:
        return self.replay.replicas

    @property
    def threshold(self) -> float:
        """The relative residual up to which a replay explains an observation."""
        return ROUNDING * self.floor

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs to be judged: those that the reference trained, which a callback may have stopped early."""
        return tuple(self.reference.ended) or tuple(EPOCHS)

    @cached_property
    def expected(self) -> tuple[Place, ...]:
        """The batches in the order in which the run hands them out."""
        return tuple(place for epoch in self.epochs for place in self.replay.places[epoch])

    @cached_property
    def aligned(self) -> tuple[Place, ...] | None:
        """The batch of each step if every step had its own; None where the numbers do not fit."""
        for epoch in self.epochs:
            if len(self.seen.of_epoch(epoch)) != len(self.replay.places[epoch]):
                return None
        return self.expected

    @cached_property
    def effective(self) -> list[list[np.ndarray]]:
        """Per step and replica, the gradient that was in effect."""
        return [effective(step, self.replay) for step in self.steps]

    @cached_property
    def _least(self) -> list[float]:
        """What each step's distance is relative to at least: a tenth of the largest gradient so far.

        A gradient far smaller than those before it (all examples are learned, a probability is clipped) is
        a difference of large numbers, and has their rounding; 2e-7 of the first gradient was seen.
        """
        norms = [float(np.linalg.norm(each)) for each in self.effective]
        return list(0.1 * np.fmax.accumulate([norm if np.isfinite(norm) else 0.0 for norm in norms]))

    def handed(self, i: int) -> list[np.ndarray]:
        """Per replica, what the optimizer was handed in step ``i``."""
        return [self.replay.flat(gradients) for gradients in self.steps[i].gradients]

    def whole(self, recipe: Recipe, update: Update) -> Whole | None:
        """The whole steps held against those of this recipe; None where they cannot be paired."""
        if recipe not in self._wholes:
            like = self.base._wholes.get(recipe) if self.base else None
            self._wholes[recipe] = judge(self, recipe, update, KINK, like)
        return self._wholes[recipe]

    def feed(self, recipe: Recipe) -> tuple[Place, ...] | None:
        """The batches that the steps of this recipe are made from."""
        return recipe.feed if recipe.feed is not None else self.aligned

    def residual(self, recipe: Recipe, stop: float = np.inf) -> float:
        """The largest relative distance of any step's gradient from the recipe's; may end at ``stop``."""
        return max(self.residuals(recipe, stop), default=np.inf)

    def residuals(self, recipe: Recipe, stop: float = np.inf) -> list[float]:
        """The relative distance of each step's gradient from the recipe's; may end at ``stop``, and empty if unpaired.

        Of a few steps that are off by little, the nearest on any side of a bend (see ``_at_kink``).
        """
        feed = self.feed(recipe)
        if feed is None or len(feed) != len(self.steps):
            return []
        off: list[float] = []
        for i, place in enumerate(feed):
            off.append(self.step_residual(i, place, recipe))
            if off[-1] > stop and not self.few([*off, *[0.0] * (len(feed) - len(off))]):
                return off
        if self.few(off):
            off = [min(each, self._at_kink(i, feed[i], recipe)) for i, each in enumerate(off)]
        return off

    def few(self, residuals: list[float]) -> bool:
        """Whether only a few of these are off, by little, as it is where rounding crosses a bend."""
        off = [each for each in residuals if each > self.threshold]
        return len(off) <= len(residuals) // 3 and max(off, default=0.0) <= KINK

    def few_gradients(self, recipe: Recipe) -> bool:
        """Whether at most a few steps' gradients are off, as far as they were seen: rounding moves no more of them."""
        feed = self.feed(recipe)
        if feed is None or len(feed) != len(self.steps):
            return True
        return self.few([self.step_residual(i, place, recipe) for i, place in enumerate(feed)])

    def step_residual(self, i: int, place: Place, recipe: Recipe, nudge: int = 0) -> float:
        """The relative distance of one step's gradient from the recipe's."""
        return distance(self.effective[i], self.replay.gradients(self.steps[i], place, recipe, nudge), self._least[i])

    def _at_kink(self, i: int, place: Place, recipe: Recipe) -> float:
        """The residual of a step that few others share: on another side of a kink it may be rounding.

        A unit's input, or what a loss clips, may be so near its bend that rounding decides which
        slope counts. Weights moved by one unit in the last place land on either side.
        """
        best, nudge = self.step_residual(i, place, recipe), 0
        while best > self.threshold and nudge < MORE_NUDGES:
            nudge += 1
            off = self.step_residual(i, place, recipe, nudge)
            if off < best:
                best = off
                self.nudges[i, recipe] = nudge
        return best

    def matched_feed(self, base: Recipe) -> tuple[Place, ...] | None:
        """For each step the batch of any epoch that explains its gradient; None unless each has one."""
        if base not in self._feeds:
            self._feeds[base] = self._match_feed(base)
        return self._feeds[base]

    def _match_feed(self, base: Recipe) -> tuple[Place, ...] | None:
        if not self.steps:
            return None
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
        totals = {epoch: self.replay.places[epoch][-1].stop for epoch in self.epochs}
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

    @property
    def several_optimizers(self) -> bool:
        """Whether some step was made by optimizers of different classes or settings, each for its variables."""
        for step in self.steps:
            used = [self.seen.optimizers[call.optimizer] for call in step.calls]
            rates = {call.learning_rate for call in step.calls}
            if len(rates) > 1 or any(_settings(each) != _settings(used[0]) for each in used[1:]):
                return True
        return False

    @staticmethod
    def clipping(seen: Observation) -> dict[str, float | None]:
        """The clipping that the optimizers in use are set to; nothing where they disagree."""
        names = "clipnorm", "clipvalue", "global_clipnorm"
        used = {call.optimizer for step in seen.applied for call in step.calls}
        each = [{name: seen.optimizers[i][1].get(name) for name in names} for i in used]
        return each[0] if each and all(one == each[0] for one in each) else dict.fromkeys(names)

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

    def calibrate(self) -> None:
        """Measure how far rounding alone moves a gradient: the replay again, in two other ways.

        Weights moved by one unit in the last place are for the forward pass. Backwards the loss takes a
        factor that is undone in the end: where layers compute in half precision, only that rounds anew.

        The median over the steps: a single one may be at a kink (see ``residual``).
        """
        floors = []
        for step, place in zip(self.steps, self.aligned or (), strict=False):
            right = self.replay.gradients(step, place, Recipe())
            nudged = self.replay.gradients(step, place, Recipe(), 1)
            scaled = self.replay.gradients(step, place, Recipe(scale=UNEVEN))
            floors.append(max(distance(right, nudged), distance(right, scaled)))
        known = [floor for floor in floors if np.isfinite(floor)]
        self.floor = max(EPSILON, float(np.median(known)) if known else 0.0)


def _settings(optimizer: tuple[type, dict[str, object]]) -> tuple[type, dict[str, object]]:
    cls, config = optimizer
    return cls, {name: value for name, value in config.items() if name != "name"}
